"""Draws the structure of a loop, as text and as a picture.

A drawing is that of TensorRT's document, section 10.1: the loop is a box. On its border are the
boundary layers: trip limits, iterators and recurrences where tensors come in, loop outputs where
they go out. Inside are the body's layers and further loops. Loop invariants, which no iteration
changes, stay outside and are used from there. Back edges, which lead to the next iteration, are
marked: without them no path leads in a circle.

Nothing here knows of TensorFlow. To draw something, describe it:

    diagram = Diagram("Loop")
    x = diagram.add_node("outside", "x", "float32[5, 3]")
    element = diagram.add_node("iterator", "iterator 0", "axis=0")
    total = diagram.add_node("recurrence", "recurrence 0")
    add = diagram.add_node("body", "add")
    diagram.add_edge(x, element)
    diagram.add_edge(element, add)
    diagram.add_edge(total, add)
    diagram.add_edge(add, total, "next", is_back_edge=True)
    print(to_text(diagram))
"""

import dataclasses
import itertools
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

from tf_ti import _tf

# The kinds of nodes, in the order in which they are told of, and the headings in a text.
_HEADINGS = {
    "outside": "outside",
    "limit": "trip limits",
    "iterator": "iterators",
    "recurrence": "recurrences",
    "body": "body",
    "output": "loop outputs",
}
# Where tensors come in: the upper border of the box. Outputs are on the lower one.
_ENTRIES = ("limit", "iterator", "recurrence")
_PICTURES = (".svg", ".png")
_SUFFIXES = (*_PICTURES, ".dot", ".txt")


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """A layer or a tensor. Two nodes may look alike: it is the object that counts.

    Attributes:
        kind: "limit", "iterator", "recurrence" or "output": a boundary layer; "body": a layer
            inside; "outside": a tensor outside the loop, but known to it.
        label: its name, unique among the nodes of its loop, else readers must guess.
        details: more about it, like "axis=0".
    """

    kind: str
    label: str
    details: tuple[str, ...] = ()

    def __post_init__(self):
        if self.kind not in _HEADINGS:
            raise ValueError(f"{self}: kind must be one of {', '.join(map(repr, _HEADINGS))}")


@dataclasses.dataclass(frozen=True, eq=False)
class Edge:
    """A tensor on its way from one node to another, both in any of the loops drawn.

    Attributes:
        source, target: the nodes.
        label: its role for the target, or empty.
        is_back_edge: whether the target gets it in the next iteration.
    """

    source: Node
    target: Node
    label: str = ""
    is_back_edge: bool = False


@dataclasses.dataclass(eq=False)
class Diagram:
    """A loop and the loops inside it.

    An edge between nodes of two loops may be in the edges of either.

    Attributes:
        name: of the loop; may be empty.
        what: the kind of loop.
        notes: more about all of it.
        nodes, edges: of this loop.
        children: the loops inside.
    """

    name: str
    what: str = "loop"
    notes: tuple[str, ...] = ()
    nodes: list[Node] = dataclasses.field(default_factory=list)
    edges: list[Edge] = dataclasses.field(default_factory=list)
    children: list["Diagram"] = dataclasses.field(default_factory=list)

    def add_node(self, kind: str, label: str, *details: str) -> Node:
        self.nodes.append(Node(kind, label, details))
        return self.nodes[-1]

    def add_edge(
        self, source: Node, target: Node, label: str = "", is_back_edge: bool = False
    ) -> Edge:
        self.edges.append(Edge(source, target, label, is_back_edge))
        return self.edges[-1]

    def add_child(self, name: str, what: str = "loop") -> "Diagram":
        self.children.append(Diagram(name, what))
        return self.children[-1]

    @property
    def title(self) -> str:
        return f"{self.what} {self.name}" if self.name else self.what

    def all_diagrams(self) -> Iterator["Diagram"]:
        """This one and all inside."""
        yield self
        for child in self.children:
            yield from child.all_diagrams()


class _Index:
    """Where each node of a diagram belongs, and the edges at it."""

    def __init__(self, diagram: Diagram):
        self.homes: dict[Node, Diagram] = {}
        for each in diagram.all_diagrams():
            for node in each.nodes:
                if node in self.homes:
                    raise ValueError(f"{node} is in the diagram twice")
                self.homes[node] = each
        self.edges = [edge for each in diagram.all_diagrams() for edge in each.edges]
        self.to: dict[Node, list[Edge]] = {node: [] for node in self.homes}
        self.of: dict[Node, list[Edge]] = {node: [] for node in self.homes}
        for edge in self.edges:
            for node in (edge.source, edge.target):
                if node not in self.homes:
                    raise ValueError(f"{edge}: {node} is not in the diagram")
            self.of[edge.source].append(edge)
            self.to[edge.target].append(edge)


