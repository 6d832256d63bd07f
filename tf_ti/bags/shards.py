"""The rows that bags touch, read from a table or its shards, and scaled to a norm."""

import math
import numbers
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_ti.bags.ops import HALVES, Bags, Table, find_slots


def look_up(tables: Sequence[Table], bags: Bags, partition_strategy: str) -> tuple[tf.Tensor, Bags]:
    """The rows that the bags touch, each once, and the bags with their places there.

    It costs the memory of those rows. (XLA, which cannot tell how many they are, has more of them.)
    """
    known = [table.value.shape[0] for table in tables]
    sizes = [t.shape()[0] if size is None else size for t, size in zip(tables, known)]
    num_emb = sum(sizes)
    with tf.control_dependencies(_check_shards(tables, sizes, num_emb)):
        touched = bags.touched(num_emb)
    bags = bags.slots(num_emb, touched)
    if len(tables) == 1:
        return tf.gather(tables[0].value, touched), bags
    rows, places = _gather(tables, sizes, touched, partition_strategy)
    places = tf.concat([places, [0]], 0)  # so that there is always one

    def place_of(slot):
        return tf.where(slot < 0, slot, tf.gather(places, tf.maximum(slot, 0)))

    default_index = bags.default_index
    return rows, bags.replace(
        indices=place_of(bags.indices),
        default_index=None if default_index is None else place_of(default_index),
    )


def _gather(
    tables: Sequence[Table],
    sizes: Sequence[tf.Tensor | int],
    touched: tf.Tensor,
    partition_strategy: str,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The rows `touched`, those of each shard together, and where each of them is."""
    ids = touched[:, tf.newaxis]
    if partition_strategy == "div":
        ends = tf.cumsum(tf.cast(sizes, ids.dtype))[:, tf.newaxis, tf.newaxis]
        begins = tf.concat([[[[0]]], ends[:-1]], 0)
        local, is_mine = ids - begins, (begins <= ids) & (ids < ends)
    else:
        numbers = tf.range(len(tables), dtype=ids.dtype)[:, tf.newaxis, tf.newaxis]
        local, is_mine = ids // len(tables), tf.equal(ids % len(tables), numbers)
    # Bags of one row or of padding, for each shard: their kernels know which rows these are. Under
    # XLA tf.where does not: the size of what it finds is not known.
    local = tf.where(is_mine, local, tf.constant(-1, ids.dtype))
    nothing = tf.zeros_like(ids, tf.float32)
    rows, counts, slots = [], [], []
    for table, size, mine in zip(tables, sizes, tf.unstack(local, len(tables))):
        found, _ = Bags("packed", mine, padding_idx=-1).table_gradient(size, nothing, None)
        rows.append(tf.gather(table.value, found))
        counts.append(tf.size(found, ids.dtype))
        slots.append(find_slots(size, found, mine)[:, 0])
    begins = tf.cumsum(counts, exclusive=True)[:, tf.newaxis]
    slots = tf.stack(slots)
    return tf.concat(rows, 0), tf.reduce_max(tf.where(slots < 0, slots, slots + begins), 0)


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
    check = tf.debugging.Assert(fits, message)
    return [] if check is None else [check]  # an eager assertion is none


def check_norm(max_norm: Any, norm_type: Any, dtype: tf.DType) -> None:
    for label, value in (("max_norm", max_norm), ("norm_type", norm_type)):
        if value is None and label == "max_norm":
            continue
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            also = " or None" if label == "max_norm" else ""
            raise TypeError(f"{label} must be a number{also}, got {value!r}")
        if math.isnan(value) or value <= 0:
            raise ValueError(f"{label} must be above 0, got {value!r}")
    if max_norm is not None and not dtype.is_floating:
        raise TypeError(f"max_norm needs a table of floats, got {dtype.name}")


def clip(rows: tf.Tensor, max_norm: float, norm_type: float) -> tf.Tensor:
    """Rows scaled down to a norm; those of half precisions are float32 then."""
    if rows.dtype in HALVES:
        rows = tf.cast(rows, tf.float32)
    if max_norm >= float(rows.dtype.max):
        return rows
    # A factor of exactly 1 for rows that are small enough, and no derivative.
    return rows * (max_norm / tf.maximum(_norms(rows, norm_type), max_norm))


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
