"""Gradients of the bags against tf.gather with tf.math.unsorted_segment_*, and differences."""

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti._library import ops
from tf_ti.bags.ops import FLOATS, Bags, Table, row_positions

F64 = tf.float64


# The reference


def pooled(
    table,
    bags,
    weights=None,
    combiner="sum",
    default_index=None,
    padding_idx=None,
    max_norm=None,
):
    """Bags, which are lists of ids, gathered and pooled; `weights` has one for each id."""
    places = [(at, i) for at, bag in enumerate(bags) for i in bag]
    kept = [k for k, (_, i) in enumerate(places) if i != padding_idx]
    bag = tf.constant([places[k][0] for k in kept], tf.int32)
    rows = rows_of(table, [places[k][1] for k in kept], max_norm)
    if weights is not None:
        weights = tf.gather(tf.reshape(weights, [-1]), tf.constant(kept, tf.int32))
    lengths = tf.math.unsorted_segment_sum(tf.ones(len(kept), rows.dtype), bag, len(bags))
    empty = across(lengths, rows) == 0
    if combiner == "max":
        result = tf.math.unsorted_segment_max(rows, bag, len(bags))
        result = tf.where(empty, tf.zeros_like(result), result)
    else:
        count, squares = lengths, lengths
        if weights is not None:
            rows = rows * across(weights, rows)
            count = tf.math.unsorted_segment_sum(weights, bag, len(bags))
            squares = tf.math.unsorted_segment_sum(weights**2, bag, len(bags))
        result = tf.math.unsorted_segment_sum(rows, bag, len(bags))
        if combiner == "mean":
            result = tf.math.divide_no_nan(result, across(count, rows))
        elif combiner == "sqrtn":
            # The root of an empty bag has no gradient.
            some = tf.where(squares == 0, tf.ones_like(squares), squares)
            result = result / across(tf.sqrt(some), rows)
    if default_index is not None and default_index != -1:
        result = tf.where(empty, rows_of(table, [default_index], max_norm), result)
    return result


def rows_of(table, ids, max_norm):
    rows = tf.gather(table, tf.constant(ids, tf.int64))
    if max_norm is None:
        return rows
    axes = list(range(1, rows.shape.rank))
    squares = tf.reduce_sum(rows**2, axes, keepdims=True)
    beyond = squares > max_norm**2
    norms = tf.sqrt(tf.where(beyond, squares, tf.ones_like(squares)))
    return tf.where(beyond, rows * (max_norm / norms), rows)


def across(values, rows):
    return tf.reshape(values, [-1] + [1] * (rows.shape.rank - 1))


# Comparing


def loss(y):
    """A scalar on which every element has another influence, and not a linear one."""
    factors = tf.cast(tf.reshape(tf.range(tf.size(y)) % 7 + 1, tf.shape(y)), y.dtype)
    return tf.reduce_sum(tf.sin(y) * factors)


def dense(gradient):
    return None if gradient is None else tf.convert_to_tensor(gradient)


def first_order(run, sources):
    with tf.GradientTape() as tape:
        tape.watch(sources)
        value = loss(run(*sources))
    return tape.gradient(value, sources)


def second_order(run, sources):
    with tf.GradientTape() as tape:
        tape.watch(sources)
        gradients = [dense(g) for g in first_order(run, sources)]
        value = tf.add_n([loss(g) for g in gradients if g is not None])
    return tape.gradient(value, sources)


def differences(run, sources, step=1e-6):
    """Central differences of the loss by every element of every source."""
    sources = [np.array(source) for source in sources]
    gradients = [np.zeros_like(source) for source in sources]
    for source, gradient in zip(sources, gradients):
        for at in np.ndindex(source.shape):
            value = source[at]
            ends = []
            for moved in (value - step, value + step):
                source[at] = moved
                ends.append(float(loss(run(*[tf.constant(s) for s in sources]))))
            source[at] = value
            gradient[at] = (ends[1] - ends[0]) / (2 * step)
    return gradients


def close(actual, expected, tolerance=1e-9):
    """Compares lists of gradients; None stands for zeros."""
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        a, e = dense(a), dense(e)
        if a is None or e is None:
            for gradient in (a, e):
                assert gradient is None or not np.any(gradient)
            continue
        assert a.shape == e.shape
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


def check_slices(gradient, table):
    """Each touched row once, ascending."""
    assert isinstance(gradient, tf.IndexedSlices)
    rows = gradient.indices.numpy()
    assert np.all(rows[1:] > rows[:-1]), rows
    assert gradient.values.shape == [len(rows), *table.shape[1:]]
    assert gradient.values.dtype == table.dtype
    if gradient.dense_shape is not None:
        assert gradient.dense_shape.numpy().tolist() == table.shape.as_list()


def check(run, reference, table, weights=None, orders=(first_order, second_order)):
    """The same gradients as the reference; `table` as a tensor and as a variable."""
    more = [] if weights is None else [tf.constant(weights)]
    for source in (tf.constant(table), tf.Variable(table)):
        sources = [source, *more]
        check_slices(first_order(run, sources)[0], source)
        for order in orders:
            close(order(run, sources), order(reference, sources))


def flat(bags):
    return np.array([i for bag in bags for i in bag], np.int64)


def starts(bags):
    return np.cumsum([0] + [len(bag) for bag in bags])[:-1].astype(np.int64)


def ragged(values, bags):
    return tf.RaggedTensor.from_row_lengths(values, [len(bag) for bag in bags])


def random_bags(rng, rows, longest=6):
    lengths = rng.integers(0, longest, rng.integers(1, 8))
    return [[int(i) for i in rng.integers(0, rows, n)] for n in lengths]


def random_options(rng, rows):
    return {
        "default_index": [None, -1, int(rng.integers(0, rows))][rng.integers(0, 3)],
        "padding_idx": [None, int(rng.integers(0, rows))][rng.integers(0, 2)],
        "max_norm": float(rng.random() * 2 + 0.5) if rng.random() < 0.4 else None,
    }


