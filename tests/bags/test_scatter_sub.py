"""`tf_ti.scatter_sub` against NumPy: values, order, what else holds the value, wrong calls."""

import re
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from patience import HANGS
from tensorflow.python.ops import resource_variable_ops
from updates_definition import PADDED, each_updated_dtype, pad

import tf_ti
from tf_ti._library import ops

HALVES = [tf.float16, tf.bfloat16]
SIGNED = [tf.int8, tf.int16, tf.int32, tf.int64]
UNSIGNED = [tf.uint8, tf.uint16, tf.uint32, tf.uint64]
INTEGERS = [*SIGNED, *UNSIGNED]
WIDE = [tf.float32, tf.float64, tf.complex64, tf.complex128]
DTYPES = [*INTEGERS, *HALVES, *WIDE]

InvalidArgument = tf.errors.InvalidArgumentError

each_index_type = pytest.mark.parametrize("index_type", [np.int32, np.int64])


def numbers(dtype, shape, rng):
    """Small whole numbers: products and sums of a few hundred are exact in every type but int8."""
    values = rng.integers(0 if dtype.is_unsigned else -4, 5, shape)
    if dtype.is_complex:
        values = values + 1j * rng.integers(-4, 5, shape)
    return np.asarray(values).astype(dtype.as_numpy_dtype)


def by_definition(table, indices, values, scale=1):
    """The update by definition, in the table's type; a row that comes again is updated again."""
    table = table.copy()
    wide = np.float32 if table.dtype.itemsize == 2 and table.dtype.kind in "fV" else table.dtype
    for i, row in enumerate(indices):
        difference = table[row].astype(wide) - np.asarray(scale, wide) * values[i].astype(wide)
        table[row] = difference.astype(table.dtype)
    return table


def slices(values, indices, index_type=np.int64):
    return tf.IndexedSlices(tf.constant(values), tf.constant(np.asarray(indices, index_type)))


def updated(table, indices, values, *scale, index_type=np.int64):
    variable = tf.Variable(table)
    assert tf_ti.scatter_sub(variable, slices(values, indices, index_type), *scale) is None
    assert variable.dtype == table.dtype
    return variable.numpy()


# Values


@each_updated_dtype(DTYPES)
@each_index_type
def test_every_dtype_subtracts_as_numpy_does(dtype, index_type):
    rng = np.random.default_rng(1)
    table, indices = numbers(dtype, [30, 21], rng), rng.integers(0, 30, 200)
    values = numbers(dtype, [200, 21], rng)
    expected = table.copy()
    np.subtract.at(expected, indices, values)
    actual = updated(table, indices, values, index_type=index_type)
    np.testing.assert_array_equal(actual, expected)

    scale = 2 - 1j if dtype.is_complex else 3
    expected = table.copy()
    np.subtract.at(expected, indices, values * table.dtype.type(scale))
    actual = updated(table, indices, values, scale, index_type=index_type)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.needs_cpu_kernels
@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.name)
def test_integers_wrap_around_as_in_numpy(dtype):
    table = np.array([dtype.min, dtype.max, 0], dtype.as_numpy_dtype)
    values = np.array([1, dtype.max, dtype.max], dtype.as_numpy_dtype)
    scale = table.dtype.type(7)
    with np.errstate(over="ignore"):
        expected = table - scale * values
    np.testing.assert_array_equal(updated(table, [0, 1, 2], values, 7), expected)


