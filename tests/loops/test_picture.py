"""Pictures of diagrams, drawn without graphviz: what an XML parser finds in them, and where."""

import itertools
import random
import re
import xml.etree.ElementTree

import pytest

from tf_ti.loops.drawing.diagram import Diagram
from tf_ti.loops.drawing.picture import to_svg

SVG = "{http://www.w3.org/2000/svg}"
KINDS = ("limit", "iterator", "recurrence", "output", "outside", *["body"] * 5)
ENTRIES = ("limit", "iterator", "recurrence")
SLACK = 0.11  # numbers are written to a tenth
ODD_NAMES = [
    '<b>"markup"</b> &amp; &lt; ]]>',
    "two\nlines\r\n and a\ttab",
    "\ud800 alone, nul\0 and \u202eleft",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "\u5faa\u73af \u00fc \U0001f300",
    "\ufffe\uffff",
    "",
]


def draw(diagram):
    """The root of the picture."""
    return xml.etree.ElementTree.fromstring(to_svg(diagram))


def groups(root, kind):
    return [group for group in root.iter(f"{SVG}g") if group.get("class") == kind]


def texts(element):
    return [text.text or "" for text in element.iter(f"{SVG}text")]


def box(group):
    """Left, top, right and bottom of a group's rectangle."""
    rect = group.find(f"{SVG}rect")
    x, y, width, height = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def way(group):
    """The points of an edge, about one a pixel."""
    steps = re.findall(r"([MVC])([-\d. ]+)", group.find(f"{SVG}path").get("d"))
    points = []
    for command, numbers in steps:
        numbers = [float(number) for number in numbers.split()]
        if command == "M":
            points.append(tuple(numbers))
            continue
        x, y = points[-1]
        if command == "V":
            numbers = [x, y, x, numbers[0], x, numbers[0]]
        handles = [(x, y), *zip(numbers[::2], numbers[1::2])]
        count = 2 + int(max(abs(x - numbers[-2]), abs(y - numbers[-1])))
        for t in (k / count for k in range(1, count + 1)):
            weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
            points.append(tuple(sum(map(float.__mul__, weights, axis)) for axis in zip(*handles)))
    return points


def loops_of(diagram, around=()):
    """Each loop with those around it."""
    yield diagram, around
    for child in diagram.children:
        yield from loops_of(child, (*around, diagram))


def random_diagram(seed):
    """Loops up to three deep, with edges of all kinds, even such as no loop has."""
    draws = random.Random(seed)
    root = Diagram("root")

    def fill(diagram, depth):
        diagram.notes = tuple(f"note {k}" for k in range(draws.randrange(3)))
        for k in range(draws.choice([0, 1, 3, 8])):
            details = ("a detail",) * draws.choice([0, 1, 4])
            diagram.add_node(
                draws.choice(KINDS), f"{diagram.name}.{k}" * draws.choice([1, 2]), *details
            )
        for k in range(draws.choice([0, 1, 2]) if depth < 2 else 0):
            fill(diagram.add_child(f"{diagram.name}.loop{k}"), depth + 1)

    fill(root, 0)
    nodes = [node for loop, _ in loops_of(root) for node in loop.nodes]
    for _ in range(draws.choice([0, len(nodes), 2 * len(nodes)]) if nodes else 0):
        source, target = draws.choice(nodes), draws.choice(nodes)
        root.add_edge(source, target, draws.choice(["", "", "label"]), draws.random() < 0.2)
    return root


def chain(length):
    """One body operation after the other, and all outputs of the last."""
    diagram = Diagram("chain")
    last = diagram.add_node("recurrence", "state")
    for k in range(length):
        node = diagram.add_node("body", f"op {k}")
        diagram.add_edge(last, node)
        last = node
    diagram.add_edge(last, diagram.nodes[0], "next", is_back_edge=True)
    return diagram


def nodes_of(diagram):
    return [(node, loop, around) for loop, around in loops_of(diagram) for node in loop.nodes]


