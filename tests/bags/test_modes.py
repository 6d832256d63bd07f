"""Where bags run: in functions, datasets, strategies, saved models, and beside other threads."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from checks import in_threads
from patience import measures_memory

import tf_ti

TABLE = np.arange(15, dtype=np.float32).reshape(5, 3) + 1
IDS, OFFSETS, WEIGHTS = [0, 2, 2, 4], [0, 0, 3], [1.0, 2.0, -1.0, 3.0]
# By the definition: bags [], [0, 2, 2] and [4], row 1 for the empty one.
SUMS = [[4, 5, 6], [15, 18, 21], [13, 14, 15]]
WEIGHTED = [[4, 5, 6], [8, 10, 12], [39, 42, 45]]
GRADIENT = [1, 1, 2, 0, 1]  # of the sum of SUMS, by every element of the row


def sums(table, ids=IDS, offsets=OFFSETS):
    return tf_ti.embedding_bag_offsets_sum(table, ids, offsets, 1)


def gradient_of_rows(gradient):
    """The first column of a gradient all of whose columns are the same."""
    gradient = tf.convert_to_tensor(gradient).numpy()
    assert np.all(gradient == gradient[:, :1])
    return gradient[:, 0].tolist()


each_kind = pytest.mark.parametrize("kind", ["tensor", "variable"])


def held(kind):
    return tf.Variable(TABLE) if kind == "variable" else tf.constant(TABLE)


# In functions


def ragged(values):
    return tf.RaggedTensor.from_row_starts(values, OFFSETS)


def sparse(values):
    return tf.SparseTensor([[1, 0], [1, 1], [1, 3], [2, 1]], values, [3, 4])


# A call on a table, ids and weights, and what it gives without weights and with them.
CALLS = {
    "embedding_bag_offsets_sum": (
        lambda t, i, w: tf_ti.embedding_bag_offsets_sum(t, i, OFFSETS, 1, w),
        SUMS,
        WEIGHTED,
    ),
    "embedding_bag_offsets": (
        lambda t, i, w: tf_ti.embedding_bag_offsets(t, i, OFFSETS, 1, w),
        SUMS,
        WEIGHTED,
    ),
    "embedding_bag_packed": (
        lambda t, i, w: tf_ti.embedding_bag_packed(
            t, tf.reshape(i, [2, 2]), w if w is None else tf.reshape(w, [2, 2])
        ),
        [[8, 10, 12], [20, 22, 24]],
        [[15, 18, 21], [32, 34, 36]],
    ),
    "embedding_segments_sum": (
        lambda t, i, w: tf_ti.embedding_segments_sum(t, i, [1, 1, 1, 2], 3, 1, w),
        SUMS,
        WEIGHTED,
    ),
    "embedding_bag of ragged ids": (
        lambda t, i, w: tf_ti.embedding_bag(
            t, ragged(i), w if w is None else ragged(w), default_index=1
        ),
        SUMS,
        WEIGHTED,
    ),
    "embedding_bag of sparse ids": (
        lambda t, i, w: tf_ti.embedding_bag(
            t, sparse(tf.ensure_shape(i, [4])), w if w is None else sparse(w), default_index=1
        ),
        SUMS,
        WEIGHTED,
    ),
    "embedding_bag of dense ids": (
        lambda t, i, w: tf_ti.embedding_bag(
            t, tf.reshape(i, [1, 2, 2]), w if w is None else tf.reshape(w, [1, 2, 2])
        ),
        [[[8, 10, 12], [20, 22, 24]]],
        [[[15, 18, 21], [32, 34, 36]]],
    ),
}


@each_kind
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("known", ["shape", "rank", "nothing"])
@pytest.mark.parametrize("call", CALLS)
def test_in_a_function_that_knows_little_of_its_inputs(call, known, weighted, kind):
    run, plain, with_weights = CALLS[call]
    table = held(kind)
    given = {
        "ids": tf.constant(IDS),
        "weights": tf.constant(WEIGHTS) if weighted else None,
        "table": table if kind == "tensor" else None,
    }
    given = {name: value for name, value in given.items() if value is not None}

    @tf.function
    def call(**given):
        return run(given.get("table", table), given["ids"], given.get("weights"))

    if known != "shape":
        call = call.get_concrete_function(
            **{
                name: tf.TensorSpec(
                    [None] * value.shape.rank if known == "rank" else None, value.dtype, name
                )
                for name, value in given.items()
            }
        )
    np.testing.assert_array_equal(call(**given), with_weights if weighted else plain)


def test_dense_ids_of_unknown_rank():
    call = tf.function(
        lambda ids: tf_ti.embedding_bag(TABLE, ids),
        input_signature=[tf.TensorSpec(None, tf.int32)],
    )
    for ids in (IDS, [IDS, IDS], [[IDS[:2], IDS[2:]]]):
        np.testing.assert_array_equal(call(tf.constant(ids)), TABLE[ids].sum(-2))


def test_sparse_ids_of_unknown_rank():
    call = tf.function(
        lambda ids: tf_ti.embedding_bag(TABLE, ids),
        input_signature=[tf.SparseTensorSpec(None, tf.int32)],
    )
    for places, shape in (([[0, 0], [2, 1]], [3, 2]), ([[0, 1, 0], [1, 0, 1]], [2, 2, 2])):
        expected = np.zeros([*shape[:-1], 3])
        for place, row in zip(places, (1, 2)):
            expected[tuple(place[:-1])] = TABLE[row]
        np.testing.assert_array_equal(call(tf.SparseTensor(places, [1, 2], shape)), expected)


def test_a_default_index_and_a_number_of_segments_that_are_inputs():
    @tf.function(input_signature=[tf.TensorSpec(None, tf.int32), tf.TensorSpec(None, tf.int32)])
    def call(default_index, count):
        return tf_ti.embedding_segments_sum(TABLE, IDS, [1, 1, 1, 2], count, default_index)

    np.testing.assert_array_equal(call(1, 3), SUMS)
    np.testing.assert_array_equal(call(-1, 4), [[0] * 3, *SUMS[1:], [0] * 3])


@pytest.mark.parametrize("shape", [None, [None, None], [None, 3]], ids=str)
def test_a_variable_whose_shape_is_not_known(shape):
    table = tf.Variable(TABLE, shape=tf.TensorShape(shape))
    call = tf.function(lambda ids: sums(table, ids))
    np.testing.assert_array_equal(call(tf.constant(IDS)), SUMS)
    np.testing.assert_array_equal(sums(table), SUMS)
    table.assign(np.concatenate([TABLE, TABLE]))
    np.testing.assert_array_equal(call(tf.constant([0, 7, 7, 9])), SUMS)
    with tf.GradientTape() as tape:
        y = call(tf.constant([0, 7, 7, 9]))
    assert gradient_of_rows(tape.gradient(y, table)) == [1, 1, 0, 0, 0, 0, 0, 2, 0, 1]


@each_kind
def test_static_shapes_are_known_as_far_as_they_can_be(kind):
    def traced(call, *shapes):
        specs = [tf.TensorSpec(shape, tf.int32) for shape in shapes]
        function = tf.function(call).get_concrete_function(*specs)
        return function.structured_outputs.shape

    table = tf.zeros([5, 3, 2])
    table = tf.Variable(table) if kind == "variable" else table
    offsets = tf_ti.embedding_bag_offsets_sum
    assert traced(lambda i, o: offsets(table, i, o), [None], [4]) == [4, 3, 2]
    assert traced(lambda i, o: offsets(table, i, o), [None], [None])[1:] == [3, 2]
    last = traced(lambda i, o: offsets(table, i, o, include_last_offset=True), [None], [4])
    assert last == [3, 3, 2]
    assert traced(lambda i: tf_ti.embedding_bag_packed(table, i), [7, None]) == [7, 3, 2]
    segments = traced(lambda i: tf_ti.embedding_segments_sum(table, i, i, 9), [None])
    assert segments == [9, 3, 2]
    assert traced(lambda i: tf_ti.embedding_bag(table, i), [4, None, 2])[2:] == [3, 2]
    unknown = traced(lambda i: tf_ti.embedding_segments_sum(table, i, i, i[0]), [None])
    assert unknown.as_list() == [None, 3, 2]
    ids = tf.RaggedTensorSpec([None, None], tf.int32)
    function = tf.function(lambda i: tf_ti.embedding_bag(table, i)).get_concrete_function(ids)
    assert function.structured_outputs.shape.as_list() == [None, 3, 2]


@pytest.mark.parametrize("max_norm", [None, 100.0])
def test_a_function_traced_without_a_tape_has_gradients_under_one(max_norm):
    table = tf.Variable(TABLE)
    call = tf.function(
        lambda: tf_ti.embedding_bag_offsets_sum(table, IDS, OFFSETS, 1, max_norm=max_norm)
    )
    call()
    assert [v is table for v in call.get_concrete_function().variables] == [True]
    with tf.GradientTape() as tape:
        y = call()
    assert [v is table for v in tape.watched_variables()] == [True]
    assert gradient_of_rows(tape.gradient(y, table)) == GRADIENT


def test_called_again_with_other_sizes_nothing_is_traced():
    traces = []

    @tf.function(reduce_retracing=True)
    def call(ids, offsets):
        traces.append(1)
        return sums(TABLE, ids, offsets)

    for n in range(1, 9):
        y = call(tf.zeros([n], tf.int32), tf.zeros([1], tf.int32))
        np.testing.assert_array_equal(y, n * TABLE[:1])
    assert len(traces) <= 2


def test_functions_that_run_eagerly_change_nothing():
    table = tf.Variable(TABLE)
    tf.config.run_functions_eagerly(True)
    try:
        with tf.GradientTape() as tape:
            y = tf.function(lambda: sums(table))()
        gradient = tape.gradient(y, table)
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_array_equal(y, SUMS)
    assert gradient_of_rows(gradient) == GRADIENT


@each_kind
def test_the_name_names_the_operation(kind):
    table = held(kind)

    @tf.function
    def call(ids):
        return tf_ti.embedding_bag_offsets_sum(table, ids, OFFSETS, name="mine")

    operations = call.get_concrete_function(tf.constant(IDS)).graph.get_operations()
    assert any(op.name.split("/")[0] == "mine" for op in operations)


@each_kind
def test_in_a_graph_with_a_session(kind):
    with tf.Graph().as_default():
        table = tf.constant(TABLE)
        if kind == "variable":
            table = tf.compat.v1.get_variable("table", initializer=TABLE, use_resource=True)
        ids = tf.compat.v1.placeholder(tf.int32)
        weights = tf.compat.v1.placeholder(tf.float32)
        y = tf_ti.embedding_bag_offsets_sum(table, ids, OFFSETS, 1, weights)
        of_table, of_weights = tf.gradients(y, [table, weights])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            found = session.run(
                [y, tf.convert_to_tensor(of_table), of_weights], {ids: IDS, weights: WEIGHTS}
            )
    np.testing.assert_array_equal(found[0], WEIGHTED)
    assert found[1][:, 0].tolist() == [1, 1, 1, 0, 3]
    assert found[2].tolist() == TABLE.sum(1)[IDS].tolist()


def test_a_serialised_graph_runs_after_import():
    graph = tf.Graph()
    with graph.as_default():
        ids = tf.compat.v1.placeholder(tf.int32, [None], name="ids")
        tf.identity(sums(TABLE, ids), name="y")
    definition = tf.compat.v1.GraphDef.FromString(graph.as_graph_def().SerializeToString())
    with tf.Graph().as_default():
        (y,) = tf.import_graph_def(definition, return_elements=["y:0"], name="")
        with tf.compat.v1.Session() as session:
            np.testing.assert_array_equal(session.run(y, {"ids:0": IDS}), SUMS)


# The order of reads and updates of a variable


def test_bags_and_updates_in_one_function_happen_in_order():
    table = tf.Variable(TABLE)

    @tf.function
    def call():
        results = [sums(table)]
        table.assign(TABLE * 2)
        results.append(sums(table))
        table.scatter_update(tf.IndexedSlices(tf.zeros([1, 3]), [4]))
        results.append(sums(table))
        table.assign_add(tf.ones_like(table))
        results.append(sums(table))
        return results

    for _ in range(2):
        table.assign(TABLE)
        first, doubled, cleared, raised = call()
        np.testing.assert_array_equal(first, SUMS)
        np.testing.assert_array_equal(doubled, np.array(SUMS) * 2)
        np.testing.assert_array_equal(cleared, [*np.array(SUMS[:2]) * 2, [0, 0, 0]])
        np.testing.assert_array_equal(raised, cleared + [[1], [3], [1]])


def test_the_gradient_to_weights_is_of_the_table_that_the_bag_read():
    table, weights = tf.Variable(TABLE), tf.constant(WEIGHTS)

    @tf.function
    def call():
        with tf.GradientTape() as tape:
            tape.watch(weights)
            y = tf_ti.embedding_bag_offsets_sum(table, IDS, OFFSETS, None, weights)
        gradient = tape.gradient(y, weights)
        table.assign(TABLE * 100)
        return gradient

    assert call().numpy().tolist() == TABLE.sum(1)[IDS].tolist()


# Inside other things


def bags_of(n):
    return sums(TABLE, tf.fill([n], tf.cast(2, tf.int64)), tf.zeros([1], tf.int64))[0, 0]


def test_in_a_dataset():
    dataset = tf.data.Dataset.range(4).map(bags_of)
    assert [y.numpy() for y in dataset] == [4, 7, 14, 21]


@each_kind
@pytest.mark.parametrize("deterministic", [True, False])
def test_in_a_parallel_dataset_with_a_captured_table(kind, deterministic):
    table = held(kind)

    def call(n):
        return tf_ti.embedding_bag_offsets_sum(table, tf.fill([n], 2), [0])[0, 0]

    dataset = tf.data.Dataset.range(50).map(call, num_parallel_calls=4, deterministic=deterministic)
    assert sorted(y.numpy() for y in dataset) == [7 * n for n in range(50)]


def test_in_a_dataset_of_ragged_batches():
    dataset = tf.data.Dataset.range(1, 6).map(lambda n: tf.fill([n], 2)).ragged_batch(2)
    found = dataset.map(lambda ids: tf_ti.embedding_bag(TABLE, ids)[:, 0])
    assert [y.numpy().tolist() for y in found] == [[7, 14], [21, 28], [35]]


@each_kind
def test_inside_tf_while_loop_with_gradients(kind):
    table = held(kind)

    def body(k, total):
        y = tf_ti.embedding_bag_offsets_sum(table, tf.fill([k + 1], k), [0])
        return k + 1, total + tf.reduce_sum(y)

    @tf.function
    def call():
        with tf.GradientTape() as tape:
            tape.watch(table)
            _, total = tf.while_loop(lambda k, total: k < 3, body, (0, 0.0))
        return total, tf.convert_to_tensor(tape.gradient(total, table))

    total, gradient = call()
    assert total.numpy() == (TABLE.sum(1)[:3] * [1, 2, 3]).sum()
    assert gradient_of_rows(gradient) == [1, 2, 3, 0, 0]


def test_inside_tf_ti_scan_with_gradients():
    table = tf.Variable(TABLE)
    ids = tf.constant([[0, 2], [2, 2], [4, 1]])

    def step(carry, row):
        return carry + tf.reduce_sum(tf_ti.embedding_bag_offsets_sum(table, row, [0])), None

    with tf.GradientTape() as tape:
        total, _ = tf_ti.scan(step, 0.0, ids)
    assert total.numpy() == TABLE.sum(1)[ids].sum()
    assert gradient_of_rows(tape.gradient(total, table)) == [1, 1, 3, 0, 1]


@pytest.mark.parametrize("flag", [True, False])
def test_inside_tf_cond_with_gradients(flag):
    table = tf.Variable(TABLE)

    @tf.function
    def call(flag):
        with tf.GradientTape() as tape:
            y = tf.cond(flag, lambda: sums(table), lambda: tf.zeros([3, 3]))
        return y, tf.convert_to_tensor(tape.gradient(y, table))

    y, gradient = call(tf.constant(flag))
    np.testing.assert_array_equal(y, np.array(SUMS) * flag)
    assert gradient_of_rows(gradient) == [g * flag for g in GRADIENT]


def test_inside_map_fn_and_py_function():
    ids = tf.constant([[0, 2], [2, 2]])
    expected = TABLE[[0, 2]] + TABLE[2]

    def one(row):
        return tf_ti.embedding_bag_offsets_sum(TABLE, row, [0])[0]

    found = tf.map_fn(one, ids, fn_output_signature=tf.float32)
    np.testing.assert_array_equal(found, expected)
    found = tf.function(lambda: tf.py_function(one, [ids[0]], tf.float32))()
    np.testing.assert_array_equal(found, expected[0])


def test_inside_recompute_grad():
    table = tf.Variable(TABLE)
    with tf.GradientTape() as tape:
        y = tf.recompute_grad(lambda ids: sums(table, ids))(tf.constant(IDS))
    assert gradient_of_rows(tape.gradient(y, table)) == GRADIENT


def test_with_an_explicit_device():
    with tf.device("/CPU:0"):
        np.testing.assert_array_equal(sums(tf.Variable(TABLE)), SUMS)
        np.testing.assert_array_equal(tf.function(lambda: sums(TABLE))(), SUMS)


# Other variables


def test_a_keras_variable_is_a_table():
    table = keras.Variable(TABLE)
    np.testing.assert_array_equal(sums(table), SUMS)
    np.testing.assert_array_equal(tf.function(lambda: sums(table))(), SUMS)
    np.testing.assert_array_equal(
        tf_ti.embedding_bag([table, table], tf.constant([[7]])), TABLE[2:3]
    )
    assert tf_ti.advise_huge_pages(table) is None
    with tf.GradientTape() as tape:
        y = sums(table)
    gradient = tape.gradient(y, table.value)
    assert isinstance(gradient, tf.IndexedSlices)
    assert gradient_of_rows(gradient) == GRADIENT
    keras.optimizers.SGD(0.5).apply([gradient], [table])
    np.testing.assert_array_equal(table, TABLE - 0.5 * np.array(GRADIENT)[:, np.newaxis])


def test_a_reference_variable_is_a_table_too():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = tf.compat.v1.get_variable("table", initializer=TABLE, use_resource=False)
        y = sums(table)
        gradient = tf.convert_to_tensor(tf.gradients(y, table)[0])
        session.run(tf.compat.v1.global_variables_initializer())
        y, gradient = session.run([y, gradient])
    np.testing.assert_array_equal(y, SUMS)
    assert gradient[:, 0].tolist() == GRADIENT


def test_a_variable_that_does_not_train_gets_no_gradient_unless_watched():
    table = tf.Variable(TABLE, trainable=False)
    with tf.GradientTape(persistent=True) as tape:
        y = sums(table)
    assert tape.gradient(y, table) is None
    with tf.GradientTape() as tape:
        tape.watch(table)
        y = sums(table)
    assert gradient_of_rows(tape.gradient(y, table)) == GRADIENT


def test_a_tape_that_watches_what_is_accessed_knows_the_table():
    table, other = tf.Variable(TABLE), tf.Variable(1.0)
    with tf.GradientTape() as tape:
        sums(table)
        tf.function(lambda: sums(table))()
        other.read_value()
    assert [v is table for v in tape.watched_variables()] == [True, False]


def test_under_a_mirrored_strategy(run_program):
    run_program("""
        import numpy as np
        import tensorflow as tf
        import tf_ti

        cpus = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(
            cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
        start = np.arange(10, dtype=np.float32).reshape(5, 2)
        with strategy.scope():
            table = tf.Variable(start, aggregation=tf.VariableAggregation.SUM)
            on_read = tf.Variable(
                start, synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.MEAN)

        def step(ids):
            with tf.GradientTape() as tape:
                y = tf_ti.embedding_bag_offsets_sum(table, ids, [0, 2], 1)
            read = tf_ti.embedding_bag_offsets_sum(on_read, ids, [0, 2], 1)
            return y, read, tf.convert_to_tensor(tape.gradient(y, table))

        def batch(context):
            return tf.constant([0, 2, 4]) + \\
                tf.constant([0, 1, 0]) * context.replica_id_in_sync_group
        values = strategy.experimental_distribute_values_from_function(batch)
        for run in (strategy.run, tf.function(lambda f, args: strategy.run(f, args))):
            y, read, gradient = run(step, (values,))
            for replica, row in ((0, 2), (1, 3)):
                expected = [start[0] + start[row], start[4]]
                local = [strategy.experimental_local_results(v)[replica]
                         for v in (y, read, gradient)]
                np.testing.assert_array_equal(local[0], expected)
                np.testing.assert_array_equal(local[1], expected)
                counts = [1, 0, 0, 0, 1]
                counts[row] = 1
                assert local[2].numpy()[:, 0].tolist() == counts

        @tf.function
        def train(values):
            def update(ids):
                with tf.GradientTape() as tape:
                    y = tf_ti.embedding_bag_offsets_sum(table, ids, [0, 2])
                gradient = tape.gradient(y, table)
                assert isinstance(gradient, tf.IndexedSlices)
                table.assign_sub(tf.convert_to_tensor(gradient))
            strategy.run(update, (values,))

        train(values)
        expected = start - np.array([[2], [0], [1], [1], [2]])
        for v in table.values:
            np.testing.assert_array_equal(v, expected)
        # outside a replica: the first one's value
        y = tf_ti.embedding_bag_offsets_sum(table, [0, 4], [0])
        np.testing.assert_array_equal(y, expected[:1] + expected[4:])
    """)


# Saved models


EXPECTED = {"tensor": SUMS, "variable": WEIGHTED, "mean": [[4, 5, 6], [5, 6, 7], [13, 14, 15]]}
SAVED_CHECK = f"""
import sys
import numpy as np
import tensorflow as tf
arguments = dict(ids=tf.constant([0, 2, 2, 4]), offsets=tf.constant([0, 0, 3]),
                 weights=tf.constant([1.0, 2.0, -1.0, 3.0]))
expected = {EXPECTED}
def check(found):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6)
"""


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    module = tf.Module()
    module.table = tf.Variable(TABLE)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int32, "ids"),
            tf.TensorSpec([None], tf.int32, "offsets"),
            tf.TensorSpec([None], tf.float32, "weights"),
        ]
    )
    def run(ids, offsets, weights):
        mean = tf_ti.embedding_bag(
            module.table,
            tf.RaggedTensor.from_row_starts(ids, offsets),
            combiner="mean",
            default_index=1,
        )
        return {
            "tensor": sums(TABLE, ids, offsets),
            "variable": tf_ti.embedding_bag_offsets_sum(module.table, ids, offsets, 1, weights),
            "mean": mean,
        }

    module.run = run
    path = tmp_path_factory.mktemp("bags")
    tf.saved_model.save(module, str(path), signatures=run)
    return path


def test_a_saved_model_runs_and_trains_in_a_process_that_imports_tf_ti(saved_model, run_program):
    run_program(
        SAVED_CHECK
        + """
