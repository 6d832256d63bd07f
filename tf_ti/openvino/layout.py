"""Channels: second in OpenVINO's tensors, last for TensorFlow's convolutions and pools.

A value that has its channels last keeps them there for the next convolution, and for layers on
elements between. Only what needs them second gets a transpose.
"""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import numpy as np
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
_REDUCTIONS = frozenset(
    "ReduceL1 ReduceL2 ReduceLogicalAnd ReduceLogicalOr ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum".split()
)
_ALONG_AXIS = {"Softmax": "1", "LogSoftmax": "-1"}  # their default axes


@dataclasses.dataclass(frozen=True)
class Given:
    """What a layer gets that computes with channels last.

    Attributes:
        layer: the layer, with its axis among theirs.
        inputs: its inputs.
        changed: the positions of inputs that are other numbers than in the file, as they are axes.
        is_last: true if its outputs have their channels last; false if they have none, or no other
            axis but the batch.
    """

    layer: Layer
    inputs: list[tf.Tensor]
    changed: Collection[int] = ()
    is_last: bool = True


def with_channels_last(function: _Function) -> _Function:
    """Marks a function whose first input, and whose outputs, have their channels last."""
    function.has_channels_last = True  # type: ignore[attr-defined]  # functions have a dict
    return function


def _order_to_last(rank: int) -> list[int]:
    return [0, *range(2, rank), 1]


def _order_to_second(rank: int) -> list[int]:
    """The order of axes, and so the place of each axis where channels are last."""
    return [0, rank - 1, *range(1, rank - 1)]


def to_last(x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(x, _order_to_last(x.shape.rank))


def to_second(x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(x, _order_to_second(x.shape.rank))


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

    def turned(
        self, layer: Layer, function: Function, sources: Sequence[Source]
    ) -> tuple[tf.Tensor, bool] | None:
        """The output of a Transpose that leads channels to the other place, without a transpose.

        Returns:
            The output, and whether it has its channels last. None for other layers.
        """
        if layer.type != "Transpose" or not _is_ours(function) or len(sources) != 2:
            return None
        order, last = tf.get_static_value(self[sources[1]]), self._last.get(sources[0])
        rank = 0 if order is None else order.size
        x = self._values.get(sources[0]) if last is None else last
        if rank < 3 or x is None or x.shape.rank != rank:
            return None
        wanted = _order_to_second(rank) if last is None else _order_to_last(rank)
        return (x, last is None) if order.tolist() == wanted else None

    def given(self, layer: Layer, function: Function, sources: Sequence[Source]) -> Given | None:
        """What a layer gets that computes with channels last; None if it has them second."""
        if getattr(function, "has_channels_last", False) and sources:
            x = self._last.get(sources[0])
            if x is None and (self[sources[0]].shape.rank or 0) > 2:
                x = to_last(self[sources[0]])
            rest = [self[source] for source in sources[1:]]
            return None if x is None else Given(layer, [x, *rest])
        last = [self._last[source] for source in sources if source in self._last]
        if not last or not _is_ours(function):
            return None
        rank = max(x.shape.rank for x in last)
        if layer.type == "Concat":
            return _along_axis(layer, last, rank, "") if len(last) == len(sources) else None
        if layer.type in _ON_ELEMENTS:
            mode = layer.attributes.get("auto_broadcast", "numpy")
            if mode != "numpy" or not last[0].dtype.is_floating:
                return None
            inputs = [self._beside(source, rank) for source in sources]
            return None if any(x is None for x in inputs) else Given(layer, inputs)
        x = self._last.get(sources[0])
        if x is None:
            return None
        if layer.type in _ALONG_AXIS:
            return _along_axis(layer, [x], rank, _ALONG_AXIS[layer.type])
        rest = [self[source] for source in sources[1:]]
        if layer.type == "Pad":
            return _padded(layer, x, rest)
        if layer.type in _REDUCTIONS or layer.type in ("Squeeze", "Unsqueeze"):
            return _of_axes(layer, x, rest)
        return None

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


def _is_ours(function: Function) -> bool:
    """True if no user registered it."""
    return bool(function.__module__.startswith("tf_ti.openvino."))


def _along_axis(layer: Layer, inputs: list[tf.Tensor], rank: int, default: str) -> Given | None:
    """A layer of one axis, which is an attribute."""
    axis = layer.attributes.get("axis", default)
    if axis not in map(str, range(-rank, rank)) or any(x.shape.rank != rank for x in inputs):
        return None
    place = _order_to_second(rank)[int(axis)]
    return Given(_with(layer, axis=str(place)), inputs)


def _with(layer: Layer, **attributes: str) -> Layer:
    return dataclasses.replace(layer, attributes={**layer.attributes, **attributes})


def _padded(layer: Layer, x: tf.Tensor, rest: Sequence[tf.Tensor]) -> Given | None:
    before, after, *value = rest
    rank = x.shape.rank
    if any(pads.shape.rank != 1 or pads.shape[0] != rank for pads in (before, after)):
        return None
    order = _order_to_last(rank)
    return Given(layer, [x, tf.gather(before, order), tf.gather(after, order), *value], {1, 2})


def _of_axes(layer: Layer, x: tf.Tensor, rest: Sequence[tf.Tensor]) -> Given | None:
    """A layer whose second input names axes; None where these are not known, or with the batch."""
    known: Any = tf.get_static_value(rest[0]) if len(rest) == 1 else None
    keeps, skips = (layer.attributes.get(n, "false") for n in ("keep_dims", "allow_axis_skip"))
    if known is None or keeps not in ("true", "false") or skips != "false":
        return None
    numbers, rank = np.reshape(known, -1), x.shape.rank
    is_new = layer.type == "Unsqueeze"
    most = rank + len(numbers) * is_new
    axes = {int(axis) % most for axis in numbers if -most <= axis < most}
    if len(axes) != len(numbers) or not axes or min(axes) < 1 + is_new:
        return None
    # Without the channels, or beside the batch alone, they are nowhere else.
    left = rank if keeps == "true" else most if is_new else rank - len(axes)
    is_last = keeps == "true" or (1 not in axes and left > 2)
    moved = [_order_to_second(most)[axis] for axis in sorted(axes)]
    return Given(layer, [x, tf.constant(moved, rest[0].dtype)], {1}, is_last)
