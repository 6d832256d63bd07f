"""`tf_ti.keras.RNN` beside `keras.layers.RNN`, with cells of all kinds."""

import functools

import keras
import layer_twins
import numpy as np
import pytest
import tensorflow as tf
from layer_twins import BATCH, TIME, WIDTH, inputs, random_mask, with_same_weights

import tf_ti
from tf_ti import _library

assert_same = functools.partial(layer_twins.assert_same, tolerance=1e-5)


@keras.saving.register_keras_serializable(package="tests")
class MinimalCell(keras.layers.Layer):
    """The cell of the documentation of keras.layers.RNN."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = self.state_size = units

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[-1], self.units), name="kernel")
        self.recurrent_kernel = self.add_weight(shape=(self.units, self.units), name="recurrent")

    def call(self, inputs, states):
        output = keras.ops.matmul(inputs, self.kernel)
        output = keras.ops.tanh(output + keras.ops.matmul(states[0], self.recurrent_kernel))
        return output, [output]

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable(package="tests")
class TwoStatesCell(keras.layers.Layer):
    """Other outputs than states, of other sizes; it asks whether it trains."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units, self.state_size, self.output_size = units, [units, 2], units + 1

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[-1] + self.units, self.units))
        self.out = self.add_weight(shape=(self.units, self.units + 1))

    def call(self, inputs, states, training=False):
        a, b = states
        a = keras.ops.sigmoid(keras.ops.concatenate([inputs, a], -1) @ self.kernel)
        b = b + keras.ops.mean(a, -1, keepdims=True) * (2.0 if training else 1.0)
        return a @ self.out + b[:, :1], (a, b)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


CELLS = {
    "minimal": lambda: MinimalCell(6),
    "two states": lambda: TwoStatesCell(6),
    "LSTM": lambda: keras.layers.LSTMCell(6),
    "GRU": lambda: keras.layers.GRUCell(6, reset_after=False),
    "stacked": lambda: [keras.layers.LSTMCell(6), MinimalCell(5), keras.layers.GRUCell(4)],
}
each_cell = pytest.mark.parametrize("cell", CELLS)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def twins(cell, rng, **options):
    theirs = keras.layers.RNN(CELLS[cell](), **options)
    ours = tf_ti.keras.RNN(CELLS[cell](), **options)
    return with_same_weights(theirs, ours, rng)


def run(layer, x, **arguments):
    """A call in a function, and its gradients by inputs and weights."""
    weights = [w.value for w in layer.trainable_weights]

    @tf.function
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = layer(x, **arguments)
            floats = tf.nest.flatten(found)
            total = tf.add_n([tf.reduce_sum(tf.sin(tf.cast(t, tf.float32))) for t in floats])
        return found, tape.gradient(total, [x, *weights], unconnected_gradients="zero")

    return function(x)


@pytest.mark.pairwise
@each_cell
@pytest.mark.parametrize("is_masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"return_sequences": True, "return_state": True},
        {"go_backwards": True, "return_state": True},
        {"return_sequences": True, "go_backwards": True},
        {"return_sequences": True, "zero_output_for_mask": True},
        {"zero_output_for_mask": True, "go_backwards": True},
        {"return_sequences": True, "unroll": True},
    ],
    ids=lambda options: " ".join(options),
)
def test_results_and_gradients_are_those_of_keras(cell, options, is_masked, rng):
    theirs, ours = twins(cell, rng, **options)
    x = inputs(rng)
    arguments = {"mask": random_mask(rng)} if is_masked else {}
    assert_same(run(ours, x, **arguments), run(theirs, x, **arguments))


@each_cell
def test_initial_states_and_training(cell, rng):
    theirs, ours = twins(cell, rng, return_state=True)
    x = inputs(rng)
    state = tf.nest.map_structure(
        lambda t: tf.constant(rng.normal(size=t.shape), tf.float32),
        theirs.get_initial_state(BATCH),
    )
    for arguments in ({"initial_state": state}, {"training": True}):
        assert_same(run(ours, x, **arguments), run(theirs, x, **arguments))


def test_eager_calls(rng):
    theirs, ours = twins("two states", rng, return_sequences=True)
    x = inputs(rng)
    assert_same(ours(x), theirs(x))


def test_a_stateful_layer_goes_on(rng):
    theirs, ours = twins("two states", rng, stateful=True, return_sequences=True)
    x = inputs(rng)
    for _ in range(2):
        assert_same(ours(x), theirs(x))
    ours.reset_state()
    theirs.reset_state()
    assert_same(ours(x), theirs(x))


@pytest.mark.parametrize("merge_mode", ["concat", "sum"])
def test_both_directions(merge_mode, rng):
    x = inputs(rng)
    found = []
    for kind in (keras.layers.RNN, tf_ti.keras.RNN):
        layer = keras.layers.Bidirectional(
            kind(MinimalCell(6), return_sequences=True), merge_mode=merge_mode
        )
        layer.build((BATCH, TIME, WIDTH))
        weights = [np.random.default_rng(1).normal(size=w.shape) for w in layer.get_weights()]
        layer.set_weights(weights)
        found.append(layer(x, mask=random_mask(np.random.default_rng(2))))
    assert_same(*found)


def test_dropout_has_one_mask_for_all_steps(rng):
    cell = keras.layers.GRUCell(6, dropout=0.5, recurrent_dropout=0.5, seed=1)
    theirs = keras.layers.RNN(cell, return_sequences=True)
    ours = tf_ti.keras.RNN(
        keras.layers.GRUCell(6, dropout=0.5, recurrent_dropout=0.5, seed=1), return_sequences=True
    )
    x = inputs(rng)
    theirs(x), ours(x)
    ours.set_weights(theirs.get_weights())
    assert_same(ours(x, training=True), theirs(x, training=True))


