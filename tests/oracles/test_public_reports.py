"""Kinds of fault that were reported of other libraries' loops, recurrent layers and embeddings.

Each is a test over random cases beside an oracle of its own: torch, Keras, or NumPy by definition.
A docstring names one thread of its kind.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import Loop, LoopOutput, TripLimit, _library

torch = pytest.importorskip("torch", reason="torch is not installed: `make oracles` does it")

COMPILES = pytest.mark.skipif(_library.XLA_PROBLEM is not None, reason=str(_library.XLA_PROBLEM))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)  # which has nothing to wait for on a busy machine


def cases(eager=1, function=2, compiled=1):
    """So many seeds in each of the modes."""
    modes = ["eager"] * eager + ["function"] * function + ["compiled"] * compiled
    chosen = [
        pytest.param(seed, mode, marks=[COMPILES] if mode == "compiled" else [])
        for seed, mode in enumerate(modes)
    ]
    return pytest.mark.parametrize(("seed", "mode"), chosen, indirect=["seed"])


def wrapped(f, mode):
    return f if mode == "eager" else tf.function(f, jit_compile=mode == "compiled")


def ours(f, arguments, mode="eager"):
    """The results of f, and the gradients of the sum of their sines by all arguments."""

    def run(*arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            results = f(*arguments)
            loss = tf.add_n([tf.reduce_sum(tf.sin(r)) for r in results if r.dtype.is_floating])
        return results, tape.gradient(loss, arguments, unconnected_gradients="zero")

    return wrapped(run, mode)(*map(tf.constant, arguments))


def torchs(f, arguments):
    """The same by torch."""
    arguments = [torch.tensor(a, requires_grad=True) for a in arguments]
    results = f(*arguments)
    loss = sum(torch.sin(r).sum() for r in results if r.is_floating_point())
    gradients = torch.autograd.grad(loss, arguments, allow_unused=True, materialize_grads=True)
    return [r.detach() for r in results], gradients


def check(actual, expected, tolerance=1e-9):
    for a, e in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        a, e = np.asarray(a), np.asarray(e)
        assert a.shape == e.shape
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


# --- Loops ----------------------------------------------------------------------------------------


@cases(eager=3, function=3)
def test_steps_that_are_not_there_leave_no_trace_in_gradients(rng, seed, mode):
    """tensorflow/tensorflow#6209: NaN marks the steps that a body passes over."""
    x, h = rng.standard_normal([6, 3, 2]), rng.standard_normal([3, 4])
    w, r = rng.standard_normal([2, 4]), rng.standard_normal([4, 4])
    is_there = rng.random([6, 3]) < 0.6
    is_there[:, 0] = False
    x[~is_there] = [np.nan, np.inf, 1e300][seed % 3]
    reverse, fuse, every = rng.random() < 0.5, rng.random() < 0.5, [None, 2][rng.integers(2)]
    print(is_there, reverse, fuse, every)

    def scanned(x, h, w, r):
        def step(h, x):
            ok = tf.reduce_all(tf.abs(x) < 1e9, axis=1, keepdims=True)
            x = tf.where(ok, x, 0)
            h = tf.where(ok, tf.tanh(x @ w + h @ r), h)
            return h, h

        options = {"reverse": reverse, "fuse": fuse, "checkpoint_every": every}
        return tf_ti.scan(step, h, x, **options)

    def alone(x, h, w, r):
        """Each row on its own, over the steps that it has."""
        rows = []
        for i in range(3):
            state, states = h[i], [None] * 6
            for t in range(6)[:: -1 if reverse else 1]:
                if is_there[t, i]:
                    state = torch.tanh(x[t, i] @ w + state @ r)
                states[t] = state
            rows.append((state, torch.stack(states)))
        return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows], 1)

    arguments = x, h, w, r
    check(ours(scanned, arguments, mode), torchs(alone, arguments))


