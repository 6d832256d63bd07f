"""Bags and sparse updates in the bodies of `tf_ti.scan` and `tf_ti.tensor_iterator`."""

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

F64 = tf.float64
ROWS, WIDTH, STEPS, IDS = 7, 3, 5, 4

TABLE = np.random.default_rng(0).standard_normal([ROWS, WIDTH])
WEIGHTS = np.random.default_rng(1).uniform(0.5, 2.0, [STEPS, 2, IDS])
# Some rows in many steps, one more than once in a bag, row 6 in none.
INDICES = np.random.default_rng(2).integers(0, ROWS - 1, [STEPS, 2, IDS])

each_kind = pytest.mark.parametrize("kind", ["variable", "tensor"])
each_mode = pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "function"])
each_case = pytest.mark.parametrize(
    ("combiner", "weighted"),
    [("sum", False), ("sum", True), ("mean", True), ("sqrtn", True), ("max", False)],
)


def held(kind):
    return tf.Variable(TABLE) if kind == "variable" else tf.constant(TABLE)


def unrolled(f, init, xs):
    """The definition of a scan whose elements and results are single tensors."""
    carry, results = init, []
    for x in zip(*map(tf.unstack, xs)):
        carry, y = f(carry, x)
        results.append(y)
    return carry, tf.stack(results)


def derivatives(loop, table, *others):
    """The loop's results, and the gradients of something that depends on all of them."""
    with tf.GradientTape() as tape:
        tape.watch([x for x in (table, *others) if isinstance(x, tf.Tensor)])
        last, results = loop()
        loss = tf.reduce_sum(last**2) + tf.reduce_sum(results * tf.cos(results))
    return last, results, tape.gradient(loss, [table, *others])


def check(scanned, expected, table, *others, is_graph=False):
    def run():
        last, results, gradients = derivatives(scanned, table, *others)
        return last, results, [tf.convert_to_tensor(gradient) for gradient in gradients]

    actual = (tf.function(run) if is_graph else run)()
    last, results, gradients = derivatives(expected, table, *others)
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    for x, y in zip(tf.nest.flatten(actual), tf.nest.flatten([last, results, gradients])):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-11)
    of_rows = np.any(gradients[0].numpy(), 1)
    assert np.count_nonzero(of_rows) >= ROWS - 2 and not of_rows[-1]


# Scans


@each_kind
@each_case
@pytest.mark.parametrize(
    ("is_graph", "checkpoint_every"),
    [(False, None), (True, 2)],
    ids=["eager", "function with checkpoints"],
)
def test_a_scan_over_bags(kind, is_graph, combiner, weighted, checkpoint_every):
    table, weights = held(kind), tf.constant(WEIGHTS)
    xs = (tf.constant(INDICES), weights)
    init = tf.constant(TABLE[:2])

    def f(carry, x):
        ids, given = x
        y = tf_ti.embedding_bag(table, ids, given if weighted else None, combiner)
        return 0.5 * tf.sin(carry) + y, carry * y

    check(
        lambda: tf_ti.scan(f, init, xs, checkpoint_every=checkpoint_every),
        lambda: unrolled(f, init, xs),
        table,
        *([weights] if weighted else []),
        is_graph=is_graph,
    )


CALLS = {
    "offsets": lambda table, ids, weights: tf_ti.embedding_bag_offsets_sum(
        table, tf.reshape(ids, [-1]), [0, 3], None, tf.reshape(weights, [-1])
    ),
    "packed with a default": lambda table, ids, weights: tf_ti.embedding_bag_packed(
        table, ids, weights, default_index=1, padding_idx=2
    ),
    "segments": lambda table, ids, weights: tf_ti.embedding_segments_sum(
        table, tf.reshape(ids, [-1]), [0] * 5 + [1] * 3, 2, None, tf.reshape(weights, [-1])
    ),
    "ragged": lambda table, ids, weights: tf_ti.embedding_bag(
        table,
        tf.RaggedTensor.from_row_lengths(tf.reshape(ids, [-1]), [2, 6]),
        tf.RaggedTensor.from_row_lengths(tf.reshape(weights, [-1]), [2, 6]),
        "mean",
    ),
    "max_norm": lambda table, ids, weights: tf_ti.embedding_bag(table, ids, weights, max_norm=1.0),
}


