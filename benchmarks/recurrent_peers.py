"""Recurrent layers by definition, and in other libraries, each where it is installed.

Every `make_*` function gets a layer and the number of threads, and returns a case: a callable
without arguments that runs the layer once and returns its last hidden state. Those of
`TRAINING_PEERS` return gradients, see there. ImportError means that the library is missing, and
NotImplementedError that it has no such layer.
"""

import dataclasses
import types
from collections.abc import Callable

import numpy as np

# The gates of a cell, in the order of this file's weights.
GATES = {"lstm": "ifco", "gru": "zrh", "layer-normalised lstm": "ifco", "mgu": "fh"}
NUM_STATES = {"lstm": 2, "gru": 1, "layer-normalised lstm": 2, "mgu": 1}


@dataclasses.dataclass(frozen=True)
class Layer:
    """A recurrent layer, its input and its initial states.

    Attributes:
        kind: one of `GATES`.
        x: [time, batch, input].
        w, r: [input, gates * hidden] and [hidden, gates * hidden].
        b: [gates * hidden]; of a GRU, which is linear before its reset, [4 * hidden]: after the
            gates' the bias of the candidate's recurrent product.
        states: the hidden state, [batch, hidden], and, of an LSTM, the cell state.
    """

    kind: str
    x: np.ndarray
    w: np.ndarray
    r: np.ndarray
    b: np.ndarray
    states: tuple[np.ndarray, ...]

    @classmethod
    def random(cls, kind: str, time: int, batch: int, inputs: int, hidden: int) -> "Layer":
        generator = np.random.default_rng(0)

        def draw(*shape, scale=1.0):
            return (scale * generator.standard_normal(shape)).astype(np.float32)

        gates = len(GATES[kind])
        return cls(
            kind,
            draw(time, batch, inputs),
            draw(inputs, gates * hidden, scale=inputs**-0.5),
            draw(hidden, gates * hidden, scale=hidden**-0.5),
            draw((gates + (kind == "gru")) * hidden),
            tuple(draw(batch, hidden) for _ in range(NUM_STATES[kind])),
        )

    @property
    def hidden(self) -> int:
        return self.states[0].shape[1]

    @property
    def input_bias(self) -> np.ndarray:
        """[gates * hidden]: the bias of the input's product."""
        return self.b[: len(GATES[self.kind]) * self.hidden]

    @property
    def recurrent_bias(self) -> np.ndarray:
        """[gates * hidden]: the bias of the hidden state's product."""
        bias = np.zeros_like(self.input_bias)
        if self.kind == "gru":
            bias[2 * self.hidden :] = self.b[3 * self.hidden :]
        return bias

    def join_biases(self, input_bias: np.ndarray, recurrent_bias: np.ndarray) -> np.ndarray:
        """`b` from the two biases, or its gradient from theirs."""
        if self.kind != "gru":
            return input_bias
        return np.concatenate([input_bias, recurrent_bias[2 * self.hidden :]])

    def gates(self, array: np.ndarray, order: str) -> np.ndarray:
        """The same weights with the gates, along the last axis, in another order."""
        return reorder(array, GATES[self.kind], order)

    def last_hidden(self, runs: int = 1) -> np.ndarray:
        """The expected state, by definition; each run starts with the last one's state."""
        states = self.states
        for x in [*self.x] * runs:
            states = STEPS[self.kind](NUMPY, self.w, self.r, self.b, x, *states)
        return states[0]


def reorder(array: np.ndarray, given: str, wanted: str) -> np.ndarray:
    """Puts the gates, which lie along the last axis, into another order."""
    parts = dict(zip(given, np.split(array, len(given), axis=-1)))
    return np.concatenate([parts[gate] for gate in wanted], axis=-1)


# --- cells by definition, for NumPy and libraries like it ----------------------------------------

NUMPY = types.SimpleNamespace(
    split=np.split,
    sigmoid=lambda a: 1 / (1 + np.exp(-a)),
    sqrt=np.sqrt,
    tanh=np.tanh,
)


