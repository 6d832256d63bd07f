"""Loops under `tf.config.run_functions_eagerly(True)`: bodies see values; the kernel's results."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

F64 = tf.float64
Point = collections.namedtuple("Point", ["x", "y"])


@pytest.fixture(autouse=True)
def eagerly():
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def by_kernel(call):
    """The results of a call where functions are traced."""
    tf.config.run_functions_eagerly(False)
    try:
        return call()
    finally:
        tf.config.run_functions_eagerly(True)


def check(call):
    """Compares structures, types and values with the kernel's."""
    actual, expected = call(), by_kernel(call)
    tf.nest.assert_same_structure(actual, expected)
    for a, e in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
        if e is None:
            assert a is None
            continue
        assert isinstance(a, tf.Tensor) and a.dtype == e.dtype and a.shape == e.shape
        if a.dtype.is_floating:
            np.testing.assert_allclose(a, e, rtol=1e-6)
        else:
            np.testing.assert_array_equal(a, e)


def check_refusal(call, words):
    """The error is the kernel's in type and in words."""
    with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError)) as expected:
        by_kernel(call)
    with pytest.raises(expected.type) as actual:
        call()
    assert words in str(actual.value)
    assert str(actual.value) in str(expected.value)


def values(*shape):
    return tf.constant(np.random.default_rng(len(shape)).standard_normal(shape))


def slices_of(x, body=lambda piece: piece, num_iterations=None, out_stride=1, **port):
    axis = port.setdefault("axis", 0)
    order = {"start": -1, "end": 0, "stride": -1} if out_stride < 0 else {}
    return tf_ti.tensor_iterator(
        body,
        [x],
        tf_ti.PortMap(
            [tf_ti.InputPort(0, 0, **port)], [tf_ti.OutputPort(0, 0, axis=axis, **order)]
        ),
        num_iterations=num_iterations,
    )


def running_sum(x, body=lambda piece, total: (total + piece, total * piece)):
    return tf_ti.tensor_iterator(
        body,
        [x, tf.zeros_like(x[:1])],
        tf_ti.PortMap(
            [tf_ti.InputPort(0, 0, axis=0), tf_ti.InputPort(1, 1)],
            [tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 1, axis=0)],
        ),
        [tf_ti.BackEdge(0, 1)],
    )


# The body's view


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["callable", "tf.function"])
def test_the_body_of_scan_sees_values(wrap):
    seen = []

    def f(c, x):
        seen.append((c.numpy(), x.numpy()))
        return c + x, None

    tf_ti.scan(wrap(f), 0, tf.constant([1, 2, 3]))
    assert seen == [(0, 1), (1, 2), (3, 3)]


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["callable", "tf.function"])
def test_the_body_of_a_tensor_iterator_sees_values(wrap):
    seen = []

    def body(piece):
        seen.append(piece.numpy().tolist())
        return piece

    slices_of(tf.range(6), wrap(body), stride=-2, start=-1, end=0)
    assert seen == [[4, 5], [2, 3], [0, 1]]


def test_the_body_may_print(capsys):
    def f(c, x):
        print("element", int(x))
        return c, None

    tf_ti.scan(f, 0, tf.constant([7, 8]), reverse=True)
    assert capsys.readouterr().out == "element 8\nelement 7\n"


def test_the_body_may_decide_by_values():
    last, _ = tf_ti.scan(lambda c, x: (c + x if x > 1 else c, None), 0, tf.constant([1, 2, 3]))
    assert last.numpy() == 5


def test_what_tf_data_maps_in_the_body_is_converted():
    def f(c, x):
        data = tf.data.Dataset.range(4).map(lambda v: v * x if v > 1 else v)
        return data.reduce(c, lambda a, b: a + b), None

    last, _ = tf_ti.scan(f, tf.constant(0, tf.int64), tf.constant([1, 10], tf.int64))
    assert last.numpy() == (0 + 1 + 2 + 3) + (0 + 1 + 20 + 30)


def test_the_body_of_a_loop_in_a_body_sees_values():
    seen = []

    def inner(c, x):
        seen.append(int(x))
        return c + x, None

    tf_ti.scan(lambda c, x: (tf_ti.scan(inner, c, x)[0], None), 0, tf.constant([[1, 2], [3, 4]]))
    assert seen == [1, 2, 3, 4]


