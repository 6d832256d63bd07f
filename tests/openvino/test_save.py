"""`tf_ti.openvino.save`: what it writes answers as the function does, in OpenVINO and loaded again.

OpenVINO computes float64 in float32, and int64 in int32.
"""

import collections
import importlib
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti
import tf_ti.openvino
from tf_ti import BackEdge, InputPort, LoopOutput, OutputPort, PortMap, TripLimit
from tf_ti.openvino import IRError

ov = pytest.importorskip("openvino")
openvino_models = importlib.import_module("openvino_models")
openvino_saving = importlib.import_module("openvino_saving")
from openvino_saving import check, randoms, specs, types  # noqa: E402

# --- TensorIterator -------------------------------------------------------------------------------


def running(fuse=True, out=None, **port):
    """Slices of x, a state that is an output too, and what is concatenated."""

    def body(piece, state):
        state = tf.tanh(state + tf.reduce_sum(piece, 1, keepdims=True))
        return state, piece * state

    def run(x, state):
        ports = PortMap(
            [InputPort(0, 0, axis=1, **port), InputPort(1, 1)],
            [OutputPort(0, 0), OutputPort(1, 1, axis=1, **(out or {})), OutputPort(2, 0, axis=-1)],
        )
        return tf_ti.tensor_iterator(body, [x, state], ports, [BackEdge(0, 1)], fuse=fuse)

    return run


WHOLE = {
    "in pairs": {"stride": 2},
    "in pairs, backwards": {"start": -1, "end": 0, "stride": -2, "part_size": 2},
}
PARTS = {
    "within": {"start": 1, "end": -2},
    "within, backwards": {"start": 6, "end": 2, "stride": -1},
    "with gaps": {"stride": 3, "part_size": 2},
    "overlapping": {"start": -2, "end": 1, "stride": -1, "part_size": 3},
}


@pytest.mark.parametrize("port", WHOLE.values(), ids=WHOLE)
def test_tensor_iterator_over_whole_ranges(port, tmp_path):
    arrays = [randoms(2, 8), randoms(2, 1)]
    assert "TensorIterator" in check(running(fuse=False, **port), arrays, tmp_path)


@pytest.mark.parametrize("port", PARTS.values(), ids=PARTS)
def test_tensor_iterator_over_ranges_that_openvino_does_not_have(port, tmp_path):
    found = check(running(fuse=False, **port), [randoms(2, 8), randoms(2, 1)], tmp_path)
    assert "Loop" in found and "TensorIterator" not in found


def test_tensor_iterator_with_dynamic_shapes_and_a_reversed_output(tmp_path):
    out = {"start": -1, "end": 0, "stride": -1}
    signature = [tf.TensorSpec([None, None]), tf.TensorSpec([None, 1])]
    check(running(out=out), [randoms(3, 5), randoms(3, 1)], tmp_path, signature=signature)


@pytest.mark.parametrize("form", ["slice first", "scaled"])
def test_a_state_is_kept_whatever_the_order_of_operands(form, tmp_path):
    """OpenVINO's CPU plugin loses it where memory of Parameters is reused."""
    w = randoms(4, 4)

    def step(state, x):
        product = tf.matmul(state, w)
        total = {"slice first": x + product, "product first": product + x}.get(
            form, x * 2 + product
        )
        return tf.tanh(total), tf.tanh(total)

    def run(x, state):
        return tf_ti.scan(step, state, x, axis=1, fuse=False)

    assert "TensorIterator" in check(run, [randoms(2, 5, 4), randoms(2, 4)], tmp_path)


# --- scan -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axis", "reverse", "dynamic"), [(0, False, False), (0, True, True), (1, True, False)]
)
def test_scan_over_structures(axis, reverse, dynamic, tmp_path):
    w = tf.Variable(randoms(3, 3))

    def step(carry, element):
        h = tf.tanh(carry["h"] @ w + element["x"])
        return {"h": h, "n": carry["n"] + 1}, (carry["h"] * element["x"], tf.reduce_sum(h, -1))

    def run(x):
        init = {"h": tf.zeros([tf.shape(x)[1 - axis], 3]), "n": tf.constant(0)}
        return tf_ti.scan(step, init, {"x": x}, axis=axis, reverse=reverse, fuse=False)

    assert "TensorIterator" in check(run, [randoms(5, 4, 3)], tmp_path, dynamic)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32])
def test_scan_of_other_dtypes(dtype, tmp_path):
    def run(x):
        return tf_ti.scan(lambda c, e: (c + e, c * e), tf.ones([3], x.dtype), x)

    x = (4 * randoms(4, 3)).astype(dtype)
    check(run, [x], tmp_path, tolerance=5e-3 if dtype == np.float16 else 1e-5)


