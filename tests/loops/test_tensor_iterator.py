"""`tf_ti.tensor_iterator` against the definition of its semantics, written out in NumPy."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import BackEdge, InputPort, OutputPort, PortMap

MODULUS = 10007
SCALAR = np.zeros(0, np.int32)  # the shape of one


def run_numpy(body, inputs, port_map, back_edges, num_iterations, piece_positions):
    """The definition: the sequence that OpenVINO's specification unrolls, on arrays."""
    parameters, pieces, counts = {}, {}, []
    for port in port_map.inputs:
        array = inputs[port.external_port_id]
        if port.axis is None:
            parameters[port.internal_layer_id] = array
        else:
            where = piece_positions(port, array.shape[port.axis])
            counts.append(len(where))
            pieces[port.internal_layer_id] = [array.take(w, axis=port.axis) for w in where]
    count = num_iterations if num_iterations is not None else counts[0]
    assert all(c == count for c in counts)
    history = []
    for k in range(count):
        for parameter, values in pieces.items():
            parameters[parameter] = values[k]
        results = body(*[parameters[i] for i in range(len(parameters))])
        history.append(results)
        parameters.update({e.to_layer: results[e.from_layer] for e in back_edges})
    outputs = []
    for port in sorted(port_map.outputs, key=lambda port: port.external_port_id):
        values = [results[port.internal_layer_id] for results in history]
        if port.axis is None:
            outputs.append(values[-1])
            continue
        values = values if port.stride > 0 else values[::-1]
        scalar = np.ndim(values[0]) == 0
        outputs.append(np.stack(values) if scalar else np.concatenate(values, port.axis))
    return outputs


# Random port maps


@dataclasses.dataclass(frozen=True)
class Case:
    inputs: list
    port_map: PortMap
    back_edges: list
    num_iterations: int | None
    kinds: list  # of the parameters: "slice", "state" or "invariant"
    wraps: bool  # where numbers become too large, as integers do

    def body(self, *parameters, total=np.sum):
        """Every result depends on every parameter; exact in integers, so order matters."""

        def small(x):
            return x if self.wraps else x % MODULUS

        mixed = small(sum(total(p) * (i + 2) for i, p in enumerate(parameters)))
        results = [
            small(p * 3 + mixed) if kind == "state" else p + mixed
            for p, kind in zip(parameters, self.kinds)
        ]
        return (*results, mixed)

    def tf_body(self, *parameters):
        return self.body(*parameters, total=tf.reduce_sum)


def random_range(rng, axis, count):
    """A sliced port of `count` pieces, and the extent of the axis."""
    part_size, stride = rng.integers(1, 4, 2)
    if rng.random() < 0.5:
        stride = part_size
    length = (count - 1) * stride + part_size
    if stride != part_size:  # what does not make a whole piece is left
        length += rng.integers(0, stride)
    before, after = rng.integers(0, 3, 2) if rng.random() < 0.5 else (0, 0)
    extent = int(before + length + after)
    first, last = int(before), int(before + length - 1)
    start, end = (first, last) if rng.random() < 0.5 else (last, first)
    if start == end:
        stride = stride if rng.random() < 0.5 else -stride
    elif start > end:
        stride = -stride
    fields = {
        "axis": axis,
        "start": start - extent if rng.random() < 0.5 else start,
        "end": end - extent if rng.random() < 0.5 else end,
        "stride": int(stride),
        "part_size": None if abs(stride) == part_size and rng.random() < 0.5 else int(part_size),
    }
    return fields, extent


def random_array(rng, shape):
    return rng.integers(0, MODULUS, shape)


def random_case(rng, most=5, wraps=False):
    count = int(rng.integers(1, most + 1))
    num_slices = int(rng.integers(0, 4))
    num_states = int(rng.integers(0, 4))
    num_invariants = int(rng.integers(0, 2))
    kinds = ["slice"] * num_slices + ["state"] * num_states + ["invariant"] * num_invariants
    kinds = kinds or ["invariant"]
    rng.shuffle(kinds)
    external = [int(i) for i in rng.permutation(len(kinds))]
    state_shape = rng.integers(1, 4, rng.integers(0, 3))
    inputs, ports = [None] * len(kinds), []
    for parameter, kind in enumerate(kinds):
        fields = {}
        shape = [int(n) for n in rng.integers(1, 4, rng.integers(1, 6))]
        if kind == "slice":
            axis = int(rng.integers(-len(shape), len(shape)))
            fields, shape[axis] = random_range(rng, axis, count)
        elif kind == "state" and rng.random() < 0.7:
            shape = state_shape
        inputs[external[parameter]] = random_array(rng, shape)
        ports.append(InputPort(external[parameter], parameter, **fields))
    # Each state is fed by any state's result of its shape: itself, swaps, one for two.
    shapes = [inputs[external[i]].shape for i in range(len(kinds))]
    states = [i for i, kind in enumerate(kinds) if kind == "state"]
    back_edges = [
        BackEdge(int(rng.choice([s for s in states if shapes[s] == shapes[target]])), target)
        for target in states
    ]
    outputs = []
    for i in range(rng.integers(1, 6)):
        result = int(rng.integers(0, len(kinds) + 1))
        shape = [] if result == len(kinds) else list(shapes[result])
        fields = {}
        if rng.random() < 0.7:
            axis = int(rng.integers(-len(shape), len(shape))) if len(shape) else 0
            fields = {"axis": axis}
            if rng.random() < 0.5:
                fields |= {"start": -1, "end": 0, "stride": -1}
        outputs.append(OutputPort(i, result, **fields))
    rng.shuffle(outputs)
    rng.shuffle(ports)
    given = count if num_slices == 0 or rng.random() < 0.3 else None
    return Case(inputs, PortMap(ports, outputs), back_edges, given, kinds, wraps)


