"""Steps of Adam, Adagrad and decayed descent on rows: by definition in NumPy, torch, TensorFlow."""

import re
import threading

import numpy as np
import pytest
import tensorflow as tf
from patience import HANGS
from tensorflow.python.ops import resource_variable_ops
from updates_definition import PADDED, Definition, pad

import tf_ti
from tf_ti._library import ops
from tf_ti.bags.ops import are_distinct

pytestmark = pytest.mark.quarter

HALVES = [tf.float16, tf.bfloat16]
DTYPES = [tf.float32, tf.float64, *HALVES]
# Of the largest value: a few roundings, of the table for halves.
TOLERANCES = {tf.float32: 3e-6, tf.float64: 1e-13, tf.float16: 2e-3, tf.bfloat16: 1e-2}

InvalidArgument = tf.errors.InvalidArgumentError

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
each_mode = pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "function"])


def slot_type(dtype):
    return tf.float32 if dtype in HALVES else dtype


def slices(values, indices, index_type=np.int64):
    return tf.IndexedSlices(tf.constant(values), tf.constant(np.asarray(indices, index_type)))


class Updated:
    """Variables beside their definition."""

    RULES = {
        "descent": lambda v, s, n: tf_ti.scatter_sub(v[0], s, **n),
        "adagrad": lambda v, s, n: tf_ti.adagrad_update(*v, s, **n),
        "adam": lambda v, s, n: tf_ti.adam_update(*v, s, **n),
    }

    def __init__(self, rule, dtype, shape, rng, row_wise=False):
        self.rule, self.dtype = rule, dtype
        self.slots = {"descent": 0, "adagrad": 1, "adam": 2}[rule]
        table = tf.Variable(tf.cast(rng.normal(size=shape), dtype))
        shapes = [shape] * self.slots
        if row_wise:
            shapes[-1] = [shape[0], 1]
        slots = [
            tf.Variable(
                tf.cast(
                    abs(rng.normal(size=s)) if i + 1 == self.slots else rng.normal(size=s),
                    slot_type(dtype),
                )
            )
            for i, s in enumerate(shapes)
        ]
        self.variables = [table, *slots]
        self.definition = Definition(*(np.asarray(v, np.float64) for v in self.variables))

    def step(self, indices, values, index_type=np.int64, is_graph=False, **numbers):
        given = slices(tf.cast(values, self.dtype), indices, index_type)
        before = [v.numpy() for v in self.variables]

        def call():
            assert self.RULES[self.rule](self.variables, given, numbers) is None

        (tf.function(call) if is_graph else call)()
        values = np.asarray(given.values, np.float64)
        self.definition.step(self.rule, indices, values, **numbers)
        self._check_untouched(before, np.asarray(indices), values)

    def _check_untouched(self, before, indices, values):
        touched = [r for r in np.unique(indices) if values[indices == r].sum(0).any()]
        for old, new in zip(before, self.variables):
            rest = np.delete(np.arange(len(old)), np.asarray(touched, int))
            np.testing.assert_array_equal(old[rest], new.numpy()[rest])

    def check(self):
        tolerance = TOLERANCES[self.dtype]
        expected = [self.definition.table, *self.definition.slots]
        for i, (variable, want) in enumerate(zip(self.variables, expected)):
            atol = tolerance if i == 0 else TOLERANCES[slot_type(self.dtype)]
            atol *= max(1.0, np.abs(want).max(initial=0))
            np.testing.assert_allclose(np.asarray(variable, np.float64), want, rtol=0, atol=atol)


DECAYED = {"scale": 0.1, "weight_decay": 0.05}
ADAGRAD = {"learning_rate": 0.1, "epsilon": 1e-3, "epsilon_inside_sqrt": True}
ADAM = {
    "learning_rate": 0.1,
    "step": 3,
    "beta_1": 0.8,
    "beta_2": 0.95,
    "epsilon": 1e-3,
    "epsilon_hat": True,
    "weight_decay": 0.05,
}
# Every formula: rule, whether the last slot is row-wise, numbers.
FORMULAS = {
    "descent": ("descent", False, DECAYED),
    "adagrad": ("adagrad", False, ADAGRAD),
    "adagrad outside": ("adagrad", False, {**ADAGRAD, "epsilon_inside_sqrt": False}),
    "row-wise adagrad": ("adagrad", True, ADAGRAD),
    "row-wise adagrad outside": ("adagrad", True, {**ADAGRAD, "epsilon_inside_sqrt": False}),
    "adam": ("adam", False, ADAM),
    "adam without decay": ("adam", False, {**ADAM, "weight_decay": 0.0}),
    "adam without hat": ("adam", False, {**ADAM, "epsilon_hat": False}),
    "row-wise adam": ("adam", True, ADAM),
    "row-wise adam without hat": ("adam", True, {**ADAM, "epsilon_hat": False}),
}
each_formula = pytest.mark.parametrize("formula", FORMULAS)


