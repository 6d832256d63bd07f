"""Numbers that are written to places of a tensor."""

import numpy as np
import tensorflow as tf

from tf_ti.openvino.writer.conversion import Node, composes, writes
from tf_ti.openvino.writer.network import Operand, Port, element_type_of
from tf_ti.openvino.writer.shapes import broadcast, shape_as

_REDUCTIONS = {
    "TensorScatterAdd": "sum",
    "TensorScatterMax": "max",
    "TensorScatterMin": "min",
    "TensorScatterSub": "sub",
    "TensorScatterUpdate": "none",
}


def _scattered(op: Node, x: Operand, indices: Operand, updates: Operand, reduction: str) -> Port:
    return op.add("ScatterNDUpdate", x, indices, updates, version="opset15", reduction=reduction)


@writes(*_REDUCTIONS)
def _scatter_into(op: Node, x: Operand, indices: Operand, updates: Operand) -> Port:
    if op.op.inputs[1].dtype not in (tf.int32, tf.int64):
        integer = element_type_of(tf.int64)
        indices = op.add("Convert", indices, outputs=[integer], destination_type=integer.name)
    return _scattered(op, x, indices, updates, _REDUCTIONS[op.op.type])


@composes("ScatterNd")
def _scatter(op: Node, indices: tf.Tensor, updates: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    if updates.dtype.is_bool:
        return tf.scatter_nd(indices, tf.cast(updates, tf.int32), shape) > 0
    return tf.tensor_scatter_nd_add(tf.zeros(shape, updates.dtype), indices, updates)


@writes("SparseToDense")
def _sparse_to_dense(
    op: Node, indices: Operand, shape: Operand, values: Operand, default: Operand
) -> Port:
    rank = op.rank(0)
    if rank < 2:
        indices = op.add("Reshape", indices, np.asarray([-1, 1]), special_zero=False)
    if op.rank(2) == 0:
        count = op.add(
            "Gather",
            shape_as(op, indices),
            np.asarray([0]),
            np.asarray(0),
            version="opset8",
            batch_dims=0,
        )
        values = broadcast(op, values, count)
    return _scattered(op, broadcast(op, default, shape), indices, values, "none")


@composes("InplaceUpdate", "InplaceAdd", "InplaceSub")
def _update_rows(op: Node, x: tf.Tensor, rows: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    name = op.op.type.removeprefix("Inplace").lower()
    rows %= tf.shape(x)[0]  # as TensorFlow's kernels count, from either end
    return getattr(tf, f"tensor_scatter_nd_{name}")(x, rows[:, tf.newaxis], values)


@composes("XlaDynamicUpdateSlice")
def _update_slice(op: Node, x: tf.Tensor, update: tf.Tensor, begin: tf.Tensor) -> tf.Tensor:
    """Each axis of the update is spread over the axis of the tensor, and masked there."""
    if x.shape.rank is None:
        raise op.error("the rank of input 0 must be known")
    is_inside = tf.constant(True)
    for axis in range(x.shape.rank):
        extent, count = tf.shape(x)[axis], tf.shape(update)[axis]
        first = tf.clip_by_value(tf.cast(begin[axis], tf.int32), 0, extent - count)
        place = tf.range(extent) - first
        is_in_axis = (place >= 0) & (place < count)
        update = tf.gather(update, tf.clip_by_value(place, 0, count - 1), axis=axis)
        behind = [1] * (x.shape.rank - axis - 1)
        is_inside &= tf.reshape(is_in_axis, [-1, *behind])
    return tf.where(is_inside, update, x)


@composes("XlaDynamicSlice")
def _slice(op: Node, x: tf.Tensor, begin: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    begin, size = (tf.cast(numbers, tf.int32) for numbers in (begin, size))
    return tf.slice(x, tf.clip_by_value(begin, 0, tf.shape(x) - size), size)
