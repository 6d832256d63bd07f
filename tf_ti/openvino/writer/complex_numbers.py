"""Complex numbers, which are pairs of real ones here, and Fourier transforms."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.openvino.writer.conversion import Complex, Node, composes, writes
from tf_ti.openvino.writer.elementwise import converted
from tf_ti.openvino.writer.network import Operand, Port, element_type_of
from tf_ti.openvino.writer.shapes import take

_REAL = {tf.complex64: tf.float32, tf.complex128: tf.float64}

# Operations that do the same to real and imaginary parts: they move numbers, or add them up.
_OF_PARTS = (
    "Add AddN AddV2 BatchToSpaceND BroadcastTo ConcatV2 Cumsum EnsureShape ExpandDims Fill Gather "
    "GatherNd GatherV2 Identity MatrixBandPart MatrixDiag MatrixDiagPart "
    "MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3 MatrixSetDiag MatrixSetDiagV2 "
    "MatrixSetDiagV3 Mean MirrorPad Neg Pack Pad PadV2 PlaceholderWithDefault PreventGradient "
    "Reshape ReverseSequence ReverseV2 Roll ScatterNd SegmentSum Select SelectV2 Slice Snapshot "
    "SpaceToBatchND Split SplitV Squeeze StopGradient StridedSlice Sub Sum TensorScatterAdd "
    "TensorScatterSub TensorScatterUpdate Tile Transpose Unpack UnsortedSegmentSum "
    "XlaDynamicSlice XlaDynamicUpdateSlice ZerosLike"
).split()


def _repeated(op: Node, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The operation of real numbers."""
    return _tf.repeat_operation(op.op, tensors, _REAL)


@composes(*_OF_PARTS, of_complex=True)
def _of_parts(op: Node, *tensors: Any) -> list[Any]:
    parts = [
        _repeated(op, [t[k] if isinstance(t, Complex) else t for t in tensors]) for k in range(2)
    ]
    return [Complex(*pair) for pair in zip(*parts)]


@writes("IdentityN", of_complex=True)
def _identity_n(op: Node, *inputs: Any) -> list[Any]:
    """Some of the tensors may be real."""
    return list(inputs)


