"""Programs that need all that `tf.while_loop` can do, after the cases of TensorFlow's own tests."""

import collections
import contextlib

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

VECTOR = tf.Variable([1.0, 2.0, 3.0, 4.0, 5.0])
SCALAR = tf.Variable(3.0)
ANY = tf.TensorShape(None)
NUMBER = tf.TensorShape([])
Pair = collections.namedtuple("Pair", "a, b")
PROGRAMS = {}


def program(order=1, eager=False):
    """A program; of order 2 with a second derivative; one of eager mode runs there too."""

    def add(function):
        PROGRAMS[function.__name__] = (function, order, eager)
        return function

    return add


def repeat(loop, times, body, *values, **options):
    """The values after so many calls of the body."""
    found = loop(lambda i, *_: i < times, lambda i, *v: (i + 1, *body(*v)), (0, *values), **options)
    return found[1:]


# --- lists of tensors, which a variant holds -----------------------------------------------------


def empty():
    shape = tf.zeros([0], tf.int32)
    return tf.raw_ops.EmptyTensorList(
        element_shape=shape, max_num_elements=-1, element_dtype=tf.float32
    )


def push(handle, x):
    return tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=x)


def stacked(handle):
    shape = tf.zeros([0], tf.int32)
    return tf.raw_ops.TensorListStack(
        input_handle=handle, element_shape=shape, element_dtype=tf.float32
    )


@program(eager=True)
def a_list(loop, x):
    y, handle = repeat(loop, 2, lambda y, h: (tf.cos(y), push(h, y)), x, empty())
    return y + tf.reduce_sum(stacked(handle))


@program()
def a_list_that_grows_by_two(loop, x):
    def body(x, handle):
        return x**2.0, push(push(handle, x), tf.constant(100.0))

    y, handle = loop(lambda x, _: x < 5.0, body, [x, empty()])
    return y, stacked(handle)


@program()
def lists_in_nested_loops(loop, x):
    def wrapped(f):
        def call(x):
            y, handle = repeat(loop, 2, lambda y, h: (f(tf.cos(y)), push(h, y)), x, empty())
            return y + tf.reduce_sum(stacked(handle))

        return call

    return wrapped(wrapped(wrapped(tf.sin)))(x)


@program(eager=True)
def an_optional(loop, x):
    some = tf.experimental.Optional.from_value

    def body(optional, s):
        return some(s), s * optional.get_value()

    return repeat(loop, 3, body, some(x), x)[1]


# --- arrays --------------------------------------------------------------------------------------


@program(eager=True)
def an_array_of_rows_of_arrays(loop, x):
    def outer(i, array):
        def inner(j, row):
            return j + 1, row.write(j, x * tf.cast(i + j, tf.float32))

        row = tf.TensorArray(tf.float32, 2, element_shape=[])
        row = loop(lambda j, _: j < 2, inner, [0, row])[1]
        return i + 1, array.write(i, row.stack())

    array = tf.TensorArray(tf.float32, 3, element_shape=[2])
    return loop(lambda i, _: i < 3, outer, [0, array])[1].stack()


@program(order=2, eager=True)
def an_array_that_reads_itself(loop, x):
    array = tf.TensorArray(
        tf.float32, 1, dynamic_size=True, clear_after_read=False, element_shape=[]
    ).write(0, x)

    def body(i, array):
        return i + 1, array.write(i, array.read(i - 1) * x)

    array = loop(lambda i, _: i < 4, body, [1, array])[1]
    return array.stack(), array.size(), array.read(2)


@program(eager=True)
def pieces_of_other_extents(loop, x):
    array = tf.TensorArray(tf.float32, 3, infer_shape=False, element_shape=[None, 2])

    def body(i, array):
        return i + 1, array.write(i, x * tf.ones([i + 1, 2]))

    return loop(lambda i, _: i < 3, body, [0, array])[1].concat()


@program(eager=True)
def elements_that_nobody_wrote(loop, x):
    array = tf.TensorArray(tf.float32, 5, element_shape=[])
    body = lambda i, array: (i + 1, array.write(2 * i, x * x))  # noqa: E731
    return loop(lambda i, _: i < 3, body, [0, array])[1].stack()


@program(eager=True)
def scattered_elements(loop, x):
    array = tf.TensorArray(tf.float32, 4, element_shape=[])

    def body(i, array):
        return i + 1, array.scatter([2 * i, 2 * i + 1], tf.stack([x, x * x]))

    return loop(lambda i, _: i < 2, body, [0, array])[1].gather([3, 0])


