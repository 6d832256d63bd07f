"""Selecting boxes: non-maximum suppression of each kind."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti._exact import negated
from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import as_shape, extents, rank_of
from tf_ti.openvino.precision import computed_in


@register("NonMaxSuppression", ["opset1", "opset3", "opset4"])
def _non_max_suppression(
    op: Operation, boxes: tf.Tensor, scores: tf.Tensor, *limits: tf.Tensor
) -> tf.Tensor:
    picked = _Picked(op, _corners(op, boxes), scores)
    batches, classes, count = extents(scores)
    rows = picked.most * tf.cast(batches * classes, tf.int64)
    if op.registered != "opset4":
        rows = tf.minimum(tf.cast(count, tf.int64), picked.per_class * classes)
    indices = picked.indices[:rows]
    missing = rows - tf.shape(indices, tf.int64)[0]
    indices = tf.pad(indices, [[0, missing], [0, 0]], constant_values=-1)
    return tf.cast(indices, op.dtype("output_type", tf.int64))


@register("NonMaxSuppression", ["opset5", "opset9"])
def _non_max_suppression_with_scores(
    op: Operation, boxes: tf.Tensor, scores: tf.Tensor, *limits: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    return _with_scores(op, _Picked(op, _corners(op, boxes), scores), scores.dtype)


@register("NMSRotated", "opset13")
def _nms_rotated(
    op: Operation, boxes: tf.Tensor, scores: tf.Tensor, *limits: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    x, y, width, height, angle = tf.unstack(boxes, 5, axis=-1)
    angle = angle if op.flag("clockwise", True) else -angle
    picked = _Picked(op, [x, y, width, height, angle], scores, _overlap_of_turned)
    return _with_scores(op, picked, scores.dtype)


def _with_scores(
    op: Operation, picked: "_Picked", kind: tf.DType
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    dtype = op.dtype("output_type", tf.int64)
    if len(op.layer.outputs) > 1 and op.layer.outputs[1].element_type is not None:
        kind = tf.as_dtype(op.layer.outputs[1].element_type.dtype)
    owners = tf.cast(picked.indices[:, :2], picked.scores.dtype)
    triples = tf.concat([owners, picked.scores[:, tf.newaxis]], 1)
    count = tf.shape(picked.indices, dtype if dtype in (tf.int32, tf.int64) else tf.int64)[:1]
    return tf.cast(picked.indices, dtype), tf.cast(triples, kind), tf.cast(count, dtype)


class _Picked:
    """The selected boxes: `indices`, [boxes, (batch, class, box)], and their `scores`."""

    def __init__(
        self,
        op: Operation,
        boxes: Sequence[tf.Tensor],
        scores: tf.Tensor,
        overlap: Callable[..., tf.Tensor] | None = None,
    ):
        dtype = computed_in(scores.dtype)
        self._version = op.registered
        self._scores = tf.cast(scores, dtype)
        owners = as_shape(*extents(scores)[::2])  # [N, boxes]
        self._boxes = [tf.reshape(tf.cast(number, dtype), owners) for number in boxes]
        self._overlap = overlap or overlap_of
        self._iou_threshold = _scalar(op, 3, dtype)
        self._score_threshold = _scalar(op, 4, dtype)
        self._sigma = _scalar(op, 5, dtype)
        known = op.known(5) if len(op.inputs) > 5 else 0.0
        self._may_be_soft = known is None or np.max(known) > 0
        self.per_class = tf.maximum(_scalar(op, 2, tf.int64), 0)
        self.most = tf.minimum(self.per_class, extents(scores)[2])
        picks = self._picks()
        kept = tf.where(picks >= 0)
        chosen = tf.gather_nd(picks, kept)
        indices = tf.concat([kept[:, :2], chosen[:, tf.newaxis]], 1)
        found = tf.gather_nd(self._final_scores(picks), kept)
        if op.flag("sort_result_descending", True):
            order = tf.argsort(found, direction="DESCENDING", stable=True)
            indices, found = tf.gather(indices, order), tf.gather(found, order)
        self.indices, self.scores = indices, found

    def _picks(self) -> tf.Tensor:
        """The selected boxes, best first, and -1 after the last: [N, classes, most]."""
        scores, numbers = tf.stop_gradient(self._scores), [*map(tf.stop_gradient, self._boxes)]
        never = tf.constant(-np.inf, scores.dtype)
        scores, index = _best(scores, scores > self._score_threshold)
        numbers = [tf.gather(number, index, batch_dims=1) for number in numbers]

        def wanted(step: tf.Tensor, scores: tf.Tensor, picks: tf.Tensor) -> tf.Tensor:
            return (step < self.most) & tf.reduce_any(scores > never)

        def pick(
            step: tf.Tensor, scores: tf.Tensor, picks: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            best = tf.argmax(scores, -1)
            found = tf.reduce_max(scores, -1) > never
            *own, place = (
                tf.gather(x, best, batch_dims=2)[..., tf.newaxis] for x in (*numbers, index)
            )
            kept = self._kept(self._overlap(own, numbers))
            rest = scores * kept
            is_out = tf.range(tf.shape(scores, tf.int64)[2]) == best[..., tf.newaxis]
            is_out |= (scores == never) | (kept == 0)
            rest = tf.where(is_out | (rest <= self._score_threshold), never, rest)
            here = tf.range(self.most) == step
            updated = tf.where(here, tf.where(found[..., tf.newaxis], place, -1), picks)
            updated.set_shape(picks.shape)
            return step + 1, rest, updated

        picks = tf.fill(as_shape(*extents(scores)[:2], self.most), tf.cast(-1, tf.int64))
        return tf.while_loop(wanted, pick, (tf.zeros([], tf.int64), scores, picks))[2]

    def _kept(self, overlap: tf.Tensor) -> tf.Tensor:
        """The factor of a score for its overlap with a selected box."""
        soft = tf.exp(tf.math.divide_no_nan(-0.5 * overlap**2, self._sigma))
        hard = tf.cast(overlap <= self._iou_threshold, overlap.dtype)
        if self._version == "opset5":
            soft *= hard
        return tf.where(self._sigma > 0, soft, hard)

    def _final_scores(self, picks: tf.Tensor) -> tf.Tensor:
        """The scores of selected boxes, reduced by those before them: [N, classes, most]."""
        at = tf.maximum(picks, 0)
        own = tf.gather(self._scores, at, batch_dims=2)

        def soft() -> tf.Tensor:
            numbers = [tf.gather(number, at, batch_dims=1) for number in self._boxes]
            rows = [number[..., :, tf.newaxis] for number in numbers]
            columns = [number[..., tf.newaxis, :] for number in numbers]
            before = tf.range(self.most)[:, tf.newaxis] > tf.range(self.most)
            kept = self._kept(self._overlap(rows, columns))
            return own * tf.reduce_prod(tf.where(before, kept, tf.ones_like(kept)), -1)

        return tf.cond(self._sigma > 0, soft, lambda: own) if self._may_be_soft else own


def _scalar(op: Operation, position: int, dtype: tf.DType) -> tf.Tensor:
    if len(op.inputs) <= position:
        return tf.zeros([], dtype)
    return tf.cast(tf.reshape(op.inputs[position], [-1])[0], dtype)


def _corners(op: Operation, boxes: tf.Tensor) -> list[tf.Tensor]:
    """The lower and the upper ends of boxes along both axes."""
    encoding = op.text("box_encoding", "corner", ("corner", "center"))
    boxes = tf.cast(boxes, computed_in(boxes.dtype))
    first, second, third, fourth = tf.unstack(boxes, 4, axis=-1)
    if encoding == "center":
        return [
            first - third / 2,
            second - fourth / 2,
            first + third / 2,
            second + fourth / 2,
        ]
    pairs = (first, third), (second, fourth)
    return [end(*pair) for end in (tf.minimum, tf.maximum) for pair in pairs]


def overlap_of(
    some: Sequence[tf.Tensor], others: Sequence[tf.Tensor], pixel: float = 0.0, gap: float = 0.0
) -> tf.Tensor:
    """The intersection of boxes over their union.

    Args:
        some, others: the boxes, as their four sides.
        pixel: what a side is longer than the distance of its ends, 1 if these are pixels.
        gap: how far apart boxes may be that have something in common.
    """
    areas = [(b[2] - b[0] + pixel) * (b[3] - b[1] + pixel) for b in (some, others)]
    sides = [
        tf.minimum(some[i + 2], others[i + 2]) - tf.maximum(some[i], others[i]) for i in range(2)
    ]
    across, down = (tf.where(side >= -gap, side + pixel, tf.zeros_like(side)) for side in sides)
    return _over_union(across * down, *areas)


def _over_union(common: tf.Tensor, *areas: tf.Tensor) -> tf.Tensor:
    overlap = tf.math.divide_no_nan(common, areas[0] + areas[1] - common)
    return tf.where((areas[0] > 0) & (areas[1] > 0), overlap, tf.zeros_like(overlap))


_CORNERS = ((1, 1), (-1, 1), (-1, -1), (1, -1))


def _overlap_of_turned(some: Sequence[tf.Tensor], others: Sequence[tf.Tensor]) -> tf.Tensor:
    """As `overlap_of`, of boxes that are centers, sizes and angles.

    The other box is seen from the middle of the first one, along its sides. What both have in
    common is then what the other's edge surrounds, after moving each point of it that is outside
    of the first box to the nearest point inside.
    """
    x, y, width, height, angle = others
    along, across = x - some[0], y - some[1]
    cosine, sine = tf.cos(some[4]), tf.sin(some[4])
    center = along * cosine + across * sine, across * cosine - along * sine
    cosine, sine = tf.cos(angle - some[4]), tf.sin(angle - some[4])
    half = tf.abs(width) / 2, tf.abs(height) / 2
    corners = [
        (
            center[0] + i * half[0] * cosine - j * half[1] * sine,
            center[1] + i * half[0] * sine + j * half[1] * cosine,
        )
        for i, j in _CORNERS
    ]
    limits = [tf.abs(side) / 2 for side in some[2:4]]
    common = tf.zeros_like(center[0])
    for start, end in zip(corners, corners[1:] + corners[:1]):
        points = _clamped(start, end, limits)
        common += tf.reduce_sum(
            points[0][..., :-1] * points[1][..., 1:] - points[0][..., 1:] * points[1][..., :-1], -1
        )
    return _over_union(common / 2, some[2] * some[3], width * height)


def _clamped(
    start: Sequence[tf.Tensor], end: Sequence[tf.Tensor], limits: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """A segment, of which each coordinate is clamped to the limits: the points where it bends."""
    bends = [
        tf.math.divide_no_nan(sign * limit - a, b - a)
        for a, b, limit in zip(start, end, limits)
        for sign in (-1, 1)
    ]
    between = tf.clip_by_value(tf.sort(tf.stack(bends, -1)), 0.0, 1.0)
    at = tf.concat([tf.zeros_like(between[..., :1]), between, tf.ones_like(between[..., :1])], -1)
    return [
        tf.clip_by_value((a + (b - a) * at), -limit, limit)
        for a, b, limit in (
            (a[..., tf.newaxis], b[..., tf.newaxis], limit[..., tf.newaxis])
            for a, b, limit in zip(start, end, limits)
        )
    ]


def without_overlaps(
    is_candidate: tf.Tensor,
    boxes: Sequence[tf.Tensor],
    threshold: float,
    overlap: Callable[..., tf.Tensor] = overlap_of,
    exceeds: Callable[..., tf.Tensor] = tf.greater,
    eta: float = 1.0,
    most: int | None = None,
) -> tf.Tensor:
    """The candidates to keep: the first one, the first that does not overlap it, and so on.

    Args:
        is_candidate: [..., boxes].
        boxes: their four sides, [..., boxes] each.
        threshold: the overlap that `exceeds` compares with that of a box and the ones kept.
        eta: the factor of the threshold after each box, while it is above 0.5.
        most: how many to keep.
    """
    axes = is_candidate.shape.rank - 1
    boxes = [*map(tf.stop_gradient, boxes)]
    number = tf.range(tf.shape(is_candidate)[-1])

    def wanted(
        step: int | tf.Tensor,
        threshold: tf.Tensor,
        left: tf.Tensor,
        largest: tf.Tensor,
        kept: tf.Tensor,
    ) -> tf.Tensor:
        return tf.reduce_any(left) & (most is None or step < most)

    def keep(
        step: int | tf.Tensor,
        threshold: tf.Tensor,
        left: tf.Tensor,
        largest: tf.Tensor,
        kept: tf.Tensor,
    ) -> tuple[int | tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        first = tf.argmax(tf.cast(left, tf.int32), -1, tf.int32)
        is_first = (number == first[..., tf.newaxis]) & left
        own = [tf.gather(side, first, batch_dims=axes)[..., tf.newaxis] for side in boxes]
        largest = tf.maximum(largest, overlap(own, boxes))
        threshold = tf.where(threshold > 0.5, threshold * eta, threshold)
        left &= ~is_first & negated(exceeds(largest, threshold))
        return step + 1, threshold, left, largest, kept | is_first

    start = (
        0,
        tf.cast(threshold, boxes[0].dtype),
        is_candidate,
        tf.fill(tf.shape(is_candidate), tf.constant(-np.inf, boxes[0].dtype)),
        tf.zeros_like(is_candidate),
    )
    return tf.while_loop(wanted, keep, start)[-1]


# MatrixNms and MulticlassNms.


@register("MatrixNms", "opset8")
def _matrix_nms(
    op: Operation, boxes: tf.Tensor, scores: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    ranked = _Ranked(op, boxes, scores, None, tf.greater)
    scores = ranked.scores * _decay(op, ranked)
    is_kept = ranked.is_candidate & (scores > op.number("post_threshold", 0.0))
    # OpenVINO sorts by class across the batch alone.
    return ranked.table(is_kept, scores, op.flag("sort_result_across_batch", False))


def _decay(op: Operation, ranked: "_Ranked") -> tf.Tensor:
    """The factors of the scores, for the overlaps with better boxes."""
    is_linear = op.text("decay_function", "linear", ("linear", "gaussian")) == "linear"
    sigma = op.number("gaussian_sigma", 2.0)
    # Added to 1 - before, it would be added to 1 in a graph, and be gone.
    least = tf.constant(1e-10, ranked.scores.dtype)
    number = tf.range(tf.shape(ranked.scores)[-1])
    count = tf.reduce_max(tf.reduce_sum(tf.cast(ranked.is_candidate, tf.int32), -1))

    def step(
        i: int | tf.Tensor, largest: tf.Tensor, decay: tf.Tensor
    ) -> tuple[int | tf.Tensor, tf.Tensor, tf.Tensor]:
        *own, before = (tf.gather(x, [i], axis=-1) for x in (*ranked.sides, largest))
        overlap = overlap_of(own, ranked.sides, ranked.pixel)
        if is_linear:
            factor = (1 - overlap) / tf.where(before == 1, least, 1 - before)
        else:
            factor = tf.exp((before**2 - overlap**2) * sigma)
        is_later = number > i
        largest = tf.where(is_later, tf.maximum(largest, overlap), largest)
        return i + 1, largest, tf.where(is_later, tf.minimum(decay, factor), decay)

    start = 0, tf.zeros_like(ranked.scores), tf.ones_like(ranked.scores)
    return tf.while_loop(lambda i, *_: i < count, step, start)[-1]


@register("MulticlassNms", ["opset8", "opset9"])
def _multiclass_nms(
    op: Operation, boxes: tf.Tensor, scores: tf.Tensor, counts: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    ranked = _Ranked(op, boxes, scores, counts, tf.greater_equal)
    eta = op.number("nms_eta", 1.0)
    if not 0 <= eta <= 1:
        raise op.error(f"nms_eta={eta} must be from 0 to 1")
    overlap = functools.partial(overlap_of, pixel=ranked.pixel, gap=ranked.pixel)
    is_kept = without_overlaps(
        ranked.is_candidate,
        ranked.sides,
        op.number("iou_threshold", 0.0),
        overlap,
        tf.greater_equal,
        eta,
    )
    return ranked.table(is_kept, ranked.scores, True)


class _Ranked:
    """The best candidates among the boxes of each class, best first.

    Attributes:
        scores, is_candidate: [images, classes, boxes].
        sides: four of this shape.
        pixel: as for `overlap_of`.
    """

    def __init__(
        self,
        op: Operation,
        boxes: tf.Tensor,
        scores: tf.Tensor,
        counts: tf.Tensor | None,
        passes: Callable[..., Any],
    ):
        self._op = op
        is_shared = counts is None
        if rank_of(op, scores) != (3 if is_shared else 2):
            raise op.error(f"scores have {scores.shape.rank} dimensions, not {3 - (not is_shared)}")
        if not boxes.shape.is_compatible_with(
            [_tf.known_extent(scores, 0), _tf.known_extent(scores, -1), 4]
        ):
            raise op.error(f"boxes of {boxes.shape} do not fit scores of {scores.shape}")
        self._dtype = boxes.dtype
        self._keep, background = self._limit("keep_top_k"), self._limit("background_class")
        self.pixel = 0.0 if op.flag("normalized", True) else 1.0
        scores = tf.cast(scores, computed_in(scores.dtype))
        classes, count = extents(scores)[-2:]
        label = tf.range(tf.cast(classes, tf.int64))[:, tf.newaxis]
        is_candidate = passes(scores, op.number("score_threshold", 0.0)) & (label != background)
        if not is_shared:
            # Of the boxes of all images, which are one after another.
            counts = tf.maximum(tf.cast(counts, tf.int64), 0)[:, tf.newaxis, tf.newaxis]
            ends = tf.cumsum(counts)
            number = tf.range(tf.cast(count, tf.int64))
            is_candidate &= (number >= ends - counts) & (number < ends)
        best, index = _best(scores, is_candidate, self._limit("nms_top_k"))
        self.is_candidate = best > -np.inf
        self.scores = tf.where(self.is_candidate, best, tf.zeros_like(best))
        self._images = extents(is_candidate)[0]
        image = tf.range(tf.cast(self._images, tf.int64))[:, tf.newaxis, tf.newaxis]
        rows = (image if is_shared else label) * count + index
        self._places = rows if is_shared else index * tf.cast(classes, tf.int64) + label
        owners = self._images if is_shared else classes
        self._boxes = tf.gather(tf.reshape(boxes, as_shape(owners * count, 4)), rows)
        self.sides = tf.unstack(tf.cast(self._boxes, scores.dtype), axis=-1)

    def _limit(self, name: str) -> int:
        value = self._op.integer(name, -1)
        if value < -1:
            raise self._op.error(f"{name}={value} must not be below -1")
        return value

    def table(
        self, is_kept: tf.Tensor, scores: tf.Tensor, by_class: bool
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The outputs: rows of class, score and corners; the places of the boxes; their numbers.

        `by_class` tells whether rows may be sorted by class.
        """
        op, dtype = self._op, self._op.dtype("output_type", tf.int64)
        found = tf.where(is_kept)  # image, class and rank
        found = _sorted(found, -tf.gather_nd(scores, found))
        found = _sorted(found, found[:, 0])
        images = tf.cast(self._images, tf.int64)
        counts = tf.math.unsorted_segment_sum(tf.ones_like(found[:, 0]), found[:, 0], images)
        if self._keep >= 0:
            first = tf.gather(tf.cumsum(counts, exclusive=True), found[:, 0])
            found = found[tf.range(tf.shape(found, tf.int64)[0]) - first < self._keep]
            counts = tf.minimum(counts, self._keep)
        kind = op.text("sort_result_type", "none", ("classid", "score", "none"))
        is_across = op.flag("sort_result_across_batch", False)
        if kind == "classid" and by_class:
            found = _sorted(found, found[:, 1])
            found = found if is_across else _sorted(found, found[:, 0])
        elif kind == "score" and is_across:
            found = _sorted(found, -tf.gather_nd(scores, found))
        found_scores = tf.gather_nd(scores, found)
        numbers = tf.stack([tf.cast(found[:, 1], scores.dtype), found_scores], 1)
        rows = tf.concat([tf.cast(numbers, self._dtype), tf.gather_nd(self._boxes, found)], 1)
        places = tf.gather_nd(self._places, found)[:, tf.newaxis]
        return rows, tf.cast(places, dtype), tf.cast(counts, dtype)


def _best(
    scores: tf.Tensor, is_candidate: tf.Tensor, most: int = -1
) -> tuple[tf.Tensor, tf.Tensor]:
    """The scores of the candidates along the last axis, best first, and where they were.

    There are `most`, if it is not negative, and no more than any row has. After a row's last one
    the scores are -infinity.
    """
    count = tf.reduce_sum(tf.cast(is_candidate, tf.int32), -1)
    count = tf.maximum(tf.reduce_max(count), 0)  # 0 also of no rows
    masked = tf.where(is_candidate, scores, tf.constant(-np.inf, scores.dtype))
    best, index = tf.math.top_k(masked, count if most < 0 else tf.minimum(most, count))
    return best, tf.cast(index, tf.int64)


def _sorted(rows: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    return tf.gather(rows, tf.argsort(keys, stable=True))
