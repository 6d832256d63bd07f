"""Complex numbers and Fourier transforms in `tf_ti.openvino.save`."""

import importlib
import operator

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti.openvino

pytestmark = pytest.mark.quarter
pytest.importorskip("openvino")
openvino_saving = importlib.import_module("openvino_saving")
check, randoms = openvino_saving.check, openvino_saving.randoms

ROWS = [randoms(3, 8), randoms(3, 8, seed=1)]
BLOCKS = [randoms(2, 4, 6), randoms(2, 4, 6, seed=1)]
SOUND = randoms(2, 64)


def parts(numbers):
    return tf.math.real(numbers), tf.math.imag(numbers)


def signature(arrays, is_open):
    """All extents, or none, are open."""
    return [tf.TensorSpec([None] * a.ndim if is_open else a.shape, a.dtype) for a in arrays]


def check_parts(function, arrays, folder, is_open, tolerance=1e-4):
    def run(real, imag):
        return [parts(numbers) for numbers in tf.nest.flatten(function(tf.complex(real, imag)))]

    check(run, arrays, folder, tolerance=tolerance, signature=signature(arrays, is_open))


TRANSFORMS = {
    "one axis": (lambda z: [tf.signal.fft(z), tf.signal.ifft(z)], ROWS),
    "two axes": (lambda z: [tf.signal.fft2d(z), tf.signal.ifft2d(z)], BLOCKS),
    "three axes": (lambda z: [tf.signal.fft3d(z), tf.signal.ifft3d(z)], BLOCKS),
    "shifted": (lambda z: tf.signal.fft(z)[:, ::-1], ROWS),
    "of transforms": (lambda z: tf.signal.ifft(tf.signal.fft(z) * tf.signal.fft(z)), ROWS),
}


@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("case", TRANSFORMS)
def test_transforms(case, is_open, tmp_path):
    function, arrays = TRANSFORMS[case]
    check_parts(function, arrays, tmp_path, is_open)


@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("length", [None, 5, 6, 11])
def test_transforms_of_real_numbers(length, is_open, tmp_path):
    lengths = None if length is None else [length]

    def run(x, y):
        return [
            *parts(tf.signal.rfft(x, lengths)),
            tf.signal.irfft(tf.complex(x, y), lengths),
            *parts(tf.signal.rfft2d(x, lengths and [3, length])),
        ]

    check(run, ROWS, tmp_path, tolerance=1e-4, signature=signature(ROWS, is_open))


ALONE = {
    "conjugates": lambda z: [tf.math.conj(z), -z, tf.transpose(z)],
    "functions": lambda z: [tf.exp(z), tf.sqrt(z), tf.square(z), tf.math.reciprocal(z)],
    "sums": lambda z: [
        tf.reduce_sum(z, 1),
        tf.reduce_mean(z, 0),
        tf.cumsum(z, 1),
        tf.add_n([z, z]),
    ],
    "moves": lambda z: [
        z[:, 1:3],
        tf.pad(z, [[0, 1], [2, 0]]),
        tf.gather(z, [1, 0], axis=1),
        tf.concat([z, 2.0 * z], 1),
        tf.stack([z, z], 1),
        tf.tile(z, [1, 2]),
        tf.reverse(z, [1]),
        tf.reshape(z[..., tf.newaxis], [-1]),
    ],
    "choices": lambda z: [tf.where(tf.math.real(z) > 0, z, -z), z + tf.ones_like(z)],
    "constants": lambda z: [z * (1 + 2j), z + tf.constant([1j] * 8, z.dtype)],
    "casts": lambda z: tf.cast(tf.math.real(z), z.dtype) * z,
    "products": lambda z: [
        tf.matmul(z, z, adjoint_b=True),
        tf.einsum("ij,kj->ik", z, z),
        tf.einsum("ij->ji", z),
        tf.linalg.adjoint(z) @ z,
    ],
    "quotients": lambda z: [z / (z + 1.5), tf.math.divide_no_nan(z, z * 0.0)],
}


@pytest.mark.parametrize("case", ALONE)
def test_operations(case, tmp_path):
    check_parts(ALONE[case], ROWS, tmp_path, is_open=True)


def test_constants_that_a_function_captures(tmp_path):
    captured = tf.constant(np.exp(1j * np.arange(300)).astype(np.complex64))

    def run(x):
        return parts(tf.signal.fft(tf.cast(x, tf.complex64) * captured))

    check(run, [randoms(2, 300)], tmp_path, tolerance=1e-3)


def test_variables(tmp_path):
    variable = tf.Variable(tf.constant([1 + 2j, 3 - 1j], tf.complex64))
    check(lambda x: tf.math.imag(tf.complex(x, x) * variable), [randoms(3, 2)], tmp_path)


