"""Options that meet: each form of a loop, with each k-th state recorded, under each derivative.

A form builds its loop out of tf_ti's `scan` and `while_loop`, or out of the same in eager Python:
that is the oracle. Each cell of the matrix has the same values, or an error that names the option.
"""

import functools
import types

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import _library

pytestmark = pytest.mark.quarter

XS = tf.constant(np.linspace(-0.8, 1.1, 14).reshape(7, 2))
W = tf.constant([[0.6, -0.3], [0.4, 0.7]], tf.float64)
SHIFT = tf.constant([0.3, -0.2], tf.float64)


def _scan(f, init, xs=None, *, axis=0, reverse=False, length=None, until=None, is_padded=False):
    count = length if xs is None else tf.nest.flatten(xs)[0].shape[axis]
    carry, ys, is_over = init, [], False
    for k in reversed(range(count)) if reverse else range(count):
        if is_over:
            if length is None and not is_padded:
                break
            ys.append(tf.nest.map_structure(tf.zeros_like, ys[0]))
            continue
        x = None
        if xs is not None:
            x = tf.nest.map_structure(lambda t: tf.gather(t, k, axis=axis), xs)  # noqa: B023
        carry, y = f(carry, x)
        ys.append(y)
        is_over = until is not None and bool(until(carry, y))
    ys = ys[::-1] if reverse else ys
    return carry, tf.nest.map_structure(lambda *t: tf.stack(t, axis), *ys)


def _while_loop(cond, body, loop_vars, maximum_iterations=None, shape_invariants=None):
    done = 0
    while (maximum_iterations is None or done < maximum_iterations) and cond(*loop_vars):
        loop_vars = body(*loop_vars)
        done += 1
    return loop_vars


def by_python(mode):
    """The oracle; zeros take the places of results that are missing under XLA."""
    scan = functools.partial(_scan, is_padded=mode == "jit")
    return types.SimpleNamespace(scan=scan, while_loop=_while_loop)


def ours(every):
    def scan(*arguments, **options):
        return tf_ti.scan(*arguments, checkpoint_every=every, **options)

    def while_loop(*arguments, **options):
        return tf_ti.while_loop(*arguments, checkpoint_every=every, **options)

    return types.SimpleNamespace(scan=scan, while_loop=while_loop)


# --- forms: functions of (the ways in, elements, weights, variables) ------------------------------


def advance(c, x, w):
    return tf.tanh(tf.linalg.matvec(w, c) + x)


def start(xs):
    return 0.1 * tf.reduce_sum(xs, 0) + SHIFT


def plain(ways, xs, w, **options):
    def f(c, x):
        c = advance(c, x, w)
        return c, tf.sin(c) * x

    return ways.scan(f, start(xs), xs, **options)


def backwards(ways, xs, w):
    return plain(ways, xs, w, reverse=True)


def along_axis_1(ways, xs, w):
    def f(c, x):
        c = advance(c, x, w)
        return c, tf.sin(c) * x

    return ways.scan(f, start(xs), tf.transpose(xs), axis=1)


def matrices(ways, xs, w):
    """The gradient of the weights is a sum of products."""

    def f(c, x):
        c = tf.tanh(c @ w + x)
        return c, tf.reduce_sum(c @ w, 0)

    return ways.scan(f, tf.stack([start(xs), SHIFT, -SHIFT]), xs)


def until(ways, xs, w, **options):
    def is_over(c, y):
        return tf.reduce_sum(tf.abs(y)) > 0.9

    return plain(ways, xs, w, until=is_over, **options)


def until_with_length(ways, xs, w):
    return until(ways, xs, w, length=7)


def until_backwards(ways, xs, w):
    return until(ways, xs, w, reverse=True)


def until_backwards_with_length(ways, xs, w):
    return until(ways, xs, w, reverse=True, length=7)


def until_without_elements(ways, xs, w):
    def f(c, _):
        c = advance(c, SHIFT, w)
        return c, c * c

    return ways.scan(f, start(xs), length=6, until=lambda c, y: tf.reduce_sum(y) > 0.2)


def condition(ways, xs, w, limit=None):
    def body(k, c):
        return k + 1, advance(c, xs[k], w)

    return ways.while_loop(
        lambda k, c: k < 5, body, (tf.constant(0), start(xs)), maximum_iterations=limit
    )


