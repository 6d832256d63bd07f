"""Pooled embedding look-ups: rows of a table, gathered in bags and reduced to one row each."""

import contextlib
import numbers
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

from tf_ti import _arguments, _tf
from tf_ti.bags import shards as _shards
from tf_ti.bags.ops import HALVES, NUMBERS, Bags, Table, pool_several

Reduction = Literal["sum", "mean", "max"]
Combiner = Literal["sum", "mean", "sqrtn", "max"]
_REDUCTIONS = get_args(Reduction)
_COMBINERS = get_args(Combiner)


@_tf.do_not_convert
def embedding_bag_offsets_sum(
    emb_table: Any,
    indices: Any,
    offsets: Any,
    default_index: Any = None,
    per_sample_weights: Any = None,
    *,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    name: str | None = None,
) -> tf.Tensor:
    """Sums bags of rows of an embedding table, bags that begin where `offsets` says.

    It means, where every bag has an index:

        ends = [*offsets[1:], len(indices)]
        rows = emb_table[indices] * per_sample_weights[:, np.newaxis]
        result = np.stack([rows[begin:end].sum(0) for begin, end in zip(offsets, ends)])

    but the rows are summed where they lie: nothing of the size of `rows` is ever made. Indices
    before offsets[0] belong to no bag.

    Args:
        emb_table: the table, [num_emb, ...], of any numeric dtype: a tensor, a NumPy array or a
            variable. A tf.Variable, or a variable of Keras, is read in place, under its lock, and
            never copied. Half-precision rows are summed in float32 and rounded once.
        indices: the rows to sum, [num_indices], of any integer dtype. Those of int32 and int64 are
            taken as they are, others are cast; a number beyond int64 is no row.
        offsets: where in `indices` each bag begins, ascending, [batch], of any integer dtype.
        default_index: the row that an empty bag gets, unweighted; None or -1: zeros.
        per_sample_weights: what each row is multiplied by, [num_indices], of the table's dtype, or
            float32 where that is a half precision. None means ones, at no cost.
        include_last_offset: `offsets` is [batch + 1]; its last element is where the last bag ends.
        padding_idx: indices equal to it are left out of their bags. It may be any number, also one
            that is no row, like -1; it is not counted from the end.
        max_norm: rows whose norm is larger are scaled down to it as they are read. The table is not
            changed, and gradients pass through the scaling. (torch changes the table in place, and
            its gradients know nothing of it.)
        norm_type: which norm `max_norm` is about: p for the p-th root of the sum of p-th powers,
            above 0; math.inf for the largest absolute value.
        name: a name for the operation.

    Returns:
        [batch, ...], of the table's dtype. Its gradient for the table is a tf.IndexedSlices with
        each row once, in ascending order, and does not depend on the number of threads;
        tf.convert_to_tensor makes it dense. Weights and the default row get theirs too. The
        gradient for the weights reads the table when it is taken; a variable must not have changed
        since then (pass tf.convert_to_tensor(variable) if it may).

    Raises:
        TypeError, ValueError: dtypes or static shapes do not fit one another.
        tf.errors.InvalidArgumentError: an index outside of the table, offsets that decrease or
            leave [0, num_indices], or shapes that do not fit. It names the position and the value.

    Example:

        >>> table = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> tf_ti.embedding_bag_offsets_sum(table, [0, 2, 1], [0, 2, 2]).numpy().tolist()
        [[6.0, 8.0], [0.0, 0.0], [3.0, 4.0]]

    Source: OpenVINO's EmbeddingBagOffsetsSum-3; the options are those of torch.nn.EmbeddingBag, but
    for scale_grad_by_freq, which there is not.
    """
    return embedding_bag_offsets(
        emb_table,
        indices,
        offsets,
        default_index,
        per_sample_weights,
        include_last_offset=include_last_offset,
        padding_idx=padding_idx,
        max_norm=max_norm,
        norm_type=norm_type,
        name=name,
    )


