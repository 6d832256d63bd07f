"""Tables in shards: the bags of the whole table, pooled beside each shard."""

import numpy as np
import pytest
import tensorflow as tf
from bag_definition import (
    DTYPES,
    by_definition,
    check,
    each_combiner,
    each_kind,
    exact,
    held,
    normal,
    ragged_of,
    shaped,
    shards_of,
)

import tf_ti
from tf_ti._library import ops

pytestmark = pytest.mark.quarter

InvalidArgument = tf.errors.InvalidArgumentError
each_strategy = pytest.mark.parametrize("strategy", ["div", "mod"])


def sharded(table, count, strategy, kind="variable"):
    return [held(kind, np.ascontiguousarray(part)) for part in shards_of(table, count, strategy)]


def random_case(rng):
    """(table, bags, weights or None, options)"""
    table = rng.standard_normal([int(rng.integers(1, 40)), int(rng.integers(1, 9))])
    rows = len(table)
    padding_idx = [None, int(rng.integers(0, rows)), -1, rows + 2][rng.integers(0, 4)]
    default_index = [None, -1, int(rng.integers(0, rows))][rng.integers(0, 3)]
    lengths = rng.integers(0, 7, rng.integers(0, 12))
    bags = [rng.integers(0, rows, n) for n in lengths]
    if padding_idx is not None:
        bags = [np.where(rng.random(len(bag)) < 0.3, padding_idx, bag) for bag in bags]
    weights = None
    if rng.random() < 0.6:
        weights = [rng.uniform(0.2, 2, n) * rng.choice([-1, 1], n) for n in lengths]
    options = {"padding_idx": padding_idx, "default_index": default_index}
    print(table.shape, bags, weights, options)
    return table, bags, weights, options


@pytest.mark.pairwise
@each_strategy
@pytest.mark.parametrize("form", ["ragged", "sparse"])
@pytest.mark.parametrize("seed", range(700, 725), indirect=True)
def test_random_shards_give_the_bags_of_the_whole_table(rng, form, strategy):
    table, bags, weights, options = random_case(rng)
    combiner = ["sum", "mean", "sqrtn"][rng.integers(0, 3)]
    if weights is not None and combiner == "mean":  # away from divisors of nearly 0
        weights = [np.abs(w) for w in weights]
    index_type = [tf.int32, tf.int64][rng.integers(0, 2)]
    shards = sharded(table, int(rng.integers(2, 6)), strategy, rng.choice(["variable", "tensor"]))
    ids = shaped(form, bags, index_type)
    given = None if weights is None else shaped(form, weights, tf.float64)
    expected = by_definition(table, bags, weights=weights, combiner=combiner, **options)

    def pool():
        return tf_ti.embedding_bag(
            shards, ids, given, combiner, partition_strategy=strategy, **options
        )

    for actual in (pool(), tf.function(pool)()):
        check(actual, expected, tf.float64, scale=50)


@pytest.mark.pairwise
@each_strategy
@each_combiner
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_every_dtype(dtype, combiner, strategy):
    rng = np.random.default_rng(1)
    table = exact(dtype, [11, 3], rng)
    bags = [[0, 10, 3, 3], [], [7], [1, 2, 9]]
    if combiner == "sqrtn" and dtype.is_integer or combiner == "max" and dtype.is_complex:
        with pytest.raises(TypeError, match=f"{combiner} needs.*{dtype.name}"):
            tf_ti.embedding_bag(
                sharded(table, 3, strategy), ragged_of(bags, tf.int64), combiner=combiner
            )
        return
    expected = by_definition(table, bags, combiner=combiner, default_index=5)
    actual = tf_ti.embedding_bag(
        sharded(table, 3, strategy),
        ragged_of(bags, tf.int64),
        combiner=combiner,
        default_index=5,
        partition_strategy=strategy,
    )
    check(actual, expected, dtype, scale=20)


