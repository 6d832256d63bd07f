"""Pooling of [N, C, spatial...] tensors to sizes that are given."""

import tensorflow as tf

from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.reductions import product_along
from tf_ti.openvino.operations.shapes import extents, rank_of, sizes_of


class _Windows:
    """The windows along a spatial axis, `count` of them, which may overlap by an element."""

    def __init__(self, extent: int | tf.Tensor, count: int | tf.Tensor):
        self._extent, self._count = (tf.cast(n, tf.int64) for n in (extent, count))
        number = tf.range(self._count)
        self._starts = number * self._extent // self._count
        self._ends = -(-(number + 1) * self._extent // self._count)
        self.lengths = self._ends - self._starts

    def matrix(self, dtype: tf.DType) -> tf.Tensor:
        """Ones where windows, the rows, have elements of the axis."""
        at = tf.range(self._extent)
        starts, ends = self._starts[:, tf.newaxis], self._ends[:, tf.newaxis]
        return tf.cast((at >= starts) & (at < ends), dtype)

    def positions(self) -> tf.Tensor:
        """The elements of each window, of which shorter ones repeat their last."""
        steps = tf.range(tf.reduce_max(self.lengths))
        return tf.minimum(self._starts[:, tf.newaxis] + steps, self._ends[:, tf.newaxis] - 1)


def _windows(op: Operation, x: tf.Tensor) -> list[_Windows]:
    spatial = rank_of(op, x) - 2
    if not 1 <= spatial <= 3:
        raise op.error(f"{spatial} spatial axes, where 1 to 3 are supported")
    return [_Windows(*sizes) for sizes in zip(extents(x)[2:], sizes_of(op, 1, spatial))]


@register("AdaptiveAvgPool", "opset8")
def _adaptive_avg_pool(op: Operation, x: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    sums, counts = tf.cast(x, tf.float64) if x.dtype.is_integer else x, tf.ones([], tf.int64)
    for axis, windows in enumerate(_windows(op, x), 2):
        sums = product_along(sums, windows.matrix(sums.dtype), axis)
        counts = counts[..., tf.newaxis] * windows.lengths
    if not x.dtype.is_integer:
        return sums / tf.cast(counts, sums.dtype)
    # Rounded to the nearest number, and to the even one of two.
    whole = tf.cast(sums, tf.int64)
    low, twice = whole // counts, 2 * (whole % counts)
    is_up = (twice > counts) | ((twice == counts) & (low % 2 == 1))
    return tf.cast(low + tf.cast(is_up, tf.int64), x.dtype)


@register("AdaptiveMaxPool", "opset8")
def _adaptive_max_pool(
    op: Operation, x: tf.Tensor, sizes: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    dtype = op.dtype("index_element_type", tf.int64)
    batch, channels, *spatial = extents(x)
    # The numbers of each window side by side, and their positions in the channel.
    shape = tf.stack([tf.cast(extent, tf.int64) for extent in spatial])
    values, places = x, tf.reshape(tf.range(tf.reduce_prod(shape)), [1, 1, *spatial])
    axes = _windows(op, x)
    for i, windows in enumerate(axes):
        values, places = (
            tf.gather(t, windows.positions(), axis=2 + 2 * i) for t in (values, places)
        )
    rank = 2 + 2 * len(axes)
    order = [0, 1, *range(2, rank, 2), *range(3, rank, 2)]
    values, places = (tf.transpose(t, order) for t in (values, places))
    out = extents(values)[2 : 2 + len(axes)]
    values = tf.reshape(values, [batch, channels, *out, -1])
    places = tf.broadcast_to(tf.reshape(places, [1, 1, *out, -1]), tf.shape(values))
    best = tf.argmax(values, axis=-1)
    picked = (tf.gather(t, best, batch_dims=2 + len(axes)) for t in (values, places))
    largest, at = picked
    return largest, tf.cast(at, dtype)
