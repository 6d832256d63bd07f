"""`tf_ti.keras.LSTM`, `GRU` and `SimpleRNN` beside the layers of Keras that they are."""

import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from layer_twins import (
    BATCH,
    TIME,
    WIDTH,
    assert_same,
    inputs,
    random_mask,
    with_same_weights,
)

import tf_ti

pytestmark = pytest.mark.needs_native_sequences

each_name = pytest.mark.parametrize("name", ["LSTM", "GRU", "SimpleRNN"])
UNITS = 6


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.fixture(autouse=True)
def no_fallback():
    """A layer that falls back says so, which is an error but where a test expects it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="tf_ti.keras")
        yield


def twins(name, rng, width=WIDTH, **options):
    """Keras's layer and ours, with the same random weights."""
    theirs = getattr(keras.layers, name)(UNITS, **options)
    theirs.use_cudnn = False  # cuDNN runs on a GPU although a CPU is asked for
    ours = getattr(tf_ti.keras, name)(UNITS, **options)
    return with_same_weights(theirs, ours, rng, width)


@each_name
@pytest.mark.parametrize("is_masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"return_sequences": True, "return_state": True},
        {"go_backwards": True, "return_state": True},
        {"return_sequences": True, "go_backwards": True},
        {"return_sequences": True, "zero_output_for_mask": True},
        {"use_bias": False, "activation": "relu"},
        {"activation": "linear", "unroll": True},
    ],
    ids=lambda options: " ".join(options),
)
def test_results_and_gradients_are_those_of_keras(name, options, is_masked, rng):
    theirs, ours = twins(name, rng, **options)
    x, mask = inputs(rng), random_mask(rng) if is_masked else None

    def run(layer):
        with tf.GradientTape() as tape:
            tape.watch(x)
            results = layer(x, mask=mask)
            loss = tf.add_n([tf.reduce_sum(tf.sin(r)) for r in tf.nest.flatten(results)])
        return results, tape.gradient(loss, [x, *layer.trainable_variables])

    assert_same(run(ours), run(theirs), 1e-5)


@pytest.mark.parametrize("reset_after", [False, True])
@pytest.mark.parametrize("use_bias", [False, True])
def test_both_kinds_of_gru(reset_after, use_bias, rng):
    theirs, ours = twins("GRU", rng, reset_after=reset_after, use_bias=use_bias)
    x = inputs(rng)
    assert_same(ours(x), theirs(x))


@each_name
def test_initial_states_and_stateful_layers(name, rng):
    theirs, ours = twins(name, rng)
    count = 2 if name == "LSTM" else 1
    states = [tf.constant(rng.normal(size=(BATCH, UNITS)), tf.float32) for _ in range(count)]
    x = inputs(rng)
    assert_same(ours(x, initial_state=states), theirs(x, initial_state=states))
    theirs, ours = twins(name, rng, stateful=True)
    for _ in range(3):
        assert_same(ours(x), theirs(x))
    for layer in (theirs, ours):
        layer.reset_state()
    assert_same(ours(x), theirs(x))


@each_name
def test_one_state_serves_all_sequences(name, rng):
    theirs, ours = twins(name, rng)
    state = tf.Variable(rng.normal(size=(1, UNITS)), dtype=tf.float32)

    def run(layer):
        with tf.GradientTape() as tape:
            result = layer(inputs(np.random.default_rng(1)), initial_state=[state] * count)
        return result, tape.gradient(result, state)

    count = 2 if name == "LSTM" else 1
    assert_same(run(ours), run(theirs), 1e-5)


@each_name
def test_a_sequence_without_steps_gives_the_initial_state(name, rng):
    _, layer = twins(name, rng)
    states = [tf.random.normal([BATCH, UNITS])] * (2 if name == "LSTM" else 1)
    late = tf.function(
        lambda x: layer(x, initial_state=states),
        input_signature=[tf.TensorSpec([None, None, WIDTH])],
    )
    np.testing.assert_array_equal(late(tf.zeros([BATCH, 0, WIDTH])), states[0])


