"""Boxes for detectors: the ones that a detector's answers refer to."""

import itertools
import math
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import extents

_ALIKE = 1e-6  # ratios that differ by less are the same


def _height_and_width(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    height, width = tf.unstack(tf.cast(tf.reshape(x, [-1])[:2], tf.float32), 2)
    return height, width


def _variances(op: Operation, boxes: tf.Tensor) -> tf.Tensor:
    """A variance for each number of the boxes."""
    variances = op.numbers("variance", []) or [0.1]
    if len(variances) not in (1, 4):
        raise op.error(f"variance={variances} is neither one number nor four")
    four = variances * (4 // len(variances))
    return tf.tile(tf.constant(four, tf.float32), tf.shape(boxes) // 4)


def _with_variances(op: Operation, boxes: tf.Tensor) -> tf.Tensor:
    boxes = tf.reshape(boxes, [-1])
    return tf.stack([boxes, _variances(op, boxes)])


def _corners(
    centers: Sequence[tf.Tensor], half: Sequence[tf.Tensor], image: Sequence[tf.Tensor]
) -> tf.Tensor:
    """Boxes as xmin, ymin, xmax, ymax, in parts of the picture."""
    (x, y), (across, down), (height, width) = centers, half, image
    corners = ((x - across) / width, (y - down) / height)
    return tf.stack([*corners, (x + across) / width, (y + down) / height], axis=-1)


def _grid(columns: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The centers of cells, [rows, columns, 1] each, for all the boxes of a cell."""
    x, y = tf.meshgrid(columns, rows)
    return x[..., tf.newaxis], y[..., tf.newaxis]


@register("PriorBox", ["opset1", "opset8"])
def _prior_box(op, size, image):
    (rows, columns), (height, width) = _height_and_width(size), _height_and_width(image)
    scales_all = op.flag("scale_all_sizes", True)
    step, offset = op.number("step", 0.0), op.number("offset")
    # Otherwise sizes and steps are parts of the picture's height.
    unit = tf.constant(1.0) if scales_all else height
    if step == 0:
        steps, offset = (width / columns, height / rows), 0.5
    else:
        steps = (step * unit,) * 2
    centers = _grid((tf.range(columns) + offset) * steps[0], (tf.range(rows) + offset) * steps[1])
    priors = list(_priors(op, scales_all))
    if not priors:
        raise op.error("min_size and fixed_size are both empty")
    across, down, aside, below, is_fixed = zip(*priors)
    half = [tf.constant(part, tf.float32) for part in (across, down)]
    # Sizes that are fixed are in pixels.
    half = [tf.where(is_fixed, part, part * unit) for part in half]
    centers = [center + tf.constant(part) for center, part in zip(centers, (aside, below))]
    boxes = _corners(centers, half, (height, width))
    clipped = tf.clip_by_value(boxes, 0.0, 1.0)
    if op.flag("clip", False):
        return _with_variances(op, clipped)
    first, last = tf.split(boxes, 2, axis=-1)
    inside = tf.concat([tf.maximum(first, 0.0), tf.minimum(last, 1.0)], -1)
    return _with_variances(op, tf.where(tf.constant(is_fixed)[:, tf.newaxis], inside, boxes))


Prior = tuple[float, float, float, float, bool]


def _priors(op: Operation, scales_all: bool) -> Iterator[Prior]:
    """Half widths and heights of a cell's boxes, their distances from its center, and whether they
    are of a fixed size."""
    ratios = [1.0]
    for ratio in op.numbers("aspect_ratio", []):
        if all(abs(ratio - other) >= _ALIKE for other in ratios):
            ratios += [ratio, 1 / ratio] if op.flag("flip", False) else [ratio]
    others = [ratio for ratio in ratios if abs(ratio - 1) >= _ALIKE]
    yield from _fixed(op, others)
    sizes, largest = op.numbers("min_size", []), op.numbers("max_size", [])
    for i, size in enumerate(sizes):
        yield size / 2, size / 2, 0.0, 0.0, False
        shaped = []
        if scales_all or i == len(sizes) - 1:
            base = (size if scales_all else sizes[0]) / 2
            shaped = [
                (base * math.sqrt(ratio), base / math.sqrt(ratio), 0.0, 0.0, False)
                for ratio in others
            ]
        between = []
        if scales_all and i < len(largest):
            side = math.sqrt(size * largest[i]) / 2
            between = [(side, side, 0.0, 0.0, False)]
        is_between_first = op.flag("min_max_aspect_ratios_order", True)
        yield from (*between, *shaped) if is_between_first else (*shaped, *between)


def _fixed(op: Operation, others: Sequence[float]) -> Iterator[Prior]:
    """Boxes of fixed sizes, several side by side where there is a density."""
    fixed, densities = op.numbers("fixed_size", []), op.numbers("density", [])
    if fixed and len(densities) != len(fixed):
        raise op.error(f"density={densities} does not fit fixed_size={fixed}")
    own = op.numbers("fixed_ratio", [])
    for size, density in zip(fixed, densities):
        if int(density) < 1:
            raise op.error(f"density={densities} must be positive")
        shift = int(size / int(density))
        places = [shift / 2 - size / 2 + k * shift for k in range(int(density))]
        for ratio in own or [1.0, *others]:
            root = math.sqrt(ratio)
            for below, aside in itertools.product(places, places):
                yield size / 2 * root, size / 2 / root, aside, below, True


@register("PriorBoxClustered")
def _prior_box_clustered(op, size, image):
    (rows, columns), (height, width) = _height_and_width(size), _height_and_width(image)
    widths, heights = op.numbers("width"), op.numbers("height")
    if len(widths) != len(heights):
        raise op.error(f"width={widths} and height={heights} differ in length")
    step, offset = op.number("step", 0.0), op.number("offset")
    across, down = (op.number(name, 0.0) or step for name in ("step_w", "step_h"))
    if across == 0 and down == 0:
        across, down = width / columns, height / rows
    centers = _grid((tf.range(columns) + offset) * across, (tf.range(rows) + offset) * down)
    half = [tf.constant(part, tf.float32) / 2 for part in (widths, heights)]
    boxes = _corners(centers, half, (height, width))
    if op.flag("clip", True):
        boxes = tf.clip_by_value(boxes, 0.0, 1.0)
    return _with_variances(op, boxes)


@register("RegionYolo")
def _region_yolo(op, x):
    """Darknet's regions: [batch, regions * (coordinates + 1 + classes), height, width]."""
    coordinates, classes = op.integer("coords"), op.integer("classes")
    is_softmax = op.flag("do_softmax", True)
    regions = op.integer("num") if is_softmax else len(op.integers("mask", []))
    entries = coordinates + 1 + classes
    batch, channels, height, width = extents(x)
    fits = not isinstance(channels, int) or channels == regions * entries
    if min(coordinates - 1, classes, regions) < 1 or not fits:
        raise op.error(
            f"{regions} regions of {coordinates} coordinates and {classes} classes do not fit "
            f"{channels} channels"
        )
    split = tf.reshape(x, [batch, regions, entries, height, width])
    center, size, confidence, scores = tf.split(split, [2, coordinates - 2, 1, classes], axis=2)
    scores = tf.nn.softmax(scores, axis=2) if is_softmax else tf.sigmoid(scores)
    found = [tf.sigmoid(center), size, tf.sigmoid(confidence), scores]
    found = tf.reshape(tf.concat(found, axis=2), [batch, channels, height, width])
    if not is_softmax:
        return found
    first, last = (op.axis(op.integer(name), 4) for name in ("axis", "end_axis"))
    shape = extents(found)
    joined = tf.reduce_prod(tf.stack([tf.cast(n, tf.int64) for n in shape[first : last + 1]]))
    return tf.reshape(found, [*shape[:first], joined, *shape[last + 1 :]])
