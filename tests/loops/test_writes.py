"""TensorArrays that a while loop only writes become stacks, and nobody sees a difference."""

import numpy as np
import pytest
import tensorflow as tf
from while_oracle import WAYS, assert_same, assert_same_for_all, explained

import tf_ti

pytestmark = pytest.mark.quarter

X = tf.constant(np.random.default_rng(0).normal(size=(5, 3)), tf.float64)


def types_of_stacks(loop):
    return [m.operation.type for m in loop.moved if m.place == "as stacks"]


# --- random loops --------------------------------------------------------------------------------


def of_seed(seed):
    """A loop that writes arrays in a random form."""
    rng = np.random.default_rng(seed)
    by, steps_wanted = int(rng.choice([1, 1, -1])), int(rng.integers(0, 7))
    is_whole, has_condition, grows, knows_shape, has_limit = (rng.random(5) < 0.4).tolist()
    size, offset = int(rng.integers(0, 8)), int(rng.choice([0, 0, 0, 1]))
    use = rng.choice(["stack", "read", "size", "gather"])
    num_before = int(rng.choice([0, 0, 1, 2]))

    def function(loop, x):
        n = tf.shape(x)[0]
        length = n if is_whole else size
        array = tf.TensorArray(
            x.dtype,
            0 if grows else length,
            dynamic_size=grows,
            element_shape=[3] if knows_shape else None,
            clear_after_read=False,
        )
        h = tf.ensure_shape(tf.reduce_sum(x, 0), [3])
        for k in range(num_before):
            array = array.write(k, h * k)
        start = length - 1 if by < 0 else num_before
        # TensorFlow's process ends where an index is negative.
        steps = max(min(steps_wanted, size), 0) if by < 0 else steps_wanted
        end = (length if by > 0 else -1) if is_whole else start + by * steps

        def condition(k, h, array):
            test = k < end if by > 0 else k > end
            return tf.logical_and(test, tf.reduce_sum(h) < 4.0) if has_condition else test

        def body(k, h, array):
            h = tf.sin(h) * 0.5 + tf.reduce_mean(x, 0) * tf.cast(k, x.dtype)
            h = tf.ensure_shape(h, [3])
            return k + by, h, array.write(k + offset, h * 2.0)

        limit = 4 if has_limit else None
        k, h, array = loop(condition, body, [start, h, array], maximum_iterations=limit)
        return k, h, *uses(array)

    def uses(array):
        if use == "stack":
            return [array.stack()]
        if use == "read":
            return [array.size(), array.read(1)]
        return [array.size()] if use == "size" else [array.gather([0, 2, 1])]

    return function, bool(rng.integers(2))


@pytest.mark.parametrize("seed", range(32))
def test_random_loops(seed):
    print(f"seed {seed}")
    function, is_open = of_seed(seed)
    assert_same(function, X, is_open=is_open)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(32, 96))
def test_more_random_loops(seed):
    test_random_loops(seed)


# --- forms ---------------------------------------------------------------------------------------


def simple(make, write=lambda a, k, h: a.write(k, h), steps=5, stack=True):
    """A loop with an array, which make and write make and write."""

    def function(loop, x):
        n = tf.shape(x)[0] if steps is None else steps
        row = tf.reshape(tf.reduce_sum(x, 0), [3])

        def body(k, h, array):
            h = tf.sin(h) + row
            return k + 1, h, write(array, k, h)

        k, h, array = loop(lambda k, *_: k < n, body, [0, row, make(x)])
        return k, h, array.stack() if stack else array.read(0)

    return function


def of_size(size, **options):
    return lambda x: tf.TensorArray(x.dtype, size, **options)


def of_extent(x):
    return tf.TensorArray(x.dtype, tf.shape(x)[0])


def with_rows(x):
    return tf.TensorArray(x.dtype, 5).unstack(x)


