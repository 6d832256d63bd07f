"""Forward-mode derivatives of loops, by tf.autodiff.ForwardAccumulator, against unrolled loops."""

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti.loops import traced
from tf_ti.loops.derivatives import gradients

pytestmark = pytest.mark.quarter

F64 = tf.float64
RNG = np.random.default_rng(0)
XS, DIRECTION = (tf.constant(RNG.standard_normal((4, 3))) for _ in range(2))
MATRIX, TURN = (tf.constant(RNG.standard_normal((3, 3))) for _ in range(2))
VARIABLE = tf.Variable(MATRIX)


def unrolled(step, c, xs):
    ys = []
    for e in tf.unstack(xs):
        c, y = step(c, e)
        ys.append(y)
    return c, tf.stack(ys)


def by_iterator(step, c, xs):
    def body(piece, c):
        c, y = step(c, piece[0])
        return c, y[None]

    return tf_ti.tensor_iterator(
        body,
        [xs, c],
        tf_ti.PortMap(
            inputs=[tf_ti.InputPort(0, 0, axis=0), tf_ti.InputPort(1, 1)],
            outputs=[tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 1, axis=0)],
        ),
        [tf_ti.BackEdge(0, 1)],
    )


LOOPS = {"scan": tf_ti.scan, "tensor_iterator": by_iterator}
# The watched tensor, its tangent, and the loop's elements and captured matrix made of it.
WATCHED = {
    "elements": (XS, DIRECTION, lambda x: (x, MATRIX)),
    "captured-tensor": (MATRIX, TURN, lambda w: (XS, w)),
    "captured-variable": (VARIABLE, TURN, lambda v: (XS, v)),
}


def model(loop, xs, matrix):
    def step(c, e):
        return tf.tanh(tf.linalg.matvec(matrix, c) + e), c * e

    return loop(step, tf.ones([3], F64), xs)


def forward(loop, watched, tangent, given):
    with tf.autodiff.ForwardAccumulator(watched, tangent) as accumulator:
        outputs = model(loop, *given(watched))
    return [accumulator.jvp(y) for y in outputs]


def forward_over_reverse(loop, watched, tangent, given):
    with tf.autodiff.ForwardAccumulator(watched, tangent) as accumulator:
        with tf.GradientTape() as tape:
            tape.watch(watched)
            last, ys = model(loop, *given(watched))
            loss = tf.reduce_sum(last**2) + tf.reduce_sum(tf.sin(ys))
        gradient = tape.gradient(loss, watched)
    return [accumulator.jvp(gradient)]


def reverse_over_forward(loop, watched, tangent, given):
    with tf.GradientTape() as tape:
        tape.watch(watched)
        last, ys = forward(loop, watched, tangent, given)
        loss = tf.reduce_sum(last**2) + tf.reduce_sum(tf.sin(ys))
    return [tape.gradient(loss, watched)]


@pytest.mark.pairwise
@pytest.mark.parametrize("place", ["eager", "function"])
@pytest.mark.parametrize("watched", WATCHED)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("mode", [forward, forward_over_reverse, reverse_over_forward])
def test_derivatives_are_those_of_the_loop_unrolled(mode, loop, watched, place):
    watched, tangent, given = WATCHED[watched]

    def call(loop):
        return mode(loop, watched, tangent, given)

    actual = call(LOOPS[loop]) if place == "eager" else tf.function(call)(LOOPS[loop])
    for a, e in zip(actual, call(unrolled)):
        np.testing.assert_allclose(a, e, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["count", "condition"])
def test_a_loop_built_step_by_step_has_tangents(limit):
    def built(step, c, xs):
        with tf_ti.Loop() as loop:
            e, h, k = loop.add_iterator(xs), loop.add_recurrence(c), loop.add_recurrence(0)
            k.next = k + 1
            if limit == "count":
                loop.add_trip_limit(4, tf_ti.TripLimit.COUNT)
            else:
                loop.add_trip_limit(k < 4, tf_ti.TripLimit.WHILE)
            h.next, y = step(h, e)
            last = loop.add_loop_output(h, tf_ti.LoopOutput.LAST_VALUE)
            ys = loop.add_loop_output(y, tf_ti.LoopOutput.CONCATENATE)
        return last.tensor, ys.tensor

    for watched, tangent, given in WATCHED.values():
        for a, e in zip(
            forward(built, watched, tangent, given), forward(unrolled, watched, tangent, given)
        ):
            np.testing.assert_allclose(a, e, rtol=1e-10)


