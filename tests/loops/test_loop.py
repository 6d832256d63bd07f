"""`tf_ti.Loop`: what it computes, when it evaluates what, and where it runs."""

import gc
import itertools
import operator
import threading

import numpy as np
import pytest
import tensorflow as tf
from checks import in_threads
from patience import ONE_OPERATION_AT_A_TIME
from tensorflow.python.eager import context

import tf_ti
from tf_ti import BackEdge, InputPort, Loop, LoopOutput, OutputPort, PortMap, TripLimit

COUNT, WHILE = TripLimit.COUNT, TripLimit.WHILE
LAST, CONCATENATE, REVERSE = LoopOutput.LAST_VALUE, LoopOutput.CONCATENATE, LoopOutput.REVERSE

X = np.array([1, 2, 3], np.float32)
MODES = pytest.mark.parametrize("mode", ["eager", "static", "dimensions", "unknown"])


def in_mode(mode, call, *inputs):
    """Calls eagerly, in a function with static shapes, or in one that knows no dimension or rank.

    What is returned is NumPy.
    """
    inputs = [tf.convert_to_tensor(x) for x in inputs]
    if mode == "eager":
        results = call(*inputs)
    elif mode == "static":
        results = tf.function(call)(*inputs)
    else:
        signature = [
            tf.TensorSpec(None if mode == "unknown" else [None] * x.shape.rank, x.dtype)
            for x in inputs
        ]
        results = tf.function(call, input_signature=signature)(*inputs)
    return tf.nest.map_structure(lambda t: t.numpy(), results)


def tensors(loop):
    return [out.tensor for out in loop.outputs]


def total(x, trips=None):
    """The sum of a vector."""
    x = tf.convert_to_tensor(x)
    with Loop() as loop:
        loop.add_trip_limit(tf.size(x) if trips is None else trips, COUNT)
        s = loop.add_recurrence(tf.zeros([], x.dtype))
        s.next = s + loop.add_iterator(x)
        out = loop.add_loop_output(s, LAST)
    return out.tensor


def recorder():
    """An op that passes a scalar on, and the list of its calls."""
    calls = []

    def record(tag, value):
        def run(v):
            calls.append((tag, v.item()))
            return v

        value = tf.convert_to_tensor(value)
        passed = tf.numpy_function(run, [value], value.dtype)
        passed.set_shape(value.shape)
        return passed

    return record, calls


# Recurrences


@MODES
def test_running_sums(mode):
    def call(x):
        with Loop() as loop:
            loop.add_trip_limit(tf.size(x), COUNT)
            s = loop.add_recurrence(0.0)
            after = s + loop.add_iterator(x)
            s.set_input(1, after)
            loop.add_loop_output(s, LAST)
            loop.add_loop_output(s, CONCATENATE)
            loop.add_loop_output(after, CONCATENATE)
            loop.add_loop_output(after, REVERSE)
        return tensors(loop)

    last, before, after, backwards = in_mode(mode, call, X)
    assert last == 6
    assert before.tolist() == [0, 1, 3]
    assert after.tolist() == [1, 3, 6]
    assert backwards.tolist() == [6, 3, 1]


def test_tensorrts_for_loop():
    """for (int i = j; ...; i += k)"""
    j, k = tf.constant(3), tf.constant(4)
    with Loop() as loop:
        loop.add_trip_limit(5, COUNT)
        i = loop.add_recurrence(j)
        i.set_input(1, i + k)
        values = loop.add_loop_output(i, CONCATENATE)
    assert values.tensor.numpy().tolist() == [3, 7, 11, 15, 19]


@MODES
def test_all_recurrences_advance_together(mode):
    def call(a, b):
        with Loop() as loop:
            loop.add_trip_limit(8, COUNT)
            a, b = loop.add_recurrence(a), loop.add_recurrence(b)
            a.next = b
            b.next = a + b
            loop.add_loop_output(a, CONCATENATE)
            loop.add_loop_output(b, LAST)
        return tensors(loop)

    fibonacci, last = in_mode(mode, call, 0, 1)
    assert fibonacci.tolist() == [0, 1, 1, 2, 3, 5, 8, 13]
    assert last == 34


def test_recurrences_are_rotated():
    with Loop() as loop:
        loop.add_trip_limit(4, COUNT)
        a, b, c = (loop.add_recurrence(text) for text in "abc")
        a.next, b.next, c.next = b, c, a
        for recurrence in (a, b, c):
            loop.add_loop_output(recurrence, LAST)
    assert [t.numpy() for t in tensors(loop)] == [b"b", b"c", b"a"]


def test_next_may_be_the_recurrence_an_iterator_an_invariant_or_a_number():
    outside = tf.constant([5.0, 6.0])
    with Loop() as loop:
        loop.add_trip_limit(2, COUNT)
        same = loop.add_recurrence(1.0)
        same.next = same
        element = loop.add_recurrence(1.0)
        element.next = loop.add_iterator([7.0, 8.0])
        invariant = loop.add_recurrence([0.0, 0.0])
        invariant.next = outside
        number = loop.add_recurrence(np.float16(0.5))
        number.next = 3
        values = loop.add_recurrence(tf.zeros([2], tf.float64))
        values.next = [1, 2]
        array = loop.add_recurrence(tf.zeros([2], tf.int64))
        array.next = np.array([3, 4])
        recurrences = [same, element, invariant, number, values, array]
        lasts = [loop.add_loop_output(r, LAST) for r in recurrences]
        steps = [loop.add_loop_output(r, CONCATENATE) for r in recurrences]
    expected = [[1, 1], [1, 7], [[0, 0], [5, 6]], [0.5, 3], [[0, 0], [1, 2]], [[0, 0], [3, 4]]]
    assert [out.tensor.numpy().tolist() for out in steps] == expected
    assert [out.tensor.numpy().tolist() for out in lasts] == [1, 8, [5, 6], 3, [1, 2], [3, 4]]
    assert lasts[3].dtype == tf.float16
    assert lasts[4].dtype == tf.float64


def test_initial_values_are_whatever_becomes_a_tensor():
    variable = tf.Variable([1.0, 2.0])
    initials = [3, 2.5, True, "text", [1, 2], np.ones([2, 1], np.int8), variable, tf.constant(1j)]
    with Loop() as loop:
        loop.add_trip_limit(1, COUNT)
        for initial in initials:
            recurrence = loop.add_recurrence(initial)
            recurrence.next = recurrence
            loop.add_loop_output(recurrence, LAST)
    for out, initial in zip(loop.outputs, initials):
        expected = tf.convert_to_tensor(initial)
        assert out.dtype == expected.dtype
        np.testing.assert_array_equal(out.tensor, expected)


@pytest.mark.parametrize("shape", [[None], None, tf.TensorShape([None])], ids=str)
@MODES
def test_a_recurrence_of_a_declared_shape_grows(mode, shape):
    def call(x):
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            s = loop.add_recurrence(tf.zeros([0]), shape=tf.TensorShape(shape))
            assert s.shape.as_list() == [None] if shape is not None else s.shape.rank is None
            s.next = tf.concat([s, [loop.add_iterator(x)]], 0)
            size = loop.add_loop_output(tf.size(s), CONCATENATE)
            out = loop.add_loop_output(s, LAST)
        return size.tensor, out.tensor

    sizes, grown = in_mode(mode, call, X)
    assert sizes.tolist() == [0, 1, 2]
    assert grown.tolist() == [1, 2, 3]


def test_a_recurrence_of_an_unknown_rank_gains_dimensions():
    with Loop() as loop:
        loop.add_trip_limit(3, COUNT)
        s = loop.add_recurrence(5.0, shape=tf.TensorShape(None))
        s.next = s[tf.newaxis]
        out = loop.add_loop_output(s, LAST)
    assert out.tensor.numpy().tolist() == [[[5.0]]]


# Iterators and outputs along axes


@MODES
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_an_iterator_takes_any_axis_in_either_order(mode, axis, reverse):
    x = np.arange(24).reshape(2, 3, 4)

    def call(x):
        with Loop() as loop:
            loop.add_trip_limit(tf.shape(x)[axis], COUNT)
            element = loop.add_iterator(x, axis, reverse)
            loop.add_loop_output(element, CONCATENATE)
        return tensors(loop)

    expected = np.moveaxis(x, axis, 0)
    np.testing.assert_array_equal(
        in_mode(mode, call, x)[0], expected[::-1] if reverse else expected
    )


@MODES
@pytest.mark.parametrize("length", [None, 3, 5])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_an_output_takes_any_axis_in_either_order_and_is_padded_after_its_values(
    mode, axis, length
):
    x = np.arange(1, 25).reshape(3, 2, 4)

    def call(x):
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            element = loop.add_iterator(x)
            loop.add_loop_output(element, CONCATENATE, axis, length)
            loop.add_loop_output(element * 2, REVERSE, axis=axis, length=length)
        return tensors(loop)

    padding = [np.zeros([2, 4])] * ((length or 3) - 3)
    forwards, backwards = in_mode(mode, call, x)
    np.testing.assert_array_equal(forwards, np.stack([*x, *padding], axis))
    np.testing.assert_array_equal(backwards, np.stack([*x[::-1] * 2, *padding], axis))


def test_tensorrts_matrices():
    rows = tf.constant([["a", "b", "c"], ["d", "e", "f"]])
    with Loop() as loop:
        loop.add_trip_limit(2, COUNT)
        row = loop.add_iterator(rows)
        loop.add_loop_output(row, CONCATENATE, 0)
        loop.add_loop_output(row, CONCATENATE, 1)
    first, second = tensors(loop)
    np.testing.assert_array_equal(first, rows)
    np.testing.assert_array_equal(second, tf.transpose(rows))


LENGTHS = {
    "int": 4,
    "int32": np.int32(4),
    "int64": np.int64(4),
    "tensor": tf.constant(4),
    "long tensor": tf.constant(4, tf.int64),
    "array": np.array(4),
}


@pytest.mark.parametrize("length", LENGTHS)
def test_a_length_is_any_integer_and_may_be_set_later(length):
    length = LENGTHS[length]
    with Loop() as loop:
        loop.add_trip_limit(3, COUNT)
        element = loop.add_iterator(X)
        loop.add_loop_output(element, CONCATENATE, length=length)
        loop.add_loop_output(element, REVERSE).set_input(1, length)
    assert [t.numpy().tolist() for t in tensors(loop)] == [[1, 2, 3, 0], [3, 2, 1, 0]]


def test_a_length_may_be_a_variable_or_computed_in_the_block_from_invariants():
    variable, two = tf.Variable(4), tf.constant(2)
    with Loop() as loop:
        loop.add_trip_limit(3, COUNT)
        element = loop.add_iterator(X)
        loop.add_loop_output(element, CONCATENATE, length=variable)
        loop.add_loop_output(element, CONCATENATE, length=two * 2)
    assert [t.numpy().tolist() for t in tensors(loop)] == [[1, 2, 3, 0]] * 2


@MODES
def test_a_length_may_be_known_only_when_the_loop_runs(mode):
    def call(x, length):
        with Loop() as loop:
            loop.add_trip_limit(tf.size(x), COUNT)
            out = loop.add_loop_output(loop.add_iterator(x), REVERSE, length=length)
        return out.tensor

    for length in (3, 4, 7):
        expected = [3, 2, 1] + [0] * (length - 3)
        assert in_mode(mode, call, X, length).tolist() == expected


