"""TensorFlow's conditionals as If."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.openvino.writer.conversion import Node, Value, composes, positions_read, writes
from tf_ti.openvino.writer.lists import Elements
from tf_ti.openvino.writer.network import (
    Body,
    Operand,
    Port,
    element_type_of,
    shape_of,
)


@writes("If", "StatelessIf")
def _if(op: Node, condition: Operand, *inputs: Value) -> list[Value | None]:
    known = op.known(0)
    if known is not None:  # the shapes of the other branch need not go together
        is_true = bool(known) if known.ndim == 0 else known.size > 0
        graph = _graph_of(op, "then" if is_true else "else")
        return op.run(graph, inputs, graph.outputs)
    if op.op.inputs[0].dtype != tf.bool:
        zero = np.zeros([], op.op.inputs[0].dtype.as_numpy_dtype)
        condition = op.add("NotEqual", condition, zero, outputs=[element_type_of(tf.bool)])
    return _If(op, condition, inputs).write()


def _graph_of(op: Node, tag: str) -> Any:
    """The graph of a branch."""
    shapes = [tensor.shape for tensor in op.op.inputs[1:]]
    return _tf.function_graph(op.op, op.op.get_attr(f"{tag}_branch").name, shapes)


@composes("Case", "StatelessCase")
def _case(op: Node, index: tf.Tensor, *inputs: tf.Tensor) -> list[tf.Tensor]:
    """Conditionals choose a half of the branches, and so on: OpenVINO compiles deep ones slowly."""
    branches = [_tf.find_function(op.op.graph, f.name) for f in op.op.get_attr("branches")]
    count = len(branches)
    index = tf.where((index < 0) | (index >= count), count - 1, index)

    def chosen(first: int, end: int) -> list[tf.Tensor]:
        if end - first == 1:
            return list(_tf.call_flat(branches[first], inputs))
        middle = (first + end) // 2
        return tf.cond(index < middle, lambda: chosen(first, middle), lambda: chosen(middle, end))

    return chosen(0, count)


class _If:
    """A conditional that is being written."""

    def __init__(self, op: Node, condition: Any, inputs: Sequence[Any]):
        self.op, self.inputs = op, inputs
        self.ports: list[Any] = [condition]
        self.used = [i for i in range(len(op.op.outputs)) if op.is_used(i)]
        self.graphs = {tag: _graph_of(op, tag) for tag in ("then", "else")}
        self.reads = {
            tag: positions_read(
                graph, [graph.outputs[i] for i in self.used], op.conversion.assigning(graph)
            )
            for tag, graph in self.graphs.items()
        }

    def write(self) -> list[Any]:
        op, states = self.op, self.op.conversion.states
        fed: dict[int, int] = {}  # the ports of inputs
        for i in sorted(self.reads["then"] | self.reads["else"]):
            if isinstance(self.inputs[i], Port):
                fed[i] = len(self.ports)
                self.ports.append(self.inputs[i])
        branches = [self._branch(tag, fed) for tag in self.graphs]
        assigned = {key: of for body, _ in branches for key, of in body.network.assigned.items()}
        lists = [_list_of(pair) for pair in zip(*(values for _, values in branches))]
        for body, values in branches:
            values += [states.read(body.network, *of) for of in assigned.values()]
        for body, values in branches:
            for k, value in enumerate(values):
                if isinstance(value, Elements):
                    value = value.values(op.within(body.network))
                result = body.network.result(value, f"output_{k}")
                body.give(len(self.ports) + k, result)
        dtypes = [
            op.op.outputs[i].dtype if list_ is None else list_.dtype
            for i, list_ in zip(self.used, lists)
        ]
        dtypes += [dtype for _, dtype in assigned.values()]
        kinds = list(map(element_type_of, dtypes))
        layer = op.layer("If", *self.ports, version="opset8", outputs=kinds)
        layer.bodies += [body for body, _ in branches]
        for (handle, dtype), port in zip(assigned.values(), layer.outputs[len(self.used) :]):
            op.assign(handle, dtype, port)
        made: list[Any] = [None] * len(op.op.outputs)
        for i, list_, port in zip(self.used, lists, layer.outputs):
            made[i] = port if list_ is None else list_.of_stacked(port)
        return made

    def _branch(self, tag: str, fed: Mapping[int, int]) -> tuple[Body, list[Any]]:
        """The body of a branch, and the values of its outputs."""
        op, graph = self.op, self.graphs[tag]

        def feed(value: Port) -> Port:
            parameter = body.network.parameter(value.element_type, value.shape, "variable")
            body.feed(len(self.ports), parameter)
            self.ports.append(value)
            return parameter

        network = op.body(feed)
        body = Body(network, f"{tag}_body", f"{tag}_port_map")
        values: list[Any] = list(self.inputs)
        for i, port in fed.items():
            values[i] = None
            if i in self.reads[tag]:
                kind = element_type_of(op.op.inputs[1 + i].dtype)
                values[i] = network.parameter(kind, shape_of(op.shape(1 + i)), f"input_{i}")
                body.feed(port, values[i])
        for i in self.reads[tag]:
            if isinstance(values[i], Elements):
                values[i] = values[i].inside(feed)
        wanted = [graph.outputs[i] for i in self.used]
        return body, op.conversion.run(network, graph, values, wanted)


def _list_of(values: Sequence[Any]) -> Elements | None:
    """One of the lists that two branches return, of the shape that both have."""
    lists = [value for value in values if isinstance(value, Elements)]
    if not lists:
        return None
    shape = lists[0].shape.most_specific_compatible_shape(lists[-1].shape)
    return dataclasses.replace(lists[0], shape=shape)
