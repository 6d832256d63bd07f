"""Pictures of bars: each is as long as a sum, and made of that sum's parts."""

from collections.abc import Sequence

from tf_ti.loops.drawing import colors, svg
from tf_ti.loops.drawing.characters import shortened, visible, width

Parts = Sequence[tuple[str, float]]  # places, and how much is in each

# A place has one colour in all pictures; those that are not listed share the last one.
_COLORS = {
    "once": "#cfd6df",
    "before": "#a9c8e8",
    "sequence": "#5fb8a3",
    "programs": "#a9d89b",
    "kernels": "#f4b377",
    "after": "#d3b8e6",
}
_OTHERS = "#e4e0d2"
_MARGIN, _LENGTH = 16, 420  # the length of the longest bar
_SIZE, _HEADING = 12, 14  # of fonts
_LABEL, _BAR, _GAP = 18, 20, 12  # from top to bottom
_SWATCH = 10
_MOST_CHARACTERS = 64


def to_svg(title: str, rows: Sequence[tuple[str, Parts]], unit: str) -> str:
    """A bar for each row, below its name: the parts in their order, coloured by place.

    Args:
        title: the heading.
        rows: names, and the parts of each.
        unit: what is counted, like "operations".
    """
    title = visible(title)
    labels = [shortened(visible(name), _MOST_CHARACTERS) for name, _ in rows]
    sums = [sum(amount for _, amount in parts) for _, parts in rows]
    totals = [f"{_written(total)} {unit}" for total in sums]
    scale = _LENGTH / (max(sums, default=0) or 1)
    used = dict.fromkeys(place for _, parts in rows for place, amount in parts if amount)
    places = [place for place in dict.fromkeys((*_COLORS, *used)) if place in used]
    room = [
        width(title, _HEADING) * 1.1,
        sum(map(_legend_width, places)),
        *(width(label, _SIZE) for label in labels),
        *(total * scale + 8 + width(text, _SIZE) for total, text in zip(sums, totals)),
    ]
    top = _MARGIN + _HEADING + _GAP
    height = top + len(rows) * (_LABEL + _BAR + _GAP) + (_SWATCH + _MARGIN if places else 0)
    root = svg.picture(title, 2 * _MARGIN + max(room), height)
    svg.add_text(root, title, _MARGIN, _MARGIN + _HEADING - 2, _HEADING, font_weight="bold")
    for label, text, (_, parts) in zip(labels, totals, rows):
        svg.add_text(root, label, _MARGIN, top + _SIZE, _SIZE)
        end = _add_bar(root, top + _LABEL, parts, scale)
        middle = top + _LABEL + _BAR / 2
        svg.add_text(root, text, end + 8, middle + 4, _SIZE, fill=colors.LINE)
        top += _LABEL + _BAR + _GAP
    _add_legend(root, top, places)
    return svg.to_string(root)


def _add_bar(root: svg.Element, top: float, parts: Parts, scale: float) -> float:
    """Returns where the bar ends."""
    left = float(_MARGIN)
    for place, amount in parts:
        length, text = amount * scale, _written(amount)
        if not length:
            continue
        bar = svg.add(root, "rect", **_box(left, top, length, _BAR, place))
        svg.add(bar, "title", f"{visible(place)}: {text}")
        if width(text, _SIZE) + 4 <= length:
            middle = left + length / 2
            svg.add_text(root, text, middle, top + _BAR / 2 + 4, _SIZE, text_anchor="middle")
        left += length
    return left


def _add_legend(root: svg.Element, top: float, places: Sequence[str]) -> None:
    left = float(_MARGIN)
    for place in places:
        svg.add(root, "rect", **_box(left, top, _SWATCH, _SWATCH, place))
        svg.add_text(root, visible(place), left + _SWATCH + 5, top + _SWATCH, _SIZE)
        left += _legend_width(place)


def _box(x: float, y: float, width: float, height: float, place: str) -> dict[str, str | float]:
    color = _COLORS.get(place, _OTHERS)
    return {"x": x, "y": y, "width": width, "height": height, "fill": color, "stroke": colors.LINE}


def _legend_width(place: str) -> float:
    return _SWATCH + 5 + width(visible(place), _SIZE) + 16


def _written(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 1e5 else f"{amount:,.6g}"
