"""The choice of operations that leave a loop: moving must pay.

- Operations that hang together move where one of them is a product with an invariant factor or a
  convolution, or where the values at the cut are no larger than the slices that they read, or the
  outputs that they give.
- All values at the cuts, and each value on the way, have at most 4 times the bytes of slices and
  outputs together. An unknown dimension counts as larger than all that are known.
- At the ends of a group that moves, an operation stays whose values are larger at the cut.
- Operations after the loop move only where all their states have static shapes: others may change
  from one iteration to the next.
- Where programs run all of the core, what they run stays too: a product or a convolution moves, and
  what programs do not run, with all before it that it needs and all after it that needs it.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import tensorflow as tf

from tf_ti.loops import spec as _spec
from tf_ti.loops.passes import batching as _batching, programs as _programs
from tf_ti.loops.passes.analysis import BEFORE, CORE, INVARIANT, Analysis, analyse, size_of
from tf_ti.loops.passes.step import Unknown


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """The operations that leave a loop.

    Attributes:
        analysis: that of the loop.
        before, after: the operations, which the graph around the loop has for all iterations.
        reasons: by operation that could leave but stays, the reason.
    """

    analysis: Analysis
    before: frozenset[tf.Operation]
    after: frozenset[tf.Operation]
    reasons: Mapping[tf.Operation, Unknown]

    def given_to_after(self) -> list[tf.Tensor]:
        """The tensors of the loop that operations after it read, but for outputs it has anyway."""
        # In the body's order, which is the same in each process.
        after = [op for op in self.analysis.uses.operations if op in self.after]
        return _given_to(after, self.after, self.analysis, outputs_as_after(self.analysis))


def choose(analysis: Analysis) -> Choice:
    """Chooses from the operations that could leave those for which that pays."""
    while True:
        choice = _Chooser(analysis).choose()
        lost = _lost_shapes(choice)
        if not lost:
            return choice
        analysis = analyse(analysis.loop, analysis.bound, analysis.lost | lost)


def stacks(analysis: Analysis) -> list[_spec.Output]:
    """The outputs that are stacked as operations after the loop would have them."""
    order = analysis.counts.order
    return [
        o
        for o in analysis.loop.spec.outputs
        if (o.mode, o.axis, o.stride, o.length) == ("stack", 0, order, -1)
    ]


def outputs_as_after(analysis: Analysis) -> set[Any]:
    """The references of the results that those outputs have."""
    return {analysis.uses.results[o.source].ref() for o in stacks(analysis)}


def is_worth_crossing(op: tf.Operation) -> bool:
    """True if the loop takes the values of an invariant operation rather than computing them.

    Integers are computed on both sides: XLA must know shapes, and does not know a loop's inputs.
    """
    return not _batching.is_free(op) and not any(t.dtype.is_integer for t in op.outputs)


def _lost_shapes(choice: Choice) -> set[tf.Operation]:
    """Shapes that seemed invariant, but are of tensors that stay in the loop."""
    analysis = choice.analysis
    outside = choice.before | set(analysis.uses.parameters)
    return {
        op
        for op in analysis.uses.operations
        if op.type == "Shape" and analysis.levels[op] == INVARIANT
        for source in [op.inputs[0].op]
        if analysis.levels[source] == BEFORE and source not in outside
    }


def _given_to(
    operations: Iterable[tf.Operation],
    after: Collection[tf.Operation],
    analysis: Analysis,
    outputs: Collection[Any],
) -> list[tf.Tensor]:
    found = {
        t.ref(): t
        for op in operations
        for t in _batching.used(op)
        if analysis.level(t) == CORE and t.op not in after
    }
    return [tensor for ref, tensor in found.items() if ref not in outputs]


class _Chooser:
    """The choice under way: it begins with all that could leave, and lets some of it stay."""

    def __init__(self, analysis: Analysis):
        self._analysis, self._uses = analysis, analysis.uses
        self._before, self._after = set(analysis.before), set(analysis.after)
        self._reasons: dict[tf.Operation, Unknown] = {}
        self._outputs = outputs_as_after(analysis)
        # The operations that the loop keeps, and the references of the tensors that they read.
        self._kept: set[tf.Operation] = set()
        self._read: set[Any] = set()
        for op in self._uses.operations:
            if analysis.levels[op] != INVARIANT and not (op in self._before or op in self._after):
                self._keep(op)

    def choose(self) -> Choice:
        if _programs.run_core_of(self._analysis):
            self._leave_to_programs()
        # An operation after the loop that stays in it reads values from before.
        self._trim_after()
        after = self._groups_that_pay(self._after)
        self._trim_before()
        groups = self._groups_that_pay(self._before) + after
        groups.sort(key=lambda entry: not any(map(self._is_product, entry[1])))
        total = 0
        for size, group, region in groups:
            if total + size <= self._uses.largest:
                total += size
            else:
                self._leave(region, group, "all values at the cut would be too large together")
        return Choice(
            self._analysis, frozenset(self._before), frozenset(self._after), self._reasons
        )

    def _leave_to_programs(self) -> None:
        moves: set[tf.Operation] = set()
        for op in reversed(self._uses.operations):
            if op in self._before:
                readers = self._uses.readers.get(op, ())
                if self._is_worth(op) or not moves.isdisjoint(readers):
                    moves.add(op)
        for op in self._uses.operations:
            if op in self._after:
                if self._is_worth(op) or any(
                    t.op in moves for t in op.inputs if t.op in self._after
                ):
                    moves.add(op)
        for region in (self._before, self._after):
            stay = [op for op in self._uses.operations if op in region and op not in moves]
            self._leave(region, stay, "programs run it in the loop in less time")

    def _is_worth(self, op: tf.Operation) -> bool:
        return self._is_product(op) or not _programs.run(op)

    def _leave(self, region: set[tf.Operation], group: list[tf.Operation], reason: str) -> None:
        region.difference_update(group)
        for op in group:
            self._keep(op)
            if not _batching.is_free(op):
                self._reasons[op] = Unknown(reason, op)

    def _keep(self, op: tf.Operation) -> None:
        """Takes note of an operation that stays, and of what the loop computes for it again."""
        stack = [op]
        while stack:
            op = stack.pop()
            if op in self._kept:
                continue
            self._kept.add(op)
            for tensor in op.inputs:
                self._read.add(tensor.ref())
                # Shapes, for one, are computed on both sides.
                is_invariant = self._analysis.levels[tensor.op] == INVARIANT
                if is_invariant and not is_worth_crossing(tensor.op):
                    stack.append(tensor.op)

    def _groups_that_pay(
        self, region: set[tf.Operation]
    ) -> list[tuple[int, list[tf.Operation], set[tf.Operation]]]:
        """Leaves the other groups of a region in the loop; with each the bytes at its cut."""
        found = []
        for group in self._groups(region):
            made = [t for op in group for t in op.outputs]
            if region is self._before:
                size = size_of(filter(self._crosses, made))
                freed = size_of(self._slices_of(group))
            else:
                size = size_of(self._given_to(group))
                freed = size_of(t for t in made if t.ref() in self._analysis.leaving)
            pays = size <= freed and not all(map(_batching.is_free, group))
            if pays or any(map(self._is_product, group)):
                found.append((size, group, region))
            else:
                self._leave(region, group, "the values at the cut would be larger than those saved")
        return found

    def _trim_before(self) -> None:
        for op in reversed(self._uses.operations):
            if op not in self._before or self._is_product(op):
                continue
            is_last = all(reader in self._kept for reader in self._uses.readers.get(op, ()))
            if is_last and not any(t.ref() in self._analysis.leaving for t in op.outputs):
                given = [t for t in op.inputs if self._analysis.level(t) == BEFORE]
                made = filter(_batching.is_read, op.outputs)
                if size_of(made) > size_of(t for t in given if not self._crosses(t)):
                    self._leave(self._before, [op], "its values are larger than those it reads")

    def _trim_after(self) -> None:
        for op in self._uses.operations:
            if op not in self._after:
                continue
            taken = [
                t for t in op.inputs if self._analysis.level(t) == CORE and t.op not in self._after
            ]
            cut = self._given_to([op])
            if not all(t.shape.is_fully_defined() for t in taken):
                self._leave(self._after, [op], "the shapes of its states are not known")
            elif not self._is_product(op) and not any(t.op in self._after for t in op.inputs):
                own = [t for t in cut if self._uses.readers[t.op] == [op]]
                if size_of(filter(_batching.is_read, op.outputs)) < size_of(own):
                    self._leave(self._after, [op], "its values are smaller than those it reads")
        for op in reversed(self._uses.operations):
            if op in self._after and any(
                reader not in self._after for reader in self._uses.readers.get(op, ())
            ):
                self._after.discard(op)
                self._keep(op)

    def _groups(self, region: set[tf.Operation]) -> list[list[tf.Operation]]:
        """Those operations of a region that hang together."""
        group_of: dict[tf.Operation, list[tf.Operation]] = {}
        for op in self._uses.operations:
            if op in region:
                group_of[op] = [op]
                for source in {t.op for t in op.inputs} & region:
                    small, large = sorted((group_of[source], group_of[op]), key=len)
                    if small is not large:
                        large += small
                        group_of.update(dict.fromkeys(small, large))
        groups: dict[int, list[tf.Operation]] = {}
        for op, group in group_of.items():
            groups.setdefault(id(group), []).append(op)
        return list(groups.values())

    def _is_product(self, op: tf.Operation) -> bool:
        return _batching.is_product(op, list(map(self._analysis.is_stacked, op.inputs)))

    def _given_to(self, operations: Iterable[tf.Operation]) -> list[tf.Tensor]:
        return _given_to(operations, self._after, self._analysis, self._outputs)

    def _crosses(self, tensor: tf.Tensor) -> bool:
        """True if an operation that stays in the loop reads a value from before."""
        return tensor.ref() in self._analysis.staying or tensor.ref() in self._read

    def _slices_of(self, operations: Iterable[tf.Operation]) -> list[tf.Tensor]:
        parameters = self._uses.parameters
        found = {t.ref(): t for op in operations for t in op.inputs if t.op in parameters}
        return [t for t in found.values() if self._analysis.level(t) == BEFORE]
