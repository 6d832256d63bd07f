"""Counts of numbers."""

import tensorflow as tf

from tf_ti.openvino.writer.conversion import Node, composes


@composes("Bincount", "DenseBincount")
def _bincount(op: Node, x: tf.Tensor, size: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Counts numbers, in each row if there are rows. Those from `size` on are not counted."""
    dtype = op.op.outputs[0].dtype
    is_binary = op.op.type == "DenseBincount" and op.attr("binary_output")
    has_weights = weights.shape.num_elements() != 0 and not is_binary
    counted = weights if has_weights else tf.ones_like(x, dtype)
    size = tf.cast(size, x.dtype)
    is_counted = (x >= 0) & (x < size)
    shape, place = tf.reshape(size, [1]), x
    if op.op.outputs[0].shape.rank == 2:
        rows = tf.shape(x, x.dtype)[:1]
        place += tf.range(rows[0])[:, tf.newaxis] * size
        shape = tf.concat([rows, shape], 0)
    place = tf.where(is_counted, place, tf.constant(-1, x.dtype))
    total = tf.math.unsorted_segment_sum(counted, place, tf.reduce_prod(shape))
    if is_binary:
        total = tf.cast(total > 0, dtype)
    return tf.reshape(total, shape)