def test_a_recognised_cell_is_a_sequence(tmp_path):
    w, r = randoms(3, 16), randoms(4, 16)

    def step(carry, x):
        h, c = carry
        i, f, g, o = tf.split(x @ w + h @ r, 4, 1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        return (h, c), h

    def run(x, h, c):
        return tf_ti.scan(step, (h, c), x, axis=1)

    arrays = [randoms(2, 5, 3), randoms(2, 4), randoms(2, 4, seed=1)]
    assert "LSTMSequence" in check(run, arrays, tmp_path)


@pytest.mark.parametrize("rank", [None, 2])
def test_a_slice_to_the_end_that_only_the_run_knows(rank, tmp_path):
    arrays = randoms(2, 3), np.int32([0, 1]), np.int32([2, -1])
    signature = [tf.TensorSpec([None, None]), *[tf.TensorSpec([rank], tf.int32)] * 2]
    check(tf.slice, arrays, tmp_path, signature=signature)


@pytest.mark.parametrize("function", [tf.math.log1p, tf.math.expm1])
def test_digits_near_zero_are_kept(function, tmp_path):
    x = np.float32([1e-9, -1e-6, 1e-5, 0.4, 0.6, 5, -0.9])
    path = str(tmp_path / "model.xml")
    tf_ti.openvino.save(function, path, specs([x]))
    (found,) = openvino_models.run(path, [x])
    np.testing.assert_allclose(found, function(x), rtol=1e-6)


def test_a_sequence_of_no_steps_is_refused(tmp_path):
    w, r = randoms(1, 2, 3), randoms(1, 2, 2)

    def none(x, h):
        return tf_ti.rnn_sequence(x, h, None, w, r, None)

    arrays = np.zeros([2, 0, 3], np.float32), randoms(2, 1, 2)
    with pytest.raises(IRError, match="no steps"):
        tf_ti.openvino.save(none, tmp_path / "m.xml", specs(arrays))


@pytest.mark.parametrize(
    "function, dtype, said",
    [
        (lambda x: tf.argmax(x, 1, output_type=tf.uint16), np.float32, "uint16"),
        (lambda x: tf.argmax(x, 1), np.bool_, "booleans"),
    ],
)
def test_positions_of_maxima_that_openvino_does_not_have(function, dtype, said, tmp_path):
    with pytest.raises(IRError, match=said):
        tf_ti.openvino.save(function, tmp_path / "m.xml", [tf.TensorSpec([2, 3], dtype)])


def test_a_model_of_keras_gets_a_dictionary_in_its_own_order(tmp_path):
    inputs = collections.OrderedDict((name, keras.Input((2,), name=name)) for name in ("zz", "aa"))
    model = keras.Model(inputs, inputs["zz"] - inputs["aa"])
    tf_ti.openvino.save(model, tmp_path / "model.xml")
    given = {"zz": np.full([1, 2], 7.0, np.float32), "aa": np.ones([1, 2], np.float32)}
    assert tf_ti.openvino.load(tmp_path / "model.xml")(**given)[0].numpy().tolist() == [[6, 6]]


@pytest.mark.parametrize("way", ["scan", "loop"])
def test_a_loop_of_no_iterations_is_refused(way, tmp_path):
    def scan(h):
        return tf_ti.scan(lambda h, x: (h + x, h), h, tf.zeros([0, 3]))

    def loop(h):
        with tf_ti.Loop() as loop:
            loop.add_trip_limit(0, TripLimit.COUNT)
            state = loop.add_recurrence(h)
            state.next = state + 1.0
            last = loop.add_loop_output(state, LoopOutput.LAST_VALUE)
        return last.tensor

    with pytest.raises(IRError, match="no iterations"):
        tf_ti.openvino.save(
            {"scan": scan, "loop": loop}[way], tmp_path / "m.xml", specs([randoms(3)])
        )
    assert not list(tmp_path.iterdir())


def test_a_scan_in_a_scan(tmp_path):
    def outer(total, rows):
        def inner(carry, row):
            return tf.tanh(carry + row * tf.reduce_sum(total)), ()

        last, _ = tf_ti.scan(inner, tf.zeros([3]), rows, fuse=False)
        return total + last, last

    def run(x):
        return tf_ti.scan(outer, tf.zeros([3]), x, fuse=False)

    found = check(run, [randoms(4, 5, 3)], tmp_path)
    assert "TensorIterator" in found and "Loop" in found


# --- Loop -----------------------------------------------------------------------------------------


def counted(x, h, count=4, length=None):
    with tf_ti.Loop() as loop:
        loop.add_trip_limit(count, TripLimit.COUNT)
        there, back = loop.add_iterator(x, axis=1), loop.add_iterator(x, axis=1, reverse=True)
        state = loop.add_recurrence(h)
        state.next = tf.tanh(state + there) * back
        outputs = [
            loop.add_loop_output(state, LoopOutput.LAST_VALUE),
            loop.add_loop_output(state + 1, LoopOutput.CONCATENATE, axis=1, length=length),
            loop.add_loop_output(state, LoopOutput.REVERSE, length=length),
        ]
    return [tf.convert_to_tensor(output) for output in outputs]


@pytest.mark.parametrize("extent", [4, 6], ids=["all", "more elements than iterations"])
def test_a_counted_loop(extent, tmp_path):
    assert "Loop" in check(counted, [randoms(2, extent, 3), randoms(2, 3)], tmp_path)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_loop_counted_by_an_input_with_a_length(dynamic, tmp_path):
    def run(x, h, count):
        return counted(x, h, count, count + 2)

    arrays = [randoms(2, 6, 3), randoms(2, 3), np.int32(5)]
    signature = [tf.TensorSpec(a.shape, a.dtype) for a in arrays]
    if dynamic:
        signature[:2] = tf.TensorSpec([None, None, 3]), tf.TensorSpec([None, 3])
    check(run, arrays, tmp_path, signature=signature)


@pytest.mark.parametrize(("limit", "count"), [(10.0, None), (10.0, 2), (-100.0, None)])
def test_a_while_loop_whose_condition_reads_an_iterator(count, limit, tmp_path):
    def run(x, initial):
        with tf_ti.Loop() as loop:
            state, element = loop.add_recurrence(initial), loop.add_iterator(x)
            total = tf.reduce_sum(state) + element[0]
            loop.add_trip_limit(total < limit, TripLimit.WHILE)
            if count is not None:
                loop.add_trip_limit(count, TripLimit.COUNT)
            state.next = state + tf.abs(element) + total * 0.01 + 1
            outputs = [
                loop.add_loop_output(state, LoopOutput.LAST_VALUE),
                loop.add_loop_output(state * 2, LoopOutput.CONCATENATE),
                loop.add_loop_output(state, LoopOutput.REVERSE),
            ]
        return [tf.convert_to_tensor(output) for output in outputs]

    check(run, [randoms(9, 2), randoms(2)], tmp_path)


def test_states_that_change_places_and_a_state_that_grows(tmp_path):
    def run(a, b):
        with tf_ti.Loop() as loop:
            loop.add_trip_limit(3, TripLimit.COUNT)
            x, y = loop.add_recurrence(a), loop.add_recurrence(b)
            x.next, y.next = y, x
            rows = loop.add_recurrence(a, shape=[None, 3])
            rows.next = tf.concat([rows, tf.convert_to_tensor(rows)[:1] * 2], 0)
            outputs = [loop.add_loop_output(s, LoopOutput.LAST_VALUE) for s in (x, y, rows)]
        return [tf.convert_to_tensor(output) for output in outputs]

    check(run, [randoms(2, 3), randoms(2, 3, seed=1)], tmp_path)


def test_loops_that_nest(tmp_path):
    def run(x):
        with tf_ti.Loop() as outer:
            outer.add_trip_limit(3, TripLimit.COUNT)
            rows, total = outer.add_iterator(x), outer.add_recurrence(tf.zeros([2]))
            with tf_ti.Loop() as inner:
                inner.add_trip_limit(4, TripLimit.COUNT)
                row = inner.add_iterator(tf.convert_to_tensor(rows))
                state = inner.add_recurrence(tf.convert_to_tensor(total))
                state.next = state * 0.5 + row
                last = inner.add_loop_output(state, LoopOutput.LAST_VALUE)
            total.next = last
            output = outer.add_loop_output(total, LoopOutput.CONCATENATE)
        return tf.convert_to_tensor(output)

    assert check(run, [randoms(3, 4, 2)], tmp_path).count("Loop") == 2


# --- Recurrent sequences --------------------------------------------------------------------------

GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def layer(kind, direction="forward", lengths=False, mask=False, **options):
    """A sequence as a function of its input, states, and lengths or mask; and arrays for it."""
    directions = 2 if direction == "bidirectional" else 1
    rows = 4 * GATES[kind]
    w, r = randoms(directions, rows, 3), randoms(directions, rows, 4)
    b = randoms(directions, rows + 4 * bool(options.get("linear_before_reset")))
    sequence = getattr(tf_ti, f"{kind}_sequence")
    num_states = 2 if kind == "lstm" else 1

    def run(x, *rest):
        states, rest = rest[:num_states], rest[num_states:]
        which = {"mask": rest[0]} if mask else {}
        return sequence(
            x,
            *states,
            rest[0] if lengths else None,
            w,
            r,
            b,
            direction=direction,
            **which,
            **options,
        )

    arrays = [randoms(5, 2, 3) if options.get("time_major") else randoms(2, 5, 3)]
    arrays += [randoms(2, directions, 4, seed=k) for k in range(num_states)]
    if lengths:
        arrays.append(np.array([2, 5], np.int32))
    if mask:
        arrays.append(np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], bool))
    return run, arrays


