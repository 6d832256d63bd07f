"""The argument of an operation's function, and the table of these functions."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tf_ti.openvino.element_types import ELEMENT_TYPES
from tf_ti.openvino.errors import IRError
from tf_ti.openvino.extents import Extents
from tf_ti.openvino.model import Graph, Layer
from tf_ti.openvino.precision import Precision
from tf_ti.openvino.states import Memory

_REQUIRED: Any = object()
_MOST_KNOWN = 1 << 16  # elements of an input whose value is looked for: a range may be huge
_NEWEST_OPSET = 17


class Operation:
    """A layer that is being computed: its attributes, and its inputs as far as they are known.

    A method that reads an attribute, or a value, raises a `tf_ti.openvino.IRError` that names file
    and layer where it is not there, or is not of its kind.

    Attributes:
        inputs: the layer's inputs, as tensors.
    """

    def __init__(
        self,
        graph: Graph,
        layer: Layer,
        sources: Sequence[Layer | None],
        inputs: Sequence[tf.Tensor],
        constant_of: Callable[[Layer], np.ndarray | None],
        run_graph: Callable[[Graph, Mapping[int, tf.Tensor]], Mapping[int, tf.Tensor]],
        memory: Memory,
        precision: Precision,
    ):
        self.layer = layer
        self.inputs = inputs
        self._graph = graph
        self._sources = sources
        self.constant_of = constant_of
        self.run_graph = run_graph
        self.memory = memory
        self._precision = precision

    @property
    def registered(self) -> str | None:
        """The opset that defines the layer's version of the operation."""
        return _registered(self.layer)

    def is_read(self, position: int) -> bool:
        """Returns whether a layer reads an output. One that nothing reads may be None."""
        ports = self.layer.outputs[position : position + 1]
        return any((self.layer.id, port.id) in self._graph.read for port in ports)

    def readers(self, position: int) -> set[str]:
        """Returns the types of the layers that read an output."""
        port = self.layer.id, self.layer.outputs[position].id
        reading = (target for (target, _), source in self._graph.sources.items() if source == port)
        return {self._graph.layers[target].type for target in reading}

    def repeats_extent(self, position: int, other: int, axis: int) -> bool:
        """Returns whether all numbers of an input are the extent of another one's axis."""
        numbers, tensor = (
            self._graph.sources[self.layer.id, self.layer.inputs[i].id] for i in (position, other)
        )
        return Extents(self._graph, self.constant_of).repeats(numbers, tensor, axis)

    def error(self, message: str) -> IRError:
        """Returns an error about this layer, to be raised."""
        return IRError(f"{self.layer.path}: {message}")

    # Attributes.

    def text(self, name: str, default: str = _REQUIRED, among: Sequence[str] = ()) -> str:
        """Returns an attribute as it is in the file; one of `among`, if these are given.

        As in OpenVINO, case makes no difference there.
        """
        value = self.layer.attributes.get(name, default)
        if value is _REQUIRED:
            raise self.error(f"has no attribute {name}")
        if not among:
            return value
        for word in among:
            if value.lower() == word.lower():
                return word
        raise self.error(f"{name}={value!r} is none of {', '.join(among)}")

    def integer(self, name: str, default: int = _REQUIRED) -> int:
        """Returns an attribute that is an integer."""
        return self._parse(name, default, r"[+-]?[0-9]{1,18}", int)

    def number(self, name: str, default: float = _REQUIRED) -> float:
        """Returns an attribute that is a number."""
        pattern = r"[+-]?([0-9]+\.?[0-9]*([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?|inf|nan)"
        return self._parse(name, default, pattern, float)

    def flag(self, name: str, default: bool = _REQUIRED) -> bool:
        """Returns an attribute that is true or false, in capitals or not."""
        words = {"true": True, "1": True, "false": False, "0": False}
        pattern = f"(?i:{'|'.join(words)})"
        return self._parse(name, default, pattern, lambda text: words[text.lower()])

    def integers(self, name: str, default: Sequence[int] = _REQUIRED) -> list[int]:
        """Returns an attribute that is a list of integers."""
        return self._parse(name, default, r"(\s*[+-]?[0-9]{1,18}\s*(,|$))*", _ints)

    def numbers(self, name: str, default: Sequence[float] = _REQUIRED) -> list[float]:
        """Returns an attribute that is a list of finite numbers."""
        return self._parse(name, default, r"[-+.,eE0-9\s]*", _floats)

    def dtype(self, name: str, default: tf.DType = _REQUIRED) -> tf.DType:
        """Returns an attribute that names an element type, as the dtype in which it is computed."""
        if name not in self.layer.attributes and default is not _REQUIRED:
            return default
        text = self.text(name)
        if text not in ELEMENT_TYPES or ELEMENT_TYPES[text].is_packed:  # of constants alone
            raise self.error(f"{name}={text!r} is no type that is supported")
        return self._precision.of_file(tf.as_dtype(ELEMENT_TYPES[text].dtype))

    def _parse(self, name: str, default: Any, pattern: str, convert: Callable[..., Any]) -> Any:
        text = self.layer.attributes.get(name)
        if text is None:
            if default is _REQUIRED:
                raise self.error(f"has no attribute {name}")
            return default
        try:
            if re.fullmatch(pattern, text.strip()):
                return convert(text.strip())
        except ValueError:
            pass
        raise self.error(f"{name}={text!r} is not what this attribute may be")

    # Inputs.

    def static(self, position: int) -> np.ndarray:
        """Returns the value of an input, which must be known before the graph runs."""
        value = self.known(position)
        if value is None:
            raise self.error(f"input {position} must be a constant")
        return value

    def known(self, position: int) -> np.ndarray | None:
        """Returns the value of an input, or None where it is not known."""
        source = self._sources[position]
        value = None if source is None else self.constant_of(source)
        count = self.inputs[position].shape.num_elements()
        if value is None and count is not None and count <= _MOST_KNOWN:
            value = tf.get_static_value(self.inputs[position])
        return value

    def axis(self, axis: int, rank: int | None) -> int:
        """Returns an axis counted from 0; if the rank is not known, as it is."""
        if rank is None:
            return axis
        if not -rank <= axis < rank:
            raise self.error(f"axis {axis} is out of range for {rank} dimensions")
        return axis % rank


