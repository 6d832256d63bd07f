"""Conditionals in bodies of loops: those of small branches become selects where programs run."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import convert_to_constants
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import tf_ti
from tf_ti import _tf
from tf_ti.loops import spec as _spec
from tf_ti.loops.traced import TracedLoop

pytestmark = pytest.mark.quarter

LAST, CONCATENATE, _ = tf_ti.LoopOutput
X = tf.constant([-1.7, 0.4, 1.1, -0.3, 2.3, 0.7])
ROWS = tf.random.stateless_normal([6, 3], [1, 2])
SCALARS = tf.constant(0.3), X
ARGUMENTS = tf.constant([0.3, -0.2, 0.8]), ROWS
COUNTER = tf.Variable(0)
LIMIT = tf.constant(0.5)
KINDS = ("If", "StatelessIf", "Case", "StatelessCase")


# --- bodies, of a carry and an element, to a carry and a result ----------------------------------


def on_state(c, x):
    y = tf.cond(tf.reduce_sum(c) > 0, lambda: tf.sin(c) * x, lambda: 0.5 * c + tf.exp(-x * x))
    return y, 2.0 * y


def on_slice(c, x):
    y = tf.cond(tf.reduce_sum(x) > 0, lambda: 0.7 * c + x, lambda: tf.tanh(c - x))
    return y, y * y


def on_capture(c, x):
    y = tf.cond(LIMIT > 0, lambda: c * LIMIT + x, lambda: c - x)
    return y, y


def nested(c, x):
    def positive():
        return tf.cond(tf.reduce_sum(c) > 0, lambda: tf.sin(c), lambda: c * x)

    y = tf.cond(tf.reduce_sum(x) > 0, positive, lambda: tf.cos(c) * 0.3)
    return y + 0.1 * x, y


def one_after_another(c, x):
    a, b = tf.cond(tf.reduce_sum(x) > 0, lambda: (c, tf.sin(x)), lambda: (tf.sin(c), x))
    y = tf.cond(tf.reduce_sum(a) > 0.2, lambda: a * b, lambda: a + b)
    return 0.5 * y + a, b


def inputs_and_constants(c, x):
    a = tf.cond(tf.reduce_sum(x) > 0, lambda: c, lambda: x)
    b = tf.cond(tf.reduce_sum(x) > 1, lambda: tf.ones_like(x), lambda: -tf.ones_like(x))
    return 0.5 * a * b, a + b


def same_in_both(c, x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: c + 0, lambda: c + 0) + x, c


def on_number(c, x):
    (y,) = tf.raw_ops.StatelessIf(
        cond=tf.cast(2 * x if x.shape.rank == 0 else 2 * x[0], tf.int32),
        input=[c, x],
        Tout=[tf.float32],
        then_branch=tf.function(lambda c, x: tf.sin(c) * x).get_concrete_function(c, x),
        else_branch=tf.function(lambda c, x: 0.5 * c + x).get_concrete_function(c, x),
    )
    y.set_shape(x.shape)
    return y, y


def switch(c, x):
    s = tf.reduce_sum(x)
    numbers = [tf.cast(s > -1, tf.int32), tf.cast(s > 0, tf.int32), tf.cast(s > 1, tf.int32)]
    index = numbers[0] + numbers[1] + 3 * numbers[2]  # one that no branch has, too
    branches = [lambda: tf.sin(c), lambda: c * x, lambda: c + x, lambda: 0.1 * tf.exp(-c * c)]
    y = tf.switch_case(index, branches)
    return 0.9 * y, y


def case(c, x):
    s = tf.reduce_sum(x)
    y = tf.case([(s > 1, lambda: tf.sin(c)), (s > 0, lambda: c * x)], default=lambda: c + 0.5 * x)
    return y, y


def reductions(c, x):
    z = tf.stack([c, x])
    y = tf.cond(
        tf.reduce_sum(x) > 0,
        lambda: tf.reduce_mean(z, 0) - tf.reduce_max(tf.nn.softmax(tf.reshape(z, [-1]))),
        lambda: z[1] + tf.reduce_sum(z * tf.reshape(c, [1, *c.shape]), 0),
    )
    return y, y


def joined(c, x):
    z = tf.concat([tf.reshape(c, [-1]), tf.reshape(x, [-1])], 0)
    n = c.shape.num_elements()

    def halves():
        return tf.reshape(tf.concat([z[n:] * 0.5, z[:1]], 0)[:n], c.shape)

    y = tf.cond(z[0] > 0, halves, lambda: tf.reshape(tf.split(z, 2)[0], c.shape) + 0.1)
    return y, tf.sin(y)


def with_call(c, x):
    inner = tf.function(lambda a: tf.sin(a) * x)
    y = tf.cond(tf.reduce_sum(x) > 0, lambda: inner(c), lambda: c + 0.1)
    return y, y


def by_autograph(c, x):
    if tf.reduce_sum(x) > 0:
        y = tf.sin(c)
        if tf.reduce_sum(c) > 0:
            y = y + x
    else:
        y = 0.5 * c * x
    return y, 2.0 * y


def custom_gradient(c, x):
    @tf.custom_gradient
    def clipped(a):
        return tf.sin(a), lambda grad: tf.clip_by_value(grad, -0.1, 0.1) * tf.cos(a)

    y = tf.cond(tf.reduce_sum(x) > 0, lambda: clipped(c) + x, lambda: c * x)
    return y, y


BODIES = {
    f.__name__: f
    for f in [
        *(on_state, on_slice, on_capture, nested, one_after_another, inputs_and_constants),
        *(same_in_both, on_number, switch, case, reductions, joined, with_call, by_autograph),
    ]
}
# Those of which second derivatives keep conditionals: TensorFlow's call functions that no graph
# knows, where there were calls or other conditionals in the branches, or have unknown shapes.
OPEN = ("joined", "nested", "with_call", "by_autograph")


# --- ways to run a body ---------------------------------------------------------------------------


def scan(f, **options):
    return lambda init, xs: tf_ti.scan(f, init, xs, **options)


def block(f):
    def run(init, xs):
        with tf_ti.Loop() as loop:
            loop.add_trip_limit(tf.shape(xs)[0], tf_ti.TripLimit.COUNT)
            c = loop.add_recurrence(init)
            c.next, y = f(tf.identity(c), tf.identity(loop.add_iterator(xs)))
            last = loop.add_loop_output(c, LAST)
            ys = loop.add_loop_output(y, CONCATENATE)
        return last.tensor, ys.tensor

    return run


def iterator(f):
    def run(init, xs):
        ports = tf_ti.PortMap(
            inputs=[tf_ti.InputPort(0, 0), tf_ti.InputPort(1, 1, axis=0)],
            outputs=[tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 1, axis=0)],
        )

        def body(c, x):
            c, y = f(c, x[0])
            return c, y[tf.newaxis]

        return tf_ti.tensor_iterator(body, [init, xs], ports, [tf_ti.BackEdge(0, 0)])

    return run


def unrolled(f):
    step = tf.function(f, autograph=False)

    def run(c, xs):
        ys = []
        for k in range(xs.shape[0]):
            c, y = step(c, xs[k])
            ys.append(y)
        return c, tf.stack(ys)

    return run


WAYS = {"scan": scan, "Loop": block, "tensor_iterator": iterator}


def loss_of(run, init, xs):
    last, ys = run(init, xs)
    return tf.reduce_sum(tf.sin(last)) + tf.reduce_sum(tf.cos(ys))


def derivatives(run):
    """The values, the gradients, and the gradients of the gradients' squares."""

    def compute(init, xs):
        with tf.GradientTape() as outer:
            outer.watch([init, xs])
            with tf.GradientTape() as inner:
                inner.watch([init, xs])
                loss = loss_of(run, init, xs)
            first = inner.gradient(loss, [init, xs], unconnected_gradients="zero")
            square = tf.add_n([tf.reduce_sum(g * g) for g in first])
        second = outer.gradient(square, [init, xs], unconnected_gradients="zero")
        return [*run(init, xs), *first, *second]

    return compute


