"""Bags by definition, in NumPy, and random tables for them."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

HALVES = [tf.float16, tf.bfloat16]
REALS = [*HALVES, tf.float32, tf.float64]
COMPLEX = [tf.complex64, tf.complex128]
SIGNED = [tf.int8, tf.int16, tf.int32, tf.int64]
UNSIGNED = [tf.uint8, tf.uint16, tf.uint32, tf.uint64]
DTYPES = [*SIGNED, *UNSIGNED, *REALS, *COMPLEX]

# One rounding of the result, and some for the sum in the type that it is accumulated in.
TOLERANCE = {
    tf.float16: 2**-11 * 1.02,
    tf.bfloat16: 2**-8 * 1.02,
    tf.float32: 2e-6,
    tf.float64: 1e-14,
    tf.complex64: 2e-6,
    tf.complex128: 1e-14,
}

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
each_index_type = pytest.mark.parametrize("index_type", [np.int32, np.int64])
each_combiner = pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "max"])
each_reduction = pytest.mark.parametrize("reduction", ["sum", "mean", "max"])


# The definition


def wide(dtype):
    """The type in which the definition is evaluated."""
    dtype = tf.as_dtype(dtype)
    if dtype.is_integer:
        return np.uint64 if dtype.is_unsigned else np.int64
    return np.complex128 if dtype.is_complex else np.float64


def divided(values, by):
    if np.issubdtype(values.dtype, np.integer):  # towards zero
        return np.sign(values) * (np.abs(values) // values.dtype.type(by))
    return values / by if by != 0 else np.zeros_like(values)


def by_definition(
    table,
    bags,
    *,
    weights=None,
    combiner="sum",
    default_index=None,
    padding_idx=None,
    max_norm=None,
):
    """One row for each bag, a list of ids, in a wider type than the table's where there is one."""
    table = np.asarray(table)
    dtype = wide(table.dtype)

    def rows_of(ids):
        rows = table[np.asarray(ids, np.int64)].astype(dtype)
        if max_norm is not None:
            norms = np.sqrt(np.sum(np.abs(rows) ** 2, axis=tuple(range(1, rows.ndim))))
            factors = np.where(norms > max_norm, max_norm / np.where(norms > 0, norms, 1), 1.0)
            rows = rows * factors.reshape([-1] + [1] * (rows.ndim - 1))
        return rows

    result = np.zeros([len(bags), *table.shape[1:]], dtype)
    for at, bag in enumerate(bags):
        kept = [k for k, i in enumerate(bag) if i != padding_idx]
        if not kept:
            if default_index is not None and default_index != -1:
                result[at] = rows_of([default_index])[0]
            continue
        rows = rows_of([bag[k] for k in kept])
        if combiner == "max":
            result[at] = np.maximum.reduce(rows)
            continue
        count = len(kept)
        squares = count
        if weights is not None:
            factors = np.asarray(weights[at])[kept].astype(dtype)
            rows = rows * factors.reshape([-1] + [1] * (rows.ndim - 1))
            count, squares = np.sum(factors), np.sum(factors**2)
        total = np.add.reduce(rows, dtype=dtype)
        if combiner == "sum":
            result[at] = total
        else:
            result[at] = divided(total, count if combiner == "mean" else np.sqrt(squares))
    return result


def bags_of(indices, offsets, include_last_offset=False):
    """The lists of ids that offsets mean."""
    ends = list(offsets) + ([] if include_last_offset else [len(indices)])
    return [list(indices[a:b]) for a, b in zip(ends, ends[1:])]


def check(actual, expected, dtype=None, scale=1.0):
    """Equal for integers, else but for rounding; `scale` is the size of what was added up."""
    dtype = dtype or actual.dtype
    assert actual.dtype == dtype
    assert tuple(actual.shape) == expected.shape
    actual = np.asarray(actual)
    if dtype.is_integer:
        np.testing.assert_array_equal(actual, expected.astype(actual.dtype))
        return
    rounding = TOLERANCE[dtype]
    adding = TOLERANCE[tf.float32] if dtype in HALVES else rounding
    np.testing.assert_allclose(actual.astype(wide(dtype)), expected, rounding, adding * scale)


def exact(dtype, shape, rng):
    """Values of which a few thousand add up without rounding, whatever the order."""
    dtype = tf.as_dtype(dtype)
    values = rng.integers(0 if dtype.is_unsigned else -8, 9, shape)
    if dtype.is_complex:
        values = values + 1j * rng.integers(-8, 9, shape)
    return np.asarray(values).astype(dtype.as_numpy_dtype)


def normal(dtype, shape, rng):
    dtype = tf.as_dtype(dtype)
    if dtype.is_integer:
        return exact(dtype, shape, rng)
    values = rng.standard_normal(shape)
    if dtype.is_complex:
        values = values + 1j * rng.standard_normal(shape)
    return np.asarray(values).astype(dtype.as_numpy_dtype)


def split(rng, count, batch):
    """Sorted offsets with empty bags here and there."""
    return np.sort(rng.integers(0, count + 1, batch))


def held(kind, table):
    if kind == "tensor":
        return tf.constant(table)
    # Variables of complex numbers are for the CPU alone.
    with tf.device("CPU:0") if np.iscomplexobj(table) else contextlib.nullcontext():
        return tf.Variable(table)


each_kind = pytest.mark.parametrize("kind", ["tensor", "variable"])


def shards_of(table, count, strategy):
    if strategy == "mod":
        return [table[k::count] for k in range(count)]
    return np.array_split(table, count)  # the first shards are the longer ones


def ragged_of(bags, dtype, splits=np.int64):
    values = [value for bag in bags for value in bag]
    return tf.RaggedTensor.from_row_lengths(
        tf.constant(np.array(values, tf.as_dtype(dtype).as_numpy_dtype)),
        np.array([len(bag) for bag in bags], splits),
    )


def sparse_of(bags, dtype):
    """One entry for each id, with gaps between the columns."""
    places = [(at, 2 * k + 1) for at, bag in enumerate(bags) for k in range(len(bag))]
    values = [value for bag in bags for value in bag]
    longest = max([len(bag) for bag in bags], default=0)
    return tf.SparseTensor(
        np.array(places, np.int64).reshape([-1, 2]),
        np.array(values, tf.as_dtype(dtype).as_numpy_dtype),
        [len(bags), 2 * longest + 2],
    )


def shaped(kind, bags, dtype):
    return sparse_of(bags, dtype) if kind == "sparse" else ragged_of(bags, dtype)
