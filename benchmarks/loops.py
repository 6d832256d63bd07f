"""Loops: the cost of an iteration, LSTMs beside other libraries, and memory.

TensorFlow's loops are measured inside one graph: several loops, each starting from the state that
the last one left, in one tf.function. The call of the function, 0.1 to 0.2 ms, then hardly counts,
and no two loops run at the same time. The other libraries are called once a run.
"""

import functools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

import tf_ti
from benchmarks import cells, harness
from benchmarks.recurrent_peers import PEERS, Layer

THREADS = 2
OURS = "tf_ti.tensor_iterator"
NOT_FUSED = "tf_ti.tensor_iterator, fuse=False"
COUNTED_LOOP = "tf_ti.Loop, COUNT"
WHILE_LOOP = "tf_ti.Loop, WHILE"
WHILE = "tf.while_loop"
XLA = "tf.while_loop, XLA-compiled"
OURS_ON_XLA = "tf_ti.tensor_iterator, XLA-compiled"
SCAN_ON_XLA = "tf_ti.scan, XLA-compiled"
LOOP_ON_XLA = "tf_ti.Loop, COUNT, XLA-compiled"
COMPILED = (XLA, OURS_ON_XLA, SCAN_ON_XLA, LOOP_ON_XLA)
# (time, batch, input, hidden)
SHAPES = ((25, 1, 512, 256), (200, 1, 8, 8), (100, 32, 64, 64))


def run(quick: bool) -> Iterator[harness.Table]:
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    repeats = 3 if quick else 9
    yield small_lstm(repeats)
    yield lstm_beside_peers(repeats)
    yield compiled_lstm(repeats)
    yield jacobians(repeats)
    yield greedy_decoding(repeats)
    yield cost_of_an_iteration(repeats)
    yield cost_of_tracing(repeats)
    yield cost_of_an_eager_call(repeats)
    yield linearity(quick)
    yield from long_counter(quick)
    yield memory(quick)


# --- the LSTM in each of TensorFlow's loops ------------------------------------------------------


def make_keras_lstm(lstm: Layer) -> Callable:
    layer = cells.make_keras_layer(lstm)

    def run_lstm(cell, x, state):
        del cell
        y, h, c = layer(tf.transpose(x, [1, 0, 2]), initial_state=list(state))
        return (h, c), y

    return run_lstm


def lstm_cases(
    lstm: Layer, ways: dict[str, Callable], runs: int, differentiate: bool
) -> dict[str, Callable]:
    """Functions that run the LSTM `runs` times in a row, checked against the definition.

    With `differentiate`, they return the gradient of the last hidden state by the weights.
    """
    cell = cells.LstmCell(lstm)
    initial = tuple(map(tf.constant, lstm.states))

    def forward(way, xs):
        # Every output is wanted, so that nothing is left out.
        state, outputs = cells.run_in_a_row(functools.partial(way, cell), xs, initial)
        return state[0], outputs

    def forward_backward(way, xs):
        with tf.GradientTape() as tape:
            h, _ = forward(way, xs)
        return h, tape.gradient(h, [cell.kernel, cell.bias])

    run = forward_backward if differentiate else forward
    x = tf.constant(lstm.x)
    cases = {
        name: cells.graph_of(functools.partial(run, way), x, runs, jit_compile=name in COMPILED)
        for name, way in ways.items()
    }
    results = {name: case() for name, case in cases.items()}
    expected = lstm.last_hidden(runs)
    for name, result in results.items():
        np.testing.assert_allclose(result[0], expected, rtol=1e-3, atol=1e-4, err_msg=name)
        if differentiate:
            for ours, other in zip(next(iter(results.values()))[1], result[1]):
                np.testing.assert_allclose(ours, other, rtol=1e-3, atol=1e-4, err_msg=name)
    return cases


def per_run(seconds: dict[str, float], runs: int) -> dict[str, float]:
    return {name: value / runs * 1e6 for name, value in seconds.items()}


