"""Pooled embedding look-ups: rows of a table, gathered in bags and reduced to one row each."""

from typing import Any, Literal

import tensorflow as tf

from tf_ti import _tf, _words
from tf_ti.bags.arguments import (
    Combiner,
    Reduction,
    check_combiner,
    check_reduction,
    checked,
    to_default_index,
    to_host_index,
    to_ids,
    to_indices,
    to_padding_idx,
    to_shards,
    to_table,
    to_weights,
    to_weights_of_ids,
)
from tf_ti.bags.ids import split
from tf_ti.bags.ops import Bags
from tf_ti.bags.pooling import Lookup, pool

# The arguments of torch's and TensorFlow's look-ups.
_GRADIENTS = "gradients are always a tf.IndexedSlices with each row once; leave it out"
_COUNTED = "gradients are not scaled by how often an id is there"
_WORDS = {
    "weight": "the table is emb_table, and comes first",
    "params": "the table is emb_table, and comes first",
    "sparse": _GRADIENTS,
    "scale_grad_by_freq": _COUNTED,
}
_WORDS_OF_INDICES = {
    **_WORDS,
    "input": "it is called indices here, and comes after emb_table",
    "ids": "they are called indices here; embedding_bag takes ids that are ragged, sparse or dense",
    "mode": "it is called reduction here, where there is one; embedding_bag has combiner",
    "combiner": "it is called reduction here, where there is one; embedding_bag has combiner",
    "weights": "they are called per_sample_weights here",
}
_WORDS_OF_IDS = {
    **_WORDS,
    "input": "it is called ids here, and comes after emb_table",
    "indices": "they are called ids here",
    "sp_ids": "they are called ids here",
    "sp_weights": "they are called weights here",
    "per_sample_weights": "they are called weights here",
    "mode": "it is called combiner here",
    "reduction": "it is called combiner here",
    "offsets": "flat ids with offsets are for embedding_bag_offsets(emb_table, indices, offsets)",
    "include_last_offset": "flat ids with offsets are for embedding_bag_offsets",
}


@_tf.public
@_words.with_cures(_WORDS_OF_INDICES)
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


@_tf.public
@_words.with_cures(_WORDS_OF_INDICES)
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
    check_reduction(reduction, per_sample_weights)
    indices = to_indices("indices", indices, 1, offsets)
    offsets = to_indices("offsets", offsets, None, indices)
    table = to_table(emb_table)
    bags = Bags(
        "offsets",
        indices,
        offsets,
        default_index=to_default_index(default_index, indices),
        padding_idx=to_padding_idx(padding_idx, indices),
        weights=to_weights("per_sample_weights", per_sample_weights, table.dtype, indices),
        include_last_offset=bool(include_last_offset),
        reduction=reduction,
    )
    return pool(checked(Lookup([table], bags, max_norm, norm_type, name=name)))


@_tf.public
@_words.with_cures(_WORDS_OF_INDICES)
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
    check_reduction(reduction, per_sample_weights)
    indices = to_indices("indices", indices, 2)
    table = to_table(emb_table)
    bags = Bags(
        "packed",
        indices,
        default_index=to_default_index(default_index, indices),
        padding_idx=to_padding_idx(padding_idx, indices),
        weights=to_weights("per_sample_weights", per_sample_weights, table.dtype, indices),
        reduction=reduction,
    )
    return pool(checked(Lookup([table], bags, max_norm, norm_type, name=name)))


@_tf.public
@_words.with_cures(_WORDS_OF_INDICES)
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
    indices = to_indices("indices", indices, 1, segment_ids)
    segment_ids = to_indices("segment_ids", segment_ids, None, indices)
    num_segments = to_host_index("num_segments", num_segments, indices)
    table = to_table(emb_table)
    bags = Bags(
        "segments",
        indices,
        segment_ids,
        num_segments,
        default_index=to_default_index(default_index, indices),
        padding_idx=to_padding_idx(padding_idx, indices),
        weights=to_weights("per_sample_weights", per_sample_weights, table.dtype, indices),
    )
    return pool(checked(Lookup([table], bags, max_norm, norm_type, name=name)))


@_tf.public
@_words.with_cures(_WORDS_OF_IDS)
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
            order; or a dense [..., n] tensor, along its last: [n] is one bag. Of any integer dtype.
            For flat ids with offsets there is `tf_ti.embedding_bag_offsets`.
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
    check_combiner(combiner, weights)
    tables = to_shards(emb_table, partition_strategy)
    ids = to_ids(ids)
    weights = to_weights_of_ids(ids, weights, tables[0].dtype)
    default_index = to_default_index(default_index, ids)
    padding_idx = to_padding_idx(padding_idx, ids)
    bags, outer = split(
        ids,
        weights,
        prune_invalid,
        default_index=default_index,
        padding_idx=padding_idx,
        reduction=combiner,
    )
    lookup = Lookup(tables, bags, max_norm, norm_type, partition_strategy, name)
    return outer.restore(pool(checked(lookup)))
