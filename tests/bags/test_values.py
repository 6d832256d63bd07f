"""Values of the bags: OpenVINO's examples, NumPy by definition, tf.nn."""

import numpy as np
import pytest
import tensorflow as tf
from bag_definition import (
    COMPLEX,
    DTYPES,
    HALVES,
    REALS,
    SIGNED,
    UNSIGNED,
    bags_of,
    by_definition,
    check,
    each_combiner,
    each_dtype,
    each_index_type,
    each_kind,
    each_reduction,
    exact,
    held,
    normal,
    ragged_of,
    shaped,
    shards_of,
    sparse_of,
    split,
    wide,
)
from updates_definition import each_updated_dtype

import tf_ti

# OpenVINO's examples


TABLE = [[-0.2, -0.6], [-0.1, -0.4], [-1.9, -1.8], [-1.0, 1.5], [0.8, -0.7]]
INDICES, OFFSETS, WEIGHTS = [0, 2, 3, 4], [0, 2, 2], [0.5, 0.5, 0.5, 0.5]


@each_kind
@each_index_type
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("default_index", "expected"),
    [
        (0, [[-1.05, -1.2], [-0.2, -0.6], [-0.1, 0.4]]),
        (-1, [[-1.05, -1.2], [0.0, 0.0], [-0.1, 0.4]]),
    ],
    ids=["example 1", "example 2"],
)
@pytest.mark.parametrize("function", ["embedding_bag_offsets_sum", "embedding_bag_offsets"])
def test_openvinos_examples(function, default_index, expected, dtype, index_type, kind):
    table = held(kind, np.array(TABLE, dtype))
    actual = getattr(tf_ti, function)(
        table,
        np.array(INDICES, index_type),
        np.array(OFFSETS, index_type),
        default_index,
        np.array(WEIGHTS, dtype),
    )
    assert actual.dtype == dtype
    np.testing.assert_allclose(actual, expected, rtol=np.finfo(dtype).eps * 4, atol=1e-7)


def test_python_lists_are_tensors_too():
    actual = tf_ti.embedding_bag_offsets_sum(TABLE, INDICES, OFFSETS, 0, WEIGHTS)
    np.testing.assert_allclose(actual, [[-1.05, -1.2], [-0.2, -0.6], [-0.1, 0.4]], rtol=1e-6)


def test_python_lists_may_hold_tensors():
    table = tf.constant(TABLE)

    @tf.function
    def look_up(n):
        return (
            tf_ti.embedding_bag(table, [[n, n], [n + 1, 0]]),
            tf_ti.embedding_bag_packed(table, [[n, n], [n + 1, 0]]),
            tf_ti.embedding_bag_offsets_sum(table, [n, n, n + 1, 0], [0, 2]),
        )

    rows = np.float32(TABLE)
    for actual in look_up(tf.constant(2)):
        np.testing.assert_allclose(actual, [2 * rows[2], rows[3] + rows[0]], rtol=1e-6)


def test_the_same_bags_in_every_way_of_giving_them():
    table = tf.constant(TABLE)
    ids, weights = [[0, 2], [3, 4]], [[1.0, 1.0], [1.0, 1.0]]
    for actual in (
        tf_ti.embedding_bag_offsets_sum(table, INDICES, [0, 2]),
        tf_ti.embedding_bag_offsets(table, INDICES, [0, 2]),
        tf_ti.embedding_bag_packed(table, ids),
        tf_ti.embedding_segments_sum(table, INDICES, [0, 0, 1, 1], 2),
        tf_ti.embedding_bag(table, tf.constant(ids)),
        tf_ti.embedding_bag(table, tf.constant(ids), tf.constant(weights)),
        tf_ti.embedding_bag(table, tf.ragged.constant(ids)),
        tf_ti.embedding_bag(table, sparse_of(ids, tf.int32)),
    ):
        np.testing.assert_allclose(actual, [[-2.1, -2.4], [-0.2, 0.8]], rtol=1e-6)


# Random bags


def random_options(rng, rows, dtype):
    """default_index, padding_idx, max_norm."""
    default_index = [None, -1, int(rng.integers(0, rows))][rng.integers(0, 3)]
    padding_idx = [None, None, int(rng.integers(0, rows)), -1, rows + 3][rng.integers(0, 5)]
    max_norm = None
    if dtype.is_floating and rng.random() < 0.3:
        max_norm = float(rng.random() * 3 + 0.1)
    return {"default_index": default_index, "padding_idx": padding_idx, "max_norm": max_norm}


def random_table(rng, dtype):
    rows, rank = int(rng.integers(1, 40)), int(rng.integers(1, 5))
    shape = [rows] + [int(n) for n in rng.integers(1, [30, 8, 5][: rank - 1] or [1], rank - 1)]
    return normal(dtype, shape, rng)


def random_ids(rng, rows, shape, padding_idx):
    ids = rng.integers(0, rows, shape)
    if padding_idx is not None:
        ids = np.where(rng.random(shape) < 0.3, padding_idx, ids)
    return ids


@pytest.mark.parametrize("seed", range(80), indirect=True)
def test_random_offsets_give_what_the_definition_gives(rng):
    dtype = DTYPES[rng.integers(0, len(DTYPES))]
    index_type = [np.int32, np.int64][rng.integers(0, 2)]
    table = random_table(rng, dtype)
    options = random_options(rng, len(table), dtype)
    count, batch = int(rng.integers(0, 200)), int(rng.integers(0, 30))
    indices = random_ids(rng, len(table), count, options["padding_idx"]).astype(index_type)
    include_last_offset = bool(rng.random() < 0.4)
    offsets = split(rng, count, batch + include_last_offset).astype(index_type)
    reductions = ["sum", "mean"] if dtype.is_complex else ["sum", "mean", "max"]
    reduction = reductions[rng.integers(0, len(reductions))]
    bags = bags_of(indices, offsets, include_last_offset)
    weights = grouped = None
    if reduction == "sum" and rng.random() < 0.5:
        weights = normal(dtype, count, rng)
        grouped = bags_of(weights, offsets, include_last_offset)
    print(dtype.name, table.shape, indices, offsets, include_last_offset, reduction, options)

    expected = by_definition(table, bags, weights=grouped, combiner=reduction, **options)
    table = held(["tensor", "variable"][rng.integers(0, 2)], table)
    more = {"include_last_offset": include_last_offset, "per_sample_weights": weights, **options}
    actual = tf_ti.embedding_bag_offsets(table, indices, offsets, reduction=reduction, **more)
    check(actual, expected, dtype, scale=20)
    if reduction == "sum":
        actual = tf_ti.embedding_bag_offsets_sum(table, indices, offsets, **more)
        check(actual, expected, dtype, scale=20)


@pytest.mark.parametrize("seed", range(200, 230), indirect=True)
def test_random_packed_bags_give_what_the_definition_gives(rng):
    dtype = DTYPES[rng.integers(0, len(DTYPES))]
    table = random_table(rng, dtype)
    options = random_options(rng, len(table), dtype)
    shape = [int(n) for n in rng.integers(0, [20, 12])]
    indices = random_ids(rng, len(table), shape, options["padding_idx"])
    reductions = ["sum", "mean"] if dtype.is_complex else ["sum", "mean", "max"]
    reduction = reductions[rng.integers(0, len(reductions))]
    weights = normal(dtype, shape, rng) if reduction == "sum" and rng.random() < 0.5 else None
    print(dtype.name, table.shape, indices, reduction, options)

    expected = by_definition(table, indices, weights=weights, combiner=reduction, **options)
    table = held(["tensor", "variable"][rng.integers(0, 2)], table)
    actual = tf_ti.embedding_bag_packed(table, indices, weights, reduction, **options)
    check(actual, expected, dtype, scale=20)


