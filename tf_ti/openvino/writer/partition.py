"""What look-ups do in tables whose rows are scaled, or lie in shards."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.openvino.writer.conversion import Node, Value, writes
from tf_ti.openvino.writer.network import Port, element_type_of


def _written(op: Node, function: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    """Writes what a function of the op's inputs does."""
    specs = [tf.TensorSpec(op.shape(i), tensor.dtype) for i, tensor in enumerate(op.op.inputs)]
    graph = _tf.trace(op.op.name.rsplit("/")[-1].replace(">", "_"), function, specs)
    return op.conversion.run(op.network, graph, inputs)


@writes("TfTi>EmbeddingBagGrad", "TfTi>ResourceEmbeddingBagGrad")
def _rows_touched(op: Node, *inputs: Value) -> list[Port]:
    """The rows that bags touch, and more: those of padding, and of what is in no bag."""
    named = _tf.inputs_by_name(op.op, inputs)
    given = [*named["indices"], *named["default_index"]]
    flat = [op.add("Reshape", x, np.asarray([-1]), special_zero=False) for x in given]
    rows = op.add("Concat", *flat, axis=0)
    rows = op.add("Maximum", rows, np.zeros([], rows.element_type.dtype))  # -1 is no row
    index, kind = element_type_of(tf.int64), rows.element_type
    layer = op.layer(
        "Unique",
        rows,
        version="opset10",
        outputs=[kind, index, index, index],
        sorted=True,
        index_element_type=index.name,
        count_element_type=index.name,
    )
    return layer.outputs[:1]


@writes("TfTi>EmbeddingBagSlots")
def _positions(op: Node, *inputs: Value) -> list[Any]:
    def positions(num_emb: tf.Tensor, rows: tf.Tensor, indices: tf.Tensor) -> list[tf.Tensor]:
        flat = tf.reshape(indices, [-1])
        place = tf.minimum(tf.searchsorted(rows, flat), tf.size(rows) - 1)
        found = tf.where(tf.equal(tf.gather(rows, place), flat), place, -1)
        return [tf.cast(tf.reshape(found, tf.shape(indices)), indices.dtype)]

    return _written(op, positions, inputs)


@writes("TfTi>EmbeddingBagPartition")
def _partition(op: Node, *inputs: Value) -> list[Any]:
    """All shards get an id for each index, and all bags, as in XLA."""
    num_shards, padding = op.attr("num_shards"), op.attr("padding_idx")
    dtype = op.op.get_attr("Tlocal")

    def partition(num_emb: tf.Tensor, *rest: tf.Tensor) -> list[tf.Tensor]:
        named = _tf.inputs_by_name(op.op, [num_emb, *rest])
        ids = tf.cast(tf.reshape(*named["indices"], [-1]), tf.int64)
        begins, ends = _ranges(op, named)
        numbers = tf.range(tf.size(ids, tf.int64))
        is_left_out = (numbers < begins[:1]) | (numbers >= ends[-1:])
        if padding:
            is_left_out |= tf.equal(ids, padding[0])
        ids = tf.where(is_left_out, np.int64(-1), ids)
        counts = tf.pad(tf.cumsum(tf.cast(~is_left_out, tf.int64)), [[1, 0]])
        is_empty = tf.equal(tf.gather(counts, ends), tf.gather(counts, begins))
        for default in named["default_index"]:
            begins = tf.concat([begins, tf.shape(ids, tf.int64)], 0)
            ids = tf.concat([ids, tf.reshape(tf.cast(default, tf.int64), [1])], 0)
        local = _rows_of_shards(ids, num_emb, num_shards, op.attr("strategy"))
        bag_numbers, positions = (tf.range(tf.size(t, tf.int64)) for t in (begins, ids))
        return [
            *(tf.cast(rows, dtype) for rows in local),
            *[tf.cast(begins, dtype)] * num_shards,
            *[bag_numbers] * num_shards,
            *[positions] * op.attr("num_positions"),
            is_empty,
        ]

    return _written(op, partition, inputs)


def _ranges(op: Node, named: Mapping[str, list[tf.Tensor]]) -> tuple[tf.Tensor, tf.Tensor]:
    """Where among the ids bags begin and end."""
    (indices,), kind = named["indices"], op.attr("bags")
    if kind == "packed":
        count, width = tf.unstack(tf.shape(indices, tf.int64))
        bounds = tf.range(count + 1) * width
    elif kind == "segments":
        numbers = tf.range(tf.cast(named["num_segments"][0], tf.int64) + 1)
        bounds = tf.searchsorted(tf.cast(named["bounds"][0], tf.int64), numbers, out_type=tf.int64)
    else:
        bounds = tf.cast(named["bounds"][0], tf.int64)
        if not op.attr("include_last_offset"):
            bounds = tf.concat([bounds, tf.shape(indices, tf.int64)], 0)
    return bounds[:-1], bounds[1:]


def _rows_of_shards(
    ids: tf.Tensor, num_emb: tf.Tensor, count: int, strategy: str
) -> Iterator[tf.Tensor]:
    """The ids as each shard numbers its rows, and -1 for those of others."""
    begin = np.int64(0)
    for k in range(count):
        if strategy == "mod":
            yield tf.where((ids >= 0) & tf.equal(ids % count, k), ids // count, np.int64(-1))
        else:
            end = begin + (num_emb + count - 1 - k) // count
            yield tf.where((ids >= begin) & (ids < end), ids - begin, np.int64(-1))
            begin = end
