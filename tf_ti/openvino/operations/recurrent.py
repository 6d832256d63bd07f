"""Recurrent cells and sequences as tf_ti's."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_ti
from tf_ti.openvino.operation import Operation, register

_ACTIVATIONS = {
    "lstm": ["sigmoid", "tanh", "tanh"],
    "gru": ["sigmoid", "tanh"],
    "rnn": ["tanh"],
}
_PLAIN = {"relu": tf.nn.relu, "sigmoid": tf.sigmoid, "tanh": tf.tanh}


def _options(op: Operation, kind: str) -> dict[str, Any]:
    names = op.text("activations", "")
    activations = [name.strip().lower() for name in names.split(",") if name.strip()]
    # Files made of ONNX's have those of the second direction too, which OpenVINO does not read.
    count = len(_ACTIVATIONS[kind])
    clip = op.number("clip", 0.0)
    options = {
        "hidden_size": op.integer("hidden_size"),
        "activations": activations[:count] or _ACTIVATIONS[kind],
        "activations_alpha": op.numbers("activations_alpha", [])[:count],
        "activations_beta": op.numbers("activations_beta", [])[:count],
        "clip": clip if 0 < clip < math.inf else None,  # otherwise it has no effect
    }
    if kind == "gru":
        options["linear_before_reset"] = op.flag("linear_before_reset", False)
    return options


def _split_weights(op: Operation, weights: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """w, r and the other weights. In older cells one matrix holds w and r."""
    hidden = op.integer("hidden_size")
    if weights[0].shape.rank == 2 and (len(weights) < 2 or weights[1].shape.rank == 1):
        both, *rest = weights
        return [both[:, :-hidden], both[:, -hidden:], *rest]
    return list(weights)


def _ordered(op: Operation, tensors: list[tf.Tensor], axis: int) -> list[tf.Tensor]:
    """Puts weights and biases of an LSTM's gates in the order f, i, c, o."""
    order = op.text("weights_format", "fico").lower()
    if sorted(order) != sorted("fico"):
        raise op.error(f"weights_format={order!r} does not order the gates f, i, c and o")
    if order == "fico":
        return tensors
    result = []
    for tensor in tensors:
        parts = dict(zip(order, tf.split(tensor, 4, axis)))
        result.append(tf.concat([parts[gate] for gate in "fico"], axis))
    return result


def _has_peepholes(op: Operation, position: int) -> bool:
    """True unless the peepholes are known to be zeros, which OpenVINO writes for none."""
    if len(op.inputs) <= position:
        return False
    known = op.known(position)
    return known is None or bool(np.any(known))


