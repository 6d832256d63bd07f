"""Large arrays: the time of calls whose outputs have megabytes, and the page faults of such calls.

Each row has processes of its own, which take turns with the processes of other rows. Each figure is
the median of the medians of these processes.
"""

import dataclasses
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

import tf_ti
from benchmarks import harness

THREADS = 2
OURS, KERNELS, WHILE = "tf_ti", "tf_ti.scan, fuse=False", "tf.while_loop"
ON_XLA = "tf_ti.scan, XLA-compiled"
SMALL_PAGES = "tf_ti, 4 KB pages"
# For each row, the environment of its process.
ROWS = {
    OURS: {},
    SMALL_PAGES: {"TF_TI_HUGE_PAGES": "0"},
    KERNELS: {},
    WHILE: {},
    ON_XLA: {},
}
STEPS, ROWS_OF_STATE, WIDTH = 50, 100_000, 8
# The most of tf.while_loop's time, by column, and the most of the page faults of 4 KB pages.
GOALS = {"scan": 0.6, "scan, gradient": 0.55}
GOAL_OF_FAULTS = 0.5


def _numbers(*shape: int) -> tf.Tensor:
    # NumPy's memory asks for huge pages by itself, the memory of a copy does not.
    return tf.identity(np.random.default_rng(7).standard_normal(shape).astype(np.float32))


def _scan(f: Callable, h: tf.Tensor, xs: tf.Tensor, fuse: bool = True):
    return tf_ti.scan(f, h, xs, fuse=fuse)


def _while_loop(f: Callable, h: tf.Tensor, xs: tf.Tensor):
    count = xs.shape[0]
    elements = tf.TensorArray(xs.dtype, count, element_shape=xs.shape[1:]).unstack(xs)
    stack = tf.TensorArray(h.dtype, count, element_shape=h.shape)

    def step(t, h, stack):
        h, y = f(h, elements.read(t))
        return t + 1, h, stack.write(t, y)

    loop_vars = (0, h, stack)
    _, h, stack = tf.while_loop(lambda t, *_: t < count, step, loop_vars, maximum_iterations=count)
    return h, stack.stack()


def _states(row: str) -> tuple[Callable, list[tf.Tensor]]:
    """A scan over a state of megabytes, which returns all states."""
    loop = _while_loop if row == WHILE else _scan
    options = {"fuse": False} if row == KERNELS else {}

    def call(h, xs, w):
        def f(h, x):
            h = tf.tanh(h * w + x)
            return h, h

        return loop(f, h, xs, **options)

    return call, [_numbers(ROWS_OF_STATE, WIDTH), _numbers(STEPS, WIDTH), _numbers(WIDTH)]


def _sequence(row: str) -> tuple[Callable, list[tf.Tensor]]:
    steps, batch, size = 200, 64, 256

    def call(x, w, r, b):
        state = tf.zeros([batch, 1, size])
        return tf_ti.lstm_sequence(x, state, state, None, w, r, b)

    weights = _numbers(1, 4 * size, size) / size**0.5
    return call, [_numbers(batch, steps, size), weights, weights, _numbers(1, 4 * size)]


def _bags(row: str) -> tuple[Callable, list[tf.Tensor]]:
    table = _numbers(10_000, 64)
    ids = tf.random.stateless_uniform([200_000, 2], (1, 2), maxval=10_000, dtype=tf.int32)

    def call(table):
        return (tf_ti.embedding_bag_packed(table, ids),)

    return call, [table]


def _loss(results: tuple[tf.Tensor, ...]) -> tf.Tensor:
    return tf.add_n([tf.reduce_sum(t * t) for t in results])


def _loss_of_first(results: tuple[tf.Tensor, ...]) -> tf.Tensor:
    return _loss(results[:1])


@dataclasses.dataclass(frozen=True)
class Subject:
    """A thing to do.

    Attributes:
        make: returns the function and its arguments for a row.
        rows: the rows that can do it.
        loss: of the function's results, if the thing to do is the loss's gradient.
    """

    make: Callable
    rows: tuple[str, ...]
    loss: Callable | None = None


