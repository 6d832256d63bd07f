"""An iteration taken apart: the condition of a loop, and the rest."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.tracing import graphs as _graphs


def split(
    graph: _tf.FuncGraph, results: Sequence[tf.Tensor], condition: tf.Tensor | None
) -> tuple[_tf.FuncGraph | None, tuple[int, ...] | None, _tf.FuncGraph]:
    """Takes an iteration apart: the condition, and with its values the rest.

    Returns the condition, the positions of the parameters that it reads, and the body. The graph
    becomes the body, so the caller may not use it for anything else.
    """
    groups = [[t] for t in graph.inputs]
    effects = list(graph.control_outputs)
    if condition is None:
        return None, None, _left(graph, groups, results, effects)
    head = set(_graphs.needed_operations(graph.inputs, [condition]))
    for side in (head, set(graph.get_operations()) - head):
        for op in side:
            _graphs.keep_controls(op, side.__contains__)
    rest = [op for op in effects if op not in head]
    tail = _graphs.needed_operations(
        [*graph.inputs, *(t for op in head for t in op.outputs)], results, rest
    )
    shared: dict[Any, tf.Tensor] = {}
    for tensor in [*(t for op in tail for t in op.inputs), *results]:
        if tensor.op in head and tensor.op.type != "Const":
            shared.setdefault(tensor.ref(), tensor)
    used = {t.ref() for op in head for t in op.inputs} | {condition.ref()}
    used |= {t.ref() for t in shared.values()}
    read = tuple(i for i, t in enumerate(graph.inputs) if t.ref() in used)
    test = _graphs.extract(
        "condition",
        graph,
        [groups[i] for i in read],
        [condition, *shared.values()],
        [op for op in effects if op in head],
    )
    _graphs.chain(test.control_outputs)
    body = _left(graph, [*groups, *([t] for t in shared.values())], results, rest)
    return test, read, body


def _left(
    graph: _tf.FuncGraph,
    groups: Sequence[Sequence[tf.Tensor]],
    results: Sequence[tf.Tensor],
    effects: Sequence[tf.Operation],
) -> _tf.FuncGraph:
    """The graph without all that its results and effects do not need; it has other parameters."""
    graph.outputs, graph.control_outputs = list(results), list(effects)
    _graphs.set_inputs(graph, groups)
    _graphs.leave_out_dead(graph)
    graph.structured_outputs = tuple(graph.outputs)
    _graphs.chain(graph.control_outputs)
    return graph
