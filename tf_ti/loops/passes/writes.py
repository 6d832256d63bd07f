"""Writes at a counter: element k of a TensorArray in iteration k becomes element k of a stack.

A body writes `a = a.write(k, y)`, where k is a state to which each iteration adds 1, or from which
it subtracts 1. If nothing in the loop reads the array, the loop stacks the values, as a scan does,
and after the loop a list is made of the stack. An array that each iteration writes at the same
index has the last value there.

Before the loop, the array must be empty but for the elements before the first write of the loop.
All values must be known to have one shape, as an array may have elements of several shapes.
"""

import dataclasses

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import spec as _spec
from tf_ti.loops.passes import counters as _counters, steady as _steady
from tf_ti.loops.passes.analysis import without_identity
from tf_ti.loops.passes.counters import Index
from tf_ti.loops.passes.step import Mention, Note, Step
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing import extents as _extents, graphs as _graphs

# The most bytes of zeros for elements that a loop may never write; of one, where their number is
# not known. In a list such elements take no memory until it is stacked.
_SMALL, _SMALL_ELEMENT = 2**26, 2**12


@dataclasses.dataclass(frozen=True, eq=False)
class _Array:
    """A list as it is before the loop.

    Attributes:
        tensor: the list.
        shape: the shape of its elements, as far as it knows.
        size: the number of its elements.
        written: the elements that are written, by index.
    """

    tensor: tf.Tensor
    shape: tf.TensorShape
    size: int | tf.Tensor
    written: dict[int, tf.Tensor]

    @classmethod
    def of(cls, tensor: tf.Tensor) -> "_Array | None":
        """None where not all is known that a pass asks for."""
        if not tf.is_symbolic_tensor(tensor):
            return None
        made = without_identity(tensor)
        written: dict[int, tf.Tensor] = {}
        while made.op.type == "TensorListSetItem":
            at = _tf.static_value(made.op.inputs[1])
            if at is None:
                return None
            written.setdefault(int(at), made.op.inputs[2])
            made = without_identity(made.op.inputs[0])
        if made.op.type != "TensorListReserve":
            return None
        shape = tf.get_static_value(made.op.inputs[0])
        if shape is None:
            return None
        shape = tf.TensorShape(None if shape.ndim == 0 else [None if d < 0 else d for d in shape])
        size, known = made.op.inputs[1], _tf.static_value(made.op.inputs[1])
        return cls(tensor, shape, size if known is None else int(known), written)


@dataclasses.dataclass(frozen=True, eq=False)
class _Write:
    """A write of each iteration to a list of which it is the only use.

    Attributes:
        op: the operation.
        edge: the back edge of the list.
        array: the list.
        mode, stride: the mode and the stride of the loop's output of the values.
        length: the length of the stack, if it is not the number of iterations.
        limit: the number of iterations of a loop that may have 0, for a last value.
    """

    op: tf.Operation
    edge: tuple[int, int]
    array: _Array
    mode: str
    stride: int = 1
    length: int | tf.Tensor | None = None
    limit: tf.Tensor | None = None

    def finish(self, values: tf.Tensor) -> tf.Tensor:
        """The list after the loop, of the output."""
        tensor = self.array.tensor
        with tf.name_scope("after_loop"), tf.control_dependencies([tensor]):
            if self.mode == "last":
                if self.limit is not None:  # a list has zeros where nothing is written
                    values = tf.where(self.limit > 0, values, tf.zeros_like(values))
                made = tf.raw_ops.TensorListSetItem(
                    input_handle=tensor,
                    index=tf.get_static_value(self.op.inputs[1]),
                    item=values,
                    resize_if_index_out_of_bounds=_grows(self.op),
                )
            else:
                written = self.array.written
                if written:
                    first = tf.stack([written[k] for k in sorted(written)])
                    values = tf.concat([first, values], 0)
                made = tf.raw_ops.TensorListFromTensor(
                    tensor=values,
                    element_shape=tf.constant(_extents.of_elements(self.array.shape), tf.int32),
                )
        _tf.copy_handle_data(tensor, made)
        return made


