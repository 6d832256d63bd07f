"""`tf.vectorized_map`, `jacobian` and `batch_jacobian` of bags, against lane by lane."""

import logging

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import _library

F64 = tf.float64
LANES, ROWS, WIDTH = 3, 7, 2
TABLE = tf.constant(np.random.default_rng(0).standard_normal((ROWS, WIDTH)))
TABLES = tf.constant(np.random.default_rng(1).standard_normal((LANES, ROWS, WIDTH)))
WEIGHTS = tf.constant(np.random.default_rng(2).uniform(0.5, 2, (LANES, 6)))
IDS = tf.constant([[0, 3, 3, 1, 6, 0], [6, 6, 5, 0, 4, 2], [1, 1, 1, 1, 3, 6]])
# Bags of different sizes in each lane, some of them empty; indices before and behind them.
BOUNDS = {
    "offsets": tf.constant([[1, 3, 3, 4], [0, 2, 3, 3], [0, 0, 6, 6]]),
    "ragged": tf.constant([[1, 3, 3, 4], [0, 2, 3, 3], [0, 0, 5, 6]]),
    "segments": tf.constant([[0, 0, 2, 2, 2, 3], [1, 1, 1, 2, 2, 2], [0, 1, 2, 3, 3, 3]]),
    "dense": tf.zeros([LANES, 0], tf.int32),
}


def look_up(kind, combiner="sum", **options):
    """A look-up as a function of a table, ids, bounds and weights, which may be None."""

    def f(table, ids, bounds, weights=None):
        if kind == "offsets":
            return tf_ti.embedding_bag_offsets(
                table, ids, bounds, per_sample_weights=weights, reduction=combiner, **options
            )
        if kind == "segments" and combiner == "sum":
            return tf_ti.embedding_segments_sum(
                table, ids, bounds, 4, per_sample_weights=weights, **options
            )

        def of_kind(values):
            if values is None:
                return None
            if kind == "dense":
                return tf.reshape(values, [2, 3])
            if kind == "ragged":
                return tf.RaggedTensor.from_row_splits(values, bounds, validate=False)
            rows = tf.cast(bounds, tf.int64)
            places = tf.stack([rows, tf.range(6, dtype=tf.int64)], 1)
            return tf.SparseTensor(places, values, [4, 6])

        return tf_ti.embedding_bag(table, of_kind(ids), of_kind(weights), combiner, **options)

    return f


def loss(y):
    factors = tf.cast(tf.reshape(tf.range(tf.size(y)) % 5 + 1, tf.shape(y)), y.dtype)
    return tf.reduce_sum(tf.sin(y) * factors)


def gradient_of(f, at=(0,)):
    """The dense gradients of a loss of what f gives, for some of its arguments."""

    def gradient(*xs):
        sources = [xs[i] for i in at]
        with tf.GradientTape() as tape:
            for source in sources:
                tape.watch(source)
            value = loss(f(*xs))
        return [tf.convert_to_tensor(g) for g in tape.gradient(value, sources)]

    return gradient


def mapped(f, xs):
    """f in a map over those of xs for which there is a lane."""
    return tf.vectorized_map(lambda lane: f(*lane), xs)


def lane_by_lane(f, xs):
    lanes = [f(*lane) for lane in zip(*map(tf.unstack, xs))]
    return tf.nest.map_structure(lambda *parts: tf.stack(parts), *lanes)


def close(actual, expected, tolerance=1e-9):
    actual, expected = tf.nest.flatten(actual), tf.nest.flatten(expected)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


def types_in(f, *xs):
    graph = tf.function(f).get_concrete_function(*xs).graph
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for fn in definition.library.function for n in fn.node_def)]
    return [node.op for node in nodes]


def assert_is_one_look_up(f, *xs):
    assert not {"While", "StatelessWhile"} & set(types_in(f, *xs))


KINDS = [
    (kind, combiner, weighted)
    for kind in BOUNDS
    for combiner in ("sum", "mean", "sqrtn", "max")
    for weighted in (False, True)
    if not (combiner == "max" and weighted)
    if not (kind == "offsets" and (combiner == "sqrtn" or combiner == "mean" and weighted))
]
OPTIONS = [{}, {"default_index": 5}, {"padding_idx": 3}, {"default_index": 2, "padding_idx": 1}]


def arguments(kind, weighted):
    return (IDS, BOUNDS[kind], *([WEIGHTS] if weighted else []))


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
@pytest.mark.parametrize("kind, combiner, weighted", KINDS)
def test_a_map_over_bags_has_the_values_and_gradients_of_its_lanes(
    kind, combiner, weighted, options
):
    f = look_up(kind, combiner, **options)
    xs = arguments(kind, weighted)
    sources = (0, 3) if weighted else (0,)

    def every(*lane):
        return f(TABLE, *lane), gradient_of(f, sources)(TABLE, *lane)

    def of_table(run):
        def values(table, *xs):
            return run(lambda *lane: f(table, *lane), xs)

        return tf.function(gradient_of(values, sources))(TABLE, *xs)

    call = tf.function(lambda *xs: mapped(every, xs))
    close(call(*xs), lane_by_lane(tf.function(every), xs))
    close(of_table(mapped), of_table(lane_by_lane))
    assert_is_one_look_up(call, *xs)
