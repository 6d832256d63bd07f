"""Conditionals of small branches: the loop computes all branches, and selects the outputs.

A conditional is a kernel of TensorFlow, which takes longer than its branches often do, and cuts
the program of a body in two. Where no branch has effects or can fail, and all are small, one may as
well compute them all: `tf.where` has the bits of the branch that is taken, whatever is in the
others.

The derivative of a select is another than that of a conditional: where the branch that is not taken
has an infinite slope, it is NaN. So only what runs has selects. A loop, and its derivative, are
differentiated as they were traced; see `lower.add_op`.

The derivative of a conditional is one too. It gets intermediate values of the first as optionals,
with a value where the branch is taken: those are known here, and never become tensors.
"""

import contextlib
import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _operations, _tf
from tf_ti._library import LOWERED_TYPES
from tf_ti.loops.passes import (
    batching as _batching,
    failing as _failing,
    programs as _programs,
)
from tf_ti.loops.passes.step import Unknown
from tf_ti.loops.tracing import graphs as _graphs

TYPES = ("StatelessIf", "StatelessCase")
WITH_EFFECTS = ("If", "Case")
# In nanoseconds: what all branches may take at most, a conditional takes that and more; an
# operation, as long as kernels run it; an element; a multiplication of a product.
_MOST, _OPERATION, _ELEMENT, _MULTIPLICATION = 6_000.0, 100.0, 1.0, 0.25
_MOST_BRANCHES = 8
_PASSING = _operations.names(lambda row: row.kind == "Passing" and row.fails == "Never")
_OPTIONALS = ("OptionalFromValue", "OptionalGetValue", "OptionalNone")
# What derivatives do with these, too.
_OF_OPTIONALS = _PASSING.union(_OPTIONALS, ("AddN", "ZerosLike"))
_PRODUCTS = _operations.of_kinds("Product")


# Operations that may fail for integers alone, where shapes, and inputs that tell shapes, are known.
_SAFE = _operations.names(lambda row: row.is_lowered and row.fails != "ByValues")
_SAFE_OF_FLOATS = _operations.names(lambda row: row.fails == "OfIntegers")


def refusal(op: tf.Operation) -> str | None:
    """The reason why a conditional stays one, or None."""
    try:
        _Check().conditional(op, {})
    except Unknown as found:
        return found.reason
    return None


def with_selects(graph: _tf.FuncGraph) -> _tf.FuncGraph | None:
    """A function's graph with selects for those of its conditionals for which that pays, if any.

    Only to run: its derivative may be NaN where that of `graph` is a number.
    """
    found = [op for op in graph.get_operations() if op.type in TYPES]
    if not found or not _programs.are_there():
        return None
    chosen = {op for op in found if refusal(op) is None}
    if not chosen:
        return None
    chosen |= {op for op in graph.get_operations() if op.type in _OF_OPTIONALS and _has_variant(op)}
    while (chosen := _consistent(chosen, graph)).intersection(found):
        failed: list[tf.Operation] = []
        inliner = _Inliner()

        def select(
            given: list[Any],
            op: tf.Operation,
            inliner: _Inliner = inliner,
            failed: list[tf.Operation] = failed,
        ) -> Sequence[Any]:
            try:
                return inliner.operation(op, given)
            except Unknown:
                failed.append(op)
                raise

        others = {op: lambda given, op=op: select(given, op) for op in chosen}
        try:
            with _tf.stop_recording():
                made = _graphs.extract(
                    "selects",
                    graph,
                    [[t] for t in graph.inputs],
                    graph.outputs,
                    graph.control_outputs,
                    outer_graph=graph.outer_graph,
                    others=others,
                )
        except Unknown:
            chosen.difference_update(failed)
            continue
        _graphs.leave_out_dead(made)
        return made
    return None


def branches(op: tf.Operation) -> list[_tf.FuncGraph]:
    """The graphs of a conditional's branches: of an If that of true first."""
    if op.type.endswith("If"):
        names = [op.get_attr(f"{branch}_branch").name for branch in ("then", "else")]
    else:
        names = [function.name for function in op.get_attr("branches")]
    return [_graph_of(op, name, op.inputs[1:]) for name in names]


def _graph_of(op: tf.Operation, name: str, given: Sequence[tf.Tensor]) -> _tf.FuncGraph:
    function = _tf.find_function(op.graph, name)
    try:
        with op.graph.as_default():  # it knows what the function calls
            graph = getattr(function, "graph", None)
    except ValueError:  # or only the runtime does, of branches that a derivative rewrote
        raise Unknown("a function that a branch calls is not known", op) from None
    # A graph that is not of ours may be empty.
    if graph is None or len(graph.outputs) != len(op.outputs) or len(graph.inputs) != len(given):
        graph = _tf.loaded_function_graph(op, name, [t.shape for t in given])
    return graph


