"""Nothing hangs, nothing leaks: programs with a time limit.

Those that measure memory have a process each. The others share one, as its start takes seconds.
"""

import json
import subprocess
import sys
import textwrap

import pytest
from patience import HANGS

COMMON = """
import gc, os, resource, sys, threading, time
import numpy as np
import tensorflow as tf
tf.config.threading.set_inter_op_parallelism_threads(int(sys.argv[1]))
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
import tf_ti
from tf_ti import BackEdge, InputPort, OutputPort, PortMap

SLICE_AND_STATE = [InputPort(0, 0, axis=0), InputPort(1, 1)]
LAST = [OutputPort(0, 0)]
CONCAT = [OutputPort(0, 0, axis=0)]

def total(body, x, s=0.0):
    (s,) = tf_ti.tensor_iterator(
        body, [x, s], PortMap(SLICE_AND_STATE, LAST), [BackEdge(0, 1)])
    return s

def mapped(body, x):
    (y,) = tf_ti.tensor_iterator(body, [x], PortMap([InputPort(0, 0, axis=0)], CONCAT))
    return y

def repeat(body, s, n, **arguments):
    (s,) = tf_ti.tensor_iterator(
        body, [s], PortMap([InputPort(0, 0)], LAST), [BackEdge(0, 0)], n, **arguments)
    return s

def in_threads(calls):
    results, errors = [None] * len(calls), []
    def run(i):
        try:
            results[i] = calls[i]()
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    if errors: raise errors[0]
    return results

def resident():
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / 2**20

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10

def await_work(seconds=0.5):
    # Until this process has worked for so long: what others have of the processors does not count.
    end = time.process_time() + seconds
    while time.process_time() < end:
        time.sleep(0.01)
"""

ONE_THREAD = 1
POOL = 4

threads = pytest.mark.parametrize("inter_op", [ONE_THREAD, POOL], ids=["one thread", "pool"])


# Runs the program in each file that it is told, and says that it is done.
SERVE = """
import faulthandler, json, traceback
for line in sys.stdin:
    path, seconds = json.loads(line)
    faulthandler.dump_traceback_later(seconds, exit=True)
    failure = ""
    try:
        with open(path) as file:
            exec(compile(file.read(), path, "exec"), dict(globals()))
    except BaseException:
        failure = traceback.format_exc()
    faulthandler.cancel_dump_traceback_later()
    print("DONE", json.dumps(failure), flush=True)
"""


class Server:
    """A process that runs one program after the other, until one ends or hangs it."""

    def __init__(self, folder, inter_op):
        (folder / "server.py").write_text(COMMON + SERVE)
        self._stderr = folder / "stderr.txt"
        with self._stderr.open("w") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", folder / "server.py", str(inter_op)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def run(self, path, seconds):
        print(json.dumps([str(path), seconds]), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("DONE "):
                failure = json.loads(line.removeprefix("DONE "))
                assert not failure, failure
                return
            print(line, end="")
        pytest.fail(self._stderr.read_text()[-6000:])

    @property
    def is_alive(self):
        return self._process.poll() is None

    def end(self):
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def servers():
    servers = {}
    yield servers
    for server in servers.values():
        server.end()


@pytest.fixture
def stress(servers, tmp_path):
    def run(program, inter_op=POOL):
        if inter_op not in servers or not servers[inter_op].is_alive:
            servers[inter_op] = Server(tmp_path, inter_op)
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(program))
        servers[inter_op].run(path, seconds=HANGS)

    return run


@pytest.fixture
def stress_alone(run_program):
    def run(program):
        run_program(COMMON + textwrap.dedent(program), POOL)

    return run


# Deadlocks


