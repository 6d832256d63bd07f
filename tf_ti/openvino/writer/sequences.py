"""tf_ti's recurrent sequences as OpenVINO's."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tf_ti
from tf_ti import _tf
from tf_ti.openvino.element_types import ElementType
from tf_ti.openvino.writer.conversion import Node, writes
from tf_ti.openvino.writer.network import Operand, Port, element_type_of
from tf_ti.openvino.writer.shapes import broadcast, shape_as

_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_TYPES = {"lstm": "LSTMSequence", "gru": "GRUSequence", "rnn": "RNNSequence"}
_CELLS: dict[str, Callable[..., Any]] = {
    "lstm": tf_ti.lstm_cell,
    "gru": tf_ti.gru_cell,
    "rnn": tf_ti.rnn_cell,
}
# The activations of OpenVINO's cells. Its CPU plugin refuses other ones.
_ACTIVATIONS = frozenset(["relu", "sigmoid", "tanh"])
# What a step hands on: the states, and the last output, if masked steps hold it.
_Carry = tuple[list[tf.Tensor], tf.Tensor | tuple[()]]


@writes("TfTi>RecurrentSequence")
def _sequence(op: Node, *inputs: Operand) -> list[Operand]:
    return _Sequence(op, list(inputs)).write()


@dataclasses.dataclass
class _Sequence:
    """One direction of a layer that is being written."""

    op: Node
    inputs: list[Any]

    def write(self) -> list[Any]:
        op, given = self.op, self.inputs
        self.kind = op.attr("kind")
        self.clip, *coefficients = map(float, op.attr("coefficients"))
        self.alphas, self.betas = coefficients[::2], coefficients[1::2]
        self.activations = op.attr("activations")

        def take(name: str) -> Any:
            return given.pop(0) if op.attr(name) else None

        x, h, c, w = given.pop(0), given.pop(0), take("num_cells"), take("num_weights")
        r, b = given.pop(0), take("num_biases")
        lengths, mask = take("num_lengths"), take("num_masks")
        self.states = [h] if c is None else [h, c]
        hidden = _tf.known_extent(op.op.inputs[1], -1)
        if hidden is None:
            raise op.error("the number of hidden units must be known")
        self.hidden, count = int(hidden), _GATES[self.kind]
        self.extents = op.shape(0).as_list()  # batch, time, input
        self.x = x
        if op.attr("time_major"):
            self.x = op.add("Transpose", x, np.asarray([1, 0, 2]))
            self.extents = [self.extents[i] for i in (1, 0, 2)]
            if mask is not None:
                mask = op.add("Transpose", mask, np.asarray([1, 0]))
        if w is None:  # x is its product already
            self.w = np.eye(count * self.hidden, dtype=op.dtype())
        else:
            self.w = self._ordered(self._turned(w), count)
        self.r = self._ordered(self._turned(r), count)
        num_biases = count + bool(op.attr("linear_before_reset"))
        self.b = np.zeros(num_biases * self.hidden, op.dtype())
        if b is not None:
            self.b = self._ordered(b, num_biases)
        is_known = None not in self.extents[:2]
        has_all = all(name in _ACTIVATIONS for name in self.activations)
        # OpenVINO's CPU plugin ignores lengths if shapes are dynamic.
        if mask is None and has_all and (lengths is None or is_known):
            y, *states = self._layer(lengths)
        else:
            y, *states = self._loop(lengths, mask)
        if op.attr("time_major"):
            y = op.add("Transpose", y, np.asarray([1, 0, 2]))
        return [y, *states]

    def _turned(self, weights: Any) -> Any:
        """Weights as [gates * hidden, inputs]."""
        if self.op.attr("transpose_weights"):
            return weights
        if isinstance(weights, Port):
            return self.op.add("Transpose", weights, np.asarray([1, 0]))
        return np.ascontiguousarray(weights.T)

    def _ordered(self, value: Any, count: int) -> Any:
        """Puts the gates in OpenVINO's order."""
        order = list(self.op.attr("gate_order"))
        if order == sorted(order):
            return value
        order += range(len(order), count)
        rows = np.concatenate([np.arange(self.hidden) + gate * self.hidden for gate in order])
        if isinstance(value, Port):
            return self.op.add("Gather", value, rows, np.asarray(0), version="opset8", batch_dims=0)
        return value[rows]

    def _layer(self, lengths: Any) -> list[Any]:
        op = self.op
        if self.extents[1] == 0:
            raise op.error("OpenVINO's CPU plugin compiles no sequence that has no steps")
        attributes = {
            "hidden_size": self.hidden,
            "direction": "reverse" if op.attr("reverse") else "forward",
            "activations": self.activations,
            "clip": self.clip,
        }
        if self.kind == "gru":
            attributes["linear_before_reset"] = bool(op.attr("linear_before_reset"))
        states = [self._with_direction(state, 1) for state in self.states]
        weights = [self._with_direction(value, 0) for value in (self.w, self.r, self.b)]
        given, lengths = lengths, self._all_steps() if lengths is None else lengths
        layer = op.layer(
            _TYPES[self.kind],
            self.x,
            *states,
            lengths,
            *weights,
            version="opset5",
            outputs=[self._port_type()] * (1 + len(states)),
            **attributes,
        )
        y, *last = (op.add("Squeeze", port, np.asarray([1])) for port in layer.outputs)
        if given is not None and not (isinstance(given, np.ndarray) and np.all(given > 0)):
            # OpenVINO's last states of a sequence of no steps are zeros, tf_ti's the first ones.
            dtype = given.element_type.dtype if isinstance(given, Port) else given.dtype
            column = op.add("Unsqueeze", given, np.asarray([1]))
            boolean = [element_type_of(tf.bool)]
            is_empty = op.add("Equal", column, np.zeros([1, 1], dtype), outputs=boolean)
            kinds = [self._port_type()]
            last = [
                op.add("Select", is_empty, first, state, outputs=kinds)
                for first, state in zip(self.states, last)
            ]
        return [y, *last]

    def _port_type(self) -> ElementType:
        return (
            self.x.element_type
            if isinstance(self.x, Port)
            else self.op.network.constant(self.x).element_type
        )

    def _with_direction(self, value: Any, axis: int) -> Any:
        if isinstance(value, Port):
            return self.op.add("Unsqueeze", value, np.asarray([axis]))
        return np.expand_dims(value, axis)

    def _all_steps(self) -> Any:
        batch, time, _ = self.extents
        if batch is not None and time is not None:
            return np.full([batch], time, np.int64)
        shape = shape_as(self.op, self.x)
        first, second = (
            self.op.add(
                "Gather", shape, np.asarray([i]), np.asarray(0), version="opset8", batch_dims=0
            )
            for i in (0, 1)
        )
        return broadcast(self.op, second, first)

    def _loop(self, lengths: Any, mask: Any) -> list[Any]:
        """Writes a loop of the cell's steps, traced from `tf_ti.scan`."""
        op, hold = self.op, self.op.attr("hold_output")
        cell, options = _CELLS[self.kind], self._options()

        def run(x: tf.Tensor, *given: tf.Tensor) -> list[tf.Tensor]:
            states, rest = list(given[: len(self.states)]), list(given[len(self.states) :])
            w, r, b = rest[:3]
            if mask is not None:
                valid = rest[3]
            elif lengths is not None:
                valid = tf.sequence_mask(rest[3], tf.shape(x)[1])
            else:
                valid = None
            x = x if valid is None else tf.where(valid[..., tf.newaxis], x, tf.zeros([], x.dtype))

            def step(carry: _Carry, element: tuple[tf.Tensor, ...]) -> tuple[_Carry, tf.Tensor]:
                old, before = carry
                new = cell(element[0], *old, w, r, b, **options)
                new = list(new) if isinstance(new, tuple) else [new]
                y = new[0]
                if valid is not None:
                    is_there = element[1][:, tf.newaxis]
                    new = [tf.where(is_there, n, o) for n, o in zip(new, old)]
                    y = tf.where(is_there, y, before if hold else tf.zeros([], y.dtype))
                return (new, y if hold else before), y

            before = tf.zeros_like(states[0]) if hold else ()
            elements = (x,) if valid is None else (x, valid)
            (states, _), y = tf_ti.scan(
                step,
                (states, before),
                elements,
                axis=1,
                reverse=bool(op.attr("reverse")),
                fuse=False,
            )
            return [y, *states]

        batch, time, width = self.extents
        dtype = op.op.outputs[0].dtype
        specs = [tf.TensorSpec([batch, time, width], dtype)]
        specs += [tf.TensorSpec([batch, self.hidden], dtype)] * len(self.states)
        rows = _GATES[self.kind] * self.hidden
        width = rows if isinstance(self.w, np.ndarray) and width is None else width
        specs += [tf.TensorSpec([rows, n], dtype) for n in (width, self.hidden)]
        specs.append(
            tf.TensorSpec([rows + self.hidden * bool(op.attr("linear_before_reset"))], dtype)
        )
        arguments = [self.x, *self.states, self.w, self.r, self.b]
        if mask is not None:
            specs.append(tf.TensorSpec([batch, time], tf.bool))
            arguments.append(mask)
        elif lengths is not None:
            specs.append(tf.TensorSpec([batch], tf.int64))
            arguments.append(lengths)
        graph = _tf.trace(f"steps_of_{self.kind}", run, specs)
        return op.conversion.run(op.network, graph, arguments)

    def _options(self) -> dict[str, Any]:
        options = {
            "activations": self.activations,
            "activations_alpha": self.alphas,
            "activations_beta": self.betas,
            "clip": self.clip or None,
        }
        if self.kind == "gru":
            options["linear_before_reset"] = bool(self.op.attr("linear_before_reset"))
        return options
