"""tf.vectorized_map and jacobians of recurrent sequences: what each lane gives by itself."""

import numpy as np
import pytest
import recurrent_programs as programs
import tensorflow as tf


def given(kind, time_major):
    x, states, w, r, b = programs.arrays(kind, 2, 4, 3, 5, np.float64)
    mask = np.random.default_rng(1).random([2, 4]) < 0.6
    options = {"time_major": time_major, "mask": mask.T if time_major else mask}
    x = x.transpose(1, 0, 2) if time_major else x
    return list(map(tf.constant, (x, *states, w, r, b))), options


def run(kind, flat, **options):
    return programs.run(kind, flat[0], flat[1:-3], *flat[-3:], **options)


def vectorized(function, values):
    graph_function = tf.function(
        lambda values: tf.vectorized_map(function, values, fallback_to_while_loop=False)
    )
    return graph_function(values)


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("kind", programs.KINDS)
def test_lanes_that_share_weights_are_one_batch(kind, time_major):
    (x, h, *rest), options = given(kind, time_major)
    lanes = tf.stack([x, 2 * x, -x]), tf.stack([h, h + 1, 0 * h])
    results = vectorized(lambda lane: run(kind, [*lane, *rest], **options), lanes)
    for k in range(3):
        expected = run(kind, [lanes[0][k], lanes[1][k], *rest], **options)
        for stacked, value in zip(results, expected, strict=True):
            np.testing.assert_allclose(stacked[k], value, rtol=1e-12)


@pytest.mark.parametrize("lengths", [False, True])
def test_lanes_may_differ_in_their_lengths(lengths):
    flat, _ = given("gru", False)
    key, values = ("lengths", [[4, 1], [0, 3]]) if lengths else ("mask", np.eye(2, 4)[None] > 0)
    values = tf.constant(values)
    results = vectorized(lambda value: run("gru", flat, **{key: value}), values)
    for k, value in enumerate(values):
        for stacked, expected in zip(results, run("gru", flat, **{key: value}), strict=True):
            np.testing.assert_allclose(stacked[k], expected, rtol=1e-12)


def test_lanes_with_weights_of_their_own_run_one_by_one():
    (*flat, b), options = given("lstm", False)
    lanes = tf.stack([b, 2 * b])
    results = tf.vectorized_map(lambda b: run("lstm", [*flat, b], **options), lanes)
    for k in range(2):
        expected = run("lstm", [*flat, lanes[k]], **options)
        for stacked, value in zip(results, expected, strict=True):
            np.testing.assert_allclose(stacked[k], value, rtol=1e-12)


@pytest.mark.parametrize("kind", programs.KINDS)
def test_jacobians_are_the_gradients_one_by_one(kind):
    time_major = kind in ("lstm", "gru after")
    flat, options = given(kind, time_major)

    @tf.function(autograph=False)
    def jacobian(*flat):
        with tf.GradientTape() as tape:
            tape.watch(flat)
            total = tf.reduce_sum(run(kind, flat, **options)[0], [0, 1, 2])
        return tape.jacobian(total, flat)

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(flat)
        totals = tf.unstack(tf.reduce_sum(run(kind, flat, **options)[0], [0, 1, 2]))
    expected = zip(*(tape.gradient(total, flat) for total in totals))
    for ours, gradients in zip(jacobian(*flat), expected, strict=True):
        np.testing.assert_allclose(ours, tf.stack(gradients), rtol=1e-9, atol=1e-12)