@MODES
def test_invariants_are_repeated(mode):
    outside = tf.constant([7.0, 8.0])

    def call(x):
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            loop.add_loop_output(x, CONCATENATE, axis=1, length=4)
            loop.add_loop_output(outside, REVERSE)
            loop.add_loop_output(5, CONCATENATE)
            loop.add_loop_output(tf.reduce_sum(x), CONCATENATE)
        return tensors(loop)

    a, b, c, d = in_mode(mode, call, X)
    np.testing.assert_array_equal(a, np.stack([X, X, X, 0 * X], 1))
    assert b.tolist() == [[7, 8]] * 3
    assert c.tolist() == [5] * 3
    assert d.tolist() == [6] * 3


def test_one_tensor_has_many_outputs_and_outputs_keep_their_order():
    with Loop() as loop:
        loop.add_trip_limit(3, COUNT)
        s = loop.add_recurrence(1)
        s.next = s * 2
        made = [
            loop.add_loop_output(s, LAST),
            loop.add_loop_output(s, CONCATENATE),
            loop.add_loop_output(s, LAST),
            loop.add_loop_output(s, REVERSE, length=4),
            loop.add_loop_output(s, CONCATENATE),
        ]
        assert list(loop.outputs) == made or all(a is b for a, b in zip(loop.outputs, made))
    values = [8, [1, 2, 4], 8, [4, 2, 1, 0], [1, 2, 4]]
    assert [t.numpy().tolist() for t in tensors(loop)] == values
    assert len(loop.outputs) == 5


def test_a_last_value_may_be_asked_with_the_tensor_of_the_recurrence():
    with Loop() as loop:
        loop.add_trip_limit(3, COUNT)
        s = loop.add_recurrence(1)
        s.next = s * 2
        out = loop.add_loop_output(s.tensor, LAST)
    assert out.tensor.numpy() == 8


def test_iterators_of_one_tensor_and_of_differing_extents_go_side_by_side():
    x = tf.constant([[1, 2, 3], [4, 5, 6]])
    with Loop() as loop:
        loop.add_trip_limit(2, COUNT)
        parts = [
            loop.add_iterator(x),
            loop.add_iterator(x, reverse=True),
            loop.add_iterator(x, 1),
            loop.add_iterator(x, 1, True),
        ]
        for part in parts:
            loop.add_loop_output(part, CONCATENATE)
    assert [t.numpy().tolist() for t in tensors(loop)] == [
        [[1, 2, 3], [4, 5, 6]],
        [[4, 5, 6], [1, 2, 3]],
        [[1, 4], [2, 5]],
        [[3, 6], [2, 5]],
    ]


def test_an_iterator_may_be_over_what_the_block_computes_from_invariants():
    x = tf.constant([1.0, 2.0])
    with Loop() as loop:
        loop.add_trip_limit(2, COUNT)
        out = loop.add_loop_output(loop.add_iterator(tf.cumsum(x) * 10.0), CONCATENATE)
    assert out.tensor.numpy().tolist() == [10, 30]


DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128]
DTYPES += [tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64]
DTYPES += [tf.bool, tf.string]


