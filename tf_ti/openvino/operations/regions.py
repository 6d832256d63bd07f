"""Operations that sample images: at points, and in regions."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti._exact import divided, multiplied
from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.deformable import real_regions
from tf_ti.openvino.operations.elementwise import half_away_from_zero
from tf_ti.openvino.operations.interpolation import clipped, cubic_weights, rounded
from tf_ti.openvino.operations.shapes import as_shape, extents, positive, rank_of
from tf_ti.openvino.precision import computed_in

# GridSample.


@register("GridSample", "opset9")
def _grid_sample(op: Operation, x: tf.Tensor, grid: tf.Tensor) -> tf.Tensor:
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


def _denormalized(x: tf.Tensor, length: int | tf.Tensor, align: bool) -> tf.Tensor:
    length = tf.cast(length, x.dtype)
    return (x + 1) * (length - 1) / 2 if align else (multiplied(x + 1, length) - 1) / 2


def _grid_taps(x: tf.Tensor, mode: str) -> tuple[list[tf.Tensor], list[Any]]:
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
def _roi_align_3(
    op: Operation, x: tf.Tensor, rois: tf.Tensor, batch_indices: tf.Tensor
) -> tf.Tensor:
    return _regions(op, x, rois, batch_indices, "asymmetric")


@register("ROIAlign", "opset9")
def _roi_align_9(
    op: Operation, x: tf.Tensor, rois: tf.Tensor, batch_indices: tf.Tensor
) -> tf.Tensor:
    modes = ("asymmetric", "half_pixel_for_nn", "half_pixel")
    return _regions(op, x, rois, batch_indices, op.text("aligned_mode", "asymmetric", modes))


def _regions(
    op: Operation, x: tf.Tensor, rois: tf.Tensor, batch_indices: tf.Tensor, aligned: str
) -> tf.Tensor:
    if rank_of(op, x) != 4 or rank_of(op, rois) != 2:
        raise op.error("data must have 4 dimensions, and ROIs 2")
    dtype = computed_in(x.dtype)
    corners = tf.cast(rois, dtype)
    scale = op.number("spatial_scale")
    if aligned == "half_pixel":
        corners += 0.5
    corners = multiplied(corners, scale)
    if aligned != "asymmetric":
        corners -= 0.5
    starts, sizes = corners[:, 1::-1], corners[:, 3:1:-1] - corners[:, 1::-1]  # rows, columns
    if aligned == "asymmetric":
        sizes = tf.maximum(sizes, 1.0)
    pooled = op.integer("pooled_h"), op.integer("pooled_w")
    bins = divided(sizes, tf.stack(pooled))
    pooling = _Pooling(op, x, dtype, pooled)
    indices = tf.cast(batch_indices, tf.int64)
    ratio = op.integer("sampling_ratio")
    if ratio < 0:
        raise op.error(f"sampling_ratio={ratio} must not be negative")
    if ratio > 0:
        result = pooling(indices, starts, bins, ratio)
    else:
        # The number of samples depends on the region, so each is computed on its own.
        spec = tf.TensorSpec([*pooled, _tf.known_extent(x, 1)], dtype)
        result = _one_by_one(pooling.one, (indices, starts, bins), spec)
    return tf.cast(tf.transpose(result, [0, 3, 1, 2]), x.dtype)


@dataclasses.dataclass(frozen=True)
class _Reduction:
    """A sum or a maximum.

    Attributes:
        along: the reduction along axes.
        join: the reduction of two results.
        neutral: the result of nothing.
    """

    along: Callable[..., tf.Tensor]
    join: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    neutral: float


_SUM = _Reduction(tf.reduce_sum, tf.add, 0.0)
_MAXIMUM = _Reduction(tf.reduce_max, tf.maximum, -math.inf)


def _over_points(
    reduction: _Reduction,
    reduced: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    sources: Sequence[tf.Tensor],
    shape: Sequence[int] | tf.Tensor,
    dtype: tf.DType,
    counts: Sequence[tf.Tensor],
) -> tf.Tensor:
    """Reduces values at points in rows and columns, whose numbers depend on values.

    Args:
        reduction: the reduction.
        reduced: its result for some rows and columns, each a vector of int64.
        sources: the tensors that it uses and that have gradients.
        shape, dtype: the result's shape and dtype.
        counts: the number of rows and of columns, int64 scalars.
    """
    if not _tf.expects_xla():
        return reduced(*(tf.range(count) for count in counts))
    # XLA has no array of as many points: there loops take one after the other. It has no memory for
    # as many of a loop's values, either, so the gradient computes them again.
    rows, columns = counts

    def point(k: tf.Tensor) -> tf.Tensor:
        return reduced(tf.reshape(k // columns, [1]), tf.reshape(k % columns, [1]))

    def folded(step: Callable[..., Any], start: Any) -> Any:
        first = tf.zeros([], tf.int64)
        run = lambda k, value: (k + 1, step(k, value))  # noqa: E731
        return tf.while_loop(lambda k, _: k < rows * columns, run, (first, start))[1]

    def total(*_: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        nothing = tf.fill(shape, tf.constant(reduction.neutral, dtype))
        result = folded(lambda k, value: reduction.join(value, point(k)), nothing)

        def gradient(grad: tf.Tensor) -> list[tf.Tensor]:
            # A maximum's gradient goes in equal parts to all points that have it, to the last bit.
            share: Callable[[tf.Tensor], tf.Tensor] = tf.ones_like
            if reduction is _MAXIMUM:
                share = lambda value: tf.cast(value == result, dtype)  # noqa: E731
                grad /= tf.maximum(folded(lambda k, n: n + share(point(k)), tf.zeros_like(grad)), 1)

            def add(k: tf.Tensor, sums: list[tf.Tensor]) -> list[tf.Tensor]:
                with tf.GradientTape() as tape:
                    tape.watch(given)
                    value = point(k)
                found = tape.gradient(value, given, grad * share(value), "zero")
                return [a + b for a, b in zip(sums, found)]

            return folded(add, [tf.zeros_like(source) for source in given])

        return result, gradient

    given = list(sources)
    return tf.custom_gradient(total)(*given)


def _one_by_one(
    function: Callable[..., tf.Tensor], regions: Sequence[tf.Tensor], spec: tf.TensorSpec
) -> tf.Tensor:
    """Maps a function over regions."""
    # And over one more, as tf.map_fn cannot tell the channels of the result for none.
    padded = [tf.pad(x, [[0, 1]] + [[0, 0]] * (x.shape.rank - 1)) for x in regions]
    return tf.map_fn(lambda x: function(*x), padded, fn_output_signature=spec)[:-1]


class _Pooling:
    """The pooling of a ROIAlign in regions of images, [N, C, H, W]."""

    def __init__(self, op: Operation, x: tf.Tensor, dtype: tf.DType, pooled: tuple[int, int]):
        self._pooled = pooled
        self._mode = op.text("mode", among=("avg", "max"))
        self._reduction = _MAXIMUM if self._mode == "max" else _SUM
        self._lengths = extents(x)[2:]
        self._x = tf.transpose(tf.cast(x, dtype), [0, 2, 3, 1])

    def one(self, index: tf.Tensor, start: tf.Tensor, bin: tf.Tensor) -> tf.Tensor:
        """Pools one region, [rows, columns, C], with a point for each pixel of a bin."""
        samples = tf.cast(tf.math.ceil(bin), tf.int64)
        counts = tf.unstack(tf.maximum(samples, 1), 2)
        region = index[tf.newaxis], start[tf.newaxis], bin[tf.newaxis]
        shape = as_shape(*self._pooled, extents(self._x)[3])
        total = _over_points(
            self._reduction,
            lambda *numbers: self._reduced(*region, numbers, counts)[0],
            [self._x, *region[1:]],
            shape,
            self._x.dtype,
            counts,
        )
        result = self._finished(total, counts)
        return tf.where(tf.reduce_all(samples > 0), result, tf.zeros_like(result))

    def __call__(
        self, indices: tf.Tensor, starts: tf.Tensor, bins: tf.Tensor, samples: int
    ) -> tf.Tensor:
        """Pools `samples` rows and columns of points in each bin: [regions, rows, columns, C]."""
        counts = [samples, samples]
        numbers = [tf.range(samples)] * 2
        return self._finished(self._reduced(indices, starts, bins, numbers, counts), counts)

    def _finished(self, total: tf.Tensor, counts: Sequence[int] | Sequence[tf.Tensor]) -> tf.Tensor:
        return total if self._mode == "max" else divided(total, counts[0] * counts[1])

    def _reduced(
        self,
        indices: tf.Tensor,
        starts: tf.Tensor,
        bins: tf.Tensor,
        numbers: Sequence[tf.Tensor],
        counts: Sequence[int] | Sequence[tf.Tensor],
    ) -> tf.Tensor:
        """The reduction of those rows and columns of points in each bin that have the numbers."""
        rows, columns = (
            self._taps(i, starts[:, i], bins[:, i], numbers[i], counts[i]) for i in range(2)
        )
        values = tf.add_n(
            [
                self._sampled(indices, row, column, weight, other)
                for row, weight in rows
                for column, other in columns
            ]
        )
        height, width = self._pooled
        count, channels = extents(values)[0], extents(values)[3]
        in_bins = [extents(number)[0] for number in numbers]
        shape = as_shape(count, height, in_bins[0], width, in_bins[1], channels)
        return self._reduction.along(tf.reshape(values, shape), [2, 4])

    def _taps(
        self, i: int, start: tf.Tensor, bin: tf.Tensor, number: tf.Tensor, count: int | tf.Tensor
    ) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Two positions along rows or columns and their weights, [regions, bins * numbers]."""
        dtype, length = start.dtype, tf.cast(self._lengths[i], start.dtype)
        fractions = divided(tf.cast(number, dtype) + 0.5, count)
        at = tf.cast(tf.range(self._pooled[i]), dtype)[:, tf.newaxis] + fractions
        x = start[:, tf.newaxis] + multiplied(tf.reshape(at, [-1]), bin[:, tf.newaxis])
        valid = (x >= -1) & (x <= length)
        x = tf.clip_by_value(x, tf.zeros([], dtype), length - 1)
        low = tf.floor(x)
        weights = low + 1 - x, x - low
        return [
            (clipped(low + k, self._lengths[i]), tf.where(valid, weight, tf.zeros([], dtype)))
            for k, weight in enumerate(weights)
        ]

    def _sampled(
        self,
        indices: tf.Tensor,
        rows: tf.Tensor,
        columns: tf.Tensor,
        row_weights: tf.Tensor,
        column_weights: tf.Tensor,
    ) -> tf.Tensor:
        """Weighted pixels, [regions, points along rows, points along columns, C].

        They are rounded before they are added: a gradient finds a maximum by its value.
        """
        height, width = (tf.cast(length, tf.int64) for length in self._lengths)
        places = (indices[:, tf.newaxis] * height + rows)[:, :, tf.newaxis] * width
        places += columns[:, tf.newaxis, :]
        channels = extents(self._x)[3]
        values = tf.gather(tf.reshape(self._x, as_shape(-1, channels)), places)
        weights = row_weights[:, :, tf.newaxis] * column_weights[:, tf.newaxis, :]
        return multiplied(values, weights[..., tf.newaxis])


