"""Images in `tf_ti.openvino.save`: resized, projected, cut to patches, and their colours."""

import importlib

import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.quarter
pytest.importorskip("openvino")
openvino_saving = importlib.import_module("openvino_saving")
check = openvino_saving.check

IMAGES = np.random.default_rng(0).random((2, 8, 7, 3)).astype(np.float32)
VOLUMES = np.random.default_rng(0).random((2, 4, 5, 4, 2)).astype(np.float32)
TRANSFORMS = np.asarray(
    [[1, 0.2, -1, 0.1, 0.9, 0.5, 0, 0.01], [0.5, 0, 1, 0, 2, -3, 0, 0]], np.float32
)
KERNELS = "lanczos1 lanczos3 lanczos5 gaussian box triangle keyscubic mitchellcubic".split()


def check_open(function, arrays, folder, is_open=True, tolerance=1e-5):
    signature = [tf.TensorSpec([None] * a.ndim if is_open else a.shape, a.dtype) for a in arrays]
    check(function, arrays, folder, tolerance=tolerance, signature=signature)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("method", ["area", "bicubic", "gaussian", "lanczos3", "mitchellcubic"])
def test_resize(method, is_open, antialias, tmp_path):
    def run(x):
        sizes = [5, 12], [16, 3], [8, 7], [1, 1]
        return [tf.image.resize(x, size, method, antialias=antialias) for size in sizes]

    check_open(run, [IMAGES], tmp_path, is_open)


def test_resize_to_a_computed_size(tmp_path):
    def run(x, size):
        return [tf.image.resize(x, size, method) for method in ("area", "bicubic", "lanczos5")]

    check_open(run, [IMAGES, np.asarray([4, 9], np.int32)], tmp_path)


@pytest.mark.parametrize("dtype", [tf.uint8, tf.int32])
def test_resize_integers(dtype, tmp_path):
    def run(x):
        x = tf.cast(255 * x, dtype)
        return [tf.image.resize(x, [5, 12], method) for method in ("area", "bicubic", "lanczos3")]

    check_open(run, [IMAGES], tmp_path, tolerance=1e-4)


@pytest.mark.parametrize("align_corners", [False, True])
def test_resize_as_tensorflow_1_did(align_corners, tmp_path):
    def run(x):
        ops = tf.raw_ops.ResizeBicubic, tf.raw_ops.ResizeArea
        sizes = [5, 12], [1, 3]
        return [
            op(images=x, size=size, align_corners=align_corners) for op in ops for size in sizes
        ]

    check_open(run, [IMAGES], tmp_path)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_scale_and_translate(kernel, antialias, tmp_path):
    def run(x):
        return tf.raw_ops.ScaleAndTranslate(
            images=x,
            size=[6, 9],
            scale=[0.7, 1.6],
            translation=[-1.0, 2.0],
            kernel_type=kernel,
            antialias=antialias,
        )

    check_open(run, [IMAGES], tmp_path)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_patches(padding, tmp_path):
    def run(x, volumes):
        return [
            tf.image.extract_patches(x, [1, 3, 2, 1], [1, 2, 1, 1], [1, 1, 2, 1], padding),
            tf.image.extract_patches(x, [1, 9, 9, 1], [1, 1, 3, 1], [1, 1, 1, 1], padding),
            tf.extract_volume_patches(volumes, [1, 2, 2, 2, 1], [1, 1, 2, 1, 1], padding),
        ]

    # Their ranks, and the channels, are known to these operations.
    check_open(run, [IMAGES, VOLUMES], tmp_path)


@pytest.mark.parametrize("interpolation", ["NEAREST", "BILINEAR"])
@pytest.mark.parametrize("fill_mode", ["CONSTANT", "REFLECT", "WRAP", "NEAREST"])
def test_projections(fill_mode, interpolation, tmp_path):
    def run(x, transforms):
        return [
            tf.raw_ops.ImageProjectiveTransformV3(
                images=x,
                transforms=given,
                output_shape=[9, 6],
                fill_value=0.3,
                interpolation=interpolation,
                fill_mode=fill_mode,
            )
            for given in (
                transforms,
                1.5 * transforms[:1],
                transforms * [1, 1, 30, 1, 1, -30, 1, 1],
            )
        ]

    check_open(run, [IMAGES, TRANSFORMS], tmp_path, tolerance=1e-4)


