"""Conditions that only count: the loop gets a number of iterations in their place.

TensorFlow writes "for each of n" as a while loop with the condition `k < n`, where k is a state to
which each iteration adds 1. The number of iterations is known before such a loop, so that it needs
no condition, and passes for loops without one apply to it.

The bound must be the same in all iterations, and the condition must be the comparison alone. A loop
whose counter wraps around never ends, so there is no rule for it.
"""

import dataclasses
from typing import TypeAlias

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import arguments as _arguments
from tf_ti.loops.passes import batching as _batching, counters as _counters
from tf_ti.loops.passes.analysis import without_identity
from tf_ti.loops.passes.step import Note, Step, Unknown
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing import graphs as _graphs

_LARGEST = 2**63 - 1
# For each type of a comparison: the number that each iteration adds to a counter on the left, or on
# the right; and whether there is an iteration in which the counter equals the bound.
_COMPARISONS = {
    "Less": ((1, -1), False),
    "LessEqual": ((1, -1), True),
    "Greater": ((-1, 1), False),
    "GreaterEqual": ((-1, 1), True),
}
_Number: TypeAlias = int | tf.Tensor


def count(loop: TracedLoop) -> Step | None:
    """Gives a loop that counts its number of iterations in place of the condition."""
    condition = loop.condition
    # Values that the body shares with the condition, and effects, need the condition.
    if condition is None or len(condition.outputs) > 1 or condition.control_outputs:
        return None
    test = without_identity(condition.outputs[0])
    signs, is_inclusive = _COMPARISONS.get(test.op.type, ((), False))
    for side, sign in enumerate(signs):
        counter, bound = (without_identity(test.op.inputs[k]) for k in (side, 1 - side))
        edge = _state(loop, counter)
        if edge is None or _counters.added(loop, *edge) != sign:
            continue
        end = _outside(loop, bound)
        last = counter.dtype.max if sign > 0 else counter.dtype.min
        if end is None or (is_inclusive and _may_be(end, last, loop)):
            return None  # there the counter would wrap around
        first = _number(loop.tensors[edge[1]])
        steps = _steps(*((first, end) if sign > 0 else (end, first)), is_inclusive)
        if steps is None or _limits_what_xla_records(loop, steps):
            return None
        limit = steps if loop.num_iterations is None else _least(loop.num_iterations, steps)
        return Step(_without_condition(loop, limit), notes=(_note(loop, edge[1], first, end),))
    return None


def _may_be(end: _Number, last: int, loop: TracedLoop) -> bool:
    """True if a bound may be the last number of its type, and the loop ends nevertheless."""
    if isinstance(end, int):
        return end == last
    return loop.num_iterations is not None and _tf.extent_before(end, 1) is None


def _state(loop: TracedLoop, tensor: tf.Tensor) -> tuple[int, int] | None:
    """The back edge of a state that the condition reads, if it is one, and counts safely."""
    if tensor.dtype not in (tf.int32, tf.int64) or loop.condition is None:
        return None
    read = zip(loop.condition.inputs, loop.condition_inputs)
    at = next((i for parameter, i in read if parameter is tensor), None)
    return next((edge for edge in loop.spec.back_edges if edge[1] == at), None)


def _outside(loop: TracedLoop, bound: tf.Tensor) -> _Number | None:
    """The bound, computed before the loop; None if it is not the same in all iterations.

    Operations that compute something else outside stay in the condition.
    """
    condition, positions = loop.condition, loop.condition_inputs
    assert condition is not None
    known = tf.get_static_value(bound)
    if known is not None:
        return int(known)
    given = {p.ref(): _counters.invariant(loop, i) for p, i in zip(condition.inputs, positions)}
    if bound.ref() in given:
        outside = given[bound.ref()]
        return None if outside is None else _number(outside)
    operations = _graphs.needed_operations(condition.inputs, [bound])
    read = {t.ref() for op in operations for t in op.inputs}
    if any(given.get(ref, bound) is None for ref in read):
        return None
    for op in operations:
        is_stacked = [False] * len(_batching.used(op))
        try:
            _batching.check(op, is_stacked)
        except Unknown:
            return None
    refs = [ref for ref in read if ref in given]
    stand_ins = dict(zip(refs, _tf.captured([given[ref] for ref in refs])))
    with tf.name_scope("before_loop"):
        return _number(_graphs.copy_to_default_graph(condition, [bound], [], stand_ins)[0])


def _number(tensor: tf.Tensor) -> _Number:
    known = _tf.static_value(tensor)
    return tensor if known is None else int(known)


def _steps(low: _Number, high: _Number, is_inclusive: bool) -> _Number | None:
    """The number of steps by 1 from one number to another one, of which fewer than 0 are none.

    None where it may not fit int64.
    """
    if isinstance(low, int):
        low -= is_inclusive
        if isinstance(high, int):
            return min(max(high - low, 0), _LARGEST)
        if low == -1 and (extent := _tf.extent_before(high, 1)) is not None:
            low, high = 0, extent
        if low == 0:  # then all see whose extent it is
            return _arguments.at_least_0(high)
        is_inclusive = False
    given = [number for number in (low, high) if not isinstance(number, int)]
    if any(number.dtype == tf.int64 for number in given) and not (isinstance(low, int) and low > 0):
        return None
    with tf.name_scope("before_loop"):
        low, high = (tf.cast(number, tf.int64) for number in (low, high))
        if is_inclusive:
            high += 1
        return tf.maximum(high, low) - low  # high - low, where it is negative, may not fit int64


def _limits_what_xla_records(loop: TracedLoop, steps: _Number) -> bool:
    """True if XLA knows the loop's limit, and not the number of steps.

    With a condition and a constant limit XLA compiles the gradient of such a loop, now or later.
    """
    limit = loop.num_iterations
    is_constant = limit is not None and (
        isinstance(limit, int) or _tf.static_value(limit) is not None
    )
    return is_constant and isinstance(steps, tf.Tensor) and not _tf.is_any_extent(steps)


def _least(limit: _Number, steps: _Number) -> _Number:
    """The smaller number of iterations: a given one, if it is known which is smaller."""
    known = limit if isinstance(limit, int) else _tf.static_value(limit)
    if known is not None and isinstance(steps, int):
        return min(int(known), steps)
    if known is None and not isinstance(steps, int):
        if _tf.are_same_count(limit, steps):
            return limit
        if _tf.is_at_most(steps, limit):
            return steps
    with tf.name_scope("before_loop"):
        return tf.minimum(tf.cast(limit, tf.int64), tf.cast(steps, tf.int64))


def _without_condition(loop: TracedLoop, limit: _Number) -> TracedLoop:
    limit_label = "the condition" if loop.num_iterations is None else loop.spec.limit_label
    spec = dataclasses.replace(loop.spec, condition_inputs=None, limit_label=limit_label)
    return dataclasses.replace(loop, spec=spec, condition=None, num_iterations=limit)


def _note(loop: TracedLoop, parameter: int, first: _Number, end: _Number) -> Note:
    first, end = (str(n) if isinstance(n, int) else repr(n.op.name) for n in (first, end))
    text = f"counted: {loop.spec.inputs[parameter].label} from {first} to {end}"
    return Note("counted", text, True)