def _grows(op: tf.Operation) -> bool:
    return op.get_attr("resize_if_index_out_of_bounds")


def stack_writes(loop: TracedLoop) -> Step | None:
    """Takes the arrays that are only written at counters out of a loop, if there are any."""
    loop = loop.whole()
    if any(map(_graphs.has_open_gradient, loop.body.get_operations())):
        return None
    steady = _steady.Steady(loop)
    writes = [w for edge in loop.spec.back_edges if (w := _write(loop, edge, steady)) is not None]
    return _with_stacks(loop, writes) if writes else None


def _write(loop: TracedLoop, edge: tuple[int, int], steady: _steady.Steady) -> _Write | None:
    """The write to a state, if the state is such a list."""
    result, parameter = edge
    value, op = loop.body.inputs[parameter], without_identity(loop.body.outputs[result]).op
    if op.type != "TensorListSetItem" or op.inputs[0] is not value or op.control_inputs:
        return None
    item, array = op.inputs[2], _Array.of(loop.tensors[parameter])
    if array is None or item.dtype in (tf.variant, tf.resource):
        return None
    if not _knows(item.shape, array.shape):
        return None
    if not _is_only_written(loop, op, edge):
        return None
    limit = loop.num_iterations
    count = _tf.static_value(limit) if isinstance(limit, tf.Tensor) else limit
    place = tf.get_static_value(op.inputs[1])
    if place is not None:
        if loop.condition is not None or not isinstance(limit, int | tf.Tensor):
            return None
        write = _Write(op, edge, array, "last")
        if count is not None:
            return write if count > 0 else None
        # Without an iteration there is no last value but a state's, and no error of the index.
        is_there = isinstance(array.size, int) and 0 <= place < array.size
        is_state = _state_of(loop, item, result) != result and item in steady
        may_be_none = is_there and is_state and not array.written
        return dataclasses.replace(write, limit=limit) if may_be_none else None
    index = _counters.index_of(loop, op.inputs[1])
    if index is None or not _fits(array, index, item) or item not in steady:
        return None
    write = _Write(op, edge, array, "stack", index.by)
    if loop.condition is None and _is_whole(array, index, limit, count):
        return write
    if index.by < 0 or index.first != 0:
        return None
    if _grows(op):
        return write if isinstance(array.size, int) and array.size == 0 else None
    # Elements that are not written are zeros, if all know their shape.
    if not array.shape.is_fully_defined() or _is_too_short(array, count):
        return None
    size = array.shape.num_elements() * item.dtype.size
    is_small = (
        size <= _SMALL_ELEMENT if not isinstance(array.size, int) else size * array.size <= _SMALL
    )
    return dataclasses.replace(write, length=array.size) if is_small else None


def _is_only_written(loop: TracedLoop, op: tf.Operation, edge: tuple[int, int]) -> bool:
    """True if the write is the only use of the list in the loop, and its result is only a state."""
    result, parameter = edge
    graph, given = loop.body, loop.body.inputs[parameter]
    rest = [*(t for r, t in enumerate(graph.outputs) if r != result), *op.inputs[1:]]
    others = _graphs.needed_operations(graph.inputs, rest, graph.control_outputs)
    read = {t.ref() for other in others for t in _graphs.reads(other)} | {t.ref() for t in rest}
    outputs = [o.mode for o in loop.spec.outputs if o.source == result and o.mode != "count"]
    return (
        op not in others
        and given.ref() not in read
        and parameter not in loop.condition_inputs
        and outputs == ["last"]
        and [r for r, _ in loop.spec.back_edges].count(result) == 1
        and not any(o.source == ~parameter for o in loop.spec.outputs)
    )


def _knows(shape: tf.TensorShape, wanted: tf.TensorShape) -> bool:
    """True if a shape is known to fit the elements of a list."""
    return shape.rank is not None and shape.is_subtype_of(wanted)