def test_a_failing_check_is_raised_in_its_iteration():
    seen = []

    def f(c, x):
        seen.append(int(x))
        tf.debugging.assert_less(x, 2, message="too big for me")
        return c, None

    with pytest.raises(tf.errors.InvalidArgumentError, match="too big for me"):
        tf_ti.scan(f, 0, tf.constant([1, 5, 6]))
    assert seen == [1, 5]


def test_assignments_happen_in_each_iteration():
    count = tf.Variable(0)

    def f(c, x):
        return c + count.assign_add(x), None

    assert tf_ti.scan(f, 0, tf.constant([1, 2, 3]))[0].numpy() == 1 + 3 + 6


# Where bodies are traced all the same


def test_in_a_graph_the_kernel_runs():
    @tf.function
    def call(x):
        return tf_ti.scan(lambda c, x: (c + x, None), 0.0, x)[0]

    graph = call.get_concrete_function(tf.TensorSpec([3])).graph
    assert [op.type for op in graph.get_operations() if op.type.startswith("TfTi>")]


def test_in_tf_data_the_kernel_runs():
    data = tf.data.Dataset.from_tensors([1.0, 2.0])
    data = data.map(lambda x: tf_ti.scan(lambda c, x: (c + x, None), 0.0, x)[0])
    assert [float(x) for x in data] == [3.0]


def test_without_iterations_the_body_is_traced():
    def f(c, x):
        return c + 1, {"a": x, "b": c}

    check(lambda: tf_ti.scan(tf.function(f), tf.ones([2]), tf.zeros([3, 0, 4]), axis=1))
    check(lambda: running_sum(tf.zeros([0, 2])))
    check(lambda: tf_ti.scan(lambda c, _: (c + 1, c), 0, length=tf.constant(0)))


# Values


RANGES = {
    "forwards": {},
    "backwards": {"start": -1, "end": 0, "stride": -1},
    "tiles": {"stride": 2},
    "tiles backwards": {"start": -1, "end": 0, "stride": -3},
    "part": {"start": 1, "end": 4},
    "part backwards": {"start": -2, "end": 1, "stride": -2},
    "overlaps": {"part_size": 3},
    "overlaps backwards": {"start": -1, "end": 0, "stride": -1, "part_size": 2},
    "gaps": {"stride": 4, "part_size": 1},
    "gaps backwards": {"start": -1, "end": 0, "stride": -3, "part_size": 2},
}


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("port", RANGES.values(), ids=RANGES)
def test_pieces_are_the_kernels(port, axis):
    for out_stride in (1, -1):
        check(lambda s=out_stride: slices_of(values(6, 6), axis=axis, out_stride=s, **port))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scan_along_any_axis_in_either_order(axis, reverse):
    shape = [3, 4, 5]
    del shape[axis]
    init, x = tf.zeros(shape, F64), values(3, 4, 5)
    check(
        lambda: tf_ti.scan(lambda c, x: (c * 0.5 + x, c - x), init, x, axis=axis, reverse=reverse)
    )


def test_structures_are_kept():
    def f(carry, x):
        total = carry["p"].x + x[0]
        return {"p": Point(total, [carry["p"].y[0] * 2]), "no": None}, (total, {"b": x[1]}, None)

    init = {"p": Point(values(2), [tf.constant(1)]), "no": None}
    check(lambda: tf_ti.scan(f, init, [values(3, 2), tf.constant(["a", "b", "c"])]))


@pytest.mark.parametrize("length", [3, np.int64(3), tf.constant(3)], ids=["int", "NumPy", "tensor"])
def test_length_tells_the_count(length):
    check(lambda: tf_ti.scan(lambda c, _: (c * 2, c), 1, length=length))


def test_python_numbers_take_the_type_of_init():
    check(lambda: tf_ti.scan(lambda c, x: (0, 7), tf.constant(1.5), tf.zeros(2)))


def test_a_count_may_come_from_an_output_port():
    ports = tf_ti.PortMap(
        [tf_ti.InputPort(0, 0)],
        [tf_ti.OutputPort(0, 0, axis=0, start=0, end=4, part_size=1), tf_ti.OutputPort(1, 1)],
    )
    edges = [tf_ti.BackEdge(1, 0)]
    check(lambda: tf_ti.tensor_iterator(lambda c: (c * 2, c * 2), [tf.constant(1)], ports, edges))


