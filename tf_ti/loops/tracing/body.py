"""From a user's callable to a function that the loop kernel runs."""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

from tf_ti import _tf
from tf_ti.loops import spec as _spec
from tf_ti.loops.tracing import (
    custom_gradients as _custom_gradients,
    extents as _extents,
    graphs as _graphs,
    heavy as _heavy,
    recorded as _recorded,
)
from tf_ti.loops.tracing.structure import Structure


@dataclasses.dataclass(frozen=True)
class Body:
    """A traced body: its parameters are the given ones and then one for each capture.

    Attributes:
        graph: its operations, with inputs and outputs set.
        captures: the values of the last parameters: tensors, and variables, which are read once.
        variables: all variables that the body uses.
        controls: the operations outside that one of the body waits for, and so the loop.
        parameter_shapes: static shapes of all parameters.
        structure: the user's results, as they were converted.
        num_results: how many tensors those are; the function may return further ones, which a
            gradient needs recorded.
        result_types, result_shapes: of all results.
        source: the callable, which must live as long as the body does.
    """

    graph: Any
    captures: tuple[Any, ...]
    variables: tuple[tf.Variable, ...]
    controls: tuple[Any, ...]
    parameter_shapes: tuple[tf.TensorShape, ...]
    structure: Any
    num_results: int
    result_types: tuple[tf.DType, ...]
    result_shapes: tuple[tf.TensorShape, ...]
    source: Any

    def captured_tensors(self) -> list[tf.Tensor]:
        for variable in self.variables:
            _tf.variable_accessed(variable)
        return [tf.convert_to_tensor(c) if _is_variable(c) else c for c in self.captures]


_RESULTS = (tf.Tensor, tf.TensorSpec, tf.TensorArray)


def _is_variable(value: Any) -> bool:
    return isinstance(value, tf.Variable)


def resolve(
    body: Callable[..., Any], arguments: Sequence[Structure], expected: str
) -> Callable[..., Any]:
    """The callable to trace: of a `tf.function` its own trace for `arguments`.

    Args:
        body: a callable, `tf.function` or `ConcreteFunction`.
        arguments: structures of tf.TypeSpecs.
        expected: the beginning of an error that says how many arguments there are.
    """
    if isinstance(body, ConcreteFunction):
        return body
    get_trace = getattr(body, "get_concrete_function", None)
    if get_trace is None:
        check_arity(body, len(arguments), expected)
        return body
    try:
        return get_trace(*(types.pack(types.leaves) for types in arguments))
    except TypeError:
        check_arity(body, len(arguments), expected)
        raise


def trace(
    body: Callable[..., Any],
    arguments: Sequence[Any],
    convert: Callable[..., Any],
    arrange: Callable[..., Any] | None = None,
) -> Body:
    """Traces a body that `resolve` gave.

    Variables that the body only reads are read once, before the loop, as the loop invariants they
    are. Function calls are inlined. The outputs of stateful operations (random numbers, say) become
    further results: a gradient must use the same values, so it records rather than repeats them.

    Args:
        body: the body.
        arguments: tf.TypeSpecs.
        convert: makes a list of tensors of the values that the body returns.
        arrange: makes the body's arguments of values of those types, where it takes others.
    """
    specs = [s for s in tf.nest.flatten(arguments, expand_composites=True) if s is not None]
    if isinstance(body, ConcreteFunction) and arrange is None:
        check_concrete(body, specs)
        graph, captures, is_own = body.graph, list(body.captured_inputs), False
        structure = convert(body.structured_outputs)
    else:
        is_own = True
        graph = _graphs.trace("body", body, arguments, convert, arrange)
        captures = graph.external_captures
        captures += tf.nest.flatten([find() for find in graph.deferred_external_captures])
        structure = graph.structured_outputs
    for result in tf.nest.flatten(structure, expand_composites=True):
        if result is not None and not isinstance(result, _RESULTS):
            raise TypeError(f"the body must return tensors, got {result!r}")

    variables, controls = tuple(graph.variables), tuple(graph.function_captures.control)
    _custom_gradients.find(graph)
    if any(_graphs.is_call(op) for op in graph.get_operations()):
        graph = _graphs.extract(
            "inlined",
            graph,
            [[t] for t in graph.inputs],
            graph.outputs,
            graph.control_outputs,
            inline=True,
        )
        is_own = True
    elif is_own:
        _custom_gradients.close(graph)
    return from_graph(graph, len(specs), captures, variables, controls, structure, body, is_own)


def from_graph(
    graph: _tf.FuncGraph,
    num_arguments: int,
    captures: Sequence[tf.Tensor],
    variables: tuple[tf.Variable, ...],
    controls: tuple[Any, ...],
    structure: Any,
    source: Any,
    is_own: bool = True,
) -> Body:
    """The body that a graph is, whose calls are inlined and whose custom gradients are closed.

    Args:
        graph: the graph. It is changed where it `is_own`, and copied otherwise.
        num_arguments: the number of its inputs that are no captures.
        captures: what the others stand for.
        variables, controls, structure, source: as the attributes of a `Body`.
        is_own: true if nobody else needs the graph.
    """
    captured: list[Any] = list(captures)
    inputs, num_results = [[t] for t in graph.inputs], len(graph.outputs)
    handles = {id(v.handle): v for v in variables}
    for i, capture in enumerate(captured):
        parameter = inputs[num_arguments + i]
        reads = _plain_reads(parameter[0], graph.outputs) if id(capture) in handles else []
        if reads:
            captured[i] = handles[id(capture)]
            parameter[:] = reads
    results = graph.outputs + recorded(graph, inputs, graph.inputs[:num_arguments])
    if is_own:
        _tf.forget_captures(graph)
        graph.outputs = results
        _graphs.leave_out_dead(graph)
        _graphs.set_inputs(graph, inputs)
    else:
        graph = _graphs.extract("body", graph, inputs, results, graph.control_outputs)
    return Body(
        graph,
        tuple(captured),
        variables,
        controls,
        tuple(t.shape for t in graph.inputs),
        structure,
        num_results,
        tuple(t.dtype for t in graph.outputs),
        tuple(t.shape for t in graph.outputs),
        source,
    )


