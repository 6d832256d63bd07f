"""Operations of `tf_ti.openvino`, family by family: compiled by XLA, and with their gradients.

The models are cases of test_operations.py and test_images.py, of known shapes.
"""

import dataclasses

import numpy as np
import openvino as ov
import pytest
import tensorflow as tf
import test_images as images
import test_operations as operations
from openvino_models import save

import tf_ti.openvino
from tf_ti._exact import multiplied

o = operations.o
RNG = np.random.default_rng(16)


def image_case(name, function, *arrays, constants=()):
    return operations.Case(name, function, arrays, constants=constants)


def several(function):
    """Makes one output of the several that a function returns in a list."""
    return lambda *nodes: o.concat([*function(*nodes)], 0)


ROWS = RNG.standard_normal((1, 2, 5, 7)).astype(np.float32)
GRID = RNG.uniform(-0.9, 0.9, (1, 4, 6, 2)).astype(np.float32)
SAMPLE = {"mode": "bilinear", "padding_mode": "border", "align_corners": False}
IMAGES = [
    image_case(
        f"interpolate-{mode}",
        images.interpolate(mode),
        ROWS,
        operations.i64(8, 4),
        operations.i64(2, 3),
        constants=(1, 2),
    )
    for mode in ("nearest", "linear", "linear_onnx", "cubic", "bilinear_pillow")
]
IMAGES += [
    image_case("grid_sample", lambda x, grid: operations.OPSETS[9].grid_sample(x, grid, SAMPLE),
               ROWS, GRID),
    image_case("roi_align", images.roi_align("avg", 2, 0.6, "half_pixel"), ROWS[:, :, :5, :5],
               images.ROIS[:2] / 3, np.zeros(2, np.int32), constants=(1, 2)),
]  # fmt: skip
# Of as many points as values tell; the regions are known, or not.
REGIONS = [
    image_case(f"roi_align-{mode}", images.roi_align(mode, 0, 0.6, "half_pixel"), ROWS,
               images.ROIS / 3, np.zeros(len(images.ROIS), np.int32), constants=constants)
    for mode, constants in (("avg", ()), ("max", ()), ("avg", (1, 2)))
]  # fmt: skip


def cases(family, names):
    return [operations.CASES[family, False][name] for name in names.split()]


def model(path, chosen):
    """One model of several cases, and its inputs."""
    nodes = [operations._outputs(case, False) for case in chosen]
    results = [o.result(output) for outputs, _ in nodes for output in outputs]
    save(ov.Model(results, [p for _, own in nodes for p in own], "model"), path)
    return [array for case in chosen for array in case.inputs()]