@pytest.mark.parametrize("limit", [0.0, 9.0, np.inf], ids=["at once", "amid", "never"])
@cases()
def test_a_carry_that_is_held_once_it_is_done_passes_gradients_on(rng, seed, limit, mode):
    """jax-ml/jax#5900: a while loop made of a scan and a cond; the gradient was 324, not 108."""
    x, w = 0.5 * rng.random(4), rng.standard_normal([4, 4])  # a sum grows by 2 to 6 in a step
    every, hold = [None, 1, 3][rng.integers(3)], ["where", "cond"][seed % 2]
    print(x, w, every, hold)

    def scanned(x, w):
        def step(carry, _):
            x, is_done, steps = carry
            is_done = is_done | (tf.reduce_sum(x) >= limit)

            def go_on():
                return x + 1 + 0.5 * tf.tanh(tf.linalg.matvec(w, x)), steps + 1

            if hold == "cond":
                x, steps = tf.cond(is_done, lambda: (x, steps), go_on)
            else:
                x, steps = (tf.where(is_done, a, b) for a, b in zip((x, steps), go_on()))
            return (x, is_done, steps), x

        (x, _, steps), xs = tf_ti.scan(step, (x, False, 0), length=7, checkpoint_every=every)
        return x, xs, steps

    def looped(x, w):
        xs, steps = [], 0
        for _ in range(7):
            if x.sum() < limit:
                x, steps = x + 1 + 0.5 * torch.tanh(w @ x), steps + 1
            xs.append(x)
        return x, torch.stack(xs), torch.tensor(steps)

    expected = torchs(looped, (x, w))
    assert (0 < expected[0][2] < 7) == (limit == 9)
    check(ours(scanned, (x, w), mode), expected)


@pytest.mark.parametrize("most", [0, 3, 60])
@cases(function=1)
def test_a_loop_that_ends_by_its_count_or_at_convergence_has_gradients(rng, most, mode):
    """tensorflow/tensorflow#16504: with both in the condition, gradients were lost."""
    a = np.eye(3) + 0.2 * rng.standard_normal([3, 3])
    b, x = rng.standard_normal(3), rng.standard_normal(3)
    rate = np.float64(0.4)

    def loop_of_ours(a, b, x, rate):
        with Loop() as loop:
            x, change = loop.add_recurrence(x), loop.add_recurrence(np.float64(np.inf))
            steps = loop.add_recurrence(0)
            loop.add_trip_limit(most, TripLimit.COUNT)
            loop.add_trip_limit(change.tensor > 1e-3, TripLimit.WHILE)
            delta = rate * (b - tf.linalg.matvec(a, x.tensor) - 0.3 * tf.sin(x.tensor))
            x.next = x.tensor + delta
            change.next = tf.reduce_max(tf.abs(delta))
            steps.next = steps.tensor + 1
            last = [loop.add_loop_output(r, LoopOutput.LAST_VALUE) for r in (x, change, steps)]
        x, change, steps = (output.tensor for output in last)
        return x, tf.where(steps > 0, change, 0), steps

    def loop_of_torch(a, b, x, rate):
        change, steps = torch.tensor(np.inf), 0
        while steps < most and change > 1e-3:
            delta = rate * (b - a @ x - 0.3 * torch.sin(x))
            x, change, steps = x + delta, delta.abs().max(), steps + 1
        return x, change if steps else 0 * x[0], torch.tensor(steps)

    arguments = a, b, x, rate
    expected = torchs(loop_of_torch, arguments)
    steps = int(expected[0][2])
    assert steps == most if most < 60 else 3 < steps < 60
    check(ours(loop_of_ours, arguments, mode), expected)


