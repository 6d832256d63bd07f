"""Operations that IR lacks, which `tf_ti.openvino.save` composes of others, and rarer layers."""

import functools
import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti.openvino
from tf_ti.openvino import IRError
from tf_ti.openvino.writer import conversion

pytestmark = pytest.mark.quarter
pytest.importorskip("openvino")
openvino_models = importlib.import_module("openvino_models")
openvino_saving = importlib.import_module("openvino_saving")
from openvino_saving import check, randoms, types  # noqa: E402

raw = tf.raw_ops


def integers(*shape, low=0, high=10, dtype=np.int32, seed=0):
    return np.random.default_rng([seed, *shape]).integers(low, high, shape).astype(dtype)


def check_both(function, arrays, folder, tolerance=1e-5):
    """With all extents known, and with none."""
    check(function, arrays, folder, tolerance=tolerance)
    signature = [tf.TensorSpec([None] * a.ndim, a.dtype) for a in arrays]
    check(function, arrays, folder, tolerance=tolerance, signature=signature)


# --- Matrices -------------------------------------------------------------------------------------

ALIGNMENTS = "RIGHT_LEFT", "LEFT_RIGHT", "LEFT_LEFT", "RIGHT_RIGHT"


@pytest.mark.parametrize("align", ALIGNMENTS)
@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (2, 4, 4)])
def test_diagonals(shape, align, tmp_path):
    def run(x):
        parts = [tf.linalg.diag_part(x, k=k, align=align) for k in (0, -1, 2, (-1, 2), (1, 2))]
        packed = tf.linalg.diag_part(x, k=(-1, 1), padding_value=9.0, align=align)
        return [
            *parts,
            packed,
            tf.linalg.set_diag(x, parts[0] + 1.0),
            tf.linalg.diag(packed, k=(-1, 1), align=align, padding_value=-1.0),
            tf.linalg.diag(parts[0], k=2),
            tf.linalg.diag(parts[0], k=-1, num_cols=min(shape[-2:]) + 2),
            tf.linalg.band_part(x, 1, 0),
            tf.linalg.band_part(x, -1, 2),
        ]

    check_both(run, [randoms(*shape)], tmp_path)


@pytest.mark.parametrize("align", ALIGNMENTS)
def test_several_diagonals_are_set(align, tmp_path):
    def run(x):  # of known extents: TensorFlow asks for another rank without them
        packed = tf.linalg.diag_part(x, k=(-1, 2), align=align)
        return tf.linalg.set_diag(x, 2.0 * packed, k=(-1, 2), align=align)

    check(run, [randoms(2, 3, 5)], tmp_path)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float16, np.float64])
def test_diagonals_of_other_dtypes(dtype, tmp_path):
    def run(x):
        diagonal = raw.MatrixDiagPart(input=x)
        whole = tf.linalg.tensor_diag(diagonal)
        parts = [raw.MatrixDiag(diagonal=diagonal), raw.MatrixSetDiag(input=whole, diagonal=x[0])]
        return [diagonal, whole, *parts, tf.linalg.tensor_diag_part(whole)]

    check_both(run, [integers(4, 4, high=2, dtype=dtype)], tmp_path)


@pytest.mark.parametrize("shape", [(1, 1), (2, 4, 4), (2, 1, 3, 3)])
def test_products_with_inverses(shape, tmp_path):
    def run(x, right):
        symmetric = tf.matmul(x, x, transpose_b=True) + tf.eye(tf.shape(x)[-1])
        return [
            tf.linalg.inv(symmetric),
            tf.linalg.inv(x, adjoint=True),
            tf.linalg.det(x),
            tf.linalg.slogdet(x),
            tf.linalg.cholesky(symmetric),
            tf.linalg.solve(x, right),
            tf.linalg.solve(x, right, adjoint=True),
            tf.linalg.triangular_solve(x, right),
            tf.linalg.triangular_solve(x, right, lower=False, adjoint=True),
            *tf.linalg.lu(x),
        ]

    x = randoms(*shape) + 4 * np.eye(shape[-1], dtype=np.float32)[::-1]
    x += 2 * np.eye(shape[-1], dtype=np.float32)
    check_both(run, [x, randoms(*shape[:-1], 2)], tmp_path, tolerance=1e-4)


