"""Gradients of `tf_ti.tensor_iterator` against unrolled loops, tf.while_loop and differences."""

import numpy as np
import pytest
import tensorflow as tf
from checks import close, loss

import tf_ti
from tf_ti import BackEdge, InputPort, OutputPort, PortMap

pytestmark = pytest.mark.quarter

F64 = tf.float64


def gradients(run, sources):
    with tf.GradientTape() as tape:
        tape.watch(sources)
        value = loss(run(sources))
    return tape.gradient(value, sources)


def check(unrolled, body, inputs, port_map, back_edges=(), count=None, extra=(), **arguments):
    """Gradients to the inputs, and to `extra` tensors and variables that the body captures."""
    inputs = [tf.convert_to_tensor(x, F64) for x in inputs]
    sources = [*inputs, *extra]

    def run(with_arguments, **kwargs):
        return gradients(
            lambda s: with_arguments(body, s[: len(inputs)], port_map, back_edges, count, **kwargs),
            sources,
        )

    close(run(tf_ti.tensor_iterator, **arguments), run(unrolled))


def random_values(rng, *shape):
    return tf.constant(rng.standard_normal(shape) * 0.7)


EVERY = pytest.mark.parametrize("every", [None, 2, 5])


# Random port maps


def random_range(rng, axis, count):
    part_size, stride = (int(n) for n in rng.integers(1, 4, 2))
    stride = part_size if rng.random() < 0.5 else stride
    length = (count - 1) * stride + part_size
    if stride != part_size:
        length += int(rng.integers(0, stride))
    first, after = (int(n) for n in rng.integers(0, 3, 2))
    start, end = first, first + length - 1
    if start < end and rng.random() < 0.5:
        start, end, stride = end, start, -stride
    return {
        "axis": axis,
        "start": start,
        "end": end,
        "stride": stride,
        "part_size": part_size,
    }, first + length + after


def random_case(rng):
    count = int(rng.integers(1, 6))
    kinds = [str(k) for k in rng.choice(["slice", "state", "invariant"], rng.integers(2, 6))]
    kinds[0] = "slice"
    inputs, ports = [], []
    for i, kind in enumerate(kinds):
        shape = [int(n) for n in rng.integers(1, 4, rng.integers(1, 4))]
        fields = {}
        if kind == "slice":
            axis = int(rng.integers(-len(shape), len(shape)))
            fields, shape[axis] = random_range(rng, axis, count)
        elif kind == "state" and rng.random() < 0.7:
            shape = [2]
        inputs.append(random_values(rng, *shape))
        ports.append(InputPort(i, i, **fields))
    states = [i for i, kind in enumerate(kinds) if kind == "state"]
    back_edges = [
        BackEdge(int(rng.choice([s for s in states if inputs[s].shape == inputs[t].shape])), t)
        for t in states
    ]
    captured = random_values(rng, 2)
    variable = tf.Variable(random_values(rng, 2))

    def body(*parameters):
        mixed = tf.tanh(
            tf.add_n([tf.reduce_sum(p) * (0.2 + 0.1 * i) for i, p in enumerate(parameters)])
        )
        mixed = mixed * tf.reduce_sum(captured) + variable[0]
        return (*[tf.sin(p) + mixed * 0.3 for p in parameters], mixed * variable[1])

    outputs = []
    for i in range(rng.integers(1, 5)):
        result = int(rng.integers(0, len(kinds) + 1))
        rank = inputs[result].shape.rank if result < len(kinds) else 0
        fields = {}
        if rng.random() < 0.7:
            fields = {"axis": int(rng.integers(-rank, rank)) if rank else 0}
            if rng.random() < 0.5:
                fields |= {"start": -1, "end": 0, "stride": -1}
        outputs.append(OutputPort(i, result, **fields))
    return body, inputs, PortMap(ports, outputs), back_edges, [captured, variable]


@pytest.mark.programs(True, False)
@pytest.mark.parametrize("seed", range(24), indirect=True)
def test_random_port_maps_have_the_gradients_of_the_unrolled_loop(rng, unrolled):
    body, inputs, port_map, back_edges, extra = random_case(rng)
    every = rng.choice([None, 1, 2, 3, 100])
    print(port_map, back_edges, every)
    check(unrolled, body, inputs, port_map, back_edges, extra=extra, checkpoint_every=every)


@pytest.mark.programs(True, False)
@pytest.mark.parametrize("known", ["rank", "nothing"])
@pytest.mark.parametrize("seed", range(100, 108), indirect=True)
def test_random_port_maps_have_the_same_gradients_where_shapes_are_unknown(rng, unrolled, known):
    body, inputs, port_map, back_edges, extra = random_case(rng)
    every = rng.choice([None, 2])
    print(port_map, back_edges, every)
    signature = [
        tf.TensorSpec([None] * x.shape.rank if known == "rank" else None, F64) for x in inputs
    ]

    @tf.function(input_signature=[signature])
    def actual(inputs):
        sources = [*inputs, *extra]
        return gradients(
            lambda s: tf_ti.tensor_iterator(
                body, s[: len(inputs)], port_map, back_edges, checkpoint_every=every
            ),
            sources,
        )

    expected = gradients(
        lambda s: unrolled(body, s[: len(inputs)], port_map, back_edges), [*inputs, *extra]
    )
    close(actual(inputs), expected)


