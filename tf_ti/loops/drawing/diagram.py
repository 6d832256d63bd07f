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
from collections.abc import Iterator

# The kinds of nodes, in the order in which they are told of, and the headings in a text.
HEADINGS = {
    "outside": "outside",
    "limit": "trip limits",
    "iterator": "iterators",
    "recurrence": "recurrences",
    "body": "body",
    "output": "loop outputs",
}
# Where tensors come in: the upper border of the box. Outputs are on the lower one.
ENTRIES = ("limit", "iterator", "recurrence")


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

    def __post_init__(self) -> None:
        if self.kind not in HEADINGS:
            raise ValueError(f"{self}: kind must be one of {', '.join(map(repr, HEADINGS))}")


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


class Index:
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