@pytest.mark.parametrize("mode", ["eager", "unknown"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_every_type_passes_through_every_layer(mode, dtype):
    values = {tf.string: [["a", "b" * 40], ["", "c"]], tf.bool: [[True, False], [True, True]]}
    x = tf.cast([[1, 2], [3, 4]], dtype) if dtype not in values else tf.constant(values[dtype])

    def call(x):
        with Loop() as loop:
            loop.add_trip_limit(2, COUNT)
            element = loop.add_iterator(x)
            s = loop.add_recurrence(x[1])
            s.next = element
            loop.add_loop_output(s, LAST)
            loop.add_loop_output(s, CONCATENATE, length=4)
            loop.add_loop_output(element, REVERSE, axis=1, length=3)
            assert all(t.dtype == dtype for t in (element, s, *loop.outputs))
        return tensors(loop)

    last, steps, backwards = in_mode(mode, call, x)
    x = x.numpy()
    zero = np.array([b"", b""], object) if dtype == tf.string else np.zeros(2, x.dtype)
    np.testing.assert_array_equal(last, x[1])
    np.testing.assert_array_equal(steps, np.stack([x[1], x[0], zero, zero]))
    np.testing.assert_array_equal(backwards, np.stack([x[1], x[0], zero], 1))


@pytest.mark.parametrize("shape", [[0], [0, 3], [2, 0]], ids=str)
def test_values_without_elements_are_stacked(shape):
    with Loop() as loop:
        loop.add_trip_limit(2, COUNT)
        loop.add_loop_output(tf.zeros(shape), CONCATENATE, length=3)
        loop.add_loop_output(loop.add_iterator(tf.zeros([2, *shape])), REVERSE, axis=-1)
    first, second = tensors(loop)
    assert first.shape == [3, *shape]
    assert second.shape == [*shape, 2]


def test_what_the_loop_gets_is_not_changed():
    """Also where an iteration could compute in place."""
    x, initial = tf.ones([3, 1000]), tf.ones([1000])
    with Loop() as loop:
        loop.add_trip_limit(3, COUNT)
        a, b = loop.add_recurrence(initial), loop.add_recurrence(initial)
        element = loop.add_iterator(x)
        a.next = a + 1.0
        b.next = -element
        for recurrence in (a, b):
            loop.add_loop_output(recurrence, LAST)
            loop.add_loop_output(recurrence, CONCATENATE)
        loop.add_loop_output(element + 1.0, REVERSE)
    firsts = [t.numpy()[..., 0].tolist() for t in tensors(loop)]
    assert firsts == [4, [1, 2, 3], -1, [1, -1, -1], [2, 2, 2]]
    assert np.all(x == 1)
    assert np.all(initial == 1)


def test_many_recurrences():
    with Loop() as loop:
        loop.add_trip_limit(10, COUNT)
        recurrences = [loop.add_recurrence(k) for k in range(100)]
        for before, after in zip(recurrences, recurrences[1:] + recurrences[:1]):
            before.next = after
        for recurrence in recurrences:
            loop.add_loop_output(recurrence, LAST)
    assert [t.numpy() for t in tensors(loop)] == [(k + 10) % 100 for k in range(100)]


# Trip limits


COUNTS = {
    "int": 3,
    "int32": np.int32(3),
    "int64": np.int64(3),
    "array": np.array(3),
    "tensor": tf.constant(3),
    "long tensor": tf.constant(3, tf.int64),
    "variable": tf.Variable(3),
    "long variable": tf.Variable(3, dtype=tf.int64),
}


@pytest.mark.parametrize("mode", ["eager", "static"])
@pytest.mark.parametrize("count", COUNTS)
def test_a_count_is_any_integer(mode, count):
    assert in_mode(mode, lambda x: total(x, COUNTS[count]), np.arange(10.0)) == 3


def test_a_count_may_be_computed_in_the_block_from_invariants():
    x = tf.constant(X)
    with Loop() as loop:
        s = loop.add_recurrence(0.0)
        s.next = s + loop.add_iterator(x)
        loop.add_trip_limit(tf.size(x) - 1, COUNT)
        out = loop.add_loop_output(s, LAST)
    assert out.tensor.numpy() == 3


@MODES
def test_a_count_may_be_known_only_when_the_loop_runs(mode):
    for n in range(4):
        assert in_mode(mode, total, X, n) == X[:n].sum()


@pytest.mark.parametrize("place", ["eager", "static", "dynamic count", "unknown extent"])
@pytest.mark.parametrize("count", [0, -1, -5, np.iinfo(np.int32).min])
def test_no_trips_give_the_initial_value_and_empty_or_zero_outputs(place, count):
    def call(x, count=count):
        with Loop() as loop:
            loop.add_trip_limit(count, COUNT)
            s = loop.add_recurrence(x[0])
            element = loop.add_iterator(x)
            s.next = s + element
            loop.add_loop_output(s, LAST)
            loop.add_loop_output(element, CONCATENATE, axis=1)
            loop.add_loop_output(s, REVERSE, length=2)
            loop.add_loop_output(5, CONCATENATE)
        return tensors(loop)

    x, n = tf.ones([2, 3]), tf.constant(count)
    if place == "eager":
        last, empty, zeros, fives = call(x)
    elif place == "static":
        last, empty, zeros, fives = tf.function(call)(x)
    else:
        spec = tf.TensorSpec([2, 3] if place == "dynamic count" else [None, 3])
        signature = [spec, tf.TensorSpec(None, tf.int32)]
        last, empty, zeros, fives = tf.function(call, input_signature=signature)(x, n)
    assert last.numpy().tolist() == [1, 1, 1]
    assert empty.shape == (3, 0)
    np.testing.assert_array_equal(zeros, np.zeros([2, 3]))
    assert fives.numpy().tolist() == []


@pytest.mark.parametrize("limit", ["count", "while", "both"])
def test_no_trips_read_no_iterator(limit):
    """Not even one without elements."""
    with Loop() as loop:
        if limit != "while":
            loop.add_trip_limit(0, COUNT)
        if limit != "count":
            loop.add_trip_limit(tf.constant(False), WHILE)
        element = loop.add_iterator(tf.zeros([0, 2]))
        s = loop.add_recurrence(tf.ones([2]))
        s.next = s + element
        loop.add_loop_output(s, LAST)
        loop.add_loop_output(element, CONCATENATE, length=1)
    last, zeros = tensors(loop)
    assert last.numpy().tolist() == [1, 1]
    assert zeros.numpy().tolist() == [[0, 0]]


def collatz(n):
    steps = []
    while n != 1:
        steps.append(n)
        n = 3 * n + 1 if n % 2 else n // 2
    return steps


@MODES
def test_a_while_loop_runs_until_its_condition_is_false(mode):
    def call(n):
        with Loop() as loop:
            n = loop.add_recurrence(n)
            loop.add_trip_limit(n != 1, WHILE)
            n.next = tf.where(n % 2 == 1, 3 * n + 1, n // 2)
            loop.add_loop_output(n, LAST)
            loop.add_loop_output(n, CONCATENATE)
            loop.add_loop_output(n, REVERSE, length=120)
        return tensors(loop)

    # With no iteration and no rank nobody knows the shape of what there is none of.
    for n in (2, 27) if mode == "unknown" else (1, 2, 27):
        last, steps, backwards = in_mode(mode, call, n)
        expected = collatz(n)
        assert last == 1
        assert steps.tolist() == expected
        assert backwards.tolist() == expected[::-1] + [0] * (120 - len(expected))


def test_the_condition_may_be_a_recurrence_an_iterator_or_an_invariant():
    with Loop() as loop:
        go = loop.add_recurrence(True)
        loop.add_trip_limit(go, WHILE)
        k = loop.add_recurrence(0)
        k.next = k + 1
        go.next = k < 3
        last = loop.add_loop_output(k, LAST)
    assert last.tensor.numpy() == 4  # go is false in iteration 4, as k is 3 in iteration 3

    with Loop() as loop:
        loop.add_trip_limit(loop.add_iterator([True, True, False, True]), WHILE)
        out = loop.add_loop_output(loop.add_iterator([1, 2]), CONCATENATE)
    assert out.tensor.numpy().tolist() == [1, 2]

    for flag, count in ((True, 2), (False, 0), (tf.constant(True), 2), (tf.Variable(False), 0)):
        with Loop() as loop:
            loop.add_trip_limit(flag, WHILE)
            loop.add_trip_limit(2, COUNT)
            out = loop.add_loop_output(1, CONCATENATE)
        assert out.tensor.shape == [count]


@MODES
@pytest.mark.parametrize("order", [(COUNT, WHILE), (WHILE, COUNT)], ids=["count first", "while"])
def test_with_both_limits_the_first_that_is_reached_ends_the_loop(mode, order):
    def call(count, bound):
        with Loop() as loop:
            s = loop.add_recurrence(1)
            for kind in order:
                loop.add_trip_limit(count if kind == COUNT else s < bound, kind)
            s.next = s * 2
            loop.add_loop_output(s, LAST)
            loop.add_loop_output(s, CONCATENATE)
        return tensors(loop)

    for count, bound in ((3, 100), (100, 10), (3, 5), (4, 8), (0, 8), (8, 0), (-1, -1), (0, 0)):
        expected, s = [], 1
        while len(expected) < count and s < bound:
            expected.append(s)
            s *= 2
        last, steps = in_mode(mode, call, count, bound)
        assert last == s
        assert steps.tolist() == expected


def test_a_huge_count_beside_a_condition_that_ends_the_loop_costs_nothing():
    for count in (2**62, 2**63 - 1):
        with Loop() as loop:
            k = loop.add_recurrence(0)
            loop.add_trip_limit(tf.constant(count, tf.int64), COUNT)
            loop.add_trip_limit(k < 10, WHILE)
            k.next = k + 1
            loop.add_loop_output(k, LAST)
            loop.add_loop_output(k, CONCATENATE)
        last, steps = tensors(loop)
        assert last.numpy() == 10
        assert steps.shape == [10]


@pytest.mark.parametrize("limit", ["count", "while", "both"])
def test_a_hundred_thousand_iterations(limit):
    n = 100_000
    with Loop() as loop:
        k = loop.add_recurrence(0)
        if limit != "while":
            loop.add_trip_limit(n, COUNT)
        if limit != "count":
            loop.add_trip_limit(k < n, WHILE)
        k.next = k + 1
        loop.add_loop_output(k, LAST)
        loop.add_loop_output(k, CONCATENATE)
        loop.add_loop_output(loop.add_iterator(tf.range(n)), REVERSE)
    last, steps, backwards = tensors(loop)
    assert last.numpy() == n
    np.testing.assert_array_equal(steps, np.arange(n))
    np.testing.assert_array_equal(backwards, np.arange(n)[::-1])


# Laziness


@MODES
@pytest.mark.parametrize("limit", ["count", "while"])
def test_the_body_is_not_evaluated_for_the_iteration_that_does_not_run(mode, limit):
    """tf.gather would fail there, and the iterator has no such element."""

    def call(x):
        n = tf.size(x)
        with Loop() as loop:
            k = loop.add_recurrence(0)
            if limit == "count":
                loop.add_trip_limit(n, COUNT)
            else:
                loop.add_trip_limit(k < n, WHILE)
            k.next = k + 1
            s = loop.add_recurrence(0.0)
            value = tf.gather(x, k) * loop.add_iterator(x)
            with tf.control_dependencies([tf.debugging.assert_less(k, n)]):
                s.next = s + value
            loop.add_loop_output(s, LAST)
            loop.add_loop_output(value, CONCATENATE)
        return tensors(loop)

    last, values = in_mode(mode, call, X)
    assert last == 14
    assert values.tolist() == [1, 4, 9]


def test_the_condition_reads_no_iterators_but_its_own():
    with Loop() as loop:
        go = loop.add_iterator([True, True, False])
        loop.add_trip_limit(go, WHILE)
        element = loop.add_iterator(tf.constant([1, 2]))
        last = loop.add_recurrence(0)
        last.next = element
        loop.add_loop_output(last, LAST)
        loop.add_loop_output(element, REVERSE)
    assert [t.numpy().tolist() for t in tensors(loop)] == [2, [2, 1]]


def test_at_the_count_the_condition_is_not_evaluated():
    with Loop() as loop:
        loop.add_trip_limit(3, COUNT)
        loop.add_trip_limit(loop.add_iterator([True, True, True]), WHILE)
        out = loop.add_loop_output(loop.add_iterator(X), CONCATENATE)
    assert out.tensor.numpy().tolist() == [1, 2, 3]


@MODES
def test_an_iterator_that_nothing_needs_is_not_read(mode):
    def call(x, short):
        with Loop() as loop:
            loop.add_trip_limit(tf.size(x), COUNT)
            loop.add_iterator(short)
            _ = loop.add_iterator(short) * 2.0
            unneeded = loop.add_recurrence(0.0)
            unneeded.next = unneeded + loop.add_iterator(short)
            s = loop.add_recurrence(0.0)
            s.next = s + loop.add_iterator(x)
            out = loop.add_loop_output(s, LAST)
        return out.tensor

    assert in_mode(mode, call, X, X[:1]) == 6


def test_an_iterator_longer_than_the_loop_is_read_as_far_as_the_loop_goes():
    with Loop() as loop:
        loop.add_trip_limit(2, COUNT)
        loop.add_loop_output(loop.add_iterator(tf.range(5)), CONCATENATE)
        loop.add_loop_output(loop.add_iterator(tf.range(5), reverse=True), CONCATENATE)
    assert [t.numpy().tolist() for t in tensors(loop)] == [[0, 1], [4, 3]]


def test_a_long_iterator_beside_a_condition_is_read_as_far_as_the_loop_goes():
    with Loop() as loop:
        element = loop.add_iterator(tf.range(10), reverse=True)
        loop.add_trip_limit(element > 6, WHILE)
        out = loop.add_loop_output(element, CONCATENATE)
    assert out.tensor.numpy().tolist() == [9, 8, 7]


# Effects


@MODES
def test_effects_happen_once_an_iteration_in_the_order_of_the_program(mode):
    record, calls = recorder()

    def call(n):
        with Loop() as loop:
            loop.add_trip_limit(n, COUNT)
            k = loop.add_recurrence(0)
            record("first", k)
            k.next = k + 1
            record("second", k * 10)
            record("third", k)
        assert loop.outputs == []
        return n

    in_mode(mode, call, 3)
    tags = ("first", 1), ("second", 10), ("third", 1)
    assert calls == [(tag, factor * k) for k in range(3) for tag, factor in tags]


@MODES
def test_effects_of_the_condition_happen_once_an_evaluation(mode):
    record, calls = recorder()

    def call(n):
        with Loop() as loop:
            k = loop.add_recurrence(0)
            loop.add_trip_limit(record("condition", k) < n, WHILE)
            record("body", k)
            k.next = k + 1
            out = loop.add_loop_output(k, LAST)
        return out.tensor

    assert in_mode(mode, call, 3) == 3
    expected = [(tag, k) for k in range(3) for tag in ("condition", "body")]
    assert calls == [*expected, ("condition", 3)]


@MODES
def test_with_both_limits_the_condition_has_no_effect_at_the_count(mode):
    record, calls = recorder()

    def call(n):
        with Loop() as loop:
            k = loop.add_recurrence(0)
            loop.add_trip_limit(record("condition", k) < 100, WHILE)
            loop.add_trip_limit(n, COUNT)
            record("body", k)
            k.next = k + 1
            out = loop.add_loop_output(k, LAST)
        return out.tensor

    assert in_mode(mode, call, 2) == 2
    assert calls == [("condition", 0), ("body", 0), ("condition", 1), ("body", 1)]
    calls.clear()
    assert in_mode(mode, call, 0) == 0
    assert calls == []


@MODES
def test_what_condition_and_body_share_is_computed_once(mode):
    record, calls = recorder()

    def call(n):
        with Loop() as loop:
            k = loop.add_recurrence(0)
            shared = record("shared", k)
            loop.add_trip_limit(shared < n, WHILE)
            k.next = shared + 1
            record("body", shared)
            loop.add_loop_output(k, LAST)
            loop.add_loop_output(shared * 10, CONCATENATE)
        return tensors(loop)

    last, values = in_mode(mode, call, 2)
    assert last == 2
    assert values.tolist() == [0, 10]
    assert calls == [("shared", 0), ("body", 0), ("shared", 1), ("body", 1), ("shared", 2)]


def test_effects_before_a_condition_that_does_not_depend_on_them_are_the_bodys():
    record, calls = recorder()
    with Loop() as loop:
        k = loop.add_recurrence(0)
        record("body", k)
        k.next = k + 1
        loop.add_trip_limit(k < 2, WHILE)
    assert calls == [("body", 0), ("body", 1)]


def test_a_condition_with_effects_is_evaluated_before_all_else_of_an_iteration():
    """Wherever it stands in the block."""
    record, calls = recorder()
    with Loop() as loop:
        k = loop.add_recurrence(0)
        record("body", k)
        loop.add_trip_limit(record("condition", k) < 2, WHILE)
        record("end", k)
        k.next = k + 1
    expected = [(tag, k) for k in range(2) for tag in ("condition", "body", "end")]
    assert calls == [*expected, ("condition", 2)]


def test_a_condition_reads_a_variable_before_the_body_updates_it():
    v = tf.Variable(0)
    with Loop() as loop:
        v.assign_add(1)
        loop.add_trip_limit(v < 4, WHILE)
        out = loop.add_loop_output(v, CONCATENATE)
    assert out.tensor.shape == [4]
    assert v.numpy() == 4


def test_a_condition_in_a_function_of_its_own():
    record, calls = recorder()

    @tf.function
    def go_on(k):
        return record("condition", k) < 2

    with Loop() as loop:
        k = loop.add_recurrence(0)
        loop.add_trip_limit(go_on(k), WHILE)
        k.next = record("body", k) + 1
        out = loop.add_loop_output(k, LAST)
    assert out.tensor.numpy() == 2
    assert calls == [("condition", 0), ("body", 0), ("condition", 1), ("body", 1), ("condition", 2)]


def test_a_condition_waits_for_what_the_user_lets_it_wait_for():
    v = tf.Variable(0)
    with Loop() as loop:
        k = loop.add_recurrence(0)
        k.next = k + 1
        with tf.control_dependencies([v.assign(10 * k)]):
            bound = v.read_value()
        loop.add_trip_limit(bound < 20, WHILE)
        out = loop.add_loop_output(bound, CONCATENATE)
    assert out.tensor.numpy().tolist() == [0, 10]
    assert v.numpy() == 20


@MODES
def test_the_condition_itself_and_what_it_is_computed_from_are_outputs_too(mode):
    def call(bound):
        with Loop() as loop:
            s = loop.add_recurrence(1)
            doubled = s * 2
            go = doubled < bound
            loop.add_trip_limit(go, WHILE)
            s.next = doubled
            kept = loop.add_recurrence(False)
            kept.next = go
            loop.add_loop_output(go, CONCATENATE, length=4)
            loop.add_loop_output(doubled, REVERSE, length=4)
            loop.add_loop_output(kept, LAST)
        return tensors(loop)

    go, doubled, kept = in_mode(mode, call, 16)
    assert go.tolist() == [True, True, True, False]
    assert doubled.tolist() == [8, 4, 2, 0]
    assert kept


def test_in_no_iteration_nothing_has_an_effect():
    record, calls = recorder()
    with Loop() as loop:
        loop.add_trip_limit(0, COUNT)
        record("body", 1)
    with Loop() as loop:
        loop.add_trip_limit(record("condition", False), WHILE)
        record("body", 1)
    assert calls == [("condition", False)]


@MODES
def test_a_variable_is_updated_in_every_iteration(mode):
    v = tf.Variable(0.0)

    def call(x):
        with Loop() as loop:
            loop.add_trip_limit(tf.size(x), COUNT)
            before = v.read_value()
            v.assign_add(loop.add_iterator(x))
            loop.add_loop_output(before, CONCATENATE)
            loop.add_loop_output(v, CONCATENATE)
        return *tensors(loop), v.read_value()

    before, after, last = in_mode(mode, call, X)
    assert before.tolist() == [0, 1, 3]
    assert after.tolist() == [1, 3, 6]
    assert last == v.numpy() == 6


@MODES
def test_a_condition_sees_the_variable_that_the_body_updates(mode):
    v = tf.Variable(0)

    def call(bound):
        with Loop() as loop:
            loop.add_trip_limit(v < bound, WHILE)
            v.assign_add(2)
            out = loop.add_loop_output(v, CONCATENATE)
        return out.tensor

    assert in_mode(mode, call, 5).tolist() == [2, 4, 6]
    assert v.numpy() == 6


def test_a_condition_that_updates_a_variable_does_so_once_an_evaluation():
    v = tf.Variable(0)
    with Loop() as loop:
        loop.add_trip_limit(v.assign_add(1) < 4, WHILE)
        out = loop.add_loop_output(v, CONCATENATE)
    assert out.tensor.numpy().tolist() == [1, 2, 3]
    assert v.numpy() == 4


def test_a_variable_that_is_only_read_is_read_when_the_loop_runs():
    v = tf.Variable(2.0)

    @tf.function
    def call():
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            s = loop.add_recurrence(v)
            s.next = s * v
            out = loop.add_loop_output(s, LAST)
        return out.tensor

    assert call().numpy() == 16
    v.assign(3.0)
    assert call().numpy() == 81


def test_effects_before_in_and_after_loops_happen_in_order():
    v = tf.Variable("")

    def add(text):
        v.assign(tf.strings.join([v, text]))

    def loop(name):
        with Loop() as loop:
            loop.add_trip_limit(2, COUNT)
            k = loop.add_recurrence(0)
            k.next = k + 1
            add(name)
            add(tf.strings.as_string(k))

    def call():
        add("(")
        loop("a")
        add("-")
        loop("b")
        add(")")

    call()
    tf.function(call)()
    assert v.numpy() == b"(a0a1-b0b1)" * 2


def test_loops_of_a_function_read_variables_in_the_order_of_the_program():
    v = tf.Variable(0.0)

    @tf.function
    def call():
        results = []
        for _ in range(3):
            v.assign_add(1.0)
            with Loop() as loop:
                loop.add_trip_limit(2, COUNT)
                s = loop.add_recurrence(0.0)
                s.next = s + v
                results.append(loop.add_loop_output(s, LAST))
        v.assign(0.0)
        return [out.tensor for out in results]

    for _ in range(2):
        assert [t.numpy() for t in call()] == [2, 4, 6]


@pytest.mark.parametrize("place", ["eager", "function"])
def test_a_dataset_is_drawn_from_once_an_iteration(place):
    iterator = iter(tf.data.Dataset.range(10))

    def call():
        with Loop() as loop:
            loop.add_trip_limit(4, COUNT)
            out = loop.add_loop_output(next(iterator), CONCATENATE)
        return out.tensor

    drawn = (call if place == "eager" else tf.function(call))()
    assert drawn.numpy().tolist() == [0, 1, 2, 3]
    assert next(iterator).numpy() == 4


def test_a_table_is_looked_up():
    keys = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2])
    table = tf.lookup.StaticHashTable(keys, -1)
    with Loop() as loop:
        loop.add_trip_limit(3, COUNT)
        found = table.lookup(loop.add_iterator(["a", "b", "c"]))
        out = loop.add_loop_output(found, CONCATENATE)
    assert out.tensor.numpy().tolist() == [1, 2, -1]


def test_py_functions_are_called_once_an_iteration():
    calls = []

    def note(x):
        calls.append(float(x))
        return x * 2

    @tf.function
    def call(x):
        with Loop() as loop:
            loop.add_trip_limit(tf.size(x), COUNT)
            doubled = tf.py_function(note, [loop.add_iterator(x)], tf.float32)
            doubled.set_shape([])
            out = loop.add_loop_output(doubled, CONCATENATE)
        return out.tensor

    for _ in range(2):
        assert call(X).numpy().tolist() == [2, 4, 6]
        gc.collect()
    assert calls == [1, 2, 3] * 2


@pytest.mark.parametrize("place", ["eager", "function"])
def test_tf_print_prints_in_every_iteration(place, tmp_path):
    path = tmp_path / "printed"

    def call(x):
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            element = loop.add_iterator(x)
            tf.print("element", element.tensor, output_stream=f"file://{path}")
            tf.print(element, output_stream=f"file://{path}")

    (call if place == "eager" else tf.function(call))(tf.constant([5, 6, 7]))
    lines = [line for k in (5, 6, 7) for line in (f"element {k}", f"{k}")]
    assert path.read_text().split("\n") == [*lines, ""]


@MODES
@pytest.mark.parametrize("limit", [COUNT, WHILE])
def test_random_numbers_are_drawn_anew_in_every_iteration_and_run(mode, limit):
    generator = tf.random.Generator.from_seed(1)

    def call(n):
        with Loop() as loop:
            k = loop.add_recurrence(0)
            loop.add_trip_limit(n if limit == COUNT else k < n, limit)
            k.next = k + 1
            drawn = (
                tf.random.uniform([2], dtype=tf.float64),
                tf.random.normal([], dtype=tf.float64),
                generator.uniform([], dtype=tf.float64),
            )
            sums = loop.add_recurrence(tf.zeros([2], tf.float64))
            sums.next = sums + drawn[0]
            for numbers in drawn:
                loop.add_loop_output(numbers, CONCATENATE)
            loop.add_loop_output(sums, LAST)
        return tensors(loop)

    first, second = in_mode(mode, call, 8), in_mode(mode, call, 8)
    for index in range(3):
        assert len(np.unique([first[index], second[index]])) == first[index].size * 2
    np.testing.assert_allclose(first[3], first[0].sum(0))


def test_random_numbers_are_drawn_anew_in_every_call_of_a_function():
    @tf.function
    def call():
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            out = loop.add_loop_output(tf.random.uniform([]), CONCATENATE)
        return out.tensor

    assert len(np.unique([call() for _ in range(4)])) == 12


def test_a_random_number_that_the_condition_and_the_body_use_is_the_same():
    with Loop() as loop:
        drawn = tf.random.uniform([])
        loop.add_trip_limit(drawn < 0.9, WHILE)
        out = loop.add_loop_output(drawn, CONCATENATE, length=1000)
    assert out.tensor.numpy().max() < 0.9


def test_asynchronous_operations_in_body_and_condition():
    queue, begun = (tf.queue.FIFOQueue(10, tf.float32, [[]]) for _ in range(2))

    @tf.function
    def counted(n):
        with Loop() as loop:
            loop.add_trip_limit(n, COUNT)
            s = loop.add_recurrence(0.0)
            begun.enqueue(s)
            s.next = s * 10 + queue.dequeue()
            out = loop.add_loop_output(s, LAST)
        return out.tensor

    @tf.function
    def until_zero():
        with Loop() as loop:
            taken = queue.dequeue()
            loop.add_trip_limit(taken > 0, WHILE)
            out = loop.add_loop_output(taken, CONCATENATE)
        return out.tensor

    queue.enqueue_many([[1, 2, 3, 5, 6, 7, 0, 9]])
    assert counted(3).numpy() == 123
    assert until_zero().numpy().tolist() == [5, 6, 7]
    assert queue.dequeue().numpy() == 9
    # and one that has to wait
    begun.dequeue_many(3)

    def let_go():
        begun.dequeue()
        queue.enqueue_many([[4, 5]])

    helper = threading.Thread(target=let_go)
    helper.start()
    assert counted(2).numpy() == 45
    helper.join()


# Operations that are not needed


def loop_operations(call, *inputs):
    graph = tf.function(call).get_concrete_function(*inputs).graph
    return [op.type for op in graph.get_operations() if op.type.startswith("TfTi>")]


def test_a_loop_without_outputs_and_effects_leaves_nothing():
    def call(x):
        with Loop() as loop:
            loop.add_trip_limit(tf.size(x), COUNT)
            s = loop.add_recurrence(0.0)
            s.next = s + loop.add_iterator(x)
        assert loop.outputs == []
        return x

    assert loop_operations(call, X) == []
    assert in_mode("eager", call, X).tolist() == [1, 2, 3]


def test_a_loop_without_outputs_that_has_effects_runs():
    v = tf.Variable(0.0)

    def call(x):
        with Loop() as loop:
            loop.add_trip_limit(tf.size(x), COUNT)
            v.assign_add(loop.add_iterator(x))
        return x

    assert loop_operations(call, X) == ["TfTi>TensorIterator"]
    for mode in ("eager", "static"):
        in_mode(mode, call, X)
    assert v.numpy() == 12


def test_a_loop_that_is_pure_is_known_to_be():
    assert loop_operations(total, X) == ["TfTi>StatelessTensorIterator"]


def test_outputs_of_which_some_are_used():
    @tf.function
    def call(x):
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            s, unused = loop.add_recurrence(0.0), loop.add_recurrence("")
            s.next = s + loop.add_iterator(x)
            unused.next = tf.strings.join([unused, "a"])
            loop.add_loop_output(s, CONCATENATE)
            used = loop.add_loop_output(s, LAST)
            loop.add_loop_output(unused, REVERSE)
        return used.tensor

    assert call(X).numpy() == 6


def test_a_loop_whose_outputs_nobody_uses_and_that_would_fail_does_not_run():
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def call(x):
        total(x, 100)
        return x

    assert call(X).numpy().tolist() == [1, 2, 3]


# Used like tensors


BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv]
BINARY += [operator.mod, operator.pow, operator.eq, operator.ne]
BINARY += [operator.lt, operator.le, operator.gt, operator.ge]


