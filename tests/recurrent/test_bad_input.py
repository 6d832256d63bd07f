"""Wrong arguments of recurrent cells and sequences: errors that name what is wrong."""

import numpy as np
import pytest
import tensorflow as tf
from recurrent_definition import make_case

import tf_ti

SEQUENCES = {
    "lstm": ["x", "initial_hidden_state", "initial_cell_state", "w", "r", "b"],
    "gru": ["x", "initial_hidden_state", "w", "r", "b"],
    "rnn": ["x", "initial_hidden_state", "w", "r", "b"],
}
each_kind = pytest.mark.parametrize("kind", SEQUENCES)


def arguments(kind="lstm", **options):
    """By name: batch 2, time 3, input 4, hidden 5."""
    case = make_case(np.random.default_rng(0), kind, 2, 3, 4, 5, np.float32, **options)
    named = dict(zip(SEQUENCES[kind], map(tf.constant, case.tensors)))
    return {"sequence_lengths": None, **named, **case.options}


def call(kind="lstm", **changes):
    return getattr(tf_ti, f"{kind}_sequence")(**{**arguments(kind), **changes})


def call_late(kind="lstm", **changes):
    """In a function that knows no shapes."""
    given = {**arguments(kind), **changes}
    tensors = {k: v for k, v in given.items() if tf.is_tensor(v)}

    @tf.function(input_signature=[{k: tf.TensorSpec(None, v.dtype) for k, v in tensors.items()}])
    def function(tensors):
        return getattr(tf_ti, f"{kind}_sequence")(**{**given, **tensors})

    return function(tensors)


def longer(tensor, axis):
    return tf.concat([tensor, tensor], axis)


# --- Shapes ---------------------------------------------------------------------------------------

# Where one size of one argument is another, and the shape that the error says it should have.
WRONG_SIZES = [
    ("initial_hidden_state", 0, "[batch, directions, hidden]"),
    ("initial_hidden_state", 1, "[batch, directions, hidden]"),
    ("initial_cell_state", 0, "[batch, directions, hidden]"),
    ("initial_cell_state", 1, "[batch, directions, hidden]"),
    ("initial_cell_state", 2, "[batch, directions, hidden]"),
    ("w", 0, "[directions, 4*hidden, input]"),
    ("w", 1, "[directions, 4*hidden, input]"),
    ("w", 2, "[directions, 4*hidden, input]"),
    ("r", 0, "[directions, 4*hidden, hidden]"),
    ("r", 1, "[directions, 4*hidden, hidden]"),
    ("r", 2, "[directions, 4*hidden, hidden]"),
    ("b", 0, "[directions, 4*hidden]"),
    ("b", 1, "[directions, 4*hidden]"),
]
each_wrong_size = pytest.mark.parametrize("label, axis, expected", WRONG_SIZES)


@each_wrong_size
def test_a_wrong_size_is_an_error_that_names_both_arguments(label, axis, expected):
    wrong = longer(arguments()[label], axis)
    with pytest.raises(ValueError) as error:
        call(**{label: wrong})
    message = str(error.value)
    assert message.startswith(f"{label} must be {expected}, with the ")
    assert message.endswith(f", got {wrong.shape}")


@each_wrong_size
def test_a_wrong_size_that_is_known_late_is_an_error_too(label, axis, expected):
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        call_late(**{label: longer(arguments()[label], axis)})
    assert f"{label} must be {expected}, with " in error.value.message


def test_sizes_are_compared_with_the_argument_that_has_them_first():
    with pytest.raises(ValueError, match=r"w must be .*, with the input of x, 4, got \(1, 20, 8\)"):
        call(w=longer(arguments()["w"], 2))
    with pytest.raises(ValueError, match="with the hidden of initial_hidden_state, 5, got"):
        call(r=longer(arguments()["r"], 2))


@pytest.mark.parametrize("label", SEQUENCES["rnn"])
def test_a_wrong_rank_is_an_error(label):
    wrong = arguments("rnn")[label][tf.newaxis]
    with pytest.raises(ValueError, match=rf"^{label} must be \[.*\], got \(1, "):
        call("rnn", **{label: wrong})
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=rf"{label} must be \[.*\], got\] \[1 "
    ):
        call_late("rnn", **{label: wrong})


