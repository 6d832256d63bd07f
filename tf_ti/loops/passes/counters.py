"""States that only count: their values are known before the loop, so they become slices.

A scalar integer to which each iteration adds the same number needs no loop. What is computed of it
may leave the loop then, and a cell with a counter of steps is still a cell.

Only a loop that has tensors of as many elements gets another one: others may go on for ever.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import slices as _slices, spec as _spec
from tf_ti.loops.passes.analysis import Counts, without_identity
from tf_ti.loops.passes.step import Mention, Note, Step
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing.graphs import only_does


@dataclasses.dataclass(frozen=True)
class Index:
    """An integer of the body that counts.

    Attributes:
        by: the number that each iteration adds.
        state: the tensor that the state has before the loop.
        offset: the difference between this integer and the state.
    """

    by: int
    state: tf.Tensor
    offset: int

    @property
    def first(self) -> int | None:
        """The integer in the first iteration, if that is known."""
        known = _tf.static_value(self.state)
        return None if known is None else int(known) + self.offset


# A limit may be far beyond the iterators, which is an error of the loop's, and of no allocation.
_MOST_STEPS = 2**20
# The most values of a counter that become a constant of the graph.
_MOST_KNOWN = 2**10


def split(loop: TracedLoop) -> Step | None:
    """Takes the counters out of the states of a loop, if there are any."""
    is_long = any(given.is_sliced for given in loop.spec.inputs)
    is_long = is_long or any(o.mode in ("stack", "concat") for o in loop.spec.outputs)
    if loop.condition is not None or not is_long:
        return None
    found = {}
    for edge in loop.spec.back_edges:
        by = added(loop, *edge)
        if by is not None:
            found[edge] = by
    steps = _steps(loop) if found else None
    if steps is None:
        return None
    counts = Counts.of(loop)
    if not counts.may_leave:
        # Only the loop compares the numbers of iterations: last values stay in it.
        needed = {o.source for o in loop.spec.outputs if o.mode == "last"}
        found = {edge: by for edge, by in found.items() if edge[0] not in needed}
    return _with_slices(loop, found, *steps, counts.order) if found else None


def added(loop: TracedLoop, result: int, parameter: int) -> int | None:
    """What each iteration adds to a state, if it is a counter."""
    (value, *_), made = loop.part.parameters[parameter], loop.part.results[result]
    while made.op.type == "Identity" and _runs_anyway(loop, made.op.control_inputs):
        made = made.op.inputs[0]
    is_scalar = value.shape.rank == made.shape.rank == loop.tensors[parameter].shape.rank == 0
    if not (is_scalar and value.dtype.is_integer and made.op.type in ("Add", "AddV2", "Sub")):
        return None
    left, right = map(without_identity, made.op.inputs)
    if made.op.type == "Sub":
        number, sign = (right, -1) if left is value else (None, 0)
    else:
        number, sign = (right if left is value else left if right is value else None), 1
    known = None if number is None else _known(loop, number)
    # Integers wrap around, so a number of int64 does as much.
    return None if known is None else (sign * int(known) + 2**63) % 2**64 - 2**63


def _runs_anyway(loop: TracedLoop, operations: Sequence[tf.Operation]) -> bool:
    """True if the effects of operations do not depend on who waits for these.

    TensorFlow lets the results of a function wait for all that must run in it, an Assert say.
    """
    effects, stack, seen = set(loop.part.graph.control_outputs), list(operations), set()
    while stack:
        op = stack.pop()
        if op in effects or op in seen:
            continue
        if op.type != "NoOp" and not only_does(op, _tf.READS):
            return False
        seen.add(op)
        stack += op.control_inputs
    return True


def _known(loop: TracedLoop, number: tf.Tensor) -> Any:
    """The static value of a tensor of the body: of a constant, or of an invariant that is one."""
    known = tf.get_static_value(number)
    if known is None and number.op.type == "Placeholder":
        outside = invariant(loop, position(loop, number))
        known = None if outside is None else tf.get_static_value(outside)
    return known


def unstacked(loop: TracedLoop, op: tf.Operation) -> tf.Tensor | None:
    """The tensor whose element an operation of the body reads, through a list of its elements.

    None if it reads no list, or if the list was not unstacked before the loop.
    """
    if op.type != "TensorListGetItem":
        return None
    source = without_identity(op.inputs[0])
    if source.op.type != "Placeholder":
        return None
    array = invariant(loop, position(loop, source))
    if array is None or not tf.is_symbolic_tensor(array):
        return None
    made = without_identity(array).op
    return made.inputs[0] if made.type == "TensorListFromTensor" else None


def index_of(loop: TracedLoop, tensor: tf.Tensor) -> Index | None:
    """The way in which an integer of the body counts; None if it does not, or may wrap around."""
    parameters = {t.ref(): i for i, group in enumerate(loop.part.parameters) for t in group}
    offset = 0
    while (tensor := without_identity(tensor)).ref() not in parameters:
        op = tensor.op
        if op.type == "Cast" and (op.inputs[0].dtype, tensor.dtype) == (tf.int32, tf.int64):
            tensor = op.inputs[0]
            continue
        if op.type not in ("Add", "AddV2", "Sub"):
            return None
        tensor, number = op.inputs
        known = _known(loop, number)
        if known is None and op.type != "Sub":
            tensor, known = number, _known(loop, tensor)
        if known is None or tensor.shape.rank != 0:
            return None
        offset += -int(known) if op.type == "Sub" else int(known)
    for result, parameter in loop.spec.back_edges:
        if parameter == parameters[tensor.ref()] and tensor.dtype in (tf.int32, tf.int64):
            by = added(loop, result, parameter)
            return None if by is None else Index(by, loop.tensors[parameter], offset)
    return None


def position(loop: TracedLoop, parameter: tf.Tensor) -> int:
    """The position of a parameter of the body."""
    groups = enumerate(loop.part.parameters)
    return next(i for i, group in groups if any(given is parameter for given in group))


def invariant(loop: TracedLoop, parameter: int) -> tf.Tensor | None:
    """The value that a parameter has in all iterations, if that is one from before the loop."""
    if parameter >= len(loop.tensors) or loop.spec.inputs[parameter].mode != "value":
        return None
    for result, target in loop.spec.back_edges:
        if target == parameter:
            following = without_identity(loop.part.results[result])
            is_kept = any(following is given for given in loop.part.parameters[parameter])
            return loop.tensors[parameter] if is_kept else None
    return loop.tensors[parameter]


def _steps(loop: TracedLoop) -> tuple[int | tf.Tensor, str] | None:
    """The number of iterations, and the label of the input, or the limit, that tells it.

    None if it is not known before the loop runs, or to XLA.
    """
    limit = loop.num_iterations
    static = _tf.static_value(limit) if isinstance(limit, tf.Tensor) else limit
    if static is not None:
        return (max(int(static), 0), loop.spec.limit_label) if static <= _MOST_STEPS else None
    for given, tensor in zip(loop.spec.inputs, loop.tensors):
        if given.is_sliced and given.mode != "iterator" and tensor.shape.rank:
            extent = _tf.known_extent(tensor, given.axis)
            if _slices.covers(given) and given.part_size == abs(given.stride) == 1:
                if extent is None:
                    extent = tf.shape(tensor, tf.int64)[given.axis]
                return extent, given.label
    return None


def _numbers(
    initial: tf.Tensor, by: int, steps: int | tf.Tensor, order: int
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The values of a counter in the iterations, and the addends of its last value."""
    first = _tf.static_value(initial)
    if first is not None and isinstance(steps, int) and steps <= _MOST_KNOWN:
        # Few operations are traced sooner. Integers wrap around here, too.
        added = (by * np.arange(steps + 1)).astype(initial.dtype.as_numpy_dtype)
        numbers = np.asarray(first).reshape([1]) + added
        return tf.constant(numbers[:-1][::order]), [tf.constant(numbers[-1])]
    added = by * tf.range(steps, dtype=tf.int64)
    values = initial + tf.cast(added if order > 0 else added[::-1], initial.dtype)
    return values, [initial, tf.cast(by * tf.cast(steps, tf.int64), initial.dtype)]


