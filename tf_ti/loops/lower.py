"""Lowering: a traced loop becomes an op."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti._arguments import host_number
from tf_ti._library import ops
from tf_ti.loops.spec import OPS
from tf_ti.loops.traced import GIVES_ZEROS, READ_BEFORE, TracedLoop

# The derivatives of a loop, both from a `TracedLoop` that has outputs:
#   gradient   and the gradients of its outputs to those of its inputs,
#   jvp        and the tangents of its inputs to those of its outputs.
# They run loops themselves, so they are entered where all of tf_ti.loops is there.
DERIVATIVES: dict[str, Callable[..., list[Any]]] = {}
# Functions that take the graph of a body, or of a condition, and make a graph for the loop to run
# instead, or None. Both have the same parameters and results. Derivatives are made of the first
# graph. Passes enter such functions.
RUN_INSTEAD: list[Callable[[_tf.FuncGraph], _tf.FuncGraph | None]] = []


def run_loop(
    loop: TracedLoop, checkpoint_every: int = 1, name: str | None = None
) -> list[tf.Tensor]:
    """Adds a loop to the current graph, or runs it; with the histories that a gradient may need.

    Args:
        loop: the loop.
        checkpoint_every: record the states of each `checkpoint_every`-th iteration; of each one
            where a condition ends a loop that XLA compiles.
        name: a name for the operation.

    Returns:
        The outputs of the loop's spec.
    """
    count = len(loop.spec.outputs)
    saves_memory = checkpoint_every > 1 or loop.spec.parallel_iterations == 1
    if loop.condition is not None and _tf.expects_xla():
        # XLA must know the extents of segments, and the condition tells the last one's.
        checkpoint_every = 1
    if not tf.executing_eagerly() or _tf.is_recording():
        loop = loop.recording(checkpoint_every, saves_memory)
        loop = reading_before(loop)
    return add_op(loop, name)[:count]


def add_op(loop: TracedLoop, name: str | None = None) -> list[tf.Tensor]:
    """Adds the loop op to the current graph, or runs it: all outputs of the spec, and no others.

    The loop's graphs become functions, so no other loop may have them.
    """
    spec = loop.spec
    loop.body.outputs.extend(loop.recorded)
    make = ops.tf_ti_tensor_iterator if loop.is_stateful else ops.tf_ti_stateless_tensor_iterator
    functions = list(map(_tf.make_function, loop.graphs))
    instead = [_run_instead(loop, graph) for graph in loop.graphs]
    # Before recording stops: a graph captures a tensor once, and shows that to tapes then.
    tensors = _tf.captured(loop.tensors)
    limit = loop.num_iterations
    limits = [] if limit is None else [host_number(limit, tf.int64)]
    lengths = [host_number(length, tf.int64) for length in loop.lengths]
    with _tf.stop_recording():
        differentiated = _tf.use_function(functions[0])
        body, *condition = (_tf.use_function(made or own) for own, made in zip(functions, instead))
        outputs = make(
            input=tensors,
            num_iterations=limits,
            length=lengths,
            body=body,
            condition=condition,
            name=name,
            **spec.attributes(),
        )
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else []
    if not outputs:
        return []
    loop = dataclasses.replace(
        loop,
        tensors=tensors,
        num_iterations=limits[0] if limits else None,
        lengths=lengths,
        outputs=outputs,
        recorded=(),
        source=[functions, instead],
    )
    if loop.outer_graph is not None:
        loop = dataclasses.replace(loop, op=outputs[0].op)
        if instead[0] is not None:
            _tf.set_function(outputs[0].op, _tf.DIFFERENTIATED, differentiated)
        _mark(loop, limit)
        for result, parameter in spec.back_edges:
            if tensors[parameter].dtype == tf.variant:
                for output, tensor in zip(spec.outputs, outputs):
                    if (output.mode, output.source) == ("last", result):
                        _tf.copy_handle_data(tensors[parameter], tensor)
    if _tf.is_recording():
        gradient, jvp = (functools.partial(DERIVATIVES[kind], loop) for kind in ("gradient", "jvp"))
        _tf.record("tf_ti_loop", [*tensors, *limits, *lengths], outputs, gradient, jvp)
    return outputs


def reading_before(loop: TracedLoop) -> TracedLoop:
    """The loop after reads of variables, of which a function runs those that a gradient needs.

    In other graphs the reads would have to be ordered, and all of them would run.
    """
    read = loop.values_before() if _tf.orders_effects() else None
    return dataclasses.replace(loop, read_before=read)


def _run_instead(loop: TracedLoop, graph: _tf.FuncGraph) -> Any:
    """The function that the loop runs instead of its body's, or its condition's; or None."""
    if not loop.spec.fuse:
        return None
    if graph is loop.condition and len(graph.outputs) > 1:
        return None  # what the condition gives the body has derivatives
    found = next((made for make in RUN_INSTEAD if (made := make(graph)) is not None), None)
    return None if found is None else _tf.make_function(found)


def _mark(loop: TracedLoop, limit: int | tf.Tensor | None) -> None:
    """Tells TensorFlow about this op, which depends on the loop and so on no registration."""
    op, outputs = loop.outputs[0].op, loop.spec.outputs
    if loop.read_before is not None:
        setattr(op, READ_BEFORE, loop.read_before)
    # Where the body has them, whatever the device: else they would be copied, and waited for.
    _tf.keep_on_host(
        op,
        [i for i, tensor in enumerate(loop.tensors) if tensor.dtype == tf.int32],
        [
            i
            for i, output in enumerate(outputs)
            if output.dtype == tf.int32 or output.mode == "count"
        ],
    )
    if loop.gives_zeros:
        _tf.mark(op, GIVES_ZEROS)
    _tf.mark_read_only(op, loop.read_only_inputs())
    # XLA may compile a loop anew for each number of iterations, where an output is as long. But not
    # where another loop counted them: it would have to know all that this loop depends on.
    is_extent = any(o.mode == "concat" or (o.mode == "stack" and o.length < 0) for o in outputs)
    is_counted = (
        isinstance(limit, tf.Tensor)
        and not isinstance(limit, _tf.EagerTensor)
        and limit.op.type in OPS
    )
    if limit is not None and is_extent and not is_counted:
        # The lengths too: this takes the place of cc/xla's mark of every loop.
        _tf.mark_constant_inputs(op, ["num_iterations", "length"])