@pytest.mark.parametrize("seed", range(300, 330), indirect=True)
def test_random_segments_give_what_the_definition_gives(rng):
    dtype = DTYPES[rng.integers(0, len(DTYPES))]
    index_type = [np.int32, np.int64][rng.integers(0, 2)]
    table = random_table(rng, dtype)
    options = random_options(rng, len(table), dtype)
    count, batch = int(rng.integers(0, 100)), int(rng.integers(1, 30))
    indices = random_ids(rng, len(table), count, options["padding_idx"]).astype(index_type)
    segment_ids = np.sort(rng.integers(0, batch, count)).astype(index_type)
    weights = normal(dtype, count, rng) if rng.random() < 0.5 else None
    print(dtype.name, table.shape, indices, segment_ids, batch, options)

    bags = [indices[segment_ids == at] for at in range(batch)]
    grouped = None
    if weights is not None:
        grouped = [weights[segment_ids == at] for at in range(batch)]
    expected = by_definition(table, bags, weights=grouped, **options)
    table = held(["tensor", "variable"][rng.integers(0, 2)], table)
    batch = [batch, tf.constant(batch, index_type)][rng.integers(0, 2)]
    actual = tf_ti.embedding_segments_sum(
        table, indices, segment_ids, batch, per_sample_weights=weights, **options
    )
    check(actual, expected, dtype, scale=20)


@pytest.mark.parametrize("seed", range(400, 450), indirect=True)
def test_random_ragged_and_sparse_bags_give_what_the_definition_gives(rng):
    dtype = [*REALS, *COMPLEX][rng.integers(0, 6)]
    index_type = [tf.int32, tf.int64][rng.integers(0, 2)]
    table = random_table(rng, dtype)
    options = random_options(rng, len(table), dtype)
    lengths = rng.integers(0, 8, rng.integers(0, 20)) * (rng.random() < 0.9)
    bags = [random_ids(rng, len(table), n, options["padding_idx"]) for n in lengths]
    combiner = ["sum", "mean", "sqrtn", "max"][rng.integers(0, 3 if dtype.is_complex else 4)]
    weights = None
    if combiner != "max" and rng.random() < 0.6:
        # Of one sign: a sum of weights near 0 says nothing about the quotient.
        weights = [np.abs(normal(dtype, n, rng)) + 0.5 for n in lengths]
        weights = [w.astype(dtype.as_numpy_dtype) for w in weights]
    print(dtype.name, table.shape, bags, combiner, weights, options)

    expected = by_definition(table, bags, weights=weights, combiner=combiner, **options)
    kind = ["sparse", "ragged"][rng.integers(0, 2)]
    actual = tf_ti.embedding_bag(
        held(["tensor", "variable"][rng.integers(0, 2)], table),
        shaped(kind, bags, index_type),
        None if weights is None else shaped(kind, weights, dtype),
        combiner,
        **options,
    )
    check(actual, expected, dtype, scale=20)


# Types


