"""Files that `tf_ti.openvino.load` reads, and places where the resulting module can be used."""

import importlib
import re

import numpy as np
import pytest
import tensorflow as tf
from recurrent_definition import step

import tf_ti.openvino

ov = pytest.importorskip("openvino")
openvino_models = importlib.import_module("openvino_models")
openvino_collection = importlib.import_module("openvino_collection")


def dense(folder, compress=False, inputs=4, units=300):
    """x @ w + b, and tanh of it; and w and b."""
    op, rng = ov.opset15, np.random.default_rng(0)
    w, b = (rng.standard_normal(s).astype(np.float32) for s in ([inputs, units], [units]))
    x = op.parameter([-1, inputs], np.float32, name="x")
    y = op.add(op.matmul(x, op.constant(w), False, False), op.constant(b))
    path = folder / "dense.xml"
    model = ov.Model([op.result(y), op.result(op.tanh(y))], [x], "dense")
    ov.save_model(model, path, compress_to_fp16=compress)
    return path, w, b


@pytest.mark.parametrize("version", [10, 11])
def test_openvinos_example_2_answers_as_the_definition_of_the_lstm(tmp_path, version):
    path, arrays, weights, bias = openvino_collection.write_example_2(tmp_path, version)
    x, h, c = (array.astype(np.float64) for array in arrays)
    states, expected = [h, c], []
    w, r = weights[:, :-256], weights[:, -256:]
    for i in range(x.shape[1]):
        states = step("lstm", x[:, i], states, w, r, bias, {})
        expected.append(states[0])
    (got,) = tf_ti.openvino.load(path)(*arrays)
    np.testing.assert_allclose(got, np.stack(expected, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("version", [10, 11])
def test_both_versions_are_read(tmp_path, version):
    path, w, b = dense(tmp_path)
    path.write_text(re.sub('version="11">', f'version="{version}">', path.read_text(), count=1))
    x = np.ones([2, 4], np.float32)
    y, z = tf_ti.openvino.load(path)(x)
    np.testing.assert_allclose(y, x @ w + b, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(z, np.tanh(x @ w + b), rtol=1e-5, atol=1e-5)


def test_weights_may_be_named(tmp_path):
    path, w, b = dense(tmp_path)
    path.with_suffix(".bin").rename(tmp_path / "weights")
    y, _ = tf_ti.openvino.load(str(path), weights=tmp_path / "weights")(np.eye(4))
    np.testing.assert_allclose(y, w + b, rtol=1e-5, atol=1e-5)


def test_inputs_and_outputs_say_names_dtypes_and_shapes(tmp_path):
    module = tf_ti.openvino.load(dense(tmp_path)[0])
    (x,), (y, _) = module.inputs, module.outputs
    assert (x.name, x.dtype, x.shape.as_list()) == ("x", tf.float32, [None, 4])
    assert (y.dtype, y.shape.as_list()) == (tf.float32, [None, 300])


@pytest.mark.parametrize("shape", [[], [3], [2, 1, 3]])
def test_a_rank_that_is_not_known_is_any_rank(tmp_path, shape):
    op = ov.opset15
    x = op.parameter(ov.PartialShape.dynamic(), np.float32, name="x")
    openvino_models.save(ov.Model([op.result(op.exp(x))], [x]), tmp_path / "m.xml")
    (y,) = tf_ti.openvino.load(tmp_path / "m.xml")(np.ones(shape))
    np.testing.assert_allclose(y, np.exp(np.ones(shape)), rtol=1e-6)


@pytest.mark.parametrize(
    "name", ["\u0432\u0445\u043e\u0434", "\u5165\u529b", "a b/c:0", "_", "n" * 100_000]
)
def test_any_name_of_a_layer_is_taken_and_saved(tmp_path, name):
    path, w, b = dense(tmp_path)
    for old in re.findall('name="([^"]+)" type', path.read_text()):
        path.write_text(path.read_text().replace(f'name="{old}" type', f'name="{name}" type'))
    module = tf_ti.openvino.load(path, trainable=True)
    np.testing.assert_allclose(module(np.eye(4))[0], w + b, rtol=1e-5, atol=1e-5)
    tf.saved_model.save(module, tmp_path / "saved")


def test_what_was_loaded_needs_its_files_no_more(tmp_path):
    path, w, b = dense(tmp_path)
    module = tf_ti.openvino.load(path)
    path.with_suffix(".bin").write_bytes(b"")
    path.unlink()
    np.testing.assert_allclose(module(np.eye(4))[0], w + b, rtol=1e-5, atol=1e-5)


def test_a_constant_that_two_layers_share_is_one_variable(tmp_path):
    path, _, _ = dense(tmp_path)
    text = path.read_text()
    offset = re.findall('shape="300" offset="([0-9]+)"', text)
    assert len(offset) == 1
    assert len(tf_ti.openvino.load(path, trainable=True).trainable_variables) == 2


def test_constants_that_only_happen_to_be_equal_are_variables_of_their_own(tmp_path):
    o = ov.opset15
    x = o.parameter([1, 3], np.float32, name="x")
    ones = [o.constant(np.ones([1, 3], np.float32)) for _ in range(2)]
    model = ov.Model([o.result(o.multiply(x, each)) for each in ones], [x], "model")
    path = openvino_models.save(model, tmp_path / "model.xml")
    module = tf_ti.openvino.load(path, trainable=True)
    assert len(module.trainable_variables) == 2
    module.trainable_variables[0].assign([[2.0, 2.0, 2.0]])
    assert sorted(y.numpy().max() for y in module(tf.ones([1, 3]))) == [1.0, 2.0]


def test_what_sizes_are_made_of_is_no_variable(tmp_path):
    o = ov.opset15
    x = o.parameter([1, 1, 4, 4], np.float32, name="x")
    scales, axes = o.constant(np.float32([2, 3])), o.constant(np.array([2, 3]))
    resized = o.interpolate(x, scales, "linear", "scales", axes=axes)
    model = ov.Model([o.result(o.multiply(resized, o.constant(np.float32([[2], [3]] * 4))))], [x])
    module = tf_ti.openvino.load(openvino_models.save(model, tmp_path / "m.xml"), trainable=True)
    assert [list(v.shape) for v in module.trainable_variables] == [[8, 1]]


def test_names_that_differ_by_their_case_alone_are_saved(tmp_path):
    o = ov.opset15
    x, y = (o.parameter([3], np.float32, name=name) for name in ("X", "x"))
    for parameter, name in (x, "X"), (y, "x"):
        parameter.output(0).set_names({name})
    model = ov.Model([o.result(o.subtract(x, y))], [x, y], "model")
    module = tf_ti.openvino.load(openvino_models.save(model, tmp_path / "model.xml"))
    tf.saved_model.save(module, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    assert loaded(tf.ones([3]), tf.zeros([3]))[0].numpy().tolist() == [1, 1, 1]


def test_a_shape_that_is_known_late_is_compared(tmp_path):
    path, _, _ = dense(tmp_path)
    module = tf_ti.openvino.load(path)
    late = tf.function(lambda x: module(x)[0], input_signature=[tf.TensorSpec(None)])
    assert late(tf.ones([2, 4])).shape == (2, 300)
    for shape in [2, 5], [2, 3, 4]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[\?,4\]"):
            late(tf.ones(shape))


@pytest.mark.parametrize("compress", [False, True])
def test_variables_are_float32_and_a_tape_reaches_them(tmp_path, compress):
    path, w, b = dense(tmp_path, compress)
    module = tf_ti.openvino.load(path, trainable=True)
    assert sorted(v.shape.rank for v in module.trainable_variables) == [1, 2]
    assert {v.dtype for v in module.trainable_variables} == {tf.float32}
    x = np.ones([2, 4], np.float32)
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(module(x)[0])
    for variable, gradient in zip(
        module.trainable_variables, tape.gradient(y, module.trainable_variables)
    ):
        np.testing.assert_allclose(gradient, np.full(variable.shape, 2.0), rtol=1e-6)


def test_without_trainable_there_are_no_variables(tmp_path):
    assert not tf_ti.openvino.load(dense(tmp_path)[0]).variables


@pytest.mark.parametrize("jit_compile", [False, True])
def test_it_may_be_called_in_a_function(tmp_path, jit_compile):
    path, w, b = dense(tmp_path)
    module = tf_ti.openvino.load(path)
    function = tf.function(lambda x: module(x)[0] * 2, jit_compile=jit_compile)
    np.testing.assert_allclose(function(tf.eye(4)), 2 * (w + b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("way", ["call", "signature"])
def test_what_was_saved_answers_alike(tmp_path, trainable, way):
    path, w, b = dense(tmp_path)
    tf.saved_model.save(tf_ti.openvino.load(path, trainable=trainable), tmp_path / "saved")
    loaded = tf.saved_model.load(tmp_path / "saved")
    if way == "call":
        y = loaded(tf.eye(4))[0]
    else:
        results = loaded.signatures["serving_default"](x=tf.eye(4))
        y = min(results.values(), key=lambda value: -float(tf.reduce_max(value)))
    np.testing.assert_allclose(y, w + b, rtol=1e-5, atol=1e-5)


def test_it_may_be_a_layer_of_a_keras_model(tmp_path):
    path, w, b = dense(tmp_path)
    module = tf_ti.openvino.load(path)
    x = tf.keras.Input([4])
    y = tf.keras.layers.Lambda(lambda x: module(x)[0], output_shape=(300,))(x)
    model = tf.keras.Model(x, y)
    np.testing.assert_allclose(model(np.eye(4, dtype=np.float32)), w + b, rtol=1e-5, atol=1e-5)


def test_booleans_that_are_neither_0_nor_1_are_true(tmp_path):
    op = ov.opset15
    x = op.parameter([3], np.bool_, name="x")
    y = op.logical_and(x, op.constant(np.array([True, False, True])))
    path = openvino_models.save(ov.Model([op.result(y)], [x]), tmp_path / "m.xml")
    (tmp_path / "m.bin").write_bytes(b"\x02\x00\xff")
    assert tf_ti.openvino.load(path)([True] * 3)[0].numpy().tolist() == [True, False, True]
