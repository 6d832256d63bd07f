"""tf_ti.keras.optimizers: Keras's own where rows are dense, NumPy where only some are touched."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import _library
from tf_ti.keras import EmbeddingBag, optimizers

OPTIMIZERS = {
    "SGD": lambda **kw: optimizers.SGD(0.1, **kw),
    "Adagrad": lambda **kw: optimizers.Adagrad(0.1, **kw),
    "RowwiseAdagrad": lambda **kw: optimizers.RowwiseAdagrad(0.1, **kw),
    "Adam": lambda **kw: optimizers.Adam(0.1, **kw),
    "AdamW": lambda **kw: optimizers.AdamW(0.1, **kw),
}
# Those that Keras has.
THEIRS = {
    "SGD": lambda **kw: keras.optimizers.SGD(0.1, **kw),
    "Adagrad": lambda **kw: keras.optimizers.Adagrad(0.1, **kw),
    "Adam": lambda **kw: keras.optimizers.Adam(0.1, **kw),
    "AdamW": lambda **kw: keras.optimizers.AdamW(0.1, **kw),
}
each_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
each_of_kerass = pytest.mark.parametrize("name", THEIRS)

ROWS, WIDTH = 12, 5
JIT = [
    False,
    pytest.param(
        True,
        marks=pytest.mark.skipif(
            _library.XLA_PROBLEM is not None, reason=f"no XLA kernels: {_library.XLA_PROBLEM}"
        ),
    ),
]


def bag_model(seed=0):
    bags = EmbeddingBag(ROWS, WIDTH, combiner="sum", name="bags")
    layers = [keras.Input([3], dtype="int64"), bags, keras.layers.Dense(2, name="dense")]
    return with_weights(keras.Sequential(layers, name="model"), seed)


def embedding_model(seed=0):
    layers = [keras.layers.Embedding(ROWS, WIDTH), keras.layers.Flatten(), keras.layers.Dense(2)]
    return with_weights(keras.Sequential([keras.Input([3], dtype="int64"), *layers]), seed)


def with_weights(model, seed):
    rng = np.random.default_rng(seed)
    model.set_weights([rng.normal(size=w.shape).astype("f") for w in model.weights])
    return model


MODELS = {"bags": bag_model, "Embedding": embedding_model}
each_model = pytest.mark.parametrize("kind", MODELS)


def batches(count, seed=1, most=ROWS):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield rng.integers(0, most, [6, 3]), rng.normal(size=[6, 2]).astype("f")


def every_row(count, seed=1):
    """Batches that name every row, some of them twice."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        ids = np.concatenate([rng.permutation(ROWS), rng.integers(0, ROWS, 6)])
        yield ids.reshape(6, 3), rng.normal(size=[6, 2]).astype("f")


def train(model, optimizer, data, jit_compile=False):
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    for ids, y in data:
        model.train_on_batch(ids, y)
    return model


def close(actual, expected, tolerance=2e-5):
    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=0, atol=tolerance)


