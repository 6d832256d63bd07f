"""Positions of numbers among others, and different numbers."""

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.openvino.writer.conversion import Node, composes, writes
from tf_ti.openvino.writer.network import Operand, Port, element_type_of
from tf_ti.openvino.writer.shapes import broadcast, shape_as


@writes("Bucketize")
def _bucketize(op: Node, x: Operand) -> Port:
    kind = element_type_of(tf.int32)
    bounds = np.asarray(op.attr("boundaries"), np.float32)
    return op.add(
        "Bucketize",
        x,
        bounds,
        version="opset3",
        outputs=[kind],
        output_type=kind.name,
        with_right_bound=False,
    )


@writes("Unique", "UniqueV2")
def _unique(op: Node, x: Operand, axis: Operand | None = None) -> list[Port]:
    kind = element_type_of(op.op.outputs[1].dtype)
    axes = [] if axis is None else [int(number) for number in op.static(1).reshape(-1)]
    if op.shape(0).rank == 1:
        axes = []  # OpenVINO's CPU plugin forgets the shape of positions along an axis
    layer = op.layer(
        "Unique",
        x,
        *(np.asarray(number, np.int64) for number in axes),
        version="opset10",
        outputs=[element_type_of(op.op.inputs[0].dtype), *[kind] * 3],
        sorted=False,
        index_element_type=kind.name,
        count_element_type=kind.name,
    )
    values, _, places, _ = layer.outputs
    if not axes and not op.is_used(1):  # it computes values only where something reads positions
        start = broadcast(op, np.zeros([], op.dtype()), shape_as(op, values))
        values = op.add("ScatterUpdate", start, places, x, np.asarray(0), version="opset3")
    return [values, places]


@composes("UniqueWithCounts", "UniqueWithCountsV2")
def _unique_with_counts(op: Node, x: tf.Tensor, axis: tf.Tensor | None = None) -> list[tf.Tensor]:
    """OpenVINO's CPU plugin gives wrong counts where nothing reads the values."""
    number = 0 if axis is None or not axis.shape.num_elements() else tf.get_static_value(axis)[0]
    dtype = op.op.outputs[1].dtype
    values, places = tf.raw_ops.UniqueV2(x=x, axis=[number], out_idx=dtype)
    ones = tf.ones(tf.shape(x)[number, tf.newaxis], dtype)
    count = tf.shape(values)[number]
    return [values, places, tf.math.unsorted_segment_sum(ones, places, count)]


@composes("ListDiff")
def _list_diff(op: Node, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
    if x.dtype.is_integer:  # OpenVINO's CPU plugin compares in single precision
        is_equal = tf.equal(x[:, tf.newaxis] - y, 0)
    else:
        is_equal = tf.equal(x[:, tf.newaxis], y)
    is_left = ~tf.reduce_any(is_equal, 1)
    places = tf.reshape(tf.where(is_left), [-1])
    return [tf.gather(x, places), tf.cast(places, op.op.outputs[1].dtype)]


@composes("InTopK", "InTopKV2")
def _in_top_k(
    op: Node,
    predictions: tf.Tensor,
    targets: tf.Tensor,
    k: tf.Tensor | int | None = None,
) -> tf.Tensor:
    k = op.attr("k") if k is None else tf.cast(k, tf.int32)
    targets = tf.cast(targets, tf.int32)
    is_class = (targets >= 0) & (targets < tf.shape(predictions)[1])
    place = tf.where(is_class, targets, 0)
    value = tf.gather(predictions, place[:, tf.newaxis], batch_dims=1)
    count = tf.reduce_sum(tf.cast(predictions > value, tf.int32), 1)
    return is_class & tf.reduce_all(tf.math.is_finite(predictions), 1) & (count < k)


@composes("LookupTableFindV2")
def _look_up(op: Node, table: tf.Tensor, x: tf.Tensor, default: tf.Tensor) -> tf.Tensor:
    """Finds integers among the keys that the table has now."""
    handle, dtype = op.inputs[0], op.op.outputs[0].dtype
    if not (x.dtype.is_integer and (dtype.is_integer or dtype.is_floating)):
        raise op.error("OpenVINO has no strings: look up before the model, and give it numbers")
    if not isinstance(handle, _tf.EagerTensor):
        raise op.error("the content of its table must be known")
    with tf.init_scope():
        keys, values = tf.raw_ops.LookupTableExportV2(
            table_handle=handle, Tkeys=x.dtype, Tvalues=dtype
        )
    keys, values = keys.numpy(), values.numpy()
    if not keys.size:
        return tf.fill(tf.shape(x), default)
    for name, numbers in ("keys", keys), ("values", values):
        if numbers.dtype.kind in "iu" and np.any(numbers != numbers.astype(np.int32)):
            raise op.error(
                f"OpenVINO computes in int32, which has no numbers as large as its {name}"
            )
    order = np.argsort(keys)
    keys, values = (tf.constant(part[order]) for part in (keys, values))
    place = tf.searchsorted(keys, tf.reshape(x, [-1]))
    place = tf.reshape(tf.minimum(place, len(order) - 1), tf.shape(x))
    return tf.where(tf.equal(tf.gather(keys, place), x), tf.gather(values, place), default)
