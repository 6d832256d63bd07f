"""`embedding_bags`: what one op gives for several tables, beside a call for each table."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from bag_definition import (
    COMPLEX,
    DTYPES,
    by_definition,
    check,
    each_combiner,
    each_kind,
    held,
    normal,
    ragged_of,
    sparse_of,
    split,
)
from checks import in_threads, loss

import tf_ti
from tf_ti import _library

pytestmark = pytest.mark.quarter

InvalidArgument = tf.errors.InvalidArgumentError
F64 = tf.float64
SHAPES = ["ragged", "sparse", "dense"]

needs_xla = pytest.mark.skipif(_library.XLA_PROBLEM is not None, reason=str(_library.XLA_PROBLEM))
each_mode = pytest.mark.parametrize("mode", ["eager", "function", "unknown"])


def one_by_one(tables, ids, weights=None, combiner="sum", default_index=None, **options):
    """The oracle: a call for each table."""
    options |= {"combiner": combiner, "default_index": default_index}
    weights = weights or [None] * len(tables)

    def of_table(k):
        return {name: v[k] if isinstance(v, list) else v for name, v in options.items()}

    return [
        tf_ti.embedding_bag(tables[k], ids[k], weights[k], **of_table(k))
        for k in range(len(tables))
    ]


def same(actual, expected):
    """The same bits."""
    actual, expected = tf.nest.flatten(actual), tf.nest.flatten(expected)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        a, e = tf.convert_to_tensor(a), tf.convert_to_tensor(e)
        assert (a.dtype, a.shape) == (e.dtype, e.shape)
        assert a.numpy().tobytes() == e.numpy().tobytes()


def bags_like(rng, rows, count, longest, is_dense):
    """Lists of ids, some of them empty, or all of one length."""
    if is_dense:
        return rng.integers(0, rows, [count, longest]).tolist()
    lengths = rng.integers(0, longest + 1, count) * rng.integers(0, 2, count)
    return [rng.integers(0, rows, n).tolist() for n in lengths]


def given_as(shape, bags, dtype):
    if shape == "dense":
        return tf.constant(bags, dtype)
    return (sparse_of if shape == "sparse" else ragged_of)(bags, dtype)


def random_case(rng, dtype, with_weights, kind="tensor", longest=5):
    """Tables of one dtype, of different widths and sizes, with ids of every kind."""
    tables, ids, weights = [], [], []
    for k in range(int(rng.integers(1, 7))):
        row = [int(n) for n in rng.integers(1, 20, rng.integers(0, 3))]
        rows, shape = int(rng.integers(1, 30)), SHAPES[(k + int(rng.integers(3))) % 3]
        bags = bags_like(rng, rows, int(rng.integers(1, 12)), longest, shape == "dense")
        tables.append(held(kind, normal(dtype, [rows, *row], rng)))
        ids.append(given_as(shape, bags, [tf.int32, tf.int64][rng.integers(2)]))
        if with_weights:
            values = [normal(dtype, [len(bag)], rng).tolist() for bag in bags]
            weights.append(given_as(shape, values, dtype))
    return tables, ids, weights or None


def own_options(rng, dtype, count):
    """A list for each option: what each of `count` tables has of its own."""

    def some_of(*choices):
        return [choices[i] for i in rng.integers(len(choices), size=count)]

    combiners = ["sum", "mean"]
    combiners += [] if dtype.is_integer else ["sqrtn"]
    combiners += [] if dtype.is_complex else ["max"]
    return {
        "combiner": some_of(*combiners),
        "default_index": some_of(None, -1, 0),
        "padding_idx": some_of(None, 1, -1, 2**40),
        "max_norm": some_of(*[None, 0.5, 2] if dtype.is_floating else [None]),
        "norm_type": some_of(1, 2.0, 3.5, math.inf),
    }


def own_case(rng, dtype, kind="tensor"):
    """Tables that have everything of their own, some of them weights."""
    tables, ids, weights = random_case(rng, dtype, True, kind)
    options = own_options(rng, dtype, len(tables))
    weights = [
        None if combiner == "max" or rng.random() < 0.3 else given
        for combiner, given in zip(options["combiner"], weights)
    ]
    return tables, ids, weights, options


# Values


@each_kind
@pytest.mark.parametrize(
    ("combiner", "dtype"),
    [
        (combiner, dtype)
        for combiner in ("sum", "mean", "sqrtn", "max")
        for dtype in DTYPES
        if not (combiner == "max" and dtype in COMPLEX or combiner == "sqrtn" and dtype.is_integer)
    ],
)
def test_it_is_one_call_for_each_table(combiner, dtype, kind):
    rng = np.random.default_rng(DTYPES.index(dtype))
    for with_weights in (False, True)[: 1 if combiner == "max" else 2]:
        tables, ids, weights = random_case(rng, dtype, with_weights, kind)
        options = {
            "default_index": [None, 0, [0 if k % 2 else None for k in range(len(ids))]][
                rng.integers(3)
            ],
            "padding_idx": [None, 1, -1][rng.integers(3)],
        }
        same(
            tf_ti.embedding_bags(tables, ids, weights, combiner, **options),
            one_by_one(tables, ids, weights, combiner, **options),
        )


@each_kind
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(4), indirect=True)
def test_each_table_may_have_options_of_its_own(rng, dtype, kind):
    tables, ids, weights, options = own_case(rng, dtype, kind)
    same(
        tf_ti.embedding_bags(tables, ids, weights, **options),
        one_by_one(tables, ids, weights, **options),
    )


@each_combiner
def test_a_norm_of_all_tables_is_that_of_one_call(combiner):
    tables, ids, _ = random_case(np.random.default_rng(7), tf.float16, False)
    options = {"combiner": combiner, "max_norm": 0.5, "norm_type": 1.0}
    same(tf_ti.embedding_bags(tables, ids, **options), one_by_one(tables, ids, **options))


@each_combiner
def test_it_is_the_definition(combiner):
    rng = np.random.default_rng(3)
    tables = [normal(F64, [n, width], rng) for n, width in ((4, 3), (9, 1), (1, 17))]
    bags = [bags_like(rng, len(table), 6, 4, False) for table in tables]
    ids = [given_as(shape, b, tf.int64) for shape, b in zip(("ragged", "sparse", "ragged"), bags)]
    for k, rows in enumerate(tf_ti.embedding_bags(tables, ids, combiner=combiner, default_index=0)):
        check(rows, by_definition(tables[k], bags[k], combiner=combiner, default_index=0))


@pytest.mark.parametrize("seed", range(4), indirect=True)
def test_prune_invalid_is_that_of_one_call(rng):
    tables, ids, weights = random_case(rng, tf.float32, True)
    ids = [
        tf.ragged.map_flat_values(lambda i: i - 1, i) if isinstance(i, tf.RaggedTensor) else i
        for i in ids
    ]
    for combiner in ("sum", "mean"):
        options = {"prune_invalid": True, "padding_idx": 2, "default_index": 0}
        same(
            tf_ti.embedding_bags(tables, ids, weights, combiner, **options),
            one_by_one(tables, ids, weights, combiner, **options),
        )


@pytest.mark.parametrize("table_dtype", [tf.float16, tf.bfloat16])
def test_weights_of_half_precisions_may_be_of_different_dtypes(table_dtype):
    table = tf.cast(np.arange(8).reshape(4, 2) / 7, table_dtype)
    ids = [[[0, 1], [2, 3]]] * 2
    weights = [tf.constant([[0.3, 0.7], [1.1, -2.0]], dtype) for dtype in (table_dtype, tf.float32)]
    same(
        tf_ti.embedding_bags([table, table], ids, weights, "mean"),
        one_by_one([table, table], ids, weights, "mean"),
    )


def test_ids_may_have_several_dimensions():
    table = tf.constant(np.arange(12.0).reshape(6, 2))
    ragged = tf.ragged.constant([[[0, 1], []], [[5]]])
    dense = tf.constant([[[0, 1, 2]], [[3, 4, 5]]])
    sparse = tf.SparseTensor([[0, 1, 0], [2, 0, 1]], [4, 5], [3, 2, 2])
    uniform = tf.RaggedTensor.from_row_lengths([[[0, 1]], [[2, 2]], [[5, 0]]], [2, 0, 1])
    ids = [ragged, uniform, dense, sparse, tf.constant([1, 1])]
    actual, expected = tf_ti.embedding_bags([table] * 5, ids), one_by_one([table] * 5, ids)
    for k in range(2):
        assert actual[k].to_list() == expected[k].to_list()
    assert actual[1].to_list() == [[[[2, 4]], [[8, 10]]], [], [[[10, 12]]]]
    same(actual[2:], expected[2:])


@pytest.mark.parametrize("sizes", [(3, 4), (0, 5), (5, 0, 2), (0, 0)])
def test_tables_may_have_no_bags(sizes):
    tables = [np.float32([[1], [2]])] * len(sizes)
    ids = [tf.RaggedTensor.from_row_lengths([0] * n, [1] * n) for n in sizes]
    ids = [tf.cast(i, tf.int64) for i in ids]
    rows = tf_ti.embedding_bags(tables, ids)
    assert [r.numpy().tolist() for r in rows] == [[[1.0]] * n for n in sizes]


@pytest.mark.needs_checked_ids
def test_rows_may_have_no_elements():
    tables = [tf.zeros([3, 0]), tf.zeros([2, 0]), tf.ones([2, 1])]
    rows = tf_ti.embedding_bags(tables, [[[0], [2]], [[1]], [[1, 0]]])
    assert [r.shape.as_list() for r in rows] == [[2, 0], [1, 0], [1, 1]]
    assert rows[2].numpy().tolist() == [[2.0]]
    with pytest.raises(InvalidArgument, match=r"emb_tables\[1\].*2, but emb_table has 2 rows"):
        tf_ti.embedding_bags(tables, [[[0], [2]], [[2]], [[1, 0]]])


@each_combiner
def test_tables_of_very_different_sizes_share_the_threads(combiner):
    """With a bag that several threads share, and enough of all for many parts."""
    rng = np.random.default_rng(0)
    sizes = (50_000, 16), (3, 16), (100, 64), (7000, 3), (1, 200)
    tables = [normal(tf.float32, size, rng) for size in sizes]
    counts = [20_000, 1, 3, 5000, 900]
    offsets = [
        np.r_[0, split(rng, n, batch - 1), n]
        for n, batch in zip((100_000, 60_000, 0, 5000, 40_000), counts)
    ]
    ids = [
        tf.RaggedTensor.from_row_splits(rng.integers(0, len(table), splits[-1]), splits)
        for table, splits in zip(tables, offsets)
    ]
    same(
        tf_ti.embedding_bags(tables, ids, combiner=combiner),
        one_by_one(tables, ids, combiner=combiner),
    )


@each_mode
@each_kind
def test_it_runs_in_every_mode(kind, mode):
    tables, ids, weights = random_case(np.random.default_rng(5), F64, True, kind)
    expected = one_by_one(tables, ids, weights, "mean", default_index=0)

    def call(*parts):
        given = tf.nest.pack_sequence_as((ids, weights), parts, expand_composites=True)
        return tf_ti.embedding_bags(tables, *given, "mean", 0, name="all")

    parts = tf.nest.flatten((ids, weights), expand_composites=True)
    if mode != "eager":
        specs = [tf.TensorSpec([None] * t.shape.rank, t.dtype) for t in parts]
        call = tf.function(call, input_signature=specs if mode == "unknown" else None)
    actual = call(*parts)
    same(actual, expected)


def test_static_shapes_are_known():
    @tf.function
    def call(ragged, dense):
        rows = tf_ti.embedding_bags([tf.zeros([5, 3]), tf.zeros([2, 3])], [ragged, dense])
        return [r.shape.as_list() for r in rows]

    assert call(tf.ragged.constant([[0], [1, 2]]), tf.zeros([4, 7], tf.int32)) == [[2, 3], [4, 3]]


def test_keras_variables_and_arrays_are_tables():
    values = np.float32([[1, 2], [3, 4]])
    rows = tf_ti.embedding_bags([keras.Variable(values), tf.Variable(values)], [[[0, 1]], [[1]]])
    assert [r.numpy().tolist() for r in rows] == [[[4.0, 6.0]], [[3.0, 4.0]]]
    rows = tf_ti.embedding_bags((values, values.tolist()), ([[0, 1]], [[1]]))
    assert [r.numpy().tolist() for r in rows] == [[[4.0, 6.0]], [[3.0, 4.0]]]


def test_an_update_is_seen_by_the_next_look_up_and_copies_nothing():
    tables = [tf.Variable(np.full([1000, 4], float(k), np.float32)) for k in range(3)]

    @tf.function
    def step():
        before = tf_ti.embedding_bags(tables, [[[7]]] * 3)
        tables[1].scatter_add(tf.IndexedSlices([[1.0] * 4], [7]))
        return before, tf_ti.embedding_bags(tables, [[[7]]] * 3)

    before, after = step()
    assert [float(rows[0, 0]) for rows in before] == [0, 1, 2]
    assert [float(rows[0, 0]) for rows in after] == [0, 2, 2]


# Gradients


def gradients_of(call, tables, ids, weights, **options):
    """Of the tables, as they are, and of the weights."""
    flat = [w for w in weights or [] if w is not None]
    flat = [w for w in tf.nest.flatten(flat, expand_composites=True) if w.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch([*tables, *flat])
        value = loss(call(tables, ids, weights, **options))
    return tape.gradient(value, [*tables, *flat])


def check_gradients(tables, ids, weights, graph, **options):
    def both():
        return [
            gradients_of(call, tables, ids, weights, **options)
            for call in (tf_ti.embedding_bags, one_by_one)
        ]

    actual, expected = (tf.function(both) if graph else both)()
    for a, e in zip(actual, expected, strict=True):
        if isinstance(e, tf.IndexedSlices):
            # All ids have one type in one op.
            same([a.values, a.dense_shape], [e.values, e.dense_shape])
            np.testing.assert_array_equal(a.indices, e.indices)
        else:
            same(a, e)


@pytest.mark.pairwise
@each_kind
@each_combiner
@pytest.mark.parametrize("graph", [False, True])
def test_gradients_are_those_of_one_call_for_each_table(combiner, kind, graph):
    rng = np.random.default_rng(8)
    tables, ids, weights = random_case(rng, F64, combiner != "max", kind)
    check_gradients(tables, ids, weights, graph, combiner=combiner, default_index=0)


@each_kind
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("dtype", [F64, tf.float16])
@pytest.mark.parametrize("seed", range(4), indirect=True)
def test_gradients_of_own_options_are_those_of_one_call(rng, dtype, graph, kind):
    tables, ids, weights, options = own_case(rng, dtype, kind)
    check_gradients(tables, ids, weights, graph, **options)


def dense_sources(rng):
    tables = [tf.constant(normal(F64, [n, width], rng)) for n, width in ((4, 2), (3, 5))]
    weights = [tf.constant(rng.uniform(0.5, 2, [2, 3])) for _ in tables]
    ids = [tf.constant(rng.integers(0, t.shape[0], [2, 3])) for t in tables]
    return tables, ids, weights


# Of two tables: one of all, and one of each.
each_two = pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "max", ["max", "mean"]])


def without_max(weights, combiner):
    """The weights of the tables that may have any."""
    combiners = combiner if isinstance(combiner, list) else [combiner] * len(weights)
    return [None if c == "max" else w for c, w in zip(combiners, weights)]


def given(*values):
    return [value for value in values if value is not None]


def second_order(call, combiner, tables, ids, weights):
    sources = given(*tables, *weights)
    with tf.GradientTape() as outer:
        outer.watch(sources)
        with tf.GradientTape() as inner:
            inner.watch(sources)
            value = loss(call(tables, ids, weights, combiner, max_norm=[None, 0.9]))
        first = inner.gradient(value, sources)
        value = loss([tf.convert_to_tensor(gradient) for gradient in first])
    return [tf.convert_to_tensor(gradient) for gradient in outer.gradient(value, sources)]


@each_two
def test_second_gradients_are_those_of_one_call_for_each_table(combiner):
    tables, ids, weights = dense_sources(np.random.default_rng(1))
    case = combiner, tables, ids, without_max(weights, combiner)
    for a, e in zip(
        second_order(tf_ti.embedding_bags, *case), second_order(one_by_one, *case), strict=True
    ):
        np.testing.assert_allclose(a, e, rtol=1e-12, atol=1e-12)


@each_kind
@each_two
def test_forward_mode_is_that_of_one_call_for_each_table(combiner, kind):
    tables, ids, weights = dense_sources(np.random.default_rng(2))
    tables = [held(kind, table.numpy()) for table in tables]
    weights = without_max(weights, combiner)
    primals = given(*tables, *weights)[1:]  # one table has no tangent
    tangents = [tf.cast(tf.reshape(tf.range(tf.size(p)), p.shape), F64) for p in primals]

    def product(call):
        with tf.autodiff.ForwardAccumulator(primals, tangents) as accumulator:
            rows = call(tables, ids, weights, combiner)
        return [accumulator.jvp(r, tf.UnconnectedGradients.ZERO) for r in rows]

    for a, e in zip(product(tf_ti.embedding_bags), product(one_by_one), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-12, atol=1e-12)


def test_a_table_given_twice_gets_both_gradients():
    table = tf.Variable(np.float32([[1], [2], [3]]))
    with tf.GradientTape() as tape:
        rows = tf_ti.embedding_bags([table, table], [[[0, 1]], [[1]]])
        value = tf.reduce_sum(rows[0]) + 10 * tf.reduce_sum(rows[1])
    gradient = tape.gradient(value, table)
    np.testing.assert_array_equal(tf.convert_to_tensor(gradient), [[1], [11], [0]])


def test_a_step_of_an_optimizer_is_that_of_one_call_for_each_table():
    def trained(call):
        tables = [tf.Variable(np.full([5, 2], k + 1.0)) for k in range(3)]
        optimizer = tf_ti.keras.optimizers.Adam(0.1)

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                value = loss(call(tables, [[[0, 1]], [[1, 1]], [[4, 0]]]))
            optimizer.apply(tape.gradient(value, tables), tables)

        for _ in range(3):
            step()
        return tables

    same(trained(tf_ti.embedding_bags), trained(one_by_one))


# Where it runs


@pytest.mark.pairwise
@needs_xla
@each_kind
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "max", ["max", "mean", "sum"]])
@pytest.mark.parametrize("way", ["host", "hlo"])
def test_compiled_it_is_one_call_for_each_table(combiner, kind, way, monkeypatch):
    if way == "hlo":
        monkeypatch.setenv("TF_TI_XLA_BAGS", "hlo")
    rng = np.random.default_rng(4)
    tables = [held(kind, normal(F64, size, rng)) for size in ([6, 3], [2, 3], [9, 2, 2])]
    bags = [bags_like(rng, n, 5, 4, False) for n in (6, 2)]
    ids = [
        ragged_of(bags[0], tf.int32),
        ragged_of(bags[1], tf.int64),
        tf.constant([[8, 0], [1, 1]]),
    ]
    weights = [tf.ragged.map_flat_values(lambda i: tf.cast(i, F64) + 0.5, i) for i in ids[:2]]
    weights = without_max([*weights, tf.constant([[0.3, 0.2], [2.0, 1.0]], F64)], combiner)
    options = {"padding_idx": [None, 1, 8], "max_norm": [0.9, None, None]}

    @tf.function(jit_compile=True)
    def compiled(call, ids):
        with tf.GradientTape() as tape:
            tape.watch(tables)
            rows = call(tables, ids, weights, combiner, default_index=1, **options)
            value = loss(rows)
        gradients = tape.gradient(value, tables)
        return rows, [tf.convert_to_tensor(gradient) for gradient in gradients]

    same(compiled(tf_ti.embedding_bags, ids), compiled(one_by_one, ids))


@pytest.mark.needs_checked_ids
@needs_xla
def test_compiled_errors_name_the_table():
    @tf.function(jit_compile=True)
    def call(splits):
        ids = [tf.RaggedTensor.from_row_splits([0, 1], s, validate=False) for s in splits]
        return tf_ti.embedding_bags([tf.ones([2, 2])] * len(ids), ids)

    message = r"offsets\[2\] is 1, but offsets\[1\] is 2"
    good, bad = tf.constant([0, 1, 2]), tf.constant([0, 2, 1])
    assert len(call([good, good])) == 2
    with pytest.raises(InvalidArgument, match=rf"emb_tables\[1\]: {message}"):
        call([good, bad])
    with pytest.raises(InvalidArgument, match=rf"emb_tables\[0\]: {message}"):
        call([bad])


@needs_xla
def test_compiled_checks_of_ids_name_the_table(monkeypatch):
    monkeypatch.setenv("TF_TI_CHECK_IDS", "1")

    @tf.function(jit_compile=True)
    def call(ids, default_index):
        return tf_ti.embedding_bags([TABLE, TABLE], [[[0]], ids], default_index=default_index)

    row, none = tf.constant(0), tf.constant(3)
    assert len(call(row[tf.newaxis, tf.newaxis], [row, row])) == 2
    with pytest.raises(InvalidArgument, match=r"emb_tables\[1\]: indices\[0, 0\] is 3"):
        call(none[tf.newaxis, tf.newaxis], [row, row])
    with pytest.raises(InvalidArgument, match=r"emb_tables\[1\]: default_index is 3"):
        call(row[tf.newaxis, tf.newaxis], [row, none])


@each_two
@pytest.mark.parametrize(
    ("stacked", "kind"),
    [
        ("tables", "tensor"),
        ("ids", "tensor"),
        ("ids", "variable"),
        ("some", "tensor"),
        ("some", "variable"),
    ],
)
def test_vectorized_map_is_lane_by_lane(stacked, kind, combiner):
    rng = np.random.default_rng(6)
    lanes = 3
    sizes = [[5, 2], [7, 3]]
    tables = [held(kind, normal(F64, size, rng)) for size in sizes]
    ids = [tf.constant(rng.integers(0, 5, [lanes, 4, 3])) for _ in tables]
    many = [tf.constant(normal(F64, [lanes, *size], rng)) for size in sizes]

    def call(lane):
        given_tables, given_ids = lane
        if stacked == "tables":
            given_ids = [i[0] for i in ids]
        else:
            given_tables = tables
        if stacked == "some":
            given_ids = [given_ids[0], ids[1][0]]
        return tf_ti.embedding_bags(
            given_tables, given_ids, combiner=combiner, default_index=1, padding_idx=[2, None]
        )

    actual = tf.vectorized_map(call, (many, ids), fallback_to_while_loop=False)
    expected = tf.map_fn(call, (many, ids), fn_output_signature=[F64, F64])
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-12, atol=1e-12)


def test_jacobians_are_vectorised():
    tables, ids, _ = dense_sources(np.random.default_rng(9))

    def jacobians(call):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(tables)
            rows = tf.concat([tf.reshape(rows, [-1]) for rows in call(tables, ids)], 0)
        return tape.jacobian(rows, tables)

    for a, e in zip(jacobians(tf_ti.embedding_bags), jacobians(one_by_one), strict=True):
        np.testing.assert_allclose(a, e)


class Features(tf.Module):
    def __init__(self):
        self.tables = [tf.Variable(np.arange(2.0 * n).reshape(n, 2)) for n in (3, 5)]

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int64)] * 2)
    def __call__(self, first, second):
        return tf_ti.embedding_bags(self.tables, [first, second], combiner="max")


IDS = [[[0, 2], []], [[4], [1, 1]]]
ROWS = [[[4.0, 5.0], [0.0, 0.0]], [[8.0, 9.0], [2.0, 3.0]]]


@pytest.mark.slow
def test_a_saved_model_runs_and_trains_in_another_process(tmp_path, run_program):
    tf.saved_model.save(Features(), str(tmp_path / "model"))
    run_program(
        f"""
        import sys
        import tensorflow as tf
        import tf_ti

        module = tf.saved_model.load(sys.argv[1])
        with tf.GradientTape() as tape:
            rows = module(*[tf.ragged.constant(i, dtype=tf.int64) for i in {IDS}])
            value = tf.add_n([tf.reduce_sum(r) for r in rows])
        assert [r.numpy().tolist() for r in rows] == {ROWS}
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(value, list(module.tables))]
        assert gradients[0].numpy().tolist() == [[0, 0], [0, 0], [1, 1]]
        """,
        str(tmp_path / "model"),
    )


def test_frozen_variables_are_constants():
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    module = Features()
    frozen = convert_variables_to_constants_v2(module.__call__.get_concrete_function())
    ops = {op.type for op in frozen.graph.get_operations()}
    assert "TfTi>EmbeddingBags" in ops and "TfTi>ResourceEmbeddingBags" not in ops
    parts = [
        t
        for i in IDS
        for t in tf.nest.flatten(tf.ragged.constant(i, dtype=tf.int64), expand_composites=True)
    ]
    assert [r.numpy().tolist() for r in frozen(*parts)] == ROWS


def test_look_ups_beside_updates_wait_for_nobody_forever():
    """Each look-up holds two variables, in both orders and one of them twice."""
    tables = [tf.Variable(tf.ones([100, 8])) for _ in range(2)]
    ids = tf.constant(np.arange(100).reshape(10, 10))
    slices = tf.IndexedSlices(tf.zeros([100, 8]), tf.range(100))

    def call(i):
        if i % 2:
            tables[i // 2 % 2].scatter_add(slices)
            return 80.0
        order = tables if i % 4 else tables[::-1]
        return float(tf.reduce_sum(tf_ti.embedding_bags([*order, order[0]], [ids] * 3)[2][0]))

    for results in in_threads(call, 8, 50):
        assert set(results) == {80.0}


# Wrong calls


TABLE = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.mark.needs_checked_ids
@each_kind
@each_mode
def test_an_id_that_is_no_row_is_named_with_its_table(mode, kind):
    tables = [held(kind, TABLE), held(kind, TABLE[:2]), held(kind, TABLE)]

    def call(first, second, third):
        return tf_ti.embedding_bags(tables, [first, second, third])

    if mode != "eager":
        call = tf.function(
            call,
            input_signature=[tf.TensorSpec([None, None], tf.int32)] * 3
            if mode == "unknown"
            else None,
        )
    good = tf.constant([[0, 1]])
    with pytest.raises(InvalidArgument) as error:
        call(good, tf.constant([[1, 0], [0, 2]]), tf.constant([[7, 0]]))
    message = "emb_tables[1]: indices[1, 1] is 2, but emb_table has 2 rows"
    assert message in str(error.value)
    assert len(call(good, good, good)) == 3
    for table in tables:
        np.testing.assert_array_equal(table, TABLE[: table.shape[0]])


def refused(error, *words, emb_tables=(TABLE, TABLE), ids=([[0]], [[1]]), **options):
    with pytest.raises(error) as raised:
        tf_ti.embedding_bags(list(emb_tables), ids, **options)
    for word in words:
        assert word in str(raised.value), raised.value


def test_lists_that_are_none_are_refused():
    for table in (TABLE, tf.Variable(TABLE), None):
        with pytest.raises(TypeError, match="emb_tables must be a list, got"):
            tf_ti.embedding_bags(table, [[[0]]])
    refused(TypeError, "ids must be a list", ids=tf.constant([[[0]], [[1]]]))
    refused(TypeError, "ids must be a list, got None", ids=None)
    refused(TypeError, "weights must be a list", weights=tf.ones([2, 1, 1]))


def test_lists_of_other_lengths_are_refused():
    refused(ValueError, "emb_tables must have at least one table", emb_tables=[], ids=[])
    refused(ValueError, "ids must be a list of 2", "got 1", ids=[[[0]]])
    refused(ValueError, "weights must be a list of 2", "got 3", weights=[[[1.0]]] * 3)
    refused(ValueError, "default_index must be a list of 2", "got 1", default_index=[0])


def test_tables_that_differ_are_refused():
    name = "emb_tables[1]"
    refused(TypeError, name, "float32", "float64", emb_tables=[TABLE, TABLE.astype(np.float64)])
    refused(TypeError, name, "a variable", "a tensor", emb_tables=[tf.Variable(TABLE), TABLE])
    refused(TypeError, name, "bool", emb_tables=[TABLE, TABLE > 1])
    refused(ValueError, name, "rank 1 or more", emb_tables=[TABLE, np.float32(1)])


@pytest.mark.parametrize("hold", [tf.Variable, tf.constant, np.array, keras.Variable])
def test_shards_of_a_table_are_refused(hold):
    shards = [hold(TABLE), hold(TABLE + 10)]
    words = "emb_tables[1]: it must be one table, got a list of 2", "tf_ti.embedding_bag takes"
    refused(TypeError, *words, emb_tables=[TABLE, shards])
    refused(TypeError, *words, emb_tables=[TABLE, tuple(shards)])


@pytest.mark.needs_checked_ids
def test_what_is_wrong_with_a_tables_ids_is_named_with_the_table():
    name = "emb_tables[1]: "
    refused(TypeError, name, "ids must be of an integer dtype", ids=[[[0]], tf.ones([1, 1])])
    ragged = tf.ragged.constant([[1]])
    refused(
        TypeError,
        name,
        "weights",
        ids=[ragged, ragged],
        weights=[tf.cast(ragged, tf.float32), [[1.0]]],
    )
    refused(ValueError, name, "weights", weights=[[[1.0]], [[1.0, 2.0]]])
    refused(InvalidArgument, name, "default_index is 3", default_index=[0, 3])
    sparse = tf.SparseTensor([[1, 0], [0, 0]], [1, 2], [2, 1])
    refused(InvalidArgument, name, "segment_ids[1] is 0", ids=[[[0]], sparse])


def two_rows(splits):
    return tf.RaggedTensor.from_row_splits([0, 1, 2], splits)


def zeros_at(places, shape):
    return tf.SparseTensor(places, [0] * len(places), shape)


# Ids, weights, and what is wrong with them.
ILL_SHAPED = {
    "ragged weights": (
        two_rows([0, 1, 3]),
        two_rows([0, 2, 3]),
        "weights must have the row splits of ids",
    ),
    "sparse weights": (
        zeros_at([[0, 0], [1, 0]], [2, 2]),
        zeros_at([[0, 0], [1, 1]], [2, 2]),
        "weights must have the shape and the indices of ids",
    ),
    "dense weights": (
        tf.zeros([1, 2, 3], tf.int32),
        tf.zeros([1, 3, 2]),
        "weights must have the shape of ids",
    ),
    "sparse ids": (
        zeros_at([[0, 0, 0], [1, 2, 0]], [2, 2, 1]),
        None,
        "ids has an index outside of its dense_shape",
    ),
    "sparse ids of one dimension": (
        zeros_at([[0], [1]], [2]),
        None,
        "ids must have rank 2 or more",
    ),
}


def spec_without_shape(value):
    if isinstance(value, tf.RaggedTensor):
        return tf.RaggedTensorSpec([None, None], value.dtype, row_splits_dtype=tf.int64)
    kind = tf.SparseTensorSpec if isinstance(value, tf.SparseTensor) else tf.TensorSpec
    return kind(None, value.dtype)


@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize("case", ILL_SHAPED)
def test_ids_and_weights_of_wrong_shapes_are_named_with_the_table(case, is_graph):
    ids, weights, message = ILL_SHAPED[case]
    given = [ids] if weights is None else [ids, tf.cast(weights, tf.float32)]

    def call(ids, weights=None):
        weights = None if weights is None else [[[1.0]], weights]
        return tf_ti.embedding_bags([TABLE, TABLE], [[[0]], ids], weights)

    if is_graph:
        call = tf.function(call, input_signature=[spec_without_shape(value) for value in given])
    with pytest.raises((ValueError, InvalidArgument)) as error:
        call(*given)
    assert f"emb_tables[1]: {message}" in str(error.value)


@pytest.mark.needs_checked_ids
@each_kind
@each_mode
def test_an_id_is_named_with_its_table_also_beside_norms(mode, kind):
    tables = [held(kind, TABLE[:rows]) for rows in (3, 2, 2)]

    def call(ids):
        return tf_ti.embedding_bags(tables, ids, max_norm=[1.0, None, 1.0])

    if mode != "eager":
        specs = [tf.TensorSpec([None, None], tf.int32)] * 3
        call = tf.function(call, input_signature=[specs] if mode == "unknown" else None)
    for wrong in range(3):
        rows = tables[wrong].shape[0]
        ids = [tf.constant([[0, rows]] if k == wrong else [[0]]) for k in range(3)]
        message = f"emb_tables[{wrong}]: indices[0, 1] is {rows}, but emb_table has {rows} rows"
        with pytest.raises(InvalidArgument) as error:
            call(ids)
        assert message in str(error.value)


def test_wrong_options_of_a_table_are_named_with_it():
    name = "emb_tables[1]: "
    refused(ValueError, name, "combiner must be one of", combiner=["sum", "median"])
    weights = [None, [[1.0]]]
    refused(ValueError, name, "'max' takes no weights", weights=weights, combiner=["sum", "max"])
    refused(TypeError, name, "padding_idx must be an int", padding_idx=[None, 1.5])
    refused(TypeError, name, "max_norm must be a number or None", max_norm=[1, "2"])
    refused(ValueError, name, "max_norm must be above 0", max_norm=[None, 0])
    refused(ValueError, name, "norm_type must be above 0", norm_type=[2.0, -1])
    refused(ValueError, "combiner must be a list of 2", "got 1", combiner=["sum"])
    refused(ValueError, "padding_idx must be a list of 2", "got 3", padding_idx=[1, 2, 3])
    refused(ValueError, "max_norm must be a list of 2", "got 0", max_norm=[])


def test_wrong_options_are_refused():
    refused(ValueError, "combiner must be one of", combiner="median")
    refused(ValueError, "combiner 'max' takes no weights", weights=[[[1.0]]] * 2, combiner="max")
    refused(TypeError, "padding_idx must be an int", padding_idx=1.5)
    integers = [TABLE.astype(np.int32)] * 2
    refused(TypeError, "sqrtn needs a table of floats", combiner="sqrtn", emb_tables=integers)


@pytest.mark.slow
def test_variables_on_different_devices_are_refused(run_program):
    run_program(
        """
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
        import tf_ti

        tables = []
        for k in range(2):
            with tf.device(f"CPU:{k}"):
                tables.append(tf.Variable(tf.ones([2, 2])))
        try:
            tf_ti.embedding_bags(tables, [[[0]], [[1]]])
        except ValueError as error:
            message = "emb_tables[1]: it must be on the device of emb_tables[0], "
            assert str(error).startswith(message), error
        else:
            raise AssertionError("it was not refused")
        """
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bags": ["packed"]}, "bags"),
        ({"num": 1}, "num_segments"),
        ({"reductions": ["sum"]}, "reductions must be 0 or 2, got 1"),
        ({"reductions": ["sum", "max"], "num_argmax": 2}, "num_argmax must be 0 or 1, got 2"),
        ({"weighted": [0]}, "num_weights must be 0 or 1, got 0"),
        ({"padded": [1]}, "padding_idx must be 0 or 1, got 0"),
        ({"padding_idx": [1, 2], "padded": [1, 0]}, "padded must have numbers of the 2 tables"),
        ({"padding_idx": [1], "padded": [2]}, "padded must have numbers of the 2 tables"),
        ({"padding_idx": [1] * 3}, "padding_idx must be 0 or 2, got 3"),
        ({"numbers": [0]}, "numbers must be 0 or 2, got 1"),
    ],
)
def test_ops_made_by_hand_are_checked(changes, message):
    from tf_ti._library import ops

    changes = dict(changes)
    num_segments = changes.pop("num", 0)
    inputs = {
        "emb_tables": [TABLE, TABLE],
        "indices": [[[0]], [[1]]],
        "bounds": [],
        "num_segments": [tf.constant(1)] * num_segments,
        "default_index": [],
        "per_sample_weights": [],
        "num_argmax": 0,
        "bags": ["packed", "packed"],
    }
    with pytest.raises((ValueError, InvalidArgument), match=message):
        ops.tf_ti_embedding_bags(**inputs | changes)
