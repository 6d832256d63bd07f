"""Programs that call tf.compat.v1.disable_v2_tensorshape(): the extents of shapes are objects."""

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

XS = np.linspace(0.5, 1.5, 6)
TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
IDS = np.array([[0, 1], [2, 2]])
CELL = np.linspace(-1, 1, 8 * 5).reshape(8, 5)


@pytest.fixture
def v1_shapes():
    tf.compat.v1.disable_v2_tensorshape()
    yield
    tf.compat.v1.enable_v2_tensorshape()


def scan(x):
    return tf_ti.scan(lambda c, e: (tf.sin(c) + e, c * e), tf.constant(1.0, x.dtype), x)


def scan_of_matrices(x):
    rows = tf.reshape(x, [-1, 1, 1]) * tf.ones([2, 3], x.dtype)
    step = lambda c, e: (c * e, tf.reshape(c, [3, 2]) @ e)  # noqa: E731
    return tf_ti.scan(step, tf.ones([2, 3], x.dtype), rows, reverse=True)


def checkpoints(x):
    step = lambda c, e: (tf.sin(c) + e, c)  # noqa: E731
    return tf_ti.scan(step, tf.constant(1.0, x.dtype), x, checkpoint_every=2)


def while_loop(x):
    body = lambda k, c: (k + 1, tf.sin(c) + x[k])  # noqa: E731
    return tf_ti.while_loop(lambda k, c: k < 5, body, (0, tf.constant(1.0, x.dtype)))[1]


def block(x):
    with tf_ti.Loop() as loop:
        loop.add_trip_limit(tf.shape(x)[0], "count")
        c = loop.add_recurrence(tf.constant(1.0, x.dtype))
        c.next = tf.sin(c) + loop.add_iterator(x)
        loop.add_loop_output(c, "last_value")
        loop.add_loop_output(c, "concatenate", length=8)
    return [tf.convert_to_tensor(output) for output in loop.outputs]


def pieces(x):
    ports = tf_ti.PortMap(
        [tf_ti.InputPort(0, 0, axis=0, start=-1, end=0, stride=-2, part_size=2)],
        [tf_ti.OutputPort(0, 0, axis=0, start=-1, end=0, stride=-2)],
    )
    return tf_ti.tensor_iterator(lambda piece: [tf.exp(piece)], [x], ports)


def cell(x):
    """A recurrent cell, which becomes a sequence."""
    w = tf.constant(CELL[:5, :3], x.dtype)
    rows = tf.reshape(x, [-1, 1, 2])
    step = lambda h, e: (tf.tanh(tf.concat([e, h], 1) @ w), h)  # noqa: E731
    return tf_ti.scan(step, tf.zeros([1, 3], x.dtype), rows)


def products(x):
    """A body whose gradient joins the factors of its products, of rows that are known or not."""
    w = tf.constant(CELL[:3, :3], x.dtype) * x[0]
    rows = tf.reshape(x, [-1, 1, 1]) * tf.ones([1, 2, 3], x.dtype)
    step = lambda h, e: (tf.sin(h @ w) + e * 0.5, tf.sin(h) * e)  # noqa: E731
    return tf_ti.scan(step, tf.reshape(x, [-1, 3]), rows, fuse=False)


def sequence(x):
    w, r, b = CELL[None, :, :3], CELL[None, :, 3:], CELL[None, :, 0]
    zeros = tf.zeros([1, 1, 2], x.dtype)
    return tf_ti.lstm_sequence(tf.reshape(x, [1, 2, 3]), zeros, zeros, None, w, r, b)


def ragged(x):
    rows = tf.RaggedTensor.from_row_lengths(x, [1, 3, 2])
    return tf_ti.scan(lambda c, row: (c + tf.reduce_sum(row), row * 2), x[0] * 0, rows)[1].values


def bag(x):
    table = tf.cast(TABLE, x.dtype) * x[0]
    return tf_ti.embedding_bag(table, tf.constant(IDS)), tf_ti.embedding_bag_packed(table, IDS)


CALLS = [
    scan,
    scan_of_matrices,
    checkpoints,
    while_loop,
    block,
    pieces,
    cell,
    products,
    sequence,
    ragged,
    bag,
]


def value_and_gradient(call, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = tf.nest.flatten(call(x))
        total = tf.add_n([tf.reduce_sum(tensor) for tensor in found])
    return [*found, tf.convert_to_tensor(tape.gradient(total, x))]


@pytest.mark.parametrize("mode", ["eager", "function", "unknown", "python"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_program_with_v1_shapes_has_the_values_of_one_without(call, mode, request):
    def run(x):
        return value_and_gradient(call, x)

    expected = run(tf.constant(XS))
    request.getfixturevalue("v1_shapes")
    if mode == "unknown":
        run = tf.function(run, input_signature=[tf.TensorSpec([None], tf.float64)])
    elif mode != "eager":
        run = tf.function(run)
    tf.config.run_functions_eagerly(mode == "python")
    try:
        got = run(tf.constant(XS))
    finally:
        tf.config.run_functions_eagerly(False)
    for actual, right in zip(got, expected, strict=True):
        np.testing.assert_allclose(actual, right, rtol=1e-9)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_session_has_the_values_of_a_function(call, request):
    expected = tf.nest.flatten(call(tf.constant(XS)))
    request.getfixturevalue("v1_shapes")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float64, [None])
        got = session.run(tf.nest.flatten(call(x)), {x: XS})
    for actual, right in zip(got, expected, strict=True):
        np.testing.assert_allclose(actual, right, rtol=1e-9)