@_tf.do_not_convert
def embedding_bag_offsets(
    emb_table: Any,
    indices: Any,
    offsets: Any,
    default_index: Any = None,
    per_sample_weights: Any = None,
    reduction: Reduction = "sum",
    *,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    name: str | None = None,
) -> tf.Tensor:
    """Reduces bags of rows of an embedding table, bags that begin where `offsets` says.

    It is `tf_ti.embedding_bag_offsets_sum` with a choice of what to do with a bag's rows:

        result[b] = getattr(emb_table[indices[offsets[b] : offsets[b + 1]]], reduction)(0)

    Args:
        emb_table, indices, offsets, default_index: as in `tf_ti.embedding_bag_offsets_sum`.
        per_sample_weights: likewise; only with the reduction "sum". (`tf_ti.embedding_bag` has
            weighted means.)
        reduction: "sum", "mean" or "max". The mean of integers is rounded towards zero. A maximum
            is NaN where a row is; its gradient goes to the first of equal rows.
        include_last_offset, padding_idx, max_norm, norm_type, name: as in
            `tf_ti.embedding_bag_offsets_sum`.

    Returns, raises: as `tf_ti.embedding_bag_offsets_sum`.

    Example:

        >>> table = tf.constant([[1.0, 8.0], [3.0, 4.0]])
        >>> tf_ti.embedding_bag_offsets(table, [0, 1], [0], reduction="max").numpy().tolist()
        [[3.0, 8.0]]

    Source: OpenVINO's EmbeddingBagOffsets-15.
    """
    _check_reduction(reduction, per_sample_weights)
    indices = _indices("indices", indices, 1, offsets)
    bags = Bags(
        "offsets",
        indices,
        _indices("offsets", offsets, None, indices),
        include_last_offset=bool(include_last_offset),
        reduction=reduction,
    )
    return _pool(
        [_find_table(emb_table)],
        bags,
        default_index,
        per_sample_weights,
        padding_idx,
        max_norm,
        norm_type,
        name,
    )


@_tf.do_not_convert
def embedding_bag_packed(
    emb_table: Any,
    indices: Any,
    per_sample_weights: Any = None,
    reduction: Reduction = "sum",
    *,
    default_index: Any = None,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    name: str | None = None,
) -> tf.Tensor:
    """Reduces bags of rows of an embedding table, bags that all have the same number of rows.

    It means:

        result[b] = getattr(emb_table[indices[b]], reduction)(0)

    Args:
        emb_table: as in `tf_ti.embedding_bag_offsets_sum`.
        indices: the rows, [batch, rows in a bag], of any integer dtype.
        per_sample_weights: what each row is multiplied by, in the shape of `indices`; only with the
            reduction "sum".
        reduction: as in `tf_ti.embedding_bag_offsets`.
        default_index, padding_idx, max_norm, norm_type, name: as in
            `tf_ti.embedding_bag_offsets_sum`. A bag of nothing but padding is empty.

    Returns, raises: as `tf_ti.embedding_bag_offsets_sum`.

    Example:

        >>> table = tf.constant([[1.0], [3.0], [5.0]])
        >>> tf_ti.embedding_bag_packed(table, [[0, 1], [2, 2]]).numpy().tolist()
        [[4.0], [10.0]]

    Source: OpenVINO's EmbeddingBagPacked-15 and EmbeddingBagPackedSum-3.
    """
    _check_reduction(reduction, per_sample_weights)
    bags = Bags("packed", _indices("indices", indices, 2), reduction=reduction)
    return _pool(
        [_find_table(emb_table)],
        bags,
        default_index,
        per_sample_weights,
        padding_idx,
        max_norm,
        norm_type,
        name,
    )