SEEDS = pytest.mark.parametrize("seed", range(20), indirect=True)


@SEEDS
def test_each_node_and_each_loop_is_there_once_with_its_label(seed):
    diagram = random_diagram(seed)
    root = draw(diagram)
    expected = [[node.label, *node.details] for node, _, _ in nodes_of(diagram)]
    assert [texts(group) for group in groups(root, "node")] == expected
    loops = [[loop.title, *loop.notes] for loop, _ in loops_of(diagram)]
    # That of the outermost loop is above all.
    assert [texts(group) for group in groups(root, "loop")] == [[], *loops[1:]]
    assert [text.text for text in root.findall(f"{SVG}text")] == loops[0]
    edges = [edge for loop, _ in loops_of(diagram) for edge in loop.edges]
    assert [texts(group) for group in groups(root, "edge")] == [
        [e.label] * bool(e.label) for e in edges
    ]


@SEEDS
def test_no_two_boxes_overlap(seed):
    boxes = [box(group) for group in groups(draw(random_diagram(seed)), "node")]
    for one, other in itertools.combinations(boxes, 2):
        apart = one[2] <= other[0], other[2] <= one[0], one[3] <= other[1], other[3] <= one[1]
        assert any(apart), (one, other)


@SEEDS
def test_all_of_a_loop_is_in_its_box_and_its_boundary_layers_are_on_the_border(seed):
    diagram = random_diagram(seed)
    root = draw(diagram)
    borders = dict(zip([loop for loop, _ in loops_of(diagram)], map(box, groups(root, "loop"))))
    size = float(root.get("width")), float(root.get("height"))
    for (node, loop, around), group in zip(nodes_of(diagram), groups(root, "node")):
        left, top, right, bottom = box(group)
        if node.kind == "outside":
            inside = around
            x, y, x_end, y_end = borders[loop]
            assert right <= x or x_end <= left or bottom <= y or y_end <= top
        else:
            inside = (*around, loop)
        for each in inside:
            x, y, x_end, y_end = borders[each]
            assert x <= left and right <= x_end
            if each is not loop or node.kind == "body":
                assert y <= top and bottom <= y_end
        if node.kind in ENTRIES:
            assert (top + bottom) / 2 == pytest.approx(borders[loop][1], abs=2 * SLACK)
        if node.kind == "output":
            assert (top + bottom) / 2 == pytest.approx(borders[loop][3], abs=2 * SLACK)
    for loop, around in loops_of(diagram):
        for each in around:
            x, y, x_end, y_end = borders[each]
            left, top, right, bottom = borders[loop]
            assert x < left and right < x_end and y < top and bottom < y_end
    assert all(0 < end < most for border in borders.values() for end, most in zip(border, size * 2))


@SEEDS
def test_edges_begin_below_their_source_and_end_above_their_target(seed):
    """Or below it, if it is on the upper border and the edge comes from inside."""
    diagram = random_diagram(seed)
    root = draw(diagram)
    boxes = dict(zip([node for node, _, _ in nodes_of(diagram)], map(box, groups(root, "node"))))
    insides = {
        node: (*around, loop)[: len(around) + (node.kind != "outside")]
        for node, loop, around in nodes_of(diagram)
    }
    homes = {node: loop for node, loop, _ in nodes_of(diagram)}
    edges = [edge for loop, _ in loops_of(diagram) for edge in loop.edges]
    for edge, group in zip(edges, groups(root, "edge")):
        points = way(group)
        left, _, right, bottom = boxes[edge.source]
        assert left <= points[0][0] <= right and points[0][1] == pytest.approx(bottom, abs=SLACK)
        comes_from_inside = homes[edge.target] in insides[edge.source]
        is_below = edge.target.kind in ENTRIES and comes_from_inside
        left, top, right, bottom = boxes[edge.target]
        assert left <= points[-1][0] <= right
        assert points[-1][1] == pytest.approx(bottom if is_below else top, abs=SLACK)


