"""Comparisons of tests find results that are wrong."""

import numpy as np
import pytest
import tensorflow as tf
from operation_cases import HALVES, REALS, cases_of
from roundings import check_row, close


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
def test_zeros_are_not_close_to_other_numbers_beside_a_large_one(dtype):
    expected = tf.constant([[1.0, 2.0, -3.0, 0.5, 6e4]], dtype)
    close(expected, expected, 1e-6)
    with pytest.raises(AssertionError):
        close(expected * tf.constant([[0, 0, 0, 0, 1]], dtype), expected, 1e-6)


@pytest.mark.parametrize("dtype", REALS, ids=lambda d: d.name)
def test_zeros_are_no_products(dtype):
    for case in cases_of("Prod", dtype, np.random.default_rng(1)):
        for expected in case.expected():
            for wanted in expected:
                check_row("Prod", case, wanted, wanted)
                if tf.size(wanted):
                    with pytest.raises(AssertionError):
                        check_row("Prod", case, tf.zeros_like(wanted), wanted)