def test_back_edges_are_taken_together():
    ports = tf_ti.PortMap(
        [tf_ti.InputPort(0, 0), tf_ti.InputPort(1, 1)],
        [tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 1)],
    )
    edges = [tf_ti.BackEdge(0, 1), tf_ti.BackEdge(1, 0)]
    outputs = tf_ti.tensor_iterator(lambda a, b: (a, b), [1, 2], ports, edges, num_iterations=2)
    assert [int(o) for o in outputs] == [2, 1]


def test_a_body_of_less_specific_shape_lets_a_state_grow():
    traced = tf.function(
        lambda x, total: (tf.concat([total, x], 0), x),
        input_signature=[tf.TensorSpec([1]), tf.TensorSpec([None])],
    )
    for body in (traced, traced.get_concrete_function()):
        check(lambda body=body: running_sum(tf.constant([1.0, 2.0, 3.0]), body))


def test_a_concrete_function_is_called_with_what_it_was_traced_for():
    f = tf.function(lambda c, factor, x: (c + factor * x, c))
    scalar = tf.TensorSpec([])
    concrete = f.get_concrete_function(scalar, 3.0, scalar)
    check(lambda: tf_ti.scan(concrete, 0.0, tf.constant([1.0, 2.0])))


def test_a_loaded_signature_is_called_by_its_names(tmp_path):
    module = tf.Module()
    module.f = tf.function(
        lambda piece, total: {"a": total + piece, "b": total * piece},
        input_signature=[tf.TensorSpec([1]), tf.TensorSpec([1])],
    )
    tf.saved_model.save(module, str(tmp_path))
    body = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    check(lambda: running_sum(tf.constant([1.0, 2.0, 3.0]), body))


# Gradients


def gradients(call, sources):
    with tf.GradientTape() as tape:
        tape.watch(sources)
        outputs = [o for o in tf.nest.flatten(call()) if o is not None and o.dtype.is_floating]
        value = tf.add_n([tf.reduce_sum(tf.sin(o)) for o in outputs])
    return tape.gradient(value, sources)


@pytest.mark.parametrize("port", RANGES.values(), ids=RANGES)
def test_gradients_of_pieces_are_the_kernels_and_dense(port):
    x = values(6, 6)
    check(lambda: gradients(lambda: slices_of(x, tf.square, **port), [x]))


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_scan_are_the_kernels(reverse):
    w, v, init, x = tf.Variable(values(2, 2)), values(2), values(2), values(4, 2)

    def f(c, x):
        h = tf.tanh(tf.linalg.matvec(w, c) + x * v)
        return h, (h, x * c)

    call = lambda: tf_ti.scan(f, init, x, reverse=reverse, checkpoint_every=2)  # noqa: E731
    check(lambda: gradients(call, [w, v, init, x]))


def test_jacobians_are_the_kernels():
    x = values(4)

    def jacobian():
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, y = tf_ti.scan(lambda c, x: (tf.sin(c + x), c * x), x[0], x)
        return tape.jacobian(y, x)

    check(jacobian)


def test_tangents_are_the_kernels():
    x = values(4)

    def tangent():
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            _, y = tf_ti.scan(lambda c, x: (tf.sin(c + x), c * x), x[0], x)
        return accumulator.jvp(y)

    check(tangent)


# All else works as ever


def test_vectorized_map_of_a_loop():
    check(
        lambda: tf.vectorized_map(
            lambda x: tf_ti.scan(lambda c, x: (tf.sin(c + x), c), x[0], x), values(3, 4)
        )
    )


def test_a_loop_built_step_by_step_and_its_gradients():
    w, xs = tf.Variable(values(2, 2)), values(4, 2)

    def call():
        with tf_ti.Loop() as loop:
            loop.add_trip_limit(4, tf_ti.TripLimit.COUNT)
            x = loop.add_iterator(xs)
            h = loop.add_recurrence(tf.zeros([2], F64))
            h.next = tf.tanh(tf.linalg.matvec(w, h) + x)
            last = loop.add_loop_output(h, tf_ti.LoopOutput.LAST_VALUE)
            everything = loop.add_loop_output(h, tf_ti.LoopOutput.REVERSE)
        return last.tensor, everything.tensor

    check(call)
    check(lambda: gradients(call, [w, xs]))


