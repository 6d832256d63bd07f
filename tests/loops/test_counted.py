"""While loops that count have a number of iterations, and nobody sees a difference."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from while_oracle import WAYS, accelerated, assert_same, explained

import tf_ti

pytestmark = pytest.mark.quarter

X = tf.constant(np.random.default_rng(0).normal(size=(4, 3)), tf.float64)


# --- random loops --------------------------------------------------------------------------------

COMPARISONS = {
    1: [
        lambda k, n: k < n,
        lambda k, n: n > k,
        lambda k, n: k <= n - 1,
        lambda k, n: n - 1 >= k,
    ],
    -1: [
        lambda k, n: k > -n,
        lambda k, n: -n < k,
        lambda k, n: k >= 1 - n,
        lambda k, n: 1 - n <= k,
    ],
}
STEPS = {
    1: [
        lambda k: k + 1,
        lambda k: 1 + k,
        lambda k: k - (-1),
    ],
    -1: [
        lambda k: k - 1,
        lambda k: k + (-1),
        lambda k: -1 + k,
    ],
}


def of_seed(seed):
    """A loop of a random form, which counts, and the first number and the bound that it gets."""
    rng = np.random.default_rng(seed)
    sign, dtype = int(rng.choice([1, -1])), [tf.int32, tf.int64][rng.integers(2)]
    compare, step = rng.integers(4), rng.integers(3)
    first, bound = int(rng.integers(-2, 3)), int(rng.integers(-3, 7))
    is_first_known, is_bound_state = rng.integers(2, size=2)
    place = ["constant", "argument", "extent"][rng.integers(3)]
    limit = int(rng.integers(0, 6))
    limited = ["no", "constant", "tensor", "argument"][rng.integers(4)]

    def function(loop, x, first_given, bound_given):
        start = tf.constant(first, dtype) if is_first_known else tf.cast(first_given, dtype)
        end = {
            "constant": tf.constant(bound, dtype),
            "argument": tf.cast(bound_given, dtype),
            "extent": tf.cast(tf.shape(x)[0], dtype),
        }[place]

        def condition(k, *rest):
            return COMPARISONS[sign][compare](k, rest[1] if is_bound_state else end)

        def body(k, h, *rest):
            return (STEPS[sign][step](k), tf.sin(h) + x * tf.cast(k, tf.float64), *rest)

        start = [start, x, *([end] if is_bound_state else [])]
        most = {
            "no": None,
            "constant": limit,
            "tensor": tf.constant(limit),
            "argument": bound_given,
        }
        return loop(condition, body, start, maximum_iterations=most[limited])

    return function, tf.constant(first), tf.constant(bound)


@pytest.mark.parametrize("seed", range(24))
def test_random_loops(seed):
    print(f"seed {seed}")
    function, first, bound = of_seed(seed)
    assert_same(function, X, first, bound)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24, 64))
def test_more_random_loops(seed):
    test_random_loops(seed)


# --- forms ---------------------------------------------------------------------------------------


def simple(compare, step=lambda k: k + 1, first=0):
    def function(loop, x):
        return loop(
            lambda k, h: compare(k, h, x), lambda k, h: (step(k), tf.sin(h) + x), [first, x]
        )

    return function


COUNTED = {
    "a constant": (simple(lambda k, h, x: k < 5), "loop_vars[0] from 0 to 5"),
    "no iteration": (simple(lambda k, h, x: k < -5), "loop_vars[0] from 0 to -5"),
    "an extent": (simple(lambda k, h, x: k < tf.shape(x)[0]), "loop_vars[0] from 0 to 4"),
    "a rank": (simple(lambda k, h, x: k < tf.rank(x)), "loop_vars[0] from 0 to 2"),
    "up to a bound": (simple(lambda k, h, x: k <= 5, first=2), "loop_vars[0] from 2 to 5"),
    "down": (simple(lambda k, h, x: k >= 0, lambda k: k - 1, 4), "loop_vars[0] from 4 to 0"),
}
LEFT = {
    "a bound that changes": simple(lambda k, h, x: k < tf.cast(tf.reduce_sum(h), tf.int32)),
    "a step of 2": simple(lambda k, h, x: k < 5, lambda k: k + 2),
    "the wrong direction": simple(lambda k, h, x: k > -3, lambda k: k + 2, -3),
    "another comparison": simple(lambda k, h, x: k != 5),
    "more than a comparison": simple(lambda k, h, x: tf.logical_and(k < 5, h[0, 0] < 2.0)),
    "a number of 8 bits": simple(lambda k, h, x: k < 5, first=tf.constant(0, tf.int8)),
    "a floating number": simple(lambda k, h, x: k < 5.0, lambda k: k + 1.0, first=0.0),
    "no counter": simple(lambda k, h, x: k < 5, lambda k: k * 2, first=1),
    "a bound that may fail": simple(lambda k, h, x: k < tf.gather([3, 4, 5], k - k + 1)),
}


@pytest.mark.parametrize("form", COUNTED)
def test_a_loop_that_counts(form):
    function, text = COUNTED[form]
    assert assert_same(function, X).counted == f"counted: {text}"


@pytest.mark.parametrize("form", LEFT)
def test_another_loop_is_left(form):
    assert assert_same(LEFT[form], X).counted == ""


def test_two_counters():
    def function(loop, x, bound):
        def body(i, h, j):
            return i + 1, h + tf.sin(x) * tf.cast(i * j, tf.float64), j - 1

        return loop(lambda i, h, j: bound(i, j), body, [0, x, 3])

    of_both = lambda i, j: j > i - 4  # noqa: E731, neither is the same in all iterations
    assert assert_same(lambda loop, x: function(loop, x, of_both), X).counted == ""
    found = assert_same(lambda loop, x: function(loop, x, lambda i, j: j > 0), X)
    assert found.counted == "counted: loop_vars[2] from 3 to 0"


def test_a_condition_with_effects_is_left():
    seen = []

    def run(loop):
        def condition(k):
            tf.py_function(lambda k: seen.append(int(k)), [k], [])
            return k < 3

        tf.function(lambda: loop(condition, lambda k: [k + 1], [0]))()
        found = seen.copy()
        seen.clear()
        return found

    assert run(tf.while_loop) == run(tf_ti.while_loop) == run(accelerated) == [0, 1, 2, 3]


def test_effects_of_the_body_stay_in_order():
    for loop in (tf.while_loop, *WAYS.values()):
        v = tf.Variable(1.0, dtype=tf.float64)

        def body(k, v=v):
            v.assign(v * 2.0 + tf.cast(k, tf.float64))
            return [k + 1]

        tf.function(lambda: loop(lambda k: k < 4, body, [0]))()  # noqa: B023
        assert v.numpy() == 27.0


def test_a_shape_that_changes():
    def function(loop, x):
        shapes = [tf.TensorShape([]), tf.TensorShape([None, 3])]
        return loop(lambda k, h: k < 3, lambda k, h: (k + 1, tf.concat([h, x], 0)), [0, x], shapes)

    assert assert_same(function, X).counted == "counted: loop_vars[0] from 0 to 3"


@pytest.mark.parametrize("way", WAYS)
def test_no_gradient_without_back_prop(way):
    def call(x):
        loop = WAYS[way]
        return loop(lambda k, h: k < 3, lambda k, h: (k + 1, h * x), [0, x], back_prop=False)

    with tf.GradientTape() as tape:
        tape.watch(X)
        y = tf.function(call)(X)[1]
    assert tape.gradient(y, X) is None


def test_xla_needs_no_limit_for_a_gradient():
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf_ti.while_loop(lambda k, h: k < 4, lambda k, h: (k + 1, tf.sin(h) * x), [0, x])[1]
        return y, tape.gradient(y, x)

    compiled = tf.function(function, jit_compile=True)(X)
    for got, wanted in zip(compiled, function(X), strict=True):
        np.testing.assert_allclose(got, wanted, 1e-5)


@pytest.mark.parametrize("place", ["value", "extent"])
def test_xla_compiles_gradients_of_bounds_that_it_does_not_know(place):
    def gradient(loop, x, n):
        with tf.GradientTape() as tape:
            tape.watch(x)
            end = n if place == "value" else tf.shape(x)[0]

            def body(k, h):
                return k + 1, tf.sin(h) * x

            y = loop(lambda k, h: k < end, body, [0, x], maximum_iterations=6)[1]
        return tape.gradient(y, x)

    expected = tf.function(lambda x, n: gradient(tf.while_loop, x, n))(X, tf.constant(4))
    compiled = tf.function(lambda x, n: gradient(tf_ti.while_loop, x, n), jit_compile=True)
    np.testing.assert_allclose(compiled(X, tf.constant(4)), expected, 1e-9)


def test_a_saved_loop_counts(tmp_path):
    module = tf.Module()
    spec = tf.TensorSpec([None, 3], tf.float64)
    function = simple(lambda k, h, x: k < tf.shape(x)[0])
    module.run = tf.function(lambda x: function(tf_ti.while_loop, x), input_signature=[spec])
    assert tf_ti.explain(module.run).loops[0].counted.endswith("strided_slice'")
    tf.saved_model.save(module, str(tmp_path))
    for got, wanted in zip(tf.saved_model.load(str(tmp_path)).run(X), function(tf.while_loop, X)):
        np.testing.assert_allclose(got, wanted, 1e-6)


def test_without_fuse_nothing_counts():
    def call(x):
        return tf_ti.while_loop(lambda k: k < 4, lambda k: [k + 1], [0], fuse=False)

    assert explained(call, X).counted == ""


def counts(condition, by=1, dtype=tf.int32, **options):
    """How many iterations a loop has, from a number that is given when it runs."""

    def call(loop, first, bound):
        def body(k, c):
            return k + tf.constant(by, dtype), c + 1

        return loop(lambda k, _: condition(k, bound), body, (first, 0), **options)[1]

    return call


def last_of(bound):
    return tf.maximum(bound - 1, 0)


FAR = {"maximum_iterations": 20}
EDGES = {
    "to the last of none": (counts(lambda k, n: k <= last_of(n)), 0, [0, 1, 3]),
    "from the last of none": (
        lambda loop, first, n: counts(lambda k, _: k >= 0, -1)(loop, last_of(n), n),
        0,
        [0, 3],
    ),
    "to the least int64": (
        counts(lambda k, n: k < n, dtype=tf.int64, **FAR),
        5,
        [tf.int64.min, tf.int64.min + 3, -1, 9],
    ),
    "past the largest int32": (
        counts(lambda k, _: k <= tf.int32.max, **FAR),
        tf.int32.max - 3,
        [0],
    ),
    "past the least int32": (counts(lambda k, _: k >= tf.int32.min, -1, **FAR), tf.int32.min, [0]),
}


def called(call, loop, specs, *given):
    """A function of a loop, traced for arguments of these types, or with the arguments."""
    if specs is None:
        return tf.function(lambda: call(loop, *given))()
    return tf.function(lambda *arguments: call(loop, *arguments), specs)(*given)


def assert_counts(call, specs, *given):
    found, expected = (called(call, w, specs, *given) for w in (tf_ti.while_loop, tf.while_loop))
    assert found == expected


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("is_known", [True, False])
def test_numbers_at_the_edges(name, is_known):
    call, first, bounds = EDGES[name]
    dtype = tf.int64 if "int64" in name else tf.int32
    specs = None if is_known else [tf.TensorSpec([], dtype)] * 2
    for bound in bounds:
        assert_counts(call, specs, tf.constant(first, dtype), tf.constant(bound, dtype))


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("compare", [tf.less, tf.less_equal, tf.greater, tf.greater_equal])
@pytest.mark.parametrize("known", ["both", "first", "bound", "none"])
def test_every_form_of_bounds(compare, known, dtype):
    by = 1 if compare in (tf.less, tf.less_equal) else -1
    call = counts(lambda k, n: compare(k, n), by, dtype)
    for first, bound in itertools.product((-2, 0, 1, 4), range(-3, 6)):
        numbers = [tf.constant(first, dtype), tf.constant(bound, dtype)]
        specs = [tf.TensorSpec([], dtype)] * 2

        def partly(loop, *given, numbers=numbers):
            is_known = known in ("both", "first"), known in ("both", "bound")
            return call(loop, *(n if k else g for n, k, g in zip(numbers, is_known, given)))

        expected = max(by * (bound - first) + (compare in (tf.less_equal, tf.greater_equal)), 0)
        assert called(partly, tf_ti.while_loop, specs, *numbers) == expected


def test_a_limit_and_a_bound_that_it_is_when_it_was_cast():
    """The cast of 2**32 + 3 is 3."""

    def body(k):
        with tf.control_dependencies([tf.debugging.assert_less(k, 10)]):
            return [k + 1]

    def call(n):
        bound = tf.cast(n, tf.int32)
        return tf_ti.while_loop(lambda k: k < bound, body, [0], maximum_iterations=n)[0]

    assert tf.function(call, [tf.TensorSpec([], tf.int64)])(2**32 + 3) == 3


def test_an_extent_that_may_be_none_is_no_extent():
    def call(loop, x):
        last = last_of(tf.shape(x)[0])
        return loop(lambda k, _: k <= last, lambda k, c: (k + 1, c + 1), (0, 0))[1]

    for count in (0, 1, 3):
        assert_counts(call, [tf.TensorSpec([None])], tf.zeros([count]))


@pytest.mark.parametrize("loop", [tf.while_loop, tf_ti.while_loop])
def test_a_counter_that_wraps_around_reads_no_slices(loop):
    xs = tf.range(40.0)

    def call(loop):
        def body(k, i, c):
            return k + tf.constant(1, tf.int8), i + 1, c + xs[tf.cast(k, tf.int32)]

        return loop(lambda k, i, c: i < 40, body, (tf.constant(100, tf.int8), 0, 0.0))

    with pytest.raises(tf.errors.InvalidArgumentError):
        called(call, loop, None)


def test_an_array_far_longer_than_its_loop_stays_a_list():
    def call(x):
        def body(h, k, array):
            return h + 1.0, k + 1, array.write(k, tf.fill([100_000], h))

        array = tf.TensorArray(tf.float32, 10_000, element_shape=[100_000])
        _, k, array = tf_ti.while_loop(lambda h, *_: h < 5.0, body, (x, 0, array))
        return array.read(k - 1)[0]

    concrete = tf.function(call).get_concrete_function(tf.TensorSpec([]))
    (op,) = (op for op in concrete.graph.get_operations() if op.type.startswith("TfTi>"))
    assert b"stack" not in op.get_attr("output_mode")
    assert concrete(tf.constant(0.0)) == 4.0


# --- bodies whose results wait for effects -------------------------------------------------------

FACTOR = tf.Variable(0.5, dtype=tf.float64)
SUM = tf.Variable(0.0, dtype=tf.float64)


@tf.function
def of_a_variable(x):
    return tf.tanh(x) * FACTOR


def checked(x):
    tf.debugging.assert_less(x, tf.constant(100.0, tf.float64))
    return tf.tanh(x)


def added_up(x):
    SUM.assign_add(tf.reduce_sum(x))
    return x * SUM


@pytest.mark.parametrize("step", [of_a_variable, checked, added_up])
def test_a_loop_counts_though_its_results_wait_for_effects(step):
    def run(loop, x):
        SUM.assign(0.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            k, s = loop(lambda k, s: k < 4, lambda k, s: (k + 1, step(x[k]) + tf.sin(s)), (0, x[0]))
            values = tf.cast(k, tf.float64) * s
        return values, tape.gradient(values, x), SUM.read_value()

    expected = tf.function(run)(tf.while_loop, X)
    for found in (tf.function(run)(tf_ti.while_loop, X), run(tf_ti.while_loop, X)):
        for a, e in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-12)
    call = tf.function(lambda x: run(tf_ti.while_loop, x)).get_concrete_function(X)
    assert "counted" in str(tf_ti.explain(call))


def test_an_assert_that_only_results_wait_for_is_an_effect():
    def body(k, s, x):
        check = tf.debugging.Assert(x[k, 0] < 0.0, [k])
        with tf.control_dependencies([check]):
            return tf.identity(k + 1), s + x[k]

    @tf.function
    def run(x):
        return tf_ti.while_loop(lambda k, s: k < 4, lambda k, s: body(k, s, x), (0, x[0]))

    with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
        run(tf.abs(X))
    run(-tf.abs(X) - 1.0)