SEQUENCES = {
    "lstm": ("lstm", {}),
    "lstm, lengths": ("lstm", {"direction": "bidirectional", "lengths": True}),
    "lstm, time first": ("lstm", {"direction": "reverse", "time_major": True}),
    "gru": ("gru", {"direction": "bidirectional", "lengths": True}),
    "gru, reset after": ("gru", {"linear_before_reset": True}),
    "rnn": ("rnn", {"direction": "reverse", "activations": ["relu"], "clip": 0.7}),
}
STEPS = {
    "mask": ("lstm", {"mask": True, "hold_output": True}),
    "other activations": ("lstm", {"activations": ["hard_sigmoid", "relu", "leaky_relu"]}),
    "no kernel": ("rnn", {"activations": ["softsign"]}),
}


@pytest.mark.parametrize(("kind", "options"), SEQUENCES.values(), ids=SEQUENCES)
def test_sequences_are_openvinos(kind, options, tmp_path):
    run, arrays = layer(kind, **options)
    assert f"{kind.upper()}Sequence" in check(run, arrays, tmp_path, tolerance=1e-4)


@pytest.mark.parametrize(("kind", "options"), STEPS.values(), ids=STEPS)
def test_sequences_that_openvino_does_not_have_are_loops_of_steps(kind, options, tmp_path):
    run, arrays = layer(kind, **options)
    assert "TensorIterator" in check(run, arrays, tmp_path, tolerance=1e-4)


