"""Where loops are traced, and how what was traced becomes loop ops.

A loop's block is traced into a graph, in which iterators, recurrences and outputs are placeholders.
Loops that one `with` statement opens share that graph: which of them is inside which, and to which
an operation belongs, follows from the dataflow, as in TensorRT.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import body as _body, graphs as _graphs, spec as _spec

Path = tuple["LoopNode", ...]  # loops, each inside the one before


@dataclasses.dataclass(eq=False)
class Layer:
    """A boundary layer of a loop.

    Attributes:
        label: what an error calls it.
        loop: the loop.
        value: the placeholder that stands for its output.
        given: tensors from outside of the loop, by what they are.
    """

    label: str
    loop: "LoopNode"
    value: tf.Tensor
    given: dict[str, tf.Tensor]


@dataclasses.dataclass(eq=False)
class IteratorLayer(Layer):
    axis: int
    reverse: bool

    def details(self) -> tuple[str, ...]:
        return (f"axis={self.axis}", *(["reverse"] if self.reverse else []))


@dataclasses.dataclass(eq=False)
class RecurrenceLayer(Layer):
    next: tf.Tensor | None = None

    def details(self) -> tuple[str, ...]:
        return ()


@dataclasses.dataclass(eq=False)
class OutputLayer(Layer):
    kind: str  # "last", "concatenate", "reverse"
    tensor: tf.Tensor
    recurrence: RecurrenceLayer | None
    axis: int

    def details(self) -> tuple[str, ...]:
        if self.kind == "last":
            return ("LAST_VALUE",)
        return (self.kind.upper(), f"axis={self.axis}")


@dataclasses.dataclass(eq=False)
class LoopNode:
    """One loop of a network.

    Attributes:
        name: its name.
        around: the loops of the network whose blocks its own stands in, the outermost first.
        end: how many operations there were when its block was closed.
        used: the tensors given to its layers, with the loops whose blocks were open then.
    """

    name: str
    around: Path
    count: tf.Tensor | None = None
    condition: tf.Tensor | None = None
    iterators: list[IteratorLayer] = dataclasses.field(default_factory=list)
    recurrences: list[RecurrenceLayer] = dataclasses.field(default_factory=list)
    outputs: list[OutputLayer] = dataclasses.field(default_factory=list)
    end: int = 0
    used: list[tuple[tf.Tensor, Path]] = dataclasses.field(default_factory=list)

    @property
    def label(self) -> str:
        return f"loop {self.name!r}"

    @property
    def limit_label(self) -> str:
        return f"{self.label}: trip limit"

    def given(self) -> list[tuple[str, tf.Tensor]]:
        """What comes from outside: (what it is, tensor)."""
        layers = [*self.iterators, *self.recurrences, *self.outputs]
        found = [
            (f"{layer.label}: {what}", tensor)
            for layer in layers
            for what, tensor in layer.given.items()
        ]
        if self.count is not None:
            found.append((f"{self.limit_label}: the count", self.count))
        return found

    def replace(self, value_of: Callable) -> None:
        """Gives the layers other tensors."""
        self.count, self.condition = value_of(self.count), value_of(self.condition)
        for layer in (*self.iterators, *self.recurrences, *self.outputs):
            layer.given = {what: value_of(t) for what, t in layer.given.items()}
        for recurrence in self.recurrences:
            recurrence.next = value_of(recurrence.next)
        for output in self.outputs:
            output.tensor = value_of(output.tensor)

    def results(self) -> list[tuple[str, tf.Tensor]]:
        """What each iteration must compute: (what it is, tensor)."""
        found = [(f"{r.label}: the second input", r.next) for r in self.recurrences]
        found += [(f"{o.label}: the tensor", o.tensor) for o in self.outputs]
        if self.condition is not None:
            found.append((f"{self.limit_label}: the condition", self.condition))
        return found


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
        """Whether nothing happened since the last loop was entered, not even to a tape."""
        is_same = self._was_recording == _tf.is_recording()
        return is_same and bool(self.open) and self._events[-1] == self._now()

    def _now(self) -> tuple[int, Path]:
        return len(self.graph.get_operations()), self.open

    def enter(self, name: str | None) -> LoopNode:
        if name is None:
            names = {loop.name for network in self._networks() for loop in network.loops}
            free = (f"Loop_{k}" if k else "Loop" for k in itertools.count())
            name = next(candidate for candidate in free if candidate not in names)
        loop = LoopNode(name, self.open)
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

        @tf.autograph.experimental.do_not_convert
        def run_loops():
            outputs = self._build()
            layers.extend(outputs)
            return list(outputs.values())

        with _tf.stop_recording():
            function = tf.function(run_loops, autograph=False).get_concrete_function()
        return dict(zip(layers, function()))

    def _build(self) -> dict[OutputLayer, tf.Tensor]:
        self._find_blocks()
        self._inline_calls()
        paths = self._nest()
        self._assign_levels(paths)
        self.sketch = self._make_sketch(self, paths)
        values: dict[Any, tf.Tensor] = {}  # of outputs, by placeholder
        for loop in sorted(self.loops, key=lambda loop: -len(paths[loop])):
            with self.graph.as_default(), tf.control_dependencies(None):
                _Builder(self, loop, paths[loop], values).build()
        outputs = [o for loop in self.loops if len(paths[loop]) == 1 for o in loop.outputs]
        effects = self.detached_effects(())
        for variable in self.graph.variables:
            _tf.variable_accessed(variable)
        tensors = [values[o.value.ref()] for o in outputs]
        return dict(zip(outputs, _graphs.copy_to_default_graph(self.graph, tensors, effects)))

    def _inline_calls(self) -> None:
        """Replaces calls, those of inner blocks' loops too, by what the functions compute."""
        replaced: dict[Any, tf.Tensor] = {}
        for op in self.graph.get_operations():
            if not _graphs.is_call(op):
                continue
            before = len(self.graph.get_operations())
            with self.graph.as_default(), tf.control_dependencies(None):
                values = _graphs.inline_in_place(op)
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

    def _nest(self) -> dict[LoopNode, Path]:
        """For each loop those that it is inside of, and itself."""
        self._inside: dict[tf.Operation, frozenset] = {}
        self._after: dict[tf.Operation, frozenset] = {}
        around: dict[LoopNode, frozenset] = {loop: frozenset() for loop in self.loops}
        self._flow(around)
        # A block says something only where the dataflow does not say the opposite, and where
        # something happened after it: else one `with` statement made both.
        for loop in self.loops:
            for other in loop.around:
                if other in around and other.end > loop.end and self._may_be(loop, other, around):
                    around[loop] |= {other} | around[other]
        self._flow(around)
        # Who uses values of two loops is inside both, so one of these is inside the other.
        for loop in self.loops:
            for inner, outer in itertools.permutations(self.loops, 2):
                if (
                    {inner, outer} <= around[loop]
                    and inner not in around[outer]
                    and outer not in around[inner]
                    and outer in inner.around
                    and self._may_be(inner, outer, around)
                ):
                    around[inner] |= {outer} | around[outer]
        self._flow(around)
        self._check_nesting(around)
        self._check_blocks()
        return {
            loop: (*sorted(around[loop], key=lambda other: len(around[other])), loop)
            for loop in self.loops
        }

    def _may_be(self, inner: LoopNode, outer: LoopNode, around: dict[LoopNode, frozenset]) -> bool:
        """Whether no value that one gives to the other forbids that it is inside the other."""
        needs = [t for _, t in outer.given()]
        uses = [t for _, t in (*inner.given(), *inner.results())]
        return (
            inner not in around[outer]
            and not any(inner in self._after.get(t.op, ()) for t in needs)
            and not any(outer in self._after.get(t.op, ()) for t in uses)
        )

    def _check_nesting(self, around: dict[LoopNode, frozenset]) -> None:
        for first, second in itertools.combinations(self.loops, 2):
            if first in around[second] and second in around[first]:
                raise ValueError(
                    f"{first.label} and {second.label} do not nest cleanly: each uses a value from "
                    f"inside the other one: {first.label} uses {self._witness(first, second)}, "
                    f"{second.label} uses {self._witness(second, first)}"
                )
        for loop in self.loops:
            for one, other in itertools.combinations(self.loops, 2):
                if {one, other} <= around[loop] and one not in around[other] | {other}:
                    if other not in around[one]:
                        raise ValueError(
                            f"{loop.label} uses {self._witness(loop, one)} of {one.label} and "
                            f"{self._witness(loop, other)} of {other.label}, of which neither is "
                            "inside the other: they do not nest cleanly"
                        )

    def _layers(self, loop: LoopNode) -> list[Layer]:
        return [*loop.iterators, *loop.recurrences, *loop.outputs]

    def _flow(self, around: dict[LoopNode, frozenset]) -> None:
        """Carries on, from tensor to tensor and loop to loop, what is computed inside which.

        And after which: whose outputs it depends on.
        """
        values = {layer.value.op: layer for loop in self.loops for layer in self._layers(loop)}
        operations = self.graph.get_operations()
        nothing: frozenset = frozenset()

        def of_all(found: dict, tensors) -> frozenset:
            return nothing.union(*(found.get(t.op, nothing) for t in tensors))

        changed = True
        while changed:
            changed = False
            for op in operations:
                layer = values.get(op)
                if layer is None:
                    inside, after = of_all(self._inside, op.inputs), of_all(self._after, op.inputs)
                elif isinstance(layer, OutputLayer):
                    inside = around[layer.loop]
                    used = [t for _, t in (*layer.loop.given(), *layer.loop.results())]
                    after = of_all(self._after, used) | {layer.loop}
                else:
                    inside = around[layer.loop] | {layer.loop}
                    after = of_all(self._after, layer.given.values())
                if (inside, after) != (self._inside.get(op, nothing), self._after.get(op, nothing)):
                    self._inside[op], self._after[op] = inside, after
                    changed = True
            for loop in self.loops:
                used = [t for _, t in (*loop.given(), *loop.results())]
                found = around[loop] | of_all(self._inside, used)
                found = found.union(*(around[other] for other in found)) - {loop}
                if found != around[loop]:
                    around[loop] = found
                    changed = True

    def _witness(self, loop: LoopNode, other: LoopNode) -> str:
        """A tensor of `other` that `loop` uses."""
        for what, tensor in (*loop.given(), *loop.results()):
            if other in self._inside.get(tensor.op, ()):
                return f"{tensor.name!r} ({what})"
        return "what a loop around it uses"

    def _check_blocks(self) -> None:
        """What a loop computes is there for as long as its block is open."""
        used = [(t, blocks) for op, blocks in self._blocks.items() for t in op.inputs]
        for tensor, blocks in used + [pair for loop in self.loops for pair in loop.used]:
            for loop in self._inside.get(tensor.op, ()):
                if loop not in blocks:
                    raise ValueError(
                        f"{tensor.name!r} is used after the block of {loop.label}, inside which it "
                        "is computed, was closed; a loop output brings values out of a loop"
                    )

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
                if loop in self._inside.get(tensor.op, ()):
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
            for loop in self._inside.get(op, ()):
                if loop not in level:
                    raise ValueError(
                        f"{op.name!r} is computed inside {loop.label}, but used outside of it; "
                        "a loop output brings values out of a loop"
                    )

    def _open_paths(self, op: tf.Operation, paths: dict[LoopNode, Path]) -> list[Path]:
        """The loops in whose blocks an operation was made, but for those whose outputs it uses."""
        after = self._after.get(op, ())
        blocks = self._blocks.get(op, ())
        return [paths[loop] for loop in blocks if loop in paths and loop not in after]

    def _block_path(self, op: tf.Operation, paths: dict[LoopNode, Path]) -> Path | None:
        """The innermost loop in whose block an operation was made, if that is a single one."""
        known = self._open_paths(op, paths)
        innermost = max(known, key=len, default=())
        return innermost if all(path == innermost[: len(path)] for path in known) else None

    def _innermost(self, op: tf.Operation, paths: dict[LoopNode, Path]) -> Path:
        """Of several loops, all open, that whose values it uses, or the last one."""
        inside = [paths[loop] for loop in self._inside.get(op, ())]
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


