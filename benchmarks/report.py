"""The report: docs/figures and README's table, from the JSON that the families have written.

All figures must come from one machine and from the same versions of all packages: ratios of others
mean nothing.
"""

import dataclasses
import pathlib
import re
import statistics
from collections.abc import Mapping, Sequence

from benchmarks import drawing, harness

FIGURES = pathlib.Path("docs/figures")
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
HEADINGS = {
    "loops": "Loops",
    "bodies": "Loops that are no LSTM",
    "lanes": "Loops on one thread and on two",
    "short_loops": "Loops of few iterations",
    "accelerate": "Code that knows nothing of tf_ti",
    "heavy": "Loops of heavy kernels",
    "arrays": "Loops with TensorArrays",
    "large_arrays": "Large arrays",
    "recurrent": "Recurrent layers",
    "bags": "Bags",
    "many_tables": "Bags of many tables",
    "training": "Training big tables",
    "parameter_servers": "Parameter servers",
    "busy": "Latencies on busy cores",
    "compiled_bags": "Bags compiled by XLA",
    "openvino": "OpenVINO's IR",
    "memory": "Memory of gradients",
    "curves": "Time against size",
    "roofline": "Roofline",
}


class ReportError(Exception):
    """The JSON or the documents do not allow a report; the message says why."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A row of README's table.

    Attributes:
        what: the function of tf_ti, and what it does.
        picture: that of the table that has it.
        column: of that table; None for the geometric mean of all.
        ours: the row of tf_ti.
        tensorflow: the row of TensorFlow's own way, or None where it has none.
    """

    what: str
    picture: str
    column: str | None
    ours: str
    tensorflow: str | None


JOBS = (
    Job(
        "`embedding_bag_offsets_sum`: 4096 bags of 20 rows out of 1M x 64",
        "bags-uniform",
        "1M, 64, 4096, 20",
        "tf_ti, tf.Variable",
        "tf.nn.embedding_lookup_sparse",
    ),
    Job(
        "`embedding_bags`: 2048 bags of each of 26 tables of 10k x 16",
        "many-tables-forward",
        "2048 bags a table",
        "tf_ti.embedding_bags",
        "tf.nn.embedding_lookup_sparse, one by one",
    ),
    Job(
        "`adam_update`: a step, with its gradient, of a table of 1M x 64",
        "training-adam",
        "uniform",
        "tf_ti.adam_update",
        "lazy Adam of TensorFlow's ops",
    ),
    Job(
        "`lstm_sequence`: 100 steps of 64 units, batch 32",
        "recurrent-lstm",
        "C: 100, 32, 64, 64",
        "tf_ti.lstm_sequence",
        "Keras layer",
    ),
    Job(
        "`lstm_sequence`: the same with gradients",
        "recurrent-lstm-gradient",
        "C: 100, 32, 64, 64",
        "tf_ti.lstm_sequence",
        "Keras layer",
    ),
    Job("`scan`: loops that are no LSTM", "bodies-forward", None, "tf_ti.scan", "tf.while_loop"),
    Job(
        "`scan`: the same with gradients",
        "bodies-with-gradient",
        None,
        "tf_ti.scan",
        "tf.while_loop",
    ),
    Job(
        "`openvino.load`: a TensorIterator, an LSTM of 256 units, batch 1",
        "openvino-cell",
        "25, 1, 512, 256",
        "tf_ti.openvino.load",
        None,
    ),
)


def write(folder: pathlib.Path, families: Sequence[str], root: pathlib.Path) -> list[pathlib.Path]:
    """Writes ROOT/docs/figures and README's table, from FOLDER. Returns the paths of all files.

    Raises:
        ReportError: figures that README needs are missing; machines or versions differ; or README
            has no place for the table. Nothing is written then.
    """
    runs = _read(folder, families)
    _check_machines(folder, runs)
    _check_versions(folder, runs)
    readme = root / "README.md"
    new_readme = _replace_table(readme.read_text(), readme, _readme_table(runs))
    figures = root / FIGURES
    figures.mkdir(parents=True, exist_ok=True)
    paths = []
    for run in runs.values():
        for table in _drawn(run):
            paths.append(figures / f"{table.picture}.svg")
            drawing.draw(table, paths[-1])
    for path in set(figures.glob("*.svg")) - set(paths):
        path.unlink()
    paths += [figures / "index.md", readme]
    paths[-2].write_text(_page(runs, [name for name in families if name not in runs]))
    readme.write_text(new_readme)
    return paths