def small_lstm(repeats: int) -> harness.Table:
    time, runs = 200, 10
    lstm = Layer.random("lstm", time, batch=1, inputs=8, hidden=8)
    ways = {
        OURS: cells.on_tensor_iterator,
        NOT_FUSED: functools.partial(cells.on_tensor_iterator, fuse=False),
        "tf_ti.scan": cells.on_scan,
        COUNTED_LOOP: cells.on_loop,
        WHILE_LOOP: cells.on_loop_with_condition,
        WHILE: cells.on_while_loop,
        "tf.scan": cells.on_tf_scan,
        XLA: cells.on_while_loop,
    }
    table = harness.Table(
        f"An LSTM in plain ops, {time} iterations, batch 1, input 8, hidden 8",
        "us an iteration",
        [],
        reference=OURS,
        notes=[f"{runs} loops in a row in one graph"],
        picture="loops-lstm",
    )
    for column, differentiate, limit in (
        ("forward", False, 1 / 5),
        ("forward + backward", True, 1 / 3),
    ):
        seconds = harness.measure(lstm_cases(lstm, ways, runs, differentiate), repeats)
        table.add_column(column, per_run(seconds, runs * time))
        for way in (OURS, NOT_FUSED):
            what = f"{way} / tf.while_loop, {column}"
            table.goals.append(harness.Goal(what, seconds[way] / seconds[WHILE], limit))
        if not differentiate:
            for way, other, limit in ((COUNTED_LOOP, OURS, 1.05), (WHILE_LOOP, WHILE, 1 / 3)):
                ratio = seconds[way] / seconds[other]
                table.goals.append(harness.Goal(f"{way} / {other}, {column}", ratio, limit))
    return table


def lstm_beside_peers(repeats: int) -> harness.Table:
    table = harness.Table(
        "An LSTM forward at (time, batch, input, hidden)",
        "us a run",
        [],
        reference=OURS,
        notes=["TensorFlow's ways: some runs in a row in one graph; the others: one call a run"],
        picture="loops-peers",
    )
    for shape in SHAPES:
        lstm = Layer.random("lstm", *shape)
        ways = {
            OURS: cells.on_tensor_iterator,
            "tf_ti.scan": cells.on_scan,
            WHILE: cells.on_while_loop,
            "tf.scan": cells.on_tf_scan,
            "Keras LSTM": make_keras_lstm(lstm),
            XLA: cells.on_while_loop,
        }
        runs = 5
        seconds = harness.measure(lstm_cases(lstm, ways, runs, differentiate=False), repeats)
        figures = per_run(seconds, runs)
        figures |= per_run(harness.measure(_peer_cases(lstm), repeats), 1)
        column = ", ".join(map(str, shape))
        table.add_column(column, figures)
        if shape != (200, 1, 8, 8):
            for name in (WHILE, "tf.scan", "Keras LSTM"):
                ratio = figures[OURS] / figures[name]
                table.goals.append(harness.Goal(f"{OURS} / {name} at {column}", ratio, 1.0))
    return table


def compiled_lstm(repeats: int) -> harness.Table:
    runs = 5
    table = harness.Table(
        "An LSTM compiled by XLA, forward (f) and forward + backward (f+b)",
        "us a run",
        [],
        reference=XLA,
        notes=[f"{runs} runs in a row in one compiled function"],
    )
    ways = {
        OURS_ON_XLA: cells.on_tensor_iterator,
        SCAN_ON_XLA: cells.on_scan,
        LOOP_ON_XLA: cells.on_loop,
        XLA: cells.on_while_loop,
    }
    for shape in SHAPES:
        for what, differentiate in (("f", False), ("f+b", True)):
            cases = lstm_cases(Layer.random("lstm", *shape), ways, runs, differentiate)
            seconds = harness.measure(cases, repeats)
            column = f"{', '.join(map(str, shape))}: {what}"
            table.add_column(column, per_run(seconds, runs))
            for name in (OURS_ON_XLA, SCAN_ON_XLA):
                ratio = seconds[name] / seconds[XLA]
                what = f"{name} / tf.while_loop's at {column}"
                table.goals.append(harness.Goal(what, ratio, 1.0))
    return table


