"""Eager calls that are made again: what is kept of the first one, and when it must not serve."""

import copy
import functools
import gc
import pickle
import random
import re
import threading
import typing
import weakref

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import _tf
from tf_ti.loops.tracing import eager

XS = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
INIT = tf.zeros([2])
PORTS = tf_ti.PortMap(
    inputs=[tf_ti.InputPort(0, 0, axis=0), tf_ti.InputPort(1, 1)],
    outputs=[tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 1, axis=0)],
)
FACTOR = 2.0
MATRIX = tf.constant([[1.0, 1.0], [0.0, 1.0]])


@pytest.fixture
def traces(monkeypatch):
    """The number of functions that eager calls had to make."""
    made = []
    make = _tf.make_concrete_function

    def counted(*arguments):
        made.append(arguments)
        return make(*arguments)

    monkeypatch.setattr(eager._tf, "make_concrete_function", counted)
    return made


def scan(f, init=INIT, xs=XS, **options):
    return tf_ti.scan(f, init, xs, **options)


def new_sum(factor=FACTOR):
    """A tf.function that has not been called."""

    @tf.function
    def f(c, x):
        return factor * c + tf.linalg.matvec(MATRIX, x), c

    return f


def expected(factor=FACTOR, xs=XS, init=INIT):
    c, ys = np.array(init), []
    for x in np.array(xs):
        ys.append(c)
        c = np.float32(factor) * c + np.array(MATRIX) @ x
    return c, np.stack(ys)


def check(found, wanted):
    assert len(found) == len(wanted)
    for ours, other in zip(found, wanted):
        np.testing.assert_allclose(ours, other, rtol=1e-5)


# --- what is kept --------------------------------------------------------------------------------


def test_the_same_call_is_traced_once(traces):
    f = new_sum()
    for _ in range(4):
        check(scan(f), expected())
    assert len(traces) == 1


def test_the_same_call_of_a_tensor_iterator_is_traced_once(traces):
    @tf.function
    def body(x, c):
        c = 0.5 * c + x[0]
        return c, c[tf.newaxis]

    for _ in range(4):
        last, ys = tf_ti.tensor_iterator(body, [XS, INIT], PORTS, [tf_ti.BackEdge(0, 1)])
        np.testing.assert_allclose(last, [6.75, 8.5])
        np.testing.assert_allclose(ys[-1], last)
    assert len(traces) == 1
    with pytest.raises(ValueError, match="BackEdge"):
        tf_ti.tensor_iterator(body, [XS, INIT], PORTS, [tf_ti.BackEdge(0, 2)])
    swapped = tf_ti.PortMap(
        inputs=[tf_ti.InputPort(1, 0, axis=0), tf_ti.InputPort(0, 1)], outputs=PORTS.outputs
    )
    for _ in range(2):
        last, _ = tf_ti.tensor_iterator(body, [INIT, XS], swapped, [tf_ti.BackEdge(0, 1)])
        np.testing.assert_allclose(last, [6.75, 8.5])
    assert len(traces) == 2


def test_new_tensors_of_the_same_types_are_the_same_call(traces):
    f = new_sum()
    for k in range(4):
        xs, init = XS + float(k), INIT - float(k)
        check(scan(f, init, xs), expected(xs=xs, init=init))
    assert len(traces) == 1


class Pair(typing.NamedTuple):
    first: tf.Tensor
    second: tf.Tensor


@tf.function
def _swap(c, x):
    return Pair(c.second, c.first + x), {"b": c.first, "a": [None, (c.second,)]}


def test_structures_come_back_as_they_were(traces):
    for _ in range(3):
        carry, ys = scan(_swap, Pair(INIT, INIT + 1))
        assert type(carry) is Pair and list(ys) == ["b", "a"] and ys["a"][0] is None
        np.testing.assert_allclose(carry.second, [6.0, 8.0])
        assert ys["a"][1][0].shape == [3, 2]
    given = {"z": INIT, "a": (INIT, [INIT + 1])}

    @tf.function
    def turn(c, x):
        return {"a": (c["z"], c["a"][1]), "z": c["a"][0] + x}, None

    for _ in range(3):
        carry, ys = scan(turn, given)
        assert ys is None and list(carry) == ["z", "a"] and type(carry["a"][1]) is list
        np.testing.assert_allclose(carry["z"], [6.0, 8.0])
        np.testing.assert_allclose(carry["a"][1][0], [1.0, 1.0])


