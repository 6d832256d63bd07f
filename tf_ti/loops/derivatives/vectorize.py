"""Vectorisation of the loop ops: for `tf.vectorized_map`, `jacobian` and `batch_jacobian`.

One loop runs all lanes of the map. Values that differ from lane to lane are stacked along a new
first axis, in the body too; others stay as they are. The reverse loops are vectorised likewise, and
the vectorised loop has a gradient as every other.
"""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti._library import ops
from tf_ti.loops import lower as _lower, spec as _spec
from tf_ti.loops.traced import TEMPORARY, ReadBefore, TracedLoop
from tf_ti.loops.tracing import graphs as _graphs
from tf_ti.loops.tracing.part import Part


@_tf.register_pfor("TfTi>TensorIterator")
@_tf.register_pfor("TfTi>StatelessTensorIterator")
@_tf.do_not_convert
def _vectorize_loop(pfor_input: Any) -> list[Any]:
    try:
        return _Vectorizer(pfor_input).convert()
    except _tf.NotVectorized as cause:
        op = pfor_input.op
        if _tf.expects_xla() and any(t.dtype == tf.variant for t in op.outputs):
            # TensorFlow would collect the lanes' histories, which XLA cannot.
            raise NotImplementedError(
                f"loop {op.name.rsplit('/', 1)[-1]!r} in tf.vectorized_map or a Jacobian: {cause}, "
                "so one loop cannot run all of them, and inside jit_compile=True nothing else can; "
                "use tf.map_fn, or leave jit_compile=True away"
            ) from cause
        return _tf.convert_lane_by_lane(pfor_input, cause)


