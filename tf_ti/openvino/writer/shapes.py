"""Operations that move numbers, or return shapes."""

from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti.openvino.writer import layout
from tf_ti.openvino.writer.conversion import Node, writes
from tf_ti.openvino.writer.network import Operand, Port, element_type_of

_LAST = np.iinfo(np.int64).max


def _integers(value: Any) -> np.ndarray:
    return np.asarray(value, np.int64)


def _axis(op: Node, position: int, axis: int, more: int = 0) -> int:
    """An axis counted from 0, of a tensor with `more` dimensions than the input."""
    return axis % (op.rank(position) + more) if axis < 0 else axis


def shape_as(op: Node, x: Operand, dtype: tf.DType = tf.int64) -> Port:
    """Adds a layer that returns the extents of a tensor."""
    kind = element_type_of(dtype)
    return op.add("ShapeOf", x, version="opset3", outputs=[kind], output_type=kind.name)


@writes("Shape")
def _shape(op: Node, x: Operand) -> Port:
    return shape_as(op, x, op.op.outputs[0].dtype)


@writes("Size")
def _size(op: Node, x: Operand) -> Port:
    return op.add("ReduceProd", shape_as(op, x, op.op.outputs[0].dtype), _integers([0]))


@writes("Rank")
def _rank(op: Node, x: Operand) -> np.ndarray:
    return np.asarray(op.rank(0), np.int32)


@writes("Reshape")
def _reshape(op: Node, x: Operand, shape: Operand) -> Operand:
    known = op.known(1)
    if isinstance(x, np.ndarray) and known is not None:
        if x.size or np.all(known) or -1 not in known:  # or NumPy cannot tell the extent
            return x.reshape(known)
    if op.shape(1).num_elements() == 0:  # OpenVINO may die of an empty pattern
        x = op.add("Reshape", x, _integers([1]), special_zero=False)
        return op.add("Squeeze", x, _integers([0]))
    return op.add("Reshape", x, shape, special_zero=False)


@writes("ExpandDims")
def _expand_dims(op: Node, x: Operand, axis: Operand) -> Operand:
    axis = _integers(op.static(1)).reshape(-1)
    return np.expand_dims(x, *axis) if isinstance(x, np.ndarray) else op.add("Unsqueeze", x, axis)


@writes("Squeeze")
def _squeeze(op: Node, x: Operand) -> Operand:
    axes = op.attr("squeeze_dims")
    if not axes:
        if not op.shape(0).is_fully_defined():
            raise op.error("its axes must be given, or the shape of its input be known")
        axes = [i for i, extent in enumerate(op.shape(0)) if extent == 1]
    return op.add("Squeeze", x, _integers(axes)) if axes else x


@writes("Transpose", "ConjugateTranspose")
def _transpose(op: Node, x: Operand, order: Operand) -> Operand:
    known = op.known(1)
    if known is None:
        count = np.asarray(op.rank(0), op.op.inputs[1].dtype.as_numpy_dtype)
        return op.add("Transpose", x, op.add("FloorMod", order, count))
    known = np.asarray(known) % max(len(known), 1)
    if isinstance(x, np.ndarray):
        return x.transpose(known)
    moved = layout.transpose(op.network, x, known)
    return op.add("Transpose", x, known) if moved is None else moved


@writes("ConcatV2")
def _concat(op: Node, *inputs: Operand) -> Port:
    *parts, _ = inputs
    axis = _axis(op, 0, int(op.static(len(parts))))
    return op.add("Concat", *parts, axis=axis)


@writes("Pack")
def _pack(op: Node, *inputs: Operand) -> Port:
    axis = _axis(op, 0, op.attr("axis"), more=1)
    parts = [op.add("Unsqueeze", x, _integers([axis])) for x in inputs]
    return op.add("Concat", *parts, axis=axis)


@writes("Unpack")
def _unpack(op: Node, x: Operand) -> list[Port | None]:
    axis = _integers(op.attr("axis"))
    return [
        take(op, x, _integers(k), axis) if op.is_used(k) else None
        for k in range(len(op.op.outputs))
    ]


def take(op: Node, x: Operand, index: Operand, axis: Operand) -> Port:
    """Adds a layer that takes the element at an index of an axis, and drops the axis."""
    return op.add("Gather", x, index, axis, version="opset8", batch_dims=0)


@writes("Split")
def _split(op: Node, axis: Operand, x: Operand) -> list[Port]:
    count = len(op.op.outputs)
    kinds = [element_type_of(op.op.outputs[0].dtype)] * count
    layer = op.layer("Split", x, _integers(op.static(0)), outputs=kinds, num_splits=count)
    return layer.outputs


@writes("SplitV")
def _split_v(op: Node, x: Operand, lengths: Operand, axis: Operand) -> list[Port]:
    kinds = [element_type_of(op.op.outputs[0].dtype)] * len(op.op.outputs)
    return op.layer("VariadicSplit", x, _integers(op.static(2)), lengths, outputs=kinds).outputs