def test_determinants_of_singular_matrices(tmp_path):
    x = np.float32([[[1, 2], [2, 4]], [[0, 0], [0, 0]], [[0, 2], [3, 0]]])
    check_both(lambda x: [tf.linalg.det(x), tf.linalg.slogdet(x)], [x], tmp_path)


# --- Places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64, np.float16, np.uint8])
def test_scatters(dtype, tmp_path):
    def run(x, places, updates):
        names = ("add", "sub", "max", "min")
        scatters = [getattr(tf, f"tensor_scatter_nd_{name}") for name in names]
        return [
            *(scatter(x, places, updates) for scatter in scatters),
            tf.tensor_scatter_nd_update(x, places[:2], updates[:2]),
            tf.scatter_nd(places, updates, tf.shape(x)),
            tf.scatter_nd(tf.cast(places, tf.int64), updates, tf.shape(x, tf.int64)),
        ]

    x, updates = (integers(*shape, low=5, high=9, dtype=dtype) for shape in ((5, 3), (3, 3)))
    check_both(run, [x, np.int32([[4], [0], [4]]), updates], tmp_path)


def test_rows_that_are_updated_count_from_either_end(tmp_path):
    run = functools.partial(raw.InplaceUpdate, i=[-1, 5])
    check_both(lambda x, rows: run(x=x, v=rows), [randoms(4, 3), randoms(2, 3)], tmp_path)


def test_scatters_of_booleans(tmp_path):
    places, updates = np.int32([[1], [1], [3]]), np.array([True, False, False])
    x = np.array([True, False, True, True, False])

    def run(x, places, updates):
        return [
            tf.scatter_nd(places, updates, tf.shape(x)),
            tf.tensor_scatter_nd_update(x, places[1:], updates[1:]),
        ]

    check_both(run, [x, places, updates], tmp_path)


@pytest.mark.parametrize("start", [(0, 0), (1, 1), (7, -3)])
def test_slices_at_computed_places(start, tmp_path):
    def run(x, update, start):
        return [
            keras.ops.slice_update(x, start, update),
        ]

    check_both(run, [randoms(4, 3), randoms(2, 2), np.int32(start)], tmp_path)


def test_dense_tensors_of_sparse_ones(tmp_path):
    def run(places, values):
        dense = [tf.sparse.to_dense(tf.SparseTensor(places, values, [3, 4]), 7.0)]
        for indices, given in ((places[0, 0], values[0]), (places[:, 1], values)):
            dense.append(
                raw.SparseToDense(
                    sparse_indices=indices, output_shape=[5], sparse_values=given, default_value=0.5
                )
            )
        return dense

    check_both(run, [np.int64([[0, 1], [2, 3]]), randoms(2)], tmp_path)


@pytest.mark.parametrize("shape", [(7,), (3, 4)])
def test_counts(shape, tmp_path):
    def run(x, weights):
        return [
            raw.DenseBincount(input=x, size=5, weights=[], binary_output=False),
            raw.DenseBincount(input=x, size=12, weights=np.zeros(0, "f"), binary_output=True),
            raw.DenseBincount(input=x, size=12, weights=weights),
            tf.math.bincount(tf.reshape(x, [-1]), minlength=3),
        ]

    check_both(run, [integers(*shape), randoms(*shape)], tmp_path)


def test_histograms(tmp_path):
    check(lambda x: keras.ops.histogram(x, 4, (-1.0, 1.0)), [randoms(20)], tmp_path)


@pytest.mark.parametrize(("shape", "count"), [((3, 2), 0), ((3, 0), 2), ((0, 2), 0)])
def test_rows_without_elements(shape, count, tmp_path):
    """OpenVINO's CPU plugin dies of some of these."""

    def run(x, places):
        rows = tf.gather(x, places)
        return [rows, tf.reduce_sum(2.0 * rows)]

    check(run, [randoms(*shape), np.zeros(count, np.int32)], tmp_path)


