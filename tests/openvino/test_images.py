"""Interpolate, GridSample, ROIAlign and NonMaxSuppression of `tf_ti.openvino`, as OpenVINO's.

Where OpenVINO's CPU plugin does not do what the specification says, NumPy does: it ignores
`antialias` of fewer than 5 dimensions and `cube_coeff` of bicubic_pillow, takes the maximum of a
region and of 0, does not pad what NonMaxSuppression-1, 3 and 4 give, suppresses a box whose
overlap is the threshold, and ignores the threshold in soft suppression of version 5.
"""

import numpy as np
import openvino as ov
import openvino.opset1
import openvino.opset3
import openvino.opset4
import openvino.opset5
import openvino.opset9
import openvino.opset10
import openvino.opset11
import openvino_models
import pytest
import tensorflow as tf

import tf_ti.openvino

COORDINATES = (
    "half_pixel",
    "pytorch_half_pixel",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "align_corners",
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")
both_shapes = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])


@pytest.fixture
def rng():
    return np.random.default_rng(15)


def f32(*values):
    return np.array(values, np.float32)


def i64(*values):
    return np.array(values, np.int64)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def saved(path, function, arrays, dynamic=False, constants=(), kept=()):
    """The model's file; extents in `kept` stay known, (input, axis)."""
    model = openvino_models.make(function, *arrays, constants=constants)
    if dynamic:
        shapes = {}
        inputs = [i for i in range(len(arrays)) if i not in constants]
        for node, i in zip(model.inputs, inputs):
            extents = [
                extent if (i, axis) in kept else -1 for axis, extent in enumerate(arrays[i].shape)
            ]
            shapes[node] = ov.PartialShape(extents)
        model.reshape(shapes)
    return openvino_models.save(model, path / "model.xml")


def answers(path, function, arrays, dynamic=False, constants=(), kept=()):
    """Ours and OpenVINO's."""
    file = saved(path, function, arrays, dynamic, constants, kept)
    inputs = [array for i, array in enumerate(arrays) if i not in constants]
    module = tf_ti.openvino.load(file)
    # Known shapes are traced in test_modes.py, so here operation by operation.
    tf.config.run_functions_eagerly(not dynamic)
    try:
        ours = [tensor.numpy() for tensor in module(*inputs)]
    finally:
        tf.config.run_functions_eagerly(False)
    return ours, openvino_models.run(file, inputs)


def check(*args, tolerance=1e-5, **kwargs):
    ours, theirs = answers(*args, **kwargs)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs):
        assert mine.dtype == other.dtype
        assert mine.shape == other.shape
        np.testing.assert_allclose(mine, other, rtol=tolerance, atol=tolerance)


def interpolate(mode, kind="sizes", **attributes):
    def function(x, values, *axes):
        return openvino.opset11.interpolate(
            x, values, mode, kind, axes=axes[0] if axes else None, **attributes
        )

    return function


# Interpolate.


@both_shapes
@pytest.mark.parametrize("mode", ["linear", "linear_onnx", "cubic"])
def test_modes_and_coordinates(tmp_path, rng, mode, dynamic):
    def function(*nodes):
        return [
            interpolate(mode, coordinate_transformation_mode=coordinates)(*nodes)
            for coordinates in COORDINATES[:: 3 if dynamic else 1]
        ]

    arrays = normal(rng, 1, 2, 5, 7), i64(8, 4), i64(2, 3)
    check(tmp_path, function, arrays, dynamic, constants=(1, 2))


@pytest.mark.parametrize("nearest", NEAREST)
def test_nearest_modes(tmp_path, rng, nearest):
    def function(x, larger, smaller, axes):
        attributes = {"nearest_mode": nearest}
        return [
            interpolate("nearest", coordinate_transformation_mode=mode, **attributes)(*nodes, axes)
            for mode in COORDINATES
            for nodes in ((x, larger), (x, smaller))
        ]

    arrays = normal(rng, 1, 1, 5, 7), i64(8, 10), i64(3, 4), i64(2, 3)
    check(tmp_path, function, arrays, constants=(1, 2, 3))


