"""Bodies that run as programs of vector code, beside TensorFlow's kernels."""

import functools
import itertools
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from checks import in_threads
from operation_cases import FLOATS, HALVES, OF_HALVES, REALS, SPECIAL, cases_of, special_pairs
from roundings import check, close, wide
from tensorflow.python.eager import cancellation

import tf_ti
from tf_ti.loops.passes.step import Fuse

INTEGERS = (tf.int32, tf.int64)


def numbers(dtype, shape, seed, special=True):
    random = np.random.default_rng(seed)
    if dtype == tf.bool:
        return tf.constant(random.integers(0, 2, shape).astype(bool))
    if not dtype.is_floating:
        return tf.constant(random.integers(-9, 10, shape), dtype)
    x = random.normal(size=shape)
    if special:
        among = SPECIAL + OF_HALVES * (dtype in HALVES)
        x = np.where(random.random(shape) < 0.2, random.choice(among, shape), x)
    return tf.constant(x, dtype)


def looped(f, *xs):
    """f of each element, stacked, by a loop, whose second call runs programs: it is short."""

    @tf.function
    def run(*xs):
        return tf_ti.scan(lambda c, x: (c, f(*x)), 0, xs, fuse=Fuse.PROGRAMS)[1]

    run(*xs)
    return run(*xs)


def eager(f, *xs):
    count = int(tf.nest.flatten(xs)[0].shape[0])
    rows = [f(*tf.nest.map_structure(lambda x: x[i], xs)) for i in range(count)]  # noqa: B023
    return tf.nest.map_structure(lambda *row: tf.stack(row), *rows)


def compare(f, *xs, ulps=0, tolerance=None):
    found, expected = looped(f, *xs), eager(f, *xs)
    for a, e in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        if tolerance is None:
            check(a, e, ulps)
        else:
            close(a, e, tolerance)


def compare_all(f, cases, **options):
    """The same of each case's tensors, in one loop: what takes long is to trace one."""
    compare(lambda *cases: [f(*case) for case in cases], *cases, **options)


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_integers_are_divided_as_by_tensorflow(dtype):
    x = tf.concat([numbers(dtype, (5, 3, 4), 1), tf.fill([5, 3, 1], dtype.min)], -1)
    for divisor in 3, -4, -1, [[7], [-2], [1]]:

        def f(x, divisor=divisor):
            y = tf.constant(divisor, dtype)  # in the body: known
            return x // y, x % y, tf.truncatediv(x, y), tf.truncatemod(x, y)

        compare(f, x)


