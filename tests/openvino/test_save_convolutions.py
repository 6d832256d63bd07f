"""Convolutions, pools, norms and resizing in `tf_ti.openvino.save`, and where it puts channels."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti.openvino
from tf_ti.openvino import IRError

ov = pytest.importorskip("openvino")
openvino_models = importlib.import_module("openvino_models")
test_save = importlib.import_module("test_save")

check, randoms, types = test_save.check, test_save.randoms, test_save.types

X = randoms(2, 9, 8, 4)
VOLUME = randoms(2, 5, 6, 4, 3)
ROW = randoms(2, 9, 4)


def open_spec(x):
    """A spec with only the channels known."""
    return tf.TensorSpec([None] * (x.ndim - 1) + [x.shape[-1]], x.dtype)


def norm(x, data_format="NHWC", channels=4):
    numbers = randoms(channels)
    parameters = abs(numbers), numbers, numbers * 2, abs(numbers) + 1
    return tf.compat.v1.nn.fused_batch_norm(
        x, *parameters, is_training=False, data_format=data_format
    )[0]


PADS = [[0, 0], [1, 2], [0, 1], [0, 0]]
CASES = {
    **{
        f"convolution, {pad}": (lambda x, pad=pad: tf.nn.conv2d(x, randoms(3, 2, 4, 6), 2, pad), X)
        for pad in ("SAME", "VALID", PADS)
    },
    "unequal strides": (lambda x: tf.nn.conv2d(x, randoms(3, 2, 4, 6), [2, 1], "SAME"), X),
    "dilated": (lambda x: tf.nn.conv2d(x, randoms(3, 2, 4, 6), 1, "SAME", dilations=[2, 1]), X),
    "one axis": (lambda x: tf.nn.conv1d(x, randoms(3, 4, 6), 2, "SAME"), ROW),
    "three axes": (
        lambda x: tf.nn.conv3d(x, randoms(2, 3, 2, 3, 4), [1, 1, 2, 1, 1], "SAME"),
        VOLUME,
    ),
    "of another op": (
        lambda x: tf.raw_ops.Conv(
            input=x, filter=randoms(3, 2, 4, 6), strides=[1, 2, 1, 1], padding="SAME"
        ),
        X,
    ),
    "groups": (lambda x: tf.nn.conv2d(x, randoms(3, 2, 2, 6), 1, "SAME"), X),
    "depthwise": (
        lambda x: tf.nn.depthwise_conv2d(x, randoms(3, 2, 4, 2), [1, 2, 2, 1], "SAME"),
        X,
    ),
    "depthwise, dilated": (
        lambda x: tf.nn.depthwise_conv2d(
            x, randoms(3, 2, 4, 2), [1, 1, 1, 1], "VALID", dilations=[2, 3]
        ),
        X,
    ),
    "separable": (
        lambda x: tf.nn.separable_conv2d(
            x, randoms(3, 2, 4, 2), randoms(1, 1, 8, 3), [1, 1, 1, 1], "SAME"
        ),
        X,
    ),
    "pools": (
        lambda x: [
            *(tf.nn.max_pool2d(x, [3, 2], [2, 3], pad) for pad in ("SAME", "VALID", PADS)),
            *(tf.nn.avg_pool2d(x, [3, 2], [2, 3], pad) for pad in ("SAME", "VALID")),
        ],
        X,
    ),
    "pools of three axes": (
        lambda x: [
            f(x, 2, 2, pad)
            for f in (tf.nn.max_pool3d, tf.nn.avg_pool3d)
            for pad in ("SAME", "VALID")
        ],
        VOLUME,
    ),
    "pools of dilated windows": (
        lambda x: [
            tf.nn.pool(x, [2, 2], kind, dilations=[2, 1], padding="VALID")
            for kind in ("MAX", "AVG")
        ],
        X,
    ),
    "a pool of sizes": (
        lambda x: tf.raw_ops.MaxPoolV2(
            input=x, ksize=[1, 2, 2, 1], strides=[1, 2, 1, 1], padding="SAME"
        ),
        X,
    ),
    "norm": (norm, X),
    "norm of three axes": (lambda x: norm(x, "NDHWC", 3), VOLUME),
    "local norm": (lambda x: [tf.nn.lrn(x, 2, 1.5, 0.3, 0.6), tf.nn.lrn(x, 1)], X),
    "blocks": (lambda x: [tf.nn.depth_to_space(x, 2), tf.nn.space_to_depth(x[:, :8], 2)], X),
    "blocks in the batch": (
        lambda x: tf.batch_to_space(
            tf.tanh(tf.space_to_batch(x, [2, 3], [[1, 0], [2, 2]])), [2, 3], [[1, 0], [2, 1]]
        ),
        X,
    ),
    "blocks of one axis": (lambda x: tf.space_to_batch(x, [2], [[1, 0]]), ROW),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("function", "x"), CASES.values(), ids=CASES)
def test_operations_with_channels_last(function, x, dynamic, tmp_path):
    check(function, [x], tmp_path, signature=[open_spec(x)] if dynamic else None)


def between_blocks(crops):
    """A convolution of blocks in the batch: a dilated one if it is cropped at the ends alone."""

    def run(x):
        x = tf.space_to_batch(x, [2, 2], [[1, 2], [0, 2]])
        return tf.batch_to_space(tf.nn.conv2d(x, randoms(2, 2, 4, 3), 1, "VALID"), [2, 2], crops)

    return run


def convolution(x, *extents, **options):
    filters = randoms(*extents, x.shape[-1], 3)
    layout = ("NWC", "NHWC", "NDHWC")[len(extents) - 1]
    return tf.nn.convolution(x, filters, 1, data_format=layout, **options)


# TensorFlow makes most of these of convolutions of blocks in the batch.
DILATED = {
    **{
        f"{padding}, {len(rates)} axes": (
            lambda x, k=extents, p=padding, d=rates: convolution(x, *k, padding=p, dilations=d),
            x,
        )
        for padding in ("SAME", "VALID")
        for x, extents, rates in (
            (ROW, [3], [3]),
            (X, [3, 2], [2, 3]),
            (VOLUME, [2, 2, 3], [2, 3, 1]),
        )
    },
    "one rate": (lambda x: convolution(x, 3, 2, padding="SAME", dilations=[1, 3]), X),
    "depthwise": (
        lambda x: tf.nn.depthwise_conv2d(
            x, randoms(3, 2, 4, 2), [1, 1, 1, 1], "SAME", dilations=[2, 2]
        ),
        X,
    ),
    "causal": (keras.layers.Conv1D(5, 3, dilation_rate=4, padding="causal"), ROW),
    "by hand": (between_blocks([[0, 1], [0, 2]]), X[:, :, :6]),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("function", "x"), DILATED.values(), ids=DILATED)
def test_a_dilated_convolution_is_one_layer(function, x, dynamic, tmp_path):
    signature = [open_spec(x)] if dynamic and function is not DILATED["by hand"][0] else None
    found = check(function, [x], tmp_path, signature=signature)
    assert not {"BatchToSpace", "SpaceToBatch"} & {*found}


def test_blocks_that_are_cropped_at_their_beginning_stay(tmp_path):
    found = check(between_blocks([[1, 0], [0, 2]]), [X[:, :, :6]], tmp_path)
    assert {"BatchToSpace", "SpaceToBatch"} <= {*found}


def second(x):
    """With the channels second."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 1))


