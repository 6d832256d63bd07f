"""Matrix products, reductions, sums along axes, largest and smallest numbers."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

import tf_ti
from tf_ti.openvino.writer.conversion import Node, composes, writes
from tf_ti.openvino.writer.elementwise import computed, converted
from tf_ti.openvino.writer.network import Operand, Port, element_type_of
from tf_ti.openvino.writer.shapes import shape_as, take

_COMPUTING = frozenset(["Mean", "Prod", "Sum"])
_REDUCTIONS = {
    "All": "ReduceLogicalAnd",
    "Any": "ReduceLogicalOr",
    "EuclideanNorm": "ReduceL2",
    "Max": "ReduceMax",
    "Mean": "ReduceMean",
    "Min": "ReduceMin",
    "Prod": "ReduceProd",
    "Sum": "ReduceSum",
}


@writes(*_REDUCTIONS)
def _reduce(op: Node, x: Operand, axes: Operand) -> Operand:
    known = op.known(1)
    if known is not None:
        axes = np.asarray(known, np.int64).reshape(-1)
        if not axes.size:
            return op.add("Abs", x) if op.op.type == "EuclideanNorm" else x
    type, fields = _REDUCTIONS[op.op.type], {"keep_dims": op.attr("keep_dims")}
    if op.op.type == "EuclideanNorm":
        return op.add(type, x, axes, version="opset4", **fields)
    if op.op.type not in _COMPUTING:
        return op.add(type, x, axes, **fields)
    return computed(op, type, x, rest=[axes], **fields)


@writes("MatMul")
def _matmul(op: Node, x: Operand, y: Operand) -> Port:
    sides = {name: op.attr(name) for name in ("transpose_a", "transpose_b")}
    return op.add("MatMul", x, y, **sides)


@writes("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _batch_matmul(op: Node, x: Operand, y: Operand) -> Port:
    x, y = (
        converted(op, factor, tensor.dtype, op.op.outputs[0].dtype)
        for factor, tensor in zip((x, y), op.op.inputs)
    )
    return op.add("MatMul", x, y, transpose_a=op.attr("adj_x"), transpose_b=op.attr("adj_y"))


@writes("Einsum")
def _einsum(op: Node, *inputs: Operand) -> Port:
    return op.add("Einsum", *inputs, version="opset7", equation=op.attr("equation"))


@writes("Softmax")
def _softmax(op: Node, x: Operand) -> Port:
    return op.add("Softmax", x, version="opset8", axis=-1)


@writes("LogSoftmax")
def _log_softmax(op: Node, x: Operand) -> Port:
    return op.add("LogSoftmax", x, version="opset5", axis=-1)


@writes("Cumsum")
def _cumsum(op: Node, x: Operand, axis: Operand) -> Port:
    flags = {name: op.attr(name) for name in ("exclusive", "reverse")}
    return op.add("CumSum", x, axis, version="opset3", **flags)


@composes("Cumprod")
def _cumprod(op: Node, x: tf.Tensor, axis: tf.Tensor) -> tf.Tensor:
    axis = tf.get_static_value(axis)
    if axis is None or x.shape.rank is None:
        raise op.error("its axis must be a constant, and the rank of its input known")
    is_exclusive = op.attr("exclusive")

    def step(product: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        total = product * part
        return total, product if is_exclusive else total

    axis, reverse = int(axis) % x.shape.rank, op.attr("reverse")
    start = tf.ones_like(tf.reduce_sum(x, axis))
    return tf_ti.scan(step, start, x, axis=axis, reverse=reverse)[1]


def _top(op: Node, x: Operand, count: Operand, axis: int, mode: str, position: int) -> list[Port]:
    kinds = [element_type_of(op.op.inputs[0].dtype), element_type_of(op.op.outputs[position].dtype)]
    return op.layer(
        "TopK",
        x,
        count,
        version="opset11",
        outputs=kinds,
        axis=axis,
        mode=mode,
        sort="value",
        index_element_type=kinds[1].name,
        stable=True,
    ).outputs


@writes("ArgMax", "ArgMin")
def _arg_max(op: Node, x: Operand, _: Operand) -> Port:
    axis, dtype = int(op.static(1)), op.op.outputs[0].dtype
    if dtype not in (tf.int32, tf.int64):
        raise op.error(f"indices of {dtype.name} are not supported")
    if op.op.inputs[0].dtype.is_bool:
        raise op.error("OpenVINO has no order of booleans")
    mode = op.op.type.removeprefix("Arg").lower()
    index = _top(op, x, np.asarray(1, np.int64), axis, mode, 0)[1]
    return op.add("Squeeze", index, np.asarray([axis]), outputs=[element_type_of(dtype)])


@writes("TopKV2")
def _top_k(op: Node, x: Operand, count: Operand) -> list[Port]:
    if op.op.outputs[1].dtype not in (tf.int32, tf.int64):
        raise op.error(f"indices of {op.op.outputs[1].dtype.name} are not supported")
    known = op.known(1)
    if known is not None and known == 0:  # OpenVINO's TopK has one at least
        first, one = np.asarray([0]), np.asarray([1])
        values = op.add("Slice", x, first, first, one, np.asarray([-1]), version="opset8")
        kind = element_type_of(op.op.outputs[1].dtype)
        return [values, op.add("Convert", values, outputs=[kind], destination_type=kind.name)]
    return _top(op, x, count, -1, "max", 1)


_SEGMENTS: dict[str, tuple[str, Callable[[tf.DType], float]]] = {
    "UnsortedSegmentMax": ("max", lambda dtype: dtype.min),
    "UnsortedSegmentMin": ("min", lambda dtype: dtype.max),
    "UnsortedSegmentProd": ("prod", lambda dtype: 1),
    "UnsortedSegmentSum": ("sum", lambda dtype: 0),
}


@writes(*_SEGMENTS)
def _segments(op: Node, x: Operand, numbers: Operand, count: Operand) -> Port:
    reduction, neutral = _SEGMENTS[op.op.type]
    first, one = np.asarray([0]), np.asarray([1])
    rank, last = op.rank(1), np.asarray([np.iinfo(np.int64).max])
    row = op.add("Slice", shape_as(op, x), np.asarray([rank]), last, one, first, version="opset8")
    if rank != 1:
        flat = op.add("Concat", np.asarray([-1]), row, axis=0)
        x = op.add("Reshape", x, flat, special_zero=False)
        numbers = op.add("Reshape", numbers, np.asarray([-1]), special_zero=False)
    integer = element_type_of(tf.int64)
    count, numbers = (
        op.add("Convert", value, outputs=[integer], destination_type="i64")
        for value in (count, numbers)
    )
    # What is in no segment, of numbers below 0, is in one more.
    is_none = op.add("Less", numbers, np.asarray(0), outputs=[element_type_of(tf.bool)])
    numbers = op.add("Select", is_none, count, numbers, outputs=[integer])
    extent = op.add("Unsqueeze", op.add("Add", count, np.asarray(1)), first)
    shape = op.add("Concat", extent, row, axis=0)
    start = op.add(
        "Broadcast", op.like(neutral(op.op.outputs[0].dtype)), shape, version="opset3", mode="numpy"
    )
    places = op.add("Unsqueeze", numbers, one)
    total = op.add("ScatterNDUpdate", start, places, x, version="opset15", reduction=reduction)
    return op.add("Slice", total, first, np.asarray([-1]), one, first, version="opset8")


@writes("LowerBound", "UpperBound")
def _bound(op: Node, sequence: Operand, values: Operand) -> Port:
    kind = element_type_of(op.op.outputs[0].dtype)
    found = op.add(
        "SearchSorted",
        sequence,
        values,
        version="opset15",
        outputs=[kind],
        right_mode=op.op.type == "UpperBound",
        output_type=kind.name,
    )
    if op.shape(0).rank is not None and op.shape(0)[-1]:
        return found
    # OpenVINO's CPU plugin gives undefined places where there are no numbers to search.
    extents = shape_as(op, sequence, op.op.outputs[0].dtype)
    count = take(op, extents, np.asarray(-1), np.asarray(0))
    return op.add("Maximum", op.add("Minimum", found, count), op.like(0))