@each_dtype
@each_index_type
@each_kind
def test_every_dtype_adds_up_without_an_error(dtype, index_type, kind):
    rng = np.random.default_rng(3)
    table = exact(dtype, [30, 21], rng)
    indices = rng.integers(0, 30, 100).astype(index_type)
    offsets = np.array([0, 0, 7, 8, 60, 60, 99, 100], index_type)
    bags = bags_of(indices, offsets)
    source = held(kind, table)
    expected = by_definition(table, bags, default_index=3)
    actual = tf_ti.embedding_bag_offsets_sum(source, indices, offsets, 3)
    assert actual.dtype == dtype
    np.testing.assert_array_equal(actual, expected.astype(table.dtype))

    weights = exact(dtype, 100, rng)
    expected = by_definition(table, bags, weights=bags_of(weights, offsets))
    actual = tf_ti.embedding_bag_offsets_sum(source, indices, offsets, None, weights)
    np.testing.assert_array_equal(actual, expected.astype(table.dtype))

    expected = by_definition(table, bags, combiner="mean", default_index=0)
    actual = tf_ti.embedding_bag_offsets(source, indices, offsets, 0, reduction="mean")
    check(actual, expected, dtype, scale=20)
    if not dtype.is_complex:
        expected = by_definition(table, bags, combiner="max")
        actual = tf_ti.embedding_bag_offsets(source, indices, offsets, reduction="max")
        np.testing.assert_array_equal(actual, expected.astype(table.dtype))


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED], ids=lambda dtype: dtype.name)
def test_the_limits_of_integers_are_values_like_others(dtype):
    table = np.array([[dtype.min, dtype.max], [dtype.max, dtype.min]], dtype.as_numpy_dtype)
    single = tf_ti.embedding_bag_offsets(table, [0, 1], [0, 1])
    np.testing.assert_array_equal(single, table)
    for reduction in ("mean", "max"):
        single = tf_ti.embedding_bag_packed(table, [[0], [1]], reduction=reduction)
        np.testing.assert_array_equal(single, table)
    largest = tf_ti.embedding_bag_packed(table, [[0, 1], [0, 0]], reduction="max")
    np.testing.assert_array_equal(largest, [[dtype.max] * 2, table[0]])


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED], ids=lambda dtype: dtype.name)
def test_sums_of_integers_wrap_around_as_in_numpy(dtype):
    table = np.array([[dtype.max], [1], [dtype.max // 2]], dtype.as_numpy_dtype)
    actual = tf_ti.embedding_bag_packed(table, [[0, 1], [2, 2], [0, 0]])
    with np.errstate(over="ignore"):
        expected = table[[0, 2, 0]] + table[[1, 2, 0]]
    np.testing.assert_array_equal(actual, expected)


def test_the_mean_of_integers_is_truncated_towards_zero():
    table = tf.constant([[-7, 7], [0, 0], [-1, 1]])
    actual = tf_ti.embedding_bag_packed(table, [[0, 1], [1, 2]], reduction="mean")
    assert actual.numpy().tolist() == [[-3, 3], [0, 0]]


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("width", [1, 16, 37])
@pytest.mark.parametrize("weighted", ["plain", "half weights", "float32 weights"])
def test_halves_are_summed_in_float32_and_rounded_once(dtype, width, weighted):
    rng = np.random.default_rng(5)
    # Multiples of 1/64 below 2: sums of 2000 of them are exact in float32, in halves they are not.
    table = (rng.integers(-128, 128, [50, width]) / 64).astype(dtype.as_numpy_dtype)
    indices = rng.integers(0, 50, 2300)
    offsets = [0, 300, 300, 2300]
    weights = None
    if weighted != "plain":
        weights = rng.integers(1, 4, 2300) / 2
        weights = weights.astype(np.float32 if "32" in weighted else table.dtype)
    rows = table[indices].astype(np.float32)
    if weights is not None:
        rows = rows * weights.astype(np.float32)[:, None]
    sums = np.stack([rows[:300].sum(0), rows[0:0].sum(0), rows[300:].sum(0)])
    actual = tf_ti.embedding_bag_offsets_sum(
        table, indices, offsets, None, weights, include_last_offset=True
    )
    assert actual.dtype == dtype
    np.testing.assert_array_equal(actual, sums.astype(table.dtype))
    if weights is None:
        means = sums / np.float32([[300], [1], [2000]])
        actual = tf_ti.embedding_bag_offsets(
            table, indices, offsets, reduction="mean", include_last_offset=True
        )
        # A mean that multiplies by the reciprocal is one float32 rounding away, not more.
        near = [(means * f).astype(table.dtype) for f in np.float32([1 - 1e-6, 1 + 1e-6])]
        assert np.all((actual.numpy() == near[0]) | (actual.numpy() == near[1]))


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
def test_weights_of_float32_are_not_rounded_to_halves(dtype):
    weights = np.float32([1 + 2**-20, -1])
    actual = tf_ti.embedding_bag_offsets_sum(tf.ones([1, 3], dtype), [0, 0], [0], None, weights)
    np.testing.assert_array_equal(np.float32(actual), np.full([1, 3], np.float32(2**-20)))


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
def test_the_mean_of_a_sum_beyond_a_half_is_finite(dtype):
    table = tf.fill([3, 5], tf.constant(40000.0, dtype))
    actual = tf_ti.embedding_bag_packed(table, np.zeros([2, 1000], np.int32), reduction="mean")
    np.testing.assert_array_equal(actual, tf.fill([2, 5], table[0, 0]))


def test_the_mean_of_integers_does_not_overflow():
    table = tf.constant([[100, -100]], tf.int8)
    y = tf_ti.embedding_bag_packed(table, np.zeros([1, 1000], np.int32), reduction="mean")
    assert y.numpy().tolist() == [[100, -100]]


def test_every_half_is_read_and_written_as_it_is():
    table = np.arange(2**16, dtype=np.uint16).reshape(-1, 64)
    for width in (1, 4, 7, 64):
        for dtype in (np.float16, tf.bfloat16.as_numpy_dtype):
            rows = np.ascontiguousarray(table[:, :width]).view(dtype)
            y = tf_ti.embedding_bag_packed(rows, np.arange(len(rows))[:, np.newaxis])
            np.testing.assert_array_equal(np.float32(y), np.float32(rows))


# Shapes


WIDTHS = [*range(41), *range(63, 71), *range(127, 141), 300, 1000]


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.int16], ids=lambda d: d.name)
@pytest.mark.parametrize("first", range(0, len(WIDTHS), 10))
def test_every_width_is_summed_to_its_last_element(dtype, first):
    rng = np.random.default_rng(first)
    for width in WIDTHS[first : first + 10]:
        table = exact(dtype, [20, width], rng)
        indices = rng.integers(0, 20, 64)
        offsets = [0, 1, 3, 3, 7, 40]
        weights = exact(dtype, 64, rng)
        bags = bags_of(indices, offsets)
        for combiner, given in [("sum", None), ("sum", weights), ("max", None), ("mean", None)]:
            grouped = None if given is None else bags_of(given, offsets)
            expected = by_definition(table, bags, weights=grouped, combiner=combiner)
            actual = tf_ti.embedding_bag_offsets(table, indices, offsets, None, given, combiner)
            check(actual, expected, dtype, scale=8)
            if combiner != "mean":
                np.testing.assert_array_equal(actual, expected.astype(table.dtype))


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@each_reduction
@each_kind
def test_tables_of_any_rank(rank, reduction, kind):
    rng = np.random.default_rng(rank)
    table = normal(tf.float32, [9, 5, 3, 2][:rank], rng)
    indices, offsets = rng.integers(0, 9, 30), [2, 2, 11, 30]
    expected = by_definition(table, bags_of(indices, offsets), combiner=reduction, default_index=4)
    actual = tf_ti.embedding_bag_offsets(
        held(kind, table), indices, offsets, 4, reduction=reduction
    )
    check(actual, expected, tf.float32, scale=20)


@each_reduction
@each_kind
@pytest.mark.parametrize("default_index", [None, -1, 1])
def test_no_ids_no_bags_no_width_and_no_rows(reduction, kind, default_index):
    def run(table, indices, offsets, **more):
        y = tf_ti.embedding_bag_offsets(
            held(kind, table),
            np.array(indices, np.int32),
            np.array(offsets, np.int32),
            reduction=reduction,
            **{"default_index": default_index, **more},
        )
        return y.numpy()

    table = np.arange(12, dtype=np.float32).reshape(4, 3) + 1
    empty = [0, 0, 0] if default_index in (None, -1) else [4, 5, 6]
    np.testing.assert_array_equal(run(table, [], [0, 0]), [empty] * 2)
    np.testing.assert_array_equal(run(table, [1], [1, 1]), [empty] * 2)
    assert run(table, [], []).shape == (0, 3)
    assert run(table, [1, 2], []).shape == (0, 3)
    assert run(table, [1, 2], [1], include_last_offset=True).shape == (0, 3)
    assert run(table[:, :0], [0, 1], [0, 1, 2]).shape == (3, 0)
    assert run(table.reshape(4, 3, 1)[..., :0], [0, 1], [0, 1, 2]).shape == (3, 3, 0)
    zeros = run(table[:0], [], [0, 0], default_index=None)
    np.testing.assert_array_equal(zeros, np.zeros([2, 3]))
    assert run(table[:0, :0], [], [], default_index=None).shape == (0, 0)


@each_kind
def test_packed_and_segments_of_nothing(kind):
    table = held(kind, np.ones([4, 3], np.float32))
    empty = np.zeros([0], np.int64)
    for shape in ([0, 0], [0, 5], [5, 0]):
        y = tf_ti.embedding_bag_packed(table, np.zeros(shape, np.int32))
        np.testing.assert_array_equal(y, np.zeros([shape[0], 3]))
    y = tf_ti.embedding_bag_packed(table, np.zeros([5, 0], np.int32), default_index=2)
    np.testing.assert_array_equal(y, np.ones([5, 3]))
    for count in (0, 4):
        y = tf_ti.embedding_segments_sum(table, empty, empty, count)
        np.testing.assert_array_equal(y, np.zeros([count, 3]))


@each_kind
def test_ragged_and_sparse_of_nothing(kind):
    table = held(kind, np.ones([4, 3], np.float32))
    for bags in ([], [[]], [[], [], []]):
        for form in ("ragged", "sparse"):
            y = tf_ti.embedding_bag(table, shaped(form, bags, tf.int64), combiner="mean")
            np.testing.assert_array_equal(y, np.zeros([len(bags), 3]))
    y = tf_ti.embedding_bag(table, ragged_of([[], [1], []], tf.int32), default_index=0)
    np.testing.assert_array_equal(y, np.ones([3, 3]))


@each_kind
@each_reduction
@each_index_type
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.int32], ids=lambda d: d.name)
def test_one_giant_bag_beside_empty_and_small_ones(kind, reduction, index_type, dtype):
    rng = np.random.default_rng(17)
    count = 300_000
    table = exact(dtype, [999, 7], rng)
    if dtype.is_floating:
        table = (table / 64).astype(table.dtype)  # the sum is one of float16's numbers
    indices = rng.integers(0, 999, count).astype(index_type)
    offsets = np.array([0, 0, 0, 5, count - 9, count - 9, count - 1, count], index_type)
    bags = bags_of(indices, offsets)
    expected = by_definition(table, bags, combiner=reduction, default_index=998)
    actual = tf_ti.embedding_bag_offsets(
        held(kind, table), indices, offsets, 998, reduction=reduction
    )
    check(actual, expected, dtype, scale=20)
    if reduction != "mean":
        np.testing.assert_array_equal(actual, expected.astype(table.dtype))


