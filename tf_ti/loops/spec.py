"""What a loop op is (`LoopSpec`), and how one is run.

Every loop of the package, the gradients' reverse loops too, is a `LoopSpec` and a function; what
each mode means stands in the op's documentation, in cc/ops/tensor_iterator.cc.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti._library import ops

OPS = ("TfTi>TensorIterator", "TfTi>StatelessTensorIterator")
# From a `Loop` and the gradients of its outputs to those of its inputs, and from the tangents of
# its inputs to those of its outputs: gradients.py, which runs loops itself, sets them.
derivatives: list[Callable[..., list]] = []


@dataclasses.dataclass(frozen=True)
class Input:
    """Where a parameter of the body gets its value."""

    label: str
    shape: tf.TensorShape  # the parameter's static shape
    mode: str = "value"
    axis: int = 0
    start: int = 0
    end: int = -1
    stride: int = 1
    part_size: int = 1

    @property
    def is_counted(self) -> bool:
        """Whether the input tells the number of iterations."""
        return self.mode not in ("value", "iterator")

    @property
    def is_sliced(self) -> bool:
        """Whether the parameter gets pieces, or elements, of a tensor."""
        return self.mode not in ("value", "sequence")


@dataclasses.dataclass(frozen=True)
class Output:
    """What becomes of a result of the body (`source >= 0`) or of parameter `~source`."""

    label: str
    dtype: tf.DType
    mode: str
    source: int
    axis: int = 0
    stride: int = 1
    part_size: int = 0
    length: int = -1


@dataclasses.dataclass(frozen=True)
class LoopSpec:
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    back_edges: tuple[tuple[int, int], ...]  # (result, parameter)
    result_types: tuple[tf.DType, ...]
    result_shapes: tuple[tf.TensorShape, ...]
    reverse: bool = False
    limit_label: str = "num_iterations"
    condition_inputs: tuple[int, ...] | None = None  # None where there is no condition

    def recording(self, every: int, recorded: Sequence[int]) -> "LoopSpec":
        """The same loop with the further outputs that its gradient needs.

        They cost nothing where no gradient is taken: the kernel leaves a sequence that nobody
        consumes empty, and a last value is moved, not copied.

        Args:
            every: record the states of each `every`-th iteration.
            recorded: results to record in every iteration.
        """
        outputs = list(self.outputs)
        for result, parameter in self.back_edges:
            label = f"the history of {self.inputs[parameter].label}"
            outputs.append(Output(label, tf.variant, "sequence", ~parameter, stride=every))
            # The zero gradient of a state whose shape may change has the last value's shape, and so
            # has that of a list.
            dtype = self.result_types[result]
            is_open = not self._state_shape_is_fixed(result, parameter)
            is_open = is_open and _tf.is_trainable(dtype) or dtype == tf.variant
            if is_open and self.find_output("last", result) is None:
                outputs.append(Output(f"the last value of {label}", dtype, "last", result))
        for result in recorded:
            outputs.append(
                Output(f"the history of result {result}", tf.variant, "sequence", result)
            )
        for output in self.outputs:
            if self.is_open(output):
                # Where each piece lies must be known to give each its gradient.
                outputs.append(as_sequence(output))
        if self.condition_inputs is not None:
            outputs.append(Output("the number of iterations", tf.int64, "count", 0))
        return dataclasses.replace(self, outputs=tuple(outputs))

    def _state_shape_is_fixed(self, result: int, parameter: int) -> bool:
        shape = self.inputs[parameter].shape
        return shape.is_fully_defined() and self.result_shapes[result] == shape

    def concat_extent(self, output: Output) -> int | None:
        """The static extent of a concatenated output's pieces along its axis, or None."""
        shape = self.result_shapes[output.source]
        if shape.rank is None:
            return None
        if shape.rank == 0:
            return 1
        return shape[output.axis]

    def is_open(self, output: Output) -> bool:
        """Whether the pieces of a concatenation are known only when it runs."""
        is_unknown = output.mode == "concat" and self.concat_extent(output) is None
        return is_unknown and not output.part_size

    def find_output(self, mode: str, source: int) -> int | None:
        for i, output in enumerate(self.outputs):
            # A sequence of sequences is not a history.
            is_nested = output.mode == "sequence" and output.part_size
            if output.mode == mode and output.source == source and not is_nested:
                return i
        return None

    def recorded_results(self) -> list[tuple[int, Output]]:
        """The outputs that are histories of results, with their positions."""
        return [
            (i, output)
            for i, output in enumerate(self.outputs)
            if output.mode == "sequence" and output.source >= 0 and not output.part_size
        ]

    @classmethod
    def from_op(cls, op: tf.Operation) -> "LoopSpec":
        attr = op.get_attr

        def text(name):
            return [value.decode() for value in attr(name)]

        inputs = zip(
            text("input_label"),
            [tf.TensorShape(s) for s in attr("parameter_shapes")],
            text("input_mode"),
            *(attr(f"input_{field}") for field in ("axis", "start", "end", "stride", "part_size")),
        )
        outputs = zip(
            text("output_label"),
            [tf.as_dtype(t) for t in attr("Tout")],
            text("output_mode"),
            *(
                attr(f"output_{field}")
                for field in ("source", "axis", "stride", "part_size", "length")
            ),
        )
        return cls(
            tuple(Input(*fields) for fields in inputs),
            tuple(Output(*fields) for fields in outputs),
            tuple(zip(attr("back_edge_from"), attr("back_edge_to"))),
            tuple(tf.as_dtype(t) for t in attr("result_types")),
            tuple(tf.TensorShape(s) for s in attr("result_shapes")),
            attr("reverse"),
            attr("limit_label").decode(),
            tuple(attr("condition_inputs")) if attr("condition") else None,
        )


