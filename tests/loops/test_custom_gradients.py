"""Custom gradients in bodies: the user's gradient, whatever becomes of the loop around it.

The oracle is the loop unrolled in Python, where the operations are TensorFlow's alone.
"""

import ctypes
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import BackEdge, InputPort, LoopOutput, OutputPort, PortMap, TripLimit

pytestmark = pytest.mark.quarter

T, B, N, H = 3, 2, 3, 4
LOOPS = ("TfTi>TensorIterator", "TfTi>StatelessTensorIterator")
SEQUENCE = "TfTi>RecurrentSequence"


def normal(*shape, dtype=tf.float32, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), dtype)


XS, W, R, V = normal(T, B, N), normal(N, H, seed=1), normal(H, H, seed=2), normal(H, N, seed=3)
VARIABLE = tf.Variable(0.7)


# --- custom gradients, nearly all of them wrong on purpose ---------------------------------------


@tf.custom_gradient
def constant_factor(v):
    return tf.sin(v), lambda dy: 17.0 * dy


@tf.custom_gradient
def intermediate_value(v):
    s = tf.sin(v)
    return s * s, lambda dy: 3.0 * dy * s


@tf.custom_gradient
def value_for_the_gradient_only(v):
    c = tf.cos(v)
    return tf.sin(v), lambda dy: 2.0 * dy * c


@tf.custom_gradient
def identity_alone(v):
    return v, lambda dy: -2.0 * dy


@tf.custom_gradient
def clipped_by_norm(v):
    return tf.identity(v), lambda dy: tf.clip_by_norm(dy, 0.1)


@tf.custom_gradient
def sign_of_the_gradient(v):
    return v * 1.0, lambda dy: tf.sign(dy) * tf.abs(v)


@tf.custom_gradient
def straight_through(v):
    return tf.round(v), lambda dy: tf.where(tf.abs(v) < 1.0, dy, 0.0)


@tf.custom_gradient
def in_a_conditional(v):
    s = tf.sin(v)
    return s, lambda dy: tf.cond(tf.reduce_sum(s) > 0.0, lambda: 2.0 * dy * s, lambda: -dy)


@tf.custom_gradient
def in_a_loop(v):
    return v * 0.5, lambda dy: tf.while_loop(
        lambda i, d: i < 3, lambda i, d: (i + 1, d * v), [0, dy]
    )[1]


@tf.custom_gradient
def by_a_function(v):
    s = tf.tanh(v)
    return s, lambda dy: tf.function(lambda d: d * s * 5.0)(dy)


def two_of_two(v):
    @tf.custom_gradient
    def f(a, b):
        return (a * b, a + b), lambda da, db: (da * 2.0 + db * b, da * 3.0)

    product, total = f(v, 2.0 * v)
    return product + total


def first_of_two(v):
    @tf.custom_gradient
    def f(a, b):
        return (a * b, a + b), lambda da, db: (da * 2.0 + db * b, da * 3.0 - db)

    return f(v, tf.exp(-v))[0]


def no_gradient_of_one(v):
    @tf.custom_gradient
    def f(a, b):
        return a * b, lambda dy: (dy * b, None)

    return f(v, tf.sin(v))


def integers(v):
    @tf.custom_gradient
    def f(a, n):
        return (a * tf.cast(n, a.dtype), n + 1), lambda da, dn: (da * 7.0, None)

    y, n = f(v, tf.cast(v > 0, tf.int32))
    return y * tf.cast(n, v.dtype)


def inside_of_another(v):
    @tf.custom_gradient
    def f(a):
        s = constant_factor(a)
        return s * intermediate_value(s), lambda dy: dy * s * 0.3

    return f(v)


def of_the_gradient(v):
    @tf.custom_gradient
    def f(a):
        s = tf.sin(a)

        @tf.custom_gradient
        def g(dy):
            return dy * s * 2.0, lambda ddy: ddy * 13.0

        return s, g

    return f(v)


@tf.custom_gradient
def no_gradient_at_all(v):
    return tf.sin(v), lambda dy: None


def captured_product(v):
    product = v * 0.5

    @tf.custom_gradient
    def f(a):
        return tf.tanh(a), lambda dy: dy * product

    return f(v + 1.0)


@tf.custom_gradient
def captured_variable(v):
    def gradient(dy, variables=None):
        return 5.0 * dy * VARIABLE, [tf.reduce_sum(dy) * 2.0 for _ in variables]

    return v * VARIABLE, gradient


@tf.custom_gradient
def captured_read(v):
    factor = tf.convert_to_tensor(VARIABLE)

    def gradient(dy, variables=None):
        return 5.0 * dy * factor, [tf.reduce_sum(dy * v) for _ in variables]

    return v * factor, gradient


def captured_outside(v):
    @tf.custom_gradient
    def f(a):
        return tf.tanh(a), lambda dy: dy * tf.reduce_sum(R)

    return f(v)


class Holder:
    """An object with a custom gradient, which needs the object's attributes."""

    @tf.custom_gradient
    def __call__(self, v):
        self.kept = {"values": [tf.sin(v)]}
        return self.kept["values"][0] * 1.0, functools.partial(self.gradient, 3.0)

    def gradient(self, factor, dy):
        return dy * factor * self.kept["values"][0]


KEPT = {}


@tf.custom_gradient
def in_a_global(v):
    key = len(KEPT)
    KEPT[key] = tf.sin(v)
    return tf.cos(v), lambda dy: dy * KEPT[key]


@tf.custom_gradient
def in_a_default(v):
    s = tf.sin(v)

    def gradient(dy, s=s):
        return dy * s * 0.5

    return tf.cos(v), gradient


@tf.custom_gradient
def by_a_tape(v):
    """The tensors that a tape holds cannot be seen."""
    with tf.GradientTape() as tape:
        tape.watch(v)
        y = tf.sin(v) * v
    return y, lambda dy: tape.gradient(y, v, dy) * 0.5


@tf.custom_gradient
def returned_itself(v):
    s = tf.sin(v)
    return v * 1.0, lambda dy: s


CUSTOM = [
    constant_factor,
    intermediate_value,
    value_for_the_gradient_only,
    identity_alone,
    clipped_by_norm,
    sign_of_the_gradient,
    straight_through,
    in_a_conditional,
    in_a_loop,
    by_a_function,
    two_of_two,
    first_of_two,
    no_gradient_of_one,
    no_gradient_at_all,
    integers,
    inside_of_another,
    of_the_gradient,
    captured_product,
    captured_variable,
    captured_read,
    captured_outside,
    lambda v: Holder()(v),
    in_a_global,
    in_a_default,
    by_a_tape,
    returned_itself,
    tf.recompute_grad(lambda v: tf.sin(v * VARIABLE)),
    tf.grad_pass_through(lambda v: tf.sin(v) * VARIABLE),
    tf.function(lambda v: intermediate_value(v) + value_for_the_gradient_only(v)),
    tf.nn.silu,
    lambda v: tf.nn.silu(v, VARIABLE),
]
NAMES = [getattr(f, "__name__", "") for f in CUSTOM]
custom = pytest.mark.parametrize("f", CUSTOM, ids=[f"{i}-{n}" for i, n in enumerate(NAMES)])


