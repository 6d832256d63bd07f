"""Operations on the bits of numbers."""

import numpy as np
import tensorflow as tf

from tf_ti.openvino.writer.conversion import Node, composes, writes
from tf_ti.openvino.writer.network import Operand, Port

# For each type of numbers: the number of bits of exponents and of fractions.
_FIELDS = {tf.float16: (5, 10), tf.bfloat16: (8, 7), tf.float32: (8, 23)}
_SHIFTS = {"LeftShift": "BitwiseLeftShift", "RightShift": "BitwiseRightShift"}


@writes(*_SHIFTS)
def _shift(op: Node, x: Operand, count: Operand) -> Port:
    most = 8 * op.op.inputs[0].dtype.size - 1  # TensorFlow shifts by as many for larger counts
    if isinstance(count, np.ndarray):
        count = np.clip(count, 0, most)
    else:
        count = op.add("Clamp", count, min=0, max=most)
    return op.add(_SHIFTS[op.op.type], x, count, version="opset15")


@writes("Invert")
def _invert(op: Node, x: Operand) -> Port:
    return op.add("BitwiseNot", x, version="opset13")


@composes("Bitcast")
def _bitcast(op: Node, x: tf.Tensor) -> tf.Tensor:
    source, target = x.dtype, op.op.outputs[0].dtype
    if source == target:
        return x
    fields = [_FIELDS.get(dtype) for dtype in (source, target)]
    is_known = all(found or dtype.is_integer for found, dtype in zip(fields, (source, target)))
    if source.size != target.size or not is_known:
        raise op.error(
            f"IR has no bits of {source.name} as {target.name}, only those of numbers of one size "
            "that are integers, float16, bfloat16 or float32; tf.cast converts numbers",
        )
    if fields[0]:
        x = _bits_of(tf.cast(x, tf.float32), *fields[0])
    if fields[1]:
        return tf.cast(_number_of(_signed(x, target.size), *fields[1]), target)
    return _integer(x, target)


def _integer(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Integers of the same bits, of which OpenVINO's Convert may make others at the limits."""
    if x.dtype.size == 8 or dtype.size >= 4:
        return tf.cast(x, dtype)
    x = tf.bitwise.bitwise_and(tf.cast(x, tf.int32), 256**dtype.size - 1)
    return tf.cast(_signed(x, dtype.size) if dtype.min < 0 else x, dtype)


def _signed(x: tf.Tensor, size: int) -> tf.Tensor:
    """The lowest `size` bytes of integers, as int32 with their sign."""
    x = tf.cast(x, tf.int32)
    shift = 8 * (4 - size)
    return tf.bitwise.right_shift(tf.bitwise.left_shift(x, shift), shift) if shift else x


def _scales(exponent_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """For each biased exponent, two powers of two whose product is the unit of its numbers."""
    bias = 2 ** (exponent_bits - 1) - 1
    powers = np.maximum(np.arange(2**exponent_bits), 1) - bias
    half = powers // 2
    return np.exp2(half).astype(np.float32), np.exp2(powers - half).astype(np.float32)


def _bits_of(x: tf.Tensor, exponent_bits: int, fraction_bits: int) -> tf.Tensor:
    """The bits of a number, as an int32. Those of NaN are the usual ones."""
    size = tf.abs(x)
    first, second = _scales(exponent_bits)
    bounds = [*(first.astype(float) * second)[1:-1], np.inf]
    exponent = tf.raw_ops.Bucketize(input=size, boundaries=bounds)
    is_finite = size < np.inf
    scaled = tf.where(is_finite, size, 0.0) / tf.gather(first, exponent)
    scaled = scaled / tf.gather(second, exponent) - tf.cast(exponent > 0, tf.float32)
    fraction = tf.cast(tf.where(is_finite, scaled, 0.0) * 2.0**fraction_bits, tf.int32)
    is_nan = tf.math.is_nan(x)
    exponent = tf.where(is_nan, 2**exponent_bits - 1, exponent)
    fraction = tf.where(is_nan, 2 ** (fraction_bits - 1), fraction)
    sign = tf.cast((x < 0) | (tf.equal(x, 0) & (1 / x < 0)), tf.int32)
    # No arithmetic: OpenVINO's CPU plugin computes some of it in single precision.
    for field, place in ((exponent, fraction_bits), (sign, exponent_bits + fraction_bits)):
        fraction = tf.bitwise.bitwise_or(fraction, tf.bitwise.left_shift(field, place))
    return fraction


def _number_of(bits: tf.Tensor, exponent_bits: int, fraction_bits: int) -> tf.Tensor:
    """The float32 that has the bits of an int32."""
    first, second = _scales(exponent_bits)
    exponent = tf.bitwise.right_shift(bits, fraction_bits)
    exponent = tf.bitwise.bitwise_and(exponent, 2**exponent_bits - 1)
    fraction = tf.bitwise.bitwise_and(bits, 2**fraction_bits - 1)
    part = tf.cast(fraction, tf.float32) * np.float32(2.0**-fraction_bits)
    part += tf.cast(exponent > 0, tf.float32)
    size = part * tf.gather(first, exponent) * tf.gather(second, exponent)
    special = tf.where(tf.equal(fraction, 0), np.float32(np.inf), np.float32(np.nan))
    size = tf.where(tf.equal(exponent, 2**exponent_bits - 1), special, size)
    return size * tf.where(bits < 0, np.float32(-1), np.float32(1))


@composes("NextAfter")
def _next_after(op: Node, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    dtype = x.dtype.as_numpy_dtype
    limits = np.finfo(dtype)
    powers = np.exp2(np.arange(limits.minexp, limits.maxexp, dtype=dtype))
    least = limits.smallest_subnormal
    steps = np.maximum(powers * limits.eps, least)  # from a power of two to the next number
    x, y = tf.broadcast_to(x, tf.shape(x + y)), tf.broadcast_to(y, tf.shape(x + y))
    size = tf.abs(x)
    place = tf.searchsorted(powers[1:], tf.reshape(size, [-1]), side="right")
    place = tf.reshape(place, tf.shape(size))
    is_down = tf.equal(size, tf.gather(powers, place)) & tf.equal(x < y, x < 0)
    step = tf.gather(steps, tf.where(is_down, tf.maximum(place - 1, 0), place))
    moved = x + tf.where(x < y, step, -step)
    moved = tf.where(size < np.inf, moved, tf.where(x > 0, limits.max, limits.min))
    # The sum of a zero and the least number may be flushed to zero.
    moved = tf.where(tf.equal(x, 0), tf.where(y > 0, least, -least), moved)
    moved = tf.where(tf.equal(x, y), y, moved)
    return tf.where(tf.math.is_nan(x) | tf.math.is_nan(y), x + y, moved)
