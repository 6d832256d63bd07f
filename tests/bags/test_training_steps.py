"""Updates with the gradient of a look-up, which in a graph are one op: by definition in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from bag_definition import bags_of, by_definition
from updates_definition import Definition

import tf_ti
from tf_ti import _library
from tf_ti._library import ops
from tf_ti.keras import optimizers

DTYPES = [tf.float32, tf.float64, tf.float16, tf.bfloat16]
TOLERANCES = {tf.float32: 3e-6, tf.float64: 1e-13, tf.float16: 2e-3, tf.bfloat16: 1.6e-2}
# Three bags, of which the second is empty; row 5 is padding in some.
IDS, OFFSETS = np.array([3, 1, 3, 7, 5, 3, 0, 5]), np.array([0, 4, 4, 8])
DECAYED = {"scale": 0.25, "weight_decay": 0.1}
ADAGRAD = {"learning_rate": 0.25, "epsilon": 1e-3, "epsilon_inside_sqrt": True}
ADAM = {
    "learning_rate": 0.25,
    "step": 3,
    "beta_1": 0.8,
    "beta_2": 0.95,
    "epsilon": 1e-3,
    "epsilon_hat": True,
    "weight_decay": 0.05,
}
# Rule, whether the last slot is row-wise, numbers.
FORMULAS = {
    "descent": ("descent", False, {"scale": 0.25, "weight_decay": 0.0}),
    "decayed descent": ("descent", False, DECAYED),
    "adagrad": ("adagrad", False, ADAGRAD),
    "row-wise adagrad": ("adagrad", True, {**ADAGRAD, "epsilon_inside_sqrt": False}),
    "adam": ("adam", False, ADAM),
    "row-wise adam": ("adam", True, {**ADAM, "epsilon_hat": False}),
}
RULES = {
    "descent": lambda v, s, n: tf_ti.scatter_sub(v[0], s, **n),
    "adagrad": lambda v, s, n: tf_ti.adagrad_update(*v, s, **n),
    "adam": lambda v, s, n: tf_ti.adam_update(*v, s, **n),
}
UPDATES = {"descent": "ScatterSub", "adagrad": "AdagradUpdate", "adam": "AdamUpdate"}

each_formula = pytest.mark.parametrize("formula", FORMULAS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
needs_xla = pytest.mark.skipif(_library.XLA_PROBLEM is not None, reason=str(_library.XLA_PROBLEM))


def variables_for(formula, dtype, shape, rng):
    rule, row_wise, _ = FORMULAS[formula]
    count = {"descent": 0, "adagrad": 1, "adam": 2}[rule]
    slot = tf.float64 if dtype == tf.float64 else tf.float32
    shapes = [shape] * count
    if row_wise:
        shapes[-1] = [shape[0], 1]
    slots = [tf.Variable(tf.cast(abs(rng.normal(size=s)), slot)) for s in shapes]
    return [tf.Variable(tf.cast(rng.normal(size=shape), dtype)), *slots]


def updates_in(function, *args):
    """The types of the updates in a function's graph, and whether the gradient waits to be run."""
    graph = function.get_concrete_function(*args).graph
    types = [op.type.removeprefix("TfTi>") for op in graph.get_operations()]
    gradients = [op for op in graph.get_operations() if op.type == "TfTi>ResourceEmbeddingBagGrad"]
    is_needed = any(
        op._control_outputs or any(o.consumers() for o in op.outputs) for op in gradients
    )
    return [t for t in types if any(t.endswith(u) for u in UPDATES.values())], is_needed


def step_with(look_up, variables, formula, upstream, through=lambda slices: slices, **options):
    """One step, as users write it: `through` is what is done to the gradient on its way."""
    rule, _, numbers = FORMULAS[formula]

    def step():
        with tf.GradientTape() as tape:
            out = look_up(variables[0])
        gradient = tape.gradient(out, variables[0], upstream)
        RULES[rule](variables, through(gradient), numbers)

    return tf.function(step, autograph=False, **options)


