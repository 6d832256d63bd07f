"""Operations that read and assign variables."""

from typing import NoReturn

import numpy as np
import tensorflow as tf

from tf_ti.openvino.writer.conversion import Node, Value, writes
from tf_ti.openvino.writer.network import Operand, Port


def _dtype(op: Node) -> tf.DType:
    return tf.as_dtype(op.op.get_attr("dtype"))


@writes("ReadVariableOp")
def _read(op: Node, handle: tf.Tensor) -> Operand:
    return op.variable(handle, _dtype(op))


@writes("VariableShape")
def _shape(op: Node, handle: tf.Tensor) -> NoReturn:
    raise op.error("the shape of this variable is not known before")


@writes("ResourceGather")
def _gather(op: Node, handle: tf.Tensor, indices: Operand) -> Port:
    table, batch_dims = op.variable(handle, _dtype(op)), op.attr("batch_dims")
    axis = np.asarray(batch_dims, np.int64)
    return op.add("Gather", table, indices, axis, version="opset8", batch_dims=batch_dims)


@writes("AssignVariableOp")
def _assign(op: Node, handle: tf.Tensor, value: Value) -> list[Port]:
    op.assign(handle, _dtype(op), value)
    return []


@writes("AssignAddVariableOp", "AssignSubVariableOp")
def _assign_sum(op: Node, handle: tf.Tensor, value: Operand) -> list[Port]:
    before = op.variable(handle, _dtype(op))
    layer = "Add" if op.op.type == "AssignAddVariableOp" else "Subtract"
    op.assign(handle, _dtype(op), op.add(layer, before, value))
    return []
