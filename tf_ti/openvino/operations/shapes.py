"""Operations that move numbers: shapes, slices, gathers, scatters, sorting."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.openvino.operation import Operation, register


def rank_of(op: Operation, x: tf.Tensor) -> int:
    if x.shape.rank is None:
        raise op.error("needs inputs of known ranks")
    return x.shape.rank


def positive(op: Operation, name: str, *default: int) -> int:
    """An attribute that is a positive integer."""
    value = op.integer(name, *default)
    if value < 1:
        raise op.error(f"{name}={value} must be positive")
    return value


def extents(x: tf.Tensor, dtype: tf.DType = tf.int64) -> list[int | tf.Tensor]:
    """The extents of a tensor: ints if they are known, otherwise scalar tensors."""
    dynamic = tf.shape(x, dtype)
    return [dynamic[i] if extent is None else extent for i, extent in enumerate(x.shape)]


def as_shape(*extents: int | tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.cast(extent, tf.int64) for extent in extents])


def along_one(x: tf.Tensor, axis: int, function: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Applies a function to an axis, as the second of three axes."""
    before, after = extents(x)[:axis], extents(x)[axis + 1 :]
    shape = as_shape(math.prod(before), extents(x)[axis], math.prod(after))
    middle = function(tf.reshape(x, shape))
    return tf.reshape(middle, as_shape(*before, extents(middle)[1], *after))


def static_axes(op: Operation, position: int, rank: int) -> list[int]:
    return [op.axis(int(axis), rank) for axis in np.reshape(op.static(position), -1)]


def axes_of(op: Operation, position: int, rank: int) -> list[int] | tf.Tensor:
    """The axes that an input names, counted from 0: a tensor where they are not known."""
    if op.known(position) is not None:
        return static_axes(op, position, rank)
    count = op.inputs[position].shape.num_elements()
    if count is not None and count > rank:
        raise op.error(f"input {position} names {count} axes, where there are {rank}")
    axes = tf.cast(tf.reshape(op.inputs[position], [-1]), tf.int32)
    # A look-up, which refuses axes out of range.
    return tf.gather(tf.constant([*range(rank)] * 2, tf.int32), axes + rank)


def axis_of(op: Operation, position: int, rank: int) -> int | tf.Tensor:
    """The one axis that an input names, counted from 0: a tensor where it is not known."""
    axes = axes_of(op, position, rank)
    return tf.reshape(axes, []) if tf.is_tensor(axes) else int(np.reshape(axes, ()))


def _advanced(axis: int | tf.Tensor, count: int, rank: int, to: int = 0) -> list[int] | tf.Tensor:
    """The order of axes after `count` of them, from `axis` on, have moved forward to `to`."""
    parts = (0, to), (axis, axis + count), (to, axis), (axis + count, rank)
    if tf.is_tensor(axis):
        return tf.concat([tf.range(*part) for part in parts], 0)
    return [i for part in parts for i in range(*part)]


def _inverse(order: list[int] | tf.Tensor) -> np.ndarray | tf.Tensor:
    return tf.math.invert_permutation(order) if tf.is_tensor(order) else np.argsort(order)


_MOST_DIMENSIONS = 254  # TensorFlow's limit
_MOST_RANK = 5  # of what TensorFlow's MirrorPad and ReverseSequence take


def rank_by(op: Operation, position: int) -> int:
    """The number of axes that an input has numbers for, such as sizes, repeats or starts."""
    shape = op.inputs[position].shape
    count = shape.as_list()[0] if shape.rank == 1 else None
    if count is None:
        raise op.error(f"how many numbers input {position} has must be known")
    if count > _MOST_DIMENSIONS:
        raise op.error(f"input {position} has {count} numbers, but no tensor has as many axes")
    return count


def sizes_of(op: Operation, position: int, count: int) -> list[int | tf.Tensor]:
    """The sizes that an input names, one for each of `count` axes: ints if they are known."""
    if rank_by(op, position) != count:
        raise op.error(f"input {position} has {rank_by(op, position)} numbers, not {count}")
    known = op.known(position)
    if known is None:
        return tf.unstack(tf.cast(op.inputs[position], tf.int64), count)
    if min(known, default=1) < 1:
        raise op.error(f"input {position} has sizes of {known.tolist()}, which must be positive")
    return known.tolist()


