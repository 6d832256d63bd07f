"""Programs as tutorials of TensorFlow and Keras have them, which know nothing of tf_ti."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_RANDOM = np.random.default_rng(3)


def _normal(*shape: int, scale: float = 1.0) -> tf.Tensor:
    return tf.constant(_RANDOM.standard_normal(shape) * scale, tf.float32)


def of_strangers() -> dict[str, Callable[[], Any]]:
    """The programs by name."""
    return {
        "translation with attention": _attention(),
        "greedy decoder": _greedy(),
        "text generation": _generation(),
        "roll-out of a policy": _roll_out(),
        "expected returns": _returns(),
        "CRF": _conditional_random_field(),
        "Viterbi": _viterbi(),
        "Kalman filter": _kalman(),
        "adaptive ODE": _adaptive_ode(),
        "Sinkhorn": _sinkhorn(),
        "dynamic time warping": _time_warping(),
        "Mandelbrot set": _mandelbrot(),
    }


def _gradients(program: Callable[[], tf.Tensor], sources: Any) -> Callable[[], Any]:
    def gradients() -> Any:
        with tf.GradientTape() as tape:
            tape.watch([s for s in sources if isinstance(s, tf.Tensor)])
            loss = program()
        return loss, tape.gradient(loss, sources)

    return gradients


def _attention() -> Callable[[], Any]:
    """A training step of a decoder with Bahdanau's attention: `for` over the targets."""
    cell, embed, dense = keras.layers.GRUCell(32), _normal(50, 16), _normal(32, 50, scale=0.2)
    cell.build((8, 48))
    w1, w2, v = _normal(32, 32, scale=0.2), _normal(32, 32, scale=0.2), _normal(32, 1)
    memory, targets = _normal(8, 12, 32), tf.constant(_RANDOM.integers(0, 50, (20, 8)))

    def loss() -> tf.Tensor:
        total, hidden = tf.constant(0.0), tf.zeros([8, 32])
        for t in tf.range(1, tf.shape(targets)[0]):
            score = tf.tanh(memory @ w1 + tf.expand_dims(hidden @ w2, 1)) @ v
            context = tf.reduce_sum(tf.nn.softmax(score, 1) * memory, 1)
            given = tf.concat([context, tf.gather(embed, targets[t - 1])], -1)
            hidden = cell(given, [hidden])[0]
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets[t], hidden @ dense)
            total += tf.reduce_mean(losses)
        return total / 19.0

    sources = [v.value for v in cell.trainable_variables]
    return _gradients(loss, [embed, dense, w1, w2, *sources])


def _greedy() -> Callable[[], Any]:
    """Tokens one by one, by all tokens so far, until all sentences have ended."""
    embed, out = _normal(40, 16), _normal(16, 40)
    attend = keras.layers.MultiHeadAttention(2, 8)
    attend.build((4, None, 16), (4, None, 16))

    def decode() -> tf.Tensor:
        tokens = tf.TensorArray(tf.int64, size=0, dynamic_size=True, element_shape=[4])
        tokens = tokens.write(0, tf.constant([1, 2, 3, 4], tf.int64))
        has_ended = tf.zeros([4], tf.bool)
        for i in tf.range(24):
            x = tf.gather(embed, tf.transpose(tokens.stack()))
            x = x + attend(x, x, use_causal_mask=True)
            following = tf.argmax(x[:, -1] @ out, -1)
            tokens = tokens.write(i + 1, following)
            has_ended = has_ended | (following == 0)
            if tf.reduce_all(has_ended):
                break
        return tf.transpose(tokens.stack())

    return decode


def _generation() -> Callable[[], Any]:
    """Characters that are drawn from a recurrent model, with a temperature."""
    cell, embed, dense = keras.layers.GRUCell(64), _normal(60, 32), _normal(64, 60)
    cell.build((4, 32))

    def generate() -> tf.Tensor:
        states, following = tf.zeros([4, 64]), tf.zeros([4], tf.int32)
        result = tf.TensorArray(tf.int32, 100)
        for k in tf.range(100):
            states = cell(tf.gather(embed, following), [states])[0]
            seed = tf.stack([7, k])
            drawn = tf.random.stateless_categorical(states @ dense / 0.8, 1, seed, tf.int32)
            following = drawn[:, 0]
            result = result.write(k, following)
        return result.stack()

    return generate


