"""Bags in functions that XLA compiles, beside the plain kernels and the definition in NumPy."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from checks import close, loss
from updates_definition import each_updated_dtype

import tf_ti
from tf_ti import _library
from tf_ti.bags.ops import NUMBERS, Bags, Table

pytestmark = [
    pytest.mark.quarter,
    pytest.mark.skipif(_library.XLA_PROBLEM is not None, reason=str(_library.XLA_PROBLEM)),
]

F32, F64 = tf.float32, tf.float64
FLOATS = [tf.float32, tf.float64, tf.float16, tf.bfloat16]
COMPLEX = [tf.complex64, tf.complex128]
TOLERANCES = {tf.float16: 2e-3, tf.bfloat16: 1.6e-2, tf.float32: 1e-5, tf.complex64: 1e-5}

each_seed = pytest.mark.parametrize("seed", range(2), indirect=True)


HOST = pytest.param("host", marks=pytest.mark.needs_cpu_kernels)


@pytest.fixture(params=[HOST, "hlo"], autouse=True)
def way(request, monkeypatch):
    """The form that bags are compiled to: the CPU's kernels, or XLA's own, as on a GPU."""
    if request.param == "hlo":
        monkeypatch.setenv("TF_TI_XLA_BAGS", "hlo")
    return request.param


def compiled(f):
    return tf.function(f, jit_compile=True, autograph=False)


def both(f, *inputs):
    """The results of a function with the plain kernels, and compiled."""
    return f(*inputs), compiled(f)(*inputs)


def same(plain, xla, dtype=F64):
    """Equal within rounding; integers exactly."""
    for x, y in zip(tf.nest.flatten(plain), tf.nest.flatten(xla), strict=True):
        x, y = tf.convert_to_tensor(x), tf.convert_to_tensor(y)
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        if x.dtype.is_integer:
            np.testing.assert_array_equal(x, y)
        else:
            wide = x.dtype if x.dtype.is_complex else F64
            tolerance = TOLERANCES.get(dtype, 1e-12)
            np.testing.assert_allclose(tf.cast(x, wide), tf.cast(y, wide), tolerance, tolerance)


def numbers(rng, shape, dtype):
    if dtype.is_complex:
        values = rng.standard_normal([2, *shape])
        return tf.cast(values[0] + 1j * values[1], dtype)
    if dtype.is_integer:
        return tf.constant(rng.integers(dtype.min, dtype.max, shape, dtype.as_numpy_dtype))
    return tf.cast(rng.standard_normal(shape), dtype)


def random_bags(rng, kind, rows, dtype=F64, index=tf.int32, reduction="sum", **given):
    """Bags of any sizes, with every option that the reduction has."""
    count, size = int(rng.integers(1, 30)), int(rng.integers(0, 9))
    if kind == "packed":
        lengths = np.full(count, size)
    else:
        lengths = rng.integers(0, 2 * size + 1, count) * rng.integers(0, 2, count)
        lengths[rng.integers(count)] += rng.choice([0, 3, 150])
    before, after = (int(n) for n in rng.integers(0, 4, 2))
    if kind != "offsets":
        before = after = 0
    num = before + int(lengths.sum()) + after
    options = {
        "default_index": tf.constant(rng.integers(-1, rows), index) if rng.random() < 0.6 else None,
        "padding_idx": int(rng.integers(-1, rows)) if rng.random() < 0.4 else None,
        "reduction": reduction,
    }
    if reduction != "max" and rng.random() < 0.6:
        weights = numbers(rng, [num], dtype)
        if dtype.is_floating:
            weights = abs(weights) + tf.cast(0.5, dtype)
        options["weights"] = weights
    options |= given
    indices = rng.integers(0, rows, num)
    if kind == "packed":
        if options.get("weights") is not None:
            options["weights"] = tf.reshape(options["weights"], [count, size])
        return Bags("packed", tf.constant(indices.reshape(count, size), index), **options)
    indices = tf.constant(indices, index)
    if kind == "segments":
        segments = tf.constant(np.repeat(np.arange(count), lengths), index)
        return Bags("segments", indices, segments, tf.constant(count, index), **options)
    offsets = before + np.cumsum([0, *lengths])
    has_last = after > 0 or bool(rng.integers(2))
    offsets = tf.constant(offsets if has_last else offsets[:-1], index)
    return Bags("offsets", indices, offsets, include_last_offset=has_last, **options)


def tensors_of(bags):
    return {
        name: getattr(bags, name)
        for name in ("indices", "bounds", "default_index", "weights")
        if getattr(bags, name) is not None
    }


def pool(table, bags, with_argmax=False):
    result = bags.pool(Table(table, table.dtype), with_argmax)
    return result if with_argmax else result[0]


def defined(table, bags):
    """By definition, in NumPy."""
    table, indices = np.asarray(table), np.asarray(bags.indices).reshape(-1)
    if bags.kind == "packed":
        count, size = bags.indices.shape
        members = np.arange(count * size).reshape(count, size)
    elif bags.kind == "segments":
        members = [np.flatnonzero(bags.bounds == s) for s in range(int(bags.num_segments))]
    else:
        ends = [*np.asarray(bags.bounds), *([] if bags.include_last_offset else [len(indices)])]
        members = [np.arange(*ends[b : b + 2]) for b in range(len(ends) - 1)]
    weights = np.ones(len(indices)) if bags.weights is None else np.ravel(bags.weights)
    results = []
    for at in members:
        at = [i for i in at if indices[i] != bags.padding_idx]
        rows = table[indices[at]]
        w = weights[at].reshape([-1] + [1] * (table.ndim - 1))
        if not at:
            default = -1 if bags.default_index is None else int(bags.default_index)
            results.append(table[default] if default >= 0 else np.zeros(table.shape[1:]))
        elif bags.reduction == "max":
            results.append(rows.max(0))
        else:
            divisor = {"sum": 1, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[bags.reduction]
            results.append((rows * w).sum(0) / divisor)
    return np.array(results).reshape([-1, *table.shape[1:]])


# Values


@pytest.mark.pairwise
@each_seed
@pytest.mark.parametrize("reduction", ["sum", "mean", "sqrtn", "max"])
@pytest.mark.parametrize("kind", ["offsets", "packed", "segments"])
def test_random_bags_are_those_of_the_plain_kernels_and_of_the_definition(
    kind, reduction, seed, rng
):
    index = [tf.int32, tf.int64][seed % 2]
    table = numbers(rng, [[7, 3], [40], [5, 2, 3]][seed % 3], F64)
    bags = random_bags(rng, kind, table.shape[0], index=index, reduction=reduction)

    def run(table, tensors):
        return pool(table, bags.replace(**tensors), with_argmax=reduction == "max")

    plain, xla = both(run, table, tensors_of(bags))
    same(plain, xla)
    np.testing.assert_allclose(tf.nest.flatten(xla)[0], defined(table, bags), 1e-12, 1e-12)


@pytest.mark.parametrize("dtype", sorted(NUMBERS, key=str), ids=lambda dtype: dtype.name)
def test_every_type_is_summed_as_by_the_plain_kernels(dtype):
    rng = np.random.default_rng(1)
    table = numbers(rng, [9, 5], dtype)
    reductions = ["sum", "mean"]
    reductions += [] if dtype.is_integer else ["sqrtn"]
    reductions += [] if dtype.is_complex else ["max"]
    each = [
        random_bags(
            rng,
            "offsets",
            9,
            dtype,
            reduction=reduction,
            padding_idx=3,
            default_index=tf.constant(2),
        )
        for reduction in reductions
    ]
    weights = numbers(rng, each[0].indices.shape, F32 if dtype in FLOATS[2:] else dtype)
    each[0] = each[0].replace(weights=weights)

    def run(table):
        return [pool(table, bags) for bags in each]

    plain, xla = both(run, table)
    same(plain, xla, dtype)


def test_halves_are_summed_in_float_and_rounded_once():
    table = tf.constant([[2048.0], [1.0]], tf.float16)
    run = compiled(lambda t: tf_ti.embedding_bag_offsets_sum(t, [0, 1, 1, 1], [0]))
    assert run(table).numpy().tolist() == [[2052.0]]  # 2051, to the even neighbour


def test_a_mean_of_whole_numbers_is_rounded_towards_zero_and_sums_wrap_around():
    table = tf.constant([[-128], [-127], [127]], tf.int8)
    run = compiled(
        lambda t, r: tf_ti.embedding_bag_offsets(t, [0, 1, 0, 2, 2], [0, 2], None, reduction=r)
    )
    assert run(table, "mean").numpy().tolist() == [[-127], [42]]
    assert run(table, "sum").numpy().tolist() == [[1], [126]]


@pytest.mark.pairwise
@pytest.mark.parametrize("count", [1, 3, 70])
@pytest.mark.parametrize("reduction", ["sum", "mean", "max"])
def test_long_bags_beside_short_and_empty_ones(reduction, count):
    rng = np.random.default_rng(2)
    table = tf.constant(rng.integers(-9, 9, [100, 3]), F64)  # whole numbers: sums are exact
    lengths = np.zeros(count, int)
    lengths[-1] = 40_000
    lengths[: count // 2] = rng.integers(0, 100, count // 2)
    lengths[count // 2] = 1025
    indices = rng.integers(0, 100, lengths.sum())
    bags = Bags(
        "offsets",
        tf.constant(indices),
        tf.constant(np.cumsum([0, *lengths[:-1]])),
        padding_idx=5,
        reduction=reduction,
    )
    same(*both(lambda t: pool(t, bags, reduction == "max"), table))


@pytest.mark.slow
def test_many_sizes_of_bags():
    """Every number of slots and of levels on which pieces are reduced."""
    rng = np.random.default_rng(3)
    table = tf.constant(rng.integers(-9, 9, [50, 2]), F32)
    for size in (1, 4, 5, 16, 17, 33, 300):
        for lengths in ([0, size, 0], [1] * 40 + [size]):
            ids = tf.constant(rng.integers(0, 50, sum(lengths)))
            starts = tf.constant(np.cumsum([0, *lengths[:-1]]))
            plain, xla = both(tf_ti.embedding_bag_offsets_sum, table, ids, starts)
            np.testing.assert_array_equal(xla, plain, str(lengths))


@pytest.mark.parametrize("size", [1, 20, 33, 70])
def test_packed_bags_of_every_size(size):
    rng = np.random.default_rng(4)
    table, ids = tf.constant(rng.standard_normal([30, 3])), rng.integers(0, 30, [6, size])
    weights = tf.constant(rng.random([6, size]))
    same(*both(lambda t: tf_ti.embedding_bag_packed(t, ids, weights), table))
    same(*both(lambda t: tf_ti.embedding_bag_packed(t, ids, reduction="max"), table))


def test_a_maximum_is_nan_where_a_row_is_and_is_from_the_first_of_equal_rows():
    nan, inf = np.nan, np.inf
    table = tf.constant([[1.0, nan, -inf], [1.0, 2.0, -inf], [0.0, nan, -inf]])
    bags = Bags("packed", tf.constant([[0, 1, 2, 0], [2, 1, 0, 0], [1, 1, 2, 2]]), reduction="max")
    (plain, plain_argmax), (xla, argmax) = both(lambda t: pool(t, bags, True), table)
    np.testing.assert_array_equal(plain, xla)
    np.testing.assert_array_equal(plain_argmax, argmax)
    assert argmax.numpy().tolist() == [[0, 0, 0], [5, 4, 4], [8, 10, 8]]


@pytest.mark.parametrize(
    "rows, count, num, width",
    [(0, 2, 0, 3), (4, 0, 0, 3), (4, 2, 0, 3), (4, 2, 5, 0), (4, 0, 5, 3)],
)
@pytest.mark.parametrize("reduction", ["sum", "mean", "max"])
def test_nothing_of_something(reduction, rows, count, num, width):
    table = tf.ones([rows, width])
    starts = tf.zeros([count], tf.int32)
    default = tf.constant(3 if rows else -1)
    bags = Bags(
        "offsets", tf.zeros([num], tf.int32), starts, default_index=default, reduction=reduction
    )

    def run(table):
        with tf.GradientTape() as tape:
            tape.watch(table)
            y, _ = (
                pool(table, bags, reduction == "max")
                if reduction == "max"
                else (pool(table, bags), 0)
            )
        return y, tf.convert_to_tensor(tape.gradient(y, table))

    same(*both(run, table))


def test_packed_bags_of_nothing():
    table = tf.constant([[1.0, 2.0]])
    ids = tf.zeros([3, 0], tf.int32)
    same(*both(lambda t: tf_ti.embedding_bag_packed(t, ids, default_index=0), table))


def test_ragged_ids():
    table = tf.constant(np.random.default_rng(5).standard_normal([9, 3]))
    ids = tf.ragged.constant([[3, 1], [], [8, 8, 0]])
    weights = tf.ragged.constant([[1.0, 2.0], [], [0.5, 1.0, 3.0]], F64)

    def run(table, ids, weights):
        return tf_ti.embedding_bag(table, ids, weights.with_values(weights.values), "mean", 4)

    same(*both(run, table, ids, weights))


def test_sparse_ids():
    table = tf.constant(np.random.default_rng(6).standard_normal([9, 3]))
    ids = tf.SparseTensor([[0, 0], [0, 1], [2, 4]], [8, 1, 3], [4, 5])
    run = compiled(lambda t, i: tf_ti.embedding_bag(t, i, combiner="sqrtn"))
    same(tf_ti.embedding_bag(table, ids, combiner="sqrtn"), run(table, ids))


# Gradients


def first_order(run, sources):
    with tf.GradientTape() as tape:
        tape.watch(sources)
        value = loss(run(*sources))
    gradients = tape.gradient(value, sources)
    return [None if g is None else tf.convert_to_tensor(g) for g in gradients]


def both_orders(run, sources):
    with tf.GradientTape() as tape:
        tape.watch(sources)
        first = first_order(run, sources)
        value = loss([g for g in first if g is not None])
    second = tape.gradient(value, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return first, [tf.convert_to_tensor(g) for g in second]


@pytest.mark.pairwise
@pytest.mark.parametrize("reduction", ["sum", "mean", "sqrtn", "max"])
@pytest.mark.parametrize("kind", ["offsets", "packed", "segments"])
@pytest.mark.parametrize(
    "rows, seed", [(7, 0), (3000, 1)], ids=["few rows", "more rows than ids"], indirect=["seed"]
)
def test_gradients_of_both_orders(rows, kind, reduction, rng):
    index = tf.int32 if (rows == 7) == (reduction in ("sum", "sqrtn")) else tf.int64
    table = numbers(rng, [rows, 2], F64)
    bags = random_bags(rng, kind, rows, index=index, reduction=reduction)
    if rows > 7:  # some rows again and again
        bags = bags.replace(indices=bags.indices % 9 * 100)
    sources = [table] + ([] if bags.weights is None else [bags.weights])

    def run(table, weights=None):
        given = bags.replace(weights=weights)
        return pool(table, given, True)[0] if reduction == "max" else pool(table, given)

    plain, xla = both(lambda *sources: both_orders(run, sources), *sources)
    for x, y in zip(plain, xla):
        close(y, x, 1e-9)


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", FLOATS[2:] + COMPLEX, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("rows", [5, 3000])
def test_gradients_of_every_type(dtype, rows):
    rng = np.random.default_rng(7)
    table = numbers(rng, [rows, 3], dtype)
    bags = random_bags(rng, "offsets", 5, dtype, reduction="mean", weights=None)
    weights = numbers(rng, bags.indices.shape, F32 if dtype in FLOATS else dtype)

    def gradients(table, weights):
        with tf.GradientTape() as tape:
            tape.watch([table, weights])
            y = pool(table, bags.replace(weights=weights, reduction="sum"))
        found = tape.gradient(y, [table, weights], output_gradients=y)
        return tf.convert_to_tensor(found[0]), found[1]

    same(*both(gradients, table, weights), dtype)


def test_the_numeric_gradient():
    rng = np.random.default_rng(8)
    bags = Bags("offsets", tf.constant([1, 3, 3, 0, 2]), tf.constant([0, 3]), reduction="mean")
    run = compiled(lambda t, w: pool(t, bags.replace(weights=w)))
    sources = [tf.constant(rng.standard_normal([4, 2])), tf.constant(rng.random(5) + 0.5)]
    theory, numeric = tf.test.compute_gradient(run, sources)
    close(theory, numeric, 1e-6)


@pytest.mark.parametrize("rows", [6, 500])
@pytest.mark.parametrize("default", [None, 2])
def test_each_row_of_a_gradient_comes_once_with_values(rows, default):
    """Optimizers square the values of rows: two parts of one sum would be wrong."""
    table = tf.ones([rows, 2])

    @compiled
    def run(table):
        with tf.GradientTape() as tape:
            tape.watch(table)
            y = tf_ti.embedding_bag_offsets_sum(table, [5, 2, 5, 2, 0], [1, 1, 4, 4, 5], default)
        slices = tape.gradient(y, table)
        return slices.indices, slices.values

    indices, values = (x.numpy() for x in run(table))
    assert np.all((indices >= 0) & (indices < rows))
    found = {int(row): value.tolist() for row, value in zip(indices, values) if value.any()}
    assert len(found) == np.count_nonzero(values.any(1))
    extra = 0 if default is None else 3
    assert found == {2: [2.0 + extra] * 2, 5: [1.0] * 2, 0: [1.0] * 2}


def shards_of(table, strategy):
    if strategy == "one table":
        return [table]
    return [table[k::3] for k in range(3)] if strategy == "mod" else np.array_split(table, 3)


@pytest.mark.pairwise
@pytest.mark.parametrize(
    ("combiner", "strategy"),
    [(combiner, "one table") for combiner in ("sum", "mean", "sqrtn", "max")]
    + [("mean", "div"), ("max", "div"), ("sum", "mod"), ("sqrtn", "mod")],
)
def test_rows_scaled_to_a_norm_and_shards(combiner, strategy):
    rng = np.random.default_rng(12)
    table = rng.standard_normal([11, 3])
    make = tf.Variable if combiner in ("sum", "max") else tf.constant
    sources = [make(shard) for shard in shards_of(table, strategy)]
    ids, lengths = tf.constant(rng.integers(0, 11, [4, 3])), [5, 0, 4, 3]
    if combiner != "max":
        sources.append(tf.constant(rng.random([4, 3]) + 0.5))
    norm_type = {"sum": 2, "mean": 1, "sqrtn": 3, "max": np.inf}[combiner]
    options = {"default_index": 2, "padding_idx": 7, "max_norm": 1.5, "norm_type": norm_type}
    if strategy == "mod":
        options["max_norm"] = None

    def flat(x):
        return None if x is None else tf.reshape(x, [-1])

    def run(*sources):
        shards, weights = sources, None
        if combiner != "max":
            *shards, weights = sources
        more = {"partition_strategy": strategy, **options}
        if strategy == "one table":
            (shards,), more = shards, options
        by_rows = None
        if weights is not None:
            by_rows = tf.RaggedTensor.from_row_lengths(flat(weights), lengths)
        ragged = tf.RaggedTensor.from_row_lengths(flat(ids), lengths)
        results = [
            tf_ti.embedding_bag(shards, ids, weights, combiner, **more),
            tf_ti.embedding_bag(shards, ragged, by_rows, combiner, **more),
        ]
        if strategy == "one table" and combiner in ("sum", "max"):
            results += [
                tf_ti.embedding_bag_packed(shards, ids, weights, combiner, **options),
                tf_ti.embedding_bag_offsets(
                    shards, flat(ids), [0, 2, 2, 9], 2, flat(weights), combiner, max_norm=1.5
                ),
            ]
        return results

    plain, xla = both(lambda *sources: (run(*sources), first_order(run, sources)), *sources)
    same(plain, xla)
    if options["max_norm"] is not None:
        norms = np.linalg.norm(table, norm_type, axis=1, keepdims=True)
        table = table * np.minimum(1, 1.5 / norms)
    weights = None if combiner == "max" else sources[-1]
    bags = Bags("packed", ids, None, None, 2, weights, padding_idx=7, reduction=combiner)
    np.testing.assert_allclose(xla[0][0], defined(table, bags), 1e-12, 1e-12)


@pytest.mark.slow
def test_a_gradient_of_rows_scaled_to_a_norm_taken_without_xla():
    table = tf.constant(np.random.default_rng(9).standard_normal([300, 2]))

    def run(table):
        return tf_ti.embedding_bag_packed(table, [[7, 3, 7], [250, 3, 1]], max_norm=0.5) ** 2

    close(both_orders(compiled(run), [table])[0], both_orders(run, [table])[0])


def test_a_saved_function_is_compiled_with_its_shards(tmp_path):
    module = tf.Module()
    module.shards = [tf.Variable([[1.0], [2.0]]), tf.Variable([[4.0], [8.0]])]
    module.bags = tf.function(
        lambda ids: tf_ti.embedding_bag(module.shards, ids, max_norm=3.0),
        input_signature=[tf.TensorSpec([None, 2], tf.int64)],
    )
    tf.saved_model.save(module, str(tmp_path / "bags"))
    loaded = tf.saved_model.load(str(tmp_path / "bags"))
    run = compiled(loaded.bags)
    assert run(tf.constant([[0, 2], [3, 1]], tf.int64)).numpy().tolist() == [[4.0], [5.0]]


CONSTANT_IDS = {
    "dense": lambda: tf.constant([[0, 0, 1], [3, 0, 3]]),
    "ragged": lambda: tf.ragged.constant([[0, 0, 1], [], [3]]),
    "sparse": lambda: tf.SparseTensor([[0, 0], [0, 1], [2, 0]], [3, 3, 0], [3, 2]),
    "computed": lambda: tf.range(6)[:, tf.newaxis] // [[2, 4]],
    "masked": lambda: tf.boolean_mask([1, 1, 3], [True, True, True])[:, tf.newaxis],
    "found": lambda: tf.cast(tf.where([True, False, True, True]), tf.int32) // 2,
    "repeated": lambda: tf.repeat([1, 0, 3], [2, 1, 1])[:, tf.newaxis],
    "one part of some": lambda: tf.dynamic_partition([[1], [1], [3], [2]], [0, 0, 0, 1], 2)[0],
}
OPTIONS = {
    "sum": {},
    "mean": {"combiner": "mean"},
    "max": {"combiner": "max"},
    "max_norm": {"max_norm": 0.5},
    "norm_type": {"max_norm": 0.5, "norm_type": 3.0, "combiner": "sqrtn"},
    "padding": {"padding_idx": 0, "max_norm": 0.5},
}


def times_one(gradient):
    """The same, dense, by a product for which the number of rows has to be right."""
    if isinstance(gradient, tf.IndexedSlices):
        values, indices, shape = gradient.values, gradient.indices, gradient.dense_shape
        ones = tf.zeros_like(values) + tf.ones(tf.shape(values))
        gradient = tf.IndexedSlices(ones * values, indices, shape)
    return tf.convert_to_tensor(gradient)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("ids", CONSTANT_IDS)
@pytest.mark.parametrize("given", ["a constant", "an argument", "a variable", "shards"])
@pytest.mark.parametrize("is_called", [False, True], ids=["traced", "called"])
@pytest.mark.pairwise
def test_gradients_by_constant_ids(given, ids, options, is_called):
    """TensorFlow knows while it traces how many rows a kernel gives; XLA's gradient has more."""
    value = np.float32([[3, 4], [0.1, 0.2], [6, 8], [0.3, -0.5]])
    variable = tf.Variable(value)
    table = {"a constant": tf.constant(value), "a variable": variable}.get(given)

    def slopes(argument):
        source = argument if table is None else table
        with tf.GradientTape() as outer:
            outer.watch(source)
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(source)
                tables = [source[:2], source[2:]] if given == "shards" else source
                pooled = tf_ti.embedding_bag(tables, CONSTANT_IDS[ids](), **OPTIONS[options])
                value = tf.reduce_sum(pooled**2)
                total = tf.reduce_sum(tf_ti.embedding_bag(source, CONSTANT_IDS[ids]()))
            slope, other = (times_one(tape.gradient(loss, source)) for loss in (value, total))
            square = tf.reduce_sum(slope**2)
        return [slope, other, times_one(outer.gradient(square, source))]

    call = tf.function(slopes, autograph=False)
    run = (lambda argument: call(argument)) if is_called else slopes
    same(*both(run, tf.constant(value)), tf.float32)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize(
    "ids", ["dense", "computed", "masked", "found", "repeated", "one part of some"]
)
@pytest.mark.parametrize("way", ["traced", "called", "compiled and called", "loaded"])
@pytest.mark.pairwise
def test_second_gradients_of_weights_by_constant_ids_in_shards(tmp_path, way, ids, combiner):
    """TensorFlow knows while it traces how many ids each shard gets; in XLA it gets all."""
    table = tf.constant(np.float32([[3, 4], [0.1, 0.2], [6, 8], [0.3, -0.5]]))

    def slopes(scales):
        with tf.GradientTape() as outer:
            outer.watch(scales)
            with tf.GradientTape() as tape:
                tape.watch(scales)
                of = CONSTANT_IDS[ids]()
                weights = tf.reshape(scales[: tf.size(of)], tf.shape(of))
                pooled = tf_ti.embedding_bag([table[:2], table[2:]], of, weights, combiner)
                loss = tf.reduce_sum(pooled**3)
            slope = times_one(tape.gradient(loss, scales))
            square = tf.reduce_sum(slope**2)
        return slope, times_one(outer.gradient(square, scales))

    scales = tf.linspace(0.5, 2.0, 12)
    call = tf.function(slopes, autograph=False, jit_compile=way == "compiled and called" or None)
    if way == "loaded":
        module = tf.Module()
        module.call = tf.function(slopes, [tf.TensorSpec([12])], autograph=False)
        tf.saved_model.save(module, tmp_path)
        call = tf.saved_model.load(tmp_path).call
    run = slopes if way == "traced" else lambda scales: call(scales)
    same(slopes(scales), compiled(run)(scales), tf.float32)


