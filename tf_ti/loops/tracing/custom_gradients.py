"""Custom gradients, closed: the tensors that they refer to become inputs of their operations.

tf.custom_gradient gives its results through an IdentityN, of the results and the arguments, whose
gradient is a Python function. That may refer to any tensor of the graph in which it was traced, so
it has no meaning in a copy of the graph, nor where part of the graph is done elsewhere.

`find` looks up the tensors that the function can reach. The function is called only where a
gradient is asked for, or where it uses a tape, whose tensors Python cannot see. Where an operation
is copied these tensors are further inputs, and the copy has a gradient of its own: the user's
function, of the copy's inputs.

A function that is not linear in the gradients that it gets must be called once, with their sum. So
the loop's gradient reads the results of such an operation as the loop recorded them: were they
computed again, the second gradient would call the function for these, too. It is refused where the
operation stands in a conditional or a loop of TensorFlow, whose inner values nobody records.
"""

import dataclasses
import functools
import inspect
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

from tf_ti import _tf
from tf_ti.loops.spec import OPS
from tf_ti.loops.tracing import closures as _closures, graphs as _graphs, linearity as _linearity

_uid = itertools.count()
# By the name of the operation's gradient, or a copy's.
_by_name: "weakref.WeakValueDictionary[str, CustomGradient]" = weakref.WeakValueDictionary()
# In a thread that calls a gradient function to find its references `is_whole` is true, or false.
_asking = threading.local()


@dataclasses.dataclass(frozen=True, eq=False)
class _Trace:
    """What a gradient function computes.

    Attributes:
        graph: its graph.
        parameters: a placeholder for the gradient of each output, or None.
        returned: the values that it returned.
        effects: the operations that run even if nobody uses their results.
    """

    graph: _tf.FuncGraph
    parameters: Sequence[Any]
    returned: Sequence[Any]
    effects: Sequence[tf.Operation]

    @classmethod
    def of(cls, function: Callable[..., Any], grads: Sequence[Any]) -> "_Trace":
        """The trace of a function for such gradients."""
        graph = _tf.FuncGraph(f"tf_ti_custom_gradient_{next(_uid)}")

        def parameter(tensor: tf.Tensor | None) -> tf.Tensor | None:
            if not isinstance(tensor, tf.Tensor):
                return tensor
            return tf.compat.v1.placeholder(tensor.dtype, tensor.shape)

        with graph.as_default(), _tf.EffectsInOrder():
            parameters = tf.nest.map_structure(parameter, list(grads), expand_composites=True)
            returned = list(function(None, *parameters))
        release(graph)
        return cls(graph, parameters, returned, _graphs.effects(graph.get_operations()))

    def stand_ins(self, grads: Sequence[Any]) -> dict[Any, tf.Tensor] | None:
        """The tensors that stand in for the parameters; None if such gradients do not fit."""
        given, own = (
            tf.nest.flatten(list(values), expand_composites=True)
            for values in (grads, self.parameters)
        )
        if [grad is None for grad in given] != [parameter is None for parameter in own]:
            return None
        pairs = zip(own, given)
        return {parameter.ref(): grad for parameter, grad in pairs if isinstance(grad, tf.Tensor)}

    @property
    def values(self) -> list[Any]:
        """The returned values, flat."""
        return tf.nest.flatten(self.returned, expand_composites=True)

    @functools.cached_property
    def is_linear(self) -> bool:
        """True if it is known to be linear in the gradients that it gets, and only computes.

        Effects, too, must take place once for the sum of the gradients.
        """
        if self.effects:
            return False
        given = tf.nest.flatten(list(self.parameters), expand_composites=True)
        parameters = [t for t in given if isinstance(t, tf.Tensor)]
        return _linearity.is_linear(self.graph, parameters, self.values)

    @property
    def used(self) -> list[tf.Tensor]:
        """The tensors of other graphs that it uses, or returns."""
        found = [*(outside for outside, _ in self.graph.captures), *self.values]
        return [t for t in found if tf.is_symbolic_tensor(t) and t.graph is not self.graph]

    @property
    def num_results(self) -> int:
        """The number of the operation's results: None is returned for each, and no argument's."""
        return _count_none(self.returned)


