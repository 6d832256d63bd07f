"""The boundary layers of loops, and the loops that they are of."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_ti.loops.passes.step import Note

Path = tuple["LoopNode", ...]  # loops, each inside the one before


@dataclasses.dataclass(eq=False)
class Layer:
    """A boundary layer of a loop.

    Attributes:
        label: the name that errors give it.
        loop: the loop.
        value: the placeholder that stands for its output.
        given: tensors from outside of the loop, by their names in errors.
    """

    label: str
    loop: "LoopNode"
    value: tf.Tensor
    given: dict[str, tf.Tensor]

    @property
    def own_label(self) -> str:
        """Its name within the loop."""
        return self.label.removeprefix(f"{self.loop.label}: ")


@dataclasses.dataclass(eq=False)
class IteratorLayer(Layer):
    axis: int
    reverse: bool

    def details(self) -> tuple[str, ...]:
        return (f"axis={self.axis}", *(["reverse"] if self.reverse else []))


@dataclasses.dataclass(eq=False)
class RecurrenceLayer(Layer):
    next: tf.Tensor | None = None

    def details(self) -> tuple[str, ...]:
        return ()


@dataclasses.dataclass(eq=False)
class OutputLayer(Layer):
    kind: str  # "last", "concatenate", "reverse"
    tensor: tf.Tensor
    recurrence: RecurrenceLayer | None
    axis: int
    result: tf.Tensor | None = None  # once the loop ran, or is in the graph around it
    used_at: str | None = None  # where the block itself used it first

    def details(self) -> tuple[str, ...]:
        if self.kind == "last":
            return ("LAST_VALUE",)
        return (self.kind.upper(), f"axis={self.axis}")


@dataclasses.dataclass(eq=False)
class LoopNode:
    """One loop of a network.

    Attributes:
        name: its name.
        around: the loops of the network whose blocks its own stands in, the outermost first.
        fuse: true if passes may change it, and programs run it.
        notes: the account of its passes.
        end: how many operations there were when its block was closed.
        used: the tensors given to its layers, with the loops whose blocks were open then.
    """

    name: str
    around: Path
    fuse: bool = True
    count: tf.Tensor | None = None
    condition: tf.Tensor | None = None
    iterators: list[IteratorLayer] = dataclasses.field(default_factory=list)
    recurrences: list[RecurrenceLayer] = dataclasses.field(default_factory=list)
    outputs: list[OutputLayer] = dataclasses.field(default_factory=list)
    notes: tuple[Note, ...] = ()
    end: int = 0
    used: list[tuple[tf.Tensor, Path]] = dataclasses.field(default_factory=list)

    @property
    def label(self) -> str:
        return f"loop {self.name!r}"

    @property
    def limit_label(self) -> str:
        return f"{self.label}: trip limit"

    def layers(self) -> list[Layer]:
        return [*self.iterators, *self.recurrences, *self.outputs]

    def given(self) -> list[tuple[str, tf.Tensor]]:
        """The tensors from outside, each with its name in errors."""
        found = [
            (f"{layer.label}: {what}", tensor)
            for layer in self.layers()
            for what, tensor in layer.given.items()
        ]
        if self.count is not None:
            found.append((f"{self.limit_label}: the count", self.count))
        return found

    def replace(self, value_of: Callable[..., Any]) -> None:
        """Gives the layers other tensors."""
        self.count, self.condition = value_of(self.count), value_of(self.condition)
        for layer in self.layers():
            layer.given = {what: value_of(t) for what, t in layer.given.items()}
        for recurrence in self.recurrences:
            recurrence.next = value_of(recurrence.next)
        for output in self.outputs:
            output.tensor = value_of(output.tensor)

    def results(self) -> list[tuple[str, tf.Tensor]]:
        """The tensors that each iteration must compute, each with its name in errors."""
        found = [(f"{r.label}: the second input", r.next) for r in self.recurrences]
        found += [(f"{o.label}: the tensor", o.tensor) for o in self.outputs]
        if self.condition is not None:
            found.append((f"{self.limit_label}: the condition", self.condition))
        return found
