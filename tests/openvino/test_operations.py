"""Every operation of `tf_ti.openvino`, one by one, in each version, against OpenVINO.

The cases of a family are parts of one model, which both sides compile once: each test looks at its
own results. Where OpenVINO contradicts the specification, or cannot compute what the specification
allows, a case has its definition in NumPy.
"""

import dataclasses
import importlib
import itertools
import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import openvino as ov
import pytest
import tensorflow as tf
from openvino.utils.node_factory import NodeFactory
from openvino_models import make, run, save
from recurrent_definition import DEFAULTS, sequence, step as cell_step

import tf_ti.openvino
from tf_ti.openvino.element_types import ELEMENT_TYPES
from tf_ti.openvino.operation import _TABLE
from tf_ti.openvino.reader import read

OPSETS = {n: importlib.import_module(f"openvino.opset{n}") for n in range(1, 18)}
o = OPSETS[15]
RNG = np.random.default_rng(15)  # of the family that is being made: see `family`
FLOATS = (np.float32, np.float16, np.float64)
INTS = (np.int32, np.int64, np.uint8)


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    function: Callable  # of nodes
    arrays: tuple
    constants: tuple[int, ...] = ()  # inputs that are constants in the model
    fixed: tuple[int, ...] = ()  # inputs of static shapes in dynamic models too
    kept: tuple[tuple[int, int], ...] = ()  # extents known in dynamic models too, (input, axis)
    tolerance: float = 1e-5
    definition: Callable | None = None  # of arrays; without it OpenVINO says what is right

    def inputs(self):
        return [array for i, array in enumerate(self.arrays) if i not in self.constants]


CASES: dict[tuple[str, bool], dict[str, Case]] = {}  # by family and whether shapes are dynamic
_family, _most_dynamic = "", None


def family(name, most_dynamic=None):
    """Begins a family, whose random numbers do not depend on the families before it.

    Args:
        name: its name.
        most_dynamic: how many cases of each operation, whose name ends at the first "-", have
            dynamic shapes too. For operations whose options and types do not matter to shapes.
    """
    global _family, _most_dynamic, RNG
    _family, _most_dynamic = name, most_dynamic
    RNG = np.random.default_rng([15, *name.encode()])


def case(name, function, *arrays, dynamic=None, **options):
    if dynamic is None:
        of_it = [n for n in CASES.get((_family, True), ()) if n.split("-")[0] == name.split("-")[0]]
        dynamic = (False,) if len(of_it) == _most_dynamic else (False, True)
    arrays = tuple(np.asarray(array) for array in arrays)
    half = any(array.dtype == np.float16 for array in arrays)
    options.setdefault("tolerance", 5e-3 if half else 1e-5)
    for kind in dynamic:
        cases = CASES.setdefault((_family, kind), {})
        assert name not in cases, name
        cases[name] = Case(name, function, arrays, **options)


def f(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def ints(low, high, shape, dtype=np.int32):
    return RNG.integers(low, high, shape).astype(dtype)


def i64(*values):
    return np.array(values, np.int64)


def create(type, opset, attributes=None):
    """An operation that has no function of its own in OpenVINO's Python API."""
    factory = NodeFactory(f"opset{opset}")
    return lambda *nodes: factory.create(type, [n.output(0) for n in nodes], attributes or {})


def name_of(dtype):
    return np.dtype(dtype).name


# Elementwise operations.

family("unary", most_dynamic=2)
ANYWHERE = (
    "abs atan ceiling cos cosh erf exp floor relu sigmoid sign sin sinh tan tanh negative hswish "
    "hsigmoid mish softplus asinh"
).split()
for name in ANYWHERE:
    for dtype in FLOATS:
        case(f"{name}-{name_of(dtype)}", getattr(o, name), f(2, 3, 4, dtype=dtype) * 2)
    case(f"{name}-scalar", getattr(o, name), f())
    case(f"{name}-empty", getattr(o, name), f(0, 3))
UNIT = "acos asin atanh".split()
for name, dtype in itertools.product(UNIT, FLOATS):
    case(f"{name}-{name_of(dtype)}", getattr(o, name), RNG.uniform(-0.9, 0.9, (5, 3)).astype(dtype))
    case(f"{name}-scalar-{name_of(dtype)}", getattr(o, name), dtype(0.3))
for name, dtype in itertools.product("sqrt log acosh".split(), FLOATS):
    case(f"{name}-{name_of(dtype)}", getattr(o, name), RNG.uniform(1, 5, (5, 3)).astype(dtype))
    case(f"{name}-scalar-{name_of(dtype)}", getattr(o, name), dtype(1.3))
for dtype in FLOATS:
    case(f"softsign-{name_of(dtype)}", OPSETS[9].softsign, f(2, 3, dtype=dtype))
    case(f"identity-{name_of(dtype)}", OPSETS[16].identity, f(2, 3, dtype=dtype))
case("logical_not", o.logical_not, f(2, 3) > 0)
case("logical_not-scalar", o.logical_not, np.array(True))

family("unary-ints", most_dynamic=2)
WHOLE = "abs ceiling floor relu sign".split()
for name, dtype in itertools.product(WHOLE, INTS):
    low = 0 if dtype == np.uint8 else -9
    case(f"{name}-{name_of(dtype)}", getattr(o, name), ints(low, 9, (7,), dtype))
for name in "asinh atan cos cosh erf exp sin sinh tan tanh".split():
    case(f"{name}-int32", getattr(o, name), np.arange(-4, 5, dtype=np.int32))
    case(f"{name}-uint8", getattr(o, name), np.arange(0, 2, dtype=np.uint8))
for name in "sqrt log acosh".split():
    case(f"{name}-int32", getattr(o, name), np.arange(1, 33, dtype=np.int32))
case("negative-int32", o.negative, ints(-9, 9, (4,)))
case("sigmoid-int32", o.sigmoid, ints(-9, 9, (4,)))
case("bitwise_not-int32", o.bitwise_not, ints(-99, 99, (5,)))
case("bitwise_not-uint8", o.bitwise_not, ints(0, 99, (5,), np.uint8))
case("bitwise_not-bool", o.bitwise_not, f(5) > 0)

family("binary", most_dynamic=2)
ARITHMETIC = (
    "add subtract multiply maximum minimum squared_difference mod floor_mod "
    "greater greater_equal less less_equal equal not_equal"
).split()
for name in ARITHMETIC:
    function = getattr(o, name)
    for dtype in FLOATS:
        case(f"{name}-{name_of(dtype)}", function, f(2, 3, 4, dtype=dtype), f(3, 1, dtype=dtype))
    for dtype in INTS if name != "squared_difference" else INTS[:2]:
        a, b = ints(5, 9, (2, 3), dtype), ints(1, 5, (3,), dtype)
        a = a if dtype == np.uint8 else a - 7
        case(f"{name}-{name_of(dtype)}", function, a, b)
    case(f"{name}-scalars", function, f(), f())
    case(f"{name}-empty", function, f(0, 3), f(3))
    case(f"{name}-none", lambda a, b, g=function: g(a, b, "none"), f(2, 3), f(2, 3))
case("equal-bool", o.equal, f(4) > 0, f(4) > 0)
case("not_equal-bool", o.not_equal, f(4) > 0, f(4) > 0)
for dtype in FLOATS:
    positive = RNG.uniform(0.5, 2, (2, 3)).astype(dtype)
    case(f"power-{name_of(dtype)}", o.power, positive, f(3, dtype=dtype))
    case(f"divide-{name_of(dtype)}", o.divide, f(2, 3, dtype=dtype), positive)
for dtype, python in itertools.product((np.int16, np.int32, np.int64, np.uint32), (True, False)):
    signed = np.issubdtype(dtype, np.signedinteger)
    a, b = ints(-19 if signed else 0, 19, (4, 6), dtype), ints(1, 5, (6,), dtype)
    b[::2] *= dtype(-1 if signed else 1)
    divide = create("Divide", 1, {"m_pythondiv": python})
    case(f"divide-{python}-{name_of(dtype)}", divide, a, b)
    case(f"divide-{python}-constant-{name_of(dtype)}", divide, a, b, constants=(1,))
case("power-scalar", o.power, np.float32(1.7), np.float32(2))
case("power-int32", o.power, ints(-4, 4, (5,)), np.int32(3))
for name in "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor".split():
    case(f"{name}-bool", getattr(o, name), f(2, 3, 4) > 0, f(3, 1) > 0)
    case(f"{name}-scalars", getattr(o, name), np.array(True), np.array(False))
for name in "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift".split():
    for dtype in INTS:
        a, b = ints(0, 99, (2, 5), dtype), ints(0, 2, (5,), dtype)
        case(f"{name}-{name_of(dtype)}", getattr(o, name), a, b)
for broadcast in ("numpy", "none"):
    shape = (4,) if broadcast == "none" else (2, 1)
    case(
        f"xor-{broadcast}",
        create("Xor", 1, {"auto_broadcast": broadcast}),
        f(4) > 0,
        f(*shape) > 0,
    )

family("binary-defined")  # OpenVINO gives 0 for uint8, and rounds quotients of bytes at times
case(
    "squared_difference-uint8",
    o.squared_difference,
    ints(0, 9, (2, 3), np.uint8),
    ints(0, 9, (3,), np.uint8),
    definition=lambda a, b: ((a.astype(int) - b) ** 2).astype(np.uint8),
)
for dtype in (np.int8, np.uint8):
    case(
        f"divide-{name_of(dtype)}",
        o.divide,
        ints(0 if dtype == np.uint8 else -19, 19, (4, 5), dtype),
        ints(1, 5, (5,), dtype),
        definition=lambda a, b: np.trunc(a / b).astype(a.dtype),
    )

family("activations", most_dynamic=2)
SPECIAL = np.array([1, np.inf, -np.inf, np.nan, 0], np.float32)
HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.3, -0.7, 1e7 + 1], np.float32)
NEAR_HALVES = np.array([0.49999997, -0.49999997, 4194304.5, 8388609, 1e30], np.float32)
x = f(2, 3, 4)
for dtype in FLOATS:
    d = dtype
    case(f"clamp-{name_of(d)}", lambda a: o.clamp(a, -0.3, 0.7), x.astype(d))
    case(f"elu-{name_of(d)}", lambda a: o.elu(a, 0.7), x.astype(d))
    case(f"gelu-{name_of(d)}", lambda a: OPSETS[2].gelu(a), x.astype(d))
    case(f"gelu-erf-{name_of(d)}", lambda a: o.gelu(a, "erf"), x.astype(d))
    case(f"gelu-tanh-{name_of(d)}", lambda a: o.gelu(a, "tanh"), x.astype(d), tolerance=5e-3)
    case(
        f"hard_sigmoid-{name_of(d)}", o.hard_sigmoid, x.astype(d), d(0.3), d(0.4), constants=(1, 2)
    )
    case(f"selu-{name_of(d)}", o.selu, x.astype(d), d(1.6), d(1.05), constants=(1, 2))
    case(f"swish-{name_of(d)}", create("Swish", 4), x.astype(d))
    case(f"swish-beta-{name_of(d)}", o.swish, x.astype(d), d(0.7), constants=(1,))
    case(f"prelu-{name_of(d)}", o.prelu, x.astype(d), f(3, dtype=d))
case("clamp-int32", lambda a: o.clamp(a, -1.5, 2.5), ints(-9, 9, (7,)))
case("clamp-int64-beyond", lambda a: o.clamp(a, -1e30, 1e30), ints(-9, 9, (7,), np.int64))
case("clamp-uint8", lambda a: o.clamp(a, 2, 5), ints(0, 9, (7,), np.uint8))
case("elu-scalar", lambda a: o.elu(a, 1.0), np.float32(-1))
case("is_inf", o.is_inf, SPECIAL)
case("is_inf-positive", lambda a: o.is_inf(a, {"detect_negative": False}), SPECIAL)
case("is_inf-negative", lambda a: o.is_inf(a, {"detect_positive": False}), SPECIAL)
case("is_nan", o.is_nan, SPECIAL)
case("is_nan-scalar", o.is_nan, np.float32(np.nan))
case("is_finite", o.is_finite, SPECIAL)
case("is_finite-scalar", o.is_finite, np.float32(np.inf))
for name, shape, slope in (
    ("one", (2, 3, 4), (1,)), ("channels", (2, 3, 4, 5), (3,)), ("both", (2, 3, 3), (3,)),
    ("like", (2, 3), (2, 3)), ("broadcast", (2, 3, 4), (3, 1)), ("vector", (4,), (4,)),
):  # fmt: skip
    case(f"prelu-{name}", o.prelu, f(*shape), f(*slope))
for mode in ("half_to_even", "half_away_from_zero"):
    case(f"round-{mode}", lambda a, mode=mode: o.round(a, mode), HALVES)
    case(f"round-{mode}-int32", lambda a, mode=mode: o.round(a, mode), ints(-9, 9, (5,)))
case("round-near-halves", lambda a: o.round(a, "half_to_even"), NEAR_HALVES)
case("select", o.select, x > 0, f(2, 3, 4), f(4))
case("select-condition", o.select, f(2, 1) > 0, f(3), f(2, 3))
case("select-scalars", o.select, np.array(True), f(), f())
case(
    "select-none",
    lambda c, a, b: o.select(c, a, b, "none"),
    f(4) > 0,
    i64(1, 2, 3, 4),
    i64(5, 6, 7, 8),
)
QUANTIZED = [np.array(v, np.float32).reshape(1) for v in (-1, 2, 0, 5)]
case(
    "fake_quantize",
    lambda a, *b: o.fake_quantize(a, *b, 16),
    x * 3,
    *QUANTIZED,
    constants=(1, 2, 3, 4),
)
CHANNELS = [
    np.array(v, np.float32).reshape(1, 3, 1)
    for v in ([-1, -2, -0.5], [1, 2, 1.5], [0, -1, 3], [4, 5, -2])
]
case(
    "fake_quantize-channels",
    lambda a, *b: o.fake_quantize(a, *b, 256),
    x * 3,
    *CHANNELS,
    constants=(1, 2, 3, 4),
)
case(
    "fake_quantize-binary",
    lambda a, *b: o.fake_quantize(a, *b, 2),
    x * 3,
    *QUANTIZED,
    constants=(1, 2, 3, 4),
)

family("activations-defined")  # OpenVINO adds a half, which rounds 0.49999997 up
case(
    "round-away-near-halves",
    lambda a: o.round(a, "half_away_from_zero"),
    NEAR_HALVES,
    definition=lambda a: (np.sign(a) * np.floor(np.abs(np.float64(a)) + 0.5)).astype(a.dtype),
)

family("convert", most_dynamic=2)
for source, target in itertools.product(
    ("float32", "float16", "float64", "int32", "int64", "uint8", "bool"),
    ("f32", "f16", "f64", "i32", "i64", "u8", "boolean"),
):
    values = np.array([0, 1, 2, 7.75, 100], source)
    case(f"convert-{source}-{target}", lambda a, target=target: o.convert(a, target), values)
case(
    "convert-fraction-boolean",
    lambda a: o.convert(a, "boolean"),
    np.array([0, 0.2, -3], np.float32),
)
case("convert-scalar", lambda a: o.convert(a, "i32"), np.float32(-2.9))
for dtype in (*FLOATS, *INTS, np.bool_):
    case(f"convert_like-{name_of(dtype)}", o.convert_like, np.abs(x * 5), np.ones(1, dtype))

# Shapes.

family("shapes")
case("shape_of", lambda a: o.shape_of(a), x)
case("shape_of-i32", lambda a: o.shape_of(a, "i32"), x)
case("shape_of-scalar", lambda a: o.shape_of(a), f())
case("shape_of-1", OPSETS[1].shape_of, x)
case("shape_of-1-empty", OPSETS[1].shape_of, f(0, 2))
for name, special, pattern, shape in (
    ("special", True, (0, -1), (2, 3, 4)), ("plain", False, (4, -1), (2, 3, 4)),
    ("to-scalar", False, (), (1, 1)), ("from-scalar", False, (1, 1), ()),
    ("empty", False, (0, 4), (2, 0)), ("empty-special", True, (0, 0, 5), (2, 0, 5)),
    ("more", True, (0, 0, 2, -1), (2, 3, 4)), ("i32", True, (-1, 0), (2, 3)),
):  # fmt: skip
    pattern = np.array(pattern, np.int32 if name == "i32" else np.int64)
    case(
        f"reshape-{name}",
        lambda a, b, s=special: o.reshape(a, b, s),
        f(*shape),
        pattern,
        constants=(1,),
    )
    if pattern.size:
        case(
            f"reshape-computed-{name}",
            lambda a, b, s=special: o.reshape(a, b, s),
            f(*shape),
            pattern,
            fixed=(1,),
        )
for v in (1, 15):
    squeeze = OPSETS[v].squeeze
    case(f"squeeze{v}", squeeze, f(1, 3, 1), i64(-1), constants=(1,))
    case(f"squeeze{v}-two", squeeze, f(1, 3, 1), i64(0, 2), constants=(1,))
    case(f"squeeze{v}-scalar-axis", squeeze, f(1, 3, 1), np.int64(0), constants=(1,))
    case(f"squeeze{v}-all", create("Squeeze", v), f(1, 3, 1), dynamic=(False,))
    case(f"squeeze{v}-empty", squeeze, f(1, 0), i64(0), constants=(1,))
case(
    "squeeze15-skip",
    lambda a, b: o.squeeze(a, b, True),
    f(1, 3, 1),
    i64(0, 1),
    constants=(1,),
    dynamic=(False,),
)
for name, shape, axes in (
    ("two", (2, 3), (0, -1)),
    ("scalar", (), (0,)),
    ("empty", (0,), (1,)),
    ("order", (3,), (-1, 0)),
):
    case(f"unsqueeze-{name}", o.unsqueeze, f(*shape), i64(*axes), constants=(1,))
case("unsqueeze-scalar-axis", o.unsqueeze, f(2, 3), np.int64(1), constants=(1,))
case("transpose", o.transpose, x, i64(2, 0, 1), constants=(1,))
case("transpose-none", o.transpose, x, i64(), constants=(1,))
case("transpose-computed", o.transpose, x, i64(2, 0, 1), fixed=(1,))
case("transpose-u8", o.transpose, ints(0, 9, (2, 3), np.uint8), i64(1, 0), constants=(1,))
case("transpose-empty", o.transpose, f(0, 3), i64(1, 0), constants=(1,))
case("concat", lambda *a: o.concat([*a], -1), x, f(2, 3, 2), f(2, 3, 0))
case("concat-bool", lambda *a: o.concat([*a], 0), f(3) > 0, f(2) > 0)
case("concat-one", lambda *a: o.concat([*a], 0), ints(0, 9, (3,)))
case("split", lambda a, b: o.split(a, b, 2), x, np.int64(-1), constants=(1,))
case("split-first", lambda a, b: o.split(a, b, 1), ints(0, 9, (2, 3)), np.int32(0), constants=(1,))
for name, axis, lengths in (("rest", 2, (1, -1, 2)), ("empty", -1, (0, 4)), ("first", -3, (1, 1))):
    case(
        f"variadic_split-{name}",
        o.variadic_split,
        x,
        np.int64(axis),
        i64(*lengths),
        constants=(1, 2),
    )
case("tile", o.tile, x, i64(2, 1, 3), constants=(1,))
case("tile-longer", o.tile, x, i64(2, 1, 1, 3), constants=(1,))
case("tile-shorter", o.tile, x, i64(3), constants=(1,))
case("tile-none", o.tile, ints(0, 9, (2, 3)), i64(1, 0), constants=(1,))
case("tile-scalar", o.tile, f(), i64(2), constants=(1,))
TARGETS = (
    ("numpy", (3, 1), (2, 3, 4)),
    ("scalar", (), (2, 3)),
    ("empty", (3, 1), (3, 0)),
    ("same", (2, 3), (2, 3)),
)
for v, (name, shape, target) in itertools.product((1, 3), TARGETS):
    case(f"broadcast{v}-{name}", OPSETS[v].broadcast, f(*shape), i64(*target), constants=(1,))
    case(f"broadcast{v}-computed-{name}", OPSETS[v].broadcast, f(*shape), i64(*target), fixed=(1,))
for v, dtype in itertools.product((1, 3), (np.float16, np.int64, np.uint8)):
    case(
        f"broadcast{v}-{name_of(dtype)}",
        OPSETS[v].broadcast,
        ints(0, 9, (3, 1), dtype),
        i64(3, 2),
        constants=(1,),
    )