class _Vectorizer:
    """One loop op, and which of its parameters differ from lane to lane."""

    def __init__(self, pfor_input: Any):
        self._pfor = pfor_input.pfor
        self._loop = TracedLoop.from_op(pfor_input.op)
        if _tf.expects_xla():
            self._loop = _without_assertions(self._loop)
        self._spec = self._loop.spec
        count = len(self._spec.inputs)
        self._given = pfor_input.inputs[:count]
        self._is_stacked = [wrapped.is_stacked for wrapped in self._given]
        for spec, wrapped in zip(self._spec.inputs, self._given):
            if wrapped.is_stacked and wrapped.t.dtype == tf.resource:
                raise _tf.NotVectorized(f"{spec.label} is another resource in each lane")
        scalars = pfor_input.inputs[count:]
        if any(wrapped.is_stacked for wrapped in scalars):
            raise _tf.NotVectorized("its lanes do not end together")
        self._scalars = [wrapped.t for wrapped in scalars]
        # The lanes as a function knows them: all of a known number, or those that are given.
        size = tf.get_static_value(self._pfor.loop_len_vector)
        is_known = size is not None and not self._pfor.all_indices_partitioned
        self._size = int(size[0]) if is_known else None
        self._lanes = [] if is_known else [self._pfor.all_indices]

    def convert(self) -> list[Any]:
        body, condition = self._convert_functions()
        count = len(self._given)
        inputs = [self._input(i) for i in range(count)]
        inputs += [_spec.Input("the lanes", lanes.shape) for lanes in self._lanes]
        read = self._spec.condition_inputs
        spec = dataclasses.replace(
            self._spec,
            inputs=tuple(inputs),
            outputs=tuple(self._output(output, body) for output in self._spec.outputs),
            result_types=tuple(t.dtype for t in body.graph.outputs),
            result_shapes=tuple(t.shape for t in body.graph.outputs),
            condition_inputs=None if read is None else (*read, *range(count, len(inputs))),
        )
        has_limit = self._loop.num_iterations is not None
        loop = TracedLoop(
            spec,
            Part.whole(body.graph),
            [*(self._enter(i) for i in range(count)), *self._lanes],
            self._scalars[0] if has_limit else None,
            None if condition is None else condition.graph,
            self._scalars[has_limit:],
        )
        made = _lower.add_op(_lower.reading_before(loop))
        return [self._leave(o, tensor, body) for o, tensor in zip(spec.outputs, made)]

    # --- an iteration ----------------------------------------------------------------------------

    def _convert_functions(self) -> "tuple[_Function, _Function | None]":
        """The body and the condition, with all parameters stacked that must be."""
        back_edges = self._spec.back_edges
        while True:
            parameters = [self._parameter(i) for i in range(len(self._given))]
            lanes = [_Value(t.dtype, t.shape, False) for t in self._lanes]
            condition, shared = None, []
            if self._loop.condition is not None:
                read = [parameters[i] for i in self._loop.condition_inputs]
                condition = self._convert_function(self._loop.condition, read, lanes)
                first, *shared = condition.results
                if first.is_stacked:
                    raise _tf.NotVectorized("its lanes do not end together")
            to_stack = {r for r, p in back_edges if self._is_stacked[p]}
            body = self._convert_function(self._loop.body, parameters, lanes, shared, to_stack)
            grown = [p for r, p in back_edges if body.results[r].is_stacked > self._is_stacked[p]]
            if not grown:
                return body, condition
            for p in grown:
                self._is_stacked[p] = True

    def _parameter(self, i: int) -> "_Value":
        dtype, shape = self._loop.body.inputs[i].dtype, self._spec.inputs[i].shape
        if self._is_stacked[i] and dtype != tf.variant:
            shape = tf.TensorShape([self._size]).concatenate(shape)
        return _Value(dtype, shape, self._is_stacked[i])

    def _convert_function(
        self,
        source: tf.Graph,
        parameters: "Sequence[_Value]",
        lanes: "Sequence[_Value]",
        shared: "Sequence[_Value]" = (),
        to_stack: Collection[int] = (),
    ) -> "_Function":
        """A function of these parameters, the lanes and the values that the condition shares.

        Args:
            source: the function for one lane.
            parameters, lanes, shared: its parameters.
            to_stack: results to stack even where all lanes have the same.
        """
        graph = _tf.FuncGraph("vectorized")
        inputs, results = [], []
        with graph.as_default():
            for value in (*parameters, *lanes, *shared):
                inputs.append(tf.compat.v1.placeholder(value.dtype, value.shape))
            own = [*inputs[: len(parameters)], *inputs[len(parameters) + len(lanes) :]]
            lanes = inputs[len(parameters) :][: len(lanes)]
            pfor = _tf.make_pfor(self._pfor, source, lanes[0] if lanes else self._size)
            for inside, tensor, value in zip(source.inputs, own, (*parameters, *shared)):
                if value.is_stacked and value.dtype == tf.variant:
                    _tf.copy_handle_data_of_lanes(inside, tensor, self._size)
                else:
                    _tf.copy_handle_data(inside, tensor)
                _tf.set_converted(pfor, inside, _wrap(tensor, value.is_stacked, pfor))
            for i, result in enumerate(source.outputs):
                wrapped = _tf.converted(pfor, result)
                is_stacked = wrapped.is_stacked or i in to_stack
                if wrapped.is_stacked and _tf.is_opaque(wrapped.t) and not _is_unstacked(wrapped.t):
                    raise _tf.NotVectorized("a loop inside runs lane by lane")
                tensor = _unwrap(pfor, wrapped) if is_stacked else wrapped.t
                graph.outputs.append(tensor)
                results.append(_Value(tensor.dtype, tensor.shape, is_stacked))
            for op in source.control_outputs:
                converted = _tf.converted(pfor, op.outputs[0] if op.outputs else op)
                graph.control_outputs.append(converted.t.op if op.outputs else converted)
        groups = [[tensor] for tensor in inputs]
        graph = _graphs.extract(
            "vectorized", graph, groups, graph.outputs, graph.control_outputs, inline=True
        )
        return _Function(graph, results)

    # --- the loop --------------------------------------------------------------------------------

    def _input(self, i: int) -> _spec.Input:
        given = self._spec.inputs[i]
        if not self._is_stacked[i]:
            return given
        has_axis = given.mode not in ("value", "sequence")
        axis = given.axis + 1 if has_axis and given.axis >= 0 else given.axis
        return dataclasses.replace(given, shape=self._parameter(i).shape, axis=axis)

    def _output(self, output: _spec.Output, body: "_Function") -> _spec.Output:
        if output.mode not in ("stack", "concat") or not body.results[output.source].is_stacked:
            return output
        mode, axis = output.mode, output.axis
        if mode == "concat":
            rank = self._spec.result_shapes[output.source].rank
            if rank is None:
                raise _tf.NotVectorized(f"the rank of {output.label} is not known")
            if rank == 0:
                mode, axis = "stack", 0
        return dataclasses.replace(output, mode=mode, axis=axis + 1 if axis >= 0 else axis)

    def _enter(self, i: int) -> tf.Tensor:
        return _unwrap(self._pfor, self._given[i]) if self._is_stacked[i] else self._given[i].t

    def _leave(self, output: _spec.Output, tensor: tf.Tensor, body: "_Function") -> Any:
        source = output.source
        if output.mode == "count":
            is_stacked = False
        elif source < 0:
            is_stacked = self._is_stacked[~source]
        else:
            is_stacked = body.results[source].is_stacked
        return _wrap(tensor, is_stacked, self._pfor)


