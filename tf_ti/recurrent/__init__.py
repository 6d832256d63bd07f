"""Recurrent cells and sequences, and the weights that other libraries trained for them."""

from tf_ti.recurrent import recognition, vectorize  # noqa: F401 - loops and TensorFlow ask these
from tf_ti.recurrent.weights import (
    from_keras,
    from_onnx,
    from_torch,
    to_keras,
    to_onnx,
    to_torch,
)

__all__ = ["from_keras", "from_onnx", "from_torch", "to_keras", "to_onnx", "to_torch"]
