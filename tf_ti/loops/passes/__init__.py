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
    counted as _counted,
    counters as _counters,
    cut as _cut,
    growth as _growth,
    lifted as _lifted,
    products as _products,
    programs as _programs,
    reads as _reads,
    writes as _writes,
)
from tf_ti.loops.passes.analysis import Analysis, analyse
from tf_ti.loops.passes.step import Account, Fuse, Note, Step, Unknown
from tf_ti.loops.spec import OPS
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
            raise self._found.again()
        return self._found

    @functools.cached_property
    def _found(self) -> Analysis | Unknown:
        try:
            return analyse(self.loop)
        except Unknown as refusal:
            return refusal.again()


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
        is_gone: true if other operations took its place.
    """

    outputs: list[tf.Tensor]
    notes: tuple[Note, ...] = ()
    is_gone: bool = False


# Recognizers of whole loops, by the type of the operation that they know: from an analysis, what
# may become of the loop and a name. `tf_ti.recurrent`, which is made of loops, enters its own.
RECOGNIZERS: dict[str, Callable[[Analysis, Fuse, str | None], Step]] = {}


def _recognize(candidate: Candidate) -> Step | None:
    if not RECOGNIZERS:
        return None
    if candidate.checkpoint_every != 1:
        cure = "tf_ti.lstm_sequence and its like take checkpoint_every themselves."
        raise Unknown("checkpoint_every asks for less than a sequence would record", cure=cure)
    reasons = []
    for recognize in RECOGNIZERS.values():
        try:
            return recognize(candidate.analysis, candidate.fuse, candidate.name)
        except Unknown as refusal:
            reasons.append(refusal.again())
    raise reasons[0]


# All passes, in their order.
PASSES = (
    Pass("counted", Fuse.ALL, lambda candidate: _counted.count(candidate.loop)),
    Pass("stacks", Fuse.ALL, lambda candidate: _writes.stack_writes(candidate.loop)),
    Pass("lifted", Fuse.ALL, lambda candidate: _lifted.lift_reads(candidate.loop)),
    Pass("slices", Fuse.ALL, lambda candidate: _reads.slice_reads(candidate.loop)),
    Pass("counters", Fuse.ALL, lambda candidate: _counters.split(candidate.loop)),
    # The passes above describe a body as a part of a graph; the passes below read its own graph.
    Pass("whole", Fuse.ALL, lambda candidate: Step(candidate.loop.whole())),
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
        loop: the loop. Nobody else may need its body's graph.
        fuse: what may become of it.
        checkpoint_every, name: as in `tf_ti.tensor_iterator`.
    """
    spec = dataclasses.replace(loop.spec, fuse=fuse >= Fuse.PROGRAMS)
    loop = dataclasses.replace(loop, spec=spec)
    candidate = Candidate(loop, fuse, checkpoint_every or 1, name)
    finishes, notes, is_gone = [], [], False
    loops = [loop]
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    before = 0 if graph is None else len(graph.get_operations())
    with tf.control_dependencies(loop.controls):
        for each in PASSES if graph is not None else ():
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
            if step.loop is candidate.loop:
                continue
            if step.loop is None:
                is_gone = True
                break
            loops.append(step.loop)
            candidate = dataclasses.replace(candidate, loop=step.loop)
        outputs = []
        if not is_gone:
            outputs = _lower.run_loop(candidate.loop, candidate.checkpoint_every, name)
        for finish in reversed(finishes):
            outputs = finish(outputs)
    kept = None if is_gone else candidate.loop.body
    for body in set().union(*(made.part.graphs for made in loops)) - {kept}:
        _graphs.forget(body)
    if graph is not None:
        _keep_account(graph.get_operations()[before:], name, tuple(notes))
    return Outcome(outputs, tuple(notes), is_gone)


def fusing(fuse: Any, functions: Sequence[Callable[..., Any]] = ()) -> Fuse:
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


def _keep_account(made: list[tf.Operation], name: str | None, notes: tuple[Note, ...]) -> None:
    """Gives the operation that a loop became, or else the first in its place, the account."""
    kinds = (*OPS, *RECOGNIZERS)
    made = [op for op in made if op not in _graphs.ACCOUNTS]
    op = next((op for op in made if op.type in kinds), made[0] if made else None)
    if op is not None:
        name = name or op.name.rpartition("/")[2]
        scope = tf.get_current_name_scope()
        # A name that ends with a slash is that of a scope, as for TensorFlow.
        path = name[:-1] if name.endswith("/") else f"{scope}/{name}" if scope else name
        _graphs.ACCOUNTS[op] = Account(path, notes, _tf.place_of(op))