def check(case, actual, piece_positions):
    expected = run_numpy(
        case.body,
        case.inputs,
        case.port_map,
        case.back_edges,
        case.num_iterations,
        piece_positions,
    )
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        np.testing.assert_array_equal(a, e)


@pytest.mark.programs(True, False)
@pytest.mark.parametrize("seed", range(40), indirect=True)
def test_random_port_maps_agree_with_the_definition(rng, piece_positions):
    case = random_case(rng)
    print(case.port_map, case.back_edges)
    actual = tf_ti.tensor_iterator(
        case.tf_body, case.inputs, case.port_map, case.back_edges, case.num_iterations
    )
    check(case, actual, piece_positions)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("seed", range(300, 340), indirect=True)
def test_random_port_maps_of_a_body_that_is_one_program_agree_with_the_definition(
    rng, piece_positions
):
    case = random_case(rng, most=20, wraps=True)
    print(case.port_map, case.back_edges)

    @tf.function
    def call(inputs):
        return tf_ti.tensor_iterator(
            case.tf_body, inputs, case.port_map, case.back_edges, case.num_iterations
        )

    # A short loop is compiled when it comes again.
    for _ in range(2):
        check(case, call(case.inputs), piece_positions)


@pytest.mark.programs(True, False)
@pytest.mark.parametrize("known", ["nothing", "rank"])
@pytest.mark.parametrize("seed", range(100, 112), indirect=True)
def test_random_port_maps_agree_with_the_definition_where_shapes_are_unknown(
    rng, known, piece_positions
):
    case = random_case(rng)
    signature = [
        tf.TensorSpec(None if known == "nothing" else [None] * x.ndim, tf.int64)
        for x in case.inputs
    ]

    @tf.function(input_signature=[signature])
    def call(inputs):
        return tf_ti.tensor_iterator(
            case.tf_body, inputs, case.port_map, case.back_edges, case.num_iterations
        )

    check(case, call(case.inputs), piece_positions)


@pytest.mark.programs(True, False)
@pytest.mark.parametrize("seed", range(200, 206), indirect=True)
def test_random_port_maps_agree_with_the_definition_in_a_graph(rng, piece_positions):
    case = random_case(rng)

    @tf.function
    def call(num_iterations):
        return tf_ti.tensor_iterator(
            case.tf_body, case.inputs, case.port_map, case.back_edges, num_iterations
        )

    count = case.num_iterations
    check(case, call(count if count is None else tf.constant(count)), piece_positions)


# Where the pieces lie


def pieces_of(extent, axis=0, shape=(), **fields):
    """The pieces that one sliced port gives, as lists of element numbers."""
    x = np.arange(extent)
    x = np.broadcast_to(x.reshape([-1] + [1] * len(shape)), [extent, *shape])
    x = np.moveaxis(x, 0, axis)
    (out,) = tf_ti.tensor_iterator(
        lambda piece: piece[tf.newaxis],
        [x],
        PortMap([InputPort(0, 0, axis=axis, **fields)], [OutputPort(0, 0, axis=0)]),
    )
    flat = np.moveaxis(out.numpy(), axis + 1 if axis >= 0 else axis, 1)
    return flat.reshape([*flat.shape[:2], -1])[:, :, 0].tolist()


@pytest.mark.parametrize(
    ("extent", "fields", "expected"),
    [
        (4, {}, [[0], [1], [2], [3]]),
        (4, {"start": -1, "end": 0, "stride": -1}, [[3], [2], [1], [0]]),
        (6, {"stride": 2}, [[0, 1], [2, 3], [4, 5]]),
        (6, {"start": -1, "end": 0, "stride": -2}, [[4, 5], [2, 3], [0, 1]]),
        (6, {"start": -1, "end": 0, "stride": -2, "part_size": 2}, [[4, 5], [2, 3], [0, 1]]),
        (6, {"start": 1, "end": -1}, [[1], [2], [3], [4], [5]]),
        (6, {"start": 0, "end": 3}, [[0], [1], [2], [3]]),
        (6, {"start": 4, "end": 1, "stride": -1}, [[4], [3], [2], [1]]),
        (6, {"start": -2, "end": -5, "stride": -2}, [[3, 4], [1, 2]]),
        (6, {"start": 1, "end": 4, "stride": 2, "part_size": 2}, [[1, 2], [3, 4]]),
        (5, {"part_size": 3}, [[0, 1, 2], [1, 2, 3], [2, 3, 4]]),
        (
            5,
            {"start": -1, "end": 0, "stride": -1, "part_size": 3},
            [[2, 3, 4], [1, 2, 3], [0, 1, 2]],
        ),
        (6, {"stride": 2, "part_size": 1}, [[0], [2], [4]]),
        (7, {"stride": 3, "part_size": 2}, [[0, 1], [3, 4]]),
        (8, {"stride": 3, "part_size": 2}, [[0, 1], [3, 4], [6, 7]]),
        (7, {"start": -1, "end": 0, "stride": -3, "part_size": 1}, [[6], [3], [0]]),
        (5, {"stride": 5}, [[0, 1, 2, 3, 4]]),
        (5, {"stride": -5, "start": -1, "end": 0}, [[0, 1, 2, 3, 4]]),
        (5, {"stride": 100, "part_size": 2}, [[0, 1]]),
        (5, {"start": 2, "end": 2}, [[2]]),
        (5, {"start": 2, "end": 2, "stride": -1}, [[2]]),
        (1, {}, [[0]]),
    ],
)
@pytest.mark.parametrize(("axis", "shape"), [(0, ()), (1, (2,)), (-1, (2, 3)), (0, (16,))])
def test_a_port_gives_these_pieces(extent, fields, expected, axis, shape):
    assert pieces_of(extent, axis, shape, **fields) == expected


