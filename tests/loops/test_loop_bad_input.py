"""Wrong `tf_ti.Loop`s are refused with errors that name loop, layer and values."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import Loop, LoopOutput, TripLimit

COUNT, WHILE = TripLimit.COUNT, TripLimit.WHILE
LAST, CONCATENATE, REVERSE = LoopOutput.LAST_VALUE, LoopOutput.CONCATENATE, LoopOutput.REVERSE
InvalidArgument = tf.errors.InvalidArgumentError
WRONG = (TypeError, ValueError)
ERRORS = (ValueError, TypeError, InvalidArgument)
X = np.array([1, 2, 3], np.float32)


def total(x, name=None):
    with Loop(name) as loop:
        loop.add_trip_limit(tf.size(x), COUNT)
        s = loop.add_recurrence(tf.zeros([], x.dtype))
        s.next = s + loop.add_iterator(x)
        out = loop.add_loop_output(s, LAST)
    return out.tensor


total_in_a_function = tf.function(total)


@pytest.fixture(autouse=True)
def the_next_correct_loop_is_right():
    yield
    assert tf.executing_eagerly()
    assert (tf.constant(1) + 1).numpy() == 2
    assert total(X).numpy() == 6
    assert total_in_a_function(tf.constant(X)).numpy() == 6


@contextlib.contextmanager
def refused(errors, *words):
    """The block raises one of the errors, and its message has all the words."""
    with pytest.raises(errors) as error:
        yield
    for word in words:
        assert word in str(error.value)


@contextlib.contextmanager
def counted(count=3, name="mine"):
    with Loop(name) as loop:
        loop.add_trip_limit(count, COUNT)
        yield loop


def in_mode(mode, call, *inputs):
    """Calls eagerly, in a function with static shapes, or in one that knows no dimension."""
    inputs = [tf.convert_to_tensor(x) for x in inputs]
    if mode == "eager":
        return call(*inputs)
    if mode == "static":
        return tf.function(call)(*inputs)
    signature = [
        tf.TensorSpec(None if mode == "unknown" else [None] * x.shape.rank, x.dtype) for x in inputs
    ]
    return tf.function(call, input_signature=signature)(*inputs)


MODES = pytest.mark.parametrize("mode", ["eager", "static", "dimensions", "unknown"])


def label(value):
    """The name of a case, the same in every process."""
    return type(value).__name__ if " at 0x" in repr(value) else repr(value).split("\n")[0][:60]


# No argument takes these, as a tensor, an initial value, a count, ...
NO_TENSORS = {
    "None": None,
    "object": object(),
    "ragged list": [[1, 2], [3]],
    "mixed list": [1, "a"],
    "dict": {"a": 1},
    "function": lambda: 1,
    "type": tf.float32,
    "sparse": tf.sparse.from_dense([1, 0]),
    "ragged": tf.ragged.constant([[1], [2, 3]]),
}


# Names and the block


@pytest.mark.parametrize("name", [3, 1.5, b"bytes", ["a"], tf.constant("a"), True], ids=str)
def test_a_name_is_a_str(name):
    with refused(TypeError, "name"):
        Loop(name)


def test_the_name_is_in_the_messages_also_where_none_was_given():
    with refused(ValueError, "Loop"):
        with Loop():
            pass


def test_loops_of_one_name_are_told_apart_or_work_at_least():
    for _ in range(2):
        with counted(name="twin") as loop:
            out = loop.add_loop_output(loop.add_iterator(X), CONCATENATE)
        assert out.tensor.numpy().tolist() == [1, 2, 3]


METHODS = {
    "add_trip_limit": lambda loop: loop.add_trip_limit(3, COUNT),
    "add_iterator": lambda loop: loop.add_iterator(X),
    "add_recurrence": lambda loop: loop.add_recurrence(1.0),
    "add_loop_output": lambda loop: loop.add_loop_output(tf.constant(1), CONCATENATE),
}


@pytest.mark.parametrize("method", METHODS)
def test_before_the_block_no_method_is_called(method):
    loop = Loop("mine")
    with refused(ValueError, "mine"):
        METHODS[method](loop)
    with loop:  # which is still usable
        loop.add_trip_limit(2, COUNT)
        out = loop.add_loop_output(loop.add_iterator(X), CONCATENATE)
    assert out.tensor.numpy().tolist() == [1, 2]


@pytest.mark.parametrize("method", METHODS)
def test_after_the_block_no_method_is_called(method):
    with counted() as loop:
        out = loop.add_loop_output(loop.add_iterator(X), CONCATENATE)
    with refused(ValueError, "mine"):
        METHODS[method](loop)
    assert out.tensor.numpy().tolist() == [1, 2, 3]


def test_after_the_block_no_second_input_is_set():
    with counted() as loop:
        s = loop.add_recurrence(1.0)
        s.next = s
        out = loop.add_loop_output(s, CONCATENATE)
    with refused(ValueError, "mine"):
        s.set_input(1, 2.0)
    with refused(ValueError, "mine"):
        s.next = 2.0
    with refused(ValueError, "mine"):
        out.set_input(1, 5)
    assert out.tensor.numpy().tolist() == [1, 1, 1]


def test_layers_are_added_in_the_block_and_not_in_a_function_or_a_branch():
    with counted() as loop:
        k = loop.add_recurrence(1)
        with refused(ValueError, "mine", "recurrence 0"):
            tf.cond(k > 3, lambda: k.set_input(1, 5), lambda: None)
        with refused(ValueError, "mine", "iterator 0"):
            tf.function(lambda: loop.add_iterator(X).tensor)()
        k.next = k * 2
        out = loop.add_loop_output(k, LAST)
    assert out.tensor.numpy() == 8


def test_what_has_no_shape_without_trips_is_refused_with_its_name():
    """Where no rank is known, and there is no value that would tell it."""

    def call(x, n):
        with counted(n) as loop:
            out = loop.add_loop_output(tf.sin(x), CONCATENATE)
        return out.tensor

    with refused(InvalidArgument, "mine", "output 0"):
        in_mode("unknown", call, X, 0)
    assert in_mode("unknown", call, X, 2).shape == [2, 3]


def test_a_loop_is_entered_once():
    with counted() as loop:
        out = loop.add_loop_output(1, CONCATENATE)
    with refused(ValueError, "mine"):
        with loop:
            pass
    assert out.tensor.numpy().tolist() == [1, 1, 1]
    with Loop("mine") as loop:
        loop.add_trip_limit(3, COUNT)
        with refused(ValueError, "mine"):
            with loop:
                pass
        out = loop.add_loop_output(1, CONCATENATE)
    assert out.tensor.numpy().tolist() == [1, 1, 1]


def test_a_loop_that_failed_is_not_entered_again():
    loop = Loop("mine")
    with refused(ValueError, "mine"):
        with loop:
            pass
    with refused(ValueError, "mine"):
        with loop:
            loop.add_trip_limit(1, COUNT)


# Trip limits


@pytest.mark.parametrize("kind", [COUNT, WHILE])
def test_two_limits_of_one_kind(kind):
    value = 3 if kind == COUNT else True
    with refused(ValueError, "mine", "trip limit", kind.name):
        with Loop("mine") as loop:
            loop.add_trip_limit(value, kind)
            loop.add_trip_limit(value, kind)


@pytest.mark.parametrize("place", ["eager", "function"])
def test_no_limit_at_all(place):
    def call():
        with Loop("mine") as loop:
            s = loop.add_recurrence(1.0)
            s.next = s * 2
            loop.add_loop_output(s, LAST)

    with refused(ValueError, "mine", "trip limit"):
        (call if place == "eager" else tf.function(call))()


@pytest.mark.parametrize(
    ("value", "kind", "errors"),
    [
        ([3], COUNT, ValueError),
        ([1, 2], COUNT, ValueError),
        (tf.constant([[3]]), COUNT, ValueError),
        (np.array([3]), COUNT, ValueError),
        ([True], WHILE, ValueError),
        (tf.constant([True, False]), WHILE, ValueError),
        (3.0, COUNT, TypeError),
        (float("nan"), COUNT, TypeError),
        (float("inf"), COUNT, TypeError),
        (np.float64(3), COUNT, TypeError),
        (tf.constant(3.0), COUNT, TypeError),
        (tf.constant(3, tf.int16), COUNT, TypeError),
        (tf.constant(3, tf.uint32), COUNT, TypeError),
        (tf.constant(3, tf.uint64), COUNT, TypeError),
        (True, COUNT, TypeError),
        (tf.constant(True), COUNT, TypeError),
        ("3", COUNT, TypeError),
        (1j, COUNT, TypeError),
        (1, WHILE, TypeError),
        (1.0, WHILE, TypeError),
        (float("nan"), WHILE, TypeError),
        ("true", WHILE, TypeError),
        (tf.constant(1), WHILE, TypeError),
        (2**63, COUNT, WRONG),
        (-(2**70), COUNT, WRONG),
        *((value, kind, WRONG) for value in NO_TENSORS.values() for kind in (COUNT, WHILE)),
    ],
    ids=label,
)
@pytest.mark.parametrize("place", ["eager", "function"])
def test_a_limit_is_a_scalar_of_its_type(place, value, kind, errors):
    def call():
        with Loop("mine") as loop:
            loop.add_trip_limit(value, kind)

    with refused(errors, "mine", "trip limit"):
        (call if place == "eager" else tf.function(call))()


@pytest.mark.parametrize("kind", [None, 0, 1, "kCOUNT", "last", "", LAST, TripLimit, True], ids=str)
def test_a_limit_is_of_one_of_the_kinds(kind):
    with refused(TypeError, "mine", "trip limit"):
        with Loop("mine") as loop:
            loop.add_trip_limit(3, kind)


@pytest.mark.parametrize("kind", [COUNT, WHILE])
def test_a_limit_that_turns_out_not_to_be_a_scalar(kind):
    def call(value):
        with Loop("mine") as loop:
            loop.add_trip_limit(value, kind)
            out = loop.add_loop_output(1, CONCATENATE)
        return out.tensor

    value = [2, 3] if kind == COUNT else [False, False]
    with refused(ERRORS, "mine", "trip limit", "[2]"):
        in_mode("unknown", call, value)


def test_a_condition_that_is_no_scalar_in_a_later_iteration():
    with refused(ERRORS, "mine", "trip limit"):
        with Loop("mine") as loop:
            go = loop.add_recurrence(True, shape=tf.TensorShape(None))
            loop.add_trip_limit(go, WHILE)
            loop.add_trip_limit(5, COUNT)
            go.next = tf.stack([go, go])
            loop.add_loop_output(1, CONCATENATE)


INSIDE = {
    "iterator": lambda loop: loop.add_iterator(np.array([3, 4])),
    "recurrence": lambda loop: loop.add_recurrence(3),
    "computed": lambda loop: loop.add_iterator(np.array([3, 4])) + 1,
}


def finish(loop, inside):
    """Gives a recurrence its second input, so that that is not what is wrong."""
    if hasattr(inside, "set_input"):
        inside.next = inside


@pytest.mark.parametrize("inside", INSIDE)
def test_a_count_does_not_come_from_inside(inside):
    with refused(ValueError, "mine", "trip limit"):
        with Loop("mine") as loop:
            value = INSIDE[inside](loop)
            loop.add_trip_limit(value, COUNT)
            finish(loop, value)
            loop.add_loop_output(value, CONCATENATE)


@pytest.mark.parametrize("inside", INSIDE)
def test_a_length_does_not_come_from_inside(inside):
    with refused(ValueError, "mine", "output 0"):
        with counted() as loop:
            value = INSIDE[inside](loop)
            finish(loop, value)
            loop.add_loop_output(value, CONCATENATE, length=value)


@pytest.mark.parametrize("inside", INSIDE)
def test_an_initial_value_does_not_come_from_inside(inside):
    with refused(ValueError, "mine", "recurrence"):
        with counted() as loop:
            value = INSIDE[inside](loop)
            finish(loop, value)
            s = loop.add_recurrence(value)
            s.next = s
            loop.add_loop_output(s, LAST)


@pytest.mark.parametrize("inside", INSIDE)
def test_an_iterated_tensor_does_not_come_from_inside(inside):
    with refused(ValueError, "mine", "iterator"):
        with counted() as loop:
            value = INSIDE[inside](loop)
            finish(loop, value)
            element = loop.add_iterator(tf.stack([value, value]))
            loop.add_loop_output(element, CONCATENATE)


def test_the_number_in_the_message_counts_the_layers_of_its_kind():
    with refused(ValueError, "mine", "recurrence 1"):
        with counted() as loop:
            first = loop.add_recurrence(1)
            first.next = first
            loop.add_iterator(X)
            second = loop.add_recurrence(first + 1)
            second.next = second
            loop.add_loop_output(second, LAST)
    with refused(ValueError, "mine", "iterator 2"):
        with counted() as loop:
            element = loop.add_iterator(X)
            loop.add_recurrence(1).next = 1
            loop.add_iterator(X)
            short = loop.add_iterator(tf.stack([element] * 3))
            loop.add_loop_output(short, CONCATENATE)


# Iterators


@pytest.mark.parametrize("value", NO_TENSORS)
def test_an_iterator_takes_a_tensor(value):
    with refused(WRONG, "mine", "iterator 0"):
        with counted() as loop:
            loop.add_iterator(NO_TENSORS[value])


@pytest.mark.parametrize("value", [1, 2.5, "text", True, tf.constant(3), np.float32(1)], ids=label)
def test_an_iterator_does_not_take_a_scalar(value):
    with refused(ValueError, "mine", "iterator 0"):
        with counted() as loop:
            loop.add_iterator(value)


@pytest.mark.parametrize("axis", [2, -3, 7, 2**62, -(2**63), 2**70])
def test_an_axis_of_an_iterator_out_of_range(axis):
    with refused(ValueError, "mine", "iterator 1", str(axis)):
        with counted() as loop:
            loop.add_iterator(X)
            loop.add_iterator(np.zeros([2, 3]), axis)


NO_AXES = [True, False, 1.0, 0.0, None, "0", [0], float("nan"), tf.constant(0.0), object()]


@pytest.mark.parametrize("axis", NO_AXES, ids=label)
def test_an_axis_of_an_iterator_is_an_int(axis):
    with refused(TypeError, "mine", "iterator 0", "axis"):
        with counted() as loop:
            loop.add_iterator(np.zeros([2, 3]), axis)


@pytest.mark.parametrize("reverse", [None, "no", 2.5, [True], object()], ids=label)
def test_reverse_is_a_bool(reverse):
    with refused(TypeError, "mine", "iterator 0", "reverse"):
        with counted() as loop:
            loop.add_iterator(X, reverse=reverse)


@MODES
@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_of_an_iterator_that_turns_out_to_be_out_of_range(mode, axis):
    def call(x):
        with counted(2) as loop:
            out = loop.add_loop_output(tf.reduce_sum(loop.add_iterator(x, axis)), CONCATENATE)
        return out.tensor

    with refused(ERRORS, "mine", "iterator 0", str(axis)):
        in_mode(mode, call, np.zeros([2, 3]))


@MODES
def test_an_iterator_that_turns_out_to_be_over_a_scalar(mode):
    def call(x):
        with counted(1) as loop:
            out = loop.add_loop_output(tf.reduce_sum(loop.add_iterator(x)), CONCATENATE)
        return out.tensor

    with refused(ERRORS, "mine", "iterator 0"):
        in_mode(mode, call, 1.0)


@pytest.mark.pairwise
@MODES
@pytest.mark.parametrize("limit", ["count", "while", "both"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("axis", "extent"), [(0, 3), (1, 2), (-1, 2), (0, 0)])
def test_reading_past_the_end_of_an_iterator(mode, limit, reverse, axis, extent):
    def call(x, other):
        with Loop("mine") as loop:
            k = loop.add_recurrence(0)
            k.next = k + 1
            if limit != "while":
                loop.add_trip_limit(5, COUNT)
            if limit != "count":
                loop.add_trip_limit(k < 5, WHILE)
            loop.add_loop_output(loop.add_iterator(other), CONCATENATE)
            short = loop.add_iterator(x, axis, reverse)
            out = loop.add_loop_output(tf.reduce_sum(short), CONCATENATE)
        return out.tensor

    shape = [3, 2] if extent else [0, 2]
    errors = ERRORS if limit == "count" and mode in ("eager", "static") else InvalidArgument
    with refused(errors, "mine", "iterator 1", str(extent)):
        in_mode(mode, call, np.zeros(shape), np.zeros(10))


@pytest.mark.parametrize("limit", ["count", "while"])
def test_a_condition_that_reads_past_the_end_of_its_iterator(limit):
    with refused(InvalidArgument, "mine", "iterator 0", "3"):
        with Loop("mine") as loop:
            loop.add_trip_limit(loop.add_iterator([True, True, True]), WHILE)
            if limit == "count":
                loop.add_trip_limit(4, COUNT)
            loop.add_loop_output(1, CONCATENATE)


def test_before_a_while_loop_reads_past_the_end_its_iterations_run():
    v = tf.Variable(0)
    with refused(InvalidArgument, "mine", "iterator 0"):
        with Loop("mine") as loop:
            loop.add_trip_limit(v < 100, WHILE)
            v.assign_add(1)
            loop.add_loop_output(loop.add_iterator(X), CONCATENATE)
    assert 3 <= v.numpy() <= 4


def test_a_huge_count_beside_a_short_iterator_fails_at_once():
    for count in (2**62, 2**63 - 1):
        with refused(ERRORS, "mine", "iterator 0", "3"):
            with counted(tf.constant(count, tf.int64)) as loop:
                loop.add_loop_output(loop.add_iterator(X), CONCATENATE)


# Recurrences


@pytest.mark.parametrize("value", NO_TENSORS)
def test_an_initial_value_is_a_tensor(value):
    with refused(WRONG, "mine", "recurrence 0"):
        with counted() as loop:
            loop.add_recurrence(NO_TENSORS[value])


@pytest.mark.parametrize("value", NO_TENSORS)
def test_a_next_value_is_a_tensor(value):
    with refused(WRONG, "mine", "recurrence 1"):
        with counted() as loop:
            loop.add_recurrence(0).next = 1
            s = loop.add_recurrence(0)
            s.next = NO_TENSORS[value]
            loop.add_loop_output(s, LAST)


@pytest.mark.parametrize("place", ["eager", "function"])
@pytest.mark.parametrize("used", [True, False])
def test_a_recurrence_without_a_second_input(place, used):
    def call():
        with counted() as loop:
            loop.add_recurrence(1.0).next = 2.0
            s = loop.add_recurrence(1.0)
            if used:
                loop.add_loop_output(s, LAST)

    with refused(ValueError, "mine", "recurrence 1"):
        (call if place == "eager" else tf.function(call))()


@pytest.mark.parametrize("index", [0, 2, -1, 100])
def test_a_second_input_of_another_index(index):
    with refused(ValueError, "mine", "recurrence 0", str(index)):
        with counted() as loop:
            loop.add_recurrence(1.0).set_input(index, 2.0)
    with refused(ValueError, "mine", "output 0", str(index)):
        with counted() as loop:
            loop.add_loop_output(1, CONCATENATE).set_input(index, 5)


@pytest.mark.parametrize("index", [None, "1", 1.5, [1]], ids=label)
def test_an_index_that_is_no_int(index):
    with refused(WRONG, "mine", "recurrence 0"):
        with counted() as loop:
            loop.add_recurrence(1.0).set_input(index, 2.0)
    with refused(WRONG, "mine", "output 0"):
        with counted() as loop:
            loop.add_loop_output(1, CONCATENATE).set_input(index, 5)


def test_two_second_inputs():
    def twice_next(s):
        s.next = s
        s.next = s

    def next_and_input(s):
        s.next = s
        s.set_input(1, s)

    for both in (twice_next, next_and_input):
        with refused(ValueError, "mine", "recurrence 0"):
            with counted() as loop:
                both(loop.add_recurrence(1.0))
    with refused(ValueError, "mine", "output 1"):
        with counted() as loop:
            loop.add_loop_output(1, CONCATENATE)
            loop.add_loop_output(1, CONCATENATE, length=5).set_input(1, 5)
    with refused(ValueError, "mine", "output 0"):
        with counted() as loop:
            out = loop.add_loop_output(1, CONCATENATE)
            out.set_input(1, 5)
            out.set_input(1, 5)


@pytest.mark.parametrize(
    ("initial", "following", "words"),
    [
        (1.0, tf.constant(1), ["float32", "int32"]),
        (1, tf.constant(1.0), ["int32", "float32"]),
        (1.0, tf.constant(1.0, tf.float64), ["float32", "float64"]),
        (True, tf.constant(1), ["bool", "int32"]),
        ("a", tf.constant(1), ["string", "int32"]),
        (1.0, np.float64(1), ["float32", "float64"]),
        (1.0, "text", ["float32"]),
        (1, 2.5, ["int32"]),
        (1.0, 1j, ["float32"]),
    ],
    ids=label,
)
@pytest.mark.parametrize("place", ["eager", "function"])
def test_a_next_value_of_another_type(place, initial, following, words):
    def call():
        with counted() as loop:
            s = loop.add_recurrence(initial)
            s.next = following
            loop.add_loop_output(s, LAST)

    errors = TypeError if isinstance(following, tf.Tensor) else WRONG
    with refused(errors, "mine", "recurrence 0", *words):
        (call if place == "eager" else tf.function(call))()


@pytest.mark.parametrize(
    ("initial", "following"), [([2], [3]), ([2], []), ([], [2]), ([2, 3], [3, 2]), ([1], [2])]
)
@pytest.mark.parametrize("place", ["eager", "function"])
def test_a_next_value_of_another_shape(place, initial, following):
    def call():
        with counted() as loop:
            s = loop.add_recurrence(tf.zeros(initial))
            s.next = tf.zeros(following)
            loop.add_loop_output(s, LAST)

    shapes = [tf.TensorShape(shape) for shape in (initial, following)]
    with refused(ValueError, "mine", "recurrence 0", *map(str, shapes)):
        (call if place == "eager" else tf.function(call))()


@pytest.mark.parametrize("shape", [[3], [], [2, 1], [None, None]], ids=str)
def test_a_declared_shape_that_the_initial_value_does_not_have(shape):
    with refused(ValueError, "mine", "recurrence 0"):
        with counted() as loop:
            loop.add_recurrence(tf.zeros([2]), shape=shape)


@pytest.mark.parametrize("shape", ["abc", 1.5, [1.5], ["a"], object(), [-2]], ids=label)
def test_a_declared_shape_that_is_none(shape):
    with refused(WRONG, "mine", "recurrence 0"):
        with counted() as loop:
            loop.add_recurrence(tf.zeros([2]), shape=shape)


@MODES
@pytest.mark.parametrize("limit", [COUNT, WHILE])
def test_a_shape_that_changes_when_the_loop_runs(mode, limit):
    """The static shape of the next value is [None], that of the recurrence [2]."""

    def call(x, n):
        with Loop("mine") as loop:
            k = loop.add_recurrence(0)
            k.next = k + 1
            loop.add_trip_limit(3 if limit == COUNT else k < 3, limit)
            s = loop.add_recurrence(tf.ensure_shape(x, [2]))
            s.next = tf.fill(n[tf.newaxis], 0.0)
            out = loop.add_loop_output(s, LAST)
        return out.tensor

    errors = ERRORS if mode == "eager" else InvalidArgument  # there all is known
    with refused(errors, "mine", "recurrence 1", "2", "7"):
        in_mode(mode, call, np.zeros([2], np.float32), 7)
    assert in_mode(mode, call, np.ones([2], np.float32), 2).numpy().tolist() == [0, 0]


def test_a_shape_that_changes_within_what_is_declared_and_then_beyond():
    with refused(InvalidArgument, "mine", "recurrence 0"):
        with counted() as loop:
            s = loop.add_recurrence(tf.zeros([1, 2]), shape=[None, 2])
            n = tf.shape(s)[0]
            s.next = tf.zeros(tf.stack([n + 1, 2 + n // 2]))
            loop.add_loop_output(s, LAST)


# Outputs


@pytest.mark.parametrize("value", NO_TENSORS)
@pytest.mark.parametrize("kind", [CONCATENATE, REVERSE, LAST])
def test_an_output_takes_a_tensor(value, kind):
    with refused(WRONG, "mine", "output 1"):
        with counted() as loop:
            loop.add_loop_output(1, CONCATENATE)
            loop.add_loop_output(NO_TENSORS[value], kind)


@pytest.mark.parametrize(
    "kind", [None, 0, 1, "kLAST_VALUE", "count", "", COUNT, LoopOutput, True], ids=str
)
def test_an_output_is_of_one_of_the_kinds(kind):
    with refused(TypeError, "mine", "output 0"):
        with counted() as loop:
            s = loop.add_recurrence(1)
            s.next = s
            loop.add_loop_output(s, kind)


NO_RECURRENCES = {
    "iterator": lambda loop, s: loop.add_iterator(X),
    "computed": lambda loop, s: s + 1,
    "identity": lambda loop, s: tf.identity(s),
    "invariant": lambda loop, s: tf.constant(1.0),
    "number": lambda loop, s: 1.0,
    "variable": lambda loop, s: tf.Variable(1.0),
    "output": lambda loop, s: loop.add_loop_output(s, CONCATENATE),
}


@pytest.mark.parametrize("value", NO_RECURRENCES)
def test_a_last_value_of_what_is_no_recurrence(value):
    with refused(ValueError, "mine", "output"):
        with counted() as loop:
            s = loop.add_recurrence(1.0)
            s.next = s
            loop.add_loop_output(NO_RECURRENCES[value](loop, s), LAST)


def test_a_last_value_of_the_recurrence_of_another_loop():
    with counted(name="other") as other:
        s = other.add_recurrence(1.0)
        s.next = s
        with refused(ValueError, "mine", "output 0"):
            with counted() as loop:
                loop.add_loop_output(s, LAST)
        out = other.add_loop_output(s, LAST)
    assert out.tensor.numpy() == 1


def test_a_length_of_a_last_value():
    for later in (False, True):
        with refused(ValueError, "mine", "output 0", "length"):
            with counted() as loop:
                s = loop.add_recurrence(1.0)
                s.next = s
                if later:
                    loop.add_loop_output(s, LAST).set_input(1, 5)
                else:
                    loop.add_loop_output(s, LAST, length=5)


@pytest.mark.parametrize("kind", [CONCATENATE, REVERSE])
@pytest.mark.parametrize("axis", [3, -4, 2**62, -(2**63), 2**70])
def test_an_axis_of_an_output_out_of_range(kind, axis):
    with refused(ValueError, "mine", "output 1", str(axis)):
        with counted() as loop:
            loop.add_loop_output(1, CONCATENATE)
            loop.add_loop_output(tf.zeros([2, 3]), kind, axis)


@pytest.mark.parametrize("axis", NO_AXES, ids=label)
def test_an_axis_of_an_output_is_an_int(axis):
    with refused(TypeError, "mine", "output 0", "axis"):
        with counted() as loop:
            loop.add_loop_output(tf.zeros([2, 3]), CONCATENATE, axis)


@MODES
@pytest.mark.parametrize("axis", [3, -4])
def test_an_axis_of_an_output_that_turns_out_to_be_out_of_range(mode, axis):
    def call(x):
        with counted(2) as loop:
            out = loop.add_loop_output(loop.add_iterator(x), CONCATENATE, axis)
        return out.tensor

    with refused(ERRORS, "mine", "output 0", str(axis)):
        in_mode(mode, call, np.zeros([2, 3, 4]))


@pytest.mark.parametrize(
    ("length", "errors"),
    [
        (2.5, TypeError),
        (float("nan"), TypeError),
        (tf.constant(5.0), TypeError),
        (tf.constant(5, tf.int8), TypeError),
        (True, TypeError),
        ("5", TypeError),
        ([5], ValueError),
        (tf.constant([5, 6]), ValueError),
        (2**63, WRONG),
        *((value, WRONG) for value in NO_TENSORS.values() if value is not None),
    ],
    ids=label,
)
@pytest.mark.parametrize("later", [False, True], ids=["argument", "set_input"])
def test_a_length_is_an_integer(length, errors, later):
    with refused(errors, "mine", "output 0"):
        with counted() as loop:
            if later:
                loop.add_loop_output(1, CONCATENATE).set_input(1, length)
            else:
                loop.add_loop_output(1, CONCATENATE, length=length)


def test_a_length_that_is_set_to_none():
    with refused(WRONG, "mine", "output 0"):
        with counted() as loop:
            loop.add_loop_output(1, CONCATENATE).set_input(1, None)


def test_a_length_that_turns_out_not_to_be_a_scalar():
    def call(length):
        with counted() as loop:
            out = loop.add_loop_output(1, CONCATENATE, length=length)
        return out.tensor

    with refused(ERRORS, "mine", "output 0"):
        in_mode("unknown", call, [5, 6])


@pytest.mark.parametrize("kind", [CONCATENATE, REVERSE])
@pytest.mark.parametrize("given", ["static", "length", "count", "both", "while", "both limits"])
@pytest.mark.parametrize("mode", ["eager", "static", "unknown"])
def test_a_length_below_the_number_of_trips(mode, given, kind):
    def call(x, length, count):
        with Loop("mine") as loop:
            k = loop.add_recurrence(0)
            k.next = k + 1
            if given in ("while", "both limits"):
                loop.add_trip_limit(k < 5, WHILE)
            if given != "while":
                count = count if given in ("count", "both") else 9 if given == "both limits" else 5
                loop.add_trip_limit(count, COUNT)
            loop.add_loop_output(loop.add_iterator(x), CONCATENATE)
            length = length if given in ("length", "both") else 3
            loop.add_loop_output(loop.add_iterator(x) * 2, kind, length=length)
        return [out.tensor for out in loop.outputs]

    words = ["mine", "output 1", "3"]
    if given not in ("while", "both limits"):
        words.append("5")
    with refused((ValueError, InvalidArgument), *words):
        in_mode(mode, call, np.zeros(10), 3, 5)


@pytest.mark.parametrize("length", [-1, -5, -(2**62)])
@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("mode", ["eager", "dynamic"])
def test_a_negative_length(mode, count, length):
    def call(length):
        with counted(count) as loop:
            out = loop.add_loop_output(1.5, CONCATENATE, length=length)
        return out.tensor

    with refused((ValueError, InvalidArgument), "mine", "output 0", str(length)):
        if mode == "eager":
            call(length)
        else:
            in_mode("unknown", call, tf.constant(length, tf.int64))


def test_a_length_of_zero_with_and_without_trips():
    with counted(0) as loop:
        out = loop.add_loop_output(1, CONCATENATE, length=0)
    assert out.tensor.numpy().tolist() == []
    with refused((ValueError, InvalidArgument), "mine", "output 0", "0", "3"):
        with counted() as loop:
            loop.add_loop_output(1, CONCATENATE, length=0)


@pytest.mark.parametrize("kind", [CONCATENATE, REVERSE])
@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("length", [2**63 - 1, 2**62])
@pytest.mark.parametrize("mode", ["eager", "unknown"])
def test_a_length_that_no_tensor_has(mode, length, count, kind):
    def call(length):
        with counted(count) as loop:
            out = loop.add_loop_output(tf.zeros([64], tf.float64), kind, length=length)
        return out.tensor

    with refused((ValueError, InvalidArgument), "mine", "output 0", str(length)):
        if mode == "eager":
            call(length)
        else:
            in_mode(mode, call, tf.constant(length, tf.int64))


@pytest.mark.slow
def test_a_length_that_no_memory_holds(run_program):
    """TensorFlow's allocator waits ten seconds for someone to free such an amount."""
    run_program("""
        import tensorflow as tf
        from tf_ti import Loop, LoopOutput, TripLimit

        @tf.function
        def call(length):
            with Loop("mine") as loop:
                loop.add_trip_limit(3, TripLimit.COUNT)
                value = tf.zeros([64], tf.float64)
                out = loop.add_loop_output(value, LoopOutput.REVERSE, length=length)
            return out.tensor

        try:
            call(tf.Variable(2**45, dtype=tf.int64))
        except tf.errors.ResourceExhaustedError as error:
            assert "mine" in str(error), str(error)
        else:
            raise AssertionError("a tensor of 16 petabytes")
        assert call(tf.Variable(4, dtype=tf.int64)).shape == [4, 64]
    """)


