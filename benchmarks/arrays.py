"""Loops whose states are TensorArrays: `tf_ti.while_loop` beside `tf.while_loop`."""

import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import tensorflow as tf

import tf_ti
from benchmarks import harness

THREADS = 2
OURS, THEIRS = "tf_ti.while_loop", "tf.while_loop"
WAYS = {OURS: tf_ti.while_loop, THEIRS: tf.while_loop}
# (time, batch, hidden)
SHAPES = ((100, 4, 16), (1000, 32, 64), (200, 64, 512), (10_000, 2, 8))
GOAL = 1.0


def run(quick: bool) -> Iterator[harness.Table]:
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    repeats = 3 if quick else 9
    for program in PROGRAMS:
        yield from times(program, repeats)
    yield memory(quick)


def network(loop: Callable, xs: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Reads the inputs from one array, and writes the states to another."""
    count = xs.shape[0]
    inputs = tf.TensorArray(tf.float32, count).unstack(xs)
    states = tf.TensorArray(tf.float32, count, element_shape=xs.shape[1:])

    def body(i, h, states):
        h = tf.tanh(h @ weights + inputs.read(i))
        return i + 1, h, states.write(i, h)

    return loop(lambda i, *_: i < count, body, (0, tf.zeros_like(xs[0]), states))[2].stack()


def recursion(loop: Callable, xs: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Reads what it wrote before."""
    count = xs.shape[0]
    array = tf.TensorArray(tf.float32, count, clear_after_read=False, element_shape=xs.shape[1:])

    def body(i, array):
        return i + 1, array.write(i, tf.sin(array.read(i - 1) @ weights))

    return loop(lambda i, _: i < count, body, (1, array.write(0, xs[0])))[1].stack()


PROGRAMS = {"from an array to an array": network, "of an array that reads itself": recursion}


def _function(program: str, way: str, has_gradient: bool) -> Callable:
    def forward(xs, weights):
        return PROGRAMS[program](WAYS[way], xs, weights)

    def with_gradient(xs, weights):
        with tf.GradientTape() as tape:
            tape.watch([xs, weights])
            total = tf.reduce_sum(forward(xs, weights) ** 2)
        return tape.gradient(total, [weights, xs])

    return tf.function(with_gradient if has_gradient else forward, autograph=False)


def _draw(time: int, batch: int, hidden: int) -> tuple[tf.Tensor, tf.Tensor]:
    random = tf.random.Generator.from_seed(1)
    return random.normal([time, batch, hidden]), random.normal([hidden, hidden]) / hidden**0.5


def times(program: str, repeats: int) -> Iterator[harness.Table]:
    for has_gradient in (False, True):
        title = f"A loop {program}{', with its gradient' * has_gradient}"
        table = harness.Table(title, "ms", [], reference=THEIRS)
        for shape in SHAPES:
            arguments = _draw(*shape)
            functions = {way: _function(program, way, has_gradient) for way in WAYS}
            cases = {
                way: lambda function=function, arguments=arguments: function(*arguments)
                for way, function in functions.items()
            }
            seconds = harness.measure(cases, repeats)
            column = "time {}, batch {}, hidden {}".format(*shape)
            table.add_column(column, {way: value * 1e3 for way, value in seconds.items()})
        worst = max(ours / theirs for ours, theirs in zip(table.rows[OURS], table.rows[THEIRS]))
        table.goals.append(harness.Goal(f"{OURS} / {THEIRS}, the worst", worst, GOAL))
        yield table


def memory(quick: bool) -> harness.Table:
    shape = (200, 64, 512) if quick else (800, 64, 512)
    table = harness.Table(
        "Memory of loops with arrays, time {}, batch {}, hidden {}".format(*shape),
        "MiB of peak above the start",
        [],
        reference=THEIRS,
        notes=[
            "each in a process of its own, which has run it for the first time",
            f"{OURS} joins the factors of a gradient's products: one product is faster than many",
        ],
    )
    for program in PROGRAMS:
        for has_gradient in (False, True):
            figures = {}
            for way in WAYS:
                command = [sys.executable, "-m", "benchmarks.arrays", program, way]
                command += map(str, (int(has_gradient), *shape))
                printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                figures[way] = float(printed.stdout)
            table.add_column(f"{program}{', gradient' * has_gradient}", figures)
    worst = max(ours / theirs for ours, theirs in zip(table.rows[OURS], table.rows[THEIRS]))
    table.goals.append(harness.Goal(f"{OURS} / {THEIRS}, the worst", worst, GOAL))
    return table


def print_peak(program: str, way: str, has_gradient: str, *shape: str) -> None:
    arguments = _draw(*map(int, shape))
    function = _function(program, way, bool(int(has_gradient)))
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = harness.memory_of_process("VmRSS")
    function(*arguments)
    print((harness.memory_of_process("VmHWM") - before) / 1024)


if __name__ == "__main__":
    print_peak(*sys.argv[1:])
