"""Operations on images: resizing, sampling at points and in regions, selecting boxes."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import extents, rank_of, static_axes

_PILLOW = ("bilinear_pillow", "bicubic_pillow")
_MODES = ("nearest", "linear", "linear_onnx", "cubic")
_COORDINATES = (
    "half_pixel",
    "pytorch_half_pixel",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "align_corners",
)
# OpenVINO adds this to scales when it computes shapes, and files have those shapes.
_SLACK = np.float32(1e-6)
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")


def _computed_in(dtype: tf.DType) -> tf.DType:
    return dtype if dtype in (tf.float32, tf.float64) else tf.float32


def _rounded(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Casts x. Integer types round to the nearest number, and to the even one of two."""
    if dtype == x.dtype:
        return x
    if dtype.is_floating:
        return tf.cast(x, dtype)
    return tf.saturate_cast(tf.round(x), dtype)


# Interpolate.


@dataclasses.dataclass(frozen=True)
class _Resizing:
    """The attributes of an Interpolate of any version."""

    mode: str
    coordinates: str
    nearest: str
    antialias: bool
    cube_coeff: float


@dataclasses.dataclass(frozen=True)
class _Axis:
    """An axis to resize from `length` to `size`. Coordinates are divided by `scale`."""

    axis: int
    length: int | tf.Tensor
    size: int | tf.Tensor
    scale: tf.Tensor

    @property
    def stays(self) -> bool:
        known = isinstance(self.size, int) and isinstance(self.length, int)
        return known and self.size == self.length


@register("Interpolate", "opset1")
def _interpolate_1(op, x, sizes):
    rank = rank_of(op, x)
    axes = [op.axis(axis, rank) for axis in op.integers("axes")]
    mode = op.text("mode", among=("nearest", "linear", "linear_onnx", "cubic"))
    if mode == "linear" and rank < 5:
        mode = "linear_onnx"
    coordinates = "asymmetric"
    padded = any(op.integers("pads_begin", [0])) or any(op.integers("pads_end", [0]))
    if op.flag("align_corners", True):
        coordinates = "align_corners"
    elif mode.startswith("linear") and not padded and not (rank == 4 and set(axes) == {2, 3}):
        coordinates = "half_pixel"
    antialias = op.flag("antialias", False)
    x = _with_pads(op, x)
    along = _to_sizes(op, x, axes, 1)
    return _resized(x, along, _Resizing(mode, coordinates, "simple", antialias, -0.75))


@register("Interpolate", "opset4")
def _interpolate_4(op, x, sizes, scales, axes=None):
    return _interpolated(op, x, 1, 2, 3, _MODES)


@register("Interpolate", "opset11")
def _interpolate_11(op, x, sizes_or_scales, axes=None):
    return _interpolated(op, x, 1, 1, 2, _MODES + _PILLOW)


def _interpolated(op: Operation, x, sizes: int, scales: int, axes: int, modes: Sequence[str]):
    """Resizes x. `sizes`, `scales` and `axes` are the positions of these inputs."""
    rank = rank_of(op, x)
    along = static_axes(op, axes, rank) if len(op.inputs) > axes else list(range(rank))
    if len(set(along)) != len(along):
        raise op.error(f"axes {along} are not different ones")
    mode = op.text("mode", among=modes)
    resizing = _Resizing(
        mode,
        op.text("coordinate_transformation_mode", "half_pixel", _COORDINATES),
        op.text("nearest_mode", "round_prefer_floor", _NEAREST),
        op.flag("antialias", False),
        op.number("cube_coeff", -0.5 if mode in _PILLOW else -0.75),
    )
    x = _with_pads(op, x)
    if op.text("shape_calculation_mode", among=("sizes", "scales")) == "sizes":
        return _resized(x, _to_sizes(op, x, along, sizes), resizing)
    return _resized(x, _by_scales(op, x, along, scales), resizing)