def draw(diagram: Diagram, path: str | os.PathLike | None = None) -> str:
    """Draws a loop.

    Args:
        diagram: the loop.
        path: a file that ends in .svg or .png for a picture, .dot for its source, .txt for a text.

    Returns:
        Without a path the text, else the path of the file that was written. Where graphviz is not
        installed, a text takes the place of the picture, with a warning.

    Raises:
        TypeError: the path is no path.
        ValueError: the file name ends in something else.
        RuntimeError: graphviz failed.
    """
    if path is None:
        return to_text(diagram)
    path = _checked(path)
    suffix = path.suffix.lower()
    if suffix == ".dot":
        path.write_text(f"{to_dot(diagram)}\n", encoding="utf-8")
        return str(path)
    dot = shutil.which("dot") if suffix in _PICTURES else None
    if dot is not None:
        path.write_bytes(_run_graphviz(dot, suffix[1:], to_dot(diagram)))
        return str(path)
    if suffix in _PICTURES:
        picture, path = path, path.with_suffix(".txt")
        # The caller's caller: whoever called the public function.
        _tf.warn(
            f"graphviz's program dot, which draws {picture.name}, is not installed; the drawing is "
            f"in {path} instead, as text"
        )
    path.write_text(f"{to_text(diagram)}\n", encoding="utf-8")
    return str(path)


def _checked(path: str | os.PathLike) -> pathlib.Path:
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise TypeError(f"path must be a str, a path or None, got {path!r}")
    checked = pathlib.Path(path)
    if checked.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"path must end in one of {', '.join(_SUFFIXES)}, got {str(path)!r}")
    return checked


def _run_graphviz(dot: str, picture_format: str, source: str) -> bytes:
    result = subprocess.run(
        [dot, f"-T{picture_format}"], input=source.encode(), capture_output=True
    )
    if result.returncode != 0:
        message = result.stderr.decode(errors="replace").strip()
        raise RuntimeError(f"graphviz ({dot}) could not draw the loop: {message}")
    return result.stdout


def _visible(text: str) -> str:
    """One line, of characters that can be seen: of names that hold anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# --- text ----------------------------------------------------------------------------------------


def to_text(diagram: Diagram) -> str:
    """A section for each loop, those inside further to the right, and a paragraph for each node."""
    return "\n".join(_text_lines(diagram, _Index(diagram)))


def _text_lines(diagram: Diagram, index: _Index) -> Iterator[str]:
    def name_of(node: Node) -> str:
        home = index.homes[node]
        if home is diagram or node.kind == "outside":
            return _visible(node.label)
        return f"{_visible(node.label)} of {_visible(home.name or home.what)}"

    def references(word: str, edges: list[Edge], is_target: bool) -> Iterator[str]:
        for is_back_edge in (False, True):
            names = []
            for edge in edges:
                if edge.is_back_edge == is_back_edge:
                    label = f" ({_visible(edge.label)})" if edge.label else ""
                    names.append(name_of(edge.target if is_target else edge.source) + label)
            if names:
                yield f"{'back edge ' if is_back_edge else ''}{word} {', '.join(names)}"

    yield _visible(diagram.title)
    for note in diagram.notes:
        yield f"  {_visible(note)}"
    for kind, heading in _HEADINGS.items():
        nodes = [node for node in diagram.nodes if node.kind == kind]
        if nodes:
            yield f"  {heading}"
        for node in nodes:
            details = f": {', '.join(map(_visible, node.details))}" if node.details else ""
            yield f"    {_visible(node.label)}{details}"
            for line in references("from", index.to[node], is_target=False):
                yield f"      {line}"
            for line in references("to", index.of[node], is_target=True):
                yield f"      {line}"
    for child in diagram.children:
        for line in _text_lines(child, index):
            yield f"  {line}"


# --- graphviz ------------------------------------------------------------------------------------

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
    index = _Index(diagram)
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
    for rank, kinds in (("source", _ENTRIES), ("sink", ("output",))):
        at_border = [names[node] for node in diagram.nodes if node.kind in kinds]
        if at_border:
            yield f"  {{ rank={rank}; {'; '.join(at_border)}; }}"
    for child in diagram.children:
        for line in _dot_cluster(child, names, numbers):
            yield f"  {line}"
    yield "}"


def _dot_node(node: Node, name: str) -> str:
    return f"{name} [label={_quoted(node.label, *node.details)}, {_STYLES[node.kind]}];"


def _dot_edge(edge: Edge, names: dict[Node, str], index: _Index) -> str:
    attributes = []
    if edge.label:
        attributes.append(f"label={_quoted(edge.label)}")
    if edge.is_back_edge:
        attributes.append('style=dashed, color="#c00000", fontcolor="#c00000"')
    home = index.homes[edge.target]
    comes_from_inside = edge.source.kind != "outside" and any(
        edge.source in each.nodes for each in home.all_diagrams()
    )
    if edge.is_back_edge or (edge.target.kind in _ENTRIES and comes_from_inside):
        attributes.append("constraint=false")  # up, to the upper border
    listed = f" [{', '.join(attributes)}]" if attributes else ""
    return f"{names[edge.source]} -> {names[edge.target]}{listed};"


def _quoted(*texts: str) -> str:
    """A string of graphviz's language: one line for each text."""
    # Graphviz reads HTML's entities in every string, and escapes of its own after backslashes.
    lines = (
        _visible(text).replace("\\", "\\\\").replace("&", "&amp;").replace('"', '\\"')
        for text in texts
    )
    return '"' + "\\n".join(lines) + '"'
