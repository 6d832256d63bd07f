"""OpenVINO's IR: models loaded by `tf_ti.openvino` beside OpenVINO, at running and at reading.

Networks of convolutions stand beside Keras's own too, of which `tf_ti.openvino.save` wrote them.

A loaded model is measured inside one graph, several runs in a row, each from the hidden state that
the last one left; OpenVINO is called once a run. Every case is checked before it is timed.
"""

import pathlib
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

import tf_ti.openvino
from benchmarks import cells, harness
from benchmarks.recurrent_peers import (
    Layer,
    openvino_cell,
    openvino_compiled,
    openvino_plain_ops,
)

THREADS = 2
OURS, OPENVINO = "tf_ti.openvino.load", "OpenVINO"
SEQUENCE = "TfTi>RecurrentSequence"
CELL = "LSTMCell"
BODIES = {CELL: openvino_cell, "the cell in plain ops": openvino_plain_ops}
# Time, batch, input, hidden; and the number of runs in one graph.
SIZES = {(25, 1, 512, 256): 20, (200, 1, 8, 8): 100, (100, 32, 64, 64): 10}

TRAINABLE, TRACED = "tf_ti.openvino.load, trainable", "tf_ti.openvino.load, and traced"
KERAS = "Keras"
READ, READ_COPIED = "OpenVINO read_model, mapped", "OpenVINO read_model, copied"
# Layers, and the extent of each one's matrix: 100 MB.
MODELS = {"25 layers of 4 MB": (25, 1024), "500 layers of 200 kB": (500, 224)}


def run(quick: bool) -> Iterator[harness.Table]:
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    with tempfile.TemporaryDirectory() as folder:
        for body in BODIES:
            yield iterators(pathlib.Path(folder), body, 3 if quick else 9)
        yield loading(pathlib.Path(folder), 3 if quick else 7)
        yield networks(pathlib.Path(folder), 3 if quick else 9)


# --- running -------------------------------------------------------------------------------------


def iterators(folder: pathlib.Path, body: str, repeats: int) -> harness.Table:
    table = harness.Table(
        f"TensorIterator around {body}, at (time, batch, input, hidden), {THREADS} threads",
        "us a run",
        [],
        reference=OURS,
        notes=[
            "the first one is the documents' Example 2",
            "tf_ti: some runs in a row in one graph; OpenVINO: one call a run",
        ],
        picture="openvino-cell" if body == CELL else "openvino-plain-ops",
    )
    for sizes, runs in SIZES.items():
        layer = Layer.random("lstm", *sizes)
        path = folder / "iterator.xml"
        _write_iterator(path, layer, BODIES[body](layer))
        cases = {OURS: _our_case(path, layer, runs), OPENVINO: _openvino_case(path, layer)}
        seconds = harness.measure(cases, repeats)
        seconds[OURS] /= runs
        column = ", ".join(map(str, sizes))
        table.add_column(column, {name: value * 1e6 for name, value in seconds.items()})
        ratio = seconds[OURS] / seconds[OPENVINO]
        table.goals.append(harness.Goal(f"{OURS} / {OPENVINO}, {body}, at {column}", ratio, 1.0))
    return table


def _write_iterator(path: pathlib.Path, layer: Layer, step: Callable) -> None:
    """Writes Example 2: x [batch, time, input] along axis 1, the states, a cell between reshapes.

    It has the last hidden state as its second output, beside the documents' one.
    """
    import openvino
    from openvino import opset8 as op

    time, batch, inputs = layer.x.shape
    piece = op.parameter([batch, 1, inputs], np.float32)
    states = [op.parameter([batch, layer.hidden], np.float32) for _ in layer.states]
    new = step(op.reshape(piece, op.constant([batch, inputs]), False), *states)
    row = op.reshape(new[0], op.constant([batch, 1, layer.hidden]), False)
    results = [op.result(value) for value in (*new, row)]
    iterator = openvino.op.tensor_iterator()
    iterator.set_body(openvino.Model(results, [piece, *states]))
    x = op.parameter([batch, time, inputs], np.float32)
    initial = [op.parameter(state.shape, np.float32) for state in layer.states]
    iterator.set_sliced_input(piece, x.output(0), 0, 1, 1, -1, 1)
    for parameter, value, result in zip(states, initial, results):
        iterator.set_merged_input(parameter, value.output(0), result.output(0))
    y = iterator.get_concatenated_slices(results[-1].output(0), 0, 1, 1, -1, 1)
    last = iterator.get_iter_value(results[0].output(0), -1)
    model = openvino.Model([op.result(y), op.result(last)], [x, *initial])
    openvino.save_model(model, path, compress_to_fp16=False)


def _our_case(path: pathlib.Path, layer: Layer, runs: int) -> Callable:
    module = tf_ti.openvino.load(path)
    h, c = map(tf.constant, layer.states)

    def way(x, state):
        y, last = module(x, *state, c)
        return (last,), y

    case = cells.graph_of(
        lambda xs: cells.run_in_a_row(way, xs, (h,)),
        tf.constant(layer.x.transpose(1, 0, 2)),
        runs,
        jit_compile=False,
    )
    kinds = [operation.type for operation in case.get_concrete_function().graph.get_operations()]
    called = module._function.get_concrete_function().graph.get_operations()
    assert SEQUENCE in {*kinds, *(operation.type for operation in called)}
    once = module(layer.x.transpose(1, 0, 2), h, c)[1]
    np.testing.assert_allclose(once, layer.last_hidden(), rtol=1e-3, atol=1e-4)
    return case


