"""The origins of the extents of tensors in a traced body.

A tensor's extents may follow from those of others (in a product, a reduction, an elementwise
operation), or from values too (in operations that fill, slice, select). The shape function of an
operation tells which: from shapes alone it finds all extents of the former. Extents that are no
row's may be known to it.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _operations, _tf
from tf_ti.loops import spec as _spec
from tf_ti.loops.tracing import graphs as _graphs

_SHAPES = _operations.of_kinds("Shape")
_CHOICES = {
    "Case": ["branches"],
    "If": ["then_branch", "else_branch"],
    "StatelessCase": ["branches"],
    "StatelessIf": ["then_branch", "else_branch"],
}
_WHILES = ("StatelessWhile", "While")
_SOME_EXTENT = 1024  # for a dimension that is not known


def that_come_from(
    graph: _tf.FuncGraph,
    sources: Iterable[tf.Tensor],
    back_edges: Sequence[tuple[tf.Tensor, tf.Tensor]],
) -> set[Any]:
    """The references of tensors that have unknown extents which come from `sources`.

    Args:
        graph: a body's.
        sources: tensors of the graph, with such extents.
        back_edges: results, and the parameters that they are in the next iteration.
    """
    values = {source.ref() for source in sources}
    extents = set(values)
    _follow_all(graph, values, extents, back_edges)
    return extents


def _follow_all(
    graph: _tf.FuncGraph,
    values: set[Any],
    extents: set[Any],
    back_edges: Sequence[tuple[tf.Tensor, tf.Tensor]],
) -> None:
    """Adds those that depend, in any iteration, on values or extents that are found already."""
    is_new = True
    while is_new:
        _follow(graph, values, extents)
        is_new = False
        for found in (values, extents):
            fed = {p.ref() for result, p in back_edges if result.ref() in found} - found
            is_new = is_new or bool(fed)
            found |= fed


def _follow(graph: _tf.FuncGraph, values: set[Any], extents: set[Any]) -> None:
    for op in graph.get_operations():
        valued = [i for i, tensor in enumerate(op.inputs) if tensor.ref() in values]
        sized = [i for i, tensor in enumerate(op.inputs) if tensor.ref() in extents]
        if not valued and not sized:
            continue
        run = _run_of(op, values, extents)
        if run is not None:
            _follow_run(op, run, values, extents)
        elif op.type in _SHAPES:
            values.update(output.ref() for output in op.outputs if sized)
        else:
            values.update(output.ref() for output in op.outputs)
            unknown = [t.ref() for t in op.outputs if _is_open(t)]
            if unknown and (sized or _tells_extents(op, valued)):
                extents.update(unknown)


def _is_open(tensor: tf.Tensor) -> bool:
    return not tensor.shape.is_fully_defined()


# --- operations that run functions ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Run:
    """The functions that an operation runs: one of several, or one again and again.

    Attributes:
        graphs: the functions'.
        arguments: the parameters' first values.
        is_chosen: true if rows tell which function it is, or how often it runs.
        back_edges: results, and the parameters that they are in the next iteration.
        results: for each output the number of the result, or None where it is none.
        joins: outputs that have an extent of the number of iterations.
    """

    graphs: Sequence[_tf.FuncGraph]
    arguments: Sequence[tf.Tensor]
    is_chosen: bool
    back_edges: Sequence[tuple[int, int]]
    results: Sequence[int | None]
    joins: Sequence[int] = ()


def _run_of(op: tf.Operation, values: set[Any], extents: set[Any]) -> _Run | None:
    """The functions that `op` runs, as far as they are known."""
    given, every = list(op.inputs), list(range(len(op.outputs)))
    if op.type in _graphs.CALLS:
        return _Run(_functions(op, ["f"], given), given, False, [], every)
    if op.type in _CHOICES:
        branches = _functions(op, _CHOICES[op.type], given[1:])
        return _Run(branches, given[1:], given[0].ref() in values, [], every)
    if op.type in _WHILES:
        back_edges = [(i, i) for i in every]
        return _Run(_functions(op, ["body"], given), given, True, back_edges, every)
    if op.type in _spec.OPS:
        spec = _spec.LoopSpec.from_op(op)
        tensors, scalars = given[: len(spec.inputs)], given[len(spec.inputs) :]
        counted = [t for i, t in zip(spec.inputs, tensors) if i.is_counted]
        is_chosen = (
            any(tensor.ref() in extents for tensor in counted)
            or any(tensor.ref() in values for tensor in scalars)
            or spec.condition_inputs is not None
        )
        results = [o.source if o.source >= 0 and o.mode != "count" else None for o in spec.outputs]
        joins = [i for i, o in enumerate(spec.outputs) if o.mode in ("concat", "stack")]
        body = _functions(op, ["body"], tensors)
        return _Run(body, tensors, is_chosen, spec.back_edges, results, joins)
    return None


def _functions(
    op: tf.Operation, attrs: Sequence[str], given: Sequence[tf.Tensor]
) -> list[_tf.FuncGraph]:
    names = [
        function.name
        for attr in map(op.get_attr, attrs)
        for function in (attr if isinstance(attr, list) else [attr])
    ]
    return [_tf.function_graph(op, name, [t.shape for t in given]) for name in names]


def _follow_run(op: tf.Operation, run: _Run, values: set[Any], extents: set[Any]) -> None:
    varying = _varying_results(run) if run.is_chosen else set()
    for graph in run.graphs:
        pairs = list(zip(run.arguments, graph.inputs))
        inner_values = {p.ref() for argument, p in pairs if argument.ref() in values}
        inner_extents = {p.ref() for argument, p in pairs if argument.ref() in extents}
        inner_extents &= {p.ref() for p in graph.inputs if _is_open(p)}
        if run.back_edges:
            inner_extents |= {graph.inputs[p].ref() for r, p in run.back_edges if r in varying}
        edges = [(graph.outputs[result], graph.inputs[p]) for result, p in run.back_edges]
        _follow_all(graph, inner_values, inner_extents, edges)
        starts = {result: graph.inputs[p].ref() for result, p in run.back_edges}
        for i, (output, result) in enumerate(zip(op.outputs, run.results)):
            if result is None:
                values |= {output.ref()}
                continue
            found = {graph.outputs[result].ref(), starts.get(result)}
            if run.is_chosen or found & inner_values:
                values.add(output.ref())
            is_from_rows = found & inner_extents or result in varying
            if _is_open(output) and (is_from_rows or (run.is_chosen and i in run.joins)):
                extents.add(output.ref())


def _varying_results(run: _Run) -> set[int]:
    """Results whose extents depend on the function that is chosen, or on how often it runs."""
    shapes = [shapes_where_all_are_known(graph.outputs) for graph in run.graphs]
    if run.back_edges:
        starts = dict(run.back_edges)
        first = {r: _known(run.graphs[0].inputs[p].shape) for r, p in run.back_edges}
        return {r for r in starts if not _are_one([shapes[0][r], first[r]])}
    return {r for r, found in enumerate(zip(*shapes)) if not _are_one(found)}


def _are_one(shapes: Sequence[tf.TensorShape]) -> bool:
    return all(s.is_fully_defined() and s == shapes[0] for s in shapes)


def _known(shape: tf.TensorShape) -> tf.TensorShape:
    if shape.rank is None:
        return shape
    return tf.TensorShape([_SOME_EXTENT if n is None else n for n in shape.as_list()])


def some_size(tensor: tf.Tensor) -> int:
    """The bytes of a tensor, where it has some extents; 0 if nothing is known of them."""
    shape = _known(tensor.shape)
    return shape.num_elements() * tensor.dtype.size if shape.is_fully_defined() else 0


def of_elements(shape: tf.TensorShape) -> int | list[int]:
    """The shape of a list's elements, as operations on lists get it."""
    return -1 if shape.rank is None else [-1 if n is None else n for n in shape.as_list()]