@pytest.mark.needs_cpu_kernels
@pytest.mark.parametrize("dtype", SIGNED, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("scale", [-1, "lowest"])
def test_a_negative_scale_of_integers_adds(dtype, scale):
    scale = dtype.min if scale == "lowest" else scale
    table, values = np.array([5, -7], dtype.as_numpy_dtype), np.array([3, 4], dtype.as_numpy_dtype)
    with np.errstate(over="ignore"):
        expected = table - table.dtype.type(scale) * values
    np.testing.assert_array_equal(updated(table, [0, 1], values, scale), expected)


@each_updated_dtype(WIDE)
@pytest.mark.parametrize("order", ["ascending", "any"])
def test_floats_are_one_rounding_away_from_numpy(dtype, order):
    """Of any values: product and difference may be rounded together, or one after the other."""
    rng = np.random.default_rng(2)
    table, values = rng.standard_normal([2, 50, 19])
    if dtype.is_complex:
        table, values = table + 1j * values, values - 2j * table
    table, values = (x.astype(dtype.as_numpy_dtype) for x in (table, values))
    indices = np.arange(50) if order == "ascending" else rng.permutation(50)
    actual = updated(table, indices, values, 0.37)
    expected = table.astype(np.complex128)
    expected[indices] -= 0.37 * values.astype(np.complex128)
    error = np.abs(actual.astype(np.complex128) - expected)
    # Of the scale, of the product, of the difference.
    eps = np.finfo(table.dtype).eps
    assert np.all(error <= eps * (np.abs(table[indices.argsort()]) + 4 * np.abs(values).max()))


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("width", [1, 3, 8, 37])
def test_halves_are_computed_in_float32_and_rounded_once(dtype, width):
    rng = np.random.default_rng(width)
    # Multiples of 2^-8, and of 2^-2 times 2^-11: float32 holds their difference as it is.
    table = (rng.integers(-1023, 1024, [40, width]) / 256).astype(dtype.as_numpy_dtype)
    values = (rng.integers(-127, 128, [40, width]) / 4).astype(dtype.as_numpy_dtype)
    scale = 2.0**-11 + 2.0**-5  # which bfloat16 would not hold
    wide = table.astype(np.float64) - scale * values.astype(np.float64)
    assert np.all(wide == wide.astype(np.float32))
    actual = updated(table, np.arange(40), values, scale)
    np.testing.assert_array_equal(actual, wide.astype(np.float32).astype(table.dtype))
    # The rounding is seen: in halves all along, something else comes out.
    twice = table - (table.dtype.type(scale) * values).astype(table.dtype)
    assert np.any(actual != twice)


@pytest.mark.needs_cpu_kernels
@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
def test_a_half_is_rounded_after_each_of_several_updates(dtype):
    """As the loop of the docstring does: small steps are lost one by one."""
    step = np.full([64, 5], 2.0**-12, dtype.as_numpy_dtype)
    table = np.ones([3, 5], dtype.as_numpy_dtype)
    actual = updated(table, [1] * 64, step, -1.0)
    np.testing.assert_array_equal(actual, table)
    np.testing.assert_array_equal(actual, by_definition(table, [1] * 64, step, -1.0))


@each_updated_dtype([tf.float32, tf.float16, tf.int16])
@pytest.mark.parametrize("first", [0, 16, 32, 63, 127])
def test_every_width_is_updated_to_its_last_element(dtype, first):
    rng = np.random.default_rng(first)
    for width in range(first, first + 16):
        table, values = numbers(dtype, [9, width], rng), numbers(dtype, [12, width], rng)
        indices = rng.integers(0, 9, 12)
        actual = updated(table, indices, values, 2)
        np.testing.assert_array_equal(actual, by_definition(table, indices, values, 2))


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@each_index_type
def test_variables_of_any_rank(rank, index_type):
    rng = np.random.default_rng(rank)
    shape = [8, 5, 3, 2][:rank]
    table, values = numbers(tf.float32, shape, rng), numbers(tf.float32, [20, *shape[1:]], rng)
    indices = rng.integers(0, 8, 20)
    actual = updated(table, indices, values, 0.5, index_type=index_type)
    np.testing.assert_array_equal(actual, by_definition(table, indices, values, 0.5))


@each_index_type
@pytest.mark.parametrize("shape", [[5], [5, 3], [5, 0], [5, 0, 3], [0, 4], [0]], ids=str)
def test_no_indices_and_rows_of_nothing_change_nothing(shape, index_type):
    table = numbers(tf.float32, shape, np.random.default_rng(0))
    values = np.ones([0, *shape[1:]], np.float32)
    np.testing.assert_array_equal(updated(table, [], values, index_type=index_type), table)
    if shape[0] and 0 in shape[1:]:
        values = np.ones([3, *shape[1:]], np.float32)
        np.testing.assert_array_equal(updated(table, [4, 0, 4], values), table)


def test_rows_that_come_again_are_subtracted_in_their_order():
    # 2^24 + 1 is not a float32: what is left depends on which comes first.
    big, small = np.float32([[2**24]]), np.float32([[1]])
    table = np.zeros([2, 1], np.float32)
    first = updated(table, [1, 1, 1], np.concatenate([-big, -small, big]))
    last = updated(table, [1, 1, 1], np.concatenate([-big, big, -small]))
    assert first.tolist() == [[0], [0]]
    assert last.tolist() == [[0], [1]]


@pytest.mark.needs_cpu_kernels
@pytest.mark.parametrize("seed", range(8), indirect=True)
def test_random_repeated_indices_are_taken_in_order(rng):
    table = rng.standard_normal([7, 13]).astype(np.float32)
    values = rng.standard_normal([500, 13]).astype(np.float32)
    indices = rng.integers(0, 7, 500)
    indices = np.sort(indices) if rng.random() < 0.5 else indices
    # With a power of two the product is exact: fused or not, the same comes out.
    actual = updated(table, indices, values, 0.5)
    np.testing.assert_array_equal(actual, by_definition(table, indices, values, 0.5))


@pytest.mark.parametrize("kind", ["ascending", "descending", "one repeated", "any"])
@each_index_type
@each_updated_dtype([tf.float32, tf.bfloat16, tf.int64])
def test_updates_that_are_large_enough_for_several_threads(dtype, index_type, kind):
    rng = np.random.default_rng(3)
    rows, width = 20_000, 33
    table = numbers(dtype, [rows, width], rng)
    indices = np.flatnonzero(rng.random(rows) < 0.6)
    if kind == "descending":
        indices = indices[::-1]
    elif kind == "one repeated":  # the last of the first half: where two threads would meet
        indices[len(indices) // 2] = indices[len(indices) // 2 - 1]
    elif kind == "any":
        rng.shuffle(indices)
    values = numbers(dtype, [len(indices), width], rng)
    assert values.nbytes > 1 << 19
    expected = table.copy()
    np.subtract.at(expected, indices, values * table.dtype.type(2))
    actual = updated(table, indices, values, 2, index_type=index_type)
    np.testing.assert_array_equal(actual, expected)


def test_what_is_not_finite_goes_through():
    table = np.float32([[1, np.inf, np.nan, 2], [1, 2, 3, 4]])
    values = np.float32([[np.inf, np.inf, 1, np.nan]])
    actual = updated(table, [0], values, 1.0)
    np.testing.assert_array_equal(actual, np.float32([[-np.inf] + [np.nan] * 3, [1, 2, 3, 4]]))


def test_a_scale_of_zero_leaves_every_finite_value():
    table = np.float32([[0.0, -0.0, 1.5], [2, 3, 4]])
    actual = updated(table, [0, 1], np.float32([[1, 1, 1], [-1, -2, -3]]), 0.0)
    np.testing.assert_array_equal(actual.view(np.uint32), table.view(np.uint32))


# The scale


SCALES = {
    "a float": lambda: 0.5,
    "float32 of NumPy": lambda: np.float32(0.5),
    "float64 of NumPy": lambda: np.float64(0.5),
    "an array of NumPy": lambda: np.array(0.5, np.float32),
    "a tensor": lambda: tf.constant(0.5),
    "a variable": lambda: tf.Variable(0.5),
    "a variable of Keras": lambda: keras.Variable(0.5),
}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", [tf.float32, *HALVES], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "function"])
def test_a_scale_of_any_kind(scale, dtype, is_graph):
    table = np.arange(6).reshape(3, 2).astype(dtype.as_numpy_dtype)
    variable, scale = tf.Variable(table), SCALES[scale]()

    def call():
        tf_ti.scatter_sub(variable, slices(table[:1] + table.dtype.type(4), [2]), scale)

    (tf.function(call) if is_graph else call)()
    np.testing.assert_array_equal(variable.numpy().astype(float), [[0, 1], [2, 3], [2, 2.5]])


@each_updated_dtype(DTYPES)
def test_a_whole_number_is_a_scale_for_every_dtype(dtype):
    table, values = np.array([9, 7], dtype.as_numpy_dtype), np.array([2], dtype.as_numpy_dtype)
    for scale in (3, np.int64(3), np.uint8(3)):
        np.testing.assert_array_equal(updated(table, [0], values, scale), table - [6, 0])


def test_the_scale_is_one_where_none_is_given():
    np.testing.assert_array_equal(updated(np.float64([5, 6]), [1], np.float64([2])), [5, 4])


@pytest.mark.needs_cpu_kernels
def test_a_complex_scale_multiplies_as_it_is():
    table, values = np.complex64([1 + 1j]), np.complex64([2 - 3j])
    for scale in (1j, np.complex64(1j), tf.constant(1j, tf.complex64)):
        np.testing.assert_array_equal(updated(table, [0], values, scale), [1 + 1j - (3 + 2j)])


@pytest.mark.parametrize("kind", PADDED)
@pytest.mark.parametrize("count", [1, 40, 3000])
def test_padded_slices(kind, count):
    rng = np.random.default_rng(8)
    table = rng.integers(-9, 9, [4000, 40]).astype("f")
    indices = np.sort(rng.choice(4000, count, replace=False))
    indices, values = pad(kind, indices, rng.integers(-9, 9, [count, 40]).astype("f"))
    actual = updated(table, indices, values, 2.0)
    np.testing.assert_array_equal(actual, by_definition(table, indices, values, 2))


# Others that hold the value


def earlier_values(variable):
    """Tensors that may share memory with the variable, each in a way of its own."""
    rows = variable.shape[0]
    return {
        "read_value": variable.read_value(),
        "value": variable.value(),
        "convert_to_tensor": tf.convert_to_tensor(variable),
        "identity": tf.identity(variable),
        "slice": variable.read_value()[1:rows],
        "reshape": tf.reshape(variable, [-1]),
        "memoryview": np.asarray(memoryview(variable.read_value())),
        "function": tf.function(lambda: variable.read_value())(),
    }


def test_a_tensor_read_before_an_update_keeps_its_value():
    table = np.arange(4000, dtype=np.float32).reshape(100, 40)
    variable = tf.Variable(table)
    now = table.copy()
    for step in range(3):  # the first sparse update is unlike those that follow
        held = earlier_values(variable)
        copies = {name: np.array(value) for name, value in held.items()}
        np.testing.assert_array_equal(copies["read_value"], now)
        indices = [3, 99, step]
        tf_ti.scatter_sub(variable, slices(np.ones([3, 40], np.float32), indices), 2.0)
        np.subtract.at(now, indices, 2)
        np.testing.assert_array_equal(variable, now)
        for name, value in held.items():
            np.testing.assert_array_equal(value, copies[name], name)


def address(variable):
    return np.asarray(memoryview(variable.read_value())).ctypes.data


def test_only_an_update_of_a_value_that_somebody_holds_copies_it():
    variable = tf.Variable(tf.zeros([512, 64]))

    def update():
        tf_ti.scatter_sub(variable, slices(np.ones([1, 64], np.float32), [3]))

    update()
    own = address(variable)
    update()
    held = np.asarray(memoryview(variable.read_value()))
    assert held.ctypes.data == own  # neither the update nor the read, which TensorFlow's make one
    update()
    assert address(variable) != own
    assert (held[3, 0], variable.numpy()[3, 0]) == (-2, -3)


@pytest.mark.parametrize("first", ["tf_ti", "TensorFlow"])
def test_reads_between_updates_of_tf_ti_and_of_tensorflow(first):
    variable = tf.Variable(np.zeros([4, 3], np.float32))
    ones = slices(np.ones([1, 3], np.float32), [2])
    ours, theirs = lambda: tf_ti.scatter_sub(variable, ones), lambda: variable.scatter_sub(ones)
    history = []
    for step in range(6):
        history.append(variable.read_value())
        (ours if (step % 2 == 0) == (first == "tf_ti") else theirs)()
    for step, value in enumerate(history):
        np.testing.assert_array_equal(value, [[0] * 3, [0] * 3, [-step] * 3, [0] * 3])


def test_what_the_variable_was_made_from_keeps_its_value():
    array = np.ones([512, 64], np.float32)  # large and aligned: TensorFlow may share it
    tensor = tf.ones([512, 64])
    for source in (array, tensor):
        for make in (tf.Variable, lambda x: tf.Variable(tf.zeros([512, 64])).assign(x)):
            variable = make(source)
            tf_ti.scatter_sub(variable, slices(np.ones([512, 64], np.float32), np.arange(512)))
            np.testing.assert_array_equal(variable, np.zeros([512, 64]))
            np.testing.assert_array_equal(source, np.ones([512, 64]))


def test_two_variables_of_one_tensor_are_two():
    first = tf.Variable(tf.ones([4, 2]))
    second = tf.Variable(first)
    third = tf.Variable(tf.zeros([4, 2]))
    third.assign(first)
    tf_ti.scatter_sub(first, slices(np.ones([1, 2], np.float32), [0]))
    tf_ti.scatter_sub(third, slices(np.ones([1, 2], np.float32), [1]))
    assert first.numpy()[:, 0].tolist() == [0, 1, 1, 1]
    assert second.numpy()[:, 0].tolist() == [1, 1, 1, 1]
    assert third.numpy()[:, 0].tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize("times", [1, 3])
def test_the_variables_own_rows_may_be_subtracted(times):
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    variable, expected = tf.Variable(table), table.copy()
    for _ in range(times):
        own = tf.IndexedSlices(variable.read_value(), tf.constant([3, 2, 1, 0]))
        tf_ti.scatter_sub(variable, own)
        expected = expected - expected[::-1]
    np.testing.assert_array_equal(variable, expected)


def test_a_value_assigned_after_an_update_is_the_variables_own():
    variable = tf.Variable(tf.zeros([4, 2]))
    one = slices(np.ones([1, 2], np.float32), [1])
    tf_ti.scatter_sub(variable, one)
    value = tf.fill([4, 2], 7.0)
    variable.assign(value)
    held = variable.read_value()
    tf_ti.scatter_sub(variable, one)
    variable.assign_add(tf.ones([4, 2]))
    np.testing.assert_array_equal(value, np.full([4, 2], 7))
    np.testing.assert_array_equal(held, np.full([4, 2], 7))
    assert variable.numpy()[:, 0].tolist() == [8, 7, 8, 8]


# Where it runs


def test_in_a_function_it_happens_between_the_reads_around_it():
    variable = tf.Variable(tf.zeros([3, 2]))

    @tf.function
    def step(values, indices):
        before, bag_before = variable.read_value(), tf_ti.embedding_bag(variable, [[0, 1, 2]])
        tf_ti.scatter_sub(variable, tf.IndexedSlices(values, indices), 3.0)
        between = variable.read_value()
        tf_ti.scatter_sub(variable, tf.IndexedSlices(values, indices), -1.0)
        bag_after = tf_ti.embedding_bag(variable, [[0, 1, 2]])
        return before, bag_before, between, bag_after

    for count in range(3):
        before, bag_before, between, bag_after = step(tf.ones([1, 2]), tf.constant([1]))
        np.testing.assert_array_equal(before, [[0, 0], [-2 * count] * 2, [0, 0]])
        np.testing.assert_array_equal(bag_before, [[-2 * count] * 2])
        np.testing.assert_array_equal(between, [[0, 0], [-2 * count - 3] * 2, [0, 0]])
        np.testing.assert_array_equal(bag_after, [[-2 * count - 2] * 2])


@pytest.mark.parametrize("shape", [None, [None, None], [None, 2]], ids=str)
def test_in_a_function_that_knows_little_of_its_inputs(shape):
    variable = tf.Variable(tf.zeros([3, 2]), shape=tf.TensorShape(shape))

    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec(None, tf.int32)])
    def step(values, indices):
        tf_ti.scatter_sub(variable, tf.IndexedSlices(values, indices), values[0, 0])

    step(tf.constant([[2.0, 1.0], [1.0, 1.0]]), tf.constant([2, 2]))
    np.testing.assert_array_equal(variable, [[0, 0], [0, 0], [-6, -4]])
    variable.assign(tf.zeros([3, 2]))
    with pytest.raises(InvalidArgument, match="values"):
        step(tf.ones([2, 2]), tf.constant([1]))
    with pytest.raises(InvalidArgument, match="indices"):
        step(tf.ones([1, 2]), tf.constant(1))
    np.testing.assert_array_equal(variable, np.zeros([3, 2]))