def make(formula, dtype, shape, rng):
    rule, row_wise, numbers = FORMULAS[formula]
    return Updated(rule, dtype, shape, rng, row_wise), numbers


# Values


@each_dtype
@each_formula
def test_every_formula_is_its_definition(formula, dtype):
    rng = np.random.default_rng(1)
    updated, numbers = make(formula, dtype, [40, 21], rng)
    for k, index_type in enumerate([np.int32, np.int64]):
        if "step" in numbers:
            numbers = {**numbers, "step": k + 1}
        indices = rng.integers(0, 40, 60)  # again and again, in any order
        updated.step(indices, rng.normal(size=[60, 21]), index_type, **numbers)
        updated.step(np.unique(indices), rng.normal(size=[len(np.unique(indices)), 21]), **numbers)
    updated.check()


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 33, 64, 130])
@pytest.mark.parametrize("formula", ["descent", "row-wise adagrad", "adam", "row-wise adam"])
def test_every_width_is_updated_to_its_last_element(formula, width):
    rng = np.random.default_rng(width)
    for dtype in (tf.float32, tf.bfloat16, tf.float64):
        updated, numbers = make(formula, dtype, [9, width], rng)
        updated.step([7, 2, 7], rng.normal(size=[3, width]), **numbers)
        updated.step([1, 8], rng.normal(size=[2, width]), **numbers)
        updated.check()


@pytest.mark.parametrize("seed", range(12), indirect=True)
def test_random_calls(rng):
    formula = rng.choice(list(FORMULAS))
    dtype = DTYPES[rng.integers(len(DTYPES))]
    rows, width = int(rng.integers(1, 300)), int(rng.integers(1, 90))
    updated, numbers = make(formula, dtype, [rows, width], rng)
    for step in range(1, 4):
        count = int(rng.integers(0, 2 * rows))
        indices = rng.integers(0, rows, count)
        if rng.integers(2):
            indices = np.unique(indices)
        values = rng.normal(size=[len(indices), width]) * 10.0 ** rng.integers(-2, 3)
        values[rng.random(len(indices)) < 0.2] = 0
        if "step" in numbers:
            numbers = {**numbers, "step": step}
        updated.step(
            indices, values, rng.choice([np.int32, np.int64]), bool(rng.integers(2)), **numbers
        )
    updated.check()


@each_formula
def test_200_steps(formula):
    rng = np.random.default_rng(3)
    updated, numbers = make(formula, tf.float64, [12, 5], rng)
    for step in range(1, 201):
        if "step" in numbers:
            numbers = {**numbers, "step": step}
        indices = rng.integers(0, 12, 6)
        updated.step(indices, rng.normal(size=[6, 5]), **numbers)
    updated.check()


@pytest.mark.pairwise
@each_formula
@pytest.mark.parametrize("kind", PADDED)
@pytest.mark.parametrize("count", [1, 2, 40, 3000])
def test_padded_slices(formula, kind, count):
    rng = np.random.default_rng(7)
    for dtype in (tf.float32, tf.bfloat16):
        updated, numbers = make(formula, dtype, [4000, 40], rng)
        indices = np.sort(rng.choice(4000, count, replace=False))
        updated.step(*pad(kind, indices, rng.normal(size=[count, 40]).astype("f")), **numbers)
        updated.check()


@pytest.mark.pairwise
@each_formula
@pytest.mark.parametrize("kind", ["ascending", "shuffled", "repeated", "one row"])
def test_updates_that_are_large_enough_for_several_threads(formula, kind):
    rng = np.random.default_rng(4)
    for dtype in (tf.float32, tf.float16):
        updated, numbers = make(formula, dtype, [9000, 40], rng)
        indices = {
            "ascending": np.arange(0, 9000, 2),
            "shuffled": rng.permutation(9000)[:6000],
            "repeated": rng.integers(0, 3000, 7000),
            "one row": np.full(3000, 77),
        }[kind]
        values = rng.normal(size=[len(indices), 40]).astype(np.float32)
        if kind == "one row":
            values = np.round(values * 4) / 64  # halves and their sums are exact
        updated.step(indices, values, **numbers)
        updated.check()


