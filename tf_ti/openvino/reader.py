"""Reads an IR's XML, and checks all of it that does not depend on an operation."""

import dataclasses
import graphlib
import math
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from xml.etree.ElementTree import Element, ParseError, TreeBuilder

import defusedxml.ElementTree

from tf_ti.openvino.element_types import ELEMENT_TYPES, of_precision
from tf_ti.openvino.errors import IRError, shown
from tf_ti.openvino.model import (
    MOST_NESTED,
    OWN_PORT,
    RANGE,
    Body,
    Graph,
    Layer,
    Port,
    PortMapEntry,
    Shape,
)
from tf_ti.openvino.progress import watched

VERSIONS = (10, 11)
_MOST_ELEMENTS_NESTED = 256
# TensorFlow's limits of a tensor.
_MOST_DIMENSIONS = 254
_MOST_BYTES = 2**63
_WIDEST = 8  # bytes of a number
# Some operations have names from older versions of the format.
_OLD_TYPES = {"Const": "Constant", "PReLU": "PRelu", "ReLU": "Relu", "SoftMax": "Softmax"}
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")
_EXTENT = re.compile("-1|[0-9]{1,18}")
_BODIES: dict[str, dict[str, tuple[str, str | None]]] = {
    "TensorIterator": {"body": ("port_map", "back_edges")},
    "Loop": {"body": ("port_map", "back_edges")},
    "If": {"then_body": ("then_port_map", None), "else_body": ("else_port_map", None)},
}


def read(path: str | os.PathLike[str]) -> Graph:
    """The network that an .xml file describes."""
    path = os.fsdecode(path)
    return parse(document(path), path)


def document(path: str) -> bytes:
    """The content of an .xml file."""
    check_file(path)
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise IRError(f"{path}: cannot be read: {error.strerror or error}") from error


def parse(text: bytes | str, path: str) -> Graph:
    """The network that a document describes. Messages name it `path`."""
    root = tree(text, path)
    if root.tag != "net":
        raise IRError(f"{path}: the root is <{shown(root.tag)[1:-1]}>, not <net>: this is no IR")
    version = _integer(root, "version", f"{path}: <net>")
    if version not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        raise IRError(f"{path}: version {version} of the IR is not among those known, {known}")
    graph = _Reader(version).graph(root, path, depth=0)
    encoded = text.encode() if isinstance(text, str) else text
    return dataclasses.replace(graph, document=zlib.compress(encoded, 1))


def tree(text: bytes | str, path: str) -> Element:
    """The root of a document. Messages name it `path`."""
    parser = defusedxml.ElementTree.DefusedXMLParser(target=_Builder(), forbid_dtd=True)
    try:
        parser.feed(text)
        root = parser.close()
    except (ParseError, LookupError, ValueError) as error:
        # References to other files, and entities that grow without bounds, are refused too.
        raise IRError(f"{path}: is no XML that can be used: {error}") from error
    return root