def condition_and_limit(ways, xs, w):
    return condition(ways, xs, w, 7)


def limit(ways, xs, w):
    return condition(ways, xs, w, 4)


def condition_of_values(ways, xs, w):
    def cond(c, total):
        return tf.reduce_sum(total) < 3.0

    def body(c, total):
        c = advance(c, SHIFT, w)
        return c, total + tf.abs(c) + 0.1

    return ways.while_loop(
        cond, body, (start(xs), tf.zeros([2], tf.float64)), maximum_iterations=20
    )


def no_iterations(ways, xs, w):
    return ways.while_loop(
        lambda c: False, lambda c: (advance(c, SHIFT, w),), (start(xs),), maximum_iterations=4
    )


def length(ways, xs, w):
    def f(c, _):
        c = advance(c, SHIFT, w)
        return c, c * c

    return ways.scan(f, start(xs), length=5)


def asserts(ways, xs, w):
    def f(c, x):
        tf.debugging.assert_less(tf.reduce_max(c), tf.constant(100.0, tf.float64))
        tf.debugging.Assert(tf.reduce_all(tf.math.is_finite(x)), [x])
        c = advance(c, x, w)
        return c, c * x

    return ways.scan(f, start(xs), xs)


def asserts_and_condition(ways, xs, w):
    def body(k, c):
        tf.debugging.assert_less(k, 100)
        return k + 1, advance(c, xs[k], w)

    return ways.while_loop(
        lambda k, c: k < 5, body, (tf.constant(0), start(xs)), maximum_iterations=7
    )


def variable_read(ways, xs, w, variable):
    return plain(ways, xs, w * variable)


def variable_read_inside(ways, xs, w, variable):
    def f(c, x):
        c = advance(c, x, w) * variable
        return c, c + variable * x

    return ways.scan(f, start(xs), xs)


def variable_written(ways, xs, w, variable):
    def f(c, x):
        c = advance(c, x, w) * variable
        variable.assign_add(0.25)
        return c, c * x

    return ways.scan(f, start(xs), xs)


def variable_written_and_condition(ways, xs, w, variable):
    def body(k, c):
        c = advance(c, xs[k], w) * variable
        variable.assign_add(0.25)
        return k + 1, c

    return ways.while_loop(
        lambda k, c: k < 5, body, (tf.constant(0), start(xs)), maximum_iterations=7
    )


def dicts(ways, xs, w):
    def f(c, x):
        a = advance(c["a"], x["x"], w)
        return {"a": c["b"][0], "b": [a]}, {"y": a * x["z"]}

    elements = {"x": xs, "z": tf.cos(xs)}
    return ways.scan(f, {"a": start(xs), "b": [SHIFT]}, elements)


def nest(ways, xs, w):
    def f(c, x):
        c, inner = ways.scan(
            lambda d, z: (advance(d, z, w), d * z), c, tf.stack([x, x * x, x + 1.0])
        )
        return c, tf.reduce_sum(inner, 0)

    return ways.scan(f, start(xs), xs)


def nest_with_conditions(ways, xs, w):
    def f(c, x):
        _, c = ways.while_loop(
            lambda k, d: k < 3,
            lambda k, d: (k + 1, advance(d, x, w)),
            (tf.constant(0), c),
            maximum_iterations=4,
        )
        return c, c * x

    return ways.scan(f, start(xs), xs, until=lambda c, y: tf.reduce_sum(tf.abs(y)) > 0.9)


FORMS = [
    plain,
    backwards,
    along_axis_1,
    matrices,
    until,
    until_with_length,
    until_backwards,
    until_backwards_with_length,
    until_without_elements,
    condition,
    condition_and_limit,
    limit,
    condition_of_values,
    no_iterations,
    length,
    asserts,
    asserts_and_condition,
    variable_read,
    variable_read_inside,
    variable_written,
    variable_written_and_condition,
    dicts,
    nest,
    nest_with_conditions,
]
WRITING = (variable_written, variable_written_and_condition)
OF_VARIABLES = (variable_read, variable_read_inside, *WRITING)

# --- derivatives: functions of (form, elements, weights) ------------------------------------------


def _numbers(results):
    floats = [t for t in tf.nest.flatten(results) if t.dtype == tf.float64]
    return tf.concat([tf.reshape(t, [-1]) for t in floats], 0)


