"""The times of `times` and of times_torch.py as one table in Markdown, and the goals.

A measurement is a line of JSON that they print: see times.cc.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Goal:
    """The goal of an operation with a cold cache.

    Attributes:
        share: of the bytes that a copy moves in the same time, at least this; or None.
        ratio: of torch's time, at most this; or None.
    """

    share: float | None = None
    ratio: float | None = None


GOALS = {
    ("10m", "forward"): Goal(0.8, 0.9),
    ("1m_packed", "forward"): Goal(0.6, 0.9),
    ("1m_offsets", "forward"): Goal(0.5, 0.9),
    **{
        (case, operation): Goal(ratio=ratio)
        for case in ("10m", "1m_packed", "1m_offsets")
        for operation, ratio in (("forward, backward", 0.7), ("step, SGD", 0.5))
    },
}

HEADS = (
    "case",
    "operation",
    "MB, each id's row",
    "MB, each row once",
    "cold µs",
    "warm µs",
    "TB/s",
    "of a copy",
    "torch's cold µs",
    "ratio",
    "goals",
)

KEY = """\
Times are medians on a busy device, after something else went through the L2 cache (cold) or after
the same call (warm). MB must be moved: rows that are looked up or summed, for each id or once; ids,
offsets, weights and outputs. TB/s and the share of what a copy moves, which reads and writes, are
those of each id's row with a cold cache: where hot rows stay in the cache, they may be above the
memory's. Beside torch's embedding_bag: the faster one of its sparse and its dense gradients;
steps with sparse ones, torch.optim.SGD and SparseAdam; several tables one after the other, as ours
are but for the forward pass ("one by one": as if they were there too). Our gradients have each row
once, and the host waits for the number of rows ("without the wait": as if it were known); our steps
sum the gradients themselves, and wait for nothing."""


def copy_rate(copy: dict) -> float:
    """The speed of a copy, in bytes a microsecond, those that it reads and that it writes."""
    return 2 * copy["copy_bytes"] / copy["copy_us"]


def share_of_copy(row: dict, copy: dict) -> float:
    return row["bytes"] / row["cold_us"] / copy_rate(copy)


def torch_ratio(row: dict, torch_rows: dict) -> float | None:
    """Our time as a part of torch's, where there is one."""
    theirs = torch_rows.get((row["case"], row["operation"]), {}).get("cold_us")
    return row["cold_us"] / theirs if theirs else None


def verdicts(row: dict, copy: dict, torch_rows: dict) -> list[tuple[str, bool | None]]:
    """Each goal of an operation, and True if it is met; None where nothing was measured for it."""
    goal = GOALS.get((row["case"], row["operation"]), Goal())
    found: list[tuple[str, bool | None]] = []
    if goal.share is not None:
        found.append(
            (f"at least {goal.share:.0%} of a copy", share_of_copy(row, copy) >= goal.share)
        )
    if goal.ratio is not None:
        ratio = torch_ratio(row, torch_rows)
        found.append(
            (f"at most {goal.ratio} x torch", None if ratio is None else ratio <= goal.ratio)
        )
    return found


def said(is_met: bool | None) -> str:
    return "not measured" if is_met is None else "met" if is_met else "MISSED"


def sizes(row: dict) -> str:
    """A case in words."""
    tables = f"{row['tables']} tables of " if row["tables"] > 1 else ""
    bags = "segments" if row["kind"] == "segments" else f"{row['kind']} bags"
    bags = "bags with offsets" if row["kind"] == "offsets" else bags
    return (
        f"{tables}{row['rows']} rows of {row['width']} {row['dtype']}, {row['bags']} {bags} of "
        f"{row['ids_per_bag']} {row['index']} ids, {row['ids']}; {row['reduction']}"
        f"{', weights' if row['weights'] else ''}"
    )


def table(machine: str, copy: dict, rows: list[dict], torch_rows: dict, peer: str) -> str:
    """The table of all times, as Markdown.

    Args:
        machine: the GPU, its driver, CUDA.
        copy: the first line of `times`.
        rows: its other lines.
        torch_rows: the lines of times_torch.py, by case and operation.
        peer: torch and its version.
    """
    lines = []
    for row in rows:
        theirs = torch_rows.get((row["case"], row["operation"]), {})
        ratio = torch_ratio(row, torch_rows)
        lines.append(
            (
                row["case"],
                row["operation"],
                f"{row['bytes'] / 1e6:.1f}",
                f"{row['least_bytes'] / 1e6:.1f}",
                f"{row['cold_us']:.1f}",
                f"{row['warm_us']:.1f}",
                f"{row['bytes'] / row['cold_us'] / 1e6:.2f}",
                f"{share_of_copy(row, copy):.0%}",
                f"{theirs['cold_us']:.1f}" if "cold_us" in theirs else "-",
                "-" if ratio is None else f"{ratio:.2f}",
                "; ".join(f"{what}: {said(met)}" for what, met in verdicts(row, copy, torch_rows)),
            )
        )
    widths = [max(map(len, column)) for column in zip(HEADS, *lines, strict=True)]

    def line(cells) -> str:
        return f"| {' | '.join(map(str.ljust, cells, widths))} |"

    cases = {row["case"]: row for row in rows}
    return "\n".join(
        (
            f"{machine}; built with CUDA {copy['cuda']}; {peer}. A copy of "
            f"{copy['copy_bytes'] / 1e9:.1f} GB takes {copy['copy_us']:.0f} µs: it moves "
            f"{copy_rate(copy) / 1e6:.2f} TB/s. An empty kernel takes {copy['empty_us']:.1f} µs.",
            "",
            line(HEADS),
            line(["-" * width for width in widths]),
            *map(line, lines),
            "",
            KEY,
            "",
            *(f"- {case}: {sizes(row)}" for case, row in cases.items()),
        )
    )


def goals(copy: dict, rows: list[dict], torch_rows: dict) -> str:
    """The number of goals that are met, and each goal that is not."""
    found = [
        (f"{row['case']}, {row['operation']}: {what}", met)
        for row in rows
        for what, met in verdicts(row, copy, torch_rows)
    ]
    lines = [f"goals: {sum(met is True for _, met in found)} of {len(found)} are met"]
    lines += [f"  {what}: {said(met)}" for what, met in found if not met]
    return "\n".join(lines)
