"""Embedding bags, on tf_ti's kernels."""

from typing import Any

import tensorflow as tf

import tf_ti
from tf_ti.openvino.operation import Operation, register


def _default(op: Operation, position: int, value: tf.Tensor | None) -> tf.Tensor | None:
    """A default index as a scalar, or None for -1, which must be known before the graph runs."""
    if value is None:
        return None
    known = op.known(position)
    return None if known is not None and int(known.reshape(())) == -1 else tf.reshape(value, [])


def _reduction(op: Operation) -> Any:
    """One of the words that tf_ti knows; it refuses others."""
    return op.text("reduction", "sum").lower()


@register("EmbeddingBagOffsetsSum", "opset3")
def _offsets_sum(
    op: Operation,
    table: tf.Tensor,
    indices: tf.Tensor,
    offsets: tf.Tensor,
    default: tf.Tensor | None = None,
    weights: tf.Tensor | None = None,
) -> tf.Tensor:
    default = _default(op, 3, default)
    return tf_ti.embedding_bag_offsets_sum(table, indices, offsets, default, weights)


@register("EmbeddingBagOffsets", "opset15")
def _offsets(
    op: Operation,
    table: tf.Tensor,
    indices: tf.Tensor,
    offsets: tf.Tensor,
    default: tf.Tensor | None = None,
    weights: tf.Tensor | None = None,
) -> tf.Tensor:
    return tf_ti.embedding_bag_offsets(
        table,
        indices,
        offsets,
        _default(op, 3, default),
        weights,
        reduction=_reduction(op),
    )


@register("EmbeddingBagPackedSum", "opset3")
def _packed_sum(
    op: Operation, table: tf.Tensor, indices: tf.Tensor, weights: tf.Tensor | None = None
) -> tf.Tensor:
    return tf_ti.embedding_bag_packed(table, indices, weights)


@register("EmbeddingBagPacked", "opset15")
def _packed(
    op: Operation, table: tf.Tensor, indices: tf.Tensor, weights: tf.Tensor | None = None
) -> tf.Tensor:
    return tf_ti.embedding_bag_packed(table, indices, weights, reduction=_reduction(op))


@register("EmbeddingSegmentsSum", "opset3")
def _segments(
    op: Operation,
    table: tf.Tensor,
    indices: tf.Tensor,
    segments: tf.Tensor,
    count: tf.Tensor,
    default: tf.Tensor | None = None,
    weights: tf.Tensor | None = None,
) -> tf.Tensor:
    default = _default(op, 4, default)
    return tf_ti.embedding_segments_sum(
        table, indices, segments, tf.reshape(count, []), default, weights
    )
