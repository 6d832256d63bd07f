"""Steps of optimizers in functions that XLA compiles, beside their definition in NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from updates_definition import Definition

import tf_ti
from tf_ti import _library

pytestmark = pytest.mark.skipif(_library.XLA_PROBLEM is not None, reason=str(_library.XLA_PROBLEM))

F32, F64, F16, BF16 = tf.float32, tf.float64, tf.float16, tf.bfloat16
# Of numbers near 1: a few roundings, of the table for halves.
TOLERANCES = {F32: 3e-6, F64: 1e-13, F16: 2e-3, BF16: 1.6e-2}


HOST = pytest.param("host", marks=pytest.mark.needs_cpu_kernels)


@pytest.fixture(params=[HOST, "hlo"], autouse=True)
def way(request, monkeypatch):
    """The form that updates are compiled to: the CPU's kernels, or XLA's own, as on a GPU."""
    if request.param == "hlo":
        monkeypatch.setenv("TF_TI_XLA_BAGS", "hlo")
    return request.param


def compiled(f):
    return tf.function(f, jit_compile=True, autograph=False)


ADAM = {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3}
# Rule, dtype, index type, shape, whether the last slot is row-wise, numbers known when traced.
CASES = {
    "descent": ("descent", F32, tf.int64, [9, 5], False, {"weight_decay": 0.05}),
    "descent of halves": ("descent", F16, tf.int32, [9, 5], False, {"weight_decay": 0.05}),
    "adagrad": ("adagrad", F32, tf.int32, [9, 5], False, {"epsilon_inside_sqrt": True}),
    "row-wise adagrad": ("adagrad", BF16, tf.int64, [9, 5], True, {"epsilon_inside_sqrt": False}),
    "adagrad of doubles": ("adagrad", F64, tf.int64, [9, 2, 3], False, {}),
    "adam": ("adam", F32, tf.int32, [9, 5], False, {"epsilon_hat": True, "weight_decay": 0.0}),
    "torch's adam": (
        *("adam", F64, tf.int64, [9, 5], False),
        {"epsilon_hat": False, "weight_decay": 0.05},
    ),
    "row-wise adam": (
        *("adam", F32, tf.int64, [9, 2, 3], True),
        {"epsilon_hat": True, "weight_decay": 0.05},
    ),
    "row-wise adam of halves": (
        *("adam", F16, tf.int32, [9, 5], True),
        {"epsilon_hat": False, "weight_decay": 0.0},
    ),
}
# Repeats in any order; the sum of row 3 is zeros; what is no row is left out.
INDICES = np.array([7, 3, -1, 0, 7, 3, 9, 5, 7, 2**31 - 1])


def numbers_of(rule, given):
    if rule == "adam":
        return ADAM | given
    return {"epsilon": 1e-3, "epsilon_inside_sqrt": True} | given if rule == "adagrad" else given


def make(rule, dtype, shape, is_row_wise, rng):
    slot_type = F32 if dtype in (F16, BF16) else dtype
    count = {"descent": 0, "adagrad": 1, "adam": 2}[rule]
    shapes = [shape] * count
    if is_row_wise:
        shapes[-1] = [shape[0], 1]
    table = tf.Variable(tf.cast(rng.normal(size=shape), dtype))
    slots = [tf.Variable(tf.cast(rng.uniform(0.1, 1, size=s), slot_type)) for s in shapes]
    return [table, *slots]


def update(rule, variables, slices, rate, step, numbers):
    if rule == "adam":
        tf_ti.adam_update(*variables, slices, rate, step, **numbers)
    elif rule == "adagrad":
        tf_ti.adagrad_update(*variables, slices, rate, **numbers)
    else:
        tf_ti.scatter_sub(*variables, slices, rate, **numbers)


def define(definition, rule, indices, values, rate, step, numbers):
    if rule == "adam":
        numbers = numbers | {"step": step}
    name = "scale" if rule == "descent" else "learning_rate"
    definition.step(rule, indices, values, **{name: rate}, **numbers)


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_the_definition(name):
    rule, dtype, index_type, shape, is_row_wise, given = CASES[name]
    rng = np.random.default_rng(7)
    numbers = numbers_of(rule, given)
    variables = make(rule, dtype, shape, is_row_wise, rng)
    definition = Definition(*(np.asarray(v, np.float64) for v in variables))
    before = [v.numpy() for v in variables]

    @compiled
    def run(values, indices, rate, step):
        update(rule, variables, tf.IndexedSlices(values, indices), rate, step, numbers)

    is_row = (INDICES >= 0) & (INDICES < shape[0])
    for step in (3, 4):  # by one program: it knows neither the step nor the rate
        values = tf.cast(rng.normal(size=[len(INDICES), *shape[1:]]), dtype).numpy().copy()
        values[5] = -values[1]
        rate = 0.1 * step
        slot_type = variables[-1].dtype if rule != "descent" else F64 if dtype == F64 else F32
        run(
            tf.constant(values),
            tf.constant(INDICES, index_type),
            tf.constant(rate, slot_type),
            tf.constant(step, tf.int64),
        )
        wide = np.asarray(values, np.float64)[is_row]
        rate = float(np.asarray(rate, slot_type.as_numpy_dtype))
        define(definition, rule, INDICES[is_row], wide, rate, step, numbers)

    untouched = np.delete(np.arange(shape[0]), [0, 5, 7])
    for i, (variable, want) in enumerate(
        zip(variables, [definition.table, *definition.slots], strict=True)
    ):
        tolerance = TOLERANCES[dtype if i == 0 else variable.dtype] * 4
        tolerance *= max(1.0, np.abs(want).max())
        np.testing.assert_allclose(np.asarray(variable, np.float64), want, rtol=0, atol=tolerance)
        np.testing.assert_array_equal(variable.numpy()[untouched], before[i][untouched])


def test_empty_slices_and_tables_without_rows_change_nothing():
    for rows in (3, 0):
        variables = make("adam", F32, [rows, 2], False, np.random.default_rng(1))
        before = [v.numpy() for v in variables]

        @compiled
        def run(values, indices, variables=variables):
            slices = tf.IndexedSlices(values, indices)
            tf_ti.adam_update(*variables, slices, 0.1, 1)
            tf_ti.adagrad_update(*variables[::2], slices, 0.1)
            tf_ti.scatter_sub(variables[0], slices, 0.1, weight_decay=0.5)

        run(tf.zeros([0, 2]), tf.zeros([0], tf.int32))
        if rows == 0:
            run(tf.ones([1, 2]), tf.constant([0]))
        for old, new in zip(before, variables, strict=True):
            np.testing.assert_array_equal(old, new)


def test_checked_indices_name_what_is_wrong_and_nothing_is_written(monkeypatch):
    monkeypatch.setenv("TF_TI_CHECK_IDS", "1")
    variables = make("adam", F32, [3, 2], False, np.random.default_rng(2))
    before = [v.numpy() for v in variables]

    @compiled
    def run(indices):
        slices = tf.IndexedSlices(tf.ones([2, 2]), indices)
        tf_ti.adam_update(*variables, slices, 0.1, 1)

    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        run(tf.constant([0, 3]))
    assert "indices[1] is 3, but the variable has 3 rows" in str(error.value)
    for old, new in zip(before, variables, strict=True):
        np.testing.assert_array_equal(old, new)
    run(tf.constant([0, 2]))
    assert all(np.all(old[1] == new.numpy()[1]) for old, new in zip(before, variables))
    assert all(np.all(old[0] != new.numpy()[0]) for old, new in zip(before, variables))


@pytest.mark.parametrize("way", [HOST], indirect=True)  # XLA's operations check no numbers
def test_numbers_out_of_their_range_are_errors_on_the_processor():
    table, m, v = make("adam", F32, [3, 2], False, np.random.default_rng(3))
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]))

    @compiled
    def run(step, beta):
        tf_ti.adam_update(table, m, v, slices, 0.1, step, beta_2=beta)

    before = table.numpy()
    for step, beta, message in (
        (0, 0.5, "step must be at least 1, got 0"),
        (1, 1.0, "beta_2 must be at least 0 and below 1, got 1"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            run(tf.constant(step, tf.int64), tf.constant(beta, F64))
    np.testing.assert_array_equal(table, before)


def test_slots_of_another_shape_are_errors():
    table, m, v = make("adam", F32, [3, 2], False, np.random.default_rng(4))
    unknown = tf.Variable(tf.zeros([4, 2]), shape=tf.TensorShape(None))
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]))
    for slots, name in (((unknown, v), "m"), ((m, unknown), "v")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"{name} must have the variable"):
            compiled(lambda slots=slots: tf_ti.adam_update(table, *slots, slices, 0.1, 1))()


@pytest.mark.parametrize("rule", ["adam", "adagrad"])
def test_training_is_that_of_the_plain_kernels(rule):
    def trained(make_function):
        variables = make(rule, F32, [6, 2], True, np.random.default_rng(5))

        @make_function
        def train(ids, step):
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(tf_ti.embedding_bag_packed(variables[0], ids) ** 2)
            slices = tape.gradient(value, variables[0])
            numbers = numbers_of(rule, {"weight_decay": 0.1} if rule == "adam" else {})
            update(rule, variables, slices, 0.05, step, numbers)
            return value

        ids = tf.constant([[1, 2, 2], [5, 1, 1]])
        values = [train(ids, tf.constant(i + 1, tf.int64)) for i in range(3)]
        return [*values, *variables]

    for plain, xla in zip(trained(lambda f: f), trained(compiled), strict=True):
        np.testing.assert_allclose(xla, plain, 1e-5, 1e-6)


# Steps of training, each with tables of a shape of its own.
STEPS = """
import glob, re, sys
import keras, numpy as np, tensorflow as tf, tf_ti

