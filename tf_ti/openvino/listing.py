"""The layers and loops of an IR as text. Nothing is run, and no weights are read."""

import collections
import math
import os
import pathlib
from collections.abc import Iterator, Sequence

import tf_ti
from tf_ti.openvino.errors import IRError, ascii_name, shown
from tf_ti.openvino.evaluation import unsupported
from tf_ti.openvino.model import Body, Graph, Layer, Port, PortMapEntry
from tf_ti.openvino.weights import declared

_HEADINGS = ("id", "type", "opset", "name", "inputs", "outputs")
_LOOPS = ("TensorIterator", "Loop")


def listing(graph: Graph, constants: bool = False) -> str:
    """A table of the layers, their number by types, the states, and drawings of the loops.

    With `constants`, these are in the table too.
    """
    sections = [_table(list(_rows(graph, 0, constants))), _summary(graph)]
    if states := _states(graph):
        sections.append("\n".join(["states:", *states]))
    sections += [f"{shown_path(loop)}\n{_drawing(loop)}" for loop in _loops(graph)]
    return "\n\n".join(sections)


def write_drawings(graph: Graph, folder: str | os.PathLike[str]) -> None:
    """Writes the drawings of the loops as graphviz sources, each to a file."""
    for number, loop in enumerate(_loops(graph)):
        path = pathlib.Path(folder) / f"{number}_{ascii_name(loop.name)}.dot"
        try:
            tf_ti.draw(*_port_map(loop), path=path)
        except ValueError as error:
            raise IRError(f"{loop.path}: cannot be drawn: {error}") from error


def _loops(graph: Graph) -> list[Layer]:
    return [layer for layer in graph.walk() if layer.type in _LOOPS]


def shown_path(layer: Layer) -> str:
    return _visible(layer.path, 1000)


def _visible(text: str, most: int = 60) -> str:
    """A name with any characters, in one line."""
    return shown(text, most)[1:-1]


# The table.


def _rows(graph: Graph, depth: int, constants: bool) -> Iterator[tuple[str, ...]]:
    indent = "  " * depth
    for layer in graph.layers.values():
        if layer.type == "Constant" and not constants:
            continue
        yield (
            f"{indent}{layer.id}",
            _visible(layer.type),
            _visible(layer.version),
            _visible(layer.name),
            ", ".join(map(_port, layer.inputs)),
            ", ".join(map(_port, layer.outputs)),
        )
        for name, body in layer.bodies.items():
            yield (f"{indent}  {name} of {layer.id}", "", "", "", "", "")
            yield from _rows(body.graph, depth + 2, constants)


def _port(port: Port) -> str:
    return f"{port.id}: {_type(port)}"


def _type(port: Port) -> str:
    kind = port.element_type.name if port.element_type else "?"
    if port.shape is None:  # a scalar, or an unknown rank: in the file they look the same
        return kind
    return f"{kind}[{','.join('?' if n is None else str(n) for n in port.shape)}]"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    rows = [_HEADINGS, *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADINGS))]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


# The summary.


def _summary(graph: Graph) -> str:
    layers = list(graph.walk())
    missing = {(layer.type, layer.version) for layer in unsupported(graph)}
    counts = collections.Counter((layer.type, layer.version) for layer in layers)
    lines = [f"layers: {len(layers)}"]
    for (kind, version), count in sorted(counts.items()):
        mark = "  NOT SUPPORTED" if (kind, version) in missing else ""
        lines.append(f"  {count:6}  {_visible(kind)} ({_visible(version)}){mark}")
    constants = [layer for layer in layers if layer.type == "Constant"]
    lines.append(f"constants: {len(constants)}, in {_size_of(constants)}")
    return "\n".join(lines)


def _states(graph: Graph) -> list[str]:
    """What a model keeps between calls: name, type and shape, and how it begins."""
    found = {}
    for layer in graph.walk():
        variable_id = layer.attributes.get("variable_id")
        if layer.type == "ReadValue" and variable_id:
            start = "an initial value" if layer.inputs else "zeros"
            typed = ", ".join(map(_type, layer.outputs))
            found[variable_id] = f"  {_visible(variable_id)}: {typed}, begins with {start}"
    return list(found.values())


def _size_of(constants: Sequence[Layer]) -> str:
    """The size of constants. Several in one place of the file count once."""
    sizes: dict[object, int] = {}
    unknown = 0
    for layer in constants:
        try:
            element_type, shape = declared(layer)
        except IRError:
            unknown += 1
            continue
        key = layer.attributes.get("offset", id(layer)), element_type, shape
        sizes[key] = element_type.num_bytes(math.prod(shape))
    total = f"{sum(sizes.values()):,} bytes"
    return f"{total} and {unknown} of unknown size" if unknown else total


# The drawings.


def _drawing(loop: Layer) -> str:
    body = loop.bodies["body"]
    try:
        drawn = tf_ti.draw(*_port_map(loop))
    except ValueError as error:
        return f"  cannot be drawn: {error}"
    lines = [f"  {line}" for line in drawn.splitlines()]
    for what, entries, ports in (
        ("input", body.inputs, loop.inputs),
        ("output", body.outputs, loop.outputs),
    ):
        inside = "parameter" if what == "input" else "result"
        positions = _positions(body, "Parameter" if what == "input" else "Result")
        for number, entry in enumerate(entries):
            layer = body.graph.layers[entry.internal_layer_id]
            lines.append(
                f"  {what} {number}: {_external(entry, ports)}; {inside} "
                f"{positions[layer.id]}: {_visible(layer.name)} (id {layer.id})"
            )
    return "\n".join(lines)


def _external(entry: PortMapEntry, ports: Sequence[Port]) -> str:
    for port in ports:
        if port.id == entry.external_port_id:
            return f"port {port.id}, {_type(port)}"
    return "the loop's own"  # the number of the iteration, or the execution condition


def _positions(body: Body, kind: str) -> dict[int, int]:
    return {layer.id: i for i, layer in enumerate(body.graph.of_type(kind))}


def _port_map(loop: Layer) -> tuple[tf_ti.PortMap, list[tf_ti.BackEdge]]:
    """The arguments of `tf_ti.draw`, with an input or an output for each entry of the map."""
    body = loop.bodies["body"]
    parameters, results = _positions(body, "Parameter"), _positions(body, "Result")
    port_map = tf_ti.PortMap(
        inputs=[
            tf_ti.InputPort(i, parameters[entry.internal_layer_id], **entry.range)
            for i, entry in enumerate(body.inputs)
        ],
        outputs=[
            tf_ti.OutputPort(i, results[entry.internal_layer_id], **entry.range)
            for i, entry in enumerate(body.outputs)
        ],
    )
    edges = [tf_ti.BackEdge(results[a], parameters[b]) for a, b in body.back_edges]
    return port_map, edges