def random_table(rng, ranks=4):
    shape = [int(n) for n in rng.integers(2, [9, 7, 4, 3][: rng.integers(1, ranks + 1)])]
    return rng.standard_normal(shape)


# Random bags


@pytest.mark.parametrize("seed", range(24), indirect=True)
def test_random_offsets_have_the_gradients_of_the_reference(rng):
    table = random_table(rng)
    bags, options = random_bags(rng, len(table)), random_options(rng, len(table))
    reduction = ["sum", "sum", "mean", "max"][rng.integers(0, 4)]
    weights = None
    if reduction == "sum" and rng.random() < 0.7:
        weights = rng.standard_normal(len(flat(bags)))
    print(table.shape, bags, reduction, weights, options)
    # Two ids that belong to no bag come first.
    before, index_type = [0, 1], [np.int32, np.int64][rng.integers(0, 2)]
    indices = np.concatenate([before, flat(bags)]).astype(index_type)
    offsets = (starts(bags) + 2).astype(index_type)

    def run(table, weights=None):
        if weights is not None:
            weights = tf.concat([tf.ones(2, F64), weights], 0)
        return tf_ti.embedding_bag_offsets(
            table, indices, offsets, per_sample_weights=weights, reduction=reduction, **options
        )

    check(
        run,
        lambda table, weights=None: pooled(table, bags, weights, reduction, **options),
        table,
        weights,
    )


@pytest.mark.parametrize("seed", range(100, 112), indirect=True)
def test_random_packed_bags_have_the_gradients_of_the_reference(rng):
    table = random_table(rng)
    ids = rng.integers(0, len(table), rng.integers(1, 6, 2))
    options, reduction = (
        random_options(rng, len(table)),
        ["sum", "sum", "mean", "max"][rng.integers(0, 4)],
    )
    weights = None
    if reduction == "sum" and rng.random() < 0.7:
        weights = rng.standard_normal(ids.shape)
    print(table.shape, ids, reduction, weights, options)
    check(
        lambda table, weights=None: tf_ti.embedding_bag_packed(
            table, ids, weights, reduction, **options
        ),
        lambda table, weights=None: pooled(table, ids.tolist(), weights, reduction, **options),
        table,
        weights,
    )


@pytest.mark.parametrize("seed", range(200, 212), indirect=True)
def test_random_segments_have_the_gradients_of_the_reference(rng):
    table = random_table(rng)
    bags, options = random_bags(rng, len(table)), random_options(rng, len(table))
    weights = rng.standard_normal(len(flat(bags))) if rng.random() < 0.6 else None
    segment_ids = np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])
    print(table.shape, bags, weights, options)
    check(
        lambda table, weights=None: tf_ti.embedding_segments_sum(
            table, flat(bags), segment_ids, len(bags), per_sample_weights=weights, **options
        ),
        lambda table, weights=None: pooled(table, bags, weights, **options),
        table,
        weights,
    )


def embedding_bag(form, bags, combiner, options):
    def run(table, weights=None):
        if form == "dense":
            given = None if weights is None else tf.reshape(weights, [len(bags), -1])
            return tf_ti.embedding_bag(table, np.array(bags), given, combiner, **options)
        ids = ragged(flat(bags), bags)
        given = None if weights is None else ragged(weights, bags)
        if form == "sparse":
            columns = [(at, k) for at, bag in enumerate(bags) for k in range(len(bag))]
            places = np.array(columns, np.int64).reshape([-1, 2])
            shape = [len(bags), max(len(bag) for bag in bags)]
            ids = tf.SparseTensor(places, flat(bags), shape)
            given = None if weights is None else tf.SparseTensor(places, weights, shape)
        return tf_ti.embedding_bag(table, ids, given, combiner, **options)

    return run


@pytest.mark.parametrize("seed", range(300, 326), indirect=True)
def test_random_ragged_sparse_and_dense_bags_have_the_gradients_of_the_reference(rng):
    table = random_table(rng)
    form = ["ragged", "sparse", "dense"][rng.integers(0, 3)]
    if form == "dense":
        bags = rng.integers(0, len(table), rng.integers(1, 6, 2)).tolist()
    else:
        bags = random_bags(rng, len(table))
    combiner = ["sum", "mean", "sqrtn", "max"][rng.integers(0, 4)]
    weights = None
    if combiner != "max" and rng.random() < 0.7:
        weights = rng.random(len(flat(bags))) + 0.5
    options = random_options(rng, len(table))
    print(table.shape, form, bags, combiner, weights, options)
    check(
        embedding_bag(form, bags, combiner, options),
        lambda table, weights=None: pooled(table, bags, weights, combiner, **options),
        table,
        weights,
    )


@pytest.mark.parametrize("seed", range(900, 906), indirect=True)
def test_random_weights_in_any_unit_have_the_same_gradients(rng):
    """A mean and sqrtn divide the unit out, whose square and fourth power leave the dtype."""
    table = random_table(rng)
    form = ["ragged", "sparse", "dense"][rng.integers(0, 3)]
    bags = rng.integers(0, len(table), rng.integers(2, 6, 2)).tolist()
    combiner = ["mean", "sqrtn"][rng.integers(0, 2)]
    weights = rng.random(len(flat(bags))) + 0.5
    padding_idx = [None, int(rng.integers(0, len(table)))][rng.integers(0, 2)]
    dtype, in_shards = [tf.float32, tf.float64][rng.integers(0, 2)], rng.random() < 0.5
    most = 28 if dtype == tf.float32 else 90 if in_shards else 140
    unit = 10.0 ** (most * rng.choice([-1, -0.5, 0.5, 1]))
    print(table.shape, form, bags, combiner, weights, padding_idx, dtype, in_shards, unit)
    run = embedding_bag(form, bags, combiner, {"padding_idx": padding_idx})

    def of_unit(table, weights):
        weights = tf.cast(weights * unit, dtype)
        table = tf.cast(table, dtype)
        half = (len(table) + 1) // 2
        given = [table[:half], table[half:]] if in_shards else table
        return tf.cast(run(given, weights), F64)

    sources = [tf.constant(table), tf.constant(weights)]
    tolerance = 1e-4 if dtype == tf.float32 else 1e-9
    for order in (first_order, second_order):
        expected = order(
            lambda t, w: pooled(t, bags, w, combiner, padding_idx=padding_idx), sources
        )
        close(order(of_unit, sources), expected, tolerance)


