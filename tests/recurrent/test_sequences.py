"""`tf_ti`'s recurrent cells and sequences against their definition, and numeric gradients."""

import numpy as np
import pytest
import tensorflow as tf
from recurrent_definition import (
    ACTIVATIONS,
    assert_close,
    make_case,
    random_case,
    sequence,
    step,
)

import tf_ti
from tf_ti import _library

each_kind = pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
each_direction = pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])


@pytest.fixture
def rng():
    return np.random.default_rng(7)


# --- Meaning --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(24), indirect=True)
def test_a_random_sequence_is_what_the_definition_says(seed):
    rng = np.random.default_rng(seed)
    case = random_case(rng, ["lstm", "gru", "rnn"][seed % 3])
    call = case.call if seed % 2 else tf.function(case.call)
    assert_close(call(), case.expected(), 1e-9)


@each_kind
def test_hidden_sizes_may_be_large_and_odd(rng, kind):
    case = make_case(rng, kind, 2, 3, 4, 255, direction="bidirectional", lengths=np.array([3, 1]))
    assert_close(case.call(), case.expected(), 1e-9)


@each_kind
@pytest.mark.parametrize("seed", range(2), indirect=True)
def test_a_random_cell_is_one_step_of_the_definition(seed, kind):
    rng = np.random.default_rng(seed)
    options = {"clip": 0.7} if seed else {}
    if kind == "gru":
        options["linear_before_reset"] = bool(seed)
    case = make_case(rng, kind, 3, 1, 4, 5, **options)
    x, states = case.x[:, 0], [state[:, 0] for state in case.states]
    weights = [weight[0] for weight in case.weights]
    results = getattr(tf_ti, f"{kind}_cell")(x, *states, *weights, **options)
    results = results if kind == "lstm" else [results]
    assert_close(results, step(kind, x, states, *weights, options), 1e-12)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_has_the_alpha_and_beta_of_onnx_unless_they_are_given(rng, name):
    for given in ({}, {"activations_alpha": [0.3], "activations_beta": [0.6]}):
        case = make_case(rng, "rnn", 4, 1, 3, 5, activations=[name], **given)
        assert_close(case.call(), case.expected(), 1e-12)


@pytest.mark.parametrize("name", ["hardsigmoid", "HardSigmoid", "hard_sigmoid"])
def test_an_activation_has_the_names_of_openvino_and_of_onnx(rng, name):
    case = make_case(rng, "rnn", 4, 3, 3, 5, activations=["hard_sigmoid"])
    expected = case.expected()
    case.options["activations"] = [name]
    assert_close(case.call(), expected, 1e-12)


@each_kind
def test_without_biases_they_are_zeros(rng, kind):
    options = {"linear_before_reset": True} if kind == "gru" else {}
    case = make_case(rng, kind, 2, 1, 4, 5, **options)
    case.weights[-1][:] = 0
    expected = case.expected()
    case.weights[-1] = None
    assert_close(case.call(), expected, 1e-12)
    cell = getattr(tf_ti, f"{kind}_cell")
    results = cell(
        case.x[:, 0], *(s[:, 0] for s in case.states), *(w[0] for w in case.weights[:2]), **options
    )
    results = results if kind == "lstm" else [results]
    assert_close(results, [state[:, 0] for state in expected[1:]], 1e-12)


@each_direction
def test_what_lengths_and_masks_leave_out_is_not_read(rng, direction):
    case = make_case(rng, "gru", 3, 4, 2, 3, lengths=np.array([4, 2, 0]), direction=direction)
    expected = case.expected()
    case.x[1, 2:] = case.x[2] = np.nan
    with tf.GradientTape() as tape:
        tensors = [tf.constant(a) for a in case.tensors]
        tape.watch(tensors)
        results = case.with_tensors(tensors).call()
        loss = tf.add_n([tf.reduce_sum(result**2) for result in results])
    assert_close(results, expected, 1e-9)
    for gradient in tape.gradient(loss, tensors):
        assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16], ids=lambda d: d.name)
@each_kind
def test_half_precisions_are_rounded_at_the_outputs_only(rng, kind, dtype):
    case = make_case(rng, kind, 3, 30, 4, 8, direction="bidirectional")
    narrow = case.with_tensors([tf.cast(0.5 * a, dtype) for a in case.tensors])
    wide = narrow.with_tensors([tf.cast(a, tf.float64) for a in narrow.tensors])
    for result, expected in zip(narrow.call(), wide.expected()):
        assert result.dtype == dtype
        # Half a unit in the last place, beside the error of float32.
        unit = {tf.float32: 0, tf.float16: 2**-11, tf.bfloat16: 2**-8}[dtype]
        error = np.abs(tf.cast(result, tf.float64) - expected)
        assert np.all(error <= unit * np.abs(expected) + 2e-6)


