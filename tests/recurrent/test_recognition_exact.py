"""Recognition does not change gradients at corners, infinities, NaN, nor factors near 1.

The oracles are the bodies themselves, one call after the other, and NumPy.
"""

import functools
import itertools
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti.recurrent import ops, unfused

pytestmark = pytest.mark.quarter

SEQUENCE = "TfTi>RecurrentSequence"
INF, NAN = np.inf, np.nan
# Around the limits of all functions below, where 0.2 v + 0.5 and (v + 3) / 6 have theirs too.
# Sums of them are exact.
TINY = 2.0**-20
VALUES = [-INF, -4, -3, -2.5, -1, -0.5, -TINY, -0.0, 0, TINY, 0.5, 1, 1.5, 2.5, 3, 4, 6, INF, NAN]
LIMITED = {
    "maximum(v, 0)": lambda v: tf.maximum(v, 0),
    "maximum(0, v)": lambda v: tf.maximum(tf.constant(0, v.dtype), v),
    "maximum(v, zeros)": lambda v: tf.maximum(v, tf.zeros_like(v)),
    "relu": tf.nn.relu,
    "leaky_relu": lambda v: tf.nn.leaky_relu(v, 0.25),
    "leaky_relu of 0": lambda v: tf.nn.leaky_relu(v, 0.0),
    "leaky_relu above 1": lambda v: tf.nn.leaky_relu(v, 2.0),
}
UNIT = {
    "clip(v)": lambda v: tf.clip_by_value(v, 0, 1),
    "clip((v + 1) / 2)": lambda v: tf.clip_by_value((v + 1) / 2, 0, 1),
    "clip(v / 5 + 1 / 2)": lambda v: tf.clip_by_value(0.2 * v + 0.5, 0, 1),
    "ClipByValue": lambda v: tf.raw_ops.ClipByValue(
        t=v / 4 + 0.25,
        clip_value_min=tf.constant(0, v.dtype),
        clip_value_max=tf.constant(1, v.dtype),
    ),
    "clip(v, 0, 3) / 3": lambda v: tf.clip_by_value(v, 0, 3) / 3,
    "minimum(relu(v), 1)": lambda v: tf.minimum(tf.nn.relu(v), 1),
    "minimum(1, relu(v))": lambda v: tf.minimum(tf.constant(1, v.dtype), tf.nn.relu(v)),
    "relu(minimum(v, 1))": lambda v: tf.nn.relu(tf.minimum(v, 1)),
    "minimum(1, maximum(0, v))": lambda v: tf.minimum(
        tf.constant(1, v.dtype), tf.maximum(tf.constant(0, v.dtype), v)
    ),
    "maximum(minimum(v, 1), 0)": lambda v: tf.maximum(tf.minimum(v, 1), 0),
    "maximum(0, minimum(v, 1))": lambda v: tf.maximum(tf.constant(0, v.dtype), tf.minimum(v, 1)),
    "hard_sigmoid of Keras": keras.activations.hard_sigmoid,
    "relu6(v + 3) * (1 / 6)": lambda v: tf.nn.relu6(v + 3) * (1 / 6),
    "relu6(v) / 6": lambda v: tf.nn.relu6(v) / 6,
}
# Of others 1 minus it is another function: at the other limit its gradient goes on.
SYMMETRIC = ["clip(v)", "clip(v / 5 + 1 / 2)", "ClipByValue", "hard_sigmoid of Keras"]
ALL = LIMITED | UNIT | {"sigmoid": tf.sigmoid, "tanh": tf.tanh}
# RNNs have any; gates those between 0 and 1; candidates and cell states any.
CASES = [
    *(("rnn", name) for name in ALL if name != "sigmoid"),
    *((kind, name) for kind in ("lstm", "gru", "gru after") for name in UNIT),
    *(("gru exchanged", name) for name in SYMMETRIC),
    *((f"{kind}'s candidate", name) for kind in ("lstm", "gru") for name in LIMITED | UNIT),
]
GATES = {"rnn": 1, "lstm": 4, "gru": 3}