@pytest.mark.parametrize("seed", range(400, 408), indirect=True)
def test_random_gradients_are_those_of_differences(rng):
    table = random_table(rng, ranks=2)[:5]
    bags, options = random_bags(rng, len(table), longest=4), random_options(rng, len(table))
    combiner = ["sum", "mean", "sqrtn", "max"][rng.integers(0, 4)]
    weights = None
    if combiner != "max" and rng.random() < 0.7:
        weights = rng.random(len(flat(bags))) + 0.5
    print(table, bags, combiner, weights, options)
    run = embedding_bag("ragged", bags, combiner, options)
    sources = [tf.constant(table)] + ([] if weights is None else [tf.constant(weights)])
    close(first_order(run, sources), differences(run, sources), 1e-6)


BAGS = [[0, 2, 2], [], [4, 0], [3, 3, 1, 1], [2]]


@pytest.mark.parametrize(
    ("combiner", "weighted"),
    [
        (c, w)
        for c in ("sum", "mean", "sqrtn", "max")
        for w in (False, True)
        if (c, w) != ("max", True)
    ],
)
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_second_order_gradients_are_differences_of_the_first(combiner, weighted, max_norm):
    rng = np.random.default_rng(1)
    table = tf.constant(rng.standard_normal([5, 2]))
    sources = [table] + ([tf.constant(rng.random(len(flat(BAGS))) + 0.5)] if weighted else [])
    run = embedding_bag("ragged", BAGS, combiner, {"default_index": 1, "max_norm": max_norm})

    def gradients(*sources):
        found = [dense(g) for g in first_order(run, list(sources))]
        return tf.concat([tf.reshape(g, [-1]) for g in found], 0)

    close(second_order(run, sources), differences_of_vectors(gradients, sources), 1e-5)


def differences_of_vectors(gradients, sources):
    """The gradient that `second_order` takes, by differences."""
    sizes = [int(tf.size(source)) for source in sources]

    def value(*sources):
        parts = tf.split(gradients(*sources), sizes)
        return tf.add_n(
            [loss(tf.reshape(part, source.shape)) for part, source in zip(parts, sources)]
        )

    arrays = [np.array(source) for source in sources]
    result = [np.zeros_like(array) for array in arrays]
    for array, found in zip(arrays, result):
        for at in np.ndindex(array.shape):
            middle = array[at]
            ends = []
            for moved in (middle - 1e-6, middle + 1e-6):
                array[at] = moved
                ends.append(float(value(*[tf.constant(a) for a in arrays])))
            array[at] = middle
            found[at] = (ends[1] - ends[0]) / 2e-6
    return result


# The kind of a table's gradient


each_kind = pytest.mark.parametrize("kind", ["tensor", "variable"])


def held(kind, table):
    return tf.Variable(table) if kind == "variable" else tf.constant(table)


def table_gradient(call, table):
    with tf.GradientTape() as tape:
        tape.watch(table)
        y = call(table)
    return tape.gradient(y, table)


@each_kind
@pytest.mark.parametrize("reduction", ["sum", "mean", "max"])
def test_each_touched_row_is_there_once_in_ascending_order(kind, reduction):
    rng = np.random.default_rng(0)
    table = held(kind, rng.standard_normal([500, 3]))
    indices = rng.integers(0, 500, 400)
    gradient = table_gradient(
        lambda t: tf_ti.embedding_bag_offsets(t, indices, [0, 100, 100], reduction=reduction),
        table,
    )
    check_slices(gradient, table)
    assert set(gradient.indices.numpy()) <= set(indices)
    if reduction != "max":
        assert gradient.indices.numpy().tolist() == np.unique(indices).tolist()


@each_kind
def test_padding_gets_no_gradient(kind):
    table = held(kind, np.ones([5, 2]))
    gradient = table_gradient(
        lambda t: tf_ti.embedding_bag_packed(t, [[0, 3], [3, 3], [3, 1]], padding_idx=3), table
    )
    check_slices(gradient, table)
    assert gradient.indices.numpy().tolist() == [0, 1]


@each_kind
def test_a_default_row_that_is_padding_too_gets_the_gradient_of_the_empty_bags(kind):
    table = held(kind, np.ones([5, 2]))
    gradient = table_gradient(
        lambda t: tf_ti.embedding_bag_packed(t, [[0, 3], [3, 3]], default_index=3, padding_idx=3),
        table,
    )
    check_slices(gradient, table)
    np.testing.assert_array_equal(dense(gradient)[:, 0], [1, 0, 0, 1, 0])


def test_weights_of_padding_get_no_gradient():
    weights = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    with tf.GradientTape() as tape:
        tape.watch(weights)
        y = tf_ti.embedding_bag_packed(
            tf.ones([5, 2]), [[0, 3], [3, 3]], weights, default_index=2, padding_idx=3
        )
    assert tape.gradient(y, weights).numpy().tolist() == [[2, 0], [0, 0]]