import tf_ti
module = tf.saved_model.load(sys.argv[1])
check(module.run(**arguments))
check(module.signatures["serving_default"](**arguments))
with tf.GradientTape() as tape:
    y = module.run(**arguments)["variable"]
gradient = tf.convert_to_tensor(tape.gradient(y, module.table)).numpy()
assert gradient[:, 0].tolist() == [1, 1, 1, 0, 3], gradient
module.table.assign(module.table * 2)
np.testing.assert_allclose(module.run(**arguments)["mean"], np.array(expected["mean"]) * 2)
""",
        saved_model,
    )


def test_a_saved_model_runs_in_a_process_that_loads_the_library_alone(saved_model, run_program):
    from tf_ti import _library

    run_program(
        SAVED_CHECK
        + """
tf.load_op_library(sys.argv[2])
module = tf.saved_model.load(sys.argv[1])
check(module.run(**arguments))
assert "tf_ti" not in sys.modules
""",
        saved_model,
        _library._PATH,
    )


def twice(table, ids, weights):
    """Bags by `embedding_bags`, of one table that is there twice."""
    given = None if weights is None else [ragged(weights), weights]
    rows, whole = tf_ti.embedding_bags([table, table], [ragged(ids), ids], given, default_index=1)
    return rows + 0 * whole


def largest(table, ids, weights):
    return tf_ti.embedding_bag_offsets(table, ids, OFFSETS, 1, reduction="max")


def nested(module, look, tmp_path):
    module.called = tf.function(look)
    return module, tf.function(lambda ids: module.called(ids))


def loaded(module, look, tmp_path):
    module.look = look
    tf.saved_model.save(module, str(tmp_path))
    module = tf.saved_model.load(str(tmp_path))
    return module, module.look


WITHOUT_DEFAULT = [1, 0, 2, 0, 1], [1, 0, 1, 0, 3]
BY_ROW = {call: (GRADIENT, [1, 1, 1, 0, 3]) for call in CALLS}
BY_ROW |= {call: WITHOUT_DEFAULT for call in CALLS if "packed" in call or "dense" in call}
TRAINED = {call: (CALLS[call][0], *BY_ROW[call]) for call in CALLS}
TRAINED["embedding_bags"] = twice, GRADIENT, [1, 1, 1, 0, 3]
TRAINED["a maximum"] = largest, [0, 1, 1, 0, 1], None


def takes_no_weights(call, weighted, **_):
    return TRAINED[call][1:][weighted] is None


@pytest.mark.pairwise(without=takes_no_weights)
@pytest.mark.parametrize(("how", "shape"), [(nested, [5, 3]), (loaded, [None, 3])])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("call", TRAINED)
def test_a_function_within_keeps_gradients_of_rows_after_an_eager_one(
    call, weighted, shape, how, tmp_path
):
    run, *expected = TRAINED[call]
    module = tf.Module()
    module.table = tf.Variable(TABLE, shape=shape)

    @tf.function(input_signature=[tf.TensorSpec([4], tf.int32)])
    def look(ids):
        return run(module.table, ids, tf.constant(WEIGHTS) if weighted else None)

    owner, function = how(module, look, tmp_path)

    def gradient(ids):
        with tf.GradientTape() as tape:
            y = function(ids)
        return tape.gradient(y, owner.table)

    ids = tf.constant(IDS)
    assert gradient_of_rows(gradient(ids)) == expected[weighted]
    for _ in range(2):

        @tf.function
        def step(ids):
            slices = gradient(ids)
            assert isinstance(slices, tf.IndexedSlices)
            return slices

        assert gradient_of_rows(step(ids)) == expected[weighted]
        assert gradient_of_rows(gradient(ids)) == expected[weighted]


INSIDE = {
    "cond": lambda look: tf.cond(tf.size(IDS) > 0, look, lambda: 2 * look()),
    "switch_case": lambda look: tf.switch_case(tf.size(IDS) - 3, [lambda: 2 * look(), look]),
    "while_loop": lambda look: tf.while_loop(
        lambda k, _: k < 1, lambda k, y: (k + 1, y + look()), (0, tf.zeros([2, 3]))
    )[1],
    "map_fn": lambda look: tf.map_fn(lambda _: look(), tf.zeros([1]))[0],
    "scan": lambda look: tf_ti.scan(lambda y, _: (y + look(), None), tf.zeros([2, 3]), length=1)[0],
}


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("inside", INSIDE)
def test_a_function_within_has_gradients_in_control_flow_as_by_itself(inside, weighted):
    table, weights = tf.Variable(TABLE), tf.Variable(WEIGHTS)

    @tf.function
    def look():
        given = {"per_sample_weights": weights[:, tf.newaxis]} if weighted else {}
        rows = tf_ti.embedding_bag_packed(table, tf.constant(IDS)[:, tf.newaxis], **given)
        return tf.reduce_sum(tf.reshape(rows, [2, 2, 3]) ** 2, 1)

    def gradients(run):
        with tf.GradientTape() as tape:
            y = run(look)
        found = tape.gradient(y, [table, weights], unconnected_gradients="zero")
        return [tf.convert_to_tensor(gradient) for gradient in found]

    expected = gradients(lambda look: look())
    for _ in range(2):
        for call in (gradients, tf.function(gradients, autograph=False)):
            for found, right in zip(call(INSIDE[inside]), expected, strict=True):
                np.testing.assert_allclose(found, right)


# Threads


def test_many_threads_call_eagerly_and_take_gradients():
    table = tf.Variable(TABLE)

    def call(i):
        with tf.GradientTape() as tape:
            y = sums(table, tf.constant([i % 5] * 1000), [0])
        return y[0, 0].numpy(), gradient_of_rows(tape.gradient(y, table))[i % 5]

    assert in_threads(call, times=10) == [[(1000 * TABLE[i % 5, 0], 1000)] * 10 for i in range(8)]


def test_many_threads_run_one_function():
    table = tf.Variable(TABLE)
    call = tf.function(lambda ids: sums(table, ids, [0])[0, 0])
    results = in_threads(lambda i: float(call(tf.constant([i % 5] * 1000))), times=10)
    assert results == [[1000 * TABLE[i % 5, 0]] * 10 for i in range(8)]


BITS = """
import hashlib, sys
import numpy as np
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
import tf_ti