def steps(last, *steps):
    return [1, *steps, 1] if last else [1, 1, *steps]


def formats(last):
    """Operations on tensors with channels last, or second."""
    name = "NHWC" if last else "NCHW"
    filters, few = randoms(3, 2, 4, 6), randoms(3, 2, 4, 2)
    pads = PADS if last else [PADS[0], PADS[0], PADS[1], PADS[2]]
    shape = [2, 18, 15, 5] if last else [2, 5, 18, 15]
    return {
        "bias": lambda x: tf.nn.bias_add(
            tf.nn.conv2d(x, filters, steps(last, 1, 2), pads, name), randoms(6), name
        ),
        "groups": lambda x: tf.nn.conv2d(x, filters[:, :, :2], 1, "SAME", name),
        "depthwise": lambda x: tf.nn.depthwise_conv2d(
            x, few, steps(last, 2, 2), "SAME", data_format=name
        ),
        "transposed": lambda x: tf.nn.conv2d_transpose(
            x, randoms(3, 3, 5, 4), shape, 2, "SAME", name
        ),
        "largest": lambda x: tf.nn.max_pool2d(x, 2, [2, 1], "SAME", name),
        "means": lambda x: tf.nn.avg_pool2d(x, 2, [2, 1], "SAME", name),
        "norm": lambda x: norm(x, name),
        "blocks": lambda x: tf.nn.depth_to_space(x, 2, name),
        "another op": lambda x: tf.raw_ops.Conv(
            input=x,
            filter=filters,
            strides=steps(last, 1, 2),
            padding="VALID",
            data_format="CHANNELS_LAST" if last else "CHANNELS_FIRST",
        ),
    }


