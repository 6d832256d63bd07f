"""Loops whose lanes run in groups, with as many threads as the second argument says.

Saves the results of each loop to the first argument. Prints, for each loop, in how many groups its
last call has run.
"""

import functools
import re
import sys

import numpy as np
import tensorflow as tf
from group_counts import groups_of

import tf_ti

TARGET, THREADS = sys.argv[1], int(sys.argv[2])
tf.config.threading.set_intra_op_parallelism_threads(THREADS)

COUNT = 12
CALLS = 3  # the first shows the shapes
LANES = [1, 3, 8, 9, 63, 65]
FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]


def draw(seed, *shape, dtype=tf.float32):
    random = np.random.default_rng(seed)
    if dtype.is_integer:
        return tf.constant(random.integers(-9, 10, shape), dtype)
    return tf.constant(random.normal(size=shape) * 0.5, dtype)


def by_scan(step, *arrays, **options):
    """The last state, and all states, of a step from the first array on, over the second."""

    def f(h, x):
        h = step(h, x, *arrays[2:])
        return h, h

    return tf_ti.scan(f, arrays[0], arrays[1], **options)


def with_gradients(function, *arrays):
    with tf.GradientTape() as tape:
        tape.watch(arrays)
        results = tf.nest.flatten(function(*arrays))
        total = tf.add_n([tf.reduce_sum(tf.cast(y, tf.float64) ** 2) for y in results])
    return results, tape.gradient(total, arrays)


def elementwise(h, x, scale):
    return tf.tanh(h * scale + x) - tf.abs(x)


def cell(h, x, w):
    z = tf.tanh(h @ w + x)
    return z - tf.reduce_mean(z, -1, keepdims=True)


# By name: a function and its arguments. A loop of captured constants would run before the call.
CASES = {}


def case(*arrays):
    def keep(function):
        CASES[function.__name__] = function, arrays
        return function

    return keep


def add_cells(lanes, dtype):
    h, x = draw(lanes, lanes, 5, dtype=dtype), draw(lanes + 1, COUNT, lanes, 5, dtype=dtype)
    scale, w = draw(3, 5, dtype=dtype), draw(4, 5, 5, dtype=dtype)

    def add(name, arrays, step, **options):
        run = functools.partial(by_scan, step, **options)
        name = f"{name} of {lanes} lanes, {dtype.name}"
        CASES[name] = functools.partial(with_gradients, run), arrays

    add("elementwise", (h, x, scale), elementwise)
    add("cell", (h, x, w), cell)
    add("cell in reverse, by segments", (h, x, w), cell, reverse=True, checkpoint_every=5)
    add(
        "innermost",
        (tf.transpose(h), tf.transpose(x, [0, 2, 1]), tf.reshape(scale, [5, 1])),
        lambda h, x, s: h * 0.5 + tf.nn.softmax(x, 0) * s,
    )


for lanes in LANES:
    for dtype in FLOATS if lanes == 9 else [tf.float32]:
        add_cells(lanes, dtype)
for dtype in (tf.int32, tf.int64):
    CASES[f"integers, {dtype.name}"] = (
        functools.partial(by_scan, lambda h, x: h * 3 + x),
        (draw(1, 9, 4, dtype=dtype), draw(2, COUNT, 9, 4, dtype=dtype)),
    )


@case(draw(1, 6, 6), draw(2, COUNT, 6, 6))
def a_symmetric_sum(h, x):
    return by_scan(lambda h, x: (h + tf.transpose(h)) * 0.4 + x, h, x)


@case(draw(1, 7, 6, 6), draw(2, COUNT, 7, 6))
def an_outer_product(h, x):
    return by_scan(lambda h, x: h * 0.5 + x[:, :, None] * x[:, None, :], h, x)


@case(draw(1, 9, 3), draw(2, COUNT, 9, 3))
def states_that_lanes_share(h, x):
    def f(state, x):
        h, k, mean = state
        h = h * 0.5 + x * tf.cast(k, tf.float32)
        return (h, k + 1, mean * 0.5 + 1.0), (h + mean, mean, k)

    return tf_ti.scan(f, (h, tf.constant(0), tf.ones([3])), x)