def test_values_of_differing_shapes_are_not_stacked():
    with refused(InvalidArgument, "mine", "output 0"):
        with counted() as loop:
            s = loop.add_recurrence(tf.zeros([1]), shape=[None])
            s.next = tf.concat([s, s], 0)
            loop.add_loop_output(s, CONCATENATE)


# Tensors of other loops


def test_wrappers_of_a_closed_loop_are_not_used():
    with counted() as loop:
        element, s = loop.add_iterator(X), loop.add_recurrence(1.0)
        s.next = s
        out = loop.add_loop_output(element, CONCATENATE)
    for layer in (element, s):
        with refused(ValueError, "mine"):
            layer + 1
        with refused(ValueError, "mine"):
            tf.convert_to_tensor(layer)
        with refused(ValueError, "mine"):
            tf.exp(layer)
        with refused(ValueError, "mine"):
            layer[0]
        with refused(ValueError, "mine"):
            layer.tensor  # noqa: B018
    assert out.tensor.numpy().tolist() == [1, 2, 3]


def test_wrappers_of_a_closed_loop_are_not_used_in_another():
    with counted() as loop:
        element = loop.add_iterator(X)
        loop.add_loop_output(element, CONCATENATE)
    with refused(ValueError, "mine"):
        with counted(name="second") as second:
            second.add_loop_output(element, CONCATENATE)
    with refused(ValueError, "mine"):
        with counted(name="third") as third:
            third.add_recurrence(0.0).next = element + 1


