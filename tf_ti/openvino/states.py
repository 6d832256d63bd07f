"""The states that a model keeps between calls: ReadValue reads them, Assign writes them."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_ti.openvino.element_types import ELEMENT_TYPES
from tf_ti.openvino.errors import IRError, ascii_name, shown
from tf_ti.openvino.model import Graph, Layer
from tf_ti.openvino.precision import Precision
from tf_ti.openvino.reader import parse_shape

_TYPES = ("ReadValue", "Assign")


class State(tf.Module):
    """A value that a model keeps between calls: a `variable_id` of its file.

    Attributes:
        value: the last assigned value, or zeros before that; a `tf.Variable`, not trainable.
        is_assigned: true after an assignment; a `tf.Variable`. Until then ReadValue returns the
            initial value, if the model computes one.
    """

    def __init__(self, variable_id: str, spec: tf.TensorSpec, first: tf.TensorShape):
        super().__init__()
        name = ascii_name(variable_id)
        self._variable_id, self._first = variable_id, tf.TensorSpec(first, spec.dtype)
        start = _zeros(self._first)
        self.value = tf.Variable(start, trainable=False, shape=spec.shape, name=name)
        self.is_assigned = tf.Variable(False, trainable=False, name=f"{name}_is_assigned")

    def __getstate__(self) -> tuple[Any, ...]:
        spec = tf.TensorSpec(self.value.shape, self.value.dtype)
        given = self._variable_id, spec, self._first.shape
        return given, self.value.numpy(), bool(self.is_assigned)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        given, value, is_assigned = state
        self.__init__(*given)  # type: ignore[misc]  # a copy's variables are its own
        self.value.assign(value)
        self.is_assigned.assign(is_assigned)

    def __repr__(self) -> str:
        return f"<State {self}>"

    def __str__(self) -> str:
        return f"{self._variable_id!r} {self.value.dtype.name} {self.value.shape}"

    def assign(self, value: Any) -> None:
        """Sets the value that the next call reads."""
        self.value.assign(value)
        self.is_assigned.assign(True)

    def reset(self) -> None:
        """Makes the next call begin with the initial value."""
        self.value.assign(_zeros(self._first))
        self.is_assigned.assign(False)


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    """Zeros of a shape. Unknown extents are 0."""
    shape = [] if spec.shape.rank is None else [extent or 0 for extent in spec.shape.as_list()]
    return tf.zeros(shape, spec.dtype)


class Memory:
    """The reads and writes of one call. It reads all states before it writes any."""

    def __init__(self, states: Mapping[str, State]):
        self._states = states
        self._next: dict[str, tf.Tensor] = {}

    def read(self, variable_id: str, initial: tf.Tensor | None = None) -> tf.Tensor:
        state = self._states[variable_id]
        value = state.value.read_value()
        return (
            value if initial is None else tf.cond(state.is_assigned, lambda: value, lambda: initial)
        )

    def assign(self, variable_id: str, value: tf.Tensor) -> None:
        self._next[variable_id] = value

    def commit(self) -> None:
        for variable_id, value in self._next.items():
            self._states[variable_id].assign(value)


def make_states(graph: Graph, precision: Precision) -> dict[str, State]:
    """Makes a state for each variable_id."""
    specs: dict[str, tf.TensorSpec] = {}
    first: dict[str, tf.TensorShape] = {}  # as ReadValue has it: an Assign may know less
    assigned: set[str] = set()
    for layer in graph.walk():
        if layer.type not in _TYPES:
            continue
        if graph.layers.get(layer.id) is not layer:
            raise IRError(f"{layer.path}: in the body of a loop or of a branch it is not supported")
        variable_id = layer.attributes.get("variable_id")
        if not variable_id:
            raise IRError(f"{layer.path}: has no variable_id")
        spec = _spec(layer)
        spec = tf.TensorSpec(spec.shape, precision.of_file(spec.dtype))
        other = specs.setdefault(variable_id, spec)
        if spec.dtype != other.dtype or not spec.shape.is_compatible_with(other.shape):
            raise IRError(
                f"{layer.path}: variable_id={shown(variable_id)} is {_words(spec)} here, but "
                f"{_words(other)} in another layer"
            )
        shape = other.shape.most_specific_compatible_shape(spec.shape)
        specs[variable_id] = tf.TensorSpec(shape, spec.dtype)
        if layer.type == "Assign":
            if variable_id in assigned:
                raise IRError(f"{layer.path}: another Assign has its variable_id")
            assigned.add(variable_id)
        else:
            first.setdefault(variable_id, spec.shape)
    states = {}
    for variable_id, spec in specs.items():
        try:
            states[variable_id] = State(variable_id, spec, first.get(variable_id, spec.shape))
        except (ValueError, MemoryError, tf.errors.OpError) as error:
            what = f"variable_id={shown(variable_id)}, {_words(spec)}"
            raise IRError(f"{graph.path}: {what}, cannot be made: {error}") from error
    return states


def _spec(layer: Layer) -> tf.TensorSpec:
    """The spec of a state, from the attributes, or from the port in older versions."""
    port = next(iter(layer.outputs or layer.inputs), None)
    if port is None:
        raise IRError(f"{layer.path}: has no ports")
    element_type, shape = port.element_type, port.shape
    if layer.attributes.get("variable_type") in ELEMENT_TYPES:
        element_type = ELEMENT_TYPES[layer.attributes["variable_type"]]
    if "variable_shape" in layer.attributes:
        shape = parse_shape(layer.attributes["variable_shape"], layer.path)
    if element_type is None:
        raise IRError(f"{layer.path}: does not say a type that is supported")
    return tf.TensorSpec(shape, element_type.dtype)


def _words(spec: tf.TensorSpec) -> str:
    return f"{spec.dtype.name} of shape {spec.shape}"
