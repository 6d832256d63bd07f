"""TensorFlow's while loops, and with them Keras's, as Loops."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.openvino.element_types import ElementType
from tf_ti.openvino.model import OWN_PORT, RANGE
from tf_ti.openvino.writer.conversion import Node, Value, positions_read, writes
from tf_ti.openvino.writer.iteration import LoopBody, check_effects, stacked_of
from tf_ti.openvino.writer.lists import Elements, at_least, item_written
from tf_ti.openvino.writer.network import Layer, Port, element_type_of, shape_of


@writes("While", "StatelessWhile")
def _while(op: Node, *inputs: Value) -> list[Value]:
    return _While(op, inputs).write()


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """What a tensor is a copy of."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


class _While(LoopBody):
    """A while loop.

    A TensorArray into which each iteration writes the element of its number is a concatenated
    output of the Loop. Others, and those that iterations read, are tensors of all their elements.
    """

    def __init__(self, op: Node, inputs: Sequence[Any]):
        super().__init__(op)
        self.inputs = list(inputs)
        shapes = [t.shape for t in op.op.inputs]
        self.condition, self.body = (
            _tf.function_graph(op.op, op.op.get_attr(name).name, shapes)
            for name in ("cond", "body")
        )
        check_effects(op, (self.condition, self.body))
        sources = map(_source, self.body.outputs)
        self.is_invariant = [a is b for a, b in zip(sources, self.body.inputs)]
        tested = positions_read(self.condition, self.condition.outputs)
        # The operations that write the elements of their iterations, by the positions of the lists.
        self.written = {
            i: write
            for i, value in enumerate(self.inputs)
            if isinstance(value, Elements) and value.stacked is None and i not in tested
            if (write := item_written(self.body.outputs[i], self.body.inputs[i]))
            if self._is_number(write.inputs[1])
        }
        self.live = self._live()

    def _is_number(self, index: tf.Tensor) -> bool:
        """True if a tensor of the body is the number of the iteration, from 0 on."""
        index = _source(index)
        position = next((i for i, t in enumerate(self.body.inputs) if t is index), None)
        if position is None or not isinstance(self.inputs[position], np.ndarray):
            return False
        following = _source(self.body.outputs[position])
        if following.op.type not in ("AddV2", "Add") or self.inputs[position] != 0:
            return False
        terms = [_source(term) for term in following.op.inputs]
        is_own = [term is index for term in terms]
        return any(is_own) and self._known(terms[is_own.index(False)]) == 1

    def _known(self, tensor: tf.Tensor) -> np.ndarray | None:
        """The value of a tensor of the body, if it is the same constant in all iterations."""
        for given, outer, is_invariant in zip(self.body.inputs, self.inputs, self.is_invariant):
            if given is tensor:
                return outer if is_invariant and isinstance(outer, np.ndarray) else None
        return tf.get_static_value(tensor)

    def _live(self) -> list[int]:
        """The positions of the variables that outputs, or the condition, depend on."""
        live = {i for i in range(len(self.inputs)) if self.op.is_used(i)}
        live |= positions_read(self.condition, self.condition.outputs)
        while True:
            found = live | positions_read(self.body, self._results(live))
            if found == live:
                return sorted(live)
            live = found

    def _results(self, positions: Any) -> list[tf.Tensor]:
        """What the body computes for some variables: of lists that are written, the items."""
        return [
            self.written[i].inputs[2] if i in self.written else self.body.outputs[i]
            for i in sorted(positions)
        ]

    def write(self) -> list[Any]:
        op, network = self.op, self.network
        begins = self.conversion.run(op.network, self.condition, self.inputs)[0]
        self.ports += [np.asarray(-1), begins]
        inside = [self._variable(i) if i in self.live else None for i in range(len(self.inputs))]
        found = self.conversion.run(network, self.body, inside, self._results(self.live))
        values = dict(zip(self.live, found))
        following = [values.get(i) for i in range(len(self.inputs))]
        goes_on = self.conversion.run(network, self.condition, following)[0]
        results = {
            i: self._result(i, inside[i], values[i])
            for i in self.live
            if i in self.written or values[i] is not inside[i]
        }
        self.description.give(
            OWN_PORT, network.result(goes_on, "goes_on"), purpose="execution_condition"
        )
        used = [i for i in results if op.is_used(i)]
        made = list(self.inputs)  # what no iteration changes stays what it is
        if not used:
            return made
        for number, i in enumerate(used, len(self.ports)):
            pieces = dict(zip(RANGE, (0, 0, -1, 1, 1))) if i in self.written else {}
            self.description.give(number, results[i], **pieces)
        kinds = [self._kind(i) for i in used]
        layer = op.layer("Loop", *self.ports, version="opset5", outputs=kinds)
        layer.bodies.append(self.description)
        for i, port in zip(used, layer.outputs):
            made[i] = self._output(i, port)
        return made

    def _kind(self, i: int) -> ElementType:
        value = self.inputs[i]
        dtype = value.dtype if isinstance(value, Elements) else self.op.op.inputs[i].dtype
        return element_type_of(dtype)

    def _variable(self, i: int) -> Any:
        """The value of a variable in the body."""
        value = self.inputs[i]
        if i in self.written:
            return value  # which nobody reads there
        if not isinstance(value, Elements):
            if self.is_invariant[i] and not isinstance(value, Port):
                return value  # a constant, or a variable's handle
            return self._parameter(i, value, self.body.inputs[i].shape)
        if self.is_invariant[i] and not isinstance(value.stacked, Port | None):
            return value
        return self.list_of_state(value, f"variable_{i}")

    def _parameter(self, i: int, value: Any, shape: tf.TensorShape) -> Port:
        parameter = self.network.parameter(self._kind(i), shape_of(shape), f"variable_{i}")
        if self.is_invariant[i]:
            return self.feed_invariant(value, parameter)
        self.feed(value, parameter)
        return parameter

    def _result(self, i: int, before: Any, value: Any) -> Layer:
        """The Result of a state, or of the elements of iterations."""
        if i in self.written:
            row = self.network.add("Unsqueeze", [value, np.asarray([0])]).outputs[0]
            shape = shape_of(self.written[i].inputs[2].shape)
            row.shape = None if shape is None else (1, *shape)
            return self.network.result(row, f"elements_{i}")
        before, value = stacked_of(before), stacked_of(self.with_stacked(value))
        result = self.network.result(self.copied(value, before), f"state_{i}")
        self.description.back_edges.append((result, before.layer))
        return result

    def _output(self, i: int, port: Port) -> Any:
        value = self.inputs[i]
        if i not in self.written:
            return value.of_stacked(port) if isinstance(value, Elements) else port
        # As long as the list is, where the loop ends before it.
        return value.of_stacked(at_least(self.op, port, value.count))
