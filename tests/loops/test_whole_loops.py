"""Loops that one program runs from the first iteration to the last, beside TensorFlow's kernels.

The first call shows the shapes, the later ones run no kernel of the body.
"""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from checks import as_exact, in_threads
from tensorflow.python.eager import cancellation

import tf_ti
from tf_ti import Loop, LoopOutput, TripLimit

LAST, CONCATENATE, REVERSE = LoopOutput.LAST_VALUE, LoopOutput.CONCATENATE, LoopOutput.REVERSE


def compare(function, *arguments, monkeypatch, rtol=0.0):
    """Holds three calls beside one by kernels; returns its results."""
    with monkeypatch.context() as patch:
        patch.setenv("TF_TI_PROGRAM", "0")
        expected = tf.function(function)(*arguments)
    run = tf.function(function)
    for _ in range(3):
        found = run(*arguments)
        for a, e in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
            assert a.dtype == e.dtype and a.shape == e.shape
            np.testing.assert_allclose(a, e, rtol=rtol, atol=rtol)
    return expected


def draw(seed, *shape, dtype=tf.float32):
    random = np.random.default_rng(seed)
    if dtype.is_floating:
        return tf.constant(random.normal(size=shape), dtype)
    return tf.constant(random.integers(-9, 10, shape), dtype)


# How often a loop runs: around what outputs have memory for at first, and twice that.
COUNTS = [0, 1, 2, 3, 15, 16, 17, 31, 32, 33, 100]


@pytest.mark.parametrize("count", COUNTS)
def test_a_condition_ends_the_loop(count, monkeypatch):
    def run(n, x):
        with Loop() as loop:
            i = loop.add_recurrence(0)
            a, b, c = (loop.add_recurrence(x * k) for k in (1.0, 2.0, 3.0))
            loop.add_trip_limit(i < n, TripLimit.WHILE)
            i.next, a.next, b.next, c.next = i + 1, 0.5 * a + b, c.value, a.value
            outputs = [
                loop.add_loop_output(value, how)
                for value in (a, b, a.next, 2.0 * c, i, i.next)
                for how in (CONCATENATE, REVERSE)
            ]
            outputs += [loop.add_loop_output(value, LAST) for value in (i, a, b, c)]
        return [output.tensor for output in outputs]

    expected = compare(run, tf.constant(count), draw(count, 5), monkeypatch=monkeypatch)
    assert expected[0].shape[0] == count and int(expected[-4]) == count


@pytest.mark.parametrize("count", [0, 1, 5, 16, 17, 40])
def test_a_limit_a_condition_and_an_iterator(count, monkeypatch):
    """Each of them ends some of the loops; the condition reads the iterator."""

    def run(xs, limit, most):
        with Loop() as loop:
            x = loop.add_iterator(xs)
            s = loop.add_recurrence(tf.zeros([3]))
            loop.add_trip_limit(limit, TripLimit.COUNT)
            loop.add_trip_limit(tf.reduce_sum(s + x) < most, TripLimit.WHILE)
            s.next = s + tf.abs(x)
            outputs = [
                loop.add_loop_output(s, LAST),
                loop.add_loop_output(s, CONCATENATE),
                loop.add_loop_output(s.next, REVERSE),
                loop.add_loop_output(s, CONCATENATE, length=64),
            ]
        return [output.tensor for output in outputs]

    xs = tf.abs(draw(7, 41, 3))
    for most in (5.0, 1e9):
        compare(run, xs, tf.constant(count), tf.constant(most), monkeypatch=monkeypatch)


def test_what_a_condition_computes_the_body_reads(monkeypatch):
    """By a while loop of TensorFlow's semantics: both functions share what is in both."""

    def run(x):
        with Loop() as loop:
            y = loop.add_recurrence(x)
            before = loop.add_recurrence(tf.zeros_like(x))
            step = 0.5 * (y + x / y)
            loop.add_trip_limit(tf.reduce_max(tf.abs(step - y)) > 1e-3, TripLimit.WHILE)
            before.next, y.next = step - y, step
            outputs = [loop.add_loop_output(v, LAST) for v in (y, before)]
            outputs += [loop.add_loop_output(v, CONCATENATE) for v in (y, step, before)]
        return [output.tensor for output in outputs]

    root, *_ = compare(run, tf.abs(draw(3, 9)) * 100.0 + 1.0, monkeypatch=monkeypatch)
    assert root.shape == [9]