@register("ShapeOf", "opset1")
def _shape_of(op: Operation, x: tf.Tensor) -> tf.Tensor:
    return tf.shape(x, tf.int64)


@register("ShapeOf", "opset3")
def _shape_of_type(op: Operation, x: tf.Tensor) -> tf.Tensor:
    return tf.shape(x, op.dtype("output_type", tf.int64))


@register("Reshape")
def _reshape(op: Operation, x: tf.Tensor, pattern: tf.Tensor) -> tf.Tensor:
    pattern = tf.cast(pattern, tf.int64)
    if not op.flag("special_zero", False):
        return tf.reshape(x, pattern)
    known = op.known(1)
    if known is not None and x.shape.rank is not None:
        parts = [
            extents(x)[i] if size == 0 and i < x.shape.rank else int(size)
            for i, size in enumerate(known)
        ]
        return tf.reshape(x, tf.stack([tf.cast(p, tf.int64) for p in parts]) if parts else [])
    # Zeros stand for the extents of x.
    count = tf.size(pattern)
    own = tf.concat([tf.shape(x, tf.int64), tf.zeros([count], tf.int64)], 0)[:count]
    return tf.reshape(x, tf.where(pattern == 0, own, pattern))


@register("Squeeze", ["opset1", "opset15"])
def _squeeze(op: Operation, x: tf.Tensor, axes: tf.Tensor | None = None) -> tf.Tensor:
    axes = [] if axes is None else axes_of(op, 1, rank_of(op, x))
    skips = op.flag("allow_axis_skip", False)
    if tf.is_tensor(axes):
        return _squeezed(x, axes, skips)
    if not axes:
        return tf.squeeze(x)
    if skips:
        if any(_tf.known_extent(x, axis) is None for axis in axes):
            return _squeezed(x, tf.constant(axes), skips)
        axes = [axis for axis in axes if _tf.known_extent(x, axis) == 1]
        return tf.squeeze(x, axes) if axes else tf.identity(x)
    return tf.squeeze(x, axes)


def _squeezed(x: tf.Tensor, axes: tf.Tensor, skips: bool) -> tf.Tensor:
    """Leaves axes out that are not known; a reshape refuses those with other extents than 1."""
    shape = tf.shape(x)
    named = tf.scatter_nd(axes[:, tf.newaxis], tf.ones_like(axes), [x.shape.rank]) > 0
    dropped = named & (shape == 1) if skips else named
    return tf.reshape(x, tf.boolean_mask(shape, ~dropped))


@register("Unsqueeze")
def _unsqueeze(op: Operation, x: tf.Tensor, axes: tf.Tensor) -> tf.Tensor:
    count = np.unique(op.static(1)).size
    for axis in sorted(set(static_axes(op, 1, rank_of(op, x) + count))):
        x = tf.expand_dims(x, axis)
    return x


