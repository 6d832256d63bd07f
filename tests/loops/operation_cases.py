"""Cases of the rows of the table of operations, which suites about operations share.

A case is what an iteration computes, and the values that it reads: axes that are negative or none,
extents of 0 and 1, numbers that are not finite, each type of TYPES that an operation has.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

from tf_ti import _operations

COUNT = 3
REALS = (tf.float32, tf.float64, tf.float16, tf.bfloat16)
TYPES = (*REALS, tf.int32, tf.int64, tf.bool)
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -2.5)
RAW = tf.raw_ops


@dataclasses.dataclass(frozen=True)
class Case:
    """What an iteration computes of its values, and the values of `COUNT` iterations."""

    compute: Callable[..., Any]
    values: tuple[tf.Tensor, ...]

    def expected(self) -> list[list[tf.Tensor]]:
        """The outputs of TensorFlow's kernels, one iteration after the other."""
        return [tf.nest.flatten(self.compute(*(v[i] for v in self.values))) for i in range(COUNT)]


def types_of(name: str) -> list[tf.DType]:
    """The types of TYPES that an operation has a kernel for."""
    found = kernels.get_registered_kernels_for_op(name).kernel
    of_cpu = [kernel.constraint for kernel in found if kernel.device_type == "CPU"]
    attributes = op_def_registry.get(name).attr
    if not any(attribute.name == "T" for attribute in attributes):
        is_of_bools = name in ("All", "Any") or name.startswith("Logical")
        return [tf.bool] if is_of_bools else [tf.float32]

    def has(limits: Any, dtype: tf.DType) -> bool:
        types = [limit.allowed_values.list.type for limit in limits if limit.name == "T"]
        return all(not each or dtype.as_datatype_enum in each for each in types)

    return [t for t in TYPES if has(attributes, t) and any(has(kernel, t) for kernel in of_cpu)]


def numbers(
    rng: np.random.Generator, dtype: tf.DType, *shape: int, special: bool = False
) -> tf.Tensor:
    """Random values of `COUNT` iterations; with `special`, some that are not finite."""
    shape = (COUNT, *shape)
    if dtype == tf.bool:
        return tf.constant(rng.random(shape) < 0.5)
    if dtype.is_integer:
        return tf.constant(rng.integers(1, 9, shape), dtype)
    x = rng.normal(size=shape) * 2.0
    if special:
        x = np.where(rng.random(shape) < 0.3, rng.choice(SPECIAL, shape), x)
    return tf.cast(tf.constant(x), dtype)


def _call(name: str, *given: Any, **attributes: Any) -> Any:
    """Calls an operation with inputs in their order."""
    call = getattr(RAW, name)
    return call(**dict(zip(inspect.signature(call).parameters, given)), **attributes)


def _elementwise(name: str, dtype: tf.DType, rng: np.random.Generator) -> Iterator[Case]:
    row = _operations.OPERATIONS[name]
    count = 3 if row.inputs == ("x*",) else len(row.inputs)
    shapes = [[(3, 4)] * count, [()] * count, [(0, 4)] * count, [(37,)] * count]
    if count > 1 and "own_shapes" not in row.notes:
        shapes += [[(3, 4), *[(4,)] * (count - 1)], [(), *[(2, 1)] * (count - 1)]]
    if name in ("Betainc", "ClipByValue"):
        shapes += [[(3, 4), (), ()], [(0, 4), (), (0, 4)]]
    if name.startswith("BiasAdd"):
        shapes = [[(3, 4), (4,)], [(2, 3, 4), (4,)], [(0, 4), (4,)]]
    for each in shapes:
        values = [numbers(rng, dtype, *shape, special=True) for shape in each]
        if name in ("Select", "SelectV2"):
            values[0] = numbers(rng, tf.bool, *each[0])
        if name == "AddN":
            yield Case(lambda *x: RAW.AddN(inputs=x), tuple(values))
        elif name == "Cast":
            for to in (tf.float32, tf.float16, tf.bool):
                yield Case(lambda x, to=to: tf.cast(x, to), tuple(values))
        else:
            yield Case(lambda *x: _call(name, *x), tuple(values))


