"""Bags pooled: by one op, by one of each shard, or from the rows that they touch."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.bags import shards as _shards
from tf_ti.bags.arguments import (
    check_combinable,
    same_type,
    to_indices,
    to_padding_idx,
    to_weights,
)
from tf_ti.bags.ops import Bags, Table


def pool(
    tables: Sequence[Table],
    bags: Bags,
    default_index: Any,
    weights: Any,
    padding_idx: int | None,
    max_norm: float | None,
    norm_type: float,
    name: str | None,
    weights_label: str = "per_sample_weights",
    partition_strategy: str = "div",
) -> tf.Tensor:
    if partition_strategy not in ("div", "mod"):
        raise ValueError(f"partition_strategy must be div or mod, got {partition_strategy!r}")
    if default_index is not None:
        default_index = to_indices("default_index", default_index, None, bags.indices)
    indices, bounds, num_segments, default_index = same_type(
        bags.indices, bags.bounds, bags.num_segments, default_index
    )
    bags = bags.replace(
        indices=indices,
        bounds=bounds,
        num_segments=num_segments,
        default_index=default_index,
        padding_idx=to_padding_idx(padding_idx, indices.dtype),
    )
    table, dtype = tables[0], tables[0].dtype
    if weights is not None:
        bags = bags.replace(weights=to_weights(weights_label, weights, dtype, bags.indices))
    _shards.check_norm(max_norm, norm_type, dtype)
    check_combinable(bags.reduction, dtype)
    if max_norm is None and len(tables) > 1 and _shards.can_pool(bags, dtype):
        with tf.name_scope(name or "EmbeddingBag"):
            return _shards.pool(tables, bags, partition_strategy)
    if max_norm is not None or len(tables) > 1:
        rows, bags = _shards.look_up(tables, bags, partition_strategy)
        if max_norm is not None:
            rows = _shards.clip(rows, max_norm, norm_type)
        table = Table(rows, rows.dtype)
        if weights is not None and rows.dtype != dtype:
            bags = bags.replace(weights=tf.cast(bags.weights, rows.dtype))
    result, _ = bags.pool(table, needs_argmax(bags.reduction), name)
    return result if table.dtype == dtype else tf.cast(result, dtype)


def needs_argmax(reduction: str) -> bool:
    """In a graph the kernel does without it where nobody reads it; an eager call cannot tell."""
    return reduction == "max" and (not tf.executing_eagerly() or _tf.is_recording())
