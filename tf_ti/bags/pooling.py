"""Bags pooled: by one op, by one of each shard, or from the rows that they touch."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.bags import shards
from tf_ti.bags.ops import Bags, Table, of_one_index_type, pool_several


@dataclasses.dataclass(eq=False)
class Lookup:
    """A look-up: its bags, and the rows that they are bags of.

    Attributes:
        tables: the shards of the table; one, where it is whole.
        bags: the bags, in numbers of the whole table's rows.
        max_norm: rows whose norm is larger are scaled down to it; None: none are.
        norm_type: which norm that is.
        partition_strategy: "div" or "mod": which shard has which row.
        name: a name for the operation.
    """

    tables: Sequence[Table]
    bags: Bags
    max_norm: float | None = None
    norm_type: float = 2.0
    partition_strategy: str = "div"
    name: str | None = None

    @property
    def dtype(self) -> tf.DType:
        return self.tables[0].dtype


def pool(lookup: Lookup) -> tf.Tensor:
    """The rows of each bag, reduced to one."""
    tables, dtype = lookup.tables, lookup.dtype
    (bags,) = of_one_index_type([lookup.bags])
    with_argmax = needs_argmax(bags.reduction)
    if lookup.max_norm is None:
        if len(tables) == 1:
            return bags.pool(tables[0], with_argmax, lookup.name)[0]
        if shards.can_pool(bags, dtype):
            with tf.name_scope(lookup.name or "EmbeddingBag"):
                return shards.pool(tables, bags, lookup.partition_strategy)
    rows, bags = _touched(lookup, bags)
    return tf.cast(bags.pool(rows, with_argmax, lookup.name)[0], dtype)


def pool_all(lookups: Sequence[Lookup], name: str | None = None) -> list[tf.Tensor]:
    """As `pool` of each look-up, all by one op; each has one table.

    Those with a `max_norm`, whose rows are tensors, and maybe of a wider dtype, have an op of their
    own.
    """
    results: list[Any] = [None] * len(lookups)
    for is_clipped in (False, True):
        numbers = [k for k, each in enumerate(lookups) if (each.max_norm is not None) == is_clipped]
        if not numbers:
            continue
        tables = [lookups[k].tables[0] for k in numbers]
        bags = [lookups[k].bags for k in numbers]
        if is_clipped:
            bags = [of_one_index_type([each])[0] for each in bags]
            touched = [_touched(lookups[k], each, k) for k, each in zip(numbers, bags)]
            tables, bags = [table for table, _ in touched], [each for _, each in touched]
        with_argmax = any(needs_argmax(each.reduction) for each in bags)
        pooled = pool_several(tables, bags, numbers, with_argmax, name)
        for k, rows in zip(numbers, pooled):
            results[k] = tf.cast(rows, lookups[k].dtype) if is_clipped else rows
    return results


def _touched(lookup: Lookup, bags: Bags, number: int = -1) -> tuple[Table, Bags]:
    """The rows that the bags touch, as a table, and the bags with their places there.

    `number` is the table's in errors, where there are several.
    """
    rows, bags = shards.look_up(lookup.tables, bags, lookup.partition_strategy, number)
    if lookup.max_norm is not None:
        rows = shards.clip(rows, lookup.max_norm, lookup.norm_type)
    if bags.weights is not None and rows.dtype != lookup.dtype:
        bags = bags.replace(weights=tf.cast(bags.weights, rows.dtype))
    return Table(rows, rows.dtype), bags


def needs_argmax(reduction: str) -> bool:
    """In a graph the kernel does without it where nobody reads it; an eager call cannot tell."""
    return reduction == "max" and (not tf.executing_eagerly() or _tf.is_recording())
