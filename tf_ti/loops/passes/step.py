"""Steps of passes over a loop: another loop, and an account of it."""

import dataclasses
import enum
from collections.abc import Callable

import tensorflow as tf

from tf_ti import _tf
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
        cure: what a user may do about it, in a sentence, or "".
    """

    def __init__(self, reason: str, operation: tf.Operation | None = None, cure: str = ""):
        super().__init__(reason)
        self.reason, self.operation, self.cure = reason, operation, cure

    def again(self) -> "Unknown":
        """The same without the traceback, which would keep graphs alive where it is kept."""
        return Unknown(self.reason, self.operation, self.cure)

    def at(self, operation: tf.Operation) -> "Unknown":
        """As `again`, of this operation unless it is of another one already."""
        return Unknown(self.reason, self.operation or operation, self.cure)


@dataclasses.dataclass(frozen=True)
class Mention:
    """An operation of a body, by which users find it when the body is gone.

    Attributes:
        name, type: the operation's.
        place: the user's line, as "model.py, line 12"; "" if unknown.
    """

    name: str
    type: str
    place: str

    @classmethod
    def of(cls, op: tf.Operation) -> "Mention":
        return cls(op.name, op.type, _tf.place_of(op))

    def __str__(self) -> str:
        return f"{self.type} {self.name!r}{self.place and f' ({self.place})'}"


@dataclasses.dataclass(frozen=True)
class Note:
    """An account of one thing that a pass did about a loop, or did not.

    Attributes:
        name: the pass.
        text: the deed, or the reason why there is none.
        is_done: true for a deed.
        operations: the operations of the body that left it, or that are the reason.
        count: the number of operations that it is about.
        cure: what a user may do about it, in a sentence, or "".
        place: where the operations run, if they left the loop.
    """

    name: str
    text: str
    is_done: bool
    operations: tuple[Mention, ...] = ()
    count: int = 0
    cure: str = ""
    place: str = ""

    @classmethod
    def of(cls, name: str, refusal: Unknown) -> "Note":
        op = refusal.operation
        operations = () if op is None else (Mention.of(op),)
        return cls(name, refusal.reason, False, operations, len(operations), refusal.cure)


@dataclasses.dataclass(frozen=True)
class Account:
    """What became of one loop; `tracing.graphs.ACCOUNTS` has it by the loop's operation.

    Attributes:
        name: the loop's, with the scopes around it.
        notes: the account of its passes.
        place: the user's line, as "model.py, line 12"; "" if unknown.
    """

    name: str
    notes: tuple[Note, ...]
    place: str


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