OFFSETS = tf.constant([0, 3, 6, 9])
SEGMENTS = tf.constant([0] * 3 + [1] * 3 + [2] * 3 + [3] * 9)

def flat(x):
    return tf.reshape(x, [-1])

POOL = {
    "embedding_bag": lambda t, i, w, c: tf_ti.embedding_bag(t, i, w, combiner=c),
    "offsets": lambda t, i, w, c: tf_ti.embedding_bag_offsets(
        t, flat(i), OFFSETS, 5, flat(w), reduction=c),
    "packed": lambda t, i, w, c: tf_ti.embedding_bag_packed(t, i, w, reduction=c),
    "segments": lambda t, i, w, c: tf_ti.embedding_segments_sum(
        t, flat(i), SEGMENTS, 4, None, flat(w)),
    "clipped": lambda t, i, w, c: tf_ti.embedding_bag(t, i, w, combiner=c, max_norm=1.0),
    "max": lambda t, i, w, c: tf_ti.embedding_bag(t, i, combiner="max"),
    "unweighted": lambda t, i, w, c: tf_ti.embedding_bag(t, i, combiner=c),
    "gather": lambda t, i, w, c: tf.reduce_sum(tf.gather(t, i) * w[..., None], 1),
}

def adam(table, m, gradient):
    tf_ti.adam_update(table, m, V[table.shape[0]], gradient, 0.1, 1)

