"""Operations that stay in a loop since programs run them there, and those that leave it anyway."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti.loops import passes

pytestmark = pytest.mark.needs_programs

T, B, N, H = 5, 2, 3, 4
PLAIN = ("Placeholder", "Const", "Identity", "NoOp")


def normal(*shape, dtype=tf.float32, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), dtype)


XS, W, R, V = normal(T, B, N), normal(N, H, seed=1), normal(H, H, seed=2), normal(H, 7, seed=3)
INIT = tf.zeros([B, H])


def types(operations):
    return dict(collections.Counter(op.type for op in operations if op.type not in PLAIN))


def look(f, init=INIT, xs=XS, **options):
    """The types of the operations of a scan's body, and of those around it."""
    call = tf.function(lambda init, xs: tf_ti.scan(f, init, xs), **options)
    graph = call.get_concrete_function(init, xs).graph
    (loop,) = (op for op in graph.get_operations() if op.type.startswith("TfTi>"))
    body = graph._get_function(loop.get_attr("body").name).graph
    around = types(op for op in graph.get_operations() if op is not loop)
    return types(body.get_operations()), around


def compare(f, init=INIT, xs=XS):
    """The scan and its gradients, with and without fuse."""

    def run(fuse):
        def call(init, xs):
            given = tf.nest.flatten((init, xs))
            with tf.GradientTape() as tape:
                tape.watch(given)
                found = tf.nest.flatten(tf_ti.scan(f, init, xs, fuse=fuse))
                loss = tf.add_n([tf.reduce_sum(tf.sin(t)) for t in found if t is not None])
            return found, tape.gradient(loss, given, unconnected_gradients="zero")

        return tf.function(call)(init, xs)

    for found, expected in zip(*(tf.nest.flatten(run(fuse)) for fuse in (True, False))):
        assert (found is None) == (expected is None)
        if found is not None:
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def advantages(advantage, x):
    delta, goes_on = x
    advantage = delta + 0.99 * 0.95 * goes_on * advantage
    return advantage, advantage


def biquad(state, x):
    z1, z2 = state
    y = 0.2 * x + z1
    return (0.3 * x + 0.4 * y + z2, 0.2 * x - 0.1 * y), y


def norm(x):
    return (x - tf.reduce_mean(x, -1, keepdims=True)) * tf.constant(2.0)


def norm_cell(h, x):
    h = tf.tanh(norm(x @ W) + norm(h @ R))
    return h, h


@pytest.mark.parametrize(
    "f, init, xs",
    [
        (advantages, tf.zeros([8]), (normal(T, 8), normal(T, 8, seed=1))),
        (biquad, (tf.zeros([2]), tf.zeros([2])), normal(T, 2)),
    ],
)
def test_elementwise_operations_stay(f, init, xs):
    assert look(f, init, xs)[1] == {}
    compare(f, init, xs)


def test_a_product_leaves_and_what_reads_it_stays():
    body, around = look(norm_cell)
    assert around == {"MatMul": 1, "Reshape": 2}
    assert body == {"MatMul": 1, "Mean": 2, "Sub": 2, "Mul": 2, "AddV2": 1, "Tanh": 1}
    compare(norm_cell)


def test_what_a_product_reads_leaves_with_it():
    def f(h, x):
        return tf.tanh(tf.exp(x) @ W + h @ R) + tf.exp(x[:, :1]), None

    body, around = look(f)
    assert (around["Exp"], around["MatMul"]) == (1, 1)
    assert (body["Exp"], body["MatMul"]) == (1, 1)
    compare(f)


def test_a_product_after_the_loop_leaves_with_all_that_reads_it():
    def f(h, x):
        h = tf.tanh(h + x[:, :1])
        return h, tf.nn.softmax(tf.nn.relu(h) @ V)

    body, around = look(f)
    assert "Relu" in body and "MatMul" not in body
    assert (around["MatMul"], around["Softmax"]) == (1, 1)
    compare(f)


def test_an_operation_that_no_program_runs_leaves_with_what_it_reads():
    def f(h, x):
        return h + tf.exp(tf.math.lgamma(tf.square(x)))[:, :1], None

    body, around = look(f)
    assert around == {"Square": 1, "Lgamma": 1}
    assert body["Exp"] == 1
    compare(f)


def test_what_is_large_leaves():
    def f(c, x):
        return c + tf.reduce_sum(tf.exp(x)), None

    for size, leaves in ((2**22, False), (2**22 + 1, True)):
        body, around = look(f, tf.zeros([]), normal(2, size))
        assert ("Exp" in around, "Exp" in body) == (leaves, not leaves)


def test_what_a_program_would_run_leaves_where_kernels_run_the_core():
    def f(h, x):
        return tf.math.lgamma(h) + tf.exp(x)[:, :1], None

    assert look(f)[1]["Exp"] == 1


def test_what_a_program_would_run_leaves_where_a_type_is_none_of_programs():
    def f(h, x):
        return h + tf.exp(x)[:, :1], None

    assert "Exp" in look(f)[0]
    numbers = tf.cast(INIT, tf.complex64), tf.cast(XS, tf.complex64)
    assert "Exp" in look(f, *numbers)[1]


def test_under_xla_elementwise_operations_leave():
    def f(h, x):
        return h + tf.exp(x)[:, :1], None

    assert "Exp" in look(f, jit_compile=True)[1]


def test_without_programs_elementwise_operations_leave(monkeypatch):
    monkeypatch.setenv("TF_TI_PROGRAM", "0")
    assert "Exp" in look(lambda h, x: (h + tf.exp(x)[:, :1], None))[1]


def test_where_the_batch_is_not_known_elementwise_operations_stay():
    def f(h, x):
        return h + tf.exp(x), None

    spec = tf.TensorSpec([None, N]), tf.TensorSpec([T, None, N])
    assert look(f, *spec)[1] == {}


def test_a_loop_without_a_core_leaves_no_loop():
    call = tf.function(lambda xs: tf_ti.scan(lambda c, x: (c, tf.exp(x)), None, xs)[1])
    operations = call.get_concrete_function(XS).graph.get_operations()
    assert not [op for op in operations if op.type.startswith("TfTi>")]


def test_a_note_says_why_an_operation_stays(monkeypatch):
    outcomes, run = [], passes.run

    def noting(*arguments, **options):
        outcomes.append(run(*arguments, **options))
        return outcomes[-1]

    monkeypatch.setattr(passes, "run", noting)
    tf.function(lambda: tf_ti.scan(lambda h, x: (h + tf.exp(x), None), XS[0], XS))()
    (note,) = (note for note in outcomes[-1].notes if not note.is_done and note.name == "fission")
    assert note.text == "programs run it in the loop in less time"
    assert [mention.type for mention in note.operations] == ["Exp"]
