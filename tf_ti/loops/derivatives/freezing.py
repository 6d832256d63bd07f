"""Loops in functions that are frozen: their bodies take constants for variables."""

from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.spec import OPS


def _freeze(node: tf.compat.v1.NodeDef, index: int, value: np.ndarray, _: object) -> bool:
    types = node.attr["Tin"].list.type
    if index >= len(types) or types[index] != tf.resource.as_datatype_enum:
        return False
    types[index] = tf.as_dtype(value.dtype).as_datatype_enum
    shape = tf.TensorShape(value.shape).as_proto()
    node.attr["parameter_shapes"].list.shape[index].CopyFrom(shape)
    return True


def _calls(node: tf.compat.v1.NodeDef) -> Iterator[tuple[str, Sequence[int]]]:
    for attr in ("body", _tf.DIFFERENTIATED):
        if attr in node.attr:
            yield node.attr[attr].func.name, range(len(node.attr["Tin"].list.type))
    for condition in node.attr["condition"].list.func:
        yield condition.name, node.attr["condition_inputs"].list.i


for _op in OPS:
    _tf.register_freezing(_op, _freeze, _calls)
