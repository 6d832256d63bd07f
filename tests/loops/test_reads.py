"""Reads at a counter of a while loop become slices, and nobody sees a difference."""

import numpy as np
import pytest
import tensorflow as tf
from while_oracle import WAYS, assert_same, assert_same_for_all, explained

import tf_ti

pytestmark = pytest.mark.quarter

X = tf.constant(np.random.default_rng(0).normal(size=(5, 3)), tf.float64)
ROW = tf.TensorSpec([3], tf.float64)


def from_array(x):
    return tf.TensorArray(x.dtype, tf.shape(x)[0]).unstack(x).read


READERS = {
    "array": from_array,
    "index": lambda x: lambda k: x[k],
    "gather": lambda x: lambda k: tf.gather(x, k),
    "whole row": lambda x: lambda k: x[k, :],
}


def types_of_slices(loop):
    return sorted(m.operation.type for m in loop.moved if m.place == "as slices")


# --- random loops --------------------------------------------------------------------------------


def of_seed(seed):
    """A loop that reads at a counter, in a random form."""
    rng = np.random.default_rng(seed)
    by = int(rng.choice([1, 1, -1]))
    name = rng.choice(list(READERS))
    reader = READERS[name]
    first = int(rng.integers(-1, 3)) if by > 0 else int(rng.integers(2, 6))
    steps, offset = int(rng.integers(0, 7)), int(rng.choice([0, 0, 0, 1, -1]))
    is_whole, has_condition, has_limit = (rng.random(3) < [0.6, 0.3, 0.3]).tolist()

    def function(loop, x):
        read, n = reader(x), tf.shape(x)[0]
        start = (n - 1 if by < 0 else 0) if is_whole else first
        end = (n if by > 0 else -1) if is_whole else start + by * steps

        def condition(k, h):
            test = k < end if by > 0 else k > end
            return tf.logical_and(test, tf.reduce_sum(h) < 4.0) if has_condition else test

        def body(k, h):
            return k + by, tf.sin(h) * 0.5 + read(k + offset) * read(k + offset)

        limit = 4 if has_limit else None
        shapes = [tf.TensorShape([]), ROW.shape]
        h = tf.ensure_shape(tf.reduce_sum(x, 0), [3])
        return loop(condition, body, [start, h], shapes, maximum_iterations=limit)

    return function, bool(rng.integers(2))


@pytest.mark.parametrize("seed", range(24))
def test_random_loops(seed):
    print(f"seed {seed}")
    function, is_open = of_seed(seed)
    assert_same(function, X, is_open=is_open)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24, 72))
def test_more_random_loops(seed):
    test_random_loops(seed)


# --- forms ---------------------------------------------------------------------------------------


def simple(read, end=lambda x: tf.shape(x)[0], first=0, by=1):
    """A loop whose body reads something of x at its counter."""

    def function(loop, x):
        element = read(x)
        compare = tf.less if by > 0 else tf.greater
        h = tf.ensure_shape(tf.reduce_sum(x, 0), [3])

        def body(k, h):
            return k + by, tf.sin(h) + tf.ensure_shape(element(k), [3])

        return loop(lambda k, h: compare(k, end(x)), body, [first, h])

    return function


SLICED = {
    "an array": (simple(from_array), "TensorListGetItem"),
    "an index": (simple(READERS["index"]), "StridedSlice"),
    "a gather": (simple(READERS["gather"]), "GatherV2"),
    "the next element": (simple(lambda x: lambda k: x[k + 1], lambda x: 4), "StridedSlice"),
    "the element before": (simple(lambda x: lambda k: x[k - 1], first=1), "StridedSlice"),
    "fewer elements": (simple(READERS["index"], lambda x: 3), "StridedSlice"),
    "more than there are": (simple(READERS["index"], lambda x: 7), "StridedSlice"),
    "more than an array has": (simple(from_array, lambda x: 7), "TensorListGetItem"),
    "no iteration": (simple(from_array, lambda x: 0), "TensorListGetItem"),
}
LEFT = {
    "an index before the first": simple(lambda x: lambda k: x[k - 1], lambda x: 3),
    "another step": simple(READERS["index"], lambda x: 5, by=2),
    "the last elements": simple(READERS["index"], lambda x: -3, -1, -1),
    "twice the counter": simple(lambda x: lambda k: x[k * 2], lambda x: 2),
    "a range": simple(lambda x: lambda k: tf.reduce_sum(x[k : k + 1], 0), lambda x: 4),
    "another axis": simple(lambda x: lambda k: x[:, k][:3], lambda x: 3),
    "a value": simple(lambda x: lambda k: x[tf.cast(x[0, 0] * 0.0, tf.int32)], lambda x: 3),
    "past the end by a gather": simple(READERS["gather"], lambda x: 7),
}


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("form", SLICED)
def test_an_element_is_a_slice(form, is_open):
    function, kind = SLICED[form]
    found = types_of_slices(assert_same(function, X, is_open=is_open))
    assert found == [kind]


