"""Files as Model Optimizer and other writers made them: read as OpenVINO reads them."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti.keras
import tf_ti.openvino
from tf_ti.openvino import IRError
from tf_ti.openvino.__main__ import main

ov = pytest.importorskip("openvino")
o = importlib.import_module("openvino.opset13")
o1 = importlib.import_module("openvino.opset1")
PRECISE = {"INFERENCE_PRECISION_HINT": "f32"}


def write(folder, results, inputs, *replaced, name="model"):
    """Writes a model, with some of its text replaced."""
    path = str(folder / f"{name}.xml")
    model = ov.Model([o.result(result) for result in results], inputs, "m")
    ov.save_model(model, path, compress_to_fp16=False)
    if replaced:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    return path


def theirs(path, *values):
    found = ov.Core().compile_model(path, "CPU", PRECISE)(list(values))
    return [found[i] for i in range(len(found))]


# --- version 10 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("True", "False"), ("TRUE", "FALSE"), ("1", "0")])
def test_booleans_in_capitals(tmp_path, words):
    x = o1.parameter([2, 3], np.float32, name="x")
    product = o1.matmul(x, o1.constant(np.ones((4, 3), np.float32)), False, True)
    mean = o1.reduce_mean(product, o1.constant(np.array([1])), True)
    replaced = (('"true"', f'"{words[0]}"'), ('"false"', f'"{words[1]}"'))
    path = write(tmp_path, [product, mean], [x], *replaced, ('version="11"', 'version="10"'))
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    for ours, expected in zip(tf_ti.openvino.load(path)(value), theirs(path, value)):
        np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_words_in_any_case(tmp_path):
    x = o.parameter([1, 2, 6, 6], np.float32, name="x")
    window = [2, 2]
    pool = o1.avg_pool(x, window, [0, 0], [0, 0], window, True, "floor", "same_upper")
    gelu = o.gelu(x, "tanh")
    replaced = (('"same_upper"', '"SAME_UPPER"'), ('"floor"', '"Floor"'), ('"TANH"', '"tanh"'))
    path = write(tmp_path, [pool, gelu], [x], *replaced)
    value = np.random.default_rng(0).normal(size=[1, 2, 6, 6]).astype(np.float32)
    for ours, expected in zip(tf_ti.openvino.load(path)(value), theirs(path, value)):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "cubic"])
def test_attributes_that_are_left_out(tmp_path, mode):
    x = o.parameter([1, 1, 5, 7], np.float32, name="x")
    sizes, axes = o.constant(np.array([8, 10])), o.constant(np.array([2, 3]))
    resized = o.interpolate(x, sizes, mode, "sizes", axes=axes)
    left_out = [
        'antialias="false"',
        'coordinate_transformation_mode="half_pixel"',
        'cube_coeff="-0.75"',
        'nearest_mode="round_prefer_floor"',
        'pads_begin="0, 0, 0, 0"',
        'pads_end="0, 0, 0, 0"',
    ]
    replaced = [(f" {attribute}", "") for attribute in left_out]
    unique = o.unique(o.relu(x))
    path = write(tmp_path, [resized, *unique.outputs()], [x], *replaced, (' sorted="true"', ""))
    value = np.random.default_rng(3).normal(size=[1, 1, 5, 7]).astype(np.float32)
    for ours, expected in zip(tf_ti.openvino.load(path)(value), theirs(path, value), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_shapes_of_version_10_are_what_its_writer_knew(tmp_path):
    x = o.parameter([4], np.float32, name="x")
    places = o.non_zero(x)
    count = o.shape_of(places)
    taken = o.gather(x, o.squeeze(places, o.constant(np.array([0]))), o.constant(0))
    replaced = (("<dim>-1</dim>", "<dim>4</dim>"), ('version="11"', 'version="10"'))
    path = write(tmp_path, [count, taken], [x], *replaced)
    module = tf_ti.openvino.load(path)
    assert [info.shape.as_list() for info in module.outputs] == [[2], [None]]
    for value in (np.float32([0, 7, 0, 5]), np.float32([1, 2, 3, 4]), np.zeros(4, np.float32)):
        for ours, expected in zip(module(value), theirs(path, value)):
            np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32])
def test_check_converts_what_openvino_gives_for_version_10(tmp_path, capsys, dtype):
    x = o.parameter([2, 3], dtype, name="x")
    results = [o.relu(x), o.convert(x, "i64"), o.greater(x, o.constant(np.zeros([1], dtype)))]
    path = write(tmp_path, results, [x], ('version="11"', 'version="10"'))
    info = tf_ti.openvino.load(path).inputs[0]
    assert info.dtype == dtype
    assert main([path, "--check"]) == 0, capsys.readouterr().out


def test_what_cannot_be_used_is_said_by_load_and_inspect(tmp_path, capsys):
    x = o1.parameter([2, 3], np.float32, name="x")
    product = o1.matmul(x, o1.constant(np.ones((4, 3), np.float32)), False, True)
    path = write(tmp_path, [product], [x], ('transpose_b="true"', 'transpose_b="perhaps"'))
    with pytest.raises(IRError, match="transpose_b='perhaps'"):
        tf_ti.openvino.load(path)
    assert main([path, "--inspect"]) == 0
    assert "load refuses it: " in capsys.readouterr().out


# --- halves --------------------------------------------------------------------------------------

AXES = o.constant(np.array([2, 3]))
WIDE = {
    "MVN": lambda x: o.mvn(x, AXES, True, 1e-5, "inside_sqrt"),
    "ReduceMean": lambda x: o.reduce_mean(x, AXES, True),
    "ReduceL2": lambda x: o.reduce_l2(o.divide(x, o.constant(np.float16(64))), AXES, True),
    "AvgPool": lambda x: o1.avg_pool(x, [1, 1], [0, 0], [0, 0], [176, 176], True),
    "Softmax": lambda x: o.softmax(o.reshape(x, o.constant(np.array([4, -1])), False), 1),
    "NormalizeL2": lambda x: o.normalize_l2(x, AXES, 1e-6, "add"),
    "MatMul": lambda x: o.matmul(
        o.reshape(o.divide(x, o.constant(np.float16(64))), o.constant(np.array([4, -1])), False),
        o.constant(np.full((176 * 176, 1), 0.25, np.float16)),
        False,
        False,
    ),
}


@pytest.mark.parametrize("compute_dtype", [None, "float32", tf.float32])
@pytest.mark.parametrize("name", WIDE)
def test_halves_add_up_in_single_precision(tmp_path, name, compute_dtype):
    value = np.random.default_rng(0).standard_normal((1, 4, 176, 176)) * 3 + 5
    value = value.astype(np.float16)
    x = o.parameter([1, 4, 176, 176], np.float16, name="x")
    path = write(tmp_path, [WIDE[name](x)], [x])
    (expected,) = theirs(path, value)
    (ours,) = tf_ti.openvino.load(path, compute_dtype=compute_dtype)(value)
    assert ours.dtype == tf.float16
    # One rounding, and so half a unit in the last place, apart from theirs.
    np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=2e-6)


def _half_network():
    random = np.random.default_rng(1)
    x = o.parameter([-1, 3, 8, 8], np.float16, name="x")
    filters = o.constant(random.normal(size=[4, 3, 3, 3]).astype(np.float16))
    y = o.relu(o.convolution(x, filters, [1, 1], [1, 1], [1, 1], [1, 1]))
    y = o.multiply(y, o.constant(np.float16(300)))
    y = o.convert(o.convert(y, "f32"), "f16")
    y = o.reduce_sum(o.multiply(y, y), o.constant(np.array([1, 2, 3])), False)
    return o.divide(y, o.constant(np.float16(60000))), x


def test_a_file_in_halves_computed_in_single_precision(tmp_path):
    y, x = _half_network()
    path = write(tmp_path, [y], [x])
    value = np.random.default_rng(2).normal(size=[2, 3, 8, 8]).astype(np.float16)
    (expected,) = theirs(path, value)
    module = tf_ti.openvino.load(path, trainable=True, compute_dtype="float32")
    (ours,) = module(value)
    assert ours.dtype == tf.float16 and np.isfinite(ours).all()
    np.testing.assert_allclose(ours, expected, rtol=2e-3)
    assert {variable.dtype for variable in module.trainable_variables} == {tf.float32}
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.cast(module(value)[0], tf.float32))
    (gradient,) = tape.gradient(total, module.trainable_variables)
    assert gradient.dtype == tf.float32 and np.isfinite(gradient).all()
    # In the file's own types the square of what is above 256 is infinite.
    assert not np.isfinite(tf_ti.openvino.load(path)(value)[0]).all()


def test_states_are_computed_in_single_precision_too(tmp_path):
    x = o.parameter([1, 2], np.float16, name="x")
    o6 = importlib.import_module("openvino.opset6")
    state = o6.read_value(o.constant(np.zeros([1, 2], np.float16)), "s")
    total = o.add(state, x)
    assigned = o6.assign(total, "s")
    path = str(tmp_path / "model.xml")
    ov.save_model(ov.Model([o.result(total)], [assigned], [x], "m"), path, compress_to_fp16=False)
    module = tf_ti.openvino.load(path, compute_dtype="float32")
    for _ in range(5):
        (y,) = module(np.float16([[2048, 1]]))
        assert y.dtype == tf.float16
    (y,) = module(np.float16([[1, 1]]))
    assert module.states["s"].value.dtype == tf.float32
    assert module.states["s"].value.numpy().tolist() == [[10241.0, 6.0]]


@pytest.mark.parametrize("dtype", ["float16", "int32", "half a bit", 3.5, object()])
def test_another_compute_dtype_is_refused(tmp_path, dtype):
    x = o.parameter([2], np.float16, name="x")
    path = write(tmp_path, [o.relu(x)], [x])
    with pytest.raises(ValueError, match="compute_dtype must be None or 'float32'"):
        tf_ti.openvino.load(path, compute_dtype=dtype)


# --- constants, branches, quantization -----------------------------------------------------------


def test_a_keras_file_of_constants_in_one_place(tmp_path):
    x = o.parameter([1, 16], np.float32, name="x")
    random = np.random.default_rng(0)
    w = random.standard_normal((16, 32)).astype(np.float32)
    zeros = np.zeros((1, 400), np.float32)
    wide = o.constant(random.standard_normal((32, 400)).astype(np.float32))
    a = o.matmul(x, o.constant(w), False, False)
    b = o.matmul(o.relu(x), o.constant(w.copy()), False, False)
    y = o.matmul(o.add(a, b), wide, False, False)
    y = o.add(o.relu(o.add(y, o.constant(zeros))), o.constant(zeros.copy()))
    model = tf_ti.keras.OpenVINO(write(tmp_path, [y], [x])).to_model()
    # The two of equal numbers are one variable, those of zeros are two.
    assert len(model.weights) == 4
    model.weights[-1].assign(np.ones((1, 400), np.float32))
    file = str(tmp_path / "model.keras")
    model.save(file)
    again = keras.models.load_model(file)
    value = random.standard_normal((1, 16)).astype(np.float32)
    np.testing.assert_array_equal(again(value), model(value))
    assert [w.shape for w in again.weights] == [w.shape for w in model.weights]


def test_a_branch_that_extents_decide_is_taken_while_reading(tmp_path):
    x = o.parameter([-1, 1, -1], np.float32, name="x")
    h = o.multiply(x, o.constant(np.arange(1, 4, dtype=np.float32)))
    extent = o.gather(o.shape_of(h), o.constant(np.array([1])), o.constant(0))
    branch = o.if_op(o.equal(extent, o.constant(np.array([1]))).output(0))
    p = o.parameter([-1, 1, 3], np.float32)
    then = ov.Model([o.result(o.squeeze(p, o.constant(np.array([1]))))], [p], "then")
    q = o.parameter([-1, 1, 3], np.float32)
    otherwise = ov.Model([o.result(o.relu(q))], [q], "else")
    branch.set_then_body(then)
    branch.set_else_body(otherwise)
    branch.set_input(h.output(0), p, q)
    y = branch.set_output(then.results[0], otherwise.results[0])
    path = write(tmp_path, [y], [x])
    module = tf_ti.openvino.load(path)
    value = np.random.default_rng(0).normal(size=[2, 1, 3]).astype(np.float32)
    np.testing.assert_allclose(module(value)[0], theirs(path, value)[0], rtol=1e-6)
    assert module.outputs[0].shape.rank == 2
    graph = tf.function(module).get_concrete_function(tf.TensorSpec([None, 1, None])).graph
    assert not [op for op in graph.get_operations() if op.type in ("If", "StatelessIf")]
    with tf.GradientTape() as tape:
        tensor = tf.constant(value)
        tape.watch(tensor)
        total = tf.reduce_sum(module(tensor)[0])
    assert tape.gradient(total, tensor).numpy()[0, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("levels", [2, 16, 256])
def test_quantization_passes_the_gradient_on(tmp_path, levels):
    x = o.parameter([1, 5], np.float32, name="x")
    ranges = [o.constant(np.float32([value])) for value in (-2.0, 2.0, -1.0, 3.0)]
    path = write(tmp_path, [o.fake_quantize(x, *ranges, levels)], [x])
    module = tf_ti.openvino.load(path)
    value = np.float32([[-7, -1.9, 0.3, 1.2, 5]])
    with tf.GradientTape() as tape:
        tensor = tf.constant(value)
        tape.watch(tensor)
        (y,) = module(tensor)
    np.testing.assert_allclose(y, theirs(path, value)[0], rtol=1e-6, atol=1e-6)
    assert tape.gradient(y, tensor).numpy().tolist() == [[0, 1, 1, 1, 0]]


def test_ranges_of_a_quantization_learn(tmp_path):
    x = o.parameter([1, 4], np.float32, name="x")
    low, high = (o.constant(np.full([1, 4], value, np.float32)) for value in (-2.0, 2.0))
    shift = o.constant(np.float32([[0.0, 0.1, 0.2, 0.3]]))
    low, high = o.add(low, shift), o.add(high, shift)
    path = write(tmp_path, [o.fake_quantize(x, low, high, low, high, 16)], [x])
    module = tf_ti.openvino.load(path, trainable=True)
    value = np.float32([[-7, -1, 1, 9]])
    with tf.GradientTape() as tape:
        (y,) = module(value)
        total = tf.reduce_sum(y)
    gradients = tape.gradient(total, module.trainable_variables)
    assert all(g is not None and np.isfinite(g).all() for g in gradients)
    # Outside of the range the value is its end, and inside it does not depend on the ends.
    found = sum(np.abs(g.numpy()) for g in gradients)
    assert (found[0, [0, 3]] > 0).all()


def test_a_range_of_one_number_has_a_finite_gradient(tmp_path):
    x = o.parameter([3], np.float32, name="x")
    ranges = [o.constant(np.float32(value)) for value in (1.0, 1.0, -4.0, 4.0)]
    module = tf_ti.openvino.load(write(tmp_path, [o.fake_quantize(x, *ranges, 8)], [x]))
    tensor = tf.constant([0.0, 1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        (y,) = module(tensor)
    assert y.numpy().tolist() == [-4, -4, 4]
    assert tape.gradient(y, tensor).numpy().tolist() == [0, 0, 0]


# --- sequences of no steps -----------------------------------------------------------------------


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_last_states_of_no_steps_are_those_of_openvino(tmp_path, kind, direction, is_constant):
    random = np.random.default_rng(0)

    def draw(*shape):
        return random.normal(size=shape).astype(np.float32)

    n, gates = 1 + (direction == "bidirectional"), {"lstm": 4, "gru": 3, "rnn": 1}[kind]
    states = [draw(3, n, 2) for _ in range(2 if kind == "lstm" else 1)]
    values = [draw(3, 6, 4), *states]
    inputs = [o.parameter(value.shape, np.float32) for value in values]
    lengths = np.array([6, 0, 2], np.int32)
    given = o.constant(lengths) if is_constant else o.parameter([3], np.int32)
    weights = [o.constant(draw(n, gates * 2, *width)) for width in ([4], [2], [])]
    make = getattr(o, f"{kind}_sequence")
    layer = make(*inputs, given, *weights, 2, direction)
    results = [layer.output(i) for i in range(len(layer.outputs()))]
    path = write(tmp_path, results, inputs if is_constant else [*inputs, given])
    values += [] if is_constant else [lengths]
    for ours, expected in zip(tf_ti.openvino.load(path)(*values), theirs(path, *values)):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_constant", [True, False])
def test_what_save_writes_keeps_the_states_of_no_steps(tmp_path, is_constant):
    random = np.random.default_rng(0)
    x, h, c, w, r, b = (
        random.normal(size=shape).astype(np.float32)
        for shape in ([3, 6, 4], [3, 1, 2], [3, 1, 2], [1, 8, 4], [1, 8, 2], [1, 8])
    )
    lengths = np.array([6, 0, 2], np.int32)

    def run(x, h, c, *given):
        return tf_ti.lstm_sequence(x, h, c, given[0] if given else lengths, w, r, b)

    values = [x, h, c] if is_constant else [x, h, c, lengths]
    path = str(tmp_path / "model.xml")
    specs = [tf.TensorSpec(value.shape, value.dtype) for value in values]
    tf_ti.openvino.save(tf.function(run), path, specs)
    expected = run(*values)
    assert (expected[1].numpy()[1] == h[1]).all()
    for found in (theirs(path, *values), tf_ti.openvino.load(path)(*values)):
        for ours, right in zip(found, expected):
            np.testing.assert_allclose(ours, right, rtol=1e-5, atol=1e-6)


# --- what a module says of itself ----------------------------------------------------------------


def test_a_state_begins_with_the_shape_of_its_read_value(tmp_path):
    x = o.parameter([-1, 2], np.float32, name="x")
    total = o.add(o.read_value("s", np.float32, [1, 2]), x)
    path = str(tmp_path / "model.xml")
    model = ov.Model([o.result(total)], [o.assign(total, "s")], [x], "m")
    ov.save_model(model, path, compress_to_fp16=False)
    module = tf_ti.openvino.load(path)
    assert [module([[1, 2]])[0].numpy().tolist() for _ in range(2)] == [[[1, 2]], [[2, 4]]]
    module.reset_state()
    assert module([[1, 2]])[0].numpy().tolist() == [[1, 2]]
    assert repr(module.states["s"]) == "<State 's' float32 (None, 2)>"
    assert repr(module) == (
        f"<IRModule {path!r}: inputs ['x' float32 (None, 2)], states ['s' float32 (None, 2)], "
        f"a call gives a tuple of [{module.outputs[0].name!r} float32 (None, 2)]>"
    )
