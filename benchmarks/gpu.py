"""Bags and loops on a GPU, beside TensorFlow's kernels and XLA, for its build for CUDA.

Calls of a function are enqueued; the host waits once, at the end of several.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf

import tf_ti
from benchmarks import harness

OURS, GATHER, SEGMENTS = "tf_ti", "tf.gather + reduce_sum", "tf.gather + segment_sum"
WHILE, XLA = "tf.while_loop", "XLA"
# (rows, width, bags, ids a bag)
SHAPES = ((10_000_000, 128, 65_536, 50), (1_000_000, 64, 4_096, 20), (100_000, 16, 65_536, 10))
WHAT = ("forward", "gradient", "step of gradient descent")
BURST = 0.05

Body = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def run(quick: bool) -> Iterator[harness.Table]:
    if not tf.config.list_physical_devices("GPU"):
        sys.exit("python -m benchmarks gpu: there is no GPU")
    repeats = 3 if quick else 7
    yield from _bags(repeats)
    yield _loops(repeats, is_gradient=False)
    yield _loops(repeats, is_gradient=True)


def _bags(repeats: int) -> Iterator[harness.Table]:
    tables = {
        what: harness.Table(f"Sums of bags on a GPU, {what}", "ms a call", [], reference=GATHER)
        for what in WHAT
    }
    for shape in SHAPES:
        rows, width, bags, size = shape
        column = f"{rows:,} x {width}, {bags:,} of {size}"
        for what, cases in _cases_of_bags(*shape).items():
            tables[what].add_column(column, _measure(cases, repeats))
    yield from tables.values()


def _cases_of_bags(rows: int, width: int, bags: int, size: int) -> dict[str, dict[str, Callable]]:
    variable = tf.Variable(tf.random.uniform([rows, width], -1, 1))
    ids = tf.random.uniform([bags, size], maxval=rows, dtype=tf.int64)
    segments = tf.repeat(tf.range(bags), size)

    def ours(ids):
        return tf_ti.embedding_bag(variable, ids)

    def gathered(ids):
        return tf.reduce_sum(tf.gather(variable, ids), 1)

    def by_segments(ids):
        return tf.math.segment_sum(tf.gather(variable, tf.reshape(ids, [-1])), segments)

    def forward(way, ids):
        return way(ids)

    def gradient(way, ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(way(ids) ** 2)
        return tape.gradient(loss, variable).values

    def step(way, ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(way(ids) ** 2)
        slices = tape.gradient(loss, variable)
        if way is ours:
            tf_ti.scatter_sub(variable, slices, 1e-6)
        else:
            variable.scatter_sub(tf.IndexedSlices(1e-6 * slices.values, slices.indices))
        return loss

    ways = {OURS: ours, GATHER: gathered, SEGMENTS: by_segments}
    cases = {
        what: {name: _called(function, way, ids) for name, way in ways.items()}
        for what, function in zip(WHAT, (forward, gradient, step), strict=True)
    }
    cases[WHAT[0]][XLA] = _called(forward, gathered, ids, jit_compile=True)
    results = [cases[WHAT[0]][name]() for name in (OURS, GATHER)]
    np.testing.assert_allclose(*results, rtol=1e-3, atol=1e-3)
    return cases


def _discount(carry: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    carry = x + tf.where(x > 1.0, 0.0, 0.9 * carry)
    return carry, carry


def _state_space(carry: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    carry = 0.9 * carry + x
    return carry, tf.tanh(carry)


def _lorenz(carry: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    def slope(y):
        return tf.stack(
            [10.0 * (y[1] - y[0]), y[0] * (28.0 - y[2]) - y[1], y[0] * y[1] - 8.0 / 3 * y[2]]
        )

    h = 0.01
    k1 = slope(carry)
    k2 = slope(carry + h / 2 * k1)
    k3 = slope(carry + h / 2 * k2)
    k4 = slope(carry + h * k3)
    carry = carry + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4) + x
    return carry, carry


# A body, its steps, the shape of its state.
BODIES: dict[str, tuple[Body, int, list[int]]] = {
    "discounted sums, 1,000 x [256]": (_discount, 1000, [256]),
    "state space, 1,000 x [32, 512]": (_state_space, 1000, [32, 512]),
    "Runge-Kutta, 500 x [3, 1024]": (_lorenz, 500, [3, 1024]),
}


def _loops(repeats: int, is_gradient: bool) -> harness.Table:
    title = f"Loops on a GPU, {'gradient' if is_gradient else 'forward'}"
    table = harness.Table(title, "ms a call", [], reference=WHILE)
    for name, (body, steps, shape) in BODIES.items():
        init = tf.random.normal(shape)
        xs = 1e-3 * tf.random.normal([steps, *shape])

        def ours(init, xs, body=body):
            return tf_ti.scan(body, init, xs)[1]

        def theirs(init, xs, body=body):
            return _while_loop(body, init, xs)

        def gradient(way, init, xs):
            with tf.GradientTape() as tape:
                tape.watch(init)
                loss = tf.reduce_sum(way(init, xs))
            return tape.gradient(loss, init)

        function = gradient if is_gradient else (lambda way, init, xs: way(init, xs))
        cases = {
            OURS: _called(function, ours, init, xs),
            WHILE: _called(function, theirs, init, xs),
            f"{OURS}, {XLA}": _called(function, ours, init, xs, jit_compile=True),
        }
        if not is_gradient:  # XLA has no gradient of a loop whose length only it knows
            cases[f"{WHILE}, {XLA}"] = _called(function, theirs, init, xs, jit_compile=True)
        np.testing.assert_allclose(cases[OURS](), cases[WHILE](), rtol=1e-2, atol=1e-3)
        table.add_column(name, _measure(cases, repeats))
    return table


def _while_loop(body: Body, init: tf.Tensor, xs: tf.Tensor) -> tf.Tensor:
    steps = xs.shape[0]
    results = tf.TensorArray(tf.float32, steps, element_shape=init.shape)

    def step(k, carry, results):
        carry, y = body(carry, xs[k])
        return k + 1, carry, results.write(k, y)

    return tf.while_loop(lambda k, *_: k < steps, step, (0, init, results))[2].stack()


def _called(function: Callable, way: Callable, *tensors: tf.Tensor, **options: bool) -> Callable:
    compiled = tf.function(lambda *tensors: function(way, *tensors), autograph=False, **options)
    return lambda: compiled(*tensors)


def _measure(cases: Mapping[str, Callable[[], tf.Tensor]], repeats: int) -> dict[str, float]:
    """The milliseconds of a call: the median of bursts, after each of which the host waits."""
    milliseconds = {}
    for name, case in cases.items():

        def burst(count, case=case):
            begin = time.perf_counter()
            for _ in range(count):
                result = case()
            tf.reshape(result, [-1])[:1].numpy()
            return (time.perf_counter() - begin) / count

        burst(3)
        count = max(1, min(20, int(BURST / burst(1))))
        milliseconds[name] = 1e3 * statistics.median(burst(count) for _ in range(repeats))
    return milliseconds
