"""Pictures drawn by graphviz's program `dot`, and their sources."""

import itertools
import subprocess
from collections.abc import Iterator

from tf_ti.loops.drawing.characters import visible
from tf_ti.loops.drawing.diagram import ENTRIES, Diagram, Edge, Index, Node

_BORDER = "#44546a"
_STYLES = {
    "outside": 'shape=plaintext, style="", fillcolor=none',
    "limit": 'shape=octagon, fillcolor="#f8cbad"',
    "iterator": 'shape=invhouse, fillcolor="#bdd7ee"',
    "recurrence": 'shape=box, peripheries=2, fillcolor="#ffe699"',
    "body": 'shape=box, style="rounded,filled", fillcolor="#ffffff"',
    "output": 'shape=house, fillcolor="#c6e0b4"',
}


def to_dot(diagram: Diagram) -> str:
    """The source of a picture, in graphviz's language."""
    index = Index(diagram)
    names = {node: f"n{i}" for i, node in enumerate(index.homes)}
    lines = [
        "digraph {",
        '  graph [fontname="Helvetica", fontsize=12, nodesep=0.3, ranksep=0.4];',
        f'  node [fontname="Helvetica", fontsize=10, style=filled, color="{_BORDER}"];',
        f'  edge [fontname="Helvetica", fontsize=9, color="{_BORDER}", arrowsize=0.7];',
        *(f"  {line}" for line in _dot_cluster(diagram, names, itertools.count())),
        *(f"  {_dot_edge(edge, names, index)}" for edge in index.edges),
        "}",
    ]
    return "\n".join(lines)


def _dot_cluster(diagram: Diagram, names: dict[Node, str], numbers: Iterator[int]) -> Iterator[str]:
    """The nodes outside the loop, then the loop's box."""
    for node in diagram.nodes:
        if node.kind == "outside":
            yield _dot_node(node, names[node])
    yield f"subgraph cluster_{next(numbers)} {{"
    yield f"  label={_quoted(diagram.title, *diagram.notes)}; labeljust=l; style=filled;"
    yield f'  color="{_BORDER}"; fillcolor="#00000008"; penwidth=1.5;'
    for node in diagram.nodes:
        if node.kind != "outside":
            yield f"  {_dot_node(node, names[node])}"
    for rank, kinds in (("source", ENTRIES), ("sink", ("output",))):
        at_border = [names[node] for node in diagram.nodes if node.kind in kinds]
        if at_border:
            yield f"  {{ rank={rank}; {'; '.join(at_border)}; }}"
    for child in diagram.children:
        for line in _dot_cluster(child, names, numbers):
            yield f"  {line}"
    yield "}"


def _dot_node(node: Node, name: str) -> str:
    return f"{name} [label={_quoted(node.label, *node.details)}, {_STYLES[node.kind]}];"


def _dot_edge(edge: Edge, names: dict[Node, str], index: Index) -> str:
    attributes = []
    if edge.label:
        attributes.append(f"label={_quoted(edge.label)}")
    if edge.is_back_edge:
        attributes.append('style=dashed, color="#c00000", fontcolor="#c00000"')
    home = index.homes[edge.target]
    comes_from_inside = edge.source.kind != "outside" and any(
        edge.source in each.nodes for each in home.all_diagrams()
    )
    if edge.is_back_edge or (edge.target.kind in ENTRIES and comes_from_inside):
        attributes.append("constraint=false")  # up, to the upper border
    listed = f" [{', '.join(attributes)}]" if attributes else ""
    return f"{names[edge.source]} -> {names[edge.target]}{listed};"


def _quoted(*texts: str) -> str:
    """A string of graphviz's language: one line for each text."""
    # Graphviz reads HTML's entities in every string, and escapes of its own after backslashes.
    lines = (
        visible(text).replace("\\", "\\\\").replace("&", "&amp;").replace('"', '\\"')
        for text in texts
    )
    return '"' + "\\n".join(lines) + '"'


def run(dot: str, picture_format: str, source: str) -> bytes:
    result = subprocess.run(
        [dot, f"-T{picture_format}"], input=source.encode(), capture_output=True
    )
    if result.returncode != 0:
        message = result.stderr.decode(errors="replace").strip()
        raise RuntimeError(f"graphviz ({dot}) could not draw the loop: {message}")
    return result.stdout
