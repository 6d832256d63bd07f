"""Building of loops: each loop of a network becomes a `TracedLoop`."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_ti.loops import arguments as _arguments, spec as _spec
from tf_ti.loops.block.layers import IteratorLayer, LoopNode, RecurrenceLayer
from tf_ti.loops.block.levels import Levels
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing import body as _body, graphs as _graphs, split as _split
from tf_ti.loops.tracing.part import Part

_GIVEN = {IteratorLayer: "the iterated tensor", RecurrenceLayer: "the initial value"}


def build(loop: LoopNode, levels: Levels, values: dict[Any, tf.Tensor]) -> TracedLoop | None:
    """The traced loop, or None if it has neither outputs nor effects.

    Args:
        loop: a loop of a network.
        levels: the levels of the network's operations.
        values: by reference, the tensors that took the places of inner loops' outputs.
    """
    return _Builder(loop, levels, values).build()


class _Builder:
    def __init__(self, loop: LoopNode, levels: Levels, values: dict[Any, tf.Tensor]):
        self.loop, self._levels, self._values = loop, levels, values
        self._graph, self._path = levels.graph, levels.paths[loop]

    def _resolve(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor, or the one that took the place of an inner loop's output."""
        return self._values.get(tensor.ref(), tensor)

    def build(self) -> TracedLoop | None:
        loop = self.loop
        effects = self._levels.detached_effects(self._path)
        if not loop.outputs and not effects:
            return None
        recurrences, needed = self._live(effects)
        used = {t.ref() for op in needed for t in op.inputs}
        used |= {t.ref() for t in self._targets(recurrences)}
        iterators = [i for i in loop.iterators if i.value.ref() in used]
        layers: list[IteratorLayer | RecurrenceLayer] = [*iterators, *recurrences]
        invariants = self._invariants(needed, recurrences, {layer.value.ref() for layer in layers})

        groups = [[layer.value] for layer in layers] + [[t] for t in invariants]
        results, outputs = self._results(recurrences)
        condition = None if loop.condition is None else self._resolve(loop.condition)
        targets = results if condition is None else [*results, condition]
        graph = _graphs.extract("loop", self._graph, groups, targets, effects)
        targets = list(graph.outputs)
        if condition is not None:
            condition = targets.pop()
        num_results = len(targets)
        targets += _body.recorded(graph, [[t] for t in graph.inputs], graph.inputs[: len(layers)])
        test, read, body = _split.split(graph, targets, condition)

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
        return TracedLoop(
            spec,
            Part.whole(body),
            [self._resolve(t) for t in given],
            None if loop.count is None else _arguments.at_least_0(self._resolve(loop.count)),
            test,
            [self._resolve(o.given["the length"]) for o in lengths],
            num_results,
        )

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
        return self._levels.of(op) == self._path and op.type != "Placeholder"

    def _targets(self, recurrences: Sequence[RecurrenceLayer]) -> list[tf.Tensor]:
        """The tensors that an iteration computes for its layers."""
        tensors = [r.next for r in recurrences]
        tensors += [o.tensor for o in self.loop.outputs if o.kind != "last"]
        if self.loop.condition is not None:
            tensors.append(self.loop.condition)
        return [self._resolve(t) for t in tensors]

    def _invariants(
        self, needed: Sequence[tf.Operation], recurrences: Sequence[RecurrenceLayer], own: set[Any]
    ) -> list[tf.Tensor]:
        """The tensors from outside; constants are part of the body."""
        found: dict[Any, tf.Tensor] = {}
        members = set(needed)
        captured = {inside.ref() for _, inside in self._graph.captures}
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
        """The body's results, the recurrences' next values first, and the outputs made of them."""
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

    def _input(self, layer: IteratorLayer | RecurrenceLayer) -> _spec.Input:
        shape = layer.value.shape
        if isinstance(layer, RecurrenceLayer):
            return _spec.Input(layer.label, shape)
        order = _spec.BACKWARDS if layer.reverse else _spec.FORWARDS
        return _spec.Input(layer.label, shape, "iterator", layer.axis, *order)