@each_kind
@pytest.mark.parametrize("call", CALLS)
def test_a_scan_over_bags_given_in_another_way(kind, call):
    table, weights = held(kind), tf.constant(WEIGHTS)
    xs, init = (tf.constant(INDICES), weights), tf.constant(TABLE[:2])

    def f(carry, x):
        y = CALLS[call](table, *x)
        return carry * 0.5 + y, carry * y

    loops = (lambda: tf_ti.scan(f, init, xs)), (lambda: unrolled(f, init, xs))
    check(*loops, table, weights, is_graph=True)


@each_kind
def test_ids_that_depend_on_the_carry(kind):
    table, start = held(kind), tf.constant(TABLE[:2] * 0.1)

    def f(carry, x):
        ids, weights = x
        moved = tf.cast(tf.reduce_sum(carry) > 0, ids.dtype)
        y = tf_ti.embedding_bag(table, (ids + moved) % (ROWS - 1), weights)
        return tf.sin(carry + y), y

    xs = (tf.constant(INDICES), tf.constant(WEIGHTS))
    check(lambda: tf_ti.scan(f, start, xs), lambda: unrolled(f, start, xs), table, xs[1], start)


@each_kind
@each_mode
def test_a_scan_of_scans(kind, is_graph):
    table, weights = held(kind), tf.constant(WEIGHTS)
    xs, init = (tf.constant(INDICES), weights), tf.constant(TABLE[0])

    def inner(carry, x):
        ids, given = x
        y = tf_ti.embedding_bag(table, ids, given)
        return 0.5 * carry + y, carry * y

    def nested(loop):
        def f(carry, x):
            last, results = loop(inner, carry, x)
            return tf.sin(last), results * 0.5 + tf_ti.embedding_bag(table, x[0], combiner="max")

        return lambda: loop(f, init, xs)

    check(nested(tf_ti.scan), nested(unrolled), table, weights, is_graph=is_graph)


@pytest.mark.parametrize("checkpoint_every", [None, 3])
def test_a_reversed_scan_over_bags(checkpoint_every):
    table = held("variable")
    xs, init = (tf.constant(INDICES), tf.constant(WEIGHTS)), tf.constant(TABLE[:2])

    def f(carry, x):
        y = tf_ti.embedding_bag(table, *x)
        return 0.5 * carry + y, carry * y

    def expected():
        last, results = unrolled(f, init, [tf.reverse(x, [0]) for x in xs])
        return last, tf.reverse(results, [0])

    check(
        lambda: tf_ti.scan(f, init, xs, reverse=True, checkpoint_every=checkpoint_every),
        expected,
        table,
        xs[1],
    )


@each_kind
def test_second_derivatives_through_a_scan_over_bags(kind):
    table, weights = held(kind), tf.constant(WEIGHTS)
    xs, init = (tf.constant(INDICES), weights), tf.constant(TABLE[:2])

    def f(carry, x):
        y = tf_ti.embedding_bag(table, *x)
        return 0.5 * tf.sin(carry) + y, carry * y

    def second(loop):
        with tf.GradientTape() as outer:
            outer.watch([table] if kind == "tensor" else [])
            outer.watch(weights)
            with tf.GradientTape() as inner:
                inner.watch(weights)
                last, results = loop()
                loss = tf.reduce_sum(last**2) + tf.reduce_sum(results**2)
            first = inner.gradient(loss, weights)
            square = tf.reduce_sum(first**2)
        return [tf.convert_to_tensor(g) for g in outer.gradient(square, [table, weights])]

    actual = second(lambda: tf_ti.scan(f, init, xs))
    expected = second(lambda: unrolled(f, init, xs))
    for x, y in zip(actual, expected):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10)


