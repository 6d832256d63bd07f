"""A look-up of TensorFlow's, of embeddings of sparse or ragged ids, becomes a bag of tf_ti."""

import math
import numbers
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti._arguments import host_number, on_host
from tf_ti.accelerate import reports as _reports, settings as _settings
from tf_ti.bags import arguments as _arguments
from tf_ti.bags.ops import FLOATS, HALVES, Bags
from tf_ti.bags.pooling import Lookup, pool


def take(lookup: _tf.SparseLookup) -> tf.Tensor | None:
    """The rows of a look-up's bags, if it is taken; None where TensorFlow is to look them up."""
    if not _settings.current().lookups:
        return None
    reason, rows = _reason(lookup), None
    if reason is None:
        try:
            rows = pool(_arguments.checked(_lookup(lookup)))
        except (TypeError, ValueError) as error:  # TensorFlow looks it up, or says what is wrong
            reason = f"{type(error).__name__}: {error}"
    if not tf.executing_eagerly():  # where a line of the report would cost more than it tells
        _reports.add(reason is None, reason or "an embedding bag")
    return rows


def _reason(lookup: _tf.SparseLookup) -> str | None:
    """Why a look-up is TensorFlow's; None if it is not."""
    if not _tf.orders_effects():
        return "it is part of a graph of TensorFlow 1"
    if _tf.expects_xla():
        return "XLA compiles it"
    if not all(map(_is_table, lookup.tables)):
        return "its table is none of floats, or of an unknown rank"
    given = [lookup.ids, lookup.segment_ids]
    given += [] if lookup.weights is None else [lookup.weights]
    if lookup.ids.dtype not in (tf.int32, tf.int64) or any(t.shape.rank != 1 for t in given):
        return "its ids are no list of int32 or int64"
    most = lookup.max_norm
    if most is not None and not (isinstance(most, numbers.Real) and 0 < most < math.inf):
        return "its max_norm is no finite number of Python above 0"
    return None


def _is_table(value: Any) -> bool:
    """True for what has a type of floats, and a rank; a variable of TensorFlow 1 has no handle."""
    if not hasattr(value, "dtype") or tf.as_dtype(value.dtype) not in FLOATS:
        return False
    if isinstance(value, tf.Variable) and not _tf.has_handle(value):
        return False
    if isinstance(value, _tf.ShardedVariable):  # TensorFlow looks up in its parts
        return False
    return tf.TensorShape(value.shape).rank not in (0, None)


def _table(value: Any) -> Any:
    """A table as tf_ti reads it; others, as of Keras with its casts, become tensors before."""
    if isinstance(value, tf.Variable) and _tf.unwrap_variable(value) is value:
        return value
    return tf.convert_to_tensor(value)


def _lookup(lookup: _tf.SparseLookup) -> Lookup:
    values = [_table(table) for table in lookup.tables]
    ids, segment_ids = lookup.ids, lookup.segment_ids
    dtype, weights = values[0].dtype, lookup.weights
    if weights is not None:
        weights = tf.cast(weights, tf.float32 if dtype in HALVES else dtype)
        if any(isinstance(value, tf.Variable) for value in values) and _may_record():
            # A gradient of the weights is of the rows as they are now.
            strategy = lookup.partition_strategy
            values = [tf.compat.v1.nn.embedding_lookup(values, ids, partition_strategy=strategy)]
            ids = tf.range(tf.size(ids, ids.dtype), dtype=ids.dtype)
    with on_host():
        # There are as many bags as the last one says, which is 0 where no bag is.
        last = tf.reduce_max(tf.concat([segment_ids[-1:], tf.constant([-1], segment_ids.dtype)], 0))
        count = host_number(last + 1, tf.int64)
    bags = Bags("segments", ids, segment_ids, count, weights=weights, reduction=lookup.combiner)
    return Lookup(
        [_arguments.to_table(value) for value in values],
        bags,
        lookup.max_norm,
        partition_strategy=lookup.partition_strategy,
        name=lookup.name,
    )


def _may_record() -> bool:
    return not tf.executing_eagerly() or _tf.is_recording()
