"""Products of matrices in a loop's body whose right factor is the same in all iterations."""

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

pytestmark = pytest.mark.programs(False)

SIZES = [1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 65, 130]


def numbers(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def wide(x):
    return np.asarray(x).astype(np.float64)


def assert_product(actual, left, right):
    """Within what adding up in any order may err."""
    left, right = wide(left), wide(right)
    allowed = (left.shape[-1] + 2) * np.finfo(actual.dtype.as_numpy_dtype).eps
    bound = allowed * (np.abs(left) @ np.abs(right))
    assert actual.shape == (*left.shape[:-1], right.shape[-1])
    assert np.all(np.abs(wide(actual) - left @ right) <= bound)


@tf.function(reduce_retracing=True)
def multiply_each(lefts, right, transpose_left=False, transpose_right=False):
    def f(_, left):
        return 0, tf.matmul(left, right, transpose_left, transpose_right)

    return tf_ti.scan(f, 0, lefts)[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [*range(1, 14), 31, 255, 256, 257, 300])
def test_any_number_of_rows(rows, dtype):
    left, right = numbers(rows, 3, rows, 20, dtype=dtype), numbers(1, 20, 70, dtype=dtype)
    assert_product(multiply_each(left, right), left, right)


@pytest.mark.parametrize("seed", range(20))
def test_any_sizes_and_transposes(seed):
    rng = np.random.default_rng(seed)
    rows, depth, columns = (int(rng.choice(SIZES)) for _ in range(3))
    by_left, by_right = (bool(flag) for flag in rng.integers(2, size=2))
    print(rows, depth, columns, by_left, by_right)
    left, right = numbers(seed, 2, rows, depth), numbers(seed + 1, depth, columns)
    actual = multiply_each(
        np.ascontiguousarray(left.swapaxes(1, 2)) if by_left else left,
        np.ascontiguousarray(right.T) if by_right else right,
        by_left,
        by_right,
    )
    assert_product(actual, left, right)


@pytest.mark.parametrize("rows, depth, columns", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_no_rows_terms_or_columns(rows, depth, columns):
    actual = multiply_each(tf.zeros([2, rows, depth]), tf.zeros([depth, columns]))
    np.testing.assert_array_equal(actual, np.zeros([2, rows, columns]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["baseline", "avx2"])
def test_lesser_instruction_sets(name, run_program):
    run_program(f"""
        import os
        os.environ["TF_TI_INSTRUCTION_SET"] = "{name}"
        import numpy as np, tensorflow as tf, tf_ti
        rng = np.random.default_rng(0)
        for dtype in (np.float32, np.float64):
            for columns in (1, 7, 16, 33, 100):
                for rows in (*range(1, 9), 20):
                    left = rng.standard_normal([2, rows, 9]).astype(dtype)
                    right = rng.standard_normal([columns, 9]).astype(dtype)
                    f = lambda c, x: (c, tf.matmul(x, right, transpose_b=True))
                    actual = tf.function(lambda: tf_ti.scan(f, 0, left)[1])()
                    np.testing.assert_allclose(
                        actual, left.astype(float) @ right.T, atol=100 * np.finfo(dtype).eps
                    )
    """)


def test_several_products_by_the_same_matrix_and_by_others():
    x, v, w = numbers(0, 5, 2, 8), numbers(1, 8, 8), numbers(2, 8, 8)

    @tf.function
    def run():
        return tf_ti.scan(lambda c, x: (c, (x @ v, (x @ w) @ v, x @ tf.constant(w))), 0, x)[1]

    for actual, expected in zip(run(), (x @ v, x @ w @ v, x @ w)):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_matrix_that_changes_is_read_in_each_iteration():
    left = numbers(0, 2, 3)
    matrices = numbers(1, 4, 3, 3)

    @tf.function
    def run():
        def f(state, matrix):
            return state @ matrix + matrix, (left @ state, left @ matrix)

        return tf_ti.scan(f, tf.eye(3), matrices)[1]

    state = np.eye(3)
    by_state, by_matrix = (wide(x) for x in run())
    for k, matrix in enumerate(matrices):
        np.testing.assert_allclose(by_state[k], left @ state, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(by_matrix[k], left @ matrix, rtol=1e-4, atol=1e-5)
        state = state @ matrix + matrix


def test_an_inner_loops_matrix_may_change_between_its_runs():
    left, matrices = numbers(0, 5, 2, 3), numbers(1, 4, 3, 3)

    @tf.function
    def run():
        def inner(matrix):
            return tf_ti.scan(lambda c, x: (c, x @ matrix), 0, left)[1]

        return tf_ti.scan(lambda c, matrix: (c, inner(matrix)), 0, matrices)[1]

    np.testing.assert_allclose(run(), np.einsum("trk,ikn->itrn", left, matrices), atol=1e-5)


def test_a_variable_that_the_body_assigns_is_read_anew():
    w = tf.Variable(tf.eye(3))
    x = numbers(0, 4, 2, 3)

    @tf.function
    def run():
        def f(c, x):
            y = x @ w
            w.assign_add(tf.eye(3))
            return c, y

        return tf_ti.scan(f, 0, x)[1]

    np.testing.assert_allclose(run(), x * np.arange(1, 5).reshape(4, 1, 1), rtol=1e-6)
    np.testing.assert_allclose(w, 5 * np.eye(3))


def test_another_call_has_other_matrices():
    x = tf.ones([2, 1, 3])
    for k in (1.0, 2.0):
        np.testing.assert_allclose(multiply_each(x, k * tf.eye(3)), np.full([2, 1, 3], k))


@pytest.mark.parametrize(
    "left, right, said",
    [([3, 4], [5, 6], "size-incompatible"), ([3, 4], [4], r"In\[1\]"), ([4], [4, 5], r"In\[0\]")],
)
def test_matrices_that_do_not_fit_are_matmuls_error(left, right, said):
    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec(None)])
    def run(lefts, right):
        return tf_ti.scan(lambda c, left: (c, tf.raw_ops.MatMul(a=left, b=right)), 0, lefts)[1]

    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
        run(tf.ones([2, *left]), tf.ones(right))


def test_what_is_not_finite_stays_in_its_rows_and_columns():
    left, right = np.ones([2, 3, 4], np.float32), np.ones([4, 70], np.float32)
    left[:, 1, 2], right[3, 69] = np.nan, np.inf
    expected = left @ right
    np.testing.assert_array_equal(multiply_each(left, right), expected)