def test_four_biases_belong_to_linear_before_reset():
    b = tf.zeros([1, 20])
    with pytest.raises(ValueError, match=r"b must be \[directions, 3\*hidden\], .* got \(1, 20\)"):
        call("gru", b=b)
    with pytest.raises(ValueError, match=r"b must be \[directions, 4\*hidden\], .* got \(1, 15\)"):
        call("gru", linear_before_reset=True)
    call("gru", b=b, linear_before_reset=True)


def test_rows_that_are_no_multiple_of_the_gates_are_an_error():
    @tf.function(input_signature=[tf.TensorSpec([2, None]), tf.TensorSpec([21, 4])])
    def function(h, w):
        return tf_ti.lstm_cell(tf.zeros([2, 4]), h, h, w, tf.zeros([20, 5]))

    with pytest.raises(ValueError, match=r"w must be \[4\*hidden, input\], got \(21, 4\)"):
        function(tf.zeros([2, 5]), tf.zeros([21, 4]))


def test_hidden_must_not_be_empty():
    empty = {
        k: v[..., :0] for k, v in arguments("rnn").items() if k in ("initial_hidden_state", "b")
    }
    with pytest.raises(ValueError, match="initial_hidden_state must have a hidden size above 0"):
        call("rnn", **empty, w=tf.zeros([1, 0, 4]), r=tf.zeros([1, 0, 0]))


@pytest.mark.parametrize("hidden_size", [0, -1])
def test_hidden_size_must_be_positive(hidden_size):
    with pytest.raises(ValueError, match=f"hidden_size must be above 0, got {hidden_size}"):
        call(hidden_size=hidden_size)


@each_kind
def test_hidden_size_must_be_that_of_the_weights(kind):
    assert len(call(kind, hidden_size=5)) >= 2
    with pytest.raises(ValueError, match="with the hidden of hidden_size, 6, got"):
        call(kind, hidden_size=6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="with .*hidden of hidden_size"):
        call_late(kind, hidden_size=6)


@pytest.mark.parametrize("hidden_size", ["5", 5.0, True])
def test_hidden_size_must_be_an_int(hidden_size):
    with pytest.raises(TypeError, match="hidden_size must be an int or None"):
        call(hidden_size=hidden_size)


def test_a_cell_compares_shapes_too():
    tensors = tf.zeros([2, 4]), tf.zeros([2, 5])
    with pytest.raises(
        ValueError, match=r"w must be \[3\*hidden, input\], with the hidden of init"
    ):
        tf_ti.gru_cell(*tensors, tf.zeros([20, 4]), tf.zeros([15, 5]))
    with pytest.raises(
        ValueError, match=r"initial_hidden_state must be \[batch, hidden\], with the b"
    ):
        tf_ti.rnn_cell(tf.zeros([3, 4]), tensors[1], tf.zeros([5, 4]), tf.zeros([5, 5]))


# --- Types ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", SEQUENCES["lstm"][1:])
def test_mixed_dtypes_are_an_error(label):
    wrong = tf.cast(arguments()[label], tf.float64)
    with pytest.raises(TypeError, match=f"{label} must be float32 as x is, got float64"):
        call(**{label: wrong})


@pytest.mark.parametrize("dtype", [tf.int32, tf.complex64, tf.string], ids=lambda d: d.name)
def test_x_must_be_of_floats(dtype):
    x = tf.zeros([2, 3, 4], dtype)
    with pytest.raises(TypeError, match="x must be one of float32, .*, got "):
        call(x=x)


def test_what_is_no_tensor_is_named():
    with pytest.raises(ValueError, match="^initial_cell_state must be a tensor, got object"):
        call(initial_cell_state=object())
    for label in SEQUENCES["lstm"][:-1]:
        with pytest.raises(ValueError, match=f"^{label} must be a tensor, got NoneType"):
            call(**{label: None})


# --- Lengths and masks ----------------------------------------------------------------------------


@pytest.mark.parametrize("lengths, value, position", [([1, -1], -1, 1), ([4, 9], 4, 0)])
@pytest.mark.parametrize("function", [call, call_late])
def test_a_length_outside_of_the_time_is_an_error_that_names_it(function, lengths, value, position):
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        function(sequence_lengths=tf.constant(lengths))
    # A loop's check shows each part of the message in brackets.
    message = error.value.message.replace("[", "").replace("]", "").replace(" ,", ",")
    expected = f"sequence_lengths must be from 0 to the number of steps, 3, got {value}"
    assert f"{expected} at position {position}" in message