# --- Gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6), indirect=True)
def test_gradients_are_the_numeric_ones(seed):
    rng = np.random.default_rng(seed)
    kind = ["lstm", "gru", "rnn"][seed % 3]
    case = random_case(rng, kind, (2, 3, 2, 3))
    smooth = ["sigmoid", "tanh", "softplus", "softsign", "scaled_tanh", "affine", "elu"]
    if "activations" in case.options:
        case.options["activations"] = rng.choice(smooth, len(case.options["activations"])).tolist()
    case.options.pop("clip", None)
    weights = [rng.normal(size=e.shape) for e in case.expected()]

    @tf.function
    def loss(*tensors):
        results = case.with_tensors(tensors).call()
        return tf.add_n([tf.reduce_sum(r * w) for r, w in zip(results, weights)])

    found, numeric = tf.test.compute_gradient(loss, case.tensors, delta=1e-5)
    for f, n in zip(found, numeric):
        np.testing.assert_allclose(f, n, rtol=1e-5, atol=1e-6)


def test_clipping_stops_gradients(rng):
    case = make_case(rng, "lstm", 2, 3, 3, 4, clip=1e-3)
    x = tf.constant(case.x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y, *_ = case.with_tensors([x, *case.tensors[1:]]).call()
    np.testing.assert_array_equal(tape.gradient(y, x), np.zeros_like(case.x))


def test_checkpoints_change_no_gradient(rng):
    case = make_case(rng, "lstm", 2, 7, 3, 4, direction="bidirectional")
    found = []
    for every in (None, 3):
        case.options["checkpoint_every"] = every
        tensors = [tf.constant(a) for a in case.tensors]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y, *_ = case.with_tensors(tensors).call()
        found.append(tape.gradient(y, tensors))
    for without, with_checkpoints in zip(*found):
        np.testing.assert_allclose(with_checkpoints, without, rtol=1e-12)


def test_second_gradients_are_the_numeric_ones_of_the_first(rng):
    case = make_case(rng, "gru", 2, 3, 2, 2, linear_before_reset=True)

    @tf.function
    def slope(w):
        with tf.GradientTape() as tape:
            tape.watch(w)
            tensors = [*case.tensors[:-3], w, *case.tensors[-2:]]
            y, _ = case.with_tensors(tensors).call()
            loss = tf.reduce_sum(y**2)
        return tape.gradient(loss, w)

    (found,), (numeric,) = tf.test.compute_gradient(slope, [case.weights[0]], delta=1e-5)
    np.testing.assert_allclose(found, numeric, rtol=1e-6, atol=1e-7)


# --- Shapes and places ----------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("zero", ["batch", "time", "input"])
def test_sizes_may_be_zero(rng, kind, zero):
    sizes = {"batch": 2, "time": 3, "input": 4} | {zero: 0}
    lengths = np.full(sizes["batch"], sizes["time"], np.int32)
    case = make_case(rng, kind, *sizes.values(), 5, direction="bidirectional", lengths=lengths)
    for call in (case.call, tf.function(case.call)):
        assert_close(call(), case.expected(), 1e-9)


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_lengths_are_of_any_integer_dtype(rng, bits):
    for dtype in (f"int{bits}", f"uint{bits}"):
        case = make_case(rng, "rnn", 2, 3, 4, 5, lengths=np.array([3, 1], dtype))
        assert_close(case.call(), case.expected(), 1e-12)


def test_lengths_of_an_empty_batch_may_be_an_empty_list(rng):
    case = make_case(rng, "rnn", 0, 3, 4, 5)
    case.lengths = []
    assert [result.shape for result in case.call()] == [[0, 1, 3, 5], [0, 1, 5]]


def test_gradients_of_no_steps_are_those_of_the_states(rng):
    case = make_case(rng, "lstm", 2, 0, 3, 4)
    tensors = [tf.constant(a) for a in case.tensors]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        _, ho, co = case.with_tensors(tensors).call()
        loss = tf.reduce_sum(ho) + 2 * tf.reduce_sum(co)
    x, h, c, *weights = tape.gradient(loss, tensors, unconnected_gradients="zero")
    assert x.shape == [2, 0, 3]
    assert np.all(h == 1) and np.all(c == 2)
    assert not any(np.any(gradient) for gradient in weights)


@each_kind
@pytest.mark.parametrize("ranks_are_known", [False, True])
def test_all_dimensions_may_be_unknown(rng, kind, ranks_are_known):
    case = make_case(rng, kind, 3, 4, 2, 5, direction="bidirectional", lengths=np.array([4, 0, 2]))

    def spec(array):
        return tf.TensorSpec([None] * array.ndim if ranks_are_known else None, array.dtype)

    @tf.function(input_signature=[spec(a) for a in [*case.tensors, case.lengths]])
    def call(*tensors):
        case.lengths = tensors[-1]
        return case.with_tensors(tensors[:-1]).call()

    expected, lengths = case.expected(), case.lengths
    results = call(*case.tensors, lengths)
    assert_close(results, expected, 1e-9)
    if ranks_are_known:
        assert [r.shape.rank for r in call.get_concrete_function().structured_outputs] == [
            4,
            *[3] * len(case.states),
        ]


def test_static_shapes_are_put_together_from_all_arguments():
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 7, None]),
            tf.TensorSpec([2, None, None]),
            tf.TensorSpec([None, None, 3]),
            tf.TensorSpec([None, 15, None]),
        ]
    )
    def call(x, h, w, r):
        y, ho = tf_ti.gru_sequence(x, h, None, w, r, None)
        assert y.shape == [2, 1, 7, 5] and ho.shape == [2, 1, 5]
        return y

    assert call(
        tf.zeros([2, 7, 3]), tf.zeros([2, 1, 5]), tf.zeros([1, 15, 3]), tf.zeros([1, 15, 5])
    ).shape


