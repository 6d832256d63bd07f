"""`tf.vectorized_map`, `jacobian` and `batch_jacobian` of bags, against lane by lane."""

import logging

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import _library

F64 = tf.float64
LANES, ROWS, WIDTH = 3, 7, 2
TABLE = tf.constant(np.random.default_rng(0).standard_normal((ROWS, WIDTH)))
TABLES = tf.constant(np.random.default_rng(1).standard_normal((LANES, ROWS, WIDTH)))
WEIGHTS = tf.constant(np.random.default_rng(2).uniform(0.5, 2, (LANES, 6)))
IDS = tf.constant([[0, 3, 3, 1, 6, 0], [6, 6, 5, 0, 4, 2], [1, 1, 1, 1, 3, 6]])
# Bags of different sizes in each lane, some of them empty; indices before and behind them.
BOUNDS = {
    "offsets": tf.constant([[1, 3, 3, 4], [0, 2, 3, 3], [0, 0, 6, 6]]),
    "ragged": tf.constant([[1, 3, 3, 4], [0, 2, 3, 3], [0, 0, 5, 6]]),
    "segments": tf.constant([[0, 0, 2, 2, 2, 3], [1, 1, 1, 2, 2, 2], [0, 1, 2, 3, 3, 3]]),
    "dense": tf.zeros([LANES, 0], tf.int32),
}


def look_up(kind, combiner="sum", **options):
    """A look-up as a function of a table, ids, bounds and weights, which may be None."""

    def f(table, ids, bounds, weights=None):
        if kind == "offsets":
            return tf_ti.embedding_bag_offsets(
                table, ids, bounds, per_sample_weights=weights, reduction=combiner, **options
            )
        if kind == "segments" and combiner == "sum":
            return tf_ti.embedding_segments_sum(
                table, ids, bounds, 4, per_sample_weights=weights, **options
            )

        def of_kind(values):
            if values is None:
                return None
            if kind == "dense":
                return tf.reshape(values, [2, 3])
            if kind == "ragged":
                return tf.RaggedTensor.from_row_splits(values, bounds, validate=False)
            rows = tf.cast(bounds, tf.int64)
            places = tf.stack([rows, tf.range(6, dtype=tf.int64)], 1)
            return tf.SparseTensor(places, values, [4, 6])

        return tf_ti.embedding_bag(table, of_kind(ids), of_kind(weights), combiner, **options)

    return f


def loss(y):
    factors = tf.cast(tf.reshape(tf.range(tf.size(y)) % 5 + 1, tf.shape(y)), y.dtype)
    return tf.reduce_sum(tf.sin(y) * factors)


def gradient_of(f, at=(0,)):
    """The dense gradients of a loss of what f gives, for some of its arguments."""

    def gradient(*xs):
        sources = [xs[i] for i in at]
        with tf.GradientTape() as tape:
            for source in sources:
                tape.watch(source)
            value = loss(f(*xs))
        return [tf.convert_to_tensor(g) for g in tape.gradient(value, sources)]

    return gradient


def mapped(f, xs):
    """f in a map over those of xs for which there is a lane."""
    return tf.vectorized_map(lambda lane: f(*lane), xs)


def lane_by_lane(f, xs):
    lanes = [f(*lane) for lane in zip(*map(tf.unstack, xs))]
    return tf.nest.map_structure(lambda *parts: tf.stack(parts), *lanes)


def close(actual, expected, tolerance=1e-9):
    actual, expected = tf.nest.flatten(actual), tf.nest.flatten(expected)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        if e.dtype == tf.bfloat16:  # with which NumPy 1 compares nothing
            a, e = tf.cast(a, tf.float32), tf.cast(e, tf.float32)
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


def types_in(f, *xs):
    graph = f.get_concrete_function(*xs).graph
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for fn in definition.library.function for n in fn.node_def)]
    return [node.op for node in nodes]


def assert_is_one_look_up(f, *xs):
    assert not {"While", "StatelessWhile"} & set(types_in(f, *xs))


REDUCTIONS = [("sum", False), ("mean", True), ("sqrtn", True), ("max", False)]
KINDS = [(kind, *r) for kind in ("ragged", "segments", "dense") for r in REDUCTIONS]
KINDS += [("offsets", "sum", True), ("offsets", "mean", False), ("offsets", "max", False)]
OPTIONS = {"default_index": 2, "padding_idx": 1}
CASES = [(*kind, OPTIONS) for kind in KINDS]
CASES += [(kind, "sum", True, {}) for kind in BOUNDS]
CASES += [("ragged", "max", False, {}), ("dense", "mean", False, {"default_index": 5})]


