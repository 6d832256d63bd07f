"""Explanations of loops: what they say, that it is so, and that their cures are cures."""

import functools
import html
import json
import re
from xml.etree import ElementTree

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import BackEdge, InputPort, OutputPort, PortMap

T, B, N, H = 5, 2, 3, 4


def normal(*shape, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float32)


W, R, P = normal(N, 4 * H), normal(H, 4 * H, seed=1), normal(H, seed=2)
Z = tf.zeros([B, H])
XS = tf.TensorSpec([T, B, N])
ANY = tf.TensorSpec([None, B, N])
MASK = tf.TensorSpec([T, B], tf.bool)


def gates(h, x, peephole=0.0):
    i, f, g, o = tf.split(x @ W + h @ R, 4, 1)
    return tf.sigmoid(i + peephole), tf.sigmoid(f + peephole), tf.tanh(g), tf.sigmoid(o)


def lstm(states, x, peephole=0.0, limit=lambda c: c):
    h, c = states
    i, f, g, o = gates(h, x, peephole)
    c = limit(f * c + i * g)
    return o * tf.tanh(c), c


def gru(h, x):
    z, r, n = tf.split(x @ W[:, : 3 * H], 3, 1)
    hz, hr, hn = tf.split(h @ R[:, : 3 * H], 3, 1)
    z, r = tf.sigmoid(z + hz), tf.sigmoid(r + hr)
    h = z * h + (1 - z) * tf.tanh(n + r * hn)
    return h, h


def rnn(h, x):
    h = tf.tanh(x @ W[:, :H] + h @ R[:, :H])
    return h, h


def scan(f, init=(Z, Z), **options):
    return lambda xs: tf_ti.scan(f, init, xs, **options)


def of_gradient(function):
    def gradient(xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            loss = tf.reduce_sum(function(xs)[0])
        return tape.gradient(loss, xs)

    return gradient


def with_counter(states, x):
    h, c, step = states
    h, c = lstm((h, c), x)
    return (h, c, step + 1), h


def returns_cell_state(states, x):
    h, c = lstm(states, x)
    return (h, c), c


def returns_gate(states, x):
    return lstm(states, x), gates(states[0], x)[0]


def masked(states, x):
    x, mask = x
    made = lstm(states, x)
    kept = tuple(tf.where(mask[:, None], new, old) for new, old in zip(made, states))
    return kept, kept[0]


def held_by_numbers(states, element):
    (h, c), (x, m) = states, element
    (new_h, new_c), _ = plain(states, x)
    m = tf.cast(m, tf.float32)[:, tf.newaxis]
    return (m * new_h + (1.0 - m) * h, c + m * (new_c - c)), None


def half_masked(states, x):
    (h, c), y = masked(states, x)
    return (h, lstm(states, x[0])[1]), y


def limited(states, x):
    h, c = lstm(states, x, limit=lambda c: tf.clip_by_value(c, -3.0, 3.0))
    return (h, c), h


def with_peepholes(states, x):
    h, c = lstm(states, x, peephole=P * states[1])
    return (h, c), h


def normalised(h, x):
    h, _ = rnn(h, x)
    return h - tf.reduce_mean(h, axis=1, keepdims=True), None


def dropped(h, x):
    h, _ = rnn(h, x)
    return tf.nn.dropout(h, 0.5), None


def printing(h, x):
    tf.print(h)
    return rnn(h, x)


def plain(states, x):
    h, c = lstm(states, x)
    return (h, c), h


def returns(advantage, x):
    advantage = x + 0.9 * advantage
    return advantage, advantage


def of_bytes(h, x):
    return h + tf.cast(tf.cast(h, tf.int8), tf.float32), x


def diagonal(m, x):
    return m + tf.linalg.diag(m[0]), tf.linalg.trace(m)


def complex_numbers(h, x):
    return h * tf.complex(0.0, 1.0), None


def large(h, x):
    return h + tf.reduce_sum(tf.fill([3000, 3000], h[0])), None


def branching(h, x):
    return tf.cond(tf.reduce_sum(h) > 0, lambda: h + x[:, :1], lambda: h - x[:, :1]), None


def nested(h, x):
    inner, _ = tf_ti.scan(lambda g, _: (tf.sin(g), None), h, length=3, name="inner")
    return h + inner, None


def iterated(xs):
    ports = PortMap(
        [InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0), OutputPort(1, 0, axis=0)]
    )
    return tf_ti.tensor_iterator(
        lambda x, h: tf.exp(h) + x, [xs, tf.zeros([1, B, N])], ports, [BackEdge(0, 1)]
    )


