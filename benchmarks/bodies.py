"""Bodies that are no LSTM: tf_ti.scan, TensorFlow's loops, what XLA compiles, and JAX's.

A figure is a whole call of a tf.function with one loop in it, divided by the loop's iterations; or
the difference of two such calls, one of half the length, divided by that of the iterations.
"""

import contextlib
import dataclasses
import importlib
import itertools
import os
import statistics
import time
from collections.abc import Callable, Collection, Iterator

import numpy as np
import tensorflow as tf

import tf_ti
from benchmarks import harness
from benchmarks.loop_bodies import BODIES, Body

THREADS = 2
OURS = "tf_ti.scan"
KERNELS = "tf_ti.scan, TF_TI_PROGRAM=0"
WHILE = "tf.while_loop"
TF_SCAN = "tf.scan"
OURS_ON_XLA = "tf_ti.scan, XLA-compiled"
WHILE_ON_XLA = "tf.while_loop, XLA-compiled"
JAX = "jax.lax.scan, jitted"
# The rows that also have a figure for the loop alone. Others' iterations take so long that a call
# costs little beside them; of both loops XLA makes much the same.
ALONE = (OURS, KERNELS, OURS_ON_XLA, JAX)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A thing to do with each loop.

    Attributes:
        title: its name.
        make_call: from a loop and a body to the function that is measured.
        jax: the name of the function in loop_bodies_jax.py.
        of_xla, of_while: the goals: geometric means of our times by the others'.
        agreement: the relative difference that results may have.
    """

    title: str
    make_call: Callable
    jax: str
    of_xla: float
    of_while: float
    agreement: float


def run(quick: bool) -> Iterator[harness.Table]:
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    repeats, burst = (3, 0.02) if quick else (9, 0.05)
    for kind in (FORWARD, WITH_GRADIENT):
        yield from _tables(kind, repeats, burst)
    yield from importlib.import_module("benchmarks.nests").tables(quick)


def _for_rows(loop: Callable) -> Callable:
    """The loop; mapped over its rows where the body is one row's."""

    def call(body: Body, init, xs):
        if not body.is_mapped:
            return loop(body, init, xs)
        init_of_one, xs_of_one = tf.nest.map_structure(lambda x: x[0], (body.init, body.xs))
        one = Body(body.f, init_of_one, xs_of_one, body.has_gradient)

        def of_row(row):
            return [t for t in tf.nest.flatten(loop(one, *row)) if t is not None]

        return tf.vectorized_map(of_row, (init, xs))

    return call


def _scan(body: Body, init, xs):
    return tf_ti.scan(body.f, init, xs)


def while_loop(body: Body, init, xs):
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


def _fits_tf_scan(body: Body) -> bool:
    """True if the results are carries: tf.scan has no others."""
    carry, y = body.f(body.init, tf.nest.map_structure(lambda x: x[0], body.xs))
    return y is None or any(y is t for t in tf.nest.flatten(carry))


def _tf_scan(body: Body, init, xs):
    """The same with tf.scan, which stacks all carries."""
    position = None

    def f(carry, element):
        nonlocal position
        carry, y = body.f(carry, element)
        position = next((k for k, t in enumerate(tf.nest.flatten(carry)) if t is y), None)
        return carry

    stacks = tf.scan(f, xs, init)
    y = None if position is None else tf.nest.flatten(stacks)[position]
    return tf.nest.map_structure(lambda s: s[-1], stacks), y


WAYS = {
    OURS: (_for_rows(_scan), {}),
    KERNELS: (_for_rows(_scan), {}),
    WHILE: (_for_rows(while_loop), {}),
    TF_SCAN: (_for_rows(_tf_scan), {}),
    OURS_ON_XLA: (_for_rows(_scan), {"jit_compile": True}),
    WHILE_ON_XLA: (_for_rows(while_loop), {"jit_compile": True}),
}


def _forward(loop: Callable, body: Body):
    def call(init, xs):
        return [t for t in tf.nest.flatten(loop(body, init, xs)) if t is not None]

    return call


