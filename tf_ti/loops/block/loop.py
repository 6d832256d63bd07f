"""`tf_ti.Loop`: TensorRT's loop."""

import contextlib
import enum
import os
import types
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.block.block import Block, check_scalar
from tf_ti.loops.block.layers import IteratorLayer, OutputLayer, RecurrenceLayer
from tf_ti.loops.block.network import Network
from tf_ti.loops.block.values import (
    Iterator,
    Output,
    PackedOutput,
    PackedRecurrence,
    Recurrence,
    composite_recurrence,
    nested_recurrence,
)
from tf_ti.loops.drawing import draw as _draw, picture as _picture
from tf_ti.loops.drawing.diagram import Diagram
from tf_ti.loops.passes import check_fuse
from tf_ti.loops.tracing import composites as _composites, eager as _eager
from tf_ti.loops.tracing.structure import Structure

_Enum = TypeVar("_Enum", bound=enum.Enum)


class TripLimit(enum.Enum):
    """The meaning of a trip limit's tensor.

    Attributes:
        COUNT: the number of iterations: a scalar int32 or int64 from outside the loop. A negative
            one means none.
        WHILE: a scalar bool. Iteration n runs if the n-th value is true.
    """

    COUNT = "count"
    WHILE = "while"


class LoopOutput(enum.Enum):
    """The output made of the values X_0, X_1, ... that a tensor has in n iterations.

    Attributes:
        LAST_VALUE: X_n. The tensor must be a recurrence: X_0 is its initial value.
        CONCATENATE: X_0 ... X_(n-1), stacked along a new axis.
        REVERSE: X_(n-1) ... X_0, likewise.
    """

    LAST_VALUE = "last"
    CONCATENATE = "concatenate"
    REVERSE = "reverse"