@pytest.mark.parametrize("parallel_iterations", [1, 10])
@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "function"])
def test_in_a_while_loop_once_an_iteration_and_in_order(is_graph, parallel_iterations):
    variable = tf.Variable(np.ones([1], np.float32))

    def call():
        def body(k):
            # x -> 2 x + k: every iteration needs the one before.
            value = variable.read_value() + tf.cast(k, tf.float32)
            tf_ti.scatter_sub(variable, tf.IndexedSlices(value, tf.constant([0])), -1.0)
            return [k + 1]

        tf.while_loop(lambda k: k < 10, body, [0], parallel_iterations=parallel_iterations)

    (tf.function(call) if is_graph else call)()
    expected = 1
    for k in range(10):
        expected = 2 * expected + k
    assert variable.numpy().tolist() == [expected]


def test_in_a_branch_only_where_it_is_taken():
    variable = tf.Variable(tf.zeros([2]))

    @tf.function
    def call(flag):
        if flag:
            tf_ti.scatter_sub(variable, tf.IndexedSlices(tf.ones([1]), tf.constant([0])))

    call(tf.constant(False))
    assert variable.numpy().tolist() == [0, 0]
    call(tf.constant(True))
    assert variable.numpy().tolist() == [-1, 0]


@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "function"])
def test_a_variable_of_keras(is_graph):
    variable = keras.Variable(np.zeros([3, 2], np.float32))
    layer = keras.layers.Embedding(3, 2, embeddings_initializer="zeros")
    layer.build([1])

    def call():
        for target in (variable, layer.embeddings):
            tf_ti.scatter_sub(target, slices(np.ones([2, 2], np.float32), [2, 0]), 0.5)

    (tf.function(call) if is_graph else call)()
    for target in (variable, layer.embeddings):
        np.testing.assert_array_equal(target.numpy(), [[-0.5] * 2, [0, 0], [-0.5] * 2])