@cases(compiled=0)
def test_lanes_of_a_map_end_each_in_its_time_and_so_do_their_gradients(rng, mode):
    """tensorflow/tensorflow#46559: vectorized_map of a while loop.

    Beyond its end a lane's value is NaN, which neither value nor gradient may see.
    """
    x, step = 1 + 3 * rng.random(5), 0.3 + rng.random(5)
    x[0], factor = 0.5, np.float64(1.1)  # no iteration
    print(x, step)

    def lane_of_ours(x, step, factor):
        with Loop() as loop:
            value, steps = loop.add_recurrence(x), loop.add_recurrence(0)
            loop.add_trip_limit(20, TripLimit.COUNT)
            loop.add_trip_limit(value.tensor > 1, TripLimit.WHILE)
            value.next = factor * value.tensor - step * (1 + tf.sqrt(value.tensor - 1))
            steps.next = steps.tensor + 1
            last = [loop.add_loop_output(r, LoopOutput.LAST_VALUE) for r in (value, steps)]
        return last[0].tensor, last[1].tensor

    def mapped(x, step, factor):
        return tf.vectorized_map(lambda given: lane_of_ours(*given, factor), (x, step))

    def looped(x, step, factor):
        values, counts = [], []
        for value, s in zip(x, step):
            counts.append(0)
            while counts[-1] < 20 and value > 1:
                value = factor * value - s * (1 + torch.sqrt(value - 1))
                counts[-1] += 1
            values.append(value)
        return torch.stack(values), torch.tensor(counts)

    arguments = x, step, factor
    check(ours(mapped, arguments, mode), torchs(looped, arguments))


@pytest.mark.parametrize("model", ["plain", "with a scan"])
@cases(function=1)
def test_a_gradient_taken_in_a_body_is_differentiated_too(rng, model, mode):
    """tensorflow/tensorflow#14101: gradients inside of a while loop, here of descent itself."""
    w, rate = 0.5 * rng.standard_normal([3, 3]), np.float64(0.2)
    x, y = rng.standard_normal([4, 2, 3]), rng.standard_normal([4, 2, 3])
    every = [None, 2][rng.integers(2)]

    def predicted(w, x):
        if model == "plain":
            return tf.tanh(x @ w)
        return tf_ti.scan(lambda h, _: (tf.tanh(x + h @ w), None), x, length=3)[0]

    def descent(w, rate, x, y):
        def step(w, example):
            with tf.GradientTape() as tape:
                tape.watch(w)
                loss = tf.reduce_mean((predicted(w, example[0]) - example[1]) ** 2)
            return w - rate * tape.gradient(loss, w), loss

        return tf_ti.scan(step, w, (x, y), checkpoint_every=every)

    def descent_of_torch(w, rate, x, y):
        losses = []
        for inputs, targets in zip(x, y):
            h = torch.tanh(inputs @ w) if model == "plain" else inputs
            for _ in range(0 if model == "plain" else 3):
                h = torch.tanh(inputs + h @ w)
            losses.append(((h - targets) ** 2).mean())
            w = w - rate * torch.autograd.grad(losses[-1], w, create_graph=True)[0]
        return w, torch.stack(losses)

    arguments = w, rate, x, y
    check(ours(descent, arguments, mode), torchs(descent_of_torch, arguments))


def random_program(rng, depth=0):
    """Statements on two variables, in some order: reads, assignments, a branch, a loop of such."""
    kinds = ["read"] * 3 + ["assign", "add", "copy", "branch"] + ["loop"] * (depth == 0)
    program = []
    for kind in rng.permutation(kinds):
        inner = random_program(rng, depth + 1) if kind == "loop" else None
        program.append((str(kind), int(rng.integers(2)), int(rng.integers(2, 6)), inner))
    return [*program, ("read", 0, 0, None), ("read", 1, 0, None)]