@pytest.mark.parametrize("rank", range(1, 6))
def test_every_axis_of_every_rank_is_iterated(rank):
    x = np.random.default_rng(rank).integers(0, 100, [2, 3, 4, 2, 3][:rank])
    for axis in range(-rank, rank):
        (out,) = tf_ti.tensor_iterator(
            lambda piece: piece * 2,
            [x],
            PortMap([InputPort(0, 0, axis=axis)], [OutputPort(0, 0, axis=axis)]),
        )
        np.testing.assert_array_equal(out, x * 2)


@pytest.mark.parametrize("width", [1, 3, 16, 32])
def test_pieces_are_right_whether_or_not_they_are_aligned(width):
    x = np.random.default_rng(width).standard_normal([7, width]).astype(np.float32)
    (out,) = tf_ti.tensor_iterator(
        lambda row: tf.linalg.matmul(row, tf.eye(width) * 2),
        [x],
        PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)]),
    )
    np.testing.assert_array_equal(out, x * 2)


def test_an_output_reversed_relative_to_its_input_turns_the_sequence_round():
    x = np.arange(5)
    (out,) = tf_ti.tensor_iterator(
        lambda piece: piece,
        [x],
        PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0, start=-1, end=0, stride=-1)]),
    )
    np.testing.assert_array_equal(out, x[::-1])


def test_scalar_results_stack():
    x = np.arange(12).reshape(3, 4)
    forwards, backwards = tf_ti.tensor_iterator(
        tf.reduce_sum,
        [x],
        PortMap(
            [InputPort(0, 0, axis=0)],
            [
                OutputPort(0, 0, axis=0),
                OutputPort(1, 0, axis=-1, start=-1, end=0, stride=-1),
            ],
        ),
    )
    np.testing.assert_array_equal(forwards, x.sum(1))
    np.testing.assert_array_equal(backwards, x.sum(1)[::-1])


def test_the_last_iteration_gives_an_output_without_axis():
    (out,) = tf_ti.tensor_iterator(
        lambda piece: piece * 2,
        [np.arange(6).reshape(2, 3)],
        PortMap([InputPort(0, 0, axis=1)], [OutputPort(0, 0)]),
    )
    np.testing.assert_array_equal(out, [[4], [10]])


# Back edges


def count_of(body, inputs, back_edges, num_iterations, outputs=None):
    """A loop over states alone, which gives the last value of every result."""
    ports = [InputPort(i, i) for i in range(len(inputs))]
    outputs = outputs or [OutputPort(i, i) for i in range(len(inputs))]
    return [
        out.numpy()
        for out in tf_ti.tensor_iterator(
            body, inputs, PortMap(ports, outputs), back_edges, num_iterations
        )
    ]


def test_back_edges_are_taken_all_together():
    swap = [BackEdge(0, 1), BackEdge(1, 0)]
    assert count_of(lambda a, b: (a, b), [1, 2], swap, 1) == [1, 2]
    assert count_of(lambda a, b: (a, b), [1, 2], swap, 2) == [2, 1]
    assert count_of(lambda a, b: (a, b), [1, 2], swap, 3) == [1, 2]


def test_one_result_feeds_two_parameters():
    out = count_of(lambda a, b: (a + b, b * 10), [1, 2], [BackEdge(0, 0), BackEdge(0, 1)], 3)
    assert out == [12, 60]  # 1 + 2; 3 + 3; 6 + 6


def test_one_result_that_feeds_two_parameters_is_not_changed_by_what_becomes_of_either():
    def body(a, b):
        return tf.tensor_scatter_nd_add(a, [[0]], [1.0]), tf.tensor_scatter_nd_add(b, [[1]], [1.0])

    # Result 0 feeds both; result 1 goes to the output alone.
    out = count_of(body, [tf.zeros(32), tf.zeros(32)], [BackEdge(0, 0), BackEdge(0, 1)], 4)
    assert out[0][:3].tolist() == [4, 0, 0]
    assert out[1][:3].tolist() == [3, 1, 0]


def test_a_result_that_feeds_a_state_and_two_outputs_reaches_all_of_them():
    state, steps, backwards = tf_ti.tensor_iterator(
        lambda s: s * 2,
        [tf.ones([1, 2])],
        PortMap(
            [InputPort(0, 0)],
            [
                OutputPort(0, 0),
                OutputPort(1, 0, axis=0),
                OutputPort(2, 0, axis=1, start=-1, end=0, stride=-1),
            ],
        ),
        [BackEdge(0, 0)],
        num_iterations=3,
    )
    np.testing.assert_array_equal(state, [[8, 8]])
    np.testing.assert_array_equal(steps, [[2, 2], [4, 4], [8, 8]])
    np.testing.assert_array_equal(backwards, [[8, 8, 4, 4, 2, 2]])


def test_a_state_that_the_body_updates_in_place_leaves_earlier_iterations_outputs_alone():
    def body(state, k):
        updated = tf.tensor_scatter_nd_update(state, [[k]], [1.0])
        return updated, k + 1, updated[tf.newaxis]

    initial = tf.zeros(32)
    last, steps = tf_ti.tensor_iterator(
        body,
        [initial, 0],
        PortMap([InputPort(0, 0), InputPort(1, 1)], [OutputPort(0, 0), OutputPort(1, 2, axis=0)]),
        [BackEdge(0, 0), BackEdge(1, 1)],
        num_iterations=5,
    )
    expected = np.tril(np.ones([5, 32]))
    np.testing.assert_array_equal(steps, expected)
    np.testing.assert_array_equal(last, expected[-1])
    np.testing.assert_array_equal(initial, np.zeros(32))