def test_places_of_no_axes(tmp_path):
    x, places = randoms(4, 3), np.zeros([2, 5, 0], np.int32)
    check(tf.gather_nd, [x, places], tmp_path)
    signature = [tf.TensorSpec([None, None]), tf.TensorSpec([None, None, 0], tf.int32)]
    check(tf.gather_nd, [x, places], tmp_path, signature=signature)


def test_places_of_unknown_axes_are_refused(tmp_path):
    signature = [tf.TensorSpec([4, 3]), tf.TensorSpec([2, None], tf.int32)]
    with pytest.raises(IRError, match="GatherNd.*last axis of its indices must be known"):
        tf_ti.openvino.save(tf.function(tf.gather_nd), tmp_path / "model.xml", signature)


# --- Searches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
def test_places_in_no_numbers(side, tmp_path):
    run = functools.partial(tf.searchsorted, side=side)
    for sequence in randoms(0), np.float32([1, 2, 2]):
        check_both(run, [sequence, np.float32([2, -1, 3])], tmp_path)


def test_differences_of_large_integers(tmp_path):
    x, y = np.int32([2**24, 2**24 + 1, 5]), np.int32([2**24 + 1])
    check_both(lambda x, y: list(raw.ListDiff(x=x, y=y)), [x, y], tmp_path)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
def test_buckets_and_different_numbers(dtype, tmp_path):
    def run(x):
        flat = tf.reshape(x, [-1])
        return [
            raw.Bucketize(input=x, boundaries=[-2.0, 0.0, 3.0]),
            *tf.unique(flat),
            *tf.unique_with_counts(flat, tf.int64),
            *raw.UniqueV2(x=x, axis=[0]),
            *raw.ListDiff(x=flat, y=flat[:2], out_idx=tf.int64),
        ]

    check_both(run, [integers(4, 2, low=-3, high=4, dtype=dtype)], tmp_path)


def test_targets_in_the_top(tmp_path):
    x = randoms(6, 4)
    x[1, 2], x[2, 0] = np.inf, np.nan
    targets = np.int32([0, 1, 1, 3, 5, -1])

    def run(x, targets):
        return [tf.math.in_top_k(targets, x, k) for k in (1, 2, 4)]

    check_both(run, [x, targets], tmp_path)


def test_different_numbers_alone(tmp_path):
    """OpenVINO's CPU plugin computes less where not all outputs are read."""
    x = np.float32([3, 1, 3, 2, 1, 9, 7])

    def run(x):
        ordered = keras.ops.unique(x)
        return [-tf.unique(x)[0], ordered, -tf.unique_with_counts(x)[2]]

    check_both(run, [x], tmp_path)
    check_both(lambda x: 2.0 * keras.ops.unique(x), [x], tmp_path)
    check_both(lambda x: -tf.unique_with_counts(x)[2], [x], tmp_path)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers_are_looked_up_in_a_table(dtype, tmp_path):
    keys = np.array([7, -3, 5], dtype)
    content = tf.lookup.KeyValueTensorInitializer(keys, tf.constant([1.0, 2.0, 3.0]))
    table = tf.lookup.StaticHashTable(content, -1.0)
    x = np.array([[5, 7], [0, -3]], dtype)
    check_both(table.lookup, [x], tmp_path)


@pytest.mark.parametrize("name", ["keys", "values"])
def test_tables_that_int32_does_not_hold_are_refused(name, tmp_path):
    small, large = tf.constant([5, 6], tf.int64), tf.constant([5, 2**40 + 5], tf.int64)
    pair = (large, small) if name == "keys" else (small, large)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(*pair), -1)
    with pytest.raises(IRError, match=f"LookupTableFindV2.*int32.*its {name}"):
        tf_ti.openvino.save(
            tf.function(table.lookup), tmp_path / "model.xml", [tf.TensorSpec([3], tf.int64)]
        )


def test_no_integers_are_looked_up(tmp_path):
    content = tf.lookup.KeyValueTensorInitializer(tf.constant([5, 7]), tf.constant([1, 2]))
    table = tf.lookup.StaticHashTable(content, -1)
    check_both(table.lookup, [np.zeros([0, 2], np.int32)], tmp_path)


