"""Ctrl-C in an eager loop raises KeyboardInterrupt, as in a loop of Python."""

import contextlib
import os
import signal
import threading
import time

import pytest
import tensorflow as tf

import tf_ti

ENDLESS = 10**12


@pytest.fixture(autouse=True)
def pythons_handler():
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def interrupted(after=0.5):
    """Sends the process a SIGINT, which must end the block long before its loop ends.

    It sends one more after some seconds: Python ignores an interrupt that comes in a finalizer.
    """
    is_over = threading.Event()

    def send():
        wait = after
        while not is_over.wait(wait):
            os.kill(os.getpid(), signal.SIGINT)
            wait = 10.0

    thread = threading.Thread(target=send)
    thread.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        yield
    is_over.set()
    thread.join()
    assert time.monotonic() - begin < 60


def while_loop(wrap=lambda function: function):
    body = wrap(lambda i, c: (i + 1, tf.sin(c)))
    cond = wrap(lambda i, c: i < ENDLESS)
    return lambda: tf_ti.while_loop(cond, body, (tf.constant(0, tf.int64), tf.constant(0.5)))


def kept():
    """A call whose function is known: the second one is another way."""
    limit = tf.Variable(1, dtype=tf.int64)
    body = tf.function(lambda i, c: (i + 1, tf.sin(c)))
    cond = tf.function(lambda i, c: i < limit)
    state = (tf.constant(0, tf.int64), tf.constant(0.5))
    tf_ti.while_loop(cond, body, state)
    limit.assign(ENDLESS)
    return lambda: tf_ti.while_loop(cond, body, state)


def with_kernels():
    """A body that TensorFlow's kernels run, with an effect."""
    seen = tf.Variable(0, dtype=tf.int64)

    def body(i, m):
        seen.assign_add(1)
        return i + 1, tf.linalg.inv(m)

    state = (tf.constant(0, tf.int64), tf.eye(2))
    return lambda: tf_ti.while_loop(lambda i, m: i < ENDLESS, body, state)


def block():
    def call():
        with tf_ti.Loop() as loop:
            loop.add_trip_limit(ENDLESS, "count")
            c = loop.add_recurrence(0.5)
            c.next = tf.sin(c)
            loop.add_loop_output(c, "last_value")

    return call


def scan():
    return lambda: tf_ti.scan(lambda c, _: (tf.sin(c), None), 0.5, length=ENDLESS)


def recorded():
    def call():
        c = tf.constant(0.5)
        with tf.GradientTape() as tape:
            tape.watch(c)
            tf_ti.while_loop(lambda c: c < 2, lambda c: [tf.stop_gradient(c)], [c])

    return call


def functions():
    return while_loop(tf.function)


@pytest.mark.parametrize(
    "make",
    [while_loop, functions, kept, with_kernels, block, scan, recorded],
    ids=lambda make: make.__name__,
)
def test_an_eager_loop_ends(make):
    call = make()
    with interrupted():
        call()
    assert float(tf_ti.scan(lambda c, x: (c + x, None), 0.0, tf.ones([3]))[0]) == 3  # the next one


def test_a_handler_that_does_not_raise_lets_the_loop_go_on():
    seen = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    begin, count = time.monotonic(), 100_000
    while not seen:
        timer.is_alive() or timer.ident or timer.start()
        last, _ = tf_ti.scan(lambda c, _: (c + 1, None), 0, length=count)
        assert int(last) == count
        assert time.monotonic() - begin < 60


def test_another_wakeup_descriptor_gets_the_signals_too():
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    others = signal.set_wakeup_fd(sink)
    try:
        call = while_loop()
        with interrupted():
            call()
        assert signal.set_wakeup_fd(sink) == sink
        assert signal.SIGINT in os.read(source, 64)
    finally:
        signal.set_wakeup_fd(others)


@pytest.mark.parametrize("kind", ["full", "nobody reads"])
def test_a_wakeup_descriptor_that_takes_nothing_keeps_no_later_loop_from_ending(kind):
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    others = signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
    try:
        if kind == "full":
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(sink, b"x" * 4096)
        else:
            os.close(source)
        for _ in range(2):
            with interrupted():
                while_loop()()
    finally:
        signal.set_wakeup_fd(others)


def test_a_descriptor_gets_no_signal_after_the_loop():
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    others = signal.set_wakeup_fd(sink)
    try:
        tf_ti.scan(lambda c, _: (c + 1, None), 0, length=3)
    finally:
        signal.set_wakeup_fd(others)
    os.close(sink)
    with interrupted():
        while_loop()()
    assert os.read(source, 64) == b""  # its other end is closed, and empty


def test_loops_of_other_threads_leave_signals_alone():
    found = []

    def run():
        found.append(tf_ti.scan(lambda c, x: (c + x, None), 0.0, tf.ones([3]))[0])
        found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert float(found[0]) == 3 and found[1] is signal.default_int_handler


def test_the_error_of_a_loop_that_nobody_interrupts_is_its_own():
    with pytest.raises(tf.errors.InvalidArgumentError, match="not invertible"):
        tf_ti.scan(lambda c, _: (tf.linalg.inv(c), None), tf.zeros([2, 2]), length=3)