@both_shapes
@pytest.mark.parametrize("mode", ["nearest", "linear", "linear_onnx", "cubic"])
def test_an_axis_of_one_element(tmp_path, rng, mode, dynamic):
    def function(*nodes):
        return [
            interpolate(mode, coordinate_transformation_mode=coordinates)(*nodes)
            for coordinates in COORDINATES
        ]

    arrays = normal(rng, 1, 2, 5, 7), i64(1, 4), i64(2, 3)
    check(tmp_path, function, arrays, dynamic, constants=(1, 2))


@both_shapes
@pytest.mark.parametrize("mode", ["bilinear_pillow", "bicubic_pillow"])
def test_pillow(tmp_path, rng, mode, dynamic):
    def function(x, axes, *sizes):
        return [interpolate(mode, cube_coeff=-0.5)(x, size, axes) for size in sizes]

    arrays = normal(rng, 1, 5, 7, 2), i64(1, 2), i64(8, 10), i64(3, 4), i64(5, 2)
    check(tmp_path, function, arrays, dynamic, constants=(1, 2, 3, 4))


@both_shapes
@pytest.mark.parametrize("scales", [(1.5, 2.2), (0.7, 1.3)])
def test_scales_and_pads(tmp_path, rng, scales, dynamic):
    pads = {"pads_begin": [0, 0, 1, 0], "pads_end": [0, 0, 0, 2]}

    def function(*nodes):
        modes = "nearest", "linear", "linear_onnx", "cubic"
        return [interpolate(mode, "scales", **pads)(*nodes) for mode in modes]

    arrays = normal(rng, 1, 2, 9, 8), f32(*scales), i64(2, 3)
    check(tmp_path, function, arrays, dynamic, constants=(1, 2))


@pytest.mark.parametrize("scale, extent", [(0.9999995, 10), (0.7, 10), (15 / 411, 411)])
def test_scaled_extents_are_openvinos(tmp_path, rng, scale, extent):
    arrays = normal(rng, 1, 1, 2, extent), f32(scale), i64(3)
    check(tmp_path, interpolate("nearest", "scales"), arrays, constants=(1, 2))


@pytest.mark.parametrize("mode", ["nearest", "linear_onnx"])
@pytest.mark.parametrize("kind, values", [("sizes", i64(4, 11)), ("scales", f32(0.7, 1.4))])
def test_sizes_and_scales_may_be_computed(tmp_path, rng, mode, kind, values):
    arrays = normal(rng, 1, 2, 5, 7), values, i64(2, 3)
    check(tmp_path, interpolate(mode, kind), arrays, constants=(2,))


@both_shapes
@pytest.mark.parametrize(
    "axes, sizes",
    [((3, 2), (3, 7)), ((1, 3), (4, 9)), ((0, 1, 2, 3), (2, 4, 7, 3)), (None, (2, 4, 7, 3))],
    ids=str,
)
def test_axes(tmp_path, rng, axes, sizes, dynamic):
    def function(*nodes):
        return [interpolate(mode)(*nodes) for mode in ("nearest", "cubic")]

    arrays = (normal(rng, 2, 4, 5, 6), i64(*sizes)) + (() if axes is None else (i64(*axes),))
    constants = tuple(range(1, len(arrays)))
    check(tmp_path, function, arrays, dynamic, constants=constants)


def test_axes_that_openvino_does_not_resize(tmp_path, rng):
    x = normal(rng, 2, 3, 2)
    file = saved(tmp_path, interpolate("linear"), (x, i64(4, 3), i64(0, 2)), constants=(1, 2))
    (ours,) = tf_ti.openvino.load(file)(x)
    expected = [linear_by_definition(x[:, i], (4, 3)) for i in range(3)]
    np.testing.assert_allclose(ours, np.stack(expected, 1), rtol=1e-5, atol=1e-5)


@both_shapes
@pytest.mark.parametrize("antialias", [False, True])
def test_linear_of_five_dimensions(tmp_path, rng, antialias, dynamic):
    arrays = normal(rng, 1, 2, 3, 4, 5), i64(5, 3, 2), i64(2, 3, 4)
    function = interpolate("linear", antialias=antialias)
    check(tmp_path, function, arrays, dynamic, constants=(1, 2))


