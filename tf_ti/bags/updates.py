"""`tf_ti.scatter_sub`: a step of gradient descent on the rows that a bag touched."""

import numbers
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _arguments, _tf
from tf_ti._library import ops
from tf_ti.bags.ops import HALVES, NUMBERS


@_tf.do_not_convert
def scatter_sub(variable: Any, slices: Any, scale: Any = 1, name: str | None = None) -> None:
    """Subtracts scaled rows from rows of a variable, in place.

    It means:

        for i, row in enumerate(slices.indices):
            variable[row] -= scale * slices.values[i]

    which, with a gradient for `slices` and a learning rate for `scale`, is a step of stochastic
    gradient descent. It is what `variable.scatter_sub` does, without a copy of the scaled rows; and
    rows in ascending order, as gradients of tf_ti's bags are, are spread over the threads.

    Args:
        variable: a tf.Variable, or a variable of Keras, of any numeric dtype, [num_emb, ...].
        slices: a tf.IndexedSlices: the rows, and what to subtract from them.
        scale: a scalar number or tensor of the variable's dtype; float32 for half precisions,
            which are rounded once.
        name: a name for the operation.

    Raises:
        TypeError: no variable, no IndexedSlices, or another dtype.
        tf.errors.InvalidArgumentError: an index outside of the variable, which is left as it was.

    Example:

        >>> table = tf.Variable([[1.0], [2.0], [3.0]])
        >>> tf_ti.scatter_sub(table, tf.IndexedSlices(tf.constant([[10.0]]), tf.constant([2])), 0.1)
        >>> table.numpy().tolist()
        [[1.0], [2.0], [2.0]]
    """
    variable = _tf.unwrap_variable(variable)
    if not isinstance(variable, tf.Variable):
        raise TypeError(f"variable must be a tf.Variable, got {variable!r}")
    if not isinstance(slices, tf.IndexedSlices):
        raise TypeError(f"slices must be tf.IndexedSlices, got {slices!r}")
    dtype = variable.dtype
    if dtype not in NUMBERS:
        raise TypeError(f"variable must be of a numeric dtype, got {dtype.name}")
    if slices.dtype != dtype:
        raise TypeError(f"slices must be {dtype.name} like the variable, got {slices.dtype.name}")
    if slices.indices.dtype not in (tf.int32, tf.int64):
        raise TypeError(f"slices.indices must be int32 or int64, got {slices.indices.dtype.name}")
    scale = _scale(scale, tf.float32 if dtype in HALVES else dtype)
    ops.tf_ti_scatter_sub(variable.handle, slices.indices, slices.values, scale, name=name)


def _scale(scale: Any, dtype: tf.DType) -> tf.Tensor:
    if isinstance(scale, (int, float, complex, np.number)) and not isinstance(scale, bool):
        # Whole numbers fit every dtype that can hold them; the others must not lose a part.
        if isinstance(scale, (complex, np.complexfloating)):
            fits = dtype.is_complex
        elif isinstance(scale, numbers.Integral):
            fits = not dtype.is_integer or dtype.min <= scale <= dtype.max
        else:
            fits = not dtype.is_integer
        if not fits:
            raise TypeError(f"scale must be {dtype.name}, got {scale!r}")
        return tf.constant(scale, dtype)
    scale = _arguments.to_tensor("scale", scale)
    if scale.dtype != dtype:
        raise TypeError(f"scale must be {dtype.name}, got {scale.dtype.name}")
    return scale