@pytest.mark.quarter
@pytest.mark.parametrize("kind, combiner, weighted, options", CASES)
def test_a_map_over_bags_has_the_values_and_gradients_of_its_lanes(
    kind, combiner, weighted, options
):
    f = look_up(kind, combiner, **options)
    xs = (IDS, BOUNDS[kind], *([WEIGHTS] if weighted else []))
    sources = (0, 3) if weighted else (0,)

    def every(*lane):
        return f(TABLE, *lane), gradient_of(f, sources)(TABLE, *lane)

    call = tf.function(lambda *xs: mapped(every, xs))
    close(call(*xs), lane_by_lane(tf.function(every), xs))
    assert_is_one_look_up(call, *xs)


@pytest.mark.parametrize("kind", BOUNDS)
def test_a_map_has_a_gradient(kind):
    f = look_up(kind, **OPTIONS)

    def of_table(run):
        def values(table, *xs):
            return run(lambda *lane: f(table, *lane), xs)

        return tf.function(gradient_of(values, (0, 3)))(TABLE, IDS, BOUNDS[kind], WEIGHTS)

    close(of_table(mapped), of_table(lane_by_lane))


@pytest.mark.parametrize("kind, combiner", [("ragged", "max"), ("segments", "mean")])
def test_a_map_over_tables_has_the_values_and_gradients_of_its_lanes(kind, combiner):
    f, bounds = look_up(kind, combiner, **OPTIONS), BOUNDS[kind][1]

    def every(table):
        x = f(table, IDS[1], bounds)
        return x, gradient_of(f)(table, IDS[1], bounds)

    call = tf.function(lambda tables: mapped(every, (tables,)))
    close(call(TABLES), lane_by_lane(every, (TABLES,)))
    assert_is_one_look_up(call, TABLES)


@pytest.mark.parametrize("kind", BOUNDS)
def test_a_map_over_tables_and_ids_has_the_values_and_gradients_of_its_lanes(kind):
    f = look_up(kind, padding_idx=1)
    xs = (TABLES, IDS, BOUNDS[kind], WEIGHTS)

    def every(*lane):
        return f(*lane), gradient_of(f, (0, 3))(*lane)

    call = tf.function(lambda *xs: mapped(every, xs))
    close(call(*xs), lane_by_lane(every, xs))
    assert_is_one_look_up(call, *xs)


def test_a_map_over_weights_has_the_values_and_gradients_of_its_lanes():
    f = look_up("ragged", "sqrtn", default_index=4)

    def every(weights):
        lane = (TABLE, IDS[0], BOUNDS["ragged"][0], weights)
        return f(*lane), gradient_of(f, (0, 3))(*lane)

    close(mapped(every, (WEIGHTS,)), lane_by_lane(every, (WEIGHTS,)))


@pytest.mark.parametrize("tables", [None, TABLES])
def test_lanes_may_have_default_rows_of_their_own(tables):
    def every(default, ids, table=TABLE):
        f = look_up("ragged", "max", default_index=default, padding_idx=1)
        bounds = BOUNDS["ragged"][0]
        return f(table, ids, bounds), gradient_of(f)(table, ids, bounds)

    xs = (tf.constant([-1, 6, 0]), IDS, *([] if tables is None else [tables]))
    call = tf.function(lambda *xs: mapped(every, xs))
    close(call(*xs), lane_by_lane(every, xs))
    assert_is_one_look_up(call, *xs)


def test_what_is_not_vectorised_runs_lane_by_lane_with_a_warning(caplog):
    def f(ids, num_segments):
        return tf_ti.embedding_segments_sum(TABLE, ids, BOUNDS["segments"][0], num_segments)

    xs = (IDS, tf.constant([4, 4, 4]))
    with caplog.at_level(logging.WARNING):
        tf.get_logger().propagate = True
        actual = mapped(f, xs)
        tf.get_logger().propagate = False
    close(actual, lane_by_lane(f, xs))
    assert "num_segments differs" in caplog.text


@pytest.mark.parametrize("kind", BOUNDS)
def test_a_map_reads_a_variable(kind):
    variable = tf.Variable(TABLE)
    f = look_up(kind, padding_idx=1)
    xs = (IDS, BOUNDS[kind], WEIGHTS)

    def every(table):
        return lambda *lane: (f(table, *lane), gradient_of(f, (0, 3))(table, *lane))

    call = tf.function(lambda *xs: mapped(every(variable), xs))
    close(call(*xs), lane_by_lane(every(TABLE), xs))
    assert_is_one_look_up(call, *xs)
    shared = tf.function(
        lambda w: mapped(lambda e: e * loss(f(variable, *(x[0] for x in xs))), (w,))
    )
    close(shared(WEIGHTS), WEIGHTS * loss(f(TABLE, *(x[0] for x in xs))))