@pytest.mark.parametrize("combiner", ["sum", "mean", "max"])
@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "function"])
def test_steps_of_training_are_those_on_the_dense_gradient(combiner, is_graph):
    rng = np.random.default_rng(4)
    initial = rng.standard_normal([30, 5])
    sparse, dense = tf.Variable(initial), tf.Variable(initial)

    def gradient(table, ids):
        with tf.GradientTape() as tape:
            y = tf_ti.embedding_bag(table, ids, combiner=combiner)
            loss = tf.reduce_sum(y**2 + y)
        return tape.gradient(loss, table)

    def step(ids):
        tf_ti.scatter_sub(sparse, gradient(sparse, ids), 0.1)
        dense.assign_sub(0.1 * tf.convert_to_tensor(gradient(dense, ids)))

    step = tf.function(step) if is_graph else step
    for _ in range(4):
        step(tf.constant(rng.integers(0, 30, [9, 4])))
    np.testing.assert_allclose(sparse, dense, rtol=1e-12, atol=1e-12)
    assert np.any(np.asarray(sparse) != initial)


def test_readers_beside_an_update_see_whole_rows():
    """A look-up runs before an update or after it, never in between."""
    rows, width, steps = 4000, 32, 60
    variable = tf.Variable(tf.zeros([rows, width]))
    everything = slices(np.ones([rows, width], np.float32), np.arange(rows))
    wrong, finally_read, done = [], [], threading.Event()

    def read(look):
        last = 0.0
        while True:
            was_last = done.is_set()
            values = np.unique(look())
            if len(values) != 1 or values[0] > last:
                wrong.append((values, last))
                return
            last = values[0]
            if was_last:
                finally_read.append(last)
                return

    ids = np.arange(rows)[:, np.newaxis]
    looks = [
        lambda: tf_ti.embedding_bag_packed(variable, ids),
        lambda: tf_ti.embedding_bag_packed(variable, ids, reduction="max"),
        lambda: variable.read_value(),
    ]
    readers = [threading.Thread(target=read, args=[look]) for look in looks]
    for reader in readers:
        reader.start()
    for _ in range(steps):
        tf_ti.scatter_sub(variable, everything)
    done.set()
    for reader in readers:
        reader.join(HANGS)
        assert not reader.is_alive()
    assert not wrong
    assert finally_read == [-steps] * len(looks)
    np.testing.assert_array_equal(variable, np.full([rows, width], -steps))


