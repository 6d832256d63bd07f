"""Regions that a detector proposes."""

import math
from collections.abc import Sequence

import tensorflow as tf

from tf_ti import _tf
from tf_ti._exact import negated
from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import extents, rank_of

_LARGEST = math.log(1000 / 16)  # of the logarithms by which boxes grow


@register("GenerateProposals", "opset9")
def _generate_proposals(
    op: Operation, image: tf.Tensor, anchors: tf.Tensor, deltas: tf.Tensor, scores: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Rows of the images' best boxes, these boxes' scores, and how many each image has."""
    if [rank_of(op, x) for x in op.inputs] != [2, 4, 4, 4]:
        raise op.error("its inputs must have 2, 4, 4 and 4 dimensions")
    if _tf.known_extent(image, 1) not in (3, 4, None):
        raise op.error(
            f"im_info must have 3 or 4 numbers for an image, not {_tf.known_extent(image, 1)}"
        )
    before, after = op.integer("pre_nms_count"), op.integer("post_nms_count")
    if min(before, after) < 1:
        raise op.error(f"pre_nms_count={before} and post_nms_count={after} must be positive")
    if op.number("nms_eta", 1.0) != 1:
        raise op.error(f"nms_eta={op.number('nms_eta')}, where only 1 is supported")
    batch, places, height, width = extents(scores)
    count = height * width * places
    scores = tf.reshape(tf.transpose(scores, [0, 2, 3, 1]), [batch, count])
    deltas = tf.reshape(deltas, [batch, places, 4, height, width])
    deltas = tf.reshape(tf.transpose(deltas, [0, 3, 4, 1, 2]), [batch, count, 4])
    order = tf.argsort(scores, direction="DESCENDING", stable=True)[:, :before]
    best, scores = (tf.gather(x, order, batch_dims=1) for x in (deltas, scores))
    wide = 0.0 if op.flag("normalized", True) else 1.0  # a box of one pixel ends where it begins
    size = image[:, 1::-1]
    corners = _moved(tf.gather(tf.reshape(anchors, [count, 4]), order), best, size, wide)
    # One scale for both axes, or the height's and the width's.
    scales = image[:, -1:], image[:, 2:3]
    is_large = [
        corners[i + 2] - corners[i] + wide >= op.number("min_size") * scale
        for i, scale in enumerate(scales)
    ]
    is_kept = _best(corners, tf.reduce_all(is_large, 0), op.number("nms_threshold"), after, wide)
    rows = tf.where(is_kept)
    dtype = op.dtype("roi_num_type", tf.int64)
    return (
        tf.gather_nd(tf.stack(corners, -1), rows),
        tf.gather_nd(scores, rows),
        tf.reduce_sum(tf.cast(is_kept, dtype), 1),
    )


def _moved(anchors: tf.Tensor, deltas: tf.Tensor, size: tf.Tensor, wide: float) -> list[tf.Tensor]:
    """The four sides of boxes within their images: left, top, right, bottom, [batch, boxes]."""
    starts, ends = tf.split(anchors, 2, axis=-1)
    shifts, growths = tf.split(deltas, 2, axis=-1)
    extent = ends - starts + wide
    centers = starts + extent / 2 + shifts * extent
    half = tf.exp(tf.minimum(growths, _LARGEST)) * extent / 2
    last = size[:, tf.newaxis] - wide
    sides = tf.concat([centers - half, centers + half - wide], -1)
    inside = tf.maximum(tf.minimum(sides, tf.tile(last, [1, 1, 2])), 0)
    return tf.unstack(inside, 4, axis=-1)


def _best(
    corners: Sequence[tf.Tensor], is_candidate: tf.Tensor, threshold: float, most: int, wide: float
) -> tf.Tensor:
    """The first candidate of an image, the next one that overlaps it by no more, and so on."""
    number = tf.range(tf.shape(is_candidate)[1])

    def wanted(step: int | tf.Tensor, alive: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
        return (step < most) & tf.reduce_any(alive)

    def pick(
        step: int | tf.Tensor, alive: tf.Tensor, kept: tf.Tensor
    ) -> tuple[int | tf.Tensor, tf.Tensor, tf.Tensor]:
        first = tf.argmax(tf.cast(alive, tf.int32), axis=1, output_type=tf.int32)[:, tf.newaxis]
        own = [tf.gather(side, first, batch_dims=1) for side in corners]
        is_first = (number == first) & alive
        alive &= ~is_first & negated(_overlap(own, corners, wide) > threshold)
        return step + 1, alive, kept | is_first

    start = 0, is_candidate, tf.zeros_like(is_candidate)
    return tf.while_loop(wanted, pick, start)[2]


def _overlap(some: Sequence[tf.Tensor], others: Sequence[tf.Tensor], wide: float) -> tf.Tensor:
    areas = [(box[2] - box[0] + wide) * (box[3] - box[1] + wide) for box in (some, others)]
    sides = [
        tf.minimum(some[i + 2], others[i + 2]) - tf.maximum(some[i], others[i]) + wide
        for i in range(2)
    ]
    common = tf.maximum(sides[0], 0) * tf.maximum(sides[1], 0)
    return common / (areas[0] + areas[1] - common)