def _lstm(ops, w, r, b, x, h, c):
    return _lstm_states(ops, x @ w + h @ r + b, c)


def _lstm_states(ops, gates, c, normalize=lambda c: c):
    i, f, g, o = ops.split(gates, 4, axis=1)
    c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
    return ops.sigmoid(o) * ops.tanh(normalize(c)), c


def _layer_normalised_lstm(ops, w, r, b, x, h, c):
    def normalize(a):
        a = a - a.mean(axis=1, keepdims=True)
        return a / ops.sqrt((a * a).mean(axis=1, keepdims=True) + 1e-5)

    return _lstm_states(ops, normalize(x @ w) + normalize(h @ r) + b, c, normalize)


def _gru(ops, w, r, b, x, h):
    hidden = h.shape[1]
    xz, xr, xh = ops.split(x @ w + b[: 3 * hidden], 3, axis=1)
    hz, hr, hh = ops.split(h @ r, 3, axis=1)
    z, reset = ops.sigmoid(xz + hz), ops.sigmoid(xr + hr)
    return ((1 - z) * ops.tanh(xh + reset * (hh + b[3 * hidden :])) + z * h,)


def _mgu(ops, w, r, b, x, h):
    """The minimal gated unit of Zhou and others, 2016."""
    (xf, xh), (rf, rh) = ops.split(x @ w + b, 2, axis=1), ops.split(r, 2, axis=1)
    f = ops.sigmoid(xf + h @ rf)
    return ((1 - f) * h + f * ops.tanh(xh + (f * h) @ rh),)


STEPS = {"lstm": _lstm, "gru": _gru, "layer-normalised lstm": _layer_normalised_lstm, "mgu": _mgu}


# --- forward -------------------------------------------------------------------------------------

Case = Callable[[], np.ndarray]


def make_onnxruntime(layer: Layer, threads: int) -> Case:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        _onnx_model(layer), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(["y", "y_h"], {"x": layer.x})[1][0]


def make_torch(layer: Layer, threads: int) -> Case:
    import torch

    module, x, states = _torch_module(layer, threads)

    def run():
        with torch.inference_mode():
            last = module(x, states)[1]
            return (last[0] if layer.kind == "lstm" else last)[0].numpy()

    return run


_TORCH_ORDERS = {"lstm": "ifco", "gru": "rzh"}


def _torch_module(layer: Layer, threads: int):
    import torch

    torch.set_num_threads(threads)
    order = _TORCH_ORDERS[layer.kind]
    make = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[layer.kind]
    module = make(layer.x.shape[2], layer.hidden)
    weights = (layer.w.T, layer.r.T, layer.input_bias, layer.recurrent_bias)
    with torch.no_grad():
        for parameter, array in zip(module.parameters(), weights):
            array = layer.gates(array.T, order).T
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(array)))
    states = tuple(torch.from_numpy(state[None]) for state in layer.states)
    return module, torch.from_numpy(layer.x), states if layer.kind == "lstm" else states[0]


def make_jax(layer: Layer, threads: int) -> Case:
    del threads  # XLA takes one for each CPU that the process may use.
    import jax

    function = jax.jit(_jax_scan(layer.kind))
    arguments = jax.device_put((layer.x, layer.w, layer.r, layer.b, layer.states))

    def run():
        ys, states = function(*arguments)
        ys.block_until_ready()
        return np.asarray(states[0])

    return run


def _jax_scan(kind: str) -> Callable:
    import jax
    import jax.numpy as jnp

    ops = types.SimpleNamespace(
        split=jnp.split,
        sigmoid=jax.nn.sigmoid,
        sqrt=jnp.sqrt,
        tanh=jnp.tanh,
    )

    def scan(x, w, r, b, states):
        def step(states, x):
            states = STEPS[kind](ops, w, r, b, x, *states)
            return states, states[0]

        states, ys = jax.lax.scan(step, states, x)
        return ys, states

    return scan