# --- where they stand ----------------------------------------------------------------------------


def of_input_and_output(f):
    def cell(h, x):
        h = tf.tanh(f(f(x) @ W) + h @ R)
        return h, f(h @ V) + f(x)

    return cell


def of_states_and_weights(f):
    def cell(h, x):
        h = tf.tanh(f(x @ f(W)) + f(h @ R + x @ W) + f(h))
        return h, h

    return cell


def of_input_and_state(f):
    """The gradient of what is of no state refers to a state, and the reverse."""

    def cell(h, x):
        product = x @ W

        @tf.custom_gradient
        def g(a):
            return tf.tanh(a), lambda dy: dy * product

        @tf.custom_gradient
        def k(a):
            return a * 2.0, lambda dy: dy * h

        return g(k(f(product)) * 0.3 + h @ R), g(h)

    return cell


def unrolled(cell, init, xs):
    h, ys = init, []
    for x in tf.unstack(xs):
        h, y = cell(h, x)
        ys.append(y)
    return h, tf.stack(ys)


def scanned(cell, init, xs, **options):
    return tf_ti.scan(cell, init, xs, **options)


def gradients(way, cell, init, xs, **options):
    """The outputs, and the gradients of all that there is."""
    with tf.GradientTape() as tape:
        tape.watch([init, xs, W, R, V])
        h, ys = way(cell, init, xs, **options)
        loss = tf.reduce_sum(tf.sin(h)) + tf.reduce_sum(tf.sin(ys) * tf.cast(ys > 0, ys.dtype))
    found = tape.gradient(loss, [init, xs, W, R, V, VARIABLE], unconnected_gradients="zero")
    return [h, ys, *map(tf.convert_to_tensor, found)]


def compiled(*arguments, **options):
    return tf.function(lambda: gradients(*arguments, **options))()


def close(actual, expected, tolerance=2e-4):
    for a, e in zip(actual, expected, strict=True):
        scale = max(1.0, float(tf.reduce_max(tf.abs(e)))) if tf.size(e) else 1.0
        np.testing.assert_allclose(a / scale, e / scale, rtol=0, atol=tolerance)


INIT = tf.zeros([B, H])


# A tf.function would be traced for longer than it runs.
expected_of = functools.cache(lambda place, f: gradients(unrolled, place(f), INIT, XS))


@custom
@pytest.mark.parametrize("place", [of_input_and_output, of_states_and_weights])
def test_the_gradient_is_the_users(place, f):
    close(compiled(scanned, place(f), INIT, XS), expected_of(place, f))


@custom
def test_the_gradient_is_the_users_without_fusion(f):
    place = of_input_and_output
    close(gradients(scanned, place(f), INIT, XS, fuse=False), expected_of(place, f))


def test_operations_with_another_gradient_keep_it():
    """It is asked for by tf.gradients; a tape does not know it."""

    def f(v):
        with tf.compat.v1.get_default_graph().gradient_override_map({"Sin": "TestCustomGradients"}):
            return tf.sin(v)

    @tf.function
    def run(way, xs, **options):
        ys = way(of_input_and_output(f), INIT, xs, **options)[1]
        return tf.gradients(tf.reduce_sum(ys), xs)[0]

    close([run(scanned, XS)], [run(unrolled, XS)])


@tf.RegisterGradient("TestCustomGradients")
def _registered(op, dy):
    return dy * op.inputs[0] * 3.0


def test_a_gradient_refers_to_what_is_elsewhere():
    for f in (constant_factor, intermediate_value, tf.nn.silu):
        expected = gradients(unrolled, of_input_and_state(f), INIT, XS)
        close(compiled(scanned, of_input_and_state(f), INIT, XS), expected)


# --- ways to loop --------------------------------------------------------------------------------

FEW = [two_of_two, captured_variable, tf.nn.silu]
few = pytest.mark.parametrize("f", FEW, ids=lambda f: f.__name__)


@few
@pytest.mark.parametrize(
    "options",
    [{"jit_compile": True}, {"checkpoint_every": 2}, {"reverse": True}, {"axis": 1}],
    ids=lambda options: next(iter(options)),
)
def test_in_other_modes(options, f):
    cell, xs = of_input_and_output(f), XS
    expected = expected_of(of_input_and_output, f)
    if "reverse" in options:
        expected = gradients(unrolled, cell, INIT, tf.reverse(xs, [0]))
        expected[1], expected[3] = tf.reverse(expected[1], [0]), tf.reverse(expected[3], [0])
    if "axis" in options:
        xs = tf.transpose(xs, [1, 0, 2])
        expected = [*expected]
        expected[1], expected[3] = (tf.transpose(expected[k], [1, 0, 2]) for k in (1, 3))
    options = dict(options)
    jit_compile = options.pop("jit_compile", False)
    run = tf.function(
        lambda: gradients(scanned, cell, INIT, xs, **options), jit_compile=jit_compile
    )
    close(run(), expected)


@few
def test_of_unknown_dimensions(f):
    @tf.function(input_signature=[tf.TensorSpec([None, H]), tf.TensorSpec([None, None, N])])
    def run(init, xs):
        return gradients(scanned, of_input_and_output(f), init, xs)

    close(run(INIT, XS), expected_of(of_input_and_output, f))
    for actual in run(INIT, XS[:0])[3:]:
        np.testing.assert_array_equal(actual, tf.zeros_like(actual))


def iterated(cell, init, xs):
    ports = PortMap(
        [InputPort(0, 0), InputPort(1, 1, axis=0)], [OutputPort(0, 0), OutputPort(1, 1, axis=0)]
    )

    def body(h, x):
        h, y = cell(h, x[0])
        return h, y[None]

    return tf_ti.tensor_iterator(body, [init, xs], ports, [BackEdge(0, 0)])


def looped(cell, init, xs):
    with tf_ti.Loop() as loop:
        loop.add_trip_limit(T, TripLimit.COUNT)
        h = loop.add_recurrence(init)
        h.next, y = cell(h.tensor, loop.add_iterator(xs).tensor)
        last = loop.add_loop_output(h, LoopOutput.LAST_VALUE)
        ys = loop.add_loop_output(y, LoopOutput.CONCATENATE)
    return last.tensor, ys.tensor