def test_weights_of_ids_in_no_bag_get_no_gradient():
    weights = tf.ones([4])
    with tf.GradientTape() as tape:
        tape.watch(weights)
        y = tf_ti.embedding_bag_offsets_sum(
            tf.ones([5, 2]), [0, 1, 2, 3], [1, 3], None, weights, include_last_offset=True
        )
    assert tape.gradient(y, weights).numpy().tolist() == [0, 2, 2, 0]


@each_kind
def test_a_default_row_gathers_the_gradients_of_all_empty_bags(kind):
    table = held(kind, np.ones([4, 2]))
    gradient = table_gradient(
        lambda t: tf_ti.embedding_bag_offsets_sum(t, [1, 2], [0, 0, 0, 1, 2], 1), table
    )
    check_slices(gradient, table)
    np.testing.assert_array_equal(dense(gradient)[:, 0], [0, 4, 1, 0])


@each_kind
@pytest.mark.parametrize("reduction", ["sum", "mean", "max"])
@pytest.mark.parametrize(
    ("shape", "count", "offsets"),
    [
        (shape, count, offsets)
        for shape in ([4, 3], [4, 0], [0, 3], [4])
        for count, offsets in ((0, []), (0, [0, 0, 0]), (2, [2]))
        if count <= shape[0]
    ],
    ids=str,
)
def test_gradients_where_there_is_nothing(kind, reduction, shape, count, offsets):
    table = held(kind, np.ones(shape))
    indices, offsets = np.zeros([count], np.int32), np.array(offsets, np.int32)
    gradient = table_gradient(
        lambda t: tf_ti.embedding_bag_offsets(t, indices, offsets, reduction=reduction), table
    )
    check_slices(gradient, table)
    np.testing.assert_array_equal(dense(gradient), np.zeros(shape))


def test_a_table_of_no_width_has_a_gradient_of_no_width():
    table, weights = tf.zeros([4, 0]), tf.ones([3])
    with tf.GradientTape() as tape:
        tape.watch([table, weights])
        y = tf_ti.embedding_bag_offsets_sum(table, [1, 2, 3], [0, 1], None, weights)
    of_table, of_weights = tape.gradient(y, [table, weights])
    assert dense(of_table).shape == [4, 0]
    assert of_weights.numpy().tolist() == [0, 0, 0]


def test_the_gradient_of_a_maximum_goes_to_the_first_of_equal_elements():
    table = tf.constant([[1.0, 5.0], [3.0, 5.0], [3.0, 2.0]])
    gradient = table_gradient(
        lambda t: tf_ti.embedding_bag_packed(t, [[2, 0, 1], [1, 2, 0]], reduction="max"), table
    )
    np.testing.assert_array_equal(dense(gradient), [[0, 1], [1, 1], [1, 0]])


def test_the_gradient_of_a_maximum_goes_to_one_of_repeated_ids():
    gradient = table_gradient(
        lambda t: tf_ti.embedding_bag_packed(t, [[1, 1, 1]], reduction="max"), tf.ones([3, 2])
    )
    np.testing.assert_array_equal(dense(gradient), [[0, 0], [1, 1], [0, 0]])


def test_the_gradient_of_a_maximum_that_is_nan_goes_to_one_nan():
    table = tf.constant([[1.0], [np.nan], [7.0], [np.nan]])
    gradient = table_gradient(
        lambda t: tf_ti.embedding_bag_packed(t, [[0, 1, 2, 3]], reduction="max"), table
    )
    np.testing.assert_array_equal(dense(gradient)[:, 0], [0, 1, 0, 0])


@pytest.mark.parametrize("size", ["small", "giant"])
@pytest.mark.parametrize("kind", ["offsets", "packed", "segments"])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("seed", [500], indirect=True)
def test_random_maxima_and_their_gradients_are_those_of_the_definition(rng, dtype, kind, size):
    """With ties, infinities, NaN, and rows that come twice; bit for bit."""
    for width in (1, 3, 4, 9, 16, 70) if size == "small" else (5,):
        rows = 30
        values = rng.choice([-np.inf, -1.0, -0.0, 0.0, 1.0, 2.0], [rows, width])
        values[rng.random(values.shape) < 0.02] = np.nan
        values[rng.random(values.shape) < 0.02] = np.inf
        table = tf.constant(values.astype(dtype.as_numpy_dtype))
        index = rng.choice([tf.int32, tf.int64])
        count = 12 if size == "small" else 3
        lengths = rng.integers(0, 12, count)
        if kind == "packed":
            lengths[:] = rng.integers(1, 12)
        if size == "giant":
            lengths = np.array([40_000] * 3 if kind == "packed" else [40_000, 2, 0])
        bag_of = np.repeat(np.arange(count), lengths)
        ids = rng.integers(0, rows, len(bag_of))
        padding = [None, int(rng.integers(0, rows))][rng.integers(0, 2)]
        default = [None, 3][rng.integers(0, 2)]
        bags = Bags(
            kind,
            tf.constant(ids.reshape(count, -1) if kind == "packed" else ids, index),
            {
                "offsets": tf.constant(np.cumsum(lengths) - lengths, index),
                "segments": tf.constant(bag_of, index),
                "packed": None,
            }[kind],
            tf.constant(count, index) if kind == "segments" else None,
            None if default is None else tf.constant(default, index),
            padding_idx=padding,
            reduction="max",
        )
        grad = rng.standard_normal([count, width]).astype(dtype.as_numpy_dtype)

        argmax, most = np.full([count, width], -1), np.zeros([count, width])
        sums = np.zeros([rows, width], np.float64 if dtype == tf.float64 else np.float32)
        touched = set()
        for bag in range(count):
            at = np.flatnonzero((bag_of == bag) & (ids != padding))
            touched |= set(ids[at])
            if at.size:
                argmax[bag] = at[np.argmax(values[ids[at]], 0)]  # the first NaN, if there is one
                most[bag] = values[ids[argmax[bag]], np.arange(width)]
                sums[ids[argmax[bag]], np.arange(width)] += grad[bag].astype(sums.dtype)
            elif default is not None:
                touched.add(default)
                most[bag] = values[default]
                sums[default] += grad[bag].astype(sums.dtype)
        touched = np.array(sorted(touched), np.int64)

        y, found = bags.pool(Table(table, dtype), True)
        np.testing.assert_array_equal(y.numpy().astype(np.float64), most)
        np.testing.assert_array_equal(found, argmax)
        alone = bags.pool(Table(table, dtype))[0]
        np.testing.assert_array_equal(alone.numpy().astype(np.float64), most)
        got_rows, got = bags.table_gradient(rows, tf.constant(grad), found)
        np.testing.assert_array_equal(got_rows, touched)
        np.testing.assert_array_equal(got, sums[touched].astype(dtype.as_numpy_dtype))