@pytest.mark.parametrize("name", formats(False))
def test_operations_with_channels_second(name, tmp_path):
    """TensorFlow runs them on a GPU alone."""
    path = str(tmp_path / "model.xml")
    function = tf.function(formats(False)[name], autograph=False)
    tf_ti.openvino.save(function, path, [tf.TensorSpec([2, 4, 9, 8])])
    right = second(formats(True)[name](X))
    for (found,) in openvino_models.run(path, [second(X)]), tf_ti.openvino.load(path)(second(X)):
        np.testing.assert_allclose(found, right, 1e-5, 1e-5)
    assert "Transpose" not in types(path)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.uint8, np.int64])
def test_other_dtypes(dtype, tmp_path):
    x = (4 * abs(X)).astype(dtype)

    def run(x):
        found = [
            tf.nn.max_pool2d(x, 2, 2, "SAME"),
            tf.nn.depth_to_space(x, 2),
            tf.image.resize(x, [12, 13]),
            tf.image.resize(x, [12, 13], "nearest"),
        ]
        if dtype in (np.float16, np.float64, np.int32):
            found.append(tf.nn.conv2d(x, tf.constant(4 * randoms(3, 2, 4, 6), x.dtype), 1, "SAME"))
        if dtype == np.float16:
            found.append(norm(x))
        return found

    check(run, [x], tmp_path, tolerance=2e-2 if dtype == np.float16 else 1e-5)


@pytest.mark.parametrize(("groups", "count"), [(1, 6), (2, 6), (4, 4)])
def test_filters_that_are_computed(groups, count, tmp_path):
    def run(x, filters):
        return tf.nn.conv2d(x, tf.tanh(filters), 1, "SAME")

    filters = randoms(3, 2, 4 // groups, count)
    check(run, [X, filters], tmp_path, signature=[open_spec(X), tf.TensorSpec(filters.shape)])


# --- Transposed convolutions ----------------------------------------------------------------------


def extent(size, kernel, stride, padding):
    """The largest extent whose convolution has a size."""
    return size * stride if padding == "SAME" else (size - 1) * stride + kernel + stride - 1


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (2, 3), (4, 2), (1, 2), (3, 1)])
@pytest.mark.parametrize("less", [0, 1])
@pytest.mark.parametrize("known", ["all", "the shape", "nothing"])
def test_transposed_convolutions(kernel, stride, padding, less, known, tmp_path):
    filters = randoms(kernel, kernel, 5, 4)
    less = min(less, stride - 1)
    sides = np.int32([extent(n, kernel, stride, padding) - less for n in (9, 8)])

    def run(x, sides):
        shape = tf.concat([tf.shape(x)[:1], sides, [5]], 0)
        return tf.nn.conv2d_transpose(x, filters, shape, stride, padding)

    if known == "nothing":
        check(run, [X, sides], tmp_path, signature=[open_spec(X), tf.TensorSpec([2], tf.int32)])
    else:
        signature = [open_spec(X)] if known == "the shape" else None
        check(lambda x: run(x, sides), [X], tmp_path, signature=signature)


