"""The code for each processor: against NumPy in float64, and against each other."""

import collections
import functools
import itertools
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

import pytest
from patience import HANGS

import tf_ti

# Without a name: the best that the processor has.
INSTRUCTION_SETS = ["baseline", "avx2", None]

# The sections are checked in one process after the other; all of them need this.
PREAMBLE = """
import hashlib
import json
import sys
import traceback
import numpy as np
import tensorflow as tf
import tf_ti

WIDTHS = [*range(1, 41), *range(63, 71), *range(127, 141), *range(255, 258), 300]
FLOATS = [tf.float32, tf.float64, tf.float16, tf.bfloat16]
HALVES = [tf.float16, tf.bfloat16]
digests = {}
ROUNDING = {tf.float32: 2.0**-24, tf.float64: 2.0**-53, tf.float16: 2.0**-11, tf.bfloat16: 2.0**-8}

# Bags of 0, 1, 2, 5, 33 and 23 ids.
OFFSETS = np.array([0, 0, 1, 3, 8, 41])
LENGTHS = np.array([0, 1, 2, 5, 33, 23])
BAG_OF = np.repeat(np.arange(6), LENGTHS)

def wide(x):
    return np.asarray(x).astype(np.float64)

def check(actual, expected, dtype, added, terms):
    # One rounding of the result, and one in the type of the sums for each of its terms; `added` is
    # the sum of what was added up, without signs.
    of_sum = 2.0**-24 if dtype in HALVES else ROUNDING[dtype]
    allowed = ROUNDING[dtype] * np.abs(expected) + (terms + 2) * of_sum * added * 1.01
    assert actual.dtype == dtype and tuple(actual.shape) == expected.shape
    error = np.abs(wide(actual) - expected)
    # A half that is subnormal has fewer bits.
    smallest = {tf.float16: 2.0**-25}.get(dtype, 0.0)
    assert np.all(error <= np.maximum(allowed, smallest)), (dtype.name, expected.shape, error.max())

def pooled(rows):
    sums = np.zeros([6, rows.shape[1]])
    np.add.at(sums, BAG_OF, rows)
    return sums
"""

VALUES = """
for dtype in FLOATS:
    for width in WIDTHS:
        rng = np.random.default_rng(width)
        table = rng.standard_normal([20, width]).astype(dtype.as_numpy_dtype)
        weights = rng.standard_normal(64).astype(dtype.as_numpy_dtype)
        upstream = rng.standard_normal([6, width]).astype(dtype.as_numpy_dtype)
        ids = rng.integers(0, 20, 64)
        rows, terms = wide(table)[ids], LENGTHS[:, np.newaxis]
        divisors = np.maximum(terms, 1)
        digest = hashlib.sha256()

        def run(given, reduction):
            with tf.GradientTape() as tape:
                t = tf.constant(table)
                w = None if given is None else tf.constant(given)
                sources = [t] if given is None else [t, w]
                tape.watch(sources)
                y = tf_ti.embedding_bag_offsets(t, ids, OFFSETS, None, w, reduction)
            gradients = tape.gradient(y, sources, tf.constant(upstream))
            return y, tf.convert_to_tensor(gradients[0]), gradients[-1]

        def check_table_gradient(actual, coefficients):
            terms_of_rows = wide(upstream)[BAG_OF] * coefficients[:, np.newaxis]
            expected, added = np.zeros([2, 20, width])
            np.add.at(expected, ids, terms_of_rows)
            np.add.at(added, ids, np.abs(terms_of_rows))
            check(actual, expected, dtype, added, np.bincount(ids, minlength=20)[:, np.newaxis])

        sums, sizes = pooled(rows), pooled(np.abs(rows))
        y, of_table, _ = run(None, "sum")
        check(y, sums, dtype, sizes, terms)
        check_table_gradient(of_table, np.ones(64))
        digest.update(y.numpy().tobytes() + of_table.numpy().tobytes())

        y, of_table, _ = run(None, "mean")
        check(y, sums / divisors, dtype, sizes / divisors, terms)
        check_table_gradient(of_table, 1 / LENGTHS[BAG_OF])
        digest.update(y.numpy().tobytes())

        y, of_table, _ = run(None, "max")
        largest = np.full([6, width], -np.inf)
        np.maximum.at(largest, BAG_OF, rows)
        largest[0] = 0
        np.testing.assert_array_equal(wide(y), largest)
        # To the first of the largest.
        expected, added = np.zeros([2, 20, width])
        for bag in range(1, 6):
            first = ids[BAG_OF == bag][np.argmax(rows[BAG_OF == bag], 0)]
            np.add.at(expected, (first, np.arange(width)), wide(upstream)[bag])
            np.add.at(added, (first, np.arange(width)), np.abs(wide(upstream)[bag]))
        check(of_table, expected, dtype, added, 5)
        digest.update(y.numpy().tobytes() + of_table.numpy().tobytes())

        y, of_table, of_weights = run(weights, "sum")
        products = rows * wide(weights)[:, np.newaxis]
        check(y, pooled(products), dtype, pooled(np.abs(products)), 2 * terms)
        check_table_gradient(of_table, wide(weights))
        dots = rows * wide(upstream)[BAG_OF]
        check(of_weights, dots.sum(1), dtype, np.abs(dots).sum(1), 2 * width)

        digests[f"{dtype.name} {width}"] = digest.hexdigest()
"""

