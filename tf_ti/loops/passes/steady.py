"""What is known of extents that are not: shapes that stay, and extents that are the same.

Extents of a batch are unknown when a loop is traced, but they come from the tensors around it: the
states begin as `tf.zeros([tf.shape(x)[1], 8])`, say, and a mask has as many steps as its sequence.
The shape functions of operations tell whether states keep their shapes, and whether a number is an
extent: they are asked with random numbers in the place of unknown extents, and once more with other
ones.

What is the same for some extents must be the same for all. So only operations are asked whose
extents are those of their inputs, or sums or products of them, and numbers that shapes are made of
may only be copied, added and multiplied. The smaller of two numbers, as a slice has, or half of
one, as a stride gives, is equal to another number for some extents alone. All else is not known.
"""

import math
import random
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _operations, _tf
from tf_ti.loops.passes import counters as _counters, failing as _failing
from tf_ti.loops.passes.analysis import without_identity
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing import graphs as _graphs

# The numbers in the place of unknown extents, for the samples of each graph. The product of three
# is an int32.
_EXTENTS = tuple(random.Random(seed).sample(range(64, 1290), 1000) for seed in range(2))
# Operations that make numbers of numbers.
_OF_NUMBERS = _operations.noted("polynomial")
_NUMBERS = (tf.int32, tf.int64)
_MOST_NUMBERS = 64  # of a tensor that shapes are made of
_KNOWN = _operations.names(lambda row: "other_extents" not in row.notes) | {
    "TfTi>RecurrentSequence"
}
_MOST_OPERATIONS = 1000  # of a body, and before its loop
# The most elements of a tensor: shape functions of TensorFlow's may end the process where numbers
# of elements do not fit int64.
_MOST_ELEMENTS = 2**56


def is_extent(number: tf.Tensor, tensor: tf.Tensor, axis: int) -> bool:
    """True if a number before a loop is known to be the extent of a tensor there."""
    return all(sample.is_extent(number, tensor, axis) for sample in _samples())


def _states(loop: TracedLoop) -> list[tuple[int, int]]:
    return [(r, p) for r, p in loop.spec.back_edges if loop.body.inputs[p].dtype != tf.variant]


