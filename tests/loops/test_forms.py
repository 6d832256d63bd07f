"""Every form of a loop whose body programs know: they run all of it, and as kernels do.

The profile tells how iterations ran: one event for many of them, or one for each.
"""

import numpy as np
import pytest
import tensorflow as tf
from profiles import counts, loops_of

import tf_ti

pytestmark = pytest.mark.quarter

LAST, CONCATENATE, REVERSE = tf_ti.LoopOutput
COUNT, WHILE = tf_ti.TripLimit
X = tf.random.stateless_normal([12, 8], [1, 2])
W = 0.3 * tf.random.stateless_normal([8, 8], [3, 4])
ZEROS = tf.zeros([8])
with tf.device("CPU:0"):  # as the tests that need programs
    FACTOR = tf.Variable(0.5)


def step(c, x):
    return 0.5 * tf.sin(c) + x, tf.exp(-c)


def with_product(c, x):
    return tf.tanh(tf.linalg.matvec(W, c) * tf.exp(-c * c) + x), c


def with_variable(c, x):
    return FACTOR * tf.sin(c) + x, c


def scan(f=step, init=ZEROS, **options):
    return lambda xs: tf_ti.scan(f, init, xs, **options)


def iterator(axis=0, part_size=1, stride=None, reverse=False):
    def run(xs):
        stride_of_output = -part_size if reverse else part_size
        ends = {"start": -1, "end": 0} if reverse else {}
        taken = stride or stride_of_output
        ports = tf_ti.PortMap(
            inputs=[
                tf_ti.InputPort(0, 0, axis=axis, stride=taken, part_size=part_size, **ends),
                tf_ti.InputPort(1, 1),
            ],
            outputs=[
                tf_ti.OutputPort(0, 0),
                tf_ti.OutputPort(
                    1, 1, axis=axis, stride=stride_of_output, part_size=part_size, **ends
                ),
                tf_ti.OutputPort(2, 2, axis=0),
            ],
        )

        def body(x, c):
            return 0.5 * tf.sin(c) + x, tf.exp(-c), tf.reduce_sum(c)

        initial = tf.zeros_like(tf.gather(xs, range(part_size), axis=axis))
        return tf_ti.tensor_iterator(body, [xs, initial], ports, [tf_ti.BackEdge(0, 1)])

    return run


def block(*outputs, limit=COUNT, axis=0, reverse=False, length=None):
    def run(xs):
        with tf_ti.Loop() as loop:
            if limit is COUNT:
                loop.add_trip_limit(tf.shape(xs)[axis], COUNT)
            else:
                k = loop.add_recurrence(0)
                k.next = k + 1
                loop.add_trip_limit(k < tf.shape(xs)[axis], WHILE)
            h = loop.add_recurrence(tf.zeros([xs.shape[1 - axis]]))
            h.next = 0.5 * tf.sin(h) + loop.add_iterator(xs, axis=axis, reverse=reverse)
            for output in outputs:
                value = h if output is LAST else h.next
                loop.add_loop_output(value, output, length=None if output is LAST else length)
        return [output.tensor for output in loop.outputs]

    return run


def nested_scan(xs):
    def outer(c, x):
        inner = tf.stack([x, x + 1, x + 2, x + 3])
        return tf_ti.scan(lambda d, y: (tf.sin(d) * y + 0.1, None), c, inner)[0], c

    return tf_ti.scan(outer, ZEROS, xs)


def nested_block(xs):
    with tf_ti.Loop() as outer:
        outer.add_trip_limit(12, COUNT)
        x, h = outer.add_iterator(xs), outer.add_recurrence(ZEROS)
        with tf_ti.Loop() as inner:
            inner.add_trip_limit(10, COUNT)
            g = inner.add_recurrence(tf.identity(h))
            g.next = tf.sin(g) + x
            last = inner.add_loop_output(g, LAST)
        h.next = 0.5 * last.tensor
        result = outer.add_loop_output(h, LAST)
    return result.tensor


