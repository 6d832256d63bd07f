"""Wrong calls of `tensor_iterator`: errors say what is wrong and where; the process lives on."""

import json
import select
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
from patience import HANGS, runs_out_of_memory

import tf_ti
from tf_ti import BackEdge, InputPort, OutputPort, PortMap

InvalidArgument = tf.errors.InvalidArgumentError
ERRORS = (ValueError, TypeError, InvalidArgument)


@pytest.fixture(autouse=True)
def the_next_correct_call_is_right():
    yield
    (out,) = tf_ti.tensor_iterator(
        lambda piece: piece * 2,
        [np.arange(3)],
        PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)]),
    )
    assert out.numpy().tolist() == [0, 2, 4]


def in_mode(mode, call, *inputs):
    """Calls eagerly, in a graph with static shapes, or in one that knows no dimension."""
    if mode == "eager":
        return call(*inputs)
    inputs = [tf.convert_to_tensor(x) for x in inputs]
    if mode == "static":
        return tf.function(call)(*inputs)
    signature = [
        tf.TensorSpec(None if mode == "unknown" else [None] * x.ndim, x.dtype) for x in inputs
    ]
    return tf.function(call, input_signature=signature)(*inputs)


MODES = pytest.mark.parametrize("mode", ["eager", "static", "dimensions", "unknown"])


# Ranges


@MODES
@pytest.mark.parametrize(
    ("extent", "fields", "words"),
    [
        (5, {"start": 5}, ["start=5", "5 elements"]),
        (5, {"start": -6}, ["start=-6", "5 elements"]),
        (5, {"end": 5}, ["end=5", "5 elements"]),
        (5, {"end": -6}, ["end=-6", "5 elements"]),
        (5, {"start": 3, "end": 1}, ["start=3", "end=1", "stride=1"]),
        (5, {"stride": -1}, ["start=0", "end=-1", "stride=-1"]),
        (5, {"start": -1, "end": 0}, ["start=-1", "end=0", "stride=1"]),
        (5, {"stride": 2}, ["5 elements", "stride=2"]),
        (5, {"start": -1, "end": 0, "stride": -2}, ["5 elements", "stride=-2"]),
        (5, {"start": 1, "stride": 3}, ["4 elements", "stride=3"]),
        (5, {"part_size": 6}, ["part_size=6", "5 elements"]),
        (5, {"start": 3, "part_size": 4}, ["start=3", "part_size=4"]),
        (0, {"start": 1}, ["start=1", "0 elements"]),
        (0, {"start": 0, "end": 0}, ["0 elements"]),
        (0, {"stride": -1}, ["0 elements"]),
        (5, {"start": 2**63 - 1}, [f"start={2**63 - 1}"]),
        (5, {"start": -(2**63) + 1}, [f"start={-(2**63) + 1}"]),
        (5, {"end": 2**63 - 1}, [f"end={2**63 - 1}"]),
        (5, {"end": -(2**63) + 1}, [f"end={-(2**63) + 1}"]),
        (5, {"stride": 2**63 - 1}, [f"stride={2**63 - 1}"]),
        (5, {"start": -1, "end": 0, "stride": -(2**63) + 1}, [f"stride={-(2**63) + 1}"]),
        (5, {"part_size": 2**63 - 1}, [f"part_size={2**63 - 1}"]),
        (5, {"part_size": 2**62, "stride": 2**62}, [f"part_size={2**62}"]),
    ],
)  # fmt: skip
def test_a_range_that_does_not_fit_is_named_with_its_port_and_values(mode, extent, fields, words):
    def call(first, second):
        return tf_ti.tensor_iterator(
            lambda a, b: b,
            [first, second],
            PortMap(
                [InputPort(0, 0), InputPort(1, 1, axis=1, **fields)], [OutputPort(0, 0, axis=0)]
            ),
        )

    with pytest.raises(ERRORS) as error:
        in_mode(mode, call, np.zeros(3, np.float32), np.zeros([2, extent], np.float32))
    message = str(error.value)
    assert "input port 1" in message
    for word in words:
        assert word in message


@MODES
@pytest.mark.parametrize("axis", [2, -3, 7, 2**62, -(2**63) + 1])
def test_an_axis_out_of_range_is_named_with_its_port(mode, axis):
    def call(x):
        return tf_ti.tensor_iterator(
            lambda piece: piece,
            [x],
            PortMap([InputPort(0, 0, axis=axis)], [OutputPort(0, 0, axis=0)]),
        )

    with pytest.raises(ERRORS, match=f"input port 0.*axis {axis}.*rank 2"):
        in_mode(mode, call, np.zeros([2, 3], np.float32))


@MODES
def test_a_scalar_cannot_be_sliced(mode):
    def call(x):
        return tf_ti.tensor_iterator(
            lambda piece: piece,
            [x],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)]),
        )

    with pytest.raises(ERRORS, match="input port 0.*axis 0.*rank 0"):
        in_mode(mode, call, np.float32(1))


@pytest.mark.parametrize("axis", [2, -3, 2**62, -(2**63) + 1])
@pytest.mark.parametrize("known", ["known", "unknown"])
def test_an_output_axis_out_of_range_is_named_with_its_port(axis, known):
    signature = [tf.TensorSpec([1, 3] if known == "known" else None, tf.float32)]
    body = tf.function(lambda piece: piece, input_signature=signature)
    with pytest.raises(ERRORS, match=f"output port 0.*axis {axis}"):
        tf_ti.tensor_iterator(
            body,
            [tf.zeros([2, 3])],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=axis)]),
        )


# Counts


@MODES
def test_differing_counts_name_both_ports_and_both_counts(mode):
    def call(a, b):
        return tf_ti.tensor_iterator(
            lambda a, b: a,
            [a, b],
            PortMap(
                [InputPort(0, 0, axis=0), InputPort(1, 1, axis=0, stride=2)],
                [OutputPort(0, 0, axis=0)],
            ),
        )

    with pytest.raises(ERRORS) as error:
        in_mode(mode, call, np.zeros(5, np.float32), np.zeros(6, np.float32))
    for word in ["input port 0", "5 iterations", "input port 1", "3"]:
        assert word in str(error.value)