def body_of(kind, act):
    """A cell; what goes into `act` is what is given, and (but for NaN) nothing from the state."""
    kind, _, is_candidate = kind.partition("'")
    gate, other = (tf.sigmoid, act) if is_candidate else (act, tf.tanh)
    squash = act if is_candidate and act in LIMITED.values() else tf.tanh

    def matrix(columns, reaches, dtype):
        return tf.constant(
            [[1] * columns, [-1] * columns] if reaches else [[0] * columns] * 2, dtype
        )

    def step(states, e):
        h, dtype = states[0], e.dtype
        # Of two equal units nothing comes; but a difference is rounded, and a tie may be none.
        of_gates, of_candidate = matrix(2, is_candidate, dtype), matrix(2, not is_candidate, dtype)
        if kind == "rnn":
            new = [act(e + h @ matrix(2, False, dtype))]
        elif kind == "lstm":
            f, i, g, o = tf.split(e, 4, 1)
            f, i, o = (gate(v + h @ of_gates) for v in (f, i, o))
            c = f * states[1] + i * other(g + h @ of_candidate)
            new = [o * squash(c), c]
        else:
            z, r, n = tf.split(e, 3, 1)
            z, r = (gate(v + h @ of_gates) for v in (z, r))
            if kind == "gru after":
                n = other(n + r * (h @ of_candidate))
            else:
                n = other(n + (r * h) @ of_candidate)
            new = [(1 - z) * h + z * n if kind == "gru exchanged" else z * h + (1 - z) * n]
        return new, new[0]

    return step


def given_of(kind, dtype, values=VALUES):
    """x of two steps and states; each value meets each other."""
    gates = GATES[kind.split("'")[0].split()[0]]
    rng = np.random.default_rng(0)
    pairs = np.array([*itertools.product(values, repeat=2)]).T  # [2, rows]
    rows = pairs.shape[1]
    by_gate = [pairs, *(np.stack([rng.permutation(p) for p in pairs]) for _ in range(3))]
    x = np.repeat(np.stack(by_gate[:gates], -1), 2, -1)  # two equal units
    states = [np.full([rows, 2], value) for value in (0, 1)[: 1 + kind.startswith("lstm")]]
    return [tf.constant(array, dtype) for array in (x, *states)]


def with_gradients(run, x, *states):
    """The results of run, and gradients of their sums."""
    with tf.GradientTape() as tape:
        tape.watch([x, *states])
        last, y = run(list(states), x)
        loss = tf.reduce_sum(y) + tf.add_n([tf.reduce_sum(state) for state in last])
    return [y, *last, *tape.gradient(loss, [x, *states], unconnected_gradients="zero")]


def one_after_the_other(step, states, x):
    """The same without a loop, in TensorFlow's operations."""
    outputs = []
    for e in tf.unstack(x):
        states, y = step(states, e)
        outputs.append(y)
    return states, tf.stack(outputs)


def is_known(function, *given):
    graph = function.get_concrete_function(*given).graph
    functions = [f.graph for f in graph._functions.values()]
    return SEQUENCE in {op.type for g in (graph, *functions) for op in g.get_operations()}


