"""The common part of programs that run sequences in processes of their own, and their results."""

import hashlib

import numpy as np
import tensorflow as tf

import tf_ti

KINDS = ["lstm", "gru", "gru after", "rnn"]
# (kind, inputs, hidden); the last one's weights are so many that they are not packed.
SIZES = [(5, 1), (5, 7), (5, 8), (5, 9), (5, 16), (5, 17), (5, 130), (512, 256)]
CASES = [(kind, *sizes) for kind in KINDS for sizes in SIZES]


def arrays(kind, batch, time, inputs, hidden, dtype, seed=0):
    rng = np.random.default_rng(seed)
    gates = {"lstm": 4, "rnn": 1}.get(kind, 3)

    def make(*shape):
        return (rng.standard_normal(shape) / 4).astype(dtype)

    states = [make(batch, 1, hidden) for _ in range(1 + (kind == "lstm"))]
    weights = [make(1, gates * hidden, inputs), make(1, gates * hidden, hidden) / hidden**0.5]
    bias = make(1, (gates + (kind == "gru after")) * hidden)
    return [make(batch, time, inputs), states, weights[0], weights[1].astype(dtype), bias]


def run(kind, x, states, w, r, b, **options):
    if kind == "gru after":
        options["linear_before_reset"] = True
    function = getattr(tf_ti, kind.split()[0] + "_sequence")
    return function(x, *states, options.pop("lengths", None), w, r, b, **options)


def with_gradients(kind, *flat, **options):
    """The results of `run`, and gradients by all its arguments."""
    with tf.GradientTape() as tape:
        tape.watch(flat)
        results = run(kind, flat[0], flat[1:-3], *flat[-3:], **options)
        loss = tf.add_n([tf.reduce_sum(tf.sin(result)) for result in results])
    return [*results, *tape.gradient(loss, flat)]


def tensors(kind, *shape):
    return [tf.constant(array) for array in tf.nest.flatten(arrays(kind, *shape))]


def digest(results):
    return hashlib.sha256(b"".join(result.numpy().tobytes() for result in results)).hexdigest()


def check_cases(path):
    """Compares each case with the results that a file has of it, computed in double precision."""
    expected = np.load(path)
    for dtype, rtol in (np.float32, 2e-5), (np.float64, 1e-12):
        for kind, inputs, hidden in CASES:
            given = tensors(kind, 3, 4, inputs, hidden, np.float64)
            given = [tf.cast(value, dtype) for value in given]
            for i, value in enumerate(with_gradients(kind, *given, lengths=[4, 2, 0])):
                wanted = expected[f"{kind, inputs, hidden} {i}"]
                tolerance = rtol / 10 * max(1, np.abs(wanted).max())
                np.testing.assert_allclose(value, wanted, rtol=rtol, atol=tolerance)