rng = np.random.default_rng(0)
count = 60_000
zipf = np.minimum(rng.zipf(1.2, count) - 1, 9_999)
uniform = rng.integers(0, 10_000, count)
offsets = {
    "even": np.arange(0, count, 20),
    "giant": np.array([0, 0, 7, count - 990, count - 990, count - 10]),
    "mixed": np.sort(np.concatenate([np.zeros(20_000, int), rng.integers(0, count + 1, 300)])),
}
for dtype, width in ((tf.float32, 33), (tf.float16, 16)):
    table = tf.Variable(tf.constant(rng.standard_normal([10_000, width]), dtype))
    weights = tf.constant(rng.standard_normal(count), dtype)
    for ids_name, ids in (("zipf", zipf), ("uniform", uniform)):
        for offsets_name, starts in offsets.items():
            for case in ("mean", "max", "weighted", "max_norm"):
                digest = hashlib.sha256()
                with tf.GradientTape() as tape:
                    tape.watch(weights)
                    y = tf_ti.embedding_bag_offsets(
                        table, ids, starts, 5, weights if case == "weighted" else None,
                        case if case in ("mean", "max") else "sum",
                        max_norm=2.0 if case == "max_norm" else None)
                    loss = tf.reduce_sum(y * y)
                of_table, of_weights = tape.gradient(loss, [table, weights])
                found = [y, of_table.values, of_table.indices]
                if of_weights is not None:
                    found.append(of_weights)
                for value in found:
                    digest.update(value.numpy().tobytes())
                print(dtype.name, ids_name, offsets_name, case, digest.hexdigest()[:16])
