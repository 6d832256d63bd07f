"""Lets the command show how far reading a model, or tracing it, has come."""

import contextlib
import contextvars
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
# Is given a stage's name and what it goes through, and gives that back, bit by bit.
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
    """The items, of which whoever watches sees one after the other."""
    watcher = _WATCHER.get()
    return items if watcher is None else watcher(stage, items)
