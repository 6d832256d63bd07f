"""What the programs of test_recurrent_kernels.py have in common, and compute."""

import hashlib

import numpy as np
import tensorflow as tf

import tf_ti

KINDS = ["lstm", "gru", "gru after", "rnn"]
CASES = [(kind, hidden) for kind in KINDS for hidden in (1, 7, 8, 9, 16, 17, 130)]


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
    """What `run` gives, and gradients by all that it takes."""
    with tf.GradientTape() as tape:
        tape.watch(flat)
        results = run(kind, flat[0], flat[1:-3], *flat[-3:], **options)
        loss = tf.add_n([tf.reduce_sum(tf.sin(result)) for result in results])
    return [*results, *tape.gradient(loss, flat)]


def tensors(kind, *shape):
    return [tf.constant(array) for array in tf.nest.flatten(arrays(kind, *shape))]


def digest(results):
    return hashlib.sha256(b"".join(result.numpy().tobytes() for result in results)).hexdigest()


def of_case(kind, hidden):
    return with_gradients(kind, *tensors(kind, 3, 4, 5, hidden, np.float32), lengths=[4, 2, 0])


def check_cases(path):
    """Compares each case with the results that a file has of it."""
    expected = np.load(path)
    for kind, hidden in CASES:
        for i, value in enumerate(of_case(kind, hidden)):
            wanted = expected[f"{kind} {hidden} {i}"]
            tolerance = 2e-6 * max(1, np.abs(wanted).max())
            np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=tolerance)
