"""Recorded values in the place of what gave them."""

from collections.abc import Sequence

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.tracing import graphs as _graphs

# The gradient of an IdentityN of recorded values and the tensors that gave them.
_RECORDED = "TfTi>Recorded"


@_tf.register_gradient(_RECORDED)
@_tf.do_not_convert
def _recorded_gradient(op: tf.Operation, *grads: tf.Tensor | None) -> list[tf.Tensor | None]:
    """A recorded value has the gradient of the operation that gave it, not of the record."""
    count = len(grads) // 2
    return [*[None] * count, *grads[:count]]


def give(graph: _tf.FuncGraph, values: Sequence[tf.Tensor], has_gradient: bool) -> list[tf.Tensor]:
    """Replaces the values of one operation by placeholders.

    Args:
        graph: the graph.
        values: outputs of an operation.
        has_gradient: true if a gradient still reaches the operation.
    """
    with graph.as_default():
        given = [tf.compat.v1.placeholder(value.dtype, value.shape) for value in values]
        for value, placeholder in zip(values, given):
            _tf.copy_handle_data(value, placeholder)
        if has_gradient:
            with graph.gradient_override_map({"IdentityN": _RECORDED}):
                records = tf.identity_n([*given, *given])
        else:
            records = list(map(tf.stop_gradient, given))
    became = dict(zip([value.ref() for value in values], records))
    _graphs.replace(became)
    if has_gradient:
        for i, value in enumerate(values, start=len(values)):
            _tf.replace_input(records[0].op, i, value)
    graph.outputs = [became.get(t.ref(), t) for t in graph.outputs]
    return given


def is_record(op: tf.Operation) -> bool:
    """True if an operation gives recorded values, and their gradient to what gave them."""
    kind = op.node_def.attr["_gradient_op_type"].s if op.type == "IdentityN" else b""
    return kind == _RECORDED.encode()


def records_of(parameter: tf.Tensor) -> list[tf.Tensor]:
    """The tensors for which a parameter has the recorded values."""
    return [
        op.outputs[i]
        for op in parameter.consumers()
        if is_record(op)
        for i, tensor in enumerate(op.inputs)
        if tensor is parameter
    ]


def record_of(value: tf.Tensor) -> tf.Tensor:
    """The recorded value that stands in a value's place, if one does, or else the value."""
    for op in filter(is_record, value.consumers()):
        for record, tensor in zip(op.outputs, op.inputs[len(op.inputs) // 2 :]):
            if tensor is value:
                return record
    return value


def has_records(graph: _tf.FuncGraph) -> bool:
    """True if a recorded value of the graph has a gradient beside the record's."""
    return any(map(is_record, graph.get_operations()))


def only_records(graph: _tf.FuncGraph) -> _tf.FuncGraph:
    """The same graph, where the gradient of recorded values is that of the records."""
    groups: Sequence[Sequence[tf.Tensor]] = [[p, *records_of(p)] for p in graph.inputs]
    return _graphs.extract("again", graph, groups, graph.outputs, graph.control_outputs)
