"""Bodies of loops that are no LSTM, as functions for `tf_ti.scan`, at sizes of use.

Each is written once: `tf` is TensorFlow, or what loop_bodies_jax.py has in its place. Its batch has
the size of use `n` times. A body of a single row has no batch: `n` rows are mapped over it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow


@dataclasses.dataclass
class Body:
    """f, init and xs of a scan.

    Attributes:
        has_gradient: true if people train through it.
        is_mapped: true if init and xs have several rows, along a first axis.
    """

    f: Callable
    init: object
    xs: object
    has_gradient: bool
    is_mapped: bool = False

    @property
    def count(self) -> int:
        return int(tensorflow.nest.flatten(self.xs)[0].shape[int(self.is_mapped)])

    def shortened(self, count: int) -> "Body":
        def shorten(x):
            return x[:, :count] if self.is_mapped else x[:count]

        xs = tensorflow.nest.map_structure(shorten, self.xs)
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


# Functions of `tf`, and of `n`.
BODIES: dict[str, Callable[..., Body]] = {}


def _body(has_gradient: bool, is_single: bool = False):
    def add(make):
        def made(tf: Any, n: int = 1) -> Body:
            if is_single:
                return _mapped(Body(*make(tf, _Draw(tf)), has_gradient), tf, n)
            return Body(*make(tf, _Draw(tf), n), has_gradient)

        BODIES[make.__name__] = made
        return make

    return add


def _mapped(body: Body, tf: Any, n: int) -> Body:
    """The same for n rows, of which no two are equal."""
    if n == 1:
        return body

    def rows(x):
        return tf.stack([x * (1 + 0.01 * row) for row in range(n)])

    init, xs = (tensorflow.nest.map_structure(rows, x) for x in (body.init, body.xs))
    return dataclasses.replace(body, init=init, xs=xs, is_mapped=True)


@_body(True)
def gae(tf, draw, n):
    """Generalized advantages of reinforcement learning, of 8 environments."""

    def f(advantage, x):
        delta, goes_on = x
        advantage = delta + 0.99 * 0.95 * goes_on * advantage
        return advantage, advantage

    return f, tf.zeros([8 * n]), (draw.normal(1024, 8 * n), draw.uniform(1024, 8 * n))


@_body(True)
def vtrace(tf, draw, n):
    """The targets of IMPALA."""

    def f(target, x):
        delta, discount, importance = x
        target = delta + discount * tf.minimum(1.0, importance) * target
        return target, target

    xs = draw.normal(128, 32 * n), draw.uniform(128, 32 * n), draw.uniform(128, 32 * n)
    return f, tf.zeros([32 * n]), xs


@_body(False, is_single=True)
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
def hmm_forward(tf, draw, n):
    """The forward algorithm of a hidden Markov model of 16 states."""
    transition = tf.nn.log_softmax(draw.normal(16, 16))

    def f(alpha, seen):
        alpha = tf.reduce_logsumexp(alpha[:, :, None] + transition, axis=1) + seen
        return alpha, alpha

    return f, tf.nn.log_softmax(draw.normal(8 * n, 16)), draw.normal(128, 8 * n, 16)


@_body(True)
def crf_forward(tf, draw, n):
    """The partition function of a tagger, of sequences of several lengths."""
    transition = draw.normal(20, 20)
    lengths = draw.integers(10, 50, 32 * n)

    def f(alpha, x):
        t, seen = x
        new = tf.reduce_logsumexp(alpha[:, :, None] + transition[None], axis=1) + seen
        return tf.where((t < lengths)[:, None], new, alpha), None

    xs = tf.range(50, dtype=tf.int64), draw.normal(50, 32 * n, 20)
    return f, draw.normal(32 * n, 20), xs


@_body(False)
def viterbi(tf, draw, n):
    """The best paths of the same tagger."""
    transition = draw.normal(20, 20)

    def f(score, seen):
        scores = score[:, :, None] + transition
        return tf.reduce_max(scores, 1) + seen, tf.argmax(scores, 1, output_type=tf.int32)

    return f, draw.normal(32 * n, 20), draw.normal(50, 32 * n, 20)


@_body(True)
def selective_scan(tf, draw, n):
    """The state space model of Mamba."""
    decay = -tf.exp(draw.normal(64, 16))

    def f(h, x):
        dt, b, c, x = x
        h = tf.exp(dt[:, :, None] * decay) * h + (dt * x)[:, :, None] * b[:, None, :]
        return h, tf.reduce_sum(h * c[:, None, :], -1)

    xs = (
        draw.uniform(128, 4 * n, 64),
        draw.normal(128, 4 * n, 16),
        draw.normal(128, 4 * n, 16),
        draw.normal(128, 4 * n, 64),
    )
    return f, tf.zeros([4 * n, 64, 16]), xs


@_body(True)
def rk4_lorenz(tf, draw, n):
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

    return f, (draw.normal(16 * n), draw.normal(16 * n), draw.normal(16 * n)), tf.zeros([512])


@_body(True)
def leapfrog(tf, draw, n):
    """Steps of Hamiltonian Monte Carlo on a normal distribution."""
    precision = tf.eye(16) + 0.05

    def f(state, _):
        q, p = state
        p = p - 0.05 * tf.matmul(q, precision)
        q = q + 0.1 * p
        p = p - 0.05 * tf.matmul(q, precision)
        return (q, p), None

    return f, (draw.normal(4 * n, 16), draw.normal(4 * n, 16)), tf.zeros([256])


@_body(False)
def biquad(tf, draw, n):
    """An audio filter of two channels."""
    b0, b1, b2, a1, a2 = 0.2, 0.3, 0.2, -0.4, 0.1

    def f(state, x):
        z1, z2 = state
        y = b0 * x + z1
        return (b1 * x - a1 * y + z2, b2 * x - a2 * y), y

    return f, (tf.zeros([2 * n]), tf.zeros([2 * n])), draw.normal(4096, 2 * n)


@_body(True)
def wkv(tf, draw, n):
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

    zeros, xs = tf.zeros([4 * n, 64]), (draw.normal(128, 4 * n, 64), draw.normal(128, 4 * n, 64))
    return f, (zeros, zeros, zeros - 1e30), xs


@_body(True)
def layer_norm_lstm(tf, draw, n):
    """An LSTM with normalized sums."""
    w, r, scale = (
        draw.normal(16, 64, scale=0.3),
        draw.normal(16, 64, scale=0.3),
        0.5 * tf.ones([64]),
    )

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

    return f, (tf.zeros([4 * n, 16]), tf.zeros([4 * n, 16])), draw.normal(128, 4 * n, 16)


@_body(True)
def attention_gru(tf, draw, n):
    """A decoder that looks at 20 positions."""
    memory, keys = draw.normal(8 * n, 20, 32), draw.normal(8 * n, 20, 32)
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

    return f, tf.zeros([8 * n, 32]), draw.normal(64, 8 * n, 32)


@_body(False, is_single=True)
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
def exponential_smoothing(tf, draw, n):
    """Holt and Winters' smoothing of 16 series with a season of 12."""

    def f(state, y):
        level, trend, season = state
        now = season[:, 0]
        new = 0.3 * (y - now) + 0.7 * (level + trend)
        trend = 0.1 * (new - level) + 0.9 * trend
        now = 0.2 * (y - new) + 0.8 * now
        season = tf.concat([season[:, 1:], now[:, None]], 1)
        return (new, trend, season), new + trend + season[:, 0]

    init = draw.normal(16 * n), draw.normal(16 * n), draw.normal(16 * n, 12)
    return f, init, draw.normal(240, 16 * n)


