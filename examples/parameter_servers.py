"""Trains a table of embeddings that lies in shards on parameter servers.

Servers and workers are processes on this machine, which this one starts. A step, wherever it runs,
sends ids to the servers and gets sums of rows; the gradients and the updates of rows stay where the
rows are. One of the workers is killed on the way and starts again.

    python parameter_servers.py --output-dir DIR                 two servers
    python parameter_servers.py --output-dir DIR --servers 3     goes on with three
"""

import argparse
import itertools
import json
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # a killed worker is no surprise here

import numpy as np
import tensorflow as tf

import tf_ti

BAGS, IDS_PER_BAG = 256, 12
RATE = 0.5


class Cluster:
    """Processes on loopback: parameter servers and workers, with this one as their coordinator.

    They end with this object, or with this process.
    """

    def __init__(self, servers: int, workers: int):
        addresses = _free_addresses(servers + workers + 1)
        self.spec = {
            "ps": addresses[:servers],
            "worker": addresses[servers:-1],
            "chief": addresses[-1:],
        }
        self._processes = {}
        for job in ("ps", "worker"):
            for task in range(len(self.spec[job])):
                self.start(job, task)

    def start(self, job: str, task: int) -> None:
        arguments = ["--serve", json.dumps(self.spec), job, str(task)]
        self._processes[job, task] = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            stdin=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def kill(self, job: str, task: int) -> None:
        process = self._processes.pop((job, task))
        process.kill()
        process.wait()

    def connect(self) -> tf.distribute.ParameterServerStrategy:
        # TensorFlow would wait for ever for a process that has failed.
        for (job, task), process in self._processes.items():
            while not _answers(self.spec[job][task]):
                if process.poll() is not None:
                    raise SystemExit(f"{job} {task} has ended")
                time.sleep(0.1)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(self.spec), task_type="chief", task_id=0, rpc_layer="grpc"
        )
        # As many shards as servers: the k-th of the table beside the k-th of the next variable.
        partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(
            len(self.spec["ps"])
        )
        return tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)


def _free_addresses(count: int) -> list[str]:
    """Free addresses below the ports that the system gives to outgoing connections."""
    ports = random.sample(range(20_000, 32_000), 1000)
    addresses = (f"127.0.0.1:{port}" for port in ports)
    return list(itertools.islice(itertools.filterfalse(_answers, addresses), count))


def _answers(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as attempt:
        return attempt.connect_ex((host, int(port))) == 0


def serve(spec: str, job: str, task: str) -> None:
    """Runs a server or a worker. These need tf_ti, too: importing it registers its ops."""
    server = tf.distribute.Server(
        tf.train.ClusterSpec(json.loads(spec)), job_name=job, task_index=int(task), protocol="grpc"
    )
    sys.stdin.read()  # until the process at the other end is gone
    del server
    os._exit(0)


class Model(tf.Module):
    """Predicts if most ids of a bag are of the good half, which it has to learn."""

    def __init__(self, rows: int, width: int):
        super().__init__()
        # A table and then its slots, so that each shard has its slot beside it.
        initial = tf.random.stateless_uniform([rows, width], [1, 2], -0.05, 0.05)
        self.table = tf.Variable(initial, name="table")
        self.accumulator = tf.Variable(tf.fill([rows, width], 0.1), name="accumulator")
        self.direction = tf.constant(np.linspace(-1, 1, width, dtype=np.float32))

    def loss(self, ids: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        rows = tf_ti.embedding_bag(self.table, ids, combiner="sqrtn")
        logits = tf.linalg.matvec(rows, self.direction)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(losses)

    @tf.function
    def train_step(self, batches: tf.data.Iterator) -> tf.Tensor:
        ids, labels = next(batches)
        shards = self.table.variables
        with tf.GradientTape() as tape:
            loss = self.loss(ids, labels)
        gradients = tape.gradient(loss, shards)
        for shard, slot, gradient in zip(shards, self.accumulator.variables, gradients):
            tf_ti.adagrad_update(shard, slot, gradient, RATE)
        return loss


def batches(rows: int, seed: int) -> tf.data.Dataset:
    good = tf.random.stateless_uniform([rows], [3, 4], 0, 2, tf.int64)

    def make(number):
        ids = tf.random.stateless_uniform([BAGS, IDS_PER_BAG], [seed, number], 0, rows, tf.int64)
        votes = tf.reduce_mean(tf.cast(tf.gather(good, ids), tf.float32), 1)
        return ids, tf.cast(votes > 0.5, tf.float32)

    return tf.data.Dataset.counter().map(make)


def train(options: argparse.Namespace) -> None:
    cluster = Cluster(options.servers, options.workers)
    strategy = cluster.connect()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = Model(options.rows, options.width)
    for shard, slot in zip(model.table.variables, model.accumulator.variables):
        print(f"{shard.shape[0]:,} rows on {task_of(shard)}, their slots on {task_of(slot)}")

    checkpoint = tf.train.Checkpoint(table=model.table, accumulator=model.accumulator)
    manager = tf.train.CheckpointManager(checkpoint, options.output_dir, max_to_keep=2)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint).assert_consumed()
        print(f"Goes on from {manager.latest_checkpoint}")

    held_out = next(iter(batches(options.rows, seed=0)))
    evaluate = tf.function(model.loss)
    print(f"Held-out loss before: {evaluate(*held_out):.4f}")
    data = coordinator.create_per_worker_dataset(lambda: batches(options.rows, time.time_ns()))
    data = iter(data)
    for part in range(4):
        if part == 2:
            before = [shard.numpy() for shard in model.table.variables]
            cluster.kill("worker", 0)
            cluster.start("worker", 0)
            after = [shard.numpy() for shard in model.table.variables]
            for rows, same in zip(before, after, strict=True):
                np.testing.assert_array_equal(rows, same)
            print("A worker was killed and starts again; the tables are as they were")
        start = time.perf_counter()
        losses = [
            coordinator.schedule(model.train_step, args=(data,)) for _ in range(options.steps // 4)
        ]
        coordinator.join()
        seconds = (time.perf_counter() - start) / len(losses)
        loss = np.mean([each.fetch() for each in losses])
        print(f"{len(losses)} steps of {seconds * 1e3:.1f} ms, mean loss {loss:.4f}")
    print(f"Held-out loss after: {evaluate(*held_out):.4f}")
    print(f"Saved: {manager.save()}")


def task_of(variable: tf.Variable) -> str:
    return re.search(r"/job:(\w+)/.*task:(\d+)", variable.device).expand(r"\1 \2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--output-dir", type=pathlib.Path, default="build/parameter_servers")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
    else:
        train(options)
        # TensorFlow's own shutdown would wait, for ever, for a worker that is still coming back.
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
