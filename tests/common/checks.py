"""Comparisons that several folders' tests make, and calls from many threads."""

import threading

import numpy as np
import tensorflow as tf
from patience import HANGS
from tensorflow.python.eager import context


def close(actual, expected, tolerance=1e-9):
    """Compares lists of gradients; None stands for zeros."""
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        if a is None or e is None:
            for grad in (a, e):
                assert grad is None or not np.any(tf.convert_to_tensor(grad))
            continue
        a, e = tf.convert_to_tensor(a), tf.convert_to_tensor(e)
        assert a.shape == e.shape
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


def nodes_that_run(call):
    """The nodes of the graphs, of one device each, that a call of functions runs."""
    context.enable_run_metadata()
    try:
        context.export_run_metadata()  # of what ran before
        call()
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    graphs = [graph for run in metadata.function_graphs for graph in run.partition_graphs]
    return [node for graph in graphs for node in graph.node]


def as_exact(found, reference, exact, tolerance):
    """Compares float32's results with float64's, where sums cancel.

    Errors beyond the tolerance are twice the largest of the reference's at most.
    """
    for f, r, e in zip(found, reference, exact, strict=True):
        assert f.dtype == r.dtype == tf.float32 and e.dtype == tf.float64
        f, r, e = (np.asarray(array, np.float64) for array in (f, r, e))
        assert f.shape == r.shape == e.shape
        most = np.maximum(tolerance * (1 + np.abs(e)), 2 * np.abs(r - e).max(initial=0))
        np.testing.assert_array_less(np.abs(f - e), most)


def loss(outputs):
    """A scalar on which every element of every output has another influence."""
    terms = []
    for i, out in enumerate(tf.nest.flatten(outputs)):
        out = tf.convert_to_tensor(out)
        weights = tf.cast(tf.reshape(tf.range(tf.size(out)) % 7 + i + 1, tf.shape(out)), out.dtype)
        terms.append(tf.reduce_sum(tf.sin(out) * weights))
    return tf.add_n(terms)


def in_threads(call, count=8, times=5):
    """Calls from many threads at once, on this one's device; the results, or an exception."""
    results, barrier = [None] * count, threading.Barrier(count)
    device = context.context().device_name

    def run(i):
        barrier.wait()
        try:
            with tf.device(device):
                results[i] = [call(i) for _ in range(times)]
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS)
        assert not thread.is_alive()
    return results
