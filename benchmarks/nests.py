"""Loops in loops: tf_ti.scan in tf_ti.scan, the same written out, TensorFlow's loops, and XLA's.

A figure is a whole call of a tf.function. The body of each nest is written once, with a loop of the
inner iterations that is a `scan(f, state, count)` without elements.
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

import tf_ti
from benchmarks import harness
from benchmarks.bodies import while_loop, without_programs
from benchmarks.loop_bodies import Body

OURS = "tf_ti.scan in tf_ti.scan"
WRITTEN_OUT = "inner iterations written out"
KERNELS = "tf_ti.scan in tf_ti.scan, TF_TI_PROGRAM=0"
WHILE = "tf.while_loop in tf.while_loop"
OURS_ON_XLA = "tf_ti.scan in tf_ti.scan, XLA-compiled"
WHILE_ON_XLA = "tf.while_loop in tf.while_loop, XLA-compiled"
# Our time by the time of the faster loop that XLA compiles: the geometric mean, and the worst.
GOALS = {"forward": (0.9, 1.2), "with gradient": (0.5, 1.2)}
# More inner iterations written out take minutes to trace.
MOST_WRITTEN_OUT = 100

Inner = Callable[[Callable, object, int], object]


@dataclasses.dataclass(frozen=True)
class Nest:
    """A loop whose body has a loop.

    Attributes:
        f: from the loop of the inner iterations to the body of the outer one.
        init, xs: the first state of the outer loop, and its elements.
        count: how many inner iterations there are.
    """

    f: Callable[[Inner], Callable]
    init: object
    xs: object
    count: int


def _draw(*shape: int, seed: int = 1, scale: float = 1.0) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).normal(0, scale, shape), tf.float32)


def _substeps(outer: int, count: int) -> Nest:
    def body(inner: Inner) -> Callable:
        def f(h, x):
            h = inner(lambda s: tf.tanh(s * 0.9 + x), h, count)
            return h, h

        return f

    return Nest(body, tf.zeros([8, 8]), _draw(outer, 8, 8), count)


def _implicit_euler() -> Nest:
    """A stiff system of three species for 64 parameters, six steps of Newton's method in each."""
    dt, count = 0.05, 6
    rates = tf.exp(_draw(64, seed=2, scale=0.3))

    def slope(y):
        a, b, c = y[0], y[1], y[2]
        slow, fast, turn = 0.04 * a, 30.0 * rates * b * b, 10.0 * rates * b * c
        return tf.stack([turn - slow, slow - turn - fast, fast])

    def jacobian(y):
        b, c = y[1], y[2]
        by_b, by_c = 10.0 * rates * c, 10.0 * rates * b
        fast, slow, no = 60.0 * rates * b, tf.fill([64], 0.04), tf.zeros([64])
        return [[-slow, by_b, by_c], [slow, -by_b - fast, -by_c], [no, fast, no]]

    def solve(m, r):
        """Cramer's rule, lane by lane."""

        def det(a, b, c):
            return (
                a[0] * (b[1] * c[2] - b[2] * c[1])
                - b[0] * (a[1] * c[2] - a[2] * c[1])
                + c[0] * (a[1] * b[2] - a[2] * b[1])
            )

        columns = [[m[i][j] for i in range(3)] for j in range(3)]
        right = [r[0], r[1], r[2]]
        whole = det(*columns)
        parts = [[right if k == j else columns[k] for k in range(3)] for j in range(3)]
        return tf.stack([det(*part) / whole for part in parts])

    def body(inner: Inner) -> Callable:
        def f(y, force):
            def newton(z):
                matrix = jacobian(z)
                rows = [[(i == j) * 1.0 - dt * matrix[i][j] for j in range(3)] for i in range(3)]
                return z - solve(rows, z - y - dt * (slope(z) + force))

            y = inner(newton, y, count)
            return y, y

        return f

    start = tf.concat([tf.ones([1, 64]), tf.zeros([2, 64])], 0)
    return Nest(body, start, tf.abs(_draw(500, 3, 64, scale=0.01)), count)


def _hamiltonian() -> Nest:
    """200 steps of Hamiltonian Monte Carlo for 32 chains in four dimensions, 20 leaps in each."""
    step, count = 0.05, 20

    def energy(q):
        return 0.5 * tf.reduce_sum(q**2, -1) + 0.1 * tf.reduce_sum(q[:, 1:] * q[:, :-1] ** 2, -1)

    def force(q):
        left, right = q[:, :-1], q[:, 1:]
        by_left = tf.pad(0.2 * right * left, [[0, 0], [0, 1]])
        return -(q + by_left + tf.pad(0.1 * left**2, [[0, 0], [1, 0]]))

    def body(inner: Inner) -> Callable:
        def f(q, draws):
            p, threshold = draws

            def leap(state):
                q, p = state
                p = p + 0.5 * step * force(q)
                q = q + step * p
                return q, p + 0.5 * step * force(q)

            q2, p2 = inner(leap, (q, p), count)
            before = energy(q) + 0.5 * tf.reduce_sum(p**2, -1)
            after = energy(q2) + 0.5 * tf.reduce_sum(p2**2, -1)
            q = tf.where((threshold < before - after)[:, None], q2, q)
            return q, q

        return f

    thresholds = -tf.abs(_draw(200, 32, seed=4))
    return Nest(body, tf.zeros([32, 4]), (_draw(200, 32, 4, seed=3), thresholds), count)