@writes("GatherV2")
def _gather(op: Node, x: Operand, indices: Operand, axis: Operand) -> Port:
    batch_dims = op.attr("batch_dims")
    return op.add("Gather", x, indices, axis, version="opset8", batch_dims=batch_dims)


@writes("GatherNd")
def _gather_nd(op: Node, x: Operand, indices: Operand) -> Port:
    shape = op.shape(1)
    if shape.rank is None or shape[-1] is None:
        raise op.error("the extent of the last axis of its indices must be known")
    if shape[-1] == 0:  # all of x, at all places
        places = op.add(
            "Slice", shape_as(op, indices), *map(_integers, ([0], [-1], [1], [0])), version="opset8"
        )
        return broadcast(op, x, op.add("Concat", places, shape_as(op, x), axis=0))
    return op.add("GatherND", x, indices, version="opset8", batch_dims=0)


@writes("Tile")
def _tile(op: Node, x: Operand, multiples: Operand) -> Port:
    return op.add("Tile", x, multiples)


@writes("BroadcastTo")
def _broadcast_to(op: Node, x: Operand, shape: Operand) -> Port:
    return broadcast(op, x, shape)


@writes("BroadcastArgs")
def _broadcast_args(op: Node, *shapes: Operand) -> Port:
    """Where one of the shapes has the extent 1, that of the other.

    Where they do not go together it is -1, which is an error in who broadcasts to it.
    """
    ranks = [op.shape(k)[0] for k in range(2)]
    if None in ranks:
        raise op.error("how many dimensions its shapes have must be known")
    a, b = (
        op.add("Concat", op.like([1] * (max(ranks) - rank)), shape, axis=0)
        if rank < max(ranks)
        else shape
        for rank, shape in zip(ranks, shapes)
    )
    kinds, boolean = [element_type_of(op.op.outputs[0].dtype)], [element_type_of(tf.bool)]
    is_1, is_other_1, are_equal = (
        op.add("Equal", x, y, outputs=boolean)
        for x, y in ((a, op.like(1)), (b, op.like(1)), (a, b))
    )
    fits = op.add("LogicalOr", is_other_1, are_equal, outputs=boolean)
    return op.add(
        "Select", is_1, b, op.add("Select", fits, a, op.like(-1), outputs=kinds), outputs=kinds
    )


@writes("Empty")
def _empty(op: Node, shape: Operand) -> Port:
    return broadcast(op, op.like(0), shape)


@writes("Fill")
def _fill(op: Node, shape: Operand, value: Operand) -> Port:
    return broadcast(op, value, shape)


def broadcast(op: Node, x: Operand, shape: Operand) -> Port:
    return op.add("Broadcast", x, shape, version="opset3", mode="numpy")


@writes("ZerosLike", "OnesLike")
def _like(op: Node, x: Operand) -> Port:
    value = op.like(op.op.type == "OnesLike")
    shape = op.shape(0)
    if shape.is_fully_defined():
        return broadcast(op, value, _integers(shape.as_list()))
    return broadcast(op, value, shape_as(op, x))


@writes("Range")
def _range(op: Node, start: Operand, limit: Operand, delta: Operand) -> Port:
    kind = element_type_of(op.op.outputs[0].dtype)
    return op.add(
        "Range", start, limit, delta, version="opset4", outputs=[kind], output_type=kind.name
    )


@writes("OneHot")
def _one_hot(op: Node, indices: Operand, depth: Operand, on: Operand, off: Operand) -> Port:
    if op.op.inputs[0].dtype not in (tf.int32, tf.int64):
        kind = element_type_of(tf.int64)
        indices = op.add("Convert", indices, outputs=[kind], destination_type="i64")
    kinds = [element_type_of(op.op.outputs[0].dtype)]
    return op.add("OneHot", indices, depth, on, off, outputs=kinds, axis=op.attr("axis"))


@writes("Pad", "PadV2")
def _pad(op: Node, x: Operand, paddings: Operand, value: Operand | None = None) -> Port:
    before, after = columns(op, 1)
    value = op.like(0) if value is None else value
    return op.add("Pad", x, before, after, value, pad_mode="constant")


@writes("MirrorPad")
def _mirror_pad(op: Node, x: Operand, paddings: Operand) -> Port:
    before, after = columns(op, 1)
    return op.add("Pad", x, before, after, pad_mode=op.attr("mode").lower())


def columns(op: Node, position: int, dtype: Any = np.int64) -> list[Operand]:
    """The first and the second number of each row of an input: what is before and after axes."""
    known = op.known(position)
    if known is not None:
        return list(np.asarray(known, dtype).T)
    return [take(op, op.inputs[position], _integers(k), _integers(1)) for k in range(2)]


@writes("ReverseV2")
def _reverse(op: Node, x: Operand, axes: Operand) -> Operand:
    numbers = [_axis(op, 0, int(axis)) for axis in op.static(1).reshape(-1)]
    return op.add("Reverse", x, _integers(numbers), mode="index") if numbers else x


