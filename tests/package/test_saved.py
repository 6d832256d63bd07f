"""Models that earlier versions saved load and compute as they did: saved/make.py made them."""

import math
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.saved_model import loader_impl

import tf_ti  # noqa: F401 - the ops, their gradients, the layer

SAVED = sorted(
    path for path in (pathlib.Path(__file__).parents[1] / "saved").iterdir() if path.is_dir()
)

X = np.float32([[[0.5, -1], [0.25, 2], [-0.5, 1]], [[1, 1], [-1, 0.5], [0.125, 0]]])
W = np.float32([[0.5, -0.25], [0.75, 1.0]])
TABLE = np.float32([[1, 2], [3, -4], [-5, 6], [7, 8]])
IDS, OFFSETS, WEIGHTS = [1, 0, 2, 1], [0, 3, 3], [0.5, -1.0, 2.0, 0.25]
# As many that programs run loops over them at once, and as small that states stay small.
STEPS = np.random.default_rng(5).uniform(-0.9, 0.9, [20, 3, 2])
BAGS = [[0, 1, 2], [], [3]]  # positions in IDS


@pytest.fixture(params=SAVED, ids=lambda path: path.name)
def saved(request):
    by = loader_impl.parse_saved_model(str(request.param / "model")).meta_graphs[0]
    by = by.meta_info_def.tensorflow_version
    if tuple(map(int, by.split(".")[:2])) > tuple(map(int, tf.__version__.split(".")[:2])):
        pytest.skip(f"TensorFlow does not promise that it loads what a later one ({by}) saved")
    return request.param


@pytest.fixture
def model(saved):
    return tf.saved_model.load(str(saved / "model"))


@pytest.fixture
def programs(saved):
    return tf.saved_model.load(str(saved / "programs"))


def recurrent(x, w):
    """The states h of time steps run backwards, and the last of them, h_0."""
    h, states = np.zeros_like(x[:, 0]), np.zeros_like(x)
    for t in reversed(range(x.shape[1])):
        h = states[:, t] = np.tanh(x[:, t] + h @ w)
    return h, states


def squashed(x, w, order=reversed):
    """The last state of the loops that programs run, and the sums of all."""
    c, sums = np.ones_like(x[0]), np.zeros(x.shape[:2])
    for t in order(range(len(x))):
        c = np.exp(-np.square(c @ w)) + x[t].max(-1, keepdims=True) * c
        sums[t] = (1 / (1 + np.exp(-c))).sum(-1)
    return c, sums


def slopes(x, w, function=recurrent):
    """By differences of the definition in float64."""

    def loss(x, w):
        last, states = function(x, w)
        return last.sum() + (states**2).sum()

    arguments = [np.float64(x), np.float64(w)]
    found = [np.zeros_like(a) for a in arguments]
    for array, slope in zip(arguments, found):
        for at in np.ndindex(array.shape):
            kept = array[at]
            array[at] = kept + 1e-5
            up = loss(*arguments)
            array[at] = kept - 1e-5
            slope[at] = (up - loss(*arguments)) / 2e-5
            array[at] = kept
    return found


def test_a_loop(model):
    for got, expected in zip(model.recurrent(X), recurrent(X, W)):
        np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["slopes", "slopes_by_checkpoints"])
def test_a_loops_gradient(model, name):
    for got, expected in zip(getattr(model, name)(X), slopes(X, W)):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_tape_around_a_loop(model):
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        last, states = model.recurrent(x)
        loss = tf.reduce_sum(last) + tf.reduce_sum(states**2)
    for got, expected in zip(tape.gradient(loss, [x, model.w]), slopes(X, W)):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_scan(model):
    last, values = model.running_products(tf.constant([2.0, 3.0, 0.5]))
    assert last.numpy() == 3.0
    assert values.numpy().tolist() == [2.0 + 1.5, 3.0 + 0.5, 0.5 + 1.0]


def test_a_while_loop(model):
    last, path, back = model.collatz(6, 10)
    assert last.numpy() == 1
    assert path.numpy().tolist() == [6, 3, 10, 5, 16, 8, 4, 2, 0, 0]
    assert back.numpy().tolist() == [2, 4, 8, 16, 5, 10, 3, 6]


@pytest.mark.parametrize("name", ["forward", "kernels"])
def test_a_loop_that_programs_or_kernels_run(programs, name):
    for got, expected in zip(getattr(programs, name)(STEPS), squashed(STEPS, np.float64(W))):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_the_gradient_of_a_loop_that_programs_run(programs):
    for got, expected in zip(programs.slopes(STEPS), slopes(STEPS, W, squashed)):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-8)


def test_a_loop_that_programs_run_in_a_loop(programs):
    expected, _ = squashed(np.repeat(STEPS, 2, axis=0), np.float64(W), order=iter)
    np.testing.assert_allclose(programs.nested(STEPS), expected, rtol=1e-6)


def test_bags(model):
    rows = TABLE[IDS]
    weighted = rows * np.float32(WEIGHTS)[:, np.newaxis]
    expected = {
        "sum": [weighted[bag].sum(0) if bag else TABLE[3] for bag in BAGS],
        "max": [rows[bag].max(0) if bag else [0, 0] for bag in BAGS],
        "packed": rows,
        "segments": [rows[bag].sum(0) for bag in BAGS],
        "mean": [rows[bag].mean(0) if bag else [0, 0] for bag in BAGS],
    }
    got = model.bags(tf.constant(IDS, tf.int64), tf.constant(OFFSETS, tf.int64), WEIGHTS)
    assert got.keys() == expected.keys()
    for name, value in got.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, err_msg=name)


def test_a_step_of_training(model):
    weighted = TABLE[IDS] * np.float32(WEIGHTS)[:, np.newaxis]
    by_bags = np.array([weighted[bag].sum(0) for bag in BAGS])
    by_table, by_weights = np.zeros_like(TABLE), np.zeros(len(IDS))
    for bag, positions in enumerate(BAGS):
        for i in positions:
            by_table[IDS[i]] += WEIGHTS[i] * by_bags[bag]
            by_weights[i] = TABLE[IDS[i]] @ by_bags[bag]

    got = model.step(tf.constant(IDS, tf.int64), tf.constant(OFFSETS, tf.int64), WEIGHTS)

    assert got[0].numpy().tolist() == [0, 1, 2]
    np.testing.assert_allclose(got[1], by_table[:3], rtol=1e-6)
    np.testing.assert_allclose(got[2], by_weights, rtol=1e-6)
    np.testing.assert_allclose(model.table, TABLE - by_table / 2, rtol=1e-6)


def test_a_keras_model(saved):
    model = keras.saving.load_model(saved / "classifier.keras")
    got = model.predict(np.array([[3, 0, 2], [0, 0, 0]]), verbose=0)
    pooled = [(TABLE[3] + TABLE[2]) / math.sqrt(2), TABLE[1]]
    np.testing.assert_allclose(got, np.array(pooled) @ [[2], [-1]] + 0.5, rtol=1e-6)
