"""Drawings: texts, graphviz's sources and pictures, and `tf_ti.draw` for port maps."""

import pathlib
import re
import shutil
import textwrap
import warnings
import xml.etree.ElementTree

import pytest

import tf_ti
from tf_ti import BackEdge, InputPort, OutputPort, PortMap
from tf_ti.loops.drawing.diagram import Diagram, Edge, Node
from tf_ti.loops.drawing.draw import draw
from tf_ti.loops.drawing.graphviz import to_dot
from tf_ti.loops.drawing.picture import to_svg
from tf_ti.loops.drawing.text import to_text

needs_graphviz = pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is missing")
ODD_NAMES = [
    'quotes "inside" and "',
    "two\nlines\r\n and a\ttab",
    "back\\slash, \\n and a last \\",
    "<b>markup</b> &amp; &lt; & ]]>",
    '"]; n0 -> n1 [label="injected',
    "\u5faa\u73af \u00fc \u03b1\u2032 \U0001f300",
    "\ud800 alone",
    "nul\0 and bell\a",
    "{a|b}",
    "",
]


def a_loop(name="Loop"):
    """A sum over a matrix's rows, of at most n of them, as far as it stays small."""
    diagram = Diagram(name)
    x = diagram.add_node("outside", "x", "float32[5, 3]")
    count = diagram.add_node("outside", "n")
    limits = [diagram.add_node("limit", f"trip limit {i}", kind) for i, kind in enumerate("CW")]
    row = diagram.add_node("iterator", "iterator 0", "axis=0", "reverse")
    total = diagram.add_node("recurrence", "recurrence 0")
    add = diagram.add_node("body", "add")
    less = diagram.add_node("body", "less")
    output = diagram.add_node("output", "output 0", "LAST_VALUE")
    diagram.add_edge(count, limits[0])
    diagram.add_edge(less, limits[1])
    diagram.add_edge(x, row)
    diagram.add_edge(row, add)
    diagram.add_edge(total, add)
    diagram.add_edge(total, less)
    diagram.add_edge(add, total, "next", is_back_edge=True)
    diagram.add_edge(total, output)
    return diagram


def nested_loops():
    """A's iterator feeds B's, inside; B's output feeds A's recurrence."""
    a = Diagram("A")
    rows = a.add_node("iterator", "iterator 0")
    state = a.add_node("recurrence", "recurrence 0")
    b = a.add_child("B")
    elements = b.add_node("iterator", "iterator 0")
    scale = b.add_node("outside", "scale")
    multiply = b.add_node("body", "multiply")
    output = b.add_node("output", "output 0")
    a.add_edge(rows, elements)
    b.add_edge(elements, multiply)
    b.add_edge(scale, multiply)
    b.add_edge(multiply, output)
    a.add_edge(output, state, "next", is_back_edge=True)
    return a


def port_map():
    return PortMap(
        inputs=[
            InputPort(0, 2, axis=1, start=-1, end=0, stride=-2),
            InputPort(1, 1),
            InputPort(2, 0),
        ],
        outputs=[OutputPort(0, 1, axis=0, part_size=3), OutputPort(1, 0)],
    )


def text_of(element):
    return "".join(element.itertext()).strip()


def svg_groups(path, kind):
    """The SVG's groups of a kind: "node", "edge" or "cluster"."""
    root = xml.etree.ElementTree.parse(path).getroot()
    return [
        group for group in root.iter("{http://www.w3.org/2000/svg}g") if group.get("class") == kind
    ]


def svg_lines(group):
    return [text_of(line) for line in group.iter("{http://www.w3.org/2000/svg}text")]


# --- text ----------------------------------------------------------------------------------------


def test_a_text_tells_of_each_layer_where_its_inputs_come_from_and_where_it_goes():
    assert to_text(a_loop()) == textwrap.dedent(
        """\
        loop Loop
          outside
            x: float32[5, 3]
              to iterator 0
            n
              to trip limit 0
          trip limits
            trip limit 0: C
              from n
            trip limit 1: W
              from less
          iterators
            iterator 0: axis=0, reverse
              from x
              to add
          recurrences
            recurrence 0
              back edge from add (next)
              to add, less, output 0
          body
            add
              from iterator 0, recurrence 0
              back edge to recurrence 0 (next)
            less
              from recurrence 0
              to trip limit 1
          loop outputs
            output 0: LAST_VALUE
              from recurrence 0"""
    )