@pytest.mark.parametrize("kind", ["scan", "Loop"])
@cases()
def test_reads_and_assignments_in_a_body_happen_in_the_order_of_the_program(rng, kind, mode):
    """tensorflow/tensorflow#20639: assignments in a while loop, read too early or too late."""
    program = random_program(rng)
    print(program)

    def scan(body, count):
        if kind == "scan":
            return tf_ti.scan(lambda c, k: (c, body(k)), 0, tf.range(count, dtype=tf.int64))[1]
        with Loop() as loop:
            loop.add_trip_limit(count, TripLimit.COUNT)
            results = body(loop.add_iterator(tf.range(count, dtype=tf.int64)).tensor)
            outputs = [
                loop.add_loop_output(r, LoopOutput.CONCATENATE, length=count) for r in results
            ]
        return [output.tensor for output in outputs]

    def statement(variables, operation, which, number, inner, k):
        """Reads the variable."""
        v, other = variables[which], variables[1 - which]
        if operation == "assign":
            v.assign(number * v - k)
        elif operation == "add":
            v.assign_add(number + k)
        elif operation == "copy":
            v.assign(other)
        elif operation == "branch":
            tf.cond(v % 2 == 0, lambda: v.assign_add(number), lambda: v.assign(v - other))
        elif operation == "loop":
            return scan(lambda j: run(variables, inner, k + j), number)
        else:
            return [number + 10 * v]
        return []

    def run(variables, program, k):
        return [r for s in program for r in statement(variables, *s, k)]

    def by_hand(numbers, program, k):
        reads = []
        for operation, which, number, inner in program:
            v, other = numbers[which], numbers[1 - which]
            if operation == "assign":
                numbers[which] = number * v - k
            elif operation == "add":
                numbers[which] = v + number + k
            elif operation == "copy":
                numbers[which] = other
            elif operation == "branch":
                numbers[which] = v + number if v % 2 == 0 else v - other
            elif operation == "loop":
                rounds = [by_hand(numbers, inner, k + j) for j in range(number)]
                reads += [np.stack(values) for values in zip(*rounds)]
            else:
                reads.append(number + 10 * v)
        return reads

    variables = [tf.Variable(v, dtype=tf.int64) for v in (3, 4)]
    results = wrapped(lambda: scan(lambda k: run(variables, program, k), 4), mode)()
    numbers = [np.int64(3), np.int64(4)]
    with np.errstate(over="ignore"):
        rounds = [by_hand(numbers, program, np.int64(k)) for k in range(4)]
    for actual, expected in zip(results, zip(*rounds), strict=True):
        np.testing.assert_array_equal(actual, np.stack(expected))
    assert [v.numpy() for v in variables] == numbers


@cases()
def test_minus_infinity_in_a_carry_makes_no_nan_of_gradients(rng, mode):
    """pytorch/pytorch#31829: CTC's sums in logarithms; what cannot be is -inf."""
    time, batch, classes, longest = 9, 4, 4, 3
    logits = rng.standard_normal([time, batch, classes])
    labels = rng.integers(1, classes, [batch, longest])
    labels[0] = labels[0, 0]  # repeated, so blanks must come between
    label_lengths = np.array([longest, longest, 1, 0])
    lengths = np.array([time, *rng.integers(2 * longest, time, batch - 1)])
    every, fuse = [None, 3][rng.integers(2)], bool(rng.integers(2))
    print(labels, label_lengths, lengths, every, fuse)
    symbols = np.zeros([batch, 2 * longest + 1], np.int64)
    symbols[:, 1::2] = labels
    may_skip = np.zeros(symbols.shape, bool)
    may_skip[:, 2:] = (symbols[:, 2:] != 0) & (symbols[:, 2:] != symbols[:, :-2])
    places, end = np.arange(2 * longest + 1), 2 * label_lengths[:, None]
    is_last = (places == end) | (places == end - 1)

    def sum_of(terms):
        """The logarithm of a sum; nothing differentiates a difference of infinities."""
        most = tf.reduce_max(terms, axis=0)
        most = tf.stop_gradient(tf.where(most > -np.inf, most, 0))
        total = tf.reduce_sum(tf.exp(terms - most), axis=0)
        return tf.where(total > 0, most + tf.math.log(tf.where(total > 0, total, 1)), -np.inf)

    def loss(logits):
        def step(alpha, element):
            emitted, t = element
            impossible = tf.fill([batch, 2], tf.constant(-np.inf, tf.float64))
            before = tf.concat([impossible, alpha], axis=1)
            skipped = tf.where(may_skip, before[:, :-2], -np.inf)
            new = sum_of(tf.stack([alpha, before[:, 1:-1], skipped])) + emitted
            return tf.where((t < lengths)[:, None], new, alpha), None

        emitted = tf.gather(
            tf.nn.log_softmax(logits), np.stack([symbols] * time), axis=2, batch_dims=2
        )
        first = tf.where(places < 2, emitted[0], -np.inf)
        elements = emitted[1:], np.arange(1, time)
        alpha, _ = tf_ti.scan(step, first, elements, checkpoint_every=every, fuse=fuse)
        return [-sum_of(tf.transpose(tf.where(is_last, alpha, -np.inf)))]

    def loss_of_torch(logits):
        return [
            torch.nn.functional.ctc_loss(
                torch.log_softmax(logits, 2),
                torch.tensor(labels),
                torch.tensor(lengths),
                torch.tensor(label_lengths),
                reduction="none",
            )
        ]

    check(ours(loss, [logits], mode), torchs(loss_of_torch, [logits]))