def test_a_second_gradient_taken_without_xla():
    table = tf.constant(np.random.default_rng(9).standard_normal([300, 2]))
    first = compiled(lambda t: tf_ti.embedding_bag_packed(t, [[7, 3, 7], [250, 3, 1]]) ** 2)

    def second(run):
        with tf.GradientTape() as outer:
            outer.watch(table)
            gradient = first_order(run, [table])[0]
        return [outer.gradient(gradient, table)]

    plain = second(lambda t: tf_ti.embedding_bag_packed(t, [[7, 3, 7], [250, 3, 1]]) ** 2)
    close(second(first), plain)


def test_slots_are_found_among_rows_in_any_order():
    from tf_ti._library import ops

    def run(rows):
        return ops.tf_ti_embedding_bag_slots(
            tf.constant(9, tf.int64), rows, tf.constant([[4, 0, 8], [-1, 2**31 - 1, 3]])
        )

    for rows, slots in (([0, 3, 4], [2, 0, -1, -2, -2, 1]), ([4, 8, 4, 0], [0, 3, 1, -2, -2, -1])):
        for found in both(run, tf.constant(rows)):
            assert found.numpy().ravel().tolist() == slots


@pytest.mark.parametrize("reduction", ["sum", "mean", "max"])
def test_forward_mode(reduction):
    rng = np.random.default_rng(10)
    table, tangent = (tf.constant(rng.standard_normal([5, 2])) for _ in range(2))
    bags = Bags("offsets", tf.constant([1, 3, 3, 0]), tf.constant([0, 3, 3]), reduction=reduction)

    def product(table, tangent):
        with tf.autodiff.ForwardAccumulator(table, tangent) as accumulator:
            y = pool(table, bags, True)[0] if reduction == "max" else pool(table, bags)
        return accumulator.jvp(y)

    same(*both(product, table, tangent))