@MODES
@pytest.mark.parametrize("given", [4, 0])
def test_num_iterations_must_be_what_the_inputs_give(mode, given):
    def call(x):
        return tf_ti.tensor_iterator(
            lambda piece: piece,
            [x],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)]),
            num_iterations=given,
        )

    with pytest.raises(ERRORS) as error:
        in_mode(mode, call, np.zeros(5, np.float32))
    for word in ["input port 0", "5", "num_iterations", str(given)]:
        assert word in str(error.value)


def state_loop(body=lambda s: s + 1, initial=0.0, outputs=None, **arguments):
    outputs = outputs or [OutputPort(0, 0)]
    port_map = PortMap([InputPort(0, 0)], outputs)
    return tf_ti.tensor_iterator(body, [initial], port_map, [BackEdge(0, 0)], **arguments)


def test_a_loop_without_a_count_is_refused():
    with pytest.raises(ValueError, match="number of iterations is unknown"):
        state_loop()


@pytest.mark.parametrize(
    "count",
    [-1, -(2**62), 2**63, 1.5, True, "3", [3], np.float32(2), tf.constant(2.0), tf.constant([2])],
)
def test_num_iterations_must_be_a_scalar_integer_that_is_not_negative(count):
    with pytest.raises((ValueError, TypeError), match="num_iterations"):
        state_loop(num_iterations=count)


@pytest.mark.parametrize("count", [-1, -(2**63)])
def test_a_negative_num_iterations_tensor_is_refused_with_its_value(count):
    with pytest.raises(ERRORS, match=f"num_iterations.*{count}"):
        state_loop(num_iterations=tf.constant(count, tf.int64))
    with pytest.raises(ERRORS, match=f"num_iterations.*{count}"):
        tf.function(lambda n: state_loop(num_iterations=n))(tf.constant(count, tf.int64))


def test_a_vector_of_unknown_rank_is_no_num_iterations():
    call = tf.function(
        lambda n: state_loop(num_iterations=n), input_signature=[tf.TensorSpec(None, tf.int32)]
    )
    with pytest.raises(InvalidArgument, match="num_iterations"):
        call(tf.constant([1, 2]))


@pytest.mark.needs_cpu_kernels  # on a GPU the iteration alone is named
def test_an_error_in_an_iteration_names_the_operation_and_the_iteration():
    def body(extent, x):
        return tf.reshape(x, extent, name="fitted")[:1]

    with pytest.raises(InvalidArgument, match=r"(?s)at fitted\]\].*in iteration 2 of "):
        tf_ti.tensor_iterator(
            body,
            [[2, 2, 3], [1.0, 2.0]],
            PortMap([InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0, axis=0)]),
            fuse=False,
        )


@pytest.mark.parametrize("every", [0, -1, True, 1.0, "2", 2**63, np.array([2, 3])])
def test_checkpoint_every_must_be_a_positive_integer(every):
    with pytest.raises((ValueError, TypeError), match="checkpoint_every must be "):
        state_loop(num_iterations=2, checkpoint_every=every)


@pytest.mark.parametrize(
    "fields",
    [{"start": 1}, {"end": 3}, {"start": -2, "end": 0, "stride": -1}, {"start": 0, "end": 4}],
)
def test_an_output_range_that_is_not_whole_is_refused_where_inputs_give_the_count(fields):
    with pytest.raises(ValueError, match="output port 0.*whole"):
        tf_ti.tensor_iterator(
            lambda piece: piece,
            [tf.zeros(5)],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0, **fields)]),
        )


def test_an_output_range_against_its_stride_is_refused():
    with pytest.raises(ValueError, match="output port 0.*whole"):
        tf_ti.tensor_iterator(
            lambda piece: piece,
            [tf.zeros(5)],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0, start=-1, end=0)]),
        )


@pytest.mark.parametrize("fields", [{"start": 1, "end": -2}, {"start": 0, "end": 5, "stride": 2}])
def test_an_output_range_that_tells_no_count_is_refused(fields):
    with pytest.raises(ERRORS, match="output port 0|number of iterations"):
        state_loop(
            lambda s: s + 1,
            tf.zeros(abs(fields.get("stride", 1))),
            [OutputPort(0, 0, axis=0, **fields)],
        )


# Zero iterations


@MODES
def test_without_iterations_an_output_that_no_back_edge_feeds_is_an_error_that_says_so(mode):
    def call(x):
        return tf_ti.tensor_iterator(
            lambda piece: piece,
            [x],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0)]),
        )

    with pytest.raises(ERRORS, match="output port 0.*no iterations"):
        in_mode(mode, call, np.zeros([0, 2], np.float32))


# Port maps


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ([(0, 0), (0, 1)], [(0, 0)], "external input port 0 is used by 2"),
        ([(0, 0), (1, 0)], [(0, 0)], "body parameter 0 is used by 2"),
        ([(0, 0)], [(0, 0), (0, 1)], "external output port 0 is used by 2"),
        ([(1, 0)], [(0, 0)], "external input port 0 is missing"),
        ([(0, 1)], [(0, 0)], "body parameter 0 is missing"),
        ([(0, 0)], [(1, 0)], "external output port 0 is missing"),
        ([(-1, 0)], [(0, 0)], "external_port_id must not be negative"),
        ([(0, -1)], [(0, 0)], "internal_layer_id must not be negative"),
        ([(0, 0)], [(0, -1)], "internal_layer_id must not be negative"),
    ],
)
def test_a_port_map_that_does_not_fit_together_is_refused(inputs, outputs, words):
    with pytest.raises(ValueError, match=words):
        PortMap([InputPort(*ids) for ids in inputs], [OutputPort(*ids) for ids in outputs])


@pytest.mark.parametrize("port", [InputPort, OutputPort])
@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"axis": 0, "stride": 0}, ValueError, "stride must not be 0"),
        ({"axis": 0, "part_size": 0}, ValueError, "part_size must be at least 1"),
        ({"axis": 0, "part_size": -3}, ValueError, "part_size must be at least 1"),
        ({"axis": 0, "start": 2**63}, ValueError, "start does not fit"),
        ({"axis": 0, "stride": -(2**64)}, ValueError, "stride does not fit"),
        ({"start": 1}, ValueError, "need an axis"),
        ({"part_size": 1}, ValueError, "need an axis"),
        ({"axis": 1.0}, TypeError, "axis must be an int"),
        ({"axis": True}, TypeError, "axis must be an int"),
        ({"axis": 0, "end": None}, TypeError, "end must be an int"),
        ({"axis": 0, "stride": "1"}, TypeError, "stride must be an int"),
    ],
)
def test_a_port_with_a_nonsensical_field_is_refused(port, fields, error, words):
    with pytest.raises(error, match=words):
        port(0, 0, **fields)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [([OutputPort(0, 0)], []), ([], [InputPort(0, 0)]), ([(0, 0)], []), (["x"], [])],
)
def test_a_port_map_holds_ports_of_its_kind(inputs, outputs):
    with pytest.raises(TypeError, match="must hold"):
        PortMap(inputs, outputs)