def counted_block(xs):
    with tf_ti.Loop("Layer") as loop:
        x = loop.add_iterator(xs)
        h = loop.add_recurrence(Z)
        loop.add_trip_limit(tf.shape(xs)[0], "count")
        h.next = rnn(h.value, x)[0]
        last = loop.add_loop_output(h, "last_value")
    return last.tensor


def repeated(xs):
    return tf_ti.while_loop(
        lambda k, h: k < 5, lambda k, h: (k + 1, tf.sin(h)), (0, tf.reduce_sum(xs))
    )


def halved(x):
    return tf_ti.while_loop(lambda x: tf.reduce_max(tf.abs(x)) > 1.0, lambda x: (x * 0.5,), (x,))


def of_tensorflow(xs):
    return tf.while_loop(lambda k, h: k < 5, lambda k, h: (k + 1, h * 2.0), (0, Z))


def outside_alone(xs):
    return tf_ti.scan(lambda h, x: (h, tf.exp(x @ W)), 0.0, xs)[1]


A_SEQUENCE = "runs as one sequence of {} cells"
# By name: a function, its arguments, and what its explanation says.
BODIES = {
    "an LSTM": (scan(plain), [ANY], [A_SEQUENCE.format("LSTM")]),
    "a GRU": (scan(gru, Z), [ANY], [A_SEQUENCE.format("GRU")]),
    "a plain cell": (scan(rnn, Z), [ANY], [A_SEQUENCE.format("RNN")]),
    "a counter of steps": (
        scan(with_counter, (Z, Z, 0)),
        [ANY],
        [A_SEQUENCE.format("LSTM"), "before it, for all iterations: AddV2 'add_"],
    ),
    "a length that the slices tell": (
        lambda xs: tf_ti.scan(plain, (Z, Z), xs, length=tf.shape(xs)[0]),
        [ANY],
        [A_SEQUENCE.format("LSTM")],
    ),
    "a Loop with such a count": (counted_block, [ANY], ["Layer (", A_SEQUENCE.format("RNN")]),
    "cell states of all steps": (
        scan(returns_cell_state),
        [XS],
        ["ys has the cell states of all steps", "Return the hidden state alone"],
    ),
    "a gate of all steps": (
        scan(returns_gate),
        [XS],
        ["ys follows neither from the hidden states nor from slices: Sigmoid", "Compute ys from"],
    ),
    "states that a mask holds": (
        lambda xs, mask: tf_ti.scan(masked, (Z, Z), (xs, mask)),
        [XS, MASK],
        [A_SEQUENCE.format("LSTM")],
    ),
    "one state that a mask holds": (
        lambda xs, mask: tf_ti.scan(half_masked, (Z, Z), (xs, mask)),
        [XS, MASK],
        ["cells have no SelectV2 of states: SelectV2 'SelectV2", "Let one mask hold all states"],
    ),
    "states that numbers hold": (
        lambda xs, mask: tf_ti.scan(held_by_numbers, (Z, Z), (xs, mask)),
        [XS, MASK],
        ["a factor of no gate, as in m * new + (1 - m) * old", "If m is 0 or 1", "tf.where(mask"],
    ),
    "a limited cell state": (
        scan(limited),
        [XS],
        ["a maximum with another number than 0: Maximum", "Without this limit"],
    ),
    "peepholes": (scan(with_peepholes), [XS], ["as peepholes do", "Without it the loop may be"]),
    "layer normalisation": (
        scan(normalised, Z),
        [XS],
        ["cells have no Mean of states: Mean", "runs as one program of"],
    ),
    "slices of which the numbers are unknown": (
        lambda xs, zs: tf_ti.scan(
            lambda h, x: (tf.tanh(x[0] @ W[:, :H] + x[1] + h @ R[:, :H]), None), Z, (xs, zs)
        ),
        [ANY, tf.TensorSpec([None, B, H])],
        ["nobody would compare its numbers of iterations", "known number of steps"],
    ),
    "a third state": (
        scan(lambda s, x: ((*lstm(s[:2], x), s[2] * 0.5), None), (Z, Z, Z)),
        [XS],
        ["it has 3 states, and cells have one or two: init[0], init[1], init[2]"],
    ),
    "checkpoints": (
        scan(plain, checkpoint_every=2),
        [XS],
        ["checkpoint_every asks for less", "take checkpoint_every themselves"],
    ),
    "random numbers": (
        scan(dropped, Z),
        [XS],
        [
            "it draws random numbers, or has other effects",
            "one by one: no program has it: RandomUniform",
            "Draw the numbers of all iterations before the loop",
        ],
    ),
    "printing": (scan(printing, Z), [XS], ["PrintV2", "look at them after the loop"]),
    "a recurrence of numbers": (
        scan(returns, tf.zeros([B, N])),
        [XS],
        ["runs as one program of 2 operations", "no recurrent sequence"],
    ),
    "bytes": (
        scan(of_bytes, Z),
        [XS],
        ["programs of 1 operation, and 2 by", "programs have no int8: Cast", "int32 and int64 run"],
    ),
    "an operation without instructions": (
        scan(diagonal, tf.eye(3)),
        [XS],
        ["one by one: no program has it: MatrixDiagV3"],
    ),
    "complex numbers": (
        scan(complex_numbers, tf.complex(Z, Z)),
        [XS],
        ["programs have no complex64: Mul"],
    ),
    "large arrays": (scan(large, tf.zeros([2])), [XS], ["its arrays are too large for a program"]),
    "a small conditional": (scan(branching, tf.zeros([B, 1])), [XS], ["runs as one program"]),
    "lanes of rows": (
        scan(lambda h, x: (tf.nn.softmax(h * x), h), tf.zeros([64, 128])),
        [tf.TensorSpec([500, 64, 128])],
        ["lanes: 64 along dimension 0 of init, "],
    ),
    "lanes of columns": (
        scan(lambda h, x: (tf.roll(h, 1, 0) * x, h), tf.zeros([64, 128])),
        [tf.TensorSpec([500, 64, 128])],
        ["lanes: 128 along dimension 1 of init, "],
    ),
    "lanes of a batch that is not known": (
        scan(lambda h, x: (h * x, h), tf.zeros([64])),
        [tf.TensorSpec([500, None])],
        ["lanes: depend on shapes that are not known before a call"],
    ),
    "lanes in the way of each other": (
        scan(lambda h, x: (h + tf.transpose(h) * x, None), tf.zeros([3, 3])),
        [tf.TensorSpec([T])],
        ["no lanes: it pairs dimension 0 of init with another dimension: AddV2"],
    ),
    "the operation that pairs, and no other": (
        scan(
            lambda h, x: (tf.tanh(h) + tf.transpose(tf.tanh(h), name="paired"), x), tf.zeros([3, 3])
        ),
        [tf.TensorSpec([T])],
        ["no lanes: it pairs dimension 0 of init with another dimension: AddV2"],
    ),
    "functions of many numbers": (
        scan(lambda h, x: (tf.cos(h) * x, None), tf.zeros([64, 64])),
        [tf.TensorSpec([T])],
        ["programs of 1 operation, and 1 by", "one by one: more numbers than 1024", "Cos 'Cos'"],
    ),
    "a large product": (
        scan(lambda h, x: (tf.abs(h @ tf.ones([64, 64])) * x, None), tf.zeros([2000, 64])),
        [tf.TensorSpec([T])],
        ["and 1 by TensorFlow's kernels", "more products of numbers than 1048576: MatMul"],
    ),
    "lanes beside numbers that TensorFlow computes before": (
        scan(lambda h, x: (tf.tanh(h + x * tf.range(64.0)[:, None]), None), tf.zeros([64, 64])),
        [tf.TensorSpec([500, 64, 64])],
        ["lanes: 64 along dimension 1 of init"],
    ),
    "rows that move": (
        scan(lambda h, x: (tf.roll(h, 1, 0) * x, None), tf.zeros([3])),
        [tf.TensorSpec([T])],
        ["no lanes: it takes, moves or joins parts of dimension 0 of init: Roll"],
    ),
    "rows that a maximum joins": (
        scan(lambda h, x: (h - tf.reduce_max(h), None), tf.zeros([3])),
        [XS],
        ["no lanes: the loop goes on with what it makes of all of dimension 0 of init: Max"],
    ),
    "a maximum that is written": (
        scan(lambda h, x: (h * 2.0, tf.reduce_max(h)), tf.zeros([3])),
        [XS],
        ["no lanes: the loop writes out what it makes of all of dimension 0 of init: Max"],
    ),
    "a maximum beside a sum that is written": (
        scan(lambda h, x: (h - tf.reduce_max(h), tf.reduce_sum(h)), tf.zeros([3])),
        [XS],
        ["no lanes: the loop goes on with what it makes of all of dimension 0 of init: Max"],
    ),
    "a constant that the body returns": (
        scan(lambda h, x: (h * 2.0, tf.ones([2]) * 3.0), tf.zeros([3])),
        [XS],
        ["one program of 1 operation", "the body returns a constant as ys", "outside of the loop"],
    ),
    "operations of constants": (
        scan(lambda h, x: (tf.tanh(h @ tf.linalg.inv(tf.eye(3)) + x) - h, None), tf.zeros([B, N])),
        [XS],
        ["runs as one program of 4 operations", "lanes: 2 along dimension 0 of init, all at once"],
    ),
    "rows of a constant": (
        lambda xs: tf_ti.scan(
            lambda h, x: (h * tf.constant([1.0, 2.0, 3.0]) * x, None), tf.zeros([3]), xs
        ),
        [tf.TensorSpec([T])],
        [
            "no lanes: a constant is not the same along dimension 0",
            "Make it a tensor before the loop",
        ],
    ),
    "rows that a condition reads": (
        lambda xs: tf_ti.while_loop(
            lambda h: tf.reduce_max(h) < 9.0, lambda h: [h * 2.0], [xs[:1]]
        ),
        [XS],
        ["no lanes: the condition reads all of loop_vars", "a state of one value"],
    ),
    "no fusion": (scan(plain, fuse=False), [XS], ["TensorFlow's kernels, one by one: fuse=False"]),
    "a loop inside": (
        scan(nested, tf.zeros([4])),
        [XS],
        [
            "runs as one program of ",
            "\n  inner (",
            "\n    runs as a part of the program of the loop",
        ],
    ),
    "a loop inside that kernels run": (
        scan(
            lambda h, x: (tf_ti.scan(lambda g, y: (g + y, None), h, x, fuse=False)[0], None),
            tf.zeros([N]),
        ),
        [XS],
        ["one by one: it is a loop with fuse=False", "\n    runs as TensorFlow's kernels"],
    ),
    "a loop inside with an operation that no program has": (
        scan(
            lambda h, x: (tf_ti.scan(lambda g, y: (tf.sort(g) + y, None), h, x)[0], None),
            tf.zeros([N]),
        ),
        [XS],
        ["one by one: it is a loop with TopKV2: no program has it"],
    ),
    "the gradient of a loop inside that only a condition ends": (
        of_gradient(
            scan(
                lambda h, x: (
                    tf_ti.while_loop(
                        lambda h: tf.reduce_sum(h * h) > 0.5, lambda h: (tf.sin(h),), (h + x[0],)
                    )[0],
                    None,
                ),
                tf.zeros([N]),
            )
        ),
        [XS],
        ["one by one: it is a loop that only a condition ends", "Give it maximum_iterations"],
    ),
    "a loop inside that takes long": (
        scan(
            lambda h, x: (tf_ti.scan(lambda g, _: (tf.sin(g), None), h, length=99999)[0], x[0]),
            tf.zeros([N]),
        ),
        [XS],
        ["one by one: a loop that takes long, and runs on its own"],
    ),
    "nothing of the loop's own": (
        outside_alone,
        [XS],
        ["before it, for all iterations: ", "MatMul", "Exp"],
    ),
    "a TensorIterator": (iterated, [XS], ["TensorIterator (", "one program of 2 operations"]),
    "a while loop": (halved, [XS], ["its condition is of the values", "a count in its place"]),
    "a while loop that counts": (repeated, [XS], ["counted: loop_vars[0] from 0 to 5"]),
    "a loop of TensorFlow's": (
        of_tensorflow,
        [XS],
        ["runs as TensorFlow's While", "tf_ti.while_loop takes the arguments of tf.while_loop"],
    ),
}