def _reduction(name: str, dtype: tf.DType, rng: np.random.Generator) -> Iterator[Case]:
    if "a" not in _operations.OPERATIONS[name].inputs:
        for shape in ((3, 4), (2, 3, 4)):
            yield Case(lambda x: _call(name, x), (numbers(rng, dtype, *shape),))
        return
    is_index = name.startswith("Arg")
    cases = [((3, 4), 0), ((3, 4), -1), ((2, 1, 5), -2), ((7,), 0)]
    if not is_index:
        cases += [((3, 4), []), ((3, 4), [0, 1]), ((0, 4), 0), ((2, 3, 4), [0, -1])]
    for shape, axes in cases:
        x = numbers(rng, dtype, *shape, special=name in ("Max", "Min"))
        yield Case(lambda x, axes=axes: _call(name, x, axes), (x,))
        if not is_index:
            yield Case(lambda x, axes=axes: _call(name, x, axes, keep_dims=True), (x,))


def _accumulation(name: str, dtype: tf.DType, rng: np.random.Generator) -> Iterator[Case]:
    for shape, axis in (((3, 4), 0), ((3, 4), -1), ((2, 1, 5), 1), ((6,), 0)):
        for options in ({}, {"exclusive": True}, {"reverse": True}):
            yield Case(
                lambda x, axis=axis, options=options: _call(name, x, axis, **options),
                (numbers(rng, dtype, *shape),),
            )


def _product(name: str, dtype: tf.DType, rng: np.random.Generator) -> Iterator[Case]:
    batches = [()] if name == "MatMul" else [(2,), (1, 2)]
    for batch in batches:
        for m, k, n in ((3, 4, 5), (1, 7, 1), (2, 0, 3), (0, 2, 3)):
            x, y = numbers(rng, dtype, *batch, m, k), numbers(rng, dtype, *batch, k, n)
            if name == "Einsum":
                yield Case(
                    lambda x, y: RAW.Einsum(inputs=[x, y], equation="...ij,...jk->...ki"), (x, y)
                )
            else:
                options = {"Tout": dtype} if name == "BatchMatMulV3" else {}
                yield Case(lambda x, y, options=options: _call(name, x, y, **options), (x, y))