def _peer_cases(lstm: Layer) -> dict[str, Callable]:
    cases = {}
    for name, make in PEERS.items():
        try:
            case = make(lstm, THREADS)
        except ImportError:
            continue
        expected = lstm.last_hidden()
        np.testing.assert_allclose(case(), expected, rtol=1e-3, atol=1e-4, err_msg=name)
        cases[name] = case
    return cases


# --- jacobians -----------------------------------------------------------------------------------


def jacobians(repeats: int) -> harness.Table:
    time, scan = 50, "tf_ti.scan"
    lstm = Layer.random("lstm", time, batch=1, inputs=8, hidden=8)
    cell = cells.LstmCell(lstm)
    arguments = tf.constant(lstm.x), tuple(map(tf.constant, lstm.states))

    def last_by_input(way, x, state):
        with tf.GradientTape() as tape:
            tape.watch(x)
            (h, _), _ = way(cell, x, state)
        return tape.jacobian(h, x)

    def all_by_first(way, x, state):
        with tf.GradientTape() as tape:
            tape.watch(state)
            _, y = way(cell, x, state)
        return tape.jacobian(y, state[0])

    table = harness.Table(
        f"A jacobian of an LSTM in plain ops, {time} iterations, batch 1, input 8, hidden 8",
        "us",
        [],
        reference=scan,
    )
    for column, f in (
        ("last state by input", last_by_input),
        ("all states by the first", all_by_first),
    ):
        cases = {
            name: functools.partial(
                tf.function(functools.partial(f, way), autograph=False), *arguments
            )
            for name, way in ((scan, cells.on_scan), (WHILE, cells.on_while_loop))
        }
        np.testing.assert_allclose(cases[scan](), cases[WHILE](), rtol=1e-3, atol=1e-5)
        seconds = harness.measure(cases, repeats)
        table.add_column(column, per_run(seconds, 1))
        ratio = seconds[scan] / seconds[WHILE]
        table.goals.append(harness.Goal(f"{scan} / {WHILE}, {column}", ratio, 1.0))
    return table


# --- greedy decoding -----------------------------------------------------------------------------

END = 0


