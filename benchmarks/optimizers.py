"""Optimizers for a table: a step by definition, tf_ti's, and those of TensorFlow's ops.

All compute the same from the same numbers: Keras's Adam and Adagrad, with their defaults except for
the rate. (They add the epsilon in different places, which the first step does not show.)
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

import tf_ti

RATE = 0.01
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7
# The initial value of Adagrad's accumulators.
INITIAL = 0.1

# The change of the rows in the first step, from their gradient [rows, width].
Change = Callable[[np.ndarray], np.ndarray]


def sgd_change(gradient: np.ndarray) -> np.ndarray:
    return RATE * gradient


def adam_change(gradient: np.ndarray) -> np.ndarray:
    m, v = (1 - BETA_1) * gradient, (1 - BETA_2) * gradient**2
    rate = RATE * np.sqrt(1 - BETA_2) / (1 - BETA_1)
    return rate * m / (np.sqrt(v) + EPSILON)


def adagrad_change(gradient: np.ndarray) -> np.ndarray:
    return RATE * gradient / np.sqrt(INITIAL + gradient**2 + EPSILON)


def row_wise_adagrad_change(gradient: np.ndarray) -> np.ndarray:
    squares = np.mean(gradient**2, axis=1, keepdims=True)
    return RATE * gradient / np.sqrt(INITIAL + squares + EPSILON)


class Optimizer:
    """A table, and the slots of its optimizer.

    Attributes:
        change: a function that gives the change of the rows in the first step.
    """

    change: Change

    def __init__(self, table: np.ndarray):
        self.table = tf.Variable(table)

    def update(self, gradient: tf.IndexedSlices) -> None:
        raise NotImplementedError

    def _slot(self, value: float, width: int | None = None) -> tf.Variable:
        rows, table_width = self.table.shape
        return tf.Variable(tf.fill([rows, width or table_width], value))


class Sgd(Optimizer):
    """tf_ti.scatter_sub."""

    change = staticmethod(sgd_change)

    def update(self, gradient):
        tf_ti.scatter_sub(self.table, gradient, RATE)


class TensorFlowSgd(Sgd):
    """A variable's own scatter_sub."""

    def update(self, gradient):
        self.table.scatter_sub(_with_values(gradient, RATE * gradient.values))


class Adam(Optimizer):
    """tf_ti.adam_update."""

    change = staticmethod(adam_change)

    def __init__(self, table):
        super().__init__(table)
        self._m, self._v = self._slot(0.0), self._slot(0.0)
        self._step = tf.Variable(0, dtype=tf.int64)

    def update(self, gradient):
        step = self._step.assign_add(1, read_value=True)
        tf_ti.adam_update(self.table, self._m, self._v, gradient, RATE, step)


class TensorFlowAdam(Adam):
    """The same in TensorFlow's ops, as a lazy Adam is written today."""

    def update(self, gradient):
        step = tf.cast(self._step.assign_add(1, read_value=True), tf.float32)
        rows, values = gradient.indices, gradient.values
        m = BETA_1 * tf.gather(self._m, rows) + (1 - BETA_1) * values
        v = BETA_2 * tf.gather(self._v, rows) + (1 - BETA_2) * values**2
        self._m.scatter_update(_with_values(gradient, m))
        self._v.scatter_update(_with_values(gradient, v))
        rate = RATE * tf.sqrt(1 - BETA_2**step) / (1 - BETA_1**step)
        self.table.scatter_sub(_with_values(gradient, rate * m / (tf.sqrt(v) + EPSILON)))


class Adagrad(Optimizer):
    """tf_ti.adagrad_update."""

    change = staticmethod(adagrad_change)

    def __init__(self, table):
        super().__init__(table)
        self._accumulator = self._make_accumulator()

    def _make_accumulator(self) -> tf.Variable:
        return self._slot(INITIAL)

    def update(self, gradient):
        tf_ti.adagrad_update(self.table, self._accumulator, gradient, RATE)


class RowWiseAdagrad(Adagrad):
    """tf_ti.adagrad_update with one accumulator a row."""

    change = staticmethod(row_wise_adagrad_change)

    def _make_accumulator(self):
        return self._slot(INITIAL, width=1)


class TensorFlowAdagrad(Adagrad):
    """tf.raw_ops.ResourceSparseApplyAdagradV2."""

    def update(self, gradient):
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=self.table.handle,
            accum=self._accumulator.handle,
            lr=RATE,
            epsilon=EPSILON,
            grad=gradient.values,
            indices=gradient.indices,
        )


def _with_values(slices: tf.IndexedSlices, values: tf.Tensor) -> tf.IndexedSlices:
    return tf.IndexedSlices(values, slices.indices, slices.dense_shape)