@each_strategy
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("wide", [False, True])
def test_weights_of_half_precisions(dtype, combiner, strategy, wide):
    rng = np.random.default_rng(2)
    table = normal(dtype, [9, 4], rng)
    bags = [[0, 8], [4, 4, 4], [], [1, 5, 7, 3]]
    weights = [rng.uniform(0.5, 2, len(bag)).astype(dtype.as_numpy_dtype) for bag in bags]
    expected = by_definition(table, bags, weights=weights, combiner=combiner)
    actual = tf_ti.embedding_bag(
        sharded(table, 2, strategy),
        ragged_of(bags, tf.int32),
        ragged_of(weights, tf.float32 if wide else dtype),
        combiner,
        partition_strategy=strategy,
    )
    assert actual.dtype == dtype
    # A shard's sum is rounded too.
    error = np.abs(actual.numpy().astype(np.float64) - expected).max()
    assert error < 12 * {tf.float16: 2**-11, tf.bfloat16: 2**-8}[dtype]


@pytest.mark.parametrize(
    ("dtype", "compiled"),
    [
        (tf.float16, False),
        (tf.float16, True),
        (tf.bfloat16, False),
        (tf.float32, False),
        (tf.float32, True),
        (tf.complex64, False),
    ],
)
def test_no_sum_of_a_shard_leaves_the_dtype_where_its_bag_does_not(dtype, compiled):
    rng = np.random.default_rng(4)
    table = normal(dtype, [9, 4], rng)
    bags = [[0, 8], [4] * 30, [1, 5, 7, 3], [6]]
    weights = [rng.uniform(0.5, 2, len(bag)) for bag in bags]
    kind = dtype if dtype.is_complex else tf.float32
    # Squares of these leave float32, and so do products of them and rows some halves.
    cases = [(table, [w * unit for w in weights]) for unit in (1e-30, 1e20)]
    if dtype == tf.float16:
        cases.append((table * np.float16(4e3), None))

    @tf.function(autograph=False, jit_compile=compiled)
    def pool():
        return [
            tf_ti.embedding_bag(
                sharded(rows, 2, "div", "tensor"),
                ragged_of(bags, tf.int32),
                None if given is None else ragged_of(given, kind),
                combiner,
            )
            for combiner in ("mean", "sqrtn")
            for rows, given in cases
        ]

    tolerance = {tf.float16: 12 * 2**-11, tf.bfloat16: 12 * 2**-8}.get(dtype, 1e-5)
    expected = [
        by_definition(rows, bags, weights=given, combiner=combiner)
        for combiner in ("mean", "sqrtn")
        for rows, given in cases
    ]
    for actual, right in zip(pool(), expected, strict=True):
        assert actual.dtype == dtype
        size = np.abs(right).max()
        np.testing.assert_allclose(
            np.asarray(actual).astype(right.dtype) / size, right / size, atol=tolerance
        )


@pytest.mark.parametrize("shape", [[7], [7, 2, 3], [7, 0]])
@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_rows_of_every_rank(shape, combiner):
    table = np.random.default_rng(3).standard_normal(shape)
    bags = [[0, 6], [], [3, 3, 1]]
    actual = tf_ti.embedding_bag(
        sharded(table, 2, "div"), ragged_of(bags, tf.int64), None, combiner, 4
    )
    check(actual, by_definition(table, bags, combiner=combiner, default_index=4), tf.float64)


@each_strategy
@each_combiner
def test_dense_ids_of_three_dimensions(combiner, strategy):
    rng = np.random.default_rng(4)
    table, ids = rng.standard_normal([10, 3]), rng.integers(0, 10, [2, 3, 4])
    expected = by_definition(table, ids.reshape(6, 4), combiner=combiner).reshape(2, 3, 3)
    actual = tf_ti.embedding_bag(
        sharded(table, 4, strategy), ids, combiner=combiner, partition_strategy=strategy
    )
    check(actual, expected, tf.float64)


