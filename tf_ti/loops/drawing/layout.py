"""Layout: places for boxes, for groups of them and for the wires between.

A group lies as one wide box among its neighbours, with a port where a wire passes its border: an
entry on the upper border, an exit on the lower one, or a box without extent. So each group is laid
out by itself, the inner ones first.
"""

from collections.abc import Iterable, Sequence

from tf_ti.loops.drawing.boxes import Box, Group, Item, Point, Wire
from tf_ti.loops.drawing.level import TURN, Level, Part, place_of


def arrange(root: Group, wires: Sequence[Wire], x: float, y: float) -> None:
    """Finds the places of all in a group, whose upper left corner is given, and of the wires."""
    level = Level(root)
    homes = dict(level.homes())
    ways = [_way(wire, homes) for wire in wires]
    level.arrange()
    level.move(x - root.x, y - root.y)
    for wire, parts in zip(wires, ways):
        wire.points = _simplified(point for part in parts for point in part.points)


def _simplified(points: Iterable[Point]) -> list[Point]:
    """The ends and the corners, to a tenth of a pixel."""
    kept: list[Point] = []
    for point in points:
        point = round(point[0], 1), round(point[1], 1)
        if kept and point == kept[-1]:
            continue
        if len(kept) > 1 and kept[-2][0] == kept[-1][0] == point[0]:
            kept.pop()
        kept.append(point)
    return kept


def _way(wire: Wire, homes: dict[Box, tuple[Level, ...]]) -> list[Part]:
    """The parts of a wire in the groups that it passes, each told to its level."""
    around_source, around_target = homes[wire.source], homes[wire.target]
    common = next(level for level in around_source if level in around_target)
    source: Item = wire.source
    start, way = None, []
    for level in around_source[: around_source.index(common)]:
        port = wire.source
        if source is not wire.source or place_of(source) != "exit":
            port = level.portal("exit", wire.source)
            way.append(level.add(Part(source, start, port, None)))
        source, start = level.group, port
    target: Item = wire.target
    end, rest = None, []
    for level in around_target[: around_target.index(common)]:
        port = wire.target
        if target is not wire.target or place_of(target) != "entry":
            port = level.portal("entry", wire.source)
            rest.append(level.add(Part(port, None, target, end)))
        target, end = level.group, port
    around_target[0].make_room(wire.target, wire.label_width)
    leads_up = wire.leads_up or place_of(target) == "entry" or place_of(source) == "exit"
    aside = min(TURN, wire.target.width / 4) if wire.leads_up else 0.0
    return [*way, common.add(Part(source, start, target, end, leads_up, aside)), *reversed(rest)]
