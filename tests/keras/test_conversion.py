"""`tf_ti.keras.convert`: the new model beside the old one, in predictions, training and files."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti.keras

L = keras.layers
RNG = np.random.default_rng(0)
IDS = RNG.integers(1, 10, [8, 6]).astype(np.int32)
IDS[:, 4:] = 0
SERIES = RNG.standard_normal([8, 5, 3], np.float32)
TARGETS = RNG.standard_normal([8, 1], np.float32)


def of_series(*layers):
    return lambda: keras.Sequential([keras.Input((5, 3)), *layers, L.Dense(1)])


def of_ids(*layers, mask_zero=False):
    def make():
        embedding = L.Embedding(10, 4, mask_zero=mask_zero, name="words")
        return keras.Sequential([keras.Input((6,), dtype="int32"), embedding, *layers, L.Dense(1)])

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


MODELS = {
    "LSTM": (of_series(L.LSTM(4)), SERIES, {"LSTM"}),
    "GRU": (of_series(L.GRU(4, reset_after=False, go_backwards=True)), SERIES, {"GRU"}),
    "SimpleRNN": (of_series(L.SimpleRNN(4)), SERIES, {"SimpleRNN"}),
    "Bidirectional": (of_series(L.Bidirectional(L.GRU(3))), SERIES, {"GRU"}),
    "RNN": (of_series(L.RNN([L.LSTMCell(4), L.GRUCell(2)])), SERIES, {"RNN"}),
    "other activation": (of_series(L.LSTM(4, activation="gelu")), SERIES, {"LSTM"}),
    "nested": (nested, SERIES, {"GRU", "LSTM"}),
    "mean": (of_ids(L.GlobalAveragePooling1D()), IDS, {"EmbeddingBag"}),
    "mean of unmasked": (
        of_ids(L.GlobalAveragePooling1D(), mask_zero=True),
        IDS,
        {"EmbeddingBag"},
    ),
    "max": (of_ids(L.GlobalMaxPooling1D()), IDS, {"EmbeddingBag"}),
    "masked": (of_ids(L.LSTM(3), mask_zero=True), IDS, {"LSTM"}),
    "functional": (
        functional,
        {"ids": IDS, "series": SERIES},
        {"EmbeddingBag", "LSTM", "RNN"},
    ),
}
each_model = pytest.mark.parametrize("make, x, became", MODELS.values(), ids=MODELS)


def trained(make, x, **options):
    model = make()
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", **options)
    model.fit(x, TARGETS, epochs=2, verbose=0, shuffle=False)
    return model


def flat(value):
    return tf.nest.flatten(value)[0]


@each_model
def test_predictions_and_losses_are_those_of_the_old_model(make, x, became, tmp_path):
    model = trained(make, x)
    before = [value.copy() for value in model.get_weights()]
    made, report = tf_ti.keras.convert(model)
    assert {each.became for each in report} - {""} == became
    np.testing.assert_allclose(
        flat(made.predict(x, verbose=0)), flat(model.predict(x, verbose=0)), 1e-5, 1e-5
    )
    made.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        flat(loaded.predict(x, verbose=0)), flat(made.predict(x, verbose=0)), 1e-5, 1e-6
    )
    found = made.fit(x, TARGETS, epochs=3, verbose=0, shuffle=False)
    for value, other in zip(before, model.get_weights()):  # nothing is shared
        np.testing.assert_array_equal(value, other)
    right = model.fit(x, TARGETS, epochs=3, verbose=0, shuffle=False)
    np.testing.assert_allclose(found.history["loss"], right.history["loss"], 1e-4)


def test_what_an_optimizer_keeps_is_taken_along():
    make, x, _ = MODELS["nested"]
    model = make()
    model.compile("adam", "mse")
    model.fit(x, TARGETS, epochs=3, verbose=0)
    made, _ = tf_ti.keras.convert(model)
    assert int(made.optimizer.iterations) == int(model.optimizer.iterations) == 3
    sums = [
        sorted(float(keras.ops.sum(variable)) for variable in each.optimizer.variables)
        for each in (made, model)
    ]
    np.testing.assert_allclose(*sums, 1e-6)


def test_states_and_names_are_taken_along():
    layer = L.LSTM(4, stateful=True, name="memory")
    model = keras.Sequential([keras.Input(batch_shape=(8, 5, 3)), layer], name="streaming")
    model(SERIES)
    made, _ = tf_ti.keras.convert(model)
    assert made.name == "streaming" and [each.name for each in made.layers] == ["memory"]
    np.testing.assert_allclose(made(SERIES), model(SERIES), 1e-5, 1e-5)


def test_a_report_says_what_became_of_each_layer():
    _, report = tf_ti.keras.convert(functional())
    said = dict(line.split(": ", 1) for line in str(report).splitlines())
    assert said == {
        "a": "Embedding -> tf_ti.keras.EmbeddingBag: the mean of its rows, without 'pool'",
        "b": "Embedding -> tf_ti.keras.EmbeddingBag: the sum of its rows, without 'sum'",
        "c": "Embedding -> tf_ti.keras.EmbeddingBag: the max of its rows, without 'max'",
        "d": "Embedding -> stays: 'masked', which reads it, is no plain pool",
        "both/forward_memory": "LSTM -> tf_ti.keras.LSTM: one native op",
        "both/backward_memory": "LSTM -> tf_ti.keras.LSTM: one native op",
        "cells": "RNN -> tf_ti.keras.RNN: a loop of tf_ti around its cell",
        "masked": "LSTM -> tf_ti.keras.LSTM: one native op",
    }


def test_a_report_says_how_a_layer_runs():
    layers = [
        L.LSTM(4, activation="gelu", return_sequences=True, name="first"),
        L.GRU(4, recurrent_dropout=0.1, name="second"),
    ]
    _, report = tf_ti.keras.convert(of_series(*layers)())
    first, second = (each.reason for each in report)
    assert first.startswith("its cell in a loop: the op has the activations")
    assert second == "one native op; in training its cell in a loop: there is recurrent_dropout"


def test_a_model_without_such_layers_is_copied():
    model = of_series(L.Flatten())()
    made, report = tf_ti.keras.convert(model)
    assert str(report) == "there are no recurrent and no embedding layers"
    np.testing.assert_array_equal(made(SERIES), model(SERIES))


def shared_by_two():
    ids = keras.Input((6,), dtype="int32")
    rows = L.Embedding(10, 4, name="e")(ids)
    y = L.Concatenate()([L.GlobalAveragePooling1D()(rows), L.GlobalMaxPooling1D()(rows)])
    return keras.Model(ids, y)


def called_twice():
    a, b = (keras.Input((6,), dtype="int32") for _ in "ab")
    embedding, pool = L.Embedding(10, 4, name="e"), L.GlobalAveragePooling1D()
    return keras.Model([a, b], pool(embedding(a)) + pool(embedding(b)))


def kept_dimensions():
    ids = keras.Input((6,), dtype="int32")
    return keras.Model(ids, L.GlobalAveragePooling1D(keepdims=True)(L.Embedding(10, 4)(ids)))


def over_another_axis():
    ids = keras.Input((6,), dtype="int32")
    return keras.Model(ids, keras.ops.sum(L.Embedding(10, 4)(ids), axis=2))


def of_three_dimensions():
    ids = keras.Input((3, 6), dtype="int32")
    return keras.Model(ids, keras.ops.sum(L.Embedding(10, 4)(ids), axis=1))


def not_pooled():
    ids = keras.Input((6,), dtype="int32")
    return keras.Model(ids, L.Embedding(10, 4)(ids))


STAY = {
    shared_by_two: "not only a pool reads it",
    called_twice: "it is called more than once",
    kept_dimensions: "keeps dimensions",
    over_another_axis: "is over the axis 2",
    of_three_dimensions: "its ids have 3 dimensions, and not 2",
    not_pooled: "nothing pools it",
}


@pytest.mark.parametrize("make, reason", STAY.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_what_stays_and_why(make, reason):
    model = make()
    made, report = tf_ti.keras.convert(model)
    (each,) = report
    assert each.became == "" and reason in each.reason
    shapes = [tensor.shape for tensor in model.inputs]
    x = [RNG.integers(0, 10, [2, *shape[1:]]).astype(np.int32) for shape in shapes]
    x = x if len(x) > 1 else x[0]
    np.testing.assert_array_equal(made(x), model(x))


def test_an_output_that_a_loss_names_stays():
    ids = keras.Input((6,), dtype="int32")
    pooled = L.GlobalAveragePooling1D(name="pooled")(L.Embedding(10, 4)(ids))
    model = keras.Model(ids, [pooled])
    model.compile("sgd", {"pooled": "mse"})
    _, report = tf_ti.keras.convert(model)
    assert "is the name of an output" in str(report)


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.memory = L.LSTM(3)

    def call(self, x):
        return self.memory(x)


class Scaled(L.Layer):
    def __init__(self, factor, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, x):
        return x * self.factor

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


def test_layers_of_the_users_own_stay():
    model = of_series(Scaled(2.0), L.LSTM(3))()
    made, report = tf_ti.keras.convert(model)
    np.testing.assert_allclose(made(SERIES), model(SERIES), 1e-5, 1e-5)
    assert [each.became for each in report] == ["LSTM"]


@pytest.mark.parametrize("model", [Own(), L.LSTM(3), "model.keras", None], ids=str)
def test_what_is_no_plain_model_is_refused(model):
    with pytest.raises(TypeError, match="`model` must be a functional or a Sequential model"):
        tf_ti.keras.convert(model)