def linear_by_definition(x, sizes):
    """With antialias and half_pixel, all axes."""
    scales = np.array(sizes) / x.shape
    sharpness = scales if (scales < 1).any() else np.ones_like(scales)
    result = np.zeros(sizes)
    for at in np.ndindex(*sizes):
        point = (np.array(at) + 0.5) / scales - 0.5
        weights = {
            place: np.prod(np.maximum(0, 1 - np.abs(sharpness * (point - place))))
            for place in np.ndindex(*x.shape)
        }
        total = sum(weights.values())
        if total:
            result[at] = sum(w * x[place] for place, w in weights.items()) / total
    return result


@both_shapes
@pytest.mark.parametrize("sizes", [(3, 4), (3, 9), (8, 9)])
def test_antialias_of_few_dimensions(tmp_path, rng, sizes, dynamic):
    x = normal(rng, 7, 6)
    arrays, function = (x, i64(*sizes), i64(0, 1)), interpolate("linear", antialias=True)
    (ours,), _ = answers(tmp_path, function, arrays, dynamic, constants=(1, 2))
    np.testing.assert_allclose(ours, linear_by_definition(x, sizes), rtol=1e-4, atol=1e-5)


def bicubic_by_definition(x, size, a):
    scale = len(x) / size
    width = max(scale, 1)
    result = []
    for i in range(size):
        center = (i + 0.5) * scale
        begin = max(int(center - 2 * width + 0.5), 0)
        places = np.arange(begin, min(int(center + 2 * width + 0.5), len(x)))
        d = np.abs(places - center + 0.5) / width
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = (((d - 5) * d + 8) * d - 4) * a
        weights = np.where(d < 1, near, np.where(d < 2, far, 0))
        result.append(weights @ x[places] / weights.sum())
    return np.array(result)