def some_extent(tensor: tf.Tensor, axis: int) -> int:
    """An extent of a tensor, or some extent; 0 if the tensor's rank is not known."""
    shape = _known(tensor.shape)
    return 0 if shape.rank is None else shape.as_list()[axis]


def some_size_of_iteration(spec: _spec.LoopSpec, parameters: Sequence[tf.Tensor]) -> int:
    """The bytes of an iteration's states and slices, where they have some extents."""
    states = {parameter for _, parameter in spec.back_edges}
    return sum(
        some_size(parameter)
        for i, (given, parameter) in enumerate(zip(spec.inputs, parameters))
        if given.is_sliced or i in states
    )


def shapes_where_all_are_known(tensors: Sequence[tf.Tensor]) -> list[tf.TensorShape]:
    """The shapes of tensors of a function, where its parameters have some extents."""
    unknown = [tf.TensorShape(None)] * len(tensors)
    made: dict[Any, tf.Tensor] = {}
    with _tf.FuncGraph("tf_ti_shapes").as_default():
        for op in _graphs.needed_operations((), tensors, follow_controls=False):
            if op.type == "Placeholder":
                (tensor,) = op.outputs
                shape = _known(tensor.shape)
                made[tensor.ref()] = tf.compat.v1.placeholder(tensor.dtype, shape)
                continue
            try:
                outputs = _tf.repeat_operation(op, [made[tensor.ref()] for tensor in op.inputs])
            except (TypeError, ValueError):  # extents that do not go together
                return unknown
            made.update({old.ref(): output for old, output in zip(op.outputs, outputs)})
        return [made[tensor.ref()].shape for tensor in tensors]


# --- other operations ----------------------------------------------------------------------------


def _tells_extents(op: tf.Operation, valued: Sequence[int]) -> bool:
    """True if the values of these inputs tell extents of the outputs."""
    numbers = _operations.positions(op, "aknrs")
    if numbers and not set(valued) & set(numbers):
        return False
    is_unknown = any(tensor.shape.rank is None for tensor in op.inputs)
    if is_unknown or _graphs.function_names(op.node_def):
        return True
    with _tf.FuncGraph("tf_ti_shapes").as_default():
        inputs = []
        for i, tensor in enumerate(op.inputs):
            shape, value = _known(tensor.shape), tf.get_static_value(tensor)
            if value is None and i not in valued and _may_tell_extents(tensor):
                value = _SOME_EXTENT
            placeholder = tf.compat.v1.placeholder(tensor.dtype, shape)
            is_known = value is not None
            inputs.append(tf.constant(value, tensor.dtype, shape) if is_known else placeholder)
        try:
            outputs = _tf.repeat_operation(op, inputs)
        except (TypeError, ValueError):  # extents that do not go together
            return True
    return any(map(_is_open, outputs))


def _may_tell_extents(tensor: tf.Tensor) -> bool:
    is_integer = tensor.dtype in (tf.int32, tf.int64)
    return is_integer and tensor.shape.rank < 2 and tensor.shape.is_fully_defined()
