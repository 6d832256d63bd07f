"""Nodes in rows: in which row each is, in which order, and how far to the right.

The steps are those of Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical
system structures", 1981. What leads through several rows is a chain of links between nodes that
have no extent.
"""

import bisect
import dataclasses
import itertools
import statistics
import types
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

_Item = TypeVar("_Item", bound=Hashable)

_FEWEST_SWEEPS, _MOST_SWEEPS, _VISITS = 3, 40, 100_000  # of nodes, where there are many
LOOSE, USUAL, UPRIGHT = 0.1, 1.0, 10.0  # weights of links
_STIFFNESS = 200.0  # of chains
GAP, _NARROW_GAP = 18.0, 10.0  # between nodes, and beside those that have no extent


@dataclasses.dataclass(eq=False, slots=True)
class Node:
    """A node of a row.

    Attributes:
        left, right: its extent, from x.
        x: where it is.
        position: the number of nodes to the left of it.
        up, down: its links with the rows above and below.
    """

    left: float = 0.0
    right: float = 0.0
    x: float = 0.0
    position: float = 0.0
    up: list["Link"] = dataclasses.field(default_factory=list)
    down: list["Link"] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False, slots=True)
class Link:
    """A line between nodes of two neighbouring rows.

    Attributes:
        upper, lower: the nodes.
        start, end: where on them, from their x.
        weight: how much it matters that it is upright.
    """

    upper: Node
    lower: Node
    start: float
    end: float
    weight: float

    @property
    def shift(self) -> float:
        """How far to the right its lower end is."""
        return self.lower.x + self.end - self.upper.x - self.start


def link(
    upper: Node, lower: Node, start: float = 0.0, end: float = 0.0, weight: float = USUAL
) -> None:
    made = Link(upper, lower, start, end, weight)
    upper.down.append(made)
    lower.up.append(made)


# --- which row -----------------------------------------------------------------------------------


def depths(items: Iterable[_Item], arcs: Iterable[tuple[_Item, _Item]]) -> dict[_Item, int]:
    """The row of each item: below all that lead to it, and as far up as that allows.

    What nothing leads to is right above what it leads to. In a circle some arc leads up.
    """
    followers: dict[_Item, list[_Item]] = {item: [] for item in items}
    missing = dict.fromkeys(followers, 0)
    for source, target in arcs:
        if source is not target:
            followers[source].append(target)
            missing[target] += 1
    found: dict[_Item, int] = {}
    depth = dict.fromkeys(followers, 0)
    first = [item for item, count in missing.items() if not count]
    ready, rest = first[::-1], iter(followers)
    while len(found) < len(followers):
        if not ready:  # the others are in a circle, or below one
            ready.append(next(item for item in rest if item not in found))
        item = ready.pop()
        found[item] = depth[item]
        for target in followers[item]:
            missing[target] -= 1
            if target not in found:
                depth[target] = max(depth[target], depth[item] + 1)
                if not missing[target]:
                    ready.append(target)
    for item in first:
        found[item] = min((found[target] for target in followers[item]), default=1) - 1
    return found


