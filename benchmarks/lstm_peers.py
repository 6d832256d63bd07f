"""The LSTM of the loop benchmarks in other libraries, each where it is installed.

Every `make_*` function gets the weights and returns a case: a callable without arguments that runs
the LSTM once and returns its last hidden state. ImportError says that the library is missing.
"""

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Lstm:
    """An LSTM, its input and its initial state; gates in the order i, f, candidate, o.

    Attributes:
        x: [time, batch, input].
        w, r, b: [input, 4 * hidden], [hidden, 4 * hidden], [4 * hidden].
        h, c: [batch, hidden].
    """

    x: np.ndarray
    w: np.ndarray
    r: np.ndarray
    b: np.ndarray
    h: np.ndarray
    c: np.ndarray

    @classmethod
    def random(cls, time: int, batch: int, inputs: int, hidden: int) -> "Lstm":
        generator = np.random.default_rng(0)

        def draw(*shape, scale=1.0):
            return (scale * generator.standard_normal(shape)).astype(np.float32)

        return cls(
            draw(time, batch, inputs),
            draw(inputs, 4 * hidden, scale=inputs**-0.5),
            draw(hidden, 4 * hidden, scale=hidden**-0.5),
            draw(4 * hidden),
            draw(batch, hidden),
            draw(batch, hidden),
        )

    @property
    def hidden(self) -> int:
        return self.h.shape[1]

    def gates(self, array: np.ndarray, order: str) -> np.ndarray:
        """The same weights with the gates, along the last axis, in another order."""
        parts = dict(zip("ifco", np.split(array, 4, axis=-1)))
        return np.concatenate([parts[gate] for gate in order], axis=-1)

    def last_hidden(self, runs: int = 1) -> np.ndarray:
        """What to expect, by definition; each run starts with the last one's state."""

        def sigmoid(a):
            return 1 / (1 + np.exp(-a))

        h, c = self.h, self.c
        for x in [*self.x] * runs:
            i, f, g, o = np.split(x @ self.w + h @ self.r + self.b, 4, axis=1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        return h


Case = Callable[[], np.ndarray]


def make_onnxruntime(lstm: Lstm, threads: int) -> Case:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        _onnx_model(lstm), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(["y", "y_h"], {"x": lstm.x})[1][0]


def make_torch(lstm: Lstm, threads: int) -> Case:
    import torch

    torch.set_num_threads(threads)
    module = torch.nn.LSTM(lstm.x.shape[2], lstm.hidden)
    with torch.no_grad():
        module.weight_ih_l0.copy_(torch.from_numpy(lstm.w.T.copy()))
        module.weight_hh_l0.copy_(torch.from_numpy(lstm.r.T.copy()))
        module.bias_ih_l0.copy_(torch.from_numpy(lstm.b))
        module.bias_hh_l0.zero_()
    x = torch.from_numpy(lstm.x)
    state = torch.from_numpy(lstm.h[None]), torch.from_numpy(lstm.c[None])

    def run():
        with torch.inference_mode():
            return module(x, state)[1][0][0].numpy()

    return run


def make_jax(lstm: Lstm, threads: int) -> Case:
    del threads  # XLA takes one for each CPU that the process may use.
    import jax
    import jax.numpy as jnp

    kernel = jnp.asarray(np.concatenate([lstm.w, lstm.r]))

    def step(state, x):
        h, c = state
        gates = jnp.concatenate([x, h], axis=1) @ kernel + lstm.b
        i, f, g, o = jnp.split(gates, 4, axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    function = jax.jit(lambda x, h, c: jax.lax.scan(step, (h, c), x))
    x, h, c = (jax.device_put(array) for array in (lstm.x, lstm.h, lstm.c))

    def run():
        (last, _), ys = function(x, h, c)
        ys.block_until_ready()
        return np.asarray(last)

    return run


def make_openvino_cell(lstm: Lstm, threads: int) -> Case:
    """A TensorIterator around OpenVINO's LSTMCell."""
    from openvino import opset4

    w, r, b = (lstm.gates(array, "fico") for array in (lstm.w, lstm.r, lstm.b))
    w, r = np.ascontiguousarray(w.T), np.ascontiguousarray(r.T)

    def step(x, h, c):
        cell = opset4.lstm_cell(x, h, c, w, r, b, lstm.hidden)
        return cell.output(0), cell.output(1)

    return _openvino_case(lstm, step, threads)


def make_openvino_ops(lstm: Lstm, threads: int) -> Case:
    """A TensorIterator around the cell in plain operations."""
    from openvino import opset4

    kernel = np.concatenate([lstm.w, lstm.r])

    def step(x, h, c):
        product = opset4.matmul(opset4.concat([x, h], axis=1), kernel, False, False)
        gates = opset4.split(opset4.add(product, lstm.b[None]), axis=1, num_splits=4)
        i, f, o = (opset4.sigmoid(gates.output(k)) for k in (0, 1, 3))
        c = opset4.add(
            opset4.multiply(f, c), opset4.multiply(i, opset4.tanh(gates.output(2)))
        ).output(0)
        return opset4.multiply(o, opset4.tanh(c)).output(0), c

    return _openvino_case(lstm, step, threads)


def _openvino_case(lstm: Lstm, step: Callable, threads: int) -> Case:
    import openvino
    from openvino import opset4

    time, batch, inputs = lstm.x.shape
    piece = opset4.parameter([1, batch, inputs], np.float32)
    states = [opset4.parameter([batch, lstm.hidden], np.float32) for _ in range(2)]
    h, c = step(opset4.squeeze(piece, np.array([0])), *states)
    results = [opset4.result(value) for value in (h, c, opset4.unsqueeze(h, np.array([0])))]

    x = opset4.parameter([time, batch, inputs], np.float32)
    iterator = openvino.op.tensor_iterator()
    iterator.set_body(openvino.Model(results, [piece, *states]))
    iterator.set_sliced_input(piece, x.output(0), 0, 1, 1, -1, 0)
    for parameter, initial, result in zip(states, (lstm.h, lstm.c), results):
        initial = opset4.constant(initial).output(0)
        iterator.set_merged_input(parameter, initial, result.output(0))
    y = iterator.get_concatenated_slices(results[2].output(0), 0, 1, 1, -1, 0)
    last = iterator.get_iter_value(results[0].output(0), -1)
    model = openvino.Model([opset4.result(y), opset4.result(last)], [x])
    compiled = openvino.Core().compile_model(
        model,
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
        },
    )
    request = compiled.create_infer_request()
    request.set_input_tensor(openvino.Tensor(lstm.x, shared_memory=True))

    def run():
        request.infer()
        return request.get_output_tensor(1).data.copy()

    return run


PEERS = {
    "ONNX Runtime LSTM": make_onnxruntime,
    "OpenVINO TensorIterator, LSTMCell": make_openvino_cell,
    "OpenVINO TensorIterator, plain ops": make_openvino_ops,
    "torch nn.LSTM": make_torch,
    "JAX lax.scan": make_jax,
}

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


def _onnx_model(lstm: Lstm) -> bytes:
    float32 = 1
    time, batch, inputs = lstm.x.shape

    def weights(name, array):
        array = np.ascontiguousarray(array, np.float32)
        dimensions = b"".join(_field(1, extent) for extent in array.shape)
        return dimensions + _field(2, float32) + _field(8, name) + _field(9, array.tobytes())

    def value(name, shape):
        dimensions = b"".join(_field(1, _field(1, extent)) for extent in shape)
        tensor = _field(1, float32) + _field(2, dimensions)
        return _field(1, name) + _field(2, _field(1, tensor))

    w, r, b = (lstm.gates(array, "iofc") for array in (lstm.w, lstm.r, lstm.b))
    initializers = {
        "w": w.T[None],
        "r": r.T[None],
        "b": np.concatenate([b, np.zeros_like(b)])[None],
        "h": lstm.h[None],
        "c": lstm.c[None],
    }
    hidden_size = _field(1, "hidden_size") + _field(3, lstm.hidden) + _field(20, 2)
    node = b"".join(_field(1, name) for name in ("x", "w", "r", "b", "", "h", "c"))
    node += b"".join(_field(2, name) for name in ("y", "y_h")) + _field(4, "LSTM")
    node += _field(5, hidden_size)
    graph = _field(1, node) + _field(2, "lstm")
    graph += b"".join(_field(5, weights(*item)) for item in initializers.items())
    graph += _field(11, value("x", lstm.x.shape))
    graph += _field(12, value("y", (time, 1, batch, lstm.hidden)))
    graph += _field(12, value("y_h", (1, batch, lstm.hidden)))
    opset = _field(2, 14)
    return _field(1, 8) + _field(7, graph) + _field(8, opset)