def _openvino_case(path: pathlib.Path, layer: Layer) -> Callable:
    import openvino

    request = openvino_compiled(str(path), THREADS).create_infer_request()
    for i, array in enumerate((layer.x.transpose(1, 0, 2), *layer.states)):
        request.set_input_tensor(i, openvino.Tensor(np.ascontiguousarray(array)))

    def case():
        request.infer()
        return request.get_output_tensor(1).data

    np.testing.assert_allclose(case(), layer.last_hidden(), rtol=1e-3, atol=1e-4)
    return case


# --- loading -------------------------------------------------------------------------------------


def loading(folder: pathlib.Path, repeats: int) -> harness.Table:
    table = harness.Table(
        "Loading a model of 100 MB in float32, in the file cache",
        "ms",
        [],
        reference=OURS,
        notes=[
            "mapped, read_model reads no weights: that is left to who uses them first; "
            "tf_ti has its own copy at the end, and needs the file no more",
            "a layer: a product, a sum, Relu",
        ],
        picture="openvino-loading",
    )
    for column, (layers, extent) in MODELS.items():
        path = folder / "layers.xml"
        _write_layers(path, layers, extent)
        seconds = harness.measure(_loading_cases(str(path)), repeats, burst=0)
        table.add_column(column, {name: value * 1e3 for name, value in seconds.items()})
        ratio = seconds[OURS] / seconds[READ]
        table.goals.append(harness.Goal(f"{OURS} / {READ}, {column}", ratio, 2.0))
    return table


def _write_layers(path: pathlib.Path, layers: int, extent: int) -> None:
    import openvino
    from openvino import opset8 as op

    generator = np.random.default_rng(0)
    x = y = op.parameter([-1, extent], np.float32)
    for _ in range(layers):
        w = generator.standard_normal([extent, extent], np.float32) * extent**-0.5
        b = generator.standard_normal(extent, np.float32)
        y = op.relu(op.add(op.matmul(y, op.constant(w), False, False), op.constant(b)))
    openvino.save_model(openvino.Model([op.result(y)], [x]), path, compress_to_fp16=False)


def _loading_cases(path: str) -> dict[str, Callable]:
    import openvino

    mapping, copying = openvino.Core(), openvino.Core()
    copying.set_property({"ENABLE_MMAP": False})

    def traced():
        module = tf_ti.openvino.load(path)
        specs = [info.spec for info in module.inputs]
        return tf.function(module, autograph=False).get_concrete_function(*specs)

    return {
        OURS: lambda: tf_ti.openvino.load(path),
        TRAINABLE: lambda: tf_ti.openvino.load(path, trainable=True),
        TRACED: traced,
        READ: lambda: mapping.read_model(path),
        READ_COPIED: lambda: copying.read_model(path),
    }


# --- networks of convolutions --------------------------------------------------------------------


def networks(folder: pathlib.Path, repeats: int) -> harness.Table:
    table = harness.Table(
        f"Networks of convolutions, a batch of one, {THREADS} threads",
        "ms",
        [],
        reference=OURS,
        notes=["TensorFlow's kernels convolve for Keras and for the loaded model"],
    )
    for name, (model, shape) in _networks().items():
        x = np.random.default_rng(0).standard_normal((1, *shape)).astype(np.float32)
        path = str(folder / "network.xml")
        specs = [tf.TensorSpec(x.shape)]
        tf_ti.openvino.save(model, path, specs)
        request = openvino_compiled(path, THREADS).create_infer_request()
        loaded = tf.function(tf_ti.openvino.load(path), input_signature=specs)
        keras_own = tf.function(model, input_signature=specs)
        given = tf.constant(x)
        cases = {
            OURS: lambda loaded=loaded, given=given: loaded(given),
            KERAS: lambda keras_own=keras_own, given=given: keras_own(given),
            OPENVINO: lambda request=request, x=x: request.infer([x]),
        }
        expected = keras_own(given)
        for found in (loaded(given)[0], request.infer([x])[0]):
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
        seconds = harness.measure(cases, repeats)
        table.add_column(name, {case: value * 1e3 for case, value in seconds.items()})
        table.add_goal(OURS, KERAS, 1.05, columns=[name])
    return table


def _networks() -> dict[str, tuple]:
    """Models, and the shapes of their inputs without the batch."""
    import keras

    keras.utils.set_random_seed(0)
    x = y = keras.Input((500, 81))
    y = keras.layers.Conv1D(32, 5, padding="same")(y)
    for k in range(9):
        z = keras.layers.Conv1D(32, 5, padding="same", dilation_rate=2**k, activation="elu")(y)
        y = keras.layers.add([y, keras.layers.Conv1D(32, 1)(z)])
    temporal = keras.Model(x, keras.layers.Dense(2, activation="sigmoid")(y))
    mobile = keras.applications.MobileNetV3Small(weights=None)
    return {
        "MobileNetV3Small, 224 x 224": (mobile, (224, 224, 3)),
        "dilated convolutions of 500 steps": (temporal, (500, 81)),
    }
