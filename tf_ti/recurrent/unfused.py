"""Recurrent cells and sequences in TensorFlow's own operations: their meaning, step by step."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.passes.step import Fuse
from tf_ti.loops.scan import scan
from tf_ti.recurrent import arguments as _arguments
from tf_ti.recurrent.spec import Activation, CellSpec, Limits

_HALVES = (tf.float16, tf.bfloat16)


def run(
    spec: CellSpec,
    x: tf.Tensor,
    states: Sequence[tf.Tensor],
    w: tf.Tensor | None,
    r: tf.Tensor,
    b: tf.Tensor | None,
    lengths: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
    checkpoint_every: int | None = None,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Runs the steps of one direction.

    Args:
        spec: the cell, and how it runs.
        x: [batch, time, input], or [time, batch, input] if the spec is time_major.
        states: the hidden state, [batch, hidden]; for an LSTM also the cell state.
        w, r: [gates * hidden, input] and [gates * hidden, hidden], or transposed unless the spec
            says transpose_weights. If w is None, x is the product with it already.
        b: [num_biases * hidden], or None for zeros.
        lengths: the number of steps of each element of the batch, int64 [batch]; None for all.
        mask: the steps that exist, a bool each, in the layout of x; not with lengths.
        checkpoint_every: as in `tf_ti.scan`.

    Returns:
        The outputs, in the layout of x, and the last states.
    """
    dtype, time_axis = x.dtype, 0 if spec.time_major else 1
    x, r, *states = map(_widen, [x, r, *states])
    w, b = (None if tensor is None else _widen(tensor) for tensor in (w, b))
    if lengths is not None:
        mask = _mask(lengths, x, time_axis)
    if mask is not None:  # steps left out are not read: a NaN in them would reach gradients
        x = tf.where(mask[..., tf.newaxis], x, tf.zeros([], x.dtype))
    cell = Cell(spec, w, r, b)
    elements, carry = {"projected": cell.project(x)}, {"states": states}
    if mask is not None:
        elements["valid"] = mask
        if spec.hold_output:
            carry["y"] = tf.zeros_like(states[0])

    @_tf.do_not_convert
    def step(
        carry: dict[str, Any], element: dict[str, tf.Tensor]
    ) -> tuple[dict[str, Any], tf.Tensor]:
        old, new = carry["states"], cell.step(element["projected"], carry["states"])
        y = new[0]
        if mask is None:
            return {"states": new}, y
        valid = element["valid"][:, tf.newaxis]
        y = tf.where(valid, y, carry.get("y", tf.zeros([], y.dtype)))
        carry = carry | {"states": [tf.where(valid, n, o) for n, o in zip(new, old)]}
        return carry | ({"y": y} if "y" in carry else {}), y

    carry, y = scan(
        step,
        carry,
        elements,
        axis=time_axis,
        reverse=spec.reverse,
        checkpoint_every=checkpoint_every,
        # The product with x has left the loop already.
        fuse=Fuse.PROGRAMS,  # type: ignore[arg-type]  # users have a bool
    )
    if not y.shape.is_fully_defined():  # without steps the extents of results are 0
        y = tf.reshape(y, tf.concat([tf.shape(x)[:2], tf.shape(states[0])[1:]], 0))
    return tf.cast(y, dtype), [tf.cast(state, dtype) for state in carry["states"]]


def step(
    spec: CellSpec,
    x: tf.Tensor,
    states: Sequence[tf.Tensor],
    w: tf.Tensor,
    r: tf.Tensor,
    b: tf.Tensor | None,
) -> list[tf.Tensor]:
    """Runs one step on x, [batch, input], and returns the new states; the rest is as in `run`."""
    dtype = x.dtype
    x, r, *states = map(_widen, [x, r, *states])
    w, b = (None if tensor is None else _widen(tensor) for tensor in (w, b))
    cell = Cell(spec, w, r, b)
    return [tf.cast(state, dtype) for state in cell.step(cell.project(x), states)]