@case(draw(1, 9, 3), draw(3, 9), draw(2, COUNT, 9, 3))
def states_of_mixed_ranks(a, b, x):
    def f(state, x):
        a, b = state
        b = tf.maximum(b * 0.9, tf.reduce_max(a, -1))
        a = a * b[:, None] + x
        return (a, b), (a, b)

    return tf_ti.scan(f, (a, b), x)


@case(draw(1, 9, 3), draw(2, 9, COUNT, 3))
def pieces_along_other_axes(h, x):
    with tf_ti.Loop() as loop:
        state = loop.add_recurrence(h)
        piece = loop.add_iterator(x, axis=1)
        loop.add_trip_limit(COUNT, tf_ti.TripLimit.COUNT)
        state.next = tf.tanh(state + piece)
        kept, reverse = tf_ti.LoopOutput.CONCATENATE, tf_ti.LoopOutput.REVERSE
        outputs = [loop.add_loop_output(state.next, kept, axis=axis) for axis in (0, 1, 2)]
        outputs.append(loop.add_loop_output(state, reverse, axis=1))
    return [output.tensor for output in outputs]


@case(draw(1, 9, 2))
def a_while_loop(h):
    def body(k, h, array):
        h = tf.sin(h) + tf.cast(k, tf.float32)
        return k + 1, h, array.write(k, h)

    array = tf.TensorArray(tf.float32, 40, element_shape=[9, 2])
    k, h, array = tf_ti.while_loop(lambda k, *_: k < 40, body, (0, h, array))
    return k, h, array.stack()


@case(tf.abs(draw(1, 9, 2)) + 0.1)
def a_condition_that_lanes_share(h):
    return tf_ti.while_loop(
        lambda s, h: s < 30.0, lambda s, h: (s * 1.3, h * tf.minimum(s, 1.1)), (0.5, h)
    )


@case(tf.abs(draw(1, 9, 2)) + 0.1)
def a_condition_of_the_lanes(h):
    return tf_ti.while_loop(
        lambda k, h: (k < 40) & (tf.reduce_max(h) < 30.0),
        lambda k, h: (k + 1, h * 1.3),
        (0, h),
    )


@case(draw(1, 9, 4), draw(2, COUNT, 9, dtype=tf.int32) % 20, draw(3, 20, 4))
def a_gather_by_lanes(h, ids, table):
    return by_scan(lambda h, k, table: h * 0.5 + tf.gather(table, k), h, ids, table)


@case(draw(1, 9, 4), tf.one_hot(8, 9, 20, 0) * tf.one_hot(7, COUNT, 1, 0)[:, None], draw(3, 20, 4))
def a_gather_that_fails_in_one_group(h, ids, table):
    return by_scan(lambda h, k, table: h * 0.5 + tf.gather(table, k), h, ids, table)


@case(draw(1, 9, 5), draw(4, 5), draw(2, COUNT, 9, 5))
def a_gradient_of_what_lanes_share(h, s, x):
    def f(state, x):
        h, s = state
        return (tf.tanh(h * s) + x, s * 0.99), h * s

    return with_gradients(lambda h, s, x: tf_ti.scan(f, (h * s, s), x), h, s, x)


@case(draw(1, 9, 3), draw(4, 3, 3), draw(2, COUNT, 9, 3))
def a_loop_in_the_body(h, w, x):
    def f(h, x):
        inner = tf.stack([x, x * 0.5, -x] * 4)
        h, ys = tf_ti.scan(lambda g, y: (tf.tanh(g @ w + y), g), h, inner)
        k = tf.constant(0)
        _, h = tf_ti.while_loop(lambda k, g: k < 9, lambda k, g: (k + 1, tf.sin(g)), (k, h))
        return h, (h, ys[3])

    return with_gradients(lambda h, w, x: tf_ti.scan(f, h, x), h, w, x)


@case(draw(1, 9, 3), draw(2, COUNT, 9, 3))
def a_loop_that_all_lanes_end(h, x):
    def f(h, x):
        h = h + x
        going = lambda g: tf.reduce_max(tf.abs(g)) > 0.1  # noqa: E731
        (h,) = tf_ti.while_loop(going, lambda g: (g * 0.7,), (h,))
        return h, h

    return tf_ti.scan(f, h, x)