# Where the gradient is taken, and with which checkpoints


def model():
    """A small recurrent net: captured weights, a state, both kinds of output; seven steps."""
    rng = np.random.default_rng(0)
    w = tf.Variable(random_values(rng, 5, 3))
    b = random_values(rng, 3)
    x, h = random_values(rng, 2, 7, 2), random_values(rng, 2, 3)
    port_map = PortMap(
        [InputPort(0, 0, axis=1), InputPort(1, 1)], [OutputPort(0, 0), OutputPort(1, 1, axis=1)]
    )

    def body(piece, h):
        h = tf.tanh(tf.concat([piece[:, 0], h], 1) @ w + b)
        return h, h[:, tf.newaxis] * 2.0

    return body, [x, h], port_map, [BackEdge(0, 1)], [w, b]


def taken_eagerly(run, sources):
    return gradients(run, sources)


def taken_inside(run, sources):
    return tf.function(lambda: gradients(run, sources))()


def taken_outside(run, sources):
    return gradients(tf.function(run), sources)


def taken_in_another_function(run, sources):
    forward = tf.function(run)
    return tf.function(lambda: gradients(forward, sources))()


def taken_after_a_function_in_another_function(run, sources):
    with tf.GradientTape() as tape:
        tape.watch(sources)
        value = tf.function(lambda: loss(run(sources)))()
    return tf.function(lambda: tape.gradient(value, sources))()


def taken_by_tf_gradients(run, sources):
    @tf.function
    def call():
        w = sources[2]
        values = [w.read_value() if s is w else s for s in sources]
        return tf.gradients(loss(run(sources)), [values[0], values[1], values[3]])

    found = call()
    return [found[0], found[1], None, found[2]]


PLACES = [taken_eagerly, taken_inside, taken_outside, taken_in_another_function]
PLACES += [taken_after_a_function_in_another_function, taken_by_tf_gradients]


@pytest.mark.parametrize("every", [None, 1, 3, 7, 100])
@pytest.mark.parametrize("take", PLACES, ids=lambda f: f.__name__)
def test_gradients_are_the_same_wherever_they_are_taken(unrolled, take, every):
    body, inputs, port_map, back_edges, extra = model()
    sources = [*inputs, *extra]
    expected = gradients(lambda s: unrolled(body, s[:2], port_map, back_edges), sources)
    actual = take(
        lambda s: tf_ti.tensor_iterator(body, s[:2], port_map, back_edges, checkpoint_every=every),
        sources,
    )
    if take is taken_by_tf_gradients:  # which leaves out the variable
        actual[2] = expected[2]
    close(actual, expected)


def test_gradients_are_those_of_tf_while_loop():
    body, (x, h), port_map, back_edges, (w, b) = model()

    def with_while_loop(sources):
        x, h = sources[:2]
        steps = tf.TensorArray(F64, size=7)

        def step(k, h, steps):
            h, y = body(x[:, k : k + 1], h)
            return k + 1, h, steps.write(k, y[:, 0])

        _, h, steps = tf.while_loop(lambda k, *_: k < 7, step, (0, h, steps))
        return h, tf.transpose(steps.stack(), [1, 0, 2])

    def native(sources):
        return tf_ti.tensor_iterator(body, sources[:2], port_map, back_edges)

    sources = [x, h, w, b]
    close(taken_inside(native, sources), taken_inside(with_while_loop, sources))


def test_gradients_are_right_where_the_number_of_iterations_is_a_tensor(unrolled):
    x = tf.constant([0.3, 0.7], F64)
    port_map = PortMap([InputPort(0, 0)], [OutputPort(0, 0), OutputPort(1, 0, axis=0)])

    def body(s):
        return tf.sin(s * 1.3)

    @tf.function
    def actual(n, every):
        return gradients(
            lambda s: tf_ti.tensor_iterator(body, s, port_map, [BackEdge(0, 0)], n, every), [x]
        )

    for every in (None, 2):
        for n in (1, 4, 5):
            expected = gradients(
                lambda s, n=n: unrolled(body, s, port_map, [BackEdge(0, 0)], n), [x]
            )
            close(actual(tf.constant(n), every), expected)


