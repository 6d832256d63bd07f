"""Operations that may fail before a loop that has no iteration, in which they would not run.

A body may well divide by the number of iterations, or read the first of no elements. An operation
whose inputs never go together, as the factors of a product, is no such operation.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _operations, _tf
from tf_ti.loops.passes import batching as _batching

# From a placeholder, the tensor that it gets from outside of its graph; None if that is not known.
Outside = Callable[[tf.Tensor], tf.Tensor | None]
# From a tensor, its value if that is known, else None.
ValueOf = Callable[[tf.Tensor], Any]
ByExtents = Callable[[tf.Operation, ValueOf, Outside], bool]

_NEVER_EMPTY = _operations.noted("never_empty")
_OF_VALUES = _operations.of_kinds("Decomposition", "Solver") | {"GatherNd"}
# Operations whose results are not negative where the values that they read are not.
_COUNTS = (_operations.noted("polynomial") | {"Maximum"}) - {"Neg", "Sub"}
_EXTENTS = _operations.of_kinds("Shape")
_MOST_AXES = 5  # that all kernels take


def may_fail(op: tf.Operation, is_stacked: Sequence[bool], outside: Outside) -> bool:
    """True if an operation may fail outside of a loop that has no iteration in which it would.

    Args:
        op: an operation for which there is a rule.
        is_stacked: which of the inputs that it uses are values of all iterations.
        outside: gives the tensors that a graph gets.
    """
    is_once = not any(is_stacked)
    if op.type in _NEVER_EMPTY and not is_once:
        return True
    if any(t.shape.rank is None or t.shape.rank > _MOST_AXES for t in (*op.inputs, *op.outputs)):
        return True
    if any(tf.get_static_value(t) is None for t in _operations.inputs(op, "ak")):
        return True
    if not all(is_count(t, outside) for t in _operations.inputs(op, "s")):
        return True
    if has_wrong_extents(op, tf.get_static_value, outside):
        return True
    return is_once and _depends_on_values(op, outside)


def has_wrong_extents(op: tf.Operation, value_of: ValueOf, outside: Outside) -> bool:
    """True if axes that an operation names, or extents of its inputs, may be wrong.

    Shape functions let some of them pass.
    """
    if not _has_right_axes(op, value_of):
        return True
    return op.type in BY_EXTENTS and BY_EXTENTS[op.type](op, value_of, outside)


def _has_right_axes(op: tf.Operation, value_of: ValueOf) -> bool:
    """True if all axes that an operation names, if it names any, are axes of its input."""
    for tensor in _operations.inputs(op, "a"):
        axes, rank = value_of(tensor), _operations.inputs(op, "x")[0].shape.rank
        if axes is None or rank is None:
            return False
        axes = np.reshape(axes, -1)
        if not np.all((-rank <= axes) & (axes < rank)):
            return False
        is_one_each = len(set((axes % max(rank, 1)).tolist())) == len(axes)
        if not is_one_each and op.type != "Roll":
            return False
    return True


def _depends_on_values(op: tf.Operation, outside: Outside) -> bool:
    """True if an operation may fail for some values; without values it does not."""
    row = _operations.OPERATIONS.get(op.type)
    if row is not None and row.fails == "OfIntegers":
        given = _tf.static_value(op.inputs[1])
        is_right = np.greater_equal if op.type == "Pow" else np.not_equal
        return op.inputs[1].dtype.is_integer and (given is None or not np.all(is_right(given, 0)))
    if op.type == "Reshape":
        return not _is_new_shape(op, outside)
    if op.type == "GatherV2":
        return not _has_positions(op)
    return op.type in _OF_VALUES


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
        if tensor.op.type in _EXTENTS:
            continue
        if tensor.op.type == "Placeholder":
            given = outside(tensor)
            if given is None:
                return False
            stack.append(given)
        elif tensor.op.type in _COUNTS:
            stack += _operations.inputs(tensor.op, "x")
        else:
            return False
    return True


def _is_new_shape(op: tf.Operation, outside: Outside) -> bool:
    """True if elements, if there are none too, have the shape that a Reshape gives them."""
    known = tf.get_static_value(op.inputs[1])
    if known is None:
        return not op.inputs[0].shape.num_elements() and is_count(op.inputs[1], outside)
    return bool(np.all(known != 0)) or op.inputs[0].shape.is_fully_defined()


def _has_positions(op: tf.Operation) -> bool:
    """True if a gather's indices are known, and are positions."""
    indices, axis = map(tf.get_static_value, op.inputs[1:])
    if indices is None or axis is None:
        return False
    extent = _tf.known_extent(op.inputs[0], int(axis))
    return extent is not None and bool(np.all((0 <= indices) & (indices < extent)))


# --- by extents ----------------------------------------------------------------------------------


def _by_all(op: tf.Operation, value_of: ValueOf, outside: Outside) -> bool:
    """All extents must be known, and there must be elements."""
    return not op.inputs[0].shape.num_elements()


def _by_one_shape(op: tf.Operation, value_of: ValueOf, outside: Outside) -> bool:
    """All extents must be known: then the shape function compares them."""
    return not all(t.shape.is_fully_defined() for t in op.inputs)


def _by_matrix(op: tf.Operation, value_of: ValueOf, outside: Outside) -> bool:
    """The extents of the matrix must be known, and a band within them."""
    dims = op.inputs[0].shape.as_list()[-2:]
    if None in dims or op.type != "MatrixBandPart":
        return None in dims
    bands = [value_of(t) for t in op.inputs[1:]]
    return any(n is None or np.size(n) > 1 or n > d for n, d in zip(bands, dims))


