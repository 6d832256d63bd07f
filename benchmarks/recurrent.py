"""Recurrent layers: LSTM and GRU beside other libraries, the same cells in loops, and new cells.

TensorFlow's layers are measured inside one graph: several runs of a layer, each from the state that
the last one left, in one tf.function. The call of the function, 0.1 to 0.2 ms, then hardly counts.
The other libraries are called once a run. What a run takes that computes nothing is measured too,
and taken off: of ours in a chain of as many runs whose op hands on its inputs, of the others in a
call of a model that hands on a number. Every case is checked before it is timed: its last hidden
state, and its gradients.
"""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

import tf_ti
import tf_ti.keras
from benchmarks import cells, harness, machine_limits
from benchmarks.recurrent_peers import (
    EMPTY_CALLS,
    EMPTY_TRAINING_CALLS,
    GATES,
    JAX,
    ONNX_RUNTIME,
    OPENVINO_CELL,
    OPENVINO_OPS,
    OPENVINO_SEQUENCE,
    PEERS,
    TORCH,
    TRAINING_PEERS,
    Layer,
    reorder,
)

THREADS = 2
OURS = {"lstm": "tf_ti.lstm_sequence", "gru": "tf_ti.gru_sequence"}
SEQUENCE = "tf_ti.*_sequence"
SCAN = "tf_ti.scan"
KERAS_CELL = "tf_ti.scan, Keras's cell"
KERAS = "Keras layer"
OUR_RNN = "tf_ti.keras.RNN"
KERAS_RNN = "keras.layers.RNN"
CONVERTED = "tf_ti.keras.convert"
KERAS_MODEL = "Keras model"
BLOCK_LSTM = "tf.raw_ops.BlockLSTMV2"
WHILE = "tf.while_loop"
XLA = "tf.while_loop, XLA-compiled"
FLOOR = "floor: the products alone"
# tf_ti is compared with the best of them.
RIVALS = (ONNX_RUNTIME, OPENVINO_SEQUENCE, OPENVINO_CELL, OPENVINO_OPS, TORCH)


@dataclasses.dataclass(frozen=True)
class Shape:
    """The size of a layer, the number of its runs in one graph, and the goals of tf_ti.

    Attributes:
        sizes: time, batch, input, hidden.
        forward, training: the most in times of the best rival's time, and of torch's.
    """

    name: str
    sizes: tuple[int, int, int, int]
    runs: int
    forward: float
    training: float

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(map(str, self.sizes))}"


A = Shape("A", (25, 1, 512, 256), 20, 0.75, 0.4)
B = Shape("B", (200, 1, 8, 8), 100, 0.45, 0.2)
C = Shape("C", (100, 32, 64, 64), 10, 0.75, 0.6)
D = Shape("D", (50, 16, 256, 256), 3, 0.90, 0.7)
SHAPES = (A, B, C, D)


def run(quick: bool) -> Iterator[harness.Table]:
    limit_tensorflow(THREADS)
    repeats = 3 if quick else 9
    for kind in OURS:
        yield forward(kind, repeats)
    for kind in OURS:
        yield training(kind, repeats)
    yield from one_thread(repeats)
    yield cells_in_loops(repeats)
    yield new_cells(repeats)
    yield cells_in_layers(repeats)
    yield converted_models(repeats)