def test_an_integer_divided_by_0_is_an_error():
    with pytest.raises(tf.errors.InvalidArgumentError, match="division by zero"):
        looped(lambda x: x // tf.constant([1, 0]), numbers(tf.int32, (5, 2), 1))


ACTIVATIONS = {
    "elu": 1e-6, "selu": 1e-6, "gelu": 1e-6, "softplus": 1e-6, "softsign": 0, "relu": 0,
    "relu6": 0, "leaky_relu": 0, "swish": 1e-6,
}  # fmt: skip


@pytest.mark.parametrize("dtype", REALS, ids=lambda d: d.name)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_their_gradients_are_those_of_tensorflow(name, dtype):
    f = getattr(tf.nn, name)
    tolerance = ACTIVATIONS[name] * (1 if dtype == tf.float32 else 1e-7)

    def both(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return y, tape.gradient(y, x, dy)

    cases = []
    for seed, shape in enumerate([(), (33,), (4, 17)]):
        x, dy = numbers(dtype, (5, *shape), seed), numbers(dtype, (5, *shape), seed + 9)
        cases.append((tf.where(x == 0, tf.zeros_like(x), x), dy))  # TensorFlow's of -0 is either
    compare_all(both, cases, tolerance=tolerance or None)


@pytest.mark.parametrize("dtype", REALS, ids=lambda d: d.name)
def test_numbers_are_clipped_to_bounds_that_are_not_numbers(dtype):
    def all_of(x, y):
        found = []
        bounds = (tf.constant(v, dtype) for v in (np.nan, np.nan, -1, 1, 2, -2))
        clip = tf.raw_ops.ClipByValue
        for low, high in itertools.product(list(bounds), repeat=2):
            found.append(clip(t=x, clip_value_min=low, clip_value_max=high))
        found.append(clip(t=x, clip_value_min=y, clip_value_max=y + 1))
        found.append(tf.nn.relu(x) + 0)  # of -0 it is either
        return found

    compare(all_of, *special_pairs(dtype))


@pytest.mark.parametrize("dtype", REALS, ids=lambda d: d.name)
def test_no_gradient_arrives_where_a_mask_is(dtype):
    """The slopes there are infinite."""
    functions = (tf.sqrt, tf.math.rsqrt, tf.math.reciprocal)
    xs = tf.constant([[0.0, 4.0, 9.0, 0.0, -1.0]] * 4, dtype)

    def step(c, x):
        terms = [tf.where(x > 0, f(x * 2), tf.zeros_like(x)) for f in functions]
        return tf.add_n(terms) + 0.5 * tf.nn.relu(c)

    def slope(run):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            y = tf.reduce_sum(run(tf.zeros([5], dtype)))
        return tape.gradient(y, xs)

    def scanned(c):
        return tf_ti.scan(lambda *cx: (step(*cx), None), c, xs)[0]

    found = tf.function(lambda: slope(scanned))
    expected = slope(lambda c: functools.reduce(step, tf.unstack(xs), c))
    for _ in range(2):
        close(found(), expected, 1e-6)


@pytest.mark.parametrize("dtype", REALS, ids=lambda d: d.name)
@pytest.mark.parametrize("seed", range(2), indirect=True)
def test_reductions_of_numbers_that_are_not_finite_are_those_of_tensorflow(dtype, rng):
    """NaN, infinities and the farthest finite numbers: first, last, in the middle, and alone."""
    of_axis = ("argmax", "argmin", "reduce_max", "reduce_min")
    added = ("reduce_sum", "reduce_mean", "reduce_prod")

    def reduced(x):
        few = tf.clip_by_value(x, -2.0, 2.0)  # whose sums have one order of magnitude
        few = tf.where(tf.math.is_finite(x), few, x)
        axes = range(x.shape.rank)
        return [[getattr(tf, name)(x, axis) for axis in axes for name in of_axis]] + [
            [getattr(tf, name)(few, axis) for axis in axes for name in added],
            [tf.cumsum(few, axis) for axis in axes],
            # Not softmax: oneDNN's, which TensorFlow takes for most types, leaves NaN in its place.
            [tf.nn.l2_loss(few), tf.nn.log_softmax(few)],
        ]

    def values(count):
        among = [np.nan, np.inf, -np.inf, dtype.max, dtype.min, 0.0, -0.0, 1.0, -2.0]
        return rng.choice(among, count, replace=False)

    shapes = [(1,), (7,), (40,), (3, 5), (4, 17), (2, 3, 4)]
    cases = []
    for shape in shapes:
        x = rng.choice(values(rng.integers(1, 4)), (5, *shape))
        cases.append((tf.constant(x, dtype),))
    run, apart = (how(lambda *xs: [reduced(x) for (x,) in xs], *cases) for how in (looped, eager))
    for found, expected in zip(run, apart, strict=True):
        for a, e in zip(found[0], expected[0], strict=True):
            np.testing.assert_array_equal(wide(a), wide(e))
        for a, e in zip(tf.nest.flatten(found[1:]), tf.nest.flatten(expected[1:]), strict=True):
            np.testing.assert_array_equal(np.isfinite(wide(a)), np.isfinite(wide(e)))
            close(a, e, 1e-5 if dtype == tf.float32 else 1e-13)


@pytest.mark.parametrize("dtype", REALS, ids=lambda d: d.name)
@pytest.mark.parametrize("zeros", [[-0.0], [0.0, -0.0]], ids=["negative", "both"])
def test_reductions_of_zeros_have_the_signs_of_tensorflow(dtype, zeros):
    """Of halves the largest zero is the first or the last, as Eigen's vectors lie."""
    names = ("sum", "mean", "prod", "max", "min")

    def reduced(x):
        axes = (None, *range(x.shape.rank))
        results = [getattr(tf, f"reduce_{name}")(x, axis) for axis in axes for name in names]
        return results + [tf.cumsum(x, axis) for axis in range(x.shape.rank)]

    rng = np.random.default_rng(1)
    shapes = [(1,), (2,), (7,), (24,), (29,), (3, 5), (4, 13), (9, 16), (2, 3, 4), (3, 4, 12)]
    compare_all(reduced, [(tf.constant(rng.choice(zeros, (5, *s)), dtype),) for s in shapes])


@pytest.mark.parametrize("dtype", REALS, ids=lambda d: d.name)
def test_losses_and_their_gradients_are_those_of_tensorflow(dtype):
    def losses(logits, labels):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            y = tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(labels), logits)
            bias = tf.nn.bias_add(logits, logits[0])
            total = tf.reduce_sum(y) + tf.nn.l2_loss(bias)
        return y, total, tape.gradient(total, logits)

    shapes = enumerate([(1, 7), (5, 33)])
    cases = [
        [numbers(dtype, (5, *shape), seed + k, special=False) * 3 for k in range(2)]
        for seed, shape in shapes
    ]
    compare_all(losses, cases, tolerance=1e-5 if dtype == tf.float32 else 1e-13)


@pytest.mark.parametrize("dtype", REALS, ids=lambda d: d.name)
def test_gradients_of_einsums_are_those_of_tensorflow(dtype):
    cases = cases_of("Einsum", dtype, np.random.default_rng(1))

    def gradients(*values):
        found = []
        for case, xs in zip(cases, values, strict=True):
            with tf.GradientTape() as tape:
                tape.watch(xs)
                total = tf.reduce_sum(tf.square(case.compute(*xs)))
            found.append(tape.gradient(total, xs))
        return found

    tolerance = 2e-5 if dtype == tf.float32 else 1e-13
    compare(gradients, *(case.values for case in cases), tolerance=tolerance)


# Gradients

GRADIENTS = ["tanh", "sigmoid", "sqrt", "rsqrt", "reciprocal", "exp", "log", "erf", "sin", "log1p"]


LEFTS = {
    "all": lambda x, depth: x[:, :depth],
    "a slice": lambda x, depth: x[:, 2 : 2 + depth],
    "reversed": lambda x, depth: x[::-1, 1 : 1 + depth],
    "transposed": lambda x, depth: tf.transpose(x)[:, :depth],
}
RIGHTS = {
    "all": lambda x, depth, columns: x[:depth, :columns],
    "columns": lambda x, depth, columns: x[1 : 1 + depth, 3 : 3 + columns],
    "transposed": lambda x, depth, columns: tf.transpose(x)[:depth, :columns],
}


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16, tf.bfloat16])
@pytest.mark.parametrize("left", LEFTS)
@pytest.mark.parametrize("right", RIGHTS)
def test_small_products_of_views_are_those_of_numpy(right, left, dtype):
    """Of one column or one row, of depth 1, of every stride."""
    values = np.random.default_rng(5).integers(-8, 9, [2, 6, 6])
    xs = tf.constant(values, dtype)
    sizes = list(itertools.product((1, 2, 3), (1, 2)))

    def f(state, x):
        state = state + x
        return state, [
            tf.matmul(LEFTS[left](state, d), RIGHTS[right](state, d, c)) for d, c in sizes
        ]

    found = tf.function(lambda xs: tf_ti.scan(f, tf.zeros([6, 6], dtype), xs)[1])(xs)
    states = np.cumsum(values, 0)
    for (depth, columns), products in zip(sizes, found, strict=True):
        for state, product in zip(states, products, strict=True):
            given = tf.constant(state, tf.float64)
            factors = LEFTS[left](given, depth), RIGHTS[right](given, depth, columns)
            expected = np.matmul(*(factor.numpy() for factor in factors))
            tolerance = {tf.float16: 1e-2, tf.bfloat16: 1e-2}.get(dtype, 0)
            np.testing.assert_allclose(tf.cast(product, tf.float64), expected, tolerance, tolerance)