def test_positions_of_maxima_that_are_in_no_bag_get_no_gradient():
    bags = Bags("offsets", tf.constant([2, 0, 1, 1]), tf.constant([0, 2, 2]), reduction="max")
    argmax = tf.constant([[0, 1, 2, -1], [3, 0, -1, 1], [2, 3, 4, -(2**31)]])
    rows, values = bags.table_gradient(3, tf.reshape(tf.range(1.0, 13.0), [3, 4]), argmax)
    assert rows.numpy().tolist() == [0, 1, 2]
    assert values.numpy().tolist() == [[0, 2, 0, 0], [9, 10, 0, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize("padding", [9.0, 1.0], ids=["larger", "equal"])
def test_padding_never_gets_the_gradient_of_a_maximum(padding):
    table = tf.constant([[1.0], [padding], [1.0]])
    gradient = table_gradient(
        lambda t: tf_ti.embedding_bag_packed(
            t, [[1, 0, 2], [1, 2, 0]], reduction="max", padding_idx=1
        ),
        table,
    )
    np.testing.assert_array_equal(dense(gradient), [[1], [0], [1]])


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
def test_gradients_of_halves_are_summed_in_float32(dtype):
    gradient = table_gradient(
        lambda t: tf_ti.embedding_bag_packed(t, np.zeros([40, 100], np.int32)),
        tf.ones([2, 21], dtype),
    )
    # Sums of ones in the type itself end at 2048 or 256.
    np.testing.assert_array_equal(gradient.values, tf.fill([1, 21], tf.constant(4000, dtype)))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("weights_type", [None, tf.float32])
def test_gradients_of_halves_are_those_of_float32_rounded(dtype, weights_type):
    weights_type = weights_type or dtype
    rng = np.random.default_rng(4)
    table = tf.constant(rng.standard_normal([9, 17]), dtype)
    weights = tf.constant(rng.standard_normal(len(flat(BAGS))), weights_type)

    def gradients(table, weights, run):
        with tf.GradientTape() as tape:
            tape.watch([table, weights])
            y = run(table, weights)
            value = tf.reduce_sum(tf.cast(y, tf.float32) * tf.range(17.0))
        return tape.gradient(value, [table, weights])

    of_table, of_weights = gradients(
        table,
        weights,
        lambda t, w: tf_ti.embedding_bag_offsets_sum(t, flat(BAGS), starts(BAGS), 3, w),
    )
    assert (of_table.values.dtype, of_weights.dtype) == (dtype, weights_type)
    expected = gradients(
        tf.cast(table, tf.float32),
        tf.cast(weights, tf.float32),
        lambda t, w: pooled(t, BAGS, w, default_index=3),
    )
    rtol = {tf.float16: 2**-11, tf.bfloat16: 2**-8, tf.float32: 1e-5}
    for actual, wanted in zip((dense(of_table), of_weights), expected):
        np.testing.assert_allclose(
            tf.cast(actual, tf.float32), dense(wanted), rtol=rtol[actual.dtype] * 1.05, atol=1e-4
        )


@pytest.mark.parametrize("dtype", [tf.complex64, tf.complex128], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_gradients_of_complex_numbers(dtype, combiner):
    rng = np.random.default_rng(5)

    def values(*shape):
        return tf.cast(rng.standard_normal(shape) + 1j * rng.standard_normal(shape), dtype)

    sources = [values(5, 3), values(len(flat(BAGS)))][: 2 if combiner == "sum" else 1]
    options = {"default_index": 2}

    def gradients(run):
        with tf.GradientTape() as tape:
            tape.watch(sources)
            y = run(*sources)
            value = tf.reduce_sum(tf.math.real(y) ** 3 + 2 * tf.math.imag(y) * tf.math.real(y))
        return tape.gradient(value, sources)

    def second_gradients(run):
        with tf.GradientTape() as tape:
            tape.watch(sources)
            found = [dense(g) for g in gradients(run)]
            value = tf.add_n([tf.reduce_sum(tf.math.real(g * g * (1 - 2j))) for g in found])
        return tape.gradient(value, sources)

    for order, scale in ((gradients, 1), (second_gradients, 100)):
        close(
            order(embedding_bag("ragged", BAGS, combiner, options)),
            order(lambda t, w=None: pooled_complex(t, BAGS, w, combiner, 2)),
            scale * (1e-4 if dtype == tf.complex64 else 1e-11),
        )


def pooled_complex(table, bags, weights, combiner, default_index):
    """tf.math.unsorted_segment_sum of complex numbers has a gradient, tf.where of them has too."""
    at = np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])
    rows = tf.gather(table, flat(bags))
    if weights is not None:
        rows = rows * weights[:, tf.newaxis]
    sums = tf.matmul(tf.cast(np.arange(len(bags))[:, np.newaxis] == at, table.dtype), rows)
    lengths = np.array([[max(len(bag), 1)] for bag in bags])
    if combiner == "mean":
        sums = sums / tf.cast(lengths, table.dtype)
    empty = tf.cast(np.array([[len(bag) == 0] for bag in bags]), table.dtype)
    return sums + empty * tf.gather(table, [default_index])


def test_integers_have_no_gradient():
    table, scale = tf.Variable([[1, 2]]), tf.Variable(3.0)
    with tf.GradientTape() as tape:
        y = tf_ti.embedding_bag_offsets_sum(table, [0], [0], None, tf.constant([3]))
        value = tf.reduce_sum(tf.cast(y, tf.float32) * scale)
    of_table, of_scale = tape.gradient(value, [table, scale])
    assert of_table is None
    assert of_scale.numpy() == 9


# Where gradients are taken


def taken_eagerly(run, sources):
    return first_order(run, sources)


def taken_inside_a_function(run, sources):
    variables = [s for s in sources if isinstance(s, tf.Variable)]
    tensors = [s for s in sources if not isinstance(s, tf.Variable)]
    signature = [tf.TensorSpec(None, s.dtype) for s in tensors]

    @tf.function(input_signature=signature)
    def call(*tensors):
        given = iter(tensors)
        return first_order(
            run, [s if any(s is v for v in variables) else next(given) for s in sources]
        )

    return call(*tensors)


def taken_outside_a_function(run, sources):
    return first_order(tf.function(run), sources)


def taken_by_tf_gradients(run, sources):
    return tf.function(lambda: tf.gradients(loss(run(*sources)), list(sources)))()


@pytest.mark.pairwise
@each_kind
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "max"])
@pytest.mark.parametrize(
    "taken",
    [
        taken_eagerly,
        taken_inside_a_function,
        taken_outside_a_function,
        taken_by_tf_gradients,
    ],
)
def test_gradients_are_the_same_wherever_they_are_taken(taken, combiner, kind):
    rng = np.random.default_rng(6)
    sources = [held(kind, rng.standard_normal([5, 3]))]
    if combiner != "max":
        sources.append(tf.constant(rng.random(len(flat(BAGS))) + 0.5))
    options = {"default_index": 4, "padding_idx": 1}
    actual = taken(embedding_bag("ragged", BAGS, combiner, options), sources)
    expected = first_order(lambda t, w=None: pooled(t, BAGS, w, combiner, **options), sources)
    close(actual, expected)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_second_order_gradients_in_a_graph_with_a_session(combiner):
    rng = np.random.default_rng(20)
    table, weights = rng.standard_normal([5, 3]), rng.random(len(flat(BAGS))) + 0.5
    options = {"default_index": 4, "padding_idx": 2}

    def second(run, sources):
        first = [dense(g) for g in tf.gradients(loss(run(*sources)), sources)]
        return tf.gradients(tf.add_n([loss(g) for g in first]), sources)

    expected = second_order(
        lambda t, w: pooled(t, BAGS, w, combiner, **options),
        [tf.constant(table), tf.constant(weights)],
    )
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        sources = [tf.compat.v1.placeholder_with_default(x, None) for x in (table, weights)]
        found = second(embedding_bag("ragged", BAGS, combiner, options), sources)
        actual = session.run([dense(g) for g in found])
    close(actual, expected)


