"""Pictures of tables as SVG: bars, curves and rooflines, for light and dark pages alike.

The same table gives the same bytes. Text stays text, the background is the page's, and all lines
are of a gray that either kind of page shows.
"""

import itertools
import pathlib
import re
import statistics
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import harness

GRAY = "#7a7a7a"
# Whose way a row is, and the colours of its kind.
OURS, TENSORFLOW, XLA, PEER, LIMIT = "tf_ti", "TensorFlow", "XLA", "another library", "a limit"
COLORS = {
    OURS: ("#14967f", "#6fbfae", "#0f6f9c"),
    TENSORFLOW: ("#d9702b", "#c9a06f"),
    XLA: ("#b8912f",),
    PEER: ("#4a7fd4", "#9b6bd0", "#cf5f8f", "#5a9bb5"),
    LIMIT: (GRAY,),
}
LIMITS = ("rows read", "rows of", "floor", "limit", "output", "input + output")
STYLES = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tf_ti",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "font.size": 8,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GRAY
    ),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
# In inches: 480 pixels, which a phone shrinks by a quarter.
WIDTH = 5.0
LABEL, BAR, GAP, MARGIN = 0.17, 0.12, 0.09, 0.65
# The most columns that have a bar each. Of more, the bar is the geometric mean.
MOST_BARS = 4
MARKERS = "osD^vP*X"


def owner(row: str) -> str:
    """Whose way the row of this name is."""
    if row.startswith(LIMITS):
        return LIMIT
    if "tf_ti" in row:
        return OURS
    if "XLA-compiled" in row:
        return XLA
    return TENSORFLOW if re.search(r"\btf\.|keras|tensorflow", row, re.IGNORECASE) else PEER


def base_row(table: harness.Table) -> str:
    """The row that the others of the picture are compared with: tf_ti's, where there is one."""
    if table.reference is not None and owner(table.reference) == OURS:
        return table.reference
    return next((row for row in table.rows if owner(row) == OURS), next(iter(table.rows)))


def draw(table: harness.Table, path: pathlib.Path) -> None:
    """Writes a picture of the table."""
    with matplotlib.rc_context(STYLES):
        kinds = {harness.BARS: _bars, harness.CURVES: _curves, harness.ROOFLINE: _roofline}
        figure = kinds[table.kind](table)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(path, format="svg", transparent=True, metadata=nothing)


def short(ratio: float) -> str:
    """A ratio with two or three digits."""
    return f"{ratio:,.{0 if ratio >= 10 else 1 if ratio >= 2 else 2}f}"


def plain(number: float, _position: object = None) -> str:
    """A number of an axis, as people write it."""
    return f"{number:,.0f}" if number >= 1 else f"{number:g}"


# --- bars ----------------------------------------------------------------------------------------


def ratios(table: harness.Table) -> dict[str, list[float | None]]:
    """For each row, each figure in times of the base row's, where both are there."""
    base = table.rows[base_row(table)]
    return {
        row: [figure / own if figure and own else None for figure, own in zip(figures, base)]
        for row, figures in table.rows.items()
    }


def _bars(table: harness.Table) -> Figure:
    """Bars from 1, tf_ti's time, to a row's ratio, on a logarithmic axis; each below its name."""
    base, of_rows = base_row(table), ratios(table)
    is_mean = len(table.columns) > MOST_BARS
    count = 1 if is_mean else len(table.columns)
    extent = LABEL + count * BAR + GAP
    height = len(of_rows) * extent + (0 if count == 1 else 0.2 * count)
    figure = Figure(figsize=(WIDTH, height + MARGIN), layout="constrained")
    axes = figure.subplots()
    for i, (row, found) in enumerate(of_rows.items()):
        top = i * extent
        color = COLORS[owner(row)][0]
        axes.text(0.0, top, row, va="top", transform=axes.get_yaxis_transform())
        there = [ratio for ratio in found if ratio]
        for k in range(count):
            y = top + LABEL + (k + 0.5) * BAR
            ratio = statistics.geometric_mean(there) if is_mean and there else found[k]
            if ratio is None:
                continue
            shade = 1 - 0.2 * k
            axes.barh(y, ratio - 1, 0.8 * BAR, left=1, color=color, alpha=shade, linewidth=0)
            label = short(ratio)
            if row == base:
                label = "1" if is_mean else _with_unit(table.rows[row][k], table.unit)
            ends = [ratio, *(there if is_mean else ())]
            place = min(ends) if ratio < 1 else max(ends)
            side, align = (-4, "right") if ratio < 1 else (4, "left")
            axes.annotate(
                label,
                (place, y),
                (side, 0),
                textcoords="offset points",
                ha=align,
                va="center",
                fontsize=7,
            )
            if is_mean and row != base:
                axes.plot(there, [y] * len(there), ".", color=GRAY, markersize=3, alpha=0.7)
    axes.axvline(1, color=GRAY, linewidth=0.8, alpha=0.7, zorder=0)
    _log_axis(axes, [ratio for found in of_rows.values() for ratio in found if ratio])
    axes.set_ylim(len(of_rows) * extent, -GAP)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    what = "geometric mean and each case; " if is_mean else ""
    axes.set_xlabel(f"{what}times {base}, less is better")
    if count > 1:
        patches = [
            matplotlib.patches.Patch(color=GRAY, alpha=1 - 0.2 * k, label=column)
            for k, column in enumerate(table.columns)
        ]
        figure.legend(handles=patches, loc="outside lower left")
    return figure


