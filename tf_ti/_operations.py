"""TensorFlow's operations that passes over loops know: the rows of cc/spec/loops/operations.inc."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tf_ti._library import LOWERED, OPERATIONS as _ROWS


@dataclasses.dataclass(frozen=True)
class Operation:
    """A row. The table itself, operations.inc, explains the columns.

    Attributes:
        name: the type that TensorFlow has for the operation.
        kind: as `OperationKind` in operations.h.
        inputs: a letter for each input; a letter with * behind it is for any number of them.
        fails: when the kernel refuses inputs.
        notes: words.
        is_lowered: true if programs run the operation.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    fails: str
    notes: frozenset[str]
    is_lowered: bool


def _parsed(row: str) -> Operation:
    name, kind, inputs, fails, notes = row.split("|")
    return Operation(
        name, kind, tuple(inputs.split()), fails, frozenset(notes.split()), name in LOWERED
    )


OPERATIONS = {row.name: row for row in map(_parsed, _ROWS)}


def names(test: Callable[[Operation], bool]) -> frozenset[str]:
    """The names of the rows for which a test is true."""
    return frozenset(row.name for row in OPERATIONS.values() if test(row))


def of_kinds(*kinds: str) -> frozenset[str]:
    """The names of the operations of some kinds."""
    return names(lambda row: row.kind in kinds)


def noted(note: str) -> frozenset[str]:
    """The names of the operations whose notes have a word."""
    return names(lambda row: note in row.notes)


def positions(op: tf.Operation, letters: str) -> list[int]:
    """The positions of the inputs whose letter is in `letters`. An unknown operation has none."""
    row = OPERATIONS.get(op.type)
    if row is None:
        return []
    spread = len(op.inputs) - len(row.inputs) + 1
    found = [c for part in row.inputs for c in ([part[0]] * spread if part[1:] else [part])]
    return [k for k, letter in enumerate(found) if letter in letters]


def inputs(op: tf.Operation, letters: str) -> list[tf.Tensor]:
    """The inputs at those positions."""
    return [op.inputs[k] for k in positions(op, letters)]