@pytest.mark.parametrize("apply", BINARY, ids=lambda f: f.__name__)
def test_operators_on_both_sides(apply):
    one, vector = np.float32(2), np.array([2, 3], np.float32)
    others = [2.0, 2, one, vector, tf.constant(one), tf.constant(vector), tf.Variable(vector)]
    with Loop() as loop:
        loop.add_trip_limit(2, COUNT)
        s = loop.add_recurrence([3.0, 5.0])
        s.next = s + 1
        element = loop.add_iterator([[4.0, 5.0], [6.0, 4.0]])
        results = [apply(s, element), apply(element, s), apply(s, s), apply(s, element + 1)]
        for other in others:
            results += [apply(s, other), apply(other, s)]
        for result in results:
            assert isinstance(result, tf.Tensor), result
            loop.add_loop_output(result, CONCATENATE)
    s = np.array([[3, 5], [4, 6]], np.float32)
    element = np.array([[4, 5], [6, 4]], np.float32)
    expected = [apply(s, element), apply(element, s), apply(s, s), apply(s, element + 1)]
    for other in others:
        other = tf.cast(tf.convert_to_tensor(other), tf.float32).numpy()
        expected += [apply(s, other), apply(other, s)]
    for out, value in zip(loop.outputs, expected):
        np.testing.assert_allclose(out.tensor, value, rtol=1e-6)