def test_updates_from_several_threads_all_count():
    variable = tf.Variable(tf.zeros([500, 16]))

    def update(k):
        ids = np.arange(500) if k % 2 else np.arange(500)[::-1]
        for _ in range(25):
            tf_ti.scatter_sub(variable, slices(np.ones([500, 16], np.float32), ids))

    writers = [threading.Thread(target=update, args=[k]) for k in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(HANGS)
        assert not writer.is_alive()
    np.testing.assert_array_equal(variable, np.full([500, 16], -100))


@pytest.mark.slow
def test_a_step_of_training_in_a_saved_model(run_program, tmp_path):
    class Model(tf.Module):
        def __init__(self):
            self.table = tf.Variable(np.arange(15, dtype=np.float32).reshape(5, 3))

        @tf.function(
            input_signature=[tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([], tf.float32)]
        )
        def step(self, ids, rate):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_ti.embedding_bag_packed(self.table, ids))
            tf_ti.scatter_sub(self.table, tape.gradient(loss, self.table), rate)
            return loss

    tf.saved_model.save(Model(), str(tmp_path / "model"))
    run_program(
        """
        import sys
        import numpy as np
        import tensorflow as tf
        import tf_ti

        model = tf.saved_model.load(sys.argv[1])
        expected = np.arange(15, dtype=np.float32).reshape(5, 3)
        for ids in ([[0, 4], [4, 1]], [[2, 2]]):
            loss = model.step(tf.constant(ids), 0.5)
            assert loss.numpy() == expected[np.ravel(ids)].sum()
            np.subtract.at(expected, np.ravel(ids), np.float32(0.5))
            np.testing.assert_array_equal(model.table, expected)
        """,
        tmp_path / "model",
    )