COMPILED = {
    "elementwise": [
        *cases("unary", "abs-float32 erf-float32 softplus-float32 asinh-float32"),
        *cases("unary-ints", "sqrt-int32 bitwise_not-int32"),
        *cases("binary", "add-float32 mod-int32 floor_mod-int64 power-float32 not_equal-float32"),
        *cases("activations", "clamp-int32 gelu-tanh-float32 prelu-channels select is_inf"),
        *cases("activations", "round-half_away_from_zero fake_quantize-channels"),
        *cases("convert", "convert-float32-i32 convert-bool-f16"),
    ],
    "shapes": [
        *cases("shapes", "reshape-special squeeze15 split variadic_split-rest tile"),
        *cases("shapes", "broadcast3-explicit"),
        *cases("pads-slices", "pad12-edge pad12-negative strided_slice-shrink slice-two"),
        *cases("gathers", "gather8-batches gather_elements gather_nd8-1"),
        *cases("scatters", "scatter_update scatter_nd15-sum-float32"),
        *cases("scatters", "scatter_elements12-mean-True-float32"),
        *cases("orders", "reverse_sequence one_hot1-axis1 eye-above cum_sum-True-False"),
        *cases("orders", "topk11-max-value depth_to_space-blocks_first-2d"),
        *cases("pads-slices", "pad12-constant-7 pad12-reflect-6"),
        *cases("orders", "reverse_sequence-0-2-6 reverse_sequence--1-0-7"),
        *cases("scatters", "scatter_nd_update-one-matrix-sum"),
    ],
    "reductions": [
        *cases("reductions", "reduce_mean-nothing20-float32"),
        *cases("reductions", "reduce_mean-True-float32 reduce_l2-False-float32 softmax8-0"),
        *cases("normalization", "batch_norm5-4-0.1 group_norm-2 mvn6-True-inside_sqrt"),
        *cases("normalization", "normalize_l2-add-(1,) lrn-3-(1,)"),
    ],
    "products": [
        *cases("products", "matmul-True-False einsum-bij,jk->bik attention-causal dft"),
    ],
    "convolution": [
        *cases("convolution", "conv2-both-explicit-constant group-same_upper depthwise-valid"),
        *cases("deconvolution", "deconv2-explicit-1-2 group-deconv2-valid-0-1"),
        *cases("pooling", "avg_pool14-ceil-False-1 max_pool1-floor max_pool8-floor"),
    ],
    "recurrent": [
        *cases("recurrent", "lstm4 gru3-before rnn1 lstm_sequence-bidirectional"),
        *cases("recurrent", "gru_sequence-reverse rnn_sequence-forward"),
    ],
    "bags": cases("bags", "bag_offsets3 bag_packed3 segments bag_offsets15-mean"),
    "images": IMAGES,
    "regions": [
        *REGIONS,
        *cases("rois", "psroi_pooling-average-3 psroi_pooling-average-end"),
        operations.CASES["rois", False]["roi_pooling-max-[2, 3]-float32"],
        *cases("rois", "roi_pooling-max-end psroi_pooling-bilinear-3"),
    ],
}


@pytest.mark.parametrize("family", COMPILED)
def test_a_compiled_model_answers_alike(tmp_path, family):
    inputs = model(tmp_path / "model.xml", COMPILED[family])
    module = tf_ti.openvino.load(tmp_path / "model.xml")
    compiled = tf.function(module, jit_compile=True)
    for actual, expected in zip(compiled(*inputs), module(*inputs), strict=True):
        operations.assert_same([actual.numpy()], [expected.numpy()], 1e-4)


def test_products_are_rounded_before_xla_adds_to_them():
    """A fused product and sum would differ by a bit in a fifth of the cases."""
    x, y, z = RNG.standard_normal((3, 10_000)).astype(np.float32)
    scale = np.float32(0.6)

    def call(x, y, z):
        return multiplied(x, y) + z, multiplied(x, 0.6) - multiplied(y, 0.6)

    for found, expected in zip(
        tf.function(call, jit_compile=True)(x, y, z), (x * y + z, x * scale - y * scale)
    ):
        np.testing.assert_array_equal(found, expected)


def with_constants(case, *positions):
    return dataclasses.replace(case, constants=positions)


def one(family, name, *positions):
    (case,) = cases(family, name)
    return with_constants(case, *positions) if positions else case


def of_the_first(family, name, position):
    """A case with the first row alone of an input."""
    case = one(family, name)
    arrays = [x[:1] if i == position else x for i, x in enumerate(case.arrays)]
    return dataclasses.replace(case, arrays=tuple(arrays))