# ROIPooling and PSROIPooling.

_FAR = 1 << 30


@register("ROIPooling", "opset2")
def _roi_pooling(op: Operation, x: tf.Tensor, rois: tf.Tensor) -> tf.Tensor:
    pooled = [positive(op, "pooled_h"), positive(op, "pooled_w")]
    regions = _Regions(op, x, rois, [1, 1, -1], [1, 2, 3])
    if op.text("method", "max", ("max", "bilinear")) == "bilinear":
        return regions.interpolated([1, 1], pooled)
    # As OpenVINO's, a product may be below a half where it is one in single precision.
    scale = float(np.float32(op.number("spatial_scale")))
    corners = [tf.cast(side, tf.float64) * scale for side in regions.corners]
    corners = [_integers(half_away_from_zero(side)) for side in corners]
    windows = []
    for start, end, count in zip(corners[:2], corners[2:], pooled):
        at = tf.range(count + 1, dtype=tf.int64) * tf.maximum(end - start + 1, 1)
        # The first pixel, rounded down, and the one after the last, rounded up.
        windows.append((start + at[:, :-1] // count, start - (-at[:, 1:] // count)))
    return regions.pooled(windows, _MAXIMUM)


@register("PSROIPooling")
def _psroi_pooling(op: Operation, x: tf.Tensor, rois: tf.Tensor) -> tf.Tensor:
    size, depth = positive(op, "group_size", 1), positive(op, "output_dim")
    scale = op.number("spatial_scale")
    if op.text("mode", "average", ("average", "bilinear")) == "bilinear":
        bins = [positive(op, f"spatial_bins_{axis}", 1) for axis in "yx"]
        regions = _Regions(op, x, rois, [*bins, depth], [1, 2, 3])
        regions.corners = [side * scale for side in regions.corners]
        return regions.interpolated(bins, [size, size])
    regions = _Regions(op, x, rois, [depth, size, size], [2, 3, 1])
    starts, ends = regions.corners[:2], [side + 1 for side in regions.corners[2:]]
    windows = []
    for start, end in zip(starts, ends):
        start, end = (multiplied(half_away_from_zero(side), scale) for side in (start, end))
        side = divided(tf.maximum(end - start, 0.1), size)
        at = tf.range(size + 1, dtype=start.dtype)
        at = multiplied(at, side) + start
        limits = tf.floor(at[:, :-1]), tf.math.ceil(at[:, 1:])
        windows.append([_integers(limit) for limit in limits])
    return regions.pooled(windows, _SUM)


def _integers(x: tf.Tensor) -> tf.Tensor:
    """Integers; far away is all that is beyond their range."""
    return tf.cast(tf.clip_by_value(x, -_FAR, _FAR), tf.int64)


class _Regions:
    """Regions of images, where each bin of a region may have channels of its own.

    Attributes:
        corners: the tops, left sides, bottoms and right sides, [regions, 1] each.
    """

    def __init__(
        self,
        op: Operation,
        x: tf.Tensor,
        rois: tf.Tensor,
        split: Sequence[int],
        order: Sequence[int],
    ):
        """`split` makes three axes of the channels; in `order` the bins' own ones come last."""
        if rank_of(op, x) != 4 or rank_of(op, rois) != 2:
            raise op.error("data must have 4 dimensions, and ROIs 2")
        batch, channels, height, width = extents(x)
        if isinstance(channels, int) and min(split) > 0 and channels != math.prod(split):
            raise op.error(f"{channels} channels are not {' * '.join(map(str, split))}")
        self._lengths = height, width
        self._dtype, dtype = x.dtype, computed_in(x.dtype)
        x = tf.reshape(tf.cast(x, dtype), as_shape(batch, *split, height, width))
        self._x = tf.transpose(x, [0, 4, 5, *order])
        image, left, top, right, bottom = tf.unstack(tf.cast(rois, dtype), 5, axis=1)
        self.corners = [side[:, tf.newaxis] for side in (top, left, bottom, right)]
        self._is_real = real_regions(image)
        self._images = tf.where(self._is_real, tf.cast(image, tf.int64), 0)

    def interpolated(self, bins: Sequence[int], pooled: Sequence[int]) -> tf.Tensor:
        """The means over bins of samples at points from corner to corner of each bin."""
        taps = [self._taps(i, bins[i], pooled[i]) for i in range(2)]
        images = tf.reshape(self._images, [-1, 1, 1, 1, 1])
        own = _spread(*(tf.range(n, dtype=tf.int64)[:, tf.newaxis] for n in bins))
        values = []
        for (row, weight), (column, other) in itertools.product(*taps):
            weight, other = _spread(weight, other)
            pixels = self._at(images, *_spread(row, column), *own)
            values.append(pixels * (weight * other)[..., tf.newaxis])
        return self._finished(tf.reduce_mean(tf.add_n(values), [1, 3]))

    def _taps(self, i: int, bins: int, pooled: int) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Two positions along rows or columns and their weights, [regions, bins, pooled]."""
        start, end = (side[..., tf.newaxis] for side in self.corners[i::2])
        dtype, last = start.dtype, tf.cast(self._lengths[i], start.dtype) - 1
        number = tf.range(bins, dtype=dtype)[:, tf.newaxis]
        size = divided(end - start, bins)
        low, high = (start + multiplied(size, k) for k in (number, number + 1))
        if pooled > 1:
            at = tf.range(pooled, dtype=dtype)
            steps = divided((high - low) * last, pooled - 1)
            x = multiplied(steps, at) + multiplied(low, last)
            x = tf.where(at == pooled - 1, high * last, x)  # exactly, as it may be the last pixel
        else:
            x = (low + high) / 2 * last
        is_inside = (x >= 0) & (x <= last)
        low = tf.floor(x)
        return [
            (clipped(low + k, self._lengths[i]), tf.where(is_inside, weight, tf.zeros([], dtype)))
            for k, weight in enumerate((low + 1 - x, x - low))
        ]

    def pooled(self, windows: Sequence[Sequence[tf.Tensor]], reduction: _Reduction) -> tf.Tensor:
        """The mean, or the largest, of the pixels in each window; 0 where there are none.

        Args:
            windows: the first row of each and the one after its last, [regions, windows] both,
                then the same of columns.
            reduction: a sum for the mean, or a maximum.
        """
        bounds = [
            tf.clip_by_value(x, 0, tf.cast(length, tf.int64))
            for pair, length in zip(windows, self._lengths)
            for x in pair
        ]
        shape = [_tf.known_extent(bound, 1) for bound in bounds[::2]]
        groups = extents(self._x)[3:5]
        numbers = [tf.range(n, dtype=tf.int64) % count for n, count in zip(shape, groups)]
        own = _spread(*(number[:, tf.newaxis] for number in numbers))
        dtype, channels = self._x.dtype, extents(self._x)[5]

        def one(image: tf.Tensor, *sides: tf.Tensor) -> tf.Tensor:
            starts, ends = sides[::2], sides[1::2]
            lengths = [tf.maximum(end - start, 0) for start, end in zip(starts, ends)]

            def reduced(*numbers: tf.Tensor) -> tf.Tensor:
                places, flags = zip(*map(_steps, starts, ends, numbers))
                is_row, is_column = _spread(*flags)
                values = self._at(image, *_spread(*places), *own)
                is_inside = (is_row & is_column)[..., tf.newaxis]
                nothing = tf.constant(reduction.neutral, dtype)
                return reduction.along(tf.where(is_inside, values, nothing), [1, 3])

            counts = [tf.reduce_max(length) for length in lengths]
            total = _over_points(
                reduction, reduced, [self._x], as_shape(*shape, channels), dtype, counts
            )
            pixels = (lengths[0][:, tf.newaxis] * lengths[1])[..., tf.newaxis]
            if reduction is _SUM:
                return tf.math.divide_no_nan(total, tf.cast(pixels, dtype))
            return tf.where(pixels > 0, total, tf.zeros([], dtype))

        # The number of pixels depends on the region, so each is computed on its own.
        spec = tf.TensorSpec([*shape, _tf.known_extent(self._x, 5)], dtype)
        return self._finished(_one_by_one(one, (self._images, *bounds), spec))

    def _at(self, *places: tf.Tensor) -> tf.Tensor:
        """The channels at images, rows, columns, and rows and columns of bins."""
        *lengths, channels = extents(self._x)
        index = tf.zeros([], tf.int64)
        for place, length in zip(places, lengths):
            index = index * length + place
        return tf.gather(tf.reshape(self._x, as_shape(-1, channels)), index)

    def _finished(self, x: tf.Tensor) -> tf.Tensor:
        is_real = self._is_real[:, tf.newaxis, tf.newaxis, tf.newaxis]
        x = tf.where(is_real, x, tf.zeros([], x.dtype))
        return tf.cast(tf.transpose(x, [0, 3, 1, 2]), self._dtype)


def _spread(rows: tf.Tensor, columns: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """[..., a, b] and [..., c, d], to be broadcast to [..., a, b, c, d]."""
    return rows[..., tf.newaxis, tf.newaxis], columns[..., tf.newaxis, tf.newaxis, :, :]


def _steps(starts: tf.Tensor, ends: tf.Tensor, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The integers so far behind each start, and which of them are before the end."""
    steps = starts[:, tf.newaxis] + numbers
    is_inside = steps < ends[:, tf.newaxis]
    return tf.where(is_inside, steps, 0), is_inside