def test_a_persistent_tape_gives_each_gradient_as_often_as_it_is_asked(unrolled):
    body, inputs, port_map, back_edges, (w, b) = model()
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(inputs)
        last, steps = tf_ti.tensor_iterator(body, inputs, port_map, back_edges)
        first, second = tf.reduce_sum(last**2), tf.reduce_sum(tf.sin(steps))
    with tf.GradientTape(persistent=True) as expected:
        expected.watch(inputs)
        last, steps = unrolled(body, inputs, port_map, back_edges)
        one, two = tf.reduce_sum(last**2), tf.reduce_sum(tf.sin(steps))
    for _ in range(2):
        close(tape.gradient(first, [*inputs, w]), expected.gradient(one, [*inputs, w]))
        close(tape.gradient(second, [*inputs, w]), expected.gradient(two, [*inputs, w]))


# Numeric gradients


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"start": -1, "end": 0, "stride": -1},
        {"stride": 2},
        {"start": -1, "end": 0, "stride": -3},
        {"start": 1, "end": 4},
        {"start": 4, "end": 1, "stride": -2},
        {"stride": 2, "part_size": 1},
        {"stride": 3, "part_size": 2},
        {"part_size": 3},
        {"start": -2, "end": 0, "stride": -1, "part_size": 2},
        {"start": -1, "end": 0, "stride": -4, "part_size": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("axis, every", [(0, 2), (-1, None)])
def test_gradients_are_those_of_differences_for_every_kind_of_range(fields, axis, every):
    rng = np.random.default_rng(3)
    size = fields.get("part_size") or abs(fields.get("stride", 1))
    shape = [6, 2] if axis == 0 else [2, 6]
    x, s = random_values(rng, *shape), random_values(rng, *[size if n == 6 else n for n in shape])
    w = random_values(rng)
    port_map = PortMap(
        [InputPort(0, 0, axis=axis, **fields), InputPort(1, 1)],
        [OutputPort(0, 0), OutputPort(1, 1, axis=axis, start=-1, end=0, stride=-1)],
    )

    @tf.function
    def run(x, s, w):
        return loss(
            tf_ti.tensor_iterator(
                lambda piece, s: (tf.sin(piece * w + s), piece * s),
                [x, s],
                port_map,
                [BackEdge(0, 1)],
                checkpoint_every=every,
            )
        )

    for theoretical, numeric in zip(*tf.test.compute_gradient(run, [x, s, w], delta=1e-5)):
        np.testing.assert_allclose(theoretical, numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"start": 1, "end": 3}, [0, 1, 1, 1, 0, 0]),
        ({"stride": 2, "part_size": 1}, [1, 0, 1, 0, 1, 0]),
        ({"part_size": 3}, [1, 2, 3, 3, 2, 1]),
        ({"start": -1, "end": 1, "stride": -3, "part_size": 2}, [0, 1, 1, 0, 1, 1]),
    ],
)
def test_an_elements_gradient_counts_the_pieces_that_it_is_in(fields, expected):
    x = tf.zeros(6)
    port_map = PortMap([InputPort(0, 0, axis=0, **fields)], [OutputPort(0, 0, axis=0)])
    with tf.GradientTape() as tape:
        tape.watch(x)
        (y,) = tf_ti.tensor_iterator(tf.reduce_sum, [x], port_map)
    assert tape.gradient(y, x).numpy().tolist() == expected


# States


@EVERY
def test_swapped_states_have_swapped_gradients(unrolled, every):
    rng = np.random.default_rng(0)
    check(
        unrolled,
        lambda a, b: (tf.sin(a), b * 1.1),
        [random_values(rng, 2), random_values(rng, 2)],
        PortMap([InputPort(0, 0), InputPort(1, 1)], [OutputPort(0, 0), OutputPort(1, 1)]),
        [BackEdge(0, 1), BackEdge(1, 0)],
        5,
        checkpoint_every=every,
    )


@EVERY
def test_a_result_that_feeds_two_states_and_four_outputs_gathers_their_gradients(unrolled, every):
    rng = np.random.default_rng(0)
    check(
        unrolled,
        lambda a, b: (tf.sin(a + b * 0.5), b * 2.0),
        [random_values(rng, 2), random_values(rng, 2)],
        PortMap(
            [InputPort(0, 0), InputPort(1, 1)],
            [
                OutputPort(0, 0),
                OutputPort(1, 0, axis=0),
                OutputPort(2, 0, axis=0, start=-1, end=0, stride=-1),
                OutputPort(3, 1),
                OutputPort(4, 0),
            ],
        ),
        [BackEdge(0, 0), BackEdge(0, 1)],
        5,
        checkpoint_every=every,
    )


def test_a_last_value_that_feeds_no_state_gives_its_gradient_to_the_last_piece_alone():
    x = tf.constant([[1.0], [2.0], [3.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        (y,) = tf_ti.tensor_iterator(
            lambda piece: piece**2,
            [x],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0)]),
        )
    assert tape.gradient(y, x).numpy().tolist() == [[0], [0], [6]]