def limit_tensorflow(threads: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


# --- a layer in TensorFlow -----------------------------------------------------------------------


class Sequence:
    """tf_ti.lstm_sequence or tf_ti.gru_sequence."""

    def __init__(self, layer: Layer):
        self._function = {"lstm": tf_ti.lstm_sequence, "gru": tf_ti.gru_sequence}[layer.kind]
        if layer.kind == "gru":
            self._function = functools.partial(self._function, linear_before_reset=True)
        self._orders = GATES[layer.kind], {"lstm": "fico", "gru": "zrh"}[layer.kind]
        w, r = (layer.gates(array, self._orders[1]).T for array in (layer.w, layer.r))
        # A GRU's fourth bias is no gate's, but its gates are in the layer's own order.
        b = layer.gates(layer.b, self._orders[1]) if layer.kind == "lstm" else layer.b
        self.weights = [tf.Variable(array[None]) for array in (w, r, b)]
        self.x = tf.constant(layer.x)
        self.state = tuple(tf.constant(state[:, None]) for state in layer.states)

    def __call__(self, x, state):
        y, *state = self._function(x, *state, None, *self.weights, time_major=True)
        return tuple(state), tf.squeeze(y, 1)

    def to_layer(self, dx, gradients):
        dw, dr, db = (gradient[0] for gradient in gradients)
        given, wanted = reversed(self._orders)
        dw, dr = (reorder(gradient.T, given, wanted) for gradient in (dw, dr))
        return [*dx, dw, dr, reorder(db, given, wanted) if len(db) == dw.shape[1] else db]


class Empty(Sequence):
    """The same chain of runs around an op that hands on its inputs."""

    def __init__(self, layer: Layer):
        super().__init__(layer)
        time, batch, _ = layer.x.shape
        y = tf.zeros([time, 1, batch, layer.hidden])
        num_states = len(self.state)

        @tf.custom_gradient
        def hand_on(*inputs):
            *inputs_on, y_on = tf.raw_ops.IdentityN(input=[*inputs, y])

            def gradient(*gradients):
                return tf.raw_ops.IdentityN(input=[*inputs_on, *gradients])[: len(inputs)]

            return (y_on, *inputs_on[1 : 1 + num_states]), gradient

        def function(x, *given, time_major):
            del time_major
            return hand_on(x, *(array for array in given if array is not None))

        self._function = function


class InLoop:
    """A cell in plain operations in one of the loops."""

    def __init__(self, loop: Callable, make_cell: Callable, layer: Layer):
        self._layer, self._inputs = layer, layer.x.shape[2]
        self._cell, self._loop = make_cell(layer), loop
        self.x = tf.constant(layer.x)
        self.state = tuple(map(tf.constant, layer.states))

    @property
    def weights(self):
        return self._cell.weights

    def __call__(self, x, state):
        return self._loop(self._cell, x, state)

    def to_layer(self, dx, gradients):
        if self._layer.kind == "lstm":
            kernel, bias = gradients
            return [*dx, kernel[: self._inputs], kernel[self._inputs :], bias]
        dw, dr, *db = gradients
        return [*dx, dw, dr, self._layer.join_biases(*db)]


class KerasLayer:
    """Keras's own layer, which wants the batch first."""

    def __init__(self, layer: Layer):
        self._layer, self._keras = layer, cells.make_keras_layer(layer)
        self.weights = [weight.value for weight in self._keras.trainable_variables]
        self.x = tf.constant(layer.x.transpose(1, 0, 2))
        self.state = tuple(map(tf.constant, layer.states))

    def __call__(self, x, state):
        y, *state = self._keras(x, initial_state=list(state))
        return tuple(state), y

    def to_layer(self, dx, gradients):
        dw, dr, db = gradients
        db = db if db.ndim == 1 else self._layer.join_biases(*db)
        return [*(gradient.transpose(1, 0, 2) for gradient in dx), dw, dr, db]


class BlockLstm:
    """TensorFlow's fused LSTM, whose gates are in the layer's own order."""

    def __init__(self, layer: Layer):
        self._inputs = layer.x.shape[2]
        kernel = np.concatenate([layer.w, layer.r])
        self.weights = [tf.Variable(kernel), tf.Variable(layer.b)]
        # Required, but not used.
        self._peepholes = dict.fromkeys(("wci", "wcf", "wco"), tf.zeros([layer.hidden]))
        self.x = tf.constant(layer.x)
        self.state = tuple(map(tf.constant, layer.states))

    def __call__(self, x, state):
        cs, hs = self._run(x, *state, *map(tf.convert_to_tensor, self.weights))
        return (hs[-1], cs[-1]), hs

    @tf.custom_gradient
    def _run(self, x, h, c, kernel, bias):
        # TensorFlow registers the gradient of another op, with another order of gates.
        steps = tf.constant(x.shape[0], tf.int64)
        given = {"x": x, "h_prev": h, "cs_prev": c, "w": kernel, "b": bias, **self._peepholes}
        outputs = tf.raw_ops.BlockLSTMV2(seq_len_max=steps, **given)

        def gradient(dcs, dhs):
            gradients = tf.raw_ops.BlockLSTMGradV2(
                seq_len_max=steps,
                **given,
                **outputs._asdict(),
                cs_grad=dcs,
                h_grad=dhs,
                use_peephole=False,
            )
            by_state = gradients.h_prev_grad, gradients.cs_prev_grad
            return gradients.x_grad, *by_state, gradients.w_grad, gradients.b_grad

        return (outputs.cs, outputs.h), gradient

    def to_layer(self, dx, gradients):
        kernel, bias = gradients
        return [*dx, kernel[: self._inputs], kernel[self._inputs :], bias]


Way = Sequence | InLoop | KerasLayer | BlockLstm
_in_while_loop = functools.partial(InLoop, cells.on_while_loop)


def _runs(name: str, runs: int) -> int:
    """The number of runs in one graph: few where that takes long to trace or to compile."""
    return {KERAS: 1, XLA: min(runs, 5)}.get(name, runs)


def _ways(layer: Layer) -> dict[str, Way]:
    ways = {
        OURS[layer.kind]: Sequence(layer),
        KERAS: KerasLayer(layer),
        XLA: _in_while_loop(cells.CELLS[layer.kind], layer),
    }
    if layer.kind == "lstm":
        ways[BLOCK_LSTM] = BlockLstm(layer)
    return ways


def forward_case(name: str, way: Way, layer: Layer, runs: int) -> Callable:
    """Runs the layer some times in a row, checked against the definition."""
    case = _forward_graph(name, way, runs := _runs(name, runs))
    _check(name, [np.reshape(case()[0][0], layer.states[0].shape)], [layer.last_hidden(runs)])
    return case


def _forward_graph(name: str, way: Way, runs: int) -> Callable:
    def function(xs):
        # Every output is wanted, so that nothing is left out.
        return cells.run_in_a_row(way, xs, way.state)

    return cells.graph_of(function, way.x, runs, jit_compile=name == XLA)


def training_case(
    name: str, way: Way, dy: np.ndarray, runs: int, expected: Callable[[int], list[np.ndarray]]
) -> Callable:
    """The same with the gradients by every x and by the weights, given that by the outputs."""
    case = _training_graph(name, way, dy, runs := _runs(name, runs))
    gradients = tf.nest.map_structure(lambda tensor: tensor.numpy(), case())
    _check(name, way.to_layer(*gradients), expected(runs))
    return case


def _training_graph(name: str, way: Way, dy: np.ndarray, runs: int) -> Callable:
    dy = tf.constant(dy.transpose(1, 0, 2) if isinstance(way, KerasLayer) else dy)

    def function(xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            _, outputs = cells.run_in_a_row(way, xs, way.state)
        return tape.gradient(outputs, [xs, way.weights], [dy] * runs)

    return cells.graph_of(function, way.x, runs, jit_compile=name == XLA)


def expected_gradients(layer: Layer, dy: np.ndarray, runs: int) -> list[np.ndarray]:
    """The expected gradients: each step a call, differentiated by TensorFlow's tape."""

    def in_python(cell, x, state):
        cell, outputs = tf.function(cell, autograph=False), []
        for piece in tf.unstack(x):
            state = cell(piece, *state)
            outputs.append(state[0])
        return state, tf.stack(outputs)

    way = InLoop(in_python, cells.CELLS[layer.kind], layer)
    xs = [tf.identity(way.x) for _ in range(runs)]
    with tf.GradientTape() as tape:
        tape.watch(xs)
        _, outputs = cells.run_in_a_row(way, xs, way.state)
    gradients = tape.gradient(outputs, [xs, way.weights], [tf.constant(dy)] * runs)
    return way.to_layer(*tf.nest.map_structure(lambda tensor: tensor.numpy(), gradients))


def _check(name: str, results: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(results) == len(expected), name
    for ours, theirs in zip(results, expected):
        atol = 1e-4 * np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=atol, err_msg=name)


# --- the limit -----------------------------------------------------------------------------------


def _limits(threads: int) -> machine_limits.Limits | None:
    try:
        return machine_limits.measure(threads)
    except (OSError, subprocess.CalledProcessError):
        return None


def _floor(layer: Layer, threads: int, differentiate: bool) -> dict[str, float]:
    """The least seconds that the products of a run can take; nothing where that is not known."""
    limits = _limits(threads)
    if limits is None:
        return {}
    time, batch, _ = layer.x.shape
    inputs = time * batch * layer.w.size / limits.multiply_adds
    recurrent = time * batch * layer.r.size / limits.multiply_adds
    states = max(time * layer.r.nbytes / limits.bytes_read, recurrent)
    # The backward: dx and dw; dh step by step; and dr, which is one product of all steps.
    return {FLOOR: 3 * inputs + 2 * states + recurrent if differentiate else inputs + states}


def _notes(threads: int) -> list[str]:
    if _limits(threads) is None:
        return ["no floor: there is no C++ compiler to measure the machine's limits with"]
    limits = [str(_limits(count)) for count in sorted({1, threads})]
    return [
        "the floor: multiply-adds, and r read at each step, at this machine's limits; activations, "
        "biases and the handing over between threads are left out",
        f"the limits of {'; of '.join(limits)}",
    ]


RUNS_NOTE = "TensorFlow's ways: some runs in a row in one graph; the others: one call a run"
EMPTY_NOTE = (
    "taken off, of tf_ti: a run in the same graph of an op that hands on its inputs; of the other "
    "libraries: a call of a model that hands on a number"
)

# --- layers beside peers -------------------------------------------------------------------------


def _peer_cases(layer: Layer, names: tuple[str, ...], threads: int) -> dict[str, Callable]:
    cases, expected = {}, layer.last_hidden()
    for name in names:
        try:
            cases[name] = PEERS[name](layer, threads)
        except (ImportError, NotImplementedError):
            continue
        _check(name, [cases[name]()], [expected])
    return cases


def _training_peer_cases(
    layer: Layer, dy: np.ndarray, threads: int, expected: list[np.ndarray]
) -> dict[str, Callable]:
    cases = {}
    for name, make in TRAINING_PEERS.items():
        try:
            cases[name], to_layer = make(layer, dy, threads)
        except ImportError:
            continue
        _check(name, to_layer(cases[name]()), expected)
    return cases


def _measure(
    in_graph: dict[str, Callable], runs: int, called: dict[str, Callable], repeats: int
) -> dict[str, float]:
    """The seconds of a run, measured in turns."""
    seconds = harness.measure(in_graph | called, repeats)
    return {
        name: value / (_runs(name, runs) if name in in_graph else 1)
        for name, value in seconds.items()
    }


def _without_empty_runs(
    seconds: dict[str, float],
    ours: str,
    empty_chain: Callable,
    runs: int,
    empty_calls: dict[str, Callable],
    threads: int,
    repeats: int,
) -> dict[str, float]:
    """The same without what a run takes that computes nothing."""
    names = [name for name in empty_calls if name in seconds]
    # Some names have one library, which is called once.
    makers = {empty_calls[name]: name for name in names}
    empty = _measure(
        {ours: empty_chain}, runs, {name: make(threads) for make, name in makers.items()}, repeats
    )
    empty |= {name: empty[makers[empty_calls[name]]] for name in names}
    return {name: value - empty.get(name, 0) for name, value in seconds.items()}


def _add_column(table: harness.Table, column: str, seconds: dict[str, float]) -> None:
    table.add_column(column, {name: value * 1e6 for name, value in seconds.items()})


def _missing(names, table: harness.Table) -> list[str]:
    missing = [name for name in names if name not in table.rows]
    return [f"not installed: {', '.join(missing)}"] if missing else []


def forward_seconds(
    shape: Shape, kind: str, threads: int, repeats: int, names: tuple[str, ...]
) -> dict[str, float]:
    layer = Layer.random(kind, *shape.sizes)
    cases = {
        name: forward_case(name, way, layer, shape.runs)
        for name, way in _ways(layer).items()
        if name in names
    }
    peers = _peer_cases(layer, tuple(name for name in PEERS if name in names), threads)
    seconds = _measure(cases, shape.runs, peers, repeats)
    empty = _forward_graph(OURS[kind], Empty(layer), shape.runs)
    seconds = _without_empty_runs(
        seconds, OURS[kind], empty, shape.runs, EMPTY_CALLS, threads, repeats
    )
    return seconds | _floor(layer, threads, differentiate=False)


def _forward_table(
    kind: str, threads: str, figures: dict[Shape, dict[str, float]], notes: list[str]
) -> harness.Table:
    ours = OURS[kind]
    table = harness.Table(
        f"{kind.upper()} forward at (time, batch, input, hidden), {threads}",
        "us a run",
        [],
        reference=ours,
        notes=[RUNS_NOTE, EMPTY_NOTE, *notes],
    )
    for shape, seconds in figures.items():
        _add_column(table, str(shape), seconds)
        rivals = {name: seconds[name] for name in RIVALS if name in seconds}
        if rivals:
            best = min(rivals, key=rivals.get)
            what = f"{ours} / the best of the others, {best}, at {shape.name}, {threads}"
            table.goals.append(harness.Goal(what, seconds[ours] / rivals[best], shape.forward))
    return table


def forward(kind: str, repeats: int) -> harness.Table:
    names = (OURS[kind], KERAS, XLA, BLOCK_LSTM, *PEERS)
    figures = {shape: forward_seconds(shape, kind, THREADS, repeats, names) for shape in SHAPES}
    table = _forward_table(kind, f"{THREADS} threads", figures, _notes(THREADS))
    table.picture = f"recurrent-{kind}"
    of_lstm = (OPENVINO_OPS,) if kind == "gru" else ()
    table.notes += _missing([name for name in PEERS if name not in of_lstm], table)
    return table


def training(kind: str, repeats: int) -> harness.Table:
    ours = OURS[kind]
    table = harness.Table(
        f"{kind.upper()} forward + backward, {THREADS} threads: gradients by x, w, r and b",
        "us a run",
        [],
        reference=ours,
        notes=[
            RUNS_NOTE,
            f"{EMPTY_NOTE}; of tf_ti also what adds up the weights' gradients of all runs",
            *_notes(THREADS),
        ],
        picture=f"recurrent-{kind}-gradient",
    )
    for shape in SHAPES:
        layer = Layer.random(kind, *shape.sizes)
        time, batch, _, hidden = shape.sizes
        dy = np.random.default_rng(1).standard_normal((time, batch, hidden), np.float32)
        expected = functools.cache(functools.partial(expected_gradients, layer, dy))
        runs = max(1, shape.runs // 2)
        cases = {
            name: training_case(name, way, dy, runs, expected) for name, way in _ways(layer).items()
        }
        peers = _training_peer_cases(layer, dy, THREADS, expected(1))
        seconds = _measure(cases, runs, peers, repeats)
        empty = _training_graph(ours, Empty(layer), dy, runs)
        seconds = _without_empty_runs(
            seconds, ours, empty, runs, EMPTY_TRAINING_CALLS, THREADS, repeats
        )
        seconds |= _floor(layer, THREADS, differentiate=True)
        _add_column(table, str(shape), seconds)
        if TORCH in seconds:
            what = f"{ours} / {TORCH}, forward + backward at {shape.name}"
            ratio = seconds[ours] / seconds[TORCH]
            table.goals.append(harness.Goal(what, ratio, shape.training))
    table.notes += _missing(TRAINING_PEERS, table)
    return table


def one_thread(repeats: int) -> Iterator[harness.Table]:
    """Measures in a process of its own: TensorFlow settles its threads when it starts."""
    command = [sys.executable, "-m", "benchmarks.recurrent", str(repeats)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    output = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout
    answer = json.loads(output.splitlines()[-1])
    for kind, figures in answer["figures"].items():
        yield _forward_table(kind, "1 thread", dict(zip(SHAPES, figures)), answer["notes"])


def print_one_thread(repeats: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    limit_tensorflow(1)
    names = (*OURS.values(), BLOCK_LSTM, ONNX_RUNTIME, OPENVINO_SEQUENCE, TORCH)
    figures = {
        kind: [forward_seconds(shape, kind, 1, repeats, names) for shape in SHAPES] for kind in OURS
    }
    print(json.dumps({"figures": figures, "notes": _notes(1)}))


# --- cells in loops ------------------------------------------------------------------------------


def cells_in_loops(repeats: int) -> harness.Table:
    table = harness.Table(
        "A cell in plain ops, and Keras's, in tf_ti's loops",
        "us a run",
        [],
        reference=SEQUENCE,
        notes=["some runs in a row in one graph"],
    )
    loops = {
        "tf_ti.tensor_iterator": cells.on_tensor_iterator,
        SCAN: cells.on_scan,
        "tf_ti.Loop": cells.on_loop,
    }
    for kind in OURS:
        for shape in (A, C):
            layer = Layer.random(kind, *shape.sizes)
            ways = {SEQUENCE: Sequence(layer)}
            ways |= {name: InLoop(loop, cells.CELLS[kind], layer) for name, loop in loops.items()}
            ways[KERAS_CELL] = InLoop(cells.on_scan, cells.KerasCell, layer)
            cases = {name: forward_case(name, way, layer, shape.runs) for name, way in ways.items()}
            seconds = _measure(cases, shape.runs, {}, repeats)
            column = f"{kind.upper()}, {shape}"
            _add_column(table, column, seconds)
            for name in ways:
                if name != SEQUENCE:
                    what = f"{name} / {OURS[kind]} at {shape.name}"
                    ratio = seconds[name] / seconds[SEQUENCE]
                    table.goals.append(harness.Goal(what, ratio, 1.1))
    return table


def new_cells(repeats: int) -> harness.Table:
    table = harness.Table(
        f"Cells that no library has, in plain ops, at {A}",
        "us a run",
        [],
        reference=SCAN,
        notes=[RUNS_NOTE],
        picture="recurrent-new-cells",
    )
    loops = {SCAN: cells.on_scan, WHILE: cells.on_while_loop, XLA: cells.on_while_loop}
    for column, kind in (
        ("layer-normalised LSTM", "layer-normalised lstm"),
        ("minimal gated unit", "mgu"),
    ):
        layer = Layer.random(kind, *A.sizes)
        cases = {
            name: forward_case(name, InLoop(loop, cells.CELLS[kind], layer), layer, A.runs)
            for name, loop in loops.items()
        }
        peers = _peer_cases(layer, (JAX,), THREADS)
        seconds = _measure(cases, A.runs, peers, repeats)
        _add_column(table, column, seconds)
        for name in (XLA, *peers):
            what = f"{SCAN} / {name}, {column}"
            table.goals.append(harness.Goal(what, seconds[SCAN] / seconds[name], 1.0))
    table.notes += _missing([JAX], table)
    return table


def cells_in_layers(repeats: int) -> harness.Table:
    table = harness.Table(
        "A cell of one's own, a minimal gated unit, in a layer: forward",
        "us a call",
        [],
        reference=OUR_RNN,
        notes=["one call of a tf.function a run"],
    )
    for shape in (A, C):
        layer = Layer.random("mgu", *shape.sizes)
        x = tf.constant(layer.x.transpose(1, 0, 2))
        layers = {
            OUR_RNN: tf_ti.keras.RNN(cells.MinimalGatedCell(layer), return_sequences=True),
            KERAS_RNN: tf.keras.layers.RNN(cells.MinimalGatedCell(layer), return_sequences=True),
        }
        state = [tf.constant(state) for state in layer.states]
        expected, _ = cells.on_while_loop(
            cells.MinimalGatedUnit(layer), tf.constant(layer.x), tuple(state)
        )
        calls = {}
        for name, made in layers.items():
            function = tf.function(made, autograph=False)
            calls[name] = functools.partial(function, x, initial_state=state)
            _check(name, [calls[name]()[:, -1].numpy()], [expected[0].numpy()])
        seconds = harness.measure(calls, repeats)
        _add_column(table, str(shape), seconds)
        what = f"{OUR_RNN} / {KERAS_RNN}, at {shape.name}"
        table.goals.append(harness.Goal(what, seconds[OUR_RNN] / seconds[KERAS_RNN], 0.3))
    return table


def converted_models(repeats: int) -> harness.Table:
    table = harness.Table(
        "Models of Keras, and what tf_ti.keras.convert makes of them: predict and fit",
        "ms an epoch",
        [],
        reference=CONVERTED,
        notes=[
            "1,024 texts of 100 of 5,000 words, in batches of 32; embeddings of 32, 64 units; SGD"
        ],
    )
    rng = np.random.default_rng(1)
    texts = rng.integers(1, 5000, [1024, 100], np.int32)
    labels = rng.integers(0, 2, [1024, 1]).astype(np.float32)
    layers = {
        "LSTM": lambda: tf.keras.layers.LSTM(64),
        "GRU": lambda: tf.keras.layers.GRU(64),
        "mean of embeddings": tf.keras.layers.GlobalAveragePooling1D,
    }
    for name, make in layers.items():
        theirs = tf.keras.Sequential(
            [
                tf.keras.Input([100], dtype="int32"),
                tf.keras.layers.Embedding(5000, 32),
                make(),
                tf.keras.layers.Dense(1, activation="sigmoid"),
            ]
        )
        theirs.compile("sgd", "binary_crossentropy")
        ours, _ = tf_ti.keras.convert(theirs)
        models = {CONVERTED: ours, KERAS_MODEL: theirs}
        found = [model.predict(texts, verbose=0) for model in models.values()]
        _check(name, found[:1], found[1:])
        for what in ("predict", "fit"):
            data = (texts,) if what == "predict" else (texts, labels)
            calls = {
                row: functools.partial(getattr(model, what), *data, batch_size=32, verbose=0)
                for row, model in models.items()
            }
            seconds = harness.measure(calls, repeats)
            table.add_column(f"{name}, {what}", {row: 1e3 * s for row, s in seconds.items()})
    fits = [column for column in table.columns if column.endswith("fit")]
    table.add_goal(CONVERTED, KERAS_MODEL, 0.7, columns=fits)
    return table


if __name__ == "__main__":
    print_one_thread(int(sys.argv[1]))
