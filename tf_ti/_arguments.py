"""Conversions and checks of arguments that all families share."""

import contextlib
from typing import Any

import tensorflow as tf

from tf_ti import _tf

# Eager calls are short: what is mostly so is asked first, here and in what they call.


def to_tensor(label: str, value: Any) -> tf.Tensor:
    """A tensor; the error where that cannot be names `label`."""
    if isinstance(value, _tf.EagerTensor) and tf.executing_eagerly():
        return value
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise type(error)(
            f"{label} must be a tensor, got {type(value).__name__}: {error}"
        ) from error


def on_host() -> contextlib.AbstractContextManager[Any]:
    """A context for the numbers that an op takes in the host's memory, also where it runs on a GPU.

    A constant of int64 or float64 would otherwise lie on the GPU: each call would copy it back, for
    which the op waits until the GPU has done all its work.
    """
    return tf.device("CPU:0") if _tf.may_ask_for_host() else contextlib.nullcontext()


def host_number(value: Any, dtype: tf.DType) -> tf.Tensor:
    """A scalar made `on_host`: of a number, or of a tensor whose value may be known."""
    known = value
    if isinstance(value, tf.Tensor):
        known = _tf.static_value(value) if tf.is_symbolic_tensor(value) else None
    with on_host():
        return tf.cast(value, dtype) if known is None else tf.constant(known, dtype)


def host_extent(tensor: Any, axis: int) -> tf.Tensor:
    """The extent of a tensor along an axis, in int64."""
    shape = tf.shape(tensor, tf.int64)
    with on_host():
        return shape[axis]


def as_operations(*assertions: tf.Operation | None) -> list[tf.Operation]:
    """The assertions that are still to be made: an eager one is None, and holds."""
    return [assertion for assertion in assertions if assertion is not None]


def check_reachable(label: str, variable: tf.Variable) -> None:
    """TensorFlow runs no eager op of ours where another process has the variable."""
    if "/job:localhost/" in variable.handle.device or not tf.executing_eagerly():
        return
    there = tf.DeviceSpec.from_string(variable.handle.device)
    here = tf.DeviceSpec.from_string(tf.zeros([]).device)
    if (there.job, there.task) != (here.job, here.task):
        raise ValueError(
            f"{label} is on {variable.handle.device}, of another process, which takes no eager "
            "call: make it in a tf.function"
        )


def check_together(label: str, variable: tf.Variable, other_label: str, other: tf.Variable) -> None:
    """Refuses variables on different devices, as far as these are known."""
    if variable.device == other.device:
        return
    specs = [tf.DeviceSpec.from_string(v.device or "") for v in (variable, other)]
    for part in ("job", "replica", "task", "device_type", "device_index"):
        parts = {getattr(spec, part) for spec in specs} - {None}
        if len(parts) > 1:
            raise ValueError(
                f"{label} must be on the device of {other_label}, {other.device}, got "
                f"{variable.device}"
            )


def name(value: Any) -> str:
    """A value in an error: of a tensor or variable its type, shape and dtype, not its numbers."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return repr(value)
    return f"a {type(value).__name__} of shape {value.shape} and dtype {value.dtype}"
