"""Tables in shards, whose parts of bags are pooled where they are; and rows scaled to a norm."""

import math
from collections.abc import Sequence

import tensorflow as tf

from tf_ti._arguments import as_operations
from tf_ti.bags.ops import HALVES, Bags, Partition, Table
from tf_ti.bags.shares import Shares


def look_up(
    tables: Sequence[Table], bags: Bags, partition_strategy: str, number: int = -1
) -> tuple[tf.Tensor, Bags]:
    """The rows that the bags touch, each once, and the bags with their places there.

    `number` is the table's in errors, where there are several.
    It costs the memory of those rows. (XLA, which cannot tell how many they are, has more of them.)
    Of shards it costs that of a row for each index, so that the size is one that XLA can tell, too.
    """
    num_emb = _num_emb(tables)
    touched = bags.touched(num_emb, number)
    placed = bags.at_positions(num_emb, touched)
    if len(tables) == 1:
        return tf.gather(tables[0].value, touched), placed
    of_one_row = Bags("packed", touched[:, tf.newaxis])
    num_sums = tf.size(bags.indices) + 1
    partition = _partition(tables, num_emb, of_one_row, partition_strategy)
    rows = _sums(tables, of_one_row, partition, num_sums)
    return tf.cast(rows, tables[0].dtype), placed


def can_pool(bags: Bags, dtype: tf.DType) -> bool:
    """True if `pool` can do it; other reductions need the rows themselves."""
    return bags.reduction != "max" and (bags.reduction == "sum" or not dtype.is_integer)


def pool(tables: Sequence[Table], bags: Bags, partition_strategy: str) -> tf.Tensor:
    """Sums each shard's part of the bags where the shard is, and adds up what comes from there.

    Between shards and caller there is nothing but ids, weights, and a sum for each bag that touches
    the shard. What the sums are divided by, and which bags are empty, the caller knows. Weights are
    divided before, so that no sum leaves the table's dtype, in which it comes.
    """
    count, has_default = bags.count(), bags.default_index is not None
    dtype = tables[0].dtype
    if bags.reduction != "sum" and bags.weights is None and dtype in HALVES:
        bags = bags.replace(weights=tf.ones_like(bags.indices, tf.float32))
    partition = _partition(tables, _num_emb(tables), bags, partition_strategy)
    if bags.reduction != "sum" and bags.weights is not None:
        with tf.control_dependencies([partition.is_empty]):  # which is there once all is checked
            shares = tf.cast(Shares(bags, count).values(), bags.weights.dtype)
        bags = bags.replace(weights=shares, reduction="sum")
    total = _sums(tables, bags, partition, count + int(has_default))
    default, total = total[-1:], total[:count]
    if bags.reduction != "sum":
        total = tf.math.divide_no_nan(total, _as_rows(_divisors(bags, total.dtype), total))
    if has_default:
        total = tf.where(_as_rows(partition.is_empty, total), default, total)
    total.set_shape(partition.is_empty.shape.concatenate(tables[0].value.shape[1:]))
    return tf.cast(total, dtype)


def _partition(
    tables: Sequence[Table], num_emb: tf.Tensor | int, bags: Bags, partition_strategy: str
) -> Partition:
    return bags.partition(
        num_emb,
        len(tables),
        partition_strategy,
        _local_type(num_emb, bags),
        with_positions=bags.weights is not None,
    )


def _sums(
    tables: Sequence[Table], bags: Bags, partition: Partition, num_sums: tf.Tensor | int
) -> tf.Tensor:
    """The sums of the bags, then the default row.

    There are `num_sums` sums, those behind the last zeros; half precisions are float32 then.
    """
    weights = None
    if bags.weights is not None:
        weights = tf.reshape(bags.weights, [-1])
        if bags.default_index is not None:
            weights = tf.concat([weights, tf.ones([1], weights.dtype)], 0)
    sums = []
    for k, table in enumerate(tables):
        mine = Bags(
            "offsets",
            partition.ids[k],
            partition.offsets[k],
            weights=None if weights is None else tf.gather(weights, partition.positions[k]),
            padding_idx=-1,
        )
        sums.append(mine.pool(table)[0])
    sums = tf.concat(sums, 0)
    if sums.dtype in HALVES:
        sums = tf.cast(sums, tf.float32)
    return tf.math.unsorted_segment_sum(sums, tf.concat(partition.bag_numbers, 0), num_sums)


def _local_type(num_emb: tf.Tensor | int, bags: Bags) -> tf.DType:
    """The type of the numbers that a shard gets, which the network is to carry."""
    fits = isinstance(num_emb, int) and num_emb <= tf.int32.max
    return (
        tf.int32 if fits and (bags.indices.shape.num_elements() or 0) < tf.int32.max else tf.int64
    )