@program(eager=True)
def an_array_of_integers(loop, x):
    array = tf.TensorArray(tf.int32, 3)
    return loop(lambda i, _: i < 3, lambda i, a: (i + 1, a.write(i, i * i)), [0, array])[1].stack()


@program(eager=True)
def an_array_and_its_shape_invariant(loop, x):
    array = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[])
    body = lambda i, array: (i + 1, array.write(i, x * tf.cast(i, tf.float32)))  # noqa: E731
    return loop(lambda i, _: i < 3, body, [0, array], [NUMBER, ANY])[1].stack()


# --- sparse and ragged values --------------------------------------------------------------------


def sparse(x):
    return tf.SparseTensor([[0], [3]], tf.stack([x, 2 * x]), [10])


def doubled(s):
    return (tf.SparseTensor(s.indices, s.values * 2.0, s.dense_shape),)


def grown(i, s):
    one = tf.SparseTensor(tf.cast(tf.fill([1, 1], i), tf.int64), tf.fill([1], 1.0), s.dense_shape)
    return i + 1, tf.sparse.add(s, one)


def of_higher_rank(i, s):
    indices = tf.concat([s.indices, tf.cast([[i], [i]], tf.int64)], 1)
    return i + 1, tf.SparseTensor(indices, s.values * 2.0, tf.concat([s.dense_shape, [10]], 0))


@program(eager=True)
def sparse_values(loop, x):
    return components(*repeat(loop, 4, doubled, sparse(x)))


@program()
def sparse_values_of_more_elements(loop, x):
    return components(loop(lambda i, _: i < 4, grown, (0, sparse(x)))[1])


@program()
def sparse_values_and_a_shape(loop, x):
    shapes = (NUMBER, tf.TensorShape([None]))
    return components(*repeat(loop, 4, doubled, sparse(x), shape_invariants=shapes))


@program(eager=True)
def sparse_values_of_changing_rank(loop, x):
    shapes = (NUMBER, tf.TensorShape([None]))
    return components(loop(lambda i, _: i < 4, of_higher_rank, (0, sparse(x)), shapes)[1])


@program()
def sparse_values_of_any_rank(loop, x):
    return components(loop(lambda i, _: i < 4, of_higher_rank, (0, sparse(x)), (NUMBER, ANY))[1])


def slices(x, *shape):
    values = x * tf.constant([[2.0, 4.0], [3.0, 5.0]])
    return tf.IndexedSlices(values, tf.constant([0, 3]), *shape)


@program(eager=True)
def indexed_slices(loop, x):
    def body(s):
        return (tf.IndexedSlices(s.values * 2.0, s.indices, s.dense_shape),)

    return components(*repeat(loop, 4, body, slices(x, tf.constant([10, 2]))))


@program()
def indexed_slices_and_a_shape(loop, x):
    def body(s):
        return (tf.IndexedSlices(s.values * x, s.indices, s.dense_shape),)

    start = slices(x, tf.constant([10, 2]))
    shapes = (NUMBER, tf.TensorShape([None, 2]))
    return components(*repeat(loop, 4, body, start, shape_invariants=shapes))


@program()
def indexed_slices_of_an_unknown_whole(loop, x):
    def body(s):
        return (tf.IndexedSlices(s.values * x, s.indices),)

    return components(*repeat(loop, 4, body, slices(x)))


def rows(x):
    return tf.RaggedTensor.from_row_lengths(x * tf.range(1.0, 7.0), [2, 1, 3])


def of_longer_rows(r):
    return (tf.concat([r, r], 1),)


@program(eager=True)
def longer_rows(loop, x):
    return components(*repeat(loop, 3, of_longer_rows, rows(x)))


@program()
def longer_rows_and_a_shape(loop, x):
    shapes = (NUMBER, tf.TensorShape([None, None]))
    return components(*repeat(loop, 3, of_longer_rows, rows(x), shape_invariants=shapes))


@program(eager=True)
def more_rows(loop, x):
    shapes = (NUMBER, tf.RaggedTensorSpec([None, None], tf.float32))
    body = lambda r: (tf.concat([r, r * x], 0),)  # noqa: E731
    return components(*repeat(loop, 3, body, rows(x), shape_invariants=shapes))


