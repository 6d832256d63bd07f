"""`tf_ti.openvino` on whole networks: those of the project's own collection, see there."""

import functools
import importlib

import numpy as np
import pytest
import tensorflow as tf

import tf_ti.openvino
from tf_ti.openvino.__main__ import main

ov = pytest.importorskip("openvino")
o = pytest.importorskip("openvino.opset13")
openvino_collection = importlib.import_module("openvino_collection")
openvino_models = importlib.import_module("openvino_models")

NAMES = [network.name for network in openvino_collection.models()]
ITERATORS = [name for name in NAMES if name.startswith("iterator")]
SEQUENCE = "TfTi>RecurrentSequence"


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """The .xml files of a network, inputs, and what OpenVINO makes of them.

    With static shapes: its CPU plugin does not honour the lengths of sequences of any extent.
    """
    folder = tmp_path_factory.mktemp("collection")

    @functools.cache
    def write(name):
        if name not in NAMES:
            pytest.skip(f"{openvino_collection.network(name).needs} are not installed")
        paths, inputs = openvino_collection.network(name).write(folder)
        return paths, inputs, openvino_models.run(paths[-1], inputs)

    return write


def check(actual, expected):
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected):
        assert tuple(ours.shape) == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.quarter
@pytest.mark.parametrize("extents", ["any extents", "these extents"])
@pytest.mark.parametrize("name", NAMES)
def test_a_network_answers_as_in_openvino(written, name, extents):
    paths, inputs, expected = written(name)
    if extents == "these extents" and len(paths) == 1:
        pytest.skip("its shapes are static")
    module = tf_ti.openvino.load(paths[extents == "these extents"])
    check(module(*inputs), expected)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("stateful")])
def test_a_network_with_states_agrees_over_calls(written, name, capsys):
    for path in written(name)[0]:
        assert main([str(path), "--check", "--seed", "1"]) == 0, capsys.readouterr()


@pytest.mark.parametrize("name", NAMES)
def test_a_network_is_written_as_it_was_read(written, name, tmp_path):
    paths, inputs, expected = written(name)
    for path in paths:
        tf_ti.openvino.save(tf_ti.openvino.load(path), tmp_path / "again.xml")
    for ours, theirs in zip(openvino_models.run(tmp_path / "again.xml", inputs), expected):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("batch, time", [(1, 9), (4, 1)])
@pytest.mark.parametrize("name", ["lstm_bidirectional_2_layers", "gru", "attention"])
def test_a_network_of_any_extents_answers_as_in_torch(written, name, batch, time):
    torch = pytest.importorskip("torch")
    paths, inputs, _ = written(f"torch_{name}")
    x = np.random.default_rng(1).standard_normal([batch, time, inputs[0].shape[2]], np.float32)
    with torch.no_grad():
        expected = openvino_collection.torch_module(name)(torch.from_numpy(x))
    expected = expected if isinstance(expected, tuple) else (expected,)
    check(tf_ti.openvino.load(paths[0])(x), [value.numpy() for value in expected])


@pytest.mark.parametrize(
    "name",
    ["torch_convolutional", "torch_dlrm", "torch_lstm_packed", "onnx_loop", "encoder_decoder"],
)
def test_a_network_that_was_saved_answers_alike(written, name, tmp_path):
    paths, inputs, expected = written(name)
    tf.saved_model.save(tf_ti.openvino.load(paths[0]), tmp_path)
    check(tf.saved_model.load(tmp_path)(*map(tf.constant, inputs)), expected)


def operations(module):
    """The types of all operations of a module's graph, and of the functions that it calls."""
    graph = tf.function(module).get_concrete_function(*(info.spec for info in module.inputs)).graph
    definition = graph.as_graph_def()
    nodes = [*definition.node]
    for function in definition.library.function:
        nodes += function.node_def
    return {node.op for node in nodes}


@pytest.mark.parametrize("name", ITERATORS)
def test_an_iterator_around_an_lstm_runs_as_one_sequence(written, name):
    kinds = operations(tf_ti.openvino.load(written(name)[0][0]))
    assert SEQUENCE in kinds
    assert "While" not in kinds and "StatelessWhile" not in kinds


