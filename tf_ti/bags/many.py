"""Look-ups in several tables at once, by one op."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti._arguments import check_together
from tf_ti.bags.arguments import (
    Combiner,
    check_combiner,
    checked,
    is_sharded,
    to_default_index,
    to_ids,
    to_padding_idx,
    to_table,
    to_weights_of_ids,
)
from tf_ti.bags.ids import split
from tf_ti.bags.ops import Table
from tf_ti.bags.pooling import Lookup, pool_all


@_tf.public
def embedding_bags(
    emb_tables: Sequence[Any],
    ids: Sequence[Any],
    weights: Sequence[Any] | None = None,
    combiner: Combiner | Sequence[Combiner] = "sum",
    default_index: Any = None,
    *,
    padding_idx: int | None | Sequence[int | None] = None,
    max_norm: float | None | Sequence[float | None] = None,
    norm_type: float | Sequence[float] = 2.0,
    prune_invalid: bool = False,
    name: str | None = None,
) -> list[tf.Tensor | Any]:  # RaggedTensors, as of `embedding_bag`
    """Combines the embeddings of each row of ids, of several tables at once.

    It gives, bit for bit, what one call for each table does:

        [tf_ti.embedding_bag(t, i, w, combiner) for t, i, w in zip(emb_tables, ids, weights)]

    but it is one operation, whose threads share all the bags; on a GPU, tables whose rows have as
    many elements, and that are all combined by "max" or all otherwise, share launches, up to 32
    of them each. (Tables with a `max_norm` are a second operation.)

    Args:
        emb_tables: a list of tables, of one dtype, each with rows of any shape, as in
            `tf_ti.embedding_bag_offsets_sum`. They are all variables, on one device, or they are
            all tensors. A table may be there several times.
        ids: for each table the ids, as in `tf_ti.embedding_bag`. Some may be ragged, others sparse
            or dense. Where their dtypes differ, all become int64.
        weights: None, or for each table what its embeddings are multiplied by: of the kind and
            shape of its ids, or None. Not with "max".
        combiner: "sum", "mean", "sqrtn" or "max", for all tables, or a list of one for each, as in
            `tf_ti.embedding_bag`.
        default_index: the row that stands for an empty one, unweighted; None or -1: zeros. Or a
            list of one for each table.
        padding_idx, max_norm, norm_type: as in `tf_ti.embedding_bag`, for all tables, or a list of
            one for each.
        prune_invalid: as in `tf_ti.embedding_bag`, for all tables.
        name: a name for the operation.

    Returns:
        A list of what `tf_ti.embedding_bag` gives for each table. The gradient of each table is a
        tf.IndexedSlices of its own; of zeros, where no loss depends on what the table gave.

    Raises:
        TypeError, ValueError: dtypes or static shapes do not fit one another, or the lists are not
            of one length. It names the table, as in "emb_tables[3]".
        tf.errors.InvalidArgumentError: an id outside of its table, or a SparseTensor that is out of
            order. It names the table, the position and the value.

    Example:

        >>> colors = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> sizes = tf.constant([[10.0, 20.0], [30.0, 40.0]])
        >>> ids = [tf.ragged.constant([[0, 2], [1]]), tf.constant([[1], [0]])]
        >>> [rows.numpy().tolist() for rows in tf_ti.embedding_bags([colors, sizes], ids)]
        [[[6.0, 8.0], [3.0, 4.0]], [[30.0, 40.0], [10.0, 20.0]]]

    Source: tf.nn.embedding_lookup_sparse for all features of a model; FBGEMM's
    SplitTableBatchedEmbeddingBagsCodegen.
    """
    if not _as_list("emb_tables", emb_tables):
        raise ValueError("emb_tables must have at least one table, got an empty list")
    count = len(emb_tables)
    ids = _for_each("ids", ids, count)
    weights = [None] * count if weights is None else _for_each("weights", weights, count)
    default_index = _one_for_each("default_index", default_index, count)
    if any(index is not None for index in default_index):  # which all have, or none
        default_index = [-1 if index is None else index for index in default_index]
    of_tables = zip(
        emb_tables,
        ids,
        weights,
        _one_for_each("combiner", combiner, count),
        default_index,
        _one_for_each("padding_idx", padding_idx, count),
        _one_for_each("max_norm", max_norm, count),
        _one_for_each("norm_type", norm_type, count),
    )
    lookups: list[Lookup] = []
    outers = []
    for k, (table, ids_of_table, weights_of_table, reduction, default, padding, *norm) in enumerate(
        of_tables
    ):
        prefix = f"emb_tables[{k}]: "
        try:
            table, ids_of_table = _to_table(table), to_ids(ids_of_table)
            if lookups:
                _check_alike(table, lookups[0].tables[0])
            check_combiner(reduction, weights_of_table)
            bags, outer = split(
                ids_of_table,
                to_weights_of_ids(ids_of_table, weights_of_table, table.dtype, prefix),
                prune_invalid,
                prefix,
                default_index=to_default_index(default, ids_of_table),
                padding_idx=to_padding_idx(padding, ids_of_table),
                reduction=reduction,
            )
            lookups.append(checked(Lookup([table], bags, *norm)))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{prefix}{error}") from error
        outers.append(outer)
    rows = pool_all(lookups, name)
    return [outer.restore(rows_of_table) for outer, rows_of_table in zip(outers, rows)]


def _as_list(label: str, values: Any) -> Sequence[Any]:
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"{label} must be a list, got {values!r}")
    return values


def _for_each(label: str, values: Any, count: int) -> Sequence[Any]:
    if len(_as_list(label, values)) != count:
        raise ValueError(
            f"{label} must be a list of {count}, one for each of emb_tables, got {len(values)}"
        )
    return values


def _one_for_each(label: str, value: Any, count: int) -> Sequence[Any]:
    """A list of what each table has, of one that all have too."""
    return _for_each(label, value, count) if isinstance(value, (list, tuple)) else [value] * count


def _to_table(emb_table: Any) -> Table:
    if is_sharded(emb_table):  # which TensorFlow would stack
        raise TypeError(
            f"it must be one table, got a list of {len(emb_table)}: tf_ti.embedding_bag takes the "
            "shards of a table"
        )
    return to_table(emb_table)


def _check_alike(table: Table, first: Table) -> None:
    """Refuses a table that one op cannot read beside the first."""
    if table.dtype is not first.dtype and table.dtype != first.dtype:
        raise TypeError(f"it must be {first.dtype.name} like emb_tables[0], got {table.dtype.name}")
    if table.is_resource != first.is_resource:
        kinds = {True: "a variable", False: "a tensor"}
        raise TypeError(
            f"it must be {kinds[first.is_resource]} like emb_tables[0], got "
            f"{kinds[table.is_resource]}"
        )
    if table.is_resource:
        check_together("it", table.variable, "emb_tables[0]", first.variable)
