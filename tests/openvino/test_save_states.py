"""`tf_ti.openvino.save` of functions that assign variables, over calls that follow one another."""

import gc
import importlib
import os
import pathlib
from xml.etree import ElementTree

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti
import tf_ti.openvino
from tf_ti.openvino import IRError

ov = pytest.importorskip("openvino")
openvino_models = importlib.import_module("openvino_models")

ROWS, FEATURES = 2, 3
CALLS = [np.random.default_rng(k).standard_normal([ROWS, FEATURES], np.float32) for k in range(5)]
VALUES = np.random.default_rng(9).standard_normal([ROWS, FEATURES], np.float32)


def in_openvino(path, calls):
    """The outputs of calls of one request."""
    hint = {"INFERENCE_PRECISION_HINT": "f32"}
    request = openvino_models.CORE.compile_model(str(path), "CPU", hint).create_infer_request()
    found = []
    for inputs in calls:
        request.infer([np.asarray(x) for x in inputs])
        outputs = request.results.values()
        found.append([np.array(value) for value in outputs])
    return found


def types(path):
    return [layer.get("type") for layer in ElementTree.parse(path).iter("layer")]


def assert_same(found, expected):
    for some, others in zip(found, expected, strict=True):
        for value, right in zip(some, others, strict=True):
            assert value.shape == right.shape
            np.testing.assert_allclose(
                value.astype(np.float64), right.astype(np.float64), 1e-5, 1e-5
            )


def check(function, calls, path, *signature):
    """Saves the function before it is called, and compares over the calls."""
    tf_ti.openvino.save(function, path, list(signature) or None)
    loaded = tf_ti.openvino.load(path)
    expected = [[t.numpy() for t in tf.nest.flatten(function(*inputs))] for inputs in calls]
    assert_same([[t.numpy() for t in loaded(*inputs)] for inputs in calls], expected)
    assert_same(in_openvino(path, calls), expected)
    return loaded


# --- functions with variables ---------------------------------------------------------------------


def variable(value=VALUES, **options):
    return tf.Variable(value, **options)


def totals():
    total = variable(name="total")

    def run(x):
        before = tf.identity(total)
        total.assign_add(x)
        return before, total * 2

    return run


def assigned_twice():
    v = variable()

    def run(x):
        v.assign(v * x)
        between = v + 1
        v.assign_sub(x)
        return between, tf.identity(v)

    return run


def the_input_itself():
    last, other = variable(), variable(VALUES.T)

    def run(x):
        before, turned = tf.identity(last), tf.identity(other)
        last.assign(x)
        other.assign(tf.reshape(x, [FEATURES, ROWS]))
        return x - before, turned

    return run


def a_constant():
    was_called, zeros = variable(False), variable()

    def run(x):
        before, first = tf.identity(was_called), tf.identity(zeros)
        was_called.assign(True)
        zeros.assign(tf.zeros_like(x) + 2)
        return before, first + x

    return run


def places_change():
    a, b = variable(), variable(-VALUES)

    def run(x):
        first, second = tf.identity(a), tf.identity(b)
        a.assign(second)
        b.assign(first + x)
        return first, second

    return run


def rows_are_kept():
    kept = variable(np.zeros([0, FEATURES], np.float32), shape=[None, FEATURES])

    def run(x):
        kept.assign(tf.concat([kept, x], 0)[-3:])
        return tf.identity(kept)

    return run


def under_a_condition():
    v, count = variable(), variable(np.int32(0))

    def run(x):
        count.assign_add(1)
        if count > 2:
            v.assign(v + x)
        else:
            v.assign(x * 2)
        if x[0, 0] > 0:
            count.assign_sub(1)
        return v + 1, tf.identity(count)

    return tf.function(run)


def one_branch_assigns():
    v, w = variable(), variable(-VALUES)

    def run(x):
        def changed():
            v.assign_add(w)
            return v * x

        y = tf.cond(x[0, 0] > 0, changed, lambda: v - x)
        return y, tf.identity(v)

    return run


def a_branch_in_a_branch():
    v = variable()

    def run(x):
        def inner():
            return tf.cond(x[0, 1] > 0, lambda: v.assign_add(x), lambda: v.assign(x * 3))

        return tf.cond(x[0, 0] > 0, inner, lambda: v.read_value())

    return run


def read_in_a_loop():
    v = variable(VALUES[0])

    def run(x):
        v.assign(v + x[1])

        def step(carry, row):
            scaled = tf.cond(row[0] > 0, lambda: v * row, lambda: row)
            return carry * v + scaled, scaled

        last, all_rows = tf_ti.scan(step, x[0], x, fuse=False)
        v.assign_sub(last)
        return last, all_rows

    return run