def slopes(run):
    """The values, and the gradients."""

    def compute(init, xs):
        with tf.GradientTape() as tape:
            tape.watch([init, xs])
            loss = loss_of(run, init, xs)
        return loss, *tape.gradient(loss, [init, xs], unconnected_gradients="zero")

    return compute


def loops_in(graph):
    return [op for op in graph.get_operations() if op.type in _spec.OPS]


def bodies_in(function, *arguments):
    """The operations, by type, of the bodies that loops run."""
    found = []
    for op in loops_in(function.get_concrete_function(*arguments).graph):
        body = _tf.find_function(op.graph, op.get_attr("body").name).graph
        found.append(collections.Counter(inner.type for inner in body.get_operations()))
    return found


def count(bodies, kinds=KINDS):
    return sum(body[kind] for body in bodies for kind in kinds)


def assert_same(ours, others):
    for one, other in zip(tf.nest.flatten(ours), tf.nest.flatten(others), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        scale = np.abs(other).max(initial=1.0, where=np.isfinite(other))
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.needs_programs
@pytest.mark.parametrize("name", BODIES)
def test_values_and_derivatives(name, monkeypatch):
    f = BODIES[name]
    function = tf.function(derivatives(scan(f)), autograph=False)
    bodies = bodies_in(function, *ARGUMENTS)
    if name in OPEN:  # their second derivatives stay conditionals
        assert sum(not count([body]) for body in bodies) >= 3, bodies
    else:
        assert not count(bodies), bodies
    found = [function(*ARGUMENTS) for _ in range(3)][-1]
    monkeypatch.setenv("TF_TI_PROGRAM", "0")
    by_kernels = tf.function(derivatives(scan(f)), autograph=False)
    assert count(bodies_in(by_kernels, *ARGUMENTS))
    assert_same(found, by_kernels(*ARGUMENTS))


@pytest.mark.needs_programs
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", BODIES)
def test_ways_in_beside_an_unrolled_loop(name, way):
    f = BODIES[name]
    if name == "on_number":
        pytest.skip("TensorFlow has no gradient of it outside of loops")
    if name == "by_autograph":
        f = tf.autograph.to_graph(f)
    for arguments in (ARGUMENTS, SCALARS):
        function = tf.function(slopes(WAYS[way](f)), autograph=False)
        assert not count(bodies_in(function, *arguments))
        found = [function(*arguments) for _ in range(2)][-1]
        assert_same(found, tf.function(slopes(unrolled(f)), autograph=False)(*arguments))


# --- conditions of loops --------------------------------------------------------------------------


def and_of_parts(xs, limit):
    c, k = tf.zeros_like(xs[0]), tf.constant(0)
    while k < tf.shape(xs)[0] and tf.reduce_max(c) < limit:
        c = 0.9 * c + xs[k]
        k += 1
    return c, k


def or_of_parts(xs, limit):
    c, k = tf.zeros_like(xs[0]), tf.constant(0)
    while k < 2 or (k < 5 and tf.reduce_max(c) < limit):
        c = 0.9 * c + xs[k]
        k += 1
    return c, k


def until(xs, limit):
    def body(c, x):
        c = 0.9 * c + x
        return c, c

    def is_last(c, x):
        return tf.cond(tf.reduce_sum(c) > 0, lambda: tf.reduce_max(c) >= limit, lambda: False)

    return tf_ti.scan(body, tf.zeros_like(xs[0]), xs, until=is_last)


def read_past_the_end(xs, limit):
    c, k = tf.zeros_like(xs[0]), tf.constant(0)
    while k < tf.shape(xs)[0] and xs[k, 0] < limit:  # of which the second part may fail
        c = 0.9 * c + xs[k]
        k += 1
    return c, k


CONDITIONS = [and_of_parts, or_of_parts, until, read_past_the_end]


def conditions_in(function, *arguments):
    """The operations, by type, of the conditions that loops run."""
    found = []
    for op in loops_in(function.get_concrete_function(*arguments).graph):
        for condition in op.get_attr("condition"):
            graph = _tf.find_function(op.graph, condition.name).graph
            found.append(collections.Counter(inner.type for inner in graph.get_operations()))
    return found


@pytest.mark.needs_programs
@pytest.mark.parametrize("f", CONDITIONS, ids=lambda f: f.__name__)
def test_conditions_of_loops(f, monkeypatch):
    """Each part of a condition ends the loop for some limit."""

    def run(xs, limit):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            results = f(xs, limit)
            total = tf.reduce_sum(tf.nest.flatten(results)[0])
        return results, tape.gradient(total, xs)

    with tf_ti.accelerate():
        function = tf.function(f)
        conditions = conditions_in(function, ROWS, LIMIT)
        with_gradient = tf.function(run)
        with_gradient.get_concrete_function(ROWS, LIMIT)
    assert conditions and count(conditions) == (f is read_past_the_end), conditions
    monkeypatch.setenv("TF_TI_PROGRAM", "0")
    others = tf.function(run)
    for limit in (-9.0, 0.2, 0.8, 1.5, 99.0):
        limit = tf.constant(limit)
        wanted, slopes_wanted = others(ROWS, limit)
        for _ in range(2):
            assert_same(function(ROWS, limit), wanted)
        found, slopes_found = with_gradient(ROWS, limit)
        assert_same(found, wanted)
        assert_same(slopes_found, slopes_wanted)


@pytest.mark.needs_programs
def test_the_account_names_what_kernels_run_of_a_condition():
    with tf_ti.accelerate():
        function = tf.function(read_past_the_end)
        function(ROWS, LIMIT)
    text = str(tf_ti.explain(function, ROWS, LIMIT))
    assert "and 1 by TensorFlow's kernels" in text
    assert "one by one: a branch has StridedSlice of positions or shapes" in text


# --- what is not taken ----------------------------------------------------------------------------


def root(c, x):
    y = tf.cond(x > 0, lambda: tf.sqrt(x) * c, lambda: 0.0 * c)
    return 0.5 * c + y, y


def logarithm(c, x):
    def of_logarithm():
        return tf.math.log(x) / x + tf.pow(x, 0.3) * c

    y = tf.cond(x > 0, of_logarithm, lambda: tf.sin(c) * x)
    return 0.9 * c + tf.sin(y), y


@pytest.mark.needs_programs
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("f", [root, logarithm])
def test_nan_of_the_other_branch_stays_out_of_values_and_derivatives(f, way, monkeypatch):
    xs = tf.constant([0.0, -1.0, 0.5, 0.0, 2.0, -0.1])
    function = tf.function(derivatives(WAYS[way](f)), autograph=False)
    init = tf.constant(0.7)
    assert not count(bodies_in(function, init, xs))
    found = function(init, xs)
    assert all(np.isfinite(value).all() for value in found)
    assert_same(found, tf.function(derivatives(unrolled(f)), autograph=False)(init, xs))
    monkeypatch.setenv("TF_TI_PROGRAM", "0")
    by_kernels = tf.function(derivatives(WAYS[way](f)), autograph=False)
    assert_same(found, by_kernels(init, xs))


def test_a_select_by_hand_has_another_gradient():
    """So the derivative must not be that of the select that runs."""

    def by_hand(c, x):
        return c + tf.where(x > 0, tf.math.log(x), 0.0), c

    xs = tf.constant([np.nan, 0.0, 4.0])
    *_, grad = tf.function(slopes(scan(by_hand)))(tf.constant(0.0), xs)
    assert np.isnan(grad[:2]).all()

    def as_conditional(c, x):
        return c + tf.cond(x > 0, lambda: tf.sqrt(x), lambda: 0.0), c

    *_, grad = tf.function(slopes(scan(as_conditional)))(tf.constant(0.0), xs)
    assert np.isfinite(grad).all() and not grad[:2].numpy().any()


@pytest.mark.needs_programs
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.float64, tf.bool])
def test_other_types(dtype, monkeypatch):
    def f(c, x):
        if dtype == tf.bool:
            return tf.cond(x > 3, lambda: ~c, lambda: c & (x > 1)), c
        value = tf.cast(x, dtype)
        return tf.cond(x > 3, lambda: c * 2 + value, lambda: c - value), c

    def run(xs):
        return tf_ti.scan(f, tf.cast(1, dtype), xs)

    xs = tf.constant([1, 5, 2, 7, 0, 4])
    assert not count(bodies_in(tf.function(run), xs))
    found = tf.function(run)(xs)
    monkeypatch.setenv("TF_TI_PROGRAM", "0")
    for one, other in zip(found, tf.function(run)(xs)):
        np.testing.assert_array_equal(one, other)