def test_operators_of_integers_booleans_and_matrices():
    m = np.array([[1, 2], [3, 4]], np.int32)
    flags, others = np.array([True, False]), np.array([True, True])
    with Loop() as loop:
        loop.add_trip_limit(1, COUNT)
        k = loop.add_recurrence(6)
        f = loop.add_recurrence(flags)
        a = loop.add_iterator(m[np.newaxis])
        f.next, k.next = f, k
        results = [k & 3, 3 & k, k | 1, 1 | k, k ^ 2, 2 ^ k, ~k, -k, abs(-k)]
        results += [f & others, others & f, f | others, others | f, f ^ others, others ^ f, ~f]
        results += [a @ m, m @ a, a @ a, tf.constant(m) @ a]
        for result in results:
            assert isinstance(result, tf.Tensor)
            loop.add_loop_output(result, CONCATENATE)
    k = 6
    expected = [k & 3, k & 3, k | 1, k | 1, k ^ 2, k ^ 2, ~k, -k, k]
    expected += [flags, flags, others, others, ~flags, ~flags, ~flags]
    expected += [m @ m] * 4
    for out, value in zip(loop.outputs, expected):
        np.testing.assert_array_equal(out.tensor[0], value)


def test_indexing():
    m = np.arange(12, dtype=np.int32).reshape(3, 4)
    table = tf.constant([10, 20, 30, 40])
    with Loop() as loop:
        loop.add_trip_limit(2, COUNT)
        k = loop.add_recurrence(1)
        k.next = k + 1
        s = loop.add_recurrence(m)
        s.next = s
        results = [s[0], s[:, 1], s[..., tf.newaxis], s[1:, ::-1], s[k], s[k, k], table[k]]
        results += [table[:2][k - 1], s[tf.constant(2)]]
        for result in results:
            loop.add_loop_output(result, CONCATENATE)
        sliced = loop.add_recurrence(0)
        sliced.next = sliced + tf.reduce_sum(table[k:]) + tf.reduce_sum(s[:k])
        last = loop.add_loop_output(sliced, LAST)
    for k in (1, 2):
        expected = [m[0], m[:, 1], m[..., np.newaxis], m[1:, ::-1], m[k], m[k, k], 10 * (k + 1)]
        expected += [10 * k, m[2]]
        for out, value in zip(loop.outputs, expected):
            np.testing.assert_array_equal(out.tensor[k - 1], value)
    assert last.tensor.numpy() == 90 + 70 + m[:1].sum() + m[:2].sum()


def test_tensorflow_functions_take_them():
    with Loop() as loop:
        loop.add_trip_limit(1, COUNT)
        s = loop.add_recurrence([1.0, 4.0])
        s.next = s
        e = loop.add_iterator([[9.0, 2.0]])
        k = loop.add_recurrence(2)
        k.next = k
        results = {
            "sqrt": (tf.sqrt(s), [1, 2]),
            "stack": (tf.stack([s, e]), [[1, 4], [9, 2]]),
            "stack of scalars": (tf.stack([k, 1, k]), [2, 1, 2]),
            "unstack": (tf.unstack(s)[1], 4),
            "split": (tf.split(s, 2)[1], [4]),
            "concat": (tf.concat([s, e, [0.0]], 0), [1, 4, 9, 2, 0]),
            "add_n": (tf.add_n([s, e]), [10, 6]),
            "where": (tf.where(s > e, s, e), [9, 4]),
            "maximum": (tf.maximum(s, e), [9, 4]),
            "cast": (tf.cast(s, tf.int32), [1, 4]),
            "shape": (tf.shape(s), [2]),
            "reduce_sum": (tf.reduce_sum([s, e]), 16),
            "einsum": (tf.einsum("i,i->", s, e), 17),
            "tensordot": (tf.tensordot(s, e, 1), 17),
            "gather": (tf.gather([5, 6, 7], k), 7),
            "one_hot": (tf.one_hot(k, 3), [0, 0, 1]),
            "reshape": (tf.reshape(s, [k, 1]), [[1], [4]]),
            "fill": (tf.fill([1, k], 3), [[3, 3]]),
            "zeros": (tf.zeros([k]), [0, 0]),
            "zeros_like": (tf.zeros_like(s), [0, 0]),
            "range": (tf.range(k), [0, 1]),
            "convert": (tf.convert_to_tensor(s), [1, 4]),
            "list": (tf.convert_to_tensor([k, k]), [2, 2]),
            "identity": (tf.identity(s), [1, 4]),
            "cond": (tf.cond(k > 1, lambda: s, lambda: e), [1, 4]),
            "case": (tf.case([(k < 2, lambda: s)], lambda: s + e), [10, 6]),
            "matrix": (tf.stack([[s, e], [e, s]]), [[[1, 4], [9, 2]], [[9, 2], [1, 4]]]),
            "nested lists": (tf.concat([s, [s[0]]], 0), [1, 4, 1]),
            "while": (tf.while_loop(lambda v: v < 20, lambda v: [v * k], [k])[0], 32),
            "map_fn": (tf.map_fn(lambda v: v * 2, s), [2, 8]),
            "vectorized_map": (tf.vectorized_map(lambda v: v * 2, s), [2, 8]),
            "function": (tf.function(lambda v: v + 1)(s), [2, 5]),
            "py_function": (tf.ensure_shape(tf.numpy_function(np.sort, [e], e.dtype), [2]), [2, 9]),
            "saturate": (tf.clip_by_value(s, 2, 3), [2, 3]),
            "repeat": (tf.repeat([7], k), [7, 7]),
        }
        for result, _ in results.values():
            loop.add_loop_output(result, CONCATENATE)
    for (name, (_, expected)), out in zip(results.items(), loop.outputs):
        np.testing.assert_array_equal(out.tensor[0], expected, name)


def test_they_are_tensors_to_tensorflow():
    with Loop() as loop:
        loop.add_trip_limit(2, COUNT)
        s = loop.add_recurrence([1.0, 2.0])
        e = loop.add_iterator(tf.zeros([2, 3], tf.float64))
        s.next = s
        layers = [s, e]
        for layer in layers:
            assert tf.is_tensor(layer)
            assert isinstance(layer.tensor, tf.Tensor)
            assert tf.nest.flatten(layer) == [layer] or tf.nest.flatten(layer)[0] is layer
            assert layer.shape == layer.tensor.shape
            assert layer.dtype == layer.tensor.dtype
            assert tf.convert_to_tensor(layer) is layer.tensor
            assert repr(layer)
        assert (s.shape, s.dtype) == ([2], tf.float32)
        assert (e.shape, e.dtype) == ([3], tf.float64)
        doubled = tf.nest.map_structure(lambda t: t * 2, {"a": s, "b": [e]})
        assert doubled["b"][0].dtype == tf.float64
        out = loop.add_loop_output(doubled["a"], CONCATENATE)
    assert out.tensor.numpy().tolist() == [[2, 4]] * 2


@pytest.mark.parametrize("place", ["eager", "function"])
def test_outputs_are_used_like_tensors(place):
    def call(x):
        with Loop() as loop:
            loop.add_trip_limit(2, COUNT)
            out = loop.add_loop_output(loop.add_iterator(x), CONCATENATE, length=3)
        assert tf.is_tensor(out)
        assert out.dtype == tf.float32
        assert out.shape.as_list() == out.tensor.shape.as_list() == [3]
        array = np.array([1, 2, 3], np.float32)
        return [
            out + 1,
            1 + out,
            array * out,
            -out,
            out[1],
            out == array,
            tf.stack([out, out]),
            tf.reduce_sum(out),
            tf.convert_to_tensor(out),
            tf.nest.map_structure(tf.identity, [out])[0],
            tf.gather(array, tf.cast(out, tf.int32)),
            total(out),
        ]

    results = (call if place == "eager" else tf.function(call))(tf.constant([1.0, 2.0, 3.0]))
    expected = [[2, 3, 1], [2, 3, 1], [1, 4, 0], [-1, -2, 0], 2, [True, True, False]]
    expected += [[[1, 2, 0]] * 2, 3, [1, 2, 0], [1, 2, 0], [2, 3, 1], 3]
    for result, value in zip(results, expected):
        assert isinstance(result, tf.Tensor)
        np.testing.assert_array_equal(result, value)


def test_a_function_may_return_an_output():
    @tf.function
    def call(x):
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            s = loop.add_recurrence(0.0)
            s.next = s + loop.add_iterator(x)
            out = loop.add_loop_output(s, LAST)
        return {"out": out}

    assert call(X)["out"].numpy() == 6


def test_an_eager_output_has_what_its_tensor_has():
    with Loop() as loop:
        loop.add_trip_limit(2, COUNT)
        out = loop.add_loop_output(loop.add_iterator(X), CONCATENATE)
    assert out.numpy().tolist() == [1, 2]
    assert np.asarray(out).tolist() == [1, 2]
    assert [float(value) for value in out] == [1, 2]
    assert len(out) == 2
    assert isinstance(out.tensor, tf.Tensor)
    assert "output 0" in repr(out)


def test_axes_and_reverse_may_be_numpys():
    x = np.arange(6).reshape(2, 3)
    with Loop() as loop:
        loop.add_trip_limit(3, COUNT)
        column = loop.add_iterator(x, np.int64(1), np.bool_(True))
        out = loop.add_loop_output(column, CONCATENATE, np.int32(-1))
    np.testing.assert_array_equal(out.tensor, x[:, ::-1])


def test_a_return_inside_the_block_closes_the_loop():
    def call(x):
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            s = loop.add_recurrence(0.0)
            s.next = s + loop.add_iterator(x)
            return loop.add_loop_output(s, LAST)

    assert call(X).tensor.numpy() == 6
    assert tf.executing_eagerly()


def test_a_keras_layer_is_called_on_them():
    built = tf.keras.layers.Dense(2, kernel_initializer="ones")
    built.build([None, 2])
    fresh = tf.keras.layers.Dense(2, kernel_initializer="ones")
    x = tf.reshape(tf.range(12.0), [3, 2, 2])
    with Loop() as loop:
        loop.add_trip_limit(3, COUNT)
        s = loop.add_recurrence(tf.zeros([2, 2]))
        e = loop.add_iterator(x)
        s.next = built(e) + fresh(s)
        loop.add_loop_output(s, LAST)
        loop.add_loop_output(built(s), CONCATENATE)
    s, steps = np.zeros([2, 2]), []
    for e in x.numpy():
        steps.append(s.sum(1, keepdims=True) * [1, 1])
        s = (e + s).sum(1, keepdims=True) * [1, 1]
    last, outputs = tensors(loop)
    np.testing.assert_allclose(last, s)
    np.testing.assert_allclose(outputs, steps)
    np.testing.assert_allclose(built(loop.outputs[0]), s.sum(1, keepdims=True) * [1, 1])


def test_static_shapes_are_inferred():
    @tf.function(input_signature=[tf.TensorSpec([3, None, 5]), tf.TensorSpec([], tf.int32)])
    def call(x, n):
        with Loop() as loop:
            loop.add_trip_limit(n, COUNT)
            e = loop.add_iterator(x, axis=1)
            assert e.shape == [3, 5]
            s = loop.add_recurrence(tf.zeros([3, 5]))
            s.next = s + e
            loop.add_loop_output(s, LAST)
            loop.add_loop_output(e, CONCATENATE, axis=1)
            loop.add_loop_output(e, REVERSE, axis=-1, length=7)
            loop.add_loop_output(e, CONCATENATE, length=n)
        shapes = [out.shape.as_list() for out in loop.outputs]
        assert shapes == [[3, 5], [3, None, 5], [3, 5, 7], [None, 3, 5]]
        assert [t.shape.as_list() for t in tensors(loop)] == shapes
        return tensors(loop)

    call.get_concrete_function()

    @tf.function
    def counted():
        with Loop() as loop:
            loop.add_trip_limit(4, COUNT)
            out = loop.add_loop_output(tf.zeros([2]), CONCATENATE, axis=1)
        assert out.shape == [2, 4]
        return out.tensor

    counted.get_concrete_function()


