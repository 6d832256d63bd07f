"""Loops of heavy kernels: tf_ti.scan, and TensorFlow's loops with ten iterations on their way.

A figure is a call of a tf.function with one loop in it. Each number of threads has a process.
"""

import functools
import json
import sys
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
import tensorflow as tf

import tf_ti
from benchmarks import bodies, harness, native
from benchmarks.loop_bodies import Body

THREADS = (2, 1)
WAITING_THREADS = 16
# Milliseconds of loops that wait for a millisecond 64 times, with so many threads.
MOST_OF_A_MAP, MOST_OF_TWO_AT_ONCE = 6.0, 40.0
OURS, OURS_WHILE, WHILE = "tf_ti.scan", "tf_ti.while_loop", "tf.while_loop"


def _normal(*shape: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(7).standard_normal(shape), tf.float32)


def _values(x: tf.Tensor) -> tf.Tensor:
    return tf.linalg.svd(x, compute_uv=False)


def _map_of(f: Callable) -> Callable:
    return lambda carry, x: (carry, f(x))


def _length(x: tf.Tensor) -> tf.Tensor:
    return tf.strings.length(tf.strings.reduce_join(tf.strings.as_string(x)))


def _two_at_once(c: tf.Tensor, x: tf.Tensor):
    total = tf.reduce_sum(_values(x + c)) + tf.reduce_sum(_values(x - c))
    return total * 1e-3, None


def _pipelined(c: tf.Tensor, x: tf.Tensor):
    return c * 0.5 + tf.reduce_sum(_values(x)), None


def _sorts(c: tf.Tensor, x: tf.Tensor):
    return tf.sort(c * 0.5 + x), None


def _four_products(c: tf.Tensor, x: tf.Tensor):
    products = [x @ (x + c[:, i : i + 1]) for i in range(4)]
    return tf.concat([tf.reduce_mean(p, 1, keepdims=True) for p in products], 1), None


def _ensemble(c: tf.Tensor, x: tf.Tensor):
    outputs = []
    for i in range(4):
        h = tf.concat([x, c], 1)
        for weights in _weights()[i]:
            h = tf.nn.gelu(h @ weights)
        outputs.append(h)
    return tf.add_n(outputs) * 0.25, None


@functools.cache
def _weights() -> list[list[tf.Tensor]]:
    with tf.init_scope():
        return [[_normal(512, 256) * 0.06, _normal(256, 256) * 0.06] for _ in range(4)]


def _convolution(x: tf.Tensor) -> tf.Tensor:
    filters = _normal(3, 3, 16, 16) * 0.1
    return tf.nn.relu(tf.nn.conv2d(x[tf.newaxis], filters, 1, "SAME"))[0]


def _resize(x: tf.Tensor) -> tf.Tensor:
    return tf.image.resize(x, (192, 192))


def _cholesky(c: tf.Tensor, x: tf.Tensor):
    root = tf.linalg.cholesky(x @ tf.transpose(x) + (64.0 + tf.nn.softplus(c)) * tf.eye(64))
    return c * 0.9 + tf.reduce_mean(root), tf.linalg.diag_part(root)


def _jobs() -> dict[str, Body]:
    zero = tf.constant(0.0)
    return {
        "a map of 60 SVDs": Body(_map_of(_values), (), _normal(60, 80, 80), False),
        "a map of strings": Body(_map_of(_length), (), _normal(60, 80, 80), False),
        "two SVDs an iteration": Body(_two_at_once, zero, _normal(6, 120, 120), False),
        "an SVD without the state": Body(_pipelined, zero, _normal(6, 120, 120), True),
        "sorts": Body(_sorts, tf.zeros([200_000]), _normal(6, 200_000), False),
        "four products": Body(
            _four_products, tf.zeros([700, 4]), _normal(4, 700, 700) * 0.04, True
        ),
        "four networks": Body(_ensemble, tf.zeros([64, 256]), _normal(20, 64, 256), True),
        "a map of convolutions": Body(_map_of(_convolution), (), _normal(20, 64, 64, 16), True),
        "a map of image resizes": Body(_map_of(_resize), (), _normal(20, 128, 128, 3), True),
        "a Cholesky of 64 x 64": Body(_cholesky, zero, _normal(50, 64, 64), True),
    }