@pytest.mark.parametrize("axis", [0, 1])
def test_an_input_is_not_changed_by_a_body_that_could_update_its_piece_in_place(axis):
    x = tf.zeros([16, 16])
    initial = tf.zeros([1, 16] if axis == 0 else [16, 1])
    tf_ti.tensor_iterator(
        lambda piece, state: (tf.tensor_scatter_nd_add(piece, [[0, 0]], [1.0]), state + 1, piece),
        [x, initial],
        PortMap(
            [InputPort(0, 0, axis=axis), InputPort(1, 1)],
            [OutputPort(0, 0, axis=axis), OutputPort(1, 1), OutputPort(2, 2, axis=axis)],
        ),
        [BackEdge(1, 1)],
    )
    np.testing.assert_array_equal(x, np.zeros([16, 16]))
    np.testing.assert_array_equal(initial, np.zeros(initial.shape))


# Counts


def test_num_iterations_is_an_int_or_any_integer_tensor_or_numpy_integer():
    def doubled(n):
        return count_of(lambda s: s * 2, [1], [BackEdge(0, 0)], n)[0]

    for n in [5, np.int32(5), np.int64(5), tf.constant(5), tf.constant(5, tf.int64)]:
        assert doubled(n) == 32
    assert doubled(tf.constant(5, tf.uint8)) == 32


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"start": 0, "end": 7}, 7),
        ({"start": 2, "end": 6, "stride": 2}, 2),
        ({"start": 0, "end": 6, "stride": 3, "part_size": 3}, 2),
        ({"start": 6, "end": 0, "stride": -2}, 3),
        ({"start": -1, "end": -5, "stride": -1}, 4),
    ],
)
def test_an_output_ports_range_tells_the_count_where_nothing_else_does(fields, count):
    size = fields.get("part_size") or abs(fields.get("stride", 1))
    (out,) = tf_ti.tensor_iterator(
        lambda s: s + 1,
        [tf.zeros(size)],
        PortMap([InputPort(0, 0)], [OutputPort(0, 0, axis=0, **fields)]),
        [BackEdge(0, 0)],
    )
    steps = np.repeat(np.arange(1, count + 1), size)
    np.testing.assert_array_equal(out, steps if fields.get("stride", 1) > 0 else steps[::-1])


def test_a_million_iterations_work():
    assert count_of(lambda s: s + 1, [0], [BackEdge(0, 0)], 1_000_000) == [1_000_000]


# Zero iterations


ZERO_STEPS = PortMap(
    [InputPort(0, 0, axis=1), InputPort(1, 1)],
    [
        OutputPort(0, 0, axis=1),
        OutputPort(1, 1),
        OutputPort(2, 2, axis=0),
        OutputPort(3, 1, axis=0, start=-1, end=0, stride=-1),
    ],
)


def zero_steps(x, state):
    return tf_ti.tensor_iterator(
        lambda piece, state: (piece, state + piece, tf.reduce_sum(state)),
        [x, state],
        ZERO_STEPS,
        [BackEdge(1, 1)],
    )


def test_without_iterations_states_are_initial_and_concatenations_empty():
    pieces, state, sums, states = zero_steps(tf.zeros([2, 0, 3]), tf.ones([2, 1, 3]))
    assert pieces.shape == [2, 0, 3]
    np.testing.assert_array_equal(state, np.ones([2, 1, 3]))
    assert sums.shape == [0]
    assert states.shape == [0, 1, 3]


def test_without_iterations_outputs_are_the_same_where_dimensions_are_unknown():
    spec = tf.TensorSpec([None, None, None])
    outputs = tf.function(zero_steps, input_signature=[spec, spec])(
        tf.zeros([2, 0, 3]), tf.ones([2, 1, 3])
    )
    assert outputs[0].shape[1] == 0
    np.testing.assert_array_equal(outputs[1], np.ones([2, 1, 3]))
    assert outputs[2].shape == [0]
    assert outputs[3].shape[0] == 0


def test_a_reversed_whole_range_of_nothing_has_no_iterations():
    (out,) = tf_ti.tensor_iterator(
        lambda piece: piece,
        [tf.zeros([0, 2])],
        PortMap([InputPort(0, 0, axis=0, start=-1, end=0, stride=-1)], [OutputPort(0, 0, axis=0)]),
    )
    assert out.shape == [0, 2]


@pytest.mark.parametrize("count", [0, tf.constant(0)], ids=["int", "tensor"])
def test_num_iterations_0_gives_initial_states_and_empty_concatenations(count):
    last, steps = tf_ti.tensor_iterator(
        lambda s: s + 1,
        [tf.ones([2, 3])],
        PortMap([InputPort(0, 0)], [OutputPort(0, 0), OutputPort(1, 0, axis=-1)]),
        [BackEdge(0, 0)],
        num_iterations=count,
    )
    np.testing.assert_array_equal(last, np.ones([2, 3]))
    assert steps.shape == [2, 0]


def test_an_effect_in_the_body_does_not_happen_without_iterations():
    v = tf.Variable(0)

    def body(s):
        v.assign_add(1)
        return s

    count_of(body, [1], [BackEdge(0, 0)], 0)
    assert v.numpy() == 0


# Shapes that change