def _with_pads(op: Operation, x: tf.Tensor) -> tf.Tensor:
    rank = rank_of(op, x)
    pads = [op.integers(name, [0]) for name in ("pads_begin", "pads_end")]
    if not any(map(any, pads)):
        return x
    if any(pad < 0 for part in pads for pad in part):
        raise op.error("pads must not be negative")
    begin, end = ((part + [0] * rank)[:rank] for part in pads)
    return tf.pad(x, list(zip(begin, end)))


def _counted(op: Operation, axes: Sequence[int], position: int) -> None:
    count = op.inputs[position].shape.num_elements()
    if count is not None and count != len(axes):
        raise op.error(f"input {position} has {count} numbers for {len(axes)} axes")


def _to_sizes(op: Operation, x: tf.Tensor, axes: Sequence[int], position: int) -> list[_Axis]:
    _counted(op, axes, position)
    known = op.known(position)
    wanted = op.inputs[position]
    result = []
    for i, axis in enumerate(axes):
        length = extents(x)[axis]
        size = tf.cast(wanted[i], tf.int64) if known is None else int(known[i])
        scale = tf.cast(size, tf.float32) / tf.cast(length, tf.float32)
        result.append(_Axis(axis, length, size, scale))
    return result


def _by_scales(op: Operation, x: tf.Tensor, axes: Sequence[int], position: int) -> list[_Axis]:
    _counted(op, axes, position)
    known = op.known(position)
    scales = tf.cast(op.inputs[position], tf.float32)
    result = []
    for i, axis in enumerate(axes):
        length = extents(x)[axis]
        if known is not None and isinstance(length, int):
            size = int((np.float32(known[i]) + _SLACK) * np.float32(length))
        else:
            size = tf.cast((scales[i] + _SLACK) * tf.cast(length, tf.float32), tf.int64)
        result.append(_Axis(axis, length, size, scales[i]))
    return result


def _resized(x: tf.Tensor, axes: Sequence[_Axis], resizing: _Resizing) -> tf.Tensor:
    """Resizes axis by axis: each mode is a product of operations on single axes."""
    dtype = x.dtype
    if resizing.mode == "nearest":
        for along in axes:
            x = tf.gather(x, _nearest(along, resizing), axis=along.axis)
        return x
    x = tf.cast(x, _computed_in(dtype))
    if resizing.mode in _PILLOW:
        for along in reversed(axes):  # Pillow's order: it rounds integers after each axis
            x = _mixed(x, along.axis, _pillow_weights(along, resizing))
            x = tf.cast(_rounded(x, dtype), x.dtype)
        return tf.cast(x, dtype)
    if resizing.mode == "linear" and resizing.antialias:
        narrow = tf.reduce_any(tf.stack([along.scale for along in axes]) < 1)
        for along in axes:
            sharpness = tf.where(narrow, along.scale, 1.0)
            x = _mixed(x, along.axis, _tent_weights(along, resizing, sharpness))
        return _rounded(x, dtype)
    taps = {"linear": _linear_taps, "linear_onnx": _clamped_taps, "cubic": _cubic_taps}
    for along in axes:
        if not along.stays:
            x = _tapped(x, along.axis, *taps[resizing.mode](along, resizing))
    return _rounded(x, dtype)


def _coordinates(along: _Axis, mode: str) -> tf.Tensor:
    """The positions of the new numbers on the old axis."""
    at = tf.cast(tf.range(along.size), tf.float32)
    size, length = tf.cast(along.size, tf.float32), tf.cast(along.length, tf.float32)
    if mode == "align_corners":
        x = tf.math.divide_no_nan(at * (length - 1), size - 1)
    elif mode == "asymmetric":
        x = at / along.scale
    elif mode == "tf_half_pixel_for_nn":
        x = (at + 0.5) / along.scale
    else:
        x = (at + 0.5) / along.scale - 0.5
        if mode == "pytorch_half_pixel":
            x = tf.where(size > 1, x, 0.0)
    return tf.where((along.scale == 1) | (size == length), at, x)