def gradient(form):
    def run(xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            loss = tf.add_n([tf.reduce_sum(tf.sin(y)) for y in tf.nest.flatten(form(xs))])
        return tape.gradient(loss, xs)

    return run


def tangent(form):
    def run(xs):
        with tf.autodiff.ForwardAccumulator(xs, tf.ones_like(xs)) as accumulator:
            results = tf.nest.flatten(form(xs))
        return [accumulator.jvp(result) for result in results]

    return run


def jacobian(f):
    def run(xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            last, _ = tf_ti.scan(f, ZEROS, xs)
        return tape.jacobian(last, xs)

    return run


def batch_jacobian(xs):
    batch = tf.stack([xs, xs + 1])
    with tf.GradientTape() as tape:
        tape.watch(batch)
        last, _ = tf_ti.scan(step, tf.zeros([2, 8]), batch, axis=1)
    return tape.batch_jacobian(last, batch)


def hessian_vector(xs):
    with tf.GradientTape() as outer:
        outer.watch(xs)
        slope = tf.reduce_sum(gradient(scan())(xs))
    return outer.gradient(slope, xs)


def lanes(xs):
    return tf.vectorized_map(lambda c: tf_ti.scan(step, c, xs)[0], tf.stack([ZEROS, ZEROS + 1]))


def of_unknown_shape(form):
    return tf.function(form, input_signature=[tf.TensorSpec([None, 8])])


def doubled(form):
    return lambda xs: [form(xs), form(2.0 * xs)]


def swapping(xs):
    return tf_ti.scan(
        lambda c, x: ({"a": c["b"], "b": c["a"] + x}, {"y": [2.0 * c["a"]]}),
        {"a": ZEROS, "b": ZEROS},
        xs,
    )


# The forms of which each loop runs whole.
WHOLE = {
    "scan": scan(),
    "scan, reverse": scan(reverse=True),
    "scan, axis 1": scan(init=tf.zeros([12]), axis=1),
    "scan, product": scan(with_product),
    "scan, variable": scan(with_variable),
    "scan, scalars": lambda xs: tf_ti.scan(lambda c, x: (0.5 * c + x, c), 0.0, xs[:, 0]),
    "scan, length": lambda xs: tf_ti.scan(lambda c, _: (tf.sin(c) + 0.1, c), xs[0], length=20),
    "scan, structures": swapping,
    "scan, counter": lambda xs: tf_ti.scan(
        lambda c, x: ((c[0] + 1, c[1] + x), 2 * c[0]), (0, ZEROS), xs
    ),
    "scan, unknown": of_unknown_shape(scan()),
    "iterator": iterator(),
    "iterator, parts": iterator(part_size=3),
    "iterator, reverse": iterator(reverse=True),
    "iterator, reverse parts": iterator(part_size=2, reverse=True),
    "iterator, axis 1": iterator(axis=1),
    "iterator, axis 1, parts": iterator(axis=1, part_size=2),
    "iterator, axis 1, reverse": iterator(axis=1, reverse=True),
    "iterator, overlap": iterator(part_size=3, stride=1),
    "block": block(LAST, CONCATENATE),
    "block, last": block(LAST),
    "block, reverse": block(LAST, CONCATENATE, reverse=True),
    "block, axis 1": block(LAST, CONCATENATE, axis=1),
    "block, REVERSE": block(CONCATENATE, REVERSE),
    "block, length": block(LAST, CONCATENATE, REVERSE, length=20),
    "gradient": gradient(scan()),
    "gradient, reverse": gradient(scan(reverse=True)),
    "gradient, product": gradient(scan(with_product)),
    "gradient, variable": gradient(scan(with_variable)),
    "gradient, unknown": of_unknown_shape(gradient(scan())),
    "gradient, parts": gradient(iterator(part_size=3)),
    "gradient, axis 1, reverse": gradient(iterator(axis=1, reverse=True)),
    "gradient, block": gradient(block(LAST, CONCATENATE)),
    "tangent": tangent(scan()),
    "tangent, parts": tangent(iterator(part_size=3)),
    "jacobian": jacobian(step),
    "jacobian, product": jacobian(with_product),
    "batch_jacobian": batch_jacobian,
    "Hessian by vector": hessian_vector,
    "tangent of the gradient": tangent(gradient(scan())),
    "lanes": lanes,
    "two loops": doubled(scan()),
}
# In some of these, iterations run one by one: those of outer loops, of parts between checkpoints,
# and those that a condition is asked before.
MIXED = {
    "nested scan": nested_scan,
    "nested block": nested_block,
    "gradient, nested": gradient(nested_scan),
    "gradient, checkpoints": gradient(scan(checkpoint_every=4)),
    "block, WHILE": block(LAST, CONCATENATE, limit=WHILE),
    "gradient, WHILE": gradient(block(LAST, CONCATENATE, limit=WHILE)),
    "scan, nothing to compute": lambda xs: tf_ti.scan(
        lambda c, x: ((c[1], x), c[0]), (ZEROS, ZEROS), xs
    ),
}


def ops_of(form):
    return tf.function(form, autograph=False)


@pytest.fixture
def wanted(request, monkeypatch):
    """The results by kernels, of the form of the test."""
    form = request.getfixturevalue("form")
    monkeypatch.setenv("TF_TI_PROGRAM", "0")
    found = tf.nest.flatten(ops_of(form)(X))
    monkeypatch.delenv("TF_TI_PROGRAM", raising=False)
    return found


def check(form, wanted):
    function = ops_of(form)
    for _ in range(3):
        for ours, other in zip(tf.nest.flatten(function(X)), wanted, strict=True):
            assert ours.dtype == other.dtype and ours.shape == other.shape
            np.testing.assert_allclose(ours, other, rtol=1e-4, atol=1e-5)


@pytest.mark.needs_programs
@pytest.mark.parametrize("form", WHOLE.values(), ids=WHOLE)
def test_forms_that_programs_run_whole(form, wanted, tmp_path):
    check(form, wanted)
    events = counts(ops_of(form), X, tmp_path)
    loops = loops_of(events)
    assert loops
    assert events["TfTi>TensorIterator iterations"] == loops
    # The first and the last may run on their own.
    assert events["TfTi>TensorIterator iteration"] <= 2 * loops


@pytest.mark.parametrize("form", MIXED.values(), ids=MIXED)
def test_forms_of_which_some_iterations_run_one_by_one(form, wanted):
    check(form, wanted)


@pytest.mark.parametrize("name", ["scan", "iterator, reverse parts", "block", "gradient", "lanes"])
def test_kernels_run_each_iteration_where_programs_are_off(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TF_TI_PROGRAM", "0")
    events = counts(ops_of(WHOLE[name]), X, tmp_path)
    assert not events["TfTi>TensorIterator iterations"]
    assert events["TfTi>TensorIterator iteration"] >= 6 * loops_of(events)


@pytest.mark.needs_programs
def test_parts_between_checkpoints_run_whole(tmp_path):
    events = counts(ops_of(gradient(scan(checkpoint_every=4))), X, tmp_path)
    assert events["TfTi>TensorIterator iterations"] == loops_of(events)


def test_without_fuse_no_form_runs_whole(tmp_path):
    events = counts(ops_of(gradient(scan(fuse=False))), X, tmp_path)
    assert loops_of(events) == 2
    assert not events["TfTi>TensorIterator iterations"]
    assert not any(name.startswith("program: ") for name in events)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["scan", "block", "gradient", "tangent", "scan, reverse"])
def test_forms_of_few_iterations(name, count, monkeypatch):
    """There may be too few for the first, the last and others between them."""
    monkeypatch.setenv("TF_TI_PROGRAM", "0")
    wanted = tf.nest.flatten(ops_of(WHOLE[name])(X[:count]))
    monkeypatch.delenv("TF_TI_PROGRAM", raising=False)
    function = ops_of(WHOLE[name])
    for _ in range(3):
        for ours, other in zip(tf.nest.flatten(function(X[:count])), wanted, strict=True):
            assert ours.shape == other.shape
            np.testing.assert_allclose(ours, other, rtol=1e-4, atol=1e-5)