@program(eager=True)
def rows_of_rows(loop, x):
    r = tf.ragged.constant([[[1, 2], [3], [4, 5, 6]], [[], [8, 9, 10]]])
    body = lambda i, r: (i + 1, tf.concat([r, r[..., i : i + 1]], -1))  # noqa: E731
    return components(loop(lambda i, _: i < 3, body, (0, r))[1])


def components(value):
    return tf.nest.flatten(value, expand_composites=True)


# --- shapes and types ----------------------------------------------------------------------------


@program()
def shapes_that_are_not_known(loop, x):
    xs = tf.stack([x, x * 2, x * 3])

    def body(i, c, o):
        c = tf.strided_slice(xs, tf.expand_dims(i, 0), 1 + tf.expand_dims(i, 0))
        return [i + 1, c, tf.concat([o, c], 0)]

    start = [tf.constant(0), x[None], x[None]]
    return loop(lambda i, *_: i < tf.size(xs), body, start, [NUMBER, ANY, ANY])


@program()
def tiles(loop, x):
    shapes = (NUMBER, ANY)
    body = lambda m: (tf.tile(m, [2, 2]),)  # noqa: E731
    return repeat(loop, 2, body, x * tf.ones([2, 2]), shape_invariants=shapes)


@program(eager=True)
def ranks_that_change(loop, x):
    specs = (tf.TensorSpec([], tf.int32), tf.TensorSpec(None, tf.float32))
    (y,) = repeat(loop, 4, lambda s: (tf.stack([s, s]),), x[None], shape_invariants=specs)
    return tf.stop_gradient(y)  # TensorFlow's has none


@program()
def rows_added_to_none(loop, x):
    shapes = (NUMBER, tf.TensorShape([None, 2]))
    body = lambda h: (tf.concat([h, x * tf.ones([1, 2])], 0),)  # noqa: E731
    return repeat(loop, 2, body, tf.zeros([0, 2]), shape_invariants=shapes)


@program()
def complex_numbers(loop, x):
    body = lambda c: (c * tf.complex(x, 2 * x),)  # noqa: E731
    return tf.abs(repeat(loop, 3, body, tf.complex(x, x))[0])


@program()
def types_that_mix(loop, x):
    def body(a, b):
        return a * tf.cast(b, tf.float64), b + tf.cast(a, tf.float32) * 0.1

    return repeat(loop, 3, body, tf.cast(x, tf.float64), x)


@program(eager=True)
def strings(loop, x):
    y, text = repeat(loop, 3, lambda y, s: (y * x, tf.strings.join([s, "x"])), x, "a")
    return y, tf.strings.length(text)


@program(eager=True)
def a_bool_that_says_when_to_stop(loop, x):
    return loop(lambda go, _: go, lambda go, v: (v < 20.0, v * x), [True, x])


@program()
def containers(loop, x):
    def body(a, b, c):
        return [Pair(a.a + 1, a.b), (b[0] + 1, b[1]), c + 2 * x]

    return loop(lambda a, *_: a.a < 10.0, body, [Pair(x, 1.0), (2.0, x), 4.0])


# --- conditionals and loops inside and outside ---------------------------------------------------


@program(eager=True)
def in_a_branch(loop, x):
    return tf.cond(x < 5.0, lambda: loop(lambda v: v < 10.0, lambda v: v + x, [x])[0], lambda: x)


@program()
def in_a_branch_that_is_not_taken(loop, x):
    return tf.cond(x > 5.0, lambda: loop(lambda v: v < 9.0, lambda v: v + x, [x])[0], lambda: x * x)


@program()
def a_branch_that_is_known(loop, x):
    def body(v):
        return tf.cond(tf.constant(True), lambda: tf.square(v), lambda: v - 1.0)

    return loop(lambda v: v < 100.0, body, [x])


@program(order=2, eager=True)
def a_branch_by_value(loop, x):
    body = lambda v: tf.cond(v < 5.0, lambda: v * x, lambda: v + x * x)  # noqa: E731
    return loop(lambda v: v < 100.0, body, [x])


@program()
def branches_by_number(loop, x):
    def body(i, v):
        return i + 1, tf.switch_case(i % 3, [lambda: v * x, lambda: v + 1.0, lambda: v - x])

    return loop(lambda i, _: i < 6, body, [0, x])


@program()
def a_branch_in_the_condition(loop, x):
    cond = lambda i, _: tf.cond(i > 0, lambda: True, lambda: False)  # noqa: E731
    body = lambda i, v: (tf.cond(i > 0, lambda: i - 1, lambda: i), v * x)  # noqa: E731
    return loop(cond, body, (5, x))