def test_a_model_is_trained_and_saved_and_loaded_by_either(rng, tmp_path):
    x = rng.normal(size=(16, TIME, WIDTH)).astype(np.float32)
    y = x.sum((1, 2), keepdims=True)[:, 0]
    predictions = []
    for kind in (keras.layers.RNN, tf_ti.keras.RNN):
        keras.utils.set_random_seed(7)
        model = keras.Sequential(
            [keras.Input((None, WIDTH)), kind(MinimalCell(6)), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
        model.fit(x, y, epochs=2, batch_size=8, verbose=0, shuffle=False)
        predictions.append(model.predict(x, verbose=0))
        path = tmp_path / f"{kind.__module__}.keras"
        model.save(path)
        loaded = keras.saving.load_model(path)
        assert type(loaded.layers[0]) is kind
        np.testing.assert_allclose(loaded.predict(x, verbose=0), predictions[-1], rtol=1e-4)
        model.save_weights(tmp_path / f"{kind.__module__}.weights.h5")
        other = {keras.layers.RNN: tf_ti.keras.RNN, tf_ti.keras.RNN: keras.layers.RNN}[kind]
        model = keras.Sequential(
            [keras.Input((None, WIDTH)), other(MinimalCell(6)), keras.layers.Dense(1)]
        )
        model.load_weights(tmp_path / f"{kind.__module__}.weights.h5")
        np.testing.assert_allclose(model.predict(x, verbose=0), predictions[-1], rtol=1e-4)
    np.testing.assert_allclose(*predictions, rtol=1e-4, atol=1e-5)


def test_masks_of_an_embedding_reach_the_loop(rng):
    ids = np.array([[3, 1, 0, 0, 0], [2, 2, 2, 2, 1]])
    table, dense = keras.layers.Embedding(5, WIDTH, mask_zero=True), []
    for layer in twins("minimal", rng):
        dense.append(layer(table(ids)))
    assert_same(*dense)


def test_halves(rng):
    x, found = inputs(rng), []
    for kind in (keras.layers.RNN, tf_ti.keras.RNN):
        layer = kind(
            MinimalCell(6, dtype="mixed_bfloat16"), return_sequences=True, dtype="mixed_bfloat16"
        )
        layer.build((BATCH, TIME, WIDTH))
        layer.set_weights([0.1 * np.ones(w.shape) for w in layer.get_weights()])
        found.append(tf.cast(layer(x), tf.float32))
        assert layer(x).dtype == tf.bfloat16
    assert_same(*found, tolerance=2e-2)


MASKED = [
    {},
    {"return_sequences": True},
    {"return_sequences": True, "go_backwards": True, "return_state": True},
    {"return_sequences": True, "zero_output_for_mask": True},
    {"zero_output_for_mask": True},
]


def test_a_cell_of_keras_becomes_one_native_op(rng):
    for options in ({"return_sequences": True}, {}):
        _, ours = twins("LSTM", rng, **options)
        graph = tf.function(ours).get_concrete_function(tf.TensorSpec([None, None, WIDTH])).graph
        assert "TfTi>RecurrentSequence" in {op.type for op in graph.get_operations()}


@pytest.mark.needs_native_sequences
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
@pytest.mark.parametrize("options", MASKED, ids=str)
def test_a_masked_cell_of_keras_becomes_one_native_op(kind, options, rng):
    cell, layers = getattr(keras.layers, f"{kind}Cell"), []
    for layer in (keras.layers.RNN, tf_ti.keras.RNN):
        layers.append(layer(cell(6), **options))
        layers[-1].build((BATCH, TIME, WIDTH))
    layers[1].set_weights(layers[0].get_weights())
    x, mask = inputs(rng), random_mask(rng)
    compiled = tf.function(lambda x, mask: layers[1](x, mask=mask))
    specs = tf.TensorSpec([None, None, WIDTH]), tf.TensorSpec([None, None], tf.bool)
    types = {op.type for op in compiled.get_concrete_function(*specs).graph.get_operations()}
    assert "TfTi>RecurrentSequence" in types and not any("Iterator" in kind for kind in types)
    assert_same(compiled(x, mask), layers[0](x, mask=mask))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_compiled_by_xla(jit_compile, rng):
    if jit_compile and _library.XLA_PROBLEM is not None:
        pytest.skip(str(_library.XLA_PROBLEM))
    theirs, ours = twins("two states", rng, return_sequences=True)
    x = inputs(rng)
    assert_same(tf.function(ours, jit_compile=jit_compile)(x), theirs(x))


def test_wrong_cells():
    with pytest.raises(ValueError, match="`call` method"):
        tf_ti.keras.RNN(3)

    class Wrong(MinimalCell):
        def call(self, inputs, states):
            return inputs, [inputs]

    with pytest.raises(ValueError, match="init"):
        tf_ti.keras.RNN(Wrong(6))(tf.ones([2, 3, 4]))


@pytest.mark.parametrize("wrap", [lambda layer: layer, keras.layers.Bidirectional])
def test_a_checkpoint_holds_the_cells_of_a_list(tmp_path, wrap):
    def model():
        cells = [keras.layers.LSTMCell(3), keras.layers.GRUCell(2)]
        return keras.Sequential([keras.Input((TIME, WIDTH)), wrap(tf_ti.keras.RNN(cells))])

    saved, restored = model(), model()
    path = tf.train.Checkpoint(model=saved).save(tmp_path / "checkpoint")
    tf.train.Checkpoint(model=restored).restore(path).assert_consumed()
    for actual, expected in zip(restored.weights, saved.weights, strict=True):
        np.testing.assert_array_equal(actual, expected)