def assert_same(found, right, tolerance=None):
    for a, e in zip(found, right, strict=True):
        tolerance = tolerance or (1e-9 if e.dtype == tf.float64 else 5e-5)
        a, e = (tf.cast(t, tf.float64).numpy() for t in (a, e))
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda value: value)
def test_corners_infinities_and_nan(kind, name):
    step, dtype = body_of(kind, ALL[name]), tf.float64 if len(name) % 2 else tf.float32
    given = given_of(kind, dtype)
    right = with_gradients(functools.partial(one_after_the_other, step), *given)
    fused = functools.partial(with_gradients, functools.partial(tf_ti.scan, step))
    in_graph = tf.function(fused, autograph=False)
    assert is_known(in_graph, *given) and not np.isnan(right[0]).all()
    assert_same(in_graph(*given), right)
    if kind == "rnn":
        assert_same(fused(*given), right)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("rnn", "maximum(v, 0)"),
        ("rnn", "relu"),
        ("rnn", "minimum(relu(v), 1)"),
        ("lstm", "clip((v + 1) / 2)"),
        ("lstm", "hard_sigmoid of Keras"),
        ("lstm's candidate", "maximum(0, v)"),
        ("gru after", "maximum(0, minimum(v, 1))"),
        ("gru exchanged", "clip(v)"),
    ],
    ids=lambda value: value,
)
def test_corners_compiled(kind, name):
    step = body_of(kind, ALL[name])
    values = VALUES[:8:3] + VALUES[8:]
    clip = tf.function(lambda v: tf.clip_by_value(v, 0.0, 1.0), jit_compile=True)
    if not np.isnan(clip(tf.fill([16], NAN))).all():  # XLA of TensorFlow 2.20 loses it
        values = [value for value in values if np.isfinite(value)]
    given = given_of(kind, tf.float32, values)
    fused, right = (
        tf.function(functools.partial(with_gradients, run), jit_compile=True, autograph=False)
        for run in (
            functools.partial(tf_ti.scan, step),
            functools.partial(one_after_the_other, step),
        )
    )
    assert is_known(fused, *given)
    assert_same(fused(*given), right(*given))


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda d: d.name)
def test_corners_of_halves(kind, dtype):
    step = body_of(kind, UNIT["clip((v + 1) / 2)"])
    given = given_of(kind, dtype, [-4, -1, 0, 1, 4, INF, NAN])
    fused = tf.function(functools.partial(with_gradients, functools.partial(tf_ti.scan, step)))
    assert is_known(fused, *given)
    right = with_gradients(functools.partial(one_after_the_other, step), *given)
    assert_same(fused(*given), right, 0.03)


