"""Reads at a counter: element k of a tensor in iteration k becomes a slice.

A body reads elements one by one, as `x[k]`, as `tf.gather(x, k)`, or from a TensorArray that was
unstacked from x, where k is a state to which each iteration adds 1, or from which it subtracts 1.
The loop slices x instead, as a scan does: passes know slices, programs have no lists, and the
gradient of a slice is not as large as x.

Where the loop might have more iterations than x has elements, the slices are an iterator. It fails
in the iteration that has no element, as the read does. A read whose index may be negative stays.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import spec as _spec
from tf_ti.loops.passes import counters as _counters, steady as _steady
from tf_ti.loops.passes.analysis import without_identity
from tf_ti.loops.passes.counters import Index
from tf_ti.loops.passes.step import Mention, Note, Step
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing import graphs as _graphs

TYPES = ("GatherV2", "StridedSlice", "TensorListGetItem")


@dataclasses.dataclass(frozen=True, eq=False)
class _Slices:
    """Slices that take the place of reads.

    Attributes:
        given: the loop's input.
        tensor: the tensor that it slices.
        reads: the operations that read the same elements.
    """

    given: _spec.Input
    tensor: tf.Tensor
    reads: list[tf.Operation]


def slice_reads(loop: TracedLoop) -> Step | None:
    """Takes the reads at counters out of a loop, if there are any."""
    operations = loop.part.operations
    if any(map(_graphs.has_open_gradient, operations)):
        return None
    # Tensors to which custom gradients refer stay as they are.
    held = {t.ref() for op in operations for t in _graphs.reads(op)[len(op.inputs) :]}
    found: dict[Any, _Slices | None] = {}
    for op in operations:
        place = _place(loop, op)
        if place is None or op.control_inputs or op.outputs[0].ref() in held:
            continue
        tensor, index = place
        key = (id(tensor), index.by, id(index.state), index.offset)
        if key not in found:
            found[key] = _slices(loop, op, tensor, index)
        if (slices := found[key]) is not None:
            slices.reads.append(op)
    made = [slices for slices in found.values() if slices is not None]
    return _with_slices(loop, made) if made else None


def is_always_there(loop: TracedLoop, op: tf.Operation) -> bool:
    """True if an operation reads an element at a counter, which is there in all iterations."""
    place = _place(loop, op)
    slices = None if place is None else _slices(loop, op, *place)
    if place is None or slices is None:
        return False
    if slices.given.mode == "index":
        return True
    tensor, index = place
    limit, extent, first = loop.num_iterations, _tf.known_extent(tensor, 0), index.first
    count = _tf.static_value(limit) if isinstance(limit, tf.Tensor) else limit
    if loop.condition is not None or extent is None or first is None or count is None:
        return False
    return index.by > 0 and first + max(count, 0) <= extent


def _place(loop: TracedLoop, op: tf.Operation) -> tuple[tf.Tensor, Index] | None:
    """The invariant tensor of which an operation reads an element, and the element's index."""
    if op.type == "TensorListGetItem":
        tensor, number = _counters.unstacked(loop, op), op.inputs[1]
    elif op.type == "GatherV2" and op.get_attr("batch_dims") == 0:
        _, number, axis = op.inputs
        if number.shape.rank != 0 or tf.get_static_value(axis) != 0:
            return None
        tensor = _invariant(loop, op)
    elif op.type == "StridedSlice" and op.get_attr("shrink_axis_mask") == 1:
        begin = op.inputs[1]
        others = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask")
        if begin.op.type != "Pack" or len(begin.op.inputs) != 1 or any(map(op.get_attr, others)):
            return None
        tensor, (number,) = _invariant(loop, op), begin.op.inputs
    else:
        return None
    # Elements that are variants, as ragged rows are, stay in their list: TensorFlow has no zeros of
    # several in one tensor, which gradients ask for.
    if tensor is None or tensor.dtype in (tf.resource, tf.variant) or not tensor.shape.rank:
        return None
    index = _counters.index_of(loop, number)
    return None if index is None else (tensor, index)


