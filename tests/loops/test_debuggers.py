"""Loops while TensorFlow's debuggers look at each operation, and bodies that check numbers."""

import collections
import contextlib
import tempfile

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

pytestmark = pytest.mark.quarter

F64 = tf.float64
XS = np.linspace(0.5, 1.5, 6)
ROWS = np.linspace(-1.0, 1.0, 18).reshape(2, 3, 3)


@contextlib.contextmanager
def checker():
    tf.debugging.enable_check_numerics()
    try:
        yield
    finally:
        tf.debugging.disable_check_numerics()


@contextlib.contextmanager
def dumps(mode):
    with tempfile.TemporaryDirectory() as folder:
        tf.debugging.experimental.enable_dump_debug_info(folder, tensor_debug_mode=mode)
        try:
            yield
        finally:
            tf.debugging.experimental.disable_dump_debug_info()


DEBUGGERS = {"checker": checker, "dumps": lambda: dumps("FULL_HEALTH")}


def scan(step, start, xs, **options):
    return tf_ti.scan(lambda c, x: (step(c, x), None), start, xs, **options)[0]


def checkpoints(step, start, xs):
    return scan(step, start, xs, checkpoint_every=2)


def while_loop(step, start, xs):
    return tf_ti.while_loop(
        lambda k, c: k < tf.shape(xs)[0], lambda k, c: (k + 1, step(c, xs[k])), (0, start)
    )[1]


def tensor_iterator(step, start, xs):
    port_map = tf_ti.PortMap(
        [tf_ti.InputPort(0, 0, axis=0), tf_ti.InputPort(1, 1)], [tf_ti.OutputPort(0, 0)]
    )
    edges = [tf_ti.BackEdge(0, 1)]
    return tf_ti.tensor_iterator(lambda x, c: step(c, x[0]), [xs, start], port_map, edges)[0]


def block(step, start, xs):
    with tf_ti.Loop() as loop:
        loop.add_trip_limit(tf.shape(xs)[0], "count")
        x, c = loop.add_iterator(xs), loop.add_recurrence(start)
        c.next = step(c, x)
        last = loop.add_loop_output(c, "last_value")
    return tf.convert_to_tensor(last)


def block_with_condition(step, start, xs):
    with tf_ti.Loop() as loop:
        k, c = loop.add_recurrence(0), loop.add_recurrence(start)
        loop.add_trip_limit(k < tf.shape(xs)[0], "while")
        k.next, c.next = k + 1, step(c, xs[tf.minimum(k, 5)])
        last = loop.add_loop_output(c, "last_value")
    return tf.convert_to_tensor(last)


def unrolled(step, start, xs):
    for k in range(len(XS)):
        start = step(start, xs[k])
    return start


LOOPS = [scan, checkpoints, while_loop, tensor_iterator, block, block_with_condition]


def by_plain_ops(c, x):
    return tf.sin(c * x) + tf.exp(-x)


def by_branches(c, x):
    return tf.cond(x > 1, lambda: tf.sin(c) * x, lambda: c + tf.sqrt(x))


def by_inner_loop(c, x):
    return scan(lambda c, y: tf.sin(c) * y, c, tf.stack([x, 2 * x]))


@tf.custom_gradient
def halved(x):
    return x / 2, lambda grad: grad / 2


def by_custom_gradient(c, x):
    return tf.sin(halved(c)) + tf.nn.silu(x)


def by_check(c, x):
    return tf.sin(tf.debugging.check_numerics(c * x, "not finite"))


def by_check_in_a_branch(c, x):
    return tf.cond(x > 1, lambda: by_check(c, x), lambda: c * x)


def by_check_in_a_loop(c, x):
    return scan(by_check, c, tf.stack([x, 2 * x]))


def by_assertion_in_a_branch(c, x):
    def checked():
        tf.debugging.assert_less(x, tf.constant(1e3, F64), "too large")
        return tf.sin(c) * x

    return tf.cond(x > 1, checked, lambda: c + x)


STEPS = [by_plain_ops, by_branches, by_inner_loop, by_custom_gradient]
CHECKS = [by_check, by_check_in_a_branch, by_check_in_a_loop, by_assertion_in_a_branch]


