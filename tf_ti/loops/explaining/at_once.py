"""The kernels of a loop that may be at work at once."""

from collections.abc import Iterable

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.passes import programs as _programs
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing import graphs as _graphs

_WHERE = "where kernels take longer than it takes to wake a thread"


def lines(loop: TracedLoop) -> list[str]:
    """What is said of a loop."""
    operations = [
        op for op in _programs.in_each_iteration(loop.body) if _programs.refusal(op) is not None
    ]
    if not loop.spec.fuse or not operations or not _programs.are_there():
        return []
    if not all(_graphs.only_does(op, _tf.CHECKS | _tf.READS) for op in _operations(loop)):
        return []
    followers = {op: _Followers(loop, op) for op in operations}
    found = []
    most = loop.spec.parallel_iterations
    if most != 1 and any(not followers[a].has_next(b) for a in operations for b in operations):
        limit = str(most) if most else "one more than there are threads"
        found.append(f"iterations run at once, {_WHERE}: up to {limit}")
    for i, a in enumerate(operations):
        for b in operations[:i]:
            if not followers[a].has_here(b) and not followers[b].has_here(a):
                found.append(f"kernels of an iteration run at once, {_WHERE}: {b.type}, {a.type}")
                return found
    return found


def _operations(loop: TracedLoop) -> Iterable[tf.Operation]:
    return (op for graph in loop.graphs for op in graph.get_operations())


class _Followers:
    """The operations that an operation is before: in its own iteration, and in the next one."""

    def __init__(self, loop: TracedLoop, op: tf.Operation):
        self._here: set[tf.Operation] = set()
        self._next: set[tf.Operation] = set()
        inputs, results = loop.body.inputs, loop.body.outputs
        gate = {inputs[p].op for p in loop.condition_inputs}
        next_of: dict[tf.Operation, set[tf.Operation]] = {}
        for result, parameter in loop.spec.back_edges:
            next_of.setdefault(results[result].op, set()).add(inputs[parameter].op)
        found = [(op, False)]
        while found:
            at, is_next = found.pop()
            here = {each for t in at.outputs for each in t.consumers()}
            here.update(_tf.waiting_operations(at))
            if is_next and at in gate:  # the iteration waits for its condition
                here.update(loop.body.get_operations())
            reached = [(other, is_next) for other in here]
            if not is_next:
                reached += [(other, True) for other in next_of.get(at, ())]
            for other, in_next in reached:
                known = self._next if in_next else self._here
                if other not in known:
                    known.add(other)
                    found.append((other, in_next))

    def has_here(self, op: tf.Operation) -> bool:
        return op in self._here

    def has_next(self, op: tf.Operation) -> bool:
        return op in self._next