def test_what_cannot_be_composed_is_an_error_that_names_it(tmp_path, monkeypatch):
    def fails(node, x, *_):
        return tf.reshape(tf.zeros([2, 3]), [7])

    made = functools.partial(conversion._write_composed, fails)
    monkeypatch.setitem(conversion._TABLE, "MatrixBandPart", made)
    with pytest.raises(IRError, match="MatrixBandPart 'band'.*cannot be composed.*6 elem"):
        tf_ti.openvino.save(
            lambda x: tf.linalg.band_part(x, 1, 1, name="band"),
            tmp_path / "model.xml",
            [tf.TensorSpec([3, 3])],
        )


@pytest.mark.parametrize("function", [tf.linalg.svd, tf.linalg.qr, tf.linalg.eigh])
def test_what_to_do_is_said_where_ir_has_nothing(function, tmp_path):
    with pytest.raises(IRError, match="(?s)(Svd|Qr|Eig).*before the model"):
        tf_ti.openvino.save(tf.function(function), tmp_path / "m.xml", [tf.TensorSpec([3, 3])])


def test_too_many_conditionals_in_one_another_are_refused(tmp_path):
    def nested(x, depth):
        return tf.cond(x[0] > depth, lambda: nested(x, depth - 1), lambda: x) if depth else x

    for depth in (32, 33):
        function = tf.function(lambda x, depth=depth: nested(x, depth), autograph=False)
        save = tf_ti.openvino.save, function, str(tmp_path / "model.xml"), [tf.TensorSpec([2])]
        if depth == 32:
            save[0](*save[1:])
            tf_ti.openvino.load(save[2])
        else:
            with pytest.raises(IRError, match="more than 32 loops"):
                save[0](*save[1:])


@pytest.mark.parametrize("k", [1, 2])
def test_the_k_largest_stay_as_many_when_they_are_written_again(k, tmp_path):
    first, second = (str(tmp_path / f"{name}.xml") for name in ("first", "second"))
    x = randoms(3, 5)
    function = tf.function(lambda x: tf.math.top_k(x, k))
    tf_ti.openvino.save(function, first, [tf.TensorSpec([None, 5], name="x")])
    module = tf_ti.openvino.load(first)
    again = tf.function(lambda x: list(module(x)))
    tf_ti.openvino.save(again, second, [tf.TensorSpec([None, 5], name="x")])
    assert types(second).count("TopK") == 1
    assert not {"Slice", "StridedSlice"} & set(types(second))
    for found, right in zip(openvino_models.run(second, [x]), tf.math.top_k(x, k)):
        np.testing.assert_array_equal(found, right)


def test_the_largest_of_none(tmp_path):
    def run(x):
        values, places = tf.math.top_k(x, 0)
        return tf.reduce_sum(values, 1), tf.reduce_sum(places, 1), tf.concat([values, x], 1)

    check(run, [randoms(3, 5)], tmp_path)


# --- Elements -------------------------------------------------------------------------------------

CORNERS = np.float32([0, -0.0, 1, -1, 0.1, -2.5, np.inf, -np.inf, 3e38, -2e-38, 1e-30, 8388609.0])


@pytest.mark.parametrize("seed", range(4))
def test_bits_of_floats(seed, tmp_path):
    bits = integers(200, low=-(2**31), high=2**31, seed=seed)
    floats = bits.view(np.float32)
    bits = bits[np.isfinite(floats) & (np.abs(floats) > 1e-37)]
    floats = np.concatenate([bits.view(np.float32), CORNERS])

    def run(x, bits):
        return [tf.bitcast(x, tf.int32), tf.bitcast(bits, tf.float32)]

    check_exactly(run, [floats, np.concatenate([bits, CORNERS.view(np.int32)])], tmp_path)


def check_exactly(function, arrays, folder):
    path = str(folder / "model.xml")
    signature = [tf.TensorSpec([None] * a.ndim, a.dtype) for a in arrays]
    tf_ti.openvino.save(tf.function(function), path, signature)
    right = [t.numpy() for t in tf.nest.flatten(function(*map(tf.constant, arrays)))]
    loaded = [t.numpy() for t in tf_ti.openvino.load(path)(*arrays)]
    for found in openvino_models.run(path, arrays), loaded:
        for value, expected in zip(found, right, strict=True):
            assert value.dtype == expected.dtype
            assert value.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtypes", [("float16", "int16"), ("float16", "uint16")])