def dense_gradient(table, upstream, bags, weights=None, **options):
    """That of the definition, which is linear in the table, or takes one element of each column."""
    num_emb = len(table)
    if options.get("combiner") != "max":
        taken = by_definition(np.eye(num_emb), bags, weights=weights, **options)
        return taken.T @ upstream
    result = np.zeros_like(table)
    maxima = by_definition(table, bags, **options)
    default, padding = options.get("default_index"), options.get("padding_idx")
    for b, bag in enumerate(bags):
        rows = [i for i in bag if i != padding] or ([default] if default is not None else [])
        for c in range(table.shape[1]):
            row = next((r for r in rows if table[r, c] == maxima[b, c]), None)
            if row is not None:
                result[row, c] += upstream[b, c]
    return result


def check_step(variables, definition, formula, gradient, dtype):
    rule, _, numbers = FORMULAS[formula]
    definition.step(rule, np.arange(len(gradient)), gradient, **numbers)
    for variable, expected in zip(variables, (definition.table, *definition.slots)):
        # Slots are in float32 at least, but the gradient is that of rounded rows.
        np.testing.assert_allclose(
            np.asarray(variable, np.float64), expected, TOLERANCES[dtype], 8 * TOLERANCES[dtype]
        )


def identity(slices):
    return tf.IndexedSlices(tf.identity(slices.values), tf.identity(slices.indices))


# Values


@pytest.mark.pairwise
@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=needs_xla)])
@pytest.mark.parametrize(
    ("combiner", "weighted"),
    [("max", False), *((c, w) for c in ("sum", "mean", "sqrtn") for w in (False, True))],
)
@each_dtype
@each_formula
def test_a_step_is_its_definition(formula, dtype, combiner, weighted, jit_compile):
    rng = np.random.default_rng(3)
    variables = variables_for(formula, dtype, [9, 5], rng)
    weights = np.abs(rng.normal(size=len(IDS))) + 0.5 if weighted else None
    upstream = tf.cast(rng.normal(size=[3, 5]), dtype)
    definition = Definition(*(np.asarray(v, np.float64) for v in variables))
    options = {"default_index": 2, "padding_idx": 5}
    ids = tf.RaggedTensor.from_row_splits(IDS, OFFSETS)
    ragged_weights = None
    if weighted:
        weights = np.asarray(tf.cast(weights, dtype), np.float64)
        ragged_weights = ids.with_flat_values(tf.cast(weights, dtype))

    def look_up(table):
        return tf_ti.embedding_bag(table, ids, ragged_weights, combiner, **options)

    step = step_with(look_up, variables, formula, upstream, jit_compile=jit_compile)
    step()
    bags = bags_of(IDS, OFFSETS, True)
    gradient = dense_gradient(
        definition.table,
        np.asarray(upstream, np.float64),
        bags,
        weights=bags_of(weights, OFFSETS, True) if weighted else None,
        combiner=combiner,
        **options,
    )
    check_step(variables, definition, formula, gradient, dtype)
    rule = FORMULAS[formula][0]
    assert updates_in(step) == ([f"EmbeddingBag{UPDATES[rule]}"], False)


def _packed(table, ids):
    return tf_ti.embedding_bag_packed(table, ids[:8].reshape(4, 2))


def _offsets(table, ids):
    return tf_ti.embedding_bag_offsets_sum(table, ids, [0, 2, 2, 6])


def _segments(table, ids):
    segments = np.sort(np.arange(len(ids)) % 3).astype(ids.dtype)
    return tf_ti.embedding_segments_sum(table, ids, segments, 4)


@pytest.mark.pairwise
@pytest.mark.parametrize("seed", range(3), indirect=True)
@pytest.mark.parametrize("shape", [[40], [40, 1], [40, 7], [40, 16], [40, 2, 3], [40, 130]])
@pytest.mark.parametrize("look_up", [_packed, _offsets, _segments])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64], ids=lambda dtype: dtype.name)
@each_formula
def test_a_step_has_the_bits_of_gradient_and_update(rng, formula, dtype, look_up, shape):
    ids = rng.integers(0, 40, 300).astype([np.int32, np.int64][rng.integers(2)])
    upstream = tf.cast(rng.normal(size=[4, *shape[1:]]), dtype)
    fused = variables_for(formula, dtype, shape, rng)
    plain = [tf.Variable(v) for v in fused]
    step_with(lambda t: look_up(t, ids), fused, formula, upstream)()
    step_with(lambda t: look_up(t, ids), plain, formula, upstream, identity)()
    for f, p in zip(fused, plain):
        np.testing.assert_array_equal(f, p)


