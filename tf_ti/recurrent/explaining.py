"""Accounts of recurrent sequences, for `tf_ti.explain`."""

import math

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.explaining.memory import Recorded, Size
from tf_ti.recurrent import ops


def explained(op: tf.Operation) -> tuple[str, Recorded | None]:
    """What a sequence op runs as, and what its kernel saves of each step for a gradient."""
    kind = op.get_attr("kind").decode().upper()
    x, batch = op.inputs[0], int(op.get_attr("time_major"))
    extents = {
        f"shape(x)[{batch}]": _tf.known_extent(x, batch),
        "shape(h)[1]": _tf.known_extent(op.inputs[1], 1),
    }
    unknown = tuple(name for name, extent in extents.items() if extent is None)
    known = math.prod(extent for extent in extents.values() if extent is not None)
    # Of all steps and rows, numbers for each unit.
    of_unit = [
        tensor.dtype.size * math.prod(tensor.shape.as_list()[2:-1]) for tensor in ops.saved(op)
    ]
    recorded = Recorded(
        states=Size({}),
        heavy=Size({}),
        others=Size({unknown: sum(of_unit) * known}),
        iterations=_tf.known_extent(x, 1 - batch),
    )
    return f"one sequence of {kind} cells", recorded if of_unit else None
