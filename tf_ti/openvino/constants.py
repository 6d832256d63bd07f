"""The constants of a model. Each is taken from the file once, however many layers read it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti.openvino.element_types import ELEMENT_TYPES
from tf_ti.openvino.errors import IRError, ascii_name
from tf_ti.openvino.model import Graph, Layer
from tf_ti.openvino.precision import Precision
from tf_ti.openvino.progress import watched
from tf_ti.openvino.weights import Weights

# Constants of up to so many bytes are in each graph, where shapes and folding can see them.
_SMALL = 1024
# In bytes: the alignment of TensorFlow's tensors, and the memory that is allocated at once.
_ALIGNMENT = 64
_BLOCK = 32 << 20


class Constants:
    """The values of the Constants of a graph and its bodies, and of Converts of Constants."""

    def __init__(self, graph: Graph, weights: Weights, trainable: bool, precision: Precision):
        # By id(layer). Nothing here refers to the file, which may change later, or be gone.
        self.values: dict[int, np.ndarray] = {}
        self.tensors: dict[int, tf.Tensor | tf.Variable] = {}
        self._layers: list[Layer] = []  # keeps the layers alive, and so their ids unique
        shared: dict[tuple[Any, ...], int] = {}
        memory = _Memory()
        for layer, source, is_size in watched("constants", list(_constants(graph))):
            self._layers.append(layer)
            array, element_type = weights.of(source or layer)
            dtype = array.dtype
            if source is not None:
                dtype = ELEMENT_TYPES[layer.attributes["destination_type"]].dtype
            dtype = np.dtype(precision.of_file(tf.as_dtype(dtype)).as_numpy_dtype)
            offset = (source or layer).attributes.get("offset")
            floating = tf.as_dtype(dtype).is_floating
            variable = trainable and floating and array.size > 1 and not is_size
            # OpenVINO writes equal numbers once. Biases of zeros in one place of the file may well
            # be several parameters.
            is_filled = variable and weights.is_filled(source or layer, array)
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
                    # A variable shares the tensor's memory until it is assigned.
                    tensor = tf.Variable(tensor, name=ascii_name(layer.name))
                self.tensors[id(layer)] = tensor
            except (TypeError, ValueError, MemoryError, tf.errors.OpError) as error:
                raise IRError(f"{layer.path}: cannot be made a tensor: {error}") from error

    # Copies have layers of other ids.

    def __getstate__(self) -> tuple[Any, ...]:
        found = [
            (self.values.get(id(layer)), self.tensors.get(id(layer))) for layer in self._layers
        ]
        return self._layers, found

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._layers, found = state
        pairs = [(id(layer), *values) for layer, values in zip(self._layers, found)]
        self.values = {key: value for key, value, _ in pairs if value is not None}
        self.tensors = {key: tensor for key, _, tensor in pairs if tensor is not None}

    @property
    def variables(self) -> list[tf.Variable]:
        found = {id(t): t for t in self.tensors.values() if isinstance(t, tf.Variable)}
        return list(found.values())

    def value(self, layer: Layer) -> np.ndarray | None:
        """The value of a layer as an array, if it is a constant; of a variable the present one."""
        if id(layer) in self.tensors:
            with tf.init_scope():
                return self.tensors[id(layer)].numpy()
        return self.values.get(id(layer))

    def tensor(self, layer: Layer) -> tf.Tensor | None:
        """The value of a layer as a tensor, if it is a constant."""
        if id(layer) in self.tensors:
            return tf.convert_to_tensor(self.tensors[id(layer)])
        value = self.values.get(id(layer))
        return None if value is None else tf.constant(value)


class _Memory:
    """Memory for tensors, in blocks: a few large allocations are faster than many small ones."""

    def __init__(self) -> None:
        self._rest: np.ndarray = np.empty(0, np.uint8)

    def copy(self, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Copies the numbers, as another dtype, to an address that TensorFlow accepts."""
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
    """Returns a tensor that shares the memory of an aligned array.

    tf.constant would copy it, and keep the array's memory until the next copy is made.
    """
    dtype = tf.as_dtype(array.dtype)
    if array.dtype.isbuiltin != 1:  # a dtype of ml_dtypes, which NumPy does not export
        if dtype != tf.bfloat16:
            return tf.constant(array)
        array = array.view(np.uint16)
    tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    if tensor.dtype != dtype:
        return tf.bitcast(tensor, dtype)
    return tf.raw_ops.Identity(input=tensor)  # on the GPU, if there is one


def _constants(graph: Graph) -> Iterator[tuple[Layer, Layer | None, bool]]:
    """The layers that are constant and read by others: Constants, and some Converts of them.

    The Converts are those from one floating type to another.

    Yields:
        The layer; for a Convert its Constant, otherwise None; true if all readers make sizes of it.
    """
    converts = {}
    for layer in graph.layers.values():
        if layer.type == "Convert" and len(layer.inputs) == 1:
            source = graph.layers[graph.sources[layer.id, layer.inputs[0].id][0]]
            names = (
                source.attributes.get("element_type", ""),
                layer.attributes.get("destination_type", ""),
            )
            kinds = [ELEMENT_TYPES[name] for name in names if name in ELEMENT_TYPES]
            are_floating = len(kinds) == 2 and all(kind.is_floating for kind in kinds)
            if source.type == "Constant" and are_floating and not kinds[1].is_packed:
                converts[layer.id] = source
    read, numbers = set(), set()
    for (target, port), (source_id, _) in graph.sources.items():
        if target not in converts:
            read.add(source_id)
            reader = graph.layers[target]
            if reader.type != "Interpolate" or port == reader.inputs[0].id:
                numbers.add(source_id)
    for layer in graph.layers.values():
        if layer.id in read and (layer.type == "Constant" or layer.id in converts):
            yield layer, converts.get(layer.id), layer.id not in numbers
        for body in layer.bodies.values():
            yield from _constants(body.graph)
