"""Gradients of the loop ops: a loop that runs backwards.

Its body computes the body's forward again, from the states that the forward loop recorded, and then
the gradients. It is a `LoopSpec` like any other, so it is differentiable itself.
"""

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti._arguments import host_extent
from tf_ti._library import ops
from tf_ti.loops import lower as _lower, slices as _slices, spec as _spec
from tf_ti.loops.derivatives import checkpoints as _checkpoints, written as _written
from tf_ti.loops.passes.analysis import Counts
from tf_ti.loops.passes.step import Unknown
from tf_ti.loops.traced import READ_BEFORE, TEMPORARY, ReadBefore, TracedLoop
from tf_ti.loops.tracing import (
    body as _body,
    custom_gradients as _custom_gradients,
    extents as _extents,
    graphs as _graphs,
    recorded as _recorded,
)
from tf_ti.loops.tracing.part import Part

# The attribute of operations that have no gradient, as a reverse loop computed their values again.
_REFUSED = "_tf_ti_refused"
# In a thread that looks for tangents alone `is_pushing` is true.
_thread = threading.local()
# The number of rows from which on products are as fast one by one as joined.
_MANY_ROWS = 256
# The most bytes of the factors of joined products, for each byte of the states and slices.
_MOST_FACTORS = 2


@_tf.register_gradient("TfTi>TensorIterator")
@_tf.register_gradient("TfTi>StatelessTensorIterator")
@_tf.do_not_convert
def _loop_gradient(op: tf.Operation, *grads: tf.Tensor | None) -> list[tf.Tensor | None]:
    if not isinstance(op, tf.Operation):
        op = op.outputs[0].op  # a tape inside a function brings a stand-in for the operation
    loop = TracedLoop.from_op(op)
    loop = dataclasses.replace(loop, outputs=list(map(_recorded.record_of, loop.outputs)))
    return gradient(loop, *grads)


def gradient(loop: TracedLoop, *grads: tf.Tensor | None) -> list[tf.Tensor | None]:
    """The gradients of a loop op's inputs, from those of its outputs."""
    spec = loop.spec
    forward = _Forward.of(_with_values_before(loop))
    num_iterations = loop.num_iterations
    if spec.condition_inputs is not None:
        count, *_ = spec.find_outputs("count", 0)
        num_iterations = loop.outputs[count]
    incoming = {
        i: tf.convert_to_tensor(grad)
        for i, grad in enumerate(grads)
        if grad is not None and not _is_zero(grad)
    }
    every = max((o.stride for o in spec.outputs if o.mode == "sequence"), default=1)
    # Where nobody asks for another device, on the loop's: there are the states that it recorded.
    with _tf.without_our_frames(), tf.device(_tf.current_device() or loop.outputs[0].device):
        if every == 1:
            gradients = _Reverse(forward, incoming, num_iterations, loop.gives_zeros).run()
        else:
            gradients = _gradients_of_segments(forward, incoming, num_iterations, every)
        if loop.gives_zeros:
            triples = zip(gradients, loop.tensors, loop.body.inputs)
            # Dense, as those of TensorFlow's loops: some optimizers take rows for another thing.
            gradients = [
                _zeros_like(t, parameter) if grad is None else tf.convert_to_tensor(grad)
                for grad, t, parameter in triples
            ]
    return [*gradients, *[None] * loop.num_scalars]


def jvp(loop: TracedLoop, *tangents: tf.Tensor | None) -> list[tf.Tensor | None]:
    """The tangents of a loop op's outputs: its gradient, linear in theirs, has a gradient.

    In a function, of which TensorFlow leaves out all that does not depend on the tangents.
    """
    count, num_outputs = len(loop.tensors), len(loop.outputs)
    known = [i for i, tangent in enumerate(tangents[:count]) if tangent is not None]
    if not known:
        return [None] * num_outputs
    moving = [
        i for i, t in enumerate(loop.outputs) if _tf.is_trainable(t.dtype) or t.dtype == tf.variant
    ]

    def push(*tensors: tf.Tensor) -> list[tf.Tensor]:
        for source, tensor in zip(given, tensors):
            if tensor.dtype == tf.variant:
                _tf.copy_handle_data(source, tensor)
        inputs, outputs = list(tensors[:count]), list(tensors[count:][:num_outputs])
        inside = dataclasses.replace(loop, tensors=inputs, outputs=outputs)
        seeds = [tf.identity(tf.zeros_like(outputs[i])) for i in moving]
        with _tf.inside_jvp(), tf.GradientTape() as tape:
            tape.watch(seeds)
            grads = dict(zip(moving, seeds))
            gradients = gradient(inside, *(grads.get(i) for i in range(num_outputs)))
            found = [
                (tf.convert_to_tensor(gradients[i]), tangent)
                for i, tangent in zip(known, tensors[count + num_outputs :])
                if gradients[i] is not None
            ]
            sources, pushed = zip(*found) if found else ((), ())
        _thread.is_pushing = True
        try:
            return tape.gradient(sources, seeds, pushed, unconnected_gradients="zero")
        finally:
            _thread.is_pushing = False

    given = [*loop.tensors, *loop.outputs, *(tangents[i] for i in known)]
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in given]
    moved = dict(zip(moving, _tf.make_concrete_function("tf_ti_jvp", push, specs)(*given)))
    return [moved.get(i) for i in range(num_outputs)]


