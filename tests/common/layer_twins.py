"""Layers beside the layers of Keras that they are: one set of weights, inputs, masks, results."""

import numpy as np
import tensorflow as tf

BATCH, TIME, WIDTH = 3, 5, 4


def with_same_weights(theirs, ours, rng, width=WIDTH):
    """Both layers, built, with the same random weights."""
    for layer in (theirs, ours):
        layer.build((BATCH, TIME, width))
    weights = [rng.normal(size=w.shape) / 2 for w in theirs.get_weights()]
    theirs.set_weights(weights)
    ours.set_weights(weights)
    return theirs, ours


def inputs(rng, width=WIDTH):
    return tf.constant(rng.normal(size=(BATCH, TIME, width)), tf.float32)


def random_mask(rng):
    mask = rng.random((BATCH, TIME)) < 0.6
    mask[0] = False
    return mask


def assert_same(found, expected, tolerance=2e-6):
    found, expected = tf.nest.flatten(found), tf.nest.flatten(expected)
    assert len(found) == len(expected)
    for f, e in zip(found, expected):
        assert f.shape == e.shape
        assert f.dtype == e.dtype
        np.testing.assert_allclose(
            tf.cast(f, tf.float64), tf.cast(e, tf.float64), rtol=tolerance, atol=tolerance
        )