def test_complex_sequences_are_refused(rng):
    _, layer = twins("GRU", rng)
    with pytest.raises(TypeError, match="sequences must be of real numbers, got complex64"):
        layer(tf.cast(inputs(rng), tf.complex64))


@each_name
@pytest.mark.parametrize("policy", ["float64", "mixed_bfloat16", "mixed_float16"])
def test_dtype_policies(name, policy, rng):
    theirs, ours = twins(name, rng, dtype=policy, return_sequences=True)
    x = inputs(rng)
    # Keras rounds at each step, the op at the end.
    tolerance = {"float64": 1e-12, "mixed_bfloat16": 0.1, "mixed_float16": 0.02}[policy]
    assert_same(ours(x), theirs(x), tolerance)


@each_name
@pytest.mark.parametrize("merge_mode", ["concat", "sum"])
def test_bidirectional(name, merge_mode, rng):
    x, mask = inputs(rng), random_mask(rng)
    wrapped = [
        keras.layers.Bidirectional(
            getattr(module, name)(UNITS, return_sequences=True), merge_mode=merge_mode
        )
        for module in (keras.layers, tf_ti.keras)
    ]
    for layer in wrapped:
        layer.build((BATCH, TIME, WIDTH))
    assert type(wrapped[1].backward_layer) is getattr(tf_ti.keras, name)
    wrapped[1].set_weights(wrapped[0].get_weights())
    theirs, ours = wrapped
    assert_same(ours(x, mask=mask), theirs(x, mask=mask))


@each_name
def test_a_model_is_saved_loaded_and_trained_on(name, rng, tmp_path):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(7, WIDTH, mask_zero=True),
            getattr(tf_ti.keras, name)(UNITS, return_sequences=True),
            getattr(tf_ti.keras, name)(UNITS, dropout=0.1),
            keras.layers.Dense(1),
        ]
    )
    # One of them as Keras has it by default, which is compiled by XLA.
    model.compile("adam", "mse", jit_compile="auto" if name == "GRU" else False)
    x, y = rng.integers(7, size=(32, TIME)), rng.normal(size=(32, 1))
    losses = model.fit(x, y, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert type(again.layers[1]) is getattr(tf_ti.keras, name)
    np.testing.assert_allclose(again(x), model(x), rtol=1e-5, atol=1e-6)
    again.fit(x, y, verbose=0)


@each_name
def test_time_and_batch_may_be_unknown_and_weights_are_those_of_keras(name, rng):
    theirs, ours = twins(name, rng, return_sequences=True)
    assert [w.shape for w in ours.weights] == [w.shape for w in theirs.weights]
    assert ours.get_config().keys() == theirs.get_config().keys()
    x = inputs(rng)
    late = tf.function(ours.call, input_signature=[tf.TensorSpec([None, None, WIDTH])])
    assert_same(late(x), theirs(x))


def test_dropout_of_inputs_is_one_mask_for_all_steps(rng):
    options = {"dropout": 0.5, "activation": "linear", "use_bias": False, "return_sequences": True}
    _, layer = twins("SimpleRNN", rng, width=200, **options)
    layer.set_weights([np.ones([200, UNITS]), np.zeros([UNITS, UNITS])])
    y = layer(tf.ones([1, TIME, 200]), training=True)
    # Some 100 of the inputs are left, doubled: as many in every step.
    np.testing.assert_allclose(y, np.broadcast_to(y[:, :1], y.shape), rtol=1e-6)
    assert 120 < float(y[0, 0, 0]) < 280
    np.testing.assert_allclose(layer(tf.ones([1, TIME, 200]))[0, 0, 0], 200, rtol=1e-6)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"recurrent_dropout": 0.5}, "recurrent_dropout"),
        ({"dropout": 0.5, "implementation": 1, "use_cudnn": False}, "implementation=1"),
        ({"activation": keras.ops.sin}, "the op has the activations .*, but not this layer's sin"),
        ({"activation": "softplus"}, "but not this layer's softplus"),
    ],
)
def test_what_the_op_lacks_is_done_by_keras_which_is_said_once(options, said, rng):
    theirs, ours = twins("LSTM", rng, seed=1, **options)
    x = inputs(rng)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [ours(x, training=True) for _ in range(2)]
    caught = [str(w.message) for w in caught if "tf_ti.keras" in str(w.message)]
    assert len(caught) == 1
    assert f"tf_ti.keras.LSTM {ours.name!r} runs its cell in a loop" in caught[0]
    assert re.search(said, caught[0])
    assert_same(found[0], theirs(x, training=True))