@EVERY
def test_integer_and_string_states_pass_beside_differentiable_ones(every):
    x = tf.constant([2.0, 3.0, 5.0, 7.0], F64)
    s = tf.constant(1.0, F64)

    def run(x, s):
        def body(k, text, s):
            text = tf.strings.join([text, "a"])
            factor = tf.cast(tf.strings.length(text), F64)
            return k + 1, text, s * tf.gather(x, k) * factor

        k, text, s = tf_ti.tensor_iterator(
            body,
            [0, "", s],
            PortMap([InputPort(i, i) for i in range(3)], [OutputPort(i, i) for i in range(3)]),
            [BackEdge(i, i) for i in range(3)],
            4,
            checkpoint_every=every,
        )
        return s

    with tf.GradientTape() as tape:
        tape.watch([x, s])
        y = run(x, s)
    product = 2 * 3 * 5 * 7 * 24.0
    assert y.numpy() == product
    close(tape.gradient(y, [x, s]), [product / x, tf.constant(product, F64)])


def test_an_integer_input_has_no_gradient():
    k, x = tf.constant([0, 1]), tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch([k, x])
        (y,) = tf_ti.tensor_iterator(
            lambda k: tf.gather(x, k) ** 2,
            [k],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)]),
        )
    of_k, of_x = tape.gradient(y, [k, x])
    assert of_k is None
    assert tf.convert_to_tensor(of_x).numpy().tolist() == [2, 4]


@EVERY
def test_a_growing_state_has_the_gradient_of_the_unrolled_loop(unrolled, every):
    body = tf.function(
        lambda piece, s: (tf.concat([s * 1.1, tf.sin(piece)], 0), s),
        input_signature=[tf.TensorSpec([None], F64)] * 2,
    )
    rng = np.random.default_rng(0)
    check(
        unrolled,
        body,
        [random_values(rng, 5), random_values(rng, 2)],
        PortMap(
            [InputPort(0, 0, axis=0), InputPort(1, 1)],
            [
                OutputPort(0, 0),
                OutputPort(1, 1, axis=0),
                OutputPort(2, 0, axis=0, start=-1, end=0, stride=-1),
            ],
        ),
        [BackEdge(0, 1)],
        checkpoint_every=every,
    )


def test_a_state_whose_rank_grows_has_the_gradient_of_the_unrolled_loop(unrolled):
    body = tf.function(lambda s: tf.sin(s)[tf.newaxis], input_signature=[tf.TensorSpec(None, F64)])
    check(
        unrolled,
        body,
        [random_values(np.random.default_rng(0), 2)],
        PortMap([InputPort(0, 0)], [OutputPort(0, 0)]),
        [BackEdge(0, 0)],
        3,
    )


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("every", [None, 2])
def test_pieces_of_differing_extents_get_their_own_gradients(unrolled, axis, every):
    x = random_values(np.random.default_rng(0), 4, 5)
    x = x if axis else tf.transpose(x)

    def body(piece):
        n = 1 + tf.cast(tf.abs(tf.reduce_sum(piece)) > 1.0, tf.int32)
        return tf.repeat(tf.sin(piece), n, axis=axis)

    check(
        unrolled,
        body,
        [x],
        PortMap([InputPort(0, 0, axis=axis)], [OutputPort(0, 0, axis=axis)]),
        checkpoint_every=every,
    )


# Captures


def test_captured_tensors_and_variables_of_every_level_get_gradients(unrolled):
    rng = np.random.default_rng(0)
    v, w, c = tf.Variable(random_values(rng, 2)), tf.Variable(1.3, dtype=F64), random_values(rng, 2)

    @tf.function
    def helper(x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: x * v, lambda: x * c * w)

    check(
        unrolled,
        lambda piece, s: tf.tanh(helper(piece) + s * w),
        [random_values(rng, 6, 2), random_values(rng, 1, 2)],
        PortMap([InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0)]),
        [BackEdge(0, 1)],
        extra=[v, w, c],
    )


@EVERY
def test_gathered_rows_of_a_captured_variable_get_their_gradients(every):
    table = tf.Variable(random_values(np.random.default_rng(0), 6, 2))
    ids = tf.constant([1, 3, 1, 5, 1])

    def run(_):
        return tf_ti.tensor_iterator(
            lambda i, s: tf.sin(tf.gather(table, i) + s),
            [ids, tf.zeros([1, 2], F64)],
            PortMap([InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0)]),
            [BackEdge(0, 1)],
            checkpoint_every=every,
        )

    def reference(_):
        s = tf.zeros([1, 2], F64)
        for i in ids.numpy():
            s = tf.sin(tf.gather(table, [i]) + s)
        return s

    close(gradients(run, [table]), gradients(reference, [table]))


