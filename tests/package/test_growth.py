"""Memory does not grow with the number of calls, by any entry.

Each entry is called with new shapes, functions and models again and again. The number of calls that
it keeps has a bound, which the first calls reach. From then on the numbers of graphs, functions,
gradient functions and objects stay the same.
"""

import collections
import gc
import pathlib

import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

import tf_ti
from tf_ti import BackEdge, InputPort, LoopOutput, OutputPort, PortMap, TripLimit

keras = pytest.importorskip("keras")

KINDS = ("FuncGraph", "ConcreteFunction", "AtomicFunction")
# The number of calls before the count, where an entry keeps no call, and where it keeps up to 64.
FEW, MOST = 10, 70


def gradient(f, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.nest.flatten(f(x))[0])
    return tape.gradient(y, x)


def activation(k):
    """Custom gradients: TensorFlow's, and new ones, of which one uses a tape."""

    @tf.custom_gradient
    def clipped(v):
        return tf.identity(v), lambda dy: tf.clip_by_norm(dy, 0.1 * k)

    @tf.custom_gradient
    def taped(v):
        with tf.GradientTape() as tape:
            tape.watch(v)
            y = tf.sin(v) * v
        return y, lambda dy: tape.gradient(y, v, dy)

    every = [tf.nn.silu, tf.grad_pass_through(tf.round), tf.recompute_grad(tf.tanh), clipped, taped]
    return every[k % len(every)]


def rows(k):
    return tf.ones([2 + k % 5, 4])


def scan(k):
    f = activation(k)
    return lambda x: tf_ti.scan(lambda c, x: (f(c + x), c), tf.zeros([4]), x)


def nested(k):
    f = activation(k)

    def outer(c, x):
        return tf_ti.scan(lambda c, x: (f(c + x), c), c, x[None])[0], c

    return lambda x: tf_ti.scan(outer, tf.zeros([4]), x)


def in_a_branch(k):
    def body(c, x):
        def activated():
            # A branch's graph stays if a tape refers to it: a collector does not see that.
            return activation(k - k % 5 + k % 4)(c * 1.0)

        return tf.cond(tf.reduce_sum(c) > 0.0, activated, lambda: c + x), x

    return lambda x: tf_ti.scan(body, tf.zeros([4]), x)


def while_loop(k):
    f = activation(k)
    return lambda x: tf_ti.while_loop(lambda i, c: i < 3, lambda i, c: (i + 1, f(c)), (0, x))[1]


def block(k):
    f = activation(k)

    def run(x):
        with tf_ti.Loop() as loop:
            loop.add_trip_limit(2, TripLimit.COUNT)
            h = loop.add_recurrence(tf.zeros([4]))
            h.next = f(h + loop.add_iterator(x[:2]))
            out = loop.add_loop_output(h, LoopOutput.LAST_VALUE)
        return out.tensor

    return run


def iterator(k):
    f = activation(k)
    ports = PortMap([InputPort(0, 0), InputPort(1, 1, axis=0)], [OutputPort(0, 0)])
    return lambda x: tf_ti.tensor_iterator(
        lambda h, x: f(h + x), [tf.zeros([1, 4]), x], ports, [BackEdge(0, 0)]
    )


@tf.function(input_signature=[tf.TensorSpec([]), tf.TensorSpec([None])])
def step(i, c):
    return i + 1.0, c * 1.5


STEP = step.get_concrete_function()


def new_condition(k):
    condition = tf.function(lambda i, c: i < 3.0, input_signature=step.input_signature)
    tf_ti.while_loop(condition.get_concrete_function(), STEP, (0.0, tf.ones([3])))
    tf_ti.while_loop(condition, step, (0.0, tf.ones([3])))


def new_shape(k):
    xs = tf.ones([2, 3 + k])
    tf_ti.scan(STEP, 0.0, xs)
    gradient(lambda xs: tf_ti.scan(STEP, 0.0, xs), xs)


def new_table(k):
    table, ids = tf.Variable(tf.ones([5 + k, 3])), tf.ones([2, 1 + k % 3], tf.int32)
    gradient(lambda w: tf_ti.embedding_bag(table, ids, w), tf.ones(ids.shape))
    tf_ti.embedding_bags([table, table], [ids, ids])