@pytest.mark.parametrize("coefficient", [-0.75, -0.6])
@pytest.mark.parametrize("size", [4, 11])
def test_bicubic_pillow_has_the_coefficient_of_pillow_whatever_the_file_says(
    tmp_path, rng, size, coefficient
):
    x = normal(rng, 7, 3)
    arrays = x, i64(size, 3), i64(0, 1)
    function = interpolate("bicubic_pillow", cube_coeff=coefficient)
    (ours,), (theirs,) = answers(tmp_path, function, arrays, constants=(1, 2))
    np.testing.assert_allclose(ours, bicubic_by_definition(x, size, -0.5), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear_onnx", "bilinear_pillow"])
def test_integers(tmp_path, rng, mode):
    x = rng.integers(0, 255, (1, 2, 6, 8)).astype(np.uint8)
    (ours,), (theirs,) = answers(
        tmp_path, interpolate(mode), (x, i64(4, 11), i64(2, 3)), constants=(1, 2)
    )
    # The order of sums decides how a half is rounded.
    assert ours.dtype == np.uint8
    assert np.abs(ours.astype(int) - theirs).max() <= (mode != "nearest")


@both_shapes
@pytest.mark.parametrize(
    "shape, sizes, axes, pads",
    [
        ((1, 2, 5, 7), (8, 4), [2, 3], [0, 0, 1, 2]),
        ((2, 5, 6), (3, 8), [1, 2], [0]),
        ((1, 2, 3, 4, 5), (5, 3, 3), [2, 3, 4], [0]),
    ],
    ids=["4", "3", "5"],
)
def test_interpolate_1(tmp_path, rng, shape, sizes, axes, pads, dynamic):
    def function(x, sizes):
        common = {"axes": axes, "antialias": False, "pads_begin": pads, "pads_end": pads}
        return [
            openvino.opset1.interpolate(x, sizes, {"mode": mode, "align_corners": align, **common})
            for mode in ("nearest", "linear", "cubic")
            for align in ((False,) if dynamic else (True, False))
        ]

    check(tmp_path, function, (normal(rng, *shape), i64(*sizes)), dynamic, constants=(1,))


@both_shapes
@pytest.mark.parametrize("kind", ["sizes", "scales"])
def test_interpolate_4(tmp_path, rng, kind, dynamic):
    def function(x, sizes, scales, axes):
        # Which is version 4's.
        return [
            openvino.opset10.interpolate(x, sizes, scales, mode, kind, axes=axes)
            for mode in ("nearest", "linear", "linear_onnx", "cubic")
        ]

    arrays = normal(rng, 1, 2, 5, 7), i64(8, 4), f32(0.7, 1.6), i64(2, 3)
    check(tmp_path, function, arrays, dynamic, constants=(1, 2, 3))


# GridSample.


@both_shapes
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample(tmp_path, rng, padding, dynamic):
    def function(x, grid):
        return [
            openvino.opset9.grid_sample(
                x, grid, {"mode": mode, "padding_mode": padding, "align_corners": align}
            )
            for mode in ("bilinear", "nearest", "bicubic")
            for align in ((False,) if dynamic else (True, False))
        ]

    arrays = normal(rng, 2, 3, 5, 7), 1.7 * normal(rng, 2, 4, 6, 2)
    check(tmp_path, function, arrays, dynamic, tolerance=1e-4, kept={(1, 3)})


# ROIAlign.

ROIS = f32([1.2, 0.5, 6.3, 7.1], [0, 0, 20, 12], [3, 3, 3.2, 3.1], [-3, -4, 5, 5.5], [8, 8, 30, 40])
OWNERS = np.array([0, 1, 1, 0, 1], np.int32)


def roi_align(mode, ratio, scale, aligned=None):
    def function(x, rois, owners):
        if aligned is None:
            return openvino.opset3.roi_align(x, rois, owners, 3, 2, ratio, scale, mode)
        return openvino.opset9.roi_align(x, rois, owners, 3, 2, ratio, scale, mode, aligned)

    return function


@both_shapes
@pytest.mark.parametrize("mode, ratio", [("avg", 0), ("avg", 2), ("max", 0), ("max", 2)])
def test_roi_align(tmp_path, rng, mode, ratio, dynamic):
    def function(*nodes):
        return [
            roi_align(mode, ratio, 0.6, aligned)(*nodes)
            for aligned in (None, "half_pixel", "asymmetric", "half_pixel_for_nn")[
                : 2 if dynamic else 4
            ]
        ]

    arrays = np.abs(normal(rng, 2, 3, 8, 10)), ROIS, OWNERS
    check(tmp_path, function, arrays, dynamic, tolerance=1e-4, kept={(1, 1)})


def test_maximum_of_a_region_may_be_negative(tmp_path, rng):
    arrays = -np.abs(normal(rng, 2, 3, 8, 10)), ROIS, OWNERS
    (ours,), _ = answers(tmp_path, roi_align("max", 1, 0.5), arrays)
    _, (samples,) = answers(tmp_path, roi_align("avg", 1, 0.5), arrays)
    np.testing.assert_allclose(ours, samples, rtol=1e-5, atol=1e-5)


def test_empty_regions_are_zero(tmp_path, rng):
    arrays = normal(rng, 1, 2, 8, 10), f32([3, 3, 3, 5]), np.zeros(1, np.int32)
    (ours,), _ = answers(tmp_path, roi_align("avg", 0, 1.0, "half_pixel"), arrays)
    np.testing.assert_array_equal(ours, np.zeros((1, 2, 3, 2)))


def test_no_regions_have_an_answer(tmp_path, rng):
    arrays = normal(rng, 1, 2, 8, 10), np.zeros((0, 4), np.float32), np.zeros(0, np.int32)
    file = saved(tmp_path, roi_align("avg", 0, 1.0), arrays, dynamic=True, kept={(1, 1)})
    (ours,) = tf_ti.openvino.load(file)(*arrays)
    assert ours.shape == (0, 2, 3, 2)


# NonMaxSuppression.

OPSETS = {1: openvino.opset1, 3: openvino.opset3, 4: openvino.opset4, 5: openvino.opset5}
OPSETS[9] = openvino.opset9


def boxes_and_scores(rng):
    boxes = rng.uniform(0, 10, (2, 12, 4)).astype(np.float32)
    return boxes, rng.uniform(0, 1, (2, 3, 12)).astype(np.float32)


def limits(most, iou, score, sigma=None):
    values = np.array(most, np.int64), np.array(iou, np.float32), np.array(score, np.float32)
    return values if sigma is None else (*values, np.array(sigma, np.float32))


def suppression(version, **attributes):
    return lambda *nodes: OPSETS[version].non_max_suppression(*nodes, **attributes)


def corners(box, center):
    if center:
        x, y, w, h = box
        return np.array([x - w / 2, y - h / 2, x + w / 2, y + h / 2])
    return np.array([*np.minimum(box[:2], box[2:]), *np.maximum(box[:2], box[2:])])


def overlap(a, b):
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    common = np.prod(np.maximum(sides, 0))
    union = np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - common
    return common / union if union > 0 else 0


def suppressed_by_definition(boxes, scores, most, iou, least, sigma, version):
    """(batch, class, box, score) in this order, boxes by their scores."""
    result = []
    for n, c in np.ndindex(scores.shape[:2]):
        left = dict(enumerate(scores[n, c].astype(np.float64)))
        for _ in range(most):
            if not left or max(left.values()) <= least:
                break
            best = max(left, key=left.get)
            result.append((n, c, best, left.pop(best)))
            for other in left:
                common = overlap(corners(boxes[n, best], False), corners(boxes[n, other], False))
                if sigma and (version == 9 or common <= iou):
                    left[other] *= np.exp(-0.5 * common**2 / sigma)
                elif common > iou:
                    left[other] = 0
    return np.array(result)


@both_shapes
@pytest.mark.parametrize(
    "encoding, descending", [("corner", True), ("center", True), ("corner", False)]
)
@pytest.mark.parametrize("version", [5, 9])
def test_suppression(tmp_path, rng, version, encoding, descending, dynamic):
    arrays = boxes_and_scores(rng) + limits(4, 0.3, 0.2)
    attributes = {
        "box_encoding": encoding,
        "sort_result_descending": descending,
        "output_type": "i32" if descending else "i64",
    }
    function = suppression(version, **attributes)
    check(tmp_path, function, arrays, dynamic, constants=(2, 3, 4), kept={(0, 2)})


@both_shapes
@pytest.mark.parametrize("most, encoding", [(3, "corner"), (100, "center")])
@pytest.mark.parametrize("version", [1, 3, 4])
def test_older_versions_pad(tmp_path, rng, version, most, encoding, dynamic):
    arrays = boxes_and_scores(rng) + limits(most, 0.3, 0.2)
    function = suppression(version, box_encoding=encoding)
    (ours,), (theirs,) = answers(
        tmp_path, function, arrays, dynamic, constants=(2, 3, 4), kept={(0, 2)}
    )
    rows = min(12, most) * 6 if version == 4 else min(12, most * 3)
    padded = np.pad(theirs, [(0, 72), (0, 0)], constant_values=-1)[:rows]
    np.testing.assert_array_equal(ours, padded)


@pytest.mark.parametrize("version", [3, 4])
def test_output_type_of_older_versions(tmp_path, rng, version):
    arrays = boxes_and_scores(rng) + limits(2, 0.3, 0.2)
    function = suppression(version, output_type="i32")
    (ours,), _ = answers(tmp_path, function, arrays, constants=(2, 3, 4))
    assert ours.dtype == np.int32


@pytest.mark.parametrize("sigma", [None, 0.2], ids=["hard", "soft"])
@pytest.mark.parametrize("version", [5, 9])
def test_suppression_is_that_of_the_definition(tmp_path, rng, version, sigma):
    boxes, scores = boxes_and_scores(rng)
    arrays = boxes, scores, *limits(5, 0.2, 0.1, sigma)
    function = suppression(version, sort_result_descending=False)
    constants = tuple(range(2, len(arrays)))
    (indices, triples, count), _ = answers(tmp_path, function, arrays, constants=constants)
    expected = suppressed_by_definition(boxes, scores, 5, 0.2, 0.1, sigma, version)
    np.testing.assert_array_equal(indices, expected[:, :3].astype(np.int64))
    np.testing.assert_allclose(triples, expected[:, [0, 1, 3]], rtol=1e-5)
    assert count == len(expected)


@both_shapes
def test_soft_suppression_as_openvino(tmp_path, rng, dynamic):
    arrays = boxes_and_scores(rng) + limits(5, 0.3, 0.1, 0.3)
    constants = (2, 3, 4, 5)
    check(tmp_path, suppression(9), arrays, dynamic, constants=constants, kept={(0, 2)})


@pytest.mark.parametrize("version", [1, 3, 4, 5, 9])
def test_without_limits_no_box_is_kept(tmp_path, rng, version):
    (ours, *_), _ = answers(tmp_path, suppression(version), boxes_and_scores(rng))
    assert ours.shape == (0, 3)


@pytest.mark.parametrize("version", [5, 9])
def test_score_threshold_is_optional(tmp_path, rng, version):
    arrays = boxes_and_scores(rng) + limits(3, 0.4, 0)[:2]
    check(tmp_path, suppression(version), arrays, constants=(2, 3))


def test_a_suppressed_box_stays_so_where_scores_are_negative(tmp_path, rng):
    boxes, scores = boxes_and_scores(rng)
    arrays = boxes, scores - np.float32(0.5), *limits(9, 0.1, -0.3)
    check(tmp_path, suppression(9), arrays, constants=(2, 3, 4))


def test_limits_may_be_computed(tmp_path, rng):
    arrays = boxes_and_scores(rng) + limits(3, 0.4, 0.1, 0.3)
    check(tmp_path, suppression(9), arrays, dynamic=True, kept={(0, 2)})


def test_equal_scores_are_in_the_order_of_boxes(tmp_path, rng):
    boxes, scores = boxes_and_scores(rng)
    arrays = boxes, np.minimum(scores, np.float32(0.5)), *limits(4, 0.4, 0.1)
    check(tmp_path, suppression(9), arrays, constants=(2, 3, 4))


# Gradients.


def check_gradient(module, inputs):
    theory, numeric = tf.test.compute_gradient(
        lambda *inputs: module(*inputs)[0], [tf.constant(x) for x in inputs], delta=1e-2
    )
    for one, other in zip(theory, numeric):
        np.testing.assert_allclose(one, other, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "mode, attributes",
    [
        ("nearest", {}),
        ("linear", {"antialias": True}),
        ("linear_onnx", {}),
        ("cubic", {}),
        ("bicubic_pillow", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_gradient_of_interpolate(tmp_path, rng, mode, attributes):
    x = normal(rng, 4, 3)
    arrays = x, i64(3, 5), i64(0, 1)
    file = saved(tmp_path, interpolate(mode, **attributes), arrays, True, (1, 2))
    check_gradient(tf_ti.openvino.load(file), [x])


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_gradient_of_grid_sample(tmp_path, rng, mode):
    # Away from pixels' centers, where it has kinks.
    grid = (rng.integers(0, 3, (1, 1, 2, 2)) + 0.5).astype(np.float32) / 2 - 1
    arrays = normal(rng, 1, 1, 3, 3), grid + np.float32(0.1)
    attributes = {"mode": mode, "padding_mode": "border", "align_corners": False}
    file = saved(tmp_path, lambda x, grid: openvino.opset9.grid_sample(x, grid, attributes), arrays)
    check_gradient(tf_ti.openvino.load(file), arrays)


@pytest.mark.parametrize("ratio, mode", [(0, "avg"), (2, "max")])
def test_gradient_of_roi_align(tmp_path, rng, ratio, mode):
    arrays = normal(rng, 2, 1, 3, 3), ROIS[:2] / 3, OWNERS[:2]
    file = saved(tmp_path, roi_align(mode, ratio, 0.6), arrays, True, kept={(1, 1)})
    module = tf_ti.openvino.load(file)
    theory, numeric = tf.test.compute_gradient(
        lambda x: module(x, *arrays[1:])[0], [tf.constant(arrays[0])], delta=1e-3
    )
    np.testing.assert_allclose(theory[0], numeric[0], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("sigma", [None, 0.3], ids=["hard", "soft"])
def test_gradient_of_selected_scores(tmp_path, rng, sigma):
    arrays = boxes_and_scores(rng) + limits(4, 0.4, 0.2, sigma)
    constants = tuple(range(2, len(arrays)))
    file = saved(tmp_path, suppression(9), arrays, True, constants, kept={(0, 2)})
    module = tf_ti.openvino.load(file)
    boxes, scores = map(tf.constant, arrays[:2])
    with tf.GradientTape() as tape:
        tape.watch([boxes, scores])
        total = tf.reduce_sum(module(boxes, scores)[1][:, 2])
    by_boxes, by_scores = tape.gradient(total, [boxes, scores])
    # Each selected score is its box's score, times what the boxes before it have left.
    np.testing.assert_allclose(tf.reduce_sum(by_scores * scores), total, rtol=1e-5)
    assert (by_boxes is not None and np.abs(by_boxes).max() > 0) == (sigma is not None)