"""


@pytest.mark.slow
def test_results_and_gradients_are_bitwise_equal_for_any_number_of_threads(run_program):
    one, other = [run_program(BITS, count).stdout.splitlines() for count in (1, 3)]
    assert len(one) == 2 * 2 * 3 * 4
    assert other == one


@pytest.mark.slow
def test_a_bag_sees_a_variable_before_or_after_an_update_but_not_amid_it(run_program):
    run_program("""
        import threading
        import numpy as np
        import tensorflow as tf
        tf.config.threading.set_intra_op_parallelism_threads(4)
        import tf_ti

        rows, width = 2000, 64
        table = tf.Variable(tf.zeros([rows, width]))
        values = [tf.fill([rows, width], float(k)) for k in range(8)]
        rng = np.random.default_rng(0)
        ids = tf.constant(rng.integers(0, rows, 20_000))
        offsets = tf.range(0, 20_000, 200, tf.int64)
        weights = tf.ones([20_000])
        errors, outcomes, rounds = [], set(), []

        def goes_on():  # until each has met all the others
            is_enough = min(rounds) >= 100 and outcomes == {"value", "error"}
            return not errors and not is_enough

        def guarded(run):
            index = len(rounds)
            rounds.append(0)
            def loop():
                try:
                    while goes_on():
                        run(rounds[index])
                        rounds[index] += 1
                except BaseException as error:
                    errors.append(error)
            return loop

        def one_value(y):
            assert np.all(y == y.flat[0]), y
            assert y.flat[0] in range(0, 1600, 200), y

        def forward(k):
            one_value(tf_ti.embedding_bag_offsets_sum(table, ids, offsets).numpy())

        def weighted(k):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                y = tf_ti.embedding_bag_offsets_sum(table, ids, offsets, None, weights)
            one_value(y.numpy())
            of_weights = tape.gradient(y, weights).numpy()
            assert np.all(of_weights == of_weights[0]), of_weights

        forward(0)
        threads = [
            guarded(lambda k: table.assign(values[k % 8])),
            guarded(forward), guarded(weighted)]

        # Of a variable that changes its shape an id is there or it is not.
        growing = tf.Variable(tf.ones([3, 4]), shape=tf.TensorShape([None, None]))
        shapes = [tf.ones([3, 4]), tf.ones([900, 4]), tf.ones([3, 1000]), tf.ones([0, 7])]

        def lookup(k):
            try:
                y = tf_ti.embedding_bag_offsets_sum(growing, [0, 2, 700], [0, 2]).numpy()
                assert y.shape == (2, 4) and y.tolist() == [[2] * 4, [1] * 4], y
                outcomes.add("value")
            except tf.errors.InvalidArgumentError as error:
                assert "700" in str(error) or "indices[0] is 0" in str(error), error
                outcomes.add("error")

        threads += [guarded(lambda k: growing.assign(shapes[k % 4])), guarded(lookup)]

        # Updates of rows happen beside reads, as tf.gather has it; nothing else may happen.
        scattered = tf.Variable(tf.zeros([rows, width]))
        some = tf.constant(np.arange(0, rows, 3))
        def scatter(k):
            update = tf.IndexedSlices(tf.fill([len(some), width], float(k % 2)), some)
            scattered.scatter_update(update)
        def read(k):
            y = tf_ti.embedding_bag_offsets(scattered, ids, offsets, reduction="max").numpy()
            assert np.all((y == 0) | (y == 1)), y
        threads += [guarded(scatter), guarded(read)]

        threads = [threading.Thread(target=run) for run in threads]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        if errors: raise errors[0]
    """)


# Memory


MEMORY = """
import gc, pathlib, re, sys
import numpy as np
import tensorflow as tf
import tf_ti