@pytest.mark.parametrize("first", [True, False])
def test_a_condition_that_is_a_state(first, monkeypatch):
    def run(x, goes_on):
        with Loop() as loop:
            s, flag = loop.add_recurrence(x), loop.add_recurrence(goes_on)
            loop.add_trip_limit(flag, TripLimit.WHILE)
            s.next = s * 1.5
            flag.next = tf.reduce_sum(s) < 100.0
            outputs = [loop.add_loop_output(v, LAST) for v in (s, flag)]
            outputs.append(loop.add_loop_output(flag, CONCATENATE))
        return [output.tensor for output in outputs]

    compare(run, tf.ones([4]), tf.constant(first), monkeypatch=monkeypatch)


@pytest.mark.parametrize("count", [1, 2, 16, 17, 33, 70])
def test_gradients_of_loops_that_a_condition_ends(count, monkeypatch):
    def run(n, x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            with Loop() as loop:
                i = loop.add_recurrence(0)
                s, t = loop.add_recurrence(x), loop.add_recurrence(x * 0.5)
                loop.add_trip_limit(i < n, TripLimit.WHILE)
                i.next = i + 1
                s.next, t.next = tf.tanh(s * w + t), s * 0.9
                outputs = [loop.add_loop_output(v, LAST) for v in (s, t)]
                outputs += [loop.add_loop_output(v, CONCATENATE) for v in (s, t.next)]
            loss = tf.add_n([tf.reduce_sum(tf.sin(v.tensor)) for v in outputs])
        return tape.gradient(loss, [x, w])

    n, x, w = tf.constant(count), draw(1, 4), draw(2, 4)
    doubles = tf.cast(x, tf.float64), tf.cast(w, tf.float64)
    exact = compare(run, n, *doubles, monkeypatch=monkeypatch, rtol=1e-12)
    with monkeypatch.context() as patch:
        patch.setenv("TF_TI_PROGRAM", "0")
        reference = tf.function(run)(n, x, w)
    by_program = tf.function(run)
    for _ in range(3):
        as_exact(by_program(n, x, w), reference, exact, 2e-6)


@pytest.mark.parametrize("in_condition", [False, True])
@pytest.mark.parametrize("bad", [0, 1, 7, 20])
def test_an_error_in_a_loop_that_a_condition_ends_names_its_iteration(bad, in_condition):
    @tf.function
    def run(divisors):
        with Loop() as loop:
            x = loop.add_iterator(divisors)
            s = loop.add_recurrence(0)
            quotient = 100 // x
            condition = quotient * 0 + s if in_condition else s
            loop.add_trip_limit(condition < 3000, TripLimit.WHILE)
            s.next = s + quotient
            steps = loop.add_loop_output(s, CONCATENATE)
            count = loop.add_loop_output(s, LAST)
        return steps.tensor, count.tensor

    right = tf.ones([40], tf.int32)
    divisors = tf.tensor_scatter_nd_update(right, [[bad]], [0])
    for _ in range(2):
        steps, last = run(right)
        np.testing.assert_array_equal(steps, np.arange(30) * 100)
        assert last == 3000
        with pytest.raises(tf.errors.InvalidArgumentError, match="(?i)division by zero") as error:
            run(divisors)
        assert f"iteration {bad} of" in str(error.value)


def test_an_iterator_that_ends_before_the_condition_is_an_error():
    @tf.function
    def run(xs, most):
        with Loop() as loop:
            s = loop.add_recurrence(0.0)
            loop.add_trip_limit(s < most, TripLimit.WHILE)
            s.next = s + loop.add_iterator(xs)
            out = loop.add_loop_output(s, LAST)
        return out.tensor

    for count in 1, 5, 20:
        xs = tf.ones([count])
        for _ in range(2):
            assert run(xs, float(count)) == count
            with pytest.raises(tf.errors.InvalidArgumentError, match=f"{count} elements"):
                run(xs, count + 1.0)


@pytest.mark.parametrize("has_length", [False, True])
def test_a_length_that_is_too_short_is_an_error(has_length):
    @tf.function
    def run(n, length):
        with Loop() as loop:
            i = loop.add_recurrence(0)
            loop.add_trip_limit(i < n, TripLimit.WHILE)
            i.next = i + 1
            out = loop.add_loop_output(i, CONCATENATE, length=length if has_length else None)
        return out.tensor

    for n in 3, 16, 17, 33:
        for _ in range(2):
            padded = run(n, n + 2).numpy().tolist()
            assert padded == [*range(n), *[0] * (2 * has_length)]
            if has_length:
                with pytest.raises(tf.errors.InvalidArgumentError, match=f"length is {n - 1}"):
                    run(n, n - 1)


def test_a_loop_without_an_end_is_cancelled():
    manager, moments = cancellation.CancellationManager(), []

    def cancel():
        moments.append(time.perf_counter())
        manager.start_cancel()

    @tf.function
    def run(x):
        with Loop() as loop:
            s = loop.add_recurrence(x)
            loop.add_trip_limit(tf.reduce_sum(s) < 1.0, TripLimit.WHILE)
            s.next = s * 0.5
            out = loop.add_loop_output(s, LAST)
        return out.tensor

    call = manager.get_cancelable_function(run.get_concrete_function(tf.zeros([8])))
    threading.Timer(0.3, cancel).start()
    with pytest.raises(tf.errors.CancelledError):
        call(tf.zeros([8]))
    assert time.perf_counter() - moments[0] < 0.5


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.int32, tf.int64, tf.bool])
def test_outputs_of_any_place_and_type(dtype, monkeypatch):
    """Parts along any axis, backwards, as they come in and as they go out."""

    def run(x, init):
        ports = tf_ti.PortMap(
            [
                tf_ti.InputPort(0, 0, axis=1, start=-1, end=0, stride=-2, part_size=2),
                tf_ti.InputPort(1, 1),
            ],
            [
                tf_ti.OutputPort(0, 0),
                tf_ti.OutputPort(1, 0, axis=1, start=-1, end=0, stride=-1),
                tf_ti.OutputPort(2, 1, axis=0),
            ],
        )

        def body(part, state):
            next_state = tf.where(tf.equal(part[:, :1], state), state, part[:, 1:])
            return next_state, tf.concat([part, state], 1)

        return tf_ti.tensor_iterator(body, [x, init], ports, [tf_ti.BackEdge(0, 1)])

    x = tf.cast(draw(1, 3, 12, dtype=tf.int32) % 3, dtype)
    compare(run, x, x[:, :1], monkeypatch=monkeypatch)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("extent", range(1, 9))