@register("Transpose")
def _transpose(op: Operation, x: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    known = op.known(1)
    return tf.transpose(x) if known is not None and known.size == 0 else tf.transpose(x, order)


@register("Concat")
def _concat(op: Operation, *inputs: tf.Tensor) -> tf.Tensor:
    return tf.concat(inputs, op.axis(op.integer("axis"), inputs[0].shape.rank))


@register("Split")
def _split(op: Operation, x: tf.Tensor, axis: tf.Tensor) -> tuple[tf.Tensor, ...]:
    axis = axis_of(op, 1, rank_of(op, x))
    count = _is_number_of_outputs(op, "num_splits", op.integer("num_splits"))
    return tuple(tf.split(x, count, axis))


def _is_number_of_outputs(op: Operation, name: str, count: int) -> int:
    if count != len(op.layer.outputs):
        raise op.error(f"{name} is {count}, but there are {len(op.layer.outputs)} output ports")
    return count


@register("VariadicSplit")
def _variadic_split(
    op: Operation, x: tf.Tensor, axis: tf.Tensor, lengths: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    axis = axis_of(op, 1, rank_of(op, x))
    known = op.known(2)
    if known is None:
        return tuple(tf.split(x, lengths, axis, num=len(op.layer.outputs)))
    _is_number_of_outputs(op, "the number of lengths", known.size)
    return tuple(tf.split(x, [int(length) for length in known], axis))


@register("Broadcast", ["opset1", "opset3"])
def _broadcast(
    op: Operation, x: tf.Tensor, target: tf.Tensor, axes_mapping: tf.Tensor | None = None
) -> tf.Tensor:
    mode = op.text("mode", "numpy").lower()
    if mode == "none":  # OpenVINO writes this for opset1
        mode = "explicit"
    if mode not in ("numpy", "explicit", "bidirectional", "pdpd"):
        raise op.error(f"mode={mode!r} is none of numpy, explicit, bidirectional")
    target = tf.cast(target, tf.int64)
    if mode == "bidirectional":
        target = tf.broadcast_dynamic_shape(tf.shape(x, tf.int64), target)
    elif mode == "explicit" or (mode == "pdpd" and op.integer("axis", -1) >= 0):
        if mode == "pdpd":
            axes = list(range(op.integer("axis"), op.integer("axis") + rank_of(op, x)))
        else:
            axes = axes_of(op, 2, rank_by(op, 1))
        x = tf.reshape(x, _spread(op, x, axes, rank_by(op, 1)))
    return tf.broadcast_to(x, target)


def _spread(
    op: Operation, x: tf.Tensor, axes: list[int] | tf.Tensor, rank: int
) -> list[Any] | tf.Tensor:
    """The shape of x with its extents along some of `rank` axes, and ones along the others."""
    count = len(axes) if isinstance(axes, list) else _tf.known_extent(axes, 0)
    if count not in (None, rank_of(op, x)):
        raise op.error(f"axes_mapping names {count} axes for those of {x.shape}")
    if not isinstance(axes, list):
        tf.debugging.assert_less(axes[:-1], axes[1:], "axes_mapping is not in order")
        ones = tf.ones([rank], tf.int32)
        return tf.tensor_scatter_nd_update(ones, axes[:, tf.newaxis], tf.shape(x))
    if sorted(set(axes)) != axes:
        raise op.error(f"axes_mapping {axes} is not in order")
    own = iter(extents(x))
    return [next(own) if axis in axes else 1 for axis in range(rank)]


@register("Tile")
def _tile(op: Operation, x: tf.Tensor, repeats: tf.Tensor) -> tf.Tensor:
    repeats = tf.cast(repeats, tf.int64)
    count, rank = rank_by(op, 1), rank_of(op, x)
    for _ in range(count - rank):
        x = tf.expand_dims(x, 0)
    return tf.tile(x, tf.concat([tf.ones([max(rank - count, 0)], tf.int64), repeats], 0))


@register("Pad", ["opset1", "opset12"])
def _pad(
    op: Operation, x: tf.Tensor, begin: tf.Tensor, end: tf.Tensor, value: tf.Tensor | None = None
) -> tf.Tensor:
    mode = op.text("pad_mode", among=("constant", "edge", "reflect", "symmetric"))
    rank = rank_of(op, x)
    begin, end = (tf.cast(sizes, tf.int64) for sizes in (begin, end))
    fill = tf.zeros([], x.dtype) if value is None else tf.cast(value, x.dtype)
    if rank <= _MOST_RANK:
        return _padded(x, begin, end, mode, fill)
    for axis in range(rank):
        before, after = (tf.pad(side[axis, tf.newaxis], [[1, 1]]) for side in (begin, end))
        pad = functools.partial(_padded, begin=before, end=after, mode=mode, fill=fill)
        x = along_one(x, axis, pad)
    return x


def _padded(
    x: tf.Tensor, begin: tf.Tensor, end: tf.Tensor, mode: str, fill: tf.Tensor
) -> tf.Tensor:
    # Negative pads crop.
    own = tf.shape(x, tf.int64)
    start = tf.maximum(-begin, 0)
    x = tf.slice(x, start, tf.maximum(own - start - tf.maximum(-end, 0), 0))
    pads = tf.stack([tf.maximum(begin, 0), tf.maximum(end, 0)], axis=1)
    if mode == "constant":
        return tf.pad(x, pads, constant_values=fill)
    if mode in ("reflect", "symmetric"):
        return tf.pad(x, pads, mode=mode.upper())
    for axis in range(x.shape.rank):
        extent = tf.shape(x, tf.int64)[axis]
        positions = tf.range(-pads[axis, 0], extent + pads[axis, 1])
        x = tf.gather(x, tf.clip_by_value(positions, 0, extent - 1), axis=axis)
    return x


@register("StridedSlice")
def _strided_slice(
    op: Operation, x: tf.Tensor, begin: tf.Tensor, end: tf.Tensor, strides: tf.Tensor | None = None
) -> tf.Tensor:
    if strides is None:
        strides = tf.ones_like(begin)
    masks = {}
    for name in ("begin_mask", "end_mask", "new_axis_mask", "shrink_axis_mask", "ellipsis_mask"):
        bits = op.integers(name, [])
        masks[name] = sum(1 << i for i, bit in enumerate(bits) if bit)
    begin, end, strides = (tf.cast(value, tf.int64) for value in (begin, end, strides))
    return tf.strided_slice(x, begin, end, strides, **masks)


@register("Slice", "opset8")
def _slice(
    op: Operation,
    x: tf.Tensor,
    start: tf.Tensor,
    stop: tf.Tensor,
    step: tf.Tensor,
    axes: tf.Tensor | None = None,
) -> tf.Tensor:
    return _sliced(op, x, 1, start, stop, step)


def _sliced(
    op: Operation, x: tf.Tensor, first: int, start: tf.Tensor, stop: tf.Tensor, step: tf.Tensor
) -> tf.Tensor:
    """A slice: start, stop, step and, if there are any, axes are the inputs from `first` on."""
    rank = rank_of(op, x)
    # Known numbers stay known: the recognition of cells in loops' bodies needs them.
    start, stop, step = (
        tf.cast(value, tf.int64) if (known := op.known(i)) is None else known.tolist()
        for i, value in enumerate((start, stop, step), first)
    )
    if len(op.inputs) <= first + 3:
        chosen = list(range(rank_by(op, first)))
    else:
        chosen = axes_of(op, first + 3, rank)
    if not isinstance(chosen, list):
        others = tf.zeros([rank], tf.int64), tf.shape(x, tf.int64), tf.ones([rank], tf.int64)
        at = chosen[:, tf.newaxis]
        given = (tf.convert_to_tensor(value, tf.int64) for value in (start, stop, step))
        return tf.strided_slice(x, *map(tf.tensor_scatter_nd_update, others, (at,) * 3, given))
    begins: list[Any] = [0] * rank
    ends: list[Any] = [0] * rank
    steps: list[Any] = [1] * rank
    whole = 0
    for axis in range(rank):
        if axis in chosen:
            i = chosen.index(axis)
            begins[axis], ends[axis], steps[axis] = start[i], stop[i], step[i]
        else:
            whole |= 1 << axis
    stacked = (tf.convert_to_tensor(part, tf.int64) for part in (begins, ends, steps))
    return tf.strided_slice(x, *stacked, begin_mask=whole, end_mask=whole)


@register("SliceScatter", "opset15")
def _slice_scatter(
    op: Operation,
    x: tf.Tensor,
    updates: tf.Tensor,
    start: tf.Tensor,
    stop: tf.Tensor,
    step: tf.Tensor,
    axes: tf.Tensor | None = None,
) -> tf.Tensor:
    """Writes the updates where Slice would read."""
    places = tf.reshape(tf.range(tf.size(x, tf.int64)), tf.shape(x))
    places = _sliced(op, places, 2, start, stop, step)
    indices = tf.reshape(places, [-1, 1])
    flat = tf.tensor_scatter_nd_update(tf.reshape(x, [-1]), indices, tf.reshape(updates, [-1]))
    return tf.reshape(flat, tf.shape(x))


@register("Roll", "opset7")
def _roll(op: Operation, x: tf.Tensor, shift: tf.Tensor, axes: tf.Tensor) -> tf.Tensor:
    axes = tf.reshape(axes, [-1])
    shift = tf.broadcast_to(tf.cast(tf.reshape(shift, [-1]), axes.dtype), tf.shape(axes))
    return tf.roll(x, shift, axes)


def _known_extents(x: tf.Tensor, indices: np.ndarray) -> tf.Tensor | None:
    """The elements of a tensor's shape, of which others may not be known."""
    if tf.executing_eagerly() or x.op.type != "Shape" or x.shape.rank != 1:
        return None
    shape = x.op.inputs[0].shape
    if shape.rank is None or not np.all((indices >= 0) & (indices < shape.rank)):
        return None
    found = [shape.as_list()[int(i)] for i in indices.reshape(-1)]
    return None if None in found else tf.constant(np.reshape(found, indices.shape), x.dtype)


@register("Gather", ["opset1", "opset7", "opset8"])
def _gather(op: Operation, x: tf.Tensor, indices: tf.Tensor, axis: tf.Tensor) -> tf.Tensor:
    rank, count = rank_of(op, x), rank_of(op, indices)
    axis = axis_of(op, 2, rank)
    batch_dims = op.integer("batch_dims", 0)
    if not -count <= batch_dims <= count:
        raise op.error(f"batch_dims={batch_dims} is out of range for indices of {count} dimensions")
    batch_dims += count if batch_dims < 0 else 0
    if not tf.is_tensor(axis):
        return _gathered(op, x, indices, axis, batch_dims)
    own = count - batch_dims
    taken = tf.transpose(x, _advanced(axis, 1, rank, batch_dims))
    taken = _gathered(op, taken, indices, batch_dims, batch_dims)
    return tf.transpose(taken, _inverse(_advanced(axis, own, rank - 1 + own, batch_dims)))


def _gathered(
    op: Operation, x: tf.Tensor, indices: tf.Tensor, axis: int, batch_dims: int
) -> tf.Tensor:
    rank, known, extent = x.shape.rank, op.known(1), extents(x)[axis]
    if known is not None and rank == 1 and x.dtype.is_integer:
        taken = _known_extents(x, known)
        if taken is not None:
            return taken
    if known is not None and isinstance(extent, int) and np.all((known >= 0) & (known < extent)):
        return tf.gather(x, indices, axis=axis, batch_dims=batch_dims)
    indices = tf.cast(indices, tf.int64)
    if op.registered == "opset8":
        indices = tf.where(indices < 0, indices + extent, indices)
    # Indices out of range give zeros, also of an axis without elements, which gets one to read.
    inside = (indices >= 0) & (indices < extent)
    if not (isinstance(extent, int) and extent):
        missing = tf.cast(tf.equal(extent, 0), tf.int64)
        x = along_one(x, axis, lambda middle: tf.pad(middle, [[0, 0], [0, missing], [0, 0]]))
    taken = tf.gather(x, tf.where(inside, indices, 0), axis=axis, batch_dims=batch_dims)
    for _ in range(axis - batch_dims):
        inside = tf.expand_dims(inside, batch_dims)
    for _ in range(rank - axis - 1):
        inside = tf.expand_dims(inside, -1)
    return tf.where(inside, taken, tf.zeros([], x.dtype))


@register("GatherElements", "opset6")
def _gather_elements(op: Operation, x: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    rank = rank_of(op, x)
    axis = op.axis(op.integer("axis"), rank)
    return _along(x, indices, axis, rank)


def _along(x: tf.Tensor, indices: tf.Tensor, axis: int, rank: int) -> tf.Tensor:
    """Does the same as np.take_along_axis."""
    extent = tf.cast(tf.shape(x, tf.int64)[axis], indices.dtype)
    indices = tf.where(indices < 0, indices + extent, indices)
    order = [i for i in range(rank) if i != axis] + [axis]
    back = np.argsort(order)
    taken = tf.gather(tf.transpose(x, order), tf.transpose(indices, order), batch_dims=rank - 1)
    return tf.transpose(taken, back)


def _wrapped(x: tf.Tensor, indices: tf.Tensor, batch_dims: int = 0) -> tf.Tensor:
    """Makes negative indices of several dimensions, which count from the end, non-negative."""
    depth = tf.shape(indices)[-1]
    own = tf.cast(tf.shape(x)[batch_dims : batch_dims + depth], indices.dtype)
    return tf.where(indices < 0, indices + own, indices)


@register("GatherND", ["opset5", "opset8"])
def _gather_nd(op: Operation, x: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    batch_dims = op.integer("batch_dims", 0)
    result = tf.gather_nd(x, _wrapped(x, indices, batch_dims), batch_dims=batch_dims)
    if op.registered == "opset5" and batch_dims > 1:
        # All batch dimensions become one.
        shape = tf.shape(result, tf.int64)
        flat = tf.concat([[tf.reduce_prod(shape[:batch_dims])], shape[batch_dims:]], 0)
        result = tf.reshape(result, flat)
    return result


@register("ScatterUpdate", "opset3")
def _scatter_update(
    op: Operation, x: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor, axis: tf.Tensor
) -> tf.Tensor:
    rank = rank_of(op, x)
    axis = axis_of(op, 3, rank)
    count = rank_of(op, indices)
    if count == 0:
        indices, updates, count = indices[tf.newaxis], tf.expand_dims(updates, axis), 1
    extent = tf.cast(tf.shape(x, tf.int64)[axis], indices.dtype)
    indices = tf.where(indices < 0, indices + extent, indices)
    order = _advanced(axis, 1, rank)
    moved = tf.transpose(updates, _advanced(axis, count, rank - 1 + count))
    at = indices[..., tf.newaxis]
    updated = tf.tensor_scatter_nd_update(tf.transpose(x, order), at, moved)
    return tf.transpose(updated, _inverse(order))


_SCATTERS = {
    "none": tf.tensor_scatter_nd_update,
    "sum": tf.tensor_scatter_nd_add,
    "sub": tf.tensor_scatter_nd_sub,
    "min": tf.tensor_scatter_nd_min,
    "max": tf.tensor_scatter_nd_max,
}


def _scatter(
    op: Operation, reduction: str, x: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor
) -> tf.Tensor:
    if reduction == "prod":
        # The product at each position, by segments. TensorFlow has no tensor_scatter_nd_prod.
        shape = tf.shape(x, tf.int64)
        depth = tf.shape(indices)[-1]
        strides = tf.math.cumprod(shape[:depth], exclusive=True, reverse=True)
        rows = tf.reduce_sum(tf.cast(indices, tf.int64) * strides, axis=-1)
        count = tf.reduce_prod(shape[:depth])
        own = tf.concat([tf.size(rows, tf.int64)[tf.newaxis], shape[depth:]], 0)
        flat = tf.reshape(updates, own)
        products = tf.math.unsorted_segment_prod(flat, tf.reshape(rows, [-1]), count)
        return x * tf.reshape(products, shape)
    if reduction not in _SCATTERS:
        raise op.error(f"reduction={reduction!r} is none of {', '.join(_SCATTERS)}, prod")
    return _SCATTERS[reduction](x, indices, updates)


@register("ScatterNDUpdate", ["opset4", "opset15"])
def _scatter_nd_update(
    op: Operation, x: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor
) -> tf.Tensor:
    if indices.shape.rank == 1:  # one index: a list of one
        indices, updates = indices[tf.newaxis], updates[tf.newaxis]
    return _scatter(op, op.text("reduction", "none"), x, _wrapped(x, indices), updates)


@register("ScatterElementsUpdate", ["opset3", "opset12"])
def _scatter_elements_update(
    op: Operation, x: tf.Tensor, indices: tf.Tensor, updates: tf.Tensor, axis: tf.Tensor
) -> tf.Tensor:
    rank = rank_of(op, x)
    axis = axis_of(op, 3, rank)
    reduction = op.text("reduction", "none")
    extent = tf.cast(tf.shape(x, tf.int64)[axis], indices.dtype)
    indices = tf.cast(tf.where(indices < 0, indices + extent, indices), tf.int64)
    sides = [tf.range(tf.cast(extent, tf.int64)) for extent in extents(indices)]
    grid = tf.meshgrid(*sides, indexing="ij")
    if tf.is_tensor(axis):
        grid = [tf.where(axis == i, indices, side) for i, side in enumerate(grid)]
    else:
        grid[axis] = indices
    places = tf.reshape(tf.stack(grid, axis=-1), [-1, rank])
    values = tf.reshape(updates, [-1])
    keeps = op.flag("use_init_val", True)
    if reduction == "none" or (keeps and reduction != "mean"):
        return _scatter(op, reduction, x, places, values)
    shape = tf.shape(x, tf.int64)
    hits = tf.scatter_nd(places, tf.ones_like(values, tf.int32), shape)
    if reduction == "mean":
        sums = tf.tensor_scatter_nd_add(
            x if keeps else tf.where(hits > 0, tf.zeros_like(x), x), places, values
        )
        counts = tf.cast(tf.maximum(hits + int(keeps), 1), x.dtype)
        return tf.math.floordiv(sums, counts) if x.dtype.is_integer else sums / counts
    neutral = {"sum": 0, "prod": 1, "min": x.dtype.max, "max": x.dtype.min}
    if reduction not in neutral:
        raise op.error(f"reduction={reduction!r} is none of none, mean, {', '.join(neutral)}")
    start = tf.where(hits > 0, tf.cast(neutral[reduction], x.dtype), x)
    return _scatter(op, reduction, start, places, values)


@register("Reverse")
def _reverse(op: Operation, x: tf.Tensor, axes: tf.Tensor) -> tf.Tensor:
    if op.text("mode", among=("index", "mask")) == "mask":
        mask = op.known(1)
        axes = tf.reshape(tf.where(axes), [-1]) if mask is None else np.flatnonzero(mask)
        return tf.reverse(x, axes)
    return tf.reverse(x, axes_of(op, 1, rank_of(op, x)))


@register("ReverseSequence")
def _reverse_sequence(op: Operation, x: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    rank = rank_of(op, x)
    batch_axis = op.axis(op.integer("batch_axis", 0), rank)
    seq_axis = op.axis(op.integer("seq_axis", 1), rank)
    lengths = tf.cast(lengths, tf.int64)
    if rank <= _MOST_RANK or batch_axis == seq_axis:
        return tf.reverse_sequence(x, lengths, seq_axis, batch_axis)
    own = extents(x)
    first, second = sorted([batch_axis, seq_axis])
    parts = own[:first], own[first + 1 : second], own[second + 1 :]
    before, between, after = map(math.prod, parts)
    flat = tf.reshape(x, as_shape(before, own[first], between, own[second], after))
    axes = (3, 1) if batch_axis == first else (1, 3)
    return tf.reshape(tf.reverse_sequence(flat, lengths, *axes), as_shape(*own))


@register("Range", ["opset1", "opset4"])
def _range(op: Operation, start: tf.Tensor, stop: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    dtype = op.dtype("output_type", start.dtype)
    start, stop, step = (tf.reshape(value, []) for value in (start, stop, step))
    wide = dtype
    if dtype.is_integer:
        wide = tf.float64 if start.dtype.is_floating else tf.int64
    start, stop, step = (tf.cast(value, wide) for value in (start, stop, step))
    # If steps lead away from the end, the range is empty.
    stop = tf.where(step > 0, tf.maximum(start, stop), tf.minimum(start, stop))
    return tf.cast(tf.range(start, stop, step), dtype)


@register("OneHot", ["opset1", "opset16"])
def _one_hot(
    op: Operation, indices: tf.Tensor, depth: tf.Tensor, on: tf.Tensor, off: tf.Tensor
) -> tf.Tensor:
    depth = tf.cast(tf.reshape(depth, []), tf.int32)
    if op.text("negative_indices_mode", "ignore_negative").lower() == "normalize":
        indices = tf.where(indices < 0, indices + tf.cast(depth, indices.dtype), indices)
    return tf.one_hot(
        indices,
        depth,
        tf.reshape(on, []),
        tf.reshape(off, []),
        axis=op.integer("axis"),
        dtype=on.dtype,
    )


@register("Eye", "opset9")
def _eye(
    op: Operation,
    rows: tf.Tensor,
    columns: tf.Tensor,
    diagonal: tf.Tensor,
    batch_shape: tf.Tensor | None = None,
) -> tf.Tensor:
    dtype = op.dtype("output_type")
    rows, columns, diagonal = (
        tf.cast(tf.reshape(value, []), tf.int64) for value in (rows, columns, diagonal)
    )
    at = tf.range(rows)[:, tf.newaxis] + diagonal
    eye = tf.cast(tf.equal(at, tf.range(columns)[tf.newaxis]), dtype)
    if batch_shape is None:
        return eye
    return tf.broadcast_to(eye, tf.concat([tf.cast(batch_shape, tf.int64), [rows, columns]], 0))


@register("NonZero", "opset3")
def _non_zero(op: Operation, x: tf.Tensor) -> tf.Tensor:
    where = tf.where(x if x.dtype.is_bool else tf.not_equal(x, tf.zeros([], x.dtype)))
    return tf.cast(tf.transpose(where), op.dtype("output_type", tf.int64))


@register("CumSum", "opset3")
def _cum_sum(op: Operation, x: tf.Tensor, axis: tf.Tensor) -> tf.Tensor:
    axis = axis_of(op, 1, rank_of(op, x))
    return tf.cumsum(x, axis, op.flag("exclusive", False), op.flag("reverse", False))


@register("TopK", ["opset1", "opset3", "opset11"])
def _top_k(op: Operation, x: tf.Tensor, k: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    rank = rank_of(op, x)
    axis = op.axis(op.integer("axis"), rank)
    order = [i for i in range(rank) if i != axis] + [axis]
    moved = tf.transpose(x, order)
    is_min = op.text("mode", among=("max", "min")) == "min"
    k = tf.cast(tf.reshape(k, []), tf.int32)
    # Of equal numbers the first one comes first, for max and for min.
    if is_min:
        values, indices = tf.math.top_k(_backwards(moved), k)
        values = _backwards(values)
    else:
        values, indices = tf.math.top_k(moved, k)
    if op.text("sort", among=("none", "index", "value")) == "index":
        indices = tf.sort(indices, axis=-1)
        values = tf.gather(moved, indices, batch_dims=rank - 1)
    back = np.argsort(order)
    dtype = op.dtype("index_element_type", tf.int32)
    return tf.transpose(values, back), tf.cast(tf.transpose(indices, back), dtype)


def _backwards(x: tf.Tensor) -> tf.Tensor:
    """Numbers in the opposite order. (The least integer has no negative.)"""
    return tf.bitwise.invert(x) if x.dtype.is_integer else -x


@register("Unique", "opset10")
def _unique(
    op: Operation, x: tf.Tensor, axis: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    types = op.dtype("index_element_type", tf.int64), op.dtype("count_element_type", tf.int64)
    if axis is None:
        x, axis = tf.reshape(x, [-1]), 0
    else:
        (axis,) = static_axes(op, 1, rank_of(op, x))
    values, inverse, counts = tf.raw_ops.UniqueWithCountsV2(x=x, axis=[axis], out_idx=tf.int64)
    number = tf.size(counts)
    positions = tf.range(tf.size(inverse, tf.int64))
    first = tf.math.unsorted_segment_min(positions, inverse, number)
    if op.flag("sorted", True):
        order = _order_of_slices(values, axis)
        rank_in_order = tf.math.invert_permutation(order)
        values, first, counts = (
            tf.gather(values, order, axis=axis),
            tf.gather(first, order),
            tf.gather(counts, order),
        )
        inverse = tf.gather(tf.cast(rank_in_order, tf.int64), inverse)
    return values, tf.cast(first, types[0]), tf.cast(inverse, types[0]), tf.cast(counts, types[1])


def _order_of_slices(x: tf.Tensor, axis: int) -> tf.Tensor:
    """The order of positions along an axis that sorts its slices lexicographically."""
    rank = x.shape.rank
    order = [axis] + [i for i in range(rank) if i != axis]
    rows = tf.reshape(tf.transpose(x, order), [tf.shape(x)[axis], -1])

    def by_column(i: int | tf.Tensor, positions: tf.Tensor) -> tuple[int | tf.Tensor, tf.Tensor]:
        column = tf.gather(rows[:, width - 1 - i], positions)
        return i + 1, tf.gather(positions, tf.argsort(column, stable=True))

    width = tf.shape(rows)[1]
    start = tf.range(tf.shape(rows)[0])
    return tf.while_loop(lambda i, _: i < width, by_column, (0, start))[1]


@register("SparseFillEmptyRows", "opset16")
def _sparse_fill_empty_rows(
    op: Operation, values: tf.Tensor, shape: tf.Tensor, indices: tf.Tensor, default: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    rows = tf.SparseTensor(tf.cast(indices, tf.int64), values, tf.cast(shape, tf.int64))
    filled, is_empty = tf.sparse.fill_empty_rows(tf.sparse.reorder(rows), tf.reshape(default, []))
    return tf.cast(filled.indices, indices.dtype), filled.values, is_empty
