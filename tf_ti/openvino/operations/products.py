"""Matrix products, Einsum, attention, Fourier transforms."""

import tensorflow as tf

from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import rank_of, static_axes


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
    product = tf.cast(tf.matmul(a, b, transpose_a, transpose_b), dtype)
    if rank_a == 1:
        product = tf.squeeze(product, -2)
    if rank_b == 1:
        product = tf.squeeze(product, -1)
    return product


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


def _fourier(op: Operation, x: tf.Tensor, size, inverse: bool) -> tf.Tensor:
    """The Fourier transform of pairs of numbers along the last axis, over some other axes."""
    rank = rank_of(op, x) - 1
    axes = static_axes(op, 1, rank)
    lengths = {}
    if size is not None:
        lengths = {
            axis: int(length) for axis, length in zip(axes, op.static(2)) if int(length) != -1
        }
    z = tf.complex(x[..., 0], x[..., 1])
    for axis, length in lengths.items():
        extent = tf.shape(z)[axis]
        z = tf.gather(z, tf.range(tf.minimum(extent, length)), axis=axis)
        pads = [[0, tf.maximum(length - extent, 0) if i == axis else 0] for i in range(rank)]
        z = tf.pad(z, pads)
    for axis in axes:
        order = [i for i in range(rank) if i != axis] + [axis]
        back = [order.index(i) for i in range(rank)]
        z = tf.transpose(z, order)
        z = tf.transpose((tf.signal.ifft if inverse else tf.signal.fft)(z), back)
    return tf.stack([tf.math.real(z), tf.math.imag(z)], axis=-1)


@register("DFT", "opset7")
def _dft(op, x, axes, size=None):
    return _fourier(op, x, size, inverse=False)


@register("IDFT", "opset7")
def _idft(op, x, axes, size=None):
    return _fourier(op, x, size, inverse=True)
