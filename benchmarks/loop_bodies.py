"""Sixteen bodies of loops that are no LSTM, as functions for `tf_ti.scan`, at sizes of use.

Each is written once: `tf` is TensorFlow, or what loop_bodies_jax.py has in its place.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow


@dataclasses.dataclass
class Body:
    """f, init and xs of a scan; `has_gradient` if people train through it."""

    f: Callable
    init: object
    xs: object
    has_gradient: bool

    @property
    def count(self) -> int:
        return int(tensorflow.nest.flatten(self.xs)[0].shape[0])

    def shortened(self, count: int) -> "Body":
        xs = tensorflow.nest.map_structure(lambda x: x[:count], self.xs)
        return dataclasses.replace(self, xs=xs)


class _Draw:
    """Draws numbers, the same for each body and each `tf`."""

    def __init__(self, tf: Any):
        self._tf, self._random = tf, np.random.default_rng(7)

    def normal(self, *shape: int, scale: float = 1.0):
        return self._tf.constant(np.float32(self._random.standard_normal(shape) * scale))

    def uniform(self, *shape: int):
        return self._tf.constant(np.float32(self._random.uniform(0.05, 0.95, shape)))

    def integers(self, low: int, high: int, count: int):
        return self._tf.constant(self._random.integers(low, high, count))


BODIES: dict[str, Callable[[Any], Body]] = {}


def _body(has_gradient: bool):
    def add(make):
        BODIES[make.__name__] = lambda tf: Body(*make(tf, _Draw(tf)), has_gradient)
        return make

    return add


@_body(True)
def gae(tf, draw):
    """Generalized advantages of reinforcement learning, of 8 environments."""

    def f(advantage, x):
        delta, goes_on = x
        advantage = delta + 0.99 * 0.95 * goes_on * advantage
        return advantage, advantage

    return f, tf.zeros([8]), (draw.normal(1024, 8), draw.uniform(1024, 8))


@_body(True)
def vtrace(tf, draw):
    """The targets of IMPALA."""

    def f(target, x):
        delta, discount, importance = x
        target = delta + discount * tf.minimum(1.0, importance) * target
        return target, target

    return f, tf.zeros([32]), (draw.normal(128, 32), draw.uniform(128, 32), draw.uniform(128, 32))


@_body(False)
def kalman(tf, draw):
    """A filter of a position and a velocity in the plane."""
    step = tf.constant([[1, 0, 0.1, 0], [0, 1, 0, 0.1], [0, 0, 1, 0], [0, 0, 0, 1]], tf.float32)
    seen = tf.constant([[1, 0, 0, 0], [0, 1, 0, 0]], tf.float32)
    noise, error = 0.01 * tf.eye(4), 0.1 * tf.eye(2)

    def f(state, z):
        mean, cov = state
        mean = tf.linalg.matvec(step, mean)
        cov = step @ cov @ tf.transpose(step) + noise
        s = seen @ cov @ tf.transpose(seen) + error
        det = s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0]
        rows = [tf.stack([s[1, 1], -s[0, 1]]), tf.stack([-s[1, 0], s[0, 0]])]
        gain = cov @ tf.transpose(seen) @ (tf.stack(rows) / det)
        mean = mean + tf.linalg.matvec(gain, z - tf.linalg.matvec(seen, mean))
        cov = cov - gain @ seen @ cov
        return (mean, cov), mean

    return f, (tf.zeros([4]), tf.eye(4)), draw.normal(256, 2)


@_body(True)
def hmm_forward(tf, draw):
    """The forward algorithm of a hidden Markov model of 16 states."""
    transition = tf.nn.log_softmax(draw.normal(16, 16))

    def f(alpha, seen):
        alpha = tf.reduce_logsumexp(alpha[:, :, None] + transition, axis=1) + seen
        return alpha, alpha

    return f, tf.nn.log_softmax(draw.normal(8, 16)), draw.normal(128, 8, 16)


@_body(True)
def crf_forward(tf, draw):
    """The partition function of a tagger, of sequences of several lengths."""
    transition = draw.normal(20, 20)
    lengths = draw.integers(10, 50, 32)

    def f(alpha, x):
        t, seen = x
        new = tf.reduce_logsumexp(alpha[:, :, None] + transition[None], axis=1) + seen
        return tf.where((t < lengths)[:, None], new, alpha), None

    return f, draw.normal(32, 20), (tf.range(50, dtype=tf.int64), draw.normal(50, 32, 20))


@_body(False)
def viterbi(tf, draw):
    """The best paths of the same tagger."""
    transition = draw.normal(20, 20)

    def f(score, seen):
        scores = score[:, :, None] + transition
        return tf.reduce_max(scores, 1) + seen, tf.argmax(scores, 1, output_type=tf.int32)

    return f, draw.normal(32, 20), draw.normal(50, 32, 20)


@_body(True)
def selective_scan(tf, draw):
    """The state space model of Mamba."""
    decay = -tf.exp(draw.normal(64, 16))

    def f(h, x):
        dt, b, c, x = x
        h = tf.exp(dt[:, :, None] * decay) * h + (dt * x)[:, :, None] * b[:, None, :]
        return h, tf.reduce_sum(h * c[:, None, :], -1)

    xs = (
        draw.uniform(128, 4, 64),
        draw.normal(128, 4, 16),
        draw.normal(128, 4, 16),
        draw.normal(128, 4, 64),
    )
    return f, tf.zeros([4, 64, 16]), xs


@_body(True)
def rk4_lorenz(tf, draw):
    """Steps of Runge and Kutta through Lorenz's system."""
    h = 0.01

    def slope(x, y, z):
        return 10.0 * (y - x), x * (28.0 - z) - y, x * y - (8.0 / 3.0) * z

    def f(s, _):
        k1 = slope(*s)
        k2 = slope(*(a + 0.5 * h * k for a, k in zip(s, k1)))
        k3 = slope(*(a + 0.5 * h * k for a, k in zip(s, k2)))
        k4 = slope(*(a + h * k for a, k in zip(s, k3)))
        s = tuple(a + h / 6 * (p + 2 * q + 2 * r + t) for a, p, q, r, t in zip(s, k1, k2, k3, k4))
        return s, s[0]

    return f, (draw.normal(16), draw.normal(16), draw.normal(16)), tf.zeros([512])