def _has_variant(op: tf.Operation) -> bool:
    return any(t.dtype == tf.variant for t in (*op.inputs, *op.outputs))


def _consistent(chosen: Collection[tf.Operation], graph: _tf.FuncGraph) -> set[tf.Operation]:
    """Those of some operations that give variants to no other, and get none of another."""
    kept, results = set(chosen), {t.ref() for t in graph.outputs}

    def is_consistent(op: tf.Operation) -> bool:
        given = [t for t in op.inputs if t.dtype == tf.variant]
        made = [t for t in op.outputs if t.dtype == tf.variant]
        readers = [reader for t in made for reader in t.consumers()]
        is_result = any(t.ref() in results for t in made)
        return not is_result and all(other in kept for other in (*(t.op for t in given), *readers))

    while lost := {op for op in kept if not is_consistent(op)}:
        kept -= lost
    return kept


# --- the check -----------------------------------------------------------------------------------

# The values of parameters of a branch's graph that are known.
_Known = Mapping[Any, Any]


class _Check:
    """A walk through a conditional's branches that refuses what may not always run.

    Attributes:
        cost: an estimate of the nanoseconds that it takes to compute all of them.
    """

    def __init__(self) -> None:
        self.cost = 0.0

    def conditional(self, op: tf.Operation, known: _Known) -> None:
        if op.type in WITH_EFFECTS:
            raise Unknown("a branch has effects, or may fail", op)
        predicate = op.inputs[0]
        if predicate.shape.rank != 0 or predicate.dtype not in LOWERED_TYPES:
            raise Unknown("its condition is no scalar that programs have", op)
        graphs = branches(op)
        if len(graphs) > _MOST_BRANCHES:
            raise Unknown(f"it has more than {_MOST_BRANCHES} branches", op)
        for graph in graphs:
            self.function(graph, [_static(t, known) for t in op.inputs[1:]])
        for i, output in enumerate(op.outputs):
            if output.dtype == tf.variant or not _batching.is_read(output):
                continue
            shapes = [graph.outputs[i].shape for graph in graphs]
            self._check_values(op, [graph.outputs[i] for graph in graphs])
            if any(shape != shapes[0] for shape in shapes):
                raise Unknown("its branches have values of different shapes", op)
            self._add(op, len(shapes) * math.prod(shapes[0].as_list()))

    def function(self, graph: _tf.FuncGraph, values: Sequence[Any]) -> None:
        known = {
            parameter.ref(): value
            for parameter, value in zip(graph.inputs, values)
            if value is not None
        }
        # Those that only run, and are waited for, too.
        for op in _graphs.needed_operations(graph.inputs, graph.outputs, graph.control_outputs):
            self._operation(op, known)

    def _operation(self, op: tf.Operation, known: _Known) -> None:
        kind = op.type
        if kind in (*TYPES, *WITH_EFFECTS):
            self.conditional(op, known)
            return
        if _graphs.is_call(op):
            graph = _graph_of(op, op.get_attr("f").name, op.inputs)
            self.function(graph, [_static(t, known) for t in op.inputs])
            return
        if kind in ("Const", "NoOp", *_OPTIONALS, *_PASSING):
            return
        if kind in _OF_OPTIONALS and _has_variant(op):
            return
        if kind not in _SAFE:
            raise Unknown(f"a branch has {kind}, which may fail or has no program", op)
        tensors = (*op.inputs, *op.outputs)
        is_of_integers = kind in _SAFE_OF_FLOATS and not all(t.dtype.is_floating for t in tensors)
        if is_of_integers and _static(op.outputs[0], known) is None:
            raise Unknown(f"a branch has {kind} of integers, which may fail", op)
        if any(_static(tensor, known) is None for tensor in _operations.inputs(op, "aknrs")):
            raise Unknown(f"a branch has {kind} of positions or shapes that are not known", op)
        if _failing.has_wrong_extents(op, lambda t: _static(t, known), lambda tensor: None):
            raise Unknown(f"a branch has {kind} of axes or extents that may be wrong", op)
        # Its numbers have no known shape, but who reads them must know them.
        if kind in ("BroadcastArgs", "BroadcastGradientArgs"):
            return
        self._check_values(op, tensors, known)
        refusal = _programs.refusal(op)
        if refusal is not None:
            raise Unknown(f"a branch has {kind}: {refusal}", op)
        if kind in _PRODUCTS:
            self.cost += _MULTIPLICATION * _multiplications(op)
        self._add(op, max(map(_elements, tensors), default=0))

    def _check_values(
        self, op: tf.Operation, tensors: Sequence[tf.Tensor], known: _Known | None = None
    ) -> None:
        for tensor in tensors:
            if not tensor.shape.is_fully_defined():
                # The axes of a sum, say, which another operation tells.
                if known is None or _static(tensor, known) is None:
                    raise Unknown("a branch has values of shapes that are not known", op)
            if tensor.dtype not in LOWERED_TYPES:
                raise Unknown(f"a branch has values of type {tensor.dtype.name}", op)

    def _add(self, op: tf.Operation, elements: int) -> None:
        self.cost += _OPERATION + _ELEMENT * elements
        if self.cost > _MOST:
            raise Unknown("its branches are too large to compute all of them", op)


