"""Selecting boxes: non-maximum suppression."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import as_shape, extents
from tf_ti.openvino.precision import computed_in


@register("NonMaxSuppression", ["opset1", "opset3", "opset4"])
def _non_max_suppression(op, boxes, scores, *limits):
    picked = _Picked(op, boxes, scores)
    batches, classes, count = extents(scores)
    rows = picked.most * tf.cast(batches * classes, tf.int64)
    if op.registered != "opset4":
        rows = tf.minimum(tf.cast(count, tf.int64), picked.per_class * classes)
    indices = picked.indices[:rows]
    missing = rows - tf.shape(indices, tf.int64)[0]
    indices = tf.pad(indices, [[0, missing], [0, 0]], constant_values=-1)
    return tf.cast(indices, op.dtype("output_type", tf.int64))


@register("NonMaxSuppression", ["opset5", "opset9"])
def _non_max_suppression_with_scores(op, boxes, scores, *limits):
    picked = _Picked(op, boxes, scores)
    dtype = op.dtype("output_type", tf.int64)
    kind = scores.dtype
    if len(op.layer.outputs) > 1 and op.layer.outputs[1].element_type is not None:
        kind = tf.as_dtype(op.layer.outputs[1].element_type.dtype)
    owners = tf.cast(picked.indices[:, :2], picked.scores.dtype)
    triples = tf.concat([owners, picked.scores[:, tf.newaxis]], 1)
    count = tf.shape(picked.indices, dtype if dtype in (tf.int32, tf.int64) else tf.int64)[:1]
    return tf.cast(picked.indices, dtype), tf.cast(triples, kind), tf.cast(count, dtype)


class _Picked:
    """The selected boxes: `indices`, [boxes, (batch, class, box)], and their `scores`."""

    def __init__(self, op: Operation, boxes: tf.Tensor, scores: tf.Tensor):
        dtype = computed_in(scores.dtype)
        self._version = op.registered
        self._scores = tf.cast(scores, dtype)
        self._corners = _corners(op, tf.cast(boxes, dtype))  # 4 of [N, boxes]
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
        scores, corners = tf.stop_gradient(self._scores), [*map(tf.stop_gradient, self._corners)]
        never = tf.constant(-np.inf, scores.dtype)
        boxes = extents(scores)[2]

        def alive(scores):
            return tf.where(scores > self._score_threshold, scores, never)

        def wanted(step, scores, picks):
            return (step < self.most) & tf.reduce_any(scores > never)

        def pick(step, scores, picks):
            best = tf.argmax(scores, -1)
            found = tf.reduce_max(scores, -1) > never
            own = [tf.gather(side, best, batch_dims=1)[..., tf.newaxis] for side in corners]
            overlap = overlap_of(own, [side[:, tf.newaxis] for side in corners])
            rest = scores * self._kept(overlap)
            taken = tf.range(tf.cast(boxes, tf.int64)) == best[..., tf.newaxis]
            rest = tf.where(taken | (scores == never), never, alive(rest))
            here = tf.range(self.most) == step
            chosen = tf.where(found, best, tf.cast(-1, tf.int64))
            updated = tf.where(here, chosen[..., tf.newaxis], picks)
            updated.set_shape(picks.shape)
            return step + 1, rest, updated

        picks = tf.fill(as_shape(*extents(scores)[:2], self.most), tf.cast(-1, tf.int64))
        start = tf.zeros([], tf.int64), alive(scores), picks
        if isinstance(boxes, int) and boxes == 0:
            return picks
        return tf.while_loop(wanted, pick, start)[2]

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

        def soft():
            corners = [tf.gather(side, at, batch_dims=1) for side in self._corners]
            rows = [side[..., :, tf.newaxis] for side in corners]
            columns = [side[..., tf.newaxis, :] for side in corners]
            before = tf.range(self.most)[:, tf.newaxis] > tf.range(self.most)
            kept = self._kept(overlap_of(rows, columns))
            return own * tf.reduce_prod(tf.where(before, kept, tf.ones_like(kept)), -1)

        return tf.cond(self._sigma > 0, soft, lambda: own) if self._may_be_soft else own


def _scalar(op: Operation, position: int, dtype: tf.DType) -> tf.Tensor:
    if len(op.inputs) <= position:
        return tf.zeros([], dtype)
    return tf.cast(tf.reshape(op.inputs[position], [-1])[0], dtype)


def _corners(op: Operation, boxes: tf.Tensor) -> list[tf.Tensor]:
    """The lower and the upper ends of boxes along both axes."""
    encoding = op.text("box_encoding", "corner", ("corner", "center"))
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


def overlap_of(some: Sequence[tf.Tensor], others: Sequence[tf.Tensor]) -> tf.Tensor:
    """The intersection of boxes over their union."""
    areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (some, others)]
    sides = [
        tf.maximum(tf.minimum(some[i + 2], others[i + 2]) - tf.maximum(some[i], others[i]), 0)
        for i in range(2)
    ]
    common = sides[0] * sides[1]
    overlap = tf.math.divide_no_nan(common, areas[0] + areas[1] - common)
    return tf.where((areas[0] > 0) & (areas[1] > 0), overlap, tf.zeros_like(overlap))
