"""`tf_ti`'s sequences and conversions of weights against Keras, torch and ONNX Runtime."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from recurrent_definition import ACTIVATIONS, DEFAULTS, assert_close, make_case

import tf_ti

KINDS = ["lstm", "gru", "rnn"]
LAYERS = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU, "rnn": keras.layers.SimpleRNN}
CELLS = {
    "lstm": keras.layers.LSTMCell,
    "gru": keras.layers.GRUCell,
    "rnn": keras.layers.SimpleRNNCell,
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def run(kind, x, states, weights, **options):
    """y and the last states; states are [batch, directions, hidden]."""
    return getattr(tf_ti, f"{kind}_sequence")(x, *states, None, **weights, **options)


def random_like(rng, arrays):
    return [rng.normal(size=np.shape(a)).astype(np.float32) * 0.5 for a in arrays]


# --- Keras ----------------------------------------------------------------------------------------


def random_keras(rng, kind):
    """A layer with random weights and options, and how it is called."""
    activations = ["tanh", "relu", "sigmoid", "softsign", "elu", "linear", "leaky_relu"]
    options = {"use_bias": bool(rng.integers(3)), "activation": str(rng.choice(activations))}
    if kind != "rnn" and rng.random() < 0.5:
        options["recurrent_activation"] = str(rng.choice(["hard_sigmoid", "tanh"]))
    if kind == "gru":
        options["reset_after"] = bool(rng.integers(2))
    if rng.random() < 0.3:
        options["go_backwards"] = True
    print(kind, options)
    layer = LAYERS[kind](5, return_sequences=True, return_state=True, **options)
    layer.build([None, None, 4])
    layer.set_weights(random_like(rng, layer.get_weights()))
    return layer


@pytest.mark.parametrize("seed", range(9), indirect=True)
def test_a_layer_of_keras_with_a_mask_is_a_sequence_whose_outputs_hold(seed):
    rng, kind = np.random.default_rng(seed), KINDS[seed % 3]
    layer = random_keras(rng, kind)
    x = rng.normal(size=[3, 6, 4]).astype(np.float32)
    states = random_like(rng, [np.zeros([3, 5])] * (2 if kind == "lstm" else 1))
    mask = None if seed % 2 else rng.random([3, 6]) < 0.6
    y, *last = layer(x, initial_state=list(states), mask=mask)
    if layer.go_backwards:
        y = tf.reverse(y, [1])
    expected = [y[:, tf.newaxis], *(state[:, tf.newaxis] for state in last)]
    weights = tf_ti.recurrent.from_keras(layer)
    options = {} if mask is None else {"mask": mask, "hold_output": True}
    states = [state[:, np.newaxis] for state in states]
    assert_close(run(kind, x, states, weights, **options), expected, 1e-5)


@each_kind
def test_a_bidirectional_layer_of_keras_is_a_bidirectional_sequence(kind):
    rng = np.random.default_rng(3)
    layer = keras.layers.Bidirectional(LAYERS[kind](5, return_sequences=True), merge_mode=None)
    layer.build([None, None, 4])
    layer.set_weights(random_like(rng, layer.get_weights()))
    x, mask = rng.normal(size=[3, 6, 4]).astype(np.float32), rng.random([3, 6]) < 0.6
    weights, states = tf_ti.recurrent.from_keras(layer), [np.zeros([3, 2, 5], np.float32)] * 2
    y, *_ = run(kind, x, states[: 2 if kind == "lstm" else 1], weights, mask=mask)
    assert_close(tf.unstack(y, axis=1), layer(x, mask=mask), 1e-5)
    other = keras.layers.Bidirectional(LAYERS[kind](5, return_sequences=True), merge_mode=None)
    other.build([None, None, 4])
    other.set_weights(tf_ti.recurrent.to_keras(weights))
    for ours, theirs in zip(other(x, mask=mask), layer(x, mask=mask)):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("seed", range(6), indirect=True)
def test_weights_go_to_keras_and_back(seed):
    rng, kind = np.random.default_rng(seed), KINDS[seed % 3]
    before_reset = {"linear_before_reset": seed > 2} if kind == "gru" else {}
    case = make_case(rng, kind, 2, 4, 3, 5, np.float32, **before_reset)
    reset_after = {"reset_after": seed > 2} if kind == "gru" else {}
    layer = LAYERS[kind](5, return_sequences=True, return_state=True, **reset_after)
    layer.build([None, None, 3])
    weights = {**dict(zip("wrb", case.weights)), **before_reset}
    layer.set_weights(tf_ti.recurrent.to_keras(weights))
    y, *last = layer(case.x, initial_state=[state[:, 0] for state in case.states])
    assert_close([y[:, None], *(state[:, None] for state in last)], case.expected(), 1e-5)
    converted = tf_ti.recurrent.from_keras(layer)
    for name in "wrb":
        np.testing.assert_array_equal(converted[name], weights[name])


@each_kind
def test_a_cell_of_keras_is_a_cell(kind):
    rng = np.random.default_rng(5)
    cell = CELLS[kind](5)
    cell.build([None, 4])
    cell.set_weights(random_like(rng, cell.get_weights()))
    states = random_like(rng, [np.zeros([3, 5])] * (2 if kind == "lstm" else 1))
    x = rng.normal(size=[3, 4]).astype(np.float32)
    _, expected = cell(x, list(states))
    weights = tf_ti.recurrent.from_keras(cell)
    results = getattr(tf_ti, f"{kind}_cell")(x, *states, **weights)
    assert_close(tf.nest.flatten(results), tf.nest.flatten(expected), 1e-6)
    for ours, theirs in zip(tf_ti.recurrent.to_keras(weights)[:2], cell.get_weights()):
        np.testing.assert_array_equal(ours, theirs)
    layer = keras.layers.RNN(cell)
    assert tf_ti.recurrent.from_keras(layer)["w"].shape == (1, *weights["w"].shape)


@pytest.mark.parametrize("activation", ["hard_sigmoid", "leaky_relu", "elu", "linear"])
def test_activations_of_keras_come_back_from_the_float32_of_onnx(activation):
    layer = keras.layers.SimpleRNN(2, activation=activation)
    layer.build([None, None, 3])
    *arrays, attributes = tf_ti.recurrent.to_onnx(tf_ti.recurrent.from_keras(layer))
    rounded = {
        key: np.float32(attributes[key]).tolist()
        for key in ("activation_alpha", "activation_beta")
        if key in attributes
    }
    weights = tf_ti.recurrent.from_onnx(*arrays, **attributes | rounded)
    for ours, theirs in zip(tf_ti.recurrent.to_keras(weights), layer.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


# --- torch ----------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch", reason="torch is not installed: `make oracles` does it")
    torch.set_num_threads(1)  # which have nothing to wait for on a busy machine
    return torch


@pytest.mark.parametrize("seed", range(6), indirect=True)
def test_random_modules_of_torch_are_sequences_and_so_are_their_gradients(torch, seed):
    rng, kind = np.random.default_rng(seed), KINDS[seed % 3]
    torch.manual_seed(seed)
    both, num_layers = bool(rng.integers(2)), int(rng.integers(1, 3))
    options = {"bidirectional": both, "num_layers": num_layers, "bias": bool(rng.integers(3))}
    if kind == "rnn":
        options["nonlinearity"] = str(rng.choice(["tanh", "relu"]))
    print(kind, options)
    module = getattr(torch.nn, kind.upper())(4, 5, batch_first=True, **options)
    lengths = np.array([6, 4, 1])
    x = torch.randn(3, 6, 4, requires_grad=True)
    states = [torch.randn((1 + both) * num_layers, 3, 5) for _ in range(2 if kind == "lstm" else 1)]
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=True)
    packed, last = module(packed, tuple(states) if kind == "lstm" else states[0])
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    torch.sin(y).sum().backward()

    layers = tf_ti.recurrent.from_torch(module, "all")
    initial = [
        tf.stack(tf.split(tf.transpose(s.numpy(), [1, 0, 2]), num_layers, axis=1)) for s in states
    ]
    with tf.GradientTape() as tape:
        first = ours = tf.constant(x.detach().numpy())
        arrays = [{name: tf.constant(weights[name]) for name in "wrb"} for weights in layers]
        tape.watch([first, arrays])
        finals = []
        for k, weights in enumerate(layers):
            call = getattr(tf_ti, f"{kind}_sequence")
            ours, *final = call(ours, *(s[k] for s in initial), lengths, **(weights | arrays[k]))
            ours = tf.concat(tf.unstack(ours, axis=1), -1)
            finals.append(final)
        loss = tf.reduce_sum(tf.sin(ours))
    np.testing.assert_allclose(ours, y.detach().numpy(), rtol=1e-5, atol=1e-5)
    for i, theirs in enumerate(last if kind == "lstm" else [last]):
        joined = np.concatenate([np.swapaxes(final[i], 0, 1) for final in finals])
        np.testing.assert_allclose(joined, theirs.detach().numpy(), rtol=1e-5, atol=1e-5)
    of_x, of_arrays = tape.gradient(loss, [first, arrays])
    np.testing.assert_allclose(of_x, x.grad.numpy(), rtol=1e-4, atol=1e-5)
    for k, gradients in enumerate(of_arrays):
        # A conversion does to gradients as to weights, but for sums of biases.
        converted = tf_ti.recurrent.to_torch(
            layers[k] | {n: g.numpy() for n, g in gradients.items()}, k
        )
        for name, gradient in converted.items():
            if name.startswith("weight"):
                theirs = getattr(module, name).grad.numpy()
                np.testing.assert_allclose(gradient, theirs, rtol=1e-4, atol=1e-5)


@each_kind
def test_weights_go_to_torch_and_back(torch, kind):
    before_reset = {"linear_before_reset": True} if kind == "gru" else {}
    case = make_case(
        np.random.default_rng(2),
        kind,
        2,
        4,
        3,
        5,
        np.float32,
        direction="bidirectional",
        **before_reset,
    )
    weights = {**dict(zip("wrb", case.weights)), **case.options}
    module = getattr(torch.nn, kind.upper())(3, 5, batch_first=True, bidirectional=True)
    entries = tf_ti.recurrent.to_torch(weights)
    module.load_state_dict({name: torch.tensor(array) for name, array in entries.items()})
    states = [torch.tensor(state).transpose(0, 1).contiguous() for state in case.states]
    y, _ = module(torch.tensor(case.x), tuple(states) if kind == "lstm" else states[0])
    expected = case.expected()[0]
    np.testing.assert_allclose(
        y.detach().numpy(), np.concatenate([expected[:, 0], expected[:, 1]], -1), atol=1e-5
    )
    for source in (module, module.state_dict()):
        converted = tf_ti.recurrent.from_torch(source)
        assert converted["direction"] == "bidirectional"
        for name in "wrb":
            np.testing.assert_array_equal(converted[name], weights[name])


@each_kind
def test_a_cell_of_torch_is_a_cell(torch, kind):
    torch.manual_seed(1)
    module = getattr(torch.nn, f"{kind.upper()}Cell")(4, 5)
    x, states = torch.randn(3, 4), [torch.randn(3, 5) for _ in range(2 if kind == "lstm" else 1)]
    expected = module(x, tuple(states) if kind == "lstm" else states[0])
    weights = tf_ti.recurrent.from_torch(module)
    results = getattr(tf_ti, f"{kind}_cell")(x.numpy(), *(s.numpy() for s in states), **weights)
    expected = [e.detach().numpy() for e in (expected if kind == "lstm" else [expected])]
    assert_close(tf.nest.flatten(results), expected, 1e-6)
    entries = tf_ti.recurrent.to_torch(weights)
    assert entries.keys() == module.state_dict().keys()
    np.testing.assert_array_equal(entries["weight_hh"], module.weight_hh.detach())


def test_bfloat16_of_torch_becomes_float32(torch):
    module = torch.nn.LSTM(3, 2).bfloat16()
    weights = tf_ti.recurrent.from_torch(module)
    assert {weights[name].dtype for name in "wrb"} == {np.dtype(np.float32)}
    entries = tf_ti.recurrent.to_torch(weights)
    np.testing.assert_array_equal(entries["weight_hh_l0"], module.weight_hh_l0.detach().float())


# --- ONNX -----------------------------------------------------------------------------------------

TYPES = {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN"}
NAMES = {name: name.title().replace("_", "") for name in ACTIVATIONS}
WITH_ALPHA = ["affine", "elu", "hard_sigmoid", "leaky_relu", "scaled_tanh", "thresholded_relu"]
WITH_BETA = ["affine", "hard_sigmoid", "scaled_tanh"]


def run_onnx(kind, x, lengths, states, w, r, b, attributes):
    """By ONNX Runtime: y and the last states, in the layouts of tf_ti with time_major."""
    onnx = pytest.importorskip("onnx", reason="ONNX is not installed: `make oracles` does it")
    onnxruntime = pytest.importorskip(
        "onnxruntime", reason="ONNX Runtime is not installed: `make oracles` does it"
    )
    arrays = {"X": x, "W": w, "R": r, "B": b, "lengths": lengths}
    arrays |= {f"state_{i}": np.swapaxes(state, 0, 1) for i, state in enumerate(states)}
    outputs = ["Y", *(f"last_{i}" for i in range(len(states)))]
    node = onnx.helper.make_node(TYPES[kind], list(arrays), outputs, **attributes)
    types = {n: onnx.helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in arrays.items()}
    graph = onnx.helper.make_graph(
        [node],
        "graph",
        [onnx.helper.make_tensor_value_info(n, types[n], a.shape) for n, a in arrays.items()],
        [onnx.helper.make_tensor_value_info(n, types["X"], None) for n in outputs],
    )
    opset = onnx.helper.make_opsetid("", 14)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    y, *last = session.run(None, arrays)
    return node, [y, *(np.swapaxes(state, 0, 1) for state in last)]


@pytest.mark.parametrize("seed", range(15), indirect=True)
def test_random_operators_of_onnx_are_sequences(seed):
    onnx = pytest.importorskip("onnx", reason="ONNX is not installed: `make oracles` does it")
    rng, kind = np.random.default_rng(seed), KINDS[seed % 3]
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    count = 2 if direction == "bidirectional" else 1
    attributes = {"hidden_size": 5, "direction": direction}
    if rng.random() < 0.8:
        names = rng.choice(list(NAMES), len(DEFAULTS[kind])).tolist() * count
        attributes["activations"] = [NAMES[name] for name in names]
        # A number for each that has one, in their order.
        for key, which in (("alpha", WITH_ALPHA), ("beta", WITH_BETA)):
            one = rng.uniform(0.1, 0.9, len(names) // count).astype(np.float32)
            values = [v for v, name in zip(one.tolist() * count, names) if name in which]
            if values:
                attributes[f"activation_{key}"] = values
    if rng.random() < 0.4:
        attributes["clip"] = float(rng.uniform(0.3, 2.0))
    if kind == "gru":
        attributes["linear_before_reset"] = int(rng.integers(2))
    print(kind, attributes)
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[kind]
    shapes = [[count, gates * 5, 4], [count, gates * 5, 5], [count, 2 * gates * 5]]
    w, r, b = (rng.normal(size=shape).astype(np.float32) * 0.4 for shape in shapes)
    x = rng.normal(size=[6, 3, 4]).astype(np.float32)
    states = random_like(rng, [np.zeros([3, count, 5])] * (2 if kind == "lstm" else 1))
    lengths = rng.integers(1, 7, 3).astype(np.int32)
    node, expected = run_onnx(kind, x, lengths, states, w, r, b, attributes)

    read = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    weights = tf_ti.recurrent.from_onnx(w, r, b, **read)
    call = getattr(tf_ti, f"{kind}_sequence")
    assert_close(call(x, *states, lengths, **weights, time_major=True), expected, 2e-5)
    *arrays, back = tf_ti.recurrent.to_onnx(weights)
    _, again = run_onnx(kind, x, lengths, states, *arrays, back)
    for ours, theirs in zip(again, expected):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@each_kind
def test_weights_go_to_onnx_and_back(kind):
    options = {"linear_before_reset": True} if kind == "gru" else {}
    options["activations"] = ("hard_sigmoid", "scaled_tanh", "relu")[: len(DEFAULTS[kind])]
    options["activations_alpha"] = (0.3, 0.7, 0.0)[: len(DEFAULTS[kind])]
    options["activations_beta"] = (0.4, 0.6, 0.0)[: len(DEFAULTS[kind])]
    case = make_case(
        np.random.default_rng(2), kind, 2, 4, 3, 5, direction="bidirectional", clip=0.5, **options
    )
    weights = {**dict(zip("wrb", case.weights)), **case.options}
    *arrays, attributes = tf_ti.recurrent.to_onnx(weights)
    converted = tf_ti.recurrent.from_onnx(*arrays, **attributes)
    assert converted.keys() == weights.keys()
    for name in weights:
        np.testing.assert_array_equal(converted[name], weights[name])
