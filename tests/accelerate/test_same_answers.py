"""Loops as people write them have the answers of TensorFlow's own: values, gradients, types."""

import collections
import itertools
import pathlib
import re
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti

RNG = np.random.default_rng(0)
XS = tf.constant(RNG.normal(size=(5, 2, 3)), tf.float32)
W = tf.constant(RNG.normal(size=(3, 3)) * 0.5, tf.float32)
Pair = collections.namedtuple("Pair", ["first", "second"])


# --- AutoGraph -----------------------------------------------------------------------------------


def autograph_for(xs):
    c = tf.zeros([2, 3])
    for x in xs:
        c = tf.tanh(c @ W + x)
    return c


def autograph_while(xs):
    c, k = tf.zeros([2, 3]), 0
    while k < tf.shape(xs)[0] and tf.reduce_max(c) < 1.0:
        c = c * 0.9 + xs[k]
        k += 1
    return c, k


def autograph_break_and_continue(xs):
    c = tf.zeros([2, 3])
    for x in xs:
        if tf.reduce_sum(x) < -2.0:
            continue
        c += x * x
        if tf.reduce_max(c) > 4.0:
            break
    return c


def autograph_array(xs):
    out = tf.TensorArray(tf.float32, tf.shape(xs)[0])
    c = tf.zeros([2, 3])
    for k in tf.range(tf.shape(xs)[0]):
        if tf.reduce_sum(xs[k]) > 0.0:
            c = c * 0.5 + xs[k]
        else:
            c = c + tf.sin(xs[k])
        out = out.write(k, c)
    return out.stack()


def autograph_nested(xs):
    c = tf.zeros([2, 3])
    for x in xs:
        for k in tf.range(2):
            c = tf.tanh(c * 0.5 + x * tf.cast(k, tf.float32))
    return c


def autograph_growing_array(xs):
    out = tf.TensorArray(tf.float32, 0, dynamic_size=True)
    for k in tf.range(3):
        out = out.write(k, xs[k] * 2.0)
    return out.stack()


# --- functions of TensorFlow ---------------------------------------------------------------------


def scan(xs):
    return tf.scan(lambda c, x: tf.tanh(c @ W + x), xs, tf.zeros([2, 3]))


def scan_backwards_of_a_structure(xs):
    def step(c, x):
        return {"sum": c["sum"] + x[0], "last": x[1] * 2.0}

    start = {"sum": tf.zeros([2, 3]), "last": tf.ones([2, 3])}
    return tf.scan(step, (xs, xs + 1.0), start, reverse=True)


def foldl(xs):
    return tf.foldl(lambda c, x: c * 0.9 + x, xs)


def foldr(xs):
    return tf.foldr(lambda c, x: c * x, xs, tf.ones([2, 3]))


def map_fn(xs):
    return tf.map_fn(lambda x: (tf.linalg.norm(x @ W), tf.shape(x)[0]), xs, (tf.float32, tf.int32))


def map_fn_of_ragged_rows(xs):
    rows = tf.RaggedTensor.from_row_lengths(xs[:, 0, 0], [2, 0, 3])
    return tf.map_fn(lambda r: tf.reduce_sum(r**2), rows, fn_output_signature=tf.float32)


def map_fn_to_ragged_rows(xs):
    rows = tf.RaggedTensor.from_row_lengths(xs[:, 0, 0], [2, 0, 3])
    signature = tf.RaggedTensorSpec([None], tf.float32)
    doubled = tf.map_fn(lambda r: tf.concat([r, r], 0), rows, fn_output_signature=signature)
    return doubled.to_tensor()


def conjugate_gradient(xs):
    matrix = tf.matmul(xs[0], xs[0], transpose_a=True) + 3.0 * tf.eye(3)
    operator = tf.linalg.LinearOperatorFullMatrix(
        matrix, is_self_adjoint=True, is_positive_definite=True
    )
    return tf.linalg.experimental.conjugate_gradient(operator, xs[0, 0], max_iter=6).x


# --- tf.while_loop -------------------------------------------------------------------------------


def structures(xs):
    def body(state):
        pair = state["pair"]
        return [{"pair": Pair(pair.first + 1, pair.second * xs[0]), "other": (state["other"][0],)}]

    start = {"pair": Pair(0, xs[0]), "other": (xs[1],)}
    (state,) = tf.while_loop(lambda state: state["pair"].first < 3, body, [start])
    return state


