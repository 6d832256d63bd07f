"""Channels: second in OpenVINO's tensors, last for TensorFlow's convolutions and pools.

A value that has its channels last keeps them there for the next convolution, and for layers on
elements between. Only what needs them second gets a transpose.
"""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import tensorflow as tf

from tf_ti.openvino.model import Layer
from tf_ti.openvino.operation import Function

_Function = TypeVar("_Function", bound=Function)
Source = tuple[int, int]  # the ids of a layer and its output port

_ON_ELEMENTS = frozenset(
    "Abs Add Ceiling Clamp Divide Elu Erf Exp FakeQuantize Floor Gelu HSigmoid HSwish HardSigmoid "
    "Log Maximum Minimum Mish Multiply Negative Power Relu Round Selu Sigmoid Sign SoftPlus "
    "SoftSign Sqrt SquaredDifference Subtract Swish Tanh".split()
)


def with_channels_last(function: _Function) -> _Function:
    """Marks a function whose first input, and whose outputs, have their channels last."""
    function.has_channels_last = True  # type: ignore[attr-defined]  # functions have a dict
    return function


def to_last(x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(x, [0, *range(2, x.shape.rank), 1])


def to_second(x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(x, [0, x.shape.rank - 1, *range(1, x.shape.rank - 1)])


class Values:
    """The values of output ports. Some have their channels last, until they are needed second."""

    def __init__(self) -> None:
        self._values: dict[Source, tf.Tensor] = {}
        self._last: dict[Source, tf.Tensor] = {}

    def __getitem__(self, source: Source) -> tf.Tensor:
        if source not in self._values:
            self._values[source] = to_second(self._last[source])
        return self._values[source]

    def set(self, source: Source, value: tf.Tensor, is_last: bool) -> None:
        (self._last if is_last else self._values)[source] = value

    def inputs_with_channels_last(
        self, layer: Layer, function: Function, sources: Sequence[Source]
    ) -> tuple[Layer, list[tf.Tensor]] | None:
        """The inputs of a layer that computes with channels last.

        Returns:
            The layer, with its axis among theirs, and the inputs. None if it has channels second.
        """
        if getattr(function, "has_channels_last", False) and sources:
            x = self._last.get(sources[0])
            if x is None and (self[sources[0]].shape.rank or 0) > 2:
                x = to_last(self[sources[0]])
            return None if x is None else (layer, [x, *(self[source] for source in sources[1:])])
        last = [self._last[source] for source in sources if source in self._last]
        if not last or not function.__module__.startswith("tf_ti.openvino."):
            return None
        rank = max(x.shape.rank for x in last)
        if layer.type == "Concat":
            return self._concatenated(layer, last, rank) if len(last) == len(sources) else None
        mode = layer.attributes.get("auto_broadcast", "numpy")
        if layer.type not in _ON_ELEMENTS or mode != "numpy" or not last[0].dtype.is_floating:
            return None
        inputs = [self._beside(source, rank) for source in sources]
        return None if any(x is None for x in inputs) else (layer, inputs)

    def _concatenated(
        self, layer: Layer, inputs: list[tf.Tensor], rank: int
    ) -> tuple[Layer, list[tf.Tensor]] | None:
        axis = layer.attributes.get("axis", "")
        order = [str(axis) for axis in (0, rank - 1, *range(1, rank - 1))]
        if axis not in map(str, range(rank)) or any(x.shape.rank != rank for x in inputs):
            return None
        attributes = {**layer.attributes, "axis": order[int(axis)]}
        return dataclasses.replace(layer, attributes=attributes), inputs

    def _beside(self, source: Source, rank: int) -> tf.Tensor | None:
        """An operand beside others with channels last; None if they cannot be broadcast so."""
        x = self._last.get(source)
        if x is not None and x.shape.rank == rank:
            return x
        x = self[source]
        if x.shape.rank is None or x.shape.rank > rank:
            return None
        if x.shape.num_elements() == 1:
            return x
        shape = [1] * (rank - x.shape.rank) + x.shape.as_list()
        if shape[0] == 1 and all(extent == 1 for extent in shape[2:]):
            return tf.reshape(x, [-1])  # a bias, for TensorFlow's fusion
        return to_last(x) if x.shape.rank == rank else None
