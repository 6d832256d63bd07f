"""Decoding of the most likely classes, and of beams; the loss of sequences of classes."""

import tensorflow as tf

import tf_ti
from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import extents, rank_of


def _compacted(classes: tf.Tensor, is_kept: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The kept numbers of each row, [batch, time], at its beginning, then -1; and their count."""
    batch, time = extents(classes, tf.int32)
    at = tf.cumsum(tf.cast(is_kept, tf.int32), axis=1, exclusive=True)
    rows = tf.broadcast_to(tf.range(batch)[:, tf.newaxis], [batch, time])
    indices = tf.boolean_mask(tf.stack([rows, at], axis=-1), is_kept)
    start = tf.fill([batch, time], tf.constant(-1, classes.dtype))
    found = tf.tensor_scatter_nd_update(start, indices, tf.boolean_mask(classes, is_kept))
    return found, tf.reduce_sum(tf.cast(is_kept, tf.int32), axis=1)


def _shifted(x: tf.Tensor, by: int, fill: int | tf.Tensor) -> tf.Tensor:
    """Moves the rows of a matrix to the right."""
    return tf.pad(x[:, :-by], [[0, 0], [by, 0]], constant_values=fill)


def _kept(
    classes: tf.Tensor, is_there: tf.Tensor, blank: int | tf.Tensor, merges: bool
) -> tf.Tensor:
    is_kept = is_there & (classes != blank)
    if merges:
        is_kept &= classes != _shifted(classes, 1, -1)
    return is_kept


@register("CTCGreedyDecoder")
def _ctc_greedy_decoder(op: Operation, scores: tf.Tensor, sequence_mask: tf.Tensor) -> tf.Tensor:
    merges = op.flag("ctc_merge_repeated", True)
    classes = tf.transpose(tf.argmax(scores, axis=-1, output_type=tf.int32))
    # A sequence ends where its mask is 0 for the first time.
    is_there = tf.math.cumprod(tf.cast(tf.transpose(sequence_mask) != 0, tf.int32), axis=1) > 0
    blank = tf.shape(scores)[2] - 1
    found, _ = _compacted(classes, _kept(classes, is_there, blank, merges))
    return tf.cast(found[..., tf.newaxis, tf.newaxis], scores.dtype)


@register("CTCGreedyDecoderSeqLen", "opset6")
def _ctc_greedy_decoder_of_lengths(
    op: Operation, scores: tf.Tensor, lengths: tf.Tensor, blank: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    merges = op.flag("merge_repeated", True)
    classes = tf.argmax(scores, axis=-1, output_type=tf.int32)
    is_there = tf.sequence_mask(lengths, tf.shape(scores)[1])
    if blank is None:
        blank = tf.shape(scores)[2] - 1
    else:
        blank = tf.cast(tf.reshape(blank, []), tf.int32)
    found, counts = _compacted(classes, _kept(classes, is_there, blank, merges))
    return (
        tf.cast(found, op.dtype("classes_index_type", tf.int32)),
        tf.cast(counts, op.dtype("sequence_length_type", tf.int32)),
    )


_NEVER = -1e30  # the logarithm of a probability of zero, with a gradient


@register("CTCLoss", "opset4")
def _ctc_loss(
    op: Operation,
    logits: tf.Tensor,
    logit_lengths: tf.Tensor,
    labels: tf.Tensor,
    label_lengths: tf.Tensor,
    blank: tf.Tensor | None = None,
) -> tf.Tensor:
    if rank_of(op, logits) != 3:
        raise op.error(f"logits have {logits.shape.rank} dimensions, not 3")
    merges = op.flag("ctc_merge_repeated", True)
    _, time, classes = extents(logits, tf.int32)
    longest = tf.cast(time, logit_lengths.dtype)
    tf.debugging.assert_less_equal(logit_lengths, longest, "lengths exceed the steps there are")
    tf.debugging.assert_less_equal(label_lengths, logit_lengths, "there are more labels than steps")
    labels = tf.cast(labels, tf.int32)
    blank = classes - 1 if blank is None else tf.cast(tf.reshape(blank, []), tf.int32)
    found, counts = _compacted(labels, _kept_labels(op, labels, label_lengths))
    # Between the labels, before the first and after the last one there may be blanks.
    batch, most = extents(found, tf.int32)
    found = tf.where(tf.sequence_mask(counts, most), found, blank)
    pairs = tf.stack([tf.fill([batch, most], blank), found], axis=2)
    states = tf.reshape(pairs, [batch, 2 * most])
    states = tf.pad(states, [[0, 0], [0, 1]], constant_values=blank)
    number = tf.range(2 * most + 1)
    is_label = number % 2 == 1
    may_skip = is_label & (states != _shifted(states, 2, -1) if merges else True)
    may_stay = ~is_label | merges
    scores = tf.gather(tf.nn.log_softmax(logits), states, axis=2, batch_dims=1)
    never = tf.constant(_NEVER, scores.dtype)

    def step(
        before: tf.Tensor, element: tuple[tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, tuple[()]]:
        own, k = element
        ways = [
            tf.where(may_stay, before, never),
            _shifted(before, 1, never),
            tf.where(may_skip, _shifted(before, 2, never), never),
        ]
        after = tf.reduce_logsumexp(tf.stack(ways), axis=0) + own
        return tf.where(k < logit_lengths[:, tf.newaxis], after, before), ()

    start = tf.where(number > 0, never, tf.zeros_like(scores[:, 0]))
    steps = tf.range(longest)
    last, _ = tf_ti.scan(step, start, (tf.transpose(scores, [1, 0, 2]), steps))
    beyond = number - 2 * counts[:, tf.newaxis]  # the last label, and the blanks after it
    total = tf.reduce_logsumexp(tf.where((beyond == 0) | (beyond == -1), last, never), axis=1)
    return tf.where(total > never / 2, -total, tf.constant(float("inf"), total.dtype))


def _kept_labels(op: Operation, labels: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Which labels count: the first ones of each row, perhaps without repeated ones."""
    is_kept = tf.sequence_mask(lengths, tf.shape(labels)[1])
    if op.flag("unique", False):
        same = labels[:, :, tf.newaxis] == labels[:, tf.newaxis]
        at = tf.range(tf.shape(labels)[1])
        is_kept &= ~tf.reduce_any(same & (at[:, tf.newaxis] > at), axis=2)
    elif op.flag("preprocess_collapse_repeated", False):
        is_kept &= labels != _shifted(labels, 1, -1)
    return is_kept


@register("GatherTree")
def _gather_tree(
    op: Operation, step_ids: tf.Tensor, parents: tf.Tensor, lengths: tf.Tensor, end: tf.Tensor
) -> tf.Tensor:
    """The beams [time, batch, beam], each followed back from its last step by its parents."""
    if rank_of(op, step_ids) != 3:
        raise op.error(f"the steps have {step_ids.shape.rank} axes, not 3")
    time, _, beams = extents(step_ids, tf.int32)
    last = tf.minimum(tf.cast(lengths, tf.int32), time)[:, tf.newaxis] - 1
    first = tf.zeros_like(tf.cast(parents[0], tf.int32)) + tf.range(beams)
    end = tf.cast(tf.reshape(end, []), step_ids.dtype)

    def back(
        beam: tf.Tensor, element: tuple[tf.Tensor, tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        ids, before, k = element
        taken = tf.where(k <= last, tf.gather(ids, beam, batch_dims=1), end)
        following = tf.gather(tf.cast(before, tf.int32), beam, batch_dims=1)
        return tf.where(k <= last, following, beam), taken

    _, found = tf_ti.scan(back, first, (step_ids, parents, tf.range(time)), reverse=True)
    # All that follows an end is an end.
    has_ended = tf.cumsum(tf.cast(found == end, tf.int32), axis=0) > 0
    return tf.where(has_ended, end, found)
