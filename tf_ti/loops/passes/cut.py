"""Fission: values that an iteration computes of no state are computed once, outside of the loop.

Operations that are invariant move to the graph around the loop. Those before and after it
(analysis.py) are done there for all iterations in one call, with the iterations along a new first
axis, where that pays (choice.py); the loop keeps the core. A value that crosses the cut is a sliced
input, or a stacked output, of the loop that is left.

Only operations that `batching.RULES` lists move. Those that are stateful, random or calls, have a
control dependency, or have values that are no numbers, stay with all that depends on them; and so
does everything in a loop that has a condition. An operation with a custom gradient, with those that
this is the gradient of, moves where that leaves nothing in the loop, and else stays. Slices of
different inputs meet outside only where their numbers of iterations are known to agree, and pieces
that overlap or leave gaps stay.

The outputs that are last values, those with a length, and those whose pieces have unknown extents
stay the loop's. Everything happens before the loop is an operation, with operations of TensorFlow:
gradients, vectorisation, XLA and saved functions see nothing else.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_ti.loops import spec as _spec
from tf_ti.loops.passes import batching as _batching
from tf_ti.loops.passes.analysis import CORE, INVARIANT, Analysis
from tf_ti.loops.passes.choice import Choice, choose, is_worth_crossing, stacks
from tf_ti.loops.passes.outside import Outside
from tf_ti.loops.passes.step import Mention, Note, Step


@dataclasses.dataclass(frozen=True, eq=False)
class Cut:
    """The line between a loop and the values that move out of it.

    Attributes:
        choice: the operations that move.
        left: the positions of the results that the loop keeps.
        given_to_after: the tensors of the loop that operations after it read.
        crossing: the tensors from before that the loop reads, by reference.
        read: the parameters that the loop reads itself.
        inside: the operations that it keeps.
    """

    choice: Choice
    left: tuple[int, ...]
    given_to_after: tuple[tf.Tensor, ...]
    crossing: Mapping[Any, tf.Tensor]
    read: frozenset[int]
    inside: frozenset[tf.Operation]

    @property
    def is_empty(self) -> bool:
        """True if nothing moves."""
        return not (self.choice.before or self.choice.after or self.crossing)


def split(analysis: Analysis) -> Step:
    """Takes out of a loop all that need not be in it."""
    choice = choose(analysis.keeping_custom_gradients())
    cut = cut_at(choice)
    step = Step(analysis.loop) if cut.is_empty else _Separation(cut).step()
    reasons = {**choice.analysis.reasons, **choice.reasons}
    return dataclasses.replace(
        step, notes=(*step.notes, *(Note.of("fission", reason) for reason in reasons.values()))
    )


def cut_at(choice: Choice) -> Cut:
    """Finds out which values cross the line."""
    analysis, uses = choice.analysis, choice.analysis.uses
    moved = choice.before | choice.after
    results = {r: uses.results[r] for r in uses.used}
    left = [r for r, t in results.items() if t.op not in moved or t.ref() in analysis.staying]
    given_to_after = choice.given_to_after()
    crossing: dict[Any, tf.Tensor] = {}
    own: set[int] = set()
    seen: set[tf.Operation] = set()
    stack: list[tf.Operation] = list(analysis.loop.body.control_outputs)

    def read(tensor: tf.Tensor) -> None:
        op = tensor.op
        if op in uses.parameters:
            own.add(uses.parameters[op])
        elif op in choice.before:
            crossing.setdefault(tensor.ref(), tensor)
        elif analysis.levels[op] == INVARIANT and is_worth_crossing(op):
            crossing.setdefault(tensor.ref(), tensor)
        else:
            stack.append(op)

    for tensor in [*(results[r] for r in left), *given_to_after]:
        read(tensor)
    while stack:
        op = stack.pop()
        if op not in seen:
            seen.add(op)
            stack.extend(op.control_inputs)
            for tensor in op.inputs:
                read(tensor)
    return Cut(
        choice, tuple(left), tuple(given_to_after), crossing, frozenset(own), frozenset(seen)
    )


class _Separation:
    """A loop taken apart along a cut."""

    def __init__(self, cut: Cut):
        self._cut, self._analysis = cut, cut.choice.analysis
        self._loop, self._spec = self._analysis.loop, self._analysis.loop.spec
        self._results = self._analysis.uses.results
        self._outside = Outside(self._analysis)
        left = set(cut.left)
        self._left = [o for o in self._spec.outputs if o.source in left]

    def step(self) -> Step:
        cut, loop, spec, graph = self._cut, self._loop, self._spec, self._loop.body
        crossing = list(cut.crossing.values())
        with tf.name_scope("before_loop"):
            made = self._outside.compute(crossing)
        # A value that takes an input's place stands there: an error names the first that is wrong.
        inputs = [
            (i, spec.inputs[i], graph.inputs[i], loop.tensors[i]) for i in self._kept_inputs()
        ]
        for inside, outside in zip(crossing, made):
            is_stacked = self._analysis.is_stacked(inside)
            at = self._analysis.origins[inside.op] if is_stacked else len(spec.inputs)
            inputs.append((at, self._input_of(inside), inside, outside))
        inputs.sort(key=lambda entry: entry[0])
        num_results = loop.num_users_results
        users = [r for r in cut.left if r < num_results]
        recorded = [r for r in cut.left if r >= num_results]
        results = [
            *(self._results[r] for r in users),
            *cut.given_to_after,
            *(self._results[r] for r in recorded),
        ]
        result = {r: k for k, r in enumerate(users)}
        parameter = {at: k for k, (at, given, _, _) in enumerate(inputs) if given.mode == "value"}
        order = self._analysis.counts.order
        outputs = [
            *(dataclasses.replace(o, source=result[o.source]) for o in self._left),
            *(
                _spec.Output(f"{t.op.name} of the body", t.dtype, "stack", k, 0, order)
                for k, t in enumerate(cut.given_to_after, start=len(users))
            ),
        ]
        core = None
        if outputs or graph.control_outputs:
            core = loop.with_part(
                dataclasses.replace(
                    spec,
                    inputs=tuple(given for _, given, _, _ in inputs),
                    outputs=tuple(outputs),
                    back_edges=tuple((result[r], parameter[p]) for r, p in spec.back_edges),
                    result_types=tuple(t.dtype for t in results),
                    result_shapes=tuple(t.shape for t in results),
                ),
                [tensor for _, _, _, tensor in inputs],
                [[inside] for _, _, inside, _ in inputs],
                results,
            )
            num_results = len(users) + len(cut.given_to_after)
            core = dataclasses.replace(core, num_results=num_results)
        return Step(core, self._finish, self._notes())

    def _notes(self) -> tuple[Note, ...]:
        notes = []
        cut, uses = self._cut, self._analysis.uses
        invariant = {op for op in uses.operations if self._analysis.levels[op] == INVARIANT}
        for place, operations in (
            ("once, before it", invariant - cut.inside),
            ("before it, for all iterations", cut.choice.before),
            ("after it, for all iterations", cut.choice.after),
        ):
            moved = [op for op in uses.operations if op in operations and not _batching.is_free(op)]
            if moved:
                names = sorted({_batching.kind(op) for op in moved})
                text = f"computed {place}: {', '.join(names)}"
                mentions = tuple(map(Mention.of, moved))
                notes.append(Note("fission", text, True, mentions, len(moved), place=place))
        return tuple(notes)

    def _finish(self, given: list[tf.Tensor]) -> list[tf.Tensor]:
        """All outputs, of those of the loop that is left."""
        for tensor, stacked in zip(self._cut.given_to_after, given[len(self._left) :]):
            self._outside.give(tensor, stacked)
        as_after = set(stacks(self._analysis))
        for output, tensor in zip(self._left, given):
            result = self._results[output.source]
            if output in as_after and not self._analysis.is_invariant(result):
                self._outside.give(result, tensor)
        left = set(self._cut.left)
        gone = [o for o in self._spec.outputs if o.source not in left]
        with tf.name_scope("after_loop"):
            stacked = self._outside.compute([self._results[o.source] for o in gone])
            joined = iter([self._outside.joined(o, t) for o, t in zip(gone, stacked)])
        own = iter(given)
        return [next(own if o.source in left else joined) for o in self._spec.outputs]

    def _kept_inputs(self) -> list[int]:
        """The inputs that the loop still has: those that it reads, and those that it checks."""
        analysis, counts = self._analysis, self._analysis.counts
        parameters = self._loop.body.inputs
        core = {i for i, p in enumerate(parameters) if analysis.level(p) == CORE}
        kept = {*self._cut.read, *core}
        crossing = [t for t in self._cut.crossing.values() if analysis.is_stacked(t)]
        present = {analysis.origins[t.op] for t in crossing} | kept.intersection(counts.counted)
        compared = {counts.agreement[i] for i in present}
        for i in counts.counted:  # one of those that agree is compared with the others
            if counts.agreement[i] not in compared:
                compared.add(counts.agreement[i])
                kept.add(i)
        return sorted(kept)

    def _input_of(self, tensor: tf.Tensor) -> _spec.Input:
        """The loop's input for a value that is computed before it."""
        if not self._analysis.is_stacked(tensor):
            return _spec.Input(f"{tensor.op.name} of the body", tensor.shape)
        given = self._spec.inputs[self._analysis.origins[tensor.op]]
        mode, order = given.mode, self._analysis.counts.order
        start, end = (0, -1) if order > 0 else (-1, 0)
        mode = "iterator" if mode == "iterator" else "index"
        return _spec.Input(given.label, tensor.shape, mode, 0, start, end, order)
