"""Settings: whether loops that are traced, and look-ups, run as tf_ti's."""

import contextlib
import contextvars
import dataclasses
import functools
import inspect
import threading
import time
import types
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction, PolymorphicFunction

from tf_ti import _tf

_Function = TypeVar("_Function", bound=Callable[..., Any])

# The longest time that other threads wait for a block to enter an object that was just made.
_MOST_SECONDS = 1.0
# The calls that hold everywhere, and the settings of all blocks; the last one rules. Each tuple is
# replaced as a whole, so that threads that trace read it without a lock.
_everywhere: tuple["_Call", ...] = ()
_entered: tuple["Acceleration", ...] = ()
_changing = threading.Lock()
# The settings of the blocks around the current code, in this thread or task.
_within: contextvars.ContextVar[tuple["Acceleration", ...]] = contextvars.ContextVar(
    "tf_ti.accelerate", default=()
)


@dataclasses.dataclass(frozen=True)
class Setting:
    """What runs as tf_ti's.

    Attributes:
        loops: true if loops do.
        lookups: true if look-ups of embeddings do.
    """

    loops: bool = False
    lookups: bool = False


class Acceleration:
    """A setting of `tf_ti.accelerate`, which holds everywhere until it is undone.

    In a `with` statement it holds within the block instead, and above a function while that runs:
    not while a generator or a coroutine waits.

    Attributes:
        is_on: true if loops run as tf_ti's.
        lookups: true if look-ups of embeddings do.
    """

    def __init__(self, setting: Setting):
        self.setting = setting
        self._call: _Call | None = None

    @property
    def is_on(self) -> bool:
        return self.setting.loops

    @property
    def lookups(self) -> bool:
        return self.setting.lookups

    def __repr__(self) -> str:
        return f"tf_ti.accelerate({self.is_on}, lookups={self.lookups})"

    def undo(self) -> None:
        """Ends the setting. Several settings may be undone in any order."""
        global _everywhere
        if self._call is not None:
            with _changing:
                _everywhere = tuple(call for call in _everywhere if call is not self._call)
            self._call.is_over.set()

    def __enter__(self) -> "Acceleration":
        global _entered
        self.undo()
        with _changing:
            _entered = (*_entered, self)
        _within.set((*_within.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        global _entered
        _within.set(_without_last(_within.get(), self))
        with _changing:
            _entered = _without_last(_entered, self)

    def __call__(self, function: _Function) -> _Function:
        self.undo()
        return while_it_runs(function, self.setting)


class _Call:
    """A call of `tf_ti.accelerate`, which holds everywhere until its object is undone.

    The object of `with tf_ti.accelerate(False):` is made by such a call, and entered, and so
    undone, a moment later. This thread traces nothing in between, and others that trace wait: until
    the object is undone, or nobody has it any more, or it is no longer new.

    Attributes:
        setting: what runs as tf_ti's.
        is_over: set when the object is undone.
    """

    def __init__(self, acceleration: Acceleration):
        self.setting = acceleration.setting
        self.is_over = threading.Event()
        self._acceleration = weakref.ref(acceleration)
        self._thread = threading.get_ident()
        self._end = time.monotonic() + _MOST_SECONDS

    def holds(self) -> bool:
        """True if this is no call of a block or a decorator."""
        if threading.get_ident() != self._thread:
            while self._acceleration() is not None and time.monotonic() < self._end:
                if self.is_over.wait(0.001):
                    break
        return not self.is_over.is_set()


def everywhere(setting: Setting) -> Acceleration:
    """A setting that holds from now on."""
    global _everywhere
    acceleration = Acceleration(setting)
    acceleration._call = _Call(acceleration)
    with _changing:
        _everywhere = (*_everywhere, acceleration._call)
    return acceleration


def _without_last(
    settings: tuple[Acceleration, ...], setting: Acceleration
) -> tuple[Acceleration, ...]:
    """The settings without the last occurrence of one, which may be undone already."""
    for k in range(len(settings) - 1, -1, -1):
        if settings[k] is setting:
            return settings[:k] + settings[k + 1 :]
    return settings


def current() -> Setting:
    """The setting for what this thread does now."""
    settings = _within.get()
    if not settings and _is_in_replica():
        # A thread in which tf.distribute traces a replica knows no block; its caller waits in one.
        settings = _entered
    if settings:
        return settings[-1].setting
    return next((call.setting for call in reversed(_everywhere) if call.holds()), Setting())


def _is_in_replica() -> bool:
    return tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()


def while_it_runs(function: Any, setting: Setting) -> Any:
    """The same function, with a setting that holds while it runs."""
    if isinstance(function, ConcreteFunction):
        raise TypeError(
            f"{function!r} is traced already, with the loops that it has; trace it anew: "
            "tf_ti.accelerate takes the tf.function that it is of"
        )
    if isinstance(function, PolymorphicFunction):
        return _tf.with_python_function(function, while_it_runs(function.python_function, setting))
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(while_it_runs(function.__func__, setting))
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"on must be True, False or a function, got {function!r}")
    make = next((make for is_kind, make in _KINDS if _is(is_kind, function)), _plain)
    accelerated: Any = functools.wraps(function)(make(function, setting))
    with contextlib.suppress(ValueError):  # of functions of C that do not tell
        accelerated.__signature__ = inspect.signature(function)
    del accelerated.__wrapped__
    return accelerated


def _is(is_kind: Callable[[Any], bool], function: Any) -> bool:
    """True if `is_kind` is true for a function, or for the method that calls an object."""
    return is_kind(function) or is_kind(getattr(function, "__call__", None))  # noqa: B004


def _plain(function: Callable[..., Any], setting: Setting) -> Any:
    def accelerated(*args: Any, **kwargs: Any) -> Any:
        with Acceleration(setting):
            return function(*args, **kwargs)

    return accelerated


def _generator(function: Callable[..., Any], setting: Setting) -> Any:
    def accelerated(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from _in_steps(function(*args, **kwargs), setting))

    return accelerated


def _coroutine(function: Callable[..., Any], setting: Setting) -> Any:
    async def accelerated(*args: Any, **kwargs: Any) -> Any:
        return await _in_steps(function(*args, **kwargs), setting)

    return accelerated


def _asynchronous_generator(function: Callable[..., Any], setting: Setting) -> Any:
    async def accelerated(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        steps = function(*args, **kwargs)
        step = steps.asend(None)
        while True:
            try:
                found = await _in_steps(step, setting)
            except StopAsyncIteration:
                return
            try:
                step = steps.asend((yield found))
            except GeneratorExit:
                await _in_steps(steps.aclose(), setting)
                raise
            except BaseException as error:
                step = steps.athrow(error)

    return accelerated


@types.coroutine
def _in_steps(steps: Any, setting: Setting) -> Generator[Any, Any, Any]:
    """Runs a generator or a coroutine: the setting holds while it runs, and not while it waits."""
    resume, given = steps.send, None
    while True:
        with Acceleration(setting):
            try:
                found = resume(given)
            except StopIteration as end:
                return end.value
        try:
            resume, given = steps.send, (yield found)
        except GeneratorExit:
            with Acceleration(setting):
                steps.close()
            raise
        except BaseException as error:
            resume, given = steps.throw, error


# Functions whose code goes on after they have returned.
_KINDS = (
    (inspect.isgeneratorfunction, _generator),
    (inspect.iscoroutinefunction, _coroutine),
    (inspect.isasyncgenfunction, _asynchronous_generator),
)
