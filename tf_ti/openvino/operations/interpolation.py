"""Resizing: Interpolate."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_ti._exact import divided
from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import extents, rank_of, static_axes
from tf_ti.openvino.precision import computed_in

_Taps = tuple[list[tf.Tensor], list[tf.Tensor]]  # positions along an axis, and their weights

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


def rounded(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Casts x. Integer types round to the nearest number, and to the even one of two."""
    if dtype == x.dtype:
        return x
    if dtype.is_floating:
        return tf.cast(x, dtype)
    return tf.saturate_cast(tf.round(x), dtype)


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
def _interpolate_1(op: Operation, x: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
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
def _interpolate_4(
    op: Operation, x: tf.Tensor, sizes: tf.Tensor, scales: tf.Tensor, axes: tf.Tensor | None = None
) -> tf.Tensor:
    return _interpolated(op, x, 1, 2, 3, _MODES)


@register("Interpolate", "opset11")
def _interpolate_11(
    op: Operation, x: tf.Tensor, sizes_or_scales: tf.Tensor, axes: tf.Tensor | None = None
) -> tf.Tensor:
    return _interpolated(op, x, 1, 1, 2, _MODES + _PILLOW)


def _interpolated(
    op: Operation, x: tf.Tensor, sizes: int, scales: int, axes: int, modes: Sequence[str]
) -> tf.Tensor:
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
        # As Pillow, OpenVINO has one kernel here, and ignores the attribute.
        -0.5 if mode in _PILLOW else op.number("cube_coeff", -0.75),
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
        scale = divided(tf.cast(size, tf.float32), length)
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
    x = tf.cast(x, computed_in(dtype))
    if resizing.mode in _PILLOW:
        for along in reversed(axes):  # Pillow's order: it rounds integers after each axis
            x = _mixed(x, along.axis, _pillow_weights(along, resizing))
            x = tf.cast(rounded(x, dtype), x.dtype)
        return tf.cast(x, dtype)
    if resizing.mode == "linear" and resizing.antialias:
        narrow = tf.reduce_any(tf.stack([along.scale for along in axes]) < 1)
        for along in axes:
            sharpness = tf.where(narrow, along.scale, 1.0)
            x = _mixed(x, along.axis, _tent_weights(along, resizing, sharpness))
        return rounded(x, dtype)
    taps = {"linear": _linear_taps, "linear_onnx": _clamped_taps, "cubic": _cubic_taps}
    for along in axes:
        if not along.stays:
            x = _tapped(x, along.axis, *taps[resizing.mode](along, resizing))
    return rounded(x, dtype)


def _coordinates(along: _Axis, mode: str) -> tf.Tensor:
    """The positions of the new numbers on the old axis."""
    at = tf.cast(tf.range(along.size), tf.float32)
    size, length = tf.cast(along.size, tf.float32), tf.cast(along.length, tf.float32)
    if mode == "align_corners":
        x = divided(at * (length - 1), tf.maximum(size - 1, 1))
    elif mode == "asymmetric":
        x = divided(at, along.scale)
    elif mode == "tf_half_pixel_for_nn":
        x = divided(at + 0.5, along.scale)
    else:
        x = divided(at + 0.5, along.scale) - 0.5
        if mode == "pytorch_half_pixel":
            x = tf.where(size > 1, x, 0.0)
    return tf.where((along.scale == 1) | (size == length), at, x)


def clipped(positions: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
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
    return clipped(x, along.length)


def _tapped(
    x: tf.Tensor, axis: int, positions: Sequence[tf.Tensor], weights: Sequence[tf.Tensor]
) -> tf.Tensor:
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


def _clamped_taps(along: _Axis, resizing: _Resizing) -> _Taps:
    x = _coordinates(along, resizing.coordinates)
    x = tf.clip_by_value(x, 0.0, tf.cast(along.length, tf.float32) - 1)
    low = tf.floor(x)
    positions = [clipped(low, along.length), clipped(low + 1, along.length)]
    return positions, [low + 1 - x, x - low]


def _linear_taps(along: _Axis, resizing: _Resizing) -> _Taps:
    """Like `_clamped_taps`, but positions outside the axis have no weight."""
    x = _coordinates(along, resizing.coordinates)
    low = tf.floor(x)
    places, weights = [low, low + 1], [low + 1 - x, x - low]
    inside = [(p >= 0) & (p < tf.cast(along.length, tf.float32)) for p in places]
    weights = [tf.where(valid, weight, 0.0) for valid, weight in zip(inside, weights)]
    total = tf.add_n(weights)
    weights = [tf.math.divide_no_nan(weight, total) for weight in weights]
    return [clipped(place, along.length) for place in places], weights


def _cubic_taps(along: _Axis, resizing: _Resizing) -> _Taps:
    x = _coordinates(along, resizing.coordinates)
    low = tf.floor(x)
    positions = [clipped(low + i, along.length) for i in (-1, 0, 1, 2)]
    return positions, cubic_weights(x - low, resizing.cube_coeff)


def cubic_weights(fraction: tf.Tensor, a: float) -> list[tf.Tensor]:
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
