"""Makes SavedModels and a .keras file for package/test_saved.py, by the tf_ti that is installed.

    python tests/saved/make.py tests/saved/VERSION

What a version has saved must load for ever, so what is there already is not made again.
"""

import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import tf_ti

FLOATS = tf.TensorSpec([None, None, 2])
IDS = tf.TensorSpec([None], tf.int64)
STEPS = tf.TensorSpec([None, None, 2], tf.float64)


class Model(tf.Module):
    """Every loop and every kind of bag, with gradients and an update."""

    def __init__(self):
        self.w = tf.Variable([[0.5, -0.25], [0.75, 1.0]])
        self.table = tf.Variable([[1.0, 2.0], [3.0, -4.0], [-5.0, 6.0], [7.0, 8.0]])

    def _recurrent(self, x, checkpoint_every=None):
        def body(piece, h):
            h = tf.tanh(piece[:, 0] + h @ self.w)
            return h, h[:, tf.newaxis]

        backwards = {"axis": 1, "start": -1, "end": 0, "stride": -1}
        return tf_ti.tensor_iterator(
            body,
            [x, tf.zeros_like(x[:, 0])],
            tf_ti.PortMap(
                [tf_ti.InputPort(0, 0, **backwards), tf_ti.InputPort(1, 1)],
                [tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 1, **backwards)],
            ),
            [tf_ti.BackEdge(0, 1)],
            checkpoint_every=checkpoint_every,
        )

    def _slopes(self, x, checkpoint_every):
        with tf.GradientTape() as tape:
            tape.watch(x)
            last, states = self._recurrent(x, checkpoint_every)
            loss = tf.reduce_sum(last) + tf.reduce_sum(states**2)
        return tape.gradient(loss, [x, self.w])

    @tf.function(input_signature=[FLOATS])
    def recurrent(self, x):
        return self._recurrent(x)

    @tf.function(input_signature=[FLOATS])
    def slopes(self, x):
        return self._slopes(x, None)

    @tf.function(input_signature=[FLOATS])
    def slopes_by_checkpoints(self, x):
        return self._slopes(x, 2)

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def running_products(self, x):
        return tf_ti.scan(lambda c, x: (c * x, c + x), 1.0, x, reverse=True)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int32)])
    def collatz(self, n, longest):
        with tf_ti.Loop("Collatz") as loop:
            x = loop.add_recurrence(n)
            loop.add_trip_limit(x > 1, tf_ti.TripLimit.WHILE)
            loop.add_trip_limit(longest, tf_ti.TripLimit.COUNT)
            x.next = tf.where(x % 2 == 0, x // 2, 3 * x + 1)
            last = loop.add_loop_output(x, tf_ti.LoopOutput.LAST_VALUE)
            path = loop.add_loop_output(x, tf_ti.LoopOutput.CONCATENATE, length=longest)
            back = loop.add_loop_output(x, tf_ti.LoopOutput.REVERSE)
        return last.tensor, path.tensor, back.tensor

    @tf.function(input_signature=[IDS, IDS, tf.TensorSpec([None])])
    def bags(self, ids, offsets, weights):
        segments = tf.searchsorted(offsets, tf.range(tf.size(ids, tf.int64)), "right") - 1
        return {
            "sum": tf_ti.embedding_bag_offsets_sum(self.table, ids, offsets, 3, weights),
            "max": tf_ti.embedding_bag_offsets(self.table, ids, offsets, reduction="max"),
            "packed": tf_ti.embedding_bag_packed(self.table, ids[:, tf.newaxis]),
            "segments": tf_ti.embedding_segments_sum(
                self.table, ids, tf.cast(segments, tf.int64), tf.size(offsets, tf.int64)
            ),
            "mean": tf_ti.embedding_bag(
                self.table, tf.RaggedTensor.from_row_starts(ids, offsets), combiner="mean"
            ),
        }

    @tf.function(input_signature=[IDS, IDS, tf.TensorSpec([None])])
    def step(self, ids, offsets, weights):
        """A step of gradient descent; the gradients by the table's rows and by the weights."""
        with tf.GradientTape() as tape:
            tape.watch(weights)
            bags = tf_ti.embedding_bag_offsets_sum(self.table, ids, offsets, None, weights)
            loss = tf.reduce_sum(bags**2) / 2
        by_table, by_weights = tape.gradient(loss, [self.table, weights])
        tf_ti.scatter_sub(self.table, by_table, 0.5)
        return by_table.indices, by_table.values, by_weights


class Programs(tf.Module):
    """Loops whose bodies programs of vector code run."""

    def __init__(self):
        self.w = tf.Variable([[0.5, -0.25], [0.75, 1.0]], dtype=tf.float64)

    def _squash(self, c, x):
        c = tf.exp(-tf.square(c @ self.w)) + tf.reduce_max(x, -1, keepdims=True) * c
        return c, tf.reduce_sum(tf.sigmoid(c), -1)

    def _run(self, x, fuse=True):
        return tf_ti.scan(self._squash, tf.ones_like(x[0]), x, reverse=True, fuse=fuse)

    @tf.function(input_signature=[STEPS])
    def forward(self, x):
        return self._run(x)

    @tf.function(input_signature=[STEPS])
    def kernels(self, x):
        return self._run(x, fuse=False)

    @tf.function(input_signature=[STEPS])
    def slopes(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            last, sums = self._run(x)
            loss = tf.reduce_sum(last) + tf.reduce_sum(tf.square(sums))
        return tape.gradient(loss, [x, self.w])

    @tf.function(input_signature=[STEPS])
    def nested(self, x):
        """Each element twice, by a loop in a loop."""

        def twice(c, x):
            return tf_ti.scan(lambda c, _: (self._squash(c, x)[0], None), c, length=2)[0], None

        return tf_ti.scan(twice, tf.ones_like(x[0]), x)[0]


def make_classifier():
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            tf_ti.keras.EmbeddingBag(4, 2, mask_zero=True, combiner="sqrtn", default_index=1),
            keras.layers.Dense(1),
        ]
    )
    table = np.float32([[9, 9], [3, -4], [-5, 6], [7, 8]])
    model.set_weights([table, np.float32([[2], [-1]]), np.float32([0.5])])
    return model


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for name, make in {"model": Model, "programs": Programs}.items():
        if not (folder / name).exists():
            tf.saved_model.save(make(), str(folder / name))
    if not (folder / "classifier.keras").exists():
        make_classifier().save(folder / "classifier.keras")
