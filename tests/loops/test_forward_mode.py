"""Forward-mode derivatives of loops, by tf.autodiff.ForwardAccumulator, against unrolled loops."""

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti.loops import traced
from tf_ti.loops.derivatives import gradients

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