def _ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.strip()]


def _floats(text: str) -> list[float]:
    numbers = [float(part) for part in text.split(",") if part.strip()]
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a number is beyond the range of floats")
    return numbers


Function = Callable[..., Any]
_Function = TypeVar("_Function", bound=Function)
_TABLE: dict[tuple[str, str], Function] = {}


def register(type: str, opset: str | Sequence[str] = "opset1") -> Callable[[_Function], _Function]:
    """Registers a function that computes the layers of a type, in one opset or several.

    The function takes the `Operation` and the layer's inputs, which are tensors. It returns a
    tensor, or a tuple with a tensor for each output port. A later registration replaces an earlier
    one.

    Example:

        >>> @tf_ti.openvino.register("Twice", "custom")
        ... def twice(op, x):
        ...     return op.number("factor", 2.0) * x
    """
    opsets = [opset] if isinstance(opset, str) else list(opset)

    def add(function: _Function) -> _Function:
        _TABLE.update({(type, version): function for version in opsets})
        return function

    return add


def find(layer: Layer) -> Function | None:
    """The function of a layer. An opset has the operations of those before it too."""
    version = _registered(layer)
    return None if version is None else _TABLE[layer.type, version]


def _registered(layer: Layer) -> str | None:
    if (layer.type, layer.version) in _TABLE:
        return layer.version
    number = _number(layer.version)
    if number is None:
        return None
    older = {
        other: version
        for kind, version in _TABLE
        if kind == layer.type and (other := _number(version)) is not None and other < number
    }
    return older[max(older)] if older else None


def _number(opset: str) -> int | None:
    found = re.fullmatch(r"opset([0-9]{1,3})", opset)
    return int(found[1]) if found else None
