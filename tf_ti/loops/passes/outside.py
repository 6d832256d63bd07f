"""The values of all iterations at once, in the graph around a loop."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import slices as _slices, spec as _spec
from tf_ti.loops.passes import batching as _batching
from tf_ti.loops.passes.analysis import Analysis
from tf_ti.loops.tracing import graphs as _graphs


class Outside:
    """Computes values of a body outside of its loop.

    A value that is not the same in all iterations has them along a new first axis.
    """

    def __init__(self, analysis: Analysis):
        self._analysis, self._loop = analysis, analysis.loop
        self._order = analysis.counts.order
        self._values: dict[Any, tf.Tensor] = {}
        self._sources = list(analysis.loop.body.inputs)

    def give(self, tensor: tf.Tensor, stacked: tf.Tensor) -> None:
        """Takes the values of a tensor of the core."""
        self._values[tensor.ref()] = stacked

    def compute(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The values, which must follow from those before the loop and those given."""
        known = [ref.deref() for ref in self._values]
        sources = [*self._sources, *known]
        for op in _graphs.needed_operations(sources, tensors, reads=_batching.used):
            given = [self._value(t) for t in _batching.used(op)]
            is_stacked = [self._analysis.is_stacked(t) for t in _batching.used(op)]
            if op.type == "Shape" and is_stacked[0]:
                made = [tf.shape(given[0], op.outputs[0].dtype)[1:]]
            else:
                made = _batching.batched(op, given, is_stacked)
            self._values.update(zip([t.ref() for t in op.outputs], made))
        return [self._value(t) for t in tensors]

    def joined(self, output: _spec.Output, stacked: tf.Tensor) -> tf.Tensor:
        """An output of the loop, of the values of all iterations."""
        if output.stride != self._order:
            stacked = tf.reverse(stacked, [0])
        axis = output.axis % (stacked.shape.rank - (output.mode == "concat"))
        rest = range(1, stacked.shape.rank)
        joined = _batching.transposed(stacked, [*rest[:axis], 0, *rest[axis:]])
        if output.mode == "stack":
            return joined
        dims = _batching.extents(joined)
        dims[axis : axis + 2] = [_batching.multiplied(dims[axis : axis + 2])]
        return _batching.reshape(joined, dims)

    def _value(self, tensor: tf.Tensor) -> tf.Tensor:
        if tensor.ref() not in self._values:
            i = self._analysis.uses.parameters[tensor.op]
            given = self._loop.tensors[i]
            self._values[tensor.ref()] = (
                self._pieces(i) if self._analysis.is_stacked(tensor) else given
            )
        return self._values[tensor.ref()]

    def _pieces(self, i: int) -> tf.Tensor:
        """All that a parameter gets, stacked."""
        given, tensor = self._loop.spec.inputs[i], self._loop.tensors[i]
        axis, order = given.axis % tensor.shape.rank, 1 if given.stride > 0 else -1
        if not _slices.covers(given):
            edges = [at % _tf.known_extent(tensor, axis) for at in (given.start, given.end)]
            tensor = tensor[(*[slice(None)] * axis, slice(min(edges), max(edges) + 1))]
        dims = _batching.extents(tensor)
        if given.mode == "slice":
            count = dims[axis] // given.part_size
            dims[axis : axis + 1] = [count, given.part_size]
            tensor = _batching.reshape(tensor, dims)
        rest = [k for k in range(len(dims)) if k != axis]
        tensor = _batching.transposed(tensor, [axis, *rest])
        if given.mode == "iterator":
            tensor = self._visited(tensor, order)
        return tensor if order == self._order else tf.reverse(tensor, [0])

    def _visited(self, tensor: tf.Tensor, order: int) -> tf.Tensor:
        """Those elements of an iterator's tensor that the loop comes to."""
        limit = self._loop.num_iterations
        count = tf.get_static_value(limit)
        if count is not None and int(count) == _tf.known_extent(tensor, 0):
            return tensor
        count = limit if count is None else int(count)
        if order > 0:
            return tensor[:count]
        extent = tf.shape(tensor, tf.int64)[0]
        return tensor[tf.maximum(extent - count, 0) :]
