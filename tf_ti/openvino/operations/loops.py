"""TensorIterator, Loop and If, on tf_ti's loops."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

import tf_ti
from tf_ti.openvino.model import Body, PortMapEntry
from tf_ti.openvino.operation import Operation, register

_OWN = -1  # the external port of what a loop gives its body, or takes from it


def _range_of(op: Operation, entry: PortMapEntry) -> dict[str, int]:
    """A port's axis and range; nothing where the whole tensor is meant."""
    if "axis" not in entry.attributes:
        return {}
    values = {}
    for name in ("axis", "start", "end", "stride", "part_size"):
        text = entry.attributes.get(name)
        if text is None:
            continue
        try:
            values[name] = int(text)
        except ValueError:
            raise op.error(f"port {entry.external_port_id}: {name}={text!r} is no int") from None
    return values


def _external(op: Operation, entry: PortMapEntry) -> tf.Tensor:
    for position, port in enumerate(op.layer.inputs):
        if port.id == entry.external_port_id:
            return op.inputs[position]
    raise op.error(f"the port map names an input port {entry.external_port_id}, which is not there")


def _by_output(op: Operation, values: Mapping[int, tf.Tensor]) -> tuple[tf.Tensor, ...]:
    """What ports of the layer give, in its order."""
    missing = [port.id for port in op.layer.outputs if port.id not in values]
    if missing:
        raise op.error(f"the port map names no result for output ports {missing}")
    return tuple(values[port.id] for port in op.layer.outputs)


class _Iteration:
    """A body, and the port map, as tf_ti's loops take it."""

    def __init__(self, op: Operation, body: Body):
        self.op, self.body = op, body
        self.parameters = [layer.id for layer in body.graph.of_type("Parameter")]
        self.results = [layer.id for layer in body.graph.of_type("Result")]
        self.inputs = [entry for entry in body.inputs if entry.external_port_id != _OWN]
        self.outputs = [entry for entry in body.outputs if entry.external_port_id != _OWN]
        self.counters = [
            entry.internal_layer_id for entry in body.inputs if entry.external_port_id == _OWN
        ]
        fed = {entry.internal_layer_id for entry in body.inputs}
        for parameter in self.parameters:
            if parameter not in fed:
                layer = body.graph.layers[parameter]
                raise op.error(f"nothing leads to the body's Parameter {layer.name!r}")

    def counter(self, parameter: int) -> tf.Tensor:
        """An iteration's number before the first one, as that Parameter wants it."""
        (port,) = self.body.graph.layers[parameter].outputs
        dtype = port.element_type.dtype if port.element_type else np.int64
        return tf.zeros([n or 1 for n in port.shape or ()], dtype)

    def run(self, num_iterations: tf.Tensor | int | None) -> tuple[tf.Tensor, ...]:
        """By `tf_ti.tensor_iterator`: the number of iterations is known before."""
        op = self.op
        tensors = [_external(op, entry) for entry in self.inputs]
        ports = [
            tf_ti.InputPort(i, self.parameters.index(entry.internal_layer_id), **_range_of(op, entry))
            for i, entry in enumerate(self.inputs)
        ]
        for parameter in self.counters:
            ports.append(tf_ti.InputPort(len(tensors), self.parameters.index(parameter)))
            tensors.append(self.counter(parameter))
        number = len(self.results)
        edges = [
            tf_ti.BackEdge(self.results.index(result), self.parameters.index(parameter))
            for result, parameter in self.body.back_edges
        ]
        edges += [
            tf_ti.BackEdge(number + i, self.parameters.index(parameter))
            for i, parameter in enumerate(self.counters)
        ]
        out = [
            tf_ti.OutputPort(i, self.results.index(entry.internal_layer_id), **_range_of(op, entry))
            for i, entry in enumerate(self.outputs)
        ]

        def body(*parameters):
            given = dict(zip(self.parameters, parameters))
            results = op.run_graph(self.body.graph, given)
            counters = tuple(given[parameter] + 1 for parameter in self.counters)
            return (*(results[result] for result in self.results), *counters)

        values = tf_ti.tensor_iterator(
            body, tensors, tf_ti.PortMap(inputs=ports, outputs=out), edges, num_iterations
        )
        ids = [entry.external_port_id for entry in self.outputs]
        return _by_output(op, dict(zip(ids, values)))


@register("TensorIterator")
def _tensor_iterator(op, *inputs):
    return _Iteration(op, op.layer.bodies["body"]).run(None)


@register("Loop", "opset5")
def _loop(op, trip_count, condition, *inputs):
    body = op.layer.bodies["body"]
    iteration = _Iteration(op, body)
    ends = [
        entry.internal_layer_id for entry in body.outputs if entry.external_port_id == _OWN
    ]
    if len(ends) != 1:
        raise op.error(f"{len(ends)} results of the body are its execution condition, not one")
    limit = op.known(0)
    count: tf.Tensor | int | None
    if limit is not None:
        count = None if int(np.reshape(limit, ())) < 0 else int(np.reshape(limit, ()))
    else:
        count = tf.reshape(tf.cast(trip_count, tf.int64), [])
        count = tf.where(count < 0, count.dtype.max, count)
    if not _goes_on(op, body, ends[0]):
        return _run_while(iteration, ends[0], count, tf.reshape(condition, []))
    begins = op.known(1)
    if begins is not None and bool(np.reshape(begins, ())):
        return iteration.run(count)
    if count is None:
        raise op.error("a loop without end whose first condition is not a constant")
    return iteration.run(tf.where(tf.reshape(condition, []), tf.cast(count, tf.int64), 0))


