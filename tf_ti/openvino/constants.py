"""The constants of a model: each taken from the file once, whoever reads it."""

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tf_ti.openvino.element_types import ELEMENT_TYPES
from tf_ti.openvino.errors import IRError, ascii_name
from tf_ti.openvino.model import Graph, Layer
from tf_ti.openvino.progress import watched
from tf_ti.openvino.weights import Weights

# Up to so many bytes a constant stands in each graph, where shapes and folding can see it.
_SMALL = 1024
# Bytes: memory of a tensor that is nobody's copy.
_ALIGNMENT = 64


class Constants:
    """What the Constants of a graph hold, and of its bodies, and Converts of them."""

    def __init__(self, graph: Graph, weights: Weights, trainable: bool):
        # By id(layer). Nothing here refers to the file: it may change, or be gone, later.
        self.values: dict[int, np.ndarray] = {}
        self.tensors: dict[int, tf.Tensor | tf.Variable] = {}
        self._layers: list[Layer] = []  # keeps their ids theirs
        shared: dict[tuple, int] = {}
        for layer, source in watched("constants", list(_constants(graph))):
            self._layers.append(layer)
            array, element_type = weights.of(source or layer)
            dtype = array.dtype
            if source is not None:
                dtype = ELEMENT_TYPES[layer.attributes["destination_type"]].dtype
            offset = (source or layer).attributes.get("offset")
            place = offset, element_type, array.shape, dtype
            first = shared.setdefault(place, id(layer))
            if first != id(layer):
                if first in self.values:
                    self.values[id(layer)] = self.values[first]
                if first in self.tensors:
                    self.tensors[id(layer)] = self.tensors[first]
                continue
            floating = tf.as_dtype(dtype).is_floating
            try:
                copy = _copied(array, dtype)
                if trainable and floating and copy.size > 1:
                    name = f"x{ascii_name(layer.name)}"
                    # Until it changes, it too has the memory that it is given.
                    self.tensors[id(layer)] = tf.Variable(_shared(copy), name=name)
                elif copy.nbytes > _SMALL:
                    self.tensors[id(layer)] = _shared(copy)
                else:
                    self.values[id(layer)] = copy
            except (TypeError, ValueError, MemoryError, tf.errors.OpError) as error:
                raise IRError(f"{layer.path}: cannot be made a tensor: {error}") from error

    @property
    def variables(self) -> list[tf.Variable]:
        found = {id(t): t for t in self.tensors.values() if isinstance(t, tf.Variable)}
        return list(found.values())

    def value(self, layer: Layer) -> np.ndarray | None:
        """The number itself: where it is large, or a variable, what that holds now."""
        if id(layer) in self.tensors:
            with tf.init_scope():
                return self.tensors[id(layer)].numpy()
        return self.values.get(id(layer))

    def tensor(self, layer: Layer) -> tf.Tensor | None:
        """The value of a layer, if it is a constant."""
        if id(layer) in self.tensors:
            return tf.convert_to_tensor(self.tensors[id(layer)])
        value = self.values.get(id(layer))
        return None if value is None else tf.constant(value)


def _copied(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The numbers in memory of their own, which begins where TensorFlow wants a tensor's to."""
    memory = np.empty(array.size * dtype.itemsize + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + array.size * dtype.itemsize].view(dtype).reshape(array.shape)
    with np.errstate(all="ignore"):
        np.copyto(copy, array, casting="unsafe")
    return copy


def _shared(array: np.ndarray) -> tf.Tensor:
    """A tensor that has the array's memory as its own, where that begins as it wants it to.

    What tf.constant makes is a copy, and the array's own copy lives on until the next one is made.
    """
    dtype = tf.as_dtype(array.dtype)
    if array.dtype.isbuiltin != 1:  # NumPy's library does not know it
        if dtype != tf.bfloat16:
            return tf.constant(array)
        array = array.view(np.uint16)
    tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    # Where there is a GPU, this puts it there.
    return tf.identity(tensor) if tensor.dtype == dtype else tf.bitcast(tensor, dtype)


def _constants(graph: Graph) -> Iterator[tuple[Layer, Layer | None]]:
    """The constants that are read: Constants, and Converts of one to another floating type.

    With a Convert comes its Constant, which need not be there for it.
    """
    converts = {}
    for layer in graph.layers.values():
        if layer.type == "Convert" and len(layer.inputs) == 1:
            source = graph.layers[graph.sources[layer.id, layer.inputs[0].id][0]]
            types = (
                ELEMENT_TYPES.get(source.attributes.get("element_type", "")),
                ELEMENT_TYPES.get(layer.attributes.get("destination_type", "")),
            )
            if source.type == "Constant" and all(kind and kind.is_floating for kind in types):
                converts[layer.id] = source
    read = {source for (target, _), (source, _) in graph.sources.items() if target not in converts}
    for layer in graph.layers.values():
        if layer.id in read and (layer.type == "Constant" or layer.id in converts):
            yield layer, converts.get(layer.id)
        for body in layer.bodies.values():
            yield from _constants(body.graph)