def in_a_function():
    v = variable()

    @tf.function
    def add(x):
        return v.assign_add(x)

    def run(x):
        return add(x) + add(2 * x), v * 1

    return run


def no_state():
    v = variable()

    def run(x):
        v.assign(x)
        return v + 1

    return run


def of_one_name():
    a, b = variable(name="v"), variable(-VALUES, name="v")

    def run(x):
        a.assign_add(x)
        b.assign(b * a)
        return a + b

    return run


def rows_of_a_table():
    table = variable(np.arange(12, dtype=np.float32).reshape(4, 3))

    def run(x):
        rows = tf.gather(table, [3, 1])
        bags = tf_ti.embedding_bag_packed(table, tf.constant([[0, 1], [2, 3]]))
        table.assign(table * 0.5 + x[0])
        return rows, bags

    return run


def what_stays():
    v, w = variable(), variable()

    def run(x):
        v.assign(tf.identity(v))
        w.assign(tf.reshape(tf.reshape(w, [-1]), [ROWS, FEATURES]))
        return x + w

    return run


STATES = [
    totals,
    assigned_twice,
    the_input_itself,
    a_constant,
    places_change,
    rows_are_kept,
    under_a_condition,
    one_branch_assigns,
    a_branch_in_a_branch,
    read_in_a_loop,
    in_a_function,
    of_one_name,
    rows_of_a_table,
    what_stays,
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", STATES)
def test_calls_after_one_another_answer_as_the_functions_do(make, dynamic, tmp_path):
    fits = make not in (the_input_itself,)  # whose variables have shapes
    shape = [None, FEATURES] if dynamic and fits else [ROWS, FEATURES]
    check(make(), [(x,) for x in CALLS], tmp_path / "model.xml", tf.TensorSpec(shape))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "int64", "uint8", "bool"])
def test_states_of_other_dtypes(dtype, tmp_path):
    dtype = tf.as_dtype(dtype)
    v = tf.Variable(tf.cast([[1, 0, 1]], dtype))
    either = tf.math.logical_xor if dtype == tf.bool else lambda a, b: a + b

    def run(x):
        before = tf.identity(v)
        v.assign(either(v, x))
        return before, either(v, v)

    calls = [(tf.cast([[k % 2, 1, 0]], dtype),) for k in range(4)]
    check(run, calls, tmp_path / "model.xml", tf.TensorSpec([1, 3], dtype))


@pytest.mark.parametrize("value", [2**31, -(2**40)])
def test_a_state_that_int32_does_not_hold_is_refused(value, tmp_path):
    count = tf.Variable(value, dtype=tf.int64, name="count")
    with pytest.raises(IRError, match="'count'.*no numbers as large"):
        tf_ti.openvino.save(
            lambda x: count.assign_add(x), tmp_path / "model.xml", [tf.TensorSpec([], tf.int64)]
        )
    assert os.listdir(tmp_path) == []


def test_a_state_begins_with_the_present_value_and_is_reset_to_it(tmp_path):
    total, path = tf.Variable([1.0, 2.0], name="total"), tmp_path / "model.xml"
    run = tf.function(lambda x: total.assign_add(x), input_signature=[tf.TensorSpec([2])])
    run([1.0, 1.0])
    tf_ti.openvino.save(run, path)
    loaded = tf_ti.openvino.load(path)
    assert list(loaded.states) == ["total"]
    for _ in range(2):
        assert loaded([1.0, 1.0])[0].numpy().tolist() == [3, 4]
        assert loaded([1.0, 1.0])[0].numpy().tolist() == [4, 5]
        loaded.reset_state()


def test_what_is_assigned_before_it_is_read_is_no_state(tmp_path):
    path = tmp_path / "model.xml"
    check(no_state(), [(x,) for x in CALLS], path, tf.TensorSpec([ROWS, FEATURES]))
    assert not {"ReadValue", "Assign"} & set(types(path))


SEEDED = {
    "lstm": lambda: keras.layers.LSTM(3, dropout=0.2),
    "gru": lambda: keras.layers.GRU(3, dropout=0.2, recurrent_dropout=0.1),
    "rnn": lambda: keras.layers.SimpleRNN(3, recurrent_dropout=0.1),
    "ours": lambda: tf_ti.keras.LSTM(3, dropout=0.2, recurrent_dropout=0.1),
    "grayscale": lambda: keras.layers.RandomGrayscale(),
    "hue": lambda: keras.layers.RandomHue(0.2),
    "saturation": lambda: keras.layers.RandomSaturation(0.2),
    "posterization": lambda: keras.layers.RandomPosterization(4),
    "sharpness": lambda: keras.layers.RandomSharpness(0.2),
    "color": lambda: keras.layers.RandomColorDegeneration(0.2),
}


