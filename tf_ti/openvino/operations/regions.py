"""Operations that sample images: at points, and in regions."""

import tensorflow as tf

from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.interpolation import clipped, cubic_weights, rounded
from tf_ti.openvino.operations.shapes import as_shape, extents, rank_of
from tf_ti.openvino.precision import computed_in

# GridSample.


@register("GridSample", "opset9")
def _grid_sample(op, x, grid):
    if rank_of(op, x) != 4 or rank_of(op, grid) != 4:
        raise op.error("data and grid must have 4 dimensions")
    mode = op.text("mode", "bilinear", ("bilinear", "nearest", "bicubic"))
    points = _Points(op, x)
    grid = tf.cast(grid, points.dtype)
    (columns, column_weights), (rows, row_weights) = (
        _grid_taps(_denormalized(grid[..., i], length, points.align), mode)
        for i, length in enumerate((points.width, points.height))
    )
    total = tf.add_n(
        [
            _weighted(points.at(row, column), row_weight, column_weight)
            for row, row_weight in zip(rows, row_weights)
            for column, column_weight in zip(columns, column_weights)
        ]
    )
    return rounded(tf.transpose(total, [0, 3, 1, 2]), x.dtype)


def _weighted(values: tf.Tensor, *weights: tf.Tensor | None) -> tf.Tensor:
    for weight in weights:
        if weight is not None:
            values = values * weight[..., tf.newaxis]
    return values


def _denormalized(x: tf.Tensor, length: tf.Tensor, align: bool) -> tf.Tensor:
    length = tf.cast(length, x.dtype)
    return (x + 1) * (length - 1) / 2 if align else ((x + 1) * length - 1) / 2


def _grid_taps(x: tf.Tensor, mode: str) -> tuple[list, list]:
    """The positions next to x, and their weights."""
    if mode == "nearest":
        return [tf.round(x)], [None]
    low = tf.floor(x)
    if mode == "bilinear":
        return [low, low + 1], [low + 1 - x, x - low]
    return [low + i for i in (-1, 0, 1, 2)], cubic_weights(x - low, -0.75)


