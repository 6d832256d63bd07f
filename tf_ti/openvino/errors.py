"""The error of a file that cannot be used, and the quoting of names in its message."""

from collections.abc import Callable, Iterable
from typing import Any


class IRError(ValueError):
    """An IR cannot be used. The message names the file, the layer and the port."""

    __init__ = Exception.__init__  # lets AutoGraph raise the error again with the same type


def shown(text: object, most: int = 120) -> str:
    """Quotes text from a file for a message, cut to `most` characters."""
    quoted = repr(text)
    return quoted if len(quoted) <= most else f"{quoted[: most - 20]}...{quoted[-10:]}"


def some(names: Iterable[object], show: Callable[[Any], str] = shown, most: int = 5) -> str:
    """The first of some names, quoted, and the number of the others."""
    names = list(names)
    listed = ", ".join(map(show, names[:most]))
    return listed + (f" and {len(names) - most} more" if len(names) > most else "")


def ascii_name(text: str, others: str = "_.-", most: int = 100) -> str:
    """A name that TensorFlow accepts, close to one of the file. It begins with a letter."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in others) else "_" for c in text[:most])
    return kept if kept[:1].isalpha() else f"x{kept}"
