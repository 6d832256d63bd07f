"""OpenVINO's element types, and the NumPy dtypes that hold their numbers."""

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

# The numbers of nf4, which are about quantiles of the normal distribution.
_NF4 = np.array(
    [
        -1.0,
        -0.6961928,
        -0.52507305,
        -0.3949175,
        -0.28444138,
        -0.18477343,
        -0.091050036,
        0.0,
        0.0795803,
        0.1609302,
        0.2461123,
        0.33791524,
        0.44070983,
        0.562617,
        0.72295684,
        1.0,
    ],
    np.float32,
)


@dataclasses.dataclass(frozen=True)
class ElementType:
    """An element type: `dtype` holds a number in memory; a file packs it if `bits` is below 8."""

    name: str
    dtype: np.dtype
    bits: int

    @property
    def is_floating(self) -> bool:
        return self.name.startswith(("bf", "f", "nf"))

    @property
    def is_packed(self) -> bool:
        return self.bits < 8

    def num_bytes(self, count: int) -> int:
        if self.bits % 3 == 0:  # three bytes together hold whole numbers
            return -(-count * self.bits // 24) * 3
        return (count * self.bits + 7) // 8

    def unpack(self, data: np.ndarray, count: int) -> np.ndarray:
        """The numbers in some bytes; a view of the bytes unless numbers are packed."""
        if self.dtype == np.bool_:
            return data != 0  # any byte but 0 is true
        if not self.is_packed:
            return data.view(self.dtype)
        if self.bits % 3 == 0:
            numbers = _of_threes(data.reshape(-1, 3), self.bits // 3)
        else:
            numbers = _parts(data, self.bits)
            if self.bits > 1:  # the first number is the lowest, of bits the highest
                numbers = numbers[:, ::-1]
        numbers = numbers.reshape(-1)[:count]
        if self.name == "nf4":
            return _NF4[numbers]
        if self.dtype == np.int8:
            return ((numbers ^ 8).astype(np.int8) - 8).astype(np.int8)
        return numbers.astype(self.dtype)

    def pack(self, numbers: np.ndarray) -> np.ndarray:
        """The bytes of some numbers: what `unpack` takes."""
        numbers = np.ascontiguousarray(numbers, self.dtype).reshape(-1)
        if not self.is_packed:
            return numbers.view(np.uint8)
        if self.name == "nf4":
            numbers = np.abs(numbers[:, np.newaxis] - _NF4).argmin(1)
        size = self.num_bytes(numbers.size)
        places = np.zeros(size * 8 // self.bits, np.uint8)
        places[: numbers.size] = numbers.astype(np.uint8) & np.uint8((1 << self.bits) - 1)
        if self.bits % 3 == 0:
            return _to_threes(places.reshape(size // 3, -1), self.bits // 3).reshape(-1)
        parts = places.reshape(size, -1)
        return _joined(parts if self.bits == 1 else parts[:, ::-1], self.bits)


def _parts(data: np.ndarray, bits: int) -> np.ndarray:
    """What each byte has in parts of so many bits, the highest first."""
    shifts = np.arange(8 - bits, -1, -bits, dtype=np.uint8)
    return data[..., np.newaxis] >> shifts & np.uint8((1 << bits) - 1)


def _of_threes(data: np.ndarray, bits: int) -> np.ndarray:
    """Numbers in three bytes: two with the lower parts, the last one with the `bits` above."""
    low = _parts(data[:, :2], 2 * bits).reshape(len(data), -1)
    return low | _parts(data[:, 2], bits) << np.uint8(2 * bits)


def _joined(parts: np.ndarray, bits: int) -> np.ndarray:
    """Bytes of parts: undoes _parts."""
    shifts = np.arange(8 - bits, -1, -bits, dtype=np.uint8)
    return np.bitwise_or.reduce(parts << shifts, -1)


def _to_threes(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Undoes _of_threes."""
    low = numbers & np.uint8((1 << 2 * bits) - 1)
    low = _joined(low.reshape(len(numbers), 2, -1), 2 * bits)
    return np.concatenate([low, _joined(numbers >> np.uint8(2 * bits), bits)[:, np.newaxis]], 1)


def _make(name: str, dtype: Any, bits: int | None = None) -> ElementType:
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
        _make("nf4", np.float32, 4),
        _make("u1", np.uint8, 1),
        _make("u2", np.uint8, 2),
        _make("u3", np.uint8, 3),
        _make("u4", np.uint8, 4),
        _make("u6", np.uint8, 6),
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
