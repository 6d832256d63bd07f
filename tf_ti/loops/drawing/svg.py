"""What all pictures share: their ground, their font, how shapes and numbers are written."""

import math
from xml.etree import ElementTree

from tf_ti.loops.drawing import colors

Element = ElementTree.Element


def picture(title: str, width: float, height: float) -> Element:
    """An empty picture, which readers for the blind call by its title."""
    width, height = math.ceil(width), math.ceil(height)
    root = Element("svg")
    _set(
        root,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        font_family="Helvetica, Arial, sans-serif",
        fill=colors.INK,
        style="max-width: 100%; height: auto",
    )
    add(root, "title", title)
    frame = {"width": width - 1, "height": height - 1, "rx": 8}
    add(root, "rect", x=0.5, y=0.5, **frame, fill=colors.GROUND, stroke=colors.EDGE)
    return root


def add(
    parent: Element, tag: str, text: str | None = None, /, **attributes: str | float
) -> Element:
    """Adds an element: `font_size` in Python is the attribute font-size."""
    element = ElementTree.SubElement(parent, tag)
    element.text = text
    _set(element, **attributes)
    return element


def add_text(
    parent: Element, text: str, x: float, y: float, size: float, /, **attributes: str | float
) -> Element:
    """Adds a line of text: y is that of its letters' feet."""
    return add(parent, "text", text, x=x, y=y, font_size=size, **attributes)


def to_string(root: Element) -> str:
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode")


def number(value: float) -> str:
    """A number in as few characters as a tenth of a pixel needs."""
    return f"{round(value, 1):g}" if abs(value) < 1e5 else f"{value:.0f}"


def _set(element: Element, **attributes: str | float) -> None:
    for name, value in attributes.items():
        said = value if isinstance(value, str) else number(value)
        element.set(name.replace("_", "-"), said)
