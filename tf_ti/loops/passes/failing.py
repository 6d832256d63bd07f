"""Operations that may fail before a loop that has no iteration, in which they would not run.

A body may well divide by the number of iterations, or read the first of no elements. An operation
whose inputs never go together, as the factors of a product, is no such operation.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.passes import batching as _batching

# From a placeholder, the tensor that it gets from outside of its graph; None if that is not known.
Outside = Callable[[tf.Tensor], tf.Tensor | None]

_DIVISIONS = frozenset("Div FloorDiv FloorMod Mod TruncateDiv TruncateMod".split())
# Operations that are given sizes, which must not be negative, by the positions of these inputs.
_SIZES = {
    "BroadcastTo": [1],
    "Fill": [0],
    "MirrorPad": [1],
    "OneHot": [1],
    "Pad": [1],
    "PadV2": [1],
    "Tile": [1],
}
# The axes along which an input's extents must be known, of operations whose input it is.
_ALL, _MATRIX, _IMAGE = slice(None), slice(-2, None), slice(1, None)
_KNOWN = {
    **dict.fromkeys(("AvgPool", "AvgPool3D", "MaxPool", "MaxPool3D", "MirrorPad"), _ALL),
    **dict.fromkeys(("MatrixBandPart", "MatrixDiagPartV3", "MatrixSetDiagV3"), _MATRIX),
    **dict.fromkeys(("ResizeArea", "ResizeBicubic", "ResizeBilinear"), _IMAGE),
    **dict.fromkeys(("ResizeNearestNeighbor", "ScaleAndTranslate"), _IMAGE),
}
# Operations that are given numbers which must be known: axes, permutations, diagonals, sizes.
_NUMBERS = {
    "MatrixBandPart": [1, 2],
    "MatrixDiagPartV3": [1],
    "MatrixDiagV3": [1, 2, 3],
    "MatrixSetDiagV3": [2],
    **dict.fromkeys(("All", "Any", "ArgMax", "ArgMin", "ConcatV2", "Cumprod", "Cumsum"), [-1]),
    **dict.fromkeys(("Max", "Mean", "Min", "Prod", "ReverseV2", "Sum", "Transpose"), [-1]),
    **dict.fromkeys(("ResizeArea", "ResizeBicubic", "ResizeBilinear"), [1]),
    **dict.fromkeys(("ResizeNearestNeighbor", "ScaleAndTranslate"), [1]),
    "Split": [0],
    "SplitV": [1, 2],
}
# Operations that are given axes of their first input, by the positions of these numbers. Shape
# functions let some pass that are out of range, or named twice where the kernel refuses that.
_AXES = {
    **dict.fromkeys(("All", "Any", "Cumprod", "Cumsum", "Max", "Mean", "Min", "Prod"), 1),
    **dict.fromkeys(("ReverseV2", "Sum", "Transpose"), 1),
    "Roll": 2,
}
# Operations that cut a tensor into parts, by the positions of the tensor and of the axis.
_SPLIT = {"Split": (1, 0), "SplitV": (0, 2)}
# Operations that slide a filter over an image, which may be too small for it.
_FILTERS = frozenset(("Conv2D", "Conv3D", "DepthwiseConv2dNative"))
# Operations that find elements, which must be there.
_ELEMENTS = frozenset("NthElement Slice Squeeze StridedSlice TopKV2 Unpack".split())
# Operations whose results are not negative where these inputs are not.
_COUNTS = {
    **dict.fromkeys(("Add", "AddV2", "Maximum", "Mul", "Pack"), slice(None)),
    **dict.fromkeys(("Cast", "ExpandDims", "GatherV2", "Identity", "Prod", "Reshape"), slice(1)),
    **dict.fromkeys(("Slice", "Squeeze", "StridedSlice", "Sum", "Unpack"), slice(1)),
    "ConcatV2": slice(-1),
}


def may_fail(op: tf.Operation, is_stacked: Sequence[bool], outside: Outside) -> bool:
    """True if an operation may fail outside of a loop that has no iteration in which it would.

    Args:
        op: an operation for which there is a rule.
        is_stacked: which of the inputs that it uses are values of all iterations.
        outside: gives the tensors that a graph gets.
    """
    is_once = not any(is_stacked)
    if op.type in _batching.NEVER_EMPTY and not is_once:
        return True
    if any(tf.get_static_value(op.inputs[k]) is None for k in _NUMBERS.get(op.type, ())):
        return True
    if not right_axes_of(op, tf.get_static_value):
        return True
    if op.type in _KNOWN and not op.inputs[0].shape[_KNOWN[op.type]].is_fully_defined():
        return True
    if op.type in _FILTERS:
        return not _has_known_windows(op)
    if op.type in _SPLIT:
        data, axis = (op.inputs[k] for k in _SPLIT[op.type])
        return _tf.known_extent(data, int(tf.get_static_value(axis))) is None
    if op.type in _SIZES:
        return not all(is_count(op.inputs[k], outside) for k in _SIZES[op.type])
    if op.type == "Range":
        return not _is_range(op, outside)
    if op.type in ("ArgMax", "ArgMin"):
        axis = int(tf.get_static_value(op.inputs[1]))
        return not _tf.known_extent(op.inputs[0], axis)
    if op.type in _ELEMENTS:
        return not _has_elements(op)
    return is_once and _depends_on_values(op, outside)


def right_axes_of(op: tf.Operation, value_of: Callable[[tf.Tensor], Any]) -> bool:
    """True if all axes that an operation names, if it names any, are axes of its input.

    Args:
        op: the operation.
        value_of: gives the value of a tensor that is known, else None.
    """
    if op.type not in _AXES:
        return True
    axes, rank = value_of(op.inputs[_AXES[op.type]]), op.inputs[0].shape.rank
    if axes is None or rank is None:
        return False
    axes = np.reshape(axes, -1)
    if not np.all((-rank <= axes) & (axes < rank)):
        return False
    is_one_each = len(set((axes % max(rank, 1)).tolist())) == len(axes)
    return is_one_each or op.type == "Roll"


def _has_known_windows(op: tf.Operation) -> bool:
    """True if the extents are known that decide whether filters fit images."""
    images, filters = (t.shape for t in op.inputs)
    if images.rank is None or not filters.is_fully_defined():
        return False
    if op.get_attr("padding") != b"SAME":
        return images[1:].is_fully_defined()
    channels = 1 if op.get_attr("data_format") in (b"NCHW", b"NCDHW") else -1
    return images.as_list()[channels] is not None


def _depends_on_values(op: tf.Operation, outside: Outside) -> bool:
    """True if an operation may fail for some values; without values it does not."""
    if op.type in _DIVISIONS:
        divisor = _tf.static_value(op.inputs[1])
        return op.inputs[1].dtype.is_integer and (divisor is None or not np.all(divisor))
    if op.type == "Pow":
        exponent = _tf.static_value(op.inputs[1])
        return op.inputs[1].dtype.is_integer and (exponent is None or bool(np.any(exponent < 0)))
    if op.type == "Reshape":
        return not _is_new_shape(op, outside)
    if op.type == "GatherV2":
        return not _has_positions(op)
    return op.type in ("GatherNd", *_batching.DECOMPOSITIONS, *_batching.SOLVERS)


def is_count(tensor: tf.Tensor, outside: Outside) -> bool:
    """True if no number of a tensor can be negative: it comes from extents of tensors."""
    stack, seen = [tensor], set()
    while stack:
        tensor = stack.pop()
        if tensor.ref() in seen:
            continue
        seen.add(tensor.ref())
        known = _tf.static_value(tensor)
        if known is not None:
            if np.any(known < 0):
                return False
            continue
        if not tf.is_symbolic_tensor(tensor):
            return False
        if tensor.op.type in ("Rank", "Shape", "Size"):
            continue
        if tensor.op.type == "Placeholder":
            given = outside(tensor)
            if given is None:
                return False
            stack.append(given)
        elif tensor.op.type in _COUNTS:
            stack += list(tensor.op.inputs)[_COUNTS[tensor.op.type]]
        else:
            return False
    return True


def _is_range(op: tf.Operation, outside: Outside) -> bool:
    """True if a range is known not to begin after its end."""
    start, limit, step = op.inputs
    by = _tf.static_value(step)
    if not by:
        return False
    low, high = (start, limit) if by > 0 else (limit, start)
    known = _tf.static_value(low)
    return known is not None and known <= 0 and is_count(high, outside)


def _is_new_shape(op: tf.Operation, outside: Outside) -> bool:
    """True if elements, if there are none too, have the shape that a Reshape gives them."""
    known = tf.get_static_value(op.inputs[1])
    if known is None:
        return is_count(op.inputs[1], outside)
    return bool(np.all(known != 0)) or op.inputs[0].shape.is_fully_defined()


def _has_positions(op: tf.Operation) -> bool:
    """True if a gather's indices are known, and are positions."""
    indices, axis = map(tf.get_static_value, op.inputs[1:])
    if indices is None or axis is None:
        return False
    extent = _tf.known_extent(op.inputs[0], int(axis))
    return extent is not None and bool(np.all((0 <= indices) & (indices < extent)))


def _has_elements(op: tf.Operation) -> bool:
    """True if the elements that an operation looks for are there even if its input has few."""
    if any(tf.get_static_value(position) is None for position in op.inputs[1:]):
        return False
    data = op.inputs[0].shape
    if data.rank is None:
        return False
    if data.is_fully_defined():
        return True
    if op.type == "Slice":  # its shape function lets it have elements of none
        begins, sizes = map(tf.get_static_value, op.inputs[1:])
        parts = zip(data.as_list(), begins, sizes)
        return all(d is not None or (begin == 0 and size <= 0) for d, begin, size in parts)
    with _tf.FuncGraph("tf_ti_few_elements").as_default():
        few = tf.compat.v1.placeholder(op.inputs[0].dtype, [d or 0 for d in data.as_list()])
        rest = [tf.constant(tf.get_static_value(t), t.dtype) for t in op.inputs[1:]]
        try:
            _tf.repeat_operation(op, [few, *rest])
        except (ValueError, tf.errors.OpError):
            return False
    return True
