"""Texts that show the structure of loops."""

from collections.abc import Iterator

from tf_ti.loops.drawing.characters import visible
from tf_ti.loops.drawing.diagram import HEADINGS, Diagram, Edge, Index, Node


def to_text(diagram: Diagram) -> str:
    """A section for each loop, those inside further to the right, and a paragraph for each node."""
    return "\n".join(_text_lines(diagram, Index(diagram)))


def _text_lines(diagram: Diagram, index: Index) -> Iterator[str]:
    def name_of(node: Node) -> str:
        home = index.homes[node]
        if home is diagram or node.kind == "outside":
            return visible(node.label)
        return f"{visible(node.label)} of {visible(home.name or home.what)}"

    def references(word: str, edges: list[Edge], is_target: bool) -> Iterator[str]:
        for is_back_edge in (False, True):
            names = []
            for edge in edges:
                if edge.is_back_edge == is_back_edge:
                    label = f" ({visible(edge.label)})" if edge.label else ""
                    names.append(name_of(edge.target if is_target else edge.source) + label)
            if names:
                yield f"{'back edge ' if is_back_edge else ''}{word} {', '.join(names)}"

    yield visible(diagram.title)
    for note in diagram.notes:
        yield f"  {visible(note)}"
    for kind, heading in HEADINGS.items():
        nodes = [node for node in diagram.nodes if node.kind == kind]
        if nodes:
            yield f"  {heading}"
        for node in nodes:
            details = f": {', '.join(map(visible, node.details))}" if node.details else ""
            yield f"    {visible(node.label)}{details}"
            for line in references("from", index.to[node], is_target=False):
                yield f"      {line}"
            for line in references("to", index.of[node], is_target=True):
                yield f"      {line}"
    for child in diagram.children:
        for line in _text_lines(child, index):
            yield f"  {line}"