def growing(initial, num_iterations, outputs):
    body = tf.function(
        lambda s: tf.concat([s, s[-1:] + 1], 0), input_signature=[tf.TensorSpec([None], tf.int32)]
    )
    return tf_ti.tensor_iterator(
        body, [initial], PortMap([InputPort(0, 0)], outputs), [BackEdge(0, 0)], num_iterations
    )


def test_a_state_may_grow():
    (out,) = growing([0], 4, [OutputPort(0, 0)])
    assert out.numpy().tolist() == [0, 1, 2, 3, 4]


def test_results_of_differing_extents_are_concatenated():
    (out,) = growing([0], 3, [OutputPort(0, 0, axis=0)])
    assert out.numpy().tolist() == [0, 1] + [0, 1, 2] + [0, 1, 2, 3]


def test_results_of_differing_extents_are_concatenated_in_reversed_order():
    (out,) = growing([0], 3, [OutputPort(0, 0, axis=0, start=-1, end=0, stride=-1)])
    assert out.numpy().tolist() == [0, 1, 2, 3] + [0, 1, 2] + [0, 1]


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("stride", [1, -1])
def test_pieces_of_any_extents_concatenate(axis, stride):
    extents = [2, 2, 0, 3, 1, 1]
    shape = [2, 3, 2]

    def values(k):
        full = list(shape)
        full[axis] = extents[k]
        return np.full(full, k + 1, np.int32)

    def body(k):
        full = list(shape)
        full[axis] = tf.gather(extents, k[0])
        return tf.fill(full, k[0] + 1)

    ends = {} if stride > 0 else {"start": -1, "end": 0}
    (out,) = tf_ti.tensor_iterator(
        body,
        [np.arange(6, dtype=np.int32)],
        PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=axis, stride=stride, **ends)]),
    )
    expected = [values(k) for k in range(6)]
    np.testing.assert_array_equal(out, np.concatenate(expected[::stride], axis))


def test_a_state_may_change_its_rank_where_the_body_allows_any():
    body = tf.function(lambda s: s[tf.newaxis], input_signature=[tf.TensorSpec(None, tf.float32)])
    (out,) = tf_ti.tensor_iterator(
        body,
        [tf.zeros([2])],
        PortMap([InputPort(0, 0)], [OutputPort(0, 0)]),
        [BackEdge(0, 0)],
        num_iterations=3,
    )
    assert out.shape == [1, 1, 1, 2]


# Types


NUMBERS = [
    tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64,
    tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128,
]  # fmt: skip
SMALL = ["float8_e5m2", "float8_e4m3fn", "int4", "uint4"]
QUANTIZED = [tf.qint8, tf.quint8, tf.qint16, tf.quint16, tf.qint32]


def carried(x, axis):
    """All that happens to a value: sliced, recorded in both orders, carried, last."""
    return tf_ti.tensor_iterator(
        lambda piece, state: (piece, state, piece),
        [x, tf.gather(x, [0], axis=axis)],
        PortMap(
            [InputPort(0, 0, axis=axis), InputPort(1, 1)],
            [
                OutputPort(0, 0, axis=axis),
                OutputPort(1, 1, axis=axis, start=-1, end=0, stride=-1),
                OutputPort(2, 2),
            ],
        ),
        [BackEdge(2, 1)],
    )


def check_carried(x, axis):
    array = x.numpy()
    same, shifted, last = [out.numpy() for out in carried(x, axis)]
    steps = np.split(array, array.shape[axis], axis)
    np.testing.assert_array_equal(same, array)
    np.testing.assert_array_equal(shifted, np.concatenate([steps[0], *steps[:-1]][::-1], axis))
    np.testing.assert_array_equal(last, steps[-1])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda d: d.name)
def test_every_number_type_is_carried(dtype, axis):
    check_carried(tf.cast(np.arange(12).reshape(3, 4) * 9 % 100, dtype), axis)


@pytest.mark.parametrize("axis", [0, 1])
def test_bool_is_carried(axis):
    check_carried(tf.constant([[True, False, True], [False, False, True]]), axis)


@pytest.mark.parametrize("axis", [0, 1])
def test_strings_short_and_long_are_carried(axis):
    check_carried(tf.constant([["a", "b" * 100, ""], ["\0x", "é", "c" * 30]]), axis)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", SMALL)
def test_types_below_a_byte_and_of_eight_bits_are_carried(dtype, axis):
    array = (np.arange(12).reshape(3, 4) % 7).astype(getattr(ml_dtypes, dtype))
    x = tf.constant(array)
    assert x.dtype == dtype
    same, backwards = tf_ti.tensor_iterator(
        lambda piece: piece,
        [x],
        PortMap(
            [InputPort(0, 0, axis=axis)],
            [
                OutputPort(0, 0, axis=axis),
                OutputPort(1, 0, axis=axis, start=-1, end=0, stride=-1),
            ],
        ),
    )
    np.testing.assert_array_equal(same, array)
    np.testing.assert_array_equal(backwards, np.flip(array, axis))


@pytest.mark.parametrize("dtype", QUANTIZED, ids=lambda d: d.name)
def test_quantized_types_are_carried(dtype):
    array = np.arange(12).reshape(3, 4)
    x = tf.bitcast(tf.cast(array, dtype.name.lstrip("q")), dtype)
    (out,) = tf_ti.tensor_iterator(
        lambda piece: piece,
        [x],
        PortMap([InputPort(0, 0, axis=1)], [OutputPort(0, 0, axis=1)]),
    )
    assert out.dtype == dtype
    np.testing.assert_array_equal(tf.bitcast(out, dtype.name.lstrip("q")), array)


