"""Custom gradients, closed: the tensors that they refer to become inputs of their operations.

tf.custom_gradient gives its results through an IdentityN, of the results and the arguments, whose
gradient is a Python function. That may refer to any tensor of the graph in which it was traced, so
it has no meaning in a copy of the graph, nor where part of the graph is done elsewhere.

`find` asks the function which tensors it refers to. Where an operation is copied these are further
inputs, and the copy has a gradient of its own: the user's function, of the copy's inputs.
"""

import dataclasses
import inspect
import itertools
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.tracing import graphs as _graphs

_uid = itertools.count()


@dataclasses.dataclass(frozen=True, eq=False)
class CustomGradient:
    """The gradient of an operation, and of its copies.

    Attributes:
        function: the user's, as it is registered.
        references: the tensors of its graph to which it refers, the operation's inputs first.
        num_outputs: how many outputs the operation has that `function` knows.
        num_results: how many of these are results; the others are arguments.
        is_plain: whether it only computes tensors of tensors.
        is_silu: whether it is tf.nn.silu's.
    """

    function: Callable[..., Any]
    references: tuple[Any, ...]
    num_outputs: int
    num_results: int
    is_plain: bool
    is_silu: bool

    def captured(self, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors to which it refers beyond the inputs of an operation."""
        return [reference.deref() for reference in self.references[len(inputs) :]]

    def gradients(self, inputs: Sequence[tf.Tensor], grads: Sequence[Any]) -> list[Any]:
        """The gradients of inputs, from those of the outputs, in the current graph."""
        graph, returned, given = _trace(self.function, grads[: self.num_outputs])
        stand_ins = {**dict(zip(self.references, inputs)), **given}
        found = tf.nest.flatten(returned, expand_composites=True)
        inside = [t for t in found if isinstance(t, tf.Tensor) and getattr(t, "graph", 0) is graph]
        find(graph)
        made = iter(_graphs.copy_to_default_graph(graph, inside, (), stand_ins))
        inside_ids = {id(t) for t in inside}
        found = [next(made) if id(t) in inside_ids else t for t in found]
        returned = tf.nest.pack_sequence_as(returned, found, expand_composites=True)
        return [*returned, *[None] * (len(inputs) - len(returned))]

    def claim(self, op: tf.Operation) -> None:
        """Makes it the gradient of an operation that has all that it refers to as inputs."""
        name, reference = f"CustomGradient-tf_ti-{next(_uid)}", weakref.ref(op)

        @_tf.do_not_convert
        def gradient(op: tf.Operation | None, *grads: Any) -> list[Any]:
            # Who saves a function asks without an operation.
            made: tf.Operation = op or reference()
            return self.gradients(list(made.inputs), grads)

        _tf.register_gradient(name)(gradient)
        _tf.set_gradient(op, name)
        op.tf_ti_gradient = self

    def group(self, op: tf.Operation) -> set[tf.Operation]:
        """The operation, and those between the arguments and its results or its gradient's."""
        results, others = op.inputs[: self.num_results], op.inputs[self.num_outputs :]
        arguments = op.inputs[self.num_results : self.num_outputs]
        found, dependent = {op}, {t.ref() for t in arguments}
        for inner in _graphs.needed_operations(arguments, [*results, *others]):
            if any(t.ref() in dependent for t in inner.inputs):
                found.add(inner)
                dependent.update(t.ref() for t in inner.outputs)
        return found


def of(op: tf.Operation) -> CustomGradient | None:
    """The custom gradient that `find` found."""
    return getattr(op, "tf_ti_gradient", None)


def find(graph: _tf.FuncGraph) -> None:
    """Finds the tensors to which the custom gradients of a graph, and of its calls, refer.

    That calls them; those that fail then are left as they are.
    """
    graphs, seen = [graph], {graph}
    while graphs:
        graph = graphs.pop()
        operations = graph.get_operations()
        new = [
            op
            for op in operations
            if _graphs.has_custom_gradient(op) and not hasattr(op, "tf_ti_gradient")
        ]
        if new:
            in_order = _graphs.needed_operations((), (), operations[::-1])
            place = {op: k for k, op in enumerate(in_order)}
        for op in new:
            op.tf_ti_gradient = _found(op, place)
        for op in operations:
            if op.type in _graphs.CALLS:
                called = getattr(_tf.find_function(graph, op.get_attr("f").name), "graph", None)
                if called is not None and called not in seen:
                    seen.add(called)
                    graphs.append(called)


def close(graph: _tf.FuncGraph) -> None:
    """Gives operations of a graph of ours the tensors to which their gradients refer."""
    became: dict[Any, tf.Tensor] = {}
    for op in graph.get_operations():
        gradient = of(op)
        if gradient is None:
            continue
        if not gradient.captured(op.inputs):
            gradient.claim(op)
            continue
        with graph.as_default():
            made = _graphs.copy_in_place(op)
        for waiting in _tf.waiting_operations(op):
            _tf.add_control_input(waiting, made[0].op)
        became.update(zip([t.ref() for t in op.outputs], made))
        graph.left_out.add(op)
    graph.outputs = [became.get(t.ref(), t) for t in graph.outputs]


def _trace(
    function: Callable[..., Any], grads: Sequence[Any]
) -> tuple[_tf.FuncGraph, list[Any], dict[Any, tf.Tensor]]:
    """A graph of a gradient function, the values that it returned, and stand-ins for `grads`."""
    graph, given = _tf.FuncGraph(f"tf_ti_custom_gradient_{next(_uid)}"), {}

    def parameter(tensor: tf.Tensor | None) -> tf.Tensor | None:
        if not isinstance(tensor, tf.Tensor):
            return tensor
        placeholder = tf.compat.v1.placeholder(tensor.dtype, tensor.shape)
        given[placeholder.ref()] = tensor
        return placeholder

    with graph.as_default():
        parameters = tf.nest.map_structure(parameter, list(grads), expand_composites=True)
        returned = function(None, *parameters)
    return graph, list(returned), given


def _found(op: tf.Operation, place: Mapping[tf.Operation, int]) -> CustomGradient | None:
    """The gradient of an operation; `place` numbers all operations in the order of dependence."""
    function = _tf.find_gradient(op)
    if function is None:
        return None
    grads = [t if _tf.is_trainable(t.dtype) else None for t in op.outputs]
    try:
        with op.graph.as_default():
            graph, returned, _ = _trace(function, grads)
    except Exception:  # the user's: who asks for the gradient gets it
        return None
    references = dict.fromkeys(t.ref() for t in op.inputs)
    captured = {}
    for outside, _ in graph.captures:
        if isinstance(outside, _tf.EagerTensor) or _is_around(outside.graph, op.graph):
            continue
        if outside.graph is not op.graph:
            return None
        if outside.ref() not in references:
            captured[outside.ref()] = outside

    def may_depend_on_it(other: tf.Operation) -> bool:
        return place.get(other, len(place)) > place[op]

    # A tensor that depends on the operation cannot be its input.
    if op in _graphs.needed_operations(
        (),
        [t for t in captured.values() if may_depend_on_it(t.op)],
        reads=lambda other: _graphs.reads(other) if may_depend_on_it(other) else (),
    ):
        return None
    is_plain = all(
        not _tf.is_stateful(inner) or inner.type in _tf.READS for inner in graph.get_operations()
    ) and not any(isinstance(grad, tf.IndexedSlices) for grad in returned)
    return CustomGradient(
        function,
        (*(t.ref() for t in op.inputs), *captured),
        len(op.outputs),
        next((k for k, grad in enumerate(returned) if grad is not None), len(returned)),
        is_plain,
        _is_silu(function),
    )


def _is_around(graph: tf.Graph, inner: tf.Graph) -> bool:
    while (inner := getattr(inner, "outer_graph", None)) is not None:
        if graph is inner:
            return True
    return False


def _is_silu(function: Callable[..., Any]) -> bool:
    """True if a gradient is that of tf.nn.silu: by its code, as anyone's may have its name."""
    inner: Any = function
    for name in ("tape_grad_fn", "grad_fn"):
        inner = inspect.getclosurevars(inner).nonlocals.get(name)
        if not inspect.isfunction(inner):
            return False
    return inner.__code__ in _SILU


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


_SILU = frozenset(_codes(inspect.unwrap(tf.nn.silu).__code__))