def test_transposed_convolutions_with_explicit_pads(tmp_path):
    """Of an input's shape, as the gradient of a convolution is."""

    def run(x, like):
        return tf.raw_ops.Conv2DBackpropInput(
            input_sizes=tf.shape(like),
            filter=randoms(3, 2, 5, 4),
            out_backprop=x,
            strides=[1, 2, 1, 1],
            padding="EXPLICIT",
            explicit_paddings=[0, 0, 1, 2, 0, 1, 0, 0],
        )

    like = randoms(2, 17, 8, 5)
    check(run, [X, like], tmp_path)
    check(run, [X, like], tmp_path, signature=[open_spec(X), open_spec(like)])


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_transposed_convolutions_of_other_kinds(dynamic, tmp_path):
    def volumes(x):
        shape = tf.concat([tf.shape(x)[:1], 2 * tf.shape(x)[1:4], [2]], 0)
        return tf.nn.conv3d_transpose(x, randoms(3, 3, 3, 2, 3), shape, 2, "SAME")

    def depthwise(x):
        shape = tf.concat([tf.shape(x)[:1], 2 * tf.shape(x)[1:3], [2]], 0)
        return tf.nn.depthwise_conv2d_backprop_input(
            shape, randoms(3, 3, 2, 2), x, [1, 2, 2, 1], "SAME"
        )

    for run, x in (volumes, VOLUME), (depthwise, X):
        check(run, [x], tmp_path, signature=[open_spec(x)] if dynamic else None)


def test_transposed_convolutions_of_groups(tmp_path):
    """TensorFlow runs them with oneDNN alone."""
    path, filters, shape = str(tmp_path / "model.xml"), randoms(3, 3, 3, 4), [2, 18, 16, 6]

    def run(x):
        return tf.raw_ops.Conv2DBackpropInput(
            input_sizes=shape, filter=filters, out_backprop=x, strides=[1, 2, 2, 1], padding="SAME"
        )

    tf_ti.openvino.save(run, path, [tf.TensorSpec(X.shape)])
    parts = zip(np.split(X, 2, -1), np.split(filters, 2, -1))
    right = tf.concat(
        [tf.nn.conv2d_transpose(x, own, [*shape[:3], 3], 2, "SAME") for x, own in parts], -1
    )
    for (found,) in openvino_models.run(path, [X]), tf_ti.openvino.load(path)(X):
        np.testing.assert_allclose(found, right, 1e-5, 1e-5)


# --- Resizing and pads ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["corners", "centers", "neither"])
@pytest.mark.parametrize("op", ["ResizeBilinear", "ResizeNearestNeighbor"])
def test_resizing(op, mode, tmp_path):
    def run(x, size=None):
        sizes = [[18, 16], [5, 11], [27, 24], [4, 3]] if size is None else [size]
        return [
            getattr(tf.raw_ops, op)(
                images=x,
                size=size,
                align_corners=mode == "corners",
                half_pixel_centers=mode == "centers",
            )
            for size in sizes
        ]

    check(run, [X], tmp_path)
    signature = [open_spec(X), tf.TensorSpec([2], tf.int32)]
    check(run, [X, np.int32([13, 4])], tmp_path, signature=signature)


def test_pads_that_only_the_run_knows(tmp_path):
    def run(x, pads):
        return [
            tf.pad(x, pads),
            tf.pad(x, pads, constant_values=2.0),
            tf.pad(x, pads, "REFLECT"),
            tf.pad(x, pads, "SYMMETRIC"),
        ]

    signature = [tf.TensorSpec([None, None]), tf.TensorSpec([2, 2], tf.int32)]
    check(run, [randoms(3, 4), np.int32([[1, 2], [0, 1]])], tmp_path, signature=signature)


def test_blocks_with_pads_that_only_the_run_knows(tmp_path):
    def run(x, pads):
        return tf.batch_to_space(tf.space_to_batch(x, [2, 3], pads), [2, 3], pads)

    arrays = [X, np.int32([[1, 0], [2, 2]])]
    check(run, arrays, tmp_path, signature=[open_spec(X), tf.TensorSpec([2, 2], tf.int32)])