@pytest.mark.parametrize("length", [2**31, 2**32 + 1, 2**63 - 1])
def test_a_length_beyond_32_bits_is_named_as_it_is(length):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f", 3, got {length} at position 1"):
        call(sequence_lengths=[3, length])


def test_lengths_that_are_too_large_for_any_op_are_an_error_too():
    for activation in ("tanh", "elu"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="from 0 to the number of steps"):
            lengths = np.array([3, 2**64 - 1], np.uint64)
            call("rnn", sequence_lengths=lengths, activations=[activation])


def test_lengths_are_one_for_each_sequence():
    with pytest.raises(
        ValueError, match=r"sequence_lengths must be \[batch\], with the batch of x, 2"
    ):
        call(sequence_lengths=[1, 2, 3])
    with pytest.raises(ValueError, match=r"sequence_lengths must be \[batch\], got \(2, 1\)"):
        call(sequence_lengths=[[1], [2]])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"sequence_lengths must be \[batch\]"):
        call_late(sequence_lengths=tf.constant([1, 2, 3]))


@pytest.mark.parametrize("lengths", [[1.0, 2.0], [True, False]])
def test_lengths_must_be_integers(lengths):
    with pytest.raises(TypeError, match="sequence_lengths must be of an integer dtype, got "):
        call(sequence_lengths=lengths)


def test_lengths_and_a_mask_say_the_same():
    with pytest.raises(ValueError, match="one of them must be None"):
        call(sequence_lengths=[1, 2], mask=tf.ones([2, 3], tf.bool))


def test_a_mask_has_the_layout_of_x():
    mask = tf.ones([2, 3], tf.bool)
    call(mask=mask)
    with pytest.raises(
        ValueError, match=r"mask must be \[batch, time\], with the batch of x, 2, got"
    ):
        call(mask=tf.transpose(mask))
    time_major = {"time_major": True, "x": tf.zeros([3, 2, 4])}
    with pytest.raises(
        ValueError, match=r"mask must be \[time, batch\], with the time of x, 3, got"
    ):
        call(mask=mask, **time_major)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"mask must be \[batch, time\], with"):
        call_late(mask=tf.transpose(mask))


def test_a_mask_must_be_bool():
    with pytest.raises(TypeError, match="mask must be bool, got int32"):
        call(mask=[[1, 1, 0], [1, 0, 0]])


def test_only_a_mask_lets_outputs_hold():
    for lengths in (None, [1, 2]):
        with pytest.raises(ValueError, match="hold_output .* mask must be given"):
            call(hold_output=True, sequence_lengths=lengths)


# --- Options --------------------------------------------------------------------------------------


@each_kind
def test_an_unknown_direction_lists_the_known_ones(kind):
    message = "direction must be one of forward, reverse, bidirectional, got 'backward'"
    with pytest.raises(ValueError, match=message):
        call(kind, direction="backward")


def test_a_direction_must_have_its_weights():
    with pytest.raises(
        ValueError, match="with the directions of direction 'bidirectional', 2, got"
    ):
        call(direction="bidirectional")


def test_an_unknown_activation_lists_the_known_ones():
    message = r"activations\[1\] must be one of affine, elu, .*, thresholded_relu, got 'swish'"
    with pytest.raises(ValueError, match=message):
        call(activations=["sigmoid", "swish", "tanh"])


@each_kind
def test_there_are_as_many_activations_as_functions(kind):
    count = {"lstm": 3, "gru": 2, "rnn": 1}[kind]
    with pytest.raises(ValueError, match=f"activations of {kind} must be {count}, got 4: "):
        call(kind, activations=["tanh"] * 4)


@pytest.mark.parametrize("activations", ["tanh", 3, [tf.tanh]])
def test_activations_are_a_list_of_names(activations):
    with pytest.raises(TypeError, match="must be a (list of names|name), got "):
        call("rnn", activations=activations)