# TensorFlow adds the gradients of histories, which is linear; its own way of finding tangents knows
# none of a variant.
_tf.register_jvp("AddN", lambda op, tangents: [tf.add_n(tangents)])
_tf.register_jvp("ZerosLike", lambda op, tangents: [tf.zeros_like(tangents[0])])


def _tangent_of_list(
    op: tf.Operation, tangents: Sequence[tf.Tensor | None]
) -> list[tf.Tensor | None]:
    tensor = tangents[0]
    assert tensor is not None  # one is, and lists have no other tangents
    shape = tf.constant(_extents.of_elements(tensor.shape[1:]), tf.int32)
    return [tf.raw_ops.TensorListFromTensor(tensor=tensor, element_shape=shape)]


def _tangent_of_write(
    op: tf.Operation, tangents: Sequence[tf.Tensor | None]
) -> list[tf.Tensor | None]:
    elements, _, item = tangents
    if elements is None:
        elements = _empty_list_like(op.inputs[0])
    if item is None:
        item = tf.zeros_like(op.inputs[2])
    grows = op.get_attr("resize_if_index_out_of_bounds")
    return [
        tf.raw_ops.TensorListSetItem(
            input_handle=elements,
            index=op.inputs[1],
            item=item,
            resize_if_index_out_of_bounds=grows,
        )
    ]


_tf.register_jvp("TensorListFromTensor", _tangent_of_list)
_tf.register_jvp("TensorListSetItem", _tangent_of_write)


def _gradients_of_segments(
    forward: "_Forward",
    incoming: Mapping[int, tf.Tensor],
    num_iterations: tf.Tensor | None,
    every: int,
) -> list[tf.Tensor | None]:
    if num_iterations is None:
        num_iterations = forward.count()

    def in_segments(output: _spec.Output, grad: tf.Tensor) -> tf.Tensor:
        if forward.spec.is_open(output):
            return forward.split(output, grad)
        if output.mode == "stack" and output.length >= 0:
            return _slices.first_elements(grad, output.axis, num_iterations)
        return grad

    incoming = {
        i: in_segments(forward.spec.outputs[i], grad)
        for i, grad in incoming.items()
        if forward.spec.outputs[i].mode != "count"
        and not forward.spec.is_empty(forward.spec.outputs[i])
    }
    segments = _checkpoints.cut(
        forward.spec,
        forward.graph,
        forward.tensors,
        forward.outputs,
        num_iterations,
        every,
        incoming,
    )
    loop = _Forward(
        segments.spec,
        segments.graph,
        segments.tensors,
        [forward.outputs[position] for position in segments.positions],
    )
    incoming = {segments.positions.index(i): grad for i, grad in incoming.items()}
    gradients = _Reverse(loop, incoming, None).run()
    for i, spec in segments.pieces.items():
        if gradients[i] is not None:
            is_first = spec.mode == "iterator"
            put_back = _slices.put_back_first if is_first else _slices.put_back
            gradients[i] = put_back(spec, forward.tensors[i], gradients[i])
    return gradients[: len(forward.tensors)]


def _with_values_before(loop: TracedLoop) -> TracedLoop:
    """The loop with temporary variables, where other operations may have changed the variables."""
    op = None if loop.outer_graph is None else loop.op
    values = loop.read_before
    if values is None:
        # The op is of a graph of TensorFlow 1, or of a function that was loaded: nothing read yet.
        values = {} if op is None else _read_before(loop, op)
    tensors = [_made_here(tensor) for tensor in loop.tensors]
    for i, read in values.items():
        # Whoever changes the variable waits for the loop, and may not for a read that had no use.
        if op is not None and read.value.op not in op.control_inputs:
            _tf.add_control_input(op, read.value.op)
        tensors[i] = read.variable(tensors[i])
    return dataclasses.replace(loop, tensors=tensors)