def _goes_on(op: Operation, body: Body, result: int) -> bool:
    """Whether the condition that the body gives is a constant, true."""
    graph = body.graph
    source = graph.layers[graph.sources[result, graph.layers[result].inputs[0].id][0]]
    value = op.constant_of(source)
    return value is not None and bool(np.all(value))


def _run_while(iteration: _Iteration, end: int, count, condition) -> tuple[tf.Tensor, ...]:
    """By `tf_ti.Loop`: each iteration says whether there is another one."""
    op, body = iteration.op, iteration.body
    back = {parameter: result for result, parameter in body.back_edges}
    finals, stacked = {}, {}
    with tf_ti.Loop() as loop:
        going = loop.add_recurrence(condition)
        loop.add_trip_limit(going, tf_ti.TripLimit.WHILE)
        if count is not None:
            loop.add_trip_limit(count, tf_ti.TripLimit.COUNT)
        number = loop.add_recurrence(tf.constant(0, tf.int64))
        number.next = number + 1
        given, states = {}, {}
        for entry in iteration.inputs:
            tensor = _external(op, entry)
            parameter = entry.internal_layer_id
            where = _range_of(op, entry)
            if where:
                given[parameter] = _piece(op, tensor, tf.convert_to_tensor(number), **where)
            elif parameter in back:
                (port,) = body.graph.layers[parameter].outputs
                shape = tensor.shape if port.shape is None else tf.TensorShape(port.shape)
                states[parameter] = loop.add_recurrence(tensor, shape)
                given[parameter] = tf.convert_to_tensor(states[parameter])
            else:
                given[parameter] = tensor
        for parameter in iteration.counters:
            zero = iteration.counter(parameter)
            given[parameter] = zero + tf.cast(tf.convert_to_tensor(number), zero.dtype)
        results = op.run_graph(body.graph, given)
        going.next = tf.reshape(results[end], [])
        for parameter, state in states.items():
            state.next = results[back[parameter]]
        for entry in iteration.outputs:
            value = results[entry.internal_layer_id]
            where = _range_of(op, entry)
            if where:
                kind = tf_ti.LoopOutput.REVERSE if where.get("stride", 1) < 0 else tf_ti.LoopOutput.CONCATENATE
                output = loop.add_loop_output(value, kind)
                stacked[entry.external_port_id] = output, op.axis(where["axis"], value.shape.rank)
                continue
            kept = [s for p, s in states.items() if back[p] == entry.internal_layer_id]
            if not kept:
                if not value.shape.is_fully_defined():
                    raise op.error(f"output {entry.external_port_id} has no shape that is known")
                kept = [loop.add_recurrence(tf.zeros(value.shape, value.dtype))]
                kept[0].next = value
            finals[entry.external_port_id] = loop.add_loop_output(kept[0], tf_ti.LoopOutput.LAST_VALUE)
    values = {port: tf.convert_to_tensor(output) for port, output in finals.items()}
    for port, (output, axis) in stacked.items():
        values[port] = _join(tf.convert_to_tensor(output), axis)
    return _by_output(op, values)


def _piece(op, x, number, axis, start=0, end=-1, stride=1, part_size=1):
    """What iteration `number` gets of a sliced input."""
    axis = op.axis(axis, x.shape.rank)
    extent = tf.shape(x, tf.int64)[axis]
    first = (start if start >= 0 else extent + start) + number * stride
    if stride < 0:
        first -= part_size - 1
    return tf.gather(x, first + tf.range(part_size, dtype=tf.int64), axis=axis)


def _join(stack: tf.Tensor, axis: int) -> tf.Tensor:
    """Pieces that stand one after the other along a new first axis, along an axis they have."""
    order = [*range(1, axis + 1), 0, *range(axis + 1, stack.shape.rank)]
    shape = tf.shape(stack, tf.int64)
    joined = tf.concat([shape[1 : axis + 1], [shape[0] * shape[axis + 1]], shape[axis + 2 :]], 0)
    return tf.reshape(tf.transpose(stack, order), joined)


@register("If", "opset8")
def _if(op, condition, *inputs):
    def branch(name):
        body = op.layer.bodies[name]
        given = {entry.internal_layer_id: _external(op, entry) for entry in body.inputs}

        def run():
            results = op.run_graph(body.graph, given)
            values = {
                entry.external_port_id: results[entry.internal_layer_id] for entry in body.outputs
            }
            return list(_by_output(op, values))

        return run

    condition = tf.cast(tf.reshape(condition, []), tf.bool)
    return tuple(tf.cond(condition, branch("then_body"), branch("else_body")))
