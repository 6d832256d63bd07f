"""Huge pages, asked for or by themselves: values stay, and a large table is where it should be."""

import re
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops
from updates_definition import each_updated_dtype

import tf_ti

NUMBERS = [
    *(tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128),
]

# Several huge pages of 2 MB, and fewer bytes than one.
LARGE, SMALL = (5 << 20) + 24, 48


def some_values(dtype, num_bytes):
    count = num_bytes // dtype.size
    return (np.arange(count) % 100).astype(dtype.as_numpy_dtype)


@pytest.mark.parametrize("num_bytes", [SMALL, LARGE])
@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "function"])
@each_updated_dtype(NUMBERS)
def test_values_of_every_dtype_stay(dtype, is_graph, num_bytes):
    values = some_values(dtype, num_bytes)
    variable = tf.Variable(values)

    def call():
        assert tf_ti.advise_huge_pages(variable) is None

    call = tf.function(call) if is_graph else call
    for _ in range(2):
        call()
        np.testing.assert_array_equal(variable, values)
    tf_ti.scatter_sub(variable, tf.IndexedSlices(values[2:3], tf.constant([1])), 1)
    values[1:2] -= values[2:3]
    np.testing.assert_array_equal(variable, values)


@pytest.mark.parametrize(
    "value",
    [["a", "bc" * 100], [], [True, False], 1.5, np.zeros([0, 64], np.float32), np.zeros([3, 0])],
    ids=["strings", "nothing", "bools", "a scalar", "no rows", "no width"],
)
@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "function"])
def test_variables_of_other_kinds_and_of_nothing_stay(value, is_graph):
    variable = tf.Variable(value)
    before = variable.numpy().tolist()

    def call():
        tf_ti.advise_huge_pages(variable)

    call = tf.function(call) if is_graph else call
    for _ in range(2):
        call()
        assert variable.numpy().tolist() == before


def test_many_strings_stay():
    strings = np.array([str(k) * 20 for k in range(200_000)])  # 24 bytes each: more than 2 MB
    variable = tf.Variable(strings)
    tf_ti.advise_huge_pages(variable)
    np.testing.assert_array_equal(variable.numpy().astype(str), strings)


def test_what_shares_the_variables_memory_stays():
    values = some_values(tf.float32, LARGE)
    source = values.copy()
    variable = tf.Variable(source)
    read = variable.read_value()
    tf_ti.advise_huge_pages(variable)
    for held in (source, read, variable):
        np.testing.assert_array_equal(held, values)


def test_a_variable_of_keras():
    values = some_values(tf.float32, LARGE)
    variable = keras.Variable(values)
    tf_ti.advise_huge_pages(variable)
    np.testing.assert_array_equal(variable.numpy(), values)


def test_inside_a_function_between_other_ops():
    variable = tf.Variable(some_values(tf.float32, LARGE))
    expected = variable.numpy()

    @tf.function
    def call():
        variable.assign_add(tf.ones_like(variable))
        tf_ti.advise_huge_pages(variable)
        variable.assign_add(tf.ones_like(variable))
        return variable.read_value()

    np.testing.assert_array_equal(call(), expected + 2)


def test_a_variable_without_a_value_is_passed_over():
    variable = resource_variable_ops.UninitializedVariable(shape=[4], dtype=tf.float32)
    tf_ti.advise_huge_pages(variable)
    variable.assign(tf.ones([4]))
    np.testing.assert_array_equal(variable, np.ones([4]))


@pytest.mark.parametrize(
    "other",
    [tf.zeros([4]), np.zeros([4]), [1.0], None, "table", 3],
    ids=lambda other: type(other).__name__,
)
@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "function"])
def test_something_that_is_no_variable_is_refused(other, is_graph):
    def call():
        tf_ti.advise_huge_pages(other)

    with pytest.raises(TypeError, match="variable must be a tf.Variable"):
        (tf.function(call) if is_graph else call)()


def test_a_list_of_variables_is_refused():
    with pytest.raises(TypeError, match="variable must be a tf.Variable"):
        tf_ti.advise_huge_pages([tf.Variable([1.0])])