@pytest.mark.slow
def test_the_number_of_threads_changes_no_bit(run_program):
    program = """
        import hashlib
        import sys
        import numpy as np
        import tensorflow as tf
        tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
        import tf_ti

        rng = np.random.default_rng(0)
        table, m, v = (tf.Variable(abs(rng.normal(size=[6000, 48])).astype("f")) for _ in range(3))
        row_wise = tf.Variable(tf.ones([6000, 1]))
        for indices in (rng.integers(0, 6000, 9000), np.unique(rng.integers(0, 6000, 9000))):
            values = rng.normal(size=[len(indices), 48]).astype("f")
            slices = tf.IndexedSlices(tf.constant(values), tf.constant(indices))
            tf_ti.scatter_sub(table, slices, 0.1)
            tf_ti.scatter_sub(table, slices, 0.1, 0.01)
            tf_ti.adagrad_update(table, v, slices, 0.1)
            tf_ti.adam_update(table, m, v, slices, 0.1, 2)
            tf_ti.adam_update(table, m, row_wise, slices, 0.1, 2)
        for x in (table, m, v, row_wise):
            print(hashlib.sha256(x.numpy().tobytes()).hexdigest())
    """
    outputs = {run_program(program, threads).stdout for threads in (1, 5)}
    assert len(outputs) == 1


@each_dtype
@each_formula
def test_rows_whose_sum_is_zero_are_left(formula, dtype):
    """Compiled gradients pad with rows of zeros; what cancels out is zero too."""
    rng = np.random.default_rng(5)
    updated, numbers = make(formula, dtype, [6, 10], rng)
    one = rng.integers(1, 9, [10])
    before = [v.numpy() for v in updated.variables]
    updated.step([3, 1, 3], [one, 0 * one, -one], **numbers)
    updated.step([2, 4], [0 * one, -0.0 * one], **numbers)
    updated.step([], np.zeros([0, 10]), **numbers)
    for old, new in zip(before, updated.variables):
        np.testing.assert_array_equal(old, new.numpy())


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@each_formula
def test_variables_of_any_rank(formula, rank):
    rng = np.random.default_rng(rank)
    shape = [7, 3, 2, 5][:rank]
    rule, row_wise, numbers = FORMULAS[formula]
    updated, numbers = make(formula, tf.float64, shape, rng)
    if row_wise and rank != 2:
        flat = Definition(*(np.reshape(v, [7, -1]) for v in updated.variables))
        updated.definition = flat
    indices, values = [5, 0, 5], rng.normal(size=[3, *shape[1:]])
    updated.RULES[rule](updated.variables, slices(values, indices), numbers)
    if row_wise and rank != 2:
        updated.definition.step(rule, indices, values.reshape(3, -1), **numbers)
        got = [np.reshape(v, [7, -1]) for v in updated.variables]
        for mine, want in zip(got, [flat.table, *flat.slots]):
            np.testing.assert_allclose(mine, want, rtol=0, atol=1e-12)
    else:
        updated.definition.step(rule, indices, values, **numbers)
        updated.check()


@each_formula
@pytest.mark.parametrize("shape", [[4, 0], [0, 3]])
def test_rows_of_nothing_and_no_rows(formula, shape):
    rng = np.random.default_rng(0)
    updated, numbers = make(formula, tf.float32, shape, rng)
    indices = [2, 1] if shape[0] else []
    updated.step(indices, np.zeros([len(indices), shape[1]]), **numbers)


def test_what_is_not_finite_stays_in_its_row():
    table, m, v = (tf.Variable(tf.ones([4, 3])) for _ in range(3))
    values = np.array([[1, np.nan, 1], [np.inf, 1, 1]], np.float32)
    tf_ti.adam_update(table, m, v, slices(values, [1, 2]), 0.1, 1)
    assert np.isnan(table[1, 1]) and np.isfinite(table[1, 0]) and np.isnan(m[1, 1])
    assert np.isinf(m[2, 0]) and np.isfinite(table[2, 1])
    np.testing.assert_array_equal(table.numpy()[[0, 3]], np.ones([2, 3]))


