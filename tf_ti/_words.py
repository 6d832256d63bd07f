"""Calls in the words of other libraries: the error says the word that is right here."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def cure_for(name: str, function: str, words: Mapping[str, str]) -> str | None:
    """The error about an argument that there is not, if other libraries have one of that name."""
    return f"{function} has no argument {name!r}: {words[name]}" if name in words else None


def with_cures(words: Mapping[str, str]) -> Callable[[_Function], _Function]:
    """Makes a function's errors about its arguments say more; they stay what they are.

    Args:
        words: for names of arguments in other libraries what to write here.
    """

    def decorate(function: _Function) -> _Function:
        parameters = inspect.signature(function).parameters.values()
        placed = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]

        def cure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
            for name in kwargs:
                if name not in placed and name not in named:
                    return cure_for(name, function.__name__, words)
            if len(args) <= len(placed):
                return None
            return (
                f"{function.__name__} takes {', '.join(placed)} in this order; all others have "
                f"names: {', '.join(f'{name}=' for name in named)}"
            )

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError:
                message = cure(args, kwargs)
                if message is None:
                    raise
            raise TypeError(message)

        return call  # type: ignore[return-value]  # it has the function's type

    return decorate