def test_docstrings_and_warnings_name_the_same_activations():
    with pytest.warns(UserWarning, match="but not this layer's elu") as caught:
        tf_ti.keras.GRU(3, activation="elu")(np.ones([1, 2, 3], np.float32))
    listed = re.search("the op has the activations (.*), but", str(caught[0].message))[1]
    assert f"activations other than {listed}." in tf_ti.keras.GRU.__doc__.replace("\n    ", " ")
    for name in re.split(", | and ", listed):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="tf_ti.keras")
            tf_ti.keras.GRU(3, activation=name)(np.ones([1, 2, 3], np.float32))


def test_layers_with_dropout_run_by_the_op_when_they_do_not_train(rng):
    theirs, ours = twins("LSTM", rng, recurrent_dropout=0.5, dropout=0.5, implementation=1)
    x = inputs(rng)
    assert_same(ours(x), theirs(x))


def test_a_keras_whose_internals_are_others_is_refused(run_program):
    run_program(
        """
        import keras

        keras.layers.GRU.inner_loop = lambda self, sequences: sequences
        try:
            import tf_ti.keras
        except ImportError as error:
            assert "GRU.inner_loop(sequences, initial_state, mask, training)" in str(error), error
            assert f"Keras {keras.__version__}" in str(error), error
        else:
            raise AssertionError("tf_ti.keras was imported")
        """
    )


# --- as on a GPU ----------------------------------------------------------------------------------


@pytest.fixture
def keras_loops(sequences_as_on_a_gpu, no_fallback):
    """Layers take the processor for a GPU, and run Keras's loops without a warning."""
    warnings.filterwarnings("ignore", message="tf_ti.keras")


@pytest.mark.usefixtures("keras_loops")
@pytest.mark.parametrize("is_masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.pairwise
@each_name
def test_keras_loops_of_unknown_extents(name, return_sequences, jit_compile, is_masked, rng):
    theirs, ours = twins(name, rng, return_sequences=return_sequences)
    states = [tf.random.normal([BATCH, UNITS])] * (2 if name == "LSTM" else 1)

    @tf.function(
        input_signature=[tf.TensorSpec([None, None, WIDTH]), tf.TensorSpec([None, None], tf.bool)],
        jit_compile=jit_compile,
        autograph=False,
    )
    def run(x, mask):
        with tf.GradientTape() as tape:
            y = ours(x, initial_state=states, mask=mask if is_masked else None)
            loss = tf.reduce_sum(tf.sin(y))
        return y, tape.gradient(loss, ours.trainable_variables)

    x, mask = inputs(rng), random_mask(rng)
    with tf.GradientTape() as tape:
        y = theirs(x, initial_state=states, mask=mask if is_masked else None)
        loss = tf.reduce_sum(tf.sin(y))
    assert_same(run(x, mask), (y, tape.gradient(loss, theirs.trainable_variables)), 1e-5)
    if jit_compile:  # Keras itself reads the first step
        return
    without_steps, gradients = run(x[:, :0], mask[:, :0])
    expected = tf.zeros([BATCH, 0, UNITS]) if return_sequences else states[0]
    np.testing.assert_array_equal(without_steps, expected)
    assert not any(np.any(gradient) for gradient in gradients)


@pytest.mark.usefixtures("keras_loops")
def test_keras_loops_refuse_complex_sequences(rng):
    test_complex_sequences_are_refused(rng)