@pytest.mark.parametrize("label", ["activations_alpha", "activations_beta"])
def test_there_are_as_many_coefficients_as_activations_or_none(label):
    call(**{label: []})
    with pytest.raises(
        ValueError, match=rf"{label} must have a number for each of 3 .*, got \[0.1\]"
    ):
        call(**{label: [0.1]})
    with pytest.raises(TypeError, match=rf"{label}\[1\] must be a number, got '1'"):
        call(**{label: [0.1, "1", 0.2]})
    with pytest.raises(TypeError, match=f"{label} must be a list of numbers, got 0.1"):
        call(**{label: 0.1})
    for unordered in ({0.1, 0.2, 0.3}, {0.1: 0, 0.2: 0, 0.3: 0}, tf.constant(0.1), np.array(0.1)):
        with pytest.raises(TypeError, match=f"{label} must be a list of numbers, got"):
            call(**{label: unordered})
    for infinite in (float("inf"), float("nan"), 10**400):
        with pytest.raises(ValueError, match=rf"{label}\[1\] must be finite, got"):
            call(**{label: [0.1, infinite, 0.2]})


@pytest.mark.parametrize("clip", [0, -1.0, float("nan")])
def test_clip_must_be_above_zero(clip):
    with pytest.raises(ValueError, match="clip must be above 0, got"):
        call(clip=clip)


def test_a_clip_that_is_larger_than_any_number_clips_nothing():
    for clip in (10**400, float("inf")):
        for found, expected in zip(call(clip=clip), call()):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("clip", ["1", True, [1.0]])
def test_clip_must_be_a_number(clip):
    with pytest.raises(TypeError, match="clip must be a number or None, got"):
        call(clip=clip)


def test_checkpoint_every_must_be_positive():
    with pytest.raises(ValueError, match="checkpoint_every"):
        call(checkpoint_every=0)


# --- Conversions ----------------------------------------------------------------------------------


def weights(kind, directions=1, **options):
    case = make_case(np.random.default_rng(0), kind, 1, 1, 4, 5, **options)
    return {**dict(zip("wrb", case.weights)), **case.options}


def test_what_keras_lacks_is_an_error():
    recurrent = tf_ti.recurrent
    with pytest.raises(ValueError, match="a cell of Keras clips nothing, got clip 1.0"):
        recurrent.to_keras(weights("rnn", clip=1.0))
    with pytest.raises(ValueError, match="Keras has no .*thresholded_relu"):
        recurrent.to_keras(weights("rnn", activations=["thresholded_relu"]))
    with pytest.raises(ValueError, match="has one activation for g and h, got .*relu.*tanh"):
        recurrent.to_keras(weights("lstm", activations=["sigmoid", "relu", "tanh"]))


def test_what_torch_lacks_is_an_error():
    recurrent = tf_ti.recurrent
    with pytest.raises(ValueError, match="a cell of torch clips nothing, got clip 1.0"):
        recurrent.to_torch(weights("rnn", clip=1.0))
    with pytest.raises(ValueError, match="torch has no lstm with the activations relu, tanh, tanh"):
        recurrent.to_torch(weights("lstm", activations=["relu", "tanh", "tanh"]))
    with pytest.raises(ValueError, match="a GRU of torch has linear_before_reset"):
        recurrent.to_torch(weights("gru"))
    with pytest.raises(ValueError, match="torch has no layer that only runs backwards"):
        recurrent.to_torch(weights("rnn", direction="reverse"))


def test_weights_that_fit_no_cell_are_an_error():
    recurrent = tf_ti.recurrent
    given = weights("lstm")
    with pytest.raises(ValueError, match=r"r must be \[..., gates \* hidden, hidden\]"):
        recurrent.to_onnx({**given, "r": given["r"][:, :10]})
    with pytest.raises(
        ValueError, match=r"must be \[4\*hidden, input\], .* got \(19, 4\), \(20, 5\)"
    ):
        recurrent.to_onnx({**given, "w": given["w"][:, 1:]})
    with pytest.raises(ValueError, match="must have 2 directions for direction 'bidirectional'"):
        recurrent.to_onnx({**given, "direction": "bidirectional"})


