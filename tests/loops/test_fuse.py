"""`fuse` of a loop, as the attribute of its operations that the executor reads."""

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import InputPort, LoopOutput, OutputPort, PortMap, TripLimit
from tf_ti.loops.spec import OPS

XS, INIT = tf.reshape(tf.range(12.0), [6, 2]) / 10, np.ones(2, np.float32)


def step(c, x):
    c = tf.sin(c) * x + c
    return c, tf.tanh(c)


def with_scan(x, fuse, **options):
    return tf_ti.scan(step, INIT, x, fuse=fuse, **options)[1]


def with_tensor_iterator(x, fuse):
    def body(x, c):
        return step(c, x[0])[0]

    inputs = [InputPort(0, 0, axis=0), InputPort(1, 1)]
    port_map = PortMap(inputs, [OutputPort(0, 0)])
    return tf_ti.tensor_iterator(body, [x, INIT], port_map, [tf_ti.BackEdge(0, 1)], fuse=fuse)[0]


def with_loop(x, fuse):
    with tf_ti.Loop(fuse=fuse) as loop:
        c = loop.add_recurrence(INIT)
        loop.add_trip_limit(6, TripLimit.COUNT)
        c.next, y = step(c, loop.add_iterator(x))
        out = loop.add_loop_output(y, LoopOutput.CONCATENATE)
    return out.tensor


def with_condition(x, fuse):
    with tf_ti.Loop(fuse=fuse) as loop:
        c, k = loop.add_recurrence(INIT), loop.add_recurrence(0)
        loop.add_trip_limit(k < 4, TripLimit.WHILE)
        c.next, k.next = step(c, loop.add_iterator(x))[0], k + 1
        out = loop.add_loop_output(c, LoopOutput.LAST_VALUE)
    return out.tensor


def with_nested_scan(x, fuse):
    def outer(c, x):
        return tf_ti.scan(step, c, tf.stack([x, x]), fuse=fuse)[0], None

    return tf_ti.scan(outer, INIT, x, fuse=fuse)[0]


def of_checkpoints(x, fuse):
    return with_scan(x, fuse, checkpoint_every=2)


def gradient(x, call, fuse):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(call(x, fuse) ** 2)
    return tape.gradient(y, x)


def second_gradient(x, call, fuse):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(gradient(x, call, fuse) ** 2)
    return tape.gradient(y, x)


def tangent(x, call, fuse):
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
        y = call(x, fuse)
    return accumulator.jvp(y)


def many(x, call, fuse):
    return tf.vectorized_map(lambda k: call(x * k, fuse), tf.constant([1.0, 2.0]))


def many_gradients(x, call, fuse):
    return tf.vectorized_map(lambda k: gradient(x * k, call, fuse), tf.constant([1.0, 2.0]))


def attributes(graph_def):
    """The attribute of all loops, those in functions too."""
    nodes = [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]
    return [node.attr["fuse"].b for node in nodes if node.op in OPS]


WAYS = [with_scan, with_tensor_iterator, with_loop, with_condition, with_nested_scan]
USES = [second_gradient, tangent, many, many_gradients]


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize(
    "use, call",
    [*((gradient, way) for way in WAYS), *((use, with_scan) for use in USES)],
)
def test_all_loops_that_a_call_makes_have_it(use, call, fuse):
    function = tf.function(lambda x: use(x, call, fuse)).get_concrete_function(XS)
    found = attributes(function.graph.as_graph_def())
    assert found and set(found) == {fuse}


@pytest.mark.parametrize("fuse", [True, False])
def test_the_loops_over_segments_have_it(fuse):
    call = tf.function(lambda x: gradient(x, of_checkpoints, fuse))
    found = attributes(call.get_concrete_function(XS).graph.as_graph_def())
    assert len(found) > 3 and set(found) == {fuse}


@pytest.mark.parametrize("fuse", [np.bool_(True), np.bool_(False)])
def test_it_may_be_numpys(fuse):
    function = tf.function(lambda x: with_scan(x, fuse)).get_concrete_function(XS)
    assert set(attributes(function.graph.as_graph_def())) == {bool(fuse)}


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("fuse", [None, 0, 1, "False", tf.constant(False), []], ids=str)
@pytest.mark.parametrize("call", [with_scan, with_tensor_iterator, with_loop])
def test_anything_else_is_an_error(call, fuse, is_plain):
    tf.config.run_functions_eagerly(is_plain)
    try:
        with pytest.raises(TypeError, match="fuse must be True or False, got"):
            call(XS, fuse)
    finally:
        tf.config.run_functions_eagerly(False)


def test_another_trace_has_another():
    function = tf.function(with_scan)
    traces = [
        function.get_concrete_function(x, fuse) for x in (XS, XS[:4]) for fuse in (True, False)
    ]
    found = [attributes(trace.graph.as_graph_def()) for trace in traces]
    assert [set(each) for each in found] == [{True}, {False}] * 2


def test_a_saved_model_keeps_it(tmp_path):
    module = tf.Module()
    calls = {"kernels": False, "programs": True}
    for name, fuse in calls.items():
        spec = tf.TensorSpec([None, 2])
        setattr(module, name, tf.function(lambda x, f=fuse: with_scan(x, f), [spec]))
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for name, fuse in calls.items():
        call = getattr(loaded, name)
        function = tf.function(lambda x, call=call: gradient(x, lambda x, _: call(x), None))
        found = attributes(function.get_concrete_function(XS).graph.as_graph_def())
        assert len(found) >= 2 and set(found) == {fuse}
        expected = tf.function(gradient)(XS, with_scan, fuse)
        np.testing.assert_allclose(function(XS), expected, rtol=1e-6)


@pytest.mark.parametrize("fuse", [True, False])
def test_a_session_and_the_graph_optimiser_keep_it(fuse):
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2])
        (slope,) = tf.gradients(with_scan(x, fuse), x)
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    metadata = tf.compat.v1.RunMetadata()
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(slope, {x: XS.numpy()}, options, metadata)
    found = [each for graph_def in metadata.partition_graphs for each in attributes(graph_def)]
    assert found == [fuse, fuse]


def test_an_attribute_of_another_type_is_an_error():
    graph_def = tf.function(with_scan).get_concrete_function(XS, True).graph.as_graph_def()
    (loop,) = (node for node in graph_def.node if node.op in OPS)
    loop.attr["fuse"].s = b"no"
    with tf.Graph().as_default(), pytest.raises(ValueError, match="fuse"):
        tf.graph_util.import_graph_def(graph_def)