@pytest.mark.parametrize("seed", range(2), indirect=True)
@each_formula
def test_large_steps_with_rows_in_most_bags_are_gradient_and_update(rng, formula):
    # Several threads, and rows whose gradients several of them add up.
    ids = np.where(rng.random([3000, 20]) < 0.3, 7, rng.zipf(1.3, [3000, 20]) % 2000)
    upstream = tf.cast(rng.normal(size=[3000, 24]), tf.float32)
    fused = variables_for(formula, tf.float32, [2000, 24], rng)
    plain = [tf.Variable(v) for v in fused]

    def look_up(table):
        return tf_ti.embedding_bag_packed(table, ids, reduction="mean")

    step_with(look_up, fused, formula, upstream)()
    step_with(look_up, plain, formula, upstream, identity)()
    for f, p in zip(fused, plain):
        np.testing.assert_array_equal(f, p)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
def test_sums_of_halves_are_rounded_in_the_table_alone(dtype):
    # A row of many bags, whose sum several threads share, and one of few.
    ids = np.where(np.arange(50000) % 1000 == 0, 2, 1)[:, np.newaxis]
    upstream = np.asarray(tf.cast(np.random.default_rng(0).uniform(0.01, 0.02, [50000, 3]), dtype))
    table, accumulator = tf.Variable(tf.ones([4, 3], dtype)), tf.Variable(tf.zeros([4, 3]))

    def look_up(table):
        return tf_ti.embedding_bag_packed(table, ids)

    step_with(look_up, [table, accumulator], "adagrad", tf.constant(upstream))()
    sums = [upstream[ids[:, 0] == row].astype(np.float64).sum(0) for row in range(4)]
    np.testing.assert_allclose(accumulator, np.square(sums), rtol=1e-5)


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=needs_xla)])
@pytest.mark.parametrize("shape", [[0, 3], [4, 0]])
def test_no_rows_and_rows_of_nothing(shape, jit_compile):
    table = tf.Variable(tf.ones(shape))
    ids = np.zeros([2, 0], np.int64)
    step_with(
        lambda t: tf_ti.embedding_bag_packed(t, ids),
        [table],
        "descent",
        tf.ones([2, shape[1]]),
        jit_compile=jit_compile,
    )()
    assert table.shape == shape


@pytest.mark.parametrize("kind", ["offsets", "packed", "mixed"])
@pytest.mark.parametrize("formula", ["descent", "adagrad", "row-wise adam"])
def test_each_table_of_one_look_up_has_its_step(formula, kind):
    rng = np.random.default_rng(5)
    several = [variables_for(formula, tf.float32, [rows, 5], rng) for rows in (9, 8, 30)]
    definitions = [Definition(*(v.numpy().astype(np.float64) for v in each)) for each in several]
    ragged, dense = tf.RaggedTensor.from_row_splits(IDS, OFFSETS), IDS[:6].reshape(3, 2)
    ids = {"offsets": [ragged] * 3, "packed": [dense] * 3, "mixed": [ragged, dense, ragged]}[kind]
    upstreams = rng.normal(size=[3, 3, 5])  # of three tables with three bags each
    rule, _, numbers = FORMULAS[formula]

    @tf.function(autograph=False)
    def step():
        tables = [variables[0] for variables in several]
        with tf.GradientTape() as tape:
            pooled = tf_ti.embedding_bags(tables, ids, combiner="mean", default_index=4)
        gradients = tape.gradient(pooled, tables, tf.unstack(tf.constant(upstreams, tf.float32)))
        for variables, slices in zip(several, gradients):
            RULES[rule](variables, slices, numbers)

    step()
    for variables, definition, of_table, upstream in zip(several, definitions, ids, upstreams):
        bags = of_table.to_list() if of_table is ragged else of_table.tolist()
        gradient = dense_gradient(
            definition.table, upstream, bags, combiner="mean", default_index=4
        )
        check_step(variables, definition, formula, gradient, tf.float32)
    assert updates_in(step) == ([f"EmbeddingBag{UPDATES[rule]}"] * 3, False)


# When it is one op