@pytest.mark.needs_programs
@pytest.mark.parametrize("dtype", [tf.bool, tf.int32, tf.int64, tf.float32, tf.float64])
def test_a_condition_is_true_unless_it_is_0(dtype):
    numbers = [2.0, 0.0, -1.0, -0.0, 0.0, 0.5 if dtype.is_floating else 3.0]
    conditions = tf.cast(tf.constant(numbers + [np.nan] * dtype.is_floating), dtype)
    spec = tf.TensorSpec([], tf.int32)
    branches = {
        "then_branch": tf.function(lambda c: 2 * c).get_concrete_function(spec),
        "else_branch": tf.function(lambda c: c + 3).get_concrete_function(spec),
    }

    def f(c, condition):
        (c,) = tf.raw_ops.StatelessIf(cond=condition, input=[c], Tout=[c.dtype], **branches)
        c.set_shape([])
        return c, c

    run = tf.function(scan(f), autograph=False)
    assert not count(bodies_in(run, 1, conditions))
    expected, c = [], 1
    for condition in conditions.numpy():
        c = 2 * c if condition else c + 3
        expected.append(c)
    for _ in range(2):  # A short loop's second call runs programs.
        last, values = run(1, conditions)
        assert last == c
        np.testing.assert_array_equal(values, expected)


