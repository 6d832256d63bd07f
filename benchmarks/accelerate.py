"""Code that knows nothing of tf_ti, as it is and under `tf_ti.accelerate`.

A figure is a whole call of a tf.function. "First" is the first call, which traces it: after a trace
of another function of the same program, as AutoGraph converts a program once for all.
"""

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_ti
from benchmarks import accelerate_jobs, accelerate_strangers, harness

THREADS = 2
THEIRS, OURS = "TensorFlow's loops", "under tf_ti.accelerate"
STEPS = 200
_FIRST_CALLS = 3
# A function from the tensors of a table to results.
Program = Callable[..., Any]


def run(quick: bool) -> Iterator[harness.Table]:
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    repeats, burst = (3, 0.02) if quick else (9, 0.05)
    programs = _programs()
    yield from _tables(
        "Loops as people write them", programs, [tf.constant(XS)], 0.3, repeats, burst
    )
    gradients = {name: _gradient(function) for name, function in programs.items()}
    yield from _tables("Their gradients", gradients, [tf.constant(XS)], 0.15, repeats, burst)
    yield from _tables("Heavy bodies", _heavy(), [], 0.95, repeats, burst)
    strangers = accelerate_strangers.of_strangers()
    yield from _tables("Programs of tutorials", strangers, [], 0.3, repeats, burst)
    yield from _tables("Look-ups of embeddings", _lookups(), [], 0.5, repeats, burst)
    jobs = harness.if_installed(accelerate_jobs.of_tensorflow_probability)
    if jobs is not None:
        yield from _tables("TensorFlow Probability", jobs, [], 0.3, repeats, burst)


def _tables(
    title: str,
    programs: Mapping[str, Program],
    given: Sequence[tf.Tensor],
    goal: float,
    repeats: int,
    burst: float,
) -> Iterator[harness.Table]:
    table = harness.Table(title, "ms", [], reference=THEIRS)
    first = harness.Table(f"{title}: the first call", "s", [], reference=THEIRS)
    for name, program in programs.items():
        cases, results = {}, {}
        firsts: dict[str, list[float]] = {THEIRS: [], OURS: []}
        for _ in range(1 + _FIRST_CALLS):
            for row in firsts:
                with tf_ti.accelerate(row == OURS, lookups=row == OURS):
                    function = tf.function(program)
                    start = time.perf_counter()
                    results[row] = function(*given)
                    firsts[row].append(time.perf_counter() - start)
                cases[row] = functools.partial(function, *given)
        seconds_of_first = {row: statistics.median(seconds[1:]) for row, seconds in firsts.items()}
        _check(name, results)
        seconds = harness.measure(cases, repeats, burst)
        table.add_column(name, {row: s * 1e3 for row, s in seconds.items()})
        first.add_column(name, seconds_of_first)
    _add_goals(table, goal)
    _add_goals(first, 1.2)
    yield table
    yield first


def _add_goals(table: harness.Table, goal: float) -> None:
    quotients = [ours / theirs for ours, theirs in zip(table.rows[OURS], table.rows[THEIRS])]
    mean = statistics.geometric_mean(quotients)
    table.goals.append(harness.Goal("the geometric mean of the quotients", mean, goal))
    table.add_goal(OURS, THEIRS, max(goal, 1.05))


def _check(name: str, results: Mapping[str, Any]) -> None:
    """Times of different things are not to be compared."""
    theirs, ours = (
        [np.asarray(tf.convert_to_tensor(value)) for value in tf.nest.flatten(results[row])]
        for row in (THEIRS, OURS)
    )
    for value, other in zip(theirs, ours, strict=True):
        largest = max(1.0, float(np.max(np.abs(value), initial=0.0)))
        np.testing.assert_allclose(other, value, rtol=1e-3, atol=1e-4 * largest, err_msg=name)