def to_the_fourth(loop, s, x):
    return repeat(loop, 4, lambda v: (v * x,), s)[0]


@program()
def a_loop_in_a_branch_in_a_loop(loop, x):
    def body(v):
        power = lambda: tf.square(to_the_fourth(loop, v, x))  # noqa: E731
        return tf.cond(tf.constant(True), power, lambda: v * 2.0)

    return loop(lambda v: v < 128.0, body, [x])


@program()
def loops_inside_after_one_another(loop, x):
    body = lambda v: to_the_fourth(loop, to_the_fourth(loop, v, x), x)  # noqa: E731
    return loop(lambda v: v < 128.0, body, [x])


@program(order=2)
def loops_inside_beside_one_another(loop, x):
    body = lambda v: to_the_fourth(loop, v, x) * to_the_fourth(loop, v, 1.1 * x)  # noqa: E731
    return loop(lambda v: v < 128.0, body, [x])


@program()
def loops_after_one_another(loop, x):
    first = loop(lambda v: v < 4.0, lambda v: v * v, [x])
    return loop(lambda v: v < 16.0, lambda v: v * v, first)


@program()
def a_loop_as_long_as_the_outer_one_says(loop, x):
    def body(i, s):
        power = loop(lambda k, _: k > 0, lambda k, v: (k - 1, v * x), [i, tf.constant(1.0)])
        return i - 1, s + power[1]

    return loop(lambda i, _: i >= 0, body, [4, 0.0])


@program()
def in_a_map_in_a_map(loop, x):
    def number(n):
        return n + repeat(loop, 2, lambda v: (v * SCALAR,), n)[0]

    matrix = x * tf.constant([[1.0, 2.0], [3.0, 4.0]])
    return tf.map_fn(lambda row: tf.map_fn(number, row), matrix)


@program()
def control_dependencies_inside(loop, x):
    def body(n, r):
        with tf.control_dependencies([r]):
            r = tf.constant(12.0)
        return n * x, r

    return loop(lambda n, _: n < 10.0, body, [x, x])


@program()
def control_dependencies_outside(loop, x):
    a, b = repeat(loop, 1, lambda a, b: (tf.identity(a), a + b), x, x)
    with tf.control_dependencies([a]):
        return tf.identity(b)


@program()
def colocated(loop, x):
    def body(v):
        with tf.compat.v1.colocate_with(x):
            return v * v

    return loop(lambda v: v < 80.0, body, [x])


@program(eager=True)
def functions_and_scopes(loop, x):
    @tf.function
    def step(i, v):
        with tf.name_scope("inside"):
            return i + 1, tf.multiply(v, x, name="product")

    with tf.name_scope("outside"):
        return loop(lambda i, _: i < 4, step, [0, x], name="loop")


# --- variables -----------------------------------------------------------------------------------


@program(eager=True)
def a_variable_in_condition_and_body(loop, x):
    return loop(lambda v: v + SCALAR < 90.0, lambda v: v * 3.0 * SCALAR, [x])


@program(eager=True)
def some_rows_of_a_variable(loop, x):
    body = lambda v: (v * tf.reduce_sum(VECTOR.sparse_read([1, 3])) * x,)  # noqa: E731
    return repeat(loop, 3, body, x)


@program()
def rows_alone(loop, x):
    def body(_, b, c):
        return VECTOR.sparse_read([1, 3]), b * 2, c * tf.reduce_sum(VECTOR.sparse_read([0]))

    return repeat(loop, 3, body, tf.zeros([2]), x, x)


@program(order=2)
def a_variable_that_a_function_takes(loop, x):
    @tf.function
    def inner(x, variable):
        return x + tf.reduce_sum(variable.sparse_read([1, 3]))

    @tf.function
    def outer(x, variable):
        return inner(x, variable)

    return repeat(loop, 2, lambda v: (outer(v, VECTOR),), x)


@program()
def variables_in_branches(loop, x):
    @tf.function
    def add(x, variable):
        return x + variable.sparse_read([1])[0]

    def body(i, v):
        return i + 1, tf.cond(i % 2 == 0, lambda: add(v, VECTOR), lambda: v * SCALAR)

    return loop(lambda i, _: i < 4, body, [0, x])


@program(order=2)
def a_variable_in_a_loop_in_a_branch(loop, x):
    def body(y):
        squares = lambda: repeat(loop, 3, lambda z: (z + SCALAR**2,), y)[0]  # noqa: E731
        return (y + tf.cond(tf.constant(True), squares, lambda: 0.0),)

    return repeat(loop, 2, body, x)


