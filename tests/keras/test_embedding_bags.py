"""tf_ti.keras.EmbeddingBags, beside its tables, each called by itself."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_ti import _library
from tf_ti.keras import EmbeddingBag, EmbeddingBags, optimizers

# Bags of a user, of what they viewed, and of what they bought.
USERS = tf.constant([[3, 0], [1, 2], [0, 0]])
VIEWED = tf.ragged.constant([[1, 5, 0], [], [4]], tf.int64)
BOUGHT = tf.ragged.constant([[], [0, 6], [2]], tf.int32).to_sparse()
INPUTS = {"user": USERS, "viewed": VIEWED, "bought": BOUGHT}
FEATURES = {"viewed": "item", "user": "user", "bought": "item"}


def tables():
    """Two tables that differ in everything."""
    normal = keras.initializers.RandomNormal(seed=3)
    return {
        "user": EmbeddingBag(4, 2, normal, combiner="mean", max_norm=0.04),
        "item": EmbeddingBag(7, 5, normal, mask_zero=True, combiner="sqrtn", default_index=6),
    }


@pytest.fixture
def layer():
    return EmbeddingBags(tables(), FEATURES)


def each(layer, inputs, masks=None):
    """The oracle: each table by itself."""
    masks = masks or {}
    return {
        feature: layer.tables[table](inputs[feature], mask=masks.get(feature))
        for feature, table in layer.features.items()
    }


def same(actual, expected):
    assert list(actual) == list(expected)
    for feature, rows in actual.items():
        assert rows.dtype == expected[feature].dtype
        np.testing.assert_array_equal(rows, expected[feature])


def symbolic():
    """KerasTensors of the kinds of INPUTS."""
    try:
        return {
            "user": keras.Input((2,), dtype="int32", name="user"),
            "viewed": keras.Input((None,), dtype="int64", ragged=True, name="viewed"),
            "bought": keras.Input((None,), dtype="int32", sparse=True, name="bought"),
        }
    except (TypeError, ValueError):
        pytest.skip(f"Keras {keras.__version__} has no ragged inputs")


def model_of(layer):
    inputs = symbolic()
    pooled = layer(inputs)
    logits = keras.layers.Dense(1)(keras.layers.Concatenate()(list(pooled.values())))
    return keras.Model(inputs, logits)


# --- what it computes ----------------------------------------------------------------------------


def test_each_feature_is_pooled_by_its_table(layer):
    same(layer(INPUTS), each(layer, INPUTS))


def test_each_table_has_a_feature_of_its_name():
    layer = EmbeddingBags(tables())
    inputs = {"user": USERS, "item": VIEWED}
    same(layer(inputs), each(layer, inputs))


@pytest.mark.parametrize("by_name", [False, True])
def test_features_may_have_weights(layer, by_name):
    def weighted(ids):
        weights = tf.cast(ids, tf.float32) + 0.5
        return {"ids": ids, "weights": weights} if by_name else (ids, weights)

    inputs = {**INPUTS, "user": weighted(USERS), "viewed": weighted(VIEWED)}
    same(layer(inputs), each(layer, inputs))


def test_maxima_stand_beside_weighted_sums():
    layer = EmbeddingBags(
        {"a": EmbeddingBag(4, 2, combiner="max"), "b": EmbeddingBag(4, 3, combiner="mean")}
    )
    inputs = {"a": USERS, "b": (USERS, tf.cast(USERS, tf.float32) + 1)}
    same(layer(inputs), each(layer, inputs))


def test_features_may_have_more_dimensions(layer):
    inputs = {**INPUTS, "viewed": tf.ragged.constant([[[1], [2, 3]], []], tf.int64)}
    actual, expected = layer(inputs), each(layer, inputs)
    assert actual["viewed"].to_list() == expected["viewed"].to_list()


def test_a_mask_leaves_ids_out(layer):
    masks = {"user": tf.constant([[True, False]] * 3)}
    same(layer(INPUTS, mask=masks), each(layer, INPUTS, masks))


class Masked(keras.layers.Layer):
    """Puts a mask on ids: those that are odd are left out."""

    def __init__(self):
        super().__init__(autocast=False)

    def call(self, ids):
        return tf.identity(ids)  # another tensor, as the mask becomes an attribute of it

    def compute_mask(self, ids, mask=None):
        return tf.equal(ids % 2, 0)


def test_a_mask_comes_with_the_input(layer):
    inputs = {**INPUTS, "user": Masked()(USERS)}
    same(layer(inputs), each(layer, INPUTS, {"user": tf.equal(USERS % 2, 0)}))


def test_a_call_is_one_operation():
    layer = EmbeddingBags({"user": EmbeddingBag(4, 2), "item": EmbeddingBag(7, 5)}, FEATURES)
    graph = tf.function(layer).get_concrete_function(INPUTS).graph
    types = [op.type for op in graph.get_operations() if op.type.startswith("TfTi>")]
    assert types == ["TfTi>ResourceEmbeddingBags"]


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float64"])
def test_what_a_feature_gives_has_the_dtype_of_its_table(policy):
    layer = EmbeddingBags({"a": EmbeddingBag(4, 2, dtype=policy)})
    same(layer({"a": USERS}), each(layer, {"a": USERS}))


def test_the_output_shapes_are_known(layer):
    assert {name: spec.shape for name, spec in layer(symbolic()).items()} == {
        "viewed": (None, 5),
        "user": (None, 2),
        "bought": (None, 5),
    }
    shapes = {"user": (3, 2), "viewed": (3, None), "bought": {"ids": (3, 4), "weights": (3, 4)}}
    assert layer.compute_output_shape(shapes) == {
        "viewed": (3, 5),
        "user": (3, 2),
        "bought": (3, 5),
    }


# --- training ------------------------------------------------------------------------------------


def test_gradients_are_those_of_each_table_by_itself(layer):
    def gradients(call):
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(rows**2) for rows in call(INPUTS).values())
        return tape.gradient(loss, layer.trainable_variables)

    layer.build()
    actual, expected = gradients(layer), gradients(lambda inputs: each(layer, inputs))
    assert len(actual) == 2
    for a, e in zip(actual, expected):
        assert isinstance(a, tf.IndexedSlices)
        np.testing.assert_allclose(tf.convert_to_tensor(a), tf.convert_to_tensor(e), rtol=1e-6)


def labelled(count):
    """Features, and how many of the user's ids are odd."""
    rng = np.random.default_rng(5)
    users = rng.integers(4, size=[count, 2])
    lengths = rng.integers(0, 4, [2, count])
    viewed, bought = (
        tf.RaggedTensor.from_row_lengths(rng.integers(7, size=each.sum()), each) for each in lengths
    )
    inputs = {"user": users, "viewed": viewed, "bought": tf.cast(bought, tf.int32).to_sparse()}
    return inputs, (users % 2).sum(1).astype(np.float32)


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, optimizers.Adam])
def test_a_functional_model_learns(optimizer):
    model = model_of(
        EmbeddingBags({"user": EmbeddingBag(4, 2), "item": EmbeddingBag(7, 5)}, FEATURES)
    )
    model.compile(optimizer(0.05), "mse")
    data = tf.data.Dataset.from_tensor_slices(labelled(512)).batch(32)
    losses = model.fit(data, epochs=6, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]


