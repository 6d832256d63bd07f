"""Cross entropies, and the decoding of sequences of labels."""

import tensorflow as tf

from tf_ti.openvino.writer.conversion import Node, composes


@composes("SoftmaxCrossEntropyWithLogits")
def _cross_entropy(op: Node, logits: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
    logits += tf.zeros_like(labels)
    labels += tf.zeros_like(logits)
    loss = -tf.reduce_sum(labels * tf.nn.log_softmax(logits), 1)
    return [loss, tf.nn.softmax(logits) - labels]


@composes("SparseSoftmaxCrossEntropyWithLogits")
def _sparse_cross_entropy(op: Node, logits: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
    chosen = tf.one_hot(labels, tf.shape(logits)[1], dtype=logits.dtype)
    losses = tf.where(chosen > 0, -tf.nn.log_softmax(logits), tf.zeros([], logits.dtype))
    return [tf.reduce_sum(losses, 1), tf.nn.softmax(logits) - chosen]


@composes("CTCGreedyDecoder")
def _greedy_decoder(op: Node, x: tf.Tensor, lengths: tf.Tensor) -> list[tf.Tensor]:
    """Writes indices, values and shape of the sparse labels, and minus the sums of logits."""
    count = tf.shape(x)[2]
    blank = op.attr("blank_index")
    blank = count + blank if blank < 0 else tf.constant(blank)
    steps = tf.range(tf.shape(x)[0])
    is_step = steps < tf.cast(lengths, tf.int32)[:, tf.newaxis]
    labels = tf.transpose(tf.argmax(x, 2, tf.int32))
    is_kept = is_step & tf.not_equal(labels, blank)
    if op.attr("merge_repeated"):
        before = tf.concat([labels[:, :1], labels[:, :-1]], 1)
        is_kept &= tf.equal(steps, 0) | tf.not_equal(labels, before)
    places = tf.cumsum(tf.cast(is_kept, tf.int64), 1)
    kept = tf.where(is_kept)
    places_kept = tf.gather_nd(places, kept) - 1
    indices = tf.stack([kept[:, 0], places_kept], 1)
    longest = tf.reduce_max(tf.pad(tf.reshape(places, [-1]), [[1, 0]]))
    best = tf.where(is_step, tf.transpose(tf.reduce_max(x, 2)), tf.zeros([], x.dtype))
    return [
        indices,
        tf.cast(tf.gather_nd(labels, kept), tf.int64),
        tf.stack([tf.shape(x, tf.int64)[1], longest]),
        -tf.reduce_sum(best, 1, keepdims=True),
    ]