# --- gradients -----------------------------------------------------------------------------------


@program(order=2, eager=True)
def a_custom_gradient(loop, x):
    factor = tf.constant(1.5)

    def body(v):
        @tf.custom_gradient
        def square(v):
            return v * v, lambda dy: dy * 2 * v * factor

        return square(v)

    return loop(lambda v: v < 8.0, body, [x])


@program()
def a_gradient_of_zeros(loop, x):
    @tf.custom_gradient
    def double(x):
        return x * 2, lambda dy: tf.zeros(tf.shape(x))

    return repeat(loop, 2, lambda v: (double(v),), x)


@program(eager=True)
def a_gradient_in_the_body(loop, x):
    def slope(a):
        with tf.GradientTape() as tape:
            tape.watch(a)
            b = repeat(loop, 2, lambda y: (tf.cos(SCALAR + y),), a)
        return tape.gradient(b, a)

    return repeat(loop, 2, lambda y: (slope(y),), x)


@program()
def a_result_of_which_a_part_counts(loop, x):
    body = lambda v: (v * v,)  # noqa: E731
    (y,) = loop(lambda _: True, body, (tf.stack([x, 2 * x]),), maximum_iterations=2)
    return tf.gather(y, [0])


@program()
def parts_of_a_state(loop, x):
    xs = tf.stack([x, x * 2, x * 3])
    body = lambda a, b: (a + tf.gather(a, [0]), tf.gather(b, [0]))  # noqa: E731
    return repeat(loop, 3, body, xs[:1], xs[1:2])


@program()
def parts_of_what_is_outside(loop, x):
    xs = tf.stack([x, x * 2, x * 3])
    return loop(lambda i, _: i < 3, lambda i, v: (i + 1, v + tf.gather(xs, i)), [0, 0.0])


@program(order=2)
def states_that_depend_on_each_other(loop, x):
    def body(a, b):
        return a * (a + b), a + b

    return loop(lambda a, _: a < 100.0, body, [x, 2 * x])


@program()
def a_state_that_becomes_a_constant(loop, x):
    one = tf.constant(1.0)
    return repeat(loop, 1, lambda _: (one,), x)


@program()
def states_that_stay(loop, x):
    return repeat(loop, 10, lambda a, _: (a, a), x, x)


@program()
def states_that_change_places(loop, x):
    return repeat(loop, 5, lambda a, b: (b, a), x, 2 * x)


@program(eager=True)
def no_iteration_and_another_use(loop, x):
    return loop(lambda v: tf.constant(False), lambda v: v * x, [x * tf.ones([2])]), x * x


@program()
def a_stopped_gradient(loop, x):
    return repeat(loop, 3, lambda a, b: (a * tf.stop_gradient(b), b * x), x, x)


@program()
def powers_of_a_matrix(loop, x):
    matrix = x * tf.eye(3)
    return repeat(loop, 3, lambda a: (a @ (a + matrix),), matrix)


# --- the tests -----------------------------------------------------------------------------------


def run(loop, function, order):
    """The values of a program, their gradients, and a second derivative."""
    x = tf.constant(2.0)
    with tf.GradientTape() if order == 2 else contextlib.nullcontext() as outer:
        if order == 2:
            outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            found = tf.nest.flatten(function(loop, x))
            floats = [tf.cast(t, tf.float32) for t in found if t.dtype.is_floating]
            total = tf.add_n([tf.reduce_sum(tf.sin(t)) for t in floats] or [0.0])
        gradients = inner.gradient(total, [x, SCALAR, VECTOR])
        gradients = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
    return found, gradients, outer.gradient(gradients[0], x) if order == 2 else None


def assert_same(theirs, ours):
    for their, our in zip(tf.nest.flatten(theirs), tf.nest.flatten(ours), strict=True):
        if their is None or our is None:
            assert their is our
            continue
        assert their.dtype == our.dtype
        np.testing.assert_allclose(their.numpy(), our.numpy(), rtol=3e-5, atol=1e-5)


@pytest.mark.quarter
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_tensorflows_loop_and_its_derivatives(name):
    function, order, is_eager = PROGRAMS[name]
    theirs = tf.function(run)(tf.while_loop, function, order)
    assert_same(theirs, tf.function(run)(tf_ti.while_loop, function, order))
    if is_eager:
        assert_same(theirs[:2], run(tf_ti.while_loop, function, 1)[:2])