@pytest.mark.parametrize(
    "combiner, weighted",
    [("sum", True), ("mean", True), ("sqrtn", True), ("max", False)],
)
@pytest.mark.parametrize("is_variable", [False, True])
def test_a_jacobian_is_that_of_one_gradient_after_the_other(combiner, weighted, is_variable):
    table = tf.Variable(TABLE) if is_variable else TABLE
    f = look_up("ragged", combiner, **OPTIONS)
    weights = WEIGHTS[0] if weighted else None
    sources = [table, weights] if weighted else [table]

    def jacobian(pfor):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([s for s in sources if isinstance(s, tf.Tensor)])
            y = f(table, IDS[0], BOUNDS["ragged"][0], weights)
        return tape.jacobian(y, sources, experimental_use_pfor=pfor)

    call = tf.function(lambda: jacobian(True))
    close(call(), tf.function(jacobian)(False))
    assert_is_one_look_up(call)


@pytest.mark.parametrize(
    "kind, combiner, weighted",
    [("ragged", "mean", True), ("segments", "sum", True), ("dense", "max", False)],
)
def test_a_jacobian_of_a_gradient_is_the_hessian(kind, combiner, weighted):
    f = look_up(kind, combiner, **OPTIONS)
    weights = WEIGHTS[0] if weighted else None
    sources = (0, 3) if weighted else (0,)

    def hessian(pfor):
        with tf.GradientTape(persistent=True) as tape:
            arguments = (TABLE, IDS[0], BOUNDS[kind][0], weights)
            tape.watch([arguments[i] for i in sources])
            first = gradient_of(f, sources)(*arguments)
        return [
            tape.jacobian(g, arguments[i], experimental_use_pfor=pfor)
            for g in first
            for i in sources
        ]

    close(hessian(True), tf.function(hessian)(False))


@pytest.mark.parametrize(
    "kind, combiner, weighted", [("ragged", "mean", True), ("dense", "max", False)]
)
def test_gradients_of_the_second_order_in_a_map_are_those_of_its_lanes(kind, combiner, weighted):
    f = look_up(kind, combiner, **OPTIONS)
    sources = (0, 3) if weighted else (0,)
    xs = (IDS, BOUNDS[kind], *([WEIGHTS] if weighted else []))

    def first(*arguments):
        return tf.add_n([loss(g) for g in gradient_of(f, sources)(*arguments)])

    def second(*lane):
        return gradient_of(first, sources)(TABLE, *lane)

    close(tf.function(lambda *xs: mapped(second, xs))(*xs), lane_by_lane(tf.function(second), xs))


def test_a_batch_jacobian():
    def jacobian(pfor):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(WEIGHTS)
            y = tf_ti.embedding_bag_packed(TABLE, IDS, WEIGHTS) ** 2
        return tape.batch_jacobian(y, WEIGHTS, experimental_use_pfor=pfor)

    close(jacobian(True), tf.function(jacobian)(False))


def test_bags_in_a_loop_in_a_map():
    def f(ids, weights):
        def step(carry, e):
            row = tf_ti.embedding_bag_packed(TABLE, e[0][None], e[1][None])[0]
            return tf.tanh(carry + row), carry

        return tf_ti.scan(step, tf.zeros([WIDTH], F64), (ids[:, None], weights[:, None]))

    def every(ids, weights):
        return f(ids, weights), gradient_of(lambda i, w: f(i, w)[1], (1,))(ids, weights)

    call = tf.function(lambda *xs: mapped(every, xs))
    close(call(IDS, WEIGHTS), lane_by_lane(tf.function(every), (IDS, WEIGHTS)))
    assert_is_one_look_up(call, IDS, WEIGHTS)


def test_maps_nest():
    f = gradient_of(look_up("segments"), (0, 3))
    bounds = BOUNDS["segments"]

    def outer(ids, weights):
        return mapped(lambda *lane: f(TABLE, *lane), (ids, bounds, weights))

    xs = (tf.stack([IDS, IDS[::-1]]), tf.stack([WEIGHTS, WEIGHTS * 2]))
    close(mapped(outer, xs), lane_by_lane(outer, xs))


def test_the_number_of_lanes_may_be_unknown():
    f = look_up("ragged", **OPTIONS)
    xs = (IDS, BOUNDS["ragged"], WEIGHTS)

    def every(*lane):
        return f(TABLE, *lane), gradient_of(f, (0, 3))(TABLE, *lane)

    @tf.function(input_signature=[tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in xs])
    def call(*xs):
        return mapped(every, xs)

    for n in (3, 1):
        few = [x[:n] for x in xs]
        close(call(*few), lane_by_lane(every, few))
    assert [y.shape[0] for y in tf.nest.flatten(call(*(x[:0] for x in xs)))] == [0, 0, 0]