def test_a_large_table_gets_a_sparse_gradient():
    table = tf.Variable(tf.ones([1000, 2]))
    with tf.GradientTape() as tape:
        (y,) = tf_ti.tensor_iterator(
            lambda i: tf.gather(table, i) * 3.0,
            [tf.constant([7, 9, 7])],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)]),
        )
    grad = tape.gradient(y, table)
    assert isinstance(grad, tf.IndexedSlices)
    assert sorted(grad.indices.numpy().tolist()) == [7, 7, 9]
    assert grad.values.shape == [3, 2]


@pytest.mark.parametrize(
    "dtype", [tf.float16, tf.bfloat16, tf.float32, tf.complex64, tf.complex128]
)
def test_every_differentiable_type_has_gradients(unrolled, dtype):
    x = tf.cast([[0.5, 0.25], [1.5, -1.0], [0.75, 2.0]], dtype)
    w = tf.cast([2.0, 0.5], dtype)
    port_map = PortMap([InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0)])

    def grads(run):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            (y,) = run(
                lambda piece, s: piece * w + s * w,
                [x, tf.zeros([1, 2], dtype)],
                port_map,
                [BackEdge(0, 1)],
            )
        return tape.gradient(y, [x, w])

    tolerance = {tf.float16: 1e-2, tf.bfloat16: 5e-2}.get(dtype, 1e-5)
    actual, expected = grads(tf_ti.tensor_iterator), grads(unrolled)
    actual = [tf.cast(a, tf.complex128) for a in actual]
    close(actual, [tf.cast(e, tf.complex128) for e in expected], tolerance)


def test_an_input_on_which_nothing_depends_has_no_gradient():
    x, unused = tf.constant([1.0, 2.0]), tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch([x, unused])
        (y,) = tf_ti.tensor_iterator(
            lambda piece, unused: piece * 2.0,
            [x, unused],
            PortMap([InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0, axis=0)]),
        )
    of_x, of_unused = tape.gradient(y, [x, unused])
    assert of_x.numpy().tolist() == [2, 2]
    assert of_unused is None or of_unused.numpy() == 0


@EVERY
def test_without_iterations_an_initial_state_gets_the_gradient_of_the_last(every):
    w = tf.Variable([2.0, 3.0])

    @tf.function(input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([None])])
    def grads(x, s):
        with tf.GradientTape() as tape:
            tape.watch([x, s])
            last, steps = tf_ti.tensor_iterator(
                lambda piece, s: (s * w * piece[0], s),
                [x, s],
                PortMap(
                    [InputPort(0, 0, axis=0), InputPort(1, 1)],
                    [OutputPort(0, 0), OutputPort(1, 1, axis=0)],
                ),
                [BackEdge(0, 1)],
                checkpoint_every=every,
            )
            value = tf.reduce_sum(last * [5.0, 7.0]) + tf.reduce_sum(steps)
        return tape.gradient(value, [x, s, w])

    of_x, of_s, of_w = grads(tf.zeros([0, 2]), tf.ones(2))
    assert of_x.shape == [0, 2]
    assert of_s.numpy().tolist() == [5, 7]
    assert of_w.numpy().tolist() == [0, 0]


@pytest.mark.parametrize("width", [2, 16])
def test_what_gradients_are_computed_from_is_not_changed(width):
    """A body whose gradients are views of the incoming one must not be summed up in place."""
    w = tf.zeros([16, width])
    x = tf.zeros([4, 16, width])
    seed = tf.constant(np.random.default_rng(0).standard_normal([4, 32, width]), tf.float32)
    before = seed.numpy().copy()

    def body(piece):
        return tf.concat([w, piece[0]], 0)[tf.newaxis]

    with tf.GradientTape() as tape:
        tape.watch([w, x])
        (y,) = tf_ti.tensor_iterator(
            body, [x], PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)])
        )
    of_w, of_x = tape.gradient(y, [w, x], output_gradients=seed)
    np.testing.assert_array_equal(seed, before)
    np.testing.assert_allclose(of_w, before[:, :16].sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(of_x, before[:, 16:])


# Random numbers and effects


def random_bodies():
    generator = tf.random.Generator.from_seed(1)
    return {
        "uniform": lambda x: x * tf.random.uniform(x.shape, 1.0, 2.0, F64),
        "dropout": lambda x: tf.nn.dropout(x, 0.5),
        "tf.function": tf.function(lambda x: x * tf.random.uniform(x.shape, 1.0, 2.0, F64)),
        "generator": lambda x: x * generator.uniform(x.shape, 1.0, 2.0, F64),
        "numpy_function": lambda x: (
            tf.ensure_shape(
                tf.numpy_function(lambda: np.random.uniform(1, 2, [1, 4]), [], F64), [1, 4]
            )
            * x
        ),
        "shuffle": lambda x: x * tf.random.shuffle(tf.constant([[1.0], [2.0]], F64))[0],
    }


@EVERY
@pytest.mark.parametrize("kind", random_bodies())
@pytest.mark.parametrize("take", [taken_eagerly, taken_outside], ids=lambda f: f.__name__)
def test_the_gradient_uses_the_random_numbers_of_the_forward_pass(kind, every, take):
    draw = random_bodies()[kind]
    x = tf.ones([6, 4], F64)

    def run(sources):
        with tf.GradientTape() as tape:
            tape.watch(sources)
            (y,) = tf_ti.tensor_iterator(
                draw,
                sources,
                PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)]),
                checkpoint_every=every,
            )
        return y, tape.gradient(y, sources[0])

    if take is taken_outside:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.function(lambda: run([x])[0])()
        grad = tape.gradient(y, x)
    else:
        y, grad = run([x])
    np.testing.assert_array_equal(grad, y)  # y = x * mask, and x is 1