# Control flow and other loops


def test_python_control_flow_in_the_block_is_converted_in_a_function():
    @tf.function
    def call(x):
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            e, s = loop.add_iterator(x), loop.add_recurrence(0.0)
            following = s
            if e > 2:
                following = following + 100
            for _ in tf.range(3):
                following = following + e
            while following < 5:
                following = following + 1
            s.next = following
            out = loop.add_loop_output(s, LAST)
        return out.tensor

    s = 0.0
    for e in X:
        s = max(s + 3 * e + (100 if e > 2 else 0), 5)
    assert call(X).numpy() == s


@pytest.mark.parametrize("place", ["eager", "function"])
def test_in_a_function_that_python_control_flow_calls(place):
    def call(x, n):
        results = []
        for k in range(3):
            results.append(total(x * float(k)))
        return tf.stack(results) + tf.cast(n, tf.float32)

    call = call if place == "eager" else tf.function(call)
    assert call(tf.constant(X), 1).numpy().tolist() == [1, 7, 13]


def test_other_loops_and_control_flow_inside():
    x = np.arange(12.0).reshape(3, 4)

    def call(x):
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            row, s = loop.add_iterator(x), loop.add_recurrence(tf.constant(1.0, tf.float64))
            _, products = tf_ti.scan(lambda c, v: (c + v, c * v), s, row)
            (last,) = tf_ti.tensor_iterator(
                lambda piece, t: t + piece[0] * s,
                [row, s],
                PortMap([InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0)]),
                [BackEdge(0, 1)],
            )
            odd = tf.reduce_sum(row) > 10
            _, grown = tf.while_loop(
                lambda k, v: k < 3, lambda k, v: (k + 1, v + s), (0, tf.zeros([], tf.float64))
            )
            mapped = tf.reduce_sum(tf.map_fn(lambda v: v * s, row))
            s.next = tf.cond(odd, lambda: last, lambda: grown + mapped)
            loop.add_loop_output(products, CONCATENATE)
            loop.add_loop_output(s, LAST)
        return tensors(loop)

    expected, s = [], 1.0
    for row in x:
        expected.append((s + np.cumsum(row) - row) * row)
        s = s + (row * s).sum() if row.sum() > 10 else 3 * s + (row * s).sum()
    for mode in ("eager", "static", "unknown"):
        products, last = in_mode(mode, call, x)
        np.testing.assert_allclose(products, expected)
        assert last == s


def test_inside_a_tensor_iterator_and_a_scan():
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    (sums,) = tf_ti.tensor_iterator(
        lambda piece: total(piece[0])[tf.newaxis],
        [x],
        PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)]),
    )
    assert sums.numpy().tolist() == [3, 12, 21, 30]
    last, sums = tf_ti.scan(lambda c, row: (c + total(row), total(row * c)), 1.0, x)
    assert last.numpy() == 67
    assert sums.numpy().tolist() == [3, 48, 21 * 16, 30 * 37]


@pytest.mark.parametrize("place", ["inside", "after", "after in a function"])
def test_a_loop_value_says_how_often_another_loop_iterates(place):
    def powers(n):
        (a,) = tf_ti.tensor_iterator(
            lambda a: a * 2,
            [1],
            PortMap([InputPort(0, 0)], [OutputPort(0, 0)]),
            [BackEdge(0, 0)],
            num_iterations=n,
        )
        b, _ = tf_ti.scan(lambda b, _: (b * 3, None), 1, length=n)
        return tf.stack([a, b])

    def call():
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            n = loop.add_recurrence(1)
            n.next = n + 1
            every = loop.add_loop_output(powers(n) if place == "inside" else n, CONCATENATE)
            last = loop.add_loop_output(n, LAST)
        return every.tensor if place == "inside" else powers(last)

    result = tf.function(call)() if place == "after in a function" else call()
    expected = [[2, 3], [4, 9], [8, 27]] if place == "inside" else [16, 81]
    assert result.numpy().tolist() == expected


@pytest.mark.parametrize("flag", [True, False])
def test_inside_tf_cond(flag):
    x = tf.constant(X)

    def call(flag):
        return tf.cond(flag, lambda: total(x), lambda: total(x * 10))

    expected = 6 if flag else 60
    assert call(tf.constant(flag)).numpy() == expected
    assert tf.function(call)(tf.constant(flag)).numpy() == expected


def test_a_branch_that_is_not_taken_has_no_effect():
    record, calls = recorder()

    def loop(tag):
        with Loop() as loop:
            loop.add_trip_limit(2, COUNT)
            k = loop.add_recurrence(0)
            record(tag, k)
            k.next = k + 1
            out = loop.add_loop_output(k, LAST)
        return out.tensor

    @tf.function
    def call(flag):
        return tf.cond(flag, lambda: loop("yes"), lambda: loop("no"))

    call(tf.constant(True))
    call(tf.constant(False))
    assert calls == [("yes", 0), ("yes", 1), ("no", 0), ("no", 1)]


def test_inside_a_tf_cond_of_a_loop():
    with Loop() as loop:
        loop.add_trip_limit(4, COUNT)
        k = loop.add_recurrence(0)
        k.next = k + 1
        row = tf.range(k + 1)
        out = loop.add_loop_output(
            tf.cond(k % 2 == 0, lambda: total(row), lambda: total(-row)), CONCATENATE
        )
    assert out.tensor.numpy().tolist() == [0, -1, 3, -6]


@pytest.mark.parametrize("place", ["eager", "function"])
def test_inside_tf_while_loop_and_map_fn(place):
    def call(x):
        _, s = tf.while_loop(
            lambda k, s: k < 4, lambda k, s: (k + 1, s + total(x + s)), (0, tf.constant(0.0))
        )
        return s, tf.map_fn(total, tf.stack([x, x * 2]))

    s = 0.0
    for _ in range(4):
        s += sum(x + s for x in X)
    last, mapped = (call if place == "eager" else tf.function(call))(tf.constant(X))
    assert last.numpy() == s
    assert mapped.numpy().tolist() == [6, 12]


@MODES
def test_a_block_inside_another(mode):
    x = np.arange(6.0).reshape(2, 3)

    def call(x):
        with Loop("rows") as rows:
            rows.add_trip_limit(tf.shape(x)[0], COUNT)
            row, carry = rows.add_iterator(x), rows.add_recurrence(tf.constant(1.0, tf.float64))
            with Loop("columns") as columns:
                columns.add_trip_limit(tf.shape(x)[1], COUNT)
                s = columns.add_recurrence(carry)
                s.next = s * 2 + columns.add_iterator(row) + carry
                last = columns.add_loop_output(s, LAST)
                steps = columns.add_loop_output(s, REVERSE)
            carry.next = last - 1
            rows.add_loop_output(steps, CONCATENATE)
            rows.add_loop_output(carry, LAST)
        return tensors(rows)

    carry, expected = 1.0, []
    for row in x:
        s, steps = carry, []
        for e in row:
            steps.append(s)
            s = s * 2 + e + carry
        expected.append(steps[::-1])
        carry = s - 1
    steps, last = in_mode(mode, call, x)
    assert steps.tolist() == expected
    assert last == carry


def test_blocks_five_deep():
    record, calls = recorder()

    def level(depth, s):
        with Loop(f"level{depth}") as loop:
            loop.add_trip_limit(2, COUNT)
            s = loop.add_recurrence(s)
            s.next = level(depth - 1, s) if depth else record("innermost", s) + 1
            out = loop.add_loop_output(s, LAST)
        return out

    assert level(4, 0).tensor.numpy() == 32
    assert calls == [("innermost", k) for k in range(32)]


@MODES
def test_the_count_and_the_length_of_an_inner_loop_come_from_the_outer_one(mode):
    def call(n):
        with Loop("outer") as outer:
            k = outer.add_recurrence(0)
            outer.add_trip_limit(k < n, WHILE)
            k.next = k + 1
            with Loop("inner") as inner:
                inner.add_trip_limit(k, COUNT)
                j = inner.add_recurrence(k)
                j.next = j + 1
                steps = inner.add_loop_output(j, CONCATENATE, length=n)
            outer.add_loop_output(steps, CONCATENATE)
        return tensors(outer)

    triangle = [[0, 0, 0], [1, 0, 0], [2, 3, 0]]
    assert in_mode(mode, call, 3)[0].tolist() == triangle


def test_an_inner_while_loop_that_depends_on_both():
    with Loop("outer") as outer:
        outer.add_trip_limit(4, COUNT)
        k = outer.add_recurrence(1)
        k.next = k + 1
        with Loop("inner") as inner:
            s = inner.add_recurrence(1)
            inner.add_trip_limit(s < k * k, WHILE)
            s.next = s * 2
            power = inner.add_loop_output(s, LAST)
        out = outer.add_loop_output(power, CONCATENATE)
    assert out.tensor.numpy().tolist() == [1, 4, 16, 16]


def test_an_inner_loop_in_the_condition_of_the_outer_one():
    record, calls = recorder()
    with Loop("outer") as outer:
        k = outer.add_recurrence(1)
        with Loop("inner") as inner:
            inner.add_trip_limit(k, COUNT)
            s = inner.add_recurrence(0)
            s.next = s + record("inner", k)
            square = inner.add_loop_output(s, LAST)
        outer.add_trip_limit(square < 10, WHILE)
        k.next = k + 1
        out = outer.add_loop_output(square, CONCATENATE)
    assert out.tensor.numpy().tolist() == [1, 4, 9]
    assert calls == [("inner", k) for k in (1, 2, 3, 4) for _ in range(k)]


def test_effects_of_blocks_inside_one_another_happen_in_order():
    record, calls = recorder()
    with Loop("outer") as outer:
        outer.add_trip_limit(2, COUNT)
        k = outer.add_recurrence(0)
        k.next = k + 1
        record("before", k)
        with Loop("inner") as inner:
            inner.add_trip_limit(2, COUNT)
            j = inner.add_recurrence(10)
            j.next = j + 1
            record("inside", j)
        record("after", k)
    expected = [("before", None), ("inside", 10), ("inside", 11), ("after", None)]
    assert calls == [(tag, k if v is None else v) for k in range(2) for tag, v in expected]


# Blocks that share a with statement


@MODES
@pytest.mark.parametrize("order", ["rows first", "columns first"])
def test_the_dataflow_says_which_loop_is_inside(mode, order):
    x = np.arange(6.0).reshape(2, 3)

    def call(x):
        first, second = Loop("first"), Loop("second")
        rows, columns = (first, second) if order == "rows first" else (second, first)
        with first, second:
            rows.add_trip_limit(tf.shape(x)[0], COUNT)
            row = rows.add_iterator(x)
            columns.add_trip_limit(tf.shape(x)[1], COUNT)
            s = columns.add_recurrence(tf.constant(0.0, tf.float64))
            s.next = s + columns.add_iterator(row)
            total = columns.add_loop_output(s, LAST)
            steps = columns.add_loop_output(s, CONCATENATE)
            rows.add_loop_output(total * 2, CONCATENATE)
            rows.add_loop_output(steps, REVERSE)
            rows.add_loop_output(row, CONCATENATE)
        return tensors(rows)

    sums, steps, same = in_mode(mode, call, x)
    assert sums.tolist() == [6, 24]
    assert steps.tolist() == [[0, 3, 7], [0, 0, 1]]
    np.testing.assert_array_equal(same, x)


