"""Steps of gradient descent on bags of maxima, plain and compiled by XLA."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

import tf_ti
from benchmarks import harness

OURS, SUM, PEER = "tf_ti, max", "tf_ti, sum", "tf.reduce_max(tf.gather)"
# (rows, width, bags, ids a bag)
SHAPES = ((100_000, 64, 4096, 20), (100_000, 256, 1024, 20), (1_000, 64, 4096, 20))

WAYS = {
    OURS: lambda table, ids: tf_ti.embedding_bag(table, ids, combiner="max"),
    SUM: lambda table, ids: tf_ti.embedding_bag(table, ids, combiner="sum"),
    PEER: lambda table, ids: tf.reduce_max(tf.gather(table, ids), 1),
}


def measure(jit_compile: bool, repeats: int) -> dict[str, dict[str, float]]:
    """The microseconds that a step takes each way, for each shape."""
    columns = {}
    for rows, width, bags, size in SHAPES:
        rng = np.random.default_rng(0)
        values = rng.standard_normal([rows, width], np.float32)
        ids = tf.constant(rng.integers(0, rows, [bags, size]))
        cases = {
            name: _step(way, tf.Variable(values), ids, jit_compile) for name, way in WAYS.items()
        }
        np.testing.assert_allclose(cases[OURS](), cases[PEER](), rtol=1e-5)
        seconds = harness.measure(cases, repeats)
        column = f"{rows:,}, {width}, {bags}, {size}"
        columns[column] = {name: value * 1e6 for name, value in seconds.items()}
    return columns


def make_table(title: str, columns: dict[str, dict[str, float]], limit: float) -> harness.Table:
    """A table of the times of measure(); `limit` is the goal for the share of the peer's time."""
    table = harness.Table(title, "us a step", [], reference=PEER)
    for column, figures in columns.items():
        table.add_column(column, figures)
    table.add_goal(OURS, PEER, limit)
    table.notes = ["the update is tf_ti.scatter_sub each way"]
    return table


def _step(way: Callable, table: tf.Variable, ids: tf.Tensor, jit_compile: bool) -> Callable:
    @tf.function(jit_compile=jit_compile, autograph=False)
    def function(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(way(table, ids) ** 2)
        # So small that the rows hardly change.
        tf_ti.scatter_sub(table, tape.gradient(loss, table), 1e-6)
        return loss

    return lambda: function(ids).numpy()