def test_all_bits_of_small_floats(dtypes, tmp_path):
    number, integer = dtypes
    bits = np.arange(2**16).astype(np.uint16)
    bits = bits[~np.isnan(bits.view(number))]

    def run(x, bits):
        return [tf.bitcast(x, integer), tf.bitcast(bits, number)]

    check_exactly(run, [bits.view(number), bits.view(integer)], tmp_path)


PAIRS = [("int8", "uint8"), ("int16", "uint16"), ("int32", "uint32"), ("int64", "uint64")]


@pytest.mark.parametrize("dtypes", PAIRS)
def test_bits_of_integers(dtypes, tmp_path):
    signed, unsigned = dtypes
    x = np.array([0, 1, 100, -1, -100], signed)

    def run(x, y):
        return [
            tf.bitcast(x, unsigned),
            tf.bitcast(y, signed),
            tf.bitwise.left_shift(x, tf.ones_like(x)),
            tf.bitwise.right_shift(x, tf.ones_like(x)),
            tf.bitwise.right_shift(y[:3], tf.ones_like(y[:3])),
            tf.bitwise.invert(x),
        ]

    if signed == "int64":  # numbers that an int32 holds
        check(lambda x: run(x, tf.bitcast(x, unsigned))[2:4], [x], tmp_path)
    else:
        check_exactly(run, [x, x.view(unsigned)], tmp_path)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_shifts_by_more_than_a_number_has(dtype, tmp_path):
    x = np.array([1, 100, 3, 77, 5, 1], dtype)
    counts = np.array([0, 2, 7, 31, 40, 127], dtype)

    def run(x, counts):
        return [
            tf.bitwise.left_shift(x, counts),
            tf.bitwise.right_shift(x, counts),
            tf.bitwise.right_shift(x, tf.constant([0, 2, 7, 31, 40, 127], dtype)),
            tf.bitwise.left_shift(x, tf.constant([100], dtype)),
        ]

    check_exactly(run, [x, counts], tmp_path)


def test_other_bits_are_refused(tmp_path):
    for source, target in ((tf.float64, tf.int64), (tf.float32, tf.uint8)):
        with pytest.raises(IRError, match="Bitcast.*of one size"):
            tf_ti.openvino.save(
                tf.function(lambda x, target=target: tf.bitcast(x, target)),
                tmp_path / "model.xml",
                [tf.TensorSpec([2], source)],
            )


def test_signs_of_zeros(tmp_path):
    def run(x):
        return [keras.ops.signbit(x), keras.ops.argmin(x), keras.ops.nan_to_num(x)]

    check_both(run, [np.float32([0.0, -0.0, 1.0, -1e-3])], tmp_path)
    check_both(run, [np.float32([0.0, -0.0, np.inf, -3.0])], tmp_path)


def test_next_numbers(tmp_path):
    x = np.float32([1, -1, 1e-30, 5, 0, 0, -0.0, 2, np.nan, -4, 7])
    y = np.float32([2, 2, -1, 5, 1, -1, 3, -np.inf, 1, np.nan, np.inf])
    # OpenVINO may flush the numbers beside zero.
    check_exactly(lambda x, y: tf.math.nextafter(x[:4], y[:4]), [x, y], tmp_path)
    check_both(lambda x, y: tf.math.nextafter(x, y), [x, y], tmp_path)
    check_both(keras.ops.nextafter, [x, y], tmp_path)  # of float64


def test_angles(tmp_path):
    numbers = np.float32([0, -0.0, 1, -1, 3, -5, 1e-20, 1e30, np.inf, -np.inf])
    y, x = map(np.ravel, np.meshgrid(numbers, numbers))
    check_both(lambda y, x: [tf.atan2(y, x), tf.atan2(y, 2.0)], [y, x], tmp_path)


