"""`tf.vectorized_map`, `jacobian` and `batch_jacobian` of loops, against lane by lane."""

import logging

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import _library

F64 = tf.float64


def values(*shape):
    return tf.constant(np.random.default_rng(sum(shape)).standard_normal(shape))


def close(actual, expected, tolerance=1e-9):
    actual, expected = tf.nest.flatten(actual), tf.nest.flatten(expected)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


def lane_by_lane(f, xs):
    lanes = [f(*lane) for lane in zip(*map(tf.unstack, xs))]
    return tf.nest.map_structure(lambda *parts: tf.stack(parts), *lanes)


def gradient_of(f):
    """The gradients of the sum of squares of what f gives."""

    def gradient(*xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            loss = tf.add_n([tf.reduce_sum(y**2) for y in tf.nest.flatten(f(*xs))])
        return tape.gradient(loss, xs, unconnected_gradients="zero")

    return gradient


MATRIX = values(3, 3) / 2


def running(axis=0, **arguments):
    def f(x):
        element = tf.gather(x, 0, axis=axis)

        def step(c, e):
            following = tf.tanh(tf.linalg.matvec(MATRIX, c) + e)
            return following, tf.sin(c) * e

        return tf_ti.scan(step, element, x, axis=axis, **arguments)

    return f


def pieces(stride, part_size, axis, out_axis):
    def f(x, h):
        return tf_ti.tensor_iterator(
            lambda piece, h: (tf.sin(h) + tf.reduce_sum(piece), piece * h[0] + h[1]),
            [x, h],
            tf_ti.PortMap(
                inputs=[
                    tf_ti.InputPort(
                        0,
                        0,
                        axis=axis,
                        start=0 if stride > 0 else -1,
                        end=-1 if stride > 0 else 0,
                        stride=stride,
                        part_size=part_size,
                    ),
                    tf_ti.InputPort(1, 1),
                ],
                outputs=[
                    tf_ti.OutputPort(0, 0),
                    tf_ti.OutputPort(1, 1, axis=out_axis, stride=1 if stride > 0 else -1),
                ],
            ),
            [tf_ti.BackEdge(0, 1)],
        )

    return f


def counted(x, h):
    with tf_ti.Loop() as loop:
        loop.add_trip_limit(3, tf_ti.TripLimit.COUNT)
        e = loop.add_iterator(x, axis=-1, reverse=True)
        s = loop.add_recurrence(h)
        s.next = tf.tanh(s * 1.5 + tf.reduce_sum(e))
        last = loop.add_loop_output(s, tf_ti.LoopOutput.LAST_VALUE)
        back = loop.add_loop_output(s, tf_ti.LoopOutput.REVERSE, axis=-1)
        padded = loop.add_loop_output(s, tf_ti.LoopOutput.CONCATENATE, axis=0, length=5)
    return last.tensor, back.tensor, padded.tensor


def conditional(x, h):
    with tf_ti.Loop() as loop:
        i = loop.add_recurrence(0)
        i.next = i + 1
        loop.add_trip_limit(i < 4, tf_ti.TripLimit.WHILE)
        s = loop.add_recurrence(h)
        s.next = tf.sin(s) + x[0, 0] * tf.cast(i, F64)
        last = loop.add_loop_output(s, tf_ti.LoopOutput.LAST_VALUE)
        every = loop.add_loop_output(s, tf_ti.LoopOutput.CONCATENATE)
    return last.tensor, every.tensor


def conditional_by_lane(x, h):
    with tf_ti.Loop() as loop:
        s = loop.add_recurrence(h)
        s.next = tf.sin(s) * 0.5 + x[0, 0] ** 2
        loop.add_trip_limit(tf.reduce_sum(s**2) > 0.5, tf_ti.TripLimit.WHILE)
        loop.add_trip_limit(6, tf_ti.TripLimit.COUNT)
        last = loop.add_loop_output(s, tf_ti.LoopOutput.LAST_VALUE)
        padded = loop.add_loop_output(s, tf_ti.LoopOutput.CONCATENATE, length=6)
    return last.tensor, padded.tensor


def nested(x, h):
    def outer(c, row):
        inner, ys = tf_ti.scan(lambda d, e: (tf.sin(d + e), d * e), c, row[:, None])
        return tf.tanh(inner), ys

    return tf_ti.scan(outer, h, x)


def scalars(x, h):
    return tf_ti.tensor_iterator(
        lambda e, s: (s + tf.reduce_sum(e), s * tf.reduce_sum(e)),
        [x, tf.reduce_sum(h)],
        tf_ti.PortMap(
            inputs=[tf_ti.InputPort(0, 0, axis=0), tf_ti.InputPort(1, 1)],
            outputs=[tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 1, axis=0)],
        ),
        [tf_ti.BackEdge(0, 1)],
    )