# --- Recurrent layers -----------------------------------------------------------------------------


@pytest.mark.pairwise
@pytest.mark.parametrize("way", ["forwards", "backwards", "both"])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "SimpleRNN"])
@pytest.mark.parametrize("seed", [0, 1, 2], indirect=True)
def test_a_padded_sequence_gives_what_it_gives_alone(rng, seed, name, way):
    """tensorflow/tensorflow#36139: batches with padding, and sequences of padding alone."""
    where = ["right", "left", "anywhere"][seed]
    content = [0, np.nan, 1e30][(seed + len(way)) % 3]
    print(where, content)

    def make(layers):
        options = {"go_backwards": True} if way == "backwards" else {}
        layer = getattr(layers, name)(4, **options)
        layer = keras.layers.Bidirectional(layer) if way == "both" else layer
        layer.build([None, None, 3])
        return layer

    theirs, layer = make(keras.layers), make(tf_ti.keras)
    weights = [rng.standard_normal(w.shape).astype(np.float32) / 2 for w in theirs.get_weights()]
    for each in (theirs, layer):
        each.set_weights(weights)
    x = rng.standard_normal([5, 6, 3]).astype(np.float32)
    mask = np.arange(6) < np.array([6, 4, 0, 1, 5])[:, None]
    if where == "anywhere":
        mask = rng.permuted(mask, axis=1)
    mask = mask[:, ::-1] if where == "left" else mask
    padded = np.where(mask[:, :, None], x, np.float32(content))

    def differentiated(call, x, layer):
        x = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
            loss = tf.reduce_sum(tf.sin(y))
        return y, *tape.gradient(loss, [x, *layer.trainable_variables])

    y, of_x, *of_weights = differentiated(lambda x: layer(x, mask=mask), padded, layer)
    sums = [0] * len(of_weights)
    for row in range(5):
        if not mask[row].any():
            check([y[row], of_x[row]], [np.zeros(y.shape[1]), np.zeros([6, 3])], 0)
            continue
        alone = differentiated(theirs, x[row : row + 1, mask[row]], theirs)
        check([y[row], of_x[row][mask[row]]], [alone[0][0], alone[1][0]], 2e-5)
        check(of_x[row][~mask[row]], np.zeros([np.sum(~mask[row]), 3]), 0)
        sums = [total + gradient for total, gradient in zip(sums, alone[2:])]
    check(of_weights, sums, 5e-5)