@pytest.mark.parametrize("order", list(itertools.permutations("abc")), ids="".join)
def test_three_loops_in_any_order(order):
    x = np.arange(24.0).reshape(2, 3, 4)
    loops = {name: Loop(name) for name in order}
    with loops[order[0]], loops[order[1]], loops[order[2]]:
        a, b, c = (loops[name] for name in "abc")
        for loop, n in ((a, 2), (b, 3), (c, 4)):
            loop.add_trip_limit(n, COUNT)
        matrix = a.add_iterator(x)
        row = b.add_iterator(matrix)
        s = c.add_recurrence(tf.constant(0.0, tf.float64))
        s.next = s * 0.5 + c.add_iterator(row)
        of_row = c.add_loop_output(s, LAST)
        t = b.add_recurrence(tf.constant(0.0, tf.float64))
        t.next = t * 0.5 + of_row
        of_matrix = b.add_loop_output(t, LAST)
        out = a.add_loop_output(of_matrix, CONCATENATE)

    def fold(values):
        s = 0.0
        for value in values:
            s = s * 0.5 + (value if np.ndim(value) == 0 else fold(value))
        return s

    np.testing.assert_allclose(out.tensor, [fold(matrix) for matrix in x])


def test_loops_that_use_nothing_of_each_other_are_independent():
    with Loop("a") as a, Loop("b") as b:
        a.add_trip_limit(2, COUNT)
        b.add_trip_limit(3, COUNT)
        of_a = a.add_loop_output(a.add_iterator(X), CONCATENATE)
        of_b = b.add_loop_output(b.add_iterator(X * 10), REVERSE)
    assert of_a.tensor.numpy().tolist() == [1, 2]
    assert of_b.tensor.numpy().tolist() == [30, 20, 10]


@pytest.mark.parametrize("order", ["user last", "user first"])
def test_a_loop_that_starts_from_the_output_of_another_runs_after_it(order):
    first, second = Loop("first"), Loop("second")
    with first, second:
        a, b = (first, second) if order == "user last" else (second, first)
        a.add_trip_limit(3, COUNT)
        s = a.add_recurrence(0.0)
        s.next = s + a.add_iterator(X)
        of_a = a.add_loop_output(s, LAST)
        b.add_trip_limit(2, COUNT)
        t = b.add_recurrence(of_a)
        t.next = t * 10
        of_b = b.add_loop_output(t, LAST)
    assert of_b.tensor.numpy() == 600


def test_the_inner_loop_uses_a_recurrence_of_the_outer_that_its_output_feeds():
    with Loop("outer") as outer, Loop("inner") as inner:
        outer.add_trip_limit(3, COUNT)
        inner.add_trip_limit(2, COUNT)
        k = outer.add_recurrence(1)
        s = inner.add_recurrence(k)
        s.next = s + k
        last = inner.add_loop_output(s, LAST)
        k.next = last
        out = outer.add_loop_output(k, CONCATENATE)
        end = outer.add_loop_output(k, LAST)
    assert out.tensor.numpy().tolist() == [1, 3, 9]
    assert end.tensor.numpy() == 27


def test_effects_of_loops_that_share_a_statement_happen_where_their_values_come_from():
    record, calls = recorder()
    with Loop("outer") as outer, Loop("inner") as inner:
        outer.add_trip_limit(2, COUNT)
        k = outer.add_recurrence(0)
        k.next = k + 1
        inner.add_trip_limit(2, COUNT)
        j = inner.add_recurrence(k * 10)
        j.next = j + 1
        record("inner", j)
        last = inner.add_loop_output(j, LAST)
        record("outer", last)
    assert sorted(calls) == sorted(
        [("inner", 0), ("inner", 1), ("outer", 2), ("inner", 10), ("inner", 11), ("outer", 12)]
    )
    assert [call for call in calls if call[0] == "outer"] == [("outer", 2), ("outer", 12)]
    assert [v for tag, v in calls if tag == "inner"] == [0, 1, 10, 11]


# Places


def test_a_function_is_called_again_with_other_values_and_shapes():
    traces = []

    @tf.function
    def call(x):
        traces.append(1)
        return total(x)

    for k in range(3):
        assert call(tf.constant(X + k)).numpy() == 6 + 3 * k
    assert len(traces) == 1
    assert call(tf.ones([5])).numpy() == 5


def test_a_function_that_is_not_compiled():
    call = tf.function(total, jit_compile=False)
    assert call(tf.constant(X)).numpy() == 6


def test_each_function_captures_its_own_tensors():
    def make(scale):
        def inner(x):
            scaled = x * scale
            with Loop() as loop:
                loop.add_trip_limit(3, COUNT)
                s = loop.add_recurrence(0.0)
                s.next = s + loop.add_iterator(x) * tf.reduce_sum(scaled)
                out = loop.add_loop_output(s, LAST)
            return out.tensor

        return tf.function(inner)

    assert make(2.0)(X).numpy() == 72
    assert make(3.0)(X).numpy() == 108


def test_functions_that_run_eagerly_change_nothing():
    tf.config.run_functions_eagerly(True)
    try:
        assert tf.function(total)(tf.constant(X)).numpy() == 6
    finally:
        tf.config.run_functions_eagerly(False)


def test_with_an_explicit_device():
    with tf.device("/CPU:0"):
        assert total(X).numpy() == 6
        assert tf.function(total)(tf.constant(X)).numpy() == 6
    with Loop() as loop, tf.device("/CPU:0"):
        loop.add_trip_limit(3, COUNT)
        out = loop.add_loop_output(loop.add_iterator(X), CONCATENATE)
    assert out.tensor.numpy().tolist() == [1, 2, 3]


def test_inside_name_scopes():
    with tf.name_scope("outside"), Loop("mine") as loop, tf.name_scope("inside"):
        loop.add_trip_limit(3, COUNT)
        out = loop.add_loop_output(loop.add_iterator(X) * 2, CONCATENATE)
    assert out.tensor.numpy().tolist() == [2, 4, 6]


def test_the_name_is_in_the_name_of_the_operation():
    @tf.function
    def call(x):
        with Loop("mine") as loop:
            loop.add_trip_limit(3, COUNT)
            out = loop.add_loop_output(loop.add_iterator(x), CONCATENATE)
        return out.tensor

    operations = call.get_concrete_function(X).graph.get_operations()
    names = [op.name for op in operations if op.type.startswith("TfTi>")]
    assert len(names) == 1
    assert "mine" in names[0]


@pytest.mark.parametrize(
    "name", ["a/b", "a b", "1", "_x", "\u00fc", "a:b", "two\nlines", "x" * 300]
)
def test_any_name_will_do(name):
    def call(x):
        with Loop(name) as loop:
            loop.add_trip_limit(2, COUNT)
            out = loop.add_loop_output(loop.add_iterator(x), CONCATENATE)
        assert loop.name == name
        return out.tensor

    for mode in ("eager", "static"):
        assert in_mode(mode, call, X).tolist() == [1, 2]


def test_loops_inside_one_another_have_names_of_their_own():
    with Loop() as a, Loop() as b, Loop() as c:
        for loop in (a, b, c):
            loop.add_trip_limit(1, COUNT)
        assert [a.name, b.name, c.name] == ["Loop", "Loop_1", "Loop_2"]


def test_a_function_called_in_the_block_may_have_a_loop_itself():
    call = tf.function(total)
    with Loop() as loop:
        loop.add_trip_limit(2, COUNT)
        row = loop.add_iterator(tf.constant([[1.0, 2.0], [3.0, 4.0]]))
        loop.add_loop_output(call(row), CONCATENATE)
        loop.add_loop_output(call(row.tensor), REVERSE)
    assert [t.numpy().tolist() for t in tensors(loop)] == [[3, 7], [7, 3]]


@pytest.mark.skipif(
    ONE_OPERATION_AT_A_TIME, reason="the Python function keeps the only thread: see docs/explain"
)
def test_inside_py_function():
    @tf.function
    def call(x):
        return tf.py_function(total, [x], tf.float32)

    assert call(X).numpy() == 6


@pytest.mark.parametrize("deterministic", [True, False])
def test_in_a_parallel_dataset_with_a_captured_variable(deterministic):
    scale = tf.Variable(2.0)

    def call(n):
        with Loop() as loop:
            k, s = loop.add_recurrence(tf.constant(0, tf.int64)), loop.add_recurrence(0.0)
            loop.add_trip_limit(k < n, WHILE)
            k.next, s.next = k + 1, s + scale
            out = loop.add_loop_output(s, LAST)
        return out.tensor

    dataset = tf.data.Dataset.range(50).map(call, num_parallel_calls=4, deterministic=deterministic)
    assert sorted(y.numpy() for y in dataset) == [2 * n for n in range(50)]


def test_in_a_batched_dataset_of_unknown_dimensions():
    def call(batch):
        with Loop() as loop:
            loop.add_trip_limit(tf.shape(batch)[1], COUNT)
            s = loop.add_recurrence(tf.zeros(tf.shape(batch)[:1]))
            s.next = s + loop.add_iterator(batch, axis=1)
            out = loop.add_loop_output(s, LAST)
        return out.tensor

    dataset = tf.data.Dataset.range(1, 6).map(lambda n: tf.ones([n])).padded_batch(2)
    assert [y.numpy().tolist() for y in dataset.map(call)] == [[1, 2], [3, 4], [5]]


def test_in_a_graph_with_a_session():
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None])
        n = tf.compat.v1.placeholder(tf.int32, [])
        v = tf.compat.v1.get_variable("v", initializer=2.0, use_resource=True)
        with Loop() as loop:
            loop.add_trip_limit(n, COUNT)
            s = loop.add_recurrence(0.0)
            s.next = s + loop.add_iterator(x) * v
            loop.add_loop_output(s, LAST)
            loop.add_loop_output(s, CONCATENATE, length=3)
        fetches = tensors(loop)
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            last, steps = session.run(fetches, {x: X, n: 3})
            assert last == 12
            assert steps.tolist() == [0, 2, 6]
            last, steps = session.run(fetches, {x: X, n: 1})
            assert last == 2
            assert steps.tolist() == [0, 0, 0]


def test_what_a_graph_says_comes_before_the_loop_does():
    with tf.Graph().as_default():
        v = tf.compat.v1.get_variable("v", initializer=1.0, use_resource=True)
        with tf.control_dependencies([tf.compat.v1.assign(v, 10.0)]), Loop() as loop:
            loop.add_trip_limit(2, COUNT)
            out = loop.add_loop_output(v, CONCATENATE)
        y = out.tensor
        with tf.compat.v1.Session() as session:
            session.run(v.initializer)
            assert session.run(y).tolist() == [10, 10]


def test_a_serialised_graph_runs_after_import():
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None], name="x")
        tf.identity(total(x), name="y")
    definition = tf.compat.v1.GraphDef.FromString(graph.as_graph_def().SerializeToString())
    with tf.Graph().as_default():
        (y,) = tf.import_graph_def(definition, return_elements=["y:0"], name="")
        with tf.compat.v1.Session() as session:
            assert session.run(y, {"x:0": X}) == 6


def test_a_frozen_graph_gives_the_same():
    from tensorflow.python.framework import convert_to_constants

    w = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def call(x):
        with Loop() as loop:
            k, s = loop.add_recurrence(0), loop.add_recurrence(0.0)
            loop.add_trip_limit(k < tf.size(x), WHILE)
            k.next, s.next = k + 1, s * w + loop.add_iterator(x)
            out = loop.add_loop_output(s, LAST)
        return out.tensor

    frozen = convert_to_constants.convert_variables_to_constants_v2(call.get_concrete_function())
    w.assign(100.0)
    assert frozen(tf.constant(X))[0].numpy() == 11