def test_regularizers_and_constraints_are_those_of_each_table():
    layer = EmbeddingBags(
        {
            "a": EmbeddingBag(4, 2, embeddings_regularizer="l2"),
            "b": EmbeddingBag(4, 3, embeddings_constraint="non_neg"),
        }
    )
    layer({"a": USERS, "b": USERS})
    (loss,) = layer.losses
    squares = np.sum(layer.tables["a"].embeddings.numpy().astype(np.float64) ** 2)
    np.testing.assert_allclose(loss, 0.01 * squares, rtol=1e-5)
    assert layer.tables["b"].embeddings.constraint is not None


def test_a_model_with_it_is_compiled_by_xla():
    if _library.XLA_PROBLEM is not None:
        pytest.skip(_library.XLA_PROBLEM)
    losses = []
    for jit_compile in (False, True):
        keras.utils.set_random_seed(3)
        layer = EmbeddingBags({"a": EmbeddingBag(4, 2), "b": EmbeddingBag(4, 3, combiner="max")})
        inputs = {name: keras.Input((2,), dtype="int32", name=name) for name in "ab"}
        pooled = layer(inputs)
        joined = keras.layers.Concatenate()(list(pooled.values()))
        model = keras.Model(inputs, keras.layers.Dense(1)(joined))
        model.compile("sgd", "mse", jit_compile=jit_compile)
        assert model.jit_compile is jit_compile
        given = {"a": USERS, "b": USERS}
        losses.append(model.fit(given, np.ones(3), epochs=3, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_a_distribution_strategy_trains_it():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = model_of(
            EmbeddingBags({"user": EmbeddingBag(4, 2), "item": EmbeddingBag(7, 5)}, FEATURES)
        )
        model.compile(keras.optimizers.SGD(0.5), "mse")
    data = tf.data.Dataset.from_tensor_slices(labelled(512)).batch(32)
    losses = model.fit(data, epochs=4, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


# --- saving --------------------------------------------------------------------------------------


def test_the_config_makes_an_equal_layer(layer):
    again = EmbeddingBags.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    serialized = keras.saving.serialize_keras_object(layer)
    again = keras.saving.deserialize_keras_object(serialized)
    assert again.get_config() == layer.get_config()


def test_a_saved_model_is_the_same_model(layer, tmp_path):
    model = model_of(layer)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(INPUTS), model(INPUTS))


def compiled(layer):
    model = model_of(layer)
    model.compile(optimizers.SGD(), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def test_a_checkpoint_holds_the_tables(tmp_path):
    model, again = (compiled(EmbeddingBags(tables(), FEATURES)) for _ in range(2))
    for variable in model.trainable_variables:
        variable.assign_add(tf.ones_like(variable))
    del model.optimizer, again.optimizer  # which has the variables too
    path = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
    tf.train.Checkpoint(model=again).restore(path).assert_consumed()
    np.testing.assert_array_equal(again(INPUTS), model(INPUTS))


def test_a_checkpoint_of_an_older_version_restores_the_tables_by_the_optimizer(tmp_path):
    model, again = (compiled(EmbeddingBags(tables(), FEATURES)) for _ in range(2))
    for variable in model.trainable_variables:
        variable.assign_add(tf.ones_like(variable))
    (layer,) = (each for each in model.layers if isinstance(each, EmbeddingBags))
    del layer._checkpointed
    path = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
    tf.train.Checkpoint(model=again).restore(path).assert_consumed()
    np.testing.assert_array_equal(again(INPUTS), model(INPUTS))


@pytest.mark.slow
def test_a_fresh_process_loads_the_model(layer, tmp_path, run_program):
    model = model_of(layer)
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "expected.npy", model(INPUTS))
    run_program(
        f"""
        import numpy as np, tensorflow as tf
        import tf_ti, keras

        model = keras.models.load_model("model.keras")
        inputs = {{
            "user": tf.constant({USERS.numpy().tolist()}),
            "viewed": tf.ragged.constant({VIEWED.to_list()}, tf.int64),
            "bought": tf.ragged.constant([[], [0, 6], [2]], tf.int32).to_sparse(),
        }}
        np.testing.assert_array_equal(model(inputs), np.load("expected.npy"))
        """,
        is_first=True,
    )


# --- wrong calls ---------------------------------------------------------------------------------

TABLE = EmbeddingBag(4, 2)


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        ({"tables": {}}, "tables={}"),
        ({"tables": [TABLE]}, r"tables=\["),
        ({"tables": {"a": 4}}, r"tables\['a'\]=4"),
        ({"tables": {"a": TABLE}, "features": ["a"]}, r"features=\['a'\]"),
        (
            {"tables": {"a": TABLE}, "features": {"a": "b"}},
            r"features={'a': 'b'} with tables \['a'\]",
        ),
        ({"tables": {"a": TABLE, "b": TABLE}, "features": {"a": "a"}}, r"with tables \['a', 'b'\]"),
        (
            {"tables": {"a": TABLE, "b": EmbeddingBag(4, 2, dtype="float64")}},
            "{'a': 'float32', 'b': 'float64'}",
        ),
        (
            {"tables": {"a": EmbeddingBag(4, 2, activity_regularizer="l2")}},
            r"tables\['a'\].activity_regularizer=",
        ),
    ],
)
def test_a_wrong_argument_is_named(arguments, received):
    with pytest.raises(ValueError, match=f"Received: .*{received}"):
        EmbeddingBags(**arguments)


