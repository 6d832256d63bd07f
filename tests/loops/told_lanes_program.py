"""Prints how many groups tf_ti.explain tells of loops, and in how many they run, on 3 threads."""

import functools

import numpy as np
import tensorflow as tf
from group_counts import groups_of

import tf_ti

tf.config.threading.set_intra_op_parallelism_threads(3)
tf.config.threading.set_inter_op_parallelism_threads(3)
T = 400


def draw(*shape):
    return tf.constant(np.random.default_rng(5).normal(size=shape) * 0.1, tf.float32)


def decay(h, x):
    h = tf.tanh(0.9 * h + x)
    return h, h


def with_weights(f, h, xs, w):
    return tf_ti.scan(lambda h, x: f(h, x, w), h, xs)


def gradient(h, xs, w):
    with tf.GradientTape() as tape:
        tape.watch(w)
        h, _ = with_weights(lambda h, x, w: (h * tf.tanh(h @ w + x), None), h, xs, w)
        loss = tf.reduce_sum(h**2)
    return tape.gradient(loss, w)


def until(h, xs):
    return tf_ti.while_loop(
        lambda t, _: t < 0.99 * T, lambda t, h: (t + 1.0, tf.tanh(h * 1.01 + xs[0])), (0.0, h)
    )


def limited(h, xs):
    return tf_ti.while_loop(
        lambda t, _: t < 1e3,
        lambda t, h: (t + 1.0, tf.tanh(h * 1.01 + xs[0])),
        (0.0, h),
        maximum_iterations=5,
    )


def three_times(h, x):
    h = h * 0.5 + x
    return h, (h, h)


def twice(h, x):
    h = tf.tanh(tf.where(x > 0, tf.nn.softmax(tf.roll(h, 1, 1)), x)) + x
    return h, h


def product_of_sums(h, xs, b):
    def f(h, x, b):
        y = tf.tanh(h * b + x)
        return y - tf.reduce_prod(1 + y, 0) * 0.01, None

    with tf.GradientTape() as tape:
        tape.watch(b)
        loss = tf.reduce_sum(with_weights(f, h, xs, b)[0] ** 2)
    return tape.gradient(loss, b)


CASES = {
    "rows": (lambda h, xs: tf_ti.scan(decay, h, xs), [draw(64, 32), draw(T, 64, 32)]),
    "few rows": (lambda h, xs: tf_ti.scan(decay, h, xs), [draw(5, 200), draw(T, 5, 200)]),
    "a last group of one": (
        lambda h, xs: tf_ti.scan(lambda h, x: (tf.tanh(h + tf.roll(x, 1, 0)), None), h, xs),
        [draw(60, 33), draw(T, 60, 33)],
    ),
    "columns that rows mix": (
        lambda h, xs: tf_ti.scan(lambda h, x: (tf.roll(h, 1, 0) * 0.5 + x, None), h, xs),
        [draw(200, 33), draw(T, 200, 33)],
    ),
    "a short loop": (lambda h, xs: tf_ti.scan(decay, h, xs), [draw(8, 4), draw(20, 8, 4)]),
    "softmax of features": (
        lambda h, xs: tf_ti.scan(lambda h, x: (tf.nn.softmax(h + x), None), h, xs),
        [draw(48, 40), draw(T, 48, 40)],
    ),
    "a gradient of weights": (gradient, [draw(40, 24), draw(T, 40, 24), draw(24, 24)]),
    "a condition of one value": (until, [draw(64, 128), draw(1, 64, 128)]),
    "three results of one value": (
        lambda h, xs: tf_ti.scan(three_times, h, xs),
        [draw(64, 16), draw(T, 64, 16)],
    ),
    "two results of one value": (
        lambda h, xs: tf_ti.scan(twice, h, xs),
        [draw(37, 7), draw(T, 37, 7)],
    ),
    "results that are parameters": (
        lambda h, xs: tf_ti.scan(lambda h, x: (h * 0.5 + x, (h, x, h, x, h, x)), h, xs),
        [draw(64, 8), draw(T, 64, 8)],
    ),
    "states that are copies": (
        lambda h, xs: tf_ti.scan(
            lambda s, x: ((tf.tanh(s[1] + x), tf.stop_gradient(s[0])), tf.identity(s[1])),
            (h, h),
            xs,
        ),
        [draw(64, 32), draw(T, 64, 32)],
    ),
    "a condition and few iterations": (limited, [draw(256, 128), draw(1, 256, 128)]),
    "a first iteration and a few": (
        lambda h, xs: tf_ti.scan(lambda h, x: (tf.tanh(h + x), None), h, xs),
        [draw(256, 128), draw(9, 256, 128)],
    ),
    "a sum that nobody reads": (
        lambda h, xs: tf_ti.scan(lambda h, x: (tf.tanh(h + x), tf.reduce_sum(h, 0)), h, xs)[0],
        [draw(64, 32), draw(T, 64, 32)],
    ),
    "a factor of constants": (
        lambda h, xs: tf_ti.scan(lambda h, x: (tf.tanh(h @ tf.eye(32) + x) - h, None), h, xs),
        [draw(64, 32), draw(T, 64, 32)],
    ),
    "half of a factor of constants": (
        lambda h, xs: tf_ti.scan(
            lambda h, x: (tf.tanh(h @ tf.split(tf.eye(64)[:32], 2, 1)[0] + x) - h, None), h, xs
        ),
        [draw(64, 32), draw(T, 64, 32)],
    ),
    "a factor that adds constants up": (
        lambda h, xs: tf_ti.scan(
            lambda h, x: (tf.tanh(h @ tf.cumsum(tf.ones([32, 32])) + x) - h, None), h, xs
        ),
        [draw(64, 32), draw(T, 64, 32)],
    ),
    "a row of constants": (
        lambda h, xs: tf_ti.scan(
            lambda h, x: (tf.tanh(h * tf.gather(tf.eye(32), [1, 3])[0] + x), None), h, xs
        ),
        [draw(64, 32), draw(T, 64, 32)],
    ),
    "a column of constants": (
        lambda h, xs: tf_ti.scan(
            lambda h, x: (tf.tanh(h * tf.zeros([32, 32])[:, :1] + x), None), h, xs
        ),
        [draw(32, 64), draw(T, 32, 64)],
    ),
    "a gradient of products": (product_of_sums, [draw(64, 32), draw(T, 64, 32), draw(32)]),
    "a constant as a result": (
        lambda h, xs: tf_ti.scan(lambda h, x: (tf.tanh(h + x), tf.zeros([3])), h, xs),
        [draw(64, 32), draw(T, 64, 32)],
    ),
    "rolled rows": (
        lambda h, xs: tf_ti.scan(lambda h, x: (tf.roll(tf.roll(h, 1, 0), 1, 1) + x, None), h, xs),
        [draw(64, 32), draw(T, 64, 32)],
    ),
}


def main():
    for name, (function, arguments) in CASES.items():
        call = functools.partial(tf.function(function), *arguments)
        told = tf_ti.explain(tf.function(function), *arguments)
        call(), call()
        print(f"{name}: {groups_of(call)}: {'; '.join(loop.lanes or 'none' for loop in told)}")


if __name__ == "__main__":
    main()
