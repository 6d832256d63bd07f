"""`tf_ti.while_loop` beside `tf.while_loop`: one program, with one word changed."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import _library

needs_xla = pytest.mark.skipif(_library.XLA_PROBLEM is not None, reason=str(_library.XLA_PROBLEM))
Pair = collections.namedtuple("Pair", "j, k")


def _sums(while_loop, x):
    return while_loop(lambda i, s: i < 5, lambda i, s: (i + 1, s * x + 1.0), (0, x))


def _newton(while_loop, x):
    return while_loop(lambda r: abs(r * r - x) > 1e-4 * x, lambda r: [(r + x / r) / 2], [x])


def _bare_result(while_loop, x):
    return while_loop(lambda r: r < 100.0, lambda r: r * r, [x])


def _named_tuple_inside(while_loop, x):
    def body(i, p):
        return i + 1, Pair(p.j + p.k, p.j * p.k)

    return while_loop(lambda i, p: i < 4, body, (tf.constant(0), Pair(x, 0.5 * x)))


def _dictionary_inside(while_loop, x):
    def body(i, state):
        return [i + 1, {"b": state["a"], "a": state["b"] * x}]

    return while_loop(lambda i, state: i < 3, body, [0, {"a": x, "b": 2.0 * x}])


def _named_tuple_outside(while_loop, x):
    return while_loop(lambda j, k: j < 3.0 * x, lambda j, k: (j + 1.0, k * j), Pair(x, x))


def _list_for_tuple(while_loop, x):
    return while_loop(lambda i, s: i < 3, lambda i, s: [i + 1, s + x * x], (0, x))


def _limited(while_loop, x):
    body = lambda s: (s * x,)  # noqa: E731
    return while_loop(lambda s: True, body, (x,), maximum_iterations=4)


def _limited_by_a_tensor(while_loop, x):
    limit = tf.cast(tf.floor(x), tf.int32) + 2
    return while_loop(lambda s: s < 1e6, lambda s: (s * x,), (x,), maximum_iterations=limit)


def _no_iteration(while_loop, x):
    return while_loop(lambda i, s: i > 0, lambda i, s: (i + 1, s * x), (0, x * x))


def _negative_limit(while_loop, x):
    return while_loop(lambda s: s < 1e6, lambda s: (s * x,), (x,), maximum_iterations=-3)


def _test_of_one_element(while_loop, x):
    return while_loop(lambda s: tf.reshape(s, [1, 1]) < 9.0, lambda s: (s * x,), (x,))


def _growing(while_loop, x):
    m = x * tf.ones([2, 2])
    shapes = [tf.TensorShape([]), tf.TensorShape([None, 2])]
    body = lambda i, m: [i + 1, tf.concat([m, x * m], 0)]  # noqa: E731
    return while_loop(lambda i, m: i < 3, body, [0, m], shape_invariants=shapes)


def _array(while_loop, x):
    array = tf.TensorArray(tf.float32, size=0, dynamic_size=True, element_shape=[])

    def body(i, s, array):
        return i + 1, s * x, array.write(i, s)

    _, last, array = while_loop(lambda i, *_: i < 5, body, (0, x, array))
    return last, array.stack()


def _array_read_and_written(while_loop, x):
    array = tf.TensorArray(tf.float32, size=6, clear_after_read=False, element_shape=[])
    array = array.write(0, x).write(1, x * x)

    def body(i, array):
        return i + 1, array.write(i, array.read(i - 1) * array.read(i - 2))

    return while_loop(lambda i, array: i < 6, body, (2, array))[1].stack()


def _nested(while_loop, x):
    def outer(i, s):
        _, s = while_loop(lambda k, s: k < i, lambda k, s: (k + 1, s * x + 1.0), (0, s))
        return i + 1, s

    return while_loop(lambda i, s: i < 4, outer, (0, x))


def _autograph(while_loop, x):
    def cond(i, s):
        if i > 2:
            inside = s < 50.0
        else:
            inside = True
        return inside

    def body(i, s):
        for _ in tf.range(i):
            s = s * x
        return i + 1, s + 1.0

    return while_loop(cond, body, (0, x))


def _ragged(while_loop, x):
    ragged = tf.RaggedTensor.from_row_lengths(x * tf.ones([4]), [1, 3])
    _, found = while_loop(lambda i, r: i < 3, lambda i, r: (i + 1, r * x), (0, ragged))
    return found.flat_values, found.row_splits


PROGRAMS = [
    _sums,
    _newton,
    _bare_result,
    _named_tuple_inside,
    _dictionary_inside,
    _named_tuple_outside,
    _list_for_tuple,
    _limited,
    _limited_by_a_tensor,
    _no_iteration,
    _negative_limit,
    _test_of_one_element,
    _growing,
    _array,
    _array_read_and_written,
    _nested,
    _autograph,
    _ragged,
]
_ARRAYS = (_array, _array_read_and_written)


def _run(while_loop, program, order=1):
    x = tf.constant(1.75)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            found = program(while_loop, x)
            floats = [t for t in tf.nest.flatten(found) if t.dtype == tf.float32]
            total = tf.add_n([tf.reduce_sum(tf.sin(t)) for t in floats])
        gradient = inner.gradient(total, x)
    if order == 1:
        return found, gradient
    return found, gradient, outer.gradient(gradient, x)


def _assert_same(theirs, ours):
    tf.nest.assert_same_structure(theirs, ours)
    for their, our in zip(tf.nest.flatten(theirs), tf.nest.flatten(ours)):
        assert their.dtype == our.dtype
        np.testing.assert_allclose(their.numpy(), our.numpy(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_with_one_word_changed(program):
    theirs = tf.function(_run)(tf.while_loop, program)
    for run in _run, tf.function(_run):
        _assert_same(theirs, run(tf_ti.while_loop, program))


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p not in (*_ARRAYS, _ragged, _growing)])
def test_second_derivatives(program):
    theirs = tf.function(_run)(tf.while_loop, program, 2)
    _assert_same(theirs, tf.function(_run)(tf_ti.while_loop, program, 2))


@needs_xla
@pytest.mark.parametrize(
    "program", [_sums, _newton, _nested, _array_read_and_written, _limited, _no_iteration]
)
def test_compiled_by_xla(program):
    @tf.function(jit_compile=True)
    def run(while_loop, x):
        return program(while_loop, x)

    x = tf.constant(1.75)
    _assert_same(run(tf.while_loop, x), run(tf_ti.while_loop, x))


@needs_xla
def test_a_gradient_compiled_by_xla_needs_the_most_iterations():
    def run(while_loop, limit):
        x = tf.constant(1.5)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = while_loop(lambda s: s < 9.0, lambda s: (s * x,), (x,), maximum_iterations=limit)
        return tape.gradient(y, x)

    compiled = tf.function(run, jit_compile=True)
    _assert_same(compiled(tf.while_loop, 10), compiled(tf_ti.while_loop, 10))
    with pytest.raises(tf.errors.UnimplementedError, match="maximum_iterations"):
        compiled(tf_ti.while_loop, None)


@pytest.mark.parametrize(
    "value",
    [
        tf.constant([1, 2], tf.int64),
        tf.constant(["a", "bc"]),
        tf.constant([True, False]),
        tf.constant([1 + 2j], tf.complex64),
        tf.constant([1.5, 2.5], tf.bfloat16),
        tf.constant([1.5], tf.float64),
        tf.constant([3], tf.uint8),
        tf.zeros([0, 3]),
        tf.zeros([2, 1, 0, 3]),
    ],
    ids=lambda value: f"{value.dtype.name}{value.shape.as_list()}",
)
def test_variables_of_any_type_and_shape(value):
    def run(while_loop):
        def body(i, first, second):
            return i + 1, second, first[::-1]

        return while_loop(lambda i, *_: i < 3, body, (0, value, value))

    theirs, ours = (tf.function(run)(way) for way in (tf.while_loop, tf_ti.while_loop))
    for their, our in zip(theirs, ours):
        assert their.dtype == our.dtype
        assert their.numpy().tolist() == our.numpy().tolist()


@pytest.mark.programs(True, False)
@pytest.mark.parametrize("seed", range(4), indirect=True)
def test_random_programs(seed, rng):
    count, limit = rng.integers(1, 4), rng.choice([None, 0, 3, 50])
    weights = [tf.constant(rng.normal(size=[3, 3]) * 0.4, tf.float32) for _ in range(count)]
    xs = [tf.constant(rng.normal(size=[2, 3]), tf.float32) for _ in range(count)]
    bound, turn = float(rng.uniform(0.5, 8)), int(rng.integers(1, 6))

    def run(while_loop):
        def cond(i, states):
            size = tf.add_n([tf.reduce_sum(abs(s)) for s in states])
            return tf.logical_and(i < 12, size < bound * tf.cast(i + 1, tf.float32))

        def body(i, states):
            following = [tf.tanh(s @ w) + x for s, w, x in zip(states, weights, xs)]
            k = turn % len(following)
            following = following[k:] + following[:k]
            return i + 1, [tf.where(i % 2 == 0, new, new - s) for new, s in zip(following, states)]

        with tf.GradientTape() as tape:
            tape.watch([*weights, *xs])
            i, states = while_loop(cond, body, (0, xs), maximum_iterations=limit)
            total = tf.add_n([tf.reduce_sum(s * s) for s in states])
        gradients = tape.gradient(total, [*weights, *xs], unconnected_gradients="zero")
        return i, states, gradients

    theirs = tf.function(run)(tf.while_loop)
    for ours in (tf_ti.while_loop, lambda *a, **k: tf_ti.while_loop(*a, fuse=False, **k)):
        _assert_same(theirs, tf.function(run)(ours))


# --- effects ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_the_condition_sees_what_the_body_assigns(mode):
    count = tf.Variable(0)

    def run(while_loop):
        count.assign(0)

        def body(x):
            count.assign_add(1)
            return (x * 2,)

        return while_loop(lambda x: count < 4, body, (tf.constant(1),))

    run_it = tf.function(run) if mode == "function" else run
    assert [int(run_it(way)[0]) for way in (tf.while_loop, tf_ti.while_loop)] == [16, 16]
    assert int(count) == 4


@pytest.mark.parametrize("limit", [None, 2])
def test_the_conditions_effects_take_place_whenever_it_is_computed(limit):
    tests, steps = tf.Variable(0), tf.Variable(0)

    @tf.function
    def run(while_loop):
        def cond(i):
            tests.assign_add(1)
            return i < 3

        def body(i):
            steps.assign_add(1)
            return (i + 1,)

        return while_loop(cond, body, (0,), maximum_iterations=limit)

    found = []
    for way in (tf.while_loop, tf_ti.while_loop):
        tests.assign(0)
        steps.assign(0)
        run(way)
        found.append((int(tests), int(steps)))
    if limit is None:
        assert found[0] == found[1] == (4, 3)
    else:
        # TensorFlow computes its condition once more, of a loop that has come to its end.
        assert found == [(3, 2), (2, 2)]


def test_random_numbers_of_condition_and_body_are_drawn_anew_and_recorded():
    @tf.function
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)

            def body(i, s, noise):
                step = tf.random.uniform([])
                return i + 1, s + step * x, noise + step

            _, y, noise = tf_ti.while_loop(
                lambda i, *_: tf.random.uniform([]) < 0.9 + 0.0 * x, body, (0, 0.0, 0.0)
            )
        return y, tape.gradient(y, x), noise

    tf.random.set_seed(3)
    values = [run(tf.constant(2.0)) for _ in range(5)]
    assert len({float(noise) for *_, noise in values}) > 1
    for y, gradient, noise in values:
        np.testing.assert_allclose(y, 2 * noise, rtol=1e-6)
        np.testing.assert_allclose(gradient, noise, rtol=1e-6)


# --- arguments -------------------------------------------------------------------------------


def test_arguments_have_tensorflows_order():
    found = tf_ti.while_loop(
        lambda m: tf.shape(m)[0] < 9,
        lambda m: tf.concat([m, m], 0),
        [tf.ones([1, 2])],
        [tf.TensorShape([None, 2])],
        1,
        True,
        True,
        2,
        "doubling",
    )
    assert found[0].shape == [4, 2]


def test_no_gradient_goes_back_where_none_is_wanted():
    @tf.function
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf_ti.while_loop(lambda s: s < 9.0, lambda s: (s * x,), (x,), back_prop=False)
        return y, tape.gradient(y, x)

    (y,), gradient = run(tf.constant(2.0))
    assert gradient is None and float(y) == 16


@pytest.mark.parametrize("program", PROGRAMS)
def test_values_without_gradients_are_the_same(program):
    def run(x, **options):
        return program(lambda *args, **kwargs: tf_ti.while_loop(*args, **kwargs, **options), x)

    x = tf.constant(1.75)
    _assert_same(tf.function(run)(x), tf.function(run)(x, back_prop=False))


@pytest.mark.parametrize("limit", [-4, np.int64(-4), np.int8(-1), tf.constant(-5, tf.int64)])
def test_fewer_iterations_than_none_are_none(limit):
    (found,) = tf_ti.while_loop(lambda x: x < 9, lambda x: x + 1, [3], maximum_iterations=limit)
    assert int(found) == 3


def test_checkpoints_give_the_same_gradient():
    def run(every):
        x = tf.constant(1.01)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf_ti.while_loop(
                lambda i, s: i < 40, lambda i, s: (i + 1, s * x), (0, x), checkpoint_every=every
            )
        return tape.gradient(y, x)

    np.testing.assert_allclose(run(None), run(7), rtol=1e-6)


def test_checkpoints_of_an_array_that_reads_itself_give_the_same_gradient():
    @tf.function
    def run(x, every):
        with tf.GradientTape() as tape:
            tape.watch(x)
            array = tf.TensorArray(tf.float32, 12, clear_after_read=False, element_shape=[])
            array = array.write(0, x).write(1, x * x)

            def body(i, array):
                return i + 1, array.write(i, tf.sin(array.read(i - 1)) * array.read(i - 2) + x)

            found = tf_ti.while_loop(
                lambda i, _: i < 12, body, (2, array), maximum_iterations=12, checkpoint_every=every
            )
            total = tf.reduce_sum(found[1].stack() ** 2)
        return tape.gradient(total, x)

    x = tf.constant(0.7)
    values = [0.7, 0.7**2]
    slopes = [1.0, 2 * 0.7]
    for i in range(2, 12):
        slope = np.cos(values[i - 1]) * slopes[i - 1] * values[i - 2]
        slopes.append(slope + np.sin(values[i - 1]) * slopes[i - 2] + 1)
        values.append(np.sin(values[i - 1]) * values[i - 2] + 0.7)
    right = 2 * np.dot(values, slopes)
    for every in (None, 3, 5):
        np.testing.assert_allclose(run(x, every), right, rtol=1e-5)


def test_variables_and_numbers_are_values():
    v = tf.Variable(3.0)
    i, y = tf_ti.while_loop(lambda i, s: i < 2, lambda i, s: (i + 1, s * v), (np.int64(0), v))
    assert i.dtype == tf.int64 and float(y) == 27


def test_functions_are_traced_once():
    traces = collections.Counter()

    @tf.function
    def cond(i, s):
        traces["cond"] += 1
        return i < 3

    @tf.function
    def body(i, s):
        traces["body"] += 1
        return i + 1, s * 2.0

    for _ in range(3):
        i, y = tf_ti.while_loop(cond, body, (tf.constant(0), tf.constant(1.0)))
        assert int(i) == 3 and float(y) == 8
    assert traces == {"cond": 1, "body": 1}
    concrete = [f.get_concrete_function(tf.constant(0), tf.constant(1.0)) for f in (cond, body)]
    for _ in range(2):
        assert float(tf_ti.while_loop(*concrete, (tf.constant(0), tf.constant(1.0)))[1]) == 8


def test_a_plain_condition_beside_a_function_is_traced_anew():
    limit = 3

    @tf.function
    def body(i):
        return i + 1

    assert int(tf_ti.while_loop(lambda i: i < limit, body, (tf.constant(0),))[0]) == 3
    limit = 5
    assert int(tf_ti.while_loop(lambda i: i < limit, body, (tf.constant(0),))[0]) == 5


def test_python_runs_it_where_functions_run_eagerly(monkeypatch):
    seen = []

    def body(i, s):
        seen.append(float(s))
        return i + 1, s * 2.0

    tf.config.run_functions_eagerly(True)
    try:
        _, y = tf_ti.while_loop(lambda i, s: i < 3, body, (0, 1.0))
    finally:
        tf.config.run_functions_eagerly(False)
    assert seen == [1, 2, 4] and float(y) == 8


def test_arrays_in_eager_mode():
    def run(while_loop):
        array = tf.TensorArray(tf.float32, 0, dynamic_size=True)
        body = lambda i, array: (i + 1, array.write(i, tf.cast(i, tf.float32)))  # noqa: E731
        return while_loop(lambda i, array: i < 3, body, (0, array))[1].stack()

    assert run(tf_ti.while_loop).numpy().tolist() == run(tf.while_loop).numpy().tolist()


def test_a_saved_model(tmp_path):
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None])])
        def steps(self, x):
            body = lambda i, x: (i + 1, x / 2)  # noqa: E731
            return tf_ti.while_loop(lambda i, x: tf.reduce_max(x) > 1.0, body, (0, x))

    tf.saved_model.save(Model(), str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    i, x = loaded.steps(tf.constant([1.0, 6.0]))
    assert int(i) == 3 and x.numpy().tolist() == [0.125, 0.75]


# --- where Python runs it ------------------------------------------------------------------------


def _counted(while_loop, x, array, **options):
    """Some containers, types and Python's numbers."""
    state = {"n": np.int64(3), "p": Pair(x, [np.array([1.5, 2.5]), True])}

    def body(i, state, *arrays):
        p = state["p"]
        state = {
            "n": state["n"] * 2,
            "p": Pair(p.j * x, [p.k[0] + 1.0, tf.logical_not(p.k[1])]),
        }
        return i + 1, state, *(a.write(i, p.j) for a in arrays)

    found = while_loop(lambda i, *_: i < 3, body, (0, state, *array), **options)
    return found[:2], [a.stack() for a in found[2:]]


