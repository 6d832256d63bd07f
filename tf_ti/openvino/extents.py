"""Which numbers of a graph are extents of its tensors, before any of them is known."""

from collections.abc import Callable

import numpy as np

from tf_ti.openvino.model import Graph, Layer

_Output = tuple[int, int]  # the ids of a layer and of its port
_ConstantOf = Callable[[Layer], np.ndarray | None]
_ON_ELEMENTS = frozenset("Convert Elu Gelu HSwish Relu Sigmoid Swish Tanh".split())
_SEQUENCES = frozenset(["GRUSequence", "LSTMSequence", "RNNSequence"])
_VIEWS = frozenset(["Convert", "Reshape", "Squeeze", "Unsqueeze"])  # of one number


class Extents:
    """The extents of a graph's tensors, as far as they come from others."""

    def __init__(self, graph: Graph, constant_of: _ConstantOf):
        self._graph, self._constant_of = graph, constant_of

    def repeats(self, numbers: _Output, tensor: _Output, axis: int) -> bool:
        """Returns whether numbers are all the extent of an axis of a tensor."""
        layer = self._graph.layers[numbers[0]]
        while layer.type in _VIEWS or layer.type == "Broadcast":
            numbers = self._input(layer, 0)
            layer = self._graph.layers[numbers[0]]
        if layer.type != "Gather":
            return False
        shape = self._graph.layers[self._input(layer, 0)[0]]
        place = self._constant(layer, 1)
        if shape.type != "ShapeOf" or place is None or place.size != 1:
            return False
        source = self._input(shape, 0)
        rank = self._rank(source)
        if rank is None or not -rank <= place.item() < rank:
            return False
        return self._origin(source, place.item() % rank) == self._origin(tensor, axis)

    def _origin(self, tensor: _Output, axis: int) -> tuple[_Output, int]:
        """The first tensor that has the extent, and the axis that has it there."""
        while (before := self._before(tensor, axis)) is not None:
            tensor, axis = before
        return tensor, axis

    def _before(self, tensor: _Output, axis: int) -> tuple[_Output, int] | None:
        layer = self._graph.layers[tensor[0]]
        if layer.type in _SEQUENCES and tensor[1] == layer.outputs[0].id and axis in (0, 2):
            return self._input(layer, 0), axis // 2
        if layer.type in _ON_ELEMENTS:
            return self._input(layer, 0), axis
        if layer.type not in ("Reshape", "Squeeze", "Transpose") or len(layer.inputs) < 2:
            return None
        source, numbers = self._input(layer, 0), self._constant(layer, 1)
        rank = self._rank(source)
        if numbers is None or rank is None:
            return None
        numbers = numbers.reshape(-1)
        if layer.type == "Transpose":
            return (source, int(numbers[axis])) if axis < len(numbers) else None
        if layer.type == "Squeeze":
            kept = [i for i in range(rank) if i not in numbers % rank]
            return (source, kept[axis]) if len(numbers) and axis < len(kept) else None
        is_kept = layer.attributes.get("special_zero", "").lower() in ("true", "1")
        return (source, axis) if is_kept and not np.any(numbers[: axis + 1]) else None

    def _input(self, layer: Layer, position: int) -> _Output:
        return self._graph.sources[layer.id, layer.inputs[position].id]

    def _constant(self, layer: Layer, position: int) -> np.ndarray | None:
        return self._constant_of(self._graph.layers[self._input(layer, position)[0]])

    def _rank(self, tensor: _Output) -> int | None:
        port = self._graph.layers[tensor[0]].output(tensor[1])
        return None if port is None or port.shape is None else len(port.shape)