@pytest.mark.parametrize("make", SEEDED.values(), ids=SEEDED)
def test_seeds_that_no_result_depends_on_are_no_states(make, tmp_path):
    layer, path = make(), str(tmp_path / "model.xml")
    is_image = not isinstance(layer, keras.layers.RNN)
    x = np.random.default_rng(0).random((2, 8, 8, 3) if is_image else (2, 5, 3), np.float32)
    inputs = keras.Input(x.shape[1:])
    model = keras.Model(inputs, layer(inputs))
    tf_ti.openvino.save(model, path)
    assert not {"ReadValue", "Assign"} & set(types(path))
    assert_same(in_openvino(path, [[x]]), [[model(x, training=False).numpy()]])


def test_states_that_results_depend_on_in_later_calls_stay(tmp_path):
    """The first variable is read for the next value of the second one alone."""
    first, second, third = (tf.Variable(float(k)) for k in range(3))

    @tf.function(input_signature=[tf.TensorSpec([])], autograph=False)
    def run(x):
        result = x + second
        second.assign(first * 2.0)
        first.assign_add(x)
        third.assign_add(x)  # which nothing depends on
        return result

    path = str(tmp_path / "model.xml")
    tf_ti.openvino.save(run, path)
    assert types(path).count("ReadValue") == types(path).count("Assign") == 2
    calls = [[np.float32(k)] for k in (1, 2, 5, 7)]
    assert_same(in_openvino(path, calls), [[run(*call).numpy()] for call in calls])


def test_a_variable_that_is_only_read_is_a_constant(tmp_path):
    a, b = tf.Variable([2.0]), tf.Variable([3.0])
    path = tmp_path / "model.xml"
    check(lambda x: a.assign_add(x) * b, [([1.0],)] * 2, path, tf.TensorSpec([1]))
    assert types(path).count("ReadValue") == 1


def test_a_scalar_variable_that_is_only_read_may_be_an_axis(tmp_path):
    axis, spec = tf.Variable(1), tf.TensorSpec([ROWS, FEATURES])
    check(lambda x: tf.expand_dims(x, axis), [(x,) for x in CALLS], tmp_path / "model.xml", spec)


@pytest.mark.parametrize("form", ["scan", "condition"])
def test_an_assignment_in_a_loop_is_refused(form, tmp_path):
    v = tf.Variable(0.0)

    def step(carry, row):
        def assign():
            with tf.control_dependencies([v.assign_add(row)]):
                return tf.identity(row)

        return carry + (assign() if form == "scan" else tf.cond(row > 0, assign, lambda: row)), row

    def run(x):
        return tf_ti.scan(step, 0.0, x, fuse=False)

    with pytest.raises(IRError, match="assigns a variable in it.*a state of the loop"):
        tf_ti.openvino.save(run, tmp_path / "model.xml", [tf.TensorSpec([3])])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["ours", "keras"])
def test_stateful_layers_of_keras(kind, tmp_path):
    layers = tf_ti.keras if kind == "ours" else keras.layers
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(2, 4, 3)),
            layers.LSTM(5, stateful=True, return_sequences=True),
            layers.GRU(4, stateful=True, return_sequences=True),
            layers.SimpleRNN(4, stateful=True),
        ]
    )
    rng = np.random.default_rng(0)
    calls = [(rng.standard_normal([2, 4, 3], np.float32),) for _ in range(4)]
    loaded = check(model, calls, tmp_path / "model.xml")
    assert len(loaded.states) == 4
    assert {"LSTMSequence", "GRUSequence", "RNNSequence"} <= set(types(tmp_path / "model.xml"))


class Averages(tf.Module):
    def __init__(self):
        super().__init__()
        self.average = tf.Variable(tf.zeros([3]), name="average")
        self.scale = tf.Variable([1.0, 2.0, 3.0])

    @tf.function(input_signature=[tf.TensorSpec([None, 3], name="rows")])
    def __call__(self, rows):
        self.average.assign(self.average * 0.9 + tf.reduce_mean(rows, 0) * 0.1)
        return {"smooth": self.average * self.scale, "rows": rows}