@threads
def test_loops_three_deep_called_by_eight_threads_finish(stress, inter_op):
    stress(
        """
        x = tf.constant(np.arange(60.0).reshape(3, 4, 5) / 60)
        w = tf.Variable(0.9, dtype=tf.float64)

        def level(x, s):
            def body(piece, s):
                piece = piece[0]
                return s * w + piece if piece.shape.rank == 0 else level(piece, s)
            return total(body, x, s)

        zero = tf.constant(0.0, tf.float64)
        call = tf.function(level)
        def with_gradient():
            with tf.GradientTape() as tape:
                y = call(x, zero)
            return y, tape.gradient(y, w)
        expected = 0.0
        for value in x.numpy().ravel():
            expected = expected * 0.9 + value
        def many(f):
            return lambda: [f() for _ in range(20)]
        forward = many(lambda: call(x, zero))
        eager = many(lambda: level(x, zero))
        backward = many(lambda: with_gradient()[0])
        for results in in_threads([forward, eager, backward, forward] * 2):
            np.testing.assert_allclose(results, [expected] * 20, rtol=1e-12)
        """,
        inter_op,
    )


def test_many_loops_in_one_function_finish(stress):
    stress(
        """
        @tf.function
        def call(x):
            return [total(lambda p, s: s + tf.reduce_sum(p) * k, x) for k in range(30)]

        for _ in range(5):
            assert [y.numpy() for y in call(tf.ones([10]))] == [10 * k for k in range(30)]
        """,
        ONE_THREAD,
    )


def test_a_producing_and_a_consuming_loop_meet_in_a_queue(stress):
    stress(
        """
        queue = tf.queue.FIFOQueue(2, tf.float32, [[]])

        @tf.function
        def produce(x):
            def body(piece, s):
                queue.enqueue(piece[0])
                return s + 1
            return total(body, x)

        @tf.function
        def consume(n):
            return repeat(lambda s: s + queue.dequeue(), 0.0, n)

        x = tf.range(200.0)
        produced, consumed = in_threads([lambda: produce(x), lambda: consume(200)])
        assert (produced.numpy(), consumed.numpy()) == (200, 199 * 100)
        """,
        ONE_THREAD,
    )


@threads
def test_waiting_loops_inside_loops_hold_no_thread(stress, inter_op):
    stress(
        """
        queue = tf.queue.FIFOQueue(1000, tf.float32, [[]])
        begun = tf.Variable(0)

        @tf.function
        def consume():
            begun.assign_add(1)
            def row(s):
                return repeat(lambda s: s + queue.dequeue(), s, 5)
            return repeat(row, 0.0, 4)

        @tf.function
        def produce():
            def body(s):
                queue.enqueue(1.0)
                return s
            return repeat(body, 0.0, 8 * 20)

        def later():
            while begun.numpy() < 8:
                time.sleep(0.01)
            return produce()

        results = in_threads([consume] * 8 + [later])
        assert [y.numpy() for y in results[:8]] == [20] * 8
        """,
        inter_op,
    )


def test_bodies_with_python_functions_finish(stress):
    stress(
        """
        def body(piece, s):
            y = tf.numpy_function(lambda v: v + v, [piece[0]], tf.float32)
            z = tf.py_function(lambda v: v + 1, [piece[0]], tf.float32)
            return s + tf.ensure_shape(y, []) + tf.ensure_shape(z, [])

        call = tf.function(lambda x: total(lambda p, s: total(body, p[0], s), x))
        x = tf.ones([5, 4])
        results = in_threads([lambda: call(x)] * 8)
        assert [y.numpy() for y in results] == [80] * 8
        """,
        ONE_THREAD,
    )


def test_a_python_function_that_runs_a_loop_inside_a_loop_finishes(stress):
    stress(
        """
        def inner(x):
            return total(lambda p, s: s + p[0], x)

        def body(piece, s):
            return s + tf.ensure_shape(tf.py_function(inner, [piece[0]], tf.float32), [])

        call = tf.function(lambda x: total(body, x))
        assert call(tf.ones([5, 4])).numpy() == 20
        """,
        ONE_THREAD,
    )


