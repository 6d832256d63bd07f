"""Nested structures of tensors, as keys of a cache and with a name for every leaf."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf


class Structure:
    """A nested structure whose leaves are hashable or None; None stands for no tensor.

    Two are equal where their containers and leaves are.
    """

    def __init__(self, nested: Any):
        self.nested = nested
        self._leaves: list[tuple[str, Any]] = []
        self._key = self._visit(nested, "")

    def _visit(self, node: Any, path: str):
        if isinstance(node, Mapping):
            # In the order in which tf.nest flattens.
            keys = sorted(node)
            children = [self._visit(node[key], f"{path}[{key!r}]") for key in keys]
            return (type(node), tuple(keys), *children)
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            fields = [self._visit(getattr(node, f), f"{path}.{f}") for f in node._fields]
            return (type(node), *fields)
        if isinstance(node, (list, tuple)):
            return (type(node), *(self._visit(n, f"{path}[{i}]") for i, n in enumerate(node)))
        if node is not None:
            self._leaves.append((path, node))
        return node

    def __eq__(self, other) -> bool:
        return isinstance(other, Structure) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self._leaves]

    @property
    def leaves(self) -> list[Any]:
        return [leaf for _, leaf in self._leaves]

    def pack(self, leaves: Sequence[Any]) -> Any:
        """The same containers around other leaves."""
        remaining = iter(leaves)
        flat = [None if leaf is None else next(remaining) for leaf in tf.nest.flatten(self.nested)]
        return tf.nest.pack_sequence_as(self.nested, flat)

    def map(self, function: Callable[[Any], Any]) -> "Structure":
        return Structure(self.pack([function(leaf) for leaf in self.leaves]))

    def containers(self) -> "Structure":
        return self.map(lambda leaf: "*")
