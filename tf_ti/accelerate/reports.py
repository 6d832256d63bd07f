"""Reports: an account of each loop and look-up that was traced, by the user's line."""

import dataclasses
import threading
from collections.abc import Iterator

from tf_ti import _tf

# One more, and the first is forgotten.
_MOST = 1_000


@dataclasses.dataclass(frozen=True)
class Loop:
    """The loops, or the look-ups, of one line that have the same account.

    Attributes:
        place: the user's line, as "model.py, line 12"; "" if unknown.
        library: the line of a library that has the loop, where the user calls one; or "".
        is_taken: true if they run as tf_ti's.
        text: what they run as, or the reason why they are TensorFlow's.
        count: how many were traced.
    """

    place: str
    library: str
    is_taken: bool
    text: str
    count: int = 1

    def __str__(self) -> str:
        where = self.place + (f", in {self.library}" if self.library else "")
        what = f"runs as {self.text}" if self.is_taken else f"is TensorFlow's: {self.text}"
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{where or 'unknown'}: {what}{times}"


@dataclasses.dataclass(frozen=True)
class Report:
    """An account of loops and look-ups, in the order in which they were traced.

    Attributes:
        loops: a `Loop` for each.
    """

    loops: tuple[Loop, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.loops)) or "no loops"

    def __iter__(self) -> Iterator[Loop]:
        return iter(self.loops)


_found: dict[tuple[str, str, bool, str], int] = {}
_changing = threading.Lock()


def add(is_taken: bool, text: str) -> None:
    """Adds a loop, or a look-up, that is traced now."""
    key = (*_tf.users_places(), is_taken, text)
    with _changing:
        if len(_found) >= _MOST and key not in _found:
            del _found[next(iter(_found))]
        _found[key] = _found.get(key, 0) + 1


@_tf.public
def report() -> Report:
    """Tells how the loops, and look-ups, run that were traced while `tf_ti.accelerate` was on.

    Returns:
        A `Report`. Printed, it has a line for each of the user's lines and each kind of account.
        Its `loops` have `place`, the user's line; `library`, the line in a library, for a loop
        inside of one; `is_taken`; `text`, the engine or the reason; and `count`, the number of
        loops with that account. `tf_ti.explain` tells more about the loops of one function.

    Example:

        >>> with tf_ti.accelerate():
        ...     total = tf.function(lambda xs: tf.foldl(tf.add, xs))(tf.range(5))
        >>> tf_ti.accelerate.report().loops[-1].is_taken
        True
    """
    with _changing:
        return Report(tuple(Loop(*key, count) for key, count in _found.items()))


def clear() -> None:
    """Forgets the loops that were traced so far."""
    with _changing:
        _found.clear()
