"""Reads at a counter of a while loop become slices, and nobody sees a difference."""

import numpy as np
import pytest
import tensorflow as tf
from while_oracle import WAYS, assert_same, explained

import tf_ti

X = tf.constant(np.random.default_rng(0).normal(size=(5, 3)), tf.float64)
ROW = tf.TensorSpec([3], tf.float64)


def from_array(x):
    return tf.TensorArray(x.dtype, tf.shape(x)[0]).unstack(x).read


READERS = {
    "array": from_array,
    "index": lambda x: lambda k: x[k],
    "gather": lambda x: lambda k: tf.gather(x, k),
    "whole row": lambda x: lambda k: x[k, :],
}


def types_of_slices(loop):
    return sorted(m.operation.type for m in loop.moved if m.place == "as slices")


# --- random loops --------------------------------------------------------------------------------


def of_seed(seed):
    """A loop that reads at a counter, in a random form."""
    rng = np.random.default_rng(seed)
    by = int(rng.choice([1, 1, -1]))
    name = rng.choice(list(READERS))
    reader = READERS[name]
    first = int(rng.integers(-1, 3)) if by > 0 else int(rng.integers(2, 6))
    steps, offset = int(rng.integers(0, 7)), int(rng.choice([0, 0, 0, 1, -1]))
    is_whole, has_condition, has_limit = (rng.random(3) < [0.6, 0.3, 0.3]).tolist()

    def function(loop, x):
        read, n = reader(x), tf.shape(x)[0]
        start = (n - 1 if by < 0 else 0) if is_whole else first
        end = (n if by > 0 else -1) if is_whole else start + by * steps

        def condition(k, h):
            test = k < end if by > 0 else k > end
            return tf.logical_and(test, tf.reduce_sum(h) < 4.0) if has_condition else test

        def body(k, h):
            return k + by, tf.sin(h) * 0.5 + read(k + offset) * read(k + offset)

        limit = 4 if has_limit else None
        shapes = [tf.TensorShape([]), ROW.shape]
        h = tf.ensure_shape(tf.reduce_sum(x, 0), [3])
        return loop(condition, body, [start, h], shapes, maximum_iterations=limit)

    return function, bool(rng.integers(2))


@pytest.mark.parametrize("seed", range(24))
def test_random_loops(seed):
    print(f"seed {seed}")
    function, is_open = of_seed(seed)
    assert_same(function, X, is_open=is_open)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24, 120))
def test_more_random_loops(seed):
    test_random_loops(seed)


# --- forms ---------------------------------------------------------------------------------------


def simple(read, end=lambda x: tf.shape(x)[0], first=0, by=1):
    """A loop whose body reads something of x at its counter."""

    def function(loop, x):
        element = read(x)
        compare = tf.less if by > 0 else tf.greater
        h = tf.ensure_shape(tf.reduce_sum(x, 0), [3])

        def body(k, h):
            return k + by, tf.sin(h) + tf.ensure_shape(element(k), [3])

        return loop(lambda k, h: compare(k, end(x)), body, [first, h])

    return function


SLICED = {
    "an array": (simple(from_array), "TensorListGetItem"),
    "an index": (simple(READERS["index"]), "StridedSlice"),
    "a gather": (simple(READERS["gather"]), "GatherV2"),
    "the next element": (simple(lambda x: lambda k: x[k + 1], lambda x: 4), "StridedSlice"),
    "the element before": (simple(lambda x: lambda k: x[k - 1], first=1), "StridedSlice"),
    "fewer elements": (simple(READERS["index"], lambda x: 3), "StridedSlice"),
    "more than there are": (simple(READERS["index"], lambda x: 7), "StridedSlice"),
    "more than an array has": (simple(from_array, lambda x: 7), "TensorListGetItem"),
    "no iteration": (simple(from_array, lambda x: 0), "TensorListGetItem"),
}
LEFT = {
    "an index before the first": simple(lambda x: lambda k: x[k - 1], lambda x: 3),
    "another step": simple(READERS["index"], lambda x: 5, by=2),
    "the last elements": simple(READERS["index"], lambda x: -3, -1, -1),
    "twice the counter": simple(lambda x: lambda k: x[k * 2], lambda x: 2),
    "a range": simple(lambda x: lambda k: tf.reduce_sum(x[k : k + 1], 0), lambda x: 4),
    "another axis": simple(lambda x: lambda k: x[:, k][:3], lambda x: 3),
    "a value": simple(lambda x: lambda k: x[tf.cast(x[0, 0] * 0.0, tf.int32)], lambda x: 3),
    "past the end by a gather": simple(READERS["gather"], lambda x: 7),
}


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("form", SLICED)
def test_an_element_is_a_slice(form, is_open):
    function, kind = SLICED[form]
    found = types_of_slices(assert_same(function, X, is_open=is_open))
    assert found == [kind]


@pytest.mark.parametrize("form", LEFT)
def test_another_read_is_left(form):
    assert types_of_slices(assert_same(LEFT[form], X)) == []


