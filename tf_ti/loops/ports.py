"""The port map of a TensorIterator, between tensors outside and the body, and its drawing."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from tf_ti import _tf
from tf_ti.loops.drawing import draw as _draw, picture as _picture
from tf_ti.loops.drawing.diagram import Diagram


def _check_integer(what: str, value: Any, optional: bool = False) -> None:
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int{' or None' if optional else ''}, got {value!r}")


@dataclasses.dataclass(frozen=True, repr=False)
class _Port:
    external_port_id: int
    internal_layer_id: int
    axis: int | None = None
    start: int = 0
    end: int = -1
    stride: int = 1
    part_size: int | None = None

    def __repr__(self) -> str:
        """The ids, and what is not as by default."""
        rest = [
            field for field in dataclasses.fields(self) if field.default is not dataclasses.MISSING
        ]
        options = "".join(
            f", {field.name}={getattr(self, field.name)!r}"
            for field in rest
            if getattr(self, field.name) != field.default
        )
        ids = f"{self.external_port_id!r}, {self.internal_layer_id!r}"
        return f"{type(self).__name__}({ids}{options})"

    def __post_init__(self) -> None:
        for field in ("external_port_id", "internal_layer_id"):
            _check_integer(f"{self}: {field}", getattr(self, field))
            if getattr(self, field) < 0:
                raise ValueError(f"{self}: {field} must not be negative")
        for field in ("axis", "part_size"):
            _check_integer(f"{self}: {field}", getattr(self, field), optional=True)
        for field in ("start", "end", "stride"):
            _check_integer(f"{self}: {field}", getattr(self, field))
        for field in ("axis", "start", "end", "stride", "part_size"):
            if not -(2**63) < (getattr(self, field) or 0) < 2**63:
                raise ValueError(f"{self}: {field} does not fit 64 bits")
        if self.stride == 0:
            raise ValueError(f"{self}: stride must not be 0")
        if self.part_size is not None and self.part_size < 1:
            raise ValueError(f"{self}: part_size must be at least 1")
        if self.axis is None and (self.start, self.end, self.stride, self.part_size) != (
            0,
            -1,
            1,
            None,
        ):
            raise ValueError(f"{self}: start, end, stride and part_size need an axis")

    @property
    def is_whole(self) -> bool:
        """True if the range runs from one edge to the other in the direction of the stride."""
        return (self.start, self.end) == ((0, -1) if self.stride > 0 else (-1, 0))


@dataclasses.dataclass(frozen=True, repr=False)
class InputPort(_Port):
    """One input entry of a port map: the tensor, or its slices, for a parameter of the body.

    Without `axis` the parameter gets the whole input: in every iteration, or in the first one where
    a back edge leads to it. With `axis`, iteration k gets elements `start + k * stride` and on,
    `part_size` of them, along that axis; the axis stays, with extent `part_size`.

    Attributes:
        external_port_id: position in `inputs`.
        internal_layer_id: position among the body's parameters.
        axis: the axis to slice, or None; a negative one counts from the last.
        start, end: indices of the first and the last element of the range, both included; negative
            ones count from the end.
        stride: the step from one piece to the next; negative iterates backwards.
        part_size: the extent of a piece; None means `abs(stride)`.

    Source: OpenVINO's TensorIterator-1, port_map.
    """

    @property
    def label(self) -> str:
        return f"input port {self.external_port_id} (layer {self.internal_layer_id})"


@dataclasses.dataclass(frozen=True, repr=False)
class OutputPort(_Port):
    """One output entry of a port map: an output made of a result of the body.

    Without `axis` the output is the result of the last iteration. With `axis` it is the
    concatenation of all iterations' results along that axis, in reversed order where `stride` is
    negative; scalars stack.

    Attributes:
        external_port_id: position in the returned tuple.
        internal_layer_id: position among the body's results.
        axis: the axis to concatenate along, or None; a negative one counts from the last.
        start, end: a whole range: 0 and -1, or -1 and 0. Other values only tell the number of
            iterations, `abs(end - start) / part_size`, where nothing else does.
        stride: its sign gives the order.
        part_size: the extent of every iteration's result along the axis, checked; None means any
            where `abs(stride)` is 1, else `abs(stride)`.

    Source: OpenVINO's TensorIterator-1, port_map.
    """

    @property
    def label(self) -> str:
        return f"output port {self.external_port_id} (layer {self.internal_layer_id})"


@dataclasses.dataclass(frozen=True)
class PortMap:
    """All entries of a TensorIterator's port map.

    In a notebook it shows itself as a picture: that of `tf_ti.draw`, without back edges.

    Attributes:
        inputs: an `InputPort` for each external input and each parameter of the body.
        outputs: an `OutputPort` for each external output.
    """

    inputs: Sequence[InputPort]
    outputs: Sequence[OutputPort]

    def __repr__(self) -> str:
        return f"PortMap(inputs={list(self.inputs)}, outputs={list(self.outputs)})"

    @_tf.public
    def _repr_svg_(self) -> str:
        """The picture that a notebook shows."""
        return _picture.to_svg(_diagram(self))

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "outputs", tuple(self.outputs))
        for field, kind in (("inputs", InputPort), ("outputs", OutputPort)):
            for port in getattr(self, field):
                if not isinstance(port, kind):
                    raise TypeError(
                        f"PortMap.{field} must hold {kind.__name__} entries, got {port!r}"
                    )
        _check_ids("external input port", [p.external_port_id for p in self.inputs])
        _check_ids("body parameter", [p.internal_layer_id for p in self.inputs])
        _check_ids("external output port", [p.external_port_id for p in self.outputs])


def _check_ids(what: str, ids: list[int]) -> None:
    """Each id from 0 on must be there once."""
    for i in sorted(ids):
        if ids.count(i) > 1:
            raise ValueError(f"{what} {i} is used by {ids.count(i)} entries of the port map")
    for i in range(len(ids)):
        if i not in ids:
            raise ValueError(
                f"{what} {i} is missing from the port map, which has ids {sorted(ids)}: they count "
                "from 0, those of inputs and those of outputs each by themselves"
            )


@dataclasses.dataclass(frozen=True)
class BackEdge:
    """Passes a result of one iteration to a parameter of the next.

    Attributes:
        from_layer: position among the body's results.
        to_layer: position among the body's parameters.

    Source: OpenVINO's TensorIterator-1, back_edges.
    """

    from_layer: int
    to_layer: int

    def __post_init__(self) -> None:
        for field in ("from_layer", "to_layer"):
            _check_integer(f"{self}: {field}", getattr(self, field))


def check_back_edges(back_edges: Sequence[BackEdge], ports: Sequence[InputPort]) -> None:
    for edge in back_edges:
        if not isinstance(edge, BackEdge):
            raise TypeError(f"back_edges must hold BackEdge entries, got {edge!r}")
        if edge.from_layer < 0 or edge.to_layer < 0:
            raise ValueError(f"{edge}: a layer must not be negative")
        if edge.to_layer >= len(ports):
            raise ValueError(
                f"{edge}: no input port leads to parameter {edge.to_layer}, which needs an initial "
                "value"
            )
        if ports[edge.to_layer].axis is not None:
            raise ValueError(
                f"{edge}: {ports[edge.to_layer].label} is sliced, so a back edge cannot lead to it"
            )
    targets = [edge.to_layer for edge in back_edges]
    for target in targets:
        if targets.count(target) > 1:
            raise ValueError(f"{targets.count(target)} back edges lead to parameter {target}")


@_tf.public
def draw(
    port_map: PortMap,
    back_edges: Sequence[BackEdge] = (),
    path: str | os.PathLike[str] | None = None,
) -> str:
    """Draws how tensors get into the body of a `tf_ti.tensor_iterator`, around, and out.

    The drawing is that of a loop in TensorRT's document: inputs that are sliced come in by an
    iterator, those that a back edge leads to by a recurrence, others are loop invariants, which the
    body uses from outside.

    Args:
        port_map: as `tf_ti.tensor_iterator` takes it.
        back_edges: likewise.
        path: a file to write: a picture where its name ends in .svg or .png, graphviz's source for
            .dot, the text for .txt. Where graphviz's program `dot` is installed, it draws the
            pictures. A .png needs it; a .svg does not.

    Returns:
        The text, or the path of the file that was written.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: a back edge leads nowhere, to a sliced input or where another one leads, or the
            file's name ends in something else.
        RuntimeError: graphviz failed, or is not installed, which a .png needs.

    Example:

        >>> port_map = tf_ti.PortMap(
        ...     inputs=[tf_ti.InputPort(0, 0, axis=1, stride=2), tf_ti.InputPort(1, 1)],
        ...     outputs=[tf_ti.OutputPort(0, 0)],
        ... )
        >>> print(tf_ti.draw(port_map, [tf_ti.BackEdge(from_layer=0, to_layer=1)]))
        tensor_iterator
          outside
            input 0
              to input port 0
        ...

    Source: TensorRT's loops, 10.1, on OpenVINO's TensorIterator-1.
    """
    if not isinstance(port_map, PortMap):
        raise TypeError(f"port_map must be a PortMap, got {port_map!r}")
    if isinstance(back_edges, str) or not isinstance(back_edges, Sequence):
        raise TypeError(f"back_edges must be a list of BackEdge entries, got {back_edges!r}")
    check_back_edges(back_edges, sorted(port_map.inputs, key=lambda p: p.internal_layer_id))
    return _draw.draw(_diagram(port_map, back_edges), path)


def _diagram(port_map: PortMap, back_edges: Sequence[BackEdge] = ()) -> Diagram:
    diagram = Diagram("", "tensor_iterator")
    parameters = [diagram.add_node("body", f"parameter {i}") for i in range(len(port_map.inputs))]
    body = diagram.add_node("body", "body")
    for parameter in parameters:
        diagram.add_edge(parameter, body)

    entries = {}
    targets = {edge.to_layer for edge in back_edges}
    for port in sorted(port_map.inputs, key=lambda port: port.external_port_id):
        source = diagram.add_node("outside", f"input {port.external_port_id}")
        layer = port.internal_layer_id
        parameter = parameters[layer]
        if port.axis is None and layer not in targets:
            diagram.add_edge(source, parameter)
            continue
        kind = "recurrence" if layer in targets else "iterator"
        label = f"input port {port.external_port_id}"
        entries[layer] = diagram.add_node(kind, label, *_range(port))
        diagram.add_edge(source, entries[layer], "initial" if layer in targets else "")
        diagram.add_edge(entries[layer], parameter)

    outputs = sorted(port_map.outputs, key=lambda port: port.external_port_id)
    layers = {port.internal_layer_id for port in outputs} | {edge.from_layer for edge in back_edges}
    results = {layer: diagram.add_node("body", f"result {layer}") for layer in sorted(layers)}
    for result in results.values():
        diagram.add_edge(body, result)
    for edge in back_edges:
        diagram.add_edge(results[edge.from_layer], entries[edge.to_layer], "next", True)
    for output in outputs:
        label = f"output port {output.external_port_id}"
        exit_ = diagram.add_node("output", label, *(_range(output) or ("last value",)))
        diagram.add_edge(results[output.internal_layer_id], exit_)
        target = diagram.add_node("outside", f"output {output.external_port_id}")
        diagram.add_edge(exit_, target)
    return diagram


def _range(port: InputPort | OutputPort) -> tuple[str, ...]:
    """The range of a port, if it has an axis."""
    if port.axis is None:
        return ()
    size = port.part_size
    if size is None and isinstance(port, InputPort):
        size = abs(port.stride)
    said = [f"{name}={getattr(port, name)}" for name in ("axis", "start", "end", "stride")]
    return (*said, f"part_size={size}") if size is not None else tuple(said)