def _plain_reads(handle: tf.Tensor, outputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The values read from a variable's handle, if the body does nothing else with it."""
    if any(handle is output for output in outputs):
        return []
    if any(op.type != "ReadVariableOp" for op in handle.consumers()):
        return []
    reads = [op.outputs[0] for op in handle.consumers()]
    return reads if len({read.dtype for read in reads}) == 1 else []


def recorded(
    graph: _tf.FuncGraph, inputs: Sequence[Sequence[tf.Tensor]], states: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """The tensors of the body that its gradient uses as they were, and does not compute again.

    These are the outputs of stateful operations, unless the operations only check, and the elements
    that operations and inner loops read of lists that are states: to read an element again would
    take a copy of each list.
    """
    given = [tensor for group in inputs for tensor in group]
    lists = {t.ref() for t in states if t.dtype == tf.variant}  # with those that they become
    found = {}  # operations, and whether they do more than read lists
    for op in graph.get_operations():
        reads_list = any(t.ref() in lists for t in op.inputs)
        if reads_list and op.type in ("TensorListSetItem", "Identity", *_spec.OPS):
            lists.update(t.ref() for t in op.outputs if _tf.is_list(t))
        is_read = reads_list and op.type in ("TensorListGetItem", *_spec.OPS)
        has_effects = not _graphs.only_does(op, _tf.CHECKS)
        if is_read or has_effects:
            found[op] = has_effects
    return [
        tensor
        for tensor in _needed_outputs(graph, given, list(found))
        if found[tensor.op] or tensor.ref() not in lists
    ]


def recorded_for_custom_gradients(graph: _tf.FuncGraph) -> list[tf.Tensor]:
    """The results of operations with custom gradients, and of loops with such operations inside.

    A custom gradient that is not linear must get all of an operation's gradient at once. Were its
    results computed again by the gradient of a loop, a part of the second gradient would be theirs.
    """
    found = []
    for op in graph.get_operations():
        if _graphs.has_custom_gradient(op):
            gradient = _custom_gradients.of(op)
            if gradient is None or not gradient.is_silu:
                found.append(op)
        elif op.type in _spec.OPS and not _tf.is_stateful(op):
            if any(map(_custom_gradients.may_be_nonlinear, _graphs.traced_functions(op))):
                found.append(op)
    return _needed_outputs(graph, graph.inputs, found)


def recorded_as_heavy(graph: _tf.FuncGraph, spec: _spec.LoopSpec) -> list[tf.Tensor]:
    """The results that would take longer to compute again than to record.

    If one result of an operation is recorded, all are: its gradient may need each of them.
    """
    size = _extents.some_size_of_iteration(spec, graph.inputs)
    heavy = set(_heavy.find(graph, size))

    def reads(op: tf.Operation) -> Sequence[tf.Tensor]:
        return () if op.type == "StopGradient" else op.inputs

    differentiated = _graphs.needed_operations(
        graph.inputs, graph.outputs, follow_controls=False, reads=reads
    )
    return [tensor for op in differentiated if op in heavy for tensor in op.outputs]


def _needed_outputs(
    graph: _tf.FuncGraph, given: Sequence[tf.Tensor], operations: Sequence[tf.Operation]
) -> list[tf.Tensor]:
    """The outputs of some operations that others read, or that a gradient may."""
    if not operations:
        return []
    needed = _graphs.needed_operations(given, graph.outputs, graph.control_outputs)
    # No result depends on the value of an assertion, say.
    computing = _graphs.needed_operations(given, graph.outputs, follow_controls=False)
    read = {t.ref() for op in computing if not _recorded.is_record(op) for t in _graphs.reads(op)}
    read.update(t.ref() for t in graph.outputs)
    return [
        tensor
        for op in operations
        if op in needed
        for i, tensor in enumerate(op.outputs)
        if tensor.dtype != tf.resource and (tensor.ref() in read or _may_be_needed(op, i))
    ]


def _may_be_needed(op: tf.Operation, output: int) -> bool:
    """True if a gradient uses an output that nobody consumes so far: a history, say."""
    if op.type in _spec.OPS:
        return op.get_attr("output_mode")[output] not in (b"concat", b"stack")
    return op.type.startswith("TfTi>")


def check_concrete(concrete: ConcreteFunction, specs: Sequence[tf.TensorSpec]) -> None:
    parameters = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
    if len(parameters) != len(specs):
        raise ValueError(f"the body has {len(parameters)} parameters, the port map {len(specs)}")
    for i, (parameter, spec) in enumerate(zip(parameters, specs)):
        if parameter.dtype != spec.dtype:
            raise TypeError(
                f"parameter {i} of the body is of type {parameter.dtype.name}, but its input port "
                f"brings {spec.dtype.name}"
            )
        if not parameter.shape.is_compatible_with(spec.shape):
            raise ValueError(
                f"parameter {i} of the body has shape {parameter.shape}, but its input port brings "
                f"shape {spec.shape}"
            )


def check_arity(body: Callable[..., Any], count: int, expected: str) -> None:
    try:
        signature = inspect.signature(getattr(body, "python_function", body))
    except (TypeError, ValueError):  # builtins do not tell
        return
    try:
        signature.bind(*range(count))
    except TypeError as error:
        raise ValueError(f"{expected} {signature} does not take: {error}") from None