def _clipped(positions: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
    """Positions as indices, clipped to the axis."""
    last = tf.cast(length, tf.int64) - 1
    return tf.clip_by_value(tf.cast(positions, tf.int64), 0, tf.maximum(last, 0))


def _nearest(along: _Axis, resizing: _Resizing) -> tf.Tensor:
    x = _coordinates(along, resizing.coordinates)
    low = tf.floor(x)
    if resizing.nearest == "round_prefer_floor":
        x = tf.where(x - low > 0.5, low + 1, low)
    elif resizing.nearest == "round_prefer_ceil":
        x = tf.where(x - low >= 0.5, low + 1, low)
    elif resizing.nearest == "floor":
        x = low
    elif resizing.nearest == "ceil":
        x = tf.math.ceil(x)
    else:
        x = tf.where(along.scale < 1, tf.math.ceil(x), low)
    return _clipped(x, along.length)


def _tapped(x: tf.Tensor, axis: int, positions: Sequence, weights: Sequence) -> tf.Tensor:
    """Weighted sums of the numbers at some positions of an axis."""
    shape = [-1 if i == axis else 1 for i in range(x.shape.rank)]
    return tf.add_n(
        [
            tf.gather(x, position, axis=axis) * tf.reshape(tf.cast(weight, x.dtype), shape)
            for position, weight in zip(positions, weights)
        ]
    )


def _mixed(x: tf.Tensor, axis: int, weights: tf.Tensor) -> tf.Tensor:
    """Weighted sums of all numbers of an axis, by a matrix of weights."""
    x = tf.tensordot(x, tf.cast(weights, x.dtype), [[axis], [1]])
    rank = x.shape.rank
    return tf.transpose(x, [*range(axis), rank - 1, *range(axis, rank - 1)])


def _clamped_taps(along: _Axis, resizing: _Resizing) -> tuple:
    x = _coordinates(along, resizing.coordinates)
    x = tf.clip_by_value(x, 0.0, tf.cast(along.length, tf.float32) - 1)
    low = tf.floor(x)
    positions = [_clipped(low, along.length), _clipped(low + 1, along.length)]
    return positions, [low + 1 - x, x - low]


def _linear_taps(along: _Axis, resizing: _Resizing) -> tuple:
    """Like `_clamped_taps`, but positions outside the axis have no weight."""
    x = _coordinates(along, resizing.coordinates)
    low = tf.floor(x)
    places, weights = [low, low + 1], [low + 1 - x, x - low]
    inside = [(p >= 0) & (p < tf.cast(along.length, tf.float32)) for p in places]
    weights = [tf.where(valid, weight, 0.0) for valid, weight in zip(inside, weights)]
    total = tf.add_n(weights)
    weights = [tf.math.divide_no_nan(weight, total) for weight in weights]
    return [_clipped(place, along.length) for place in places], weights


def _cubic_taps(along: _Axis, resizing: _Resizing) -> tuple:
    x = _coordinates(along, resizing.coordinates)
    low = tf.floor(x)
    positions = [_clipped(low + i, along.length) for i in (-1, 0, 1, 2)]
    return positions, _cubic_weights(x - low, resizing.cube_coeff)


def _cubic_weights(fraction: tf.Tensor, a: float) -> list[tf.Tensor]:
    """The weights of the numbers at -1, 0, 1 and 2, for a point at a fraction between 0 and 1."""
    distances = [fraction + 1, fraction, 1 - fraction, 2 - fraction]
    return [_cubic(d, a, outer=i in (0, 3)) for i, d in enumerate(distances)]


def _cubic(distance: tf.Tensor, a: float, outer: bool) -> tf.Tensor:
    """The cubic kernel at distances from 0 to 1; with `outer`, at those from 1 to 2."""
    if outer:
        return a * (((distance - 5) * distance + 8) * distance - 4)
    return ((a + 2) * distance - (a + 3)) * distance**2 + 1


def _normalized(weights: tf.Tensor) -> tf.Tensor:
    return tf.math.divide_no_nan(weights, tf.reduce_sum(weights, -1, keepdims=True))


def _tent_weights(along: _Axis, resizing: _Resizing, sharpness: tf.Tensor) -> tf.Tensor:
    x = _coordinates(along, resizing.coordinates)[:, tf.newaxis]
    places = tf.cast(tf.range(along.length), tf.float32)
    return _normalized(tf.maximum(1 - sharpness * tf.abs(x - places), 0.0))


def _pillow_weights(along: _Axis, resizing: _Resizing) -> tf.Tensor:
    """The weights, [size, length]. If the axis shrinks, the kernel widens by the same factor."""
    size, length = tf.cast(along.size, tf.float64), tf.cast(along.length, tf.float64)
    scale = length / size
    width = tf.maximum(scale, 1.0)
    centers = (tf.cast(tf.range(along.size), tf.float64)[:, tf.newaxis] + 0.5) * scale
    places = tf.cast(tf.range(along.length), tf.float64)
    cubic = resizing.mode == "bicubic_pillow"
    reach = width * (2.0 if cubic else 1.0)
    inside = (places >= tf.floor(centers - reach + 0.5)) & (
        places < tf.floor(centers + reach + 0.5)
    )
    distances = tf.abs(places + 0.5 - centers) / width
    if cubic:
        inner, outer = (_cubic(distances, resizing.cube_coeff, far) for far in (False, True))
        weights = tf.where(distances < 1, inner, tf.where(distances < 2, outer, 0.0))
    else:
        weights = tf.maximum(1 - distances, 0.0)
    return _normalized(tf.where(inside, weights, 0.0))


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
    return _rounded(tf.transpose(total, [0, 3, 1, 2]), x.dtype)


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
    return [low + i for i in (-1, 0, 1, 2)], _cubic_weights(x - low, -0.75)


class _Points:
    """The pixels of images, [N, C, H, W]; outside the images as `padding_mode` says."""

    def __init__(self, op: Operation, x: tf.Tensor):
        self.align = op.flag("align_corners", False)
        self._padding = op.text("padding_mode", "zeros", ("zeros", "border", "reflection"))
        self.dtype = _computed_in(x.dtype)
        batch, channels, self.height, self.width = extents(x)
        x = tf.transpose(tf.cast(x, self.dtype), [0, 2, 3, 1])
        self._x = tf.reshape(x, _shape(batch, self.height * self.width, channels))

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
            return _clipped(tf.clip_by_value(places, tf.zeros_like(last), last), length)
        places, length = tf.cast(places, tf.int64), tf.cast(length, tf.int64)
        if self.align:
            period = tf.maximum(2 * (length - 1), 1)
            places = places % period
            return _clipped(tf.minimum(places, period - places), length)
        places = places % (2 * length)
        return _clipped(tf.minimum(places, 2 * length - 1 - places), length)


def _shape(*extents: int | tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.cast(extent, tf.int64) for extent in extents])


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
    dtype = _computed_in(x.dtype)
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
            (_clipped(low + k, self._lengths[i]), tf.where(valid, weight, tf.zeros([], dtype)))
            for k, weight in enumerate(weights)
        ]

    def _sampled(self, indices, rows, columns, row_weights, column_weights) -> tf.Tensor:
        """Weighted pixels, [regions, points along rows, points along columns, C]."""
        height, width = (tf.cast(length, tf.int64) for length in self._lengths)
        places = (indices[:, tf.newaxis] * height + rows)[:, :, tf.newaxis] * width
        places += columns[:, tf.newaxis, :]
        channels = extents(self._x)[3]
        values = tf.gather(tf.reshape(self._x, _shape(-1, channels)), places)
        weights = row_weights[:, :, tf.newaxis] * column_weights[:, tf.newaxis, :]
        return values * weights[..., tf.newaxis]

    def _pool(self, reduce, values: tf.Tensor, samples) -> tf.Tensor:
        height, width = self._pooled
        count, channels = extents(values)[0], extents(values)[3]
        shape = _shape(count, height, samples[0], width, samples[1], channels)
        return reduce(tf.reshape(values, shape), [2, 4])