# --- what was measured ---------------------------------------------------------------------------

Runs = Mapping[str, harness.Run]


def _read(folder: pathlib.Path, families: Sequence[str]) -> Runs:
    runs = {}
    for family in families:
        path = folder / f"{family}.json"
        if path.exists():
            try:
                runs[family] = harness.Run.read(path)
            except ValueError as error:
                raise ReportError(f"{error}: run `python -m benchmarks {family}`") from error
    if not runs:
        raise ReportError(f"there are no figures in {folder}: run `python -m benchmarks`")
    return runs


def _check_machines(folder: pathlib.Path, runs: Runs) -> None:
    _check_one(folder, "machine", {family: str(run.machine) for family, run in runs.items()})


def _check_versions(folder: pathlib.Path, runs: Runs) -> None:
    for package in sorted({name for run in runs.values() for name in run.versions}):
        found = {family: run.versions.get(package, "none") for family, run in runs.items()}
        _check_one(folder, f"version of {package}", found)


def _check_one(folder: pathlib.Path, what: str, found: Mapping[str, str]) -> None:
    """Raises ReportError unless all families have the same."""
    families: dict[str, list[str]] = {}
    for family, value in found.items():
        families.setdefault(value, []).append(family)
    if len(families) > 1:
        each = "; ".join(f"{value} ({', '.join(names)})" for value, names in families.items())
        raise ReportError(f"the figures in {folder} are of more than one {what}: {each}")


def _drawn(run: harness.Run) -> list[harness.Table]:
    return [table for table in run.tables if table.picture]


def _dates(runs: Runs) -> str:
    dates = sorted({run.date for run in runs.values()})
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


def _commands(runs: Runs) -> str:
    """The commands of all runs; one for all families with the same options."""
    families: dict[str, list[str]] = {}
    for family, run in runs.items():
        start = f"python -m benchmarks {family}"
        families.setdefault(run.command.removeprefix(start), []).append(family)
    commands = [f"`python -m benchmarks {' '.join(names)}{o}`" for o, names in families.items()]
    return " and ".join(commands)


# --- README's table ------------------------------------------------------------------------------


def _readme_table(runs: Runs) -> str:
    lines = [
        "| | tf_ti | the best of the others | TensorFlow's own way |",
        "| --- | --: | --: | --: |",
    ]
    used = {}
    for job in JOBS:
        family, table = _table_of(runs, job)
        used[family] = runs[family]
        lines.append(f"| {' | '.join(_job_cells(job, family, table))} |")
    used = {family: runs[family] for family in runs if family in used}
    machine = next(iter(runs.values())).machine
    lines += ["", f"x: times tf_ti's time. {machine}; {_dates(used)}; {_commands(used)}."]
    return "\n".join(lines)


def _table_of(runs: Runs, job: Job) -> tuple[str, harness.Table]:
    for family, run in runs.items():
        for table in run.tables:
            if table.picture == job.picture:
                return family, table
    raise ReportError(
        f"no family that was measured has the table {job.picture}, of which README's has a row"
    )


def _job_cells(job: Job, family: str, table: harness.Table) -> list[str]:
    def figures(row: str) -> list[float | None]:
        if job.column is None:
            return table.rows[row]
        return [table.rows[row][table.columns.index(job.column)]]

    def ratio(row: str) -> float | None:
        """The times of our time, where all are known."""
        pairs = list(zip(figures(row), ours))
        if not all(theirs and own for theirs, own in pairs):
            return None
        return statistics.geometric_mean([theirs / own for theirs, own in pairs])

    needed = [row for row in (job.ours, job.tensorflow) if row is not None]
    missing = [row for row in needed if row not in table.rows]
    if job.column is not None and job.column not in table.columns:
        missing.append(job.column)
    if missing:
        raise ReportError(f"{family}'s table {job.picture} lacks {', '.join(missing)}")
    ours = figures(job.ours)
    others = (drawing.PEER, drawing.XLA)
    peers = {row: ratio(row) for row in table.rows if drawing.owner(row) in others}
    peers = {row: value for row, value in peers.items() if value is not None}
    best = min(peers, key=peers.get, default=None)
    return [
        job.what if job.column else f"{job.what}, the mean of {len(table.columns)}",
        _time(statistics.geometric_mean(ours), table.unit),
        "-" if best is None else f"{best}: {drawing.short(peers[best])}x",
        "-"
        if job.tensorflow is None
        else f"{job.tensorflow}: {drawing.short(ratio(job.tensorflow))}x",
    ]