@pytest.mark.parametrize("lengths", [False, True], ids=["all steps", "lengths"])
def test_sequences_of_dynamic_shapes(lengths, tmp_path):
    run, arrays = layer("lstm", "bidirectional", lengths=lengths)
    signature = [tf.TensorSpec([None, None, 3]), *[tf.TensorSpec([None, 2, 4])] * 2]
    signature += [tf.TensorSpec([None], tf.int32)] * lengths
    found = check(run, arrays, tmp_path, signature=signature, tolerance=1e-4)
    assert ("LSTMSequence" in found) != lengths  # whose lengths OpenVINO would not look at


@pytest.mark.parametrize("kind", GATES)
def test_cells(kind, tmp_path):
    w, r = randoms(4 * GATES[kind], 3), randoms(4 * GATES[kind], 4)

    def run(x, *states):
        return getattr(tf_ti, f"{kind}_cell")(x, *states, w, r)

    states = [randoms(2, 4, seed=k) for k in range(2 if kind == "lstm" else 1)]
    check(run, [randoms(2, 3), *states], tmp_path)


# --- Operations around them -----------------------------------------------------------------------


def both(function):
    """Of x [2, 3] and y [3], neither of them zero."""
    return function, [randoms(2, 3), randoms(3) + 2]


def one(function, *shape):
    return function, [randoms(*(shape or (2, 3)))]