def _roll_out() -> Callable[[], Any]:
    """An actor and a critic play an episode of a cart with a pole, and get their gradients."""
    w, actor, critic = _normal(4, 32, scale=0.3), _normal(32, 2, scale=0.3), _normal(32, 1)

    def move(state: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        x, v, angle, turn = tf.unstack(state)
        force = tf.where(action == 1, 10.0, -10.0)
        push = (force + 0.05 * turn**2 * tf.sin(angle)) / 1.1
        lever = 0.5 * (4.0 / 3.0 - 0.1 * tf.cos(angle) ** 2 / 1.1)
        bend = (9.8 * tf.sin(angle) - tf.cos(angle) * push) / lever
        speed = push - 0.05 * bend * tf.cos(angle) / 1.1
        return tf.stack([x + 0.02 * v, v + 0.02 * speed, angle + 0.02 * turn, turn + 0.02 * bend])

    def loss() -> tf.Tensor:
        state = tf.constant([0.0, 0.0, 0.02, 0.0])
        likelihoods = tf.TensorArray(tf.float32, size=0, dynamic_size=True, element_shape=[])
        values = tf.TensorArray(tf.float32, size=0, dynamic_size=True, element_shape=[])
        for t in tf.range(100):
            hidden = tf.nn.relu(state[None] @ w)
            logits = hidden @ actor
            action = tf.random.stateless_categorical(logits, 1, [5, t])[0, 0]
            values = values.write(t, (hidden @ critic)[0, 0])
            likelihoods = likelihoods.write(t, tf.nn.log_softmax(logits)[0, action])
            state = move(state, action)
            if tf.abs(state[2]) > 0.6:
                break
        value = values.stack()
        return tf.reduce_sum(value**2) - tf.reduce_sum(
            likelihoods.stack() * tf.stop_gradient(value)
        )

    return _gradients(loss, [w, actor, critic])


def _returns() -> Callable[[], Any]:
    """A loop over reversed rewards sums the discounted later rewards."""
    rewards = _normal(200)

    def returns() -> tf.Tensor:
        n = tf.shape(rewards)[0]
        result, discounted = tf.TensorArray(tf.float32, size=n), tf.constant(0.0)
        backwards = rewards[::-1]
        for i in tf.range(n):
            discounted = backwards[i] + 0.99 * discounted
            discounted.set_shape([])
            result = result.write(i, discounted)
        found = result.stack()[::-1]
        return (found - tf.reduce_mean(found)) / (tf.math.reduce_std(found) + 1e-6)

    return returns


def _conditional_random_field() -> Callable[[], Any]:
    scores, moves = _normal(30, 8, 12), _normal(12, 12)

    def loss() -> tf.Tensor:
        def forward(alpha: tf.Tensor, score: tf.Tensor) -> tf.Tensor:
            return tf.reduce_logsumexp(alpha[:, :, None] + moves, 1) + score

        alpha = tf.foldl(forward, scores[1:], scores[0])
        return tf.reduce_mean(tf.reduce_logsumexp(alpha, -1))

    return _gradients(loss, [scores, moves])


def _viterbi() -> Callable[[], Any]:
    scores, moves = _normal(30, 8, 12), _normal(12, 12)

    def decode() -> Any:
        def forward(trellis: Any, score: tf.Tensor) -> Any:
            values = trellis[0][:, :, None] + moves
            return tf.reduce_max(values, 1) + score, tf.argmax(values, 1, tf.int32)

        start = scores[0], tf.zeros([8, 12], tf.int32)
        values, pointers = tf.scan(forward, scores[1:], start)
        last = tf.argmax(values[-1], -1, tf.int32)

        def backward(tag: tf.Tensor, pointer: tf.Tensor) -> tf.Tensor:
            return tf.gather(pointer, tag, axis=1, batch_dims=1)

        return tf.scan(backward, pointers, last, reverse=True), tf.reduce_max(values[-1], -1)

    return decode


def _kalman() -> Callable[[], Any]:
    """The filter computes the likelihood of a moving point's positions, and its gradient."""
    observed = tf.cast(_normal(80, 2), tf.float64)
    move = tf.eye(4, dtype=tf.float64) + tf.cast(tf.linalg.diag([0.1, 0.1], k=2), tf.float64)
    seen, noise = tf.eye(2, 4, dtype=tf.float64), tf.constant(0.1, tf.float64)
    unit, small = tf.eye(4, dtype=tf.float64), tf.eye(2, dtype=tf.float64)

    def likelihood() -> tf.Tensor:
        mean, cov, total = tf.zeros([4, 1], tf.float64), unit, tf.constant(0.0, tf.float64)
        for y in observed:
            mean, cov = move @ mean, move @ cov @ tf.transpose(move) + noise * unit
            error = y[:, None] - seen @ mean
            spread = seen @ cov @ tf.transpose(seen) + 0.5 * small
            factor = tf.linalg.cholesky(spread)
            gain = tf.transpose(tf.linalg.cholesky_solve(factor, seen @ cov))
            mean, cov = mean + gain @ error, cov - gain @ seen @ cov
            white = tf.linalg.triangular_solve(factor, error)
            logs = tf.math.log(tf.linalg.diag_part(factor))
            total -= 0.5 * tf.reduce_sum(white**2) + tf.reduce_sum(logs)
        return total

    return _gradients(likelihood, [noise, move])


def _adaptive_ode() -> Callable[[], Any]:
    """Heun's and Euler's steps for predator and prey, whose difference chooses the next step."""
    rates = tf.constant([1.1, 0.4, 0.1, 0.4])

    def slope(y: tf.Tensor) -> tf.Tensor:
        prey, predators = y[0], y[1]
        meetings = prey * predators
        return tf.stack(
            [rates[0] * prey - rates[1] * meetings, rates[2] * meetings - rates[3] * predators]
        )

    def solve() -> tf.Tensor:
        t, step, y = tf.constant(0.0), tf.constant(0.1), tf.constant([10.0, 5.0])
        while t < 10.0:
            first = slope(y)
            second = slope(y + step * first)
            error = tf.reduce_max(tf.abs(step * (second - first) / 2.0))
            if error < 0.01:
                y, t = y + step * (first + second) / 2.0, t + step
            step = step * tf.clip_by_value(0.9 * tf.sqrt(0.01 / (error + 1e-6)), 0.3, 2.0)
            step = tf.minimum(step, 10.0 - t + 1e-3)
        return tf.reduce_sum(y)

    return _gradients(solve, [rates])


def _sinkhorn() -> Callable[[], Any]:
    costs = tf.abs(_normal(40, 40))

    def distance() -> tf.Tensor:
        f, g, change = tf.zeros([40]), tf.zeros([40]), tf.constant(1.0)
        while change > 1e-4:
            before = f
            f = -0.1 * tf.reduce_logsumexp((g[None] - costs) / 0.1, 1)
            g = -0.1 * tf.reduce_logsumexp((f[:, None] - costs) / 0.1, 0)
            change = tf.reduce_max(tf.abs(f - before))
        plan = tf.exp((f[:, None] + g[None] - costs) / 0.1)
        return tf.reduce_sum(plan * costs)

    return _gradients(distance, [costs])


def _time_warping() -> Callable[[], Any]:
    """The soft kind, one row of the table after the other, and within it one cell."""
    costs = tf.abs(_normal(24, 24))

    def soft_least(x: tf.Tensor, y: tf.Tensor, z: tf.Tensor) -> tf.Tensor:
        return -tf.reduce_logsumexp(tf.stack([-x, -y, -z]))

    def distance() -> tf.Tensor:
        def next_row(above: tf.Tensor, row: tf.Tensor) -> tf.Tensor:
            diagonal = tf.concat([[1e3], above[:-1]], 0)

            def next_cell(left: tf.Tensor, cell: Any) -> tf.Tensor:
                cost, up, across = cell
                return cost + soft_least(left, up, across)

            return tf.scan(next_cell, (row, above, diagonal), tf.constant(1e3))

        return tf.foldl(next_row, costs[1:], tf.math.cumsum(costs[0]))[-1]

    return _gradients(distance, [costs])


def _mandelbrot() -> Callable[[], Any]:
    y, x = np.mgrid[-1.2:1.2:0.05, -2.0:1.0:0.05]
    start = tf.constant(x + 1j * y, tf.complex64)

    def count() -> tf.Tensor:
        z, counts = start, tf.zeros(start.shape, tf.int32)
        for _ in tf.range(50):
            z = z * z + start
            is_inside = tf.abs(z) < 4.0
            z = tf.where(is_inside, z, tf.zeros_like(z) + 2.0)
            counts += tf.cast(is_inside, tf.int32)
        return counts

    return count