def _time(figure: float, unit: str) -> str:
    """A time with its unit: milliseconds where there are a thousand microseconds."""
    if unit.startswith("us") and figure >= 1000:
        figure, unit = figure / 1000, f"ms{unit[2:]}"
    return f"{harness.format_figure(figure)} {unit}"


def _replace_table(text: str, path: pathlib.Path, table: str) -> str:
    """The text with the table between the markers."""
    for marker in (BEGIN, END):
        if text.count(marker) != 1:
            found = text.count(marker)
            raise ReportError(
                f"{path} must have {marker} once, for the table; it has it {found} times"
            )
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ReportError(f"{path} has {END} before {BEGIN}")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


# --- the page ------------------------------------------------------------------------------------

INTRODUCTION = """# Figures

<!-- Written by `python -m benchmarks --report`. -->

Here are tf_ti's times beside those of other libraries, and how they grow with a problem's size.
All come from one machine, {machine}, and were measured on {dates} with {versions}.

- A bar begins at 1, the time of tf_ti's way, and ends at how many times that another way takes: to
  the right what is slower, to the left what is faster. The axis is logarithmic.
- Where there are more than {most} cases, a bar is their geometric mean, and a dot is a case.
- Green is tf_ti, orange TensorFlow and Keras, yellow what XLA compiles, blue another library, and
  gray a limit, such as a bare read of the same memory.
- "us" is microseconds. A figure is the median of several bursts, taken in turns with the others.
- Under each picture are its figures: in brackets, how many times the named way takes.

Ratios depend less on the machine than times do. To measure on yours, and to draw this page from
what was measured:

```console
$ make bench
```

```text
python -m benchmarks --report
```
"""


def _page(runs: Runs, missing: Sequence[str]) -> str:
    first = next(iter(runs.values()))
    parts = [
        INTRODUCTION.format(
            machine=first.machine,
            dates=_dates(runs),
            versions=", ".join(f"{name} {version}" for name, version in first.versions.items()),
            most=drawing.MOST_BARS,
        )
    ]
    if missing:
        names = ", ".join(HEADINGS[family] for family in missing)
        command = f"python -m benchmarks {' '.join(missing)}"
        parts.append(f"Not measured on this machine: {names}. `{command}` does.\n")
    for family, run in runs.items():
        parts.append(f"## {HEADINGS[family]}\n")
        parts += [_figure(run, table) for table in _drawn(run)]
        others = [table for table in run.tables if not table.picture]
        if others:
            tables = "\n".join(f"**{_escape(t.title)}**\n\n{_figures(t)}" for t in others)
            name = "More figures" if _drawn(run) else "The figures"
            parts.append(_dropdown(name, f"{tables}\n{_origin(run)}\n"))
    return "\n".join(parts)


def _figure(run: harness.Run, table: harness.Table) -> str:
    title = _escape(table.title)
    return f"""```{{figure}} {table.picture}.svg
:alt: {table.title}; the figures are in the table below

{title}. {run.machine}; {run.date}; `{run.command}`
```

{_dropdown("The figures", f"{_figures(table)}{_origin(run)}")}"""


def _dropdown(title: str, text: str) -> str:
    return f"::::{{dropdown}} {title}\n{text.rstrip()}\n::::\n"


def _figures(table: harness.Table) -> str:
    """The table and its notes."""
    escaped = dataclasses.replace(
        table,
        columns=list(map(_escape, table.columns)),
        rows={_escape(row): figures for row, figures in table.rows.items()},
        reference=None if table.reference is None else _escape(table.reference),
    )
    notes = "".join(f"- {_escape(note)}\n" for note in table.notes)
    return f"{escaped.to_markdown()}\n\n{notes}" if notes else f"{escaped.to_markdown()}\n\n"


def _origin(run: harness.Run) -> str:
    of_versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return f"- {run.machine}; {of_versions}; {run.date}; `{run.command}`\n"


def _escape(text: str) -> str:
    """The text where Markdown would take a character of it for its own."""
    return re.sub(r"([\\`*$<|\[\]])", r"\\\1", text)
