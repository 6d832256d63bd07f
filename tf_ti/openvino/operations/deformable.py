"""Pooling in regions of images whose points are moved or turned."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti._exact import divided, multiplied
from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import extents, positive, rank_of


def bilinear(x: tf.Tensor, images: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """The numbers of images, [N, H, W, C], at points: [points..., C]. Around them are zeros."""
    count, height, width, channels = extents(x)
    pixels = tf.reshape(x, [count * height * width, channels])
    sampled = []
    for row in (tf.floor(rows), tf.floor(rows) + 1):
        for column in (tf.floor(columns), tf.floor(columns) + 1):
            weight = (1 - tf.abs(rows - row)) * (1 - tf.abs(columns - column))
            is_inside = within(row, height) & within(column, width)
            i, j = (tf.cast(tf.where(is_inside, n, 0), tf.int64) for n in (row, column))
            values = tf.gather(pixels, (tf.cast(images, tf.int64) * height + i) * width + j)
            sampled.append(values * tf.where(is_inside, weight, 0)[..., tf.newaxis])
    return tf.add_n(sampled)


def within(x: tf.Tensor, extent: int | tf.Tensor) -> tf.Tensor:
    return (x >= 0) & (x < tf.cast(extent, x.dtype))


def clipped(x: tf.Tensor, extent: int | tf.Tensor) -> tf.Tensor:
    """Moves positions along an axis to its first and to its last element."""
    return tf.clip_by_value(x, tf.zeros([], x.dtype), tf.cast(extent - 1, x.dtype))


def _ramp(count: int, dtype: tf.DType, rank: int, axis: int) -> tf.Tensor:
    """The numbers from 0 on along one of `rank` axes."""
    return tf.reshape(tf.range(count, dtype=dtype), [-1 if i == axis else 1 for i in range(rank)])


def _round_half_away(x: tf.Tensor) -> tf.Tensor:
    return tf.sign(x) * tf.floor(tf.abs(x) + 0.5)


@register("DeformablePSROIPooling")
def _deformable_psroi_pooling(
    op: Operation, x: tf.Tensor, rois: tf.Tensor, offsets: tf.Tensor | None = None
) -> tf.Tensor:
    op.text("mode", "bilinear_deformable", among=("bilinear_deformable",))
    classes, size = positive(op, "output_dim"), positive(op, "group_size", 1)
    bins = [positive(op, f"spatial_bins_{axis}", 1) for axis in "yx"]
    if rank_of(op, x) != 4 or rois.shape.rank != 2:
        raise op.error("data must have 4 dimensions, and ROIs 2")
    batch, channels, height, width = extents(x)
    if isinstance(channels, int) and channels != classes * size * size:
        raise op.error(f"{channels} channels are not {classes} for each of {size} x {size} bins")
    # Axes: regions, classes, rows and columns of bins, and of points in a bin.
    region = rois[:, tf.newaxis, tf.newaxis, tf.newaxis, tf.newaxis, tf.newaxis]
    scale = op.number("spatial_scale")
    corners = multiplied(_round_half_away(region[..., 1:]), scale) - 0.5
    moved = _moved(op, rois, offsets, classes, size)
    points = []
    for i, bin in enumerate(bins):
        start, end = corners[..., 1 - i], corners[..., 3 - i] + scale
        extent = tf.maximum(end - start, 0.1)
        step = divided(extent, size)
        point = start + multiplied(step, _ramp(size, x.dtype, 6, 2 + i)) + moved[i] * extent
        point += multiplied(divided(step, bin), _ramp(bin, x.dtype, 6, 4 + i))
        points.append(point)
    rows, columns = points
    is_inside = _between(rows, height) & _between(columns, width)
    is_real = real_regions(rois[:, 0]) & (rois[:, 0] >= 0)
    is_inside &= tf.reshape(is_real, [-1, 1, 1, 1, 1, 1])
    channel = _ramp(classes, tf.int64, 6, 1) * size + _ramp(size, tf.int64, 6, 2)
    channel = channel * size + _ramp(size, tf.int64, 6, 3)
    image = tf.maximum(tf.cast(region[..., 0], tf.int64), 0) * channels + channel
    planes = tf.reshape(x, [batch * channels, height, width, 1])
    values = bilinear(planes, image, clipped(rows, height), clipped(columns, width))[..., 0]
    counts = tf.cast(is_inside, x.dtype)
    sums = tf.reduce_sum(values * counts, [4, 5])
    return tf.math.divide_no_nan(sums, tf.reduce_sum(counts, [4, 5]))


def _moved(
    op: Operation, rois: tf.Tensor, offsets: tf.Tensor | None, classes: int, size: int
) -> list[tf.Tensor]:
    """How far bins are moved down and to the right, in parts of their regions."""
    if offsets is None:
        return [tf.zeros([], rois.dtype)] * 2
    parts, shared = positive(op, "part_size", 1), _tf.known_extent(offsets, 1)
    if shared is None or shared < 2 or shared % 2 or classes % (shared // 2):
        raise op.error(f"offsets {offsets.shape} do not fit {classes} classes")
    if not offsets.shape[2:].is_compatible_with([parts, parts]):
        raise op.error(f"offsets {offsets.shape} do not fit {parts} x {parts} parts")
    part = tf.range(size) * parts // size
    taken = tf.gather(tf.gather(offsets, part, axis=2), part, axis=3)
    taken = tf.reshape(taken, [-1, shared // 2, 2, size, size, 1, 1])
    taken = tf.repeat(taken, 2 * classes // shared, axis=1) * op.number("trans_std", 1.0)
    return [taken[:, :, 1], taken[:, :, 0]]


def real_regions(images: tf.Tensor) -> tf.Tensor:
    """The regions before the first of image -1, which ends the list."""
    return tf.math.cumprod(tf.cast(tf.cast(images, tf.int64) != -1, tf.int64)) > 0


def _between(x: tf.Tensor, extent: int | tf.Tensor) -> tf.Tensor:
    return (x >= -0.5) & (x <= tf.cast(extent, x.dtype) - 0.5)


@register("ROIAlignRotated", "opset15")
def _roi_align_rotated(
    op: Operation, x: tf.Tensor, rois: tf.Tensor, images: tf.Tensor
) -> tf.Tensor:
    pooled = [positive(op, f"pooled_{side}") for side in "hw"]
    ratio = op.integer("sampling_ratio")
    if ratio < 0:
        raise op.error(f"sampling_ratio={ratio} must not be negative")
    if rank_of(op, x) != 4 or rois.shape.rank != 2:
        raise op.error("data must have 4 dimensions, and ROIs 2")
    scaled, turns = rois[:, :4] * op.number("spatial_scale"), rois[:, 4]
    if op.flag("clockwise_mode"):
        turns = -turns
    pixels = tf.transpose(x, [0, 2, 3, 1])
    regions = tf.cast(images, tf.int64), scaled[:, 1::-1] - 0.5, scaled[:, 3:1:-1], turns
    if ratio > 0:
        result = _turned(pixels, regions, pooled, [ratio, ratio])
    else:
        # The number of samples depends on the region, so each is computed on its own.
        result = tf.map_fn(
            lambda region: _one_turned(pixels, region, pooled),
            regions,
            fn_output_signature=tf.TensorSpec([*pooled, _tf.known_extent(x, 1)], x.dtype),
        )
    return tf.transpose(result, [0, 3, 1, 2])


def _one_turned(x: tf.Tensor, region: Sequence[tf.Tensor], pooled: list[int]) -> tf.Tensor:
    _, _, size, _ = region
    samples = tf.cast(tf.math.ceil(divided(size, pooled)), tf.int64)
    alone = [part[tf.newaxis] for part in region]
    result = _turned(x, alone, pooled, tf.unstack(tf.maximum(samples, 1)))[0]
    return tf.where(tf.reduce_all(samples > 0), result, tf.zeros_like(result))


def _turned(
    x: tf.Tensor, regions: Sequence[tf.Tensor], pooled: list[int], samples: list[Any]
) -> tf.Tensor:
    """The means of so many rows and columns of samples in each bin: [regions, rows, columns, C].

    `regions` has the images, centers, sizes and turns of all.
    """
    images, centers, sizes, turns = regions
    away = []  # from the center, before the region is turned: [regions, rows, columns]
    for i, (bins, count) in enumerate(zip(pooled, samples)):
        at = tf.range(tf.cast(bins * count, tf.int64))
        fractions = divided(tf.cast(at, x.dtype) + 0.5, bins * count) - 0.5
        along = sizes[:, i, tf.newaxis] * fractions
        away.append(along[:, :, tf.newaxis] if i == 0 else along[:, tf.newaxis])
    cos, sin = (part(turns)[:, tf.newaxis, tf.newaxis] for part in (tf.cos, tf.sin))
    middle = centers[:, :, tf.newaxis, tf.newaxis]
    rows = away[0] * cos - away[1] * sin + middle[:, 0]
    columns = away[0] * sin + away[1] * cos + middle[:, 1]
    height, width, channels = extents(x)[1:]
    is_near = _near(rows, height) & _near(columns, width)
    place = images[:, tf.newaxis, tf.newaxis], clipped(rows, height), clipped(columns, width)
    values = bilinear(x, *place) * tf.cast(is_near, x.dtype)[..., tf.newaxis]
    shape = [-1, pooled[0], samples[0], pooled[1], samples[1], channels]
    return tf.reduce_mean(
        tf.reshape(values, tf.stack([tf.cast(n, tf.int64) for n in shape])), [2, 4]
    )


def _near(x: tf.Tensor, extent: int | tf.Tensor) -> tf.Tensor:
    return (x >= -1) & (x <= tf.cast(extent, x.dtype))
