"""The nesting of loops, by the dataflow and by the blocks in which operations were made."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from tf_ti.loops.block.layers import Layer, LoopNode, OutputLayer, Path
from tf_ti.loops.tracing import graphs as _graphs

_Loops = frozenset[LoopNode]


class Nesting:
    """The nesting of loops that share a graph; refused where they do not nest cleanly.

    Args:
        graph: the graph.
        loops: the loops.
        blocks: the loops in whose blocks each operation was made.

    Attributes:
        inside: the loops that an operation is computed inside of.
        after: the loops whose outputs it depends on.
        paths: for each loop those that it is inside of, and itself.
    """

    def __init__(
        self, graph: tf.Graph, loops: Sequence[LoopNode], blocks: Mapping[tf.Operation, Path]
    ):
        self._graph, self._loops, self._blocks = graph, loops, blocks
        self.inside: dict[tf.Operation, _Loops] = {}
        self.after: dict[tf.Operation, _Loops] = {}
        self.paths = self._nest()

    def _nest(self) -> dict[LoopNode, Path]:
        around: dict[LoopNode, _Loops] = {loop: frozenset() for loop in self._loops}
        self._flow(around)
        # A block says something only where the dataflow does not say the opposite, and where
        # something happened after it: else one `with` statement made both.
        for loop in self._loops:
            for other in loop.around:
                if other in around and other.end > loop.end and self._may_be(loop, other, around):
                    around[loop] |= {other} | around[other]
        self._flow(around)
        # Who uses values of two loops is inside both, so one of these is inside the other.
        for loop in self._loops:
            for inner, outer in itertools.permutations(self._loops, 2):
                if (
                    {inner, outer} <= around[loop]
                    and inner not in around[outer]
                    and outer not in around[inner]
                    and outer in inner.around
                    and self._may_be(inner, outer, around)
                ):
                    around[inner] |= {outer} | around[outer]
        self._flow(around)
        self._check_outputs()
        self._check_nesting(around)
        self._check_blocks()
        return {
            loop: (*sorted(around[loop], key=lambda other: len(around[other])), loop)
            for loop in self._loops
        }

    def _may_be(self, inner: LoopNode, outer: LoopNode, around: dict[LoopNode, _Loops]) -> bool:
        """True if no value that one gives to the other forbids that it is inside the other."""
        needs = [t for _, t in outer.given()]
        uses = [t for _, t in (*inner.given(), *inner.results())]
        return (
            inner not in around[outer]
            and not any(inner in self.after.get(t.op, ()) for t in needs)
            and not any(outer in self.after.get(t.op, ()) for t in uses)
        )

    def _check_outputs(self) -> None:
        """Refuses a loop that needs its own output."""
        for loop in self._loops:
            for what, tensor in (*loop.given(), *loop.results()):
                if loop in self.after.get(tensor.op, ()):
                    outputs = [o for o in loop.outputs if o.used_at is not None] or loop.outputs
                    direct = set(_graphs.needed_operations((), [tensor]))
                    output = next((o for o in outputs if o.value.op in direct), outputs[0])
                    raise ValueError(
                        f"{output.label} is used inside its own loop, in {output.used_at} ({what} "
                        "depends on it): it is there after the loop; inside, use the tensor that "
                        "it is made of"
                    )

    def _check_nesting(self, around: dict[LoopNode, _Loops]) -> None:
        for first, second in itertools.combinations(self._loops, 2):
            if first in around[second] and second in around[first]:
                raise ValueError(
                    f"{first.label} and {second.label} do not nest cleanly: each uses a value from "
                    f"inside the other one: {first.label} uses {self._witness(first, second)}, "
                    f"{second.label} uses {self._witness(second, first)}"
                )
        for loop in self._loops:
            for one, other in itertools.combinations(self._loops, 2):
                if {one, other} <= around[loop] and one not in around[other] | {other}:
                    if other not in around[one]:
                        raise ValueError(
                            f"{loop.label} uses {self._witness(loop, one)} of {one.label} and "
                            f"{self._witness(loop, other)} of {other.label}, of which neither is "
                            "inside the other: they do not nest cleanly"
                        )

    def _flow(self, around: dict[LoopNode, _Loops]) -> None:
        """Carries on, from tensor to tensor and loop to loop, the loops around each and before it.

        A loop is before those tensors that depend on its outputs.
        """
        values = {layer.value.op: layer for loop in self._loops for layer in _layers(loop)}
        operations = self._graph.get_operations()
        nothing: _Loops = frozenset()

        def of_all(found: dict[tf.Operation, _Loops], tensors: Iterable[tf.Tensor]) -> _Loops:
            return nothing.union(*(found.get(t.op, nothing) for t in tensors))

        changed = True
        while changed:
            changed = False
            for op in operations:
                layer = values.get(op)
                if layer is None:
                    inside, after = of_all(self.inside, op.inputs), of_all(self.after, op.inputs)
                elif isinstance(layer, OutputLayer):
                    inside = around[layer.loop]
                    used = [t for _, t in (*layer.loop.given(), *layer.loop.results())]
                    after = of_all(self.after, used) | {layer.loop}
                else:
                    inside = around[layer.loop] | {layer.loop}
                    after = of_all(self.after, layer.given.values())
                if (inside, after) != (self.inside.get(op, nothing), self.after.get(op, nothing)):
                    self.inside[op], self.after[op] = inside, after
                    changed = True
            for loop in self._loops:
                used = [t for _, t in (*loop.given(), *loop.results())]
                found = around[loop] | of_all(self.inside, used)
                found = found.union(*(around[other] for other in found)) - {loop}
                if found != around[loop]:
                    around[loop] = found
                    changed = True

    def _witness(self, loop: LoopNode, other: LoopNode) -> str:
        """A tensor of `other` that `loop` uses."""
        for what, tensor in (*loop.given(), *loop.results()):
            if other in self.inside.get(tensor.op, ()):
                return f"{tensor.name!r} ({what})"
        return "what a loop around it uses"

    def _check_blocks(self) -> None:
        """Refuses uses of a loop's values after its block was closed."""
        used = [(t, blocks) for op, blocks in self._blocks.items() for t in op.inputs]
        for tensor, blocks in used + [pair for loop in self._loops for pair in loop.used]:
            for loop in self.inside.get(tensor.op, ()):
                if loop not in blocks:
                    raise ValueError(
                        f"{tensor.name!r} is used after the block of {loop.label}, inside which it "
                        "is computed, was closed; a loop output brings values out of a loop"
                    )


def _layers(loop: LoopNode) -> list[Layer]:
    return [*loop.iterators, *loop.recurrences, *loop.outputs]
