"""Reductions, softmax, normalization."""

from collections.abc import Callable

import tensorflow as tf

from tf_ti import _tf
from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import axes_of, extents, positive, rank_of, static_axes

_MOST_OF_SOFTMAX = 5  # the most axes that TensorFlow's kernels take


def _mean(x: tf.Tensor, axes: list[int] | tf.Tensor, keep: bool) -> tf.Tensor:
    if not x.dtype.is_integer:
        mean = tf.reduce_mean(x, axes, keep)
        if isinstance(axes, list) and all(_tf.known_extent(x, axis) for axis in axes):
            return mean
        return tf.where(tf.size(x) > 0, mean, tf.zeros([], x.dtype))  # 0 of no elements
    sums = tf.reduce_sum(tf.cast(x, tf.int64), axes, keep)
    count = tf.size(x, tf.int64) // tf.maximum(tf.size(sums, tf.int64), 1)
    return tf.cast(tf.truncatediv(sums, tf.maximum(count, 1)), x.dtype)


def _sum_of_magnitudes(x: tf.Tensor, axes: list[int] | tf.Tensor, keep: bool) -> tf.Tensor:
    wide = tf.cast(x, tf.int64) if x.dtype.is_integer else x
    return tf.cast(tf.reduce_sum(tf.abs(wide), axes, keep), x.dtype)


def _norm(x: tf.Tensor, axes: list[int] | tf.Tensor, keep: bool) -> tf.Tensor:
    wide = tf.cast(x, tf.float64) if x.dtype.is_integer else x
    norm = tf.sqrt(tf.reduce_sum(wide * wide, axes, keep))
    return tf.cast(norm, x.dtype)


_REDUCTIONS: dict[str | tuple[str, str], Callable[..., tf.Tensor]] = {
    "ReduceLogicalAnd": tf.reduce_all,
    "ReduceLogicalOr": tf.reduce_any,
    "ReduceMax": tf.reduce_max,
    "ReduceMean": _mean,
    "ReduceMin": tf.reduce_min,
    "ReduceProd": tf.reduce_prod,
    "ReduceSum": tf.reduce_sum,
    ("ReduceL1", "opset4"): _sum_of_magnitudes,
    ("ReduceL2", "opset4"): _norm,
}


def _register(name: str | tuple[str, str], reduce: Callable[..., tf.Tensor]) -> None:
    type, opset = (name, "opset1") if isinstance(name, str) else name

    @register(type, opset)
    def _(op: Operation, x: tf.Tensor, axes: tf.Tensor) -> tf.Tensor:
        axes = axes_of(op, 1, rank_of(op, x))
        if isinstance(axes, list):  # OpenVINO lets a file name an axis twice
            axes = sorted(set(axes))
        return reduce(x, axes, op.flag("keep_dims", False))


for _name, _reduce in _REDUCTIONS.items():
    _register(_name, _reduce)


@register("Softmax", ["opset1", "opset8"])
def _softmax(op: Operation, x: tf.Tensor) -> tf.Tensor:
    axis = op.axis(op.integer("axis", 1), rank_of(op, x))
    if rank_of(op, x) <= _MOST_OF_SOFTMAX:
        return tf.nn.softmax(x, axis)
    moved = tf.experimental.numpy.moveaxis(x, axis, -1)
    rows = tf.reshape(moved, [-1, extents(moved)[-1]])
    y = tf.reshape(tf.nn.softmax(rows), tf.shape(moved))
    return tf.experimental.numpy.moveaxis(y, -1, axis)


@register("LogSoftmax", "opset5")
def _log_softmax(op: Operation, x: tf.Tensor) -> tf.Tensor:
    return tf.nn.log_softmax(x, op.axis(op.integer("axis", -1), rank_of(op, x)))