# Wrong calls


TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def variable():
    """A variable that must be as it was at the test's end, and still take a right update."""
    variable = tf.Variable(TABLE)
    yield variable
    np.testing.assert_array_equal(variable, TABLE)
    tf_ti.scatter_sub(variable, slices(TABLE[:1] + 1, [3]))
    np.testing.assert_array_equal(variable, by_definition(TABLE, [3], TABLE[:1] + 1))


def refused(kinds, words, call, *arguments):
    """The call raises, eagerly and in a function, and the message has each of the words."""
    for run in (call, lambda *given: tf.function(call)(*given)):
        with pytest.raises(kinds) as error:
            run(*arguments)
        for word in words:
            assert re.search(rf"(?<![\w-]){re.escape(word)}(?!\w)", str(error.value)), (
                word,
                str(error.value),
            )


# The largest of int32, and past it.
OUTSIDE = [-1, 4, 5, -4, 2**31 - 1, -(2**31), 2**31, 2**32, -(2**32), 2**63 - 1, -(2**63)]


@pytest.mark.needs_checked_ids
@pytest.mark.parametrize("position", [0, 1, 5])
@pytest.mark.parametrize(
    ("outside", "index_type"),
    [
        (outside, index_type)
        for index_type in (np.int32, np.int64)
        for outside in OUTSIDE
        if np.iinfo(index_type).min <= outside <= np.iinfo(index_type).max
    ],
)
def test_an_index_outside_of_the_variable(variable, outside, index_type, position):
    indices = np.array([0, 1, 3, 3, 2, 0], index_type)
    indices[position] = outside

    def call():
        tf_ti.scatter_sub(variable, slices(np.ones([6, 3], np.float32), indices, index_type))

    words = [f"indices[{position}] is {outside}", "4 rows"]
    with pytest.raises(InvalidArgument) as error:
        call()
    for word in words:
        assert word in str(error.value)
    with pytest.raises(InvalidArgument) as error:
        tf.function(call)()
    for word in words:
        assert word in str(error.value)