for v in (1, 3):
    case(
        f"broadcast{v}-explicit",
        lambda a, b, c, v=v: OPSETS[v].broadcast(a, b, c, "EXPLICIT"),
        f(3),
        i64(2, 3, 4),
        i64(1),
        constants=(1, 2),
    )
    case(
        f"broadcast{v}-explicit-two",
        lambda a, b, c, v=v: OPSETS[v].broadcast(a, b, c, "EXPLICIT"),
        f(2, 4),
        i64(2, 3, 4),
        i64(0, 2),
        constants=(1, 2),
    )
for name, shape, target in (
    ("both", (3, 1), (2, 1, 4)),
    ("shorter", (2, 3, 1), (4,)),
    ("scalar", (), (2,)),
    ("ones", (2, 3), (1, 1)),
):
    case(
        f"broadcast3-bidirectional-{name}",
        lambda a, b: o.broadcast(a, b, broadcast_spec="BIDIRECTIONAL"),
        f(*shape),
        i64(*target),
        constants=(1,),
    )

family("pads-slices")
for mode, rank in itertools.product(("constant", "edge", "reflect", "symmetric"), (6, 7, 9)):
    sizes = [2, 3, 2, 1, 2, 3, 2, 1, 1][:rank]
    case(
        f"pad12-{mode}-{rank}",
        lambda a, b, c, m=mode: o.pad(a, b, c, m),
        f(*sizes),
        np.array([n > 1 for n in sizes], np.int64),
        np.array([-(n > 2) for n in sizes], np.int64),
        constants=(1, 2),
    )
for v, mode in itertools.product((1, 12), ("constant", "edge", "reflect", "symmetric")):
    value = np.float32(2) if mode == "constant" else None
    pad = OPSETS[v].pad
    case(
        f"pad{v}-{mode}",
        lambda a, b, c, p=pad, m=mode, u=value: p(a, b, c, m, u),
        x,
        i64(1, 0, 2),
        i64(0, 2, 1),
        constants=(1, 2),
    )
    case(
        f"pad{v}-{mode}-computed",
        lambda a, b, c, p=pad, m=mode, u=value: p(a, b, c, m, u),
        x,
        i64(1, 0, 2),
        i64(0, 2, 1),
        fixed=(1, 2),
    )
case(
    "pad1-int32-zero",
    lambda a, b, c: OPSETS[1].pad(a, b, c, "constant"),
    ints(0, 9, (2, 3)),
    i64(1, 0),
    i64(0, 1),
    constants=(1, 2),
)
case(
    "pad12-negative",
    lambda a, b, c: o.pad(a, b, c, "constant", np.float32(2)),
    x,
    i64(-1, 0, 2),
    i64(0, 2, -1),
    constants=(1, 2),
)
case(
    "pad12-empty",
    lambda a, b, c: o.pad(a, b, c, "constant", np.float32(2)),
    f(0, 2),
    i64(1, 0),
    i64(1, 1),
    constants=(1, 2),
)
case(
    "pad12-uint8",
    lambda a, b, c: o.pad(a, b, c, "constant", np.uint8(2)),
    ints(0, 9, (3,), np.uint8),
    i64(1),
    i64(2),
    constants=(1, 2),
)
MASKS = ("begin_mask", "end_mask", "new_axis_mask", "shrink_axis_mask", "ellipsis_mask")
for name, begin, end, step, masks in (
    ("plain", (0, 1, -3), (1, 3, 4), (1, 1, 2), ([0, 1, 0], [0, 0, 1])),
    ("shrink", (0, 1, 0), (1, 2, 0), (1, 1, 1), ([1, 0, 0], [1, 0, 1], [0, 0, 0], [0, 1, 0])),
    ("new", (0, 0, 1), (0, 0, 3), (1, 1, 1), ([1, 1, 0], [1, 1, 0], [1, 0, 0])),
    ("ellipsis", (0, 3), (0, 0), (1, -1), ([0, 0], [0, 0], [0, 0], [0, 0], [1, 0])),
    ("short", (1,), (2,), (1,), ([0], [0])),
    ("backwards", (0, 2, 3), (2, 0, 0), (1, -1, -2), ([0, 0, 0], [0, 0, 1])),
    ("beyond", (-9, 1, 0), (9, 99, 2), (1, 1, 1), ([0, 0, 0], [0, 0, 0])),
    ("nothing", (0, 2, 0), (2, 2, 4), (1, 1, 1), ([0, 0, 0], [0, 0, 0])),
    ("last", (0, 0, -1), (2, 3, 0), (1, 1, 1), ([0] * 3, [0] * 3, [0] * 3, [0, 0, 1])),
):  # fmt: skip
    inputs = x, i64(*begin), i64(*end), i64(*step)
    case(
        f"strided_slice-{name}",
        lambda a, b, c, d, m=masks: o.strided_slice(a, b, c, d, *m),
        *inputs,
        constants=(1, 2, 3),
    )
for name, start, stop, step, axes in (
    ("two", (3, 0), (-100, 2), (-2, 1), (-1, 1)), ("one", (1,), (3,), (1,), (-2,)),
    ("nothing", (2,), (1,), (1,), (1,)), ("beyond", (-100,), (100,), (2,), (2,)),
):  # fmt: skip
    inputs = x, i64(*start), i64(*stop), i64(*step), i64(*axes)
    case(f"slice-{name}", o.slice, *inputs, constants=(1, 2, 3, 4))
    case(f"slice-computed-{name}", o.slice, *inputs, constants=(4,), fixed=(1, 2, 3))
case("slice-all", o.slice, x, i64(1, 0, 0), i64(2, 9, 3), i64(1, 2, 1), constants=(1, 2, 3))
case("slice-int32", o.slice, x, *(ints(1, 2, (1,)) for _ in range(4)), constants=(1, 2, 3, 4))

family("gathers")
for v in (1, 7, 8):
    gather = OPSETS[v].gather
    case(f"gather{v}", gather, x, i64(2, 0, 1), np.int64(1), constants=(2,))
    case(f"gather{v}-scalar", gather, x, np.int32(2), np.int64(-1), constants=(2,))
    case(f"gather{v}-matrix", gather, x, ints(0, 2, (2, 2)), i64(0), constants=(2,))
    if v > 1:
        case(
            f"gather{v}-batches",
            lambda a, b, c, g=gather: g(a, b, c, 1),
            x,
            ints(0, 3, (2, 2), np.int64),
            np.int64(1),
            constants=(2,),
        )
        case(
            f"gather{v}-batches-negative",
            lambda a, b, c, g=gather: g(a, b, c, -1),
            x,
            ints(0, 4, (2, 3)),
            np.int64(-1),
            constants=(2,),
        )
    outside = i64(7, 0, 3)
    case(f"gather{v}-outside", gather, x, outside, np.int64(1), constants=(2,))
    case(f"gather{v}-outside-scalar", gather, x, np.int32(9), np.int64(0), constants=(2,))
case("gather8-outside-below", o.gather, x, i64(-1, -9), np.int64(1), constants=(2,))
case("gather7-below", OPSETS[7].gather, x, i64(-1, 1), np.int64(1), constants=(2,))
case(
    "gather8-batches-whole",
    lambda a, b, c: o.gather(a, b, c, 1),
    x,
    i64(*range(len(x))) % 2,
    np.int64(1),
    constants=(2,),
)
case(
    "gather_nd8-negative",
    lambda a, b: o.gather_nd(a, b, 0),
    x,
    -ints(1, 3, (4, 2), np.int64),
    fixed=(1,),
)
case("gather8-negative", o.gather, x, i64(-1, 0, -3), np.int64(1), constants=(2,))
case("gather8-uint8", o.gather, ints(0, 9, (5,), np.uint8), i64(-1, 0), np.int64(0), constants=(2,))
case("gather8-bool", o.gather, f(5) > 0, i64(-1, 0), np.int64(0), constants=(2,))
case(
    "gather_elements", lambda a, b: o.gather_elements(a, b, 1), x, ints(-3, 3, (2, 5, 4), np.int64)
)
case(
    "gather_elements-last",
    lambda a, b: o.gather_elements(a, b, -1),
    ints(0, 9, (2, 3)),
    ints(0, 3, (2, 5)),
)
for v in (5, 8):
    for batches in (0, 1, 2):
        indices = ints(0, 2, ((4,), (2, 2), (2, 3))[batches] + (1,), np.int64)
        gather_nd = lambda a, b, v=v, n=batches: OPSETS[v].gather_nd(a, b, n)  # noqa: E731
        case(f"gather_nd{v}-{batches}", gather_nd, x, indices, fixed=(1,))
    case(
        f"gather_nd{v}-whole",
        lambda a, b, v=v: OPSETS[v].gather_nd(a, b, 0),
        x,
        ints(0, 2, (5, 3)),
        fixed=(1,),
    )
    case(
        f"gather_nd{v}-deep",
        lambda a, b, v=v: OPSETS[v].gather_nd(a, b, 1),
        x,
        ints(0, 3, (2, 4, 5, 2)),
        fixed=(1,),
    )

family("gathers-defined")  # OpenVINO divides by zero, or refuses, or leaves them undefined
for v, axis in itertools.product((1, 7, 8), (0, 1)):
    for constants in ((2,), (1, 2)):
        case(
            f"gather{v}-from_nothing{axis}-{len(constants)}",
            OPSETS[v].gather,
            np.zeros((2, 3)[:axis] + (0, 4), np.float32),
            i64(0, 2, 1),
            np.int64(axis),
            constants=constants,
            definition=lambda a, b, c: np.zeros(a.shape[:c] + b.shape + (4,), np.float32),
        )
for v in (1, 7, 8):
    case(
        f"gather{v}-none",
        OPSETS[v].gather,
        x,
        i64(),
        np.int64(0),
        constants=(2,),
        definition=lambda a, b, _: a[b],
    )

case(
    "scatter_update-scalar",
    o.scatter_update,
    np.zeros((2, 3), np.float32),
    np.int64(1),
    np.ones(2, np.float32),
    np.int64(1),
    constants=(3,),
    definition=lambda *_: np.eye(3, dtype=np.float32)[[1, 1]],
)

family("scatters")
case("scatter_update", o.scatter_update, x, i64(2, 0), f(2, 2, 4), np.int64(1), constants=(3,))
case(
    "scatter_update-matrix",
    o.scatter_update,
    x,
    ints(0, 1, (1, 2)) + [[2, 0]],
    f(2, 1, 2, 4),
    np.int64(-2),
    constants=(3,),
)
case(
    "scatter_update-int32",
    o.scatter_update,
    ints(0, 9, (4,)),
    i64(3, 1),
    ints(9, 19, (2,)),
    np.int64(0),
    constants=(3,),
)
PLACES = np.array([[1, 2], [0, 1]], np.int64)
for dtype in (np.float32, np.float16, np.int32, np.int64):
    data, updates = (ints(-5, 5, shape, dtype) for shape in ((2, 3, 4), (2, 4)))
    case(
        f"scatter_nd4-{name_of(dtype)}",
        OPSETS[4].scatter_nd_update,
        data,
        PLACES,
        updates,
        fixed=(1,),
    )
    for r in ("none", "sum", "sub", "prod", "min", "max"):
        case(
            f"scatter_nd15-{r}-{name_of(dtype)}",
            lambda a, b, c, r=r: o.scatter_nd_update(a, b, c, r),
            data,
            PLACES,
            updates,
            fixed=(1,),
        )
for r in ("sum", "sub", "prod", "min", "max"):
    case(
        f"scatter_nd15-{r}-twice",
        lambda a, b, c, r=r: o.scatter_nd_update(a, b, c, r),
        f(4),
        i64(1, 1, 3)[:, None],
        f(3),
        fixed=(1,),
    )
DISTINCT = np.array([[[0, 2, 1, 1], [1, 1, 0, 2]], [[1, 0, 0, -1], [0, 1, 1, 1]]], np.int64)
TWICE = np.array([[[0, 2, 1, 1], [0, 1, 1, 2]], [[1, 0, 0, -1], [0, 0, 2, 2]]], np.int64)
case(
    "scatter_elements3",
    OPSETS[3].scatter_elements_update,
    x,
    DISTINCT % 3,
    f(2, 2, 4),
    np.int64(1),
    constants=(3,),
)
case(
    "scatter_elements3-last",
    OPSETS[3].scatter_elements_update,
    ints(0, 9, (2, 3)),
    np.array([[2], [0]]),
    ints(9, 19, (2, 1)),
    np.int64(-1),
    constants=(3,),
)
for r, start in itertools.product(("none", "sum", "prod", "min", "max", "mean"), (True, False)):
    places = DISTINCT if r == "none" else TWICE
    function = lambda a, b, c, d, r=r, s=start: o.scatter_elements_update(a, b, c, d, r, s)  # noqa: E731
    for dtype in (np.float32, np.int32):
        low = 0 if r == "mean" else -9  # OpenVINO's plugin truncates, its reference does not
        data, updates = (ints(low, 9, shape, dtype) for shape in ((2, 3, 4), (2, 2, 4)))
        case(
            f"scatter_elements12-{r}-{start}-{name_of(dtype)}",
            function,
            data,
            places,
            updates,
            np.int64(1),
            constants=(3,),
        )


def means(data, places, updates, axis, with_data):
    """Of integers, rounded down as OpenVINO's reference has it."""
    values = {at: [n] if with_data else [] for at, n in np.ndenumerate(data)}
    for at, n in np.ndenumerate(updates):
        own = list(at)
        own[axis] = places[at] % data.shape[axis]
        values[tuple(own)].append(n)
    result = data.copy()
    for at, own in values.items():
        if len(own) > with_data:
            result[at] = np.floor(np.mean(own))
    return result


for name, shape, at in (("vector", [4], [2]), ("matrix", [3, 4], [2, 1]), ("row", [3, 4], [-1])):
    for reduction in (None, "none", "sum", "sub", "prod", "min", "max"):
        scatter = OPSETS[4 if reduction is None else 15].scatter_nd_update
        given = {} if reduction is None else {"reduction": reduction}
        case(
            f"scatter_nd_update-one-{name}-{reduction}",
            lambda a, b, c, s=scatter, g=given: s(a, b, c, **g),
            f(*shape),
            i64(*at),
            f(*shape[len(at) :]),
        )

family("scatters-defined")
for start in (True, False):
    case(
        f"scatter_elements12-mean-{start}",
        lambda a, b, c, d, s=start: o.scatter_elements_update(a, b, c, d, "mean", s),
        ints(-9, 0, (2, 3, 4)),
        TWICE,
        ints(-9, 9, (2, 2, 4)),
        np.int64(1),
        constants=(3,),
        definition=lambda a, b, c, d, s=start: means(a, b, c, int(d), s),
    )

family("orders")
case("reverse_sequence", lambda a, b: o.reverse_sequence(a, b, 0, 1), x, i64(2, 3))
for batch, along, rank in ((0, 2, 6), (3, 1, 6), (-1, 0, 7), (5, 6, 7)):
    sizes = [2, 1, 3, 2, 2, 3, 4][:rank]
    case(
        f"reverse_sequence-{batch}-{along}-{rank}",
        lambda a, b, n=batch, t=along: o.reverse_sequence(a, b, n, t),
        f(*sizes),
        ints(1, sizes[along] + 1, (sizes[batch],)),
    )
case("reverse_sequence-axes", lambda a, b: o.reverse_sequence(a, b, -2, -1), x, ints(1, 4, (3,)))
for dtype in (np.float32, np.int32, np.int64):
    name = {"float32": "f32", "int32": "i32", "int64": "i64"}[name_of(dtype)]
    case(f"range4-{name}", lambda *a, name=name: o.range(*a, name), dtype(1), dtype(9), dtype(3))
    case(
        f"range4-{name}-down",
        lambda *a, name=name: o.range(*a, name),
        dtype(1),
        dtype(-5),
        dtype(-2),
    )
    case(f"range1-{name}", create("Range", 1), dtype(1), dtype(9), dtype(3))
    case(f"range1-{name}-down", create("Range", 1), dtype(1), dtype(-5), dtype(-2))
for v, axis in itertools.product((1, 16), (-1, 0, 1)):
    one_hot = lambda a, b, c, d, v=v, axis=axis: OPSETS[v].one_hot(a, b, c, d, axis)  # noqa: E731
    case(
        f"one_hot{v}-axis{axis}",
        one_hot,
        ints(0, 4, (2, 3), np.int64),
        np.int64(4),
        np.float32(3),
        np.float32(0.5),
        constants=(1, 2, 3),
    )
for v in (1, 16):
    one_hot = lambda a, b, c, d, v=v: OPSETS[v].one_hot(a, b, c, d, -1)  # noqa: E731
    case(
        f"one_hot{v}-scalar",
        one_hot,
        np.int64(2),
        np.int64(4),
        np.int32(3),
        np.int32(-1),
        constants=(1, 2, 3),
    )
    case(
        f"one_hot{v}-outside",
        one_hot,
        i64(0, 2, 5, -1),
        np.int64(4),
        np.uint8(3),
        np.uint8(1),
        constants=(1, 2, 3),
    )
for mode in ("ignore_negative", "normalize"):
    case(
        f"one_hot16-{mode}",
        lambda a, b, c, d, m=mode: OPSETS[16].one_hot(a, b, c, d, -1, m),
        i64(0, -1, -4, -5, 3),
        np.int64(4),
        np.float32(1),
        np.float32(0),
        constants=(1, 2, 3),
    )
for name, diagonal, dtype in (
    ("above", 1, "f32"),
    ("below", -1, "i32"),
    ("outside", 9, "f16"),
    ("main", 0, "u8"),
):
    case(
        f"eye-{name}",
        lambda a, b, c, dtype=dtype: o.eye(a, b, c, dtype),
        np.int64(3),
        np.int64(4),
        np.int64(diagonal),
        constants=(2,),
    )
case(
    "eye-batches",
    lambda a, b, c, d: o.eye(a, b, c, "i64", d),
    np.int32(3),
    np.int32(4),
    np.int32(-1),
    i64(2, 2),
    constants=(2, 3),
)
case("non_zero-i32", lambda a: o.non_zero(a, "i32"), ints(0, 2, (3, 4)))
case("non_zero-i64", lambda a: o.non_zero(a, "i64"), (f(3, 4) > 0).astype(np.float32))
case("non_zero-bool", lambda a: o.non_zero(a), f(5) > 0)
case("non_zero-nothing", lambda a: o.non_zero(a), np.zeros((2, 3), np.float32))
for exclusive, reverse in itertools.product((False, True), repeat=2):
    cum_sum = lambda a, b, e=exclusive, r=reverse: o.cum_sum(a, b, e, r)  # noqa: E731
    case(f"cum_sum-{exclusive}-{reverse}", cum_sum, x, np.int64(-1), constants=(1,))
    case(
        f"cum_sum-int32-{exclusive}-{reverse}",
        cum_sum,
        ints(-9, 9, (3, 4)),
        np.int32(0),
        constants=(1,),
    )
for v, m, s in itertools.product((1, 3, 11), ("max", "min"), ("value", "index")):
    case(
        f"topk{v}-{m}-{s}",
        lambda a, b, v=v, m=m, s=s: OPSETS[v].topk(a, b, 1, m, s),
        x,
        np.int64(2),
        constants=(1,),
    )
    case(
        f"topk{v}-{m}-{s}-int32",
        lambda a, b, v=v, m=m, s=s: OPSETS[v].topk(a, b, -1, m, s),
        RNG.permutation(12).reshape(3, 4).astype(np.int32),
        np.int64(3),
        constants=(1,),
    )
for m in ("max", "min"):
    case(
        f"topk11-ties-{m}",
        lambda a, b, m=m: o.topk(a, b, 0, m, "value", "i64", True),
        np.array([1, 3, 3, 2, 3, 1], np.float32),
        np.int64(4),
        constants=(1,),
    )
    case(
        f"topk11-one-{m}",
        lambda a, b, m=m: o.topk(a, b, 0, m, "none", "i64"),
        RNG.permutation(5).astype(np.float32),
        np.int64(1),
        constants=(1,),
    )
for m in ("blocks_first", "depth_first"):
    for name, shape in (("1d", (2, 8, 3)), ("2d", (2, 8, 2, 3)), ("3d", (1, 8, 2, 3, 1))):
        case(f"depth_to_space-{m}-{name}", lambda a, m=m: o.depth_to_space(a, m, 2), f(*shape))
    for name, shape in (("1d", (2, 3, 4)), ("2d", (2, 3, 4, 6)), ("3d", (1, 2, 2, 4, 6))):
        case(f"space_to_depth-{m}-{name}", lambda a, m=m: o.space_to_depth(a, m, 2), f(*shape))
