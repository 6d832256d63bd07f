"""Look-ups of embeddings that TensorFlow is asked for."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True, eq=False)
class SparseLookup:
    """A call of tf.nn.embedding_lookup_sparse, whose ids TensorFlow has taken apart.

    Attributes:
        tables: the table, or its shards.
        ids: the rows, [n].
        segment_ids: the bag of each, ascending, [n].
        weights: what each row is multiplied by, [n]; or None.
        combiner: "sum", "mean" or "sqrtn".
        max_norm: rows whose norm is larger are scaled down to it; or None.
        partition_strategy: "div" or "mod": which shard has which row.
        name: a name for the result.
    """

    tables: Sequence[Any]
    ids: tf.Tensor
    segment_ids: tf.Tensor
    weights: tf.Tensor | None
    combiner: str
    max_norm: float | None
    partition_strategy: str
    name: str | None
