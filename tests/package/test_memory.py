"""Memory that runs out in an op is an error that names it, at each allocation of ours in turn.

No lock, mode or state is left behind: the calls go on in the same process, and are right. Variables
are as they were.
"""

import os
import pathlib
import re
import shutil
import subprocess

import pytest
from patience import SANITIZED, runs_out_of_memory

ROOT = pathlib.Path(__file__).parents[2]
COMMON = ROOT / "tests" / "common"
_COMPILER = shutil.which(os.environ.get("CXX", "g++"))


PRELUDE = f"""
import sys
sys.path.append({str(COMMON)!r})
import numpy as np
import tensorflow as tf
import tf_ti
from failing_memory import run_out

tf.config.threading.set_intra_op_parallelism_threads(4)
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
rng = np.random.default_rng(0)

def numbers(*shape, dtype=np.float32):
    return tf.constant(rng.integers(-8, 8, shape) / 8, dtype)
"""

BAGS = """
# Row 3 comes so often that several threads add it up.
ids = np.concatenate([rng.integers(0, 300, [1500, 4]), np.full([5000, 4], 3)])
few = tf.constant(ids[:8])
weights = numbers(*ids.shape)
for dtype in tf.float32, tf.float16:
    table = tf.Variable(numbers(300, 8, dtype=dtype.as_numpy_dtype))
    given = tf.cast(weights, dtype)
    m, v = tf.Variable(tf.zeros([300, 8])), tf.Variable(tf.zeros([300, 1]))
    for of in few, tf.constant(ids):
        w = given[: len(of)]

        @tf.function
        def slopes(combiner, w):
            with tf.GradientTape(persistent=True) as tape:
                tape.watch([] if w is None else w)
                y = tf_ti.embedding_bag(table, of, w, combiner)
                z = tf.reduce_sum(y * y)
            slope = tape.gradient(z, table)
            slopes = slope.values, slope.indices
            return *slopes, y, *([] if w is None else [tape.gradient(z, w)])

        run_out("weighted mean", lambda: slopes("mean", w))
        run_out("maximum", lambda: slopes("max", None))
        flat = tf.reshape(of, [-1])
        gradient = tf.IndexedSlices(tf.ones([len(flat), 8], dtype), flat, [300, 8])
        run_out("scatter_sub", lambda: tf_ti.scatter_sub(table, gradient, 0.5), [table])
        run_out("scatter_sub that decays",
                lambda: tf_ti.scatter_sub(table, gradient, 0.5, weight_decay=0.25), [table])
        run_out("adam_update", lambda: tf_ti.adam_update(table, m, v, gradient, 0.1, 1),
                [table, m, v])
        run_out("adagrad_update", lambda: tf_ti.adagrad_update(table, m, gradient, 0.1), [table, m])

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(tf_ti.embedding_bag(table, of, combiner="mean"))
            tf_ti.adagrad_update(table, m, tape.gradient(y, table), 0.1)

        run_out("an update by bags", step, [table, m])
    run_out("several tables", lambda: tf_ti.embedding_bags([table, table], [ids, few]))
    run_out("shards", lambda: tf_ti.embedding_bag([table[:150], table[150:]], ids))

table = tf.Variable(numbers(300, 8))
ids = tf.constant(ids)

def anew():
    from tensorflow.python.eager import context
    context.context().clear_kernel_cache()
    return tf_ti.embedding_bag(table, few)

run_out("a new kernel", anew)

@tf.function(jit_compile=True)
def compiled(w):
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(tf_ti.embedding_bag(table, ids, w, "mean"))
    slope = tape.gradient(y, table)
    return y, slope.values

if tf_ti._library.XLA_PROBLEM is None:
    run_out("XLA", lambda: compiled(weights))
"""

LOOPS = """
xs, w = numbers(20, 8), numbers(8, 8)

def f(c, x):
    return tf.tanh(c @ w + x), c * 2.0

def slopes(fuse=True):
    with tf.GradientTape() as tape:
        tape.watch(xs)
        last, ys = tf_ti.scan(f, tf.zeros([1, 8]), xs, fuse=fuse)
        y = tf.reduce_sum(last) + tf.reduce_sum(ys)
    return y, tape.gradient(y, xs)

run_out("a scan by programs", tf.function(slopes))
run_out("a scan by kernels", tf.function(lambda: slopes(False)))
wide = numbers(40, 64, 64)
run_out("a scan that threads share", tf.function(lambda: tf_ti.scan(
    lambda c, x: (tf.exp(tf.tanh(c * 0.5) * x), None), tf.zeros([64, 64]), wide)[0]))

# Other shapes each time, so that all are compiled anew.
calls = 0
many = tf.function(
    lambda x: tf_ti.scan(lambda c, i: (tf.tanh(c) + x, None), x, tf.zeros([12]))[0][:4],
    input_signature=[tf.TensorSpec([None])])

def of_other_shapes():
    global calls
    calls += 1
    return many(tf.ones([10 + calls % 7]))

run_out("a body that is compiled", of_other_shapes)
run_out("a condition", tf.function(lambda: tf_ti.while_loop(
    lambda i, x: tf.reduce_sum(x) < 100, lambda i, x: (i + 1, x * 1.5), (0, tf.ones([5])))))
texts = tf.function(lambda start: tf_ti.scan(
    lambda c, x: (tf.strings.join([c, "a"]), tf.strings.join([c, "b" * 40])),
    start, tf.zeros([9])))

def ranks(x):  # a kernel that no program has, and that is worth a thread
    return tf.cast(tf.unique(tf.tile(tf.reshape(x, [-1]), [6]))[1][-8:], tf.float32)

def in_flight(c, x):
    y = tf.tanh(ranks(x) * 0.01)
    return c * 0.5 + y, (c, ranks(x + 1.0) * y)

few = wide[:12, :32, :32]
run_out("iterations at once", tf.function(lambda: tf_ti.scan(in_flight, tf.zeros([8]), few)))
run_out("strings", lambda: texts(tf.constant("")))

def elsewhere(c, x):
    with tf.device("CPU:1"):
        c = tf.tanh(c + x)
    return c, c

run_out("several devices", tf.function(lambda: tf_ti.scan(elsewhere, tf.zeros([8]), xs)))

@tf.function
def checkpointed():
    with tf.GradientTape() as tape:
        tape.watch(xs)
        y = tf.reduce_sum(tf_ti.scan(f, tf.zeros([1, 8]), xs, checkpoint_every=3)[0])
    return tape.gradient(y, xs)

run_out("checkpoints", checkpointed)

@tf.function
def lanes():
    def one(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf_ti.scan(f, tf.zeros([1, 8]), x)[0])
        return tape.gradient(y, x)
    return tf.vectorized_map(one, tf.stack([xs, xs * 2.0]))

run_out("lanes", lanes)
"""