def status(name):
    text = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"^{name}:\\s*(\\d+) kB$", text, re.M).group(1)) / 2**10

# MB in use; the peak starts again from there.
def now():
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")

def peak():
    return status("VmHWM")

rng = np.random.default_rng(0)
"""


@pytest.mark.slow
@measures_memory
def test_a_bag_of_a_variable_never_copies_the_table(run_program):
    run_program(
        MEMORY
        + """
rows, width = 2**20, 64  # 256 MB
table = tf.Variable(tf.zeros([rows, width]))
update = tf.IndexedSlices(tf.ones([2, width]), [1, rows - 1])
table.scatter_update(update)
shards = [table, table]
ids = tf.constant(rng.integers(0, rows, 4096))
offsets = tf.range(0, 4096, 16, tf.int64)
ragged = tf.RaggedTensor.from_row_starts(ids, offsets)
weights = tf.ones([4096])
sgd = tf.keras.optimizers.SGD(0.1)

def step():
    with tf.GradientTape() as tape:
        tape.watch(weights)
        y = tf_ti.embedding_bag_offsets_sum(table, ids, offsets, 1, weights)
        y += tf_ti.embedding_bag_offsets(table, ids, offsets, 1, reduction="mean")
        y += tf_ti.embedding_bag_offsets(table, ids, offsets, 1, reduction="max")
        y += tf_ti.embedding_bag_offsets_sum(table, ids, offsets, max_norm=1.0)
    of_table, of_weights = tape.gradient(y, [table, weights])
    table.scatter_sub(tf.IndexedSlices(of_table.values, of_table.indices))
    return of_weights