def _openvino_weights(layer: Layer) -> tuple[np.ndarray, ...]:
    order = {"lstm": "fico", "gru": "zrh"}[layer.kind]
    w, r = (np.ascontiguousarray(layer.gates(a, order).T) for a in (layer.w, layer.r))
    return w, r, layer.gates(layer.b, order) if layer.kind == "lstm" else layer.b


def make_openvino_sequence(layer: Layer, threads: int) -> Case:
    """OpenVINO's LSTMSequence or GRUSequence."""
    from openvino import opset5

    time, batch, inputs = layer.x.shape
    x = opset5.parameter([batch, time, inputs], np.float32)
    states = [state[:, None] for state in layer.states]
    lengths = np.full([batch], time, np.int32)
    weights = [array[None] for array in _openvino_weights(layer)]
    if layer.kind == "lstm":
        sequence = opset5.lstm_sequence(x, *states, lengths, *weights, layer.hidden, "forward")
    else:
        sequence = opset5.gru_sequence(
            x, *states, lengths, *weights, layer.hidden, "forward", linear_before_reset=True
        )
    results = [opset5.result(sequence.output(k)) for k in (0, 1)]
    run = _openvino_case(results, x, layer.x.transpose(1, 0, 2), threads)
    return lambda: run()[:, 0]


def openvino_cell(layer: Layer) -> Callable:
    """A step of OpenVINO's LSTMCell or GRUCell: x and the states to the new states."""
    from openvino import opset4

    weights = _openvino_weights(layer)

    def step(x, *states):
        if layer.kind == "lstm":
            cell = opset4.lstm_cell(x, *states, *weights, layer.hidden)
        else:
            cell = opset4.gru_cell(x, *states, *weights, layer.hidden, linear_before_reset=True)
        return [cell.output(k) for k in range(len(states))]

    return step


def openvino_plain_ops(layer: Layer) -> Callable:
    """The same of an LSTM in OpenVINO's plain operations."""
    from openvino import opset4

    if layer.kind != "lstm":
        raise NotImplementedError
    kernel = np.concatenate([layer.w, layer.r])

    def step(x, h, c):
        product = opset4.matmul(opset4.concat([x, h], axis=1), kernel, False, False)
        gates = opset4.split(opset4.add(product, layer.b[None]), axis=1, num_splits=4)
        i, f, o = (opset4.sigmoid(gates.output(k)) for k in (0, 1, 3))
        c = opset4.add(
            opset4.multiply(f, c), opset4.multiply(i, opset4.tanh(gates.output(2)))
        ).output(0)
        return opset4.multiply(o, opset4.tanh(c)).output(0), c

    return step


def make_openvino_cell(layer: Layer, threads: int) -> Case:
    """A TensorIterator around OpenVINO's LSTMCell or GRUCell."""
    return _openvino_iterator(layer, openvino_cell(layer), threads)


def make_openvino_ops(layer: Layer, threads: int) -> Case:
    """A TensorIterator around the LSTM's cell in plain operations."""
    return _openvino_iterator(layer, openvino_plain_ops(layer), threads)


def _openvino_iterator(layer: Layer, step: Callable, threads: int) -> Case:
    import openvino
    from openvino import opset4

    time, batch, inputs = layer.x.shape
    piece = opset4.parameter([1, batch, inputs], np.float32)
    states = [opset4.parameter([batch, layer.hidden], np.float32) for _ in layer.states]
    new = step(opset4.squeeze(piece, np.array([0])), *states)
    results = [opset4.result(value) for value in (*new, opset4.unsqueeze(new[0], np.array([0])))]

    x = opset4.parameter([time, batch, inputs], np.float32)
    iterator = openvino.op.tensor_iterator()
    iterator.set_body(openvino.Model(results, [piece, *states]))
    iterator.set_sliced_input(piece, x.output(0), 0, 1, 1, -1, 0)
    for parameter, initial, result in zip(states, layer.states, results):
        initial = opset4.constant(initial).output(0)
        iterator.set_merged_input(parameter, initial, result.output(0))
    y = iterator.get_concatenated_slices(results[-1].output(0), 0, 1, 1, -1, 0)
    last = iterator.get_iter_value(results[0].output(0), -1)
    return _openvino_case([opset4.result(y), opset4.result(last)], x, layer.x, threads)


