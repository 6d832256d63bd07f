"""Look-ups of tf.nn as bags: `tf_ti.accelerate(lookups=True)`. The oracle is TensorFlow's own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti

START = np.random.default_rng(0).normal(size=[12, 3])
# Bags of several ids, of one and of none, also at the end; ids within a bag in no order.
INDICES = [[0, 0], [0, 2], [0, 1], [2, 0], [3, 4], [3, 1], [3, 2], [5, 0]]
IDS = [1, 3, 3, 0, 11, 7, 11, 2]
WEIGHTS = [0.5, -1.0, 2.0, 1.5, 0.25, 3.0, -2.0, 0.0]


def sparse(dtype, values=IDS):
    return tf.SparseTensor(INDICES, tf.constant(values, dtype), [7, 5])


def ragged(dtype, values=IDS):
    rows = [row for row, _ in INDICES]
    return tf.RaggedTensor.from_value_rowids(tf.constant(values, dtype), rows, 7)


def variable(dtype):
    return tf.Variable(START, dtype=dtype)


def tensor(dtype):
    return tf.constant(START, dtype)


def shards(dtype):
    return [tf.Variable(part, dtype=dtype) for part in np.split(START, [4, 8])]


def one_shard_in_a_list(dtype):
    return [tf.constant(START, dtype)]


def results(call, tables, others, is_eager):
    """The rows, and the gradients by tables and others, dense."""

    def ask():
        with tf.GradientTape() as tape:
            tape.watch([t for t in (*tables, *others) if isinstance(t, tf.Tensor)])
            rows = call(*others)
            total = tf.reduce_sum(tf.sin(rows * 3.0))
        slopes = tape.gradient(total, [*tables, *others], unconnected_gradients="zero")
        return [rows, *map(tf.convert_to_tensor, slopes)]

    return ask() if is_eager else tf.function(ask)()


def check(call, tables, others=(), is_eager=True, tolerance=1e-5):
    expected = results(call, tables, others, is_eager)
    with tf_ti.accelerate(lookups=True):
        found = results(call, tables, others, is_eager)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        np.testing.assert_allclose(
            tf.cast(ours, tf.float64), tf.cast(theirs, tf.float64), tolerance, tolerance
        )


@pytest.mark.quarter
@pytest.mark.parametrize("is_eager", [True, False])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", None])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("kind", [sparse, ragged])
@pytest.mark.parametrize("table", [variable, tensor, shards, one_shard_in_a_list])
def test_values_and_gradients(table, kind, is_weighted, combiner, is_eager):
    tables, ids = table(tf.float32), kind(tf.int64)

    def call(*weights):
        given = ids.with_values(weights[0]) if weights else None
        return tf.nn.embedding_lookup_sparse(tables, ids, given, combiner=combiner)

    others = [tf.constant(WEIGHTS)] if is_weighted else []
    check(call, tables if isinstance(tables, list) else [tables], others, is_eager)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize("ids_type", [tf.int32, tf.int64])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_types(dtype, ids_type, is_weighted):
    table, ids = variable(dtype), sparse(ids_type)
    weights = ids.with_values(tf.constant(WEIGHTS)) if is_weighted else None
    tolerance = {tf.float16: 1e-2, tf.bfloat16: 0.1}.get(dtype, 1e-5)
    check(lambda: tf.nn.embedding_lookup_sparse(table, ids, weights), [table], (), False, tolerance)


def test_weights_of_integers():
    table, ids = variable(tf.float64), sparse(tf.int64)
    weights = ids.with_values(tf.range(8))
    check(lambda: tf.nn.embedding_lookup_sparse(table, ids, weights, "sqrtn"), [table])


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("is_eager", [True, False])
def test_max_norm_and_partitions(is_weighted, is_eager):
    for tables in (variable(tf.float32), shards(tf.float32)):
        ids = sparse(tf.int64)

        def call(*weights, tables=tables, ids=ids):
            given = ids.with_values(weights[0]) if weights else None
            return tf.compat.v1.nn.embedding_lookup_sparse(
                tables, ids, given, partition_strategy="mod", combiner="sum", max_norm=1.2
            )

        others = [tf.constant(WEIGHTS)] if is_weighted else []
        check(call, tables if isinstance(tables, list) else [tables], others, is_eager)


@pytest.mark.parametrize("kind", [sparse, ragged])
@pytest.mark.parametrize("default_id", [None, 4])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_safe_look_ups(kind, default_id, is_weighted):
    table = variable(tf.float32)
    ids = kind(tf.int64, [1, -3, 3, -1, 11, 7, 11, 2])
    weights = ids.with_values(tf.constant(WEIGHTS)) if is_weighted else None
    check(
        lambda: tf.nn.safe_embedding_lookup_sparse(
            table, ids, weights, default_id=default_id, combiner="mean"
        ),
        [table],
        is_eager=False,
    )


@pytest.mark.parametrize("kind", [sparse, ragged])
@pytest.mark.parametrize("is_eager", [True, False])
def test_no_ids(kind, is_eager):
    table = variable(tf.float32)
    if kind is sparse:
        ids = tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0], tf.int64), [4, 5])
    else:
        ids = tf.RaggedTensor.from_row_splits(tf.zeros([0], tf.int64), [0] * 5)
    check(lambda: tf.nn.embedding_lookup_sparse(table, ids, None), [table], (), is_eager)


def test_tables_of_more_axes():
    table = tf.Variable(tf.reshape(tf.constant(START), [6, 3, 2]))
    ids = sparse(tf.int64, [1, 3, 3, 0, 5, 4, 5, 2])
    weights = ids.with_values(tf.constant(WEIGHTS, tf.float64))
    for given in (None, weights):
        check(lambda given=given: tf.nn.embedding_lookup_sparse(table, ids, given), [table])


@pytest.mark.parametrize("is_eager", [True, False])
def test_a_variable_that_changes_before_the_gradient_by_weights(is_eager):
    table, ids = variable(tf.float32), sparse(tf.int64)
    weights = tf.constant(WEIGHTS)

    def ask():
        table.assign(START)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            y = tf.nn.embedding_lookup_sparse(table, ids, ids.with_values(weights), "sum")
        table.assign_add(tf.ones([12, 3]))
        return tape.gradient(y, weights)

    ask = ask if is_eager else tf.function(ask)
    expected = ask()
    with tf_ti.accelerate(lookups=True):
        found = (ask if is_eager else tf.function(ask.python_function))()
    np.testing.assert_allclose(found, expected, 1e-5)


@pytest.mark.parametrize("wrong", [[1, 3, 3, 0, 12, 7, 11, 2], [1, 3, 3, 0, -1, 7, 11, 2]])
@pytest.mark.parametrize("is_eager", [True, False])
def test_ids_that_are_no_rows(wrong, is_eager):
    table, ids = variable(tf.float32), sparse(tf.int64, wrong)

    def call():
        return tf.nn.embedding_lookup_sparse(table, ids, None)

    with tf_ti.accelerate(lookups=True):
        with pytest.raises(tf.errors.InvalidArgumentError, match="12" if 12 in wrong else "-1"):
            call() if is_eager else tf.function(call)()


def test_bags_out_of_order():
    table = variable(tf.float32)
    ids = tf.SparseTensor([[1, 0], [0, 0]], tf.constant([1, 2], tf.int64), [2, 1])
    with tf_ti.accelerate(lookups=True), pytest.raises(tf.errors.InvalidArgumentError):
        tf.nn.embedding_lookup_sparse(table, ids, None)


def types_of(call):
    graph = tf.function(call).get_concrete_function().graph
    return {op.type for op in graph.get_operations()}


def test_what_is_taken_and_what_is_not():
    table, ids = variable(tf.float32), sparse(tf.int64)
    integers = tf.Variable(tf.range(12)[:, None])

    def call():
        return tf.nn.embedding_lookup_sparse(table, ids, None)

    def of_integers():
        return tf.nn.embedding_lookup_sparse(integers, ids, None, "sum")

    ours = "TfTi>ResourceEmbeddingSegmentsSum"
    with tf_ti.accelerate(lookups=True):
        assert ours in types_of(call)
        report = str(tf_ti.accelerate.report())
        assert "test_lookups.py" in report and "runs as an embedding bag" in report
        assert ours not in types_of(of_integers)
        assert "is TensorFlow's: its table is none of floats" in str(tf_ti.accelerate.report())
        with tf_ti.accelerate():
            assert ours not in types_of(call)
        with tf_ti.accelerate(False, lookups=True):
            assert ours in types_of(call)
    assert ours not in types_of(call)
    assert ours in types_of(tf_ti.accelerate(lookups=True)(call))


@pytest.mark.parametrize("most", [tf.constant(1.2), np.float32(1.2), 0.0, np.inf, np.nan])
def test_each_max_norm_that_tensorflow_takes(most):
    table, ids = variable(tf.float32), sparse(tf.int64)
    check(lambda: tf.nn.embedding_lookup_sparse(table, ids, None, max_norm=most), [table])


@pytest.mark.parametrize("is_eager", [True, False])
def test_parts_of_a_table_that_tensorflow_made(is_eager):
    parts = tf.__internal__.distribute.ShardedVariable(
        [tf.Variable(START[:6]), tf.Variable(START[6:])]
    )
    ids = sparse(tf.int64)

    def call():
        return tf.nn.embedding_lookup_sparse(parts, ids, None)

    call = call if is_eager else tf.function(call)
    expected = call()
    with tf_ti.accelerate(lookups=True):
        np.testing.assert_allclose(call(), expected, 1e-6)


def test_shards_of_two_types_are_the_error_of_tensorflow():
    shards = [tf.constant(START[:6], tf.float32), tf.constant(START[6:], tf.float64)]
    for settings in (False, True):
        with tf_ti.accelerate(lookups=settings), pytest.raises(tf.errors.InvalidArgumentError):
            tf.nn.embedding_lookup_sparse(shards, sparse(tf.int64), None)


def test_a_graph_of_tensorflow_1_gets_nothing_more():
    def graph_of(lookups):
        with tf.Graph().as_default() as graph, tf_ti.accelerate(lookups=lookups):
            table = tf.compat.v1.get_variable("table", [12, 3])
            tf.nn.embedding_lookup_sparse(table, sparse(tf.int64), None)
        return [op.name for op in graph.get_operations()]

    assert graph_of(True) == graph_of(False)


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_lookups_is_a_bool(value):
    with pytest.raises(TypeError, match="lookups must be True or False"):
        tf_ti.accelerate(lookups=value)


def test_training_by_keras_optimizers():
    """Sparse gradients reach optimizers, whose steps are the same up to rounding."""
    ids, found = sparse(tf.int64), []
    for is_on in (False, True):
        with tf_ti.accelerate(lookups=is_on):
            table = variable(tf.float32)
            optimizer = keras.optimizers.Adam(0.1)

            @tf.function
            def step(table=table, optimizer=optimizer):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.nn.embedding_lookup_sparse(table, ids, None) ** 2)
                optimizer.apply(tape.gradient(loss, [table]), [table])

            optimizer.build([table])
            for _ in range(5):
                step()
            found.append(table.numpy())
    np.testing.assert_allclose(*found, 1e-4, 1e-5)