def _with_slices(
    loop: TracedLoop,
    counters: dict[tuple[int, int], int],
    steps: int | tf.Tensor,
    told_by: str,
    order: int,
) -> Step:
    spec, part = loop.spec, loop.part
    start, end = (0, -1) if order > 0 else (-1, 0)
    inputs, tensors, last, operations = list(spec.inputs), list(loop.tensors), {}, []
    for (result, parameter), by in counters.items():
        initial = tensors[parameter]
        with tf.name_scope("before_loop"):
            values, last[result] = _numbers(initial, by, steps, order)
        shape = inputs[parameter].shape
        # An error of lengths names what tells the number, and no state.
        inputs[parameter] = _spec.Input(told_by, shape, "index", 0, start, end, order)
        tensors[parameter] = values
        operations.append(Mention.of(without_identity(part.results[result]).op))
    edges = [edge for edge in spec.back_edges if edge not in counters]
    left = [o for o in spec.outputs if not (o.mode == "last" and o.source in last)]
    used = {result for result, _ in edges} | {o.source for o in left}
    kept = [r for r in range(len(part.results)) if r in used or r not in last]
    place = {r: k for k, r in enumerate(kept)}
    made = None
    if left or part.graph.control_outputs:
        made = loop.with_part(
            dataclasses.replace(
                spec,
                inputs=tuple(inputs),
                outputs=tuple(dataclasses.replace(o, source=place[o.source]) for o in left),
                back_edges=tuple((place[r], p) for r, p in edges),
                result_types=tuple(spec.result_types[r] for r in kept),
                result_shapes=tuple(spec.result_shapes[r] for r in kept),
            ),
            tensors,
            part.parameters,
            [part.results[r] for r in kept],
        )
        num_results = sum(r < loop.num_users_results for r in kept)
        made = dataclasses.replace(made, num_results=num_results)

    def finish(outputs: list[tf.Tensor]) -> list[tf.Tensor]:
        own, its = iter(outputs), set(left)
        return [
            next(own) if o in its else functools.reduce(tf.add, last[o.source])
            for o in spec.outputs
        ]

    where = "before it, for all iterations"
    text = f"computed {where}: {', '.join(spec.inputs[p].label for _, p in counters)}, which counts"
    note = Note("counters", text, True, tuple(operations), len(operations), place=where)
    return Step(made, finish, (note,))