SUBJECTS = {
    "scan": Subject(_states, tuple(ROWS)),
    "scan, gradient": Subject(_states, tuple(ROWS), _loss),
    "scan, gradient of the last state": Subject(_states, tuple(ROWS), _loss_of_first),
    "LSTM sequence": Subject(_sequence, (OURS, SMALL_PAGES)),
    "LSTM sequence, gradient": Subject(_sequence, (OURS, SMALL_PAGES), _loss),
    "bags": Subject(_bags, (OURS, SMALL_PAGES)),
}


@dataclasses.dataclass(frozen=True)
class Cost:
    """The medians of the calls of a process.

    Attributes:
        wall: milliseconds.
        processor: milliseconds of all threads.
        faults: the number of page faults.
    """

    wall: float
    processor: float
    faults: float

    @classmethod
    def now(cls) -> "Cost":
        usage = resource.getrusage(resource.RUSAGE_SELF)
        seconds = usage.ru_utime + usage.ru_stime
        return cls(time.perf_counter() * 1e3, seconds * 1e3, usage.ru_minflt)

    def since(self, begin: "Cost") -> "Cost":
        return Cost(*(b - a for a, b in zip(dataclasses.astuple(begin), dataclasses.astuple(self))))

    @classmethod
    def median(cls, costs: list["Cost"]) -> "Cost":
        return cls(*map(statistics.median, zip(*map(dataclasses.astuple, costs))))


def run(quick: bool) -> Iterator[harness.Table]:
    rounds, calls = (1, 5) if quick else (5, 9)
    notes = [
        f"scan: {STEPS} steps over a state of {ROWS_OF_STATE:,} x {WIDTH} floats, with all states",
        "LSTM sequence: 200 steps, batch 64, input and hidden 256",
        "bags: 200,000 of 2 ids, width 64",
        "TF_ENABLE_ONEDNN_OPTS=0: oneDNN's allocator would keep the memory of earlier calls",
        "4 KB pages: TF_TI_HUGE_PAGES=0",
        "gradient: the squares of the loss, which TensorFlow's kernels make, are on 4 KB pages",
    ]
    wall = harness.Table("Large arrays: a call", "ms", [], reference=OURS, notes=notes)
    processor = harness.Table("Large arrays: processor time of a call", "ms", [], reference=OURS)
    faults = harness.Table("Large arrays: page faults of a call", "faults", [], reference=OURS)
    for name, subject in SUBJECTS.items():
        costs = {row: [] for row in subject.rows}
        for _ in range(rounds):
            for row in subject.rows:
                costs[row].append(_measure(name, row, calls))
        medians = {row: Cost.median(found) for row, found in costs.items()}
        wall.add_column(name, {row: cost.wall for row, cost in medians.items()})
        processor.add_column(name, {row: cost.processor for row, cost in medians.items()})
        faults.add_column(name, {row: cost.faults for row, cost in medians.items()})
    for column, goal in GOALS.items():
        wall.add_goal(OURS, WHILE, goal, columns=[column])
    wall.add_goal(OURS, SMALL_PAGES, 1.0)
    faults.add_goal(OURS, SMALL_PAGES, GOAL_OF_FAULTS)
    yield wall
    yield processor
    yield faults


def _measure(name: str, row: str, calls: int) -> Cost:
    environment = {"TF_ENABLE_ONEDNN_OPTS": "0", **ROWS[row]}
    output = harness.output_of_process(
        "benchmarks.large_arrays", name, row, str(calls), threads=THREADS, environment=environment
    )
    return Cost(*json.loads(output))


def print_cost(name: str, row: str, calls: str) -> None:
    """Prints the cost of a call as JSON."""
    subject = SUBJECTS[name]
    forward, arguments = subject.make(row)

    def with_gradient(*arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            results = forward(*arguments)
            loss = subject.loss(results)
        return tape.gradient(loss, arguments)

    call = tf.function(
        forward if subject.loss is None else with_gradient,
        autograph=False,
        jit_compile=row == ON_XLA,
    )
    costs = []
    for _ in range(2 + int(calls)):
        begin = Cost.now()
        results = call(*arguments)
        costs.append(Cost.now().since(begin))
        del results
    print(json.dumps(dataclasses.astuple(Cost.median(costs[2:]))))


if __name__ == "__main__":
    print_cost(*sys.argv[1:])