class DenseGradients:
    """Keras's optimizer on gradients that are made dense: repeated rows are added up by that."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def train(self, model, data):
        self.optimizer.build(model.trainable_variables)
        for ids, y in data:
            with tf.GradientTape() as tape:
                error = model(ids) - y
                loss = tf.reduce_mean(error**2)
            variables = [v.value for v in model.trainable_variables]
            gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]
            self.optimizer.apply(gradients, model.trainable_variables)
        return model


# Steps


@pytest.mark.pairwise
@each_model
@each_of_kerass
@pytest.mark.parametrize("jit_compile", JIT)
def test_where_every_row_is_touched_it_is_kerass(name, kind, jit_compile):
    arguments = {} if name == "AdamW" else {"weight_decay": 0.01}
    mine = train(MODELS[kind](), OPTIMIZERS[name](**arguments), every_row(4), jit_compile)
    theirs = DenseGradients(THEIRS[name](**arguments)).train(MODELS[kind](), every_row(4))
    close(mine.get_weights(), theirs.get_weights())


CLIPS = [{"clipnorm": 0.3}, {"clipvalue": 0.02}, {"global_clipnorm": 0.4}]


@pytest.mark.pairwise
@each_model
@pytest.mark.parametrize("clip", CLIPS, ids=lambda clip: next(iter(clip)))
@pytest.mark.parametrize("jit_compile", JIT)
def test_clipped_gradients_are_those_of_the_dense_gradient(kind, clip, jit_compile):
    mine = train(MODELS[kind](), OPTIMIZERS["SGD"](**clip), batches(3), jit_compile)
    theirs = DenseGradients(THEIRS["SGD"](**clip)).train(MODELS[kind](), batches(3))
    close(mine.get_weights(), theirs.get_weights())
    free = train(MODELS[kind](), OPTIMIZERS["SGD"](), batches(3))
    assert not np.allclose(mine.get_weights()[0], free.get_weights()[0])


@each_model
@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_where_some_rows_are_touched_steps_without_averages_are_kerass_too(name, kind):
    mine = train(MODELS[kind](), OPTIMIZERS[name](), batches(5, most=7))
    theirs = DenseGradients(THEIRS[name]()).train(MODELS[kind](), batches(5, most=7))
    close(mine.get_weights(), theirs.get_weights())


@each_model
@each_optimizer
def test_rows_that_no_step_touches_keep_their_bits(name, kind):
    model = MODELS[kind]()
    optimizer = OPTIMIZERS[name]()
    before = model.layers[0].weights[0].numpy()
    train(model, optimizer, batches(3, most=7))
    table = model.layers[0].weights[0].numpy()
    np.testing.assert_array_equal(table[7:], before[7:])
    assert np.all(table[:7] != before[:7])
    start = getattr(optimizer, "initial_accumulator_value", 0)
    for slot in optimizer.variables[2:]:
        if slot.shape[:1] == (ROWS,):
            np.testing.assert_array_equal(slot.numpy()[7:], np.full_like(slot.numpy()[7:], start))
            assert np.all(slot.numpy()[:7] != start)


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "RowwiseAdagrad", "Adam", "AdamW"])
def test_rows_that_no_step_touches_do_not_decay(name):
    table = keras.Variable(np.ones([ROWS, WIDTH]), name="table")
    optimizer = OPTIMIZERS[name](weight_decay=0.5)
    values = np.ones([3, WIDTH], np.float32)
    values[2] = 0
    slices = tf.IndexedSlices(tf.constant(values), tf.constant([5, 1, 3]))
    free = keras.Variable(np.ones([ROWS, WIDTH]), name="table")
    optimizer.apply([slices], [table])
    OPTIMIZERS[name](weight_decay=0.0).apply([slices], [free])
    touched = [1, 5]
    np.testing.assert_allclose(table.numpy()[touched], free.numpy()[touched] - 0.05, atol=1e-6)
    rest = np.delete(np.arange(ROWS), touched)
    np.testing.assert_array_equal(table.numpy()[rest], np.ones([ROWS - 2, WIDTH]))


def test_lazy_adam_by_definition():
    optimizer = optimizers.Adam(0.1, beta_1=0.8, beta_2=0.9, epsilon=1e-3, weight_decay=0.05)
    table = keras.Variable(np.random.default_rng(0).normal(size=[ROWS, WIDTH]), dtype="float64")
    x = table.numpy()
    m, v = np.zeros_like(x), np.zeros_like(x)
    rng = np.random.default_rng(1)
    for step in range(1, 8):
        ids, values = rng.integers(0, ROWS, 8), rng.normal(size=[8, WIDTH])
        optimizer.apply([tf.IndexedSlices(tf.constant(values), tf.constant(ids))], [table])
        rate = np.float64(np.float32(0.1))
        for row in np.unique(ids):
            s = values[ids == row].sum(0)
            m[row] += 0.2 * (s - m[row])
            v[row] += 0.1 * (s**2 - v[row])
            x[row] -= rate * 0.05 * x[row]
            correction = np.sqrt(1 - 0.9**step) / (1 - 0.8**step)
            x[row] -= rate * correction * m[row] / (np.sqrt(v[row]) + 1e-3)
    np.testing.assert_allclose(table.numpy(), x, rtol=0, atol=1e-7)


def test_rowwise_adagrad_by_definition():
    optimizer = optimizers.RowwiseAdagrad(0.1, initial_accumulator_value=0.2, epsilon=1e-3)
    rng = np.random.default_rng(0)
    shapes = [[ROWS, WIDTH], [4, 3], [4, 2, 3], [3]]
    variables = [keras.Variable(rng.normal(size=shape), dtype="float32") for shape in shapes]
    x = [variable.numpy().astype(float) for variable in variables]
    sums = [np.full([len(a), 1] if a.ndim > 1 else len(a), 0.2) for a in x]
    for _ in range(4):
        ids, values = rng.integers(0, ROWS, 8), rng.normal(size=[8, WIDTH])
        dense = [rng.normal(size=shape) for shape in shapes]
        dense[0] = np.zeros([ROWS, WIDTH])
        np.add.at(dense[0], ids, values)
        slices = tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(ids))
        given = [slices, *(tf.constant(g, tf.float32) for g in dense[1:])]
        optimizer.apply(given, variables)
        for a, total, g in zip(x, sums, dense):
            if g.ndim == 1:
                total += g**2
                a -= 0.1 * g / np.sqrt(total + 1e-3)
            else:
                total += np.mean(g.reshape(len(g), -1) ** 2, 1, keepdims=True)
                a -= 0.1 * g / np.sqrt(total + 1e-3).reshape([-1] + [1] * (g.ndim - 1))
    close(variables, x)
    accumulators = optimizer.variables[2:]
    assert [tuple(a.shape) for a in accumulators] == [(ROWS, 1), (4, 1), (4, 1), (3,)]
    close(accumulators, sums)


@pytest.mark.quarter
@each_optimizer
@pytest.mark.parametrize("jit_compile", [*JIT, "auto"])
def test_fit_trains_the_same_compiled_or_not(name, jit_compile):
    ids, y = (np.concatenate(x) for x in zip(*batches(4)))
    losses = {}
    for how in (False, jit_compile):
        model = bag_model()
        model.compile(OPTIMIZERS[name](), "mse", jit_compile=how)
        history = model.fit(ids, y, epochs=3, batch_size=6, shuffle=False, verbose=0)
        losses[how] = history.history["loss"]
    np.testing.assert_allclose(losses[jit_compile], losses[False], rtol=1e-4)
    assert losses[False][-1] < losses[False][0]


# Keras's arguments


def test_the_loss_scale_is_divided_out():
    scaled = train(bag_model(), OPTIMIZERS["Adam"](loss_scale_factor=1024.0), batches(3))
    plain = train(bag_model(), OPTIMIZERS["Adam"](), batches(3))
    close(scaled.get_weights(), plain.get_weights())


@each_model
def test_a_loss_scale_optimizer_around_it(kind):
    optimizer = keras.optimizers.LossScaleOptimizer(OPTIMIZERS["Adam"](), initial_scale=256.0)
    scaled = train(MODELS[kind](), optimizer, batches(3))
    plain = train(MODELS[kind](), OPTIMIZERS["Adam"](), batches(3))
    close(scaled.get_weights(), plain.get_weights())
    # A step that is not finite is none.
    before = scaled.get_weights()
    ids, y = next(batches(1))
    scaled.train_on_batch(ids, y * np.inf)
    for old, new in zip(before, scaled.get_weights()):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("kind", ["schedule", "callable"])
def test_a_learning_rate_that_changes(kind):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1, 2], [0.1, 0.2, 0.0])
    rate = schedule if kind == "schedule" else lambda: tf.constant(0.1)
    mine = train(bag_model(), optimizers.SGD(rate), batches(3))
    theirs = DenseGradients(keras.optimizers.SGD(rate)).train(bag_model(), batches(3))
    close(mine.get_weights(), theirs.get_weights())


@each_of_kerass
def test_variables_without_weight_decay(name):
    def optimizer(makers):
        made = makers[name](weight_decay=0.3)
        made.exclude_from_weight_decay(var_names=["embeddings"])
        return made

    mine = train(bag_model(), optimizer(OPTIMIZERS), every_row(3))
    theirs = DenseGradients(optimizer(THEIRS)).train(bag_model(), every_row(3))
    close(mine.get_weights(), theirs.get_weights())


@pytest.mark.quarter
@pytest.mark.parametrize(
    "arguments",
    [{"use_ema": True}, {"gradient_accumulation_steps": 2}, {"clipnorm": 0.1}],
    ids=lambda arguments: next(iter(arguments)),
)
@each_of_kerass
def test_models_without_tables_are_kerass(name, arguments):
    def model():
        layers = [keras.layers.Dense(4, kernel_constraint="non_neg"), keras.layers.Dense(2)]
        return with_weights(keras.Sequential([keras.Input([3]), *layers]), 0)

    mine = train(model(), OPTIMIZERS[name](**arguments), batches(4))
    theirs = train(model(), THEIRS[name](**arguments), batches(4))
    for a, b in zip(mine.get_weights(), theirs.get_weights()):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@each_optimizer
def test_tables_of_other_types(name, dtype):
    table = keras.Variable(np.ones([ROWS, WIDTH]), dtype=dtype, name="table")
    wide = keras.Variable(np.ones([ROWS, WIDTH]), dtype="float64", name="table")
    made, other = OPTIMIZERS[name](), OPTIMIZERS[name]()
    rng = np.random.default_rng(0)
    for _ in range(3):
        ids, values = rng.integers(0, ROWS, 8), rng.integers(-4, 5, [8, WIDTH]) / 4
        for optimizer, variable in ((made, table), (other, wide)):
            slices = tf.IndexedSlices(tf.cast(values, variable.dtype), tf.constant(ids))
            optimizer.apply([slices], [variable])
    tolerance = {"float16": 4e-3, "bfloat16": 3e-2, "float64": 0}[dtype]
    np.testing.assert_allclose(
        np.asarray(table.value, np.float64), wide.numpy(), rtol=0, atol=tolerance
    )
    slot = "float64" if dtype == "float64" else "float32"
    assert {v.dtype for v in made.variables[2:]} <= {slot}


def test_variables_of_tensorflow_and_gradients_in_other_orders():
    table, kernel = tf.Variable(tf.ones([4, 2])), tf.Variable(tf.ones([2]))
    optimizer = optimizers.SGD(0.5)
    slices = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([3, 0, 3]))
    optimizer.apply_gradients([(tf.ones([2]), kernel), (slices, table)])
    np.testing.assert_allclose(table, [[0.5] * 2, [1] * 2, [1] * 2, [0] * 2])
    np.testing.assert_allclose(kernel, [0.5, 0.5])


def test_several_optimizers_in_one():
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        pytest.skip(f"Keras {keras.__version__} has no MultiOptimizer")
    model = bag_model()
    # The table's optimizer may not be asked for momentum.
    parts = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1, momentum=0.9))
    parts[".*embeddings"] = optimizers.Adagrad(0.1)
    before = model.get_weights()
    train(model, keras.optimizers.MultiOptimizer(parts), batches(2, most=7))
    after = model.get_weights()
    np.testing.assert_array_equal(after[0][7:], before[0][7:])
    assert np.all(after[0][:7] != before[0][:7]) and np.all(after[1] != before[1])


@pytest.mark.slow
def test_on_two_replicas(run_program):
    run_program(
        """
        import keras
        import numpy as np
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        import tf_ti
        from tf_ti.keras import EmbeddingBag, optimizers

        rng = np.random.default_rng(0)
        ids, y = rng.integers(0, 9, [24, 3]), rng.normal(size=[24, 2]).astype("f")
        weights = [rng.normal(size=s).astype("f") for s in ([12, 5], [5, 2], [2])]

        def trained(strategy, make):
            with strategy.scope():
                bags = EmbeddingBag(12, 5, combiner="sum")
                model = keras.Sequential([keras.Input([3], dtype="int64"), bags,
                                          keras.layers.Dense(2)])
                model.set_weights(weights)
                model.compile(make(), "mse", jit_compile=False)
            model.fit(ids, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
            return model.get_weights()

        for make in (lambda: optimizers.SGD(0.1, weight_decay=0.01),
                     lambda: optimizers.Adagrad(0.1, loss_scale_factor=4.0),
                     lambda: optimizers.RowwiseAdagrad(0.1),
                     lambda: optimizers.Adam(0.1)):
            mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
            two, one = trained(mirrored, make), trained(tf.distribute.get_strategy(), make)
            for a, b in zip(two, one):
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
            np.testing.assert_array_equal(two[0][9:], weights[0][9:])
        """
    )


# Saved


@each_optimizer
def test_a_saved_model_trains_on_as_if_nothing_had_happened(name, tmp_path):
    model = train(bag_model(), OPTIMIZERS[name](), batches(2))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is getattr(optimizers, name)
    for ids, y in batches(2, seed=5):
        model.train_on_batch(ids, y)
        loaded.train_on_batch(ids, y)
    for a, b in zip(model.get_weights(), loaded.get_weights()):
        np.testing.assert_array_equal(a, b)


@each_of_kerass
def test_configurations_are_kerass(name):
    mine, theirs = (made[name](name="its").get_config() for made in (OPTIMIZERS, THEIRS))
    assert mine == theirs
    made = getattr(optimizers, name).from_config(theirs)
    assert made.get_config() == theirs


@each_of_kerass
@pytest.mark.parametrize("from_keras", [False, True])
def test_weights_and_checkpoints_go_both_ways(name, from_keras, tmp_path):
    makers = [THEIRS, OPTIMIZERS] if from_keras else [OPTIMIZERS, THEIRS]
    source = train(bag_model(), makers[0][name](), every_row(2))
    for how in ("weights", "checkpoint"):
        target = bag_model(seed=9)
        target.compile(makers[1][name](), "mse", jit_compile=False)
        target.optimizer.build(target.trainable_variables)
        if how == "weights":
            target.set_weights(source.get_weights())
            store = {}
            source.optimizer.save_own_variables(store)
            target.optimizer.load_own_variables(store)
        else:
            path = tf.train.Checkpoint(model=source, optimizer=source.optimizer).save(
                str(tmp_path / "checkpoint")
            )
            restored = tf.train.Checkpoint(model=target, optimizer=target.optimizer)
            restored.restore(path).assert_consumed()
        assert [v.path.split("/")[-1] for v in target.optimizer.variables] == [
            v.path.split("/")[-1] for v in source.optimizer.variables
        ]
        close(
            [v.numpy() for v in target.optimizer.variables],
            [v.numpy() for v in source.optimizer.variables],
            0,
        )
        close(target.get_weights(), source.get_weights(), 0)


# Wrong calls


REFUSED = {
    "use_ema": (lambda: optimizers.Adam(use_ema=True), "Adam with use_ema=True"),
    "accumulation": (
        lambda: optimizers.Adagrad(gradient_accumulation_steps=2),
        "Adagrad with gradient_accumulation_steps=2",
    ),
    "momentum": (lambda: optimizers.SGD(momentum=0.9), "SGD with momentum=0.9"),
    "nesterov": (lambda: optimizers.SGD(momentum=0.9, nesterov=True), "SGD with momentum=0.9"),
    "amsgrad": (lambda: optimizers.AdamW(amsgrad=True), "AdamW with amsgrad=True"),
}


@each_model
@pytest.mark.parametrize("case", REFUSED)
def test_what_would_pass_over_a_table_is_refused(kind, case):
    make, message = REFUSED[case]
    model = MODELS[kind]()
    before = model.get_weights()
    with pytest.raises(ValueError, match=message):
        train(model, make(), batches(1))
    for old, new in zip(before, model.get_weights()):
        np.testing.assert_array_equal(old, new)


def test_a_constraint_of_a_table_is_refused():
    bags = EmbeddingBag(ROWS, WIDTH, embeddings_constraint="non_neg")
    model = keras.Sequential([keras.Input([3], dtype="int64"), bags, keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="a constraint .*embeddings.*MultiOptimizer"):
        train(model, optimizers.Adam(), batches(1))


@pytest.mark.needs_checked_ids
def test_an_id_outside_of_the_table_is_an_error_and_changes_nothing():
    table = keras.Variable(np.ones([4, 2]), name="table")
    slices = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([0, 4]))
    for optimizer in (optimizers.Adam(), optimizers.SGD(clipnorm=1.0)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="4"):
            optimizer.apply([slices], [table])
    np.testing.assert_array_equal(table, np.ones([4, 2]))


def test_they_are_where_the_layers_are():
    assert tf_ti.keras.optimizers is optimizers
