"""`tf_ti.openvino.save` of TensorFlow's while loops and TensorArrays, against the functions."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti
import tf_ti.openvino
from tf_ti.openvino import IRError

pytest.importorskip("openvino")
openvino_models = importlib.import_module("openvino_models")
openvino_saving = importlib.import_module("openvino_saving")
randoms, types = openvino_saving.randoms, openvino_saving.types

X = randoms(2, 5, 3)
W = tf.Variable(randoms(3, 3) / 2)


def elements_of_a_range(x):
    array = tf.TensorArray(tf.float32, 5)
    for i in tf.range(5):
        array = array.write(i, x[:, i] * tf.cast(i, tf.float32))
    return array.stack()


def an_early_end(x):
    array, i, total = tf.TensorArray(tf.float32, 8, element_shape=[2, 3]), 0, x[:, 0] * 0
    while tf.reduce_sum(total) < 100.0 and i < 3:
        total = total + x[:, i]
        array = array.write(i, total)
        i += 1
    return array.stack(), total, i


def an_array_that_reads_itself(x):
    array = tf.TensorArray(tf.float32, 6, element_shape=[], clear_after_read=False)
    array = array.write(0, x[0, 0, 0]).write(1, x[0, 0, 1])
    for i in tf.range(2, 6):
        array = array.write(i, array.read(i - 1) + array.read(i - 2))
    return array.stack()


def an_array_that_grows(x):
    array = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[2, 3])
    for i in tf.range(4):
        array = array.write(i, x[:, i])
    return array.stack(), array.size()


def an_array_that_grows_from_the_middle(x):
    array = tf.TensorArray(tf.int32, 1, dynamic_size=True, element_shape=[])
    for i in tf.range(3):
        array = array.write(2 * i, i + 1)
    return array.stack(), tf.shape(x)


def a_condition_that_reads_the_array(x):
    array = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[2, 3])

    def step(i, array):
        return i + 1, array.write(i, x[:, i])

    return tf.while_loop(lambda i, array: array.size() < 4, step, (0, array))[1].stack()


def the_same_element_each_time(x):
    array = tf.TensorArray(tf.float32, 1, element_shape=[None, 3])
    for i in tf.range(3):
        array = array.write(0, x[:, i])
    return array.stack()


def backwards(x):
    rows = tf.TensorArray(tf.float32, 5, element_shape=[2, 3])
    rows = rows.unstack(tf.transpose(x, [1, 0, 2]))
    array = tf.TensorArray(tf.float32, 5, element_shape=[2, 3])
    for i in tf.range(4, -1, -1):
        array = array.write(i, tf.nn.relu(rows.read(i)))
    return array.stack(), array.gather([3, 0])


def without_a_loop(x):
    array = tf.TensorArray(tf.float32, 3, element_shape=[2, 3]).write(1, x[:, 0])
    return array.stack(), array.read(1), array.size()


def collatz(x):
    n, steps = tf.cast(tf.abs(x[0, 0, 0]) * 100, tf.int32) + 3, 0
    while n > 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps, n


def powers_of_a_variable(x):
    return tf.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y @ W), (0, x[0]))


def states_that_change_places(x):
    def step(i, a, b):
        return i + 1, b, a

    return tf.while_loop(lambda i, a, b: i < 3, step, (0, x[0], x[1]))[1:]


def loops_in_loops(x):
    total = tf.zeros([3])
    for i in tf.range(2):
        for j in tf.range(5):
            total = total * 0.5 + x[i, j]
    return total


def in_a_scan(x):
    def step(carry, row):
        last = tf.while_loop(lambda i, v: i < 2, lambda i, v: (i + 1, v * 1.5), (0, carry + row))
        return last[1], carry

    return tf_ti.scan(step, x[0], x, fuse=False)


def a_scan_in_it(x):
    total = x[0, 0]
    for _ in tf.range(3):
        total, _ = tf_ti.scan(lambda c, e: (tf.nn.relu(c * 0.5 + e), ()), total, x[0], fuse=False)
    return total


def mapped(x):
    return tf.map_fn(lambda row: tf.reduce_sum(row) * row[0], x)


def folded(x):
    return tf.scan(lambda a, row: a * 0.5 + row, x), tf.foldl(lambda a, row: a + row, x)


def a_state_that_grows(x):
    def step(i, rows):
        return i + 1, tf.concat([rows, rows[-1:] * 2], 0)

    shapes = (tf.TensorShape([]), tf.TensorShape([None, 3]))
    return tf.while_loop(lambda i, rows: i < 3, step, (0, x[0]), shape_invariants=shapes)[1]


def what_nobody_reads(x):
    def step(i, y, unused):
        return i + 1, y + 1, tf.math.lgamma(unused)

    return tf.while_loop(lambda i, y, unused: i < 3, step, (0, x, x))[1]


def written_under_a_condition(x):
    array = tf.TensorArray(tf.float32, 5, element_shape=[2, 3])
    grown = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[])
    for i in tf.range(5):
        if x[0, i, 0] > 0:
            array = array.write(i, x[:, i])
            if x[0, i, 1] > 0:
                grown = grown.write(grown.size(), x[0, i, 1])
    return array.stack(), grown.stack(), grown.size()


def read_under_a_condition(x):
    array = tf.TensorArray(tf.float32, 2, clear_after_read=False).unstack(x)
    if x[0, 0, 0] > 0:
        y = array.read(0)
    else:
        y = array.read(1) * 2
    return y, array.stack()


def made_under_a_condition(x):
    if x[0, 0, 0] > 0:
        array = tf.TensorArray(tf.float32, 2, element_shape=[3]).write(1, x[0, 0])
    else:
        array = tf.TensorArray(tf.float32, 2, element_shape=[3])
    return array.stack()


def ended_by_a_break(x):
    array = tf.TensorArray(tf.float32, 5, element_shape=[2, 3])
    for i in tf.range(5):
        if x[0, i, 0] > 0.5:
            break
        array = array.write(i, x[:, i])
    return array.stack()


def emptied_each_time(x):
    array = tf.TensorArray(tf.float32, 2, element_shape=x.shape[1:]).unstack(x)
    empty = tf.TensorArray(tf.float32, 2, element_shape=[3])
    for _ in tf.range(2):
        empty = tf.TensorArray(tf.float32, 2, element_shape=[3])
    return array.stack(), empty.stack()


def states_of_our_loops(x):
    def step(i, rows, grown):
        return i + 1, rows.write(i, x[:, i]), grown.write(i, x[0, i, 0])

    rows = tf.TensorArray(tf.float32, 5, element_shape=[2, 3])
    grown = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[])
    _, rows, grown = tf_ti.while_loop(lambda i, *_: i < 3, step, (0, rows, grown))
    return rows.stack(), grown.stack()


def read_in_a_scan(x):
    array = tf.TensorArray(tf.float32, 2, clear_after_read=False).unstack(x)
    return tf_ti.scan(lambda c, row: (c + array.read(1) * row, c), x[0], x, fuse=False)


def what_does_not_change(x):
    def step(carry, row):
        kept, _ = tf_ti.scan(lambda c, e: (c, e), x[0], x, fuse=False)
        taken, _ = tf_ti.scan(lambda c, e: (x[1], e), carry, x, fuse=False)
        _, last = tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y), (0, kept))
        return last + taken, row

    return tf_ti.scan(step, x[0], x, fuse=False)


def views_of_invariants(x):
    y = x[0] * 2
    number, array = y[0, 0], tf.TensorArray(tf.float32, 5, element_shape=[], clear_after_read=False)

    def step(carry, row):
        total = tf.reshape(y, [-1]) + tf.reshape(carry, [-1])
        return tf.reshape(total, tf.shape(y)) + row, tf.reduce_max(y[:, None] + carry[:, None], 1)

    for i in tf.range(5):
        array = array.write(i, number + array.read(tf.maximum(i - 1, 0)))
    return tf_ti.scan(step, y, x, fuse=False), array.stack()


def without_an_iteration(x):
    _, last = tf_ti.while_loop(
        lambda i, y: tf.reduce_sum(x) > 1e9, lambda i, y: (i + 1, x[0] * 2), (0, x[1])
    )
    return last


FUNCTIONS = [
    elements_of_a_range,
    an_early_end,
    an_array_that_reads_itself,
    an_array_that_grows,
    an_array_that_grows_from_the_middle,
    a_condition_that_reads_the_array,
    the_same_element_each_time,
    backwards,
    without_a_loop,
    collatz,
    powers_of_a_variable,
    states_that_change_places,
    loops_in_loops,
    in_a_scan,
    a_scan_in_it,
    mapped,
    folded,
    a_state_that_grows,
    what_nobody_reads,
    written_under_a_condition,
    read_under_a_condition,
    made_under_a_condition,
    ended_by_a_break,
    emptied_each_time,
    states_of_our_loops,
    read_in_a_scan,
    what_does_not_change,
    views_of_invariants,
    without_an_iteration,
]


def check(function, x, path, *signature):
    tf_ti.openvino.save(function, path, list(signature) or None)
    expected = [t.numpy() for t in tf.nest.flatten(function(tf.constant(x)))]
    loaded = [t.numpy() for t in tf_ti.openvino.load(path)(x)]
    for found in openvino_models.run(path, [x]), loaded:
        for value, right in zip(found, expected, strict=True):
            assert value.shape == right.shape
            np.testing.assert_allclose(value, right, 1e-5, 1e-5)


OF_TWO = (
    an_early_end,
    an_array_that_grows,
    backwards,
    without_a_loop,
    written_under_a_condition,
    ended_by_a_break,
    states_of_our_loops,
)


@pytest.mark.quarter
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_while_loops(function, dynamic, tmp_path):
    shape = [None, None, 3] if dynamic and "rows" not in function.__name__ else X.shape
    if dynamic and function in OF_TWO:
        shape = [2, None, 3]  # as their arrays say
    check(tf.function(function), X, tmp_path / "model.xml", tf.TensorSpec(shape))


LAYERS = {
    "LSTM": lambda layers: layers.LSTM(4, return_sequences=True),
    "GRU": lambda layers: layers.GRU(4),
    "SimpleRNN": lambda layers: layers.SimpleRNN(3, go_backwards=True, return_sequences=True),
    "Bidirectional": lambda layers: layers.Bidirectional(layers.LSTM(3)),
    "masked": lambda layers: keras.Sequential(
        [layers.Masking(), layers.SimpleRNN(3, return_sequences=True)]
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_layers_of_keras_in_functions(make, dynamic, tmp_path):
    layer = make(keras.layers)
    layer(X)
    shape = [None, None, 3] if dynamic else X.shape
    path = tmp_path / "model.xml"
    check(tf.function(lambda x: layer(x)), X, path, tf.TensorSpec(shape))
    assert "Loop" in types(path)


def test_a_saved_model_of_keras_with_its_loops(tmp_path):
    inputs = keras.Input((None, 3), name="series")
    y = keras.layers.Bidirectional(keras.layers.GRU(4, return_sequences=True))(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2)(y))
    model.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(tmp_path / "saved")
    path = tmp_path / "model.xml"
    tf_ti.openvino.save(saved.signatures["serving_default"], path)
    for found in openvino_models.run(path, [X])[0], tf_ti.openvino.load(path)(X)[0]:
        np.testing.assert_allclose(found, model(X), 1e-5, 1e-5)


def of_unknown_rank(x):
    array = tf.TensorArray(tf.float32, 1)
    for i in tf.range(3):
        array = array.write(0, x[:, i])
    return array.stack()


def of_unknown_rank_in_a_branch(x):
    array = tf.TensorArray(tf.float32, 3)
    for i in tf.range(3):
        if x[0, 0, 0] > 0:
            array = array.write(i, x[:, i])
    return array.stack()


def of_complex_numbers(x):
    z = tf.cast(x, tf.complex64)
    for _ in tf.range(3):
        z *= 1j
    return tf.math.real(z)


def that_assigns(x):
    for i in tf.range(3):
        W.assign_add(x[0, :3] * tf.cast(i, tf.float32))
    return x


REFUSED = {
    "rank": (of_unknown_rank, "element_shape of its TensorArray must be given"),
    "branch": (of_unknown_rank_in_a_branch, "element_shape of its TensorArray must be given"),
    "complex": (of_complex_numbers, "While of complex numbers"),
    "assignment": (that_assigns, "assigns a variable in it.*a state of the loop"),
}


@pytest.mark.parametrize("function, match", REFUSED.values(), ids=REFUSED)
def test_what_loops_of_openvino_lack_is_named(function, match, tmp_path):
    with pytest.raises(IRError, match=match):
        tf_ti.openvino.save(
            tf.function(function), tmp_path / "model.xml", [tf.TensorSpec([2, 5, 3])]
        )


DISTRIBUTED = {
    "dense": (lambda: keras.layers.Dense(2), (3,)),
    "norms": (
        lambda: keras.Sequential([keras.layers.LayerNormalization(), keras.layers.Dropout(0.5)]),
        (3,),
    ),
    "sequences": (lambda: keras.layers.LSTM(3), (5, 3)),
}


@pytest.mark.parametrize("case", DISTRIBUTED)
def test_keras_layers_at_any_number_of_steps(case, tmp_path):
    make, shape = DISTRIBUTED[case]
    x = keras.Input((None, *shape))
    model = keras.Model(x, keras.layers.TimeDistributed(make())(x))
    path = str(tmp_path / "model.xml")
    tf_ti.openvino.save(model, path)
    for extents in ((2, 4), (4, 2), (1, 1)):
        values = randoms(*extents, *shape)
        (found,) = openvino_models.run(path, [values])
        np.testing.assert_allclose(found, model(values), atol=1e-5)


# --- conditionals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_each_number_has_its_branch(count, tmp_path):
    branches = [lambda x, k=k: [x + k, x * float(k)] for k in range(count)]

    def run(index, x):
        return tf.switch_case(index, [lambda f=f: f(x) for f in branches])

    path, x = str(tmp_path / "model.xml"), randoms(3)
    specs = [tf.TensorSpec([], tf.int32), tf.TensorSpec([3])]
    tf_ti.openvino.save(tf.function(run, autograph=False), path, specs)
    for index in {-1, 0, 1, count // 2, count - 1, count, 1000}:
        wanted = branches[index if 0 <= index < count else -1](x)
        for found, right in zip(openvino_models.run(path, [np.int32(index), x]), wanted):
            np.testing.assert_allclose(found, right, 1e-6)


@pytest.mark.parametrize("condition", [True, False, 2, 0, 0.5, [], [0, 0]])
def test_of_a_known_condition_one_branch_is_written(condition, tmp_path):
    @tf.function(input_signature=[tf.TensorSpec([4, 3])], autograph=False)
    def whole(x):
        return 2.0 * x

    @tf.function(input_signature=[tf.TensorSpec([4, 3])], autograph=False)
    def cut(x):
        return x[1:3]

    def run(x):
        known = tf.constant(condition)
        (made,) = tf.raw_ops.If(
            cond=known,
            input=[x],
            Tout=[tf.float32],
            then_branch=whole.get_concrete_function(),
            else_branch=cut.get_concrete_function(),
        )
        return made

    path, x = str(tmp_path / "model.xml"), randoms(4, 3)
    tf_ti.openvino.save(tf.function(run, autograph=False), path, [tf.TensorSpec([4, 3])])
    assert "If" not in types(path)
    is_true = len(condition) > 0 if isinstance(condition, list) else bool(condition)
    np.testing.assert_allclose(openvino_models.run(path, [x])[0], 2 * x if is_true else x[1:3])