# Variables and training


@pytest.mark.parametrize("kind", ["offsets", "packed", "segments"])
def test_a_variable_is_read_and_has_gradients(kind):
    rng = np.random.default_rng(11)
    table = tf.Variable(rng.standard_normal([20, 3]))
    bags = random_bags(rng, kind, 20, weights=None)
    weights = tf.constant(rng.random(bags.indices.shape))

    def run(weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            given = bags.replace(weights=weights)
            y = given.pool(Table(table.handle, F64))[0] * tf.reduce_sum(table)
        return y, [tf.convert_to_tensor(g) for g in tape.gradient(y, [weights])]

    plain, xla = both(run, weights)
    table.assign(2 * table)
    assert not np.allclose(run(weights)[0], plain[0])
    table.assign(table / 2)
    same(plain, xla)


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "Adam"])
def test_training_steps_with_keras(optimizer):
    start = np.random.default_rng(12).standard_normal([300, 3])
    ids = tf.constant([5, 2, 5, 2, 0, 299])

    def trained(make):
        table = tf.Variable(start)
        steps = getattr(keras.optimizers, optimizer)(0.1)
        steps.build([table])

        @make
        def step(ids):
            with tf.GradientTape() as tape:
                y = tf_ti.embedding_bag_offsets(table, ids, [0, 3], reduction="mean")
                value = tf.reduce_sum(y**2)
            steps.apply_gradients([(tape.gradient(value, table), table)])
            return value

        return [step(ids) for _ in range(3)], table.numpy()

    (values, table), (xla_values, xla_table) = trained(lambda f: f), trained(compiled)
    np.testing.assert_allclose(xla_values, values, 1e-6)
    np.testing.assert_allclose(xla_table, table, 1e-6, 1e-7)


