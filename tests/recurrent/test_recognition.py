"""Which loops become recurrent sequences, which do not, and that nobody sees a difference."""

import functools
import zlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import BackEdge, InputPort, LoopOutput, OutputPort, PortMap, TripLimit
from tf_ti.recurrent import ops

pytestmark = pytest.mark.quarter

T, B, N, H = 4, 3, 5, 8
SEQUENCE = "TfTi>RecurrentSequence"


def normal(seed, *shape, dtype=tf.float32):
    """From the standard normal distribution, times 0.5; the seed is a text."""
    generator = np.random.default_rng(zlib.crc32(seed.encode()))
    return tf.constant(0.5 * generator.normal(size=shape), dtype)


class Weights:
    """Variables by their names, made when they are first asked for."""

    def __init__(self, dtype=tf.float32, hidden=H):
        self.dtype, self.hidden, self.found = dtype, hidden, {}

    def __call__(self, name, *shape):
        if name not in self.found:
            with tf.init_scope():
                self.found[name] = tf.Variable(normal(name, *shape, dtype=self.dtype))
        return tf.convert_to_tensor(self.found[name])


def types_of(graph):
    """The types of a function's operations, and of those of the functions that it calls."""
    functions = [function.graph for function in graph._functions.values()]
    return [op.type for g in (graph, *functions) for op in g.get_operations()]


def count(call, *arguments):
    """How many sequences and how many loops a function has."""
    types = types_of(tf.function(call).get_concrete_function(*arguments).graph)
    return types.count(SEQUENCE), sum(t.endswith("TensorIterator") for t in types)


def check(call, given, variables=lambda: (), is_known=True, tolerance=1e-5):
    """Compares values and gradients of call(fuse, *given) with those where Python runs the body.

    Args:
        variables: called after that; what there are gradients of beside `given`.
        is_known: whether there must be a sequence.
    """

    def run(fuse, *given):
        with tf.GradientTape() as tape:
            floats = [t for t in given if t.dtype.is_floating]
            tape.watch(floats)
            outputs = tf.nest.flatten(call(fuse, *given))
            loss = tf.add_n([tf.reduce_sum(tf.sin(tf.cast(t, tf.float32))) for t in outputs])
        sources = [*floats, *variables()]
        return outputs, tape.gradient(loss, sources, unconnected_gradients="zero")

    tf.config.run_functions_eagerly(True)
    try:
        expected = run(False, *given)
    finally:
        tf.config.run_functions_eagerly(False)
    traced = tf.function(lambda *given: run(True, *given), autograph=False)
    concrete = traced.get_concrete_function(*given)
    assert (SEQUENCE in types_of(concrete.graph)) == is_known
    for scale, found, right in zip((1, 10), concrete(*given), expected, strict=True):
        for a, e in zip(found, right, strict=True):
            assert (a.dtype, a.shape) == (e.dtype, e.shape)
            a, e = (tf.cast(tf.convert_to_tensor(t), tf.float64) for t in (a, e))
            np.testing.assert_allclose(a, e, rtol=scale * tolerance, atol=scale * tolerance)


