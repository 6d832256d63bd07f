"""Special functions, computed by rational approximations, and angles."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_ti.openvino.writer.conversion import Node, composes


def _polynomial(x: tf.Tensor, coefficients: Sequence[float]) -> tf.Tensor:
    """Horner's rule; the coefficient of the highest power comes first."""
    total = tf.fill(tf.shape(x), tf.constant(coefficients[0], x.dtype))
    for coefficient in coefficients[1:]:
        total = total * x + tf.constant(coefficient, x.dtype)
    return total


def _in_single_precision(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Computes a function of smaller numbers in float32."""

    def compute(op: Node, *inputs: tf.Tensor) -> tf.Tensor:
        dtype = op.op.outputs[0].dtype
        if dtype.size < 4:
            inputs = tuple(tf.cast(x, tf.float32) for x in inputs)
        return tf.cast(function(*inputs), dtype)

    return compute


# Cody's approximations: "Rational Chebyshev approximations for the error function" (1969).
_MIDDLE = (
    (
        2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 66.1191906371416295,
        298.635138197400131, 881.95222124176909, 1712.04761263407058, 2051.07837782607147,
        1230.33935479799725,
    ),
    (
        1.0, 15.7449261107098347, 117.693950891312499, 537.181101862009858, 1621.38957456669019,
        3290.79923573345963, 4362.61909014324716, 3439.36767414372164, 1230.33935480374942,
    ),
)  # fmt: skip
_TAIL = (
    (
        0.0163153871373020978, 0.305326634961232344, 0.360344899949804439, 0.125781726111229246,
        0.0160837851487422766, 6.58749161529837803e-4,
    ),
    (
        1.0, 2.56852019228982242, 1.87295284992346725, 0.527905102951428412, 0.0605183413124413191,
        0.00233520497626869185,
    ),
)  # fmt: skip


@composes("Erfc")
@_in_single_precision
def _erfc(x: tf.Tensor) -> tf.Tensor:
    size = tf.minimum(tf.abs(x), 30)
    middle, far = tf.clip_by_value(size, 0.25, 4), tf.maximum(size, 2)
    square = 1 / (far * far)
    numerator, denominator = (_polynomial(square, part) for part in _TAIL)
    far = (1 / np.sqrt(np.pi) - square * numerator / denominator) / far
    numerator, denominator = (_polynomial(middle, part) for part in _MIDDLE)
    # The square of the rounded number is exact.
    rounded = tf.floor(size * 16) / 16
    scale = tf.exp(-rounded * rounded) * tf.exp((rounded - size) * (rounded + size))
    tail = scale * tf.where(size > 4, far, numerator / denominator)
    tail = tf.where(x < 0, 2 - tail, tail)
    return tf.where((size < 0.5) | tf.math.is_nan(x), 1 - tf.math.erf(x), tail)


# Giles's approximation: "Approximating the erfinv function" (2010).
_NEAR = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
    -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_FAR = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
    0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip


@composes("Erfinv")
@_in_single_precision
def _erfinv(x: tf.Tensor) -> tf.Tensor:
    w = -tf.math.log((1 - x) * (1 + x))
    near, far = tf.minimum(w, 5.0) - 2.5, tf.sqrt(tf.maximum(w, 5.0)) - 3
    y = x * tf.where(w < 5, _polynomial(near, _NEAR), _polynomial(far, _FAR))
    if x.dtype == tf.float64:  # a step of Newton's method
        y -= (tf.math.erf(y) - x) * tf.exp(y * y) * (np.sqrt(np.pi) / 2)
    return tf.where(tf.abs(x) < 1, y, w * x)


# Moshier's approximations, from his library Cephes: in the middle, and in the tails.
_NDTRI_MIDDLE = (
    (
        -59.9633501014107895267, 98.0010754185999661536, -56.6762857469070293439,
        13.9312609387279679503, -1.23916583867381258016,
    ),
    (
        1.0, 1.95448858338141759834, 4.67627912898881538453, 86.3602421390890590575,
        -225.462687854119370527, 200.260212380060660359, -82.0372256168333339912,
        15.9056225126211695515, -1.18331621121330003142,
    ),
)  # fmt: skip
_NDTRI_TAIL = (
    (
        4.05544892305962419923, 31.5251094599893866154, 57.1628192246421288162,
        44.0805073893200834700, 14.6849561928858024014, 2.18663306850790267539,
        -0.140256079171354495875, -0.0350424626827848203418, -8.57456785154685413611e-4,
    ),
    (
        1.0, 15.7799883256466749731, 45.3907635128879210584, 41.3172038254672030440,
        15.0425385692907503408, 2.50464946208309415979, -0.142182922854787788574,
        -0.0380806407691578277194, -9.33259480895457427372e-4,
    ),
)  # fmt: skip
_NDTRI_END = (
    (
        3.23774891776946035970, 6.91522889068984211695, 3.93881025292474443415,
        1.33303460815807542389, 0.201485389549179081538, 0.0123716634817820021358,
        3.01581553508235416007e-4, 2.65806974686737550832e-6, 6.23974539184983293730e-9,
    ),
    (
        1.0, 6.02427039364742014255, 3.67983563856160859403, 1.37702099489081330271,
        0.216236993594496635890, 0.0134204006088543189037, 3.28014464682127739104e-4,
        2.89247864745380683936e-6, 6.79019408009981274425e-9,
    ),
)  # fmt: skip


def _ratio(x: tf.Tensor, parts: Sequence[Sequence[float]]) -> tf.Tensor:
    return _polynomial(x, parts[0]) / _polynomial(x, parts[1])


@composes("Ndtri")
@_in_single_precision
def _ndtri(x: tf.Tensor) -> tf.Tensor:
    centered = x - 0.5
    square = tf.minimum(centered * centered, 0.25)
    middle = centered + centered * square * _ratio(square, _NDTRI_MIDDLE)
    rest = tf.where(x > 0.5, 1 - x, x)
    at = tf.sqrt(-2 * tf.math.log(tf.clip_by_value(rest, 1e-37, 0.2)))
    step = 1 / at
    tail = tf.where(at < 8, _ratio(step, _NDTRI_TAIL), _ratio(step, _NDTRI_END))
    tail = at - tf.math.log(at) / at - step * tail
    tail = tf.where(x > 0.5, tail, -tail)
    found = tf.where(rest > np.exp(-2), np.sqrt(2 * np.pi) * middle, tail)
    limit = -tf.math.log(rest) * centered  # infinite at 0 and 1, and no number beyond them
    return tf.where((x > 0) & (x < 1), found, limit)


# Abramowitz and Stegun have these approximations of I0 and I1 as 9.8.1 to 9.8.4.
_BESSEL = {
    0: (
        (0.0045813, 0.0360768, 0.2659732, 1.2067492, 3.0899424, 3.5156229, 1.0),
        (
            0.00392377, -0.01647633, 0.02635537, -0.02057706, 0.00916281, -0.00157565, 0.00225319,
            0.01328592, 0.39894228,
        ),
    ),
    1: (
        (0.00032411, 0.00301532, 0.02658733, 0.15084934, 0.51498869, 0.87890594, 0.5),
        (
            -0.00420059, 0.01787654, -0.02895312, 0.02282967, -0.01031555, 0.00163801, -0.00362018,
            -0.03988024, 0.39894228,
        ),
    ),
}  # fmt: skip


def _bessel(order: int, x: tf.Tensor, is_scaled: bool) -> tf.Tensor:
    """The modified Bessel function of the first kind, times exp(-|x|) if it is scaled."""
    size, (near, far) = tf.abs(x), _BESSEL[order]
    small, large = tf.minimum(size, 3.75), tf.maximum(size, 3.75)
    near = _polynomial(tf.square(small / 3.75), near)
    near *= tf.exp(-small) if is_scaled else tf.ones([], x.dtype)
    far = _polynomial(3.75 / large, far) / tf.sqrt(large)
    if order:
        near, far = near * x, far * tf.sign(x)
    if not is_scaled:
        # Half the exponent twice: it overflows later.
        half = tf.exp(large / 2)
        far = far * half * half
    return tf.where(tf.math.is_nan(x), x, tf.where(size < 3.75, near, far))


@composes("BesselI0", "BesselI0e", "BesselI1", "BesselI1e")
def _bessel_of(op: Node, x: tf.Tensor) -> tf.Tensor:
    order, is_scaled = int(op.op.type[len("BesselI")]), op.op.type.endswith("e")
    return _in_single_precision(lambda x: _bessel(order, x, is_scaled))(op, x)


@composes("Atan2")
def _atan2(op: Node, y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    height, width = tf.abs(y), tf.abs(x)
    is_steep = height > width
    ratio = tf.where(is_steep, width / height, height / width)
    ratio = tf.where(tf.equal(height, width), tf.sign(height), ratio)  # of zeros and infinities
    angle = tf.atan(ratio)
    angle = tf.where(is_steep, np.pi / 2 - angle, angle)
    angle = tf.where(_is_negative(x), np.pi - angle, angle)
    one = tf.ones([], angle.dtype)
    angle *= tf.where(_is_negative(y), -one, one)
    return tf.where(tf.math.is_nan(x) | tf.math.is_nan(y), x + y, angle)


def _is_negative(x: tf.Tensor) -> tf.Tensor:
    """True for negative numbers, and for negative zeros."""
    return (x < 0) | (tf.equal(x, 0) & (1 / x < 0))


@composes("Xlogy", "Xlog1py", "Xdivy", "MulNoNan")
def _of_zero(op: Node, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Products that are zero where one factor is zero, even if the other factor is infinite."""
    zero = x if op.op.type != "MulNoNan" else y
    function = {"Xlogy": tf.math.log, "Xlog1py": tf.math.log1p, "Xdivy": tf.math.reciprocal}
    other = function.get(op.op.type, tf.identity)(y)
    return tf.where(tf.equal(zero, 0), tf.zeros([], x.dtype), x * other)
