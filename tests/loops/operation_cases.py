"""Cases of the rows of the table of operations, which suites about operations share.

A case is a computation of an iteration, and the values that it reads: axes that are negative or
absent, extents of 0 and 1, numbers that are not finite, each type of TYPES that an operation has.

A row has cases by its kind, or examples, or both. An example may read a constant, which all
iterations share.
"""

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

from tf_ti import _operations

COUNT = 3
FLOATS, HALVES = (tf.float32, tf.float64), (tf.float16, tf.bfloat16)
REALS = FLOATS + HALVES
TYPES = (*REALS, tf.int32, tf.int64, tf.bool)
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -2.5, 1e30, -1e30)
OF_HALVES = (6e-8, -3e-6, 6e4, -6e4)  # subnormal, large
RAW = tf.raw_ops


@dataclasses.dataclass(frozen=True)
class Case:
    """What an iteration computes of its values, and the values of `COUNT` iterations.

    Attributes:
        compute: the computation, of a value of each input.
        values: the values of all iterations, by input.
        has_whole_vectors: true if the values fill vectors. For the rest of an array, TensorFlow's
            kernels round a few operations differently, or choose the other zero.
        is_for_programs: true if only the way in which values fill vectors is new.
    """

    compute: Callable[..., Any]
    values: tuple[tf.Tensor, ...]
    has_whole_vectors: bool = False
    is_for_programs: bool = False

    def expected(self) -> list[list[tf.Tensor]]:
        """The outputs of TensorFlow's kernels, one iteration after the other."""
        return [tf.nest.flatten(self.compute(*(v[i] for v in self.values))) for i in range(COUNT)]


def types_of(name: str) -> list[tf.DType]:
    """The types of TYPES that an operation has a kernel for."""
    found = kernels.get_registered_kernels_for_op(name).kernel
    of_cpu = [kernel.constraint for kernel in found if kernel.device_type == "CPU"]
    attributes = op_def_registry.get(name).attr
    if name == "Cast":
        return list(TYPES)
    if not any(attribute.name == "T" for attribute in attributes):
        is_of_bools = name in ("All", "Any") or name.startswith("Logical")
        return [tf.bool] if is_of_bools else [tf.float32]

    def has(limits: Any, dtype: tf.DType) -> bool:
        types = [limit.allowed_values.list.type for limit in limits if limit.name == "T"]
        return all(not each or dtype.as_datatype_enum in each for each in types)

    return [t for t in TYPES if has(attributes, t) and any(has(kernel, t) for kernel in of_cpu)]


def numbers(
    rng: np.random.Generator,
    dtype: tf.DType,
    *shape: int,
    special: bool = False,
    positive: bool = False,
) -> tf.Tensor:
    """Random values of `COUNT` iterations.

    With `special`, some are not finite. With `positive`, integers are divisors and exponents.
    """
    shape = (COUNT, *shape)
    if dtype == tf.bool:
        return tf.constant(rng.random(shape) < 0.5)
    if dtype.is_integer:
        return tf.constant(rng.integers(1 if positive else -9, 9, shape), dtype)
    x = rng.normal(size=shape) * 2.0
    if special:
        among = SPECIAL + (OF_HALVES if dtype in HALVES else ())
        x = np.where(rng.random(shape) < 0.3, rng.choice(among, shape), x)
    return tf.cast(tf.constant(x), dtype)


def special_pairs(dtype: tf.DType) -> list[tf.Tensor]:
    """Each of some numbers beside each: TensorFlow's kernels compute whole vectors of them."""
    some = [*SPECIAL, 7.0, -40.0, 100.0, 3.0, -3.0]
    x, y = (tf.cast(tf.reshape(v, [-1]), dtype) for v in np.meshgrid(some, some))
    return [tf.tile(v[None], [COUNT, 1]) for v in (x, y)]


def _call(name: str, *given: Any, **attributes: Any) -> Any:
    """Calls an operation with inputs in their order."""
    call = getattr(RAW, name)
    return call(**dict(zip(inspect.signature(call).parameters, given)), **attributes)


def _constant(x: tf.Tensor, *shape: int, seed: int = 6) -> tf.Tensor:
    """A constant of the type of x, which all iterations share."""
    return tf.constant(np.random.default_rng(seed).normal(size=shape), x.dtype)


def _without_large(x: tf.Tensor) -> tf.Tensor:
    """Replaces large finite numbers: beside them, a sum of small ones depends on the order."""
    if not x.dtype.is_floating:
        return x
    return tf.where(tf.math.is_finite(x) & (tf.abs(x) > 100), tf.ones_like(x), x)


# TensorFlow's kernels turn -0 into either zero, by the place in the array.
OF_EITHER_ZERO = ("Relu", "Relu6", "RsqrtGrad", "Xdivy")
SHAPES = [(3, 4), (), (0, 4), (7,), (37,)]
MORE_SHAPES = [(1,), (16,), (33,), (3, 5), (4, 17), (2, 3, 4)]
BROADCASTS = [[(3, 5), (5,)], [(3, 1), (1, 20)], [(33,), ()], [(2, 3, 4), (3, 1)]]


