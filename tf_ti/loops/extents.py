"""Where the extents of tensors in a traced body come from.

A tensor's extents may follow from those of others (what is elementwise, a product, a reduction), or
from values too (what fills, slices, selects). The shape function of an operation tells which: from
shapes alone it finds all extents of the former.
"""

from collections.abc import Iterable, Sequence

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import graphs as _graphs

# Of operations whose extents come from values: which inputs those are. Of others it is any.
_TELLING = {
    "Fill": [0],
    "BroadcastTo": [1],
    "Reshape": [1],
    "Tile": [1],
    "Pad": [1],
    "PadV2": [1],
    "MirrorPad": [1],
    "Slice": [1, 2],
    "StridedSlice": [1, 2, 3],
}
_SHAPES = ("Shape", "ShapeN", "Size", "Rank")
_SOME_EXTENT = 1024  # for a dimension that is not known


def that_come_from(
    graph: _tf.FuncGraph,
    sources: Iterable[tf.Tensor],
    back_edges: Sequence[tuple[tf.Tensor, tf.Tensor]],
) -> set:
    """The references of tensors that have unknown extents which come from `sources`.

    Args:
        graph: a body's.
        sources: tensors of the graph, with such extents.
        back_edges: results, and the parameters that they are in the next iteration.
    """
    values = {source.ref() for source in sources}
    extents = set(values)
    is_new = True
    while is_new:
        _follow(graph, values, extents)
        is_new = False
        for found in (values, extents):
            fed = {p.ref() for result, p in back_edges if result.ref() in found} - found
            is_new = is_new or bool(fed)
            found |= fed
    return extents


def _follow(graph: _tf.FuncGraph, values: set, extents: set) -> None:
    """Adds what depends on those whose values, or unknown extents, are found already."""
    for op in graph.get_operations():
        valued = [i for i, tensor in enumerate(op.inputs) if tensor.ref() in values]
        sized = [i for i, tensor in enumerate(op.inputs) if tensor.ref() in extents]
        if not valued and not sized:
            continue
        if _graphs.is_call(op):
            _follow_call(op, valued, sized, values, extents)
        elif op.type in _SHAPES:
            values.update(output.ref() for output in op.outputs if sized)
        else:
            values.update(output.ref() for output in op.outputs)
            unknown = [t.ref() for t in op.outputs if not t.shape.is_fully_defined()]
            if unknown and (sized or _tells_extents(op, valued)):
                extents.update(unknown)


def _follow_call(op: tf.Operation, valued: list, sized: list, values: set, extents: set) -> None:
    callee = _tf.find_function(op.graph, op.get_attr("f").name).graph
    inner_values = {callee.inputs[i].ref() for i in valued}
    inner_extents = {callee.inputs[i].ref() for i in sized}
    _follow(callee, inner_values, inner_extents)
    for output, result in zip(op.outputs, callee.outputs):
        if result.ref() in inner_values:
            values.add(output.ref())
        if result.ref() in inner_extents:
            extents.add(output.ref())


def _tells_extents(op: tf.Operation, valued: Sequence[int]) -> bool:
    """Whether the values of these inputs tell extents of the outputs."""
    if not set(valued) & set(_TELLING.get(op.type, valued)):
        return False
    if any(tensor.shape.rank is None for tensor in op.inputs) or _graphs.function_names(
        op.node_def
    ):
        return True
    with _tf.FuncGraph("tf_ti_shapes").as_default():
        inputs = []
        for tensor in op.inputs:
            known = tf.get_static_value(tensor)
            shape = [_SOME_EXTENT if n is None else n for n in tensor.shape]
            placeholder = tf.compat.v1.placeholder(tensor.dtype, shape)
            inputs.append(placeholder if known is None else tf.constant(known, tensor.dtype))
        try:
            outputs = _tf.repeat_operation(op, inputs)
        except (TypeError, ValueError):  # extents that do not go together
            return True
    return not all(output.shape.is_fully_defined() for output in outputs)