@pytest.mark.parametrize("is_open", [False, True])
def test_backwards(is_open):
    def function(loop, x):
        h, n = tf.ensure_shape(tf.reduce_sum(x, 0), [3]), tf.shape(x)[0]
        element = from_array(x)
        return loop(lambda k, h: k >= 0, lambda k, h: (k - 1, tf.sin(h) + element(k)), [n - 1, h])

    assert types_of_slices(assert_same(function, X, is_open=is_open)) == ["TensorListGetItem"]


def test_a_written_array_is_left():
    def function(loop, x):
        array = tf.TensorArray(x.dtype, 5).unstack(x)

        def body(k, h, array):
            array = array.write((k + 1) % 5, h)
            return k + 1, tf.sin(h) + array.read(k), array

        k, h, array = loop(lambda k, *_: k < 5, body, [0, x[0], array])
        return k, h, array.stack()

    assert types_of_slices(assert_same(function, X)) == []


def test_an_array_that_is_passed_through():
    def function(loop, x):
        array = tf.TensorArray(x.dtype, 5).unstack(x)

        def body(k, h, array):
            return k + 1, tf.sin(h) + array.read(k), array

        return loop(lambda k, *_: k < 5, body, [0, x[0], array])[:2]

    assert types_of_slices(assert_same(function, X)) == ["TensorListGetItem"]


def test_a_read_in_a_branch_is_left():
    def function(loop, x):
        def body(k, h):
            return k + 1, tf.cond(k % 2 == 0, lambda: x[k], lambda: tf.sin(h))

        return loop(lambda k, h: k < 9, body, [-4 + 4, x[0]])

    assert types_of_slices(assert_same(function, X)) == []


def test_two_counters():
    def function(loop, x):
        def body(i, h, j):
            return i + 1, tf.sin(h) + x[i] * x[j], j - 1

        return loop(lambda i, h, j: i < 5, body, [0, x[0], 4])

    assert types_of_slices(assert_same(function, X)) == ["StridedSlice", "StridedSlice"]


def test_a_condition_ends_the_reads():
    def function(loop, x):
        def body(k, h):
            return k + 1, h * 0.9 + x[k] ** 2

        return loop(lambda k, h: tf.reduce_sum(h) < 4.0, body, [0, x[0]])

    assert types_of_slices(assert_same(function, X)) == ["StridedSlice"]
    assert_same(function, X * 0.01)  # which reads past the end


@pytest.mark.parametrize("dtype", [tf.int32, tf.string, tf.bool])
def test_elements_of_other_types(dtype):
    xs = tf.cast(X[:, 0] > 0, dtype) if dtype != tf.string else tf.as_string(X[:, 0])

    def call(loop, xs):
        def body(k, last, is_same):
            return k + 1, xs[k], tf.logical_or(is_same, xs[k] == last)

        return loop(lambda k, *_: k < 5, body, [0, xs[0], False])

    expected = tf.function(lambda xs: call(tf.while_loop, xs))(xs)
    for loop in WAYS.values():
        found = tf.function(lambda xs, loop=loop: call(loop, xs))(xs)
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_a_custom_gradient_keeps_its_tensor():
    def function(loop, x):
        def body(k, h):
            element = x[k]

            @tf.custom_gradient
            def twice(h):
                return 2.0 * h, lambda dy: dy * element

            return k + 1, twice(tf.sin(h)) + element

        return loop(lambda k, h: k < 5, body, [0, x[0]])

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(X)
        results = [
            tf.function(lambda x, loop=loop: function(loop, x)[1])(X) for loop in WAYS.values()
        ]
    first, *others = (tape.gradient(y, X) for y in results)
    for other in others:
        np.testing.assert_allclose(first, other, 1e-9)


def test_xla_compiles_slices():
    function = simple(READERS["index"])
    compiled = tf.function(lambda x: function(tf_ti.while_loop, x), jit_compile=True)(X)
    for got, wanted in zip(compiled, function(tf.while_loop, X), strict=True):
        np.testing.assert_allclose(got, wanted, 1e-9)


def test_a_saved_loop_slices(tmp_path):
    module, function = tf.Module(), simple(from_array)
    spec = tf.TensorSpec([None, 3], tf.float64)
    module.run = tf.function(lambda x: function(tf_ti.while_loop, x), input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path))
    for got, wanted in zip(tf.saved_model.load(str(tmp_path)).run(X), function(tf.while_loop, X)):
        np.testing.assert_allclose(got, wanted, 1e-9)


def test_loops_of_autograph_slice():
    def total(xs):
        h = tf.zeros([3], tf.float64)
        for x in xs:
            h = tf.sin(h) + x
        return h

    with tf_ti.accelerate():
        loop = explained(total, tf.TensorSpec([None, 3], tf.float64))
    assert types_of_slices(loop) == ["TensorListGetItem"]
    assert loop.runs_as.startswith("one program")
