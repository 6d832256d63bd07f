"""Ids, ragged, sparse or dense, taken apart into bags."""

from typing import Any

import tensorflow as tf

from tf_ti import _arguments
from tf_ti.bags.arguments import (
    Combiner,
    as_operations,
    asserting_same,
    cast_weights,
    check_shape,
    to_indices,
    to_padding_idx,
)
from tf_ti.bags.ops import Bags


def split(ids: Any, weights: Any, combiner: Combiner, dtype: tf.DType, prefix: str = ""):
    """The bags that ids are, for a table of that dtype, and what makes a result of the rows.

    `prefix` is what the messages of assertions begin with.
    """
    if isinstance(ids, tf.RaggedTensor):
        split = _split_ragged
    elif isinstance(ids, tf.SparseTensor):
        split = _split_sparse
    else:
        split = _split_dense
    bags, flat_weights, join = split(ids, weights, prefix)
    if flat_weights is not None:
        flat_weights = cast_weights(flat_weights, dtype)
    return bags.replace(weights=flat_weights, reduction=combiner), join


def prune(bags: Bags, padding_idx: int | None) -> tuple[Bags, int]:
    """The bags without what tf.nn.safe_embedding_lookup_sparse leaves out, and the padding_idx."""
    padding_idx = to_padding_idx(padding_idx, bags.indices.dtype)
    is_left_out = bags.indices < 0
    if bags.weights is not None and bags.reduction != "sum":
        is_left_out |= ~(bags.weights > 0)
    if padding_idx is not None:
        is_left_out |= tf.equal(bags.indices, padding_idx)
    indices = tf.where(is_left_out, tf.cast(-1, bags.indices.dtype), bags.indices)
    return bags.replace(indices=indices), -1


def _split_ragged(ids: tf.RaggedTensor, weights: Any, prefix: str):
    flat, splits = ids.flat_values, ids.nested_row_splits
    if weights is not None:
        if not isinstance(weights, tf.RaggedTensor):
            raise TypeError(f"weights must be a RaggedTensor like ids, got {weights!r}")
        if weights.ragged_rank != ids.ragged_rank:
            raise ValueError(
                f"weights must be ragged like ids, of rank {ids.ragged_rank}, got "
                f"{weights.ragged_rank}"
            )
        check_shape("weights", weights.flat_values.shape, "the values of ids", flat.shape)
        message = "weights must have the row splits of ids"
        with asserting_same(splits, weights.nested_row_splits, message, prefix):
            weights = tf.identity(weights.flat_values)
    if flat.shape.rank not in (None, 1):  # the bags are rows of a fixed number of ids
        bags, weights, join = _split_dense(flat, weights, prefix)
        return bags, weights, lambda rows: ids.with_flat_values(join(rows))
    bags = Bags("offsets", to_indices("ids", flat, 1), splits[-1], include_last_offset=True)
    return bags, weights, lambda rows: _with_rows(ids, rows)


def _with_rows(ids: tf.RaggedTensor, rows: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
    """The ids with what comes of each innermost row in its place."""
    if ids.ragged_rank == 1:
        return rows
    return ids.with_values(_with_rows(ids.values, rows))


def _split_sparse(ids: tf.SparseTensor, weights: Any, prefix: str):
    if weights is not None:
        if not isinstance(weights, tf.SparseTensor):
            raise TypeError(f"weights must be a SparseTensor like ids, got {weights!r}")
        check_shape("weights", weights.shape, "ids", ids.shape)
        message = "weights must have the shape and the indices of ids"
        mine, theirs = ([t.dense_shape, t.indices] for t in (ids, weights))
        with asserting_same(mine, theirs, message, prefix):
            weights = tf.identity(weights.values)
    rank = ids.shape.rank
    message = f"ids must have rank 2 or more, got a SparseTensor of shape {ids.shape}"
    if rank is not None and rank < 2:
        raise ValueError(message)
    known = tf.debugging.assert_greater_equal(tf.size(ids.dense_shape), 2, prefix + message)
    with tf.control_dependencies(as_operations(known)):
        outer = ids.dense_shape[:-1]
    if rank == 2:
        rows = ids.indices[:, 0]
    else:
        outside = (ids.indices[:, :-1] < 0) | (ids.indices[:, :-1] >= outer)
        message = [f"{prefix}ids has an index outside of its dense_shape", ids.indices]
        inside = tf.debugging.Assert(~tf.reduce_any(outside), message)
        with tf.control_dependencies(as_operations(inside)):
            strides = tf.math.cumprod(outer, exclusive=True, reverse=True)
            rows = tf.reduce_sum(ids.indices[:, :-1] * strides, 1)
    bags = Bags("segments", to_indices("ids", ids.values, 1), rows, tf.reduce_prod(outer))

    def join(rows):
        return _with_outer_shape(rows, outer, ids.shape[:-1])

    return bags, weights, join if rank != 2 else lambda rows: rows


def _split_dense(ids: Any, weights: Any, prefix: str):
    ids = to_indices("ids", ids, None)
    if ids.shape.rank == 0:
        raise ValueError("ids must have rank 1 or more, got a scalar")
    if weights is not None:
        weights = _arguments.to_tensor("weights", weights)
        check_shape("weights", weights.shape, "ids", ids.shape)
    if ids.shape.rank == 2:
        return Bags("packed", ids), weights, lambda rows: rows
    # Not [-1, n], which says nothing where n is 0.
    outer = tf.shape(ids)[:-1]
    packed = tf.concat([tf.reduce_prod(outer, keepdims=True), tf.shape(ids)[-1:]], 0)
    if weights is not None:
        is_known = ids.shape.is_fully_defined() and weights.shape.is_fully_defined()
        mine, theirs = ([] if is_known else [tf.shape(t)] for t in (ids, weights))
        with asserting_same(mine, theirs, "weights must have the shape of ids", prefix):
            weights = tf.reshape(weights, packed)
    bags = Bags("packed", tf.reshape(ids, packed))
    return bags, weights, lambda rows: _with_outer_shape(rows, outer, ids.shape[:-1])


def _with_outer_shape(rows: tf.Tensor, outer: tf.Tensor, static: tf.TensorShape) -> tf.Tensor:
    shape = tf.concat([tf.cast(outer, tf.int64), tf.shape(rows, tf.int64)[1:]], 0)
    result = tf.reshape(rows, shape)
    result.set_shape(static.concatenate(rows.shape[1:]))
    return result