def one_variable_alone(xs):
    return tf.while_loop(lambda x: tf.reduce_sum(x * x) < 40.0, lambda x: x * 1.5, [xs[0]])


def growing(xs):
    invariants = [tf.TensorShape([]), tf.TensorShape([None, 2, 3])]

    def body(k, x):
        return k + 1, tf.concat([x, xs[k : k + 1]], 0)

    return tf.while_loop(lambda k, x: k < 3, body, [0, xs[:1]], invariants)[1]


def unknown_rank(xs):
    invariants = [tf.TensorShape([]), tf.TensorShape(None)]
    return tf.while_loop(lambda k, x: k < 3, lambda k, x: (k + 1, x * 2.0), [0, xs], invariants)[1]


def limited(xs):
    return tf.while_loop(
        lambda k, x: k < 9, lambda k, x: (k + 1, x * 1.5), [0, xs], maximum_iterations=4
    )


def limited_alone(xs):
    limit = tf.shape(xs)[0] - 2
    return tf.while_loop(lambda x: True, lambda x: [x * xs[0]], [xs], maximum_iterations=limit)


def limited_to_none(xs):
    return tf.while_loop(lambda x: True, lambda x: [x * 2.0], [xs], maximum_iterations=-3)


def without_gradient(xs):
    body = tf.while_loop(lambda k, x: k < 3, lambda k, x: (k + 1, x * 2.0), [0, xs])
    stopped = tf.while_loop(
        lambda k, x: k < 3, lambda k, x: (k + 1, x * 2.0), [0, xs], back_prop=False
    )
    return body[1] + stopped[1]


def sparse(xs):
    given = tf.sparse.from_dense(xs[0])
    doubled = tf.while_loop(
        lambda k, s: k < 3,
        lambda k, s: (k + 1, tf.sparse.map_values(lambda v: v * 2.0, s)),
        [0, given],
    )[1]
    return tf.sparse.to_dense(doubled)


def optional(xs):
    given = tf.experimental.Optional.from_value(xs)

    def body(k, held):
        return k + 1, tf.experimental.Optional.from_value(held.get_value() * 2.0)

    return tf.while_loop(lambda k, held: k < 3, body, [0, given])[1].get_value()


def strings(xs):
    text = tf.while_loop(
        lambda k, s: k < 3, lambda k, s: (k + 1, tf.strings.join([s, "x"])), [0, "a"]
    )[1]
    return xs * tf.cast(tf.strings.length(text), tf.float32)


def without_a_gradient(xs):
    """Nothing of xs reaches a result; TensorFlow's loops give zeros then."""
    count = tf.while_loop(
        lambda k, x: k < 3.0,
        lambda k, x: (k + tf.sign(tf.round(x)) ** 2.0 * 0.0 + 1.0, x),
        [0.0, xs[0, 0, 0]],
    )[0]
    return count * xs


def custom_gradient(xs):
    @tf.custom_gradient
    def clip(x):
        return x * 2.0, lambda grad: tf.clip_by_value(grad, -0.5, 0.5)

    return tf.foldl(lambda c, x: c * 0.5 + clip(x), xs)


def function_call(xs):
    step = tf.function(lambda c, x: tf.tanh(c + x))
    return tf.foldl(step, xs)


def recursive(xs):
    def nested(x, depth):
        if depth == 0:
            return tf.sin(x)
        return tf.while_loop(
            lambda k, x: k < 2, lambda k, x: (k + 1, nested(x, depth - 1)), [0, x]
        )[1]

    return nested(xs, 3)


def loop_in_a_branch(xs):
    return tf.cond(tf.reduce_sum(xs) > 100.0, lambda: xs[0], lambda: foldl(xs))


def checks(xs):
    c = tf.zeros([2, 3])
    for x in xs:
        tf.debugging.assert_less(x, 100.0)
        c = tf.debugging.check_numerics(c + x, "not finite")
    return c