UPDATE = {
    "scatter_sub": lambda t, m, g: tf_ti.scatter_sub(t, g),
    "decayed": lambda t, m, g: tf_ti.scatter_sub(t, g, 0.1, weight_decay=0.1),
    "adagrad": lambda t, m, g: tf_ti.adagrad_update(t, m, g, 0.1),
    "adam": adam,
    "tf": lambda t, m, g: t.scatter_sub(g),
    "dense": lambda t, m, g: t.assign_sub(tf.convert_to_tensor(g)),
    "keras": lambda t, m, g: OPTIMIZERS[t.shape[0]].apply([g], [t]),
}

# Name, way to pool, combiner, update; what else the step does is in the name.
CASES = [
    ("", "gather", "sum", "tf"),
    *[("", pool, "sum", "scatter_sub") for pool in POOL if pool != "gather"],
    *[("", "embedding_bag", c, "adagrad") for c in ("mean", "sqrtn")],
    *[("", "embedding_bag", "mean", update) for update in UPDATE],
    *[("", "max", "sum", update) for update in ("adam", "tf", "dense")],
    ("two look-ups", "embedding_bag", "sum", "scatter_sub"),
    ("two look-ups", "embedding_bag", "sum", "tf"),
    ("several tables", "embedding_bag", "sum", "scatter_sub"),
    ("shards", "embedding_bag", "sum", "scatter_sub"),
    ("two gradients", "embedding_bag", "sum", "scatter_sub"),
    # In these tf.gather's table is copied.
    ("logged", "embedding_bag", "sum", "scatter_sub"),
    ("logged", "max", "sum", "adagrad"),
    ("linear", "embedding_bag", "sum", "scatter_sub"),
    ("linear", "unweighted", "mean", "adam"),
    ("linear", "max", "sum", "scatter_sub"),
]
OPTIMIZERS, V = {}, {}

