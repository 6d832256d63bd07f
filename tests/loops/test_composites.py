"""Composite values in loops: ragged and sparse tensors, extension types, TensorArrays."""

import functools
from typing import Union

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

pytestmark = pytest.mark.quarter

RAGGED = tf.ragged.constant([[1.0, 2.0], [3.0]])
DEEP = tf.ragged.constant([[[1.0], [2.0, 3.0]], [], [[4.0, 5.0]]])
SPARSE = tf.sparse.from_dense([[1.0, 0.0], [0.0, 2.0]])
XS = tf.constant([1.0, 2.0, 3.0])


class Pair(tf.experimental.ExtensionType):
    value: tf.Tensor
    flag: tf.Tensor


class Rows(tf.experimental.BatchableExtensionType):
    value: tf.Tensor
    flag: tf.Tensor


def python_scan(f, init, xs, length=None):
    """The definition."""
    carry, ys = init, []
    rows = [None] * length if xs is None else list(xs)
    for x in rows:
        carry, y = f(carry, x)
        ys.append(y)
    return carry, ys


def same(actual, expected):
    for a, e in zip(
        tf.nest.flatten(actual, expand_composites=True),
        tf.nest.flatten(expected, expand_composites=True),
        strict=True,
    ):
        np.testing.assert_allclose(a, e, rtol=1e-6)


@pytest.fixture(params=["eager", "function"])
def run(request):
    return (lambda f, *a: f(*a)) if request.param == "eager" else lambda f, *a: tf.function(f)(*a)


# Carries


CARRIES = {
    "ragged": (RAGGED, lambda c, x: (c * x, tf.reduce_sum(c))),
    "ragged-grows": (RAGGED, lambda c, x: (tf.concat([c, tf.fill([2, 1], x)], 1), c.nrows())),
    "sparse": (SPARSE, lambda c, x: (c * x, tf.sparse.reduce_sum(c))),
    "slices": (
        tf.IndexedSlices(tf.ones([2, 3]), tf.constant([0, 1]), tf.constant([4, 3])),
        lambda c, x: (tf.IndexedSlices(c.values * x, c.indices, c.dense_shape), x),
    ),
    "extension": (
        {"pair": Pair(tf.constant(1.0), tf.constant(True)), "count": tf.constant(0)},
        lambda c, x: (
            {"pair": Pair(c["pair"].value + x, ~c["pair"].flag), "count": c["count"] + 1},
            c["pair"].value,
        ),
    ),
}


@pytest.mark.parametrize("name", CARRIES)
def test_a_carry(name, run):
    init, f = CARRIES[name]
    carry, ys = run(lambda init, xs: tf_ti.scan(f, init, xs), init, XS)
    expected, results = python_scan(f, init, XS)
    assert type(carry) is type(expected)
    same(carry, expected)
    same(ys, tf.stack(results))


def test_a_carry_has_a_gradient(run):
    def gradients(values, xs, loop):
        with tf.GradientTape() as tape:
            tape.watch([values, xs])
            carry, ys = loop(
                lambda c, x: (tf.concat([c * x, tf.fill([2, 1], x)], 1), tf.reduce_sum(c**2)),
                RAGGED.with_flat_values(values),
                xs,
            )
            loss = tf.reduce_sum(carry**3) + tf.reduce_sum(ys)
        return tape.gradient(loss, [values, xs])

    actual = run(lambda v, xs: gradients(v, xs, tf_ti.scan), RAGGED.flat_values, XS)
    same(actual, gradients(RAGGED.flat_values, XS, python_scan))


def test_a_variable_is_a_tensor(run):
    variable = tf.Variable(2.0)
    carry, ys = run(lambda xs: tf_ti.scan(lambda c, x: (c * x, variable), variable, xs), XS)
    assert carry == 12
    assert ys.numpy().tolist() == [2, 2, 2]


def test_a_tf_function_takes_a_ragged_carry():
    f = tf.function(lambda c, x: (c * x, x))
    same(tf_ti.scan(f, RAGGED, XS)[0], RAGGED * 6.0)


@pytest.mark.parametrize(
    "init, f, words",
    [
        (RAGGED, lambda c, x: (DEEP, x), r"init: .*RaggedTensorSpec\(.*1, .*, got .*2, "),
        (RAGGED, lambda c, x: (x, x), "init: .*RaggedTensorSpec.*, got TensorSpec"),
        ([1.0], lambda c, x: ([RAGGED], x), r"init\[0\]: .*TensorSpec.*, got RaggedTensorSpec"),
    ],
)
def test_a_carry_of_another_kind_is_refused(init, f, words):
    with pytest.raises(TypeError, match=words):
        tf_ti.scan(f, init, XS)


# tensor_iterator


def test_inputs_that_are_not_sliced_and_states(run):
    def call(xs, ragged, sparse):
        return tf_ti.tensor_iterator(
            lambda state, x, fixed: (
                tf.concat([state * x[0], tf.fill([2, 1], x[0])], 1),
                x * tf.reduce_sum(state) * tf.sparse.reduce_sum(fixed),
            ),
            [xs, ragged, sparse],
            tf_ti.PortMap(
                inputs=[
                    tf_ti.InputPort(0, 1, axis=0),
                    tf_ti.InputPort(1, 0),
                    tf_ti.InputPort(2, 2),
                ],
                outputs=[tf_ti.OutputPort(0, 1, axis=0), tf_ti.OutputPort(1, 0)],
            ),
            [tf_ti.BackEdge(0, 0)],
        )

    ys, state = run(call, XS, RAGGED, SPARSE)
    expected, results = python_scan(
        lambda c, x: (
            tf.concat([c * x, tf.fill([2, 1], x)], 1),
            x * tf.reduce_sum(c) * 3,
        ),
        RAGGED,
        XS,
    )
    same(state, expected)
    same(ys, tf.stack(results))


@pytest.mark.parametrize(
    "error, words, port, body",
    [
        (ValueError, "input port 0.*RaggedTensorSpec.*cannot be sliced.*scan", {"axis": 0}, None),
        (TypeError, "parameter 0 .*RaggedTensorSpec.*result 0.*TensorSpec", {}, lambda r: 1.0),
        (ValueError, "output port 0.*RaggedTensorSpec.*cannot be concatenated", {}, lambda r: r),
    ],
)
def test_what_composite_inputs_cannot_do(error, words, port, body):
    port_map = tf_ti.PortMap([tf_ti.InputPort(0, 0, **port)], [tf_ti.OutputPort(0, 0, axis=0)])
    edges = [tf_ti.BackEdge(0, 0)] if "result" in words else []
    if edges:
        port_map = tf_ti.PortMap([tf_ti.InputPort(0, 0)], [tf_ti.OutputPort(0, 0)])
    with pytest.raises(error, match=words):
        tf_ti.tensor_iterator(body or (lambda r: r), [RAGGED], port_map, edges, num_iterations=2)


# Loop


def test_a_recurrence(run):
    def call(xs, ragged):
        with tf_ti.Loop() as loop:
            loop.add_trip_limit(3, tf_ti.TripLimit.COUNT)
            x = loop.add_iterator(xs)
            state = loop.add_recurrence(ragged)
            state.next = tf.concat([state.value * x.tensor, tf.fill([2, 1], x.tensor)], 1)
            last = loop.add_loop_output(state, tf_ti.LoopOutput.LAST_VALUE)
            sums = loop.add_loop_output(tf.reduce_sum(state.value), tf_ti.LoopOutput.CONCATENATE)
        return last.tensor, sums.tensor

    last, sums = run(call, XS, RAGGED)
    expected, results = python_scan(
        lambda c, x: (tf.concat([c * x, tf.fill([2, 1], x)], 1), tf.reduce_sum(c)), RAGGED, XS
    )
    same(last, expected)
    same(sums, tf.stack(results))


