"""Each row of the table of operations, in each way that a loop runs it, beside TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf
from operation_cases import NO_CASE, cases_of, types_of_cases

import tf_ti
from tf_ti import _operations
from tf_ti.loops.passes.step import Fuse

ROWS = [
    pytest.param(name, dtype, id=f"{name}-{dtype.name}")
    for name, row in _operations.OPERATIONS.items()
    if row.kind not in NO_CASE
    for dtype in types_of_cases(name)
]
# Relative differences that values may have: programs' functions, and sums in another order.
TOLERANCES = {tf.float16: 4e-3, tf.bfloat16: 3e-2, tf.float64: 1e-9}


def in_slices(case):
    """Before the loop, where that is possible.

    Programs have no Lgamma. So Lgamma leaves the loop, and the operations that it reads leave too.
    """

    def body(c, x):
        made = case.compute(*x)
        reals = [t for t in tf.nest.flatten(made) if not t.dtype.is_complex]
        return c + 1, (made, [tf.math.lgamma(tf.cast(t, tf.float64)) for t in reals])

    return tf_ti.scan(body, 0, case.values)[1][0]


def in_states(case):
    """After the loop: values are states of the iteration before, and the first are given."""
    first = tuple(v[0] for v in case.values)
    following = tuple(tf.roll(v, -1, 0) for v in case.values)
    return tf_ti.scan(lambda c, x: (x, case.compute(*c)), first, following)[1]


def in_programs(case):
    """In the loop, by programs where these have the operation."""
    return tf_ti.scan(lambda c, x: (c + 1, case.compute(*x)), 0, case.values, fuse=Fuse.PROGRAMS)[1]


def in_branches(case):
    """In a branch, which all iterations take but the second."""

    def body(c, x):
        zeros = tf.nest.map_structure(tf.zeros_like, case.compute(*x))
        return c + 1, tf.cond(tf.equal(c, 1), lambda: zeros, lambda: case.compute(*x))

    return tf_ti.scan(body, 0, case.values)[1]


@pytest.mark.quarter
@pytest.mark.parametrize("way", [in_slices, in_states, in_programs, in_branches])
@pytest.mark.parametrize("name, dtype", ROWS)
def test_a_loop_gives_what_tensorflows_kernel_gives(name, dtype, way):
    cases = cases_of(name, dtype, np.random.default_rng(1))
    call = tf.function(lambda: [tf.nest.flatten(way(case)) for case in cases], autograph=False)
    for number, (case, found) in enumerate(zip(cases, call(), strict=True)):
        for i, expected in enumerate(case.expected()):
            for output, wanted in zip(found, expected, strict=True):
                if way is in_branches and i == 1:
                    wanted = tf.zeros_like(wanted)
                assert (output.dtype, output[i].shape) == (wanted.dtype, wanted.shape), number
                check(output[i], wanted, f"case {number}, iteration {i}")


def check(found, wanted, message):
    if not (found.dtype.is_floating or found.dtype.is_complex):
        np.testing.assert_array_equal(found, wanted, message)
        return
    tolerance = TOLERANCES.get(found.dtype, 1e-5)
    if found.dtype.is_floating:
        found, wanted = tf.cast(found, tf.float64), tf.cast(wanted, tf.float64)
    np.testing.assert_allclose(found, wanted, tolerance, tolerance, err_msg=message)


def test_each_row_has_cases():
    assert {row.id.split("-")[0] for row in ROWS} == {
        name for name, row in _operations.OPERATIONS.items() if row.kind not in NO_CASE
    }
