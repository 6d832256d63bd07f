"""Recurrent cells and sequences, on tf_ti's own."""

import numpy as np
import tensorflow as tf

import tf_ti
from tf_ti.openvino.operation import Operation, register

_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_ACTIVATIONS = {
    "lstm": ["sigmoid", "tanh", "tanh"],
    "gru": ["sigmoid", "tanh"],
    "rnn": ["tanh"],
}


def _options(op: Operation, kind: str) -> dict:
    names = op.text("activations", "")
    activations = [name.strip().lower() for name in names.split(",") if name.strip()]
    options = {
        "hidden_size": op.integer("hidden_size"),
        "activations": activations or _ACTIVATIONS[kind],
        "activations_alpha": op.numbers("activations_alpha", []),
        "activations_beta": op.numbers("activations_beta", []),
        "clip": op.number("clip", 0.0) or None,
    }
    if kind == "gru":
        options["linear_before_reset"] = op.flag("linear_before_reset", False)
    return options


def _split_weights(op: Operation, kind: str, rest: list) -> list:
    """w, r and b; the older form of the cells has w and r in one matrix."""
    hidden = op.integer("hidden_size")
    if rest[0].shape.rank == 2 and (len(rest) < 2 or rest[1].shape.rank == 1):
        both, *rest = rest
        return [both[:, :-hidden], both[:, -hidden:], *rest]
    return rest


@register("LSTMCell", ["opset1", "opset4"])
def _lstm_cell(op, x, hidden, cell, *weights):
    w, r, *b = _split_weights(op, "lstm", list(weights))
    if op.flag("input_forget", False):
        raise op.error("input_forget=true is not supported")
    order = op.text("weights_format", "fico").lower()
    if sorted(order) != sorted("fico"):
        raise op.error(f"weights_format={order!r} does not order the gates f, i, c and o")
    if len(b) > 1:
        peepholes = op.known(6)
        if peepholes is None or np.any(peepholes):
            raise op.error("peepholes are not supported")
        b = b[:1]
    if order != "fico":
        w, r, *b = (_reorder(value, order) for value in (w, r, *b))
    return tf_ti.lstm_cell(x, hidden, cell, w, r, *b, **_options(op, "lstm"))


def _reorder(value: tf.Tensor, order: str) -> tf.Tensor:
    parts = dict(zip(order, tf.split(value, 4)))
    return tf.concat([parts[gate] for gate in "fico"], 0)


@register("GRUCell", ["opset1", "opset3"])
def _gru_cell(op, x, hidden, *weights):
    w, r, *b = _split_weights(op, "gru", list(weights))
    return tf_ti.gru_cell(x, hidden, w, r, *b, **_options(op, "gru"))


@register("RNNCell", ["opset1", "opset3"])
def _rnn_cell(op, x, hidden, *weights):
    w, r, *b = _split_weights(op, "rnn", list(weights))
    return tf_ti.rnn_cell(x, hidden, w, r, *b, **_options(op, "rnn"))


def _sequence_options(op: Operation, kind: str) -> dict:
    direction = op.text("direction").lower()
    return {**_options(op, kind), "direction": direction}


@register("LSTMSequence", ["opset1", "opset5"])
def _lstm_sequence(op, x, hidden, cell, lengths, w, r, b):
    return tf_ti.lstm_sequence(x, hidden, cell, lengths, w, r, b, **_sequence_options(op, "lstm"))


@register("GRUSequence", "opset5")
def _gru_sequence(op, x, hidden, lengths, w, r, b):
    return tf_ti.gru_sequence(x, hidden, lengths, w, r, b, **_sequence_options(op, "gru"))


@register("RNNSequence", "opset5")
def _rnn_sequence(op, x, hidden, lengths, w, r, b):
    return tf_ti.rnn_sequence(x, hidden, lengths, w, r, b, **_sequence_options(op, "rnn"))
