"""Structures that `tf.nest` takes apart, wherever a loop takes or gives a nested one."""

import collections
import dataclasses
import types
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti

XS = tf.constant([1.0, 2.0, 3.0])
Point = collections.namedtuple("Point", ["a", "b"])


@dataclasses.dataclass
class Pair:
    """Of tensors alone: a type, or a string in the place of one, is an error."""

    a: Any
    b: Any
    unit: str = "m"

    def __post_init__(self):
        assert tf.is_tensor(self.a) or isinstance(self.a, (float, list, tuple))

    def __tf_flatten__(self):
        return (self.unit,), (self.a, self.b)

    @classmethod
    def __tf_unflatten__(cls, metadata, parts):
        return cls(*parts, *metadata)


class Attrs:
    """A class as attrs makes it, as far as `tf.nest` looks."""

    __attrs_attrs__ = (types.SimpleNamespace(name="b"), types.SimpleNamespace(name="a"))

    def __init__(self, b, a):
        self.b, self.a = b, a


class Stack(list):
    pass


def tracked(owner, value):
    owner.attribute = value
    return owner.attribute


# Each holds a and b, and knows how to get them.
CONTAINERS = {
    "list": (lambda a, b: [a, b], list),
    "tuple": (lambda a, b: (a, b), list),
    "namedtuple": (Point, list),
    "list of a subclass": (lambda a, b: Stack([a, b]), list),
    "list of a module": (lambda a, b: tracked(tf.Module(), [a, b]), list),
    "list of a layer": (lambda a, b: tracked(keras.layers.Layer(), [a, b]), list),
    "list of a checkpoint": (lambda a, b: tracked(tf.train.Checkpoint(), [a, b]), list),
    "tuple of a module": (lambda a, b: tracked(tf.Module(), ([a], b)), lambda t: [t[0][0], t[1]]),
    "namedtuple of a module": (
        lambda a, b: tracked(tf.Module(), Point([a], b)),
        lambda t: [t.a[0], t.b],
    ),
    "dict": (lambda a, b: {"b": b, "a": a}, lambda d: [d["a"], d["b"]]),
    "dict of a module": (
        lambda a, b: tracked(tf.Module(), {"a": a, "b": b}),
        lambda d: [d["a"], d["b"]],
    ),
    "dict of a layer": (
        lambda a, b: tracked(keras.layers.Layer(), {"a": a, "b": b}),
        lambda d: [d["a"], d["b"]],
    ),
    "ordered dict": (
        lambda a, b: collections.OrderedDict([("b", b), ("a", a)]),
        lambda d: [d["a"], d["b"]],
    ),
    "dict with a default": (
        lambda a, b: collections.defaultdict(float, b=b, a=a),
        lambda d: [d["a"], d["b"]],
    ),
    "dict of a user": (
        lambda a, b: collections.UserDict(a=a, b=b),
        lambda d: [d["a"], d["b"]],
    ),
    "dict with numbers": (lambda a, b: {2.5: b, 1: a}, lambda d: [d[1], d[2.5]]),
    "dict with keys of two types": (lambda a, b: {"b": b, 1: a}, lambda d: [d[1], d["b"]]),
    "deque": (lambda a, b: collections.deque([a, b]), list),
    "dataclass": (Pair, lambda p: [p.a, p.b]),
    "attrs": (lambda a, b: Attrs(b, a), lambda p: [p.a, p.b]),
    "nested": (
        lambda a, b: {"p": Pair([a], ()), 1: tracked(tf.Module(), [(b,)])},
        lambda d: [d["p"].a[0], d[1][0][0]],
    ),
}
MODES = ["eager", "function", "plain"]