def check_no_sequence(call, given):
    """That call(fuse, *given) has none, and gives the same."""
    known, expected = (
        tf.function(lambda *given, fuse=fuse: call(fuse, *given), autograph=False)
        for fuse in (True, False)
    )
    assert count(known, *given)[0] == 0
    for a, e in zip(*(tf.nest.flatten(f(*given)) for f in (known, expected)), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


def check_cell(cell, num_states, is_known=True, weights=None, given=None, **options):
    """A scan of cell(weights, x, *states) -> new states, which gives the hidden states."""
    weights = weights or Weights()
    state = [
        normal(f"state {k}", B, weights.hidden, dtype=weights.dtype) for k in range(num_states)
    ]
    given = given or [normal("x", T, B, N, dtype=weights.dtype), *state]
    tolerance = options.pop("tolerance", 1e-5)

    def call(fuse, xs, *init):
        def step(states, x):
            states = cell(weights, x, *states)
            return states, states[0]

        return tf_ti.scan(step, list(init), xs, fuse=fuse, **options)

    check(call, given, lambda: list(weights.found.values()), is_known, tolerance)


# --- cells ---------------------------------------------------------------------------------------


def lstm(gates, c, sigmoid=tf.sigmoid, tanh=tf.tanh):
    i, f, g, o = gates
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return [sigmoid(o) * tanh(c), c]


def gates_of(p, x, h):
    return x @ p("w", N, 4 * H) + h @ p("r", H, 4 * H) + p("b", 4 * H)


def slices_of(gates, size=H):
    return [gates[:, k * size : (k + 1) * size] for k in range(gates.shape[1] // size)]


def joined(p, x, h, c):
    return lstm(tf.split(tf.concat([x, h], 1) @ p("wr", N + H, 4 * H) + p("b", 4 * H), 4, 1), c)


def joined_the_other_way(p, x, h, c):
    gates = tf.nn.bias_add(tf.concat([h, x], -1) @ p("rw", H + N, 4 * H), p("b", 4 * H))
    return lstm(tf.split(gates, 4, -1), c)


def sliced(p, x, h, c):
    return lstm(slices_of(gates_of(p, x, h)), c)


def sliced_with_an_ellipsis(p, x, h, c):
    gates = gates_of(p, x, h)
    o, g, f, i = gates[..., :H], gates[..., H : 2 * H], gates[..., 2 * H : -H], gates[..., -H:]
    return lstm([i, f, g, o], c)


def sliced_by_begin_and_size(p, x, h, c):
    gates = gates_of(p, x, h)
    return lstm([tf.slice(gates, [0, k * H], [-1, H]) for k in range(4)], c)


def split_by_sizes(p, x, h, c):
    i, fg, o = tf.split(gates_of(p, x, h), [H, 2 * H, H], -1)
    return lstm([i, *tf.split(fg, [H, -1], 1), o], c)


def with_many_matrices(p, x, h, c):
    gates = [x @ p(f"w{k}", N, H) + h @ p(f"r{k}", H, H) + p(f"b{k}", H) for k in "ifgo"]
    return lstm(gates, c)


def with_four_matrices(p, x, h, c):
    both = tf.concat([x, h], 1)
    return lstm([both @ p(f"w{k}", N + H, H) + p(f"b{k}", 1, H) for k in "ifgo"], c)


def with_concatenated_matrices(p, x, h, c):
    w = tf.concat([p(f"w{k}", N, H) for k in "ifgo"], 1)
    r = tf.concat([p(f"r{k}", H, H) for k in "ifgo"], 1)
    return lstm(tf.split(x @ w + h @ r, 4, 1), c)


def transposed(p, x, h, c):
    gates = tf.matmul(x, p("wt", 4 * H, N), transpose_b=True) + p("b", 1, 4 * H)
    gates += tf.matmul(h, p("rt", 4 * H, H), transpose_b=True)
    return lstm(tf.split(gates, 4, 1), c)


def transposed_by_an_operation(p, x, h, c):
    gates = tf.concat([x, h], 1) @ tf.transpose(p("wrt", 4 * H, N + H))
    return lstm(tf.split(gates, 4, 1), c)


def transposed_in_part(p, x, h, c):
    gates = tf.matmul(x, p("wt", 4 * H, N), transpose_b=True) + h @ p("r", H, 4 * H)
    return lstm(tf.split(gates, 4, 1), c)


def with_a_forget_bias(p, x, h, c):
    i, g, f, o = tf.split(gates_of(p, x, h), 4, 1)
    return lstm([i, f + 1.0, g, o], c)


def hard_sigmoid_of_keras(p, x, h, c):
    return lstm(slices_of(gates_of(p, x, h)), c, keras.activations.hard_sigmoid)


def hard_sigmoid_by_clipping(p, x, h, c):
    def hard_sigmoid(a):
        return tf.clip_by_value(0.2 * a + 0.5, 0.0, 1.0)

    return lstm(slices_of(gates_of(p, x, h)), c, hard_sigmoid)


def hard_sigmoid_by_a_minimum_of_relu(p, x, h, c):
    def hard_sigmoid(a):
        return tf.minimum(tf.nn.relu(a / 4.0 + 0.5), 1.0)

    i, f, g, o = slices_of(gates_of(p, x, h))
    return lstm([i, f + 1.0, g, o], c, hard_sigmoid)


def with_relu(p, x, h, c):
    return lstm(slices_of(gates_of(p, x, h)), c, tanh=tf.nn.relu)


def with_leaky_relu(p, x, h, c):
    return lstm(slices_of(gates_of(p, x, h)), c, tanh=lambda a: tf.nn.leaky_relu(a, 0.125))


def with_sigmoids_of_three_gates_at_once(p, x, h, c):
    gates = gates_of(p, x, h)
    i, f, o = tf.split(tf.sigmoid(gates[:, : 3 * H]), 3, 1)
    c = tf.add_n([i * tf.tanh(gates[:, 3 * H :]), c * f])
    return [tf.tanh(c) * o, c]


def by_einsum(p, x, h, c):
    gates = tf.einsum("bi,ij->bj", x, p("w", N, 4 * H)) + tf.einsum(
        "bi,ji->bj", h, p("rt", 4 * H, H)
    )
    return lstm(tf.split(gates, 4, 1), c)


def by_tensordot(p, x, h, c):
    gates = tf.tensordot(x, p("w", N, 4 * H), 1) + tf.tensordot(h, p("r", H, 4 * H), [[1], [0]])
    return lstm(tf.split(gates, 4, 1), c)


def without_an_input_to_one_gate(p, x, h, c):
    i, f, g = tf.split(x @ p("w3", N, 3 * H), 3, 1)
    ri, rf, rg, o = tf.split(h @ p("r", H, 4 * H), 4, 1)
    return lstm([i + ri, f + rf, g + rg, o], c)


def with_two_inputs(p, x, h, c):
    gates = gates_of(p, x[:, :2] @ p("x", 2, N), h) + tf.square(x) @ p("w2", N, 4 * H)
    return lstm(tf.split(gates, 4, 1), c)


def with_a_context(p, x, h, c):
    return lstm(tf.split(gates_of(p, x, h) + p("context", B, 4 * H), 4, 1), c)


def normalised_before(p, x, h, c):
    x -= tf.reduce_mean(x, -1, keepdims=True)
    return joined(p, x * tf.math.rsqrt(tf.reduce_mean(x * x, -1, keepdims=True) + 1e-3), h, c)


def dropped_out_before(p, x, h, c):
    return sliced(p, x * p("mask", B, N), h, c)


def gru(p, x, h):
    xz, xr, xh = tf.split(x @ p("w", N, 3 * H) + p("b", 3 * H), 3, 1)
    hz, hr, hh = tf.split(h @ p("r", H, 3 * H) + p("rb", 3 * H), 3, 1)
    z, r = tf.sigmoid(xz + hz), tf.sigmoid(xr + hr)
    return [(1 - z) * tf.tanh(xh + r * hh) + z * h]


def gru_of_torch(p, x, h):
    w, b = tf.transpose(p("wt", 3 * H, N)), p("b", 3 * H)
    xr, xz, xn = tf.split(x @ w + b, 3, 1)
    hr, hz, hn = tf.split(tf.matmul(h, p("rt", 3 * H, H), transpose_b=True), 3, 1)
    z = tf.sigmoid(hz + xz)
    n = tf.tanh((hn + 0.25) * tf.sigmoid(hr + xr) + xn)
    return [n + z * (h - n)]


def gru_that_resets_before(p, x, h):
    both = tf.concat([x, h], 1) @ p("gates", N + H, 2 * H) + p("b", 2 * H)
    r, z = tf.split(tf.sigmoid(both), 2, 1)
    n = tf.tanh(tf.concat([x, r * h], 1) @ p("candidate", N + H, H) + p("bn", H))
    return [z * h + (1 - z) * n]


def gru_of_the_textbook(p, x, h):
    z = tf.sigmoid(x @ p("wz", N, H) + h @ p("rz", H, H) + p("bz", H))
    r = tf.sigmoid(x @ p("wr", N, H) + h @ p("rr", H, H) + p("br", H))
    n = tf.tanh(x @ p("wn", N, H) + (r * h) @ p("rn", H, H) + p("bn", H))
    return [(1 - z) * h + z * n]


def gru_with_hard_sigmoids(p, x, h):
    def hard(a):
        return tf.nn.relu6(a + 3.0) * (1.0 / 6.0)

    gates = x @ p("w", N, 3 * H)
    (z, r), hh = tf.split(hard(gates[:, : 2 * H] + h @ p("zr", H, 2 * H)), 2, 1), h @ p("rh", H, H)
    return [h - z * h + z * tf.tanh(gates[:, 2 * H :] + r * hh)]


def rnn(p, x, h):
    return [tf.tanh(x @ p("w", N, H) + h @ p("r", H, H) + p("b", H))]


def rnn_without_a_bias(p, x, h):
    return [tf.nn.relu(tf.concat([h, x], 1) @ p("rw", H + N, H))]


def rnn_of_halves(p, x, h):
    return [tf.sigmoid(-(2.0 * (h @ p("r", H, H)) - x @ p("w", N, H)) / 4.0)]


LSTMS = [
    joined,
    joined_the_other_way,
    sliced,
    sliced_with_an_ellipsis,
    sliced_by_begin_and_size,
    split_by_sizes,
    with_many_matrices,
    with_four_matrices,
    with_concatenated_matrices,
    transposed,
    transposed_by_an_operation,
    transposed_in_part,
    with_a_forget_bias,
    hard_sigmoid_of_keras,
    hard_sigmoid_by_clipping,
    hard_sigmoid_by_a_minimum_of_relu,
    with_relu,
    with_leaky_relu,
    with_sigmoids_of_three_gates_at_once,
    by_einsum,
    by_tensordot,
    without_an_input_to_one_gate,
    with_two_inputs,
    with_a_context,
    normalised_before,
    dropped_out_before,
]
OTHERS = [
    gru,
    gru_of_torch,
    gru_that_resets_before,
    gru_of_the_textbook,
    gru_with_hard_sigmoids,
    rnn,
    rnn_without_a_bias,
    rnn_of_halves,
]


@pytest.mark.parametrize("cell", LSTMS, ids=lambda cell: cell.__name__)
def test_lstms_are_known(cell):
    check_cell(cell, 2)


@pytest.mark.parametrize("cell", OTHERS, ids=lambda cell: cell.__name__)
def test_grus_and_plain_cells_are_known(cell):
    check_cell(cell, 1)


KERAS = {
    "LSTMCell": lambda: keras.layers.LSTMCell(H),
    "LSTMCell without a bias": lambda: keras.layers.LSTMCell(H, use_bias=False),
    "LSTMCell, implementation 1": lambda: keras.layers.LSTMCell(H, implementation=1),
    "GRUCell": lambda: keras.layers.GRUCell(H),
    "GRUCell, reset before": lambda: keras.layers.GRUCell(H, reset_after=False),
    "GRUCell, reset before, implementation 1": lambda: keras.layers.GRUCell(
        H, reset_after=False, implementation=1, recurrent_activation="hard_sigmoid"
    ),
    "GRUCell without a bias": lambda: keras.layers.GRUCell(H, use_bias=False),
    "SimpleRNNCell": lambda: keras.layers.SimpleRNNCell(H),
    "SimpleRNNCell without a bias": lambda: keras.layers.SimpleRNNCell(H, use_bias=False),
}


@pytest.mark.parametrize("name", KERAS)
def test_cells_of_keras_are_known(name):
    cell = KERAS[name]()
    cell.build([B, N])
    for k, weight in enumerate(cell.weights):
        weight.assign(normal(f"weight {k}", *weight.shape))
    states = tf.nest.flatten(cell.get_initial_state(B))

    def call(fuse, xs, *init):
        def step(states, x):
            return cell(x, states)[::-1]

        return tf_ti.scan(step, list(init), xs, fuse=fuse)

    check(call, [normal("x", T, B, N), *states], lambda: [w.value for w in cell.weights])


# --- no copies -----------------------------------------------------------------------------------


KINDS = {"lstm": 4, "gru": 3, "rnn": 1}


def scan_of_tf_ti(kind, fuse, xs, *init):
    """A scan of one of tf_ti's own cells."""
    rows = KINDS[kind] * H
    weights = normal("w", rows, N), normal("r", rows, H), normal("b", rows)

    def step(states, x):
        new = getattr(tf_ti, f"{kind}_cell")(x, *states, *weights)
        states = list(new) if kind == "lstm" else [new]
        return states, states[0]

    return tf_ti.scan(step, list(init), xs, fuse=fuse)


def of_any_batch(kind, fuse):
    specs = [tf.TensorSpec([None, None, N])] + [tf.TensorSpec([None, H])] * (1 + (kind == "lstm"))
    call = functools.partial(scan_of_tf_ti, kind, fuse)
    return tf.function(call).get_concrete_function(*specs)


@pytest.mark.parametrize("kind", KINDS)
def test_cells_of_tf_ti_are_known_also_of_any_batch(kind):
    given = [normal("x", T, B, N), *(normal(f"h{k}", B, H) for k in range(1 + (kind == "lstm")))]
    known = of_any_batch(kind, True)
    types = types_of(known.graph)
    assert types.count(SEQUENCE) == 1 and not any(t.endswith("TensorIterator") for t in types)
    for a, e in zip(*(tf.nest.flatten(f(*given)) for f in (known, of_any_batch(kind, False)))):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)
    check(lambda fuse, *given: scan_of_tf_ti(kind, fuse, *given), given)


@pytest.mark.parametrize("rows", [1, B + 1])
@pytest.mark.parametrize(
    "fuse, said",
    [
        (True, rf"h must have shape \[{B},{H}\]"),
        pytest.param(
            False,
            "initial_(hidden|cell)_state_must_fit_x",  # the name of the operation in the body
            marks=pytest.mark.needs_cpu_kernels,
        ),
    ],
    ids=["known", "not fused"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_states_of_another_batch_than_the_inputs_are_an_error(kind, fuse, said, rows):
    states = [normal(f"h{k}", rows, H) for k in range(1 + (kind == "lstm"))]
    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
        of_any_batch(kind, fuse)(normal("x", T, B, N), *states)


@pytest.mark.parametrize("shape", [lambda h: [-1, H], lambda h: [tf.shape(h)[0], H]])
def test_a_state_of_a_shape_of_its_own_does_not_keep_inputs_from_being_repeated(shape):
    w, r = normal("w", N, H), normal("r", H, H)

    def call(fuse, xs, init):
        def step(h, x):
            h = tf.tanh(x @ w + tf.reshape(h, shape(h)) @ r)
            return h, h

        return tf_ti.scan(step, init, xs, fuse=fuse)

    specs = tf.TensorSpec([None, None, N]), tf.TensorSpec([None, H])
    known, loop = (
        tf.function(functools.partial(call, fuse)).get_concrete_function(*specs)
        for fuse in (True, False)
    )
    assert SEQUENCE in types_of(known.graph)
    given = normal("x", T, 1, N), normal("h", B, H)
    for a, e in zip(tf.nest.flatten(known(*given)), tf.nest.flatten(loop(*given)), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compared", [0, 1])
def test_a_state_that_is_not_compared_is_repeated(compared):
    w, r = normal("w", N, 4 * H), normal("r", H, 4 * H)

    def call(fuse, xs, *init):
        def step(states, x):
            rows = tf.shape(x)[0]
            h, c = (tf.reshape(s, [rows, H]) if k == compared else s for k, s in enumerate(states))
            i, f, o, g = tf.split(x @ w + h @ r, 4, axis=1)
            c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            h = tf.sigmoid(o) * tf.tanh(c)
            return (h, c), h

        return tf_ti.scan(step, init, xs, fuse=fuse)

    specs = [tf.TensorSpec([None, None, N]), *[tf.TensorSpec([None, H])] * 2]
    known, loop = (
        tf.function(functools.partial(call, fuse)).get_concrete_function(*specs)
        for fuse in (True, False)
    )
    assert SEQUENCE in types_of(known.graph)
    rows = [B if k == compared else 1 for k in range(2)]
    given = [normal("x", T, B, N), *(normal(f"h{k}", n, H) for k, n in enumerate(rows))]
    for a, e in zip(tf.nest.flatten(known(*given)), tf.nest.flatten(loop(*given)), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


def operations(cell, num_states):
    """The types of what there is beside a sequence, but for constants and shapes."""
    weights = Weights()
    init = [tf.zeros([B, H])] * num_states

    def call(xs):
        return tf_ti.scan(lambda s, x: (cell(weights, x, *s), None), init, xs)

    graph = tf.function(call).get_concrete_function(normal("x", T, B, N)).graph
    free = ("Const", "Identity", "NoOp", "Placeholder", "ReadVariableOp", "Reshape", SEQUENCE)
    return sorted(op.type for op in graph.get_operations() if op.type not in free)


@pytest.mark.parametrize("cell", [sliced, sliced_with_an_ellipsis, transposed])
def test_gates_in_any_order_and_either_layout_need_no_copy(cell):
    assert operations(cell, 2) == []


@pytest.mark.parametrize("cell", [joined, joined_the_other_way])
def test_one_matrix_is_cut_between_its_rows_only(cell):
    assert operations(cell, 2) == ["StridedSlice", "StridedSlice"]


def test_a_batch_that_comes_first_is_not_transposed():
    weights = Weights()

    def call(xs):
        init = [tf.zeros([B, H])] * 2

        def step(state, x):
            state = sliced(weights, x, *state)
            return state, state[0]

        return tf_ti.scan(step, init, xs, axis=1)

    graph = tf.function(call).get_concrete_function(normal("x", B, T, N)).graph
    assert "Transpose" not in {op.type for op in graph.get_operations()}


# --- inputs and outputs --------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_along_an_axis_in_either_direction(axis, reverse):
    weights = Weights()
    shape = [T, B, N] if axis == 0 else [B, T, N]

    def call(fuse, xs, h):
        def step(h, x):
            (h,) = gru(weights, x, h)
            return h, (h, tf.nn.softmax(h @ weights("v", H, 3)), tf.exp(x))

        return tf_ti.scan(step, h, xs, axis=axis, reverse=reverse, fuse=fuse)

    given = [normal("x", *shape), normal("h", B, H)]
    check(call, given, lambda: list(weights.found.values()))


@pytest.mark.parametrize("batch", [1, B])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("by_index", [False, True])
def test_the_example_of_openvino(batch, backwards, by_index):
    weights = Weights()
    order = {"start": -1, "end": 0, "stride": -1} if backwards else {}

    def call(fuse, x, h, c):
        def body(piece, h, c):
            h, c = joined(weights, piece[:, 0] if by_index else tf.squeeze(piece, [1]), h, c)
            return h, c, h[:, tf.newaxis] if by_index else tf.expand_dims(h, 1)

        port_map = PortMap(
            [InputPort(0, 0, axis=1, **order), InputPort(1, 1), InputPort(2, 2)],
            [OutputPort(0, 0), OutputPort(1, 1), OutputPort(2, 2, axis=1, **order)],
        )
        edges = [BackEdge(0, 1), BackEdge(1, 2)]
        return tf_ti.tensor_iterator(body, [x, h, c], port_map, edges, fuse=fuse)

    given = [normal("x", batch, T, N), normal("h", batch, H), normal("c", batch, H)]
    check(call, given, lambda: list(weights.found.values()))
    specs = [tf.TensorSpec([None, *t.shape[1:]]) for t in given]
    graph = tf.function(lambda *given: call(True, *given)).get_concrete_function(*specs).graph
    assert "Transpose" not in types_of(graph)


def test_parts_and_outputs_joined_along_the_batch_and_the_columns():
    weights = Weights()

    def call(fuse, x, h):
        def body(piece, h):
            (h,) = rnn(weights, piece, h)
            return h, h, h

        port_map = PortMap(
            [InputPort(0, 0, axis=0, stride=B), InputPort(1, 1)],
            [OutputPort(0, 0, axis=0), OutputPort(1, 1, axis=1), OutputPort(2, 2)],
        )
        return tf_ti.tensor_iterator(body, [x, h], port_map, [BackEdge(2, 1)], fuse=fuse)

    given = [normal("x", T * B, N), normal("h", B, H)]
    check(call, given, lambda: list(weights.found.values()))


def test_a_loop_with_outputs_of_all_kinds():
    weights = Weights()

    def call(fuse, xs, init):
        with tf_ti.Loop(fuse=fuse) as loop:
            loop.add_trip_limit(T, TripLimit.COUNT)
            x, h = loop.add_iterator(xs, reverse=True), loop.add_recurrence(init)
            (h.next,) = gru(weights, x, h)
            loop.add_loop_output(h, LoopOutput.LAST_VALUE)
            loop.add_loop_output(h.next, LoopOutput.CONCATENATE, axis=1)
            loop.add_loop_output(h.next, LoopOutput.CONCATENATE, axis=2)
            loop.add_loop_output(h.next, LoopOutput.REVERSE)
        return [output.tensor for output in loop.outputs]

    given = [normal("x", T + 2, B, N), normal("h", B, H)]
    check(call, given, lambda: list(weights.found.values()))


def test_a_sequence_inside_a_loop():
    weights = Weights()

    def call(fuse, xs, init):
        def outer(h, k):
            def step(h, x):
                (h,) = rnn(weights, x, h)
                return h, h

            h, ys = tf_ti.scan(step, h, xs * k, fuse=fuse)
            return h, ys

        return tf_ti.scan(outer, init, tf.constant([1.0, -1.0]), fuse=fuse)

    given = [normal("x", T, B, N), normal("h", B, H)]
    check(call, given, lambda: list(weights.found.values()))


@pytest.mark.parametrize("time", [None, T])
@pytest.mark.parametrize("batch", [None, B])
def test_unknown_extents(time, batch):
    weights = Weights()

    def call(fuse, xs, h):
        def step(h, x):
            (h,) = gru(weights, x, h)
            return h, h

        return tf_ti.scan(step, h, xs, fuse=fuse)

    specs = tf.TensorSpec([time, batch, N]), tf.TensorSpec([batch, H])
    known, other = (
        tf.function(lambda xs, h, fuse=fuse: call(fuse, xs, h)).get_concrete_function(*specs)
        for fuse in (True, False)
    )
    assert SEQUENCE in {op.type for op in known.graph.get_operations()}
    for a, b in zip(known.outputs, other.outputs):
        assert a.shape.as_list() == b.shape.as_list()
    for t in {0, 1, T} if time is None else {T}:
        for b in {0, 1, B} if batch is None else {B}:
            given = normal("x", t, b, N), normal("h", b, H)
            (last, y), (expected_last, expected_y) = known(*given), other(*given)
            np.testing.assert_allclose(last, expected_last, rtol=1e-5, atol=1e-5)
            if t:  # else the loop does not know the other extents
                np.testing.assert_allclose(y, expected_y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batches", [(1, B), (B, 1)])
def test_one_row_serves_a_batch_whose_size_is_unknown(batches):
    weights = Weights()

    def call(xs, h):
        return tf_ti.scan(lambda h, x: (joined_rnn(x, h), None), h, xs)

    def joined_rnn(x, h):
        return rnn(weights, x, h)[0]

    specs = tf.TensorSpec([T, None, N]), tf.TensorSpec([None, H])
    given = normal("x", T, batches[0], N), normal("h", batches[1], H)
    full = tf.broadcast_to(given[0], [T, B, N]), tf.broadcast_to(given[1], [B, H])
    known = tf.function(call, input_signature=specs)
    np.testing.assert_allclose(known(*given)[0], known(*full)[0], rtol=1e-6)


def test_batches_that_do_not_fit_are_an_error():
    weights = Weights()

    @tf.function(input_signature=[tf.TensorSpec([T, None, N]), tf.TensorSpec([None, H])])
    def call(xs, h):
        return tf_ti.scan(lambda h, x: (rnn(weights, x, h)[0], None), h, xs)[0]

    with pytest.raises(tf.errors.InvalidArgumentError):
        call(tf.zeros([T, 2, N]), tf.zeros([3, H]))


def test_an_embedding_before_and_a_softmax_after():
    weights = Weights()
    ids = tf.constant(np.random.default_rng(0).integers(0, 10, [T, B]))

    def call(fuse, h, c):
        def step(state, k):
            state = joined(weights, tf.gather(weights("table", 10, N), k), *state)
            logits = state[0] @ weights("v", H, 10) + weights("vb", 10)
            return state, (state[0], tf.nn.log_softmax(logits))

        return tf_ti.scan(step, [h, c], ids, fuse=fuse)

    check(call, [normal("h", B, H), normal("c", B, H)], lambda: list(weights.found.values()))


def test_one_row_for_all():
    def cell(p, x, h):
        return [tf.tanh(x[:1] @ p("w", N, H) + h @ p("r", H, H))]

    check_cell(cell, 1)


# --- sizes and types -----------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [1, 7, 16, 17])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_hidden_sizes(hidden, kind):
    def of_lstm(p, x, h, c):
        gates = x @ p("w", N, 4 * hidden) + h @ p("r", hidden, 4 * hidden) + p("b", 4 * hidden)
        return lstm(slices_of(gates, hidden), c)

    def of_gru(p, x, h):
        xz, xr, xh = slices_of(x @ p("w", N, 3 * hidden), hidden)
        hz, hr, hh = slices_of(h @ p("r", hidden, 3 * hidden), hidden)
        z = tf.sigmoid(xz + hz)
        return [z * h + (1 - z) * tf.tanh(xh + tf.sigmoid(xr + hr) * hh)]

    weights = Weights(hidden=hidden)
    check_cell(*((of_lstm, 2) if kind == "lstm" else (of_gru, 1)), weights=weights)


@pytest.mark.parametrize("shape", [(0, B), (T, 0), (1, 1)])
def test_no_steps_and_no_rows(shape):
    given = [normal("x", *shape, N), normal("h", shape[1], H), normal("c", shape[1], H)]
    check_cell(joined, 2, given=given)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(tf.float64, 1e-12), (tf.bfloat16, 2e-2), (tf.float16, 2e-3)]
)
@pytest.mark.parametrize(("cell", "num_states"), [(with_a_forget_bias, 2), (gru, 1)])
def test_types(cell, num_states, dtype, tolerance):
    check_cell(cell, num_states, weights=Weights(dtype), tolerance=tolerance)


# --- modes ---------------------------------------------------------------------------------------


def lstm_scan(weights, fuse, xs, h, c):
    def step(state, x):
        state = joined(weights, x, *state)
        return state, state[0]

    return tf_ti.scan(step, [h, c], xs, fuse=fuse)[1]


GIVEN = [normal("x", T, B, N), normal("h", B, H), normal("c", B, H)]


def test_second_gradients():
    weights = Weights()

    def gradients(fuse):
        @tf.function
        def run(*given):
            with tf.GradientTape() as outer:
                outer.watch(given)
                with tf.GradientTape() as inner:
                    inner.watch(given)
                    loss = tf.reduce_sum(tf.sin(lstm_scan(weights, fuse, *given)))
                first = inner.gradient(loss, given)
                norm = tf.add_n([tf.reduce_sum(g * g) for g in first])
            return outer.gradient(norm, [*given, *weights.found.values()])

        return run(*GIVEN)

    for a, b in zip(gradients(True), gradients(False), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_forward_mode():
    weights = Weights()

    def tangents(fuse):
        call = tf.function(lambda *given: lstm_scan(weights, fuse, *given))
        with tf.autodiff.ForwardAccumulator(GIVEN, [tf.ones_like(t) for t in GIVEN]) as forward:
            y = call(*GIVEN)
        return forward.jvp(y)

    np.testing.assert_allclose(tangents(True), tangents(False), rtol=1e-4, atol=1e-5)


def test_compiled_by_xla():
    weights = Weights()
    compiled, plain = (
        tf.function(lambda *g, fuse=fuse: lstm_scan(weights, fuse, *g), jit_compile=fuse)
        for fuse in (True, False)
    )
    np.testing.assert_allclose(compiled(*GIVEN), plain(*GIVEN), rtol=1e-5, atol=1e-5)


def test_vectorized_map():
    weights = Weights()
    lanes = tf.stack([GIVEN[0], 2.0 * GIVEN[0]])

    def run(fuse):
        def lane(xs):
            return lstm_scan(weights, fuse, xs, *GIVEN[1:])

        return tf.function(lambda: tf.vectorized_map(lane, lanes))()

    np.testing.assert_allclose(run(True), run(False), rtol=1e-5, atol=1e-5)


def test_a_data_set_maps_it():
    weights = Weights()
    lstm_scan(weights, True, *GIVEN)  # makes the variables
    data = tf.data.Dataset.from_tensors(GIVEN[0])
    (found,) = data.map(lambda xs: lstm_scan(weights, True, xs, *GIVEN[1:]))
    np.testing.assert_allclose(found, lstm_scan(weights, False, *GIVEN), rtol=1e-5, atol=1e-5)


def test_a_saved_model(tmp_path):
    module = tf.Module()
    weights = Weights()
    module.call = tf.function(lambda *given: lstm_scan(weights, True, *given))
    expected = module.call(*GIVEN)
    module.variables_ = list(weights.found.values())
    tf.saved_model.save(module, str(tmp_path), module.call.get_concrete_function(*GIVEN))
    loaded = tf.saved_model.load(str(tmp_path))
    with tf.GradientTape() as tape:
        tape.watch(GIVEN[0])
        y = loaded.call(*GIVEN)
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    assert tape.gradient(y, GIVEN[0]).shape == GIVEN[0].shape


def calls_in_eager_mode(monkeypatch, call):
    """How many sequences a call adds."""
    found, run = [], ops.run

    def spy(*arguments, **options):
        found.append(run)
        return run(*arguments, **options)

    monkeypatch.setattr(ops, "run", spy)
    call()
    return len(found)


def test_an_eager_call_knows_a_cell(monkeypatch):
    weights = Weights()
    assert calls_in_eager_mode(monkeypatch, lambda: lstm_scan(weights, True, *GIVEN)) == 1


def test_an_eager_call_computes_nothing_outside(monkeypatch):
    weights = Weights()

    def call():
        def step(h, x):
            (h,) = rnn(weights, tf.exp(x), h)
            return h, h

        return tf_ti.scan(step, GIVEN[1], GIVEN[0])

    assert calls_in_eager_mode(monkeypatch, call) == 0
    assert calls_in_eager_mode(monkeypatch, tf.function(call)) == 1


def test_checkpoints_keep_the_loop():
    check_cell(sliced, 2, is_known=False, checkpoint_every=2)


def test_with_a_gpu_nothing_is_known(monkeypatch):
    monkeypatch.setattr(ops, "has_kernel", lambda spec: False)
    check_cell(sliced, 2, is_known=False)


# --- near misses ---------------------------------------------------------------------------------


def gates_swapped_between_uses(p, x, h):
    z, r, n = slices_of(x @ p("w", N, 3 * H) + h @ p("r", H, 3 * H))
    z, r = tf.sigmoid(z), tf.sigmoid(r)
    return [z * h + (1 - r) * tf.tanh(n)]


def output_gate_for_two(p, x, h, c):
    i, f, g, o = slices_of(gates_of(p, x, h))
    c = tf.sigmoid(o) * c + tf.sigmoid(i) * tf.tanh(g)
    return [tf.sigmoid(f) * tf.tanh(c) + tf.sigmoid(o), c]


def another_activation(p, x, h, c):
    return lstm(slices_of(gates_of(p, x, h)), c, tanh=tf.nn.softsign)


def activations_that_differ(p, x, h, c):
    i, f, g, o = slices_of(gates_of(p, x, h))
    c = tf.sigmoid(f) * c + tf.tanh(i) * tf.tanh(g)
    return [tf.sigmoid(o) * tf.tanh(c), c]


def slopes_that_differ(p, x, h, c):
    def hard(a, slope):
        return tf.clip_by_value(slope * a + 0.5, 0.0, 1.0)

    i, f, g, o = slices_of(gates_of(p, x, h))
    c = hard(f, 0.2) * c + hard(i, 0.25) * tf.tanh(g)
    return [hard(o, 0.2) * tf.tanh(c), c]


def another_limit(p, x, h, c):
    return lstm(slices_of(gates_of(p, x, h)), c, lambda a: tf.clip_by_value(a, -0.5, 1.0))


def peephole(p, x, h, c):
    i, f, g, o = slices_of(gates_of(p, x, h))
    return lstm([i + c * p("peep", H), f, g, o], c)


def old_cell_state_in_the_output(p, x, h, c):
    i, f, g, o = slices_of(gates_of(p, x, h))
    new = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
    return [tf.sigmoid(o) * tf.tanh(c), new]


def wrong_split(p, x, h, c):
    i, f, g, o = tf.split(gates_of(p, x, h), [H - 1, H + 1, H, H], 1)
    f, extra = f[:, :H], f[:, H:]
    return lstm([tf.concat([extra, i], 1), f, g, o], c)


def overlapping_slices(p, x, h, c):
    gates = gates_of(p, x, h)
    return lstm([gates[:, k * (H - 1) : k * (H - 1) + H] for k in range(4)], c * gates[:, :H])


def one_gate_masked(p, x, h, c):
    i, f, g, o = slices_of(gates_of(p, x, h))
    return lstm([i * p("mask", B, H), f, g, o], c)


def recurrent_dropout(p, x, h, c):
    return sliced(p, x, h * p("mask", B, H), c)


def coupled_gates(p, x, h, c):
    f, g, o = slices_of(gates_of(p, x, h))[:3]
    f = tf.sigmoid(f)
    c = f * c + (1 - f) * tf.tanh(g)
    return [tf.sigmoid(o) * tf.tanh(c), c]


def layer_norm_inside(p, x, h):
    a = x @ p("w", N, H) + h @ p("r", H, H)
    return [tf.tanh(a - tf.reduce_mean(a, 1, keepdims=True))]


def matrix_of_each_step(p, x, h):
    return [tf.tanh(x @ p("w", N, H) + h @ (p("r", H, H) * x[0, 0]))]


def columns_exchanged(p, x, h):
    return [tf.tanh(x @ p("w", N, H) + tf.concat([h[:, 1:], h[:, :1]], 1) @ p("r", H, H))]


def residual(p, x, h):
    return [h + rnn(p, x, h)[0]]


def two_products(p, x, h):
    return [tf.tanh(x @ p("w", N, H) + h @ p("r", H, H) + tf.square(h) @ p("s", H, H))]


def no_input(p, x, h):
    return [tf.tanh(h @ p("r", H, H) + p("b", H))]


def gradient_stopped(p, x, h):
    return [tf.tanh(x @ p("w", N, H) + tf.stop_gradient(h) @ p("r", H, H))]


def random(p, x, h):
    return rnn(p, x + 0.0 * tf.random.uniform([B, N]), h)


def controlled(p, x, h):
    w, r = p("w", N, H), p("r", H, H)
    with tf.control_dependencies([tf.reduce_sum(h)]):
        return [tf.tanh(x @ w + h @ r)]


def custom_gradient(p, x, h):
    @tf.custom_gradient
    def tanh(a):
        return tf.tanh(a), lambda g: 2.0 * g

    return [tanh(x @ p("w", N, H) + h @ p("r", H, H))]


def other_type_inside(p, x, h):
    return [tf.cast(tf.tanh(tf.cast(x @ p("w", N, H) + h @ p("r", H, H), tf.float64)), tf.float32)]


def product_from_the_left(p, x, h):
    return [tf.tanh(x @ p("w", N, H) + p("l", B, B) @ h)]


def unknown_rank(p, x, h):
    return [tf.numpy_function(lambda a: a, rnn(p, x, h), tf.float32, stateful=False)]


def reset_of_half_the_product(p, x, h):
    xz, xr, xh = slices_of(x @ p("w", N, 3 * H))
    hz, hr, hh = slices_of(h @ p("r", H, 3 * H))
    z, r = tf.sigmoid(xz + hz), tf.sigmoid(xr + hr)
    return [z * h + (1 - z) * tf.tanh(xh + r * hh + hh)]


def reset_with_an_input(p, x, h):
    xz, xr, xh = slices_of(x @ p("w", N, 3 * H))
    hz, hr, hh = slices_of(h @ p("r", H, 3 * H))
    z, r = tf.sigmoid(xz + hz), tf.sigmoid(xr + hr)
    return [z * h + (1 - z) * tf.tanh(r * (xh + hh))]


def update_that_does_not_sum_to_one(p, x, h):
    xz, xr, xh = slices_of(x @ p("w", N, 3 * H))
    hz, hr, hh = slices_of(h @ p("r", H, 3 * H))
    z, r = tf.sigmoid(xz + hz), tf.sigmoid(xr + hr)
    return [z * h + (0.9 - z) * tf.tanh(xh + r * hh)]


def exchanged_relus(p, x, h):
    z = tf.nn.relu(x @ p("wz", N, H) + h @ p("rz", H, H))
    r = tf.nn.relu(x @ p("wr", N, H) + h @ p("rr", H, H))
    n = tf.tanh(x @ p("wn", N, H) + (r * h) @ p("rn", H, H))
    return [(1 - z) * h + z * n]


def minimal_gated_unit(p, x, h):
    """A GRU whose two gates are one: it would be multiplied twice."""
    f = tf.sigmoid(x @ p("w", N, H) + h @ p("r", H, H))
    return [(1 - f) * h + f * tf.tanh(x @ p("wn", N, H) + (f * h) @ p("rn", H, H))]


NEAR_MISSES = {
    1: [
        gates_swapped_between_uses,
        layer_norm_inside,
        matrix_of_each_step,
        columns_exchanged,
        residual,
        two_products,
        no_input,
        gradient_stopped,
        controlled,
        custom_gradient,
        other_type_inside,
        product_from_the_left,
        unknown_rank,
        reset_of_half_the_product,
        reset_with_an_input,
        update_that_does_not_sum_to_one,
        exchanged_relus,
        minimal_gated_unit,
    ],
    2: [
        output_gate_for_two,
        another_activation,
        activations_that_differ,
        slopes_that_differ,
        another_limit,
        peephole,
        old_cell_state_in_the_output,
        wrong_split,
        overlapping_slices,
        one_gate_masked,
        recurrent_dropout,
        coupled_gates,
    ],
}


@pytest.mark.parametrize(
    ("num_states", "cell"),
    [(k, cell) for k, cells in NEAR_MISSES.items() for cell in cells],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_near_misses_stay_loops(num_states, cell):
    weights = Weights()

    def call(fuse, xs, *init):
        def step(states, x):
            states = cell(weights, x, *states)
            return states, states[0]

        return tf_ti.scan(step, list(init), xs, fuse=fuse)

    check_no_sequence(call, GIVEN[: 1 + num_states])


def test_random_numbers_stay_in_the_loop():
    weights = Weights()

    def call():
        return tf_ti.scan(lambda h, x: (random(weights, x, h)[0], None), GIVEN[1], GIVEN[0])

    assert count(call) == (0, 1)


OUTPUTS = {
    "cell states": lambda x, h, c, new: new[1],
    "hidden states of before": lambda x, h, c, new: h,
    "what is computed of both": lambda x, h, c, new: new[0] + h,
    "what does not change": lambda x, h, c, new: tf.ones([2]),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_other_outputs_stay_with_the_loop(name):
    weights = Weights()

    def call(fuse, xs, h, c):
        def step(state, x):
            new = sliced(weights, x, *state)
            return new, OUTPUTS[name](x, *state, new)

        return tf_ti.scan(step, [h, c], xs, fuse=fuse)

    check_no_sequence(call, GIVEN)


def test_a_loop_with_a_condition_stays_one():
    weights = Weights()

    def call(xs, init):
        with tf_ti.Loop() as loop:
            x, h = loop.add_iterator(xs), loop.add_recurrence(init)
            loop.add_trip_limit(T, TripLimit.COUNT)
            loop.add_trip_limit(tf.reduce_sum(h) < 100.0, TripLimit.WHILE)
            (h.next,) = rnn(weights, x, h)
            loop.add_loop_output(h, LoopOutput.LAST_VALUE)
        return loop.outputs[0].tensor

    assert count(call, *GIVEN[:2]) == (0, 1)


def test_numbers_of_iterations_that_only_the_loop_compares_keep_it():
    weights = Weights()

    def call(xs, h, length):
        return tf_ti.scan(lambda h, x: (rnn(weights, x, h)[0], None), h, xs, length=length)

    assert count(call, *GIVEN[:2], tf.TensorSpec([], tf.int32)) == (0, 1)

    def pair(xs, ys, h):
        return tf_ti.scan(lambda h, x: (rnn(weights, x[0] + x[1], h)[0], None), h, (xs, ys))

    specs = [tf.TensorSpec([None, B, N])] * 2
    assert count(pair, *specs, GIVEN[1]) == (0, 1)
    assert count(pair, *[tf.TensorSpec([T, B, N])] * 2, GIVEN[1]) == (1, 0)


def test_a_number_of_iterations_that_shapes_tell_is_known():
    weights = Weights()

    def scan(xs, h):
        length = tf.shape(xs)[0] - 1 + tf.shape(h)[0] - (B - 1)
        return tf_ti.scan(lambda h, x: (rnn(weights, x, h)[0], None), h, xs, length=length)

    def loop(xs, h):
        with tf_ti.Loop() as loop:
            loop.add_trip_limit(tf.shape(xs)[0], TripLimit.COUNT)
            x, h = loop.add_iterator(xs), loop.add_recurrence(h)
            (h.next,) = rnn(weights, x, h)
            last = loop.add_loop_output(h, LoopOutput.LAST_VALUE)
        return last.tensor

    for call, is_extent in ((scan, False), (loop, True)):
        assert count(call, *GIVEN[:2]) == (1, 0)
        found = count(call, tf.TensorSpec([None, B, N]), GIVEN[1])
        assert found == ((1, 0) if is_extent else (0, 1))


@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_a_length_that_is_the_extent_of_what_is_sliced_keeps_no_loop(axis, dtype):
    weights = Weights()

    def scan(fuse, xs, h, delta=0, of_axis=axis):
        length = tf.shape(xs, dtype)[of_axis] + delta if delta else tf.shape(xs, dtype)[of_axis]
        return tf_ti.scan(
            lambda h, x: (rnn(weights, x, h)[0], None), h, xs, axis=axis, length=length, fuse=fuse
        )

    shape = [None, B, N] if axis == 0 else [B, None, N]
    specs = tf.TensorSpec(shape), GIVEN[1]
    assert count(functools.partial(scan, True), *specs) == (1, 0)
    # Another number, or another axis, is compared.
    assert count(functools.partial(scan, True, delta=1), *specs) == (0, 1)
    assert count(functools.partial(scan, True, of_axis=2), *specs)[0] == 0
    xs = normal("x", *(T if d is None else d for d in shape))
    known, plain = (tf.function(functools.partial(scan, fuse)) for fuse in (True, False))
    for a, e in zip(*(tf.nest.flatten(f(xs, GIVEN[1])) for f in (known, plain)), strict=True):
        if a is not None:
            np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


def test_a_cell_with_a_counter_of_steps_is_a_cell():
    weights = Weights()

    def call(fuse, xs, h, c):
        def step(states, x):
            h, c, k = states
            h, c = joined(weights, x, h, c)
            return (h, c, k + 1), h

        (h, c, _), hs = tf_ti.scan(step, (h, c, 3), xs, fuse=fuse)
        return h, c, hs

    check(call, [normal("x", T, B, N), normal("h", B, H), normal("c", B, H)])


MASK = tf.constant([[True, False, True], [False, False, True], [True, False, False], [True] * 3])


def held(mask, new, old, keeps=False):
    """States, of which the rows change where the mask is true, or else where it is false."""
    column = mask[:, tf.newaxis]
    choose = (lambda n, o: tf.where(column, o, n)) if keeps else functools.partial(tf.where, column)
    return [choose(n, o) for n, o in zip(new, old, strict=True)]


def masked_scan(cell, num_states, keeps=False, axis=0, outputs=True, weights=None, **options):
    """A scan of a cell whose states a mask holds: a function of fuse, xs, mask and the states."""
    weights = weights or Weights()

    def call(fuse, xs, mask, *init):
        def step(states, element):
            x, mask = element
            states = held(mask, cell(weights, x, *states), states, keeps)
            return states, states[0] if outputs else None

        last, ys = tf_ti.scan(step, list(init), (xs, mask), axis=axis, fuse=fuse, **options)
        return [*last, ys] if outputs else last

    return call, lambda: list(weights.found.values())


@pytest.mark.parametrize("cell, num_states", [(joined, 2), (gru, 1), (rnn, 1)])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("starts", ["zeros", "numbers"])
@pytest.mark.parametrize("outputs", [True, False])
@pytest.mark.pairwise
def test_states_that_a_mask_holds(cell, num_states, reverse, axis, keeps, starts, outputs):
    call, variables = masked_scan(cell, num_states, keeps, axis, outputs, reverse=reverse)
    xs, mask = normal("x", T, B, N), MASK
    if axis:
        xs, mask = tf.transpose(xs, [1, 0, 2]), tf.transpose(mask)
    if starts == "zeros":
        zeros = [tf.zeros([B, H])] * num_states
        check(lambda fuse, *given: call(fuse, *given, *zeros), [xs, mask], variables)
    else:
        check(call, [xs, mask, *(normal(f"s{k}", B, H) for k in range(num_states))], variables)


def check_traced_for(call, specs, given):
    """Compares a sequence with its loop, both traced for open shapes, and returns both."""
    known, plain = (
        tf.function(functools.partial(call, fuse), input_signature=specs) for fuse in (True, False)
    )
    assert count(functools.partial(call, True), *specs) == (1, 0)
    for a, e in zip(*(tf.nest.flatten(f(*given)) for f in (known, plain)), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)
    return known, plain


def test_a_mask_of_an_unknown_batch():
    call, _ = masked_scan(joined, 2)
    states = [tf.TensorSpec([None, H])] * 2
    specs = tf.TensorSpec([T, None, N]), tf.TensorSpec([T, None], tf.bool), *states
    given = normal("x", T, B, N), MASK, normal("h", B, H), normal("c", B, H)
    check_traced_for(call, specs, given)


def test_a_mask_of_an_unknown_number_of_steps():
    call, _ = masked_scan(joined, 2)
    states = [tf.TensorSpec([B, H])] * 2
    specs = tf.TensorSpec([None, B, N]), tf.TensorSpec([None, B], tf.bool), *states
    given = normal("x", T, B, N), MASK, normal("h", B, H), normal("c", B, H)
    known, plain = check_traced_for(call, specs, given)
    for f in (known, plain):  # the op compares, as the loop does
        with pytest.raises(tf.errors.InvalidArgumentError):
            f(given[0], MASK[:-1], *given[2:])
        with pytest.raises(tf.errors.InvalidArgumentError):
            f(given[0][1:], *given[1:])


def test_slices_that_nobody_reads_are_still_compared():
    weights = Weights()

    def call(fuse, xs, mask, unread, h):
        def step(h, element):
            x, kept, _ = element
            return held(kept, rnn(weights, x, h), [h])[0], None

        return tf_ti.scan(step, h, (xs, mask, unread), fuse=fuse)[0]

    given = normal("x", T, B, N), MASK, tf.range(T), normal("h", B, H)
    check(call, given, lambda: list(weights.found.values()))
    specs = [tf.TensorSpec([None, *t.shape[1:]], t.dtype) for t in given]
    specs[3] = tf.TensorSpec([B, H])
    assert count(functools.partial(call, True), *specs) == (0, 1)
    f = tf.function(functools.partial(call, True), input_signature=specs)
    with pytest.raises(tf.errors.InvalidArgumentError):
        f(*given[:2], tf.range(T - 1), given[3])


def test_a_mask_that_comparisons_make():
    weights = Weights()

    def call(fuse, xs, steps, lengths):
        def step(h, element):
            x, k = element
            new = rnn(weights, x, h)[0]
            h = tf.where(tf.expand_dims(k < lengths, 1), new, h)
            return h, h

        return tf_ti.scan(step, tf.zeros([B, H]), (xs, steps), fuse=fuse)

    given = [normal("x", T, B, N), tf.range(T), tf.constant([T, 1, 0])]
    check(call, given, lambda: list(weights.found.values()))


def test_what_a_mask_leaves_out_may_be_nan():
    xs = tf.where(MASK[..., tf.newaxis], normal("x", T, B, N), np.nan)
    call, _ = masked_scan(joined, 2)
    states = [normal("h", B, H), normal("c", B, H)]
    known, plain = (
        tf.function(lambda *given, fuse=fuse: call(fuse, *given))(xs, MASK, *states)
        for fuse in (True, False)
    )
    for a, e in zip(tf.nest.flatten(known), tf.nest.flatten(plain), strict=True):
        assert not np.isnan(e).any()
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


def test_a_mask_that_is_repeated_for_each_column():
    weights = Weights()

    def call(fuse, xs, mask, *init):
        def step(states, element):
            columns = [tf.tile(element[1][:, tf.newaxis], [1, H]) for _ in states]
            new = joined(weights, element[0], *states)
            states = [tf.where(m, n, o) for m, n, o in zip(columns, new, states, strict=True)]
            return states, states[0]

        return tf_ti.scan(step, list(init), (xs, mask), fuse=fuse)

    given = [normal("x", T, B, N), MASK, normal("h", B, H), normal("c", B, H)]
    check(call, given, lambda: list(weights.found.values()))


@pytest.mark.parametrize("cell, num_states", [(joined, 2), (gru, 1), (rnn, 1)])
@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.parametrize("starts", ["zeros", "numbers"])
@pytest.mark.parametrize("gives", ["steps", "last", "steps of both", "computed"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.pairwise
def test_an_output_that_a_mask_holds(cell, num_states, place, starts, gives, reverse, keeps):
    weights, place = Weights(), place % (num_states + 1)

    def call(fuse, xs, mask, *init):
        def step(carry, element):
            x, kept = element
            states = [*carry]
            y = states.pop(place)
            new = cell(weights, x, *states)
            (y,) = held(kept, new[:1], [y], keeps)
            states = held(kept, new, states, keeps)
            carry = [*states[:place], y, *states[place:]]
            found = {"steps": y, "last": None, "steps of both": (y, states[0]), "computed": y * y}
            return carry, found[gives]

        last, ys = tf_ti.scan(step, list(init), (xs, mask), reverse=reverse, fuse=fuse)
        return last if ys is None else [*last, ys]

    count = num_states + 1
    init = [normal(f"s{k}", B, H) for k in range(count)]
    if starts == "zeros":
        init[place] = tf.zeros([B, H])
    mask = tf.concat([MASK, tf.zeros([T, 1], tf.bool)], 1)[:, 1:]  # a row that is always held
    check(call, [normal("x", T, B, N), mask, *init], lambda: list(weights.found.values()))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_two_outputs_that_a_mask_holds(place):
    weights = Weights()

    def call(fuse, xs, mask, *init):
        def step(states, element):
            x, kept = element
            states = held(kept, rnn(weights, x, states[place]) * 3, states)
            return states, states

        return tf_ti.scan(step, list(init), (xs, mask), fuse=fuse)

    given = [normal("x", T, B, N), MASK, *(normal(f"s{k}", B, H) for k in range(3))]
    check(call, given, lambda: list(weights.found.values()))


@pytest.mark.parametrize("of_a_copy", [False, True])
def test_constant_zeros_that_a_mask_holds_have_gradients(of_a_copy):
    weights = Weights()

    @tf.function
    def gradients(fuse, xs, mask):
        with tf.GradientTape() as tape:
            init = [tf.zeros([B, H]) for _ in range(1 + of_a_copy)]
            tape.watch(init)

            def step(states, element):
                new = rnn(weights, element[0], states[0])
                states = held(element[1], new * len(states), states)
                return states, states[-1]

            _, ys = tf_ti.scan(step, init, (xs, mask), fuse=fuse)
            loss = tf.reduce_sum(tf.exp(ys))
        return tape.gradient(loss, init, unconnected_gradients="zero")

    given = normal("x", T, B, N), MASK
    types = types_of(gradients.get_concrete_function(True, *given).graph)
    assert SEQUENCE in types
    for a, e in zip(gradients(True, *given), gradients(False, *given), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cell, num_states", [(joined, 2), (gru, 1), (rnn, 1)])
@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
def test_an_output_that_is_zero_where_a_mask_holds_the_states(cell, num_states, computed, keeps):
    weights = Weights()

    def call(fuse, xs, mask, *init):
        def step(states, element):
            x, kept = element
            new = cell(weights, x, *states)
            (y,) = held(kept, new[:1], [tf.zeros([B, H])], keeps)
            return held(kept, new, states, keeps), 2 * y + x[:, :1] if computed else y

        return tf_ti.scan(step, list(init), (xs, mask), fuse=fuse)

    given = [normal("x", T, B, N), MASK, *(normal(f"s{k}", B, H) for k in range(num_states))]
    check(call, given, lambda: list(weights.found.values()))


def _of_the_cell(weights, x, mask, y, h, c):
    new = joined(weights, x, h, c)
    return held(mask, [new[1], *new], [y, h, c])


def _read_elsewhere(weights, x, mask, y, h, c):
    return held(mask, [*joined(weights, x + y[:, :1], h, c)][:1] * 2, [y, h]) + [c]


def _of_another_mask(weights, x, mask, y, h, c):
    new = joined(weights, x, h, c)
    return [*held(~mask, new[:1], [y]), *held(mask, new, [h, c])]


def check_keeps_the_loop(cell, names):
    """Checks a loop over x and a mask whose states have these names."""
    weights = Weights()

    def call(fuse, xs, mask, *init):
        def step(states, element):
            states = cell(weights, *element, *states)
            return states, states[0]

        return tf_ti.scan(step, list(init), (xs, mask), fuse=fuse)

    states = [normal(name, B, H) for name in names]
    check_no_sequence(call, [normal("x", T, B, N), MASK, *states])


@pytest.mark.parametrize("cell", [_of_the_cell, _read_elsewhere, _of_another_mask])
def test_other_states_beside_those_of_a_cell_keep_the_loop(cell):
    check_keeps_the_loop(cell, ["s0", "s1", "s2"])


def _first_alone(weights, x, mask, h, c):
    new = joined(weights, x, h, c)
    return [held(mask, new[:1], [h])[0], new[1]]


def _two_masks(weights, x, mask, h, c):
    new = joined(weights, x, h, c)
    return [held(mask, new[:1], [h])[0], held(~mask, new[1:], [c])[0]]


def _of_half_the_columns(weights, x, mask, h, c):
    new, columns = joined(weights, x, h, c), mask[:, tf.newaxis] & (tf.range(H) < 2)
    return [tf.where(columns, n, o) for n, o in zip(new, (h, c), strict=True)]


def _of_a_state(weights, x, mask, h, c):
    return held(h[:, 0] > 0, joined(weights, x, h, c), [h, c])


def _in_every_step(weights, x, mask, h, c):
    return held(tf.constant([True, False, True]), joined(weights, x, h, c), [h, c])


def _of_other_states(weights, x, mask, h, c):
    return held(mask, joined(weights, x, h, c), [c, h])


def _of_scaled_states(weights, x, mask, h, c):
    return held(mask, joined(weights, x, h, c), [0.5 * h, 0.5 * c])


@pytest.mark.parametrize(
    "cell",
    [
        *(_first_alone, _two_masks, _of_half_the_columns, _of_a_state, _in_every_step),
        *(_of_other_states, _of_scaled_states),
    ],
)
def test_other_choices_of_states_are_no_masks(cell):
    check_keeps_the_loop(cell, ["h", "c"])


def test_an_output_that_no_mask_holds_keeps_the_loop():
    weights = Weights()

    def call(fuse, xs, mask, h):
        def step(h, element):
            new = rnn(weights, element[0], h)
            return held(element[1], new, [h])[0], new[0]

        return tf_ti.scan(step, h, (xs, mask), fuse=fuse)

    check_no_sequence(call, [normal("x", T, B, N), MASK, normal("h", B, H)])


def test_a_number_of_iterations_that_was_taken_for_known_cannot_be_fed():
    with tf.Graph().as_default() as graph:
        length = tf.constant([2, 3])[1] + 1
        xs = tf.ones([4])
        assert graph.is_feedable(length)
        total, _ = tf_ti.scan(lambda c, x: (c + x, None), 0.0, xs, length=length)
        assert not graph.is_feedable(length)
        with tf.compat.v1.Session() as session:
            assert session.run(total) == 4


def test_a_state_of_an_unknown_width_keeps_the_loop():
    weights = Weights()

    def call(xs, h):
        return tf_ti.scan(lambda h, x: (rnn(weights, x, h)[0], None), h, xs, shape_invariants=spec)

    spec = tf.TensorShape([B, None])
    assert count(call, GIVEN[0], tf.TensorSpec([B, None])) == (0, 1)


def test_a_state_of_rank_3_keeps_the_loop():
    weights = Weights()

    def step(h, x):
        return rnn(weights, x, h[0])[0][None], None

    assert count(lambda: tf_ti.scan(step, GIVEN[1][None], GIVEN[0])) == (0, 1)


def test_the_last_value_of_what_is_no_state_keeps_the_loop():
    weights = Weights()

    def call(x, h):
        def body(piece, h):
            (h,) = rnn(weights, piece[0], h)
            return h, tf.exp(h)

        port_map = PortMap(
            [InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0), OutputPort(1, 1)]
        )
        return tf_ti.tensor_iterator(body, [x, h], port_map, [BackEdge(0, 1)])

    assert count(call, *GIVEN[:2]) == (0, 1)


# --- what is shown -------------------------------------------------------------------------------


def test_the_op_has_the_name_of_the_loop():
    weights = Weights()

    def call(xs, h):
        return tf_ti.scan(lambda h, x: (rnn(weights, x, h)[0], None), h, xs, name="mine")

    graph = tf.function(call).get_concrete_function(*GIVEN[:2]).graph
    (op,) = (op for op in graph.get_operations() if op.type == SEQUENCE)
    assert op.name.startswith("mine/")


def test_a_drawing_says_what_the_loop_became():
    weights = Weights()

    def draw(cell, **options):
        with tf_ti.Loop("mine", **options) as loop:
            loop.add_trip_limit(T, TripLimit.COUNT)
            x, h = loop.add_iterator(GIVEN[0]), loop.add_recurrence(GIVEN[1])
            (h.next,) = cell(weights, x, h)
            loop.add_loop_output(h, LoopOutput.LAST_VALUE)
        return loop.draw()

    drawings = []
    tf.function(lambda: drawings.extend([draw(rnn), draw(rnn, fuse=False), draw(residual)]))()
    fused, whole, moved = (text.splitlines()[:2] for text in drawings[-3:])
    assert fused == ["loop mine", "  runs as one sequence of RNN cells"]
    assert whole == ["loop mine", "  outside"]
    assert moved == ["loop mine", "  computed before it, for all iterations: MatMul"]
