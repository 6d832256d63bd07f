"""Loops in loops that are one program, beside loops of Python, and what a profile shows of them."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

ROWS, COLUMNS = 4, 3


class OfPython:
    """Loops as plain Python, one operation after the other."""

    @staticmethod
    def scan(f, init, xs, length, reverse=False):
        state, rows = init, [None] * length
        for t in range(length)[:: -1 if reverse else 1]:
            state, rows[t] = f(state, None if xs is None else xs[t])
        return state, tf.stack(rows) if length else tf.zeros([0, ROWS, COLUMNS])

    @staticmethod
    def while_loop(cond, body, state):
        while cond(*state):
            state = body(*state)
        return state


class OfProgram:
    """The same by tf_ti."""

    @staticmethod
    def scan(f, init, xs, length, reverse=False):
        return tf_ti.scan(f, init, xs, length=length if xs is None else None, reverse=reverse)

    while_loop = staticmethod(tf_ti.while_loop)


def steps(random, values):
    """Appends a few values of [ROWS, COLUMNS] that follow from others."""
    for _ in range(random.integers(1, 4)):
        x, y = (values[random.integers(len(values))] for _ in range(2))
        kind = random.integers(8)
        scale = tf.constant(random.uniform(-0.6, 0.6, [COLUMNS, COLUMNS]), tf.float32)
        index = int(random.integers(COLUMNS))
        values.append(
            [
                lambda: tf.tanh(x * 0.7 + y),
                lambda: x * 0.5 - tf.sin(y),
                lambda: tf.matmul(x, scale),
                lambda: tf.roll(x, 1, 1) * 0.8,
                lambda: x - tf.reduce_mean(y, 1, keepdims=True),
                lambda: tf.concat([y[:, 1:], x[:, :1]], 1) * 0.9,
                lambda: tf.where(x > 0.1, x * 0.5, tf.nn.softmax(y)),
                lambda: tf.gather(x, [index] * COLUMNS, axis=1) * 0.3,
            ][kind]()
        )


def nest(loops, seed, depth, outer, is_gradient):
    """A loop of loops, whose form follows from a seed: a value of [ROWS, COLUMNS]."""
    random = np.random.default_rng(seed)
    length = int(random.integers(1, 5))
    kinds = ["scan", "pieces", "counted", "while"]
    kind = kinds[random.integers(3 if is_gradient else 4)]
    starts = tuple(outer[random.integers(len(outer))] for _ in range(random.integers(1, 3)))
    reverse = bool(random.integers(2))
    body_seed = int(random.integers(1 << 30))

    def body(states, x):
        random = np.random.default_rng(body_seed)
        values = [*outer, *states, *([] if x is None else [x])]
        steps(random, values)
        for k in range(random.integers(1, 3) if depth > 1 else 0):
            values.append(nest(loops, body_seed + k, depth - 1, values[-4:], is_gradient))
            steps(random, values)
        recent = values[-4:]
        return (
            tuple(recent[random.integers(len(recent))] for _ in states),
            recent[random.integers(len(recent))],
        )

    if kind in ("scan", "pieces"):
        xs = None
        if kind == "pieces":
            ramp = tf.reshape(tf.linspace(-1.0, 1.0, length * COLUMNS), [length, 1, COLUMNS])
            xs = ramp + outer[0] * 0.3
        states, ys = loops.scan(body, starts, xs, length, reverse)
        return tf.add_n([*states, ys[0], ys[-1]])
    limit = int(random.integers(0, 5))

    def step(t, *states):
        states, _ = body(states, None)
        return (t + 1, *states)

    def goes_on(t, *states):
        if kind == "counted":
            return t < limit
        return tf.logical_and(t < 4, tf.reduce_sum(tf.abs(states[0])) > 1.5)

    _, *states = loops.while_loop(goes_on, step, (tf.constant(0), *starts))
    return tf.add_n(states)


def start(seed):
    random = np.random.default_rng(seed)
    return [tf.constant(random.uniform(-1, 1, [ROWS, COLUMNS]), tf.float32) for _ in range(2)]


def results(loops, seed, depth, is_gradient, values):
    """The outer loop's results, and with `is_gradient` the gradients of all that goes in."""
    xs = tf.stack([values[1] * 0.5, values[1], -values[1], values[1] * 0.1, values[0]])

    def body(state, x):
        y = nest(loops, seed, depth, [state, x], is_gradient)
        return tf.tanh(y), y

    with tf.GradientTape() as tape:
        tape.watch([*values, xs])
        state, ys = loops.scan(body, values[0], xs, 5)
        loss = tf.reduce_sum(tf.sin(state)) + tf.reduce_sum(ys * ys)
    if not is_gradient:
        return [state, ys]
    grads = tape.gradient(loss, [values[0], xs], unconnected_gradients="zero")
    return [state, ys, *grads]


@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_random_nests_are_loops_of_python(seed, depth, is_gradient):
    run = tf.function(functools.partial(results, OfProgram, seed, depth, is_gradient))
    for other in (1, 2):
        values = start(other)
        expected = results(OfPython, seed, depth, is_gradient, values)
        for found, value in zip(run(values), expected, strict=True):
            np.testing.assert_allclose(found, value, rtol=2e-3, atol=2e-4)
