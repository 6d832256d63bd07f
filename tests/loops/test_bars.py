"""Pictures of bars: what they show, as an XML parser reads it."""

import xml.etree.ElementTree

import pytest

from tf_ti.loops.drawing import bars

SVG = "{http://www.w3.org/2000/svg}"
ROWS = [
    ("scan", [("before", 3), ("programs", 12), ("kernels", 2), ("elsewhere", 1)]),
    ("while_loop", [("kernels", 9)]),
]


def parts_of(picture):
    """The bars' parts: place and amount, as a reader is told, and the rectangle."""
    root = xml.etree.ElementTree.fromstring(picture)
    return [
        (rect.findtext(f"{SVG}title"), rect)
        for rect in root.iter(f"{SVG}rect")
        if rect.find(f"{SVG}title") is not None
    ]


def texts_of(picture):
    root = xml.etree.ElementTree.fromstring(picture)
    return [text.text for text in root.iter(f"{SVG}text")]


def test_a_bar_has_a_part_for_each_place_in_the_order_given():
    picture = bars.to_svg("Loops", ROWS, "operations")
    told = ["before: 3", "programs: 12", "kernels: 2", "elsewhere: 1", "kernels: 9"]
    assert [text for text, _ in parts_of(picture)] == told


def test_parts_lie_end_to_end_and_are_as_long_as_their_amounts():
    parts = [rect for _, rect in parts_of(bars.to_svg("Loops", ROWS, "operations"))]
    lengths = [float(rect.get("width")) for rect in parts]
    assert lengths == pytest.approx([n * lengths[1] / 12 for n in (3, 12, 2, 1, 9)], abs=0.1)
    ends = [float(rect.get("x")) + length for rect, length in zip(parts, lengths)]
    assert [float(rect.get("x")) for rect in parts[1:4]] == pytest.approx(ends[:3], abs=0.2)


def test_a_place_has_one_colour_in_all_rows_and_pictures():
    colors = {}
    for rows in (ROWS, ROWS[1:], ROWS[::-1]):
        for text, rect in parts_of(bars.to_svg("Loops", rows, "operations")):
            colors.setdefault(text.split(":")[0], set()).add(rect.get("fill"))
    assert [len(found) for found in colors.values()] == [1] * 4
    assert len(set.union(*colors.values())) == 4


def test_the_legend_has_each_place_once_and_each_row_its_name_and_its_sum():
    texts = texts_of(bars.to_svg("Loops", ROWS, "operations"))
    assert texts[-4:] == ["before", "programs", "kernels", "elsewhere"]
    assert {"Loops", "scan", "while_loop", "18 operations", "9 operations"} <= set(texts)


@pytest.mark.parametrize("rows", [[], [("loop", [])], [("loop", [("before", 0)])]])
def test_nothing_has_no_parts(rows):
    picture = bars.to_svg("Loops", rows, "operations")
    assert parts_of(picture) == []
    assert texts_of(picture)[1:] == [name for name, _ in rows] + ["0 operations"] * len(rows)


def test_names_with_markup_and_what_cannot_be_seen_are_text():
    name = '<b>"&amp;"</b>'
    picture = bars.to_svg(name, [(name, [(f"{name}\0", 0.5)])], name)
    assert texts_of(picture) == [name, name, "0.5", f"0.5 {name}", f"{name}\\x00"]


def test_all_texts_fit_the_picture():
    rows = [("a long name " * 20, [("before", 1), ("a place " * 9, 123456)])]
    picture = bars.to_svg("A title that is long", rows, "operations of some kind")
    root = xml.etree.ElementTree.fromstring(picture)
    least = 0.4  # of a font's size, for a character
    for text in root.iter(f"{SVG}text"):
        length = least * float(text.get("font-size")) * len(text.text)
        share = 0.5 if text.get("text-anchor") == "middle" else 1
        assert float(text.get("x")) + share * length < float(root.get("width"))