def _made_here(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor, but a temporary variable of another graph once more, of the same value.

    The gradient of a tf.cond or a tf.while_loop takes no variable that was made inside of these.
    """
    if not tf.is_symbolic_tensor(tensor) or tensor.op.type != TEMPORARY:
        return tensor
    if tensor.graph is tf.compat.v1.get_default_graph():
        return tensor
    return ReadBefore.of(tensor.op).variable(tensor)


def _read_before(loop: TracedLoop, op: tf.Operation) -> Mapping[int, ReadBefore]:
    """Adds reads to the graph of an op, before the op."""
    with op.graph.as_default(), tf.control_dependencies(None):
        with tf.control_dependencies(op.control_inputs):
            values = loop.values_before()
    setattr(op, READ_BEFORE, values)
    return values


@_tf.register_gradient(TEMPORARY)
@_tf.do_not_convert
def _temporary_variable_gradient(op: tf.Operation, grad: Any) -> Any:
    """The gradient of a handle is its variable's."""
    return grad


def _zeros_like(tensor: tf.Tensor, parameter: tf.Tensor) -> tf.Tensor | None:
    """The gradient of an input of a loop that nothing depends on, by the body's parameter."""
    if tensor.dtype == tf.resource:
        return _tf.zeros_like_variable(tensor) if _tf.has_gradient(tensor) else None
    dtype = tensor.dtype
    if dtype == tf.variant and not _tf.is_list(tensor):  # a history of values of the parameter
        return tf.zeros_like(tensor) if parameter.dtype not in (tf.bool, tf.string) else None
    return tf.zeros_like(tensor) if _tf.is_trainable(dtype) or dtype == tf.variant else None


def _is_zero(grad: tf.Tensor) -> bool:
    """True if TensorFlow filled in the gradient of an output that nothing depends on.

    Zeros that a user gives are no such gradient, as a second derivative may be taken by them: a
    tape watches them, or tf.gradients did not make them.
    """
    if not tf.is_symbolic_tensor(grad) or grad.op.type != "ZerosLike":
        return False
    if grad.dtype == tf.variant:
        return True
    around, _, scope = tf.get_current_name_scope().rpartition("/")
    by_gradients = scope.endswith("_grad")
    is_filled_in = not by_gradients or grad.op.name.rpartition("/")[0] == around
    return is_filled_in and not _tf.is_watched(grad)


@dataclasses.dataclass(frozen=True)
class _Forward:
    """A loop to differentiate.

    Attributes:
        spec: the loop.
        graph: a copy of all that an iteration computes, the condition too, that may be added to.
        tensors, outputs: the op's inputs and outputs.
    """

    spec: _spec.LoopSpec
    graph: _tf.FuncGraph
    tensors: Sequence[tf.Tensor]
    outputs: Sequence[tf.Tensor]

    @classmethod
    def of(cls, loop: TracedLoop) -> "_Forward":
        graph = _copy(loop.body, loop.outer_graph)
        if loop.condition is not None:
            condition = _copy(loop.condition, loop.outer_graph)
            graph = _graphs.join(condition, loop.condition_inputs, graph, loop.outer_graph)
        for parameter, tensor in zip(graph.inputs, loop.tensors):
            if parameter.dtype in (tf.resource, tf.variant):
                _tf.copy_handle_data(tensor, parameter)
        spec = loop.spec
        if spec.condition_inputs is not None:
            # The loop may have ended before the elements did.
            inputs = [
                dataclasses.replace(i, mode="iterator") if i.mode == "index" else i
                for i in spec.inputs
            ]
            spec = dataclasses.replace(spec, inputs=tuple(inputs))
        return cls(spec, graph, loop.tensors, loop.outputs)

    def history(self, source: int) -> tf.Tensor:
        found = self.spec.find_outputs("sequence", source)
        if not found:
            what = f"result {source}" if source >= 0 else f"parameter {~source}"
            raise LookupError(
                f"the loop did not record {what} of its body, which its gradient needs"
            )
        return self.outputs[found[0]]

    def count(self) -> tf.Tensor | None:
        """The number of iterations that the inputs tell; None if only histories do."""
        for given, tensor in zip(self.spec.inputs, self.tensors):
            if given.is_counted and given.is_sliced:
                return tf.cast(_slices.num_pieces(given, tensor), tf.int64)
        return None

    def split(self, output: _spec.Output, grad: tf.Tensor) -> tf.Tensor:
        """The gradient of a concatenation as a sequence, whatever the extents of the pieces."""
        like = self.history(output.source)
        return ops.tf_ti_sequence_split(grad, like, axis=output.axis, reverse=output.stride < 0)


def _copy(graph: _tf.FuncGraph, outer_graph: tf.Graph | None) -> _tf.FuncGraph:
    """A copy of a function's graph; its definition does not know to what custom gradients refer."""
    if not _graphs.is_copy(graph):
        _custom_gradients.find(graph)
    copy = _graphs.extract(
        "body",
        graph,
        [[t] for t in graph.inputs],
        graph.outputs,
        rename_functions=True,
        outer_graph=outer_graph,
    )
    for op in copy.get_operations():
        if op.type in _graphs.WITH_FUNCTIONS and _tf.is_marked(op, _REFUSED):
            _tf.use_gradient(op, _refuse_second_gradient)
    return copy


class _Reverse:
    """The reverse loop under construction."""

    def __init__(
        self,
        forward: _Forward,
        incoming: Mapping[int, tf.Tensor],
        num_iterations: tf.Tensor | None,
        gives_zeros: bool = False,
    ):
        self.forward = forward
        self.gives_zeros = gives_zeros
        self.num_iterations = num_iterations
        self.spec = forward.spec
        self.graph = forward.graph
        self.inputs: list[_spec.Input] = []
        self.tensors: list[tf.Tensor] = []
        self.parameters: list[list[tf.Tensor]] = []  # the tensors of the graph that each stands for
        self.outputs: list[_spec.Output] = []
        self.lengths: list[tf.Tensor] = []  # of outputs
        self.results: list[tf.Tensor] = []
        self.back_edges: list[tuple[int, int]] = []
        self.operations = set(self.graph.get_operations())
        self.parameters_of_states = {parameter for _, parameter in self.spec.back_edges}
        self.room_for_factors = _MOST_FACTORS * _extents.some_size_of_iteration(
            self.spec, self.graph.inputs
        )
        # Where gradients enter the body: (result, gradient), and for parameters directly.
        self.seeds: list[tuple[tf.Tensor, tf.Tensor]] = []
        self.direct: dict[int, list[tf.Tensor]] = {}

        last: dict[int, tf.Tensor] = {}  # by result
        for i, grad in incoming.items():
            output = self.spec.outputs[i]
            if not self._is_differentiable(output):
                continue
            if output.mode == "last":
                grad = last[output.source] + grad if output.source in last else grad
                last[output.source] = grad
            elif output.source < 0:
                self._add_direct(output, grad)
            else:
                self._add_seed(output, grad)
        self.states = self._add_states(last)
        for result, parameter in self.spec.back_edges:
            if result in last:
                self._check_is_known(parameter)
        for result, grad in last.items():
            self._add_last_seed(result, grad)

    def _is_differentiable(self, output: _spec.Output) -> bool:
        if output.mode == "count":
            return False
        if output.source >= 0:
            source = self.graph.outputs[output.source]
        else:
            source = self.graph.inputs[~output.source]
        # A variant is a list, or a row of a ragged tensor, or a history of a loop inside the body.
        return _tf.is_trainable(source.dtype) or source.dtype == tf.variant

    def _add_parameter(self, tensor: tf.Tensor, like: tf.Tensor, spec: _spec.Input) -> tf.Tensor:
        with self.graph.as_default():
            parameter = tf.compat.v1.placeholder(like.dtype, spec.shape)
        _tf.copy_handle_data(like, parameter)
        self.inputs.append(spec)
        self.tensors.append(tensor)
        self.parameters.append([parameter])
        return parameter

    def _add_direct(self, output: _spec.Output, grad: tf.Tensor) -> None:
        """The history of a parameter has a gradient, when this gradient is differentiated."""
        like = self.graph.inputs[~output.source]
        spec = _spec.Input(f"the gradient of {output.label}", like.shape, "sequence", part_size=0)
        self.direct.setdefault(~output.source, []).append(self._add_parameter(grad, like, spec))

    def _add_seed(self, output: _spec.Output, grad: tf.Tensor) -> None:
        result = self.graph.outputs[output.source]
        sign = 1 if output.stride > 0 else -1
        edges = {"start": 0, "end": -1} if sign > 0 else {"start": -1, "end": 0}
        extent = self.spec.concat_extent(output) if output.mode == "concat" else None
        if output.mode == "sum":
            kwargs: dict[str, Any] = {"mode": "value"}
        elif output.mode == "sequence":
            kwargs = {"mode": "sequence", "axis": output.axis, "part_size": output.part_size}
        elif output.mode == "stack":
            mode = "index"
            if output.length >= 0:
                mode = "iterator"  # zeros follow the values
                if sign < 0:
                    grad = self._turned(grad, output.axis)
                    sign, edges = 1, {"start": 0, "end": -1}
            kwargs = {"mode": mode, "axis": output.axis, "stride": sign, **edges}
        elif extent == 0:
            return
        elif extent or output.part_size:
            size = extent or output.part_size
            kwargs = {
                "mode": "slice" if extent else "segment",
                "axis": output.axis,
                "stride": sign * size,
                "part_size": size,
                **edges,
            }
        else:
            grad = self.forward.split(output, grad)
            kwargs = {"mode": "sequence", "part_size": 0}
        spec = _spec.Input(f"the gradient of {output.label}", result.shape, **kwargs)
        self.seeds.append((result, self._add_parameter(grad, result, spec)))

    def _turned(self, tensor: tf.Tensor, axis: int) -> tf.Tensor:
        """The same with the loop's values, which come first along the axis, turned round."""
        count = self.forward.count() if self.num_iterations is None else self.num_iterations
        shift = count - tf.shape(tensor, tf.int64)[axis]
        return tf.roll(tf.reverse(tensor, [axis]), shift, axis)

    def _add_states(self, last: dict[int, tf.Tensor]) -> dict[int, int]:
        """For each differentiable state one that carries its gradient back.

        Takes the gradients that it starts with out of `last`. Returns the positions of the new
        parameters, by the forward loop's.
        """
        states = {}
        for result, parameter in self.spec.back_edges:
            value = self.graph.outputs[result]
            like = self.graph.inputs[parameter]
            if not (_tf.is_trainable(value.dtype) or _tf.is_list(like)):
                continue
            # A state may have other shapes in other iterations, and so may its gradient.
            shape = like.shape
            if not (shape.is_fully_defined() and value.shape == shape):
                shape = tf.TensorShape(None if shape.rank is None else [None] * shape.rank)
            if result in last:
                initial = last.pop(result)
            elif shape.is_fully_defined() and value.dtype != tf.variant:
                initial = tf.zeros(shape, value.dtype)
            else:
                final, *_ = self.spec.find_outputs("last", result)
                initial = tf.zeros_like(self.forward.outputs[final])
            label = f"the gradient of {self.spec.inputs[parameter].label}"
            states[parameter] = len(self.inputs)
            carried = self._add_parameter(initial, value, _spec.Input(label, shape))
            self.seeds.append((value, carried))
        return states

    def _check_is_known(self, parameter: int) -> None:
        """A state that has a gradient must be known to have one."""
        is_state = parameter in self.parameters_of_states
        if is_state and self.graph.inputs[parameter].dtype == tf.variant:
            raise ValueError(
                f"{self.spec.inputs[parameter].label}: a gradient reaches a variant, but what "
                "that holds is not known"
            )

    def _add_last_seed(self, result: int, grad: tf.Tensor) -> None:
        """The last value of a result that feeds no state: its gradient enters once."""
        value = self.graph.outputs[result]
        label = f"the gradient of the last result {result}"
        invariant = self._add_parameter(grad, value, _spec.Input(label, grad.shape))
        is_last = self._add_parameter(
            tf.constant(True), tf.constant(True), _spec.Input(label, tf.TensorShape([]))
        )
        self.back_edges.append((len(self.results), len(self.parameters) - 1))
        with self.graph.as_default():
            if value.shape.is_fully_defined() and value.dtype != tf.variant:
                seed = tf.where(is_last, invariant, tf.zeros_like(invariant))
            else:
                seed = tf.cond(is_last, lambda: invariant, lambda: tf.zeros_like(value))
            self.results.append(tf.constant(False))
        self.seeds.append((value, seed))

    def run(self) -> list[tf.Tensor | None]:
        """The gradients of the forward op's inputs."""
        collectors = {}
        for i, grad in self._body_gradients().items():
            collectors[i] = self._add_result(i, grad)
        if not collectors:
            return [None] * len(self.spec.inputs)
        outputs = self._run_loop()
        return [
            collectors[i](outputs) if i in collectors else None
            for i in range(len(self.spec.inputs))
        ]

    def _body_gradients(self) -> dict[int, tf.Tensor | tf.IndexedSlices]:
        """The gradients of the body's parameters, as far as there are any."""
        wanted = [
            i
            for i, parameter in enumerate(self.graph.inputs)
            if _tf.is_trainable(parameter.dtype)
            or parameter.dtype == tf.variant
            or (parameter.dtype == tf.resource and _tf.has_gradient(parameter))
        ]
        with self.graph.as_default():
            found = [None] * len(wanted)
            if self.seeds:
                results, seeds = zip(*self.seeds)
                parameters = [self.graph.inputs[i] for i in wanted]
                found = tf.gradients(list(results), parameters, list(seeds))
                self._add_captures()
            gradients = {}
            for i, grad in zip(wanted, found):
                given = self.spec.inputs[i]
                is_opaque = given.mode == "sequence" and _tf.is_opaque(self.graph.inputs[i])
                if is_opaque and grad is None:
                    continue
                if grad is not None and i not in self.states:
                    self._check_is_known(i)
                terms = [*self.direct.get(i, ()), *([] if grad is None else [grad])]
                if i in self.states and not terms:
                    terms = [tf.zeros_like(self.graph.inputs[i])]
                if len(terms) == 1:
                    gradients[i] = terms[0]
                elif terms:
                    gradients[i] = tf.add_n([tf.convert_to_tensor(term) for term in terms])
        return gradients

    def _add_captures(self) -> None:
        """Makes invariants of the tensors that custom gradients use beside the body's."""
        for outside, placeholder in _graphs.resolve_captures(self.graph):
            self.inputs.append(_spec.Input("what a custom gradient captures", placeholder.shape))
            self.tensors.append(outside)
            self.parameters.append([placeholder])

    def _add_output(self, grad: tf.Tensor, mode: str, label: str, **kwargs: Any) -> int:
        """Makes `grad` a result of the reverse body, and that an output of the reverse loop."""
        dtype = tf.variant if mode == "sequence" else grad.dtype
        self.outputs.append(_spec.Output(label, dtype, mode, len(self.results), **kwargs))
        self.results.append(grad)
        return len(self.outputs) - 1

    def _add_result(self, i: int, grad: tf.Tensor | tf.IndexedSlices) -> Callable[..., Any]:
        """Adds a parameter's gradient to the body; returns a function that makes it the input's."""
        spec = self.spec.inputs[i]
        tensor = self.forward.tensors[i]
        label = f"the gradient of {spec.label}"
        is_open = isinstance(grad, tf.IndexedSlices) and _tf.known_extent(grad.values, 0) is None
        if is_open and _tf.expects_xla() and _comes_from_branches(grad.indices):
            # Each branch gives its own number of rows, and XLA must know that of an iteration.
            with self.graph.as_default():
                rows = _shape_of(self.graph.inputs[i])[0]
                grad = tf.math.unsorted_segment_sum(grad.values, grad.indices, rows)
        if spec.mode == "value" and i not in self.states and isinstance(grad, tf.IndexedSlices):
            values = self._add_output(grad.values, "concat", label)
            indices = self._add_output(grad.indices, "concat", label)
            return lambda outputs: _rows_of(tensor, outputs[values], outputs[indices])
        with self.graph.as_default():
            grad = tf.convert_to_tensor(grad)
        if i in self.states:
            if grad.dtype == tf.variant and grad.op.type == "AddN":
                with self.graph.as_default():
                    grad = _sum_of_lists(grad)
            self.back_edges.append((len(self.results), self.states[i]))
            found = self._add_output(grad, "last", label)
            return lambda outputs: outputs[found]
        if spec.mode == "value" and self._is_worth_joining(grad):
            left, right = (self._add_output(t, "concat", label) for t in grad.op.inputs)
            return lambda outputs: tf.matmul(outputs[left], outputs[right], transpose_a=True)
        if spec.mode == "value" and grad.dtype == tf.variant:
            # A state, as only TensorFlow knows how to add its contents.
            like = self.graph.inputs[i]
            start = _empty_list_like(tensor)
            total = self._add_parameter(start, like, _spec.Input(label, like.shape))
            with self.graph.as_default():
                total = _sum_of_lists(total, grad)
            self.back_edges.append((len(self.results), len(self.parameters) - 1))
            found = self._add_output(total, "last", label)
            return lambda outputs: outputs[found]
        if spec.mode == "value":
            found = self._add_output(grad, "sum", label)
            return lambda outputs: _with_shape_of(tensor, outputs[found])
        if spec.mode == "sequence":
            found = self._add_output(grad, "sequence", label, part_size=spec.part_size)
            return lambda outputs: outputs[found]
        if spec.mode == "iterator" and grad.dtype == tf.variant:
            raise ValueError(f"{spec.label}: its elements, variants, have no gradient")
        if spec.mode == "iterator":
            # Zeros for the elements that the loop did not come to.
            length = len(self.lengths)
            self.lengths.append(host_extent(tensor, spec.axis))
            found = self._add_output(grad, "stack", label, axis=spec.axis, length=length)
            return lambda outputs: _slices.put_back_elements(spec, tensor, outputs[found])
        if spec.mode == "index":
            sign = 1 if spec.stride > 0 else -1
            found = self._add_output(grad, "stack", label, axis=spec.axis, stride=sign)
        else:
            sign = 1 if spec.stride > 0 or not _slices.tiles(spec) else -1
            found = self._add_output(grad, "concat", label, axis=spec.axis, stride=sign)
        return lambda outputs: _slices.put_back(spec, tensor, outputs[found])

    def _is_worth_joining(self, grad: tf.Tensor) -> bool:
        """True for x^T @ y of few rows, where the factors of all iterations take little memory.

        A sum of products is the product of their factors, joined: one large product is several
        times faster than many small ones and their sum.
        """
        op = grad.op
        if op.type != "MatMul" or not op.get_attr("transpose_a") or op.get_attr("transpose_b"):
            return False
        if not grad.shape.is_fully_defined():
            return False
        rows = _tf.known_extent(op.inputs[0], 0)
        if rows is None:
            (left,) = _extents.shapes_where_all_are_known(op.inputs[:1])
            if not left.is_fully_defined():  # of the iterations of a loop inside the body, say
                return False
            rows = left.as_list()[0]
        elif rows >= _MANY_ROWS or not op.inputs[0].shape.is_fully_defined():
            return False
        size = rows * sum(grad.shape.as_list()) * grad.dtype.size
        if size > self.room_for_factors:
            return False
        self.room_for_factors -= size
        return True

    def _transpose_invariants(self) -> None:
        """Transposes matrices once, before the loop, where the body multiplies by the transpose.

        The gradient of `x @ w` is `grad @ w^T` in every iteration, and a product with few rows
        takes several times as long with a transposed factor.
        """
        invariants = {
            parameter.ref(): i
            for i, (spec, parameter) in enumerate(zip(self.spec.inputs, self.graph.inputs))
            if spec.mode == "value" and i not in self.parameters_of_states
        }
        transposed: dict[int, tf.Tensor] = {}
        products: dict[Any, tf.Tensor] = {}
        given = [*self.graph.inputs, *(group[0] for group in self.parameters)]
        for op in _graphs.needed_operations(given, self.results, follow_controls=False):
            if op.type != "MatMul" or not op.get_attr("transpose_b"):
                continue
            i = invariants.get(op.inputs[1].ref())
            if i is None:
                continue
            if i not in transposed:
                matrix = self.forward.tensors[i]
                spec = self.spec.inputs[i]
                spec = dataclasses.replace(spec, shape=spec.shape[::-1])
                transposed[i] = self._add_parameter(
                    tf.transpose(matrix), self.graph.inputs[i], spec
                )
            with self.graph.as_default():
                product = tf.matmul(
                    op.inputs[0], transposed[i], transpose_a=op.get_attr("transpose_a")
                )
            products[op.outputs[0].ref()] = product
        _graphs.replace(products)
        self.results = [products.get(r.ref(), r) for r in self.results]

    def _run_loop(self) -> list[tf.Tensor]:
        """Builds the reverse loop, with the inputs that its body turned out to need."""
        self._transpose_invariants()
        # Parameters, and what they get: the history of a source, if that is needed, or a tensor.
        candidates: list[tuple[list[tf.Tensor], _spec.Input, int | tf.Tensor]] = []
        for i, spec in enumerate(self.spec.inputs):
            source = self.forward.tensors[i]
            if i in self.parameters_of_states:
                spec = dataclasses.replace(spec, mode="sequence", part_size=0)
                source = ~i
            parameter = self.graph.inputs[i]
            candidates.append(([parameter, *_recorded.records_of(parameter)], spec, source))
        for _, output in self.spec.recorded_results():
            value = self.graph.outputs[output.source]
            if _custom_gradients.linearity(value.op):
                continue
            spec = _spec.Input(output.label, value.shape, "sequence", part_size=0)
            candidates.append(([value], spec, output.source))
        candidates += zip(self.parameters, self.inputs, self.tensors)

        given = [tensor for group, *_ in candidates for tensor in group]
        effects = self._effects()
        needed = _graphs.needed_operations(given, self.results, effects, follow_controls=False)
        for i, tensor in self._stand_ins(needed).items():
            group, *_ = candidates[i]
            candidates[i] = (group, self.spec.inputs[i], tensor)
        used = {t.ref() for op in needed for t in op.inputs} | {t.ref() for t in self.results}
        targets = {parameter for _, parameter in self.back_edges}
        first_own = len(candidates) - len(self.parameters)
        keep = [
            any(t.ref() in used for t in group) or position - first_own in targets
            for position, (group, *_) in enumerate(candidates)
        ]
        if self.num_iterations is None and not any(
            kept and candidate[1].is_counted for kept, candidate in zip(keep, candidates)
        ):
            keep[[candidate[1].is_counted for candidate in candidates].index(True)] = True
        if not any(isinstance(source, int) for (*_, source), kept in zip(candidates, keep) if kept):
            # Nothing of the forward loop is read, which compares the numbers of iterations.
            for position in self._disagreeing():
                keep[position] = True

        positions = {}
        inputs: list[_spec.Input] = []
        tensors, groups = [], []
        for position, (kept, (group, spec, source)) in enumerate(zip(keep, candidates)):
            if kept:
                positions[position] = len(inputs)
                inputs.append(spec)
                tensors.append(self.forward.history(source) if isinstance(source, int) else source)
                groups.append(group)
        _check_repeatable([op for op in needed if op in self.operations], self.graph)
        body = _graphs.extract(
            "gradient",
            self.graph,
            groups,
            self.results,
            effects,
            follow_controls=bool(effects),
            others={op: add for op in needed if (add := _loop_again(op)) is not None},
        )
        _refuse(self.operations.intersection(needed), body)
        body.outputs += _body.recorded(body, [[t] for t in body.inputs], ())
        loop_spec = _spec.LoopSpec(
            tuple(inputs),
            tuple(self.outputs),
            tuple((result, positions[first_own + p]) for result, p in self.back_edges),
            tuple(t.dtype for t in body.outputs),
            tuple(t.shape for t in body.outputs),
            reverse=not self.spec.reverse,
            fuse=self.spec.fuse,
            parallel_iterations=self.spec.parallel_iterations,
        )
        loop = TracedLoop(
            loop_spec,
            Part.whole(body),
            tensors,
            self.num_iterations,
            lengths=self.lengths,
            num_results=len(self.results),
            gives_zeros=self.gives_zeros,
        )
        return _lower.run_loop(loop, name="TensorIteratorGradient")

    def _effects(self) -> list[tf.Operation]:
        """The operations of gradient functions that run even if nobody uses their results.

        They and the reads of variables that they change wait for one another. No operation waits
        for the forward body's operations, whose effects are over.
        """
        operations = self.graph.get_operations()
        own = [op for op in operations if op not in self.operations]
        effects = _graphs.effects(own)
        if effects:
            for op in self.operations:
                _graphs.keep_controls(op, lambda _: False)
            for op in own:
                _graphs.keep_controls(op, lambda other: other not in self.operations)
            in_order = _graphs.find_unrepeatable(self.graph).union(effects)
            _graphs.chain([op for op in own if op in in_order])
        return effects

    def _stand_ins(self, needed: Sequence[tf.Operation]) -> dict[int, tf.Tensor]:
        """Lists without elements, by parameter, for states that the body's operations only write.

        To keep the states themselves would take a list for each iteration.
        """
        lists = [
            (result, i) for result, i in self.spec.back_edges if _tf.is_list(self.graph.inputs[i])
        ]
        if not lists:
            return {}
        forward = _graphs.needed_operations(self.graph.inputs, self.graph.outputs)
        found = {}
        for result, i in lists:
            parameter = self.graph.inputs[i]
            is_only_written = _written.is_only_written(parameter, needed, self.results)
            if is_only_written and _written.keeps_its_length(
                parameter, forward, self.graph.outputs[result]
            ):
                final, *_ = self.spec.find_outputs("last", result)
                found[i] = _empty_list_like(self.forward.outputs[final])
        return found

    def _disagreeing(self) -> Sequence[int]:
        """The inputs that tell numbers of iterations, unless these are known to agree."""
        limit = self.num_iterations
        if any(limit is output for output in self.forward.outputs):
            return ()
        loop = TracedLoop(self.spec, Part.whole(self.graph), self.forward.tensors, limit)
        try:
            counts = Counts.of(loop)
        except Unknown:
            return [i for i, spec in enumerate(self.spec.inputs) if spec.is_counted]
        return () if counts.may_leave else counts.counted


def _may_be_nonlinear(op: tf.Operation) -> bool:
    """True for a conditional, a loop of TensorFlow's or a call with a custom gradient inside."""
    is_ours = op.type in _spec.OPS
    return not is_ours and _custom_gradients.is_nonlinear_inside(op)


def _refuse(operations: Iterable[tf.Operation], copied: _tf.FuncGraph) -> None:
    """Refuses gradients of the copies of operations whose custom gradients may not be linear."""
    for op in filter(_may_be_nonlinear, operations):
        (copy,) = {copied.tf_ti_copies[t.ref()].op for t in op.outputs}
        _tf.mark(copy, _REFUSED)


def _loop_again(op: tf.Operation) -> Callable[[list[tf.Tensor]], list[tf.Tensor]] | None:
    """Adds a loop whose second gradient reaches the records that it reads.

    None for another operation, and for a loop that reads no records and that `_refuse` leaves.
    """
    if op.type not in _spec.OPS:
        return None
    loop = TracedLoop.from_op(op)
    operations = loop.body.get_operations()
    if not _recorded.has_records(loop.body) and not any(map(_may_be_nonlinear, operations)):
        return None

    def add(inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        tensors, scalars = inputs[: len(loop.tensors)], inputs[len(loop.tensors) :]
        limit = None if loop.num_iterations is None else scalars.pop(0)
        body = _recorded.only_records(loop.body)
        _refuse(operations, body)
        again = dataclasses.replace(
            loop,
            part=Part.whole(body),
            tensors=tensors,
            num_iterations=limit,
            lengths=scalars,
            outputs=(),
        )
        return _lower.add_op(again, op.name)

    return add


@_tf.do_not_convert
def _refuse_second_gradient(op: tf.Operation, *grads: tf.Tensor | None) -> list[None]:
    """Gives no gradient of an operation whose values a reverse loop computed again."""
    if getattr(_thread, "is_pushing", False):
        return [None] * len(op.inputs)
    cure = "take tf_ti.while_loop in place of an inner tf.while_loop, and tf.where of a tf.cond"
    if op.type in _graphs.CALLS:
        cure = "let the body call that function without jit_compile"
    raise ValueError(
        f"a custom gradient in {op.type} {op.name!r} of a loop's body is not linear in what it "
        f"gets: it has no second derivatives there; {cure}"
    )


def _check_repeatable(operations: Sequence[tf.Operation], graph: _tf.FuncGraph) -> None:
    """Refuses operations that a gradient cannot repeat, and needs recorded."""
    unrepeatable = _graphs.find_unrepeatable(graph)
    for op in operations:
        # What the body itself reads of a variable was recorded.
        if op not in unrepeatable or op.type in _tf.READS:
            continue
        if op.type == "EagerPyFunc":
            raise ValueError(
                f"the gradient of this loop needs that of the tf.py_function {op.name!r}, of which "
                "TensorFlow remembers the last call only, but a loop calls it in each iteration; "
                "give it a gradient by tf.custom_gradient"
            )
        raise ValueError(
            f"the gradient of this loop would have to repeat {op.type} {op.name!r}, which has "
            "effects, draws random numbers or reads a variable that the body changes: it stands "
            "in a conditional or a loop inside the body; do that outside of it"
        )


def _empty_list_like(tensor: tf.Tensor) -> tf.Tensor:
    """Zeros for the elements of a list; where their shape is known they need no memory."""
    element = _tf.spec_inside(tensor)
    if element is None or not element.shape.is_fully_defined():
        return tf.zeros_like(tensor)
    return tf.raw_ops.TensorListReserve(
        element_shape=tf.constant(element.shape.as_list(), tf.int32),
        num_elements=tf.raw_ops.TensorListLength(input_handle=tensor),
        element_dtype=element.dtype,
    )


def _sum_of_lists(*lists: tf.Tensor) -> tf.Tensor:
    """The sum of lists; one by one of those that are the gradients of reads of an element.

    Such a list has nothing but its element: to add all of it in each iteration would take a time
    that is quadratic in the number of iterations.
    """
    terms = [term for t in lists for term in (t.op.inputs if t.op.type == "AddN" else [t])]
    is_element = [_is_gradient_of_read(term) for term in terms]
    others = [term for term, is_one in zip(terms, is_element) if not is_one]
    if len(others) != 1:
        return tf.add_n(lists)
    (total,) = others
    for term in itertools.compress(terms, is_element):
        _, index, item = term.op.inputs
        element = tf.raw_ops.TensorListGetItem(
            input_handle=total, index=index, element_shape=tf.shape(item), element_dtype=item.dtype
        )
        total = tf.raw_ops.TensorListSetItem(input_handle=total, index=index, item=element + item)
    return total


def _is_gradient_of_read(tensor: tf.Tensor) -> bool:
    """True for a list of one element; not of a variant, which cannot be added to none."""
    op = tensor.op
    is_write = op.type == "TensorListSetItem" and op.inputs[0].op.type == "TensorListReserve"
    return is_write and op.inputs[2].dtype != tf.variant


def _comes_from_branches(tensor: tf.Tensor) -> bool:
    seen, stack = set(), [tensor.op]
    while stack:
        op = stack.pop()
        if op.type in _graphs.CONDITIONALS:
            return True
        if op not in seen:
            seen.add(op)
            stack.extend(source.op for source in op.inputs)
    return False


def _shape_of(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype == tf.resource:
        return tf.raw_ops.VariableShape(input=tensor, out_type=tf.int64)
    return tf.shape(tensor, tf.int64)


def _with_shape_of(tensor: tf.Tensor, grad: tf.Tensor) -> tf.Tensor:
    """A sum over no iterations has extent 1 where its shape was not known."""
    if tensor.dtype == tf.resource or tensor.shape.is_fully_defined():
        return grad
    return tf.broadcast_to(grad, tf.shape(tensor))


def _rows_of(tensor: tf.Tensor, values: tf.Tensor, indices: tf.Tensor) -> tf.IndexedSlices:
    """The gradient of a tensor as rows, which have its shape where no iteration tells it, too."""
    # Of TensorFlow's own type, as gradients of two branches must be alike.
    shape = tf.cast(_shape_of(tensor), tf.int32)
    if not values.shape[1:].is_fully_defined():
        values = tf.reshape(values, tf.concat([tf.shape(indices), shape[1:]], 0))
    return tf.IndexedSlices(values, indices, shape)


@_tf.register_gradient("TfTi>SequenceSplit")
@_tf.do_not_convert
def _split_gradient(op: tf.Operation, grad: tf.Tensor) -> list[tf.Tensor | None]:
    tensor = op.inputs[0]
    joined = ops.tf_ti_sequence_concat(
        grad,
        dtype=tensor.dtype,
        element_shape=tensor.shape,
        axis=op.get_attr("axis"),
        reverse=op.get_attr("reverse"),
    )
    return [tf.reshape(joined, tf.shape(tensor)), None]


@_tf.register_gradient("TfTi>SequenceConcat")
@_tf.do_not_convert
def _concat_gradient(op: tf.Operation, grad: tf.Tensor) -> list[tf.Tensor]:
    return ops.tf_ti_sequence_split(
        grad, op.inputs[0], axis=op.get_attr("axis"), reverse=op.get_attr("reverse")
    )