def test_one_giant_bag_with_weights_padding_and_max_norm():
    rng = np.random.default_rng(18)
    count = 200_000
    table = normal(tf.float64, [50, 33], rng)
    indices = rng.integers(0, 50, count)
    weights = rng.standard_normal(count)
    offsets = [3, count - 5, count - 5]
    options = {"default_index": 2, "padding_idx": 7, "max_norm": 5.0}
    expected = by_definition(
        table, bags_of(indices, offsets), weights=bags_of(weights, offsets), **options
    )
    actual = tf_ti.embedding_bag_offsets_sum(
        table, indices, offsets, per_sample_weights=weights, **options
    )
    check(actual, expected, tf.float64, scale=1e5)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("size", [5, 20_000])
def test_subnormal_numbers_are_not_flushed_to_zero(dtype, size):
    table = np.array([[0], [1e-40]], dtype.as_numpy_dtype)
    ids = np.zeros([1, size], np.int64)
    ids[0, 1:4] = 1
    few = table[1, 0].astype(np.float32)
    for call in (lambda f: f, tf.function):
        total = call(lambda: tf_ti.embedding_bag_packed(table, ids))().numpy()
        np.testing.assert_array_equal(total[0, 0], (3 * few).astype(table.dtype))
        most = call(lambda: tf_ti.embedding_bag_packed(table, ids, reduction="max"))().numpy()
        np.testing.assert_array_equal(most[0, 0], table[1, 0])


def test_a_giant_bag_of_padding_is_an_empty_bag():
    indices = np.full(300_000, 3)
    y = tf_ti.embedding_bag_offsets(
        np.ones([4, 2], np.float32), indices, [0, 5], 1, reduction="max", padding_idx=3
    )
    np.testing.assert_array_equal(y, np.ones([2, 2]))


def test_a_hundred_thousand_bags_most_of_them_empty():
    rng = np.random.default_rng(19)
    table = exact(tf.float32, [100, 3], rng)
    indices = rng.integers(0, 100, 5000)
    segment_ids = np.sort(rng.integers(0, 100_000, 5000))
    expected = np.zeros([100_000, 3], np.float32)
    np.add.at(expected, segment_ids, table[indices])
    actual = tf_ti.embedding_segments_sum(table, indices, segment_ids, 100_000)
    np.testing.assert_array_equal(actual, expected)
    offsets = np.searchsorted(segment_ids, np.arange(100_000))
    actual = tf_ti.embedding_bag_offsets_sum(table, indices, offsets)
    np.testing.assert_array_equal(actual, expected)


def test_many_ids_of_one_row():
    table = np.arange(8.0).reshape(4, 2)
    y = tf_ti.embedding_bag_offsets_sum(table, [3] * 1000, [0, 1, 1])
    np.testing.assert_array_equal(y, [[6, 7], [0, 0], [999 * 6, 999 * 7]])


# Options


def test_ids_before_the_first_offset_belong_to_no_bag():
    table = tf.eye(4)
    y = tf_ti.embedding_bag_offsets_sum(table, [0, 1, 2, 3], [2, 3])
    np.testing.assert_array_equal(y, [[0, 0, 1, 0], [0, 0, 0, 1]])
    y = tf_ti.embedding_bag_offsets_sum(table, [0, 1, 2, 3], [4])
    np.testing.assert_array_equal(y, np.zeros([1, 4]))


def test_the_last_offset_ends_the_last_bag():
    table = tf.eye(4)
    y = tf_ti.embedding_bag_offsets_sum(table, [0, 1, 2, 3], [1, 2, 3], include_last_offset=True)
    np.testing.assert_array_equal(y, [[0, 1, 0, 0], [0, 0, 1, 0]])


@each_index_type
@pytest.mark.parametrize(
    "form", [int, "scalar", np.array, tf.constant], ids=lambda form: getattr(form, "__name__", form)
)
def test_a_default_index_in_every_form(form, index_type):
    default = index_type(2) if form == "scalar" else form(index_type(2))
    table = tf.constant(TABLE)
    indices, offsets = np.array([0], index_type), np.array([0, 1], index_type)
    expected = [TABLE[0], TABLE[2]]
    for y in (
        tf_ti.embedding_bag_offsets_sum(table, indices, offsets, default),
        tf_ti.embedding_segments_sum(table, indices, offsets[:1], 2, default),
        tf_ti.embedding_bag(table, ragged_of([[0], []], index_type), default_index=default),
    ):
        np.testing.assert_allclose(y, expected)


@pytest.mark.parametrize("other_type", [tf.int8, tf.int32, tf.int64, tf.uint64], ids=str)
@pytest.mark.parametrize("index_type", [*SIGNED, *UNSIGNED], ids=lambda dtype: dtype.name)
def test_indices_of_any_integer_dtype_beside_bounds_of_any_other(index_type, other_type):
    table = np.arange(130, dtype=np.float32)[:, np.newaxis]
    indices = tf.constant([127, 3, 1], index_type)  # the former is the largest that all hold
    default = tf.constant(2, other_type)
    by_offsets = tf_ti.embedding_bag_offsets_sum(
        table, indices, tf.constant([0, 2, 2], other_type), default
    )
    np.testing.assert_array_equal(by_offsets, [[130], [2], [1]])
    by_segments = tf_ti.embedding_segments_sum(
        table,
        tf.constant([0, 2, 1], other_type),
        tf.constant([0, 0, 2], index_type),
        tf.constant(3, index_type),
        default,
    )
    np.testing.assert_array_equal(by_segments, [[2], [2], [1]])
    packed = tf_ti.embedding_bag_packed(table, indices[:, tf.newaxis], default_index=default)
    np.testing.assert_array_equal(packed, [[127], [3], [1]])


@pytest.mark.parametrize("index_type", [tf.uint8, tf.uint32, tf.uint64], ids=str)
def test_no_unsigned_id_is_padding_of_minus_one(index_type):
    last = index_type.max if index_type == tf.uint8 else 3
    ids = tf.constant([[0, last]], index_type)
    y = tf_ti.embedding_bag_packed(tf.ones([256, 1]), ids, padding_idx=-1)
    np.testing.assert_array_equal(y, [[2]])


def test_a_default_index_of_minus_one_in_a_tensor_gives_zeros():
    y = tf_ti.embedding_bag_offsets_sum(TABLE, [0], [0, 1], tf.constant(-1))
    np.testing.assert_allclose(y, [TABLE[0], [0, 0]])


@each_reduction
def test_the_default_row_is_unweighted_and_undivided(reduction):
    table = tf.constant(TABLE)
    weights = [3.0, 3.0] if reduction == "sum" else None
    y = tf_ti.embedding_bag_offsets(table, [0, 0], [0, 2], 1, weights, reduction)
    np.testing.assert_allclose(y[1], TABLE[1])


@each_reduction
@pytest.mark.parametrize("padding_idx", [2, -1, 77, -(2**40)])
def test_padding_counts_for_nothing(reduction, padding_idx):
    rng = np.random.default_rng(2)
    table = normal(tf.float32, [5, 6], rng)
    p = padding_idx
    bags = [[0, p, 1], [p, p], [p, 4], [], [3, p]]
    expected = by_definition(
        table, [[i for i in bag if i != p] for bag in bags], combiner=reduction, default_index=3
    )
    y = tf_ti.embedding_bag(
        table, ragged_of(bags, tf.int64), combiner=reduction, default_index=3, padding_idx=p
    )
    check(y, expected, tf.float32, scale=5)
    if reduction == "sum":
        weights = ragged_of([np.full(len(bag), 2.0) for bag in bags], tf.float32)
        y = tf_ti.embedding_bag(table, ragged_of(bags, tf.int64), weights, padding_idx=p)
        check(y, by_definition(table, bags, padding_idx=p) * 2, tf.float32, scale=5)