@pytest.mark.parametrize("dtype", REALS, ids=lambda d: d.name)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_tensorflow(name, dtype, monkeypatch):
    x = tf.constant(np.random.default_rng(2).uniform(0.2, 2, (6, 11)), dtype)

    def gradient():
        @tf.function
        def run(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                c, ys = tf_ti.scan(
                    lambda c, x: (c * 0.5 + getattr(tf.math, name)(x), c * x), x[0], x
                )
                loss = tf.reduce_sum(c) + tf.reduce_sum(ys)
            return tape.gradient(loss, x)

        return run(x), run(x)

    found = gradient()
    monkeypatch.setenv("TF_TI_PROGRAM", "0")
    expected = gradient()
    tolerance = 2e-6 if dtype == tf.float32 else 1e-13
    for a, e in zip(found, expected):
        close(a, e, tolerance)


# Random bodies


def random_body(seed, count, dtype=tf.float32):
    """A body of `count` operations on a state and an element, of [3, 7]."""
    random = np.random.default_rng(seed)

    def f(state, x):
        values = [state, x, tf.constant(0.5, dtype), x[:1], state[:, :1]]
        for _ in range(count):
            a, b = (values[random.integers(len(values))] for _ in range(2))
            kind = random.integers(12)
            if kind < 4:
                values.append([tf.add, tf.subtract, tf.maximum, tf.minimum][kind](a, b) * 0.5)
            elif kind == 4:
                values.append(a * b / (1 + b * b))
            elif kind == 5:
                values.append(tf.where(a > b, a, b * 0.5))
            elif kind == 6:
                values.append(tf.sqrt(tf.abs(a)) - 0.25)
            elif kind == 7 and a.shape.rank == 2:
                values.append(tf.reduce_max(a, int(random.integers(2)), keepdims=True))
            elif kind == 8 and a.shape.rank == 2:
                values.append(tf.transpose(tf.transpose(a) * 0.9))
            elif kind == 9 and a.shape == (3, 7):
                values.append(tf.concat([a[1:], a[:1]], 0))
            elif kind == 10:
                values.append(tf.cast(tf.cast(a > 0, tf.int32), dtype) - 0.5)
            elif kind == 11 and dtype in HALVES:
                values.append(tf.cast(tf.cast(a, tf.float32) * 0.3 + 1e-3, dtype))
            else:
                values.append(-a + 1)
        whole = [v for v in values if v.shape == (3, 7)]
        return whole[-1] * 0.9 + state * 0.1, values[-1] + whole[-2]

    return f


@pytest.mark.parametrize("dtype", (tf.float32, *HALVES), ids=lambda d: d.name)
@pytest.mark.parametrize("seed", range(24))
def test_random_bodies_have_the_bits_of_tensorflows_kernels(seed, dtype, monkeypatch):
    print("seed", seed)
    xs = numbers(dtype, (6, 3, 7), seed, special=seed % 3 == 0)

    def run():
        f = random_body(seed, 5 + 2 * seed, dtype)

        @tf.function
        def loop(xs):
            # What left the loop might have other bits there.
            return tf_ti.scan(f, xs[0], xs, reverse=seed % 2 == 1, fuse=Fuse.PROGRAMS)

        return [loop(xs), loop(xs)]

    found = run()
    monkeypatch.setenv("TF_TI_PROGRAM", "0")
    for a, e in zip(tf.nest.flatten(found), tf.nest.flatten(run()), strict=True):
        check(a, e)


@pytest.mark.parametrize("dtype", (tf.float32, *HALVES), ids=lambda d: d.name)
@pytest.mark.parametrize("seed", range(12))
def test_gradients_of_random_bodies_are_those_of_tensorflows_kernels(seed, dtype, monkeypatch):
    print("seed", seed)
    count = 5 + seed
    xs = numbers(dtype, (count, 3, 7), seed, special=False)
    checkpoint_every = (None, 1, 2, 3)[seed % 4]

    def run():
        f = random_body(seed, 4 + seed, dtype)

        @tf.function
        def gradient(init, xs):
            with tf.GradientTape() as tape:
                tape.watch([init, xs])
                state, ys = tf_ti.scan(
                    f, init, xs, reverse=seed % 3 == 1, checkpoint_every=checkpoint_every
                )
                loss = tf.reduce_sum(tf.sin(state)) + tf.reduce_sum(tf.sin(ys))
            zeros = tf.UnconnectedGradients.ZERO
            return tape.gradient(loss, [init, xs], unconnected_gradients=zeros)

        return [gradient(xs[0], xs), gradient(xs[0], xs)]

    found = run()
    monkeypatch.setenv("TF_TI_PROGRAM", "0")
    for a, e in zip(tf.nest.flatten(found), tf.nest.flatten(run()), strict=True):
        if dtype in HALVES:
            close(a, e, None)
        else:
            np.testing.assert_allclose(a, e, rtol=2e-5, atol=1e-6)


# Half precision


def every(dtype):
    """All numbers, as 16 elements of a loop."""
    return tf.bitcast(tf.constant(np.arange(65536, dtype=np.uint16).reshape(16, 4096)), dtype)


# Of which TensorFlow's kernels round once, or at known places. It counts subnormal numbers as zeros
# in some threads and not in others.
OF_EVERY = {
    "negative": 0, "abs": 0, "square": 0, "sqrt": 0, "floor": 0, "ceil": 0, "round": 0, "is_nan": 0,
    "is_inf": 0, "is_finite": 0, "exp": 1, "log": 1, "tanh": 1, "sigmoid": 2, "expm1": 1, "erf": 1,
    "log1p": 1, "rsqrt": 1, "reciprocal": 1, "softplus": 2, "softsign": 0,
}  # fmt: skip


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
@pytest.mark.parametrize("name", OF_EVERY)
def test_operations_of_every_half_are_those_of_tensorflow(name, dtype):
    x = every(dtype)
    if dtype == tf.bfloat16:
        is_least = tf.abs(tf.cast(x, tf.float64)) < 1e-37
        is_most = tf.abs(tf.cast(x, tf.float64)) > 1e37  # has a subnormal reciprocal
        x = tf.where(is_least | is_most, tf.ones_like(x), x)
    f = getattr(tf.math, name)
    compare(lambda x: f(x), x, ulps=OF_EVERY[name])


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
def test_every_half_is_read_and_written_as_it_is(dtype):
    x = every(dtype)
    moved = looped(lambda x: (tf.reverse(x, [0]), tf.cast(x, tf.float32)), x)
    for found, expected in zip(moved, (x[:, ::-1], tf.cast(x, tf.float32)), strict=True):
        check(found, expected)


TABLE_READS = {
    "row": lambda t, i: tf.gather(t, i),
    "rows": lambda t, i: tf.gather(t, tf.stack([i, 0, i + 1])),
    "column": lambda t, i: tf.gather(t, i % 4, axis=1),
    "row of the transposed": lambda t, i: tf.gather(tf.transpose(t), i % 4),
    "row of a part": lambda t, i: tf.gather(t[2:-1, 1:], i),
    "slice": lambda t, i: t[3:5] * t[4:6],
    "every other": lambda t, i: t[-2::-3, ::2] + t[0, 0],
    "last column": lambda t, i: tf.reduce_max(t[:, -1]),
    "product": lambda t, i: tf.matmul(t[2:4], t[4:6], transpose_b=True),
    "row as float32": lambda t, i: tf.gather(tf.cast(t, tf.float32), i),
    "row and all": lambda t, i: tf.gather(t, i) + tf.reduce_max(t, 0),
    "joined": lambda t, i: tf.concat([t[:1], t[5:6]], 0) + t[i],
}


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
@pytest.mark.parametrize("way", ["invariant", "state", "states that swap"])
def test_parts_of_a_table_of_halves(dtype, way):
    table = tf.cast(tf.reshape(tf.range(11 * 5) % 13 - 6, [11, 5]), dtype)
    reads = [tf.autograph.experimental.do_not_convert(f) for f in TABLE_READS.values()]

    def body(state, i):
        t = table if way == "invariant" else state[0]
        rows = [read(t, i) for read in reads]
        if way == "states that swap":
            state = state[1], state[0]
        return state, rows

    run = tf.function(lambda *s: tf_ti.scan(body, s, tf.range(7), fuse=Fuse.PROGRAMS)[1])
    for _ in range(2):
        found = run(table, -table)
    for k in range(7):
        t = -table if way == "states that swap" and k % 2 else table
        for name, ys in zip(TABLE_READS, found, strict=True):
            check(ys[k], TABLE_READS[name](t, tf.constant(k)))


@pytest.mark.parametrize("dtype", REALS, ids=lambda d: d.name)
@pytest.mark.parametrize("count", [1, 5, 8, 40])
def test_zeros_keep_their_signs(dtype, count):
    """But for ReLUs of floats, whose sign depends on the place in TensorFlow's kernels."""
    x = tf.constant(np.resize([[-0.0], [0.0]], (3, count)), dtype)
    functions = "tanh sign erf expm1 log1p sin tan asin atan sinh asinh atanh sqrt round floor ceil"
    others = [tf.nn.softsign, tf.nn.elu, tf.nn.selu, tf.nn.leaky_relu]
    others += [tf.nn.relu, tf.nn.relu6] if dtype in HALVES else []
    chosen = [getattr(tf.math, name) for name in functions.split()] + others
    compare(lambda x: [f(x) for f in chosen], x)


@pytest.mark.parametrize("count", [1, 5, 16, 37])
@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
def test_of_zeros_of_half_precision_the_same_is_chosen_as_by_tensorflow(dtype, count):
    """Kernels of floats choose by the place in a tensor."""
    numbers = [0.0, -0.0, np.nan, 1.0, -1.0]
    x, y = (tf.constant(np.repeat(n, count), dtype) for n in np.meshgrid(numbers, numbers))
    zero, one = tf.zeros([], dtype), tf.ones([], dtype)

    def chosen(x, y):
        return [
            tf.maximum(x, y),
            tf.minimum(x, y),
            tf.maximum(x, zero),
            tf.maximum(-zero, x),
            tf.minimum(x, -zero),
            tf.minimum(zero, x),
            tf.clip_by_value(x, y, one),
            tf.clip_by_value(x, -one, y),
            tf.raw_ops.ClipByValue(t=x, clip_value_min=zero, clip_value_max=one),
            tf.where(x >= y, x, y),
        ]

    compare(chosen, x, y)


# Of many dimensions in another order, joined and added.
ORDERS = {
    "reversed": ((64, 2, 3, 2, 2, 3), (5, 4, 3, 2, 1, 0)),
    "large extents apart": ((2, 30, 2, 20, 2, 2, 2), (6, 3, 5, 1, 4, 0, 2)),
    "of eight": ((3, 2, 3, 2, 3, 2, 3, 2), (7, 5, 3, 1, 6, 4, 2, 0)),
    "of eight alike": ((4, 4, 4, 4, 4, 4, 4, 4), (7, 6, 5, 4, 3, 2, 1, 0)),
}


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.int64], ids=lambda d: d.name)
def test_transposes_of_many_dimensions(name, dtype):
    shape, order = ORDERS[name]
    x = tf.reshape(tf.cast(tf.range(np.prod(shape)) % 100, dtype), shape)
    y = tf.transpose(x, order)

    def body(c, e):
        turned = tf.transpose(x + e, order)
        back = tf.transpose(turned, np.argsort(order))
        return c + e, (turned + c, tf.reduce_max(turned), back)

    xs = tf.cast([1, 2], dtype)
    run = tf.function(lambda c: tf_ti.scan(body, c, xs, fuse=Fuse.PROGRAMS)[1])
    for _ in range(2):
        sums, most, back = run(y)
    check(sums, tf.stack([y + 1 + y, y + 2 + y + 1]))
    check(most, tf.stack([tf.reduce_max(x + 1), tf.reduce_max(x + 2)]))
    check(back, tf.stack([x + 1, x + 2]))


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
def test_a_sum_of_halves_is_rounded_once(dtype):
    xs = numbers(dtype, (50, 5), 3, special=False)

    @tf.function
    def total(xs):
        w = tf.ones([5], dtype)
        with tf.GradientTape() as tape:
            tape.watch(w)
            ys = tf_ti.scan(lambda h, x: (h * 0.5, x * w + h), xs[0], xs, fuse=Fuse.PROGRAMS)[1]
        return tape.gradient(ys, w)

    expected = tf.cast(tf.reduce_sum(tf.cast(xs, tf.float64), 0), dtype)
    for _ in range(2):
        check(total(xs), expected)


