"""Whether what a graph computes is linear in some of its tensors."""

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.tracing import graphs as _graphs


class _Kind(enum.Enum):
    """How a tensor depends on the given ones."""

    ZERO = enum.auto()  # not, and it is zero: linear, and constant
    CONSTANT = enum.auto()  # not
    LINEAR = enum.auto()
    OTHER = enum.auto()


_EXTENTS = frozenset(("OnesLike", "Rank", "Shape", "ShapeN", "Size"))
# Operations that are linear in all inputs together, but for those at the given positions.
_TOGETHER: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Add", "AddN", "AddV2", "Complex", "Pack", "ParallelConcat", "Sub"), ()),
    **dict.fromkeys(("Select", "SelectV2", "Concat"), (0,)),
    "ConcatV2": (-1,),
    "PadV2": (1,),
}
# Operations that are linear in each input at one of the given positions, if no other depends.
_ONE_BY_ONE: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "Einsum", "MatMul", "Mul"), (0, 1)),
    **dict.fromkeys(("Div", "DivNoNan", "MulNoNan", "RealDiv", "Xdivy"), (0,)),
    **dict.fromkeys(("Conj", "Imag", "Neg", "Real"), (0,)),
    **dict.fromkeys(("Identity", "PlaceholderWithDefault", "PreventGradient", "Snapshot"), (0,)),
    **dict.fromkeys(("EnsureShape", "StopGradient", "CheckNumerics", "CheckNumericsV2"), (0,)),
    **dict.fromkeys(("BroadcastTo", "ExpandDims", "Reshape", "Squeeze", "Tile"), (0,)),
    **dict.fromkeys(("ConjugateTranspose", "Pad", "ReverseV2", "Roll", "Transpose"), (0,)),
    **dict.fromkeys(("Gather", "GatherNd", "GatherV2", "Slice", "StridedSlice", "Unpack"), (0,)),
    **dict.fromkeys(("BiasAddGrad", "Cumsum", "Mean", "Sum", "SegmentSum"), (0,)),
    **dict.fromkeys(("MatrixBandPart", "MatrixDiagPart", "Trace", "UnsortedSegmentSum"), (0,)),
    **dict.fromkeys(("EluGrad", "LeakyReluGrad", "Relu6Grad", "ReluGrad", "SeluGrad"), (0,)),
    **dict.fromkeys(("SoftplusGrad", "SoftsignGrad"), (0,)),
    **dict.fromkeys(("Split", "RsqrtGrad", "SigmoidGrad", "SqrtGrad", "TanhGrad"), (1,)),
    **dict.fromkeys(("ReciprocalGrad", "InvGrad", "ScatterNd"), (1,)),
    **dict.fromkeys(("Conv2DBackpropFilter", "Conv2DBackpropInput", "MaxPoolGrad"), (2,)),
    "AvgPoolGrad": (1,),
    "Cast": (0,),
    "Conv2D": (0, 1),
    "SplitV": (0,),
    "StridedSliceGrad": (4,),
}


def is_linear(
    graph: _tf.FuncGraph, parameters: Sequence[tf.Tensor], results: Sequence[Any]
) -> bool:
    """True if results are known to be linear in parameters: those of a sum are the sum of theirs.

    Results of other graphs, of no tensors and of integers do not count.
    """
    numbers = [t for t in results if tf.is_symbolic_tensor(t) and _tf.is_trainable(t.dtype)]
    kinds = {t.ref(): _Kind.LINEAR for t in parameters}
    found = _kinds_of(graph, [t for t in numbers if t.graph is graph], kinds)
    others = [_Kind.CONSTANT for t in numbers if t.graph is not graph]
    return all(kind in (_Kind.ZERO, _Kind.LINEAR) for kind in [*found, *others])


def _kinds_of(
    graph: _tf.FuncGraph, results: Sequence[tf.Tensor], kinds: dict[Any, _Kind]
) -> list[_Kind]:
    """The kinds of results of a graph; `kinds` has those of its parameters, and gets others."""
    given = [reference.deref() for reference in kinds]
    for op in _graphs.needed_operations(given, results, follow_controls=False):
        found = _kinds_of_outputs(op, [kinds[t.ref()] for t in op.inputs])
        kinds.update(zip([t.ref() for t in op.outputs], found))
    return [kinds[t.ref()] for t in results]


def _kinds_of_outputs(op: tf.Operation, given: list[_Kind]) -> list[_Kind]:
    if op.type == "IdentityN":
        return given[: len(op.outputs)]
    if op.type in _graphs.CALLS:
        callee = getattr(_tf.find_function(op.graph, op.get_attr("f").name), "graph", None)
        if callee is not None and callee.outputs:
            kinds = {t.ref(): kind for t, kind in zip(callee.inputs, given)}
            return _kinds_of(callee, callee.outputs, kinds)
    return [_kind_of_outputs(op, given)] * len(op.outputs)


def _kind_of_outputs(op: tf.Operation, given: list[_Kind]) -> _Kind:
    if op.type == "ZerosLike":
        return _Kind.ZERO
    dependent = {k for k, kind in enumerate(given) if kind in (_Kind.LINEAR, _Kind.OTHER)}
    if op.type in _EXTENTS:
        return _Kind.CONSTANT
    if not dependent:
        return _Kind.ZERO if _is_zero(op, given) else _Kind.CONSTANT
    if any(given[k] is _Kind.OTHER for k in dependent):
        return _Kind.OTHER
    if op.type == "Cast" and not _tf.is_trainable(op.outputs[0].dtype):
        return _Kind.OTHER
    if op.type in _TOGETHER:
        apart = {k % len(given) for k in _TOGETHER[op.type]}
        rest = [kind for k, kind in enumerate(given) if k not in apart]
        is_one = not dependent & apart and _Kind.CONSTANT not in rest
    else:
        is_one = len(dependent) == 1 and dependent <= set(_ONE_BY_ONE.get(op.type, ()))
    return _Kind.LINEAR if is_one else _Kind.OTHER


def _is_zero(op: tf.Operation, given: list[_Kind]) -> bool:
    """True if an operation of constants gives zeros."""
    if op.type == "Const":
        value = op.outputs[0]
        return _tf.is_trainable(value.dtype) and not np.any(tf.get_static_value(value))
    if op.type == "Fill":
        return given[1] is _Kind.ZERO
    is_first = _ONE_BY_ONE.get(op.type) == (0,)
    return is_first and given[0] is _Kind.ZERO