OPERATIONS = {
    "arithmetic": both(lambda x, y: [x + y, x - y, x * y, x / y, x**2, x // y, x % y]),
    "extremes": both(lambda x, y: [tf.maximum(x, y), tf.minimum(x, y), tf.clip_by_value(x, 0, y)]),
    "tests": both(
        lambda x, y: [x < y, x <= 0.0, x > y, x >= y, tf.equal(x, x), tf.not_equal(x, y)]
    ),
    "logic": both(lambda x, y: [(x < 0) & (y > 2), (x < 0) | (y > 2), ~(x < 0)]),
    "where": both(lambda x, y: tf.where(x > 0, x, y)),
    "no nan": both(lambda x, y: tf.math.divide_no_nan(y, tf.nn.relu(x))),
    "functions": one(
        lambda x: [
            f(x)
            for f in (
                *(tf.abs, tf.exp, tf.sigmoid, tf.tanh, tf.sin, tf.cos, tf.atan, tf.floor, tf.sign),
                *(tf.nn.relu, tf.nn.relu6, tf.nn.elu, tf.nn.selu, tf.nn.softplus, tf.nn.softsign),
                *(tf.nn.leaky_relu, tf.nn.gelu, tf.nn.silu, tf.math.erf, tf.math.expm1, tf.round),
                *(tf.negative, tf.square, tf.math.ceil, tf.math.is_nan, tf.zeros_like),
            )
        ]
    ),
    "functions of what is above 0": one(
        lambda x: [
            f(tf.abs(x) + 1)
            for f in (tf.sqrt, tf.math.log, tf.math.rsqrt, tf.math.reciprocal, tf.math.log1p)
        ]
    ),
    "casts": one(
        lambda x: [
            tf.cast(3 * x, tf.int32),
            tf.cast(tf.cast(3 * x, tf.int32), tf.bool),
            tf.cast(x > 0, tf.float32),
            tf.cast(x * 0.5, tf.bool),
        ]
    ),
    "integers": (
        lambda x, y: [x // y, x % y, tf.truncatediv(x, y), x + y, -x],
        [np.array([-7, 7, -6, 5], np.int32), np.array([2, -2, 3, 4], np.int32)],
    ),
    "products": both(
        lambda x, y: [
            tf.matmul(x, x, transpose_b=True),
            tf.tensordot(x, y, 1),
            tf.einsum("ij,j->i", x, y),
            tf.linalg.matvec(x, y),
        ]
    ),
    "batches of products": one(lambda x: x @ tf.linalg.matrix_transpose(x), 2, 3, 4),
    "reductions": one(
        lambda x: [
            *(f(x, 1) for f in (tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_prod)),
            tf.reduce_min(x, [0, -1], keepdims=True),
            tf.reduce_all(x > 0, 0),
            tf.reduce_any(x > 0),
        ],
        2,
        3,
        4,
    ),
    "softmax and sums": one(
        lambda x: [tf.nn.softmax(x), tf.nn.log_softmax(x), tf.cumsum(x, 1, reverse=True)]
    ),
    "largest": one(lambda x: [tf.argmax(x, 1), tf.argmin(x, 0), *tf.math.top_k(x, 2)], 3, 5),
    "joined and split": both(
        lambda x, y: [
            tf.concat([x, x], -1),
            tf.stack([y, y * 2], 1),
            *tf.unstack(x, axis=1),
            *tf.split(x, 3, 1),
            *tf.split(x, [1, 2], 1),
        ]
    ),
    "shapes": one(
        lambda x: [
            tf.reshape(x, [-1, 2]),
            tf.reshape(x, tf.stack([tf.shape(x)[1], -1])),
            tf.transpose(x, [2, 0, 1]),
            tf.expand_dims(x, -1),
            tf.squeeze(x[:, :1], 1),
            tf.shape(x),
            tf.size(x),
            tf.ones_like(x),
            tf.fill([2, tf.shape(x)[0]], x[0, 0, 0]),
        ],
        2,
        3,
        4,
    ),
    "slices": one(
        lambda x: [
            x[1],
            x[-1, 1:],
            x[..., ::2],
            x[:, ::-1],
            x[:, tf.newaxis, 1],
            x[..., tf.newaxis],
            tf.slice(x, [0, 1, 1], [1, -1, 2]),
            tf.slice(x, tf.shape(x) - [1, 1, 2], [1, -1, 2]),
        ],
        2,
        3,
        4,
    ),
    "gathered": one(
        lambda x: [
            tf.gather(x, [2, 0], axis=1),
            tf.gather(x, [[1], [0]], axis=1, batch_dims=1),
            tf.gather_nd(x, [[0, 1], [1, 2]]),
            tf.one_hot(tf.argmax(x, 1), 3, 2.0, -1.0),
        ]
    ),
    "padded and repeated": one(
        lambda x: [
            tf.pad(x, [[1, 0], [0, 2]], constant_values=3.0),
            tf.pad(x, [[0, 1], [1, 1]], "REFLECT"),
            tf.tile(x, [2, 1]),
            tf.broadcast_to(x, [2, 2, 3]),
            tf.broadcast_to(x[:1], tf.broadcast_dynamic_shape([4, 2, 1], tf.shape(x))),
            tf.reverse(x, [-1]),
            tf.reverse_sequence(x, [1, 3], 1),
            tf.range(tf.shape(x)[1]),
            tf.where(x > 0),
        ]
    ),
    "bias": both(lambda x, y: tf.nn.bias_add(x, y)),
    "booleans in a conditional": (
        lambda x, c, d: tf.cond(c[0], lambda: tf.where(c, d, c), lambda: d),
        [randoms(3), np.array([True, False, True]), np.array([False, False, True])],
    ),
    "conditional": (
        lambda x, p: tf.cond(p, lambda: (x * 2, x + 1), lambda: (tf.tanh(x), x)),
        [randoms(2, 3), np.array(False)],
    ),
    "the input itself and a constant": one(lambda x: [x, tf.constant([1.0, 2.0]), x]),
}


@pytest.mark.parametrize(("function", "arrays"), OPERATIONS.values(), ids=OPERATIONS)
def test_operations(function, arrays, tmp_path):
    check(function, arrays, tmp_path)


MOVES = "shapes", "slices", "joined and split", "gathered", "padded and repeated"


@pytest.mark.parametrize("name", MOVES)
def test_operations_on_dynamic_shapes(name, tmp_path):
    check(*OPERATIONS[name], tmp_path, dynamic=True)


ROOT = np.float32(np.sqrt(2))
GELU = {
    "TensorFlow's": tf.nn.gelu,
    "half last": lambda x: x * tf.math.erfc(-x / ROOT) * 0.5,
    "half of x": lambda x: tf.math.erfc(x * (-1 / ROOT)) * (x / 2),
}
OTHERS = {
    "another scale": lambda x: 0.5 * x * tf.math.erfc(-0.7 * x),
    "another share": lambda x: 0.25 * x * tf.math.erfc(-x / ROOT),
    "the other tail": lambda x: 0.5 * x * tf.math.erfc(x / ROOT),
    "another factor": lambda x: 0.5 * (x + 1) * tf.math.erfc(-x / ROOT),
}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_gelu_is_one_layer(dtype, tmp_path):
    x, tolerance = 3 * randoms(2, 3, dtype=dtype), 3e-3 if dtype == np.float16 else 3e-6
    assert check(tf.nn.gelu, [x], tmp_path, tolerance=tolerance).count("Gelu") == 1


@pytest.mark.parametrize(("function", "count"), [
    *((function, 1) for function in GELU.values()), *((function, 0) for function in OTHERS.values())
], ids=[*GELU, *OTHERS])  # fmt: skip
def test_what_is_gelu(function, count, tmp_path):
    found = check(function, [3 * randoms(2, 3)], tmp_path)
    assert (found.count("Gelu"), "Erf" in found) == (count, not count)


def test_gelu_beside_what_else_its_parts_are_for(tmp_path):
    def run(x):
        half, tail = x / 2, tf.math.erfc(-x / ROOT)
        return half * tail, half, tail, half * tail * x

    check(run, [randoms(2, 3)], tmp_path)


def test_shapes_that_do_not_go_together_are_an_error(tmp_path):
    def run(x, y):
        return tf.broadcast_to(x, tf.broadcast_dynamic_shape(tf.shape(x), tf.shape(y)))

    check(run, [randoms(3, 2), randoms(1, 2)], tmp_path, dynamic=True)
    check(run, [randoms(1, 2), randoms(4, 2)], tmp_path, dynamic=True)
    path = str(tmp_path / "model.xml")
    arrays = [randoms(3, 2), randoms(4, 2)]
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf_ti.openvino.load(path)(*arrays)
    with pytest.raises(RuntimeError, match="Broadcast"):
        openvino_models.run(path, arrays)


def test_functions_that_are_called_are_part_of_the_network(tmp_path):
    inner = tf.function(lambda x: tf.nn.relu(x) + 1)

    def run(x):
        tf.debugging.assert_less(x, 100.0)  # which is left out
        return inner(inner(x))

    assert check(run, [randoms(2, 3)], tmp_path).count("Relu") == 2


# --- What can be saved, and names -----------------------------------------------------------------


def keras_model():
    a = keras.Input((None, 3), name="sequence")
    b = keras.Input((2,), name="features")
    y = keras.layers.Bidirectional(tf_ti.keras.LSTM(4, return_sequences=True))(a)
    y = keras.layers.Concatenate()([tf_ti.keras.GRU(3)(y), b])
    return keras.Model([a, b], {"score": keras.layers.Dense(1, "sigmoid")(y), "code": y})


def test_a_model_of_keras_with_names_and_a_dynamic_batch(tmp_path):
    model, path = keras_model(), str(tmp_path / "model.xml")
    arrays = [randoms(2, 5, 3), randoms(2, 2)]
    tf_ti.openvino.save(model, path)
    expected = model(arrays)
    hint = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino_models.CORE.compile_model(path, "CPU", hint)
    found = compiled(dict(zip(("sequence", "features"), arrays)))
    loaded = tf_ti.openvino.load(path)
    assert [info.name for info in loaded.inputs] == ["sequence", "features"]
    assert loaded.inputs[0].shape.as_list() == [None, None, 3]
    again = dict(zip([info.name for info in loaded.outputs], loaded(*arrays)))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, 1e-4, 1e-4)
        np.testing.assert_allclose(again[name], value, 1e-4, 1e-4)
    assert types(path).count("LSTMSequence") == 2 and "GRUSequence" in types(path)


def test_what_was_loaded_can_be_saved_and_loaded_again(tmp_path):
    first, second = (str(tmp_path / name) for name in ("first.xml", "second.xml"))
    run, arrays = layer("gru", "bidirectional")
    tf_ti.openvino.save(run, first, specs(arrays))
    loaded = tf_ti.openvino.load(first)
    tf_ti.openvino.save(loaded, second)
    for value, right in zip(tf_ti.openvino.load(second)(*arrays), loaded(*arrays)):
        np.testing.assert_allclose(value, right, 1e-5, 1e-5)


class Module(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable([1.0, 2.0])

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="rows")])
    def __call__(self, rows):
        return {"scaled": rows * self.w, "parts": (rows, -rows)}