def _elementwise(name: str, dtype: tf.DType, rng: np.random.Generator) -> Iterator[Case]:
    row = _operations.OPERATIONS[name]
    attributes = {"Tout": tf.complex128} if (name, dtype) == ("Complex", tf.float64) else {}
    count = 3 if row.inputs == ("x*",) else len(row.inputs)
    shapes = [[shape] * count for shape in SHAPES]
    if count > 1 and "own_shapes" not in row.notes:
        shapes += [[(3, 4), *[(4,)] * (count - 1)], [(), *[(2, 1)] * (count - 1)]]
    if name in ("Betainc", "ClipByValue"):
        shapes += [[(3, 4), (), ()], [(0, 4), (), (0, 4)]]
    if name.startswith("BiasAdd"):
        shapes = [[(3, 4), (4,)], [(2, 3, 4), (4,)], [(0, 4), (4,)]]
    few = len(shapes)
    if count == 1 or name == "SelectV2":
        shapes += [[shape] * count for shape in MORE_SHAPES]
    if row.inputs == ("x", "x") and "own_shapes" not in row.notes:
        shapes += [pair[::turn] for pair in BROADCASTS for turn in (1, -1)]
    if name == "SelectV2":
        shapes += [[shape, shape, (*shape[:-1], 1)] for shape in MORE_SHAPES]
    for number, each in enumerate(shapes):
        options = {"is_for_programs": number >= few}
        values = [
            numbers(rng, dtype, *shape, special=True, positive=k > 0 and row.fails == "OfIntegers")
            for k, shape in enumerate(each)
        ]
        if name in ("Select", "SelectV2"):
            values[0] = numbers(rng, tf.bool, *each[0])
        if name in OF_EITHER_ZERO:
            values = [tf.where(v == 0, tf.zeros_like(v), v) for v in values]
        if name == "AddN":
            values = [_without_large(v) for v in values]
            yield Case(lambda *x: RAW.AddN(inputs=x), tuple(values), **options)
        elif name == "Cast":
            for to in (*TYPES, tf.int8) if each == [(37,)] else (tf.float32, tf.float16, tf.bool):
                # No integer stands for a number that is not finite.
                x = numbers(rng, dtype, *each[0], special=not to.is_integer)
                yield Case(lambda x, to=to: tf.cast(tf.identity(x), to), (x,), **options)
        else:
            yield Case(lambda *x: _call(name, *x, **attributes), tuple(values), **options)
    is_plain = row.inputs in (("x",), ("x", "x")) and name not in ("Cast", "BiasAdd", "BiasAddV1")
    if dtype in REALS and is_plain:
        values = special_pairs(dtype)[:count]
        yield Case(lambda *x: _call(name, *x, **attributes), tuple(values), has_whole_vectors=True)


def _reduction(name: str, dtype: tf.DType, rng: np.random.Generator) -> Iterator[Case]:
    if "a" not in _operations.OPERATIONS[name].inputs:
        for shape in ((3, 4), (2, 3, 4)):
            yield Case(lambda x: _call(name, x), (numbers(rng, dtype, *shape),))
        return
    cases = [((7,), 0), ((3, 4), 0), ((3, 4), -1), ((2, 1, 5), -2)]
    more, matrices, array = [((40,), 0)], ((3, 5), (4, 17)), (2, 3, 4)
    if name.startswith("Arg"):
        options = [{"output_type": t} for t in (tf.int32, tf.int64)]
        more += [(shape, axis) for shape in (*matrices, array) for axis in range(len(shape))]
    else:
        options = [{}, {"keep_dims": True}]
        cases += [((3, 4), []), ((3, 4), [0, 1]), ((0, 4), 0), (array, [0, -1])]
        more += [((n,), axes) for n in (7, 40) for axes in (-1, [0])]
        more += [(shape, axes) for shape in matrices for axes in (0, -1, [0, 1], [0, -1])]
        more += [(array, axes) for axes in (0, -1, [0, 1, 2])]
    for number, (shape, axes) in enumerate(cases + more):
        x = numbers(rng, dtype, *shape, special=name in ("Max", "Min"))
        if name == "Prod" and dtype in REALS:  # The products are not far from 1 or -1.
            x = tf.sign(x) * 2.0 ** (x / 16)
        for each in options:
            yield Case(
                lambda x, axes=axes, each=each: _call(name, x, axes, **each),
                (x,),
                is_for_programs=number >= len(cases),
            )


def _accumulation(name: str, dtype: tf.DType, rng: np.random.Generator) -> Iterator[Case]:
    for shape, axis in (((3, 4), 0), ((3, 4), -1), ((2, 1, 5), 1), ((6,), 0), ((0, 4), 0)):
        for exclusive in (False, True):
            for reverse in (False, True):
                options = {"exclusive": exclusive, "reverse": reverse}
                yield Case(
                    lambda x, axis=axis, options=options: _call(name, x, axis, **options),
                    (numbers(rng, dtype, *shape),),
                )


EQUATIONS = [
    "ab,bc->ac", "bh,bs->bsh", "bs,bsh->bh", "bsh,bh->bs", "bhqd,bhkd->bhqk", "abc,cb->ab",
    "ab,ab->", "a,b->ab", "ab,cd->ad", "abc,cd->dba", "ba,bc->ca", "ij,jk->ki", "abc->cb",
]  # fmt: skip
SIZES = dict(zip("abcdhijkqs", (3, 4, 5, 2, 6, 7, 3, 20, 3, 9)))
MATRICES = [((3, 4), (4, 5)), ((1, 7), (7, 1)), ((2, 0), (0, 3)), ((0, 2), (2, 3))]
BATCHES = [tuple(b + s for s in pair) for b in ((2,), (1, 2)) for pair in MATRICES]
BROADCAST_BATCHES = [((2, 1, 4, 5), (3, 5, 6)), ((4, 5), (3, 5, 6))]
MORE_MATRICES = [((8, 32), (32, 17))]
MORE_BATCHES = [((2, 3, 4), (2, 4, 9)), ((2, 3, 4, 5), (2, 3, 5, 1))]