def forward():
    tf_ti.embedding_bag_offsets_sum(table, ids, offsets)
    tf_ti.embedding_bag_packed(table, tf.reshape(ids, [64, 64]), reduction="mean")
    tf_ti.embedding_segments_sum(table, ids, tf.repeat(tf.range(64, dtype=tf.int64), 64), 64)
    for combiner in ("sum", "mean", "sqrtn", "max"):
        tf_ti.embedding_bag(table, ragged, combiner=combiner, default_index=1)
        tf_ti.embedding_bag(shards, ragged, combiner=combiner, default_index=1)

# Memory that was freed may be kept for the next who wants some. It is used up once a copy of the
# table, which every read makes after the update, needs more.
copies, grown = [], 0
while grown < 200:
    assert len(copies) < 8, grown
    before = now()
    copies.append(table.read_value())
    grown = peak() - before

before = now()
for run in (forward, tf.function(forward), step, tf.function(step)):
    for _ in range(2):
        run()
        table.scatter_update(update)
tf_ti.advise_huge_pages(table)
forward()
grown = peak() - before
assert grown < 100, grown
"""
    )


def test_the_gathered_rows_are_nowhere_in_memory(run_program):
    run_program(
        MEMORY
        + """
table = tf.Variable(tf.zeros([5000, 64]))
count = 2**21  # their rows are 512 MB
ids = tf.constant(rng.integers(0, 5000, count).astype(np.int32))
weights = tf.ones([count])

