"""Channels: last in most tensors of TensorFlow, second in OpenVINO's convolutions and pools.

A Transpose leads from one order to the other. A tensor with channels last may have a twin, which
has them second. A layer on elements of the former reads the latter instead, and a Transpose gives
its output: so the twin of that is there for the next convolution, and a Transpose that nothing
reads is left out of the file.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_ti.openvino.writer.network import Layer, Network, Port

_ON_ELEMENTS = frozenset(
    "Abs Acos Acosh Add Asin Asinh Atan Atanh BitwiseAnd BitwiseOr BitwiseXor Ceiling Clamp "
    "Convert Cos Cosh Divide Elu Equal Erf Exp Floor FloorMod Gelu Greater GreaterEqual "
    "IsFinite IsInf IsNaN Less LessEqual Log LogicalAnd LogicalNot LogicalOr Maximum Minimum "
    "Mod Multiply Negative NotEqual PRelu Power Relu Round Select Selu Sigmoid Sign Sin Sinh "
    "SoftPlus SoftSign Sqrt SquaredDifference Subtract Tan Tanh".split()
)
_ALONG_AXIS = frozenset(["Concat", "LogSoftmax", "Softmax"])
_NUMBERS_BY_AXIS = frozenset(["BatchToSpace", "Pad", "SpaceToBatch", "Tile"])
_REDUCTIONS = frozenset(
    "ReduceL2 ReduceLogicalAnd ReduceLogicalOr ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum".split()
)


@functools.cache  # one array is one Constant
def _to_second(rank: int) -> np.ndarray:
    return np.asarray([0, rank - 1, *range(1, rank - 1)])


@functools.cache
def _to_last(rank: int) -> np.ndarray:
    return np.asarray([0, *range(2, rank), 1])


def channels_second(network: Network, x: Any, rank: int) -> Port:
    """The twin of x, a tensor with channels last."""
    if isinstance(x, Port) and x in network.twins:
        return network.twins[x][0]
    (port,) = network.add("Transpose", [x, _to_second(rank)]).outputs
    if isinstance(x, Port):
        network.twins[x] = port, rank
    return port


def channels_last(network: Network, twin: Port, rank: int) -> Port:
    """The tensor with channels last whose twin is given."""
    if rank < 3:
        return twin
    (port,) = network.add("Transpose", [twin, _to_last(rank)]).outputs
    network.twins[port] = twin, rank
    return port


def transpose(network: Network, x: Any, order: np.ndarray) -> Port | None:
    """x with its axes in another order, if that is one of those that lead to twins."""
    rank = len(order)
    if not isinstance(x, Port) or rank < 3:
        return None
    if x in network.twins and np.array_equal(order, _to_second(rank)):
        return network.twins[x][0]
    return channels_last(network, x, rank) if np.array_equal(order, _to_last(rank)) else None


def add(network: Network, type: str, inputs: Sequence[Any], **fields: Any) -> Layer:
    """Adds a layer as `Network.add` does, to the twins of its inputs if it can be."""
    ranks = [network.twins[x][1] for x in inputs if isinstance(x, Port) and x in network.twins]
    moved = _moved(network, type, inputs, max(ranks), fields) if ranks else None
    if moved is None:
        return network.add(type, inputs, **fields)
    inputs, rank, changes = moved
    (twin,) = network.add(type, inputs, **fields | changes).outputs
    return channels_last(network, twin, rank).layer


def _moved(
    network: Network, type: str, inputs: Sequence[Any], rank: int, fields: Mapping[str, Any]
) -> tuple[list[Any], int, dict[str, Any]] | None:
    """The inputs, the rank and other fields of a layer that gives the twin of this one's output."""
    if type in _ON_ELEMENTS:
        parts = [_beside(network, x, rank) for x in inputs]
        return None if any(x is None for x in parts) else (parts, rank, {})
    if type in _ALONG_AXIS:
        parts = [_twin(network, x, rank) for x in inputs]
        axis = int(_to_last(rank)[fields["axis"]])
        return None if any(x is None for x in parts) else (parts, rank, {"axis": axis})
    x, *rest = inputs
    x = _twin(network, x, rank)
    if x is None or not all(isinstance(value, np.ndarray) for value in rest):
        return None
    if type in _NUMBERS_BY_AXIS:
        moved = [value[_to_second(rank)] if value.ndim else value for value in rest]
        return [x, *moved], rank, {}
    if type == "StridedSlice" and len(rest[0]) == rank and not any(_dropped(fields)):
        order = _to_second(rank)
        masks = {name: [mask[i] for i in order] for name, mask in fields.items() if "_mask" in name}
        return [x, *(numbers[order] for numbers in rest)], rank, masks
    if type in _REDUCTIONS and fields["keep_dims"]:
        return [x, _to_last(rank)[rest[0]]], rank, {}
    if type in _REDUCTIONS or type in ("Squeeze", "Unsqueeze"):
        change = len(rest[0]) if type == "Unsqueeze" else -len(rest[0])
        most = max(rank, rank + change)
        axes = rest[0] % most
        if not np.all((0 < axes) & (axes < most - 1)):  # one of them is no spatial axis
            return None
        return [x, axes + 1], rank + change, {}
    return None


def _dropped(fields: Mapping[str, Any]) -> list[int]:
    """What a slice does other than to take a part of each axis."""
    return fields["shrink_axis_mask"] + fields["new_axis_mask"] + fields["ellipsis_mask"]


def _twin(network: Network, x: Any, rank: int) -> Port | None:
    twin, rank_of_twin = network.twins.get(x, (None, 0)) if isinstance(x, Port) else (None, 0)
    return twin if rank_of_twin == rank else None


def _beside(network: Network, x: Any, rank: int) -> Any:
    """x as an operand beside twins; None if that would take a Transpose of a large tensor."""
    twin = _twin(network, x, rank)
    if twin is not None or x.shape is None or len(x.shape) > rank:
        return twin
    if all(n == 1 for n in x.shape):
        return x
    shape = (1,) * (rank - len(x.shape)) + tuple(x.shape)
    if not isinstance(x, Port):
        return x.reshape(shape).transpose(_to_second(rank))
    if any(n != 1 for n in shape[1:-1]):
        return None
    if shape[0] == 1:
        return network.add("Reshape", [x, _column(rank)], special_zero=False).outputs[0]
    return channels_second(network, x, rank)


@functools.cache
def _column(rank: int) -> np.ndarray:
    """The shape of a number for each channel."""
    return np.asarray([-1] + [1] * (rank - 2))
