"""What a layout is of: boxes, groups of them, and the wires between."""

import dataclasses
from typing import Union

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