def _without_assertions(loop: TracedLoop) -> TracedLoop:
    """The loop as XLA runs it: XLA asserts nothing, and cannot compile branches of some lanes."""

    def pruned(graph: _tf.FuncGraph) -> _tf.FuncGraph:
        if not any(map(_is_assertion, graph.get_operations())):
            return graph
        controls = [op for op in graph.control_outputs if not _is_assertion(op)]
        groups = [[tensor] for tensor in graph.inputs]
        made = _graphs.extract("vectorized", graph, groups, graph.outputs, controls)
        for op in made.get_operations():
            _graphs.keep_controls(op, lambda other: not _is_assertion(other))
        return made

    condition = None if loop.condition is None else pruned(loop.condition)
    return dataclasses.replace(loop, part=Part.whole(pruned(loop.body)), condition=condition)


def _is_assertion(op: tf.Operation) -> bool:
    reads = _tf.READS
    return not _graphs.only_does(op, reads) and _graphs.only_does(op, {*reads, "Assert"})


@dataclasses.dataclass
class _Value:
    """The type of a parameter or a result of a vectorised function."""

    dtype: tf.DType
    shape: tf.TensorShape
    is_stacked: bool


@dataclasses.dataclass
class _Function:
    graph: _tf.FuncGraph
    results: list[_Value]


# --- sequences -----------------------------------------------------------------------------------

# TensorFlow's way needs an axis for the lanes: a vector of sequences. The loops have one sequence
# of stacks.


def _wrap(tensor: tf.Tensor, is_stacked: bool, pfor: Any) -> Any:
    if is_stacked and _tf.is_opaque(tensor):
        count = pfor.loop_len_vector[0]
        tensor = ops.tf_ti_sequence_unstack(sequence=tensor, count=count)
    return _tf.wrap(tensor, is_stacked)


def _is_unstacked(sequences: tf.Tensor) -> bool:
    return sequences.op.type == "TfTi>SequenceUnstack"


def _unwrap(pfor: Any, wrapped: Any) -> tf.Tensor:
    if not _tf.is_opaque(wrapped.t):
        return _tf.stacked(pfor, wrapped)
    sequences = wrapped.t
    if not wrapped.is_stacked:
        sequences = tf.tile(sequences[None], pfor.loop_len_vector)
    elif _is_unstacked(sequences):
        return sequences.op.inputs[0]
    return ops.tf_ti_sequence_stack(sequences=sequences)


def _gets_sequences(pfor_input: Any) -> bool:
    return any(_tf.is_opaque(wrapped.t) for wrapped in pfor_input.inputs)


@_tf.register_pfor_where(_gets_sequences, "AddN")
def _vectorize_sum(pfor_input: Any) -> Any:
    pfor = pfor_input.pfor
    return _wrap(tf.add_n([_unwrap(pfor, wrapped) for wrapped in pfor_input.inputs]), True, pfor)


@_tf.register_pfor_where(_gets_sequences, "ZerosLike")
def _vectorize_zeros(pfor_input: Any) -> Any:
    pfor = pfor_input.pfor
    return _wrap(tf.zeros_like(_unwrap(pfor, pfor_input.input(0))), True, pfor)


def _is_the_same_in_all_lanes(pfor_input: Any) -> bool:
    """True for an operation of a loop's body that only reads variables, the same in all lanes."""
    is_in_loop = _graphs.is_copy(pfor_input.op.graph)
    is_once = is_in_loop and not any(wrapped.is_stacked for wrapped in pfor_input.inputs)
    return is_once and _graphs.only_does(pfor_input.op, _tf.READS)


