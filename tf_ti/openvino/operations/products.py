"""Matrix products and inverses, Einsum, attention."""

import tensorflow as tf

from tf_ti import _tf
from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import rank_of


@register("MatMul")
def _mat_mul(op: Operation, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
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
def _einsum(op: Operation, *inputs: tf.Tensor) -> tf.Tensor:
    return tf.einsum(op.text("equation").replace(" ", ""), *inputs)


@register("GroupedMatMul", "opset17")
def _grouped_mat_mul(
    op: Operation, a: tf.Tensor, b: tf.Tensor, ends: tf.Tensor | None = None
) -> tf.Tensor:
    """Products with transposed matrices: of those of a batch, or of the rows up to each end."""
    if rank_of(op, b) != 3 or rank_of(op, a) != (3 if ends is None else 2):
        raise op.error(f"inputs of {a.shape.rank} and {b.shape.rank} dimensions do not fit")
    if ends is None:
        return tf.matmul(a, b, transpose_b=True)
    if _tf.known_extent(b, 0) is None:
        raise op.error("the number of groups must be known")
    parts, start = [], 0
    for own, end in zip(tf.unstack(b), tf.unstack(ends, _tf.known_extent(b, 0))):
        parts.append(tf.matmul(a[start:end], own, transpose_b=True))
        start = end
    found = tf.concat(parts, 0)
    # Rows that no group has are zeros.
    return tf.pad(found, [[0, tf.shape(a)[0] - tf.shape(found)[0]], [0, 0]])


@register("Inverse", "opset14")
def _inverse(op: Operation, x: tf.Tensor) -> tf.Tensor:
    if rank_of(op, x) < 2:
        raise op.error(f"data has {x.shape.rank} dimensions, and no matrices")
    return tf.linalg.inv(x, adjoint=op.flag("adjoint", False))


@register("ScaledDotProductAttention", "opset13")
def _attention(
    op: Operation,
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    mask: tf.Tensor | None = None,
    scale: tf.Tensor | None = None,
    sink: tf.Tensor | None = None,
) -> tf.Tensor:
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
