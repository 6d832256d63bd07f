"""Operations that read and assign variables."""

import numpy as np
import tensorflow as tf

from tf_ti.openvino.writer.conversion import Node, writes


def _dtype(op: Node) -> tf.DType:
    return tf.as_dtype(op.op.get_attr("dtype"))


@writes("ReadVariableOp")
def _read(op, handle):
    return op.variable(handle, _dtype(op))


@writes("VariableShape")
def _shape(op, handle):
    raise op.error("the shape of this variable is not known before")


@writes("ResourceGather")
def _gather(op, handle, indices):
    table, batch_dims = op.variable(handle, _dtype(op)), op.attr("batch_dims")
    axis = np.asarray(batch_dims, np.int64)
    return op.add("Gather", table, indices, axis, version="opset8", batch_dims=batch_dims)


@writes("AssignVariableOp")
def _assign(op, handle, value):
    op.assign(handle, _dtype(op), value)
    return []


@writes("AssignAddVariableOp", "AssignSubVariableOp")
def _assign_sum(op, handle, value):
    before = op.variable(handle, _dtype(op))
    layer = "Add" if op.op.type == "AssignAddVariableOp" else "Subtract"
    op.assign(handle, _dtype(op), op.add(layer, before, value))
    return []
