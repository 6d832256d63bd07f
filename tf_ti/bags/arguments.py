"""The arguments that look-ups are called with: their types and shapes.

Functions named `to_` convert an argument, or raise an error that names it. They look at the values
of tensors only where two of them must be the same.
"""

import contextlib
import math
import numbers
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti._arguments import as_operations, check_reachable, on_host, to_tensor
from tf_ti.bags.ops import HALVES, NUMBERS, Table
from tf_ti.bags.pooling import Lookup

Reduction = Literal["sum", "mean", "max"]
Combiner = Literal["sum", "mean", "sqrtn", "max"]
# The kernels take indices of these.
_INDEX_TYPES = frozenset({tf.int32, tf.int64})
# The least and the greatest number of each, which TensorFlow computes anew when it is asked.
_RANGES = {dtype: (dtype.min, dtype.max) for dtype in _INDEX_TYPES}
_REDUCTIONS = get_args(Reduction)
_COMBINERS = get_args(Combiner)


# Reductions


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
    """Refuses a table of numbers that the reduction is not defined for."""
    if reduction == "sqrtn" and dtype.is_integer:
        raise TypeError(f"sqrtn needs a table of floats, got {dtype.name}")
    if reduction == "max" and dtype.is_complex:
        raise TypeError(f"max needs numbers that have an order, got {dtype.name}")


# Tables


def to_shards(emb_table: Any, partition_strategy: str) -> list[Table]:
    """The shards of a table; one, where it is whole."""
    if partition_strategy not in ("div", "mod"):
        raise ValueError(f"partition_strategy must be div or mod, got {partition_strategy!r}")
    if isinstance(emb_table, _tf.ShardedVariable):
        if partition_strategy != "div":
            raise ValueError(
                "partition_strategy must be 'div' for a ShardedVariable, whose first shard has the "
                f"first rows; got {partition_strategy!r}"
            )
        emb_table = list(emb_table.variables)
    if not is_sharded(emb_table):
        return [to_table(emb_table)]
    if not emb_table:
        raise ValueError("emb_table must have at least one shard, got an empty list")
    return [to_table(shard) for shard in emb_table]


def is_sharded(emb_table: Any) -> bool:
    return isinstance(emb_table, (list, tuple)) and all(map(_is_table, emb_table))


def _is_table(value: Any) -> bool:
    kinds = (tf.Tensor, tf.Variable, np.ndarray, _tf.ShardedVariable)
    return isinstance(value, kinds) or _tf.has_handle(value)


def to_table(emb_table: Any) -> Table:
    emb_table = _tf.of_one_copy(_tf.unwrap_variable(emb_table))
    if isinstance(emb_table, tf.Variable) and _tf.has_handle(emb_table):
        check_reachable("emb_table", emb_table)
        _tf.variable_accessed(emb_table)
        table = Table(emb_table.handle, emb_table.dtype, emb_table)
    elif isinstance(emb_table, _tf.ShardedVariable):  # which TensorFlow would concatenate
        raise TypeError(
            "emb_table must be no ShardedVariable here, and no list of them: tf_ti.embedding_bag "
            "takes one as it is"
        )
    else:
        tensor = to_tensor("emb_table", emb_table)
        table = Table(tensor, tensor.dtype)
    if table.dtype not in NUMBERS:
        raise TypeError(f"emb_table must be of a numeric dtype, got {table.dtype.name}")
    if table.value.shape.rank == 0:
        raise ValueError("emb_table must have rank 1 or more, got a scalar")
    return table


# Indices


def to_ids(ids: Any) -> tf.RaggedTensor | tf.SparseTensor | tf.Tensor:
    """Ids of int32 or int64, of the kind that they are of."""
    if not isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
        try:
            ids = to_indices("ids", ids, None)
        except TypeError as error:
            raise TypeError(
                f"{error}; the table is the first argument, ids are the second"
            ) from error
        if ids.shape.rank == 0:
            raise ValueError("ids must have rank 1 or more, got a scalar")
        return ids
    if ids.dtype in _INDEX_TYPES:
        return ids
    if isinstance(ids, tf.SparseTensor):
        return ids.with_values(as_index_type("ids", ids.values))
    return ids.with_flat_values(as_index_type("ids", ids.flat_values))