BIT_PATTERNS = """
patterns = np.arange(2**16, dtype=np.uint16)
for dtype in HALVES:
    for width in (1, 2, 4, 7, 8, 16, 17, 32, 64, 100):
        rows = np.resize(patterns, -(-2**16 // width) * width).reshape(-1, width)
        table = rows.view(dtype.as_numpy_dtype)
        values = table.astype(np.float32)
        ids = np.arange(len(rows))[:, np.newaxis]
        for reduction in ("sum", "mean", "max"):
            y = tf_ti.embedding_bag_packed(table, ids, reduction=reduction).numpy()
            y = y.astype(np.float32)
            same = (y == values) | (np.isnan(y) & np.isnan(values))
            assert np.all(same), (dtype.name, width, reduction, table[~same], y[~same])
        # Adding to zero makes -0.0 positive; else nothing changes the sign.
        assert np.all((np.signbit(y) == np.signbit(values)) | np.isnan(values) | (y == 0))
"""

SUMS_OF_TWO = """
rng = np.random.default_rng(8)
for dtype in HALVES:
    exponent_bits = 10 if dtype == tf.float16 else 7
    first = rng.permutation(np.arange(2**17) % 2**16)
    # Of nearly the same exponent, and of either sign: half of the sums lie between two halves, and
    # many in the middle.
    second = first + (rng.integers(-3, 4, 2**17) << exponent_bits)
    second = (second ^ rng.integers(0, 2 << exponent_bits, 2**17)) & 0x7fff
    second |= rng.integers(0, 2, 2**17) << 15
    table = np.stack([first, second]).astype(np.uint16).view(dtype.as_numpy_dtype)
    with np.errstate(all="ignore"):
        x, y = table.astype(np.float32)
        exact = x + y
        expected = exact.astype(dtype.as_numpy_dtype)
        step = np.spacing(np.abs(expected)).astype(np.float32)
        ties = np.abs(exact - expected.astype(np.float32)) * 2 == step
    # Enough of them that a rounding to the other side would be seen.
    assert np.sum(ties & np.isfinite(exact)) > 1000, np.sum(ties)
    for width in (1, 4, 8, 16, 31, 64, 128):
        columns = table[:, : table.shape[1] // width * width].reshape(2, -1, width)
        count = columns.shape[1] if width > 1 else 2**13
        # Rows 2 k and 2 k + 1 make up a bag.
        pairs = columns[:, :count].swapaxes(0, 1).reshape(-1, width)
        actual = tf_ti.embedding_bag_packed(pairs, np.arange(2 * count).reshape(-1, 2)).numpy()
        right = expected[: count * width].reshape(-1, width)
        np.testing.assert_array_equal(actual.astype(np.float32), right.astype(np.float32))
"""

