"""Operations on elements: activations, arithmetic, comparisons, logic."""

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti._exact import apart, divided, hidden, is_rewritten, negated
from tf_ti.openvino.operation import Operation, register

_Name = str | tuple[str, str]  # of an operation; with its opset, if that is not the first


def _erf_inv(x: tf.Tensor) -> tf.Tensor:
    wide = x if x.dtype in (tf.float32, tf.float64) else tf.cast(x, tf.float32)
    return tf.cast(tf.math.erfinv(wide), x.dtype)  # TensorFlow has kernels for these two


_UNARY: dict[_Name, Callable[..., tf.Tensor]] = {
    "Abs": lambda x: x if x.dtype.is_unsigned else tf.abs(x),
    "Acos": tf.acos,
    "Asin": tf.asin,
    "Atan": tf.atan,
    "Ceiling": lambda x: x if x.dtype.is_integer else tf.math.ceil(x),
    "Cos": tf.cos,
    "Cosh": tf.cosh,
    "Erf": tf.math.erf,
    "Exp": tf.exp,
    "Floor": lambda x: x if x.dtype.is_integer else tf.floor(x),
    "Log": tf.math.log,
    "LogicalNot": negated,
    "Negative": tf.negative,
    "Relu": tf.nn.relu,
    "Sigmoid": tf.sigmoid,
    "Sign": tf.sign,
    "Sin": tf.sin,
    "Sinh": tf.sinh,
    "Sqrt": tf.sqrt,
    "Tan": tf.tan,
    "Tanh": tf.tanh,
    ("Acosh", "opset4"): tf.acosh,
    ("Asinh", "opset4"): tf.asinh,
    ("Atanh", "opset4"): tf.atanh,
    ("ErfInv", "opset17"): _erf_inv,
    ("Identity", "opset16"): tf.identity,
    ("IsFinite", "opset10"): tf.math.is_finite,
    ("IsNaN", "opset10"): tf.math.is_nan,
    ("Mish", "opset4"): lambda x: x * tf.tanh(tf.math.softplus(x)),
    ("SoftPlus", "opset4"): tf.math.softplus,
    ("SoftSign", "opset9"): tf.nn.softsign,
}