def step_of(rows, what, pool, combiner, update):
    rng = np.random.default_rng(rows)
    table, second = [tf.Variable(rng.standard_normal([rows, 7], np.float32)) for _ in range(2)]
    m, V[rows] = tf.Variable(tf.zeros([rows, 7])), tf.Variable(tf.zeros([rows, 7]))
    weights = tf.Variable(rng.standard_normal([6, 3], np.float32))
    ids = tf.constant(rng.integers(0, rows, [6, 3]))
    if update == "keras":
        OPTIMIZERS[rows] = tf_ti.keras.optimizers.Adagrad(0.1)
        OPTIMIZERS[rows].build([table])
    pooled = lambda: POOL[pool](table, ids, weights, combiner)

    def step():
        with tf.GradientTape(persistent=True) as tape:
            if what == "two look-ups":
                y = tf.tanh(pooled()) * POOL[pool](table, ids[::-1] // 2, weights, "mean")
            elif what == "several tables":
                y = tf.add_n(tf_ti.embedding_bags([table, second], [ids, ids], [weights, weights]))
            elif what == "shards":
                y = tf_ti.embedding_bag([table, second], ids, weights)
            else:
                y = pooled()
            loss = tf.reduce_sum(y if what == "linear" else tf.tanh(y))
        if what == "two gradients":
            of_table, of_weights = tape.gradient(loss, table), tape.gradient(loss, weights)
        else:
            of_table, of_second, of_weights = tape.gradient(loss, [table, second, weights])
            if of_second is not None:
                UPDATE[update](second, m, of_second)
        logged = tf.norm(POOL[pool](table, ids, weights, "sum")) if what == "logged" else 0.0
        UPDATE[update](table, m, of_table)
        if of_weights is not None:
            weights.assign_sub(of_weights)
        return loss, logged

    return step

for k, case in enumerate(CASES):
    tf.function(step_of(100 + k, *case), jit_compile=True, autograph=False)()
programs = [open(p).read() for p in glob.glob(sys.argv[1] + "/*cpu_after_optimizations.txt")]
for k, case in enumerate(CASES):
    table = rf"f32\\[{100 + k},7\\]"
    assert any(re.search(table, program) for program in programs), case
    copies = [p for p in programs if re.search(table + r"\\S* copy\\(", p)]
    if copies:
        print("copies a table:", case)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", [HOST], indirect=True)  # what reads is known to these calls alone
def test_a_step_copies_no_table(run_program, tmp_path, monkeypatch):
    """Learnt weights, say: their gradient reads the table, which is then changed in place."""
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to={tmp_path / 'dump'}")
    finished = run_program(STEPS, tmp_path / "dump", is_first=True)
    assert finished.stdout == ""


def test_positions_of_very_many_indices_have_64_bits(way):
    count, variable = 2**31 + 1, tf.Variable(tf.zeros([4, 1], F16))
    specs = [tf.TensorSpec([count], tf.int32), tf.TensorSpec([count, 1], F16)]
    step = compiled(lambda i, v: tf_ti.scatter_sub(variable, tf.IndexedSlices(v, i)))
    text = step.experimental_get_compiler_ir(*specs)(stage="hlo")
    assert f"s32[{count}]{{0}} iota" not in text
    assert (f"s64[{count}]{{0}} iota" in text) == (way == "hlo")
