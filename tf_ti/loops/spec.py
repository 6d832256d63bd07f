"""Loops as the op's attributes say them.

Every loop of the package, the gradients' reverse loops too, has a `LoopSpec`. The documentation of
the op, in cc/ops/loops.cc, gives the meaning of each mode.
"""

import dataclasses
import functools
from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tf_ti import _tf

OPS = ("TfTi>TensorIterator", "TfTi>StatelessTensorIterator")


# An axis from one end to the other: start, end and stride.
FORWARDS = (0, -1, 1)
BACKWARDS = (-1, 0, -1)


@dataclasses.dataclass(frozen=True)
class Input:
    """The way a parameter of the body gets its value.

    Attributes:
        label: the name that errors give it. Sliced inputs of one label have as many pieces.
        shape: the parameter's static shape.
        mode, axis, start, end, stride, part_size: as the op's attributes of these names.
    """

    label: str
    shape: tf.TensorShape
    mode: str = "value"
    axis: int = 0
    start: int = 0
    end: int = -1
    stride: int = 1
    part_size: int = 1

    @property
    def is_counted(self) -> bool:
        """True if the input tells the number of iterations."""
        return self.mode not in ("value", "iterator")

    @property
    def is_sliced(self) -> bool:
        """True if the parameter gets pieces, or elements, of a tensor."""
        return self.mode not in ("value", "sequence")


@dataclasses.dataclass(frozen=True)
class Output:
    """An output of the loop, made of a result of the body or of one of its parameters.

    Attributes:
        label: the name that errors give it.
        dtype: its type.
        mode, axis, stride, part_size, length: as the op's attributes of these names.
        source: the position of the result, or `~position` of the parameter.
    """

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
    """All that the attributes of a loop op say, but for its functions.

    Attributes:
        inputs: one for each parameter of the body.
        outputs: one for each output of the op.
        back_edges: pairs (result, parameter): the states.
        result_types, result_shapes: those of the body's results.
        reverse: true if the loop visits its iterations from the last to the first.
        limit_label: the name that errors give the number of iterations.
        condition_inputs: the parameters that the condition reads; None without a condition.
        fuse: true if programs of vector code may run parts of the body.
        parallel_iterations: the most that are on their way at once; 0 for any number.
    """

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    back_edges: tuple[tuple[int, int], ...]
    result_types: tuple[tf.DType, ...]
    result_shapes: tuple[tf.TensorShape, ...]
    reverse: bool = False
    limit_label: str = "num_iterations"
    condition_inputs: tuple[int, ...] | None = None
    fuse: bool = True
    parallel_iterations: int = 0

    def recording(self, every: int, recorded: Collection[int]) -> "LoopSpec":
        """The same loop with the further outputs that its gradient needs: histories.

        They cost nothing where no gradient is taken: the kernel leaves a history that nobody
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
            if is_open and not self.find_outputs("last", result):
                outputs.append(Output(f"the last value of {label}", dtype, "last", result))
        # To give each piece its gradient, its place must be known.
        pieces = [as_history(output) for output in self.outputs if self.is_open(output)]
        for result in sorted({*recorded} - {output.source for output in pieces}):
            outputs.append(
                Output(f"the history of result {result}", tf.variant, "sequence", result)
            )
        outputs += pieces
        if self.condition_inputs is not None:
            outputs.append(Output("the number of iterations", tf.int64, "count", 0))
        return dataclasses.replace(self, outputs=tuple(outputs))

    def parameters_in_use(self) -> set[int]:
        """The parameters that a condition, a back edge or an output needs."""
        used = {*(self.condition_inputs or ()), *(parameter for _, parameter in self.back_edges)}
        return used.union(~output.source for output in self.outputs if output.source < 0)

    def without_inputs(self, gone: Collection[int]) -> "LoopSpec":
        """The same loop without some inputs, whose parameters are not in use."""
        kept = [i for i in range(len(self.inputs)) if i not in gone]
        place = {i: k for k, i in enumerate(kept)}
        condition_inputs = self.condition_inputs
        if condition_inputs is not None:
            condition_inputs = tuple(place[i] for i in condition_inputs)
        return dataclasses.replace(
            self,
            inputs=tuple(self.inputs[i] for i in kept),
            outputs=tuple(
                o if o.source >= 0 else dataclasses.replace(o, source=~place[~o.source])
                for o in self.outputs
            ),
            back_edges=tuple((r, place[p]) for r, p in self.back_edges),
            condition_inputs=condition_inputs,
        )

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
        return shape.as_list()[output.axis]

    def is_open(self, output: Output) -> bool:
        """True if the extents of a concatenation's pieces are known only when it runs."""
        is_unknown = output.mode == "concat" and self.concat_extent(output) is None
        return is_unknown and not output.part_size

    def is_empty(self, output: Output) -> bool:
        """True for a concatenation whose pieces are known to have no elements."""
        return output.mode == "concat" and self.concat_extent(output) == 0

    def find_outputs(self, mode: str, source: int) -> list[int]:
        """The positions of the outputs of a mode and a source."""
        return self._positions.get((mode, source), [])

    @functools.cached_property
    def _positions(self) -> dict[tuple[str, int], list[int]]:
        found: dict[tuple[str, int], list[int]] = {}
        for i, output in enumerate(self.outputs):
            # A list of histories, one for each segment, is not a history.
            if not (output.mode == "sequence" and output.part_size):
                found.setdefault((output.mode, output.source), []).append(i)
        return found

    def recorded_results(self) -> list[tuple[int, Output]]:
        """The outputs that are histories of results, with their positions."""
        return [
            (i, output)
            for i, output in enumerate(self.outputs)
            if output.mode == "sequence" and output.source >= 0 and not output.part_size
        ]

    def attributes(self) -> dict[str, Any]:
        """The attributes of the op."""
        inputs, outputs = self.inputs, self.outputs
        fields = ("mode", "axis", "start", "end", "stride", "part_size", "label")
        given = {f"input_{field}": [getattr(i, field) for i in inputs] for field in fields}
        fields = ("mode", "source", "axis", "stride", "part_size", "length", "label")
        made = {f"output_{field}": [getattr(o, field) for o in outputs] for field in fields}
        return {
            **given,
            **made,
            "parameter_shapes": [i.shape for i in inputs],
            "Tout": [o.dtype for o in outputs],
            "back_edge_from": [result for result, _ in self.back_edges],
            "back_edge_to": [parameter for _, parameter in self.back_edges],
            "result_types": list(self.result_types),
            "result_shapes": list(self.result_shapes),
            "reverse": self.reverse,
            "limit_label": self.limit_label,
            "condition_inputs": list(self.condition_inputs or ()),
            "fuse": self.fuse,
            "parallel_iterations": self.parallel_iterations,
        }

    @classmethod
    def from_op(cls, op: tf.Operation) -> "LoopSpec":
        attr = op.get_attr

        def text(name: str) -> list[str]:
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
            attr("fuse"),
            attr("parallel_iterations"),
        )


def as_history(output: Output) -> Output:
    """The output's pieces, not joined; the axis is that along which they would be."""
    label = f"the pieces of {output.label}"
    return Output(label, tf.variant, "sequence", output.source, axis=output.axis)