def test_a_gradient_with_other_uses_stays_an_op():
    table, other = tf.Variable(tf.ones([8, 4])), tf.Variable(tf.ones([8, 4]))
    ids = tf.constant([[1, 2], [2, 5]], tf.int64)

    def gradient(*look_ups):
        with tf.GradientTape() as tape:
            pooled = [tf_ti.embedding_bag_packed(table, i) for i in look_ups]
            loss = tf.add_n([tf.reduce_sum(p**2) for p in pooled])
        return tape.gradient(loss, table)

    def clipped():
        slices = gradient(ids)
        values = tf.clip_by_norm(slices.values, 1.0)
        tf_ti.scatter_sub(table, tf.IndexedSlices(values, slices.indices), 0.1)

    def twice():
        tf_ti.scatter_sub(table, gradient(ids, ids + 1), 0.1)

    def other_variable():
        tf_ti.scatter_sub(other, gradient(ids), 0.1)

    def in_a_branch():
        slices = gradient(ids)
        tf.cond(
            tf.reduce_sum(table) > 0,
            lambda: tf_ti.scatter_sub(table, slices, 0.1) or 0,
            lambda: 0,
        )

    def other_order():
        slices = gradient(ids)
        tf_ti.scatter_sub(table, tf.IndexedSlices(slices.values[::-1], slices.indices), 0.1)

    for step in (clipped, twice, other_variable, other_order):
        assert updates_in(tf.function(step, autograph=False)) == (["ScatterSub"], True)
    assert updates_in(tf.function(in_a_branch, autograph=False)) == ([], True)


def test_a_gradient_that_is_used_later_is_there():
    table = tf.Variable(tf.ones([8, 4]))
    accumulator = tf.Variable(tf.ones([8, 1]))

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_ti.embedding_bag_packed(table, ids) ** 2)
        slices = tape.gradient(loss, table)
        tf_ti.adagrad_update(table, accumulator, slices, 0.1)
        tf_ti.scatter_sub(table, slices, 0.1)
        return slices.values, table.read_value()

    values, after = step(tf.constant([[1, 2]], tf.int64))
    np.testing.assert_array_equal(values, np.full([2, 4], 4.0))
    expected = np.ones([8, 4])
    expected[1:3] -= 0.1 * 4 / np.sqrt(17) + 0.1 * 4
    np.testing.assert_allclose(after, expected, rtol=1e-6)


def test_several_steps_in_one_graph_see_one_another():
    table = tf.Variable(tf.ones([4, 2]))

    @tf.function
    def steps(ids):
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_ti.embedding_bag_packed(table, ids) ** 2)
            tf_ti.scatter_sub(table, tape.gradient(loss, table), 0.25)
            tf.random.uniform([])  # ordered after what has no variables
        return table.read_value()

    np.testing.assert_array_equal(steps(tf.constant([[1]]))[:, 0], [1, 0.125, 1, 1])
    assert updates_in(steps, tf.constant([[1]])) == (["EmbeddingBagScatterSub"] * 3, False)


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam"])
def test_optimizers_of_keras_take_one_op(name):
    table = keras.Variable(np.ones([8, 4], np.float32))
    optimizer = getattr(optimizers, name)(0.1)
    optimizer.build([table])

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_ti.embedding_bag_packed(table.value, ids) ** 2)
        optimizer.apply([tape.gradient(loss, table.value)], [table])

    update = {"SGD": "ScatterSub"}.get(name, f"{name}Update")
    assert updates_in(step, tf.constant([[1, 2]])) == ([f"EmbeddingBag{update}"], False)


# Modes


def _train_in_a_loop(table, ids):
    def body(carry, i):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_ti.embedding_bag_packed(table, i[None]) ** 2)
        tf_ti.scatter_sub(table, tape.gradient(loss, table), 0.25)
        return carry + 1, loss

    return tf_ti.scan(body, 0, ids)[1]


@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "function"])
def test_steps_in_the_body_of_a_loop(is_graph):
    table = tf.Variable(tf.ones([4, 2]))

    def train():
        return _train_in_a_loop(table, tf.constant([[1], [2], [1]]))

    losses = (tf.function(train) if is_graph else train)()
    np.testing.assert_array_equal(losses, [2, 2, 0.5])
    np.testing.assert_array_equal(table[:, 0], [1, 0.25, 0.5, 1])