@register("LSTMCell", "opset1")
def _lstm_cell_1(
    op: Operation, x: tf.Tensor, hidden: tf.Tensor, cell: tf.Tensor, *weights: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    w, r, *rest = _split_weights(op, weights)
    w, r, *b = _ordered(op, [w, r, *rest[:1]], axis=0)
    input_forget = op.flag("input_forget", False)
    if not input_forget and not _has_peepholes(op, len(op.inputs) - len(rest) + 1):
        return tf_ti.lstm_cell(x, hidden, cell, w, r, *b, **_options(op, "lstm"))
    return _lstm_step(op, [x, hidden, cell], [w, r, *b], rest[1:], input_forget)


def _lstm_step(
    op: Operation,
    inputs: Sequence[tf.Tensor],
    weights: Sequence[tf.Tensor],
    peepholes: Sequence[tf.Tensor],
    input_forget: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """One LSTM step with peepholes or an input gate of 1 - f, which `tf_ti.lstm_cell` lacks."""
    x, hidden, cell = inputs
    w, r, *b = weights
    options = _options(op, "lstm")
    names, clip = options["activations"], options["clip"]
    if len(names) != 3 or not set(names) <= set(_PLAIN):
        raise op.error(f"activations={names} are not three of {', '.join(_PLAIN)}")
    f, g, h = (_PLAIN[name] for name in names)

    def clipped(gate: tf.Tensor) -> tf.Tensor:
        return gate if clip is None else tf.clip_by_value(gate, -clip, clip)

    gates = tf.matmul(x, w, transpose_b=True) + tf.matmul(hidden, r, transpose_b=True)
    gates = gates + b[0] if b else gates
    forget, update, candidate, output = tf.split(gates, 4, -1)
    holes = tf.split(peepholes[0], 3) if peepholes else [None] * 3

    def seen(gate: tf.Tensor, cell: tf.Tensor, hole: tf.Tensor | None) -> tf.Tensor:
        return f(clipped(gate if hole is None else gate + hole * cell))

    forget = seen(forget, cell, holes[0])
    update = 1 - forget if input_forget else seen(update, cell, holes[1])
    cell = forget * cell + update * g(clipped(candidate))
    return seen(output, cell, holes[2]) * h(cell), cell


@register("LSTMCell", "opset4")
def _lstm_cell(
    op: Operation, x: tf.Tensor, hidden: tf.Tensor, cell: tf.Tensor, *weights: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    return tf_ti.lstm_cell(x, hidden, cell, *_split_weights(op, weights), **_options(op, "lstm"))


@register("GRUCell", ["opset1", "opset3"])
def _gru_cell(op: Operation, x: tf.Tensor, hidden: tf.Tensor, *weights: tf.Tensor) -> tf.Tensor:
    return tf_ti.gru_cell(x, hidden, *_split_weights(op, weights), **_options(op, "gru"))


@register("RNNCell", ["opset1", "opset3"])
def _rnn_cell(op: Operation, x: tf.Tensor, hidden: tf.Tensor, *weights: tf.Tensor) -> tf.Tensor:
    return tf_ti.rnn_cell(x, hidden, *_split_weights(op, weights), **_options(op, "rnn"))


def _sequence_options(op: Operation, kind: str) -> dict[str, Any]:
    return {**_options(op, kind), "direction": op.text("direction").lower()}


def _lengths(op: Operation, position: int) -> tf.Tensor | None:
    """The lengths of sequences; None where each sequence has all steps.

    OpenVINO gives ONNX's sequences without lengths the number of steps as their lengths.
    """
    return None if op.repeats_extent(position, 0, 1) else op.inputs[position]


def _zeros_without_steps(
    op: Operation, position: int, outputs: tuple[tf.Tensor, ...]
) -> tuple[tf.Tensor, ...]:
    """The last states of sequences of no steps are zeros in OpenVINO, the first ones in tf_ti."""
    known, lengths = op.known(position), _lengths(op, position)
    if known is not None and np.all(known > 0):
        return outputs
    y, *states = outputs
    if lengths is not None:
        has_steps = lengths[:, tf.newaxis, tf.newaxis] > 0
    elif op.inputs[0].shape[1] is None:
        has_steps = tf.shape(op.inputs[0])[1] > 0
    else:
        return outputs if op.inputs[0].shape[1] else (y, *map(tf.zeros_like, states))
    return (y, *(tf.where(has_steps, state, tf.zeros([], state.dtype)) for state in states))


@register("LSTMSequence", "opset1")
def _lstm_sequence_1(
    op: Operation,
    x: tf.Tensor,
    hidden: tf.Tensor,
    cell: tf.Tensor,
    lengths: tf.Tensor,
    w: tf.Tensor,
    r: tf.Tensor,
    b: tf.Tensor,
    peepholes: tf.Tensor | None = None,
) -> tuple[tf.Tensor, ...]:
    if op.flag("input_forget", False):
        raise op.error("input_forget=true is not supported")
    if _has_peepholes(op, 7):
        raise op.error("peepholes are not supported")
    w, r, b = _ordered(op, [w, r, b], axis=1)
    return _lstm_sequence(op, x, hidden, cell, lengths, w, r, b)


@register("LSTMSequence", "opset5")
def _lstm_sequence(
    op: Operation,
    x: tf.Tensor,
    hidden: tf.Tensor,
    cell: tf.Tensor,
    lengths: tf.Tensor,
    w: tf.Tensor,
    r: tf.Tensor,
    b: tf.Tensor,
) -> tuple[tf.Tensor, ...]:
    options = _sequence_options(op, "lstm")
    given = _lengths(op, 3)
    outputs = tf_ti.lstm_sequence(x, hidden, cell, given, w, r, b, **options)
    return _zeros_without_steps(op, 3, outputs)


@register("GRUSequence", "opset5")
def _gru_sequence(
    op: Operation,
    x: tf.Tensor,
    hidden: tf.Tensor,
    lengths: tf.Tensor,
    w: tf.Tensor,
    r: tf.Tensor,
    b: tf.Tensor,
) -> tuple[tf.Tensor, ...]:
    given, options = _lengths(op, 2), _sequence_options(op, "gru")
    outputs = tf_ti.gru_sequence(x, hidden, given, w, r, b, **options)
    return _zeros_without_steps(op, 2, outputs)


@register("RNNSequence", "opset5")
def _rnn_sequence(
    op: Operation,
    x: tf.Tensor,
    hidden: tf.Tensor,
    lengths: tf.Tensor,
    w: tf.Tensor,
    r: tf.Tensor,
    b: tf.Tensor,
) -> tuple[tf.Tensor, ...]:
    given, options = _lengths(op, 2), _sequence_options(op, "rnn")
    outputs = tf_ti.rnn_sequence(x, hidden, given, w, r, b, **options)
    return _zeros_without_steps(op, 2, outputs)