@_tf.do_not_convert
def embedding_segments_sum(
    emb_table: Any,
    indices: Any,
    segment_ids: Any,
    num_segments: Any,
    default_index: Any = None,
    per_sample_weights: Any = None,
    *,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    name: str | None = None,
) -> tf.Tensor:
    """Sums bags of rows of an embedding table, where each index says to which bag it belongs.

    It means, where every segment has an index:

        rows = emb_table[indices] * per_sample_weights[:, np.newaxis]
        result = np.stack([rows[segment_ids == s].sum(0) for s in range(num_segments)])

    Args:
        emb_table, indices: as in `tf_ti.embedding_bag_offsets_sum`.
        segment_ids: the segment of each index, ascending, [num_indices], of any integer dtype.
        num_segments: the number of segments, a scalar integer.
        default_index, per_sample_weights, padding_idx, max_norm, norm_type, name: as in
            `tf_ti.embedding_bag_offsets_sum`.

    Returns:
        [num_segments, ...], with gradients as of `tf_ti.embedding_bag_offsets_sum`.

    Raises:
        TypeError, ValueError: dtypes or static shapes do not fit one another.
        tf.errors.InvalidArgumentError: an index outside of the table, segment ids that decrease or
            leave [0, num_segments), or shapes that do not fit. It names the position and the value.

    Example:

        >>> table = tf.constant([[1.0], [3.0], [5.0]])
        >>> tf_ti.embedding_segments_sum(table, [0, 2, 1], [0, 0, 2], 3).numpy().tolist()
        [[6.0], [0.0], [3.0]]

    Source: OpenVINO's EmbeddingSegmentsSum-3.
    """
    indices = _indices("indices", indices, 1, segment_ids)
    bags = Bags(
        "segments",
        indices,
        _indices("segment_ids", segment_ids, None, indices),
        _indices("num_segments", num_segments, None, indices),
    )
    return _pool(
        [_find_table(emb_table)],
        bags,
        default_index,
        per_sample_weights,
        padding_idx,
        max_norm,
        norm_type,
        name,
    )


@_tf.do_not_convert
def embedding_bag(
    emb_table: Any,
    ids: Any,
    weights: Any = None,
    combiner: Combiner = "sum",
    default_index: Any = None,
    *,
    partition_strategy: Literal["div", "mod"] = "div",
    max_norm: float | None = None,
    norm_type: float = 2.0,
    padding_idx: int | None = None,
    prune_invalid: bool = False,
    name: str | None = None,
) -> tf.Tensor | Any:  # a RaggedTensor of ids that are ragged outside too
    """Combines the embeddings of each row of ragged, sparse or dense ids.

    It means, for row `r` of a two-dimensional `ids`, with ones for `weights` that are not given:

        i, w = ids[r], weights[r][:, np.newaxis]
        total = (emb_table[i] * w).sum(0)
        divisor = {"sum": 1, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner]
        result[r] = total / divisor if divisor != 0 else 0 * total

    It gives what tf.nn.embedding_lookup_sparse gives, and with `prune_invalid` what
    tf.nn.safe_embedding_lookup_sparse gives, except that empty rows at the end of a SparseTensor
    are there too.

    Args:
        emb_table: as in `tf_ti.embedding_bag_offsets_sum`; or the shards of one table: a list of
            tables of any of these kinds, as in tf.nn.embedding_lookup, or a ShardedVariable of
            tf.distribute. Each shard's rows are summed on the device that it is on, and only sums
            leave it: one for each row of `ids` that names a row there. (For "max" and `max_norm`
            the rows themselves do, each once.) The gradient of a shard is on its device too.
        ids: a RaggedTensor, combined along its last dimension, which may be ragged or of a fixed
            number of ids; a SparseTensor, along its last dimension, with its indices in row-major
            order; or a dense [..., n] tensor, along its last. Of any integer dtype.
        weights: what each embedding is multiplied by: of the kind and shape of `ids`, of any float
            dtype (of the table's where that is no float). Not with "max".
        combiner: "sum"; "mean", divided by the sum of the weights; "sqrtn", divided by the root of
            the sum of their squares; "max", of the embeddings.
        default_index: the row that stands for an empty one, unweighted; None or -1: zeros.
        partition_strategy: "div" or "mod": which shard has which row, as in tf.nn.embedding_lookup.
        max_norm, norm_type, padding_idx: as in `tf_ti.embedding_bag_offsets_sum`.
        prune_invalid: leave out ids below 0 and, unless the combiner is "sum", those with a weight
            that is not above 0.
        name: a name for the operation.

    Returns:
        The shape of `ids` without the dimension that was combined, followed by that of an
        embedding. For a RaggedTensor that is ragged in more than the combined dimension, or in
        another, a RaggedTensor.

    Raises:
        TypeError, ValueError: dtypes or static shapes do not fit one another.
        tf.errors.InvalidArgumentError: an id outside of the table, or a SparseTensor that is out of
            order. It names the position and the value.

    Example:

        >>> table = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> ids = tf.ragged.constant([[0, 2], [], [1]], dtype=tf.int64)
        >>> tf_ti.embedding_bag(table, ids, combiner="mean").numpy().tolist()
        [[3.0, 4.0], [0.0, 0.0], [3.0, 4.0]]

    Source: tf.nn.embedding_lookup_sparse, on OpenVINO's operations.
    """
    if isinstance(emb_table, _tf.ShardedVariable):
        if partition_strategy != "div":
            raise ValueError(
                "partition_strategy must be 'div' for a ShardedVariable, whose first shard has the "
                f"first rows; got {partition_strategy!r}"
            )
        emb_table = list(emb_table.variables)
    is_sharded = _is_sharded(emb_table)
    if is_sharded and not emb_table:
        raise ValueError("emb_table must have at least one shard, got an empty list")
    _check_combiner(combiner, weights)
    tables = [_find_table(table) for table in (emb_table if is_sharded else [emb_table])]
    bags, join = _split(ids, weights, combiner, tables[0].dtype)
    if prune_invalid:
        bags, padding_idx = _prune(bags, padding_idx)
    return join(
        _pool(
            tables,
            bags,
            default_index,
            bags.weights,
            padding_idx,
            max_norm,
            norm_type,
            name,
            weights_label="weights",
            partition_strategy=partition_strategy,
        )
    )