@pytest.mark.parametrize("convert", ["to_keras", "to_torch", "to_onnx"])
@pytest.mark.parametrize(
    "changes, error, said",
    [
        ({"w": None}, TypeError, "w must be an array of real numbers, got NoneType of object"),
        ({"w": np.ones([1, 20, 4], complex)}, TypeError, "w must be .*, got ndarray of complex128"),
        ({"r": "abc"}, TypeError, "r must be an array of real numbers, got str"),
        ({"b": [[1.0], [1.0, 2.0]]}, ValueError, "b must be an array, got list: "),
        ({"w": np.ones([4])}, ValueError, r"1 directions .* got shapes \(4,\), \(1, 20, 5\)"),
        ({"b": 1.0}, ValueError, r"1 directions for direction 'forward', got .* and \(\)"),
        ({"direction": "backward"}, ValueError, "direction must be one of .*, got 'backward'"),
        ({"hidden_size": 6}, ValueError, "hidden_size must be 5, as r has it, got 6"),
        ({"mask": None}, ValueError, "weights must have w and r, and may have .*, got .*, mask"),
        ({"linear_before_reset": True}, ValueError, "is about a gru, got it for lstm"),
    ],
)
def test_weights_that_are_none_are_an_error(convert, changes, error, said):
    convert, given = getattr(tf_ti.recurrent, convert), weights("lstm")
    convert({**given, "hidden_size": 5, "clip": None})
    with pytest.raises(error, match=said):
        convert({**given, **changes})


def test_weights_come_as_a_dict_of_w_and_r():
    for convert in (tf_ti.recurrent.to_keras, tf_ti.recurrent.to_torch, tf_ti.recurrent.to_onnx):
        with pytest.raises(TypeError, match=r"weights must be a dict of arguments, got \[1, 2\]"):
            convert([1, 2])
        with pytest.raises(ValueError, match="weights must have w and r, .*, got r, b"):
            convert({key: array for key, array in weights("lstm").items() if key != "w"})


@pytest.mark.parametrize("layer", [-1, 1.0, True, "0"])
def test_a_layer_of_torch_has_a_number(layer):
    with pytest.raises(ValueError, match=f"layer must be an int from 0 on, got {layer!r}"):
        tf_ti.recurrent.to_torch(weights("lstm"), layer)


def test_what_tf_ti_lacks_of_onnx_is_an_error():
    w, r, b, attributes = tf_ti.recurrent.to_onnx(weights("lstm"))
    convert = tf_ti.recurrent.from_onnx
    with pytest.raises(ValueError, match="there are no peepholes"):
        convert(w, r, b, p=np.ones([1, 15]))
    with pytest.raises(ValueError, match="there is no coupling of gates"):
        convert(w, r, b, input_forget=1)
    with pytest.raises(ValueError, match="must be one of affine, .*, got 'Swish'"):
        convert(w, r, b, activations=["Swish", "Tanh", "Tanh"])
    with pytest.raises(ValueError, match="activations must be 3 for each direction, got 2"):
        convert(w, r, b, activations=["Sigmoid", "Tanh"])
    with pytest.raises(ValueError, match="hidden_size must be 5, as r has it, got 6"):
        convert(w, r, b, hidden_size=6)
    with pytest.raises(ValueError, match="must have 2 directions"):
        convert(w, r, b, direction="bidirectional")
    with pytest.raises(ValueError, match=r"w, r and b must .*, got shapes \(1, 19, 4\)"):
        convert(w[:, 1:], r, b)
    with pytest.raises(ValueError, match="direction must be one of .*, got None"):
        convert(w, r, b, direction=None)
    with pytest.raises(TypeError, match="activations must be a list of names, got 'Sigmoid'"):
        convert(w, r, b, activations="Sigmoid")
    with pytest.raises(TypeError, match="activation_alpha must be a list of numbers, got 0.1"):
        convert(w, r, b, activation_alpha=0.1)
    with pytest.raises(ValueError, match=r"activation_beta\[0\] must be finite, got nan"):
        convert(w, r, b, activation_beta=[float("nan")])
    both = (np.concatenate([a, a]) for a in (w, r, b))
    with pytest.raises(ValueError, match="both directions must be of one kind"):
        convert(
            *both,
            direction="bidirectional",
            activations=["Sigmoid", "Tanh", "Tanh", "Sigmoid", "Tanh", "Relu"],
        )