def _product(name: str, dtype: tf.DType, rng: np.random.Generator) -> Iterator[Case]:
    if name == "Einsum":
        for equation in EQUATIONS:
            operands = equation.split("->")[0].split(",")
            shapes = [[SIZES[label] for label in labels] for labels in operands]
            yield from _einsum(equation, shapes, dtype, rng)
        for shapes in BATCHES:
            yield from _einsum("...ij,...jk->...ki", shapes, dtype, rng)
        return
    transposed = "transpose_a", "transpose_b"
    factors, more = MATRICES, MORE_MATRICES
    if name != "MatMul":
        transposed = "adj_x", "adj_y"
        factors = BATCHES if name == "BatchMatMul" else BATCHES + BROADCAST_BATCHES
        more = MORE_BATCHES
    options = {"Tout": dtype} if name == "BatchMatMulV3" else {}
    for number, shapes in enumerate(factors + more):
        for turns in ((False, False), (False, True), (True, False), (True, True)):
            x, y = (
                numbers(rng, dtype, *(shape[:-2] + shape[:-3:-1] if is_turned else shape))
                for shape, is_turned in zip(shapes, turns)
            )
            given = options | dict(zip(transposed, turns))
            kind = {"is_for_programs": number >= len(factors)}
            if not any(turns):
                yield Case(lambda x, y, given=given: _call(name, x, y, **given), (x, y), **kind)
            # A program computes the second factor.
            yield Case(lambda x, y, given=given: _call(name, x, y + 1, **given), (x, y), **kind)


def _einsum(
    equation: str, shapes: Any, dtype: tf.DType, rng: np.random.Generator
) -> Iterator[Case]:
    values = tuple(numbers(rng, dtype, *shape) for shape in shapes)
    yield Case(lambda *x: RAW.Einsum(inputs=x, equation=equation), values)


def _square(x: tf.Tensor) -> tf.Tensor:
    """A positive definite matrix, of the columns of x."""
    return tf.matmul(x, x, transpose_a=True) + 0.5 * tf.eye(4)


def _image(x: tf.Tensor) -> tf.Tensor:
    """An image of one channel in a batch."""
    return x[None, :, :, None]


def _one_or_two(x: tf.Tensor) -> tf.Tensor:
    """An integer by the sign of a number."""
    return tf.where(x > 0.0, 2, 1)


def _color(x: tf.Tensor) -> tf.Tensor:
    """Numbers from 0 to 1."""
    return tf.minimum(tf.abs(x) * 0.125, 1.0)


