"""Loops in eager mode: a function that has the loop is traced, and called.

So an eager loop and its gradient are those of a graph, and all that was made for the call goes when
nobody needs it any more.
"""

import collections
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

from tf_ti import _tf
from tf_ti.loops.tracing.kept import Calls, Ticket, programs_switch
from tf_ti.loops.tracing.structure import Structure

_FREQUENT = 5
# The number of traces of the body, or block, that begins in a line of some code.
_traces: weakref.WeakKeyDictionary[types.CodeType, collections.Counter[int]] = (
    weakref.WeakKeyDictionary()
)


def call(
    add: Callable[[Sequence[tf.Tensor], Any], Structure],
    tensors: Sequence[tf.Tensor],
    num_iterations: int | tf.Tensor | None,
    functions: Sequence[Callable[..., Any]],
    key: tuple[Hashable, ...],
    ticket: Ticket | None = None,
) -> Any:
    """Adds a loop to the current graph; in eager mode, calls a function that has it.

    That function is traced for each call: a global variable that the body reads, say, may have
    changed. But a `ConcreteFunction` does not change, and keeps the last functions made of it.

    Args:
        add: adds the loop to a graph, from the tensors and the number of iterations; returns its
            outputs.
        tensors, num_iterations: those.
        functions: the body, and all other callables, as `Way.resolve` left them.
        key: all else that the graph depends on.
        ticket: that of the call, which then keeps the function for the same call too.
    """
    if not needs_function():
        outputs = add(tensors, num_iterations)
        return outputs.pack(outputs.leaves)
    is_counted, outputs = num_iterations is not None, Structure(None)

    def loop(*tensors: tf.Tensor) -> list[Any]:
        nonlocal outputs
        outputs = add(tensors[:-1], tensors[-1]) if is_counted else add(tensors, None)
        return outputs.leaves

    if is_counted:
        tensors = [*tensors, tf.cast(num_iterations, tf.int64)]
    specs = tuple(tf.TensorSpec(t.shape, t.dtype) for t in tensors)
    body, *others = functions
    is_kept = all(isinstance(function, ConcreteFunction) for function in functions)
    kept = Calls.of(body, "_tf_ti_loops") if is_kept else None
    key = (*key, *others, is_counted, specs, _tf.current_device(), programs_switch())
    found: Any = None if kept is None else kept.calls.get(key)
    if found is None:
        if kept is None:
            count_body(body)
        found = _tf.make_concrete_function("tf_ti_loop", loop, specs), outputs
        if kept is not None:
            kept.keep(key, found)
    function, outputs = found
    if _tf.have_tangents([*tensors, *function.captured_inputs]):
        # A function's gradient has no tangents: TensorFlow knows none of a variant.
        return outputs.pack(loop(*tensors))
    with _tf.Interruptible():
        results = outputs.pack(function(*tensors))
    if ticket is not None:
        ticket.keep(function, outputs, tensors)
    return results


def needs_function() -> bool:
    """True if a loop is to be called as a function rather than added to a graph.

    In one of TensorFlow's own threads, that of a tf.py_function, it is run as an operation: a
    function may wait for a thread that waits for it. Only a tape cannot do without.
    """
    if not tf.executing_eagerly():
        return False
    is_foreign = isinstance(threading.current_thread(), threading._DummyThread)
    return _tf.is_recording() or not is_foreign


def count_body(body: Callable[..., Any]) -> None:
    """Warns, once, where a body is traced again and again."""
    function = inspect.unwrap(getattr(body, "func", body))  # of a functools.partial
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    code = getattr(function, "__code__", None)
    if code is not None:
        _count(code, code.co_firstlineno, "body", ", or give it a tf.function as its body")


def count_block() -> None:
    """The same for the block of a `tf_ti.Loop`, which the caller's caller opens."""
    frame = _tf.users_frame()
    _count(frame.f_code, frame.f_lineno, "block of a tf_ti.Loop in", "")


def _count(code: types.CodeType, line: int, what: str, cure: str) -> None:
    lines = _traces.setdefault(code, collections.Counter())
    lines[line] += 1
    if lines[line] == _FREQUENT:
        tf.get_logger().warning(
            "tf_ti: the %s %r (%s:%d) has been traced %d times, as it is for each call in eager "
            "mode: what it reads may have changed. Tracing takes longer than most loops: call the "
            "loop in a tf.function%s.",
            what,
            code.co_name,
            code.co_filename,
            line,
            _FREQUENT,
            cure,
        )