def new_cell(k):
    x, h = tf.ones([2, 1 + k % 4, 3]), tf.zeros([2, 1, 2])

    def run(x):
        w, r, b = tf.ones([1, 6, 3]), tf.ones([1, 6, 2]), tf.ones([1, 6])
        return tf_ti.gru_sequence(x, h, None, w, r, b, clip=1.0 + k)

    gradient(run, x)
    tf.function(run)(x)


def new_layers(k):
    model = keras.Sequential([tf_ti.keras.LSTM(2), keras.layers.Dense(1, activation="silu")])
    gradient(model, tf.ones([2, 1 + k % 4, 3]))
    tf_ti.keras.EmbeddingBag(4 + k, 2)(tf.ones([2, 2], tf.int32))


def new_module(k, folder):
    path = str(pathlib.Path(folder) / "model.xml")
    f = tf.function(
        lambda x: tf_ti.scan(lambda c, x: (tf.tanh(c + x), c), tf.zeros([4]), x),
        input_signature=[tf.TensorSpec([2 + k % 3, 4])],
    )
    tf_ti.openvino.save(f, path)
    tf_ti.openvino.load(path)(tf.ones([2 + k % 3, 4]))


LOOPS = (scan, nested, while_loop, block, iterator)
ENTRIES = {
    **{f"{make.__name__}": (FEW, lambda k, make=make: make(k)(rows(k))) for make in LOOPS},
    "in a branch": (FEW, lambda k: in_a_branch(k)(rows(k))),
    **{
        f"the gradient of {make.__name__}": (FEW, lambda k, make=make: gradient(make(k), rows(k)))
        for make in LOOPS
    },
    "a second gradient": (
        FEW,
        lambda k: gradient(lambda x: gradient(scan(5 * k), x), rows(k)),
    ),
    "a function": (FEW, lambda k: gradient(tf.function(scan(k)), rows(k))),
    "a function that is compiled": (
        FEW,
        lambda k: tf.function(lambda x: gradient(scan(k), x), jit_compile=True)(rows(k)),
    ),
    "a map": (
        FEW,
        lambda k: tf.vectorized_map(lambda x: gradient(scan(k), x), tf.stack([rows(k)] * 2)),
    ),
    "explain": (FEW, lambda k: tf_ti.explain(scan(k), rows(k))),
    "new conditions": (MOST, new_condition),
    "new shapes": (MOST, new_shape),
    "new tables": (FEW, new_table),
    "new cells": (MOST, new_cell),
    "new layers": (FEW, new_layers),
}


def count():
    gc.collect()
    objects = gc.get_objects()
    found = collections.Counter(type(thing).__name__ for thing in objects)
    return {
        "objects": len(objects),
        "gradient functions": len(ops.gradient_registry.list()),
        **{kind: found[kind] for kind in KINDS},
    }


def check_growth(call, before, counted=20):
    for k in range(before):
        call(k)
    first = count()
    for k in range(before, before + counted):
        call(k)
    last = count()
    grown = {kind: last[kind] - first[kind] for kind in first}
    assert grown.pop("objects") < 10 * counted, grown
    assert not any(growth > 0 for growth in grown.values()), grown


@pytest.mark.quarter
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("entry", ENTRIES)
def test_calls_leave_nothing(entry):
    before, call = ENTRIES[entry]
    check_growth(call, before)


def test_modules_leave_nothing(tmp_path):
    check_growth(lambda k: new_module(k, tmp_path), FEW)


@pytest.mark.slow
def test_bytes_do_not_add_up(run_program):
    """C++ keeps things that no Python object stands for."""
    run_program("""
        import gc
        import resource
        import tensorflow as tf
        import tf_ti

        xs = tf.ones([8, 4])

        def call():
            with tf.GradientTape() as tape:
                tape.watch(xs)
                y = tf_ti.scan(lambda c, x: (tf.nn.silu(c + x), c), tf.zeros([4]), xs)[0]
            tape.gradient(y, xs)

        def used():
            gc.collect()
            pages = int(open("/proc/self/statm").read().split()[1])
            return pages * resource.getpagesize()

        for _ in range(200):
            call()
        before = used()
        for _ in range(500):
            call()
        grown = (used() - before) / 500
        assert grown < 40_000, grown  # a graph has 100,000 and more
    """)
