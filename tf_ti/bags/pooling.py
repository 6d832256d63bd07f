"""Bags pooled: by one op, by one of each shard, or from the rows that they touch."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tf_ti import _tf
from tf_ti.bags import shards
from tf_ti.bags.ops import Bags, Table, of_one_index_type


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
    rows, bags = shards.look_up(tables, bags, lookup.partition_strategy)
    if lookup.max_norm is not None:
        rows = shards.clip(rows, lookup.max_norm, lookup.norm_type)
    if bags.weights is not None and rows.dtype != dtype:
        bags = bags.replace(weights=tf.cast(bags.weights, rows.dtype))
    result, _ = bags.pool(Table(rows, rows.dtype), with_argmax, lookup.name)
    return result if rows.dtype == dtype else tf.cast(result, dtype)


def needs_argmax(reduction: str) -> bool:
    """In a graph the kernel does without it where nobody reads it; an eager call cannot tell."""
    return reduction == "max" and (not tf.executing_eagerly() or _tf.is_recording())