def _one_in_a_list(while_loop, x, array, **options):
    body = lambda s, *a: [s * x, *(b.write(0, s) for b in a)]  # noqa: E731
    found = while_loop(lambda s, *_: s < 9.0, body, [x, *array], **options)
    return found[0], [a.stack() for a in found[1:]]


def _pair(while_loop, x, array, **options):
    def body(j, k):
        return Pair(j * x, k.write(0, j) if array else k + 1)

    given = Pair(x, *(array or [0]))
    found = while_loop(lambda j, k: tf.reduce_sum(j) < 50.0, body, given, **options)
    return (found.j, [found.k.stack()]) if array else (found, [])


def _limited_twice(while_loop, x, array, **options):
    body = lambda s, *a: (s * x, *(b.write(1, s) for b in a))  # noqa: E731
    limit = tf.constant(2)
    found = while_loop(lambda *_: True, body, (x, *array), maximum_iterations=limit, **options)
    return found[0], [a.stack() for a in found[1:]]


def _never(while_loop, x, array, **options):
    given = (0, 2.5 * x, True, *array)
    found = while_loop(lambda i, *_: i > 0, lambda i, *v: (i, *v), given, **options)
    return found[:3], [a.stack() for a in found[3:]]


def _of_several_tensors(while_loop, x, array, **options):
    ragged = tf.RaggedTensor.from_row_lengths(x * tf.ones([4]), [1, 3])
    sparse = tf.SparseTensor([[0, 1], [1, 0]], x * tf.ones([2]), [2, 2])
    slices = tf.IndexedSlices(x * tf.ones([1, 2]), tf.constant([3]), tf.constant([5, 2]))

    def body(i, r, s, d, *a):
        s = tf.SparseTensor(s.indices, s.values * x, s.dense_shape)
        d = tf.IndexedSlices(d.values * x, d.indices, d.dense_shape)
        return i + 1, r * x, s, d, *(b.write(i, x) for b in a)

    found = while_loop(lambda i, *_: i < 3, body, (0, ragged, sparse, slices, *array), **options)
    flat = tf.nest.flatten(found[:4], expand_composites=True)
    return flat, [a.stack() for a in found[4:]]