def check_file(path: str) -> None:
    """Refuses all but regular files: reading a pipe might never end."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        reason = error.strerror if isinstance(error, OSError) else error
        raise IRError(f"{path}: cannot be read: {reason}") from error
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "no regular file"
        raise IRError(f"{path}: cannot be read: it is {kind}")


class _Builder(TreeBuilder):
    """Builds the tree, and refuses one that is deeper than any network needs."""

    depth = 0

    def start(self, tag: str, attributes: dict[str, str]) -> Element:
        self.depth += 1
        if self.depth > _MOST_ELEMENTS_NESTED:
            raise ValueError(f"more than {_MOST_ELEMENTS_NESTED} elements in one another")
        return super().start(tag, attributes)

    def end(self, tag: str) -> Element:
        self.depth -= 1
        return super().end(tag)


class _Reader:
    def __init__(self, version: int):
        self._version = version

    def graph(self, element: Element, path: str, depth: int) -> Graph:
        if depth > MOST_NESTED:
            raise IRError(f"{path}: more than {MOST_NESTED} bodies in one another")
        layers: dict[int, Layer] = {}
        children = _children(element, "layers", "layer", path)
        for position, child in enumerate(watched("reading layers", children)):
            layer = self.layer(child, position, path, depth)
            if layer.id in layers:
                raise IRError(f"{layer.path}: its id {layer.id} is that of another layer too")
            layers[layer.id] = layer
        sources = _sources(element, layers, path)
        for layer in layers.values():
            for port in layer.inputs:
                if (layer.id, port.id) not in sources:
                    raise IRError(f"{layer.path}: no edge leads to input port {port.id}")
        ordered = {layer.id: layer for layer in _in_order(layers, sources, path)}
        return Graph(ordered, sources, path, self._version)

    def layer(self, element: Element, position: int, path: str, depth: int) -> Layer:
        identity = _identity(element, f"{path}: layer number {position}")
        name = element.get("name") or f"layer {identity}"
        kind = element.get("type")
        if not kind:
            raise IRError(f"{path}: layer {shown(name)} (id {identity}) has no type")
        path = f"{path}: {shown(kind)[1:-1]} {shown(name)} (id {identity})"
        data = element.find("data")
        attributes = {} if data is None else dict(data.attrib)
        inputs, outputs = _ports(element, "input", path), _ports(element, "output", path)
        outputs = _checked_ends(kind, attributes, inputs, outputs, path)
        bodies = {}
        for tag, (map_tag, edges_tag) in _BODIES.get(kind, {}).items():
            body = element.find(tag)
            if body is None:
                raise IRError(f"{path}: has no <{tag}>")
            graph = self.graph(body, f"{path}: {tag}", depth + 1)
            body_of = _body(element, graph, map_tag, edges_tag, path)
            _check_body(kind, body_of, inputs, outputs, f"{path}: <{map_tag}>")
            bodies[tag] = body_of
        return Layer(
            id=identity,
            position=position,
            name=name,
            type=_OLD_TYPES.get(kind, kind),
            version=element.get("version", "opset1"),
            attributes=attributes,
            inputs=inputs,
            outputs=outputs,
            bodies=bodies,
            path=path,
        )


def _checked_ends(
    kind: str,
    attributes: Mapping[str, str],
    inputs: Sequence[Port],
    outputs: tuple[Port, ...],
    path: str,
) -> tuple[Port, ...]:
    """Checks the ports of a Result or a Parameter, and returns the outputs.

    The attributes of a Parameter have its type and its shape, which its port may lack.
    """
    if kind == "Result" and len(inputs) != 1:
        raise IRError(f"{path}: has {len(inputs)} input ports, not one")
    if kind != "Parameter":
        return outputs
    if inputs or len(outputs) != 1:
        raise IRError(
            f"{path}: has {len(inputs)} input ports and {len(outputs)} output ports, "
            "not one output port alone"
        )
    (port,) = outputs
    where = f"{path}: output port {port.id}"
    if "element_type" in attributes:
        text = attributes["element_type"]
        element_type = ELEMENT_TYPES.get(text)
        if element_type is None:
            raise IRError(f"{path}: element_type={shown(text)} is no type that is supported")
        if port.element_type not in (None, element_type):
            raise IRError(f"{where} is {port.element_type.name}, but element_type={text!r}")
        port = dataclasses.replace(port, element_type=element_type)
    if "shape" in attributes:
        shape = parse_shape(attributes["shape"], path)
        if port.shape is not None and not _may_be_equal(port.shape, shape):
            raise IRError(f"{where} has shape {port.shape}, but shape={shown(attributes['shape'])}")
        port = dataclasses.replace(port, shape=shape)
    return (port,)


def _may_be_equal(a: Shape, b: Shape | None) -> bool:
    if b is None:
        return True
    return len(a) == len(b) and all(n is None or m is None or n == m for n, m in zip(a, b))


def _ports(element: Element, tag: str, path: str) -> tuple[Port, ...]:
    ports: dict[int, Port] = {}
    for child in _children(element, tag, "port", path, optional=True):
        identity = _identity(child, f"{path}: an {tag} port")
        where = f"{path}: {tag} port {identity}"
        if identity in ports:
            raise IRError(f"{where}: another port of that id")
        precision = child.get("precision")
        element_type = None
        if precision and precision != "UNSPECIFIED":
            element_type = of_precision(precision)
            # An unknown type, as of strings, is no error: the operation is refused by name.
        # No dimensions: a scalar, or a tensor of any rank.
        dimensions = [_dimension(dim.text or "", where) for dim in child.findall("dim")]
        shape = _checked_shape(dimensions, where) if dimensions else None
        names = tuple(name for name in _split_names(child.get("names", "")) if name)
        ports[identity] = Port(identity, element_type, shape, names)
    return tuple(ports.values())


def _split_names(text: str) -> list[str]:
    """Splits at commas without a backslash before them."""
    return [part.replace("\\,", ",") for part in re.split(r"(?<!\\),", text)]


def _dimension(text: str, where: str) -> int | None:
    text = text.strip()
    if not _EXTENT.fullmatch(text):
        raise IRError(f"{where}: {shown(text)} is no extent of a dimension")
    return None if text == "-1" else int(text)


def _checked_shape(dimensions: Sequence[int | None], where: str) -> Shape:
    if len(dimensions) > _MOST_DIMENSIONS:
        raise IRError(f"{where}: {len(dimensions)} dimensions are more than a tensor may have")
    if math.prod(n or 1 for n in dimensions) * _WIDEST >= _MOST_BYTES:
        raise IRError(f"{where}: shape {shown(list(dimensions))} is more than a tensor may have")
    return tuple(dimensions)


def parse_shape(text: str, where: str) -> Shape | None:
    """The shape in an attribute, such as "1, 3..5, ?"; None if the rank is unknown."""
    if text.strip() == "...":
        return None
    dimensions: list[int | None] = []
    for part in text.split(","):
        part = part.strip()
        if not part and not dimensions and "," not in text:
            return ()
        if re.fullmatch(r"\?|-1|[0-9]{0,18}\.\.[0-9]{0,18}", part):
            dimensions.append(None)
        elif re.fullmatch(r"[0-9]{1,18}", part):
            dimensions.append(int(part))
        else:
            raise IRError(f"{where}: shape={shown(text)} is no shape")
    return _checked_shape(dimensions, where)


def _sources(
    element: Element, layers: Mapping[int, Layer], path: str
) -> dict[tuple[int, int], tuple[int, int]]:
    sources: dict[tuple[int, int], tuple[int, int]] = {}
    inputs = {(layer.id, port.id) for layer in layers.values() for port in layer.inputs}
    outputs = {(layer.id, port.id) for layer in layers.values() for port in layer.outputs}
    for edge in _children(element, "edges", "edge", path, optional=True):
        names = "from-layer", "from-port", "to-layer", "to-port"
        ends = [end for name in names if (end := _parsed(edge.get(name))) is not None]
        if len(ends) < len(names):
            for name in names:
                _integer(edge, name, f"{path}: an edge {shown(edge.attrib)}")
        source, port, target, to_port = ends
        where = (
            f"{path}: the edge from layer {source}, port {port} to layer {target}, port {to_port}"
        )
        for layer in source, target:
            if layer not in layers:
                raise IRError(f"{where}: there is no layer {layer}")
        if (source, port) not in outputs or layers[source].type == "Result":
            raise IRError(f"{where}: {layers[source].path} has no output port {port}")
        if (target, to_port) not in inputs:
            raise IRError(f"{where}: {layers[target].path} has no input port {to_port}")
        if (target, to_port) in sources:
            raise IRError(f"{where}: another edge leads there too")
        sources[target, to_port] = source, port
    return sources


def _in_order(
    layers: Mapping[int, Layer], sources: Mapping[tuple[int, int], tuple[int, int]], path: str
) -> Iterator[Layer]:
    """The layers, each after those that it reads."""
    sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter(dict.fromkeys(layers, ()))
    for (target, _), (source, _) in sources.items():
        sorter.add(target, source)
    try:
        order = list(sorter.static_order())
    except graphlib.CycleError as error:
        ring = [shown(layers[layer].name) for layer in reversed(error.args[1])]
        cycle = " -> ".join(ring if len(ring) < 20 else [*ring[:10], "...", *ring[-5:]])
        raise IRError(f"{path}: these layers read one another: {cycle}") from None
    return (layers[layer] for layer in order)


def _body(element: Element, graph: Graph, map_tag: str, edges_tag: str | None, path: str) -> Body:
    entries: dict[str, list[PortMapEntry]] = {"input": [], "output": []}
    for tag, kind in ("input", "Parameter"), ("output", "Result"):
        for child in _children(element, map_tag, tag, path, optional=True):
            where = f"{path}: <{map_tag}>: an {tag} {shown(child.attrib)}"
            attributes = dict(child.attrib)
            for name in RANGE:
                if name in attributes:
                    _integer(child, name, where)
            entry = PortMapEntry(
                _integer(child, "external_port_id", where),
                _integer(child, "internal_layer_id", where),
                attributes,
            )
            layer = graph.layers.get(entry.internal_layer_id)
            if layer is None or layer.type != kind:
                raise IRError(f"{where}: no {kind} of the body has that internal_layer_id")
            entries[tag].append(entry)
    back_edges = []
    for child in _children(element, edges_tag, "edge", path, optional=True) if edges_tag else ():
        where = f"{path}: <{edges_tag}>: an edge {shown(child.attrib)}"
        edge = _integer(child, "from-layer", where), _integer(child, "to-layer", where)
        for end, end_kind in zip(edge, ("Result", "Parameter")):
            if end not in graph.layers or graph.layers[end].type != end_kind:
                raise IRError(f"{where}: no {end_kind} of the body has the id {end}")
        back_edges.append(edge)
    return Body(graph, tuple(entries["input"]), tuple(entries["output"]), tuple(back_edges))


def _check_body(
    kind: str, body: Body, inputs: Sequence[Port], outputs: Sequence[Port], where: str
) -> None:
    """Checks that the ports exist, and that each Parameter and each output has one entry."""
    own = {OWN_PORT} if kind == "Loop" else set()
    inside = {parameter.id for parameter in body.graph.of_type("Parameter")}
    outside = {port.id for port in outputs}
    fed: set[int] = set()
    for entry in body.inputs:
        if entry.external_port_id not in own | {port.id for port in inputs}:
            raise IRError(f"{where}: there is no input port {entry.external_port_id}")
        if entry.internal_layer_id in fed:
            path = body.graph.layers[entry.internal_layer_id].path
            raise IRError(f"{where}: two inputs lead to {path}")
        fed.add(entry.internal_layer_id)
    for parameter in sorted(inside - fed):
        raise IRError(f"{where}: no input leads to {body.graph.layers[parameter].path}")
    given: set[int] = set()
    for entry in body.outputs:
        port = entry.external_port_id
        if port not in own | outside:
            raise IRError(f"{where}: there is no output port {port}")
        if port in given:
            raise IRError(f"{where}: two outputs give output port {port}")
        given.add(port)
    for port in sorted(outside - given):
        raise IRError(f"{where}: nothing gives output port {port}")
    entries = {entry.internal_layer_id: entry for entry in body.inputs}
    led: set[int] = set()
    for _, parameter in body.back_edges:
        path = body.graph.layers[parameter].path
        if parameter in led:
            raise IRError(f"{path}: two back edges lead to it")
        led.add(parameter)
        if entries[parameter].external_port_id == OWN_PORT:
            raise IRError(f"{path}: is the number of the iteration, but a back edge leads to it")
        if "axis" in entries[parameter].attributes:
            raise IRError(f"{path}: is a slice of an input, but a back edge leads to it")


def _children(
    element: Element, group: str, tag: str, path: str, optional: bool = False
) -> Sequence[Element]:
    found = element.find(group)
    if found is None:
        if optional:
            return ()
        raise IRError(f"{path}: has no <{group}>")
    return found.findall(tag)


def _integer(element: Element, name: str, where: str) -> int:
    text = element.get(name)
    if text is None:
        raise IRError(f"{where}: has no {name}")
    number = _parsed(text)
    if number is None:
        raise IRError(f"{where}: {name}={shown(text)} is no integer")
    return number


def _parsed(text: str | None) -> int | None:
    return int(text) if text is not None and _INTEGER.fullmatch(text) else None


def _identity(element: Element, where: str) -> int:
    identity = _integer(element, "id", where)
    if identity < 0:
        raise IRError(f"{where}: id={identity} is below zero")
    return identity
