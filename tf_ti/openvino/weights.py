"""The weights beside an IR's XML: its .bin file, which is mapped and read where it is used."""

import math
import os

import numpy as np

from tf_ti.openvino.element_types import ELEMENT_TYPES, ElementType
from tf_ti.openvino.errors import IRError, shown
from tf_ti.openvino.model import Layer
from tf_ti.openvino.reader import check_file, parse_shape

_MOST_DIMENSIONS = 32  # the limit of older versions of NumPy


class Weights:
    """The weights in the file at `path`, or in `data`, if its content is given."""

    def __init__(self, path: str | os.PathLike[str], data: np.ndarray | None = None):
        self._path = os.fsdecode(path)
        self._bytes = data

    def of(self, layer: Layer) -> tuple[np.ndarray, ElementType]:
        """The value of a Constant; a view of the file unless its numbers are packed."""
        element_type, shape = declared(layer)
        offset, size = (self._position(layer, name) for name in ("offset", "size"))
        count = math.prod(shape)
        if len(shape) > _MOST_DIMENSIONS:
            raise IRError(f"{layer.path}: constants of {len(shape)} dimensions are not supported")
        if count == 0:  # OpenVINO may write a byte for no elements
            return np.zeros(shape, element_type.dtype), element_type
        if size != element_type.num_bytes(count):
            raise IRError(
                f"{layer.path}: size={size}, but {element_type.name} numbers of shape "
                f"{list(shape)} take {element_type.num_bytes(count)} bytes"
            )
        numbers = element_type.unpack(self.piece(layer, offset, size), count)
        return numbers.reshape(shape), element_type

    def is_filled(self, layer: Layer, array: np.ndarray) -> bool:
        """True if all numbers of a Constant, whose value this is, are equal."""
        return bool(array.flat[0] == array.flat[-1]) and bool((array == array.flat[0]).all())

    def piece(self, layer: Layer, offset: int, size: int) -> np.ndarray:
        """The bytes of a Constant."""
        data = self.data(layer)
        if offset + size > len(data):
            raise IRError(
                f"{layer.path}: offset={offset} and size={size} lead beyond the end of "
                f"{self._path}, which has {len(data)} bytes"
            )
        return data[offset : offset + size]

    def _position(self, layer: Layer, name: str) -> int:
        text = layer.attributes.get(name)
        if text is None or not text.isascii() or not text.isdigit() or len(text) > 18:
            raise IRError(f"{layer.path}: {name}={shown(text)} is no number of bytes")
        return int(text)

    def data(self, layer: Layer) -> np.ndarray:
        """The whole file. Errors name the layer that needs it."""
        if self._bytes is None:
            try:
                check_file(self._path)
                self._bytes = np.asarray(np.memmap(self._path, np.uint8, mode="r"))
            except IRError as error:
                raise IRError(f"{layer.path}: needs weights, but {error}") from error
            except (OSError, ValueError) as error:  # ValueError: an empty file
                reason = error.strerror if isinstance(error, OSError) else "it is empty"
                raise IRError(
                    f"{layer.path}: needs weights, but {self._path}: cannot be read: {reason}"
                ) from error
        return self._bytes


def declared(layer: Layer) -> tuple[ElementType, tuple[int, ...]]:
    """The type and shape of a Constant, from its attributes, or in older files from its port."""
    if len(layer.outputs) != 1:
        raise IRError(f"{layer.path}: has {len(layer.outputs)} output ports, not one")
    (port,) = layer.outputs
    element_type, shape = port.element_type, port.shape
    if "element_type" in layer.attributes:
        name = layer.attributes["element_type"]
        element_type = ELEMENT_TYPES.get(name)
        if element_type is None:
            raise IRError(f"{layer.path}: constants of type {shown(name)} are not supported")
    if "shape" in layer.attributes:
        shape = parse_shape(layer.attributes["shape"], layer.path)
    elif shape is None:
        shape = ()
    if element_type is None:
        raise IRError(f"{layer.path}: neither element_type nor a port's precision is there")
    extents = tuple(extent for extent in shape or () if extent is not None)
    if shape is None or len(extents) < len(shape):
        raise IRError(f"{layer.path}: the shape of a constant must be known")
    return element_type, extents