STACKED = {
    "as many as iterations": simple(of_size(5)),
    "an extent": simple(of_extent, steps=None),
    "a growing array": simple(of_size(0, dynamic_size=True)),
    "a growing array of a known size": simple(of_size(5, dynamic_size=True)),
    "no iteration": simple(of_size(0, element_shape=[3]), steps=0),
    "no iteration, and no shape": simple(of_size(0), steps=0),
    "more elements": simple(of_size(7, element_shape=[3])),
    "the last value": simple(of_size(1), lambda a, k, h: a.write(0, h)),
    "the last value of another": simple(of_size(2), lambda a, k, h: a.write(1, h * h)),
}
LEFT = {
    "more elements of unknown shapes": simple(of_size(7)),
    "too few elements": simple(of_size(3, element_shape=[3])),
    "too few elements of unknown shapes": simple(of_size(3)),
    "elements that are written": simple(with_rows),
    "another index": simple(of_size(10), lambda a, k, h: a.write(2 * k, h)),
    "twice in an iteration": simple(of_size(6), lambda a, k, h: a.write(k, h).write(k + 1, h)),
    "a write that is read": simple(
        of_size(5, clear_after_read=False),
        lambda a, k, h: a.write(k, h + tf.reduce_sum(a.write(k, h).read(k))),
    ),
    "values of the array": simple(
        of_size(5, clear_after_read=False, element_shape=[3]),
        lambda a, k, h: a.write(k, h + tf.reduce_sum(tf.sin(a.stack()))),
    ),
    "the last value of the array": simple(
        of_size(1, clear_after_read=False, element_shape=[3]),
        lambda a, k, h: a.write(0, h + tf.sin(a.read(0))),
    ),
    "a write in a branch": simple(
        of_size(5, element_shape=[3]),
        lambda a, k, h: tf.cond(k % 2 == 0, lambda: a.write(k, h), lambda: a),
    ),
    "values of several shapes": simple(
        of_size(5, infer_shape=False), lambda a, k, h: a.write(k, h[: k + 1]), stack=False
    ),
    "the last value of no iteration": simple(
        of_size(1, element_shape=[3]), lambda a, k, h: a.write(0, h), steps=0
    ),
}


@pytest.mark.parametrize("form", STACKED)
def test_a_written_array_is_a_stack(form):
    is_open = form == "an extent"
    found = assert_same(STACKED[form], X, is_open=is_open)
    assert types_of_stacks(found) == ["TensorListSetItem"]


@pytest.mark.parametrize("rows", [5, 1, 0])
@pytest.mark.parametrize(
    ("is_stacked", "size", "options", "value"),
    [
        (True, 1, {"element_shape": [3]}, lambda h, x: h),
        (True, 2, {"element_shape": [3], "dynamic_size": True}, lambda h, x: h),
        (True, 1, {"element_shape": [None], "infer_shape": False}, lambda h, x: h),
        (False, 0, {"element_shape": [3], "dynamic_size": True}, lambda h, x: h),
        (False, 1, {"element_shape": [3]}, lambda h, x: h * x),
    ],
    ids=["a state", "of two", "open", "grows", "no state"],
)
def test_the_last_value_where_there_may_be_no_iteration(rows, is_stacked, size, options, value):
    def function(loop, x):
        def body(k, h, array):
            h = tf.sin(h) * 0.5 + x[k]
            return k + 1, h, array.write(0, value(h, x[k]))

        x = tf.ensure_shape(x, [None, 3])
        start = tf.reduce_sum(x, 0)
        array = tf.TensorArray(x.dtype, size, **options)
        k, h, array = loop(lambda k, *_: k < tf.shape(x)[0], body, [0, start, array])
        return (k, h, array.read(0)) if size and rows else (k, h, array.size())

    found = assert_same(function, X[:rows], is_open=True)
    assert types_of_stacks(found) == ["TensorListSetItem"] * is_stacked


@pytest.mark.parametrize("form", LEFT)
def test_another_array_is_left(form):
    assert types_of_stacks(assert_same(LEFT[form], X)) == []