@pytest.mark.parametrize("port_map", [None, {}, ([InputPort(0, 0)], [OutputPort(0, 0)])])
def test_port_map_must_be_a_port_map(port_map):
    with pytest.raises(TypeError, match="port_map"):
        tf_ti.tensor_iterator(lambda s: s, [1], port_map, num_iterations=1)


SAME = PortMap([InputPort(0, 0)], [OutputPort(0, 0)])


@pytest.mark.parametrize("inputs", [[], [1, 2]])
def test_the_number_of_inputs_must_be_that_of_the_port_map(inputs):
    with pytest.raises(ValueError, match=f"1 external input port.*{len(inputs)} inputs"):
        tf_ti.tensor_iterator(lambda s: s, inputs, SAME, num_iterations=1)


@pytest.mark.parametrize("inputs", [np.zeros(1), tf.zeros(1), 5, None, {0: 1}])
def test_inputs_must_be_a_list(inputs):
    with pytest.raises(TypeError, match="inputs must be a list"):
        tf_ti.tensor_iterator(lambda s: s, inputs, SAME, num_iterations=1)


@pytest.mark.parametrize(
    "value",
    [None, object(), [[1], [2, 3]]],
    ids=["None", "object", "ragged list"],
)
def test_an_input_that_is_no_tensor_is_refused(value):
    with pytest.raises((TypeError, ValueError)):
        tf_ti.tensor_iterator(lambda s: s, [value], SAME, num_iterations=1)


def test_a_result_that_the_body_does_not_have_is_named():
    with pytest.raises(ValueError, match="output port 0.*1 results?.*result 1"):
        tf_ti.tensor_iterator(
            lambda s: s, [1], PortMap([InputPort(0, 0)], [OutputPort(0, 1)]), num_iterations=1
        )


# Back edges


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        ([(5, 0)], "no result 5"),
        ([(0, 5)], "parameter 5"),
        ([(-1, 0)], "negative"),
        ([(0, -1)], "negative"),
        ([(0, 0), (1, 0)], "2 back edges lead to parameter 0"),
        ([(0, 2)], "sliced"),
    ],
)
def test_a_back_edge_that_leads_nowhere_is_refused(edges, words):
    with pytest.raises(ValueError, match=words):
        tf_ti.tensor_iterator(
            lambda a, b, x: (a, b),
            [1.0, 2.0, tf.zeros(3)],
            PortMap(
                [InputPort(0, 0), InputPort(1, 1), InputPort(2, 2, axis=0)], [OutputPort(0, 0)]
            ),
            [BackEdge(*edge) for edge in edges],
        )


@pytest.mark.parametrize("edge", [(0, 0), "x", None])
def test_back_edges_are_back_edges(edge):
    with pytest.raises(TypeError, match="[Bb]ack_?[Ee]dge"):
        tf_ti.tensor_iterator(lambda s: s, [1], SAME, [edge], num_iterations=1)


def test_a_back_edge_of_another_dtype_is_refused_when_built():
    with pytest.raises(TypeError, match="(?s)parameter 0.*float32.*result 0.*int32"):
        state_loop(lambda s: tf.cast(s, tf.int32), 0.0, num_iterations=1)


def test_a_back_edge_of_another_static_shape_is_refused_when_built():
    with pytest.raises(ValueError, match=r"parameter 0.*\(2,\).*result 0.*\(4,\)"):
        state_loop(lambda s: tf.concat([s, s], 0), tf.zeros(2), num_iterations=1)


def test_a_state_that_changes_its_shape_where_the_body_was_built_for_one_is_refused():
    def body(s):
        n = tf.cast(tf.reduce_sum(s), tf.int32) + 3
        return tf.fill([n], 0.0)  # static shape [None]

    with pytest.raises(InvalidArgument, match=r"input port 0.*\[2\].*\[3\]") as error:
        state_loop(body, tf.zeros(2), num_iterations=3)
    assert "iteration 0" in str(error.value)


# Bodies


@pytest.mark.parametrize("body", [None, 3, "body", tf.constant(1)], ids=str)
def test_a_body_must_be_callable(body):
    with pytest.raises(TypeError, match="body must be callable"):
        tf_ti.tensor_iterator(body, [1], SAME, num_iterations=1)


@pytest.mark.parametrize("body", [lambda: 1, lambda a, b: a, lambda a, *, b: a])
def test_a_body_that_takes_another_number_of_parameters_is_refused(body):
    with pytest.raises(ValueError, match="1 body parameter"):
        tf_ti.tensor_iterator(body, [1], SAME, num_iterations=1)


def concrete(*specs):
    return tf.function(lambda *parameters: parameters[0]).get_concrete_function(*specs)


def test_a_concrete_function_of_another_dtype_is_refused():
    with pytest.raises(TypeError, match="parameter 0.*int32.*float32"):
        tf_ti.tensor_iterator(concrete(tf.TensorSpec([], tf.int32)), [1.0], SAME, num_iterations=1)


def test_a_concrete_function_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="parameter 0"):
        tf_ti.tensor_iterator(
            concrete(tf.TensorSpec([3], tf.float32)), [tf.zeros(2)], SAME, num_iterations=1
        )


def test_a_concrete_function_of_another_number_of_parameters_is_refused():
    spec = tf.TensorSpec([], tf.float32)
    with pytest.raises(ValueError, match="2 parameters"):
        tf_ti.tensor_iterator(concrete(spec, spec), [1.0], SAME, num_iterations=1)