def _loss(results):
    return tf.reduce_sum(tf.sin(_numbers(results)) + 0.5 * _numbers(results) ** 2)


def value(form, xs, w):
    return [form(xs, w)]


def gradients(form, xs, w):
    with tf.GradientTape() as tape:
        tape.watch([xs, w])
        loss = _loss(form(xs, w))
    return tape.gradient(loss, [xs, w], unconnected_gradients="zero")


def second_gradients(form, xs, w):
    with tf.GradientTape() as tape:
        tape.watch([xs, w])
        first = gradients(form, xs, w)
        loss = tf.add_n([tf.reduce_sum(tf.sin(tf.convert_to_tensor(g))) for g in first])
    return tape.gradient(loss, [xs, w], unconnected_gradients="zero")


def tangents(form, xs, w):
    with tf.autodiff.ForwardAccumulator([xs, w], [tf.cos(xs), tf.cos(w)]) as accumulator:
        numbers = _numbers(form(xs, w))
    return [accumulator.jvp(numbers, "zero")]


def jacobian(form, xs, w):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([xs, w])
        numbers = _numbers(form(xs, w))[:3]
    return [tape.jacobian(numbers, t, unconnected_gradients="zero") for t in (xs, w)]


def _lanes(xs):
    return tf.stack([xs, 1.01 * xs])


def lanes(form, xs, w):
    return [tf.vectorized_map(lambda x: _numbers(form(x, w)), _lanes(xs))]


def gradients_of_lanes(form, xs, w):
    return [tf.vectorized_map(lambda x: gradients(form, x, w)[0], _lanes(xs))]


DERIVATIVES = [
    value,
    gradients,
    second_gradients,
    tangents,
    jacobian,
    lanes,
    gradients_of_lanes,
]


def _one_by_one(derivative, form, xs, w):
    """The oracle of a derivative: eager, lane by lane, and without a loop op."""
    if derivative is lanes:
        return [tf.stack([_numbers(form(x, w)) for x in _lanes(xs)])]
    if derivative is gradients_of_lanes:
        return [tf.stack([gradients(form, x, w)[0] for x in _lanes(xs)])]
    if derivative is jacobian:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([xs, w])
            numbers = _numbers(form(xs, w))[:3]
        return [
            tape.jacobian(numbers, t, unconnected_gradients="zero", experimental_use_pfor=False)
            for t in (xs, w)
        ]
    return derivative(form, xs, w)


def with_variables(form, variable):
    if form not in OF_VARIABLES:
        return form

    def run(ways, xs, w):
        variable.assign(1.5)
        return form(ways, xs, w, variable)

    return run


def refusal(form, derivative, mode):
    """The words of the error of a cell that cannot be, or None."""
    ends_early = "until" in form.__name__ or "condition" in form.__name__
    if mode == "jit" and ends_early and derivative in (lanes, gradients_of_lanes):
        if form not in (condition, condition_and_limit, asserts_and_condition):
            return "its lanes do not end together"
    return None


def check(form, derivative, every, mode):
    variable = tf.Variable(1.5, dtype=tf.float64)
    made = with_variables(form, variable)
    expected = _one_by_one(derivative, lambda xs, w: made(by_python(mode), xs, w), XS, W)
    left = variable.numpy()

    def run(xs, w):
        return derivative(lambda xs, w: made(ours(every), xs, w), xs, w)

    call = run
    if mode != "eager":
        shape = [None, None] if mode == "open" else None
        signature = shape and [tf.TensorSpec(shape, tf.float64)] * 2
        call = tf.function(run, input_signature=signature, jit_compile=mode == "jit")
    found = call(XS, W)
    for our, theirs in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(our, theirs, rtol=1e-9, atol=1e-10)
    if derivative not in (lanes, gradients_of_lanes):
        assert variable.numpy() == left


def is_not_tensorflows(form, derivative, **_):
    """TensorFlow does not vectorize writes to variables."""
    return form in WRITING and derivative in (lanes, gradients_of_lanes)


@pytest.mark.pairwise(without=is_not_tensorflows)
@pytest.mark.parametrize("mode", ["eager", "function", "open", "jit"])
@pytest.mark.parametrize("every", [None, 1, 3, 100])
@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("form", FORMS)
def test_each_cell_is_right(form, derivative, every, mode):
    if mode == "jit" and _library.XLA_PROBLEM is not None:
        pytest.skip(str(_library.XLA_PROBLEM))
    words = refusal(form, derivative, mode)
    if words is None:
        check(form, derivative, every, mode)
    else:
        with pytest.raises(Exception, match=words):
            check(form, derivative, every, mode)