def test_second_order_gradients_beside_padding_that_no_id_can_be():
    sources = [tf.constant(np.random.default_rng(21).standard_normal([5, 3])), tf.ones([4], F64)]
    ids = tf.constant([0, 2, 2, 1])
    assert ids.dtype == tf.int32
    close(
        second_order(
            lambda t, w: tf_ti.embedding_bag_offsets_sum(
                t, ids, [0, 3], None, w, padding_idx=-(2**40)
            ),
            sources,
        ),
        second_order(lambda t, w: pooled(t, [[0, 2, 2], [1]], w), sources),
    )


@each_kind
def test_the_gradient_that_arrives_as_slices_is_taken_in(kind):
    table = held(kind, np.random.default_rng(7).standard_normal([5, 3]))

    def rows(y):
        return tf.gather(y, [0, 2, 2])

    close(
        first_order(
            lambda t: rows(tf_ti.embedding_bag_offsets_sum(t, [1, 2, 3], [0, 1, 3])), [table]
        ),
        first_order(lambda t: rows(pooled(t, [[1], [2, 3], []])), [table]),
    )


@each_kind
def test_a_table_used_twice_gets_both_gradients(kind):
    table = held(kind, np.random.default_rng(8).standard_normal([5, 3]))

    def twice(pool):
        return lambda t: pool(t, [[1, 2], [3]]) * pool(t, [[0], [2, 2]]) + tf.reduce_sum(t)

    close(
        first_order(
            twice(lambda t, bags: tf_ti.embedding_bag(t, tf.ragged.constant(bags))), [table]
        ),
        first_order(twice(pooled), [table]),
    )


def test_gradients_pass_a_computed_table():
    w = tf.Variable(np.random.default_rng(9).standard_normal([5, 3]))
    close(
        first_order(lambda w: tf_ti.embedding_bag_packed(tf.tanh(w) * 2, [[1, 2], [3, 1]]), [w]),
        first_order(lambda w: pooled(tf.tanh(w) * 2, [[1, 2], [3, 1]]), [w]),
    )


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@each_kind
def test_gradients_reach_every_shard_as_in_tf_nn(strategy, combiner, kind):
    rng = np.random.default_rng(10)
    shards = [held(kind, rng.standard_normal([n, 3])) for n in (4, 3, 3)]
    bags = [[0, 9, 9], [5], [8, 3, 1, 4]]
    weights = ragged(tf.constant(rng.random(8) + 0.5), bags)
    ids = ragged(flat(bags), bags)
    arguments = {"combiner": combiner, "partition_strategy": strategy, "max_norm": 1.2}
    close(
        first_order(
            lambda *shards: tf_ti.embedding_bag(list(shards), ids, weights, **arguments), shards
        ),
        first_order(
            lambda *shards: tf.compat.v1.nn.embedding_lookup_sparse(
                list(shards), ids, weights, **arguments
            ),
            shards,
        ),
    )