def test_a_text_shows_nested_loops_further_right_and_says_whose_layer_is_meant():
    assert to_text(nested_loops()) == textwrap.dedent(
        """\
        loop A
          iterators
            iterator 0
              to iterator 0 of B
          recurrences
            recurrence 0
              back edge from output 0 of B (next)
          loop B
            outside
              scale
                to multiply
            iterators
              iterator 0
                from iterator 0 of A
                to multiply
            body
              multiply
                from iterator 0, scale
                to output 0
            loop outputs
              output 0
                from multiply
                back edge to recurrence 0 of A (next)"""
    )


def test_an_empty_loop_is_its_title():
    assert to_text(Diagram("Loop")) == "loop Loop"
    assert to_text(Diagram("", "tensor_iterator")) == "tensor_iterator"


@pytest.mark.parametrize("name", ODD_NAMES)
def test_an_odd_name_takes_one_line_of_a_text(name):
    diagram = Diagram(name)
    node = diagram.add_node("body", name, name)
    diagram.add_edge(node, node, name)
    lines = to_text(diagram).split("\n")
    assert len(lines) == 5
    assert all(line.isprintable() for line in lines)


def test_characters_that_can_be_seen_are_left_as_they_are():
    diagram = Diagram('\u5faa\u73af "A" \\ \U0001f300')
    assert to_text(diagram) == f"loop {diagram.name}"


def test_characters_that_cannot_be_seen_are_shown_as_python_writes_them():
    assert to_text(Diagram("a\nb\0\u2028\ud800")) == "loop a\\nb\\x00\\u2028\\ud800"


# --- graphviz's source ---------------------------------------------------------------------------


def dot_strings(source):
    """Splits a source into what stands in quotation marks, as graphviz reads it, and the rest."""
    pattern = r'"((?:[^"\\]|\\.)*)"'
    assert "\n" not in "".join(re.findall(pattern, source))
    return re.findall(pattern, source), re.sub(pattern, "", source)


def test_a_source_has_a_node_for_each_node_and_an_edge_for_each_edge():
    diagram = a_loop()
    strings, rest = dot_strings(to_dot(diagram))
    assert len(re.findall(r"^ *n\d+ \[label=", rest, re.MULTILINE)) == len(diagram.nodes)
    assert rest.count("->") == len(diagram.edges)
    assert r"iterator 0\naxis=0\nreverse" in strings


def test_a_source_dashes_back_edges_alone():
    (line,) = [line for line in to_dot(a_loop()).splitlines() if "dashed" in line]
    assert "->" in line and '"next"' in line


def test_a_source_has_a_box_in_a_box_for_a_nested_loop_and_what_is_outside_it_between():
    _, rest = dot_strings(to_dot(nested_loops()))
    depths, depth = {}, 0
    for line in rest.splitlines():
        for name in re.findall(r"(n\d+|cluster_\d+) [\[{]", line):
            depths.setdefault(name, depth)
        depth += line.count("{") - line.count("}")
    assert depth == 0
    assert (depths["cluster_0"], depths["cluster_1"]) == (1, 2)
    # The nodes in order: A's two, B's iterator, scale, multiply and output.
    assert [depths[f"n{i}"] for i in range(6)] == [2, 2, 3, 2, 3, 3]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_an_odd_name_stays_within_its_quotation_marks(name):
    diagram = Diagram(name)
    node = diagram.add_node("body", name, name)
    diagram.add_edge(node, node, name)
    plain = Diagram("plain")
    other = plain.add_node("body", "plain", "plain")
    plain.add_edge(other, other, "plain")
    expected = dot_strings(to_dot(plain))[1]
    if not name:  # an empty label is not written
        expected = expected.replace("n0 -> n0 [label=]", "n0 -> n0")
    assert dot_strings(to_dot(diagram))[1] == expected
    to_dot(diagram).encode()


# --- what a diagram must be ----------------------------------------------------------------------


def test_a_kind_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="'loop'.*kind must be one of 'outside', 'limit'"):
        Node("loop", "a")