def test_numbers_and_arrays_are_what_they_are_without(traces):
    @tf.function
    def count(c, x):
        return c + x, c

    for start in (1, 2.0, np.float32(3), np.array(4.0, np.float32), 0):
        for _ in range(2):
            last, _ = tf_ti.scan(count, start, tf.constant([1.0, 2.0]))
            assert last.dtype == tf.float32 and float(last) == start + 3
    whole = tf.constant([1, 2])
    assert tf_ti.scan(count, 2**31 - 4, whole)[0].numpy() == 2**31 - 1
    assert tf_ti.scan(count, True, whole)[0].numpy() == 4
    hold = tf.function(lambda c, x: (c, x))
    for start, dtype in ((2**40, tf.int64), (7, tf.int32), (2**31, tf.int64), (-(2**31), tf.int32)):
        last, _ = tf_ti.scan(hold, start, whole)
        assert last.dtype == dtype and int(last) == start
    for start in (2**40, 7, 2**40, 2**63, 2**100):

        @tf.function
        def anew(c, x):
            return c + x, c

        outcomes = []
        for f in (count, anew):
            try:
                outcomes.append(tf_ti.scan(f, start, whole)[0])
            except (TypeError, ValueError) as error:
                outcomes.append(type(error))
        assert type(outcomes[0]) is type(outcomes[1]) and str(outcomes[0]) == str(outcomes[1])


@pytest.mark.parametrize("length", [3, tf.constant(3), tf.constant(3, tf.int64)])
def test_a_length_may_change(traces, length):
    @tf.function
    def double(c, _):
        return 2.0 * c, c

    for _ in range(2):
        last, ys = tf_ti.scan(double, tf.constant(1.0), length=length)
        assert float(last) == 8 and ys.shape == [3]
        last, ys = tf_ti.scan(double, tf.constant(1.0), length=length + 1)
        assert float(last) == 16 and ys.shape == [4]
    assert len(traces) == 1
    for wrong in (-1, 1.5, True, "3"):
        with pytest.raises((TypeError, ValueError)):
            tf_ti.scan(double, tf.constant(1.0), length=wrong)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        tf_ti.scan(double, tf.constant(1.0), length=tf.constant(-1))
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="length"):
        scan(new_sum(), length=2)


COUNTS = [
    0,
    2,
    -1,
    np.int64(2),
    np.int64(-1),
    2**63,
    2.0,
    True,
    *(
        tf.constant(count, dtype)
        for count, dtype in [
            (2, tf.int32),
            (-1, tf.int32),
            (-1, tf.int64),
            (2, tf.uint8),
            (2, tf.float32),
        ]
    ),
    tf.constant(2**63, tf.uint64),
    tf.constant([2]),
    tf.constant(0, tf.int64),
]


@pytest.mark.parametrize("count", COUNTS, ids=repr)
@pytest.mark.parametrize("make", ["scan", "while_loop", "tensor_iterator"])
def test_the_number_of_iterations_means_the_same_in_each_call(make, count):
    """A plain function's call keeps nothing; a tf.function's second call takes the short way."""

    def outcomes(wrap):
        step = wrap(lambda c, x: (c + 1.0, c))
        cond, body = wrap(lambda c: c < 9.0), wrap(lambda c: (c + 1.0,))
        ports = tf_ti.PortMap([tf_ti.InputPort(0, 0)], [tf_ti.OutputPort(0, 0)])
        call = {
            "scan": lambda n: tf_ti.scan(step, tf.constant(1.0), length=n)[0],
            "while_loop": lambda n: tf_ti.while_loop(
                cond, body, [tf.constant(1.0)], maximum_iterations=n
            )[0],
            "tensor_iterator": lambda n: tf_ti.tensor_iterator(
                body, [tf.constant(1.0)], ports, [tf_ti.BackEdge(0, 0)], num_iterations=n
            )[0],
        }[make]
        found = []
        for n in (count, tf.constant(3), count):  # the second call is kept for the third
            try:
                found.append(float(call(n)))
            except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
                found.append(type(error))
        return found

    found = outcomes(tf.function)
    assert found == outcomes(lambda function: function) and found[0] == found[2]


