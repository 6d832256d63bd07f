"""Models whose arithmetic Grappler and XLA would rewrite: each runs as it is written.

A negated comparison, a quotient by a constant and one of 1, an exponent, a sum of constants: each
model runs operation by operation, in a function, and compiled. Its inputs have NaN, infinities,
and numbers at the edges of rounding, comparisons and images.
"""

import numpy as np
import openvino as ov
import pytest
import tensorflow as tf
from openvino_models import make, run, save

import tf_ti.openvino

o = ov.opset15
INFINITE = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1, -1, 3, -2, 0.5] * 4, np.float32)
SEVENTHS = np.arange(-70, 71, dtype=np.float32) * np.float32(3.5)
IMAGE = np.random.default_rng(0).uniform(1, 2, (1, 18, 20, 20)).astype(np.float32)


def each_way(path, inputs, compiled=True):
    """The results of a model: by name of the way, and operation by operation first."""
    module = tf_ti.openvino.load(path)
    tensors = [tf.constant(value) for value in inputs]
    tf.config.run_functions_eagerly(True)
    try:
        yield "eagerly", [y.numpy() for y in module(*tensors)]
    finally:
        tf.config.run_functions_eagerly(False)
    yield "in a function", [y.numpy() for y in module(*tensors)]
    if compiled:
        function = tf.function(lambda *x: module(*x), jit_compile=True, autograph=False)
        yield "compiled", [y.numpy() for y in function(*tensors)]


def number(value):
    return o.constant(np.float32(value))


COMPARISONS = {
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
}


def test_the_opposite_of_a_comparison_is_true_of_nan(tmp_path):
    """Against NumPy: OpenVINO's answer depends on the processor."""
    zero, true = number(0), o.constant(np.array(True))
    model = make(
        lambda x: [
            y
            for name in COMPARISONS
            for condition in [getattr(o, name)(x, zero)]
            for y in (
                o.logical_not(condition),
                o.logical_xor(condition, true),
                o.bitwise_not(condition),
                o.select(o.logical_not(condition), number(1), number(2)),
            )
        ],
        INFINITE,
    )
    path = save(model, tmp_path / "model.xml")
    expected = []
    for compare in COMPARISONS.values():
        opposite = ~compare(INFINITE, 0)
        expected += [opposite] * 3 + [np.where(opposite, 1, 2)]
    for way, results in each_way(path, [INFINITE]):
        for actual, right in zip(results, expected, strict=True):
            np.testing.assert_array_equal(actual, right, way)


@pytest.mark.parametrize("divisor", [3, 7, 49, 0.3, 8])
def test_quotients_by_constants_are_rounded_as_quotients(tmp_path, divisor):
    values = SEVENTHS * np.float32(divisor / 7)
    divisor = np.float32(divisor)

    def functions(x):
        quotient = o.divide(x, o.constant(divisor))
        return [
            quotient,
            o.floor(quotient),
            o.ceiling(quotient),
            o.round(quotient, "half_away_from_zero"),
            o.convert(quotient, "i32"),
            o.greater_equal(quotient, number(3)),
            o.floor(o.divide(number(1), x)),
            o.floor(o.power(x, number(-1))),
        ]

    path = save(make(functions, values), tmp_path / "model.xml")
    with np.errstate(divide="ignore"):
        quotient, reciprocal = values / divisor, 1 / values
    away = np.sign(quotient) * np.floor(np.abs(quotient) + np.float32(0.5))
    expected = [quotient, np.floor(quotient), np.ceil(quotient), away, quotient.astype(np.int32)]
    expected += [quotient >= 3, np.floor(reciprocal), np.floor(reciprocal)]
    for way, results in each_way(path, [values]):
        for actual, right in zip(results, expected, strict=True):
            np.testing.assert_array_equal(actual, right, way)