def test_parts_of_states_and_their_gradients(extent, reverse, monkeypatch):
    ends = {"start": -1, "end": 0, "stride": -1} if reverse else {}

    def run(xs, w):
        with tf.GradientTape() as tape:
            tape.watch([xs, w])
            results = tf_ti.tensor_iterator(
                lambda x, s, w: (tf.sin(x) * w + s, s * x),
                [xs, w, w],
                tf_ti.PortMap(
                    [tf_ti.InputPort(0, 0, axis=1, **ends), tf_ti.InputPort(1, 1),
                     tf_ti.InputPort(2, 2)],
                    [tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 1, axis=1, **ends)],
                ),
                [tf_ti.BackEdge(0, 1)],
            )  # fmt: skip
            loss = tf.add_n([tf.reduce_sum(y * y) for y in results])
        return results, tape.gradient(loss, [xs, w])

    arguments = draw(extent, 3, extent), draw(2, 3, 1)
    compare(run, *arguments, monkeypatch=monkeypatch, rtol=2e-6)


@pytest.mark.needs_programs
def test_concurrent_calls_have_runs_of_their_own():
    @tf.function
    def run(x, xs):
        return tf_ti.scan(lambda c, x: (tf.sin(c) + x, c * 2.0), x, xs)

    xs = draw(5, 200, 16)
    starts = [draw(10 + k, 16) for k in range(8)]
    run(starts[0], xs)
    expected = [run(x, xs) for x in starts]

    for k, results in enumerate(in_threads(lambda k: run(starts[k], xs), times=50)):
        for found in results:
            for a, e in zip(found, expected[k], strict=True):
                np.testing.assert_array_equal(a, e)


# Large arrays: tiles, and several threads