def nested(cell, init, xs):
    def outer(h, x):
        h, ys = tf_ti.scan(cell, h, x[None])
        return h, ys[0]

    return tf_ti.scan(outer, init, xs)


def in_a_function(cell, init, xs):
    return tf_ti.scan(tf.function(cell), init, xs)


def of_a_function(cell, init, xs):
    return tf_ti.scan(lambda h, x: tf.function(cell)(h, x), init, xs)


def in_a_while_loop(cell, init, xs):
    """Of tf_ti: with a condition."""
    with tf_ti.Loop() as loop:
        i = loop.add_recurrence(tf.constant(1))
        i.next = i + 1
        loop.add_trip_limit(i < T + 1, TripLimit.WHILE)
        h = loop.add_recurrence(init)
        h.next, y = cell(h.tensor, loop.add_iterator(xs).tensor)
        last = loop.add_loop_output(h, LoopOutput.LAST_VALUE)
        ys = loop.add_loop_output(y, LoopOutput.CONCATENATE)
    return last.tensor, ys.tensor


@pytest.mark.parametrize("f", [value_for_the_gradient_only, tf.nn.silu], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "way", [iterated, looped, nested, in_a_function, of_a_function, in_a_while_loop]
)
def test_in_other_loops(way, f):
    for place in (of_input_and_output, of_states_and_weights):
        close(compiled(way, place(f), INIT, XS), expected_of(place, f))


@few
def test_second_derivatives(f):
    def run(way):
        with tf.GradientTape() as outer:
            outer.watch(XS)
            with tf.GradientTape() as tape:
                tape.watch(XS)
                ys = way(of_input_and_output(f), INIT, XS)[1]
                loss = tf.reduce_sum(ys**2)
            grad = tape.gradient(loss, XS)
        return outer.gradient(grad, XS, tf.sin(XS), unconnected_gradients="zero")

    if f is not captured_variable:  # of which the unrolled loop has none
        close([tf.function(run)(scanned)], [run(unrolled)])


# --- second derivatives of gradients that are not linear -----------------------------------------


@tf.custom_gradient
def sine_of_the_gradient(v):
    return tf.tanh(v), lambda dy: tf.sin(dy) * v


@tf.custom_gradient
def gradient_by_its_norm(v):
    y = tf.tanh(v)
    return y, lambda dy: dy / tf.norm(dy) * y


def recursive(v):
    """Its gradient has a gradient of its own that is not linear."""

    @tf.custom_gradient
    def f(a):
        return tf.tanh(a), lambda dy: sine_of_the_gradient(dy) * a

    return f(v)


def in_series(f):
    def cell(h, x):
        h = f(f(h * 0.7 + tf.reduce_sum(x)) * 1.5) + 0.1
        return h, h * 2.0

    return cell


def by_condition(cell, init, xs, **options):
    """Of tf_ti, with a condition and a length."""
    ys = tf.TensorArray(init.dtype, xs.shape[0], element_shape=init.shape)

    def body(k, h, ys):
        h, y = cell(h, xs[k])
        return k + 1, h, ys.write(k, y)

    count = tf.shape(xs)[0]
    kwargs = {"maximum_iterations": T + 1, **options}
    _, h, ys = tf_ti.while_loop(lambda k, *_: k < count, body, (0, init, ys), **kwargs)
    return h, ys.stack()


def nested_with(outer, inner):
    def way(cell, init, xs):
        def step(h, x):
            h, ys = tf_ti.scan(cell, h, tf.stack([x, x * 0.5]), checkpoint_every=inner)
            return h, ys

        h, ys = tf_ti.scan(step, init, xs, checkpoint_every=outer)
        return h, tf.reshape(ys, [-1, *ys.shape[2:]])

    return way


def unrolled_twice(cell, init, xs):
    xs = tf.reshape(tf.stack([xs, xs * 0.5], axis=1), [-1, *xs.shape[1:]])
    return unrolled(cell, init, xs)


def second_gradients(way, cell, init, xs):
    with tf.GradientTape() as outer:
        outer.watch([init, xs])
        with tf.GradientTape() as tape:
            tape.watch([init, xs])
            h, ys = way(cell, init, xs)
            loss = tf.reduce_sum(h**2) + tf.reduce_sum(tf.sin(ys))
        found = tape.gradient(loss, [init, xs])
        loss = sum(tf.reduce_sum(tf.sin(grad)) for grad in found)
    return [*found, *outer.gradient(loss, [init, xs])]


NOT_LINEAR = [sine_of_the_gradient, gradient_by_its_norm, clipped_by_norm, recursive]
WAYS = {
    "scan": (scanned, unrolled),
    "checkpoints": (functools.partial(scanned, checkpoint_every=2), unrolled),
    "one segment": (functools.partial(scanned, checkpoint_every=9), unrolled),
    "without fusion": (functools.partial(scanned, fuse=False, checkpoint_every=2), unrolled),
    "port map": (iterated, unrolled),
    "Loop": (looped, unrolled),
    "condition": (by_condition, unrolled),
    "condition and checkpoints": (functools.partial(by_condition, checkpoint_every=2), unrolled),
    "a loop inside": (nested_with(None, None), unrolled_twice),
    "a loop inside, checkpoints": (nested_with(2, None), unrolled_twice),
    "a loop inside, its checkpoints": (nested_with(None, 2), unrolled_twice),
    "a loop inside, all checkpoints": (nested_with(2, 2), unrolled_twice),
}