def test_a_recurrence_of_a_tensor_array_has_a_gradient():
    @tf.function
    def gradient(xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            with tf_ti.Loop() as loop:
                x, k = loop.add_iterator(xs), loop.add_recurrence(0)
                loop.add_trip_limit(k < 3, tf_ti.TripLimit.WHILE)
                k.next = k + 1
                array = loop.add_recurrence(tf.TensorArray(tf.float32, 3))
                array.next = array.value.write(k, x**2)
                last = loop.add_loop_output(array, tf_ti.LoopOutput.LAST_VALUE)
            loss = tf.reduce_sum(last.tensor.stack() ** 2)
        return tape.gradient(loss, xs)

    same(gradient(XS), 4 * XS**3)


def by_python(array, xs):
    for k in range(3):
        array = array.write(k + 1, xs[k] + array.read(k))
    return array


def by_block(array, xs):
    with tf_ti.Loop() as loop:
        x, k = loop.add_iterator(xs), loop.add_recurrence(0)
        loop.add_trip_limit(3, tf_ti.TripLimit.COUNT)
        k.next = k + 1
        state = loop.add_recurrence({"array": array})
        array = state.value["array"]
        state.next = {"array": array.write(k + 1, x + array.read(k))}
        last = loop.add_loop_output(state, tf_ti.LoopOutput.LAST_VALUE)
    return last.tensor["array"]


@pytest.mark.parametrize("shape", [None, [None], [2]])
@pytest.mark.parametrize("dtype", [tf.float64, tf.int32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("mode", ["function", "eager", "run_functions_eagerly"])
def test_a_recurrence_of_a_tensor_array_in_each_mode(mode, dtype, shape):
    """An array of eager mode stays one, with the elements that nobody wrote."""
    xs = tf.constant([[1, 2], [3, 4], [5, 6]], dtype)

    def call(loop, xs):
        first = tf.TensorArray(dtype, 6, element_shape=shape, clear_after_read=False)
        with tf.GradientTape() as tape:
            tape.watch(xs)
            first = first.write(0, xs[0] * 2)
            last = loop(first, xs)
            found = last.write(4, last.read(3)).gather([0, 1, 2, 3, 4])
            loss = tf.reduce_sum(found**2)
        size, before = last.size(), first.read(0)
        return found, size, before, *([tape.gradient(loss, xs)] if dtype.is_floating else [])

    expected = tf.function(call)(by_python, xs)
    tf.config.run_functions_eagerly(mode == "run_functions_eagerly")
    try:
        actual = (call if mode == "eager" else tf.function(call))(by_block, xs)
    finally:
        tf.config.run_functions_eagerly(False)
    for a, e in zip(actual, expected, strict=True):
        same(a, e)


def test_an_array_of_eager_mode_grows():
    array = tf.TensorArray(tf.float32, 1, dynamic_size=True)
    with tf_ti.Loop() as loop:
        k = loop.add_recurrence(2)
        loop.add_trip_limit(k < 5, tf_ti.TripLimit.WHILE)
        state = loop.add_recurrence(array)
        state.next, k.next = state.value.write(k, tf.cast(k, tf.float32)), k + 1
        last = loop.add_loop_output(state, tf_ti.LoopOutput.LAST_VALUE)
    last = last.tensor
    assert (int(last.size()), int(array.size())) == (5, 1)
    same(last.read(4), 4.0)
    same(last.read(1), 0.0)  # as one that Python wrote


def test_a_recurrence_is_used_as_what_it_is():
    with (
        pytest.raises(TypeError, match="recurrence 0 is a RaggedTensor.*value"),
        tf_ti.Loop() as loop,
    ):
        state = loop.add_recurrence(RAGGED)
        state + 1.0
    with pytest.raises(TypeError, match="second input must be a RaggedTensorSpec"):
        with tf_ti.Loop() as loop:
            loop.add_recurrence(RAGGED).next = XS
    with pytest.raises(ValueError, match="CONCATENATE is of tensors"), tf_ti.Loop() as loop:
        loop.add_loop_output(loop.add_recurrence(RAGGED), tf_ti.LoopOutput.CONCATENATE)


# TensorArrays


def arrays(loop, xs, **arguments):
    """Reads and writes arrays that are carried, and reads one that is captured."""
    source = tf.TensorArray(tf.float32, 3, clear_after_read=False).unstack(xs)
    array = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[])

    def f(carry, x):
        array, k = carry
        array = array.write(k, x * source.read(0)).write(k + 1, source.read(k // 2) ** 2)
        return (array, k + 2), tf.reduce_sum(array.stack())

    (array, _), ys = loop(f, (array, 0), xs, **arguments)
    return array.stack(), ys


@pytest.mark.parametrize("arguments", [{}, {"checkpoint_every": 2}], ids=["", "checkpoints"])
def test_tensor_arrays_are_carried_and_captured_with_their_gradients(arguments):
    def call(loop, **arguments):
        @tf.function
        def gradient(xs):
            with tf.GradientTape() as tape:
                tape.watch(xs)
                values, ys = arrays(loop, xs, **arguments)
                loss = tf.reduce_sum(values**2) + tf.reduce_sum(tf.stack(ys) ** 2)
            return values, ys, tape.gradient(loss, xs)

        return gradient(XS)

    def unrolled(f, init, xs):
        return python_scan(f, init, tf.unstack(xs))

    actual, expected = call(tf_ti.scan, **arguments), call(unrolled)
    same(actual[0], expected[0])
    same(actual[1], tf.stack(expected[1]))
    same(actual[2], expected[2])


def written(kind, array, x):
    """An array to which a loop writes x four times."""
    if kind == "while_loop":
        return tf_ti.while_loop(
            lambda k, a: k < 4, lambda k, a: (k + 1, a.write(k, x)), (0, array)
        )[1]
    if kind == "scan":
        return tf_ti.scan(lambda a, k: (a.write(k, x), None), array, tf.range(4))[0]
    if kind == "scans":
        return tf_ti.scan(
            lambda a, k: (tf_ti.scan(lambda a, _: (a.write(k, x), k), a, length=2)[0], None),
            array,
            tf.range(4),
        )[0]
    if kind == "iterators":
        inner = tf_ti.PortMap([tf_ti.InputPort(0, 0)], [tf_ti.OutputPort(0, 0)])

        def body(k, a):
            write = lambda a: a.write(k[0], x)  # noqa: E731
            return tf_ti.tensor_iterator(
                write, [a], inner, [tf_ti.BackEdge(0, 0)], num_iterations=2
            )[0]

        outer = tf_ti.PortMap(
            [tf_ti.InputPort(0, 0, axis=0), tf_ti.InputPort(1, 1)], [tf_ti.OutputPort(0, 0)]
        )
        return tf_ti.tensor_iterator(body, [tf.range(4), array], outer, [tf_ti.BackEdge(0, 1)])[0]
    with tf_ti.Loop() as loop:
        loop.add_trip_limit(tf.constant(4), tf_ti.TripLimit.COUNT)
        k = loop.add_iterator(tf.range(4))
        state = loop.add_recurrence(array)
        state.next = state.value.write(k, x)
        last = loop.add_loop_output(state, tf_ti.LoopOutput.LAST_VALUE)
    return last.tensor


@pytest.mark.parametrize("shape", [None, [None, 2], [3, 2]])
@pytest.mark.parametrize("kind", ["while_loop", "scan", "scans", "iterators", "Loop"])
def test_arrays_know_the_shape_of_what_loops_wrote_as_in_a_tf_while_loop(kind, shape):
    def shapes(write):
        def call(x):
            array = tf.TensorArray(tf.float32, 4, element_shape=shape)
            after = write(array, x)
            return after.stack().shape[1:], array.element_shape, after.element_shape

        with tf.Graph().as_default():
            return call(tf.compat.v1.placeholder(tf.float32, [3, 2]))

    def theirs(array, x):
        return tf.while_loop(lambda k, a: k < 4, lambda k, a: (k + 1, a.write(k, x)), (0, array))[1]

    assert shapes(lambda array, x: written(kind, array, x)) == shapes(theirs)


def writes_of_inner(loop):
    """Ways to write element k of an array that is a state; they read its other elements."""

    def squared(a, k, h):
        return a.write(k, h + a.read(k - 1) ** 2)

    def twice(write, *state):
        return loop(lambda j, *_: j < 2, lambda j, *s: (j + 1, *write(*s)), (0, *state))[1:]

    def with_a_state(a, k, h):
        a, s = twice(lambda a, s: (squared(a, k, s), s * a.read(k - 1) + h), a, h)
        return a.write(k, s * h)

    def if_even(k, write, a, h):
        return tf.cond(k % 2 == 0, lambda: write(a), lambda: a.write(k, h * h))

    return {
        "a loop": lambda a, k, h: twice(lambda a: (squared(a, k, h),), a)[0],
        "a loop that reads": lambda a, k, h: a.write(
            k, twice(lambda s: (s * 0.5 + a.read(k - 1) * s,), h)[0]
        ),
        "a loop with a state": with_a_state,
        "a branch in a loop": lambda a, k, h: twice(
            lambda a: (if_even(k, lambda a: squared(a, k, h), a, h),), a
        )[0],
        "a loop in a branch": lambda a, k, h: if_even(
            k, lambda a: twice(lambda a: (squared(a, k, h),), a)[0], a, h
        ),
    }


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("kind", writes_of_inner(tf.while_loop))
def test_higher_gradients_reach_arrays_that_inner_loops_read(kind, order):
    def value(w, loop):
        array = tf.TensorArray(tf.float32, 5, element_shape=[3], clear_after_read=False)

        def step(k, h, a):
            h = h * w
            return k + 1, h, writes_of_inner(loop)[kind](a, k, h)

        state = (1, tf.constant([0.5, 0.4, 0.3]), array.write(0, w * tf.constant([0.3, 0.2, 0.1])))
        values = loop(lambda k, *_: k < 5, step, state)[2].stack()
        return tf.reduce_sum(values[-1] * values[-2]) + tf.reduce_sum(values**2)

    def slope(w, order, loop):
        if order == 0:
            return value(w, loop)
        with tf.GradientTape() as tape:
            tape.watch(w)
            y = slope(w, order - 1, loop)
        return tape.gradient(y, w)

    def of(loop):
        return tf.function(lambda w: slope(w, order, loop))(tf.constant(0.9))

    np.testing.assert_allclose(of(tf_ti.while_loop), of(tf.while_loop), rtol=1e-3)


@tf.function(autograph=False)
def written_by_a_function(array, k):
    return array.write(k, tf.cast(k, tf.float32) * 2.0)


@pytest.mark.parametrize("is_dynamic", [True, False])
def test_tensor_arrays_that_a_called_function_returns(is_dynamic):
    """TensorFlow returns their flow in their place."""

    def array():
        return tf.TensorArray(tf.float32, 0 if is_dynamic else 4, is_dynamic, element_shape=[])

    def by_while_loop(loop):
        def body(k, arrays):
            return k + 1, {"a": written_by_a_function(arrays["a"], k)}

        return loop(lambda k, _: k < 4, body, (0, {"a": array()}))[1]["a"].stack()

    def by_scan():
        return tf_ti.scan(lambda c, k: (written_by_a_function(c, k), None), array(), tf.range(4))[
            0
        ].stack()

    expected = tf.function(by_while_loop, autograph=False)(tf.while_loop)
    np.testing.assert_array_equal(expected, [0.0, 2.0, 4.0, 6.0])
    for call in (lambda: by_while_loop(tf_ti.while_loop), by_scan):
        np.testing.assert_array_equal(tf.function(call, autograph=False)(), expected)


def test_a_tensor_array_outside_of_a_function_is_refused():
    with pytest.raises(ValueError, match=r"init is a TensorArray.*tf\.function"):
        tf_ti.scan(lambda c, x: (c.write(0, x), x), tf.TensorArray(tf.float32, 1), XS)


def test_tensor_iterator_takes_and_carries_tensor_arrays_with_their_gradients():
    def gradient(loop, xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            source = tf.TensorArray(tf.float32, 3, clear_after_read=False).unstack(xs)
            array = tf.TensorArray(tf.float32, 0, dynamic_size=True)
            array, ys = loop(array, source, xs)
            loss = tf.reduce_sum(array.stack() ** 3) + tf.reduce_sum(ys**2)
        return array.stack(), ys, tape.gradient(loss, xs)

    def body(array, source, x):
        k = tf.cast(x[0], tf.int32) - 1
        array = array.write(k, x[0] * source.read(2 - k))
        return array, array.read(k)[None] * x

    def native(array, source, xs):
        port_map = tf_ti.PortMap(
            [tf_ti.InputPort(0, 0), tf_ti.InputPort(1, 1), tf_ti.InputPort(2, 2, axis=0)],
            [tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 1, axis=0)],
        )
        return tf_ti.tensor_iterator(body, [array, source, xs], port_map, [tf_ti.BackEdge(0, 0)])

    def unrolled(array, source, xs):
        ys = []
        for k in range(3):
            array, y = body(array, source, xs[k : k + 1])
            ys.append(y)
        return array, tf.concat(ys, 0)

    same(
        tf.function(lambda xs: gradient(native, xs))(XS),
        tf.function(lambda xs: gradient(unrolled, xs))(XS),
    )


def test_tensor_arrays_grow_in_control_flow_inside_of_a_body_in_a_saved_model_too(tmp_path):
    def step(array, k):
        array = tf.cond(k > 1, lambda: array.write(k, 2 * k), lambda: array.write(k, k))
        array = tf.while_loop(
            lambda j, _: j < 2, lambda j, a: (j + 1, a.write(k + j, j)), (0, array)
        )[1]
        return array, array.size()

    def call(n):
        array, sizes = tf_ti.scan(step, tf.TensorArray(tf.int32, 0, dynamic_size=True), tf.range(n))
        return array.stack(), sizes

    module = tf.Module()
    module.call = tf.function(call, input_signature=[tf.TensorSpec([], tf.int32)])
    tf.saved_model.save(module, tmp_path / "model")
    for function in (module.call, tf.saved_model.load(tmp_path / "model").call):
        values, sizes = function(4)
        assert values.numpy().tolist() == [0, 0, 0, 0, 1]
        assert sizes.numpy().tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("jit", [False, True], ids=["kernel", "xla"])
@pytest.mark.parametrize("is_inner", [False, True], ids=["body", "branch"])
def test_a_growing_tensor_array_has_no_negative_index(is_inner, jit):
    def step(array, k):
        if is_inner:
            return tf.cond(k > 1, lambda: array.write(k - 4, k), lambda: array), None
        return array.write(k - 1, k), None

    array = tf.function(
        lambda: tf_ti.scan(
            step, tf.TensorArray(tf.int32, 4, dynamic_size=True, element_shape=[]), tf.range(3)
        )[0].stack(),
        jit_compile=jit,
    )
    index = -2 if is_inner else -1
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"init: index {index} is written"):
        array()


# Rows


def test_rows_of_a_ragged_tensor(run):
    for ragged in (RAGGED, DEEP):
        carry, ys = run(
            lambda r: tf_ti.scan(lambda c, x: (c + tf.reduce_sum(x), tf.shape(x)[0]), 0.0, r),
            ragged if ragged is RAGGED else ragged.values,
        )
        assert carry == tf.reduce_sum(ragged)
        same(ys, (ragged if ragged is RAGGED else ragged.values).row_lengths())


def test_ragged_rows_of_a_ragged_tensor_are_given_back(run):
    carry, ys = run(
        lambda r: tf_ti.scan(lambda c, x: (c + tf.reduce_sum(x), x * 2.0), 0.0, r), DEEP
    )
    assert carry == 15
    assert ys.to_list() == (DEEP * 2.0).to_list()


def test_a_tf_function_takes_ragged_rows():
    f = tf.function(lambda c, x: (c + tf.reduce_sum(x), tf.size(x)))
    carry, ys = tf_ti.scan(f, 0.0, RAGGED)
    assert carry == 6
    assert ys.numpy().tolist() == [2, 1]


def test_rows_of_a_ragged_tensor_have_gradients(run):
    def gradient(values, is_loop):
        with tf.GradientTape() as tape:
            tape.watch(values)
            ragged = DEEP.with_flat_values(values)

            def f(c, x):
                return c + tf.reduce_sum(x**2), tf.reduce_sum(x) ** 2

            if is_loop:
                carry, ys = tf_ti.scan(f, 0.0, ragged)
            else:
                carry, ys = python_scan(f, 0.0, [ragged[k] for k in range(3)])
            loss = tf.reduce_sum(tf.stack(ys)) + carry
        return tf.convert_to_tensor(tape.gradient(loss, values))

    same(run(lambda v: gradient(v, True), DEEP.flat_values), gradient(DEEP.flat_values, False))


def test_rows_of_a_sparse_tensor(run):
    carry, ys = run(
        lambda s: tf_ti.scan(
            lambda c, x: (c + tf.sparse.reduce_sum(x), tf.sparse.to_dense(x)), 0.0, s
        ),
        SPARSE,
    )
    assert carry == 3
    same(ys, tf.sparse.to_dense(SPARSE))


def test_rows_of_an_extension_type(run):
    carry, ys = run(
        lambda xs: tf_ti.scan(
            lambda c, x: (c + x.value, Rows(x.value * 2, ~x.flag)), 0.0, Rows(xs, xs > 1)
        ),
        XS,
    )
    assert carry == 6
    assert isinstance(ys, Rows)
    same([ys.value, ys.flag], [XS * 2, XS <= 1])


# Results that are rows of ragged tensors


MODES = ["eager", "function", "plain"]
FLAT = tf.ragged.constant([[1.0, 2.0, 3.0], [], [4.0]])
INNER = tf.RaggedTensor.from_row_lengths(tf.reshape(tf.range(8.0), [4, 2]), [3, 0, 1])
WORDS = tf.ragged.constant([["a", "b"], [], ["c"]])


def in_mode(mode, call, *arguments):
    if mode == "function":
        return tf.function(call)(*arguments)
    tf.config.run_functions_eagerly(mode == "plain")
    try:
        return call(*arguments)
    finally:
        tf.config.run_functions_eagerly(False)


def mapped(g, x, shape):
    """As TensorFlow stacks them, told of the type."""
    dtype = g(x[0]).dtype
    row = tf.RaggedTensorSpec(shape, dtype, 0, x.row_splits.dtype)
    return tf.map_fn(g, x, fn_output_signature=row)


def same_ragged(actual, expected):
    assert isinstance(actual, tf.RaggedTensor), actual
    assert actual.dtype == expected.dtype and actual.row_splits.dtype == expected.row_splits.dtype
    assert actual.shape.as_list() == expected.shape.as_list()
    assert actual.to_list() == expected.to_list()


def make_longer(r):
    shapes = (tf.TensorShape([]), tf.TensorShape([None]))
    return tf.while_loop(
        lambda i, c: i < tf.size(r),
        lambda i, c: (i + 1, tf.concat([c, r[i : i + 1]], 0)),
        (0, tf.zeros(1)),
        shape_invariants=shapes,
    )[1]


ROWS = {
    "multiples": (FLAT, lambda r: r * 2.0),
    "themselves": (FLAT, lambda r: r),
    "of another type": (FLAT, lambda r: tf.cast(r, tf.int64) + 1),
    "strings": (WORDS, tf.strings.upper),
    "slices": (FLAT, lambda r: r[1:]),
    "the rest of another": (FLAT, lambda r: tf.slice(tf.range(4), [tf.size(r)], [-1])),
    "longer": (FLAT, lambda r: tf.concat([r, [9.0], r], 0)),
    "what is selected": (FLAT, lambda r: tf.boolean_mask(r, r > 1)),
    "numbers": (FLAT, lambda r: tf.range(tf.size(r))),
    "what is filled": (FLAT, lambda r: tf.fill(tf.shape(r), 7)),
    "sorted": (FLAT, lambda r: tf.sort(r, direction="DESCENDING")),
    "looked up": (FLAT, lambda r: tf.gather(tf.eye(5), tf.cast(r, tf.int32))),
    "of two dimensions": (INNER, lambda r: r + 1.0),
    "sums within": (INNER, lambda r: tf.reduce_sum(r, 1)),
    "products": (INNER, lambda r: r @ tf.ones([2, 3])),
    "of a function": (FLAT, tf.function(lambda r: tf.where(r > 1, r, 0.0))),
    "of a branch": (FLAT, lambda r: tf.cond(tf.size(r) > 1, lambda: r * 2, lambda: r)),
    "of a loop": (FLAT, lambda r: tf_ti.scan(lambda c, x: (c + x, c), 0.0, r)[1]),
    "of a loop that makes it longer": (
        FLAT,
        lambda r: tf_ti.scan(
            lambda c, x: (tf.concat([c, [x]], 0), None),
            tf.zeros(1),
            r,
            shape_invariants=tf.TensorShape([None]),
        )[0],
    ),
    "of a while loop": (FLAT, make_longer),
    "of a branch of another length": (
        FLAT,
        lambda r: tf.cond(tf.reduce_sum(r) > 5, lambda: tf.ones(2), lambda: tf.ones(3)),
    ),
    "splits of another type": (FLAT.with_row_splits_dtype(tf.int32), lambda r: -r),
    "none": (FLAT[:0], lambda r: r * 2.0),
    "all empty": (tf.ragged.constant([[], []], tf.float32), lambda r: r * 2.0),
    "of one length": (tf.ragged.constant([[1.0, 2.0], [3.0, 4.0]]), lambda r: r * 2.0),
}


@pytest.mark.pairwise
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", ROWS)
def test_rows_of_a_ragged_tensor_are_stacked_ragged(rows, mode):
    x, g = ROWS[rows]
    inner = [2] if rows == "of two dimensions" else [3] if rows == "products" else []
    inner = [5] if rows == "looked up" else inner
    reverse = len(rows) % 2 == 0

    def f(c, r):
        return c + tf.size(r), (g(r), tf.size(r))

    last, (ys, sizes) = in_mode(mode, lambda x: tf_ti.scan(f, 0, x, reverse=reverse), x)
    expected = mapped(g, x, [None, *inner]) if x.nrows() else x.with_values(g(x.values))
    same_ragged(ys, expected)
    assert last == tf.size(x.flat_values)
    same(sizes, tf.map_fn(tf.size, x, fn_output_signature=tf.int32))


@pytest.mark.parametrize("mode", MODES)
def test_of_several_ragged_tensors_each_result_has_its_own_lengths(mode):
    counts = tf.ragged.constant([[1], [2, 3], [4, 5]])

    def f(c, r):
        return c, {"x": r["x"] * 2.0, "both": [None, tf.concat([r["n"], r["n"]], 0)]}

    _, ys = in_mode(mode, lambda x, n: tf_ti.scan(f, 0.0, {"x": x, "n": n}), FLAT, counts)
    same_ragged(ys["x"], FLAT * 2.0)
    same_ragged(ys["both"][1], tf.concat([counts, counts], 1))


@pytest.mark.parametrize("mode", MODES)
def test_parts_of_ragged_rows_are_stacked_ragged(mode):
    _, ys = in_mode(
        mode,
        lambda x: tf_ti.scan(lambda c, r: (c, (r.values, tf.reduce_sum(r, -1), r)), 0.0, x),
        DEEP,
    )
    same_ragged(ys[0], DEEP.merge_dims(1, 2))
    same_ragged(ys[1], tf.reduce_sum(DEEP, -1))
    assert ys[2].to_list() == DEEP.to_list()


def test_a_result_whose_extent_no_row_tells_is_a_tensor():
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def call(w):
        zeros = lambda r: tf.zeros(tf.shape(w * tf.reduce_sum(r)))  # noqa: E731 - autograph
        return tf_ti.scan(lambda c, r: (c, zeros(r)), 0.0, FLAT)[1]

    same(call(tf.ones(2)), tf.zeros([3, 2]))


@pytest.mark.parametrize("mode", MODES)
def test_the_static_shape_of_ragged_results_is_that_of_all_rows(mode):
    _, ys = in_mode(mode, lambda x: tf_ti.scan(lambda c, r: (c, (r, r[:1])), 0.0, x), DEEP)
    for y in ys:
        assert y.shape.as_list() == [DEEP.nrows(), None, None]
        assert y.row_splits.shape == [DEEP.nrows() + 1]


@pytest.mark.parametrize("mode", MODES)
def test_a_carry_that_rows_make_longer_is_stacked_ragged(mode):
    def f(c, r):
        return tf.concat([c, r], 0), c * 1.0

    shape = tf.TensorShape([None])
    _, ys = in_mode(mode, lambda x: tf_ti.scan(f, tf.zeros(1), x, shape_invariants=shape), FLAT)
    assert ys.to_list() == [[0], [0, 1, 2, 3], [0, 1, 2, 3]]


def dense_results(c, n, x, steps):
    """Results of unknown first extents, none of which is a row's."""
    add = tf.function(lambda c, r: c + tf.reduce_sum(r))

    def f(c, element):
        r, step = element
        s = tf.reduce_sum(r)
        results = [
            c,
            c * s,
            step + s,
            tf.fill([n], s),
            tf.zeros(tf.shape(c)) + s,
            tf.broadcast_to(s, [n, 2]),
            tf.tile(tf.reshape(s, [1]), [n]),
            tf.reshape(tf.zeros([n, 2]) + s, [n * 2]),
            tf.concat([c, step * s], 0),
            tf.gather(c, tf.range(n)) + s,
            add(c, r),
            tf.ensure_shape(tf.concat([r, tf.zeros([2])], 0)[:2], [2]),
            tf.stack([s, s]),
            tf.one_hot(tf.size(r), n),
            tf.scatter_nd([[0]], [s], tf.shape(c)),
            tf.random.stateless_uniform([n], tf.stack([1, tf.size(r)])),
            tf.cond(s > 5, lambda: c, lambda: c * 2.0),
            tf.switch_case(tf.size(r), [lambda: c, lambda: -c, lambda: c + s]),
            tf.while_loop(lambda i, h: i < tf.size(r), lambda i, h: (i + 1, h + r[i]), (0, c))[1],
            tf.foldl(lambda h, e: h * e, r, c),
            tf_ti.scan(lambda h, e: (h + e, None), c, r)[0],
            tf_ti.scan(lambda h, e: (h + s, e * h[0]), c, c)[1],
        ]
        return c + s, results

    return tf_ti.scan(f, c, (x, steps))[1]


@pytest.mark.parametrize("mode", MODES)
def test_results_whose_extents_come_from_elsewhere_stay_dense(mode):
    # Programs are made for a row of another length: kernels run their steps, of sizes too that
    # only programs take for known.
    specs = [
        tf.TensorSpec([None]),
        tf.TensorSpec([], tf.int32),
        tf.RaggedTensorSpec([None, None], tf.float32),
        tf.TensorSpec([None, None]),
    ]
    call = tf.function(dense_results, input_signature=specs) if mode == "function" else None
    arguments = [tf.constant([1.0, 2.0]), tf.constant(2), FLAT, tf.ones([3, 4])]
    actual = in_mode(mode, call or dense_results, *arguments)
    assert not any(isinstance(value, tf.RaggedTensor) for value in actual)
    assert actual[1].numpy().tolist() == [[6, 12], [0, 0], [28, 32]]


def test_rows_of_one_known_length_stay_dense(run):
    x = tf.RaggedTensor.from_uniform_row_length(tf.range(4.0), 2)
    _, ys = run(lambda x: tf_ti.scan(lambda c, r: (c, r * 2.0), 0.0, x), x)
    assert ys.numpy().tolist() == [[0, 2], [4, 6]]


def test_where_f_asks_for_values_lengths_tell_what_is_ragged():
    def f(c, r):
        return c, (tf.constant(r.numpy() * 2), tf.constant([r.numpy().sum()] * 2), c)

    _, ys = in_mode("plain", lambda x: tf_ti.scan(f, 0.0, x), FLAT)
    same_ragged(ys[0], FLAT * 2.0)
    assert [y.numpy().tolist() for y in ys[1:]] == [[[6, 6], [0, 0], [4, 4]], [0, 0, 0]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "arguments", [{}, {"reverse": True, "fuse": False}, {"checkpoint_every": 2}], ids=str
)
def test_ragged_results_have_gradients(mode, arguments):
    def gradients(values, w, is_loop):
        with tf.GradientTape() as tape:
            tape.watch([values, w])
            x = FLAT.with_values(values)

            def f(c, r):
                return c * 0.5 + tf.reduce_sum(r), (r * r * c + w, tf.reduce_sum(r) * c)

            if is_loop:
                _, (ys, dense) = tf_ti.scan(f, 1.0, x, **arguments)
                ys = ys.values
            else:
                step = -1 if "reverse" in arguments else 1
                _, results = python_scan(f, 1.0, [x[k] for k in range(3)][::step])
                ys = tf.concat([y for y, _ in results[::step]], 0)
                dense = tf.stack([s for _, s in results[::step]])
            loss = tf.reduce_sum(ys * [1.0, 2.0, 3.0, 4.0]) + tf.reduce_sum(dense**2)
        return [tf.convert_to_tensor(g) for g in tape.gradient(loss, [values, w])]

    w = tf.constant(3.0)
    actual = in_mode(mode, lambda v, w: gradients(v, w, True), FLAT.values, w)
    same(actual, gradients(FLAT.values, w, False))


def test_ragged_results_in_tf_data_and_in_a_saved_model(tmp_path):
    def call(x):
        return tf_ti.scan(lambda c, r: (c, r * 2.0), 0.0, x)[1]

    (y,) = tf.data.Dataset.from_tensors(FLAT).map(call)
    same_ragged(y, FLAT * 2.0)
    module = tf.Module()
    module.call = tf.function(call, input_signature=[tf.RaggedTensorSpec([None, None], tf.float32)])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for x in (FLAT, FLAT[:0], FLAT[:1]):
        assert loaded.call(x).to_list() == (x * 2.0).to_list()


def test_a_tf_function_gives_ragged_results():
    f = tf.function(lambda c, r: (c + tf.reduce_sum(r), (r * c, r)))
    for _ in range(2):
        same_ragged(tf_ti.scan(f, 1.0, FLAT)[1][1], FLAT)


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_differ_in_more_than_their_length_are_refused_by_their_path(mode):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ys\['y'\]: .*not concatenate"):
        in_mode(
            mode,
            lambda x: tf_ti.scan(lambda c, r: (c, {"y": r[:, None] * r}), 0.0, x),
            FLAT,
        )


def test_xla_names_the_ragged_tensor_whose_rows_it_does_not_know():
    call = tf.function(
        lambda x: tf_ti.scan(lambda c, r: (c, r["a"] * 2.0), 0.0, {"a": x})[1], jit_compile=True
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="row_of_xs_a_"):
        call(FLAT)


def test_what_has_no_rows_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match="xs: a Pair has no rows.*BatchableExtensionType"):
        tf_ti.scan(lambda c, x: (c, x.flag), 0.0, Pair(XS, XS > 1))
    with pytest.raises(ValueError, match="xs: the rows of RaggedTensorSpec.*axis 0, got axis 1"):
        tf_ti.scan(lambda c, x: (c, None), 0.0, RAGGED, axis=1)


# Python's numbers, shapes that change


NUMBERS = ["float64", "float16", "bfloat16", "complex64", "int8", "uint16", "int64"]


@pytest.mark.parametrize("dtype", NUMBERS)
def test_a_number_takes_the_type_that_f_gives(dtype, run):
    xs = tf.cast(XS, dtype)
    carry, ys = run(lambda xs: tf_ti.scan(lambda c, x: (c + x, c * x), 0, xs), xs)
    assert carry.dtype == ys.dtype == xs.dtype
    assert carry == tf.cast(6, dtype)


def test_a_number_beside_others_takes_its_own_type(run):
    def f(c, x):
        return {"count": c["count"] + 1, "sum": c["sum"] + x, "last": x}, None

    init = {"count": 0, "sum": 0, "last": np.float64(0)}
    carry, _ = run(lambda xs: tf_ti.scan(f, init, xs), tf.cast(XS, tf.float64))
    assert [carry[key].dtype for key in ("count", "sum", "last")] == [
        tf.int32,
        tf.float64,
        tf.float64,
    ]


def test_a_tf_function_tells_the_type_of_a_number():
    f = tf.function(lambda c, x: (c + x, None))
    assert tf_ti.scan(f, 0, tf.cast(XS, tf.float64))[0].numpy() == 6


def test_a_number_that_cannot_have_the_type_of_f_is_refused():
    with pytest.raises(TypeError, match="init .*float32.*int32"):
        tf_ti.scan(lambda c, x: (tf.constant(1), x), 0.5, XS)
    with pytest.raises(TypeError, match="init .*int32.*string"):
        tf_ti.scan(lambda c, x: (tf.constant("a"), x), 0, XS)


def chain(c, x):
    """Each number has the type of the one before, the first that of x."""
    return [c[0] + x, *(a + b for a, b in zip(c[1:], c[:-1]))], None


def backwards(c, x):
    return [*(a + b for a, b in zip(c[:-1], c[1:])), c[-1] + x], None


def strictly(c, x):
    """Gives types in each round, of which those further on are wrong at first."""
    return [c[0] + x, *(tf.convert_to_tensor(a) + 0 for a in c[:-1])], None


def nested(c, x):
    return {"a": (c["a"][0] + c["b"], c["a"][1] + c["a"][0]), "b": c["b"] + x}, None


@pytest.mark.pairwise
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int64"])
@pytest.mark.parametrize(
    "f, zeros",
    [
        (chain, lambda z: [z, z]),
        (chain, lambda z: [z] * 4),
        (backwards, lambda z: [z] * 3),
        (strictly, lambda z: [z] * 4),
        (nested, lambda z: {"a": (z, z), "b": z}),
    ],
    ids=["two", "four", "backwards", "strictly", "nested"],
)
def test_a_number_takes_a_type_by_way_of_others(f, zeros, dtype, mode):
    xs = tf.cast(XS, dtype)
    wrapped = tf.function(f) if dtype == "bfloat16" else f
    last, _ = in_mode(mode, lambda xs: tf_ti.scan(wrapped, zeros(0), xs), xs)
    right, _ = python_scan(f, zeros(tf.constant(0, dtype)), xs)
    for value, expected in zip(tf.nest.flatten(last), tf.nest.flatten(right)):
        assert value.dtype == dtype
        assert value == expected


@pytest.mark.parametrize("mode", MODES)
def test_numbers_of_no_type_are_refused_by_their_path(mode):
    def alternating(c, x):
        number = tf.convert_to_tensor(c["n"])
        return {"n": tf.cast(number, tf.int32 if number.dtype.is_floating else tf.float32)}, None

    def wider(c, x):
        return [tf.cast(c[0] + x, tf.float64)], None

    def two(c, x):
        c = [tf.convert_to_tensor(v) for v in c]
        return [tf.cast(v, tf.int32 if v.dtype.is_floating else tf.float32) for v in c[::-1]], None

    for f, init, words in (
        (alternating, {"n": 0}, r"init\['n'\].*float32.*int32"),
        (wider, [0.0], r"init\[0\]: float64"),
        (two, [0, 0], r"init\[0\] is of type (float32|int32)"),
    ):
        with pytest.raises(TypeError, match=f"(?s){words}"):
            in_mode(mode, lambda f=f, init=init: tf_ti.scan(f, init, XS))


def test_f_is_traced_as_often_as_there_are_numbers_and_twice():
    for n in (1, 2, 5):
        traces = []

        def f(c, x, traces=traces):
            traces.append(c)
            return strictly(c, x)

        tf_ti.scan(f, [0] * n, tf.cast(XS, tf.float64))
        assert len(traces) <= n + 2


@pytest.mark.parametrize("mode", MODES)
def test_a_truth_value_is_a_number_where_f_adds_to_it(mode):
    last, _ = in_mode(mode, lambda: tf_ti.scan(lambda c, x: (c + x, None), True, XS))
    assert last.dtype == tf.float32 and last == 7.0


@pytest.mark.parametrize("mode", MODES)
def test_a_number_that_no_tensor_holds_is_refused_by_its_path(mode):
    def f(c, x):
        return [c[0] + x, c[1] + tf.cast(x, tf.int64)], None

    with pytest.raises((TypeError, ValueError), match=r"init\[1\] must be a tensor, got int"):
        in_mode(mode, lambda: tf_ti.scan(f, [0.0, 2**70], XS)[0])


def test_a_number_that_its_type_does_not_hold_is_refused():
    with pytest.raises(TypeError, match="init .*int32.*int8"):
        tf_ti.scan(lambda c, x: (c + x, None), 300, tf.constant([1, 2], tf.int8))
    last, _ = tf_ti.scan(lambda c, x: (c + x, None), 2**40, tf.constant([1, 2], tf.int64))
    assert last == 2**40 + 3


def test_shape_invariants_let_a_carry_grow(run):
    def f(c, x):
        return {"all": tf.concat([c["all"], [x]], 0), "last": x}, tf.reduce_sum(c["all"])

    init = {"all": tf.zeros([1]), "last": 0.0}
    invariants = {"all": tf.TensorShape([None]), "last": None}
    carry, ys = run(lambda xs: tf_ti.scan(f, init, xs, shape_invariants=invariants), XS)
    expected, results = python_scan(f, init, XS)
    same(carry, expected)
    same(ys, tf.stack(results))


def test_shape_invariants_may_be_types(run):
    ragged = tf.RaggedTensor.from_uniform_row_length(tf.ones([4]), 2)
    wider = tf.RaggedTensorSpec([None, None], tf.float32, 1)

    def f(c, x):
        return tf.concat([c, tf.RaggedTensor.from_row_lengths([x], [1])], 0), c.nrows()

    carry, ys = run(
        lambda xs: tf_ti.scan(f, tf.concat([ragged, RAGGED], 0), xs, shape_invariants=wider), XS
    )
    assert ys.numpy().tolist() == [4, 5, 6]
    assert carry.to_list() == [[1, 1], [1, 1], [1, 2], [3], [1], [2], [3]]


def test_shape_invariants_have_the_structure_of_init():
    with pytest.raises((TypeError, ValueError), match="shape_invariants must have the structure"):
        tf_ti.scan(lambda c, x: (c, x), (0.0, 1.0), XS, shape_invariants=[tf.TensorShape([])])


@pytest.mark.parametrize(
    "error, words, invariants",
    [
        (ValueError, r"shape_invariants: TensorSpec\(shape=\(2,\).*init", tf.TensorShape([2])),
        (TypeError, "shape_invariants must be a TensorShape", [None]),
        (ValueError, r"init has shape \(1,\).*\(2,\).*shape_invariants", None),
    ],
)
def test_shape_invariants_that_do_not_fit_are_refused(error, words, invariants):
    with pytest.raises(error, match=words):
        tf_ti.scan(
            lambda c, x: (tf.concat([c, [x]], 0), x), tf.zeros([1]), XS, shape_invariants=invariants
        )


# Extension types with ragged fields


class Word(tf.experimental.BatchableExtensionType):
    vector: tf.Tensor
    letters: tf.RaggedTensor


class Parts(tf.experimental.BatchableExtensionType):
    of: Word
    letters: Union[tf.RaggedTensor, tf.Tensor]  # noqa: UP007, TensorFlow knows no other


class Sentence(tf.experimental.BatchableExtensionType):
    words: Word
    rate: tf.Tensor


def words(letters):
    return Word(tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), letters)


WORDS = {
    "flat": words(tf.ragged.constant([[1.0], [2.0, 3.0], []])),
    "short splits": words(tf.ragged.constant([[1.0], [], [2.0]], row_splits_dtype=tf.int32)),
    "rows": words(tf.ragged.constant([[[1.0, 0.0]], [], [[2.0, 3.0]] * 2], inner_shape=(2,))),
    "deep": words(tf.ragged.constant([[[1.0], []], [[2.0, 3.0]], []])),
    "nested": Sentence(words(tf.ragged.constant([[1.0], [2.0, 3.0], []])), XS),
    "no words": Word(tf.ones([0, 2]), tf.ragged.constant([], tf.float32, ragged_rank=1)),
}


@pytest.fixture(params=["eager", "function", "run eagerly"])
def mode(request):
    def run(f, *args):
        if request.param == "eager":
            return f(*args)
        if request.param == "function":
            return tf.function(f)(*args)
        tf.config.run_functions_eagerly(True)
        try:
            return tf.function(f)(*args)
        finally:
            tf.config.run_functions_eagerly(False)

    return run


@pytest.mark.parametrize("kind", WORDS)
def test_rows_with_ragged_fields_are_joined_as_map_fn_joins_them(mode, kind):
    xs = WORDS[kind]
    expected = tf.map_fn(lambda x: x, xs)
    found = mode(lambda xs: tf_ti.scan(lambda c, x: (c, x), 0.0, xs)[1], xs)
    assert type(found) is type(xs)
    tf.nest.assert_same_structure(found, expected, expand_composites=True)
    same(found, expected)


def test_a_ragged_field_by_itself_gives_ragged_results(mode):
    xs = WORDS["nested"]

    def f(total, x):
        return total + tf.reduce_sum(x.words.letters), x.words.letters * x.rate

    total, found = mode(lambda xs: tf_ti.scan(f, 0.0, xs), xs)
    assert (total.numpy(), found.to_list()) == (6.0, [[1.0], [4.0, 6.0], []])


def letters_of(values, is_deep):
    letters = tf.RaggedTensor.from_row_lengths(values, [1, 2, 0])
    return tf.RaggedTensor.from_row_lengths(letters, [1, 0, 2]) if is_deep else letters


# Each function maps the letters to numbers that depend on them.
FIELDS = {
    "taken": lambda letters: tf_ti.scan(
        lambda c, x: (c + tf.reduce_sum(x.letters**2), None), 0.0, words(letters)
    )[0],
    "taken of two": lambda letters: tf_ti.scan(
        lambda c, x: (c + tf.reduce_sum(x.words.letters * x.words.letters) * x.rate, c),
        0.0,
        Sentence(words(letters), tf.range(1.0, 4.0)),
    )[1],
    "given": lambda letters: (
        tf_ti.scan(
            lambda c, x: (c + 1.0, Parts(x, x.letters * x.letters * c)), 1.0, words(letters)
        )[1].letters.flat_values
    ),
    "given backwards": lambda letters: (
        tf_ti.scan(lambda c, x: (c + 1.0, x.letters**2 * c), 1.0, words(letters), reverse=True)[
            1
        ].flat_values
    ),
    "a ragged tensor": lambda letters: (
        tf_ti.scan(lambda c, x: (c + 1.0, x * x * c), 1.0, letters)[1].flat_values
    ),
    "with checkpoints": lambda letters: (
        tf_ti.scan(
            lambda c, x: (c + tf.reduce_sum(x.letters**3), x.letters * c),
            1.0,
            words(letters),
            checkpoint_every=2,
        )[1].flat_values
    ),
}


def rows_of_fields(letters):
    """The results of FIELDS, computed row by row."""
    rows, vectors = [letters[k] for k in range(3)], words(letters).vector
    sums = [tf.reduce_sum(row**2) for row in rows]

    def joined(values):
        return tf.concat(
            [v.flat_values if isinstance(v, tf.RaggedTensor) else v for v in values], 0
        )

    totals = [tf.constant(1.0)]
    for row in rows:
        totals.append(totals[-1] + tf.reduce_sum(row**3))
    return {
        "taken": tf.add_n(sums),
        "taken of two": tf.stack([0.0 * vectors[0, 0], sums[0], sums[0] + 2 * sums[1]]),
        "given": joined(row * row * (k + 1.0) for k, row in enumerate(rows)),
        "given backwards": joined(row**2 * (3.0 - k) for k, row in enumerate(rows)),
        "a ragged tensor": joined(row * row * (k + 1.0) for k, row in enumerate(rows)),
        "with checkpoints": joined(row * total for row, total in zip(rows, totals)),
    }


@pytest.mark.parametrize("is_deep", [False, True])
@pytest.mark.parametrize("name", FIELDS)
def test_ragged_rows_have_gradients_and_second_ones(mode, name, is_deep):
    """A tape outside of the loop watches the letters."""

    def slopes(values, results):
        with tf.GradientTape() as outer:
            outer.watch(values)
            with tf.GradientTape() as tape:
                tape.watch(values)
                found = results(letters_of(values, is_deep))
                loss = tf.reduce_sum(
                    found**2 * tf.range(1.0, tf.cast(tf.size(found), tf.float32) + 1)
                )
            first = tape.gradient(loss, values)
            steeper = tf.reduce_sum(tf.convert_to_tensor(first) ** 2)
        return first, outer.gradient(steeper, values)

    found = mode(lambda values: slopes(values, FIELDS[name]), XS)
    expected = slopes(XS, lambda letters: rows_of_fields(letters)[name])
    assert all(isinstance(slope, tf.Tensor) for slope in found)
    same(found, list(map(tf.convert_to_tensor, expected)))


def test_a_tape_of_eager_mode_records_a_function_with_ragged_fields():
    call = tf.function(lambda xs: tf_ti.scan(lambda c, x: (c, x), 0.0, xs)[1])
    with tf.GradientTape() as tape:
        tape.watch(XS)
        loss = tf.reduce_sum(call(words(letters_of(XS, True))).letters.flat_values ** 2)
    same(tape.gradient(loss, XS), 2 * XS)


class Letters(tf.experimental.BatchableExtensionType):
    """A type with an encoder of its own: the letters lie backwards in it."""

    letters: tf.RaggedTensor

    class Encoder(tf.experimental.ExtensionTypeBatchEncoder):
        def encode(self, spec, value, minimum_rank=0):
            return [-value.letters]

        def decode(self, spec, encoded):
            return Letters(-encoded[0])

        def encoding_specs(self, spec):
            return [spec.letters]

    __batch_encoder__ = Encoder()


def test_a_type_may_encode_its_ragged_rows_itself(mode):
    xs = Letters(DEEP)
    found = mode(lambda xs: tf_ti.scan(lambda c, x: (c, x), 0.0, xs)[1], xs)
    assert found.letters.to_list() == DEEP.to_list()


@pytest.mark.parametrize("rows", [0, 2])
def test_ragged_results_keep_the_extents_that_are_known(mode, rows):
    def f(c, x):
        return c, tf.RaggedTensor.from_uniform_row_length(FLAT * x, 3)

    found = mode(lambda xs: tf_ti.scan(f, 0.0, xs)[1], XS[:rows])
    assert found.shape.as_list() == [rows, 1, 3, None]
    assert found.to_list() == [[(FLAT * x).to_list()] for x in XS[:rows]]


def test_ragged_results_along_another_axis_are_refused(mode):
    with pytest.raises(ValueError, match="ys.*axis 0, got -1"):
        mode(lambda xs: tf_ti.scan(lambda c, x: (c, RAGGED), 0.0, xs, axis=-1)[1], XS)


@pytest.mark.parametrize("xs", [FLAT, DEEP, WORDS["flat"]], ids=["flat", "deep", "field"])
def test_ragged_results_of_a_scan_with_an_end_are_refused(mode, xs):
    with pytest.raises(ValueError, match="ys.*until.*must not be ragged"):
        mode(lambda xs: tf_ti.scan(lambda c, x: (c, x), 0.0, xs, until=lambda c, y: c > 1)[1], xs)


def test_an_end_leaves_rows_of_an_extension_type_where_elements_are(mode):
    def call(xs):
        def f(c, x):
            return c + 1, Rows(x.value * 2, ~x.flag)

        return tf_ti.scan(f, 0, Rows(xs, xs > 1), until=lambda c, y: c > 1, length=3, reverse=True)[
            1
        ]

    found = mode(call, XS)
    same([found.value, found.flag], [np.float32([0, 4, 6]), np.zeros(3, bool)])


def test_a_field_that_may_not_be_ragged_says_what_does_not_stack(mode):
    class Plain(tf.experimental.BatchableExtensionType):
        letters: tf.Tensor

    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="stack"):
        mode(lambda xs: tf_ti.scan(lambda c, x: (c, Plain(x.letters)), 0.0, xs)[1], WORDS["flat"])


