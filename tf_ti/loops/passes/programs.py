"""Operations that programs of vector code run: in the loop they take less time than around it."""

import math
import os

import tensorflow as tf

from tf_ti import _tf
from tf_ti._library import LOWERED
from tf_ti.loops.passes import batching as _batching
from tf_ti.loops.passes.analysis import CORE, Analysis

_TYPES = frozenset([tf.bool, tf.float32, tf.float64, tf.int32, tf.int64])
# TensorFlow computes larger values on several threads.
_MOST_ELEMENTS = 2**15


def run_core_of(analysis: Analysis) -> bool:
    """True if the loop has a core, and programs run all of it.

    None do on a GPU, where XLA compiles, or where the environment says so.
    """
    if os.environ.get("TF_TI_PROGRAM") == "0" or _tf.expects_gpu() or _tf.expects_xla():
        return False
    core = [
        op
        for op in analysis.uses.operations
        if analysis.levels[op] == CORE and op not in analysis.after
    ]
    has_core = not all(map(_batching.is_free, core))
    return has_core and all(map(run, core))


def run(op: tf.Operation) -> bool:
    """True if programs run an operation; where a dimension is not known, if that is small."""
    if op.type not in LOWERED and not _batching.is_free(op):
        return False
    return all(t.dtype in _TYPES and not _is_large(t) for t in (*op.inputs, *op.outputs))


def _is_large(tensor: tf.Tensor) -> bool:
    known = tensor.shape.as_list() if tensor.shape.rank else []
    return math.prod(d for d in known if d is not None) > _MOST_ELEMENTS
