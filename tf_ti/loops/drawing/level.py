"""The layout of one group: its members in rows, wires going down from row to row.

A wire that leads up turns below its source, and goes up beside it.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

from tf_ti.loops.drawing import rows as _rows
from tf_ti.loops.drawing.boxes import Box, Group, Item, Point
from tf_ti.loops.drawing.rows import GAP, LOOSE, UPRIGHT, USUAL, Node, link

LABEL_GAP = 5.0  # from a wire to its label
TURN = 14.0  # from the middle of a box to where a wire that leads up begins or ends
_PADDING = 14.0  # within a border
_LEAST_GAP, _MOST_GAP, _STEEPNESS = 32.0, 90.0, 1 / 12  # between rows
_MOST_WIDTH = 1200.0  # of a row that can be two


@dataclasses.dataclass(eq=False)
class Part:
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


def place_of(item: Item) -> str:
    return item.place if isinstance(item, Box) else "inside"


class Level:
    """One group, and how its members are laid out.

    Until the group around it places it, its own coordinates are those of everything in it.
    """

    def __init__(self, group: Group, around: tuple["Level", ...] = ()):
        self.group = group
        self._around = (self, *around)
        self._inner = {
            member: Level(member, self._around)
            for member in group.members
            if isinstance(member, Group)
        }
        self._parts: list[Part] = []
        self._portals: dict[tuple[str, Box], Box] = {}
        self.ports: dict[Box, Point] = {}
        self._labels: dict[Item, float] = defaultdict(float)
        self._nodes: dict[Item, Node] = {}
        self._rows: dict[Item, int] = {}
        self._chart: dict[int, list[Node]] = defaultdict(list)

    def homes(self) -> Iterator[tuple[Box, tuple["Level", ...]]]:
        """The levels around each box, the innermost first."""
        for member in self.group.members:
            if isinstance(member, Box):
                yield member, self._around
        for level in self._inner.values():
            yield from level.homes()

    def portal(self, place: str, source: Box) -> Box:
        """Where wires from a box that is no neighbour pass the border."""
        return self._portals.setdefault((place, source), Box(0.0, 0.0, place))

    def add(self, part: Part) -> Part:
        self._parts.append(part)
        return part

    def make_room(self, target: Box, label_width: float) -> None:
        """Keeps what is to the right of a box away from the label of a wire that leads to it."""
        self._labels[target] = max(self._labels[target], label_width)

    def arrange(self) -> None:
        for level in self._inner.values():
            level.arrange()
        self._find_rows()
        self._link()
        chart = [self._chart[row] for row in sorted(self._chart)]
        _rows.sort(chart)
        _rows.place(chart)
        self._stack()
        self._frame()
        for part in self._parts:
            part.points = list(self._up(part) if part.leads_up else self._down(part))

    # --- rows ------------------------------------------------------------------------------------

    def _find_rows(self) -> None:
        """Finds the row of each member: that of entries is 0, that of exits the last one."""
        items = [*self.group.members, *self._portals.values()]
        inside = [item for item in items if place_of(item) == "inside"]
        arcs = [
            (part.source, part.target)
            for part in self._parts
            if not part.leads_up and place_of(part.source) == place_of(part.target) == "inside"
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
            if place_of(item) != "inside":
                self._rows[item] = 0 if place_of(item) == "entry" else self._last
            half = self._size(item)[0] / 2
            label = self._labels.get(item, 0.0) and self._labels[item] + LABEL_GAP + TURN
            self._nodes[item] = Node(half, max(half, label))
            self._chart[self._rows[item]].append(self._nodes[item])
        for part in self._parts:
            part.leads_up = self._rows[part.source] >= self._rows[part.target]

    def _size(self, item: Item) -> tuple[float, float]:
        if isinstance(item, Box):
            return item.width, item.height
        return item.width, self._inner[item].height

    def _link(self) -> None:
        """Links the nodes, by bends in the rows between them."""
        shared: dict[tuple[Item, Box | None], list[Node]] = defaultdict(list)
        linked: set[tuple[Node, Node, float]] = set()
        for part in self._parts:
            if part.leads_up:
                self._link_up(part)
                continue
            first, last = self._rows[part.source], self._rows[part.target]
            start, end = self._port(part.source, part.start), self._port(part.target, part.end)
            bends = shared[part.source, part.start]
            for row in range(first + 1 + len(bends), last):
                if bends:
                    bends.append(self._bend(row, bends[-1], weight=UPRIGHT))
                else:
                    bends.append(self._bend(row, self._nodes[part.source], start))
            part.bends = bends[: last - first - 1]
            if part.bends:
                upper, start = part.bends[-1], 0.0
            else:
                upper = self._nodes[part.source]
            lower = self._nodes[part.target]
            if (upper, lower, end) not in linked:
                linked.add((upper, lower, end))
                link(upper, lower, start, end)

    def _link_up(self, part: Part) -> None:
        """Links both ends with bends beside them, and with one where the wire turns."""
        source, target = self._nodes[part.source], self._nodes[part.target]
        top, bottom = self._rows[part.target], self._rows[part.source]
        if place_of(part.target) == "entry":
            top += 1
            upper, start = target, part.aside
        else:
            upper, start = self._bend(top - 1), 0.0
            link(upper, target, 0.0, self._port(part.target, part.end), LOOSE)
        for row in range(top, bottom + 1):
            upper = self._bend(row, upper, start, UPRIGHT if part.bends else USUAL)
            start = 0.0
            part.bends.append(upper)
        turn = self._bend(bottom + 1, upper, start, LOOSE)
        link(source, turn, self._port(part.source, part.start), weight=LOOSE)

    def _bend(
        self, row: int, upper: Node | None = None, start: float = 0.0, weight: float = USUAL
    ) -> Node:
        """A new node without extent, linked with one above it."""
        bend = Node()
        self._chart[row].append(bend)
        if upper is not None:
            link(upper, bend, start, weight=weight)
        return bend

    def _port(self, item: Item, port: Box | None) -> float:
        """How far from the middle of an item a wire ends."""
        if port is None or isinstance(item, Box):
            return 0.0
        return self._inner[item].ports[port][0]

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
                (abs(each.shift) for node in self._chart[row] for each in node.down), default=0.0
            )
            y += min(_LEAST_GAP + reach * _STEEPNESS, _MOST_GAP)
        self.height = self._bottoms[max(self._bottoms)]

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
        group.y = self._middles[0] if group.has_border else 0.0
        group.height = (self._middles[self._last] if group.has_border else self.height) - group.y
        for item, row in self._rows.items():
            x, y = self._nodes[item].x, self._middles[row]
            if isinstance(item, Box):
                item.x, item.y = x - item.width / 2, y - item.height / 2
            else:
                inner = self._inner[item]
                inner.move(x - item.x - item.width / 2, y - inner.height / 2)
        middle = group.x + group.width / 2
        for port in (*group.members, *self._portals.values()):
            if isinstance(port, Box) and port.place != "inside":
                row = self._rows[port]
                side = port.height / 2 if port.place == "exit" else -port.height / 2
                self.ports[port] = self._nodes[port].x - middle, self._middles[row] + side

    def move(self, x: float, y: float) -> None:
        group = self.group
        group.x, group.y = group.x + x, group.y + y
        for member in group.members:
            if isinstance(member, Box):
                member.x, member.y = member.x + x, member.y + y
            else:
                self._inner[member].move(x, y)
        for part in self._parts:
            part.points = [(point[0] + x, point[1] + y) for point in part.points]

    # --- ways ------------------------------------------------------------------------------------

    def _down(self, part: Part) -> Iterator[Point]:
        first, last = self._rows[part.source], self._rows[part.target]
        x, y = self._end(part.source, part.start, True)
        yield from ((x, y), (x, self._bottoms[first]))
        for row, bend in enumerate(part.bends, first + 1):
            yield from ((bend.x, self._tops[row]), (bend.x, self._bottoms[row]))
        x, y = self._end(part.target, part.end)
        yield from ((x, self._tops[last]), (x, y))

    def _up(self, part: Part) -> Iterator[Point]:
        """From below the source to above the target, or to below it if it is an entry."""
        first, last = self._rows[part.source], self._rows[part.target]
        is_entry = place_of(part.target) == "entry"
        last_x, last_y = self._end(part.target, part.end, is_entry)
        last_x += part.aside if is_entry else self._aside(part.target, part.bends[:1])
        x, y = self._end(part.source, part.start, True)
        x += self._aside(part.source, part.bends[-1:] or [self._nodes[part.target]])
        yield from ((x, y), (x, self._bottoms[first]))
        for row, bend in zip(itertools.count(first, -1), reversed(part.bends)):
            yield from ((bend.x, self._bottoms[row]), (bend.x, self._tops[row]))
        yield last_x, (self._bottoms if is_entry else self._tops)[last]
        yield last_x, last_y

    def _aside(self, item: Item, nearest: Sequence[Node]) -> float:
        """How far from the middle of a box what leads up begins or ends, on the side of a node."""
        if isinstance(item, Group):
            return 0.0
        return min(TURN, item.width / 4) * (1 if nearest[0].x > self._nodes[item].x else -1)

    def _end(self, item: Item, port: Box | None, is_lower: bool = False) -> Point:
        """Where a wire ends: in the middle of a side of a box, or at a port of a group."""
        x, y = self._nodes[item].x, self._middles[self._rows[item]]
        if port is None or isinstance(item, Box):
            return x, y + (item.height / 2 if is_lower else -item.height / 2)
        inner = self._inner[item]
        dx, dy = inner.ports[port]
        return x + dx, y - inner.height / 2 + dy
