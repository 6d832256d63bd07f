"""The values of layers in a loop's block, used like tensors."""

import operator
from collections import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.block.block import Block
from tf_ti.loops.block.layers import IteratorLayer, OutputLayer, RecurrenceLayer
from tf_ti.loops.tracing import composites as _composites
from tf_ti.loops.tracing.structure import Structure

if TYPE_CHECKING:

    class _Base(tf.Tensor):
        """A tensor for type checkers, with the operators set below; for isinstance it is none."""

        def __getitem__(self, key: Any) -> tf.Tensor: ...
        def __neg__(self) -> tf.Tensor: ...
        def __invert__(self) -> tf.Tensor: ...
        def __abs__(self) -> tf.Tensor: ...
        def __eq__(self, other: Any) -> tf.Tensor: ...
        def __ne__(self, other: Any) -> tf.Tensor: ...
        def __lt__(self, other: Any) -> tf.Tensor: ...
        def __le__(self, other: Any) -> tf.Tensor: ...
        def __gt__(self, other: Any) -> tf.Tensor: ...
        def __ge__(self, other: Any) -> tf.Tensor: ...
        def __add__(self, other: Any) -> tf.Tensor: ...
        def __radd__(self, other: Any) -> tf.Tensor: ...
        def __sub__(self, other: Any) -> tf.Tensor: ...
        def __rsub__(self, other: Any) -> tf.Tensor: ...
        def __mul__(self, other: Any) -> tf.Tensor: ...
        def __rmul__(self, other: Any) -> tf.Tensor: ...
        def __matmul__(self, other: Any) -> tf.Tensor: ...
        def __rmatmul__(self, other: Any) -> tf.Tensor: ...
        def __truediv__(self, other: Any) -> tf.Tensor: ...
        def __rtruediv__(self, other: Any) -> tf.Tensor: ...
        def __floordiv__(self, other: Any) -> tf.Tensor: ...
        def __rfloordiv__(self, other: Any) -> tf.Tensor: ...
        def __mod__(self, other: Any) -> tf.Tensor: ...
        def __rmod__(self, other: Any) -> tf.Tensor: ...
        def __pow__(self, other: Any) -> tf.Tensor: ...
        def __rpow__(self, other: Any) -> tf.Tensor: ...
        def __and__(self, other: Any) -> tf.Tensor: ...
        def __rand__(self, other: Any) -> tf.Tensor: ...
        def __or__(self, other: Any) -> tf.Tensor: ...
        def __ror__(self, other: Any) -> tf.Tensor: ...
        def __xor__(self, other: Any) -> tf.Tensor: ...
        def __rxor__(self, other: Any) -> tf.Tensor: ...
else:
    _Base = _tf.TensorLike