def _with_unit(figure: float, unit: str) -> str:
    return f"{harness.format_figure(figure)} {unit.split()[0]}"


def _log_axis(axes: Axes, values: Sequence[float]) -> None:
    """Room for all values and for their labels; few ticks, as plain numbers."""
    low, high = min(1.0, *values), max(1.0, *values)
    room = (max(high / low, 2.0)) ** 0.22
    axes.set_xscale("log")
    axes.set_xlim(low / room, high * room)
    ticks = [n * 10**k for k in range(-6, 7) for n in (1, 2, 5)]
    if high / low > 100:
        ticks = [tick for tick in ticks if f"{tick:e}".startswith("1")]
    ticks = [tick for tick in ticks if low / room <= tick <= high * room]
    axes.set_xticks(ticks, list(map(plain, ticks)))
    axes.set_xticks([], minor=True)
    axes.grid(axis="x", color=GRAY, alpha=0.2, linewidth=0.6)


# --- curves --------------------------------------------------------------------------------------


def numbers(columns: Sequence[str]) -> list[float]:
    """The numbers that the columns of a curve are."""
    return [float(column.replace(",", "")) for column in columns]


def _curves(table: harness.Table) -> Figure:
    xs = numbers(table.columns)
    figure = Figure(figsize=(WIDTH, 2.9 + 0.18 * len(table.rows)), layout="constrained")
    axes = figure.subplots()
    colors = _colors(table.rows)
    for k, (row, figures) in enumerate(table.rows.items()):
        points = [(x, y) for x, y in zip(xs, figures) if y]
        axes.plot(
            *zip(*points),
            color=colors[row],
            linewidth=2 if owner(row) == OURS else 1.2,
            linestyle=":" if owner(row) == LIMIT else "-",
            marker=MARKERS[k % len(MARKERS)],
            markersize=4,
            label=row,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(xs, list(map(plain, xs)))
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(plain)
    axes.yaxis.set_minor_formatter("")
    axes.grid(color=GRAY, alpha=0.2, linewidth=0.6)
    axes.set_xlabel(f"{table.x}, log scale")
    axes.set_ylabel(f"{table.unit}, log scale")
    figure.legend(loc="outside lower left", ncols=1)
    return figure


def _colors(rows: Mapping[str, object]) -> dict[str, str]:
    palettes = {kind: itertools.cycle(colors) for kind, colors in COLORS.items()}
    return {row: next(palettes[owner(row)]) for row in rows}


# --- roofline ------------------------------------------------------------------------------------


def _roofline(table: harness.Table) -> Figure:
    """Rows with all three figures are points; with one alone, a limit of operations or of bytes."""
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    axes = figure.subplots()
    points = {row: found for row, found in table.rows.items() if found[0]}
    peaks = {row: found[1] for row, found in table.rows.items() if not found[0] and found[1]}
    reads = {row: found[2] for row, found in table.rows.items() if not found[0] and found[2]}
    low = min(found[0] for found in points.values()) / 2
    high = max(found[0] for found in points.values()) * 4
    peak = min(peaks.values(), default=float("inf"))
    for row in peaks:
        axes.axhline(peaks[row], color=GRAY, linewidth=1)
        axes.annotate(
            row, (low, peaks[row]), (3, 3), textcoords="offset points", ha="left", va="bottom"
        )
    for (row, read), style in zip(reads.items(), itertools.cycle(("-", "--", ":"))):
        end = min(high, peak / read)
        axes.plot([low, end], [low * read, end * read], style, color=GRAY, label=row)
    # The first word of a name tells what it is.
    groups = {row: re.split(r"\W", row)[0] for row in points}
    colors = dict(zip(dict.fromkeys(groups.values()), itertools.cycle(COLORS[OURS] + COLORS[PEER])))
    order = sorted(points, key=lambda row: points[row][1])
    for k, row in enumerate(order, start=1):
        x, y, _ = points[row]
        color = colors[groups[row]]
        axes.plot(x, y, "o", color=color, markersize=6, label=f"{k}  {row}", zorder=3)
        axes.annotate(
            str(k),
            (x, y),
            (0, 5),
            textcoords="offset points",
            ha="center",
            va="bottom",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(plain)
        axis.set_minor_formatter("")
    axes.grid(color=GRAY, alpha=0.2, linewidth=0.6)
    axes.set_xlabel(f"{table.columns[0]}, log scale")
    axes.set_ylabel(f"{table.columns[1]}, log scale; more is better")
    figure.legend(loc="outside lower left", ncols=2)
    return figure
