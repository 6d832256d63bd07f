"""The operations of a body, by the values that they depend on.

Each operation of a body is one of four:

    invariant   of captured values and inputs that are the same in all iterations,
    before      of those and of slices,
    core        of a state, which in turn depends on it,
    after       of a state, and no state depends on it.

An operation that could leave the loop, but for one thing, is of the core; the analysis has the
reason.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import slices as _slices, spec as _spec
from tf_ti.loops.passes import batching as _batching, failing as _failing
from tf_ti.loops.passes.step import Unknown
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing import custom_gradients as _custom_gradients, graphs as _graphs

CONSTANT, INVARIANT, BEFORE, CORE = range(4)
_LARGEST = 4  # the values at the cuts, of slices and outputs
_UNKNOWN = 2**64
_ENSURE = "tf.ensure_shape gives a tensor a known shape."
_AGREE = "Give the tensors that it slices known numbers of steps: tf.ensure_shape does."


@dataclasses.dataclass(frozen=True, eq=False)
class Counts:
    """The number of iterations, as far as it is known before the loop runs.

    Attributes:
        counted: the inputs that are sliced.
        agreement: for each of them a key, which is equal where numbers of iterations are known to
            agree.
        has_iterations: true if there is an iteration.
        is_limited: true if a limit may tell less than that.
        order: 1 if the iterations lie along a new axis from the first to the last, as they do in
            the tensors where those agree, else -1.
    """

    counted: tuple[int, ...]
    agreement: Mapping[int, Any]
    has_iterations: bool
    is_limited: bool
    order: int

    @property
    def may_leave(self) -> bool:
        """True if all that tells the number is known to agree: without the loop nobody compares."""
        return not self.is_limited and len(set(self.agreement.values())) <= 1

    @classmethod
    def of(cls, loop: TracedLoop) -> "Counts":
        spec, limit = loop.spec, _limit(loop)
        counted = tuple(i for i, given in enumerate(spec.inputs) if given.is_sliced)
        strides = [spec.inputs[i].stride for i in counted]
        strides = strides or [o.stride for o in spec.outputs if o.mode in ("stack", "concat")]
        static = tf.get_static_value(limit) if isinstance(limit, tf.Tensor) else limit
        counts = set() if static is None else {int(static)}
        found = {}
        for i in counted:
            given, extent = spec.inputs[i], None
            shape = loop.tensors[i].shape
            if shape.rank is not None and -shape.rank <= given.axis < shape.rank:
                extent = shape.as_list()[given.axis]
            if extent is None:
                continue
            try:
                found[i] = _slices.count(given, extent)
            except ValueError as error:
                raise Unknown(str(error)) from None
            if given.mode != "iterator":
                counts.add(found[i])
        if len(counts) > 1:
            numbers = ", ".join(map(str, sorted(counts)))
            raise Unknown(f"the numbers of iterations differ: {numbers}")
        count = next(iter(counts), None)
        agreement: dict[int, Any] = {}
        labelled = {spec.inputs[i].label: i for i in reversed(counted)}
        for i in counted:
            is_known = i in found and count is not None and found[i] >= count
            agreement[i] = "known" if is_known else labelled[spec.inputs[i].label]
        is_known = all(key == "known" for key in agreement.values())
        is_limited = limit is not None and not (is_known and static is not None)
        return cls(
            counted,
            agreement,
            bool(count),
            is_limited,
            -1 if strides and max(strides) < 0 else 1,
        )


def _limit(loop: TracedLoop) -> int | tf.Tensor | None:
    """The limit of a loop; None if it is the extent of a tensor that the loop slices."""
    limit = loop.num_iterations
    if isinstance(limit, tf.Tensor) and not isinstance(limit, _tf.EagerTensor):
        for given, tensor in zip(loop.spec.inputs, loop.tensors):
            is_whole = given.is_sliced and given.part_size == 1 and _slices.covers(given)
            if is_whole and _tf.is_extent(limit, tensor, given.axis):
                return None
    return limit


@dataclasses.dataclass(frozen=True, eq=False)
class Uses:
    """The ways from the body's operations to the outputs of the loop.

    Attributes:
        results: the body's, without the copies that TensorFlow gives functions of them.
        used: the positions of those that become outputs, states or histories.
        staying: references of those that the loop must have.
        leaving: references of the others.
        operations: all that compute them, sorted.
        readers: by operation, those that read it.
        parameters: the positions of the body's parameters, by their operations.
        largest: the largest number of bytes for the values at a cut.
    """

    results: tuple[tf.Tensor, ...]
    used: tuple[int, ...]
    staying: frozenset[Any]
    leaving: frozenset[Any]
    operations: tuple[tf.Operation, ...]
    readers: Mapping[tf.Operation, Sequence[tf.Operation]]
    parameters: Mapping[tf.Operation, int]
    largest: int

    @classmethod
    def of(cls, loop: TracedLoop, counts: Counts) -> "Uses":
        spec, graph = loop.spec, loop.body
        results = tuple(map(without_identity, graph.outputs))
        staying = {result for result, _ in spec.back_edges}
        staying |= set(range(loop.num_users_results, len(graph.outputs)))
        staying |= {o.source for o in spec.outputs if not may_be_joined_outside(loop, o)}
        used = sorted({o.source for o in spec.outputs} | staying)
        largest = _LARGEST * (
            size_of(graph.inputs[i] for i in counts.counted)
            + size_of(results[o.source] for o in spec.outputs if o.mode in ("stack", "concat"))
        )
        operations = tuple(
            _graphs.needed_operations(
                graph.inputs, [results[r] for r in used], graph.control_outputs
            )
        )
        readers: dict[tf.Operation, list[tf.Operation]] = {}
        for op in operations:
            for source in dict.fromkeys(t.op for t in op.inputs):
                readers.setdefault(source, []).append(op)
        references = frozenset(results[r].ref() for r in staying)
        return cls(
            results,
            tuple(used),
            references,
            frozenset(results[r].ref() for r in used) - references,
            operations,
            readers,
            {parameter.op: i for i, parameter in enumerate(graph.inputs)},
            largest,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Analysis:
    """A loop, and the level of each operation of its body.

    Attributes:
        loop: the loop.
        counts: its number of iterations.
        uses: the ways to its outputs.
        bound: operations that custom gradients keep in the loop.
        lost: shapes of tensors that stay in the loop.
        levels: CONSTANT, INVARIANT, BEFORE or CORE, by operation; those after are of the core too.
        origins: by operation that is before, the first slice that it uses.
        before, after: the operations that could move.
        reasons: by operation, or parameter, that could move but for that, the reason.
    """

    loop: TracedLoop
    counts: Counts
    uses: Uses
    bound: frozenset[tf.Operation]
    lost: frozenset[tf.Operation]
    levels: Mapping[tf.Operation, int]
    origins: Mapping[tf.Operation, int]
    before: frozenset[tf.Operation]
    after: frozenset[tf.Operation]
    reasons: Mapping[tf.Operation, Unknown]

    def level(self, tensor: tf.Tensor) -> int:
        return self.levels[tensor.op]

    def is_invariant(self, tensor: tf.Tensor) -> bool:
        return self.levels[tensor.op] <= INVARIANT

    def is_outside(self, tensor: tf.Tensor) -> bool:
        """True if it is of no state, and may be computed outside of the loop."""
        return self.levels[tensor.op] <= BEFORE

    def is_after(self, tensor: tf.Tensor) -> bool:
        return tensor.op in self.after

    def is_stacked(self, tensor: tf.Tensor) -> bool:
        """True if iterations have other values of it."""
        return self.levels[tensor.op] >= BEFORE

    def may_be_joined_outside(self, output: _spec.Output) -> bool:
        return may_be_joined_outside(self.loop, output)

    def input_of(self, parameter: tf.Tensor) -> tuple[_spec.Input, tf.Tensor] | None:
        """The input of a parameter, and the tensor that it gets; None for no parameter."""
        i = self.uses.parameters.get(parameter.op)
        return None if i is None else (self.loop.spec.inputs[i], self.loop.tensors[i])

    def agreements(self, tensors: Iterable[tf.Tensor]) -> set[Any]:
        """The keys, by which numbers of iterations agree, of those tensors that are before."""
        origins = [self.origins[t.op] for t in tensors if self.levels[t.op] == BEFORE]
        return {self.counts.agreement[origin] for origin in origins}

    def agree(self, tensors: Iterable[tf.Tensor]) -> bool:
        """True if there are as many of each of some slices, or of values computed of them."""
        return len(self.agreements(tensors)) <= 1

    @functools.cached_property
    def staying(self) -> frozenset[Any]:
        """References of the results that the loop must have."""
        return self.uses.staying | {
            self.uses.results[r].ref()
            for r in self.uses.used
            if not self._may_be_given(self.uses.results[r])
        }

    @functools.cached_property
    def leaving(self) -> frozenset[Any]:
        """References of the results that the loop need not have."""
        return self.uses.leaving - self.staying

    def _may_be_given(self, result: tf.Tensor) -> bool:
        is_core = self.levels[result.op] == CORE
        return is_core or (self.counts.may_leave and result.op in self.before)

    def keeping_custom_gradients(self) -> "Analysis":
        """The same where all stays that a custom gradient holds together."""
        bound: set[tf.Operation] = set()
        for op in self.uses.operations:
            gradient = _custom_gradients.of(op)
            if gradient is not None and not gradient.is_silu:
                bound |= gradient.group(op)
        return self if bound <= self.bound else analyse(self.loop, self.bound | bound, self.lost)


def analyse(
    loop: TracedLoop,
    bound: frozenset[tf.Operation] = frozenset(),
    lost: frozenset[tf.Operation] = frozenset(),
) -> Analysis:
    """Finds the levels; refuses loops that may be nothing else."""
    if loop.condition is not None:
        cure = "Where the number of steps is known before, a count in its place lets more leave."
        raise Unknown("its condition is of the values of an iteration", cure=cure)
    counts = Counts.of(loop)
    for op in loop.body.get_operations():
        if _graphs.has_open_gradient(op):
            raise Unknown("the tensors to which its custom gradient refers are not known", op)
    uses = Uses.of(loop, counts)
    return _Levels(loop, counts, uses, bound, lost).analysis()


class _Levels:
    """The levels under construction, in the order of the operations."""

    def __init__(
        self,
        loop: TracedLoop,
        counts: Counts,
        uses: Uses,
        bound: frozenset[tf.Operation],
        lost: frozenset[tf.Operation],
    ):
        self._loop, self._counts, self._uses = loop, counts, uses
        self._bound, self._lost = bound, lost
        self._states = {parameter for _, parameter in loop.spec.back_edges}
        self._levels: dict[tf.Operation, int] = {}
        self._origins: dict[tf.Operation, int] = {}
        self._reasons: dict[tf.Operation, Unknown] = {}

    def analysis(self) -> Analysis:
        for op, i in self._uses.parameters.items():
            self._origins[op] = i
            self._levels[op] = self._or_core(op, self._level_of_input)
        for op in self._uses.operations:
            self._levels[op] = self._or_core(op, self._level_of)
        before = [op for op in self._uses.operations if self._levels[op] == BEFORE]
        after: set[tf.Operation] = set()
        for op in reversed(self._uses.operations):
            if self._levels[op] == CORE and self._is_after(op, after):
                after.add(op)
        return Analysis(
            self._loop,
            self._counts,
            self._uses,
            self._bound,
            self._lost,
            self._levels,
            self._origins,
            frozenset(before),
            frozenset(after),
            self._reasons,
        )

    def _or_core(self, op: tf.Operation, level_of: Callable[[tf.Operation], int]) -> int:
        try:
            return level_of(op)
        except Unknown as refusal:
            self._reasons[op] = refusal.at(op)
            return CORE

    def _level_of_input(self, op: tf.Operation) -> int:
        i = self._origins[op]
        given, shape = self._loop.spec.inputs[i], self._loop.tensors[i].shape
        parameter = self._loop.body.inputs[i]
        if i in self._states:
            return CORE
        if parameter.dtype not in _batching.TYPES:
            raise Unknown(f"{given.label} has values of type {parameter.dtype.name}")
        if shape.rank is None:
            raise Unknown(f"the rank of {given.label} is not known", cure=_ENSURE)
        if given.mode not in ("value", "slice", "index", "iterator"):
            raise Unknown(f"{given.label} is a history")
        known = shape.as_list()
        if given.is_sliced:
            if not _slices.tiles(given):
                raise Unknown(f"the pieces of {given.label} overlap or leave gaps")
            if not -shape.rank <= given.axis < shape.rank:
                raise Unknown(f"the axis of {given.label} is out of range")
            if self._counts.agreement[i] == i:
                if given.part_size != 1 or not _slices.covers(given):
                    reason = f"only the loop finds out if the pieces of {given.label} fit"
                    raise Unknown(reason, cure=_AGREE)
            known[given.axis] = given.part_size
            if given.mode != "slice":
                del known[given.axis]
        if parameter.shape.rank != len(known) or any(
            d is None and p is not None for d, p in zip(known, parameter.shape.as_list())
        ):
            reason = f"only the loop finds out if {given.label} has the body's shape"
            raise Unknown(reason, cure=_ENSURE)
        return BEFORE if given.is_sliced else INVARIANT

    def _level_of(self, op: tf.Operation) -> int:
        if op.type == "Const" and not op.control_inputs:
            return CONSTANT
        used = _batching.used(op)
        levels = [self._levels[t.op] for t in used]
        if not levels:
            raise Unknown("it depends on more than the inputs of the body")
        level = max(levels)
        if level == CORE:
            return CORE
        if level == BEFORE:
            if op.type == "Shape":
                if op in self._lost:
                    raise Unknown("it is the shape of a tensor that stays in the loop")
                _batching.check_plain(op)
                return INVARIANT
            origins = [self._origins[t.op] for t, own in zip(used, levels) if own == BEFORE]
            if len({self._counts.agreement[origin] for origin in origins}) > 1:
                reason = "the numbers of its inputs' slices are not known to agree"
                raise Unknown(reason, cure=_AGREE)
            self._origins[op] = origins[0]
        self._check_movable(op, levels)
        return level

    def _check_movable(self, op: tf.Operation, levels: Sequence[int]) -> None:
        is_stacked = [level >= BEFORE for level in levels]
        if op in self._bound:
            raise Unknown("a custom gradient holds it together with others")
        _batching.check(op, is_stacked)
        if not self._counts.has_iterations and _failing.may_fail(op, is_stacked, self._outside):
            raise Unknown("it may fail where there is no iteration")
        if any(is_stacked):
            size = size_of(filter(_batching.is_read, op.outputs))
            if size > self._uses.largest:
                raise Unknown(
                    f"its values are {_many(size)}, more than {_LARGEST} times those of the slices "
                    "and outputs"
                )

    def _outside(self, parameter: tf.Tensor) -> tf.Tensor | None:
        i = self._uses.parameters.get(parameter.op)
        if i is None:
            outermost = _tf.outermost(parameter)
            return None if outermost is parameter else outermost
        is_same = i not in self._states and self._loop.spec.inputs[i].mode == "value"
        return self._loop.tensors[i] if is_same else None

    def _is_after(self, op: tf.Operation, after: set[tf.Operation]) -> bool:
        if any(t.ref() in self._uses.staying for t in op.outputs):
            return False
        if any(reader not in after for reader in self._uses.readers.get(op, ())):
            return False
        levels = [self._levels[t.op] for t in _batching.used(op)]
        # Without a value of the loop nobody would wait for an error that the loop finds.
        if CORE not in levels:
            return False
        try:
            self._check_movable(op, levels)
        except Unknown as refusal:
            self._reasons[op] = refusal.at(op)
            return False
        return True


def may_be_joined_outside(loop: TracedLoop, output: _spec.Output) -> bool:
    """True if the output may as well be made of the stacked values, outside of the loop."""
    if output.mode == "stack":
        return output.length < 0 and loop.body.outputs[output.source].shape.rank is not None
    if output.mode != "concat":
        return False
    extent = loop.spec.concat_extent(output)
    return extent is not None and output.part_size in (0, extent)


def size_of(tensors: Iterable[tf.Tensor]) -> int:
    """The bytes of tensors; an unknown dimension counts as larger than all that are known."""
    return sum(map(_size, tensors))


def _size(tensor: tf.Tensor) -> int:
    if tensor.shape.rank is None:
        return _UNKNOWN**8
    extents = tensor.shape.as_list()
    return tensor.dtype.size * math.prod(_UNKNOWN if d is None else d for d in extents)


def _many(size: int) -> str:
    return f"{size} bytes an iteration" if size < _UNKNOWN else "of unknown size"


def without_identity(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor of which one is a copy, which TensorFlow gives functions of their results."""
    while tensor.op.type == "Identity" and not tensor.op.control_inputs:
        tensor = tensor.op.inputs[0]
    return tensor