def _by_while_loop(while_loop: Callable) -> Callable:
    def loop(body: Body, init, xs):
        with mock.patch.object(tf, "while_loop", while_loop):
            return bodies.WAYS[bodies.WHILE][0](body, init, xs)

    return loop


def _by_scan(body: Body, init, xs):
    return tf_ti.scan(body.f, init, xs)


WAYS = {
    OURS: _by_scan,
    OURS_WHILE: _by_while_loop(tf_ti.while_loop),
    WHILE: _by_while_loop(tf.while_loop),
}


def run(quick: bool) -> Iterator[harness.Table]:
    for threads in THREADS:
        found = _of_process("heavy", quick, threads)
        for kind in (bodies.FORWARD, bodies.WITH_GRADIENT):
            title = f"{kind.title}, loops of heavy kernels, {threads} thread{'s'[: threads - 1]}"
            table = harness.Table(title, "ms", [], reference=OURS)
            for name, figures in found[kind.title].items():
                table.add_column(name, figures)
                table.add_goal(OURS, WHILE, 0.95 if threads > 1 else 1.0, columns=[name])
            yield table
    title = f"Loops of kernels that wait for a millisecond, {WAITING_THREADS} threads on two cores"
    table = harness.Table(title, "ms", [], reference=OURS)
    for name, (figures, most) in _of_process("waiting", quick, WAITING_THREADS).items():
        table.add_column(name, figures)
        table.goals.append(harness.Goal(name, figures[OURS], most, "ms"))
    yield table


def _of_process(kind: str, quick: bool, threads: int) -> dict:
    arguments = (kind, str(threads), str(int(quick)))
    return json.loads(harness.output_of_process("benchmarks.heavy", *arguments, threads=2))


def measure_heavy(repeats: int, burst: float) -> dict[str, dict[str, dict[str, float]]]:
    """The milliseconds of each way to do each job, forward and with the gradient."""
    return {
        kind.title: {
            name: _measure(kind, body, repeats, burst)
            for name, body in _jobs().items()
            if kind is bodies.FORWARD or body.has_gradient
        }
        for kind in (bodies.FORWARD, bodies.WITH_GRADIENT)
    }


def measure_waiting(repeats: int, burst: float) -> dict[str, tuple[dict[str, float], float]]:
    """The milliseconds of each way to wait, and the goal for tf_ti.scan's."""
    wait = native.compile_operations("wait.cc").benchmark_wait

    def two(c: tf.Tensor, x: tf.Tensor):
        return wait(c + x) + wait(c - x), None

    jobs = {
        "a map of 64": (Body(_map_of(wait), (), _normal(64, 8), False), MOST_OF_A_MAP),
        "two at once, 32 times": (
            Body(two, tf.zeros([8]), _normal(32, 8), False),
            MOST_OF_TWO_AT_ONCE,
        ),
    }
    return {
        name: (_measure(bodies.FORWARD, body, repeats, burst), most)
        for name, (body, most) in jobs.items()
    }


def _measure(kind: bodies.Kind, body: Body, repeats: int, burst: float) -> dict[str, float]:
    cases = {
        way: functools.partial(
            tf.function(kind.make_call(loop, body), autograph=False), body.init, body.xs
        )
        for way, loop in WAYS.items()
    }
    results = {way: [np.asarray(t) for t in tf.nest.flatten(call())] for way, call in cases.items()}
    for way, found in results.items():
        for ours, other in zip(found, results[WHILE], strict=True):
            scale = np.abs(other).max(initial=1.0)
            np.testing.assert_allclose(ours, other, rtol=1e-2, atol=1e-3 * scale, err_msg=way)
    for call in cases.values():  # times are known from the third call on
        call(), call()
    seconds = harness.measure(cases, repeats, burst)
    return {way: s * 1e3 for way, s in seconds.items()}


MEASURE = {"heavy": measure_heavy, "waiting": measure_waiting}


def main(kind: str, threads: str, is_quick: str) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(int(threads))
    tf.config.threading.set_inter_op_parallelism_threads(int(threads))
    print(json.dumps(MEASURE[kind](*((3, 0.05) if int(is_quick) else (9, 0.2)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
