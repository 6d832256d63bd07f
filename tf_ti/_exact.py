"""Arithmetic that a graph computes as it is written, and as an eager call does.

Grappler and XLA rewrite graphs by rules that hold for real numbers. A negated comparison becomes
the opposite one, which is another thing for a NaN; a division by a constant becomes a product with
its reciprocal, and one of 1 an approximation; a product is not rounded before it is added.
Rounding, comparisons and the edges of an image make that visible.
"""

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf


def negated(condition: tf.Tensor) -> tf.Tensor:
    """As tf.logical_not, also of a comparison with a NaN."""
    return tf.where(condition, False, True)


def divided(x: tf.Tensor, divisor: tf.Tensor | float | Sequence[float]) -> tf.Tensor:
    """Divides float32 or halves with one rounding. (float64 has no wider type.)

    In double, a product with the rounded reciprocal still rounds to the quotient.
    """
    wide = tf.cast(x, tf.float64) / tf.cast(divisor, tf.float64)
    return tf.cast(wide, x.dtype)


def multiplied(x: tf.Tensor, y: tf.Tensor | float) -> tf.Tensor:
    """Multiplies float32, and rounds before XLA adds anything.

    LLVM knows that the rounded product of doubles is the product of floats, and would fuse it with
    an addition. It fuses no product that a select returns.
    """
    product = tf.cast(tf.cast(x, tf.float64) * tf.cast(y, tf.float64), x.dtype)
    return tf.where(tf.equal(product, product), product, tf.constant(math.nan, x.dtype))


def is_rewritten(dividend: np.ndarray | None, divisor: np.ndarray | None) -> bool:
    """Returns true if graphs rewrite a division; operands that are not known are None."""
    if divisor is not None:  # products with powers of two are exact
        return not np.all(np.abs(np.frexp(divisor.astype(np.float64))[0]) == 0.5)
    return dividend is not None and bool(np.all(dividend == 1))


def apart(x: tf.Tensor) -> tf.Tensor:
    """Returns x, and keeps Grappler from merging the operations before and after it.

    TensorFlow puts a Pad into the Conv3D that reads it, and then takes the shape without pads for
    the result's. A reduction of an axis that seems to have one element is left out then.

    TensorFlow replaces x * relu6(x + 3) * a by oneDNN's HSwish, and a GELU by oneDNN's, if each
    factor is within 0.01 of theirs: a factor of 1.05 that was merged into a would be lost.
    """
    return tf.ensure_shape(x, x.shape)


def hidden(number: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Hides from Grappler that a number is a constant: one for each element of x."""
    return tf.where(tf.equal(x, x), number, number)
