"""Large numbers of tables, shards, ids and bags, and their derivatives."""

import numpy as np
import pytest
import tensorflow as tf
from work import count, growing_faster

import tf_ti

WIDTH = 4
IDS = tf.ragged.constant([[0, 2], [], [1, 1, 3]])


def tables_of(size):
    return [tf.Variable(tf.reshape(tf.range(4.0 * WIDTH) + k, [4, WIDTH])) for k in range(size)]


def bags(tables):
    return tf_ti.embedding_bags(tables, [IDS] * len(tables), combiner="mean")


def calls(tables):
    return [tf_ti.embedding_bag(table, IDS, combiner="sqrtn") for table in tables]


def shards(tables):
    return [tf_ti.embedding_bag(tables, IDS)]


def updates(tables):
    return [
        tf_ti.scatter_sub(table, tf.IndexedSlices(tf.ones([2, WIDTH]), [0, 2])) for table in tables
    ]


def gradient(function):
    def differentiated(tables):
        with tf.GradientTape() as tape:
            outputs = function(tables)
        return tape.gradient(outputs, tables)

    differentiated.__name__ = f"gradient of {function.__name__}"
    return differentiated


def second_gradient(function):
    def differentiated(tables):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                outputs = [tf.square(y) for y in function(tables)]
            grads = [tf.convert_to_tensor(g) for g in tape.gradient(outputs, tables)]
        return outer.gradient(grads, tables)

    differentiated.__name__ = f"second gradient of {function.__name__}"
    return differentiated


@pytest.mark.parametrize(
    "function",
    [gradient(bags), second_gradient(bags), gradient(calls), gradient(shards), updates],
    ids=lambda function: function.__name__,
)
def test_a_trace_grows_as_the_number_of_tables(function):
    def trace(size):
        tables = tables_of(size)
        tf.function(lambda: function(tables)).get_concrete_function()

    assert growing_faster(trace, 6, 24) == {}


def test_an_eager_call_does_the_same_for_any_number_of_ids_and_bags():
    (table,) = tables_of(1)

    def work(size):
        ids = tf.RaggedTensor.from_row_lengths(tf.range(3 * size) % 4, tf.repeat([1, 2], size))

        def call():
            with tf.GradientTape() as tape:
                y = tf_ti.embedding_bag(table, ids)
            return tape.gradient(y, table)

        call()
        return sum(count(call).values())

    assert work(10_000) < 1.1 * work(10)


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_bags_of_any_number(size):
    """As many bags, as many ids in one bag, and as many rows."""
    table = np.arange(size * WIDTH, dtype=np.float64).reshape(size, WIDTH)
    ids = np.arange(size)[::-1]
    each = tf_ti.embedding_bag(table, ids[:, np.newaxis])
    np.testing.assert_array_equal(each, table[::-1])
    everything = tf_ti.embedding_bag(table, ids[np.newaxis])
    np.testing.assert_array_equal(everything, table.sum(0, keepdims=True))