class Loop:
    """A loop, built step by step: TensorRT's.

        with tf_ti.Loop() as loop:
            loop.add_trip_limit(count, tf_ti.TripLimit.COUNT)
            x = loop.add_iterator(xs)
            h = loop.add_recurrence(initial)
            h.next = f(h, x)
            last = loop.add_loop_output(h, tf_ti.LoopOutput.LAST_VALUE)
            all = loop.add_loop_output(h, tf_ti.LoopOutput.CONCATENATE)

    means

        h, values = initial, []
        for k in range(count):
            values.append(h)
            h = f(h, xs[k])
        last, all = h, tf.stack(values)

    The block is traced, in eager mode too: tensors that it uses from outside are the same in all
    iterations. When the outermost block ends the loop runs, or is added to the graph. In eager
    mode each such block is traced anew; in a tf.function it is traced once. Under
    `tf.config.run_functions_eagerly(True)` too Python runs the block once: print with `tf.print`.

    A loop computes nothing for an iteration that does not take place: the WHILE condition is
    evaluated before all else of an iteration, and on its own; values that it shares with the body
    are computed once. Recurrences advance all together. Effects (printing, assignments, random
    numbers) happen in every iteration, in the order of the program.

    A block inside another one's makes a loop inside the other; layers are added in their own loop's
    block. Loops that one statement opens, as in `with Loop() as a, Loop() as b`, share a block, and
    nest in TensorRT's way: a loop is inside those whose values it uses. A loop without
    outputs and effects is left out.

    Gradients reach the tensors that loops use from outside. They compute the body again from the
    recurrences' recorded values.

    Args:
        name: a name, for errors, drawings and the graph; "Loop" if None.
        fuse: as in `tf_ti.tensor_iterator`. Of a loop with a WHILE condition nothing moves, and it
            becomes no other operation; programs may run what they can of its body.

    Attributes:
        name: the name.
        outputs: the `Output`s, in the order in which they were added.

    Raises:
        ValueError, TypeError: the loop or a layer gets a wrong argument, at the call, or loops do
            not nest, when the outermost block ends.
        tf.errors.InvalidArgumentError: an iterator is shorter than the loop, a length is below the
            number of iterations, or a shape changes. In eager mode when the outermost block ends.

    Example:

        >>> with tf_ti.Loop() as loop:
        ...     i = loop.add_recurrence(1)
        ...     loop.add_trip_limit(i < 100, tf_ti.TripLimit.WHILE)
        ...     i.next = i * 3
        ...     powers = loop.add_loop_output(i, tf_ti.LoopOutput.CONCATENATE)
        >>> powers.numpy().tolist()
        [1, 3, 9, 27, 81]

    Source: TensorRT's developer guide, "Working with Loops".
    """

    def __init__(self, name: str | None = None, *, fuse: bool = True):
        if name is not None and (not isinstance(name, str) or not name):
            raise TypeError(f"name must be a non-empty str or None, got {name!r}")
        check_fuse(fuse)
        self._requested_name, self._fuse = name, bool(fuse)
        self._block = Block(name or "Loop")
        self.outputs: list[Output] = []
        self._graph_context: contextlib.ExitStack | None = None

    @property
    def name(self) -> str:
        return self._block.name

    def __repr__(self) -> str:
        if not self._block.was_opened:
            return f"<Loop {self.name!r}, not entered>"
        node = self._block.node
        limits = {"COUNT": node.count, "WHILE": node.condition}
        parts: dict[str, Sequence[Any]] = {
            "iterators": node.iterators,
            "recurrences": node.recurrences,
            "limits": [limit for limit, value in limits.items() if value is not None],
            "outputs": node.outputs,
        }
        counted = ", ".join(f"{len(found)} {name}" for name, found in parts.items() if found)
        return f"<Loop {self.name!r}: {counted or 'empty'}>"

    @_tf.public
    def __enter__(self) -> "Loop":
        if self._block.was_opened:
            raise ValueError(f"loop {self.name!r} has been entered before")
        network = Network.current()
        if network is None or not network.is_untouched():
            if tf.executing_eagerly():
                _eager.count_block()
            network, is_paused = Network(self.name), _tf.are_callbacks_paused()
            self._graph_context = contextlib.ExitStack()
            self._graph_context.enter_context(network.graph.as_default())
            self._graph_context.enter_context(_tf.callbacks_paused(is_paused))
        self._block.open(network, network.enter(self._requested_name, self._fuse))
        return self

    @_tf.public
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        network = self._block.network
        self._block.is_open = False
        network.leave(self._block.node)
        if self._graph_context is not None:
            self._graph_context.__exit__(kind, error, traceback)
        try:
            if kind is None:
                self._finish()
        except BaseException as failure:
            kind = type(failure)
            raise
        finally:
            if kind is not None:
                network.discard(self._block.node)

    def _finish(self) -> None:
        self._check_complete()
        network = self._block.network
        if self._graph_context is not None:
            for layer, value in network.finish().items():
                layer.result = value

    @_tf.public
    def add_trip_limit(self, tensor: Any, limit: TripLimit | Literal["count", "while"]) -> None:
        """Limits the number of iterations.

        A loop has at most one limit of each kind, and at least one; with both it ends with
        whichever comes first.

        Args:
            tensor: a scalar: int32 or int64, from outside the loop, for COUNT, bool for WHILE.
            limit: a `TripLimit`, or its name.
        """
        limit = _member(f"loop {self.name!r}: trip limit: limit", TripLimit, limit)
        self._block.check_open("trip limit")
        label = self._block.node.limit_label
        field = "count" if limit is TripLimit.COUNT else "condition"
        if getattr(self._block.node, field) is not None:
            raise ValueError(f"{label}: there is a limit of kind {limit.name} already")
        if limit is TripLimit.COUNT:
            value = self._block.to_integer(f"{label}: the count", tensor)
        else:
            value = self._block.to_tensor(f"{label}: the condition", tensor)
            if value.dtype != tf.bool:
                raise TypeError(f"{label}: the condition must be a bool, got {value.dtype.name}")
            check_scalar(f"{label}: the condition", value)
        setattr(self._block.node, field, value)

    @_tf.public
    def add_iterator(self, tensor: Any, axis: int = 0, reverse: bool = False) -> Iterator:
        """Iterates over a tensor: element k along `axis`, without it, in iteration k.

        Args:
            tensor: the tensor, of any dtype, from outside the loop. It may have more elements than
                the loop has iterations.
            axis: the axis; a negative one counts from the last.
            reverse: begin with the last element.

        Returns:
            An `Iterator`, used like a tensor in the block.
        """
        label = self._block.label("iterator")
        self._block.check_open(label)
        _check_axis(label, axis)
        if not isinstance(reverse, (bool, np.bool_)):
            raise TypeError(f"{label}: reverse must be a bool, got {reverse!r}")
        tensor = self._block.to_tensor(f"{label}: the iterated tensor", tensor)
        shape = tensor.shape
        if shape.rank is not None:
            if not -shape.rank <= axis < shape.rank:
                raise ValueError(
                    f"{label}: axis {axis} is out of range for a tensor of rank {shape.rank}"
                )
            dims = shape.as_list()
            del dims[axis]
            shape = tf.TensorShape(dims)
        layer = IteratorLayer(
            label,
            self._block.node,
            self._block.network.placeholder(label, tensor, shape),
            {"the iterated tensor": tensor},
            int(axis),
            bool(reverse),
        )
        self._block.node.iterators.append(layer)
        return Iterator(self._block, layer)

    @_tf.public
    def add_recurrence(self, initial: Any, shape: Any = None) -> Recurrence:
        """A value that each iteration gives to the next one.

        Args:
            initial: the value in iteration 0, of any dtype, from outside the loop; or a composite
                value (a `tf.RaggedTensor`, an extension type, a `tf.TensorArray`); or a dict, or
                another nested structure of such. A list or a tuple is a tensor, as everywhere in
                TensorFlow.
            shape: the static shape of all values, where they do not all have the initial value's:
                `[None, 8]`, say, for a matrix that grows. Of a structure likewise a structure of
                shapes, and None.

        Returns:
            A `Recurrence`, used like a tensor in the block; another kind of value is its `value`.
            Its second input must be set: `next`, or `set_input(1, ...)`.
        """
        label = self._block.label("recurrence")
        self._block.check_open(label)
        if _composites.is_composite(initial):
            return self._add_composite_recurrence(label, initial, shape)
        if tf.nest.is_nested(initial) and not isinstance(initial, Sequence):
            structure = Structure(initial)
            if structure.leaves:
                return self._add_nested_recurrence(label, structure, shape)
        initial = self._block.to_tensor(f"{label}: the initial value", initial)
        if shape is None:
            shape = initial.shape
        else:
            try:
                shape = tf.TensorShape(shape)
            except (TypeError, ValueError) as error:
                raise type(error)(
                    f"{label}: shape must be a shape, got {shape!r}: {error}"
                ) from error
            if not shape.is_compatible_with(initial.shape):
                raise ValueError(
                    f"{label}: the initial value has shape {initial.shape}, which {shape} does not "
                    "allow"
                )
        value = self._block.network.placeholder(label, initial, shape)
        layer = RecurrenceLayer(label, self._block.node, value, {"the initial value": initial})
        self._block.node.recurrences.append(layer)
        return Recurrence(self._block, layer)

    def _add_composite_recurrence(self, label: str, initial: Any, shape: Any) -> Recurrence:
        spec = _composites.type_of(initial)
        if shape is not None:
            kind = spec.value_type.__name__
            raise ValueError(f"{label}: shape is that of a tensor, got a {kind}")
        is_eager = _tf.is_eager_array(initial)  # the block is a graph, where it is a list
        values = [_composites.list_of(initial)] if is_eager else _composites.components(initial)
        components = zip(values, _composites.component_specs(spec))
        parts = [self.add_recurrence(tensor, component.shape) for tensor, component in components]
        return composite_recurrence(initial, parts)

    def _add_nested_recurrence(self, label: str, initial: Structure, shape: Any) -> Recurrence:
        shapes = [None] * len(initial.leaves)
        if shape is not None:
            shapes, difference = initial.match(f"{label}: shape", shape, is_whole=False)
            if difference is not None:
                raise ValueError(
                    f"{label}: shape must have the structure of the initial value: {difference}"
                )
        return nested_recurrence(initial, list(map(self.add_recurrence, initial.leaves, shapes)))

    @_tf.public
    def add_loop_output(
        self,
        tensor: Any,
        output: LoopOutput | Literal["last_value", "concatenate", "reverse"],
        axis: int = 0,
        length: Any = None,
    ) -> Output:
        """Brings values out of the loop.

        Args:
            tensor: a value of the iterations; for LAST_VALUE a recurrence of this loop.
            output: a `LoopOutput`, or its name.
            axis: where the new axis of CONCATENATE and REVERSE goes; a negative one counts from
                the output's last.
            length: the extent of that axis, a scalar int32 or int64 from outside the loop: after
                the values come zeros. None for the number of iterations.

        Returns:
            An `Output`, used like a tensor after the block.
        """
        label = self._block.label("output")
        output = _member(f"{label}: output", LoopOutput, output)
        self._block.check_open(label)
        _check_axis(label, axis)
        if isinstance(tensor, PackedRecurrence):
            if isinstance(tensor.kind, tf.TypeSpec) and output is not LoopOutput.LAST_VALUE:
                raise ValueError(f"{label}: {output.name} is of tensors, got {tensor.kind}")
            parts = [self.add_loop_output(part, output, axis, length) for part in tensor.parts]
            return PackedOutput(parts, tensor.pack)
        recurrence = None
        given, inputs = tensor, {}
        tensor = self._block.to_tensor(f"{label}: the tensor", tensor)
        shape = tensor.shape
        if output is LoopOutput.LAST_VALUE:
            own = [r for r in self._block.node.recurrences if r.value is tensor]
            if not own:
                raise ValueError(
                    f"{label}: LAST_VALUE needs a recurrence of this loop, got {given!r}"
                )
            recurrence = own[0]
            if length is not None:
                raise ValueError(f"{label}: the last value has no length")
            axis = 0
        extent = None
        if length is not None:
            inputs["the length"], extent = self._block.to_length(label, length)
        if recurrence is None and shape.rank is not None:
            if not -shape.rank - 1 <= axis <= shape.rank:
                raise ValueError(
                    f"{label}: axis {axis} is out of range to stack values of shape {shape}"
                )
            dims = shape.as_list()
            dims.insert(axis if axis >= 0 else axis + len(dims) + 1, extent)
            shape = tf.TensorShape(dims)
        layer = OutputLayer(
            label,
            self._block.node,
            self._block.network.placeholder(label, tensor, shape),
            inputs,
            output.value,
            tensor,
            recurrence,
            int(axis),
        )
        made = Output(self._block, layer)
        self._block.node.outputs.append(layer)
        self.outputs.append(made)
        return made

    @_tf.public
    def draw(self, path: str | os.PathLike[str] | None = None) -> str:
        """Draws the loop: boundary layers, body and back edges.

        Loops inside that share its block are boxes in its box; one with a block of its own is a
        layer of the body, and draws itself. In a notebook a loop shows itself as its picture.

        Args:
            path: a file to write: .svg, .png, .dot or .txt, as for `tf_ti.draw`.

        Returns:
            The drawing as text, without a path; else the path of the file.
        """
        diagram = self._diagram()
        if diagram is None:
            raise ValueError(
                f"loop {self.name!r} can be drawn once the outermost loop's block has ended"
            )
        return _draw.draw(diagram, path)

    @_tf.public
    def _repr_svg_(self) -> str | None:
        """The picture that a notebook shows, once the outermost loop's block has ended."""
        diagram = self._diagram()
        return None if diagram is None else _picture.to_svg(diagram)

    def _diagram(self) -> Diagram | None:
        block = self._block
        if not block.was_opened or block.network.sketch is None:
            return None
        return block.network.sketch.diagram(block.node)

    def _check_complete(self) -> None:
        node = self._block.node
        if node.count is None and node.condition is None:
            raise ValueError(f"{node.label} has no trip limit")
        for layer in node.recurrences:
            if layer.next is None:
                raise ValueError(
                    f"{layer.label} has no second input: what it is in the next iteration"
                )


def _check_axis(label: str, axis: Any) -> None:
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        raise TypeError(f"{label}: axis must be an int, got {axis!r}")


def _member(label: str, kind: type[_Enum], value: Any) -> _Enum:
    """A member of an enumeration, given as it is or by its name."""
    if isinstance(value, kind):
        return value
    names = [member.name for member in kind]
    if isinstance(value, str) and value.upper() in names:
        return kind[value.upper()]
    raise TypeError(
        f"{label} must be a {kind.__name__}, or the name of one: {', '.join(names)}; got {value!r}"
    )