@pytest.mark.slow
def test_second_gradients_at_a_corner():
    step = body_of("lstm", UNIT["clip((v + 1) / 2)"])
    x, *states = given_of("lstm", tf.float64, [-1, 0, 0.5, 1])

    def second(run, x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                last, y = run(step, states, x)
                loss = tf.reduce_sum(y * y) + tf.reduce_sum(last[1])
            first = tf.reduce_sum(tf.sin(inner.gradient(loss, x)))
        return outer.gradient(first, x)

    right = second(one_after_the_other, x)
    assert np.abs(right).max() > 0
    assert_same([tf.function(second)(tf_ti.scan, x)], [right], 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["baseline", "avx2"])
def test_lesser_instruction_sets_do_the_same_at_corners(name, run_program):
    chosen = CASES[:: 5 if name == "baseline" else 6]
    run_program(
        f"""
import os, sys
os.environ["TF_TI_INSTRUCTION_SET"] = "{name}"
sys.path.append({os.path.dirname(__file__)!r})
import tensorflow as tf
from test_recognition_exact import *

for kind, name in {chosen}:
    step = body_of(kind, ALL[name])
    for dtype in (tf.float32, tf.float64):
        given = given_of(kind, dtype)
        right = with_gradients(functools.partial(one_after_the_other, step), *given)
        assert_same(with_gradients(functools.partial(tf_ti.scan, step), *given), right)
"""
    )


# --- the public sequences ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("name", ["relu", "hard_sigmoid", "leaky_relu"])
def test_sequences_agree_with_their_loop_at_corners(kind, name, monkeypatch):
    """And with NumPy: at their limits relu and hard_sigmoid have the slope 0."""
    states = 2 if kind == "lstm" else 1
    x, *_ = given_of(kind, tf.float64, [-4, -3, -2.5, -1, 0, 1, 2.5, 3, 4])
    x = tf.transpose(x, [1, 0, 2])[:, :1]
    batch, width = x.shape[0], x.shape[2]
    count = {"lstm": 3, "gru": 2, "rnn": 1}[kind]
    weights = tf.eye(width, dtype=x.dtype)[None], tf.zeros([1, width, 2], x.dtype)
    bias = tf.zeros([1, width], x.dtype)
    for alpha in (0.2, 1 / 6, 0.25):

        def run(alpha=alpha):
            given = [tf.ones([batch, 1, 2], x.dtype)] * states
            with tf.GradientTape() as tape:
                tape.watch(x)
                options = {"activations": [name] * count, "activations_alpha": [alpha] * count}
                y, *_ = getattr(tf_ti, f"{kind}_sequence")(
                    x, *given, None, *weights, bias, **options
                )
            return y, tape.gradient(y, x)

        found = run()
        with monkeypatch.context() as patch:
            patch.setattr(ops, "run", unfused.run)
            assert_same(found, run(), 1e-12)
        if kind == "rnn":
            v = x.numpy()
            slope = {
                "relu": v > 0,
                "leaky_relu": np.where(v > 0, 1, alpha),
                "hard_sigmoid": alpha * ((v > -0.5 / alpha) & (v < 0.5 / alpha)),
            }[name]
            np.testing.assert_allclose(found[1], slope, rtol=1e-12)


@pytest.mark.parametrize("alpha", [1e-30, 1e30])
def test_the_slope_of_a_tanh_that_is_scaled_by_far(alpha):
    x = tf.constant([[[0.5]], [[20.0]]])
    one, zero = tf.ones([1, 1, 1]), tf.zeros([2, 1, 1])
    options = {"activations": ["scaled_tanh"], "activations_alpha": [alpha]}
    with tf.GradientTape() as tape:
        tape.watch(x)
        y, _ = tf_ti.rnn_sequence(x, zero, None, one, 0 * one, zero[0], **options)
    right = alpha * (1 - np.tanh([0.5, 20]) ** 2)
    np.testing.assert_allclose(np.ravel(tape.gradient(y, x)), right, rtol=1e-5, atol=1e-7 * alpha)


@pytest.mark.parametrize("kind", ["lstm", "gru", "gru after", "rnn"])
def test_sequences_at_infinity_are_those_of_their_loop(kind, monkeypatch):
    """A sigmoid of -infinity is 0, times an infinite state NaN; an infinite candidate stays."""
    options = {"linear_before_reset": True} if kind == "gru after" else {}
    kind = kind.split()[0]
    width = 2 * GATES[kind]
    options["activations"] = ["sigmoid", "relu", "tanh"][: {"lstm": 3, "gru": 2, "rnn": 1}[kind]]
    x, *_ = given_of(kind, tf.float32, [-INF, -90, -1, 0, 1, 90, INF, NAN])
    x = tf.transpose(x, [1, 0, 2])
    states = [tf.fill([x.shape[0], 1, 2], s) for s in (0.0, INF)[: 1 + (kind == "lstm")]]
    rows = width + 2 * ("linear_before_reset" in options)
    bias = tf.zeros([rows])

    def run():
        # x is projected already: with weights of 0, infinity makes NaN of all.
        spec = tf_ti.recurrent.spec.CellSpec.of(kind, **options).replace(transpose_weights=False)
        given = [state[:, 0] for state in states]
        y, last = ops.run(spec, x, given, None, tf.zeros([2, width]), bias)
        return [y, *last]

    found = run()
    monkeypatch.setattr(ops, "run", unfused.run)
    assert_same(found, run(), 1e-5)


# --- factors -------------------------------------------------------------------------------------

PRECISION = {tf.float64: 52, tf.float32: 23, tf.float16: 10, tf.bfloat16: 7}  # bits after the point
WITH_A_FACTOR = {
    "rnn": lambda k, v: k * tf.tanh(v[0]),
    "lstm's forget gate": lambda k, v: (k * v[0] * v[4] + v[1] * v[2], v[3]),
    "lstm's input gate": lambda k, v: (v[0] * v[4] + k * v[1] * v[2], v[3]),
    "lstm's output gate": lambda k, v: (v[0] * v[4] + v[1] * v[2], k * v[3]),
    "gru's update gate": lambda k, v: k * v[0] * v[3] + (1 - v[0]) * v[2],
    "gru's 1": lambda k, v: v[0] * v[3] + (k - v[0]) * v[2],
    "gru's 1 - z": lambda k, v: v[0] * v[3] + (1 - k * v[0]) * v[2],
    "gru's candidate": lambda k, v: v[0] * v[3] + k * (1 - v[0]) * v[2],
    "gru, exchanged": lambda k, v: v[3] + v[0] * (v[2] - k * v[3]),
}


def body_with_a_factor(kind, factor, dtype):
    rng = np.random.default_rng(3)
    width = 2 * GATES[kind.split("'")[0].split(",")[0]]
    r = tf.constant(0.5 * rng.normal(size=[2, width]), dtype)
    combine, k = WITH_A_FACTOR[kind], factor

    def step(states, e):
        h, pre = states[0], e + states[0] @ r
        if kind == "rnn":
            new = [combine(k, [pre])]
        elif kind.startswith("lstm"):
            f, i, g, o = tf.split(pre, 4, 1)
            gates = tf.sigmoid(f), tf.sigmoid(i), tf.tanh(g), tf.sigmoid(o), states[1]
            c, out = combine(k, gates)
            new = [out * tf.tanh(c), c]
        else:
            ez, er, en = tf.split(e, 3, 1)
            hz, hr, hn = tf.split(h @ r, 3, 1)
            new = [combine(k, [tf.sigmoid(ez + hz), 0, tf.tanh(en + tf.sigmoid(er + hr) * hn), h])]
        return new, new[0]

    return step


def given_with_a_factor(kind, dtype, steps):
    rng = np.random.default_rng(4)
    width = 2 * GATES[kind.split("'")[0].split(",")[0]]
    x = tf.constant(rng.normal(size=[steps, 3, width]), dtype)
    return x, *[tf.ones([3, 2], dtype)] * (1 + kind.startswith("lstm"))


@pytest.mark.parametrize("dtype", PRECISION, ids=lambda d: d.name)
@pytest.mark.parametrize("kind", WITH_A_FACTOR)
def test_only_what_is_1_is_1(kind, dtype):
    given = given_with_a_factor(kind, dtype, 2)
    last = 2.0 ** -PRECISION[dtype]
    for factor in (1.0, 1 - last / 8, 1 - last / 2, 1 + last, 1 - 9e-7, -1.0):
        step = body_with_a_factor(kind, factor, dtype)
        call = tf.function(lambda x, *states, step=step: tf_ti.scan(step, list(states), x))
        is_one = float(tf.cast(tf.constant(factor, dtype), tf.float64)) == 1
        assert is_known(call, *given) == is_one, factor


@pytest.mark.parametrize("kind", WITH_A_FACTOR)
def test_what_is_nearly_1_counts_after_many_steps(kind):
    given = given_with_a_factor(kind, tf.float64, 3000)
    step = body_with_a_factor(kind, 1 - 9e-7, tf.float64)
    found, right = (
        tf.function(lambda x, *states, fuse=fuse: tf_ti.scan(step, list(states), x, fuse=fuse))
        for fuse in (True, False)
    )
    for a, e in zip(*(tf.nest.flatten(f(*given)) for f in (found, right)), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-11)


BIG = 1.5 * 2**23  # what is added to it becomes an integer
NOT_THE_SAME = {
    "a sum that rounds": lambda v, m: tf.tanh((v + BIG) - BIG),
    "a difference that rounds": lambda v, m: tf.tanh(BIG - (BIG - v)),
    "a sum of thousands": lambda v, m: tf.tanh((v + 4096.0) - 4095.5),
    "a sum with a tensor that rounds": lambda v, m: tf.tanh((v + m) - m),
    "a product that overflows": lambda v, m: tf.tanh(v * 1e30 * 1e30 * 1e-30 * 1e-30),
    "a product that vanishes": lambda v, m: tf.tanh(v * 1e-30 * 1e-30 * 1e30 * 1e30),
    "a quotient that overflows": lambda v, m: tf.tanh(v / 1e-30 / 1e-30 * 1e-30 * 1e-30),
    "0 times NaN": lambda v, m: tf.tanh(v + 0.0 * (v + NAN)),
    "0 times infinity": lambda v, m: tf.tanh(v + 0.0 * (m + INF)),
    "zeros times a state": lambda v, m: tf.tanh(v) + tf.zeros_like(v) * (v + INF),
    "infinity less infinity": lambda v, m: tf.tanh((v + INF) - INF),
    "infinity": lambda v, m: tf.tanh(v + INF),
    "NaN": lambda v, m: tf.tanh(v + NAN),
    "0.1 ten times": lambda v, m: 10.0 * (0.1 * tf.tanh(v)),
    "a third three times": lambda v, m: 3.0 * (tf.tanh(v) / 3.0),
    "a limit beside its place": lambda v, m: tf.clip_by_value(v, 0, 49) / 49,
    "a zero that is negative": lambda v, m: tf.maximum(v, -0.0),
}


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "jit"])
@pytest.mark.parametrize("name", NOT_THE_SAME)
def test_algebra_that_numbers_do_not_have(name, jit):
    if jit and name.startswith(("a sum that", "a difference", "a product")):
        pytest.skip("XLA does that itself")
    rng, act = np.random.default_rng(5), NOT_THE_SAME[name]
    r, m = tf.constant([[0.5, -1], [2, 1]]), tf.constant([[BIG, BIG + 2]])
    x = tf.constant(
        np.concatenate([3 * rng.normal(size=[3, 4, 2]), np.full([1, 4, 2], 49)]), tf.float32
    )

    def step(h, e):
        h = act(e + h @ r, m)
        return h, h

    def run(fuse, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf_ti.scan(step, tf.zeros([4, 2]), x, fuse=fuse)[1]
        return y, tape.gradient(y, x)

    found, right = (
        tf.function(functools.partial(run, fuse), jit_compile=jit)(x) for fuse in (True, False)
    )
    assert_same(found, right)


@pytest.mark.parametrize("n", range(20))
def test_random_factors(n):
    """A polynomial's factors, of which a cell is made or not: values are those of the loop."""
    rng = np.random.default_rng(n)
    numbers = [1, 1, 1, 1, 1, 0.5, 2, -1, 3, 1 / 3, 0.1, 1 - 2**-24, 1 + 2**-23]
    a, b, c, d, e = (float(rng.choice(numbers)) for _ in range(5))
    kind = str(rng.choice(["rnn", "gru", "lstm"]))
    print(n, kind, a, b, c, d, e)
    x = tf.constant(rng.normal(size=[50, 3, 2 * GATES[kind]]), tf.float32)
    r = tf.constant(rng.normal(size=[2, 2 * GATES[kind]]), tf.float32)

    def step(states, v):
        h = states[0]
        if kind == "rnn":
            new = [a * (b * tf.tanh(c * v + d * (h @ (e * r))))]
        elif kind == "lstm":
            f, i, g, o = tf.split(a * (v + h @ r), 4, 1)
            cell = b * (c * tf.sigmoid(f)) * states[1] + tf.sigmoid(i) * tf.tanh(g) * d
            new = [tf.sigmoid(o) * tf.tanh(cell) / e, cell]
        else:
            vz, vr, vn = tf.split(v, 3, 1)
            hz, hr, hn = tf.split(h @ r, 3, 1)
            z = a * tf.sigmoid(vz - b * hz)
            n = tf.tanh(c * vn + tf.sigmoid(vr + hr) * hn)
            new = [h + (d - z) * (n - h) * e]
        return new, new[0]

    def run(fuse):
        return tf.nest.flatten(
            tf_ti.scan(step, [tf.ones([3, 2])] * (1 + (kind == "lstm")), x, fuse=fuse)
        )

    assert_same(*(tf.function(run)(fuse) for fuse in (True, False)), 2e-5)


@pytest.mark.parametrize("scale", [0.1, 0.3, -0.7, 1 / 3])
@pytest.mark.parametrize("limit", ["maximum", "relu"])
@pytest.mark.parametrize("seed", [0, 1], indirect=True)
def test_a_factor_of_what_adds_up_to_a_limit_moves_nothing_beside_it(rng, scale, limit):
    """The sum is 0; of terms that are each rounded it would be nearly 0."""
    m = rng.integers(1, 1000, 32)
    k = rng.integers(1, 100)
    print(m, k)
    x = tf.constant([[[k, 1]]] * 2, tf.float32)
    w = tf.constant([m, -k * m], tf.float32)

    def cell(h, x):
        v = scale * (x @ w + tf.matmul(h, tf.zeros([32, 32])))
        h = tf.maximum(v, 0.0) if limit == "maximum" else tf.nn.relu(v)
        return h, h

    @tf.function
    def found(fuse):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf_ti.scan(cell, tf.zeros([1, 32]), x, fuse=fuse)[1]
        return y, *tape.gradient(y, [x, w])

    for fused, alone in zip(found(True), found(False)):
        np.testing.assert_allclose(fused, alone, rtol=1e-6)
