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
# Bytes, of TensorFlow's tensors; and what is taken from the system at once.
_ALIGNMENT = 64
_BLOCK = 32 << 20


class Constants:
    """What the Constants of a graph hold, and of its bodies, and Converts of them."""

    def __init__(self, graph: Graph, weights: Weights, trainable: bool):
        # By id(layer). Nothing here refers to the file: it may change, or be gone, later.
        self.values: dict[int, np.ndarray] = {}
        self.tensors: dict[int, tf.Tensor | tf.Variable] = {}
        self._layers: list[Layer] = []  # keeps their ids theirs
        shared: dict[tuple, int] = {}
        memory = _Memory()
        for layer, source, is_size in watched("constants", list(_constants(graph))):
            self._layers.append(layer)
            array, element_type = weights.of(source or layer)
            dtype = array.dtype
            if source is not None:
                dtype = ELEMENT_TYPES[layer.attributes["destination_type"]].dtype
            offset = (source or layer).attributes.get("offset")
            floating = tf.as_dtype(dtype).is_floating
            variable = trainable and floating and array.size > 1 and not is_size
            # OpenVINO writes equal numbers once: that they are, as biases of zeros may be, says
            # nothing about being one parameter.
            is_filled = variable and array.flat[0] == array.flat[-1]
            is_filled = is_filled and bool((array == array.flat[0]).all())
            place = offset, element_type, array.shape, dtype, variable
            first = id(layer) if is_filled else shared.setdefault(place, id(layer))
            if first != id(layer):
                if first in self.values:
                    self.values[id(layer)] = self.values[first]
                if first in self.tensors:
                    self.tensors[id(layer)] = self.tensors[first]
                continue
            try:
                if not variable and array.size * dtype.itemsize <= _SMALL:
                    with np.errstate(all="ignore"):
                        self.values[id(layer)] = array.astype(dtype)
                    continue
                tensor = _shared(memory.copy(array, dtype))
                if variable:
                    # Until it changes, it too has the memory that it is given.
                    tensor = tf.Variable(tensor, name=ascii_name(layer.name))
                self.tensors[id(layer)] = tensor
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


class _Memory:
    """Memory for tensors, in blocks: the system gives large ones sooner than many small ones."""

    def __init__(self):
        self._rest = np.empty(0, np.uint8)

    def copy(self, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """The numbers as another type, from an address on that TensorFlow takes."""
        size = array.size * dtype.itemsize
        start = -self._rest.ctypes.data % _ALIGNMENT
        if start + size > len(self._rest):
            self._rest = np.empty(max(size + _ALIGNMENT, _BLOCK), np.uint8)
            start = -self._rest.ctypes.data % _ALIGNMENT
        taken, self._rest = self._rest[start : start + size], self._rest[start + size :]
        copy = taken.view(dtype).reshape(array.shape)
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
    if tensor.dtype != dtype:
        return tf.bitcast(tensor, dtype)
    return tf.raw_ops.Identity(input=tensor)  # where there is a GPU, there


def _constants(graph: Graph) -> Iterator[tuple[Layer, Layer | None, bool]]:
    """The constants that are read: Constants, and Converts of one to another floating type.

    With a Convert comes its Constant, which need not be there for it; and with each, whether sizes
    are all that is made of it.
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
    read, numbers = set(), set()
    for (target, port), (source, _) in graph.sources.items():
        if target not in converts:
            read.add(source)
            reader = graph.layers[target]
            if reader.type != "Interpolate" or port == reader.inputs[0].id:
                numbers.add(source)
    for layer in graph.layers.values():
        if layer.id in read and (layer.type == "Constant" or layer.id in converts):
            yield layer, converts.get(layer.id), layer.id not in numbers
        for body in layer.bodies.values():
            yield from _constants(body.graph)
