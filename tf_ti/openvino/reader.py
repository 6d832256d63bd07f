"""Reads an IR's XML: what it says is checked here, but for what only an operation can tell."""

import graphlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from xml.etree.ElementTree import Element, ParseError

import defusedxml.ElementTree

from tf_ti.openvino.element_types import of_precision
from tf_ti.openvino.errors import IRError
from tf_ti.openvino.model import Body, Graph, Layer, Port, PortMapEntry, Shape

VERSIONS = (10, 11)
_MOST_NESTED = 32  # bodies in bodies
# The file calls some operations by names of its older forms.
_OLD_TYPES = {"Const": "Constant", "PReLU": "PRelu", "ReLU": "Relu", "SoftMax": "Softmax"}
_BODIES = {
    "TensorIterator": {"body": ("port_map", "back_edges")},
    "Loop": {"body": ("port_map", "back_edges")},
    "If": {"then_body": ("then_port_map", None), "else_body": ("else_port_map", None)},
}


def read(path: str | os.PathLike) -> Graph:
    """The network that an .xml file describes."""
    path = os.fspath(path)
    try:
        root = defusedxml.ElementTree.parse(path, forbid_dtd=True).getroot()
    except OSError as error:
        raise IRError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ParseError, UnicodeDecodeError, LookupError, ValueError) as error:
        # Whatever may refer to something outside or grow without bounds is refused too.
        raise IRError(f"{path}: is no XML that can be used: {error}") from error
    if root.tag != "net":
        raise IRError(f"{path}: the root is <{root.tag}>, not <net>: this is no IR")
    version = _integer(root, "version", f"{path}: <net>")
    if version not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        raise IRError(f"{path}: version {version} of the IR is not among those known, {known}")
    return _Reader().graph(root, path, depth=0)


class _Reader:
    def graph(self, element: Element, path: str, depth: int) -> Graph:
        if depth > _MOST_NESTED:
            raise IRError(f"{path}: more than {_MOST_NESTED} bodies in one another")
        layers: dict[int, Layer] = {}
        for position, child in enumerate(_children(element, "layers", "layer", path)):
            layer = self.layer(child, position, path, depth)
            if layer.id in layers:
                raise IRError(f"{layer.path}: its id {layer.id} is that of another layer too")
            layers[layer.id] = layer
        sources = _sources(element, layers, path)
        for layer in layers.values():
            for port in layer.inputs:
                if (layer.id, port.id) not in sources:
                    raise IRError(f"{layer.path}: no edge leads to input port {port.id}")
        return Graph({layer.id: layer for layer in _in_order(layers, sources, path)}, sources, path)

    def layer(self, element: Element, position: int, path: str, depth: int) -> Layer:
        identity = _integer(element, "id", f"{path}: layer number {position}")
        name = element.get("name") or f"layer {identity}"
        kind = element.get("type")
        if not kind:
            raise IRError(f"{path}: layer {name!r} (id {identity}) has no type")
        path = f"{path}: {kind} {name!r} (id {identity})"
        data = element.find("data")
        bodies = {}
        for tag, (map_tag, edges_tag) in _BODIES.get(kind, {}).items():
            body = element.find(tag)
            if body is None:
                raise IRError(f"{path}: has no <{tag}>")
            graph = self.graph(body, f"{path}: {tag}", depth + 1)
            bodies[tag] = _body(element, graph, map_tag, edges_tag, path)
        return Layer(
            id=identity,
            position=position,
            name=name,
            type=_OLD_TYPES.get(kind, kind),
            version=element.get("version", "opset1"),
            attributes={} if data is None else dict(data.attrib),
            inputs=_ports(element, "input", path),
            outputs=_ports(element, "output", path),
            bodies=bodies,
            path=path,
        )