@pytest.mark.parametrize("f", NOT_LINEAR, ids=lambda f: f.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_second_derivatives_of_gradients_that_are_not_linear(way, f):
    """The function gets the whole gradient of a result, not once each what adds up to it."""
    loop, oracle = WAYS[way]
    init = normal(B, N, dtype=tf.float64, seed=4)
    xs = normal(T, B, N, dtype=tf.float64, seed=5)
    # In eager mode TensorFlow takes a value that the gradient refers to for a constant.
    expected = tf.function(second_gradients)(oracle, in_series(f), init, xs)
    run = functools.partial(second_gradients, loop, in_series(f), init, xs)
    close(tf.function(run)(), expected, 1e-7)
    close(run(), expected, 1e-7)


@pytest.mark.parametrize(
    "way",
    [
        "scan",
        "checkpoints",
        "condition and checkpoints",
        "a loop inside",
        "a loop inside, checkpoints",
        "a loop inside, all checkpoints",
    ],
)
def test_second_derivatives_of_gradients_that_are_not_linear_under_xla(way):
    loop, oracle = WAYS[way]
    init = normal(B, N, dtype=tf.float64, seed=4)
    xs = normal(T, B, N, dtype=tf.float64, seed=5)
    expected = second_gradients(oracle, in_series(sine_of_the_gradient), init, xs)
    run = functools.partial(second_gradients, loop, in_series(sine_of_the_gradient), init, xs)
    close(tf.function(run, jit_compile=True)(), expected, 1e-7)


# --- in conditionals and loops of TensorFlow's inside of a body ----------------------------------


def in_a_branch(f):
    def cell(h, x):
        h = tf.cond(tf.reduce_sum(h) > 0.0, lambda: f(f(h * x) * 1.5), lambda: f(h) * x + 0.3)
        return h, h * 2.0

    return cell


def in_a_case(f):
    def cell(h, x):
        branches = [lambda: f(h * x), lambda: f(h) * x + 0.3, lambda: f(f(h))]
        h = tf.switch_case(tf.cast(h[0, 0] > 0.0, tf.int32), branches)
        return h, h * 2.0

    return cell


def in_an_inner_while_loop(f):
    def cell(h, x):
        h = tf.while_loop(lambda k, _: k < 2, lambda k, h: (k + 1, f(h * x) + 0.1), (0, h))[1]
        return h, h * 2.0

    return cell


def in_a_branch_of_an_inner_loop(f):
    def cell(h, x):
        h = tf_ti.scan(lambda h, _: (in_a_branch(f)(h, x)[0], None), h, None, length=2)[0]
        return h, h * 2.0

    return cell


@pytest.mark.parametrize("f", [intermediate_value, tf.nn.silu, in_a_loop], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "place", [in_a_branch, in_a_case, in_an_inner_while_loop, in_a_branch_of_an_inner_loop]
)
@pytest.mark.parametrize("way", ["scan", "checkpoints", "condition"])
def test_in_control_flow_inside_of_a_body(way, place, f):
    """Second gradients of branches fail in TensorFlow where the loop is unrolled."""
    loop, oracle = WAYS[way]
    init = normal(B, N, dtype=tf.float64, seed=4)
    xs = normal(T, B, N, dtype=tf.float64, seed=5)

    def first_gradients(way):
        with tf.GradientTape() as tape:
            tape.watch([init, xs])
            h, ys = way(place(f), init, xs)
            loss = tf.reduce_sum(h**2) + tf.reduce_sum(tf.sin(ys))
        return tape.gradient(loss, [init, xs])

    close(tf.function(first_gradients)(loop), tf.function(first_gradients)(oracle), 1e-7)


def in_a_compiled_function(f):
    def cell(h, x):
        h = tf.function(lambda h: f(f(h * x) * 1.5), jit_compile=True)(h)
        return h, h * 2.0

    return cell


def in_compiled_functions(f):
    inner = tf.function(lambda h, x: f(f(h * x) * 1.5), jit_compile=True)
    outer = tf.function(lambda h, x: tf.sin(inner(h, x)) + inner(h + 0.1, x), jit_compile=True)

    def cell(h, x):
        h = tf_ti.scan(lambda h, _: (outer(h, x), None), h, None, length=2)[0]
        return h, h * 2.0

    return cell


def in_a_branch_that_calls(f):
    compiled = tf.function(lambda h, x: f(h * x) * 1.5, jit_compile=True)

    def cell(h, x):
        h = tf.cond(tf.reduce_sum(h) > 0.0, lambda: compiled(h, x), lambda: compiled(x, h) + 0.3)
        return h, h * 2.0

    return cell


@pytest.mark.parametrize(
    "place",
    [
        in_a_branch,
        in_an_inner_while_loop,
        in_a_branch_of_an_inner_loop,
        in_a_branch_that_calls,
        in_a_compiled_function,
        in_compiled_functions,
    ],
)
@pytest.mark.parametrize("way", ["scan", "checkpoints", "condition"])
def test_second_derivatives_there(way, place):
    """Who takes a sum's parts apart gives other numbers, unless the gradient is linear."""
    loop, oracle = WAYS[way]
    init = normal(B, N, dtype=tf.float64, seed=4)
    xs = normal(T, B, N, dtype=tf.float64, seed=5)
    expected = tf.function(second_gradients)(oracle, place(intermediate_value), init, xs)
    actual = tf.function(second_gradients)(loop, place(intermediate_value), init, xs)
    close(actual, expected, 1e-7)
    if way == "condition" and place.__name__.startswith("in_a_branch"):
        return  # TensorFlow has none of such a conditional, unrolled neither
    for f in (sine_of_the_gradient, clipped_by_norm):
        with pytest.raises(ValueError, match="of a loop's body is not linear in what it gets"):
            tf.function(second_gradients)(loop, place(f), init, xs)


@pytest.mark.parametrize("f", [intermediate_value, sine_of_the_gradient], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "place", [in_a_branch, in_an_inner_while_loop, in_a_branch_of_an_inner_loop]
)
@pytest.mark.parametrize("way", ["scan", "checkpoints", "condition"])
def test_forward_mode_there(way, place, f):
    init = normal(B, N, dtype=tf.float64, seed=4)
    xs = normal(T, B, N, dtype=tf.float64, seed=5)

    def loss(way):
        h, ys = way(place(f), init, xs)
        return tf.reduce_sum(h**2) + tf.reduce_sum(tf.sin(ys))

    @tf.function
    def tangent(way):
        with tf.autodiff.ForwardAccumulator([init, xs], [2 * init, xs]) as accumulator:
            value = loss(way)
        return accumulator.jvp(value)

    @tf.function
    def product(way):
        with tf.GradientTape() as tape:
            tape.watch([init, xs])
            value = loss(way)
        along_init, along_xs = tape.gradient(value, [init, xs])
        return tf.reduce_sum(2 * along_init * init) + tf.reduce_sum(along_xs * xs)

    actual = tangent(WAYS[way][0])
    if f is intermediate_value:  # of a gradient that is not linear there is no such product
        close([actual], [product(WAYS[way][1])], 1e-7)


def test_saved_and_loaded_with_a_loop_inside(tmp_path):
    module, xs = tf.Module(), normal(T, B, N)
    way = nested_with(None, None)
    module.run = tf.function(
        lambda init, xs: way(in_series(intermediate_value), init, xs),
        input_signature=[tf.TensorSpec([B, N]), tf.TensorSpec([T, B, N])],
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, tmp_path, options=options)
    loaded = tf.saved_model.load(tmp_path)
    init = normal(B, N, seed=4)
    for run in (gradients, compiled):
        actual = run(lambda cell, init, xs: loaded.run(init, xs), None, init, xs)
        expected = gradients(unrolled_twice, in_series(intermediate_value), init, xs)
        close(actual[:4], expected[:4])


@pytest.mark.parametrize(
    "place",
    [in_a_branch, in_a_case, in_an_inner_while_loop, in_a_branch_that_calls, in_compiled_functions],
)
@pytest.mark.parametrize("way", ["scan", "checkpoints", "condition"])
def test_saved_training_steps(tmp_path, way, place):
    """TensorFlow saves steps of loops of its own, with the custom gradients there."""
    loop = WAYS[way][0]
    init, xs = normal(B, N, seed=4), normal(T, B, N, seed=5)

    def step(f, init, xs):
        with tf.GradientTape() as tape:
            tape.watch([init, xs])
            h, ys = loop(place(f), init, xs)
            loss = tf.reduce_sum(h**2) + tf.reduce_sum(tf.sin(ys))
        return tape.gradient(loss, [init, xs])

    module, specs = tf.Module(), [tf.TensorSpec([B, N]), tf.TensorSpec([T, B, N])]
    module.linear = tf.function(functools.partial(step, intermediate_value), specs)
    module.other = tf.function(functools.partial(step, sine_of_the_gradient), specs)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, tmp_path, options=options)
    loaded = tf.saved_model.load(tmp_path)
    close(loaded.linear(init, xs), module.linear(init, xs))
    close(loaded.other(init, xs), module.other(init, xs))
    with pytest.raises(ValueError, match="of a loop's body is not linear in what it gets"):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            found = loaded.other(init, xs)
        tape.gradient(found, xs)