def test_an_infinite_weight_is_left_by_no_decay():
    table, a = tf.Variable([[np.inf, 1.0]]), tf.Variable([[1.0, 1.0]])
    tf_ti.adagrad_update(table, a, slices(np.ones([1, 2], np.float32), [0]), 0.1)
    assert np.isinf(table[0, 0])


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
def test_halves_are_computed_in_float32_and_rounded_once(dtype):
    rng = np.random.default_rng(8)
    table = tf.cast(rng.normal(size=[30, 20]), dtype)
    values = tf.cast(rng.normal(size=[50, 20]), dtype)
    indices = rng.integers(0, 30, 50)
    half, wide = tf.Variable(table), tf.Variable(tf.cast(table, tf.float32))
    slots = [tf.Variable(tf.ones([30, 20])) for _ in range(2)]
    tf_ti.adagrad_update(half, slots[0], slices(values, indices), 0.1)
    tf_ti.adagrad_update(wide, slots[1], slices(tf.cast(values, tf.float32), indices), 0.1)
    np.testing.assert_array_equal(half, tf.cast(wide, dtype))
    np.testing.assert_array_equal(*slots)


# Other libraries


@pytest.mark.parametrize("seed", range(3), indirect=True)
def test_adam_is_torchs_sparse_adam(rng):
    torch = pytest.importorskip("torch", reason="torch is not installed: run `make oracles`")
    initial = rng.normal(size=[50, 12])
    theirs = torch.nn.Parameter(torch.tensor(initial))
    optimizer = torch.optim.SparseAdam([theirs], lr=0.05, betas=(0.8, 0.97), eps=1e-4)
    table, m, v = (tf.Variable(x) for x in (initial, 0 * initial, 0 * initial))
    for step in range(1, 20):
        indices, values = rng.integers(0, 50, 30), rng.normal(size=[30, 12])
        theirs.grad = torch.sparse_coo_tensor(indices[None], values, [50, 12])
        optimizer.step()
        tf_ti.adam_update(
            table,
            m,
            v,
            slices(values, indices),
            0.05,
            step,
            beta_1=0.8,
            beta_2=0.97,
            epsilon=1e-4,
        )
    np.testing.assert_allclose(table, theirs.detach().numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(3), indirect=True)
def test_adagrad_is_torchs(rng):
    torch = pytest.importorskip("torch", reason="torch is not installed: run `make oracles`")
    initial = rng.normal(size=[50, 12])
    theirs = torch.nn.Parameter(torch.tensor(initial))
    optimizer = torch.optim.Adagrad(
        [theirs], lr=0.05, eps=1e-4, initial_accumulator_value=0.1, foreach=False
    )
    table, a = tf.Variable(initial), tf.Variable(0 * initial + 0.1)
    for _ in range(20):
        indices, values = rng.integers(0, 50, 30), rng.normal(size=[30, 12])
        theirs.grad = torch.sparse_coo_tensor(indices[None], values, [50, 12])
        optimizer.step()
        tf_ti.adagrad_update(
            table, a, slices(values, indices), 0.05, epsilon=1e-4, epsilon_inside_sqrt=False
        )
    np.testing.assert_allclose(table, theirs.detach().numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(3), indirect=True)
def test_adagrad_is_tensorflows(rng):
    """TensorFlow's op takes rows once each."""
    initial = rng.normal(size=[50, 12])
    table, a = tf.Variable(initial), tf.Variable(0 * initial + 0.1)
    their_table, their_a = tf.Variable(initial), tf.Variable(0 * initial + 0.1)
    for _ in range(20):
        given = slices(rng.normal(size=[30, 12]), rng.permutation(50)[:30])
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=their_table.handle,
            accum=their_a.handle,
            lr=tf.constant(0.05, tf.float64),
            epsilon=tf.constant(1e-4, tf.float64),
            grad=given.values,
            indices=given.indices,
        )
        tf_ti.adagrad_update(table, a, given, 0.05, epsilon=1e-4, epsilon_inside_sqrt=False)
    np.testing.assert_allclose(table, their_table, rtol=0, atol=1e-12)
    np.testing.assert_allclose(a, their_a, rtol=1e-13)


# Where numbers come from


