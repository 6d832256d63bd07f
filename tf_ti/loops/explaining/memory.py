"""The memory that a loop takes for its gradient."""

import dataclasses
import math
from collections.abc import Iterable, Mapping

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import slices as _slices
from tf_ti.loops.derivatives import written as _written
from tf_ti.loops.passes.analysis import without_identity
from tf_ti.loops.spec import OPS
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing import heavy as _heavy

_UNITS = ("B", "kB", "MB", "GB", "TB")
_HISTORY = "the history of "
_REFERENCE = 32  # the bytes of a tensor in a TensorArray, without its elements
# Operations on TensorArrays for whose gradients nobody needs the elements.
_BY_ELEMENTS = {
    "Identity",
    "TensorListElementShape",
    "TensorListGetItem",
    "TensorListLength",
    "TensorListSetItem",
    *OPS,
}


@dataclasses.dataclass(frozen=True)
class Size:
    """A number of bytes: a sum of products, of which some factors may not be known.

    Attributes:
        terms: by the names of unknown factors, the known one.
    """

    terms: Mapping[tuple[str, ...], int]

    @classmethod
    def of(cls, label: str, tensor: tf.Tensor) -> "Size":
        """The size of a tensor; extents that are not known are those of `label`."""
        dtype, shape = tensor.dtype, tensor.shape
        if shape.rank is None or dtype in (tf.string, tf.resource):
            return cls({(f"nbytes({label})",): 1})
        extents = shape.as_list()
        known = math.prod(d for d in extents if d is not None)
        unknown = tuple(f"shape({label})[{k}]" for k, d in enumerate(extents) if d is None)
        return cls({unknown: known * dtype.size})

    @classmethod
    def total(cls, sizes: Iterable["Size"]) -> "Size":
        terms: dict[tuple[str, ...], int] = {}
        for size in sizes:
            for unknown, known in size.terms.items():
                terms[unknown] = terms.get(unknown, 0) + known
        return cls({unknown: known for unknown, known in terms.items() if known})

    @property
    def bytes(self) -> int | None:
        """The number; None if a factor is not known."""
        return None if any(self.terms) else sum(self.terms.values())

    @property
    def formula(self) -> str:
        """The number, as Python would write it."""
        terms = [
            " * ".join([*([str(known)] if known > 1 or not unknown else []), *unknown])
            for unknown, known in self.terms.items()
        ]
        return " + ".join(terms) or "0"

    def times(self, factor: int | str) -> "Size":
        """The size of so many, or of a number of them that is not known."""
        if isinstance(factor, int):
            return Size({unknown: known * factor for unknown, known in self.terms.items()})
        return Size({(factor, *unknown): known for unknown, known in self.terms.items()})

    def __str__(self) -> str:
        number = self.bytes
        if number is None:
            return f"{self.formula} bytes"
        power = min(len(_UNITS) - 1, (len(str(number)) - 1) // 3)
        return f"{number / 1000**power:.3g} {_UNITS[power]}" if power else f"{number} B"


@dataclasses.dataclass(frozen=True)
class Recorded:
    """What the forward pass records if a gradient is taken.

    Attributes:
        states: the size of the states of one iteration.
        heavy: the size of the results of an iteration's heavy operations. With checkpoints they
            are computed again.
        others: the size of what else each iteration records: random numbers, say.
        iterations: their number; None if it is not known.
        checkpoint_every: the states are those of each such iteration.
    """

    states: Size
    heavy: Size
    others: Size
    iterations: int | None
    checkpoint_every: int = 1

    @property
    def size(self) -> Size:
        """All of it, and the states of a segment, where there are checkpoints."""
        return self.with_checkpoints(self.checkpoint_every)

    @property
    def best_checkpoint_every(self) -> int | None:
        """The `checkpoint_every` that takes least memory; None if the iterations are unknown."""
        return None if self.iterations is None else max(1, round(math.sqrt(self.iterations)))

    def with_checkpoints(self, every: int | str) -> Size:
        """The size with `checkpoint_every`: a number, or a name if the iterations are unknown."""
        count = self.iterations
        factor: int | str
        if every == 1:
            factor = "iterations" if count is None else count
        elif count is None or isinstance(every, str):
            factor = f"(iterations / {every} + {every})"
        else:
            factor = math.ceil(count / every) + min(every, count)
        everywhere: int | str = "iterations" if count is None else count
        parts = [self.states.times(factor), self.others.times(everywhere)]
        if every == 1:
            parts.append(self.heavy.times(everywhere))
        return Size.total(parts)

    def __str__(self) -> str:
        if self.iterations is None and self.checkpoint_every == 1:
            cure = f"; checkpoint_every=k: {self.with_checkpoints('k')}"
        else:
            every, cure = self.best_checkpoint_every, ""
            if every is not None and self.checkpoint_every == 1 and every > 2:
                cure = f"; checkpoint_every={every}: {self.with_checkpoints(every)}"
        return f"{self.size}{cure if self.states.terms else ''}"


def recorded(loop: TracedLoop) -> Recorded | None:
    """What a loop op records; None if it has no histories.

    A TensorArray keeps each element once, however many iterations have it. What an inner loop
    records it tells itself.
    """
    states: list[Size] = []
    heavy: list[Size] = []
    others: list[Size] = []
    every = 1
    open_pieces = {o.source for o in loop.spec.outputs if loop.spec.is_open(o)}
    states_that_follow = {result for result, _ in loop.spec.back_edges}
    for output in loop.spec.outputs:
        if output.mode != "sequence" or output.part_size:
            continue
        label = output.label.removeprefix(_HISTORY)
        if output.source < 0:
            every, source, sizes = output.stride, loop.body.inputs[~output.source], states
        else:
            source = without_identity(loop.body.outputs[output.source])
            if not _heavy.is_heavy(source.op) or output.source in open_pieces:
                sizes = others
            elif output.source in states_that_follow:  # the history of the state has it
                continue
            else:
                sizes = heavy
        if source.dtype != tf.variant:
            sizes.append(Size.of(label, source))
        elif not _tf.is_opaque(source) and _is_read_whole(source):
            sizes.append(Size({(f"length({label})",): _REFERENCE}))
    if not states and not heavy and not others:
        return None
    totals = Size.total(states), Size.total(heavy), Size.total(others)
    return Recorded(*totals, iterations(loop), every)


def _is_read_whole(array: tf.Tensor) -> bool:
    """True if something reads a TensorArray but for its elements: a gradient needs its versions."""
    waiting = [array]
    while waiting:
        tensor = waiting.pop()
        for op in tensor.consumers():
            if op.type not in _BY_ELEMENTS and not _written.is_only_written(tensor, [op], ()):
                return True
            waiting += [t for t in op.outputs if t.dtype == tf.variant]
    return False


def iterations(loop: TracedLoop) -> int | None:
    """The number of iterations, where that is known when the loop is traced."""
    return most_iterations(loop) if loop.condition is None else None


def most_iterations(loop: TracedLoop) -> int | None:
    """The iterations that a loop runs if no condition ends it earlier; None if not known."""
    limit = loop.num_iterations
    known = _tf.static_value(limit) if isinstance(limit, tf.Tensor) else limit
    if known is not None:
        return int(known)
    for given, tensor in zip(loop.spec.inputs, loop.tensors):
        if given.is_sliced and given.mode != "iterator" and tensor.shape.rank:
            extent = _tf.known_extent(tensor, given.axis)
            if extent is not None:
                return _slices.count(given, extent)
    return None