def test_a_data_iterator_is_read_in_the_body(stress):
    stress(
        """
        dataset = tf.data.Dataset.range(100).map(
            lambda n: total(lambda p, s: s + p[0], tf.ones([n])), num_parallel_calls=2).prefetch(2)

        @tf.function
        def call(iterator):
            return repeat(lambda s: s + next(iterator), 0.0, 100)

        assert call(iter(dataset)).numpy() == 99 * 50
        """,
        ONE_THREAD,
    )


def test_datasets_loops_and_control_flow_in_the_body_finish(stress):
    stress(
        """
        def body(piece, s):
            s = tf.cond(piece[0] > 2, lambda: s + 1, lambda: s)
            _, s = tf.while_loop(lambda k, s: k < 3, lambda k, s: (k + 1, s + piece[0]), (0, s))
            s = s + tf.reduce_sum(tf.map_fn(lambda v: v * 2, piece))
            return s + tf.data.Dataset.range(3).reduce(0.0, lambda a, n: a + tf.cast(n, tf.float32))

        call = tf.function(lambda x: total(body, x))
        expected = sum(3 * k + 2 * k + 3 + (k > 2) for k in range(6))
        results = in_threads([lambda: call(tf.range(6.0))] * 4)
        assert [y.numpy() for y in results] == [expected] * 4
        """,
        ONE_THREAD,
    )


def test_an_asynchronous_body_that_need_not_wait_uses_no_stack(stress):
    stress(
        """
        queue = tf.queue.FIFOQueue(100_000, tf.float32, [[]])
        queue.enqueue_many([tf.ones([100_000])])
        assert repeat(lambda s: s + queue.dequeue(), 0.0, 100_000).numpy() == 100_000
        """
    )


# Cancellation


CANCEL = """
from tensorflow.python.eager import cancellation

def cancelled(function, *arguments, await_middle=await_work):
    manager = cancellation.CancellationManager()
    concrete = tf.function(function).get_concrete_function(*arguments)
    call = manager.get_cancelable_function(concrete)
    outcome = []
    def run():
        try:
            outcome.append(call(*arguments))
        except tf.errors.CancelledError as error:
            outcome.append(error)
    thread = threading.Thread(target=run)
    thread.start()
    await_middle()
    assert thread.is_alive()
    manager.start_cancel()
    thread.join()
    assert isinstance(outcome[0], tf.errors.CancelledError), outcome
    # the next correct call is right
    assert total(lambda p, s: s + p[0], tf.ones([3])).numpy() == 3
"""
FOREVER = 2**40


@threads
def test_loops_are_cancelled_in_the_middle(stress, inter_op):
    stress(
        CANCEL
        + f"""
n = {FOREVER}
for name, function in dict(
    plain=lambda s: repeat(lambda s: s + 1, s, n),
    inner=lambda s: repeat(lambda s: repeat(lambda s: s + 1, s, 1000), s, n),
    outer=lambda s: repeat(lambda s: repeat(lambda s: s + 1, s, n), s, 2),
    random=lambda s: repeat(lambda s: s + tf.random.uniform([]), s, n),
    while_loop=lambda s: tf.while_loop(lambda s: s < 5, lambda s: repeat(lambda s: s, s, n), [s]),
    cond=lambda s: tf.cond(s < 1, lambda: repeat(lambda s: s + 1, s, n), lambda: s),
).items():
    print(name, flush=True)
    cancelled(function, tf.constant(0.0))

begun = tf.queue.FIFOQueue(10, tf.float32, [[]])
empty = tf.queue.FIFOQueue(10, tf.float32, [[]])
def wait(s):
    begun.enqueue(s)
    return s + empty.dequeue()
for name, function in dict(
    waiting=lambda s: repeat(wait, s, 10),
    inner_waiting=lambda s: repeat(lambda s: repeat(wait, s, 2), s, 10),
).items():
    print(name, flush=True)
    cancelled(function, tf.constant(0.0), await_middle=begun.dequeue)
""",
        inter_op,
    )