def test_an_accumulator_around_a_function_that_has_the_loop():
    call = tf.function(lambda xs: model(tf_ti.scan, xs, MATRIX))
    with tf.autodiff.ForwardAccumulator(XS, DIRECTION) as accumulator:
        outputs = call(XS)
    expected = forward(unrolled, *WATCHED["elements"])
    for y, e in zip(outputs, expected):
        np.testing.assert_allclose(accumulator.jvp(y), e, rtol=1e-10)


@pytest.mark.slow
def test_accumulators_nest():
    def second(loop):
        with tf.autodiff.ForwardAccumulator(XS, DIRECTION) as outer:
            with tf.autodiff.ForwardAccumulator(XS, DIRECTION) as inner:
                last, ys = model(loop, XS, MATRIX)
            first = [inner.jvp(last), inner.jvp(ys)]
        return [outer.jvp(t) for t in first]

    for a, e in zip(second(tf_ti.scan), second(unrolled)):
        np.testing.assert_allclose(a, e, rtol=1e-10)


@pytest.mark.parametrize("known", [(), (0,), (0, 1)])
def test_the_tangents_of_outputs_are_of_those_inputs_that_have_some(known):
    """Outputs have no tangents if no input has one."""
    graph = tf.Graph()
    with graph.as_default():
        xs, start = tf.constant([0.5, 1.0, 2.0]), tf.constant(0.25)
        tf_ti.scan(lambda c, x: (c * x, c), start, xs)
        (op,) = (op for op in graph.get_operations() if op.type.endswith("TensorIterator"))
        loop = traced.TracedLoop.from_op(op)
        ones = [tf.ones_like(t) if i in known else None for i, t in enumerate(loop.tensors)]
        found = gradients.jvp(loop, *ones)
    assert len(found) == len(op.outputs)
    if not known:
        assert found == [None] * len(op.outputs)
        return
    with tf.compat.v1.Session(graph=graph) as session:
        tangent = session.run(found[0])
    by_start, by_xs = 0.5 * 1.0 * 2.0, 0.25 * (1.0 * 2.0 + 0.5 * 2.0 + 0.5 * 1.0)
    np.testing.assert_allclose(tangent, by_start + (by_xs if 1 in known else 0.0), rtol=1e-6)


def in_a_branch(matrix, c, e):
    moved = lambda: tf.tanh(tf.linalg.matvec(matrix, c) + e)  # noqa: E731
    return tf.cond(c[0] > 0.3, moved, lambda: c * e + 0.2)


def in_a_case(matrix, c, e):
    branches = [lambda: tf.linalg.matvec(matrix, c) * e, lambda: c + matrix[0], lambda: c]
    return tf.switch_case(tf.cast(c[0] > 0.3, tf.int32), branches)


def in_an_inner_while_loop(matrix, c, e):
    step = lambda k, c: (k + 1, tf.tanh(tf.linalg.matvec(matrix, c) + e))  # noqa: E731
    return tf.while_loop(lambda k, _: k < 2, step, (0, c))[1]


def in_a_branch_of_an_inner_loop(matrix, c, e):
    return tf_ti.scan(lambda c, _: (in_a_branch(matrix, c, e), None), c, None, length=2)[0]


def by_condition(step, c, xs):
    c = tf_ti.while_loop(lambda k, _: k < len(xs), lambda k, c: (k + 1, step(c, xs[k])[0]), (0, c))[
        1
    ]
    return c, c


def by_block(step, c, xs):
    with tf_ti.Loop() as loop:
        loop.add_trip_limit(len(xs), tf_ti.TripLimit.COUNT)
        h = loop.add_recurrence(c)
        h.next = step(h.tensor, loop.add_iterator(xs).tensor)[0]
        last = loop.add_loop_output(h, tf_ti.LoopOutput.LAST_VALUE)
    return last.tensor, last.tensor