def test_a_padding_index_that_is_no_value_of_the_index_type_is_met_by_no_id():
    table = tf.eye(3)
    y = tf_ti.embedding_bag_offsets_sum(
        table, np.array([0, 1], np.int32), np.array([0], np.int32), padding_idx=2**32 + 1
    )
    np.testing.assert_array_equal(y, [[1, 1, 0]])


def test_a_padding_index_is_not_counted_from_the_end():
    y = tf_ti.embedding_bag_packed(tf.eye(3), [[0, 2]], padding_idx=-1)
    np.testing.assert_array_equal(y, [[1, 0, 1]])


def test_weights_of_padding_count_for_nothing():
    table = tf.constant([[2.0], [4.0], [100.0]])
    ids, weights = tf.constant([[0, 1, 2]]), tf.constant([[1.0, 3.0, 96.0]])
    mean = tf_ti.embedding_bag(table, ids, weights, "mean", padding_idx=2)
    np.testing.assert_allclose(mean, [[14 / 4]], rtol=1e-6)
    root = tf_ti.embedding_bag(table, ids, weights, "sqrtn", padding_idx=2)
    np.testing.assert_allclose(root, [[14 / np.sqrt(10)]], rtol=1e-6)


@pytest.mark.parametrize("dtype", REALS, ids=lambda dtype: dtype.name)
def test_rows_beyond_max_norm_are_scaled_as_they_are_read(dtype):
    table = tf.Variable(tf.cast([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype))
    before = table.numpy()
    y = tf_ti.embedding_bag_packed(table, [[0], [1], [2]], max_norm=1.0)
    check(y, np.array([[0.6, 0.8], before[1], [0, 0]], wide(dtype)), dtype)
    np.testing.assert_array_equal(table, before)


def test_a_list_of_numbers_is_a_table_for_max_norm_too():
    y = tf_ti.embedding_bag_packed([[3.0, 4.0]], [[0]], max_norm=1.0)
    np.testing.assert_allclose(y, [[0.6, 0.8]], rtol=1e-6)


def test_the_default_row_is_scaled_to_max_norm_too():
    y = tf_ti.embedding_bag_offsets_sum(
        tf.constant([[3.0, 4.0]]), np.zeros([0], np.int32), np.zeros([1], np.int32), 0, max_norm=1.0
    )
    np.testing.assert_allclose(y, [[0.6, 0.8]], rtol=1e-6)


def test_a_row_of_a_table_of_rank_one_is_scaled_too():
    y = tf_ti.embedding_bag_packed(tf.constant([-3.0, 0.5]), [[0], [1]], max_norm=2.0)
    np.testing.assert_allclose(y, [-2.0, 0.5], rtol=1e-6)


def scaled_to_norms(table, max_norm, norm_type):
    flat = table.reshape(len(table), -1)
    norms = np.linalg.norm(flat.astype(np.float64), norm_type, axis=1)
    factors = np.where(norms > max_norm, max_norm / np.where(norms > 0, norms, 1), 1)
    return table * factors.reshape([-1] + [1] * (table.ndim - 1))


@pytest.mark.parametrize("norm_type", [0.5, 1, 1.5, 2, 3.0, np.float32(7), np.inf])
@pytest.mark.parametrize("shape", [[9, 4], [9], [9, 2, 3]], ids=str)
def test_rows_are_scaled_by_any_norm(norm_type, shape):
    table = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    table[2], table[3].flat[0] = 0, 0
    ids = np.arange(9)
    expected = scaled_to_norms(table, 1.0, norm_type)
    options = {"max_norm": 1.0, "norm_type": norm_type}
    for y in (
        tf_ti.embedding_bag_offsets_sum(table, ids, ids, **options),
        tf_ti.embedding_bag_offsets(table, ids, ids, reduction="mean", **options),
        tf_ti.embedding_bag_packed(table, ids[:, np.newaxis], reduction="max", **options),
        tf_ti.embedding_segments_sum(table, ids, ids, 9, **options),
        tf_ti.embedding_bag(table, ids[:, np.newaxis], combiner="sqrtn", **options),
        tf_ti.embedding_bag(np.split(table, 3), ids[:, np.newaxis], **options),
    ):
        np.testing.assert_allclose(y, expected, rtol=2e-6)


@pytest.mark.parametrize("norm_type", [0.5, 1, 2, 40, np.inf])
@pytest.mark.parametrize("size", [1e37, 1e-35])
def test_norms_of_very_large_and_very_small_numbers(norm_type, size):
    table = np.float32([[3, -4, 1], [0, 2, 0]])
    y = tf_ti.embedding_bag_packed(
        table * np.float32(size), [[0], [1]], max_norm=size / 2, norm_type=norm_type
    )
    np.testing.assert_allclose(y / size, scaled_to_norms(table, 0.5, norm_type), rtol=2e-6)


@pytest.mark.parametrize("max_norm", [1e4, 1e300, np.inf])
@pytest.mark.parametrize("norm_type", [1, 2, 2.5, np.inf])
def test_rows_within_max_norm_are_what_they_were(max_norm, norm_type):
    table = np.random.default_rng(4).standard_normal([50, 7]).astype(np.float32)
    ids = np.arange(50)[:, np.newaxis]
    y = tf_ti.embedding_bag_packed(table, ids, max_norm=max_norm, norm_type=norm_type)
    np.testing.assert_array_equal(y, table)


# NaN and infinity


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, 1.0, -2.0]


@pytest.mark.parametrize("dtype", REALS, ids=lambda dtype: dtype.name)
@each_reduction
@pytest.mark.parametrize("width", [1, 6, 33])
def test_nan_and_infinity_in_the_table_propagate(dtype, reduction, width):
    rng = np.random.default_rng(8)
    table = rng.choice(SPECIAL, [12, width]).astype(dtype.as_numpy_dtype)
    indices, offsets = rng.integers(0, 12, 60), np.arange(0, 60, 3)
    with np.errstate(invalid="ignore"):
        expected = by_definition(table, bags_of(indices, offsets), combiner=reduction)
    actual = tf_ti.embedding_bag_offsets(table, indices, offsets, reduction=reduction)
    np.testing.assert_allclose(np.asarray(actual).astype(np.float64), expected, rtol=4e-3)


@pytest.mark.parametrize("dtype", REALS, ids=lambda dtype: dtype.name)
def test_nan_and_infinity_in_weights_propagate(dtype):
    rng = np.random.default_rng(9)
    table = rng.choice([0.0, 1.0, -2.0, np.nan, np.inf], [12, 19]).astype(dtype.as_numpy_dtype)
    indices, offsets = rng.integers(0, 12, 60), np.arange(0, 60, 3)
    weights = rng.choice(SPECIAL, 60).astype(dtype.as_numpy_dtype)
    with np.errstate(invalid="ignore"):
        expected = by_definition(
            table, bags_of(indices, offsets), weights=bags_of(weights, offsets)
        )
    actual = tf_ti.embedding_bag_offsets_sum(table, indices, offsets, None, weights)
    np.testing.assert_allclose(np.asarray(actual).astype(np.float64), expected, rtol=4e-3)