def _sweeps(rows: Iterable[Sequence[Node]], most: int) -> int:
    """How often to go through all rows, so that it does not take long."""
    return max(_FEWEST_SWEEPS, min(most, _VISITS // (1 + sum(map(len, rows)))))


# --- which order ---------------------------------------------------------------------------------


def sort(rows: list[list[Node]]) -> None:
    """Sorts each row, so that few links cross."""
    _number(rows)
    best = [list(row) for row in rows]
    fewest = sum(map(_crossings, rows))
    for sweep in range(_sweeps(rows, _MOST_SWEEPS // 4)):
        if not fewest:
            break
        is_down = sweep % 2 == 0
        for row in rows if is_down else reversed(rows):
            row.sort(key=lambda node: _median(node, is_down))
            _number([row])
        _exchange_neighbours(rows)
        count = sum(map(_crossings, rows))
        if count < fewest:
            best, fewest = [list(row) for row in rows], count
    rows[:] = best
    _number(rows)


def _number(rows: Iterable[list[Node]]) -> None:
    for row in rows:
        for position, node in enumerate(row):
            node.position = position


def _median(node: Node, is_down: bool) -> float:
    ends = _ends(node.up) if is_down else _ends(node.down, is_upper=False)
    return statistics.median(ends) if ends else node.position


def _ends(links: Sequence[Link], is_upper: bool = True) -> list[float]:
    """Where links end, at the upper nodes or at the lower ones, in numbers of nodes."""
    found = []
    for each in links:
        node, at = (each.upper, each.start) if is_upper else (each.lower, each.end)
        found.append(node.position + at / (1 + node.left + node.right))
    return sorted(found)


def _crossings(row: Sequence[Node]) -> int:
    """How many links cross between a row and the next."""
    links = []
    for node in row:
        for each in node.down:
            (start,), (end,) = _ends([each]), _ends([each], is_upper=False)
            links.append((start, end))
    seen: list[float] = []
    count = 0
    for _, end in sorted(links):
        count += len(seen) - bisect.bisect_right(seen, end)
        bisect.insort(seen, end)
    return count


def _exchange_neighbours(rows: Iterable[list[Node]]) -> None:
    """Exchanges neighbours while that leaves fewer crossings."""
    for row in rows:
        for k in range(len(row) - 1):
            left, right = row[k], row[k + 1]
            if _crossings_of(right, left) < _crossings_of(left, right):
                row[k : k + 2] = right, left
                left.position, right.position = right.position, left.position


def _crossings_of(left: Node, right: Node) -> int:
    """How many links of two neighbours cross one another."""
    count = 0
    for is_upper in (True, False):
        ends = [_ends(node.up if is_upper else node.down, is_upper) for node in (left, right)]
        count += sum(len(ends[0]) - bisect.bisect_right(ends[0], end) for end in ends[1])
    return count


# --- how far to the right ------------------------------------------------------------------------


def place(rows: Sequence[Sequence[Node]]) -> None:
    """Finds the x of each node: near those it is linked with, in its order, and apart.

    Of chains as many nodes as possible are above one another.
    """
    for row in rows:
        _settle(row, [(0.0, 1.0)] * len(row))
    for sweep in range(_sweeps(rows, _MOST_SWEEPS // 4)):  # from one side, to come near
        is_down = sweep % 2 == 0
        for row in rows if is_down else reversed(rows):
            _settle(row, [_wanted(node, node.up if is_down else node.down) for node in row])
    chains, straight = _chains(rows), dict[Node, float]()
    for sweep in range(_sweeps(rows, _MOST_SWEEPS) | 1):  # downward in the end, too
        for chain in chains:
            straight.update(dict.fromkeys(chain, statistics.fmean(node.x for node in chain)))
        for row in rows if sweep % 2 == 0 else reversed(rows):
            _settle(row, [_wanted(node, [*node.up, *node.down], straight) for node in row])
    for chain in chains:
        _straighten(chain)
    for row in rows:
        _gather(row)


def _chains(rows: Iterable[Sequence[Node]]) -> list[list[Node]]:
    """The nodes that links hold above one another, or that have no other links that matter."""

    def is_only(links: Sequence[Link]) -> bool:
        return sum(each.weight != LOOSE for each in links) == 1

    found: dict[Node, list[Node]] = {}
    for node in itertools.chain.from_iterable(rows):
        for each in node.down:
            is_single = is_only(node.down) and is_only(each.lower.up) and each.start == each.end
            if each.weight == UPRIGHT or (each.weight == USUAL and is_single):
                chain = found.setdefault(node, [node])
                chain.append(each.lower)
                found[each.lower] = chain
    return [chain for node, chain in found.items() if chain[0] is node]


def _straighten(chain: Sequence[Node]) -> None:
    """Takes the smallest bends away: gaps are larger."""
    for node, following in itertools.pairwise(chain):
        if abs(following.x - node.x) < _NARROW_GAP / 4:
            following.x = node.x


def _wanted(
    node: Node, links: Sequence[Link], straight: Mapping[Node, float] = types.MappingProxyType({})
) -> tuple[float, float]:
    """Where a node should be, and how much that matters."""
    pull = sum((e.shift if e.upper is node else -e.shift) * e.weight for e in links)
    weight = sum(each.weight for each in links)
    if node in straight:
        pull += (straight[node] - node.x) * _STIFFNESS
        weight += _STIFFNESS
    return (node.x + pull / weight, weight) if weight else (node.x, 0.01)


def _distance(left: Node, right: Node) -> float:
    is_wide = left.left + left.right > 0 and right.left + right.right > 0
    return left.right + right.left + (GAP if is_wide else _NARROW_GAP)


def _settle(row: Sequence[Node], wanted: Sequence[tuple[float, float]]) -> None:
    """Brings nodes as near to what they want as their order and their extents allow.

    That is a monotone regression: neighbours that would get too close move as one.
    """
    offsets = [0.0, *itertools.accumulate(itertools.starmap(_distance, itertools.pairwise(row)))]
    blocks: list[tuple[float, float, int]] = []  # x without offset, weight, number of nodes
    for (x, weight), offset in zip(wanted, offsets):
        x, count = x - offset, 1
        while blocks and blocks[-1][0] > x:
            other, more, size = blocks.pop()
            x = (x * weight + other * more) / (weight + more)
            weight, count = weight + more, count + size
        blocks.append((x, weight, count))
    places = [x for x, _, count in blocks for _ in range(count)]
    for node, x, offset in zip(row, places, offsets):
        node.x = x + offset


def _gather(row: Sequence[Node]) -> None:
    """Brings nodes without links to their neighbours."""
    linked = [k for k, node in enumerate(row) if node.up or node.down]
    first = linked[0] if linked else 0
    for k in range(first - 1, -1, -1):
        row[k].x = row[k + 1].x - _distance(row[k], row[k + 1])
    for left, right in itertools.pairwise(row[first:]):
        if not right.up and not right.down:
            right.x = left.x + _distance(left, right)