def _divisors(bags: Bags, dtype: tf.DType) -> tf.Tensor:
    """The divisor of each bag's sum without weights: ids pooled as rows of a table of one."""
    is_left_out = False
    if bags.padding_idx is not None:
        is_left_out = tf.equal(bags.indices, bags.padding_idx)
    indices = -tf.cast(is_left_out, bags.indices.dtype) + tf.zeros_like(bags.indices)
    counted = bags.replace(indices=indices, default_index=None, padding_idx=-1, reduction="sum")
    counts = counted.pool(Table(tf.ones([1], tf.float64), tf.float64))[0]
    return tf.cast(counts if bags.reduction == "mean" else tf.sqrt(counts), dtype)


def _as_rows(of_bags: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """A number of each bag, [count], in the rank of their rows."""
    shape = tf.concat([tf.shape(of_bags), tf.ones([tf.rank(rows) - 1], tf.int32)], 0)
    return tf.reshape(of_bags, shape)


def _num_emb(tables: Sequence[Table]) -> tf.Tensor | int:
    """The number of rows of all shards, which are checked first."""
    sizes = [table.num_emb() for table in tables]
    num_emb = sum(sizes)
    with tf.control_dependencies(_check_shards(tables, sizes, num_emb)):
        return num_emb if isinstance(num_emb, int) else tf.identity(num_emb)


def _check_shards(
    tables: Sequence[Table], sizes: Sequence[tf.Tensor | int], num_emb: tf.Tensor | int
) -> list[tf.Operation]:
    dtypes = {table.dtype for table in tables}
    if len(dtypes) > 1:
        raise TypeError(
            f"emb_table must have shards of one dtype, got {sorted(d.name for d in dtypes)}"
        )
    shapes = [table.value.shape for table in tables]
    if not all(shape[1:].is_compatible_with(shapes[0][1:]) for shape in shapes):
        raise ValueError(
            "emb_table must have shards that agree in all dimensions but the first, got "
            f"{[str(shape) for shape in shapes]}"
        )
    # The first shards may have a row more than the others, whatever the strategy.
    count = len(tables)
    expected = [(num_emb + count - 1 - k) // count for k in range(count)]
    if isinstance(num_emb, int):
        if sizes != expected:
            raise ValueError(f"emb_table must have shards of {expected} rows, got {sizes}")
        return []
    fits = tf.reduce_all(tf.equal(sizes, expected))
    message = ["emb_table has shards of unfit sizes", sizes, "expected", expected]
    return as_operations(tf.debugging.Assert(fits, message))


def clip(rows: tf.Tensor, max_norm: float, norm_type: float) -> tf.Tensor:
    """Rows scaled down to a norm; those of half precisions are float32 then."""
    if rows.dtype in HALVES:
        rows = tf.cast(rows, tf.float32)
    if max_norm >= float(rows.dtype.max):
        return rows
    # A factor of exactly 1 for rows that are small enough, and no derivative. Nothing is divided by
    # zero: this division stays one where max_norm is 1.
    norms = tf.maximum(_norms(rows, norm_type), max_norm)
    return rows * tf.math.divide_no_nan(tf.constant(max_norm, rows.dtype), norms)


def _norms(rows: tf.Tensor, norm_type: float) -> tf.Tensor:
    """The norm of each row, [count, 1, ...], with derivatives that are finite at 0 too."""
    rank = rows.shape.rank
    axes = tf.range(1, tf.rank(rows)) if rank is None else list(range(1, rank))
    sizes = tf.abs(rows)
    largest = tf.reduce_max(sizes, axes, keepdims=True)
    if math.isinf(norm_type):
        return largest
    # Powers of anything else would overflow or vanish, and the norm is the same for every unit.
    is_unit = (largest > 0) & tf.math.is_finite(largest)
    unit = tf.stop_gradient(tf.where(is_unit, largest, tf.ones_like(largest)))
    total = tf.reduce_sum(_power(sizes / unit, norm_type), axes, keepdims=True)
    return unit * _power(total, 1 / norm_type)


def _power(x: tf.Tensor, exponent: float) -> tf.Tensor:
    """A power of what is not negative, with a derivative of 0 at 0."""
    if exponent == 2:
        return tf.square(x)
    is_zero = tf.equal(x, 0)
    return tf.where(is_zero, tf.zeros_like(x), tf.where(is_zero, tf.ones_like(x), x) ** exponent)