@_tf.do_not_convert
def embedding_bags(
    emb_tables: Sequence[Any],
    ids: Sequence[Any],
    weights: Sequence[Any] | None = None,
    combiner: Combiner = "sum",
    default_index: Any = None,
    *,
    padding_idx: int | None = None,
    prune_invalid: bool = False,
    name: str | None = None,
) -> list[tf.Tensor | Any]:  # RaggedTensors, as of `embedding_bag`
    """Combines the embeddings of each row of ids, of several tables at once.

    It gives, bit for bit, what one call for each table does:

        [tf_ti.embedding_bag(t, i, w, combiner) for t, i, w in zip(emb_tables, ids, weights)]

    but it is one operation, whose threads share all the bags; on a GPU it is one launch for up to
    32 tables.

    Args:
        emb_tables: a list of tables, of one dtype and with rows of one shape; each as in
            `tf_ti.embedding_bag_offsets_sum`. They are all variables, on one device, or they are
            all tensors. A table may be there several times.
        ids: for each table the ids, as in `tf_ti.embedding_bag`. Some may be ragged, others sparse
            or dense. Where their dtypes differ, all become int64.
        weights: None, or for each table what its embeddings are multiplied by: of the kind and
            shape of its ids. Not with "max".
        combiner: "sum", "mean", "sqrtn" or "max", for all tables, as in `tf_ti.embedding_bag`.
        default_index: the row that stands for an empty one, unweighted; None or -1: zeros. Or a
            list of one for each table.
        padding_idx, prune_invalid: as in `tf_ti.embedding_bag`, for all tables.
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
    count = len(_as_list("emb_tables", emb_tables))
    if not count:
        raise ValueError("emb_tables must have at least one table, got an empty list")
    given = {"ids": ids}
    if weights is not None:
        given["weights"] = weights
    if isinstance(default_index, (list, tuple)):
        given["default_index"] = [-1 if index is None else index for index in default_index]
    elif default_index is not None:
        given["default_index"] = [default_index] * count
    for label, values in given.items():
        if len(_as_list(label, values)) != count:
            raise ValueError(
                f"{label} must be a list of {count}, one for each of emb_tables, got {len(values)}"
            )
    _check_combiner(combiner, weights)
    tables, several, joins = [], [], []
    for k, emb_table in enumerate(emb_tables):
        with _of_table(k) as prefix:
            if _is_sharded(emb_table):  # which TensorFlow would stack
                raise TypeError(
                    f"it must be one table, got a list of {len(emb_table)}: tf_ti.embedding_bag "
                    "takes the shards of a table"
                )
            table = _find_table(emb_table)
            tables.append(table)
            _check_alike(tables)
            table_weights = None if weights is None else weights[k]
            if weights is not None and table_weights is None:
                raise ValueError("weights must be there for each table, or for none, got None")
            bags, join = _split(ids[k], table_weights, combiner, table.dtype, prefix)
            _check_combinable(combiner, table.dtype)
            if bags.weights is not None:
                weights_of_ids = _weights("weights", bags.weights, table.dtype, bags.indices)
                bags = bags.replace(weights=weights_of_ids)
            left_out = padding_idx
            if prune_invalid:
                bags, left_out = _prune(bags, padding_idx)
            if "default_index" in given:
                index = _indices("default_index", given["default_index"][k], None, bags.indices)
                bags = bags.replace(default_index=index)
            several.append(bags)
            joins.append(join)
    several = _of_same_types(several)
    left_out = _padding_idx(left_out, several[0].indices.dtype)
    if left_out is not None:
        several = [bags.replace(padding_idx=left_out) for bags in several]
    rows = pool_several(tables, several, _needs_argmax(combiner), name)
    return [join(of_table) for join, of_table in zip(joins, rows)]


def _as_list(label: str, values: Any) -> Sequence[Any]:
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"{label} must be a list, got {values!r}")
    return values


@contextlib.contextmanager
def _of_table(number: int):
    """Inside, errors name the table; it gives the words, for assertions that fail later."""
    prefix = f"emb_tables[{number}]: "
    try:
        yield prefix
    except (TypeError, ValueError) as error:
        raise type(error)(f"{prefix}{error}") from error


def _check_alike(tables: Sequence[Table]) -> None:
    """Checks the last table beside the first."""
    first, table = tables[0], tables[-1]
    if table.dtype != first.dtype:
        raise TypeError(f"it must be {first.dtype.name} like emb_tables[0], got {table.dtype.name}")
    mine, others = table.value.shape, first.value.shape
    if not mine[1:].is_compatible_with(others[1:]):
        raise ValueError(
            f"its rows must be of the shape of those of emb_tables[0], {others[1:]}, got {mine[1:]}"
        )
    if table.is_resource != first.is_resource:
        kinds = {True: "a variable", False: "a tensor"}
        raise TypeError(
            f"it must be {kinds[first.is_resource]} like emb_tables[0], got "
            f"{kinds[table.is_resource]}"
        )
    if table.is_resource:
        _arguments.check_together("it", table.variable, "emb_tables[0]", first.variable)


def _of_same_types(several: Sequence[Bags]) -> list[Bags]:
    """With one type of ids for all, and one of weights."""
    fields = ("indices", "bounds", "num_segments", "default_index")
    given = [getattr(bags, field) for bags in several for field in fields]
    if len({tensor.dtype for tensor in given if tensor is not None}) > 1:
        flat = iter(_same_type(*given))
        several = [bags.replace(**dict(zip(fields, flat))) for bags in several]
    if len({bags.weights.dtype for bags in several if bags.weights is not None}) > 1:
        several = [bags.replace(weights=tf.cast(bags.weights, tf.float32)) for bags in several]
    return list(several)


def _check_combiner(combiner: Any, weights: Any) -> None:
    if combiner not in _COMBINERS:
        raise ValueError(f"combiner must be one of {', '.join(_COMBINERS)}, got {combiner!r}")
    if combiner == "max" and weights is not None:
        raise ValueError("combiner 'max' takes no weights")


def _split(ids: Any, weights: Any, combiner: Combiner, dtype: tf.DType, prefix: str = ""):
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
        flat_weights = _cast_weights(flat_weights, dtype)
    return bags.replace(weights=flat_weights, reduction=combiner), join


def _prune(bags: Bags, padding_idx: int | None) -> tuple[Bags, int]:
    """The bags without what tf.nn.safe_embedding_lookup_sparse leaves out, and the padding_idx."""
    padding_idx = _padding_idx(padding_idx, bags.indices.dtype)
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
        _check_shape("weights", weights.flat_values.shape, "the values of ids", flat.shape)
        message = "weights must have the row splits of ids"
        with asserting_same(splits, weights.nested_row_splits, message, prefix):
            weights = tf.identity(weights.flat_values)
    if flat.shape.rank not in (None, 1):  # the bags are rows of a fixed number of ids
        bags, weights, join = _split_dense(flat, weights, prefix)
        return bags, weights, lambda rows: ids.with_flat_values(join(rows))
    bags = Bags("offsets", _indices("ids", flat, 1), splits[-1], include_last_offset=True)
    return bags, weights, lambda rows: _with_rows(ids, rows)


def _with_rows(ids: tf.RaggedTensor, rows: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
    """The ids with what comes of each innermost row in its place."""
    if ids.ragged_rank == 1:
        return rows
    return ids.with_values(_with_rows(ids.values, rows))


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
        with tf.control_dependencies(_present(sizes)):
            checks += _present(tf.debugging.assert_equal(g, e, prefix + message))
    return tf.control_dependencies(checks)


def _present(op: tf.Operation | None) -> list[tf.Operation]:
    return [] if op is None else [op]  # an eager assertion is none


def _split_sparse(ids: tf.SparseTensor, weights: Any, prefix: str):
    if weights is not None:
        if not isinstance(weights, tf.SparseTensor):
            raise TypeError(f"weights must be a SparseTensor like ids, got {weights!r}")
        _check_shape("weights", weights.shape, "ids", ids.shape)
        message = "weights must have the shape and the indices of ids"
        mine, theirs = ([t.dense_shape, t.indices] for t in (ids, weights))
        with asserting_same(mine, theirs, message, prefix):
            weights = tf.identity(weights.values)
    rank = ids.shape.rank
    message = f"ids must have rank 2 or more, got a SparseTensor of shape {ids.shape}"
    if rank is not None and rank < 2:
        raise ValueError(message)
    known = tf.debugging.assert_greater_equal(tf.size(ids.dense_shape), 2, prefix + message)
    with tf.control_dependencies(_present(known)):
        outer = ids.dense_shape[:-1]
    if rank == 2:
        rows = ids.indices[:, 0]
    else:
        outside = (ids.indices[:, :-1] < 0) | (ids.indices[:, :-1] >= outer)
        message = [f"{prefix}ids has an index outside of its dense_shape", ids.indices]
        inside = tf.debugging.Assert(~tf.reduce_any(outside), message)
        with tf.control_dependencies(_present(inside)):
            strides = tf.math.cumprod(outer, exclusive=True, reverse=True)
            rows = tf.reduce_sum(ids.indices[:, :-1] * strides, 1)
    bags = Bags("segments", _indices("ids", ids.values, 1), rows, tf.reduce_prod(outer))

    def join(rows):
        return _with_outer_shape(rows, outer, ids.shape[:-1])

    return bags, weights, join if rank != 2 else lambda rows: rows


def _split_dense(ids: Any, weights: Any, prefix: str):
    ids = _indices("ids", ids, None)
    if ids.shape.rank == 0:
        raise ValueError("ids must have rank 1 or more, got a scalar")
    if weights is not None:
        weights = _arguments.to_tensor("weights", weights)
        _check_shape("weights", weights.shape, "ids", ids.shape)
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


def _same_type(*tensors: tf.Tensor | None) -> Sequence[tf.Tensor | None]:
    dtypes = [tensor.dtype for tensor in tensors if tensor is not None]
    if dtypes.count(dtypes[0]) == len(dtypes):
        return tensors
    return [None if tensor is None else tf.cast(tensor, tf.int64) for tensor in tensors]


def _cast_weights(weights: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """As tf.nn does: to the table's type, or to float32 where that is a half precision."""
    weights = _arguments.to_tensor("weights", weights)
    if weights.dtype == dtype or not (weights.dtype.is_floating and dtype.is_floating):
        return weights
    return tf.cast(weights, tf.float32 if dtype in HALVES else dtype)