def _growing_rows(while_loop, x, array, **options):
    shapes = [tf.TensorShape([]), tf.TensorShape([None, 2]), *(tf.TensorShape([]) for _ in array)]

    def body(i, m, *arrays):
        return [i + 1, tf.concat([m, x * m], 0), *(a.write(i, x) for a in arrays)]

    given = [0, x * tf.ones([1, 2]), *array]
    found = while_loop(lambda i, *_: i < 3, body, given, shape_invariants=shapes, **options)
    return found[:2], [a.stack() for a in found[2:]]


BY_PYTHON = [
    *(_counted, _one_in_a_list, _pair, _limited_twice, _never, _of_several_tensors, _growing_rows)
]


def _with_slope(while_loop, program, has_array, **options):
    x = tf.constant(1.75)
    with tf.GradientTape() as tape:
        tape.watch(x)
        array = [tf.TensorArray(tf.float32, 3).write(2, x)] if has_array else []
        found = program(while_loop, x, array, **options)
        floats = [t for t in tf.nest.flatten(found) if t is not None and t.dtype == tf.float32]
        total = tf.add_n([tf.reduce_sum(tf.sin(t)) for t in floats])
    return found, tape.gradient(total, x)


@pytest.fixture(params=["an array", "functions run eagerly", "both"])
def by_python(request):
    """Has Python run loops; true if a TensorArray is to be a variable."""
    tf.config.run_functions_eagerly(request.param != "an array")
    yield request.param != "functions run eagerly"
    tf.config.run_functions_eagerly(False)