def call(ids, weights, offsets):
    with tf.GradientTape() as tape:
        tape.watch(weights)
        y = tf_ti.embedding_bag_offsets_sum(table, ids, offsets, 1, weights)
    return y, tape.gradient(y, [table, weights])

call(ids[:64], weights[:64], tf.range(0, 64, 16))
for offsets in (tf.range(0, count, 64), tf.constant([0, 0, count - 5])):
    before = now()
    y = tf_ti.embedding_bag_offsets_sum(table, ids, offsets, 1, weights)
    forward = peak() - before
    assert forward < 60, forward  # an output of 8 MB
    y, (of_table, of_weights) = call(ids, weights, offsets)
    assert of_table.values.shape == [5000, 64]
    assert peak() - before < 300, peak() - before
"""
    )


@pytest.mark.slow
def test_memory_does_not_grow_over_repeated_calls(run_program):
    run_program(
        MEMORY
        + """
def resident():
    gc.collect()
    return now()

table = tf.Variable(tf.ones([10_000, 64]))
ids = tf.constant(rng.integers(0, 10_000, 20_000))
offsets = tf.range(0, 20_000, 2, tf.int64)
weights = tf.ones([20_000])

def forward():
    return tf_ti.embedding_bag_offsets_sum(table, ids, offsets, 1, weights)