def test_a_saved_model_computes_and_trains_what_was_saved(rng, tmp_path):
    case = make_case(rng, "lstm", 2, 3, 4, 5, np.float32, direction="bidirectional")

    class Layer(tf.Module):
        def __init__(self):
            self.weights = [tf.Variable(w) for w in case.weights]

        @tf.function(
            input_signature=[tf.TensorSpec([None, None, 4]), tf.TensorSpec([None], tf.int32)]
        )
        def __call__(self, x, lengths):
            state = tf.zeros([tf.shape(x)[0], 2, 5])
            return tf_ti.lstm_sequence(
                x, state, state, lengths, *self.weights, direction="bidirectional"
            )

    layer, lengths = Layer(), [3, 1]
    tf.saved_model.save(layer, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    gradients = []
    for each in (layer, loaded):
        with tf.GradientTape() as tape:
            y, *_ = each(case.x, lengths)
        gradients.append([y, *tape.gradient(y, each.weights)])
    for ours, theirs in zip(*gradients):
        np.testing.assert_array_equal(ours, theirs)
    states = [np.zeros_like(state) for state in case.states]
    expected = sequence("lstm", case.x, states, lengths, *case.weights, case.options)[0]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_weights_may_be_variables_and_gradients_reach_them(rng):
    case = make_case(rng, "rnn", 2, 3, 4, 5, np.float32)
    case.weights = [tf.Variable(w) for w in case.weights]
    with tf.GradientTape() as tape:
        y, _ = case.call()
    assert all(gradient is not None for gradient in tape.gradient(y, case.weights))


def test_a_sequence_runs_inside_of_a_loop_and_a_dataset(rng):
    case = make_case(rng, "rnn", 2, 3, 4, 4)
    once, _ = case.call()
    twice, _ = case.with_tensors([once[:, 0], *case.tensors[1:]]).call()

    def again(x, _):
        y, _ = case.with_tensors([x, *case.tensors[1:]]).call()
        return y[:, 0], None

    last, _ = tf_ti.scan(again, case.x, length=2)
    np.testing.assert_allclose(last, twice[:, 0], rtol=1e-12)
    (mapped,) = tf.data.Dataset.from_tensors(case.x).map(lambda x: again(x, None)[0])
    np.testing.assert_allclose(mapped, once[:, 0], rtol=1e-12)


@pytest.mark.skipif(_library.XLA_PROBLEM is not None, reason=str(_library.XLA_PROBLEM))
def test_xla_compiles_sequences_and_their_gradients(rng):
    case = make_case(rng, "gru", 3, 4, 2, 5, direction="reverse", lengths=np.array([4, 0, 2]))

    def call(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y, *last = case.with_tensors(tensors).call()
            loss = tf.add_n([tf.reduce_sum(tf.sin(result)) for result in [y, *last]])
        return [y, *last, *tape.gradient(loss, tensors)]

    tensors = [tf.constant(a) for a in case.tensors]
    assert_close(tf.function(call, jit_compile=True)(*tensors), call(*tensors), 1e-9)


def test_functions_that_run_eagerly_give_the_same(rng):
    case = make_case(rng, "lstm", 2, 3, 4, 5, mask=rng.random([2, 3]) < 0.5, hold_output=True)
    tf.config.run_functions_eagerly(True)
    try:
        results = case.call()
    finally:
        tf.config.run_functions_eagerly(False)
    assert_close(results, case.expected(), 1e-12)


@pytest.mark.parametrize("place", ["eager", "function"])
def test_tangents_go_forward_through_a_sequence(rng, place):
    case = make_case(rng, "gru", 2, 3, 4, 5, lengths=np.array([3, 1]))
    tangent, step = rng.normal(size=case.x.shape), 1e-6

    def call(x):
        return case.with_tensors([x, *case.tensors[1:]]).call()[0]

    with tf.autodiff.ForwardAccumulator(x := tf.constant(case.x), tf.constant(tangent)) as forward:
        y = call(x) if place == "eager" else tf.function(call)(x)
    ends = [case.with_tensors([case.x + d * tangent, *case.tensors[1:]]) for d in (step, -step)]
    (above, _), (below, _) = (end.expected() for end in ends)
    np.testing.assert_allclose(forward.jvp(y), (above - below) / (2 * step), rtol=1e-6, atol=1e-8)


@each_kind
def test_lanes_of_a_map_are_sequences_of_their_own(rng, kind):
    case = make_case(rng, kind, 2, 3, 4, 5)
    xs = rng.normal(size=[3, *case.x.shape])

    def call(x):
        return case.with_tensors([x, *case.tensors[1:]]).call()[0]

    expected = np.stack([call(x) for x in xs])
    np.testing.assert_allclose(tf.vectorized_map(call, tf.constant(xs)), expected, rtol=1e-9)


def test_cells_are_steps_of_a_loop(rng):
    case = make_case(rng, "lstm", 2, 6, 3, 4)
    weights = [w[0] for w in case.weights]

    def body(states, x):
        states = tf_ti.lstm_cell(x, *states, *weights)
        return states, states[0]

    last, y = tf_ti.scan(body, tuple(state[:, 0] for state in case.states), case.x, axis=1)
    assert_close([y[:, None], *(state[:, None] for state in last)], case.expected(), 1e-12)


# --- Devices --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sequence_that_asks_for_a_cpu_does_not_start_the_runtime(run_program):
    program = """
    import tensorflow as tf
    import tf_ti

    with tf.Graph().as_default(), tf.device("CPU:0"):
        x = tf.compat.v1.placeholder(tf.float32, [2, 3, 4])
        state, w, r = tf.zeros([2, 1, 5]), tf.zeros([1, 5, 4]), tf.zeros([1, 5, 5])
        y, _ = tf_ti.rnn_sequence(x, state, None, w, r, None)
        assert "TfTi>RecurrentSequence" in [op.type for op in y.graph.get_operations()]
    cpu = tf.config.list_physical_devices("CPU")[0]  # which the running runtime refuses to divide
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    print(len(tf.config.list_logical_devices("CPU")))
    """
    assert run_program(program).stdout.splitlines()[-1] == "2"


@pytest.mark.parametrize("device,has_loop", [(None, True), ("CPU:0", False)])
def test_a_graph_has_the_loop_of_a_sequence_unless_it_asks_for_a_cpu(rng, device, has_loop):
    case = make_case(rng, "gru", 2, 3, 4, 5)

    def call(x):
        with tf.GradientTape() as tape, tf.device(device):
            tape.watch(x)
            y, _ = case.with_tensors([x, *case.tensors[1:]]).call()
            loss = tf.reduce_sum(y)
        return tape.gradient(loss, x)

    graph = tf.function(call).get_concrete_function(tf.constant(case.x)).graph
    found = [op for op in graph.get_operations() if "RecurrentSequence" in op.type]
    assert [op.type for op in found] == [
        "TfTi>RecurrentSequence",
        "TfTi>RecurrentSequenceGrad",
    ]
    library = {function.signature.name for function in graph.as_graph_def().library.function}
    for op in found:
        loops = op.node_def.attr["loop"].list.func
        assert len(loops) == has_loop
        assert {loop.name for loop in loops} <= library
