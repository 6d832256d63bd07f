"""Composite values in loops: ragged and sparse tensors, extension types, TensorArrays."""

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

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
