"""`tf_ti.keras.convert`: the new model beside the old one, in predictions, training and files."""

import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers

import tf_ti.keras

L = keras.layers
not_equal = keras.ops.not_equal
RNG = np.random.default_rng(0)
IDS = RNG.integers(1, 10, [8, 6]).astype(np.int32)
IDS[:, 4:] = 0
SERIES = RNG.standard_normal([8, 5, 3], np.float32)
SERIES[:3, 3:] = 0
WORDS = tf.constant([["a b c"], ["b"], ["c d e"], ["a"], ["d"], ["e f"], ["a a"], ["f b"]])
TARGETS = RNG.standard_normal([8, 1], np.float32)


def of_series(*layers):
    return lambda: keras.Sequential([keras.Input((5, 3)), *layers, L.Dense(1)])


def of_ids(*layers, **options):
    def make():
        embedding = L.Embedding(10, 4, name="words", **options)
        return keras.Sequential([keras.Input((6,), dtype="int32"), embedding, *layers, L.Dense(1)])

    return make


def graph_of_ids(pool, **options):
    def make():
        ids = keras.Input((6,), dtype="int32")
        return keras.Model(ids, L.Dense(1)(pool(L.Embedding(10, 4, **options)(ids), ids)))

    return make


def nested():
    inner = keras.Sequential(
        [keras.Input((5, 3)), L.GRU(4, return_sequences=True), L.TimeDistributed(L.Dense(2))],
        name="inner",
    )
    return keras.Sequential([keras.Input((5, 3)), inner, L.LSTM(2), L.Dense(1)])


def functional():
    ids = keras.Input((6,), dtype="int32", name="ids")
    series = keras.Input((5, 3), name="series")
    mean = L.GlobalAveragePooling1D(name="pool")(L.Embedding(10, 4, mask_zero=True, name="a")(ids))
    total = keras.ops.sum(L.Embedding(10, 4, name="b")(ids), axis=1)
    most = keras.ops.max(L.Embedding(10, 4, name="c")(ids), axis=-2)
    masked = L.LSTM(3, name="masked")(L.Embedding(10, 4, mask_zero=True, name="d")(ids))
    both = L.Bidirectional(L.LSTM(3, dropout=0.2, name="memory"), name="both")(series)
    cells = L.RNN([L.LSTMCell(3), L.GRUCell(2)], name="cells")(series)
    joined = L.Dropout(0.3)(L.Concatenate()([mean, total, most, masked, both, cells]))
    return keras.Model({"ids": ids, "series": series}, {"y": L.Dense(1, name="y")(joined)})


def encoder_and_decoder():
    series = keras.Input((5, 3))
    y, *states = L.LSTM(4, return_state=True, return_sequences=True)(series)
    return keras.Model(series, L.Dense(1)(L.LSTM(4)(y, initial_state=states)))


def shared():
    series = keras.Input((5, 3))
    memory = L.GRU(4)
    return keras.Model(series, L.Dense(1)(memory(series) * memory(2 * series)))


def shared_embedding():
    ids = keras.Input((6,), dtype="int32")
    rows, pool = L.Embedding(10, 4, mask_zero=True), L.GlobalAveragePooling1D()
    one, other = pool(rows(ids)), L.GlobalAveragePooling1D()(rows(9 - ids))
    return keras.Model(ids, L.Dense(1)(L.Concatenate()([one, other])))


def bags_in_time():
    bags = keras.Sequential(
        [keras.Input((3,), dtype="int32"), L.Embedding(10, 4), L.GlobalMaxPooling1D()]
    )
    layers = [L.Reshape((2, 3)), L.TimeDistributed(bags), L.SimpleRNN(3), L.Dense(1)]
    return keras.Sequential([keras.Input((6,), dtype="int32"), *layers])


def of_words():
    numbers = L.TextVectorization(output_sequence_length=4)
    numbers.adapt(WORDS[:, 0])
    embedding = L.Embedding(numbers.vocabulary_size(), 4, mask_zero=True)
    layers = [numbers, embedding, L.GlobalAveragePooling1D(), L.Dense(1)]
    return keras.Sequential([keras.Input((1,), dtype="string"), *layers])