def openvino_compiled(model, threads: int):
    """A model, or the path of one, compiled for the CPU in full precision."""
    import openvino

    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    return openvino.Core().compile_model(model, "CPU", options)


def _openvino_case(results: list, parameter, x: np.ndarray, threads: int) -> Case:
    """Runs a model of one parameter; returns the second of its results."""
    import openvino

    compiled = openvino_compiled(openvino.Model(results, [parameter]), threads)
    request = compiled.create_infer_request()
    request.set_input_tensor(openvino.Tensor(np.ascontiguousarray(x)))

    def run():
        request.infer()
        return request.get_output_tensor(1).data.copy()

    return run


ONNX_RUNTIME = "ONNX Runtime"
OPENVINO_SEQUENCE = "OpenVINO sequence"
OPENVINO_CELL = "OpenVINO TensorIterator, cell"
OPENVINO_OPS = "OpenVINO TensorIterator, plain ops"
TORCH = "torch"
JAX = "JAX lax.scan"
PEERS = {
    ONNX_RUNTIME: make_onnxruntime,
    OPENVINO_SEQUENCE: make_openvino_sequence,
    OPENVINO_CELL: make_openvino_cell,
    OPENVINO_OPS: make_openvino_ops,
    TORCH: make_torch,
    JAX: make_jax,
}


# --- empty calls ---------------------------------------------------------------------------------
#
# What it takes to call a library at all: each returns a case that does next to nothing.


def make_empty_onnxruntime(threads: int) -> Case:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        _identity_model(), options, providers=["CPUExecutionProvider"]
    )
    x = np.zeros([1], np.float32)
    return lambda: session.run(["y"], {"x": x})[0]


def make_empty_openvino(threads: int) -> Case:
    import openvino
    from openvino import opset4

    x = opset4.parameter([1], np.float32)
    y = opset4.result(opset4.relu(x))
    compiled = openvino_compiled(openvino.Model([y], [x]), threads)
    request = compiled.create_infer_request()
    request.set_input_tensor(openvino.Tensor(np.zeros([1], np.float32)))

    def run():
        request.infer()
        return request.get_output_tensor(0).data.copy()

    return run


def make_empty_torch(threads: int) -> Case:
    import torch

    torch.set_num_threads(threads)
    x = torch.zeros([1])

    def run():
        with torch.inference_mode():
            return torch.neg(x).numpy()

    return run


def make_empty_torch_training(threads: int) -> Case:
    import torch

    torch.set_num_threads(threads)
    x, dy = torch.zeros([1], requires_grad=True), torch.ones([1])
    return lambda: torch.autograd.grad(torch.neg(x), [x], dy)


def make_empty_jax(threads: int) -> Case:
    del threads
    import jax

    function, x = jax.jit(lambda x: -x), jax.device_put(np.zeros([1], np.float32))
    return lambda: np.asarray(function(x))


EMPTY_CALLS = {
    ONNX_RUNTIME: make_empty_onnxruntime,
    **dict.fromkeys((OPENVINO_SEQUENCE, OPENVINO_CELL, OPENVINO_OPS), make_empty_openvino),
    TORCH: make_empty_torch,
    JAX: make_empty_jax,
}
EMPTY_TRAINING_CALLS = {TORCH: make_empty_torch_training, JAX: make_empty_jax}


# --- forward + backward --------------------------------------------------------------------------

# Runs the layer once, and returns the gradients by x and by the weights in the library's own
# layout; the second one brings such gradients into the layout of a Layer: by x, w, r, b.
Training = tuple[Callable[[], list], Callable[[list], list[np.ndarray]]]


