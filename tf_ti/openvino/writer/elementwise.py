"""Operations on elements."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti.openvino.element_types import ElementType
from tf_ti.openvino.writer.conversion import Node, Value, writes
from tf_ti.openvino.writer.network import Operand, Port, element_type_of

_UNARY = {
    "Abs": "Abs",
    "Acos": "Acos",
    "Acosh": ("Acosh", "opset4"),
    "Asin": "Asin",
    "Asinh": ("Asinh", "opset4"),
    "Atan": "Atan",
    "Atanh": ("Atanh", "opset4"),
    "Ceil": "Ceiling",
    "Cos": "Cos",
    "Cosh": "Cosh",
    "Erf": "Erf",
    "Exp": "Exp",
    "Floor": "Floor",
    "Log": "Log",
    "LogicalNot": "LogicalNot",
    "Relu": "Relu",
    "Sigmoid": "Sigmoid",
    "Sign": "Sign",
    "Sin": "Sin",
    "Sinh": "Sinh",
    "Softplus": ("SoftPlus", "opset4"),
    "Softsign": ("SoftSign", "opset9"),
    "Sqrt": "Sqrt",
    "Tan": "Tan",
    "Tanh": "Tanh",
}
_BINARY = {
    "BitwiseAnd": ("BitwiseAnd", "opset13"),
    "BitwiseOr": ("BitwiseOr", "opset13"),
    "BitwiseXor": ("BitwiseXor", "opset13"),
    "FloorMod": "FloorMod",
    "LogicalAnd": "LogicalAnd",
    "LogicalOr": "LogicalOr",
    "Maximum": "Maximum",
    "Minimum": "Minimum",
    "Mod": "Mod",
    "RealDiv": "Divide",
    "TruncateMod": "Mod",
}
_ARITHMETIC = {
    "Add": "Add",
    "AddV2": "Add",
    "Neg": "Negative",
    "Pow": "Power",
    "SquaredDifference": "SquaredDifference",
    "Sub": "Subtract",
}
_TESTS = {
    "Equal": "Equal",
    "Greater": "Greater",
    "GreaterEqual": "GreaterEqual",
    "Less": "Less",
    "LessEqual": "LessEqual",
    "NotEqual": "NotEqual",
}
_OF_ONE = {"IsFinite": "IsFinite", "IsInf": "IsInf", "IsNan": "IsNaN"}
_BOOLEAN = [element_type_of(tf.bool)]


def computed(
    op: Node, type: str, *inputs: Operand, rest: Sequence[Operand] = (), **fields: Any
) -> Operand:
    """Adds a layer that computes with numbers, and has the rest of its inputs, as TensorFlow does.

    OpenVINO's CPU plugin rounds quotients of 8 bits, and stops at the limits of the type.
    """
    dtype = op.op.outputs[0].dtype
    if not dtype.is_integer or dtype.size > 1:
        return op.add(type, *inputs, *rest, **fields)
    numbers = (converted(op, x, dtype, tf.int32) for x in inputs)
    return converted(op, op.add(type, *numbers, *rest, **fields), tf.int32, dtype)


def converted(op: Node, x: Operand, source: tf.DType, target: tf.DType) -> Operand:
    """The numbers in another type, to which OpenVINO's Convert goes as TensorFlow's Cast does."""
    if source == target:
        return x
    kind = element_type_of(target)
    return op.add("Convert", x, outputs=[kind], destination_type=kind.name)


def _register() -> None:
    for op_type, name in (_UNARY | _BINARY).items():
        type, version = (name, "opset1") if isinstance(name, str) else name
        writes(op_type)(lambda op, *x, t=type, v=version: op.add(t, *x, version=v))
    for op_type, type in _ARITHMETIC.items():
        writes(op_type)(lambda op, *x, t=type: computed(op, t, *x))
    for op_type, type in _TESTS.items():
        writes(op_type)(lambda op, *x, t=type: op.add(t, *x, outputs=_BOOLEAN))
    for op_type, type in _OF_ONE.items():
        writes(op_type)(lambda op, x, t=type: op.add(t, x, version="opset10", outputs=_BOOLEAN))


_register()


@writes(
    "Identity",
    "StopGradient",
    "PreventGradient",
    "CheckNumerics",
    "Snapshot",
    "EnsureShape",
    "PlaceholderWithDefault",
)
def _identity(op: Node, x: Value) -> Value:
    return x


@writes("IdentityN")
def _identity_n(op: Node, *inputs: Value) -> list[Value]:
    return list(inputs)


@writes("Cast")
def _cast(op: Node, x: Operand) -> Operand:
    source, target = op.op.inputs[0].dtype, op.op.outputs[0].dtype
    if target == tf.bool and source != tf.bool:
        zero = np.asarray(0, source.as_numpy_dtype)
        return op.add("NotEqual", x, zero, outputs=_BOOLEAN)
    return converted(op, x, source, target)


@writes("Mul")
def _product(op: Node, x: Operand, y: Operand) -> Operand:
    of_gelu = _of_gelu(op.op)
    if of_gelu is not None:  # layers of Erfc would be as precise, but slow
        return op.add("Gelu", op.value_of(of_gelu), version="opset7", approximation_mode="ERF")
    return computed(op, "Multiply", x, y)


def _of_gelu(op: tf.Operation) -> tf.Tensor | None:
    """The tensor x of tf.nn.gelu: of a product x / 2 * erfc(-x / sqrt(2))."""
    half, factors = _factors(op.outputs[0])
    tails = [factor for factor in factors if factor.op.type == "Erfc"]
    others = [factor for factor in factors if factor.op.type != "Erfc"]
    if len(tails) != 1 or len(others) != 1 or half != 0.5:
        return None
    scale, inside = _factors(tails[0].op.inputs[0])
    is_root = np.isclose(scale, -np.sqrt(0.5), rtol=1e-6 if op.inputs[0].dtype.size > 2 else 1e-2)
    return others[0] if is_root and [x.ref() for x in inside] == [others[0].ref()] else None


def _factors(tensor: tf.Tensor, depth: int = 2) -> tuple[float, list[tf.Tensor]]:
    """A number and the tensors of which a tensor is the product."""
    op = tensor.op
    if tensor.shape.rank == 0 and (value := tf.get_static_value(tensor)) is not None:
        return float(value), []
    if depth and op.type == "Neg":
        number, tensors = _factors(op.inputs[0], depth - 1)
        return -number, tensors
    if depth and op.type in ("Mul", "RealDiv"):
        first, tensors = _factors(op.inputs[0], depth - 1)
        second, others = _factors(op.inputs[1], depth - 1)
        if op.type == "Mul":
            return first * second, tensors + others
        if not others and second:
            return first / second, tensors
    return 1.0, [tensor]


@writes("Square")
def _square(op: Node, x: Operand) -> Operand:
    return computed(op, "Multiply", x, x)


@writes("Rsqrt")
def _rsqrt(op: Node, x: Operand) -> Port:
    return op.add("Divide", op.like(1), op.add("Sqrt", x))


@writes("Reciprocal", "Inv")
def _reciprocal(op: Node, x: Operand) -> Port:
    return op.add("Divide", op.like(1), x)


@writes("Log1p")
def _log1p(op: Node, x: Operand) -> Port:
    # Near 0 as 2 atanh(x / (x + 2)), which is precise there.
    near = op.add("Atanh", op.add("Divide", x, op.add("Add", x, op.like(2))), version="opset4")
    near = op.add("Multiply", near, op.like(2))
    is_near = op.add("Less", op.add("Abs", x), op.like(0.5), outputs=_BOOLEAN)
    far = op.add("Log", op.add("Add", x, op.like(1)))
    return op.add("Select", is_near, near, far, outputs=[element_type_of(op.op.outputs[0].dtype)])


@writes("Expm1")
def _expm1(op: Node, x: Operand) -> Port:
    # The difference exp(x) - 1 would lose digits near 0.
    half = op.add("Tanh", op.add("Multiply", x, op.like(0.5)))
    return op.add("Multiply", half, op.add("Add", op.add("Exp", x), op.like(1)))


@writes("Round", "Rint")
def _round(op: Node, x: Operand) -> Operand:
    if op.op.inputs[0].dtype.is_integer:
        return x
    return op.add("Round", x, version="opset5", mode="half_to_even")


@writes("Elu")
def _elu(op: Node, x: Operand) -> Port:
    return op.add("Elu", x, alpha=1.0)


@writes("Selu")
def _selu(op: Node, x: Operand) -> Port:
    return op.add("Selu", x, op.like(1.6732632423543772), op.like(1.0507009873554805))


@writes("Relu6")
def _relu6(op: Node, x: Operand) -> Port:
    return op.add("Clamp", x, min=0.0, max=6.0)


@writes("LeakyRelu")
def _leaky_relu(op: Node, x: Operand) -> Port:
    return op.add("PRelu", x, op.like(op.attr("alpha")).reshape(1))


@writes("ClipByValue")
def _clip(op: Node, x: Operand, least: Operand, most: Operand) -> Port:
    return op.add("Maximum", op.add("Minimum", x, most), least)


@writes("FloorDiv")
def _floor_div(op: Node, x: Operand, y: Operand) -> Operand:
    dtype = op.op.inputs[0].dtype
    if dtype.is_floating:
        return op.add("Floor", op.add("Divide", x, y))
    wide = tf.int32 if dtype.size < 4 else dtype  # the difference may be beyond smaller types
    x, y = (converted(op, number, dtype, wide) for number in (x, y))
    # OpenVINO's CPU plugin always rounds quotients of integers towards zero.
    quotient = op.add("Divide", op.add("Subtract", x, op.add("FloorMod", x, y)), y)
    return converted(op, quotient, wide, dtype)


@writes("Div", "TruncateDiv")
def _div(op: Node, x: Operand, y: Operand) -> Operand:
    return computed(op, "Divide", x, y, m_pythondiv=False)


@writes("DivNoNan")
def _div_no_nan(op: Node, x: Operand, y: Operand) -> Port:
    is_zero = op.add("Equal", y, op.like(0), outputs=_BOOLEAN)
    quotient = op.add("Divide", x, op.add("Select", is_zero, op.like(1), y, outputs=_kind(op)))
    return op.add("Select", is_zero, op.like(0), quotient, outputs=_kind(op))


@writes("AddN")
def _add_n(op: Node, *inputs: Operand) -> Operand:
    total = inputs[0]
    for value in inputs[1:]:
        total = computed(op, "Add", total, value)
    return total


@writes("SelectV2")
def _select(op: Node, condition: Operand, x: Operand, y: Operand) -> Port:
    if op.op.outputs[0].dtype.is_bool:
        # OpenVINO's CPU plugin may fail to compile a Select of booleans in a body.
        x = op.add("LogicalAnd", condition, x)
        y = op.add("LogicalAnd", op.add("LogicalNot", condition), y)
        return op.add("LogicalOr", x, y)
    return op.add("Select", condition, x, y, outputs=_kind(op))


@writes("Select")
def _select_rows(op: Node, condition: Operand, x: Operand, y: Operand) -> Port:
    if op.rank(0) == 1 and op.rank(1) > 1:
        condition = op.add("Unsqueeze", condition, np.arange(1, op.rank(1)))
    return _select(op, condition, x, y)


@writes("BiasAdd", "BiasAddV1")
def _bias_add(op: Node, x: Operand, bias: Operand) -> Port:
    if op.op.type == "BiasAdd" and op.attr("data_format") == "NCHW":
        bias = op.add("Unsqueeze", bias, np.arange(1, op.rank(0) - 1))
    return op.add("Add", x, bias)


def _kind(op: Node) -> list[ElementType]:
    return [element_type_of(op.op.outputs[0].dtype)]