def test_errors_of_a_call_that_is_known_are_the_same(traces):
    @tf.function
    def f(c, x):
        return c + tf.linalg.inv(x * tf.eye(2)), None

    good = tf.constant([1.0, 2.0])
    tf_ti.scan(f, tf.zeros([2, 2]), good)
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="invertible"):
            tf_ti.scan(f, tf.zeros([2, 2]), 0 * good)
    np.testing.assert_allclose(tf_ti.scan(f, tf.zeros([2, 2]), good)[0], 1.5 * np.eye(2))
    assert len(traces) == 1


def without_numbers(error):
    """The last lines of a message, which names where it was traced before; without functions'."""
    return re.sub(r"tf_ti_loop_\d+", "", "".join(str(error).split("\n")[-2:]))


BAD_SCANS = {
    "no length": {"xs": None},
    "lengths differ": {"length": 2},
    "negative length": {"length": -1},
    "length of text": {"length": "3"},
    "length of numbers": {"length": [3]},
    "float length": {"length": tf.constant(3.0)},
    "vector as length": {"length": tf.constant([3])},
    "axis of text": {"axis": "0"},
    "list as axis": {"axis": [0]},
    "bool as axis": {"axis": False},
    "axis too large": {"axis": 2},
    "number as fuse": {"fuse": 1},
    "None as fuse": {"fuse": None},
    "list as fuse": {"fuse": [True]},
    "no checkpoints": {"checkpoint_every": 0},
    "bool as checkpoints": {"checkpoint_every": True},
    "list as checkpoints": {"checkpoint_every": [1]},
    "carry of another shape": {"init": tf.zeros([3])},
    "carry of another type": {"init": tf.zeros([2], tf.int32)},
    "carry of another structure": {"init": (INIT, INIT)},
    "text as carry": {"init": "text"},
    "object as carry": {"init": object()},
    "scalar elements": {"xs": tf.constant(1.0)},
    "numbers as elements": {"xs": [1.0, 2.0]},
    "elements of other extents": {"xs": (XS, XS[:2])},
    "elements of another rank": {"xs": XS[..., None]},
    "shape_invariants": {"shape_invariants": tf.TensorShape([3])},
    "unsorted keys": {"init": {1: INIT, "a": INIT}},
}


@pytest.mark.parametrize("bad", BAD_SCANS.values(), ids=BAD_SCANS)
def test_a_bad_call_is_refused_after_good_ones_as_before_them(bad):
    def outcome(f):
        try:
            given = {"init": INIT, "xs": XS, **bad}
            return scan(f, given.pop("init"), given.pop("xs"), **given)
        except Exception as error:
            return type(error), without_numbers(error)

    first, known = outcome(new_sum()), new_sum()
    assert isinstance(first, tuple) and issubclass(first[0], Exception)
    for _ in range(2):
        check(scan(known), expected())
        assert outcome(known) == first


BAD_ITERATORS = {
    "no inputs": {"inputs": []},
    "a tensor as inputs": {"inputs": XS},
    "text as inputs": {"inputs": "ab"},
    "an input too many": {"inputs": [XS, INIT, INIT]},
    "no port map": {"port_map": None},
    "port map of ports": {"port_map": list(PORTS.inputs)},
    "number as back edges": {"back_edges": 1},
    "back edge to nowhere": {"back_edges": [tf_ti.BackEdge(0, 5)]},
    "back edge from nowhere": {"back_edges": [tf_ti.BackEdge(5, 1)]},
    "numbers of iterations differ": {"num_iterations": 4},
    "negative number": {"num_iterations": -1},
    "number as fuse": {"fuse": 1},
    "bool as checkpoints": {"checkpoint_every": True},
    "state of another shape": {"inputs": [XS, tf.zeros([3])]},
    "state of another type": {"inputs": [XS, tf.zeros([2], tf.int64)]},
    "no state": {"inputs": [XS, None]},
}


@pytest.mark.parametrize("bad", BAD_ITERATORS.values(), ids=BAD_ITERATORS)
def test_a_bad_tensor_iterator_is_refused_after_good_ones_as_before_them(bad):
    def new_body():
        @tf.function
        def body(x, c):
            return 0.5 * c + x[0], x

        return body

    def call(body, **changes):
        given = {"inputs": [XS, INIT], "port_map": PORTS, "back_edges": [tf_ti.BackEdge(0, 1)]}
        return tf_ti.tensor_iterator(body, **{**given, **changes})

    def outcome(body):
        try:
            return call(body, **bad)
        except Exception as error:
            return type(error), without_numbers(error)

    first, known = outcome(new_body()), new_body()
    assert isinstance(first, tuple) and issubclass(first[0], Exception)
    for _ in range(2):
        np.testing.assert_allclose(call(known)[0], [6.75, 8.5])
        assert outcome(known) == first


