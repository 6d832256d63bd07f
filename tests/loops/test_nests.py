"""Loops in loops that are one program: their results beside loops of Python, and their profiles."""

import functools
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from profiles import counts, loops_of
from tensorflow.python.eager import cancellation

import tf_ti

ROWS, COLUMNS = 4, 3


class OfPython:
    """Loops as plain Python, one operation after the other."""

    @staticmethod
    def scan(f, init, xs, length, reverse=False):
        state, rows = init, [None] * length
        for t in range(length)[:: -1 if reverse else 1]:
            state, rows[t] = f(state, None if xs is None else xs[t])
        return state, tf.stack(rows) if length else tf.zeros([0, ROWS, COLUMNS])

    @staticmethod
    def while_loop(cond, body, state, most):
        for _ in range(most):
            if not cond(*state):
                break
            state = body(*state)
        return state


class OfProgram:
    """The same by tf_ti."""

    @staticmethod
    def scan(f, init, xs, length, reverse=False):
        return tf_ti.scan(f, init, xs, length=length if xs is None else None, reverse=reverse)

    @staticmethod
    def while_loop(cond, body, state, most):
        return tf_ti.while_loop(cond, body, state, maximum_iterations=most)


def step(kind, x, y, scale, index):
    """A value of [ROWS, COLUMNS] that follows from two others."""
    steps = [
        lambda: tf.tanh(x * 0.7 + y),
        lambda: x * 0.5 - tf.sin(y),
        lambda: tf.matmul(x, scale),
        lambda: tf.roll(x, 1, 1) * 0.8,
        lambda: x - tf.reduce_mean(y, 1, keepdims=True),
        lambda: tf.concat([y[:, 1:], x[:, :1]], 1) * 0.9,
        lambda: tf.where(x > 0.1, x * 0.5, tf.nn.softmax(y)),
        lambda: tf.gather(x, [index] * COLUMNS, axis=1) * 0.3,
    ]
    return steps[kind]()


def add_steps(random, values):
    """Appends a few values that follow from earlier ones."""
    for _ in range(random.integers(1, 4)):
        x, y = (values[random.integers(len(values))] for _ in range(2))
        scale = tf.constant(random.uniform(-0.6, 0.6, [COLUMNS, COLUMNS]), tf.float32)
        values.append(step(random.integers(8), x, y, scale, int(random.integers(COLUMNS))))


def nest(loops, seed, depth, outer):
    """A loop of loops, whose form follows from a seed: a value of [ROWS, COLUMNS]."""
    random = np.random.default_rng(seed)
    length = int(random.integers(1, 5))
    kind = ["scan", "pieces", "counted", "while"][random.integers(4)]
    starts = tuple(outer[random.integers(len(outer))] for _ in range(random.integers(1, 3)))
    reverse = bool(random.integers(2))
    body_seed = int(random.integers(1 << 30))

    def body(states, x):
        random = np.random.default_rng(body_seed)
        values = [*outer, *states, *([] if x is None else [x])]
        add_steps(random, values)
        for k in range(random.integers(1, 3) if depth > 1 else 0):
            values.append(nest(loops, body_seed + k, depth - 1, values[-4:]))
            add_steps(random, values)
        recent = values[-4:]
        return (
            tuple(recent[random.integers(len(recent))] for _ in states),
            recent[random.integers(len(recent))],
        )

    if kind in ("scan", "pieces"):
        xs = None
        if kind == "pieces":
            ramp = tf.reshape(tf.linspace(-1.0, 1.0, length * COLUMNS), [length, 1, COLUMNS])
            xs = ramp + outer[0] * 0.3
        states, ys = loops.scan(body, starts, xs, length, reverse)
        return tf.add_n([*states, ys[0], ys[-1]])
    limit = int(random.integers(0, 5))

    def advance(t, *states):
        states, _ = body(states, None)
        return (t + 1, *states)

    def goes_on(t, *states):
        if kind == "counted":
            return t < limit
        return tf.logical_and(t < 4, tf.reduce_sum(tf.abs(states[0])) > 1.5)

    _, *states = loops.while_loop(
        goes_on, advance, (tf.constant(0), *starts), int(random.integers(3, 9))
    )
    return tf.add_n(states)