@pytest.mark.parametrize("every", [None, 3])
@pytest.mark.parametrize("is_function", [False, True])
@pytest.mark.parametrize("form", WRITING)
def test_second_gradients_reach_a_variable_that_the_body_writes(form, is_function, every):
    variable = tf.Variable(1.5, dtype=tf.float64)

    def run(ways):
        variable.assign(1.5)
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = _loss(form(ways, XS, W, variable))
            first = inner.gradient(loss, variable)
            sine = tf.sin(first)
        return first, outer.gradient(sine, variable)

    expected = run(by_python("eager"))

    def call():
        return run(ours(every))

    found = tf.function(call)() if is_function else call()
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("with_condition", [False, True])
def test_gradients_use_the_random_numbers_that_were_drawn(with_condition, every):
    def f(c, x):
        noise = tf.random.uniform([2], dtype=tf.float64)
        c = advance(c, x * noise, W)
        return c, (noise, c * noise)

    def is_over(c, y):
        return tf.reduce_sum(y[0]) > 1.4

    @tf.function
    def run(xs):
        with tf.GradientTape() as outer:
            outer.watch(xs)
            with tf.GradientTape() as tape:
                tape.watch(xs)
                c, (noise, ys) = tf_ti.scan(
                    f, SHIFT, xs, until=is_over if with_condition else None, checkpoint_every=every
                )
                loss = _loss((c, ys))
            first = tape.gradient(loss, xs)
            sine = tf.reduce_sum(tf.sin(first))
        return noise, first, outer.gradient(sine, xs)

    noise, *found = run(XS)
    with tf.GradientTape() as outer:
        outer.watch(XS)
        with tf.GradientTape() as tape:
            tape.watch(XS)
            c, ys = SHIFT, []
            for x, drawn in zip(tf.unstack(XS), tf.unstack(noise)):
                c = advance(c, x * drawn, W)
                ys.append(c * drawn)
            loss = _loss((c, ys))
        first = tape.gradient(loss, XS)
        sine = tf.reduce_sum(tf.sin(first))
    for ours_, theirs in zip(found, [first, outer.gradient(sine, XS)]):
        np.testing.assert_allclose(ours_, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("every", [None, 2])
def test_an_assertion_that_fails_ends_a_loop_with_checkpoints(every):
    def f(c, x):
        tf.debugging.assert_less(tf.reduce_max(c), tf.constant(0.5, tf.float64))
        return c + x * x, None

    with pytest.raises(tf.errors.InvalidArgumentError, match="assert"):
        with tf.GradientTape() as tape:
            tape.watch(XS)
            y = tf_ti.scan(f, SHIFT, XS, checkpoint_every=every)[0]
        tape.gradient(y, XS)


@pytest.mark.parametrize("every", [None, 2, 5])
@pytest.mark.parametrize("shapes", [([7, 2], [1, 2]), ([None, None], [None, None])])
def test_second_gradients_of_concatenated_pieces_of_open_extents(shapes, every):
    port_map = tf_ti.PortMap(
        [tf_ti.InputPort(0, 0, axis=0), tf_ti.InputPort(1, 1)],
        [tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 1, axis=1)],
    )

    def body(piece, c):
        return tf.tanh(c * 0.7 + piece), tf.concat([c * piece, c], 1)

    def by_iterator(xs, c):
        options = {"checkpoint_every": every}
        return tf_ti.tensor_iterator(body, [xs, c], port_map, [tf_ti.BackEdge(0, 1)], **options)

    def in_python(xs, c):
        pieces = []
        for piece in tf.split(xs, 7):
            c, made = body(piece, c)
            pieces.append(made)
        return c, tf.concat(pieces, 1)

    signature = [tf.TensorSpec(shape, tf.float64) for shape in shapes]
    made = tf.function(by_iterator, input_signature=signature)
    start = SHIFT[tf.newaxis]
    found, expected = (
        second_gradients(lambda xs, w: call(xs, start), XS, W)  # noqa: B023
        for call in (made, in_python)
    )
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-9, atol=1e-10)