def test_tensors_of_a_closed_loop_are_not_used():
    with counted() as loop:
        inside = loop.add_iterator(X) * 2
        loop.add_loop_output(inside, CONCATENATE)
    with pytest.raises(WRONG):
        inside + 1
    for use in (
        lambda loop: loop.add_loop_output(inside, CONCATENATE),
        lambda loop: loop.add_loop_output(inside + 1, CONCATENATE),
        lambda loop: loop.add_loop_output(loop.add_iterator(tf.stack([inside] * 3)), CONCATENATE),
        lambda loop: loop.add_trip_limit(inside > 1, WHILE),
    ):
        with pytest.raises(WRONG):
            with counted(name="second") as second:
                use(second)
                second.add_loop_output(1, CONCATENATE)


def test_tensors_of_a_closed_inner_loop_are_not_used_around_it():
    with pytest.raises(WRONG):
        with counted(name="outer") as outer:
            k = outer.add_recurrence(1.0)
            k.next = k
            with counted(name="inner") as inner:
                inside = inner.add_iterator(X) * k
                inner.add_loop_output(inside, CONCATENATE)
            outer.add_loop_output(inside, CONCATENATE)


def test_tensors_of_a_closed_inner_loop_are_not_used_in_the_outer_one():
    with refused(ValueError, "inner"):
        with counted(name="outer") as outer:
            with counted(name="inner") as inner:
                element = inner.add_iterator(X)
                inner.add_loop_output(element, CONCATENATE)
            outer.add_loop_output(element + 1, CONCATENATE)