def of_linear_ops(dy, v):
    """Linear operations of all kinds."""
    y = tf.where(v > 0, dy, tf.zeros_like(dy)) / 2.0 - tf.reverse(dy, [0]) * v
    y = tf.concat([y, tf.transpose(tf.reshape(y, [N, B]))], axis=0)[:B]
    y += tf.pad(tf.reduce_mean(y, keepdims=True), [[0, B - 1], [0, N - 1]])
    return tf.where(v > 1.0, y, 0.0) + tf.cumsum(tf.gather(tf.stack([y, -y]), 1)) @ tf.eye(N)


@pytest.mark.parametrize(
    "gradient, is_linear",
    [
        (of_linear_ops, True),
        (lambda dy, v: tf.function(of_linear_ops)(dy, v), True),
        (lambda dy, v: tf.nn.silu(v) * dy, True),
        (lambda dy, v: tf.zeros_like(dy), True),
        (lambda dy, v: dy + 1.0, False),
        (lambda dy, v: dy * dy, False),
        (lambda dy, v: tf.where(dy > 0.0, dy, 0.0), False),
        (lambda dy, v: tf.where(v > 0.0, dy, 1.0), False),
        (lambda dy, v: tf.sign(dy), False),
        (lambda dy, v: v / dy, False),
        (lambda dy, v: tf.raw_ops.TanhGrad(y=v, dy=dy), True),
        (lambda dy, v: tf.raw_ops.TanhGrad(y=dy, dy=v), False),
        (lambda dy, v: tf.cast(tf.cast(dy, tf.int32), tf.float32), False),
        (lambda dy, v: tf.clip_by_value(dy, -1.0, 1.0), False),
        (lambda dy, v: tf.concat([dy, v], axis=0)[:B], False),
        (lambda dy, v: clipped_by_norm(dy), True),
        (lambda dy, v: tf.sin(tf.function(of_linear_ops)(dy, v)), False),
    ],
)
def test_only_what_may_not_be_linear_is_read_as_it_was_recorded(gradient, is_linear):
    """Results of linear gradients are computed again, which takes no memory."""

    @tf.custom_gradient
    def f(v):
        return tf.tanh(v), lambda dy: gradient(dy, v) * v

    init, xs = tf.zeros([B, N]), normal(T, B, N)

    @tf.function
    def run():
        with tf.GradientTape() as tape:
            tape.watch(xs)
            h = scanned(in_series(f), init, xs)[0]
        return tape.gradient(h, xs)

    graph = run.get_concrete_function().graph
    (reverse,) = [op for op in graph.get_operations() if "TensorIteratorGradient" in op.name]
    labels = reverse.get_attr("input_label")
    assert any(b"the history of result" in label for label in labels) == (not is_linear)


@few
def test_forward_mode(f):
    def run(way):
        with tf.autodiff.ForwardAccumulator(XS, tf.sin(XS)) as accumulator:
            ys = way(of_input_and_output(f), INIT, XS)[1]
        return accumulator.jvp(ys)

    close([tf.function(run)(scanned)], [run(unrolled)])


