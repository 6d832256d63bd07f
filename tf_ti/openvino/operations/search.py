"""Positions of numbers in sorted ones."""

import tensorflow as tf

from tf_ti.openvino.operation import Operation, register


def _alike(*tensors: tf.Tensor) -> list[tf.Tensor]:
    """The tensors in a type that holds the numbers of all."""
    dtypes = {x.dtype for x in tensors}
    if len(dtypes) == 1 and dtypes <= {tf.float32, tf.float64, tf.int32, tf.int64}:
        return list(tensors)
    wide = tf.int64 if all(dtype.is_integer for dtype in dtypes) else tf.float64
    return [tf.cast(x, wide) for x in tensors]


@register("Bucketize", "opset3")
def _bucketize(op: Operation, x: tf.Tensor, buckets: tf.Tensor) -> tf.Tensor:
    dtype = op.dtype("output_type", tf.int64)
    side = "left" if op.flag("with_right_bound", True) else "right"
    x, buckets = _alike(x, buckets)
    found = tf.searchsorted(buckets, tf.reshape(x, [-1]), side)
    return tf.cast(tf.reshape(found, tf.shape(x)), dtype)


@register("SearchSorted", "opset15")
def _search_sorted(op: Operation, sequence: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    dtype = op.dtype("output_type", tf.int64)
    side = "right" if op.flag("right_mode", False) else "left"
    sequence, values = _alike(sequence, values)
    if sequence.shape.rank == 1:
        found = tf.reshape(
            tf.searchsorted(sequence, tf.reshape(values, [-1]), side), tf.shape(values)
        )
    else:
        found = tf.searchsorted(sequence, values, side)
    return tf.cast(found, dtype)