def _fits(array: _Array, index: Index, item: tf.Tensor) -> bool:
    """True if the list is empty but for the elements before the first write of the loop."""
    if abs(index.by) != 1:
        return False
    if not array.written:
        return True
    is_before = index.by > 0 and sorted(array.written) == list(range(index.first or 0))
    return (
        is_before
        and item.shape.is_fully_defined()
        and all((t.shape, t.dtype) == (item.shape, item.dtype) for t in array.written.values())
    )


def _is_whole(
    array: _Array, index: Index, limit: int | tf.Tensor | None, count: int | None
) -> bool:
    """True if the loop writes all elements that were not written before it."""
    size, first = array.size, index.first
    if first is not None and count is not None and isinstance(size, int):
        begins = first == len(array.written) if index.by > 0 else first == size - 1
        return begins and size == len(array.written) + count
    if count is not None or limit is None or isinstance(size, int):
        return False
    if index.by < 0:
        last = _tf.extent_before(index.state, 1 + index.offset)
        return last is not None and _are_same([last, limit, size])
    if first != len(array.written):
        return False
    if first:
        limit = _tf.extent_before(limit, first, or_0=True)
    return limit is not None and _are_same([limit, size])


def _is_too_short(array: _Array, count: int | None) -> bool:
    """True if a loop is known to write past an array's end, which the write itself refuses."""
    return isinstance(array.size, int) and count is not None and array.size < count


def _are_same(numbers: list[tf.Tensor]) -> bool:
    return all(_tf.are_same_count(numbers[0], number) for number in numbers[1:])


def _state_of(loop: TracedLoop, item: tf.Tensor, result: int) -> int:
    """The result that is the next value of a state, if a tensor is that; else the one given."""
    same = (r for r, _ in loop.spec.back_edges if _is_copy(loop.body.outputs[r], item))
    return next(same, result)


def _is_copy(tensor: tf.Tensor, other: tf.Tensor) -> bool:
    return without_identity(tensor) is without_identity(other)


def _with_stacks(loop: TracedLoop, writes: list[_Write]) -> Step:
    spec, graph = loop.spec, loop.body
    outputs, lengths = list(spec.outputs), list(loop.lengths)
    results = list(graph.outputs)
    types, shapes = list(spec.result_types), list(spec.result_shapes)
    finishes = {}
    for write in writes:
        result, item = write.edge[0], write.op.inputs[2]
        at = next(i for i, o in enumerate(outputs) if (o.mode, o.source) == ("last", result))
        length = -1
        if write.length is not None:
            length = len(lengths)
            lengths.append(tf.cast(write.length, tf.int64))
        label = outputs[at].label
        outputs[at] = _spec.Output(
            label, item.dtype, write.mode, result, 0, write.stride, length=length
        )
        if write.mode == "last":
            # Where it is a state's next value, too, the loop need not have it twice.
            outputs[at] = dataclasses.replace(outputs[at], source=_state_of(loop, item, result))
        results[result], types[result], shapes[result] = item, item.dtype, item.shape
        finishes[at] = write.finish
    edges = {write.edge for write in writes}
    spec = dataclasses.replace(
        spec,
        outputs=tuple(outputs),
        back_edges=tuple(edge for edge in spec.back_edges if edge not in edges),
        result_types=tuple(types),
        result_shapes=tuple(shapes),
    )
    stacked = loop.with_part(
        spec,
        loop.tensors,
        [[t] for t in graph.inputs],
        results,
        droppable={parameter for _, parameter in edges},
    )
    stacked = dataclasses.replace(stacked, lengths=lengths)

    def finish(found: list[tf.Tensor]) -> list[tf.Tensor]:
        return [finishes[i](t) if i in finishes else t for i, t in enumerate(found)]

    mentions = tuple(Mention.of(write.op) for write in writes)
    text = f"written as stacks: {', '.join(mention.type for mention in mentions)}"
    note = Note("stacks", text, True, mentions, len(mentions), place="as stacks")
    return Step(stacked, finish, (note,))