def test_the_signature_of_a_saved_model_has_states(tmp_path):
    tf.saved_model.save(Averages(), str(tmp_path / "saved"))
    path, module = tmp_path / "model.xml", Averages()
    saved = tf.saved_model.load(str(tmp_path / "saved"))
    tf_ti.openvino.save(saved.signatures["serving_default"], path)
    loaded = tf_ti.openvino.load(path)
    assert [info.name for info in loaded.inputs] == ["rows"]
    by_name = [info.name for info in loaded.outputs].index("smooth")
    for (value, x), found in zip(
        [(module(x)["smooth"].numpy(), x) for x in CALLS], in_openvino(path, [[x] for x in CALLS])
    ):
        np.testing.assert_allclose(loaded(x)[by_name], value, 1e-5)
        np.testing.assert_allclose(found[by_name], value, 1e-5)


def test_a_signature_is_saved_after_its_saved_model(tmp_path):
    tf.saved_model.save(Averages(), str(tmp_path / "saved"))
    path, module = tmp_path / "model.xml", Averages()
    signature = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    gc.collect()
    tf_ti.openvino.save(signature, path)
    loaded = tf_ti.openvino.load(path)
    by_name = [info.name for info in loaded.outputs].index("smooth")
    for x in CALLS:
        np.testing.assert_allclose(loaded(x)[by_name], module(x)["smooth"], 1e-5)


# --- files that were loaded -----------------------------------------------------------------------


def stateful_model(path):
    """Sums that begin with twice the input, and a counter without an initial value."""
    op = ov.opset15
    x = op.parameter([-1, 3], np.float32, name="frames")
    twice = op.multiply(x, op.constant(np.float32(2)), name="twice")
    read = op.read_value(twice, "sum/of frames", np.float32, ov.PartialShape([-1, 3]))
    total = op.add(read, x, name="total")
    count = op.read_value("count", np.int32, [1])
    next_count = op.add(count, op.constant(np.array([1], np.int32)), name="next")
    results = [op.result(total, name="out"), op.result(next_count, name="number")]
    results[0].input_value(0).set_names({"sums", "total"})
    sinks = [op.assign(total, "sum/of frames"), op.assign(next_count, "count")]
    ov.save_model(ov.Model(results, sinks, [x], "running sums"), str(path))
    return path


def test_a_stateful_file_is_written_as_it_was_read(tmp_path):
    first, second = stateful_model(tmp_path / "first.xml"), tmp_path / "second.xml"
    module = tf_ti.openvino.load(first)
    calls = [(x,) for x in CALLS]
    module(*calls[0])  # has no influence on what is written
    tf_ti.openvino.save(module, second)
    again = tf_ti.openvino.load(second)
    assert [info.names for info in again.outputs] == [info.names for info in module.outputs]
    assert [info.names for info in again.inputs] == [info.names for info in module.inputs]
    assert set(again.states) == set(module.states) == {"sum/of frames", "count"}
    ours = [[t.numpy() for t in again(*inputs)] for inputs in calls]
    assert_same(ours, in_openvino(first, calls))
    assert_same(in_openvino(second, calls), in_openvino(first, calls))
    names = [
        {node.friendly_name for node in openvino_models.CORE.read_model(str(path)).get_ops()}
        for path in (first, second)
    ]
    assert names[0] == names[1]
    assert openvino_models.CORE.read_model(str(second)).friendly_name == "running sums"


def test_a_stateful_file_in_a_function_keeps_its_states(tmp_path):
    first, second = stateful_model(tmp_path / "first.xml"), tmp_path / "second.xml"
    module = tf_ti.openvino.load(first)
    tf_ti.openvino.save(
        lambda x: [module(x)[0] * 2, module.states["count"].value + 0],
        second,
        [tf.TensorSpec([None, 3])],
    )
    expected = [[2 * total, number] for total, number in in_openvino(first, [[x] for x in CALLS])]
    found = in_openvino(second, [[x] for x in CALLS])
    assert_same(found, expected)
    loaded = tf_ti.openvino.load(second)
    assert_same([[t.numpy() for t in loaded(x)] for x in CALLS], expected)