def test_no_iterations_leave_the_gradient_zero():
    table = held("variable")

    def f(carry, x):
        y = tf_ti.embedding_bag(table, x)
        return carry + y, y

    with tf.GradientTape() as tape:
        last, results = tf_ti.scan(f, tf.ones([2, WIDTH], F64), tf.constant(INDICES[:0]))
        loss = tf.reduce_sum(last) + tf.reduce_sum(results)
    assert results.shape == [0, 2, WIDTH]
    gradient = tape.gradient(loss, table)
    assert gradient is None or not np.any(tf.convert_to_tensor(gradient))


@pytest.mark.needs_checked_ids
def test_an_id_outside_of_the_table_in_one_iteration_is_named():
    table = held("variable")
    indices = INDICES.copy()
    indices[3, 1, 2] = ROWS
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"is {ROWS}, but emb_table has"):
        tf_ti.scan(
            lambda c, x: (c, tf_ti.embedding_bag(table, x)), tf.constant(0), tf.constant(indices)
        )


# Tensor iterators


@each_case
@pytest.mark.parametrize(("kind", "checkpoint_every"), [("variable", None), ("tensor", 2)])
def test_a_tensor_iterator_over_bags(unrolled, kind, combiner, weighted, checkpoint_every):
    """Two steps' ids at a time, from the last to the first, and a state."""
    table = held(kind)
    indices = tf.constant(np.concatenate([INDICES, INDICES[:1]]))
    weights = tf.constant(np.concatenate([WEIGHTS, WEIGHTS[:1]]))
    state = tf.constant(TABLE[:2])

    def body(ids, given, state):
        y = tf_ti.embedding_bag(table, ids, given if weighted else None, combiner)
        following = 0.5 * state + tf.reduce_sum(y, 0)
        return following, y * state

    backwards = {"axis": 0, "start": -1, "end": 0, "stride": -2, "part_size": 2}
    loop = [
        body,
        [indices, weights, state],
        tf_ti.PortMap(
            inputs=[
                tf_ti.InputPort(0, 0, **backwards),
                tf_ti.InputPort(1, 1, **backwards),
                tf_ti.InputPort(2, 2),
            ],
            outputs=[tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 1, **backwards)],
        ),
        [tf_ti.BackEdge(from_layer=0, to_layer=2)],
    ]
    check(
        lambda: tf_ti.tensor_iterator(*loop, checkpoint_every=checkpoint_every),
        lambda: unrolled(*loop),
        table,
        state,
        *([weights] if weighted else []),
    )


# Training


def test_training_on_a_loops_gradient_is_training_on_the_unrolled_loops():
    xs, init = (tf.constant(INDICES), tf.constant(WEIGHTS)), tf.constant(TABLE[:2])

    def train(loop):
        table = held("variable")

        def f(carry, x):
            y = tf_ti.embedding_bag(table, *x)
            return 0.5 * carry + y, carry * y

        @tf.function
        def step():
            gradient = derivatives(lambda: loop(f, init, xs), table)[2][0]
            if isinstance(gradient, tf.IndexedSlices):
                tf_ti.scatter_sub(table, gradient, 1e-5)
            else:
                table.assign_sub(1e-5 * gradient)

        for _ in range(3):
            step()
        return table.numpy()

    trained = train(tf_ti.scan)
    np.testing.assert_allclose(trained, train(unrolled), rtol=1e-9)
    assert np.max(np.abs(trained)) < 1e3  # steps that diverged would enlarge every rounding
    assert np.all((trained != TABLE)[:-1])


# Sparse updates in a body


def one_row(value, row):
    return tf.IndexedSlices(tf.reshape(value, [1, 1]), tf.reshape(row, [1]))