def start(seed):
    random = np.random.default_rng(seed)
    return [tf.constant(random.uniform(-1, 1, [ROWS, COLUMNS]), tf.float32) for _ in range(2)]


def results(loops, seed, depth, is_gradient, values):
    """The outer loop's results, and with `is_gradient` the gradients of all that goes in."""
    xs = tf.stack([values[1] * 0.5, values[1], -values[1], values[1] * 0.1, values[0]])

    def body(state, x):
        y = nest(loops, seed, depth, [state, x])
        return tf.tanh(y), y

    with tf.GradientTape() as tape:
        tape.watch([*values, xs])
        state, ys = loops.scan(body, values[0], xs, 5)
        loss = tf.reduce_sum(tf.sin(state)) + tf.reduce_sum(ys * ys)
    if not is_gradient:
        return [state, ys]
    grads = tape.gradient(loss, [values[0], xs], unconnected_gradients="zero")
    return [state, ys, *grads]


@pytest.mark.quarter
@pytest.mark.parametrize("is_gradient", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_random_nests_are_loops_of_python(seed, depth, is_gradient):
    run = tf.function(functools.partial(results, OfProgram, seed, depth, is_gradient))
    for other in (1, 2):
        values = start(other)
        expected = results(OfPython, seed, depth, is_gradient, values)
        for found, value in zip(run(values), expected, strict=True):
            np.testing.assert_allclose(found, value, rtol=2e-3, atol=2e-4)


def numbers(*shape, seed=1, dtype=tf.float32):
    random = np.random.default_rng(seed)
    return tf.constant(random.uniform(-1, 1, shape), dtype)


XS = numbers(12, 8)


def substeps(h, x, count=5):
    return tf_ti.scan(lambda s, _: (tf.tanh(s * 0.9 + x), s), h, length=count)


def known_count(h, x):
    h, ys = substeps(h, x)
    return h, ys


def many(h, x):
    h, ys = substeps(h, x, 40)
    return h, ys[17]


def condition(h, x):
    (h,) = tf_ti.while_loop(
        lambda h: tf.reduce_sum(h * h) > 0.5, lambda h: (h * 0.8,), (h + x,), maximum_iterations=99
    )
    return h, h


def count_by_iteration(h, x):
    count = tf.reduce_sum(tf.cast(x > 0.0, tf.int64))
    h, _ = tf_ti.scan(lambda s, _: (tf.sin(s) + x, None), h, length=count)
    return h, count


def four_deep(h, x):
    def third(s, y):
        s, _ = tf_ti.scan(lambda r, _: (tf.tanh(r + y), None), s, length=9)
        return s, None

    def second(s, y):
        return tf_ti.scan(third, s, tf.stack([y, -y] * 5))[0], None

    h, _ = tf_ti.scan(second, h, tf.stack([x, x * 0.5] * 3))
    return h, h


def block(h, x):
    with tf_ti.Loop() as loop:
        loop.add_trip_limit(20, tf_ti.TripLimit.COUNT)
        g = loop.add_recurrence(tf.identity(h))
        g.next = tf.sin(g) + x
        last = loop.add_loop_output(g, tf_ti.LoopOutput.LAST_VALUE)
        kept = loop.add_loop_output(g, tf_ti.LoopOutput.REVERSE)
    return last.tensor, kept.tensor[3]


def iterator(h, x):
    ports = tf_ti.PortMap(
        [tf_ti.InputPort(0, 0, axis=0, stride=-1, start=-1, end=0), tf_ti.InputPort(1, 1)],
        [tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 0, axis=0)],
    )
    xs = tf.stack([x * (0.1 * k) for k in range(20)])
    last, joined = tf_ti.tensor_iterator(
        lambda y, s: tf.sin(s) + y, [xs, h[None]], ports, [tf_ti.BackEdge(0, 1)]
    )
    return last[0], joined[7]


ONE_PROGRAM = [known_count, many, condition, count_by_iteration, four_deep, block, iterator]


