"""Convolutions and pools that TensorFlow computes on a CPU by oneDNN's kernels alone."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

pytestmark = pytest.mark.quarter

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


# These operations take images whose channels come first.
CHANNELS_FIRST = {
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


# These operations take images whose channels come last.
CONVOLUTIONS = {
    "dilated": lambda x: tf.nn.conv2d(x, FILTERS, 1, "SAME", dilations=2),
    "dilated in one dimension": lambda x: tf.nn.conv2d(x, FILTERS, 1, "SAME", dilations=[1, 3]),
    "dilated, padded": lambda x: tf.nn.conv2d(
        x, FILTERS, 1, [[0, 0], [2, 2], [2, 2], [0, 0]], dilations=2
    ),
    "dilated sequences": lambda x: (
        tf.nn.conv1d(x[:, 0], FILTERS[0], 1, "SAME", dilations=2)[:, tf.newaxis] + x
    ),
    "dilated, transposed": lambda x: tf.nn.conv2d_transpose(
        x, FILTERS, tf.shape(x), 1, "SAME", dilations=2
    ),
    "grouped": lambda x: tf.nn.conv2d(x, FILTERS[:, :, :2], 1, "SAME"),
    "grouped with a bias": lambda x: tf.nn.relu(
        tf.nn.bias_add(tf.nn.conv2d(x, FILTERS[:, :, :1], 1, "SAME"), FILTERS[0, 0, 0])
    ),
    "depthwise, dilated": lambda x: tf.nn.depthwise_conv2d(
        x, FILTERS[..., :1], [1] * 4, "SAME", dilations=[2, 2]
    ),
    "strided, transposed": lambda x: tf.nn.conv2d_transpose(
        tf.nn.conv2d(x, FILTERS, 2, "SAME"), FILTERS, tf.shape(x), 2, "SAME"
    ),
    "volumes, dilated": lambda x: tf.nn.conv3d(
        x[:, tf.newaxis], FILTERS_3D, [1] * 5, "SAME", dilations=[1, 1, 2, 2, 1]
    )[:, 0],
    "volumes, transposed": lambda x: tf.nn.conv3d_transpose(
        x[:, tf.newaxis], FILTERS_3D, tf.shape(x[:, tf.newaxis]), 1, "SAME"
    )[:, 0],
}


def by_condition(f, x, loop=tf_ti.while_loop):
    return loop(
        lambda k, x: (k < 3) & (tf.reduce_sum(x) < 1e9), lambda k, x: (k + 1, f(x)), (0, x)
    )[1]


def by_scan(f, x):
    return tf_ti.scan(lambda c, _: (f(c), None), x, None, length=3)[0]


def nested(f, x):
    return by_condition(functools.partial(by_condition, f), x)


def unrolled(f, x, count=3):
    for _ in range(count):
        x = f(x)
    return x


def sizes(test):
    """On both sides of where oneDNN's kernels are faster."""
    return pytest.mark.parametrize("extent", [8, 48])(test)


def values_of(f, x):
    return [tf.function(f)(x)]


def gradients_of(f, x):
    """The gradients with respect to images and filters."""
    watched = [x, FILTERS, FILTERS_3D]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        y = tf.function(lambda x: tf.reduce_sum(tf.sin(f(x))))(x)
    return tape.gradient(y, watched, unconnected_gradients="zero")


def check(ask, found, oracle, x):
    try:
        expected = ask(oracle, x)
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
        pytest.skip(f"TensorFlow does not take oneDNN's kernels on this machine: {error}")
    for value, right in zip(ask(found, x), expected, strict=True):
        scale = max(1.0, float(tf.reduce_max(tf.abs(right))))
        np.testing.assert_allclose(value / scale, right / scale, 1e-3, 1e-4)


