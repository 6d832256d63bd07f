"""Bags in functions that are frozen: the variable becomes a constant, and is a table."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.bags.ops import GRADIENTS, KINDS, PREFIX, SEVERAL


def _freeze(node: tf.compat.v1.NodeDef, index: int, value: np.ndarray, _: object) -> bool:
    # All the variables of an op become constants, one after the other.
    num_tables = node.attr["N"].i if "N" in node.attr else 1
    if index >= num_tables:
        return False
    node.op = node.op.replace(f"{PREFIX}Resource", PREFIX)
    return True


def _freeze_gradient(
    node: tf.compat.v1.NodeDef, index: int, value: np.ndarray, add: Callable[..., str]
) -> bool:
    # What has no variable is told the table's number of rows. A function's node comes here once for
    # each caller.
    is_first = node.op == GRADIENTS[1]
    is_table = _freeze(node, index, value, add)
    if is_table and is_first:
        shape = add("Shape", node.input[0], T=tf.as_dtype(value.dtype), out_type=tf.int64)
        node.input[0] = add("Unpack", shape, T=tf.int64, num=value.ndim, axis=0)
    return is_table


def _freeze_shape(node: tf.compat.v1.NodeDef, index: int, value: np.ndarray, _: object) -> bool:
    # Gradients ask variables for open shapes; TensorFlow's freezing leaves that as it is.
    node.op = "Shape"
    node.attr["T"].type = tf.as_dtype(value.dtype).as_datatype_enum
    return True


def _freeze_gather(node: tf.compat.v1.NodeDef, index: int, value: np.ndarray, _: object) -> bool:
    # TensorFlow's freezing leaves gathers in functions as they are, and those in a while loop get
    # an axis from outside of its frame. This op has none.
    if node.attr["batch_dims"].i != 0:
        raise ValueError(f"{node.name} gathers in batches from a variable, which is not frozen")
    node.op = "Gather"
    node.attr["Tparams"].type = tf.as_dtype(value.dtype).as_datatype_enum
    for name in ("dtype", "batch_dims"):
        node.attr.pop(name, None)
    return True


for _name in (*KINDS, SEVERAL, "EmbeddingBagWeightsGrad"):
    _tf.register_freezing(f"{PREFIX}Resource{_name}", _freeze)
_tf.register_freezing(GRADIENTS[1], _freeze_gradient)
_tf.register_freezing("VariableShape", _freeze_shape)
_tf.register_freezing("ResourceGather", _freeze_gather)
