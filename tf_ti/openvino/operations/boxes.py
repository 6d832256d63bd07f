"""Boxes of detectors: those that answers refer to, and those that are found."""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti._exact import divided
from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.selection import overlap_of, without_overlaps
from tf_ti.openvino.operations.shapes import extents, positive
from tf_ti.openvino.precision import computed_in

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
def _prior_box(op: Operation, size: tf.Tensor, image: tf.Tensor) -> tf.Tensor:
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
    priors = list(itertools.islice(_priors(op, scales_all), _MOST_PRIORS + 1))
    if not priors:
        raise op.error("min_size and fixed_size are both empty")
    if len(priors) > _MOST_PRIORS:
        raise op.error(f"a cell has more than {_MOST_PRIORS} boxes; reduce density, or the lists")
    across, down, aside, below, is_fixed = zip(*priors)
    half = [tf.constant(part, tf.float32) for part in (across, down)]
    # Sizes that are fixed are in pixels.
    half = [tf.where(is_fixed, part, part * unit) for part in half]
    moved = [center + tf.constant(part) for center, part in zip(centers, (aside, below))]
    boxes = _corners(moved, half, (height, width))
    clipped = tf.clip_by_value(boxes, 0.0, 1.0)
    if op.flag("clip", False):
        return _with_variances(op, clipped)
    first, last = tf.split(boxes, 2, axis=-1)
    inside = tf.concat([tf.maximum(first, 0.0), tf.minimum(last, 1.0)], -1)
    return _with_variances(op, tf.where(tf.constant(is_fixed)[:, tf.newaxis], inside, boxes))


Prior = tuple[float, float, float, float, bool]
_MOST_PRIORS = 1 << 16  # of a cell


def _priors(op: Operation, scales_all: bool) -> Iterator[Prior]:
    """Half widths and heights of a cell's boxes, their distances from its center, and whether they
    are of a fixed size."""
    for name in "aspect_ratio", "fixed_ratio":
        if min(op.numbers(name, []), default=1.0) <= 0:
            raise op.error(f"{name}={op.numbers(name)} must be positive")
    for name in "min_size", "max_size", "fixed_size":
        if min(op.numbers(name, []), default=0.0) < 0:
            raise op.error(f"{name}={op.numbers(name)} must not be negative")
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
        if int(density) ** 2 > _MOST_PRIORS:
            raise op.error(f"density={densities} makes more than {_MOST_PRIORS} boxes of a cell")
        places = [shift / 2 - size / 2 + k * shift for k in range(int(density))]
        for ratio in own or [1.0, *others]:
            root = math.sqrt(ratio)
            for below, aside in itertools.product(places, places):
                yield size / 2 * root, size / 2 / root, aside, below, True


@register("PriorBoxClustered")
def _prior_box_clustered(op: Operation, size: tf.Tensor, image: tf.Tensor) -> tf.Tensor:
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
def _region_yolo(op: Operation, x: tf.Tensor) -> tf.Tensor:
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


_CODES = ("caffe.PriorBoxParameter.CORNER", "caffe.PriorBoxParameter.CENTER_SIZE")


@register("DetectionOutput", ["opset1", "opset8"])
def _detection_output(
    op: Operation,
    boxes: tf.Tensor,
    scores: tf.Tensor,
    priors: tf.Tensor,
    sure: tf.Tensor | None = None,
    refined: tf.Tensor | None = None,
) -> tf.Tensor:
    """Rows of image, label, score and corners; after the last one an image of -1, then zeros.

    They are sorted by image, by label, and the best first.
    """
    found = _Detections(op, boxes, scores, priors, sure, refined)
    rows = tf.where(found.kept)
    picked = [tf.gather_nd(part, rows)[:, tf.newaxis] for part in found.scores_and_corners]
    labels = tf.cast(rows[:, 1:2] - op.flag("decrease_label_id", False), boxes.dtype)
    table = tf.concat([tf.cast(rows[:, :1], boxes.dtype), labels, *picked], axis=1)
    missing = tf.maximum(tf.cast(found.most, tf.int64) - tf.shape(table, tf.int64)[0], 0)
    end = tf.one_hot([0], 7, tf.constant(-1, boxes.dtype))
    table = tf.concat([table, tf.pad(end, [[0, missing], [0, 0]])], axis=0)[: found.most]
    return table[tf.newaxis, tf.newaxis]


