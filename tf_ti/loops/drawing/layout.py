"""Layout: places for boxes, for groups of them and for the wires between.

A group lies as one wide box among its neighbours, with a port where a wire passes its border: an
entry on the upper border, an exit on the lower one, or a box without extent. So each group is laid
out by itself, the inner ones first: its members in rows, wires going down from row to row. A wire
that leads up turns below its source, and goes up beside it.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Union

from tf_ti.loops.drawing import rows as _rows
from tf_ti.loops.drawing.rows import GAP, Node, link

LABEL_GAP = 5.0  # from a wire to its label
_PADDING = 14.0  # within a border
_LEAST_GAP, _MOST_GAP, _STEEPNESS = 32.0, 90.0, 1 / 12  # between rows
_MOST_WIDTH = 1200.0  # of a row that can be two
_TURN = 14.0  # from the middle of a box to where a wire that leads up begins or ends
_STRAIGHT, _STRAIGHTER = 3.0, 9.0  # weights of links from a box to a bend, and between bends

Point = tuple[float, float]
Item = Union["Box", "Group"]


@dataclasses.dataclass(eq=False)
class Box:
    """A box that wires lead to and from.

    Attributes:
        width, height: its size.
        place: "entry" on the upper border of its group, "exit" on the lower one, or "inside".
        x, y: its upper left corner, once it is laid out.
    """

    width: float
    height: float
    place: str = "inside"
    x: float = 0.0
    y: float = 0.0


@dataclasses.dataclass(eq=False)
class Group:
    """Boxes and groups within a border.

    Attributes:
        members: those.
        has_border: whether there is a border; without one there is no entry, and no exit.
        title_width, title_height: the room to leave below the left end of the upper border.
        x, y, width, height: the border, once it is laid out.
    """

    members: list[Item] = dataclasses.field(default_factory=list)
    has_border: bool = True
    title_width: float = 0.0
    title_height: float = 0.0
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0


@dataclasses.dataclass(eq=False)
class Wire:
    """A wire, from the lower side of a box to the upper side of another.

    One that leads from inside a group to its entry ends at the lower side of that.

    Attributes:
        source, target: the boxes.
        leads_up: whether the target may be above the source.
        label_width: that of its label, to the right of its end.
        points: its way, once it is laid out. Between points one above the other it is straight,
            between points side by side a bow, and else a curve that begins and ends upright.
    """

    source: Box
    target: Box
    leads_up: bool = False
    label_width: float = 0.0
    points: list[Point] = dataclasses.field(default_factory=list)


def arrange(root: Group, wires: Sequence[Wire]) -> None:
    """Finds the places of all that is in a group, and the ways of the wires."""
    level = _Level(root)
    homes = dict(level.homes())
    ways = [_way(wire, homes) for wire in wires]
    level.arrange()
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


@dataclasses.dataclass(eq=False)
class _Part:
    """The part of a wire that is in one group.

    Attributes:
        source, target: members of the group.
        start, end: their ports, if they are groups.
        leads_up: as for the wire.
        aside: how far from the middle of an entry it ends, if it leads up to one.
        bends: the nodes in the rows between, from the top.
        points: its way.
    """

    source: Item
    start: Box | None
    target: Item
    end: Box | None
    leads_up: bool = False
    aside: float = 0.0
    bends: list[Node] = dataclasses.field(default_factory=list)
    points: list[Point] = dataclasses.field(default_factory=list)


def _way(wire: Wire, homes: dict[Box, tuple["_Level", ...]]) -> list[_Part]:
    """The parts of a wire in the groups that it passes, each told to its level."""
    levels = homes[wire.source], homes[wire.target]
    common = next(level for level in levels[0] if level in levels[1])
    source, start, way = wire.source, None, []
    for level in levels[0][: levels[0].index(common)]:
        port = source
        if source is not wire.source or source.place != "exit":
            port = level.portal("exit", wire.source)
            way.append(level.add(_Part(source, start, port, None)))
        source, start = level.group, port
    target, end, rest = wire.target, None, []
    for level in levels[1][: levels[1].index(common)]:
        port = target
        if target is not wire.target or target.place != "entry":
            port = level.portal("entry", wire.source)
            rest.append(level.add(_Part(port, None, target, end)))
        target, end = level.group, port
    levels[1][0].make_room(wire.target, wire.label_width)
    leads_up = wire.leads_up or _place(target) == "entry" or _place(source) == "exit"
    aside = min(_TURN, wire.target.width / 4) if wire.leads_up else 0.0
    return [*way, common.add(_Part(source, start, target, end, leads_up, aside)), *reversed(rest)]


def _place(item: Item) -> str:
    return item.place if isinstance(item, Box) else "inside"


class _Level:
    """One group, and how its members are laid out.

    Until the group around it places it, its own coordinates are those of everything in it.
    """

    def __init__(self, group: Group, around: tuple["_Level", ...] = ()):
        self.group = group
        self._around = (self, *around)
        self._inner = {
            member: _Level(member, self._around)
            for member in group.members
            if isinstance(member, Group)
        }
        self._parts: list[_Part] = []
        self._portals: dict[tuple[str, Box], Box] = {}
        self.ports: dict[Box, Point] = {}
        self._labels: dict[Box, float] = defaultdict(float)
        self._nodes: dict[Item, Node] = {}
        self._rows: dict[Item, int] = {}
        self._chart: dict[int, list[Node]] = defaultdict(list)

    def homes(self) -> Iterator[tuple[Box, tuple["_Level", ...]]]:
        """The levels around each box, the innermost first."""
        for member in self.group.members:
            if isinstance(member, Box):
                yield member, self._around
        for level in self._inner.values():
            yield from level.homes()

    def portal(self, place: str, source: Box) -> Box:
        """Where wires from a box that is no neighbour pass the border."""
        return self._portals.setdefault((place, source), Box(0.0, 0.0, place))

    def add(self, part: _Part) -> _Part:
        self._parts.append(part)
        return part

    def make_room(self, target: Box, label_width: float) -> None:
        """Keeps what is to the right of a box away from the label of a wire that leads to it."""
        self._labels[target] = max(self._labels[target], label_width)

    def arrange(self) -> None:
        for level in self._inner.values():
            level.arrange()
        self._find_rows()
        chains = self._link()
        chart = [self._chart[row] for row in sorted(self._chart)]
        _rows.sort(chart)
        _rows.place(chart, chains)
        self._stack()
        self._frame()
        for part in self._parts:
            part.points = list(self._up(part) if part.leads_up else self._down(part))

    # --- rows ------------------------------------------------------------------------------------

    def _find_rows(self) -> None:
        """Finds the row of each member: that of entries is 0, that of exits the last one."""
        items = [*self.group.members, *self._portals.values()]
        inside = [item for item in items if _place(item) == "inside"]
        arcs = [
            (part.source, part.target)
            for part in self._parts
            if not part.leads_up and _place(part.source) == _place(part.target) == "inside"
        ]
        depths = _rows.depths(inside, arcs)
        row, depth, room = 0, None, 0.0
        for item in sorted(inside, key=lambda item: depths[item]):
            room -= self._size(item)[0] + GAP
            if depths[item] != depth or room < 0:
                row, depth, room = row + 1, depths[item], _MOST_WIDTH - self._size(item)[0]
            self._rows[item] = row
        self._last = row + 1
        if self.group.has_border:
            self._chart.update({0: [], self._last: []})
        for item in items:
            if _place(item) != "inside":
                self._rows[item] = 0 if _place(item) == "entry" else self._last
            half = self._size(item)[0] / 2
            label = self._labels.get(item, 0.0) and self._labels[item] + LABEL_GAP + _TURN
            self._nodes[item] = Node(half, max(half, label))
            self._chart[self._rows[item]].append(self._nodes[item])
        for part in self._parts:
            part.leads_up = self._rows[part.source] >= self._rows[part.target]

    def _size(self, item: Item) -> tuple[float, float]:
        if isinstance(item, Box):
            return item.width, item.height
        level = self._inner[item]
        return item.width, level.bottom - level.top

    def _link(self) -> list[list[Node]]:
        """Links the nodes by chains of bends in the rows between them, and returns the chains."""
        shared: dict[tuple[Item, Box | None], list[Node]] = defaultdict(list)
        linked: set[tuple[Node, Node, float]] = set()
        for part in self._parts:
            source, target = self._nodes[part.source], self._nodes[part.target]
            start, end = (
                self._port(part.source, part.start)[0],
                self._port(part.target, part.end)[0],
            )
            first, last = self._rows[part.source], self._rows[part.target]
            if part.leads_up:
                self._link_up(part)
                continue
            bends = shared[part.source, part.start]
            for row in range(first + 1 + len(bends), last):
                bend = Node()
                self._chart[row].append(bend)
                if bends:
                    link(bends[-1], bend, weight=_STRAIGHTER)
                else:
                    link(source, bend, start, weight=_STRAIGHT)
                bends.append(bend)
            part.bends = bends[: last - first - 1]
            upper = part.bends[-1] if part.bends else source
            if (upper, target, end) not in linked:
                linked.add((upper, target, end))
                if part.bends:
                    link(upper, target, 0.0, end, _STRAIGHT)
                else:
                    link(upper, target, start, end)
        upward = [part.bends for part in self._parts if part.leads_up]
        return [chain for chain in (*shared.values(), *upward) if len(chain) > 1]

    def _link_up(self, part: _Part) -> None:
        """Links both ends with a chain beside them, by a bend where it turns."""
        source, target = self._nodes[part.source], self._nodes[part.target]
        top, bottom = self._rows[part.target], self._rows[part.source]
        if _place(part.target) == "entry":
            top += 1
            chain, shift = [target], part.aside
        else:
            chain, shift = [Node()], 0.0
            self._chart[top - 1].append(chain[0])
            link(chain[0], target, end=self._port(part.target, part.end)[0])
        for row in range(top, bottom + 1):
            bend = Node()
            self._chart[row].append(bend)
            link(chain[-1], bend, shift, weight=_STRAIGHT if shift else _STRAIGHTER)
            shift = 0.0
            chain.append(bend)
        turn = Node()
        self._chart[bottom + 1].append(turn)
        link(source, turn, self._port(part.source, part.start)[0])
        link(chain[-1], turn, shift)
        part.bends = chain[1:]

    def _port(self, item: Item, port: Box | None) -> Point:
        """Where a wire ends, from the middle of the upper side of the item."""
        return self._inner[item].ports[port] if isinstance(item, Group) else (0.0, 0.0)

    # --- coordinates -----------------------------------------------------------------------------

    def _stack(self) -> None:
        """Finds the heights: the middle, the top and the bottom of each row."""
        heights: dict[int, float] = defaultdict(float)
        for item, row in self._rows.items():
            heights[row] = max(heights[row], self._size(item)[1])
        self._middles: dict[int, float] = {}
        self._tops: dict[int, float] = {}
        self._bottoms: dict[int, float] = {}
        y = 0.0
        for row in sorted(self._chart):
            self._tops[row], self._middles[row] = y, y + heights[row] / 2
            y += heights[row]
            if row == 0:
                y = max(y, self._middles[0] + self.group.title_height)
            self._bottoms[row] = y
            reach = max(
                (
                    abs(e.lower.x + e.end - e.upper.x - e.start)
                    for node in self._chart[row]
                    for e in node.down
                ),
                default=0.0,
            )
            y += min(_LEAST_GAP + reach * _STEEPNESS, _MOST_GAP)
        self.top, self.bottom = (
            min(self._tops.values(), default=0.0),
            max(self._bottoms.values(), default=0.0),
        )

    def _frame(self) -> None:
        """Finds the border, and places what is in it."""
        group = self.group
        nodes = [node for row in self._chart.values() for node in row]
        left = min((node.x - node.left for node in nodes), default=0.0)
        right = max((node.x + node.right for node in nodes), default=0.0)
        if group.title_width:
            entries = [node.x - node.left for node in self._chart[0]]
            left = min(left, min(entries, default=right + GAP) - GAP - group.title_width)
        group.x, group.width = left - _PADDING, right - left + 2 * _PADDING
        group.y = self._middles[0] if group.has_border else self.top
        group.height = (self._middles[self._last] if group.has_border else self.bottom) - group.y
        for item, row in self._rows.items():
            x, y = self._nodes[item].x, self._middles[row]
            if isinstance(item, Box):
                item.x, item.y = x - item.width / 2, y - item.height / 2
            else:
                level = self._inner[item]
                height = level.bottom - level.top
                level._move(x - item.x - item.width / 2, y - height / 2 - level.top)
        middle = group.x + group.width / 2
        for port in (*group.members, *self._portals.values()):
            if _place(port) != "inside":
                row = self._rows[port]
                side = port.height / 2 if port.place == "exit" else -port.height / 2
                dy = self._middles[row] + side - self.top
                self.ports[port] = self._nodes[port].x - middle, dy

    def _move(self, x: float, y: float) -> None:
        group = self.group
        group.x, group.y = group.x + x, group.y + y
        for member in group.members:
            if isinstance(member, Box):
                member.x, member.y = member.x + x, member.y + y
            else:
                self._inner[member]._move(x, y)
        for part in self._parts:
            part.points = [(point[0] + x, point[1] + y) for point in part.points]

    # --- ways ------------------------------------------------------------------------------------

    def _down(self, part: _Part) -> Iterator[Point]:
        x, y = self._end(part.source, part.start, True)
        row = self._rows[part.source]
        yield from ((x, y), (x, self._bottoms[row]))
        for row, bend in enumerate(part.bends, row + 1):
            yield from ((bend.x, self._tops[row]), (bend.x, self._bottoms[row]))
        x, y = self._end(part.target, part.end)
        yield from ((x, self._tops[row + 1]), (x, y))

    def _up(self, part: _Part) -> Iterator[Point]:
        """From below the source to above the target, or to below it if it is an entry."""
        is_entry = _place(part.target) == "entry"
        last_x, last_y = self._end(part.target, part.end, is_entry)
        last_x += part.aside if is_entry else self._aside(part.target, part.bends[:1])
        x, y = self._end(part.source, part.start, True)
        x += self._aside(part.source, part.bends[-1:] or [self._nodes[part.target]])
        row = self._rows[part.source]
        yield from ((x, y), (x, self._bottoms[row]))
        for row, bend in zip(itertools.count(row, -1), reversed(part.bends)):
            yield from ((bend.x, self._bottoms[row]), (bend.x, self._tops[row]))
        row = self._rows[part.target]
        yield (last_x, self._bottoms[row] if is_entry else self._tops[row])
        yield last_x, last_y

    def _aside(self, item: Item, nearest: Sequence[Node]) -> float:
        """How far from the middle of a box what leads up begins or ends, on the side of a node."""
        if isinstance(item, Group):
            return 0.0
        return min(_TURN, item.width / 4) * (1 if nearest[0].x > self._nodes[item].x else -1)

    def _end(self, item: Item, port: Box | None, is_lower: bool = False) -> Point:
        """Where a wire ends: in the middle of a side of a box, or at a port of a group."""
        dx, dy = self._port(item, port)
        height = self._size(item)[1]
        y = self._middles[self._rows[item]] - height / 2 + dy
        at_lower = isinstance(item, Box) and is_lower
        return self._nodes[item].x + dx, y + (height if at_lower else 0.0)