@pytest.mark.parametrize("program", BY_PYTHON)
def test_python_gives_what_tensorflow_gives_eagerly(program, by_python):
    (found, arrays), slope = _with_slope(tf_ti.while_loop, program, by_python)
    (theirs, their_arrays), their_slope = _with_slope(tf.while_loop, program, by_python)
    _assert_same((theirs, their_arrays, their_slope), (found, arrays, slope))
    stopped, slope = _with_slope(tf_ti.while_loop, program, by_python, back_prop=False)
    _assert_same((theirs, their_arrays), stopped)
    assert slope is None


@pytest.mark.parametrize("has_array", [False, True])
def test_python_keeps_containers_types_and_shapes_as_graphs_do(has_array):
    """What a body returns in another container, of another type or shape."""

    def outcome(body, *variables, array=()):
        def with_array(*given):
            return [*body(*given[: len(variables)]), *given[len(variables) :]]

        try:
            found = tf_ti.while_loop(
                lambda v, *_: tf.reduce_sum(tf.cast(v, tf.float32)) < 3.0,
                with_array,
                (*variables, *array),
            )
        except (TypeError, ValueError) as error:
            return type(error), None if array else str(error)
        assert type(found) is tuple
        found = tf.nest.flatten(found[: len(variables)])
        return [(v.dtype, v.numpy().tolist()) for v in found], None

    calls = [
        (lambda v: [7], np.int64(2)),
        (lambda v: (v + 1,), tf.constant(0, tf.uint8)),
        (lambda v, w: [v + 1, collections.OrderedDict(a=2)], 0, {"a": 1.5}),
        (lambda v: [np.array([4.0])], tf.constant([1.0])),
        (lambda v: [tf.cast(v + 1, tf.float64)], 0),
        (lambda v: [tf.concat([v, v], 0)], tf.ones([1])),
        (lambda v, w: [v + 1, [w]], 0, (1,)),
        (lambda v, w: [v + 1, tf.sparse.eye(2)], 0, 1.0),
        (lambda v, w: [v + 1, 1.0], 0, tf.sparse.eye(2)),
    ]
    graphs = [outcome(*call) for call in calls]
    array = [tf.TensorArray(tf.float32, 1)] if has_array else []
    tf.config.run_functions_eagerly(not has_array)
    try:
        pythons = [outcome(*call, array=array) for call in calls]
    finally:
        tf.config.run_functions_eagerly(False)
    for python, graph in zip(pythons, graphs):
        assert python[0] == graph[0] and python[1] in (None, graph[1])