# --- what changes --------------------------------------------------------------------------------


class Model:
    factor = 2.0

    def step(self, c, x):
        return self.factor * c + x, None

    def __call__(self, c, x):
        return self.step(c, x)


MODEL = Model()


def _of_globals(c, x):
    return FACTOR * c + x, None


def test_what_plain_functions_read_is_read_in_each_call(monkeypatch):
    local, variable, state = 2.0, tf.Variable(2.0), {}

    def of_closure(c, x):
        return local * c + x, None

    def of_helper(c, x):
        return helper(c) + x, None

    def helper(c):
        return state["factor"] * c

    def of_variable(c, x):
        return variable * c + x, None

    def of_default(c, x, factor=2.0):
        return factor * c + x, None

    partial = functools.partial(lambda c, x, model: model.step(c, x), model=MODEL)
    bodies = (of_closure, of_helper, of_variable, of_default, _of_globals, MODEL, MODEL.step)
    for factor in (2.0, 3.0, 2.0):
        local = state["factor"] = factor
        variable = tf.Variable(factor)
        of_default.__defaults__ = (factor,)
        monkeypatch.setattr(MODEL, "factor", factor)
        monkeypatch.setitem(globals(), "FACTOR", factor)
        for f in (*bodies, partial) * 2:
            last, _ = tf_ti.scan(f, tf.constant(1.0), tf.constant([1.0, 1.0]))
            assert float(last) == factor * (factor + 1) + 1, f


def test_a_tf_function_reads_a_number_once(traces):
    factor = 2.0
    f = tf.function(lambda c, x: (factor * c + x, None))
    for factor in (2.0, 3.0):  # noqa: B007
        assert float(tf_ti.scan(f, tf.constant(1.0), tf.constant([1.0]))[0]) == 3
    assert len(traces) == 1


def test_what_a_trace_asks_for_at_each_call():
    value = tf.constant(0.0)

    @tf.function
    def f(c, x):
        graph = tf.compat.v1.get_default_graph()
        w = graph.capture_call_time_value(lambda: value, tf.TensorSpec([]), key="w")
        return w * c + x, None

    for number in (2.0, 3.0, 2.0):
        value = tf.constant(number)
        assert float(tf_ti.scan(f, tf.constant(1.0), tf.constant([1.0]))[0]) == number + 1


def test_a_tf_function_that_makes_variables(traces):
    class Lazy(tf.Module):
        w = None

        @tf.function
        def step(self, c, x):
            if self.w is None:
                self.w = tf.Variable(2.0)
            return self.w * c + x, None

    one, other = Lazy(), Lazy()
    for factor in (2.0, 3.0):
        for _ in range(3):
            assert float(tf_ti.scan(one.step, tf.constant(1.0), XS[:, 0])[0]) == (
                factor**3 + factor**2 + 3 * factor + 5
            )
            assert float(tf_ti.scan(other.step, tf.constant(0.0), XS[:1, 0])[0]) == 1
        one.w.assign(3.0)
    assert len(traces) == 2


def test_a_variable_that_a_tf_function_captures(traces):
    variable = tf.Variable(2.0)
    f = tf.function(lambda c, x: (variable * c + x, None))
    for value in (2.0, 3.0, 4.0):
        variable.assign(value)
        last, _ = tf_ti.scan(f, tf.constant(1.0), tf.constant([1.0, 1.0]))
        assert float(last) == value * (value + 1) + 1
    assert len(traces) == 1


def test_programs_may_be_switched_off_between_two_calls(traces, monkeypatch):
    f = new_sum()
    for mode in ("1", "0", "1", "0"):
        monkeypatch.setenv("TF_TI_PROGRAM", mode)
        check(scan(f), expected())
    assert len(traces) == 2


def test_effects_of_a_plain_function_happen_in_each_call():
    calls = []

    def f(c, x):
        calls.append(1)
        return c + x, None

    for k in range(1, 4):
        scan(f)
        assert len(calls) == k


def test_random_numbers_follow_the_seed():
    def of_a_seed(c, x):
        return c + tf.random.uniform([2]), None

    def of_python(c, x):
        return c + random.random(), None

    tf.random.set_seed(1)
    first = scan(of_a_seed)[0].numpy()
    tf.random.set_seed(2)
    assert (scan(of_a_seed)[0].numpy() != first).all()
    tf.random.set_seed(1)
    np.testing.assert_array_equal(scan(of_a_seed)[0], first)
    assert len({float(scan(of_python)[0][0]) for _ in range(3)}) == 3