# --- conditionals in conditionals by the same number ----------------------------------------------


def one_by_one(f):
    """The scan, as Python runs it: it takes the branch that a number has."""

    def run(c, xs):
        ys = []
        for k in range(xs[0].shape[0]):
            c, y = f(c, [x[k] for x in xs])
            ys.append(y)
        return c, tf.stack(ys)

    return run


def slopes_by_numbers(run, init, x, *numbers):
    """The values, and the gradients, beside integers."""
    with tf.GradientTape() as tape:
        tape.watch([init, x])
        last, ys = run(init, (x, *numbers))
        loss = tf.sin(last) + tf.reduce_sum(tf.cos(ys))
    return ys, *tape.gradient(loss, [init, x], unconnected_gradients="zero")


def check_by_numbers(f, *arguments):
    function = tf.function(lambda *a: slopes_by_numbers(scan(f), *a), autograph=False)
    assert not count(bodies_in(function, *arguments))
    assert_same(function(*arguments), slopes_by_numbers(one_by_one(f), *arguments))


def random_conditionals(rng):
    """A function of a carry, an element, two numbers and two tests of them."""

    def leaf():
        a, b = map(float, rng.uniform(-1, 1, 2))
        leaves = [
            lambda c, x, _: a * tf.sin(c) + b,
            lambda c, x, _: c * x + a,
            lambda c, x, _: x + b,
            lambda c, x, _: c,
        ]
        return leaves[rng.integers(4)]

    def tree(depth):
        if not depth:
            return leaf()
        which = int(rng.random() < 0.3)
        is_switch = rng.random() < 0.7
        by = which if is_switch or rng.random() < 0.5 else which + 2
        branches = [tree(depth - 1) for _ in range(rng.integers(1, 6) if is_switch else 2)]
        after = leaf()

        def run(c, x, numbers):
            calls = [lambda f=f: f(c, x, numbers) for f in branches]
            y = tf.switch_case(numbers[by], calls) if is_switch else tf.cond(numbers[by], *calls)
            return y + after(c, x, numbers)

        return run

    return tree(2)