def test_training_steps_by_scatter_sub():
    def trained(make):
        table = tf.Variable(np.arange(12.0).reshape(6, 2) / 10)

        @make
        def step(ids):
            with tf.GradientTape() as tape:
                y = tf_ti.embedding_bag_packed(table, ids)
                value = tf.reduce_sum(y**3)
            tf_ti.scatter_sub(table, tape.gradient(value, table), 0.01)
            return value

        return [step(tf.constant([[1, 2, 2], [5, 1, 1]])) for _ in range(3)], table.numpy()

    same(trained(lambda f: f), trained(compiled))


@each_updated_dtype(sorted(NUMBERS, key=str))
def test_scatter_sub_of_every_type(dtype):
    rng = np.random.default_rng(13)
    start, values = numbers(rng, [7, 2], dtype), numbers(rng, [5, 2], dtype)
    # Few repetitions: the plain kernel rounds halves after each.
    slices = tf.IndexedSlices(values, tf.constant([6, 1, 1, 0, 3], tf.int64))
    scale = numbers(rng, [], F32 if dtype in FLOATS else dtype)
    if dtype == F64:
        scale = tf.constant(0.3, F64)

    def updated(make):
        table = tf.Variable(start)
        make(
            lambda values: tf_ti.scatter_sub(table, tf.IndexedSlices(values, slices.indices), scale)
        )(values)
        return tf.convert_to_tensor(table)

    same(updated(lambda f: f), updated(compiled), dtype)


