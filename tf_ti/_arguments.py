"""Conversions and checks of arguments that all families share."""

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
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{label} must be a tensor, got {type(value).__name__}: {error}"
        ) from error


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
