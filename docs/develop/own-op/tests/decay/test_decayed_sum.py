"""Decayed sums."""

import numpy as np
import pytest
import tensorflow as tf

import tf_ti


def by_definition(x, decay, reverse):
    y = np.array(x[::-1] if reverse else x)
    for t in range(1, len(y)):
        y[t] += decay * y[t - 1]
    return y[::-1] if reverse else y


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(5,), (1, 2), (6, 2, 3), (300, 1000), (0, 3), (4, 0)])
def test_a_sum_is_that_of_the_definition(shape, dtype, reverse):
    x = np.random.default_rng(1).normal(size=shape).astype(dtype)
    y = tf_ti.decayed_sum(x, 0.9, reverse=reverse)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, by_definition(x, 0.9, reverse), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_are_the_numeric_ones(reverse):
    def function(x, decay):
        return tf_ti.decayed_sum(x, decay, reverse=reverse)

    def first_order(x, decay):
        with tf.GradientTape() as tape:
            tape.watch([x, decay])
            loss = tf.reduce_sum(function(x, decay) ** 2)
        return tf.concat([tf.reshape(g, [-1]) for g in tape.gradient(loss, [x, decay])], 0)

    inputs = [tf.random.stateless_normal([4, 3], [1, 2], dtype=tf.float64)]
    inputs.append(tf.constant(0.8, tf.float64))
    for f in (function, first_order):
        for found, numeric in zip(*tf.test.compute_gradient(f, inputs)):
            np.testing.assert_allclose(found, numeric, rtol=1e-5, atol=1e-5)


def test_the_result_has_the_static_shape_of_x():
    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def function(x):
        y = tf_ti.decayed_sum(x, 0.5)
        assert y.shape.as_list() == [None, 3]
        return y

    function(tf.ones([2, 3]))


@pytest.mark.parametrize(
    ("x", "decay", "words"),
    [
        (1.0, 0.5, "x must have rank 1 or more, got a scalar"),
        ([1.0], [0.5], "decay must be a scalar, got shape [1]"),
    ],
)
def test_a_wrong_shape_is_refused_in_the_same_words_everywhere(x, decay, words):
    x, decay = tf.constant(x), tf.constant(decay)
    unknown = tf.function(tf_ti.decayed_sum, input_signature=[tf.TensorSpec(None)] * 2)
    known = tf.function(lambda x, decay: tf_ti.decayed_sum(x, decay))
    for call in (tf_ti.decayed_sum, known, unknown):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)) as caught:
            call(x, decay)
        assert words in str(caught.value)
