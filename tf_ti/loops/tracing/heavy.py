"""Heavy operations: a gradient that reads their results reads records, and does not repeat them."""

import math
from collections.abc import Callable

import tensorflow as tf

from tf_ti.loops.tracing import extents as _extents

# The fewest multiplications of a heavy operation, some twenty microseconds' work, and the fewest
# for each element of its result. To write and to read an element takes as long as one or two.
_FEWEST = 2**20
_FEWEST_OF_AN_ELEMENT = 64
# The most bytes of an iteration's records, for each byte of its states and slices.
_MOST_RECORDS = 8


def _elements(tensor: tf.Tensor) -> int:
    return _extents.some_size(tensor) // tensor.dtype.size


def _of_product(op: tf.Operation) -> int:
    """Each element of a product of matrices is a sum over the axis that both have."""
    is_transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    return _elements(op.outputs[0]) * _extents.some_extent(
        op.inputs[0], -2 if is_transposed else -1
    )


def _of_convolution(op: tf.Operation) -> int:
    """Each element of the result is a sum over a window, for each channel that a filter reads."""
    filters = op.inputs[1]
    return (
        _elements(op.outputs[0]) * _elements(filters) // max(1, _extents.some_extent(filters, -1))
    )


def _of_depthwise(op: tf.Operation) -> int:
    return (
        _elements(op.outputs[0])
        * _extents.some_extent(op.inputs[1], 0)
        * _extents.some_extent(op.inputs[1], 1)
    )


def _of_transposed_convolution(op: tf.Operation) -> int:
    """Each element of the input becomes a part of a window, for each channel of the result."""
    filters, given = op.inputs[1], op.inputs[2]
    return _elements(given) * _elements(filters) // max(1, _extents.some_extent(filters, -1))


def _of_decomposition(op: tf.Operation) -> int:
    """Some multiplications for each element of a matrix and each row."""
    matrix = op.inputs[0]
    return (
        8
        * _elements(matrix)
        * min(_extents.some_extent(matrix, -1), _extents.some_extent(matrix, -2))
    )


def _attr(op: tf.Operation, name: str) -> bool:
    return op.get_attr(name) if name in op.node_def.attr else True


def _of_einsum(op: tf.Operation) -> int:
    """One multiplication for each value of all labels."""
    operands, _, _ = op.get_attr("equation").decode().partition("->")
    labels = operands.split(",")
    if len(labels) < 2 or "." in operands:
        return 0
    extents = {
        label: _extents.some_extent(tensor, axis)
        for tensor, given in zip(op.inputs, labels)
        for axis, label in enumerate(given)
    }
    return math.prod(extents.values())


def _of_solution(op: tf.Operation) -> int:
    matrix, right = op.inputs
    return _elements(right) * _extents.some_extent(matrix, -1) + _of_decomposition(op)


_COSTS: dict[str, Callable[[tf.Operation], int]] = {
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul"), _of_product),
    **dict.fromkeys(("Conv2D", "Conv3D"), _of_convolution),
    "DepthwiseConv2dNative": _of_depthwise,
    "Einsum": _of_einsum,
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), _of_transposed_convolution),
    **dict.fromkeys(
        (
            "Cholesky",
            "LogMatrixDeterminant",
            "MatrixDeterminant",
            "MatrixExponential",
            "MatrixInverse",
            "MatrixSquareRoot",
            "Qr",
            "SelfAdjointEigV2",
            "Svd",
        ),
        _of_decomposition,
    ),
    **dict.fromkeys(("MatrixSolve", "MatrixTriangularSolve"), _of_solution),
}


def is_heavy(op: tf.Operation) -> bool:
    """True if it takes longer to compute an operation again than to record its results."""
    if op.type not in _COSTS:
        return False
    fewest = max(_FEWEST, _FEWEST_OF_AN_ELEMENT * sum(map(_elements, op.outputs)))
    return _COSTS[op.type](op) >= fewest


def find(graph: tf.Graph, size_of_iteration: int) -> list[tf.Operation]:
    """The heavy operations whose results a loop records: while there is room, the costliest a byte.

    Args:
        graph: the loop's body.
        size_of_iteration: the bytes of an iteration's states and slices.
    """
    sizes = {
        op: sum(map(_extents.some_size, op.outputs))
        for op in graph.get_operations()
        if is_heavy(op)
    }
    room, found = _MOST_RECORDS * size_of_iteration, []
    for op in sorted(sizes, key=lambda op: sizes[op] / _COSTS[op.type](op)):
        if sizes[op] <= room:
            room -= sizes[op]
            found.append(op)
    return found