# --- arrays that loops in branches write ---------------------------------------------------------

F64 = tf.float64


def by_while(loop):
    def write(k, h, a):
        def body(j, g, a):
            return j + 1, tf.sin(g) * h, a.write(k, g * g)

        inner = loop if tf.inside_function() else tf.while_loop
        return inner(lambda j, *_: j < 3, body, (0, h, a), maximum_iterations=3)[2]

    return write


def by_scan(k, h, a):
    def step(carry, x):
        g, a = carry
        return (tf.sin(g) * h, a.write(k, g * x)), None

    xs = tf.constant([0.5, 2.0], F64)
    if not tf.inside_function():
        return functools.reduce(lambda carry, x: step(carry, x)[0], xs, (h, a))[1]
    return tf_ti.scan(step, (h, a), xs)[0][1]


def in_branch(write):
    return lambda k, h, a: tf.cond(k % 2 == 0, lambda: write(k, h, a), lambda: a)


def in_case(write):
    return lambda k, h, a: tf.switch_case(k % 2, [lambda: write(k, h, a), lambda: a])


def after_a_read(write):
    def both(k, h, a):
        h = h + a.read(k - 1)
        return write(k, h, a)

    return both


WRITES_INSIDE = {
    "while loop": by_while(tf.while_loop),
    "while loop in a branch": in_branch(by_while(tf.while_loop)),
    "loop in a branch": in_branch(by_while(tf_ti.while_loop)),
    "scan in a branch": in_branch(by_scan),
    "scan in a branch in a case": in_case(in_branch(by_scan)),
    "branch in a loop in a branch": in_branch(
        lambda k, h, a: tf.while_loop(
            lambda j, _: j < 2,
            lambda j, a: (j + 1, in_case(by_scan)(k, h, a)),
            (0, a),
            maximum_iterations=2,
        )[1]
    ),
    "loop in a branch after a read": after_a_read(in_branch(by_while(tf_ti.while_loop))),
    "a read in a branch": in_branch(after_a_read(by_while(tf.while_loop))),
}


