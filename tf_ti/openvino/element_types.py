"""OpenVINO's element types, and the NumPy dtypes that hold their numbers."""

import dataclasses

import ml_dtypes
import numpy as np


@dataclasses.dataclass(frozen=True)
class ElementType:
    """An element type: `dtype` holds a number in memory; a file packs it if `bits` is below 8."""

    name: str
    dtype: np.dtype
    bits: int

    @property
    def is_floating(self) -> bool:
        return self.name[0] in "fb" and self.name != "boolean"

    def num_bytes(self, count: int) -> int:
        return (count * self.bits + 7) // 8

    def unpack(self, data: np.ndarray, count: int) -> np.ndarray:
        """The numbers in some bytes; a view of the bytes unless numbers are packed."""
        if self.dtype == np.bool_:
            return data != 0  # any byte but 0 is true
        if self.bits >= 8:
            return data.view(self.dtype)
        if self.bits == 1:
            return np.unpackbits(data, count=count).astype(self.dtype)
        halves = np.stack([data & 15, data >> 4], axis=-1).reshape(-1)[:count]
        if self.dtype == np.int8:
            return ((halves ^ 8).astype(np.int8) - 8).astype(np.int8)
        return halves.astype(self.dtype)

    def pack(self, numbers: np.ndarray) -> np.ndarray:
        """The bytes of some numbers: what `unpack` takes."""
        numbers = np.ascontiguousarray(numbers, self.dtype).reshape(-1)
        if self.bits >= 8:
            return numbers.view(np.uint8)
        if self.bits == 1:
            return np.packbits(numbers)
        halves = np.zeros(2 * self.num_bytes(numbers.size), np.uint8)
        halves[: numbers.size] = numbers.view(np.uint8) & 15
        return halves[::2] | halves[1::2] << 4


def _make(name: str, dtype, bits: int | None = None) -> ElementType:
    dtype = np.dtype(dtype)
    return ElementType(name, dtype, bits or 8 * dtype.itemsize)


ELEMENT_TYPES = {
    kind.name: kind
    for kind in (
        _make("boolean", np.bool_),
        _make("bf16", ml_dtypes.bfloat16),
        _make("f16", np.float16),
        _make("f32", np.float32),
        _make("f64", np.float64),
        _make("f8e4m3", ml_dtypes.float8_e4m3fn),
        _make("f8e5m2", ml_dtypes.float8_e5m2),
        _make("i4", np.int8, 4),
        _make("i8", np.int8),
        _make("i16", np.int16),
        _make("i32", np.int32),
        _make("i64", np.int64),
        _make("u1", np.uint8, 1),
        _make("u4", np.uint8, 4),
        _make("u8", np.uint8),
        _make("u16", np.uint16),
        _make("u32", np.uint32),
        _make("u64", np.uint64),
    )
}

# Types by their names in ports of layers. Others have the same name in capitals.
_OF_PRECISION = {
    "BOOL": "boolean",
    "BF16": "bf16",
    "BIN": "u1",
    "FP16": "f16",
    "FP32": "f32",
    "FP64": "f64",
    "F8E4M3": "f8e4m3",
    "F8E5M2": "f8e5m2",
}


def of_precision(precision: str) -> ElementType | None:
    """The type that a port's precision names, if it is known."""
    return ELEMENT_TYPES.get(_OF_PRECISION.get(precision, precision.lower()))


def precision_of(kind: ElementType) -> str:
    """The precision that ports write for a type."""
    names = {name: precision for precision, name in _OF_PRECISION.items()}
    return names.get(kind.name, kind.name.upper())