@pytest.mark.needs_programs
@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
def test_loops_of_halves(dtype):
    xs = numbers(dtype, (200, 4), 3, special=False)
    weights = numbers(tf.float32, (4, 4), 4, special=False)

    @tf.function
    def run(xs, fuse):
        def f(h, x):
            y = tf.linalg.matvec(weights, tf.cast(h, tf.float32))
            h = tf.tanh(h * 0.5 + x) + tf.cast(y, dtype) * 0.01
            return h, h + x

        return tf_ti.scan(f, xs[0], xs, fuse=fuse)

    for _ in range(2):
        for a, e in zip(run(xs, Fuse.PROGRAMS), run(xs, False), strict=True):
            close(a, e, None)


@pytest.mark.needs_programs
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_subnormal_numbers_count_as_zeros(dtype):
    tiny = np.finfo(dtype.as_numpy_dtype).tiny
    x = tf.constant(np.broadcast_to(np.array([tiny / 2, -tiny / 4, tiny / 64] * 5), (6, 15)), dtype)
    cases = (
        (lambda x: x + x, 0),
        (lambda x: x * 3.0 - x, 0),
        (lambda x: x * 1e20, 0),
        (lambda x: x / 0.25, 0),
        (tf.sqrt, lambda x: np.where(x < 0, -0.0, 0)),
        (tf.exp, 1),
        (tf.tanh, 0),
        (tf.sigmoid, 0.5),
        (lambda x: tf.math.log(tf.abs(x)), -np.inf),
        (lambda x: tf.equal(x, 0.0), True),
        (lambda x: tf.less(x, 0.0), False),
        (lambda x: tf.where(x > 0.0, 1.0, 2.0), 2),
        (tf.reduce_sum, 0),
    )
    results = looped(lambda x: [f(x) for f, _ in cases], x)
    for found, (_, expected) in zip(results, cases, strict=True):
        expected = expected(x[1:]) if callable(expected) else expected
        # TensorFlow's kernels, which have the first, differ in the logarithm's last elements.
        np.testing.assert_array_equal(found[1:], np.broadcast_to(expected, found[1:].shape))