SPECIAL = {
    "erfc": (tf.math.erfc, np.linspace(-6, 9, 100)),
    "erfinv": (tf.math.erfinv, np.linspace(-0.9999, 0.9999, 100)),
    "ndtri": (tf.math.ndtri, np.linspace(0.001, 0.999, 100)),
    "i0": (tf.math.bessel_i0, np.linspace(-60, 60, 100)),
    "i0e": (tf.math.bessel_i0e, np.linspace(-60, 60, 100)),
    "i1": (tf.math.bessel_i1, np.linspace(-60, 60, 100)),
    "i1e": (tf.math.bessel_i1e, np.linspace(-60, 60, 100)),
    "log1p": (tf.math.log1p, np.concatenate([np.geomspace(1e-30, 1e30, 50), [-0.9]])),
    "expm1": (tf.math.expm1, np.concatenate([np.geomspace(1e-30, 80, 50), [-90.0]])),
}


@pytest.mark.parametrize(("function", "x"), SPECIAL.values(), ids=SPECIAL)
def test_special_functions_keep_their_digits(function, x, tmp_path):
    path, x = str(tmp_path / "model.xml"), x.astype(np.float32)
    tf_ti.openvino.save(tf.function(function), path, [tf.TensorSpec([None])])
    right = function(tf.constant(x, tf.float64)).numpy()
    for found in openvino_models.run(path, [x])[0], tf_ti.openvino.load(path)(x)[0].numpy():
        np.testing.assert_allclose(found, right, 3e-6, 1e-37)


def test_special_functions_at_their_limits(tmp_path):
    def run(x):
        return [
            tf.math.erfc(x),
            tf.math.erfinv(x),
            tf.math.xlogy(x, x),
            tf.math.xlog1py(x, x),
            tf.math.xdivy(x, x),
            tf.math.multiply_no_nan(x, 1 / x),
        ]

    check_both(run, [np.float32([0, 1, -1, 20, -20, np.nan])], tmp_path)


def test_the_tails_of_the_normal_distribution(tmp_path):
    x = np.concatenate([np.float32([1e-37, 1e-30, 1e-15, 1e-8]), np.linspace(0, 1, 200, dtype="f")])
    run = tf.function(lambda x: [tf.math.ndtri(x), tf.math.erfcinv(2 * x)])
    check_both(run, [np.append(x, np.float32([np.nan, -1, 2]))], tmp_path)


def test_special_functions_of_no_number(tmp_path):
    x = np.float32([np.nan] * 9 + [1])

    def run(x):
        names = [f"bessel_i{order}" for order in ("0", "0e", "1", "1e")]
        functions = [getattr(tf.math, name)(x) for name in names]
        return [*functions, tf.atan2(x, x[::-1]), tf.atan2(x[::-1], x)]

    check_both(run, [x], tmp_path)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_special_functions_of_other_dtypes(dtype, tmp_path):
    def run(x):
        y = [tf.math.erfc(x), tf.math.bessel_i0e(x)]
        return y if dtype == np.float16 else [*y, tf.math.erfinv(x / 4), tf.atan2(x, x[::-1])]

    tolerance = 2e-3 if dtype == np.float16 else 2e-6
    check(run, [np.linspace(-3, 3, 20).astype(dtype)], tmp_path, tolerance=tolerance)


# --- Axes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_products_along_axes(axis, tmp_path):
    def run(x):
        return [
            tf.math.cumprod(x, axis, exclusive, reverse)
            for exclusive in (False, True)
            for reverse in (False, True)
        ]

    check_both(run, [randoms(3, 4, 2)], tmp_path)


