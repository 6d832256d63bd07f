"""Comparisons of tests find results that are wrong."""

import numpy as np
import pytest
import tensorflow as tf
from operation_cases import REALS, cases_of
from roundings import check_row


@pytest.mark.parametrize("dtype", REALS, ids=lambda d: d.name)
def test_zeros_are_no_products(dtype):
    for case in cases_of("Prod", dtype, np.random.default_rng(1)):
        for expected in case.expected():
            for wanted in expected:
                check_row("Prod", case, wanted, wanted)
                if tf.size(wanted):
                    with pytest.raises(AssertionError):
                        check_row("Prod", case, tf.zeros_like(wanted), wanted)
