"""Images that are resized, turned, cut to patches, and their colours."""

import math
from collections.abc import Callable

import tensorflow as tf

from tf_ti.openvino.writer.conversion import Node, composes

_LEAST = 1000 * 1.1754944e-38  # smaller sums of weights stay as they are


# --- resizing ------------------------------------------------------------------------------------


def _mixed(images: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """The images' rows and columns, mixed by weights [new, old]."""
    images = tf.cast(images, tf.float32)
    images = tf.einsum("yh,bhwc->bywc", rows, images)
    return tf.einsum("xw,bywc->byxc", columns, images)


def _normalized(weights: tf.Tensor) -> tf.Tensor:
    total = tf.reduce_sum(weights, -1, keepdims=True)
    return tf.where(tf.abs(total) >= _LEAST, tf.math.divide_no_nan(weights, total), weights)


def _extents(images: tf.Tensor, size: tf.Tensor) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """The old and new heights, and widths."""
    shape = tf.shape(images)
    return [(shape[1 + k], size[k]) for k in range(2)]


def _scale(op: Node, old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
    old, new = tf.cast(old, tf.float32), tf.cast(new, tf.float32)
    if not op.attr("align_corners"):
        return old / new
    return tf.where(new > 1, (old - 1) / tf.maximum(new - 1, 1), old / new)


def _numbers(count: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.range(count), tf.float32)


@composes("ResizeBicubic")
def _bicubic(op: Node, images: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    is_half_pixel = op.attr("half_pixel_centers")
    sharpness = -0.5 if is_half_pixel else -0.75

    def weights(old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        at = _numbers(new)
        scale = _scale(op, old, new)
        at = (at + 0.5) * scale - 0.5 if is_half_pixel else at * scale
        low = tf.floor(at)
        # TensorFlow looks the polynomials up in a table of 1,024 numbers.
        x = tf.round((at - low) * 1024) / 1024
        near = [((sharpness + 2) * t - (sharpness + 3)) * t * t + 1 for t in (x, 1 - x)]
        far = [
            ((t * sharpness - 5 * sharpness) * t + 8 * sharpness) * t - 4 * sharpness
            for t in (1 + x, 2 - x)
        ]
        total = tf.zeros([new, old])
        last = tf.cast(old, tf.float32) - 1
        for k, weight in enumerate((far[0], near[0], near[1], far[1])):
            place = low + (k - 1)
            inside = tf.clip_by_value(place, 0, last)
            if is_half_pixel:
                weight = tf.where(place == inside, weight, tf.zeros_like(weight))
            is_place = _numbers(old) == inside[:, tf.newaxis]
            total += tf.where(is_place, weight[:, tf.newaxis], tf.zeros([]))
        return _normalized(total) if is_half_pixel else total

    return _mixed(images, *(weights(*extents) for extents in _extents(images, size)))


@composes("ResizeArea")
def _area(op: Node, images: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    def weights(old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        scale = _scale(op, old, new)
        begin = (_numbers(new) * scale)[:, tf.newaxis]
        end = ((_numbers(new) + 1) * scale)[:, tf.newaxis]
        place = _numbers(old)
        # The last one stands for those behind it too.
        next_place = tf.where(
            place == tf.cast(old, tf.float32) - 1, tf.fill([old], math.inf), place + 1
        )
        return tf.maximum(tf.minimum(next_place, end) - tf.maximum(place, begin), 0) / scale

    return _mixed(images, *(weights(*extents) for extents in _extents(images, size)))


def _sinc_window(radius: int) -> Callable[[tf.Tensor], tf.Tensor]:
    def kernel(x: tf.Tensor) -> tf.Tensor:
        angle = math.pi * x
        is_near = x <= 1e-3
        safe = tf.where(is_near, tf.ones_like(x), angle)
        window = radius * tf.sin(safe) * tf.sin(safe / radius) / (safe * safe)
        return tf.where(is_near, tf.ones_like(x), tf.where(x > radius, tf.zeros_like(x), window))

    return kernel


def _cubic(b: float, c: float) -> Callable[[tf.Tensor], tf.Tensor]:
    """Makes the kernel of Mitchell and Netravali for their two parameters."""

    def kernel(x: tf.Tensor) -> tf.Tensor:
        near = ((12 - 9 * b - 6 * c) * x + (-18 + 12 * b + 6 * c)) * x * x + (6 - 2 * b)
        far = ((-b - 6 * c) * x + (6 * b + 30 * c)) * x + (-12 * b - 48 * c)
        far = far * x + (8 * b + 24 * c)
        return tf.where(x < 1, near, tf.where(x < 2, far, tf.zeros_like(x))) / 6

    return kernel


# The radius of each kernel, and the function of distances.
_KERNELS: dict[str, tuple[float, Callable[[tf.Tensor], tf.Tensor]]] = {
    "box": (0.5, lambda x: tf.where(x < 0.5, 1.0, tf.where(x == 0.5, 0.5, 0.0))),
    "gaussian": (1.5, lambda x: tf.where(x >= 1.5, 0.0, tf.exp(-x * x / (2 * 0.5**2)))),
    "keyscubic": (2.0, _cubic(0.0, 0.5)),
    "lanczos1": (1.0, _sinc_window(1)),
    "lanczos3": (3.0, _sinc_window(3)),
    "lanczos5": (5.0, _sinc_window(5)),
    "mitchellcubic": (2.0, _cubic(1 / 3, 1 / 3)),
    "triangle": (1.0, lambda x: tf.maximum(1 - x, 0)),
}


@composes("ScaleAndTranslate")
def _scale_and_translate(
    op: Node, images: tf.Tensor, size: tf.Tensor, scale: tf.Tensor, translation: tf.Tensor
) -> tf.Tensor:
    radius, kernel = _KERNELS[op.attr("kernel_type")]

    def weights(k: int, old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        step = 1 / scale[k]
        width = tf.maximum(step, 1) if op.attr("antialias") else tf.ones([])
        at = ((_numbers(new) + 0.5) * step - step * translation[k])[:, tf.newaxis]
        place, last = _numbers(old), tf.cast(old, tf.float32) - 1
        first = tf.clip_by_value(tf.math.ceil(at - radius * width - 0.5), 0, last)
        end = tf.clip_by_value(tf.floor(at + radius * width - 0.5), 0, last)
        values = kernel(tf.abs((place + 0.5 - at) / width))
        values = tf.where((place >= first) & (place <= end), values, tf.zeros([]))
        is_outside = (at < 0) | (at > last + 1)
        return tf.where(is_outside, tf.zeros([]), _normalized(values))

    extents = _extents(images, size)
    return _mixed(images, *(weights(k, *extents[k]) for k in range(2)))


# --- patches -------------------------------------------------------------------------------------


def _windows(op: Node, x: tf.Tensor, axis: int, number: int) -> tf.Tensor:
    """The windows of a spatial axis at another axis, which becomes [windows, elements of each]."""
    size, stride = op.attr("ksizes")[number], op.attr("strides")[number]
    rate = op.attr("rates")[number] if op.op.type == "ExtractImagePatches" else 1
    reach = (size - 1) * rate + 1
    extent = tf.shape(x)[axis]
    if op.attr("padding") == "SAME":
        count = (extent + stride - 1) // stride
        missing = tf.maximum((count - 1) * stride + reach - extent, 0)
        pads: list[list[tf.Tensor | int]] = [[0, 0]] * x.shape.rank
        pads[axis] = [missing // 2, missing - missing // 2]
        x = tf.pad(x, pads)
    else:
        count = tf.maximum((extent - reach) // stride + 1, 0)
    places = tf.range(count)[:, tf.newaxis] * stride + tf.range(size) * rate
    return tf.gather(x, places, axis=axis)


@composes("ExtractImagePatches", "ExtractVolumePatches")
def _patches(op: Node, x: tf.Tensor) -> tf.Tensor:
    count = op.rank(0) - 2
    for k in range(count):
        x = _windows(op, x, 1 + 2 * k, 1 + k)
    windows, elements = range(1, 2 * count, 2), range(2, 2 * count + 1, 2)
    x = tf.transpose(x, [0, *windows, *elements, 2 * count + 1])
    shape = tf.shape(x)
    of_patch = tf.reduce_prod(shape[1 + count :], keepdims=True)
    return tf.reshape(x, tf.concat([shape[: 1 + count], of_patch], 0))


# --- projections ---------------------------------------------------------------------------------


def _mapped(place: tf.Tensor, extent: tf.Tensor, mode: str) -> tf.Tensor:
    """The places in an image that stand for those outside of it."""
    size = tf.cast(extent, tf.float32)
    if mode == "REFLECT":
        # Without a sum of both: halves between two pixels stay halves.
        mirrored = tf.where(place < 0, -1 - place, place)
        turned = mirrored - 2 * size * tf.floor(mirrored / (2 * size))
        mapped = tf.where(turned >= size, 2 * size - 1 - turned, turned)
        mapped = tf.where(size <= 1, tf.zeros_like(place), mapped)
    elif mode == "WRAP":
        laps = tf.floor(tf.abs(place) / tf.maximum(size - 1, 1))
        mapped = tf.where(place < 0, place + size * (laps + 1), place - size * laps)
        mapped = tf.where(size <= 1, tf.zeros_like(place), mapped)
    else:
        return tf.clip_by_value(place, 0, size - 1) if mode == "NEAREST" else place
    is_inside = (place >= 0) & (place <= size - 1)
    return tf.clip_by_value(tf.where(is_inside, place, mapped), 0, size - 1)


def _rounded(place: tf.Tensor) -> tf.Tensor:
    """To whole numbers, halves away from zero."""
    size = tf.abs(place)
    low = tf.floor(size)
    return tf.sign(place) * tf.where(size - low >= 0.5, low + 1, low)


def _read(images: tf.Tensor, y: tf.Tensor, x: tf.Tensor, fill: tf.Tensor) -> tf.Tensor:
    """The pixels at whole places [batch, ...]; the fill outside."""
    shape = tf.shape(images)
    height, width = (tf.cast(extent, tf.float32) for extent in (shape[1], shape[2]))
    is_inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    image = tf.range(shape[0])[:, tf.newaxis, tf.newaxis] + tf.zeros_like(y, tf.int32)
    places = [tf.cast(tf.where(is_inside, place, 0.0), tf.int32) for place in (y, x)]
    found = tf.gather_nd(images, tf.stack([image, *places], -1))
    return tf.where(is_inside[..., tf.newaxis], found, tf.cast(fill, images.dtype))


@composes("ImageProjectiveTransformV2", "ImageProjectiveTransformV3")
def _projection(
    op: Node,
    images: tf.Tensor,
    transforms: tf.Tensor,
    size: tf.Tensor,
    fill: tf.Tensor | float = 0.0,
) -> tf.Tensor:
    mode, shape = op.attr("fill_mode"), tf.shape(images)
    y, x = _numbers(size[0])[:, tf.newaxis], _numbers(size[1])
    t = tf.transpose(transforms)[..., tf.newaxis, tf.newaxis]
    scale = t[6] * x + t[7] * y + 1
    is_lost = scale == 0
    scale = tf.where(is_lost, tf.ones_like(scale), scale)
    places = [(t[k] * x + t[k + 1] * y + t[k + 2]) / scale for k in (3, 0)]
    nothing = tf.zeros([shape[0], 1, 1])
    y, x = (_mapped(place + nothing, shape[1 + k], mode) for k, place in enumerate(places))
    if op.attr("interpolation") == "NEAREST":
        found = _read(images, _rounded(y), _rounded(x), fill)
    else:
        top, left = tf.floor(y), tf.floor(x)
        down, right = ((place - low)[..., tf.newaxis] for place, low in ((y, top), (x, left)))
        up, back = ((low + 1 - place)[..., tf.newaxis] for place, low in ((y, top), (x, left)))
        rows = []
        for row in (top, top + 1):
            pair = [
                tf.cast(_read(images, row, column, fill), tf.float32) for column in (left, left + 1)
            ]
            rows.append(back * pair[0] + right * pair[1])
        found = tf.cast(up * rows[0] + down * rows[1], images.dtype)
    return tf.where(is_lost[..., tf.newaxis], tf.cast(fill, images.dtype), found)


# --- colours -------------------------------------------------------------------------------------


@composes("RGBToHSV")
def _to_hsv(op: Node, images: tf.Tensor) -> tf.Tensor:
    red, green, blue = tf.unstack(images, 3, -1)
    most, least = tf.reduce_max(images, -1), tf.reduce_min(images, -1)
    spread = most - least
    saturation = tf.where(most > 0, tf.math.divide_no_nan(spread, most), tf.zeros_like(most))
    sixth = tf.math.divide_no_nan(tf.ones_like(spread), 6 * spread)
    hue = sixth * (red - green) + 4 / 6
    hue = tf.where(green == most, sixth * (blue - red) + 2 / 6, hue)
    hue = tf.where(red == most, sixth * (green - blue), hue)
    hue = tf.where(spread > 0, hue, tf.zeros_like(hue))
    return tf.stack([tf.where(hue < 0, hue + 1, hue), saturation, most], -1)


@composes("HSVToRGB")
def _to_rgb(op: Node, images: tf.Tensor) -> tf.Tensor:
    hue, saturation, value = tf.unstack(images, 3, -1)
    at = 6 * hue
    parts = [tf.abs(at - 3) - 1, 2 - tf.abs(at - 2), 2 - tf.abs(at - 4)]
    parts = [tf.clip_by_value(part, 0, 1) for part in parts]
    return tf.stack([((1 - saturation) + saturation * part) * value for part in parts], -1)


@composes("AdjustContrastv2")
def _contrast(op: Node, images: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    mean = tf.reduce_mean(images, [-3, -2], keepdims=True)
    return tf.cast(factor, images.dtype) * (images - mean) + mean


@composes("AdjustSaturation")
def _saturation(op: Node, images: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    hue, saturation, value = tf.unstack(tf.image.rgb_to_hsv(images), 3, -1)
    saturation = tf.clip_by_value(saturation * tf.cast(factor, images.dtype), 0, 1)
    return tf.image.hsv_to_rgb(tf.stack([hue, saturation, value], -1))


@composes("AdjustHue")
def _hue(op: Node, images: tf.Tensor, delta: tf.Tensor) -> tf.Tensor:
    hue = tf.image.rgb_to_hsv(images)[..., 0] + tf.cast(delta, images.dtype)
    one = tf.ones_like(hue)
    pure = tf.image.hsv_to_rgb(tf.stack([hue - tf.floor(hue), one, one], -1))
    # The least and the greatest part stay, negative ones too, which have no saturation.
    least = tf.reduce_min(images, -1, keepdims=True)
    return least + (tf.reduce_max(images, -1, keepdims=True) - least) * pure