class _Detections:
    """What a detector finds.

    Attributes:
        scores_and_corners: the scores, and the four sides, [batch, classes, boxes] each; the boxes
            of a class are sorted by their scores.
        kept: which of them count.
        most: the number of rows that an answer has.
    """

    def __init__(
        self,
        op: Operation,
        boxes: tf.Tensor,
        scores: tf.Tensor,
        priors: tf.Tensor,
        sure: tf.Tensor | None,
        refined: tf.Tensor | None,
    ):
        self._op = op
        size = 4 if op.flag("normalized", False) else 5
        count = extents(priors)[2] // size
        classes = self._classes(scores, count)
        batch = extents(boxes)[0]
        scores = tf.transpose(tf.reshape(scores, [-1, count, classes]), [0, 2, 1])
        background = op.integer("background_label_id", 0)
        labels = tf.range(tf.cast(classes, tf.int32))[:, tf.newaxis]
        if sure is not None:
            is_sure = tf.reshape(sure, [-1, 1, count, 2])[..., 1] >= op.number(
                "objectness_score", 0
            )
            other = tf.cast(labels == background, scores.dtype)
            scores = tf.where(is_sure, scores, other)
        self._decode(boxes, priors, refined, count, size, classes)
        is_candidate = scores > op.number("confidence_threshold", 0.0)
        is_candidate &= labels != background
        top = op.integer("top_k", -1)
        if op.flag("decrease_label_id", False):
            # Of each box the best class alone, and of these the best ones of all classes.
            masked = tf.where(labels != background, scores, -float("inf"))
            best = tf.argmax(masked, axis=1, output_type=tf.int32)
            is_candidate &= labels == best[:, tf.newaxis]
            is_candidate &= _among_the_best(scores, is_candidate, top, [1, 2])
        else:
            is_candidate &= _among_the_best(scores, is_candidate, top, [2])
        order = tf.argsort(scores, axis=2, direction="DESCENDING", stable=True)

        def in_order(x: tf.Tensor) -> tf.Tensor:
            return tf.gather(tf.broadcast_to(x, tf.shape(scores)), order, batch_dims=2)

        scores, corners = in_order(scores), [in_order(side) for side in self._corners]
        is_candidate = tf.gather(is_candidate, order, batch_dims=2)
        kept = without_overlaps(is_candidate, corners, op.number("nms_threshold"))
        keep = (op.integers("keep_top_k", [-1]) or [-1])[0]
        kept &= _among_the_best(scores, kept, keep, [1, 2])
        if op.flag("clip_after_nms", False):
            corners = [tf.clip_by_value(side, 0.0, 1.0) for side in corners]
        self.kept, self.scores_and_corners = kept, [scores, *corners]
        self.most = batch * (keep if keep > 0 else (top if top > 0 else count) * classes)

    def _classes(self, scores: tf.Tensor, count: int | tf.Tensor) -> int | tf.Tensor:
        if self._op.registered == "opset1":
            return self._op.integer("num_classes")
        return extents(scores)[1] // count

    def _decode(
        self,
        boxes: tf.Tensor,
        priors: tf.Tensor,
        refined: tf.Tensor | None,
        count: int | tf.Tensor,
        size: int,
        classes: int | tf.Tensor,
    ) -> None:
        """Makes the corners of the boxes: four of [batch, classes or 1, boxes]."""
        op = self._op
        numbers = tf.reshape(priors[:, 0], [-1, 1, count, size])[..., size - 4 :]
        if size == 5:
            width, height = op.integer("input_width", 1), op.integer("input_height", 1)
            numbers = divided(numbers, [width, height, width, height])
        corners, variances = tf.unstack(numbers, axis=-1), [1.0] * 4
        if not op.flag("variance_encoded_in_target", False):
            variances = tf.unstack(
                tf.reshape(priors[:, 1, : 4 * count], [-1, 1, count, 4]), axis=-1
            )
        locations = 1 if op.flag("share_location", True) else classes
        for offsets in (refined, boxes):
            if offsets is not None:
                split = tf.reshape(offsets, [-1, count, locations, 4])
                deltas = tf.unstack(tf.transpose(split, [0, 2, 1, 3]), axis=-1)
                corners = self._moved(corners, variances, deltas)
        if op.flag("clip_before_nms", False):
            corners = [tf.clip_by_value(side, 0.0, 1.0) for side in corners]
        self._corners = corners

    def _moved(
        self,
        corners: Sequence[tf.Tensor],
        variances: Sequence[float | tf.Tensor],
        deltas: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        if self._op.text("code_type", _CODES[0], among=_CODES) == _CODES[0]:
            return [c + v * d for c, v, d in zip(corners, variances, deltas)]
        left, top, right, bottom = corners
        width, height = right - left, bottom - top
        x = variances[0] * deltas[0] * width + (left + right) / 2
        y = variances[1] * deltas[1] * height + (top + bottom) / 2
        across = tf.exp(variances[2] * deltas[2]) * width / 2
        down = tf.exp(variances[3] * deltas[3]) * height / 2
        return [x - across, y - down, x + across, y + down]


def _among_the_best(
    scores: tf.Tensor, is_candidate: tf.Tensor, most: int, axes: Sequence[int]
) -> tf.Tensor:
    """True for the best candidates, so many over some last axes, or all if `most` is negative."""
    if most < 0:
        return tf.ones_like(is_candidate)
    shape = extents(scores)
    flat = tf.where(is_candidate, scores, -float("inf"))
    flat = tf.reshape(flat, [*shape[: axes[0]], -1])
    order = tf.argsort(flat, axis=-1, direction="DESCENDING", stable=True)
    rank = tf.argsort(order, axis=-1, stable=True)
    return tf.reshape(rank < most, shape)


@register("Proposal", ["opset1", "opset4"])
def _proposal(
    op: Operation, scores: tf.Tensor, deltas: tf.Tensor, image: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Rows of image and corners, and their scores.

    Each image has as many rows; after its last box one with an image of -1, then zeros.
    """
    dtype = computed_in(scores.dtype)
    found = _Proposals(op, *(tf.cast(x, dtype) for x in (scores, deltas, image)))
    most = positive(op, "post_nms_topn")
    overlap = functools.partial(overlap_of, pixel=found.pixel)
    all_of_them = tf.ones_like(found.scores, tf.bool)
    kept = without_overlaps(all_of_them, found.corners, op.number("nms_thresh"), overlap, most=most)
    kept = tf.cast(kept, tf.int32)
    count = tf.reduce_sum(kept, 1, keepdims=True)
    first = tf.minimum(tf.shape(kept)[1], most)
    order = tf.math.top_k(kept, first).indices
    number = tf.range(most)

    def rows(x: tf.Tensor) -> tf.Tensor:
        x = tf.pad(tf.gather(x, order, batch_dims=1), [[0, 0], [0, most - first]])
        return tf.reshape(tf.where(number < count, x, tf.zeros_like(x)), [-1])

    owner = tf.range(tf.shape(count)[0])[:, tf.newaxis]
    owner = tf.where(number < count, owner, tf.where(number == count, -1, 0))
    owner = tf.cast(tf.reshape(owner, [-1]), dtype)
    table = tf.stack([owner, *map(rows, found.finished())], 1)
    return tf.cast(table, scores.dtype), tf.cast(rows(found.scores), scores.dtype)


class _Proposals:
    """The best boxes that a network proposes in images, best first.

    Attributes:
        scores: [images, boxes].
        corners: the four sides, of this shape each.
        pixel: as for `overlap_of`.
    """

    def __init__(self, op: Operation, scores: tf.Tensor, deltas: tf.Tensor, image: tf.Tensor):
        # TensorFlow's Object Detection API has y first, and corners between pixels, unlike Caffe.
        self._is_caffe = op.text("framework", "", ("", "tensorflow")) == ""
        self._op, self.pixel = op, 1.0 if self._is_caffe else 0.0
        anchors = self._anchors()
        count = _tf.known_extent(anchors, 1)
        for x, parts in (scores, 2), (deltas, 4):
            if not x.shape.is_compatible_with([None, parts * count, None, None]):
                raise op.error(f"an input of {x.shape} does not fit {count} boxes in each place")
        if image.shape.num_elements() not in (None, 3, 4):
            raise op.error(f"input 2 has {image.shape.num_elements()} numbers, not 3 or 4")
        image = tf.reshape(image, [-1])
        tf.debugging.assert_positive(image[:2], "the height and the width of images")
        batch, _, rows, columns = extents(scores)
        step = positive(op, "feat_stride")
        across, down = (tf.range(tf.cast(n, image.dtype)) * step for n in (columns, rows))
        places = [across[:, tf.newaxis], down[:, tf.newaxis, tf.newaxis]]
        self._limits = [image[1], image[0]]
        if not self._is_caffe:
            places.reverse()
            self._limits.reverse()
        deltas = tf.reshape(deltas, [batch, count, 4, rows, columns])
        deltas = tf.unstack(tf.transpose(deltas, [2, 0, 3, 4, 1]), 4)
        scores = tf.reshape(scores, [batch, 2, count, rows, columns])[:, 1]
        scores = tf.transpose(scores, [0, 2, 3, 1])
        lows, highs = [], []
        for i, scale in enumerate((image[-1], image[2])):
            low, high = self._sides(
                places[i] + anchors[i::2, np.newaxis, np.newaxis], deltas[i::2], self._limits[i]
            )
            is_large = high - low + self.pixel >= op.number("min_size") * scale
            scores = tf.where(is_large, scores, tf.zeros_like(scores))
            lows.append(low)
            highs.append(high)
        scores, *corners = (tf.reshape(x, [batch, -1]) for x in (scores, *lows, *highs))
        most = tf.minimum(positive(op, "pre_nms_topn"), tf.shape(scores)[1])
        self.scores, order = tf.math.top_k(scores, most)
        self.corners = [tf.gather(side, order, batch_dims=1) for side in corners]

    def _anchors(self) -> np.ndarray:
        """The corners of boxes of each ratio and scale, beside a place: [4, boxes]."""
        op = self._op
        base = np.float32(positive(op, "base_size"))
        ratios, scales = (np.array(op.numbers(name), np.float32) for name in ("ratio", "scale"))
        if not (ratios.size and scales.size and min(ratios.min(), scales.min()) > 0):
            raise op.error("ratio and scale must be lists of positive numbers")
        width = np.sqrt(base**2 / ratios)
        height = width * ratios
        center = np.float32(0)
        if self._is_caffe:
            width = np.floor(width + np.float32(0.5))
            height = np.floor(width * ratios + np.float32(0.5))
            center = (base - 1) / 2
        pixel = np.float32(self.pixel)
        half = [(np.outer(side, scales).reshape(-1) - pixel) / 2 for side in (width, height)]
        return np.stack([center - side for side in half] + [center + side for side in half])

    def _sides(
        self, anchors: tf.Tensor, deltas: Sequence[tf.Tensor], limit: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The ends of boxes along one axis."""
        op = self._op
        low, high = tf.unstack(anchors, 2)
        if not self._is_caffe:
            low, high = (tf.clip_by_value(x, 0.0, limit) for x in (low, high))
        side = high - low + self.pixel
        shift = divided(deltas[0], op.number("box_coordinate_scale", 1.0))
        center = low + side / 2 + shift * side
        half = tf.exp(divided(deltas[1], op.number("box_size_scale", 1.0))) * side / 2
        low, high = center - half, center + half
        if op.flag("clip_before_nms", True):
            last = limit - self.pixel
            return tf.clip_by_value(low, 0.0, last), tf.clip_by_value(high, 0.0, last)
        return low, high

    def finished(self) -> list[tf.Tensor]:
        """The corners as they are in the answer."""
        op, corners, limits = self._op, self.corners, self._limits * 2
        if op.flag("clip_after_nms", False):
            corners = [tf.clip_by_value(x, 0.0, limit) for x, limit in zip(corners, limits)]
        if op.flag("normalize", False):
            corners = [x / limit for x, limit in zip(corners, limits)]
        return corners
