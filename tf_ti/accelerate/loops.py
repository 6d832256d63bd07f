"""A loop that TensorFlow has traced becomes one of tf_ti."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import arguments as _arguments, passes as _passes, spec as _spec
from tf_ti.loops.explaining.loops import runs_as
from tf_ti.loops.passes.step import Fuse
from tf_ti.loops.traced import TracedLoop, spec_around
from tf_ti.loops.tracing import (
    body as _body,
    custom_gradients as _custom_gradients,
    graphs as _graphs,
    split as _split,
)


def iteration(traced: _tf.TracedWhile) -> _body.Body:
    """The condition, and then the body: its first result is whether the iteration takes place."""
    states = traced.variables
    taken = slice(states.start, None)
    condition, body = traced.condition, traced.body
    for graph in (condition, body):
        _custom_gradients.find(graph)
    parts = [
        (condition, condition.inputs[taken], [traced.test]),
        (body, body.inputs[taken], body.outputs[states]),
    ]
    variables = {id(v): v for graph in (condition, body) for v in graph.variables}
    # Each iteration reads the variables that others may write, and the variables of integers:
    # TensorFlow's loops give their handles a gradient of zeros. The others are read once.
    read_once = tuple(
        v for v in variables.values() if _tf.is_trainable(v.dtype) and not _others_may_write(traced)
    )
    made = _body.from_graph(
        _graphs.in_turn("iteration", parts),
        len(body.outputs[states]),
        traced.tensors[states.stop :],
        read_once,
        controls=(),  # TensorFlow waits for them
        structure=None,
        source=traced,
    )
    return dataclasses.replace(made, variables=tuple(variables.values()))


def _others_may_write(traced: _tf.TracedWhile) -> bool:
    """True if variables may change while the loop runs, though nothing in it tells of that.

    Functions of Python and datasets may write any variable, and so may a resource that is a loop
    variable; a condition that reads one may wait for another thread.
    """
    if any(t.dtype == tf.resource for t in traced.tensors[traced.variables]):
        return True
    read = {op.type for g in _graphs.with_functions(traced.condition) for op in g.get_operations()}
    run = {op.type for g in _graphs.with_functions(traced.body) for op in g.get_operations()}
    return bool(read & _tf.READS or (read | run) & _tf.RUN_CODE_OF_OTHERS)


def add(traced: _tf.TracedWhile, iteration: _body.Body) -> tuple[Sequence[tf.Tensor], str]:
    """Adds the loop to the current graph; returns its outputs, and the words for its engine."""
    states = traced.variables
    for graph in (traced.condition, traced.body):
        _custom_gradients.release(graph)
    outcome = _passes.run(_loop(traced, iteration), Fuse.ALL, name=traced.name)
    results, shapes = traced.body.outputs[states], traced.shapes[states]
    for output, result, shape in zip(outcome.outputs, results, shapes):
        output.set_shape(shape)
        _tf.copy_handle_data(result, output)
    entering = traced.tensors
    leaving = [*entering[: states.start], *outcome.outputs, *entering[states.stop :]]
    return leaving, runs_as(outcome)


def _loop(traced: _tf.TracedWhile, iteration: _body.Body) -> TracedLoop:
    states, given = traced.variables, traced.body.inputs[traced.variables]
    test, *results = iteration.graph.outputs
    condition, read, graph = _split.split(iteration.graph, results, test)
    body = dataclasses.replace(
        iteration,
        graph=graph,
        num_results=len(given),
        result_types=tuple(t.dtype for t in graph.outputs),
        # Of a variable no more is known than before the loop, or by its shape invariant.
        result_shapes=(*traced.shapes[states], *(t.shape for t in graph.outputs[len(given) :])),
    )
    inputs = [_spec.Input(f"loop_vars[{k}]", t.shape) for k, t in enumerate(given)]
    outputs = [
        _spec.Output(state.label, t.dtype, "last", k)
        for k, (state, t) in enumerate(zip(inputs, given))
    ]
    edges = [(k, k) for k in range(len(given))]
    spec = spec_around(body, inputs, outputs, edges, "maximum_iterations")
    most = traced.parallel_iterations
    spec = dataclasses.replace(spec, condition_inputs=read, parallel_iterations=most)
    limit = traced.limit
    if limit is not None:
        limit = _arguments.at_least_0(limit)
    loop = TracedLoop.around(body, spec, traced.tensors[states], limit, condition)
    return dataclasses.replace(loop, gives_zeros=True)
