"""Random numbers.

With a seed, each call of a model draws the same numbers: for RandomUniform those of OpenVINO's
first run of it, for Multinomial others of the same distribution. Without seeds each call draws
others.
"""

import numpy as np
import tensorflow as tf

from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import rank_of

_PHILOX = 1  # among TensorFlow's algorithms


def _seeds(op: Operation) -> tf.Tensor:
    """The global seed and the operation's, which are random if both are 0."""
    seeds = [op.integer(name, 0) for name in ("global_seed", "op_seed")]
    if any(seeds):
        return tf.constant(seeds, tf.int64)
    return tf.random.uniform([2], maxval=tf.int64.max, dtype=tf.int64)


@register("RandomUniform", "opset8")
def _random_uniform(op: Operation, shape: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    # PyTorch's numbers are those of a Mersenne Twister, which TensorFlow does not have: there the
    # distribution alone is the same.
    op.text("alignment", "tensorflow", among=("tensorflow", "pytorch"))
    dtype = op.dtype("output_type")
    first, last = (op.known(position) for position in (1, 2))
    if first is not None and last is not None and not np.all(first < last):
        raise op.error(f"there are no numbers from {first} to {last}")
    key, counter = tf.unstack(tf.cast(_seeds(op), tf.uint64))
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape,
        key=key[tf.newaxis],
        counter=tf.stack([tf.zeros_like(counter), counter]),
        alg=_PHILOX,
        dtype=tf.uint32,
    )
    low, high = tf.reshape(low, []), tf.reshape(high, [])
    if dtype.is_integer:
        # OpenVINO's CPU plugin draws int64 among int32.
        ends = tf.int32.min, tf.int32.max
        low, high = (tf.clip_by_value(tf.cast(x, tf.int64), *ends) for x in (low, high))
        return tf.cast(tf.cast(words, tf.int64) % (high - low) + low, dtype)
    kind = tf.bfloat16 if dtype == tf.bfloat16 else tf.float32
    bits = 7 if dtype == tf.bfloat16 else 23
    low, high = tf.cast(low, kind), tf.cast(high, kind)
    fractions = tf.cast(tf.bitwise.bitwise_and(words, 2**bits - 1), tf.float32) / 2**bits
    return tf.cast(tf.cast(fractions, kind) * (high - low) + low, dtype)


@register("Multinomial", "opset13")
def _multinomial(op: Operation, weights: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    if rank_of(op, weights) != 2:
        raise op.error(f"probabilities have {weights.shape.rank} dimensions, not 2")
    count, dtype = tf.cast(tf.reshape(count, []), tf.int32), op.dtype("convert_type")
    logits, seeds = weights if op.flag("log_probs") else tf.math.log(weights), _seeds(op)
    if op.flag("with_replacement"):
        return tf.cast(tf.random.stateless_categorical(logits, count, seeds), dtype)
    # The largest of the logits with noise of Gumbel's distribution.
    noise = tf.random.stateless_uniform(
        tf.shape(logits), seeds, minval=logits.dtype.as_numpy_dtype(1e-30), dtype=logits.dtype
    )
    return tf.cast(tf.math.top_k(logits - tf.math.log(-tf.math.log(noise)), count).indices, dtype)