def test_strings_are_computed_with():
    (out,) = tf_ti.tensor_iterator(
        lambda word, text: tf.strings.join([text, word], "-"),
        [tf.constant(["b", "c" * 50, "d"]), tf.constant(["a"])],
        PortMap([InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0)]),
        [BackEdge(0, 1)],
    )
    assert out.numpy().tolist() == [b"a-b-" + b"c" * 50 + b"-d"]


def test_a_tensor_list_is_a_state():
    @tf.function
    def call(n):
        empty = tf.raw_ops.EmptyTensorList(
            element_shape=SCALAR, max_num_elements=-1, element_dtype=tf.int32
        )
        full, _ = tf_ti.tensor_iterator(
            lambda items, k: (tf.raw_ops.TensorListPushBack(input_handle=items, tensor=k), k * 2),
            [empty, 1],
            PortMap([InputPort(0, 0), InputPort(1, 1)], [OutputPort(0, 0), OutputPort(1, 1)]),
            [BackEdge(0, 0), BackEdge(1, 1)],
            num_iterations=n,
        )
        return tf.raw_ops.TensorListStack(
            input_handle=full, element_shape=SCALAR, element_dtype=tf.int32
        )

    assert call(tf.constant(5)).numpy().tolist() == [1, 2, 4, 8, 16]


def test_variants_are_concatenated():
    def body(x):
        items = tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=SCALAR)
        return tf.reshape(items, [1])

    @tf.function
    def call(x):
        (lists,) = tf_ti.tensor_iterator(
            body, [x], PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)])
        )
        second = lists[1]
        return tf.raw_ops.TensorListStack(
            input_handle=second, element_shape=SCALAR, element_dtype=x.dtype
        )

    assert call(tf.constant([1.0, 2.0, 3.0])).numpy().tolist() == [2.0]


# Static shapes


def static_shapes(signature, port_map, back_edges=(), num_iterations=None, body=None):
    shapes = []

    @tf.function(input_signature=signature)
    def call(*inputs):
        outputs = tf_ti.tensor_iterator(
            body or (lambda *parameters: parameters),
            list(inputs),
            port_map,
            back_edges,
            num_iterations,
        )
        shapes.extend(
            out.shape.as_list() if out.shape.rank is not None else None for out in outputs
        )
        return outputs

    call.get_concrete_function()
    return shapes


ONE_SLICE = PortMap(
    [InputPort(0, 0, axis=1, stride=2)], [OutputPort(0, 0, axis=1), OutputPort(1, 0)]
)


def test_static_counts_give_static_extents():
    assert static_shapes([tf.TensorSpec([3, 8, 5])], ONE_SLICE) == [[3, 8, 5], [3, 2, 5]]


def test_an_unknown_sliced_dimension_leaves_only_that_extent_unknown():
    assert static_shapes([tf.TensorSpec([3, None, 5])], ONE_SLICE) == [[3, None, 5], [3, 2, 5]]


def test_unknown_other_dimensions_stay_unknown():
    assert static_shapes([tf.TensorSpec([None, 8, None])], ONE_SLICE) == [
        [None, 8, None],
        [None, 2, None],
    ]


def test_an_unknown_rank_stays_unknown():
    assert static_shapes([tf.TensorSpec(None)], ONE_SLICE) == [None, None]


@pytest.mark.parametrize(
    ("fields", "count"),
    [({"start": 2, "end": 5}, 4), ({"stride": 3, "part_size": 1}, 3), ({"part_size": 3}, 5)],
)
def test_a_static_range_gives_a_static_count(fields, count):
    port_map = PortMap([InputPort(0, 0, axis=0, **fields)], [OutputPort(0, 0, axis=0)])
    shapes = static_shapes(
        [tf.TensorSpec([7, 2])], port_map, body=lambda piece: tf.reduce_sum(piece)
    )
    assert shapes == [[count]]


def test_num_iterations_gives_a_static_extent():
    port_map = PortMap([InputPort(0, 0)], [OutputPort(0, 0, axis=1)])
    shapes = static_shapes([tf.TensorSpec([2, 3])], port_map, [BackEdge(0, 0)], 4)
    assert shapes == [[2, 12]]


def test_one_inputs_static_count_serves_another_whose_extent_is_unknown():
    port_map = PortMap(
        [InputPort(0, 0, axis=0), InputPort(1, 1, axis=0)],
        [OutputPort(0, 0, axis=0), OutputPort(1, 1, axis=0)],
    )
    shapes = static_shapes([tf.TensorSpec([6, 2]), tf.TensorSpec([None, 3])], port_map)
    assert shapes == [[6, 2], [6, 3]]


def test_a_growing_state_has_an_unknown_dimension():
    body = tf.function(
        lambda s: tf.concat([s, s], 0), input_signature=[tf.TensorSpec([None, 2], tf.float32)]
    )
    shapes = static_shapes(
        [tf.TensorSpec([1, 2])],
        PortMap([InputPort(0, 0)], [OutputPort(0, 0), OutputPort(1, 0, axis=0)]),
        [BackEdge(0, 0)],
        3,
        body,
    )
    assert shapes == [[None, 2], [None, 2]]


def test_a_state_whose_number_of_iterations_is_unknown_keeps_its_shape():
    port_map = PortMap([InputPort(0, 0)], [OutputPort(0, 0)])

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
    def call(n):
        (out,) = tf_ti.tensor_iterator(
            lambda s: s + 1, [tf.zeros([2, 3])], port_map, [BackEdge(0, 0)], n
        )
        assert out.shape == [2, 3]
        return out

    np.testing.assert_array_equal(call(2), np.full([2, 3], 2))


# Bodies


