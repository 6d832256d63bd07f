"""What every family does with the arguments of its functions."""

from typing import Any

import tensorflow as tf


def to_tensor(label: str, value: Any) -> tf.Tensor:
    """A tensor; the error where that cannot be names `label`."""
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{label} must be a tensor, got {type(value).__name__}: {error}"
        ) from error