REPEATED = np.array([3, 1, 3, 2, 1, 7], np.float32)
ROWS = np.array([[3, 1, 3], [1, 2, 1], [0, 0, 0]], np.float32).T.copy()
case("unique", lambda a: o.unique(a), REPEATED)
case("unique-unsorted", lambda a: o.unique(a, None, False, "i32", "i32"), REPEATED)
case("unique-matrix", lambda a: o.unique(a), ints(0, 4, (3, 4), np.int64))
case("unique-rows", lambda a, b: o.unique(a, b), ROWS, np.int64(0), constants=(1,))
case(
    "unique-columns",
    lambda a, b: o.unique(a, b, True, "i32"),
    ROWS.T.copy(),
    np.int64(-1),
    constants=(1,),
)
case("unique-rows-unsorted", lambda a, b: o.unique(a, b, False), ROWS, np.int64(0), constants=(1,))

family("orders-defined")  # OpenVINO refuses
for dtype in (np.float32, np.int32, np.int64):
    name = {"float32": "f32", "int32": "i32", "int64": "i64"}[name_of(dtype)]
    case(
        f"range4-{name}-nothing",
        lambda *a, name=name: o.range(*a, name),
        dtype(1),
        dtype(-5),
        dtype(2),
        definition=lambda *a: np.arange(*a, dtype=a[0].dtype),
    )
for kind, dtype in itertools.product((np.int32, np.int64), (np.float32, np.float16)):
    name = {np.int32: "i32", np.int64: "i64"}[kind]
    case(
        f"range4-{name}-of-{name_of(dtype)}-nothing",
        lambda *a, name=name: o.range(*a, name),
        dtype(5),
        dtype(2),
        dtype(1),
        definition=lambda *_, kind=kind: np.zeros(0, kind),
    )
for batch in (1, 2):
    for v in (1, 15):
        case(
            f"squeeze{v}-all-{batch}",
            lambda a, v=v: o.relu(create("Squeeze", v)(a)),
            np.abs(f(batch, 3, 1)),
            dynamic=(True,),
            definition=np.squeeze,
        )
    case(
        f"squeeze15-skip-{batch}",
        lambda a, b: o.squeeze(a, b, True),
        f(batch, 3, 1),
        i64(0, -1),
        constants=(1,),
        dynamic=(True,),
        definition=lambda a, _: np.squeeze(a),
    )
reverse = create("Reverse", 1, {"mode": "index"})
case(
    "reverse-index",
    reverse,
    x,
    i64(0, -1),
    constants=(1,),
    definition=lambda a, _: np.flip(a, (0, -1)),
)
case("reverse-none", reverse, x, i64(), constants=(1,), definition=lambda a, _: a)
case(
    "reverse-mask",
    create("Reverse", 1, {"mode": "mask"}),
    ints(0, 9, (2, 3, 4)),
    np.array([True, False, True]),
    constants=(1,),
    definition=lambda a, _: np.flip(a, (0, 2)),
)

# Reductions and normalization.

family("reductions")
for dtype in (*FLOATS, np.int32):
    for shape, axes in (((0, 2), [0]), ((2, 0, 3), [1, 2]), ((0, 2), [1])):
        case(
            f"reduce_mean-nothing{len(shape)}{axes[0]}-{name_of(dtype)}",
            lambda a, b: o.reduce_mean(a, b, False),
            np.zeros(shape, dtype),
            i64(*axes),
            constants=(1,),
        )
REDUCTIONS = "reduce_max reduce_min reduce_mean reduce_sum reduce_prod reduce_l1 reduce_l2".split()
for name, keep in itertools.product(REDUCTIONS, (False, True)):
    function = lambda a, b, n=name, k=keep: getattr(o, n)(a, b, k)  # noqa: E731
    for dtype in FLOATS:
        case(
            f"{name}-{keep}-{name_of(dtype)}",
            function,
            f(2, 3, 4, dtype=dtype),
            i64(-1, 0),
            constants=(1,),
        )
    case(f"{name}-{keep}-scalar-axis", function, x, np.int64(1), constants=(1,))
    case(f"{name}-{keep}-all", function, x, i64(0, 1, 2), constants=(1,))
    for dtype in (np.int32, np.int64):
        if name != "reduce_l2":
            case(
                f"{name}-{keep}-{name_of(dtype)}",
                function,
                ints(-9, 9, (3, 4), dtype),
                i64(1),
                constants=(1,),
            )
for name in ("reduce_sum", "reduce_prod", "reduce_l1"):
    case(f"{name}-empty", lambda a, b, n=name: getattr(o, n)(a, b), f(2, 0), i64(1), constants=(1,))
for name, keep in itertools.product(("reduce_logical_and", "reduce_logical_or"), (False, True)):
    case(
        f"{name}-{keep}",
        lambda a, b, n=name, k=keep: getattr(o, n)(a, b, k),
        x > 0,
        i64(1),
        constants=(1,),
    )
    case(
        f"{name}-{keep}-all",
        lambda a, b, n=name, k=keep: getattr(o, n)(a, b, k),
        x > -9,
        i64(0, -1, -2),
        constants=(1,),
    )
for axis in (0, 1):
    case(f"softmax1-{axis}", lambda a, axis=axis: OPSETS[1].softmax(a, axis), x)
for axis in (-2, 0, 2):
    case(f"softmax8-{axis}", lambda a, axis=axis: OPSETS[8].softmax(a, axis), x)
    case(f"log_softmax-{axis}", lambda a, axis=axis: o.log_softmax(a, axis), x)
case("softmax8-half", lambda a: o.softmax(a, -1), x.astype(np.float16))

family("normalization", most_dynamic=2)
image = f(2, 3, 4, 5)
for v, shape in itertools.product((1, 5), ((2, 3), (2, 3, 4), (2, 3, 4, 5))):
    for epsilon in (1e-3, 0.1):
        norm = lambda a, *r, v=v, e=epsilon: OPSETS[v].batch_norm_inference(a, *r, e)  # noqa: E731
        case(
            f"batch_norm{v}-{len(shape)}-{epsilon}",
            norm,
            f(*shape),
            f(3),
            f(3),
            f(3),
            np.abs(f(3)),
            tolerance=1e-4,
        )
for groups, shape in ((1, (2, 4, 3)), (2, (2, 4, 3, 5)), (4, (2, 4, 1, 2, 3))):
    case(
        f"group_norm-{groups}",
        lambda a, b, c, g=groups: OPSETS[12].group_normalization(a, b, c, g, 1e-4),
        f(*shape),
        f(4),
        f(4),
        tolerance=1e-4,
    )
for n, m in itertools.product((True, False), ("inside_sqrt", "outside_sqrt")):
    mvn = lambda a, b, n=n, m=m: o.mvn(a, b, n, 1e-3, m)  # noqa: E731
    case(f"mvn6-{n}-{m}", mvn, image, i64(2, 3), constants=(1,), tolerance=1e-4)
    case(f"mvn6-{n}-{m}-last", mvn, f(2, 3, 4), i64(-1), constants=(1,), tolerance=1e-4)
for across, normalize in itertools.product((True, False), repeat=2):
    case(
        f"mvn2-{across}-{normalize}",
        lambda a, c=across, n=normalize: OPSETS[2].mvn(a, c, n, 1e-6),
        image,
        tolerance=1e-4,
    )
for m, axes in itertools.product(("add", "max"), ((1,), (1, 2, 3), (-1,))):
    case(
        f"normalize_l2-{m}-{axes}",
        lambda a, b, m=m: o.normalize_l2(a, b, 1e-3, m),
        image,
        i64(*axes),
        constants=(1,),
        tolerance=1e-4,
    )
for size, axes in ((3, (1,)), (5, (1,)), (3, (2, 3)), (2, (1,)), (4, (2, 3))):
    # OpenVINO takes the bias for an int: 2 is one.
    case(
        f"lrn-{size}-{axes}",
        lambda a, b, s=size: o.lrn(a, b, 0.5, 0.7, 2, s),
        f(2, 5, 4, 4),
        i64(*axes),
        constants=(1,),
        tolerance=1e-4,
    )


def local_response(x, axes, alpha=0.5, beta=0.7, bias=1.1, size=3):
    squares, half = x * x, size // 2
    sums = np.zeros_like(x)
    for shifts in itertools.product(range(-half, half + 1), repeat=len(axes)):
        padded = np.pad(squares, [(half, half) if i in axes else (0, 0) for i in range(x.ndim)])
        window = [slice(None)] * x.ndim
        for axis, shift in zip(axes, shifts):
            window[axis] = slice(half + shift, half + shift + x.shape[axis])
        sums += padded[tuple(window)]
    return x / (bias + alpha * sums / size ** len(axes)) ** beta


family("normalization-defined")
for axes in ((1,), (2, 3)):
    case(
        f"lrn-bias-{axes}",
        lambda a, b: o.lrn(a, b, 0.5, 0.7, 1.1, 3),
        f(2, 5, 4, 4),
        i64(*axes),
        constants=(1,),
        tolerance=1e-4,
        definition=local_response,
    )

family("integers", most_dynamic=2)
for dtype in np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64:
    name, element_type = (
        name_of(dtype),
        np.dtype(dtype).name.replace("uint", "u").replace("int", "i"),
    )
    a, b = ints(0, 5, (3, 4), dtype), ints(0, 4, (3, 4), dtype)
    case(f"power-{name}", o.power, a, b)
    case(f"matmul-{name}", lambda a, b: o.matmul(a, b, False, True), a, b)
    for each in "reduce_l1", "reduce_l2":
        reduce = lambda a, b, n=each: getattr(o, n)(a, b, True)  # noqa: E731
        case(f"{each}-{name}", reduce, a, i64(1), constants=(1,))
    case(
        f"range-{name}",
        lambda *a, n=element_type: o.range(*a, n),
        *(np.asarray(n, dtype) for n in (1, 9, 3)),
        constants=(0, 1, 2),
        dynamic=(False,),
    )
case("power-below-zero", o.power, np.int32([2, 1, -1, -1, 3]), np.int32([-1, -3, -3, -2, 2]))
case("prelu-scalar", o.prelu, np.float32(-2), np.float32([0.5]))
case("unsqueeze-twice", o.unsqueeze, f(2, 3), i64(0, 0), constants=(1,))
case(
    "normalize_l2-none",
    lambda a, b: o.normalize_l2(a, b, 1e-3, "add"),
    f(2, 3),
    i64(),
    constants=(1,),
)
# Of a batch of none; of an extent that is not known TensorFlow's own kernel gives another shape.
for name, filters in ("convolution", (4, 3, 3, 3)), ("group_convolution", (3, 2, 1, 3, 3)):
    case(
        f"{name}-none",
        lambda a, b, n=name: getattr(o, n)(a, b, [1, 1], [0, 0], [0, 0], [1, 1]),
        np.zeros([0, 3, 5, 5], np.float32),
        f(*filters),
        constants=(1,),
        dynamic=(False,),
    )

family("reductions-defined")  # OpenVINO refuses, or overflows
case(
    "reduce_mean-int8",
    lambda a, b: o.reduce_mean(a, b, False),
    ints(0, 9, (20, 20), np.int8),
    i64(0, 1),
    constants=(1,),
    definition=lambda a, _: np.int8(int(a.astype(int).sum() / a.size)),
)
for name, keep in itertools.product(REDUCTIONS, (False, True)):
    function = lambda a, b, n=name, k=keep: getattr(o, n)(a, b, k)  # noqa: E731
    case(
        f"{name}-{keep}-no-axes",
        function,
        np.abs(x),
        i64(),
        constants=(1,),
        definition=lambda a, _: a,
    )

# Products.

family("products")
for ta, tb in itertools.product((False, True), repeat=2):
    a, b = f(*((2, 4, 3) if ta else (2, 3, 4))), f(*((5, 4) if tb else (4, 5)))
    matmul = lambda a, b, ta=ta, tb=tb: o.matmul(a, b, ta, tb)  # noqa: E731
    case(f"matmul-{ta}-{tb}", matmul, a, b, tolerance=1e-4)
    case(f"matmul-{ta}-{tb}-constant", matmul, a, b, constants=(1,), tolerance=1e-4)
    case(f"matmul-{ta}-{tb}-vectors", matmul, f(4), f(4), tolerance=1e-4)
    case(f"matmul-{ta}-{tb}-batches", matmul, a[:, None], f(3, *b.shape), tolerance=1e-4)
case(
    "matmul-vector-left", lambda a, b: o.matmul(a, b, True, False), f(4), f(2, 4, 5), tolerance=1e-4
)
case("matmul-vector-right", lambda a, b: o.matmul(a, b, False, True), f(2, 4), f(4), tolerance=1e-4)
case(
    "matmul-half",
    lambda a, b: o.matmul(a, b, False, False),
    f(2, 4, dtype=np.float16),
    f(4, 3, dtype=np.float16),
)
case(
    "matmul-double",
    lambda a, b: o.matmul(a, b, False, False),
    f(2, 4, dtype=np.float64),
    f(4, 3, dtype=np.float64),
    tolerance=1e-4,
)
case(
    "matmul-int32",
    lambda a, b: o.matmul(a, b, False, False),
    ints(-5, 5, (2, 4)),
    ints(-5, 5, (4, 3)),
)
case("matmul-empty", lambda a, b: o.matmul(a, b, False, False), f(0, 4), f(4, 3))
for transposed, row in itertools.product((False, True), ((1, 5), (1, 1, 5), (5,))):
    case(
        f"matmul-transposed-{transposed}-plus-{len(row)}",
        lambda a, b, c, t=transposed: o.add(
            o.matmul(o.transpose(a, i64(1, 0)) if t else a, b, not t, False), c
        ),
        f(4, 3),
        f(4, 5),
        f(*row),
        fixed=(2,),
        tolerance=1e-4,
    )
for equation, shapes in {
    "bij,jk->bik": ((2, 3, 4), (4, 5)), "...ij,...kj->...ik": ((2, 3, 4), (2, 5, 4)),
    "ij->ji": ((2, 3),), "ij->": ((2, 3),), "i,j->ij": ((2,), (3,)), "ij,jk": ((2, 3), (3, 4)),
    "ii->i": ((3, 3),), "ab,bc,cd->ad": ((2, 3), (3, 4), (4, 2)), "ba": ((2, 3),),
    "i,i->": ((3,), (3,)), "Ab,bC->AC": ((2, 3), (3, 4)),
}.items():  # fmt: skip
    case(
        f"einsum-{equation}",
        lambda *a, e=equation: OPSETS[7].einsum([*a], e),
        *(f(*s) for s in shapes),
        tolerance=1e-4,
    )
attention = OPSETS[13].scaled_dot_product_attention
q, k, value = f(2, 3, 4, 5), f(2, 3, 6, 5), f(2, 3, 6, 7)
case("attention", attention, q, k, value, tolerance=1e-4)
case(
    "attention-causal",
    lambda *a: attention(*a, causal=True),
    q,
    k[:, :, :4],
    value[:, :, :4],
    tolerance=1e-4,
)
case("attention-mask", attention, q, k, value, f(4, 6), tolerance=1e-4)
case("attention-mask-batches", attention, q, k, value, f(2, 1, 4, 6), tolerance=1e-4)
case("attention-bool", attention, q, k, value, np.tril(np.ones((4, 6))) > 0, tolerance=1e-4)
case("attention-scale", attention, q, k, value, f(4, 6), np.float32(0.3), tolerance=1e-4)
case("attention-3d", attention, q[0], k[0], value[0], tolerance=1e-4)
halves = [each.astype(np.float16) for each in (q * 4, k, value)]
case("attention-half", attention, *halves)
case("attention-half-causal", lambda *a: attention(*a, causal=True), *halves)
case("attention-half-mask", attention, *halves, f(4, 6, dtype=np.float16))
case("attention-half-bool", attention, *halves, np.tril(np.ones((4, 6))) > 0)
with_sink = create("ScaledDotProductAttention", 13, {"causal": False})
causal_with_sink = create("ScaledDotProductAttention", 13, {"causal": True})
sink = np.float32(0.3), f(1, 3, 1, 1)
case("attention-sink", with_sink, q, k, value, f(4, 6), *sink, tolerance=1e-4)
case("attention-sink-constant", with_sink, q, k, value, f(4, 6), *sink, constants=(5,))
case(
    "attention-sink-causal",
    causal_with_sink,
    q,
    k[:, :, :4],
    value[:, :, :4],
    f(4, 4),
    *sink,
    tolerance=1e-4,
)
for name in ("dft", "idft"):
    fourier = getattr(OPSETS[7], name)
    case(name, fourier, f(2, 4, 6, 2), i64(1, 2), constants=(1,), tolerance=1e-4)
    case(
        f"{name}-sizes",
        fourier,
        f(2, 4, 6, 2),
        i64(2, 0),
        i64(4, 3),
        constants=(1, 2),
        tolerance=1e-4,
    )
    case(
        f"{name}-negative",
        fourier,
        f(2, 4, 6, 2),
        i64(-1),
        i64(9),
        constants=(1, 2),
        tolerance=1e-4,
    )
    case(
        f"{name}-default-size",
        fourier,
        f(2, 4, 6, 2),
        i64(1, 0),
        i64(-1, 3),
        constants=(1, 2),
        tolerance=1e-4,
    )

# Bags.

family("bags")
table, ids = f(9, 3), i64(0, 2, 3, 8, 1)
sum_by_offsets = OPSETS[3].embedding_bag_offsets_sum
segments_sum = OPSETS[3].embedding_segments_sum
packed_ids = np.array([[0, 1], [3, 4]], np.int64)
case("bag_offsets3", sum_by_offsets, table, ids, i64(0, 2, 2))
case("bag_offsets3-default", sum_by_offsets, table, ids, i64(0, 2, 2), np.int64(1), constants=(3,))
case(
    "bag_offsets3-none",
    sum_by_offsets,
    table,
    ids,
    i64(0, 2, 2),
    np.int64(-1),
    f(5),
    constants=(3,),
    dynamic=(False,),
)
case("bag_offsets3-i32", sum_by_offsets, table, ids.astype(np.int32), np.array([0, 1, 4], np.int32))
case("bag_packed3", OPSETS[3].embedding_bag_packed_sum, table, packed_ids)
case(
    "bag_packed3-weights",
    OPSETS[3].embedding_bag_packed_sum,
    table,
    packed_ids,
    f(2, 2),
    dynamic=(False,),
)
case("segments", segments_sum, table, ids, i64(0, 0, 2, 2, 3), np.int64(5))
case(
    "segments-default",
    segments_sum,
    table,
    ids,
    i64(0, 0, 2, 2, 3),
    np.int64(5),
    np.int64(2),
    constants=(3, 4),
)
case(
    "segments-weights",
    segments_sum,
    table,
    ids,
    i64(0, 0, 2, 2, 3),
    np.int64(5),
    np.int64(2),
    f(5),
    constants=(3, 4),
    dynamic=(False,),
)
for r in ("sum", "mean"):
    case(
        f"bag_offsets15-{r}",
        lambda t, i, w, r=r: o.embedding_bag_offsets(t, i, w, reduction=r),
        table,
        ids,
        i64(0, 2, 3),
    )
    case(
        f"bag_offsets15-{r}-default",
        lambda t, i, w, d, r=r: o.embedding_bag_offsets(t, i, w, d, reduction=r),
        table,
        ids,
        i64(0, 2, 2),
        np.int64(1),
        constants=(3,),
    )
    case(
        f"bag_packed15-{r}",
        lambda t, i, r=r: o.embedding_bag_packed(t, i, reduction=r),
        table,
        packed_ids,
    )

family("bags-defined")  # OpenVINO cannot compute weights of unknown extents
case(
    "bag_packed3-weights",
    OPSETS[3].embedding_bag_packed_sum,
    table,
    packed_ids,
    f(2, 2),
    definition=lambda t, i, w: (t[i] * w[..., None]).sum(1),
)

# Convolutions and pooling.