@_tf.register_pfor_where(_is_the_same_in_all_lanes, "Case")
@_tf.register_pfor_where(_is_the_same_in_all_lanes, "If")
@_tf.register_pfor_where(_is_the_same_in_all_lanes, "StatefulPartitionedCall")
@_tf.register_pfor_where(_is_the_same_in_all_lanes, "While")
def _vectorize_once(pfor_input: Any) -> list[Any]:
    # TensorFlow would stack the results, of which some are variants that its gradient reads.
    inputs = [wrapped.t for wrapped in pfor_input.inputs]
    return [_tf.wrap(t, False) for t in _graphs.copy_operation(pfor_input.op, inputs)]


def _reads_all_lanes(pfor_input: Any) -> bool:
    """True if all lanes read one element of their lists, whose static shape is known."""
    lists, index, shape = pfor_input.inputs
    known = tf.get_static_value(shape.t)
    is_known = known is not None and np.size(known) > 0 and -1 not in known
    return lists.is_stacked and not index.is_stacked and is_known


@_tf.register_pfor_where(_reads_all_lanes, "TensorListGetItem")
def _vectorize_read(pfor_input: Any) -> Any:
    # TensorFlow forgets the static shape, without which an element that is not there has no zeros.
    lists, index, shape = (wrapped.t for wrapped in pfor_input.inputs)
    elements = tf.raw_ops.TensorListGetItem(
        input_handle=lists if lists.shape.rank == 0 else lists[0],
        index=index,
        element_shape=tf.concat([pfor_input.pfor.loop_len_vector, shape], 0),
        element_dtype=pfor_input.get_attr("element_dtype"),
    )
    return _tf.wrap(elements, True)


@_tf.register_pfor("TfTi>SequenceSplit")
def _vectorize_split(pfor_input: Any) -> Any:
    pfor = pfor_input.pfor
    tensor, like = (_unwrap(pfor, wrapped) for wrapped in pfor_input.inputs)
    sequence = ops.tf_ti_sequence_split(
        tensor, like, axis=_shifted(pfor_input), reverse=pfor_input.get_attr("reverse")
    )
    return _wrap(sequence, True, pfor)


@_tf.register_pfor("TfTi>SequenceConcat")
def _vectorize_concat(pfor_input: Any) -> Any:
    pfor = pfor_input.pfor
    shape = tf.TensorShape(pfor_input.get_attr("element_shape"))
    tensor = ops.tf_ti_sequence_concat(
        _unwrap(pfor, pfor_input.input(0)),
        dtype=pfor_input.get_attr("dtype"),
        element_shape=tf.TensorShape([None]).concatenate(shape),
        axis=_shifted(pfor_input),
        reverse=pfor_input.get_attr("reverse"),
    )
    return _tf.wrap(tensor, True)


def _shifted(pfor_input: Any) -> int:
    axis = pfor_input.get_attr("axis")
    return axis + 1 if axis >= 0 else axis


@_tf.register_pfor("TfTi>SequenceStack")
@_tf.register_pfor("TfTi>SequenceUnstack")
def _vectorize_map(pfor_input: Any) -> list[Any]:
    return _tf.convert_lane_by_lane(pfor_input, "maps nest")


@_tf.register_pfor(TEMPORARY)
@_tf.do_not_convert
def _vectorize_variable(pfor_input: Any) -> Any:
    value = pfor_input.input(0)
    if value.is_stacked:
        raise _tf.NotVectorized("a variable has the values of one lane")
    read = dataclasses.replace(ReadBefore.of(pfor_input.op), value=value.t)
    return _tf.wrap(read.variable(pfor_input.op.outputs[0]), False)


@_tf.register_pfor("TfTi>ListIndex")
def _vectorize_list_index(pfor_input: Any) -> Any:
    return pfor_input.input(0)  # TensorFlow's vectorised lists do not grow


@_tf.register_gradient("TfTi>SequenceUnstack")
@_tf.do_not_convert
def _unstack_gradient(op: tf.Operation, grad: tf.Tensor) -> list[tf.Tensor | None]:
    return [ops.tf_ti_sequence_stack(sequences=grad), None]


@_tf.register_gradient("TfTi>SequenceStack")
@_tf.do_not_convert
def _stack_gradient(op: tf.Operation, grad: tf.Tensor) -> list[tf.Tensor]:
    return [ops.tf_ti_sequence_unstack(sequence=grad, count=tf.size(op.inputs[0]))]