@pytest.mark.needs_programs
@pytest.mark.parametrize("seed", range(3), indirect=True)
def test_random_conditionals_in_conditionals_by_the_same_numbers(rng):
    tree = random_conditionals(rng)

    def f(c, given):
        x, i, j = given
        y = tree(0.5 * c, x, (i, j, i > 0, j > 1))
        return y, y

    x = tf.constant(rng.normal(size=16), tf.float32)
    numbers = [tf.constant(rng.permutation(np.arange(-2, 6).repeat(2)), tf.int32) for _ in "ij"]
    check_by_numbers(f, tf.constant(0.5), x, *numbers)


@pytest.mark.needs_programs
@pytest.mark.parametrize("outer", [1, 3])
def test_each_number_has_its_branch_in_a_branch_of_each_number(outer):
    """Of a switch of so many branches, each with a switch, and a cond, by the same number."""

    def f(c, given):
        x, i = given

        def inner(k):
            many = [lambda m=m: c * x + float(m) for m in range(k, k + 4)]
            return tf.switch_case(i, many) + tf.cond(i, lambda: c * x, lambda: 0.5 * c)

        y = 0.1 * tf.switch_case(i, [lambda k=k: inner(10 * k) for k in range(outer)])
        return y, y

    i = tf.range(-2, 8)
    check_by_numbers(f, tf.constant(0.7), tf.sin(tf.range(10.0)), i)


@pytest.mark.needs_programs
def test_on_an_index():
    def run(init):
        with tf_ti.Loop() as loop:
            loop.add_trip_limit(7, tf_ti.TripLimit.COUNT)
            k = loop.add_recurrence(0)
            k.next = k + 1
            c = loop.add_recurrence(init)
            c.next = tf.cond(k % 2 == 0, lambda: c + 1.0, lambda: c * 3.0)
            return loop.add_loop_output(c, LAST)

    function = tf.function(lambda init: run(init).tensor)
    assert not count(bodies_in(function, tf.constant(1.0)))
    assert function(tf.constant(1.0)).numpy() == ((((1 + 1) * 3 + 1) * 3 + 1) * 3) + 1


# --- what stays a conditional ---------------------------------------------------------------------


