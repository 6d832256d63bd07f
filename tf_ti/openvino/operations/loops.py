"""TensorIterator and Loop as tf_ti's loops, and If."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_ti
from tf_ti import _tf
from tf_ti.openvino.model import OWN_PORT, Body, PortMapEntry
from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import extents, rank_of


def _external(op: Operation, entry: PortMapEntry) -> tf.Tensor:
    ids = [port.id for port in op.layer.inputs]
    return op.inputs[ids.index(entry.external_port_id)]


def _in_order(op: Operation, values: Mapping[int, tf.Tensor]) -> tuple[tf.Tensor, ...]:
    """Puts values, which come by ids of output ports, in the order of these ports."""
    return tuple(values[port.id] for port in op.layer.outputs)


def _state_shape(body: Body, parameter: int, initial: tf.Tensor) -> tf.TensorShape:
    """The shape of a state, as far as it is known of all iterations and not only the first."""
    (port,) = body.graph.layers[parameter].outputs
    return initial.shape if port.shape is None else tf.TensorShape(port.shape)


@register("TensorIterator")
def _tensor_iterator(op: Operation, *inputs: tf.Tensor) -> tuple[tf.Tensor, ...]:
    body = op.layer.bodies["body"]
    parameters = [layer.id for layer in body.graph.of_type("Parameter")]
    results = [layer.id for layer in body.graph.of_type("Result")]
    states = {parameter for _, parameter in body.back_edges}
    tensors = []
    for entry in body.inputs:
        tensor = _external(op, entry)
        if entry.internal_layer_id in states:
            shape = _state_shape(body, entry.internal_layer_id, tensor)
            if not shape.is_subtype_of(tensor.shape):
                tensor = tf.compat.v1.placeholder_with_default(tensor, shape)
        tensors.append(tensor)

    @_tf.do_not_convert
    def run(*values: tf.Tensor) -> tuple[tf.Tensor, ...]:
        found = op.run_graph(body.graph, dict(zip(parameters, values)))
        return tuple(found[result] for result in results)

    port_map = tf_ti.PortMap(
        [
            tf_ti.InputPort(i, parameters.index(entry.internal_layer_id), **entry.range)
            for i, entry in enumerate(body.inputs)
        ],
        [
            tf_ti.OutputPort(i, results.index(entry.internal_layer_id), **entry.range)
            for i, entry in enumerate(body.outputs)
        ],
    )
    edges = [
        tf_ti.BackEdge(results.index(result), parameters.index(parameter))
        for result, parameter in body.back_edges
    ]
    values = tf_ti.tensor_iterator(run, tensors, port_map, edges)
    return _in_order(op, {entry.external_port_id: v for entry, v in zip(body.outputs, values)})


@register("Loop", "opset5")
def _loop(
    op: Operation, trip_count: tf.Tensor, condition: tf.Tensor, *inputs: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """Runs a Loop as `tf_ti.Loop`, whose inputs may have more slices than there are iterations.

    A trip count below 0 means as many iterations as slices, or, without slices, no limit. After no
    iteration, the last value of anything but a state is zeros.
    """
    body = op.layer.bodies["body"]
    ends = [entry.internal_layer_id for entry in body.outputs if entry.external_port_id == OWN_PORT]
    if len(ends) != 1:
        raise op.error(f"{len(ends)} results of the body are its execution condition, not one")
    slices = {
        entry.internal_layer_id: _pieces(op, _external(op, entry), **entry.range)
        for entry in body.inputs
        if entry.range
    }
    count = _count(op, [extents(pieces)[axis] for pieces, axis, _ in slices.values()])
    back = {parameter: result for result, parameter in body.back_edges}
    with tf_ti.Loop() as loop:
        number = loop.add_recurrence(tf.constant(0, tf.int64))
        number.next = number + 1
        given, states = {}, []
        for entry in body.inputs:
            parameter = entry.internal_layer_id
            if entry.external_port_id == OWN_PORT:
                value = _number(body, parameter, number)
            elif parameter in slices:
                value = loop.add_iterator(*slices[parameter])
            else:
                value = _external(op, entry)
                if parameter in back:
                    value = loop.add_recurrence(value, _state_shape(body, parameter, value))
                    states.append((back[parameter], value))
            given[parameter] = tf.convert_to_tensor(value)
        results = op.run_graph(body.graph, given)
        for result, state in states:
            state.next = results[result]
        goes_on = results[ends[0]]
        ends_by_condition = not np.all(tf.get_static_value(goes_on))
        if ends_by_condition:
            going = loop.add_recurrence(True)
            going.next = tf.reshape(goes_on, [])
            loop.add_trip_limit(going, tf_ti.TripLimit.WHILE)
        if count is not None:
            loop.add_trip_limit(count, tf_ti.TripLimit.COUNT)
        elif not ends_by_condition:
            raise op.error("runs for ever: no trip count, no slices, and a condition that is true")
        outputs = _add_outputs(op, loop, body, results, dict(reversed(states)))
    for entry in body.outputs:
        if entry.range:
            stack = tf.convert_to_tensor(outputs[entry.external_port_id])
            outputs[entry.external_port_id] = _joined(op, stack, **entry.range)
    return _in_order(op, {port: tf.convert_to_tensor(value) for port, value in outputs.items()})


def _count(op: Operation, lengths: Sequence[int | tf.Tensor]) -> int | tf.Tensor | None:
    """The limit of the number of iterations, or None."""
    known, begins = op.known(0), op.known(1)
    count = lengths[0] if lengths else None
    if known is None:
        given = tf.cast(tf.reshape(op.inputs[0], []), tf.int64)
        count = tf.where(given < 0, _or_no_limit(count), given)
    elif np.all(known >= 0):
        count = int(np.reshape(known, ()))
    if begins is None:
        return tf.where(tf.reshape(op.inputs[1], []), _or_no_limit(count), 0)
    return count if np.all(begins) else 0


def _or_no_limit(count: int | tf.Tensor | None) -> tf.Tensor:
    return tf.convert_to_tensor(tf.int64.max if count is None else count, tf.int64)


def _number(body: Body, parameter: int, number: Any) -> tf.Tensor:
    """The number of the iteration as the Parameter has it: a scalar, or a tensor of one element."""
    (port,) = body.graph.layers[parameter].outputs
    dtype = port.element_type.dtype if port.element_type else tf.int64
    return tf.reshape(tf.cast(number, dtype), [1] * len(port.shape or ()))


def _pieces(
    op: Operation,
    x: tf.Tensor,
    axis: int,
    start: int = 0,
    end: int = -1,
    stride: int = 1,
    part_size: int | None = None,
) -> tuple[tf.Tensor, int, bool]:
    """Splits an axis in two: the pieces, and the elements in each.

    Returns:
        The tensor; the axis of the pieces; true if the loop takes them in reverse.
    """
    axis = op.axis(axis, rank_of(op, x))
    part_size = part_size or abs(stride)
    shape = extents(x)
    extent = shape[axis]
    if abs(stride) == part_size and (start, end) == ((0, -1) if stride > 0 else (-1, 0)):
        number = extent // part_size
        pieces = tf.reshape(x, [*shape[:axis], number, part_size, *shape[axis + 1 :]])
        return pieces, axis, stride < 0
    first, last = (extent + i if i < 0 else i for i in (start, end))
    length = last - first + 1 if stride > 0 else first - last + 1
    number = (length - part_size) // abs(stride) + 1 if stride else 0
    if isinstance(number, int) and number < 1:
        raise op.error(
            f"no piece fits: start={start} end={end} stride={stride} part_size={part_size} "
            f"over {extent} elements"
        )
    begins = first + tf.range(number, dtype=tf.int64) * stride - (part_size - 1) * (stride < 0)
    indices = begins[:, tf.newaxis] + tf.range(part_size, dtype=tf.int64)
    return tf.gather(x, indices, axis=axis), axis, False


def _add_outputs(
    op: Operation,
    loop: tf_ti.Loop,
    body: Body,
    results: Mapping[int, tf.Tensor],
    states: dict[int, Any],
) -> dict[int, Any]:
    """Adds the outputs of the loop, and returns them by ids of ports. Ranges are joined later.

    `states` are recurrences by the results that lead to them.
    """
    outputs = {}
    for entry in body.outputs:
        result, port = entry.internal_layer_id, entry.external_port_id
        if port == OWN_PORT:
            continue
        if entry.range:
            outputs[port] = _add_stack(op, loop, results[result], **entry.range)
            continue
        if result not in states:
            states[result] = _add_last(loop, results[result])
        outputs[port] = loop.add_loop_output(states[result], tf_ti.LoopOutput.LAST_VALUE)
    return outputs


def _add_stack(
    op: Operation, loop: tf_ti.Loop, value: tf.Tensor, axis: int, stride: int = 1, **others: int
) -> Any:
    """Adds a loop output that stacks values along a new axis before `axis`."""
    kind = tf_ti.LoopOutput.CONCATENATE if stride > 0 else tf_ti.LoopOutput.REVERSE
    return loop.add_loop_output(value, kind, op.axis(axis, max(rank_of(op, value), 1)))


def _joined(op: Operation, stack: tf.Tensor, axis: int, **others: int) -> tf.Tensor:
    """Joins the values that `_add_stack` has stacked along the axis. Scalars become a vector."""
    rank = rank_of(op, stack) - 1
    if rank == 0:
        return stack
    axis = op.axis(axis, rank)
    shape = extents(stack, tf.int32)  # XLA takes no other type if the count is unknown
    return tf.reshape(stack, [*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]])


def _add_last(loop: tf_ti.Loop, value: tf.Tensor) -> Any:
    """Adds a recurrence whose value is that of the iteration before, and zeros at first."""
    shape = [0] if value.shape.rank is None else [extent or 0 for extent in value.shape.as_list()]
    last = loop.add_recurrence(tf.zeros(shape, value.dtype), value.shape)
    last.next = value
    return last


@register("If", "opset8")
def _if(op: Operation, condition: tf.Tensor, *inputs: tf.Tensor) -> tuple[tf.Tensor, ...]:
    def branch(name: str) -> Callable[[], list[tf.Tensor]]:
        body = op.layer.bodies[name]
        given = {entry.internal_layer_id: _external(op, entry) for entry in body.inputs}

        def run() -> list[tf.Tensor]:
            results = op.run_graph(body.graph, given)
            values = {
                entry.external_port_id: results[entry.internal_layer_id] for entry in body.outputs
            }
            return list(_in_order(op, values))

        return run

    known = op.known(0)
    if known is not None and known.size == 1:
        return tuple(branch("then_body" if known.reshape(()) else "else_body")())
    condition = tf.cast(tf.reshape(condition, []), tf.bool)
    return tuple(tf.cond(condition, branch("then_body"), branch("else_body")))
