"""The port map of a TensorIterator, between tensors outside and the body."""

import dataclasses
from collections.abc import Sequence


def _check_integer(what: str, value, optional: bool = False) -> None:
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

    def __post_init__(self):
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

    Attributes:
        inputs: an `InputPort` for each external input and each parameter of the body.
        outputs: an `OutputPort` for each external output.
    """

    inputs: Sequence[InputPort]
    outputs: Sequence[OutputPort]

    def __repr__(self) -> str:
        return f"PortMap(inputs={list(self.inputs)}, outputs={list(self.outputs)})"

    def __post_init__(self):
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

    def __post_init__(self):
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
