"""Training steps by Keras's `fit`, with an optimizer of Keras's or of tf_ti's, and by FBGEMM.

ImportError means that the library is missing.
"""

import keras
import numpy as np
import tensorflow as tf

import tf_ti
from benchmarks import optimizers
from benchmarks.bag_peers import Bags, Case, check_step

OPTIMIZERS = {
    "Adam": (keras.optimizers.Adam, tf_ti.keras.optimizers.Adam, optimizers.adam_change),
    "Adagrad": (
        keras.optimizers.Adagrad,
        tf_ti.keras.optimizers.Adagrad,
        optimizers.adagrad_change,
    ),
}


class _HalfSquares(keras.losses.Loss):
    """The loss whose gradient is the error of the predictions."""

    def __init__(self):
        super().__init__(reduction="sum")

    def call(self, y_true, y_pred):
        return (y_pred - y_true) ** 2 / 2


def fit(
    bags: Bags,
    optimizer: keras.Optimizer,
    change: optimizers.Change,
    layer: str,
    jit_compile: bool,
) -> Case:
    """The step that `model.fit` calls, for a model that only sums embeddings.

    Args:
        layer: "EmbeddingBag", or "Embedding", whose results are added up.
    """
    shape = bags.shape
    inputs = keras.Input([shape.ids_per_bag], dtype="int64")
    if layer == "EmbeddingBag":
        table = tf_ti.keras.EmbeddingBag(shape.rows, shape.width, combiner="sum")
        pooled = table(inputs)
    else:
        table = keras.layers.Embedding(shape.rows, shape.width)
        pooled = keras.ops.sum(table(inputs), axis=1)
    model = keras.Model(inputs, pooled)
    model.compile(optimizer, _HalfSquares(), jit_compile=jit_compile)
    table.set_weights([bags.table])

    ids = bags.ids.reshape(-1, shape.bags, shape.ids_per_bag)
    # Targets that make the gradient of the first step the upstream one.
    labels = tf.constant(bags.pooled("sum") - bags.upstream)
    data = tf.data.Dataset.from_tensor_slices(ids).map(lambda ids: (ids, labels))
    model.fit(data.take(1), shuffle=False, verbose=0)
    # Where a row comes again, Keras's optimizers square the parts of its gradient, not the sum.
    sums_repeated_rows = layer == "EmbeddingBag" or not type(optimizer).__module__.startswith(
        "keras"
    )
    check_step(table.get_weights()[0], bags, change, sums_repeated_rows)
    batches = iter(data.repeat())
    return Case(lambda: model.train_function(batches), 1)


def fbgemm_row_wise_adagrad(bags: Bags, threads: int) -> Case:
    """FBGEMM's table batched embeddings on a CPU, which update while they go backwards."""
    import torch

    try:
        from fbgemm_gpu import split_table_batched_embeddings_ops_training as training
    except OSError as error:  # built for another torch
        raise ImportError(str(error)) from error

    torch.set_num_threads(threads)
    shape = bags.shape
    place = training.EmbeddingLocation.HOST, training.ComputeDevice.CPU
    table = training.SplitTableBatchedEmbeddingBagsCodegen(
        [(shape.rows, shape.width, *place)],
        optimizer=training.OptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=optimizers.RATE,
        eps=optimizers.EPSILON,
    )
    (weights,), ((accumulator, *_),) = (
        table.split_embedding_weights(),
        table.split_optimizer_states(),
    )
    weights.copy_(torch.from_numpy(bags.table))
    accumulator.fill_(optimizers.INITIAL)
    sets = [torch.from_numpy(np.ascontiguousarray(ids)) for ids in bags.ids]
    offsets = torch.from_numpy(np.append(bags.offsets, shape.num_ids))
    upstream = torch.from_numpy(bags.upstream)

    def run(sets=sets):
        for ids in sets:
            table(ids, offsets).backward(upstream)

    run(sets[:1])
    check_step(weights.numpy(), bags, optimizers.row_wise_adagrad_change)
    return Case(run, len(sets))