# NonMaxSuppression.


@register("NonMaxSuppression", ["opset1", "opset3", "opset4"])
def _non_max_suppression(op, boxes, scores, *limits):
    picked = _Picked(op, boxes, scores)
    batches, classes, count = extents(scores)
    rows = picked.most * tf.cast(batches * classes, tf.int64)
    if op.registered != "opset4":
        rows = tf.minimum(tf.cast(count, tf.int64), picked.per_class * classes)
    indices = picked.indices[:rows]
    missing = rows - tf.shape(indices, tf.int64)[0]
    indices = tf.pad(indices, [[0, missing], [0, 0]], constant_values=-1)
    return tf.cast(indices, op.dtype("output_type", tf.int64))


@register("NonMaxSuppression", ["opset5", "opset9"])
def _non_max_suppression_with_scores(op, boxes, scores, *limits):
    picked = _Picked(op, boxes, scores)
    dtype = op.dtype("output_type", tf.int64)
    kind = scores.dtype
    if len(op.layer.outputs) > 1 and op.layer.outputs[1].element_type is not None:
        kind = tf.as_dtype(op.layer.outputs[1].element_type.dtype)
    owners = tf.cast(picked.indices[:, :2], picked.scores.dtype)
    triples = tf.concat([owners, picked.scores[:, tf.newaxis]], 1)
    count = tf.shape(picked.indices, dtype if dtype in (tf.int32, tf.int64) else tf.int64)[:1]
    return tf.cast(picked.indices, dtype), tf.cast(triples, kind), tf.cast(count, dtype)