@pytest.mark.parametrize(
    "result",
    [object, lambda: None],
    ids=["object", "None"],
)
def test_a_result_that_is_no_tensor_is_refused(result):
    with pytest.raises((TypeError, ValueError)):
        tf_ti.tensor_iterator(lambda s: result(), [1], SAME, num_iterations=1)


def test_a_python_exception_in_the_body_is_the_users_own():
    class OwnError(Exception):
        pass

    def body(s):
        raise OwnError("not today")

    with pytest.raises(OwnError, match="not today"):
        tf_ti.tensor_iterator(body, [1], SAME, num_iterations=1)


def raising_loop(x):
    def body(piece):
        tf.debugging.assert_less(piece, 3, message="too big for me")
        return piece

    return tf_ti.tensor_iterator(
        body, [x], PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)])
    )


@MODES
def test_a_body_that_raises_tells_its_message_and_the_iteration(mode):
    with pytest.raises(InvalidArgument, match="(?s)too big for me.*iteration 2"):
        in_mode(mode, raising_loop, np.array([0, 1, 3, 7, 0], np.int32))


def test_an_asynchronous_body_that_raises_tells_its_message_and_the_iteration():
    queue = tf.queue.FIFOQueue(10, tf.int32, [[]])
    queue.enqueue_many([[5, 6, 7]])
    queue.close()
    with pytest.raises(tf.errors.OutOfRangeError, match="(?s)Queue.*iteration 3"):
        tf_ti.tensor_iterator(
            lambda k: k + queue.dequeue(),
            [np.arange(5, dtype=np.int32)],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)]),
        )


def test_the_inner_iteration_and_the_outer_one_are_both_told():
    def outer(row):
        (out,) = raising_loop(row[0])
        return out[tf.newaxis]

    with pytest.raises(InvalidArgument, match="(?s)too big for me.*iteration 1.*iteration 2"):
        tf_ti.tensor_iterator(
            outer,
            [np.array([[0, 0], [1, 0], [0, 9]], np.int32)],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)]),
        )


def test_an_exception_of_a_numpy_function_reaches_the_user():
    def fail(x):
        raise KeyError("no such key")

    with pytest.raises(tf.errors.OpError, match="(?s)no such key.*iteration 0"):
        tf_ti.tensor_iterator(
            lambda piece: tf.numpy_function(fail, [piece], tf.float32),
            [tf.zeros(2)],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0)]),
        )


# Results that do not concatenate


def shapes_loop(shapes, **fields):
    """A loop whose result has the given shapes, one an iteration; the body knows none of them."""

    def body(k):
        return tf.switch_case(k[0], [lambda s=s: tf.zeros(s) for s in shapes])

    return tf_ti.tensor_iterator(
        body,
        [np.arange(len(shapes), dtype=np.int32)],
        PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, **fields)]),
    )


@pytest.mark.parametrize(
    "shapes",
    [
        [[2, 3], [2, 4]],
        [[2, 3], [2]],
        [[2], [2, 3]],
        [[2, 3], []],
        [[], [1]],
        [[2, 3], [1, 3], [2, 2]],
        [[2, 3], [1, 3], [2]],
        [[2, 3], [1, 3], []],
    ],
    ids=str,
)
def test_results_that_do_not_concatenate_are_refused_with_their_port(shapes):
    with pytest.raises(InvalidArgument, match="output port 0"):
        shapes_loop(shapes, axis=0)


def test_a_result_of_another_extent_than_part_size_is_refused():
    with pytest.raises(InvalidArgument, match="output port 0.*part_size is 2"):
        shapes_loop([[3, 2], [3, 1]], axis=1, part_size=2)


def test_a_static_result_of_another_extent_than_part_size_is_refused_when_built():
    with pytest.raises(ValueError, match="output port 0.*part_size is 2"):
        tf_ti.tensor_iterator(
            lambda piece: piece,
            [tf.zeros(3)],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0, part_size=2)]),
        )


def test_an_empty_concatenation_of_unknown_rank_is_an_error():
    body = tf.function(lambda s: s + 1, input_signature=[tf.TensorSpec(None, tf.float32)])
    with pytest.raises(ERRORS, match="output port 0.*rank"):
        state_loop(body, tf.zeros(2), [OutputPort(0, 0, axis=0)], num_iterations=0)


def test_an_empty_concatenation_of_what_the_body_passes_on_has_its_shape():
    body = tf.function(lambda s: s, input_signature=[tf.TensorSpec(None, tf.float32)])
    outputs = state_loop(body, tf.zeros([2, 3]), [OutputPort(0, 0, axis=1)], num_iterations=0)
    assert outputs[0].shape == [2, 0]


# Calls that could end the process, each in a process that may die