@pytest.mark.parametrize("f", [constant_factor, tf.nn.silu], ids=lambda f: f.__name__)
def test_jacobians_and_maps(f):
    def run(way, xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            ys = way(of_input_and_output(f), INIT, xs)[1]
        return tape.jacobian(ys, xs)

    close([tf.function(run)(scanned, XS[:2])], [run(unrolled, XS[:2])])

    def gradient(xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            ys = scanned(of_input_and_output(f), INIT, xs)[1]
        return tape.gradient(ys, xs)

    lanes = tf.stack([XS, -XS])
    actual = tf.function(lambda: tf.vectorized_map(gradient, lanes))()
    close([actual], [tf.stack([gradient(x) for x in tf.unstack(lanes)])])


@few
@pytest.mark.parametrize("saves_gradients", [True, False])
def test_saved_and_loaded(tmp_path, saves_gradients, f):
    module = tf.Module()
    module.variable = VARIABLE
    specs = [tf.TensorSpec([B, H]), tf.TensorSpec([T, B, N])]
    module.run = tf.function(
        lambda init, xs: scanned(of_states_and_weights(f), init, xs), input_signature=specs
    )
    module.train = tf.function(
        lambda init, xs: gradients(scanned, of_input_and_output(f), init, xs),
        input_signature=specs,
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=saves_gradients)
    tf.saved_model.save(module, tmp_path, options=options)
    loaded = tf.saved_model.load(tmp_path)
    close(loaded.train(INIT, XS), expected_of(of_input_and_output, f))
    close(loaded.run(INIT, XS), expected_of(of_states_and_weights, f)[:2])
    if saves_gradients:
        way = lambda cell, init, xs: loaded.run(init, xs)  # noqa: E731
        actual, expected = gradients(way, None, INIT, XS), expected_of(of_states_and_weights, f)
        close([actual[2], actual[3]], [expected[2], expected[3]])
        actual = tf.function(lambda: gradients(way, None, INIT, XS))()
        close([actual[2], actual[3]], [expected[2], expected[3]])


# --- what becomes of the loop --------------------------------------------------------------------


def types_in(call):
    """The types of the operations of a function, and of the bodies of its loops."""
    graph = tf.function(call).get_concrete_function().graph
    outside = [op.type for op in graph.get_operations()]
    bodies = [
        graph._get_function(op.get_attr("body").name).graph
        for op in graph.get_operations()
        if op.type in LOOPS
    ]
    return outside, [op.type for body in bodies for op in body.get_operations()]


def with_beta(v):
    return tf.nn.silu(v, 1.7)


def with_learnt_beta(v):
    return tf.nn.silu(v, VARIABLE)


def written_out(v):
    return v * tf.sigmoid(v)


def of_keras(v):
    import keras

    return keras.activations.swish(keras.ops.silu(v))


SILU = [written_out, tf.nn.silu, with_beta, with_learnt_beta, of_keras, tf.function(tf.nn.silu)]


@pytest.mark.parametrize("f", SILU, ids=lambda f: getattr(f, "__name__", "tf.function"))
def test_silu_of_no_state_is_computed_for_all_iterations(f):
    def cell(h, x):
        h = tf.tanh(f(x @ W) + h @ R)
        return h, f(h)

    outside, inside = types_in(lambda: tf_ti.scan(cell, INIT, XS))
    assert SEQUENCE in outside and not inside
    close(compiled(scanned, cell, INIT, XS), gradients(unrolled, cell, INIT, XS))

    def other(h, x):
        h = tf.tanh(f(x @ W) + h @ R) * tf.math.lgamma(h + 3.0)
        return h, f(h)

    outside, inside = types_in(lambda: tf_ti.scan(other, INIT, XS))
    assert "Lgamma" in inside and not {"IdentityN", "Sigmoid"} & set(inside)
    assert inside.count("MatMul") == 1
    close(compiled(scanned, other, INIT, XS), gradients(unrolled, other, INIT, XS))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_silu_of_all_types(dtype):
    init, xs = tf.cast(INIT, dtype), normal(T, B, H, dtype=dtype)

    def cell(h, x):
        return h * tf.constant(0.5, dtype) + tf.nn.silu(x), tf.nn.silu(h, 0.3)

    def run(way):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            h, ys = way(cell, init, xs)
            loss = tf.reduce_sum(h) + tf.reduce_sum(ys * ys)
        return [tf.cast(t, tf.float64) for t in (h, ys, tape.gradient(loss, xs))]

    close(tf.function(run)(scanned), run(unrolled), 2e-2 if dtype.size == 2 else 1e-5)


def test_silu_with_another_beta_in_each_iteration():
    def cell(h, x):
        return h * 0.5 + tf.nn.silu(x @ W, x[0, 0]) + tf.nn.silu(h, h[0, 0]), h

    expected = gradients(unrolled, cell, INIT + 0.1, XS)
    close(compiled(scanned, cell, INIT + 0.1, XS), expected)


def test_a_gradient_like_that_of_silu_is_not_taken_for_it():
    @tf.custom_gradient
    def swish_impl(features, beta):
        def grad(dy):
            return dy * 17.0, tf.zeros_like(beta)

        return features * tf.sigmoid(beta * features), grad

    def cell(h, x):
        return h * 0.5 + swish_impl(x @ W, 1.0), swish_impl(h, 1.0)

    close(compiled(scanned, cell, INIT, XS), gradients(unrolled, cell, INIT, XS))


def test_a_custom_gradient_stays_with_what_it_is_the_gradient_of_and_the_rest_leaves():
    @tf.custom_gradient
    def wrong(v, w):
        s = tf.sin(v)
        return s * w, lambda dy: (dy * s * 17.0, None)

    def cell(h, x):
        h = tf.tanh(wrong(tf.exp(x @ W), tf.cos(x[:, :1])) + h @ R)
        h = h * tf.math.lgamma(h + 3.0)
        return h, tf.atan(h @ V)

    outside, inside = types_in(lambda: tf_ti.scan(cell, INIT, XS))
    assert {"Exp", "Cos", "Atan"} <= set(outside) and not {"Exp", "Cos", "Atan"} & set(inside)
    assert {"Sin", "Mul", "IdentityN", "Tanh"} <= set(inside) and inside.count("MatMul") == 1
    close(compiled(scanned, cell, INIT, XS), gradients(unrolled, cell, INIT, XS))


@pytest.mark.parametrize("f", [intermediate_value, clipped_by_norm, captured_product])
def test_a_cell_is_recognised_though_its_input_and_output_have_custom_gradients(f):
    def cell(h, x):
        z, r = tf.sigmoid(f(x @ W) + h @ R), tf.sigmoid(f(x) @ W + h @ R)
        h = z * h + (1.0 - z) * tf.tanh(f(x @ W) + (r * h) @ R)
        return h, f(h)

    outside, inside = types_in(lambda: tf_ti.scan(cell, INIT, XS))
    assert SEQUENCE in outside and not inside
    close(compiled(scanned, cell, INIT, XS), gradients(unrolled, cell, INIT, XS))


def test_a_gradient_that_cannot_be_asked_for_costs_nothing_until_it_is():
    @tf.custom_gradient
    def f(v):
        def grad(dy):
            raise NotImplementedError("no gradient of this")

        return tf.sin(v), grad

    cell = of_input_and_output(f)
    close(tf.function(lambda: tf_ti.scan(cell, INIT, XS))(), unrolled(cell, INIT, XS))
    with pytest.raises(NotImplementedError, match="no gradient of this"):
        compiled(scanned, cell, INIT, XS)


@pytest.mark.parametrize("of", ["input", "output"])
def test_a_gradient_with_effects_leaves_the_loop_as_others_do(of):
    drawn = tf.Variable(0.0)

    @tf.custom_gradient
    def f(v):
        return v * 2.0, lambda dy: dy * (tf.random.uniform([]) * 0.0 + drawn.assign_add(1.0))

    def cell(h, x):
        h = tf.tanh((f(x @ W) if of == "input" else x @ W) + h @ R)
        return h, f(h) if of == "output" else h

    outside, inside = types_in(lambda: tf_ti.scan(cell, INIT, XS))
    assert SEQUENCE in outside and not inside
    compiled(scanned, cell, INIT, XS)
    assert drawn.numpy() == T  # once in each iteration


# --- effects of a gradient function ---------------------------------------------------------------

SEEN = []
ADDED = tf.Variable(0.0)


def see(*values):
    SEEN.append([np.array(value) for value in values])


def by_python(v, dy):
    tf.py_function(see, [v, dy], [])
    return dy


def by_python_in_a_branch(v, dy):
    tf.cond(dy[0, 0] > -1e9, lambda: by_python(v, dy), lambda: dy)
    return dy


def by_python_in_a_loop(v, dy):
    tf.while_loop(lambda k, _: k < 2, lambda k, dy: (k + 1, by_python(v, dy)), (0, dy))
    return dy


def by_a_variable(v, dy):
    """It reads a value that the gradient of another iteration, or operation, wrote."""
    ADDED.assign_add(tf.reduce_sum(v))
    by_python(ADDED.read_value(), dy)
    return dy * ADDED


def with_effects(effect):
    @tf.custom_gradient
    def f(v):
        s = tf.sin(v)
        return s, lambda dy: effect(v, dy) * tf.cos(s)

    return f


def of_states(f):
    def cell(h, x):
        h = tf.tanh(f(x @ W + h @ R) + f(h))
        return h, h * 2.0

    return cell


def of_inputs(f):
    def cell(h, x):
        h = tf.tanh(f(x) @ W + h @ R)
        return h, h * 2.0

    return cell


def of_states_in_a_branch(f):
    return of_states(lambda v: tf.cond(v[0, 0] > 0.1, lambda: f(v), lambda: v * 2.0))


def effects_of(way, cell, **options):
    """The gradients, and their effects, in order."""
    SEEN.clear()
    ADDED.assign(0.0)
    found = way(cell, INIT, XS, **options)
    return found, [value for values in SEEN for value in values], ADDED.numpy()


@pytest.mark.parametrize("is_eager", [True, False])
@pytest.mark.parametrize(
    ("where", "effect"),
    [
        *itertools.product(
            [of_states, of_inputs, of_states_in_a_branch],
            [by_python, by_python_in_a_branch, by_python_in_a_loop],
        ),
        (of_states, by_a_variable),  # TensorFlow refuses a variable of a branch's gradient alone
    ],
)
@pytest.mark.parametrize("way", [scanned, iterated, looped, nested])
def test_effects_of_a_gradient_function_take_place(way, where, effect, is_eager):
    cell, call = where(with_effects(effect)), functools.partial(gradients, way)
    expected, effects, added = effects_of(functools.partial(gradients, unrolled), cell)
    found, ours, our_added = effects_of(call if is_eager else tf.function(call), cell)
    close(found, expected)
    assert len(ours) == len(effects) > 0
    close(ours, effects)
    np.testing.assert_allclose(our_added, added, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"checkpoint_every": 2}], ids=str)