# What an iteration computes, and the shapes of the values that it reads.
EXAMPLES: dict[str, list[tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]]] = {
    # Beside a constant.
    "AddN": [(lambda x: tf.add_n([x, _constant(x, 3, 4), x * 2.0]), ((3, 4),))],
    "AddV2": [
        (lambda x: x + _constant(x, 3, 4), ((3, 4),)),
        (lambda x: x[0] + _constant(x, 3, 4), ((3, 4),)),
    ],
    "BiasAdd": [
        (lambda x: tf.nn.bias_add(x, _constant(x, 4)), ((3, 4),)),
        (
            lambda x: tf.nn.bias_add(x, x[0]) * 2 + tf.nn.bias_add(x[None], x[:, 0], "NC..")[0],
            ((4, 6),),
        ),
    ],
    "BitwiseAnd": [(lambda x: tf.bitwise.bitwise_and(tf.cast(x * 9.0, tf.int32), 6), ((3, 4),))],
    "ClipByValue": [
        (lambda x: tf.clip_by_value(x, -0.5, 0.5), ((3, 4),)),
        (
            lambda x: RAW.ClipByValue(
                t=x,
                clip_value_min=tf.constant(-3.0, x.dtype, [3, 4]),
                clip_value_max=_constant(x, 3, 4),
            ),
            ((3, 4),),
        ),
        (lambda x: RAW.ClipByValue(t=x, clip_value_min=-0.5, clip_value_max=x[0, 0]), ((4, 6),)),
    ],
    "LogicalOr": [(lambda x: (x < 0.1) | tf.math.logical_not(x >= _constant(x, 3, 4)), ((3, 4),))],
    "Maximum": [(lambda x: tf.maximum(tf.minimum(x, 0.5), _constant(x, 3, 4)), ((3, 4),))],
    "Mul": [(lambda x: x * _constant(x, 4), ((3, 4),))],
    "RealDiv": [
        (lambda x: x / (tf.reduce_max(tf.abs(x)) + 1.0), ((3, 4),)),
    ],
    "SelectV2": [
        (lambda x: tf.where(x > 0.0, x, _constant(x, 3, 4)), ((3, 4),)),
        (lambda x: tf.where(x[0, 0] > 0.0, x, _constant(x, 3, 4)), ((3, 4),)),
    ],
    "All": [
        (lambda x: tf.reduce_all(x > 0.0, 1), ((12, 2),)),
    ],
    "Any": [
        (lambda x: tf.reduce_any(x > 0.0, 0), ((3, 4),)),
    ],
    "ArgMax": [
        (lambda x: tf.argmax(x, 1), ((3, 4),)),
    ],
    "Max": [
        (lambda x: tf.reduce_max(x), ((3, 4),)),
    ],
    "Min": [
        (lambda x: tf.reduce_min(x, [0, 1]), ((3, 4),)),
    ],
    "Prod": [
        (lambda x: tf.reduce_prod(x, 1), ((3, 4),)),
    ],
    "Sum": [
        (lambda x: tf.reduce_sum(x, 0), ((3, 4),)),
    ],
    "Cast": [
        (lambda x: tf.cast(x * 4.0, tf.int8), ((3, 4),)),
        (lambda x: tf.cast(x, tf.float64) * 2.0, ((3, 4),)),
        (lambda x: tf.cast(tf.cast(x, tf.bfloat16) * 2, tf.float32), ((3, 4),)),
    ],
    "Relu": [
        (lambda x: tf.nn.relu(x) + tf.nn.leaky_relu(x), ((3, 4),)),
    ],
    "Sub": [(lambda x: _constant(x, 3, 4) - x, ((3, 4),))],
    "BandedTriangularSolve": [
        (lambda a, b: _call("BandedTriangularSolve", tf.abs(a) + 1.0, b), ((2, 4), (4, 3))),
        (
            lambda a: tf.linalg.banded_triangular_solve(tf.abs(a) + 1.0, _constant(a, 4, 4)),
            ((3, 4),),
        ),
    ],
    "BatchMatMulV2": [
        (lambda x: x[None] @ _constant(x, 4, 4), ((3, 4),)),
        (lambda x: x[None] @ _constant(x, 2, 4, 4), ((3, 4),)),
    ],
    "BroadcastArgs": [
        (lambda x: RAW.BroadcastArgs(s0=tf.shape(x), s1=[1, 4]), ((3, 4),)),
        (lambda x: RAW.BroadcastArgs(s0=[_one_or_two(x), 1], s1=[2, 3]), ((),)),
    ],
    "BroadcastGradientArgs": [
        (lambda x: RAW.BroadcastGradientArgs(s0=tf.shape(x), s1=[1, 4]), ((3, 4),)),
        (
            lambda x: RAW.BroadcastGradientArgs(s0=[_one_or_two(x), _one_or_two(-x)], s1=[2, 2]),
            ((),),
        ),
    ],
    "BroadcastTo": [
        (lambda x: tf.broadcast_to(x, [2, 3, 4]), ((3, 1),)),
        (lambda x: tf.broadcast_to(x, [0, 4]), ((4,),)),
        (lambda x: tf.broadcast_to(x[0], [3, 4]), ((3, 4),)),
        (lambda x: tf.broadcast_to(x[:, :1] + 1, [4, 9]) * 2, ((4, 6),)),
    ],
    "CheckNumerics": [(lambda x: RAW.CheckNumerics(tensor=x, message="m"), ((3, 4),))],
    "ConcatOffset": [
        (lambda x: RAW.ConcatOffset(concat_dim=0, shape=[tf.shape(x), [2, 4]]), ((3, 4),)),
        (
            lambda x: RAW.ConcatOffset(concat_dim=0, shape=[[_one_or_two(x), 4], [2, 4]]),
            ((),),
        ),
    ],
    "ConcatV2": [
        (lambda x, y: tf.concat([x, y], -1), ((3, 4), (3, 2))),
        (lambda x, y: tf.concat([x, y, x], 0), ((3, 4), (0, 4))),
        (lambda x: tf.concat([x, _constant(x, 3, 4), -x], 0), ((3, 4),)),
        (lambda x: tf.concat([_constant(x, 3, 4), x], -1), ((3, 4),)),
        (lambda x: tf.concat([x, x * 2, x[:1]], 0) + 1, ((4, 6),)),
        (lambda x: tf.concat([x, x[:, :2] + 1], 1) * 3, ((4, 6),)),
    ],
    "Const": [(lambda x: tf.constant([1.0, 2.0]), ((1,),))],
    "Cumprod": [
        (
            lambda x: tf.math.cumprod(x, 1, exclusive=True) - tf.math.cumprod(x, 0),
            ((4, 6),),
        )
    ],
    "Cumsum": [
        (lambda x: tf.cumsum(x, -1, exclusive=True), ((3, 4),)),
        (lambda x: tf.cumsum(x, 1) * tf.cumsum(x, 0, exclusive=True, reverse=True), ((4, 6),)),
    ],
    "Einsum": [
        (lambda x: tf.einsum("ab,bc->ca", x, _constant(x, 4, 4)), ((3, 4),)),
    ],
    "EnsureShape": [(lambda x: tf.ensure_shape(x, [3, 4]), ((3, 4),))],
    "ExpandDims": [
        *((lambda x, k=k: tf.expand_dims(x, k), ((3, 4),)) for k in (0, 2, -1)),
        (lambda x: tf.expand_dims(x, -1) + tf.expand_dims(x, 0)[0][..., None], ((3, 4),)),
    ],
    "Fill": [
        (lambda x: tf.fill([2, 3], x), ((),)),
        (lambda x: tf.fill([0], x), ((),)),
        (lambda x: tf.fill([4, 6], x[0, 0]) + x, ((4, 6),)),
    ],
    "GatherNd": [
        (lambda x: tf.gather_nd(x, [[2, 0], [0, 3]]), ((3, 4),)),
        (
            lambda x: tf.gather_nd(_constant(x, 3, 4), tf.cast(x[:, :2] > 0.0, tf.int32)),
            ((3, 4),),
        ),
    ],
    "GatherV2": [
        (lambda x: tf.gather(x, [2, 0], axis=1), ((3, 4),)),
        *((lambda x, k=k: tf.gather(x, [2, 0, 0], axis=k), ((3, 4),)) for k in (0, 1, -1)),
        (lambda x: tf.gather(_constant(x, 3, 4), tf.cast(x[0] > 0.0, tf.int32)), ((3, 4),)),
        (
            lambda x: tf.gather(x + 1, [2, 0, 1, 2, 3], axis=1) * 2 + tf.gather(x, 1)[0],
            ((4, 6),),
        ),
        (lambda x: tf.gather(x, [[0, 1], [3, 3]]) * 2, ((4, 6),)),
    ],
    "IdentityN": [(lambda x, y: tf.identity_n([x, y]), ((3, 4), (2,)))],
    "InvertPermutation": [
        (lambda x: tf.math.invert_permutation([2, 0, 1]), ((1,),)),
        (lambda x: tf.math.invert_permutation(tf.argsort(x)), ((5,),)),
    ],
    "MatMul": [
        (lambda x: x @ _constant(x, 4, 4), ((3, 4),)),
        (lambda x: tf.matmul(x, _constant(x, 3, 4), transpose_a=True), ((3, 4),)),
        (lambda x: tf.matmul(x, _constant(x, 4, 4), transpose_b=True), ((3, 4),)),
        (lambda x: _constant(x, 2, 3) @ x, ((3, 4),)),
        (lambda x: tf.matmul(_constant(x, 3, 4), x, transpose_a=True), ((3, 4),)),
        (
            lambda x: tf.matmul(_constant(x, 4, 2), x, transpose_a=True, transpose_b=True),
            ((3, 4),),
        ),
        (lambda x: _constant(x, 4, 4) @ x[0][:, None], ((3, 4),)),
        (lambda x: tf.linalg.matvec(_constant(x, 4, 4), x[0]), ((3, 4),)),
        (lambda x: tf.matmul(x, x, transpose_b=True), ((3, 4),)),
        (lambda x: tf.tensordot(x[None], _constant(x, 4, 4), 1), ((3, 4),)),
    ],
    "MatrixBandPart": [
        (lambda x: tf.linalg.band_part(x, 1, 0), ((3, 4),)),
        (lambda x: tf.linalg.band_part(x, -1, 0), ((0, 4),)),
    ],
    "MatrixDiagPartV3": [
        (lambda x: tf.linalg.diag_part(x, k=(-1, 1)), ((3, 4),)),
        (lambda x: tf.linalg.diag_part(x, k=1) * 2.0, ((3, 4),)),
    ],
    "MatrixDiagV3": [
        (lambda x: tf.linalg.diag(x, k=-1), ((4,),)),
        (lambda x: tf.linalg.diag(x[:2], k=(-1, 0)) * 2.0, ((3, 4),)),
        (lambda x: tf.eye(4) * x[0], ((3, 4),)),
    ],
    "MatrixSetDiagV3": [
        (lambda x, d: tf.linalg.set_diag(x, d), ((3, 4), (3,))),
        (lambda x: tf.linalg.set_diag(x, x[:, 0]), ((3, 4),)),
        (lambda x: tf.linalg.set_diag(_constant(x, 3, 4), x[:, 0]), ((3, 4),)),
        (lambda x: tf.linalg.set_diag(x, _constant(x, 3)), ((3, 4),)),
    ],
    "MatrixSolve": [
        (lambda a, b: tf.linalg.solve(a + 9.0 * tf.eye(4), b), ((4, 4), (4, 2))),
        (lambda x: tf.linalg.solve(_square(x), tf.transpose(x)), ((3, 4),)),
        (lambda x: tf.linalg.solve(_square(_constant(x, 3, 4)), tf.transpose(x)), ((3, 4),)),
        (lambda x: tf.linalg.solve(_square(x), _constant(x, 4, 4), adjoint=True), ((3, 4),)),
    ],
    "MatrixTriangularSolve": [
        (lambda a, b: tf.linalg.triangular_solve(a + 9.0 * tf.eye(4), b), ((4, 4), (4, 2))),
        (lambda x: tf.linalg.triangular_solve(_square(x), _constant(x, 4, 4)), ((3, 4),)),
        (
            lambda x: tf.linalg.triangular_solve(
                _square(_constant(x, 3, 4)), tf.transpose(x), lower=False, adjoint=True
            ),
            ((3, 4),),
        ),
        (lambda x: tf.linalg.triangular_solve(_square(x), _constant(x, 2, 4, 1)), ((3, 4),)),
        (
            lambda x: tf.linalg.cholesky_solve(tf.linalg.cholesky(_square(x)), _constant(x, 4, 4)),
            ((3, 4),),
        ),
    ],
    "Mean": [
        (lambda x: tf.reduce_mean(x, -1, keepdims=True), ((3, 4),)),
        (
            lambda x: (
                (x - tf.reduce_mean(x, -1, keepdims=True))
                * tf.math.rsqrt(tf.math.reduce_variance(x, -1, keepdims=True) + 1e-3)
            ),
            ((3, 4),),
        ),
    ],
    "MirrorPad": [
        (lambda x: tf.pad(x, [[1, 0], [0, 2]], "REFLECT"), ((3, 4),)),
        (lambda x: tf.pad(x, [[1, 0], [2, 1]], "REFLECT"), ((3, 4),)),
        (lambda x: tf.pad(x, [[1, 0], [0, 2]], "SYMMETRIC"), ((3, 4),)),
    ],
    "OneHot": [
        (lambda x: tf.one_hot(tf.argmax(x, -1), 4), ((3, 4),)),
        (lambda x: tf.one_hot(tf.argmax(x, -1), 0), ((3, 4),)),
        (lambda x: tf.one_hot(tf.argmax(x, -1) - 2, 4, 2.0, -1.0, 0), ((3, 4),)),
        (lambda x: tf.one_hot(tf.cast(x > 0.0, tf.int32)[:, 0], 3), ((3, 4),)),
        (lambda x: tf.one_hot(tf.cast(x > 0.0, tf.int32)[:, 0], 3, axis=0), ((3, 4),)),
        (
            lambda x: (
                x * tf.one_hot(tf.argmax(x, 1), 6, dtype=x.dtype)
                + tf.one_hot([9, 0], 6, x[0, 0])[0]
            ),
            ((4, 6),),
        ),
        (
            lambda x: tf.one_hot(tf.argmax(x, 1, tf.int32), 6, x[0, 0], x[1, 1], axis=0),
            ((4, 6),),
        ),
    ],
    "Pack": [
        *((lambda x, y, k=k: tf.stack([x, y], k), ((3, 4), (3, 4))) for k in (0, -1)),
        (lambda x: tf.stack([x, _constant(x, 3, 4)], 1), ((3, 4),)),
        (lambda x: tf.stack([x, x + 1], 1) * 2, ((4, 6),)),
    ],
    "Pad": [
        (lambda x: tf.pad(x, [[1, 0], [0, 2]]), ((3, 4),)),
        (lambda x: tf.pad(x, [[1, 0], [2, 1]]), ((3, 4),)),
        (lambda x: tf.pad(x, [[1, 0], [0, 0]]), ((0, 4),)),
    ],
    "PadV2": [
        (
            lambda x, y: RAW.PadV2(input=x, paddings=[[1, 0], [2, 1]], constant_values=y),
            ((3, 4), ()),
        ),
        (lambda x: tf.pad(x, [[1, 0], [0, 2]], constant_values=1), ((3, 4),)),
        (
            lambda x: tf.pad(x + 1, [[1, 2], [0, 3]]) + tf.pad(x, [[3, 0], [1, 2]], "CONSTANT", 7),
            ((4, 6),),
        ),
    ],
    "PreventGradient": [(lambda x: RAW.PreventGradient(input=x, message="m"), ((3, 4),))],
    "Range": [
        (lambda x: tf.range(1, 7, 2), ((1,),)),
        (
            lambda x: tf.reshape(x + 1, tf.range(2, 20, 10)[:1] * 0 + tf.size(x)) * 2,
            ((4, 6),),
        ),
    ],
    "Rank": [(lambda x: RAW.Rank(input=x), ((3, 4),))],
    "Reshape": [
        (lambda x: tf.reshape(x + 1.0, [2, 6]), ((3, 4),)),
        *((lambda x, s=s: tf.reshape(x, s), ((3, 4),)) for s in ([2, -1], [12], [1, 3, 4, 1])),
        (lambda x: tf.reshape(tf.transpose(x), [-1]) * 2, ((4, 6),)),
        (lambda x: tf.reshape(x + 1, [-1, 2]), ((3, 4),)),
    ],
    "ReverseV2": [
        *((lambda x, k=k: tf.reverse(x, k), ((3, 4),)) for k in ([0], [-1], [0, 1])),
        (lambda x: tf.reverse(x, [0, -1]) * 2, ((4, 6),)),
    ],
    "Roll": [
        (lambda x: tf.roll(x, [1, -2], [0, 1]), ((3, 4),)),
        (lambda x: tf.roll(x, 5, -1), ((3, 4),)),
        (
            lambda x: tf.roll(x + 1, 1, 0) + tf.roll(x, [2, -1], [1, 0]) + tf.roll(x, -9, 1),
            ((4, 6),),
        ),
    ],
    "Shape": [(lambda x: RAW.Shape(input=x), ((3, 4),))],
    "ShapeN": [(lambda x, y: tf.shape_n([x, y]), ((3, 4), (2,)))],
    "Size": [
        (lambda x: RAW.Size(input=x), ((3, 4),)),
        # The divisors are powers of 2: TensorFlow multiplies by the reciprocal of a constant.
        (lambda x: x / tf.cast(tf.shape(x)[1] * tf.size(x), x.dtype), ((4, 8),)),
        (lambda x: x / tf.cast(tf.size(x + 1) + tf.rank(x), x.dtype), ((2, 7),)),
    ],
    "Slice": [
        (lambda x: tf.slice(x, [1, 0], [-1, 2]), ((3, 4),)),
        (lambda x: tf.slice(x, [0, 4], [3, 0]), ((3, 4),)),
        (lambda x: tf.slice(x, [1, 1], [2, -1]) * 2.0, ((3, 4),)),
        (lambda x: tf.slice(x, [1, 0], [-1, 3]) + 1, ((4, 6),)),
    ],
    "Split": [
        (lambda x: tf.split(x, 2, 1), ((3, 4),)),
        (lambda x: tf.split(x, 3, -2), ((3, 4),)),
        (lambda x: tf.add(*tf.split(x, 2, 1)), ((3, 4),)),
        (lambda x: tf.split(x + 1, 2, axis=0)[1] * 2, ((4, 6),)),
    ],
    "SplitV": [
        (lambda x: tf.split(x, [1, -1, 0], 1), ((3, 4),)),
        (lambda x: tf.split(x, [1, 2], 0)[1] * 2.0, ((3, 4),)),
        (lambda x: tf.split(x + 1, [1, -1, 2], axis=1)[1] * 2, ((4, 6),)),
    ],
    "Squeeze": [
        (lambda x: tf.squeeze(x, [-1]), ((3, 1),)),
        (lambda x: tf.squeeze(x), ((1, 3, 1),)),
        (lambda x: tf.squeeze(x[:, None, :1] * 2.0), ((3, 4),)),
        (lambda x: tf.squeeze(x[:, None, :1] * 2.0, [-1]), ((3, 4),)),
        (lambda x: tf.squeeze(x[:1] + 1), ((4, 6),)),
    ],
    "StridedSlice": [
        (lambda x: x[..., None, 1] * 2.0, ((3, 4),)),
        (lambda x: x[None, ..., None], ((3, 4),)),
        (lambda x: x[::-1, 1:3], ((3, 4),)),
        (lambda x: x[..., tf.newaxis, -1], ((3, 4),)),
        (lambda x: x[2:1], ((3, 4),)),
        (lambda x: x[1:, ::-2] * 2.0, ((3, 4),)),
        (lambda x: x[-1, 2] * 2.0, ((3, 4),)),
        (lambda x: x[:, None] + x[None], ((4, 6),)),
        (lambda x: x[1:, ::2] - 1, ((4, 6),)),
        (lambda x: x[::-1, -2:0:-1] - 1, ((4, 6),)),
        (lambda x: x[1] * x[:, 1:2], ((4, 6),)),
        (lambda x: x[..., None, 0] + x[0, 0], ((4, 6),)),
    ],
    "StridedSliceGrad": [
        (
            lambda x: RAW.StridedSliceGrad(
                shape=[5, 4], begin=[1, 0], end=[4, 4], strides=[1, 1], dy=x
            ),
            ((3, 4),),
        )
    ],
    "Tile": [
        (lambda x: tf.tile(x, [2, 1]), ((3, 4),)),
        (lambda x: tf.tile(x, [0, 2]), ((3, 4),)),
        (lambda x: tf.tile(x[:, :1] + 1, [1, 4]) * 2, ((4, 6),)),
    ],
    "Transpose": [
        *((lambda x, p=p: tf.transpose(x, p), ((2, 3, 4),)) for p in ([2, 0, 1], [0, 2, 1])),
        # TensorFlow's gradient takes no negative axis.
        (lambda x: tf.transpose(tf.stop_gradient(x), [-1, 0, 1]), ((2, 3, 4),)),
        (lambda x: tf.transpose(x) + 1, ((4, 6),)),
    ],
    "Unpack": [
        *((lambda x, k=k: tf.unstack(x, axis=k), ((3, 4),)) for k in (0, -1)),
        (lambda x: tf.unstack(x, axis=1)[2] * 2.0, ((3, 4),)),
        (lambda x: tf.add_n(tf.unstack(x + 1, axis=1)), ((4, 6),)),
    ],
    **{
        name: [
            (lambda x, n=name: _call(n, x), ((3, 4),)),
            (lambda x, n=name: _call(n, x), ((0, 4),)),
            (lambda x, n=name: _call(n, x) * x, ((3, 4),)),
        ]
        for name in ("Identity", "Snapshot", "StopGradient", "OnesLike", "ZerosLike")
    },
    **{
        name: [
            *((lambda x, n=name: _call(n, x), (shape,)) for shape in ((3, 4), (2, 1))),
            *((lambda x, n=name: _call(n, x * 10), (shape,)) for shape in ((1, 7), (3, 20))),
            *((lambda x, f=f: f(x * 10), (shape,)) for shape in ((1,), (7,), (2, 3, 33))),
            (lambda x, f=f: f(x[0]), ((3, 4),)),
        ]
        for name, f in (("Softmax", tf.nn.softmax), ("LogSoftmax", tf.nn.log_softmax))
    },
    "SoftmaxCrossEntropyWithLogits": [
        (lambda x, y: _call("SoftmaxCrossEntropyWithLogits", x, tf.nn.softmax(y)), ((3, 4), (3, 4)))
    ],
    "NthElement": [(lambda x, n=n: RAW.NthElement(input=x, n=n), ((3, 4),)) for n in (1, 2)],
    "TopKV2": [
        (lambda x: tf.math.top_k(x, 2), ((3, 4),)),
        (lambda x: tf.sort(x, -1, "DESCENDING"), ((3, 4),)),
        (lambda x: tf.argsort(x, 0), ((3, 4),)),
    ],
    "Conv2D": [
        *(
            (lambda x, p=p: tf.nn.conv2d(x, _constant(x, 2, 2, 3, 2), 1, p), ((1, 4, 5, 3),))
            for p in ("SAME", "VALID")
        ),
        (lambda x: tf.nn.conv2d(_image(x), _constant(x, 2, 2, 1, 2), 1, "SAME"), ((3, 4),)),
        (lambda x: tf.nn.conv1d(x[None], _constant(x, 2, 4, 3), 1, "SAME"), ((3, 4),)),
    ],
    "Conv3D": [
        (
            lambda x: tf.nn.conv3d(x, _constant(x, 2, 1, 2, 2, 1), [1] * 5, "SAME"),
            ((1, 3, 2, 3, 2),),
        )
    ],
    "DepthwiseConv2dNative": [
        (
            lambda x: tf.nn.depthwise_conv2d(x, _constant(x, 2, 2, 3, 2), [1] * 4, "SAME"),
            ((1, 4, 5, 3),),
        ),
        (
            lambda x: tf.nn.depthwise_conv2d(_image(x), _constant(x, 2, 2, 1, 2), [1] * 4, "VALID"),
            ((3, 4),),
        ),
    ],
    "AvgPool": [
        (lambda x: tf.nn.avg_pool2d(_image(x), 2, 1, "SAME"), ((3, 4),)),
        (lambda x: tf.nn.avg_pool2d(x, 2, 1, "SAME"), ((1, 4, 5, 3),)),
    ],
    "AvgPool3D": [(lambda x: tf.nn.avg_pool3d(x, 2, 1, "SAME"), ((1, 3, 4, 5, 2),))],
    "MaxPool": [
        (lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), ((1, 4, 5, 3),)),
        (lambda x: tf.nn.max_pool2d(_image(x), 2, 1, "VALID"), ((3, 4),)),
    ],
    "MaxPool3D": [(lambda x: tf.nn.max_pool3d(x, 2, 1, "SAME"), ((1, 3, 4, 5, 2),))],
    **{
        name: [
            (lambda x, m=method: tf.image.resize(x, [3, 7], m), ((1, 4, 5, 3),)),
            (lambda x, m=method: tf.image.resize(x, [3, 3], m), ((2, 2, 2, 3),)),
            (lambda x, m=method, size=size: tf.image.resize(_image(x), size, m), ((3, 4),)),
        ]
        for name, method, size in (
            ("ResizeArea", "area", [2, 3]),
            ("ResizeBicubic", "bicubic", [5, 6]),
            ("ResizeBilinear", "bilinear", [5, 6]),
            ("ResizeNearestNeighbor", "nearest", [2, 7]),
        )
    },
    "ScaleAndTranslate": [
        (lambda x: tf.image.resize(x, [3, 7], "lanczos3"), ((1, 4, 5, 3),)),
        (lambda x: tf.image.resize(x, [3, 3], "lanczos3"), ((2, 2, 2, 3),)),
        (lambda x: tf.image.resize(_image(x), [2, 3], antialias=True), ((3, 4),)),
    ],
    **{
        name: [(f, ((4, 5, 3),)), (f, ((1, 2, 2, 3),))]
        for name, f in {
            "AdjustContrastv2": lambda x: tf.image.adjust_contrast(x, 2.0),
            "AdjustHue": lambda x: tf.image.adjust_hue(_color(x), 0.1),
            "AdjustSaturation": lambda x: tf.image.adjust_saturation(_color(x), 0.5),
        }.items()
    },
    "HSVToRGB": [(lambda x: tf.image.hsv_to_rgb(_color(x)), ((4, 3),))],
    "RGBToHSV": [
        (lambda x: tf.image.rgb_to_hsv(_color(x)), ((4, 3),)),
        (lambda x: tf.image.rgb_to_hsv(tf.abs(x[:, :3])), ((3, 4),)),
    ],
    **{
        n: [
            (lambda x, n=n: _call(n, tf.complex(x, x * 2.0)), (shape,))
            for shape in ((3, 4), (2, 3, 4))
            if len(shape) > 2 or "3D" not in n
        ]
        for n in ("FFT", "FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D")
    },
    **{
        n: [
            (lambda x, n=n, k=k: _call(n, x, [4] * k), ((4, 4, 4),)),
            (lambda x, f=f, k=k: f(x, [6] * k), ((4, 3, 4),)),
            (lambda x, f=f: f(x), ((4, 3, 4),)),
            *(
                (g, ((3, 4),))
                for g in (lambda x, f=f, k=k: f(x, [6] * k), lambda x, f=f: f(x))
                if k < 3
            ),
        ]
        for k, n, f in (
            (1, "RFFT", tf.signal.rfft),
            (2, "RFFT2D", tf.signal.rfft2d),
            (3, "RFFT3D", tf.signal.rfft3d),
        )
    },
    **{
        n: [
            (lambda x, n=n, k=k: _call(n, tf.complex(x, -x), [4] * k), ((4, 4, 3),)),
            # TensorFlow's gradient takes no extent that is cut off.
            (
                lambda x, n=n, k=k: tf.stop_gradient(_call(n, tf.complex(x, -x), [4] * k)),
                ((4, 4, 4),),
            ),
            (lambda x, f=f: f(tf.complex(x, -x)), ((4, 3, 4),)),
            *([(lambda x, f=f: f(tf.complex(x, -x)), ((3, 4),))] if k < 3 else []),
        ]
        for k, n, f in (
            (1, "IRFFT", tf.signal.irfft),
            (2, "IRFFT2D", tf.signal.irfft2d),
            (3, "IRFFT3D", tf.signal.irfft3d),
        )
    },
    **{
        n: [
            (
                lambda x, n=n: _call(
                    n,
                    x @ tf.linalg.matrix_transpose(x) + 4.0 * tf.eye(3),
                ),
                ((3, 4),),
            ),
            (lambda x, n=n: _call(n, _square(x)), ((3, 4),)),
        ]
        for n in _operations.of_kinds("Decomposition")
        - {"Eig", "LogMatrixDeterminant", "Qr", "Svd"}
    },
    # These need no symmetric matrix, or no square one.
    "Eig": [
        (
            lambda x: _call("Eig", x @ tf.transpose(x) + 4.0 * tf.eye(3), Tout=tf.complex64),
            ((3, 4),),
        ),
        (lambda x: tf.abs(tf.linalg.eigvals(x[:, :3])), ((3, 4),)),
    ],
    "LogMatrixDeterminant": [(lambda x: tf.linalg.slogdet(x[:, :3]), ((3, 4),))],
    "Qr": [(tf.linalg.qr, (shape,)) for shape in ((3, 4), (4, 2), (3, 3))],
    "Svd": [
        *((tf.linalg.svd, (shape,)) for shape in ((3, 4), (3, 3))),
        (lambda x: tf.linalg.svd(x, compute_uv=False), ((3, 4),)),
    ],
    **{
        n: [(lambda x, n=n: _call(n, tf.complex(x, -x)), ((3, 4),))]
        for n in ("Angle", "ComplexAbs", "Conj", "Imag", "Real")
    },
    "Complex": [(lambda x, y: tf.complex(x, y), ((3, 4), (4,)))],
}
BY_KIND = {
    "Accumulation": _accumulation,
    "Elementwise": _elementwise,
    "Product": _product,
    "Reduction": _reduction,
}
# The types that examples have, beside float32.
OTHER_TYPES = {
    **dict.fromkeys(_operations.of_kinds("Filled", "Movement", "View"), HALVES),
    **dict.fromkeys(("BiasAdd", "ClipByValue", "Cumprod", "Cumsum", "Range", "Size"), HALVES),
    **dict.fromkeys(_operations.of_kinds("Softmax"), (tf.float64, *HALVES)),
}
NO_CASE = {"Random": "the numbers are other ones each time"}