def test_other_types_shapes_structures_and_options_are_other_calls(traces):
    @tf.function
    def f(c, x):
        return tf.nest.map_structure(lambda t: t + x, c), x

    made = 0
    for k in range(2):
        for cast in (tf.float32, tf.float64, tf.int32):
            last, ys = scan(f, tf.zeros([2], cast), tf.cast(XS, cast))
            assert last.dtype == ys.dtype == cast and last.numpy().tolist() == [9, 12]
        assert scan(f, tf.zeros([1, 2]))[0].shape == [1, 2]
        assert scan(f, INIT, XS[:2])[1].shape == [2, 2]
        assert isinstance(scan(f, (INIT,))[0], tuple)
        assert isinstance(scan(f, [INIT])[0], list)
        made = made if k else len(traces)
    assert made == len(traces) == 7
    for _ in range(2):
        np.testing.assert_allclose(scan(f, reverse=True)[1], XS)
        assert scan(f, tf.zeros([3]), axis=1)[1].shape == [3, 2]
        for option in ({"fuse": False}, {"checkpoint_every": 2}, {"name": "a"}):
            check(scan(f, **option), scan(f))
    assert len(traces) > made
    for wrong in ({"axis": True}, {"fuse": 1}, {"checkpoint_every": True}, {"axis": 0.0}):
        with pytest.raises(TypeError):
            scan(f, **{"axis": 0, **wrong})
    with pytest.raises(ValueError, match="axis"):
        scan(f, axis=5)


def test_a_body_gets_a_new_trace_on_another_device(traces):
    f = new_sum()
    for _ in range(2):
        with tf.device("CPU:0"):
            check(scan(f), expected())
        check(scan(f), expected())
    assert len(traces) == 2


# --- contexts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda f: f, tf.function], ids=["plain", "tf.function"])
def test_gradients_of_calls_that_are_known(traces, make):
    w = tf.Variable(0.5)
    f = make(lambda c, x: (w * w * c + tf.sin(x), c))

    def loss(xs):
        last, ys = tf_ti.scan(f, tf.constant(1.0), xs)
        return last * last + tf.reduce_sum(ys)

    def plainly(xs):
        c, total = tf.constant(1.0), 0.0
        for x in tf.unstack(xs):
            total += c
            c = w * w * c + tf.sin(x)
        return c * c + total

    xs = tf.constant([0.1, 0.2, 0.3, 0.4])

    def derivatives(of):
        with tf.GradientTape() as outer:
            outer.watch(xs)
            with tf.GradientTape() as tape:
                tape.watch(xs)
                value = of(xs)
            first = tape.gradient(value, [w, xs])
            both = first[0] + tf.reduce_sum(tf.square(first[1]))
        return [value, *first, *outer.gradient(both, [w, xs])]

    for value in (0.5, 0.7, 0.7):
        w.assign(value)
        for ours, other in zip(derivatives(loss), derivatives(plainly), strict=True):
            np.testing.assert_allclose(ours, other, rtol=1e-4)
        np.testing.assert_allclose(loss(xs), plainly(xs), rtol=1e-5)
    assert len(traces) == 1 or make is not tf.function


@pytest.mark.parametrize("make", [lambda f: f, tf.function], ids=["plain", "tf.function"])
def test_tangents_of_calls_that_are_known(make):
    w = tf.Variable(2.0)
    f = make(lambda c, x: (w * c + x * x, None))
    x, tangent = tf.constant([1.0, 2.0]), tf.constant([1.0, 0.0])
    for _ in range(3):
        assert float(tf_ti.scan(f, tf.constant(0.0), x)[0]) == 6
        with tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
            last, _ = tf_ti.scan(f, tf.constant(0.0), x)
        assert float(accumulator.jvp(last)) == 4
        with tf.autodiff.ForwardAccumulator(w, tf.constant(1.0)) as accumulator:
            last, _ = tf_ti.scan(f, tf.constant(0.0), x)
        assert float(accumulator.jvp(last)) == 1


def test_in_functions_and_data_sets_nothing_is_kept_of_eager_calls():
    f = new_sum()
    for _ in range(2):
        check(scan(f), expected())
        check(tf.function(lambda xs, f=f: scan(f, INIT, xs))(XS), expected())
        found = next(iter(tf.data.Dataset.from_tensors(XS).map(lambda xs: scan(f, INIT, xs))))
        check(found, expected())