def test_effects_of_the_gradient_of_a_scan_from_the_end(options):
    way = functools.partial(scanned, reverse=True, **options)
    cell = of_states(with_effects(by_python))
    reverse = functools.partial(gradients, lambda c, h, xs: unrolled(c, h, xs[::-1]))
    _, expected, _ = effects_of(reverse, cell)
    _, found, _ = effects_of(tf.function(functools.partial(gradients, way)), cell)
    close(found, expected)


def test_an_assertion_of_a_gradient_function_holds():
    def check(v, dy):
        tf.debugging.assert_less(tf.reduce_max(tf.abs(dy)), -1.0, "no such gradient")
        return dy

    cell = of_states(with_effects(check))
    for call in (gradients, tf.function(gradients, autograph=False)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="no such gradient"):
            call(scanned, cell, INIT, XS)


@pytest.mark.parametrize("is_eager", [True, False])
def test_second_gradients_get_the_random_numbers_that_a_gradient_function_drew(is_eager):
    @tf.custom_gradient
    def f(v):
        return v * v, lambda dy: dy * v * (1.0 + tf.floor(tf.random.uniform([])))

    def second(h):
        with tf.GradientTape() as outer:
            outer.watch(h)
            with tf.GradientTape() as inner:
                inner.watch(h)
                y = tf_ti.scan(lambda c, _: (f(c), c), h, length=3)[0]
            first = inner.gradient(y, h)
        return first, outer.gradient(first, h)

    h = tf.constant([0.7, 1.1])
    found = (second if is_eager else tf.function(second))(h)
    close(found, [h**7.0, 3.0 * h**6.0])  # as the first gradient is that of v^2 / 2


# --- how often a gradient function is called -----------------------------------------------------


def counted(f=tf.sin):
    """A custom gradient, and its calls."""
    calls = []

    @tf.custom_gradient
    def counting(v):
        def gradient(dy):
            calls.append(1)
            return dy * v

        return f(v), gradient

    return counting, calls


def by_while_loop(cell, init, xs):
    _, h, ys = tf_ti.while_loop(
        lambda k, h, ys: k < T,
        lambda k, h, ys: (k + 1, cell(h, xs[k])[0], ys.write(k, cell(h, xs[k])[1])),
        (0, init, tf.TensorArray(tf.float32, T, element_shape=[B, N])),
    )
    return h, ys.stack()


@pytest.mark.parametrize("is_eager", [True, False])
@pytest.mark.parametrize("way", [scanned, iterated, looped, nested, in_a_function, by_while_loop])
def test_no_gradient_function_is_called_where_nobody_asks(way, is_eager):
    f, calls = counted()
    cell = of_input_and_output(f)
    found = way(cell, INIT, XS) if is_eager else tf.function(lambda: way(cell, INIT, XS))()
    close(found, expected_of(of_input_and_output, tf.sin)[:2])
    assert not calls


@pytest.mark.parametrize("is_eager", [True, False])
@pytest.mark.parametrize("way", [scanned, iterated, looped])
def test_a_gradient_function_is_called_once_for_each_operation(way, is_eager):
    f, calls = counted()

    def cell(h, x):
        h = tf.tanh(f(h @ R) + x @ W)
        return h, h @ V

    expected = gradients(unrolled, cell, INIT, XS)
    calls.clear()
    actual = gradients(way, cell, INIT, XS) if is_eager else compiled(way, cell, INIT, XS)
    close(actual, expected)
    assert len(calls) == 1


@pytest.mark.parametrize("is_eager", [True, False])
@pytest.mark.parametrize("hides", [False, True])
def test_the_gradient_of_a_loop_has_a_loop_of_the_same_function(hides, is_eager):
    """Solvers have such gradients. A trace of the function is made for each that is needed."""
    calls = []

    @tf.custom_gradient
    def cube(x):
        tape = tf.GradientTape() if hides else None
        y = tf_ti.while_loop(lambda k, c: k < 3, lambda k, c: (k + 1, c * x), (0, x * 0.0 + 1.0))[1]

        def slope(dy):
            calls.append(tape)
            return tf_ti.scan(
                lambda g, k: (g + dy * 1.5 * cube(x) / x, None), x * 0.0, tf.zeros([2])
            )[0]

        return y, slope

    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf_ti.scan(lambda c, k: (c + cube(x + k), None), 0.0, tf.constant([0.0, 1.0]))[0]
        return y, tape.gradient(y, x)

    x = tf.constant(0.9)
    y, slope = (gradient if is_eager else tf.function(gradient))()
    np.testing.assert_allclose([y, slope], [0.9**3 + 1.9**3, 3 * (0.9**2 + 1.9**2)], rtol=1e-5)
    assert len(calls) <= (8 if hides else 1)


