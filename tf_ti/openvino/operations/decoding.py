"""Decoding of the most likely classes, and of beams."""

import tensorflow as tf

import tf_ti
from tf_ti.openvino.operation import register
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


def _kept(classes: tf.Tensor, is_there: tf.Tensor, blank, merges: bool) -> tf.Tensor:
    is_kept = is_there & (classes != blank)
    if merges:
        before = tf.pad(classes[:, :-1], [[0, 0], [1, 0]], constant_values=-1)
        is_kept &= classes != before
    return is_kept


@register("CTCGreedyDecoder")
def _ctc_greedy_decoder(op, scores, sequence_mask):
    merges = op.flag("ctc_merge_repeated", True)
    classes = tf.transpose(tf.argmax(scores, axis=-1, output_type=tf.int32))
    # A sequence ends where its mask is 0 for the first time.
    is_there = tf.math.cumprod(tf.cast(tf.transpose(sequence_mask) != 0, tf.int32), axis=1) > 0
    blank = tf.shape(scores)[2] - 1
    found, _ = _compacted(classes, _kept(classes, is_there, blank, merges))
    return tf.cast(found[..., tf.newaxis, tf.newaxis], scores.dtype)


@register("CTCGreedyDecoderSeqLen", "opset6")
def _ctc_greedy_decoder_of_lengths(op, scores, lengths, blank=None):
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


@register("GatherTree")
def _gather_tree(op, step_ids, parents, lengths, end):
    """The beams [time, batch, beam], each followed back from its last step by its parents."""
    if rank_of(op, step_ids) != 3:
        raise op.error(f"the steps have {step_ids.shape.rank} axes, not 3")
    time, _, beams = extents(step_ids, tf.int32)
    last = tf.minimum(tf.cast(lengths, tf.int32), time)[:, tf.newaxis] - 1
    first = tf.zeros_like(tf.cast(parents[0], tf.int32)) + tf.range(beams)
    end = tf.cast(tf.reshape(end, []), step_ids.dtype)

    def back(beam, element):
        ids, before, k = element
        taken = tf.where(k <= last, tf.gather(ids, beam, batch_dims=1), end)
        following = tf.gather(tf.cast(before, tf.int32), beam, batch_dims=1)
        return tf.where(k <= last, following, beam), taken

    _, found = tf_ti.scan(back, first, (step_ids, parents, tf.range(time)), reverse=True)
    # All that follows an end is an end.
    has_ended = tf.cumsum(tf.cast(found == end, tf.int32), axis=0) > 0
    return tf.where(has_ended, end, found)
