"""The bodies of loops on one thread and on two, at sizes of use and at 8 times their batches.

Each way runs in a process of its own, with as many CPUs as it has threads. All of them measure a
body in turns, a burst each, as harness.measure does.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import tensorflow as tf

from benchmarks import bodies, harness
from benchmarks.bodies import FORWARD, JAX, KERNELS, OURS, OURS_ON_XLA, WHILE_ON_XLA, WITH_GRADIENT
from benchmarks.loop_bodies import BODIES

ON_TWO = ", 2 threads"
ONE, TWO = f"{OURS}, 1 thread", f"{OURS}{ON_TWO}"
UNDIVIDED = f"{TWO}, TF_TI_LANES=0"
# For each process: its threads, its environment, and the ways of bodies.py that it runs.
PROCESSES = {
    ONE: (1, {}, (OURS,)),
    TWO: (2, {}, (OURS, OURS_ON_XLA, WHILE_ON_XLA, JAX)),
    UNDIVIDED: (2, {"TF_TI_LANES": "0"}, (OURS,)),
}
KINDS = {"forward": FORWARD, "gradient": WITH_GRADIENT}
BATCHES = (1, 8)
# Microseconds of one thread from which two should take less, and how much less.
LONG, OF_ONE, WORST_OF_ONE = 300, 0.6, 1.05
# The goals, by kind and batch, for the geometric means of our times by the times of XLA's code.
OF_XLA = {"forward": {1: 0.85, 8: 0.6}, "gradient": {1: 0.75, 8: 0.55}}


def run(quick: bool) -> Iterator[harness.Table]:
    repeats, burst = (3, 0.02) if quick else (9, 0.05)
    workers = {row: _Worker(row) for row in PROCESSES}
    try:
        for kind in KINDS:
            for times in BATCHES:
                yield from _tables(workers, kind, times, repeats, burst)
    finally:
        for worker in workers.values():
            worker.stop()


def _tables(
    workers: "dict[str, _Worker]", kind: str, times: int, repeats: int, burst: float
) -> Iterator[harness.Table]:
    size = "at sizes of use" if times == 1 else f"at {times} times the batch"
    title = f"{KINDS[kind].title}, bodies that are no LSTM, {size}: threads"
    whole = harness.Table(f"{title}, a whole call", "us", [], reference=ONE)
    alone = harness.Table(f"{title}, the loop alone", "us", [], reference=ONE)
    for name, make in BODIES.items():
        body = make(tf, times)
        if kind == "gradient" and not body.has_gradient:
            continue
        calls = {}
        for row, worker in workers.items():
            for way in worker.prepare(kind, name, times):
                for part in ("whole", "half"):
                    label = row if way == OURS else f"{way}{ON_TWO}"
                    calls[label, part] = (worker, f"{way}, {part}")
        counts = {row: worker.count(call, burst) for row, (worker, call) in calls.items()}
        seconds = {row: [] for row in calls}
        for _ in range(repeats):
            for row, (worker, call) in calls.items():
                time.sleep(harness.REST)
                seconds[row].append(worker.burst(call, counts[row]))
        medians = {row: statistics.median(s) * 1e6 for row, s in seconds.items()}
        figures = {row: us for (row, part), us in medians.items() if part == "whole"}
        whole.add_column(name, figures)
        share = (body.count - body.count // 2) / body.count
        beyond = {row: (us - medians[row, "half"]) / share for row, us in figures.items()}
        # A loop may take less than two calls differ by anyway.
        alone.add_column(name, {row: us if us > 0 else None for row, us in beyond.items()})
    _add_goals(whole, alone, OF_XLA[kind][times])
    yield whole
    yield alone


def _add_goals(whole: harness.Table, alone: harness.Table, of_xla: float) -> None:
    long = [column for column, one in zip(alone.columns, alone.rows[ONE]) if one and one >= LONG]
    alone.add_goal(TWO, ONE, OF_ONE, columns=long)
    alone.add_goal(TWO, ONE, WORST_OF_ONE)
    fastest = bodies.fastest_on_xla(whole, ON_TWO)
    quotients = [ours / other for ours, other in zip(whole.rows[TWO], fastest)]
    what = f"{TWO} / the faster of both that XLA compiles, geometric mean"
    whole.goals.append(harness.Goal(what, statistics.geometric_mean(quotients), of_xla))


class _Worker:
    """A process that runs calls of loops, whole ones and halves, when it is asked to."""

    def __init__(self, row: str):
        threads, environment, _ = PROCESSES[row]
        cpus = sorted(os.sched_getaffinity(0))[:threads]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.lanes", row],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment | {"OMP_NUM_THREADS": str(threads)},
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )

    def stop(self) -> None:
        self._process.stdin.close()
        self._process.wait()

    def prepare(self, kind: str, name: str, times: int) -> list[str]:
        """Makes the calls of a body; returns the ways that there are."""
        return self._ask("prepare", kind, name, times)

    def count(self, call: str, burst: float) -> int:
        """The number of calls that take about so many seconds."""
        self._ask("burst", call, 2)
        return max(1, round(burst / self._ask("burst", call, 1)))

    def burst(self, call: str, count: int) -> float:
        """The seconds that a call takes, in so many of them."""
        return self._ask("burst", call, count)

    def _ask(self, *request: object):
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a process has ended at {request}")
        return json.loads(answer)


# --- in a worker ---------------------------------------------------------------------------------


def _answer_requests(row: str) -> None:
    threads, _, ways = PROCESSES[row]
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    cases = {}
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        if what == "prepare":
            kind, name, times = arguments
            body = BODIES[name](tf, times)
            halved = body.shortened(body.count // 2)
            for part, measured in (("whole", body), ("half", halved)):
                found = bodies.make_cases(KINDS[kind], name, measured, (*ways, KERNELS), times)
                cases |= {f"{way}, {part}": case.call for way, case in found.items()}
            answer = [way for way in ways if way in found]
        else:
            call, count = arguments
            cases[call]()
            start = time.perf_counter()
            for _ in range(count):
                cases[call]()
            answer = (time.perf_counter() - start) / count
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _answer_requests(sys.argv[1])