def _along_channels(op: Operation, x: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
    """Reshapes vectors with a number for each channel to broadcast along axis 1."""
    shape = [1, -1, *[1] * (rank_of(op, x) - 2)]
    return [tf.reshape(value, shape) for value in values]


@register("BatchNormInference", "opset1")
def _batch_norm_of_old(
    op: Operation,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    x: tf.Tensor,
    mean: tf.Tensor,
    variance: tf.Tensor,
) -> tf.Tensor:
    return _normalize(op, x, gamma, beta, mean, variance)


@register("BatchNormInference", "opset5")
def _batch_norm(
    op: Operation,
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    mean: tf.Tensor,
    variance: tf.Tensor,
) -> tf.Tensor:
    return _normalize(op, x, gamma, beta, mean, variance)


def _normalize(
    op: Operation,
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    mean: tf.Tensor,
    variance: tf.Tensor,
) -> tf.Tensor:
    epsilon = tf.cast(op.number("epsilon"), x.dtype)
    gamma, beta, mean, variance = _along_channels(op, x, gamma, beta, mean, variance)
    return (x - mean) / tf.sqrt(variance + epsilon) * gamma + beta


@register("GroupNormalization", "opset12")
def _group_normalization(
    op: Operation, x: tf.Tensor, scale: tf.Tensor, bias: tf.Tensor
) -> tf.Tensor:
    groups, epsilon = op.integer("num_groups"), tf.cast(op.number("epsilon"), x.dtype)
    shape = tf.shape(x)
    grouped = tf.reshape(x, [extents(x)[0], groups, -1])
    mean, variance = tf.nn.moments(grouped, [2], keepdims=True)
    grouped = (grouped - mean) / tf.sqrt(variance + epsilon)
    scale, bias = _along_channels(op, x, scale, bias)
    return tf.reshape(grouped, shape) * scale + bias


@register("MVN", "opset2")
def _mvn_of_old(op: Operation, x: tf.Tensor) -> tf.Tensor:
    rank = rank_of(op, x)
    if "reduction_axes" in op.layer.attributes:
        axes = [op.axis(axis, rank) for axis in op.integers("reduction_axes")]
    else:
        axes = list(range(1 if op.flag("across_channels", False) else 2, rank))
    return _mvn(op, x, axes, "inside_sqrt")


@register("MVN", "opset6")
def _mvn_by_axes(op: Operation, x: tf.Tensor, axes: tf.Tensor) -> tf.Tensor:
    mode = op.text("eps_mode", "inside_sqrt", among=("inside_sqrt", "outside_sqrt"))
    return _mvn(op, x, axes_of(op, 1, rank_of(op, x)), mode)


def _mvn(op: Operation, x: tf.Tensor, axes: list[int] | tf.Tensor, mode: str) -> tf.Tensor:
    epsilon = tf.cast(op.number("eps", 1e-9), x.dtype)
    centred = x - tf.reduce_mean(x, axes, keepdims=True)
    if not op.flag("normalize_variance", True):
        return centred
    variance = tf.reduce_mean(centred * centred, axes, keepdims=True)
    if mode == "inside_sqrt":
        return centred / tf.sqrt(variance + epsilon)
    return centred / (tf.sqrt(variance) + epsilon)


@register("NormalizeL2")
def _normalize_l2(op: Operation, x: tf.Tensor, axes: tf.Tensor) -> tf.Tensor:
    mode = op.text("eps_mode", among=("add", "max"))
    epsilon = tf.cast(op.number("eps"), x.dtype)
    axes = axes_of(op, 1, rank_of(op, x))
    if isinstance(axes, list) and not axes:  # each number is divided by itself
        return tf.cast(tf.not_equal(x, 0), x.dtype)
    squares = tf.reduce_sum(x * x, axes, keepdims=True)
    return x / tf.sqrt(squares + epsilon if mode == "add" else tf.maximum(squares, epsilon))


@register("GRN")
def _grn(op: Operation, x: tf.Tensor) -> tf.Tensor:
    if rank_of(op, x) < 2:
        raise op.error(f"data has {x.shape.rank} dimensions, and no channels")
    squares = tf.reduce_sum(x * x, 1, keepdims=True)
    return x / tf.sqrt(squares + tf.cast(op.number("bias"), x.dtype))


@register("LRN")
def _lrn(op: Operation, x: tf.Tensor, axes: tf.Tensor) -> tf.Tensor:
    size, bias = positive(op, "size"), tf.cast(op.number("bias"), x.dtype)
    alpha, beta = (tf.cast(op.number(name), x.dtype) for name in ("alpha", "beta"))
    axes = static_axes(op, 1, rank_of(op, x))
    sums = x * x
    for axis in axes:
        sums = _window_sums(sums, axis, size)
    count = tf.cast(size ** len(axes), x.dtype)
    return x / tf.pow(bias + alpha * sums / count, beta)


def _window_sums(x: tf.Tensor, axis: int, size: int) -> tf.Tensor:
    """Sums of each number and its neighbours, as a product with a band matrix.

    As in OpenVINO there are as many on both sides, and of an even size one less in all.
    """
    extent, beside = extents(x)[axis], (size - 1) // 2
    band = tf.linalg.band_part(tf.ones([extent, extent], x.dtype), beside, beside)
    return product_along(x, band, axis)


def product_along(x: tf.Tensor, matrix: tf.Tensor, axis: int) -> tf.Tensor:
    """The product of a matrix with the vectors along an axis."""
    rank = x.shape.rank
    product = tf.tensordot(x, matrix, [[axis], [1]])
    return tf.transpose(product, [*range(axis), rank - 1, *range(axis, rank - 1)])


@register("SegmentMax", "opset16")
def _segment_max(
    op: Operation, x: tf.Tensor, segments: tf.Tensor, count: tf.Tensor | None = None
) -> tf.Tensor:
    fill = op.text("fill_mode", among=("ZERO", "LOWEST"))
    if rank_of(op, segments) != 1:
        raise op.error(f"segment_ids have {segments.shape.rank} dimensions, not 1")
    if count is None:
        count = tf.reduce_max(tf.pad(segments, [[1, 0]], constant_values=-1)) + 1
    count = tf.cast(tf.reshape(count, []), segments.dtype)
    segments = tf.where(segments < count, segments, -1)  # those beyond the last are dropped
    largest = tf.math.unsorted_segment_max(x, segments, count)
    if fill == "LOWEST":
        return largest
    rows = tf.math.unsorted_segment_sum(tf.ones_like(segments), segments, count)
    shape = [-1] + [1] * (rank_of(op, x) - 1)
    return tf.where(tf.reshape(rows > 0, shape), largest, tf.zeros([], x.dtype))
