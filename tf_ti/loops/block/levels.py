"""The loop in which each operation of a network runs, and the order of effects in it."""

from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.block.layers import LoopNode, Path
from tf_ti.loops.block.nesting import Nesting
from tf_ti.loops.tracing import graphs as _graphs


class Levels:
    """The levels of a network's operations: the loops that each is inside of.

    That is the loop in whose block it was made, or one around it, where that uses the value.

    Args:
        graph: the network's.
        loops: its loops.
        blocks: by operation, the loops in whose blocks it was made.
        order: by operation, its place in the program.
        without_effects: loops whose blocks failed.

    Attributes:
        graph: the network's.
        paths: for each loop those that it is inside of, and itself.
    """

    def __init__(
        self,
        graph: _tf.FuncGraph,
        loops: Sequence[LoopNode],
        blocks: Mapping[tf.Operation, Path],
        order: Mapping[tf.Operation, float],
        without_effects: Iterable[LoopNode],
    ):
        self.graph = graph
        self._blocks, self._order = blocks, dict(order)
        self._nesting = Nesting(graph, loops, blocks)
        self.paths = self._nesting.paths
        self._without_effects = frozenset(without_effects)
        self._levels: dict[tf.Operation, Path] = {}
        self._assign(loops)

    def items(self) -> Iterable[tuple[tf.Operation, Path]]:
        return self._levels.items()

    def of(self, op: tf.Operation) -> Path | None:
        return self._levels.get(op)

    def set(self, op: tf.Operation, level: Path, order: float) -> None:
        self._levels[op] = level
        self._order[op] = order

    def detached_effects(self, level: Path) -> list[tf.Operation]:
        """The operations of one loop that have effects, in the order in which they happen.

        None of them waits any more for an operation of another loop.
        """
        for op, own in self._levels.items():
            if own == level:
                _graphs.keep_controls(op, lambda other: self._levels.get(other) == level)
        return self._ordered_effects(level)

    def _assign(self, loops: Sequence[LoopNode]) -> None:
        levels: dict[tf.Operation, Path] = {}

        def demand(op: tf.Operation, level: Path | None) -> None:
            if level is not None:
                levels[op] = _common(levels[op], level) if op in levels else level

        for loop in loops:
            path = self.paths[loop]
            for what, tensor in loop.given():
                if loop in self._nesting.inside.get(tensor.op, ()):
                    raise ValueError(f"{what} comes from inside the loop: {tensor.name!r}")
                demand(tensor.op, path[:-1])
            for _, tensor in loop.results():
                demand(tensor.op, path)
        effects = [op for op in self._blocks if self._has_effects(op)]
        given = [placeholder for _, placeholder in self.graph.captures]
        needed = _graphs.needed_operations(given, (), [*levels, *effects], follow_controls=False)
        for op in reversed(needed):
            demand(op, self._block_path(op))
            if op not in levels:
                # Nobody but itself says where an effect is wanted.
                demand(op, self._innermost(op))
            self._levels[op] = () if self._is_plain_read(op) else levels[op]
            for tensor in op.inputs:
                demand(tensor.op, self._levels[op])
        for op, level in self._levels.items():
            for loop in self._nesting.inside.get(op, ()):
                if loop not in level:
                    raise ValueError(
                        f"{op.name!r} is computed inside {loop.label}, but used outside of it; "
                        "a loop output brings values out of a loop"
                    )

    def _open_paths(self, op: tf.Operation) -> list[Path]:
        """The loops in whose blocks an operation was made, but for those whose outputs it uses."""
        after = self._nesting.after.get(op, ())
        blocks = self._blocks.get(op, ())
        return [self.paths[loop] for loop in blocks if loop in self.paths and loop not in after]

    def _block_path(self, op: tf.Operation) -> Path | None:
        """The innermost loop in whose block an operation was made, if that is a single one."""
        known = self._open_paths(op)
        innermost = max(known, key=len, default=())
        return innermost if all(path == innermost[: len(path)] for path in known) else None

    def _innermost(self, op: tf.Operation) -> Path:
        """Of several loops, all open, that whose values it uses, or the last one."""
        inside = [self.paths[loop] for loop in self._nesting.inside.get(op, ())]
        return max(inside, key=len) if inside else self._open_paths(op)[-1]

    def _has_effects(self, op: tf.Operation) -> bool:
        if not self._without_effects.isdisjoint(self._blocks[op]):
            return False
        return _tf.is_stateful(op) and not self._is_plain_read(op)

    def _is_plain_read(self, op: tf.Operation) -> bool:
        """True if it reads a variable from outside, which the loops only read."""
        if op.type != "ReadVariableOp" or op.inputs[0].op.type != "Placeholder":
            return False
        handle = op.inputs[0]
        return any(handle is p for _, p in self.graph.captures) and all(
            reader.type == "ReadVariableOp" for reader in handle.consumers()
        )

    def _ordered_effects(self, level: Path) -> list[tf.Operation]:
        members = dict.fromkeys(
            op
            for op in self.graph.get_operations()
            if self._levels.get(op) == level and _tf.is_stateful(op) and not self._is_plain_read(op)
        )
        ordered: dict[tf.Operation, None] = {}
        for op in sorted(members, key=self._order.__getitem__):
            for earlier in _graphs.needed_operations((), op.inputs, follow_controls=False):
                if earlier in members:
                    ordered.setdefault(earlier)
            ordered.setdefault(op)
        return list(ordered)


def _common(one: Path, other: Path) -> Path:
    """The innermost loop that both are inside of."""
    size = 0
    while size < min(len(one), len(other)) and one[size] is other[size]:
        size += 1
    return one[:size]
