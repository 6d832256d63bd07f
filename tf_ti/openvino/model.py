"""The content of an IR as immutable values: layers, their ports, and the edges between them."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping

from tf_ti.openvino.element_types import ElementType

Shape = tuple[int | None, ...]  # None: any extent

MOST_NESTED = 32  # bodies in bodies
# The external port of a Loop's own values: the number of the iteration, the execution condition.
OWN_PORT = -1
# The attributes of an entry of a port map that takes or gives slices of a tensor.
RANGE = ("axis", "start", "end", "stride", "part_size")


@dataclasses.dataclass(frozen=True)
class Port:
    id: int
    element_type: ElementType | None
    shape: Shape | None
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class PortMapEntry:
    """Connects an external port of a loop or a branch to a Parameter or Result of its body."""

    external_port_id: int  # OWN_PORT for a Loop's own values
    internal_layer_id: int
    attributes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def range(self) -> dict[str, int]:
        """The axis and the range along it; empty if the entry is for the whole tensor."""
        if "axis" not in self.attributes:
            return {}
        return {name: int(self.attributes[name]) for name in RANGE if name in self.attributes}


@dataclasses.dataclass(frozen=True)
class Body:
    """A network inside a layer, and its connections to the layer's ports."""

    graph: "Graph"
    inputs: tuple[PortMapEntry, ...]
    outputs: tuple[PortMapEntry, ...]
    back_edges: tuple[tuple[int, int], ...] = ()  # (Result, Parameter)


@dataclasses.dataclass(frozen=True)
class Layer:
    id: int
    position: int  # in the file
    name: str
    type: str
    version: str  # its opset
    attributes: Mapping[str, str]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    bodies: Mapping[str, Body]
    path: str  # for messages: the file, the layers around it, and its own name

    def input(self, port_id: int) -> Port | None:
        return next((port for port in self.inputs if port.id == port_id), None)

    def output(self, port_id: int) -> Port | None:
        return next((port for port in self.outputs if port.id == port_id), None)


@dataclasses.dataclass(frozen=True)
class Graph:
    """Layers, each after those it reads; sources[layer id, input port] = layer id, output port."""

    layers: Mapping[int, Layer]
    sources: Mapping[tuple[int, int], tuple[int, int]]
    path: str
    version: int
    document: bytes = b""  # of a whole network: its XML, compressed

    @functools.cached_property
    def read(self) -> frozenset[tuple[int, int]]:
        """The output ports that layers read, as pairs of ids."""
        return frozenset(self.sources.values())

    def has_shape(self, layer: Layer) -> bool:
        """True if the shapes in the file are those of a layer's values.

        In version 10 they are what its writer knew of most: upper bounds, too, where the number of
        elements depends on values.
        """
        return self.version > 10 or layer.type in ("Parameter", "Constant", "ReadValue", "Assign")

    def of_type(self, kind: str) -> list[Layer]:
        """The layers of a type, in the order of the file."""
        layers = [layer for layer in self.layers.values() if layer.type == kind]
        return sorted(layers, key=lambda layer: layer.position)

    def walk(self) -> Iterator[Layer]:
        """All layers, including those of bodies."""
        for layer in self.layers.values():
            yield layer
            for body in layer.bodies.values():
                yield from body.graph.walk()
