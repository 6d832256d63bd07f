"""ReadValue and Assign: variables of the module."""

from tf_ti.openvino.operation import register


@register("ReadValue", ["opset3", "opset6"])
def _read_value(op, initial=None):
    return op.memory.read(op.text("variable_id"), initial)


@register("Assign", ["opset3", "opset6"])
def _assign(op, value):
    op.memory.assign(op.text("variable_id"), value)
    return value
