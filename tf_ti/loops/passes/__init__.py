"""Passes over a loop, between its trace and the operation that it becomes."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

from tf_ti import _tf
from tf_ti.loops import lower as _lower
from tf_ti.loops.passes import (
    cut as _cut,
    growth as _growth,
    products as _products,
    programs as _programs,
)
from tf_ti.loops.passes.analysis import Analysis, analyse
from tf_ti.loops.passes.step import Fuse, Note, Step, Unknown
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing import graphs as _graphs

__all__ = ["PASSES", "RECOGNIZERS", "Candidate", "Outcome", "Pass", "check_fuse", "fusing", "run"]


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A loop that passes look at.

    Attributes:
        loop: the loop.
        fuse: what may become of it.
        checkpoint_every: the states that a gradient is to record: those of each such iteration.
        name: a name for the operation.
    """

    loop: TracedLoop
    fuse: Fuse
    checkpoint_every: int
    name: str | None

    @property
    def analysis(self) -> Analysis:
        """The analysis of the loop; raises `Unknown` where that may be nothing else."""
        if isinstance(self._found, Unknown):
            raise Unknown(self._found.reason, self._found.operation)
        return self._found

    @functools.cached_property
    def _found(self) -> Analysis | Unknown:
        try:
            return analyse(self.loop)
        except Unknown as refusal:
            return Unknown(refusal.reason, refusal.operation)


@dataclasses.dataclass(frozen=True)
class Pass:
    """One pass.

    Attributes:
        name: its name, for notes.
        fuse: the least that must be asked for.
        apply: gives the loop that takes the candidate's place; None if it stays as it is. It raises
            `Unknown` with the reason where it refuses.
    """

    name: str
    fuse: Fuse
    apply: Callable[[Candidate], Step | None]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A loop that ran, or was added to a graph.

    Attributes:
        outputs: its outputs.
        notes: the account of its passes.
    """

    outputs: list[tf.Tensor]
    notes: tuple[Note, ...] = ()


# Recognizers of whole loops, by the name of the operation that they know: from an analysis, what
# may become of the loop and a name. `tf_ti.recurrent`, which is made of loops, enters its own.
RECOGNIZERS: dict[str, Callable[[Analysis, Fuse, str | None], Step]] = {}


def _recognize(candidate: Candidate) -> Step | None:
    if not RECOGNIZERS:
        return None
    if candidate.checkpoint_every != 1:
        raise Unknown("checkpoint_every asks for less than another operation would record")
    reasons = []
    for recognize in RECOGNIZERS.values():
        try:
            return recognize(candidate.analysis, candidate.fuse, candidate.name)
        except Unknown as refusal:
            reasons.append((refusal.reason, refusal.operation))
    raise Unknown(*reasons[0])


# All passes, in their order.
PASSES = (
    Pass("recognition", Fuse.WHOLE, _recognize),
    Pass("products", Fuse.ALL, lambda candidate: _products.split(candidate.analysis)),
    Pass("fission", Fuse.ALL, lambda candidate: _cut.split(candidate.analysis)),
    Pass("growth", Fuse.NOTHING, lambda candidate: _growth.check(candidate.loop)),
    Pass("programs", Fuse.PROGRAMS, lambda candidate: _programs.account(candidate.loop)),
)


def run(
    loop: TracedLoop, fuse: Fuse, checkpoint_every: int | None = None, name: str | None = None
) -> Outcome:
    """Takes a loop through its passes, and adds the rest to the current graph, or runs it.

    Args:
        loop: the loop. Its body's graph may change.
        fuse: what may become of it.
        checkpoint_every, name: as in `tf_ti.tensor_iterator`.
    """
    spec = dataclasses.replace(loop.spec, fuse=fuse >= Fuse.PROGRAMS)
    loop = dataclasses.replace(loop, spec=spec)
    candidate = Candidate(loop, fuse, checkpoint_every or 1, name)
    finishes, notes = [], []
    with tf.control_dependencies(loop.controls):
        for each in PASSES if not tf.executing_eagerly() else ():
            if fuse < each.fuse:
                continue
            try:
                step = each.apply(candidate)
            except Unknown as refusal:
                notes.append(Note.of(each.name, refusal))
                continue
            if step is None:
                continue
            notes += step.notes
            if step.finish is not None:
                finishes.append(step.finish)
            if step.loop is None:
                candidate = None
                break
            if step.loop is not candidate.loop:
                candidate = dataclasses.replace(candidate, loop=step.loop)
        outputs = []
        if candidate is not None:
            outputs = _lower.run_loop(candidate.loop, candidate.checkpoint_every, name)
        for finish in reversed(finishes):
            outputs = finish(outputs)
    if candidate is None:
        _forget(loop.body)
    return Outcome(outputs, tuple(notes))


def fusing(fuse: Any, functions: Sequence[Callable] = ()) -> Fuse:
    """What may become of a loop, for a user's `fuse`.

    Fission takes time when the loop is traced, and saves it when it runs. It pays where the loop
    may run again, and where a tape will want its gradient.

    Args:
        fuse: true or false; a `Fuse` is the answer itself.
        functions: the callables, if they may be functions that are kept.
    """
    if isinstance(fuse, Fuse):
        return fuse
    check_fuse(fuse)
    if not fuse:
        return Fuse.NOTHING
    is_eager = tf.executing_eagerly() and not _tf.is_recording()
    is_kept = bool(functions) and all(
        isinstance(f, ConcreteFunction) or hasattr(f, "get_concrete_function") for f in functions
    )
    is_once = is_eager and not is_kept
    return Fuse.WHOLE if is_once else Fuse.ALL


def check_fuse(fuse: Any) -> None:
    """Refuses what a user gives for `fuse` if it is neither true nor false."""
    if not isinstance(fuse, (bool, np.bool_)):
        raise TypeError(f"fuse must be True or False, got {fuse!r}")


def _forget(body: _tf.FuncGraph) -> None:
    """Takes apart a body that nobody needs any more, unless a custom gradient refers to it."""
    if not any(map(_graphs.has_custom_gradient, body.get_operations())):
        _tf.dismantle(body)
