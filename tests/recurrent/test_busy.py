"""Threads that share work where others want their cores: what they compute, and that they end."""

import os
import textwrap

import pytest

pytestmark = pytest.mark.needs_native_sequences

COMMON = f"""
import itertools, subprocess, sys, threading
import numpy as np
import tensorflow as tf

inter_op, intra_op, num_busy = map(int, sys.argv[1:4])
tf.config.threading.set_inter_op_parallelism_threads(inter_op)
tf.config.threading.set_intra_op_parallelism_threads(intra_op)
sys.path.append({os.path.dirname(__file__)!r})
from recurrent_programs import *

SPIN = '''
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(9999): pass
'''
for _ in range(num_busy):
    subprocess.Popen([sys.executable, "-c", SPIN])
"""
BUSY = 4  # processes on whatever cores there are

RESULTS = """
# By units: a step's product is shared. By rows: many of them, of few units. Then neither.
for kind, shape in itertools.product(KINDS, [(1, 12, 64, 256), (16, 12, 64, 128), (40, 30, 8, 40)]):
    for dtype in (np.float32, np.float64):
        given = tensors(kind, *shape, dtype)
        lengths = {"lengths": [i % (shape[1] + 1) for i in range(shape[0])]}
        mask = {"mask": np.random.default_rng(1).random(shape[:2]) < 0.5}
        for options in ({}, lengths, mask):
            print(kind, shape, dtype.__name__, digest(with_gradients(kind, *given, **options)))

rng = np.random.default_rng(0)
rows, width, bags = 20_000, 64, 2000
ids = tf.constant(rng.integers(0, rows, [bags, 20]))
values = rng.standard_normal([rows, width]).astype(np.float32)
for combiner in ("sum", "mean", "sqrtn", "max"):
    for repeat in range(3):
        table = tf.Variable(values)
        with tf.GradientTape() as tape:
            pooled = tf_ti.embedding_bag(table, ids, combiner=combiner)
            loss = tf.reduce_sum(tf.sin(pooled))
        gradient = tape.gradient(loss, table)
        tf_ti.scatter_sub(table, gradient, 0.1)
        print(combiner, digest([pooled, gradient.values, gradient.indices, table]))
"""


@pytest.fixture(scope="module")
def digests():
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("threads, busy", [(1, 0), (2, BUSY), (8, BUSY)])
def test_results_do_not_depend_on_who_wants_the_cores(threads, busy, digests, run_program):
    finished = run_program(COMMON + RESULTS, 4, threads, busy)
    digests.setdefault("all", finished.stdout)
    assert finished.stdout == digests["all"]
    lines = finished.stdout.splitlines()
    assert len(lines) == 4 * 3 * 2 * 3 + 4 * 3
    assert len(set(lines)) == 4 * 3 * 2 * 3 + 4


@pytest.mark.slow
@pytest.mark.parametrize("inter_op, intra_op", [(1, 1), (1, 2), (4, 2)])
def test_several_sessions_threads_and_datasets_share_busy_cores(inter_op, intra_op, run_program):
    run_program(
        COMMON
        + textwrap.dedent("""
        given = tensors("gru", 4, 30, 16, 96, np.float32)
        expected = run("gru", given[0], given[1:-3], *given[-3:])[0].numpy()
        errors = []

        def check(found):
            if not np.array_equal(found, expected):
                errors.append(found)

        function = tf.function(lambda: run("gru", given[0], given[1:-3], *given[-3:])[0])

        def call_function():
            for _ in range(20):
                check(function().numpy())

        def call_session():
            with tf.Graph().as_default():
                values = [value.numpy() for value in given]
                # Constants would be folded, and the sequence run once.
                inputs = [tf.compat.v1.placeholder(tf.float32, value.shape) for value in values]
                y = run("gru", inputs[0], inputs[1:-3], *inputs[-3:])[0]
                config = tf.compat.v1.ConfigProto(
                    use_per_session_threads=True,
                    inter_op_parallelism_threads=inter_op,
                    intra_op_parallelism_threads=intra_op,
                )
                with tf.compat.v1.Session(config=config) as session:
                    for _ in range(20):
                        check(session.run(y, dict(zip(inputs, values))))

        def iterate():
            dataset = tf.data.Dataset.range(20).map(
                lambda _: run("gru", given[0], given[1:-3], *given[-3:])[0],
                num_parallel_calls=3,
            )
            for y in dataset:
                check(y.numpy())

        targets = [call_function, call_function, call_session, call_session, iterate]
        threads = [threading.Thread(target=target) for target in targets]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not errors, len(errors)
        """),
        inter_op,
        intra_op,
        BUSY,
    )


@pytest.mark.slow
def test_a_pool_that_takes_no_more_work_is_done_without(run_program):
    """Eigen's pool, where its queue is full, runs at once on the calling thread."""
    run_program(
        COMMON
        + textwrap.dedent("""
        given = tensors("lstm", 1, 3, 8, 256, np.float32)
        sequence = tf.function(lambda: run("lstm", given[0], given[1:-3], *given[-3:])[0])
        expected = sequence().numpy()
        matrices = tf.constant(np.random.default_rng(0).standard_normal([4, 900, 900]))
        begins, is_over = threading.Event(), threading.Event()

        def block():
            begins.set()
            tf.linalg.svd(matrices, compute_uv=False)  # for seconds, in which no thread comes
            is_over.set()

        threading.Thread(target=block).start()
        begins.wait()
        num_calls = 0
        while num_calls < 5000 or not is_over.is_set():
            assert np.array_equal(sequence(), expected)
            num_calls += 1
        """),
        4,
        2,
        0,
    )


@pytest.mark.slow
def test_a_sequence_is_cancelled_while_others_have_the_cores(run_program):
    run_program(
        COMMON
        + textwrap.dedent("""
        import time
        from tensorflow.python.eager import cancellation

        def cancel(batch, hidden, steps):
            x, *others = arrays("lstm", batch, 1, 1, hidden, np.float32)
            sequence = tf.function(lambda x: run("lstm", x, *others)[1]).get_concrete_function(
                tf.TensorSpec([batch, None, 1]))
            sequence(tf.zeros([batch, 10, 1]))
            manager = cancellation.CancellationManager()
            call = manager.get_cancelable_function(sequence)
            outcome = []

            def target():
                try:
                    call(tf.zeros([batch, steps, 1]))
                    outcome.append("it ran to its end")
                except tf.errors.CancelledError as error:
                    outcome.append(error)

            thread = threading.Thread(target=target)
            middle = time.process_time() + 0.3
            thread.start()
            while time.process_time() < middle:
                time.sleep(0.001)
            manager.start_cancel()
            thread.join()
            assert isinstance(outcome[0], tf.errors.CancelledError), (batch, hidden, outcome)

        for _ in range(3):
            cancel(1, 256, 2_000_000)
            cancel(32, 64, 500_000)
        """),
        2,
        2,
        BUSY,
    )
