"""Measurements, and their reports: tables with ratios and goals."""

import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

PACKAGES = (
    "tensorflow-cpu",
    "tensorflow",
    "keras",
    "onnxruntime",
    "openvino",
    "torch",
    "fbgemm-gpu-cpu",
    "jax",
)
Made = TypeVar("Made")
# Sets of vector instructions, the best first, and the processor's flag for each.
INSTRUCTIONS = {"AVX-512": "avx512f", "AVX2": "avx2", "AVX": "avx"}
# How a table is drawn.
BARS, CURVES, ROOFLINE = "bars", "curves", "roofline"
# In seconds. Threads of GNU's OpenMP wait for some 16 ms before they sleep.
REST = 0.03


@dataclasses.dataclass
class Goal:
    """The most, or the least, that a figure should be."""

    what: str
    value: float
    limit: float
    unit: str = ""
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        bound = f"at {'least' if self.at_least else 'most'} {self.limit:.3g}{unit}"
        verdict = "met" if self.is_met else "MISSED"
        return f"{self.what}: {self.value:.3g}{unit}, goal {bound}: {verdict}"


@dataclasses.dataclass
class Table:
    """Figures of several ways (rows) to do several things (columns).

    Attributes:
        title: the subject of the measurement.
        unit: of the figures; less is better.
        columns: the things that are done.
        rows: for each way a figure for each column, None where there is none.
        reference: the row that the others are compared with, or None for no comparison.
        goals: the goals for its figures.
        notes: notes that a reader needs to understand the figures.
        picture: the name of its picture in docs/figures, or nothing where it has none.
        kind: BARS; CURVES, one for each way over the numbers that the columns are; or ROOFLINE,
            whose columns benchmarks/roofline.py has.
        x: what the columns of CURVES count.
    """

    title: str
    unit: str
    columns: list[str]
    rows: dict[str, list[float | None]] = dataclasses.field(default_factory=dict)
    reference: str | None = None
    goals: list[Goal] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    picture: str = ""
    kind: str = BARS
    x: str = ""

    def add_column(self, column: str, figures: Mapping[str, float]) -> None:
        """Adds a column with a figure for each row, where it has one."""
        for name in figures:
            self.rows.setdefault(name, [None] * len(self.columns))
        for name, row in self.rows.items():
            row.append(figures.get(name))
        self.columns.append(column)

    def add_goal(
        self,
        over: str,
        under: str,
        limit: float,
        *,
        columns: Sequence[str] | None = None,
        at_least: bool = False,
    ) -> None:
        """Adds a goal for the quotient of two rows, in the column where it is the worst.

        Adds none where a row is missing, as where a library is not installed.
        """
        quotients = {
            column: self.rows[over][k] / self.rows[under][k]
            for k, column in enumerate(self.columns)
            if (columns is None or column in columns)
            and all(name in self.rows and self.rows[name][k] for name in (over, under))
        }
        if not quotients:
            return
        worst = (min if at_least else max)(quotients, key=quotients.get)
        what = f"{over} / {under}, at ({worst}), the worst of {len(quotients)}"
        self.goals.append(Goal(what, quotients[worst], limit, at_least=at_least))

    def _cell(self, name: str, column: int) -> str:
        figure = self.rows[name][column]
        if figure is None:
            return "-"
        reference = self.rows[self.reference][column] if self.reference else None
        ratio = f" ({figure / reference:.2f})" if reference else ""
        return f"{format_figure(figure)}{ratio}"

    def to_markdown(self) -> str:
        """The figures alone; in brackets, each one in times of the reference's."""
        head = f"{self.unit} (times {self.reference})" if self.reference else self.unit
        cells = [[head, *self.columns]]
        for name in self.rows:
            cells.append([name, *(self._cell(name, k) for k in range(len(self.columns)))])
        widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
        lines = []
        for k, row in enumerate(cells):
            aligned = [row[0].ljust(widths[0])]
            aligned += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
            lines.append(f"| {' | '.join(aligned)} |")
            if k == 0:
                rules = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
                lines.append(f"| {' | '.join(rules)} |")
        return "\n".join(lines)

    def to_text(self) -> str:
        """The table in Markdown with its title, goals and notes."""
        lines = [self.title, "", self.to_markdown()]
        lines += [""] if self.goals or self.notes else []
        lines += [f"- {goal}" for goal in self.goals]
        lines += [f"- {note}" for note in self.notes]
        return "\n".join(lines)