# --- Where channels are ---------------------------------------------------------------------------


def convolved(x, channels=4, rank=2):
    return getattr(tf.nn, f"conv{rank}d")(x, randoms(*[3] * rank, x.shape[-1], channels), 1, "SAME")


def test_no_transposes_between_convolutions(tmp_path):
    def run(x):
        y = tf.nn.relu(convolved(x) + randoms(4))
        gate = tf.sigmoid(convolved(tf.reduce_mean(y, [1, 2], keepdims=True)))
        y = tf.nn.bias_add(convolved(y * gate), randoms(4)) + y
        y = tf.nn.max_pool2d(norm(tf.nn.leaky_relu(y)), 2, 2, "SAME")
        y = tf.concat([y, tf.pad(y, [[0, 0], [1, 1], [0, 2], [0, 0]])[:, 2:, 2:, :]], -1)
        y = tf.nn.softmax(convolved(tf.clip_by_value(y, -1, 1)))
        return tf.reduce_max(tf.where(y > 0.5, y, tf.math.log1p(y)), [1, 2])

    found = check(run, [X], tmp_path, tolerance=1e-4)
    assert found.count("Transpose") == 1  # of the input: the output has no spatial axes


def test_no_transposes_around_gelu(tmp_path):
    def run(x):
        return tf.nn.conv2d(tf.nn.gelu(tf.nn.conv2d(x, few, 1, "SAME")), few, 1, "SAME")

    few = randoms(3, 2, 4, 4)
    assert check(run, [X], tmp_path).count("Transpose") == 2


def test_no_transposes_between_convolutions_of_rows(tmp_path):
    found = check(lambda x: convolved(tf.nn.relu(convolved(x, rank=1)), rank=1), [ROW], tmp_path)
    assert found.count("Transpose") == 2


OPERANDS = {
    "a number": ((), ()),
    "channels": ((4,), (4,)),
    "rows": ((8, 1), (None, 1)),
    "a picture": ((9, 8, 4), (9, 8, 4)),
    "unknown extents": ((2, 9, 1, 4), (None, None, None, 4)),
    "a batch": ((2, 1, 1, 4), (None, 1, 1, 4)),
    "more axes": ((3, 2, 1, 1, 4), (3, 2, 1, 1, 4)),
}


@pytest.mark.parametrize(("shape", "spec"), OPERANDS.values(), ids=OPERANDS)
@pytest.mark.parametrize("is_constant", [False, True], ids=["computed", "constant"])
def test_operands_beside_channels(shape, spec, is_constant, tmp_path):
    y = np.float32(randoms(*shape) if shape else 2)

    def run(x, y):
        z = convolved(x) * y - tf.where(y > 0, convolved(x), y)
        return z if len(shape) == 5 else convolved(z)

    if is_constant:
        check(lambda x: run(x, y), [X], tmp_path, tolerance=1e-4)
    else:
        check(run, [X, y], tmp_path, tolerance=1e-4, signature=[X_SPEC, tf.TensorSpec(spec)])


X_SPEC = tf.TensorSpec([None, 9, 8, 4])
AXES = [[0], [1], [2], [-1], [1, 2], [1, 3], [0, 1, 2], [0, 1, 2, 3], []]


def test_reductions_and_axes_beside_channels(tmp_path):
    def run(x):
        y = convolved(x)
        return [
            *(tf.reduce_sum(y, axes, keepdims=keep) for axes in AXES for keep in (False, True)),
            *(tf.expand_dims(y, axis) for axis in range(5)),
            *(tf.squeeze(tf.expand_dims(y, axis), axis) + 1 for axis in range(5)),
            *(tf.concat([y, y], axis) for axis in range(4)),
            *(tf.nn.softmax(y, axis) for axis in range(4)),
            tf.tile(y, [1, 2, 1, 3]),
            y[:, 1:-1, ::-2, 1:],
            y[:, 1:-1],
            y[:, 1, :, :],
            y[..., 1:],
            tf.transpose(y, [0, 3, 1, 2]),
            tf.transpose(y, [3, 0, 1, 2]),
            y,
        ]

    check(run, [X], tmp_path, tolerance=1e-4)