def test_a_loop_over_constants_is_cancelled_in_the_middle(stress):
    """The graph optimiser folds constants, and must not run the loop for that without end."""
    stress(CANCEL + f"cancelled(lambda: repeat(lambda s: s + 1, 0, {FOREVER}))")


def test_an_error_elsewhere_in_the_function_ends_the_loop(stress):
    stress(
        f"""
        def fail():
            await_work()
            raise ValueError("enough")

        @tf.function
        def call(s):
            return repeat(lambda s: s + 1, s, {FOREVER}), tf.numpy_function(fail, [], tf.int32)

        try:
            call(tf.constant(0))
        except tf.errors.OpError as error:
            assert "enough" in str(error) or isinstance(error, tf.errors.CancelledError), error
        else:
            raise AssertionError("no error")
        """
    )


def test_a_dataset_that_is_dropped_ends_its_loops(stress):
    stress(
        f"""
        dataset = tf.data.Dataset.from_tensors(0).map(
            lambda s: repeat(lambda s: s + 1, s, {FOREVER})).prefetch(1)
        thread = threading.Thread(target=lambda: next(iter(dataset)), daemon=True)
        dataset = tf.data.Dataset.from_tensor_slices([1, {FOREVER}]).map(
            lambda n: repeat(lambda s: s + 1, 0, n), num_parallel_calls=2).prefetch(2)
        iterator = iter(dataset)
        assert next(iterator).numpy() == 1
        await_work()
        del iterator, dataset
        gc.collect()
        assert total(lambda p, s: s + p[0], tf.ones([3])).numpy() == 3
        """
    )


# Memory


@pytest.mark.slow
def test_memory_does_not_grow_over_repeated_calls(stress_alone):
    stress_alone(
        """
        x = tf.ones([16, 100, 1000])  # 6.4 MB
        w = tf.Variable(tf.ones([1000]))
        queue = tf.queue.FIFOQueue(1, tf.float32, [[]])

        def body(piece, s):
            return s + tf.reduce_sum(piece[0] * w)

        def with_queue(piece, s):
            queue.enqueue(1.0)
            return s + tf.reduce_sum(piece[0]) * queue.dequeue()

        def growing(s):
            return tf.concat([s, s[-1:] + 1], 0)
        growing = tf.function(growing, input_signature=[tf.TensorSpec([None, 10_000])])

        def fails(piece, s):
            tf.debugging.assert_less(s, 5e5)
            return s + tf.reduce_sum(piece)

        graph = tf.function(lambda x: total(body, x))
        graph_mapped = tf.function(lambda x: mapped(lambda p: tf.transpose(p, [0, 2, 1]), x))

        def gradient(every):
            with tf.GradientTape() as tape:
                tape.watch(x)
                (y,) = tf_ti.tensor_iterator(
                    body, [x, 0.0], PortMap(SLICE_AND_STATE, LAST), [BackEdge(0, 1)],
                    checkpoint_every=every)
            return tape.gradient(y, [x, w])

        def failing():
            try:
                total(fails, x)
            except tf.errors.InvalidArgumentError:
                return
            raise AssertionError("no error")

        calls = {
            "eager": lambda: total(body, x),
            "function": lambda: graph(x),
            "concat": lambda: graph_mapped(x),
            "queue": lambda: total(with_queue, x),
            "growing": lambda: repeat(growing, tf.ones([1, 10_000]), 30),
            "gradient": lambda: gradient(None),
            "checkpoints": lambda: gradient(4),
            "failing": failing,
        }
        for name, call in calls.items():
            sizes = []
            for _ in range(6):
                for _ in range(4):
                    call()
                sizes.append(resident())
            # An allocator keeps some memory at times; a leak takes more every time.
            grown = min(after - before for before, after in zip(sizes, sizes[1:]))
            assert grown < 4, (name, sizes)
        """
    )


