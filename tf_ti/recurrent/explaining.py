"""Accounts of recurrent sequences, for `tf_ti.explain`."""

import tensorflow as tf

from tf_ti.loops.explaining.memory import Recorded, Size
from tf_ti.recurrent import ops


def explained(op: tf.Operation) -> tuple[str, Recorded | None]:
    """What a sequence op runs as, and what its kernel saves of each step for a gradient."""
    kind = op.get_attr("kind").decode().upper()
    x, batch = op.inputs[0], int(op.get_attr("time_major"))
    rows = x.shape[batch]
    unknown = () if rows is not None else (f"shape(x)[{batch}]",)
    saved = Size({unknown: ops.saved_bytes(op) * (rows or 1)})
    recorded = Recorded(Size({}), saved, x.shape[1 - batch])
    return f"one sequence of {kind} cells", recorded if ops.saved(op) else None