@writes("Roll")
def _roll(op: Node, x: Operand, shift: Operand, axes: Operand) -> Port:
    return op.add("Roll", x, shift, axes, version="opset7")


@writes("ReverseSequence")
def _reverse_sequence(op: Node, x: Operand, lengths: Operand) -> Port:
    axes = {"seq_axis": op.attr("seq_dim"), "batch_axis": op.attr("batch_dim")}
    return op.add("ReverseSequence", x, lengths, **axes)


@writes("Where")
def _where(op: Node, x: Operand) -> Port:
    kind = element_type_of(tf.int64)
    found = op.add("NonZero", x, version="opset3", outputs=[kind], output_type="i64")
    return op.add("Transpose", found, _integers([1, 0]))


@writes("Slice")
def _slice(op: Node, x: Operand, begin: Operand, size: Operand) -> Port:
    axes = _integers(range(op.rank(0)))
    known, count = op.known(1), op.known(2)
    first: Operand = begin
    stop: Operand
    if known is not None and count is not None:
        first = _integers(known)
        stop = np.where(np.asarray(count) < 0, _LAST, first + count)
    else:
        is_open = op.add(
            "Less", size, np.zeros([], op.op.inputs[2].dtype.as_numpy_dtype),
            outputs=[element_type_of(tf.bool)],
        )  # fmt: skip
        # Not the largest integer: OpenVINO's CPU plugin computes Select in single precision.
        last = shape_as(op, x, op.op.inputs[1].dtype)
        kinds = [element_type_of(op.op.inputs[1].dtype)]
        stop = op.add("Select", is_open, last, op.add("Add", begin, size), outputs=kinds)
    return op.add("Slice", x, first, stop, np.ones(len(axes), np.int64), axes, version="opset8")


@writes("StridedSlice")
def _strided_slice(op: Node, x: Operand, begin: Operand, end: Operand, strides: Operand) -> Operand:
    """Writes a slice, and then its new axes: OpenVINO's CPU plugin gets both at once wrong."""
    count = op.shape(1).as_list()[0]
    if count is None:
        raise op.error("the number of slices must be known")
    masks = {
        name: [op.attr(name) >> i & 1 for i in range(count)]
        for name in ("begin_mask", "end_mask", "new_axis_mask", "shrink_axis_mask", "ellipsis_mask")
    }
    new = _new_axes(op, masks)
    if new:
        kept = [i for i in range(count) if not masks["new_axis_mask"][i]]
        masks = {name: [mask[i] for i in kept] for name, mask in masks.items()}
        begin, end, strides = (
            take(op, part, _integers(kept), _integers(0))
            if isinstance(part, Port)
            else np.asarray(part)[kept]
            for part in (begin, end, strides)
        )
    is_whole = all(
        masks["ellipsis_mask"][i] or (masks["begin_mask"][i] and masks["end_mask"][i])
        for i in range(len(masks["begin_mask"]))
    )
    has_all = isinstance(strides, np.ndarray) and np.all(strides == 1)
    rows = _single_rows(op, masks) if has_all and isinstance(begin, Port) else None
    if rows is not None:  # at some of which OpenVINO's CPU plugin fails
        for k, axis in rows:
            index = take(op, begin, _integers(k), _integers(0))
            x = take(op, x, index, _integers(axis))
    elif not (is_whole and has_all):
        x = op.add("StridedSlice", x, begin, end, strides, **masks)
    return op.add("Unsqueeze", x, _integers(new)) if new else x


def _single_rows(op: Node, masks: dict[str, list[int]]) -> list[tuple[int, int]] | None:
    """The positions of indices in `begin`, and their axes, the last first, if all else is whole."""
    count = len(masks["shrink_axis_mask"])
    rows, axis = [], 0
    for k in range(count):
        if masks["ellipsis_mask"][k]:
            axis += op.rank(0) - (count - 1)
            continue
        if masks["shrink_axis_mask"][k]:
            rows.append((k, axis))
        elif not (masks["begin_mask"][k] and masks["end_mask"][k]):
            return None
        axis += 1
    return rows[::-1]


def _new_axes(op: Node, masks: dict[str, list[int]]) -> list[int]:
    """The positions of the new axes in the result."""
    if not any(masks["new_axis_mask"]):
        return []
    count = len(masks["new_axis_mask"])
    ellipsis = masks["ellipsis_mask"].index(1) if any(masks["ellipsis_mask"]) else count
    named = sum(i != ellipsis and not masks["new_axis_mask"][i] for i in range(count))
    axes, axis = [], 0
    for i in range(count):
        if i == ellipsis:
            axis += op.rank(0) - named
        elif masks["new_axis_mask"][i]:
            axes.append(axis)
            axis += 1
        else:
            axis += not masks["shrink_axis_mask"][i]
    return axes