def _by_pixels(op: tf.Operation, value_of: ValueOf, outside: Outside) -> bool:
    """There must be pixels, before and after, and a scale."""
    numbers = [value_of(t) for t in op.inputs[1:3]]
    dims = op.inputs[0].shape.as_list()[1:]
    return not all(dims) or any(n is None or not np.all(n > 0) for n in numbers)


def _by_colors(op: tf.Operation, value_of: ValueOf, outside: Outside) -> bool:
    """There must be three colors, and one number."""
    is_number = all(t.shape.rank == 0 for t in op.inputs[1:])
    return not is_number or op.inputs[0].shape.as_list()[-1] != 3


def _by_scalars(op: tf.Operation, value_of: ValueOf, outside: Outside) -> bool:
    """Inputs beside the first must be single numbers. A new axis must be one of the result."""
    if op.type == "OneHot":
        rank = op.outputs[0].shape.rank
        if rank is None or not -1 <= op.get_attr("axis") < rank:
            return True
    return any(t.shape.rank != 0 for t in _operations.inputs(op, "x") if t is not op.inputs[0])


def _by_lengths(op: tf.Operation, value_of: ValueOf, outside: Outside) -> bool:
    """The input must have as many elements as the transform reads."""
    lengths = value_of(op.inputs[1])
    if lengths is None:
        return True
    given = op.inputs[0].shape.as_list()[-len(lengths) :]
    if op.type.startswith("I"):
        given[-1] = None if given[-1] is None else 2 * given[-1] - 1
    return not all(n is not None and 0 < length <= n for n, length in zip(given, lengths))


def _by_windows(op: tf.Operation, value_of: ValueOf, outside: Outside) -> bool:
    """The extents must be known that decide whether filters fit images."""
    images, filters = (t.shape for t in op.inputs)
    if images.rank is None or not filters.num_elements() or _batching.has_no_gradient(op):
        return True
    axis = 1 if op.get_attr("data_format") in (b"NCHW", b"NCDHW") else -1
    channels, of_filters = images.as_list()[axis], filters.as_list()[-2]
    if channels is None or (op.type == "Conv3D" and channels != of_filters):
        return True
    return op.get_attr("padding") != b"SAME" and not images[1:].is_fully_defined()


def _by_parts(op: tf.Operation, value_of: ValueOf, outside: Outside) -> bool:
    """The extent must be known that parts have together, and these."""
    (data,), (axis,) = (_operations.inputs(op, letter) for letter in "xa")
    if any(value_of(numbers) is None for numbers in _operations.inputs(op, "ar")):
        return True
    return _tf.known_extent(data, int(value_of(axis))) is None


def _by_ends(op: tf.Operation, value_of: ValueOf, outside: Outside) -> bool:
    """A range must not begin after its end."""
    start, limit, step = map(value_of, op.inputs)
    if not step:
        return True
    low, high = (start, limit) if step > 0 else (limit, start)
    if low is None or high is not None:
        return low is None or low > high
    return low > 0 or not is_count(op.inputs[1 if step > 0 else 0], outside)


def _by_first_element(op: tf.Operation, value_of: ValueOf, outside: Outside) -> bool:
    """There must be an element along the axis."""
    axis = value_of(op.inputs[1])
    return axis is None or not _tf.known_extent(op.inputs[0], int(axis))


def _by_elements(op: tf.Operation, value_of: ValueOf, outside: Outside) -> bool:
    """The elements that an operation looks for must be there even if its input has few."""
    numbers = [value_of(position) for position in op.inputs[1:]]
    data = op.inputs[0].shape
    if data.rank is None or any(number is None for number in numbers):
        return True
    if op.type == "TopKV2" and np.any(numbers[0] <= 0):  # its gradient fails
        return True
    if op.type == "Slice":  # its shape function lets it have elements that are not there
        parts = zip(data.as_list(), *numbers)
        return not all(
            begin == 0 and size <= 0 if d is None else 0 <= begin <= begin + max(size, 0) <= d
            for d, begin, size in parts
        )
    if data.is_fully_defined():
        return False
    with _tf.FuncGraph("tf_ti_few_elements").as_default():
        few = tf.compat.v1.placeholder(op.inputs[0].dtype, [d or 0 for d in data.as_list()])
        rest = [tf.constant(number, t.dtype) for number, t in zip(numbers, op.inputs[1:])]
        try:
            _tf.repeat_operation(op, [few, *rest])
        except (ValueError, tf.errors.OpError):
            return True
    return False


# Functions that tell whether extents may be wrong, by the names of operations that fail for some.
BY_EXTENTS: dict[str, ByExtents] = {
    **dict.fromkeys(("AdjustHue", "AdjustSaturation", "HSVToRGB", "RGBToHSV"), _by_colors),
    **dict.fromkeys(("ArgMax", "ArgMin"), _by_first_element),
    "Betainc": _by_one_shape,
    **dict.fromkeys(("MatrixBandPart", "MatrixDiagPartV3", "MatrixSetDiagV3"), _by_matrix),
    **dict.fromkeys(("NthElement", "Slice", "Squeeze", "StridedSlice"), _by_elements),
    **dict.fromkeys(("OneHot", "PadV2"), _by_scalars),
    **dict.fromkeys(("Split", "SplitV"), _by_parts),
    **dict.fromkeys(("TopKV2", "Unpack"), _by_elements),
    **dict.fromkeys(_operations.names(lambda row: "RFFT" in row.name), _by_lengths),
    **dict.fromkeys(_operations.of_kinds("Filter"), _by_windows),
    **dict.fromkeys((*_operations.of_kinds("Pooling"), "MirrorPad"), _by_all),
    **dict.fromkeys(_operations.of_kinds("Resizing"), _by_pixels),
    "Range": _by_ends,
    "Reshape": lambda op, value_of, outside: False,
}
