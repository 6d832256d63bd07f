"""A network that is being written: its layers, their edges, and the XML of both."""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO, NamedTuple, TypeAlias
from xml.etree import ElementTree

import numpy as np
import tensorflow as tf

from tf_ti.openvino.element_types import ELEMENT_TYPES, ElementType, precision_of
from tf_ti.openvino.errors import IRError
from tf_ti.openvino.model import Shape

# Layers whose outputs may be the memory of their inputs.
VIEWS = frozenset(["Reshape", "Squeeze", "Unsqueeze"])

# Layers that connect a network with its surroundings.
_SINKS = frozenset(["Assign", "Parameter", "Result"])

_ALIGNMENT = 64
# The element types that are not packed, by the dtypes of their numbers.
_OF_DTYPE = {
    kind.dtype: kind for kind in ELEMENT_TYPES.values() if kind.bits == 8 * kind.dtype.itemsize
}


class NoElementType(IRError):
    """OpenVINO has no numbers like these."""


def element_type_of(dtype: tf.DType | np.dtype) -> ElementType:
    dtype = tf.as_dtype(dtype)
    for known, kind in _OF_DTYPE.items():
        if tf.as_dtype(known) == dtype:
            return kind
    raise NoElementType(f"OpenVINO has no element type for {dtype.name}")


def shape_of(shape: tf.TensorShape) -> Shape | None:
    return None if shape.rank is None else tuple(shape.as_list())


def dimensions(shape: Shape | None) -> str:
    """A shape as attributes of layers have it."""
    return "..." if shape is None else ",".join("?" if n is None else str(n) for n in shape)


def free(name: str, taken: set[str]) -> str:
    """The name, with a number if it is taken."""
    found, number = name, 0
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found


def clean(name: str | bytes) -> str:
    """Replaces characters that XML cannot have."""
    text = name.decode() if isinstance(name, bytes) else str(name)
    return re.sub("[\x00-\x1f\ud800-\udfff\ufffe\uffff]", "_", text)


@dataclasses.dataclass(eq=False)
class Port:
    """An output of a layer."""

    layer: "Layer"
    id: int
    element_type: ElementType
    shape: Shape | None = None
    names: list[str] = dataclasses.field(default_factory=list)

    @property
    def is_view_of_given(self) -> bool:
        """True if the numbers are those of a Parameter or a state, which OpenVINO may not copy."""
        port = self
        while port.layer.type in VIEWS:
            port = port.layer.inputs[0]
        return port.layer.type in ("Parameter", "ReadValue")

    @property
    def is_computed(self) -> bool:
        """True if the numbers depend on what a call is given, or on states."""
        found, stack = set(), [self]
        while stack:
            layer = stack.pop().layer
            if layer.type in ("Parameter", "ReadValue"):
                return True
            if layer.type != "ShapeOf" and layer.id not in found:
                found.add(layer.id)
                stack += layer.inputs
        return False


# What a layer reads: the output of another one, or a constant.
Operand: TypeAlias = Port | np.ndarray


@dataclasses.dataclass(eq=False)
class Layer:
    id: int
    name: str
    type: str
    version: str
    attributes: dict[str, Any]
    inputs: Sequence[Port]
    outputs: list[Port] = dataclasses.field(default_factory=list)
    bodies: list["Body"] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class Body:
    """A network inside a layer. `tag` and `map_tag` name its elements in the file."""

    network: "Network"
    tag: str = "body"
    map_tag: str = "port_map"
    inputs: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    outputs: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    back_edges: list[tuple[Layer, Layer]] = dataclasses.field(default_factory=list)

    def feed(self, port: int, parameter: Port, **attributes: Any) -> None:
        """Connects an input port of the layer to a Parameter."""
        entry = {"external_port_id": port, "internal_layer_id": parameter.layer.id}
        self.inputs.append(entry | attributes)

    def give(self, port: int, result: Layer, **attributes: Any) -> None:
        """Connects a Result to an output port of the layer."""
        self.outputs.append({"external_port_id": port, "internal_layer_id": result.id} | attributes)