@SEEDS
def test_no_edge_runs_through_a_box(seed):
    root = draw(random_diagram(seed))
    boxes = [box(group) for group in groups(root, "node")]
    for group in groups(root, "edge"):
        for x, y in way(group):
            for left, top, right, bottom in boxes:
                is_inside = left + 0.2 < x < right - 0.2 and top + 0.2 < y < bottom - 0.2
                assert not is_inside, (group.findtext(f"{SVG}title"), x, y)


def test_back_edges_alone_are_dashed_and_lead_up():
    diagram = chain(5)
    edges = groups(draw(diagram), "edge")
    dashed = [edge for edge in edges if edge.find(f"{SVG}path").get("stroke-dasharray")]
    assert dashed == edges[-1:]
    assert way(dashed[0])[0][1] > way(dashed[0])[-1][1]
    assert all(way(edge)[0][1] < way(edge)[-1][1] for edge in edges[:-1])


def test_a_chain_of_operations_is_straight():
    edges = groups(draw(chain(5)), "edge")[1:-1]
    xs = [x for edge in edges for x, _ in way(edge)]
    assert max(xs) - min(xs) < 0.5


def test_edges_that_do_not_need_to_cross_do_not_cross():
    """A matching of two rows, told in another order."""
    diagram = Diagram("matching")
    upper = [diagram.add_node("body", f"upper {k}") for k in range(7)]
    lower = [diagram.add_node("body", f"lower {k}") for k in range(7)]
    for k in range(7):
        diagram.add_edge(upper[k], lower[3 * k % 7])
    ends = [(way(edge)[0][0], way(edge)[-1][0]) for edge in groups(draw(diagram), "edge")]
    for (a, b), (c, d) in itertools.combinations(ends, 2):
        assert (a < c) == (b < d)


def test_many_neighbours_take_several_rows():
    diagram = Diagram("many")
    for k in range(300):
        diagram.add_node("outside", f"tensor {k}", "float32[64, 64]")
    assert float(draw(diagram).get("width")) < 1400


def test_a_large_diagram_is_drawn():
    assert len(groups(draw(chain(1500)), "node")) == 1501


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_text_of_one_line(name):
    diagram = Diagram(name)
    node = diagram.add_node("body", name, name)
    diagram.add_edge(node, node, name)
    root = draw(diagram)
    (label, detail), (edge,) = (
        texts(groups(root, "node")[0]),
        texts(groups(root, "edge")[0]) or [""],
    )
    visible = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    assert [label, detail, edge] == [visible] * 3


def test_a_long_name_is_shortened_and_told_to_who_points_at_it():
    name = "sequential/" * 20
    diagram = Diagram("loop")
    diagram.add_node("body", name)
    (group,) = groups(draw(diagram), "node")
    assert len(texts(group)[0]) <= 40 and texts(group)[0].startswith("sequential/")
    assert name in group.findtext(f"{SVG}title")
    left, _, right, _ = box(group)
    assert right - left < 400


@pytest.mark.parametrize("make", [lambda: Diagram(""), lambda: Diagram("", "tensor_iterator")])
def test_an_empty_loop_is_a_title_and_a_box(make):
    root = draw(make())
    assert texts(root) == [make().title] == [root.findtext(f"{SVG}title")]
    (loop,) = groups(root, "loop")
    left, top, right, bottom = box(loop)
    assert left < right and top < bottom


def test_the_same_diagram_gives_the_same_picture():
    assert to_svg(random_diagram(11)) == to_svg(random_diagram(11))


def test_a_picture_has_its_own_ground_and_needs_nothing_else():
    picture = to_svg(random_diagram(8))
    root = xml.etree.ElementTree.fromstring(picture)
    assert root.find(f"{SVG}rect").get("fill") == "#fcfcfa"
    assert not re.search(r"href|url\(|@import|<script|<style", picture)