def growing(x, h):
    body = tf.function(
        lambda e, s: (tf.concat([s, e[0]], 0), tf.sin(s)),
        input_signature=[tf.TensorSpec([1, 3], F64), tf.TensorSpec([None], F64)],
    )
    return tf_ti.tensor_iterator(
        body,
        [x, h],
        tf_ti.PortMap(
            inputs=[tf_ti.InputPort(0, 0, axis=0), tf_ti.InputPort(1, 1)],
            outputs=[tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 1, axis=0)],
        ),
        [tf_ti.BackEdge(0, 1)],
    )


def branching(x, h):
    def step(c, e):
        return tf.cond(tf.reduce_sum(e) > 0, lambda: c * 2 + e, lambda: tf.sin(c)), c

    return tf_ti.scan(step, h, x)


def capturing(x, h):
    return tf_ti.scan(lambda c, e: (tf.sin(c) + tf.reduce_sum(x), h * e), tf.zeros([3], F64), x)


def unlike(x, h):
    # The state is the same in all lanes until the first iteration, and one stays so.
    def step(c, e):
        return (c[0] + e * h, c[1] + 1.0), c

    return tf_ti.scan(step, (tf.zeros([3], F64), tf.zeros([2], F64)), x)


def conditional_inside(x, h):
    def step(c, e):
        last, padded = conditional_by_lane(e[None], c)
        return tf.sin(last), padded

    return tf_ti.scan(step, h, x)


LOOPS = {
    "scan": lambda x, h: running()(x),
    "scan-reverse-axis": lambda x, h: running(axis=1, reverse=True)(tf.transpose(x)),
    "scan-negative-axis": lambda x, h: running(axis=-1)(tf.transpose(x)),
    "scan-checkpoint": lambda x, h: running(checkpoint_every=2)(x),
    "pieces": pieces(2, 2, 0, 0),
    "pieces-overlap": pieces(1, 2, -2, 1),
    "pieces-gaps-reverse": pieces(-2, 1, 0, -1),
    "count": counted,
    "while": conditional,
    "while-by-lane": conditional_by_lane,
    "while-by-lane-inside": conditional_inside,
    "nested": nested,
    "scalars": scalars,
    "growing": growing,
    "branching": branching,
    "capturing": capturing,
    "unlike": unlike,
}
XS, HS = values(5, 4, 3), values(5, 3)


@pytest.mark.quarter
@pytest.mark.parametrize("name", LOOPS)
def test_a_map_has_the_values_and_gradients_of_its_lanes(name):
    f = LOOPS[name]
    expected = lane_by_lane(tf.function(f), (XS, HS))
    gradients = lane_by_lane(tf.function(gradient_of(f)), (XS, HS))

    def mapped(g):
        return tf.function(lambda xs, hs: tf.vectorized_map(lambda e: g(*e), (xs, hs)))

    close(mapped(f)(XS, HS), expected)
    close(mapped(gradient_of(f))(XS, HS), gradients)
    close(gradient_of(mapped(f))(XS, HS), gradients)


@pytest.mark.quarter
@pytest.mark.parametrize("name", LOOPS)
def test_a_jacobian_is_that_of_one_gradient_after_the_other(name):
    f = LOOPS[name]
    x, h = XS[0], HS[0]

    def jacobian(pfor):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([x, h])
            ys = tf.nest.flatten(f(x, h))
        return [j for y in ys for j in tape.jacobian(y, [x, h], "zero", experimental_use_pfor=pfor)]

    close(jacobian(True), tf.function(jacobian)(False))


def test_a_jacobian_of_a_gradient_is_the_hessian():
    x, h = XS[0, :2], HS[0]
    f = LOOPS["scan"]

    def hessian(pfor):
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            first = gradient_of(lambda x: f(x, h))(x)[0]
        return outer.jacobian(first, x, experimental_use_pfor=pfor)

    close(hessian(True), hessian(False))


