"""Pictures of diagrams, as SVG."""

import itertools
from collections.abc import Mapping, Sequence

from tf_ti.loops.drawing import colors, svg
from tf_ti.loops.drawing.boxes import Box, Group, Point, Wire
from tf_ti.loops.drawing.characters import shortened, visible, width
from tf_ti.loops.drawing.diagram import ENTRIES, Diagram, Edge, Index, Node
from tf_ti.loops.drawing.layout import arrange
from tf_ti.loops.drawing.level import LABEL_GAP

_SIZE, _SMALL = 12.0, 10.5  # of fonts
_LINE, _SMALL_LINE = 16.0, 14.0  # heights
_MARGIN, _HEAD_GAP = 16.0, 10.0
_MOST_CHARACTERS = 40
_BOW = 12.0  # the most that a bow reaches beyond its ends
_ARROW_WIDTH, _ARROW_LENGTH = 7.0, 7.0

Line = tuple[str, float]  # of text, with the size of its font


def to_svg(diagram: Diagram) -> str:
    """A picture: boundary layers on the border of the loop's box, loops inside in boxes of theirs.

    Long names are shortened; the whole name is shown where a mouse points.
    """
    index = Index(diagram)
    boxes = {node: _box(node) for node in index.homes}
    # The title of the outermost is above all.
    titles = {each: _title(each) if each is not diagram else [] for each in diagram.all_diagrams()}
    groups = {each: _group(title) for each, title in titles.items()}
    for each, group in groups.items():
        group.members += [boxes[node] for node in each.nodes if node.kind != "outside"]
        for child in each.children:
            group.members += _with_outside(child, boxes, groups)
    wires = {edge: _wire(edge, boxes) for edge in index.edges}
    whole = Group(_with_outside(diagram, boxes, groups), has_border=False)
    head = _title(diagram)
    across, down = _extent(head)
    top = _MARGIN + down + _HEAD_GAP
    arrange(whole, list(wires.values()), _MARGIN, top)

    size = max(whole.width, across) + 2 * _MARGIN, top + whole.height + _MARGIN
    root = svg.picture(visible(diagram.title), *size)
    _add_lines(root, head, _MARGIN, _MARGIN)
    for each, group in groups.items():
        _add_group(root, each, group, titles[each])
    for edge, wire in wires.items():
        _add_edge(root, edge, wire.points)
    for node, box in boxes.items():
        _add_node(root, node, box)
    return svg.to_string(root)


def _with_outside(
    diagram: Diagram, boxes: Mapping[Node, Box], groups: Mapping[Diagram, Group]
) -> list[Box | Group]:
    """A loop's group, and the tensors outside, which are its neighbours."""
    outside = [boxes[node] for node in diagram.nodes if node.kind == "outside"]
    return [*outside, groups[diagram]]


def _short(text: str) -> str:
    return shortened(visible(text), _MOST_CHARACTERS)


def _node_lines(node: Node) -> list[Line]:
    return [(_short(node.label), _SIZE), *((_short(detail), _SMALL) for detail in node.details)]


def _title(diagram: Diagram) -> list[Line]:
    notes = (shortened(visible(note), 2 * _MOST_CHARACTERS) for note in diagram.notes)
    return [(_short(diagram.title), _SIZE), *((note, _SMALL) for note in notes)]


def _height(line: Line) -> float:
    return _LINE if line[1] == _SIZE else _SMALL_LINE


def _extent(lines: Sequence[Line]) -> tuple[float, float]:
    return max((width(*line) for line in lines), default=0.0), sum(map(_height, lines))


def _box(node: Node) -> Box:
    place = "entry" if node.kind in ENTRIES else "exit" if node.kind == "output" else "inside"
    across, down = _extent(_node_lines(node))
    return Box(across + 18, down + 8, place)


def _group(title: Sequence[Line]) -> Group:
    across, down = _extent(title)
    return Group(title_width=across, title_height=down)