@pytest.mark.parametrize(
    ("inputs", "mask", "received"),
    [
        (USERS, None, "inputs="),
        ({"user": USERS}, None, r"the keys \['user'\]"),
        ({**INPUTS, "other": USERS}, None, "'other'"),
        (INPUTS, {"other": USERS}, r"the keys \['other'\]"),
        ({**INPUTS, "user": tf.constant([["a"]])}, None, "ids of dtype string"),
        (INPUTS, {"bought": tf.constant(True)}, "mask="),
    ],
)
def test_a_wrong_input_is_named(layer, inputs, mask, received):
    with pytest.raises(ValueError, match=f"Received: .*{received}"):
        layer(inputs, mask=mask)


def test_what_is_wrong_with_a_feature_is_named_with_it(layer):
    with pytest.raises(ValueError, match=r"inputs\['viewed'\]: .*weights"):
        layer({**INPUTS, "viewed": (VIEWED, tf.ones([3, 3]))})


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_an_id_outside_the_vocabulary_is_named_with_its_feature(layer, mode):
    call = tf.function(layer) if mode == "function" else layer
    wrong = {**INPUTS, "bought": tf.ragged.constant([[], [0, 7], [2]], tf.int32).to_sparse()}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"emb_tables\[2\]: .* is 7"):
        call(wrong)