def test_identities_of_real_and_complex_tensors(tmp_path):
    def run(x):
        real, other = tf.identity_n([x, tf.complex(x, 2.0 * x)])
        return [real, tf.math.imag(other)]

    check(run, [randoms(3, 2)], tmp_path)


def test_transforms_of_float64(tmp_path):
    def run(x):
        spectrum = tf.signal.fft(tf.complex(x, x))
        return [tf.math.real(spectrum), tf.signal.irfft2d(tf.signal.rfft2d(x)), x]

    check(run, [randoms(3, 4, dtype=np.float64)], tmp_path)


def test_powers_of_zero(tmp_path):
    bases = np.float32([0, 0, 0, 2, -1])
    exponents = np.float32([2, 0.5, 0, 0, 2])

    def run(x, y):
        return parts(tf.complex(x, 0 * x) ** tf.complex(y, 0 * y))

    check(run, [bases, exponents], tmp_path)


PAIRS = {
    "sum": operator.add,
    "difference": operator.sub,
    "product": operator.mul,
    "quotient": operator.truediv,
}


@pytest.mark.parametrize("case", PAIRS)
def test_arithmetic_broadcasts(case, tmp_path):
    check_parts(lambda z: PAIRS[case](z, z[:1] * 1j + 2.0), ROWS, tmp_path, is_open=False)


def test_an_absolute_value_is_right_where_its_square_is_no_number(tmp_path):
    def run(x, y):
        z = tf.complex(x, y)
        return [tf.abs(z), tf.abs(z * 1e-25) * 1e25, tf.abs(z * 1e25) * 1e-25, tf.abs(z * 0.0)]

    check(run, ROWS, tmp_path)


SPECTRA = {
    "short times": lambda x: parts(tf.signal.stft(x, 16, 8)),
    "and back": lambda x: tf.signal.inverse_stft(
        tf.signal.stft(x, 16, 8), 16, 8, window_fn=tf.signal.inverse_stft_window_fn(8)
    ),
    "by keras": lambda x: keras.ops.stft(x, 16, 8, 16),
    "by keras, and back": lambda x: keras.ops.istft(keras.ops.stft(x, 16, 8, 16), 16, 8, 16),
    "cosines": lambda x: [tf.signal.dct(x), tf.signal.idct(x)],
    "absolute values": lambda x: tf.abs(tf.signal.ifft(tf.signal.fft(tf.cast(x, tf.complex64)))),
}


@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("case", SPECTRA)
def test_spectra(case, is_open, tmp_path):
    found = signature([SOUND], is_open)
    check(SPECTRA[case], [SOUND], tmp_path, tolerance=1e-4, signature=found)


def test_a_complex_result_is_refused(tmp_path):
    def run(x):
        return {"y": tf.signal.rfft(x)}

    with pytest.raises(tf_ti.openvino.IRError, match="'y'.*no complex numbers.*tf.math.real"):
        tf_ti.openvino.save(run, str(tmp_path / "model.xml"), [tf.TensorSpec([8])])
    assert not list(tmp_path.iterdir())


def test_a_complex_input_is_refused(tmp_path):
    with pytest.raises(tf_ti.openvino.IRError, match="'x'.*complex64"):
        tf_ti.openvino.save(
            tf.math.real, str(tmp_path / "m.xml"), [tf.TensorSpec([8], tf.complex64, name="x")]
        )


def test_what_has_no_counterpart_is_named_as_of_complex_numbers(tmp_path):
    def run(x):
        return tf.math.real(tf.math.tan(tf.cast(x, tf.complex64)))

    with pytest.raises(tf_ti.openvino.IRError, match="Tan of complex numbers: 'Tan'"):
        tf_ti.openvino.save(run, str(tmp_path / "m.xml"), [tf.TensorSpec([8])])


@pytest.mark.parametrize("seed", range(8))
def test_random_transforms(seed, tmp_path):
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    shape = [int(n) for n in rng.integers(1, 7, rank)]
    axes = int(rng.integers(1, rank + 1))
    arrays = [rng.normal(size=shape).astype(np.float32) for _ in range(2)]
    suffix = "" if axes == 1 else f"{axes}d"
    lengths = [int(n) for n in rng.integers(2, 9, axes)] if rng.random() < 0.5 else None

    def run(x, y):
        z = tf.complex(x, y)
        return [
            *parts(getattr(tf.signal, f"fft{suffix}")(z)),
            *parts(getattr(tf.signal, f"ifft{suffix}")(z)),
            *parts(getattr(tf.signal, f"rfft{suffix}")(x, lengths)),
            getattr(tf.signal, f"irfft{suffix}")(z, lengths or [2] * axes),
        ]

    spec = [tf.TensorSpec([n if rng.random() < 0.5 else None for n in shape])] * 2
    check(run, arrays, tmp_path, tolerance=1e-4, signature=spec)