@pytest.mark.parametrize("tensor", [False, True], ids=["wrapper", "tensor"])
def test_loops_that_use_each_others_inside(tensor):
    with refused(ValueError, "first", "second"):
        with Loop("first") as first, Loop("second") as second:
            first.add_trip_limit(2, COUNT)
            second.add_trip_limit(3, COUNT)
            a, b = first.add_recurrence(1.0), second.add_recurrence(2.0)
            if tensor:
                a.next = a.tensor + b.tensor
                b.next = b.tensor * a.tensor
            else:
                a.next = a + b
                b.next = b * a
            first.add_loop_output(a, LAST)
            second.add_loop_output(b, LAST)


def test_a_tensor_of_two_loops_that_is_an_output_of_both():
    with refused(ValueError, "first", "second"):
        with Loop("first") as first, Loop("second") as second:
            first.add_trip_limit(2, COUNT)
            second.add_trip_limit(3, COUNT)
            both = first.add_iterator(X) * second.add_iterator(X)
            first.add_loop_output(both, CONCATENATE)
            second.add_loop_output(both, CONCATENATE)


def test_loops_that_start_from_each_others_outputs():
    with refused(ValueError, "second"):
        with Loop("first") as first, Loop("second") as second:
            first.add_trip_limit(2, COUNT)
            second.add_trip_limit(3, COUNT)
            a = first.add_recurrence(1)
            of_first = first.add_loop_output(a, LAST)
            b = second.add_recurrence(of_first)
            of_second = second.add_loop_output(b, LAST)
            a.next = a + b
            b.next = b + of_second


