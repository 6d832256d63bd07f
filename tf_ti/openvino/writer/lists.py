"""TensorLists, of which TensorArrays consist: their elements stacked in one tensor."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti.openvino.writer.conversion import Node, writes
from tf_ti.openvino.writer.network import Operand, Port, element_type_of
from tf_ti.openvino.writer.shapes import shape_as, take

_FIRST = np.asarray(0)


@dataclasses.dataclass(frozen=True)
class Elements:
    """The value of a TensorList.

    Attributes:
        dtype: that of the elements.
        shape: the shape of an element, as far as it is known.
        stacked: the elements, [count, ...], or None if there are only zeros so far.
        count: the number of elements, a scalar, where `stacked` is None.
    """

    dtype: tf.DType
    shape: tf.TensorShape
    stacked: Any = None
    count: Any = None

    def of_stacked(self, stacked: Any) -> "Elements":
        return dataclasses.replace(self, stacked=stacked, count=None)

    def inside(self, feed: Callable[[Port], Port]) -> "Elements":
        """The list in a body that is fed what it is made of."""
        parts = self.stacked, self.count
        stacked, count = (feed(part) if isinstance(part, Port) else part for part in parts)
        return dataclasses.replace(self, stacked=stacked, count=count)

    def zeros(self, op: Node, extents: Any = None) -> Any:
        """Elements that are zeros; `extents` is the shape of one. Otherwise unknown ones are 1."""
        if extents is None:
            if self.shape.rank is None:
                raise op.error("the element_shape of its TensorArray must be given")
            extents = np.asarray([n or 1 for n in self.shape], np.int64)
        count = _as_int64(op, self.count)
        count = op.add("Reshape", count, np.asarray([1]), special_zero=False)
        shape = op.add("Concat", count, extents, axis=0)
        zero = np.zeros([], self.dtype.as_numpy_dtype)
        return op.add("Broadcast", zero, shape, version="opset3", mode="numpy")

    def values(self, op: Node) -> Any:
        return self.zeros(op) if self.stacked is None else self.stacked


def _as_int64(op: Node, x: Operand) -> Operand:
    if isinstance(x, np.ndarray):
        return x.astype(np.int64)
    return op.add("Convert", x, outputs=[element_type_of(tf.int64)], destination_type="i64")


@writes("EmptyTensorList", "TensorListReserve")
def _zeros(op: Node, element_shape: Operand, count: Operand) -> Elements:
    shape = tf.TensorShape(None)
    known = tf.get_static_value(op.op.inputs[0], partial=True)
    if known is not None and np.ndim(known):
        shape = tf.TensorShape([None if n is None or n < 0 else int(n) for n in known])
    if op.op.type == "EmptyTensorList":
        count = np.asarray(0)  # and not the most that there may be
    return Elements(op.op.get_attr("element_dtype"), shape, count=count)


@writes("TensorListFromTensor")
def _from_tensor(op: Node, stacked: Operand, element_shape: Operand) -> Elements:
    shape = op.shape(0)[1:]
    return Elements(op.op.get_attr("element_dtype"), shape, stacked)


@writes("TensorListStack")
def _stack(op: Node, elements: Elements, element_shape: Operand) -> Operand:
    return elements.values(op)


@writes("TensorListGetItem")
def _get(op: Node, elements: Elements, index: Operand, element_shape: Operand) -> Port:
    return take(op, elements.values(op), index, _FIRST)


@writes("TensorListGather")
def _gather(op: Node, elements: Elements, indices: Operand, element_shape: Operand) -> Port:
    return take(op, elements.values(op), indices, _FIRST)


@writes("TensorListSetItem")
def _set(op: Node, elements: Elements, index: Operand, item: Operand) -> Elements:
    stacked = elements.stacked
    if stacked is None:
        stacked = elements.zeros(op, shape_as(op, item))
    elif not elements.shape.is_fully_defined():  # zeros may have an extent of 1 for an unknown one
        count = op.add("Unsqueeze", _count(op, stacked, tf.int64), np.asarray([0]))
        shape = op.add("Concat", count, shape_as(op, item), axis=0)
        stacked = op.add("Broadcast", stacked, shape, version="opset3", mode="numpy")
    if op.attr("resize_if_index_out_of_bounds"):
        end = op.add("Add", _as_int64(op, index), np.asarray(1))
        stacked = at_least(op, stacked, end)
    index = op.add("Reshape", index, np.asarray([1]), special_zero=False)
    rows = op.add("Unsqueeze", item, np.asarray([0]))
    updated = op.add("ScatterUpdate", stacked, index, rows, _FIRST, version="opset3")
    return elements.of_stacked(updated)


@writes("TensorListPushBack")
def _push_back(op: Node, elements: Elements, item: Operand) -> Elements:
    row = op.add("Unsqueeze", item, np.asarray([0]))
    if elements.stacked is None:
        if not isinstance(elements.count, np.ndarray) or elements.count:
            row = op.add("Concat", elements.zeros(op, shape_as(op, item)), row, axis=0)
        return elements.of_stacked(row)
    return elements.of_stacked(op.add("Concat", elements.stacked, row, axis=0))


@writes("TfTi>ListIndex")
def _checked(op: Node, index: Operand, size: Operand) -> Operand:
    return index


@writes("TensorListLength")
def _length(op: Node, elements: Elements) -> Operand:
    return elements.count if elements.stacked is None else _count(op, elements.stacked, tf.int32)


def _count(op: Node, stacked: Operand, dtype: tf.DType) -> Port:
    return take(op, shape_as(op, stacked, dtype), _FIRST, _FIRST)


def at_least(op: Node, stacked: Port, count: Operand) -> Port:
    """The elements, with zeros after them, so that there are at least so many."""
    shape = shape_as(op, stacked)
    missing = op.add("Subtract", _as_int64(op, count), take(op, shape, _FIRST, _FIRST))
    missing = op.add("Unsqueeze", op.add("Maximum", missing, _FIRST), np.asarray([0]))
    shape = op.add("ScatterUpdate", shape, np.asarray([0]), missing, _FIRST, version="opset3")
    zero = np.zeros([], stacked.element_type.dtype)
    zeros = op.add("Broadcast", zero, shape, version="opset3", mode="numpy")
    return op.add("Concat", stacked, zeros, axis=0)


def item_written(result: tf.Tensor, list_: tf.Tensor) -> tf.Operation | None:
    """The operation that makes a list of another one by setting one item, if nothing else does."""
    op = result.op
    while op.type == "Identity":
        op = op.inputs[0].op
    is_written = op.type == "TensorListSetItem" and op.inputs[0] is list_
    return op if is_written and len(list_.consumers()) == 1 else None