def test_python_takes_one_variable_alone():
    tf.config.run_functions_eagerly(True)
    try:
        found = tf_ti.while_loop(lambda i: i < 3, lambda i: i + 1, [0])
    finally:
        tf.config.run_functions_eagerly(False)
    assert [int(i) for i in found] == [3]


def test_an_array_whose_gradient_stops_has_its_elements_still():
    x = tf.constant(2.0)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        given = tf.TensorArray(tf.float32, 1, dynamic_size=True, clear_after_read=False)
        _, array = tf_ti.while_loop(
            lambda i, a: i < 3,
            lambda i, a: (i + 1, a.write(2 * i, x * tf.cast(i, tf.float32))),
            (0, given),
            back_prop=False,
        )
        assert [float(array.read(k)) for k in (0, 2, 2, 4)] == [0, 2, 2, 4]
        array = array.write(1, 3.0 * x)
        total = tf.reduce_sum(array.stack())
        written = tf.reduce_sum(given.stack())
    assert int(array.size()) == 5 and float(total) == 12
    assert float(tape.gradient(total, x)) == 3
    assert float(tape.gradient(written, x)) == 3  # its own elements are what they were


# --- bad input -------------------------------------------------------------------------------

_ONE = (tf.constant(1.0),)


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ((None, lambda x: x, _ONE), TypeError, "cond must be callable"),
        ((lambda x: True, 3, _ONE), TypeError, "body must be callable"),
        ((lambda x: True, lambda x: x, 3.0), TypeError, r"loop_vars must be a list .* \[x\]"),
        ((lambda x: True, lambda x: x, {"a": 1}), TypeError, "loop_vars must be a list"),
        ((lambda x: True, lambda x: x, ()), ValueError, "loop_vars is empty"),
        ((lambda x: 1, lambda x: x, ("a", object())), (TypeError, ValueError), r"(?i)convert"),
        ((lambda x, y: True, lambda x: x, _ONE), ValueError, "1 variables, which cond"),
        ((lambda x: True, lambda x, y: x, _ONE), ValueError, "1 variables, which body"),
        ((lambda x: x, lambda x: x, _ONE), TypeError, "cond must return a bool"),
        ((lambda x: [True, False], lambda x: x, _ONE), ValueError, "cond must return one bool"),
        ((lambda x: x < 3, lambda x: (x, x), _ONE), ValueError, "structure of loop_vars"),
        ((lambda x, y: x < 3, lambda x, y: x, 2 * _ONE), ValueError, "structure of loop_vars"),
        ((lambda x: x < 3, lambda x: {"x": x}, _ONE), ValueError, "structure of loop_vars"),
        ((lambda x: x < 3, lambda x: tf.cast(x, tf.int32), _ONE), TypeError, r"loop_vars\[0\]"),
        ((lambda x: x < 3, lambda x: [None], _ONE), ValueError, r"loop_vars\[0\]"),
        (
            (lambda x: x[0] < 3, lambda x: tf.concat([x, x], 0), [tf.ones([2])]),
            ValueError,
            r"loop_vars\[0\] has shape \(2,\).*\(4,\).*shape_invariants",
        ),
        ((lambda x: x < 3, lambda x: x, _ONE, [[1, 2]]), TypeError, "shape_invariants"),
        ((lambda x: x < 3, lambda x: x, _ONE, 7), ValueError, "structure of loop_vars"),
        (
            (lambda x: True, lambda x: x, [tf.sparse.eye(2)], [tf.TensorShape([5])]),
            ValueError,
            r"shape_invariants\[0\]: SparseTensorSpec.* does not allow",
        ),
        (
            (lambda x: True, lambda x: x, [tf.sparse.eye(2)], [tf.TensorShape([None, None])]),
            ValueError,
            r"shape_invariants\[0\] must be a SparseTensorSpec: Expected a shape with 1 dim",
        ),
    ],
)
def test_wrong_calls(arguments, error, words):
    for run in (tf_ti.while_loop, tf.function(lambda *a: tf_ti.while_loop(*arguments))):
        with pytest.raises(error, match=words):
            run(*arguments) if run is tf_ti.while_loop else run()