@pytest.mark.parametrize("form", LEFT)
def test_another_read_is_left(form):
    assert types_of_slices(assert_same(LEFT[form], X)) == []


@pytest.mark.parametrize("is_open", [False, True])
def test_backwards(is_open):
    def function(loop, x):
        h, n = tf.ensure_shape(tf.reduce_sum(x, 0), [3]), tf.shape(x)[0]
        element = from_array(x)
        return loop(lambda k, h: k >= 0, lambda k, h: (k - 1, tf.sin(h) + element(k)), [n - 1, h])

    assert types_of_slices(assert_same(function, X, is_open=is_open)) == ["TensorListGetItem"]


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_backwards_among_others(offset):
    function = simple(lambda x: lambda k: x[k + offset], lambda x: 1, 3, -1)
    assert types_of_slices(assert_same(function, X)) == ["StridedSlice"]


# Tensors of a row for each row of x, as TensorFlow's shape functions tell.
AS_MANY = {
    "elements": lambda x: tf.sin(x),
    "two tensors": lambda x: x * tf.cast(x > 0.0, x.dtype),
    "a product": lambda x: x @ tf.ones([tf.shape(x)[1], 3], x.dtype),
    "sums": lambda x: tf.tile(tf.reduce_sum(x, 1, keepdims=True), [1, 3]),
    "rows of a table": lambda x: tf.gather(x, tf.argsort(x[:, 0])),
    "transposed": lambda x: tf.transpose(tf.nn.softmax(tf.transpose(x))),
    "a list": lambda x: from_stack(tf.cos(x)),
    "filled": lambda x: tf.fill([tf.shape(x)[0], 3], tf.reduce_max(x)),
}
# Others, which have as many rows, or more, at times.
MAYBE_AS_MANY = {
    "a row less": lambda x: x[1:],
    "few rows": lambda x: x[:4],
    "many rows": lambda x: x[:6],
    "very many rows": lambda x: x[:5000],
    "rows that values tell": lambda x: tf.boolean_mask(x, x[:, 0] < 9.0),
    "twice": lambda x: tf.concat([x, x], 0),
    "a known number": lambda x: tf.sin(tf.ensure_shape(x, [5, None])),
    "pairs of rows": lambda x: tf.reshape(x[: tf.shape(x)[0] // 2 * 2], [-1, 3]),
    "four rows at least": lambda x: tf.pad(x, [[0, tf.maximum(4 - tf.shape(x)[0], 0)], [0, 0]]),
    "a row at least": lambda x: tf.zeros([tf.maximum(tf.shape(x)[0], 1), 3], x.dtype),
    "repeated rows": lambda x: tf.tile(x, [tf.maximum(1, 5 // tf.maximum(tf.shape(x)[0], 1)), 1]),
    "rows through floats": lambda x: tf.ones(
        [tf.cast(tf.maximum(tf.cast(tf.shape(x)[0], tf.float32), 4.0), tf.int32), 3], x.dtype
    ),
    "a diagonal": lambda x: tf.tile(tf.linalg.diag_part(x @ tf.transpose(x[:4]))[:, None], [1, 3]),
}


TABLE = tf.constant(np.random.default_rng(4).normal(size=(150, 3)), tf.float64)


def pooled(x, width):
    return tf.transpose(tf.nn.avg_pool1d(tf.transpose(x)[..., None], width, 2, "VALID")[..., 0])


# Pairs of tensors whose extents are equal for some inputs alone.
TWO = {
    "strides": lambda x, z: (pooled(x, 2), pooled(x, 3)),
    "a table": lambda x, z: (TABLE[: tf.shape(x)[0]], TABLE[: tf.size(z)]),
    "a longer table": lambda x, z: (TABLE[2 * tf.shape(x)[0] :: 2], TABLE[tf.size(z) :]),
    "broadcast": lambda x, z: (x[:4] + z[:, None], z[:, None] * x[:1]),
    # Of three such pairs, two samples of an extent tell two apart at most.
    **{
        f"ranges of {more} more": lambda x, z, more=more: tuple(
            tf.tile(tf.cast(tf.range(0, tf.shape(x)[0] + k, 3), x.dtype)[:, None], [1, 3])
            for k in (more, more + 1)
        )
        for more in range(3)
    },
    "spectra": lambda x, z: (
        tf.tile(tf.abs(tf.signal.rfft(tf.tile(z, [tf.shape(x)[0]])))[:, None], [1, 3]),
        pooled(tf.pad(x, [[0, 2], [0, 0]]), 2),
    ),
    "padded by two": lambda x, z: (tf.tile(z[:, None], [1, 3]), tf.pad(x, [[1, 1], [0, 0]])),
}


@pytest.mark.parametrize("form", TWO)
def test_two_tensors_of_one_extent_at_times(form):
    def function(loop, x, z):
        one, other = TWO[form](x, z)
        start = tf.ensure_shape(tf.reduce_sum(x, 0), [3])

        def body(k, h):
            return k + 1, tf.sin(h) + tf.ensure_shape(one[k], [3])

        return loop(lambda k, h: k < tf.shape(other)[0], body, [0, start])

    x = tf.tile(X, [2, 1])
    sizes = (8, 3), (9, 1), (5, 5), (4, 7), (3, 5)
    cases = [(x[:rows], tf.ones([size], tf.float64)) for rows, size in sizes]
    assert_same_for_all(function, cases)


def from_stack(x):
    return tf.TensorArray(x.dtype, tf.shape(x)[0]).unstack(x).stack()


def of_two(other, by=1):
    """A loop that reads x, and another tensor beside it, as often as x has rows."""

    def function(loop, x):
        n, element, others = tf.shape(x)[0], from_array(x), from_array(other(x))
        first, last = (0, n) if by > 0 else (n - 1, -1)

        def body(k, h):
            rows = tf.ensure_shape(element(k) * others(k), [3])
            return k + by, tf.sin(h) - rows

        compare = tf.less if by > 0 else tf.greater
        h = tf.ensure_shape(tf.reduce_sum(x, 0), [3])
        return loop(lambda k, h: compare(k, last), body, [first, h])

    return function


def leaves_the_counter(loop):
    return any(m.operation.type in ("AddV2", "Sub") for m in loop.moved if "before" in m.place)


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("form", AS_MANY)
def test_tensors_of_one_unknown_extent(form, by):
    found = assert_same(of_two(AS_MANY[form], by), X, is_open=True)
    assert types_of_slices(found) == ["TensorListGetItem", "TensorListGetItem"]
    assert by < 0 or leaves_the_counter(found)


@pytest.mark.parametrize("form", MAYBE_AS_MANY)
def test_tensors_whose_extents_may_differ(form):
    found = assert_same_for_all(of_two(MAYBE_AS_MANY[form]), [(X[:rows],) for rows in (5, 2, 0)])
    assert not leaves_the_counter(found)


NUMBERS = {
    "four at least": lambda n, z: tf.maximum(n, 4),
    "between": lambda n, z: tf.clip_by_value(n, 4, 2**30),
    "not eleven": lambda n, z: n - n % 11 * (n % 2),
    "elements of another": lambda n, z: tf.minimum(n, tf.size(z)),
}


@pytest.mark.parametrize("form", NUMBERS)
def test_numbers_that_are_an_extent_at_times(form):
    def function(loop, x, z):
        n, start = tf.shape(x)[0], tf.ensure_shape(tf.reduce_sum(x, 0), [3])

        def body(k, h):
            return k + 1, tf.cond(k < n, lambda: tf.sin(h) + x[k], lambda: tf.cos(h))

        return loop(lambda k, h: k < NUMBERS[form](n, z), body, [0, start])

    x, ones = tf.tile(X, [3, 1]), [1] * 5
    shapes = (5, [2, 1, 1, 1, 1]), (2, [1, 1, 0, 1, 1]), (0, ones), (12, ones)
    assert_same_for_all(function, [(x[:rows], tf.zeros(z, tf.float64)) for rows, z in shapes])


EXTENTS_OF_MANY = {
    "all elements": lambda x: tf.size(x),
    "flattened": lambda x: tf.shape(tf.reshape(x, [-1]))[0],
    "one more": lambda x: tf.shape(tf.reshape(x, [-1]))[0] + 1,
    "in rows of one": lambda x: tf.shape(tf.reshape(x, [-1, 1]))[0],
    "twice": lambda x: tf.shape(tf.tile(tf.reshape(x, [-1]), [2]))[0],
}


@pytest.mark.parametrize("rank", [3, 4, 6])
@pytest.mark.parametrize("form", EXTENTS_OF_MANY)
def test_products_of_many_unknown_extents(form, rank):
    """Numbers in the place of the extents have products that no int32 is."""

    def function(loop, x):
        n, elements = EXTENTS_OF_MANY[form](x), tf.tile(tf.reshape(x, [-1]), [2])
        array = tf.TensorArray(x.dtype, n, element_shape=[None])

        def body(k, s, array):
            return k + 1, s + tf.sin(elements[k]), array.write(k, tf.fill([n], s))

        _, s, array = loop(lambda k, *_: k < n, body, [0, tf.zeros([], x.dtype), array])
        return s, array.stack()

    x = tf.reshape(X[:2, :2], [1] * (rank - 2) + [2, 2])
    assert_same(function, x, is_open=True)


def loop_over(number):
    """The sum of the rows that a session's graph feeds, as many as a number of it says."""

    def function(loop, x):
        n = number(x)
        h = tf.zeros([3], x.dtype)
        return n, loop(lambda k, h: k < n, lambda k, h: (k + 1, h + x[k]), [0, h])[1]

    return function


@pytest.mark.parametrize(
    "number",
    [lambda x: tf.shape(x)[0], lambda x: tf.shape(tf.zeros([tf.shape(x)[0], 2]))[0]],
    ids=["its rows", "the rows of another"],
)
def test_a_session_feeds_a_number(number):
    """It has the number that is fed, or it is refused: never as many as there are rows."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(X.dtype, [None, 3])
        n, h = loop_over(number)(tf_ti.while_loop, x)
        rows = X.numpy()
        np.testing.assert_allclose(session.run(h, {x: rows}), rows.sum(0))
        try:
            found = session.run(h, {x: rows, n: 2})
        except ValueError as error:
            assert "may not be fed" in str(error)
        else:
            np.testing.assert_allclose(found, rows[:2].sum(0))


def test_many_operations_before_a_loop_are_asked_once(monkeypatch):
    from tf_ti.loops.passes import steady

    asked, repeated = [], steady._repeated
    monkeypatch.setattr(
        steady, "_repeated", lambda op, *rest: asked.append(op.name) or repeated(op, *rest)
    )

    def call(x):
        y = x
        for _ in range(50):
            y = tf.sin(y)
        parts = [y * float(i) for i in range(6)]
        total = tf.zeros([3], tf.float64)
        for _ in range(4):
            _, total = tf_ti.while_loop(
                lambda k, h: k < tf.shape(x)[0],
                lambda k, h: (k + 1, tf.add_n([h, *(part[k] for part in parts)])),
                [0, total],
            )
        return total

    tf.function(
        call, input_signature=[tf.TensorSpec([None, 3], tf.float64)]
    ).get_concrete_function()
    assert 50 <= len(asked) <= 4 * 50


def test_a_tensor_that_is_cut_where_x_is_long():
    x = tf.tile(X, [1001, 1])
    assert_same(of_two(MAYBE_AS_MANY["very many rows"]), x, is_open=True)
    assert_same(of_two(MAYBE_AS_MANY["many rows"]), x[:12], is_open=True)


def test_a_written_array_is_left():
    def function(loop, x):
        array = tf.TensorArray(x.dtype, 5).unstack(x)

        def body(k, h, array):
            array = array.write((k + 1) % 5, h)
            return k + 1, tf.sin(h) + array.read(k), array

        k, h, array = loop(lambda k, *_: k < 5, body, [0, x[0], array])
        return k, h, array.stack()

    assert types_of_slices(assert_same(function, X)) == []


def test_an_array_that_is_passed_through():
    def function(loop, x):
        array = tf.TensorArray(x.dtype, 5).unstack(x)

        def body(k, h, array):
            return k + 1, tf.sin(h) + array.read(k), array

        return loop(lambda k, *_: k < 5, body, [0, x[0], array])[:2]

    assert types_of_slices(assert_same(function, X)) == ["TensorListGetItem"]


def test_a_read_in_a_branch_is_left():
    def function(loop, x):
        def body(k, h):
            return k + 1, tf.cond(k % 2 == 0, lambda: x[k], lambda: tf.sin(h))

        return loop(lambda k, h: k < 9, body, [-4 + 4, x[0]])

    assert types_of_slices(assert_same(function, X)) == []


def test_two_counters():
    def function(loop, x):
        def body(i, h, j):
            return i + 1, tf.sin(h) + x[i] * x[j], j - 1

        return loop(lambda i, h, j: i < 5, body, [0, x[0], 4])

    assert types_of_slices(assert_same(function, X)) == ["StridedSlice", "StridedSlice"]


def test_a_condition_ends_the_reads():
    def function(loop, x):
        def body(k, h):
            return k + 1, h * 0.9 + x[k] ** 2

        return loop(lambda k, h: tf.reduce_sum(h) < 4.0, body, [0, x[0]])

    assert types_of_slices(assert_same(function, X)) == ["StridedSlice"]
    assert_same(function, X * 0.01)  # which reads past the end


@pytest.mark.parametrize("dtype", [tf.int32, tf.string, tf.bool])
def test_elements_of_other_types(dtype):
    xs = tf.cast(X[:, 0] > 0, dtype) if dtype != tf.string else tf.as_string(X[:, 0])

    def call(loop, xs):
        def body(k, last, is_same):
            return k + 1, xs[k], tf.logical_or(is_same, xs[k] == last)

        return loop(lambda k, *_: k < 5, body, [0, xs[0], False])

    expected = tf.function(lambda xs: call(tf.while_loop, xs))(xs)
    for loop in WAYS.values():
        found = tf.function(lambda xs, loop=loop: call(loop, xs))(xs)
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_a_custom_gradient_keeps_its_tensor():
    def function(loop, x):
        def body(k, h):
            element = x[k]

            @tf.custom_gradient
            def twice(h):
                return 2.0 * h, lambda dy: dy * element

            return k + 1, twice(tf.sin(h)) + element

        return loop(lambda k, h: k < 5, body, [0, x[0]])

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(X)
        results = [
            tf.function(lambda x, loop=loop: function(loop, x)[1])(X) for loop in WAYS.values()
        ]
    first, *others = (tape.gradient(y, X) for y in results)
    for other in others:
        np.testing.assert_allclose(first, other, 1e-9)


def test_xla_compiles_slices():
    function = simple(READERS["index"])
    compiled = tf.function(lambda x: function(tf_ti.while_loop, x), jit_compile=True)(X)
    for got, wanted in zip(compiled, function(tf.while_loop, X), strict=True):
        np.testing.assert_allclose(got, wanted, 1e-9)


def test_a_saved_loop_slices(tmp_path):
    module, function = tf.Module(), simple(from_array)
    spec = tf.TensorSpec([None, 3], tf.float64)
    module.run = tf.function(lambda x: function(tf_ti.while_loop, x), input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path))
    for got, wanted in zip(tf.saved_model.load(str(tmp_path)).run(X), function(tf.while_loop, X)):
        np.testing.assert_allclose(got, wanted, 1e-9)


def test_loops_of_autograph_slice():
    def total(xs):
        h = tf.zeros([3], tf.float64)
        for x in xs:
            h = tf.sin(h) + x
        return h

    with tf_ti.accelerate():
        loop = explained(total, tf.TensorSpec([None, 3], tf.float64))
    assert types_of_slices(loop) == ["TensorListGetItem"]
    assert loop.runs_as.startswith("one program")