def _types_by_kind(name: str) -> list[tf.DType]:
    return types_of(name) if _operations.OPERATIONS[name].kind in BY_KIND else []


def _types_of_examples(name: str) -> tuple[tf.DType, ...]:
    return (tf.float32, *OTHER_TYPES.get(name, ())) if name in EXAMPLES else ()


def types_of_cases(name: str) -> list[tf.DType]:
    """The types that the cases of an operation have."""
    return list(dict.fromkeys((*_types_by_kind(name), *_types_of_examples(name))))


def _by_kind(name: str, dtype: tf.DType, rng: np.random.Generator) -> Iterator[Case]:
    if dtype in _types_by_kind(name):
        yield from BY_KIND[_operations.OPERATIONS[name].kind](name, dtype, rng)


def _examples(name: str, dtype: tf.DType, rng: np.random.Generator) -> Iterator[Case]:
    if dtype in _types_of_examples(name):
        for compute, shapes in EXAMPLES[name]:
            yield Case(compute, tuple(numbers(rng, dtype, *shape) for shape in shapes))


def cases_of(name: str, dtype: tf.DType, rng: np.random.Generator) -> list[Case]:
    """The cases of a row."""
    return [*_examples(name, dtype, rng), *_by_kind(name, dtype, rng)]


def some_cases() -> dict[str, list[Case]]:
    """The examples of each row, and its first case by its kind, unless that is elementwise."""
    found = {}
    for name, row in _operations.OPERATIONS.items():
        rng = np.random.default_rng(1)
        cases = list(_examples(name, tf.float32, rng))
        for dtype in _types_by_kind(name)[:1] if row.kind != "Elementwise" else ():
            cases += itertools.islice(_by_kind(name, dtype, rng), 1)
        if cases:
            found[name] = cases
    return found
