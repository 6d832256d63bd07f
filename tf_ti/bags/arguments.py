"""The arguments that look-ups are called with: their types and shapes."""

import numbers
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

from tf_ti import _arguments, _tf
from tf_ti.bags.ops import HALVES, NUMBERS, Table

Reduction = Literal["sum", "mean", "max"]
Combiner = Literal["sum", "mean", "sqrtn", "max"]
_REDUCTIONS = get_args(Reduction)
_COMBINERS = get_args(Combiner)


def check_combiner(combiner: Any, weights: Any) -> None:
    if combiner not in _COMBINERS:
        raise ValueError(f"combiner must be one of {', '.join(_COMBINERS)}, got {combiner!r}")
    if combiner == "max" and weights is not None:
        raise ValueError("combiner 'max' takes no weights")


def check_reduction(reduction: Any, per_sample_weights: Any) -> None:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}")
    if reduction != "sum" and per_sample_weights is not None:
        raise ValueError(f"per_sample_weights need the reduction 'sum', got {reduction!r}")


def check_combinable(reduction: str, dtype: tf.DType) -> None:
    if reduction == "sqrtn" and dtype.is_integer:
        raise TypeError(f"sqrtn needs a table of floats, got {dtype.name}")
    if reduction == "max" and dtype.is_complex:
        raise TypeError(f"max needs numbers that have an order, got {dtype.name}")


def is_sharded(emb_table: Any) -> bool:
    return isinstance(emb_table, (list, tuple)) and all(map(_is_table, emb_table))


def _is_table(value: Any) -> bool:
    kinds = (tf.Tensor, tf.Variable, np.ndarray, _tf.ShardedVariable)
    return isinstance(value, kinds) or hasattr(value, "handle")


def to_table(emb_table: Any) -> Table:
    emb_table = _tf.unwrap_variable(emb_table)
    if isinstance(emb_table, tf.distribute.DistributedValues):
        if tf.distribute.in_cross_replica_context():
            emb_table = emb_table.values[0]  # every replica's is the same
    # A variable of TensorFlow 1 has no handle.
    if isinstance(emb_table, tf.Variable) and hasattr(emb_table, "handle"):
        _arguments.check_reachable("emb_table", emb_table)
        _tf.variable_accessed(emb_table)
        table = Table(emb_table.handle, tf.as_dtype(emb_table.dtype), emb_table)
    elif isinstance(emb_table, _tf.ShardedVariable):  # which TensorFlow would concatenate
        raise TypeError(
            "emb_table must be no ShardedVariable here, and no list of them: tf_ti.embedding_bag "
            "takes one as it is"
        )
    else:
        tensor = _arguments.to_tensor("emb_table", emb_table)
        table = Table(tensor, tensor.dtype)
    if table.dtype not in NUMBERS:
        raise TypeError(f"emb_table must be of a numeric dtype, got {table.dtype.name}")
    if table.value.shape.rank == 0:
        raise ValueError("emb_table must have rank 1 or more, got a scalar")
    return table


def to_indices(label: str, value: Any, rank: int | None, like: Any = None) -> tf.Tensor:
    """A tensor of int32 or int64; Python numbers become what `like` is, or int32."""
    if not hasattr(value, "dtype") and getattr(like, "dtype", None) in (tf.int32, tf.int64):
        tensor = _numbers(label, value, tf.as_dtype(like.dtype))
    elif not tf.nest.flatten(value):  # of which TensorFlow would make floats
        tensor = _numbers(label, value, tf.int32)
    else:
        tensor = as_index_type(label, _arguments.to_tensor(label, value))
    if rank is not None and tensor.shape.rank not in (None, rank):
        raise ValueError(f"{label} must have rank {rank}, got shape {tensor.shape}")
    return tensor


