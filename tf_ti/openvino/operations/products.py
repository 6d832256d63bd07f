"""Matrix products, Einsum, attention."""

import tensorflow as tf

from tf_ti.openvino.operation import register
from tf_ti.openvino.operations.shapes import rank_of


@register("MatMul")
def _mat_mul(op, a, b):
    rank_a, rank_b = rank_of(op, a), rank_of(op, b)
    transpose_a, transpose_b = op.flag("transpose_a", False), op.flag("transpose_b", False)
    # A vector is a row on the left and a column on the right. It is not transposed.
    if rank_a == 1:
        a, transpose_a = a[tf.newaxis], False
    if rank_b == 1:
        b, transpose_b = b[:, tf.newaxis], False
    dtype = a.dtype
    if dtype.is_integer:  # TensorFlow has kernels for few integer types
        a, b = (tf.cast(x, tf.int32 if dtype.size < 4 else tf.int64) for x in (a, b))
    if rank_a == rank_b == 2 and (transpose_a or _is_transposed(a)):
        # TensorFlow fuses the addition of a row, [1, n], with MatMul, whose kernel for transposed
        # matrices refuses it.
        product = tf.raw_ops.BatchMatMulV2(x=a, y=b, adj_x=transpose_a, adj_y=transpose_b)
    else:
        product = tf.matmul(a, b, transpose_a, transpose_b)
    product = tf.cast(product, dtype)
    if rank_a == 1:
        product = tf.squeeze(product, -2)
    if rank_b == 1:
        product = tf.squeeze(product, -1)
    return product


def _is_transposed(x: tf.Tensor) -> bool:
    return not tf.executing_eagerly() and x.op.type == "Transpose"


@register("Einsum", "opset7")
def _einsum(op, *inputs):
    return tf.einsum(op.text("equation").replace(" ", ""), *inputs)


@register("ScaledDotProductAttention", "opset13")
def _attention(op, query, key, value, mask=None, scale=None, sink=None):
    if scale is None:
        scale = tf.math.rsqrt(tf.cast(tf.shape(query)[-1], query.dtype))
    scores = tf.matmul(query * tf.reshape(scale, []), key, transpose_b=True)
    if op.flag("causal", False):
        rows, columns = tf.shape(scores)[-2], tf.shape(scores)[-1]
        seen = tf.range(rows)[:, tf.newaxis] >= tf.range(columns)[tf.newaxis]
        scores = tf.where(seen, scores, tf.cast(-float("inf"), scores.dtype))
    elif mask is not None and mask.shape.rank != 0:
        if mask.dtype.is_bool:
            scores = tf.where(mask, scores, tf.cast(-float("inf"), scores.dtype))
        else:
            scores += mask
    if sink is None:
        return tf.matmul(tf.nn.softmax(scores), value)
    # One more score in each row, whose share of the weights is dropped.
    shape = tf.concat([tf.shape(scores)[:-1], [1]], 0)
    scores = tf.concat([scores, tf.broadcast_to(sink, shape)], -1)
    return tf.matmul(tf.nn.softmax(scores)[..., :-1], value)