def in_mode(mode, call):
    """Runs a call that returns tensors only, in a mode."""
    if mode == "function":
        return tf.function(call)()
    tf.config.run_functions_eagerly(mode == "plain")
    try:
        return call()
    finally:
        tf.config.run_functions_eagerly(False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("container", CONTAINERS)
def test_a_carry_elements_and_results(container, mode):
    make, parts = CONTAINERS[container]
    init, xs = make(tf.constant(1.0), tf.constant(2.0)), make(XS, XS * 10)
    seen = []

    def f(carry, x):
        seen.append((carry, x))
        (a, b), (u, v) = parts(carry), parts(x)
        return make(a * 0.5 + u, b + v * a), make(a - b, u)

    def call():
        last, ys = tf_ti.scan(f, init, xs)
        seen.append((last, ys))
        return [*parts(last), *parts(ys)]

    actual = in_mode(mode, call)
    a, b, first, second = 1.0, 2.0, [], []
    for x in XS.numpy():
        first.append(a - b)
        second.append(x)
        a, b = a * 0.5 + x, b + 10 * x * a
    for value, expected in zip(actual, (a, b, first, second), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)
    # Whatever gets a container gets one of the kind.
    for one in (value for pair in seen for value in pair):
        assert one.__class__ is init.__class__  # also where a wrapper has it


@pytest.mark.parametrize("container", CONTAINERS)
def test_gradients_reach_what_containers_hold(container):
    make, parts = CONTAINERS[container]
    a, b = tf.constant(1.0), tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch([a, b, XS])

        def f(carry, x):
            c, d = parts(carry)
            u, v = parts(x)
            return make(c * u, d + v), make(c + d, 0.0)

        last, ys = tf_ti.scan(f, make(a, b), make(XS, XS))
        loss = parts(last)[0] * parts(last)[1] + tf.reduce_sum(parts(ys)[0])
    # a * 6 * (b + 6) + a + b + a + b + 1 + 2 a + b + 3
    gradient = tape.gradient(loss, [a, b])
    np.testing.assert_allclose(gradient, [6 * 8 + 4, 6 + 3])


# As tf.while_loop has it: (of init, of what f returns).
EQUAL = [
    ("list", "list of a module"),
    ("list of a layer", "list"),
    ("list of a subclass", "list of a checkpoint"),
    ("dict", "ordered dict"),
    ("dict of a module", "dict with a default"),
    ("dict of a layer", "dict of a user"),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("given, returned", [*EQUAL, *(pair[::-1] for pair in EQUAL)])
def test_containers_that_are_the_same_to_tensorflow(given, returned, mode):
    (make, parts), (make_other, _) = CONTAINERS[given], CONTAINERS[returned]

    def f(carry, x):
        a, b = parts(carry)
        return make_other(a + x, b * x), None

    def call():
        last, _ = tf_ti.scan(f, make(0.0, 1.0), XS)
        assert type(last) is type(make(0.0, 1.0))
        return parts(last)

    def by_while():
        step = lambda k, carry: (k + 1, f(carry, XS[k])[0])  # noqa: E731
        start = make(tf.constant(0.0), tf.constant(1.0))
        return tf.nest.flatten(tf.while_loop(lambda k, _: k < 3, step, (0, start))[1])

    np.testing.assert_allclose(in_mode(mode, call), in_mode(mode, by_while))


def test_namedtuples_are_the_same_by_their_names():
    other = collections.namedtuple("Point", ["a", "b"])
    last, _ = tf_ti.scan(lambda c, x: (other(c.a + x, c.b), None), Point(0.0, 0.0), XS)
    assert type(last) is Point


def test_a_view_of_a_dict_is_a_list():
    last, _ = tf_ti.scan(lambda c, x: ([c[0] + x, c[1]], None), {"a": 0.0, "b": 1.0}.values(), XS)
    assert [v.numpy() for v in last] == [6, 1]


def test_what_a_dataclass_says_of_itself_is_kept():
    def f(c, x):
        assert c.unit == "km"
        return Pair(c.a + x, c.b), Pair(x, c.a, "mm")

    last, ys = tf_ti.scan(f, Pair(0.0, 1.0, "km"), XS)
    assert (last.unit, ys.unit) == ("km", "mm")


@pytest.mark.parametrize("container", ["list of a module", "dataclass", "attrs", "dict of a layer"])
def test_a_tf_function_takes_them(container):
    make, parts = CONTAINERS[container]
    if make is Pair:  # of which TensorFlow makes one of types, to trace the function

        @dataclasses.dataclass
        class Loose(Pair):
            def __post_init__(self):
                pass

        make = Loose
    f = tf.function(lambda c, x: (make(parts(c)[0] + x, parts(c)[1] * x), None))
    last, _ = tf_ti.scan(f, make(tf.constant(0.0), tf.constant(1.0)), XS)
    assert [v.numpy() for v in parts(last)] == [6, 6]


def test_a_concrete_function_keeps_no_structure_of_an_earlier_call():
    spec = tf.TensorSpec([])
    f = tf.function(lambda c, x: ([c[0] + x, c[1]], x)).get_concrete_function([spec] * 2, spec)
    for make in (CONTAINERS[name][0] for name in ("list", "list of a module", "list of a layer")):
        init = make(tf.constant(0.0), tf.constant(1.0))
        assert type(tf_ti.scan(f, init, XS)[0]) is type(init)


@pytest.mark.parametrize("container", sorted(CONTAINERS.keys() - {"dataclass"}))  # of tensors alone
def test_shape_invariants(container):
    make, parts = CONTAINERS[container]
    last, _ = tf_ti.scan(
        lambda c, x: (make(tf.concat([parts(c)[0], [x]], 0), parts(c)[1] + x), None),
        make(tf.zeros([0]), tf.constant(0.0)),
        XS,
        shape_invariants=make(tf.TensorShape([None]), None),
    )
    assert parts(last)[0].numpy().tolist() == [1, 2, 3]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("container", CONTAINERS)
def test_results_of_a_body(container, mode):
    make, _ = CONTAINERS[container]
    port_map = tf_ti.PortMap(
        [tf_ti.InputPort(0, 0, axis=0)], [tf_ti.OutputPort(k, k, axis=0) for k in range(2)]
    )
    a, b = in_mode(mode, lambda: tf_ti.tensor_iterator(lambda x: make(x, x * 2), [XS], port_map))
    if container in ("attrs", "nested"):  # in which b comes first
        a, b = b, a
    np.testing.assert_array_equal([a, b], [XS, XS * 2])


# Recurrences of Loop: a list or a tuple is a tensor there.


NO_LISTS = ["dataclass", "attrs", "nested", *(name for name in CONTAINERS if "dict" in name)]


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("container", NO_LISTS)
def test_a_recurrence(container, mode):
    make, parts = CONTAINERS[container]

    def call():
        with tf_ti.Loop() as loop:
            loop.add_trip_limit(3, tf_ti.TripLimit.COUNT)
            x = loop.add_iterator(XS)
            state = loop.add_recurrence(make(tf.constant(1.0), tf.constant([2.0])))
            a, b = parts(state.value)
            assert state.next is None
            state.next = make(a * 0.5 + x, tf.concat([b], 0) + a)
            assert parts(state.next)[0].shape == []
            last = loop.add_loop_output(state, tf_ti.LoopOutput.LAST_VALUE)
            all_values = loop.add_loop_output(state, tf_ti.LoopOutput.CONCATENATE)
        return [*parts(last.tensor), *parts(all_values.tensor)]

    actual = in_mode(mode, call)
    a, b, first, second = 1.0, 2.0, [], []
    for x in XS.numpy():
        first.append(a)
        second.append([b])
        a, b = a * 0.5 + x, b + a
    for value, expected in zip(actual, (a, [b], first, second), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_a_recurrence_of_a_structure_has_gradients_and_shapes():
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
    with tf.GradientTape() as tape:
        tape.watch(XS)
        with tf_ti.Loop() as loop:
            loop.add_trip_limit(3, tf_ti.TripLimit.COUNT)
            x = loop.add_iterator(XS)
            state = loop.add_recurrence(
                {"all": tf.zeros([0]), "rows": ragged, "none": None},
                shape={"all": [None], "rows": None, "none": None},
            )
            value = state.value
            state.next = {
                "all": tf.concat([value["all"], [x.tensor]], 0),
                "rows": value["rows"] * x.tensor,
                "none": None,
            }
            last = loop.add_loop_output(state, tf_ti.LoopOutput.LAST_VALUE)
        loss = tf.reduce_sum(last.tensor["all"] ** 2) + tf.reduce_sum(last.tensor["rows"])
    assert last.tensor["rows"].to_list() == (ragged * 6.0).to_list()
    np.testing.assert_allclose(tape.gradient(loss, XS), XS * 2 + 36 / XS)


@pytest.mark.parametrize(
    "error, words, following",
    [
        (ValueError, r"second input\['a'\] must be a tensor, not a list of 1", {"a": [1.0]}),
        (ValueError, "second input must be a dict of keys 'a', not a tensor", 1.0),
        (TypeError, "second input is of type int32", {"a": tf.constant(1)}),
        (ValueError, r"second input has shape \(2,\)", {"a": tf.zeros(2)}),
    ],
)
def test_what_a_recurrence_cannot_be_next(error, words, following):
    with pytest.raises(error, match=words), tf_ti.Loop() as loop:
        loop.add_recurrence({"a": 0.0}).next = following


def test_a_recurrence_of_a_structure_is_no_tensor():
    with pytest.raises(TypeError, match="recurrence 0 is a dict, no tensor.*value"):
        with tf_ti.Loop() as loop:
            loop.add_recurrence({"a": 0.0}) + 1.0
    with pytest.raises(ValueError, match="shape must have the structure of the initial value"):
        with tf_ti.Loop() as loop:
            loop.add_recurrence({"a": 0.0}, shape={"b": []})
    with pytest.raises(ValueError, match="CONCATENATE is of tensors"), tf_ti.Loop() as loop:
        state = loop.add_recurrence({"a": tf.ragged.constant([[1.0]])})
        loop.add_loop_output(state, tf_ti.LoopOutput.CONCATENATE)


# Structures that differ


def returned(init, carry, mode="eager"):
    with pytest.raises(ValueError, match="f must return a carry of the structure of init") as error:
        in_mode(mode, lambda: tf_ti.scan(lambda c, x: (carry, None), init, XS)[0])
    return str(error.value)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "init, carry, words",
    [
        ([0.0, 1.0], (0.0, 1.0), "init must be a list of 2, not a tuple of 2"),
        ({"a": [0.0]}, {"a": [0.0, 0.0]}, "init['a'] must be a list of 1, not a list of 2"),
        ({"a": 0.0}, {"b": 0.0}, "init must be a dict of keys 'a', not a dict of keys 'b'"),
        ((0.0, [0.0]), (0.0, 0.0), "init[1] must be a list of 1, not a tensor"),
        ((0.0, 0.0), (0.0, {}), "init[1] must be a tensor, not a dict of no keys"),
        ((0.0, None), (0.0, 0.0), "init[1] must be None, not a tensor"),
        (Point(0.0, (0.0,)), Point(0.0, None), "init.b must be a tuple of 1, not None"),
    ],
)
def test_the_first_difference_is_named(init, carry, words, mode):
    assert words in returned(init, carry, mode)


def test_types_are_named_where_they_print_alike():
    wrapped = CONTAINERS["list of a module"][0](0.0, 1.0)
    message = returned(wrapped, (0.0, 1.0))
    assert "expected ListWrapper([*, *]), got (*, *): init must be a tensorflow." in message

    def another():
        Other = type("Pair", (Pair,), {})
        Other.__module__, Other.__qualname__ = Pair.__module__, Pair.__qualname__
        return Other(0.0, 1.0)

    message = returned(Pair(0.0, 1.0), another())
    assert "expected Pair(*, *), got Pair(*, *)" in message
    assert "Pair of 2, not another" in message


def test_results_of_another_structure_and_invariants_are_named():
    with pytest.raises(ValueError, match=r"ys\['a'\] must be a list of 1, not a tuple of 1"):
        in_mode(
            "plain",
            lambda: tf_ti.scan(lambda c, x: (c, {"a": [x] if x < 2 else (x,)}), 0.0, XS)[0],
        )
    port_map = tf_ti.PortMap([tf_ti.InputPort(0, 0, axis=0)], [tf_ti.OutputPort(0, 0, axis=0)])
    with pytest.raises(ValueError, match=r"results must be a list of 1, not a tuple of 1"):
        in_mode(
            "plain",
            lambda: tf_ti.tensor_iterator(lambda x: [x] if x[0] < 2 else (x,), [XS], port_map),
        )
    with pytest.raises(ValueError, match=r"shape_invariants\['b'\] must be a list of 1, not a tup"):
        tf_ti.scan(
            lambda c, x: (c, None),
            {"a": 0.0, "b": [0.0]},
            XS,
            shape_invariants={"a": None, "b": (None,)},
        )


@pytest.mark.parametrize("value", [{1.0, 2.0}, object(), "abc"], ids=["set", "object", "string"])
def test_what_tf_nest_does_not_take_apart_is_no_structure(value):
    if isinstance(value, str):
        assert tf_ti.scan(lambda c, x: (c, None), value, XS)[0] == b"abc"
        return
    with pytest.raises((TypeError, ValueError), match=r"init\['a'\] must be a tensor"):
        tf_ti.scan(lambda c, x: (c, None), {"a": value}, XS)


def test_a_range_is_a_tensor():
    assert tf_ti.scan(lambda c, x: (c + x, None), 0, range(4))[0] == 6
