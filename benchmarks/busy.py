"""Latencies where others want the same two cores: sequences and bags beside other libraries.

Some processes spin on the cores. Each way to run a case has a process of its own, as libraries
settle their threads once. The ways take turns, and those that do not run sleep. A call is a call of
a tf.function, of an eager op, or of another library: the time that a server waits. The figures are
the 10th, 50th and 90th percentiles of a round's calls, and their medians over several rounds.
"""

import contextlib
import dataclasses
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from benchmarks import bag_peers, harness, recurrent
from benchmarks.recurrent_peers import ONNX_RUNTIME, PEERS, TORCH, TRAINING_PEERS, Layer

LOADS = (0, 1, 2, 4)
LEAST_CALLS = 20
PERCENTILES = (10, 50, 90)
BAGS = bag_peers.Shape(1_000_000, 64, 4096, 20)
ONE, TWO = "tf_ti, 1 thread", "tf_ti, 2 threads"
# A spinning process. It ends with the process that has started it, however that ends.
SPIN = (
    "import os; parent = os.getppid()\nwhile os.getppid() == parent:\n for _ in range(9999): pass"
)


@dataclasses.dataclass(frozen=True)
class Subject:
    """A case to run.

    Attributes:
        kind: "lstm", "gru" or "bags".
        shape: one of recurrent.SHAPES, by its name; nothing for bags.
        differentiates: True if gradients belong to it.
        goal: the most that two threads may take on quiet cores, in times of one thread.
    """

    kind: str
    shape: str = ""
    differentiates: bool = False
    goal: float | None = None

    def __str__(self) -> str:
        if self.kind == "bags":
            return f"sum of bags at (rows, width, bags, ids a bag) {BAGS}"
        way = "forward + backward" if self.differentiates else "forward"
        sizes = f"at (time, batch, input, hidden) {_shape(self.shape)}"
        return f"{self.kind.upper()} {way} {sizes}"


SUBJECTS = (
    *(
        Subject(kind, shape, differentiates, goal)
        for kind in ("lstm", "gru")
        for differentiates in (False, True)
        for shape, goal in (("A", 0.75), ("C", 0.6), ("D", 0.6))
    ),
    Subject("bags"),
)


@dataclasses.dataclass(frozen=True)
class Effort:
    """The calls of a case in a round, the most seconds of a round, and the number of rounds."""

    rounds: int
    calls: int
    seconds: float


def _shape(name: str) -> recurrent.Shape:
    return next(shape for shape in recurrent.SHAPES if shape.name == name)


def run(quick: bool) -> Iterator[harness.Table]:
    effort = Effort(3, 100, 2.0) if quick else Effort(5, 300, 10.0)
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(name)) for name in WAYS}
        for subject in SUBJECTS:
            yield _table(subject, workers, effort)


def _table(subject: Subject, workers: dict[str, "Worker"], effort: Effort) -> harness.Table:
    table = harness.Table(f"{subject}, beside so many busy processes", "us a call", [])
    for load in LOADS:
        figures = {}
        with _busy_processes(load):
            for name, of_rounds in _measure(subject, workers, effort).items():
                for percentile, values in zip(PERCENTILES, zip(*of_rounds)):
                    figures[_row(name, percentile)] = statistics.median(values) * 1e6
        table.add_column(str(load), figures)
    table.rows = dict(sorted(table.rows.items(), key=lambda row: _order(row[0])))
    for percentile, limit in ((50, 1.2), (90, 2.0)):
        table.add_goal(_row(TWO, percentile), _row(ONE, percentile), limit)
    if subject.goal:
        rows = _row(TWO, 50), _row(ONE, 50)
        table.add_goal(*rows, subject.goal, columns=["0"])
    table.notes = [
        f"medians of {effort.rounds} rounds, each of {effort.calls} calls, or so many as begin "
        f"within {effort.seconds:.0f} s; the processes in the columns spin on the same cores"
    ]
    return table


def _row(name: str, percentile: int) -> str:
    return f"{name}: {percentile} %"


def _order(row: str) -> int:
    return [_row(name, percentile) for name in WAYS for percentile in PERCENTILES].index(row)