def test_rows_that_no_bag_names_do_not_matter():
    table = np.full([5, 4], np.nan, np.float32)
    table[1] = 2
    y = tf_ti.embedding_bag_offsets(
        table, [0, 1, 3, 1], [1, 1, 2, 4], padding_idx=3, default_index=None
    )
    np.testing.assert_array_equal(y, [[0] * 4, [2] * 4, [2] * 4, [0] * 4])


@each_reduction
def test_nan_and_infinity_anywhere_in_a_giant_bag_propagate(reduction):
    table = np.ones([4, 5], np.float32)
    table[1:, 0] = np.nan, np.inf, -np.inf
    for value in (1, 2, 3):
        for at in (0, 9000, 49_999):
            indices = np.zeros([50_000], np.int32)
            indices[at] = value
            y = tf_ti.embedding_bag_offsets(table, indices, [0], reduction=reduction).numpy()
            if reduction == "max":
                expected = 1 if value == 3 else table[value, 0]
            else:
                expected = table[value, 0]
            np.testing.assert_array_equal(y[0, 0], expected)
            assert np.all(y[0, 1:] == (50_000 if reduction == "sum" else 1))


def test_the_maximum_of_minus_infinities_is_minus_infinity():
    table = np.full([3, 17], -np.inf, np.float32)
    y = tf_ti.embedding_bag_packed(table, [[0, 1, 2]], reduction="max")
    np.testing.assert_array_equal(y, table[:1])


# embedding_bag


@pytest.mark.parametrize(
    ("combiner", "weighted"),
    [
        (c, w)
        for c in ("sum", "mean", "sqrtn", "max")
        for w in (False, True)
        if (c, w) != ("max", True)
    ],
)
@pytest.mark.parametrize("form", ["ragged", "sparse", "dense"])
def test_combiners_over_every_form_of_ids(combiner, form, weighted):
    rng = np.random.default_rng(4)
    table = normal(tf.float64, [20, 3, 2], rng)
    bags = [[1, 1, 5], [0, 19, 3]] if form == "dense" else [[], [1, 1, 5], [], [0], []]
    weights = [rng.random(len(bag)) for bag in bags] if weighted else None
    expected = by_definition(table, bags, weights=weights, combiner=combiner)
    if form == "dense":
        ids, given = tf.constant(bags), weights and tf.constant(weights)
    else:
        ids, given = shaped(form, bags, tf.int64), weights and shaped(form, weights, tf.float64)
    check(tf_ti.embedding_bag(table, ids, given, combiner), expected, tf.float64, scale=5)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ids_type", [*SIGNED, *UNSIGNED], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("splits_type", [np.int32, np.int64])
def test_ids_and_row_splits_of_any_index_type(ids_type, splits_type, weighted):
    bags = [[1], [], [2, 3]]
    table = normal(tf.float32, [4, 3], np.random.default_rng(0))
    weights = [[2.0], [], [3.0, 4.0]] if weighted else None
    y = tf_ti.embedding_bag(
        table,
        ragged_of(bags, ids_type, splits_type),
        weights and ragged_of(weights, tf.float32, splits_type),
    )
    check(y, by_definition(table, bags, weights=weights), tf.float32, scale=10)


@each_combiner
@pytest.mark.parametrize("kind", ["ragged", "uniform inside"])
def test_more_ragged_dimensions_give_a_ragged_result(combiner, kind):
    table = normal(tf.float32, [9, 4], np.random.default_rng(1))
    if kind == "ragged":
        nested = [[[1, 2], [], [3]], [], [[8]]]
        ids = tf.ragged.constant(nested, ragged_rank=2)
    else:
        nested = [[[1, 2], [3, 4]], [], [[8, 8]]]
        ids = tf.RaggedTensor.from_row_lengths(
            tf.ragged.constant([[1, 2], [3, 4], [8, 8]], ragged_rank=1), [2, 0, 1]
        )
    y = tf_ti.embedding_bag(table, ids, combiner=combiner)
    assert isinstance(y, tf.RaggedTensor)
    assert y.ragged_rank == 1
    np.testing.assert_array_equal(y.row_lengths(), [len(row) for row in nested])
    bags = [bag for row in nested for bag in row]
    check(y.flat_values, by_definition(table, bags, combiner=combiner), tf.float32, scale=5)


def from_lengths(*partitions):
    """Makes a RaggedTensor of flat values: of lengths, outermost first, or of a uniform length."""

    def make(values):
        for partition in reversed(partitions):
            if isinstance(partition, int):
                values = tf.RaggedTensor.from_uniform_row_length(values, partition)
            else:
                values = tf.RaggedTensor.from_row_lengths(values, partition)
        return values

    return make


# Functions that make ids of flat values, and the shape of these.
UNIFORM = {
    "ragged, 2": (from_lengths([2, 0, 4]), [6, 2]),
    "ragged, 1": (from_lengths([2, 0, 4]), [6, 1]),
    "ragged, 0": (from_lengths([2, 0, 4]), [6, 0]),
    "ragged, 2, 3": (from_lengths([0, 1, 2]), [3, 2, 3]),
    "ragged, 2, 1, 3": (from_lengths([0, 1, 2]), [3, 2, 1, 3]),
    "ragged, ragged, 2": (from_lengths([2, 0, 1], [1, 0, 3]), [4, 2]),
    "of nothing, 2": (from_lengths([0, 0]), [0, 2]),
    "of no rows, 2": (from_lengths(np.zeros([0], int)), [0, 2]),
    "2, ragged": (from_lengths(2, [1, 0, 3, 2]), [6]),
    "2, ragged, 3": (from_lengths(2, [1, 0, 3, 2]), [6, 3]),
    "ragged, 2 rows": (from_lengths([1, 0, 3], 2), [8]),
    "ragged, 2 rows of 3": (from_lengths([1, 0, 1], 2), [4, 3]),
    "2, 3, ragged": (from_lengths(2, 3, [1, 0, 3, 2, 0, 1]), [7]),
}


def uniform(form, rng, rows=9):
    make, shape = UNIFORM[form]
    return make(tf.constant(rng.integers(0, rows, shape))), make(tf.constant(rng.random(shape)))


def of_innermost(function, rank, *nested):
    """The function of each list of a nested list at that depth from its end."""
    if rank == 1:
        return function(*nested)
    return [of_innermost(function, rank - 1, *inside) for inside in zip(*nested)]


def check_innermost(y, ids, weights, table, **options):
    """That each innermost row is a bag, and that the result is ragged where ids are."""
    expected = of_innermost(
        lambda i, w: by_definition(table, [i], weights=None if weights is None else [w], **options)[
            0
        ].tolist(),
        ids.shape.rank,
        ids.to_list(),
        (ids if weights is None else weights).to_list(),
    )
    y = y.to_list() if isinstance(y, tf.RaggedTensor) else y.numpy().tolist()
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, 1e-12, 1e-12), y, expected)


@pytest.mark.parametrize("form", UNIFORM)
@each_combiner
def test_ragged_ids_with_uniform_dimensions_are_pooled_over_their_last(combiner, form):
    rng = np.random.default_rng(5)
    table = normal(tf.float64, [9, 4], rng)
    ids, weights = uniform(form, rng)
    for given in (None, weights) if combiner != "max" else (None,):
        for options in ({}, {"default_index": 3}, {"padding_idx": 2}, {"max_norm": 1.5}):
            y = tf_ti.embedding_bag(table, ids, given, combiner, **options)
            assert y.shape == ids.shape[:-1] + table.shape[1:]
            check_innermost(y, ids, given, table, combiner=combiner, **options)
        for strategy in ("div", "mod"):
            shards = shards_of(table, 2, strategy)
            y = tf_ti.embedding_bag(shards, ids, given, combiner, partition_strategy=strategy)
            check_innermost(y, ids, given, table, combiner=combiner)