@pytest.mark.needs_checked_ids
def test_an_index_outside_at_the_end_of_many_leaves_the_variable():
    rows = 20_000
    variable = tf.Variable(tf.zeros([rows, 32]))
    indices = np.arange(rows)
    indices[-1] = rows
    with pytest.raises(InvalidArgument, match=rf"indices\[{rows - 1}\] is {rows}"):
        tf_ti.scatter_sub(variable, slices(np.ones([rows, 32], np.float32), indices))
    np.testing.assert_array_equal(variable, np.zeros([rows, 32]))


@pytest.mark.needs_checked_ids
def test_an_index_into_a_variable_without_rows():
    variable = tf.Variable(tf.zeros([0, 3]))
    with pytest.raises(InvalidArgument, match=r"indices\[0\] is 0, but the variable has 0 rows"):
        tf_ti.scatter_sub(variable, slices(np.ones([1, 3], np.float32), [0]))


@pytest.mark.needs_checked_ids
def test_an_index_outside_where_rows_have_no_width():
    variable = tf.Variable(tf.zeros([4, 0]))
    with pytest.raises(InvalidArgument, match=r"indices\[1\] is 4"):
        tf_ti.scatter_sub(variable, slices(np.ones([2, 0], np.float32), [0, 4]))


@pytest.mark.parametrize(
    "shape", [[2, 3], [0, 3], [1, 4], [1, 2], [3], [1, 3, 1], [1, 1, 3], [], [3, 1]], ids=str
)
def test_values_of_another_shape(variable, shape):
    refused(
        (ValueError, InvalidArgument),
        ["values"],
        lambda: tf_ti.scatter_sub(variable, slices(np.ones(shape, np.float32), [1])),
    )


@pytest.mark.parametrize("indices", [1, [[1]], np.zeros([1, 0])], ids=str)
def test_indices_of_another_rank(variable, indices):
    values = np.ones([*np.shape(indices), 3], np.float32)
    refused(
        (ValueError, InvalidArgument),
        ["indices"],
        lambda: tf_ti.scatter_sub(variable, slices(values, indices)),
    )


@pytest.mark.parametrize("index_type", [np.int16, np.uint32, np.float32, np.bool_])
def test_indices_of_another_dtype(variable, index_type):
    refused(
        TypeError,
        ["indices", tf.as_dtype(index_type).name],
        lambda: tf_ti.scatter_sub(variable, slices(TABLE[:1], [1], index_type)),
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.complex64, np.bool_])
def test_values_of_another_dtype(variable, dtype):
    refused(
        TypeError,
        ["slices", "float32", tf.as_dtype(dtype).name],
        lambda: tf_ti.scatter_sub(variable, slices(np.ones([1, 3], dtype), [1])),
    )


@pytest.mark.parametrize(
    "scale",
    [
        1j,
        np.complex64(1j),
        "1",
        None,
        True,
        np.bool_(True),
        np.array(1.0),
        tf.constant(1.0, tf.float64),
        tf.constant(1.0, tf.float16),
        tf.constant(1),
        tf.constant(True),
    ],
    ids=repr,
)
def test_a_scale_of_another_type(variable, scale):
    refused(
        (TypeError, ValueError),
        ["scale"],
        lambda: tf_ti.scatter_sub(variable, slices(TABLE[:1], [1]), scale),
    )