@_body(True)
def neural_ode(tf, draw, n):
    """Euler's steps of a small network."""
    w1, b1, w2 = (
        draw.normal(8, 32, scale=0.3),
        draw.normal(32, scale=0.1),
        draw.normal(32, 8, scale=0.3),
    )

    def f(y, _):
        y = y + 0.05 * (tf.tanh(y @ w1 + b1) @ w2)
        return y, y

    return f, draw.normal(8 * n, 8), tf.zeros([128])


@_body(True)
def heston(tf, draw, n):
    """Paths of a price whose variance moves, as options are priced with."""
    h = 1 / 252

    def f(state, z):
        log_price, variance = state
        first, second = z
        positive = tf.maximum(variance, 1e-6)
        noise = tf.sqrt(positive * h)
        log_price = log_price + (0.02 - 0.5 * positive) * h + noise * first
        second = -0.7 * first + 0.714 * second
        variance = variance + 1.5 * (0.04 - positive) * h + 0.3 * noise * second
        return (log_price, variance), log_price

    init = (tf.zeros([256 * n]), tf.zeros([256 * n]) + 0.04)
    return f, init, (draw.normal(252, 256 * n), draw.normal(252, 256 * n))


@_body(True)
def retention(tf, draw, n):
    """Linear attention with a memory that decays, of 4 heads."""
    decay = tf.sigmoid(draw.normal(4, 1, 1) + 3.0)

    def f(memory, x):
        q, k, v = x
        memory = decay * memory + k[..., :, None] * v[..., None, :]
        return memory, tf.reduce_sum(q[..., :, None] * memory, -2)

    q, k, v = (draw.normal(64, 2 * n, 4, 16, scale=0.3) for _ in range(3))
    return f, tf.zeros([2 * n, 4, 16, 16]), (q, k, v)


