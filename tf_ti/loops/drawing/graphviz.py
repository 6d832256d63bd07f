"""Pictures drawn by graphviz's program `dot`, and their sources."""

import itertools
import subprocess
from collections.abc import Iterator

from tf_ti.loops.drawing import colors
from tf_ti.loops.drawing.characters import visible
from tf_ti.loops.drawing.diagram import ENTRIES, Diagram, Edge, Index, Node

_SHAPES = {
    "outside": 'shape=plaintext, style=""',
    "limit": "shape=octagon",
    "iterator": "shape=invhouse",
    "recurrence": "shape=box, peripheries=2",
    "body": 'shape=box, style="rounded,filled"',
    "output": "shape=house",
}


def to_dot(diagram: Diagram) -> str:
    """The source of a picture, in graphviz's language."""
    index = Index(diagram)
    names = {node: f"n{i}" for i, node in enumerate(index.homes)}
    lines = [
        "digraph {",
        '  graph [fontname="Helvetica", fontsize=12, nodesep=0.3, ranksep=0.4];',
        f'  node [fontname="Helvetica", fontsize=10, style=filled, color="{colors.LINE}"];',
        f'  edge [fontname="Helvetica", fontsize=9, color="{colors.LINE}", arrowsize=0.7];',
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
    yield f'  color="{colors.LINE}"; fillcolor="{colors.INSIDE}"; penwidth=1.5;'
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
    style = f'{_SHAPES[node.kind]}, fillcolor="{colors.KINDS[node.kind]}"'
    return f"{name} [label={_quoted(node.label, *node.details)}, {style}];"


def _dot_edge(edge: Edge, names: dict[Node, str], index: Index) -> str:
    attributes = []
    if edge.label:
        attributes.append(f"label={_quoted(edge.label)}")
    if edge.is_back_edge:
        attributes.append(f'style=dashed, color="{colors.RED}", fontcolor="{colors.RED}"')
    inside = index.homes[edge.target].all_diagrams()
    comes_from_inside = edge.source.kind != "outside" and index.homes[edge.source] in inside
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