def _elements(tensor: tf.Tensor) -> int:
    """The number of elements; 0 for positions and shapes, which are known."""
    return math.prod(tensor.shape.as_list()) if tensor.shape.is_fully_defined() else 0


def _multiplications(op: tf.Operation) -> float:
    """The number of multiplications of a product, or more."""
    sizes = [math.prod(t.shape.as_list()) for t in (*op.inputs, *op.outputs)]
    # Each dimension is of two of the three, or, if it is a batch's, of all.
    return math.sqrt(math.prod(map(float, sizes))) if len(sizes) == 3 else float(math.prod(sizes))


def _static(tensor: tf.Tensor, known: _Known) -> np.ndarray | None:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    if tensor.ref() in known:
        return known[tensor.ref()]
    return None if tensor.dtype == tf.variant else _tf.static_value(tensor)


# --- the selects ---------------------------------------------------------------------------------

# The values that a condition may have. Only the numbers of branches matter: -1 stands for all
# others. True counts as any number but 0, as conditions of numbers do.
_Numbers = frozenset[int]
_ANY: _Numbers = frozenset(range(-1, _MOST_BRANCHES))


@dataclasses.dataclass(frozen=True)
class _Optional:
    """An optional: its values where it has some, else None."""

    values: tuple[Any, ...] | None


@dataclasses.dataclass(frozen=True)
class _Choice:
    """An optional of a conditional: an optional for each set of values of the condition.

    Branches may have values of other types. Who reads one is in a branch of a conditional of the
    same condition, most often.
    """

    condition: Any
    optionals: tuple[tuple[_Numbers, Any], ...]


class _Inliner:
    """Adds the branches of conditionals, and selects, to the current graph.

    Conditionals of the same condition may differ in their number of branches, or be an If and a
    Case. So a branch knows the values of its condition, not the position of the branch.

    Attributes:
        known: by the reference of a condition, the values that it may have where operations are
            added; any, if it is not there.
    """

    def __init__(self) -> None:
        self.known: dict[Any, _Numbers] = {}

    def operation(self, op: tf.Operation, given: Sequence[Any]) -> Sequence[Any]:
        """Adds an operation; its outputs."""
        if op.type in TYPES:
            return self._conditional(op, given)
        if _graphs.is_call(op):
            return self._function(_graph_of(op, op.get_attr("f").name, op.inputs), given)
        if op.type == "OptionalFromValue":
            return [_Optional(tuple(given))]
        if op.type == "OptionalNone":
            return [_Optional(None)]
        if op.type == "OptionalGetValue":
            optional = self._resolved(given[0])
            if not isinstance(optional, _Optional) or optional.values is None:
                raise Unknown("a branch reads a value that is not known", op)
            return optional.values
        if op.type in _PASSING:
            return given
        if op.type in ("AddN", "ZerosLike") and not isinstance(given[0], tf.Tensor):
            return [self._sum(given) if op.type == "AddN" else _zeros_like(given[0])]
        if not all(isinstance(value, tf.Tensor) and value.dtype != tf.variant for value in given):
            raise Unknown("a variant is more than passed on", op)
        return _tf.repeat_operation(op, given)

    def _function(self, graph: _tf.FuncGraph, arguments: Sequence[Any]) -> list[Any]:
        values: dict[Any, Any] = dict(zip([t.ref() for t in graph.inputs], arguments))
        for op in _graphs.needed_operations(graph.inputs, graph.outputs, follow_controls=False):
            given = [values[t.ref()] for t in op.inputs]
            values.update(zip([t.ref() for t in op.outputs], self.operation(op, given)))
        return [values[t.ref()] for t in graph.outputs]

    def _conditional(self, op: tf.Operation, given: Sequence[Any]) -> list[Any]:
        condition, *arguments = given
        if not isinstance(condition, tf.Tensor):
            raise Unknown("its condition is not known", op)
        graphs, numbers = branches(op), _numbers(op)
        possible = self._possible(condition.ref(), list(zip(numbers, range(len(graphs)))))
        outputs = []
        for values, k in possible:
            with self._where(condition.ref(), values):
                outputs.append(self._function(graphs[k], arguments))
        if len(possible) == 1:
            return outputs[0]
        predicates = [_predicate(op, condition, k) for _, k in possible[:-1]]
        taken_by = [values for values, _ in possible]
        return [
            _chosen(condition, taken_by, predicates, values)
            if _batching.is_read(output)
            else values[0]
            for output, values in zip(op.outputs, zip(*outputs))
        ]

    def _possible(
        self, condition: Any, cases: Sequence[tuple[_Numbers, Any]]
    ) -> list[tuple[_Numbers, Any]]:
        """Those cases of a condition that may be, with its values there."""
        known = self.known.get(condition, _ANY)
        return [(known & numbers, case) for numbers, case in cases if known & numbers]

    @contextlib.contextmanager
    def _where(self, condition: Any, numbers: _Numbers) -> Iterator[None]:
        """A context in which the condition has one of these values."""
        before = self.known
        self.known = {**before, condition: numbers}
        try:
            yield
        finally:
            self.known = before

    def _resolved(self, optional: Any) -> Any:
        while isinstance(optional, _Choice):
            possible = [o for _, o in self._possible(optional.condition, optional.optionals)]
            if len(possible) > 1:
                # The others are not read: they have no value.
                possible = [o for o in map(self._resolved, possible) if o.values is not None]
            if len(possible) > 1:
                raise Unknown("a branch reads a value that is not known")
            optional = possible[0] if possible else _Optional(None)
        if not isinstance(optional, _Optional):
            raise Unknown("a branch reads a value that is not known")
        return optional

    def _sum(self, given: Sequence[Any]) -> Any:
        """What has no value is of a branch that is not taken, or all have none."""
        if all(isinstance(value, tf.Tensor) and value.dtype != tf.variant for value in given):
            dtype = given[0].dtype
            (total,) = _tf.add_operation("AddN", given, [dtype], N=len(given), T=dtype)
            return total
        for choice in given:
            if not isinstance(choice, _Choice):
                continue
            possible = self._possible(choice.condition, choice.optionals)
            if len(possible) > 1:
                sums = []
                for numbers, _ in possible:
                    with self._where(choice.condition, numbers):
                        sums.append((numbers, self._sum(list(map(self._resolved, given)))))
                return _Choice(choice.condition, tuple(sums))
        values = [o.values for o in map(self._resolved, given) if o.values is not None]
        if len(values) < 2:
            return _Optional(values[0] if values else None)
        return _Optional(tuple(map(self._sum, zip(*values))))