def test_a_batch_jacobian():
    def f(x):
        return tf_ti.scan(lambda c, e: (tf.sin(c + e), c * e), x[:, 0], x, axis=1)[1]

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(XS)
        y = f(XS)
    close(
        tape.batch_jacobian(y, XS),
        tape.batch_jacobian(y, XS, experimental_use_pfor=False),
    )


def test_maps_nest():
    xs = tf.stack([XS, XS * 0.5])
    for f in (running(), gradient_of(running())):
        actual = tf.vectorized_map(lambda lanes, f=f: tf.vectorized_map(f, lanes), xs)
        lanes = [lane_by_lane(f, (x,)) for x in xs]
        close(actual, tf.nest.map_structure(lambda *parts: tf.stack(parts), *lanes))


def test_the_number_of_lanes_may_be_unknown():
    f = gradient_of(LOOPS["nested"])

    @tf.function(
        input_signature=[tf.TensorSpec([None, None, 3], F64), tf.TensorSpec([None, 3], F64)]
    )
    def call(xs, hs):
        return tf.vectorized_map(lambda e: f(*e), (xs, hs))

    for n in (5, 2, 1):
        close(call(XS[:n], HS[:n]), lane_by_lane(f, (XS[:n], HS[:n])))


def test_lanes_may_take_different_branches_around_a_loop():
    f = LOOPS["scan"]

    def either(x, h):
        return tf.cond(h[0] > 0, lambda: f(x, h), lambda: f(-x, h))

    assert 0 < sum(HS[:, 0].numpy() > 0) < 5
    call = tf.function(lambda xs, hs: tf.vectorized_map(lambda e: either(*e), (xs, hs)))
    close(call(XS, HS), lane_by_lane(either, (XS, HS)))


def test_a_function_between_the_map_and_the_loop_keeps_its_gradient():
    for name in ("scan", "nested"):
        inner = tf.function(LOOPS[name])
        f = gradient_of(lambda x, h, inner=inner: inner(x, h))
        close(tf.vectorized_map(lambda e, f=f: f(*e), (XS, HS)), lane_by_lane(f, (XS, HS)))


def test_what_all_lanes_share_is_computed_once():
    """A vectorised loop runs in time that the number of lanes hardly changes: it is one loop."""
    f = LOOPS["scan"]
    concrete = tf.function(
        lambda xs, hs: tf.vectorized_map(lambda e: f(*e), (xs, hs))
    ).get_concrete_function(XS, HS)
    types = [op.type for op in concrete.graph.get_operations()]
    assert types.count("TfTi>StatelessTensorIterator") == 2  # the lane's, unused, and all lanes'
    assert "StatelessWhile" not in types


def test_each_lane_draws_numbers_of_its_own():
    def f(x):
        return tf_ti.scan(lambda c, e: (c + tf.random.normal([], dtype=F64), c), x[0, 0], x)[0]

    drawn = tf.vectorized_map(f, tf.zeros([8, 4, 3], F64)).numpy()
    assert len(set(drawn)) == 8


def test_a_body_that_cannot_be_vectorised_runs_lane_by_lane_with_a_warning(caplog):
    def f(x):
        def step(c, e):
            return tf.numpy_function(lambda c, e: np.sin(c) + e, [c, e], F64), c

        body = tf.function(step, input_signature=[tf.TensorSpec([3], F64)] * 2)
        return tf_ti.scan(lambda c, e: (tf.ensure_shape(body(c, e)[0], [3]), c), x[0], x)

    with caplog.at_level(logging.WARNING):
        tf.get_logger().propagate = True
        actual = tf.vectorized_map(f, XS)
        tf.get_logger().propagate = False
    close(actual, lane_by_lane(f, (XS,)))
    assert "while_loop" in caplog.text


@pytest.mark.skipif(_library.XLA_PROBLEM is not None, reason=str(_library.XLA_PROBLEM))
@pytest.mark.parametrize("name", ["scan", "nested", "pieces"])
def test_a_map_compiles(name):
    for f in (LOOPS[name], gradient_of(LOOPS[name])):
        call = tf.function(
            lambda xs, hs, f=f: tf.vectorized_map(lambda e: f(*e), (xs, hs)), jit_compile=True
        )
        close(call(XS, HS), lane_by_lane(f, (XS, HS)))