def _invariant(loop: TracedLoop, op: tf.Operation) -> tf.Tensor | None:
    """The tensor before the loop that an operation reads, if that is one."""
    source = _source(op)
    is_parameter = source.op.type == "Placeholder"
    return _counters.invariant(loop, _counters.position(loop, source)) if is_parameter else None


def _slices(loop: TracedLoop, op: tf.Operation, tensor: tf.Tensor, index: Index) -> _Slices | None:
    """The slices of a tensor, from the first index on; None if the reads stay."""
    extent, first = _tf.known_extent(tensor, 0), index.first
    is_counted, limit = loop.condition is None, loop.num_iterations
    count = _tf.static_value(limit) if isinstance(limit, tf.Tensor) else limit
    if index.by == 1:
        # With a condition, most elements may never be read.
        if first is None or first < 0 or (first > 0 and not is_counted):
            return None
        if extent is not None:
            is_known = max(extent - first, 0) == count
        else:
            is_known = count is None and limit is not None and _is_rest(limit, tensor, first)
        mode, order = "index" if is_known and is_counted else "iterator", _spec.FORWARDS
        taken = slice(first, None)
    elif index.by == -1 and is_counted and limit is not None:
        mode, order = "index", _spec.BACKWARDS
        if extent is not None and first is not None and count is not None:
            if not count <= first + 1 <= extent:
                return None
            taken = slice(first + 1 - int(count), first + 1)
        elif extent is first is count is None and _is_last(index, limit, tensor):
            taken = slice(0, None)
        else:
            return None
    else:
        return None
    if op.type == "GatherV2" and mode == "iterator":  # on a GPU it gives zeros past the end
        return None
    label = f"the elements that {op.name!r} reads" if mode == "iterator" else "the counted elements"
    if taken != slice(0, None) and taken != slice(0, extent):
        with tf.name_scope("before_loop"):
            tensor = tensor[taken]
    shape = op.outputs[0].shape.merge_with(tensor.shape[1:])
    return _Slices(_spec.Input(label, shape, mode, 0, *order), tensor, [])


def _is_rest(limit: tf.Tensor, tensor: tf.Tensor, first: int) -> bool:
    """True if there are as many iterations as elements, from the first element that is read."""
    if first == 0:
        return _is_extent(limit, tensor)
    extent = _tf.extent_before(limit, first, or_0=True)
    return extent is not None and _is_extent(extent, tensor)


def _is_last(index: Index, limit: tf.Tensor, tensor: tf.Tensor) -> bool:
    """True if an index begins at the last element, and all are read."""
    extent = _tf.extent_before(index.state, 1 + index.offset)
    is_last = extent is not None and _is_extent(extent, tensor)
    return is_last and _is_extent(limit, tensor)


def _is_extent(number: tf.Tensor, tensor: tf.Tensor) -> bool:
    """True if a number is the extent of a tensor's first axis, or of a tensor that has the same."""
    return _tf.is_extent(number, tensor, 0) or _steady.is_extent(number, tensor, 0)


def _with_slices(loop: TracedLoop, made: Sequence[_Slices]) -> Step:
    spec, part, count = loop.spec, loop.part, len(loop.spec.inputs)
    sources = {_counters.position(loop, _source(op)) for each in made for op in each.reads}
    parameters = list(part.parameters)
    # Before the parameters that the condition feeds.
    parameters[count:count] = [[op.outputs[0] for op in each.reads] for each in made]
    sliced = loop.with_part(
        dataclasses.replace(spec, inputs=(*spec.inputs, *(each.given for each in made))),
        [*loop.tensors, *(each.tensor for each in made)],
        parameters,
        part.results,
        droppable=sources,
    )
    if any(each.given.is_counted for each in made):
        sliced = dataclasses.replace(sliced, num_iterations=None)  # the slices tell it
    mentions = tuple(Mention.of(op) for each in made for op in each.reads)
    where = "as slices"
    text = f"read {where}: {', '.join(mention.type for mention in mentions)}"
    return Step(sliced, notes=(Note("slices", text, True, mentions, len(mentions), place=where),))


def _source(op: tf.Operation) -> tf.Tensor:
    return without_identity(op.inputs[0])