def normalized():
    normalization = L.Normalization()
    normalization.adapt(SERIES * 3 + 1)
    return of_series(normalization, L.LSTM(3), L.BatchNormalization())()


def partly_frozen():
    model = of_series(L.LSTM(3, return_sequences=True), L.GRU(3), L.Dense(3))()
    model.trainable = False
    model.layers[2].trainable = True
    model.layers[2].bias.trainable = False
    model.layers[0].cell.trainable = True
    return model


def never_called():
    return keras.Sequential([L.LSTM(4, return_sequences=True), L.GRU(3), L.Dense(1)])


class OwnStep(keras.Model):
    """A functional model that trains in its own way."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


class OwnConstructor(keras.Model):
    """A functional model whose constructor makes its layers."""

    def __init__(self, units, **options):
        series = keras.Input((5, 3))
        super().__init__(series, L.Dense(1)(L.LSTM(units)(series)), **options)
        self.units = units

    def get_config(self):
        return {"units": self.units, "name": self.name}


class OwnCall(keras.Model):
    """A model whose code makes and calls its layers."""

    def __init__(self, units=3, **options):
        super().__init__(**options)
        self.both = L.Bidirectional(L.LSTM(units, return_sequences=True))
        self.others = {"a": L.RNN([L.GRUCell(2), L.LSTMCell(units)]), "b": [L.GRU(2)]}
        self.dense = L.Dense(1)

    def call(self, x, training=False):
        x = self.both(x, training=training)
        y = self.others["b"][0](x)
        return self.dense(keras.ops.concatenate([self.others["a"](x), y], -1))


class OwnSequential(keras.Sequential):
    pass


class Around(keras.Model):
    """A model around others that its configuration has."""

    def __init__(self, inner, **options):
        super().__init__(**options)
        self.inner = inner

    def call(self, x):
        return self.inner(x)

    def get_config(self):
        return {"inner": keras.saving.serialize_keras_object(self.inner), "name": self.name}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config.pop("inner")), **config)


def own_step():
    series = keras.Input((5, 3))
    return OwnStep(series, L.Dense(1)(L.LSTM(4)(series)))


def decoder():
    ids = keras.Input((6,), dtype="int32")
    _, *states = L.LSTM(4, return_state=True)(L.Embedding(10, 4, mask_zero=True)(ids))
    rows = L.Embedding(10, 4, mask_zero=True)(ids)
    return keras.Model(ids, L.Dense(1)(L.LSTM(4)(rows, initial_state=states)))


def three_embeddings():
    ids = keras.Input((6,), dtype="int32")
    rows = L.Add()([L.Embedding(10, 4, mask_zero=mask)(ids) for mask in (True, False, True)])
    return keras.Model(ids, L.Dense(1)(L.GRU(2)(rows)))


MODELS = {
    "own step": (own_step, SERIES, {"LSTM"}),
    "own step around": (lambda: Around(own_step()), SERIES, {"LSTM"}),
    "own constructor": (lambda: OwnConstructor(4), SERIES, {"LSTM"}),
    "own call": (OwnCall, SERIES, {"LSTM", "RNN", "GRU"}),
    "own call in a model": (lambda: of_series(OwnCall())(), SERIES, {"LSTM", "RNN", "GRU"}),
    "own Sequential": (
        lambda: OwnSequential([keras.Input((5, 3)), L.LSTM(4), L.Dense(1)]),
        SERIES,
        {"LSTM"},
    ),
    "around": (lambda: Around(nested()), SERIES, {"GRU", "LSTM"}),
    "around bags": (
        lambda: Around(of_ids(L.GlobalAveragePooling1D())()),
        IDS,
        {"EmbeddingBag"},
    ),
    "decoder": (decoder, IDS, {"LSTM"}),
    "three embeddings": (three_embeddings, IDS, {"GRU"}),
    "LSTM": (of_series(L.LSTM(4)), SERIES, {"LSTM"}),
    "GRU": (of_series(L.GRU(4, reset_after=False, go_backwards=True)), SERIES, {"GRU"}),
    "SimpleRNN": (of_series(L.SimpleRNN(4, use_bias=False)), SERIES, {"SimpleRNN"}),
    "regularized": (
        of_series(L.GRU(4, kernel_regularizer="l2", bias_constraint="non_neg", dropout=0.3)),
        SERIES,
        {"GRU"},
    ),
    "recurrent dropout": (of_series(L.LSTM(4, recurrent_dropout=0.3, seed=2)), SERIES, {"LSTM"}),
    "float64": (of_series(L.LSTM(4, dtype="float64", trainable=False)), SERIES, {"LSTM"}),
    "Bidirectional": (of_series(L.Bidirectional(L.GRU(3), "mul")), SERIES, {"GRU"}),
    "masked series": (of_series(L.Masking(), L.Bidirectional(L.LSTM(3))), SERIES, {"LSTM"}),
    "RNN": (of_series(L.RNN([L.LSTMCell(4), L.GRUCell(2)])), SERIES, {"RNN"}),
    "other activation": (of_series(L.LSTM(4, activation="gelu")), SERIES, {"LSTM"}),
    "functions": (
        of_series(
            L.LSTM(3, activation=lambda x: tf.tanh(x) * 0.9, return_sequences=True),
            L.Lambda(lambda x, step: x[:, step], arguments={"step": 2}, mask=lambda x, _: None),
        ),
        SERIES,
        {"LSTM"},
    ),
    "nested": (nested, SERIES, {"GRU", "LSTM"}),
    "encoder and decoder": (encoder_and_decoder, SERIES, {"LSTM"}),
    "shared": (shared, SERIES, {"GRU"}),
    "normalized": (normalized, SERIES, {"LSTM"}),
    "partly frozen": (partly_frozen, SERIES, {"LSTM", "GRU"}),
    "never called": (never_called, SERIES, {"LSTM", "GRU"}),
    "mean": (of_ids(L.GlobalAveragePooling1D()), IDS, {"EmbeddingBag"}),
    "mean of unmasked": (
        of_ids(L.GlobalAveragePooling1D(), mask_zero=True, embeddings_constraint="non_neg"),
        IDS,
        {"EmbeddingBag"},
    ),
    "max": (of_ids(L.GlobalMaxPooling1D(), mask_zero=True), IDS, {"EmbeddingBag"}),
    "own mask": (
        graph_of_ids(lambda rows, ids: L.GlobalAveragePooling1D()(rows, not_equal(ids, 0))),
        IDS,
        {"EmbeddingBag"},
    ),
    "shared embedding": (shared_embedding, IDS, {"EmbeddingBag"}),
    "bags in time": (bags_in_time, IDS, {"EmbeddingBag", "SimpleRNN"}),
    "words": (of_words, WORDS, {"EmbeddingBag"}),
    "masked": (of_ids(L.LSTM(3), mask_zero=True), IDS, {"LSTM"}),
    "functional": (
        functional,
        {"ids": IDS, "series": SERIES},
        {"EmbeddingBag", "LSTM", "RNN"},
    ),
}
each_model = pytest.mark.parametrize("make, x, became", MODELS.values(), ids=MODELS)


def trained(make, x, optimizer=None, **options):
    model = make()
    optimizer = optimizer or optimizers.SGD(0.05, momentum=0.9)
    model.compile(optimizer, **{"loss": "mse", **options})
    fit(model, x)
    return model


def fit(model, x, y=TARGETS):
    return model.fit(x, y, epochs=3, batch_size=8, shuffle=False, verbose=0).history


def predict(model, x):
    return tf.nest.flatten(model.predict(x, verbose=0))


def assert_trains_alike(made, model, x, y=TARGETS):
    """The new model is trained first, and leaves the old one as it is."""
    before = [value.copy() for value in model.get_weights()]
    found = fit(made, x, y)
    for value, other in zip(before, model.get_weights()):
        np.testing.assert_array_equal(value, other)
    right = fit(model, x, y)
    assert list(found) == list(right)
    for name, values in found.items():
        np.testing.assert_allclose(values, right[name], 1e-4, 1e-6)


@pytest.mark.quarter
@each_model
def test_predictions_and_losses_are_those_of_the_old_model(make, x, became):
    model = trained(make, x)
    made, report = tf_ti.keras.convert(model)
    assert {each.became for each in report} - {""} == {f"tf_ti.keras.{name}" for name in became}
    for ours, theirs in zip(predict(made, x), predict(model, x), strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-5, 1e-5)
    assert_trains_alike(made, model, x)


@pytest.mark.quarter
@pytest.mark.parametrize(
    "make, x, became",
    [each for name, each in MODELS.items() if not name.startswith(("own call", "own constr"))],
    ids=[name for name in MODELS if not name.startswith(("own call", "own constr"))],
)
def test_names_order_and_flags_of_variables_are_kept(make, x, became):
    model = make()
    predict(model, x)
    made, _ = tf_ti.keras.convert(model)
    names = {layer.name for layer in model.layers}
    assert [layer.name for layer in made.layers if layer.name in names] == [
        layer.name for layer in model.layers
    ]
    # Without the model's name: the layers of these tests have that of the first model they were in.
    for of in ("weights", "trainable_weights"):
        ours, theirs = (
            [
                (re.sub(r"^sequential(_\d+)?/", "", w.path), w.shape, w.trainable)
                for w in getattr(each, of)
            ]
            for each in (made, model)
        )
        assert ours == theirs


@pytest.mark.parametrize("name", ["functional", "recurrent dropout", "RNN", "bags in time"])
def test_a_fresh_process_loads_the_new_model(name, run_program, tmp_path):
    make, x, _ = MODELS[name]
    made, _ = tf_ti.keras.convert(trained(make, x))
    made.save(tmp_path / "model.keras")
    arrays = {f"x_{key}": value for key, value in (x if isinstance(x, dict) else {"": x}).items()}
    np.savez(tmp_path / "x.npz", **arrays)
    np.save(tmp_path / "y.npy", predict(made, x)[0])
    run_program(
        """
        import keras
        import numpy as np
        import tensorflow as tf
        import tf_ti

        x = {name[2:]: tf.constant(value) for name, value in np.load("x.npz").items()}
        y = keras.models.load_model("model.keras").predict(x.get("", x), verbose=0)
        np.testing.assert_allclose(tf.nest.flatten(y)[0], np.load("y.npy"), 1e-5, 1e-6)
        """
    )


@pytest.mark.parametrize("policy, tolerance", [("mixed_float16", 2e-3), ("mixed_bfloat16", 2e-2)])
def test_dtype_policies_are_kept(policy, tolerance):
    keras.config.set_dtype_policy(policy)
    try:
        model = of_ids(L.GlobalAveragePooling1D(), L.Reshape((2, 2)), L.GRU(3))()
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile(optimizers.LossScaleOptimizer(optimizers.SGD(0.1)), "mse")
    made, _ = tf_ti.keras.convert(model)
    assert {layer.dtype_policy.name for layer in [made, *made.layers]} == {policy}
    np.testing.assert_allclose(fit(made, IDS)["loss"], fit(model, IDS)["loss"], tolerance)


OPTIMIZERS = {
    "Adam": lambda: optimizers.Adam(0.01, global_clipnorm=0.1),
    "a schedule": lambda: optimizers.RMSprop(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "averages": lambda: optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=4),
    "accumulated gradients": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "a scaled loss": lambda: optimizers.LossScaleOptimizer(optimizers.AdamW(0.01)),
    "tf_ti.keras": lambda: tf_ti.keras.optimizers.Adam(0.01),
}


@pytest.mark.quarter
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_what_an_optimizer_keeps_is_taken_along(optimizer):
    model = trained(MODELS["nested"][0], SERIES, optimizer())
    made, _ = tf_ti.keras.convert(model)
    for ours, theirs in zip(made.optimizer.variables, model.optimizer.variables, strict=True):
        assert ours is not theirs
        np.testing.assert_array_equal(ours, theirs)
    assert_trains_alike(made, model, SERIES)


def test_variables_that_do_not_decay_are_taken_along():
    model = MODELS["LSTM"][0]()
    optimizer = optimizers.AdamW(0.01, weight_decay=0.5)
    optimizer.exclude_from_weight_decay([model.layers[0].cell.kernel], ["bias"])
    model.compile(optimizer, "mse")
    made, _ = tf_ti.keras.convert(model)
    assert_trains_alike(made, model, SERIES)


class Ratio(keras.metrics.MeanMetricWrapper):
    def __init__(self, name="ratio", dtype=None):
        super().__init__(own_loss, name, dtype)

    def get_config(self):
        return {"name": self.name}


def own_loss(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred), -1)


COMPILED = {
    "own": {"loss": own_loss, "metrics": [Ratio(), lambda y, z: z - y]},
    "weighted": {"loss_weights": [0.5], "weighted_metrics": ["mae"]},
    "XLA": {"jit_compile": True, "auto_scale_loss": False},
    "eager": {"run_eagerly": True},
    "several steps": {"steps_per_execution": 2},
}


@pytest.mark.parametrize("options", COMPILED.values(), ids=COMPILED)
def test_what_a_model_is_compiled_with_is_taken_along(options):
    model = trained(MODELS["LSTM"][0], SERIES, **options)
    made, _ = tf_ti.keras.convert(model)
    assert_trains_alike(made, model, SERIES)


def test_losses_and_metrics_of_named_outputs_are_taken_along():
    ids = keras.Input((6,), dtype="int32")
    pooled = L.GlobalAveragePooling1D(name="pooled")(L.Embedding(10, 4)(ids))
    model = keras.Model(ids, [pooled, L.Dense(1, name="y")(pooled)])
    y = {"pooled": RNG.standard_normal([8, 4], np.float32), "y": TARGETS}
    metrics = {"pooled": keras.metrics.MeanSquaredError()}
    model.compile(
        optimizers.SGD(0.1), {"pooled": "mse", "y": "mae"}, {"pooled": 0.3, "y": 2.0}, metrics
    )
    fit(model, IDS, y)
    made, _ = tf_ti.keras.convert(model)
    assert made.output_names == ["pooled", "y"]
    assert_trains_alike(made, model, IDS, y)


def test_a_compiled_model_in_a_model_stays_compiled():
    inner = trained(MODELS["LSTM"][0], SERIES, loss=own_loss)
    series = keras.Input((5, 3))
    made, _ = tf_ti.keras.convert(keras.Model(series, inner(series)))
    assert_trains_alike(made.get_layer(inner.name), inner, SERIES)


class OneLayer(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.memory = L.LSTM(3)

    def call(self, x):
        return self.memory(x)


class OwnState(OneLayer):
    """A model that keeps more than variables."""

    words, factor = ("none",), 1.0

    def call(self, x):
        return self.factor * len(self.words) * super().call(x)

    def save_assets(self, folder):
        pathlib.Path(folder, "words").write_text(" ".join(self.words))

    def load_assets(self, folder):
        self.words = tuple(pathlib.Path(folder, "words").read_text().split())

    def save_own_variables(self, store):
        store["factor"] = np.float32(self.factor)

    def load_own_variables(self, store):
        self.factor = float(np.asarray(store["factor"]))


@pytest.mark.parametrize("make", [lambda m: m, Around], ids=["alone", "around"])
def test_what_a_model_keeps_beside_its_variables_is_copied(make):
    inner = OwnState()
    inner.words, inner.factor = ("a", "b", "c"), 5.0
    model = make(inner)
    expected = model(SERIES)
    made, _ = tf_ti.keras.convert(model)
    np.testing.assert_allclose(made(SERIES), expected, 1e-5, 1e-5)


def test_a_converted_model_is_built_and_can_be_converted():
    model = OneLayer()
    model(SERIES)
    made, _ = tf_ti.keras.convert(model)
    again, _ = tf_ti.keras.convert(made)
    assert made.built and again.built
    np.testing.assert_allclose(again(SERIES), model(SERIES), 1e-5, 1e-5)


@pytest.mark.parametrize(
    "make", [OneLayer, lambda: of_series(OneLayer())()], ids=["alone", "inside"]
)
def test_layers_that_code_makes_keep_their_policies(make):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = make()
        model(SERIES)
    finally:
        keras.config.set_dtype_policy("float32")
    made, _ = tf_ti.keras.convert(model)
    assert made(SERIES).dtype == model(SERIES).dtype == tf.bfloat16
    for old, new in zip(model._flatten_layers(), made._flatten_layers(), strict=True):
        assert new.compute_dtype == old.compute_dtype or isinstance(old, L.InputLayer)


class OwnCompile(OwnCall):
    def compile(self, step, **options):
        super().compile("sgd", "mse", **options)
        self.step = step


def test_a_model_with_its_own_compile_is_left_to_be_compiled():
    model = OwnCompile()
    model.compile(2)
    fit(model, SERIES)
    made, _ = tf_ti.keras.convert(model)
    assert model.compiled and not made.compiled
    np.testing.assert_allclose(made(SERIES), model(SERIES), 1e-5, 1e-5)


def test_a_model_of_a_file_whose_code_makes_layers_has_keras_layers_again(tmp_path):
    model = OwnCall()
    predict(model, SERIES)
    made, _ = tf_ti.keras.convert(model)
    made.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", {"OwnCall": OwnCall})
    assert type(loaded.both.forward_layer) is L.LSTM
    np.testing.assert_allclose(predict(loaded, SERIES), predict(model, SERIES), 1e-5, 1e-5)
    again, report = tf_ti.keras.convert(loaded)
    assert all(each.became for each in report)


def test_a_stateful_layer_that_was_never_called_has_no_states():
    made, _ = tf_ti.keras.convert(keras.Sequential([L.LSTM(4, stateful=True)]))
    assert made.layers[0].stateful and made.layers[0].states is None


def test_states_are_taken_along():
    layer = L.Bidirectional(L.LSTM(4, stateful=True, name="memory"))
    model = keras.Sequential([keras.Input(batch_shape=(8, 5, 3)), layer], name="streaming")
    model(SERIES)
    made, _ = tf_ti.keras.convert(model)
    assert made.name == "streaming"
    np.testing.assert_allclose(made(SERIES), model(SERIES), 1e-5, 1e-5)


@pytest.mark.parametrize("kind", ["keras", "h5"])
def test_a_model_from_a_file_is_converted(kind, tmp_path):
    model = of_ids(L.Bidirectional(L.LSTM(3)), Scaled(2.0), mask_zero=True)()
    model.compile("adam", keras.losses.MeanSquaredError())
    fit(model, IDS)
    model.save(tmp_path / f"model.{kind}")
    loaded = keras.models.load_model(tmp_path / f"model.{kind}", custom_objects={"Scaled": Scaled})
    made, report = tf_ti.keras.convert(loaded)
    assert [each.became for each in report] == ["", *["tf_ti.keras.LSTM"] * 2]
    np.testing.assert_allclose(predict(made, IDS), predict(model, IDS), 1e-5, 1e-5)


def test_weights_of_a_lora_stay_apart():
    model = of_ids(L.GlobalAveragePooling1D())()
    model.layers[0].enable_lora(2)
    model.compile(optimizers.SGD(0.1), "mse")
    fit(model, IDS)
    made, _ = tf_ti.keras.convert(model)
    assert_trains_alike(made, model, IDS)


# --- the report ----------------------------------------------------------------------------------


def reasons(model):
    _, report = tf_ti.keras.convert(model)
    return dict(line.split(": ", 1) for line in re.sub(r"_\d+'", "'", str(report)).splitlines())


@pytest.mark.needs_native_sequences
def test_a_report_says_what_became_of_each_layer():
    lstm = "keras.layers.LSTM -> tf_ti.keras.LSTM: one native op"
    bag = "keras.layers.Embedding -> tf_ti.keras.EmbeddingBag: "
    assert reasons(functional()) == {
        "a": f"{bag}the mean of its rows, in place of 'pool'",
        "b": f"{bag}the sum of its rows, in place of 'sum'",
        "c": f"{bag}the max of its rows, in place of 'max'",
        "d": "keras.layers.Embedding -> stays: 'masked', which reads it, does not pool it",
        "both/forward_memory": lstm,
        "both/backward_memory": lstm,
        "cells": "keras.layers.RNN -> tf_ti.keras.RNN: its cell in a loop of tf_ti",
        "masked": lstm,
    }


@pytest.mark.needs_native_sequences
def test_a_report_says_how_a_layer_runs():
    layers = [
        L.LSTM(4, activation="gelu", return_sequences=True, name="first"),
        L.GRU(4, recurrent_dropout=0.1, name="second"),
    ]
    _, (first, second) = tf_ti.keras.convert(of_series(*layers)())
    loop = "its cell in a loop of tf_ti: "
    assert first.reason.startswith(f"{loop}the op has the activations")
    assert second.reason == f"one native op; in training {loop}there is recurrent_dropout"


def test_a_model_without_such_layers_is_copied():
    model = of_series(L.Flatten())()
    made, report = tf_ti.keras.convert(model)
    assert str(report) == "there are no recurrent and no embedding layers"
    np.testing.assert_array_equal(made(SERIES), model(SERIES))


@pytest.mark.needs_native_sequences
def test_a_new_model_has_nothing_left_to_replace():
    made, _ = tf_ti.keras.convert(nested())
    again, report = tf_ti.keras.convert(made)
    assert [(each.became, each.reason) for each in report] == [
        ("", "it is of tf_ti.keras already: one native op")
    ] * 2
    np.testing.assert_allclose(again(SERIES), made(SERIES), 1e-6, 1e-6)


def unpooled(rows, ids):
    return L.Flatten()(rows)


def pooled_twice(rows, ids):
    return L.Concatenate()([L.GlobalAveragePooling1D()(rows), L.GlobalMaxPooling1D()(rows)])


def masked_and_not(rows, ids):
    return L.Concatenate()([L.GlobalAveragePooling1D()(rows), keras.ops.mean(rows, 1)])


def with_another_mask(rows, ids):
    return L.GlobalAveragePooling1D()(rows, mask=not_equal(ids, 3))


def with_others(rows, ids):
    pool = L.GlobalMaxPooling1D()
    return pool(rows) + pool(2 * L.Embedding(10, 4)(ids))


def keeping_dimensions(rows, ids):
    return L.Flatten()(L.GlobalAveragePooling1D(keepdims=True)(rows))


def over_another_axis(rows, ids):
    return keras.ops.sum(rows, axis=2)


STAYS = {
    unpooled: "'flatten', which reads it, does not pool it",
    pooled_twice: "it is pooled in several ways",
    masked_and_not: "it is pooled in several ways",
    with_another_mask: "'global_average_pooling1d' has a mask that is not that of the ids",
    with_others: "'global_max_pooling1d' pools other tensors too",
    keeping_dimensions: "'global_average_pooling1d' keeps dimensions",
    over_another_axis: "'sum' is over axis 2: that of the ids is 1",
}


@pytest.mark.parametrize("pool, reason", STAYS.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_which_embedding_stays_and_why(pool, reason):
    model = graph_of_ids(pool, mask_zero=True, name="words")()
    made, report = tf_ti.keras.convert(model)
    assert report[0].became == "" and reason in reasons(model)["words"]
    np.testing.assert_array_equal(made(IDS), model(IDS))


def test_an_embedding_that_is_an_output_stays():
    ids = keras.Input((6,), dtype="int32")
    rows = L.Embedding(10, 4, name="words")(ids)
    model = keras.Model(ids, [rows, L.GlobalMaxPooling1D()(rows)])
    assert "it is an output of its model" in reasons(model)["words"]


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda layer: layer.enable_lora(2), "it has a LoRA"),
        (lambda layer: layer.quantize("int8"), "its dtype policy is a QuantizedDTypePolicy"),
    ],
    ids=["LoRA", "int8"],
)
def test_an_embedding_that_has_more_stays(change, reason):
    model = of_ids(L.GlobalMaxPooling1D())()
    change(model.layers[0])
    made, report = tf_ti.keras.convert(model)
    assert reason in str(report)
    np.testing.assert_array_equal(made(IDS), model(IDS))


class OwnLSTM(L.LSTM):
    pass


class OwnModel(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.memory = L.LSTM(3, name="memory")

    def call(self, x):
        return self.memory(x)

    def get_config(self):
        return {"name": self.name}


class Block(L.Layer):
    """Has one layer in its configuration, and makes another one."""

    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.layers.deserialize(inner) if isinstance(inner, dict) else inner
        self.made = L.GRU(2, name="made")

    def build(self, shape):
        self.inner.build(shape)
        self.made.build(self.inner.compute_output_shape(shape))

    def call(self, x):
        return self.made(self.inner(x))

    def get_config(self):
        return {**super().get_config(), "inner": keras.layers.serialize(self.inner)}


@keras.saving.register_keras_serializable("conversion")
class Scaled(L.Layer):
    def __init__(self, factor, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, x):
        return x * self.factor

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


@pytest.mark.parametrize(
    "make, told",
    [
        (lambda: OwnLSTM(3, name="own"), {"own": "OwnLSTM -> stays: it is of a class of its own"}),
        (lambda: OwnModel(name="own"), {"own/memory": "tf_ti.keras.LSTM"}),
        (
            lambda: Block(L.LSTM(3, return_sequences=True, name="inner"), name="own"),
            {"own/inner": "tf_ti.keras.LSTM", "own/made": "tf_ti.keras.GRU"},
        ),
    ],
    ids=["derived", "model", "layer"],
)
def test_what_becomes_of_recurrent_layers_of_the_users_own_classes(make, told):
    model = of_series(make())()
    made, _ = tf_ti.keras.convert(model)
    np.testing.assert_allclose(made(SERIES), model(SERIES), 1e-5, 1e-5)
    found = reasons(model)
    assert found.keys() == told.keys()
    for path, text in told.items():
        assert text in found[path]


def test_a_layer_that_tf_ti_lacks_stays():
    model = keras.Sequential([keras.Input((4, 5, 3)), L.ConvLSTM1D(2, 2, name="conv")])
    assert reasons(model)["conv"].endswith("stays: tf_ti.keras has no ConvLSTM1D")


# --- what cannot be converted --------------------------------------------------------------------


@pytest.mark.parametrize("model", [OwnModel, L.LSTM(3), "model.keras", None], ids=str)
def test_what_is_no_model_is_refused(model):
    with pytest.raises(TypeError, match="`model` must be a model of Keras"):
        tf_ti.keras.convert(model)


class Unsaved(keras.Model):
    def __init__(self, layers):
        super().__init__()
        self.parts = layers


class WithoutConfig(L.Layer):
    def __init__(self, factor):
        super().__init__()

    def call(self, x):
        return x


def with_a_layer_in_two_models():
    dense = L.Dense(3)
    series = keras.Input((5, 3))
    inner = keras.Sequential([keras.Input((5, 3)), dense])
    return keras.Model(series, L.LSTM(2)(dense(inner(series))))


def with_an_optimizer_of_others():
    model, other = of_series(L.LSTM(2))(), of_series(L.LSTM(2))()
    optimizer = optimizers.Adam()
    optimizer.build(model.trainable_variables + other.trainable_variables)
    model.compile(optimizer, "mse")
    return model


@pytest.mark.parametrize(
    "make, message",
    [
        (of_series(L.LSTM(2, return_sequences=True), WithoutConfig(3)), "WithoutConfig"),
        (lambda: Unsaved(object()), "must override `get_config()`"),
        (with_a_layer_in_two_models, "Does a layer of it stand in several models?"),
        (with_an_optimizer_of_others, "trains variables that are not the model's"),
    ],
    ids=["configuration", "model", "shared", "optimizer"],
)
def test_a_model_that_cannot_be_made_anew_is_refused(make, message):
    with pytest.raises(ValueError, match="cannot be made anew") as error:
        tf_ti.keras.convert(make())
    assert message in str(error.value)


# --- summaries -----------------------------------------------------------------------------------


@pytest.mark.needs_native_sequences
def test_a_summary_says_how_each_recurrent_layer_runs():
    layers = [
        L.LSTM(4, return_sequences=True, name="theirs"),
        L.Bidirectional(tf_ti.keras.GRU(2, return_sequences=True, name="ours"), name="both"),
        tf_ti.keras.RNN(L.LSTMCell(2), name="loop"),
    ]
    model = of_series(*layers)()
    lines = []
    tf_ti.keras.summary(model, print_fn=lines.append)
    assert "Trainable params" in lines[0]
    assert lines[1:] == [
        "theirs: keras.layers.LSTM: Keras's loop",
        "both/forward_ours: tf_ti.keras.GRU: one native op",
        "both/backward_ours: tf_ti.keras.GRU: one native op",
        "loop: tf_ti.keras.RNN: its cell in a loop of tf_ti",
    ]
    assert repr(model.layers[-2]) == "<RNN name=loop, built=True, its cell in a loop of tf_ti>"


def test_a_summary_of_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match="`model` must be a model of Keras"):
        tf_ti.keras.summary(L.LSTM(3))