def test_steps_cannot_be_vectorized():
    table = tf.Variable(tf.ones([4, 2]))
    with pytest.raises(ValueError, match="scatter_sub cannot run in tf.vectorized_map"):
        tf.vectorized_map(lambda ids: _train_in_a_loop(table, ids), tf.constant([[[1]], [[2]]]))


@each_formula
def test_steps_are_saved(formula, tmp_path):
    rng = np.random.default_rng(0)
    rule, _, numbers = FORMULAS[formula]

    class Model(tf.Module):
        def __init__(self):
            self.variables_ = variables_for(formula, tf.float32, [8, 4], rng)

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int64)])
        def train(self, ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_ti.embedding_bag_packed(self.variables_[0], ids) ** 2)
            RULES[rule](self.variables_, tape.gradient(loss, self.variables_[0]), numbers)
            return loss

    model, ids = Model(), tf.constant([[1, 2], [2, 5]], tf.int64)
    tf.saved_model.save(model, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    functions = loaded.train.get_concrete_function(ids).graph.as_graph_def().library.function
    saved = [node.op for function in functions for node in function.node_def]
    assert f"TfTi>EmbeddingBag{UPDATES[rule]}" in saved
    for _ in range(2):
        np.testing.assert_array_equal(model.train(ids), loaded.train(ids))
    for one, other in zip(model.variables_, loaded.variables_):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("in_branch", [False, True])
def test_a_gradient_in_whose_place_a_step_is_does_not_run_in_a_loop(in_branch, is_graph):
    table, num_bags = tf.Variable(tf.ones([4, 2])), tf.Variable(3)

    def step():
        # Where it runs it fails: it is for one bag.
        handle = tf.compat.v1.get_default_graph().capture(table.handle)
        wrong = tf.ones(tf.stack([num_bags.read_value(), 2]))
        gradient = ops.tf_ti_resource_embedding_bag_grad(
            handle, wrong, [[1, 2]], [], [], [], [], bags="packed"
        )
        assert gradient.rows.op.type == "TfTi>ResourceEmbeddingBagGrad"
        tf_ti.scatter_sub(table, tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1])), 0.25)
        return 0.0

    def body(carry, x):
        return carry, tf.cond(x >= 0, step, lambda: 0.0) if in_branch else step()

    def train():
        return tf_ti.scan(body, 0, tf.range(3))[1]

    (tf.function(train, autograph=False) if is_graph else train)()
    np.testing.assert_array_equal(table[:, 0], [1, 0.25, 1, 1])


@pytest.mark.parametrize("waits", ["by the step", "by the gradient"])
def test_nothing_is_written_where_a_step_waits_for_a_check_that_fails(waits):
    table = tf.Variable(tf.ones([4, 2]))

    @tf.function(autograph=False)
    def step(ids, upstream):
        with tf.GradientTape() as tape:
            pooled = tf_ti.embedding_bag_packed(table, ids)
        check = tf.debugging.Assert(tf.reduce_all(upstream < 100), ["large"])
        with tf.control_dependencies([check] if waits == "by the gradient" else []):
            gradient = tape.gradient(pooled, table, upstream)
        with tf.control_dependencies([check] if waits == "by the step" else []):
            tf_ti.scatter_sub(table, gradient, 0.25)

    assert updates_in(step, tf.constant([[1, 2]]), tf.ones([1, 2])) == (
        ["EmbeddingBagScatterSub"],
        False,
    )
    for _ in range(20):
        with pytest.raises(tf.errors.InvalidArgumentError, match="large"):
            step(tf.constant([[1, 2]]), tf.constant([[1.0, 1000.0]]))
    np.testing.assert_array_equal(table, np.ones([4, 2]))
    step(tf.constant([[1, 2]]), tf.ones([1, 2]))
    np.testing.assert_array_equal(table[:, 0], [1, 0.75, 0.75, 1])


