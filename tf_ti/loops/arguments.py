"""Checks of arguments that the ways in have in common."""

import numbers
from typing import Any

import tensorflow as tf

from tf_ti import _tf

NUMBERS = (bool, int, float, complex)


def check_num_iterations(
    num_iterations: Any, label: str = "num_iterations"
) -> int | tf.Tensor | None:
    """Returns the number; for a value that is used like a tensor, the tensor."""
    if num_iterations is None:
        return None
    if isinstance(num_iterations, _tf.TensorLike):
        num_iterations = tf.convert_to_tensor(num_iterations)
        if not num_iterations.dtype.is_integer:
            raise TypeError(f"{label} must be an integer, got {num_iterations.dtype.name}")
        if num_iterations.shape.rank not in (None, 0):
            raise ValueError(f"{label} must be a scalar, got shape {num_iterations.shape}")
        static = _tf.static_value(num_iterations)
        if static is not None:
            return tf.constant(static, num_iterations.dtype)
    elif isinstance(num_iterations, bool) or not hasattr(num_iterations, "__index__"):
        raise TypeError(f"{label} must be an integer, got {num_iterations!r}")
    elif not 0 <= int(num_iterations) < 2**63:
        raise ValueError(f"{label} must not be negative, got {num_iterations}")
    return num_iterations


def at_least_0(count: tf.Tensor) -> tf.Tensor:
    """A known one stays known."""
    static = _tf.static_value(count)
    return tf.maximum(count, 0) if static is None else tf.constant(max(static, 0), tf.int64)


def check_checkpoint_every(checkpoint_every: Any) -> None:
    if checkpoint_every is None:
        return
    is_int = isinstance(checkpoint_every, numbers.Integral)
    if isinstance(checkpoint_every, bool) or not is_int:
        raise TypeError(f"checkpoint_every must be an int or None, got {checkpoint_every!r}")
    if not 1 <= checkpoint_every < 2**63:
        raise ValueError(f"checkpoint_every must be from 1 to 2**63 - 1, got {checkpoint_every}")


def check_back_edge(
    label: str, spec: tf.TensorSpec, dtype: tf.DType, shape: tf.TensorShape, source: str, cure: str
) -> None:
    """A state's next value must fit the body's parameter; `cure` says how another shape may."""
    if dtype != spec.dtype:
        raise TypeError(
            f"{label} is of type {spec.dtype.name}, but {source}, which feeds it in the next "
            f"iteration, of type {dtype.name}"
        )
    if not spec.shape.is_compatible_with(shape):
        raise ValueError(
            f"{label} has shape {spec.shape}, but {source}, which feeds it in the next iteration, "
            f"has shape {shape}; {cure}"
        )


def number(value: Any, dtype: tf.DType) -> tf.Tensor | None:
    """A Python number of this type, or None where the type has none such."""
    if dtype.is_integer and isinstance(value, int) and not dtype.min <= value <= dtype.max:
        return None  # tf.constant takes another one
    try:
        return tf.constant(value, dtype)
    except (TypeError, ValueError, OverflowError):
        return None