SUM = PortMap(
    [InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0), OutputPort(1, 1, axis=0)]
)
SUM_EDGE = [BackEdge(0, 1)]


def running(step, x, initial=0.0):
    """The last state and all states of `state = step(element, state)`."""

    def body(piece, state):
        state = step(piece[0], state)
        return state, state

    last, states = tf_ti.tensor_iterator(body, [x, initial], SUM, SUM_EDGE)
    assert last.numpy() == states.numpy()[-1]
    return states.numpy()


def test_tf_cond_in_the_body():
    states = running(
        lambda x, s: tf.cond(x > 0, lambda: s + x, lambda: s * 2),
        tf.constant([1.0, -1.0, 3.0, -5.0]),
    )
    assert states.tolist() == [1, 2, 5, 10]


def test_tf_while_loop_in_the_body():
    def step(n, s):
        _, s = tf.while_loop(lambda i, s: i < n, lambda i, s: (i + 1, s + i), (0, s))
        return s

    assert running(step, tf.constant([1, 3, 4]), 0).tolist() == [0, 3, 9]


def test_tf_while_loop_with_an_accumulator_in_the_body():
    def step(n, s):
        items = tf.TensorArray(tf.int32, size=n)
        _, items = tf.while_loop(
            lambda i, a: i < n, lambda i, a: (i + 1, a.write(i, i * i)), (0, items)
        )
        return s + tf.reduce_sum(items.stack())

    assert running(step, tf.constant([1, 3, 4]), 0).tolist() == [0, 5, 19]


def test_tf_switch_case_in_the_body():
    def step(branch, s):
        return tf.switch_case(branch, [lambda: s + 1, lambda: s * 10, lambda: -s])

    assert running(step, tf.constant([0, 1, 2, 1]), 0).tolist() == [1, 10, -10, -100]


def test_a_nested_loop_computes_what_a_nested_python_loop_does():
    x = np.arange(12.0).reshape(3, 4)

    def step(row, s):
        def inner(piece, s):
            return s * 0.5 + piece[0]

        (s,) = tf_ti.tensor_iterator(
            inner, [row, s], PortMap(SUM.inputs, [OutputPort(0, 0)]), SUM_EDGE
        )
        return s

    expected, s = [], 0.0
    for row in x:
        for value in row:
            s = s * 0.5 + value
        expected.append(s)
    np.testing.assert_array_equal(running(step, x, tf.constant(0.0, tf.float64)), expected)


def test_loops_nest_three_deep_with_captures_from_every_level():
    x = np.arange(24).reshape(2, 3, 4)
    scale = tf.constant(3)

    def level(x, s, captured):
        def body(piece, s):
            piece = piece[0]
            if piece.shape.rank == 0:
                return s * scale % MODULUS + piece * captured
            return level(piece, s, captured + tf.reduce_sum(piece))

        (s,) = tf_ti.tensor_iterator(
            body, [x, s], PortMap(SUM.inputs, [OutputPort(0, 0)]), SUM_EDGE
        )
        return s

    def reference(x, s, captured):
        for piece in x:
            if piece.ndim == 0:
                s = s * 3 % MODULUS + piece * captured
            else:
                s = reference(piece, s, captured + piece.sum())
        return s

    actual = level(tf.constant(x, tf.int32), tf.constant(0), tf.constant(1))
    assert actual.numpy() == reference(x, 0, 1)


def test_a_body_may_give_one_result_bare_or_a_tuple_or_a_list():
    for wrap in (lambda r: r, lambda r: (r,), lambda r: [r]):
        (out,) = tf_ti.tensor_iterator(
            lambda piece, wrap=wrap: wrap(piece + 1),
            [np.arange(3)],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)]),
        )
        assert out.numpy().tolist() == [1, 2, 3]


def test_a_body_that_gives_a_constant_works():
    (out,) = tf_ti.tensor_iterator(
        lambda piece: tf.constant([7]),
        [np.arange(3)],
        PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)]),
    )
    assert out.numpy().tolist() == [7, 7, 7]


class Accumulator(tf.Module):
    def __init__(self):
        self.scale = tf.Variable(2.0)

    def step(self, piece, state):
        return state * self.scale + piece[0]

    @tf.function
    def traced_step(self, piece, state):
        return self.step(piece, state)

    __call__ = step


ACCUMULATOR = Accumulator()


def body_forms(accumulator=ACCUMULATOR):
    specs = [tf.TensorSpec([1]), tf.TensorSpec([])]
    return {
        "bound method": accumulator.step,
        "tf.function": tf.function(accumulator.step),
        "bound tf.function": accumulator.traced_step,
        "ConcreteFunction": tf.function(accumulator.step).get_concrete_function(*specs),
        "ConcreteFunction of a method": accumulator.traced_step.get_concrete_function(*specs),
        "callable object": accumulator,
        "caller of a tf.function": lambda piece, state: accumulator.traced_step(piece, state),
        "recompute_grad": tf.recompute_grad(accumulator.step),
    }


@pytest.mark.parametrize("form", body_forms())
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_body_of_any_callable_form(form, mode):
    body = body_forms()[form]

    def call():
        return tf_ti.tensor_iterator(
            body,
            [tf.constant([1.0, 2.0, 3.0]), 0.0],
            PortMap(SUM.inputs, [OutputPort(0, 0)]),
            SUM_EDGE,
        )

    (out,) = call() if mode == "eager" else tf.function(call)()
    assert out.numpy() == 11.0


def test_a_captured_tensor_is_the_same_in_every_iteration():
    captured = tf.constant([10.0, 20.0])
    (out,) = tf_ti.tensor_iterator(
        lambda piece: piece * captured,
        [tf.constant([[1.0], [2.0]])],
        PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)]),
    )
    assert out.numpy().tolist() == [[10, 20], [20, 40]]