SECTIONS = {"values": VALUES, "bit patterns": BIT_PATTERNS, "sums of two": SUMS_OF_TWO}

RUN = """
failures = {}
for name, section in json.loads(sys.argv[1]).items():
    try:
        exec(section, globals())
    except Exception:
        failures[name] = traceback.format_exc()
print(json.dumps([failures, digests]))
"""


@functools.cache
def outcome(instruction_set):
    """The failures of each section, and digests of the results of each type and width."""
    environment = dict(os.environ)
    environment.pop("TF_TI_INSTRUCTION_SET", None)
    if instruction_set is not None:
        environment["TF_TI_INSTRUCTION_SET"] = instruction_set
    finished = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PREAMBLE + RUN, json.dumps(SECTIONS)],
        capture_output=True,
        text=True,
        timeout=HANGS,
        env=environment,
    )
    assert finished.returncode == 0, finished.stderr[-6000:]
    return json.loads(finished.stdout)


each_set = pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS, ids=str)


@each_set
def test_values_and_gradients_are_those_of_numpy_in_float64(instruction_set):
    failures, digests = outcome(instruction_set)
    assert not failures.get("values"), failures["values"]
    assert len(digests) == 4 * 66


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS[1:], ids=str)
def test_without_weights_every_set_gives_the_same_bits(instruction_set):
    """Nothing is multiplied there, so nothing is fused, and the order of additions is the same."""
    assert outcome(instruction_set)[1] == outcome("baseline")[1]


@each_set
def test_every_half_passes_through_a_bag_of_one(instruction_set):
    failures, _ = outcome(instruction_set)
    assert not failures.get("bit patterns"), failures["bit patterns"]


@each_set
def test_sums_of_two_halves_are_rounded_to_the_nearest_or_to_even(instruction_set):
    failures, _ = outcome(instruction_set)
    assert not failures.get("sums of two"), failures["sums of two"]


@pytest.mark.parametrize(
    "asked, told",
    [
        ("lines", "every line of a table's row, 48 rows ahead"),
        ("pairs,7", "every second line of a table's row, 7 rows ahead"),
        ("lines,0", "none"),
    ],
)
def test_the_environment_chooses_what_is_prefetched(asked, told, run_program, monkeypatch):
    monkeypatch.setenv("TF_TI_PREFETCH", asked)
    finished = run_program("""
        import tf_ti
        from tf_ti import _library

        print(_library.PROCESSOR[1])
        sums = tf_ti.embedding_bag_packed([[1.0] * 64, [2.0] * 64], [[0, 1, 1]] * 100)
        assert (sums.numpy() == 5).all()
    """)
    assert finished.stdout == f"prefetching {told}\n"


@pytest.mark.skipif(not shutil.which("objdump"), reason="there is no objdump")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the names are those of x86")
def test_rows_are_prefetched_by_look_ups_and_updates():
    """A compiler leaves out calls of a function of which it knows no effect."""
    library = pathlib.Path(tf_ti.__file__).with_name("_tf_ti.so")
    command = ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", library]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kinds = collections.defaultdict(list)
    for function in text.split("\n\n"):
        name = function.partition("\n")[0]
        if kind := re.search(r"(avx2|avx512|baseline)::(Update|Pool\w+)<\w+, long, .*>:", name):
            # In the function itself or in the one that it calls.
            is_there = re.search(r"\tprefetch|\tcall .*PoolColumns<", function)
            kinds[kind.group(1, 2)].append(bool(is_there))
    sets = ("baseline", "avx2", "avx512")
    assert {*itertools.product(sets, ["Update", "PoolWhole", "PoolInPasses"])} <= {*kinds}
    without = {kind for kind, are_there in kinds.items() if not all(are_there)}
    assert not without