def gradient():
    with tf.GradientTape() as tape:
        tape.watch(weights)
        y = forward() + tf_ti.embedding_bag_offsets(table, ids, offsets, reduction="max")
    return tape.gradient(y, [table, weights])
def failing():
    try:
        tf_ti.embedding_bag_offsets_sum(table, ids + 5000, offsets)
    except tf.errors.InvalidArgumentError:
        return
    raise AssertionError("no error")

calls = {"forward": forward, "function": tf.function(forward), "gradient": gradient,
         "gradient in a function": tf.function(gradient), "failing": failing,
         "advice": lambda: tf_ti.advise_huge_pages(table)}
for name, call in calls.items():
    sizes = []
    for _ in range(10):
        for _ in range(6):
            call()
        sizes.append(resident())
    # An allocator keeps some memory at times; a leak takes more every time.
    grown = min(after - before for before, after in zip(sizes, sizes[1:]))
    assert grown < 2, (name, sizes)
"""
    )


# Graphs that Grappler and XLA rewrite give what eager calls give


def ways(pool):
    """A function, eagerly, in a graph and compiled."""
    functions = (tf.function(pool, autograph=False, jit_compile=jit) for jit in (False, True))
    return [pool, *functions]


@pytest.mark.parametrize("form", ["ragged", "sparse", "dense"])
def test_pruning_leaves_nan_out(form):
    table = tf.constant([[1.0], [10.0], [100.0]])
    ids = tf.constant([[0, 1, 2], [2, 0, -1]])
    weights = tf.constant([[np.nan, 2.0, np.inf], [1.0, -0.0, 3.0]])
    # What is kept: nothing beside a NaN, zero or an id below 0.
    expected = {"mean": [[np.nan], [100.0]], "sqrtn": [[np.nan], [100.0]]}
    finite = tf.where(tf.math.is_inf(weights), 4.0, weights)
    expected_finite = {"mean": [[420 / 6], [100.0]], "sqrtn": [[420 / 20**0.5], [100.0]]}

    def shaped(values):
        if form == "dense":
            return values
        ragged = tf.RaggedTensor.from_tensor(values)
        return ragged if form == "ragged" else ragged.to_sparse()

    def pool(ids, weights, finite):
        return [
            tf_ti.embedding_bag(table, ids, given, combiner, prune_invalid=True)
            for given in (weights, finite)
            for combiner in ("mean", "sqrtn")
        ]

    right = [*expected.values(), *expected_finite.values()]
    for way in ways(pool):
        found = way(*map(shaped, (ids, weights, finite)))
        for actual, each in zip(found, right, strict=True):
            np.testing.assert_allclose(actual, each, 1e-6)


@pytest.mark.parametrize("max_norm", [1.0, 0.3, 7.0])
def test_rows_within_a_norm_keep_their_bits(max_norm):
    table = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32)
    table *= np.float32(max_norm / 4)
    ids = tf.constant(np.arange(200)[:, np.newaxis])
    types = (1.0, 2.0, 3.0, np.inf)
    norms = [np.linalg.norm(table.astype(np.float64), kind, axis=1) for kind in types]

    def pool(ids):
        return [
            tf_ti.embedding_bag(table, ids, max_norm=max_norm, norm_type=kind) for kind in types
        ]

    for way in ways(pool):
        for actual, norm in zip(way(ids), norms, strict=True):
            is_within = norm < max_norm * (1 - 1e-5)
            np.testing.assert_array_equal(actual[is_within], table[is_within])
            scaled = table * np.minimum(1, max_norm / norm)[:, np.newaxis]
            np.testing.assert_allclose(actual, scaled, 1e-5)