@pytest.mark.parametrize("kind", ["module", "function", "concrete function", "examples"])
def test_what_has_a_signature_can_be_saved(kind, tmp_path):
    module, path = Module(), str(tmp_path / "model.xml")
    concrete = module.__call__.get_concrete_function()
    function = {"module": module, "function": module.__call__, "concrete function": concrete}
    examples = [np.ones([1, 2], np.float32)] if kind == "examples" else None
    tf_ti.openvino.save(function.get(kind, lambda rows: module(rows)), path, examples)
    loaded = tf_ti.openvino.load(path)
    assert loaded.inputs[0].name == "rows"
    assert [info.name for info in loaded.outputs] == ["scaled", "parts/0", "parts/1"]
    np.testing.assert_array_equal(loaded([[1.0, 2.0]])[0], [[1.0, 4.0]])


def test_a_constant_stands_in_the_file_once(tmp_path):
    w = randoms(64, 64)

    def run(x):
        return x @ tf.constant(w) @ tf.constant(w.copy())

    path = str(tmp_path / "model.xml")
    tf_ti.openvino.save(run, path, [tf.TensorSpec([None, 64])])
    assert os.path.getsize(tmp_path / "model.bin") == w.nbytes


def test_names_that_xml_must_escape(tmp_path):
    path = str(tmp_path / "model.xml")
    tf_ti.openvino.save(lambda x: {'<a & "b">, \x01': x + 1}, path, [tf.TensorSpec([2])])
    (output,) = openvino_models.CORE.read_model(path).outputs
    assert output.get_any_name() == '<a & "b">, _'
    assert tf_ti.openvino.load(path).outputs[0].name == '<a & "b">, _'