DIFFERENTIABLE = [
    *cases("unary", "sin-float32 tanh-float32 erf-float32 mish-float32 hswish-float32"),
    *cases("unary", "softsign-float32 sigmoid-float32 softplus-float32 asinh-float32"),
    one("binary", "add-float32", 1),
    one("binary", "multiply-float32", 1),
    one("binary", "divide-float32", 1),
    one("binary", "power-float32", 0),
    one("activations", "gelu-erf-float32"),
    one("activations", "swish-float32"),
    one("activations", "prelu-channels", 1),
    one("activations", "select", 1, 2),
    one("shapes", "transpose"),
    one("shapes", "concat", 1),
    one("pads-slices", "pad12-reflect"),
    one("pads-slices", "slice-two"),
    one("gathers", "gather8", 2),
    one("gathers", "gather_elements"),
    one("scatters", "scatter_nd15-sum-float32"),
    one("scatters", "scatter_elements12-mean-True-float32"),
    one("orders", "cum_sum-True-False"),
    one("orders", "topk11-max-value"),
    one("reductions", "reduce_l2-False-float32"),
    one("reductions", "reduce_prod-False-float32"),
    one("reductions", "log_softmax-0"),
    one("normalization", "batch_norm5-4-0.1", 1, 2, 3, 4),
    one("normalization", "group_norm-2", 1, 2),
    one("normalization", "mvn6-True-outside_sqrt"),
    one("normalization", "normalize_l2-add-(1,)"),
    one("normalization", "lrn-3-(1,)"),
    one("products", "matmul-True-False-constant"),
    one("products", "einsum-ab,bc,cd->ad", 1),
    one("products", "attention-mask", 1, 3),
    one("products", "dft"),
    one("convolution", "conv2-same_upper-constant"),
    one("convolution", "conv3-explicit-constant"),
    one("convolution", "group-explicit"),
    one("convolution", "depthwise-dilated-explicit"),
    one("convolution", "depthwise-strides-explicit"),
    one("convolution", "depthwise1-dilated"),
    one("deconvolution", "deconv2-explicit-1-2"),
    one("deconvolution", "group-deconv2-valid-0-1"),
    one("pooling", "avg_pool1-ceil-True-1"),
    one("pooling", "max_pool1-floor"),
    one("pooling", "max_pool8-floor"),
    one("recurrent", "lstm4"),
    one("recurrent", "gru3-before"),
    one("recurrent", "lstm_sequence-bidirectional"),
    one("recurrent", "gru_sequence-reverse"),
    one("recurrent", "rnn_sequence-forward"),
    one("bags", "bag_offsets3", 0),
    one("bags", "segments-weights", 0, 3, 4),
    *(case for case in IMAGES if case.name != "roi_align"),
    of_the_first("rois", "psroi_pooling-bilinear-3", 1),  # the others leave the image
    one("suppression", "matrix_nms-few"),
]


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=lambda case: case.name)
def test_gradients_are_slopes(tmp_path, case):
    """Along a random direction, of all floating inputs and variables at once."""
    rng = np.random.default_rng(5)
    inputs = model(tmp_path / "model.xml", [case])
    module = tf_ti.openvino.load(tmp_path / "model.xml", trainable=True)
    floating = [i for i, x in enumerate(inputs) if x.dtype == np.float32]
    given = [tf.Variable(inputs[i]) for i in floating]
    variables = [*given, *module.trainable_variables]
    constants = [case.arrays[i] for i in case.constants]
    many = [c for c in constants if c.dtype == np.float32 and c.size > 1]
    assert len(module.trainable_variables) == len(many)
    weights = None

    def total():
        nonlocal weights
        arrays = list(inputs)
        for i, variable in zip(floating, given):
            arrays[i] = tf.convert_to_tensor(variable)
        outputs = [y for y in module(*arrays) if y.dtype.is_floating]
        if weights is None:
            weights = [rng.standard_normal(y.shape).astype(np.float32) for y in outputs]
        return tf.add_n([tf.reduce_sum(y * w) for y, w in zip(outputs, weights)])

    tf.config.run_functions_eagerly(True)
    try:
        with tf.GradientTape() as tape:
            value = total()
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(value, variables)]
        directions = [rng.standard_normal(v.shape).astype(np.float32) for v in variables]
        expected = sum(float(tf.reduce_sum(g * d)) for g, d in zip(gradients, directions))
        values = []
        for step in (1e-3, -2e-3):
            for variable, direction in zip(variables, directions):
                variable.assign_add(step * direction)
            values.append(float(total()))
    finally:
        tf.config.run_functions_eagerly(False)
    scale = sum(float(tf.norm(g)) for g in gradients)
    assert abs((values[0] - values[1]) / 2e-3 - expected) < 0.02 * scale + 1e-3