@each_mode
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.bfloat16], ids=lambda d: d.name)
def test_numbers_of_any_kind(dtype, is_graph):
    rng = np.random.default_rng(2)
    initial = tf.cast(rng.normal(size=[5, 3]), dtype)
    given = slices(tf.cast(rng.normal(size=[2, 3]), dtype), [4, 1])
    sums = slot_type(dtype)

    def result(kind):
        table = tf.Variable(initial)
        m, v = (tf.Variable(tf.zeros([5, 3], sums)) for _ in range(2))

        def call():
            tf_ti.adam_update(
                table,
                m,
                v,
                given,
                kind(0.25, sums),
                kind(7, tf.int32),
                beta_1=kind(0.5, tf.float64),
                beta_2=kind(0.75, tf.float64),
                epsilon=kind(0.125, tf.float32),
                weight_decay=kind(0.5, tf.float32),
            )
            tf_ti.adagrad_update(table, v, given, kind(0.25, sums), epsilon=kind(0.125, tf.float64))
            tf_ti.scatter_sub(table, given, kind(0.25, sums), kind(0.125, sums))

        (tf.function(call) if is_graph else call)()
        return table.numpy()

    variables = []

    def variable(x, dtype):
        if not variables or len(variables) < 11 and not tf.inside_function():
            variables.append(tf.Variable(x, dtype=dtype))
            return variables[-1]
        return tf.constant(x, dtype)

    plain = result(lambda x, dtype: x)
    np.testing.assert_array_equal(
        result(lambda x, dtype: np.float64(x) if dtype.is_floating else np.int32(x)), plain
    )
    np.testing.assert_array_equal(result(lambda x, dtype: tf.constant(x, dtype)), plain)
    if not is_graph:
        np.testing.assert_array_equal(result(variable), plain)


@pytest.mark.slow
def test_a_step_is_part_of_a_function_with_control_flow_and_of_a_saved_model(tmp_path):
    class Model(tf.Module):
        def __init__(self):
            self.table = tf.Variable(tf.ones([8, 4]))
            self.m, self.v = tf.Variable(tf.zeros([8, 4])), tf.Variable(tf.zeros([8, 1]))
            self.step = tf.Variable(0, dtype=tf.int64)

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int64)])
        def train(self, ids):
            for _ in tf.range(3):
                self.step.assign_add(1)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf_ti.embedding_bag_packed(self.table, ids) ** 2)
                gradient = tape.gradient(loss, self.table)
                tf_ti.adam_update(self.table, self.m, self.v, gradient, 0.1, self.step)
            return loss

    model, ids = Model(), tf.constant([[1, 2], [2, 5]], tf.int64)
    tf.saved_model.save(model, str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    first, second = model.train(ids), loaded.train(ids)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(model.table, loaded.table)
    assert int(loaded.step) == 3
    definition = Definition(np.ones([8, 4]), np.zeros([8, 4]), np.zeros([8, 1]))
    for step in (1, 2, 3):
        bags = [definition.table[[1, 2]].sum(0), definition.table[[2, 5]].sum(0)]
        gradients = [2 * bags[0], 2 * bags[0], 2 * bags[1], 2 * bags[1]]
        definition.step(
            "adam",
            [1, 2, 2, 5],
            gradients,
            learning_rate=0.1,
            step=step,
            beta_1=0.9,
            beta_2=0.999,
            epsilon=1e-7,
            epsilon_hat=True,
            weight_decay=0,
        )
    np.testing.assert_allclose(model.table, definition.table, rtol=0, atol=1e-5)


def _gradients(table):
    """Gradients of look-ups, and whether each row is known to be there once."""
    ids = tf.constant([[1, 2], [2, 5]], tf.int64)

    def gradient(*look_ups):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(tf_ti.embedding_bag_packed(table, i)) for i in look_ups])
        return tape.gradient(loss, table)

    whole = gradient(ids)
    clipped = tf.clip_by_norm(whole.values, 1.0)
    return [
        (whole, True),
        (tf.IndexedSlices(clipped, whole.indices), True),
        (gradient(ids, ids + 1), False),
        (tf.IndexedSlices(whole.values, tf.identity(whole.indices)), False),
    ]


@each_formula
@each_mode
def test_rows_of_a_gradient_are_known_to_be_distinct(formula, is_graph):
    rule, row_wise, numbers = FORMULAS[formula]
    updated = Updated(rule, tf.float32, [8, 4], np.random.default_rng(0), row_wise)
    found, expected = [], []

    def step():
        for gradient, is_known in _gradients(updated.variables[0]):
            Updated.RULES[rule](updated.variables, gradient, numbers)
            found.append(are_distinct(gradient.indices))
            expected.append(is_known)

    if is_graph:
        graph = tf.function(step).get_concrete_function().graph
        updates = [op for op in graph.get_operations() if "are_distinct" in op.node_def.attr]
        found = [op.get_attr("are_distinct") for op in updates]
    else:
        step()
    assert found == expected == [True, True, False, False]