@pytest.mark.slow
def test_a_keras_model_compiled_by_xla():
    rng = np.random.default_rng(14)
    ids, labels = rng.integers(0, 50, [64, 6]), rng.integers(0, 2, 64)

    def trained(jit_compile):
        keras.utils.set_random_seed(3)
        layers = [
            keras.Input((6,), dtype="int32"),
            tf_ti.keras.EmbeddingBag(50, 8, mask_zero=True, combiner="mean"),
            keras.layers.Dense(2),
        ]
        model = keras.Sequential(layers)
        model.compile(
            keras.optimizers.Adagrad(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=jit_compile,
        )
        history = model.fit(ids, labels, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return history.history["loss"], model.predict(ids, verbose=0)

    (losses, predicted), (xla_losses, xla_predicted) = trained(False), trained(True)
    np.testing.assert_allclose(xla_losses, losses, 1e-5)
    np.testing.assert_allclose(xla_predicted, predicted, 1e-4, 1e-5)


def test_a_layer_in_mixed_precision():
    ids = tf.constant([[1, 2], [3, 3]])
    layer = tf_ti.keras.EmbeddingBag(5, 4, dtype="mixed_bfloat16")
    plain, xla = both(layer, ids)
    assert xla.dtype == tf.bfloat16
    same(plain, xla, tf.bfloat16)


# Inside of other things


def looped(table, xs, loop):
    def body(carry, ids):
        y = tf_ti.embedding_bag_packed(table, ids)
        return carry * 0.5 + y, carry * y

    init = tf.ones([2, 3], F64)
    if loop == "scan":
        return tf_ti.scan(body, init, xs)
    if loop == "while":
        states = tf.while_loop(
            lambda i, c: i < xs.shape[0],
            lambda i, c: (i + 1, body(c, xs[i])[0]),
            (0, init),
            maximum_iterations=xs.shape[0],
        )
        return states[1], init
    last, ys = init, []
    for ids in tf.unstack(xs):
        last, y = body(last, ids)
        ys.append(y)
    return last, tf.stack(ys)


@pytest.mark.parametrize("kind", ["tensor", "variable"])
@pytest.mark.parametrize("loop", ["scan", "while"])
def test_in_the_body_of_a_loop(loop, kind):
    start = np.random.default_rng(15).standard_normal([7, 3])
    table = tf.Variable(start) if kind == "variable" else tf.constant(start)
    xs = tf.constant(np.random.default_rng(16).integers(0, 7, [4, 2, 3]))

    def run(xs, loop):
        with tf.GradientTape() as tape:
            tape.watch(table if kind == "tensor" else [])
            last, ys = looped(table, xs, loop)
            value = tf.reduce_sum(last**2) + (tf.reduce_sum(tf.sin(ys)) if loop != "while" else 0)
        return last, tf.convert_to_tensor(tape.gradient(value, table))

    if loop == "while":
        expected = run(xs, "while")
    else:
        expected = run(xs, "unrolled")
    same(expected, compiled(lambda xs: run(xs, loop))(xs))


@pytest.mark.slow
def test_a_saved_model_runs_in_another_process(run_program, tmp_path):
    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            self.table = tf.Variable([[1.0], [3.0], [5.0]])

        @tf.function(input_signature=[tf.TensorSpec([2, 2], tf.int32)], jit_compile=True)
        def __call__(self, ids):
            return tf_ti.embedding_bag_packed(self.table, ids)

    tf.saved_model.save(Model(), tmp_path / "model")
    run_program(
        """
        import sys, tensorflow as tf, tf_ti
        model = tf.saved_model.load(sys.argv[1])
        assert model(tf.constant([[0, 1], [2, 2]])).numpy().tolist() == [[4.0], [10.0]]
        """,
        tmp_path / "model",
    )


# Bad input

FAR = [-1, 3, 2**31 - 1, -(2**31)]


@pytest.mark.pairwise
@pytest.mark.parametrize("bad", FAR + [2**32, 2**62, -(2**63)], ids=str)
@pytest.mark.parametrize("kind", ["offsets", "packed", "segments"])
def test_an_id_that_is_no_row_reads_as_zeros_and_its_gradient_goes_nowhere(kind, bad):
    index = tf.int32 if -(2**31) <= bad < 2**31 else tf.int64
    ids = tf.constant([[0, bad], [bad, 2]], index)
    table = tf.constant([[1.0, 10.0], [2.0, 20.0], [-3.0, -30.0]])

    def run(table, ids):
        with tf.GradientTape() as tape:
            tape.watch(table)
            flat = tf.reshape(ids, [-1])
            if kind == "packed":
                sums = tf_ti.embedding_bag_packed(table, ids)
                most = tf_ti.embedding_bag_packed(table, ids, reduction="max")
            elif kind == "offsets":
                sums = tf_ti.embedding_bag_offsets_sum(table, flat, [0, 2])
                most = tf_ti.embedding_bag_offsets(table, flat, [0, 2], reduction="max")
            else:
                sums = most = tf_ti.embedding_segments_sum(table, flat, [0, 0, 1, 1], 2)
        return sums, most, tf.convert_to_tensor(tape.gradient(sums, table))

    sums, most, gradient = compiled(run)(table, ids)
    assert sums.numpy().tolist() == [[1.0, 10.0], [-3.0, -30.0]]
    if kind != "segments":
        assert most.numpy().tolist() == [[1.0, 10.0], [0.0, 0.0]]
    assert gradient.numpy().tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]


@pytest.mark.pairwise
@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1])
@pytest.mark.parametrize("count", [1, 2])
def test_an_id_that_no_shard_has_reads_as_zeros_and_its_gradient_goes_nowhere(bad, count):
    shards = tf.split(tf.constant([[1.0], [2.0], [-3.0], [8.0]]), count)
    ids = tf.constant([[0, bad], [bad, 3]])

    def run():
        with tf.GradientTape() as tape:
            tape.watch(shards)
            sums = tf_ti.embedding_bag(shards, ids, max_norm=5.0)
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(sums, shards)]
        return sums, tf.concat(gradients, 0)

    sums, gradient = compiled(run)()
    assert sums.numpy().tolist() == [[1.0], [5.0]]
    assert gradient.numpy().tolist() == [[1.0], [0.0], [0.0], [0.0]]


