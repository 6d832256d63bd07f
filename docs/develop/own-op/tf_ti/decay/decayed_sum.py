"""The public function, and the op's gradient."""

from typing import Any

import tensorflow as tf

from tf_ti._library import ops


def decayed_sum(x: Any, decay: Any, *, reverse: bool = False, name: str | None = None) -> tf.Tensor:
    """Sums along the first dimension, in which earlier values count less.

    It means::

        y[0] = x[0]
        for t in range(1, len(x)):
            y[t] = x[t] + decay * y[t - 1]

    Args:
        x: a tensor of float32 or float64, at least a vector.
        decay: a scalar, the weight of the sum so far.
        reverse: whether the last step comes first.
        name: of the operation.

    Returns:
        A tensor with the shape and the type of x.
    """
    with tf.name_scope(name or "decayed_sum"):
        x = tf.convert_to_tensor(x, name="x")
        decay = tf.convert_to_tensor(decay, x.dtype, name="decay")
        return ops.tf_ti_decayed_sum(x, decay, reverse=reverse)


@tf.RegisterGradient("TfTi>DecayedSum")
def _gradients(op: tf.Operation, grad: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Gradients by x and decay: each step's reaches all earlier ones, as a sum that decays."""
    decay, y, reverse = op.inputs[1], op.outputs[0], op.get_attr("reverse")
    by_x = ops.tf_ti_decayed_sum(grad, decay, reverse=not reverse)
    products = by_x[:-1] * y[1:] if reverse else by_x[1:] * y[:-1]
    return by_x, tf.reduce_sum(products)