# A process of its own, as memory that TensorFlow has freed keeps its huge pages.

TABLE_ON_HUGE_PAGES = """
import os
import re
import sys
way = sys.argv[1]
os.environ["TF_TI_HUGE_PAGES"] = "0" if way in ("call", "off") else "1"
import numpy as np
import tensorflow as tf
import tf_ti

def huge_kilobytes():
    with open("/proc/self/smaps_rollup") as file:
        return int(re.search(r"AnonHugePages: +([0-9]+) kB", file.read()).group(1))

rows, width = 1 << 18, 64
# Made by an op: what NumPy allocates asks for huge pages by itself.
numbers = tf.range(rows * width, dtype=tf.float32) % 1009
table = tf.Variable(tf.reshape(numbers, [rows, width]))
del numbers
before = huge_kilobytes()
nothing = tf.IndexedSlices(tf.zeros([1, width]), [0])
if way == "call":
    tf_ti.advise_huge_pages(table)
elif way in ("look-up", "off"):
    tf_ti.embedding_bag_packed(table, [[0]])
elif way == "update":
    tf_ti.scatter_sub(table, nothing)
else:
    small = tf.Variable(tf.zeros([rows, 1]))
    tf_ti.adagrad_update(table, small, nothing, 1.0)
after = huge_kilobytes()
print("huge pages", before, after)
expected = (np.arange(rows * width, dtype=np.float32) % 1009).reshape(rows, width)

ids = np.random.default_rng(0).integers(0, rows, [1000, 7])
y = tf_ti.embedding_bag_packed(table, ids)
np.testing.assert_array_equal(y, expected[ids].sum(1))
touched = np.unique(ids)
for _ in range(2):
    tf_ti.scatter_sub(table, tf.IndexedSlices(tf.ones([len(touched), width]), touched), 2.0)
    expected[touched] -= 2
    np.testing.assert_array_equal(table, expected)
tf_ti.advise_huge_pages(table)
np.testing.assert_array_equal(table, expected)
np.testing.assert_array_equal(tf_ti.embedding_bag_packed(table, ids), expected[ids].sum(1))
"""


def gives_huge_pages_on_request():
    """The first Linux with MADV_COLLAPSE, which does not wait for the kernel's daemon, is 6.1."""
    if sys.platform != "linux":
        return False
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
            enabled = file.read()
        with open("/proc/sys/kernel/osrelease") as file:
            release = tuple(int(n) for n in re.findall(r"\d+", file.read())[:2])
    except OSError:
        return False
    return "[never]" not in enabled and release >= (6, 1)


@pytest.mark.needs_cpu_kernels
@pytest.mark.slow
@pytest.mark.parametrize("way", ["call", "look-up", "update", "adagrad", "off"])
def test_a_large_table_is_moved_to_huge_pages_and_keeps_its_values(run_program, way):
    finished = run_program(TABLE_ON_HUGE_PAGES, way)
    before, after = (int(n) for n in finished.stdout.split("huge pages")[1].split())
    if not gives_huge_pages_on_request():
        pytest.skip(f"this system gives no huge pages on request: {before} KB, then {after} KB")
    with open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
        if "[always]" in file.read():
            assert after >= before  # they may all be there already
            return
    # All of the 64 MB but for the ends; the system may lack a few pages.
    if way == "off":
        assert after - before < 1 << 14
    else:
        assert after - before > 1 << 15


NEW_MEMORY = """
import tensorflow as tf
import tf_ti

table = tf.Variable(tf.ones([1 << 18, 64]))
for value in (2.0, 3.0):
    assert tf_ti.embedding_bag_packed(table, [[7, 7]])[0, 0] == 2 * table[7, 0]
    table.assign(tf.fill([1 << 18, 64], value))
for k in range(5):  # some of them lie where another one lay
    other = tf.Variable(tf.fill([1 << 17, 64], float(k)))
    assert tf_ti.embedding_bag_packed(other, [[k], [2]])[1, 0] == k
    del other
"""


@pytest.mark.slow
def test_variables_that_get_new_memory_and_that_go_keep_their_values(run_program):
    run_program(NEW_MEMORY)