LOOPS = [
    value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", "") == __name__ and name != "Pair"
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_loop_and_its_derivatives(assert_same, loop):
    assert_same(loop, XS, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "loop",
    [autograph_array, autograph_nested, scan, limited, growing, structures, custom_gradient],
    ids=lambda loop: loop.__name__,
)
def test_second_gradients(assert_same, loop):
    assert_same(loop, XS, rtol=1e-4, atol=1e-5, orders=2)


@pytest.mark.parametrize("loop", [map_fn_of_ragged_rows, map_fn_to_ragged_rows])
def test_ragged_rows_and_a_tape_around_the_function(both, loop):
    def call():
        function = tf.function(loop)
        with tf.GradientTape() as tape:
            tape.watch(XS)
            value = function(XS)
        return value, tape.gradient(value, XS)

    both(call)


@pytest.mark.parametrize("loop", [autograph_for, autograph_array, scan, map_fn, autograph_while])
def test_a_loop_over_an_unknown_number_of_steps(is_taken, loop):
    found = []
    for is_on in (False, True):
        with tf_ti.accelerate(is_on):
            function = tf.function(loop, input_signature=[tf.TensorSpec([None, 2, 3])])
            found.append([function(XS[:k]) for k in (1, 5, 0)])
            assert is_taken(function) == is_on
    for expected, got in zip(*(tf.nest.flatten(each) for each in found)):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int8", "complex64"])
def test_a_loop_of_other_dtypes(both, dtype):
    xs = tf.cast(XS * 2.0, dtype)
    expected, got = both(lambda xs: tf.scan(lambda c, x: c * 2 + x, xs), xs)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


# --- derivatives of other kinds ------------------------------------------------------------------


@pytest.mark.parametrize("loop", [autograph_for, autograph_array, scan])
def test_a_jacobian(both, loop):
    def jacobian(xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            result = loop(xs)
        return tape.jacobian(result, xs)

    expected, got = both(jacobian, XS)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loop", [scan, foldl, map_fn, limited])
def test_a_vectorized_map(both, loop):
    expected, got = both(lambda xs: tf.vectorized_map(loop, tf.stack([xs, -xs])), XS)
    for value, ours in zip(tf.nest.flatten(expected), tf.nest.flatten(got)):
        np.testing.assert_allclose(ours, value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loop", [limited_alone, one_variable_alone])
def test_a_tangent(both, loop):
    def tangent(xs):
        with tf.autodiff.ForwardAccumulator(xs, tf.ones_like(xs)) as accumulator:
            result = loop(xs)
        return accumulator.jvp(result[0])

    expected, got = both(tangent, XS)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_gradient_of_a_function_that_a_tape_outside_records(both):
    def outside(xs):
        function = tf.function(autograph_for)
        with tf.GradientTape() as tape:
            tape.watch(xs)
            result = function(xs)
        return tape.gradient(result, xs)

    expected, got = both(outside, XS)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


# --- variables, effects and random numbers -------------------------------------------------------


def test_variables_that_a_body_reads_and_writes(both):
    variable = tf.Variable(tf.zeros([2, 3]))

    def loop(xs):
        variable.assign(tf.ones([2, 3]))
        c = tf.zeros([2, 3])
        for x in xs:
            variable.assign_add(x)
            c = c * 0.5 + variable
        return c + variable

    expected, got = both(loop, XS)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_a_gradient_of_a_variable(both):
    variable = tf.Variable(W)

    def gradient(xs):
        with tf.GradientTape() as tape:
            result = tf.foldl(lambda c, x: tf.tanh(c @ variable + x), xs)
        return tape.gradient(result, variable)

    expected, got = both(gradient, XS)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_effects_take_place_in_the_order_of_the_program(both):
    log = []

    def note(word):
        tf.py_function(lambda: log.append(word), [], [])

    def condition(k, x):
        note("condition")
        return k < 2

    def body(k, x):
        note("first")
        with tf.control_dependencies([tf.identity(x)]):
            note("second")
        return k + 1, x * 2.0

    def loop(xs):
        note("before")
        found = tf.while_loop(condition, body, [0, xs])[1]
        note("after")
        return found

    both(loop, XS)
    once = ["before", *["condition", "first", "second"] * 2, "condition", "after"]
    assert log == once * 2


def test_a_body_is_traced_as_often(both):
    traces = []

    def step(c, x):
        traces.append("step")
        return c + x

    def loop(xs):
        traces.append("loop")
        return tf.foldl(step, xs)

    both(loop, XS)
    assert traces[: len(traces) // 2] == traces[len(traces) // 2 :] == ["loop", "step"]


def test_random_numbers_are_the_same(both):
    def body(k, c):
        drawn = tf.random.uniform([2, 3]) + tf.random.stateless_uniform([2, 3], [k, 2])
        return k + 1, c * drawn

    def loop(xs):
        # Iterations at once draw in any order.
        c = tf.while_loop(lambda k, c: k < 5, body, [0, xs], parallel_iterations=1)[1]
        return c + tf.random.normal([2, 3])

    expected, got = both(loop, XS)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_an_operation_waits_for_what_the_loop_waits_for(both):
    variable = tf.Variable(0.0)

    def loop(xs):
        variable.assign(1.0)
        with tf.control_dependencies([variable.assign_add(2.0)]):
            read = tf.foldl(
                lambda c, x: c + tf.reduce_sum(x) * 0.0 + variable.read_value(), xs, 0.0
            )
        variable.assign(100.0)
        return read

    expected, got = both(loop, XS)
    assert expected == got == 15.0


# --- errors --------------------------------------------------------------------------------------


def raised(both_on, function):
    with tf_ti.accelerate(both_on), pytest.raises(Exception) as info:
        tf.function(function)(XS)
    return type(info.value), re.sub(r"_\d+\b", "", str(info.value))  # numbers of functions


def changing_shape(xs):
    c = tf.zeros([2, 3])
    for x in xs:
        c = tf.concat([c, x], 0)
    return c


def changing_type(xs):
    c = 0
    for x in xs:
        c = tf.reduce_sum(x)
    return c


def changing_structure(xs):
    return tf.while_loop(lambda k, x: k < 3, lambda k, x: (k + 1, x, x), [0, xs])


def users_error(xs):
    for _ in xs:
        raise KeyError("mine")
    return xs


def no_bool(xs):
    return tf.while_loop(lambda x: x, lambda x: [x], [xs])


@pytest.mark.parametrize(
    "wrong", [changing_shape, changing_type, changing_structure, users_error, no_bool]
)
def test_an_error_of_tracing_has_the_same_words(wrong):
    assert raised(False, wrong) == raised(True, wrong)


def test_an_error_of_an_iteration_names_the_users_lines_and_none_of_ours():
    def loop(xs):
        c, k = tf.zeros([2]), 0
        for x in xs:
            c += tf.gather(x[:, 0], [k, k])
            k += 1
        return c

    (kind, expected), (ours, got) = (raised(is_on, loop) for is_on in (False, True))
    assert kind is ours is tf.errors.InvalidArgumentError
    for message in (expected, got):
        assert "is not in [0, 2)" in message and "test_same_answers.py" in message
    assert "tf_ti/" not in got


# --- elsewhere -----------------------------------------------------------------------------------


def test_a_function_within_tf_data(is_taken):
    def total(dataset):
        return dataset.map(autograph_for).reduce(tf.zeros([2, 3]), tf.add)

    found = []
    for is_on in (False, True):
        with tf_ti.accelerate(is_on):
            found.append(total(tf.data.Dataset.from_tensors(XS).repeat(3)))
    np.testing.assert_allclose(*found, rtol=1e-5)
    assert any(loop.is_taken for loop in tf_ti.accelerate.report())


class Cell(keras.layers.Layer):
    state_size = output_size = 3

    def call(self, x, states):
        h = keras.ops.tanh(keras.ops.matmul(states[0], W) + x)
        return h, [h]


LAYERS = {
    "RNN": lambda: keras.layers.RNN(Cell(), return_sequences=True),
    "LSTM": lambda: keras.layers.LSTM(4, go_backwards=True),
    "GRU": lambda: keras.layers.GRU(4, return_sequences=True),
    "Bidirectional": lambda: keras.layers.Bidirectional(keras.layers.SimpleRNN(4)),
}


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Keras has another backend")
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_of_keras(assert_same, kind):
    keras.utils.set_random_seed(1)
    layer = LAYERS[kind]()
    xs = tf.transpose(XS, [1, 0, 2])
    layer(xs)
    assert_same(layer, xs, rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Keras has another backend")
def test_keras_trains_with_several_steps_in_one_call():
    found = []
    for is_on in (False, True):
        keras.utils.set_random_seed(1)
        layers = [keras.Input([5, 3]), keras.layers.RNN(Cell()), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile("sgd", "mse", steps_per_execution=3, jit_compile=False)
        with tf_ti.accelerate(is_on):
            rng = np.random.default_rng(2)
            x, y = rng.normal(size=(32, 5, 3)), rng.normal(size=(32, 1))
            history = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
        found.append(history.history["loss"])
    np.testing.assert_allclose(*found, rtol=1e-4)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Keras has another backend")
@pytest.mark.parametrize(
    "loop",
    [
        lambda xs: keras.ops.scan(lambda c, x: (c + x, c * x), keras.ops.zeros((2, 3)), xs)[1],
        lambda xs: keras.ops.fori_loop(0, 4, lambda k, x: x * 1.5, xs),
        lambda xs: keras.ops.while_loop(lambda k, x: k < 3, lambda k, x: (k + 1, x * 2), (0, xs))[
            1
        ],
        lambda xs: keras.ops.map(lambda x: keras.ops.sum(x, 0), xs),
    ],
    ids=["scan", "fori_loop", "while_loop", "map"],
)
def test_operations_of_keras(assert_same, loop):
    assert_same(loop, XS, autograph=False)


@pytest.mark.parametrize("most", [1, 4])
def test_parallel_iterations_are_the_loops(most):
    @tf_ti.accelerate
    @tf.function
    def f(x):
        return tf.while_loop(
            lambda k, c: k < 5,
            lambda k, c: (k + 1, c + tf.cast(tf.unique(x + k)[1], tf.int32)),
            (0, tf.zeros([4], tf.int32)),
            parallel_iterations=most,
        )

    f(tf.range(4))
    graph = f.get_concrete_function(tf.TensorSpec([4], tf.int32)).graph
    (loop,) = [op for op in graph.get_operations() if "TensorIterator" in op.type]
    assert loop.get_attr("parallel_iterations") == most


def with_and_without(make):
    """The results of a function as it is, and accelerated; `make` makes one, with its variables."""
    found = make()()
    with tf_ti.accelerate():
        return found, make()()


def test_gradients_of_loops_over_iterators():
    def make():
        v = tf.Variable(2.0)

        @tf.function
        def f():
            batches = iter(tf.data.Dataset.range(4).map(lambda x: tf.cast(x, tf.float32)))
            with tf.GradientTape() as tape:
                total = tf.constant(0.0)
                for _ in tf.range(4):
                    total += v * next(batches)
            return tape.gradient(total, v)

        return f

    plain, ours = with_and_without(make)
    assert plain.numpy() == ours.numpy() == 6.0


@pytest.mark.parametrize("kind", ["Adam", "RMSprop", "Adagrad", "Ftrl"])
def test_optimizers_get_dense_gradients_of_rows(kind):
    def make():
        table = tf.Variable(tf.ones([4, 2]))
        optimizer = getattr(keras.optimizers, kind)(0.1, global_clipnorm=1.0)
        optimizer.build([table])

        @tf.function
        def f():
            for _ in range(3):
                with tf.GradientTape() as tape:
                    s = tf.zeros([2])
                    for i in tf.constant([0, 2, 2]):
                        s = s * 0.5 + tf.gather(table, i) ** 2
                    loss = tf.reduce_sum(s)
                optimizer.apply([tape.gradient(loss, table)])
            return table.read_value()

        return f

    plain, ours = with_and_without(make)
    np.testing.assert_allclose(ours, plain, rtol=1e-5)


def test_variables_that_functions_of_python_write():
    def make():
        v = tf.Variable(0.0)

        def write(_):
            v.assign_add(1.0)
            return 0.0

        @tf.function
        def f():
            total = tf.constant(0.0)
            for _ in tf.range(4):
                written = tf.py_function(write, [total], tf.float32)
                with tf.control_dependencies([written]):
                    total = total * 10.0 + v
            return total

        return f

    plain, ours = with_and_without(make)
    assert plain.numpy() == ours.numpy() == 1234.0


def test_a_condition_waits_for_another_thread():
    def make():
        stop, most = tf.Variable(False), 20_000_000

        @tf.function
        def f():
            k = tf.constant(0)
            while not stop:
                k += 1
                if k > most:
                    break
            return k

        def run():
            threading.Timer(0.2, stop.assign, [True]).start()
            return f().numpy() <= most

        return run

    assert with_and_without(make) == (True, True)


def test_gradients_of_variables_that_do_not_matter_are_zeros():
    def make():
        v, w = tf.Variable(1.0), tf.Variable([1.0, 2.0])

        @tf.function
        def f():
            with tf.GradientTape() as tape:
                c = tf.constant(1.0)
                for _ in tf.range(3):
                    w.assign_add([1.0, 1.0])
                    c = c * v + tf.stop_gradient(w[0])
            return tape.gradient(c, [v, w])

        return f

    plain, ours = with_and_without(make)
    for a, b in zip(plain, ours):
        np.testing.assert_allclose(a, b)


def test_effects_of_a_condition_beyond_the_limit():
    def make():
        numbers = iter(tf.data.Dataset.range(9))

        @tf.function
        def f():
            k = tf.while_loop(
                lambda k: next(numbers) >= 0, lambda k: (k + 1,), (0,), maximum_iterations=3
            )
            return k, next(numbers)

        return lambda: [t.numpy() for t in tf.nest.flatten(f())]

    plain, ours = with_and_without(make)
    assert plain == ours


@tf.custom_gradient
def sine(x):
    s = tf.sin(x)
    return s, lambda grad: grad * tf.cos(x) * 1.5 * s


def product_of(factor):
    """A custom gradient that refers to a tensor of the branch's graph, or of one around it."""

    @tf.custom_gradient
    def product(x):
        return x * factor, lambda grad: grad * factor * 2.0

    return product


BRANCHES = {
    "silu": lambda x, k, w: tf.cond(x[0] > 0.1, lambda: tf.nn.silu(x), lambda: x * w),
    "of_the_branch": lambda x, k, w: tf.cond(x[0] > 0.1, lambda: sine(x * w), lambda: x * w),
    "captures": lambda x, k, w: tf.cond(x[0] > 0.1, lambda: product_of(w)(x), lambda: x + w),
    "several": lambda x, k, w: tf.switch_case(
        k, [lambda: sine(x), lambda: x * w, lambda: tf.nn.silu(x * w)]
    ),
    "nested": lambda x, k, w: tf.cond(
        x[0] > 0.1,
        lambda: tf.cond(x[1] > 0.0, lambda: product_of(x * w)(x), lambda: tf.nn.silu(x)),
        lambda: x * w,
    ),
    "of_a_function": lambda x, k, w: tf.cond(
        x[0] > 0.1, lambda: tf.function(sine)(x), lambda: x * w
    ),
    "of_a_loop": lambda x, k, w: tf.cond(
        x[0] > 0.1,
        lambda: tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, sine(y * w)), (0, x))[1],
        lambda: x * w,
    ),
}


@pytest.mark.parametrize("kind", BRANCHES)
def test_custom_gradients_in_branches(kind):
    """TensorFlow's own loops fail with an AssertionError, so the oracle is the loop in Python."""
    step, x, w = BRANCHES[kind], tf.constant([0.7, 0.3]), tf.constant([0.9, 1.3])

    def loop(x, w):
        return tf.while_loop(lambda k, x: k < 3, lambda k, x: (k + 1, step(x, k, w)), (0, x))[1]

    def unrolled(x, w):
        for k in range(3):
            x = step(x, tf.constant(k), w)
        return x

    def orders(function):
        with tf.GradientTape() as outer:
            outer.watch([x, w])
            with tf.GradientTape() as inner:
                inner.watch([x, w])
                y = function(x, w)
            first = inner.gradient(y, [x, w], unconnected_gradients="zero")
        return [y, *first, *outer.gradient(first, [x, w], unconnected_gradients="zero")]

    with tf_ti.accelerate():
        found = orders(tf.function(loop, autograph=False))
    assert all(report.is_taken for report in tf_ti.accelerate.report())
    for value, expected in zip(found, orders(unrolled), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)


def test_effects_of_the_function_of_a_custom_gradient():
    def make():
        seen = []

        @tf.custom_gradient
        def double(x):
            def gradient(grad):
                tf.py_function(
                    lambda *values: seen.append([v.numpy() for v in values]), [grad, x], []
                )
                return grad * 2.0

            return x * 2.0, gradient

        @tf.function
        def f(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                for _ in tf.range(3):
                    x = double(x)
            return tape.gradient(x, x)

        return lambda: (f(tf.constant(1.5)), seen)

    (_, expected), (_, seen) = with_and_without(make)
    assert seen == expected


# Second gradients of loops that are linear in all may be None: the how-to says it.
ZEROS = {
    "linear in a variable": lambda xs, v: tf.foldl(lambda c, x: c + x * v, xs),
    "of the variable alone": lambda xs, v: tf.foldl(lambda c, x: tf.tanh(c * v), xs, tf.ones([3])),
    "integers": lambda xs, v: tf.foldl(
        lambda c, x: c * v + tf.cast(tf.cast(x, tf.int32), tf.float32), xs
    ),
    "loop in a loop": lambda xs, v: tf.map_fn(lambda x: tf.foldl(tf.add, x * v), xs),
}


@pytest.mark.parametrize("is_eager", [True, False])
@pytest.mark.parametrize("kind", ZEROS)
def test_second_gradients_are_zeros_where_tensorflows_are(kind, is_eager):
    xs, v = tf.constant([[1.0, 2.0, 0.5], [0.5, 1.0, -1.0]]), tf.Variable([1.0, 2.0, 0.5])

    def make():
        def inner(xs):
            return ZEROS[kind](xs, v)

        called = tf.function(inner, autograph=False) if is_eager else inner

        def second(xs):
            with tf.GradientTape() as outer:
                outer.watch(xs)
                with tf.GradientTape() as tape:
                    tape.watch(xs)
                    y = called(xs)
                first = tape.gradient(y, [xs, v])
            return first, outer.gradient([t for t in first if t is not None], [xs, v])

        return lambda: (second if is_eager else tf.function(second, autograph=False))(xs)

    expected, found = map(tf.nest.flatten, with_and_without(make))
    assert [t is None for t in found] == [t is None for t in expected]
    for value, ours in zip(expected, found):
        if value is not None:
            np.testing.assert_allclose(ours, value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        *itertools.product(
            ["body", "condition", "branch", "before"], [3, True, "text", np.uint8(3)]
        ),
        *itertools.product(["inner loop"], [3, np.uint8(3)]),  # TensorFlow cannot add the others
    ],
)
def test_gradients_of_variables_of_other_types(where, value):
    def make():
        v, k = tf.Variable(0.5), tf.Variable(value)

        def number():
            if k.dtype == tf.string:
                return tf.strings.length(k)
            return tf.cast(k, tf.int32)

        def body(i, x):
            if where == "body":
                x += tf.cast(number(), tf.float32)
            if where == "branch":
                x += tf.cond(x > 0.0, lambda: tf.cast(number(), tf.float32), lambda: x)
            if where == "inner loop":
                x = tf.while_loop(
                    lambda j, x: j < 2,
                    lambda j, x: (j + 1, x + tf.cast(number(), tf.float32)),
                    (0, x),
                )[1]
            return i + 1, x * v

        @tf.function(autograph=False)
        def f():
            with tf.GradientTape() as tape:
                most = number() if where == "before" else tf.constant(2)
                y = tf.while_loop(
                    lambda i, x: i < (number() if where == "condition" else most),
                    body,
                    (tf.constant(0), tf.constant(1.0)),
                )[1]
            return tape.gradient(y, [v, k])

        return f

    plain, ours = with_and_without(make)
    np.testing.assert_allclose(ours[0], plain[0], rtol=1e-5)
    assert (ours[1] is None) == (plain[1] is None)
    if plain[1] is not None:
        assert ours[1].dtype == plain[1].dtype and ours[1].numpy() == plain[1].numpy()


def lines_of_error(function):
    """The places that the error of a function names, innermost last."""
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        function()
    return re.findall(r'File "([^"]+)", line (\d+)', str(caught.value))


@pytest.mark.parametrize("of_gradient", [False, True])
@pytest.mark.parametrize("is_accelerated", [True, False])
def test_errors_name_the_users_lines_alone(is_accelerated, of_gradient):
    @tf.custom_gradient
    def check(x):
        factor = 1.0 if of_gradient else np.inf
        return tf.debugging.check_numerics(
            x * factor, "not finite"
        ), lambda grad: tf.debugging.check_numerics(grad * np.inf, "not finite")

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            if is_accelerated:
                y = tf.foldl(lambda c, e: check(c + e), x)
            else:
                y = tf_ti.scan(lambda c, e: (check(c + e), c), x[0], x)[0]
        return tape.gradient(y, x)

    with tf_ti.accelerate(is_accelerated):
        found = lines_of_error(lambda: tf.function(run, autograph=False)(XS[:, 0, 0]))
    ours = pathlib.Path(tf_ti.__file__).parent
    assert not [path for path, _ in found if ours in pathlib.Path(path).parents]
    first, (path, line) = run.__code__.co_firstlineno, found[-1]
    assert path == __file__ and first < int(line) <= first + 7