def test_backwards():
    def function(loop, x):
        n = tf.shape(x)[0]

        def body(k, h, array):
            h = tf.sin(h) * 2.0
            return k - 1, h, array.write(k, h)

        start = [n - 1, tf.ensure_shape(x[0], [3]), of_extent(x)]
        k, h, array = loop(lambda k, *_: k >= 0, body, start)
        return k, h, array.stack()

    for is_open in (False, True):
        assert types_of_stacks(assert_same(function, X, is_open=is_open))


def test_several_arrays():
    def function(loop, x):
        def body(k, h, first, second, third):
            h = tf.sin(h) + x[k]
            return k + 1, h, first.write(k, h), second.write(k, x[k]), third.write(k, k)

        arrays = [of_size(5)(x), of_size(0, dynamic_size=True)(x), tf.TensorArray(tf.int32, 5)]
        k, h, *arrays = loop(lambda k, *_: k < 5, body, [0, x[0], *arrays])
        return k, h, *(array.stack() for array in arrays)

    assert types_of_stacks(assert_same(function, X)) == ["TensorListSetItem"] * 3


def test_a_condition_ends_the_writes():
    def function(loop, x):
        def body(k, h, known, growing):
            h = h * 0.9 + x[k] ** 2
            return k + 1, h, known.write(k, h), growing.write(k, h)

        arrays = [of_size(5, element_shape=[3])(x), of_size(0, dynamic_size=True)(x)]
        k, h, *arrays = loop(lambda k, h, *_: tf.reduce_sum(h) < 4.0, body, [0, x[0], *arrays])
        return k, h, *(array.stack() for array in arrays)

    assert types_of_stacks(assert_same(function, X)) == ["TensorListSetItem"] * 2


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_an_array_of_an_open_size_that_may_grow(more):
    def function(loop, x):
        n = tf.shape(x)[0]
        array = of_size(n, dynamic_size=True, element_shape=[3])(x)
        k, array = loop(
            lambda k, _: k < n + more,
            lambda k, a: (k + 1, a.write(k, x[0] * tf.cast(k, x.dtype))),
            [0, array],
        )
        return k, array.stack()

    assert_same(function, X, is_open=True)


@pytest.mark.parametrize("rank", [1, 4, 5])
@pytest.mark.parametrize("most", [2, 1500, 6000])
def test_a_state_that_is_cut_to_a_number_of_elements(most, rank):
    """Its elements of the array have two lengths if it was longer, however large the number is.

    A tensor of several unknown extents leaves less room for a sample of the loop.
    """

    def function(loop, x):
        row = x[:, 0]
        many = tf.reshape(row[:1] * 0.0, tf.ones([rank + tf.size(x) * 0], tf.int32))
        many = tf.ensure_shape(many, [None] * rank)
        array = tf.TensorArray(row.dtype, 3, infer_shape=False)
        array = loop(
            lambda k, *_: k < 3,
            lambda k, s, array: (
                k + 1,
                s[:most],
                array.write(k, s + tf.reduce_sum(many * tf.reduce_sum(s))),
            ),
            (0, row, array),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape(None)),
        )[2]
        return [array.concat()]

    rows = [
        tf.cast(tf.range(length), tf.float64)[:, tf.newaxis] / length for length in (1, most + 1)
    ]
    assert_same_for_all(function, [(x,) for x in rows])


def test_large_numbers_of_a_body_are_no_extents():
    """As of a generator of numbers: no tensor of the sample has so many elements."""

    def function(loop, x):
        row = tf.cast(tf.reshape(x, [-1]) * 100.0, tf.int64)
        array = tf.TensorArray(tf.int64, 4, infer_shape=False)

        def body(k, h, array):
            h = h * 6364136223846793005 + tf.constant([1442695040888963407, 2**63 - 1], tf.int64)[0]
            h = tf.concat([h, h], 0)[: tf.shape(h)[0]]
            return k + 1, h, array.write(k, h)

        shape = tf.TensorShape
        invariants = (shape([]), shape([None]), shape(None))
        return loop(lambda k, *_: k < 4, body, (0, row, array), invariants)[2].concat(), x[0]

    assert_same(function, X, is_open=True)


