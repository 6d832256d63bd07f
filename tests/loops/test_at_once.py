"""Loops of heavy kernels: several iterations, and several kernels of one, are at work at once."""

import pathlib
import textwrap
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import cancellation

import tf_ti

PROGRAM = pathlib.Path(__file__).with_name("at_once_program.py")
# Loops whose iterations, or kernels, wait for one another.
IN_TURN = (
    "a_chain",
    "while_loop_one_by_one",
    "condition_of_the_heavy_value",
    "until",
    "a_state_that_is_written_to",
)

pytestmark = pytest.mark.needs_cpu_kernels


def run_with(threads, run_python, tmp_path):
    result = run_python(PROGRAM, threads, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    found = {}
    for line in result.stdout.splitlines():
        name, has_flown, *texts = line.split(" ", 2)
        found[name] = has_flown == "True", texts[0]
    return found


@pytest.fixture(scope="module")
def by_one_thread(run_python, tmp_path_factory):
    return run_with(1, run_python, tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize("threads", [2, 8, 16])
def test_bits_do_not_depend_on_threads(threads, by_one_thread, run_python, tmp_path):
    found = run_with(threads, run_python, tmp_path)
    assert {name: text for name, (_, text) in found.items()} == {
        name: text for name, (_, text) in by_one_thread.items()
    }
    assert not any(has_flown for has_flown, _ in by_one_thread.values())
    assert sorted(name for name, (has_flown, _) in found.items() if not has_flown) == sorted(
        IN_TURN
    )


def heavy(x):
    numbers = tf.unique(tf.tile(tf.reshape(tf.round(x * 1e3), [-1]), [6]))[1]
    return tf.cast(numbers[-8:], tf.float32)


X = tf.random.stateless_normal([12, 40, 40], [1, 2])


def four_times(function, *args):
    """The engine knows from the third call on how long kernels take."""
    return [function(*args) for _ in range(4)]


def test_values_are_those_of_python():
    @tf.function
    def ours(x):
        k, c, array = tf_ti.while_loop(
            lambda k, c, a: k < 12,
            lambda k, c, a: (k + 1, c * 0.5 + heavy(x[k]), a.write(k, c)),
            (0, tf.zeros([8]), tf.TensorArray(tf.float32, 12, element_shape=[8])),
        )
        last, stack = tf_ti.scan(lambda c, x: (c * 0.5 + heavy(x), c), tf.zeros([8]), x)
        return c, array.stack(), last, stack

    c, states = tf.zeros([8]), []
    for x in X:
        states.append(c)
        c = c * 0.5 + heavy(x)
    for found in four_times(ours, X):
        for value, expected in zip(found, (c, tf.stack(states)) * 2):
            np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("fails_at", [3, 9])
def test_the_first_iteration_that_fails_is_named(fails_at):
    @tf.function
    def f(x):
        def body(c, each):
            x, k = each
            y = tf.cast(heavy(x)[0] * 0.0, tf.int32)
            return c, tf.unique(tf.gather([0] * fails_at, [k + y]))[1]

        return tf_ti.scan(body, (), (x, tf.range(12)))[1]

    for _ in range(4):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"in iteration {fails_at} of"):
            f(X)


@pytest.mark.parametrize("where", ["body", "condition", "both"])
def test_an_error_of_a_function_leaves_earlier_iterations_alone(where):
    """TensorFlow cancels the manager of a function that fails: others with it do not begin."""

    def checked(k, fails_at):
        def fail():
            with tf.control_dependencies([tf.debugging.assert_less(k, fails_at)]):
                return tf.identity(k)

        return tf.cond(k >= 0, fail, lambda: k)

    @tf.function
    def f(x, body_fails, condition_fails):
        def body(k, total):
            y = heavy(x[k])
            late = tf.cond(
                y[0] > -1.0,
                lambda: tf.unique(tf.round(y * 9.0))[1],
                lambda: tf.zeros_like(y, tf.int32),
            )
            return k + 1, total + tf.reduce_sum(late) + checked(k, body_fails)

        return tf_ti.while_loop(lambda k, _: checked(k, condition_fails) < 12, body, (0, 0))

    body_fails = 100 if where == "condition" else 9
    condition_fails = 100 if where == "body" else 10 if where == "both" else 9
    for _ in range(30):
        with pytest.raises(tf.errors.InvalidArgumentError, match="in iteration 9 of"):
            f(X, tf.constant(body_fails), tf.constant(condition_fails))


@pytest.mark.parametrize("value", [0, -1, 2.0, None])
def test_parallel_iterations_are_a_positive_integer(value):
    with pytest.raises(ValueError, match="parallel_iterations must be a positive integer"):
        tf_ti.while_loop(lambda k: k < 3, lambda k: (k + 1,), (0,), parallel_iterations=value)


def test_a_long_loop_is_cancelled():
    @tf.function
    def f(x, count):
        return tf_ti.scan(lambda c, k: (c, heavy(x[k % 12])), (), tf.range(count))[1]

    four_times(f, X, 20)
    manager = cancellation.CancellationManager()
    concrete = f.get_concrete_function(X, tf.TensorSpec([], tf.int32))
    for _ in range(4):
        concrete(X, tf.constant(20))
    call = manager.get_cancelable_function(concrete)
    timer = threading.Timer(0.3, manager.start_cancel)
    start = time.monotonic()
    timer.start()
    with pytest.raises(tf.errors.CancelledError):
        call(X, tf.constant(1_000_000))
    assert time.monotonic() - start < 60


def test_memory_stays_within_the_iterations_that_are_on_their_way(run_program):
    """Ten thousand iterations of temporaries of 4 MB, of which each result is a number."""
    run_program(
        """
        import resource
        import tensorflow as tf
        import tf_ti

        @tf.function
        def f(x, count):
            def body(c, k):
                large = tf.tile(x, [k // 100_000_000 + 1024])
                return c, tf.reduce_sum(tf.unique(large[:4096])[1]) + tf.cast(large[-1], tf.int32)
            return tf_ti.scan(body, (), tf.range(count))[1]

        x = tf.range(1024.0)
        for _ in range(4):
            f(x, tf.constant(50))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        f(x, tf.constant(10_000))
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 100_000, grown
        """
    )


def test_small_values_that_are_kept_leave_room_for_large_ones(run_python, tmp_path):
    """Temporaries of 15 MB, of which nine iterations are on their way, and forty calls."""
    program = tmp_path / "large_program.py"
    program.write_text(
        textwrap.dedent(
            """
            import resource
            import tensorflow as tf

            tf.config.threading.set_intra_op_parallelism_threads(8)
            tf.config.threading.set_inter_op_parallelism_threads(8)
            import tf_ti

            def body(c, x):
                numbers = tf.unique(tf.tile(tf.reshape(tf.round(x * 1e3), [-1]), [6]))[1]
                row = tf.cast(numbers[-64:], tf.float32) * 1e-2 + x[0]
                large = tf.tile(row[tf.newaxis], [60_000, 1])
                return tf.sort(large[:200], axis=0)[0] + 0.0 * c, tf.reduce_sum(large)

            x = tf.random.stateless_normal([60, 64, 64], [1, 2])
            call = tf.function(lambda: tf_ti.scan(body, tf.zeros([64]), x))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for _ in range(40):
                call()
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert grown < 1_500_000, grown
            """
        )
    )
    result = run_python(program, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]


def test_light_values_do_not_keep_heavy_ones_from_being_at_once(run_python, tmp_path):
    """Of a loop's first calls, and of one call between others."""
    result = run_python(PROGRAM.with_name("light_first_program.py"), 8, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]


def test_explain_tells_what_may_be_at_once():
    def lines(body, **kwargs):
        function = tf.function(lambda x: tf_ti.scan(body, tf.zeros([8]), x, **kwargs))
        (loop,) = tf_ti.explain(function, X)
        return [line.split(",")[0] for line in loop.at_once]

    iterations = "iterations run at once"
    kernels = "kernels of an iteration run at once"
    assert lines(lambda c, x: (c * 0.5 + heavy(x), None)) == [iterations]
    assert lines(lambda c, x: (heavy(x + c[0]), None)) == []
    assert lines(lambda c, x: (heavy(x + c[0]) + heavy(x - c[0]), None)) == [kernels]
    assert lines(lambda c, x: (c * 0.5 + heavy(x), None), fuse=False) == []


def test_explain_tells_the_limit():
    function = tf.function(
        lambda x: tf_ti.while_loop(
            lambda k, c: k < 12,
            lambda k, c: (k + 1, c + heavy(x[k])),
            (0, tf.zeros([8])),
            parallel_iterations=5,
        )
    )
    (loop,) = tf_ti.explain(function, X)
    assert loop.at_once[0].endswith("up to 5")
