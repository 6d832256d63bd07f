"""Ids, ragged, sparse or dense: taken apart into bags, whose rows are put back in their places.

`split` makes bags of ids that `arguments` has checked. It leaves the dimensions outside of the bags
in an `Outer`, which gives them to the pooled rows.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from tf_ti._arguments import as_operations, host_number, on_host
from tf_ti._exact import negated
from tf_ti.bags.ops import Bags


@dataclasses.dataclass(frozen=True, eq=False)
class Outer:
    """The dimensions of ids outside of their bags; without attributes one, of the bags themselves.

    Attributes:
        shape: the dimensions of dense or sparse ids.
        static_shape: as much of these as is known.
        ragged: ragged ids, outside of these dimensions.
        ragged_rank: how many of its ragged dimensions are outside of the bags.
    """

    shape: tf.Tensor | None = None
    static_shape: tf.TensorShape | None = None
    ragged: tf.RaggedTensor | None = None
    ragged_rank: int = 0

    def restore(self, rows: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """The rows of the bags, [bags, ...], in these dimensions."""
        if self.static_shape is not None:
            width = rows.shape[1:]
            shape = tf.concat([tf.cast(self.shape, tf.int64), tf.shape(rows, tf.int64)[1:]], 0)
            rows = tf.reshape(rows, shape)
            rows.set_shape(self.static_shape.concatenate(width))
        return _with_rows(self.ragged, self.ragged_rank, rows)


_BAGS_ALONE = Outer()


def _with_rows(
    ragged: tf.RaggedTensor | None, ragged_rank: int, rows: tf.Tensor
) -> tf.Tensor | tf.RaggedTensor:
    if ragged is None or not ragged_rank:
        return rows
    return ragged.with_values(_with_rows(ragged.values, ragged_rank - 1, rows))


def split(
    ids: tf.RaggedTensor | tf.SparseTensor | tf.Tensor,
    weights: tf.Tensor | None,
    prune_invalid: bool = False,
    prefix: str = "",
    **options: Any,
) -> tuple[Bags, Outer]:
    """Takes ids apart.

    Args:
        ids: of int32 or int64.
        weights: the values of their weights; in the shape of ids, where these are dense.
        prune_invalid: as in `tf_ti.embedding_bag`.
        prefix: the beginning of the messages of assertions.
        options: further fields of the bags.
    """
    options["weights"] = weights
    if isinstance(ids, tf.RaggedTensor):
        bags, outer = _split_ragged(ids, options)
    elif isinstance(ids, tf.SparseTensor):
        bags, outer = _split_sparse(ids, options, prefix)
    else:
        bags, outer = _split_dense(ids, options)
    return _pruned(bags) if prune_invalid else bags, outer


def _split_ragged(ids: tf.RaggedTensor, options: dict[str, Any]) -> tuple[Bags, Outer]:
    rank, inner = 1, ids
    while isinstance(inner.values, tf.RaggedTensor):
        rank, inner = rank + 1, inner.values
    values = inner.values
    if values.shape.rank not in (None, 1):  # the bags are rows of a fixed number of ids
        bags, outer = _split_dense(values, options)
        return bags, dataclasses.replace(outer, ragged=ids, ragged_rank=rank)
    bags = Bags("offsets", values, inner.row_splits, include_last_offset=True, **options)
    return bags, _BAGS_ALONE if rank == 1 else Outer(ragged=ids, ragged_rank=rank - 1)


def _split_sparse(ids: tf.SparseTensor, options: dict[str, Any], prefix: str) -> tuple[Bags, Outer]:
    rank = ids.shape.rank
    message = f"ids must have rank 2 or more, got a SparseTensor of shape {ids.shape}"
    if rank is not None and rank < 2:
        raise ValueError(message)
    known = tf.debugging.assert_greater_equal(tf.size(ids.dense_shape), 2, prefix + message)
    with tf.control_dependencies(as_operations(known)):
        shape = ids.dense_shape[:-1]
    if rank == 2:
        rows, outer = ids.indices[:, 0], _BAGS_ALONE
    else:
        outside = (ids.indices[:, :-1] < 0) | (ids.indices[:, :-1] >= shape)
        wrong = [f"{prefix}ids has an index outside of its dense_shape", ids.indices]
        inside = tf.debugging.Assert(~tf.reduce_any(outside), wrong)
        with tf.control_dependencies(as_operations(inside)):
            strides = tf.math.cumprod(shape, exclusive=True, reverse=True)
            rows = tf.reduce_sum(ids.indices[:, :-1] * strides, 1)
        outer = Outer(shape, ids.shape[:-1])
    with on_host():
        count = tf.reduce_prod(shape)
    return Bags("segments", ids.values, rows, host_number(count, tf.int64), **options), outer


def _split_dense(ids: tf.Tensor, options: dict[str, Any]) -> tuple[Bags, Outer]:
    if ids.shape.rank == 2:
        return Bags("packed", ids, **options), _BAGS_ALONE
    # Not [-1, n], which says nothing where n is 0.
    shape = tf.shape(ids)[:-1]
    packed = tf.concat([tf.reduce_prod(shape, keepdims=True), tf.shape(ids)[-1:]], 0)
    if options["weights"] is not None:
        options = {**options, "weights": tf.reshape(options["weights"], packed)}
    return Bags("packed", tf.reshape(ids, packed), **options), Outer(shape, ids.shape[:-1])


def _pruned(bags: Bags) -> Bags:
    """The bags without the ids that tf.nn.safe_embedding_lookup_sparse leaves out."""
    is_left_out = bags.indices < 0
    if bags.weights is not None and bags.reduction != "sum":
        is_left_out |= negated(bags.weights > 0)  # a NaN is left out too
    if bags.padding_idx is not None:
        is_left_out |= tf.equal(bags.indices, bags.padding_idx)
    indices = tf.where(is_left_out, tf.cast(-1, bags.indices.dtype), bags.indices)
    return bags.replace(indices=indices, padding_idx=-1)