def test_a_loop_that_uses_its_own_output():
    with refused(ValueError, "mine"):
        with counted() as loop:
            s = loop.add_recurrence(1.0)
            out = loop.add_loop_output(s, LAST)
            s.next = s + out


# Outputs of loops that failed


def test_an_output_before_the_end_of_the_block():
    with counted() as loop:
        out = loop.add_loop_output(loop.add_iterator(X), CONCATENATE)
        assert out.dtype == tf.float32
    assert out.tensor.numpy().tolist() == [1, 2, 3]


@pytest.mark.parametrize("reason", ["structure", "exception", "values"])
def test_an_output_of_a_loop_that_failed(reason):
    out = None
    with pytest.raises((ValueError, KeyError, InvalidArgument)):
        with Loop("mine") as loop:
            if reason != "structure":
                loop.add_trip_limit(5, COUNT)
            out = loop.add_loop_output(loop.add_iterator(X), CONCATENATE)
            if reason == "exception":
                raise KeyError("mine")
    with refused(ValueError, "mine"):
        out.tensor  # noqa: B018
    with refused(ValueError, "mine"):
        out + 1
    with refused(ValueError, "mine"):
        tf.convert_to_tensor(out)


# Exceptions in the block


class OwnError(Exception):
    pass


@pytest.mark.parametrize("error", [OwnError, KeyboardInterrupt, StopIteration, GeneratorExit])
@pytest.mark.parametrize("depth", [1, 3])
def test_an_exception_in_the_block_passes_and_leaves_no_trace(error, depth):
    v = tf.Variable(0)

    def level(depth):
        with Loop(f"level{depth}") as loop:
            loop.add_trip_limit(2, COUNT)
            s = loop.add_recurrence(1.0)
            v.assign_add(1)
            if depth > 1:
                s.next = level(depth - 1)
            else:
                raise error("not today")
            return loop.add_loop_output(s, LAST)

    for _ in range(2):
        with pytest.raises(error, match="not today"):
            level(depth)
        assert tf.executing_eagerly()
        assert (v + 1).numpy() == 1
        assert total(X).numpy() == 6