# --- What cannot be saved -------------------------------------------------------------------------


def refused(function, folder, *signature, match):
    with pytest.raises(IRError, match=match):
        tf_ti.openvino.save(function, folder / "model.xml", list(signature))
    assert os.listdir(folder) == []


def test_all_operations_that_are_not_supported_are_named(tmp_path):
    def run(x):
        y = tf.linalg.qr(x)[0]
        last, _ = tf_ti.scan(lambda c, e: (tf.math.lgamma(c) + e, ()), x[0], y, fuse=False)
        return tf.linalg.svd(y)[0] + last

    refused(run, tmp_path, tf.TensorSpec([3, 3]), match="(?s)Lgamma.*Qr.*Svd")


def shown(x):
    tf.print(x)
    return x


EFFECTS = {
    "a print": (shown, "PrintV2"),
    "random numbers": (lambda x: x + tf.random.normal([2]), "RandomStandardNormal"),
    "a complex number": (lambda x: tf.tan(tf.complex(x, x)), "Tan of complex numbers"),
    "a gradient": (
        lambda x: tf.gradients(tf_ti.scan(lambda c, e: (c * e, c), x[0], x)[0], x),
        "Sequence|sequence|reverse",
    ),
}


@pytest.mark.parametrize(("function", "match"), EFFECTS.values(), ids=EFFECTS)
def test_what_ir_cannot_express_is_named(function, match, tmp_path):
    refused(tf.function(function), tmp_path, tf.TensorSpec([2]), match=match)


def test_an_input_of_strings_is_named(tmp_path):
    refused(tf.identity, tmp_path, tf.TensorSpec([2], tf.string, "words"), match="'words'.*string")


@pytest.mark.parametrize("where", ["missing/model.xml", "folder.xml"])
def test_a_path_that_cannot_be_written_leaves_nothing(where, tmp_path):
    (tmp_path / "folder.xml").mkdir()
    with pytest.raises(IRError, match=f"{where}|model.bin"):
        tf_ti.openvino.save(lambda x: x + 1, tmp_path / where, [tf.TensorSpec([2])])
    assert os.listdir(tmp_path) == ["folder.xml"] and os.listdir(tmp_path / "folder.xml") == []


def test_a_failure_leaves_the_files_that_were_there(tmp_path):
    path = tmp_path / "model.xml"
    tf_ti.openvino.save(lambda x: x + [1.0, 2.0], path, [tf.TensorSpec([2])])
    before = [(tmp_path / name).read_bytes() for name in ("model.xml", "model.bin")]
    with pytest.raises(IRError):
        tf_ti.openvino.save(tf.math.lgamma, path, [tf.TensorSpec([2])])
    assert [(tmp_path / name).read_bytes() for name in ("model.xml", "model.bin")] == before


WRONG = {
    "no signature": (lambda x: x, "model.xml", None, ValueError, "input_signature must be given"),
    "no function": (3, "model.xml", None, TypeError, "function must be callable"),
    "no list": (lambda x: x, "model.xml", tf.TensorSpec([2]), TypeError, "must be a list"),
    "another file": (
        lambda x: x,
        "model.bin",
        [tf.TensorSpec([2])],
        ValueError,
        "must end in .xml",
    ),
}


@pytest.mark.parametrize(
    ("function", "name", "signature", "kind", "match"), WRONG.values(), ids=WRONG
)
def test_wrong_arguments(function, name, signature, kind, match, tmp_path):
    with pytest.raises(kind, match=match):
        tf_ti.openvino.save(function, tmp_path / name, signature)
    assert os.listdir(tmp_path) == []


def test_a_network_has_the_name_of_the_model_or_function(tmp_path):
    def half_of(x):
        return x / 2

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="my_model")
    for function, signature in (half_of, [tf.TensorSpec([2])]), (model, None):
        tf_ti.openvino.save(function, tmp_path / "model.xml", signature)
        name = openvino_models.CORE.read_model(str(tmp_path / "model.xml")).friendly_name
        assert name == getattr(function, "__name__", "my_model")


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.recurrent = keras.layers.LSTM(4, return_sequences=True)
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, sequence):
        return self.dropout(self.recurrent(sequence))


def test_layers_of_keras_are_sequences(tmp_path):
    """Of a model that is a subclass, given a signature; masks and other activations are loops."""
    model, path = Subclassed(), tmp_path / "model.xml"
    x = randoms(2, 5, 3)
    right = model(x)
    tf_ti.openvino.save(model, path, [tf.TensorSpec([None, 5, 3])])
    loaded = tf_ti.openvino.load(path)
    assert loaded.inputs[0].name == "sequence" and "LSTMSequence" in types(path)
    np.testing.assert_allclose(loaded(x)[0], right, 1e-5, 1e-5)
    assert type(model.recurrent) is keras.layers.LSTM
    with pytest.raises(ValueError, match="input_signature must be given: 'subclassed"):
        tf_ti.openvino.save(Subclassed(), path)