def divide(c, x):
    return tf.cond(x > 0, lambda: c // x, lambda: c + 1)


def gather(c, x):
    return tf.cond(x < 3, lambda: tf.gather([5, 6, 7], x), lambda: c + 1)


def element(c, x):
    return tf.cond(x < 3, lambda: tf.constant([5, 6, 7])[x], lambda: c + 1)


def check(c, x):
    def checked():
        with tf.control_dependencies([tf.debugging.assert_less(x, 3)]):
            return c + x

    return tf.cond(x < 3, checked, lambda: c + 1)


def power(c, x):
    return tf.cond(x >= 0, lambda: tf.constant(2) ** x, lambda: c)


def large(c, x):
    ones = tf.ones([200, 200], tf.int32)
    return tf.cond(x > 2, lambda: tf.reduce_sum(ones * x), lambda: c + 1)


def write(c, x):
    def counted():
        COUNTER.assign_add(1)
        return c + x

    return tf.cond(x > 1, counted, lambda: c)


def inner_loop(c, x):
    def many():
        return tf.while_loop(lambda k, v: k < 3, lambda k, v: (k + 1, v + x), (0, c))[1]

    return tf.cond(x > 1, many, lambda: c)


@pytest.mark.parametrize(
    "f", [divide, gather, element, check, power, large, write, inner_loop], ids=lambda f: f.__name__
)
def test_branches_that_are_not_free_or_may_fail(f):
    def run(xs):
        return tf_ti.scan(lambda c, x: (f(c, x), c), 40, xs)

    xs = [4, 0, 3, 2, 0, 5, 1, -1 if f is power else 7]
    function = tf.function(run)
    (body,) = bodies_in(function, tf.constant(xs))
    assert count([body]) == 1, body
    COUNTER.assign(0)
    last, ys = function(tf.constant(xs))
    assert COUNTER.numpy() == (sum(x > 1 for x in xs) if f is write else 0)
    carry, wanted = 40, []
    for x in xs:
        wanted.append(carry)
        carry = int(f(tf.constant(carry), tf.constant(x)))
    np.testing.assert_array_equal(ys, wanted)
    assert last.numpy() == carry


WRONG_AXES = {
    "cumsum": lambda v: tf.cumsum(v, axis=5),
    "cumprod": lambda v: tf.math.cumprod(v, -3),
    "roll": lambda v: tf.roll(v, 1, axis=4),
    "transpose": lambda v: tf.transpose(v, [0, 0]),
    "sum": lambda v: v + tf.reduce_sum(v, [0, 0]),
    "max": lambda v: v + tf.reduce_max(v, [1, -1]),
}


@pytest.mark.parametrize("form", WRONG_AXES)
def test_axes_that_are_wrong_where_nothing_runs(form):
    """TensorFlow's shape functions take them, and its kernels would not."""
    x = tf.reshape(tf.range(9.0), [3, 3])

    @tf.function
    def branch(x):
        def body(c, _):
            return tf.cond(c[0, 0] > 99.0, lambda: WRONG_AXES[form](c), lambda: c + 1.0), None

        return tf_ti.scan(body, x, length=3)[0]

    @tf.function
    def nothing(x, n):
        w = x * 2.0
        body = lambda k, c: (k + 1, c + WRONG_AXES[form](w))  # noqa: E731
        return tf_ti.while_loop(lambda k, c: k < n, body, (0, x))[1]

    np.testing.assert_array_equal(branch(x), x + 3.0)
    np.testing.assert_array_equal(nothing(x, 0), x)
    with pytest.raises(tf.errors.InvalidArgumentError):
        branch(x + 100.0)
    with pytest.raises(tf.errors.InvalidArgumentError):
        nothing(x, 1)


def test_prints_of_the_branch_that_is_taken(capfd):
    def f(c, x):
        def loud():
            tf.print("loud", x)
            return c + x

        return tf.cond(x > 1, loud, lambda: c), c

    function = tf.function(lambda xs: tf_ti.scan(f, 0, xs))
    assert function(tf.constant([1, 2, 0, 3, 1]))[0].numpy() == 5
    assert capfd.readouterr().err.split() == ["loud", "2", "loud", "3"]


def test_unknown_shapes():
    def f(c, x):
        return tf.cond(x[0] > 0, lambda: c + x, lambda: c * x), c

    function = tf.function(
        lambda c, xs: tf_ti.scan(f, c, xs),
        input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None, None])],
    )
    assert count(bodies_in(function)) == 1
    last, _ = function([1.0, 2.0], [[1.0, 1.0], [-1.0, 3.0]])
    np.testing.assert_array_equal(last, [-2.0, 9.0])


def test_branches_of_several_shapes():
    """A select of them would repeat the shorter one."""

    def f(c, x):
        y = tf.cond(x > 0, lambda: tf.reshape(c + x, [1]), lambda: tf.stack([c, x, c * x]))
        return tf.reduce_sum(y), tf.size(y)

    function = tf.function(lambda xs: tf_ti.scan(f, 0.5, xs))
    assert count(bodies_in(function, X)) == 1
    assert_same(function(X), unrolled(f)(tf.constant(0.5), X))


def test_a_condition_that_is_a_vector_is_an_error_as_before():
    def f(c, x):
        return tf.cond(tf.reshape(x > 0, [1]), lambda: c + x, lambda: c), c

    last, _ = tf.function(lambda xs: tf_ti.scan(f, 0.0, xs))(X)
    np.testing.assert_allclose(last, sum(x for x in X.numpy() if x > 0), rtol=1e-5)


@pytest.mark.parametrize("way", ["fuse", "jit", "environment"])
def test_kept_where_no_programs_are(way, monkeypatch):
    if way == "jit" and tf_ti._library.XLA_PROBLEM:
        pytest.skip(tf_ti._library.XLA_PROBLEM)
    run = scan(on_state, fuse=way != "fuse")
    if way == "environment":
        monkeypatch.setenv("TF_TI_PROGRAM", "0")
    function = tf.function(slopes(run), jit_compile=way == "jit")
    assert count(bodies_in(function, *ARGUMENTS)[:1]) == 1
    monkeypatch.delenv("TF_TI_PROGRAM", raising=False)
    assert_same(function(*ARGUMENTS), tf.function(slopes(scan(on_state)))(*ARGUMENTS))


