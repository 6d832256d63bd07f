"""Memory of a gradient, by the number of iterations.

Each figure is of a process of its own, which runs a short loop first.
"""

import functools
import math
import sys
from collections.abc import Iterator

import tensorflow as tf

import tf_ti
from benchmarks import harness

THREADS = 2
OURS = "tf_ti.scan"
CHECKPOINTS = "tf_ti.scan, checkpoint_every near sqrt(T)"
WHILE = "tf.while_loop"
WAYS = (OURS, CHECKPOINTS, WHILE)
LENGTHS = (64, 256, 1024, 4096)
# Of the state, in floats.
WIDTH = 2**15


def run(quick: bool) -> Iterator[harness.Table]:
    table = harness.Table(
        f"Memory of a gradient whose state has {WIDTH * 4 // 1024} KiB, by T, the iterations",
        "MiB of peak above the start",
        [],
        reference=OURS,
        notes=[
            "each in a process of its own, after a short run of the same loop",
            "the body is a gate: z * h + (1 - z) * tanh(w * h), with z = sigmoid(w * h + b)",
        ],
        picture="memory-gradient",
        kind=harness.CURVES,
        x="T",
    )
    for length in LENGTHS[:-1] if quick else LENGTHS:
        figures = {way: _peak_growth(way, length) for way in WAYS}
        table.add_column(str(length), figures)
    longest = table.columns[-1:]
    table.add_goal(OURS, WHILE, 0.3, columns=longest)
    table.add_goal(CHECKPOINTS, OURS, 0.2, columns=longest)
    yield table


def _peak_growth(way: str, length: int) -> float:
    output = harness.output_of_process("benchmarks.memory", way, str(length), threads=THREADS)
    return float(output)


def _scan(step, h, count, checkpoint_every=None):
    f = lambda h, _: (step(h), None)  # noqa: E731
    return tf_ti.scan(f, h, length=count, checkpoint_every=checkpoint_every)[0]


def _while_loop(step, h, count):
    return tf.while_loop(lambda k, _: k < count, lambda k, h: (k + 1, step(h)), (0, h))[1]


def print_peak_growth(way: str, length: str) -> None:
    """Prints the MiB that the gradient of a long loop needs at its peak beyond a short one's."""
    loops = {
        OURS: _scan,
        CHECKPOINTS: functools.partial(_scan, checkpoint_every=math.isqrt(int(length))),
        WHILE: _while_loop,
    }
    w, b = tf.fill([WIDTH], 0.5), tf.fill([WIDTH], 0.1)

    def step(h):
        gate = tf.sigmoid(w * h + b)
        return gate * h + (1.0 - gate) * tf.tanh(w * h)

    @tf.function(input_signature=[tf.TensorSpec([WIDTH]), tf.TensorSpec([], tf.int32)])
    def gradient(h, count):
        with tf.GradientTape() as tape:
            tape.watch(h)
            last = loops[way](step, h, count)
            loss = tf.reduce_sum(last)
        return tape.gradient(loss, h)

    h = tf.zeros([WIDTH])
    for _ in range(2):
        gradient(h, tf.constant(2))
    before = harness.memory_of_process("VmHWM")
    assert gradient(h, tf.constant(int(length))).shape == h.shape
    # At least a page: a picture's logarithmic scale has no zero.
    print(max(harness.memory_of_process("VmHWM") - before, 4) / 1024)


if __name__ == "__main__":
    print_peak_growth(*sys.argv[1:])
