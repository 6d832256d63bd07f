"""Lists that grow where they are written past their ends, as TensorArrays of a dynamic size do.

XLA's lists do not grow: there such a write would be lost. So that it is an error instead, the index
of each goes through an operation that XLA's programs check, and that does nothing elsewhere.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti._library import ops
from tf_ti.loops.passes.step import Step
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing import graphs as _graphs

# The number of inputs before the parameters of its functions, by operation that runs functions.
_BEFORE_PARAMETERS = {
    **dict.fromkeys(_graphs.CALLS, 0),
    "Case": 1,
    "If": 1,
    "StatelessCase": 1,
    "StatelessIf": 1,
    "StatelessWhile": 0,
    "While": 0,
}


def check(loop: TracedLoop) -> Step | None:
    """Lets XLA's programs end with an error where a list of a loop would have to grow."""
    if not any(_needs_check(op) for graph in loop.graphs for op in graph.get_operations()):
        return None
    labels = [given.label for given in loop.spec.inputs]
    loop = loop.copied()
    _check(loop.body, labels)
    if loop.condition is not None:
        condition = _graphs.copied("condition", loop.condition, loop.condition.outer_graph)
        _check(condition, [labels[i] for i in loop.condition_inputs])
        loop = dataclasses.replace(loop, condition=condition)
    return Step(loop)


def _needs_check(op: tf.Operation) -> bool:
    """True if an operation, or one in its functions, writes to a list that grows."""
    if op.type in _BEFORE_PARAMETERS:
        return any(_may_grow(op.graph, name) for name in _graphs.function_names(op.node_def))
    return (
        op.type == "TensorListSetItem"
        and _grows(op.node_def)
        and op.inputs[1].op.type != "TfTi>ListIndex"
    )


def _check(graph: _tf.FuncGraph, labels: Sequence[str]) -> None:
    """Checks the lists of a function's graph, which this changes.

    Args:
        graph: the graph.
        labels: the names that errors give the function's first parameters.
    """
    names = {tensor.ref(): label for tensor, label in zip(graph.inputs, labels)}

    def name_of(tensors: Sequence[tf.Tensor]) -> str:
        """The names of the lists among these tensors."""
        found = [names[t.ref()] for t in tensors if t.dtype == tf.variant and t.ref() in names]
        return " or ".join(dict.fromkeys(found))

    for op in graph.get_operations():
        if op.type in _BEFORE_PARAMETERS:
            _check_functions(op, [name_of([t]) for t in op.inputs[_BEFORE_PARAMETERS[op.type] :]])
        elif _needs_check(op):
            with graph.as_default(), tf.device(op.device):
                size = tf.raw_ops.TensorListLength(input_handle=op.inputs[0])
                label = name_of(op.inputs) or f"the TensorArray that {op.name!r} writes to"
                index = ops.tf_ti_list_index(index=op.inputs[1], size=size, label=label)
            _tf.replace_input(op, 1, index)
        label = name_of(op.inputs)
        if label:
            names.update((t.ref(), label) for t in op.outputs if t.dtype == tf.variant)


def _grows(node: Any) -> bool:
    """True if a NodeDef writes to a list that grows."""
    return node.op == "TensorListSetItem" and node.attr["resize_if_index_out_of_bounds"].b


def _may_grow(graph: tf.Graph, name: str) -> bool:
    """True if a function that `graph` knows writes to a list that grows."""
    function = _tf.find_function(graph, name)
    if function is None:
        return False
    nodes = function.cached_definition.node_def
    return any(map(_grows, nodes)) or any(
        _may_grow(graph, inner)
        for node in nodes
        if node.op in _BEFORE_PARAMETERS
        for inner in _graphs.function_names(node)
    )


def _check_functions(op: tf.Operation, labels: Sequence[str]) -> None:
    """Gives an operation functions of its own, in which lists that grow are checked."""
    shapes = [t.shape for t in op.inputs[len(op.inputs) - len(labels) :]]

    def checked(name: str) -> str:
        if not _may_grow(op.graph, name):
            return name
        traced = _tf.function_graph(op, name, shapes)
        graph = _graphs.copied("checked", traced, op.graph)
        _check(graph, labels)
        with op.graph.as_default():
            return _tf.use_function(_tf.make_function(graph))

    _tf.replace_functions(op, checked)