KERAS = {
    "bidirectional": lambda layers: layers.Bidirectional(layers.GRU(3, reset_after=False)),
    "backwards": lambda layers: layers.SimpleRNN(4, return_sequences=True, go_backwards=True),
    "cells": lambda layers: layers.RNN([layers.LSTMCell(3), layers.GRUCell(4)]),
    "unrolled": lambda layers: layers.LSTM(3, unroll=True),
    "in time": lambda layers: layers.TimeDistributed(layers.Dense(2)),
}


@pytest.mark.parametrize("make", KERAS.values(), ids=KERAS)
def test_recurrent_layers_of_keras(make, tmp_path):
    inputs = keras.Input((5,), dtype="int32")
    for mask_zero in False, True:
        x = keras.layers.Embedding(10, 3, mask_zero=mask_zero)(inputs)
        model = keras.Model(inputs, make(keras.layers)(x))
        path = tmp_path / "model.xml"
        tf_ti.openvino.save(model, path)
        ids = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 0]], np.int32)
        for found in openvino_models.run(path, [ids])[0], tf_ti.openvino.load(path)(ids)[0]:
            np.testing.assert_allclose(found, model(ids), 1e-5, 1e-5)


# --- models of classes of their own ---------------------------------------------------------------


class OfTwo(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(2)

    def call(self, given):
        return {"sum": self.layer(given["a"]) + self.layer(given["b"])}


class OfOne(OfTwo):
    def call(self, x):
        return self.layer(x)


@pytest.mark.parametrize("kind", [OfOne, OfTwo])
def test_a_model_of_a_class_of_its_own_is_written_as_it_was_built(kind, tmp_path):
    path, model = str(tmp_path / "model.xml"), kind()
    arrays = [randoms(4, 3), randoms(4, 3, seed=1)][: 1 if kind is OfOne else 2]
    given = arrays[0] if kind is OfOne else dict(zip("ab", arrays))
    with pytest.raises(ValueError, match="input_signature must be given.*has not been built"):
        tf_ti.openvino.save(model, path)
    model(tf.nest.map_structure(lambda x: x[:1], given))
    tf_ti.openvino.save(model, path)
    (wanted,) = tf.nest.flatten(model(given))
    np.testing.assert_allclose(openvino_models.run(path, arrays)[0], wanted, atol=1e-5)


class OfSeveral(keras.Model):
    def call(self, a, b):
        return a + b


class OfAny(keras.Model):
    def call(self, *args):
        return args[0] + args[1]


@pytest.mark.parametrize("kind", [OfSeveral, OfAny])
def test_a_model_whose_build_does_not_tell_its_inputs_needs_a_signature(kind, tmp_path):
    model, x = kind(), randoms(2, 3)
    model(x, x)
    with pytest.raises(ValueError, match="input_signature must be given.*does not tell"):
        tf_ti.openvino.save(model, tmp_path / "model.xml")
    tf_ti.openvino.save(model, tmp_path / "model.xml", specs([x, x]))


def test_inputs_in_a_dictionary_have_the_name_of_the_parameter(tmp_path):
    path, model = tmp_path / "model.xml", OfTwo()
    model({"a": randoms(4, 3), "b": randoms(4, 3)})
    tf_ti.openvino.save(model, path)
    inputs = openvino_models.CORE.read_model(path).inputs
    assert [given.any_name for given in inputs] == ["given", "given_1"]


@pytest.mark.parametrize("through", ["function", "model", "saved model"])
def test_the_outputs_of_a_dictionary_keep_its_order(through, tmp_path):
    def structure(x):
        return {"z": x[:, :1], "a": (x[:, :2], {"y": x, "b": -x}), "m": x + 1}

    spec, order = tf.TensorSpec([None, 3]), ["z", "a/0", "a/1/y", "a/1/b", "m"]
    function = tf.function(structure, input_signature=[spec])
    if through == "model":
        given = keras.Input((3,))
        parts = {name: keras.layers.Dense(2)(given) for name in ("z", "a", "m")}
        function, order = keras.Model(given, parts), ["z", "a", "m"]
    elif through == "saved model":  # whose signatures have an order of their own
        module = tf.Module()
        module.call = tf.function(lambda x: {"z": x, "a": -x}, input_signature=[spec])
        tf.saved_model.save(module, tmp_path / "saved", signatures=module.call)
        function = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"]
        order = list(function.structured_outputs)
    tf_ti.openvino.save(function, tmp_path / "model.xml")
    loaded = tf_ti.openvino.load(tmp_path / "model.xml")
    assert [info.name for info in loaded.outputs] == order
    x = tf.constant([[1.0, 2.0, 3.0]])
    found = function(x)
    expected = [tf.nest.flatten(found[name.split("/")[0]]) for name in dict.fromkeys(order)]
    expected = {name: values[0] for name, values in zip(order, expected)}
    if through == "function":
        a, inner = found["a"]
        expected.update({"a/0": a, "a/1/y": inner["y"], "a/1/b": inner["b"]})
    for info, value in zip(loaded.outputs, loaded(x)):
        np.testing.assert_allclose(value, expected[info.name], 1e-5, 1e-5)