@pytest.mark.parametrize(
    "apply", [in_a_branch, in_a_case, in_an_inner_while_loop, in_a_branch_of_an_inner_loop]
)
def test_control_flow_of_what_a_body_captures(apply):
    def run(loop, watched=MATRIX):
        with tf.autodiff.ForwardAccumulator(watched, TURN) as accumulator:
            c, _ = loop(lambda c, e: (apply(watched, c, e), c), tf.ones([3], F64), XS)
        return accumulator.jvp(c)

    expected = run(unrolled)
    for loop in (tf_ti.scan, by_iterator, by_condition, by_block):
        np.testing.assert_allclose(tf.function(run)(loop), expected, rtol=1e-9)
    np.testing.assert_allclose(run(tf_ti.scan), expected, rtol=1e-9)
    np.testing.assert_allclose(tf.function(run)(tf_ti.scan, VARIABLE), expected, rtol=1e-9)


def reading(k, c, array):
    return tf.sin(c) * array.read(k), array


def writing(k, c, array):
    return tf.sin(c), array.write(k, c * c)


def rewriting(k, c, array):
    c = tf.sin(c * array.read(k))
    return c, array.write(4 - k, c * c)


def stacking(k, c, array):
    array = array.write(k, c)
    return tf.sin(tf.reduce_mean(array.stack() ** 2) + c), array


def writing_in_a_branch(k, c, array):
    c = tf.sin(c * 1.1)
    return c, tf.cond(k % 2 < 1, lambda: array.write(k, c * c), lambda: array.write(0, c))


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("is_eager", [True, False])
@pytest.mark.parametrize("step", [reading, writing, rewriting, stacking, writing_in_a_branch])
def test_arrays_of_a_loop(step, is_eager, every):
    """Against central differences."""

    def run(x):
        array = tf.TensorArray(F64, 5, element_shape=[], clear_after_read=False)
        array = array.unstack(tf.linspace(x, 2.0 * x, 5))
        _, c, array = tf_ti.while_loop(
            lambda k, *_: k < 5,
            lambda k, c, array: (k + 1, *step(k, c, array)),
            (0, x, array),
            maximum_iterations=5,
            checkpoint_every=every,
        )
        return c + tf.reduce_sum(array.stack() ** 2)

    def tangent(x):
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            y = run(x)
        return accumulator.jvp(y)

    x, delta = tf.constant(0.8, F64), 1e-6
    run = tf.function(run)
    expected = (run(x + delta) - run(x - delta)) / (2.0 * delta)
    found = tangent(x) if is_eager else tf.function(tangent)(x)
    np.testing.assert_allclose(found, expected, 1e-7)


def twice_by_tapes(run, x, tangent, watches_all=False):
    with tf.GradientTape() as outer:
        if watches_all:
            outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = run(x)
        seed = tf.zeros_like(y)
        outer.watch(seed)
        slope = tape.gradient(y, x, seed)
    return outer.gradient(slope, seed, tangent)


def twice_by_a_tape_that_watches_all(run, x, tangent):
    return twice_by_tapes(run, x, tangent, watches_all=True)


def twice_by_gradients(run, x, tangent):
    with tf.name_scope("around"):
        y = run(x)
        seed = tf.zeros_like(y)
        (slope,) = tf.gradients(y, x, seed)
        return tf.gradients(slope, seed, tangent)[0]


@pytest.mark.parametrize("extent", [None, 3])
@pytest.mark.parametrize(
    "push", [twice_by_tapes, twice_by_a_tape_that_watches_all, twice_by_gradients]
)
@pytest.mark.parametrize("loop", [tf_ti.scan, by_iterator, by_condition])
def test_reverse_twice_from_zeros(loop, push, extent):
    """The gradient is linear in the seeds, so zeros do for them."""

    def step(c, e):
        return tf.tanh(c * e), c * c

    xs, x = tf.constant([[0.5], [1.5]], F64), tf.constant([0.3, -0.6, 0.9], F64)
    tangent = tf.constant([1.0, 2.0, -1.0], F64)
    # By each output, where nothing depends on the other one.
    for number in (0,) if loop is by_condition else (0, 1):
        with tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
            y = unrolled(step, x, xs)[number]
        found = tf.function(
            lambda x, t, number=number: push(lambda x: loop(step, x, xs)[number], x, t),
            [tf.TensorSpec([extent], F64)] * 2,
        )(x, tangent)
        np.testing.assert_allclose(found, accumulator.jvp(y), 1e-9)