def test_what_is_no_recurrent_module_of_torch_is_an_error():
    with pytest.raises(ValueError, match="weight_hh_l0 among them, got weight, bias"):
        tf_ti.recurrent.from_torch({"weight": np.ones([2, 2]), "bias": np.ones([2])})
    for module in (None, "LSTM", dict):
        with pytest.raises(TypeError, match="module must be a module of torch or a state_dict"):
            tf_ti.recurrent.from_torch(module)
    w, r = np.ones([8, 3]), np.ones([8, 2])
    with pytest.raises(ValueError, match="weight_ih_l0 among them, got weight_hh_l0"):
        tf_ti.recurrent.from_torch({"weight_hh_l0": r})
    with pytest.raises(TypeError, match="weight_ih_l0 must be an array of real numbers"):
        tf_ti.recurrent.from_torch({"weight_hh_l0": r, "weight_ih_l0": None})
    for short in ({"weight_ih_l0": w[1:]}, {"weight_ih_l0": w, "bias_hh_l0": np.ones(7)}):
        with pytest.raises(ValueError, match="w and b must have as many rows as r, 8, got"):
            tf_ti.recurrent.from_torch({"weight_hh_l0": r, **short})
    entries = {"weight_ih_l0": np.ones([1, 1]), "weight_hh_l0": np.ones([1, 1])}
    with pytest.raises(ValueError, match="nonlinearity must be 'tanh' or 'relu', got 'sigmoid'"):
        tf_ti.recurrent.from_torch(entries, nonlinearity="sigmoid")
    entries = {f"weight_{part}_l0": np.ones([4, 1]) for part in ("ih", "hh", "hr")}
    with pytest.raises(ValueError, match="no projections, got one with proj_size"):
        tf_ti.recurrent.from_torch(entries)


def test_of_several_layers_of_torch_one_must_be_named():
    w, r = np.ones([8, 3]), np.ones([8, 2])
    entries = {f"weight_{part}_l{k}": (w, r)[part == "hh"] for k in (0, 1) for part in ("ih", "hh")}
    both = entries | {f"{name}_reverse": value for name, value in entries.items()}
    for module in (entries, both):
        with pytest.raises(
            ValueError, match="has 2 layers: layer=0 is the first, layer=1 the last"
        ):
            tf_ti.recurrent.from_torch(module)
        assert tf_ti.recurrent.from_torch(module, 1)["r"].shape[-1] == 2
        every = tf_ti.recurrent.from_torch(module, "all")
        assert [each["w"].shape[-1] for each in every] == [3, 3]
        for layer in ("last", -1, True, 1.0):
            with pytest.raises(ValueError, match="layer must be a number from 0 on, 'all' or None"):
                tf_ti.recurrent.from_torch(module, layer)
        with pytest.raises(ValueError, match="weight_hh_l2 among them"):
            tf_ti.recurrent.from_torch(module, 2)
    one = {name: value for name, value in both.items() if "_l0" in name}
    assert tf_ti.recurrent.from_torch(one)["direction"] == "bidirectional"
    cell = {"weight_ih": w, "weight_hh": r}
    assert tf_ti.recurrent.from_torch(cell, 0)["w"].shape == (8, 3)
    with pytest.raises(ValueError, match="a cell has no layers: layer must be None, got 1"):
        tf_ti.recurrent.from_torch(cell, 1)


def test_what_is_no_recurrent_cell_of_keras_is_an_error():
    keras = tf.keras
    convert = tf_ti.recurrent.from_keras
    with pytest.raises(
        ValueError, match="one of Keras's LSTMCell, GRUCell, SimpleRNNCell, got Dense"
    ):
        convert(keras.layers.Dense(3))
    with pytest.raises(ValueError, match="got StackedRNNCells"):
        convert(keras.layers.RNN([keras.layers.LSTMCell(3), keras.layers.LSTMCell(3)]))
    with pytest.raises(ValueError, match="has no weights yet: it must be built"):
        convert(keras.layers.GRU(3))
    for function in ("selu", tf.sin, lambda x: x):
        layer = keras.layers.SimpleRNN(3, activation=function)
        layer.build([None, None, 2])
        with pytest.raises(ValueError, match="activations must be Keras's elu, .*, got <function"):
            convert(layer)

    backwards = keras.layers.Bidirectional(
        keras.layers.GRU(3, go_backwards=True), backward_layer=keras.layers.GRU(3)
    )
    with pytest.raises(ValueError, match=r"go_backwards False and True, got \(True, False\)"):
        convert(backwards)

    class OwnCell(keras.layers.LSTMCell):
        pass

    with pytest.raises(ValueError, match="got OwnCell"):
        convert(keras.layers.RNN(OwnCell(3)))