@pytest.mark.slow
def test_a_forward_pass_keeps_no_history(stress_alone):
    stress_alone(
        """
        def call(n):
            return repeat(lambda s: s * 0.5 + 1.0, tf.ones([2**18]), n)

        for run in (call, tf.function(call)):
            run(3)
            before = peak()
            run(1000)  # a history of it would take 1 GB
            assert peak() - before < 50, peak() - before
        """
    )


@pytest.mark.slow
def test_checkpoints_bound_the_memory_of_a_gradient(stress_alone):
    stress_alone(
        """
        def call(n, every):
            s = tf.ones([2**18])
            with tf.GradientTape() as tape:
                tape.watch(s)
                y = repeat(lambda s: tf.sin(s), s, n, checkpoint_every=every)
            return tape.gradient(y, s)

        call(3, 2), call(3, 32)
        before = peak()
        call(1024, 32)  # all states take 1 GB, these 64 MB
        assert peak() - before < 300, peak() - before
        """
    )


# By name: the rows of a state, if they are known, its width, and the next state of it and of `x`.
PRODUCTS = {
    "many rows": (1024, True, 64, "tf.tanh(c @ w + x)"),
    "few rows": (64, True, 256, "tf.tanh(c @ w + x)"),
    "rows unknown": (1024, False, 64, "tf.tanh(c @ w + x)"),
    "wider factor": (64, True, 256, "tf.tanh(tf.nn.relu(c @ v) @ tf.transpose(v) + x)"),
    "wider factor, rows unknown": (64, False, 256, "tf.tanh(tf.nn.relu(c @ v) @ u + x)"),
    "rows of rows": (16, False, 4096, "tf.reshape(tf.reshape(c, [-1, 256]) @ w, [-1, 4096]) + x"),
    "rows of a loop": (1024, False, 64, "tf_ti.scan(lambda d, _: (d @ w, c), c, length=4)[0] + x"),
}


@pytest.mark.parametrize("rows, is_known, width, body", PRODUCTS.values(), ids=PRODUCTS)
def test_checkpoints_bound_the_memory_of_products(stress_alone, rows, is_known, width, body):
    """There are 64 states, of at most 256 kB, and the factors of 32 iterations, of 512 kB."""
    known = rows if is_known else None
    stress_alone(
        f"""
        size = min({width}, 256)
        sizes = (size, size), (size, 4 * size), (4 * size, size)
        w, v, u = (tf.Variable(tf.random.normal(shape) / shape[0]) for shape in sizes)
        s, xs = tf.random.normal([{rows}, {width}]), tf.random.normal([1024, 1, {width}])
        types = [tf.TensorSpec([{known}, {width}]), tf.TensorSpec([None, 1, {width}])]

        @tf.function(input_signature=types)
        def call(s, xs):
            with tf.GradientTape() as tape:
                y = tf_ti.scan(lambda c, x: ({body}, None), s, xs, checkpoint_every=32)[0]
            found = tape.gradient(y, [w, v, u], unconnected_gradients="zero")
            return [tf.reduce_sum(g) for g in found]

        call(s, xs[:64])
        before = peak()
        call(s, xs)
        assert peak() - before < 128, peak() - before  # all factors take 512
        """
    )


@pytest.mark.slow
def test_a_loop_needs_its_output_and_one_iteration(stress_alone):
    stress_alone(
        """
        def call(n):
            return mapped(lambda k: tf.fill([1, 2**18], tf.cast(k[0], tf.float32)), tf.range(n))

        call(2)
        before = peak()
        y = call(256)  # 256 MB
        assert peak() - before < 256 * 1.2 + 20, peak() - before
        """
    )


@pytest.mark.slow
def test_slices_of_an_aligned_input_are_not_copied(stress_alone):
    stress_alone(
        """
        x = tf.ones([4, 2**24])  # 256 MB
        def call(x):
            return total(lambda p, s: s + p[0, 0], x)
        call(x[:, :16])
        before = peak()
        assert call(x).numpy() == 4
        assert peak() - before < 20, peak() - before
        """
    )