def test_a_scan_in_the_block_of_a_loop():
    def call():
        with tf_ti.Loop() as loop:
            loop.add_trip_limit(3, tf_ti.TripLimit.COUNT)
            x = loop.add_iterator(values(3, 4))
            total, _ = tf_ti.scan(lambda c, x: (c + x, None), tf.zeros([], F64), x)
            out = loop.add_loop_output(total, tf_ti.LoopOutput.CONCATENATE)
        return out.tensor

    check(call)


def test_bags_in_a_body_and_their_gradients():
    table = tf.Variable(values(5, 2))
    ids = tf.constant([[0, 1], [4, 4], [2, 0]])

    def f(c, i):
        return c + tf_ti.embedding_bag(table, i[None])[0], None

    def dense():
        return tf.convert_to_tensor(gradients(lambda: tf_ti.scan(f, values(2), ids), table))

    check(lambda: tf_ti.scan(f, values(2), ids))
    check(dense)


def test_a_layer_of_keras_and_its_training_step():
    keras = pytest.importorskip("keras")
    import tf_ti.keras

    ids, labels = np.array([[0, 1], [3, 2]]), np.ones((2, 1))

    def train():
        model = keras.Sequential([tf_ti.keras.EmbeddingBag(5, 3), keras.layers.Dense(1)])
        model.build((None, 2))
        model.set_weights([np.full(w.shape, 0.5) for w in model.get_weights()])
        model.compile("sgd", "mse")
        model.fit(ids, labels, verbose=0)
        return model.get_weights()

    for actual, expected in zip(train(), by_kernel(train)):
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


# Bad input


@pytest.mark.parametrize(
    "port, words",
    [
        ({"start": 7}, "start lies outside the axis"),
        ({"end": -7}, "end lies outside the axis"),
        ({"start": 3, "end": 1}, "the range is empty"),
        ({"stride": 4}, "do not tile"),
        ({"end": 1, "part_size": 3}, "no whole piece fits the range"),
    ],
)
def test_a_range_that_does_not_fit_is_refused_as_ever(port, words):
    check_refusal(lambda: slices_of(tf.range(6), **port), words)


def test_a_range_of_nothing_but_a_whole_one_is_refused_as_ever():
    check_refusal(lambda: slices_of(tf.range(0), start=1), "over 0 elements")


@pytest.mark.parametrize("count", [2, tf.constant(4)], ids=["int", "tensor"])
def test_another_count_than_the_pieces_is_refused_as_ever(count):
    check_refusal(lambda: slices_of(tf.range(3), num_iterations=count), "gives 3")
    check_refusal(lambda: tf_ti.scan(lambda c, x: (c, x), 0, tf.zeros(3), length=count), "length")


def test_a_negative_count_is_refused_as_ever():
    check_refusal(
        lambda: tf_ti.scan(lambda c, x: (c, x), 0, length=tf.constant(-1)),
        "length must not be negative, got -1",
    )


def test_differing_extents_are_refused_as_ever():
    xs = {"a": tf.zeros(3), "b": tf.zeros(4)}
    check_refusal(lambda: tf_ti.scan(lambda c, x: (c, None), 0, xs), "xs['a'] gives 3 iterations")


@pytest.mark.parametrize(
    "f, words",
    [
        (lambda c, x: None, "f must return a carry and a result"),
        (lambda c, x: ((c["a"],), x), "structure of init"),
        (lambda c, x: ({"a": tf.constant(1)}, x), "init['a'] is of type float32"),
        (lambda c, x: ({"a": tf.zeros([2])}, x), "init['a'] has shape ()"),
        (lambda c: (c, c), "f is called with a carry and an element, which f"),
    ],
    ids=["no pair", "structure", "type", "shape", "arity"],
)
def test_what_f_may_not_return_is_refused_as_ever(f, words):
    check_refusal(lambda: tf_ti.scan(f, {"a": 0.0}, tf.zeros(3)), words)


def test_a_result_that_no_port_can_have_is_refused_as_ever():
    check_refusal(lambda: running_sum(tf.zeros(3), lambda x, c: x), "there is no result 1")