def to_indices(label: str, value: Any, rank: int | None, like: Any = None) -> tf.Tensor:
    """A tensor of int32 or int64; Python numbers take the type of `like`, or int32."""
    if isinstance(value, _tf.EagerTensor) or hasattr(value, "dtype"):
        tensor = as_index_type(label, to_tensor(label, value))
    elif getattr(like, "dtype", None) in _INDEX_TYPES:
        tensor = _numbers(label, value, tf.as_dtype(like.dtype))
    elif not tf.nest.flatten(value):  # of which TensorFlow would make floats
        tensor = _numbers(label, value, tf.int32)
    else:
        tensor = as_index_type(label, to_tensor(label, value))
    if rank is not None and tensor.shape.rank not in (None, rank):
        raise ValueError(f"{label} must have rank {rank}, got shape {tensor.shape}")
    return tensor


def as_index_type(label: str, tensor: tf.Tensor) -> tf.Tensor:
    """As int32 or int64, whichever holds the tensor's dtype."""
    dtype = tensor.dtype
    if dtype in _INDEX_TYPES:
        return tensor
    if not dtype.is_integer:
        raise TypeError(f"{label} must be of an integer dtype, got {dtype.name}")
    if dtype == tf.uint64:
        # A number that is too large must not become another one that is a row, padding or -1.
        tensor = tf.minimum(tensor, tf.constant(tf.int64.max, tf.uint64))
    return tf.cast(tensor, tf.int32 if dtype.size < 4 else tf.int64)


def _numbers(label: str, value: Any, dtype: tf.DType) -> tf.Tensor:
    least, greatest = _RANGES[dtype]
    for number in tf.nest.flatten(value):
        # TensorFlow would make numbers of the former, and wrap the latter around.
        if isinstance(number, bool):
            raise TypeError(f"{label} must be {dtype.name}, got {number}")
        if isinstance(number, numbers.Integral) and not least <= number <= greatest:
            raise ValueError(f"{label} must be {dtype.name}, got {number}")
    try:
        return tf.convert_to_tensor(value, dtype)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise type(error)(f"{label} must be {dtype.name}: {error}") from error


def to_host_index(label: str, value: Any, like: Any) -> tf.Tensor:
    """A scalar of `to_indices` that ops take in the host's memory."""
    with on_host():
        return to_indices(label, value, None, like)


def to_default_index(default_index: Any, like: Any) -> tf.Tensor | None:
    if default_index is None:
        return None
    return to_host_index("default_index", default_index, like)


def check_padding_idx(padding_idx: Any) -> None:
    if padding_idx is None:
        return
    if isinstance(padding_idx, bool) or not hasattr(padding_idx, "__index__"):
        raise TypeError(f"padding_idx must be an int or None, got {padding_idx!r}")


def to_padding_idx(padding_idx: Any, ids: Any) -> int | None:
    """None also for a number that none of the ids can be equal to, because of their dtype."""
    if padding_idx is None:
        return None
    check_padding_idx(padding_idx)
    padding_idx = int(padding_idx)
    least, greatest = _RANGES[ids.dtype]
    return padding_idx if least <= padding_idx <= greatest else None


# Weights


def to_weights(label: str, weights: Any, dtype: tf.DType, indices: tf.Tensor) -> tf.Tensor | None:
    """Weights in the shape of the indices, for a table of that dtype."""
    if weights is None:
        return None
    if hasattr(weights, "dtype"):
        weights = to_tensor(label, weights)
    else:
        try:
            weights = tf.convert_to_tensor(weights, dtype)
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise type(error)(f"{label} must be {dtype.name} like emb_table: {error}") from error
    _check_weights_type(label, weights, dtype)
    _check_shape(label, weights.shape, "the indices", indices.shape)
    return weights


def to_weights_of_ids(
    ids: tf.RaggedTensor | tf.SparseTensor | tf.Tensor,
    weights: Any,
    dtype: tf.DType,
    prefix: str = "",
) -> tf.Tensor | None:
    """The values of weights that are of the kind and shape of ids, for a table of that dtype.

    They are cast as by tf.nn: to the table's type, or to float32 where that is a half precision.
    `prefix` is the beginning of the messages of assertions.
    """
    if weights is None:
        return None
    if isinstance(ids, tf.RaggedTensor):
        values = _values_of_ragged(ids, weights, prefix)
    elif isinstance(ids, tf.SparseTensor):
        values = _values_of_sparse(ids, weights, prefix)
    else:
        values = _values_of_dense(ids, to_tensor("weights", weights), prefix)
    if values.dtype != dtype and values.dtype.is_floating and dtype.is_floating:
        values = tf.cast(values, tf.float32 if dtype in HALVES else dtype)
    _check_weights_type("weights", values, dtype)
    return values