@pytest.mark.parametrize("make", [lambda f: f, tf.function], ids=["plain", "tf.function"])
def test_in_the_scope_of_a_strategy(make):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        w = tf.Variable(2.0)
    f = make(lambda c, x: (w * c + x, None))
    ones, one = tf.ones([2]), tf.constant(1.0)
    for value in (2.0, 3.0):
        w.assign(value)
        wanted = value * (value + 1) + 1
        assert float(tf_ti.scan(f, one, ones)[0]) == wanted
        with strategy.scope():
            assert float(tf_ti.scan(f, one, ones)[0]) == wanted
            assert float(strategy.run(lambda: tf_ti.scan(f, one, ones)[0])) == wanted


def test_where_functions_run_eagerly_python_runs_the_body():
    seen = []

    def f(c, x):
        return c + x, None

    g = tf.function(f)
    known = [scan(f)[0].numpy(), scan(g)[0].numpy()]
    tf.config.run_functions_eagerly(True)
    try:
        with_print = tf.function(lambda c, x: seen.append(float(x[0])) or f(c, x))
        scan(with_print)
        assert seen == [1.0, 3.0, 5.0]
        np.testing.assert_allclose([scan(f)[0], scan(g)[0]], known)
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_allclose([scan(f)[0], scan(g)[0]], known)


def test_a_tf_function_for_xla():
    f = tf.function(lambda c, x: (tf.sin(c) + x, c), jit_compile=True)
    first = scan(f)
    for _ in range(2):
        check(scan(f), first)
        check(scan(f.python_function), first)


def test_a_body_with_a_cell_and_one_with_effects(capfd):
    w, r = tf.random.stateless_normal([2, 8], [1, 2]), tf.random.stateless_normal([8, 8], [3, 4])

    def cell(h, x):
        h = tf.tanh(x @ w + h @ r)
        return h, h

    xs, h = tf.ones([5, 3, 2]), tf.zeros([3, 8])
    function = tf.function(cell)
    wanted = tf_ti.scan(cell, h, xs, fuse=False)
    for _ in range(3):
        check(tf_ti.scan(cell, h, xs), wanted)
        check(tf_ti.scan(function, h, xs), wanted)

    total = tf.Variable(0.0)

    def adds(c, x):
        total.assign_add(x)
        tf.print("element", x)
        return c + x, None

    for f in (adds, tf.function(adds)):
        for k in range(1, 4):
            tf_ti.scan(f, tf.constant(0.0), tf.constant([1.0, 2.0]))
            assert float(total) == 3 * k
        total.assign(0.0)
    assert capfd.readouterr().err.count("element") == 12


# --- what is held --------------------------------------------------------------------------------


def test_what_is_kept_goes_with_the_body():
    captured = tf.constant([1.0, 2.0])
    f = tf.function(lambda c, x: (c + x * captured, None))
    for _ in range(2):
        scan(f)
    dead = [weakref.ref(f), weakref.ref(captured)]
    f = captured = None
    gc.collect()
    assert [reference() for reference in dead] == [None, None]


def test_many_bodies_and_many_options_do_not_add_up():
    def count():
        gc.collect()
        return sum(isinstance(thing, _tf.FuncGraph) for thing in gc.get_objects())

    f = new_sum()
    before = count()
    for k in range(70):
        scan(new_sum(float(k)))
        scan(f, name=f"n{k}")
    # Of the concrete function each has its loop, and the body's graph.
    assert count() - before <= 2 * 70 + 8


def test_copies_and_decorated_functions_keep_nothing_of_others():
    f = new_sum()
    scan(f)

    @tf.function
    @functools.wraps(f)
    def decorated(c, x):
        c, y = f(c, x)
        return c + 1.0, y

    for _ in range(2):
        last, _ = scan(decorated)
        assert (last != expected()[0]).numpy().all()
        check(scan(f), expected())
    kept = f.__dict__["_tf_ti_calls"]
    assert copy.deepcopy(kept) is None and pickle.loads(pickle.dumps(kept)) is None


def test_threads_share_what_is_kept():
    f, failures = new_sum(), []

    def call():
        try:
            for k in range(20):
                xs = XS[: 1 + k % 3]
                check(scan(f, xs=xs), expected(xs=xs))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