@pytest.mark.parametrize("every", [None, 2])
def test_a_random_number_that_steers_a_state_is_the_same_in_the_gradient(every):
    s = tf.constant(1.0, F64)
    with tf.GradientTape() as tape:
        tape.watch(s)
        (y,) = tf_ti.tensor_iterator(
            lambda s: s * (s + tf.random.uniform([], dtype=F64)),
            [s],
            PortMap([InputPort(0, 0)], [OutputPort(0, 0)]),
            [BackEdge(0, 0)],
            2,
            checkpoint_every=every,
        )
    # With numbers a, b: t = 1 + a, y = t (t + b), y' = (2 t + b) (2 + a). Solved for a by steps.
    grad = tape.gradient(y, s).numpy()
    y = y.numpy()
    # b = y / t - t, so y' = (t + y / t) (1 + t), which t = 1 + a in [1, 2] must solve.
    t = np.roots([1, 1, y - grad, y])
    t = t[np.isreal(t)].real
    assert any(1 <= value <= 2 and 0 <= y / value - value <= 1 for value in t)


def nested(inner):
    """A loop over columns inside one over rows."""

    def outer(row):
        (out,) = tf_ti.tensor_iterator(
            inner,
            [row],
            PortMap([InputPort(0, 0, axis=1)], [OutputPort(0, 0, axis=1)]),
        )
        return out

    def run(x):
        (y,) = tf_ti.tensor_iterator(
            outer, [x], PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)])
        )
        return y

    return run


def test_random_numbers_of_a_nested_loop_are_the_same_in_the_gradient():
    x = tf.ones([4, 6], F64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = nested(lambda x: tf.nn.dropout(x, 0.5))(x)
    np.testing.assert_array_equal(tape.gradient(y, x), y)


def test_a_gradient_that_would_have_to_draw_random_numbers_again_is_refused():
    def row_or_dropout(row):
        return tf.cond(tf.reduce_sum(row) > 0, lambda: tf.nn.dropout(row, 0.5), lambda: row)

    x = tf.ones([4, 6], F64)
    port_map = PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)])
    with pytest.raises(ValueError, match="repeat If .* random numbers"):
        with tf.GradientTape() as tape:
            tape.watch(x)
            (y,) = tf_ti.tensor_iterator(row_or_dropout, [x], port_map)
        tape.gradient(y, x)


@EVERY
def test_the_gradient_repeats_no_effect(every):
    v = tf.Variable(0.0, dtype=F64)

    def body(piece, s):
        v.assign_add(1.0)
        return s * piece + v

    x = tf.constant([2.0, 3.0, 5.0, 7.0, 11.0], F64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        (y,) = tf_ti.tensor_iterator(
            lambda p, s: body(p[0], s),
            [x, tf.constant(1.0, F64)],
            PortMap([InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0)]),
            [BackEdge(0, 1)],
            checkpoint_every=every,
        )
    grad = tape.gradient(y, x).numpy()
    assert v.numpy() == 5
    states, expected = [1.0], np.zeros(5)
    for k in range(5):
        states.append(states[-1] * x[k].numpy() + k + 1)
    carried = 1.0
    for k in reversed(range(5)):
        expected[k] = carried * states[k]
        carried *= x[k].numpy()
    np.testing.assert_allclose(grad, expected, rtol=1e-12)


def test_a_print_is_not_repeated_by_the_gradient(capfd):
    def body(piece):
        tf.print("step")
        return piece**2

    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        (y,) = tf_ti.tensor_iterator(
            body,
            [x],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)]),
            checkpoint_every=2,
        )
    assert tape.gradient(y, x).numpy().tolist() == [2, 4]
    assert capfd.readouterr().err.count("step") == 2


# Bodies


