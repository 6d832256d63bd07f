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

    Returns the condition, the positions of the parameters that it reads, and the body.
    """
    groups = [[t] for t in graph.inputs]
    effects = list(graph.control_outputs)
    if condition is None:
        body = _graphs.extract("body", graph, groups, results, effects)
        _graphs.chain(body.control_outputs)
        return None, None, body
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
    body = _graphs.extract("body", graph, [*groups, *([t] for t in shared.values())], results, rest)
    _graphs.chain(test.control_outputs)
    _graphs.chain(body.control_outputs)
    return test, read, body