def test_powers_of_infinities_and_zeros(tmp_path):
    exponents = (0.5, -0.5, -1, 0, 1, 2, 3)
    path = save(
        make(lambda x: [o.power(x, number(each)) for each in exponents], INFINITE),
        tmp_path / "model.xml",
    )
    with np.errstate(all="ignore"):
        # Exponents in arrays: NumPy has roots for numbers.
        expected = [np.power(INFINITE, np.full_like(INFINITE, each)) for each in exponents]
    for way, results in each_way(path, [INFINITE]):
        for actual, right in zip(results, expected, strict=True):
            np.testing.assert_allclose(actual, right, 1e-6, err_msg=way)
            is_number = ~np.isnan(right)
            signs = (np.signbit(numbers[is_number]) for numbers in (actual, right))
            np.testing.assert_array_equal(*signs)


def test_numbers_between_two_levels_are_quantized_alike(tmp_path):
    low, high = number(0), number(49)
    path = save(
        make(lambda x: o.fake_quantize(x, low, high, low, high, 8), SEVENTHS),
        tmp_path / "model.xml",
    )
    position = np.round(SEVENTHS / np.float32(49) * np.float32(7))
    expected = np.clip(position * 7, 0, 49)
    for way, (actual,) in each_way(path, [SEVENTHS]):
        np.testing.assert_allclose(actual, expected, 1e-6, err_msg=way)


def test_means_of_integers_between_two_numbers_are_even(tmp_path):
    values = np.arange(1, 29, dtype=np.int32).reshape(1, 1, 28)
    path = save(
        make(lambda x: o.adaptive_avg_pool(x, o.constant(np.array([2]))), values),
        tmp_path / "model.xml",
    )
    for way, (actual,) in each_way(path, [values]):
        np.testing.assert_array_equal(actual, [[[8, 22]]], way)  # of 7.5 and 21.5


def rois_of(sides, image=True):
    boxes = [[0, 0, w, h] for w in sides for h in sides]
    return np.array(boxes, np.float32), np.zeros(len(boxes), np.int32)


EDGES = np.array(
    [[0, a, b, 1, 1] for a in (0, 0.1, 0.3, 0.45, 0.7) for b in (0.05, 0.2, 0.33)], np.float32
)
TURNED = np.array([[10, 10, w, h, 0.3] for w in (7, 21, 14) for h in (7, 21, 14)], np.float32)
# A function of nodes, arrays, whether XLA compiles it.
REGIONS = {
    "roi_align-0": (
        lambda x, r, i: o.roi_align(x, r, i, 7, 7, 0, 1.0, "avg"),
        (IMAGE, *rois_of((7, 14, 21, 35))),
        False,
    ),
    "roi_align-2": (
        lambda x, r, i: o.roi_align(x, r, i, 7, 7, 2, 1.0, "avg"),
        (IMAGE, *rois_of((7, 14, 20, 21))),
        True,
    ),
    "roi_align_rotated-0": (
        lambda x, r, i: o.roi_align_rotated(x, r, i, 7, 7, 0, 1.0, True),
        (IMAGE, TURNED, np.zeros(9, np.int32)),
        False,
    ),
    "psroi_pooling-bilinear": (
        lambda x, r: o.psroi_pooling(x, r, 2, 3, 1.0, 3, 3, "bilinear"),
        (IMAGE, EDGES),
        True,
    ),
    "psroi_pooling-average": (
        lambda x, r: o.psroi_pooling(x, r, 2, 3, 1.0, 1, 1, "average"),
        (IMAGE, EDGES * np.float32([1, 14, 14, 14, 14])),
        False,
    ),
}


@pytest.mark.parametrize("name", REGIONS)
def test_regions_at_edges_of_images_and_of_whole_numbers_are_openvinos(tmp_path, name):
    function, arrays, is_compiled = REGIONS[name]
    path = save(make(function, *arrays), tmp_path / "model.xml")
    (expected,) = run(path, arrays)
    for way, (actual,) in each_way(path, arrays, is_compiled):
        np.testing.assert_allclose(actual, expected, 1e-3, 1e-3, err_msg=way)