def _zeros_like(value: Any) -> Any:
    if isinstance(value, tf.Tensor):
        return _add("ZerosLike", [value], value.dtype, T=value.dtype)
    if isinstance(value, _Choice):
        optionals = tuple((numbers, _zeros_like(o)) for numbers, o in value.optionals)
        return _Choice(value.condition, optionals)
    return _Optional(None if value.values is None else tuple(map(_zeros_like, value.values)))


def _numbers(op: tf.Operation) -> list[_Numbers]:
    """The values of its condition by which a conditional takes each of its branches."""
    if op.type == "StatelessIf":
        return [_ANY - {0}, frozenset([0])]
    # What is the number of no branch takes the last.
    numbers = range(len(op.get_attr("branches")) - 1)
    return [*(frozenset([k]) for k in numbers), _ANY.difference(numbers)]


def _predicate(op: tf.Operation, condition: tf.Tensor, k: int) -> tf.Tensor:
    """True where branch `k`, which is not the last, is taken."""
    dtype = condition.dtype
    if op.type == "StatelessCase":
        return _add("Equal", [condition, tf.constant(k, dtype)], tf.bool, T=dtype)
    if dtype == tf.bool:
        return condition
    return _add("NotEqual", [condition, tf.zeros([], dtype)], tf.bool, T=dtype)


def _chosen(
    condition: tf.Tensor,
    numbers: Sequence[_Numbers],
    predicates: Sequence[tf.Tensor],
    values: Sequence[Any],
) -> Any:
    """One of some values: the last, unless a predicate before is true."""
    if not isinstance(values[0], tf.Tensor):
        return _Choice(condition.ref(), tuple(zip(numbers, values)))
    result = values[-1]
    for predicate, value in reversed(list(zip(predicates, values))):
        if value is not result:
            result = _add("SelectV2", [predicate, value, result], value.dtype, T=value.dtype)
    return result


def _add(kind: str, inputs: Sequence[Any], dtype: tf.DType, **attrs: Any) -> tf.Tensor:
    if not all(isinstance(t, tf.Tensor) and t.dtype in LOWERED_TYPES for t in inputs):
        raise Unknown("a variant is more than passed on")
    (made,) = _tf.add_operation(kind, inputs, [dtype], **attrs)
    return made