LARGE = {
    "flat": (lambda c, x: tf.tanh(c * 0.9 + x) * 0.5 + tf.sigmoid(c) * x, (70_001,), (70_001,)),
    "rows": (lambda c, x: tf.nn.softmax(c + x[:, None]) * 3.0 - c, (300, 257), (300,)),
    "few rows": (
        lambda c, x: c * tf.exp(-tf.abs(x)) + tf.reduce_max(c, 1, True),
        (3, 33_333),
        (1,),
    ),
    "columns": (lambda c, x: c - tf.reduce_mean(c, 0) * x, (257, 301), (301,)),
    "all": (lambda c, x: c / (1e-3 + tf.reduce_max(tf.abs(c))) + x, (2, 3, 20_011), ()),
    "stencil": (
        lambda c, x: 0.2 * (tf.roll(c, 1, 0) + tf.roll(c, -1, 0) + tf.roll(c, 3, 1) + c) + x,
        (211, 401),
        (),
    ),
    "moves": (
        lambda c, x: (
            tf.concat([c[1:] * x, tf.reverse(c[:1], [1])], 0)
            + tf.pad(tf.transpose(tf.reshape(c, [-1, 250]))[:-1], [[0, 1], [0, 0]])[:1, :1]
        ),
        (300, 250),
        (250,),
    ),
    "product": (lambda c, x: tf.tanh(c @ x) + tf.cumsum(c, 1) * 1e-2, (5_000, 5), (5, 5)),
    "select": (
        lambda c, x: tf.where((c > x) & (c < 2.0), c - 1.0, tf.cast(c > 0.0, c.dtype) + c),
        (40_000, 2),
        (2,),
    ),
}


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", LARGE)
def test_large_arrays(name, dtype, monkeypatch):
    f, state, element = LARGE[name]

    def run(init, xs):
        with tf.GradientTape() as tape:
            tape.watch([init, xs])
            last, ys = tf_ti.scan(lambda c, x: (f(c, x), tf.reduce_sum(c)), init, xs)
            loss = tf.reduce_mean(last * last) + tf.reduce_mean(ys)
        return last, ys, tape.gradient(loss, [init, xs], unconnected_gradients="zero")

    init, xs = draw(1, *state, dtype=dtype), draw(2, 5, *element, dtype=dtype) * 0.5
    compare(run, init, xs, monkeypatch=monkeypatch, rtol=1e-4 if dtype == tf.float32 else 1e-10)


def test_threads_make_no_difference(run_program):
    """Bits are those of one thread."""
    program = """
        import hashlib
        import sys
        import numpy as np
        import tensorflow as tf
        tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
        import tf_ti

        @tf.function
        def run(init, xs):
            def f(c, x):
                y = tf.nn.softmax(tf.tanh(c) + x) * c + tf.reduce_sum(c, 0)
                return y, tf.reduce_sum(y * c, 1)

            return tf_ti.scan(f, init, xs)

        random = np.random.default_rng(1)
        init = tf.constant(random.normal(size=[400, 301]), tf.float32) * 1e-3
        xs = tf.constant(random.normal(size=[9, 301]), tf.float32)
        for _ in range(3):
            last, ys = run(init, xs)
        print(hashlib.md5(last.numpy().tobytes() + ys.numpy().tobytes()).hexdigest())
    """
    found = {run_program(program, threads).stdout for threads in (1, 2, 5)}
    assert len(found) == 1


def test_last_values_that_stay_are_of_any_type(run_program):
    """Nobody copies the bytes of strings, variants and handles: two tensors would free them."""
    run_program(
        """
        import numpy as np
        import tensorflow as tf
        import tf_ti

        P, I, O, B = tf_ti.PortMap, tf_ti.InputPort, tf_ti.OutputPort, tf_ti.BackEdge
        table = tf.Variable([1.0, 2.0])

        @tf.function
        def run(xs, texts):
            stays = [
                tf.strings.join([texts, texts]),
                tf.raw_ops.TensorListFromTensor(tensor=xs, element_shape=[2]),
                tf.RaggedTensor.from_row_lengths(xs, [3, 0, 17])._to_variant(batched_input=True),
                table.handle,
                table.read_value(),
            ]
            n = len(stays)
            _, text, pieces, rows, handle, value = tf_ti.tensor_iterator(
                lambda x, c, *stays: (c + x, *stays),
                [xs, tf.zeros([1, 2]), *stays],
                P(
                    inputs=[I(0, 0, axis=0), *(I(k, k) for k in range(1, n + 2))],
                    outputs=[O(k, k) for k in range(n + 1)],
                ),
                [B(0, 1)],
            )
            with tf.control_dependencies([table.assign_add([1.0, 1.0])]):
                read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
            return [
                text,
                tf.raw_ops.TensorListStack(
                    input_handle=pieces, element_shape=[2], element_dtype=tf.float32
                ),
                tf.RaggedTensor._from_variant(rows, tf.float32, 1, 0).flat_values,
                read,
                value,
            ]

        xs = tf.random.normal([20, 2])
        for k in range(30):
            texts = tf.constant(["a" * 100, "b" * 50, ""])
            text, pieces, rows, read, value = run(xs, texts)
            assert text.numpy().tolist() == [b"a" * 200, b"b" * 100, b""]
            np.testing.assert_array_equal(pieces, xs)
            np.testing.assert_array_equal(rows, xs)
            np.testing.assert_array_equal(value, [1.0 + k, 2.0 + k])
            np.testing.assert_array_equal(read, table)
        """
    )