GRADIENTS = {
    "roi_align-avg": (
        lambda x, r, i: o.roi_align(x, r, i, 3, 2, 0, 0.7, "avg"),
        (IMAGE[:, :, :9, :8], rois_of((3, 7, 9))[0][:4], np.zeros(4, np.int32)),
    ),
    "roi_align-max": (
        lambda x, r, i: o.roi_align(x, r, i, 3, 2, 0, 0.7, "max"),
        (IMAGE[:, :, :9, :8], rois_of((3, 7, 9))[0][:4], np.zeros(4, np.int32)),
    ),
    "psroi_pooling-average": (
        lambda x, r: o.psroi_pooling(x, r, 2, 3, 1.0, 1, 1, "average"),
        (IMAGE[:, :, :9, :8], EDGES * np.float32([1, 8, 8, 8, 8])),
    ),
    "roi_pooling-max": (
        lambda x, r: o.roi_pooling(x, r, np.array([2, 3]), np.float32(1), "max"),
        (np.round(IMAGE[:, :, :9, :8]), EDGES * np.float32([1, 8, 8, 8, 8])),
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_regions_under_xla(tmp_path, name):
    function, arrays = GRADIENTS[name]
    module = tf_ti.openvino.load(save(make(function, *arrays), tmp_path / "model.xml"))
    x, rois, *rest = map(tf.constant, arrays)

    def gradients():
        with tf.GradientTape() as tape:
            tape.watch([x, rois])
            loss = tf.reduce_sum(tf.sin(module(x, rois, *rest)[0]))
        found = tape.gradient(loss, [x, rois], unconnected_gradients="zero")
        return [loss, *found]

    expected = tf.function(gradients)()
    actual = tf.function(gradients, jit_compile=True, autograph=False)()
    for a, e in zip(actual, expected):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4)
    assert np.any(expected[1])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel", "tf_half_pixel_for_nn"])
def test_the_nearest_pixels_are_openvinos(tmp_path, coordinates, dynamic):
    image = np.arange(42 * 50, dtype=np.float32).reshape(1, 1, 42, 50)
    scales = (7.0, 1.1)

    def functions(x):
        return [
            o.interpolate(
                x,
                o.constant(np.float32([scale, scale])),
                mode="nearest",
                shape_calculation_mode="scales",
                coordinate_transformation_mode=coordinates,
                nearest_mode=nearest,
                axes=o.constant(np.array([2, 3])),
            )
            for scale in scales
            for nearest in ("floor", "ceil", "round_prefer_ceil")
        ]

    path = save(make(functions, image, dynamic=dynamic), tmp_path / "model.xml")
    expected = run(path, [image])
    for way, results in each_way(path, [image]):
        for actual, right in zip(results, expected, strict=True):
            np.testing.assert_array_equal(actual, right, way)


def test_boxes_that_are_the_same_or_infinite_are_chosen_alike(tmp_path):
    boxes = np.float32([[0, 0, 4, 4], [0, 0, 4, 4], [0, 0, np.inf, np.inf], [1, 1, 5, 5]] * 2)
    scores = np.float32([[0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]])
    arrays = boxes[np.newaxis], scores[np.newaxis]

    def functions(b, s):
        return [
            *o.matrix_nms(b, s, background_class=-1, nms_top_k=8, keep_top_k=8).outputs(),
            *o.multiclass_nms(b, s, background_class=-1, iou_threshold=0.5).outputs(),
        ]

    path = save(make(functions, *arrays), tmp_path / "model.xml")
    (_, eager), *others = each_way(path, arrays, compiled=False)
    for way, results in others:
        for actual, right in zip(results, eager, strict=True):
            np.testing.assert_array_equal(actual, right, way)