@pytest.mark.parametrize("render", [to_text, to_dot, to_svg])
def test_an_edge_to_a_node_that_is_not_there_is_refused(render):
    diagram = a_loop()
    stranger = Node("body", "stranger")
    diagram.edges.append(Edge(diagram.nodes[0], stranger))
    with pytest.raises(ValueError, match="stranger.* is not in the diagram"):
        render(diagram)


@pytest.mark.parametrize("render", [to_text, to_dot, to_svg])
def test_a_node_in_two_loops_is_refused(render):
    diagram = nested_loops()
    diagram.children[0].nodes.append(diagram.nodes[0])
    with pytest.raises(ValueError, match="iterator 0.* is in the diagram twice"):
        render(diagram)


# --- files ---------------------------------------------------------------------------------------


def test_without_a_path_the_text_is_returned():
    assert draw(a_loop()) == to_text(a_loop())


@pytest.mark.parametrize("make_path", [str, pathlib.Path])
@pytest.mark.parametrize("suffix, render", [(".txt", to_text), (".dot", to_dot), (".DOT", to_dot)])
def test_a_text_and_a_source_are_written_to_files(tmp_path, suffix, render, make_path):
    path = tmp_path / f"loop{suffix}"
    diagram = a_loop("\u5faa\u73af")
    assert draw(diagram, make_path(path)) == str(path)
    assert path.read_text(encoding="utf-8") == render(diagram) + "\n"