def _values_of_ragged(ids: tf.RaggedTensor, weights: Any, prefix: str) -> tf.Tensor:
    if not isinstance(weights, tf.RaggedTensor):
        raise TypeError(f"weights must be a RaggedTensor like ids, got {weights!r}")
    if weights.ragged_rank != ids.ragged_rank:
        raise ValueError(
            f"weights must be ragged like ids, of rank {ids.ragged_rank}, got {weights.ragged_rank}"
        )
    values = ids.flat_values
    _check_shape("weights", weights.flat_values.shape, "the values of ids", values.shape)
    message = "weights must have the row splits of ids"
    with asserting_same(ids.nested_row_splits, weights.nested_row_splits, message, prefix):
        weights = tf.identity(weights.flat_values)
    return weights if values.shape.rank in (None, 1) else _values_of_dense(values, weights, prefix)


def _values_of_sparse(ids: tf.SparseTensor, weights: Any, prefix: str) -> tf.Tensor:
    if not isinstance(weights, tf.SparseTensor):
        raise TypeError(f"weights must be a SparseTensor like ids, got {weights!r}")
    _check_shape("weights", weights.shape, "ids", ids.shape)
    message = "weights must have the shape and the indices of ids"
    mine, theirs = ([t.dense_shape, t.indices] for t in (ids, weights))
    with asserting_same(mine, theirs, message, prefix):
        return tf.identity(weights.values)


def _values_of_dense(ids: tf.Tensor, weights: tf.Tensor, prefix: str) -> tf.Tensor:
    are_flat = ids.shape.rank == 1 and weights.shape.rank == 1
    if are_flat and (weights.dtype.is_integer or not weights.shape.is_compatible_with(ids.shape)):
        raise (TypeError if weights.dtype.is_integer else ValueError)(
            f"weights must have the shape of ids, {ids.shape}, and be numbers to multiply by, got "
            f"{weights.dtype.name}, {weights.shape}; offsets of bags in flat ids are for "
            "embedding_bag_offsets(emb_table, ids, offsets)"
        )
    _check_shape("weights", weights.shape, "ids", ids.shape)
    is_known = ids.shape.is_fully_defined() and weights.shape.is_fully_defined()
    if is_known or ids.shape.rank == 2:  # which the kernel checks
        return weights
    message = "weights must have the shape of ids"
    with asserting_same([tf.shape(ids)], [tf.shape(weights)], message, prefix):
        return tf.identity(weights)


def _check_weights_type(label: str, weights: tf.Tensor, dtype: tf.DType) -> None:
    if weights.dtype != dtype and not (dtype in HALVES and weights.dtype == tf.float32):
        also = ", or float32" if dtype in HALVES else ""
        raise TypeError(
            f"{label} must be {dtype.name} like emb_table{also}, got {weights.dtype.name}"
        )


def _check_shape(
    label: str, shape: tf.TensorShape, expected_label: str, expected: tf.TensorShape
) -> None:
    if not shape.is_compatible_with(expected):
        raise ValueError(
            f"{label} must have the shape of {expected_label}, {expected}, got {shape}"
        )


def asserting_same(
    expected: Sequence[tf.Tensor], given: Sequence[tf.Tensor], message: str, prefix: str
) -> contextlib.AbstractContextManager[Any]:
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


# The whole look-up


def checked(lookup: Lookup) -> Lookup:
    """The look-up, if its parts fit one another."""
    _check_norm(lookup.max_norm, lookup.norm_type, lookup.dtype)
    check_combinable(lookup.bags.reduction, lookup.dtype)
    return lookup


def _check_norm(max_norm: Any, norm_type: Any, dtype: tf.DType) -> None:
    if max_norm is None and type(norm_type) is float and norm_type > 0:
        return
    for label, value in (("max_norm", max_norm), ("norm_type", norm_type)):
        if value is None and label == "max_norm":
            continue
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            also = " or None" if label == "max_norm" else ""
            raise TypeError(f"{label} must be a number{also}, got {value!r}")
        if math.isnan(value) or value <= 0:
            raise ValueError(f"{label} must be above 0, got {value!r}")
    if max_norm is not None and not dtype.is_floating:
        raise TypeError(f"max_norm needs a table of floats, got {dtype.name}")