def _measure(
    subject: Subject, workers: dict[str, "Worker"], effort: Effort
) -> dict[str, list[list[float]]]:
    """For each way that has the subject, the percentiles of each round."""
    of_rounds = {}
    for _ in range(effort.rounds):
        for name, worker in workers.items():
            time.sleep(harness.REST)
            if percentiles := worker.measure(subject, effort):
                of_rounds.setdefault(name, []).append(percentiles)
    return of_rounds


@contextlib.contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        time.sleep(0.2)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Worker:
    """A process that runs subjects in one way, whenever it is asked to."""

    def __init__(self, name: str):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.busy", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(WAYS[name].threads)},
        )

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exception) -> None:
        self._process.stdin.close()
        self._process.wait()

    def measure(self, subject: Subject, effort: Effort) -> list[float] | None:
        """The percentiles, in seconds, or None where this way cannot run the subject."""
        request = json.dumps([dataclasses.asdict(subject), dataclasses.asdict(effort)])
        print(request, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


# --- in a worker ---------------------------------------------------------------------------------

Case = Callable[[], object]


def _ours(subject: Subject, threads: int) -> Case:
    recurrent.limit_tensorflow(threads)
    if subject.kind == "bags":
        bags = bag_peers.Bags.random(BAGS, sets=1)
        return bag_peers.TfTi(bags, passes=1).eager(tf.Variable(bags.table)).run
    layer, dy = _layer(subject)
    way, name = recurrent.Sequence(layer), recurrent.OURS[subject.kind]
    if not subject.differentiates:
        return recurrent.forward_case(name, way, layer, 1)
    expected = functools.partial(recurrent.expected_gradients, layer, dy)
    return recurrent.training_case(name, way, dy, 1, expected)


def _torch(subject: Subject, threads: int) -> Case:
    if subject.kind == "bags":
        return bag_peers.Torch(bag_peers.Bags.random(BAGS, sets=1), threads).forward().run
    layer, dy = _layer(subject)
    if subject.differentiates:
        return TRAINING_PEERS[TORCH](layer, dy, threads)[0]
    return PEERS[TORCH](layer, threads)


def _onnx_runtime(subject: Subject, threads: int) -> Case:
    if subject.kind == "bags" or subject.differentiates:
        raise NotImplementedError
    return PEERS[ONNX_RUNTIME](_layer(subject)[0], threads)


def _layer(subject: Subject) -> tuple[Layer, np.ndarray]:
    """A layer, and the gradient by its outputs."""
    time_steps, batch, inputs, hidden = _shape(subject.shape).sizes
    layer = Layer.random(subject.kind, time_steps, batch, inputs, hidden)
    generator = np.random.default_rng(1)
    return layer, generator.standard_normal((time_steps, batch, hidden), np.float32)


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to run subjects: raises NotImplementedError where it cannot."""

    make: Callable[[Subject, int], Case]
    threads: int


WAYS = {
    ONE: Way(_ours, 1),
    TWO: Way(_ours, 2),
    f"{TORCH}, 2 threads": Way(_torch, 2),
    f"{ONNX_RUNTIME}, 2 threads": Way(_onnx_runtime, 2),
}


def work(name: str) -> None:
    """Answers lines of a subject and an effort with a line of percentiles."""
    way = WAYS[name]

    @functools.lru_cache(maxsize=1)
    def make(subject: Subject) -> Case | None:
        try:
            return way.make(subject, way.threads)
        except (ImportError, NotImplementedError):
            return None

    for line in sys.stdin:
        subject, effort = json.loads(line)
        case = make(Subject(**subject))
        percentiles = case and _percentiles(case, Effort(**effort))
        print(json.dumps(percentiles), flush=True)


def _percentiles(case: Case, effort: Effort) -> list[float]:
    for _ in range(3):
        case()
    seconds = []
    end = time.perf_counter() + effort.seconds
    while len(seconds) < effort.calls:
        start = time.perf_counter()
        if start > end and len(seconds) >= LEAST_CALLS:
            break
        case()
        seconds.append(time.perf_counter() - start)
    return np.percentile(seconds, PERCENTILES).tolist()


if __name__ == "__main__":
    work(sys.argv[1])