@pytest.mark.parametrize("cut", [lambda h: h[-3000:], lambda h: h[: 2 ** tf.constant(11)]])
def test_a_state_that_is_cut_in_another_way(cut):
    def function(loop, x):
        row = tf.reshape(x, [-1])
        array = tf.TensorArray(row.dtype, 3, infer_shape=False)
        shape = tf.TensorShape
        array = loop(
            lambda k, *_: k < 3,
            lambda k, s, array: (k + 1, cut(s), array.write(k, s)),
            (0, row, array),
            shape_invariants=(shape([]), shape([None]), shape(None)),
        )[2]
        return [array.concat()]

    assert_same(function, tf.cast(tf.range(4000), tf.float64)[:, tf.newaxis] / 4000, is_open=True)


@pytest.mark.parametrize("of", [lambda k: k, lambda k: 2 * k, lambda k: k * 100, lambda k: k + 900])
def test_a_state_that_is_cut_to_another_extent(of):
    def function(loop, x, others):
        row, size = x[:, 0], of(tf.shape(others)[0])
        array = tf.TensorArray(row.dtype, 3, infer_shape=False, element_shape=[None])
        shape = tf.TensorShape
        array = loop(
            lambda k, *_: k < 3,
            lambda k, s, array: (k + 1, tf.sin(s[:size]), array.write(k, s)),
            (0, row, array),
            shape_invariants=(shape([]), shape([None]), shape(None)),
        )[2]
        return [array.concat()]

    rows = [tf.cast(tf.range(length), tf.float64)[:, tf.newaxis] / length for length in (30, 2000)]
    assert_same_for_all(function, [(x, tf.zeros([5])) for x in rows])


@pytest.mark.parametrize("size", [2, 4, 7])
def test_an_array_in_the_place_of_another_of_another_length(size):
    def function(loop, x):
        array = of_size(4, element_shape=[3])(x).unstack(x[:4])

        def body(k, s, array):
            value = array.read(tf.where(k == 0, 3, 1))
            fresh = of_size(size, element_shape=[3])(x).unstack(tf.tile(value[None], [size, 1]))
            return k + 1, s + value, fresh.write(1, value * value * tf.cast(k + 2, x.dtype))

        shape = tf.TensorShape
        invariants = (shape([]), shape([3]), shape(None))
        k, s, array = loop(lambda k, *_: k < 3, body, (0, x[0], array), invariants)
        return k, s, array.read(1)

    assert_same(function, X)


def test_an_array_that_the_condition_reads_is_left():
    def function(loop, x):
        def body(k, h, array):
            return k + 1, tf.sin(h), array.write(k, h)

        array = of_size(5, element_shape=[3])(x)
        return loop(lambda k, h, a: tf.reduce_sum(a.read(2)) == 0.0, body, [0, x[0], array])[:2]

    assert types_of_stacks(assert_same(function, X)) == []


def test_xla_compiles_stacks():
    function = STACKED["a growing array"]
    compiled = tf.function(lambda x: function(tf_ti.while_loop, x), jit_compile=True)(X)
    for got, wanted in zip(compiled, function(tf.while_loop, X), strict=True):
        np.testing.assert_allclose(got, wanted, 1e-9)


def test_a_saved_loop_stacks(tmp_path):
    module, function = tf.Module(), STACKED["an extent"]
    spec = tf.TensorSpec([None, 3], tf.float64)
    module.run = tf.function(lambda x: function(tf_ti.while_loop, x), input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path))
    for got, wanted in zip(tf.saved_model.load(str(tmp_path)).run(X), function(tf.while_loop, X)):
        np.testing.assert_allclose(got, wanted, 1e-9)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("start", [None, "zeros"])