def format_figure(figure: float) -> str:
    digits = 0 if figure >= 1000 else 1 if figure >= 100 else 2 if figure >= 1 else 3
    return f"{figure:,.{digits}f}"


def measure(
    cases: Mapping[str, Callable[[], object]], repeats: int = 7, burst: float = 0.05
) -> dict[str, float]:
    """The seconds that each case takes: the median of `repeats` bursts, taken in turns.

    If each case ran all of its bursts at once, it would see another state of the machine. A burst
    begins with a call that is not timed, in which threads wake up and caches fill, and lasts about
    `burst` seconds. Before it the machine rests until the threads of the case before leave the CPUs
    to this one: some of them (OpenMP's) wait for more work without sleeping.
    """
    calls = {}
    for name, case in cases.items():
        for _ in range(2):
            case()
        start = time.perf_counter()
        case()
        calls[name] = max(1, round(burst / (time.perf_counter() - start)))
    seconds = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            time.sleep(REST)
            case()
            start = time.perf_counter()
            for _ in range(calls[name]):
                case()
            seconds[name].append((time.perf_counter() - start) / calls[name])
    return {name: statistics.median(values) for name, values in seconds.items()}


def if_installed(make: Callable[[], Made]) -> Made | None:
    """Returns the result of a function; None where a library for that is missing."""
    try:
        return make()
    except ImportError:
        return None


def output_of_process(
    module: str, *arguments: str, threads: int, environment: Mapping[str, str] | None = None
) -> str:
    """The output of a module in a process of its own that has as many CPUs as threads."""
    cpus = sorted(os.sched_getaffinity(0))[:threads]
    # NumPy asks for huge pages for large arrays, and a tensor may take over an array's memory.
    environment = {
        "OMP_NUM_THREADS": str(threads),
        "NUMPY_MADVISE_HUGEPAGE": "0",
        **(environment or {}),
    }
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    ).stdout


@dataclasses.dataclass(frozen=True)
class Machine:
    """The machine of some figures: its processor, the cores that were used, and its vectors."""

    processor: str
    cores: int
    instructions: str

    @classmethod
    def this(cls) -> "Machine":
        information = _processor_information()
        flags = information.get("flags", "").split()
        found = (name for name, flag in INSTRUCTIONS.items() if flag in flags)
        name = information.get("model name", platform.machine())
        # Names tell little: several generations of a processor may have the same.
        kind = [
            f"{key} {information[key]}" for key in ("cpu family", "model") if key in information
        ]
        return cls(
            processor=f"{name} ({', '.join(kind)})" if kind else name,
            cores=len(os.sched_getaffinity(0)),
            instructions=next(found, platform.machine()),
        )

    def __str__(self) -> str:
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        return f"{self.processor}, {cores}, {self.instructions}"


def _processor_information() -> dict[str, str]:
    """What the system tells of the first processor; nothing where it does not."""
    try:
        first = pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def versions() -> dict[str, str]:
    """The versions of Python, of tf_ti, and of the peers that are installed."""
    import tf_ti

    found = {"Python": platform.python_version(), "tf_ti": tf_ti.__version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@dataclasses.dataclass(frozen=True)
class Run:
    """The tables of a family, and where, with what, when and by what command they were measured."""

    machine: Machine
    versions: dict[str, str]
    date: str
    command: str
    tables: list[Table]

    @classmethod
    def of_this_machine(cls, tables: list[Table], command: str) -> "Run":
        today = datetime.date.today().isoformat()
        return cls(Machine.this(), versions(), today, command, tables)

    @classmethod
    def read(cls, path: pathlib.Path) -> "Run":
        """Raises ValueError where the file is no such run, or that of an older version."""
        try:
            run = cls(**json.loads(path.read_text()))
            tables = [
                Table(**{**table, "goals": [Goal(**goal) for goal in table["goals"]]})
                for table in run.tables
            ]
            return dataclasses.replace(run, machine=Machine(**run.machine), tables=tables)
        except (TypeError, KeyError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} has no figures of these benchmarks: {error}") from error


def write(run: Run, path: pathlib.Path) -> None:
    """Writes the run as JSON."""
    path.write_text(json.dumps(dataclasses.asdict(run), indent=2) + "\n")


def memory_of_process(name: str) -> int:
    """A figure of this process in KiB: "VmRSS" is in use, "VmHWM" the most so far.

    Not ru_maxrss, which a process inherits from the one that started it.
    """
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"^{name}:\s*(\d+) kB$", status, re.MULTILINE).group(1))