@_body(True)
def delta_rule(tf, draw, n):
    """A linear attention that corrects its memory of a key."""

    def f(memory, x):
        k, v, rate = x
        held = tf.einsum("bij,bi->bj", memory, k)
        memory = memory + tf.einsum("bi,bj->bij", k, rate[:, None] * (v - held))
        return memory, held

    xs = draw.normal(64, 4 * n, 16, scale=0.2), draw.normal(64, 4 * n, 16), draw.uniform(64, 4 * n)
    return f, tf.zeros([4 * n, 16, 16]), xs


@_body(True)
def simple_recurrent_unit(tf, draw, n):
    """A unit whose products are before the loop."""
    forget_weight, reset_weight = draw.normal(64, scale=0.3), draw.normal(64, scale=0.3)

    def f(c, x):
        forget, reset, new, skip = x
        keep = tf.sigmoid(forget + forget_weight * c)
        reset = tf.sigmoid(reset + reset_weight * c)
        c = keep * c + (1.0 - keep) * new
        return c, reset * tf.tanh(c) + (1.0 - reset) * skip

    return f, tf.zeros([8 * n, 64]), tuple(draw.normal(128, 8 * n, 64) for _ in range(4))


@_body(True)
def epidemic(tf, draw, n):
    """Susceptible, infected and recovered people of 8 ages in 16 regions."""
    contacts = draw.uniform(8, 8)

    def f(state, strictness):
        s, i, r = state
        infected = s * (i @ contacts) * (0.1 * strictness[:, None])
        recovered = 0.2 * i
        i = i + infected - recovered
        return (s - infected, i, r + recovered), tf.reduce_sum(i, -1)

    i = 0.1 * draw.uniform(16 * n, 8)
    return f, (1.0 - i, i, tf.zeros([16 * n, 8])), draw.uniform(200, 16 * n)


@_body(True)
def cart_pole(tf, draw, n):
    """Poles on carts, which a linear policy balances."""
    gains = tf.constant([[1.0], [1.5], [25.0], [4.0]])

    def f(state, push):
        force = tf.squeeze(state @ gains, -1) + push
        x, v, angle, spin = tf.unstack(state, axis=1)
        sine, cosine = tf.sin(angle), tf.cos(angle)
        thrust = (force + 0.05 * spin * spin * sine) / 1.1
        turn = (9.8 * sine - cosine * thrust) / (0.5 * (4 / 3 - 0.1 * cosine * cosine / 1.1))
        speed = thrust - 0.05 * turn * cosine / 1.1
        h = 0.02
        new = tf.stack([x + h * v, v + h * speed, angle + h * spin, spin + h * turn], 1)
        return new, new

    return f, draw.normal(32 * n, 4, scale=0.05), draw.normal(200, 32 * n, scale=0.5)