def test_loops_of_eager_mode_leave_nothing_behind():
    x = tf.constant(X)

    def call():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = total(x)
        tape.gradient(y, x)
        with pytest.raises(KeyError), Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            loop.add_iterator(x)
            raise KeyError
        with pytest.raises(tf.errors.InvalidArgumentError), Loop() as loop:
            loop.add_trip_limit(tf.Variable(5), COUNT)
            loop.add_loop_output(loop.add_iterator(x), CONCATENATE)

    def functions():
        gc.collect()
        return len(context.context().list_function_names())

    call()
    before = functions()
    for _ in range(10):
        call()
    assert functions() <= before + 5


# Threads


def test_many_threads_build_and_run_loops_at_once():
    assert in_threads(lambda i: float(total(X + i))) == [[6.0 + 3 * i] * 5 for i in range(8)]


def test_many_threads_run_one_function():
    w = tf.Variable(2.0)

    @tf.function
    def call(x):
        with Loop() as loop:
            k, s = loop.add_recurrence(0), loop.add_recurrence(0.0)
            loop.add_trip_limit(k < tf.size(x), WHILE)
            k.next, s.next = k + 1, s * w + loop.add_iterator(x)
            out = loop.add_loop_output(s, LAST)
        return out.tensor

    results = in_threads(lambda i: float(call(tf.constant(X + i))), times=20)
    assert results == [[11.0 + 7 * i] * 20 for i in range(8)]


def test_a_block_of_one_thread_is_not_that_of_another():
    """While a block is open here, another thread computes eagerly and makes its own loop."""
    results = []

    def elsewhere():
        results.append(tf.executing_eagerly())
        results.append((tf.constant(1) + 1).numpy())
        results.append(total(X).numpy())

    with Loop() as loop:
        loop.add_trip_limit(2, COUNT)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        out = loop.add_loop_output(loop.add_iterator(X), CONCATENATE)
    assert results == [True, 2, 6]
    assert out.tensor.numpy().tolist() == [1, 2]


# Strategies


def test_under_a_mirrored_strategy(run_program):
    run_program("""
        import numpy as np
        import tensorflow as tf
        from tf_ti import Loop, LoopOutput, TripLimit

        cpus = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(
            cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
        assert strategy.num_replicas_in_sync == 2
        with strategy.scope():
            w = tf.Variable(2.0, aggregation=tf.VariableAggregation.MEAN)

        def loss(x):
            with Loop() as loop:
                k, s = loop.add_recurrence(0), loop.add_recurrence(0.0)
                loop.add_trip_limit(k < 3, TripLimit.WHILE)
                k.next, s.next = k + 1, s * w + loop.add_iterator(x)
                out = loop.add_loop_output(s, LoopOutput.LAST_VALUE)
            return out.tensor

        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = loss(x)
            of_w, of_x = tape.gradient(y, [w, x])
            context = tf.distribute.get_replica_context()
            return y, context.all_reduce("sum", of_w), of_x

        def batch(context):
            return tf.constant([1.0, 2.0, 3.0]) * (context.replica_id_in_sync_group + 1.0)

        values = strategy.experimental_distribute_values_from_function(batch)
        for run in (strategy.run, tf.function(lambda f, args: strategy.run(f, args))):
            for _ in range(2):
                y, of_w, of_x = run(step, (values,))
                assert [v.numpy() for v in strategy.experimental_local_results(y)] == [11, 22]
                for g in strategy.experimental_local_results(of_w):
                    assert g.numpy() == 6 + 12, g
                for g in strategy.experimental_local_results(of_x):
                    assert g.numpy().tolist() == [4, 2, 1]

        @tf.function
        def train(values):
            def update(x):
                with tf.GradientTape() as tape:
                    y = loss(x)
                w.assign_sub(0.1 * tape.gradient(y, w))
            strategy.run(update, (values,))

        train(values)
        np.testing.assert_allclose([v.numpy() for v in w.values], [2 - 0.9] * 2, rtol=1e-6)
    """)


def test_a_keras_layer_made_of_a_loop_is_trained():
    class Recurrent(tf.keras.layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(shape=(shape[-1], 3), initializer="glorot_uniform")
            self.u = self.add_weight(shape=(3, 3), initializer="orthogonal")

        def call(self, x):
            with Loop() as loop:
                loop.add_trip_limit(tf.shape(x)[1], COUNT)
                h = loop.add_recurrence(tf.zeros([tf.shape(x)[0], 3]))
                h.next = tf.tanh(loop.add_iterator(x, axis=1) @ self.w + h @ self.u)
                out = loop.add_loop_output(h, LAST)
            return out.tensor

    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential([Recurrent(), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).standard_normal([32, 5, 2]).astype(np.float32)
    history = model.fit(x, x[:, -1, :1], epochs=3, batch_size=8, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    np.testing.assert_allclose(model.predict(x, verbose=0), model(x), rtol=1e-5, atol=1e-5)


# Saved models


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    """A model with a variable, a captured tensor, a nested loop and a condition: [n, m] -> [n]."""
    module = tf.Module()
    module.w = tf.Variable(2.0)
    offset = tf.constant(1.0)

    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def run(x):
        with Loop("rows") as rows:
            k = rows.add_recurrence(0)
            rows.add_trip_limit(k < tf.shape(x)[0], WHILE)
            k.next = k + 1
            row = rows.add_iterator(x)
            with Loop("columns") as columns:
                columns.add_trip_limit(tf.shape(x)[1], COUNT)
                s = columns.add_recurrence(0.0)
                s.next = s * module.w + columns.add_iterator(row) + offset
                of_row = columns.add_loop_output(s, LAST)
            out = rows.add_loop_output(of_row, CONCATENATE)
        return {"y": out.tensor}

    module.run = run
    path = tmp_path_factory.mktemp("model")
    tf.saved_model.save(module, str(path), signatures=run)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("library", ["tf_ti", "alone"])
def test_a_saved_model_runs_in_another_process(saved_model, run_program, library):
    from tf_ti import _library

    run_program(
        """
        import sys
        import tensorflow as tf
        path, library, file = sys.argv[1:]
        if library == "alone":
            tf.load_op_library(file)
        else:
            import tf_ti
        module = tf.saved_model.load(path)
        assert ("tf_ti" in sys.modules) == (library != "alone")
        x = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        assert module.run(x)["y"].numpy().tolist() == [18, 39]
        assert module.signatures["serving_default"](x=x)["y"].numpy().tolist() == [18, 39]
        assert module.run(x[:1, :2])["y"].numpy().tolist() == [7]
        module.w.assign(0.0)
        assert module.run(x)["y"].numpy().tolist() == [4, 7]
        """,
        saved_model,
        library,
        _library._PATH,
    )


# Faults that were found by reading


def test_effects_of_one_call_keep_their_order():
    v = tf.Variable(1)

    @tf.function
    def double_and_add():
        v.assign(v * 2)
        v.assign_add(1)

    for _ in range(5):
        v.assign(1)
        with Loop() as loop:
            loop.add_trip_limit(3, TripLimit.COUNT)
            double_and_add()
        assert v.numpy() == 15


def test_what_follows_an_inner_block_happens_after_it():
    for _ in range(5):
        v = tf.Variable(0.0)
        with Loop() as outer:
            outer.add_trip_limit(2, TripLimit.COUNT)
            h = outer.add_recurrence(10.0)
            h.next = h + 1
            with Loop() as inner:
                inner.add_trip_limit(3, TripLimit.COUNT)
                v.assign_add(h.tensor)
            v.assign(h.tensor)
        assert v.numpy() == 11


@pytest.mark.parametrize("count", [1, 2])
def test_the_last_value_has_the_recurrences_shape_too(count):
    with pytest.raises(tf.errors.InvalidArgumentError, match="recurrence 0"):
        with Loop() as loop:
            loop.add_trip_limit(count, TripLimit.COUNT)
            h = loop.add_recurrence(tf.zeros([2]))
            h.next = tf.boolean_mask(tf.zeros([3]), tf.constant([True, True, True]))
            loop.add_loop_output(h, LoopOutput.LAST_VALUE)


def test_forward_mode_in_eager_mode():
    x = tf.constant(2.0)
    with tf.autodiff.ForwardAccumulator(x, tf.constant(1.0)) as accumulator:
        with Loop() as loop:
            loop.add_trip_limit(3, TripLimit.COUNT)
            s = loop.add_recurrence(x)
            s.next = s * x
            out = loop.add_loop_output(s, LoopOutput.LAST_VALUE)
    assert accumulator.jvp(out.tensor).numpy() == 4 * 2.0**3


def test_a_tape_takes_an_output():
    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with Loop() as loop:
            loop.add_trip_limit(3, TripLimit.COUNT)
            s = loop.add_recurrence(x)
            s.next = s * x
            out = loop.add_loop_output(s, LoopOutput.LAST_VALUE)
    assert tape.gradient(out, x).numpy() == 4 * 2.0**3


def test_an_output_is_a_number_where_an_eager_tensor_is():
    with Loop() as loop:
        loop.add_trip_limit(3, TripLimit.COUNT)
        s = loop.add_recurrence(1)
        s.next = s * 2
        out = loop.add_loop_output(s, LoopOutput.LAST_VALUE)
    assert (int(out), float(out), complex(out), list(range(10))[out]) == (8, 8.0, 8, 8)
    assert f"{out:d}" == "8"


def test_a_tape_between_two_blocks_sees_the_inner_loop():
    x = tf.Variable(3.0)
    with Loop() as outer:
        with tf.GradientTape() as tape:
            with Loop() as inner:
                inner.add_trip_limit(2, TripLimit.COUNT)
                s = inner.add_recurrence(1.0)
                s.next = s * x
                power = inner.add_loop_output(s, LoopOutput.LAST_VALUE)
        slope = tape.gradient(power.tensor, x)
        outer.add_trip_limit(2, TripLimit.COUNT)
        slopes = outer.add_loop_output(slope, LoopOutput.CONCATENATE)
    assert slopes.numpy().tolist() == [6.0, 6.0]


def test_second_order_through_a_loop_with_effects_in_a_scan():
    x = tf.constant(0.5)

    def step(carry, _):
        with Loop() as loop:
            loop.add_trip_limit(2, TripLimit.COUNT)
            s = loop.add_recurrence(carry)
            s.next = s * s + 0 * tf.random.uniform([])
            out = loop.add_loop_output(s, LoopOutput.LAST_VALUE)
        return out.tensor, None

    with tf.GradientTape() as tape:
        tape.watch(x)
        y, _ = tf_ti.scan(step, x, None, length=1)
    assert tape.gradient(y, x).numpy() == pytest.approx(4 * 0.5**3)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y, _ = tf_ti.scan(step, x, None, length=1)
        dy = inner.gradient(y, x)
    assert outer.gradient(dy, x).numpy() == pytest.approx(12 * 0.5**2)


def test_a_session_fetches_outputs():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None])
        with tf_ti.Loop() as loop:
            loop.add_trip_limit(tf.size(x), "count")
            total = loop.add_recurrence(0.0)
            total.next = total + loop.add_iterator(x)
            last = loop.add_loop_output(total, "last_value")
        assert session.run(last, {x: [1.0, 2.0]}) == 3
        assert session.run({"last": [last]}, {x: [1.0, 2.0, 4.0]}) == {"last": [7]}