def test_openvinos_example_2_runs_as_one_sequence(tmp_path):
    path = openvino_collection.write_example_2(tmp_path)[0]
    assert SEQUENCE in operations(tf_ti.openvino.load(path))


def test_gradients_of_an_lstms_weights_are_those_of_torch(written):
    torch = pytest.importorskip("torch")
    paths, (x,), _ = written("torch_lstm")
    dy = np.random.default_rng(1).standard_normal([3, 6, 7]).astype(np.float32)
    lstm = openvino_collection.torch_module("lstm")
    lstm(torch.from_numpy(x))[0].backward(torch.from_numpy(dy))
    module = tf_ti.openvino.load(paths[0], trainable=True)
    with tf.GradientTape() as tape:
        y = module(x)[0]
    gradients = tape.gradient(y, module.trainable_variables, dy)
    by_shape = {tuple(g.shape): tf.convert_to_tensor(g).numpy()[0] for g in gradients}
    theirs = lstm.layer.weight_ih_l0, lstm.layer.weight_hh_l0, lstm.layer.bias_ih_l0
    for parameter in theirs:
        i, f, g, o = np.split(parameter.grad.numpy(), 4)
        ours = by_shape[(1, *parameter.shape)]
        np.testing.assert_allclose(ours, np.concatenate([f, i, g, o]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["torch_gru_bidirectional", "torch_attention", "torch_dlrm", "torch_convolutional",
             "iterator_ops_200_1_8_8"],
)  # fmt: skip
def test_a_network_learns(written, name):
    paths, inputs, _ = written(name)
    module = tf_ti.openvino.load(paths[0], trainable=True)
    first = module(*inputs)[0]
    target = 0.5 * (first + 1 / first.shape[-1])  # of a softmax it is one too
    optimizer = tf.keras.optimizers.Adam(0.01)
    losses = []

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((module(*inputs)[0] - target) ** 2)
        gradients = tape.gradient(loss, module.trainable_variables)
        pairs = zip(gradients, module.trainable_variables)
        optimizer.apply_gradients([pair for pair in pairs if pair[0] is not None])
        return loss

    for _ in range(40):
        losses.append(float(step()))
    assert losses[-1] < 0.5 * losses[0], losses


def test_a_network_is_a_layer_of_a_functional_model(written):
    paths, (x,), expected = written("torch_lstm")
    module = tf_ti.openvino.load(paths[0])
    given = tf.keras.Input([None, 5])
    y = tf.keras.layers.Lambda(lambda x: module(x)[0], output_shape=(None, 7))(given)
    model = tf.keras.Model(given, tf.keras.layers.GlobalAveragePooling1D()(y))
    np.testing.assert_allclose(
        model.predict(x, verbose=0), expected[0].mean(1), rtol=1e-4, atol=1e-5
    )


def test_a_network_maps_a_data_set(written):
    paths, inputs, expected = written("torch_convolutional")
    module = tf_ti.openvino.load(paths[0])
    rows = tf.data.Dataset.from_tensor_slices(inputs[0]).batch(1).map(lambda x: module(x)[0])
    np.testing.assert_allclose(
        np.concatenate(list(rows.as_numpy_iterator())), expected[0], rtol=1e-4, atol=1e-5
    )


def test_the_script_writes_what_can_be_loaded(tmp_path, monkeypatch):
    one = openvino_collection.network("iterator_cell_200_1_8_8")
    monkeypatch.setattr(openvino_collection, "models", lambda: [one])
    paths = openvino_collection.write_all(tmp_path / "new")
    assert [path.stem for path in paths] == ["iterator_cell_200_1_8_8", "example_2"]
    for path in paths:
        tf_ti.openvino.load(path)


ACTIVATIONS = {
    "hswish": o.hswish,
    "hsigmoid": lambda x: o.multiply(x, o.hsigmoid(x)),
    "gelu": lambda x: o.gelu(x, "erf"),
    "gelu of tanh": lambda x: o.gelu(x, "tanh"),
}


@pytest.mark.parametrize("factor", [0.95, 0.99, 1.01, 1.05])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_factor_after_an_activation_is_not_lost(name, factor, tmp_path):
    """TensorFlow's oneDNN would take activations times almost 1 for these activations."""

    def normal(*shape):
        return np.random.default_rng(len(shape)).standard_normal(shape, np.float32)

    image = o.parameter([1, 16, 8, 8], np.float32)
    rows = o.parameter([8, 16], np.float32)
    pads = [1, 1], [1, 1], [1, 1], [1, 1]
    each = o.group_convolution(image, normal(16, 1, 1, 3, 3), *pads)
    whole = o.convolution(image, normal(16, 16, 3, 3), *pads)
    product = o.matmul(rows, normal(16, 16), False, False)
    results = [
        o.multiply(
            ACTIVATIONS[name](o.add(x, o.constant(normal(*[1] * axis, 16, *[1] * after)))),
            o.constant(np.full([1] * (axis + 1 + after), factor, np.float32)),
        )
        for x, axis, after in ((each, 1, 2), (whole, 1, 2), (product, 1, 0))
    ]
    path, inputs = str(tmp_path / "model.xml"), [normal(1, 16, 8, 8), normal(8, 16)]
    openvino_models.save(ov.Model(results, [image, rows], "model"), path)
    check(tf_ti.openvino.load(path)(*inputs), openvino_models.run(path, inputs))


def recurrent_network(path, place):
    """Two bidirectional layers with the lengths that ONNX's sequences get, of an extent of x."""

    def normal(*shape):
        return np.random.default_rng(len(shape)).standard_normal(shape, np.float32) / 2

    def extent(tensor, place):
        return o.gather(o.shape_of(tensor), o.constant(np.int64([place])), o.constant(np.int64(0)))

    def layer(x, lengths, size):
        shape = o.concat([batch, o.constant(np.int64([2])), o.constant(np.int64([5]))], 0)
        state = o.broadcast(o.constant(np.float32(0.3)), shape)
        weights = normal(2, 20, size), normal(2, 20, 5), normal(2, 20)
        return o.lstm_sequence(
            x, state, state, lengths, *map(o.constant, weights), 5, "bidirectional"
        )

    steps_first = o.parameter([-1, -1, 4], np.float32)
    x = o.transpose(o.relu(steps_first), o.constant([1, 0, 2]))
    batch = extent(x, 0)
    lengths = o.broadcast(extent(steps_first, place), batch)
    y = layer(x, lengths, 4).output(0)
    merged = o.reshape(o.transpose(y, o.constant([2, 0, 1, 3])), o.constant([0, 0, -1]), True)
    results = layer(o.transpose(merged, o.constant([1, 0, 2])), lengths, 10).outputs()
    openvino_models.save(ov.Model([*results], [steps_first], "model"), path)
    return [np.random.default_rng(place).standard_normal((6, 6 - 3 * place, 4), np.float32)]


@pytest.mark.parametrize(("place", "layer"), [(0, "LSTMSequence"), (1, "TensorIterator")])
def test_lengths_that_are_the_extent_of_time_are_none(place, layer, tmp_path):
    path, again = str(tmp_path / "model.xml"), str(tmp_path / "again.xml")
    inputs = recurrent_network(path, place)
    module = tf_ti.openvino.load(path)
    if not place:  # other lengths OpenVINO's CPU plugin ignores where shapes are dynamic
        check(module(*inputs), openvino_models.run(path, inputs))
    signature = [info.spec for info in module.inputs]
    tf_ti.openvino.save(tf.function(lambda x: module(x)), again, signature)
    check(module(*inputs), openvino_models.run(again, inputs))
    types = [node.get_type_name() for node in ov.Core().read_model(again).get_ops()]
    assert types.count(layer) == 4
    assert not {"LSTMSequence", "TensorIterator"} - {layer} & {*types}


def test_last_states_of_no_steps_stay_zeros(tmp_path):
    recurrent_network(str(tmp_path / "model.xml"), 0)
    y, *last = tf_ti.openvino.load(tmp_path / "model.xml")(np.zeros([0, 3, 4], np.float32))
    assert y.shape == (3, 2, 0, 5)
    for state in last:
        np.testing.assert_array_equal(state, np.zeros([3, 2, 5]))