@pytest.mark.parametrize(
    "limit, error",
    [("3", TypeError), (2.5, TypeError), (True, TypeError), (tf.constant([1, 2]), ValueError)],
)
def test_wrong_limits(limit, error):
    with pytest.raises(error, match="maximum_iterations"):
        tf_ti.while_loop(lambda x: x < 3, lambda x: x + 1, (1,), maximum_iterations=limit)


def test_an_error_in_the_body_names_the_operation_and_the_iteration():
    @tf.function
    def run(n):
        return tf_ti.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x // (2 - i)), (0, 8))

    assert run(2)[1] == 4
    with pytest.raises(tf.errors.InvalidArgumentError, match="iteration 2"):
        run(5)


# --- implementations -----------------------------------------------------------------------------


def of_device(x):
    """A function with an implementation for CPUs, between which Grappler chooses."""

    def implementation(function, **attributes):
        attributes["api_implements"] = "test_while_loop.of_device"
        return tf.function(function, autograph=False, experimental_attributes=attributes)

    result = implementation(lambda x: x + 1.0)(x)
    other = implementation(lambda x: x + 2.0, api_preferred_device="CPU")
    other.get_concrete_function(x).add_to_graph()
    return result


@pytest.mark.needs_cpu_kernels
def test_a_body_calls_the_implementation_that_grappler_chooses():
    def loop(while_loop, body):
        @tf.function(autograph=False)
        def run(x):
            return while_loop(lambda k, x: k < 3, lambda k, x: (k + 1, body(x)), (0, x))[1]

        return run

    def within(x):
        return tf.function(of_device, autograph=False)(x)

    for body in (of_device, within):
        expected = loop(tf.while_loop, body)(tf.constant(1.0))
        assert expected == 7.0
        assert loop(tf_ti.while_loop, body)(tf.constant(1.0)) == expected
    compiled = tf.function(loop(tf_ti.while_loop, of_device), jit_compile=True)
    plain = tf.function(loop(tf.while_loop, of_device), jit_compile=True)
    assert compiled(tf.constant(1.0)) == plain(tf.constant(1.0))
