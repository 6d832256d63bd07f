"""`until` of `tf_ti.scan`: a scan that a condition may end before its elements do."""

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import _library

_SUMS = [1.0, 3.0, 6.0, 10.0, 15.0]


def _add(carry, x):
    carry += x
    return carry, carry


def _by_definition(f, init, xs, until, length, reverse, axis, is_padded):
    """The docstring's words, one step after another, in TensorFlow's eager operations."""
    carry, ys, order = init, [], range(length)
    for k in reversed(order) if reverse else order:
        carry, y = f(carry, tf.gather(xs, k, axis=axis) if xs is not None else None)
        ys.append(y)
        if until(carry, y):
            break
    missing = [tf.zeros_like(ys[0])] * (length - len(ys) if is_padded else 0)
    ys = missing + ys[::-1] if reverse else ys + missing
    return carry, tf.stack(ys, axis)


@pytest.mark.parametrize("mode", ["eager", "function", "plain"])
@pytest.mark.parametrize("bound, steps", [(0.5, 1), (5.0, 3), (14.0, 5), (99.0, 5)])
def test_the_step_that_ends_it_counts(mode, bound, steps):
    def run(xs):
        return tf_ti.scan(_add, 0.0, xs, until=lambda carry, y: carry > bound)

    xs = tf.range(1.0, 6.0)
    tf.config.run_functions_eagerly(mode == "plain")
    try:
        last, sums = tf.function(run)(xs) if mode == "function" else run(xs)
    finally:
        tf.config.run_functions_eagerly(False)
    assert last.numpy() == _SUMS[steps - 1]
    assert sums.numpy().tolist() == _SUMS[:steps]