@pytest.mark.parametrize("interpolation", ["NEAREST", "BILINEAR"])
def test_projections_of_integers(interpolation, tmp_path):
    def run(x, transforms):
        return tf.raw_ops.ImageProjectiveTransformV3(
            images=tf.cast(255 * x, tf.uint8),
            transforms=transforms,
            output_shape=[9, 6],
            fill_value=3.0,
            interpolation=interpolation,
            fill_mode="CONSTANT",
        )

    check_open(run, [IMAGES, TRANSFORMS], tmp_path)


def test_a_projection_of_more_pixels_than_float32_can_count(tmp_path):
    rows = np.arange(5000, dtype=np.float32)[:, np.newaxis]

    def run(rows, transform):
        image = (rows % 97 + tf.range(4000.0) % 89)[tf.newaxis, ..., tf.newaxis]
        moved = tf.raw_ops.ImageProjectiveTransformV3(
            images=image,
            transforms=transform,
            output_shape=[3, 5],
            fill_value=-1.0,
            interpolation="NEAREST",
            fill_mode="CONSTANT",
        )
        return moved

    moved = np.float32([[1, 0, 3990, 0, 1, 4996, 0, 0]])
    check(run, [rows, moved], tmp_path)


def test_projections_without_a_fill_value(tmp_path):
    def run(x, transforms):
        return tf.raw_ops.ImageProjectiveTransformV2(
            images=x, transforms=transforms, output_shape=[9, 6], interpolation="BILINEAR"
        )

    check_open(run, [IMAGES, TRANSFORMS], tmp_path, tolerance=1e-4)


def test_hues_of_negative_numbers(tmp_path):
    x = np.random.default_rng(0).standard_normal((2, 4, 5, 3)).astype(np.float32)
    check(lambda x: tf.image.adjust_hue(x, 0.3), [x], tmp_path, tolerance=1e-4)


@pytest.mark.parametrize("fill_mode", ["REFLECT", "CONSTANT"])
@pytest.mark.parametrize("interpolation", ["NEAREST", "BILINEAR"])
def test_projections_between_pixels(fill_mode, interpolation, tmp_path):
    x = np.random.default_rng(0).integers(0, 200, (2, 5, 6, 3)).astype(np.uint8)
    transforms = np.float32([[1.1, 0.3, -4, 0.2, 0.9, 3, 0.01, -0.02]])

    def run(x):
        return tf.raw_ops.ImageProjectiveTransformV3(
            images=x,
            transforms=transforms,
            output_shape=[7, 8],
            interpolation=interpolation,
            fill_mode=fill_mode,
            fill_value=7.0,
        )

    check(run, [x], tmp_path)


def test_colours(tmp_path):
    def run(x):
        gray = x[..., :1] * tf.ones([3])
        return [
            tf.image.rgb_to_hsv(x),
            tf.image.rgb_to_hsv(gray),
            tf.image.rgb_to_hsv(tf.zeros_like(x)),
            tf.image.hsv_to_rgb(x),
            tf.image.adjust_contrast(x, 2.0),
            tf.image.adjust_saturation(x, 1.5),
            tf.image.adjust_hue(x, 0.2),
            tf.image.adjust_hue(x, -0.7),
        ]

    check_open(run, [IMAGES], tmp_path)


@pytest.mark.parametrize("seed", range(8))
def test_random_sizes(seed, tmp_path):
    rng = np.random.default_rng(seed)
    shape = [int(n) for n in rng.integers(1, 12, 4)]
    sizes = rng.integers(1, 15, (3, 2)).tolist()
    methods = ["area", "bicubic", "lanczos3", "lanczos5", "gaussian", "mitchellcubic"]
    method = methods[rng.integers(len(methods))]
    antialias = bool(rng.random() < 0.5)

    def run(x):
        return [tf.image.resize(x, size, method, antialias=antialias) for size in sizes]

    check_open(run, [rng.random(shape).astype(np.float32)], tmp_path, bool(rng.random() < 0.5))