# Bodies that have functions of TensorFlow's own.
def of_a_conditional(c, x):
    return tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.sin(c) * x, lambda: c - x)


def of_a_switch(c, x):
    branch = tf.cast(tf.math.floormod(tf.reduce_sum(x), 3.0), tf.int32)
    return tf.switch_case(branch, [lambda: tf.sin(c), lambda: c * x, lambda: c - x])


def of_a_while_loop(c, x):
    return tf.while_loop(lambda k, d: k < 2, lambda k, d: (k + 1, tf.sin(d) + x), (0, c))[1]


def of_a_call(c, x):
    return tf.function(of_a_conditional)(c, x)


def of_several_levels(c, x):
    def branch():
        return tf_ti.scan(lambda d, y: (of_a_conditional(d, y), None), c, tf.stack([x, -x]))[0]

    return tf.cond(tf.reduce_sum(c) > 0.0, branch, lambda: of_a_while_loop(c, x))


WITH_FUNCTIONS = [of_a_conditional, of_a_switch, of_a_while_loop, of_a_call, of_several_levels]


@pytest.mark.quarter
@pytest.mark.parametrize("shape", [[4, 3], [None, 3]])
@pytest.mark.parametrize("step", WITH_FUNCTIONS, ids=lambda step: step.__name__)
def test_a_loaded_loop_is_vectorised_as_it_was_before(step, shape, tmp_path):
    module = tf.Module()
    module.scan = tf.function(
        lambda xs: tf_ti.scan(lambda c, x: (step(c, x), c), xs[0], xs),
        input_signature=[tf.TensorSpec(shape, F64)],
    )
    module.while_loop = tf.function(
        lambda xs: tf_ti.while_loop(
            lambda k, c: k < 4, lambda k, c: (k + 1, step(c, xs[k])), (0, xs[0])
        )[1],
        input_signature=[tf.TensorSpec(shape, F64)],
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, tmp_path, options=options)
    loaded, lanes = tf.saved_model.load(tmp_path), values(5, 4, 3)
    for way in ("scan", "while_loop"):
        f, original = getattr(loaded, way), getattr(module, way)
        close(tf.vectorized_map(f, lanes), lane_by_lane(original, (lanes,)))
        if step is of_a_while_loop:  # the others' gradients have no map before, either
            actual = tf.vectorized_map(gradient_of(f), lanes)
            close(actual, lane_by_lane(gradient_of(original), (lanes,)))


# --- TensorArrays --------------------------------------------------------------------------------


def _with_array(reads, writes):
    """A while loop that reads an array of x's rows, or writes one."""

    def f(x):
        count = x.shape[0]
        given = tf.TensorArray(F64, count, clear_after_read=False).unstack(x)
        made = tf.TensorArray(F64, count, element_shape=x.shape[1:])

        def body(k, h, made):
            h = tf.tanh(0.5 * h + (given.read(k) if reads else x[k]))
            return k + 1, h, made.write(k, h) if writes else made

        _, h, made = tf_ti.while_loop(lambda k, *_: k < count, body, (0, x[0], made))
        return made.stack() if writes else h

    def oracle(x):
        h, rows = x[0], []
        for row in tf.unstack(x):
            h = tf.tanh(0.5 * h + row)
            rows.append(h)
        return tf.stack(rows) if writes else h

    return f, oracle


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("reads", [False, True])
def test_loops_that_read_and_write_arrays_have_jacobians_and_hessians(reads, writes):
    f, oracle = _with_array(reads, writes)

    def jacobian(f):
        def of(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                result = f(x)
            return tape.jacobian(result, x)

        return tf.function(of, autograph=False)

    x = values(4, 3)
    close(jacobian(f)(x), jacobian(oracle)(x))
    first, second = (lambda x, f=f: gradient_of(f)(x)[0] for f in (f, oracle))
    close(jacobian(first)(x), jacobian(second)(x))
    mapped = tf.function(lambda x: tf.vectorized_map(f, x), autograph=False)
    close(mapped(tf.stack([x, -x])), tf.stack([oracle(x), oracle(-x)]))
