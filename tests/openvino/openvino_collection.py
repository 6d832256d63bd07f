"""The project's own collection of IR models: whole networks, small, made here and stored nowhere.

python tests/openvino/openvino_collection.py DIR   writes them, prints the .xml files' paths

Those from torch and from ONNX are left out where these are not installed (`make oracles`).
"""

import contextlib
import dataclasses
import importlib.util
import io
import pathlib
import sys
import warnings
from collections.abc import Callable

import numpy as np
import openvino as ov

op = ov.opset15


@dataclasses.dataclass(frozen=True)
class Network:
    """A network of the collection.

    Attributes:
        make: gives a model, which is as dynamic as it can be, and inputs for it.
        needs: the modules that it takes.
    """

    name: str
    make: Callable[[], tuple[ov.Model, list[np.ndarray]]]
    needs: tuple[str, ...]

    @property
    def can_be_made(self) -> bool:
        return all(importlib.util.find_spec(module) for module in self.needs)

    def write(self, folder: pathlib.Path) -> tuple[list[pathlib.Path], list[np.ndarray]]:
        """The .xml files, with .bin files beside them, and inputs.

        Of a model that takes any batch or any time there is one with the inputs' extents too.
        """
        model, inputs = self.make()
        paths = [folder / f"{self.name}.xml"]
        ov.save_model(model, paths[0], compress_to_fp16=False)
        if model.is_dynamic():
            paths.append(folder / f"{self.name}-static.xml")
            model.reshape({port: list(x.shape) for port, x in zip(model.inputs, inputs)})
            ov.save_model(model, paths[1], compress_to_fp16=False)
        return paths, inputs


_NETWORKS: dict[str, Network] = {}


def models() -> list[Network]:
    """The networks that can be made here."""
    return [network for network in _NETWORKS.values() if network.can_be_made]


def network(name: str) -> Network:
    return _NETWORKS[name]


def _network(name: str, *needs: str) -> Callable:
    def add(make):
        _NETWORKS[name] = Network(name, make, needs)
        return make

    return add


def _floats(*shape: int, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


# --- torch ---------------------------------------------------------------------------------------


def torch_module(name: str):
    """A module of torch with random weights, the same ones each time."""
    import torch

    torch.manual_seed(0)
    return _TORCH[name](torch).eval()


def _from_torch(name: str) -> tuple[ov.Model, list[np.ndarray]]:
    import torch

    inputs, any_extent = _torch_inputs(name)
    example = tuple(map(torch.from_numpy, inputs))
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, on its own tracing
        model = ov.convert_model(torch_module(name), example_input=example)
    shapes = [[-1 if k < any_extent else n for k, n in enumerate(x.shape)] for x in inputs]
    model.reshape(dict(zip(model.inputs, shapes)))
    return model, inputs


def _recurrent(kind: str, **options) -> Callable:
    def make(torch):
        class Recurrent(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = getattr(torch.nn, kind)(5, 7, batch_first=True, **options)

            def forward(self, x):
                y, state = self.layer(x)
                return (y, *state) if kind == "LSTM" else (y, state)

        return Recurrent()

    return make


def _packed(torch):
    rnn = torch.nn.utils.rnn

    class Packed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.LSTM(5, 7, batch_first=True, bidirectional=True)

        def forward(self, x, lengths):
            packed = rnn.pack_padded_sequence(x, lengths, batch_first=True)
            y, (h, c) = self.layer(packed)
            y, _ = rnn.pad_packed_sequence(y, batch_first=True)
            return y, h, c

    return Packed()


def _attention(torch):
    class Attention(torch.nn.Module):
        def __init__(self, width=16, heads=4):
            super().__init__()
            nn = torch.nn
            self.heads = heads
            self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x):
            batch, time, width = x.shape
            qkv = self.qkv(self.norms[0](x)).view(batch, time, 3, self.heads, -1)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, time, width))
            return x + self.mlp(self.norms[1](x))

    return Attention()


def _convolutional(torch):
    nn = torch.nn

    class Residual(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
                nn.BatchNorm2d(width),
                nn.Hardswish(),
                nn.Conv2d(width, width, 1),
                nn.BatchNorm2d(width),
            )

        def forward(self, x):
            return torch.relu(x + self.body(x))

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        Residual(8),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1),
        nn.LeakyReLU(0.1),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 10),
        nn.Softmax(1),
    )
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2.0)
    return model