def test_a_scan_of_tensorflow_is_one_program(start, is_open):
    def scan(x):
        first = None if start is None else tf.zeros([3], tf.float64)
        return tf.scan(lambda h, x: tf.where(h > x, h * 0.9 + tf.exp(-h * h), x), x, first)

    spec = tf.TensorSpec([None, 3] if is_open else X.shape, tf.float64)
    expected = tf.function(scan)(X)
    with tf_ti.accelerate():
        function = tf.function(scan, input_signature=[spec])
        np.testing.assert_allclose(function(X), expected, 1e-9)
        loop = explained(scan, spec)
    assert types_of_stacks(loop) == ["TensorListSetItem"]
    assert loop.runs_as.startswith("one program")


def test_a_map_of_tensorflow_is_no_loop():
    def map_all(x):
        return tf.map_fn(lambda row: tf.sin(row) * 2.0, x)

    with tf_ti.accelerate():
        assert explained(map_all, X).runs_as.startswith("no loop")
        np.testing.assert_allclose(tf.function(map_all)(X), tf.sin(X) * 2.0, 1e-9)


def test_a_layer_of_keras_is_a_sequence():
    from keras.layers import LSTM

    x = tf.constant(np.random.default_rng(1).normal(size=(4, 6, 3)), tf.float32)
    for returns_all in (True, False):
        layer = LSTM(5, return_sequences=returns_all)
        expected = layer(x)
        with tf_ti.accelerate():
            loop = explained(layer, x)
            np.testing.assert_allclose(tf.function(layer)(x), expected, 1e-5, 1e-6)
        assert loop.runs_as == "one sequence of LSTM cells"


def test_iterations_with_effects():
    seen = []

    def run(loop):
        def body(k, array):
            tf.py_function(lambda k: seen.append(int(k)), [k], [])
            return k + 1, array.write(k, tf.cast(k, tf.float32))

        k, array = loop(lambda k, _: k < 4, body, [0, tf.TensorArray(tf.float32, 4)])
        return array.stack()

    for loop in WAYS.values():
        seen.clear()
        np.testing.assert_array_equal(tf.function(run, autograph=False)(loop), [0, 1, 2, 3])
        assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize("form", ["an extent", "a growing array", "the last value of another"])
def test_forward_mode(form):
    def tangent(loop, x):
        with tf.autodiff.ForwardAccumulator(x, tf.cos(x)) as accumulator:
            values = STACKED[form](loop, x)
        return [accumulator.jvp(value) for value in values[1:]]

    @tf.function
    def by_gradients(x):
        """The tangent as the derivative of a gradient's product, of TensorFlow's loop."""
        values = STACKED[form](tf.while_loop, x)[1:]
        weights = [tf.ones_like(value) for value in values]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            with tf.GradientTape() as inner:
                inner.watch(x)
                values = STACKED[form](tf.while_loop, x)[1:]
                total = tf.add_n([tf.reduce_sum(v * w) for v, w in zip(values, weights)])
            product = tf.reduce_sum(inner.gradient(total, x) * tf.cos(x))
        return tape.gradient(product, weights)

    expected = by_gradients(X)
    for loop in WAYS.values():
        found = tf.function(lambda x, loop=loop: tangent(loop, x))(X)
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, wanted, 1e-9)


# --- open shapes ---------------------------------------------------------------------------------


def with_states(start, step, value=lambda old, new: new, at=0):
    """A loop over x whose array gets values of unknown extents; start makes the first state."""

    def function(loop, x):
        array, first = tf.TensorArray(x.dtype, tf.shape(x)[0], infer_shape=False), start(x)

        def body(k, h, array):
            new = step(h, x[k])
            return k + 1, new, array.write(k, value(h, new))

        shapes = [tf.TensorShape([]), tf.TensorShape([None] * first.shape.rank), tf.TensorShape([])]
        k, h, array = loop(lambda k, *_: k < tf.shape(x)[0], body, [0, first, array], shapes)
        return k, h, array.read(at)

    return function


def zeros(x):
    return tf.zeros([tf.shape(x)[1]], x.dtype)


