"""Bands and diagonals of matrices; determinants, inverses and solutions by elimination."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti.openvino.writer.conversion import Node, composes, writes
from tf_ti.openvino.writer.network import Operand, Port


def _extents(matrices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    shape = tf.shape(matrices)
    return shape[-2], shape[-1]


def _zero(tensor: tf.Tensor) -> tf.Tensor:
    return tf.zeros([], tensor.dtype)


@composes("MatrixBandPart")
def _band_part(op: Node, matrices: tf.Tensor, lower: tf.Tensor, upper: tf.Tensor) -> tf.Tensor:
    lower, upper = (tf.cast(number, tf.int32) for number in (lower, upper))
    num_rows, num_columns = _extents(matrices)
    below = tf.range(num_rows)[:, tf.newaxis] - tf.range(num_columns)
    is_inside = ((lower < 0) | (below <= lower)) & ((upper < 0) | (-below <= upper))
    return tf.where(is_inside, matrices, _zero(matrices))


# --- diagonals -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Band:
    """Diagonals from `lower` to `upper`, counted from the main one, of matrices of some extents.

    Attributes:
        align: which diagonals end, rather than begin, where their rows do: "RIGHT_LEFT" those above
            the main one, and so on.
    """

    lower: int
    upper: int
    align: str
    num_rows: Any
    num_columns: Any

    @property
    def count(self) -> int:
        return self.upper - self.lower + 1

    def lengths(self, diagonal: Any) -> Any:
        below, above = tf.minimum(diagonal, 0), tf.maximum(diagonal, 0)
        return tf.minimum(self.num_rows + below, self.num_columns - above)

    def offsets(self, diagonal: Any, length: Any) -> Any:
        """Where the elements of a diagonal begin in its row, which has a length."""
        above, below = self.align.split("_")
        begins = tf.zeros_like(diagonal) == 1
        if above == "LEFT":
            begins |= diagonal >= 0
        if below == "LEFT":
            begins |= diagonal <= 0
        return tf.where(begins, 0, length - self.lengths(diagonal))


def _band(op: Node, k: tf.Tensor | None, num_rows: Any, num_columns: Any) -> _Band:
    if k is None:
        return _Band(0, 0, "LEFT_LEFT", num_rows, num_columns)
    known = tf.get_static_value(k)
    if known is None:
        raise op.error("which diagonals it has must be known")
    lower, upper = int(known.min()), int(known.max())
    has_align = op.op.type.endswith("V3")
    return _Band(
        lower, upper, op.attr("align") if has_align else "LEFT_LEFT", num_rows, num_columns
    )


def _with_diagonals(matrices: tf.Tensor, band: _Band, diagonals: tf.Tensor) -> tf.Tensor:
    """The matrices with other diagonals. A scalar stands for a matrix of it."""
    shape = tf.shape(diagonals)
    length = shape[-1]
    if band.count > 1:
        diagonals = tf.reshape(diagonals, tf.concat([shape[:-2], [band.count * length]], 0))
    row = tf.range(band.num_rows)[:, tf.newaxis]
    column = tf.range(band.num_columns)
    diagonal = column - row
    is_inside = (diagonal >= band.lower) & (diagonal <= band.upper)
    place = tf.minimum(row, column) + band.offsets(diagonal, length)
    place += (band.upper - diagonal) * length
    found = tf.gather(diagonals, tf.where(is_inside, place, 0), axis=-1)
    return tf.where(is_inside, found, matrices)


@composes("MatrixDiag", "MatrixDiagV2", "MatrixDiagV3")
def _diag(
    op: Node,
    diagonals: tf.Tensor,
    k: tf.Tensor | None = None,
    num_rows: tf.Tensor | int = -1,
    num_columns: tf.Tensor | int = -1,
    padding: tf.Tensor | None = None,
) -> tf.Tensor:
    length = tf.shape(diagonals)[-1]
    band = _band(op, k, None, None)
    least = length - min(band.upper, 0), length + max(band.lower, 0)
    given = [tf.get_static_value(number) for number in (num_rows, num_columns)]
    if None in given:
        raise op.error("whether its numbers of rows and columns are -1 must be known")
    if given == [-1, -1]:
        extents = [tf.maximum(*least)] * 2
    else:
        extents = [few if number == -1 else number for number, few in zip(given, least)]
    band = dataclasses.replace(band, num_rows=extents[0], num_columns=extents[1])
    return _with_diagonals(_zero(diagonals) if padding is None else padding, band, diagonals)


@composes("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def _set_diag(
    op: Node, matrices: tf.Tensor, diagonals: tf.Tensor, k: tf.Tensor | None = None
) -> tf.Tensor:
    return _with_diagonals(matrices, _band(op, k, *_extents(matrices)), diagonals)


@composes("MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3")
def _diag_part(
    op: Node, matrices: tf.Tensor, k: tf.Tensor | None = None, padding: tf.Tensor | None = None
) -> tf.Tensor:
    shape = tf.shape(matrices)
    band = _band(op, k, *_extents(matrices))
    diagonal = tf.range(band.upper, band.lower - 1, -1)[:, tf.newaxis]
    lengths = band.lengths(diagonal)
    length = tf.reduce_max(lengths)
    along = tf.range(length) - band.offsets(diagonal, length)
    is_inside = (along >= 0) & (along < lengths)
    place = (along - tf.minimum(diagonal, 0)) * band.num_columns + along + tf.maximum(diagonal, 0)
    flat = tf.reshape(matrices, tf.concat([shape[:-2], [shape[-2] * shape[-1]]], 0))
    found = tf.gather(flat, tf.where(is_inside, place, 0), axis=-1)
    found = tf.where(is_inside, found, _zero(matrices) if padding is None else padding)
    return found if band.count > 1 else tf.squeeze(found, -2)


@composes("DiagPart")
def _diagonal_of_tensor(op: Node, x: tf.Tensor) -> tf.Tensor:
    shape = tf.shape(x)[: x.shape.rank // 2]
    count = tf.reduce_prod(shape)
    return tf.reshape(tf.linalg.diag_part(tf.reshape(x, tf.stack([count, count]))), shape)


@composes("Diag")
def _diag_of_tensor(op: Node, diagonal: tf.Tensor) -> tf.Tensor:
    shape = tf.shape(diagonal)
    return tf.reshape(tf.linalg.diag(tf.reshape(diagonal, [-1])), tf.concat([shape, shape], 0))


# --- elimination ---------------------------------------------------------------------------------


def _loop(count: tf.Tensor, step: Callable[..., list[tf.Tensor]], *states: tf.Tensor) -> Any:
    """The states after as many steps as a matrix has rows."""
    counter = tf.zeros([], tf.int32)
    shapes = [counter.shape, *(state.shape for state in states)]
    return tf.while_loop(
        lambda k, *states: k < count,
        lambda k, *states: [k + 1, *step(k, *states)],
        [counter, *states],
        shapes,
    )[1:]


def _solution(matrices: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """By Gauss and Jordan, with pivots."""
    count = tf.shape(matrices)[-1]
    rows = tf.range(count)
    both = tf.concat([matrices, right], -1)

    def step(k: tf.Tensor, both: tf.Tensor) -> list[tf.Tensor]:
        column = tf.gather(both, k, axis=-1)
        candidates = tf.where(rows >= k, tf.abs(column), tf.constant(-1, column.dtype))
        pivot = tf.argmax(candidates, -1, tf.int32)[..., tf.newaxis]
        is_pivot, is_row = rows == pivot, rows == k
        row_of_pivot = _sum_where(is_pivot, both)
        row = tf.gather(both, k, axis=-2)
        both = tf.where(is_pivot[..., tf.newaxis], row[..., tf.newaxis, :], both)
        value = tf.gather(row_of_pivot, k, axis=-1)
        scaled = row_of_pivot / value[..., tf.newaxis]
        factors = tf.gather(both, k, axis=-1)[..., tf.newaxis]
        reduced = both - factors * scaled[..., tf.newaxis, :]
        return [tf.where(is_row[:, tf.newaxis], scaled[..., tf.newaxis, :], reduced)]

    return _loop(count, step, both)[0][..., count:]


def _sum_where(is_row: tf.Tensor, matrices: tf.Tensor) -> tf.Tensor:
    """The one row of each matrix."""
    rows = tf.where(is_row[..., tf.newaxis], matrices, _zero(matrices))
    return tf.reduce_sum(rows, -2)


@writes("MatrixInverse")
def _inverse(op: Node, matrices: Operand) -> Port:
    if op.attr("adjoint"):
        rank = op.rank(0)
        order = np.asarray([*range(rank - 2), rank - 1, rank - 2])
        matrices = op.add("Transpose", matrices, order)
    return op.add("Inverse", matrices, version="opset14", adjoint=False)


def _factors(matrices: tf.Tensor) -> list[tf.Tensor]:
    """Both triangular factors in one matrix, the order of the rows, and its sign."""
    count = tf.shape(matrices)[-1]
    numbers, zero = tf.range(count), _zero(matrices)

    def step(k: tf.Tensor, rest: tf.Tensor, order: tf.Tensor, sign: tf.Tensor) -> list[tf.Tensor]:
        sizes = tf.where(numbers >= k, tf.abs(tf.gather(rest, k, axis=-1)), zero - 1)
        pivot = tf.argmax(sizes, -1, tf.int32)[..., tf.newaxis]
        is_pivot, is_row, is_after = numbers == pivot, numbers == k, numbers > k
        row = _sum_where(is_pivot, rest)
        rest = tf.where(
            is_pivot[..., tf.newaxis], tf.gather(rest, k, axis=-2)[..., tf.newaxis, :], rest
        )
        rest = tf.where(is_row[:, tf.newaxis], row[..., tf.newaxis, :], rest)
        first, last = tf.gather(order, k, axis=-1), tf.reduce_sum(tf.where(is_pivot, order, 0), -1)
        order = tf.where(is_pivot, first[..., tf.newaxis], order)
        order = tf.where(is_row, last[..., tf.newaxis], order)
        parts = tf.math.divide_no_nan(
            tf.gather(rest, k, axis=-1), tf.gather(row, k, axis=-1)[..., tf.newaxis]
        )
        parts = tf.where(is_after, parts, zero)[..., tf.newaxis]
        rest -= parts * tf.where(is_after, row, zero)[..., tf.newaxis, :]
        rest = tf.where(is_after[:, tf.newaxis] & is_row, parts, rest)
        return [rest, order, tf.where(pivot[..., 0] == k, sign, -sign)]

    sign = tf.ones(tf.shape(matrices)[:-2], matrices.dtype)
    sign.set_shape(matrices.shape[:-2])
    order = tf.zeros_like(sign, tf.int32)[..., tf.newaxis] + numbers
    order.set_shape(matrices.shape[:-1])
    return _loop(count, step, matrices, order, sign)


@composes("Lu")
def _lu(op: Node, matrices: tf.Tensor) -> list[tf.Tensor]:
    factors, order, _ = _factors(matrices)
    return [factors, tf.cast(order, op.op.outputs[1].dtype)]


@composes("MatrixDeterminant")
def _determinant(op: Node, matrices: tf.Tensor) -> tf.Tensor:
    factors, _, sign = _factors(matrices)
    return sign * tf.reduce_prod(tf.linalg.diag_part(factors), -1)


@composes("LogMatrixDeterminant")
def _log_determinant(op: Node, matrices: tf.Tensor) -> list[tf.Tensor]:
    factors, _, sign = _factors(matrices)
    diagonal = tf.linalg.diag_part(factors)
    sign *= tf.reduce_prod(tf.sign(diagonal), -1)
    return [sign, tf.reduce_sum(tf.math.log(tf.abs(diagonal)), -1)]


@composes("MatrixSolve")
def _solve(op: Node, matrices: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    if op.attr("adjoint"):
        matrices = tf.linalg.matrix_transpose(matrices)
    return _solution(matrices, right)


@composes("MatrixTriangularSolve")
def _triangular_solve(op: Node, matrices: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    sides = (-1, 0) if op.attr("lower") else (0, -1)
    matrices = tf.linalg.band_part(matrices, *sides)
    if op.attr("adjoint"):
        matrices = tf.linalg.matrix_transpose(matrices)
    batch = tf.broadcast_dynamic_shape(tf.shape(matrices)[:-2], tf.shape(right)[:-2])
    matrices = tf.broadcast_to(matrices, tf.concat([batch, tf.shape(matrices)[-2:]], 0))
    right = tf.broadcast_to(right, tf.concat([batch, tf.shape(right)[-2:]], 0))
    return _solution(matrices, right)


@composes("Cholesky")
def _cholesky(op: Node, matrices: tf.Tensor) -> tf.Tensor:
    """The columns follow one another; each is divided by the root of its diagonal element."""
    count = tf.shape(matrices)[-1]
    rows = tf.range(count)

    def step(k: tf.Tensor, root: tf.Tensor) -> list[tf.Tensor]:
        row = tf.gather(root, k, axis=-2)
        column = tf.gather(matrices, k, axis=-1) - tf.linalg.matvec(root, row)
        column /= tf.sqrt(tf.gather(column, k, axis=-1))[..., tf.newaxis]
        column = tf.where(rows >= k, column, _zero(matrices))
        return [tf.where(rows == k, column[..., tf.newaxis], root)]

    return _loop(count, step, tf.zeros_like(matrices))[0]


@composes("Cross")
def _cross(op: Node, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    def turned(tensor: tf.Tensor, by: int) -> tf.Tensor:
        return tf.gather(tensor, [(k + by) % 3 for k in range(3)], axis=-1)

    return turned(x, 1) * turned(y, 2) - turned(x, 2) * turned(y, 1)