SEQUENCES = """
def slopes(run, gates, states, dtype, hidden, batch, steps):
    x = numbers(batch, steps, 3, dtype=dtype)
    given = [numbers(batch, 1, hidden, dtype=dtype)] * states
    w, r, b = (numbers(1, gates * hidden, *n, dtype=dtype) for n in ([3], [hidden], []))

    @tf.function(jit_compile=JIT)
    def call():
        with tf.GradientTape() as tape:
            tape.watch([x, w, r])
            y = run(x, *given, None, w, r, b)[0]
            z = tf.reduce_sum(y)
        return y, *tape.gradient(z, [x, w, r])

    return call

for JIT in False, True:
    if JIT and tf_ti._library.XLA_PROBLEM is not None:
        break
    for sizes in (8, 4, 3), (10, 16, 12), (80, 2, 4):
        run_out(f"LSTM {sizes}", slopes(tf_ti.lstm_sequence, 4, 2, np.float32, *sizes))
        run_out(f"GRU {sizes}", slopes(tf_ti.gru_sequence, 3, 1, np.float16, *sizes))
"""


@pytest.fixture(scope="session")
def failing_memory(tmp_path_factory):
    """A library that a process loads first, by which its memory runs out."""
    library = tmp_path_factory.mktemp("memory") / "failing_memory.so"
    flags = ["-O1", "-std=c++17", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    source = COMMON / "failing_memory.cc"
    subprocess.run([_COMPILER, *flags, str(source), "-o", str(library)], check=True)
    return library


@pytest.mark.skipif(_COMPILER is None, reason="no C++ compiler")
@pytest.mark.skipif(SANITIZED, reason="sanitizers have an allocator of their own")
@pytest.mark.parametrize("program", [BAGS, LOOPS, SEQUENCES], ids=["bags", "loops", "sequences"])
def test_memory_may_run_out_anywhere(program, failing_memory, monkeypatch, run_program):
    monkeypatch.setenv("LD_PRELOAD", str(failing_memory))
    run_program(PRELUDE + program, is_first=True)


@runs_out_of_memory
@pytest.mark.slow
def test_an_address_space_that_is_too_small(run_program):
    finished = run_program("""
        import resource
        import tensorflow as tf
        import tf_ti

        table = tf.Variable(tf.ones([1000, 4]))

        def slope(ids):
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(tf_ti.embedding_bag(table, ids, combiner="mean"))
            return tape.gradient(y, table)

        ids = tf.zeros([3_000_000, 4], tf.int32)
        slope(ids[:2])
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + (220 << 20), most))
        try:
            slope(ids)
        except tf.errors.ResourceExhaustedError as error:
            print(error.message)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        values = slope(ids).values.numpy()
        assert values.shape == (1, 4) and (values == 3e6).all(), values
    """)
    assert "out of memory in TfTi>ResourceEmbeddingBagGrad" in finished.stdout


def test_all_kernels_catch_memory_that_runs_out():
    """Their base does, and the executor's and XLA's entries."""
    sources = [p for p in (ROOT / "cc").rglob("*") if p.suffix in (".cc", ".h")]
    for source in sources:
        if source.name in ("kernel.h", "tf2xla.cc"):
            continue
        text = source.read_text("utf-8")
        bases = re.findall(r"public (?:tensorflow::)?\w*OpKernel\b", text)
        assert not bases, (
            f"{source}: kernels derive from SafeKernel or SafeAsyncKernel, not {bases}"
        )
        assert "REGISTER_KERNEL_BUILDER" not in text, f"{source}: TF_TI_REGISTER_KERNEL registers"
        functions = re.findall(r"SetShapeFn\((?!ShapeFunction|tensorflow::shape_inference::)", text)
        assert not functions, f"{source}: ShapeFunction catches memory that runs out"