def test_a_tensor_that_cannot_be_found_is_an_error_that_names_it():
    @tf.custom_gradient
    def f(v):
        hidden = tf.sin(v, name="hidden")
        number = id(hidden)
        return hidden * 1.0, lambda dy: dy * ctypes.cast(number, ctypes.py_object).value

    with pytest.raises(
        ValueError, match=r"IdentityN.* refers to the tensor .*hidden.*local variable"
    ):
        compiled(scanned, of_input_and_output(f), INIT, XS)


def test_several_tensors_pass_unchanged():
    def cell(h, x):
        a, b = tf.identity_n([x @ W, x])
        h = tf.tanh(a + h @ R)
        return h, tf.identity_n([h, b])[0]

    outside, inside = types_in(lambda: tf_ti.scan(cell, INIT, XS))
    assert SEQUENCE in outside and not inside
    close(compiled(scanned, cell, INIT, XS), gradients(unrolled, cell, INIT, XS))


@pytest.mark.parametrize("every", [None, 2])
@pytest.mark.parametrize("is_nested", [False, True])
def test_effects_take_place_once_for_all_of_a_second_gradient(is_nested, every):
    """As often as in TensorFlow's loops, though the gradient function is linear."""

    def calls_of(loop, **options):
        calls = []

        @tf.custom_gradient
        def sine(x):
            def gradient(grad):
                tf.numpy_function(lambda: calls.append(1), [], [])
                return grad * tf.cos(x)

            return tf.sin(x), gradient

        def step(k, x):
            if not is_nested:
                return k + 1, sine(x * 1.1)
            inner = loop(lambda j, _: j < 2, lambda j, x: (j + 1, sine(x * 1.1)), (0, x))
            return k + 1, inner[1]

        @tf.function(autograph=False)
        def second(x):
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = loop(lambda k, _: k < 4, step, (0, x), **options)[1]
                slope = tf.sin(tape.gradient(y, x))
            return outer.gradient(slope, x)

        return second(tf.constant([0.3, 0.7])), len(calls)

    expected, count = calls_of(tf.while_loop)
    found, our_count = calls_of(tf_ti.while_loop, maximum_iterations=4, checkpoint_every=every or 1)
    np.testing.assert_allclose(found, expected, 1e-5)
    assert our_count == count


TABLE = tf.Variable([0.7, 0.6, 0.5, 0.9], trainable=True)


def in_a_call_of_a_function(loop, apply, y):
    return tf.function(apply, autograph=False)(y)


def in_a_loop_of_tensorflow(loop, apply, y):
    return tf.while_loop(lambda j, _: j < 2, lambda j, y: (j + 1, apply(y)), [0, y])[1]


def in_a_loop_of_the_same_kind(loop, apply, y):
    return loop(lambda j, _: j < 2, lambda j, y: (j + 1, apply(y)), [0, y])[1]


def in_one_branch(loop, apply, y):
    return tf.cond(y > 0.1, lambda: apply(y), lambda: y * 0.9)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(
    "place",
    [
        lambda loop, apply, y: apply(y),
        in_one_branch,
        in_a_call_of_a_function,
        in_a_loop_of_tensorflow,
        in_a_loop_of_the_same_kind,
    ],
    ids=["the body", "a branch", "a call", "a loop of TensorFlow", "a loop"],
)
def test_effects_beside_look_ups_of_a_variable_do_not_change_it(place, every):
    """They may be computed again: a function that prints and reads a variable does not write it."""

    def slopes(loop, **options):
        calls = []

        @tf.custom_gradient
        def sine(x):
            def gradient(grad):
                tf.numpy_function(lambda: calls.append(1), [], [])
                return grad * tf.cos(x) * 3.0

            return tf.sin(x), gradient

        def body(i, y):
            y = place(loop, lambda y: sine(tf.gather(TABLE, i) * y), y)
            return i + 1, y * tf.gather(TABLE, i)

        @tf.function(autograph=False)
        def gradients(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = loop(lambda i, _: i < 4, body, [0, x], maximum_iterations=4, **options)[1]
            return [tf.convert_to_tensor(g) for g in tape.gradient(y, [x, TABLE])]

        return gradients(tf.constant(0.8)), len(calls)

    expected, count = slopes(tf.while_loop)
    found, our_count = slopes(tf_ti.while_loop, checkpoint_every=every)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-5)
    assert our_count == count


@tf.custom_gradient
def with_squared_gradient(x):
    return tf.sin(x), lambda grad: grad * grad * x


def in_a_case(loop, apply, y):
    return tf.switch_case(tf.cast(y < 0.1, tf.int32), [lambda: apply(y), lambda: y * 0.9])


def by_checkpoints(step, y):
    return tf_ti.scan(lambda y, _: (step(y), None), y, None, length=4, checkpoint_every=2)[0]


def by_checkpoints_of_a_condition(step, y):
    body = lambda k, y: (k + 1, step(y))  # noqa: E731
    return tf_ti.while_loop(lambda k, _: k < 4, body, (0, y), checkpoint_every=2)[1]


def by_checkpoints_inside(step, y):
    return tf_ti.scan(lambda y, _: (by_checkpoints(step, y), None), y, None, length=1)[0]


def by_scan(step, y):
    return tf_ti.scan(lambda y, _: (step(y), None), y, None, length=4)[0]


@pytest.mark.parametrize("place", [in_one_branch, in_a_case])
@pytest.mark.parametrize(
    "way", [by_scan, by_checkpoints, by_checkpoints_of_a_condition, by_checkpoints_inside]
)
def test_second_gradients_of_branches_are_right_or_refused(way, place):
    """The gradient computes a conditional again, whose custom gradient may not be linear."""

    def slope(run, y):
        with tf.GradientTape() as tape:
            tape.watch(y)
            value = run(y) ** 2
        return tape.gradient(value, y)

    def second(run, y):
        with tf.GradientTape() as tape:
            tape.watch(y)
            first = slope(run, y)
        return tape.gradient(first, y)

    def unrolled(y):
        for _ in range(4):
            y = with_squared_gradient(y) * 0.9 + y * 0.1  # y stays greater than 0.1
        return y

    def run(y):
        return way(lambda y: place(tf_ti.while_loop, with_squared_gradient, y) * 0.9 + y * 0.1, y)

    y = tf.constant(0.7)
    np.testing.assert_allclose(tf.function(lambda y: slope(run, y))(y), slope(unrolled, y), 1e-5)
    try:
        found = tf.function(lambda y: second(run, y))(y)
    except ValueError as error:
        assert way is not by_scan and "is not linear in what it gets" in str(error)
    else:
        np.testing.assert_allclose(found, second(unrolled, y), 1e-5)
