"""Comparisons with the results of TensorFlow's kernels: bits, last places, and sums."""

import numpy as np
import tensorflow as tf
from operation_cases import HALVES, REALS

from tf_ti import _operations

# Units in the last place: the error of a program's function, and the error of TensorFlow's.
ULPS = {
    **dict.fromkeys(("Reciprocal", "Inv"), 2),
    **dict.fromkeys(("Erfinv", "Exp"), 3),
    "Rsqrt": 4,
    "Log": 6,
    "Sigmoid": 9,
    **dict.fromkeys(("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atan2", "Atanh", "Cos"), 8),
    **dict.fromkeys(("Cosh", "Erf", "Erfc", "Expm1", "Log1p", "Pow", "Sin", "Sinh"), 8),
    **dict.fromkeys(("Softplus", "SoftplusGrad", "Tan", "Tanh", "Xlog1py", "Xlogy"), 8),
}
# TensorFlow's kernels round these products of three differently beside whole vectors.
ULPS_OF_PLACES = {"SigmoidGrad": 2, "SqrtGrad": 1, "RsqrtGrad": 3}
# Differences that results of each type may have, relative and absolute.
_SUMS = (1e-5, 1e-13, 4e-3, 3e-2)
_BY_NAME = {
    # Sums and products in another order; sums of half precision are rounded each time, or once.
    **dict.fromkeys(_operations.of_kinds("Filter", "Product"), _SUMS),
    **dict.fromkeys(("AvgPool", "AvgPool3D", "BiasAddGrad", "L2Loss", "Mean"), _SUMS),
    **dict.fromkeys(("Prod", "Sum"), _SUMS),
    "AddN": (1e-6, 1e-14, 2e-3, 1.6e-2),
    "Einsum": (1e-5, 1e-13, 1e-2, 8e-2),
    **dict.fromkeys(_operations.of_kinds("Softmax"), (2e-6, 1e-14, 4e-3, 3e-2)),
    # Near 0, the last places of e^x are lost in e^x - 1.
    **dict.fromkeys(("Elu", "Selu"), (1e-6, 1e-13, 4e-3, 3e-2)),
}
TOLERANCES = {
    (name, dtype): tolerance
    for name, tolerances in _BY_NAME.items()
    for dtype, tolerance in zip(REALS, tolerances, strict=True)
}


def wide(x):
    """Numbers of half precision as floats, which they are."""
    return tf.cast(x, tf.float32) if x.dtype in HALVES else x


def check(found, expected, ulps=0):
    """Compares bits, apart from the bits of a NaN; or numbers, with room in their last places."""
    found, expected = map(tf.convert_to_tensor, (found, expected))
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if expected.dtype in HALVES and ulps:
        return check_halves(found, expected, ulps)
    found, expected = wide(found).numpy(), wide(expected).numpy()
    if not ulps:
        np.testing.assert_array_equal(found, expected)
        if found.dtype.kind == "f":
            known = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(found)[known], np.signbit(expected)[known])
        return
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    is_finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~is_finite], expected[~is_finite])
    with np.errstate(all="ignore"):
        room = ulps * np.spacing(np.maximum(np.abs(expected), np.finfo(expected.dtype).tiny))
        assert np.all(np.abs(found - expected)[is_finite] <= room[is_finite])


def check_halves(found, expected, ulps):
    fraction, least = (10, -14) if expected.dtype == tf.float16 else (7, -126)
    found, expected = (tf.cast(x, tf.float64).numpy() for x in (found, expected))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    with np.errstate(all="ignore"):
        exponents = np.floor(np.log2(np.abs(expected)))
        room = ulps * np.exp2(np.maximum(exponents, least) - fraction)
        right = (found == expected) | (np.abs(found - expected) <= room) | np.isnan(expected)
    where = np.argwhere(~right)[:5]
    assert right.all(), [(found[tuple(i)], expected[tuple(i)]) for i in where]


def close(found, expected, tolerance):
    """Compares sums. TensorFlow's kernels round sums of half precision after each addition."""
    scale = 1.0
    if expected.dtype in HALVES:
        tolerance = {tf.float16: 1e-2, tf.bfloat16: 8e-2}[expected.dtype]
        finite = np.abs(wide(expected))[np.isfinite(wide(expected))]
        scale += np.median(finite) if finite.size else 0  # beside a few large numbers too
    np.testing.assert_allclose(wide(found), wide(expected), rtol=tolerance, atol=scale * tolerance)


def check_row(name, case, found, expected):
    """Compares an output of a case of a row with the output of TensorFlow's kernel."""
    tolerance = TOLERANCES.get((name, expected.dtype))
    if tolerance is not None:
        np.testing.assert_allclose(wide(found), wide(expected), rtol=tolerance, atol=tolerance)
    elif case.has_whole_vectors or not expected.dtype.is_floating:
        check(found, expected, ULPS.get(name, 0) if expected.dtype.is_floating else 0)
    else:
        check(found, expected, ULPS.get(name) or ULPS_OF_PLACES.get(name, 0))