@pytest.mark.parametrize(
    "scale", [1.5, np.float32(1.5), 1j, np.complex64(1j), 128, np.int64(300), -129], ids=repr
)
def test_a_scale_that_the_variables_type_does_not_hold(scale):
    variable = tf.Variable(np.ones([4], np.int8))
    refused(
        (TypeError, ValueError),
        ["scale"],
        lambda: tf_ti.scatter_sub(variable, slices(np.ones([1], np.int8), [1]), scale),
    )
    np.testing.assert_array_equal(variable, np.ones([4]))


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
def test_a_scale_of_half_precision_is_refused(dtype):
    variable = tf.Variable(tf.ones([4], dtype))
    one = tf.IndexedSlices(tf.ones([1], dtype), tf.constant([1]))
    with pytest.raises(TypeError, match="scale must be float32"):
        tf_ti.scatter_sub(variable, one, tf.constant(1.0, dtype))
    np.testing.assert_array_equal(variable, tf.ones([4], dtype))


@pytest.mark.parametrize("scale", [[0.5], [[0.5]], [], [1.0, 2.0]], ids=str)
def test_a_scale_that_is_no_scalar(variable, scale):
    scale = np.array(scale, np.float32)
    refused(
        (ValueError, InvalidArgument),
        ["scale"],
        lambda: tf_ti.scatter_sub(variable, slices(TABLE[:1], [1]), scale),
    )


@pytest.mark.parametrize(
    "other",
    [tf.constant(TABLE), TABLE, TABLE.tolist(), None, "table"],
    ids=lambda o: type(o).__name__,
)
def test_something_that_is_no_variable(other):
    refused(
        TypeError,
        ["variable", "tf.Variable"],
        lambda: tf_ti.scatter_sub(other, slices(TABLE[:1], [1])),
    )


@pytest.mark.parametrize(
    "other",
    [tf.constant(TABLE), TABLE, None, (TABLE[:1], [1])],
    ids=lambda other: type(other).__name__,
)
def test_something_that_is_no_indexed_slices(variable, other):
    refused(TypeError, ["slices", "tf.IndexedSlices"], lambda: tf_ti.scatter_sub(variable, other))


@pytest.mark.parametrize("value", [True, "a"], ids=["bool", "string"])
def test_a_variable_that_is_not_numeric(value):
    variable = tf.Variable([value])
    one = tf.IndexedSlices(tf.constant([value]), tf.constant([0]))
    refused(TypeError, ["variable", variable.dtype.name], lambda: tf_ti.scatter_sub(variable, one))
    assert variable.numpy()[0] == tf.constant(value).numpy()


def test_a_variable_that_is_a_scalar():
    variable = tf.Variable(3.0)
    refused(
        (ValueError, InvalidArgument),
        ["rank"],
        lambda: tf_ti.scatter_sub(variable, slices(np.float32([1]), [0])),
    )
    assert variable.numpy() == 3


@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "function"])
def test_a_variable_without_a_value(is_graph):
    variable = resource_variable_ops.UninitializedVariable(shape=[4, 3], dtype=tf.float32)

    def call():
        tf_ti.scatter_sub(variable, slices(TABLE[:1], [1]))

    with pytest.raises(tf.errors.FailedPreconditionError, match="not initialized"):
        (tf.function(call) if is_graph else call)()
    variable.assign(TABLE)
    call()
    np.testing.assert_array_equal(variable, by_definition(TABLE, [1], TABLE[:1]))


RAW = {
    "values of another type than the variable": lambda v: (
        v.handle,
        [0],
        tf.ones([1, 3], tf.float64),
        tf.constant(1, tf.float64),
    ),
    "a scale of another type": lambda v: (v.handle, [0], TABLE[:1], tf.constant(1, tf.float64)),
    "a vector for the scale": lambda v: (v.handle, [0], TABLE[:1], [1.0]),
    "no scale": lambda v: (v.handle, [0], TABLE[:1], tf.zeros([0])),
    "indices of rank 0": lambda v: (v.handle, 0, TABLE[0], 1.0),
    "values of nothing": lambda v: (v.handle, [0], tf.zeros([0]), 1.0),
    "a handle of something else": lambda v: (
        tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0).resource_handle,
        [0],
        TABLE[:1],
        1.0,
    ),
    "a tensor for the handle": lambda v: (tf.constant(TABLE), [0], TABLE[:1], 1.0),
}


@pytest.mark.parametrize("case", RAW)
@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "function"])
def test_the_native_op_refuses(variable, case, is_graph):
    def call():
        ops.tf_ti_scatter_sub(*RAW[case](variable), [])

    with pytest.raises((ValueError, TypeError, InvalidArgument)):
        (tf.function(call) if is_graph else call)()


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
def test_the_native_op_takes_no_half_for_the_scale_of_halves(dtype):
    variable = tf.Variable(tf.ones([4], dtype))
    with pytest.raises(InvalidArgument, match="scale must be a scalar of type float"):
        ops.tf_ti_scatter_sub(variable.handle, [0], tf.ones([1], dtype), tf.ones([], dtype), [])
    np.testing.assert_array_equal(variable, tf.ones([4], dtype))