RAW = """
from tf_ti._library import ops
f32 = tf.float32

def function(f, *specs):
    return tf.function(f).get_concrete_function(*specs)

BODIES = {
    "body": function(lambda x, s: (s + tf.reduce_sum(x), x * s),
                     tf.TensorSpec([1, 2]), tf.TensorSpec([])),
    "unknown": function(lambda x, s: (s, x), tf.TensorSpec(None), tf.TensorSpec(None)),
    "one": function(lambda x: x, tf.TensorSpec([1, 2])),
    "three": function(lambda x, s, t: (s, x, t), tf.TensorSpec([1, 2]), tf.TensorSpec([]),
                      tf.TensorSpec([])),
    "ints": function(lambda x, s: (s, x), tf.TensorSpec([1, 2], tf.int32),
                     tf.TensorSpec([], tf.int32)),
    "strings": function(lambda x, s: (tf.as_string(s), tf.as_string(x)), tf.TensorSpec([1, 2]),
                        tf.TensorSpec([])),
    "variants": function(lambda x, s: (s, x), tf.TensorSpec([], tf.variant), tf.TensorSpec([])),
    "given": function(lambda x, s, t: (s + t, x), tf.TensorSpec([1, 2]), tf.TensorSpec([]),
                      tf.TensorSpec([])),
}
CONDITIONS = {
    "below": function(lambda s: s < 20.0, tf.TensorSpec([])),
    "both": function(lambda x, s: s + x[0, 0] < 20.0, tf.TensorSpec([1, 2]), tf.TensorSpec([])),
    "gives": function(lambda s: (s < 20.0, s * 2.0), tf.TensorSpec([])),
    "vector": function(lambda s: s < [20.0, 30.0], tf.TensorSpec([])),
    "floats": function(lambda s: s, tf.TensorSpec([])),
    "nothing": function(lambda s: (), tf.TensorSpec([])),
    "integers": function(lambda s: s < 20, tf.TensorSpec([], tf.int32)),
}

def loop(stateful=False, **changed):
    attributes = dict(
        input=[tf.ones([3, 2]), tf.constant(1.0)], num_iterations=[], length=[], Tout=[f32, f32],
        body=BODIES["body"].name, input_mode=["slice", "value"], input_axis=[0, 0],
        input_start=[0, 0], input_end=[-1, -1], input_stride=[1, 1], input_part_size=[1, 1],
        input_label=["first", "second"], parameter_shapes=[[1, 2], []], back_edge_from=[0],
        back_edge_to=[1], output_mode=["last", "concat"], output_source=[0, 1],
        output_axis=[0, 0], output_stride=[1, 1], output_part_size=[0, 0], output_length=[-1, -1],
        output_label=["third", "fourth"], result_types=[f32, f32], result_shapes=[[], [1, 2]],
        reverse=False)
    if changed.get("body") in BODIES:
        changed["body"] = BODIES[changed["body"]].name
    changed["condition"] = [
        CONDITIONS[name].name if name in CONDITIONS else name
        for name in changed.get("condition", [])
    ]
    attributes.update(changed)
    op = ops.tf_ti_tensor_iterator if stateful else ops.tf_ti_stateless_tensor_iterator
    return op(**attributes)

def ones(*shape):
    return np.ones(shape, np.float32)

def while_loop(**changed):
    return loop(**(dict(
        condition=["below"], condition_inputs=[1], input_mode=["iterator", "value"],
        parameter_shapes=[None, []], result_shapes=[[], None], output_mode=["last", "stack"],
        body="unknown", input=[tf.ones([9, 2]), tf.constant(3.0)],
        num_iterations=[tf.constant(5, tf.int64)]) | changed))

def sequence(*values):
    values = values or [ones(1, 2)] * 3
    f = function(lambda k: tf.switch_case(k, [lambda v=v: tf.constant(v) for v in values]),
                 tf.TensorSpec([], tf.int32))
    return ops.tf_ti_stateless_tensor_iterator(
        input=[tf.range(len(values))], num_iterations=[], length=[], Tout=[tf.variant], body=f.name,
        input_mode=["index"], input_axis=[0], input_start=[0], input_end=[-1], input_stride=[1],
        input_part_size=[1], input_label=["k"], parameter_shapes=[[]], back_edge_from=[],
        back_edge_to=[], output_mode=["sequence"], output_source=[0], output_axis=[0],
        output_stride=[1], output_part_size=[0], output_length=[-1], output_label=["s"],
        result_types=[tf.constant(values[0]).dtype], result_shapes=[tf.TensorShape(None)],
        reverse=False)[0]

def reserve(dtype=f32):
    return tf.raw_ops.TensorListReserve(element_shape=[1, 2], num_elements=3, element_dtype=dtype)

def from_sequence(s, **changed):
    changed = dict(input_mode=["sequence", "value"], input_part_size=[0, 1]) | changed
    return loop(input=[s, tf.constant(1.0)], **changed)

def in_graph(call):
    return tf.function(call, autograph=False)()
"""


VICTIM = f"""
import json, os, sys
replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what else is printed is no reply
import numpy as np
import tensorflow as tf
import tf_ti
from tf_ti import BackEdge, InputPort, OutputPort, PortMap
{RAW}
for line in sys.stdin:
    scope = dict(globals())
    try:
        exec(json.loads(line), scope)
        reply = ["ok", str(scope.get("answer"))]
    except BaseException as error:
        reply = [type(error).__name__, str(error)]
    print(json.dumps(reply), file=replies, flush=True)
"""