@pytest.mark.parametrize("name", ["loop.pdf", "loop", ".svg", "loop.svg.gz", ""])
def test_another_suffix_is_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(ValueError, match=r"must end in one of \.svg, \.png, \.dot, \.txt, got"):
        draw(a_loop(), str(tmp_path / name) if name else name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", [3, b"loop.svg", ["loop.svg"], True])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(TypeError, match="path must be a str, a path or None, got"):
        draw(a_loop(), path)


@pytest.mark.parametrize("suffix", [".svg", ".SVG"])
def test_without_graphviz_an_svg_is_drawn_all_the_same(tmp_path, monkeypatch, suffix):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    path = tmp_path / f"my.loop{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert draw(a_loop("\u5faa\u73af"), path) == str(path)
    assert path.read_text(encoding="utf-8") == to_svg(a_loop("\u5faa\u73af")) + "\n"


def test_without_graphviz_a_png_is_refused_and_nothing_written(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(RuntimeError, match=r"graphviz's program dot.* a \.svg needs no other"):
        tf_ti.draw(port_map(), path=tmp_path / "loop.png")
    assert list(tmp_path.iterdir()) == []


def make_program(folder, monkeypatch, script):
    program = folder / "bin" / "dot"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_graphviz_gets_the_source_and_the_format(tmp_path, monkeypatch, suffix):
    make_program(tmp_path, monkeypatch, 'echo "$@"; exec /bin/cat')
    path = tmp_path / f"loop.{suffix}"
    diagram = a_loop("\u5faa\u73af")
    assert draw(diagram, path) == str(path)
    assert path.read_text(encoding="utf-8") == f"-T{suffix}\n{to_dot(diagram)}"


def test_a_failure_of_graphviz_is_told_and_leaves_no_file(tmp_path, monkeypatch):
    make_program(tmp_path, monkeypatch, "echo out of ink >&2; exit 3")
    with pytest.raises(RuntimeError, match="graphviz .*could not draw the loop: out of ink"):
        draw(a_loop(), tmp_path / "loop.svg")
    assert not (tmp_path / "loop.svg").exists()


@needs_graphviz
def test_a_png_is_a_png(tmp_path):
    path = draw(nested_loops(), tmp_path / "loop.png")
    assert pathlib.Path(path).read_bytes().startswith(b"\x89PNG")


@needs_graphviz
@pytest.mark.parametrize("make", [a_loop, nested_loops])
def test_an_svg_shows_all_loops_nodes_and_edges(tmp_path, make):
    diagram = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = draw(diagram, tmp_path / "loop.svg")
    loops = [diagram, *diagram.children]
    assert [svg_lines(cluster) for cluster in svg_groups(path, "cluster")] == [
        [loop.title] for loop in loops
    ]
    assert sorted(svg_lines(node) for node in svg_groups(path, "node")) == sorted(
        [node.label, *node.details] for loop in loops for node in loop.nodes
    )
    edges = svg_groups(path, "edge")
    assert len(edges) == sum(len(loop.edges) for loop in loops)
    dashed = [
        edge for edge in edges if "stroke-dasharray" in str(xml.etree.ElementTree.tostring(edge))
    ]
    assert [svg_lines(edge) for edge in dashed] == [["next"]]


@needs_graphviz
@pytest.mark.parametrize("name", [name for name in ODD_NAMES if name])
def test_an_odd_name_is_drawn_as_a_text_shows_it(tmp_path, name):
    diagram = Diagram(name)
    node = diagram.add_node("body", name)
    diagram.add_edge(node, node, name)
    visible = to_text(diagram).splitlines()[0].removeprefix("loop ")
    path = draw(diagram, tmp_path / "loop.svg")
    for kind, expected in (("cluster", f"loop {visible}"), ("node", visible), ("edge", visible)):
        (group,) = svg_groups(path, kind)
        # Graphviz writes unbreakable spaces.
        assert [line.replace("\u00a0", " ") for line in svg_lines(group)] == [expected]


# --- port maps -----------------------------------------------------------------------------------


def test_a_port_map_is_drawn_from_its_inputs_to_its_outputs():
    assert tf_ti.draw(port_map(), [BackEdge(from_layer=2, to_layer=1)]) == textwrap.dedent(
        """\
        tensor_iterator
          outside
            input 0
              to input port 0
            input 1
              to input port 1 (initial)
            input 2
              to parameter 0
            output 0
              from output port 0
            output 1
              from output port 1
          iterators
            input port 0: axis=1, start=-1, end=0, stride=-2, part_size=2
              from input 0
              to parameter 2
          recurrences
            input port 1
              from input 1 (initial)
              back edge from result 2 (next)
              to parameter 1
          body
            parameter 0
              from input 2
              to body
            parameter 1
              from input port 1
              to body
            parameter 2
              from input port 0
              to body
            body
              from parameter 0, parameter 1, parameter 2
              to result 0, result 1, result 2
            result 0
              from body
              to output port 1
            result 1
              from body
              to output port 0
            result 2
              from body
              back edge to input port 1 (next)
          loop outputs
            output port 0: axis=0, start=0, end=-1, stride=1, part_size=3
              from result 1
              to output 0
            output port 1: last value
              from result 0
              to output 1"""
    )


def test_one_result_may_feed_several_ports():
    ports = PortMap(
        [InputPort(0, 0), InputPort(1, 1)], [OutputPort(0, 0), OutputPort(1, 0, axis=0)]
    )
    text = tf_ti.draw(ports, [BackEdge(0, 0), BackEdge(0, 1)])
    assert "back edge to input port 0 (next), input port 1 (next)" in text
    assert "to output port 0, output port 1" in text


def test_an_empty_port_map_has_a_body():
    assert tf_ti.draw(PortMap([], [])) == "tensor_iterator\n  body\n    body"


@needs_graphviz
def test_a_port_map_is_drawn_as_a_picture(tmp_path):
    path = tf_ti.draw(port_map(), [BackEdge(2, 1)], tmp_path / "ports.svg")
    labels = [svg_lines(node)[0] for node in svg_groups(path, "node")]
    assert {"input 0", "input port 0", "parameter 2", "output port 1", "output 1"} <= set(labels)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (([],), TypeError, r"port_map must be a PortMap, got \[\]"),
        ((port_map(), BackEdge(0, 1)), TypeError, "back_edges must be a list of BackEdge entries"),
        ((port_map(), [(0, 1)]), TypeError, r"back_edges must hold BackEdge entries, got \(0, 1\)"),
        ((port_map(), [BackEdge(0, 3)]), ValueError, "no input port leads to parameter 3"),
        ((port_map(), [BackEdge(-1, 1)]), ValueError, "a layer must not be negative"),
        ((port_map(), [BackEdge(0, 2)]), ValueError, "input port 0 .* is sliced"),
        (
            (port_map(), [BackEdge(0, 1), BackEdge(2, 1)]),
            ValueError,
            "2 back edges lead to parameter 1",
        ),
        ((port_map(), (), 3), TypeError, "path must be a str, a path or None, got 3"),
        ((port_map(), (), "a.jpg"), ValueError, r"must end in one of \.svg, .*, got 'a\.jpg'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        tf_ti.draw(*arguments)