# --- Models of Keras, and those that were loaded --------------------------------------------------

L = keras.layers


def by_rank(rank):
    """Layers for tensors of a number of spatial axes."""
    layer = lambda name: getattr(L, name.replace("#", f"{rank}D"))  # noqa: E731
    few = range(1, rank + 1)
    return {
        "convolutions": [
            layer("Conv#")(6, 3, activation="relu", padding="same"),
            layer("Conv#")(4, 2, strides=2),
            L.BatchNormalization(),
            L.ReLU(6.0),
            layer("Conv#")(3, 2, dilation_rate=2),
        ],
        "transposed": [
            layer("Conv#Transpose")(4, 3, strides=2, padding="same", activation="elu"),
            layer("Conv#Transpose")(2, 1, strides=2),
        ],
        "pools": [
            layer("MaxPooling#")(2, padding="same"),
            layer("AveragePooling#")(2, 1, padding="same"),
            layer("MaxPooling#")(2),
        ],
        "a mean": [layer("Conv#")(5, 3), layer("GlobalAveragePooling#")(), L.Dense(3)],
        "a maximum": [layer("Conv#")(5, 3), layer("GlobalMaxPooling#")(keepdims=True)],
        "more and less": [
            layer("UpSampling#")(2),
            layer("ZeroPadding#")(1),
            layer("Conv#")(5, 3),
            layer("Cropping#")(1),
        ],
        "norms": [
            L.LayerNormalization(),
            layer("Conv#")(6, 3),
            L.GroupNormalization(3),
            L.PReLU(shared_axes=list(few)),
        ],
    } | (
        {
            "separable": [
                layer("SeparableConv#")(6, 3, padding="same", depth_multiplier=2),
                layer("DepthwiseConv#")(2, strides=2),
                layer("Conv#")(4, 2, groups=2),
            ]
        }
        if rank < 3
        else {}
    )


@pytest.mark.quarter
@pytest.mark.parametrize(
    ("rank", "name"), [(rank, name) for rank in (1, 2, 3) for name in by_rank(rank)]
)
def test_models_of_keras(rank, name, tmp_path):
    x = randoms(2, *(9, 8, 7)[:rank], 4)
    layers = by_rank(rank)[name]
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(x.shape[1:]), *layers])
    for weight in model.weights:
        weight.assign(abs(randoms(*weight.shape)) + 0.5 if "var" in weight.path else weight)
    path, again = str(tmp_path / "model.xml"), str(tmp_path / "again.xml")
    tf_ti.openvino.save(model, path)
    loaded = tf_ti.openvino.load(path)
    tf_ti.openvino.save(loaded, again)
    for found in openvino_models.run(path, [x]), loaded(x), openvino_models.run(again, [x]):
        np.testing.assert_allclose(found[0], model(x), 1e-4, 1e-4)


