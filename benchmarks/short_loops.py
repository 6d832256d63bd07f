"""Short loops, loops that a condition ends, eager calls, and derivatives of derivatives.

A figure is a whole call, as a user makes it: of a tf.function, of a function that XLA compiles, or
of the loop itself in eager mode.
"""

import functools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf

import tf_ti
from benchmarks import bodies, harness
from benchmarks.loop_bodies import BODIES

THREADS = 2
# Of derivatives.
STEPS = 10
SCAN, LOOP = "tf_ti.scan", "tf_ti.Loop, WHILE"
WHILE, TF_SCAN = "tf.while_loop", "tf.scan"
NOTHING = "an empty tf.function"
PLAIN, FUNCTION = "tf_ti.scan of a function", "tf_ti.scan of a tf.function"
INSIDE = "a tf.function with tf_ti.scan"


def on_xla(name: str) -> str:
    return f"{name}, XLA-compiled"


def run(quick: bool) -> Iterator[harness.Table]:
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    repeats, burst = (3, 0.02) if quick else (9, 0.05)
    yield calls(repeats, burst)
    yield conditions(repeats, burst)
    yield eager_calls(repeats, burst)
    yield derivatives(repeats, burst)


def _compiled(ways: Mapping[str, Callable]) -> dict[str, Callable]:
    """Each way in a tf.function, and in one that XLA compiles."""
    functions = {name: tf.function(way, autograph=False) for name, way in ways.items()}
    for name, way in ways.items():
        functions[on_xla(name)] = tf.function(way, autograph=False, jit_compile=True)
    return functions


def _check(results: Mapping[str, object], tolerance: float = 1e-3) -> None:
    """Times of different things are not to be compared."""
    flat = {name: [np.asarray(t) for t in tf.nest.flatten(r)] for name, r in results.items()}
    wanted = next(iter(flat.values()))
    for name, found in flat.items():
        for ours, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, other, rtol=tolerance, atol=tolerance, err_msg=name)


# --- the whole call of a short loop --------------------------------------------------------------


def _forward(way: str, body: bodies.Body) -> Callable:
    loop, _ = bodies.WAYS[way]
    return bodies.FORWARD.make_call(loop, body)


def calls(repeats: int, burst: float) -> harness.Table:
    table = harness.Table(
        "A call of a tf.function with one loop",
        "us",
        [],
        reference=SCAN,
        notes=[f"{NOTHING} takes and returns the same tensors, and is the limit"],
    )
    for name in ("gae", "leapfrog"):
        whole = BODIES[name](tf)
        for count in (1, 10, 100):
            body = whole.shortened(count)
            ways = {
                SCAN: _forward(bodies.OURS, body),
                WHILE: _forward(bodies.WHILE, body),
            }
            functions = _compiled(ways)
            _check({way: function(body.init, body.xs) for way, function in functions.items()})
            functions[NOTHING] = tf.function(lambda init, xs: tf.nest.flatten((init, xs)))
            cases = {
                way: functools.partial(function, body.init, body.xs)
                for way, function in functions.items()
            }
            seconds = harness.measure(cases, repeats, burst)
            column = f"{name}, {count} iteration{'s' * (count > 1)}"
            table.add_column(column, {way: s * 1e6 for way, s in seconds.items()})
    table.add_goal(SCAN, on_xla(WHILE), 1.0)
    table.add_goal(SCAN, WHILE, 0.5, columns=[c for c in table.columns if "100" in c])
    return table


# --- loops that a condition ends -----------------------------------------------------------------


def _collatz_on_loop(numbers: tf.Tensor) -> tf.Tensor:
    with tf_ti.Loop() as loop:
        n, steps = loop.add_recurrence(numbers), loop.add_recurrence(tf.zeros_like(numbers))
        goes_on = n > 1
        loop.add_trip_limit(tf.reduce_any(goes_on), tf_ti.TripLimit.WHILE)
        n.next, steps.next = _collatz_step(tf.identity(n), tf.identity(steps))
        last = loop.add_loop_output(steps, tf_ti.LoopOutput.LAST_VALUE)
    return last.tensor


