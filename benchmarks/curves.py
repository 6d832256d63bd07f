"""Curves: time against a loop's length, a layer's size, a table's size, and the threads.

Each subject has a process of its own, as a library settles its threads once. Every case is checked
before it is timed.
"""

import json
import sys
from collections.abc import Iterator

import tensorflow as tf

from benchmarks import bag_peers, bags, bodies, harness, recurrent
from benchmarks.loop_bodies import BODIES
from benchmarks.recurrent_peers import JAX, ONNX_RUNTIME, TORCH

THREADS = 2
# Of figures: for each column, that of each row.
Columns = dict[str, dict[str, float]]

LSTM, BAG, SCAN = "tf_ti.lstm_sequence", "tf_ti.embedding_bag", bodies.OURS
TORCH_LSTM = "torch LSTM"
LAYERS = (LSTM, recurrent.KERAS, ONNX_RUNTIME, TORCH, JAX)
LOOPS = (SCAN, bodies.KERNELS, bodies.WHILE, bodies.WHILE_ON_XLA, bodies.JAX)
LENGTHS = {"biquad": (16, 64, 256, 1024, 4096), "rk4_lorenz": (8, 32, 128, 256, 512)}
TIMES = (4, 16, 64, 256, 1024)
HIDDEN = (16, 32, 64, 128, 256, 512)
ROWS = (1_000, 8_000, 64_000, 512_000, 4_000_000)
# The body whose arrays are the largest, so that two threads can share them.
WIDE_BODY = "selective_scan"
WIDTH, BAGS, IDS_PER_BAG = 64, 2048, 20


def run(quick: bool) -> Iterator[harness.Table]:
    for body, what in (("biquad", "of 9 operations"), ("rk4_lorenz", "of some 70 operations")):
        columns = _of_process(body, THREADS, quick)
        yield _table(f"A loop with a small body {what}, {body}", "T", columns, SCAN, f"time-{body}")
    columns = _of_process("time", THREADS, quick)
    title = "An LSTM forward at batch 1, input 64, hidden 64"
    yield _table(title, "T", columns, LSTM, "time-lstm")
    columns = _of_process("hidden", THREADS, quick)
    title = "An LSTM forward at time 50, batch 16, input as large as hidden"
    yield _table(title, "hidden size", columns, LSTM, "hidden")
    columns = _of_process("rows", THREADS, quick)
    title = f"Sums of {BAGS} bags of {IDS_PER_BAG} ids, uniform, of rows of {WIDTH}"
    yield _table(title, "rows of the table", columns, BAG, "rows")
    columns = {}
    for threads in range(1, THREADS + 1):
        columns |= _of_process("threads", threads, quick)
    title = f"Sums of bags of 512,000 rows; an LSTM at {recurrent.D}; the loop {WIDE_BODY}"
    yield _table(title, "threads", columns, None, "threads")


def _table(title: str, x: str, columns: Columns, reference: str | None, name: str) -> harness.Table:
    table = harness.Table(
        f"{title}, by {x}",
        "us a call",
        [],
        reference=reference,
        picture=f"curves-{name}",
        kind=harness.CURVES,
        x=x,
    )
    for column, figures in columns.items():
        table.add_column(column, figures)
    if x != "threads":
        table.title += f", {THREADS} threads"
    return table


def _of_process(subject: str, threads: int, quick: bool) -> Columns:
    arguments = (subject, str(threads), str(int(quick)))
    output = harness.output_of_process("benchmarks.curves", *arguments, threads=threads)
    return json.loads(output.splitlines()[-1])


def measure(subject: str, threads: int, quick: bool) -> Columns:
    """The microseconds of each way at each place of the curve: of fewer places if quick."""
    every = 2 if quick else 1
    repeats = 3 if quick else 9
    if subject == "rows":
        bag_peers.limit_tensorflow(threads)
        return {str(rows): _bags(rows, threads, quick) for rows in ROWS[::every]}
    recurrent.limit_tensorflow(threads)
    if subject == "threads":
        return {str(threads): _threads(threads, quick)}
    if subject == "time":
        places = {time: (time, 1, 64, 64) for time in TIMES}
    elif subject == "hidden":
        places = {hidden: (50, 16, hidden, hidden) for hidden in HIDDEN}
    else:
        return {
            str(length): _loop(subject, length, repeats) for length in LENGTHS[subject][::every]
        }
    return {
        str(place): _layer(sizes, threads, repeats, LAYERS)
        for place, sizes in list(places.items())[::every]
    }


def _loop(name: str, length: int, repeats: int, ways: tuple[str, ...] = LOOPS) -> dict[str, float]:
    body = BODIES[name](tf).shortened(length)
    cases = bodies.make_cases(bodies.FORWARD, name, body, ways)
    return _microseconds(harness.measure({row: case.call for row, case in cases.items()}, repeats))


def _layer(
    sizes: tuple[int, int, int, int], threads: int, repeats: int, ways: tuple[str, ...]
) -> dict[str, float]:
    # So many runs in a graph that its call hardly counts, and not so many that a step takes long.
    time, batch, inputs, hidden = sizes
    products = time * batch * (inputs + hidden) * 4 * hidden
    runs = max(1, min(20, 2_000 // time, 200_000_000 // products))
    shape = recurrent.Shape("", sizes, runs, forward=0, training=0)
    return _microseconds(recurrent.forward_seconds(shape, "lstm", threads, repeats, ways))


def _bags(rows: int, threads: int, quick: bool) -> dict[str, float]:
    effort = bag_peers.Effort(threads, sets=4, repeats=3 if quick else 7, burst=0.03)
    given = bag_peers.Bags.random(bag_peers.Shape(rows, WIDTH, BAGS, IDS_PER_BAG), effort.sets)
    cases = {
        BAG: bag_peers.TfTi(given, passes=8).forward(tf.Variable(given.table)),
        bags.LOOKUP: bag_peers.LookupSparse(given, passes=1).forward(tf.Variable(given.table)),
    }
    torch = harness.if_installed(lambda: bag_peers.Torch(given, threads))
    if torch:
        cases[bags.TORCH] = torch.forward()
        cases[bags.TORCH_HUGE] = torch.forward_on_huge_pages()
    return effort.measure(cases)


def _threads(threads: int, quick: bool) -> dict[str, float]:
    repeats = 3 if quick else 9
    of_bags = _bags(512_000, threads, quick)
    of_layers = _layer(recurrent.D.sizes, threads, repeats, (LSTM, TORCH))
    of_loop = _loop(WIDE_BODY, 128, repeats, (SCAN, bodies.KERNELS))
    figures = {name: of_bags[name] for name in (BAG, bags.TORCH) if name in of_bags}
    figures |= {LSTM: of_layers[LSTM], SCAN: of_loop[SCAN]}
    if TORCH in of_layers:
        figures[TORCH_LSTM] = of_layers[TORCH]
    return figures


def _microseconds(seconds: dict[str, float]) -> dict[str, float]:
    return {name: value * 1e6 for name, value in seconds.items()}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), bool(int(sys.argv[3])))))
