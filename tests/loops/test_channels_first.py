"""Images whose channels come first, which TensorFlow computes by oneDNN's kernels on a CPU."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

FILTERS = tf.random.stateless_normal([3, 3, 4, 4], seed=(1, 2)) * 0.2
FILTERS_3D = tf.random.stateless_normal([3, 3, 3, 4, 4], seed=(1, 2)) * 0.1


def transposed_convolution(x):
    return tf.raw_ops.Conv2DBackpropInput(
        input_sizes=tf.shape(x),
        filter=FILTERS,
        out_backprop=x,
        strides=[1] * 4,
        padding="SAME",
        data_format="NCHW",
    )


OPERATIONS = {
    "convolution": lambda x: tf.nn.conv2d(x, FILTERS, 1, "SAME", "NCHW"),
    "convolution and bias": lambda x: tf.tanh(
        tf.nn.bias_add(tf.nn.conv2d(x, FILTERS, 1, "SAME", "NCHW"), FILTERS[0, 0, 0], "NCHW")
    ),
    "padded": lambda x: tf.nn.conv2d(
        tf.pad(x, [[0, 0], [0, 0], [1, 1], [1, 1]]), FILTERS, 1, "VALID", "NCHW"
    ),
    "depthwise": lambda x: tf.nn.depthwise_conv2d(x, FILTERS[..., :1], [1] * 4, "SAME", "NCHW"),
    "transposed convolution": transposed_convolution,
    "largest": lambda x: tf.nn.max_pool2d(x, 3, 1, "SAME", "NCHW"),
    "means": lambda x: tf.nn.avg_pool2d(x, 3, 1, "SAME", "NCHW"),
    "bias": lambda x: tf.nn.bias_add(x, FILTERS[0, 0, 0], "NCHW"),
    "volumes": lambda x: tf.nn.conv3d(x[:, :, tf.newaxis], FILTERS_3D, [1] * 5, "SAME", "NCDHW")[
        :, :, 0
    ],
}


def by_condition(f, x, loop=tf_ti.while_loop):
    return loop(
        lambda k, x: (k < 3) & (tf.reduce_sum(x) < 1e9), lambda k, x: (k + 1, f(x)), (0, x)
    )[1]


def by_scan(f, x):
    return tf_ti.scan(lambda c, _: (f(c), None), x, None, length=3)[0]


def nested(f, x):
    return by_condition(functools.partial(by_condition, f), x)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("loop", [by_condition, by_scan, nested])
@pytest.mark.parametrize("extent", [8, 48])  # on both sides of where oneDNN's kernels are faster
def test_operations(name, loop, extent):
    x = tf.random.stateless_normal([4, 4, extent, extent], seed=(3, 4))
    f = OPERATIONS[name]

    def unrolled(x):
        for _ in range(9 if loop is nested else 3):
            x = f(x)
        return x

    try:
        expected = tf.function(unrolled)(x)
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError):
        pytest.skip("TensorFlow does not take oneDNN's kernels on this machine")
    found = tf.function(functools.partial(loop, f))(x)
    np.testing.assert_allclose(found, expected, 1e-3, 1e-4)