def test_an_exception_in_the_block_in_a_function():
    fail = True

    @tf.function
    def call(x):
        y = x * 2
        try:
            with Loop("mine") as loop:
                loop.add_trip_limit(2, COUNT)
                element = loop.add_iterator(y)
                tf.print("never")
                if fail:
                    raise OwnError("not today")
                loop.add_loop_output(element, CONCATENATE)
        except OwnError:
            y = y + 1
        return total(y)

    assert call(tf.constant(X)).numpy() == 15
    graph = call.get_concrete_function(tf.constant(X)).graph
    types = [op.type for op in graph.get_operations()]
    assert sum(t.startswith("TfTi>") for t in types) == 1
    assert "PrintV2" not in types


def test_a_wrong_loop_in_a_branch_is_refused_as_elsewhere():
    with refused(ValueError, "inner", "trip limit"):
        with counted(name="outer") as outer:
            k = outer.add_recurrence(1.0)
            k.next = k

            def branch():
                with Loop("inner") as inner:
                    out = inner.add_loop_output(k, CONCATENATE)
                return out.tensor

            outer.add_loop_output(tf.cond(k > 0, branch, lambda: tf.zeros([3])), CONCATENATE)


def test_a_block_in_a_generator_that_is_closed_leaves_no_trace():
    def generator():
        with counted() as loop:
            yield loop.add_iterator(X)

    running = generator()
    assert next(running).dtype == tf.float32
    running.close()