def as_sequence(output: Output) -> Output:
    """The output's pieces, not joined."""
    return Output(f"the pieces of {output.label}", tf.variant, "sequence", output.source)


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop op as its gradient sees it, in a graph or run.

    Attributes:
        spec: what it is.
        body, condition: functions that the runtime knows, or their names.
        inputs: the tensors that the spec's inputs get.
        num_iterations: the limit, or None.
        outputs: the tensors.
        graph: where the op is; None where it was run.
        num_scalars: how many inputs the op has beside those of the spec.
    """

    spec: LoopSpec
    body: Any
    condition: Any
    inputs: list[tf.Tensor]
    num_iterations: tf.Tensor | None
    outputs: list[tf.Tensor]
    graph: tf.Graph | None
    num_scalars: int

    @classmethod
    def from_op(cls, op: tf.Operation) -> "Loop":
        spec = LoopSpec.from_op(op)
        count = len(spec.inputs)
        return cls(
            spec,
            op.get_attr("body").name,
            op.get_attr("condition")[0].name if spec.condition_inputs is not None else None,
            list(op.inputs[:count]),
            op.inputs[count] if op.get_attr("N") else None,
            list(op.outputs),
            op.graph,
            len(op.inputs) - count,
        )


def run_loop(
    spec: LoopSpec,
    body,
    tensors: Sequence[tf.Tensor],
    num_iterations: tf.Tensor | None = None,
    stateful: bool = False,
    name: str | None = None,
    condition=None,
    lengths: Sequence[tf.Tensor] = (),
) -> list[tf.Tensor]:
    """Adds the loop op to the current graph, or runs it."""
    make = ops.tf_ti_tensor_iterator if stateful else ops.tf_ti_stateless_tensor_iterator
    # Before recording stops: a graph captures a tensor once, and shows that to tapes then.
    tensors = _tf.captured(tensors)
    limits = [] if num_iterations is None else [tf.cast(num_iterations, tf.int64)]
    lengths = [tf.cast(length, tf.int64) for length in lengths]
    with _tf.stop_recording():
        outputs = make(
            input=tensors,
            num_iterations=limits,
            length=lengths,
            Tout=[output.dtype for output in spec.outputs],
            body=_tf.use_function(body),
            condition=[] if condition is None else [_tf.use_function(condition)],
            condition_inputs=list(spec.condition_inputs or ()),
            input_mode=[i.mode for i in spec.inputs],
            input_axis=[i.axis for i in spec.inputs],
            input_start=[i.start for i in spec.inputs],
            input_end=[i.end for i in spec.inputs],
            input_stride=[i.stride for i in spec.inputs],
            input_part_size=[i.part_size for i in spec.inputs],
            input_label=[i.label for i in spec.inputs],
            parameter_shapes=[i.shape for i in spec.inputs],
            back_edge_from=[edge[0] for edge in spec.back_edges],
            back_edge_to=[edge[1] for edge in spec.back_edges],
            output_mode=[o.mode for o in spec.outputs],
            output_source=[o.source for o in spec.outputs],
            output_axis=[o.axis for o in spec.outputs],
            output_stride=[o.stride for o in spec.outputs],
            output_part_size=[o.part_size for o in spec.outputs],
            output_length=[o.length for o in spec.outputs],
            output_label=[o.label for o in spec.outputs],
            result_types=list(spec.result_types),
            result_shapes=list(spec.result_shapes),
            reverse=spec.reverse,
            limit_label=spec.limit_label,
            name=name,
        )
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else []
    if not outputs:
        return []
    is_eager = isinstance(outputs[0], _tf.EagerTensor)
    if not is_eager:
        _mark(outputs[0].op, spec, tensors, num_iterations)
        for result, parameter in spec.back_edges:
            if tensors[parameter].dtype == tf.variant:
                for output, tensor in zip(spec.outputs, outputs):
                    if (output.mode, output.source) == ("last", result):
                        _tf.copy_handle_data(tensors[parameter], tensor)
    if _tf.is_recording():
        given = [*tensors, *limits, *lengths]
        loop = Loop(
            spec,
            body,
            condition,
            tensors,
            limits[0] if limits else None,
            outputs,
            None if is_eager else outputs[0].graph,
            len(limits) + len(lengths),
        )
        gradient, jvp = (functools.partial(f, loop) for f in derivatives)
        _tf.record("tf_ti_loop", given, outputs, gradient, jvp)
    return outputs


def _mark(
    op: tf.Operation,
    spec: LoopSpec,
    tensors: Sequence[tf.Tensor],
    num_iterations: tf.Tensor | None,
) -> None:
    """Tells TensorFlow what no registration of an op can: what depends on the loop."""
    # Where the body has them, whatever the device: else they would be copied, and waited for.
    _tf.keep_on_host(
        op,
        [i for i, tensor in enumerate(tensors) if tensor.dtype == tf.int32],
        [
            i
            for i, output in enumerate(spec.outputs)
            if output.dtype == tf.int32 or output.mode == "count"
        ],
    )
    # XLA may compile a loop anew for each number of iterations, where an output is as long. But not
    # where another loop counted them: it would have to know all that this loop depends on.
    is_extent = any(
        o.mode == "concat" or (o.mode == "stack" and o.length < 0) for o in spec.outputs
    )
    is_symbolic = isinstance(num_iterations, tf.Tensor) and not isinstance(
        num_iterations, _tf.EagerTensor
    )
    if num_iterations is not None and is_extent:
        if not (is_symbolic and num_iterations.op.type in OPS):
            # The lengths too: this takes the place of what cc/xla says about every loop.
            _tf.mark_constant_inputs(op, ["num_iterations", "length"])
