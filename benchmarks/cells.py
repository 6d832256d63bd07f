"""Recurrent cells in plain operations, and the loops of tf_ti and of TensorFlow that run them.

A cell gets a piece of the input, [batch, input], and its states, the hidden one first, and returns
its new states. A loop `on_*` gets a cell, x [time, batch, input] and the initial states, and
returns the last states and all hidden ones, [time, batch, hidden].
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

import tf_ti
from benchmarks.recurrent_peers import Layer

State = tuple[tf.Tensor, ...]


class LstmCell(tf.Module):
    """An LSTM's step in plain ops: concat, matmul, bias add, split, 3 sigmoid, 2 tanh, 4 more."""

    def __init__(self, layer: Layer):
        super().__init__()
        self.kernel = tf.Variable(np.concatenate([layer.w, layer.r]))
        self.bias = tf.Variable(layer.b)
        self.weights = [self.kernel, self.bias]

    def __call__(self, x: tf.Tensor, h: tf.Tensor, c: tf.Tensor) -> State:
        gates = tf.nn.bias_add(tf.concat([x, h], axis=1) @ self.kernel, self.bias)
        i, f, g, o = tf.split(gates, 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        return tf.sigmoid(o) * tf.tanh(c), c


class GruCell(tf.Module):
    """A GRU's step in plain ops, the candidate linear before the reset: 2 matmul, 2 bias add."""

    def __init__(self, layer: Layer):
        super().__init__()
        self.w, self.r = tf.Variable(layer.w), tf.Variable(layer.r)
        self.input_bias = tf.Variable(layer.input_bias)
        self.recurrent_bias = tf.Variable(layer.recurrent_bias)
        self.weights = [self.w, self.r, self.input_bias, self.recurrent_bias]

    def __call__(self, x: tf.Tensor, h: tf.Tensor) -> State:
        xz, xr, xh = tf.split(tf.nn.bias_add(x @ self.w, self.input_bias), 3, axis=1)
        hz, hr, hh = tf.split(tf.nn.bias_add(h @ self.r, self.recurrent_bias), 3, axis=1)
        z, reset = tf.sigmoid(xz + hz), tf.sigmoid(xr + hr)
        return ((1 - z) * tf.tanh(xh + reset * hh) + z * h,)


class LayerNormalisedLstmCell(tf.Module):
    """An LSTM whose two products and whose cell state are normalised, each over its width."""

    def __init__(self, layer: Layer):
        super().__init__()
        self.w, self.r, self.b = (tf.Variable(array) for array in (layer.w, layer.r, layer.b))

    def __call__(self, x: tf.Tensor, h: tf.Tensor, c: tf.Tensor) -> State:
        gates = tf.nn.bias_add(_normalize(x @ self.w) + _normalize(h @ self.r), self.b)
        i, f, g, o = tf.split(gates, 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        return tf.sigmoid(o) * tf.tanh(_normalize(c)), c


def _normalize(a: tf.Tensor) -> tf.Tensor:
    a -= tf.reduce_mean(a, axis=1, keepdims=True)
    return a * tf.math.rsqrt(tf.reduce_mean(a * a, axis=1, keepdims=True) + 1e-5)


class MinimalGatedUnit(tf.Module):
    """The minimal gated unit of Zhou and others, 2016: one gate, which forgets and resets."""

    def __init__(self, layer: Layer):
        super().__init__()
        (wf, wh), (rf, rh) = np.split(layer.w, 2, axis=1), np.split(layer.r, 2, axis=1)
        self.gate = tf.Variable(np.concatenate([wf, rf]))
        self.candidate = tf.Variable(np.concatenate([wh, rh]))
        self.gate_bias, self.candidate_bias = map(tf.Variable, np.split(layer.b, 2))

    def __call__(self, x: tf.Tensor, h: tf.Tensor) -> State:
        gate = tf.nn.bias_add(tf.concat([x, h], axis=1) @ self.gate, self.gate_bias)
        f = tf.sigmoid(gate)
        candidate = tf.concat([x, f * h], axis=1) @ self.candidate
        candidate = tf.tanh(tf.nn.bias_add(candidate, self.candidate_bias))
        return ((1 - f) * h + f * candidate,)


class MinimalGatedCell(tf.keras.layers.Layer):
    """The same as a cell of Keras."""

    def __init__(self, layer: Layer):
        super().__init__()
        self._unit = MinimalGatedUnit(layer)
        self.state_size = layer.hidden

    def call(self, x: tf.Tensor, states: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        (h,) = self._unit(x, *states)
        return h, [h]


class KerasCell:
    """Keras's own LSTMCell or GRUCell."""

    def __init__(self, layer: Layer):
        make = {"lstm": tf.keras.layers.LSTMCell, "gru": tf.keras.layers.GRUCell}[layer.kind]
        self._cell = make(layer.hidden)
        self._cell.build([layer.x.shape[1], layer.x.shape[2]])
        self._cell.set_weights(_keras_weights(layer))

    def __call__(self, x: tf.Tensor, *state: tf.Tensor) -> State:
        return tuple(self._cell(x, list(state))[1])


def make_keras_layer(layer: Layer) -> tf.keras.layers.Layer:
    """Keras's own LSTM or GRU, which returns its outputs and its last states."""
    make = {"lstm": tf.keras.layers.LSTM, "gru": tf.keras.layers.GRU}[layer.kind]
    time, batch, inputs = layer.x.shape
    made = make(layer.hidden, return_sequences=True, return_state=True)
    made.build([batch, time, inputs])
    made.set_weights(_keras_weights(layer))
    return made


def _keras_weights(layer: Layer) -> list[np.ndarray]:
    if layer.kind == "lstm":
        return [layer.w, layer.r, layer.b]
    return [layer.w, layer.r, np.stack([layer.input_bias, layer.recurrent_bias])]


CELLS = {
    "lstm": LstmCell,
    "gru": GruCell,
    "layer-normalised lstm": LayerNormalisedLstmCell,
    "mgu": MinimalGatedUnit,
}

# --- loops ---------------------------------------------------------------------------------------

Cell = Callable[..., State]


def on_tensor_iterator(
    cell: Cell, x: tf.Tensor, state: State, fuse: bool = True
) -> tuple[State, tf.Tensor]:
    time, batch, inputs = x.shape
    count = len(state)

    def body(x, *state):
        state = cell(x, *state)
        return *state, state[0]

    # Pieces of `batch` rows need no change of shape.
    *state, y = tf_ti.tensor_iterator(
        body,
        [tf.reshape(x, [time * batch, inputs]), *state],
        tf_ti.PortMap(
            inputs=[
                tf_ti.InputPort(0, 0, axis=0, stride=batch),
                *(tf_ti.InputPort(k, k) for k in range(1, count + 1)),
            ],
            outputs=[
                *(tf_ti.OutputPort(k, k) for k in range(count)),
                tf_ti.OutputPort(count, count, axis=0),
            ],
        ),
        [tf_ti.BackEdge(k, k + 1) for k in range(count)],
        fuse=fuse,
    )
    return tuple(state), tf.reshape(y, [time, batch, state[0].shape[1]])


def on_scan(cell: Cell, x: tf.Tensor, state: State) -> tuple[State, tf.Tensor]:
    def step(state, x):
        state = cell(x, *state)
        return state, state[0]

    return tf_ti.scan(step, state, x)


def on_loop(
    cell: Cell, x: tf.Tensor, state: State, limit: tf_ti.TripLimit = tf_ti.TripLimit.COUNT
) -> tuple[State, tf.Tensor]:
    time = x.shape[0]
    with tf_ti.Loop() as loop:
        if limit is tf_ti.TripLimit.COUNT:
            loop.add_trip_limit(time, limit)
        else:
            k = loop.add_recurrence(0)
            k.next = k + 1
            loop.add_trip_limit(k < time, limit)
        states = [loop.add_recurrence(initial) for initial in state]
        for each, new in zip(states, cell(loop.add_iterator(x), *states)):
            each.next = new
        last = [loop.add_loop_output(each, tf_ti.LoopOutput.LAST_VALUE) for each in states]
        y = loop.add_loop_output(states[0].next, tf_ti.LoopOutput.CONCATENATE)
    return tuple(each.tensor for each in last), y.tensor


on_loop_with_condition = functools.partial(on_loop, limit=tf_ti.TripLimit.WHILE)


def on_while_loop(cell: Cell, x: tf.Tensor, state: State) -> tuple[State, tf.Tensor]:
    time = x.shape[0]
    pieces = tf.TensorArray(x.dtype, time).unstack(x)
    ys = tf.TensorArray(x.dtype, time, element_shape=state[0].shape)

    def body(k, ys, *state):
        state = cell(pieces.read(k), *state)
        return k + 1, ys.write(k, state[0]), *state

    _, ys, *state = tf.while_loop(
        lambda k, *_: k < time, body, (0, ys, *state), maximum_iterations=time
    )
    return tuple(state), ys.stack()


def on_tf_scan(cell: Cell, x: tf.Tensor, state: State) -> tuple[State, tf.Tensor]:
    states = tf.scan(lambda state, x: cell(x, *state), x, state)
    return tuple(each[-1] for each in states), states[0]


def run_in_a_row(run: Callable, xs: Sequence[tf.Tensor], state: State) -> tuple[State, list]:
    """Runs over each of xs, from the state that the last one left. Returns that and all outputs.

    The xs are tensors of their own, even where they are equal. Otherwise values that depend on them
    alone, such as their product with the weights, would be computed once for all runs.
    """
    outputs = []
    for x in xs:
        state, y = run(x, state)
        outputs.append(y)
    return state, outputs


def graph_of(function: Callable, x: tf.Tensor, runs: int, jit_compile: bool) -> Callable:
    """One graph that computes function(xs), for so many tensors like x.

    It captures them: as an argument, each one would cost a call tens of microseconds.
    """
    xs = [tf.identity(x) for _ in range(runs)]

    @functools.partial(tf.function, jit_compile=jit_compile, autograph=False)
    def graph():
        return function([tf.identity(x) for x in xs])

    return graph
