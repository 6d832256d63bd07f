"""Lets the command show the progress of reading and tracing a model."""

import contextlib
import contextvars
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
# Takes the name of a stage and its items, and yields the items one by one.
Watcher = Callable[[str, Collection[Any]], Iterable[Any]]
_WATCHER: contextvars.ContextVar[Watcher | None] = contextvars.ContextVar("watcher", default=None)


@contextlib.contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def watched(stage: str, items: Collection[T]) -> Iterable[T]:
    """The items, passed through the watcher if there is one."""
    watcher = _WATCHER.get()
    return items if watcher is None else watcher(stage, items)