def test_gradients_through_pruning():
    rng = np.random.default_rng(11)
    bags = [[0, -1, 2], [-5], [3, 3]]
    kept = [[0, 2], [], [3, 3]]
    sources = [tf.constant(rng.standard_normal([4, 3])), tf.constant(rng.random(6) + 0.5)]
    run = embedding_bag("ragged", bags, "mean", {"prune_invalid": True, "default_index": 1})
    close(
        first_order(run, sources),
        first_order(lambda t, w: pooled(t, kept, tf.gather(w, [0, 2, 4, 5]), "mean", 1), sources),
    )


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
def test_weights_without_a_sum_have_finite_gradients(combiner):
    sources = [tf.ones([3, 2], F64), tf.constant([0.0, 0.0], F64)]
    run = embedding_bag("ragged", [[1, 2]], combiner, {})
    for gradient in first_order(run, sources):
        assert np.all(np.isfinite(dense(gradient)))


def test_a_repeated_row_of_a_giant_bag_gets_the_whole_sum():
    rng = np.random.default_rng(12)
    table = tf.Variable(rng.integers(-8, 9, [100, 5]).astype(np.float32))
    indices = rng.integers(0, 100, 300_000)
    indices[:100_000] = 7
    weights = tf.constant(rng.integers(-2, 3, 300_000), tf.float32)
    offsets = [0, 10, 10, 299_990]
    scale = tf.constant([[1.0], [2.0], [3.0], [4.0]])
    with tf.GradientTape() as tape:
        tape.watch(weights)
        y = tf_ti.embedding_bag_offsets_sum(table, indices, offsets, None, weights) * scale
    of_table, of_weights = tape.gradient(y, [table, weights])
    check_slices(of_table, table)
    factors = np.repeat([1, 3, 4], [10, 299_980, 10])
    expected = np.zeros(100)
    np.add.at(expected, indices, factors * weights.numpy())
    np.testing.assert_array_equal(of_table.values, np.tile(expected[:, np.newaxis], [1, 5]))
    np.testing.assert_array_equal(of_weights, table.numpy()[indices].sum(1) * factors)


@pytest.mark.parametrize("reduction", ["sum", "mean", "max"])
@pytest.mark.parametrize("num_emb", [7, 5000, 2**31 - 1, 2**40, 2**62])
@pytest.mark.parametrize("count", [20, 100_000])
def test_rows_are_found_and_summed_however_many_the_table_has(num_emb, count, reduction):
    """The gradient's own op needs no table, so that this one may be larger than any memory."""
    rng = np.random.default_rng(count)
    ids = np.minimum(rng.zipf(1.1, count).astype(np.uint64) * 7919 % num_emb, num_emb - 1)
    ids[::2] = rng.integers(0, num_emb, len(ids[::2]))
    ids[:5] = num_emb - 1
    ids = ids.astype(np.int64)
    starts = np.unique(np.sort(rng.integers(0, count, 50)))
    starts[0] = 0
    lengths = np.diff([*starts, count])
    grad = rng.integers(-8, 9, [len(starts), 3]) * 420.0
    bag = np.repeat(np.arange(len(starts)), lengths)
    argmax = starts[:, np.newaxis] + rng.integers(0, lengths[:, np.newaxis], [len(starts), 3])

    rows, values = ops.tf_ti_embedding_bag_grad(
        num_emb=tf.constant(num_emb, tf.int64),
        grad=tf.constant(grad),
        indices=ids,
        bounds=[tf.constant(starts)],
        default_index=[],
        per_sample_weights=[],
        argmax=[tf.constant(argmax)] if reduction == "max" else [],
        bags="offsets",
        reduction=reduction,
    )
    expected_rows, place = np.unique(ids, return_inverse=True)
    np.testing.assert_array_equal(rows, expected_rows)
    expected = np.zeros([len(expected_rows), 3])
    if reduction == "max":
        for column in range(3):
            np.add.at(expected[:, column], place[argmax[:, column]], grad[:, column])
    else:
        divisors = lengths[bag][:, np.newaxis] if reduction == "mean" else 1
        np.add.at(expected, place, grad[bag] / divisors)
    np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-9)


def test_a_jacobian_is_that_of_the_reference():
    table = tf.constant(np.random.default_rng(13).standard_normal([5, 2]))

    def jacobian(run):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(table)
            y = run(table)
        return tape.jacobian(y, table, experimental_use_pfor=False)

    close(
        [jacobian(lambda t: tf_ti.embedding_bag_offsets(t, [1, 2, 2], [0, 1], reduction="mean"))],
        [jacobian(lambda t: pooled(t, [[1], [2, 2]], combiner="mean"))],
    )


@each_kind
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "max"])
def test_forward_mode_gives_the_product_with_the_jacobian(combiner, kind):
    rng = np.random.default_rng(14)
    table = held(kind, rng.standard_normal([5, 2]))
    tangent = tf.constant(rng.standard_normal([5, 2]))

    def product(run):
        with tf.autodiff.ForwardAccumulator(table, tangent) as accumulator:
            y = run(table)
        return accumulator.jvp(y)

    close(
        [product(embedding_bag("ragged", BAGS, combiner, {"default_index": 1}))],
        [product(lambda t: pooled(t, BAGS, combiner=combiner, default_index=1))],
    )


@each_kind
def test_forward_mode_of_weights_alone_gives_the_product_with_the_jacobian(kind):
    rng = np.random.default_rng(15)
    table = held(kind, rng.standard_normal([5, 2]))
    ids, weights = tf.constant([[0, 3], [3, 1]]), tf.constant(rng.standard_normal([2, 2]))
    tangent = tf.constant(rng.standard_normal([2, 2]))
    with tf.autodiff.ForwardAccumulator(weights, tangent) as accumulator:
        y = tf_ti.embedding_bag(table, ids, weights)
    expected = tf.reduce_sum(tf.gather(table, ids) * tangent[..., tf.newaxis], 1)
    close([accumulator.jvp(y)], [expected])


