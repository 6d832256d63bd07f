"""The share of each row in its bag: its weight, divided by the divisor of the bag's sum."""

import tensorflow as tf

from tf_ti.bags.ops import Bags


class Shares:
    """The shares of bags that a mean or sqrtn reduces, and their derivatives.

    They are of double precision, as the kernels' divisors are: floats would stop at 2^24, and
    squares of them overflow and vanish. Weights in any unit have the same shares. In the unit of
    their own divisor all that is differentiated is near 1, where other units have the fourth power
    of a divisor in their derivatives.
    """

    def __init__(self, bags: Bags, count: tf.Tensor | int):
        """`count` is the number of bags."""
        self._bags, self._count = bags, tf.cast(count, tf.int32)
        self._bag_of = _bag_of(bags, self._count)
        weights = self._without_padding(bags.weights)
        self._unit = tf.stop_gradient(self._divisors(weights))
        self._weights = tf.math.divide_no_nan(weights, self._unit)
        self._divisor = self._divisors(self._weights)

    def values(self) -> tf.Tensor:
        return tf.math.divide_no_nan(self._weights, self._divisor)

    def change(self, direction: tf.Tensor) -> tf.Tensor:
        """How the shares change when the weights go in `direction`."""
        direction = self._without_padding(direction)
        if self._bags.reduction == "mean":
            change = self._bag_sum(direction)
        else:
            change = self._bag_sum(self._weights * direction)
            change = tf.math.divide_no_nan(change, self._divisor)
        change = tf.math.divide_no_nan(change, self._divisor)
        change = tf.math.divide_no_nan(direction - self._weights * change, self._divisor)
        return tf.math.divide_no_nan(change, self._unit)

    def _without_padding(self, values: tf.Tensor) -> tf.Tensor:
        values = tf.cast(values, tf.complex128 if values.dtype.is_complex else tf.float64)
        if self._bags.padding_idx is None:
            return values
        is_padding = tf.equal(self._bags.indices, self._bags.padding_idx)
        return tf.where(is_padding, tf.zeros_like(values), values)

    def _divisors(self, weights: tf.Tensor) -> tf.Tensor:
        """The divisor of the bag of each weight."""
        if self._bags.reduction == "mean":
            return self._bag_sum(weights)
        squares = self._bag_sum(tf.square(weights))
        is_zero = tf.equal(squares, 0)  # where a root has no derivative
        root = tf.sqrt(tf.where(is_zero, tf.ones_like(squares), squares))
        return tf.where(is_zero, tf.zeros_like(squares), root)

    def _bag_sum(self, values: tf.Tensor) -> tf.Tensor:
        """The sum of the bag of each value."""
        sums = tf.math.unsorted_segment_sum(values, self._bag_of, self._count)
        # Not tf.concat, whose gradient is not vectorised where it comes from tf.gather.
        place = tf.where(self._bag_of < 0, self._count, self._bag_of)
        return tf.gather(tf.pad(sums, [[0, 1]]), place)


def _bag_of(bags: Bags, count: tf.Tensor) -> tf.Tensor:
    """The bag of each index, in the shape of the indices; -1 for those in no bag."""
    if bags.kind == "segments":
        return tf.cast(bags.bounds, tf.int32)
    if bags.kind == "packed":
        return tf.broadcast_to(tf.range(count)[:, tf.newaxis], tf.shape(bags.indices))
    # How many bags begin at each position, and how many up to there. (XLA's tf.searchsorted would
    # compare each position with each offset.)
    size = tf.size(bags.indices)
    ones = tf.ones_like(bags.bounds, tf.int32)
    starts = tf.math.unsorted_segment_sum(ones, bags.bounds, size + 1)
    bag_of = tf.cumsum(starts[:size]) - 1
    return tf.where(bag_of < count, bag_of, -1)