@each_strategy
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_more_shards_than_rows(rows, strategy):
    table = np.random.default_rng(5).standard_normal([rows, 2])
    bags = [[0, rows - 1], [], [rows // 2]]
    for combiner in ("sum", "mean", "max"):
        actual = tf_ti.embedding_bag(
            sharded(table, 5, strategy),
            ragged_of(bags, tf.int64),
            combiner=combiner,
            partition_strategy=strategy,
        )
        check(actual, by_definition(table, bags, combiner=combiner), tf.float64)


@pytest.mark.parametrize("bags", [[], [[]], [[], []], [[0, 1]]])
@pytest.mark.parametrize("default_index", [None, 5])
def test_shards_without_ids(bags, default_index):
    table = np.random.default_rng(6).standard_normal([6, 2])
    actual = tf_ti.embedding_bag(
        sharded(table, 3, "div"), ragged_of(bags, tf.int64), default_index=default_index
    )
    check(actual, by_definition(table, bags, default_index=default_index), tf.float64)


def test_weights_that_add_up_to_zero():
    table = np.arange(12.0).reshape(6, 2)
    ids, weights = tf.constant([[0, 5], [1, 4]]), tf.constant([[1.0, -1.0], [0.0, 0.0]], tf.float64)
    for combiner in ("mean", "sqrtn"):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            actual = tf_ti.embedding_bag(sharded(table, 2, "div"), ids, weights, combiner)
        expected = by_definition(table, ids.numpy(), weights=weights.numpy(), combiner=combiner)
        np.testing.assert_allclose(actual, expected)
        assert np.isfinite(tape.gradient(actual, weights)).all()


def test_thousands_of_bags_are_cut_by_several_threads():
    rng = np.random.default_rng(7)
    table = rng.integers(-5, 6, [1000, 3]).astype(np.float64)
    offsets = np.sort(rng.integers(0, 100_000, 20_000))
    ids = rng.integers(0, 1000, 100_000)
    splits = np.concatenate([[0], offsets, [len(ids)]])
    ragged = tf.RaggedTensor.from_row_splits(ids, splits)
    expected = np.add.reduceat(np.concatenate([table[ids], np.zeros([1, 3])]), splits[:-1])
    expected[splits[:-1] == splits[1:]] = 0
    for strategy in ("div", "mod"):
        shards = sharded(table, 7, strategy)
        actual = tf_ti.embedding_bag(shards, ragged, partition_strategy=strategy)
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_the_op_gives_each_shard_its_bags(dtype, strategy):
    """The example of cc/compute/bags/partition.h, with a default row."""
    found = ops.tf_ti_embedding_bag_partition(
        6,
        tf.constant([0, 4, 1, 5], dtype),
        [tf.constant([0, 3, 3], dtype)],
        [],
        [tf.constant(2, dtype)],
        bags="offsets",
        num_shards=2,
        num_positions=2,
        strategy=strategy,
        Tlocal=tf.int32,
    )
    lists = [[part.numpy().tolist() for part in parts] for parts in found[:-1]]
    expected = {
        "div": [[[0, 1, 2], [1, 2]], [[0, 2], [0, 1]], [[0, 3], [0, 2]], [[0, 2, 4], [1, 3]]],
        "mod": [[[0, 2, 1], [0, 2]], [[0, 2], [0, 1]], [[0, 3], [0, 2]], [[0, 1, 4], [2, 3]]],
    }
    assert lists == expected[strategy]
    assert found.is_empty.numpy().tolist() == [False, True, False]
    assert {part.dtype for part in [*found.ids, *found.offsets]} == {tf.int32}


# Gradients


def loss_of(y):
    factors = tf.reshape(tf.cast(tf.range(tf.size(y)), y.dtype) + 1, tf.shape(y))
    return tf.reduce_sum(tf.sin(y) * factors)


@pytest.mark.pairwise
@each_strategy
@pytest.mark.parametrize(
    ("combiner", "weighted"),
    [(combiner, False) for combiner in ("sum", "mean", "sqrtn", "max")]
    + [(combiner, True) for combiner in ("sum", "mean", "sqrtn")],
)
@pytest.mark.parametrize("form", ["ragged", "sparse", "dense"])
@pytest.mark.parametrize("default_index", [None, 9])
def test_gradients_are_those_of_the_whole_table(form, weighted, combiner, default_index, strategy):
    rng = np.random.default_rng(8)
    table = rng.standard_normal([10, 3])
    bags = [[0, 9, 4, 4], [7, 2, 2, 1]] if form == "dense" else [[0, 9, 4, 4], [], [7], [2, 2, 1]]
    weights = [rng.uniform(0.5, 2, len(bag)) for bag in bags]
    if form == "dense":
        ids, given = tf.constant(bags), tf.constant(np.array(weights))
    else:
        ids, given = shaped(form, bags, tf.int32), shaped(form, weights, tf.float64)
    values = given if form == "dense" else given.values
    shards, whole = sharded(table, 3, strategy), tf.Variable(table)

    def gradients(table, **more):
        with tf.GradientTape() as tape:
            tape.watch(values)
            y = tf_ti.embedding_bag(
                table, ids, given if weighted else None, combiner, default_index, **more
            )
            loss = loss_of(y)
        sources = table if isinstance(table, list) else [table]
        return tape.gradient(loss, [*sources, values])

    *expected, of_values = gradients(whole)
    expected = shards_of(tf.convert_to_tensor(expected[0]).numpy(), 3, strategy)
    for compute in (gradients, tf.function(gradients)):
        *actual, of_my_values = compute(shards, partition_strategy=strategy)
        for mine, rows in zip(actual, expected, strict=True):
            assert isinstance(mine, tf.IndexedSlices)
            np.testing.assert_allclose(tf.convert_to_tensor(mine), rows, rtol=1e-12, atol=1e-14)
            assert (np.diff(mine.indices) > 0).all()  # each row once
        if weighted:
            actual = tf.convert_to_tensor(of_my_values)
            np.testing.assert_allclose(actual, of_values, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_first_and_second_gradients_are_the_numeric_ones(combiner):
    rng = np.random.default_rng(9)
    parts = [tf.constant(part) for part in np.array_split(rng.standard_normal([5, 2]), 2)]
    ids = ragged_of([[0, 4, 4], [], [2, 3]], tf.int64)
    weights = tf.constant(rng.uniform(0.5, 2, 5))

    def pool(a, b, weights):
        return loss_of(
            tf_ti.embedding_bag([a, b], ids, ids.with_values(weights), combiner, default_index=3)
        )

    def gradient(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = pool(*inputs)
        return [tf.convert_to_tensor(g) for g in tape.gradient(y, inputs)]

    second = [lambda *inputs, k=k: gradient(*inputs)[k] for k in range(3)]
    for function in (pool, *second):
        theory, numeric = tf.test.compute_gradient(function, [*parts, weights])
        for mine, expected in zip(theory, numeric, strict=True):
            np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)


def test_two_look_ups_in_shards_and_in_one_of_them_add_up():
    shards = sharded(np.ones([6, 2], np.float32), 2, "div")
    with tf.GradientTape() as tape:
        y = tf_ti.embedding_bag(shards, tf.constant([[0, 5]], tf.int64))
        y += tf_ti.embedding_bag(shards[0], tf.constant([[0, 1]], tf.int64))
    first, second = tape.gradient(y, shards)
    np.testing.assert_array_equal(tf.convert_to_tensor(first), [[2, 2], [1, 1], [0, 0]])
    np.testing.assert_array_equal(tf.convert_to_tensor(second), [[0, 0], [0, 0], [1, 1]])


@each_strategy
@pytest.mark.parametrize("update", ["scatter_sub", "adam", "adagrad"])
def test_updates_of_shards_are_those_of_the_whole_table(update, strategy):
    rng = np.random.default_rng(10)
    table = rng.standard_normal([12, 3]).astype(np.float32)
    shards, whole = sharded(table, 4, strategy), tf.Variable(table)

    def slots(parts):
        return [tf.Variable(tf.zeros_like(part)) for part in parts]

    def step(parts, m, v, ids, number, **more):
        source = parts if len(parts) > 1 else parts[0]
        with tf.GradientTape() as tape:
            loss = loss_of(tf_ti.embedding_bag(source, ids, combiner="mean", **more))
        for part, one, two, gradient in zip(parts, m, v, tape.gradient(loss, parts)):
            if update == "adam":
                tf_ti.adam_update(part, one, two, gradient, 0.1, number)
            elif update == "adagrad":
                tf_ti.adagrad_update(part, one, gradient, 0.1)
            else:
                tf_ti.scatter_sub(part, gradient, 0.1)

    mine = tf.function(step)
    of_shards, of_whole = [(p, slots(p), slots(p)) for p in (shards, [whole])]
    for number in range(1, 11):
        ids = tf.constant(rng.integers(0, 12, [5, 2]))
        mine(*of_shards, ids, number, partition_strategy=strategy)
        step(*of_whole, ids, number)
    for part, expected in zip(shards, shards_of(whole.numpy(), 4, strategy), strict=True):
        np.testing.assert_allclose(part, expected, rtol=2e-5, atol=1e-6)


# Modes


@pytest.mark.pairwise
@each_strategy
@each_combiner
@each_kind
def test_compiled_shards(kind, combiner, strategy):
    rng = np.random.default_rng(11)
    table = rng.standard_normal([9, 2])
    shards = sharded(table, 3, strategy, kind)
    bags = [[0, 8, -1], [-1, -1, -1], [4, 4, 5]]
    options = {"padding_idx": -1, "default_index": 7, "partition_strategy": strategy}

    def compute(ids):
        with tf.GradientTape() as tape:
            tape.watch(shards)
            y = tf_ti.embedding_bag(shards, ids, combiner=combiner, **options)
            loss = loss_of(y)
        return y, [tf.convert_to_tensor(g) for g in tape.gradient(loss, shards)]

    ids = tf.constant(bags)
    expected = tf.function(compute)(ids)
    actual = tf.function(compute, jit_compile=True)(ids)
    options.pop("partition_strategy")
    check(actual[0], by_definition(table, bags, combiner=combiner, **options), tf.float64)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), actual, expected
    )


@pytest.mark.pairwise
@each_strategy
@pytest.mark.parametrize("form", ["ragged", "sparse", "dense"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "max"])
@pytest.mark.parametrize("default_index", [None, 3])
def test_vectorized_maps_of_shards(form, combiner, default_index, strategy):
    rng = np.random.default_rng(12)
    shards = sharded(rng.standard_normal([7, 2]), 3, strategy)
    weights = None if combiner == "max" else tf.constant(rng.uniform(0.5, 2, [3, 6]))
    lanes = tf.constant(rng.integers(0, 7, [3, 6]))

    def look_up(lane):
        def of_form(values):
            if form == "dense":
                return tf.reshape(values, [3, 2])
            if form == "ragged":
                return tf.RaggedTensor.from_row_splits(values, [0, 1, 1, 5], validate=False)
            places = tf.constant([[0, 0], [0, 1], [2, 0], [2, 1], [2, 3], [3, 0]], tf.int64)
            return tf.SparseTensor(places, values, [4, 6])

        ids, w = lane if weights is not None else (*lane, None)
        with tf.GradientTape() as tape:
            y = tf_ti.embedding_bag(
                shards,
                of_form(ids),
                None if w is None else of_form(w),
                combiner,
                default_index,
                padding_idx=5,
                partition_strategy=strategy,
            )
            loss = loss_of(y)
        return y, [tf.convert_to_tensor(g) for g in tape.gradient(loss, shards)]

    lanes = (lanes,) if weights is None else (lanes, weights)
    actual = tf.vectorized_map(look_up, lanes, fallback_to_while_loop=False)
    expected = [look_up(lane) for lane in zip(*tf.nest.map_structure(tf.unstack, lanes))]
    expected = tf.nest.map_structure(lambda *each: tf.stack(each), *expected)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), actual, expected
    )