def test_control_flow_in_the_body_is_differentiated(unrolled):
    def body(piece, s):
        def squared(k, s):
            return k + 1, s * tf.reduce_sum(piece)

        s = tf.cond(tf.reduce_sum(piece) > 0, lambda: tf.sin(s), lambda: s * 2.0)
        _, s = tf.while_loop(lambda k, s: k < 3, squared, (0, s))
        return s, tf.switch_case(tf.cast(piece[0, 0] > 0, tf.int32), [lambda: s, lambda: piece])

    rng = np.random.default_rng(0)
    check(
        unrolled,
        tf.function(body),
        [random_values(rng, 4, 1), random_values(rng, 1, 1)],
        PortMap(
            [InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0), OutputPort(1, 1, axis=0)]
        ),
        [BackEdge(0, 1)],
    )


def test_custom_gradients_in_the_body_are_used():
    @tf.custom_gradient
    def tripled(x):
        return x + 0.0, lambda dy: dy * 3.0

    x = tf.constant([1.0, 2.0])
    for body in (tripled, lambda x: tripled(x), tf.function(lambda x: tripled(x))):
        with tf.GradientTape() as tape:
            tape.watch(x)
            (y,) = tf_ti.tensor_iterator(
                body, [x], PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)])
            )
        assert tape.gradient(y, x).numpy().tolist() == [3, 3]


def test_stop_gradient_in_the_body_stops_it():
    x = tf.constant([2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        (y,) = tf_ti.tensor_iterator(
            lambda piece: piece * tf.stop_gradient(piece),
            [x],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)]),
        )
    assert tape.gradient(y, x).numpy().tolist() == [2, 3]


def test_recompute_grad_in_the_body_has_the_same_gradient(unrolled):
    w = tf.Variable(1.5, dtype=F64)
    body = tf.recompute_grad(lambda piece, s: tf.sin(piece * w + s))
    rng = np.random.default_rng(0)
    check(
        unrolled,
        lambda piece, s: body(piece, s),
        [random_values(rng, 4), random_values(rng, 1)],
        PortMap([InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0)]),
        [BackEdge(0, 1)],
        extra=[w],
    )


@pytest.mark.parametrize("every", [None, 2])
@pytest.mark.parametrize("depth", [2, 3])
def test_nested_loops_are_differentiated(unrolled, depth, every):
    rng = np.random.default_rng(0)
    x, s = random_values(rng, *[3, 2, 3][:depth]), random_values(rng)
    w, v = random_values(rng), tf.Variable(0.8, dtype=F64)
    port_map = PortMap([InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0)])

    def level(run, x, s, captured):
        def body(piece, s):
            piece = piece[0]
            if piece.shape.rank == 0:
                return tf.sin(s * w + piece * captured) * v
            return level(run, piece, s, captured + tf.reduce_sum(piece))[0]

        return run(body, [x, s], port_map, [BackEdge(0, 1)])

    def native(*arguments):
        return tf_ti.tensor_iterator(*arguments, checkpoint_every=every)

    sources = [x, s, w, v]
    expected = gradients(lambda s: level(unrolled, s[0], s[1], s[2]), sources)
    close(gradients(lambda s: level(native, s[0], s[1], s[2]), sources), expected)


# Second order


def second_order(run, sources):
    with tf.GradientTape() as outer:
        outer.watch(sources)
        with tf.GradientTape() as inner:
            inner.watch(sources)
            value = loss(run(sources))
        first = inner.gradient(value, sources)
        norm = tf.add_n([tf.reduce_sum(tf.sin(tf.convert_to_tensor(g))) for g in first])
    return outer.gradient(norm, sources)


@pytest.mark.parametrize("every", [None, 3])
@pytest.mark.parametrize("place", ["eager", "function"])
def test_second_order_gradients_are_those_of_the_unrolled_loop(unrolled, every, place):
    body, inputs, port_map, back_edges, extra = model()
    sources = [*inputs, *extra]

    def native(s):
        return tf_ti.tensor_iterator(body, s[:2], port_map, back_edges, checkpoint_every=every)

    expected = second_order(lambda s: unrolled(body, s[:2], port_map, back_edges), sources)
    if place == "eager":
        close(second_order(native, sources), expected)
    else:
        close(tf.function(lambda: second_order(native, sources))(), expected)


@pytest.mark.programs(True, False)
@pytest.mark.parametrize("seed", range(200, 205), indirect=True)
def test_random_port_maps_have_the_second_order_gradients_of_the_unrolled_loop(rng, unrolled):
    body, inputs, port_map, back_edges, extra = random_case(rng)
    every = rng.choice([None, 2])
    print(port_map, back_edges, every)
    sources = [*inputs, *extra]
    n = len(inputs)
    expected = second_order(lambda s: unrolled(body, s[:n], port_map, back_edges), sources)
    actual = second_order(
        lambda s: tf_ti.tensor_iterator(body, s[:n], port_map, back_edges, checkpoint_every=every),
        sources,
    )
    close(actual, expected, 1e-8)