class _Sample:
    """Tensors of a graph in which numbers take the place of unknown extents."""

    def __init__(self, extents: Sequence[int]):
        with tf.init_scope():  # it keeps no graph that has it
            self.graph = _tf.FuncGraph("tf_ti_shapes")
        self._extents = iter(extents)
        self._num_asked = 0
        self._tensors: dict[str, tf.Tensor] = {}  # by name: a tensor would keep its graph

    def of(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sample of a tensor of the graph, or of another tensor that a loop gets."""
        if not tf.is_symbolic_tensor(tensor):
            return self._source(tensor)
        stack = [tensor]
        while stack:
            current = stack.pop()
            if _name(current) in self._tensors:
                continue
            if not current.graph.building_function:  # a session may feed any value
                self._tensors[_name(current)] = self._source(current)
                continue
            source = _listed(current)
            if source is None and _is_extent_from_0(current):
                source = current.op.inputs[0]
            if source is not None:
                if _name(source) in self._tensors:
                    self._tensors[_name(current)] = self._tensors[_name(source)]
                else:
                    stack += [current, source]
                continue
            if not _is_made_of_others(current) or self._num_asked >= _MOST_OPERATIONS:
                self._tensors[_name(current)] = self._source(current)
                continue
            missing = [t for t in current.op.inputs if _name(t) not in self._tensors]
            if missing:
                stack += [current, *missing]
                continue
            self._num_asked += 1
            given = [self._tensors[_name(t)] for t in current.op.inputs]
            made = _repeated(current.op, given, _captured)
            self._tensors.update(zip(map(_name, current.op.outputs), made))
        return self._tensors[_name(tensor)]

    def _source(self, tensor: tf.Tensor) -> tf.Tensor:
        """A tensor that is made of nothing known."""
        count = tensor.shape.num_elements()
        if tensor.dtype in _NUMBERS and count is not None and count <= _MOST_NUMBERS:
            known = tf.get_static_value(tensor)
            if known is not None:
                return tf.constant(known, tensor.dtype)
        if tensor.shape.rank is None:
            return _unknown(tensor)
        dims = tensor.shape.as_list()
        extents = [next(self._extents, -1) if d is None else d for d in dims]
        if -1 in extents or math.prod(extents) > _MOST_ELEMENTS:
            return _unknown(tensor)
        return tf.compat.v1.placeholder(tensor.dtype, extents)

    def is_extent(self, number: tf.Tensor, tensor: tf.Tensor, axis: int) -> bool:
        with self.graph.as_default():
            count, shape = _tf.static_value(self.of(number)), self.of(tensor).shape
        return count is not None and shape.rank is not None and shape.as_list()[axis] == count


# The samples of graphs that loops are added to. They keep no tensor of these.
_kept: weakref.WeakKeyDictionary[Any, list[_Sample]] = weakref.WeakKeyDictionary()


def _samples() -> Iterator[_Sample]:
    kept = _kept.setdefault(tf.compat.v1.get_default_graph(), [])
    for k, extents in enumerate(_EXTENTS):
        if len(kept) == k:
            kept.append(_Sample(extents))
        yield kept[k]


def _name(tensor: tf.Tensor) -> str:
    """A name among the tensors of a graph and of the graphs around it, which live as long."""
    return f"{id(tensor.graph)}/{tensor.name}"


def _is_made_of_others(tensor: tf.Tensor) -> bool:
    if not tf.is_symbolic_tensor(tensor) or tensor.op.type not in _KNOWN:
        return False
    return tensor.dtype.is_integer or not tensor.shape.is_fully_defined()


def _is_extent_from_0(tensor: tf.Tensor) -> bool:
    """True if a number is the maximum of 0 and an extent."""
    if not tf.is_symbolic_tensor(tensor) or tensor.op.type != "Maximum":
        return False
    number, least = tensor.op.inputs
    return bool(
        tf.get_static_value(least) == 0 and number.shape.rank == 0 and _tf.is_any_extent(number)
    )


def _listed(tensor: tf.Tensor) -> tf.Tensor | None:
    """The tensor of whose elements a tensor is stacked, through a list of them."""
    if not tf.is_symbolic_tensor(tensor) or tensor.op.type != "TensorListStack":
        return None
    made = without_identity(tensor.op.inputs[0])
    return made.op.inputs[0] if made.op.type == "TensorListFromTensor" else None


def _captured(parameter: tf.Tensor) -> tf.Tensor | None:
    outermost = _tf.outermost(parameter)
    return None if outermost is parameter else outermost


def _repeated(
    op: tf.Operation, inputs: Sequence[tf.Tensor], outside: _failing.Outside
) -> list[tf.Tensor]:
    """The sample of an operation, of samples. Its numbers are known where others may be of them.

    Args:
        op, inputs: the operation, and the samples of its inputs.
        outside: gives the tensors that its graph gets.
    """
    if op.type not in _KNOWN or not _is_polynomial(op):
        return [_unknown(t) for t in op.outputs]
    if not all(_are_sizes(sizes, outside) for sizes in _operations.inputs(op, "r")):
        return [_unknown(t) for t in op.outputs]
    # An extent that is not known may be 1, beside which another is the result's: of a Reshape the
    # numbers tell it.
    shapes = [t.shape for t in (inputs[1:] if op.type == "Reshape" else inputs)]
    if not all(shape.is_fully_defined() for shape in shapes):
        return [_unknown(t) for t in op.outputs]
    if op.type == "Const" and (op.outputs[0].shape.num_elements() or 0) > _MOST_NUMBERS:
        return [_unknown(t) for t in op.outputs]
    try:
        made = _tf.repeat_operation(op, inputs)
    except (TypeError, ValueError, tf.errors.OpError):  # the extents do not go together
        return [_unknown(t) for t in op.outputs]
    if any((t.shape.num_elements() or 0) > _MOST_ELEMENTS for t in made):
        return [_unknown(t) for t in op.outputs]
    is_of_numbers = op.type in _OF_NUMBERS and all(
        t.dtype in _NUMBERS for t in inputs if op.type not in ("Shape", "Size")
    )
    return [t if is_of_numbers or not t.dtype.is_integer else _unknown(t) for t in made]


def _unknown(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor of the same shape, as far as that is known, and of no value."""
    return tf.compat.v1.placeholder(tensor.dtype, tensor.shape)


def _are_sizes(numbers: tf.Tensor, outside: _failing.Outside) -> bool:
    """True if all numbers that may be -1, which is no size, are known."""
    stack = [numbers]
    while stack:
        tensor = stack.pop()
        if _tf.static_value(tensor) is not None or _failing.is_count(tensor, outside):
            continue
        if not tf.is_symbolic_tensor(tensor) or tensor.op.type not in ("ConcatV2", "Pack"):
            return False
        stack += list(tensor.op.inputs)[: -1 if tensor.op.type == "ConcatV2" else None]
    return True


def _is_polynomial(op: tf.Operation) -> bool:
    """True if an operation takes no minimum of extents, and rounds none."""
    if op.type == "Squeeze":
        return bool(op.get_attr("squeeze_dims")) or op.inputs[0].shape.is_fully_defined()
    if op.type == "Range":
        return tf.get_static_value(op.inputs[2]) in (1, -1)
    if "strides" in op.node_def.attr:
        return set(op.get_attr("strides")) == {1}
    return op.type != "StridedSlice" or _cuts_nothing_open(op)


def _cuts_nothing_open(op: tf.Operation) -> bool:
    """True if a slice leaves nothing out but between bounds that are known, of a known extent."""
    x, begin, end, strides = op.inputs
    first, last, step = map(tf.get_static_value, (begin, end, strides))
    count = begin.shape.num_elements()
    if x.shape.rank is None or step is None or count is None:
        return False
    masks = [
        [op.get_attr(f"{name}_mask") >> k & 1 for k in range(count)]
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    ]
    num_named = sum(not is_new for is_new in masks[3]) - sum(masks[2])
    axis = 0
    for k, (begins, ends, skips, is_new, is_index) in enumerate(zip(*masks)):
        if skips:
            axis += x.shape.rank - num_named
        elif not is_new:
            is_whole = ends and step[k] == 1 and (begins or (first is not None and first[k] == 0))
            is_known = (begins or first is not None) and (ends or last is not None)
            is_open = x.shape.as_list()[axis] is None or not is_known
            if is_open and not is_index and not is_whole:
                return False
            axis += 1
    return True


class Steady:
    """The shapes that tensors of a loop's body are known to have in all iterations.

    It is asked before the body changes.
    """

    def __init__(self, loop: TracedLoop):
        self._loop = loop
        self._samples: list[_Body] = []

    def __contains__(self, tensor: tf.Tensor) -> bool:
        """True if a tensor of the body is known to have the same shape in all iterations."""
        if tensor.shape.is_fully_defined():
            return True
        loop = self._loop
        targets = [tensor, *(loop.body.outputs[result] for result, _ in _states(loop))]
        needed = _graphs.needed_operations(loop.body.inputs, targets, follow_controls=False)
        if len(needed) > _MOST_OPERATIONS:
            return False
        for k, before in enumerate(_samples()):
            if len(self._samples) == k:
                self._samples.append(_Body(loop, before))
            if not self._samples[k].is_steady(tensor, needed):
                return False
        return True


class _Body:
    """The sample of a body. It reads the sample of the graph around the loop."""

    def __init__(self, loop: TracedLoop, before: _Sample):
        self._loop, self._before = loop, before
        self._tensors: dict[Any, tf.Tensor] = {}
        self._positions = {t.ref(): i for i, t in enumerate(loop.body.inputs)}
        with tf.init_scope():
            self._graph = _tf.FuncGraph("tf_ti_shapes")
        with self._graph.as_default():
            for i, parameter in enumerate(loop.body.inputs):
                self._tensors[parameter.ref()] = self._parameter(i)

    def is_steady(self, tensor: tf.Tensor, operations: Sequence[tf.Operation]) -> bool:
        graph, tensors = self._loop.body, self._tensors
        with self._graph.as_default():
            for op in operations:
                if op.outputs and op.outputs[0].ref() not in tensors:
                    tensors.update(zip([t.ref() for t in op.outputs], self._outputs(op)))
        states = [
            (tensors[graph.outputs[r].ref()].shape, tensors[graph.inputs[p].ref()].shape)
            for r, p in _states(self._loop)
        ]
        return tensors[tensor.ref()].shape.is_fully_defined() and all(
            state.is_fully_defined() and new == state for new, state in states
        )

    def _parameter(self, i: int) -> tf.Tensor:
        loop, parameter = self._loop, self._loop.body.inputs[i]
        is_given = i < len(loop.tensors) and parameter.dtype not in (tf.variant, tf.resource)
        mode = loop.spec.inputs[i].mode if is_given else ""
        if mode not in ("value", "index", "iterator"):
            return _unknown(parameter)
        with self._before.graph.as_default():
            given = self._before.of(loop.tensors[i])
            is_number = mode == "value" and given.dtype in _NUMBERS
            is_one = is_number and _counters.invariant(loop, i) is not None
            known = _tf.static_value(given) if is_one else None
        if known is not None:
            return tf.constant(known, given.dtype)
        if mode == "value":
            return _unknown(given)
        if given.shape.rank is None:
            return _unknown(parameter)
        extents = given.shape.as_list()
        del extents[loop.spec.inputs[i].axis]
        return tf.compat.v1.placeholder(given.dtype, extents)

    def _given(self, parameter: tf.Tensor) -> tf.Tensor | None:
        i = self._positions.get(parameter.ref())
        return _captured(parameter) if i is None else _counters.invariant(self._loop, i)

    def _outputs(self, op: tf.Operation) -> list[tf.Tensor]:
        unstacked = _counters.unstacked(self._loop, op)
        if unstacked is None:
            return _repeated(op, [self._tensors[t.ref()] for t in op.inputs], self._given)
        with self._before.graph.as_default():
            shape = self._before.of(unstacked).shape[1:]
        return [tf.compat.v1.placeholder(op.outputs[0].dtype, shape)]