def _check_reduction(reduction: Any, per_sample_weights: Any) -> None:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}")
    if reduction != "sum" and per_sample_weights is not None:
        raise ValueError(f"per_sample_weights need the reduction 'sum', got {reduction!r}")


def _indices(label: str, value: Any, rank: int | None, like: Any = None) -> tf.Tensor:
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


def _is_sharded(emb_table: Any) -> bool:
    return isinstance(emb_table, (list, tuple)) and all(map(_is_table, emb_table))


def _is_table(value: Any) -> bool:
    kinds = (tf.Tensor, tf.Variable, np.ndarray, _tf.ShardedVariable)
    return isinstance(value, kinds) or hasattr(value, "handle")


def _find_table(emb_table: Any) -> Table:
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


def _pool(
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
        default_index = _indices("default_index", default_index, None, bags.indices)
    indices, bounds, num_segments, default_index = _same_type(
        bags.indices, bags.bounds, bags.num_segments, default_index
    )
    bags = bags.replace(
        indices=indices,
        bounds=bounds,
        num_segments=num_segments,
        default_index=default_index,
        padding_idx=_padding_idx(padding_idx, indices.dtype),
    )
    table, dtype = tables[0], tables[0].dtype
    if weights is not None:
        bags = bags.replace(weights=_weights(weights_label, weights, dtype, bags.indices))
    _shards.check_norm(max_norm, norm_type, dtype)
    _check_combinable(bags.reduction, dtype)
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
    result, _ = bags.pool(table, _needs_argmax(bags.reduction), name)
    return result if table.dtype == dtype else tf.cast(result, dtype)


def _needs_argmax(reduction: str) -> bool:
    """In a graph the kernel does without it where nobody reads it; an eager call cannot tell."""
    return reduction == "max" and (not tf.executing_eagerly() or _tf.is_recording())


def _check_combinable(reduction: str, dtype: tf.DType) -> None:
    if reduction == "sqrtn" and dtype.is_integer:
        raise TypeError(f"sqrtn needs a table of floats, got {dtype.name}")
    if reduction == "max" and dtype.is_complex:
        raise TypeError(f"max needs numbers that have an order, got {dtype.name}")


def _padding_idx(padding_idx: Any, dtype: tf.DType) -> int | None:
    if padding_idx is None:
        return None
    if isinstance(padding_idx, bool) or not hasattr(padding_idx, "__index__"):
        raise TypeError(f"padding_idx must be an int or None, got {padding_idx!r}")
    padding_idx = int(padding_idx)
    return padding_idx if dtype.min <= padding_idx <= dtype.max else None  # no index is equal to it


def _weights(label: str, weights: Any, dtype: tf.DType, indices: tf.Tensor) -> tf.Tensor:
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
    _check_shape(label, weights.shape, "the indices", indices.shape)
    return weights


def _check_shape(
    label: str, shape: tf.TensorShape, expected_label: str, expected: tf.TensorShape
) -> None:
    if not shape.is_compatible_with(expected):
        raise ValueError(
            f"{label} must have the shape of {expected_label}, {expected}, got {shape}"
        )