@pytest.mark.parametrize("default", [-2, 3, 2**31 - 1])
def test_a_default_index_that_is_no_row_reads_as_zeros(default):
    table = tf.ones([3, 2])

    def run(table, default):
        with tf.GradientTape() as tape:
            tape.watch(table)
            y = tf_ti.embedding_bag_offsets_sum(table, [1], [0, 1], default)
        return y, tf.convert_to_tensor(tape.gradient(y, table))

    y, gradient = compiled(run)(table, tf.constant(default))
    assert y.numpy().tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert gradient.numpy().tolist() == [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize("seed", range(2), indirect=True)
def test_wrong_bounds_read_nothing_outside(way, rng, seed):
    table, ids = tf.ones([4, 2]), tf.constant(rng.integers(-9, 9, 40))
    by_offsets = compiled(lambda b: tf_ti.embedding_bag_offsets_sum(table, ids, b))
    by_segments = compiled(lambda b: tf_ti.embedding_segments_sum(table, ids, b, 5))
    for bounds in (rng.integers(-50, 90, 40), rng.integers(-(2**62), 2**62, 40)):
        for name, run in (("offsets", by_offsets), ("segment_ids", by_segments)):
            if way == "host":
                with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{name}\[.*\] is "):
                    run(tf.constant(bounds))
            else:
                y = run(tf.constant(bounds)).numpy()
                assert np.all((y >= 0) & (y <= 40))


@pytest.mark.parametrize("way", [HOST], indirect=True)
def test_bounds_are_checked_where_and_only_where_the_bags_are(way):
    table, ids = tf.ones([4, 2]), tf.constant([0, 1])

    @compiled
    def loop(count, offsets):
        return tf.while_loop(
            lambda i, _: i < count,
            lambda i, s: (i + 1, s + tf_ti.embedding_bag_offsets_sum(table, ids, offsets)),
            [0, tf.zeros([2, 2])],
        )[1]

    wrong = tf.constant([1, 0])
    assert np.all(loop(tf.constant(0), wrong) == 0)
    raises("offsets[1] is 0, but offsets[0] is 1 before it", loop, tf.constant(1), wrong)
    no_columns = compiled(lambda o: tf_ti.embedding_bag_offsets_sum(tf.ones([4, 0]), ids, o))
    raises("offsets[1] is 0", no_columns, wrong)
    no_bags = compiled(
        lambda o: tf_ti.embedding_bag_offsets(table, ids, o, include_last_offset=True)
    )
    raises("offsets[0] is 9, but there are 2 indices", no_bags, tf.constant([9]))


@pytest.mark.pairwise
@pytest.mark.parametrize(
    "reduction, index",
    [("sum", tf.int32), ("mean", tf.int64), ("sqrtn", tf.int32), ("max", tf.int64)],
    ids=["sum", "mean", "sqrtn", "max"],
)
@pytest.mark.parametrize("kind, seed", [("offsets", 0), ("packed", 1), ("segments", 2)])
def test_ids_that_are_no_rows_are_those_of_a_row_of_zeros(kind, reduction, index, seed):
    rng = np.random.default_rng(seed)
    table = tf.constant(rng.standard_normal([7, 3]))
    bags = random_bags(rng, kind, 7, index=index, reduction=reduction)
    is_wrong = rng.random(bags.indices.shape) < 0.3
    if bags.padding_idx is not None:
        is_wrong &= bags.indices.numpy() != bags.padding_idx
    far = rng.choice([-2, 7, 8, 2**31 - 1, -(2**31)], bags.indices.shape)
    wrong = tf.constant(np.where(is_wrong, far, bags.indices), index)
    right = tf.constant(np.where(is_wrong, 7, bags.indices), index)
    padded = tf.concat([table, tf.zeros([1, 3], F64)], 0)

    def run(table, indices, weights, upstream):
        given = dataclasses.replace(bags, indices=indices, weights=weights)
        watched = [table] if weights is None else [table, weights]
        with tf.GradientTape() as outer:
            outer.watch(upstream)
            with tf.GradientTape() as tape:
                tape.watch(watched)
                sums, *_ = given.pool(Table(table, table.dtype), with_argmax=reduction == "max")
            gradients = tape.gradient(sums, watched, upstream)
            gradients = [tf.convert_to_tensor(g) for g in gradients]
            value = tf.reduce_sum(tf.sin(gradients[0][:7]))
        return sums, gradients, outer.gradient(value, upstream)

    count = pool(padded, bags.replace(indices=right)).shape[0]
    upstream = tf.constant(rng.standard_normal([count, 3]))
    sums, gradients, second = compiled(run)(table, wrong, bags.weights, upstream)
    expected, (of_table, *of_weights), of_upstream = run(padded, right, bags.weights, upstream)
    same(expected, sums)
    same([of_table[:-1], *of_weights], gradients)
    same(of_upstream, second)


@pytest.mark.parametrize("dtype", [F32, tf.float16], ids=lambda dtype: dtype.name)
def test_scatter_sub_leaves_out_what_is_no_row(dtype):
    table = tf.Variable(tf.ones([2, 1], dtype))
    values, indices = tf.ones([4, 1], dtype), tf.constant([0, -1, 2, 2**31 - 1])
    compiled(lambda v: tf_ti.scatter_sub(table, tf.IndexedSlices(v, indices)))(values)
    assert table.numpy().tolist() == [[0.0], [1.0]]


OFFSETS_CASES = {
    "indices[2] is 9, but emb_table has 3 rows": ([0, 1, 9], [0, 2], -1),
    "indices[0] is -4, but emb_table has 3 rows": ([-4, 1, 9], [1, 2], -1),
    "offsets[2] is 1, but offsets[1] is 2 before it": ([0, 1, 2], [0, 2, 1], -1),
    "offsets[0] is -1, which is negative": ([0, 1, 2], [-1, 2], -1),
    "offsets[1] is 4, but there are 3 indices": ([0, 1, 2], [0, 4], -1),
    "default_index is -2; it must be a row of emb_table, or -1": ([0, 1, 2], [0, 2], -2),
    "default_index is 3, but emb_table has 3 rows": ([0, 1, 2], [0, 2], 3),
}
SEGMENTS_CASES = {
    "segment_ids[1] is 0, but segment_ids[0] is 1 before it": [1, 0, 0],
    "segment_ids[0] is -1, which is negative": [-1, 0, 0],
    "segment_ids[2] is 2, but num_segments is 2": [0, 1, 2],
}


@pytest.fixture
def checked(monkeypatch):
    monkeypatch.setenv("TF_TI_CHECK_IDS", "1")


def raises(message, f, *inputs):
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        f(*inputs)
    assert message in str(error.value)


def test_checked_offsets_name_what_is_wrong(checked):
    table = tf.ones([3, 2])
    run = compiled(lambda i, o, d: tf_ti.embedding_bag_offsets_sum(table, i, o, d))
    for message, inputs in OFFSETS_CASES.items():
        inputs = [tf.constant(x) for x in inputs]
        raises(message, run, *inputs)
        raises(message, lambda i, o, d: tf_ti.embedding_bag_offsets_sum(table, i, o, d), *inputs)
    good = [tf.constant(x) for x in ([0, 1, 2], [0, 2], 1)]
    assert run(*good).numpy().tolist() == [[2.0, 2.0], [1.0, 1.0]]


def test_checks_of_several_tables_name_the_table(checked):
    tables = [tf.ones([3, 2])] * 2
    offsets = tf.constant([0, 1], tf.int64)

    def look_up(ids, splits, default):
        ragged = tf.RaggedTensor.from_row_splits(ids, splits, validate=False)
        return tf_ti.embedding_bags(tables, [[[0]], ragged], default_index=[0, default])

    run = compiled(look_up)
    for what, ids, splits, default in (
        ("indices[0] is 3", 3, 1, 0),
        ("default_index is 3", 0, 1, 3),
        ("default_index is -2", 0, 1, -2),
        ("offsets[1] is 2", 0, 2, 0),
        ("offsets[1] is -1", 0, -1, 0),
    ):
        inputs = [tf.constant([ids]), tf.constant([0, splits], tf.int64), tf.constant(default)]
        raises(f"emb_tables[1]: {what}", run, *inputs)
    assert len(run(tf.constant([2]), offsets, tf.constant(1))) == 2


def test_checked_segments_name_what_is_wrong(checked):
    table, ids = tf.ones([3, 2]), tf.constant([0, 1, 2])
    run = compiled(lambda s: tf_ti.embedding_segments_sum(table, ids, s, 2))
    for message, segments in SEGMENTS_CASES.items():
        raises(message, run, tf.constant(segments))
        raises(
            message, lambda s: tf_ti.embedding_segments_sum(table, ids, s, 2), tf.constant(segments)
        )
    assert run(tf.constant([0, 1, 1])).numpy().tolist() == [[1.0, 1.0], [2.0, 2.0]]


def test_checked_packed_ids_and_updates_name_what_is_wrong(checked):
    table = tf.Variable(tf.ones([3, 2]))
    run = compiled(lambda i: tf_ti.embedding_bag_packed(table, i, padding_idx=-1))
    raises("indices[1, 0] is 3, but emb_table has 3 rows", run, tf.constant([[0, 1], [3, 7]]))
    assert run(tf.constant([[0, -1]])).numpy().tolist() == [[1.0, 1.0]]
    update = compiled(lambda i: tf_ti.scatter_sub(table, tf.IndexedSlices(tf.ones([2, 2]), i)))
    raises("indices[1] is -1, but the variable has 3 rows", update, tf.constant([0, -1]))
    assert np.all(table.numpy() == 1)


def test_checks_are_made_though_nobody_wants_the_result(checked):
    table = tf.Variable(tf.ones([3, 2]))

    @compiled
    def run(ids):
        tf_ti.embedding_bag_packed(table, ids)
        tf_ti.scatter_sub(table, tf.IndexedSlices(tf.ones([1, 2]), ids[0]))
        table.assign(tf.zeros([3, 2]))

    raises("is 3, but", run, tf.constant([[3]]))
    run(tf.constant([[2]]))
    assert np.all(table.numpy() == 0)


def test_a_number_of_segments_must_be_known():
    table, ids = tf.ones([3, 2]), tf.constant([0, 1])
    number = functools.partial(tf.random.uniform, [], 2, 5, tf.int32)
    run = compiled(lambda: tf_ti.embedding_segments_sum(table, ids, ids, number()))
    with pytest.raises(tf.errors.UnimplementedError, match="num_segments: XLA must know its value"):
        run()


def test_a_number_of_segments_that_is_an_argument():
    table, ids = tf.ones([3, 2]), tf.constant([0, 1])
    run = compiled(lambda n: tf_ti.embedding_segments_sum(table, ids, ids, n))
    for n in (2, 5):
        assert run(tf.constant(n)).shape == [n, 2]


def test_more_segments_than_there_can_be_are_refused():
    ids = tf.constant([0], tf.int64)
    run = compiled(lambda: tf_ti.embedding_segments_sum(tf.ones([3, 2]), ids, ids, 2**61))
    with pytest.raises(tf.errors.UnimplementedError, match="so many rows of 2 are too many"):
        run()


def test_indices_whose_number_is_only_bounded_are_refused():
    table = tf.ones([3, 2])

    @compiled
    def run(x):
        ids = tf.cast(tf.reshape(tf.where(x > 0), [-1]), tf.int32)
        return tf_ti.embedding_bag_offsets_sum(table, ids, [0])

    with pytest.raises(tf.errors.UnimplementedError, match="indices: XLA must know its shape"):
        run(tf.constant([1.0, 0.0, 2.0]))


def test_shapes_that_do_not_fit_are_refused_when_compiled():
    table = tf.ones([3, 2])
    signature = [tf.TensorSpec(None, tf.int32), tf.TensorSpec(None, tf.int32)]
    offsets = tf.function(
        lambda i, o: tf_ti.embedding_bag_offsets_sum(table, i, o, include_last_offset=True),
        input_signature=signature,
        jit_compile=True,
    )
    segments = tf.function(
        lambda i, s: tf_ti.embedding_segments_sum(table, i, s, 2),
        input_signature=signature,
        jit_compile=True,
    )
    raises("indices", offsets, tf.constant([[1]]), tf.constant([0, 1]))
    raises("offsets", offsets, tf.constant([1]), tf.constant([[0]]))
    raises("offsets", offsets, tf.constant([1]), tf.zeros([0], tf.int32))
    raises("segment_ids", segments, tf.constant([1, 2]), tf.constant([0]))


def test_huge_pages_are_not_xlas_business():
    table = tf.Variable(tf.ones([3, 2]))

    @compiled
    def run(ids):
        tf_ti.advise_huge_pages(table)
        return tf_ti.embedding_bag_packed(table, ids)

    assert run(tf.constant([[0, 1]])).numpy().tolist() == [[2.0, 2.0]]


@pytest.mark.slow
@pytest.mark.parametrize("is_checked", [False, True])
def test_a_bad_id_of_what_tensorflow_clusters_by_itself_is_that_of_compiled_programs(
    run_program, monkeypatch, is_checked
):
    flags = "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit --tf_xla_min_cluster_size=1"
    monkeypatch.setenv("TF_XLA_FLAGS", flags)
    monkeypatch.setenv("TF_TI_CHECK_IDS", str(int(is_checked)))
    finished = run_program(
        """
        import tensorflow as tf
        import tf_ti

        @tf.function
        def look_up(ids):
            return tf_ti.embedding_bag_packed(tf.ones([5, 1]) * 3.0, ids) + 1.0

        try:
            print(look_up(tf.constant([[0, 7], [2, 3]])).numpy().tolist())
        except tf.errors.InvalidArgumentError as error:
            print("indices[0, 1] is 7, but emb_table has 5 rows" in str(error))
    """,
        is_first=True,
    )
    assert finished.stdout == ("True\n" if is_checked else "[[4.0], [7.0]]\n")