def _ports(element: Element, tag: str, path: str) -> tuple[Port, ...]:
    ports: dict[int, Port] = {}
    for child in _children(element, tag, "port", path, optional=True):
        identity = _integer(child, "id", f"{path}: an {tag} port")
        where = f"{path}: {tag} port {identity}"
        if identity in ports:
            raise IRError(f"{where}: another port of that id")
        precision = child.get("precision")
        element_type = None
        if precision and precision != "UNSPECIFIED":
            element_type = of_precision(precision)
            # Resources and strings are there for operations that are refused by name.
        shape = tuple(_dimension(dim.text or "", where) for dim in child.findall("dim"))
        names = tuple(name for name in _split_names(child.get("names", "")) if name)
        ports[identity] = Port(identity, element_type, shape, names)
    return tuple(ports.values())


def _split_names(text: str) -> list[str]:
    """At commas that no backslash stands before."""
    return [part.replace("\\,", ",") for part in re.split(r"(?<!\\),", text)]


def _dimension(text: str, where: str) -> int | None:
    text = text.strip()
    if not re.fullmatch(r"-1|[0-9]{1,18}", text):
        raise IRError(f"{where}: {text!r} is no extent of a dimension")
    return None if text == "-1" else int(text)


def parse_shape(text: str, where: str) -> Shape | None:
    """The shape that an attribute says, as "1, 3..5, ?"; None where the rank is unknown."""
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
            raise IRError(f"{where}: {text!r} is no shape")
    return tuple(dimensions)


def _sources(
    element: Element, layers: Mapping[int, Layer], path: str
) -> dict[tuple[int, int], tuple[int, int]]:
    sources: dict[tuple[int, int], tuple[int, int]] = {}
    for edge in _children(element, "edges", "edge", path, optional=True):
        names = "from-layer", "from-port", "to-layer", "to-port"
        source, port, target, to_port = (
            _integer(edge, name, f"{path}: an edge {edge.attrib}") for name in names
        )
        where = f"{path}: the edge from layer {source}, port {port} to layer {target}, port {to_port}"
        for layer in source, target:
            if layer not in layers:
                raise IRError(f"{where}: there is no layer {layer}")
        if layers[source].output(port) is None:
            raise IRError(f"{where}: {layers[source].path} has no output port {port}")
        if layers[target].input(to_port) is None:
            raise IRError(f"{where}: {layers[target].path} has no input port {to_port}")
        if (target, to_port) in sources:
            raise IRError(f"{where}: another edge leads there too")
        sources[target, to_port] = source, port
    return sources


def _in_order(
    layers: Mapping[int, Layer], sources: Mapping[tuple[int, int], tuple[int, int]], path: str
) -> Iterator[Layer]:
    """Each layer after those that it reads."""
    sorter: graphlib.TopologicalSorter = graphlib.TopologicalSorter({layer: () for layer in layers})
    for (target, _), (source, _) in sources.items():
        sorter.add(target, source)
    try:
        order = list(sorter.static_order())
    except graphlib.CycleError as error:
        cycle = " -> ".join(repr(layers[layer].name) for layer in reversed(error.args[1]))
        raise IRError(f"{path}: these layers read one another: {cycle}") from None
    return (layers[layer] for layer in order)


def _body(
    element: Element, graph: Graph, map_tag: str, edges_tag: str | None, path: str
) -> Body:
    entries: dict[str, list[PortMapEntry]] = {"input": [], "output": []}
    for tag, kind in ("input", "Parameter"), ("output", "Result"):
        for child in _children(element, map_tag, tag, path, optional=True):
            where = f"{path}: <{map_tag}>: an {tag} {child.attrib}"
            attributes = dict(child.attrib)
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
        where = f"{path}: <{edges_tag}>: an edge {child.attrib}"
        edge = _integer(child, "from-layer", where), _integer(child, "to-layer", where)
        for layer, kind in zip(edge, ("Result", "Parameter")):
            if layer not in graph.layers or graph.layers[layer].type != kind:
                raise IRError(f"{where}: no {kind} of the body has the id {layer}")
        back_edges.append(edge)
    return Body(graph, tuple(entries["input"]), tuple(entries["output"]), tuple(back_edges))


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
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", text):
        raise IRError(f"{where}: {name}={text!r} is no integer")
    return int(text)