def derivatives(loop, step, xs, of_second_order=True):
    """The value of a loop, its gradient, and the gradient of the squared gradient."""
    with tf.GradientTape() as outer:
        outer.watch(xs)
        with tf.GradientTape() as tape:
            tape.watch(xs)
            y = loop(step, tf.constant(0.7, F64), xs)
        first = tape.gradient(y, xs)
        norm = tf.reduce_sum(first**2)
    return y, first, outer.gradient(norm, xs) if of_second_order else first


def name(function):
    return function.__name__


def in_mode(mode, function):
    return function if mode == "eager" else tf.function(function, jit_compile=mode == "jit")


def expected(step):
    return tf.function(lambda xs: derivatives(unrolled, step, xs))(tf.constant(XS))


@pytest.mark.pairwise
@pytest.mark.parametrize(
    "debugger, mode", [("checker", "eager"), ("checker", "graph"), ("dumps", "graph")]
)
@pytest.mark.parametrize("step", STEPS + CHECKS[:1], ids=name)
@pytest.mark.parametrize("loop", LOOPS, ids=name)
def test_values_and_derivatives_are_the_same_under_a_debugger(loop, step, mode, debugger):
    want = expected(step)
    with DEBUGGERS[debugger]():
        got = in_mode(mode, lambda xs: derivatives(loop, step, xs))(tf.constant(XS))
    for actual, right in zip(got, want):
        np.testing.assert_allclose(actual, right, rtol=1e-9)


def has_no_bound(loop, mode, **_):
    """XLA must know a bound of the number of iterations."""
    return mode == "jit" and loop in (while_loop, block_with_condition)