family("convolution")
PADS = ("explicit", "same_upper", "same_lower", "valid")
for pad, constants in itertools.product(PADS, ((), (1,))):
    kinds = (False, True) if constants else (False,)  # OpenVINO wants filters of a known shape
    options = {"constants": constants, "dynamic": kinds, "tolerance": 1e-4}
    tag = f"{pad}-{'constant' if constants else 'given'}"
    case(
        f"conv1-{tag}",
        lambda a, b, p=pad: o.convolution(a, b, [2], [1], [0], [1], p),
        f(2, 3, 9),
        f(4, 3, 3),
        **options,
    )
    case(
        f"conv2-{tag}",
        lambda a, b, p=pad: o.convolution(a, b, [2, 1], [1, 0], [0, 2], [1, 2], p),
        f(2, 3, 9, 8),
        f(4, 3, 3, 2),
        **options,
    )
    case(
        f"conv2-both-{tag}",
        lambda a, b, p=pad: o.convolution(a, b, [2, 2], [1, 0], [0, 2], [2, 2], p),
        f(2, 3, 9, 8),
        f(4, 3, 3, 2),
        **options,
    )
    case(
        f"conv3-{tag}",
        lambda a, b, p=pad: o.convolution(a, b, [2, 1, 1], [1, 0, 1], [0, 2, 1], [1, 2, 1], p),
        f(2, 3, 6, 5, 4),
        f(4, 3, 3, 2, 2),
        **options,
    )
for pad in PADS:
    options = {"constants": (1,), "tolerance": 1e-4}
    case(
        f"group-{pad}",
        lambda a, b, p=pad: o.group_convolution(a, b, [1, 1], [1, 0], [0, 2], [1, 1], p),
        f(2, 4, 6, 5),
        f(2, 3, 2, 3, 2),
        **options,
    )
    case(
        f"depthwise-{pad}",
        lambda a, b, p=pad: o.group_convolution(a, b, [2, 2], [1, 0], [0, 2], [1, 1], p),
        f(2, 4, 6, 5),
        f(4, 2, 1, 3, 2),
        **options,
    )
    case(
        f"depthwise-dilated-{pad}",
        lambda a, b, p=pad: o.group_convolution(a, b, [2, 1], [1, 0], [0, 2], [1, 2], p),
        f(2, 4, 6, 5),
        f(4, 1, 1, 3, 2),
        **options,
    )
    case(
        f"depthwise-strides-{pad}",
        lambda a, b, p=pad: o.group_convolution(a, b, [4, 2], [1, 0], [0, 2], [1, 1], p),
        f(2, 4, 9, 6),
        f(4, 2, 1, 3, 2),
        **options,
    )
    case(
        f"depthwise1-{pad}",
        lambda a, b, p=pad: o.group_convolution(a, b, [2], [1], [0], [1], p),
        f(2, 4, 6),
        f(4, 2, 1, 3),
        **options,
    )
case(
    "depthwise1-dilated",
    lambda a, b: o.group_convolution(a, b, [2], [1], [0], [2]),
    f(2, 4, 8),
    f(4, 1, 1, 3),
    constants=(1,),
    tolerance=1e-4,
)
case(
    "group3",
    lambda a, b: o.group_convolution(a, b, [1, 1, 2], [1, 0, 0], [0, 2, 0], [1, 1, 1]),
    f(1, 4, 4, 3, 5),
    f(2, 1, 2, 2, 2, 2),
    constants=(1,),
    tolerance=1e-4,
)

family("deconvolution")
for pad, (more, dilation) in itertools.product(PADS, ((0, 1), (1, 2))):
    options = {"constants": (1,), "tolerance": 1e-4}
    tag = f"{pad}-{more}-{dilation}"
    case(
        f"deconv2-{tag}",
        lambda a, b, p=pad, m=more, d=dilation: o.convolution_backprop_data(
            a, b, [2, 2], None, [1, 0], [0, 1], [1, d], p, [m, m]
        ),
        f(2, 3, 5, 4),
        f(3, 4, 3, 2),
        **options,
    )
    case(
        f"group-deconv2-{tag}",
        lambda a, b, p=pad, m=more, d=dilation: o.group_convolution_backprop_data(
            a, b, [2, 2], None, [1, 0], [0, 1], [1, d], p, [m, m]
        ),
        f(2, 4, 5, 4),
        f(2, 2, 3, 3, 2),
        **options,
    )
for pad in ("explicit", "same_upper", "same_lower"):
    options = {"constants": (1, 2), "tolerance": 1e-4}
    case(
        f"deconv-shape-{pad}",
        lambda a, b, c, p=pad: o.convolution_backprop_data(
            a, b, [2, 2], c, [0, 0], [0, 0], [1, 1], p
        ),
        f(2, 3, 5, 4),
        f(3, 4, 3, 3),
        i64(10, 8),
        **options,
    )
    case(
        f"group-deconv-shape-{pad}",
        lambda a, b, c, p=pad: o.group_convolution_backprop_data(
            a, b, [2, 2], c, [0, 0], [0, 0], [1, 1], p
        ),
        f(2, 4, 5, 4),
        f(2, 2, 3, 3, 3),
        i64(10, 8),
        **options,
    )
WANTED = (7, 6), (10, 8), (12, 11), (14, 9)  # of 11, 9 if nothing is cropped
for pad, more, wanted in itertools.product(
    ("explicit", "valid", "same_upper", "same_lower"), (0, 1), WANTED
):
    deconvolve = lambda a, b, c, p=pad, m=more: o.convolution_backprop_data(  # noqa: E731
        a, b, [2, 2], c, [1, 0], [0, 2], [1, 1], p, [m, m]
    )
    tag = f"{pad}-{more}-{wanted[0]}"
    arrays = f(1, 3, 5, 4), f(3, 2, 3, 3), i64(*wanted)
    options = {"tolerance": 1e-4}
    case(f"deconv-shape-{tag}", deconvolve, *arrays, constants=(1, 2), **options)
    # OpenVINO refuses this with known extents.
    case(
        f"deconv-shape-computed-{tag}",
        deconvolve,
        *arrays,
        constants=(1,),
        fixed=(2,),
        dynamic=(True,),
        **options,
    )
    case(
        f"group-deconv-shape-{tag}",
        lambda a, b, c, p=pad, m=more: o.group_convolution_backprop_data(
            a, b, [2, 2], c, [1, 0], [0, 2], [1, 1], p, [m, m]
        ),
        f(2, 4, 5, 4),
        f(2, 2, 3, 3, 3),
        i64(*wanted),
        constants=(1, 2),
        **options,
    )
case(
    "deconv1-shape",
    lambda a, b, c: o.convolution_backprop_data(a, b, [2], c, [1], [0], [2]),
    f(2, 3, 5),
    f(3, 4, 3),
    i64(15),
    constants=(1, 2),
    tolerance=1e-4,
)
case(
    "deconv1",
    lambda a, b: o.convolution_backprop_data(a, b, [3], None, [1], [0], [1]),
    f(2, 3, 5),
    f(3, 4, 3),
    constants=(1,),
    tolerance=1e-4,
)
case(
    "deconv3",
    lambda a, b: o.convolution_backprop_data(
        a, b, [2, 1, 2], None, [1, 0, 0], [0, 1, 0], [1, 1, 1]
    ),
    f(1, 3, 3, 2, 3),
    f(3, 2, 2, 3, 2),
    constants=(1,),
    tolerance=1e-4,
)

family("pooling")
for r, shapes in (("floor", (False,)), ("ceil", (False, True))):
    for exclude in (True, False):
        for v, begin, end in ((1, 1, 1), (14, 1, 1), (14, 0, 0)):
            case(
                f"avg_pool{v}-{r}-{exclude}-{begin}",
                lambda a, v=v, e=exclude, r=r, b=begin, n=end: OPSETS[v].avg_pool(
                    a, [2, 2], [b, 0], [n, n], [3, 2], e, r
                ),
                f(2, 2, 8, 7),
                dynamic=shapes,
                tolerance=1e-4,
            )
        case(
            f"avg_pool1-1d-{r}-{exclude}",
            lambda a, e=exclude, r=r: OPSETS[1].avg_pool(a, [2], [1], [1], [3], e, r),
            f(2, 3, 8),
            dynamic=shapes,
            tolerance=1e-4,
        )
        case(
            f"avg_pool1-3d-{r}-{exclude}",
            lambda a, e=exclude, r=r: OPSETS[1].avg_pool(
                a, [2, 1, 2], [1, 0, 0], [0, 1, 0], [3, 2, 2], e, r
            ),
            f(1, 2, 6, 5, 4),
            dynamic=shapes,
            tolerance=1e-4,
        )
        case(
            f"avg_pool16-{r}-{exclude}",
            lambda a, e=exclude, r=r: OPSETS[16].avg_pool(
                a, [2, 1], [1, 1], [0, 1], [3, 2], e, r, dilations=[1, 2]
            ),
            f(1, 2, 8, 7),
            dynamic=shapes,
            tolerance=1e-4,
        )
    case(
        f"max_pool1-{r}",
        lambda a, r=r: OPSETS[1].max_pool(a, [2, 2], [1, 0], [0, 1], [3, 2], r),
        f(2, 3, 8, 7),
        dynamic=shapes,
    )
    case(
        f"max_pool1-3d-{r}",
        lambda a, r=r: OPSETS[1].max_pool(a, [2, 1, 2], [1, 0, 0], [0, 1, 0], [3, 2, 2], r),
        f(1, 2, 6, 5, 4),
        dynamic=shapes,
    )
    for v in (8, 14):
        case(
            f"max_pool{v}-{r}",
            lambda a, v=v, r=r: OPSETS[v].max_pool(
                a, [2, 2], [1, 1], [1, 0], [0, 1], [3, 2], r, "explicit", "i64", 2
            ),
            f(2, 3, 8, 7),
            dynamic=shapes,
        )
        case(
            f"max_pool{v}-dilated-{r}",
            lambda a, v=v, r=r: OPSETS[v].max_pool(
                a, [2, 1], [2, 2], [1, 0], [0, 1], [3, 2], r, index_element_type="i32"
            ),
            f(2, 3, 9, 8),
            dynamic=shapes,
        )
        case(
            f"max_pool{v}-1d-{r}",
            lambda a, v=v, r=r: OPSETS[v].max_pool(a, [2], [1], [1], [0], [3], r),
            f(2, 3, 8),
            dynamic=shapes,
        )
for pad, size in (("same_upper", 7), ("same_upper", 8), ("same_lower", 7), ("valid", 8)):
    case(
        f"max_pool1-{pad}-{size}",
        lambda a, p=pad: OPSETS[1].max_pool(a, [2, 2], [0, 0], [0, 0], [3, 2], "floor", p),
        f(2, 3, 8, size),
    )
    case(  # of unknown extents, OpenVINO takes same_lower for same_upper
        f"max_pool8-{pad}-{size}",
        lambda a, p=pad: OPSETS[8].max_pool(a, [2, 2], [1, 1], [0, 0], [0, 0], [3, 2], "floor", p),
        f(2, 3, 8, size),
        dynamic=(False,) if pad == "same_lower" else (False, True),
    )
    for exclude in (True, False):
        case(
            f"avg_pool1-{pad}-{size}-{exclude}",
            lambda a, p=pad, e=exclude: OPSETS[1].avg_pool(
                a, [2, 2], [0, 0], [0, 0], [3, 2], e, "floor", p
            ),
            f(2, 3, 8, size),
        )
for exclude in (True, False):
    case(
        f"avg_pool14-torch-{exclude}",
        lambda a, e=exclude: OPSETS[14].avg_pool(
            a, [2, 2], [1, 0], [0, 1], [3, 2], e, "ceil_torch"
        ),
        f(2, 3, 8, 7),
        tolerance=1e-4,
    )
POOLED = ((2, 3, 8), (2, 3, 8, 7), (1, 2, 6, 5, 4))
for shape, dtype in itertools.product(POOLED, (np.float16, np.int8, np.uint8, np.int32, np.int64)):
    window, before, after = ([n] * (len(shape) - 2) for n in (2, 1, 0))
    numbers = ints(1, 99, shape, dtype) * dtype(1 if dtype == np.uint8 else -1)
    tag = f"{len(shape) - 2}d-{name_of(dtype)}"
    case(
        f"max_pool1-{tag}",
        lambda a, k=window, b=before, e=after: OPSETS[1].max_pool(a, k, b, e, k),
        numbers,
    )
    for v in (8, 14):
        case(
            f"max_pool{v}-{tag}",
            lambda a, v=v, k=window, b=before, e=after: OPSETS[v].max_pool(a, k, b, b, e, k),
            numbers,
        )
for v in (8, 14):
    case(
        f"max_pool{v}-values",
        lambda a, v=v: o.negative(
            OPSETS[v].max_pool(a, [2, 1], [2, 1], [1, 0], [0, 1], [3, 2]).output(0)
        ),
        f(2, 3, 9, 7),
    )
case(
    "max_pool1-gaps", lambda a: OPSETS[1].max_pool(a, [3, 2], [0, 0], [0, 0], [2, 1]), f(2, 3, 8, 7)
)
case(
    "max_pool14-torch",
    lambda a: OPSETS[14].max_pool(a, [2, 2], [1, 1], [1, 0], [0, 1], [3, 2], "ceil_torch"),
    f(2, 3, 8, 7),
)