class _Points:
    """The pixels of images, [N, C, H, W]; outside the images as `padding_mode` says."""

    def __init__(self, op: Operation, x: tf.Tensor):
        self.align = op.flag("align_corners", False)
        self._padding = op.text("padding_mode", "zeros", ("zeros", "border", "reflection"))
        self.dtype = computed_in(x.dtype)
        batch, channels, self.height, self.width = extents(x)
        x = tf.transpose(tf.cast(x, self.dtype), [0, 2, 3, 1])
        self._x = tf.reshape(x, as_shape(batch, self.height * self.width, channels))

    def at(self, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
        """The pixels at rows and columns, both [N, h, w], as [N, h, w, C]."""
        places = self._inside(rows, self.height) * tf.cast(self.width, tf.int64)
        values = tf.gather(self._x, places + self._inside(columns, self.width), batch_dims=1)
        if self._padding != "zeros":
            return values
        height, width = (tf.cast(n, self.dtype) for n in (self.height, self.width))
        valid = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        return tf.where(valid[..., tf.newaxis], values, tf.zeros([], self.dtype))

    def _inside(self, places: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
        if self._padding != "reflection":
            last = tf.cast(length, places.dtype) - 1
            return clipped(tf.clip_by_value(places, tf.zeros_like(last), last), length)
        places, length = tf.cast(places, tf.int64), tf.cast(length, tf.int64)
        if self.align:
            period = tf.maximum(2 * (length - 1), 1)
            places = places % period
            return clipped(tf.minimum(places, period - places), length)
        places = places % (2 * length)
        return clipped(tf.minimum(places, 2 * length - 1 - places), length)


# ROIAlign.


@register("ROIAlign", "opset3")
def _roi_align_3(op, x, rois, batch_indices):
    return _regions(op, x, rois, batch_indices, "asymmetric")


@register("ROIAlign", "opset9")
def _roi_align_9(op, x, rois, batch_indices):
    modes = ("asymmetric", "half_pixel_for_nn", "half_pixel")
    return _regions(op, x, rois, batch_indices, op.text("aligned_mode", "asymmetric", modes))


def _regions(op: Operation, x, rois, batch_indices, aligned: str) -> tf.Tensor:
    if rank_of(op, x) != 4 or rank_of(op, rois) != 2:
        raise op.error("data must have 4 dimensions, and ROIs 2")
    dtype = computed_in(x.dtype)
    corners = tf.cast(rois, dtype)
    scale = op.number("spatial_scale")
    corners = (corners + (0.5 if aligned == "half_pixel" else 0.0)) * scale
    if aligned != "asymmetric":
        corners -= 0.5
    starts, sizes = corners[:, 1::-1], corners[:, 3:1:-1] - corners[:, 1::-1]  # rows, columns
    if aligned == "asymmetric":
        sizes = tf.maximum(sizes, 1.0)
    pooled = op.integer("pooled_h"), op.integer("pooled_w")
    bins = sizes / tf.cast(tf.stack(pooled), dtype)
    pooling = _Pooling(op, x, dtype, pooled)
    indices = tf.cast(batch_indices, tf.int64)
    ratio = op.integer("sampling_ratio")
    if ratio < 0:
        raise op.error(f"sampling_ratio={ratio} must not be negative")
    if ratio > 0:
        result = pooling(indices, starts, bins, [ratio, ratio])
    else:
        # The number of samples depends on the region, so each is computed on its own.
        result = tf.map_fn(
            lambda roi: pooling.one(*roi),
            (indices, starts, bins),
            fn_output_signature=tf.TensorSpec([*pooled, x.shape[1]], dtype),
        )
    return tf.cast(tf.transpose(result, [0, 3, 1, 2]), x.dtype)


class _Pooling:
    """The pooling of a ROIAlign in regions of images, [N, C, H, W]."""

    def __init__(self, op: Operation, x: tf.Tensor, dtype: tf.DType, pooled: tuple[int, int]):
        self._pooled = pooled
        self._mode = op.text("mode", among=("avg", "max"))
        self._lengths = extents(x)[2:]
        self._x = tf.transpose(tf.cast(x, dtype), [0, 2, 3, 1])

    def one(self, index: tf.Tensor, start: tf.Tensor, bin: tf.Tensor) -> tf.Tensor:
        samples = tf.cast(tf.math.ceil(bin), tf.int64)
        some = tf.maximum(samples, 1)
        result = self(index[tf.newaxis], start[tf.newaxis], bin[tf.newaxis], some)[0]
        return tf.where(tf.reduce_all(samples > 0), result, tf.zeros_like(result))

    def __call__(self, indices, starts, bins, samples) -> tf.Tensor:
        """Pools `samples` rows and columns of points in each bin: [regions, rows, columns, C]."""
        rows, columns = (self._taps(i, starts[:, i], bins[:, i], samples[i]) for i in range(2))
        values = [
            self._sampled(indices, row, column, weight, other)
            for row, weight in rows
            for column, other in columns
        ]
        reduce = tf.reduce_max if self._mode == "max" else tf.reduce_mean
        return self._pool(reduce, tf.add_n(values), samples)

    def _taps(self, i: int, start, bin, samples) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Two positions along rows or columns and their weights, [regions, bins * samples]."""
        dtype, length = start.dtype, tf.cast(self._lengths[i], start.dtype)
        fractions = (tf.cast(tf.range(samples), dtype) + 0.5) / tf.cast(samples, dtype)
        at = tf.cast(tf.range(self._pooled[i]), dtype)[:, tf.newaxis] + fractions
        x = start[:, tf.newaxis] + tf.reshape(at, [-1]) * bin[:, tf.newaxis]
        valid = (x >= -1) & (x <= length)
        x = tf.clip_by_value(x, tf.zeros([], dtype), length - 1)
        low = tf.floor(x)
        weights = low + 1 - x, x - low
        return [
            (clipped(low + k, self._lengths[i]), tf.where(valid, weight, tf.zeros([], dtype)))
            for k, weight in enumerate(weights)
        ]

    def _sampled(self, indices, rows, columns, row_weights, column_weights) -> tf.Tensor:
        """Weighted pixels, [regions, points along rows, points along columns, C]."""
        height, width = (tf.cast(length, tf.int64) for length in self._lengths)
        places = (indices[:, tf.newaxis] * height + rows)[:, :, tf.newaxis] * width
        places += columns[:, tf.newaxis, :]
        channels = extents(self._x)[3]
        values = tf.gather(tf.reshape(self._x, as_shape(-1, channels)), places)
        weights = row_weights[:, :, tf.newaxis] * column_weights[:, tf.newaxis, :]
        return values * weights[..., tf.newaxis]

    def _pool(self, reduce, values: tf.Tensor, samples) -> tf.Tensor:
        height, width = self._pooled
        count, channels = extents(values)[0], extents(values)[3]
        shape = as_shape(count, height, samples[0], width, samples[1], channels)
        return reduce(tf.reshape(values, shape), [2, 4])
