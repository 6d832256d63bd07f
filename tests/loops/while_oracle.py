"""tf.while_loop as the oracle of loops of tf_ti."""

import numpy as np
import tensorflow as tf

import tf_ti


def accelerated(*args, **kwargs):
    with tf_ti.accelerate():
        return tf.while_loop(*args, **kwargs)


def checkpointed(*args, **kwargs):
    return tf_ti.while_loop(*args, checkpoint_every=2, **kwargs)


WAYS = {
    "while_loop": tf_ti.while_loop,
    "accelerated": accelerated,
    "checkpointed": checkpointed,
}


def explained(function, *arguments):
    """The loop of a function, as explain tells of it."""
    (loop,) = tf_ti.explain(tf.function(function), *arguments)
    return loop


def derivatives(function, x):
    """The values of a function, the gradient of the floating ones, and the gradient of that."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            values = function(x)
            squares = [tf.reduce_sum(v**2) for v in values if v.dtype.is_floating]
            total = tf.add_n([tf.cast(square, tf.float64) for square in squares])
        slope = tape.gradient(total, x, unconnected_gradients="zero")
        total = tf.reduce_sum(tf.sin(slope))
    return [*values, slope, outer.gradient(total, x, unconnected_gradients="zero")]


def _outcome(function, *arguments):
    try:
        return function(*arguments)
    except tf.errors.OpError as error:
        return type(error)


def assert_same(function, x, *others, is_open=False):
    """Asserts that a loop has the values, derivatives and errors of TensorFlow's.

    Args:
        function: the function, of a loop, x and others.
        x, others: its tensors.
        is_open: true to trace it for unknown extents.

    Returns:
        What explain tells of the loop.
    """
    rank = {True: lambda t: [None] * t.shape.rank, False: lambda t: t.shape}[is_open]
    return _assert_same(function, [(x, *others)], rank)


def assert_same_for_all(function, cases):
    """Likewise, for tuples of tensors, whose extents are unknown: it is traced once for all."""
    return _assert_same(function, cases, lambda t: [None] * t.shape.rank)


def _assert_same(function, cases, shape_of):
    specs = [tf.TensorSpec(shape_of(t), t.dtype) for t in cases[0]]
    expected, *found = (
        [_outcome(traced, *case) for case in cases]
        for traced in (
            tf.function(
                lambda x, *o, loop=loop: derivatives(lambda x: function(loop, x, *o), x),
                input_signature=specs,
            )
            for loop in (tf.while_loop, *WAYS.values())
        )
    )
    for outcomes in found:
        for wanted_of_all, got_of_all in zip(expected, outcomes, strict=True):
            if isinstance(wanted_of_all, type):
                assert got_of_all is wanted_of_all
                continue
            for got, wanted in zip(got_of_all, wanted_of_all, strict=True):
                assert got.dtype == wanted.dtype
                np.testing.assert_allclose(got, wanted, 1e-9, 1e-10)
    return explained(lambda *arguments: function(tf_ti.while_loop, *arguments), *specs)