class _Builder:
    """Makes one loop an operation."""

    def __init__(self, network: Network, loop: LoopNode, path: Path, values: dict):
        self.network, self.loop, self.path, self.values = network, loop, path, values

    def _resolve(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor, or what has taken the place of an inner loop's output."""
        return self.values.get(tensor.ref(), tensor)

    def build(self) -> None:
        loop = self.loop
        effects = self.network.detached_effects(self.path)
        if not loop.outputs and not effects:
            return
        recurrences, needed = self._live(effects)
        used = {t.ref() for op in needed for t in op.inputs}
        used |= {t.ref() for t in self._targets(recurrences)}
        for output in loop.outputs:
            if output.value.ref() in used:
                raise ValueError(f"{output.label} is used inside its own loop")
        iterators = [i for i in loop.iterators if i.value.ref() in used]
        layers = [*iterators, *recurrences]
        invariants = self._invariants(needed, recurrences, {layer.value.ref() for layer in layers})

        groups = [[layer.value] for layer in layers] + [[t] for t in invariants]
        results, outputs = self._results(recurrences)
        condition = None if loop.condition is None else self._resolve(loop.condition)
        targets = results if condition is None else [*results, condition]
        graph = _graphs.extract("loop", self.network.graph, groups, targets, effects)
        targets = list(graph.outputs)
        if condition is not None:
            condition = targets.pop()
        num_results = len(targets)
        targets += _body.effects(graph, [[t] for t in graph.inputs])
        stateful = any(_tf.is_stateful(op) for op in graph.get_operations())
        test, read, body = _split(graph, targets, condition)

        inputs = [
            *(self._input(layer) for layer in layers),
            *(_spec.Input(f"{loop.label}: the invariant {t.name!r}", t.shape) for t in invariants),
        ]
        first = len(iterators)
        lengths = [o for o in loop.outputs if "the length" in o.given]
        spec = _spec.LoopSpec(
            tuple(inputs),
            tuple(
                dataclasses.replace(made, length=lengths.index(layer) if layer in lengths else -1)
                for made, layer in zip(outputs, loop.outputs)
            ),
            tuple((k, first + k) for k in range(len(recurrences))),
            tuple(t.dtype for t in body.outputs),
            tuple(t.shape for t in body.outputs),
            limit_label=loop.limit_label,
            condition_inputs=read,
        )
        given = [layer.given[_GIVEN[type(layer)]] for layer in layers] + invariants
        before = len(self.network.graph.get_operations())
        made = _spec.run_loop(
            spec.recording(1, range(num_results, len(body.outputs))),
            _tf.make_function(body),
            [self._resolve(t) for t in given],
            None if loop.count is None else tf.maximum(self._resolve(loop.count), 0),
            stateful,
            loop.name if _is_scope(loop.name) else "Loop",
            None if test is None else _tf.make_function(test),
            [self._resolve(o.given["the length"]) for o in lengths],
        )
        for op in self.network.graph.get_operations()[before:]:
            # After all that its block did, and before what came next.
            self.network.set_level(op, self.path[:-1], loop.end - 0.5)
        for layer, tensor in zip(loop.outputs, made):
            tensor.set_shape(layer.value.shape)
            self.values[layer.value.ref()] = tensor
            _graphs.replace(layer.value, tensor)

    def _live(
        self, effects: Sequence[tf.Operation]
    ) -> tuple[list[RecurrenceLayer], list[tf.Operation]]:
        """The recurrences that something depends on, and the operations of an iteration."""
        loop = self.loop
        live = {o.recurrence for o in loop.outputs if o.kind == "last"}
        while True:
            kept = [r for r in loop.recurrences if r in live]
            targets = self._targets(kept)
            needed = _graphs.needed_operations(
                [layer.value for layer in (*loop.iterators, *loop.recurrences)], targets, effects
            )
            needed = [op for op in needed if self._belongs(op)]
            used = {t.ref() for op in needed for t in op.inputs} | {t.ref() for t in targets}
            found = live | {r for r in loop.recurrences if r.value.ref() in used}
            if found == live:
                return kept, needed
            live = found

    def _belongs(self, op: tf.Operation) -> bool:
        return self.network.level(op) == self.path and op.type != "Placeholder"

    def _targets(self, recurrences: Sequence[RecurrenceLayer]) -> list[tf.Tensor]:
        """What an iteration computes for its layers."""
        tensors = [r.next for r in recurrences]
        tensors += [o.tensor for o in self.loop.outputs if o.kind != "last"]
        if self.loop.condition is not None:
            tensors.append(self.loop.condition)
        return [self._resolve(t) for t in tensors]

    def _invariants(self, needed, recurrences, own: set) -> list[tf.Tensor]:
        """What comes from outside; constants are part of the body."""
        found: dict[Any, tf.Tensor] = {}
        members = set(needed)
        captured = {inside.ref() for _, inside in self.network.graph.captures}
        for tensor in [*(t for op in needed for t in op.inputs), *self._targets(recurrences)]:
            op = tensor.op
            # A small eager tensor is captured as a constant, but may have a gradient.
            is_constant = (
                op.type == "Const" and not op.control_inputs and tensor.ref() not in captured
            )
            if tensor.ref() not in own and op not in members and not is_constant:
                found.setdefault(tensor.ref(), tensor)
        return list(found.values())

    def _results(
        self, recurrences: Sequence[RecurrenceLayer]
    ) -> tuple[list[tf.Tensor], list[_spec.Output]]:
        """What the body returns, the recurrences' next values first, and the outputs made of it."""
        results = [self._resolve(r.next) for r in recurrences]
        outputs = []
        for layer in self.loop.outputs:
            if layer.kind == "last":
                source = recurrences.index(layer.recurrence)
                outputs.append(_spec.Output(layer.label, results[source].dtype, "last", source))
                continue
            tensor = self._resolve(layer.tensor)
            stride = -1 if layer.kind == "reverse" else 1
            outputs.append(
                _spec.Output(layer.label, tensor.dtype, "stack", len(results), layer.axis, stride)
            )
            results.append(tensor)
        return results, outputs

    def _input(self, layer: Layer) -> _spec.Input:
        shape = layer.value.shape
        if isinstance(layer, RecurrenceLayer):
            return _spec.Input(layer.label, shape)
        order = {"start": -1, "end": 0, "stride": -1} if layer.reverse else {}
        return _spec.Input(layer.label, shape, "iterator", layer.axis, **order)


_GIVEN = {IteratorLayer: "the iterated tensor", RecurrenceLayer: "the initial value"}


def _is_scope(name: str) -> bool:
    return name.isascii() and name.replace("_", "").isalnum() and not name.startswith("_")


def _split(
    graph: _tf.FuncGraph, results: Sequence[tf.Tensor], condition: tf.Tensor | None
) -> tuple[_tf.FuncGraph | None, tuple[int, ...] | None, _tf.FuncGraph]:
    """Takes apart what an iteration computes: the condition, and with its values the rest.

    Returns the condition, the positions of the parameters that it reads, and the body.
    """
    groups = [[t] for t in graph.inputs]
    effects = list(graph.control_outputs)
    if condition is None:
        body = _graphs.extract("body", graph, groups, results, effects)
        _graphs.chain(body.control_outputs)
        return None, None, body
    head = set(_graphs.needed_operations(graph.inputs, [condition]))
    for op in graph.get_operations():
        _graphs.keep_controls(op, lambda other, op=op: (other in head) == (op in head))
    rest = [op for op in effects if op not in head]
    tail = _graphs.needed_operations(
        [*graph.inputs, *(t for op in head for t in op.outputs)], results, rest
    )
    shared: dict[Any, tf.Tensor] = {}
    for tensor in [*(t for op in tail for t in op.inputs), *results]:
        if tensor.op in head and tensor.op.type != "Const":
            shared.setdefault(tensor.ref(), tensor)
    used = {t.ref() for op in head for t in op.inputs} | {condition.ref()}
    used |= {t.ref() for t in shared.values()}
    read = tuple(i for i, t in enumerate(graph.inputs) if t.ref() in used)
    test = _graphs.extract(
        "condition",
        graph,
        [groups[i] for i in read],
        [condition, *shared.values()],
        [op for op in effects if op in head],
    )
    body = _graphs.extract("body", graph, [*groups, *([t] for t in shared.values())], results, rest)
    _graphs.chain(test.control_outputs)
    _graphs.chain(body.control_outputs)
    return test, read, body