def test_values_read_before_an_update_are_kept():
    table, a = tf.Variable(tf.ones([3, 2])), tf.Variable(tf.ones([3, 2]))
    before = [table.value(), a.value()]
    tf_ti.adagrad_update(table, a, slices(np.ones([1, 2], np.float32), [1]), 0.5)
    for value in before:
        np.testing.assert_array_equal(value, np.ones([3, 2]))
    assert table.numpy()[1, 0] < 1 and a.numpy()[1, 0] == 2


def test_two_slots_made_of_one_tensor_are_two():
    zeros = tf.zeros([3, 2])
    table, m, v = (tf.Variable(zeros) for _ in range(3))
    tf_ti.adam_update(table, m, v, slices(np.full([1, 2], 3, np.float32), [1]), 0.5, 1)
    np.testing.assert_allclose(m.numpy()[1], [0.3, 0.3], rtol=1e-6)
    np.testing.assert_allclose(v.numpy()[1], [0.009, 0.009], rtol=1e-5)
    np.testing.assert_array_equal(zeros, np.zeros([3, 2]))


# Threads


@pytest.mark.slow
def test_updates_that_take_variables_in_opposite_orders_do_not_wait_for_one_another(run_program):
    run_program(
        """
        import threading
        import tensorflow as tf
        import tf_ti

        a, b = tf.Variable(tf.ones([4, 3])), tf.Variable(tf.ones([4, 3]))
        slices = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([1]))

        def update(*variables):
            for _ in range(1000):
                tf_ti.adagrad_update(*variables, slices, 1e-4)

        threads = [threading.Thread(target=update, args=pair) for pair in ((a, b), (b, a))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert tf.reduce_all(tf.math.is_finite(a[1] + b[1]))
        """
    )