# Of other operations: from values of an iteration, by the shapes that these have.
OTHERS: dict[str, list[tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]]] = {
    "BandedTriangularSolve": [
        (lambda a, b: _call("BandedTriangularSolve", tf.abs(a) + 1.0, b), ((2, 4), (4, 3)))
    ],
    "BroadcastGradientArgs": [
        (lambda x: RAW.BroadcastGradientArgs(s0=tf.shape(x), s1=[1, 4]), ((3, 4),))
    ],
    "BroadcastTo": [
        (lambda x: tf.broadcast_to(x, [2, 3, 4]), ((3, 1),)),
        (lambda x: tf.broadcast_to(x, [0, 4]), ((4,),)),
    ],
    "CheckNumerics": [(lambda x: RAW.CheckNumerics(tensor=x, message="m"), ((3, 4),))],
    "ConcatOffset": [
        (lambda x: RAW.ConcatOffset(concat_dim=0, shape=[tf.shape(x), [2, 4]]), ((3, 4),))
    ],
    "ConcatV2": [
        (lambda x, y: tf.concat([x, y], -1), ((3, 4), (3, 2))),
        (lambda x, y: tf.concat([x, y, x], 0), ((3, 4), (0, 4))),
    ],
    "Const": [(lambda x: tf.constant([1.0, 2.0]), ((1,),))],
    "EnsureShape": [(lambda x: tf.ensure_shape(x, [3, 4]), ((3, 4),))],
    "ExpandDims": [(lambda x, k=k: tf.expand_dims(x, k), ((3, 4),)) for k in (0, 2, -1)],
    "Fill": [(lambda x: tf.fill([2, 3], x), ((),)), (lambda x: tf.fill([0], x), ((),))],
    "GatherNd": [(lambda x: tf.gather_nd(x, [[2, 0], [0, 3]]), ((3, 4),))],
    "GatherV2": [(lambda x, k=k: tf.gather(x, [2, 0, 0], axis=k), ((3, 4),)) for k in (0, 1, -1)],
    "IdentityN": [(lambda x, y: tf.identity_n([x, y]), ((3, 4), (2,)))],
    "InvertPermutation": [(lambda x: tf.math.invert_permutation([2, 0, 1]), ((1,),))],
    "MatrixBandPart": [
        (lambda x: tf.linalg.band_part(x, 1, 0), ((3, 4),)),
        (lambda x: tf.linalg.band_part(x, -1, 0), ((0, 4),)),
    ],
    "MatrixDiagPartV3": [(lambda x: tf.linalg.diag_part(x, k=(-1, 1)), ((3, 4),))],
    "MatrixDiagV3": [(lambda x: tf.linalg.diag(x, k=-1), ((4,),))],
    "MatrixSetDiagV3": [(lambda x, d: tf.linalg.set_diag(x, d), ((3, 4), (3,)))],
    "MatrixSolve": [(lambda a, b: tf.linalg.solve(a + 9.0 * tf.eye(4), b), ((4, 4), (4, 2)))],
    "MatrixTriangularSolve": [
        (lambda a, b: tf.linalg.triangular_solve(a + 9.0 * tf.eye(4), b), ((4, 4), (4, 2)))
    ],
    "MirrorPad": [(lambda x: tf.pad(x, [[1, 0], [2, 1]], "REFLECT"), ((3, 4),))],
    "OneHot": [
        (lambda x: tf.one_hot(tf.argmax(x, -1), 4), ((3, 4),)),
        (lambda x: tf.one_hot(tf.argmax(x, -1), 0), ((3, 4),)),
        (lambda x: tf.one_hot(tf.argmax(x, -1) - 2, 4, 2.0, -1.0, 0), ((3, 4),)),
    ],
    "Pack": [(lambda x, y, k=k: tf.stack([x, y], k), ((3, 4), (3, 4))) for k in (0, -1)],
    "Pad": [
        (lambda x: tf.pad(x, [[1, 0], [2, 1]]), ((3, 4),)),
        (lambda x: tf.pad(x, [[1, 0], [0, 0]]), ((0, 4),)),
    ],
    "PadV2": [
        (
            lambda x, y: RAW.PadV2(input=x, paddings=[[1, 0], [2, 1]], constant_values=y),
            ((3, 4), ()),
        )
    ],
    "PreventGradient": [(lambda x: RAW.PreventGradient(input=x, message="m"), ((3, 4),))],
    "Range": [(lambda x: tf.range(1, 7, 2), ((1,),))],
    "Rank": [(lambda x: RAW.Rank(input=x), ((3, 4),))],
    "Reshape": [
        (lambda x, s=s: tf.reshape(x, s), ((3, 4),)) for s in ([2, -1], [12], [1, 3, 4, 1])
    ],
    "ReverseV2": [(lambda x, k=k: tf.reverse(x, k), ((3, 4),)) for k in ([0], [-1], [0, 1])],
    "Roll": [
        (lambda x: tf.roll(x, [1, -2], [0, 1]), ((3, 4),)),
        (lambda x: tf.roll(x, 5, -1), ((3, 4),)),
    ],
    "Shape": [(lambda x: RAW.Shape(input=x), ((3, 4),))],
    "ShapeN": [(lambda x, y: tf.shape_n([x, y]), ((3, 4), (2,)))],
    "Size": [(lambda x: RAW.Size(input=x), ((3, 4),))],
    "Slice": [
        (lambda x: tf.slice(x, [1, 0], [-1, 2]), ((3, 4),)),
        (lambda x: tf.slice(x, [0, 4], [3, 0]), ((3, 4),)),
    ],
    "Split": [(lambda x: tf.split(x, 2, 1), ((3, 4),)), (lambda x: tf.split(x, 3, -2), ((3, 4),))],
    "SplitV": [(lambda x: tf.split(x, [1, -1, 0], 1), ((3, 4),))],
    "Squeeze": [
        (lambda x: tf.squeeze(x, [-1]), ((3, 1),)),
        (lambda x: tf.squeeze(x), ((1, 3, 1),)),
    ],
    "StridedSlice": [
        (lambda x: x[::-1, 1:3], ((3, 4),)),
        (lambda x: x[..., tf.newaxis, -1], ((3, 4),)),
        (lambda x: x[2:1], ((3, 4),)),
    ],
    "StridedSliceGrad": [
        (
            lambda x: RAW.StridedSliceGrad(
                shape=[5, 4], begin=[1, 0], end=[4, 4], strides=[1, 1], dy=x
            ),
            ((3, 4),),
        )
    ],
    "Tile": [(lambda x: tf.tile(x, [2, 1]), ((3, 4),)), (lambda x: tf.tile(x, [0, 2]), ((3, 4),))],
    "Transpose": [
        (lambda x, p=p: tf.transpose(x, p), ((2, 3, 4),))
        for p in ([2, 0, 1], [0, 2, 1], [-1, 0, 1])
    ],
    "Unpack": [(lambda x, k=k: tf.unstack(x, axis=k), ((3, 4),)) for k in (0, -1)],
    **{
        name: [
            (lambda x, n=name: _call(n, x), ((3, 4),)),
            (lambda x, n=name: _call(n, x), ((0, 4),)),
        ]
        for name in ("Identity", "Snapshot", "StopGradient", "OnesLike", "ZerosLike")
    },
    **{
        name: [
            (lambda x, n=name: _call(n, x), ((3, 4),)),
            (lambda x, n=name: _call(n, x), ((2, 1),)),
        ]
        for name in ("Softmax", "LogSoftmax")
    },
    "SoftmaxCrossEntropyWithLogits": [
        (lambda x, y: _call("SoftmaxCrossEntropyWithLogits", x, tf.nn.softmax(y)), ((3, 4), (3, 4)))
    ],
    "NthElement": [(lambda x: RAW.NthElement(input=x, n=2), ((3, 4),))],
    "TopKV2": [(lambda x: tf.math.top_k(x, 2), ((3, 4),))],
    "Conv2D": [
        (lambda x, p=p: tf.nn.conv2d(x, tf.ones([2, 2, 3, 2]), 1, p), ((1, 4, 5, 3),))
        for p in ("SAME", "VALID")
    ],
    "Conv3D": [
        (lambda x: tf.nn.conv3d(x, tf.ones([2, 1, 2, 2, 1]), [1] * 5, "SAME"), ((1, 3, 2, 3, 2),))
    ],
    "DepthwiseConv2dNative": [
        (
            lambda x: tf.nn.depthwise_conv2d(x, tf.ones([2, 2, 3, 2]), [1] * 4, "SAME"),
            ((1, 4, 5, 3),),
        )
    ],
    "AvgPool": [(lambda x: tf.nn.avg_pool2d(x, 2, 1, "SAME"), ((1, 4, 5, 3),))],
    "AvgPool3D": [(lambda x: tf.nn.avg_pool3d(x, 2, 1, "SAME"), ((1, 3, 4, 5, 2),))],
    "MaxPool": [(lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), ((1, 4, 5, 3),))],
    "MaxPool3D": [(lambda x: tf.nn.max_pool3d(x, 2, 1, "SAME"), ((1, 3, 4, 5, 2),))],
    **{
        name: [(lambda x, m=method: tf.image.resize(x, [3, 7], m), ((1, 4, 5, 3),))]
        for name, method in {
            "ResizeArea": "area",
            "ResizeBicubic": "bicubic",
            "ResizeBilinear": "bilinear",
            "ResizeNearestNeighbor": "nearest",
            "ScaleAndTranslate": "lanczos3",
        }.items()
    },
    "AdjustContrastv2": [(lambda x: tf.image.adjust_contrast(x, 2.0), ((4, 5, 3),))],
    "AdjustHue": [(lambda x: tf.image.adjust_hue(tf.sigmoid(x), 0.1), ((4, 5, 3),))],
    "AdjustSaturation": [(lambda x: tf.image.adjust_saturation(tf.sigmoid(x), 0.5), ((4, 5, 3),))],
    "HSVToRGB": [(lambda x: tf.image.hsv_to_rgb(tf.sigmoid(x)), ((4, 3),))],
    "RGBToHSV": [(lambda x: tf.image.rgb_to_hsv(tf.sigmoid(x)), ((4, 3),))],
    **{
        n: [(lambda x, n=n: _call(n, tf.complex(x, x * 2.0)), ((2, 3, 4),))]
        for n in ("FFT", "FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D")
    },
    **{
        n: [(lambda x, n=n, k=k: _call(n, x, [4] * k), ((4, 4, 4),))]
        for k, n in ((1, "RFFT"), (2, "RFFT2D"), (3, "RFFT3D"))
    },
    **{
        n: [(lambda x, n=n, k=k: _call(n, tf.complex(x, -x), [4] * k), ((4, 4, 4),))]
        for k, n in ((1, "IRFFT"), (2, "IRFFT2D"), (3, "IRFFT3D"))
    },
    **{
        n: [
            (
                lambda x, n=n: _call(
                    n,
                    x @ tf.linalg.matrix_transpose(x) + 4.0 * tf.eye(3),
                    **({"Tout": tf.complex64} if n == "Eig" else {}),
                ),
                ((3, 4),),
            )
        ]
        for n in _operations.of_kinds("Decomposition")
    },
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
NO_CASE = {"Random": "the numbers are other ones each time"}


def types_of_cases(name: str) -> list[tf.DType]:
    """The types that the cases of an operation have."""
    return [tf.float32] if name in OTHERS else types_of(name)


def cases_of(name: str, dtype: tf.DType, rng: np.random.Generator) -> list[Case]:
    """The cases of a row."""
    if name in OTHERS:
        return [
            Case(compute, tuple(numbers(rng, dtype, *shape) for shape in shapes))
            for compute, shapes in OTHERS[name]
        ]
    return list(BY_KIND[_operations.OPERATIONS[name].kind](name, dtype, rng))