@pytest.mark.needs_programs
@pytest.mark.parametrize("name", BODIES)
def test_an_explanation_says(name):
    function, specs, words = BODIES[name]
    text = str(tf_ti.explain(tf.function(function), *specs))
    assert [word for word in words if word not in text] == [], text
    assert "test_explain.py, line" in text.splitlines()[0]


# By the name of a body that is no sequence: what its cure says to do.
CURED = {
    "cell states of all steps": (scan(plain), [XS]),
    "a gate of all steps": (scan(lambda s, x: (lstm(s, x), tf.sigmoid(x @ W))), [XS]),
    "one state that a mask holds": (BODIES["states that a mask holds"][0], [XS, MASK]),
    "a limited cell state": (scan(plain), [XS]),
    "peepholes": (scan(plain), [XS]),
    "slices of which the numbers are unknown": (
        BODIES["slices of which the numbers are unknown"][0],
        [XS, tf.TensorSpec([T, B, H])],
    ),
    "random numbers": (
        lambda xs: tf_ti.scan(
            lambda h, x: (tf.tanh(x[0] @ W[:, :H] + x[1] + h @ R[:, :H]), None),
            Z,
            (xs, tf.random.normal([T, B, H])),
        ),
        [XS],
    ),
    "printing": (scan(rnn, Z), [XS]),
}


