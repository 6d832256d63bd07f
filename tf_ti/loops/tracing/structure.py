"""Nested structures of tensors, as keys of a cache and with a name for every leaf.

Structures, and equal containers, are those of `tf.nest`; but a dict may have keys
that cannot be sorted, a `range` is a tensor, and None stands for no tensor.
"""

import collections
import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf


class Structure:
    """Containers, and their contents.

    Containers are made anew only by `pack`: those of a user may take nothing but tensors.

    Attributes:
        paths: for each leaf the end of its name in errors, after the name of the whole.
        leaves: all that is in the containers, but None.
        kinds: the containers, hashable: equal where `tf.nest` takes them for the same.
    """

    def __init__(self, nested: Any):
        self._nested = nested
        self.paths: list[str] = []
        self.leaves: list[Any] = []
        self.kinds = self._visit(nested, "")

    def _visit(self, node: Any, path: str) -> Hashable:
        kind, parts = _take_apart(node)
        if kind is not None:
            return (kind, *(self._visit(part, path + name) for name, part in parts))
        if node is not None:
            self.paths.append(path)
            self.leaves.append(node)
        return node is not None

    @property
    def kind(self) -> str:
        """The name of the outermost container."""
        return type(self._nested).__name__

    @property
    def key(self) -> Hashable:
        """All of it, where the leaves are hashable."""
        return self.kinds, tuple(self.leaves)

    def pack(self, leaves: Sequence[Any]) -> Any:
        """The same containers around other leaves."""
        return pack(self._nested, iter(leaves))

    def with_leaves(self, leaves: Sequence[Any]) -> "Structure":
        made = copy.copy(self)
        made.leaves = list(leaves)
        return made

    def map(self, function: Callable[[Any], Any]) -> "Structure":
        return self.with_leaves([function(leaf) for leaf in self.leaves])

    def match(self, name: str, other: Any, is_whole: bool = True) -> tuple[list[Any], str | None]:
        """The leaves' counterparts in another structure, or the difference of the containers.

        Args:
            name: the name that errors give the whole.
            other: nested like this structure.
            is_whole: its leaves are in those places; else there may be anything.

        Returns:
            The leaves, and None; or some of them, and a description of both structures with the
            first place where they differ.
        """
        found: list[Any] = []
        where = _match(self._nested, other, name, is_whole, found)
        if where is None:
            return found, None
        return found, f"expected {_show(self._nested)}, got {_show(other)}: {where}"


def _take_apart(node: Any) -> tuple[Hashable, list[tuple[str, Any]]]:
    """The kind of a container, and its parts with their names in errors; (None, []) of others.

    The parts are in the order in which `tf.nest` flattens.
    """
    if isinstance(node, range) or not tf.nest.is_nested(node):
        return None, []
    if isinstance(node, Mapping):
        keys = _sorted_keys(node)
        return (Mapping, tuple(keys)), [(f"[{key!r}]", node[key]) for key in keys]
    parts = [
        (f".{key}" if isinstance(key, str) else f"[{key}]", part)
        for key, part in _tf.nest_items(node)
    ]
    kind = node.__class__  # the wrapped one's, where a wrapper stands for it
    if isinstance(node, (list, collections.abc.MappingView)):
        return list, parts
    if kind.__bases__ == (tuple,) and hasattr(kind, "_fields"):
        return (kind.__name__, kind._fields), parts
    return kind, parts


def _sorted_keys(mapping: Mapping[Any, Any]) -> list[Any]:
    try:
        return sorted(mapping)
    except TypeError:
        return sorted(mapping, key=lambda key: (type(key).__qualname__, repr(key)))


def pack(node: Any, leaves: Iterator[Any]) -> Any:
    """The same containers around other leaves."""
    if type(node) is tuple or type(node) is list:  # as most are, at less cost
        return type(node)([pack(part, leaves) for part in node])
    if isinstance(node, tf.Tensor):
        return next(leaves)
    kind, parts = _take_apart(node)
    if kind is None:
        return None if node is None else next(leaves)
    packed = [pack(part, leaves) for _, part in parts]
    if not isinstance(node, MutableMapping):
        return _tf.nest_like(node, packed)
    # As tf.nest does it, which wants keys that can be sorted.
    values = dict(zip(_sorted_keys(node), packed))
    made = type(node)()
    if type(node) is collections.defaultdict:
        made = collections.defaultdict(node.default_factory)
    for key in node:
        made[key] = values[key]
    return made


def _match(expected: Any, got: Any, path: str, is_whole: bool, found: list[Any]) -> str | None:
    kind, parts = _take_apart(expected)
    if kind is None and not is_whole:
        found += [] if expected is None else [got]
        return None
    other, others = _take_apart(got)
    if kind != other or len(parts) != len(others) or (expected is None) != (got is None):
        here = _name(expected)
        there = _name(got) if is_whole or other is not None else f"a {_type_name(got)}"
        there = f"another {there.removeprefix('a ')}" if here == there else there
        return f"{path} must be {here}, not {there}"
    if kind is None:
        found += [] if expected is None else [got]
    for (name, part), (_, other_part) in zip(parts, others):
        where = _match(part, other_part, path + name, is_whole, found)
        if where is not None:
            return where
    return None


def _name(node: Any) -> str:
    """The name of a container, or a leaf, in messages."""
    kind, parts = _take_apart(node)
    if kind is None:
        return "None" if node is None else "a tensor"
    made_of = f"{len(parts)}"
    if isinstance(node, Mapping):
        made_of = f"keys {', '.join(map(repr, _sorted_keys(node)))}" if parts else "no keys"
    return f"a {_type_name(node)} of {made_of}"


def _type_name(node: Any) -> str:
    kind = type(node)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return module + kind.__qualname__


def _show(node: Any) -> str:
    """The containers, with their types, around a * for each leaf."""
    kind, parts = _take_apart(node)
    if kind is None:
        return "None" if node is None else "*"
    shown = [_show(part) for _, part in parts]
    if isinstance(node, Mapping):
        items = zip(_sorted_keys(node), shown)
        shown_all = "{" + ", ".join(f"{key!r}: {part}" for key, part in items) + "}"
        return shown_all if type(node) is dict else f"{type(node).__name__}({shown_all})"
    if type(node) is tuple:
        return f"({', '.join(shown)}{',' if len(shown) == 1 else ''})"
    joined = f"[{', '.join(shown)}]"
    if type(node) is list:
        return joined
    named = [
        f"{name[1:]}={part}" if name.startswith(".") else part
        for (name, _), part in zip(parts, shown)
    ]
    is_sequence = isinstance(node, Sequence) and not hasattr(node, "_fields")
    return f"{type(node).__name__}({joined if is_sequence else ', '.join(named)})"