class Victim:
    """A process that runs programs, one after the other, and may die of one."""

    def __init__(self, folder):
        self._log = folder / "victim.log"
        self._start()

    def _start(self):
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-c", VICTIM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def run(self, program, timeout=HANGS):
        """The program's `answer`, or its exception, as (name of the type, text)."""
        self._process.stdin.write(json.dumps(textwrap.dedent(program)) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        reply = self._process.stdout.readline() if ready else ""
        if reply:
            return tuple(json.loads(reply))
        self._process.kill()
        self._process.wait()
        log = self._log.read_text()[-3000:]
        self._start()
        pytest.fail(f"the process {'died' if ready else 'hangs'}:\n{program}\n{log}")

    def close(self):
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    victim = Victim(tmp_path_factory.mktemp("victim"))
    yield victim
    victim.close()


STACKED, SUMS, STRINGS = (f"OutputPort(0, {result}, axis=0)" for result in range(3))


@pytest.mark.parametrize(
    ("kind", "count", "output"),
    [
        # So little that TensorFlow's allocator waits ten seconds for someone to free it.
        ("int", 2**45, STACKED),
        *(
            (kind, count, output)
            for kind in ("int", "tensor")
            for count, output in [
                (2**52, STACKED),
                (2**60, STACKED),
                (2**62, STACKED),
                (2**63 - 1, STACKED),
                (2**62, SUMS),
                (2**63 - 1, SUMS),
                (2**62, STRINGS),
            ]
        ),
    ],
)
def test_more_iterations_than_memory_are_an_error(victim, kind, count, output):
    n = count if kind == "int" else f"tf.constant({count}, tf.int64)"
    error, message = victim.run(f"""
        tf_ti.tensor_iterator(
            lambda s: (s + 1, tf.reduce_sum(s), tf.as_string(s)), [tf.zeros(1024)],
            PortMap([InputPort(0, 0)], [{output}]), [BackEdge(0, 0)], num_iterations={n})
    """)
    assert error in ("ResourceExhaustedError", "InvalidArgumentError"), message


@runs_out_of_memory
@pytest.mark.parametrize("count", [2**45, 2**60])
def test_a_gradient_through_more_iterations_than_memory_is_an_error(victim, count):
    error, message = victim.run(f"""
        @tf.function
        def call(x, n):
            with tf.GradientTape() as tape:
                tape.watch(x)
                (y,) = tf_ti.tensor_iterator(
                    lambda s: s * s, [x], PortMap([InputPort(0, 0)], [OutputPort(0, 0)]),
                    [BackEdge(0, 0)], num_iterations=n)
            return tape.gradient(y, x)
        call(tf.constant(2.0), tf.constant(3, tf.int64))
        call(tf.constant(2.0), tf.constant({count}, tf.int64))
    """)
    assert error in ("ResourceExhaustedError", "InvalidArgumentError"), message


@pytest.mark.parametrize(
    ("shapes", "fields"),
    [
        ([[2, 2], [2]], {"axis": 1, "part_size": 2}),
        ([[2, 2], [2, 1], [2]], {"axis": 1}),
        ([[2, 2], []], {"axis": 1, "part_size": 2}),
        ([[], [2, 2]], {"axis": 0, "part_size": 1}),
        ([[2], [2, 2, 2]], {"axis": -1, "part_size": 2}),
    ],
    ids=str,
)
def test_results_of_differing_ranks_are_an_error(victim, shapes, fields):
    error, message = victim.run(f"""
        shapes = {shapes}
        tf_ti.tensor_iterator(
            lambda k: tf.switch_case(k[0], [lambda s=s: tf.zeros(s) for s in shapes]),
            [np.arange(len(shapes), dtype=np.int32)],
            PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, **{fields})]))
    """)
    assert error == "InvalidArgumentError"
    assert "output port 0" in message


@pytest.mark.parametrize(
    "shape", [[0, 3], [3, 0], [0, 0], [0, 1, 3], [1, 0, 3], [2, 0, 0], [1, 3, 0]]
)
@pytest.mark.parametrize("dtype", ["float32", "string"])
def test_empty_tensors_are_iterated_along_any_axis(victim, shape, dtype):
    for axis in range(-len(shape), len(shape)):
        for ends in ({}, {"start": -1, "end": 0, "stride": -1}):
            outcome = victim.run(f"""
                ports = [InputPort(0, 0, axis={axis}, **{ends})], [OutputPort(0, 0, axis={axis})]
                x = tf.zeros({shape}, tf.{dtype})
                (y,) = tf_ti.tensor_iterator(lambda piece: piece, [x], PortMap(*ports))
                answer = y.shape.as_list()
            """)
            assert outcome == ("ok", str(shape))


# The raw ops, called directly with attributes that make no sense


@pytest.fixture(scope="module")
def raw(victim):
    """Runs a program in which `loop` calls the raw op; checks that a correct call works then."""
    correct = """
        last, steps = loop()
        assert last.numpy() == 7 and steps.numpy().tolist() == [[1, 1], [3, 3], [5, 5]]
        assert [len(loop(reverse=True)), len(from_sequence(sequence()))] == [2, 2]
    """

    def run(program):
        outcome = victim.run(program)
        assert victim.run(correct) == ("ok", "None")
        return outcome

    return run


def test_the_raw_op_called_correctly_works(raw):
    assert raw("answer = loop()[0].numpy()") == ("ok", "7.0")
    assert raw("answer = while_loop()[1].shape") == ("ok", "(5, 2)")
    assert raw("answer = while_loop(condition=['gives'], body='given')[0].numpy()") == (
        "ok",
        "27.0",
    )


LISTS = {
    "input_mode": '"slice"', "input_axis": "0", "input_start": "0", "input_end": "-1",
    "input_stride": "1", "input_part_size": "1", "input_label": '"x"', "parameter_shapes": "[]",
    "back_edge_from": "0", "back_edge_to": "1", "output_mode": '"last"', "output_source": "0",
    "output_axis": "0", "output_stride": "1", "output_part_size": "0", "output_length": "-1",
    "output_label": '"x"',
    "result_shapes": "[]", "Tout": "f32", "input": "tf.constant(1.0)",
}  # fmt: skip


@pytest.mark.parametrize("where", ["eager", "graph"])
@pytest.mark.parametrize("length", [0, 1, 3])
@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_another_length_is_an_error(raw, name, length, where):
    if name.startswith("back_edge") and length == 1:
        return  # its own length
    call = f"loop(True, {name}=[{LISTS[name]}] * {length})"
    call = call if where == "eager" else f"in_graph(lambda: {call})"
    error, message = raw(call)
    assert error in ("InvalidArgumentError", "ValueError"), f"{error}: {message}"


@pytest.mark.parametrize("where", ["eager", "graph"])
@pytest.mark.parametrize(
    "changed",
    [
        "input_axis=[2, 0]",
        "input_axis=[-3, 0]",
        f"input_axis=[{2**63 - 1}, 0]",
        f"input_axis=[{-(2**63)}, 0]",
        "input_start=[3, 0]",
        f"input_start=[{2**63 - 1}, 0]",
        f"input_start=[{-(2**63)}, 0]",
        "input_end=[3, 0]",
        f"input_end=[{2**63 - 1}, 0]",
        f"input_end=[{-(2**63)}, 0]",
        "input_stride=[0, 1]",
        f"input_stride=[{-(2**63)}, 1]",
        f"input_stride=[{2**63 - 1}, 1], input_part_size=[{2**63 - 1}, 1]",
        "input_part_size=[0, 1]",
        "input_part_size=[-1, 1]",
        f"input_part_size=[{-(2**63)}, 1]",
        f"input_part_size=[{2**63 - 1}, 1]",
        "input_mode=['index', 'value'], input_part_size=[2, 1]",
        "input_mode=['index', 'value']",
        "input_mode=['segment', 'value'], input_part_size=[2, 1], input_stride=[2, 1]",
        "input_mode=['slice', 'slice']",
        "input_mode=['slice', 'nonsense']",
        "input_mode=['sequence', 'value']",
        "input_mode=['value', 'value']",
        "parameter_shapes=[[5, 5], []]",
        "parameter_shapes=[[1, 2], [4]]",
        "back_edge_from=[2]",
        "back_edge_from=[-1]",
        f"back_edge_from=[{2**63 - 1}]",
        "back_edge_to=[2]",
        "back_edge_to=[-1]",
        f"back_edge_to=[{-(2**63)}]",
        "back_edge_to=[0]",
        "back_edge_from=[1]",
        "back_edge_from=[0, 0], back_edge_to=[1, 1]",
        "output_mode=['last', 'nonsense']",
        "output_mode=['last', 'sequence']",
        "output_source=[0, 2]",
        "output_source=[0, -1]",
        "output_source=[0, -2]",
        f"output_source=[0, {2**63 - 1}]",
        f"output_source=[0, {-(2**63)}]",
        "output_source=[0, -9], output_mode=['last', 'sequence'], Tout=[f32, tf.variant]",
        "output_axis=[0, 2]",
        "output_axis=[0, -3]",
        f"output_axis=[0, {2**63 - 1}]",
        f"output_axis=[0, {-(2**63)}]",
        f"output_axis=[0, {2**32}]",
        "output_mode=['last', 'stack'], output_axis=[0, 3]",
        "output_stride=[0, 1]",
        "output_stride=[1, 0]",
        "output_stride=[1, -1], output_mode=['last', 'sequence'], Tout=[f32, tf.variant]",
        "output_part_size=[0, 2]",
        "Tout=[tf.int32, f32]",
        "Tout=[tf.string, f32]",
        "Tout=[f32, tf.variant]",
        "num_iterations=[tf.constant(3, tf.int64)] * 2",
        "num_iterations=[tf.constant([3], tf.int64)]",
        "num_iterations=[tf.constant(-1, tf.int64)]",
        "num_iterations=[tf.constant(2, tf.int64)]",
        "output_length=[0, -1]",
        "output_length=[-1, 0], length=[tf.constant(9, tf.int64)]",
        "output_length=[-2, -1]",
        f"output_length=[{2**63 - 1}, -1]",
        "output_mode=['last', 'stack'], output_length=[-1, 0], length=[tf.constant(2, tf.int64)]",
        "output_mode=['last', 'stack'], output_length=[-1, 0], length=[tf.constant(-1, tf.int64)]",
        "output_mode=['last', 'stack'], output_length=[-1, 0], length=[tf.constant([9], tf.int64)]",
        "output_mode=['last', 'stack'], output_length=[-1, 1], length=[tf.constant(9, tf.int64)]",
        f"output_mode=['last', 'stack'], output_length=[-1, 0],"
        f"length=[tf.constant({2**63 - 1}, tf.int64)]",
        "output_mode=['last', 'count']",
        "input_mode=['iterator', 'value']",
        "input_mode=['iterator', 'value'], input_part_size=[2, 1]",
        "while_loop(output_mode=['last', 'concat'])",
        "while_loop(reverse=True)",
        "while_loop(back_edge_from=[], back_edge_to=[])",
        "while_loop(condition=['below', 'below'])",
        "while_loop(condition=['no_such_function'])",
        "while_loop(condition=['both'])",
        "while_loop(condition=['both'], condition_inputs=[0, 1])",
        "while_loop(condition=['gives'])",
        "while_loop(condition=['vector'])",
        "while_loop(condition=['floats'])",
        "while_loop(condition=['nothing'])",
        "while_loop(condition=['integers'])",
        "while_loop(condition_inputs=[])",
        "while_loop(condition_inputs=[2])",
        "while_loop(condition_inputs=[-1])",
        "while_loop(condition_inputs=[1, 1])",
        "while_loop(body='given')",
        "while_loop(input=[tf.ones([2, 2]), tf.constant(1.0)])",
        "while_loop(output_length=[-1, 0], length=[tf.constant(1, tf.int64)])",
        "body='no_such_function'",
        "body=''",
        "body='one'",
        "body='three'",
        "body='ints'",
        "body='strings'",
        "body='variants'",
        "body='strings', Tout=[tf.string, tf.string], output_mode=['last', 'sum'],"
        "back_edge_from=[], back_edge_to=[]",
        "input=[tf.ones([3, 2], tf.float64), tf.constant(1.0)]",
        "input=[tf.ones([3, 2, 2]), tf.constant(1.0)]",
        "input=[tf.ones([]), tf.constant(1.0)]",
        "input=[tf.constant([['a', 'b']] * 3), tf.constant(1.0)]",
        "input=[reserve(), tf.constant(1.0)]",
        "input=[sequence(), tf.constant(1.0)]",
        "input=[tf.ones([3, 2]), tf.constant([1.0, 2.0])]",
        "input=[tf.ones([3, 2]), sequence()]",
        "result_shapes=[[]]",
        "result_shapes=[[], [1, 2], []]",
    ],
)
def test_an_attribute_that_makes_no_sense_is_an_error(raw, changed, where):
    call = changed if changed.startswith("while_loop") else f"loop({changed})"
    call = call if where == "eager" else f"in_graph(lambda: {call})"
    error, message = raw(call)
    assert error.endswith("Error") and error != "InternalError", f"{error}: {message}"


@pytest.mark.parametrize(
    "call",
    [
        "from_sequence(tf.ones([3, 2]))",
        "from_sequence(tf.constant('no'))",
        "from_sequence(reserve())",
        "from_sequence(tf.data.Dataset.range(3)._variant_tensor)",
        "from_sequence(tf.reshape(sequence(), [1]))",
        "from_sequence(sequence(ones(1, 3)))",
        "from_sequence(sequence(np.ones([1, 2], np.int32)))",
        "from_sequence(sequence(), input_part_size=[1, 1])",
        f"from_sequence(sequence(), input_part_size=[{2**63 - 1}, 1])",
        "from_sequence(sequence(), num_iterations=[tf.constant(2, tf.int64)])",
        "ops.tf_ti_sequence_concat(reserve(), dtype=f32, element_shape=None, axis=0)",
        "ops.tf_ti_sequence_concat(tf.ones(3), dtype=f32, element_shape=None, axis=0)",
        "ops.tf_ti_sequence_concat(sequence(), dtype=tf.int32, element_shape=None, axis=0)",
        "ops.tf_ti_sequence_concat(sequence(), dtype=tf.string, element_shape=None, axis=0)",
        "ops.tf_ti_sequence_concat(sequence(), dtype=f32, element_shape=None, axis=2)",
        "ops.tf_ti_sequence_concat(sequence(), dtype=f32, element_shape=None, axis=-3)",
        f"ops.tf_ti_sequence_concat(sequence(), dtype=f32, element_shape=None, axis={2**63 - 1})",
        "ops.tf_ti_sequence_concat(sequence(ones(2), ones(2, 2)), dtype=f32,"
        "element_shape=None, axis=1)",
        "ops.tf_ti_sequence_concat(sequence(ones(2, 2), ones(3, 3)), dtype=f32,"
        "element_shape=None, axis=0)",
        "ops.tf_ti_sequence_concat(sequence(ones()), dtype=f32, element_shape=None, axis=0)",
        "ops.tf_ti_sequence_split(tf.ones([3, 2]), reserve(), axis=0)",
        "ops.tf_ti_sequence_split(tf.ones([3, 2]), tf.ones(3), axis=0)",
        "ops.tf_ti_sequence_split(tf.ones([3, 2]), sequence(), axis=2)",
        "ops.tf_ti_sequence_split(tf.ones([3, 2]), sequence(), axis=-3)",
        f"ops.tf_ti_sequence_split(tf.ones([3, 2]), sequence(), axis={-(2**63)})",
        "ops.tf_ti_sequence_split(tf.ones([4, 2]), sequence(), axis=0)",
        "ops.tf_ti_sequence_split(tf.ones([2, 2]), sequence(), axis=0)",
        "ops.tf_ti_sequence_split(tf.ones([3]), sequence(), axis=0)",
        "ops.tf_ti_sequence_split(tf.ones([]), sequence(), axis=0)",
        "tf.add_n([sequence(), sequence(ones(1, 2))])",
        "tf.add_n([sequence(), sequence(*[ones(3)] * 3)])",
        "tf.add_n([sequence(*['x'] * 3)] * 2)",
        "tf.add_n([sequence(), reserve()])",
        "tf.raw_ops.TensorListStack(input_handle=sequence(), element_shape=[2], element_dtype=f32)",
        "tf.raw_ops.TensorListLength(input_handle=sequence())",
    ],
)
def test_what_is_no_fitting_sequence_is_an_error(raw, call):
    error, message = raw(call)
    assert error.endswith("Error"), f"{error}: {message}"


FUZZ = """
import random
INTS = [0, 1, -1, 2, -2, 3, 7, -8, 2**31, 2**32 + 1, -2**33, 2**62, 2**63 - 1, -2**63]
SHAPES = [None, [], [1], [1, 2], [None, 2], [2, 2], [0], [3, 2, 1], [2**31, 2**31]]
INPUTS = [tf.ones([3, 2]), tf.constant(1.0), tf.zeros([0, 2]), tf.zeros([3, 0]), tf.ones([6, 2]),
          tf.ones([1, 3, 2]), tf.constant(["a", "bc"]), tf.range(3), sequence(), reserve()]
CHOICES = {
    "input": INPUTS, "Tout": [f32, tf.variant, tf.int32, tf.string],
    "input_mode": ["value", "slice", "segment", "index", "iterator", "sequence"],
    "output_mode": ["last", "concat", "stack", "sum", "sequence", "count"],
    "output_length": [-1, -1, 0, 1, -2], "condition_inputs": [0, 1, 1, 1, 5, -1],
    "parameter_shapes": SHAPES, "result_shapes": SHAPES,
    "input_label": ["x"], "output_label": ["y"], "result_types": [f32, tf.int32],
}
PAIRS = ["input", "Tout", "input_mode", "input_axis", "input_start", "input_end", "input_stride",
         "input_part_size", "parameter_shapes", "output_mode", "output_source", "output_axis",
         "output_stride", "output_part_size", "output_length", "result_shapes", "result_types"]
MIXED = {"Tout": [f32, f32], "input_mode": ["slice", "value"], "output_mode": ["last", "concat"],
         "input": INPUTS[:2], "parameter_shapes": [[1, 2], []], "result_shapes": [[], [1, 2]],
         "output_source": [0, 1], "input_end": [-1, -1], "input_stride": [1, 1],
         "output_length": [-1, -1],
         "input_part_size": [1, 1], "output_stride": [1, 1], "result_types": [f32, f32]}

def fuzz(seed):
    random.seed(seed)
    changed = {}
    for name in random.sample(PAIRS, random.randint(1, 4)):
        values = list(MIXED.get(name, [0, 0]))
        for at in random.choice([[0], [1], [0, 1]]):
            values[at] = random.choice(CHOICES.get(name, INTS))
        changed[name] = values
    if random.random() < 0.3:
        changed["back_edge_from"] = [random.choice([0, 1, 5])]
        changed["back_edge_to"] = [random.choice([0, 1, -1])]
    if random.random() < 0.5:
        changed["body"] = random.choice(list(BODIES))
    if random.random() < 0.3:
        changed["num_iterations"] = [tf.constant(random.choice([0, 1, 3, 2**61]), tf.int64)]
    changed["reverse"] = random.random() < 0.3
    if random.random() < 0.4:
        lengths = [0, 2, 3, 5, 2**40, 2**62]
        changed["length"] = [tf.constant(random.choice(lengths), tf.int64) for _ in range(2)]
    if random.random() < 0.4:
        changed["condition"] = [random.choice(list(CONDITIONS))]
        changed["condition_inputs"] = [random.choice(CHOICES["condition_inputs"])]
        changed.setdefault("num_iterations", [tf.constant(5, tf.int64)])
    print("fuzz", seed, changed, file=sys.stderr, flush=True)
    try:
        if random.random() < 0.3:
            for out in in_graph(lambda: loop(**changed)):
                str(out)
        else:
            for out in loop(**changed):
                str(out)
    except Exception as error:
        return 0
    return 1
"""


@pytest.mark.parametrize("seed", range(0, 1200, 200))
def test_random_nonsense_ends_no_process(victim, seed):
    outcome, answer = victim.run(
        FUZZ + f"answer = sum(fuzz(seed) for seed in range({seed}, {seed + 200}))", 120
    )
    assert outcome == "ok", answer
    assert 0 < int(answer) < 200


@pytest.mark.parametrize("value", [None, object()])
def test_an_input_that_is_no_tensor_is_named_with_its_port(value):
    port_map = PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0)])
    with pytest.raises((TypeError, ValueError), match="^input port 0 .*must be a tensor"):
        tf_ti.tensor_iterator(lambda piece: piece, [value], port_map)


def test_an_element_that_is_no_tensor_is_named_with_its_path():
    with pytest.raises((TypeError, ValueError), match=r"^xs\['a'\] must be a tensor"):
        tf_ti.scan(lambda c, x: (c, None), 0.0, {"a": object(), "b": tf.zeros([2])})