def test_an_inner_loop_that_fails_may_be_caught_in_the_outer_block():
    with counted(2, "outer") as outer:
        s = outer.add_recurrence(1.0)
        with pytest.raises(OwnError):
            with Loop("inner") as inner:
                inner.add_trip_limit(2, COUNT)
                inner.add_recurrence(s)
                raise OwnError
        with refused(ValueError, "inner", "trip limit"):
            with Loop("inner") as inner:
                inner.add_loop_output(s, CONCATENATE)
        with Loop("third") as third:
            third.add_trip_limit(3, COUNT)
            t = third.add_recurrence(s)
            t.next = t * 2
            last = third.add_loop_output(t, LAST)
        s.next = last
        out = outer.add_loop_output(s, LAST)
    assert out.tensor.numpy() == 64


def test_a_refused_call_may_be_caught_and_the_block_goes_on():
    with counted() as loop:
        with pytest.raises(ValueError):
            loop.add_iterator(3.0)
        with pytest.raises(TypeError):
            loop.add_loop_output(1, "ALL")
        with pytest.raises(ValueError):
            loop.add_trip_limit(4, COUNT)
        element = loop.add_iterator(X)
        out = loop.add_loop_output(element, CONCATENATE)
    assert out.tensor.numpy().tolist() == [1, 2, 3]
    assert len(loop.outputs) == 1