def pooled_with_lower_padding(x):
    """The maxima of 3 x 2 windows in steps of 2, and their places."""
    n, c, height, width = x.shape
    rows, columns = -(-height // 2), -(-width // 2)
    top, left = (rows - 1) * 2 + 3 - height, (columns - 1) * 2 + 2 - width
    top, left = -(-top // 2), -(-left // 2)
    values, places = np.zeros((n, c, rows, columns), x.dtype), np.zeros((n, c, rows, columns), int)
    for at in np.ndindex(values.shape):
        i, j = 2 * at[2] - top, 2 * at[3] - left
        window = {
            (a, b): x[at[0], at[1], a, b]
            for a in range(max(i, 0), min(i + 3, height))
            for b in range(max(j, 0), min(j + 2, width))
        }
        a, b = max(window, key=window.get)
        values[at], places[at] = window[a, b], a * width + b
    return values, places


family("pooling-defined")
for size in (7, 8):
    case(
        f"max_pool8-same_lower-{size}",
        lambda a: OPSETS[8].max_pool(
            a, [2, 2], [1, 1], [0, 0], [0, 0], [3, 2], "floor", "same_lower", "i64", 2
        ),
        f(2, 3, 8, size),
        definition=pooled_with_lower_padding,
    )

# Recurrent cells and sequences.

family("recurrent")
LSTM = f(2, 3), f(2, 4), f(2, 4), f(16, 3), f(16, 4), f(16)
GRU = f(2, 3), f(2, 4), f(12, 3), f(12, 4), f(12)
RNN = f(2, 3), f(2, 4), f(4, 3), f(4, 4), f(4)
case("lstm4", lambda *a: o.lstm_cell(*a, hidden_size=4), *LSTM, constants=(3, 4, 5))
case("lstm4-clip", lambda *a: o.lstm_cell(*a, hidden_size=4, clip=0.4), *LSTM, constants=(3, 4, 5))
case(
    "lstm4-activations",
    lambda *a: o.lstm_cell(*a, hidden_size=4, activations=["sigmoid", "relu", "tanh"]),
    *LSTM,
    constants=(3, 4, 5),
)
case("gru3", lambda *a: o.gru_cell(*a, hidden_size=4), *GRU, constants=(2, 3, 4))
case(
    "gru3-before",
    lambda *a: o.gru_cell(*a, hidden_size=4, linear_before_reset=True),
    *GRU[:4],
    f(16),
    constants=(2, 3, 4),
)
case("rnn1", lambda *a: o.rnn_cell(*a, 4, ["tanh"], [], []), *RNN, constants=(2, 3, 4))
case("rnn1-relu", lambda *a: o.rnn_cell(*a, 4, ["relu"], [], []), *RNN, constants=(2, 3, 4))
case("lstm4-weights-given", lambda *a: o.lstm_cell(*a, hidden_size=4), *LSTM)
case("gru3-weights-given", lambda *a: o.gru_cell(*a, hidden_size=4), *GRU)
case(
    "gru3-clip",
    lambda *a: o.gru_cell(*a, hidden_size=4, activations=["relu", "tanh"], clip=0.3),
    *GRU,
    constants=(2, 3, 4),
)
GATES, STATES = {"lstm": 4, "gru": 3, "rnn": 1}, {"lstm": 2, "gru": 1, "rnn": 1}


def sequence_arrays(kind, lengths, directions, biases=None):
    """An input, states, lengths and weights, for 4 hidden units."""
    rows = 4 * GATES[kind]
    states = [f(2, directions, 4) for _ in range(STATES[kind])]
    weights = f(directions, rows, 3), f(directions, rows, 4), f(directions, biases or rows)
    return f(2, 5, 3), *states, i64(*lengths), *weights


for kind, d in itertools.product(GATES, ("forward", "reverse", "bidirectional")):
    # OpenVINO does not look at lengths where shapes are dynamic.
    for dynamic, lengths in (False, (3, 5)), (True, (5, 5)):
        arrays = sequence_arrays(kind, lengths, 2 if d == "bidirectional" else 1)
        case(
            f"{kind}_sequence-{d}",
            lambda *a, k=kind, d=d: getattr(o, f"{k}_sequence")(*a, 4, d),
            *arrays,
            constants=tuple(range(len(arrays) - 3, len(arrays))),
            dynamic=(dynamic,),
        )


def sequence_case(name, kind, dynamic, lengths=(3, 5), directions=1, biases=None, **options):
    """Of two lengths, of which OpenVINO's plugin takes no notice where shapes are unknown."""
    arrays = sequence_arrays(kind, lengths, directions, biases)
    at = STATES[kind] + 1

    def definition(x, *rest):
        given = {"direction": "forward", **options}
        given["activations"] = given.get("activations", DEFAULTS[kind])[: len(DEFAULTS[kind])]
        states, (lengths, *weights) = list(rest[: at - 1]), rest[at - 1 :]
        return sequence(kind, x, states, lengths, *weights, given)

    attributes = {"direction": "forward", **options}
    function = getattr(o, f"{kind}_sequence")
    case(
        name,
        lambda *a: function(*a, hidden_size=4, **attributes),
        *arrays,
        dynamic=dynamic,
        definition=definition,
    )


family("recurrent-defined")
for kind in GATES:
    for d in ("forward", "reverse", "bidirectional"):
        n = 2 if d == "bidirectional" else 1
        sequence_case(f"{kind}-{d}", kind, (True,), directions=n, direction=d)
    sequence_case(f"{kind}-clip", kind, (False,), clip=0.3)
    names = ["relu", "tanh", "sigmoid"][-len(DEFAULTS[kind]) :]
    sequence_case(f"{kind}-activations", kind, (False,), activations=names)
    # OpenVINO does not read those of the second direction, which ONNX's files have.
    options = {"direction": "bidirectional", "activations": names + ["tanh"] * len(names)}
    sequence_case(f"{kind}-activations2", kind, (False,), directions=2, **options)
sequence_case("gru-before", "gru", (False, True), biases=16, linear_before_reset=True)

family("blocks")
for groups, axis in ((1, 1), (3, 1), (2, -1)):
    shuffle = lambda a, groups=groups, axis=axis: o.shuffle_channels(a, axis, groups)  # noqa: E731
    case(f"shuffle_channels-{groups}-{axis}", shuffle, f(2, 6, 3, 4))
for name, blocks, begin, end in (
    ("4d", [1, 1, 2, 3], [0, 0, 1, 0], [0, 0, 1, 2]),
    ("channels", [1, 2, 1, 2], [0, 0, 0, 0], [0, 0, 0, 0]),
    ("none", [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]),
):
    numbers = [np.int64(part) for part in (blocks, begin, end)]
    case(f"space_to_batch-{name}", o.space_to_batch, f(2, 4, 4, 4), *numbers, constants=(1, 2, 3))
    wide = f(2 * int(np.prod(blocks)), 3, 4, 5)
    case(f"batch_to_space-{name}", o.batch_to_space, wide, *numbers, constants=(1, 2, 3))
    case(f"space_to_batch-{name}-run", o.space_to_batch, f(2, 4, 4, 4), *numbers, constants=(1,))
    case(f"batch_to_space-{name}-run", o.batch_to_space, wide, *numbers, constants=(1,))
case(
    "space_to_batch-3d",
    o.space_to_batch,
    f(2, 4, 3),
    *i64([1, 2, 3], [0, 1, 0], [0, 1, 0]),
    constants=(1, 2, 3),
)
for stride in (1, 2):
    case(f"reorg_yolo-{stride}", lambda a, s=stride: o.reorg_yolo(a, [s]), f(2, 8, 4, 6))
for auto_pad, sizes, strides, rates in (
    ("valid", [2, 3], [1, 2], [1, 1]),
    ("same_upper", [3, 2], [2, 2], [1, 2]),
    ("same_lower", [3, 2], [2, 3], [2, 1]),
    ("valid", [1, 1], [3, 2], [1, 1]),
):
    patches = lambda a, *p: o.extract_image_patches(a, *p)  # noqa: E731
    arguments = (sizes, strides, rates, auto_pad)
    case(
        f"extract_image_patches-{auto_pad}-{sizes}",
        lambda a, arguments=arguments: o.extract_image_patches(a, *arguments),
        f(2, 3, 7, 8),
    )
for name, shape, sides, kernel, options in (
    ("plain", (2, 12, 12), (4, 5), (2, 2), {}),
    ("strides", (2, 12, 4), (4, 5), (2, 2), {"strides": [2, 2]}),
    ("dilated", (3, 12, 6), (4, 5), (2, 3), {"dilations": [2, 1]}),
    ("pads", (1, 12, 35), (4, 5), (2, 2), {"pads_begin": [1, 0], "pads_end": [1, 3]}),
    ("one", (12, 12), (4, 5), (2, 2), {}),
):
    fold = lambda a, b, c, options=options: o.col2im(a, b, c, **options)  # noqa: E731
    sizes = i64(*sides), i64(*kernel)
    case(f"col2im-{name}", fold, f(*shape), *sizes, constants=(1, 2))
    case(f"col2im-{name}-computed", fold, f(*shape), *sizes, fixed=(1, 2))
    case(f"col2im-{name}-int32", fold, ints(-9, 9, shape), *map(np.int32, sizes), constants=(1, 2))
    case(f"col2im-{name}-half", fold, f(*shape, dtype=np.float16), *sizes, constants=(1, 2))

family("frames")
FRAMES = {
    "nv12": [[(2, 48, 64, 1)], [(2, 32, 64, 1), (2, 16, 32, 2)]],
    "i420": [[(2, 48, 64, 1)], [(2, 32, 64, 1), (2, 16, 32, 1), (2, 16, 32, 1)]],
}
for layout, to in itertools.product(FRAMES, ("rgb", "bgr")):
    for shapes, dtype in itertools.product(FRAMES[layout], (np.uint8, np.float32)):
        planes = (ints(0, 256, shape, dtype) for shape in shapes)
        convert = getattr(OPSETS[8], f"{layout}_to_{to}")
        case(f"{layout}-{to}-{len(shapes)}-{name_of(dtype)}", convert, *planes)

family("priors")
PRIOR = {"offset": 0.5, "variance": [0.1, 0.1, 0.2, 0.2]}
for name, attributes in {
    "ssd": {"min_size": [16.0], "max_size": [32.0], "aspect_ratio": [2.0, 3.0], "flip": True},
    "step": {"min_size": [16.0, 20.0], "step": 8.0, "aspect_ratio": [2.0], "clip": True},
    "order": {
        "min_size": [16.0, 24.0],
        "max_size": [32.0, 40.0],
        "aspect_ratio": [2.0, 1.0, 2.0],
        "min_max_aspect_ratios_order": False,
    },
    "parts": {"min_size": [0.2, 0.3], "aspect_ratio": [2.0], "scale_all_sizes": False},
    "parts-step": {"min_size": [0.2], "scale_all_sizes": False, "step": 0.25},
    "fixed": {"fixed_size": [16.0, 20.0], "density": [2.0, 1.0], "aspect_ratio": [2.0]},
    "fixed_ratio": {"fixed_size": [16.0, 9.0], "density": [3.0, 2.0], "fixed_ratio": [2.0]},
    "one_variance": {"min_size": [16.0], "variance": [0.3]},
}.items():
    given = {**PRIOR, **attributes}
    for v in (1, 8) if name in ("ssd", "step") else (8,):
        case(
            f"prior_box{v}-{name}",
            lambda a, b, given=given, v=v: OPSETS[v].prior_box(a, b, given),
            *i64([3, 4], [48, 64]),
            constants=(0, 1) if name == "order" else (),  # OpenVINO's plugin lacks it
        )
for name, attributes in {
    "plain": {},
    "steps": {"step_widths": 8.0, "step_heights": 10.0, "clip": True},
    "step": {"step": 12.0, "variance": [0.3]},
}.items():
    given = {**PRIOR, "width": [10.0, 20.0], "height": [8.0, 30.0], **attributes}
    case(
        f"prior_box_clustered-{name}",
        lambda a, b, given=given: o.prior_box_clustered(a, b, given),
        *i64([3, 4], [48, 64]),
    )

family("regions")
ANCHORS = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
for name, options in {
    "softmax": (4, 5, 3, True, [], 1, 3),
    "softmax-two_axes": (4, 2, 3, True, [], 2, 3),
    "mask": (4, 5, 9, False, [0, 1, 2], 1, 3),
    "mask-one": (4, 1, 6, False, [3], 1, 3),
}.items():
    coordinates, classes, number, is_softmax, mask, first, last = options
    regions = number if is_softmax else len(mask)

    def region_yolo(a, o1=OPSETS[1], options=options):
        coordinates, classes, number, is_softmax, mask, first, last = options
        return o1.region_yolo(
            a, coordinates, classes, number, is_softmax, mask, first, last, ANCHORS
        )

    case(f"region_yolo-{name}", region_yolo, f(2, regions * (coordinates + 1 + classes), 3, 4))

family("detections", most_dynamic=2)


def detection_arrays(batch, count, classes, normalized, share=True, encoded=False, refined=False):
    """Boxes near their priors, of which many overlap."""
    corners = RNG.uniform(0, 0.6, (count, 2))
    priors = np.concatenate([corners, corners + RNG.uniform(0.1, 0.4, (count, 2))], 1)
    if not normalized:
        priors = np.concatenate([np.zeros((count, 1)), priors * [64, 48, 64, 48]], 1)
    rows = [priors.reshape(-1)]
    if not encoded:
        variances = np.zeros(priors.size)
        variances[: 4 * count] = np.tile([0.1, 0.1, 0.2, 0.2], count)
        rows.append(variances)
    locations = 1 if share else classes
    arrays = [
        f(batch, count * locations * 4) * np.float32(0.3),
        RNG.uniform(0, 1, (batch, count * classes)).astype(np.float32),
        np.float32(rows)[np.newaxis],
    ]
    if refined:
        arrays.append(RNG.uniform(0, 1, (batch, count * 2)).astype(np.float32))
        arrays.append(f(batch, count * locations * 4) * np.float32(0.3))
    return arrays


CENTER = "caffe.PriorBoxParameter.CENTER_SIZE"
DETECTION = {"background_label_id": 0, "top_k": 20, "nms_threshold": 0.45, "keep_top_k": [15]}
DETECTION |= {"code_type": CENTER, "normalized": True, "confidence_threshold": 0.3}
for name, options in {
    "ssd": {},
    "corners": {"code_type": "caffe.PriorBoxParameter.CORNER"},
    "pixels": {"normalized": False, "input_width": 64, "input_height": 48},
    "each_class": {"share_location": False},
    "encoded": {"variance_encoded_in_target": True},
    "clipped": {"clip_before_nms": True},
    "clipped_after": {"clip_after_nms": True},
    "all": {"top_k": -1, "keep_top_k": [-1]},
    "few": {"top_k": 3, "keep_top_k": [4]},
    "none": {"confidence_threshold": 1.5},
    "lower_labels": {"decrease_label_id": True},
    "refined": {"objectness_score": 0.4},
}.items():
    given = {**DETECTION, **options}
    arrays = detection_arrays(
        2,
        30,
        3,
        given["normalized"],
        given.get("share_location", True),
        given.get("variance_encoded_in_target", False),
        name == "refined",
    )
    for v in (1, 8):
        attributes = {**given, "num_classes": 3} if v == 1 else given

        def detection_output(a, b, c, *rest, v=v, attributes=attributes):
            return OPSETS[v].detection_output(a, b, c, attributes, *rest)

        case(f"detection_output{v}-{name}", detection_output, *arrays)

family("rois", most_dynamic=2)
ROIS = np.float32(
    [
        [0, 1.2, 0.5, 6.3, 7.1],
        [1, 0, 0, 20, 12],
        [1, 3, 3, 3.2, 3.1],
        [0, -3, -4, 5, 5.5],
        [1, 8, 8, 30, 40],
        [0, 30, 2, 50, 4],
        [0, 5, 6, 2, 3],
    ]
)
PARTS = np.float32(
    [
        [0, 0.1, 0.2, 0.7, 0.9],
        [1, 0, 0, 0.95, 0.8],
        [1, 0.5, 0.5, 0.5, 0.5],
        [0, -0.2, 0.3, 0.6, 1.3],
        [1, 0.8, 0.9, 0.2, 0.1],
    ]
)


def ended(rois):
    """Regions of which all after the second one do not count."""
    return np.insert(rois, 2, -1, axis=0)


for kind, rois in {"max": ROIS, "bilinear": PARTS}.items():
    for size in ([2, 3], [1, 1], [4, 1]):
        for dtype in (np.float32, np.float16) if size == [2, 3] else (np.float32,):
            case(
                f"roi_pooling-{kind}-{size}-{name_of(dtype)}",
                lambda a, b, size=size, kind=kind: o.roi_pooling(a, b, size, 0.7, kind),
                f(2, 3, 8, 10, dtype=dtype),
                rois.astype(dtype),
                kept=((1, 1),),
            )
    pooling = lambda a, b, kind=kind: o.roi_pooling(a, b, [3, 2], 1.0, kind)  # noqa: E731
    case(f"roi_pooling-{kind}-end", pooling, f(2, 4, 8, 10), ended(rois), kept=((1, 1),))
    case(f"roi_pooling-{kind}-none", pooling, f(2, 4, 8, 10), ended(rois)[2:], kept=((1, 1),))
case(
    "roi_pooling-edge",
    lambda a, b: o.roi_pooling(a, b, [3, 7], 1.0, "bilinear"),
    f(1, 2, 9, 13),
    np.float32([[0, 0, 0, 1, 1], [0, 0.1, 0.3, 1, 1]]),
    kept=((1, 1),),
)


def psroi_pooling(depth, size, scale, mode, bins=(1, 1)):
    return lambda a, b: o.psroi_pooling(a, b, depth, size, scale, *bins, mode)


def pooled_by_groups(depth, size, scale, mode, bins=(1, 1)):
    """The definition of PSROIPooling."""

    def average(x, roi, c, h, w):
        _, left, top, right, bottom = roi
        channel = x[int(roi[0]), (c * size + h) * size + w]
        window = []
        for low, high, i, n in zip((top, left), (bottom, right), (h, w), channel.shape):
            low, high = np.floor(low + 0.5) * scale, np.floor(high + 1.5) * scale
            side = max(high - low, 0.1) / size
            ends = np.floor(i * side + low), np.ceil((i + 1) * side + low)
            window.append(slice(*(int(np.clip(end, 0, n)) for end in ends)))
        found = channel[tuple(window)]
        return found.mean() if found.size else 0.0

    def bilinear(x, roi, c, h, w):
        _, left, top, right, bottom = roi * scale
        total = 0.0
        for j, i in np.ndindex(bins[1], bins[0]):
            channel = x[int(roi[0]), (j * bins[0] + i) * depth + c]
            at = []
            for low, high, k, n, own, length in (
                (top, bottom, j, bins[1], h, channel.shape[0]),
                (left, right, i, bins[0], w, channel.shape[1]),
            ):
                start, side = low + k * (high - low) / n, (high - low) / n
                part = own / (size - 1) if size > 1 else 0.5
                at.append((start + part * side) * (length - 1))
            if all(0 <= a <= n - 1 for a, n in zip(at, channel.shape)):
                (y, x0), (dy, dx) = np.floor(at).astype(int), np.mod(at, 1)
                padded = np.pad(channel, [(0, 1), (0, 1)])
                rows = padded[y : y + 2, x0 : x0 + 2] @ [1 - dx, dx]
                total += rows @ [1 - dy, dy]
        return total / (bins[0] * bins[1])

    def pooled(x, rois):
        sample = bilinear if mode == "bilinear" else average
        result = np.zeros((len(rois), depth, size, size))
        for r, roi in enumerate(rois.astype(np.float64)):
            if roi[0] == -1:
                break
            for at in np.ndindex(depth, size, size):
                result[(r, *at)] = sample(x.astype(np.float64), roi, *at)
        return result.astype(x.dtype)

    return pooled


PSROIS = {
    "average-3": ((2, 3, 0.6, "average"), (2, 18, 8, 10), ROIS),
    "average-1": ((3, 1, 1.0, "average"), (2, 3, 8, 10), ROIS),
    "average-4": ((2, 4, 0.5, "average"), (2, 32, 8, 10), ROIS),
    "average-end": ((1, 2, 0.5, "average"), (2, 4, 8, 10), ended(ROIS)),
    "bilinear-3": ((2, 3, 1.0, "bilinear", (2, 3)), (2, 12, 8, 10), PARTS),
    "bilinear-1": ((3, 1, 0.8, "bilinear", (3, 1)), (2, 9, 8, 10), PARTS),
    "bilinear-end": ((2, 2, 1.0, "bilinear"), (2, 2, 8, 10), ended(PARTS)),
}
for name, (options, shape, rois) in PSROIS.items():
    case(f"psroi_pooling-{name}", psroi_pooling(*options), f(*shape), rois, dynamic=(False,))
case(
    "psroi_pooling-float16",
    psroi_pooling(2, 3, 0.6, "average"),
    f(2, 18, 8, 10, dtype=np.float16),
    ROIS.astype(np.float16),
    dynamic=(False,),
)

family("rois-defined")  # OpenVINO's plugin refuses PSROIPooling of unknown shapes
for name, (options, shape, rois) in PSROIS.items():
    if name != "average-3":  # where rounding decides which pixels belong to a bin
        definition = pooled_by_groups(*options)
        function = psroi_pooling(*options)
        case(f"psroi_pooling-{name}", function, f(*shape), rois, definition=definition)
case(
    "psroi_pooling-no_rois",
    psroi_pooling(2, 3, 0.6, "average"),
    f(2, 18, 8, 10),
    np.zeros((0, 5), np.float32),
    definition=lambda *_: np.zeros((0, 2, 3, 3), np.float32),
)
case(
    "roi_pooling-no_rois",
    lambda a, b: o.roi_pooling(a, b, [2, 3], 1.0, "max"),
    f(2, 3, 8, 10),
    np.zeros((0, 5), np.float32),
    definition=lambda *_: np.zeros((0, 3, 2, 3), np.float32),
)

family("proposals", most_dynamic=2)
PROPOSAL = {"base_size": 16, "pre_nms_topn": 50, "post_nms_topn": 12, "nms_thresh": 0.7}
PROPOSAL |= {"feat_stride": 16, "min_size": 4, "ratio": [0.5, 1.0, 2.0], "scale": [1.0, 2.0]}
# No two scores are equal, not in halves either: OpenVINO's order of these may be any.
PROPOSED = (
    (np.random.default_rng(5).permutation(480).reshape(2, 12, 4, 5) / 512).astype(np.float32),
    f(2, 24, 4, 5) * np.float32(0.2),
)
SIZE = np.float32([60, 75, 1])
for name, options, size in (
    ("plain", {}, SIZE),
    # Of fewer than 8 boxes OpenVINO's plugin crashes.
    ("few", {"pre_nms_topn": 16, "nms_thresh": 0.2}, SIZE),
    ("more_than_all", {"pre_nms_topn": 999, "post_nms_topn": 150, "min_size": 1}, SIZE),
    ("scales", {"min_size": 15}, np.float32([60, 75, 1, 2])),
    ("not_clipped", {"clip_before_nms": False}, SIZE),
    ("clipped_after", {"clip_before_nms": False, "clip_after_nms": True}, SIZE),
    ("normalized", {"normalize": True}, SIZE),
    ("coder", {"box_size_scale": 5.0, "box_coordinate_scale": 10.0}, SIZE),
    ("tensorflow", {"framework": "tensorflow"}, SIZE),
    ("tensorflow-scales", {"framework": "tensorflow", "min_size": 9, "normalize": True},
     np.float32([60, 75, 1, 2])),
):  # fmt: skip
    given = {**PROPOSAL, **options}
    case(f"proposal1-{name}", create("Proposal", 1, given), *PROPOSED, size)
    # OpenVINO leaves what follows the scores undefined, so here is none.
    full = {**given, "post_nms_topn": 4, "nms_thresh": 0.9}
    case(f"proposal4-{name}", create("Proposal", 4, full), *PROPOSED, size)
halves = (*(array.astype(np.float16) for array in PROPOSED), np.float16(SIZE))
case("proposal1-float16", create("Proposal", 1, {**PROPOSAL, "pre_nms_topn": 16}), *halves)


def proposed_boxes(*_):
    """One box in a corner and a far smaller score's, which it overlaps."""
    return np.float32([[0, 0, 0, 16, 16], [-1, 0, 0, 0, 0], [0] * 5]), np.float32([0.9, 0, 0])


family("proposals-defined")  # OpenVINO leaves what follows the scores undefined
case(
    "proposal4-end",
    create("Proposal", 4, {**PROPOSAL, "ratio": [1.0], "scale": [1.0], "post_nms_topn": 3}),
    np.float32([[0.1, 0.2], [0.9, 0.3]]).reshape(1, 2, 1, 2)[..., :1],
    np.zeros((1, 4, 1, 1), np.float32),
    SIZE,
    definition=proposed_boxes,
)

family("suppression", most_dynamic=2)
TURNED = np.concatenate(
    [RNG.uniform(0, 6, (2, 12, 2)), RNG.uniform(1, 5, (2, 12, 2)), RNG.uniform(-4, 4, (2, 12, 1))],
    2,
).astype(np.float32)
FOUND = RNG.uniform(0, 1, (2, 3, 12)).astype(np.float32)
# The same box twice, one along and across, one without a size, and boxes with common sides.
SPECIAL = np.float32([[2, 2, 4, 2, 0], [2, 2, 4, 2, 0], [2, 2, 2, 4, np.pi / 2], [1, 1, 0, 2, 0.3],
                      [3, 2, 2, 2, 0], [2, 3, 4, 2, 0], [2, 2, 8, 8, 0.5]])[np.newaxis]  # fmt: skip


def limits(most, overlap, score):
    return np.int64(most), np.float32(overlap), np.float32(score)


for clockwise, descending, kind in itertools.product((True, False), (True, False), ("i32", "i64")):
    case(
        f"nms_rotated-{clockwise}-{descending}-{kind}",
        lambda *a, c=clockwise, d=descending, k=kind: OPSETS[13].nms_rotated(*a, d, k, c),
        TURNED,
        FOUND,
        *limits(5, 0.2, 0.1),
        kept=((0, 2),),
    )
for name, boxes, scores, numbers in (
    ("few", TURNED, FOUND, limits(1, 0.2, 0.1)),
    ("all", TURNED, FOUND, limits(99, 1.0, -1)),
    ("none", TURNED, FOUND, limits(5, 0.2, 2)),
    ("no_rows", TURNED, FOUND, limits(0, 0.2, 0.1)),
    ("special", SPECIAL, np.float32([[[0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]]]), limits(9, 0.45, 0)),
    ("equal", TURNED, np.full_like(FOUND, 0.5), limits(4, 0.3, 0.1)),
    ("negative", TURNED, FOUND - np.float32(0.5), limits(9, 0.1, -0.3)),
    ("float16", TURNED.astype(np.float16), FOUND.astype(np.float16), limits(4, 0.3, 0.1)),
):
    case(f"nms_rotated-{name}", OPSETS[13].nms_rotated, boxes, scores, *numbers,
         kept=((0, 2),), constants=(2, 3, 4))  # fmt: skip


def boxes_of(*shape, size=5.0):
    corners = RNG.uniform(0, size, (*shape, 2))
    sides = RNG.uniform(size / 10, size / 2, (*shape, 2))
    return np.concatenate([corners, corners + sides], -1).astype(np.float32)


CORNERS = boxes_of(2, 12)
SORTED = [(kind, across) for kind in ("none", "classid", "score") for across in (False, True)]
COMMON = {
    **{f"{kind}-{across}": {"sort_result_type": kind, "sort_result_across_batch": across}
       for kind, across in SORTED},
    "i32": {"output_type": "i32"},
    "few_of_each": {"nms_top_k": 3},
    "few_of_all": {"keep_top_k": 4, "sort_result_type": "classid"},
    "few": {"nms_top_k": 2, "keep_top_k": 3, "sort_result_across_batch": True,
            "sort_result_type": "score"},
    "background": {"background_class": 1},
    "pixels": {"normalized": False},
    "threshold": {"score_threshold": 0.6},
}  # fmt: skip
MATRIX = {
    **COMMON,
    "gaussian": {"decay_function": "gaussian", "gaussian_sigma": 0.7},
    "gaussian-pixels": {"decay_function": "gaussian", "normalized": False},
    "post": {"post_threshold": 0.5},
}
MULTICLASS = {
    **{name: {"iou_threshold": 0.3, **given} for name, given in COMMON.items()},
    "none_kept": {"keep_top_k": 0},
    "none_above": {"score_threshold": 1.5},
    "any_overlap": {"iou_threshold": 0.0},
    "eta": {"iou_threshold": 0.9, "nms_eta": 0.6},
    "eta-0": {"iou_threshold": 0.6, "nms_eta": 0.0},
    "eta-half": {"iou_threshold": 0.5, "nms_eta": 0.5},
}
for name, given in MATRIX.items():
    case(
        f"matrix_nms-{name}",
        create("MatrixNms", 8, {"score_threshold": 0.1, **given}),
        CORNERS,
        FOUND,
        kept=((0, 2),),
    )
case(
    "matrix_nms-float16",
    create("MatrixNms", 8, {}),
    CORNERS.astype(np.float16),
    FOUND.astype(np.float16),
    kept=((0, 2),),
)
for (name, given), v in itertools.product(MULTICLASS.items(), (8, 9)):
    attributes = {"score_threshold": 0.1, **given}
    multiclass = create("MulticlassNms", v, attributes)
    case(f"multiclass_nms{v}-{name}", multiclass, CORNERS, FOUND, kept=((0, 2),))
    if v == 9 and name not in ("none_kept", "none_above"):
        case(
            f"multiclass_nms9-rois-{name}",
            multiclass,
            boxes_of(3, 20),
            RNG.uniform(0, 1, (3, 20)).astype(np.float32),
            i64(9, 0, 11),
            kept=((0, 2),),
        )
for v in (8, 9):
    case(
        f"multiclass_nms{v}-equal",
        create("MulticlassNms", v, {"iou_threshold": 0.4, "keep_top_k": 7}),
        CORNERS,
        np.full_like(FOUND, 0.5),
        kept=((0, 2),),
    )
    case(
        f"multiclass_nms{v}-float16",
        create("MulticlassNms", v, {"iou_threshold": 0.4}),
        CORNERS.astype(np.float16),
        FOUND.astype(np.float16),
        kept=((0, 2),),
    )
family("suppression-defined")  # OpenVINO's plugin fails where MatrixNms keeps none
for name, given in {
    "none_kept": {"keep_top_k": 0},
    "no_candidate": {"nms_top_k": 0},
    "none_above": {"score_threshold": 1.5},
    "none_after": {"post_threshold": 1.5, "output_type": "i32"},
}.items():
    kind = np.dtype({"i32": "int32"}.get(given.get("output_type"), "int64"))
    case(
        f"matrix_nms-{name}",
        create("MatrixNms", 8, given),
        CORNERS,
        FOUND,
        definition=lambda *_, kind=kind: (
            np.zeros((0, 6), np.float32),
            np.zeros((0, 1), kind),
            np.zeros(2, kind),
        ),
    )
for name, create_it in {
    "matrix_nms": ("MatrixNms", 8),
    "multiclass_nms": ("MulticlassNms", 9),
}.items():
    case(
        f"{name}-no_boxes",
        create(*create_it),
        CORNERS[:, :0],
        FOUND[:, :, :0],
        definition=lambda *_: (
            np.zeros((0, 6), np.float32),
            np.zeros((0, 1), np.int64),
            np.zeros(2, np.int64),
        ),
    )

family("moves")
for shift, axes in (([1], [0]), ([-2, 5], [1, 2]), ([3, 4], [1, 1]), ([7], [-1])):
    numbers = (np.int64(shift), np.int64(axes))
    case(f"roll-{shift}-{axes}", o.roll, f(3, 4, 5), *numbers)
    case(
        f"roll-{shift}-{axes}-constant", o.roll, ints(-9, 9, (3, 4, 5)), *numbers, constants=(1, 2)
    )
case(
    "slice_scatter",
    o.slice_scatter,
    f(4, 5),
    f(2, 5),
    *i64([1], [3], [1], [0]),
    constants=(2, 3, 4, 5),
)
case(
    "slice_scatter-steps",
    o.slice_scatter,
    f(4, 6),
    f(2, 3),
    *i64([3, 5], [-5, -7], [-2, -2], [0, 1]),
    constants=(2, 3, 4, 5),
)
case(
    "slice_scatter-no_axes",
    o.slice_scatter,
    ints(0, 9, (4, 5)),
    ints(0, 9, (1, 2)),
    *i64([2, 1], [3, 3], [1, 1]),
    constants=(2, 3, 4),
)

family("search")
for right in (True, False):
    for kind in ("i32", "i64"):
        bucketize = lambda a, b, k=kind, r=right: o.bucketize(a, b, k, r)  # noqa: E731
        case(
            f"bucketize-{kind}-{right}",
            bucketize,
            np.float32([[3, 1, 2.5], [9, -1, 4]]),
            np.float32([1, 2.5, 4, 9]),
        )
    case(
        f"bucketize-mixed-{right}",
        lambda a, b, r=right: o.bucketize(a, b, "i32", r),
        ints(-3, 9, (4, 5)),
        np.float32([0, 2, 2.5]),
    )
for right in (True, False):
    search = lambda a, b, r=right: o.search_sorted(a, b, r)  # noqa: E731
    rows = np.sort(f(2, 6), axis=1)
    case(f"search_sorted-rows-{right}", search, rows, f(2, 3))
    case(f"search_sorted-one-{right}", search, rows[0], f(2, 3))
    case(f"search_sorted-ints-{right}", search, np.sort(ints(0, 5, (6,))), ints(0, 5, (2, 3)))

family("fourier")
for axes, sizes in (([0], None), ([1, 2], None), ([-1, 0], [4, 3])):
    numbers = [np.int64(axes)] + ([] if sizes is None else [np.int64(sizes)])
    at = tuple(range(1, 1 + len(numbers)))
    case(f"rdft-{axes}-{sizes}", o.rdft, f(4, 5, 6), *numbers, constants=at, tolerance=1e-4)
    case(f"irdft-{axes}-{sizes}", o.irdft, f(4, 5, 6, 2), *numbers, constants=at, tolerance=1e-4)
for transposed in (True, False):
    for shape in ((20,), (2, 20)):
        for window in (8, 5):
            case(
                f"stft-{transposed}-{shape}-{window}",
                lambda a, b, c, d, t=transposed: o.stft(a, b, c, d, t),
                f(*shape),
                f(window),
                np.int64(8),
                np.int64(3),
                constants=(2, 3),
                tolerance=1e-4,
            )

family("fourier-defined")  # OpenVINO refuses sizes that are larger, and fails for -1
for axes, sizes in (([2], [9]), ([1, 2], [-1, 3]), ([0, 1], [6, -1])):

    def lengths(shape, axes=axes, sizes=sizes):
        return [shape[axis] if size == -1 else size for axis, size in zip(axes, sizes)]

    def rdft(x, *_, axes=axes, lengths=lengths):
        z = np.fft.rfftn(x, lengths(x.shape), axes)
        return np.stack([z.real, z.imag], -1).astype(np.float32)

    def irdft(x, *_, axes=axes, sizes=sizes):
        # Of the last axis the size counts the real numbers.
        full = [*x.shape[: axes[-1]], 2 * (x.shape[axes[-1]] - 1)]
        given = [
            (full[-1] if axis == axes[-1] else x.shape[axis]) if size == -1 else size
            for axis, size in zip(axes, sizes)
        ]
        return np.fft.irfftn(x[..., 0] + 1j * x[..., 1], given, axes).astype(np.float32)

    numbers, options = (np.int64(axes), np.int64(sizes)), {"constants": (1, 2), "tolerance": 1e-4}
    case(f"rdft-{axes}-{sizes}", o.rdft, f(4, 5, 6), *numbers, definition=rdft, **options)
    case(f"irdft-{axes}-{sizes}", o.irdft, f(4, 5, 6, 2), *numbers, definition=irdft, **options)

family("moves-defined")  # OpenVINO's plugin refuses one shift for several axes
case(
    "roll-one_shift",
    o.roll,
    f(3, 4, 5),
    np.int64(2),
    np.int64([0, 2]),
    definition=lambda x, *_: np.roll(x, (2, 2), (0, 2)),
)

family("decoding", most_dynamic=2)
SCORES = f(3, 7, 4)
MASK = np.float32([[1] * 3, [1] * 3, [1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0]])
for merge in (True, False):
    case(
        f"ctc_greedy-{merge}",
        lambda a, b, m=merge: o.ctc_greedy_decoder(a, b, m),
        SCORES.transpose(1, 0, 2).copy(),
        MASK,
    )
    for blank in (None, 0, 2):
        extra = [] if blank is None else [np.int32([blank])]
        for kinds in (("i32", "i32"), ("i64", "i64")):
            case(
                f"ctc_greedy_len-{merge}-{blank}-{kinds[0]}",
                lambda *a, m=merge, k=kinds: o.ctc_greedy_decoder_seq_len(
                    a[0], a[1], *(a[2:] or [None]), m, *k
                ),
                SCORES,
                np.int32([7, 4, 1]),
                *extra,
                constants=(2,) if extra else (),
            )
case(
    "gather_tree",
    o.gather_tree,
    np.float32(RNG.integers(0, 9, (5, 2, 3))),
    np.float32(RNG.integers(0, 3, (5, 2, 3))),
    np.float32([5, 3]),
    np.float32(4),
)
case(
    "gather_tree-ints",
    o.gather_tree,
    ints(0, 9, (4, 3, 2), np.int32),
    ints(0, 2, (4, 3, 2), np.int32),
    np.int32([1, 9, 2]),
    np.int32(3),
)

# Axes that are not known before the graph runs.

family("axes")
for name, keep in itertools.product(REDUCTIONS, (False, True)):
    reduce = lambda a, b, n=name, k=keep: getattr(o, n)(a, b, k)  # noqa: E731
    case(f"{name}-{keep}-scalar", reduce, f(3, 4), np.int32(-2))
    case(f"{name}-{keep}-4d", reduce, f(2, 3, 4, 5), ints(1, 4, (1,)), fixed=(1,), tolerance=1e-4)
    case(f"{name}-{keep}-float16", reduce, x.astype(np.float16), i64(1), fixed=(1,))
    if name != "reduce_l2":
        case(f"{name}-{keep}-int32", reduce, ints(-9, 9, (3, 4)), i64(1), fixed=(1,))
for name in REDUCTIONS:  # how many axes is not known either
    reduce = lambda a, b, n=name: getattr(o, n)(a, b, True)  # noqa: E731
    case(f"{name}-two", reduce, x, i64(2, -2), fixed=(1,))
    case(f"{name}-any", reduce, x, i64(-1, 0))
for n, m in itertools.product((True, False), ("inside_sqrt", "outside_sqrt")):
    mvn = lambda a, b, n=n, m=m: o.mvn(a, b, n, 1e-3, m)  # noqa: E731
    case(f"mvn6-{n}-{m}", mvn, f(2, 3, 4, 5), i64(2, -1), fixed=(1,), tolerance=1e-4)
for m, axes in itertools.product(("add", "max"), ((1,), (1, 2, 3), (-1,))):
    normalize = lambda a, b, m=m: o.normalize_l2(a, b, 1e-3, m)  # noqa: E731
    case(f"normalize_l2-{m}-{axes}", normalize, image, i64(*axes), fixed=(1,), tolerance=1e-4)
for v, (shape, axis) in itertools.product((1, 15), (((1, 3, 1), -1), ((2, 1), 1), ((1,), 0))):
    case(f"squeeze{v}-{shape}", OPSETS[v].squeeze, f(*shape), i64(axis), fixed=(1,))
for axis in (-1, 0, 1):
    case(f"split-{axis}", lambda a, b: o.split(a, b, 2), f(2, 4, 6), np.int64(axis))
    parts = i64(1, -1)
    case(f"variadic_split-{axis}", o.variadic_split, x, np.int32(axis), parts, constants=(2,))
    case(f"cum_sum-{axis}", lambda a, b: o.cum_sum(a, b, True, True), x, np.int64(axis))
    case(f"cum_sum-int32-{axis}", lambda a, b: o.cum_sum(a, b), ints(-9, 9, (3, 4)), np.int32(axis))
    for dtype in (np.float32, np.int64):
        name = f"{axis}-{name_of(dtype)}"
        data, updates = ints(-5, 5, (2, 3, 4), dtype), ints(-5, 5, (2, 3, 4), dtype)
        updates = np.delete(updates, 0, axis)
        places = i64(1, 0, 2)[: updates.shape[axis]]
        case(f"scatter_update-{name}", o.scatter_update, data, places, updates, np.int64(axis))
    case(
        f"scatter_elements3-{axis}",
        OPSETS[3].scatter_elements_update,
        x,
        ints(0, 1, (2, 1, 2), np.int64),
        f(2, 1, 2),
        np.int64(axis),
    )
    case(
        f"scatter_elements12-{axis}",
        lambda a, b, c, d: o.scatter_elements_update(a, b, c, d, "sum", False),
        ints(-9, 9, (2, 3, 4)),
        ints(-2, 2, (2, 2, 3), np.int64),
        ints(-9, 9, (2, 2, 3)),
        np.int64(axis),
    )
# OpenVINO does not gather along such axes of known extents.
for v, axis in itertools.product((1, 7, 8), (-1, 0, 1)):
    for name, places in ("vector", i64(1, 0)), ("matrix", ints(0, 2, (2, 2))), ("one", np.int32(1)):
        axis = np.int64(axis)
        case(f"gather{v}-{name}-{axis}", OPSETS[v].gather, x, places, axis, dynamic=(True,))
for axis, batch_dims in (1, 1), (2, 1), (-1, 2), (2, 0):
    case(
        f"gather8-batches-{axis}-{batch_dims}",
        lambda a, b, c, n=batch_dims: o.gather(a, b, c, n),
        f(2, 3, 4, 5),
        ints(-3, 3, (2, 3, 2)),
        np.int64(axis),
        dynamic=(True,),
    )
SLICES = (
    ("two", (3, 0), (-100, 2), (-2, 1), (-1, 1)), ("one", (1,), (3,), (1,), (-2,)),
    ("beyond", (-100,), (100,), (2,), (2,)), ("all", (1, 0, 1), (2, 3, 9), (1, 2, 1), (0, -1, 1)),
)  # fmt: skip
for name, *ends in SLICES:
    inputs = [i64(*values) for values in ends]
    case(f"slice-{name}", o.slice, x, *inputs, fixed=(1, 2, 3, 4))
    case(f"slice-4d-{name}", o.slice, f(3, 4, 5, 2), *inputs, fixed=(1, 2, 3, 4))
    case(f"slice-int64-{name}", o.slice, x.astype(np.int64), *inputs, fixed=(1, 2, 3, 4))
for name, shape, axes in ("first", (2, 3), (0,)), ("two", (2, 3, 4), (0, -1)):
    case(f"reverse-{name}", reverse, f(*shape), i64(*axes), fixed=(1,))


def with_slice(x, updates, start, stop, step, axes):
    inside = [slice(None)] * x.ndim
    for axis, *ends in zip(axes, start, stop, step):
        inside[axis] = slice(*ends)
    x = x.copy()
    x[tuple(inside)] = updates
    return x


family("axes-of-transforms")
for name, sizes in itertools.product(("dft", "idft"), ((), (i64(5, -1),))):
    transform, tag = getattr(OPSETS[7], name), f"{name}-{len(sizes)}"
    case(tag, transform, f(2, 3, 4, 2), i64(2, 0), *sizes, fixed=(1, 2))
for version in (1, 3):
    case(
        f"broadcast{version}",
        lambda a, b, c, v=version: OPSETS[v].broadcast(a, b, c, "explicit"),
        f(3, 1),
        i64(2, 3, 4),
        i64(1, 2),
        fixed=(1, 2),
    )

family("axes-defined")  # OpenVINO refuses, or crashes
for name, *ends in SLICES:
    inputs = [i64(*values) for values in ends]
    updates = f(*o.slice(x, *inputs).output(0).shape)
    options = {"fixed": (2, 3, 4, 5), "definition": with_slice}
    case(f"slice_scatter-{name}", o.slice_scatter, x, updates, *inputs, **options)
for name, keep in itertools.product(("reduce_logical_and", "reduce_logical_or"), (False, True)):
    case(
        f"{name}-{keep}",
        lambda a, b, n=name, k=keep: getattr(o, n)(a, b, k),
        x > 0,
        i64(1, -1),
        fixed=(1,),
        definition=lambda a, b, n=name, k=keep: (np.all if "and" in n else np.any)(
            a, tuple(b), keepdims=k
        ),
    )
for sizes in ((), (i64(5, -1),)):
    lengths = [*sizes[0].tolist(), 4][::2] if sizes else None
    case(
        f"rdft-{len(sizes)}",
        OPSETS[9].rdft,
        f(2, 3, 4),
        i64(0, -1),
        *sizes,
        fixed=(1, 2),
        definition=lambda a, *_, s=lengths: np.stack(
            [getattr(np.fft.rfftn(a, s, (0, 2)), part) for part in ("real", "imag")], -1
        ).astype(a.dtype),
    )
    lengths = [*sizes[0].tolist(), 6][::2] if sizes else None
    case(
        f"irdft-{len(sizes)}",
        OPSETS[9].irdft,
        f(2, 3, 4, 2),
        i64(0, -1),
        *sizes,
        fixed=(1, 2),
        definition=lambda a, *_, s=lengths: np.fft.irfftn(
            a[..., 0] + 1j * a[..., 1], s, (0, 2)
        ).astype(a.dtype),
    )
case("reduce_sum-two", o.reduce_sum, x, i64(-1, 0), definition=lambda a, _: a.sum((-1, 0)))
case("reduce_max-none", o.reduce_max, x, i64(), definition=lambda a, _: a)
case("squeeze-two", o.squeeze, f(2, 1, 3, 1), i64(1, -1), definition=lambda a, _: a[:, 0, :, 0])
case(
    "squeeze-skip",
    lambda a, b: o.squeeze(a, b, True),
    f(1, 3, 1),
    i64(0, 1),
    definition=lambda a, _: a[0],
)
case("reverse-none", reverse, f(3), i64(), definition=lambda a, _: a)
case(
    "reverse-mask",
    create("Reverse", 1, {"mode": "mask"}),
    ints(0, 9, (2, 3, 4)),
    np.array([True, False, True]),
    definition=lambda a, _: np.flip(a, (0, 2)),
)

# Operations of later opsets, and of detectors.

family("adaptive", most_dynamic=2)
for shape, sizes in (((2, 3, 7), (3,)), ((2, 3, 4, 6), (3, 5)), ((1, 2, 5, 4, 6), (3, 2, 8))):
    for dtype, constants in itertools.product((np.float32, np.float16, np.int32), ((), (1,))):
        numbers, tag = (f(*shape) * 9).astype(dtype), f"{len(sizes)}d-{name_of(dtype)}-{constants}"
        options = {"constants": constants, "fixed": (1,)}
        case(f"avg-{tag}", OPSETS[8].adaptive_avg_pool, numbers, i64(*sizes), **options)
        case(
            f"max-{tag}",
            lambda a, b: OPSETS[8].adaptive_max_pool(a, b, "i32"),
            numbers,
            i64(*sizes),
            **options,
        )
case(
    "max-ties",
    lambda a, b: OPSETS[8].adaptive_max_pool(a, b, "i32"),
    np.ones((1, 2, 4, 4)),
    i64(3, 2),
    fixed=(1,),
)


def adaptive_maxima(x, sizes):
    out = np.zeros(x.shape[:2] + tuple(sizes), x.dtype), np.zeros(x.shape[:2] + tuple(sizes), int)
    for at in np.ndindex(out[0].shape):
        starts = [i * n // k for i, n, k in zip(at[2:], x.shape[2:], sizes)]
        ends = [-(-(i + 1) * n // k) for i, n, k in zip(at[2:], x.shape[2:], sizes)]
        window = x[at[:2]][tuple(map(slice, starts, ends))]
        best = np.unravel_index(window.argmax(), window.shape)
        place = np.ravel_multi_index(np.add(best, starts), x.shape[2:])
        out[0][at], out[1][at] = window.max(), place
    return out


family("adaptive-defined")  # OpenVINO's CPU plugin refuses places in int64
for shape, sizes in (((2, 3, 7), (3,)), ((2, 3, 4, 6), (3, 5))):
    case(
        f"max-int64-{len(sizes)}d",
        OPSETS[8].adaptive_max_pool,
        f(*shape),
        i64(*sizes),
        fixed=(1,),
        definition=adaptive_maxima,
    )

family("algebra")
for dtype in FLOATS:
    tag, matrices = name_of(dtype), (f(2, 3, 3) + 3 * np.eye(3)).astype(dtype)
    case(f"grn-{tag}", lambda a: OPSETS[1].grn(a, 0.5), f(2, 3, 4, 5, dtype=dtype))
    for adjoint in (False, True):
        case(
            f"inverse-{adjoint}-{tag}",
            lambda a, adjoint=adjoint: OPSETS[14].inverse(a, adjoint),
            matrices,
            tolerance=5e-3 if dtype == np.float16 else 1e-4,
        )
    inside = np.array([0, 0.5, -0.9, 0.1, 2] + [1, -1] * (dtype != np.float64), dtype)
    case(f"erfinv-{tag}", OPSETS[17].erfinv, inside)
case("grn-2d", lambda a: OPSETS[1].grn(a, 1e-3), f(3, 4))

family("segments")
for fill, dtype in itertools.product(
    ("ZERO", "LOWEST"), (np.float32, np.float16, np.int32, np.uint8)
):
    numbers = (f(4, 3) * 9).astype(dtype) if dtype != np.uint8 else ints(0, 99, (4, 3), dtype)
    segments = np.array([0, 0, 2, 4], np.int32)
    tag = f"{fill}-{name_of(dtype)}"
    if fill == "ZERO" or dtype != np.float16:  # OpenVINO gives the lowest float32
        case(
            f"max-{tag}",
            lambda a, b, k=fill: OPSETS[16].segment_max(a, b, fill_mode=k),
            numbers,
            segments,
        )
    for count in (2, 7) if fill == "ZERO" or dtype != np.float16 else ():
        case(
            f"max-{tag}-{count}",
            lambda a, b, c, k=fill: OPSETS[16].segment_max(a, b, c, k),
            numbers,
            segments,
            np.int64(count),
        )
for dtype in (np.float32, np.int64):
    rows = i64(0, 1, 2, 3, 0, 0).reshape(3, 2)
    sparse = np.array([5, 6, 7], dtype), i64(5, 4), rows, dtype(-1)
    case(f"sparse_fill-{name_of(dtype)}", OPSETS[16].sparse_fill_empty_rows, *sparse)
case(
    "sparse_fill-none",
    OPSETS[16].sparse_fill_empty_rows,
    f(0),
    np.array([3, 4], np.int32),
    np.zeros((0, 2), np.int32),
    np.float32(2),
    dynamic=(False,),
)

family("types")
PROMOTED = (
    (np.int8, np.uint8), (np.int32, np.float16), (np.uint64, np.int8), (np.float16, np.float32),
    (np.int32, np.int64), (np.bool_, np.int8), (np.uint32, np.int8), (np.uint8, np.int64),
)  # fmt: skip
for first, second in PROMOTED:
    for torch in (False, True):
        case(
            f"promote-{name_of(first)}-{name_of(second)}-{torch}",
            lambda a, b, t=torch: OPSETS[14].convert_promote_types(a, b, True, t),
            ints(0, 2, (3,)).astype(first),
            np.array(1, second),
            fixed=(1,),
        )
for first, second in ((np.int16, np.uint8), (np.float32, np.int16), (np.float16, np.float64)):
    case(
        f"promote-safely-{name_of(first)}-{name_of(second)}",
        OPSETS[14].convert_promote_types,
        ints(0, 9, (3,)).astype(first),
        ints(0, 9, (2, 1)).astype(second),
    )
EIGHT_BITS = np.array([0, 1, -1.1, 447, 470, 1e4, -1e6, 0.002, 0.001, 0.0146, 6e4, 3e-5, np.inf])
for kind, dtype in itertools.product(("f8e4m3", "f8e5m2"), (np.float32, np.float16)):
    fake = lambda *a, k=kind: OPSETS[13].fake_convert(*a, destination_type=k)  # noqa: E731
    numbers = np.clip(EIGHT_BITS, -6e4, 6e4).astype(dtype)
    case(f"fake_convert-{kind}-{name_of(dtype)}", fake, numbers, dtype(1))
    case(
        f"fake_convert-channels-{kind}-{name_of(dtype)}",
        fake,
        f(2, 3, dtype=dtype),
        np.array([[2], [3]], dtype),
        np.array([[0.5], [1]], dtype),
    )

family("istft", most_dynamic=2)
window = (np.hanning(8) + 0.1).astype(np.float32)
for center, normalized in itertools.product((False, True), repeat=2):
    istft = lambda a, b, *c, d=center, n=normalized: OPSETS[16].istft(a, b, *c[:2], d, n, *c[2:])  # noqa: E731
    for dtype in (np.float32, np.float16):
        case(
            f"istft-{center}-{normalized}-{name_of(dtype)}",
            istft,
            f(2, 5, 3, 2, dtype=dtype),
            window.astype(dtype),
            np.int64(8),
            np.int64(3),
            constants=(2, 3),
            tolerance=1e-2 if dtype == np.float16 else 1e-4,
        )
    for length in (5, 20):
        case(
            f"istft-{center}-{normalized}-{length}",
            istft,
            f(5, 4, 2),
            window[:5],
            np.int64(8),
            np.int64(3),
            np.int64(length),
            constants=(2, 3),
            tolerance=1e-4,
        )
case(
    "istft-odd",
    lambda a, b, c, d: OPSETS[16].istft(a, b, c, d, True, False),
    f(5, 5, 2),
    np.ones(9, np.float32),
    np.int64(9),
    np.int64(4),
    constants=(2, 3),
    tolerance=1e-4,
)

family("ctc_loss", most_dynamic=2)
logits, labels = f(3, 6, 4), ints(0, 3, (3, 6))
labels[0, :3] = 1, 1, 0
lengths = np.array([6, 5, 4], np.int32), np.array([4, 2, 1], np.int32)
for collapse, merge, unique in itertools.product((False, True), repeat=3):
    case(
        f"loss-{collapse}-{merge}-{unique}",
        lambda *a, c=collapse, m=merge, u=unique: OPSETS[4].ctc_loss(
            *a, preprocess_collapse_repeated=c, ctc_merge_repeated=m, unique=u
        ),
        logits,
        lengths[0],
        labels,
        lengths[1],
        tolerance=1e-4,
    )
    case(
        f"loss-blank-{collapse}-{merge}-{unique}",
        lambda *a, c=collapse, m=merge, u=unique: OPSETS[4].ctc_loss(
            *a, preprocess_collapse_repeated=c, ctc_merge_repeated=m, unique=u
        ),
        logits,
        lengths[0].astype(np.int64),
        labels.astype(np.int64) + 1,
        lengths[1].astype(np.int64),
        np.int64(0),
        tolerance=1e-4,
    )
case("loss-half", OPSETS[4].ctc_loss, logits.astype(np.float16), lengths[0], labels, lengths[1])
case(
    "loss-impossible",
    OPSETS[4].ctc_loss,
    f(1, 4, 4),
    np.array([3], np.int32),
    np.zeros((1, 4), np.int32),
    np.array([3], np.int32),
)


def loss_of_blanks(logits, *lengths):
    shares = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    return -np.log(shares[:, :, -1]).sum(1)


family("ctc_loss-defined")  # OpenVINO crashes
case(
    "loss-no-labels",
    OPSETS[4].ctc_loss,
    f(2, 4, 3),
    np.array([4, 4], np.int32),
    np.zeros((2, 4), np.int32),
    np.array([0, 0], np.int32),
    definition=loss_of_blanks,
)

family("deformable", most_dynamic=2)
for version, constants in itertools.product((1, 8), ((), (2,))):
    case(
        f"conv{version}-{constants}",
        lambda a, b, c, v=version: OPSETS[v].deformable_convolution(
            a, b, c, [2, 1], [1, 0], [0, 1], [1, 2], group=2, deformable_group=2
        ),
        f(2, 4, 6, 7),
        f(2, 24, 3, 6),
        f(6, 2, 3, 2),
        constants=constants,
        fixed=(2,),
        tolerance=1e-4,
    )
for auto in ("same_upper", "same_lower", "valid"):
    case(
        f"conv1-{auto}",
        lambda a, b, c, p=auto: OPSETS[1].deformable_convolution(
            a, b, c, [2, 2], [0, 0], [0, 0], [1, 1], p
        ),
        f(2, 3, 6, 7),
        f(2, 12, 3 if auto != "valid" else 2, 4 if auto != "valid" else 3),
        f(4, 3, 3, 2),
        fixed=(0, 2),
        tolerance=1e-4,
    )
turned = np.array([[4, 4, 6, 5, 0.3], [9, 2, 4, 8, -1.2], [0, 0, 3, 3, 2]], np.float32)
for dtype in (np.float32, np.float16):
    options = {"tolerance": 3e-2 if dtype == np.float16 else 1e-4}
    for clockwise, ratio in itertools.product((False, True), (0, 2)):
        case(
            f"rotated-{clockwise}-{ratio}-{name_of(dtype)}",
            lambda a, b, c, k=clockwise, r=ratio: o.roi_align_rotated(a, b, c, 2, 3, r, 0.5, k),
            f(2, 3, 6, 7, dtype=dtype),
            turned.astype(dtype),
            i64(0, 1, 1),
            **options,
        )

# In one model, OpenVINO takes two that differ in this alone for one.
for pad in (False, True):
    family(f"deformable-{pad}")
    for dtype in (np.float32, np.float16):
        case(
            f"conv8-{name_of(dtype)}",
            lambda a, b, c, d, p=pad: OPSETS[8].deformable_convolution(
                a, b, c, [2, 1], [1, 0], [0, 1], [1, 2], d, "explicit", 1, 4, p
            ),
            f(2, 4, 6, 7, dtype=dtype),
            f(2, 48, 3, 6, dtype=dtype),
            f(6, 4, 3, 2, dtype=dtype),
            f(2, 24, 3, 6, dtype=dtype),
            fixed=(2,),
            tolerance=3e-2 if dtype == np.float16 else 1e-4,
        )


def deformable_psroi(x, rois, offsets, classes, size, scale, bins, shift):
    """A definition, point by point."""
    (height, width), found = x.shape[2:], np.zeros((len(rois), classes, size, size), np.float32)
    for at in np.ndindex(found.shape):
        roi, c, i, j = at
        image, *sides = rois[roi]
        if -1 in rois[: roi + 1, 0]:  # which ends the list
            continue
        left, top = (np.trunc(n + 0.5) * scale - 0.5 for n in sides[:2])
        right, bottom = ((np.trunc(n + 0.5) + 1) * scale - 0.5 for n in sides[2:])
        across, down = max(right - left, 0.1), max(bottom - top, 0.1)
        column, row = left + j * across / size, top + i * down / size
        if offsets is not None:
            group = c // (classes // (offsets.shape[1] // 2))
            part = i * offsets.shape[2] // size, j * offsets.shape[3] // size
            column += offsets[roi, 2 * group][part] * shift * across
            row += offsets[roi, 2 * group + 1][part] * shift * down
        points = []
        for k, m in np.ndindex(*bins):
            y, x_ = row + k * down / size / bins[0], column + m * across / size / bins[1]
            if -0.5 <= y <= height - 0.5 and -0.5 <= x_ <= width - 0.5:
                y, x_ = np.clip(y, 0, height - 1), np.clip(x_, 0, width - 1)
                low, start = int(y), int(x_)
                high, end = min(low + 1, height - 1), min(start + 1, width - 1)
                plane = x[int(image), (c * size + i) * size + j]
                upper, lower = (
                    plane[r, start] * (1 - x_ + start) + plane[r, end] * (x_ - start)
                    for r in (low, high)
                )
                points.append(upper * (1 - y + low) + lower * (y - low))
        found[at] = np.mean(points) if points else 0
    return found


rois = np.array(
    [[0, 1, 2.5, 9, 8], [1, 0, 0, 5, 5], [1, 4, 3, 30, 9], [-1, 0, 0, 5, 5], [0, 1, 1, 5, 5]],
    np.float32,
)
PSROI = (
    ("one", f(2, 8, 6, 7), (), 2, 2, (1, 1), 1.0),
    ("offsets", f(2, 36, 6, 7), (f(5, 4, 4, 4),), 4, 3, (3, 2), 0.3),
)
for dynamic in (False, True):
    # OpenVINO's CPU plugin refuses unknown extents.
    family("psroi-defined" if dynamic else "psroi")
    for name, x, offsets, classes, size, bins, shift in PSROI:
        for dtype in (np.float32,) if dynamic else (np.float32, np.float16):
            case(
                f"{name}-{name_of(dtype)}",
                lambda a, b, *c, k=classes, n=size, p=bins, s=shift: OPSETS[
                    1
                ].deformable_psroi_pooling(
                    a, b, k, 0.5, n, "bilinear_deformable", *p[::-1], s, 4, *c
                ),
                x.astype(dtype),
                rois.astype(dtype),
                *(array.astype(dtype) for array in offsets),
                dynamic=(dynamic,),
                fixed=(2,),
                tolerance=3e-2 if dtype == np.float16 else 1e-4,
                definition=None
                if not dynamic
                else lambda a, b, c=None, k=classes, n=size, p=bins, s=shift: deformable_psroi(
                    a, b, c, k, n, 0.5, p, s
                ),
            )


def binary_filters(bits):
    """A constant whose bytes have their lowest bits first, as the CPU plugin takes them."""
    turned = np.unpackbits(np.packbits(bits, bitorder="little"))
    return ov.op.Constant(ov.Type.u1, ov.Shape(bits.shape), turned.tolist())


def binary_convolved(x, bits, pad_value):
    """In strides of 2 and 1, with a row of padding above and a column to the right."""
    signs = np.pad(2 * x - 1, [(0, 0), (0, 0), (1, 0), (0, 1)], constant_values=2 * pad_value - 1)
    windows = np.lib.stride_tricks.sliding_window_view(signs, bits.shape[2:], (2, 3))[:, :, ::2]
    return np.einsum("nchwij,ocij->nohw", windows, 2.0 * bits - 1).astype(x.dtype)


BITS = ints(0, 2, (3, 8, 3, 2), np.uint8)
for known, pad_value, dtype in itertools.product(
    (True, False), (0.0, 1.0), (np.float32, np.float16)
):
    # OpenVINO's CPU plugin pads by ones alone, and refuses unknown extents.
    is_theirs = known and pad_value == 1
    family("binary_convolution" if is_theirs else "binary_convolution-defined")
    case(
        f"{pad_value}-{name_of(dtype)}",
        lambda a, v=pad_value: OPSETS[1].binary_convolution(
            a, binary_filters(BITS), [2, 1], [1, 0], [0, 1], [1, 1], "xnor-popcount", v
        ),
        ints(0, 2, (2, 8, 6, 5), dtype),
        dynamic=(not known,),
        definition=None if is_theirs else lambda a, v=pad_value: binary_convolved(a, BITS, v),
    )

family("generated")
corners = RNG.uniform(0, 20, (3, 4, 2, 2))
anchors = np.concatenate([corners, corners + RNG.uniform(1, 20, corners.shape)], -1).astype(
    np.float32
)
for normalized, sizes in itertools.product((False, True), (3, 4)):
    case(
        f"proposals-{normalized}-{sizes}",
        lambda *a, n=normalized: OPSETS[9].generate_proposals(*a, 2.5, 0.4, 20, 6, n, 1.0, "i32"),
        np.array([[20, 30, 1, 2], [25, 25, 2, 1]], np.float32)[:, :sizes],
        anchors,
        f(2, 8, 3, 4) * np.float32(0.3),
        f(2, 2, 3, 4),
    )
case(
    "proposals-half",
    lambda *a: OPSETS[9].generate_proposals(*a, 2.5, 0.4, 20, 6),
    np.array([[20, 30, 1]], np.float16),
    anchors.astype(np.float16),
    f(1, 8, 3, 4, dtype=np.float16),
    f(1, 2, 3, 4, dtype=np.float16),
    tolerance=2e-2,
)
case(
    "proposals-few",
    lambda *a: OPSETS[9].generate_proposals(*a, 1.0, 0.9, 1000, 1000),
    np.array([[20, 30, 1]], np.float32),
    anchors,
    f(1, 8, 3, 4) * np.float32(0.3),
    f(1, 2, 3, 4),
)

family("grouped_matmul-defined")  # of which OpenVINO knows the shape alone
for dtype in (np.float32, np.float16):
    case(
        f"rows-{name_of(dtype)}",
        OPSETS[17].grouped_matmul,
        f(6, 3, dtype=dtype),
        f(4, 5, 3, dtype=dtype),
        np.array([2, 2, 5, 6], np.int32),
        fixed=(1, 2),
        definition=lambda a, b, ends: np.concatenate(
            [a[i:j] @ m.T for i, j, m in zip([0, *ends], ends, b)]
        ),
    )
    case(
        f"batch-{name_of(dtype)}",
        OPSETS[17].grouped_matmul,
        f(2, 6, 3, dtype=dtype),
        f(2, 5, 3, dtype=dtype),
        definition=lambda a, b: a @ b.swapaxes(1, 2),
    )

family("random", most_dynamic=2)
for dtype, top in ((np.float32, 3), (np.float16, 3), (np.float64, 3), (np.int32, 9), (np.int64, 9)):
    kind = o.constant(np.zeros(1, dtype)).get_element_type().get_type_name()
    for constants in ((), (0, 1, 2)):
        case(
            f"uniform-{name_of(dtype)}-{constants}",
            lambda a, b, c, k=kind: OPSETS[8].random_uniform(a, b, c, k, 7, 11),
            i64(3, 5),
            dtype(-1),
            dtype(top),
            constants=constants,
            fixed=(0,),
        )
for seeds in ((7, 0), (0, 7), (2**40, 2**50)):
    case(
        f"uniform-{seeds}",
        lambda a, b, c, s=seeds: OPSETS[8].random_uniform(a, b, c, "f32", *s),
        np.array([2, 3, 4], np.int32),
        np.float32(0),
        np.float32(1),
        fixed=(0,),
    )
case(
    "uniform-beyond-int32",
    lambda a, b, c: OPSETS[8].random_uniform(a, b, c, "i64", 1, 2),
    i64(40),
    np.int64(-1),
    np.int64(2**40),
    constants=(1, 2),  # others wrap around there
    fixed=(0,),
)
case(
    "uniform-wide",
    lambda a, b, c: OPSETS[8].random_uniform(a, b, c, "i32", 1, 2),
    i64(40),
    np.int32(-5),
    np.int32(2**31 - 6),
    fixed=(0,),
)

# Versions that OpenVINO reads, but does not write.

family("older")
WRITTEN = {("LogicalXor", "opset2"): "opset1", ("RNNCell", "opset1"): "opset3"}
case("logical_xor1", o.logical_xor, f(2, 3) > 0, f(3) > 0)
case("logical_xor1-none", lambda a, b: o.logical_xor(a, b, "none"), f(3) > 0, f(3) > 0)
case("rnn3", lambda *a: o.rnn_cell(*a, 4, ["tanh"], [], []), *RNN, constants=(2, 3, 4))
case("rnn3-relu", lambda *a: o.rnn_cell(*a, 4, ["relu"], [], [], 0.5), *RNN, constants=(2, 3, 4))


class Answers:
    """The results of both sides for a family's cases, computed once; one by one if that fails."""

    def __init__(self, folder):
        self.folder = folder
        self.known = {}

    def of(self, name, dynamic):
        key = name, dynamic
        if key not in self.known:
            cases = list(CASES[key].values())
            try:
                self.known[key] = self.compute(name, cases, dynamic)
            except Exception:  # the fault of one, which its own test shows
                self.known[key] = {}
        return self.known[key]

    def case(self, name, case, dynamic):
        answers = self.of(name, dynamic)
        if case.name not in answers:
            answers.update(self.compute(name, [case], dynamic))
        return answers[case.name]

    def compute(self, name, cases, dynamic):
        path, outputs_of_cases = self.write(name, cases, dynamic)
        inputs = [array for case in cases for array in case.inputs()]
        wanted = [case.definition and _tuple(case.definition(*case.arrays)) for case in cases]
        if not all(wanted):
            theirs = iter(run(path, inputs))
            wanted = [[next(theirs) for _ in outputs] for outputs in outputs_of_cases]
        module = tf_ti.openvino.load(path)
        # Known shapes are traced in test_modes.py too, so here operation by operation.
        tf.config.run_functions_eagerly(not dynamic)
        try:
            ours = iter(module(*inputs))
        finally:
            tf.config.run_functions_eagerly(False)
        answers = {
            case.name: ([next(ours).numpy() for _ in want], want)
            for case, want in zip(cases, wanted)
        }
        return answers

    def write(self, name, cases, dynamic):
        """The file of a model of some cases, and the outputs of each."""
        nodes = [_outputs(case, dynamic) for case in cases]
        parameters = [p for _, own in nodes for p in own]
        results = [o.result(output) for outputs, _ in nodes for output in outputs]
        path = save(ov.Model(results, parameters, "model"), self.folder / "model.xml")
        if name == "older":
            _write_versions(path)
        return path, [outputs for outputs, _ in nodes]


def _tuple(values):
    return tuple(values) if isinstance(values, tuple | list) else (values,)


def _outputs(case, dynamic):
    nodes, parameters = [], []
    for i, array in enumerate(case.arrays):
        if i in case.constants:
            nodes.append(o.constant(array))
            continue
        shape = [
            -1 if dynamic and i not in case.fixed and (i, axis) not in case.kept else extent
            for axis, extent in enumerate(array.shape)
        ]
        parameters.append(o.parameter(shape, array.dtype.type))
        nodes.append(parameters[-1])
    return case.function(*nodes).outputs(), parameters


def _write_versions(path):
    text = path.read_text()
    for (type, written), version in WRITTEN.items():
        text = re.sub(
            f'type="{type}" version="{written}"', f'type="{type}" version="{version}"', text
        )
    path.write_text(text)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return Answers(tmp_path_factory.mktemp("operations"))


def assert_same(actual, expected, tolerance):
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        assert a.dtype == e.dtype
        assert a.shape == e.shape
        if a.dtype.kind == "f":
            a, e = a.astype(np.float64), e.astype(np.float64)
            np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(a, e)


ALL = [
    pytest.param(name, case, dynamic, id=f"{name}-{case.name}-{'dynamic' if dynamic else 'static'}")
    for (name, dynamic), cases in CASES.items()
    for case in cases.values()
]


@pytest.mark.parametrize(("name", "case", "dynamic"), ALL)
def test_answers_as_openvino_does(answers, name, case, dynamic):
    actual, expected = answers.case(name, case, dynamic)
    assert_same(actual, expected, case.tolerance)


# Draws whose numbers are not OpenVINO's.


@pytest.mark.parametrize("log_probs", [False, True])
@pytest.mark.parametrize("replaces", [False, True])
def test_draws_are_distributed_as_their_weights(tmp_path, replaces, log_probs):
    weights = np.tile(np.float32([1, 0, 3, 4]), (4000, 1))
    x, count = o.parameter([-1, 4], np.float32), o.parameter([1], np.int64)
    draws = OPSETS[13].multinomial(x, count, "i32", replaces, log_probs, 5, 6)
    path = save(ov.Model([o.result(draws)], [x, count], "model"), tmp_path / "model.xml")
    with np.errstate(divide="ignore"):
        given = np.log(weights) if log_probs else weights
    found = tf_ti.openvino.load(path)(given, i64(2))[0].numpy()
    assert found.shape == (4000, 2) and found.dtype == np.int32
    np.testing.assert_array_equal(tf_ti.openvino.load(path)(given, i64(2))[0], found)
    theirs = run(path, [given, i64(2)])[0]
    for drawn in found, theirs:
        pairs = np.bincount(drawn[:, 0] * 4 + drawn[:, 1], minlength=16).reshape(4, 4) / 4000
        first = np.array([1, 0, 3, 4]) / 8
        second = np.tile(first, (4, 1)) if replaces else first * (1 - np.eye(4))
        second = second / second.sum(1, keepdims=True)
        np.testing.assert_allclose(pairs, first[:, None] * second, atol=0.03)


def test_numbers_without_seeds_are_others_in_each_call(tmp_path):
    shape = o.parameter([1], np.int64)
    draws = OPSETS[8].random_uniform(shape, np.float32(2), np.float32(3), "f32", 0, 0, "pytorch")
    path = save(ov.Model([o.result(draws)], [shape], "model"), tmp_path / "model.xml")
    module = tf_ti.openvino.load(path)
    first, second = (module(i64(1000))[0].numpy() for _ in range(2))
    assert np.mean(first == second) < 0.01
    assert first.min() >= 2 and first.max() < 3 and abs(first.mean() - 2.5) < 0.05


# Layers that OpenVINO no longer reads, written by hand.


def load_layer(folder, type, version, data, inputs, outputs):
    """A model of one layer, whose inputs are Parameters: f32, i64 or boolean."""

    kinds = {"f": ("FP32", "f32"), "i": ("I64", "i64"), "b": ("BOOL", "boolean")}

    def port(i, array, precision=None):
        dims = "".join(f"<dim>{n}</dim>" for n in array.shape)
        kind = precision or kinds[array.dtype.kind][0]
        return f'<port id="{i}" precision="{kind}">{dims}</port>'

    layers, edges = [], []
    number = len(inputs)
    for i, array in enumerate(inputs):
        kind = kinds[array.dtype.kind][1]
        shape = ",".join(map(str, array.shape))
        layers.append(
            f'<layer id="{i}" name="input_{i}" type="Parameter" version="opset1">'
            f'<data shape="{shape}" element_type="{kind}"/>'
            f"<output>{port(0, array)}</output></layer>"
        )
        edges.append((i, 0, number, i))
    ports = "".join(port(i, array) for i, array in enumerate(inputs))
    out = "".join(port(number + i, array, "FP32") for i, array in enumerate(outputs))
    attributes = " ".join(f'{name}="{value}"' for name, value in data.items())
    layers.append(
        f'<layer id="{number}" name="it" type="{type}" version="{version}"><data {attributes}/>'
        f"<input>{ports}</input><output>{out}</output></layer>"
    )
    for i, array in enumerate(outputs):
        layers.append(
            f'<layer id="{number + 1 + i}" name="result_{i}" type="Result" version="opset1">'
            f"<input>{port(0, array, 'FP32')}</input></layer>"
        )
        edges.append((number, number + i, number + 1 + i, 0))
    lines = "".join(
        f'<edge from-layer="{a}" from-port="{b}" to-layer="{c}" to-port="{d}"/>'
        for a, b, c, d in edges
    )
    text = (
        '<net name="one" version="10"><layers>'
        + "".join(layers)
        + f"</layers><edges>{lines}</edges>"
    )
    path = folder / "hand.xml"
    path.write_text(text + "</net>")
    return tf_ti.openvino.load(path)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstm_sequence_of_opset1_answers_as_defined(tmp_path, direction):
    n = 2 if direction == "bidirectional" else 1
    x, h, c = f(2, 5, 3), f(2, n, 4), f(2, n, 4)
    weights = f(n, 16, 3), f(n, 16, 4), f(n, 16)
    lengths = i64(3, 5)
    expected = sequence("lstm", x, [h, c], lengths, *weights, {"direction": direction})
    data = {"hidden_size": 4, "direction": direction}
    inputs = x, h, c, lengths, *weights
    module = load_layer(tmp_path, "LSTMSequence", "opset1", data, inputs, expected)
    assert_same([y.numpy() for y in module(*inputs)], expected, 1e-5)


@pytest.mark.parametrize("order", ["fico", "icof", "ifco", "ifoc", "iofc"])
def test_weights_format_orders_the_gates_of_a_cell(tmp_path, order):
    x, h, c = LSTM[:3]
    w, r, b = (np.split(value, 4) for value in LSTM[3:])
    expected = cell_step("lstm", x, [h, c], *(np.concatenate(v) for v in (w, r, b)), {})
    given = [np.concatenate([v["fico".index(gate)] for gate in order]) for v in (w, r, b)]
    data = {"hidden_size": 4, "weights_format": order}
    inputs = x, h, c, *given
    module = load_layer(tmp_path, "LSTMCell", "opset1", data, inputs, expected)
    assert_same([y.numpy() for y in module(*inputs)], expected, 1e-5)


def lstm_step(x, h, c, w, r, b, p, input_forget):
    """One step with peepholes, of the gates f, i and o."""

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    forget, update, candidate, output = np.split(x @ w.T + h @ r.T + b, 4, -1)
    to_forget, to_update, to_output = np.split(p, 3)
    forget = sigmoid(forget + to_forget * c)
    update = 1 - forget if input_forget else sigmoid(update + to_update * c)
    c = forget * c + update * np.tanh(candidate)
    return [sigmoid(output + to_output * c) * np.tanh(c), c]


@pytest.mark.parametrize("input_forget", [False, True])
@pytest.mark.parametrize("peepholes", [False, True])
def test_peepholes_and_input_forget_of_a_cell(tmp_path, peepholes, input_forget):
    p = f(12) if peepholes else np.zeros(12, np.float32)
    expected = lstm_step(*LSTM, p, input_forget)
    data = {"hidden_size": 4, "weights_format": "fico", "input_forget": str(input_forget).lower()}
    inputs = (*LSTM, p) if peepholes else LSTM
    module = load_layer(tmp_path, "LSTMCell", "opset1", data, inputs, expected)
    assert_same([y.numpy() for y in module(*inputs)], expected, 1e-5)


@pytest.mark.parametrize("order", ["fico", "ifco"])
def test_weights_format_orders_the_gates_of_a_sequence(tmp_path, order):
    x, state, lengths = f(2, 5, 3), f(2, 1, 4), i64(3, 5)
    weights = f(1, 16, 3), f(1, 16, 4), f(1, 16)
    expected = sequence("lstm", x, [state, state], lengths, *weights, {})
    parts = [dict(zip("fico", np.split(value, 4, 1))) for value in weights]
    given = [np.concatenate([part[gate] for gate in order], 1) for part in parts]
    data = {"hidden_size": 4, "direction": "forward", "weights_format": order}
    inputs = x, state, state, lengths, *given
    module = load_layer(tmp_path, "LSTMSequence", "opset1", data, inputs, expected)
    assert_same([y.numpy() for y in module(*inputs)], expected, 1e-5)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_alpha_and_beta_of_activations(tmp_path, kind):
    names = ["hard_sigmoid", "leaky_relu", "scaled_tanh"][: len(DEFAULTS[kind])]
    alpha, beta = [0.3, 0.1, 1.2][: len(names)], [0.4, 0.0, 0.7][: len(names)]
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[kind]
    states = [f(2, 1, 4) for _ in range(2 if kind == "lstm" else 1)]
    x, lengths, weights = f(2, 5, 3), i64(3, 5), (f(1, 4 * gates, 3), f(1, 4 * gates, 4))
    weights = *weights, f(1, 4 * gates)
    options = {"activations": names, "activations_alpha": alpha, "activations_beta": beta}
    expected = sequence(kind, x, states, lengths, *weights, options)
    data = {name: ",".join(map(str, values)) for name, values in options.items()}
    data |= {"hidden_size": 4, "direction": "forward"}
    inputs = x, *states, lengths, *weights
    module = load_layer(tmp_path, f"{kind.upper()}Sequence", "opset5", data, inputs, expected)
    assert_same([y.numpy() for y in module(*inputs)], expected, 1e-5)


@pytest.mark.parametrize(
    ("axis", "shape", "aligned"),
    [(1, (3,), (3, 1)), (-1, (3, 4), (3, 4)), (0, (2, 3), (2, 3, 1)), (2, (4,), (4,))],
)
@pytest.mark.parametrize("type", ["Add", "Select"])
def test_an_axis_aligns_the_second_operand(tmp_path, type, axis, shape, aligned):
    x, y, condition = f(2, 3, 4), f(*shape), f(2, 3, 4) > 0
    data = {"auto_broadcast": "pdpd", "axis": axis}
    if type == "Add":
        inputs, expected = (x, y), x + y.reshape(aligned)
    else:
        inputs, expected = (condition, x, y), np.where(condition, x, y.reshape(aligned))
    module = load_layer(tmp_path, type, "opset1", data, inputs, [expected])
    assert_same([z.numpy() for z in module(*inputs)], [expected], 1e-6)


def operations_of(model, path):
    """The types of the operations that a model is loaded as."""
    module = tf_ti.openvino.load(save(model, path))
    graph = tf.function(module).get_concrete_function(tf.TensorSpec(module.inputs[0].shape)).graph
    return [operation.type for operation in graph.get_operations()]


@pytest.mark.parametrize("strides", [[2], [2, 1]], ids=["one axis", "unequal strides"])
def test_a_depthwise_convolution_is_one_operation(tmp_path, strides):
    axes = len(strides)
    filters, zeros = f(6, 1, 1, *[3] * axes), [0] * axes
    model = make(
        lambda a, b: o.group_convolution(a, b, strides, zeros, zeros, [1] * axes),
        f(2, 6, *[8] * axes),
        filters,
        constants=(1,),
    )
    types = operations_of(model, tmp_path / "model.xml")
    assert types.count("DepthwiseConv2dNative") == 1 and "Conv2D" not in types


def test_indices_of_maxima_that_nothing_reads_are_not_computed(tmp_path):
    pool = lambda a: o.max_pool(a, [2, 2], [1, 1], [0, 0], [0, 0], [2, 2]).output(0)  # noqa: E731
    types = operations_of(make(lambda a: [pool(a)], f(1, 2, 6, 6)), tmp_path / "model.xml")
    assert "MaxPool" in types and not {"ArgMax", "GatherV2"} & set(types)


@pytest.mark.parametrize("kind", ["bf16", "f8e4m3", "f8e5m2"])
def test_narrow_floats_are_constants_and_converted(tmp_path, kind):
    narrow = np.dtype(ELEMENT_TYPES[kind].dtype)
    values = np.array([0.5, -1.75, 3.1, 1e-3], np.float32)
    constant = ov.op.Constant(getattr(ov.Type, kind), ov.Shape([4]), values.tolist())
    parameter = o.parameter([-1], np.float32)
    there = o.convert(o.convert(parameter, kind), "f32")
    model = ov.Model([o.result(o.convert(constant, "f32")), o.result(there)], [parameter])
    module = tf_ti.openvino.load(save(model, tmp_path / "model.xml"))
    rounded = values.astype(narrow).astype(np.float32)
    np.testing.assert_array_equal(module(values)[0], rounded)
    np.testing.assert_array_equal(module(values)[1], rounded)


@pytest.mark.parametrize("count", [1, 7, 200])
@pytest.mark.parametrize("kind", ["nf4", "i4", "u1", "u2", "u3", "u4", "u6"])
def test_packed_constants_are_read_as_openvino_does(tmp_path, kind, count):
    rng = np.random.default_rng(15)
    low, high = (-8, 8) if kind == "i4" else (0, 1 << ELEMENT_TYPES[kind].bits)
    values = rng.uniform(-1, 1, count) if kind == "nf4" else rng.integers(low, high, count)
    constant = ov.op.Constant(getattr(ov.Type, kind), ov.Shape([count]), values.tolist())
    results = [o.result(o.convert(constant, wider)) for wider in ("f32", "f16")]
    path = save(ov.Model(results, []), tmp_path / "model.xml")
    for trainable in (False, True):
        ours = tf_ti.openvino.load(path, trainable=trainable)()
        assert_same([y.numpy() for y in ours], run(path, []), 0)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_a_cell_with_one_weight_matrix_answers_as_defined(tmp_path, kind):
    x, *states = {"lstm": LSTM[:3], "gru": GRU[:2], "rnn": RNN[:2]}[kind]
    w, r, b = {"lstm": LSTM, "gru": GRU, "rnn": RNN}[kind][-3:]
    expected = cell_step(kind, x, states, w, r, b, {})
    inputs = x, *states, np.concatenate([w, r], 1), b
    module = load_layer(
        tmp_path, f"{kind.upper()}Cell", "opset1", {"hidden_size": 4}, inputs, expected
    )
    assert_same([y.numpy() for y in module(*inputs)], expected, 1e-5)


ALONG = {
    "CumSum": lambda x, axis: o.cum_sum(x, axis),
    "Gather": lambda x, axis: o.gather(x, i64(0), axis),
    "MVN": lambda x, axis: o.mvn(x, axis, True, 1e-3, "inside_sqrt"),
    "NormalizeL2": lambda x, axis: o.normalize_l2(x, axis, 1e-3, "add"),
    "ReduceSum": lambda x, axis: o.reduce_sum(x, axis, True),
    "Reverse": reverse,
    "ScatterElementsUpdate": lambda x, axis: o.scatter_elements_update(
        x, i64(0).reshape(1, 1), np.ones((1, 1), np.float32), axis
    ),
    "ScatterUpdate": lambda x, axis: o.scatter_update(x, np.int64(0), f(2), axis),
    "Slice": lambda x, axis: o.slice(x, i64(0), i64(1), i64(1), axis),
    "Split": lambda x, axis: o.split(x, axis, 2),
    "Squeeze": lambda x, axis: o.squeeze(x, axis),
    "VariadicSplit": lambda x, axis: o.variadic_split(x, axis, i64(1, -1)),
}


@pytest.mark.parametrize("axis", [2, -3])
@pytest.mark.parametrize("type", ALONG)
def test_an_axis_out_of_range_is_an_error_when_it_becomes_known(tmp_path, type, axis):
    x, axes = o.parameter([-1, -1], np.float32), o.parameter([1], np.int64)
    scalar = type in ("CumSum", "Split", "VariadicSplit")
    node = ALONG[type](x, o.squeeze(axes, i64(0)) if scalar else axes)
    model = ov.Model([o.result(output) for output in node.outputs()], [x, axes])
    module = tf_ti.openvino.load(save(model, tmp_path / "model.xml"))
    with pytest.raises(tf.errors.InvalidArgumentError):
        module(f(2, 2), i64(axis))


UNFIT = {
    "dft": (OPSETS[7].dft, f(2, 3, 2), i64(1, 1)),
    "broadcast": (
        lambda a, b, c: o.broadcast(a, b, c, "explicit"),
        f(3, 3),
        i64(2, 3, 3),
        i64(2, 1),
    ),
    "ctc_loss": (
        OPSETS[4].ctc_loss,
        f(1, 4, 3),
        np.array([3], np.int32),
        np.zeros((1, 4), np.int32),
        np.array([4], np.int32),
    ),
    "deformable_convolution": (
        lambda *a: OPSETS[1].deformable_convolution(*a, [1, 1], [0, 0], [0, 0], [1, 1]),
        f(1, 2, 5, 5),
        f(1, 18, 2, 3),
        f(2, 2, 3, 3),
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_inputs_that_do_not_fit_are_an_error_when_they_become_known(tmp_path, name):
    function, *arrays = UNFIT[name]
    parameters = [
        o.parameter(a.shape if a.ndim == 1 or i == 2 else [-1] * a.ndim, a.dtype.type)
        for i, a in enumerate(arrays)
    ]
    model = ov.Model([o.result(function(*parameters))], parameters, "model")
    module = tf_ti.openvino.load(save(model, tmp_path / "model.xml"))
    with pytest.raises(tf.errors.InvalidArgumentError):
        module(*arrays)


ELSEWHERE = {  # tests of their own
    "Assign", "GridSample", "If", "Interpolate", "Loop", "Multinomial", "NonMaxSuppression",
    "ROIAlign", "ReadValue", "TensorIterator",
}  # fmt: skip
BY_HAND = {("LSTMSequence", "opset1"), ("LSTMCell", "opset1"), ("GRUCell", "opset1")}


@pytest.mark.slow
def test_every_registered_version_is_exercised(answers):
    exercised = Counter()
    for name, dynamic in CASES:
        path, _ = answers.write(name, list(CASES[name, dynamic].values()), dynamic)
        exercised.update((layer.type, layer.version) for layer in read(path).walk())
    left = {
        f"{type} ({version})"
        for type, version in _TABLE
        if version.startswith("opset")
        and type not in ELSEWHERE
        and (type, version) not in BY_HAND
        and exercised[type, version] < 4
    }  # in four cases, of static or of dynamic shapes
    assert not left
