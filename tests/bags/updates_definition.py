"""Steps of optimizers on rows of a table, as their docstrings define them, in NumPy; and slices."""

import numpy as np
import pytest

PADDED = ["zeros", "a number", "another row", "nothing but zeros"]


def each_updated_dtype(dtypes):
    """Parametrizes with dtypes. Cases run on the CPU where a GPU has no kernel for the dtype."""
    mark = pytest.mark.needs_cpu_kernels
    cases = [dtype if dtype.is_floating else pytest.param(dtype, marks=mark) for dtype in dtypes]
    return pytest.mark.parametrize("dtype", cases, ids=lambda dtype: dtype.name)


def pad(kind, indices, values):
    """Slices as compiled gradients are, or nearly: the last row again and again, with zeros."""
    length = 3 * len(indices)
    indices = np.append(indices, np.repeat(indices[-1:], length))
    values = np.append(values, np.zeros([length, values.shape[1]], values.dtype), axis=0)
    if kind == "a number":
        values[-2, -1] = 0.5
    if kind == "another row":
        indices[-1] = indices[0]
    if kind == "nothing but zeros":
        values[:] = 0
    return indices, values


class Definition:
    """The optimizers' steps by definition, in float64."""

    def __init__(self, table, *slots):
        self.table, *self.slots = (np.asarray(x, np.float64) for x in (table, *slots))

    def step(self, rule, indices, values, **numbers):
        indices, values = np.asarray(indices), np.asarray(values, np.float64)
        for row in np.unique(indices):
            s = values[indices == row].sum(0)
            if s.any():
                getattr(self, rule)(row, s, **numbers)

    def descent(self, row, s, scale, weight_decay):
        self.table[row] -= scale * (s + weight_decay * self.table[row])

    def _square(self, slot, s):
        return s**2 if slot.shape == self.table.shape else np.mean(s**2)

    def adagrad(self, row, s, learning_rate, epsilon, epsilon_inside_sqrt):
        (a,) = self.slots
        a[row] += self._square(a, s)
        if epsilon_inside_sqrt:
            self.table[row] -= learning_rate * s / np.sqrt(a[row] + epsilon)
        else:
            self.table[row] -= learning_rate * s / (np.sqrt(a[row]) + epsilon)

    def adam(self, row, s, learning_rate, step, beta_1, beta_2, epsilon, epsilon_hat, weight_decay):
        m, v = self.slots
        m[row] += (1 - beta_1) * (s - m[row])
        v[row] += (1 - beta_2) * (self._square(v, s) - v[row])
        self.table[row] -= learning_rate * weight_decay * self.table[row]
        first, second = 1 - beta_1**step, 1 - beta_2**step
        if epsilon_hat:
            rate = learning_rate * np.sqrt(second) / first
            self.table[row] -= rate * m[row] / (np.sqrt(v[row]) + epsilon)
        else:
            root = np.sqrt(v[row] / second) + epsilon
            self.table[row] -= learning_rate * m[row] / first / root