def test_a_python_truth_value_inside_is_refused():
    with counted() as loop:
        s, flag = loop.add_recurrence(1.0), loop.add_recurrence(True)
        s.next, flag.next = s, flag
        with pytest.raises(TypeError):
            if flag:
                pass
        with pytest.raises(TypeError):
            if s > 0:
                pass
        for convert in (float, int, bool, np.asarray):
            with pytest.raises((TypeError, NotImplementedError, ValueError)):
                convert(s)
        with pytest.raises((AttributeError, NotImplementedError)):
            s.numpy()
        out = loop.add_loop_output(s, CONCATENATE)
    assert out.tensor.numpy().tolist() == [1, 1, 1]


# Errors while the loop runs


@MODES
@pytest.mark.parametrize("limit", [COUNT, WHILE])
def test_an_operation_that_fails_tells_its_message(mode, limit):
    def call(x):
        with Loop("mine") as loop:
            k = loop.add_recurrence(0)
            k.next = k + 1
            loop.add_trip_limit(5 if limit == COUNT else k < 5, limit)
            element = loop.add_iterator(x)
            tf.debugging.assert_less(element, 3, message="too big for me")
            out = loop.add_loop_output(element, CONCATENATE)
        return out.tensor

    with refused(InvalidArgument, "too big for me"):
        in_mode(mode, call, np.array([0, 1, 3, 7, 0], np.int32))


def test_a_condition_that_fails_tells_its_message():
    with refused(InvalidArgument, "too big for me"):
        with Loop("mine") as loop:
            k = loop.add_recurrence(0)
            with tf.control_dependencies([tf.debugging.assert_less(k, 3, "too big for me")]):
                loop.add_trip_limit(tf.identity(k) < 5, WHILE)
            k.next = k + 1
            loop.add_loop_output(k, LAST)


def test_an_exception_of_a_numpy_function_reaches_the_user():
    def fail(x):
        raise KeyError("no such key")

    with refused(tf.errors.OpError, "no such key"):
        with counted() as loop:
            value = tf.numpy_function(fail, [loop.add_iterator(X)], tf.float32)
            loop.add_loop_output(tf.ensure_shape(value, []), CONCATENATE)


def test_after_a_loop_failed_a_function_runs_again():
    @tf.function
    def call(x, n):
        with Loop("mine") as loop:
            loop.add_trip_limit(n, COUNT)
            out = loop.add_loop_output(loop.add_iterator(x), CONCATENATE)
        return out.tensor

    for _ in range(3):
        with refused(InvalidArgument, "mine", "iterator 0"):
            call(X, tf.constant(4))
        assert call(X, tf.constant(2)).numpy().tolist() == [1, 2]


def test_errors_of_nested_loops_name_the_loop_that_is_wrong():
    with refused(InvalidArgument, "inner", "iterator 0"):
        with counted(2, "outer") as outer:
            k = outer.add_recurrence(3)
            k.next = k + 1
            with Loop("inner") as inner:
                inner.add_trip_limit(k, COUNT)
                values = inner.add_loop_output(inner.add_iterator(X), CONCATENATE, length=9)
            outer.add_loop_output(values, CONCATENATE)


# NaN


def test_nan_passes_and_ends_a_loop_that_waits_for_a_comparison():
    with Loop() as loop:
        s = loop.add_recurrence(1.0)
        loop.add_trip_limit(s < 1e9, WHILE)
        s.next = tf.where(s > 100, np.nan, s * 10)
        steps = loop.add_loop_output(s, CONCATENATE)
        last = loop.add_loop_output(s, LAST)
    assert steps.tensor.numpy().tolist() == [1, 10, 100, 1000]
    assert np.isnan(last.tensor)
    with counted(2) as loop:
        out = loop.add_loop_output(loop.add_iterator([np.nan, 1.0]), REVERSE, length=3)
    np.testing.assert_array_equal(out.tensor, [1, np.nan, 0])


# Gradients


def test_an_error_in_a_loop_under_a_tape_leaves_the_tape_usable():
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with refused(InvalidArgument, "mine", "iterator 0"):
            with counted(tf.Variable(5)) as loop:
                loop.add_loop_output(loop.add_iterator(x), CONCATENATE)
        y = total(x)
    assert tf.convert_to_tensor(tape.gradient(y, x)).numpy().tolist() == [1, 1, 1]


def _block(x):
    with Loop() as loop:
        loop.add_trip_limit(3, "count")
        total = loop.add_recurrence(0.0)
        total.next = total + loop.add_iterator(x)
        last = loop.add_loop_output(total, "last_value")
    return last


def _block_that_captures(x):
    with Loop() as loop:
        loop.add_trip_limit(3, "count")
        total = loop.add_recurrence(0.0)
        total.next = total + tf.reduce_sum(x)
        last = loop.add_loop_output(total, "last_value")
    return last


@pytest.mark.parametrize(
    "call",
    [
        _block,
        _block_that_captures,
        lambda x: tf_ti.scan(lambda c, e: (c + e, c), 0.0, x),
        lambda x: tf_ti.scan(lambda c, e: (c + x, c), tf.zeros([3]), length=2),
        lambda x: tf_ti.while_loop(lambda c: c[0] < 9, lambda c: [c + x], [tf.zeros([3])]),
    ],
)
def test_an_eager_tensor_in_a_plain_graph_is_refused_as_tensorflow_refuses_it(call):
    x = tf.constant([1.0, 2.0, 3.0])
    with tf.Graph().as_default():
        with pytest.raises(RuntimeError) as expected:
            tf.sin(x)
        with pytest.raises(expected.type, match="(?i)eager ?tensor"):
            call(x)
