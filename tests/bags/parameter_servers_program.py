"""Training of test_parameter_servers.py on a cluster, made as the example does; prints JSON.

python parameter_servers_program.py SERVERS CHECKPOINT_DIRECTORY
"""

import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))

import numpy as np
import parameter_servers
import tensorflow as tf

import tf_ti

ROWS, WIDTH, STEPS = 12, 3, 6
TABLE = np.random.default_rng(0).standard_normal([ROWS, WIDTH])
LINES = np.random.default_rng(1).integers(0, ROWS, [STEPS, 5, 4])
COMBINERS = ("sum", "mean", "sqrtn", "max")


class Trained:
    """A table and slots, in shards or not, and steps of three optimizers on them."""

    def __init__(self):
        self.table = tf.Variable(TABLE)
        self.m, self.v, self.accumulator = (tf.Variable(tf.zeros_like(TABLE)) for _ in range(3))

    def parts(self):
        variables = [self.table, self.m, self.v, self.accumulator]
        return list(zip(*(getattr(each, "variables", [each]) for each in variables), strict=True))

    @tf.function(reduce_retracing=True)
    def step(self, ids, number):
        rates = tf.cast(ids + 1, tf.float64)
        shards = [shard for shard, *_ in self.parts()]
        with tf.GradientTape() as tape:
            loss = sum(
                tf.reduce_sum(
                    tf.sin(
                        tf_ti.embedding_bag(
                            self.table, ids, None if combiner == "max" else rates, combiner, 2
                        )
                    )
                )
                for combiner in COMBINERS
            )
        gradients = tape.gradient(loss, shards)
        for (shard, m, v, accumulator), gradient in zip(self.parts(), gradients):
            tf_ti.scatter_sub(shard, gradient, 0.01)
            tf_ti.adagrad_update(shard, accumulator, gradient, 0.02)
            tf_ti.adam_update(shard, m, v, gradient, 0.03, number)
        return loss

    @tf.function
    def loop(self, lines):
        """Looks rows up in each iteration of one loop, and updates rows in each of another loop.

        Returns the loops' sums, and the gradient of the first one.
        """
        shards = [shard for shard, *_ in self.parts()]

        def look_up(total, ids):
            return total + tf.reduce_sum(tf.sin(tf_ti.embedding_bag(self.table, ids))), None

        def update(total, ids):
            for shard in shards:
                shard.assign(0.5 * shard)
            return look_up(total, ids)

        with tf.GradientTape() as tape:
            first, _ = tf_ti.scan(look_up, tf.constant(0.0, tf.float64), lines)
        gradient = tf.concat(list(map(tf.convert_to_tensor, tape.gradient(first, shards))), 0)
        with tf.control_dependencies([gradient]):
            second, _ = tf_ti.scan(update, tf.constant(0.0, tf.float64), lines)
        return first, gradient, second


def whole(variable):
    return tf.concat([part.numpy() for part in getattr(variable, "variables", [variable])], 0)


def error_of(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def main():
    servers, directory = int(sys.argv[1]), sys.argv[2]
    tf.debugging.set_log_device_placement(True)
    found = {}
    cluster = parameter_servers.Cluster(servers, workers=2)
    strategy = cluster.connect()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        there = Trained()
    checkpoint = tf.train.Checkpoint(table=there.table, accumulator=there.accumulator)
    manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=1)
    found["devices"] = [shard.device for shard in there.table.variables]
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint).assert_consumed()
        found["restored"] = whole(there.table).numpy().tolist()
        found["restored accumulator"] = whole(there.accumulator).numpy().tolist()
    else:
        here = Trained()
        found["losses"] = []
        for number in range(STEPS):
            if number == STEPS // 2:  # that a worker goes and comes back changes nothing
                cluster.kill("worker", 0)
                cluster.start("worker", 0)
            ids, number = tf.constant(LINES[number]), tf.constant(number + 1, tf.int64)
            scheduled = coordinator.schedule(there.step, args=(ids, number))
            coordinator.join()
            found["losses"].append([float(here.step(ids, number)), float(scheduled.fetch())])
        lines = tf.constant(LINES)
        scheduled = coordinator.schedule(there.loop, args=(lines,))
        coordinator.join()
        found["loops"] = [
            [np.asarray(each).tolist() for each in results]
            for results in (here.loop(lines), scheduled.fetch())
        ]
        found["here"] = {k: whole(v).numpy().tolist() for k, v in vars(here).items()}
        found["there"] = {k: whole(v).numpy().tolist() for k, v in vars(there).items()}
        ids = tf.constant([[0, 1]])
        slices = tf.IndexedSlices(tf.ones([1, WIDTH], tf.float64), tf.constant([0]), [ROWS, WIDTH])
        shard = there.table.variables[0]
        found["errors"] = {
            "embedding_bag": error_of(lambda: tf_ti.embedding_bag(there.table, ids)),
            "scatter_sub": error_of(lambda: tf_ti.scatter_sub(shard, slices, 0.1)),
            "adagrad_update": error_of(
                lambda: tf_ti.adagrad_update(shard, there.accumulator.variables[0], slices, 0.1)
            ),
            "slot elsewhere": error_of(
                tf.function(
                    lambda: tf_ti.adagrad_update(shard, there.accumulator.variables[1], slices, 0.1)
                )
            ),
            "bad id": error_of(
                lambda: tf.function(tf_ti.embedding_bag)(there.table, tf.constant([[0, ROWS]]))
            ),
        }
        manager.save()
        found["saved"] = found["there"]["table"]
    print("FOUND", json.dumps(found), flush=True)
    os._exit(0)  # as the example does


if __name__ == "__main__":
    main()