def _bilinear(op: Node, x: Complex, y: Complex) -> Complex:
    def product(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return _repeated(op, [a, b])[0]

    return Complex(
        product(x.real, y.real) - product(x.imag, y.imag),
        product(x.real, y.imag) + product(x.imag, y.real),
    )


@composes("MatMul", "Mul", of_complex=True)
def _product(op: Node, x: Complex, y: Complex) -> Complex:
    return _bilinear(op, x, y)


@composes("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", of_complex=True)
def _product_of_matrices(op: Node, x: Complex, y: Complex) -> Complex:
    """The operation takes the conjugates of matrices that it transposes."""
    x, y = (
        _conjugate(given) if op.attr(f"adj_{name}") else given
        for name, given in (("x", x), ("y", y))
    )
    return _bilinear(op, x, y)


@composes("Einsum", of_complex=True)
def _einsum(op: Node, *factors: Complex) -> Complex:
    return _bilinear(op, *factors) if len(factors) == 2 else _of_parts(op, *factors)[0]


@composes("ConjugateTranspose", of_complex=True)
def _conjugate_transpose(op: Node, x: Complex, order: tf.Tensor) -> Complex:
    return Complex(tf.transpose(x.real, order), tf.transpose(-x.imag, order))


def _times(x: Complex, y: Complex) -> Complex:
    return Complex(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


def _conjugate(x: Complex) -> Complex:
    return Complex(x.real, -x.imag)


def _inverse(x: Complex) -> Complex:
    """Its parts are scaled, as the square may be too large or too small for its type."""
    size = tf.maximum(tf.abs(x.real), tf.abs(x.imag))
    real, imag = x.real / size, x.imag / size
    square = (tf.square(real) + tf.square(imag)) * size
    return Complex(real / square, -imag / square)


def _absolute(x: Complex) -> tf.Tensor:
    """Its parts are scaled, as their squares may be too large or too small for their type."""
    size = tf.maximum(tf.abs(x.real), tf.abs(x.imag))
    scale = tf.where((size > 0) & (size < np.inf), size, tf.ones_like(size))
    return scale * tf.sqrt(tf.square(x.real / scale) + tf.square(x.imag / scale))


def _exponential(x: Complex) -> Complex:
    size = tf.exp(x.real)
    return Complex(size * tf.cos(x.imag), size * tf.sin(x.imag))


def _logarithm(x: Complex) -> Complex:
    return Complex(tf.math.log(_absolute(x)), tf.atan2(x.imag, x.real))


def _root(x: Complex) -> Complex:
    """The root on the right: no difference of nearly equal numbers has a part in it."""
    size = _absolute(x)
    larger = tf.sqrt(0.5 * (size + tf.abs(x.real)))
    other = tf.math.divide_no_nan(0.5 * tf.abs(x.imag), larger)
    real, imag = tf.where(x.real < 0, other, larger), tf.where(x.real < 0, larger, other)
    return Complex(real, tf.where(x.imag < 0, -imag, imag))


def _power(x: Complex, y: Complex) -> Complex:
    """A power of zero is zero, or as in TensorFlow no number where the exponent is not positive."""
    is_zero = tf.equal(x.real, 0) & tf.equal(x.imag, 0) & (y.real > 0)
    parts = _exponential(_times(y, _logarithm(x)))
    return Complex(*(tf.where(is_zero, tf.zeros([], part.dtype), part) for part in parts))


def _quotient(x: Complex, y: Complex) -> Complex:
    return _times(x, _inverse(y))


def _quotient_or_zero(x: Complex, y: Complex) -> Complex:
    is_zero = (y.real == 0) & (y.imag == 0)
    parts = _quotient(x, Complex(tf.where(is_zero, tf.ones_like(y.real), y.real), y.imag))
    return Complex(*(tf.where(is_zero, tf.zeros_like(part), part) for part in parts))


def _equal(x: Complex, y: Complex) -> tf.Tensor:
    return tf.equal(x.real, y.real) & tf.equal(x.imag, y.imag)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Angle": lambda x: tf.atan2(x.imag, x.real),
    "ComplexAbs": _absolute,
    "Conj": _conjugate,
    "Div": _quotient,
    "DivNoNan": _quotient_or_zero,
    "Equal": _equal,
    "Exp": _exponential,
    "Inv": _inverse,
    "Log": _logarithm,
    "NotEqual": lambda x, y: ~_equal(x, y),
    "OnesLike": lambda x: Complex(tf.ones_like(x.real), tf.zeros_like(x.real)),
    "Pow": _power,
    "RealDiv": _quotient,
    "Reciprocal": _inverse,
    "Sqrt": _root,
    "Square": lambda x: _times(x, x),
}


@composes(*_FUNCTIONS, of_complex=True)
def _function(op: Node, *tensors: Complex) -> Any:
    return _FUNCTIONS[op.op.type](*tensors)


@composes("Cast", of_complex=True)
def _cast(op: Node, x: Any) -> Any:
    target = op.op.outputs[0].dtype
    if not isinstance(x, Complex):
        real = tf.cast(x, _REAL[target])
        return Complex(real, tf.zeros_like(real))
    if not target.is_complex:
        return tf.cast(x.real, target)
    return Complex(*(tf.cast(part, _REAL[target]) for part in x))


@composes("Complex", of_complex=True)
def _complex(op: Node, real: tf.Tensor, imag: tf.Tensor) -> Complex:
    if real.shape.is_fully_defined() and real.shape == imag.shape:
        return Complex(real, imag)
    shape = tf.broadcast_dynamic_shape(tf.shape(real), tf.shape(imag))
    return Complex(tf.broadcast_to(real, shape), tf.broadcast_to(imag, shape))


@writes("ReadVariableOp", of_complex=True)
def _read(op: Node, handle: tf.Tensor) -> Complex:
    value = op.variable(handle, op.op.outputs[0].dtype)
    if not isinstance(value, np.ndarray):
        raise op.error("OpenVINO has no states of complex numbers")
    return Complex.of(value)


@writes("Real", "Imag", of_complex=True)
def _part(op: Node, x: Complex) -> Operand:
    return x.real if op.op.type == "Real" else x.imag


@composes("Shape", "Size", of_complex=True)
def _shape(op: Node, x: Complex) -> tf.Tensor:
    shape = tf.shape(x.real, op.op.outputs[0].dtype)
    return shape if op.op.type == "Shape" else tf.reduce_prod(shape)


# --- Fourier transforms --------------------------------------------------------------------------


def _as_array(op: Node, x: Complex) -> Port:
    """The parts along a last axis, as the transforms of OpenVINO have them."""
    parts = [op.add("Unsqueeze", part, np.asarray([-1])) for part in x]
    return op.add("Concat", *parts, axis=op.rank(0))


def _as_complex(op: Node, array: Operand) -> Complex:
    return Complex(*(take(op, array, np.asarray(k), np.asarray(-1)) for k in range(2)))


def _transformed(op: Node, type: str, x: Operand, lengths: Sequence[Operand], axes: Any) -> Operand:
    version = "opset9" if type.startswith(("R", "IR")) else "opset7"
    dtype = op.op.outputs[0].dtype.real_dtype
    single = tf.float32  # there are no transforms of float64
    x = converted(op, x, dtype, single)
    found = op.add(type, x, axes, *lengths, version=version, outputs=[element_type_of(single)])
    return converted(op, found, single, dtype)


def _last_axes(op: Node) -> np.ndarray:
    """The axes that the type of the operation tells."""
    count = int(op.op.type[-2]) if op.op.type.endswith("D") else 1
    return np.arange(op.rank(0) - count, op.rank(0))


def _axes(op: Node, axes: Sequence[Operand]) -> np.ndarray:
    return op.static(2).reshape(-1) % op.rank(0) if axes else _last_axes(op)


@writes("FFT", "FFT2D", "FFT3D", "FFTND", "IFFT", "IFFT2D", "IFFT3D", "IFFTND", of_complex=True)
def _fourier(op: Node, x: Complex, *lengths_and_axes: Operand) -> Complex:
    type = "IDFT" if op.op.type.startswith("I") else "DFT"
    axes = _axes(op, lengths_and_axes[1:])
    return _as_complex(op, _transformed(op, type, _as_array(op, x), lengths_and_axes[:1], axes))


@writes("RFFT", "RFFT2D", "RFFT3D", "RFFTND", of_complex=True)
def _fourier_of_real(op: Node, x: Operand, lengths: Operand, *axes: Operand) -> Complex:
    return _as_complex(op, _transformed(op, "RDFT", x, [lengths], _axes(op, axes)))


@writes("IRFFT", "IRFFT2D", "IRFFT3D", "IRFFTND", of_complex=True)
def _real_of_fourier(op: Node, x: Complex, lengths: Operand, *given: Operand) -> Operand:
    axes = _axes(op, given)
    array: Operand = _as_array(op, x)
    if len(axes) > 1:  # OpenVINO's CPU plugin gets three axes at once wrong
        rest, lengths = (
            op.add("Slice", lengths, *map(np.asarray, bounds), np.asarray([1]), version="opset8")
            for bounds in (([0], [-1]), ([-1], [2**31 - 1]))
        )
        array = _transformed(op, "IDFT", array, [rest], axes[:-1])
    return _transformed(op, "IRDFT", array, [lengths], axes[-1:])