class _Picked:
    """The selected boxes: `indices`, [boxes, (batch, class, box)], and their `scores`."""

    def __init__(self, op: Operation, boxes: tf.Tensor, scores: tf.Tensor):
        dtype = _computed_in(scores.dtype)
        self._version = op.registered
        self._scores = tf.cast(scores, dtype)
        self._corners = _corners(op, tf.cast(boxes, dtype))  # 4 of [N, boxes]
        self._iou_threshold = _scalar(op, 3, dtype)
        self._score_threshold = _scalar(op, 4, dtype)
        self._sigma = _scalar(op, 5, dtype)
        known = op.known(5) if len(op.inputs) > 5 else 0.0
        self._may_be_soft = known is None or np.max(known) > 0
        self.per_class = tf.maximum(_scalar(op, 2, tf.int64), 0)
        self.most = tf.minimum(self.per_class, extents(scores)[2])
        picks = self._picks()
        kept = tf.where(picks >= 0)
        chosen = tf.gather_nd(picks, kept)
        indices = tf.concat([kept[:, :2], chosen[:, tf.newaxis]], 1)
        found = tf.gather_nd(self._final_scores(picks), kept)
        if op.flag("sort_result_descending", True):
            order = tf.argsort(found, direction="DESCENDING", stable=True)
            indices, found = tf.gather(indices, order), tf.gather(found, order)
        self.indices, self.scores = indices, found

    def _picks(self) -> tf.Tensor:
        """The selected boxes, best first, and -1 after the last: [N, classes, most]."""
        scores, corners = tf.stop_gradient(self._scores), [*map(tf.stop_gradient, self._corners)]
        never = tf.constant(-np.inf, scores.dtype)
        boxes = extents(scores)[2]

        def alive(scores):
            return tf.where(scores > self._score_threshold, scores, never)

        def wanted(step, scores, picks):
            return (step < self.most) & tf.reduce_any(scores > never)

        def pick(step, scores, picks):
            best = tf.argmax(scores, -1)
            found = tf.reduce_max(scores, -1) > never
            own = [tf.gather(side, best, batch_dims=1)[..., tf.newaxis] for side in corners]
            overlap = overlap_of(own, [side[:, tf.newaxis] for side in corners])
            rest = scores * self._kept(overlap)
            taken = tf.range(tf.cast(boxes, tf.int64)) == best[..., tf.newaxis]
            rest = tf.where(taken | (scores == never), never, alive(rest))
            here = tf.range(self.most) == step
            chosen = tf.where(found, best, tf.cast(-1, tf.int64))
            updated = tf.where(here, chosen[..., tf.newaxis], picks)
            updated.set_shape(picks.shape)
            return step + 1, rest, updated

        picks = tf.fill(_shape(*extents(scores)[:2], self.most), tf.cast(-1, tf.int64))
        start = tf.zeros([], tf.int64), alive(scores), picks
        if isinstance(boxes, int) and boxes == 0:
            return picks
        return tf.while_loop(wanted, pick, start)[2]

    def _kept(self, overlap: tf.Tensor) -> tf.Tensor:
        """The factor of a score for its overlap with a selected box."""
        soft = tf.exp(tf.math.divide_no_nan(-0.5 * overlap**2, self._sigma))
        hard = tf.cast(overlap <= self._iou_threshold, overlap.dtype)
        if self._version == "opset5":
            soft *= hard
        return tf.where(self._sigma > 0, soft, hard)

    def _final_scores(self, picks: tf.Tensor) -> tf.Tensor:
        """The scores of selected boxes, reduced by those before them: [N, classes, most]."""
        at = tf.maximum(picks, 0)
        own = tf.gather(self._scores, at, batch_dims=2)

        def soft():
            corners = [tf.gather(side, at, batch_dims=1) for side in self._corners]
            rows = [side[..., :, tf.newaxis] for side in corners]
            columns = [side[..., tf.newaxis, :] for side in corners]
            before = tf.range(self.most)[:, tf.newaxis] > tf.range(self.most)
            kept = self._kept(overlap_of(rows, columns))
            return own * tf.reduce_prod(tf.where(before, kept, tf.ones_like(kept)), -1)

        return tf.cond(self._sigma > 0, soft, lambda: own) if self._may_be_soft else own