# --- Embeddings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("table_kind", ["constant", "frozen"])
@cases()
def test_weights_of_a_table_that_does_not_train_have_their_gradients(rng, seed, table_kind, mode):
    """pytorch/pytorch#136457: weights that are learnt beside a frozen table were an error."""
    rows = rng.standard_normal([7, 3])
    lengths = np.array([3, 0, 2, 1, 4, 0])
    ids, weights = rng.integers(0, 7, lengths.sum()), 0.5 + rng.random(lengths.sum())
    combiner = ["mean", "sqrtn", "sum"][seed % 3]
    padding = int(ids[0]) if rng.random() < 0.5 else None
    print(ids, weights, combiner, padding)
    table = tf.constant(rows) if table_kind == "constant" else tf.Variable(rows, trainable=False)
    splits = np.concatenate([[0], np.cumsum(lengths)])
    places = [(b, i) for b, n in enumerate(lengths) for i in range(n)]

    def bags(weights):
        options = {"padding_idx": padding}
        ragged = tf.RaggedTensor.from_row_splits
        sparse = [tf.SparseTensor(places, v, [len(lengths), 4]) for v in (ids, weights)]
        return [
            tf_ti.embedding_bag(table, ragged(ids, splits), ragged(weights, splits), combiner),
            tf_ti.embedding_bag(table, *sparse, combiner, **options),
            tf_ti.embedding_bag_offsets(table, ids, splits[:-1], None, weights, **options),
            tf_ti.embedding_bag_packed(
                table, ids.reshape(-1, 2), tf.reshape(weights, [-1, 2]), **options
            ),
            tf_ti.embedding_segments_sum(
                table, ids, np.repeat(np.arange(6), lengths), 6, None, weights
            ),
        ]

    def pooled(weights, splits, combiner, padding):
        results = []
        for start, end in zip(splits, splits[1:]):
            keep = torch.tensor(ids[start:end] != padding)
            w = weights[start:end][keep][:, None]
            total = (torch.tensor(rows)[ids[start:end]][keep] * w).sum(0)
            divisor = {"sum": 1, "mean": w.sum(), "sqrtn": (w**2).sum() ** 0.5}[combiner]
            results.append(total / divisor if keep.any() else total)
        return torch.stack(results)

    def bags_of_torch(weights):
        return [
            pooled(weights, splits, combiner, None),
            pooled(weights, splits, combiner, padding),
            pooled(weights, splits, "sum", padding),
            pooled(weights, range(0, len(ids) + 1, 2), "sum", padding),
            pooled(weights, splits, "sum", None),
        ]

    check(ours(bags, [weights], mode), torchs(bags_of_torch, [weights]))


@pytest.mark.parametrize("formula", ["Adagrad", "Adam"])
@cases(function=1)
def test_a_table_that_two_features_share_is_updated_once_by_both(rng, formula, mode):
    """tensorflow/tensorflow#28090: the squares of parts are no square of their sum."""
    initial = rng.standard_normal([9, 4])
    table, m, v = (tf.Variable(initial * factor) for factor in (1, 0, 0))
    theirs, their_m, their_v = initial.copy(), 0 * initial, 0 * initial

    def step(first, second, number):
        with tf.GradientTape() as tape:
            pooled = tf_ti.embedding_bag(table, first, combiner="mean")
            pooled *= tf_ti.embedding_bag(table, second)
            loss = tf.reduce_sum(tf.sin(pooled))
        gradient = tape.gradient(loss, table)
        if formula == "Adagrad":
            options = {"epsilon": 1e-4, "epsilon_inside_sqrt": False}
            tf_ti.adagrad_update(table, v, gradient, 0.3, **options)
        else:
            options = {"beta_1": 0.8, "beta_2": 0.97, "epsilon": 1e-4}
            tf_ti.adam_update(table, m, v, gradient, 0.3, number, **options)
        return [loss]

    def loss_of_torch(table):
        """By dense look-ups, whose gradient adds up by itself."""
        return [table[first].mean(1) * table[second].sum(1)]

    step = wrapped(step, mode)
    for number in range(1, 5):
        first, second = rng.integers(0, 4, [5, 3]), rng.integers(2, 7, [5, 2])
        print(first, second)
        loss = step(tf.constant(first), tf.constant(second), tf.constant(number))
        (pooled,), (g,) = torchs(loss_of_torch, [theirs])
        check(loss, [torch.sin(pooled).sum()])
        rows, g = np.union1d(first, second), g.numpy()
        if formula == "Adagrad":
            their_v[rows] += g[rows] ** 2
            theirs[rows] -= 0.3 * g[rows] / (np.sqrt(their_v[rows]) + 1e-4)
        else:
            their_m[rows] += 0.2 * (g[rows] - their_m[rows])
            their_v[rows] += 0.03 * (g[rows] ** 2 - their_v[rows])
            rate = 0.3 * np.sqrt(1 - 0.97**number) / (1 - 0.8**number)
            theirs[rows] -= rate * their_m[rows] / (np.sqrt(their_v[rows]) + 1e-4)
    check([table, v], [theirs, their_v])
    np.testing.assert_array_equal(table[7:], initial[7:])
