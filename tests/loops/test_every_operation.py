"""Each row of the table of operations, in each way that a loop runs it, beside TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf
from operation_cases import NO_CASE, cases_of, types_of_cases
from roundings import check_row

import tf_ti
from tf_ti import _operations
from tf_ti.loops.passes.step import Fuse

ROWS = [
    pytest.param(name, dtype, id=f"{name}-{dtype.name}")
    for name, row in _operations.OPERATIONS.items()
    if row.kind not in NO_CASE
    for dtype in types_of_cases(name)
]

# AutoGraph would take longer than all else.
as_it_is = tf.autograph.experimental.do_not_convert


def in_slices(cases):
    """Before the loop, where that is possible.

    Programs have no Lgamma. So Lgamma leaves the loop, and the operations that it reads leave too.
    """

    @as_it_is
    def body(c, xs):
        made = [case.compute(*x) for case, x in zip(cases, xs, strict=True)]
        reals = [t for t in tf.nest.flatten(made) if not t.dtype.is_complex]
        return c + 1, (made, [tf.math.lgamma(tf.cast(t, tf.float64)) for t in reals])

    return tf_ti.scan(body, 0, [case.values for case in cases])[1][0]


def in_states(cases):
    """After the loop: values are states of the iteration before, and the first are given."""
    values = [case.values for case in cases]
    first = tf.nest.map_structure(lambda v: v[0], values)
    following = tf.nest.map_structure(lambda v: tf.roll(v, -1, 0), values)

    @as_it_is
    def body(c, x):
        return x, [case.compute(*state) for case, state in zip(cases, c, strict=True)]

    return tf_ti.scan(body, first, following)[1]


def in_programs(cases):
    """In the loop, by programs where these have the operation."""

    @as_it_is
    def body(c, xs):
        return c + 1, [case.compute(*x) for case, x in zip(cases, xs, strict=True)]

    return tf_ti.scan(body, 0, [case.values for case in cases], fuse=Fuse.PROGRAMS)[1]


def in_branches(cases):
    """In a branch, which all iterations take but the second."""

    def zeros(case):
        with tf.init_scope():
            outputs = case.compute(*(v[0] for v in case.values))
        return tf.nest.map_structure(lambda t: tf.zeros(t.shape, t.dtype), outputs)

    @as_it_is
    def body(c, xs):
        def chosen(case, x):
            return tf.cond(tf.equal(c, 1), lambda: zeros(case), lambda: case.compute(*x))

        return c + 1, [chosen(case, x) for case, x in zip(cases, xs, strict=True)]

    return tf_ti.scan(body, 0, [case.values for case in cases])[1]


@pytest.mark.quarter
@pytest.mark.parametrize("way", [in_slices, in_states, in_branches])
@pytest.mark.parametrize("name, dtype", ROWS)
def test_a_loop_gives_what_tensorflows_kernel_gives(name, dtype, way):
    cases = cases_of(name, dtype, np.random.default_rng(1))
    check_cases(name, [case for case in cases if not case.is_for_programs], way)


@pytest.mark.quarter
@pytest.mark.parametrize("name, dtype", ROWS)
def test_a_program_gives_what_tensorflows_kernel_gives(name, dtype):
    check_cases(name, cases_of(name, dtype, np.random.default_rng(1)), in_programs)


def check_cases(name, cases, way):
    call = tf.function(lambda: way(cases), autograph=False)
    call()  # A short loop's second call runs programs.
    for number, (case, found) in enumerate(zip(cases, call(), strict=True)):
        expected = case.expected()
        if way is in_branches:
            expected[1] = [tf.zeros_like(wanted) for wanted in expected[1]]
        for output, *wanted in zip(tf.nest.flatten(found), *expected, strict=True):
            wanted = tf.stack(wanted)
            assert (output.dtype, output.shape) == (wanted.dtype, wanted.shape), number
            check_row(name, case, output, wanted)


def test_each_row_has_cases():
    assert {row.id.split("-")[0] for row in ROWS} == {
        name for name, row in _operations.OPERATIONS.items() if row.kind not in NO_CASE
    }
