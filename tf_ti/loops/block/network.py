"""Where loops are traced, and how what was traced becomes loop ops.

A loop's block is traced into a graph, in which iterators, recurrences and outputs are placeholders.
Loops that one `with` statement opens share that graph: which of them is inside which, and to which
an operation belongs, follows from the dataflow, as in TensorRT.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.block.building import Builder
from tf_ti.loops.block.layers import LoopNode, OutputLayer, Path
from tf_ti.loops.block.nesting import Nesting
from tf_ti.loops.tracing import (
    custom_gradients as _custom_gradients,
    eager as _eager,
    graphs as _graphs,
)


class Network:
    """The graph of loops that were opened together."""

    def __init__(self, name: str, make_sketch: Callable):
        self._make_sketch = make_sketch
        self.graph = _tf.FuncGraph(f"tf_ti_loop_{name}")
        self.graph.tf_ti_network = self
        self.loops: list[LoopNode] = []
        self.open: Path = ()
        self.outputs: dict[OutputLayer, Any] = {}  # who waits for the loops' outputs
        self.levels: dict[tf.Operation, Path] = {}  # in which loop an operation runs
        self.sketch: Any = None
        around = self.current()
        self.fuse = _eager.fusing(True) if around is None else around.fuse
        self._discarded: set[LoopNode] = set()
        # From which number of operations on which loops were open.
        self._events: list[tuple[int, Path]] = []
        self._was_recording = False
        self._order: dict[tf.Operation, float] = {}
        self._blocks: dict[tf.Operation, Path] = {}
        self._nesting: Nesting | None = None

    @classmethod
    def current(cls) -> "Network | None":
        """The network into whose graph operations go at present."""
        network = getattr(tf.compat.v1.get_default_graph(), "tf_ti_network", None)
        return network if not tf.executing_eagerly() else None

    def is_untouched(self) -> bool:
        """Whether nothing happened since the last loop was entered, not even to a tape."""
        is_same = self._was_recording == _tf.is_recording()
        return is_same and bool(self.open) and self._events[-1] == self._now()

    def _now(self) -> tuple[int, Path]:
        return len(self.graph.get_operations()), self.open

    def enter(self, name: str | None, fuse: bool) -> LoopNode:
        if name is None:
            names = {loop.name for network in self._networks() for loop in network.loops}
            free = (f"Loop_{k}" if k else "Loop" for k in itertools.count())
            name = next(candidate for candidate in free if candidate not in names)
        loop = LoopNode(name, self.open, fuse)
        self.loops.append(loop)
        self._set_open((*self.open, loop))
        self._was_recording = _tf.is_recording()
        return loop

    def _networks(self) -> Iterator["Network"]:
        """This one, and those around it."""
        graph = self.graph
        while graph is not None:
            if hasattr(graph, "tf_ti_network"):
                yield graph.tf_ti_network
            graph = getattr(graph, "outer_graph", None)

    def leave(self, loop: LoopNode) -> None:
        self._set_open(tuple(other for other in self.open if other is not loop))
        loop.end = self._events[-1][0]

    def is_discarded(self, loop: LoopNode) -> bool:
        return loop in self._discarded

    def discard(self, loop: LoopNode) -> None:
        """Forgets a loop whose block failed, and those inside."""
        for other in self.loops:
            if other is loop or loop in other.around:
                self._discarded.add(other)
        self.loops = [other for other in self.loops if other not in self._discarded]

    def _set_open(self, loops: Path) -> None:
        self.open = loops
        self._events.append(self._now())

    def placeholder(self, label: str, like: tf.Tensor, shape) -> tf.Tensor:
        """Stands for a layer's output."""
        with self.graph.as_default():
            name = label.rsplit(": ", 1)[1].replace(" ", "_")
            value = tf.compat.v1.placeholder(like.dtype, shape, name)
        _tf.copy_handle_data(like, value)
        return value

    # --- closing ---------------------------------------------------------------------------------

    def finish(self) -> dict[OutputLayer, tf.Tensor]:
        """Runs the loops, or adds them to the graph outside: the outputs of those in no other."""
        if not tf.executing_eagerly() and not _tf.is_recording():
            return self._build()
        # Who records gradients sees the call of a function, but no copied operations.
        layers = []

        def run_loops():
            outputs = self._build()
            layers.extend(outputs)
            return list(outputs.values())

        with _tf.stop_recording():
            function = _tf.make_concrete_function("tf_ti_loop", run_loops, ())
        values = function()
        _tf.forget_captures(self.graph)
        return dict(zip(layers, values))

    def _build(self) -> dict[OutputLayer, tf.Tensor]:
        self._find_blocks()
        self._replace_calls()
        self._nesting = Nesting(self.graph, self.loops, self._blocks)
        paths = self._nesting.paths
        self._assign_levels(paths)
        self.sketch = self._make_sketch(self, paths)
        values: dict[Any, tf.Tensor] = {}  # of outputs, by placeholder
        for loop in sorted(self.loops, key=lambda loop: -len(paths[loop])):
            _custom_gradients.find(self.graph)
            with self.graph.as_default(), tf.control_dependencies(None):
                Builder(self, loop, paths[loop], values).build()
        outputs = [o for loop in self.loops if len(paths[loop]) == 1 for o in loop.outputs]
        effects = self.detached_effects(())
        for variable in self.graph.variables:
            _tf.variable_accessed(variable)
        tensors = [values[o.value.ref()] for o in outputs]
        _custom_gradients.find(self.graph)
        # What a block waits for outside, the loops wait for.
        with tf.control_dependencies(self.graph.function_captures.control):
            copies = _graphs.copy_to_default_graph(self.graph, tensors, effects)
        return dict(zip(outputs, copies))

    def _replace_calls(self) -> None:
        """Replaces calls, those of inner blocks' loops too, by what the functions compute.

        And what has a custom gradient by what has all that this refers to as inputs.
        """
        _custom_gradients.find(self.graph)
        replaced: dict[Any, tf.Tensor] = {}
        for op in self.graph.get_operations():
            if not _graphs.is_call(op) and _custom_gradients.of(op) is None:
                continue
            before = len(self.graph.get_operations())
            with self.graph.as_default(), tf.control_dependencies(None):
                values = _graphs.copy_in_place(op)
            for made in self.graph.get_operations()[before:]:
                self._blocks[made] = self._blocks[op]
                self._order[made] = self._order[op]
            del self._blocks[op]
            replaced.update(zip([t.ref() for t in op.outputs], values))
        for loop in self.loops:
            loop.replace(lambda t: t if t is None else replaced.get(t.ref(), t))

    def _find_blocks(self) -> None:
        """In which blocks each operation was made."""
        ends = [end for end, _ in self._events[1:]] + [None]
        operations = self.graph.get_operations()
        for (begin, loops), end in zip(self._events, ends):
            for op in operations[begin:end]:
                self._blocks[op] = loops
        self._order = {op: i for i, op in enumerate(operations)}

    def _assign_levels(self, paths: dict[LoopNode, Path]) -> None:
        """Finds out in which loop each operation runs.

        That is the loop in whose block it was made, or one around it, where that uses the value.
        """
        levels: dict[tf.Operation, Path] = {}

        def demand(op: tf.Operation, level: Path | None) -> None:
            if level is not None:
                levels[op] = _common(levels[op], level) if op in levels else level

        for loop in self.loops:
            path = paths[loop]
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
            demand(op, self._block_path(op, paths))
            if op not in levels:
                # Nobody but itself says where an effect is wanted.
                demand(op, self._innermost(op, paths))
            self.levels[op] = () if self._is_plain_read(op) else levels[op]
            for tensor in op.inputs:
                demand(tensor.op, self.levels[op])
        for op, level in self.levels.items():
            for loop in self._nesting.inside.get(op, ()):
                if loop not in level:
                    raise ValueError(
                        f"{op.name!r} is computed inside {loop.label}, but used outside of it; "
                        "a loop output brings values out of a loop"
                    )

    def _open_paths(self, op: tf.Operation, paths: dict[LoopNode, Path]) -> list[Path]:
        """The loops in whose blocks an operation was made, but for those whose outputs it uses."""
        after = self._nesting.after.get(op, ())
        blocks = self._blocks.get(op, ())
        return [paths[loop] for loop in blocks if loop in paths and loop not in after]

    def _block_path(self, op: tf.Operation, paths: dict[LoopNode, Path]) -> Path | None:
        """The innermost loop in whose block an operation was made, if that is a single one."""
        known = self._open_paths(op, paths)
        innermost = max(known, key=len, default=())
        return innermost if all(path == innermost[: len(path)] for path in known) else None

    def _innermost(self, op: tf.Operation, paths: dict[LoopNode, Path]) -> Path:
        """Of several loops, all open, that whose values it uses, or the last one."""
        inside = [paths[loop] for loop in self._nesting.inside.get(op, ())]
        return max(inside, key=len) if inside else self._open_paths(op, paths)[-1]

    def _has_effects(self, op: tf.Operation) -> bool:
        is_discarded = any(loop in self._discarded for loop in self._blocks[op])
        return _tf.is_stateful(op) and not is_discarded and not self._is_plain_read(op)

    def _is_plain_read(self, op: tf.Operation) -> bool:
        """Whether it reads a variable from outside, which the loops only read."""
        if op.type != "ReadVariableOp" or op.inputs[0].op.type != "Placeholder":
            return False
        handle = op.inputs[0]
        return any(handle is p for _, p in self.graph.captures) and all(
            reader.type == "ReadVariableOp" for reader in handle.consumers()
        )

    # --- order -----------------------------------------------------------------------------------

    def level(self, op: tf.Operation) -> Path | None:
        return self.levels.get(op)

    def set_level(self, op: tf.Operation, level: Path, order: float) -> None:
        self.levels[op] = level
        self._order[op] = order

    def _ordered_effects(self, level: Path) -> list[tf.Operation]:
        """The operations of one loop that have effects, in the order in which they happen."""
        members = dict.fromkeys(
            op
            for op in self.graph.get_operations()
            if self.levels.get(op) == level and _tf.is_stateful(op) and not self._is_plain_read(op)
        )
        ordered: dict[tf.Operation, None] = {}
        for op in sorted(members, key=self._order.__getitem__):
            for earlier in _graphs.needed_operations((), op.inputs, follow_controls=False):
                if earlier in members:
                    ordered.setdefault(earlier)
            ordered.setdefault(op)
        return list(ordered)

    def detached_effects(self, level: Path) -> list[tf.Operation]:
        """The same, where none waits for what happens in another loop."""
        for op, own in self.levels.items():
            if own == level:
                _graphs.keep_controls(op, lambda other: self.levels.get(other) == level)
        return self._ordered_effects(level)


def _common(one: Path, other: Path) -> Path:
    """The innermost loop that both are inside of."""
    size = 0
    while size < min(len(one), len(other)) and one[size] is other[size]:
        size += 1
    return one[:size]