@each_kind
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_forward_mode_of_weights_leaves_default_rows_alone(combiner, kind):
    rng = np.random.default_rng(18)
    table = held(kind, rng.standard_normal([5, 2]))
    weights = tf.constant(rng.random(len(flat(BAGS))) + 0.5)
    tangent = tf.constant(rng.standard_normal(len(flat(BAGS))))

    def product(run):
        with tf.autodiff.ForwardAccumulator(weights, tangent) as accumulator:
            y = run(table, weights)
        return accumulator.jvp(y)

    close(
        [product(embedding_bag("ragged", BAGS, combiner, {"default_index": 1}))],
        [product(lambda t, w: pooled(t, BAGS, w, combiner, default_index=1))],
    )


@each_kind
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "max"])
def test_forward_over_reverse_gives_the_product_with_the_hessian(combiner, kind):
    rng = np.random.default_rng(17)
    table = held(kind, rng.standard_normal([5, 2]))
    tangent = tf.constant(rng.standard_normal([5, 2]))
    with tf.autodiff.ForwardAccumulator(table, tangent) as accumulator:
        run = embedding_bag("ragged", BAGS, combiner, {"default_index": 1})
        gradient = dense(first_order(run, [table])[0])
    with tf.GradientTape() as tape:
        tape.watch(table)
        (expected,) = first_order(
            lambda t: pooled(t, BAGS, combiner=combiner, default_index=1), [table]
        )
        product = tf.reduce_sum(dense(expected) * tangent)
    close([accumulator.jvp(gradient)], [tape.gradient(product, table)])


# Training


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "Adam"], ids=lambda name: f"keras {name}")
def test_training_steps_are_those_of_the_reference(optimizer):
    rng = np.random.default_rng(15)
    start = rng.standard_normal([6, 3])

    def trained(run, form=lambda gradient: gradient):
        table = tf.Variable(start)
        steps = getattr(tf.keras.optimizers, optimizer)(0.1)
        for _ in range(3):
            steps.apply_gradients([(form(first_order(run, [table])[0]), table)])
        return table.numpy()

    actual = trained(embedding_bag("ragged", BAGS, "mean", {}))
    # Keras takes slices that name a row twice for two rows.
    expected = trained(lambda table: pooled(table, BAGS, combiner="mean"), dense)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-7)


def test_a_sparse_update_with_the_gradient_is_a_step_of_descent():
    table = tf.Variable(np.random.default_rng(16).standard_normal([6, 3]))
    before = table.numpy()
    gradient = table_gradient(lambda t: tf_ti.embedding_bag_packed(t, [[1, 2], [2, 5]]) ** 2, table)
    table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
    np.testing.assert_allclose(table, before - 0.1 * dense(gradient).numpy(), rtol=1e-12)


@pytest.mark.parametrize("norm_type", [0.5, 1, 1.5, 2, 3, np.inf])
@pytest.mark.parametrize("width", [1, 4])
def test_gradients_pass_through_any_norm(norm_type, width):
    rng = np.random.default_rng(11)
    table = rng.standard_normal([6, width]) * [[3], [0.01], [3], [1], [2], [0.1]]
    weights = rng.standard_normal(6)
    options = {"max_norm": 1.2, "norm_type": norm_type}

    def run(table, weights):
        return tf_ti.embedding_bag_offsets_sum(
            table, [0, 1, 3, 4, 0, 5], [0, 2, 2], 2, weights, **options
        )

    sources = [tf.constant(table), tf.constant(weights)]
    close(first_order(run, sources), differences(run, sources), 1e-6)
    gradients = [dense(g) for g in second_order(run, sources)]
    assert all(np.all(np.isfinite(g)) for g in gradients)


@pytest.mark.parametrize("norm_type", [0.5, 1, 1.5, 2, 3, np.inf])
def test_gradients_are_finite_where_numbers_are_zero(norm_type):
    table = tf.constant([[0.0, 0.0], [0.0, 5.0], [0.0, 0.5]], tf.float64)

    def run(table):
        return tf_ti.embedding_bag_packed(table, [[0], [1], [2]], max_norm=1.0, norm_type=norm_type)

    with tf.GradientTape() as tape:
        tape.watch(table)
        y = tf.reduce_sum(run(table))
    # The second row has the norm 5, and 0 / 5 as the slope of its first element at most.
    gradient = dense(tape.gradient(y, table)).numpy()
    np.testing.assert_allclose(gradient, [[1, 1], [0.2, 0], [1, 1]], atol=1e-12)
    assert np.all(np.isfinite(dense(second_order(run, [table])[0])))


# Where rows are among those of a gradient


@pytest.mark.parametrize("num_emb", [1, 7, 3000, 2**31 - 1, 2**62])
@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("count", [0, 1, 500])
def test_positions_are_the_first_of_each_row(num_emb, is_sorted, count):
    rng = np.random.default_rng(count)
    rows = rng.integers(0, num_emb, count)
    rows[: count // 2] = rows[: count // 2] % 40  # so that some lie close together, and repeat
    rows = np.sort(rows) if is_sorted else rows
    indices = np.concatenate([rows, rng.integers(0, num_emb, 50), [-1, num_emb, -(2**63)]])
    expected = []
    for index in indices:
        places = np.flatnonzero(rows == index)
        is_row = 0 <= index < num_emb
        expected.append(-2 if not is_row else places[0] if len(places) else -1)
    found = row_positions(num_emb, tf.constant(rows), tf.constant(indices))
    np.testing.assert_array_equal(found, expected)