def test_a_bad_id_in_a_vectorized_map_is_named():
    shards = sharded(np.ones([6, 2]), 2, "div")
    with pytest.raises(InvalidArgument, match="is 6, but emb_table has 6 rows"):
        tf.vectorized_map(
            lambda ids: tf_ti.embedding_bag(shards, ids[tf.newaxis]), tf.constant([[0, 1], [6, 2]])
        )


def test_unknown_dimensions_and_a_saved_model(tmp_path):
    table = np.random.default_rng(13).standard_normal([8, 2]).astype(np.float32)
    module = tf.Module()
    module.shards = [tf.Variable(p, shape=[None, None]) for p in np.array_split(table, 3)]
    spec = tf.RaggedTensorSpec([None, None], tf.int64)
    module.pool = tf.function(
        lambda ids: tf_ti.embedding_bag(module.shards, ids, combiner="mean", default_index=2),
        input_signature=[spec],
    )
    bags = [[0, 7, 3], [], [5, 5]]
    expected = by_definition(table, bags, combiner="mean", default_index=2)
    ids = ragged_of(bags, tf.int64)
    np.testing.assert_allclose(module.pool(ids), expected, rtol=1e-6)
    tf.saved_model.save(module, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    loaded.shards[0].assign(2 * loaded.shards[0])
    table[:3] *= 2
    expected = by_definition(table, bags, combiner="mean", default_index=2)
    np.testing.assert_allclose(loaded.pool(ids), expected, rtol=1e-6)


def test_static_shapes():
    shards = [tf.Variable(tf.zeros([n, 4])) for n in (3, 2)]

    @tf.function(input_signature=[tf.TensorSpec([7, None], tf.int64)])
    def pool(ids):
        assert tf_ti.embedding_bag(shards, ids).shape == [7, 4]
        assert tf_ti.embedding_bag(shards, ids, combiner="mean", default_index=1).shape == [7, 4]
        ragged = tf.RaggedTensor.from_tensor(ids)
        assert tf_ti.embedding_bag(shards, ragged).shape[1:] == [4]

    pool.get_concrete_function()


# ShardedVariable, and bad input


def test_a_sharded_variable_is_its_shards():
    table = np.random.default_rng(14).standard_normal([7, 3])
    shards = sharded(table, 3, "div")
    whole = tf.__internal__.distribute.ShardedVariable(shards)
    ids = ragged_of([[0, 6, 2], [4]], tf.int64)
    for combiner in ("sum", "mean", "max"):
        expected = by_definition(table, [[0, 6, 2], [4]], combiner=combiner)
        for pool in (tf_ti.embedding_bag, tf.function(tf_ti.embedding_bag)):
            check(pool(whole, ids, combiner=combiner), expected, tf.float64)
    with pytest.raises(ValueError, match="partition_strategy.*div.*ShardedVariable.*mod"):
        tf_ti.embedding_bag(whole, ids, partition_strategy="mod")


@pytest.mark.needs_checked_ids
@each_strategy
@pytest.mark.parametrize("value", [-1, 10, 2**31])
@pytest.mark.parametrize("combiner", ["mean", "max"])
def test_an_id_beyond_the_total_is_named(value, combiner, strategy):
    shards = sharded(np.ones([10, 2]), 3, strategy)
    bags = ragged_of([[0, 1], [], [9, value]], tf.int64)
    for pool in (tf_ti.embedding_bag, tf.function(tf_ti.embedding_bag)):
        with pytest.raises(
            InvalidArgument, match=rf"indices\[3\] is {value}, but emb_table has 10 rows"
        ):
            pool(shards, bags, combiner=combiner, partition_strategy=strategy)


@pytest.mark.parametrize(
    "change",
    [
        {"num_emb": -1},
        {"num_emb": [1, 2]},
        {"num_shards": 0},
        {"num_positions": 1},
        {"indices": [[1]]},
        {"bounds": []},
        {"bounds": [[3, 1]]},
        {"bounds": [[0, 9]]},
        {"num_segments": [3]},
        {"default_index": [7]},
        {"default_index": [-2]},
        {"padding_idx": [1, 2]},
        {"strategy": "row"},
    ],
    ids=str,
)
def test_bad_calls_of_the_op(change):
    arguments = {
        "num_emb": 6,
        "indices": [0, 1],
        "bounds": [[0, 1]],
        "num_segments": [],
        "default_index": [],
        "bags": "offsets",
        "num_shards": 2,
        "num_positions": 0,
        "strategy": "div",
        "Tlocal": tf.int32,
    }
    ops.tf_ti_embedding_bag_partition(**arguments)
    with pytest.raises((ValueError, InvalidArgument)):
        ops.tf_ti_embedding_bag_partition(**(arguments | change))


def test_slots_on_another_device_are_refused():
    with tf.device("CPU:0"):
        table, slot = tf.Variable(tf.ones([4, 2])), tf.Variable(tf.ones([4, 2]))

    class Elsewhere(type(slot)):
        device = "/job:ps/replica:0/task:1/device:CPU:0"

    slot.__class__ = Elsewhere
    slices = tf.IndexedSlices(tf.ones([1, 2]), [1], [4, 2])
    with pytest.raises(ValueError, match="accumulator must be on the device of variable.*task:1"):
        tf_ti.adagrad_update(table, slot, slices, 0.1)
