"""The README's claims on deployment and limits: hosts, freezing, converters, Keras, XLA."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import convert_to_constants
from tensorflow.python.tools import saved_model_aot_compile, saved_model_utils

import tf_ti
from tf_ti import _library

compiles = pytest.mark.skipif(_library.XLA_PROBLEM is not None, reason=str(_library.XLA_PROBLEM))

TABLE = np.float32([[0, 1], [2, 3], [4, 5], [6, 7]])
IDS = np.int32([[0, 1, 2], [3, 3, 3]])


class Model(tf.Module):
    """A loop whose body has bags of a variable, and reads another one."""

    def __init__(self):
        self.rate = tf.Variable(1.5)
        self.table = tf.Variable(TABLE)

    @tf.function(input_signature=[tf.TensorSpec([2, 3], tf.int32, name="ids")])
    def __call__(self, ids):
        def body(total, ids):
            bag = tf_ti.embedding_bag(self.table, ids[tf.newaxis])[0]
            return total * self.rate + bag, None

        return {"total": tf_ti.scan(body, tf.zeros([2]), ids)[0]}


def total(ids=IDS):
    value = np.zeros(2)
    for row in ids:
        value = value * 1.5 + TABLE[row].sum(0)
    return value.tolist()


@pytest.fixture
def saved(tmp_path):
    model = Model()
    tf.saved_model.save(model, str(tmp_path / "model"), model.__call__)
    return tmp_path / "model"


# Hosts


def test_the_c_api_runs_a_saved_model_once_it_has_loaded_the_library(saved, run_program):
    program = """
        import array, ctypes, sys
        from ctypes import c_char_p, c_int, c_int64, c_size_t, c_void_p

        library, ops, model = sys.argv[1:]
        tf = ctypes.CDLL(library)

        def call(name, result, *arguments):
            function = getattr(tf, name)
            function.restype = result
            return function(*arguments)

        class Output(ctypes.Structure):
            _fields_ = [("operation", c_void_p), ("index", c_int)]

        def operation(name):
            found = call("TF_GraphOperationByName", c_void_p, graph, c_char_p(name))
            return Output(found, 0)

        status = c_void_p(call("TF_NewStatus", c_void_p))
        call("TF_LoadLibrary", c_void_p, c_char_p(ops.encode()), status)
        graph = c_void_p(call("TF_NewGraph", c_void_p))
        options = c_void_p(call("TF_NewSessionOptions", c_void_p))
        tags = (c_char_p * 1)(b"serve")
        session = c_void_p(call("TF_LoadSessionFromSavedModel", c_void_p, options, None,
                                c_char_p(model.encode()), tags, 1, graph, None, status))
        print(call("TF_Message", c_char_p, status).decode())
        ids = array.array("i", [0, 1, 2, 3, 3, 3]).tobytes()
        tensor = call("TF_AllocateTensor", c_void_p, 3, (c_int64 * 2)(2, 3), 2, c_size_t(len(ids)))
        ctypes.memmove(call("TF_TensorData", c_void_p, c_void_p(tensor)), ids, len(ids))
        inputs, results = (c_void_p * 1)(tensor), (c_void_p * 1)()
        call("TF_SessionRun", None, session, None,
             ctypes.byref(operation(b"serving_default_ids")), inputs, 1,
             ctypes.byref(operation(b"StatefulPartitionedCall")), results, 1,
             None, 0, None, status)
        print(call("TF_Message", c_char_p, status).decode())
        data = call("TF_TensorData", c_void_p, c_void_p(results[0]))
        print((ctypes.c_float * 2).from_address(data)[:])
    """
    library = pathlib.Path(tf.__file__).with_name("libtensorflow_cc.so.2")
    finished = run_program(program, library, _library._PATH, saved, is_first=True)
    assert finished.stdout.splitlines() == ["", "", str(total())]


@pytest.mark.slow
def test_saved_model_cli_runs_a_saved_model(saved, run_program):
    finished = run_program(
        "import tf_ti\n"
        "from tensorflow.python.tools import saved_model_cli\n"
        "saved_model_cli.main()\n",
        *["run", "--dir", saved, "--tag_set", "serve", "--signature_def", "serving_default"],
        *["--input_exprs", f"ids={IDS.tolist()}"],
    )
    assert "Result for output key total:\n[27.  34.5]" in finished.stdout
    assert total() == [27, 34.5]


@compiles
def test_an_object_compiled_ahead_of_time_calls_nothing_of_tf_ti(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("TF_TI_XLA_BAGS", "hlo")
    saved_model_aot_compile.aot_compile_cpu_meta_graph_def(
        checkpoint_path=str(saved / "variables" / "variables"),
        meta_graph_def=saved_model_utils.get_meta_graph_def(str(saved), "serve"),
        output_prefix=str(tmp_path / "net"),
        signature_def_key="serving_default",
        cpp_class="Net",
        target_triple="x86_64-pc-linux",
        target_cpu="",
    )
    assert "(arg0: s32[2,3]) -> (f32[2])" in (tmp_path / "net.h").read_text()
    for file in tmp_path.glob("net*.o"):
        assert b"tf_ti." not in file.read_bytes()  # the targets of custom calls


# Freezing


def freeze(function, *specs):
    concrete = tf.function(function).get_concrete_function(*specs)
    frozen = convert_to_constants.convert_variables_to_constants_v2(concrete)
    assert not frozen.variables
    assert tf.resource not in [tensor.dtype for tensor in frozen.inputs]
    return frozen


IDS_SPEC = tf.TensorSpec([None, None], tf.int32)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "max"])
@pytest.mark.parametrize("kind", ["packed", "offsets", "segments"])
def test_frozen_bags_are_those_of_the_value_that_the_variable_had(combiner, kind):
    table = tf.Variable(TABLE)

    def pool(ids):
        if kind == "offsets":
            ids = tf.RaggedTensor.from_tensor(ids)
        elif kind == "segments":
            ids = tf.sparse.from_dense(ids)
        return tf_ti.embedding_bag(table, ids, combiner=combiner)

    frozen = freeze(pool, IDS_SPEC)
    table.assign(-table)
    ids = np.int32([[1, 2, 1], [3, 3, 1]])
    reduced = {"sum": np.sum, "mean": np.mean, "max": np.max}
    reduced["sqrtn"] = lambda rows, axis: np.sum(rows, axis) / np.sqrt(3)
    expected = reduced[combiner](TABLE[ids], axis=1)
    np.testing.assert_allclose(frozen(tf.constant(ids))[0], expected, rtol=1e-6)


def test_bags_in_a_frozen_loops_body():
    model = Model()
    frozen = freeze(model, tf.TensorSpec([2, 3], tf.int32))
    assert frozen(tf.constant(IDS))[0].numpy().tolist() == total()


def test_what_was_frozen_still_runs_and_follows_its_variables():
    model = Model()
    freeze(model, tf.TensorSpec([2, 3], tf.int32))
    model.table.assign(2 * model.table)
    assert model(tf.constant(IDS))["total"].numpy().tolist() == (2 * np.array(total())).tolist()


def test_bags_in_a_frozen_loops_loop():
    table = tf.Variable(TABLE)

    def row_sum(total, id):
        return total + tf_ti.embedding_bag(table, id[tf.newaxis]), None

    def sums(ids):
        def body(total, ids):
            return tf_ti.scan(row_sum, total, ids)[0], None

        return tf_ti.scan(body, tf.zeros([2]), ids)[0]

    frozen = freeze(sums, IDS_SPEC)
    assert frozen(tf.constant(IDS))[0].numpy().tolist() == TABLE[IDS].sum((0, 1)).tolist()


def test_bags_in_a_frozen_loops_condition():
    limits, step = tf.Variable([[100.0], [5.0], [2.0]]), tf.Variable([[0.0], [3.0]])

    def count(ids):
        with tf_ti.Loop() as loop:
            x = loop.add_recurrence(0.0)
            limit = tf_ti.embedding_bag(limits, ids)[0, 0]
            loop.add_trip_limit(x < limit, tf_ti.TripLimit.WHILE)
            x.next = x + tf_ti.embedding_bag(step, tf.ones_like(ids))[0, 0] / 2
            last = loop.add_loop_output(x, tf_ti.LoopOutput.LAST_VALUE)
        return last.tensor

    frozen = freeze(count, IDS_SPEC)
    assert frozen(tf.constant([[1, 2]]))[0].numpy() == 9.0  # in steps of 3 beyond 5 + 2


def test_a_frozen_loops_count_may_be_a_constant_that_was_captured():
    table, years = tf.Variable(TABLE), tf.constant(3)

    def grow(ids):
        return tf_ti.tensor_iterator(
            lambda x, ids: x + tf_ti.embedding_bag(table, ids),
            [tf.zeros([2, 2]), ids],
            tf_ti.PortMap(
                inputs=[tf_ti.InputPort(0, 0), tf_ti.InputPort(1, 1)],
                outputs=[tf_ti.OutputPort(0, 0)],
            ),
            [tf_ti.BackEdge(0, 0)],
            num_iterations=years,
        )[0]

    frozen = freeze(grow, tf.TensorSpec([2, 3], tf.int32))
    expected = 3 * TABLE[IDS].sum(1)
    np.testing.assert_array_equal(frozen(tf.constant(IDS))[0], expected)


TABLES = {
    "whole": (TABLE, None),
    "of an open number of rows": (TABLE, [None, 2]),
    "of numbers": (TABLE[:, 1], None),
}


def in_a_loop(table, ids):
    def body(total, ids):
        return total + tf_ti.embedding_bag(table, ids[tf.newaxis])[0], None

    return tf_ti.scan(body, tf.zeros(table.shape[1:]), ids)[0]


def in_a_branch(table, ids):
    # TensorFlow has no zeros for a branch without a variable of an open shape.
    def first():
        return tf.gather(table, ids[:, 0])

    return tf.cond(tf.size(ids) > 0, lambda: tf_ti.embedding_bag(table, ids), first)


LOOK_UPS = {
    "gather": lambda table, ids: tf.reduce_sum(tf.gather(table, ids), 1),
    "in a loop": in_a_loop,
    "in a branch": in_a_branch,
    "in a function": tf.function(lambda table, ids: tf_ti.embedding_bag(table, ids)),
    "several": lambda table, ids: tf_ti.embedding_bags([table, table], [ids, ids])[1],
    "max_norm": lambda table, ids: tf_ti.embedding_bag(table, ids, max_norm=2.0),
    "ragged": lambda table, ids: tf_ti.embedding_bag(table, tf.RaggedTensor.from_tensor(ids)),
    "sparse": lambda table, ids: tf_ti.embedding_bag(table, tf.sparse.from_dense(ids)),
    **{
        combiner: lambda table, ids, combiner=combiner: tf_ti.embedding_bag(
            table, ids, combiner=combiner
        )
        for combiner in ("sum", "mean", "sqrtn", "max")
    },
}


@pytest.mark.parametrize("look_up", LOOK_UPS)
@pytest.mark.parametrize("kind", TABLES)
def test_gradients_of_look_ups_are_frozen(kind, look_up):
    value, shape = TABLES[kind]
    table = tf.Variable(value, shape=shape)

    def slopes(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(LOOK_UPS[look_up](table, ids) ** 2)
        return tf.convert_to_tensor(tape.gradient(loss, table))

    ids = tf.constant([[1, 2, 1], [3, 3, 1]])
    expected = slopes(ids)
    frozen = freeze(slopes, IDS_SPEC)
    table.assign(-table)
    np.testing.assert_allclose(frozen(ids)[0], expected, rtol=1e-6)


def test_a_frozen_function_that_is_called_twice_with_the_gradient_of_a_loop():
    table = tf.Variable(TABLE, shape=[None, 2])

    @tf.function
    def slopes(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(in_a_loop(table, ids) ** 2)
        return tf.convert_to_tensor(tape.gradient(loss, table))

    def call(ids):
        return slopes(ids) + 2.0 * slopes(ids[::-1])

    ids = tf.constant([[1, 2, 1], [3, 3, 1]])
    expected = call(ids)
    np.testing.assert_allclose(freeze(call, IDS_SPEC)(ids)[0], expected, rtol=1e-6)


def test_a_frozen_gradient_of_a_gradient():
    table = tf.Variable(TABLE)

    def slopes(ids):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_ti.embedding_bag(table, ids) ** 3)
            slope = tf.convert_to_tensor(tape.gradient(loss, table))
            square = tf.reduce_sum(slope**2)
        return tf.convert_to_tensor(outer.gradient(square, table))

    ids = tf.constant([[1, 2, 1], [3, 3, 1]])
    expected = slopes(ids)
    np.testing.assert_allclose(freeze(slopes, IDS_SPEC)(ids)[0], expected, rtol=1e-6)


def test_freezing_a_sessions_graph():
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        model = Model()
        ids = tf.compat.v1.placeholder(tf.int32, [2, 3], "ids")
        tf.identity(model(ids)["total"], "total")
        session.run(tf.compat.v1.global_variables_initializer())
        frozen = tf.compat.v1.graph_util.convert_variables_to_constants(
            session, graph.as_graph_def(), ["total"]
        )
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        got = tf.graph_util.import_graph_def(frozen, return_elements=["total:0"], name="")
        assert session.run(got, {"ids:0": IDS})[0].tolist() == total()


def rows_of(look_up):
    """Bodies that look rows up, in loops of tf_ti and of TensorFlow, and in branches there."""

    def branch(table, ids):
        zeros = tf.zeros(table.shape[1:])
        return tf.cond(ids[0] > 1, lambda: look_up(table, ids), lambda: zeros)

    def scan(look_up):
        def body(total, ids):
            return 0.5 * total + look_up(table_of_call[0], ids), None

        return lambda ids, zeros: tf_ti.scan(body, zeros, ids)[0]

    def while_loop(look_up):
        def body(k, ids, total):
            return k + 1, ids, 0.5 * total + look_up(table_of_call[0], ids[k])

        return lambda ids, zeros: tf.while_loop(
            lambda k, ids, _: k < tf.shape(ids)[0], body, (0, ids, zeros)
        )[2]

    table_of_call = []

    def calls(loop):
        def call(table, ids):
            table_of_call[:] = [table]
            return loop(ids, tf.zeros(table.shape[1:]))

        return call

    forms = {
        "scan": scan(look_up),
        "while_loop": while_loop(look_up),
        "branch in a scan": scan(branch),
        "branch in a while_loop": while_loop(branch),
    }
    return {name: calls(loop) for name, loop in forms.items()}


IN_BODIES = {
    f"{name}, {form}": call
    for name, look_up in {
        "gather": lambda table, ids: tf.reduce_sum(tf.gather(table, ids), 0),
        "gather_nd": lambda table, ids: tf.reduce_sum(tf.gather_nd(table, ids[:, None]), 0),
        "bag": lambda table, ids: tf_ti.embedding_bag(table, ids[None])[0],
        "max_norm": lambda table, ids: tf_ti.embedding_bag(table, ids[None], max_norm=2.0)[0],
    }.items()
    for form, call in rows_of(look_up).items()
}


@pytest.mark.parametrize("is_gradient", [False, True], ids=["value", "gradient"])
@pytest.mark.parametrize("name", IN_BODIES)
def test_look_ups_in_bodies_are_frozen(name, is_gradient):
    table = tf.Variable(TABLE)

    def call(ids):
        if not is_gradient:
            return IN_BODIES[name](table, ids)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(IN_BODIES[name](table, ids) ** 2)
        return tf.convert_to_tensor(tape.gradient(loss, table))

    ids = tf.constant([[1, 2, 1], [3, 3, 1]])
    expected = call(ids)
    frozen = freeze(call, IDS_SPEC)
    table.assign(-table)
    np.testing.assert_allclose(frozen(ids)[0], expected, rtol=1e-6)


def test_a_gather_in_batches_from_a_variable_is_not_frozen():
    table = tf.Variable(TABLE)

    def gather(ids):
        rows = tf.raw_ops.ResourceGather(
            resource=table.handle, indices=ids, dtype=table.dtype, batch_dims=1
        )
        return rows, table.read_value()

    with pytest.raises(ValueError, match="gathers in batches"):
        freeze(gather, tf.TensorSpec([table.shape[0], 1], tf.int32))


def test_a_body_that_two_frozen_loops_share():
    table, captured = tf.Variable(TABLE), tf.constant(IDS)

    @tf.function
    def body(total, ids):
        return total + tf_ti.embedding_bag(table, ids[tf.newaxis]), None

    def run(ids):
        return [tf_ti.scan(body, tf.zeros([1, 2]), ids)[0] for ids in (ids, captured)]

    frozen = freeze(run, tf.TensorSpec([2, 3], tf.int32))
    for got, rows in zip(frozen(tf.constant(IDS[::-1] // 2)), (IDS // 2, IDS)):
        assert got[0].numpy().tolist() == TABLE[rows].sum((0, 1)).tolist()


# Converters, and what else knows TensorFlow's own ops only


def test_tflite_says_which_op_it_does_not_know(saved):
    converter = tf.lite.TFLiteConverter.from_saved_model(str(saved))
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    message = "TfTi>TensorIterator' op is neither a custom op nor a flex op"
    with pytest.raises(Exception, match=message):
        converter.convert()


def test_openvino_says_which_op_it_does_not_know(saved, run_program):
    pytest.importorskip("openvino")
    program = "import openvino, sys; openvino.convert_model(sys.argv[1])"
    finished = run_program(program, saved, check=False, is_first=True)
    assert "No conversion rule found for operations: TfTi>TensorIterator" in finished.stderr


# Keras


X = tf.ones([5, 1, 40])


def dropping_cell():
    """A cell of which each result is 0 or 2 times its input."""
    cell = keras.layers.SimpleRNNCell(
        40,
        activation=None,
        kernel_initializer="identity",
        recurrent_initializer="zeros",
        dropout=0.5,
    )
    cell.build([None, 40])

    def body(h, x):
        y, h = cell(x, h, training=True)
        return h, y

    return cell, body


def reset(cell):
    cell.reset_dropout_mask()
    cell.reset_recurrent_dropout_mask()


def test_a_cells_dropout_mask_is_left_over_from_one_trace_to_the_next():
    _, body = dropping_cell()
    tf_ti.scan(body, [X[0]], X)
    with pytest.raises(TypeError, match="out of scope"):
        tf_ti.scan(body, [X[0]], X)


def test_a_body_that_resets_the_masks_has_others_in_each_iteration():
    cell, body = dropping_cell()

    def resetting(h, x):
        reset(cell)
        return body(h, x)

    for _ in range(2):
        rows = tf_ti.scan(resetting, [X[0]], X)[1].numpy()
        assert {*rows.ravel()} == {0, 2}
        assert len({row.tobytes() for row in rows}) == 5


def test_masks_made_before_the_loop_are_the_same_in_all_iterations():
    cell, body = dropping_cell()

    @tf.function
    def run(x):
        reset(cell)
        cell.get_dropout_mask(x[0])
        cell.get_recurrent_dropout_mask(x[0])
        return tf_ti.scan(body, [x[0]], x)[1]

    for x in (X, X, X[:4]):
        rows = run(x).numpy()
        assert {*rows.ravel()} == {0, 2}
        assert len({row.tobytes() for row in rows}) == 1


def test_the_gradient_of_a_table_that_a_body_looks_up_has_rows_of_each_iteration():
    table = tf.Variable(TABLE)

    def body(total, ids):
        return total + tf.reduce_sum(tf_ti.embedding_bag(table, ids[tf.newaxis])), None

    with tf.GradientTape() as tape:
        total = tf_ti.scan(body, 0.0, IDS)[0]
    assert sorted(tape.gradient(total, table).indices.numpy()) == [0, 1, 2, 3]


# XLA


@pytest.mark.slow
@compiles
def test_rounded_batches_are_compiled_once_and_others_for_each_number_of_ids(run_program, tmp_path):
    program = """
        import os, pathlib, sys

        dumps = pathlib.Path(sys.argv[1])
        os.environ["XLA_FLAGS"] = f"--xla_dump_to={dumps}"
        import numpy as np, tensorflow as tf, tf_ti

        def rounded(ids):
            flat = tf.pad(ids.values, [[0, -tf.size(ids.values) % 16]])
            splits = tf.concat([ids.row_splits, [tf.size(flat, tf.int64)]], 0)
            return tf.RaggedTensor.from_row_splits(flat, splits, validate=False)

        @tf.function(jit_compile=True)
        def as_they_come(ids):
            return tf_ti.embedding_bag(table, ids, combiner="mean")

        @tf.function(jit_compile=True)
        def in_steps(ids):
            return tf_ti.embedding_bag(table, ids, combiner="mean")[:-1]

        table = tf.Variable(tf.random.normal([10, 4]))
        ids = tf.ragged.constant([[1, 2], [3], [4, 5, 6], [], [7], [8], [9], [1, 1, 1]], tf.int64)
        batches = tf.data.Dataset.from_tensor_slices(ids).batch(2)
        for batch, longer in zip(batches, batches.map(rounded)):
            np.testing.assert_allclose(in_steps(longer), as_they_come(batch), rtol=1e-6)
        for function in ("as_they_come", "in_steps"):
            print(len([*dumps.glob(f"*_{function}_*before_optimizations.txt")]))
    """
    finished = run_program(program, tmp_path / "dumps", is_first=True)
    assert finished.stdout.splitlines() == ["3", "1"]  # for 3, 3, 2 and 4 ids