@_body(True)
def leapfrog(tf, draw):
    """Steps of Hamiltonian Monte Carlo on a normal distribution."""
    precision = tf.eye(16) + 0.05

    def f(state, _):
        q, p = state
        p = p - 0.05 * tf.matmul(q, precision)
        q = q + 0.1 * p
        p = p - 0.05 * tf.matmul(q, precision)
        return (q, p), None

    return f, (draw.normal(4, 16), draw.normal(4, 16)), tf.zeros([256])


@_body(False)
def biquad(tf, draw):
    """An audio filter of two channels."""
    b0, b1, b2, a1, a2 = 0.2, 0.3, 0.2, -0.4, 0.1

    def f(state, x):
        z1, z2 = state
        y = b0 * x + z1
        return (b1 * x - a1 * y + z2, b2 * x - a2 * y), y

    return f, (tf.zeros([2]), tf.zeros([2])), draw.normal(4096, 2)


@_body(True)
def wkv(tf, draw):
    """The time mixing of RWKV."""
    decay, bonus = -tf.exp(draw.normal(64)), draw.normal(64)

    def f(state, x):
        a, b, most = state
        k, v = x
        top = tf.maximum(most, bonus + k)
        old, new = tf.exp(most - top), tf.exp(bonus + k - top)
        y = (old * a + new * v) / (old * b + new)
        top = tf.maximum(most + decay, k)
        old, new = tf.exp(most + decay - top), tf.exp(k - top)
        return (old * a + new * v, old * b + new, top), y

    zeros = tf.zeros([4, 64])
    return f, (zeros, zeros, zeros - 1e30), (draw.normal(128, 4, 64), draw.normal(128, 4, 64))


@_body(True)
def layer_norm_lstm(tf, draw):
    """An LSTM with normalized sums."""
    w, r, scale = draw.normal(16, 64, scale=0.3), draw.normal(16, 64, scale=0.3), tf.ones([64])

    def norm(x):
        mean = tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(x - mean), -1, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-5)

    def f(state, x):
        h, c = state
        i, j, forget, o = tf.split(norm(x @ w) * scale + norm(h @ r) * scale, 4, axis=1)
        c = tf.sigmoid(forget + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
        h = tf.sigmoid(o) * tf.tanh(norm(c))
        return (h, c), h

    return f, (tf.zeros([4, 16]), tf.zeros([4, 16])), draw.normal(128, 4, 16)


@_body(True)
def attention_gru(tf, draw):
    """A decoder that looks at 20 positions."""
    memory, keys = draw.normal(8, 20, 32), draw.normal(8, 20, 32)
    wq, wx, wh = (draw.normal(*shape, scale=0.2) for shape in ((32, 32), (64, 96), (32, 96)))

    def f(h, x):
        score = tf.nn.softmax(tf.einsum("bh,bsh->bs", h @ wq, keys))
        context = tf.einsum("bs,bsh->bh", score, memory)
        gx, gh = tf.concat([x, context], 1) @ wx, h @ wh
        z = tf.sigmoid(gx[:, :32] + gh[:, :32])
        reset = tf.sigmoid(gx[:, 32:64] + gh[:, 32:64])
        n = tf.tanh(gx[:, 64:] + reset * gh[:, 64:])
        h = (1 - z) * n + z * h
        return h, h

    return f, tf.zeros([8, 32]), draw.normal(64, 8, 32)


@_body(False)
def wave(tf, draw):
    """A stencil of 64 x 64."""

    def laplacian(v):
        shifted = [tf.roll(v, shift, axis) for shift in (1, -1) for axis in (0, 1)]
        return tf.add_n(shifted) - 4.0 * v

    def f(state, _):
        now, before = state
        return (2.0 * now - before + 0.1 * laplacian(now), now), None

    return f, (draw.normal(64, 64), draw.normal(64, 64)), tf.zeros([256])


@_body(False)
def exponential_smoothing(tf, draw):
    """Holt and Winters' smoothing of 16 series with a season of 12."""

    def f(state, y):
        level, trend, season = state
        now = season[:, 0]
        new = 0.3 * (y - now) + 0.7 * (level + trend)
        trend = 0.1 * (new - level) + 0.9 * trend
        now = 0.2 * (y - new) + 0.8 * now
        season = tf.concat([season[:, 1:], now[:, None]], 1)
        return (new, trend, season), new + trend + season[:, 0]

    return f, (draw.normal(16), draw.normal(16), draw.normal(16, 12)), draw.normal(240, 16)


@_body(True)
def neural_ode(tf, draw):
    """Euler's steps of a small network."""
    w1, b1, w2 = (
        draw.normal(8, 32, scale=0.3),
        draw.normal(32, scale=0.1),
        draw.normal(32, 8, scale=0.3),
    )

    def f(y, _):
        y = y + 0.05 * (tf.tanh(y @ w1 + b1) @ w2)
        return y, y

    return f, draw.normal(8, 8), tf.zeros([128])