def test_every_update_of_several_threads_counts():
    table, a = tf.Variable(tf.zeros([300, 8])), tf.Variable(tf.zeros([300, 8]))
    everything = slices(np.ones([300, 8], np.float32), np.arange(300)[::-1])

    def update():
        for _ in range(25):
            tf_ti.adagrad_update(table, a, everything, 1.0)

    writers = [threading.Thread(target=update) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(HANGS)
        assert not writer.is_alive()
    np.testing.assert_array_equal(a, np.full([300, 8], 100))


READS = {
    "a look-up": lambda table: tf_ti.embedding_bag_packed(table, np.arange(3000)[:, None]),
    "its value": lambda table: table.read_value(),
    "its value in a function": tf.function(lambda table: tf.unique(tf.reshape(table, [-1])).y),
}


@pytest.mark.parametrize("read", READS)
def test_reads_beside_updates_see_whole_steps(read):
    table, a = tf.Variable(tf.zeros([3000, 16])), tf.Variable(tf.ones([3000, 16]))
    everything = slices(np.ones([3000, 16], np.float32), np.arange(3000))
    done, reads, wrong = threading.Event(), [], []

    def keep_reading():
        while not done.is_set() and not wrong:
            if len(np.unique(READS[read](table))) != 1:
                wrong.append("rows of different steps")
            reads.append(read)

    READS[read](table)  # traced before there is anything to be seen
    reader = threading.Thread(target=keep_reading)
    reader.start()
    updates = 0
    while (updates < 500 or len(reads) < 100) and reader.is_alive():
        tf_ti.adagrad_update(table, a, everything, 0.5)
        updates += 1
    done.set()
    reader.join(HANGS)
    assert not reader.is_alive() and not wrong


# Wrong calls

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
GIVEN = slices(TABLE[:2], [1, 3])


@pytest.fixture
def variables():
    return [tf.Variable(TABLE) for _ in range(3)]


def adam(variables, given=GIVEN, learning_rate=0.1, step=1, **numbers):
    tf_ti.adam_update(*variables, given, learning_rate, step, **numbers)


def adagrad(variables, given=GIVEN, learning_rate=0.1, **numbers):
    tf_ti.adagrad_update(*variables[:2], given, learning_rate, **numbers)


def check_untouched(variables):
    for variable in variables:
        np.testing.assert_array_equal(variable, TABLE)


@pytest.mark.needs_checked_ids
@each_mode
@pytest.mark.parametrize("call", [adam, adagrad])
@pytest.mark.parametrize("outside", [-1, 4, 2**31 - 1])
@pytest.mark.parametrize("count", [3, 5000])
def test_an_index_outside_writes_nothing(variables, call, outside, count, is_graph):
    indices = np.arange(count) % 4
    indices[count - 1] = outside
    given = slices(np.ones([count, 3], np.float32), indices)
    message = f"indices[{count - 1}] is {outside}, but the variable has 4 rows"
    call = tf.function(call) if is_graph else call
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        call(variables, given)
    check_untouched(variables)


@pytest.mark.needs_checked_ids
@each_mode
def test_an_index_outside_where_descent_decays(variables, is_graph):
    def call():
        tf_ti.scatter_sub(variables[0], slices(TABLE[:2], [0, 4]), 0.1, 0.1)

    with pytest.raises(InvalidArgument, match=r"indices\[1\] is 4, but the variable has 4 rows"):
        (tf.function(call) if is_graph else call)()
    check_untouched(variables)


BAD = {
    "a dense gradient": (lambda v: adam(v, tf.ones([4, 3])), TypeError, "slices must be tf.Ind"),
    "m of another shape": (
        lambda v: adam([v[0], tf.Variable(TABLE[:2]), v[2]]),
        ValueError,
        "m must have the variable's shape (4, 3), got (2, 3)",
    ),
    "a row-wise m": (
        lambda v: adam([v[0], tf.Variable(TABLE[:, :1]), v[2]]),
        ValueError,
        "m must have the variable's shape (4, 3), got (4, 1)",
    ),
    "v of another shape": (
        lambda v: adam([v[0], v[1], tf.Variable(TABLE[0])]),
        ValueError,
        "v must have the variable's shape (4, 3), or (4, 1), got (3,)",
    ),
    "an accumulator of too few rows": (
        lambda v: adagrad([v[0], tf.Variable(TABLE[:3, :1])]),
        ValueError,
        "accumulator must have the variable's shape (4, 3), or (4, 1), got (3, 1)",
    ),
    "m of another dtype": (
        lambda v: adam([v[0], tf.Variable(TABLE, dtype=tf.float64), v[2]]),
        TypeError,
        "m must be float32 for a variable of float32, got float64",
    ),
    "slots of halves": (
        lambda v: adagrad(
            [tf.Variable(TABLE, dtype=tf.float16), tf.Variable(TABLE, dtype=tf.float16)],
            slices(tf.cast(TABLE[:1], tf.float16), [0]),
        ),
        TypeError,
        "accumulator must be float32 for a variable of float16, got float16",
    ),
    "a tensor for a slot": (
        lambda v: adam([v[0], v[1].value(), v[2]]), TypeError, "m must be a tf.Variable"),
    "an integer table": (
        lambda v: adagrad([tf.Variable([[1]]), v[1]], slices(np.array([[1]]), [0])),
        TypeError,
        "variable must be float32, float64, float16 or bfloat16, got int32",
    ),
    "one variable twice": (
        lambda v: adam([v[0], v[1], v[1]]), ValueError, "m and v are the same variable"),
    "the table as its slot": (
        lambda v: adagrad([v[0], v[0]]),
        ValueError,
        "variable and accumulator are the same variable",
    ),
    "slices of another dtype": (
        lambda v: adam(v, slices(TABLE[:2].astype(np.float64), [0, 1])),
        TypeError,
        "slices must be float32 like the variable, got float64",
    ),
    "step 0": (lambda v: adam(v, step=0), ValueError, "step must be at least 1, got 0"),
    "a step of a half": (lambda v: adam(v, step=1.5), TypeError, "step must be a whole number"),
    "a vector of steps": (lambda v: adam(v, step=[1]), ValueError, "step must be a scalar"),
    "a rate of another dtype": (
        lambda v: adam(v, learning_rate=tf.constant(0.1, tf.float64)),
        TypeError,
        "learning_rate must be float32, got float64",
    ),
    "a vector of rates": (
        lambda v: adagrad(v, learning_rate=tf.constant([0.1])),
        ValueError,
        "learning_rate must be a scalar, got shape (1,)",
    ),
    "a complex rate": (
        lambda v: adagrad(v, learning_rate=1j), TypeError, "learning_rate must be float32"),
    "beta_1 of 1": (
        lambda v: adam(v, beta_1=1.0),
        ValueError,
        "beta_1 must be at least 0 and below 1, got 1.0",
    ),
    "beta_2 below 0": (lambda v: adam(v, beta_2=-0.1), ValueError, "beta_2 must be at least 0"),
    "a vector of betas": (
        lambda v: adam(v, beta_2=tf.constant([0.1])), ValueError, "beta_2 must be a scalar"),
    "NaN for epsilon": (
        lambda v: adam(v, epsilon=float("nan")),
        ValueError,
        "epsilon must be at least 0 and finite, got nan",
    ),
    "epsilon below 0": (lambda v: adagrad(v, epsilon=-1), ValueError, "epsilon must be at least"),
    "text for epsilon": (
        lambda v: adagrad(v, epsilon="small"), TypeError, "epsilon must be a number, got string"),
    "a negative decay": (
        lambda v: adam(v, weight_decay=-1), ValueError, "weight_decay must be at least 0"),
    "a number for a flag": (
        lambda v: adam(v, epsilon_hat=1), TypeError, "epsilon_hat must be a bool, got 1"),
    "a decay of integers": (
        lambda v: tf_ti.scatter_sub(tf.Variable([[1]]), slices(np.array([[1]], np.int32), [0]),
                                    1, 0.5),
        TypeError,
        "weight_decay needs a variable of floats, got int32",
    ),
    "a vector of decays": (
        lambda v: tf_ti.scatter_sub(v[0], GIVEN, 0.1, tf.constant([0.1])),
        ValueError,
        "weight_decay must be a scalar",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_call_says_what_is_wrong(variables, case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=re.escape(message)):
        call(variables)
    check_untouched(variables)


RUN = {
    "step 0": ({"step": tf.constant(0)}, "step must be at least 1, got 0"),
    "beta_1 of 1": (
        {"beta_1": tf.constant(1.0)},
        "beta_1 must be at least 0 and below 1, got 1",
    ),
    "beta_2 below 0": ({"beta_2": tf.constant(-1.0)}, "beta_2 must be at least 0"),
    "epsilon below 0": ({"epsilon": tf.constant(-1.0)}, "epsilon must be at least 0"),
    "an infinite decay": (
        {"weight_decay": tf.constant(np.inf)},
        "weight_decay must be at least 0 and finite, got inf",
    ),
}


@each_mode
@pytest.mark.parametrize(
    "case", [pytest.param("step 0", marks=pytest.mark.needs_checked_ids), *list(RUN)[1:]]
)
def test_what_only_the_run_shows(variables, case, is_graph):
    numbers, message = RUN[case]

    def call(**numbers):
        adam(variables, **numbers)

    with pytest.raises(InvalidArgument, match=re.escape(message)):
        (tf.function(call) if is_graph else call)(**numbers)
    check_untouched(variables)


def test_slots_whose_shape_only_the_run_knows(variables):
    for rows in ([5, 3], [4, 2], [5, 1]):
        slot = tf.Variable(tf.zeros(rows), shape=tf.TensorShape(None))
        with pytest.raises(InvalidArgument, match=r"v must have the variable's shape \[4,3\], or"):
            adam([*variables[:2], slot])
    check_untouched(variables)
    slot = tf.Variable(tf.zeros([4, 1]), shape=tf.TensorShape(None))
    adam([*variables[:2], slot])
    assert slot.numpy()[1, 0] > 0


@each_mode
def test_a_variable_that_is_not_initialized(variables, is_graph):
    empty = resource_variable_ops.UninitializedVariable(shape=[4, 3], dtype=tf.float32)
    call = tf.function(adam) if is_graph else adam
    with pytest.raises(tf.errors.FailedPreconditionError, match="v is not initialized"):
        call([variables[0], variables[1], empty])
    check_untouched(variables)


RAW = {
    "a handle of the table for m and v": lambda v: (v[0], v[0], v[2]),
    "m and v one": lambda v: (v[0], v[1], v[1]),
}


@each_mode
@pytest.mark.parametrize("case", RAW)
def test_the_native_op_refuses_a_variable_given_twice(variables, case, is_graph):
    handles = [v.handle for v in RAW[case](variables)]
    double = [tf.constant(x, tf.float64) for x in (0.9, 0.99, 0.1, 0.0)]

    def call():
        ops.tf_ti_adam_update(
            *handles, GIVEN.indices, GIVEN.values, 0.1, tf.constant(1, tf.int64), *double
        )

    with pytest.raises(InvalidArgument, match="are the same variable"):
        (tf.function(call) if is_graph else call)()
    check_untouched(variables)
