"""Recurrent cells and sequences, and their trained weights from and to other libraries."""

from tf_ti.loops import passes
from tf_ti.recurrent import recognition, vectorize  # noqa: F401 - with TensorFlow
from tf_ti.recurrent.weights import (
    from_keras,
    from_onnx,
    from_torch,
    to_keras,
    to_onnx,
    to_torch,
)

passes.RECOGNIZERS["RecurrentSequence"] = recognition.recognize

__all__ = ["from_keras", "from_onnx", "from_torch", "to_keras", "to_onnx", "to_torch"]
