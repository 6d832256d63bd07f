"""Errors and warnings in eager mode: they show the user's lines, and what is wrong."""

import re
import traceback
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import _library

HERE = __file__
needs_xla = pytest.mark.skipif(_library.XLA_PROBLEM is not None, reason=str(_library.XLA_PROBLEM))


def loop_with_a_short_iterator():
    with tf_ti.Loop("mine") as loop:
        loop.add_trip_limit(5, "count")
        x = loop.add_iterator(tf.ones([3, 2]))
        loop.add_loop_output(x * 2, "concatenate")


def division_in_a_scan():
    tf_ti.scan(lambda c, i: (c + 10 // (3 - i), c), 0, tf.range(5))


def division_in_a_while_loop():
    tf_ti.while_loop(lambda i: i < 5, lambda i: (10 // (3 - i),), (0,))


def division_in_a_tensor_iterator():
    ports = tf_ti.PortMap([tf_ti.InputPort(0, 0, axis=0)], [tf_ti.OutputPort(0, 0)])
    tf_ti.tensor_iterator(lambda i: 10 // (3 - i), [tf.range(5)], ports)


def indices_out_of_range():
    tf_ti.embedding_bag(tf.ones([3, 2]), tf.constant([[1, 7]]))


def limits_twice():
    with tf_ti.Loop("mine") as loop:
        loop.add_trip_limit(5, "count")
        loop.add_trip_limit(6, "count")


@pytest.mark.parametrize(
    "call, last_line, is_graphs",
    [
        (loop_with_a_short_iterator, "with tf_ti.Loop", True),
        (division_in_a_scan, "tf_ti.scan(", True),
        (division_in_a_while_loop, "tf_ti.while_loop(", True),
        (division_in_a_tensor_iterator, "tf_ti.tensor_iterator(", True),
        (indices_out_of_range, "tf_ti.embedding_bag(", False),
        (limits_twice, "loop.add_trip_limit(6", False),
    ],
)
def test_an_error_of_eager_mode_has_the_users_frames(call, last_line, is_graphs):
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)) as raised:
        call()
    frames = traceback.extract_tb(raised.value.__traceback__)
    users = [frame for frame in frames if frame.filename == HERE]
    assert last_line in users[-1].line
    # Of AutoGraph's and ours those stand there through which the call goes.
    assert len(frames) - len(users) <= 3
    message = str(raised.value)
    for graphs in ("Graph execution error", "Detected at node", "{{node", "__inference", 'File "'):
        assert graphs not in message
    if is_graphs:
        assert len(message.splitlines()) <= 3
        assert "mine" in message or "Integer division by zero" in message


def test_all_frames_are_there_on_demand():
    tf.debugging.disable_traceback_filtering()
    try:
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            division_in_a_scan()
    finally:
        tf.debugging.enable_traceback_filtering()
    assert len(traceback.extract_tb(raised.value.__traceback__)) > 6
    assert "Graph execution error" in str(raised.value)


def test_an_error_in_the_users_function_keeps_its_frames_and_its_cause():
    cause = KeyError("why")

    @tf.autograph.experimental.do_not_convert
    def step(c, x):
        raise RuntimeError("what") from cause

    with pytest.raises(RuntimeError, match="what") as raised:
        tf_ti.scan(step, 0.0, tf.ones([3]))
    assert raised.value.__cause__ is cause
    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert names[-1] == "step"


def test_an_output_used_in_its_own_block_is_named_with_the_line():
    with pytest.raises(ValueError) as raised:
        with tf_ti.Loop("mine") as loop:
            loop.add_trip_limit(3, "count")
            s = loop.add_recurrence(1.0)
            first = loop.add_loop_output(s, "last_value")
            loop.add_loop_output(s, "concatenate")
            s.next = s * first  # here
    message = str(raised.value)
    assert f"output 0 is used inside its own loop, in {HERE}, line " in message
    number = int(re.search(r", line (\d+)", message)[1])
    with open(HERE, encoding="utf-8") as file:
        assert "# here" in file.readlines()[number - 1]


def test_a_layer_that_is_not_native_says_so_at_the_users_line():
    layer = tf_ti.keras.GRU(4, activation="softplus")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        layer(np.ones([2, 3, 4], np.float32))
    own = [warning for warning in found if "tf_ti.keras.GRU" in str(warning.message)]
    assert [warning.filename for warning in own] == [HERE]


def test_lambdas_in_one_line_are_traced_as_they_are(capfd):
    (y,) = tf_ti.while_loop(lambda i: i < 3, lambda i: (i + 1,), (0,))
    assert int(y) == 3
    assert "AutoGraph" not in capfd.readouterr().err


def test_a_lambda_of_its_own_line_is_converted():
    limit = tf.constant(2)
    cond = lambda i: i < 3 and i < limit  # noqa: E731
    (y,) = tf_ti.while_loop(cond, lambda i: (i + 1,), (0,))
    assert int(y) == 2


@needs_xla
def test_lanes_that_do_not_end_together_are_named_where_xla_compiles():
    def double(x):
        return tf_ti.while_loop(lambda v: v < 10.0, lambda v: v * 2, (x,), name="doubling")[0]

    xs = tf.constant([1.0, 3.0, 20.0])
    with pytest.raises(NotImplementedError, match="loop 'doubling' .*use tf.map_fn"):
        tf.function(lambda xs: tf.vectorized_map(double, xs), jit_compile=True)(xs)
    mapped = tf.function(lambda xs: tf.map_fn(double, xs), jit_compile=True)(xs)
    assert mapped.numpy().tolist() == [16, 12, 20]


def test_ports_show_what_is_not_as_by_default():
    ports = tf_ti.PortMap(
        [tf_ti.InputPort(0, 1, axis=1, stride=-1), tf_ti.InputPort(1, 0)], [tf_ti.OutputPort(0, 0)]
    )
    text = "PortMap(inputs=[InputPort(0, 1, axis=1, stride=-1), InputPort(1, 0)], "
    assert repr(ports) == f"{text}outputs=[OutputPort(0, 0)])"
    names = {"PortMap": tf_ti.PortMap, "InputPort": tf_ti.InputPort}
    assert eval(repr(ports), {**names, "OutputPort": tf_ti.OutputPort}) == ports