def _dlrm(torch):
    class Dlrm(torch.nn.Module):
        def __init__(self, width=8):
            super().__init__()
            nn = torch.nn
            self.tables = nn.ModuleList(
                [nn.EmbeddingBag(n, width, mode="sum") for n in (50, 20, 30)]
            )
            self.bottom = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, width))
            self.pairs = [4 * i + j for i in range(4) for j in range(i)]
            self.top = nn.Sequential(
                nn.Linear(width + 6, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid()
            )

        def forward(self, dense, ids, offsets, packed, weights):
            x = self.bottom(dense)
            bags = [
                self.tables[0](ids, offsets),
                self.tables[1](packed),
                self.tables[2](packed, per_sample_weights=weights),
            ]
            rows = torch.stack([x, *bags], 1)
            products = torch.bmm(rows, rows.transpose(1, 2))
            pairs = products.flatten(1)[:, self.pairs]
            return self.top(torch.cat([x, pairs], 1))

    return Dlrm()


def _mlp(torch):
    nn = torch.nn
    return nn.Sequential(
        nn.Linear(6, 32), nn.LayerNorm(32), nn.GELU(approximate="tanh"), nn.Linear(32, 3)
    )


_TORCH = {
    "lstm": _recurrent("LSTM"),
    "lstm_bidirectional_2_layers": _recurrent("LSTM", num_layers=2, bidirectional=True),
    "gru": _recurrent("GRU"),
    "gru_bidirectional": _recurrent("GRU", bidirectional=True),
    "rnn": _recurrent("RNN"),
    "rnn_relu_2_layers": _recurrent("RNN", num_layers=2, nonlinearity="relu"),
    "lstm_packed": _packed,
    "attention": _attention,
    "convolutional": _convolutional,
    "dlrm": _dlrm,
    "mlp": _mlp,
}


def _torch_inputs(name: str) -> tuple[list[np.ndarray], int]:
    """Inputs, and how many of their first dimensions may have any extent."""
    if name == "lstm_packed":
        return [_floats(3, 6, 5), np.array([6, 4, 1])], 2
    if name == "attention":
        return [_floats(2, 6, 16)], 2
    if name == "convolutional":
        return [_floats(2, 3, 32, 32)], 1
    if name == "dlrm":  # OpenVINO does not run it with any extents
        rng = np.random.default_rng(0)
        ids, packed = rng.integers(0, 50, 9), rng.integers(0, 20, [3, 4])
        return [_floats(3, 4), ids, np.array([0, 2, 7]), packed, _floats(3, 4, seed=1)], 0
    return ([_floats(2, 6)], 1) if name == "mlp" else ([_floats(3, 6, 5)], 2)


for _name in _TORCH:

    @_network(f"torch_{_name}", "torch")
    def _make(name=_name):
        return _from_torch(name)


# --- ONNX ----------------------------------------------------------------------------------------


class _Onnx:
    """Builds a graph of ONNX: nodes in order, arrays as initializers."""

    def __init__(self, prefix: str = ""):
        import onnx.helper
        import onnx.numpy_helper

        self.onnx = onnx
        self._nodes, self._initializers, self._prefix = [], [], prefix

    def __call__(self, kind: str, *inputs, outputs: int = 1, **attributes):
        names = [self._name(value) for value in inputs]
        made = [f"{self._prefix}{kind}_{len(self._nodes)}_{k}" for k in range(outputs)]
        self._nodes.append(self.onnx.helper.make_node(kind, names, made, **attributes))
        return made[0] if outputs == 1 else made

    def _name(self, value) -> str:
        if isinstance(value, str):
            return value
        name = f"{self._prefix}array_{len(self._initializers)}"
        array = np.asarray(value)
        self._initializers.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def graph(self, inputs: dict, outputs: dict, name: str = "graph"):
        """inputs, outputs: a dtype and a shape for each name; "?" is any extent."""

        def info(name, dtype, shape):
            kind = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            return self.onnx.helper.make_tensor_value_info(name, kind, shape)

        given, results = (
            [info(name, *what) for name, what in ports.items()] for ports in (inputs, outputs)
        )
        return self.onnx.helper.make_graph(self._nodes, name, given, results, self._initializers)

    def model(self, inputs: dict, outputs: dict) -> ov.Model:
        made = self.onnx.helper.make_model(
            self.graph(inputs, outputs),
            opset_imports=[self.onnx.helper.make_opsetid("", 17)],
            ir_version=9,
        )
        return ov.Core().read_model(io.BytesIO(made.SerializeToString()))


def _onnx_recurrent(kind: str, direction: str, **options) -> tuple[ov.Model, list[np.ndarray]]:
    inputs, hidden = 5, 7
    directions = 2 if direction == "bidirectional" else 1
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    weights = [
        _floats(directions, gates * hidden, inputs, scale=0.4, seed=1),
        _floats(directions, gates * hidden, hidden, scale=0.4, seed=2),
        _floats(directions, 2 * gates * hidden, seed=3),
    ]
    build = _Onnx()
    states = ["h", "c"][: 2 if kind == "LSTM" else 1]
    outputs = build(
        kind,
        "x",
        *weights,
        "lengths",
        *states,
        outputs=1 + len(states),
        direction=direction,
        hidden_size=hidden,
        **options,
    )
    f = np.float32
    given = {"x": (f, ["time", "batch", inputs]), "lengths": (np.int32, ["batch"])}
    given |= {state: (f, [directions, "batch", hidden]) for state in states}
    shapes = [["time", directions, "batch", hidden]] + [[directions, "batch", hidden]] * 2
    model = build.model(given, {name: (f, shape) for name, shape in zip(outputs, shapes)})
    arrays = [_floats(6, 3, inputs), np.array([6, 2, 5], np.int32)]
    return model, arrays + [_floats(directions, 3, hidden, seed=i) for i, _ in enumerate(states)]


for _kind in "LSTM", "GRU", "RNN":
    for _direction in "forward", "reverse", "bidirectional":

        @_network(f"onnx_{_kind.lower()}_{_direction}", "onnx")
        def _make(kind=_kind, direction=_direction):
            return _onnx_recurrent(kind, direction)


@_network("onnx_gru_linear_before_reset", "onnx")
def _onnx_gru_linear_before_reset():
    return _onnx_recurrent("GRU", "forward", linear_before_reset=1)


@_network("onnx_loop", "onnx")
def _onnx_loop():
    """Adds until the sum is large, and gives each partial sum."""
    f = np.float32
    body = _Onnx("body_")
    total = body("Add", "state", "x")
    kept = body("Identity", total)
    going = body("Less", body("ReduceSum", total, keepdims=0), f(20))
    graph = body.graph(
        {"i": (np.int64, []), "going_in": (np.bool_, []), "state": (f, [3])},
        {going: (np.bool_, []), total: (f, [3]), kept: (f, [3])},
    )
    build = _Onnx()
    last, steps = build("Loop", np.int64(50), np.array(True), "start", outputs=2, body=graph)
    outputs = {last: (f, [3]), steps: (f, ["steps", 3])}
    model = build.model({"start": (f, [3]), "x": (f, [3])}, outputs)
    return model, [np.zeros(3, f), np.array([1, 0.5, 0.75], f)]


@_network("onnx_if", "onnx")
def _onnx_if():
    f = np.float32
    branches = {}
    for name, kind in ("then_branch", "Exp"), ("else_branch", "Neg"):
        branch = _Onnx(f"{name}_")
        branches[name] = branch.graph({}, {branch(kind, "x"): (f, ["batch", 3])})
    build = _Onnx()
    large = build("Greater", build("ReduceSum", "x", keepdims=0), f(0))
    y = build("If", large, **branches)
    return build.model({"x": (f, ["batch", 3])}, {y: (f, ["batch", 3])}), [_floats(2, 3)]


@_network("onnx_scan", "onnx")
def _onnx_scan():
    """A layer-normalised recurrence, which no operation of OpenVINO is."""
    f = np.float32
    body = _Onnx("body_")
    product = body("Add", "x_t", body("MatMul", "h", _floats(4, 4, scale=0.5)))
    mean = body("ReduceMean", product, axes=[-1])
    new = body("Tanh", body("Sub", product, mean))
    y = body("Identity", new)
    rows = f, [3, 4]
    graph = body.graph({"h": rows, "x_t": rows}, {new: rows, y: rows})
    build = _Onnx()
    last, ys = build("Scan", "h0", "x", outputs=2, body=graph, num_scan_inputs=1)
    every = f, ["time", 3, 4]
    model = build.model({"h0": rows, "x": every}, {last: rows, ys: every})
    return model, [_floats(3, 4, seed=1), _floats(6, 3, 4)]


@_network("onnx_resize", "onnx")
def _onnx_resize():
    f, empty = np.float32, np.zeros(0, np.float32)
    build = _Onnx()
    scales = np.array([1, 1, 2, 1.5], f)
    y = build("Resize", "x", empty, scales, mode="linear")
    mode = "nearest"
    z = build("Resize", "x", empty, scales, mode=mode, coordinate_transformation_mode="asymmetric")
    image = f, ["batch", 2, "height", "width"]
    return build.model({"x": image}, {y: image, z: image}), [_floats(1, 2, 4, 6)]


@_network("onnx_quantized", "onnx")
def _onnx_quantized():
    """Numbers between layers are rounded to 8 bits, and weights to 7.

    With 8 bits for both, OpenVINO's sums of two products overflow their 16 bits on processors
    without VNNI.
    """
    f = np.float32
    build = _Onnx()

    def rounded(x, scale, zero):
        quantized = build("QuantizeLinear", x, f(scale), zero)
        return build("DequantizeLinear", quantized, f(scale), zero)

    x = rounded("x", 0.05, np.uint8(128))
    rng = np.random.default_rng(0)
    weights = rng.integers(-64, 64, [4, 3, 3, 3]).astype(np.int8)
    w = build("DequantizeLinear", weights, f(0.02), np.int8(0))
    y = build("Relu", build("Conv", x, w, _floats(4), pads=[1, 1, 1, 1]))
    y = build("GlobalAveragePool", rounded(y, 0.02, np.uint8(0)))
    z = build("Gemm", build("Flatten", y), _floats(4, 5), _floats(5))
    shape = f, ["batch", 3, 8, 8]
    return build.model({"x": shape}, {z: (f, ["batch", 5])}), [_floats(2, 3, 8, 8)]


# --- OpenVINO's own API --------------------------------------------------------------------------


def _lstm_step(kind: str, inputs: int, hidden: int) -> Callable:
    w = _floats(4 * hidden, inputs, scale=inputs**-0.5, seed=1)
    r = _floats(4 * hidden, hidden, scale=hidden**-0.5, seed=2)
    b = _floats(4 * hidden, seed=3)

    def cell(x, h, c):
        made = op.lstm_cell(x, h, c, w, r, b, hidden)
        return [made.output(0), made.output(1)]

    def plain(x, h, c):
        both = op.concat([x, h], axis=1)
        kernel = op.constant(np.concatenate([w, r], 1))
        gates = op.add(op.matmul(both, kernel, False, True), op.constant(b[None]))
        parts = op.split(gates, axis=1, num_splits=4)
        f, i, o = (op.sigmoid(parts.output(k)) for k in (0, 1, 3))
        new = op.add(op.multiply(f, c), op.multiply(i, op.tanh(parts.output(2))))
        return [op.multiply(o, op.tanh(new)).output(0), new.output(0)]

    return {"cell": cell, "ops": plain}[kind]


def _iterator(kind: str, time: int, batch: int, inputs: int, hidden: int) -> tuple:
    f = np.float32
    piece = op.parameter([1, batch, inputs], f)
    states = [op.parameter([batch, hidden], f) for _ in range(2)]
    new = _lstm_step(kind, inputs, hidden)(op.squeeze(piece, op.constant([0])), *states)
    row = op.reshape(new[0], op.constant([1, batch, hidden]), False)
    results = [op.result(value) for value in (*new, row)]
    iterator = ov.op.tensor_iterator()
    iterator.set_body(ov.Model(results, [piece, *states]))
    x = op.parameter([time, batch, inputs], f, name="x")
    initial = [op.parameter([batch, hidden], f, name=name) for name in ("h", "c")]
    iterator.set_sliced_input(piece, x.output(0), 0, 1, 1, -1, 0)
    for parameter, state, result in zip(states, initial, results):
        iterator.set_merged_input(parameter, state.output(0), result.output(0))
    y = iterator.get_concatenated_slices(results[2].output(0), 0, 1, 1, -1, 0)
    last = iterator.get_iter_value(results[0].output(0), -1)
    model = ov.Model([op.result(y), op.result(last)], [x, *initial], "iterator")
    states = [_floats(batch, hidden, seed=seed) for seed in (4, 5)]
    return model, [_floats(time, batch, inputs), *states]


SIZES = [(25, 1, 512, 256), (200, 1, 8, 8), (100, 32, 64, 64)]  # time, batch, input, hidden
for _kind in "cell", "ops":
    for _sizes in SIZES:

        @_network(f"iterator_{_kind}_{'_'.join(map(str, _sizes))}")
        def _make(kind=_kind, sizes=_sizes):
            return _iterator(kind, *sizes)


@_network("encoder_decoder")
def _encoder_decoder():
    """A GRU reads words; a loop around a cell writes words, each from the last, up to an end."""
    f, words, width, hidden, most = np.float32, 11, 6, 8, 12
    table = op.constant(_floats(words, width, seed=1))
    weights = [
        _floats(3 * hidden, width, seed=2),
        _floats(3 * hidden, hidden, scale=0.4, seed=3),
        _floats(3 * hidden, seed=4),
    ]
    ids = op.parameter([1, -1], np.int64, name="words")
    embedded = op.gather(table, ids, op.constant(0))
    time = op.gather(op.shape_of(ids), op.constant([1]), op.constant(0))
    lengths = op.convert(time, "i32")
    start = op.constant(np.zeros([1, 1, hidden], f))
    of_sequence = [op.constant(array[None]) for array in weights]
    read = op.gru_sequence(embedded, start, lengths, *of_sequence, hidden, "forward")
    encoded = op.squeeze(read.output(1), op.constant([1]))

    h, word = op.parameter([1, hidden], f), op.parameter([1], np.int64)
    row = op.gather(op.constant(_floats(words, width, seed=1)), word, op.constant(0))
    cell = op.gru_cell(row, h, *map(op.constant, weights), hidden)
    scores = op.matmul(cell, op.constant(_floats(hidden, words, scale=3.0, seed=5)), False, False)
    best = op.topk(scores, op.constant(1), 1, "max", "value", index_element_type="i64")
    chosen = op.squeeze(best.output(1), op.constant([1]))
    going = op.squeeze(op.not_equal(chosen, op.constant([0])), op.constant([0]))
    results = [op.result(value) for value in (going, cell, chosen)]
    results.append(op.result(op.unsqueeze(chosen, op.constant([0]))))
    loop = op.loop(op.constant(most), op.constant(True))
    loop.set_function(ov.Model(results, [h, word]))
    loop.set_special_body_ports([-1, 0])
    loop.set_merged_input(h, encoded.output(0), results[1].output(0))
    loop.set_merged_input(word, op.constant([1]).output(0), results[2].output(0))
    written = loop.get_concatenated_slices(results[3].output(0), 0, 1, 1, -1, 0)
    last = loop.get_iter_value(results[1].output(0), -1)
    model = ov.Model([op.result(written), op.result(last)], [ids], "encoder_decoder")
    return model, [np.random.default_rng(0).integers(1, words, [1, 5])]


# --- Quantised -----------------------------------------------------------------------------------


def _integers(least: int, end: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(least, end, shape)


def _decompressed(integers: np.ndarray, kind: ov.Type, scale, zero=None):
    """Integers as files of compressed weights have them: Convert, Subtract, Multiply."""
    x = op.convert(op.constant(integers, kind), "f32")
    if zero is not None:
        x = op.subtract(x, op.convert(op.constant(zero, kind), "f32"))
    return op.multiply(x, op.constant(np.asarray(scale, np.float32)))


def _rounded(x, low: float, high: float, levels: int = 256):
    ends = [op.constant(np.float32(end)) for end in (low, high)]
    return op.fake_quantize(x, *ends, *ends, levels)


@_network("quantized_convolutional")
def _quantized_convolutional():
    """As NNCF writes networks: FakeQuantize before each product, weights of 7 bits in 8.

    All scales are powers of 2, so that no sum is rounded, and none falls on another side of a step.
    """
    x = op.parameter([-1, 3, 12, 12], np.float32, name="image")
    y, channels = _rounded(x, -2.0, 127 / 64), 3
    for k, width in enumerate((8, 4)):
        weights = _integers(-64, 64, width, channels, 3, 3, seed=k)
        kernel = _decompressed(weights, ov.Type.i8, np.full([width, 1, 1, 1], 2.0 ** -(8 + k)))
        y = op.convolution(y, kernel, [1 + k, 1 + k], [1, 1], [1, 1], [1, 1])
        bias = _integers(-128, 128, 1, width, 1, 1, seed=k).astype(np.float32) / 128
        y, channels = _rounded(op.relu(op.add(y, op.constant(bias))), 0.0, 255 / 64), width
    pooled = op.reduce_mean(y, op.constant([2, 3]), False)
    out = op.matmul(pooled, _decompressed(_integers(-64, 64, 4, 5), ov.Type.i8, 0.02), False, False)
    return ov.Model([op.result(out)], [x], "quantized"), [_floats(2, 3, 12, 12)]


@_network("quantized_bags")
def _quantized_bags():
    """A recommender: bags of a table of bytes, rounded, and a product with bytes."""
    rows, width = 20, 8
    ids, offsets = (op.parameter([-1], np.int32, name=name) for name in ("ids", "offsets"))
    dense = op.parameter([-1, width], np.float32, name="dense")
    scale = 2.0 ** -_integers(5, 7, rows, 1)
    table = _decompressed(_integers(-128, 128, rows, width), ov.Type.i8, scale)
    pooled = ov.opset3.embedding_bag_offsets_sum(table, ids, offsets)
    both = _rounded(op.concat([pooled, dense], 1), -8.0, 127 / 16)
    kernel = _decompressed(_integers(-64, 64, 2 * width, 3, seed=1), ov.Type.i8, 2.0**-7)
    clicks = op.sigmoid(op.matmul(both, kernel, False, False))
    model = ov.Model([op.result(clicks)], [ids, offsets, dense], "quantized")
    arrays = [_integers(0, rows, 9).astype(np.int32), np.array([0, 4, 6], np.int32)]
    return model, [*arrays, _floats(3, width)]


@_network("quantized_language")
def _quantized_language():
    """A table of bytes, and weights of 4 bits in groups, as files of language models have them."""
    words, width, groups = 20, 16, 4
    ids = op.parameter([-1, -1], np.int64, name="input_ids")
    table = _decompressed(_integers(-128, 128, words, width), ov.Type.i8, np.full([words, 1], 0.01))
    x = op.gather(table, ids, op.constant(0))
    weights = _integers(0, 16, width, groups, width // groups)
    zeros, scales = _integers(6, 10, width, groups, 1), 0.1 + 0.01 * _floats(width, groups, 1)
    grouped = _decompressed(weights, ov.Type.u4, scales, zeros)
    kernel = op.reshape(grouped, op.constant([width, width]), False)
    y = op.add(x, op.gelu(op.matmul(x, kernel, False, True), "tanh"))
    logits = op.matmul(y, table, False, True)
    model = ov.Model([op.result(op.log_softmax(logits, -1))], [ids], "quantized")
    return model, [_integers(0, words, 2, 5)]


# --- With states ---------------------------------------------------------------------------------


def _state(name: str, shape: list, initial=None):
    """A ReadValue. Without an initial value it begins with zeros."""
    inputs = [] if initial is None else [initial]
    return op.read_value(*inputs, name, np.float32, ov.PartialShape(shape))


@_network("stateful_speech")
def _stateful_speech():
    """As detectors of voices are: a piece of sound beside the end of the last one, and an LSTM."""
    x = op.parameter([1, 64], np.float32, name="sound")
    context = _state("context", [1, 16])
    both = op.unsqueeze(op.concat([context, x], 1), op.constant([1]))
    y = op.convolution(both, op.constant(_floats(6, 1, 16, scale=0.3)), [8], [0], [0], [1])
    y = op.reduce_max(op.relu(y), op.constant([2]), False)
    h, c = _state("h", [1, 5]), _state("c", [1, 5])
    weights = [op.constant(_floats(20, n, scale=0.5, seed=n)) for n in (6, 5)]
    cell = op.lstm_cell(y, h, c, *weights, op.constant(_floats(20)), 5)
    score = op.sigmoid(op.matmul(cell.output(0), op.constant(_floats(5, 1)), False, False))
    end = op.slice(x, op.constant([-16]), op.constant([64]), op.constant([1]), op.constant([1]))
    following = [(end, "context"), (op.abs(cell.output(0)), "h"), (op.tanh(cell.output(1)), "c")]
    sinks = [op.assign(value, name) for value, name in following]
    return ov.Model([op.result(score)], sinks, [x], "speech"), [_floats(1, 64)]


@_network("stateful_denoiser")
def _stateful_denoiser():
    """Two GRUs in a row that go on from call to call, for any number of frames."""
    bands, hidden = 6, 8
    x = op.parameter([1, -1, bands], np.float32, name="frames")
    time = op.convert(op.gather(op.shape_of(x), op.constant([1]), op.constant(0)), "i32")
    y, width, sinks = x, bands, []
    for k in range(2):
        start = op.constant(np.full([1, 1, hidden], 0.1 * k, np.float32))
        h = _state(f"gru_{k}", [1, 1, hidden], start)
        weights = [
            op.constant(_floats(1, 3 * hidden, n, scale=0.4, seed=k)) for n in (width, hidden)
        ]
        bias = op.constant(_floats(1, 4 * hidden, seed=k))
        made = op.gru_sequence(
            y, h, time, *weights, bias, hidden, "forward", linear_before_reset=True
        )
        y, width = op.squeeze(made.output(0), op.constant([1])), hidden
        sinks.append(op.assign(op.multiply(made.output(1), op.constant(np.float32(1))), f"gru_{k}"))
    gains = op.sigmoid(op.matmul(y, op.constant(_floats(hidden, bands)), False, False))
    model = ov.Model([op.result(op.multiply(gains, x))], sinks, [x], "denoiser")
    return model, [_floats(1, 7, bands)]


@_network("stateful_attention")
def _stateful_attention():
    """A decoder's attention with what it has seen before, of the beams that go on."""
    heads, size = 2, 4
    width = heads * size
    x = op.parameter([-1, -1, width], np.float32, name="embeddings")
    beams = op.parameter([-1], np.int32, name="beam_idx")
    batch = op.gather(op.shape_of(x), op.constant([0]), op.constant(0))
    empty = op.concat([batch, op.constant(np.array([heads, 0, size]))], 0)
    start = op.broadcast(op.constant(np.float32(0)), empty)

    def projected(k):
        y = op.matmul(x, op.constant(_floats(width, width, scale=0.4, seed=k)), False, False)
        y = op.reshape(y, op.constant([0, 0, heads, size]), True)
        return op.transpose(y, op.constant([0, 2, 1, 3]))

    seen, sinks = [], []
    for k, name in enumerate(("keys", "values")):
        before = op.gather(_state(name, [-1, heads, -1, size], start), beams, op.constant(0))
        seen.append(op.concat([before, projected(k)], 2))
        sinks.append(op.assign(seen[k], name))
    y = op.scaled_dot_product_attention(projected(2), *seen, causal=False)
    y = op.reshape(op.transpose(y, op.constant([0, 2, 1, 3])), op.constant([0, 0, width]), True)
    model = ov.Model([op.result(y)], sinks, [x, beams], "attention")
    return model, [_floats(2, 3, width), np.array([0, 1], np.int32)]


# --- Detectors -----------------------------------------------------------------------------------


def _features(image, *widths: int) -> list:
    """Maps of features, each half as high and wide as the last one."""
    found, channels = [], 3
    for k, width in enumerate(widths):
        kernel = op.constant(_floats(width, channels, 3, 3, scale=0.3, seed=k))
        image = op.convolution(image, kernel, [2, 2], [1, 1], [1, 1], [1, 1])
        image = op.relu(op.add(image, op.constant(_floats(1, width, 1, 1, seed=k))))
        found.append(image)
        channels = width
    return found


def _head(features, channels: int, width: int, columns: int, seed: int):
    """A convolution, [batch, its numbers], with the channels last."""
    kernel = op.constant(_floats(channels, width, 3, 3, scale=0.2, seed=seed))
    y = op.convolution(features, kernel, [1, 1], [1, 1], [1, 1], [1, 1])
    y = op.transpose(y, op.constant([0, 2, 3, 1]))
    return op.reshape(y, op.constant([0, -1, columns]), True)


def _sizes(*nodes) -> list:
    ends = op.constant([2]), op.constant([4]), op.constant([1]), op.constant([0])
    return [op.slice(op.shape_of(node), *ends) for node in nodes]


def _ssd(version: int, clustered: bool) -> tuple[ov.Model, list[np.ndarray]]:
    classes, number = 4, 3
    image = op.parameter([1, 3, 32, 48], np.float32, name="image")
    boxes, scores, priors = [], [], []
    for k, (width, features) in enumerate(zip((8, 12), _features(image, 8, 12))):
        boxes.append(_head(features, 4 * number, width, 4, seed=k))
        scores.append(_head(features, classes * number, width, classes, seed=9 + k))
        sizes = _sizes(features, image)
        if clustered:
            sides = {"width": [4.0, 9.0, 16.0 + k], "height": [5.0, 8.0, 20.0]}
            made = op.prior_box_clustered(
                *sizes, {**sides, "clip": False, "variance": [0.1, 0.1, 0.2, 0.2], "offset": 0.5}
            )
        else:
            sizes_of = {"min_size": [8.0 + 8 * k], "max_size": [12.0 + 9 * k]}
            more = {"aspect_ratio": [2.0], "flip": False, "clip": True, "offset": 0.5}
            made = ov.opset8.prior_box(
                *sizes, {**sizes_of, **more, "variance": [0.1, 0.1, 0.2, 0.2]}
            )
        priors.append(op.unsqueeze(made, op.constant([0])))
    scores = op.softmax(op.concat(scores, 1), 2)
    options = {
        "background_label_id": 0,
        "top_k": 40,
        "keep_top_k": [12],
        "nms_threshold": 0.45,
        "confidence_threshold": 0.2,
        "code_type": "caffe.PriorBoxParameter.CENTER_SIZE",
        "share_location": True,
        "normalized": True,
    }
    if version == 1:
        options["num_classes"] = classes
    opset = ov.opset1 if version == 1 else ov.opset8
    flat = [op.reshape(x, op.constant([0, -1]), True) for x in (op.concat(boxes, 1), scores)]
    found = opset.detection_output(*flat, op.concat(priors, 2), options)
    return ov.Model([op.result(found)], [image], "ssd"), [_floats(1, 3, 32, 48)]


@_network("detector_ssd")
def _detector_ssd():
    return _ssd(version=8, clustered=False)


@_network("detector_ssd_clustered")
def _detector_ssd_clustered():
    return _ssd(version=1, clustered=True)


@_network("detector_yolo")
def _detector_yolo():
    """As YOLO v2: finer features beside coarse ones, and regions; then boxes of its own."""
    classes, regions = 3, 2
    image = op.parameter([1, 3, 32, 32], np.float32, name="image")
    fine, coarse = _features(image, 4, 6)
    both = op.concat([op.reorg_yolo(fine, [2, 2]), coarse], 1)
    channels = regions * (5 + classes)
    kernel = op.constant(_floats(channels, 22, 1, 1, scale=0.2))
    y = op.convolution(both, kernel, [1, 1], [0, 0], [0, 0], [1, 1])
    regions_of = ov.opset1.region_yolo(y, 4, classes, regions, True, [0, 1], 1, 3)
    boxes = op.reshape(op.abs(regions_of), op.constant([1, -1, 5 + classes]), False)
    corners = op.slice(boxes, *(op.constant([k]) for k in (0, 4, 1, 2)))
    scores = op.slice(boxes, *(op.constant([k]) for k in (5, 5 + classes, 1, 2)))
    picked = op.non_max_suppression(
        corners,
        op.transpose(scores, op.constant([0, 2, 1])),
        op.constant(4),
        op.constant(np.float32(0.5)),
        op.constant(np.float32(0.1)),
        box_encoding="center",
    )
    outputs = [op.result(regions_of), op.result(picked.output(2))]
    return ov.Model(outputs, [image], "yolo"), [_floats(1, 3, 32, 32)]


# --- Example 2 of its specifications, which OpenVINO reads no more -------------------------------

HIDDEN, FEATURES, STEPS = 256, 512, 25


def layer_of_example_2() -> str:
    """As the specification's document has it, which leaves out what surrounds it."""
    shape = {"x": (1, 1, FEATURES), "row": (1, FEATURES), "h": (1, HIDDEN)}
    shape |= {"out": (1, 1, HIDDEN), "w": (4 * HIDDEN, FEATURES + HIDDEN), "b": (4 * HIDDEN,)}

    def port(number, name, precision=""):
        dims = shape.get(name, name)
        return (
            f'<port id="{number}"{precision}>'
            + "".join(f"<dim>{n}</dim>" for n in dims)
            + "</port>"
        )

    def layer(number, kind, inputs, outputs, data=""):
        group = "<input>" + "".join(port(i, name) for i, name in enumerate(inputs)) + "</input>"
        given = "".join(port(i, name, f' precision="{p}"') for i, name, p in outputs)
        return (
            f'<layer id="{number}" type="{kind}">{data}{group if inputs else ""}'
            f"{f'<output>{given}</output>' if outputs else ''}</layer>"
        )

    def const(number, offset, size, name, precision="FP32"):
        data = f'<data offset="{offset}" size="{size}"/>'
        return layer(number, "Const", [], [(1, name, precision)], data)

    f = "FP32"
    layers = [
        layer(0, "Parameter", [], [(0, "x", f)]),
        const(1, 0, 16, (2,), "I64"),
        layer(2, "Reshape", ["x", (2,)], [(2, "row", f)]),
        layer(3, "Parameter", [], [(0, "h", f)]),
        layer(4, "Parameter", [], [(0, "h", f)]),
        const(5, 16, 3145728, "w"),
        const(6, 3145744, 4096, "b"),
        layer(
            7,
            "LSTMCell",
            ["row", "h", "h", "w", "b"],
            [(5, "h", f), (6, "h", f)],
            '<data hidden_size="256"/>',
        ),
        layer(8, "Result", ["h"], []),
        layer(9, "Result", ["h"], []),
        const(10, 3149840, 24, (3,), "I64"),
        layer(11, "Reshape", ["h", (3,)], [(2, "out", f)]),
        layer(12, "Result", ["out"], []),
    ]
    edges = "0 0 2 0,1 1 2 1,2 2 7 0,3 0 7 1,4 0 7 2,5 1 7 3,6 1 7 4,7 6 8 0,7 5 9 0,7 5 11 0,"
    edges += "10 1 11 1,11 2 12 0"
    return (
        '<layer id="3" name="loop" type="TensorIterator"><input>'
        + port(0, (1, STEPS, FEATURES)) + port(1, "h") + port(2, "h")
        + "</input><output>" + port(3, (1, STEPS, HIDDEN), ' precision="FP32"') + "</output>"
        '<port_map><input axis="1" external_port_id="0" internal_layer_id="0" start="0"/>'
        '<input external_port_id="1" internal_layer_id="3"/>'
        '<input external_port_id="2" internal_layer_id="4"/>'
        '<output axis="1" external_port_id="3" internal_layer_id="12"/></port_map>'
        '<back_edges><edge from-layer="8" to-layer="4"/><edge from-layer="9" to-layer="3"/>'
        f"</back_edges><body><layers>{''.join(layers)}</layers>{_edges(edges)}</body></layer>"
    )  # fmt: skip


def _edges(text):
    names = "from-layer", "from-port", "to-layer", "to-port"
    return "<edges>" + "".join(
        "<edge " + " ".join(f'{n}="{v}"' for n, v in zip(names, edge.split())) + "/>"
        for edge in text.split(",")
    ) + "</edges>"  # fmt: skip


def write_example_2(folder: pathlib.Path, version: int = 10) -> tuple:
    """The .xml file, inputs, and the matrix and the bias that are in the .bin file."""
    weights = _floats(4 * HIDDEN, FEATURES + HIDDEN, scale=0.05, seed=2)
    bias = _floats(4 * HIDDEN, seed=3)
    shapes = {"x": (1, STEPS, FEATURES), "h": (1, HIDDEN), "c": (1, HIDDEN)}
    layers, arrays = "", []
    for i, (name, shape) in enumerate(shapes.items()):
        dims = "".join(f"<dim>{n}</dim>" for n in shape)
        layers += (
            f'<layer id="{i}" name="{name}" type="Parameter"><output>'
            f'<port id="0" precision="FP32">{dims}</port></output></layer>'
        )
        arrays.append(_floats(*shape, seed=4 + i))
    dims = f"<dim>1</dim><dim>{STEPS}</dim><dim>{HIDDEN}</dim>"
    result = f'<layer id="4" type="Result"><input><port id="0">{dims}</port></input></layer>'
    path = folder / "example_2.xml"
    path.write_text(
        f'<net name="m" version="{version}"><layers>{layers}{layer_of_example_2()}{result}</layers>'
        + _edges("0 0 3 0,1 0 3 1,2 0 3 2,3 3 4 0")
        + "</net>"
    )
    numbers = np.int64([1, FEATURES]), weights, bias, np.int64([1, 1, HIDDEN])
    (folder / "example_2.bin").write_bytes(b"".join(n.tobytes() for n in numbers))
    return path, arrays, weights, bias


def write_all(folder: pathlib.Path) -> list[pathlib.Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [path for network in models() for path in network.write(folder)[0]]
    older = folder / "older"  # which OpenVINO reads no more
    older.mkdir(exist_ok=True)
    return [*paths, write_example_2(older)[0]]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for path in write_all(pathlib.Path(sys.argv[1])):
        print(path)