def _sinkhorn() -> Nest:
    """50 transport problems of 32 x 32, each 30 turns of both marginals."""
    count = 30

    def body(inner: Inner) -> Callable:
        def f(total, cost):
            kernel = tf.exp(-4.0 * cost)

            def turn(state):
                u, v = state
                u = 1.0 / tf.linalg.matvec(kernel, v)
                return u, 1.0 / tf.linalg.matvec(kernel, u, transpose_a=True)

            u, v = inner(turn, (tf.ones([32]), tf.ones([32])), count)
            plan = u[:, None] * kernel * v[None]
            distance = tf.reduce_sum(plan * cost)
            return total + distance, distance

        return f

    return Nest(body, tf.constant(0.0), tf.abs(_draw(50, 32, 32, seed=5)), count)


NESTS: dict[str, Callable[[], Nest]] = {
    "200 x 4": lambda: _substeps(200, 4),
    "200 x 20": lambda: _substeps(200, 20),
    "50 x 100": lambda: _substeps(50, 100),
    "1,000 x 1": lambda: _substeps(1000, 1),
    "implicit Euler": _implicit_euler,
    "HMC": _hamiltonian,
    "Sinkhorn": _sinkhorn,
}


def _by_scan(f: Callable, state, count: int):
    return tf_ti.scan(lambda state, _: (f(state), None), state, length=count)[0]


def _by_hand(f: Callable, state, count: int):
    for _ in range(count):
        state = f(state)
    return state


def _by_while(f: Callable, state, count: int):
    return tf.while_loop(
        lambda t, _: t < count,
        lambda t, state: (t + 1, f(state)),
        (0, state),
        maximum_iterations=count,
    )[1]


def _outer_scan(body: Body, init, xs):
    return tf_ti.scan(body.f, init, xs)


WAYS = {
    OURS: (_outer_scan, _by_scan, {}),
    WRITTEN_OUT: (_outer_scan, _by_hand, {}),
    KERNELS: (_outer_scan, _by_scan, {}),
    WHILE: (while_loop, _by_while, {}),
    OURS_ON_XLA: (_outer_scan, _by_scan, {"jit_compile": True}),
    WHILE_ON_XLA: (while_loop, _by_while, {"jit_compile": True}),
}


def tables(quick: bool) -> Iterator[harness.Table]:
    repeats, burst = (3, 0.02) if quick else (9, 0.1)
    for kind in GOALS:
        table = harness.Table(f"Loops in loops, {kind}: a whole call", "us", [], reference=OURS)
        for name, make in NESTS.items():
            nest = make()
            calls = _calls(nest, name, kind)
            seconds = harness.measure(calls, repeats, burst)
            table.add_column(name, {row: s * 1e6 for row, s in seconds.items()})
        best = [min(pair) for pair in zip(table.rows[OURS_ON_XLA], table.rows[WHILE_ON_XLA])]
        quotients = [ours / other for ours, other in zip(table.rows[OURS], best)]
        what = f"{OURS} / the faster of both that XLA compiles"
        mean, worst = GOALS[kind]
        table.goals.append(
            harness.Goal(f"{what}, geometric mean", statistics.geometric_mean(quotients), mean)
        )
        name = table.columns[quotients.index(max(quotients))]
        table.goals.append(harness.Goal(f"{what}, the worst ({name})", max(quotients), worst))
        yield table


def _calls(nest: Nest, name: str, kind: str) -> dict[str, Callable[[], object]]:
    calls, results = {}, {}
    for row, (outer, inner, options) in WAYS.items():
        if row == WRITTEN_OUT and nest.count > MOST_WRITTEN_OUT:
            continue
        body = Body(nest.f(inner), nest.init, nest.xs, has_gradient=True)
        function = tf.function(_call(outer, body, kind), autograph=False, **options)
        if row == KERNELS:
            with without_programs():
                results[row] = [t.numpy() for t in function(nest.init, nest.xs)]
        else:
            results[row] = [t.numpy() for t in function(nest.init, nest.xs)]
        calls[row] = lambda function=function: function(nest.init, nest.xs)[0].numpy()
    for row, found in results.items():
        # Times of different things are not to be compared.
        for actual, wanted in zip(found, results[KERNELS], strict=True):
            difference = np.abs(actual - wanted).max() / max(1e-3, np.abs(wanted).max())
            if not difference <= 1e-2:
                raise RuntimeError(f"{name}: {row} and {KERNELS} differ by {difference:.2g}")
    return calls


def _call(outer: Callable, body: Body, kind: str) -> Callable:
    def forward(init, xs):
        return [t for t in tf.nest.flatten(outer(body, init, xs)) if t is not None]

    def with_gradient(init, xs):
        watched = tf.nest.flatten((init, xs))
        with tf.GradientTape() as tape:
            tape.watch(watched)
            loss = tf.add_n([tf.reduce_sum(tf.sin(t)) for t in forward(init, xs)])
        return tape.gradient(loss, watched, unconnected_gradients="zero")

    return forward if kind == "forward" else with_gradient