class Cell:
    """A cell and its weights."""

    def __init__(self, spec: CellSpec, w: tf.Tensor | None, r: tf.Tensor, b: tf.Tensor | None):
        if not spec.transpose_weights:
            w, r = None if w is None else tf.transpose(w), tf.transpose(r)
        self._spec, self._w, self._r = spec, w, r
        self._b, self._recurrent_b = b, None
        if spec.linear_before_reset and b is not None:
            *parts, self._recurrent_b = tf.split(b, spec.num_biases)
            self._b = tf.concat(parts, 0)
        if spec.kind == "gru" and not spec.linear_before_reset:
            self._r_of = self._by_gate(r, 0)

    def project(self, x: tf.Tensor) -> tf.Tensor:
        """The inputs' share of the gates, for any number of steps."""
        if self._w is None:
            projected = x
        elif x.shape.rank == 2:
            projected = tf.matmul(x, self._w, transpose_b=True)
        else:
            projected = tf.tensordot(x, self._w, [[-1], [1]])
        return projected if self._b is None else projected + self._b

    def step(self, projected: tf.Tensor, states: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        new = getattr(self, f"_{self._spec.kind}")(projected, *states)
        for state, old in zip(new, states):
            state.set_shape(old.shape)
        return new

    def _lstm(self, projected: tf.Tensor, h: tf.Tensor, c: tf.Tensor) -> list[tf.Tensor]:
        f, g, activate = self._spec.activations
        gates = self._by_gate(self._clip(projected + self._recur(h, self._r)))
        c = _apply(f, gates["f"]) * c + _apply(f, gates["i"]) * _apply(g, gates["c"])
        return [_apply(f, gates["o"]) * _apply(activate, c), c]

    def _gru(self, projected: tf.Tensor, h: tf.Tensor) -> list[tf.Tensor]:
        f, g = self._spec.activations
        gates = self._by_gate(projected)
        if self._spec.linear_before_reset:
            recurrent = self._by_gate(self._recur(h, self._r))
            if self._recurrent_b is not None:
                recurrent["h"] += self._recurrent_b
        else:
            recurrent = {gate: self._recur(h, self._r_of[gate]) for gate in "zr"}
        z, r = (_apply(f, self._clip(gates[gate] + recurrent[gate])) for gate in "zr")
        if self._spec.linear_before_reset:
            candidate = r * recurrent["h"]
        else:
            candidate = self._recur(r * h, self._r_of["h"])
        return [(1 - z) * _apply(g, self._clip(gates["h"] + candidate)) + z * h]

    def _rnn(self, projected: tf.Tensor, h: tf.Tensor) -> list[tf.Tensor]:
        (f,) = self._spec.activations
        return [_apply(f, self._clip(projected + self._recur(h, self._r)))]

    def _recur(self, h: tf.Tensor, r: tf.Tensor) -> tf.Tensor:
        return tf.matmul(h, r, transpose_b=True)

    def _by_gate(self, value: tf.Tensor, axis: int = -1) -> dict[str, tf.Tensor]:
        gates = self._spec.gates
        return dict(zip(gates, tf.split(value, len(gates), axis)))

    def _clip(self, value: tf.Tensor) -> tf.Tensor:
        clip = self._spec.clip
        return value if clip is None else tf.clip_by_value(value, -clip, clip)


def _limited(x: tf.Tensor, activation: Activation) -> tf.Tensor:
    """Limits x to at least 0, and for a hard sigmoid to at most 1."""
    is_relu, limits = activation.name == "relu", activation.limits
    if not limits:
        return tf.nn.relu(x) if is_relu else tf.nn.relu6(6 * x) / 6
    is_between = x >= 0 if Limits.PASSES_LOW in limits else x > 0
    if not is_relu:
        is_between &= x <= 1 if Limits.PASSES_HIGH in limits else x < 1
    if Limits.PASSES_NAN in limits:
        is_between |= tf.math.is_nan(x)
    limited = tf.clip_by_value(x, 0, math.inf if is_relu else 1)
    return tf.where(is_between, x, tf.stop_gradient(limited))


_FUNCTIONS: dict[str, Callable[[tf.Tensor, Activation], tf.Tensor]] = {
    "affine": lambda x, f: f.alpha * x + f.beta,
    "elu": lambda x, f: tf.where(x >= 0, x, f.alpha * tf.nn.elu(x)),
    "hard_sigmoid": lambda x, f: _limited(f.alpha * x + f.beta, f),
    "leaky_relu": lambda x, f: tf.where(x > 0, x, f.alpha * x),
    "relu": _limited,
    "scaled_tanh": lambda x, f: f.alpha * tf.tanh(f.beta * x),
    "sigmoid": lambda x, f: tf.sigmoid(x),
    "softplus": lambda x, f: tf.nn.softplus(x),
    "softsign": lambda x, f: tf.nn.softsign(x),
    "tanh": lambda x, f: tf.tanh(x),
    "thresholded_relu": lambda x, f: tf.where(x >= f.alpha, x, tf.zeros([], x.dtype)),
}


def _apply(activation: Activation, x: tf.Tensor) -> tf.Tensor:
    return _FUNCTIONS[activation.name](x, activation)


def _widen(tensor: tf.Tensor) -> tf.Tensor:
    """Returns half precisions as float32, in which they are computed."""
    return tf.cast(tensor, tf.float32) if tensor.dtype in _HALVES else tensor


def _mask(lengths: tf.Tensor, x: tf.Tensor, time_axis: int) -> tf.Tensor:
    """The steps that exist, in the layout of x."""
    time = tf.cast(tf.shape(x)[time_axis], tf.int64)
    wrong = tf.where((lengths < 0) | (lengths > time))[:1, 0]  # the first; one or none
    checks = _arguments.require(
        tf.equal(tf.size(wrong), 0),
        "sequence_lengths must be from 0 to the number of steps,",
        time,
        ", got",
        tf.reduce_sum(tf.gather(lengths, wrong)),
        "at position",
        tf.reduce_sum(wrong),
    )
    with tf.control_dependencies(checks):
        mask = tf.sequence_mask(lengths, time)
    return mask if time_axis == 1 else tf.transpose(mask)