def reads_what_is_not_there(write, grows, **_):
    """The second iteration reads the element of the first, which writes none."""
    return grows and "read" in write


# Not compiled: XLA has no gradient of TensorFlow's branch with a loop that writes an array.
@pytest.mark.pairwise(without=reads_what_is_not_there)
@pytest.mark.parametrize("write", WRITES_INSIDE)
@pytest.mark.parametrize("loop", ["while_loop", "scan", "checkpoints"])
@pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])
@pytest.mark.parametrize("grows", [False, True], ids=["fixed", "grows"])
def test_gradients_of_arrays_that_loops_in_branches_write(write, loop, is_open, grows):
    steps = 5

    def result(h, run):
        size, shape = (1, None) if grows else (steps + 1, None if is_open else h.shape)
        array = tf.TensorArray(
            F64, size, dynamic_size=grows, element_shape=shape, clear_after_read=False
        )
        array = array.unstack(tf.stack([h] * (1 if grows else steps + 1)) * 0.5)

        def body(k, h, a):
            return k + 1, h * 0.9, WRITES_INSIDE[write](k, h, a)

        return run(body, (1, h, array))[2].stack()

    def ours(body, start):
        if loop == "while_loop":
            return tf_ti.while_loop(lambda k, *_: k <= steps, body, start, maximum_iterations=steps)
        every = 2 if loop == "checkpoints" else None
        return tf_ti.scan(
            lambda c, _: (body(*c), None), start, None, length=steps, checkpoint_every=every
        )[0]

    def unrolled(body, state):
        for k in range(1, steps + 1):
            state = body(tf.constant(k), *state[1:])
        return state

    def gradients(run, h):
        with tf.GradientTape() as outer:
            outer.watch(h)
            with tf.GradientTape() as tape:
                tape.watch(h)
                y = tf.reduce_sum(tf.sin(result(h, run)))
            first = tape.gradient(y, h)
        return first, outer.gradient(first, h)

    h = tf.constant([0.3, -0.7], F64)
    expected = gradients(unrolled, h)  # eager, loops inside too
    actual = tf.function(lambda h: gradients(ours, h))(h)
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-10)