@pytest.mark.pairwise(without=has_no_bound)
@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
@pytest.mark.parametrize("step", CHECKS, ids=name)
@pytest.mark.parametrize("loop", LOOPS, ids=name)
def test_a_body_that_checks_has_derivatives(loop, step, mode):
    got = in_mode(mode, lambda xs: derivatives(loop, step, xs))(tf.constant(XS))
    for actual, right in zip(got, expected(step)):
        np.testing.assert_allclose(actual, right, rtol=1e-9)


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("step", CHECKS[:3], ids=name)
@pytest.mark.parametrize("loop", LOOPS, ids=name)
def test_a_check_in_the_body_finds_what_it_is_for(loop, step, mode):
    xs = tf.constant([0.5, 0.7, 1.1, np.inf, 0.6, 0.6], F64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
        in_mode(mode, lambda xs: derivatives(loop, step, xs))(xs)


@pytest.mark.parametrize("loop", LOOPS, ids=name)
def test_a_check_in_the_body_checks_the_gradient_too(loop):
    """As TensorFlow's check does: the gradient of sqrt at 0 is infinite."""

    def step(c, x):
        return c + tf.debugging.check_numerics(tf.sqrt(tf.debugging.check_numerics(x, "inner")), "")

    with pytest.raises(tf.errors.InvalidArgumentError, match="detected in gradient"):
        derivatives(loop, step, tf.constant([1, 1, 0, 1, 1, 1], F64), of_second_order=False)


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("loop", LOOPS, ids=name)
def test_the_checker_finds_a_value_that_is_not_finite(loop, mode):
    def step(c, x):
        return tf.math.log(c) * x

    function = in_mode(mode, lambda xs: loop(step, tf.constant(0.7, F64), xs))
    message = 'Infinity or NaN in output 0 of graph op "Log"'
    with checker(), pytest.raises(tf.errors.InvalidArgumentError, match=message):
        function(tf.constant(XS))


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("loop", LOOPS, ids=name)
def test_the_checker_finds_a_gradient_that_is_not_finite(loop, mode):
    def step(c, x):
        return tf.sqrt(c) * x

    function = in_mode(mode, lambda xs: derivatives(loop, step, xs, of_second_order=False))
    with checker(), pytest.raises(tf.errors.InvalidArgumentError, match="Infinity or NaN"):
        function(tf.constant([1, 1, 0, 0, 1, 1], F64))


@pytest.mark.parametrize("debugger", DEBUGGERS)
@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_sequences_have_gradients_under_a_debugger(cell, mode, debugger):
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[cell]
    sequence = getattr(tf_ti, f"{cell}_sequence")
    w, r, b = (
        tf.constant(np.linspace(-1, 1, n).reshape(shape))
        for n, shape in [
            (gates * 6, (1, gates * 2, 3)),
            (gates * 4, (1, gates * 2, 2)),
            (gates * 2, (1, gates * 2)),
        ]
    )
    states = [tf.zeros([2, 1, 2], F64)] * (2 if cell == "lstm" else 1)

    def gradients(x):
        with tf.GradientTape() as tape:
            tape.watch([x, w, r])
            y = sequence(x, *states, None, w, r, b)[0]
        return tape.gradient(y, [x, w, r])

    want = gradients(tf.constant(ROWS))
    with DEBUGGERS[debugger]():
        got = in_mode(mode, gradients)(tf.constant(ROWS))
    for actual, right in zip(got, want):
        np.testing.assert_allclose(actual, right, rtol=1e-9)


def test_the_checks_of_the_user_s_operations_stay_in_the_body_alone():
    """A callback sees each operation of the body once, and no copy of one."""
    from tensorflow.python.framework import op_callbacks

    seen, step = collections.Counter(), lambda c, x: tf.sin(c) * tf.exp(x)

    def count(op_type, inputs, attrs, outputs, op_name=None, graph=None):
        seen[op_type] += graph is not None

    op_callbacks.add_op_callback(count)
    try:
        in_mode("graph", lambda xs: derivatives(scan, step, xs))(tf.constant(XS))
    finally:
        op_callbacks.remove_op_callback(count)
    assert seen["Sin"] == seen["Exp"] == 1


def test_a_block_in_a_plain_graph_has_checks():
    with checker(), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        xs = tf.compat.v1.placeholder(F64, [6])
        y = block(by_plain_ops, tf.constant(0.7, F64), xs)
        gradient = tf.gradients(y, xs)[0]
        got = session.run([y, gradient], {xs: XS})
        with pytest.raises(tf.errors.InvalidArgumentError, match="Infinity or NaN"):
            session.run(y, {xs: np.full(6, np.inf)})
    for actual, right in zip(got, expected(by_plain_ops)):
        np.testing.assert_allclose(actual, right, rtol=1e-9)


@pytest.mark.parametrize("step", CHECKS, ids=name)
def test_a_loaded_body_that_checks_has_derivatives(step, tmp_path):
    module = tf.Module()
    module.run = tf.function(
        lambda xs: scan(step, tf.constant(0.7, F64), xs),
        input_signature=[tf.TensorSpec([None], F64)],
    )
    tf.saved_model.save(
        module, tmp_path, options=tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    )
    loaded = tf.saved_model.load(tmp_path)
    xs = tf.constant(XS)
    with tf.GradientTape() as tape:
        tape.watch(xs)
        y = loaded.run(xs)
    np.testing.assert_allclose(tape.gradient(y, xs), expected(step)[1], rtol=1e-9)


@pytest.mark.parametrize("step", CHECKS, ids=name)
def test_a_body_that_checks_takes_tangents_forward(step):
    xs = tf.constant(XS)
    with tf.autodiff.ForwardAccumulator(xs, tf.ones_like(xs)) as accumulator:
        y = scan(step, tf.constant(0.7, F64), xs)
    np.testing.assert_allclose(accumulator.jvp(y), tf.reduce_sum(expected(step)[1]), rtol=1e-9)


def test_what_a_check_sees_is_not_recorded():
    """The gradient computes it again, as all that has no effects: a state of memory less."""
    traced = tf.function(lambda xs: derivatives(scan, by_check, xs, of_second_order=False))
    (loop,) = [
        op
        for op in traced.get_concrete_function(tf.TensorSpec([6], F64)).graph.get_operations()
        if op.type == "TfTi>TensorIterator" and "Gradient" not in op.name
    ]
    assert list(loop.get_attr("output_mode")).count(b"sequence") == 1  # the state