def _with_gradient(loop: Callable, body: Body):
    def call(init, xs):
        watched = [t for t in tf.nest.flatten((init, xs)) if t.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            results = tf.nest.flatten(loop(body, init, xs))
            loss = tf.add_n([tf.reduce_sum(tf.sin(t)) for t in results if t is not None])
        return tape.gradient(loss, watched, unconnected_gradients="zero")

    return call


FORWARD = Kind("Forward", _forward, "forward", 0.95, 0.08, 1e-4)
WITH_GRADIENT = Kind("With gradient", _with_gradient, "with_gradient", 0.75, 0.06, 1e-2)
# Of bodies whose iteration takes at least as many microseconds when XLA compiles it, none should
# take more than so many times of that. Of the others, the call is most.
LONG, WORST_OF_LONG = 1.0, 1.5


@contextlib.contextmanager
def without_programs():
    os.environ["TF_TI_PROGRAM"] = "0"
    try:
        yield
    finally:
        del os.environ["TF_TI_PROGRAM"]


@dataclasses.dataclass
class Case:
    """Something to measure: a call, and the seconds that the first one took."""

    call: Callable[[], object]
    first: float


def _tables(kind: Kind, repeats: int, burst: float) -> Iterator[harness.Table]:
    title = f"{kind.title}, bodies that are no LSTM"
    whole = harness.Table(
        f"{title}: a whole call",
        "us an iteration",
        [],
        reference=OURS,
        picture=f"bodies-{kind.jax}".replace("_", "-"),
    )
    alone = harness.Table(f"{title}: the loop alone", "us an iteration", [], reference=OURS)
    first = harness.Table(f"{title}: the first call", "seconds", [], reference=KERNELS)
    for name, make in BODIES.items():
        body = make(tf)
        if kind is WITH_GRADIENT and not body.has_gradient:
            continue
        half = body.shortened(body.count // 2)
        cases, halves = make_cases(kind, name, body), make_cases(kind, name, half, ALONE)
        calls = {(row, True): case.call for row, case in cases.items()}
        calls |= {(row, False): case.call for row, case in halves.items()}
        seconds = harness.measure(calls, repeats, burst)
        per_call = {row: seconds[row, True] for row in cases}
        whole.add_column(name, {row: s / body.count * 1e6 for row, s in per_call.items()})
        beyond = {row: per_call[row] - seconds[row, False] for row in halves}
        per_iteration = {row: s / (body.count - half.count) * 1e6 for row, s in beyond.items()}
        # A loop may take less than two calls differ by anyway.
        alone.add_column(name, {row: s if s > 0 else None for row, s in per_iteration.items()})
        # The lesser one: the other has waited for something.
        both = {row: [case.first, halves.get(row, case).first] for row, case in cases.items()}
        first.add_column(name, {row: min(times) for row, times in both.items()})
    _add_goals(whole, kind)
    beyond = [ours - other for ours, other in zip(first.rows[OURS], first.rows[KERNELS])]
    first.goals.append(harness.Goal(f"{OURS} beyond {KERNELS}, the worst", max(beyond), 0.2, "s"))
    yield whole
    yield alone
    yield first


def _add_goals(table: harness.Table, kind: Kind) -> None:
    best = fastest_on_xla(table)
    for what, others, limit in (
        ("the faster of both that XLA compiles", best, kind.of_xla),
        (WHILE, table.rows[WHILE], kind.of_while),
        (KERNELS, table.rows[KERNELS], 1.0),
    ):
        quotients = [ours / other for ours, other in zip(table.rows[OURS], others)]
        mean = statistics.geometric_mean(quotients)
        table.goals.append(harness.Goal(f"{OURS} / {what}, geometric mean", mean, limit))
    long = {
        column: ours / other
        for column, ours, other in zip(table.columns, table.rows[OURS], best)
        if other > LONG
    }
    if long:
        worst = max(long, key=long.get)
        what = f"the faster of both that XLA compiles where that takes over {LONG:.3g} us"
        what = f"{OURS} / {what}, at ({worst}), the worst of {len(long)}"
        table.goals.append(harness.Goal(what, long[worst], WORST_OF_LONG))
    table.add_goal(OURS, WHILE, 1.0)


def fastest_on_xla(table: harness.Table, suffix: str = "") -> list[float]:
    """By column, the lesser figure of both loops that XLA compiles. One of them may have none."""
    rows = [table.rows.get(row + suffix, []) for row in (OURS_ON_XLA, WHILE_ON_XLA)]
    return [min(filter(None, figures)) for figures in itertools.zip_longest(*rows)]


def make_cases(
    kind: Kind,
    name: str,
    body: Body,
    rows: Collection[str] | None = None,
    times: int = 1,
) -> dict[str, Case]:
    """Makes a case for each row that can run the body.

    Args:
        kind: the thing to do with the loop.
        name: the body's name.
        body: the body.
        rows: the names of the rows, KERNELS among them; None for all rows.
        times: the body's batch, in times of its batch at sizes of use.
    """
    cases, results = {}, {}
    for row, (loop, options) in WAYS.items():
        if (rows is None or row in rows) and _is_there(row, body):
            function = tf.function(kind.make_call(loop, body), autograph=False, **options)
            with without_programs() if row == KERNELS else contextlib.nullcontext():
                cases[row], results[row] = _case(function, body)
    module = None
    if rows is None or JAX in rows:
        module = harness.if_installed(lambda: importlib.import_module("benchmarks.loop_bodies_jax"))
    if module is not None:
        same = BODIES[name](module.TF, times).shortened(body.count)
        cases[JAX], results[JAX] = _case(getattr(module, kind.jax)(same), same)
    for row, found in results.items():
        # Times of different things are not to be compared.
        for actual, wanted in zip(found, results[KERNELS], strict=True):
            difference = np.abs(actual - wanted).max() / max(1e-3, np.abs(wanted).max())
            if not difference <= kind.agreement:
                raise RuntimeError(f"{name}: {row} and {KERNELS} differ by {difference:.2g}")
    return cases


def _is_there(row: str, body: Body) -> bool:
    if row == TF_SCAN:
        return _fits_tf_scan(body)
    # XLA compiles none of the lists in which TensorFlow maps a loop's TensorArrays.
    return row != WHILE_ON_XLA or not body.is_mapped


def _case(function: Callable, body: Body) -> tuple[Case, list[np.ndarray]]:
    """A case, and its results."""
    start = time.perf_counter()
    results = [np.asarray(t) for t in function(body.init, body.xs)]
    seconds = time.perf_counter() - start
    return Case(lambda: np.asarray(function(body.init, body.xs)[0]), seconds), results
