"""Drawings of diagrams: as texts, or in files."""

import os
import pathlib
import shutil

from tf_ti.loops.drawing import graphviz
from tf_ti.loops.drawing.diagram import Diagram
from tf_ti.loops.drawing.picture import to_svg
from tf_ti.loops.drawing.text import to_text

_SUFFIXES = (".svg", ".png", ".dot", ".txt")


def draw(diagram: Diagram, path: str | os.PathLike[str] | None = None) -> str:
    """Draws a loop.

    Args:
        diagram: the loop.
        path: a file that ends in .svg or .png for a picture, .dot for graphviz's source, .txt for a
            text. Pictures are graphviz's where that is installed; without it a .png is none.

    Returns:
        Without a path the text, else the path.

    Raises:
        TypeError: the path is no path.
        ValueError: the file name ends in something else.
        RuntimeError: graphviz failed, or is not there to draw a .png.
    """
    if path is None:
        return to_text(diagram)
    path = _checked(path)
    path.write_bytes(_content(diagram, path.suffix.lower()))
    return str(path)


def _checked(path: str | os.PathLike[str]) -> pathlib.Path:
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise TypeError(f"path must be a str, a path or None, got {path!r}")
    checked = pathlib.Path(path)
    if checked.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"path must end in one of {', '.join(_SUFFIXES)}, got {str(path)!r}")
    return checked


def _content(diagram: Diagram, suffix: str) -> bytes:
    if suffix == ".txt":
        return f"{to_text(diagram)}\n".encode()
    if suffix == ".dot":
        return f"{graphviz.to_dot(diagram)}\n".encode()
    dot = shutil.which("dot")
    if dot is not None:
        return graphviz.run(dot, suffix[1:], graphviz.to_dot(diagram))
    if suffix == ".png":
        raise RuntimeError(
            "a .png is drawn by graphviz's program dot, which is not installed; a .svg needs no "
            "other program"
        )
    return f"{to_svg(diagram)}\n".encode()