@pytest.mark.parametrize("name", CHANNELS_FIRST)
@pytest.mark.parametrize("loop", [by_condition, by_scan, nested])
@sizes
def test_channels_that_come_first(name, loop, extent):
    x = tf.random.stateless_normal([4, 4, extent, extent], seed=(3, 4))
    f = CHANNELS_FIRST[name]
    oracle = functools.partial(unrolled, f, count=9 if loop is nested else 3)
    check(values_of, functools.partial(loop, f), oracle, x)


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("loop", [by_condition, by_scan, nested])
@sizes
def test_dilations_and_groups(name, loop, extent):
    x = tf.random.stateless_normal([4, extent, extent, 4], seed=(3, 4))
    f = CONVOLUTIONS[name]
    oracle = functools.partial(unrolled, f, count=9 if loop is nested else 3)
    check(values_of, functools.partial(loop, f), oracle, x)


VALID = {
    "of large filters": lambda x: tf.nn.conv2d(x, tf.zeros([3, 3, 64, 64]), 2, "VALID"),
    "dilated": lambda x: tf.nn.conv2d(x, tf.zeros([3, 3, 64, 4]), 1, "VALID", dilations=2),
    "depthwise": lambda x: tf.nn.depthwise_conv2d(x, tf.zeros([3, 3, 64, 64]), [1] * 4, "VALID"),
    "with a bias": lambda x: tf.nn.relu(
        tf.nn.bias_add(tf.nn.conv2d(x, tf.zeros([3, 3, 64, 64]), 2, "SAME"), tf.zeros([64]))
    ),
    "of volumes": lambda x: tf.nn.conv3d(
        x[:, :, :, tf.newaxis], tf.zeros([3, 3, 1, 64, 64]), [1, 2, 2, 1, 1], "VALID"
    ),
}


@pytest.mark.parametrize("name", VALID)
def test_empty_batches_have_the_shape_of_others(name):
    """oneDNN's kernels give an empty batch the shape of the images."""

    def f(x):
        return tf_ti.scan(lambda c, _: (c * 0.5, VALID[name](c)), x, tf.zeros([2]))[1]

    f = tf.function(f, input_signature=[tf.TensorSpec([None, 9, 9, 64])])
    assert f(tf.zeros([0, 9, 9, 64])).shape == [
        2,
        0,
        *VALID[name](tf.zeros([1, 9, 9, 64])).shape[1:],
    ]