def _gradient(program: Program) -> Program:
    """The gradient of a program's results with respect to its sequence."""

    def gradient(xs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(xs)
            result = tf.add_n([tf.reduce_sum(t) for t in tf.nest.flatten(program(xs))])
        return tape.gradient(result, xs)

    return gradient


# --- programs ------------------------------------------------------------------------------------

_RANDOM = np.random.default_rng(1)
XS = _RANDOM.standard_normal((STEPS, 16, 8)).astype(np.float32)
W = _RANDOM.standard_normal((8, 8)).astype(np.float32) * 0.3


def _for(xs: tf.Tensor) -> Any:
    c = tf.zeros([16, 8])
    for x in xs:
        c = tf.tanh(c @ W + x)
    return c


def _while(xs: tf.Tensor) -> Any:
    c, k = tf.zeros([16, 8]), 0
    while k < tf.shape(xs)[0] and tf.reduce_max(c) < 100.0:
        c = c * 0.9 + xs[k]
        k += 1
    return c


def _break(xs: tf.Tensor) -> Any:
    c = tf.zeros([16, 8])
    for x in xs:
        c += x
        if tf.reduce_max(c) > 30.0:
            break
    return c


def _array(xs: tf.Tensor) -> Any:
    out = tf.TensorArray(tf.float32, STEPS)
    c = tf.zeros([16, 8])
    for k in tf.range(STEPS):
        if tf.reduce_sum(c) > 0.0:
            c = c * 0.5 + xs[k]
        else:
            c = c + xs[k]
        out = out.write(k, c)
    return out.stack()


class _Cell(keras.layers.Layer):
    state_size = output_size = 8

    def call(self, x: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
        h = keras.ops.tanh(keras.ops.matmul(states[0], W) + x)
        return h, [h]


def _layer(layer: Any) -> Program:
    layer.build((16, STEPS, 8))
    return lambda xs: layer(tf.transpose(xs, [1, 0, 2]))


def _conjugate_gradient(xs: tf.Tensor) -> Any:
    matrix = tf.matmul(xs[0], xs[0], transpose_a=True) + 3.0 * tf.eye(8)
    operator = tf.linalg.LinearOperatorFullMatrix(
        matrix, is_self_adjoint=True, is_positive_definite=True
    )
    return tf.linalg.experimental.conjugate_gradient(operator, xs[0, 0], max_iter=20).x


def _programs() -> dict[str, Program]:
    return {
        "for": _for,
        "while": _while,
        "for with break": _break,
        "TensorArray and if": _array,
        "tf.scan": lambda xs: tf.scan(lambda c, x: tf.tanh(c @ W + x), xs, tf.zeros([16, 8])),
        "tf.foldl": lambda xs: tf.foldl(lambda c, x: c * 0.9 + x, xs, tf.zeros([16, 8])),
        "tf.map_fn": lambda xs: tf.map_fn(lambda x: tf.linalg.norm(x @ W), xs),
        "keras RNN of a cell": _layer(keras.layers.RNN(_Cell())),
        "keras LSTM": _layer(keras.layers.LSTM(16)),
        "conjugate_gradient": _conjugate_gradient,
    }


# --- heavy bodies --------------------------------------------------------------------------------


def _heavy() -> dict[str, Program]:
    matrices = tf.random.stateless_normal([60, 80, 80], [5, 6])
    large = tf.random.stateless_normal([6, 120, 120], [7, 8])

    def singular_values(x: tf.Tensor) -> tf.Tensor:
        return tf.linalg.svd(x, compute_uv=False)

    def length(x: tf.Tensor) -> tf.Tensor:
        return tf.strings.length(tf.strings.reduce_join(tf.strings.as_string(x)))

    def two(c: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return c + tf.reduce_sum(singular_values(x)) + tf.reduce_sum(singular_values(x + 1.0))

    def ahead(c: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return c * 0.5 + tf.reduce_sum(singular_values(x))

    return {
        "a map of SVDs": lambda: tf.map_fn(singular_values, matrices),
        "a map of strings": lambda: tf.map_fn(length, matrices, fn_output_signature=tf.int32),
        "two SVDs an iteration": lambda: tf.foldl(two, large, 0.0),
        "an SVD ahead of the state": lambda: tf.foldl(ahead, large, 0.0),
    }


# --- look-ups ------------------------------------------------------------------------------------


def _lookups() -> dict[str, Program]:
    """Means of 10 rows of 32, 4,096 times, of a table of a million rows."""
    table = tf.Variable(_RANDOM.standard_normal((1_000_000, 32)).astype(np.float32))
    places = np.stack(np.divmod(np.arange(40_960), 10), 1)
    ids = tf.SparseTensor(places, _RANDOM.integers(0, 1_000_000, 40_960), [4_096, 10])
    weights = ids.with_values(tf.constant(_RANDOM.random(40_960).astype(np.float32)))

    def gradient(program: Program) -> Program:
        def slope() -> Any:
            with tf.GradientTape() as tape:
                result = tf.reduce_sum(program())
            return tf.reduce_sum(tape.gradient(result, table).values)

        return slope

    plain = functools.partial(tf.nn.embedding_lookup_sparse, table, ids, None)
    weighted = functools.partial(tf.nn.embedding_lookup_sparse, table, ids, weights)
    safe = functools.partial(tf.nn.safe_embedding_lookup_sparse, table, ids, None)
    return {
        "sparse": plain,
        "weighted": weighted,
        "safe": safe,
        "gradient": gradient(plain),
        "gradient, weighted": gradient(weighted),
    }