def as_index_type(label: str, tensor: tf.Tensor) -> tf.Tensor:
    """As int32 or int64, of which the kernels take indices, whichever holds the tensor's dtype."""
    dtype = tensor.dtype
    if dtype in (tf.int32, tf.int64):
        return tensor
    if not dtype.is_integer:
        raise TypeError(f"{label} must be of an integer dtype, got {dtype.name}")
    if dtype == tf.uint64:
        # A number that is too large must not become another one that is a row, padding or -1.
        tensor = tf.minimum(tensor, tf.constant(tf.int64.max, tf.uint64))
    return tf.cast(tensor, tf.int32 if dtype.size < 4 else tf.int64)


def _numbers(label: str, value: Any, dtype: tf.DType) -> tf.Tensor:
    for number in tf.nest.flatten(value):
        # TensorFlow would make numbers of the former, and wrap the latter around.
        if isinstance(number, bool):
            raise TypeError(f"{label} must be {dtype.name}, got {number}")
        if isinstance(number, numbers.Integral) and not dtype.min <= number <= dtype.max:
            raise ValueError(f"{label} must be {dtype.name}, got {number}")
    try:
        return tf.convert_to_tensor(value, dtype)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise type(error)(f"{label} must be {dtype.name}: {error}") from error


def same_type(*tensors: tf.Tensor | None) -> Sequence[tf.Tensor | None]:
    dtypes = [tensor.dtype for tensor in tensors if tensor is not None]
    if dtypes.count(dtypes[0]) == len(dtypes):
        return tensors
    return [None if tensor is None else tf.cast(tensor, tf.int64) for tensor in tensors]


def to_padding_idx(padding_idx: Any, dtype: tf.DType) -> int | None:
    if padding_idx is None:
        return None
    if isinstance(padding_idx, bool) or not hasattr(padding_idx, "__index__"):
        raise TypeError(f"padding_idx must be an int or None, got {padding_idx!r}")
    padding_idx = int(padding_idx)
    return padding_idx if dtype.min <= padding_idx <= dtype.max else None  # no index is equal to it


def to_weights(label: str, weights: Any, dtype: tf.DType, indices: tf.Tensor) -> tf.Tensor:
    if hasattr(weights, "dtype"):
        weights = _arguments.to_tensor(label, weights)
    else:
        try:
            weights = tf.convert_to_tensor(weights, dtype)
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise type(error)(f"{label} must be {dtype.name} like emb_table: {error}") from error
    if weights.dtype != dtype and not (dtype in HALVES and weights.dtype == tf.float32):
        also = ", or float32" if dtype in HALVES else ""
        raise TypeError(
            f"{label} must be {dtype.name} like emb_table{also}, got {weights.dtype.name}"
        )
    check_shape(label, weights.shape, "the indices", indices.shape)
    return weights


def cast_weights(weights: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """As tf.nn does: to the table's type, or to float32 where that is a half precision."""
    weights = _arguments.to_tensor("weights", weights)
    if weights.dtype == dtype or not (weights.dtype.is_floating and dtype.is_floating):
        return weights
    return tf.cast(weights, tf.float32 if dtype in HALVES else dtype)


def check_shape(
    label: str, shape: tf.TensorShape, expected_label: str, expected: tf.TensorShape
) -> None:
    if not shape.is_compatible_with(expected):
        raise ValueError(
            f"{label} must have the shape of {expected_label}, {expected}, got {shape}"
        )


def asserting_same(
    expected: Sequence[tf.Tensor], given: Sequence[tf.Tensor], message: str, prefix: str
):
    """A context whose ops run only if the tensors are equal. The same tensor costs nothing."""
    checks = []
    for e, g in zip(expected, given):
        if e is g:
            continue
        if not g.shape.is_compatible_with(e.shape):
            raise ValueError(f"{message}, of shape {e.shape}, got {g.shape}")
        e, g = tf.cast(e, tf.int64), tf.cast(g, tf.int64)
        sizes = tf.debugging.assert_equal(tf.shape(g), tf.shape(e), prefix + message)
        with tf.control_dependencies(as_operations(sizes)):
            checks += as_operations(tf.debugging.assert_equal(g, e, prefix + message))
    return tf.control_dependencies(checks)


def as_operations(op: tf.Operation | None) -> list[tf.Operation]:
    return [] if op is None else [op]  # an eager assertion is none
