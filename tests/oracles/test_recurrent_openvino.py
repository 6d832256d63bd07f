"""`tf_ti`'s recurrent cells and sequences against OpenVINO's."""

import numpy as np
import pytest
import tensorflow as tf
from recurrent_definition import DEFAULTS, assert_close, make_case

import tf_ti

ov = pytest.importorskip("openvino")
ov_ops = pytest.importorskip("openvino.opset8")

ACTIVATIONS = ["sigmoid", "tanh", "relu"]  # those that its CPU plugin has


def run_openvino(operation, arrays, *attributes):
    parameters = [ov_ops.parameter(a.shape, a.dtype.type) for a in arrays]
    node = operation(*parameters, *attributes)
    model = ov.Model(node.outputs(), parameters, "model")
    # On some processors it would compute in bfloat16.
    compiled = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    results = compiled(arrays)
    return [results[i] for i in range(len(results))]


def random_options(rng, kind):
    options = {}
    if rng.random() < 0.5:
        options["clip"] = float(rng.uniform(0.1, 2.0))
    if rng.random() < 0.7:
        options["activations"] = rng.choice(ACTIVATIONS, len(DEFAULTS[kind])).tolist()
    if kind == "gru":
        options["linear_before_reset"] = bool(rng.integers(2))
    return options


def attributes(kind, hidden, options, *direction):
    """As OpenVINO's functions take them."""
    names = options.get("activations", DEFAULTS[kind])
    before_reset = [options["linear_before_reset"]] if kind == "gru" else []
    return [hidden, *direction, list(names), [], [], options.get("clip", 0.0), *before_reset]


def halve(case):
    """So that sums of what is not limited by its activation do not grow."""
    return case.with_tensors([0.5 * a for a in case.tensors])


@pytest.mark.parametrize("seed", range(12), indirect=True)
def test_random_sequences_are_those_of_openvino(seed):
    rng = np.random.default_rng(seed)
    kind = ["lstm", "gru", "rnn"][seed % 3]
    batch, time, inputs, hidden = (int(n) for n in rng.integers([1, 1, 1, 1], [4, 7, 6, 20]))
    lengths = rng.integers(1, time + 1, batch).astype(np.int32)
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    options = random_options(rng, kind)
    print(kind, batch, time, inputs, hidden, lengths, direction, options)
    case = halve(
        make_case(
            rng,
            kind,
            batch,
            time,
            inputs,
            hidden,
            np.float32,
            lengths,
            direction=direction,
            **options,
        )
    )
    expected = run_openvino(
        getattr(ov_ops, f"{kind}_sequence"),
        [case.x, *case.states, lengths, *case.weights],
        *attributes(kind, hidden, options, direction),
    )
    assert_close(case.call(), expected, 2e-5)


@pytest.mark.parametrize("seed", range(6), indirect=True)
def test_random_cells_are_those_of_openvino(seed):
    rng = np.random.default_rng(seed)
    kind = ["lstm", "gru", "rnn"][seed % 3]
    options = random_options(rng, kind)
    print(kind, options)
    case = halve(make_case(rng, kind, 3, 1, 4, 9, np.float32, **options))
    arrays = [case.x[:, 0], *(s[:, 0] for s in case.states), *(w[0] for w in case.weights)]
    expected = run_openvino(getattr(ov_ops, f"{kind}_cell"), arrays, *attributes(kind, 9, options))
    results = getattr(tf_ti, f"{kind}_cell")(*arrays, **options)
    assert_close(tf.nest.flatten(results), expected, 2e-5)
