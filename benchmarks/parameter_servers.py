"""A table in two shards on parameter servers: the bytes on the network, and the time.

The servers are processes of their own, the network is loopback, and this process does the steps:
all share the same CPUs. Both ways look up the same ShardedVariable; their ids are the same.
"""

import json
import pathlib
import sys
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

import tf_ti
from benchmarks import harness
from benchmarks.bag_peers import NOTES, UNIFORM, ZIPF, Bags, Shape
from examples.parameter_servers import Cluster

SHAPE = Shape(1_000_000, 64, 4096, 20)
SERVERS, THREADS = 2, 2
RATE = 0.01
OURS, LOOKUP = "tf_ti.embedding_bag", "tf.nn.embedding_lookup_sparse"
KINDS = {"look-up": "a look-up, sum", "step": "a step of gradient descent"}
COUNTER = pathlib.Path("/sys/class/net/lo/statistics/tx_bytes")


def run(quick: bool) -> Iterator[harness.Table]:
    figures = {}
    for distribution in (UNIFORM, ZIPF):
        output = harness.output_of_process(
            "benchmarks.parameter_servers", distribution, str(int(quick)), threads=THREADS
        )
        figures[distribution] = json.loads(output.splitlines()[-1])
    yield _table("time", "ms", figures, limit=1 / 2.5)
    yield _table("bytes sent", "MB", figures, limit=1 / 5)


def _table(what: str, unit: str, figures: dict, limit: float) -> harness.Table:
    title = f"{SERVERS} parameter servers on loopback, a table and bags of {SHAPE}: {what}"
    picture = f"parameter-servers-{what.split()[0]}"
    table = harness.Table(title, unit, [], reference=OURS, picture=picture)
    for kind, name in KINDS.items():
        for distribution in figures:
            table.add_column(f"{name}, {distribution}", figures[distribution][what][kind])
    # With Zipf ids, few rows cross the network in either way: no goal.
    columns = [f"{name}, {UNIFORM}" for name in KINDS.values()]
    table.add_goal(OURS, LOOKUP, limit, columns=columns)
    table.notes = [f"{distribution}: {NOTES[distribution]}" for distribution in figures]
    table.notes.append("a step: look-up, gradient, and scatter_sub of each shard's rows")
    return table


class Way:
    """Looks bags up in a ShardedVariable, and takes steps on it."""

    def __init__(self, table, pool: Callable, update: Callable):
        self._table, self._pool, self._update = table, pool, update

    @tf.function
    def look_up(self, ids: tf.SparseTensor) -> tf.Tensor:
        return self._pool(self._table, ids)

    @tf.function
    def step(self, ids: tf.SparseTensor, upstream: tf.Tensor) -> None:
        shards = self._table.variables
        with tf.GradientTape() as tape:
            rows = self._pool(self._table, ids)
        for shard, gradient in zip(shards, tape.gradient(rows, shards, upstream)):
            self._update(shard, gradient)


def _pool_by_tensorflow(table, ids):
    return tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum")


def _update_by_tensorflow(shard, gradient):
    shard.scatter_sub(tf.IndexedSlices(RATE * gradient.values, gradient.indices))


def measure(distribution: str, quick: bool) -> dict[str, dict[str, dict[str, float]]]:
    """The figures of both ways, for time and bytes, and each of KINDS."""
    cluster = Cluster(SERVERS, workers=1)  # which ends when nothing refers to it
    strategy = cluster.connect()
    bags = Bags.random(SHAPE, sets=2 if quick else 8)
    if distribution == ZIPF:
        bags = bags.with_zipf_ids()
    with strategy.scope():
        table = tf.Variable(bags.table)
    ways = {
        OURS: Way(table, tf_ti.embedding_bag, lambda v, g: tf_ti.scatter_sub(v, g, RATE)),
        LOOKUP: Way(table, _pool_by_tensorflow, _update_by_tensorflow),
    }
    places = np.stack(
        np.unravel_index(np.arange(SHAPE.num_ids), (SHAPE.bags, SHAPE.ids_per_bag)), 1
    )
    shape = [SHAPE.bags, SHAPE.ids_per_bag]
    sets = [tf.SparseTensor(places, ids, shape) for ids in bags.ids]
    upstream = tf.constant(bags.upstream)
    for way in ways.values():
        np.testing.assert_allclose(way.look_up(sets[0]), bags.pooled("sum"), rtol=1e-4, atol=1e-4)
    runs = {
        "look-up": {n: lambda way=way: [way.look_up(s) for s in sets] for n, way in ways.items()},
        "step": {
            n: lambda way=way: [way.step(s, upstream) for s in sets] for n, way in ways.items()
        },
    }
    found = {"time": {}, "bytes sent": {}}
    for kind, cases in runs.items():
        seconds = harness.measure(cases, repeats=3 if quick else 9)
        found["time"][kind] = {name: s / len(sets) * 1e3 for name, s in seconds.items()}
        found["bytes sent"][kind] = {
            name: _bytes_sent(run) / len(sets) / 1e6 for name, run in cases.items()
        }
    return found


def _bytes_sent(run: Callable[[], object]) -> int:
    before = int(COUNTER.read_text())
    run()
    return int(COUNTER.read_text()) - before


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], bool(int(sys.argv[2])))))