def _wire(edge: Edge, boxes: Mapping[Node, Box]) -> Wire:
    label_width = width(_short(edge.label), _SMALL)
    return Wire(boxes[edge.source], boxes[edge.target], edge.is_back_edge, label_width)


def _add_lines(
    parent: svg.Element, lines: Sequence[Line], x: float, top: float, **attributes: str | float
) -> None:
    for text, size in lines:
        top += _height((text, size))
        svg.add_text(parent, text, x, top - 4, size, **attributes)


def _add_group(parent: svg.Element, diagram: Diagram, group: Group, title: Sequence[Line]) -> None:
    box = svg.add(parent, "g", **{"class": "loop"})
    svg.add(box, "title", "\n".join(map(visible, (diagram.title, *diagram.notes))))
    frame = {"x": group.x, "y": group.y, "width": group.width, "height": group.height}
    svg.add(box, "rect", **frame, rx=6, fill=colors.INSIDE, stroke=colors.LINE, stroke_width=1.5)
    _add_lines(box, title, group.x + 10, group.y + 2, fill=colors.LINE)


def _add_node(parent: svg.Element, node: Node, box: Box) -> None:
    lines = _node_lines(node)
    group = svg.add(parent, "g", **{"class": "node"})
    svg.add(group, "title", f"{node.kind}: {', '.join(map(visible, (node.label, *node.details)))}")
    style = {
        "fill": colors.KINDS[node.kind],
        "stroke": "none" if node.kind == "outside" else colors.LINE,
    }
    frame = {"x": box.x, "y": box.y, "width": box.width, "height": box.height}
    svg.add(group, "rect", **frame, rx=4, **style)
    top = box.y + (box.height - _extent(lines)[1]) / 2
    _add_lines(group, lines, box.x + box.width / 2, top, text_anchor="middle")


def _add_edge(parent: svg.Element, edge: Edge, points: Sequence[Point]) -> None:
    color = colors.RED if edge.is_back_edge else colors.LINE
    group = svg.add(parent, "g", **{"class": "edge"})
    svg.add(group, "title", " to ".join(visible(end.label) for end in (edge.source, edge.target)))
    way, is_down = _path(points)
    path = svg.add(group, "path", d=way, fill="none", stroke=color, stroke_width=1.2)
    if edge.is_back_edge:
        path.set("stroke-dasharray", "5 3")
    x, y = points[-1]
    end = y - _ARROW_LENGTH if is_down else y + _ARROW_LENGTH
    tip = (x, y), (x - _ARROW_WIDTH / 2, end), (x + _ARROW_WIDTH / 2, end)
    svg.add(group, "path", d=f"M{' L'.join(map(_at, tip))} Z", fill=color)
    if edge.label:
        foot = y - _SMALL if is_down else y + _SMALL + 8
        svg.add_text(
            group,
            _short(edge.label),
            x + LABEL_GAP,
            foot,
            _SMALL,
            fill=color,
            stroke=colors.GROUND,
            stroke_width=3,
            paint_order="stroke",
        )


def _path(points: Sequence[Point]) -> tuple[str, bool]:
    """The lines, curves and bows between the points of a wire, and whether they end downward."""
    said, is_down = [f"M{_at(points[0])}"], True
    for (x, y), end in itertools.pairwise(points):
        if y != end[1]:
            is_down = end[1] > y
        if x == end[0]:
            said.append(f"V{svg.number(end[1])}")
            continue
        middle = (y + end[1]) / 2
        if y == end[1]:
            # A curve goes three quarters of the way to its handles.
            reach = min(_BOW, abs(end[0] - x) / 2) / 0.75
            middle += reach if is_down else -reach
            is_down = not is_down
        said.append(f"C{_at((x, middle))} {_at((end[0], middle))} {_at(end)}")
    return " ".join(said), is_down


def _at(point: Point) -> str:
    return " ".join(map(svg.number, point))