@pytest.mark.parametrize(
    "kind", ["plain", *(pytest.param(k, marks=needs_xla) for k in ("host", "hlo"))]
)
@pytest.mark.parametrize("decay", [None, tf.constant(0.0)], ids=["none", "zero"])
def test_an_infinite_scale_has_no_decay_where_there_is_none(decay, kind, monkeypatch):
    table = tf.Variable(tf.ones([4, 2]))
    if kind == "hlo":
        monkeypatch.setenv("TF_TI_XLA_BAGS", "hlo")

    @tf.function(jit_compile=kind != "plain")
    def step():
        with tf.GradientTape() as tape:
            pooled = tf_ti.embedding_bag_packed(table, [[1]])
        gradient = tape.gradient(pooled, table, tf.constant([[2.0, -2.0]]))
        tf_ti.scatter_sub(table, gradient, np.inf, decay)

    assert updates_in(step) == (["EmbeddingBagScatterSub"], False)
    step()
    np.testing.assert_array_equal(table[1], [-np.inf, np.inf])


def test_values_read_before_a_step_are_kept():
    table = tf.Variable(tf.ones([4, 2]))
    before = table.value()
    step_with(lambda t: tf_ti.embedding_bag_packed(t, [[1]]), [table], "descent", tf.ones([1, 2]))()
    np.testing.assert_array_equal(before, np.ones([4, 2]))
    assert table.numpy()[1, 0] == 0.75


# Bad input


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize("outside", [-1, 4, 2**31 - 1])
@each_formula
def test_an_id_outside_writes_nothing(formula, outside):
    variables = variables_for(formula, tf.float32, [4, 3], np.random.default_rng(0))
    before = [v.numpy() for v in variables]
    ids = tf.Variable([[1, 2], [3, 0]])
    step = step_with(
        lambda t: tf_ti.embedding_bag_packed(t, ids.read_value()),
        variables,
        formula,
        tf.ones([2, 3]),
    )
    ids.assign([[1, outside], [3, 0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"indices\[0, 1\] is {outside}, but"):
        step()
    for variable, value in zip(variables, before):
        np.testing.assert_array_equal(variable, value)


def _bag_inputs(grad=None, indices=None, bounds=(), argmax=(), **attributes):
    return {
        "grad": tf.ones([2, 3]) if grad is None else grad,
        "indices": tf.constant([[1, 2], [3, 0]]) if indices is None else indices,
        "bounds": list(bounds),
        "default_index": [],
        "per_sample_weights": [],
        "argmax": list(argmax),
        "scale": 0.5,
        "weight_decay": [],
        "bags": "packed",
        **attributes,
    }


BAD = {
    "grad of another width": (_bag_inputs(tf.ones([2, 4])), "grad"),
    "grad of other bags": (_bag_inputs(tf.ones([3, 3])), "grad has 3 rows, but there are 2 bags"),
    "an id below": (_bag_inputs(indices=tf.constant([[1, 2], [3, -1]])), r"indices\[1, 1\] is -1"),
    "an id beyond": (_bag_inputs(indices=tf.constant([[4, 2], [3, 0]])), r"indices\[0, 0\] is 4"),
    "no argmax": (_bag_inputs(reduction="max"), "argmax"),
    "argmax of a sum": (_bag_inputs(argmax=[tf.zeros([2, 3], tf.int32)]), "argmax"),
    "no bounds": (_bag_inputs(bags="offsets", indices=tf.constant([1])), "bounds"),
}


@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("case", BAD)
def test_the_native_op_refuses(case, is_graph):
    inputs, message = BAD[case]
    table = tf.Variable(tf.ones([4, 3]))

    def call():
        ops.tf_ti_embedding_bag_scatter_sub(table.handle, **inputs)

    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        (tf.function(call, autograph=False) if is_graph else call)()
    np.testing.assert_array_equal(table, np.ones([4, 3]))


def test_the_native_op_refuses_a_variable_given_twice():
    table = tf.Variable(tf.ones([4, 3]))
    inputs = _bag_inputs()
    del inputs["scale"], inputs["weight_decay"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="are the same variable"):
        ops.tf_ti_embedding_bag_adagrad_update(
            table.handle,
            table.handle,
            **inputs,
            learning_rate=0.5,
            epsilon=tf.constant(0.0, tf.float64),
        )


def test_a_variable_of_another_type_is_refused():
    table = tf.Variable(tf.ones([4, 3], tf.float64))
    with pytest.raises(tf.errors.InvalidArgumentError, match="the variable has type double"):
        ops.tf_ti_embedding_bag_scatter_sub(table.handle, **_bag_inputs())
