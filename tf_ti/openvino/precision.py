"""The precision in which models of half-precision numbers are computed."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

HALVES = (tf.float16, tf.bfloat16)
# Operations that add many numbers up, or exceed a half's range on the way to a result within it.
_ACCUMULATING = frozenset(
    "AdaptiveAvgPool AvgPool BatchNormInference BinaryConvolution CTCLoss Col2Im Convolution "
    "ConvolutionBackpropData CumSum DeformableConvolution DeformablePSROIPooling Einsum GRN "
    "GenerateProposals GroupConvolution GroupConvolutionBackpropData GroupNormalization "
    "GroupedMatMul ISTFT Inverse LRN LogSoftmax MVN MatMul Multinomial NormalizeL2 ReduceL1 "
    "ReduceL2 ReduceMean ReduceProd ReduceSum RMS ROIAlignRotated ScaledDotProductAttention "
    "Softmax".split()
)


@dataclasses.dataclass(frozen=True)
class Precision:
    """What a model computes in.

    Attributes:
        single: compute in float32 what the file has in halves.
    """

    single: bool = False

    @classmethod
    def of(cls, compute_dtype: Any) -> "Precision":
        if compute_dtype is None:
            return cls()
        try:
            dtype = tf.as_dtype(compute_dtype)
        except TypeError:
            dtype = None
        if dtype != tf.float32:
            raise ValueError(f"compute_dtype must be None or 'float32', got {compute_dtype!r}")
        return cls(True)

    def of_file(self, dtype: tf.DType) -> tf.DType:
        """The dtype in which values of a dtype of the file are computed."""
        return tf.float32 if self.single and dtype in HALVES else dtype

    def cast(self, tensor: tf.Tensor) -> tf.Tensor:
        return tf.cast(tensor, self.of_file(tensor.dtype))


def computed_in(dtype: tf.DType) -> tf.DType:
    """The dtype in which an operation computes what is not kept in float32 or float64."""
    return dtype if dtype in (tf.float32, tf.float64) else tf.float32


def accumulated(
    kind: str, function: Callable[..., Any], inputs: Sequence[tf.Tensor]
) -> tuple[Sequence[tf.Tensor], Callable[[Any], Any]]:
    """The inputs with which an operation's function adds halves up in single precision.

    Returns:
        The inputs, and a function that rounds the outputs.
    """
    dtype = next((x.dtype for x in inputs if x.dtype in HALVES), None)
    is_own = function.__module__.startswith("tf_ti.openvino.")
    if dtype is None or kind not in _ACCUMULATING or not is_own:
        return inputs, lambda output: output

    def rounded(output: tf.Tensor) -> tf.Tensor:
        return tf.cast(output, dtype) if output.dtype == tf.float32 else output

    def finish(
        outputs: tf.Tensor | Sequence[tf.Tensor],
    ) -> tf.Tensor | tuple[tf.Tensor, ...]:
        if isinstance(outputs, (tuple, list)):
            return tuple(map(rounded, outputs))
        return rounded(outputs)

    return [tf.cast(x, tf.float32) if x.dtype == dtype else x for x in inputs], finish
