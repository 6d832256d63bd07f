"""Lists that operations write to, and of which they read no element."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.spec import OPS, LoopSpec
from tf_ti.loops.tracing import graphs as _graphs


def is_only_written(
    tensor: tf.Tensor, operations: Iterable[tf.Operation], results: Collection[tf.Tensor]
) -> bool:
    """True if the elements of a list do not change the results of operations.

    Args:
        tensor: the list.
        operations: sorted, each after the operations that it needs.
        results: the results, without lists that nobody needs.
    """
    lists = _follow({tensor.ref()}, operations, may_read=False)
    return lists is not None and not any(t.ref() in lists for t in results)


def keeps_its_length(
    tensor: tf.Tensor, operations: Iterable[tf.Operation], result: tf.Tensor
) -> bool:
    """True if operations, sorted, are known to make only lists as long as a list of it.

    The result of an iteration must be such a list.
    """
    lists = _follow({tensor.ref()}, operations, may_read=True)
    return lists is not None and result.ref() in lists


def _follow(lists: set[Any], operations: Iterable[tf.Operation], may_read: bool) -> set[Any] | None:
    """References of lists, and of the lists of the same length that operations make of them.

    None if an operation may make a list of another length, or reads an element and may not.
    """
    for op in operations:
        given = {i for i, t in enumerate(op.inputs) if t.ref() in lists}
        if given:
            made = _made_of(op, given, may_read)
            if made is None:
                return None
            lists.update(op.outputs[i].ref() for i in made)
    return lists


def _made_of(op: tf.Operation, given: set[int], may_read: bool) -> Iterable[int] | None:
    """The outputs that are lists made of the inputs `given`; None as `_follow`."""
    if op.type in ("Identity", "OptionalFromValue", "OptionalGetValue"):
        return [0]
    if op.type in ("TensorListElementShape", "TensorListLength"):
        return []
    if op.type == "TensorListSetItem":
        return [0] if given == {0} and not op.get_attr("resize_if_index_out_of_bounds") else None
    if op.type in OPS:
        return _made_by_loop(op, given, may_read)
    if op.type not in _graphs.WITH_FUNCTIONS:
        return [] if may_read and all(t.dtype != tf.variant for t in op.outputs) else None
    if op.type in _graphs.CONDITIONALS:
        given = {i - 1 for i in given}  # without the predicate
    is_while = op.type in ("While", "StatelessWhile")
    names = _graphs.function_names(op.node_def)
    return _made_by_functions(op, names, given, is_while, may_read)


def _made_by_functions(
    op: tf.Operation, names: Sequence[str], given: set[int], is_while: bool, may_read: bool
) -> set[int] | None:
    made: set[int] = set()
    for name in names:
        graph = _tf.function_graph(op, name, None)
        lists = _follow(
            {graph.inputs[i].ref() for i in given},
            _graphs.needed_operations(graph.inputs, graph.outputs, graph.control_outputs),
            may_read,
        )
        if lists is None:
            return None
        made.update(i for i, t in enumerate(graph.outputs) if t.ref() in lists)
    if is_while and not made <= given:
        return _made_by_functions(op, names, given | made, is_while, may_read)
    return given | made if is_while else made


def _made_by_loop(op: tf.Operation, given: set[int], may_read: bool) -> list[int] | None:
    """The same of a loop of ours. What it records is taken for a list, of which others read."""
    spec = LoopSpec.from_op(op)
    condition_inputs = spec.condition_inputs or ()
    if any(spec.inputs[i].mode != "value" or i in condition_inputs for i in given):
        return None
    made = _made_by_functions(op, [_tf.body_of(op)], given, False, may_read)
    if made is None:
        return None
    fed = given | {parameter for result, parameter in spec.back_edges if result in made}
    if fed != given:
        return _made_by_loop(op, fed, may_read)
    sources = made | {~i for i in given}
    return [i for i, o in enumerate(spec.outputs) if o.mode != "count" and o.source in sources]