o = ov.opset15
OF_OPENVINO = {
    "Convolution": lambda x: o.convolution(x, randoms(6, 4, 3, 2), [2, 1], [1, 0], [0, 2], [1, 2]),
    "GroupConvolution": lambda x: o.group_convolution(
        x, randoms(2, 3, 2, 3, 2), [1, 1], [1, 0], [0, 2], [1, 1]
    ),
    "depthwise": lambda x: o.group_convolution(
        x, randoms(4, 2, 1, 3, 2), [2, 1], [1, 0], [0, 2], [1, 2]
    ),
    "ConvolutionBackpropData": lambda x: o.convolution_backprop_data(
        x, randoms(4, 6, 3, 2), [2, 1], None, [1, 0], [0, 1], [1, 1], output_padding=[1, 0]
    ),
    "GroupConvolutionBackpropData": lambda x: o.group_convolution_backprop_data(
        x, randoms(2, 2, 3, 3, 2), [2, 1], None, [1, 0], [0, 1], [1, 1], "explicit", [1, 0]
    ),
    "MaxPool-1": lambda x: ov.opset1.max_pool(x, [2, 3], [1, 0], [0, 1], [3, 2], "ceil"),
    "MaxPool-8": lambda x: ov.opset8.max_pool(x, [2, 1], [2, 1], [1, 1], [0, 1], [2, 2]),
    "MaxPool-14": lambda x: o.max_pool(
        x, [2, 1], [1, 1], [1, 1], [0, 1], [3, 2], "ceil_torch"
    ).output(0),
    "AvgPool": lambda x: o.avg_pool(x, [2, 1], [1, 1], [1, 1], [3, 2], False),
    "BatchNormInference": lambda x: o.batch_norm_inference(
        x, *(abs(randoms(4)) + k for k in range(4)), 1e-3
    ),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", OF_OPENVINO)
def test_what_was_loaded_can_be_saved(name, dynamic, tmp_path):
    x = second(X)
    first, again = (str(tmp_path / name) for name in ("first.xml", "again.xml"))
    shape = [-1, 4, -1, -1] if dynamic else x.shape
    parameter = o.parameter(shape, np.float32, name="x")
    output = OF_OPENVINO[name](parameter)
    outputs = output.outputs() if isinstance(output, ov.Node) else [output]
    results = [o.result(output) for output in outputs]
    openvino_models.save(ov.Model(results, [parameter], "model"), first)
    tf_ti.openvino.save(tf_ti.openvino.load(first), again)
    right = openvino_models.run(first, [x])
    for found in openvino_models.run(again, [x]), tf_ti.openvino.load(again)(x):
        for value, expected in zip(found, right, strict=True):
            np.testing.assert_allclose(value, expected, 1e-4, 1e-4)


# --- What OpenVINO lacks --------------------------------------------------------------------------

REFUSED = {
    "training": (
        lambda x: tf.compat.v1.nn.fused_batch_norm(x, [1.0] * 4, [0.0] * 4)[0],
        "FusedBatchNormV3.*is_training",
    ),
    "windows over channels": (
        lambda x: tf.nn.max_pool2d(x, [1, 1, 1, 2], [1, 1, 1, 2], "VALID"),
        r"MaxPool.*ksize=\[1, 1, 1, 2\].*spatial axes alone",
    ),
    "blocks of vectors": (
        lambda x: tf.raw_ops.DepthToSpace(
            input=tf.cast(tf.zeros([1, 4, 2, 2, 4]), tf.int8), block_size=2,
            data_format="NCHW_VECT_C",
        ),
        "NCHW_VECT_C",
    ),
    "batches": (
        lambda x: tf.raw_ops.Conv(
            input=x[tf.newaxis], filter=randoms(3, 3, 4, 6), strides=[1] * 4, padding="SAME",
            batch_dims=2,
        ),
        "one batch axis",
    ),
    "a bias below 0": (lambda x: tf.nn.lrn(x, bias=-1.0), "bias=-1.0"),
    "integers": (
        lambda x: tf.image.resize(tf.cast(x, tf.int16), [3, 4], "nearest"),
        "does not resize int16",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("function", "match"), REFUSED.values(), ids=REFUSED)
def test_what_openvino_lacks_is_named(function, match, tmp_path):
    with pytest.raises(IRError, match=match):
        tf_ti.openvino.save(tf.function(function), tmp_path / "m.xml", [X_SPEC])


def test_sizes_that_must_be_known(tmp_path):
    def blocks(x, blocks):
        return tf.space_to_batch(x, blocks, [[0, 0], [0, 0]])

    def filters(x, filters):
        return tf.nn.conv2d_transpose(x, filters, tf.constant([2, 18, 16, 5]), 2, "SAME")

    specs = tf.TensorSpec([2], tf.int32), tf.TensorSpec([None, None, 5, 4])
    for (function, spec), match in zip(
        ((blocks, specs[0]), (filters, specs[1])), ("SpaceToBatchND.*input 1", "extents")
    ):
        with pytest.raises(IRError, match=match):
            tf_ti.openvino.save(function, tmp_path / "m.xml", [X_SPEC, spec])