class _TensorLike(_Base, _tf.Fetched):
    """Values that are used like a tensor, `self.tensor`."""

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]  # as tensors: == compares elements

    @property
    def tensor(self) -> tf.Tensor:
        raise NotImplementedError

    def get_output(self, index: Literal[0]) -> Any:
        """The only output, `index` 0, as TensorRT's layers have it: this value."""
        if index != 0 or isinstance(index, bool):
            raise ValueError(f"{self!r} has one output, number 0, got {index!r}")
        return self

    @property
    def dtype(self) -> tf.DType:
        return self.tensor.dtype

    @property
    def shape(self) -> tf.TensorShape:
        return self.tensor.shape

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.tensor, dtype, name=name)

    def __tf_tracing_type__(self, context: Any) -> tf.types.experimental.TraceType:
        return self.tensor.__tf_tracing_type__(context)

    def __getattr__(self, name: str) -> Any:
        # Also the _id that tapes ask for, but nothing that this object itself would need for that.
        if name.startswith("__") or name in ("_block", "_layer"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name == "value":
            raise AttributeError(f"{self!r} has no value: it is used like a tensor, as it is")
        return getattr(self.tensor, name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = np.asarray(self.tensor, dtype)
        return array.copy() if copy else array

    def __iter__(self) -> abc.Iterator[tf.Tensor]:
        return iter(self.tensor)

    def __len__(self) -> int:
        return len(self.tensor)

    def __bool__(self) -> bool:
        return bool(self.tensor)


def _delegate(name: str) -> Callable[..., Any]:
    method = getattr(tf.Tensor, name)

    def call(self: _TensorLike, *args: Any, **kwargs: Any) -> Any:
        return method(self.tensor, *args, **kwargs)

    call.__name__ = name
    return call


for _name in tf.Tensor.OVERLOADABLE_OPERATORS:
    setattr(_TensorLike, _name, _delegate(_name))


class _Inner(_TensorLike):
    """A tensor that is there while the loop's block is open."""

    _layer: IteratorLayer | RecurrenceLayer

    def __init__(self, block: Block, layer: IteratorLayer | RecurrenceLayer):
        self._block, self._layer = block, layer

    @property
    def tensor(self) -> tf.Tensor:
        if not self._block.is_open:
            raise ValueError(
                f"{self._layer.label} is used after the loop's block was closed; a loop output "
                "brings values out of a loop"
            )
        return self._layer.value

    def __repr__(self) -> str:
        value = self._layer.value
        return f"<{self._layer.label}, shape={value.shape}, dtype={value.dtype.name}>"


class Iterator(_Inner):
    """An iterator layer: in iteration k element k of a tensor, used like a tensor."""


class Recurrence(_Inner):
    """A recurrence layer, used like a tensor.

    Attributes:
        value: its value: a tensor, a composite value, or a nested structure, as the initial one.
        next: its value in the next iteration, the second input.
    """

    _layer: RecurrenceLayer

    @property
    def value(self) -> Any:
        return self.tensor

    @_tf.public
    def set_input(self, index: Literal[1], tensor: Any) -> None:
        """Sets the second input, `index` 1: the value in the next iteration."""
        layer = self._layer
        _check_index(layer.label, index, "the initial value is given when the recurrence is added")
        self._block.check_open(f"{layer.label}: set_input")
        if layer.next is not None:
            raise ValueError(f"{layer.label}: the second input has been set already")
        what = f"{layer.label}: the second input"
        dtype, shape = layer.value.dtype, layer.value.shape
        tensor = self._block.to_tensor(what, tensor, None if _has_dtype(tensor) else dtype)
        if tensor.dtype != dtype:
            raise TypeError(
                f"{what} is of type {tensor.dtype.name}, the initial value {dtype.name}"
            )
        if not tensor.shape.is_compatible_with(shape):
            raise ValueError(
                f"{what} has shape {tensor.shape}, the recurrence {shape}; shape= says what shapes "
                "its values may have"
            )
        layer.next = tensor

    @property
    def next(self) -> tf.Tensor | None:
        return self._layer.next

    @next.setter
    def next(self, tensor: Any) -> None:
        self.set_input(1, tensor)


class PackedRecurrence(Recurrence):
    """A value that several recurrences make together.

    Attributes:
        kind: the name of the value's kind, or its type.
        parts: the recurrences.
        pack: makes the value of the parts' values, and of outputs that they have.
    """

    def __init__(
        self,
        kind: Any,
        parts: Sequence[Recurrence],
        pack: Callable[[Sequence[Any]], Any],
        take_apart: Callable[[str, Any], Sequence[Any]],
    ):
        super().__init__(parts[0]._block, parts[0]._layer)
        self.kind, self.parts, self.pack, self._take_apart = kind, parts, pack, take_apart

    @property
    def tensor(self) -> tf.Tensor:
        kind = self.kind
        name = kind.value_type.__name__ if isinstance(kind, tf.TypeSpec) else kind
        raise TypeError(f"{self._layer.label} is a {name}, no tensor; in the block it is .value")

    @property
    def value(self) -> Any:
        return self.pack([part.value for part in self.parts])

    @_tf.public
    def set_input(self, index: Literal[1], tensor: Any) -> None:
        found = self._take_apart(f"{self._layer.label}: the second input", tensor)
        for part, value in zip(self.parts, found):
            part.set_input(index, value)

    @property
    def next(self) -> Any:
        found = [part.next for part in self.parts]
        return None if any(value is None for value in found) else self.pack(found)

    @next.setter
    def next(self, value: Any) -> None:
        self.set_input(1, value)


def composite_recurrence(initial: Any, parts: Sequence[Recurrence]) -> PackedRecurrence:
    """A composite value like the initial one, and recurrences of its components."""
    spec, (array,) = _composites.type_of(initial), _composites.arrays([initial])

    def pack(tensors: Sequence[tf.Tensor]) -> Any:
        if _tf.is_eager_array(initial) and tf.executing_eagerly():
            return _composites.array_of(tensors[0], initial)
        return _composites.from_components(spec, tensors, array)

    def take_apart(what: str, value: Any) -> list[tf.Tensor]:
        if not _composites.is_composite(value) or not spec.is_compatible_with(value):
            raise TypeError(f"{what} must be a {spec}, got {value!r}")
        return _composites.components(value)

    return PackedRecurrence(spec, parts, pack, take_apart)


def nested_recurrence(structure: Structure, parts: Sequence[Recurrence]) -> PackedRecurrence:
    """A nested structure, and recurrences of its leaves."""

    def take_apart(what: str, value: Any) -> Sequence[Any]:
        leaves, difference = structure.match(what, value)
        if difference is not None:
            raise ValueError(f"{what} must have the structure of the initial value: {difference}")
        return leaves

    return PackedRecurrence(structure.kind, parts, structure.pack, take_apart)


class Output(_TensorLike):
    """A loop output layer, used like a tensor outside of its loop.

    Attributes:
        tensor: the output, after the loop's block.
    """

    def __init__(self, block: Block, layer: OutputLayer):
        self._block, self._layer = block, layer

    @property
    def tensor(self) -> tf.Tensor:
        if self._layer.result is not None:
            return self._layer.result
        network = self._block.network
        if network.is_discarded(self._layer.loop):
            raise ValueError(f"{self._layer.label} is not there: the loop failed")
        if network.sketch is not None:
            raise ValueError(
                f"{self._layer.label} is not there: its loop is inside another one, an output of "
                "which brings values out"
            )
        if not self._block.is_current():
            raise ValueError(f"{self._layer.label} is there once the outermost loop's block ends")
        if self._block.is_open and self._layer.used_at is None:
            # Right where it is another loop's of the same statement; else the loop's end tells.
            frame = _tf.users_frame()
            self._layer.used_at = f"{frame.f_code.co_filename}, line {frame.f_lineno}"
        return self._layer.value

    @_tf.public
    def set_input(self, index: Literal[1], tensor: Any) -> None:
        """Sets the second input, `index` 1: the output's extent along its new axis."""
        layer = self._layer
        _check_index(layer.label, index, "the tensor is given when the output is added")
        self._block.check_open(f"{layer.label}: set_input")
        if layer.kind == "last":
            raise ValueError(f"{layer.label}: the last value has no length")
        if "the length" in layer.given:
            raise ValueError(f"{layer.label}: the length has been set already")
        length, _ = self._block.to_length(layer.label, tensor)
        layer.given["the length"] = length

    def __int__(self) -> int:
        return int(self.tensor)

    def __index__(self) -> int:
        return operator.index(self.tensor)

    def __float__(self) -> float:
        return float(self.tensor)

    def __complex__(self) -> complex:
        return complex(self.tensor)

    def __format__(self, spec: str) -> str:
        return format(self.tensor, spec)

    def __repr__(self) -> str:
        tensor = self._layer.result
        if tensor is None:
            return f"<{self._layer.label}>"
        about = f"shape={tensor.shape}, dtype={tensor.dtype.name}"
        value = f", numpy={tensor.numpy()!r}" if isinstance(tensor, _tf.EagerTensor) else ""
        return f"<{self._layer.label}, {about}{value}>"


class PackedOutput(Output):
    """A value that several outputs make together."""

    def __init__(self, parts: Sequence[Output], pack: Callable[[Sequence[Any]], Any]):
        super().__init__(parts[0]._block, parts[0]._layer)
        self._parts, self._pack = parts, pack

    @property
    def tensor(self) -> Any:
        return self._pack([part.tensor for part in self._parts])

    def __repr__(self) -> str:
        return f"<{self._layer.label}, of {len(self._parts)} tensors>"


def _check_index(label: str, index: int, first: str) -> None:
    if isinstance(index, bool) or not isinstance(index, int):
        raise TypeError(f"{label}: index must be an int, got {index!r}")
    if index != 1:
        raise ValueError(f"{label}: input 1 can be set, not input {index}; {first}")


def _has_dtype(value: Any) -> bool:
    return hasattr(value, "dtype")
