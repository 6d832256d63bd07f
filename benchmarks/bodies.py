"""Bodies that are no LSTM: tf_ti.scan, tf.while_loop, and both compiled by XLA.

A figure is a whole call of a tf.function with one loop in it, divided by the loop's iterations.
"""

import contextlib
import os
import statistics
from collections.abc import Callable, Iterator

import tensorflow as tf

import tf_ti
from benchmarks import harness
from benchmarks.loop_bodies import BODIES, Body

THREADS = 2
OURS = "tf_ti.scan"
KERNELS = "tf_ti.scan, TF_TI_PROGRAM=0"
WHILE = "tf.while_loop"
OURS_ON_XLA = "tf_ti.scan, XLA-compiled"
WHILE_ON_XLA = "tf.while_loop, XLA-compiled"


def run(quick: bool) -> Iterator[harness.Table]:
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    repeats = 3 if quick else 9
    yield _table("Forward", repeats, _forward, list(BODIES), (1.4, 0.12))
    trained = [name for name, make in BODIES.items() if make().has_gradient]
    yield _table("With gradient", repeats, _with_gradient, trained, (1.1, 0.09))


def _scan(body: Body, init, xs):
    return tf_ti.scan(body.f, init, xs)


def _while_loop(body: Body, init, xs):
    """The same with tf.while_loop and TensorArrays."""
    count = body.count
    elements = tf.nest.map_structure(
        lambda x: tf.TensorArray(x.dtype, count, element_shape=x.shape[1:]).unstack(x), xs
    )

    def f(carry, element):
        carry, y = body.f(carry, element)
        return carry, () if y is None else y

    _, y = f(init, tf.nest.map_structure(lambda x: x[0], xs))
    stacks = tf.nest.map_structure(
        lambda t: tf.TensorArray(t.dtype, count, element_shape=t.shape), y
    )

    def step(t, carry, stacks):
        carry, y = f(carry, tf.nest.map_structure(lambda e: e.read(t), elements))
        return t + 1, carry, tf.nest.map_structure(lambda s, v: s.write(t, v), stacks, y)

    _, carry, stacks = tf.while_loop(
        lambda t, *_: t < count, step, (0, init, stacks), maximum_iterations=count
    )
    return carry, tf.nest.map_structure(lambda s: s.stack(), stacks)


def _forward(loop: Callable, body: Body):
    return lambda init, xs: loop(body, init, xs)


def _with_gradient(loop: Callable, body: Body):
    def call(init, xs):
        watched = [t for t in tf.nest.flatten((init, xs)) if t.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            results = tf.nest.flatten(loop(body, init, xs))
            loss = tf.add_n([tf.reduce_sum(tf.sin(t)) for t in results if t is not None])
        return tape.gradient(loss, watched)

    return call


@contextlib.contextmanager
def _without_programs():
    os.environ["TF_TI_PROGRAM"] = "0"
    try:
        yield
    finally:
        del os.environ["TF_TI_PROGRAM"]


def _table(title, repeats, make_call, names, limits) -> harness.Table:
    table = harness.Table(f"{title}, bodies that are no LSTM", "us an iteration", [])
    table.reference = OURS
    for name in names:
        table.add_column(name, _figures(BODIES[name](), repeats, make_call))
    over_xla, over_while = limits
    best = [min(pair) for pair in zip(table.rows[OURS_ON_XLA], table.rows[WHILE_ON_XLA])]
    for what, others, limit in (
        ("the faster of both that XLA compiles", best, over_xla),
        (WHILE, table.rows[WHILE], over_while),
        (KERNELS, table.rows[KERNELS], 1.0),
    ):
        quotients = [ours / other for ours, other in zip(table.rows[OURS], others)]
        mean = statistics.geometric_mean(quotients)
        table.goals.append(harness.Goal(f"{OURS} / {what}, geometric mean", mean, limit))
    worst = max(zip(table.rows[OURS], table.rows[WHILE]), key=lambda pair: pair[0] / pair[1])
    table.goals.append(harness.Goal(f"{OURS} / {WHILE}, the worst", worst[0] / worst[1], 1.0))
    return table


def _figures(body: Body, repeats: int, make_call: Callable) -> dict[str, float]:
    def case(loop, **options):
        function = tf.function(make_call(loop, body), autograph=False, **options)
        function(body.init, body.xs)

        def call():
            results = function(body.init, body.xs)
            return next(t for t in tf.nest.flatten(results) if t is not None).numpy()

        return call

    cases = {OURS: case(_scan), WHILE: case(_while_loop)}
    with _without_programs():
        cases[KERNELS] = case(_scan)
    cases[OURS_ON_XLA] = case(_scan, jit_compile=True)
    cases[WHILE_ON_XLA] = case(_while_loop, jit_compile=True)
    seconds = harness.measure(cases, repeats)
    return {name: value / body.count * 1e6 for name, value in seconds.items()}
