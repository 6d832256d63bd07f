"""Steps of passes over a loop: another loop, and an account of it."""

import dataclasses
import enum
from collections.abc import Callable

import tensorflow as tf

from tf_ti.loops.traced import TracedLoop


class Fuse(enum.IntEnum):
    """What may become of a loop, beside what every loop needs; each has what is before it.

    Attributes:
        NOTHING: no more: TensorFlow's kernels run its body.
        PROGRAMS: programs of vector code may run parts of the body.
        WHOLE: it may become one other operation, with nothing around it.
        ALL: operations may leave it.
    """

    NOTHING = 0
    PROGRAMS = 1
    WHOLE = 2
    ALL = 3


class Unknown(Exception):
    """The refusal of a pass, with its reason; raised, and kept as a reason.

    Attributes:
        reason: the reason, in words for users.
        operation: the operation of the body that is the reason, if it is one.
    """

    def __init__(self, reason: str, operation: tf.Operation | None = None):
        super().__init__(reason)
        self.reason, self.operation = reason, operation

    def at(self, operation: tf.Operation) -> "Unknown":
        """The same, of this operation unless it is of another one already.

        It is another object, without the traceback, which would keep graphs alive where it is kept.
        """
        return Unknown(self.reason, self.operation or operation)


@dataclasses.dataclass(frozen=True)
class Note:
    """An account of one thing that a pass did about a loop, or did not.

    Attributes:
        name: the pass.
        text: the deed, or the reason why there is none.
        is_done: true for a deed.
        operation: the operation of the body that is meant, as `name (type)`, or "".
    """

    name: str
    text: str
    is_done: bool
    operation: str = ""

    @classmethod
    def of(cls, name: str, refusal: Unknown) -> "Note":
        op = refusal.operation
        return cls(name, refusal.reason, False, "" if op is None else f"{op.name} ({op.type})")


@dataclasses.dataclass(frozen=True)
class Step:
    """The loop that a pass gives.

    Attributes:
        loop: the loop that takes the place of another; None if nothing is left of that.
        finish: makes the outputs of the other loop of those of this one; None if they are the same.
            Without a loop it adds all operations that take the place of the other.
        notes: the account.
    """

    loop: TracedLoop | None
    finish: Callable[[list[tf.Tensor]], list[tf.Tensor]] | None = None
    notes: tuple[Note, ...] = ()
