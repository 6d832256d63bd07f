"""`tf_ti.keras.OpenVINO`: it answers as the module, is trained, and saved without the files."""

import json
import sys

import numpy as np
import pytest
import tensorflow as tf

import tf_ti.openvino
from tf_ti.openvino import IRError
from tf_ti.openvino.__main__ import main

keras = pytest.importorskip("keras")
pytest.importorskip("openvino._pyopenvino")  # tests/openvino has the package's name
ov = pytest.importorskip("openvino")
op = ov.opset15

F32 = np.float32
rng = np.random.default_rng(0)
TABLE, KERNEL, W, R = (
    rng.standard_normal(s).astype(F32) for s in ((50, 8), (8, 3), (3, 3), (3, 3))
)
CODES = rng.integers(0, 50, [300])


def save(folder, name, outputs, inputs, compress=False):
    path = folder / f"{name}.xml"
    model = ov.Model([op.result(output) for output in outputs], inputs, name)
    ov.save_model(model, path, compress_to_fp16=compress)
    return path


def dense(folder, compress=False, units=300):
    """Large and small floating constants, and integers that a shape is of."""
    kernel = np.random.default_rng(1).standard_normal((4, units)).astype(F32)
    x = op.parameter([-1, 4], F32, name="x")
    y = op.add(op.matmul(x, op.constant(kernel), False, False), op.constant(kernel[:1, :units]))
    y = op.reshape(y, op.constant(np.array([-1, 2, units // 2])), False)
    return save(folder, "dense", [op.tanh(y)], [x], compress)


def recurrent(folder):
    """Two inputs and outputs, and a loop over time with weights."""
    x, h = op.parameter([-1, 5, 3], F32, name="x"), op.parameter([-1, 3], F32, name="h")
    piece, state = op.parameter([-1, 1, 3], F32), op.parameter([-1, 3], F32)
    row = op.squeeze(piece, np.int64(1))
    new = op.tanh(
        op.add(
            op.matmul(row, op.constant(W), False, False),
            op.matmul(state, op.constant(R), False, False),
        )
    )
    step = op.unsqueeze(new, np.int64(1))
    body = ov.Model([op.result(new), op.result(step)], [piece, state], "body")
    loop = op.tensor_iterator()
    loop.set_body(body)
    loop.set_sliced_input(piece, x.output(0), 0, 1, 1, -1, 1)
    loop.set_merged_input(state, h.output(0), body.results[0].output(0))
    last = loop.get_iter_value(body.results[0].output(0), -1)
    steps = loop.get_concatenated_slices(body.results[1].output(0), 0, 1, 1, -1, 1)
    return save(folder, "recurrent", [last, steps], [x, h])


def recommender(folder):
    """Ids of integers; a large table of them, and half the precision in the file."""
    ids = op.parameter([-1, 2], np.int64, name="ids")
    codes = op.gather(op.constant(CODES), ids, op.constant(np.int64(0)))
    rows = op.gather(op.constant(TABLE), codes, op.constant(np.int64(0)))
    scores = op.matmul(op.reduce_sum(rows, np.int64(1)), op.constant(KERNEL), False, False)
    return save(folder, "recommender", [scores], [ids], compress=True)


def resized(folder):
    """A floating constant that the shape of the output depends on."""
    x = op.parameter([-1, 1, 4, 4], F32, name="x")
    scales = op.constant(np.array([2.0, 3.0], F32))
    y = op.interpolate(x, scales, "nearest", "scales", axes=op.constant(np.array([2, 3])))
    return save(folder, "resized", [y], [x])


def brain(folder):
    """Weights of a type that NumPy does not know."""
    x = op.parameter([-1, 8], ov.Type.bf16, name="x")
    scale = op.constant(KERNEL.reshape(-1)[:8], dtype=ov.Type.bf16)
    return save(folder, "brain", [op.convert(op.multiply(x, scale), "f32")], [x])


MODELS = {
    dense: lambda n: [rng.standard_normal((n, 4)).astype(F32)],
    recurrent: lambda n: [rng.standard_normal(s).astype(F32) for s in ((n, 5, 3), (n, 3))],
    recommender: lambda n: [rng.integers(0, 300, (n, 2))],
    brain: lambda n: [tf.cast(rng.standard_normal((n, 8)), tf.bfloat16).numpy()],
    resized: lambda n: [rng.standard_normal((n, 1, 4, 4)).astype(F32)],
}
every_model = pytest.mark.parametrize("model", MODELS)


def given(tensors):
    return tensors[0] if len(tensors) == 1 else tensors


def assert_same(actual, expected):
    actual, expected = keras.tree.flatten(actual), keras.tree.flatten(expected)
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


# Calling.


@every_model
def test_it_answers_as_the_module(tmp_path, model):
    path, tensors = model(tmp_path), MODELS[model](3)
    expected = tf_ti.openvino.load(path)(*tensors)
    assert_same(tf_ti.keras.OpenVINO(path)(given(tensors)), expected)


def test_inputs_may_be_given_by_name(tmp_path):
    layer, (x, h) = tf_ti.keras.OpenVINO(recurrent(tmp_path)), MODELS[recurrent](3)
    assert_same(layer({"h": h, "x": x}), layer([x, h]))


@pytest.mark.parametrize(
    "inputs, message",
    [
        (lambda x, h: [x], "missing: 'h'"),
        (lambda x, h: [x, h, h], "2 inputs are expected, but 3 are given"),
        (lambda x, h: {"x": x, "y": h}, "no input 'y'"),
        (lambda x, h: [h, x], "has shape"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(tmp_path, inputs, message):
    layer = tf_ti.keras.OpenVINO(recurrent(tmp_path))
    with pytest.raises((TypeError, ValueError), match=message):
        layer(inputs(*MODELS[recurrent](3)))


def test_inputs_are_cast_to_what_the_model_has(tmp_path):
    layer, (ids,) = tf_ti.keras.OpenVINO(recommender(tmp_path)), MODELS[recommender](3)
    assert_same(layer(ids.astype(F32)), layer(ids))


def test_a_dtype_policy_changes_nothing(tmp_path):
    path, (x,) = dense(tmp_path), MODELS[dense](3)
    layer = tf_ti.keras.OpenVINO(path, dtype="mixed_float16")
    assert layer(x).dtype == tf.float32
    assert_same(layer(x), tf_ti.keras.OpenVINO(path)(x))


@every_model
def test_a_model_of_it_has_the_shapes_of_the_outputs(tmp_path, model):
    layer, tensors = tf_ti.keras.OpenVINO(model(tmp_path)), MODELS[model](3)
    whole = layer.to_model()
    outputs = keras.tree.flatten(layer(given(tensors)))
    expected = [(None, *output.shape[1:]) for output in outputs]
    assert [output.shape for output in whole.outputs] == expected
    assert [output.dtype for output in whole.outputs] == [o.dtype.name for o in outputs]
    assert_same(whole.predict(given(tensors), verbose=0), outputs)


def test_weights_that_are_not_its_own_are_refused(tmp_path):
    layer, (x,) = tf_ti.keras.OpenVINO(dense(tmp_path)), MODELS[dense](3)
    with pytest.raises(NotImplementedError, match="stateless_call"):
        layer.stateless_call([w.numpy() for w in layer.trainable_variables], [], x)


# Training.


def test_floating_constants_are_the_weights(tmp_path):
    layer = tf_ti.keras.OpenVINO(recurrent(tmp_path))
    assert_same(sorted(map(np.sum, layer.get_weights())), sorted([W.sum(), R.sum()]))
    assert len(layer.trainable_weights) == 2


def test_a_layer_that_was_frozen_can_be_trained_again(tmp_path):
    layer = tf_ti.keras.OpenVINO(dense(tmp_path), trainable=False)
    assert layer.trainable_weights == []
    layer.trainable = True
    assert len(layer.trainable_weights) == 2


def test_names_of_weights_are_under_that_of_the_layer(tmp_path):
    layer = tf_ti.keras.OpenVINO(dense(tmp_path), name="backbone")
    assert all(weight.path.startswith("backbone/") for weight in layer.weights)


def test_a_precision_that_is_halved_in_the_file_is_not_in_the_weights(tmp_path):
    layer = tf_ti.keras.OpenVINO(recommender(tmp_path))
    assert {(w.shape, w.dtype) for w in layer.weights} == {
        ((50, 8), "float32"),
        ((8, 3), "float32"),
    }


@pytest.mark.parametrize("model", [recurrent, dense, recommender])
def test_it_learns(tmp_path, model):
    layer, tensors = tf_ti.keras.OpenVINO(model(tmp_path)), MODELS[model](16)
    inputs = [keras.Input(t.shape[1:], dtype=t.dtype.name) for t in tensors]
    output = keras.tree.flatten(layer(given(inputs)))[0]
    whole = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(output)))
    whole.compile("adam", "mse")
    before = layer.get_weights()
    losses = whole.fit(tensors, np.ones((16, 1)), epochs=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert all((a != b).any() for a, b in zip(before, layer.get_weights()))


@pytest.mark.parametrize("late", [True, False])
def test_a_frozen_layer_keeps_its_weights_in_a_sequential_model(tmp_path, late):
    layer, (x,) = tf_ti.keras.OpenVINO(dense(tmp_path), trainable=late), MODELS[dense](16)
    layer.trainable = False
    whole = keras.Sequential([layer, keras.layers.Flatten(), keras.layers.Dense(1)])
    whole.compile("sgd", "mse")
    before = layer.get_weights()
    whole.fit(x, np.ones((16, 1)), verbose=0)
    assert len(whole.trainable_weights) == 2
    assert all((a == b).all() for a, b in zip(before, layer.get_weights()))


# Saving.


@every_model
def test_what_was_trained_and_saved_answers_alike_without_the_files(tmp_path, model):
    path, tensors = model(tmp_path), MODELS[model](3)
    layer = tf_ti.keras.OpenVINO(path)
    layer.set_weights(
        [weight * 0.5 if weight.ndim > 1 else weight for weight in layer.get_weights()]
    )
    expected = layer(given(tensors))
    layer.to_model().save(tmp_path / "model.keras")
    for file in path, path.with_suffix(".bin"):
        file.unlink()
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(loaded(given(tensors)), expected)


@pytest.mark.slow
def test_a_process_that_has_imported_tf_ti_alone_loads_it(tmp_path, run_program):
    path, (x,) = dense(tmp_path), MODELS[dense](3)
    layer = tf_ti.keras.OpenVINO(path)
    layer.to_model().save(tmp_path / "model.keras")
    path.unlink()
    np.save(tmp_path / "x.npy", x)
    run_program(
        """
        import numpy as np
        import tf_ti
        import keras

        model = keras.saving.load_model("model.keras")
        np.save("y.npy", model.predict(np.load("x.npy"), verbose=0))
        """,
        is_first=True,
    )
    assert_same(np.load(tmp_path / "y.npy"), layer(x))


def test_weights_are_saved_and_loaded(tmp_path):
    path, (x,) = dense(tmp_path), MODELS[dense](3)
    trained, other = (tf_ti.keras.OpenVINO(path).to_model() for _ in range(2))
    trained.set_weights([weight + 1 for weight in trained.get_weights()])
    trained.save_weights(tmp_path / "of.weights.h5")
    other.load_weights(tmp_path / "of.weights.h5")
    assert_same(other(x), trained(x))


def test_an_exported_model_answers_alike(tmp_path):
    model, (x,) = tf_ti.keras.OpenVINO(dense(tmp_path)).to_model(), MODELS[dense](3)
    model.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    assert_same(loaded.serve(x), model(x))


def test_states_are_no_weights_and_begin_anew(tmp_path):
    x = op.parameter([1, 3], F32, name="x")
    total = op.add(ov.opset6.read_value(op.constant(W[:1]), "total", F32, [1, 3]), x)
    assign, path = ov.opset6.assign(total, "total"), tmp_path / "state.xml"
    ov.save_model(
        ov.Model([op.result(total)], [assign], [x], "state"), path, compress_to_fp16=False
    )
    model = tf_ti.keras.OpenVINO(path).to_model()
    ones = np.ones((1, 3), F32)
    first, second = model(ones), model(ones)
    assert_same(second, first + 1)
    model.save(tmp_path / "state.keras")
    loaded = keras.saving.load_model(tmp_path / "state.keras")
    assert_same(loaded(ones), first)
    assert_same(loaded.get_weights(), [W[:1]])


def test_large_floating_constants_are_not_in_the_config(tmp_path):
    layer = tf_ti.keras.OpenVINO(dense(tmp_path, units=30_000))
    assert len(json.dumps(layer.get_config())) < 20_000


def test_a_frozen_layer_is_saved_frozen(tmp_path):
    tf_ti.keras.OpenVINO(dense(tmp_path), trainable=False).to_model().save(tmp_path / "m.keras")
    assert keras.saving.load_model(tmp_path / "m.keras").trainable_weights == []


# Configs that nobody has saved.


def with_path(config, folder):
    return {**config, "ir": str(folder / "dense.xml")}


def with_xml_path(config, folder):
    return {**config, "ir": {**config["ir"], "xml": str(folder / "dense.xml")}}


def with_weights_path(config, folder):
    ir = {**config["ir"], "constants": {}, "num_bytes": 0}
    return {**config, "ir": ir, "weights": str(folder / "dense.bin")}


def of_absurd_size(config, folder):
    return {**config, "ir": {**config["ir"], "num_bytes": 2**62}}


def of_negative_size(config, folder):
    return {**config, "ir": {**config["ir"], "num_bytes": -1}}


def beyond_the_end(config, folder):
    return {**config, "ir": {**config["ir"], "constants": {str(2**40): "AAAA"}}}


def of_no_base64(config, folder):
    return {**config, "ir": {**config["ir"], "constants": {"0": "?"}}}


def of_a_number(config, folder):
    return {**config, "ir": 3}


@pytest.mark.parametrize(
    "damaged",
    [
        with_path,
        with_xml_path,
        with_weights_path,
        of_absurd_size,
        of_negative_size,
        beyond_the_end,
        of_no_base64,
        of_a_number,
    ],
)
def test_a_damaged_config_is_refused(tmp_path, damaged):
    config = tf_ti.keras.OpenVINO(dense(tmp_path)).get_config()
    with pytest.raises(IRError):
        tf_ti.keras.OpenVINO.from_config(damaged(config, tmp_path))


def test_a_config_says_by_itself_what_a_model_is(tmp_path):
    path, (x,) = dense(tmp_path), MODELS[dense](3)
    layer = tf_ti.keras.OpenVINO(path, name="backbone")
    path.write_text("")
    other = tf_ti.keras.OpenVINO.from_config(json.loads(json.dumps(layer.get_config())))
    assert other.name == "backbone"
    assert other(x).shape == layer(x).shape


def test_a_file_that_is_not_in_utf_8_is_refused(tmp_path):
    path = dense(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'name="x"', b'name="\xff"'))
    with pytest.raises(IRError, match="UTF-8"):
        tf_ti.keras.OpenVINO(path)


# The command.


@pytest.mark.parametrize("options, number", [([], 0), (["--trainable"], 2)])
@pytest.mark.parametrize("model", [dense, recurrent])
def test_the_command_writes_a_model(tmp_path, model, options, number):
    path, tensors = model(tmp_path), MODELS[model](3)
    assert main([str(path), "--keras", str(tmp_path / "model.keras"), *options]) == 0
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(loaded(given(tensors)), tf_ti.openvino.load(path)(*tensors))
    assert len(loaded.trainable_weights) == number


def test_the_command_says_that_keras_is_not_installed(tmp_path, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.split(".")[:2] == ["tf_ti", "keras"]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(tf_ti, "keras", raising=False)
    monkeypatch.setitem(sys.modules, "keras", None)
    assert main([str(dense(tmp_path)), "--keras", str(tmp_path / "model.keras")]) == 1
    assert "pip install keras" in capsys.readouterr().err


def test_a_model_without_inputs_is_no_model_of_keras(tmp_path):
    path = save(tmp_path, "m", [op.tanh(op.constant(np.ones([3], np.float32)))], [])
    with pytest.raises(IRError, match="no inputs"):
        tf_ti.keras.OpenVINO(path).to_model()


def test_inputs_of_one_name_and_of_the_layers_have_names_of_their_own(tmp_path):
    inputs = [op.parameter([1, 2], np.float32, name="open_vino") for _ in range(2)]
    path = save(tmp_path, "m", [op.subtract(*inputs)], inputs)
    model = tf_ti.keras.OpenVINO(path, name="open_vino").to_model()
    assert len({x.name for x in model.inputs}) == 2
    assert model([np.full([1, 2], 5.0), np.ones([1, 2])]).numpy().tolist() == [[4, 4]]