class Weights:
    """The values of Constants, in the order of the file. Equal bytes are written once."""

    def __init__(self) -> None:
        self._arrays: list[tuple[int, np.ndarray]] = []
        self._places: dict[tuple[bytes, int], int] = {}
        self._end = 0

    def place(self, array: np.ndarray) -> tuple[int, int]:
        """The offset of an array in the file, and its size in bytes."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        key = hashlib.blake2b(data.data).digest(), data.size
        if key not in self._places:
            offset = -(-self._end // _ALIGNMENT) * _ALIGNMENT
            self._places[key] = offset
            self._arrays.append((offset, data))
            self._end = offset + data.size
        return self._places[key], data.size

    def write(self, file: BinaryIO) -> None:
        end = 0
        for offset, data in self._arrays:
            file.write(bytes(offset - end))
            file.write(data.data)
            end = offset + data.size


class Surroundings(NamedTuple):
    """What is around a body.

    Attributes:
        network: the network around it.
        feed: feeds a value of that network to the body, and returns the Parameter.
    """

    network: "Network"
    feed: Callable[[Port], Port]


class Network:
    """Layers, each after those that it reads: a whole network, or the body of a layer.

    Attributes:
        surroundings: those of a body; None for a whole network.
        depth: the number of bodies that it lies in.
        twins: for ports whose channels are last, the ports that give the same with channels second,
            and their ranks.
        variables: the values of variables that are assigned, by the ids of their handles.
        assigned: the handles and dtypes of those assigned here, likewise.
    """

    def __init__(self, weights: Weights, surroundings: "Surroundings | None" = None):
        self.weights, self.surroundings = weights, surroundings
        self.depth: int = 0 if surroundings is None else surroundings.network.depth + 1
        self.layers: list[Layer] = []
        self.twins: dict[Port, tuple[Port, int]] = {}
        self._names: dict[str, int] = {}
        self._constants: dict[int, tuple[np.ndarray, Port]] = {}
        self.variables: dict[int, Any] = {}
        self.assigned: dict[int, tuple[tf.Tensor, tf.DType]] = {}

    def add(
        self,
        type: str,
        inputs: Iterable[Any],
        version: str = "opset1",
        outputs: Sequence[ElementType] | None = None,
        name: str = "",
        **attributes: Any,
    ) -> Layer:
        """Adds a layer.

        Args:
            type, version: the operation, and its opset.
            inputs: ports, or arrays and numbers, which become Constants.
            outputs: the element types of the outputs; None for a single one like the first input.
            name: a name. It gets a number if another layer has the name.
            attributes: the attributes of the operation.
        """
        ports = [value if isinstance(value, Port) else self.constant(value) for value in inputs]
        layer = Layer(
            len(self.layers), self._free_name(name or type), type, version, attributes, ports
        )
        outputs = [ports[0].element_type] if outputs is None else outputs
        layer.outputs = [Port(layer, len(ports) + i, kind) for i, kind in enumerate(outputs)]
        self.layers.append(layer)
        return layer

    def constant(self, value: Any) -> Port:
        """The output of a Constant: the same one for all that read an array."""
        found = self._constants.get(id(value))
        if found is not None:
            return found[1]
        array = np.asarray(value)
        kind = element_type_of(array.dtype)
        offset, size = self.weights.place(array)
        layer = self.add(
            "Const",
            [],
            outputs=[kind],
            element_type=kind.name,
            shape=list(array.shape),
            offset=offset,
            size=size,
        )
        (port,) = layer.outputs
        port.shape = array.shape
        self._constants[id(value)] = value, port  # keeps the value alive, and its id unique
        return port

    def parameter(self, kind: ElementType, shape: Shape | None, name: str = "") -> Port:
        layer = self.add(
            "Parameter",
            [],
            outputs=[kind],
            name=name,
            shape=dimensions(shape),
            element_type=kind.name,
        )
        (port,) = layer.outputs
        port.shape = shape
        return port

    def copy(self, value: Port) -> Port:
        """The same numbers elsewhere."""
        either = "LogicalOr" if value.element_type.name == "boolean" else "Maximum"
        return self.add(either, [value, value]).outputs[0]

    def result(self, value: Any, name: str = "") -> Layer:
        return self.add("Result", [value], outputs=[], name=name)

    def _free_name(self, name: str) -> str:
        free = name
        while free in self._names:
            self._names[name] += 1
            free = f"{name}_{self._names[name]}"
        self._names[free] = 0
        return free

    def reached(self, ports: Iterable[Port]) -> set[Layer]:
        """The layers that compute some ports."""
        found: set[Layer] = set()
        stack = [port.layer for port in ports]
        while stack:
            layer = stack.pop()
            if layer not in found:
                found.add(layer)
                stack += [port.layer for port in layer.inputs]
        return found

    def _read_layers(self) -> list[Layer]:
        """The layers on which results, or states, depend; and Parameters."""
        read = self.reached(
            port for layer in self.layers if layer.type in _SINKS for port in layer.inputs
        )
        return [layer for layer in self.layers if layer in read or layer.type in _SINKS]

    def write(self, element: ElementTree.Element) -> None:
        """Writes the layers and the edges into the element of a network."""
        layers = ElementTree.SubElement(element, "layers")
        edges = ElementTree.SubElement(element, "edges")
        for layer in self._read_layers():
            _write_layer(layer, ElementTree.SubElement(layers, "layer"))
            for number, port in enumerate(layer.inputs):
                ends = port.layer.id, port.id, layer.id, number
                names = "from-layer", "from-port", "to-layer", "to-port"
                ElementTree.SubElement(edges, "edge", _texts(zip(names, ends)))


def _write_layer(layer: Layer, element: ElementTree.Element) -> None:
    element.attrib |= _texts(
        {"id": layer.id, "name": layer.name, "type": layer.type, "version": layer.version}.items()
    )
    if layer.attributes:
        ElementTree.SubElement(element, "data", _texts(layer.attributes.items()))
    for tag, ports in ("input", list(enumerate(layer.inputs))), ("output", _numbered(layer)):
        if ports:
            group = ElementTree.SubElement(element, tag)
            for number, port in ports:
                _write_port(number, port, tag, ElementTree.SubElement(group, "port"))
    for body in layer.bodies:
        port_map = ElementTree.SubElement(element, body.map_tag)
        for tag, entries in ("input", body.inputs), ("output", body.outputs):
            for entry in entries:
                ElementTree.SubElement(port_map, tag, _texts(entry.items()))
        if body.back_edges:
            edges = ElementTree.SubElement(element, "back_edges")
            for result, parameter in body.back_edges:
                ends = {"from-layer": result.id, "to-layer": parameter.id}
                ElementTree.SubElement(edges, "edge", _texts(ends.items()))
        body.network.write(ElementTree.SubElement(element, body.tag))


def _numbered(layer: Layer) -> list[tuple[int, Port]]:
    return [(port.id, port) for port in layer.outputs]


def _write_port(number: int, port: Port, tag: str, element: ElementTree.Element) -> None:
    element.set("id", str(number))
    element.set("precision", precision_of(port.element_type))
    if port.names and tag == "output":
        element.set("names", ",".join(name.replace(",", "\\,") for name in port.names))
    for extent in port.shape or ():
        ElementTree.SubElement(element, "dim").text = str(-1 if extent is None else extent)


def _texts(attributes: Iterable[tuple[str, Any]]) -> dict[str, str]:
    return {name: _text(value) for name, value in attributes}


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    return str(value)
