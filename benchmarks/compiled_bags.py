"""Bags compiled by XLA, beside TensorFlow's own ops, compiled likewise.

Each is one compiled function; its call, 0.1 to 0.2 ms, is part of every figure.
"""

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

import tf_ti
from benchmarks import harness, maxima

OURS, PEER = "tf_ti", "tf.gather + segment sum"
# (rows, width, bags, ids a bag)
SHAPES = ((1_000_000, 64, 4096, 20), (100_000, 16, 16384, 10), (1_000, 64, 4096, 20))
# Shapes with weights that are learnt: a copy of the first table would count.
WEIGHTED_SHAPES = ((2_097_152, 64, 64, 5), (100_000, 64, 4096, 20))

# A function that makes the sums: (table, ids, bounds) -> [bags, width].
Way = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def run(quick: bool) -> Iterator[harness.Table]:
    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    repeats = 3 if quick else 9
    for make, title in ((_forward, "forward"), (_gradient, "forward + dense gradient")):
        table = _table(make, f"Sums of bags compiled by XLA, {title}", repeats)
        table.picture = f"compiled-bags-{title.split()[-1]}"
        yield table
    yield _steps(repeats)
    yield _weighted_steps(repeats)
    title = "A step of gradient descent on maxima of packed bags, compiled by XLA"
    yield maxima.make_table(title, maxima.measure(True, repeats), 1.0)


def _table(make: Callable, title: str, repeats: int) -> harness.Table:
    table = harness.Table(title, "us a call", [], reference=PEER)
    for shape in SHAPES:
        values = tf.constant(np.random.default_rng(1).standard_normal(shape[:2], np.float32))
        for given, (ways, ids, bounds) in _bags(*shape).items():
            cases = {
                name: make(way, values, ids, bound)
                for (name, way), bound in zip(ways.items(), bounds)
            }
            results = {name: case() for name, case in cases.items()}
            np.testing.assert_allclose(results[OURS], results[PEER], rtol=1e-4, atol=1e-4)
            seconds = harness.measure(cases, repeats)
            column = f"{given}: {', '.join(map(str, shape))}"
            table.add_column(column, {name: value * 1e6 for name, value in seconds.items()})
            ratio = seconds[OURS] / seconds[PEER]
            table.goals.append(harness.Goal(f"{OURS} / {PEER}, {column}", ratio, 1.0))
    return table


def _steps(repeats: int) -> harness.Table:
    title = "A step of gradient descent on packed bags, compiled by XLA"
    table = harness.Table(title, "us a call", [], reference=PEER)
    for shape in SHAPES:
        values = np.random.default_rng(1).standard_normal(shape[:2], np.float32)
        ways, ids, _ = _bags(*shape)["packed"]
        cases = {
            OURS: _step(ways[OURS], tf_ti.scatter_sub, tf.Variable(values), ids),
            PEER: _step(ways[PEER], _scatter_sub, tf.Variable(values), ids),
        }
        seconds = harness.measure(cases, repeats)
        table.add_column(
            ", ".join(map(str, shape)), {name: value * 1e6 for name, value in seconds.items()}
        )
    return table


def _weighted_steps(repeats: int) -> harness.Table:
    title = "The same with a weight for each id, which is learnt too"
    table = harness.Table(title, "us a call", [], reference=PEER)

    def peer(table, ids, weights):
        return tf.reduce_sum(tf.gather(table, ids) * weights[..., tf.newaxis], 1)

    for shape in WEIGHTED_SHAPES:
        rows, width, bags, size = shape
        ids = tf.constant(np.random.default_rng(0).integers(0, rows, [bags, size], np.int32))
        ways = {
            OURS: (tf_ti.embedding_bag, tf_ti.scatter_sub),
            PEER: (peer, _scatter_sub),
        }
        cases = {
            name: _weighted_step(*way, tf.Variable(tf.ones([rows, width])), ids)
            for name, way in ways.items()
        }
        seconds = harness.measure(cases, repeats)
        table.add_column(
            ", ".join(map(str, shape)), {name: value * 1e6 for name, value in seconds.items()}
        )
    table.add_goal(OURS, PEER, 1.5)
    return table


def _bags(rows: int, width: int, bags: int, size: int) -> dict:
    """The ways to sum bags, the ids, and the bounds of each, for each way to give bags."""
    rng = np.random.default_rng(0)
    ids = tf.constant(rng.integers(0, rows, [bags, size], np.int32))
    equal = np.arange(0, bags * size, size, np.int32)
    uneven = np.sort(rng.integers(0, bags * size, bags, np.int32))
    uneven[0] = 0

    def segment_ids(offsets):
        lengths = np.diff([*offsets, bags * size])
        return tf.constant(np.repeat(np.arange(bags, dtype=np.int32), lengths))

    def peer(table, ids, segment_ids):
        return tf.math.unsorted_segment_sum(tf.gather(table, ids), segment_ids, bags)

    def by_segments(table, ids, segment_ids):
        return tf_ti.embedding_segments_sum(table, ids, segment_ids, bags)

    packed = {
        OURS: lambda table, ids, bounds: tf_ti.embedding_bag_packed(table, ids),
        PEER: lambda table, ids, bounds: tf.reduce_sum(tf.gather(table, ids), 1),
    }
    by_offsets = {OURS: tf_ti.embedding_bag_offsets_sum, PEER: peer}
    flat = tf.reshape(ids, [-1])
    return {
        "packed": (packed, ids, (ids, ids)),
        "offsets": (by_offsets, flat, (tf.constant(equal), segment_ids(equal))),
        "uneven": (by_offsets, flat, (tf.constant(uneven), segment_ids(uneven))),
        "segments": ({OURS: by_segments, PEER: peer}, flat, (segment_ids(equal),) * 2),
    }


def _forward(way: Way, table: tf.Tensor, ids: tf.Tensor, bounds: tf.Tensor) -> Callable:
    function = tf.function(way, jit_compile=True, autograph=False)
    return lambda: function(table, ids, bounds)


def _gradient(way: Way, table: tf.Tensor, ids: tf.Tensor, bounds: tf.Tensor) -> Callable:
    @tf.function(jit_compile=True, autograph=False)
    def function(table, ids, bounds):
        with tf.GradientTape() as tape:
            tape.watch(table)
            sums = way(table, ids, bounds)
        return tf.convert_to_tensor(tape.gradient(sums, table, 0.5 * sums))

    return lambda: function(table, ids, bounds)


def _scatter_sub(variable: tf.Variable, slices: tf.IndexedSlices, scale: float) -> None:
    variable.scatter_sub(tf.IndexedSlices(scale * slices.values, slices.indices))


def _step(way: Way, descend: Callable, table: tf.Variable, ids: tf.Tensor) -> Callable:
    @tf.function(jit_compile=True, autograph=False)
    def function(ids):
        with tf.GradientTape() as tape:
            sums = way(table, ids, None)
            loss = tf.reduce_sum(sums * sums)
        descend(table, tape.gradient(loss, table), 1e-6)

    return lambda: function(ids)


def _weighted_step(way: Way, descend: Callable, table: tf.Variable, ids: tf.Tensor) -> Callable:
    weights = tf.Variable(tf.ones(ids.shape))

    @tf.function(jit_compile=True, autograph=False)
    def function(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(way(table, ids, weights)))
        of_table, of_weights = tape.gradient(loss, [table, weights])
        descend(table, of_table, 1e-6)
        weights.assign_sub(1e-6 * of_weights)
        return loss

    return lambda: function(ids).numpy()