@pytest.mark.needs_programs
def test_notes_say_what_becomes_of_conditionals():
    def drawing(f):
        @tf.function
        def run(xs):
            with tf_ti.Loop("Sum") as loop:
                loop.add_trip_limit(6, tf_ti.TripLimit.COUNT)
                c = loop.add_recurrence(0)
                c.next = f(tf.identity(c), tf.identity(loop.add_iterator(xs)))
                last = loop.add_loop_output(c, LAST)
            texts.append(loop.draw())
            return last.tensor

        texts = []
        run.get_concrete_function(tf.TensorSpec([6], tf.int32))
        return texts[0]

    small = drawing(lambda c, x: tf.cond(x > 0, lambda: c + x, lambda: c * 2))
    assert "programs may run 2 of 2 operations" in small
    assert "1 conditional computes all branches, and selects" in small
    assert "programs may run 1 of 2 operations" in drawing(divide)


# --- around it ------------------------------------------------------------------------------------


class Model(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([3]), tf.TensorSpec([6, 3])])
    def values(self, init, xs):
        return tf_ti.scan(on_slice, init, xs)

    @tf.function(input_signature=[tf.TensorSpec([]), tf.TensorSpec([6])])
    def slopes(self, init, xs):
        return slopes(scan(root))(init, xs)

    @tf.function(input_signature=[tf.TensorSpec([]), tf.TensorSpec([6])])
    def roots(self, init, xs):
        return tf_ti.scan(root, init, xs)


def test_saved_models(tmp_path):
    model = Model()
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(model, str(tmp_path), options=options)
    loaded = tf.saved_model.load(str(tmp_path))
    assert_same(loaded.values(*ARGUMENTS), model.values(*ARGUMENTS))
    arguments = tf.constant(0.7), tf.constant([0.0, -1.0, 0.5, 0.0, 2.0, -0.1])
    found = loaded.slopes(*arguments)
    assert_same(found, model.slopes(*arguments))
    # The gradient of a loaded loop is that of the conditional, too.
    later = tf.function(slopes(loaded.roots))(*arguments)
    assert all(np.isfinite(value).all() for value in later)
    assert_same(later, found)
    again = tmp_path / "again"
    tf.saved_model.save(loaded, str(again))
    later = tf.function(slopes(tf.saved_model.load(str(again)).roots))(*arguments)
    assert_same(later, found)


def test_frozen_functions():
    factor = tf.Variable(0.5)

    @tf.function(input_signature=[tf.TensorSpec([]), tf.TensorSpec([6])])
    def run(init, xs):
        def f(c, x):
            return tf.cond(x > 0, lambda: c + x, lambda: tf.sin(c) - x), c * factor

        return tf_ti.scan(f, init, xs)

    wanted = run(*SCALARS)
    frozen = convert_to_constants.convert_variables_to_constants_v2(run.get_concrete_function())
    assert not frozen.variables
    assert_same(frozen(*SCALARS), wanted)


def test_eager():
    for f in (on_slice, nested):
        run = slopes(scan(f))
        for _ in range(3):
            found = run(*ARGUMENTS)
        assert_same(found, tf.function(slopes(unrolled(f)), autograph=False)(*ARGUMENTS))


def test_the_traced_body_is_what_others_see():
    function = tf.function(lambda *each: tf_ti.scan(on_state, *each))
    (op,) = loops_in(function.get_concrete_function(*ARGUMENTS).graph)
    types = [inner.type for inner in TracedLoop.from_op(op).body.get_operations()]
    assert "StatelessIf" in types and "SelectV2" not in types


def test_vectorized_and_jacobians(monkeypatch):
    def lanes(init, xs):
        return tf.vectorized_map(lambda c: tf_ti.scan(on_slice, c, xs)[0], tf.stack([init, -init]))

    def jacobian(init, xs):
        with tf.GradientTape() as tape:
            tape.watch(init)
            last, _ = tf_ti.scan(on_state, init, xs)
        return tape.jacobian(last, init)

    def tangent(init, xs):
        with tf.autodiff.ForwardAccumulator(init, tf.ones_like(init)) as accumulator:
            last, _ = tf_ti.scan(nested, init, xs)
        return accumulator.jvp(last)

    for run in (lanes, jacobian, tangent):
        found = tf.function(run)(*ARGUMENTS)
        with monkeypatch.context() as patch:
            patch.setenv("TF_TI_PROGRAM", "0")
            assert_same(found, tf.function(run)(*ARGUMENTS))