@pytest.mark.parametrize("window, stride", [(1, 2), (1, 3), (1, 4), (2, 4), (3, 5)])
@pytest.mark.parametrize("extent", [6, 7, 40])
def test_volumes_by_strides_beyond_the_filter(window, stride, extent):
    """TensorFlow's plain kernel begins at other elements. The oracle is NumPy."""
    x = np.random.default_rng(0).normal(size=[1, 6, extent, extent, 2])
    filters = np.random.default_rng(1).normal(size=[*[window] * 3, 2, 3])
    sizes = [-(-n // stride) for n in x.shape[1:4]]
    pads = [max((m - 1) * stride + window - n, 0) for m, n in zip(sizes, x.shape[1:4])]
    padded = np.pad(x[0], [*((n // 2, n - n // 2) for n in pads), (0, 0)])
    expected = np.zeros([1, *sizes, 3])
    for place in np.ndindex(*sizes):
        piece = padded[tuple(slice(k * stride, k * stride + window) for k in place)]
        expected[(0, *place)] = np.tensordot(piece, filters, 4)
    x, filters = tf.cast(x, tf.float32), tf.cast(filters, tf.float32)

    @tf.function
    def call(x):
        def body(k, y):
            return k + 1, y + tf.nn.conv3d(x, filters, [1, *[stride] * 3, 1], "SAME")

        start = (0.0, tf.zeros([1, *sizes, 3]))
        return tf_ti.while_loop(lambda k, y: k + tf.reduce_sum(y) * 0.0 < 1.0, body, start)[1]

    np.testing.assert_allclose(call(x), expected, 1e-4, 1e-4)


def native_gradient_of_filters(x, grad):
    return tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
        input=x, filter_sizes=[1] * 4, out_backprop=grad, strides=[1] * 4, padding="VALID"
    )


SUMS = {  # of ones, with the number of them
    "images": (lambda x, f: tf.nn.conv2d(x, f, 1, "VALID"), [1, 3, 3, 512], [3, 3, 512, 1], 4608),
    "volumes": (
        lambda x, f: tf.nn.conv3d(x, f, [1] * 5, "VALID"),
        [1, 3, 3, 3, 200],
        [3, 3, 3, 200, 1],
        5400,
    ),
    "depthwise": (
        lambda x, f: tf.nn.depthwise_conv2d(x, f, [1] * 4, "VALID"),
        [1, 60, 60, 2],
        [60, 60, 2, 1],
        3600,
    ),
    "filters": (native_gradient_of_filters, [4, 30, 30, 1], [4, 30, 30, 1], 3600),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_precision_is_summed_in_more(name, dtype):
    """TensorFlow's plain kernels of some operations add up in the type itself."""
    f, *shapes, expected = SUMS[name]
    x, filters = (tf.ones(shape, dtype) for shape in shapes)

    def oracle(x):
        return f(x, filters)

    def call(x):
        return tf_ti.scan(lambda c, _: (c, f(x + c, filters)), x * 0, None, length=2)[1][-1]

    try:
        right = tf.function(oracle)(x)
    except (tf.errors.OpError, TypeError) as error:
        pytest.skip(f"TensorFlow does not take oneDNN's kernels on this machine: {error}")
    if abs(float(tf.reduce_max(right)) - expected) > expected / 100:
        pytest.skip("TensorFlow adds up in the type itself on this machine")
    np.testing.assert_allclose(tf.cast(tf.function(call)(x), tf.float32), expected, 0.01)


def test_native_dilations():
    filters = FILTERS[..., :1]
    x = tf.random.stateless_normal([2, 8, 8, 4], [1, 2])

    def native(x):
        return tf.raw_ops.DepthwiseConv2dNative(
            input=x, filter=filters, strides=[1] * 4, padding="SAME", dilations=[1, 2, 2, 1]
        )

    check(gradients_of, functools.partial(by_scan, native), functools.partial(unrolled, native), x)


@pytest.mark.parametrize("shape", [[0, 5, 5, 4], [2, 0, 5, 4]])
@pytest.mark.parametrize("channels", [1, 0])
def test_gradients_of_filters_of_no_images_are_zeros(shape, channels):
    """TensorFlow's plain kernels leave the memory of these gradients as it was."""
    filters = tf.ones([3, 3, 4, channels])

    @tf.function
    def call(x, filters):
        with tf.GradientTape() as tape:
            tape.watch([x, filters])
            y = tf_ti.while_loop(
                lambda k, _: k < 2,
                lambda k, h: (
                    k + 1,
                    h + tf.reduce_sum(tf.nn.depthwise_conv2d(x, filters, [1] * 4, "SAME")),
                ),
                (0, 0.0),
            )[1]
        return tape.gradient(y, [x, filters])

    for k in range(10):
        others = [tf.fill([n], 9e9) for n in (filters.shape.num_elements(), 36 + k)]
        del others  # gives others' memory back, for the gradients to take
        for slope in call(tf.ones(shape), filters):
            np.testing.assert_array_equal(slope, tf.zeros_like(slope))


@pytest.mark.parametrize("name", [*CHANNELS_FIRST, *CONVOLUTIONS])
@pytest.mark.parametrize("loop", [by_condition, by_scan])
@sizes
def test_gradients(name, loop, extent):
    if name in ("largest", "means"):
        pytest.skip("docs/explain/limits.md: gradients of pools whose channels come first")
    is_first = name in CHANNELS_FIRST
    f = CHANNELS_FIRST[name] if is_first else CONVOLUTIONS[name]
    shape = [4, 4, extent, extent] if is_first else [4, extent, extent, 4]
    x = tf.random.stateless_normal(shape, seed=(3, 4))
    check(gradients_of, functools.partial(loop, f), functools.partial(unrolled, f), x)
