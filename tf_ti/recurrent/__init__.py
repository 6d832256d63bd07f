"""Recurrent cells and sequences, and their trained weights from and to other libraries."""

from tf_ti.loops import passes
from tf_ti.loops.explaining import loops
from tf_ti.recurrent import explaining, ops, recognition, vectorize  # noqa: F401 - with TensorFlow
from tf_ti.recurrent.weights import (
    from_keras,
    from_onnx,
    from_torch,
    to_keras,
    to_onnx,
    to_torch,
)

# Entries of tables that `tf_ti.loops` has.
passes.RECOGNIZERS[ops.OP] = recognition.recognize
loops.OTHERS[ops.OP] = explaining.explained

__all__ = ["from_keras", "from_onnx", "from_torch", "to_keras", "to_onnx", "to_torch"]