# Bodies of one row each, mapped over rows.


@case(draw(1, 9, 4), draw(2, 9, COUNT, 2))
def mapped_filters(means, zs):
    """Kalman filters of a position and a velocity in the plane."""
    step = tf.constant([[1, 0, 0.1, 0], [0, 1, 0, 0.1], [0, 0, 1, 0], [0, 0, 0, 1]], tf.float32)
    seen = tf.constant([[1, 0, 0, 0], [0, 1, 0, 0]], tf.float32)

    def f(state, z):
        mean, cov = state
        mean = tf.linalg.matvec(step, mean)
        cov = step @ cov @ tf.transpose(step) + 0.01 * tf.eye(4)
        s = seen @ cov @ tf.transpose(seen) + 0.1 * tf.eye(2)
        det = s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0]
        rows = [tf.stack([s[1, 1], -s[0, 1]]), tf.stack([-s[1, 0], s[0, 0]])]
        gain = cov @ tf.transpose(seen) @ (tf.stack(rows) / det)
        mean = mean + tf.linalg.matvec(gain, z - tf.linalg.matvec(seen, mean))
        return (mean, cov - gain @ seen @ cov), mean

    return tf.vectorized_map(lambda row: tf_ti.scan(f, (row[0], tf.eye(4)), row[1])[1], (means, zs))


@case(draw(1, 9, 6, 5))
def mapped_stencils(v):
    def f(v, _):
        shifted = [tf.roll(v, shift, axis) for shift in (1, -1) for axis in (0, 1)]
        return v + 0.1 * (tf.add_n(shifted) - 4.0 * v), None

    return tf.vectorized_map(lambda v: tf_ti.scan(f, v, length=COUNT)[0], v)


@case(draw(1, 9, 3), draw(2, 3, 3))
def mapped_trajectories(ys, w):
    def last(y, w):
        f = lambda y, _: (y + 0.1 * tf.tanh(tf.linalg.matvec(w, y)), None)  # noqa: E731
        return tf_ti.scan(f, y, length=COUNT)[0]

    return with_gradients(lambda ys, w: tf.vectorized_map(lambda y: last(y, w), ys), ys, w)


@case(draw(1, 7))
def rows_of_a_jacobian(y):
    with tf.GradientTape() as tape:
        tape.watch(y)
        f = lambda y, _: (tf.sin(y) + 0.3 * tf.roll(y, 1, 0), None)  # noqa: E731
        last = tf_ti.scan(f, y, length=COUNT)[0]
    return tape.jacobian(last, y)


for dtype in (tf.float16, tf.bfloat16):
    zeros = draw(1, COUNT, 9, 5, 3) * 1e-30  # zeros of both signs
    CASES[f"the sign of a largest zero, {dtype.name}"] = (
        functools.partial(by_scan, lambda h, x: tf.reduce_max(x * tf.exp(h)[:, None], 1)),
        (draw(2, 9, 3, dtype=dtype), tf.cast(zeros, dtype)),
    )


def main():
    saved = {}
    for name, (function, arrays) in CASES.items():
        call = functools.partial(tf.function(function), *arrays)
        try:
            first = [np.asarray(value) for value in tf.nest.flatten(call())]
            for _ in range(CALLS - 1):
                results = call()
                for a, b in zip(first, tf.nest.flatten(results), strict=True):
                    assert a.tobytes() == np.asarray(b).tobytes(), f"{name}: calls differ"
            for i, value in enumerate(tf.nest.flatten(results)):
                value = tf.convert_to_tensor(value)
                wide = value.dtype in (tf.float16, tf.bfloat16)
                saved[f"{name}/{i}"] = (tf.cast(value, tf.float32) if wide else value).numpy()
        except tf.errors.OpError as error:
            saved[f"{name}/error"] = np.array(re.search("indices.*? is not in.*", error.message)[0])
            print(0, name)
            continue
        print(groups_of(call), name)
    np.savez(TARGET, **saved)


main()