@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "compiled"])
@pytest.mark.parametrize("form", UNIFORM)
def test_ragged_ids_with_uniform_dimensions_of_unknown_shapes(form, compiled):
    rng = np.random.default_rng(6)
    table = normal(tf.float64, [9, 4], rng)
    ids, weights = uniform(form, rng)
    specs = [
        tf.RaggedTensorSpec([None] * x.shape.rank, x.dtype, x.ragged_rank) for x in (ids, weights)
    ]

    @tf.function(input_signature=specs, jit_compile=compiled)
    def pool(ids, weights):
        y = tf_ti.embedding_bag(table, ids, weights, "mean")
        assert y.shape.rank == ids.shape.rank
        return y

    y = pool(ids, weights)
    check_innermost(y, ids, weights, table, combiner="mean")


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("form", [form for form, (_, shape) in UNIFORM.items() if len(shape) > 1])
def test_gradients_of_ragged_ids_with_uniform_dimensions(form, jit_compile):
    rng = np.random.default_rng(7)
    table = tf.constant(normal(tf.float64, [9, 4], rng))
    ids, weights = uniform(form, rng)

    def gathered(table, ids, weights):
        rows = tf.gather(table, ids.flat_values) * weights.flat_values[..., tf.newaxis]
        return tf.reduce_sum(rows, -2)

    def bags(table, ids, weights):
        y = tf_ti.embedding_bag(table, ids, weights)
        return y.flat_values if isinstance(y, tf.RaggedTensor) else y

    def gradients(pool, table, ids, weights):
        with tf.GradientTape() as tape:
            tape.watch([table, weights.flat_values])
            loss = tf.reduce_sum(pool(table, ids, weights) ** 2)
        of_table, of_weights = tape.gradient(loss, [table, weights.flat_values])
        return tf.convert_to_tensor(of_table), of_weights

    mine = tf.function(lambda *x: gradients(bags, *x), jit_compile=jit_compile)(table, ids, weights)
    for a, b in zip(mine, gradients(gathered, table, ids, weights)):
        np.testing.assert_allclose(a, b, 1e-12, 1e-12)