@dataclasses.dataclass(eq=False)
class CustomGradient:
    """The gradient of an operation, and of its copies.

    Attributes:
        name: the operation's.
        function: the user's, as it is registered.
        references: the tensors of its graph to which it may refer, the operation's inputs first.
        num_outputs: how many outputs the operation has that `function` knows.
        num_results: how many of these are results; the others are arguments.
        is_silu: whether it is tf.nn.silu's.
        trace: a trace of the function to use again, if it was called before a gradient was asked
            for: some functions can be called only once.
        is_linear: true if the function is known to be linear in the gradients that it gets; None
            if it was not called yet.
    """

    name: str
    function: Callable[..., Any]
    references: tuple[Any, ...]
    num_outputs: int
    num_results: int
    is_silu: bool
    trace: _Trace | None
    is_linear: bool | None = None

    @property
    def _graph(self) -> tf.Graph:
        """The operation's graph, of which the function knows tensors."""
        return self.references[0].deref().graph

    def captured(self, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors to which it refers beyond the inputs of an operation."""
        return [reference.deref() for reference in self.references[len(inputs) :]]

    def gradients(self, inputs: Sequence[tf.Tensor], grads: Sequence[Any]) -> list[Any]:
        """The gradients of inputs, from those of the outputs, in the current graph."""
        grads = grads[: self.num_outputs]
        trace = self.trace
        if trace is None or trace.stand_ins(grads) is None:
            with self._graph.as_default():
                trace = _Trace.of(self.function, grads)
        self.is_linear = trace.is_linear
        stand_ins = {**dict(zip(self.references, inputs)), **(trace.stand_ins(grads) or {})}
        for outside, inside in getattr(self._graph, "captures", ()):
            if inside.ref() in stand_ins:
                stand_ins[outside.ref()] = stand_ins[inside.ref()]
        self._check_known(trace.used, stand_ins)
        find(trace.graph)
        inside = [t for t in trace.values if getattr(t, "graph", None) is trace.graph]
        made = _graphs.copy_to_default_graph(trace.graph, inside, trace.effects, stand_ins)
        stand_ins |= zip([t.ref() for t in inside], made)
        found = [stand_ins.get(t.ref(), t) if tf.is_symbolic_tensor(t) else t for t in trace.values]
        returned = tf.nest.pack_sequence_as(trace.returned, found, expand_composites=True)
        return [*returned, *[None] * (len(inputs) - len(returned))]

    def _check_known(self, tensors: Sequence[tf.Tensor], stand_ins: Mapping[Any, Any]) -> None:
        """Refuses a tensor of the operation's graph that `find` did not know of."""
        for tensor in tensors:
            if tensor.graph is self._graph and tensor.ref() not in stand_ins:
                raise ValueError(
                    f"the custom gradient of {self.name!r} refers to the tensor {tensor.name!r} of "
                    "the loop's body, which it could not reach when the body was traced; let the "
                    "gradient function refer to it by a local variable of the function around it"
                )

    def find_linearity(self) -> bool:
        """`is_linear`; calls the function if it was not called yet."""
        if self.is_linear is None:
            trace, is_whole = self.trace, True
            if trace is None:
                like = [reference.deref() for reference in self.references[: self.num_outputs]]
                trace, is_whole = _ask(self._graph, like, self.function)
            if trace is None:
                return False
            self.trace, self.is_linear = trace if is_whole else None, trace.is_linear
        return self.is_linear

    def claim(self, op: tf.Operation) -> None:
        """Makes it the gradient of an operation that has all that it refers to as inputs."""

        @_tf.do_not_convert
        def gradient(op: tf.Operation, *grads: Any) -> list[Any]:
            return self.gradients(list(op.inputs), grads)

        name = f"CustomGradient-tf_ti-{next(_uid)}"
        _tf.set_gradient(op, name, gradient)
        op.tf_ti_gradient = self
        _by_name[name] = self

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


def linearity(op: tf.Operation) -> bool | None:
    """Whether the custom gradients of an operation are known to be linear; None if it has none.

    They are its own, or those of operations inside of a call, or of a loop without effects. It
    calls the functions that were not called yet.
    """
    if _graphs.has_custom_gradient(op):
        return _are_linear([of(op)])
    if op.type in _graphs.CALLS or (op.type in OPS and not _tf.is_stateful(op)):
        return linearity_inside(op)
    return None


def linearity_inside(op: tf.Operation) -> bool | None:
    """`linearity` of the custom gradients in the functions that an operation runs."""
    operations = [
        inner
        for body in _graphs.traced_functions(op)
        for inner in _graphs.with_custom_gradients(body)
    ]
    return _are_linear(map(of, operations)) if operations else None


def _are_linear(gradients: Iterable[CustomGradient | None]) -> bool:
    """True if all are known to be linear; calls the functions that were not called yet."""
    return all(gradient is not None and gradient.find_linearity() for gradient in gradients)


def is_nonlinear_inside(op: tf.Operation) -> bool:
    """True if a custom gradient inside of a conditional, a loop or a call may not be linear."""
    return not _are_linear(map(_by_name.get, _graphs.names_of_inner_gradients(op)))


def may_be_nonlinear(graph: _tf.FuncGraph) -> bool:
    """True if a graph, or one of its calls and loops, has a custom gradient that may not be linear.

    It calls no function.
    """
    gradients = map(of, _graphs.with_custom_gradients(graph))
    return any(gradient is None or not gradient.is_silu for gradient in gradients)


def find(graph: _tf.FuncGraph) -> None:
    """Finds the tensors to which the custom gradients of a graph, and of its functions, may refer.

    Where that takes a call of a gradient function that fails, its operation is left as it is.
    """
    if isinstance(graph, _tf.FuncGraph):
        release(graph)
    for each in _graphs.with_functions(graph):
        operations = each.get_operations()
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
            if op.tf_ti_gradient is not None:
                _by_name[op.get_attr("_gradient_op_type").decode()] = op.tf_ti_gradient


def release(graph: tf.Graph) -> None:
    """Lets the custom gradients of a graph, and of its functions, go with their graphs.

    Nobody but tf_ti may need the graph: TensorFlow finds the gradients by their names for ever.
    """
    for traced in (graph, *_tf.graphs_of_functions(graph)):
        for op in traced.get_operations():
            if _graphs.has_custom_gradient(op):
                _tf.release_gradient(op)


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
            made = _graphs.copy_in_place(op, became)
        for waiting in _tf.waiting_operations(op):
            _tf.add_control_input(waiting, made[0].op)
        became.update(zip([t.ref() for t in op.outputs], made))
        graph.left_out.add(op)
    graph.outputs = [became.get(t.ref(), t) for t in graph.outputs]


def _found(op: tf.Operation, place: Mapping[tf.Operation, int]) -> CustomGradient | None:
    """The gradient of an operation; `place` numbers all operations in the order of dependence."""
    function = _tf.find_gradient(op)
    if function is None:
        return None
    num_results, captured, trace = _num_results(function), None, None
    if num_results is not None:
        captured = _captured(op, place, _closures.tensors(function))
    if captured is None:
        trace, is_whole = _ask(op.graph, op.outputs, function)
        if trace is None:
            return None
        num_results, captured = trace.num_results, _captured(op, place, trace.used)
        trace = trace if is_whole else None
    if captured is None or num_results is None:
        return None
    return CustomGradient(
        op.name,
        function,
        (*(t.ref() for t in op.inputs), *captured),
        len(op.outputs),
        num_results,
        _is_silu(function),
        trace,
    )


def _num_results(function: Callable[..., Any]) -> int | None:
    """The number of a custom gradient's results, which come before its arguments; None if unknown.

    A gradient function from a saved model returns None for each of them.
    """
    loaded = _closures.nonlocal_of(function, "func")
    if isinstance(loaded, ConcreteFunction):
        return _count_none(tf.nest.flatten(loaded.structured_outputs, expand_composites=True))
    known = _closures.nonlocal_of(function, "tape_grad_fn")
    return _closures.nonlocal_of(known, "flat_result_len")


def _count_none(returned: Sequence[Any]) -> int:
    """The number of values before the first that is a gradient."""
    return next((k for k, grad in enumerate(returned) if grad is not None), len(returned))


def _ask(
    graph: tf.Graph, like: Sequence[tf.Tensor], function: Callable[..., Any]
) -> tuple[_Trace | None, bool]:
    """The trace of a gradient function, None if it fails; true if it may be used again.

    Such a function may have a loop that calls the same function: that one is not asked.

    Args:
        graph: the operation's graph.
        like: tensors of the types of its outputs.
        function: the function.
    """
    if getattr(_asking, "is_whole", None) is not None:
        _asking.is_whole = False
        return None, False
    grads = [t if _tf.is_trainable(t.dtype) else None for t in like]
    _asking.is_whole = True
    try:
        with graph.as_default():
            return _Trace.of(function, grads), _asking.is_whole
    except Exception:  # the user's: who asks for the gradient gets it
        return None, False
    finally:
        _asking.is_whole = None


def _captured(
    op: tf.Operation, place: Mapping[tf.Operation, int], tensors: Sequence[tf.Tensor] | None
) -> list[Any] | None:
    """References of the tensors that become further inputs of an operation; None if one cannot."""
    if tensors is None:
        return None
    inputs = {t.ref() for t in op.inputs}
    captured = {}
    is_ours = _graphs.is_copy(op.graph)
    inside = {} if is_ours else {outside.ref(): t for outside, t in op.graph.captures}
    for tensor in tensors:
        tensor = inside.get(tensor.ref(), tensor)  # as a branch, or another function, knows it
        if _is_around(tensor.graph, op.graph):
            continue
        if tensor.graph is not op.graph:
            return None
        if tensor.ref() not in inputs:
            captured[tensor.ref()] = tensor

    def may_depend_on_it(other: tf.Operation) -> bool:
        return place.get(other, len(place)) > place[op]

    # A tensor that depends on the operation cannot be its input.
    if op in _graphs.needed_operations(
        (),
        [t for t in captured.values() if may_depend_on_it(t.op)],
        reads=lambda other: _graphs.reads(other) if may_depend_on_it(other) else (),
    ):
        return None
    return list(captured)


def _is_around(graph: tf.Graph, inner: tf.Graph) -> bool:
    while (inner := getattr(inner, "outer_graph", None)) is not None:
        if graph is inner:
            return True
    return False


def _is_silu(function: Callable[..., Any]) -> bool:
    """True if a gradient is that of tf.nn.silu: by its code, as anyone's may have its name."""
    inner = _closures.nonlocal_of(_closures.nonlocal_of(function, "tape_grad_fn"), "grad_fn")
    return getattr(inner, "__code__", None) in _SILU


_SILU = frozenset(_closures.codes(inspect.unwrap(tf.nn.silu).__code__))
