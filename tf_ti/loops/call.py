"""Calls of the ways in: a loop is traced, or run by Python."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import passes as _passes
from tf_ti.loops.passes.step import Fuse
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing import composites as _composites, eager as _eager, plain as _plain
from tf_ti.loops.tracing.kept import Ticket
from tf_ti.loops.tracing.structure import Structure
from tf_ti.loops.tracing.way import Way

Limit: TypeAlias = int | tf.Tensor | None


def call(
    way: Way,
    tensors: Sequence[tf.Tensor],
    num_iterations: Limit,
    checkpoint_every: int | None,
    fuse: Any,
    name: str,
    ticket: Ticket | None = None,
) -> Any:
    """Runs the loop of a way in, or adds it to the current graph.

    Args:
        way: the loop.
        tensors: those of the call.
        num_iterations, checkpoint_every, fuse, name: as in `tf_ti.tensor_iterator`, checked.
        ticket: that of an eager call.

    Returns:
        The values for the user.
    """
    fusing = _passes.fusing(fuse, way.functions)
    if _plain.is_wanted():
        return _call_plainly(way, tensors, num_iterations, checkpoint_every, name)
    way.resolve()

    def add(tensors: Sequence[tf.Tensor], num_iterations: Limit) -> Structure:
        loop = trace(way, way.enter(tensors), num_iterations)
        return way.leave(_passes.run(loop, fusing, checkpoint_every, name).outputs)

    key = (*way.key, checkpoint_every, fusing, name)
    return _eager.call(add, tensors, num_iterations, way.functions, key, ticket)


def _call_plainly(
    way: Way,
    tensors: Sequence[tf.Tensor],
    num_iterations: Limit,
    checkpoint_every: int | None,
    name: str,
) -> Any:
    given = way.enter(tensors)
    count = _plain.count_iterations(way.inputs, given, num_iterations, way.limit_label)
    if count:
        outputs = _plain.run(way, given, count)
    else:  # only a trace tells the types of the outputs
        traceable = way.enter(list(map(_composites.in_graph, tensors)))
        loop = trace(way, traceable, num_iterations)
        outputs = list(_passes.run(loop, Fuse.NOTHING, checkpoint_every, name).outputs)
        parameters = dict(loop.spec.back_edges)
        for i, output in enumerate(loop.spec.outputs):
            first = given[parameters[output.source]] if output.source in parameters else None
            if output.mode == "last" and _tf.is_eager_array(first):
                outputs[i] = first
    values = way.leave(outputs)
    return values.pack(values.leaves)


def trace(way: Way, tensors: Sequence[tf.Tensor], num_iterations: Limit) -> TracedLoop:
    """The loop of a way in, from the tensors that its inputs get."""
    body = way.trace()
    loop = TracedLoop.around(body, way.make_spec(body), tensors, num_iterations, way.condition)
    return dataclasses.replace(loop, lengths=way.lengths(num_iterations))