class Decoder(tf.Module):
    """A GRU that reads its own output: each time the likeliest token, but never the end."""

    def __init__(self, tokens: int, embedding: int, hidden: int):
        super().__init__()
        glorot = tf.keras.initializers.GlorotUniform(seed=1)
        self.embedding = tf.Variable(tf.random.stateless_normal([tokens, embedding], [1, 2]))
        self.gates = tf.Variable(glorot([embedding + hidden, 2 * hidden]))
        self.gates_bias = tf.Variable(tf.zeros([2 * hidden]))
        self.candidate = tf.Variable(glorot([embedding + hidden, hidden]))
        self.candidate_bias = tf.Variable(tf.zeros([hidden]))
        self.output = tf.Variable(3 * glorot([hidden, tokens]))
        self.output_bias = tf.Variable(tf.one_hot(END, tokens, on_value=-1e9, off_value=0.0))

    def __call__(self, token: tf.Tensor, h: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Takes token [1] and h [1, hidden], and returns the next ones."""
        x = tf.gather(self.embedding, token)
        gates = tf.nn.bias_add(tf.concat([x, h], axis=1) @ self.gates, self.gates_bias)
        keep, reset = tf.split(tf.sigmoid(gates), 2, axis=1)
        mixed = tf.concat([x, reset * h], axis=1)
        candidate = tf.tanh(tf.nn.bias_add(mixed @ self.candidate, self.candidate_bias))
        h = keep * h + (1 - keep) * candidate
        logits = tf.nn.bias_add(h @ self.output, self.output_bias)
        return tf.argmax(logits, axis=1, output_type=tf.int32), h


def decode_on_loop(
    decoder: Decoder, first: tf.Tensor, state: tf.Tensor, longest: int
) -> tuple[tf.Tensor, tf.Tensor]:
    with tf_ti.Loop() as loop:
        token, h = loop.add_recurrence(first), loop.add_recurrence(state)
        loop.add_trip_limit(token[0] != END, tf_ti.TripLimit.WHILE)
        loop.add_trip_limit(longest, tf_ti.TripLimit.COUNT)
        token.next, h.next = decoder(token, h)
        tokens = loop.add_loop_output(token.next, tf_ti.LoopOutput.CONCATENATE, length=longest)
        last = loop.add_loop_output(h, tf_ti.LoopOutput.LAST_VALUE)
    return tokens.tensor, last.tensor


def decode_on_while_loop(
    decoder: Decoder, first: tf.Tensor, state: tf.Tensor, longest: int
) -> tuple[tf.Tensor, tf.Tensor]:
    tokens = tf.TensorArray(tf.int32, longest, element_shape=[1])

    def body(k, token, h, tokens):
        token, h = decoder(token, h)
        return k + 1, token, h, tokens.write(k, token)

    _, _, h, tokens = tf.while_loop(
        lambda k, token, *_: token[0] != END,
        body,
        (0, first, state, tokens),
        maximum_iterations=longest,
    )
    return tokens.stack(), h


def greedy_decoding(repeats: int) -> harness.Table:
    tokens, embedding, hidden, longest, runs = 100, 64, 256, 200, 3
    decoder = Decoder(tokens, embedding, hidden)
    loop = "tf_ti.Loop, WHILE and COUNT"
    ways = {loop: decode_on_loop, WHILE: decode_on_while_loop, XLA: decode_on_while_loop}

    def decode(way):
        first, h, outputs = tf.constant([1]), tf.zeros([1, hidden]), []
        for _ in range(runs):
            output, h = way(decoder, first, h, longest)
            first = output[-1]
            outputs.append(output)
        return tf.concat(outputs, axis=0)

    cases = {
        name: tf.function(functools.partial(decode, way), jit_compile=name == XLA, autograph=False)
        for name, way in ways.items()
    }
    results = {name: case().numpy() for name, case in cases.items()}
    for name, result in results.items():
        assert result.shape == (runs * longest, 1) and END not in result
        np.testing.assert_array_equal(result, results[WHILE], err_msg=name)
    table = harness.Table(
        f"Greedy decoding, {longest} tokens out of {tokens}, embedding {embedding}, GRU {hidden}, "
        "batch 1",
        "us a token",
        [],
        reference=loop,
        notes=[f"{runs} loops in a row in one graph; none meets the end token that it looks for"],
        picture="loops-decoding",
    )
    seconds = harness.measure(cases, repeats)
    table.add_column("forward", per_run(seconds, runs * longest))
    ratio = seconds[loop] / seconds[WHILE]
    table.goals.append(harness.Goal(f"{loop} / {WHILE}", ratio, 1 / 3))
    return table


# --- the cost of an iteration --------------------------------------------------------------------


def _twelve_ops(h: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    # The graph optimiser would make one op of nothing but additions.
    for _ in range(6):
        h = y - (h + y)
    return h


BODIES = {
    "empty": (1, lambda h, y: h),
    "one add": (1, lambda h, y: h + y),
    "12 adds and subtractions": (1, _twelve_ops),
    "16 x 16 matmul": (16, lambda h, y: h @ y),
}


def iterate(way: str, op: Callable, h: tf.Tensor, y: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Applies op(h, y) `count` times to h."""
    if way == WHILE:
        return tf.while_loop(
            lambda k, _: k < count, lambda k, h: (k + 1, op(h, y)), (tf.constant(0, tf.int64), h)
        )[1]
    return tf_ti.tensor_iterator(
        lambda h: op(h, y),
        [h],
        tf_ti.PortMap(inputs=[tf_ti.InputPort(0, 0)], outputs=[tf_ti.OutputPort(0, 0)]),
        [tf_ti.BackEdge(0, 0)],
        num_iterations=count,
    )[0]


def _iteration(way: str, body: str) -> Callable[[int], Callable]:
    extent, op = BODIES[body]
    function = tf.function(functools.partial(iterate, way, op), autograph=False)
    h, y = tf.zeros([extent, extent]), tf.eye(extent)
    return lambda count: functools.partial(function, h, y, tf.constant(count, tf.int64))


def cost_of_an_iteration(repeats: int) -> harness.Table:
    few, many = 1_000, 21_000
    table = harness.Table(
        "An iteration with a small body",
        "us",
        [],
        reference=OURS,
        notes=[f"from the difference between {many:,} and {few:,} iterations"],
        picture="loops-iteration",
    )
    for body in BODIES:
        cases = {}
        for way in (OURS, WHILE):
            make = _iteration(way, body)
            cases |= {(way, count): make(count) for count in (few, many)}
        seconds = harness.measure(cases, repeats)
        figures = {
            way: (seconds[way, many] - seconds[way, few]) / (many - few) * 1e6
            for way in (OURS, WHILE)
        }
        table.add_column(body, figures)
    ours = table.rows[OURS]
    table.goals += [
        harness.Goal("an empty body", ours[0], 0.6, "us"),
        harness.Goal("one add more than an empty body", ours[1] - ours[0], 0.35, "us"),
        harness.Goal("of 12 ops each one", (ours[2] - ours[0]) / 12, 0.35, "us"),
    ]
    return table


# --- the cost of a call before the first iteration -----------------------------------------------


def _make_lstm_step() -> Callable:
    """A step, as a callable that has not been traced yet, for states and inputs of 8."""
    cell = cells.LstmCell(Layer.random("lstm", 1, 1, 8, 8))

    def step(state, x):
        h, c = cell(x, *state)
        return (h, c), h

    return step


def _make_small_step() -> Callable:
    return lambda state, x: ((state[0] + x, state[1] * x), x)


def _make_long_step() -> Callable:
    def step(state, x):
        h, c = state
        for _ in range(100):
            h = h + x
        return (h, c), h

    return step


STEPS = {"2 ops": _make_small_step, "LSTM": _make_lstm_step, "100 additions": _make_long_step}


def cost_of_tracing(repeats: int) -> harness.Table:
    function, scan, nothing = "tf.function of the body", "tf_ti.scan of it", "an empty function"
    table = harness.Table(
        "Tracing a body, without running it",
        "ms",
        [],
        reference=function,
        notes=[f"without what {nothing} takes in which the scan stands"],
    )
    state = (tf.TensorSpec([1, 8]),) * 2
    x, xs = tf.TensorSpec([1, 8]), tf.TensorSpec([10, 1, 8])

    def trace(f, *specs):
        return tf.function(f).get_concrete_function(*specs)

    for body, make in STEPS.items():
        step = make()
        seconds = harness.measure(
            {
                function: lambda step=step: trace(lambda s, x: step(s, x), state, x),
                scan: lambda step=step: trace(lambda s, xs: tf_ti.scan(step, s, xs), state, xs),
                nothing: lambda: trace(lambda s, xs: (s, xs), state, xs),
            },
            repeats,
        )
        seconds[scan] -= seconds.pop(nothing)
        table.add_column(body, {name: value * 1e3 for name, value in seconds.items()})
    worst = max(ours / theirs for ours, theirs in zip(table.rows[scan], table.rows[function]))
    table.goals.append(harness.Goal(f"{scan} / {function}, the worst", worst, 1.5))
    return table


def cost_of_an_eager_call(repeats: int) -> harness.Table:
    plain, traced = "tf_ti.scan of a callable", "tf_ti.scan of a tf.function"
    anew, kept = "a new tf.function with tf_ti.scan", "a tf.function with tf_ti.scan, kept"
    table = harness.Table(
        "An eager call, 10 iterations",
        "ms",
        [],
        reference=kept,
        notes=["a callable is traced at each call, as a new tf.function is"],
    )
    state, xs = (tf.zeros([1, 8]),) * 2, tf.ones([10, 1, 8])
    for body, make in STEPS.items():
        step = make()
        ready = tf.function(step)
        function = tf.function(lambda s, xs, step=step: tf_ti.scan(step, s, xs))
        cases = {
            plain: lambda step=step: tf_ti.scan(step, state, xs),
            traced: lambda ready=ready: tf_ti.scan(ready, state, xs),
            anew: lambda step=step: tf.function(lambda s, xs: tf_ti.scan(step, s, xs))(state, xs),
            kept: lambda function=function: function(state, xs),
        }
        seconds = harness.measure(cases, repeats)
        table.add_column(body, {name: value * 1e3 for name, value in seconds.items()})
    return table


def linearity(quick: bool) -> harness.Table:
    counts = [1_000, 10_000, 100_000, 1_000_000]
    last = f"{counts[-1]:,}"
    table = harness.Table(
        "An iteration of a long loop, by the number of iterations",
        "us an iteration",
        [],
        notes=["with the call of the tf.function, which counts where iterations are few"],
    )

    running_sum = tf.function(
        _running_sum, input_signature=[tf.TensorSpec([None])], autograph=False
    )
    ways = {
        "one add": _iteration(OURS, "one add"),
        "one sum of a sliced input, all concatenated": lambda count: functools.partial(
            running_sum, tf.ones([count])
        ),
    }
    cases = {(name, count): make(count) for name, make in ways.items() for count in counts}
    seconds = harness.measure(cases, repeats=5 if quick else 11)
    for count in counts:
        figures = {name: seconds[name, count] for name in ways}
        table.add_column(f"{count:,}", per_run(figures, count))
    for name, figures in table.rows.items():
        ratio = figures[-1] / figures[-2]
        table.goals.append(harness.Goal(f"{name}, {last} / {counts[-2]:,} iterations", ratio, 1.1))
    return table


def _running_sum(xs: tf.Tensor) -> tf.Tensor:
    def body(x, total):
        return total + x, total + x

    return tf_ti.tensor_iterator(
        body,
        [xs, tf.zeros([1])],
        tf_ti.PortMap(
            inputs=[tf_ti.InputPort(0, 0, axis=0), tf_ti.InputPort(1, 1)],
            outputs=[tf_ti.OutputPort(0, 1, axis=0)],
        ),
        [tf_ti.BackEdge(0, 1)],
    )[0]


# --- a million iterations ------------------------------------------------------------------------


def _count_on_loop(limit: tf_ti.TripLimit, count: tf.Tensor) -> tf.Tensor:
    with tf_ti.Loop() as loop:
        k = loop.add_recurrence(tf.constant(0, tf.int64))
        k.next = k + 1
        loop.add_trip_limit(count if limit is tf_ti.TripLimit.COUNT else k < count, limit)
        last = loop.add_loop_output(k, tf_ti.LoopOutput.LAST_VALUE)
    return last.tensor


def _count_on_while_loop(count: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda k: k < count, lambda k: [k + 1], [tf.constant(0, tf.int64)])[0]


COUNTERS = {
    COUNTED_LOOP: functools.partial(_count_on_loop, tf_ti.TripLimit.COUNT),
    WHILE_LOOP: functools.partial(_count_on_loop, tf_ti.TripLimit.WHILE),
    WHILE: _count_on_while_loop,
}


def long_counter(quick: bool) -> Iterator[harness.Table]:
    iterations, repeats = 1_000_000, 1 if quick else 3
    column = f"{iterations:,} iterations"
    seconds, growth = {}, {}
    for way in COUNTERS:
        figures = _run_alone("counter", way, iterations, repeats)
        seconds[way], growth[way] = map(float, figures.split())
    notes = ["each in a process of its own, after 1,000 iterations of the same loop"]
    for title, unit, short, figures, limit in (
        ("A loop that only counts", "seconds", "s", seconds, 3.0),
        ("A loop that only counts: memory", "MiB of peak above the start", "MiB", growth, 10.0),
    ):
        table = harness.Table(title, unit, [], notes=notes)
        table.add_column(column, figures)
        for way in (COUNTED_LOOP, WHILE_LOOP):
            table.goals.append(harness.Goal(f"{way}, {column}", figures[way], limit, short))
        yield table


def print_counter(way: str, iterations: str, repeats: str) -> None:
    """Prints the seconds that counting takes, and the MiB beyond those of counting to 1,000."""
    function = tf.function(
        COUNTERS[way], input_signature=[tf.TensorSpec([], tf.int64)], autograph=False
    )
    function(tf.constant(1_000, tf.int64))
    before = harness.memory_of_process("VmHWM")
    count, seconds = tf.constant(int(iterations), tf.int64), []
    for _ in range(int(repeats)):
        start = time.perf_counter()
        result = function(count).numpy()
        seconds.append(time.perf_counter() - start)
        assert result == int(iterations)
    # At least a page: a picture's logarithmic scale has no zero.
    print(statistics.median(seconds), max(harness.memory_of_process("VmHWM") - before, 4) / 1024)


def _run_alone(*arguments) -> str:
    """The output of this module in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.loops", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


# --- memory --------------------------------------------------------------------------------------

NEEDED = "input + output"
MEMORY_LOOPS = {
    OURS: lambda step, h, xs: _tensor_iterator_for_memory(step, h, xs),
    WHILE: lambda step, h, xs: _while_loop_for_memory(step, h, xs),
}


def _tensor_iterator_for_memory(step, h, xs):
    def body(x, h):
        h = step(h, tf.squeeze(x, [0]))
        return h, h[tf.newaxis]

    return tf_ti.tensor_iterator(
        body,
        [xs, h],
        tf_ti.PortMap(
            inputs=[tf_ti.InputPort(0, 0, axis=0), tf_ti.InputPort(1, 1)],
            outputs=[tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 1, axis=0)],
        ),
        [tf_ti.BackEdge(0, 1)],
    )


def _while_loop_for_memory(step, h, xs):
    count = tf.shape(xs)[0]
    pieces = tf.TensorArray(xs.dtype, count).unstack(xs)
    ys = tf.TensorArray(xs.dtype, count)

    def body(k, h, ys):
        h = step(h, pieces.read(k))
        return k + 1, h, ys.write(k, h)

    _, h, ys = tf.while_loop(lambda k, *_: k < count, body, (0, h, ys))
    return h, ys.stack()


def memory(quick: bool) -> harness.Table:
    mebibytes = 64 if quick else 256
    table = harness.Table(
        f"Memory: input of {mebibytes} MiB, output as large",
        "MiB of peak above the start",
        [],
        reference=NEEDED,
        notes=["each in a process of its own, after a small run of the same loop"],
        picture="loops-memory",
    )
    for iterations in (100, 10_000, 100_000):
        width = mebibytes * 2**20 // 4 // iterations
        figures = {NEEDED: 2 * iterations * width * 4 / 2**20}
        for way in (OURS, WHILE):
            figures[way] = float(_run_alone("memory", way, iterations, width)) / 1024
        table.add_column(f"{iterations:,} iterations", figures)
        # One iteration holds a piece or two. The allocators and threads need a little, too.
        needed = figures[NEEDED] + 4 * width * 4 / 2**20 + 8
        what = f"{OURS}, {iterations:,} iterations: peak / (input + output + one iteration)"
        table.goals.append(harness.Goal(what, figures[OURS] / needed, 1.0))
    return table


def print_peak_growth(way: str, iterations: str, width: str) -> None:
    """Prints the memory that a large loop needs at its peak beyond a small one, in KiB."""
    iterations, width = int(iterations), int(width)
    function = tf.function(
        functools.partial(MEMORY_LOOPS[way], lambda h, x: h * 0.5 + x),
        input_signature=[tf.TensorSpec([width]), tf.TensorSpec([None, width])],
        autograph=False,
    )
    h = tf.zeros([width])
    function(h, tf.fill([3, width], 1.0))
    before = harness.memory_of_process("VmHWM")
    xs = tf.fill([iterations, width], 1.0)
    _, ys = function(h, xs)
    assert ys.shape == xs.shape
    print(harness.memory_of_process("VmHWM") - before)


if __name__ == "__main__":
    {"counter": print_counter, "memory": print_peak_growth}[sys.argv[1]](*sys.argv[2:])