def test_a_concrete_function_of_another_type_is_refused_as_ever():
    body = tf.function(lambda x: x).get_concrete_function(tf.TensorSpec([1], tf.int64))
    check_refusal(lambda: slices_of(tf.zeros(3), body), "parameter 0 of the body is of type int64")


def test_results_that_do_not_join_are_refused_with_both_shapes():
    def f(c, x):
        return c, tf.zeros([int(x)])

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ys: .*\(3,\).*\(2,\): .* not stack"):
        tf_ti.scan(f, 0, tf.constant([2, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not concatenate along axis 0"):
        slices_of(tf.constant([2, 3]), lambda x: tf.zeros([1, int(x[0])]))


def test_results_of_another_structure_than_the_first_are_refused():
    with pytest.raises(ValueError, match="structure"):
        tf_ti.scan(lambda c, x: (c, x if x > 1 else (x,)), 0, tf.constant([1, 2]))


def test_pieces_of_differing_extents_concatenate():
    check(lambda: slices_of(tf.constant([2, 0, 3]), lambda x: tf.fill(x, x[0])))


def _array(dtype, size, dynamic):
    array = tf.TensorArray(dtype, size, dynamic_size=dynamic, clear_after_read=False)
    return array.write(0, tf.cast([7, 8], dtype))


def _scan_of_arrays(array, xs):
    def step(carry, x):
        arrays, k = carry["arrays"], carry["k"]
        arrays = (arrays[0].write(k + 1, arrays[0].read(k) + x),)
        return {"arrays": arrays, "k": k + 1}, x

    carry, ys = tf_ti.scan(step, {"arrays": (array,), "k": 0}, xs)
    return carry["arrays"][0].gather(tf.range(carry["k"] + 1)), ys


def _until_of_arrays(array, xs):
    def step(c, x):
        return ((c[0].write(c[1] + 1, x), c[1] + 1), x)

    (array, k), ys = tf_ti.scan(step, (array, 0), xs, until=lambda c, y: c[1] >= 2)
    return array.gather(tf.range(k + 1)), ys


def _iterator_of_arrays(array, xs):
    ports = tf_ti.PortMap(
        [tf_ti.InputPort(k, k, axis=0 if k == 2 else None) for k in range(3)],
        [tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 1)],
    )
    edges = [tf_ti.BackEdge(0, 0), tf_ti.BackEdge(1, 1)]

    def body(array, k, x):
        return (array.write(k + 1, x[0]), k + 1)

    array, k = tf_ti.tensor_iterator(body, [array, tf.constant(0), xs], ports, edges)
    return array.gather(tf.range(k + 1)), k


def _while_of_arrays(array, xs):
    def cond(array, k):
        return k < tf.shape(xs)[0]

    def body(array, k):
        return (array.write(k + 1, xs[k]), k + 1)

    array, k = tf_ti.while_loop(cond, body, (array, 0))
    return array.gather(tf.range(k + 1)), k


@pytest.mark.parametrize("count", [3, 0])
@pytest.mark.parametrize("dtype", [tf.float64, tf.int32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    "call",
    [_scan_of_arrays, _until_of_arrays, _iterator_of_arrays, _while_of_arrays],
    ids=lambda call: call.__name__,
)
def test_a_function_that_carries_an_array_is_the_same(call, dtype, count):
    """A program's tf.function, and TensorArrays in it, are in eager mode then."""
    xs = tf.constant(np.arange(2 * count).reshape(count, 2), dtype)
    dynamic = call is not _until_of_arrays

    @tf.function
    def program(xs):
        return call(_array(dtype, 1 if dynamic else 4, dynamic), xs)

    check(lambda: program(xs))


def test_the_gradient_of_an_array_in_a_carry():
    @tf.function
    def program(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            array, _ = _scan_of_arrays(_array(F64, 1, True), x)
            y = tf.reduce_sum(array**2)
        return tape.gradient(y, x)

    check(lambda: program(tf.constant([[1.0, 2.0], [3.0, 4.0]], F64)))


def test_eager_programs_have_no_arrays_in_scans():
    tf.config.run_functions_eagerly(False)
    with pytest.raises(ValueError, match="TensorArray.*tf.function only"):
        _scan_of_arrays(_array(F64, 1, True), tf.ones([2, 2], F64))