# Indices that only values tell


@pytest.mark.parametrize("index_type", INTEGERS, ids=lambda d: d.name)
@pytest.mark.parametrize("dtype", [*REALS, *INTEGERS, tf.bool], ids=lambda d: d.name)
def test_rows_of_any_index_are_those_of_tensorflow(dtype, index_type):
    random = np.random.default_rng(3)

    def indices(*shape):
        return tf.constant(random.integers(0, 4, (9, *shape)), index_type)

    x = numbers(dtype, (9, 4, 4, 3), 1)
    compare(lambda x, i: [tf.gather(x, i, axis=axis) for axis in (0, 1, -3)], x, indices(5))
    compare_all(tf.gather, [(x, indices(*shape)) for shape in ((), (2, 3), (0,))])
    compare_all(lambda x, i: tf.gather(x, i, batch_dims=1), [(x, indices(4, 2)), (x, indices(4))])
    best = {"k": 2, "sorted": True}
    if dtype == tf.float32:
        y = numbers(dtype, (9, 4, 7), 2, special=False)
        compare(lambda y: tf.gather(y, tf.math.top_k(y, **best).indices, batch_dims=1), y)


def of_any_extents(x, y, i):
    """Operations that matrices x and y without elements have too; i are rows of x."""
    k = tf.cast(x, tf.int32)
    rows, columns = x.shape
    results = [
        *(f(x) for f in (tf.transpose, tf.square, tf.exp, tf.nn.l2_loss, tf.zeros_like, tf.size)),
        *(f(x) for f in (tf.math.is_nan, tf.shape, tf.nn.softmax, tf.nn.log_softmax)),
        *(tf.concat([x, y, x * y], axis) for axis in (0, 1)),
        *(tf.stack([x, y], axis) for axis in (0, 2)),
        *(tf.cumsum(x, axis, exclusive=True) for axis in (0, 1)),
        *(tf.math.cumprod(x, axis, reverse=True) for axis in (0, 1)),
        *(tf.roll(x, [3], [axis]) for axis in (0, 1)),
        *(tf.reverse(x, [axis]) for axis in (0, 1)),
        *(tf.reduce_all(x > y, axis) for axis in (None, 0, 1)),
        *(tf.split(x, [rows, 0], 0) + tf.split(x, 2 * [columns // 2] + [columns % 2], 1)),
        *(tf.pad(x, [[0, 1], [2, 0]]), tf.tile(x[:, None, :], [1, 2, 1]), x[:, :0], x[::-1, None]),
        *(tf.where(x > y, x, 0.0), tf.clip_by_value(x, -1.0, 1.0), x + y[:1], tf.abs(x) ** 2.0),
        *(k // 3, k % 3, tf.one_hot(k, 2), tf.squeeze(x[:, :, None], 2), x / (y * y + 1.0)),
        *(tf.reshape(x, [columns, rows]), tf.broadcast_to(x[None], [2, rows, columns])),
        *(tf.matmul(x, y, transpose_b=True), tf.matmul(x, y, transpose_a=True)),
        *(tf.einsum("ij,kj->ik", x, y), tf.einsum("ij->j", x), tf.einsum("ij,ij->ij", x, y)),
        *(tf.nn.bias_add(x, y[0] if rows else tf.zeros([columns])), tf.add_n([x, y, x])),
        *(tf.gather(x, i), tf.gather(x, i[:0]), tf.gather(x, tf.range(rows))),
        *(tf.gather(tf.stop_gradient(tf.stack([x, y], 1)), i[:rows, None] % 2, batch_dims=1),),
    ]
    for name in ("sum", "prod", "mean", "max", "min"):
        results += [getattr(tf, f"reduce_{name}")(x, axis) for axis in (None, 0, 1)]
    for name in ("argmax", "argmin"):
        results += [getattr(tf, name)(x, axis) for axis in (0, 1) if x.shape[axis]]
    if columns:
        losses = tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(y), x)
        results += [losses, *tf.unstack(x, axis=1)]
    return results


@pytest.mark.parametrize("rows, columns", [(0, 0), (0, 3), (3, 0)])
def test_arrays_without_elements_are_those_of_tensorflow(rows, columns):
    def body(x, y, i):
        with tf.GradientTape() as tape:
            tape.watch((x, y))
            results = of_any_extents(x, y, i)
            total = tf.add_n([tf.reduce_sum(r) for r in results if r.dtype == x.dtype])
        return results, tape.gradient(total, (x, y))

    x, y = (numbers(tf.float32, (5, rows, columns), seed, special=False) for seed in (1, 2))
    i = tf.zeros([5, 4 if rows else 0], tf.int32)
    compare(body, x, y, i, tolerance=1e-6)


@pytest.mark.parametrize("seed", range(4), indirect=True)
def test_rows_in_batches_have_any_extents(rng):
    def one():
        batch = rng.integers(0, 3, rng.integers(1, 3))
        rows = rng.integers(0, 3)
        count = rng.integers(0, 3) if rows else 0
        i = rng.integers(0, max(rows, 1), (5, *batch, count))
        return numbers(tf.float32, (5, *batch, rows, *rng.integers(0, 3, 1)), 1), tf.constant(i)

    cases = [one() for _ in range(8)]
    compare(
        lambda *cases: [tf.gather(x + 1.0, i, batch_dims=i.shape.rank - 1) for x, i in cases],
        *cases,
    )


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1])
@pytest.mark.parametrize("at", [0, 1, 5, 9])
def test_an_index_of_no_row_is_an_error_of_its_iteration(at, bad, is_whole):
    """Kernels tell it, though a program is first to see it; nothing is read beside the rows."""

    @tf.function
    def run(xs, indices):
        def f(c, x):
            row, i = x
            c = c * 0.5 + tf.gather(row, i)
            # A kernel between two programs.
            y = c if is_whole else tf.math.lgamma(c)
            return c, tf.gather(row, [i, 3]) + y

        return tf_ti.scan(f, tf.zeros([]), (xs, indices))

    xs = numbers(tf.float32, (10, 4), 1, special=False)
    right = np.arange(10) % 4
    run(xs, tf.constant(right))
    indices = right.copy()
    indices[at] = bad
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        run(xs, tf.constant(indices))
    assert f"iteration {at} of" in str(error.value)
    assert f"= {bad} is not in [0, 4)" in str(error.value)
    state, c = run(xs, tf.constant(right))[0], np.float32(0)
    for x, i in zip(xs.numpy(), right):
        c = c * np.float32(0.5) + x[i]
    check(state, c)


# The same bits in each call


def bits(results):
    return [tf.convert_to_tensor(t).numpy().tobytes() for t in tf.nest.flatten(results)]


def mixed_body(c, x):
    """Functions, sums and products, whose bits are others by kernels, and what kernels run."""
    some = tf.boolean_mask(x, x[:, 0] > 0)  # of a shape that values tell
    mean = tf.reduce_mean(tf.tanh(some) + tf.exp(some) * 0.1, 0)
    y = tf.tanh(c * 0.9 + x) + tf.math.lgamma(2 + tf.nn.softmax(x)) + tf.math.log1p(mean * mean)
    total = tf.linalg.matmul(y, y, transpose_a=True) / tf.cast(tf.size(y), y.dtype)
    return c * 0.5 + tf.sigmoid(y @ total), (c, tf.reduce_sum(y, 0))


CALLS = {
    "whole": lambda c, x: (tf.tanh(c * 0.9 + x) + tf.reduce_mean(c, 0, keepdims=True), c),
    "with kernels": mixed_body,
    "growing": lambda c, x: (tf.concat([c, tf.tanh(x[:1] + tf.reduce_mean(c, 0))], 0), x),
}


@pytest.mark.needs_programs
@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_the_same_bits_whatever_came_before(name):
    unknown = tf.TensorSpec([None, None, None])

    def made():
        @tf.function(input_signature=[unknown])
        def run(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                rows = tf.TensorShape([None, None])
                state, ys = tf_ti.scan(CALLS[name], x[0], x, shape_invariants=rows)
                loss = tf.reduce_sum(tf.sin(state))
            return state, ys, tape.gradient(loss, x)

        return run

    random = np.random.default_rng(3)
    shapes = [(12, 40), (12, 40), (1, 40), (3, 40), *((9, rows) for rows in range(3, 12))]
    xs = [tf.constant(random.normal(size=(*shape, 30)), tf.float32) for shape in shapes]
    run = made()
    found = [bits(run(x)) for x in xs]
    assert found == [bits(run(x)) for x in xs]
    assert found[::-1] == [bits(run(x)) for x in xs[::-1]]
    run = made()
    assert found[1] == bits(run(xs[1]))
    for i, results in enumerate(in_threads(lambda i: [bits(run(x)) for x in xs[i:]], 4, times=1)):
        assert results == [found[i:]]


# Steps that lowering refuses for an array of no rows, which a kernel makes.
REFUSED = {
    "softmax": lambda rows, w: tf.reduce_sum(tf.nn.softmax(rows), 0),
    "log_softmax": lambda rows, w: tf.reduce_sum(tf.nn.log_softmax(rows), 0),
    "einsum": lambda rows, w: tf.einsum("ij,jk->k", rows, w),
    "cumsum": lambda rows, w: tf.reduce_sum(tf.cumsum(tf.exp(rows)), 0),
}


@pytest.mark.needs_programs
@pytest.mark.parametrize("name", REFUSED)
def test_a_call_has_the_same_bits_after_one_whose_kernels_made_no_rows(name):
    random = np.random.default_rng(4)
    x, w = (tf.constant(random.normal(size=size), tf.float32) for size in ((100, 64), (64, 64)))

    def made():
        @tf.function(input_signature=[tf.TensorSpec([None, 100], tf.int32)])
        def run(parts):
            def f(c, part):
                y = REFUSED[name](tf.dynamic_partition(x, part, 2)[0], w)
                return c + y, y

            return tf_ti.scan(f, tf.zeros([64]), parts)

        return run

    # So many rows in all iterations.
    parts = [tf.constant(np.tile(np.arange(100) >= n, (3, 1)), tf.int32) for n in (10, 0, 100)]
    run = made()
    found = [bits(run(part)) for part in parts]
    assert found == [bits(run(part)) for part in parts]
    for k in (1, 2, 0):
        run = made()
        run(parts[k])
        assert found == [bits(run(part)) for part in parts]


# Whole loops: between the first iteration and the last only addresses change


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("count", range(3, 9))
def test_states_that_are_handed_on_keep_their_values(count, reverse):
    """A register of elements, two states that change places, one that stays, one of an element."""

    @tf.function
    def run(init, xs):
        def f(state, x):
            a, b, c, p, q, stays, last = state
            return (x + a, a, b, q, p, stays, x), (c, p - q, last)

        # Nobody but the loop has its initial values.
        start = tf.nest.map_structure(lambda t: -t, init)
        return tf_ti.scan(f, start, xs, reverse=reverse)

    xs = numbers(tf.float32, (count, 5), count, special=False)
    init = [numbers(tf.float32, (5,), 10 + i, special=False) for i in range(7)]
    state, expected = [-np.asarray(t) for t in init], []
    for x in xs.numpy()[:: -1 if reverse else 1]:
        a, b, c, p, q, stays, last = state
        expected.append([c, p - q, last])
        state = [x + a, a, b, q, p, stays, x]
    for _ in range(2):
        found, ys = run(tuple(init), xs)
        for a, e in zip(found, state, strict=True):
            check(a, e)
        for y, e in zip(ys, zip(*expected), strict=True):
            check(y, np.stack(e)[:: -1 if reverse else 1])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4, 7])
