"""ReadValue and Assign: variables of the module."""

import tensorflow as tf

from tf_ti.openvino.operation import Operation, register


@register("ReadValue", ["opset3", "opset6"])
def _read_value(op: Operation, initial: tf.Tensor | None = None) -> tf.Tensor:
    return op.memory.read(op.text("variable_id"), initial)


@register("Assign", ["opset3", "opset6"])
def _assign(op: Operation, value: tf.Tensor) -> tf.Tensor:
    op.memory.assign(op.text("variable_id"), value)
    return value