PACKED = ["boolean", "u1", "u2", "u3", "u4", "u6", "i4", "nf4", "i8", "f8e4m3"]


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("count", [1, 7, 8, 24])
def test_packed_constants_are_packed_again(kind, count, tmp_path):
    op, element_type = ov.opset15, getattr(ov.Type, kind)
    numbers = np.random.default_rng(count).integers(0, 64, [count])
    limits = {"boolean": 2, "u1": 2, "u2": 4, "u3": 8, "u4": 16, "i4": 8, "nf4": 2}
    numbers = numbers % limits.get(kind, 64) - (3 if kind in ("i4", "i8") else 0)
    constant = op.constant(numbers.astype(np.float32), element_type)
    x = op.parameter([count], np.float32, name="x")
    model = ov.Model([op.result(op.add(x, op.convert(constant, "f32")))], [x], "m")
    first, second = (tmp_path / f"{name}.xml" for name in ("first", "second"))
    ov.save_model(model, str(first), compress_to_fp16=False)
    tf_ti.openvino.save(tf_ti.openvino.load(first), second)
    read = tf_ti.openvino.load(first), tf_ti.openvino.load(second)
    np.testing.assert_array_equal(*(module(np.zeros(count))[0] for module in read))
    bins = [path.with_suffix(".bin").read_bytes() for path in (first, second)]
    assert bins[0].rstrip(b"\0") == bins[1].rstrip(b"\0")


def half_model(path):
    """Weights that are halves in the file, once beside a bias that two layers share."""
    op, rng = ov.opset15, np.random.default_rng(0)
    x = op.parameter([-1, 8], np.float32, name="x")
    bias = op.constant(rng.standard_normal(8).astype(np.float32))
    y = op.matmul(x, op.constant(rng.standard_normal([8, 8]).astype(np.float32)), False, False)
    y = op.add(op.relu(op.add(y, bias)), bias)
    ov.save_model(ov.Model([op.result(y)], [x], "m"), str(path), compress_to_fp16=True)
    return path


@pytest.mark.parametrize("compute_dtype", [None, "float32"])
def test_a_file_of_halves_stays_one_and_what_is_trained_is_not_rounded(compute_dtype, tmp_path):
    first, second = half_model(tmp_path / "first.xml"), tmp_path / "second.xml"
    module = tf_ti.openvino.load(first, trainable=True, compute_dtype=compute_dtype)
    x = np.random.default_rng(1).standard_normal([3, 8], np.float32)
    tf_ti.openvino.save(module, second)
    assert os.path.getsize(tmp_path / "second.bin") < 2 * os.path.getsize(tmp_path / "first.bin")
    np.testing.assert_allclose(openvino_models.run(second, [x])[0], module(x)[0], 1e-5, 1e-5)
    for weight in module.trainable_variables:
        weight.assign(weight + 1 / 3)
    tf_ti.openvino.save(module, second)
    for found in openvino_models.run(second, [x])[0], tf_ti.openvino.load(second)(x)[0]:
        np.testing.assert_allclose(found, module(x)[0], 1e-5, 1e-5)


def test_what_is_trained_is_not_rounded_to_a_packed_type(tmp_path):
    op, first, second = ov.opset15, tmp_path / "first.xml", tmp_path / "second.xml"
    x = op.parameter([-1, 4], np.float32, name="x")
    numbers = np.random.default_rng(0).uniform(-1, 1, 32).tolist()
    weight = op.convert(ov.op.Constant(ov.Type.nf4, ov.Shape([4, 8]), numbers), "f32")
    y = op.result(op.matmul(x, weight, False, False))
    ov.save_model(ov.Model([y], [x], "m"), str(first), compress_to_fp16=False)
    module = tf_ti.openvino.load(first, trainable=True)
    (variable,) = module.trainable_variables
    variable.assign_add(tf.fill([4, 8], 0.01))
    tf_ti.openvino.save(module, second)
    given = np.eye(4, dtype=np.float32)
    np.testing.assert_array_equal(tf_ti.openvino.load(second)(given)[0], variable)
    np.testing.assert_allclose(openvino_models.run(second, [given])[0], variable, 1e-6)


def test_a_file_that_is_gone_can_be_saved(tmp_path):
    first, second = half_model(tmp_path / "first.xml"), tmp_path / "second.xml"
    module = tf_ti.openvino.load(first)
    for path in (first, pathlib.Path(str(first)[:-3] + "bin")):
        path.unlink()
    tf_ti.openvino.save(module, second)
    x = np.ones([1, 8], np.float32)
    np.testing.assert_allclose(openvino_models.run(second, [x])[0], module(x)[0], 1e-5, 1e-5)


def test_a_signature_traces_a_module_anew(tmp_path):
    """With other extents than those of its file."""
    first, second = half_model(tmp_path / "first.xml"), tmp_path / "second.xml"
    module = tf_ti.openvino.load(first)
    tf_ti.openvino.save(module, second, [tf.TensorSpec([5, 8], name="five")])
    loaded = tf_ti.openvino.load(second)
    assert loaded.inputs[0].name == "five" and loaded.inputs[0].shape == [5, 8]