@pytest.mark.skipif(_library.XLA_PROBLEM is not None, reason=str(_library.XLA_PROBLEM))
@pytest.mark.parametrize(
    "kind, code", [("offsets", "host"), ("segments", "host"), ("dense", "hlo")]
)
def test_a_map_compiles(kind, code, monkeypatch):
    monkeypatch.setenv("TF_TI_XLA_BAGS", code)
    f = look_up(kind, **OPTIONS)
    xs = (IDS, BOUNDS[kind], WEIGHTS)

    def every(*lane):
        return f(TABLE, *lane), gradient_of(f, (0, 3))(TABLE, *lane)

    call = tf.function(lambda *xs: mapped(every, xs), jit_compile=True)
    close(call(*xs), lane_by_lane(every, xs))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.complex64, tf.int32])
def test_every_dtype_of_table_is_mapped(dtype):
    table = tf.cast(tf.round(TABLE * 8), dtype)
    f = look_up("ragged", default_index=1)
    xs = (tf.cast(IDS, tf.int64), tf.cast(BOUNDS["ragged"], tf.int64))

    def every(*lane):
        if dtype.is_integer:
            return f(table, *lane)
        with tf.GradientTape() as tape:
            tape.watch(table)
            y = f(table, *lane)
        return y, tf.convert_to_tensor(tape.gradient(y, table))

    close(mapped(every, xs), lane_by_lane(every, xs), 1e-3)


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize(
    "kind, ids, bounds",
    [
        ("dense", [0, 0, 0, 0, 0, ROWS], None),
        ("dense", [0, 0, 0, 0, 0, -1], None),
        ("dense", [0, 0, 0, 0, 0, -2], None),
        ("offsets", [ROWS, 0, 0, 0, 0, 0], [1, 2, 3, 4]),
        ("offsets", [0] * 6, [0, 1, 2, 7]),
        ("offsets", [0] * 6, [-1, 1, 2, 3]),
        ("offsets", [0] * 6, [0, 2, 1, 3]),
        ("ragged", [0] * 6, [0, 1, 2, 7]),
        ("ragged", [0] * 6, [-1, 1, 2, 3]),
        ("segments", [0] * 6, [0, 0, 1, 1, 2, 4]),
        ("segments", [0] * 6, [-1, 0, 1, 1, 2, 3]),
        ("segments", [0] * 6, [0, 1, 0, 1, 2, 3]),
    ],
)
@pytest.mark.parametrize("lane", [0, LANES - 1])
def test_what_is_wrong_in_one_lane_is_an_error(kind, ids, bounds, lane):
    """And never a row, or a bag, of another lane."""
    ids = tf.tensor_scatter_nd_update(IDS, [[lane]], [ids])
    given = BOUNDS[kind]
    if bounds is not None:
        given = tf.tensor_scatter_nd_update(given, [[lane]], [bounds])
    f = look_up(kind, padding_idx=5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[|offsets\[|segment_ids\["):
        mapped(lambda *lane: f(TABLE, *lane), (ids, given))


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize("wrong", [ROWS, -1, -2])
def test_an_id_that_is_no_row_of_its_lanes_table_is_an_error(wrong):
    ids = tf.constant([[[0, wrong]], [[0, 1]]])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[0, 1\]"):
        mapped(
            lambda table, ids: tf_ti.embedding_bag_packed(table, ids, padding_idx=5),
            (TABLES[:2], ids),
        )


def test_weights_of_no_bag_count_for_nothing_even_if_they_are_no_numbers():
    weights = tf.constant([[np.nan, 1, 2, np.nan]] * 2, F64)
    table = tf.constant([[1.0], [2.0], [np.inf]], F64)

    def every(ids, weights):
        f = look_up("ragged")
        return f(table, ids, [1, 3], weights), gradient_of(f, (0, 3))(table, ids, [1, 3], weights)

    xs = (tf.constant([[2, 0, 1, 2]] * 2), weights)
    close(mapped(every, xs), lane_by_lane(every, xs))


@pytest.mark.parametrize("name", ["scatter_sub", "adam_update", "adagrad_update"])
def test_an_update_in_a_map_is_an_error(name):
    variable, m, v = (tf.Variable(tf.zeros([3, 1])) for _ in range(3))
    update = {
        "scatter_sub": lambda slices: tf_ti.scatter_sub(variable, slices, weight_decay=0.5),
        "adam_update": lambda slices: tf_ti.adam_update(variable, m, v, slices, 0.1, 1),
        "adagrad_update": lambda slices: tf_ti.adagrad_update(variable, v, slices, 0.1),
    }[name]

    def f(ids):
        def step(carry, i):
            update(tf.IndexedSlices(tf.ones([1, 1]), i[None]))
            return carry + i, carry  # a state that only counts leaves the loop, and the map with it

        return tf_ti.scan(step, 0, ids)[0]

    with pytest.raises(ValueError, match=name):
        mapped(f, (IDS,))
