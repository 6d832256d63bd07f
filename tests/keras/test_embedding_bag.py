"""tf_ti.keras.EmbeddingBag, beside keras.layers.Embedding and a pooling in NumPy."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_ti import _library
from tf_ti.keras import EmbeddingBag

COMBINERS = ["sum", "mean", "sqrtn", "max"]
KINDS = ["dense", "ragged", "sparse"]
ROWS, WIDTH = 11, 3
# Bags of one size, for dense ids; and of any sizes, none of them last.
EQUAL = [[3, 10, 3, 0], [1, 1, 1, 1], [7, 2, 9, 4]]
RAGGED = [[3, 10, 3, 0, 5], [1], [], [7, 2], []]


def bags_of(kind):
    return EQUAL if kind == "dense" else RAGGED


def as_kind(kind, bags, dtype):
    """A list of lists as a tensor of this kind."""
    if kind == "dense":
        return tf.constant(bags, dtype)
    ragged = tf.ragged.constant(bags, dtype, ragged_rank=1)
    if kind == "ragged":
        return ragged
    # to_sparse keeps zeros, and the empty rows at the end.
    return ragged.to_sparse()


def weights_of(bags, seed=0):
    rng = np.random.default_rng(seed)
    return [[float(w) for w in rng.uniform(0.5, 2, len(bag)).astype(np.float32)] for bag in bags]


def as_numpy(x):
    return x.numpy() if hasattr(x, "numpy") else np.asarray(x)


def pooled(table, bags, combiner, weights=None, empty=None):
    """By definition, in float64; `empty` is what a bag without ids gives."""
    table = as_numpy(table).astype(np.float64)
    results = []
    for k, bag in enumerate(bags):
        if not bag:
            results.append(np.zeros(table.shape[1]) if empty is None else empty)
            continue
        w = np.ones(len(bag)) if weights is None else np.array(weights[k], np.float64)
        rows = table[np.array(bag)] * w[:, np.newaxis]
        results.append(
            {
                "sum": rows.sum(axis=0),
                "mean": rows.sum(axis=0) / w.sum(),
                "sqrtn": rows.sum(axis=0) / np.sqrt((w**2).sum()),
                "max": rows.max(axis=0),
            }[combiner]
        )
    return np.array(results)


@pytest.fixture
def layer():
    """Makes a layer of normally distributed embeddings."""

    def make(**arguments):
        initializer = keras.initializers.RandomNormal(seed=3)
        return EmbeddingBag(ROWS, WIDTH, **{"embeddings_initializer": initializer, **arguments})

    return make


def input_of(kind, shape=(None,), **arguments):
    if kind == "dense":
        return keras.Input(shape, **arguments)
    try:
        return keras.Input(shape, **{kind: True}, **arguments)
    except (TypeError, ValueError):
        pytest.skip(f"Keras {keras.__version__} has no {kind} inputs")


def assert_close(actual, expected, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(as_numpy(actual), expected, rtol, atol)


# --- what it computes ----------------------------------------------------------------------------


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("kind", KINDS)
def test_pools_the_embeddings_of_a_bag(layer, kind, combiner):
    bags = layer(combiner=combiner)
    result = bags(as_kind(kind, bags_of(kind), "int32"))
    assert_close(result, pooled(bags.embeddings, bags_of(kind), combiner))


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("kind", KINDS)
def test_weighs_the_embeddings_of_a_bag(layer, kind, combiner):
    bags, ids = layer(combiner=combiner), bags_of(kind)
    weights = weights_of(ids)
    result = bags((as_kind(kind, ids, "int64"), as_kind(kind, weights, "float32")))
    assert_close(result, pooled(bags.embeddings, ids, combiner, weights))


@pytest.mark.parametrize("kind", KINDS)
def test_takes_ids_and_weights_by_name(layer, kind):
    bags, ids = layer(combiner="mean"), bags_of(kind)
    weights = weights_of(ids)
    named = {"weights": as_kind(kind, weights, "float32"), "ids": as_kind(kind, ids, "int64")}
    assert_close(bags(named), pooled(bags.embeddings, ids, "mean", weights))
    assert_close(bags({"ids": named["ids"]}), pooled(bags.embeddings, ids, "mean"))


def test_the_output_shape_is_known_of_inputs_by_name(layer):
    shapes = {"ids": (2, None, 5), "weights": (2, None, 5)}
    assert layer().compute_output_shape(shapes) == (2, None, WIDTH)


def test_is_keras_embedding_and_a_pooling(layer):
    bags = layer(combiner="mean")
    ids = tf.constant(EQUAL)
    result = bags(ids)
    embedding = keras.layers.Embedding(ROWS, WIDTH)
    embedding.build()
    embedding.embeddings.assign(bags.embeddings)
    assert_close(result, keras.layers.GlobalAveragePooling1D()(embedding(ids)))


INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@pytest.mark.parametrize("dtype", [*INTEGERS, "float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_takes_ids_of_this_dtype(layer, dtype, kind):
    bags, ids = layer(), bags_of(kind)
    assert_close(bags(as_kind(kind, ids, dtype)), pooled(bags.embeddings, ids, "sum"))


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize("value", [2**63, 2**64 - 1])
def test_an_id_beyond_int64_is_no_other(layer, value):
    ids = np.array([[1, value]], np.uint64)
    for mask in (None, tf.constant([[True, True]])):
        with pytest.raises(tf.errors.InvalidArgumentError, match=str(2**63 - 1)):
            layer()(ids, mask=mask)


def test_takes_numpy_ids_and_counts_as_weights(layer):
    bags = layer()
    counts = np.array([[1, 2, 3, 0], [1, 1, 1, 1], [2, 0, 0, 5]])
    result = bags((np.array(EQUAL), counts))
    assert_close(result, pooled(bags.embeddings, EQUAL, "sum", counts))


def test_pools_the_last_of_many_axes(layer):
    bags = layer()
    ids = np.random.default_rng(0).integers(ROWS, size=(2, 3, 5))
    result = bags(ids)
    expected = [pooled(bags.embeddings, block.tolist(), "sum") for block in ids]
    assert_close(result, np.array(expected))
    assert bags.compute_output_shape(ids.shape) == result.shape == (2, 3, WIDTH)


def test_pools_the_innermost_of_two_ragged_dimensions(layer):
    bags = layer(combiner="mean")
    result = bags(tf.ragged.constant([[[1, 2], []], [], [[3]]], "int32"))
    assert result.row_lengths().numpy().tolist() == [2, 0, 1]
    assert_close(result.flat_values, pooled(bags.embeddings, [[1, 2], [], [3]], "mean"))


def test_pools_the_innermost_of_two_ragged_dimensions_of_a_model(layer):
    bags = layer(combiner="mean")
    inputs = input_of("ragged", (None, None), dtype="int32")
    outputs = bags(inputs)
    assert outputs.ragged
    assert outputs.shape == (None, None, WIDTH)
    ids = tf.ragged.constant([[[1, 2], []], [], [[3]]], "int32")
    assert_close(keras.Model(inputs, outputs)(ids).flat_values, bags(ids).flat_values.numpy())


SESSIONS = tf.RaggedTensor.from_row_lengths([[1, 2], [3, 0], [9, 9]], [2, 0, 1])


@pytest.mark.parametrize("combiner", COMBINERS)
def test_pools_a_fixed_number_of_ids_inside_of_a_ragged_dimension(layer, combiner):
    bags = layer(combiner=combiner, mask_zero=True)
    kept = SESSIONS.with_values(tf.constant([[True, False], [True, True], [False, True]]))
    left = [[1], [3], [9]]
    given = [(SESSIONS, kept, left, None), (SESSIONS, None, [[1, 2], [3], [9, 9]], None)]
    if combiner != "max":
        weights = SESSIONS.with_values(tf.constant([[0.5, 2.0], [3.0, 7.0], [1.5, 0.5]]))
        given.append(((SESSIONS, weights), kept, left, [[0.5], [3.0], [0.5]]))
    for inputs, mask, left, weights in given:
        result = bags(inputs, mask=mask)
        assert result.shape == (3, None, WIDTH)
        assert result.row_lengths().numpy().tolist() == [2, 0, 1]
        assert_close(result.flat_values, pooled(bags.embeddings, left, combiner, weights))


def test_a_mask_that_is_ragged_otherwise_than_ids_is_refused(layer):
    other = tf.RaggedTensor.from_row_lengths(tf.ones([3, 2], tf.bool), [1, 0, 2])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="mask must have the row splits of ids"
    ):
        layer()(SESSIONS, mask=other)
    deeper = tf.ragged.constant([[[True, True]] * 2, [], [[True, True]]])
    with pytest.raises(ValueError, match="mask must be ragged like ids, of rank 1. Received: 2"):
        layer()(SESSIONS, mask=deeper)


def test_a_fixed_number_of_ids_inside_of_a_ragged_dimension_of_a_model(layer):
    bags = layer(combiner="mean")
    inputs = input_of("ragged", (None, 2), dtype="int32")
    outputs = bags(inputs)
    assert outputs.ragged
    assert outputs.shape == (None, None, WIDTH)
    model = keras.Model(inputs, outputs)
    data = tf.data.Dataset.range(1, 4).map(
        lambda n: tf.ones([n, 2], tf.int32) * tf.cast(n, "int32")
    )
    (ids,) = data.ragged_batch(3)
    assert ids.shape == (3, None, 2)
    expected = pooled(bags.embeddings, [[n, n] for n in (1, 2, 2, 3, 3, 3)], "mean")
    assert_close(model(ids).flat_values, expected)
    assert_close(tf.function(model)(ids).flat_values, expected)


def test_fills_an_empty_bag_with_the_default_row(layer):
    bags = layer(combiner="mean", default_index=4)
    result = bags(as_kind("ragged", RAGGED, "int32"))
    empty = bags.embeddings.numpy()[4]
    assert_close(result, pooled(bags.embeddings, RAGGED, "mean", empty=empty))


@pytest.mark.parametrize("norm_type", [1, 2, 2.5, np.inf])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_scales_embeddings_to_a_norm(layer, combiner, norm_type):
    bags = layer(combiner=combiner, max_norm=0.05, norm_type=norm_type)
    result = bags(tf.constant(EQUAL))
    table = bags.embeddings.numpy()
    norms = np.linalg.norm(table, norm_type, axis=1, keepdims=True)
    assert np.any(norms > 0.05)
    assert np.any(norms < 0.05) or norm_type == 1
    scaled = table * np.minimum(1, 0.05 / norms)
    assert_close(result, pooled(scaled, EQUAL, combiner))
    np.testing.assert_array_equal(bags.embeddings, table)


# --- masks ---------------------------------------------------------------------------------------


def without(bags, padding):
    return [[i for i in bag if i != padding] for bag in bags]


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("kind", KINDS)
def test_mask_zero_leaves_id_0_out(layer, kind, combiner):
    bags, ids = layer(combiner=combiner, mask_zero=True), [*bags_of(kind)[:-1], [0, 0, 0, 0]]
    result = bags(as_kind(kind, ids, "int32"))
    assert_close(result, pooled(bags.embeddings, without(ids, 0), combiner))


def test_mask_zero_leaves_the_weights_of_id_0_out(layer):
    bags, ids = layer(combiner="mean", mask_zero=True), [[3, 0, 5]]
    result = bags((tf.constant(ids), tf.constant([[1.0, 100.0, 2.0]])))
    assert_close(result, pooled(bags.embeddings, [[3, 5]], "mean", [[1.0, 2.0]]))


@pytest.mark.parametrize("mask_zero", [False, True])
@pytest.mark.parametrize("kind", ["dense", "ragged"])
def test_a_mask_leaves_ids_out(layer, kind, mask_zero):
    bags, ids = layer(combiner="mean", mask_zero=mask_zero), bags_of(kind)
    kept = [[i % 2 == 1 or i == 0 for i in bag] for bag in ids]
    result = bags(as_kind(kind, ids, "int64"), mask=as_kind(kind, kept, "bool"))
    left = [[i for i, k in zip(bag, keep) if k] for bag, keep in zip(ids, kept)]
    left = without(left, 0) if mask_zero else left
    assert_close(result, pooled(bags.embeddings, left, "mean"))


class Masked(keras.layers.Layer):
    """Hands its input on with a mask: what is below a number is masked."""

    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def call(self, x):
        return keras.ops.convert_to_tensor(x)

    def compute_mask(self, x, previous_mask=None):
        return keras.ops.greater_equal(x, self.limit)


def test_a_mask_comes_with_the_input(layer):
    bags = layer(combiner="mean")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = bags(Masked(3)(tf.constant(EQUAL)))
    left = [[i for i in bag if i >= 3] for bag in EQUAL]
    assert_close(result, pooled(bags.embeddings, left, "mean"))
    assert getattr(result, "_keras_mask", None) is None


def test_masks_come_with_ids_and_weights(layer):
    bags, weights = layer(combiner="mean"), weights_of(EQUAL)
    result = bags([Masked(2)(tf.constant(EQUAL)), Masked(1.0)(tf.constant(weights))])
    left = [
        [(i, w) for i, w in zip(bag, row) if i >= 2 and w >= 1] for bag, row in zip(EQUAL, weights)
    ]
    expected = pooled(
        bags.embeddings,
        [[i for i, _ in bag] for bag in left],
        "mean",
        [[w for _, w in bag] for bag in left],
    )
    assert_close(result, expected)


def test_masks_come_with_ids_and_weights_by_name(layer):
    bags, weights = layer(combiner="mean"), weights_of(EQUAL)
    pair = [Masked(2)(tf.constant(EQUAL)), Masked(1.0)(tf.constant(weights))]
    result = bags({"ids": pair[0], "weights": pair[1]})
    assert_close(result, bags(pair).numpy())
    assert not np.allclose(result, bags([tf.constant(EQUAL), tf.constant(weights)]))


def test_a_mask_reaches_it_in_a_functional_model(layer):
    inputs = keras.Input((None,), dtype="int32")
    bags = layer(combiner="mean")
    model = keras.Model(inputs, bags(Masked(3)(inputs)))
    left = [[i for i in bag if i >= 3] for bag in EQUAL]
    assert_close(model(np.array(EQUAL)), pooled(bags.embeddings, left, "mean"))


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_mask_hides_no_wrong_id(layer, dtype):
    ids = tf.constant([[1, -1]], dtype)
    with pytest.raises(tf.errors.InvalidArgumentError, match="-1"):
        layer()(ids, mask=tf.constant([[True, True]]))


def test_a_masked_id_may_be_any_number(layer):
    bags = layer()
    result = bags(tf.constant([[1, -1, 1000]]), mask=tf.constant([[True, False, False]]))
    assert_close(result, pooled(bags.embeddings, [[1]], "sum"))


# --- gradients and training ----------------------------------------------------------------------


def test_the_gradient_is_of_the_rows_that_were_read(layer):
    bags, ids = layer(), as_kind("ragged", RAGGED, "int32")
    bags.build()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(bags(ids))
    (gradient,) = tape.gradient(loss, bags.trainable_weights)
    assert isinstance(gradient, tf.IndexedSlices)
    numbers, counts = np.unique(np.concatenate([b for b in RAGGED if b]), return_counts=True)
    np.testing.assert_array_equal(gradient.indices, numbers)
    np.testing.assert_array_equal(gradient.values, np.tile(counts[:, np.newaxis], WIDTH))


def test_weights_get_a_gradient_as_they_come(layer):
    bags = layer()
    bags.build()
    weights = tf.Variable(weights_of(EQUAL))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(bags((tf.constant(EQUAL), weights)))
    expected = bags.embeddings.numpy()[np.array(EQUAL)].sum(axis=-1)
    assert_close(tape.gradient(loss, weights), expected)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam", "rmsprop"])
def test_an_optimizer_takes_the_same_step_as_with_a_dense_gradient(layer, optimizer):
    bags, embedding = layer(), keras.layers.Embedding(ROWS, WIDTH)
    bags.build()
    embedding.build()
    embedding.embeddings.assign(bags.embeddings)
    ids = tf.constant(EQUAL)
    for variables, loss_of in (
        (bags.trainable_weights, lambda: tf.reduce_sum(bags(ids) ** 2)),
        (
            embedding.trainable_weights,
            lambda: tf.reduce_sum(tf.reduce_sum(embedding(ids), axis=1) ** 2),
        ),
    ):
        with tf.GradientTape() as tape:
            loss = loss_of()
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]
        keras.optimizers.get(optimizer).apply(gradients, variables)
    assert_close(bags.embeddings, embedding.embeddings.numpy(), rtol=1e-4)


def labelled(count, kind):
    """Bags, and whether more of their ids are odd than even."""
    rng = np.random.default_rng(5)
    sizes = np.full(count, 7) if kind == "dense" else rng.integers(1, 8, count)
    bags = [rng.integers(ROWS, size=size).tolist() for size in sizes]
    labels = [sum(i % 2 for i in bag) * 2 > len(bag) for bag in bags]
    return as_kind(kind, bags, "int32"), np.array(labels, np.float32)


class Subclassed(keras.Model):
    def __init__(self, bags):
        super().__init__()
        self.bags = bags
        self.dense = dense()

    def call(self, inputs):
        return self.dense(self.bags(inputs))


def dense(**arguments):
    return keras.layers.Dense(1, **arguments, kernel_initializer=keras.initializers.Ones())


def sequential(bags, kind):
    return keras.Sequential([input_of(kind, dtype="int32"), bags, dense()])


def functional(bags, kind):
    inputs = input_of(kind, dtype="int32")
    return keras.Model(inputs, dense()(bags(inputs)))


MODELS = {
    "sequential": sequential,
    "functional": functional,
    "subclassed": lambda bags, kind: Subclassed(bags),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_learns(layer, model, kind):
    model = MODELS[model](layer(combiner="mean"), kind)
    model.compile(
        keras.optimizers.Adam(0.05), keras.losses.BinaryCrossentropy(True), metrics=["accuracy"]
    )
    data = tf.data.Dataset.from_tensor_slices(labelled(512, kind)).batch(32)
    model.fit(data, epochs=12, shuffle=False, verbose=0)
    _, accuracy = model.evaluate(data, verbose=0)
    assert accuracy > 0.95


@pytest.mark.parametrize("kind", ["dense", "ragged"])
def test_fit_takes_ids_and_weights(layer, kind):
    inputs = [input_of(kind, dtype="int32"), input_of(kind)]
    model = keras.Model(inputs, dense()(layer()(inputs)))
    model.compile(
        keras.optimizers.Adam(0.05), keras.losses.BinaryCrossentropy(True), metrics=["accuracy"]
    )
    ids, _ = labelled(512, kind)
    weights = tf.cast(ids % 2 == 0, tf.float32)
    labels = tf.reduce_sum(weights, axis=1) > 2
    data = tf.data.Dataset.from_tensor_slices(((ids, weights), labels)).batch(32)
    bags = model.layers[2]
    before = bags.embeddings.numpy()
    model.fit(data, epochs=12, shuffle=False, verbose=0)
    _, accuracy = model.evaluate(data, verbose=0)
    assert accuracy > 0.95
    # Those of odd ids have a weight of 0.
    np.testing.assert_array_equal(bags.embeddings.numpy()[1::2], before[1::2])


@pytest.mark.parametrize("kind", ["dense", "ragged"])
def test_a_model_takes_ids_and_weights_by_name_before_and_after_it_was_saved(layer, kind, tmp_path):
    inputs = {
        "ids": input_of(kind, dtype="int32", name="ids"),
        "weights": input_of(kind, name="weights"),
    }
    model = keras.Model(inputs, dense()(layer(combiner="mean")(inputs)))
    ids = labelled(64, kind)[0]
    weights = tf.cast(ids % 3 + 1, tf.float32)
    data = tf.data.Dataset.from_tensor_slices(({"ids": ids, "weights": weights}, tf.ones([64])))
    model.compile("sgd", "mse")
    model.fit(data.batch(16), verbose=0)

    bags = model.layers[-2]
    rows = [ids[k].numpy().tolist() for k in range(64)]
    by_weights = [weights[k].numpy() for k in range(64)]
    kernel, bias = (as_numpy(w) for w in model.layers[-1].weights)
    expected = pooled(bags.embeddings, rows, "mean", by_weights) @ kernel + bias
    assert_close(model.predict(data.batch(16), verbose=0), expected, 1e-4, 1e-5)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_close(again({"ids": ids, "weights": weights}), expected, 1e-4, 1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_training_leaves_rows_alone_that_no_id_names(layer, optimizer):
    model = sequential(layer(), "dense")
    before = model.layers[0].embeddings.numpy()
    model.compile(keras.optimizers.get(optimizer), "mse")
    model.fit(np.array(EQUAL), np.ones(3), epochs=2, verbose=0)
    unused = sorted(set(range(ROWS)) - set(np.ravel(EQUAL)))
    after = model.layers[0].embeddings.numpy()
    np.testing.assert_array_equal(after[unused], before[unused])
    assert np.all(after[np.ravel(EQUAL)] != before[np.ravel(EQUAL)])


def test_regularizer_and_constraint_act_on_the_embeddings(layer):
    bags = layer(embeddings_regularizer="l2", embeddings_constraint="non_neg")
    model = sequential(bags, "dense")
    (loss,) = model.losses
    assert_close(loss, 0.01 * np.sum(bags.embeddings.numpy().astype(np.float64) ** 2))
    model.compile("sgd", "mse")
    model.fit(np.array(EQUAL), np.ones(3), verbose=0)
    assert np.all(bags.embeddings.numpy() >= 0)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_a_model_with_it_is_compiled_by_xla(layer, optimizer):
    if _library.XLA_PROBLEM is not None:
        pytest.skip(_library.XLA_PROBLEM)
    losses = []
    for jit_compile in (False, True):
        keras.utils.set_random_seed(3)
        model = sequential(layer(combiner="mean"), "dense")
        model.compile(optimizer, "mse", jit_compile=jit_compile)
        assert model.jit_compile is jit_compile
        losses.append(model.fit(np.array(EQUAL), np.ones(3), epochs=3, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_a_distribution_strategy_trains_it(layer):
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = sequential(layer(combiner="mean"), "dense")
        model.compile(
            keras.optimizers.SGD(1.0), keras.losses.BinaryCrossentropy(True), metrics=["accuracy"]
        )
    data = tf.data.Dataset.from_tensor_slices(labelled(512, "dense")).batch(32)
    losses = model.fit(data, epochs=8, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]


# --- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_pools_in_float32_and_casts_the_result(layer, policy):
    bags = layer(dtype=policy, combiner="mean")
    result = bags((tf.constant(EQUAL), tf.constant(weights_of(EQUAL), bags.compute_dtype)))
    assert bags.embeddings.dtype == "float32"
    assert result.dtype == bags.compute_dtype
    # The weights are rounded before, the result is afterwards.
    weights = tf.cast(tf.constant(weights_of(EQUAL), bags.compute_dtype), tf.float64).numpy()
    expected = pooled(bags.embeddings, EQUAL, "mean", weights)
    assert_close(result, tf.cast(expected, result.dtype).numpy().astype(np.float64), 1e-2, 1e-3)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_never_casts_the_table(layer, policy):
    bags = layer(dtype=policy)
    bags.build()
    function = tf.function(bags).get_concrete_function(tf.TensorSpec([None, 4], tf.int32))
    casts = [op.inputs[0] for op in function.graph.get_operations() if op.type == "Cast"]
    assert [None, WIDTH] in [x.shape.as_list() for x in casts]
    assert [ROWS, WIDTH] not in [x.shape.as_list() for x in casts]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_does_not_round_ids(policy):
    bags = EmbeddingBag(5000, 1, dtype=policy)
    result = bags(tf.constant([[4097.0]]))
    expected = tf.cast(bags.embeddings.numpy()[4097], policy.removeprefix("mixed_"))
    np.testing.assert_array_equal(result[0], expected)


def test_weights_of_half_precision_embeddings_are_not_rounded():
    bags = EmbeddingBag(1, 1, embeddings_initializer="ones", dtype="bfloat16")
    weights = tf.fill([1, 100], 1.0035)  # whose nearest bfloat16 is 1
    result = bags((tf.zeros([1, 100], tf.int32), weights))
    assert float(result[0, 0]) == 100.5


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_a_model_of_mixed_precision_learns(layer, policy):
    bags = layer(dtype=policy, combiner="mean")
    model = keras.Sequential([bags, dense(dtype=policy)])
    optimizer = keras.optimizers.SGD(2.0)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer, keras.losses.BinaryCrossentropy(True))
    losses = model.fit(*labelled(512, "dense"), epochs=8, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_pools_embeddings_of_this_dtype(layer, dtype):
    bags = layer(dtype=dtype, combiner="mean")
    result = bags((tf.constant(EQUAL), tf.constant(weights_of(EQUAL))))
    assert result.dtype == bags.embeddings.dtype == dtype
    table = tf.cast(bags.embeddings, tf.float64).numpy()
    expected = pooled(table, EQUAL, "mean", weights_of(EQUAL))
    tolerance = {"float16": 1e-3, "bfloat16": 1e-2, "float64": 1e-6}[dtype]
    assert_close(tf.cast(result, tf.float64), expected, tolerance, tolerance / 10)


# --- saving --------------------------------------------------------------------------------------


def test_the_config_makes_an_equal_layer(layer):
    bags = layer(
        embeddings_regularizer="l2",
        embeddings_constraint="max_norm",
        activity_regularizer="l1",
        mask_zero=True,
        combiner="sqrtn",
        default_index=7,
        max_norm=2,
        norm_type=np.inf,
        dtype="mixed_bfloat16",
        name="bags",
        trainable=False,
    )
    again = EmbeddingBag.from_config(bags.get_config())
    assert again.get_config() == bags.get_config()
    serialized = keras.saving.serialize_keras_object(bags)
    again = keras.saving.deserialize_keras_object(serialized)
    assert again.get_config() == bags.get_config()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, imports",
    [
        ("dense", "import tf_ti, keras"),
        ("ragged", "import keras, tf_ti"),
        ("sparse", "import tf_ti; keras = tf.keras"),
    ],
)
def test_a_fresh_process_loads_the_model(layer, kind, imports, run_program, tmp_path):
    model = functional(layer(combiner="mean", default_index=2), kind)
    ids = as_kind(kind, bags_of(kind), "int32")
    expected = model(ids).numpy()
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "expected.npy", expected)
    run_program(
        f"""
        import numpy as np, tensorflow as tf
        {imports}
        model = keras.models.load_model("model.keras")
        if {kind == "dense"}:
            ids = tf.constant({bags_of(kind)})
        else:
            ids = tf.ragged.constant({bags_of(kind)}, "int32")
        if {kind == "sparse"}:
            ids = ids.to_sparse()
        np.testing.assert_array_equal(model(ids), np.load("expected.npy"))
        assert isinstance(model.layers[1], tf_ti.keras.EmbeddingBag)
    """,
        is_first=True,
    )


def test_a_model_goes_on_training_after_it_was_loaded(layer, tmp_path):
    model = functional(layer(combiner="mean"), "dense")
    model.compile(keras.optimizers.Adagrad(0.5), keras.losses.BinaryCrossentropy(True))
    data = labelled(512, "dense")
    model.fit(*data, epochs=2, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    histories = [m.fit(*data, shuffle=False, verbose=0).history["loss"] for m in (model, again)]
    assert histories[0] == pytest.approx(histories[1], rel=1e-5)


def test_weights_are_saved_and_loaded_alone(layer, tmp_path):
    model, other = (functional(layer(), "dense") for _ in range(2))
    other.layers[1].embeddings.assign(np.ones([ROWS, WIDTH]))
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    assert_close(other(np.array(EQUAL)), model(np.array(EQUAL)).numpy())


@pytest.mark.slow
def test_a_fresh_process_serves_the_exported_model_without_keras(layer, run_program, tmp_path):
    model = functional(layer(mask_zero=True, combiner="mean"), "dense")
    np.save(tmp_path / "expected.npy", model(np.array(EQUAL)).numpy())
    model.export(tmp_path / "served")
    run_program(
        f"""
        import sys
        sys.modules["keras"] = None  # as if it were not installed
        import numpy as np, tensorflow as tf
        import tf_ti
        served = tf.saved_model.load("served")
        result = served.serve(tf.constant({EQUAL}))
        np.testing.assert_allclose(result, np.load("expected.npy"), rtol=1e-6)
    """,
        is_first=True,
    )


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_a_saved_model_takes_inputs_of_this_kind(layer, kind, tmp_path):
    model = sequential(layer(combiner="mean"), kind)
    ids = as_kind(kind, RAGGED, "int32")
    expected = model(ids).numpy()
    spec = tf.RaggedTensorSpec([None, None], tf.int32)
    if kind == "sparse":
        spec = tf.SparseTensorSpec([None, None], tf.int32)
    serve = tf.function(model.call, input_signature=[spec])
    module = tf.Module()
    module.model, module.serve = model, serve
    tf.saved_model.save(module, str(tmp_path / "served"))
    served = tf.saved_model.load(str(tmp_path / "served"))
    assert_close(served.serve(ids), expected)


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, received",
    [
        ({"input_dim": 0}, "input_dim=0 "),
        ({"input_dim": 2.0}, "input_dim=2.0 .of type float"),
        ({"input_dim": True}, "input_dim=True"),
        ({"output_dim": -1}, "output_dim=-1"),
        ({"output_dim": "3"}, "output_dim='3'"),
        ({"mask_zero": 1}, "mask_zero=1"),
        ({"combiner": "average"}, "combiner='average'"),
        ({"combiner": ["sum"]}, r"combiner=\['sum'\]"),
        ({"default_index": 5}, "default_index=5 with input_dim=5"),
        ({"default_index": -2}, "default_index=-2"),
        ({"default_index": 1.0}, "default_index=1.0"),
        ({"max_norm": 0}, "max_norm=0"),
        ({"max_norm": "1"}, "max_norm='1'"),
        ({"max_norm": float("nan")}, "max_norm=nan"),
        ({"norm_type": -2.0}, "norm_type=-2.0"),
        ({"norm_type": None}, "norm_type=None"),
        ({"norm_type": True}, "norm_type=True"),
    ],
)
def test_a_wrong_argument_is_named(arguments, received):
    with pytest.raises(ValueError, match=f"Received: .*{received}"):
        EmbeddingBag(**{"input_dim": 5, "output_dim": 2, **arguments})


IDS = tf.constant(EQUAL)


@pytest.mark.parametrize(
    "inputs, mask, received",
    [
        ([IDS, IDS, IDS], None, "3 tensors"),
        ([IDS], None, "1 tensors"),
        ({"ids": IDS, "weight": IDS}, None, r"\['ids', 'weight'\]"),
        ({"weights": IDS}, None, r"\['weights'\]"),
        (tf.constant(1), None, r"ids of shape \(\)"),
        (tf.sparse.from_dense([1, 2]), None, r"ids of shape \(2,\)"),
        (tf.constant([["a"]]), None, "ids of dtype string"),
        (tf.constant([[True]]), None, "ids of dtype bool"),
        ((IDS, tf.constant([["a"] * 4] * 3)), None, "weights of dtype string"),
        ((IDS, tf.ones([3, 5])), None, r"dense weights of shape \(3, 5\), dense ids"),
        ((IDS, tf.ragged.constant([[1.0], [], []])), None, "ragged weights of .*, dense ids"),
        (IDS, tf.constant([True, False, True]), r"dense mask of shape \(3,\), dense ids"),
        (tf.ragged.constant(RAGGED), tf.ones([5, 5], tf.bool), "dense mask of .*, ragged ids"),
        (tf.sparse.from_dense(EQUAL), tf.ones([3, 4], tf.bool), "mask="),
    ],
)
def test_a_wrong_input_is_named(layer, inputs, mask, received):
    with pytest.raises(ValueError, match=f"Received: .*{received}"):
        layer()(inputs, mask=mask)


def test_a_wrong_symbolic_input_is_named(layer):
    inputs = [keras.Input((4,), dtype="int32"), keras.Input((5,))]
    with pytest.raises(ValueError, match="Received: .*weights of shape .None, 5"):
        layer()(inputs)


def test_weights_are_refused_by_max(layer):
    with pytest.raises(ValueError, match="combiner 'max'.*\n?.*Received: weights"):
        layer(combiner="max")((IDS, tf.ones([3, 4])))


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize("wrong", [-1, ROWS])
@pytest.mark.parametrize("mask_zero", [False, True])
def test_an_id_outside_the_vocabulary_is_named(layer, wrong, mask_zero):
    with pytest.raises(tf.errors.InvalidArgumentError, match=str(wrong)):
        layer(mask_zero=mask_zero)(tf.constant([[1, wrong]]))


# --- the package ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_tf_ti_leaves_it_to_others_to_import_keras_and_its_layers_follow(run_program):
    run_program(
        """
        import os, sys
        os.environ["TF_USE_LEGACY_KERAS"] = "1"  # else TensorFlow imports Keras
        import tf_ti
        assert not {"keras", "tf_ti.keras"} & set(sys.modules)
        import keras
        assert keras.saving.get_registered_object("tf_ti>EmbeddingBag") is tf_ti.keras.EmbeddingBag
    """,
        is_first=True,
    )


@pytest.mark.slow
def test_another_backend_of_keras_is_refused_by_name(run_program):
    # A stand-in for keras: those of its backends that are no TensorFlow need not be installed.
    output = run_program(
        """
        import sys, types
        backend = types.SimpleNamespace(backend=lambda: "jax")
        sys.modules["keras"] = types.SimpleNamespace(__version__="3.15.1", backend=backend)
        import tf_ti
        try:
            tf_ti.keras
        except RuntimeError as error:
            print(error)
    """,
        is_first=True,
    ).stdout
    assert "KERAS_BACKEND=tensorflow" in output
    assert "Received: keras.backend.backend()='jax'" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    "keras, said",
    [("None", "pip install keras"), ("types.SimpleNamespace(__version__='2.15.0')", "keras 2.15")],
)
def test_a_keras_that_is_missing_or_too_old_is_answered_with_what_is_needed(
    run_program, keras, said
):
    output = run_program(
        f"""
        import sys, types
        sys.modules["keras"] = {keras}
        import tf_ti
        try:
            tf_ti.keras
        except ImportError as error:
            print(error)
    """,
        is_first=True,
    ).stdout
    assert "needs Keras 3" in output
    assert said in output