def test_rolls_and_negative_axes(tmp_path):
    def run(x, order):
        return [
            tf.roll(x, 1, -1),
            tf.roll(x, [2, -1, 1], [0, 1, 0]),
            tf.transpose(x, [0, -1, 1]),
            raw.Transpose(x=x, perm=order),
            tf.linspace(x, x + 1.0, 3, axis=-1),
            tf.linspace(0.0, 1.0, 5),
        ]

    check_both(run, [randoms(2, 3, 4), np.int32([-1, 0, -2])], tmp_path)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_arithmetic_of_8_bits_wraps_and_truncates(dtype, tmp_path):
    x = np.array([7, 100, 250, 0, 121, 128]).astype(dtype)
    y = np.array([2, 7, 3, 5, 11, 100], dtype)

    def run(x, y):
        quotients = [tf.math.floordiv(x, y), tf.truncatediv(x, y)]
        sums = [x + y, x - y, tf.add_n([x, y, y]), tf.reduce_sum(x), tf.reduce_mean(x)]
        return [*quotients, *sums, x * y, tf.square(x), tf.reduce_prod(x[:3])]

    check_both(run, [x, y], tmp_path)


def test_a_quotient_of_int16_at_the_limit(tmp_path):
    check_both(tf.math.floordiv, [np.int16([-32768, 5]), np.int16([100, 3])], tmp_path)


def test_products_of_int8_in_another_type(tmp_path):
    x = np.int8([[[100, 1], [1, 99]]])
    run = functools.partial(raw.BatchMatMulV3, Tout=tf.int32)
    check_both(lambda x: run(x=x, y=x), [x], tmp_path)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_norms(dtype, tmp_path):
    def run(x):
        norm = tf.math.reduce_euclidean_norm
        return [norm(x), norm(x, 0), norm(x, -1, keepdims=True)]

    check_both(run, [np.array([[3, 4], [6, 8]], dtype)], tmp_path)


def test_reductions_over_no_axes(tmp_path):
    def run(x):
        none = tf.constant([], tf.int32)
        names = ("Sum", "Mean", "Prod", "Max", "Min", "EuclideanNorm")
        return [getattr(raw, name)(input=x, axis=none) for name in names]

    check_both(run, [randoms(2, 3)], tmp_path)


DOTS = {
    "vdot": keras.ops.vdot,
    "tensordot": lambda x, y: tf.tensordot(x, y, [[0, 1], [0, 1]]),
    "matmul": lambda x, y: tf.reshape(tf.matmul(x[:1], y[:1], transpose_b=True), []),
}


@pytest.mark.parametrize("function", DOTS.values(), ids=DOTS)
def test_a_product_of_vectors_is_a_number(function, tmp_path, run_program):
    check_both(function, [randoms(3, 4), randoms(3, 4, seed=1)], tmp_path)


# --- Losses and branches --------------------------------------------------------------------------


def test_cross_entropies(tmp_path):
    def run(x, classes, labels):
        return [
            tf.nn.sparse_softmax_cross_entropy_with_logits(classes, x),
            tf.nn.softmax_cross_entropy_with_logits(labels, x),
            *raw.SoftmaxCrossEntropyWithLogits(features=x, labels=labels),
            raw.SparseSoftmaxCrossEntropyWithLogits(features=x, labels=classes)[1],
        ]

    labels = np.abs(randoms(3, 4))
    check_both(run, [randoms(3, 4) * 30, np.int32([0, 3, 1]), labels], tmp_path)


@pytest.mark.parametrize("merge", [False, True])
def test_labels_are_decoded(merge, tmp_path):
    def run(x, lengths):
        options = {"merge_repeated": merge, "blank_index": 0}
        return [
            *raw.CTCGreedyDecoder(inputs=x, sequence_length=lengths, **options),
            *raw.CTCGreedyDecoder(inputs=x, sequence_length=lengths),
        ]

    check_both(run, [randoms(6, 3, 3), np.int32([6, 2, 4])], tmp_path)


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 5])
def test_branches_by_number(index, tmp_path):
    def run(x, index):
        return tf.switch_case(
            index, [lambda: (x, x + 1), lambda: (2 * x, tf.exp(x)), lambda: (x - 1, x)]
        )

    check(run, [randoms(2, 3), np.int32(index)], tmp_path)


def test_a_loss_of_unaligned_labels(tmp_path):
    labels, lengths = np.int32([[1, 2], [3, 1]]), np.int32([6, 5])

    def run(labels, logits, lengths):
        return keras.ops.ctc_loss(labels, logits, [2, 1], lengths)

    check(run, [labels, randoms(2, 6, 4), lengths], tmp_path)