def test_checkpoints(monkeypatch):
    run = slopes(scan(one_after_another, checkpoint_every=2))
    found = tf.function(run)(*ARGUMENTS)
    monkeypatch.setenv("TF_TI_PROGRAM", "0")
    assert_same(found, tf.function(run)(*ARGUMENTS))


@pytest.mark.needs_programs
@pytest.mark.parametrize("name", ["on_state", "on_slice", "one_after_another", "switch", "nested"])
def test_programs_run_all_of_the_loop_and_of_its_gradient(name, tmp_path):
    function = tf.function(slopes(scan(BODIES[name])), autograph=False)
    arguments = ARGUMENTS[0], tf.concat([ROWS] * 4, 0)
    for _ in range(2):
        function(*arguments)
    with tf.profiler.experimental.Profile(str(tmp_path)):
        function(*arguments)
    (path,) = tmp_path.rglob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    (host,) = (plane for plane in space.planes if plane.name == "/host:CPU")
    events = collections.Counter(
        host.event_metadata[event.metadata_id].name for line in host.lines for event in line.events
    )
    assert events["TfTi>TensorIterator iterations"] == 2
    assert events["TfTi>TensorIterator iteration"] <= 4


# --- rows of a variable --------------------------------------------------------------------------


def rows_in_branches(kind, table, total, ids):
    def rows():
        return 0.5 * total + tf.reduce_sum(tf.gather_nd(table, ids[:, tf.newaxis]) ** 2, 0)

    def none():
        return 0.5 * total

    if kind == "switch_case":
        return tf.switch_case(tf.minimum(ids[0], 2), [none, none, rows])
    if kind == "nested":
        return tf.cond(ids[0] > 1, lambda: tf.cond(ids[1] > 1, rows, none), none)
    return tf.cond(ids[0] > 1, rows, none)


@pytest.mark.parametrize("is_inside", [False, True], ids=["one loop", "a loop in a loop"])
@pytest.mark.parametrize("kind", ["cond", "switch_case", "nested"])
def test_gradients_of_rows_that_branches_gather_from_a_variable(kind, is_inside):
    """tf.gather_nd asks for the shape of the variable, while TensorFlow makes a branch anew."""
    table = tf.Variable(tf.random.stateless_normal([4, 2], [3, 4]))
    ids = tf.constant([[2, 1, 1], [3, 3, 1], [0, 2, 2], [2, 3, 0]])

    def scanned(ids):
        def step(total, ids):
            return rows_in_branches(kind, table, total, ids), None

        def steps(total, ids):
            return tf_ti.scan(step, total, ids)[0], None

        if is_inside:
            return tf_ti.scan(steps, tf.zeros([2]), ids[:, tf.newaxis])[0]
        return steps(tf.zeros([2]), ids)[0]

    def one_by_one(ids):
        total = tf.zeros([2])
        for k in range(ids.shape[0]):
            total = rows_in_branches(kind, table, total, ids[k])
        return total

    def slopes(run, ids):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(run(ids) ** 2)
            slope = tf.convert_to_tensor(tape.gradient(loss, table))
            square = tf.reduce_sum(slope**2)
        return slope, tf.convert_to_tensor(outer.gradient(square, table))

    found = tf.function(lambda ids: slopes(scanned, ids), autograph=False)(ids)
    for actual, expected in zip(found, slopes(one_by_one, ids), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5)


NOT_TAKEN = {
    "a slice of more": lambda w: tf.slice(w, [1], [3]),
    "a slice from before": lambda w: tf.slice(w, [-1], [1]),
    "classes in no axis": lambda w: tf.raw_ops.OneHot(
        indices=[1, 2], depth=3, on_value=w[0], off_value=0.0, axis=5
    ),
    "pads of several values": lambda w: tf.raw_ops.PadV2(
        input=w, paddings=[[1, 1]], constant_values=[1.0]
    ),
    "the largest of none": lambda w: tf.cast(tf.argmax(w[:0]), tf.float32),
}


@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("name", NOT_TAKEN)
def test_branches_that_are_not_taken_may_have_wrong_extents(name, taken):
    @tf.function(input_signature=[tf.TensorSpec([3]), tf.TensorSpec([], tf.int32)])
    def call(w, k):
        def body(i, s):
            fails = lambda: s + tf.reduce_sum(NOT_TAKEN[name](w))  # noqa: E731 - autograph
            return i + 1, tf.cond(i < k, lambda: s + 1.0, lambda: tf.cond(k > i, fails, lambda: s))

        return tf_ti.while_loop(lambda i, s: i < 3, body, (0, 0.0))[1]

    assert call(tf.ones([3]), taken) == taken
