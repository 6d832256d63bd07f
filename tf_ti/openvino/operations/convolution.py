"""Convolutions and pooling of tensors with one to three spatial axes, and channels last."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti._exact import apart
from tf_ti.openvino.layout import to_last, to_second, with_channels_last
from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.deformable import bilinear, clipped, within
from tf_ti.openvino.operations.shapes import extents, rank_of, sizes_of

_Extent: TypeAlias = int | tf.Tensor
_Pad = tuple[_Extent, _Extent]  # before and after an axis
_Geometry = tuple[list[int], list[int], list[_Pad]]  # strides, dilations, pads

_MOST_GROUPS = 1 << 14  # each may become a convolution of its own
_AUTO_PADS = ("explicit", "notset", "same_upper", "same_lower", "valid")


def _list(op: Operation, name: str, count: int, default: int) -> list[int]:
    values = op.integers(name, [default] * count)
    if len(values) != count:
        raise op.error(f"{name} has {len(values)} numbers for {count} spatial axes")
    return values


def _positive(op: Operation, name: str, count: int) -> list[int]:
    values = _list(op, name, count, 1)
    if min(values, default=1) < 1:
        raise op.error(f"{name}={values} must be positive")
    return values


def _pads(
    op: Operation,
    sizes: Sequence[_Extent],
    kernel: Sequence[_Extent],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[_Pad]:
    """The padding before and after each spatial axis."""
    mode = op.text("auto_pad", "explicit", among=_AUTO_PADS)
    count = len(sizes)
    if mode == "valid":
        return [(0, 0)] * count
    if mode in ("explicit", "notset"):
        return list(zip(_list(op, "pads_begin", count, 0), _list(op, "pads_end", count, 0)))
    pads = []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations):
        needed = (-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size
        total = max(needed, 0) if isinstance(needed, int) else tf.maximum(needed, 0)
        small = total // 2
        pads.append((small, total - small) if mode == "same_upper" else (total - small, small))
    return pads


def _padded(x: tf.Tensor, pads: Sequence[_Pad], value: Any = 0) -> tf.Tensor:
    """Pads the spatial axes of x, channels last. Negative pads crop it."""
    begin = [0, *(p[0] for p in pads), 0]
    end = [0, *(p[1] for p in pads), 0]
    if all(isinstance(p, int) for p in begin + end):
        if min(begin + end) < 0:
            inside = (slice(max(-b, 0), min(e, 0) or None) for b, e in zip(begin, end))
            x = x[tuple(inside)]
        pads = [(max(b, 0), max(e, 0)) for b, e in zip(begin, end)]
        return tf.pad(x, pads, constant_values=value) if max(begin + end) > 0 else x
    begin, end = (tf.convert_to_tensor(part, tf.int64) for part in (begin, end))
    start = tf.maximum(-begin, 0)
    x = tf.slice(x, start, tf.shape(x, tf.int64) - start - tf.maximum(-end, 0))
    pads = tf.stack([tf.maximum(begin, 0), tf.maximum(end, 0)], axis=1)
    return tf.pad(x, pads, constant_values=tf.cast(value, x.dtype))


def _dilated(filters: tf.Tensor, dilations: Sequence[int]) -> tf.Tensor:
    """Puts zeros between the numbers of filters, [spatial..., in, out]."""
    rank = filters.shape.rank
    for axis, dilation in enumerate(dilations):
        if dilation > 1:
            shape = extents(filters)
            shape[axis] *= dilation
            pads = [(0, dilation - 1 if i == axis + 1 else 0) for i in range(rank + 1)]
            spread = tf.pad(tf.expand_dims(filters, axis + 1), pads)
            inside = [slice(1 - dilation) if i == axis else slice(None) for i in range(rank)]
            filters = tf.reshape(spread, shape)[tuple(inside)]
    return filters


def _of_none(
    x: tf.Tensor,
    filters: tf.Tensor,
    strides: Sequence[int],
    dilations: Sequence[int],
    channels: _Extent,
) -> tf.Tensor | None:
    """The result for an empty batch. TensorFlow's oneDNN would return the shape of the input."""
    if _tf.known_extent(x, 0) != 0:
        return None
    windows = [(k - 1) * d + 1 for k, d in zip(extents(filters), dilations)]
    sizes = [(n - w) // s + 1 for n, w, s in zip(extents(x)[1:-1], windows, strides)]
    return tf.zeros([0, *sizes, channels], x.dtype)


def _convolve(
    x: tf.Tensor, filters: tf.Tensor, strides: Sequence[int], dilations: Sequence[int]
) -> tf.Tensor:
    """Convolves without padding. x has channels last, filters are [spatial..., in, out]."""
    nothing = _of_none(x, filters, strides, dilations, extents(filters)[-1])
    if nothing is not None:
        return nothing
    if max(dilations) > 1 and (max(strides) > 1 or len(strides) == 3):
        filters, dilations = _dilated(filters, dilations), [1] * len(dilations)
    if len(strides) == 3:
        x = apart(x)
    # The default layout has no gradient for three axes in eager mode.
    layout = ("NWC", "NHWC", "NDHWC")[len(strides) - 1]
    return tf.nn.convolution(x, filters, strides, "VALID", layout, dilations)


def _convolve_by_channel(
    x: tf.Tensor, filters: tf.Tensor, strides: list[int], dilations: Sequence[int]
) -> tf.Tensor:
    """Convolves each channel with filters of its own, [spatial..., channels, out]."""
    if len(strides) == 1:
        y = _convolve_by_channel(
            x[:, tf.newaxis], filters[tf.newaxis], strides * 2, [1, *dilations]
        )
        return y[:, 0]
    channels = extents(filters)[-2] * extents(filters)[-1]
    nothing = _of_none(x, filters, strides, dilations, channels)
    if nothing is not None:
        return nothing
    if max(dilations) > 1 and max(strides) > 1:
        filters, dilations = _dilated(filters, dilations), [1, 1]
    # TensorFlow's kernels take one stride for both axes. A slice takes what more there is.
    step = math.gcd(*strides)
    y = tf.nn.depthwise_conv2d(x, filters, [1, step, step, 1], "VALID", dilations=dilations)
    return y[:, :: strides[0] // step, :: strides[1] // step]


def _geometry(op: Operation, x: tf.Tensor, kernel: Sequence[_Extent]) -> _Geometry:
    spatial = rank_of(op, x) - 2
    if not 1 <= spatial <= 3:
        raise op.error(f"{spatial} spatial axes, where 1 to 3 are supported")
    strides, dilations = (_positive(op, name, spatial) for name in ("strides", "dilations"))
    pads = _pads(op, extents(x)[1:-1], kernel, strides, dilations)
    _check_windows(op, extents(x)[1:-1], kernel, dilations, pads)
    return strides, dilations, pads


def _check_windows(
    op: Operation,
    sizes: Sequence[_Extent],
    kernel: Sequence[_Extent],
    dilations: Sequence[int],
    pads: Sequence[_Pad],
) -> None:
    """Refuses windows that are known to be larger than the padded tensor."""
    for size, k, dilation, (begin, end) in zip(sizes, kernel, dilations, pads):
        if all(isinstance(n, int) for n in (size, k, begin, end)):
            window = (k - 1) * dilation + 1
            if window > size + begin + end:
                raise op.error(f"a window of {window} does not fit into {size + begin + end}")


def _groups(op: Operation, filters: tf.Tensor) -> int:
    groups = _tf.known_extent(filters, 0)
    if groups is None:
        raise op.error("the number of groups must be known")
    if groups > _MOST_GROUPS:
        raise op.error(f"{groups} groups, where at most {_MOST_GROUPS} are supported")
    return groups


@register("Convolution")
@with_channels_last
def _convolution(op: Operation, x: tf.Tensor, filters: tf.Tensor) -> tf.Tensor:
    strides, dilations, pads = _geometry(op, x, extents(filters)[2:])
    filters = tf.transpose(filters, [*range(2, filters.shape.rank), 1, 0])
    return _convolve(_padded(x, pads), filters, strides, dilations)


@register("GroupConvolution")
@with_channels_last
def _group_convolution(op: Operation, x: tf.Tensor, filters: tf.Tensor) -> tf.Tensor:
    strides, dilations, pads = _geometry(op, x, extents(filters)[3:])
    groups = _groups(op, filters)
    x = _padded(x, pads)
    if _tf.known_extent(filters, 2) == 1 and len(strides) < 3:
        # [spatial..., groups, out]
        own = tf.transpose(filters[:, :, 0], [*range(2, filters.shape.rank - 1), 0, 1])
        return _convolve_by_channel(x, own, strides, dilations)
    # A Conv2D of groups has no gradient without oneDNN, and a slow one in XLA.
    order = [*range(2, filters.shape.rank - 1), 1, 0]
    parts = [
        _convolve(piece, tf.transpose(own, order), strides, dilations)
        for piece, own in zip(tf.split(x, groups, -1), tf.unstack(filters))
    ]
    return tf.concat(parts, -1)


@register("ConvolutionBackpropData")
@with_channels_last
def _convolution_backprop(
    op: Operation, x: tf.Tensor, filters: tf.Tensor, output_shape: tf.Tensor | None = None
) -> tf.Tensor:
    strides, dilations, pads, shape = _back(op, x, extents(filters)[2:], output_shape)
    filters = tf.transpose(filters, [*range(2, filters.shape.rank), 1, 0])
    return _transposed(x, filters, strides, dilations, pads, shape)


@register("GroupConvolutionBackpropData")
@with_channels_last
def _group_convolution_backprop(
    op: Operation, x: tf.Tensor, filters: tf.Tensor, output_shape: tf.Tensor | None = None
) -> tf.Tensor:
    strides, dilations, pads, shape = _back(op, x, extents(filters)[3:], output_shape)
    groups = _groups(op, filters)
    order = [*range(2, filters.shape.rank - 1), 1, 0]
    parts = [
        _transposed(piece, tf.transpose(own, order), strides, dilations, pads, shape)
        for piece, own in zip(tf.split(x, groups, -1), tf.unstack(filters))
    ]
    return tf.concat(parts, -1)


def _back(
    op: Operation, x: tf.Tensor, kernel: Sequence[_Extent], output_shape: tf.Tensor | None
) -> tuple[list[int], list[int], list[_Pad], list[_Extent]]:
    """Strides, dilations, the crops before and after each axis, and the shape before cropping."""
    spatial = rank_of(op, x) - 2
    strides, dilations = (_positive(op, name, spatial) for name in ("strides", "dilations"))
    more = _list(op, "output_padding", spatial, 0)
    full = [
        (size - 1) * stride + (k - 1) * dilation + 1
        for size, k, stride, dilation in zip(extents(x)[1:-1], kernel, strides, dilations)
    ]
    mode = op.text("auto_pad", "explicit", among=_AUTO_PADS)
    pads = [(0, 0)] * spatial
    if mode in ("explicit", "notset"):
        pads = _pads(op, extents(x)[1:-1], kernel, strides, dilations)
    if output_shape is None:
        return strides, dilations, [(b, e - m) for (b, e), m in zip(pads, more)], full
    wanted = sizes_of(op, 2, spatial)
    begins = [begin for begin, _ in pads]
    if mode in ("same_upper", "same_lower"):
        begins = _begins(full, wanted, more, mode)
    # Zeros follow where more is wanted than there is.
    ends = [size - begin - want for size, begin, want in zip(full, begins, wanted)]
    return strides, dilations, list(zip(begins, ends)), full


def _begins(
    full: Sequence[Any], wanted: Sequence[Any], more: Sequence[int], mode: str
) -> list[_Extent]:
    """The crops before each axis that make its extent what is wanted."""
    begins = []
    for size, want, extra in zip(full, wanted, more):
        total = size + extra - want
        total = max(total, 0) if isinstance(total, int) else tf.maximum(total, 0)
        # The reverse of a convolution's padding, since this is the gradient of one.
        begins.append(total - total // 2 if mode == "same_upper" else total // 2)
    return begins


def _transposed(
    x: tf.Tensor,
    filters: tf.Tensor,
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[_Pad],
    full: Sequence[_Extent],
) -> tf.Tensor:
    """The transposed convolution of x, channels last. Filters are [spatial..., out, in]."""
    filters = _dilated(filters, dilations)
    shape = [extents(x)[0], *full, extents(filters)[-2]]
    y = tf.nn.conv_transpose(
        x,
        filters,
        tf.cast(tf.stack(shape), tf.int32),
        strides,
        padding="VALID",
    )
    return _padded(y, [(-begin, -end) for begin, end in pads])


class _Windows:
    """The windows of a pooling operation."""

    def __init__(self, op: Operation, x: tf.Tensor):
        self.spatial = rank_of(op, x) - 2
        self.kernel = _positive(op, "kernel", self.spatial)
        self.strides = _positive(op, "strides", self.spatial)
        self.dilations = _positive(op, "dilations", self.spatial)
        self.sizes = extents(x)[1:-1]
        self.pads = _pads(op, self.sizes, self.kernel, self.strides, self.dilations)
        _check_windows(op, self.sizes, self.kernel, self.dilations, self.pads)
        rounding = op.text("rounding_type", "floor", among=("floor", "ceil", "ceil_torch"))
        self.more = [0] * self.spatial  # after the padding, for a last window that exceeds it
        if rounding != "floor":
            self.more = [self._more(i, rounding == "ceil_torch") for i in range(self.spatial)]

    @property
    def has_pads(self) -> bool:
        return not all(isinstance(p, int) and p == 0 for pads in self.pads for p in pads)

    @property
    def are_inside(self) -> bool:
        """True if all windows are known to be inside the tensor."""
        return not self.has_pads and all(isinstance(m, int) and m == 0 for m in self.more)

    def _more(self, i: int, torch: bool) -> _Extent:
        stride, window = self.strides[i], (self.kernel[i] - 1) * self.dilations[i] + 1
        begin, end = self.pads[i]
        last = -(-(self.sizes[i] + begin + end - window) // stride)
        if torch:
            # No window begins beyond the tensor.
            starts_outside = last * stride >= self.sizes[i] + begin
            last = last - (
                tf.cast(starts_outside, tf.int64)
                if tf.is_tensor(starts_outside)
                else int(starts_outside)
            )
        more = last * stride + window - (self.sizes[i] + begin + end)
        return tf.maximum(more, 0) if tf.is_tensor(more) else max(more, 0)

    def pad(self, x: tf.Tensor, value: Any) -> tf.Tensor:
        pads = [(begin, end + more) for (begin, end), more in zip(self.pads, self.more)]
        return _padded(x, pads, value)

    def pool(self, x: tf.Tensor, kind: str) -> tf.Tensor:
        if max(self.dilations) == 1:
            pool = tf.nn.max_pool if kind == "MAX" else tf.nn.avg_pool
            return pool(x, self.kernel, self.strides, "VALID")
        y = tf.nn.pool(x, self.kernel, kind, dilations=self.dilations, padding="VALID")
        # All windows, of which a slice is kept.
        return y[(slice(None), *(slice(None, None, s) for s in self.strides), slice(None))]


@register("AvgPool", ["opset1", "opset14", "opset16"])
@with_channels_last
def _avg_pool(op: Operation, x: tf.Tensor) -> tf.Tensor:
    windows = _Windows(op, x)
    counts_pads = windows.has_pads and not op.flag("exclude-pad")
    means = windows.pool(windows.pad(x, 0), "AVG")
    if counts_pads or windows.are_inside:
        return means
    ones = tf.ones_like(x[:1, ..., :1])
    shares = windows.pool(windows.pad(ones, 0), "AVG")
    return tf.math.divide_no_nan(means, shares)


@register("MaxPool", "opset1")
@with_channels_last
def _max_pool(op: Operation, x: tf.Tensor) -> tf.Tensor:
    windows = _Windows(op, x)
    if windows.spatial == 3 and x.dtype != tf.float32:  # for which alone TensorFlow has a kernel
        return _maxima_with_places(op, x)[0]
    return windows.pool(windows.pad(x, x.dtype.min), "MAX")


@register("MaxPool", ["opset8", "opset14"])
@with_channels_last
def _max_pool_with_indices(op: Operation, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
    if not op.is_read(1):
        return _max_pool(op, x), None
    return _maxima_with_places(op, x)


def _maxima_with_places(op: Operation, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    windows = _Windows(op, x)
    axis = op.axis(op.integer("axis", 0), rank_of(op, x))
    x = to_second(x)  # as the places count
    dtype = op.dtype("index_element_type", tf.int64)
    # The numbers of each window side by side, and their positions in the tensor.
    values, places = x, tf.reshape(tf.range(tf.size(x, tf.int64)), tf.shape(x))
    inner = tf.reduce_prod(tf.shape(x, tf.int64)[axis:])
    places = places % inner
    for i in range(windows.spatial):
        at = 2 + 2 * i
        begin, end = windows.pads[i]
        size = tf.cast(windows.sizes[i], tf.int64)
        window = (windows.kernel[i] - 1) * windows.dilations[i] + 1
        whole = size + begin + end + windows.more[i] - window
        starts = tf.range(whole // windows.strides[i] + 1) * windows.strides[i] - begin
        steps = tf.range(windows.kernel[i], dtype=tf.int64) * windows.dilations[i]
        positions = starts[:, tf.newaxis] + steps
        outside = (positions < 0) | (positions >= size)
        inside = tf.clip_by_value(positions, 0, size - 1)
        values = tf.gather(values, inside, axis=at)
        places = tf.gather(places, inside, axis=at)
        shape = [1] * at + extents(positions) + [1] * (values.shape.rank - at - 2)
        values = tf.where(tf.reshape(outside, shape), tf.constant(x.dtype.min, x.dtype), values)
    order = [0, 1, *range(2, 2 + 2 * windows.spatial, 2), *range(3, 3 + 2 * windows.spatial, 2)]
    out = tf.concat(
        [tf.shape(values, tf.int64)[i : i + 1] for i in order[: 2 + windows.spatial]]
        + [[int(np.prod(windows.kernel))]],
        0,
    )
    values, places = (tf.reshape(tf.transpose(t, order), out) for t in (values, places))
    best = tf.argmax(values, axis=-1)
    picked = [tf.gather(t, best, batch_dims=2 + windows.spatial) for t in (values, places)]
    return to_last(picked[0]), to_last(tf.cast(picked[1], dtype))


def _flat_geometry(op: Operation, x: tf.Tensor, kernel: Sequence[_Extent]) -> _Geometry:
    """The strides, dilations and pads of a convolution of [N, C, H, W]."""
    if rank_of(op, x) != 4 or len(kernel) != 2:
        raise op.error(f"{rank_of(op, x) - 2} spatial axes, where 2 are supported")
    strides, dilations = (_positive(op, name, 2) for name in ("strides", "dilations"))
    pads = _pads(op, extents(x)[2:], kernel, strides, dilations)
    _check_windows(op, extents(x)[2:], kernel, dilations, pads)
    return strides, dilations, pads


@register("BinaryConvolution")
def _binary_convolution(op: Operation, x: tf.Tensor, filters: tf.Tensor) -> tf.Tensor:
    """Convolves signs, for which zeros and ones stand."""
    op.text("mode", among=("xnor-popcount",))
    bits = op.static(1).astype(np.uint8)
    strides, dilations, pads = _flat_geometry(op, x, bits.shape[2:])
    if _tf.known_extent(bits, 1) % 8:
        raise op.error(f"{_tf.known_extent(bits, 1)} channels, which must be in whole bytes")
    # OpenVINO's CPU plugin takes a byte's lowest bit first, where constants have the highest first.
    bits = np.unpackbits(np.packbits(bits), bitorder="little").reshape(bits.shape)
    signs = _padded(2 * tf.transpose(x, [0, 2, 3, 1]) - 1, pads, 2 * op.number("pad_value") - 1)
    filters = 2 * tf.constant(bits.transpose(2, 3, 1, 0), x.dtype) - 1
    return tf.transpose(_convolve(signs, filters, strides, dilations), [0, 3, 1, 2])


@register("DeformableConvolution", ["opset1", "opset8"])
def _deformable_convolution(
    op: Operation,
    x: tf.Tensor,
    offsets: tf.Tensor,
    filters: tf.Tensor,
    mask: tf.Tensor | None = None,
) -> tf.Tensor:
    kernel = filters.shape.as_list()[2:]
    if None in kernel:
        raise op.error("the extents of filters must be known")
    taps = math.prod(kernel)
    batch, channels, *sizes = extents(x)
    strides, dilations, pads = _flat_geometry(op, x, kernel)
    groups, parts = (_divisor(op, name, channels) for name in ("group", "deformable_group"))
    for name, tensor, count in (("offsets", offsets, 2), ("a mask", mask, 1)):
        if tensor is not None and _tf.known_extent(tensor, 1) not in (None, count * parts * taps):
            raise op.error(
                f"{name} of {_tf.known_extent(tensor, 1)} channels, not {count * parts * taps}"
            )
    out = extents(offsets)[2:]
    # The parts of an image are images of their own.
    moves = tf.reshape(offsets, [batch * parts, taps, 2, *out])
    points = []
    for i, (begin, end) in enumerate(pads):
        window = (kernel[i] - 1) * dilations[i] + 1
        wanted = (sizes[i] + begin + end - window) // strides[i] + 1
        starts = tf.range(tf.cast(wanted, tf.int64)) * strides[i] - begin
        tf.debugging.assert_equal(tf.size(starts, tf.int64), tf.cast(out[i], tf.int64), "offsets")
        starts = tf.reshape(starts, [-1, 1] if i == 0 else [-1])
        steps = (np.indices(kernel)[i] * dilations[i]).reshape(taps, 1, 1)
        points.append(moves[:, :, i] + tf.cast(starts + steps, x.dtype))
    pixels = tf.reshape(x, [batch * parts, channels // parts, *sizes])
    numbers = _at_points(op, tf.transpose(pixels, [0, 2, 3, 1]), *points)
    if mask is not None:
        numbers *= tf.reshape(mask, [batch * parts, taps, *out, 1])
    numbers = tf.reshape(numbers, [batch, parts, taps, *out, channels // parts])
    numbers = tf.transpose(numbers, [0, 1, 5, 2, 3, 4])
    numbers = tf.reshape(numbers, [batch, groups, channels // groups * taps, *out])
    own = tf.reshape(filters, [groups, -1, channels // groups * taps])
    y = tf.einsum("goc,bgchw->bgohw", own, numbers)
    return tf.reshape(y, [batch, extents(filters)[0], *out])


def _divisor(op: Operation, name: str, channels: _Extent) -> int:
    value = op.integer(name, 1)
    if value < 1 or (isinstance(channels, int) and channels % value):
        raise op.error(f"{name}={value} does not divide {channels} channels")
    return value


def _at_points(op: Operation, x: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """The numbers of images, [N, H, W, C], at points of each."""
    images = tf.reshape(tf.range(extents(x)[0]), [-1, 1, 1, 1])
    if op.flag("bilinear_interpolation_pad", False):
        return bilinear(x, images, rows, columns)
    height, width = extents(x)[1:3]
    numbers = bilinear(x, images, clipped(rows, height), clipped(columns, width))
    is_inside = within(rows, height) & within(columns, width)
    return numbers * tf.cast(is_inside, x.dtype)[..., tf.newaxis]