def test_weights_of_ragged_ids_with_uniform_dimensions_are_checked():
    make, table = from_lengths([2, 0, 4]), np.ones([9, 2])
    ids = make(tf.zeros([6, 2], tf.int32))
    for weights, message in (
        (tf.ones([3, 2, 2]), "weights must be a RaggedTensor like ids"),
        (make(tf.ones([6])), r"weights must have the shape of the values of ids, \(6, 2\), got"),
        (make(tf.ones([6, 3])), r"weights must have the shape of the values of ids, \(6, 2\), got"),
        (from_lengths([2, 0, 2], 2)(tf.ones([8])), "weights must be ragged like ids, of rank 1"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            tf_ti.embedding_bag(table, ids, weights)
    other = from_lengths([4, 0, 2])(tf.ones([6, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="weights must have the row splits of"):
        tf_ti.embedding_bag(table, ids, other)


@pytest.mark.parametrize("shape", [[2, 3, 4], [2, 1, 3, 2], [3, 0, 2], [0, 2, 2], [2, 3, 0]])
@each_combiner
def test_dense_ids_are_pooled_over_their_last_dimension(shape, combiner):
    rng = np.random.default_rng(2)
    table = normal(tf.float32, [9, 4], rng)
    ids = rng.integers(0, 9, shape)
    bags = ids.reshape([int(np.prod(shape[:-1])), shape[-1]])
    expected = by_definition(table, bags, combiner=combiner, default_index=3)
    y = tf_ti.embedding_bag(table, ids, combiner=combiner, default_index=3)
    check(y, expected.reshape([*shape[:-1], 4]), tf.float32, scale=5)


def test_sparse_ids_of_rank_three_are_pooled_over_their_last_dimension():
    table = normal(tf.float32, [9, 4], np.random.default_rng(2))
    ids = tf.SparseTensor(
        [[0, 1, 0], [0, 1, 5], [1, 0, 2], [1, 2, 0], [1, 2, 3]], [1, 2, 3, 4, 5], [3, 3, 6]
    )
    y = tf_ti.embedding_bag(table, ids, combiner="mean")
    bags = [[], [1, 2], [], [3], [], [4, 5], [], [], []]
    expected = by_definition(table, bags, combiner="mean").reshape(3, 3, 4)
    check(y, expected, tf.float32, scale=5)


def test_trailing_empty_rows_of_a_sparse_tensor_are_in_the_result():
    ids = tf.SparseTensor([[1, 0]], [2], [4, 1])
    y = tf_ti.embedding_bag(tf.eye(3), ids)
    np.testing.assert_array_equal(y, [[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize("form", ["ragged", "sparse", "dense"])
@pytest.mark.parametrize(
    ("combiner", "weights"), [("mean", [0.0, 0.0]), ("mean", [1.0, -1.0]), ("sqrtn", [0.0, 0.0])]
)
def test_weights_without_a_sum_give_zeros(form, combiner, weights):
    ids = [[1, 2]]
    if form == "dense":
        ids, given = tf.constant(ids), tf.constant([weights])
    else:
        ids, given = shaped(form, ids, tf.int32), shaped(form, [weights], tf.float32)
    y = tf_ti.embedding_bag(tf.constant(TABLE), ids, given, combiner, default_index=4)
    np.testing.assert_array_equal(y, [[0, 0]])


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
@each_combiner
def test_combiners_of_halves_round_once(dtype, combiner):
    rng = np.random.default_rng(12)
    table = normal(dtype, [40, 9], rng)
    bags = [rng.integers(0, 40, 500), rng.integers(0, 40, 3)]
    for weight_type in (None, dtype, tf.float32):
        if weight_type is not None and combiner == "max":
            continue
        weights = weight_type and [(rng.random(len(bag)) + 0.5) for bag in bags]
        given = weights and ragged_of(weights, weight_type)
        grouped = given if given is None else [tf.cast(row, tf.float64).numpy() for row in given]
        expected = by_definition(table, bags, weights=grouped, combiner=combiner)
        y = tf_ti.embedding_bag(table, ragged_of(bags, tf.int64), given, combiner)
        check(y, expected, dtype, scale=500)


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
def test_nan_weights_propagate_through_a_quotient(combiner):
    ids = tf.constant([[0, 1], [0, 1], [0, 1]])
    weights = tf.constant([[np.nan, 1.0], [np.inf, 1.0], [1.0, 1.0]])
    y = tf_ti.embedding_bag(tf.ones([2, 3]), ids, weights, combiner).numpy()
    assert np.isnan(y[:2]).all()
    assert np.isfinite(y[2]).all()


# tf.nn.embedding_lookup_sparse and tf.nn.safe_embedding_lookup_sparse


def lookup_case(rng):
    dtype = [np.float32, np.float64][rng.integers(0, 2)]
    table = normal(dtype, [int(rng.integers(4, 30)), int(rng.integers(1, 20))], rng)
    lengths = rng.integers(0, 5, rng.integers(1, 12))
    lengths[rng.integers(0, len(lengths))] = 3  # tf.nn does not take a SparseTensor of nothing
    bags = [rng.integers(0, len(table), n) for n in lengths]
    weights = [(rng.random(n) + 0.2).astype(dtype) for n in lengths] if rng.random() < 0.6 else None
    max_norm = float(rng.random() * 3 + 0.5) if rng.random() < 0.4 else None
    combiner = ["sum", "mean", "sqrtn"][rng.integers(0, 3)]
    print(table.shape, bags, weights, max_norm, combiner)
    return table, bags, weights, max_norm, combiner


@pytest.mark.parametrize("form", ["sparse", "ragged"])
@pytest.mark.parametrize("strategy", ["one table", "div", "mod"])
@pytest.mark.parametrize("seed", range(600, 608), indirect=True)
def test_bags_are_those_of_tf_nn_embedding_lookup_sparse(rng, strategy, form):
    table, bags, weights, max_norm, combiner = lookup_case(rng)
    ids = shaped(form, bags, tf.int64)
    given = None if weights is None else shaped(form, weights, table.dtype)
    params, more = table, {}
    if strategy != "one table":
        make = [tf.constant, tf.Variable][rng.integers(0, 2)]
        params = [make(shard) for shard in shards_of(table, int(rng.integers(1, 5)), strategy)]
        more = {"partition_strategy": strategy}
    expected = tf.compat.v1.nn.embedding_lookup_sparse(
        params, ids, given, combiner=combiner, max_norm=max_norm, **more
    ).numpy()
    actual = tf_ti.embedding_bag(params, ids, given, combiner, max_norm=max_norm, **more).numpy()
    assert actual.dtype == expected.dtype
    assert len(actual) == len(bags)
    np.testing.assert_allclose(actual[: len(expected)], expected, rtol=2e-5, atol=1e-6)
    assert not actual[len(expected) :].any()


@pytest.mark.parametrize("strategy", ["one table", "div", "mod"])
@pytest.mark.parametrize("seed", range(620, 632), indirect=True)
def test_pruned_bags_are_those_of_tf_nn_safe_embedding_lookup_sparse(rng, strategy):
    table, bags, weights, max_norm, combiner = lookup_case(rng)
    bags = [np.where(rng.random(len(bag)) < 0.25, -1 - bag, bag) for bag in bags]
    if weights is not None:
        weights = [np.where(rng.random(len(w)) < 0.25, 0, w) for w in weights]
        if combiner != "sum":
            weights = [np.where(rng.random(len(w)) < 0.2, -w, w) for w in weights]
    ids = shaped("sparse", bags, tf.int64)
    given = None if weights is None else shaped("sparse", weights, table.dtype)
    default_index = int(rng.integers(0, len(table))) if rng.random() < 0.5 else None
    params, more = table, {}
    if strategy != "one table":
        params = [tf.constant(shard) for shard in shards_of(table, 3, strategy)]
        more = {"partition_strategy": strategy}
    expected = tf.compat.v1.nn.safe_embedding_lookup_sparse(
        params, ids, given, combiner, default_index, max_norm=max_norm, **more
    )
    actual = tf_ti.embedding_bag(
        params, ids, given, combiner, default_index, max_norm=max_norm, prune_invalid=True, **more
    )
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-6)


def test_the_default_strategy_is_that_of_tf_nn():
    table = np.arange(7, dtype=np.float32)[:, np.newaxis]
    ids = ragged_of([[0, 6], [3], [4]], tf.int64)
    params = [tf.constant(shard) for shard in shards_of(table, 3, "div")]
    expected = tf.nn.embedding_lookup_sparse(params, ids, None, combiner="sum")
    np.testing.assert_array_equal(tf_ti.embedding_bag(params, ids), expected)
    np.testing.assert_array_equal(expected, [[6], [3], [4]])


@each_combiner
@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_shards_are_one_table_in_every_option(combiner, strategy):
    rng = np.random.default_rng(6)
    table = normal(tf.float64, [17, 4], rng)
    shards = [tf.Variable(shard) for shard in shards_of(table, 4, strategy)]
    bags = [[3, 16, -1], [], [-1, -1], [0, 3, 3, 9], [12]]
    options = {"default_index": 11, "padding_idx": -1, "max_norm": 1.5}
    expected = by_definition(table, bags, combiner=combiner, **options)
    actual = tf_ti.embedding_bag(
        shards,
        ragged_of(bags, tf.int32),
        combiner=combiner,
        partition_strategy=strategy,
        **options,
    )
    check(actual, expected, tf.float64, scale=5)


@pytest.mark.parametrize("kinds", [[np.asarray], [np.asarray, tf.Variable, tf.constant]], ids=len)
@pytest.mark.parametrize("weighted", [False, True])
def test_arrays_of_numpy_are_shards_like_others(kinds, weighted):
    rng = np.random.default_rng(8)
    table = normal(tf.float32, [6, 3], rng)
    parts = shards_of(table, 3, "div")
    shards = [make(part) for make, part in zip(kinds * 3, parts)]
    bags, weights = [[5, 0], [3, 3]], [[0.5, 2.0], [1.0, -1.0]] if weighted else None
    given = tf.constant(weights) if weighted else None
    for some in (shards, tuple(shards)):
        for max_norm in (None, 1.0):
            actual = tf_ti.embedding_bag(some, tf.constant(bags), given, max_norm=max_norm)
            check(actual, by_definition(table, bags, weights=weights, max_norm=max_norm))


@pytest.mark.parametrize("form", ["ragged", "sparse", "dense"])
@each_combiner
def test_pruning_leaves_out_negative_ids_and_weights_not_above_zero(form, combiner):
    rng = np.random.default_rng(7)
    table = normal(tf.float64, [6, 3], rng)
    bags = [[1, -2, 5], [0, 0, 3], [-1, -7, -1], [4, 4, 4]]
    weights = [[1.0, 2.0, 0.5], [-1.0, 2.0, 0.0], [1.0, 1.0, 1.0], [0.0, -3.0, 0.0]]
    if combiner == "max":
        weights = None
    kept = [
        [k for k, i in enumerate(bag) if i >= 0 and (w is None or combiner == "sum" or w[k] > 0)]
        for bag, w in zip(bags, weights or [None] * 4)
    ]
    expected = by_definition(
        table,
        [[bag[k] for k in keep] for bag, keep in zip(bags, kept)],
        weights=weights and [[w[k] for k in keep] for w, keep in zip(weights, kept)],
        combiner=combiner,
        default_index=2,
    )
    if form == "dense":
        ids, given = tf.constant(bags), weights and tf.constant(weights, tf.float64)
    else:
        ids, given = shaped(form, bags, tf.int64), weights and shaped(form, weights, tf.float64)
    actual = tf_ti.embedding_bag(table, ids, given, combiner, default_index=2, prune_invalid=True)
    check(actual, expected, tf.float64, scale=5)


# Huge pages


@pytest.mark.parametrize("shape", [[0, 4], [3, 4], [20_000, 64]])
@each_updated_dtype([tf.float32, tf.int8, tf.complex128])
def test_advising_huge_pages_changes_no_value(shape, dtype):
    values = exact(dtype, shape, np.random.default_rng(0))
    variable = tf.Variable(values)
    assert tf_ti.advise_huge_pages(variable) is None
    np.testing.assert_array_equal(variable, values)
    if shape[0]:
        variable.scatter_update(tf.IndexedSlices(values[1:2] + values[1:2], [1]))
        values[1] += values[1]
    tf_ti.advise_huge_pages(variable)
    np.testing.assert_array_equal(variable, values)