@each_mode
@pytest.mark.parametrize("kind", ["scan", "tensor_iterator"])
def test_updates_in_a_body_happen_once_an_iteration_and_in_order(kind, is_graph):
    variable = tf.Variable(tf.ones([3, 1], F64))
    rows, factors = tf.constant([0, 2, 0, 0, 2]), tf.constant([3.0, 5.0, -2.0, 0.5, 7.0], F64)

    def f(row, factor):
        # The rows read depend on all updates before, and the update on these rows.
        before = tf_ti.embedding_bag(variable, tf.reshape(row, [1, 1]))
        tf_ti.scatter_sub(variable, one_row(before * factor, row), -1.0)
        after = tf_ti.embedding_bag(variable, tf.reshape(row, [1, 1]))
        return tf.concat([before, after], 1)

    def scan():
        return tf_ti.scan(lambda c, x: (c, f(*x)), 0, (rows, factors))[1][:, 0]

    def tensor_iterator():
        ports = tf_ti.PortMap(
            inputs=[tf_ti.InputPort(0, 0, axis=0), tf_ti.InputPort(1, 1, axis=0)],
            outputs=[tf_ti.OutputPort(0, 0, axis=0)],
        )
        return tf_ti.tensor_iterator(f, [rows, factors], ports)[0]

    run = {"scan": scan, "tensor_iterator": tensor_iterator}[kind]
    run = tf.function(run) if is_graph else run
    values = np.ones(3)
    for _ in range(2):
        expected = []
        for row, factor in zip(rows.numpy(), factors.numpy()):
            expected.append([values[row], values[row] + values[row] * factor])
            values[row] = expected[-1][1]
        np.testing.assert_array_equal(run(), expected)
        np.testing.assert_array_equal(variable[:, 0], values)


@each_mode
@pytest.mark.parametrize("checkpoint_every", [None, 2])
def test_a_gradient_does_not_repeat_the_updates(is_graph, checkpoint_every):
    """Nor does it take another value of the variable than the loop did in that iteration."""
    variable = tf.Variable(tf.ones([2, 1], F64))
    x = tf.constant([2.0, 3.0, 5.0, 7.0], F64)

    def f(carry, element):
        y = tf_ti.embedding_bag(variable, [[0]])[0, 0]
        tf_ti.scatter_sub(variable, one_row(tf.constant(-1.0, F64), 0), 1)
        return carry + y * element * element, y  # exact, as a GPU's power is not

    def run():
        with tf.GradientTape() as tape:
            tape.watch(x)
            last, seen = tf_ti.scan(f, tf.constant(0.0, F64), x, checkpoint_every=checkpoint_every)
        return last, seen, tape.gradient(last, x)

    last, seen, gradient = (tf.function(run) if is_graph else run)()
    assert seen.numpy().tolist() == [1, 2, 3, 4]
    assert last.numpy() == 4 + 2 * 9 + 3 * 25 + 4 * 49
    assert gradient.numpy().tolist() == [4, 12, 30, 56]
    assert variable.numpy()[:, 0].tolist() == [5, 1]


@pytest.mark.needs_checked_ids
@each_mode
def test_an_update_that_is_refused_ends_the_loop_after_those_before(is_graph):
    variable = tf.Variable(tf.zeros([3, 1], F64))

    def f(carry, row):
        tf_ti.scatter_sub(variable, one_row(tf.constant(1.0, F64), row), 1)
        return carry, row

    def run():
        return tf_ti.scan(f, 0, tf.constant([1, 2, 1, 3, 1]))[1]

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[0\] is 3"):
        (tf.function(run) if is_graph else run)()
    assert variable.numpy()[:, 0].tolist() == [0, -2, -1]


@each_mode
def test_steps_of_gradient_descent_inside_a_scan(is_graph):
    """A whole training loop as one scan."""
    variable = tf.Variable(TABLE)

    def f(carry, ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_ti.embedding_bag(variable, ids) ** 2)
        tf_ti.scatter_sub(variable, tape.gradient(loss, variable), 0.01)
        return carry, loss

    def run():
        return tf_ti.scan(f, 0, tf.constant(INDICES))[1]

    losses = (tf.function(run) if is_graph else run)()
    table, expected = TABLE.copy(), []
    for ids in INDICES:
        sums = table[ids].sum(1)
        expected.append(np.sum(sums**2))
        np.subtract.at(table, ids, 0.01 * 2 * sums[:, np.newaxis])
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    np.testing.assert_allclose(variable, table, rtol=1e-12)