@pytest.mark.parametrize("width", [3, 8, 16])
def test_states_that_are_outputs_keep_their_values_for_the_gradient(width, count, reverse):
    # A history of 32 floats, or of 16, has rows without gaps, and may lie in the output's memory.
    a, b = (numbers(tf.float32, [2, width], seed, special=False) for seed in (1, 2))
    xs = numbers(tf.float32, [count, 2, width], 3, special=False)

    def body(states, x):
        a, b = states
        a, b = tf.tanh(a * x + b), a
        return (a, b), (a * x, a, b, a)

    def results(fuse):
        with tf.GradientTape() as tape:
            tape.watch([a, b, xs])
            outputs = tf_ti.scan(body, (a, b), xs, reverse=reverse, fuse=fuse)
            tensors = tf.nest.flatten(outputs)
            loss = tf.add_n([tf.reduce_sum(tf.sin(t) * k) for k, t in enumerate(tensors, 1)])
        return [*tensors, *tape.gradient(loss, [a, b, xs])]

    run = tf.function(results)
    expected = run(False)
    for _ in range(2):  # all iterations of the second call are a program's
        for x, y in zip(run(True), expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("width", [3, 16])
@pytest.mark.parametrize("seed", range(6))
def test_states_that_become_one_value_have_gradients_of_their_own(seed, width, reverse):
    random = np.random.default_rng(seed)
    num_states = random.integers(2, 5)
    starts = [numbers(tf.float32, [2, width], k, special=False) for k in range(num_states)]
    xs = numbers(tf.float32, [random.integers(4, 9), 2, width], 9, special=False)
    become = random.integers(0, 2, num_states)  # which of two values each state becomes
    written = random.integers(0, 2 + num_states, 2)

    def body(states, x):
        first = tf.tanh(tf.add_n([s * 0.2 * (k + 1.0) for k, s in enumerate(states)]) * tf.sin(x))
        values = [first, tf.sin(states[0] - first)]
        results = [*values, *states]
        return tuple(values[k] for k in become), tuple(results[k] for k in written)

    def loss(states, ys):
        tensors = [*tf.nest.flatten(states), *tf.nest.flatten(ys)]
        return tf.add_n([tf.reduce_sum(tf.sin(t) * k) for k, t in enumerate(tensors, 1)])

    @tf.function
    def gradients(starts, xs):
        with tf.GradientTape() as tape:
            tape.watch([starts, xs])
            found = loss(*tf_ti.scan(body, tuple(starts), xs, reverse=reverse))
        return tape.gradient(found, [*starts, xs])

    with tf.GradientTape() as tape:
        tape.watch([starts, xs])
        states, rows = tuple(starts), []
        for x in tf.unstack(xs)[:: -1 if reverse else 1]:
            states, row = body(states, x)
            rows.append(row)
        ys = [tf.stack(column) for column in zip(*rows[:: -1 if reverse else 1])]
        expected = tape.gradient(loss(states, ys), [*starts, xs])
    for _ in range(2):
        for x, y in zip(gradients(starts, xs), expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)


def test_values_that_no_program_computes_are_handed_on_too():
    @tf.function
    def run(xs, names):
        def f(state, x):
            total, half, name = state
            value, other, text = x
            return (total + value, other, text), (total, half, name)

        halves = tf.cast(xs * 2.0, tf.float16)
        return tf_ti.scan(f, (0.0, tf.constant(0.5, tf.float16), "none"), (xs, halves, names))

    xs = tf.range(12, dtype=tf.float32)
    names = tf.constant([f"name {i}" for i in range(12)])
    for _ in range(2):
        state, (totals, halves, texts) = run(xs, names)
        np.testing.assert_array_equal(totals, np.cumsum(xs) - xs)
        np.testing.assert_array_equal(halves, [0.5, *(2.0 * xs.numpy()[:-1])])
        assert [t.decode() for t in texts.numpy()] == ["none", *(f"name {i}" for i in range(11))]
        assert state[2] == b"name 11"


def test_histories_in_a_block_become_tensors_where_kernels_read_them():
    """The forward loop is one program; the second derivative's is not."""

    @tf.function
    def run(xs):
        with tf.GradientTape() as outer:
            outer.watch(xs)
            with tf.GradientTape() as inner:
                inner.watch(xs)
                state, ys = tf_ti.scan(lambda c, x: (c * x + tf.sin(c), c * c), xs[0], xs)
                loss = tf.reduce_sum(state) + tf.reduce_sum(ys)
            gradient = inner.gradient(loss, xs)
            square = tf.reduce_sum(gradient * gradient)
        return gradient, outer.gradient(square, xs)

    def with_python(xs):
        with tf.GradientTape() as outer:
            outer.watch(xs)
            with tf.GradientTape() as inner:
                inner.watch(xs)
                c, loss = xs[0], 0.0
                for x in tf.unstack(xs):
                    loss += tf.reduce_sum(c * c)
                    c = c * x + tf.sin(c)
                loss += tf.reduce_sum(c)
            gradient = inner.gradient(loss, xs)
            square = tf.reduce_sum(gradient * gradient)
        return gradient, outer.gradient(square, xs)

    xs = numbers(tf.float32, (9, 3), 5, special=False) * 0.7
    for a, e in zip(run(xs), with_python(xs), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4)


def test_a_whole_loop_is_cancelled():
    """Within a moment, however many iterations are left."""
    manager, moments = cancellation.CancellationManager(), []

    def cancel():
        moments.append(time.perf_counter())
        manager.start_cancel()

    @tf.function
    def run(xs):
        return tf_ti.scan(lambda c, x: (tf.tanh(c + x), None), tf.zeros([4096]), xs)[0]

    xs = tf.zeros([4_000_000, 1])
    call = manager.get_cancelable_function(run.get_concrete_function(xs))
    threading.Timer(0.3, cancel).start()
    with pytest.raises(tf.errors.CancelledError):
        call(xs)
    # The loop would take seconds.
    assert time.perf_counter() - moments[0] < 0.5


# Shapes and lives


def test_states_that_grow_keep_their_values():
    @tf.function
    def run(xs):
        def f(c, x):
            return tf.concat([c * 2.0, x[None]], 0), tf.reduce_sum(c)

        return tf_ti.scan(f, tf.zeros([0]), xs, shape_invariants=tf.TensorShape([None]))

    xs = tf.range(12, dtype=tf.float32)
    for _ in range(2):
        state, sums = run(xs)
        expected, totals = np.zeros(0, np.float32), []
        for x in xs.numpy():
            totals.append(expected.sum())
            expected = np.append(expected * 2, x)
        np.testing.assert_array_equal(state, expected)
        np.testing.assert_array_equal(sums, totals)


def test_shapes_that_depend_on_values_are_looked_at():
    """The middle of the body has another size in each iteration."""

    @tf.function
    def run(xs):
        def f(c, x):
            large = tf.boolean_mask(x, x > c)
            scaled = large * 2.0 + 1.0
            count = tf.cast(tf.shape(scaled)[0], tf.float32)
            return c + 1.0, tf.reduce_sum(scaled) / (count + 1.0) - count

        return tf_ti.scan(f, 0.0, xs)[1]

    xs = numbers(tf.float32, (20, 15), 4, special=False) * 10
    expected, c = [], 0.0
    for x in xs.numpy():
        large = x[x > c]
        expected.append((large * 2 + 1).sum(dtype=np.float64) / (len(large) + 1) - len(large))
        c += 1
    for _ in range(2):
        np.testing.assert_allclose(run(xs), expected, rtol=1e-5)


def test_a_size_that_depends_on_values_is_known_to_no_program():
    """Only kernels have the array whose size it is."""

    @tf.function
    def run(xs):
        def f(c, x):
            count = tf.shape(tf.boolean_mask(x, x > c))[0]
            same = tf.size(tf.unique(tf.range(count))[0])
            return c + 0.5, tf.cast(count + same, tf.float32)

        return tf_ti.scan(f, -1.0, xs)[1]

    xs = numbers(tf.float32, (12, 15), 4, special=False)
    counts = [int((x > -1 + 0.5 * k).sum()) for k, x in enumerate(xs.numpy())]
    for _ in range(2):
        np.testing.assert_array_equal(run(xs), [2 * n for n in counts])


def test_calls_of_many_shapes_are_right():
    @tf.function(reduce_retracing=True, input_signature=[tf.TensorSpec([None, None])])
    def run(xs):
        return tf_ti.scan(lambda c, x: (c + tf.reduce_sum(x), x * c - 1.0), 0.0, xs)

    for size in list(range(1, 20)) * 2:
        xs = numbers(tf.float32, (5, size), size, special=False)
        c, ys = 0.0, []
        for x in xs.numpy():
            ys.append(x * np.float32(c) - 1)
            c += x.sum()
        total, found = run(xs)
        np.testing.assert_allclose(found, ys, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(total, c, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_short_loops_are_right(count):
    xs = numbers(tf.float32, (count, 4), 1, special=False)

    @tf.function
    def run(xs):
        return tf_ti.scan(lambda c, x: (c * 0.5 + x, c - x), tf.ones([4]), xs)

    for _ in range(3):
        c, ys = np.ones(4, np.float32), []
        for x in xs.numpy():
            ys.append(c - x)
            c = c * np.float32(0.5) + x
        state, found = run(xs)
        np.testing.assert_array_equal(state, c)
        np.testing.assert_array_equal(found, np.reshape(ys, [count, 4]))


def test_an_initial_value_of_two_states_is_not_written():
    start = tf.ones([5])

    @tf.function
    def run(start, xs):
        def f(s, x):
            a, b = s
            return (b + x, a * 2.0), a

        return tf_ti.scan(f, (start, start), xs)

    xs = numbers(tf.float32, (6, 5), 2, special=False)
    for _ in range(3):
        (a, b), ys = run(start, xs)
        x, y, expected = np.ones(5, np.float32), np.ones(5, np.float32), []
        for element in xs.numpy():
            expected.append(x)
            x, y = y + element, x * 2
        check(a, x)
        check(b, y)
        check(ys, np.stack(expected))
    np.testing.assert_array_equal(start, np.ones(5))


def test_effects_keep_their_order():
    log = tf.Variable(tf.zeros([0]), shape=[None])

    @tf.function
    def run(xs):
        def f(c, x):
            y = tf.sqrt(x * 2.0) + c
            log.assign(tf.concat([log, [y]], 0))
            z = y * 2.0
            log.assign(tf.concat([log, [z]], 0))
            return z - y, z

        return tf_ti.scan(f, 0.0, xs)[1]

    xs = tf.range(1, 9, dtype=tf.float32)
    run(xs)
    expected, c = [], np.float32(0)
    for x in xs.numpy():
        y = np.sqrt(x * np.float32(2)) + c
        expected += [y, y * 2]
        c = y * 2 - y
    np.testing.assert_allclose(log, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "failing",
    [
        lambda x, table: 12 // x,
        lambda x, table: tf.math.floormod(12, x),
        lambda x, table: tf.gather(table, x - 1),
        lambda x, table: tf.gather(table, x - 1) * 2.0,
        lambda x, table: tf.identity(12 // x),
        lambda x, table: tf.group(12 // x),
        lambda x, table: tf.group(tf.group(12 // x), tf.gather(table, x - 1)),
    ],
)
@pytest.mark.parametrize("fuse", [Fuse.NOTHING, Fuse.PROGRAMS, Fuse.WHOLE])
@pytest.mark.parametrize("through", ["a constant", "the operation"])
@pytest.mark.needs_checked_ids
def test_an_operation_that_fails_keeps_effects_after_it_from_happening(failing, fuse, through):
    count, table = tf.Variable(0.0), tf.constant([1.0, 2.0, 3.0])
    one = tf.constant(1.0)

    @tf.function
    def run(xs):
        def f(c, x):
            with tf.control_dependencies([failing(x, table)]):
                count.assign_add(1.0 if through == "a constant" else one)
            return c + 1.0, None

        return tf_ti.scan(f, 0.0, xs, fuse=fuse)

    for calls in 1, 2:
        with pytest.raises(tf.errors.InvalidArgumentError, match="iteration 2"):
            run(tf.constant([1, 2, 0, 3]))
        assert count.numpy() == 2 * calls


def test_threads_run_one_loop_at_once():
    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def run(xs):
        return tf_ti.scan(lambda c, x: (c * 0.9 + tf.reduce_max(x), x / (1.0 + c * c)), 0.0, xs)

    inputs = [numbers(tf.float32, (30, 5 + i), i, special=False) for i in range(8)]
    expected = [run(xs) for xs in inputs]
    for i, results in enumerate(in_threads(lambda i: run(inputs[i]), times=20)):
        for result in results:
            for a, e in zip(result, expected[i]):
                check(a, e)
