"""Tensors of a body that have one shape in all iterations, though their extents are not known.

Extents of a batch are unknown when a loop is traced, but they come from the tensors around it: the
states begin as `tf.zeros([tf.shape(x)[1], 8])`, say. The shape functions of operations tell whether
states keep their shapes: they are asked with numbers in the place of unknown extents, which are the
same only where the extents are known to be. A body may cut a state to some number of elements, of
the loop or of another extent: so they are asked once more for each extent, which is then larger
than all others, and than all numbers in the loop. Shapes that values tell are not known then, and
so not steady.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.passes import counters as _counters
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing import graphs as _graphs

# Primes: the sum or the product of some may be another, but with one large number it no longer is.
_EXTENTS = (11, 23, 37, 53, 71, 89, 107, 131, 149, 167)
# Operations before a loop that compute extents, or tensors of them.
_OF_EXTENTS = frozenset(
    """
    Add AddV2 BroadcastTo Cast ConcatV2 Const ExpandDims Fill Identity Maximum Minimum Mul Pack Prod
    Reshape Shape Size Slice Squeeze StridedSlice Sub Tile Transpose ZerosLike
    """.split()
)
_MOST_OPERATIONS = 1000
# The most elements of a tensor that tells shapes.
_MOST_KNOWN = 64
# The largest extent, and the most elements of a tensor. Shape functions of TensorFlow's may end the
# process where numbers of elements do not fit int64.
_MOST_OF_AXIS, _MOST_OF_TENSOR, _MOST_ELEMENTS = 2**24, 2**48, 2**56


def is_steady(loop: TracedLoop, tensor: tf.Tensor) -> bool:
    """True if a tensor of the body is known to have the same shape in all iterations."""
    if tensor.shape.is_fully_defined():
        return True
    sample = _Sample(loop, _EXTENTS)
    if not sample.is_steady(tensor):
        return False
    largest = _room(loop.body)
    if sample.largest_number >= largest or _EXTENTS[-1] * 10 > largest:
        return False
    others = [
        [largest if k == place else extent for k, extent in enumerate(_EXTENTS)]
        for place in range(sample.num_extents)
    ]
    return all(_Sample(loop, extents).is_steady(tensor) for extents in others)


def _room(graph: _tf.FuncGraph) -> int:
    """How large one unknown extent may be, so that no tensor of a graph has too many elements."""
    room = _MOST_OF_AXIS
    for op in graph.get_operations():
        for tensor in op.outputs:
            dims = tensor.shape.as_list() if tensor.shape.rank is not None else []
            if None in dims:
                known = math.prod(d for d in dims if d)
                room = min(room, _MOST_OF_TENSOR // known // _EXTENTS[-1] ** (dims.count(None) - 1))
    return room


def _number_in(tensor: tf.Tensor) -> int:
    """The largest number of an integer tensor, of those that are known and may be an extent."""
    if not tensor.dtype.is_integer or (tensor.shape.num_elements() or _MOST_KNOWN) > _MOST_KNOWN:
        return 0
    known = _tf.static_value(tensor)
    if known is None:
        return 0
    return max((int(n) for n in np.ravel(known) if n < _MOST_OF_AXIS), default=0)


class _Sample:
    """A loop in which some numbers take the place of unknown extents.

    Attributes:
        largest_number: the largest one that is known in the loop, or before it, and is no extent.
        num_extents: how many numbers are in use.
    """

    def __init__(self, loop: TracedLoop, extents: Sequence[int]):
        self._loop, self._extents = loop, iter(extents)
        self.largest_number = self.num_extents = 0
        self._tensors: dict[Any, tf.Tensor] = {}  # the sample's, of the loop's and those before it

    def is_steady(self, tensor: tf.Tensor) -> bool:
        loop, graph = self._loop, self._loop.body
        edges = [
            (graph.outputs[result], graph.inputs[parameter])
            for result, parameter in loop.spec.back_edges
            if graph.inputs[parameter].dtype != tf.variant
        ]
        targets = [tensor, *(result for result, _ in edges)]
        operations = _graphs.needed_operations(graph.inputs, targets, follow_controls=False)
        if len(operations) > _MOST_OPERATIONS:
            return False
        with _tf.FuncGraph("tf_ti_shapes").as_default():
            try:
                self._add_parameters()
                for op in operations:
                    self._add(op)
            except (StopIteration, TypeError, ValueError, tf.errors.OpError):
                return False  # there are too many extents, or they do not go together
        if not self._tensors[tensor.ref()].shape.is_fully_defined():
            return False
        shapes = [[self._tensors[t.ref()].shape for t in edge] for edge in edges]
        return all(state.is_fully_defined() and result == state for result, state in shapes)

    def _add_parameters(self) -> None:
        loop, graph = self._loop, self._loop.body
        for i, parameter in enumerate(graph.inputs):
            is_whole = i < len(loop.tensors) and loop.spec.inputs[i].mode == "value"
            if not is_whole or parameter.dtype in (tf.variant, tf.resource):
                made = tf.compat.v1.placeholder(parameter.dtype, parameter.shape)
            else:
                made = self._before(loop.tensors[i])
                if _counters.invariant(loop, i) is None:  # then it has other values, too
                    made = tf.compat.v1.placeholder(made.dtype, made.shape)
            self._tensors[parameter.ref()] = made

    def _before(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sample of a tensor that is computed before the loop."""
        stack = [tensor]
        while stack:
            current = stack.pop()
            if current.ref() in self._tensors:
                continue
            is_known = not tf.is_symbolic_tensor(current) or current.op.type not in _OF_EXTENTS
            if is_known or (current.shape.is_fully_defined() and not current.dtype.is_integer):
                self._tensors[current.ref()] = self._source(current)
                continue
            missing = [t for t in current.op.inputs if t.ref() not in self._tensors]
            if missing:
                stack += [current, *missing]
            else:
                self._repeat(current.op)
        return self._tensors[tensor.ref()]

    def _source(self, tensor: tf.Tensor) -> tf.Tensor:
        known = tf.get_static_value(tensor) if tensor.dtype.is_integer else None
        if known is not None:
            self.largest_number = max(self.largest_number, _number_in(tensor))
            return tf.constant(known, tensor.dtype)
        dims = [next(self._extents) if d is None else d for d in tensor.shape.as_list()]
        self.num_extents += tensor.shape.as_list().count(None)
        return tf.compat.v1.placeholder(tensor.dtype, dims)

    def _add(self, op: tf.Operation) -> None:
        """Adds an operation of the body."""
        unstacked = _counters.unstacked(self._loop, op)
        if unstacked is not None:
            shape = self._before(unstacked).shape[1:]
            made = tf.compat.v1.placeholder(op.outputs[0].dtype, shape)
            self._tensors[op.outputs[0].ref()] = made
        elif _graphs.function_names(op.node_def) or any(t.dtype == tf.variant for t in op.outputs):
            for t in op.outputs:
                self._tensors[t.ref()] = tf.compat.v1.placeholder(t.dtype, t.shape)
        else:
            self._repeat(op)

    def _repeat(self, op: tf.Operation) -> None:
        made = _tf.repeat_operation(op, [self._tensors[t.ref()] for t in op.inputs])
        if any((t.shape.num_elements() or 0) > _MOST_ELEMENTS for t in made):
            raise ValueError("the sample has too many elements")
        self.largest_number = max([self.largest_number, *map(_number_in, op.outputs)])
        self._tensors.update(zip([t.ref() for t in op.outputs], made))