def _truncated_mod(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    if x.dtype.is_unsigned:
        return tf.math.floormod(x, y)
    if x.dtype.size >= 4:
        return tf.truncatemod(x, y)
    wide = tf.int32 if x.dtype.is_integer else tf.float32  # TensorFlow has kernels for these
    return tf.cast(tf.truncatemod(tf.cast(x, wide), tf.cast(y, wide)), x.dtype)


def _squared_difference(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    if x.dtype.is_integer:  # TensorFlow has kernels for wide integers only
        x, y, dtype = tf.cast(x, tf.int64), tf.cast(y, tf.int64), x.dtype
        return tf.cast(tf.math.squared_difference(x, y), dtype)
    return tf.math.squared_difference(x, y)


def _power(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    if not x.dtype.is_integer:
        # Grappler has reciprocals and roots for some, which differ of infinities, zeros and 1.
        known = tf.get_static_value(y)
        is_replaced = known is not None and np.all(np.isin(known, (-1, -0.5, 0.5)))
        return tf.pow(x, hidden(y, x) if is_replaced else y)
    wide_x, wide_y = tf.cast(x, tf.int64), tf.cast(y, tf.int64)
    power = tf.pow(wide_x, tf.abs(wide_y))
    is_fraction = (wide_y < 0) & (tf.abs(wide_x) != 1)
    return tf.cast(tf.where(is_fraction, tf.zeros([], tf.int64), power), x.dtype)


def _bitwise(
    of_numbers: Callable[..., tf.Tensor], of_booleans: Callable[..., tf.Tensor]
) -> Callable[..., tf.Tensor]:
    return lambda x, y: (of_booleans if x.dtype.is_bool else of_numbers)(x, y)


_BINARY: dict[_Name, Callable[..., tf.Tensor]] = {
    "Add": tf.add,
    "Equal": tf.equal,
    "FloorMod": tf.math.floormod,
    "Greater": tf.greater,
    "GreaterEqual": tf.greater_equal,
    "Less": tf.less,
    "LessEqual": tf.less_equal,
    "LogicalAnd": tf.logical_and,
    "LogicalOr": tf.logical_or,
    "LogicalXor": tf.not_equal,
    ("LogicalXor", "opset2"): tf.not_equal,
    "Maximum": tf.maximum,
    "Minimum": tf.minimum,
    "Mod": _truncated_mod,
    "Multiply": tf.multiply,
    "NotEqual": tf.not_equal,
    "Power": _power,
    "SquaredDifference": _squared_difference,
    "Subtract": tf.subtract,
    "Xor": tf.not_equal,
    ("BitwiseAnd", "opset13"): _bitwise(tf.bitwise.bitwise_and, tf.logical_and),
    ("BitwiseLeftShift", "opset15"): tf.bitwise.left_shift,
    ("BitwiseOr", "opset13"): _bitwise(tf.bitwise.bitwise_or, tf.logical_or),
    ("BitwiseRightShift", "opset15"): tf.bitwise.right_shift,
    ("BitwiseXor", "opset13"): _bitwise(tf.bitwise.bitwise_xor, tf.not_equal),
}


def _key(name: _Name) -> tuple[str, str]:
    return (name, "opset1") if isinstance(name, str) else name


_OF_INTEGERS = frozenset(["Abs", "Ceiling", "Floor", "Identity", "Negative", "Relu"])


def _by_floats(x: tf.Tensor, function: Callable[..., tf.Tensor]) -> tf.Tensor:
    """Applies a function to integers, and rounds its results to integers."""
    return tf.cast(tf.round(function(tf.cast(x, tf.float64))), x.dtype)


def _register_unary(name: _Name, function: Callable[..., tf.Tensor]) -> None:
    type, opset = _key(name)

    @register(type, opset)
    def _(op: Operation, x: tf.Tensor) -> tf.Tensor:
        if x.dtype.is_integer and type not in _OF_INTEGERS:
            return _by_floats(x, function)
        return function(x)


def _register_binary(name: _Name, function: Callable[..., tf.Tensor]) -> None:
    register(*_key(name))(lambda op, x, y: function(*broadcast(op, x, y)))


for _name, _function in _UNARY.items():
    _register_unary(_name, _function)
for _name, _function in _BINARY.items():
    _register_binary(_name, _function)


def broadcast(op: Operation, x: tf.Tensor, *others: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Prepares operands as auto_broadcast says, so that TensorFlow's broadcasting does the rest."""
    mode = op.text("auto_broadcast", "numpy", among=("numpy", "none", "explicit", "pdpd"))
    if mode == "pdpd":
        return (x, *(_aligned(op, x, other) for other in others))
    if mode != "numpy":
        for other in others:
            if not x.shape.is_compatible_with(other.shape):
                raise op.error(
                    f"shapes {x.shape} and {other.shape} differ, and auto_broadcast is {mode}"
                )
    return (x, *others)


def _aligned(op: Operation, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Aligns the first axis of y with the axis `axis` of x, if y has fewer axes."""
    if x.shape.rank is None or y.shape.rank is None:
        raise op.error("auto_broadcast=pdpd needs inputs of known ranks")
    if x.shape.rank == y.shape.rank:
        return y
    axis = op.integer("axis", -1)
    axis = x.shape.rank - y.shape.rank if axis == -1 else axis
    missing = x.shape.rank - axis - y.shape.rank
    if axis < 0 or missing < 0:
        raise op.error(f"axis={axis} does not fit shapes {x.shape} and {y.shape}")
    return tf.reshape(y, tf.concat([tf.shape(y), tf.ones([missing], tf.int32)], 0))


@register("Divide")
def _divide(op: Operation, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    # Integers' quotients are truncated, whatever m_pythondiv says, as OpenVINO's CPU plugin has it.
    # Where OpenVINO folds constants it heeds m_pythondiv, and there, as with unknown extents, it
    # rounds the quotients of bytes to the nearest.
    x, y = broadcast(op, x, y)
    if x.dtype.is_integer:
        return tf.truncatediv(x, y)
    return divided(x, y) if is_rewritten(op.known(0), op.known(1)) else tf.divide(x, y)


@register("BitwiseNot", "opset13")
def _bitwise_not(op: Operation, x: tf.Tensor) -> tf.Tensor:
    return negated(x) if x.dtype.is_bool else tf.bitwise.invert(x)


@register("Clamp")
def _clamp(op: Operation, x: tf.Tensor) -> tf.Tensor:
    low, high = op.number("min"), op.number("max")
    if low > high:
        raise op.error(f"min={low} is above max={high}")
    if x.dtype.is_integer:
        limits = x.dtype.min, x.dtype.max
        low, high = (min(max(value, limits[0]), limits[1]) for value in (low, high))
        low, high = math.ceil(low), math.floor(high)
    return tf.minimum(tf.maximum(x, tf.cast(low, x.dtype)), tf.cast(high, x.dtype))


@register("Convert")
def _convert(op: Operation, x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, op.dtype("destination_type"))


@register("ConvertLike")
def _convert_like(op: Operation, x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, like.dtype)


@register("ConvertPromoteTypes", "opset14")
def _convert_promote_types(
    op: Operation, x: tf.Tensor, y: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    dtype = _promoted(op, x, y)
    return tf.cast(x, dtype), tf.cast(y, dtype)


def _promoted(op: Operation, x: tf.Tensor, y: tf.Tensor) -> tf.DType:
    """The type that holds the numbers of both; if promotions may be unsafe, most of them."""
    is_unsafe = op.flag("promote_unsafe", False)
    first, second = x.dtype, y.dtype
    if first == second or second.is_bool:
        return first
    if first.is_bool:
        return second
    if first.is_floating != second.is_floating:
        real, whole = (first, second) if first.is_floating else (second, first)
        if is_unsafe or real.size >= 2 * whole.size:
            return real
    elif (x.shape.rank == 0) != (y.shape.rank == 0) and op.flag("pytorch_scalar_promotion", False):
        scalar, other = (first, second) if x.shape.rank == 0 else (second, first)
        if is_unsafe or _holds(other, scalar):
            return other
    elif first.is_unsigned != second.is_unsigned:
        unsigned, signed = (first, second) if first.is_unsigned else (second, first)
        size = max(2 * unsigned.size, signed.size)
        if size <= 8 and (is_unsafe or size == signed.size):
            return tf.as_dtype(f"int{8 * size}")
        if is_unsafe:
            return op.dtype("u64_integer_promotion_target", tf.float32)
    elif first.size != second.size:
        return max(first, second, key=lambda dtype: dtype.size)
    elif is_unsafe:  # floats that differ in their exponents
        return tf.float16 if first.size == 1 else tf.float32
    raise op.error(f"{first.name} and {second.name} have no common type that is safe")


def _holds(dtype: tf.DType, scalar: tf.DType) -> bool:
    if dtype.is_unsigned == scalar.is_unsigned:
        return dtype.size >= scalar.size
    return scalar.is_unsigned and 2 * dtype.size >= scalar.size


@register("Elu")
def _elu(op: Operation, x: tf.Tensor) -> tf.Tensor:
    if op.number("alpha") == 1:
        return tf.nn.elu(x)
    return tf.where(
        x > 0, x, tf.cast(op.number("alpha"), x.dtype) * tf.math.expm1(tf.minimum(x, 0))
    )


_EIGHT_BITS = {
    "f8e4m3": tf.dtypes.experimental.float8_e4m3fn,
    "f8e5m2": tf.dtypes.experimental.float8_e5m2,
}


@register("FakeConvert", "opset13")
def _fake_convert(
    op: Operation, x: tf.Tensor, scale: tf.Tensor, shift: tf.Tensor | None = None
) -> tf.Tensor:
    dtype = _EIGHT_BITS[op.text("destination_type", among=tuple(_EIGHT_BITS))]
    shift = tf.zeros([], x.dtype) if shift is None else shift
    largest = tf.cast(dtype.max, x.dtype)
    scaled = tf.clip_by_value(x * scale - shift, -largest, largest)
    # Rounded, with the gradient of what is rounded.
    rounded = scaled + tf.stop_gradient(tf.cast(tf.cast(scaled, dtype), x.dtype) - scaled)
    return (rounded + shift) / scale


@register("FakeQuantize")
def _fake_quantize(
    op: Operation,
    x: tf.Tensor,
    in_low: tf.Tensor,
    in_high: tf.Tensor,
    out_low: tf.Tensor,
    out_high: tf.Tensor,
) -> tf.Tensor:
    levels = op.integer("levels")
    if levels < 2:
        raise op.error(f"levels={levels} are fewer than 2")
    _, in_low, in_high, out_low, out_high = broadcast(op, x, in_low, in_high, out_low, out_high)
    steps = tf.cast(levels - 1, x.dtype)
    width = tf.where(in_high == in_low, tf.ones([], x.dtype), in_high - in_low)
    position = divided(x - in_low, width) * steps
    # Rounded, with the gradient of what is rounded.
    rounded = position + tf.stop_gradient(tf.round(position) - position)
    inside = rounded / steps * (out_high - out_low) + out_low
    above = x > tf.maximum(in_low, in_high)
    return tf.where(x <= tf.minimum(in_low, in_high), out_low, tf.where(above, out_high, inside))


@register("Gelu", "opset2")
def _gelu_by_erf(op: Operation, x: tf.Tensor) -> tf.Tensor:
    return _before_a_factor(op, tf.nn.gelu(x))


@register("Gelu", "opset7")
def _gelu(op: Operation, x: tf.Tensor) -> tf.Tensor:
    mode = op.text("approximation_mode", "ERF", among=("ERF", "TANH"))
    return _before_a_factor(op, tf.nn.gelu(x, approximate=mode == "TANH"))


@register("HSwish", "opset4")
def _hswish(op: Operation, x: tf.Tensor) -> tf.Tensor:
    return _before_a_factor(op, x * tf.nn.relu6(x + 3) / 6)


@register("HSigmoid", "opset5")
def _hsigmoid(op: Operation, x: tf.Tensor) -> tf.Tensor:
    return _before_a_factor(op, tf.nn.relu6(x + 3) / 6)


def _before_a_factor(op: Operation, y: tf.Tensor) -> tf.Tensor:
    return apart(y) if op.readers(0) & {"Divide", "Multiply"} else y


@register("HardSigmoid")
def _hard_sigmoid(op: Operation, x: tf.Tensor, alpha: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(alpha * x + beta, tf.cast(0, x.dtype), tf.cast(1, x.dtype))


@register("IsInf", "opset10")
def _is_inf(op: Operation, x: tf.Tensor) -> tf.Tensor:
    infinite = tf.math.is_inf(x)
    if not op.flag("detect_negative", True):
        infinite &= x > 0
    if not op.flag("detect_positive", True):
        infinite &= x < 0
    return infinite


@register("PRelu")
def _prelu(op: Operation, x: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
    rank = x.shape.rank
    if rank == 0:
        slope = tf.reshape(slope, [])
    elif slope.shape.rank == 1 and rank is not None and rank > 1:
        # A number for each channel if the counts match, otherwise for each place on the last axis.
        if (
            _tf.known_extent(slope, 0) is None
            or _tf.known_extent(x, 1) is None
            or _tf.known_extent(slope, 0) in (1, _tf.known_extent(x, 1))
        ):
            slope = tf.reshape(slope, [-1] + [1] * (rank - 2))
    return tf.where(x < 0, x * slope, x)


@register("Round", "opset5")
def _round(op: Operation, x: tf.Tensor) -> tf.Tensor:
    mode = op.text("mode", "half_to_even", among=("half_to_even", "half_away_from_zero"))
    if x.dtype.is_integer or mode == "half_to_even":
        return tf.round(x)
    return half_away_from_zero(x)


def half_away_from_zero(x: tf.Tensor) -> tf.Tensor:
    """Rounds to integers, halves to the one that is further from 0."""
    size = tf.abs(x)
    whole = tf.floor(size)
    return tf.sign(x) * (whole + tf.cast(size - whole >= 0.5, x.dtype))


@register("Select")
def _select(op: Operation, condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    x, condition, y = broadcast(op, x, condition, y)
    return tf.where(condition, x, y)


@register("Selu")
def _selu(op: Operation, x: tf.Tensor, alpha: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    return scale * tf.where(x > 0, x, alpha * tf.math.expm1(tf.minimum(x, 0)))


@register("Swish", "opset4")
def _swish(op: Operation, x: tf.Tensor, beta: tf.Tensor | None = None) -> tf.Tensor:
    return x * tf.sigmoid(x if beta is None else beta * x)