STEADY = {
    "zeros as wide as the elements": with_states(zeros, lambda h, x: tf.sin(h) * 0.5 + x),
    "zeros like an element": with_states(lambda x: tf.zeros_like(x[0]), lambda h, x: tf.sin(h) + x),
    "an element": with_states(lambda x: x[0], lambda h, x: tf.sin(h) + x),
    "a product": with_states(
        lambda x: tf.zeros([3, tf.shape(x)[1]], x.dtype),
        lambda h, x: tf.linalg.matmul(tf.eye(3, dtype=x.dtype), tf.sin(h)) + x,
    ),
    "extents in the body": with_states(
        zeros, lambda h, x: tf.reshape(tf.reshape(tf.sin(h) + x, [1, -1]), [tf.shape(x)[0]])
    ),
}
UNSTEADY = {
    "one row that becomes many": with_states(
        lambda x: tf.zeros([tf.shape(x)[1] // 3], x.dtype),
        lambda h, x: tf.sin(h) * 0.5 + x,
        lambda old, new: old,
    ),
    "a state that grows": with_states(zeros, lambda h, x: tf.concat([h, x], 0), at=2),
    "a value as long as the counter": with_states(
        zeros, lambda h, x: tf.sin(h) + x, lambda old, new: new[: tf.size(new) // 2]
    ),
    "an extent that a value tells": with_states(
        zeros, lambda h, x: h + x, lambda old, new: tf.boolean_mask(new, new > 0.0)
    ),
    "extents that are a pair's sum": with_states(
        zeros, lambda h, x: tf.concat([h[:2], x[:1]], 0), lambda old, new: new
    ),
}


@pytest.mark.parametrize("form", STEADY)
def test_values_of_one_unknown_shape(form):
    assert types_of_stacks(assert_same(STEADY[form], X, is_open=True)) == ["TensorListSetItem"]


@pytest.mark.parametrize("form", UNSTEADY)
def test_values_whose_shapes_may_differ(form):
    found = types_of_stacks(assert_same(UNSTEADY[form], X, is_open=True))
    assert found == [] or form == "a value as long as the counter"


SIZES = {
    "slice": lambda x, k, size: tf.slice(x, [k, 0], [size, 1])[:, 0],
    "reshape": lambda x, k, size: tf.reshape(x[k:, 0], [size]),
    "reshape to rows": lambda x, k, size: tf.reshape(x[k:], tf.stack([size, 3]))[:, 0],
    "split": lambda x, k, size: tf.split(x[k:, 0], tf.stack([1, size]), 0)[1],
}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("form", SIZES)
def test_sizes_that_may_be_the_rest(form, is_first):
    """A size of -1 means the rest, so a value of such a size has several shapes."""

    def function(loop, x, other):
        n = tf.shape(x)[0]
        size = tf.shape(other)[0] - n if is_first else n - tf.shape(other)[0]
        array = tf.TensorArray(x.dtype, n, infer_shape=False, element_shape=[None])

        def body(k, array):
            return k + 1, array.write(k, tf.sin(SIZES[form](x, k, size)))

        return [loop(lambda k, _: k < n - 1, body, [0, array])[1].concat()]

    x = tf.tile(X, [2, 1])
    assert_same_for_all(function, [(x[:rows], tf.zeros([11 - rows])) for rows in (5, 6)])


@pytest.mark.parametrize("returns_all", [True, False])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
def test_layers_of_keras_with_open_batches(kind, returns_all):
    import keras

    layer = getattr(keras.layers, kind)(5, return_sequences=returns_all)
    values = np.random.default_rng(1).normal(size=(4, 6, 3))

    def train(x):
        with tf.GradientTape() as tape:
            y = layer(x)
            loss = tf.reduce_sum(y**2)
        return y, *tape.gradient(loss, layer.trainable_weights)

    x, spec = tf.constant(values, tf.float32), tf.TensorSpec([None, None, 3])
    layer(x)
    expected = tf.function(train, input_signature=[spec])(x)
    with tf_ti.accelerate():
        found = tf.function(train, input_signature=[spec])(x)
        (loop,) = tf_ti.explain(layer, tf.TensorSpec([None, 6, 3]))
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, 1e-4, 1e-5)
    assert loop.runs_as.startswith("one sequence of")


@pytest.mark.parametrize("rows", [0, 1, 2, 3])
@pytest.mark.parametrize("is_masked", [True, False])
def test_a_state_that_no_iteration_reads_and_that_begins_in_another_shape(is_masked, rows):
    w = tf.constant(np.random.default_rng(3).normal(size=(3, 3)) * 0.5, tf.float64)

    def function(loop, x):
        both = tf.stack([x, x * 2.0], 1)

        def body(k, h, y):
            new = tf.tanh(both[k] @ w + h @ w)
            mask = both[k][:, :1] > 0.0
            return k + 1, tf.where(mask, new, h), tf.where(mask, new, 0.0) if is_masked else new

        h = tf.zeros([2, 3], tf.float64)
        start = [0, h, tf.ones([rows, tf.shape(x)[1]], tf.float64)[:, :3]]
        shape = tf.TensorShape
        invariants = [shape([]), shape([2, 3]), shape([None, None])]
        return loop(lambda k, *_: k < tf.shape(x)[0], body, start, invariants)

    # TensorFlow's second gradient fails for other states where there is no iteration.
    assert_same_for_all(function, [(X,), (X[:0],)] if rows in (1, 2) else [(X,)])


def _masked(kind, returns_all):
    import keras

    cell = keras.layers.GRUCell(4)
    return {
        "LSTM": lambda: keras.layers.LSTM(4, return_sequences=returns_all),
        "backwards": lambda: keras.layers.GRU(
            4, return_sequences=returns_all, go_backwards=True
        ),
        "zeros": lambda: keras.layers.RNN(
            cell, return_sequences=returns_all, zero_output_for_mask=True
        ),
        "both ways": lambda: keras.layers.Bidirectional(
            keras.layers.SimpleRNN(4, return_sequences=returns_all)
        ),
        "two layers": lambda: keras.Sequential([
            keras.layers.LSTM(4, return_sequences=True),
            keras.layers.LSTM(3, return_sequences=returns_all),
        ]),
    }[kind]()  # fmt: skip


@pytest.mark.pairwise
@pytest.mark.parametrize("returns_all", [True, False])
@pytest.mark.parametrize("steps", [None, 5])
@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("before", ["nothing", "dense", "normalized"])
@pytest.mark.parametrize("kind", ["LSTM", "backwards", "zeros", "both ways", "two layers"])
def test_masked_layers_of_keras_with_open_extents(kind, before, batch, steps, returns_all):
    import keras

    layers = {
        "nothing": [],
        "dense": [keras.layers.Dense(5, "relu")],
        "normalized": [keras.layers.LayerNormalization()],
    }[before]
    embedding = keras.layers.Embedding(20, 6, mask_zero=True)
    model = keras.Sequential([embedding, *layers, _masked(kind, returns_all)])
    ids = tf.constant([[3, 4, 5, 0, 0], [1, 2, 0, 4, 9], [7, 0, 0, 0, 0]])
    model(ids)

    def train(ids):
        with tf.GradientTape() as tape:
            y = model(ids)
            loss = tf.reduce_sum(y**2)
        return y, *tape.gradient(loss, model.trainable_weights[1:])

    spec = tf.TensorSpec([batch, steps], tf.int32)
    reference = tf.function(train, input_signature=[spec])
    with tf_ti.accelerate():
        function = tf.function(train, input_signature=[spec])
        function.get_concrete_function()
        loops = list(tf_ti.explain(tf.function(model, input_signature=[spec])))
    assert [loop.runs_as.split(" of ")[0] for loop in loops] == ["one sequence"] * len(loops)
    assert len(loops) == 1 + (kind in ("both ways", "two layers"))
    given = [ids, ids[:, :1]] if steps is None else [ids]
    for each in given:
        for got, wanted in zip(function(each), reference(each), strict=True):
            np.testing.assert_allclose(got, wanted, 1e-4, 1e-5)
    if steps is None and batch is not None:  # TensorFlow knows the shape of zeros
        nothing = ids[:, :0]
        np.testing.assert_array_equal(function(nothing)[0], reference(nothing)[0])