def outer(body, form="scan"):
    def run(xs):
        if form == "scan":
            return tf_ti.scan(body, tf.zeros(xs.shape[1:], xs.dtype), xs)

        def step(t, h):
            return t + 1, body(h, xs[t])[0]

        return tf_ti.while_loop(lambda t, h: t < 12, step, (0, tf.zeros(xs.shape[1:], xs.dtype)))

    return run


def with_gradient(run):
    def gradient(xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            results = [t for t in tf.nest.flatten(run(xs)) if t.dtype.is_floating]
            loss = tf.add_n([tf.reduce_sum(t * t) for t in results])
        return tape.gradient(loss, xs)

    return gradient


@pytest.mark.needs_programs
@pytest.mark.parametrize("form", ["scan", "while"])
@pytest.mark.parametrize("body", ONE_PROGRAM, ids=lambda body: body.__name__)
def test_a_nest_is_one_program(body, form, tmp_path):
    events = counts(tf.function(outer(body, form), autograph=False), XS, tmp_path)
    assert events["TfTi>TensorIterator iterations"] == loops_of(events) == 1
    assert not events["TfTi>TensorIterator iteration"]


@pytest.mark.needs_programs
@pytest.mark.parametrize(
    "body", [known_count, many, condition, four_deep, block, iterator], ids=lambda b: b.__name__
)
def test_the_gradient_of_a_nest_is_one_program(body, tmp_path):
    events = counts(tf.function(with_gradient(outer(body)), autograph=False), XS, tmp_path)
    assert events["TfTi>TensorIterator iterations"] == loops_of(events) == 2


def heavy(h, x):
    matrix = tf.ones([256, 256]) * x[0]
    product, _ = tf_ti.scan(lambda s, _: (tf.tanh(s @ matrix), None), matrix, length=3)
    return h + product[0, :8], None


def without_programs(h, x):
    return tf_ti.scan(lambda s, _: (tf.sin(s) + x, None), h, length=3, fuse=False)[0], None


def long(h, x):
    return tf_ti.scan(lambda s, _: (tf.sin(s) + x, None), h, length=100_000)[0], None


def with_effects(h, x):
    def f(s, _):
        tf.debugging.assert_all_finite(s, "not finite")
        return tf.sin(s) + x, None

    return tf_ti.scan(f, h, length=3)[0], None


@pytest.mark.parametrize(
    "body", [heavy, without_programs, long, with_effects], ids=lambda body: body.__name__
)
def test_an_inner_loop_that_is_no_part_of_a_program_runs_on_its_own(body, tmp_path):
    xs = XS[:3]
    events = counts(tf.function(outer(body), autograph=False), xs, tmp_path)
    assert loops_of(events) == 4


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize(
    "body",
    [known_count, many, condition, count_by_iteration, block, iterator],
    ids=lambda b: b.__name__,
)
def test_types_are_those_of_kernels(body, dtype, monkeypatch):
    run = tf.function(outer(body), autograph=False)
    kernels = tf.function(outer(body), autograph=False)
    xs = numbers(12, 8, dtype=dtype) * 0.5
    monkeypatch.setenv("TF_TI_PROGRAM", "0")
    expected = tf.nest.flatten(kernels(xs))
    monkeypatch.delenv("TF_TI_PROGRAM")
    tolerance = {tf.float16: 4e-3, tf.bfloat16: 4e-2}.get(dtype, 1e-5)
    for _ in range(2):
        for found, value in zip(tf.nest.flatten(run(xs)), expected, strict=True):
            assert found.dtype == value.dtype
            found, value = (tf.cast(t, tf.float64) for t in (found, value))
            np.testing.assert_allclose(found, value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_integers_and_bools_are_states_and_sums_of_inner_loops(dtype):
    xs = tf.reshape(tf.range(24, dtype=dtype), [12, 2])

    def body(state, x):
        def step(state, k):
            a, is_odd = state
            return (a * 3 + x[0] - k, is_odd ^ (a % 2 == 1)), a

        state, ys = tf_ti.scan(step, state, tf.range(9, dtype=dtype))
        return state, tf.reduce_sum(ys)

    run = tf.function(lambda xs: tf_ti.scan(body, (tf.constant(1, dtype), False), xs))
    a, is_odd, rows = 1, False, []
    bits = np.dtype(dtype.as_numpy_dtype).type
    with np.errstate(over="ignore"):
        for x in xs.numpy():
            total = bits(0)
            for k in range(9):
                total += bits(a)
                a, is_odd = bits(a) * bits(3) + x[0] - bits(k), is_odd ^ (a % 2 == 1)
            rows.append(total)
    for _ in range(2):
        (found, odd), ys = run(xs)
        assert (found.numpy(), odd.numpy()) == (a, is_odd)
        np.testing.assert_array_equal(ys, rows)


@pytest.mark.parametrize("count", [0, 1, 2, 9])
@pytest.mark.parametrize("outer_count", [0, 1, 3])
@pytest.mark.parametrize("is_known", [True, False])
def test_loops_without_iterations_within_and_without(count, outer_count, is_known):
    @tf.function
    def run(xs, n):
        def body(h, x):
            length = count if is_known else n
            h, ys = tf_ti.scan(lambda s, _: (tf.sin(s) + x, s), h, length=length)
            return h, (h, tf.reduce_sum(ys))

        with tf.GradientTape() as tape:
            tape.watch(xs)
            state, ys = tf_ti.scan(body, tf.ones([8]), xs)
            loss = tf.reduce_sum(state) + tf.reduce_sum(ys[1])
        return state, ys[0], ys[1], tape.gradient(loss, xs)

    xs = XS[:outer_count]
    with tf.GradientTape() as tape:
        tape.watch(xs)
        state, rows, sums = tf.ones([8]), [], []
        for t in range(outer_count):
            total = tf.zeros([])
            for _ in range(count):
                total += tf.reduce_sum(state)
                state = tf.sin(state) + xs[t]
            rows.append(state)
            sums.append(total)
        loss = tf.reduce_sum(state) + tf.add_n([tf.zeros([]), *sums])
    gradient = tape.gradient(loss, xs, unconnected_gradients="zero")
    rows = tf.stack(rows) if rows else tf.zeros([0, 8])
    sums = tf.stack(sums) if sums else tf.zeros([0])
    for _ in range(2):
        found = run(xs, tf.constant(count))
        for a, e in zip(found, (state, rows, sums, gradient), strict=True):
            assert a.shape == e.shape
            np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["index", "division", "length"])
@pytest.mark.parametrize("count", [3, 40])
def test_errors_of_inner_iterations_name_operation_and_iterations(kind, count):
    @tf.function
    def run(xs, ids, n):
        def step(s, k):
            if kind == "index":
                s = s + tf.gather(xs, ids[k])[0]
            elif kind == "division":
                s = s + tf.cast(7 // (ids[k] - 4), tf.float32)
            return s * 0.9, None

        def body(s, x):
            length = n if kind == "length" else None
            elements = None if kind == "length" else tf.range(count)
            return tf_ti.scan(step, s, elements, length=length)[0] + x[0], None

        return tf_ti.scan(body, 0.0, xs)[0]

    ids = tf.zeros([count], tf.int32)
    for _ in range(2):
        run(XS, ids, tf.constant(2))
    wrong = tf.tensor_scatter_nd_update(ids, [[2]], [{"index": 99}.get(kind, 4)])
    words = {"index": "99", "division": "zero", "length": "-2"}[kind]
    with pytest.raises(tf.errors.InvalidArgumentError, match=words) as error:
        run(XS, wrong, tf.constant(-2))
    if kind != "length":
        assert "iteration 2" in str(error.value)
    assert "iteration 0" in str(error.value)
    run(XS, ids, tf.constant(2))


@pytest.mark.parametrize("place", ["body", "condition"])
def test_an_inner_loop_that_fails_does_not_go_on(place):
    """A program's division by 0 gives 0, so this loop would never end."""

    @tf.function
    def run(xs, k):
        def going(n):
            return (6 // k > 2) & (n > 0) if place == "condition" else n > 0

        def body(total, x):
            step = 1 if place == "condition" else 6 // k
            (n,) = tf_ti.while_loop(going, lambda n: (n - step,), (tf.constant(9),))
            return total + n, x

        return tf_ti.scan(body, 0, xs)[0]

    for _ in range(2):
        assert run(XS, tf.constant(2)) == 0
    with pytest.raises(tf.errors.InvalidArgumentError, match="zero"):
        run(XS, tf.constant(0))


@pytest.mark.parametrize("starts, index", [([0, 5], 5), ([9, 0], 9), ([0, 3], 5)])
def test_the_last_evaluation_of_an_inner_condition_may_fail(starts, index):
    @tf.function
    def run(starts, table):
        def body(h, i):
            (i,) = tf_ti.while_loop(lambda i: tf.gather(table, i) > 0, lambda i: (i + 1,), (i,))
            return h + i, i

        return tf_ti.scan(body, 0, starts)[1]

    table = tf.constant([1, 1, 0, 1, 1])
    for _ in range(2):
        np.testing.assert_array_equal(run(tf.constant([0, 2]), table), [2, 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{index} is not in"):
        run(tf.constant(starts), table)


def test_a_long_inner_loop_is_cancelled():
    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
    def run(limit):
        def body(c, _):
            inner = (tf.constant(0, tf.int64), c)
            _, c = tf_ti.while_loop(lambda i, c: i < limit, lambda i, c: (i + 1, tf.sin(c)), inner)
            return c, None

        return tf_ti.scan(body, 0.5, length=3)[0]

    for _ in range(2):
        run(tf.constant(2, tf.int64))
    manager = cancellation.CancellationManager()
    call = manager.get_cancelable_function(run.get_concrete_function())
    timer = threading.Timer(0.5, manager.start_cancel)
    timer.start()
    begin = time.monotonic()
    with pytest.raises(tf.errors.CancelledError):
        call(tf.constant(10**12, tf.int64))
    assert time.monotonic() - begin < 30
    timer.join()


def test_a_state_is_the_condition_of_the_inner_loop():
    def body(h, x):
        def step(going, k, h):
            return tf.reduce_sum(h) < 4.0, k + 1, h + 0.25

        _, k, h = tf_ti.while_loop(lambda going, k, h: going, step, (x[0] > 0, 0, h + x))
        return h * 0.1, k

    run = tf.function(lambda xs: tf_ti.scan(body, tf.zeros([8]), xs)[1])
    h, expected = np.zeros(8, np.float32), []
    for x in XS.numpy():
        going, k, h = x[0] > 0, 0, h + x
        while going:
            going, k, h = h.sum() < 4.0, k + 1, h + np.float32(0.25)
        h = h * np.float32(0.1)
        expected.append(k)
    for _ in range(2):
        np.testing.assert_array_equal(run(XS), expected)


def test_a_condition_of_nan_ends_the_inner_loop():
    def body(h, x):
        state = (tf.constant(0), h + x)
        count, h = tf_ti.while_loop(
            lambda k, h: tf.reduce_max(h) < 3.0, lambda k, h: (k + 1, h + 0.5), state
        )
        return tf.where(tf.math.is_nan(h), 0.0, h * 0.1), count

    xs = tf.where(tf.range(12)[:, None] == 4, np.nan, XS)
    run = tf.function(lambda xs: tf_ti.scan(body, tf.zeros([8]), xs)[1])
    h, expected = np.zeros(8, np.float32), []
    for x in xs.numpy():
        h = h + x
        expected.append(0)
        while h.max() < 3.0:
            h, expected[-1] = h + np.float32(0.5), expected[-1] + 1
        h = np.where(np.isnan(h), np.float32(0), h * np.float32(0.1))
    for _ in range(2):
        np.testing.assert_array_equal(run(xs), expected)


@pytest.mark.parametrize(
    "body", [known_count, many, condition, block], ids=lambda body: body.__name__
)
def test_second_derivatives_and_jacobians_are_those_of_kernels(body, monkeypatch):
    xs = XS[:4] * 0.5

    def derivatives(xs):
        with tf.GradientTape() as second:
            second.watch(xs)
            gradient = with_gradient(outer(body))(xs)
        with tf.GradientTape() as tape:
            tape.watch(xs)
            state = outer(body)(xs)[0]
        return second.gradient(gradient, xs), tape.jacobian(state, xs)

    monkeypatch.setenv("TF_TI_PROGRAM", "0")
    expected = tf.function(derivatives)(xs)
    monkeypatch.delenv("TF_TI_PROGRAM")
    run = tf.function(derivatives)
    for _ in range(2):
        for found, value in zip(run(xs), expected, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("every", [1, 3])
def test_checkpoints_of_both_loops(every):
    @tf.function
    def gradient(xs, every):
        def body(h, x):
            step = lambda s, _: (tf.tanh(s * 0.9 + x), s)  # noqa: E731
            h, ys = tf_ti.scan(step, h, length=7, checkpoint_every=every)
            return h, ys[3]

        with tf.GradientTape() as tape:
            tape.watch(xs)
            state, ys = tf_ti.scan(body, tf.zeros([8]), xs, checkpoint_every=every)
            loss = tf.reduce_sum(state) + tf.reduce_sum(ys**2)
        return tape.gradient(loss, xs)

    for _ in range(2):
        found = gradient(XS, every)
    np.testing.assert_allclose(found, gradient(XS, None), rtol=1e-5, atol=1e-6)


def test_shapes_may_change_between_calls():
    run = tf.function(outer(many), input_signature=[tf.TensorSpec([None, 8])])
    for count in (12, 3, 7, 12):
        xs = XS[:count]
        h = np.zeros(8, np.float32)
        for x in xs.numpy():
            for _ in range(40):
                h = np.tanh(h * np.float32(0.9) + x)
        np.testing.assert_allclose(run(xs)[0], h, rtol=1e-5, atol=1e-6)


@pytest.mark.needs_programs
def test_an_inner_loop_beside_a_kernel_is_a_program(tmp_path):
    def body(h, x):
        h, ys = tf_ti.scan(lambda s, _: (tf.sin(s) + x, s), h, length=30)
        return tf.sort(h), tf.reduce_sum(ys, 0)

    events = counts(tf.function(outer(body), autograph=False), XS, tmp_path)
    assert loops_of(events) == 1
    found = tf.function(outer(body))(XS)
    h, rows = np.zeros(8, np.float32), []
    for x in XS.numpy():
        total = np.zeros(8, np.float32)
        for _ in range(30):
            total += h
            h = np.sin(h) + x
        h = np.sort(h)
        rows.append(total)
    np.testing.assert_allclose(found[0], h, rtol=1e-4)
    np.testing.assert_allclose(found[1], np.stack(rows), rtol=1e-4, atol=1e-4)


def test_a_kernel_between_inner_loops_reads_what_the_first_recorded():
    """Of an inner loop's gradient, a kernel runs a part: the history leaves the program."""

    @tf.function
    def gradient(xs):
        def step(s, x):
            return tf.tanh(s + tf.cumsum(x[::-1])), tf.linalg.det(tf.reshape(s[:4], [2, 2]))

        def body(h, x):
            h, ys = tf_ti.scan(step, h, tf.stack([x, x * 0.5, -x]))
            return h, tf.reduce_sum(ys)

        with tf.GradientTape() as tape:
            tape.watch(xs)
            state, ys = tf_ti.scan(body, xs[0], xs)
            loss = tf.reduce_sum(state) + tf.reduce_sum(ys)
        return tape.gradient(loss, xs)

    with tf.GradientTape() as tape:
        tape.watch(XS)
        h, loss = XS[0], 0.0
        for x in tf.unstack(XS):
            for y in (x, x * 0.5, -x):
                loss += tf.linalg.det(tf.reshape(h[:4], [2, 2]))
                h = tf.tanh(h + tf.cumsum(y[::-1]))
        loss += tf.reduce_sum(h)
    expected = tape.gradient(loss, XS)
    for _ in range(2):
        np.testing.assert_allclose(gradient(XS), expected, rtol=1e-3, atol=1e-4)
