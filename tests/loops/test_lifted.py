"""Reads at a counter inside branches become slices, and nobody sees a difference."""

import numpy as np
import pytest
import tensorflow as tf
from test_reads import READERS, types_of_slices
from while_oracle import assert_same

import tf_ti

pytestmark = pytest.mark.quarter

X = tf.constant(np.random.default_rng(0).normal(size=(5, 3)), tf.float64)


def looping(step, end=lambda x: tf.shape(x)[0], first=0, by=1):
    """A loop of h = step(read, k, h)."""

    def function(loop, x, reader=READERS["index"]):
        read, compare = reader(x), tf.less if by > 0 else tf.greater
        h = tf.ensure_shape(tf.reduce_sum(x, 0), [3])

        def body(k, h):
            return k + by, tf.ensure_shape(step(read, k, h), [3])

        return loop(lambda k, h: compare(k, end(x)), body, [first, h])

    return function


def one_branch(read, k, h):
    return tf.cond(tf.reduce_sum(h) > 0.0, lambda: tf.sin(h) * read(k), lambda: h + 1.0)


def all_branches(read, k, h):
    return tf.cond(tf.reduce_sum(h) > 0.0, lambda: h * 0.5 + read(k), lambda: h - read(k))


def branches_in_branches(read, k, h):
    def inner():
        return tf.cond(h[0] > 0.5, lambda: read(k) * h, lambda: h + 0.1 * read(k) ** 2)

    return tf.cond(tf.reduce_sum(h) > 0.0, inner, lambda: tf.sin(h))


def of_a_number(read, k, h):
    branches = [lambda: h * 0.5, lambda: read(k) - h, lambda: tf.sin(read(k))]
    return tf.switch_case(k % 3, branches)


def also_outside(read, k, h):
    return read(k) * tf.cond(tf.reduce_sum(h) > 0.0, lambda: read(k) + h, lambda: h)


def of_several_results(read, k, h):
    a, b = tf.cond(h[1] > 0.0, lambda: (read(k), h), lambda: (h, tf.ones_like(h)))
    return tf.sin(a) * b


def with_a_loop(read, k, h):
    """TensorFlow's own loop in a branch, which stays as it is."""

    def inner():
        return tf.while_loop(lambda j, h: j < 2, lambda j, h: (j + 1, tf.sin(h)), [0, read(k)])[1]

    return tf.cond(tf.reduce_sum(h) > 0.0, inner, lambda: h * 0.5)


def heavy(read, k, h):
    """Branches that are too large for selects."""

    def many():
        rows = tf.tile((tf.sin(h) + read(k))[tf.newaxis], [3000, 1])
        return tf.reduce_mean(rows, 0)

    return tf.cond(tf.reduce_sum(h) > 0.0, many, lambda: h * 0.5 + read(k))


STEPS = [
    *(one_branch, all_branches, branches_in_branches, of_a_number),
    *(also_outside, of_several_results, with_a_loop, heavy),
]


@pytest.mark.parametrize("reader", ["array", "index", "gather"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.pairwise
def test_a_read_in_a_branch_is_a_slice(reader, step, is_open):
    def function(loop, x):
        # TensorFlow's own second derivative of a gather in a branch fails.
        name = "index" if loop.__name__ == tf.while_loop.__name__ else reader
        return looping(step)(loop, x, READERS[name])

    kinds = types_of_slices(assert_same(function, X, is_open=is_open))
    kind = {"array": "TensorListGetItem", "index": "StridedSlice", "gather": "GatherV2"}[reader]
    assert set(kinds) == {kind}


@pytest.mark.parametrize(
    "function",
    [
        looping(all_branches, lambda x: -1, 4, -1),
        looping(lambda read, k, h: all_branches(read, k - 1, h), lambda x: 6, 1),
        looping(all_branches, lambda x: 3),
    ],
    ids=["backwards", "the element before", "fewer elements"],
)
def test_other_counters(function):
    assert types_of_slices(assert_same(function, X))


def guarded(test, of):
    """A read that its branch keeps within x."""

    def step(read, k, h):
        return tf.cond(test(k), lambda: read(of(k)) + h, lambda: tf.sin(h))

    return step


GUARDED = {
    "more than there are": looping(guarded(lambda k: k < 5, lambda k: k), lambda x: 9),
    "before the first": looping(guarded(lambda k: k > 0, lambda k: k - 1)),
    "after the last": looping(guarded(lambda k: k < 4, lambda k: k + 1)),
    "of another index": looping(guarded(lambda k: k < 2, lambda k: 2 * k)),
    "of nothing": looping(guarded(lambda k: k < 0, lambda k: k), lambda x: 3),
}


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("name", GUARDED)
def test_what_a_branch_guards_fails_nowhere(name, is_open):
    x = X if name != "of nothing" else X[:0]
    kinds = types_of_slices(assert_same(GUARDED[name], x, is_open=is_open))
    assert kinds == []


def test_a_condition_of_values_keeps_reads_in_branches():
    def function(loop, x):
        def body(k, h):
            return k + 1, all_branches(lambda k: x[k], k, h)

        return loop(lambda k, h: tf.logical_and(k < 5, h[0] < 2.0), body, [0, x[0]])

    assert types_of_slices(assert_same(function, X)) == []


def test_effects_keep_a_conditional():
    variable = tf.Variable(0.0, dtype=tf.float64)

    def step(read, k, h):
        def add():
            variable.assign_add(read(k)[0])
            return h + read(k)

        return tf.cond(tf.reduce_sum(h) > 0.0, add, lambda: tf.sin(h))

    counts = []
    for loop in (tf.while_loop, tf_ti.while_loop):
        variable.assign(0.0)
        tf.function(lambda loop=loop: looping(step)(loop, X))()
        counts.append(variable.numpy())
    np.testing.assert_allclose(*counts)


def test_a_custom_gradient_in_a_branch():
    @tf.custom_gradient
    def doubled(x):
        return 2.0 * x, lambda dy: 3.0 * dy

    def step(read, k, h):
        return tf.cond(h[0] > 0.0, lambda: doubled(read(k)) + h, lambda: tf.sin(h))

    assert_same(looping(step), X)


def test_elements_that_are_strings():
    words = tf.constant(["a", "b", "c"])

    def call(loop):
        def body(k, s):
            return k + 1, tf.cond(k % 2 == 0, lambda: s + words[k], lambda: words[k] + s)

        return loop(lambda k, s: k < 3, body, [0, ""])

    expected, found = (
        tf.function(lambda loop=loop: call(loop))() for loop in (tf.while_loop, tf_ti.while_loop)
    )
    assert [v.numpy() for v in found] == [v.numpy() for v in expected]