@pytest.mark.pairwise
@pytest.mark.parametrize("mode", ["eager", "function", "xla", "plain"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("gives_length", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("seed", range(2), indirect=True)
def test_values_and_gradients_are_those_of_the_definition(
    mode, reverse, gives_length, axis, seed, rng
):
    if mode == "xla" and _library.XLA_PROBLEM is not None:
        pytest.skip(str(_library.XLA_PROBLEM))
    length = int(rng.integers(2, 7))
    shape = [2, 3]
    shape.insert(axis, length)
    xs = tf.constant(rng.normal(size=shape), tf.float32)
    init, w = tf.constant(rng.normal(size=[2, 3]), tf.float32), tf.constant(0.7)
    bound = float(rng.uniform(0, 3))
    is_padded = gives_length or mode == "xla"

    def f(carry, x):
        carry = tf.tanh(carry * w) + x
        return carry, carry * x

    def until(carry, y):
        return tf.reduce_max(carry) + 0.1 * tf.reduce_max(y) > bound

    def run(scan):
        with tf.GradientTape() as tape:
            tape.watch([xs, init, w])
            last, ys = scan()
            total = tf.reduce_sum(last * last) + tf.reduce_sum(tf.sin(ys))
        gradients = tape.gradient(total, [xs, init, w], unconnected_gradients="zero")
        return last, ys, *map(tf.convert_to_tensor, gradients)

    def ours():
        given = {"length": length} if gives_length else {}
        return tf_ti.scan(f, init, xs, axis=axis, reverse=reverse, until=until, **given)

    expected = run(lambda: _by_definition(f, init, xs, until, length, reverse, axis, is_padded))
    tf.config.run_functions_eagerly(mode == "plain")
    try:
        if mode in ("function", "xla"):
            found = tf.function(run, jit_compile=mode == "xla")(ours)
        else:
            found = run(ours)
    finally:
        tf.config.run_functions_eagerly(False)
    for theirs, our in zip(expected, found):
        np.testing.assert_allclose(theirs, our, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
def test_segments_are_of_the_elements_that_were_read(axis, reverse):
    xs = tf.constant(np.random.default_rng(4).normal(size=[6, 2] if axis == 0 else [2, 6]))

    def f(carry, x):
        k, c = carry
        c = tf.tanh(0.7 * c) + x
        return (k + 1, c), c * x

    def gradient(scan):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            (_, last), ys = scan(f, (0, tf.zeros([2], xs.dtype)), xs, lambda carry, y: carry[0] > 3)
            loss = tf.reduce_sum(last * last) + tf.reduce_sum(tf.sin(ys))
        return tf.convert_to_tensor(tape.gradient(loss, xs))

    def ours(f, init, xs, until):
        return tf_ti.scan(f, init, xs, axis=axis, reverse=reverse, until=until, checkpoint_every=3)

    def theirs(f, init, xs, until):
        return _by_definition(f, init, xs, until, 6, reverse, axis, False)

    np.testing.assert_allclose(gradient(ours), gradient(theirs), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [tf.int32, tf.string, tf.bool, tf.complex64])
def test_results_of_any_type_without_elements(dtype):
    value = tf.cast([3, 4], dtype) if dtype != tf.string else tf.constant(["3", "4"])
    last, ys = tf.function(tf_ti.scan)(
        lambda i, _: (i + 1, {"value": value, "i": i}),
        0,
        length=5,
        until=lambda i, y: y["i"] >= 2,
    )
    assert last.numpy() == 3 and ys["i"].numpy().tolist() == [0, 1, 2, 0, 0]
    assert ys["value"].shape == [5, 2]
    assert ys["value"][2].numpy().tolist() == value.numpy().tolist()
    assert ys["value"][3].numpy().tolist() == tf.zeros_like(value).numpy().tolist()


def test_a_length_that_is_a_tensor():
    @tf.function
    def run(n):
        return tf_ti.scan(
            lambda c, _: (2 * c, c), 1, length=n, until=lambda c, y: c > 8, reverse=True
        )

    last, ys = run(tf.constant(6))
    assert last.numpy() == 16 and ys.numpy().tolist() == [0, 0, 8, 4, 2, 1]
    last, ys = run(tf.constant(2))
    assert last.numpy() == 4 and ys.numpy().tolist() == [2, 1]


def test_ragged_rows_end_early():
    xs = tf.ragged.constant([[1.0], [2.0, 3.0], [], [4.0, 5.0, 6.0]])

    @tf.function
    def run(xs):
        def f(c, row):
            return c + tf.reduce_sum(row), tf.size(row)

        return tf_ti.scan(f, 0.0, xs, until=lambda c, y: c > 5.0)

    last, sizes = run(xs)
    assert last.numpy() == 6 and sizes.numpy().tolist() == [1, 2]


def test_a_function_and_autograph_in_the_condition():
    @tf.function
    def until(carry, y):
        found = False
        for value in y:
            if value > 6.0:
                found = True
        return found

    last, ys = tf_ti.scan(_add, tf.zeros([2]), tf.ones([9, 2]), until=until)
    assert last.numpy().tolist() == [7, 7] and ys.shape == [7, 2]


def test_a_saved_model(tmp_path):
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None])])
        def sums(self, xs):
            return tf_ti.scan(_add, 0.0, xs, until=lambda carry, y: carry > 5.0)

    tf.saved_model.save(Model(), str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.sums(tf.range(1.0, 6.0))[1].numpy().tolist() == [1, 3, 6]


@pytest.mark.parametrize(
    "until, error, words",
    [
        (3, TypeError, "until must be callable"),
        (lambda carry, y: carry, TypeError, "until must return a bool"),
        (lambda carry, y: [True, False], ValueError, r"until must return one bool.*\(2,\)"),
    ],
)
def test_wrong_conditions(until, error, words):
    with pytest.raises(error, match=words):
        tf_ti.scan(_add, 0.0, tf.ones([3]), until=until)


def test_ragged_results_are_refused():
    xs = tf.ragged.constant([[1.0], [2.0, 3.0]])
    with pytest.raises(ValueError, match="ys: with until results must not be ragged"):
        tf_ti.scan(lambda c, row: (c, row), 0.0, xs, until=lambda c, y: True)