def make_torch_training(layer: Layer, dy: np.ndarray, threads: int) -> Training:
    """`dy` [time, batch, hidden] is the gradient by the outputs."""
    import torch

    module, x, states = _torch_module(layer, threads)
    x.requires_grad_()
    dy = torch.from_numpy(dy)

    def run():
        y, _ = module(x, states)
        return torch.autograd.grad(y, [x, *module.parameters()], dy)

    def to_layer(gradients):
        dx, dw, dr, *db = (gradient.numpy() for gradient in gradients)
        order = _TORCH_ORDERS[layer.kind], GATES[layer.kind]
        dw, dr, *db = (reorder(array.T, *order) for array in (dw, dr, *db))
        return [dx, dw, dr, layer.join_biases(*db)]

    return run, to_layer


def make_jax_training(layer: Layer, dy: np.ndarray, threads: int) -> Training:
    del threads
    import jax

    scan = _jax_scan(layer.kind)

    def differentiate(x, w, r, b, states, dy):
        y, pull_back = jax.vjp(lambda *weights: scan(*weights, states)[0], x, w, r, b)
        return y, pull_back(dy)

    function = jax.jit(differentiate)
    arguments = jax.device_put((layer.x, layer.w, layer.r, layer.b, layer.states, dy))
    return (
        lambda: jax.block_until_ready(function(*arguments))[1],
        lambda gradients: [np.asarray(gradient) for gradient in gradients],
    )


TRAINING_PEERS = {TORCH: make_torch_training, JAX: make_jax_training}

# --- an ONNX model without the package onnx ------------------------------------------------------
#
# A model is one protocol buffer, of which few fields are needed here: their numbers below are those
# of onnx.proto.


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    value = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


_FLOAT32 = 1


def _onnx_value(name: str, shape: tuple[int, ...]) -> bytes:
    dimensions = b"".join(_field(1, _field(1, extent)) for extent in shape)
    tensor = _field(1, _FLOAT32) + _field(2, dimensions)
    return _field(1, name) + _field(2, _field(1, tensor))


def _onnx_file(graph: bytes) -> bytes:
    return _field(1, 8) + _field(7, graph) + _field(8, _field(2, 14))


def _identity_model() -> bytes:
    node = _field(1, "x") + _field(2, "y") + _field(4, "Identity")
    graph = _field(1, node) + _field(2, "identity")
    return _onnx_file(
        graph + _field(11, _onnx_value("x", (1,))) + _field(12, _onnx_value("y", (1,)))
    )


def _onnx_model(layer: Layer) -> bytes:
    time, batch, inputs = layer.x.shape
    operator, order = {"lstm": ("LSTM", "iofc"), "gru": ("GRU", "zrh")}[layer.kind]

    def weights(name, array):
        array = np.ascontiguousarray(array, np.float32)
        dimensions = b"".join(_field(1, extent) for extent in array.shape)
        return dimensions + _field(2, _FLOAT32) + _field(8, name) + _field(9, array.tobytes())

    def integer(name, value):
        return _field(1, name) + _field(3, value) + _field(20, 2)

    biases = (layer.input_bias, layer.recurrent_bias)
    initializers = {
        "w": layer.gates(layer.w, order).T[None],
        "r": layer.gates(layer.r, order).T[None],
        "b": np.concatenate([layer.gates(bias, order) for bias in biases])[None],
        **{name: state[None] for name, state in zip("hc", layer.states)},
    }
    # The empty name stands for the lengths of the sequences.
    node = b"".join(
        _field(1, name) for name in ("x", "w", "r", "b", "", *"hc"[: len(layer.states)])
    )
    node += b"".join(_field(2, name) for name in ("y", "y_h")) + _field(4, operator)
    node += _field(5, integer("hidden_size", layer.hidden))
    if layer.kind == "gru":
        node += _field(5, integer("linear_before_reset", 1))
    graph = _field(1, node) + _field(2, layer.kind)
    graph += b"".join(_field(5, weights(*item)) for item in initializers.items())
    graph += _field(11, _onnx_value("x", layer.x.shape))
    graph += _field(12, _onnx_value("y", (time, 1, batch, layer.hidden)))
    graph += _field(12, _onnx_value("y_h", (1, batch, layer.hidden)))
    return _onnx_file(graph)