@pytest.mark.parametrize("name", CURED)
def test_who_follows_a_cure_has_a_sequence(name):
    function, specs, _ = BODIES[name]
    (before,) = tf_ti.explain(function, *specs)
    assert before.no_sequence.cure and "sequence" not in before.runs_as
    (after,) = tf_ti.explain(CURED[name][0], *CURED[name][1])
    assert after.runs_as.startswith("one sequence of ") and after.no_sequence is None


# --- what is explained ---------------------------------------------------------------------------


def test_nothing_runs():
    ran = []

    @tf.function
    def function(x):
        tf.py_function(lambda: ran.append(1), [], [])
        return tf_ti.scan(returns, tf.zeros([B, N]), x)

    assert len(tf_ti.explain(function, XS).loops) == 1
    assert not ran


@pytest.mark.needs_programs
def test_groups_are_a_guess_where_a_limit_is_not_known(monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")

    def call(h, limit):
        return tf_ti.while_loop(
            lambda t, h: t < 9.0,
            lambda t, h: (t + 1.0, tf.tanh(h)),
            (0.0, h),
            maximum_iterations=limit,
        )

    h, unknown = tf.TensorSpec([256, 128]), tf.TensorSpec([], tf.int32)
    lanes = [tf_ti.explain(call, h, limit).loops[0].lanes for limit in (None, 100, unknown, 5)]
    told = "256 along dimension 0 of loop_vars[1], "
    groups = f"{told}in 6 groups"
    assert lanes == [groups, groups, f"{groups} if the loop is long", f"{told}all at once"]


def test_functions_of_all_kinds():
    function = tf.function(scan(plain))
    with_signature = tf.function(scan(plain), input_signature=[XS])
    expected = "one sequence of LSTM cells"
    for explanation in (
        tf_ti.explain(scan(plain), XS),
        tf_ti.explain(scan(plain), normal(T, B, N)),
        tf_ti.explain(function, xs=XS),
        tf_ti.explain(function.get_concrete_function(XS)),
        tf_ti.explain(with_signature),
        tf_ti.explain(tf.function(scan(plain), jit_compile=True), XS),
        tf_ti.explain(lambda xs: function(xs), XS),
    ):
        (loop,) = explanation.loops
        assert loop.runs_as == expected
        assert str(explanation) == str(loop)


def test_loops_in_branches_and_in_functions_that_are_called_twice():
    function = tf.function(scan(returns, tf.zeros([B, N]), name="called"))

    def branching(xs):
        return tf.cond(
            tf.reduce_sum(xs) > 0,
            lambda: function(xs)[1],
            lambda: tf_ti.scan(gru, Z, xs, name="branch")[1][..., :N] + function(xs)[1],
        )

    names = sorted(loop.name for loop in tf_ti.explain(branching, XS))
    assert names == ["called", "cond/branch"]


@pytest.mark.needs_programs
def test_a_gradient_has_loops_too():
    @tf.function
    def train(xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            loss = tf.reduce_sum(tf_ti.scan(returns, tf.zeros([B, N]), xs)[1])
        return tape.gradient(loss, xs)

    forward, backward = tf_ti.explain(train, XS)
    assert forward.name == "scan" and backward.name.startswith("gradient of a loop")
    assert backward.runs_as.startswith("one program of ") and backward.no_sequence is None


def test_a_function_under_xla():
    compiled = tf.function(scan(returns, tf.zeros([B, N])), jit_compile=True)
    (loop,) = tf_ti.explain(compiled, XS)
    assert loop.runs_as == "XLA's code"


def test_no_programs(monkeypatch):
    monkeypatch.setenv("TF_TI_PROGRAM", "0")
    (loop,) = tf_ti.explain(scan(returns, tf.zeros([B, N])), XS)
    assert loop.runs_as == "TensorFlow's kernels, one by one: TF_TI_PROGRAM is 0"


def test_the_places_of_what_a_block_and_a_tf_function_copy():
    body = tf.function(rnn)  # line of the body, not of the loop
    (loop,) = tf_ti.explain(lambda xs: tf_ti.scan(body, Z, xs, checkpoint_every=2), XS)
    line = rnn.__code__.co_firstlineno + 1
    assert {m.operation.place for m in loop.moved} == {f"test_explain.py, line {line}"}


@pytest.mark.needs_native_sequences
def test_a_keras_model():
    model = keras.Sequential(
        [
            keras.layers.Input([None], dtype="int32"),
            keras.layers.Embedding(20, N),
            keras.layers.Bidirectional(tf_ti.keras.LSTM(H, return_sequences=True), name="both"),
            keras.layers.GRU(H, use_cudnn=False, name="of_keras"),
        ]
    )
    *ours, theirs = tf_ti.explain(model)
    assert [loop.runs_as for loop in ours] == ["one sequence of LSTM cells"] * 2
    assert all("/both" in loop.name for loop in ours)
    assert "of_keras" in theirs.name and theirs.runs_as.startswith("TensorFlow's While")
    assert "tf_ti.keras.convert" in theirs.no_sequence.cure
    given = tf_ti.explain(model, tf.TensorSpec([7, 9], tf.int32))
    assert given.loops[0].recorded.size.bytes is not None


@pytest.mark.needs_native_sequences
def test_a_keras_model_of_several_inputs():
    a, b = keras.Input([T, N], name="a"), keras.Input([T, N], name="b")
    total = keras.layers.Add()([a, b])
    for inputs in ([a, b], {"a": a, "b": b}, {"b": b, "a": a}, (b, a)):
        model = keras.Model(inputs, tf_ti.keras.GRU(H)(total))
        (loop,) = tf_ti.explain(model)
        assert loop.runs_as == "one sequence of GRU cells"


@pytest.mark.needs_native_sequences
def test_the_inputs_of_a_keras_model_keep_their_structure():
    numbers, events = keras.Input([3], name="numbers"), keras.Input([None, N], name="events")
    made = keras.layers.Concatenate()([numbers, tf_ti.keras.GRU(H)(events)])
    for inputs in ({"numbers": numbers, "events": events}, [events, numbers]):
        assert len(tf_ti.explain(keras.Model(inputs, made)).loops) == 1


def test_a_saved_model_does_not_say_why(tmp_path):
    module = tf.Module()
    for f, init in ((normalised, Z), (nested, tf.zeros([4]))):
        last = functools.partial(lambda f, init, xs: scan(f, init)(xs)[0], f, init)
        setattr(module, f.__name__, tf.function(last, input_signature=[XS]))
    tf.saved_model.save(module, tmp_path, signatures={"a": module.normalised, "b": module.nested})
    loaded = tf.saved_model.load(tmp_path)
    (loop,) = tf_ti.explain(loaded.normalised)
    assert loop.runs_as == tf_ti.explain(module.normalised).loops[0].runs_as
    assert loop.no_sequence.text == "unknown: saved" and loop.place == ""
    assert "unknown: saved" in str(loop)
    assert str(loop.recorded) == str(tf_ti.explain(module.normalised).loops[0].recorded)
    first, second = tf_ti.explain(loaded)
    assert (len(first.inner), len(second.inner)) == (0, 1)


@pytest.mark.needs_programs
def test_of_many_operations_the_first_are_listed():
    def f(h, x):
        for k in range(9):
            h = h + tf.linalg.diag_part(h[:, tf.newaxis] * k)
        return h, None

    (loop,) = tf_ti.explain(scan(f, tf.zeros([3, 1])), XS)
    assert len(loop.one_by_one) == 9
    line = next(line for line in str(loop).splitlines() if "one by one" in line)
    assert line.count("MatrixDiagPartV3") == 6 and line.endswith(" and 3 more")


def test_no_loops():
    explanation = tf_ti.explain(tf.sin, tf.TensorSpec([3]))
    assert explanation.loops == () and str(explanation) == "no loops"


@pytest.mark.parametrize("function", [None, 3, "model", keras.Model])
def test_what_is_no_function_is_refused(function):
    with pytest.raises(TypeError):
        tf_ti.explain(function)


def test_a_concrete_function_takes_no_arguments():
    function = tf.function(scan(plain)).get_concrete_function(XS)
    with pytest.raises(TypeError, match="traced already"):
        tf_ti.explain(function, XS)


# --- memory --------------------------------------------------------------------------------------


def value_of(formula, iterations, shapes):
    """A formula's number of bytes."""
    names = re.findall(r"shape\((.*?)\)", formula)
    formula = re.sub(r"shape\((.*?)\)", lambda found: f"shape({json.dumps(found[1])})", formula)
    assert set(names) <= set(shapes)
    return eval(formula, {"iterations": iterations, "shape": shapes.__getitem__})


def test_the_states_of_all_iterations_are_recorded():
    def f(states, x):
        a, b = states
        return (a * 2.0 + x[0, 0], b + 1.5), None

    init = (tf.zeros([6, 5]), tf.zeros([3], tf.float64))
    (loop,) = tf_ti.explain(scan(f, init), XS)
    assert loop.recorded.size.bytes == T * (6 * 5 * 4 + 3 * 8)
    (loop,) = tf_ti.explain(lambda x: tf_ti.scan(f, init, x, checkpoint_every=2), XS)
    assert loop.recorded.size.bytes == (3 + 2) * (6 * 5 * 4 + 3 * 8)


def test_checkpoints_that_would_take_least_are_named():
    (loop,) = tf_ti.explain(scan(returns, tf.zeros([B, N])), tf.TensorSpec([10_000, B, N]))
    assert loop.recorded.best_checkpoint_every == 100
    state = B * N * 4
    sizes = [loop.recorded.with_checkpoints(k).bytes for k in range(1, 1000)]
    assert min(sizes) == sizes[99] == 200 * state
    assert str(loop.recorded) == "240 kB; checkpoint_every=100: 4.8 kB"


def test_unknown_extents_are_in_a_formula():
    def f(h, x):
        return tf.sin(h) + x, h

    def call(xs, init):
        return tf_ti.scan(f, init, xs)

    unknown = tf.TensorSpec([None, None, N]), tf.TensorSpec([None, N])
    (loop,) = tf_ti.explain(call, *unknown)
    assert loop.recorded.size.bytes is None
    formula = loop.recorded.size.formula
    known = tf.TensorSpec([9, 7, N]), tf.TensorSpec([7, N])
    (exact,) = tf_ti.explain(call, *known)
    assert value_of(formula, 9, {"init": [7, N]}) == exact.recorded.size.bytes == 9 * 7 * N * 4
    assert "checkpoint_every=k" in str(loop.recorded)


def test_random_numbers_are_recorded_in_each_iteration():
    def f(h, x):
        return h + tf.random.normal([B, N]) * x, None

    options = {"checkpoint_every": 2}
    (loop,) = tf_ti.explain(lambda x: tf_ti.scan(f, tf.zeros([B, N]), x, **options), XS)
    assert loop.recorded.size.bytes == (3 + 2 + T) * B * N * 4


@pytest.mark.parametrize("f, init, values", [(plain, (Z, Z), 5), (gru, Z, 4), (rnn, Z, 1)])
def test_a_sequence_saves_activated_gates_and_cell_states(f, init, values):
    (loop,) = tf_ti.explain(scan(f, init), XS)
    assert loop.recorded.size.bytes == T * B * H * 4 * values
    (loop,) = tf_ti.explain(scan(f, init), ANY)
    assert value_of(loop.recorded.size.formula, T, {}) == T * B * H * 4 * values


def test_a_sequence_of_any_sizes_saves_what_these_say():
    def cells(x, h, w, r):
        return tf_ti.rnn_sequence(x, h, None, w, r, None)[0]

    open_, empty = tf.TensorSpec([None, None, N]), tf.TensorSpec([0, T, N])
    for x, h, names in (
        (open_, [None, 1, None], ["shape(x)[0]", "shape(h)[1]"]),
        (open_, [None, 1, H], ["shape(x)[0]"]),
        (empty, [0, 1, H], []),
    ):
        specs = x, tf.TensorSpec(h), tf.TensorSpec([1, h[2], N]), tf.TensorSpec([1, h[2], h[2]])
        (loop,) = tf_ti.explain(cells, *specs)
        formula = loop.recorded.size.formula
        assert all(name in formula for name in names) and formula.count("shape(") >= len(names)
        assert names or loop.recorded.size.bytes == 0


def test_an_array_that_is_written_by_elements_is_recorded_once():
    def f(carry, x):
        array, k, h = carry
        h = h * 0.5 + array.read(k)
        return (array.write(k + 1, h), k + 1, h), None

    def call(xs):
        array = tf.TensorArray(tf.float32, T + 1, element_shape=[N], clear_after_read=False)
        return tf_ti.scan(f, (array.write(0, tf.ones([N])), 0, tf.ones([N])), xs)[0][0].stack()

    (loop,) = tf_ti.explain(call, XS)
    assert loop.recorded.size.bytes == T * (N * 4 + N * 4)  # h, and what was read; k only counts


def test_of_an_array_that_is_read_whole_all_versions_are_recorded():
    def f(carry, x):
        array, k = carry
        total = tf.reduce_sum(tf.sin(array.stack()))
        return (array.write(k, x[0] * total), k + 1), None

    def call(xs):
        array = tf.TensorArray(tf.float32, T, element_shape=[N], clear_after_read=False)
        return tf_ti.scan(f, (array, 0), xs)[0][0].stack()

    (loop,) = tf_ti.explain(call, XS)
    formula = loop.recorded.size.formula
    assert f"{32 * T} * length(init[0])" in formula


@pytest.mark.parametrize("is_in_a_loop", [False, True])
def test_what_vectorized_map_does_row_by_row_has_its_own_cure(is_in_a_loop):
    def look_up(z, b):
        if is_in_a_loop:
            return tf_ti.scan(lambda z, b: (b[z], b[z]), z, b)[1]
        return b[0][z]

    def call(z, b):
        return tf.vectorized_map(lambda e: look_up(*e), (z, b))

    text = str(tf_ti.explain(call, tf.TensorSpec([8], tf.int32), tf.zeros([8, T, 6], tf.int32)))
    assert "/pfor/while" in text and "tf.gather(x, k) in place of x[k]" in text
    assert "tf_ti.while_loop" not in text


def test_without_states_nothing_is_recorded():
    (loop,) = tf_ti.explain(lambda xs: tf_ti.scan(lambda h, x: (h, tf.exp(x @ W)), (), xs), XS)
    assert loop.recorded is None and "records" not in str(loop)


# --- places --------------------------------------------------------------------------------------


@pytest.mark.needs_programs
def test_operations_are_counted_by_place():
    def f(h, x):
        h = tf.tanh(tf.exp(x) @ (W[:, :H] * 2.0) + h) + tf.linalg.diag_part(h[:, None])[:, :1]
        return h, tf.nn.softmax(h @ R)

    (loop,) = tf_ti.explain(scan(f, Z), XS)
    moved = [moved.place.split(",")[0].split(" ")[0] for moved in loop.moved]
    for place in ("once", "before", "after"):
        assert loop.operations.get(place, 0) == moved.count(place) > 0
    assert loop.operations["kernels"] == len(loop.one_by_one)
    assert f"programs of {loop.operations['programs']} operations" in loop.runs_as


@pytest.mark.needs_programs
def test_a_notebook_shows_the_text_and_the_operations_by_place():
    explanation = tf_ti.explain(
        lambda xs: (tf_ti.scan(nested, tf.zeros([4]), xs), scan(rnn, Z)(xs)[0]), XS
    )
    picture = explanation._repr_svg_()
    root = ElementTree.fromstring(picture)
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    titles = [loop.title for outer in explanation for loop in outer.with_inner()]
    assert len(titles) == 3 and all(title in words for title in titles)
    assert "sequence" in words and "programs" in words
    shown = explanation._repr_html_()
    assert shown.startswith("<pre>") and shown.endswith(picture)
    assert html.unescape(shown.split("</pre>")[0].removeprefix("<pre>")) == str(explanation)
    assert tf_ti.explain(tf.sin, tf.TensorSpec([3]))._repr_svg_() is None


def test_a_sequence_counts_the_operations_that_it_stands_for():
    (loop,) = tf_ti.explain(scan(rnn, Z), XS)
    # Two slices of weights, two products, a sum and an activation.
    assert loop.operations == {"sequence": 6}