def test_third_order_gradients_are_those_of_the_function():
    def power(x):
        (y,) = tf_ti.tensor_iterator(
            lambda s: s * x,
            [tf.constant(1.0, F64)],
            PortMap([InputPort(0, 0)], [OutputPort(0, 0)]),
            [BackEdge(0, 0)],
            4,
        )
        return y

    @tf.function
    def third(x):
        first = tf.gradients(power(x), x)[0]
        return tf.gradients(tf.gradients(first, x)[0], x)[0]

    assert third(tf.constant(2.0, F64)).numpy() == 24 * 2.0


def test_a_jacobian_is_that_of_the_unrolled_loop(unrolled):
    body, inputs, port_map, back_edges, _ = model()

    def jacobian(run):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(inputs[1])
            last, _ = run(body, inputs, port_map, back_edges)
        return tape.jacobian(last, inputs[1], experimental_use_pfor=False)

    close([jacobian(tf_ti.tensor_iterator)], [jacobian(unrolled)])


# Saved models


@pytest.mark.slow
def test_a_saved_model_is_differentiable_in_another_process(unrolled, run_program, tmp_path):
    body, (x, h), port_map, back_edges, (w, b) = model()
    module = tf.Module()
    module.w = w
    module.run = tf.function(
        lambda x, h: loss(tf_ti.tensor_iterator(body, [x, h], port_map, back_edges)),
        input_signature=[tf.TensorSpec([None, None, 2], F64), tf.TensorSpec([None, 3], F64)],
    )
    tf.saved_model.save(module, str(tmp_path / "model"))
    np.savez(tmp_path / "inputs.npz", x=x, h=h)
    run_program("""
        import numpy as np
        import tensorflow as tf
        import tf_ti
        module = tf.saved_model.load("model")
        inputs = np.load("inputs.npz")
        x, h = tf.constant(inputs["x"]), tf.constant(inputs["h"])
        with tf.GradientTape() as tape:
            tape.watch([x, h])
            value = module.run(x, h)
        of_x, of_h, of_w = tape.gradient(value, [x, h, module.w])
        np.savez("gradients.npz", x=of_x, h=of_h, w=of_w)
    """)
    actual = np.load(tmp_path / "gradients.npz")
    expected = gradients(lambda s: unrolled(body, s[:2], port_map, back_edges), [x, h, w])
    close([tf.constant(actual[k]) for k in "xhw"], expected)


def test_a_gradient_goes_through_a_list_that_is_a_state():
    scalar = tf.zeros([0], tf.int32)

    def body(i, x, values):
        return tf.raw_ops.TensorListSetItem(input_handle=values, index=i[0], item=2 * x[0])

    @tf.function
    def gradient(x):
        values = tf.raw_ops.TensorListReserve(
            element_shape=scalar, num_elements=3, element_dtype=F64
        )
        port_map = PortMap(
            [InputPort(0, 0, axis=0), InputPort(1, 1, axis=0), InputPort(2, 2)], [OutputPort(0, 0)]
        )
        with tf.GradientTape() as tape:
            tape.watch(x)
            (values,) = tf_ti.tensor_iterator(
                body, [tf.range(3), x, values], port_map, [BackEdge(0, 2)]
            )
            y = tf.raw_ops.TensorListStack(
                input_handle=values, element_shape=scalar, element_dtype=F64
            )
        return tape.gradient(y, x)

    assert gradient(tf.ones([3], F64)).numpy().tolist() == [2, 2, 2]


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("extent", [0, 1, 2])
def test_checkpoints_of_a_loop_whose_output_has_pieces_of_any_extent(extent, every):
    def run(x, s):
        def body(piece, s):
            return tf.tile(piece, [extent]) * s, s * tf.reduce_sum(piece)

        return tf_ti.tensor_iterator(
            body,
            [x, s],
            PortMap(
                [InputPort(0, 0, axis=0, stride=2, part_size=2), InputPort(1, 1)],
                [OutputPort(0, 0, axis=0), OutputPort(1, 1)],
            ),
            [BackEdge(1, 1)],
            checkpoint_every=every,
        )

    def unrolled(x, s):
        pieces = []
        for k in range(3):
            pieces.append(tf.tile(x[2 * k : 2 * k + 2], [extent]) * s)
            s = s * tf.reduce_sum(x[2 * k : 2 * k + 2])
        return tf.concat(pieces, 0), s

    def gradients(run, x, s):
        with tf.GradientTape() as tape:
            tape.watch([x, s])
            pieces, s_end = run(x, s)
            loss = tf.reduce_sum(tf.sin(pieces)) + s_end
        return tape.gradient(loss, [x, s])

    x, s = tf.constant([0.3, 0.6, 0.9, 0.2, 0.5, 0.7]), tf.constant(1.1)
    found = tf.function(lambda x, s: gradients(run, x, s))(x, s)
    for ours, expected in zip(found, gradients(unrolled, x, s), strict=True):
        np.testing.assert_allclose(ours, expected, 1e-5)
