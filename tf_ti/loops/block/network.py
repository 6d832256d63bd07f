"""Networks of loops: they are traced together, and become loop ops together.

A loop's block is traced into a graph, in which iterators, recurrences and outputs are placeholders.
Loops that one `with` statement opens share that graph: which of them is inside which, and to which
an operation belongs, follows from the dataflow, as in TensorRT.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import passes as _passes
from tf_ti.loops.block import building as _building
from tf_ti.loops.block.layers import LoopNode, OutputLayer, Path
from tf_ti.loops.block.levels import Levels
from tf_ti.loops.block.sketch import Sketch
from tf_ti.loops.passes.step import Fuse
from tf_ti.loops.tracing import custom_gradients as _custom_gradients, graphs as _graphs


class Network:
    """The graph of loops that were opened together."""

    def __init__(self, name: str):
        self.graph = _tf.FuncGraph(f"tf_ti_loop_{name}")
        self.graph.tf_ti_network = self
        self.loops: list[LoopNode] = []
        self.open: Path = ()
        self.sketch: Sketch | None = None  # once the loops are built
        around = self.current()
        self._fuse: Fuse = _passes.fusing(True) if around is None else around._fuse
        self._discarded: set[LoopNode] = set()
        # From which number of operations on which loops were open.
        self._events: list[tuple[int, Path]] = []
        self._was_recording = False
        self._order: dict[tf.Operation, float] = {}
        self._blocks: dict[tf.Operation, Path] = {}

    @classmethod
    def current(cls) -> "Network | None":
        """The network into whose graph operations go at present."""
        network = getattr(tf.compat.v1.get_default_graph(), "tf_ti_network", None)
        return network if not tf.executing_eagerly() else None

    def is_untouched(self) -> bool:
        """True if nothing happened since the last loop was entered, not even to a tape."""
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
        graph: tf.Graph | None = self.graph
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

    def placeholder(self, label: str, like: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
        """Stands for a layer's output."""
        with self.graph.as_default(), _tf.callbacks_paused(True):
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
        layers: list[OutputLayer] = []

        def run_loops() -> list[tf.Tensor]:
            outputs = self._build()
            layers.extend(outputs)
            return list(outputs.values())

        with _tf.stop_recording():
            function = _tf.make_concrete_function("tf_ti_loop", run_loops, ())
        with _tf.Interruptible():
            values = function()
        _tf.forget_captures(self.graph)
        return dict(zip(layers, values))

    def _build(self) -> dict[OutputLayer, tf.Tensor]:
        self._find_blocks()
        self._replace_calls()
        levels = Levels(self.graph, self.loops, self._blocks, self._order, self._discarded)
        paths = levels.paths
        self.sketch = Sketch(levels)
        values: dict[Any, tf.Tensor] = {}  # of outputs, by placeholder
        for loop in sorted(self.loops, key=lambda loop: -len(paths[loop])):
            _custom_gradients.find(self.graph)
            with self.graph.as_default(), tf.control_dependencies(None):
                self._add(loop, levels, values)
        outputs = [o for loop in self.loops if len(paths[loop]) == 1 for o in loop.outputs]
        effects = levels.detached_effects(())
        for variable in self.graph.variables:
            _tf.variable_accessed(variable)
        tensors = [values[o.value.ref()] for o in outputs]
        _custom_gradients.find(self.graph)
        # The loops wait for all outside that a block waits for.
        with tf.control_dependencies(self.graph.function_captures.control):
            copies = _graphs.copy_to_default_graph(self.graph, tensors, effects)
        return dict(zip(outputs, copies))

    def _add(self, loop: LoopNode, levels: Levels, values: dict[Any, tf.Tensor]) -> None:
        """Makes one loop an operation of the graph, if it has outputs or effects."""
        before = len(self.graph.get_operations())
        traced = _building.build(loop, levels, values)
        if traced is None:
            return
        fuse = self._fuse if loop.fuse else Fuse.NOTHING
        outcome = _passes.run(traced, fuse, name=loop.name if _is_scope(loop.name) else "Loop")
        loop.notes = outcome.notes
        for op in self.graph.get_operations()[before:]:
            # After all that its block did, and before all that came next.
            levels.set(op, levels.paths[loop][:-1], loop.end - 0.5)
        made = dict(zip([layer.value.ref() for layer in loop.outputs], outcome.outputs))
        for layer, tensor in zip(loop.outputs, outcome.outputs):
            tensor.set_shape(layer.value.shape)
        values |= made
        _graphs.replace(made)

    def _replace_calls(self) -> None:
        """Replaces calls, those of inner blocks' loops too, by the functions' operations.

        And operations with custom gradients by such that have all that these refer to as inputs.
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


def _is_scope(name: str) -> bool:
    return name.isascii() and name.replace("_", "").isalnum() and not name.startswith("_")