def _collatz_step(n: tf.Tensor, steps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    following = tf.where(n % 2 == 0, n // 2, 3 * n + 1)
    goes_on = n > 1
    return tf.where(goes_on, following, n), steps + tf.cast(goes_on, n.dtype)


def _collatz_on_while_loop(numbers: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(
        lambda n, _: tf.reduce_any(n > 1), _collatz_step, (numbers, tf.zeros_like(numbers))
    )[1]


def _newton_step(x: tf.Tensor, cubes: tf.Tensor) -> tf.Tensor:
    return x - (x * x * x - cubes) / (3.0 * x * x)


def _newton_on_loop(cubes: tf.Tensor) -> tf.Tensor:
    with tf_ti.Loop() as loop:
        x, change = loop.add_recurrence(tf.ones_like(cubes)), loop.add_recurrence(1.0)
        loop.add_trip_limit(change > 1e-5, tf_ti.TripLimit.WHILE)
        x.next = _newton_step(tf.identity(x), cubes)
        change.next = tf.reduce_max(tf.abs(x.next - x) / x.next)
        last = loop.add_loop_output(x, tf_ti.LoopOutput.LAST_VALUE)
    return last.tensor


def _newton_on_while_loop(cubes: tf.Tensor) -> tf.Tensor:
    def step(x, _):
        following = _newton_step(x, cubes)
        return following, tf.reduce_max(tf.abs(following - x) / following)

    return tf.while_loop(lambda _, change: change > 1e-5, step, (tf.ones_like(cubes), 1.0))[0]


def conditions(repeats: int, burst: float) -> harness.Table:
    random = np.random.default_rng(3)
    table = harness.Table(
        "Loops that a condition ends: a whole call",
        "us",
        [],
        reference=LOOP,
        notes=[
            "Collatz: the steps to 1 from 64 numbers below 1,000, some 150 iterations",
            "Newton: cubic roots of 64 numbers, until none changes, some 20 iterations",
        ],
    )
    for column, ours, other, given in (
        (
            "Collatz",
            _collatz_on_loop,
            _collatz_on_while_loop,
            tf.constant(random.integers(1, 1000, 64), tf.int32),
        ),
        (
            "Newton",
            _newton_on_loop,
            _newton_on_while_loop,
            tf.constant(random.uniform(1, 1000, 64), tf.float32),
        ),
    ):
        functions = _compiled({LOOP: ours, WHILE: other})
        cases = {way: functools.partial(f, given) for way, f in functions.items()}
        _check({way: case() for way, case in cases.items()})
        seconds = harness.measure(cases, repeats, burst)
        table.add_column(column, {way: s * 1e6 for way, s in seconds.items()})
    table.add_goal(LOOP, WHILE, 0.33)
    table.add_goal(LOOP, on_xla(WHILE), 1.5)
    return table


# --- eager calls ---------------------------------------------------------------------------------


def _decay(c: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    c = 0.9 * c + x
    return c, c


def _with_tape(call: Callable, init: tf.Tensor, xs: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(init)
        last = call(init, xs)
    return tape.gradient(last, init)


def eager_calls(repeats: int, burst: float) -> harness.Table:
    count = 10
    init, xs = tf.zeros([8]), tf.random.stateless_normal([count, 8], [1, 2])
    function = tf.function(_decay)

    def while_loop(init, xs):
        return tf.while_loop(
            lambda k, _: k < count, lambda k, c: (k + 1, _decay(c, xs[k])[0]), (0, init)
        )[1]

    inside = tf.function(lambda init, xs: tf_ti.scan(_decay, init, xs)[0])
    ways = {
        PLAIN: lambda init, xs: tf_ti.scan(_decay, init, xs)[0],
        FUNCTION: lambda init, xs: tf_ti.scan(function, init, xs)[0],
        INSIDE: inside,
        WHILE: while_loop,
        TF_SCAN: lambda init, xs: tf.scan(lambda c, x: _decay(c, x)[0], xs, init)[-1],
    }
    table = harness.Table(
        f"An eager call of a loop, {count} iterations",
        "us",
        [],
        reference=INSIDE,
        notes=["a plain function is traced in each call"],
    )
    for column, call in (
        ("forward", lambda way: way(init, xs)),
        ("with gradient", lambda way: _with_tape(way, init, xs)),
    ):
        cases = {name: functools.partial(call, way) for name, way in ways.items()}
        _check({name: case() for name, case in cases.items()})
        seconds = harness.measure(cases, repeats, burst)
        table.add_column(column, {name: s * 1e6 for name, s in seconds.items()})
    table.add_goal(FUNCTION, INSIDE, 1.0, columns=["forward"])
    table.add_goal(FUNCTION, INSIDE, 1.5, columns=["with gradient"])
    return table


# --- derivatives of derivatives ------------------------------------------------------------------


def _lstm() -> tuple[Callable, object, tf.Tensor]:
    w, r = (tf.random.stateless_normal([8, 32], [k, 4]) * 0.3 for k in (1, 2))

    def cell(state, x):
        h, c = state
        i, j, f, o = tf.split(x @ w + h @ r, 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(j)
        h = tf.sigmoid(o) * tf.tanh(c)
        return (h, c), h

    state = (tf.zeros([1, 8]), tf.zeros([1, 8]))
    return cell, state, tf.random.stateless_normal([STEPS, 1, 8], [5, 6])


def _kalman() -> tuple[Callable, object, tf.Tensor]:
    body = BODIES["kalman"](tf).shortened(STEPS)
    return body.f, body.init, body.xs


def _on_scan(f: Callable, init: object, xs: tf.Tensor) -> tf.Tensor:
    return tf_ti.scan(f, init, xs)[1]


def _on_while_loop(f: Callable, init: object, xs: tf.Tensor) -> tf.Tensor:
    """All results, by tf.while_loop."""
    count = xs.shape[0]
    _, first = f(init, xs[0])
    ys = tf.TensorArray(tf.float32, count, element_shape=first.shape)

    def step(k, carry, ys):
        carry, y = f(carry, xs[k])
        return k + 1, carry, ys.write(k, y)

    _, _, ys = tf.while_loop(lambda k, *_: k < count, step, (0, init, ys), maximum_iterations=count)
    return ys.stack()


def _jacobian(results: Callable, xs: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(xs)
        last = results(xs)[-1]
    return tape.jacobian(last, xs)


def _hessian(results: Callable, xs: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as outer:
        outer.watch(xs)
        with tf.GradientTape() as tape:
            tape.watch(xs)
            value = tf.reduce_sum(tf.sin(results(xs)))
        gradient = tape.gradient(value, xs)
    return outer.jacobian(gradient, xs)


def derivatives(repeats: int, burst: float) -> harness.Table:
    table = harness.Table(
        f"Jacobians and Hessians, {STEPS} iterations",
        "us",
        [],
        reference=SCAN,
        notes=[
            "XLA compiles no jacobian of tf.while_loop, and TensorFlow has no Hessian of it: it "
            "vectorizes no gradient of its gradient"
        ],
    )
    for model, make in (("LSTM", _lstm), ("Kalman filter", _kalman)):
        f, init, xs = make()
        scan = functools.partial(_on_scan, f, init)
        while_loop = functools.partial(_on_while_loop, f, init)
        for what, derivative in (("jacobian", _jacobian), ("Hessian", _hessian)):
            functions = _compiled({SCAN: functools.partial(derivative, scan)})
            if derivative is _jacobian:
                of_while_loop = functools.partial(derivative, while_loop)
                functions[WHILE] = tf.function(of_while_loop, autograph=False)
            cases = {name: functools.partial(g, xs) for name, g in functions.items()}
            _check({name: case() for name, case in cases.items()})
            seconds = harness.measure(cases, repeats, burst)
            table.add_column(f"{model}: {what}", {name: s * 1e6 for name, s in seconds.items()})
    table.add_goal(SCAN, on_xla(SCAN), 2.0)
    table.add_goal(SCAN, WHILE, 1.0)
    return table