def _scalar(op: Operation, position: int, dtype: tf.DType) -> tf.Tensor:
    if len(op.inputs) <= position:
        return tf.zeros([], dtype)
    return tf.cast(tf.reshape(op.inputs[position], [-1])[0], dtype)


def _corners(op: Operation, boxes: tf.Tensor) -> list[tf.Tensor]:
    """The lower and the upper ends of boxes along both axes."""
    encoding = op.text("box_encoding", "corner", ("corner", "center"))
    first, second, third, fourth = tf.unstack(boxes, 4, axis=-1)
    if encoding == "center":
        return [
            first - third / 2,
            second - fourth / 2,
            first + third / 2,
            second + fourth / 2,
        ]
    pairs = (first, third), (second, fourth)
    return [end(*pair) for end in (tf.minimum, tf.maximum) for pair in pairs]


def overlap_of(some: Sequence[tf.Tensor], others: Sequence[tf.Tensor]) -> tf.Tensor:
    """The intersection of boxes over their union."""
    areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (some, others)]
    sides = [
        tf.maximum(tf.minimum(some[i + 2], others[i + 2]) - tf.maximum(some[i], others[i]), 0)
        for i in range(2)
    ]
    common = sides[0] * sides[1]
    overlap = tf.math.divide_no_nan(common, areas[0] + areas[1] - common)
    return tf.where((areas[0] > 0) & (areas[1] > 0), overlap, tf.zeros_like(overlap))