def test_a_captured_variable_has_the_value_that_it_has_at_the_call():
    v = tf.Variable(2.0)

    def step(x, s):
        return s + x * v

    x = tf.constant([1.0, 1.0])
    assert running(step, x).tolist() == [2, 4]
    v.assign(5.0)
    assert running(step, x).tolist() == [5, 10]


def test_a_variable_assigned_before_the_loop_in_one_function_is_read_after_that():
    v = tf.Variable(2.0)

    @tf.function
    def call():
        v.assign(7.0)
        (out,) = tf_ti.tensor_iterator(
            lambda piece: piece * v,
            [tf.constant([1.0, 2.0])],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)]),
        )
        v.assign(1.0)
        return out

    assert call().numpy().tolist() == [7, 14]


def test_assign_add_in_the_body_runs_once_an_iteration_and_in_order():
    v = tf.Variable(1.0)

    def step(x, s):
        v.assign(v * 2 + x)
        return s + v

    assert running(step, tf.constant([1.0, 2.0, 3.0])).tolist() == [3, 11, 30]
    assert v.numpy() == 19


def test_an_effect_without_a_result_runs_once_an_iteration():
    v = tf.Variable(0)

    @tf.function
    def call(x):
        def body(piece):
            v.assign_add(piece[0])
            return piece

        tf_ti.tensor_iterator(
            body, [x], PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)])
        )

    call(tf.constant([1, 2, 3]))
    assert v.numpy() == 6


def test_tf_print_in_the_body_prints_each_iteration_in_order(capfd):
    def step(x, s):
        tf.print("step", x)
        return s + x

    running(step, tf.constant([3.0, 1.0, 2.0]))
    assert capfd.readouterr().err.split() == ["step", "3", "step", "1", "step", "2"]


# Random numbers


def while_loop_draws(draw, count):
    @tf.function
    def call():
        _, values = tf.while_loop(
            lambda k, values: k < count,
            lambda k, values: (k + 1, values.write(k, draw())),
            (0, tf.TensorArray(tf.float32, size=count)),
            parallel_iterations=1,
        )
        return values.stack()

    return call().numpy()


def iterator_draws(draw, count):
    (out,) = tf_ti.tensor_iterator(
        draw, [], PortMap([], [OutputPort(0, 0, axis=0)]), num_iterations=count
    )
    return out.numpy()


def test_each_iteration_draws_anew():
    draws = iterator_draws(lambda: tf.random.uniform([]), 50)
    assert len(set(draws.tolist())) == 50


def test_each_call_draws_anew():
    def draw():
        return tf.random.uniform([])

    assert set(iterator_draws(draw, 5).tolist()).isdisjoint(iterator_draws(draw, 5).tolist())


def test_the_same_op_seed_draws_what_tf_while_loop_draws():
    def draw():
        return tf.random.uniform([], seed=17)

    tf.random.set_seed(3)
    expected = while_loop_draws(draw, 6)
    tf.random.set_seed(3)
    np.testing.assert_array_equal(iterator_draws(draw, 6), expected)


def test_a_generator_draws_what_tf_while_loop_draws():
    def draws(run):
        generator = tf.random.Generator.from_seed(5)
        return run(lambda: generator.uniform([]), 6)

    np.testing.assert_array_equal(draws(iterator_draws), draws(while_loop_draws))


def test_stateless_random_numbers_depend_on_their_seed_alone():
    (out,) = tf_ti.tensor_iterator(
        lambda k: tf.random.stateless_uniform([1], tf.concat([k, [7]], 0)),
        [np.arange(4, dtype=np.int32)],
        PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)]),
    )
    expected = [tf.random.stateless_uniform([], [k, 7]).numpy() for k in range(4)]
    np.testing.assert_array_equal(out, expected)


# OpenVINO's examples


def lstm_step(x, h, c, w, b):
    """OpenVINO's LSTMCell: gates in the order f, i, c, o; weights [4 * hidden, input + hidden]."""
    f, i, g, o = np.split(np.concatenate([x, h], 1) @ w.T + b, 4, 1)

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
def test_openvinos_example_2(backwards):
    time, size, hidden = 25, 512, 256
    rng = np.random.default_rng(0)
    x = rng.standard_normal([1, time, size])
    h0, c0 = rng.standard_normal([2, 1, hidden])
    w = rng.standard_normal([4 * hidden, size + hidden]) * 0.05
    b = rng.standard_normal([4 * hidden])

    def body(x, h, c):
        x = tf.reshape(x, [1, size])
        f, i, g, o = tf.split(tf.concat([x, h], 1) @ tf.transpose(w) + b, 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        return h, c, tf.reshape(h, [1, 1, hidden])

    ends = {"start": -1, "end": 0, "stride": -1} if backwards else {"start": 0}
    out, last = tf_ti.tensor_iterator(
        body,
        [x, h0, c0],
        PortMap(
            [InputPort(0, 0, axis=1, **ends), InputPort(1, 1), InputPort(2, 2)],
            [OutputPort(0, 2, axis=1, **ends), OutputPort(1, 0)],
        ),
        [BackEdge(0, 1), BackEdge(1, 2)],
    )

    expected, h, c = np.zeros([1, time, hidden]), h0, c0
    order = range(time)[::-1] if backwards else range(time)
    for t in order:
        h, c = lstm_step(x[:, t], h, c, w, b)
        expected[:, t] = h
    assert out.shape == [1, 25, 256]
    np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(last, h, rtol=1e-10, atol=1e-12)
