"""The bags against torch.nn.functional.embedding_bag, where torch is installed."""

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import _library

torch = pytest.importorskip("torch", reason="torch is not installed: `make oracles` does it")


def random_case(rng):
    dtype = [np.float32, np.float64][rng.integers(0, 2)]
    rows, width, count = (
        int(rng.integers(1, 40)),
        int(rng.integers(1, 70)),
        int(rng.integers(0, 90)),
    )
    table = rng.standard_normal([rows, width]).astype(dtype)
    indices = rng.integers(0, rows, count).astype([np.int32, np.int64][rng.integers(0, 2)])
    offsets = np.sort(rng.integers(0, count + 1, rng.integers(1, 12))).astype(indices.dtype)
    offsets[0] = 0  # torch's bags begin there
    options = {}
    if rng.random() < 0.4:
        options["include_last_offset"] = True
        offsets[-1] = count  # and end here
    if rng.random() < 0.4:
        options["padding_idx"] = int(rng.integers(0, rows))
    if rng.random() < 0.3:
        options["max_norm"] = float(rng.random() * width**0.5 + 0.2)
        options["norm_type"] = [1.0, 2.0, 3.5, np.inf][rng.integers(0, 4)]
    mode = ["sum", "mean", "max"][rng.integers(0, 3)]
    if options.get("include_last_offset") and len(offsets) == 1:
        offsets = np.array([0, count], indices.dtype)
    weights = None
    if mode == "sum" and rng.random() < 0.6:
        weights = rng.standard_normal(count).astype(dtype)
    print(dtype, table.shape, indices, offsets, mode, weights is not None, options)
    return table, indices, offsets, weights, mode, options


def run_torch(table, indices, offsets, weights, mode, options, sparse=False):
    """The bags, and the gradients of the sum of their sines to the table and the weights."""
    table = torch.tensor(table, requires_grad="max_norm" not in options)
    if weights is not None:
        weights = torch.tensor(weights, requires_grad="max_norm" not in options)
    y = torch.nn.functional.embedding_bag(
        torch.tensor(indices),
        table,
        None if offsets is None else torch.tensor(offsets),
        mode=mode,
        per_sample_weights=weights,
        sparse=sparse,
        **options,
    )
    if "max_norm" in options:  # torch changes the table in place, which then has no gradient
        return y.numpy(), None, None
    torch.sin(y).sum().backward()
    of_table = table.grad.to_dense().numpy()
    return y.detach().numpy(), of_table, None if weights is None else weights.grad.numpy()


def run_tf_ti(call, table, weights):
    sources = [tf.Variable(table)] + ([] if weights is None else [tf.constant(weights)])
    with tf.GradientTape() as tape:
        tape.watch(sources)
        y = call(*sources)
        value = tf.reduce_sum(tf.sin(y))
    gradients = [tf.convert_to_tensor(g).numpy() for g in tape.gradient(value, sources)]
    return (y.numpy(), *gradients, *([None] if weights is None else []))


def check(actual, expected):
    tolerance = 1e-4 if expected[0].dtype == np.float32 else 1e-6  # torch adds 1e-7 to a norm
    for a, e in zip(actual, expected):
        if e is not None:
            np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seed", range(60), indirect=True)
def test_offsets_give_what_torch_gives(rng):
    table, indices, offsets, weights, mode, options = random_case(rng)
    actual = run_tf_ti(
        lambda table, weights=None: tf_ti.embedding_bag_offsets(
            table, indices, offsets, None, weights, mode, **options
        ),
        table,
        weights,
    )
    sparse = mode != "max" and rng.random() < 0.5
    check(actual, run_torch(table, indices, offsets, weights, mode, options, sparse))


@pytest.mark.parametrize("seed", range(100, 120), indirect=True)
def test_packed_bags_give_what_torch_gives_for_two_dimensions(rng):
    table, indices, _, weights, mode, options = random_case(rng)
    options.pop("include_last_offset", None)
    shape = [len(indices) // 3, 3]
    indices = indices[: shape[0] * 3].reshape(shape)
    weights = None if weights is None else weights[: shape[0] * 3].reshape(shape)
    actual = run_tf_ti(
        lambda table, weights=None: tf_ti.embedding_bag_packed(
            table, indices, weights, mode, **options
        ),
        table,
        weights,
    )
    check(actual, run_torch(table, indices, None, weights, mode, options))


IDS = [1, 6, 4, 5, 4, 3, 6, 0]
# The ids, where bags begin (None: ids of two dimensions), the mode, and options of both.
CASES = {
    "sums": (IDS, [0, 3, 4], "sum", {}),
    "means": (IDS, [0, 3, 4], "mean", {}),
    "maxima": (IDS, [0, 3, 4], "max", {}),
    "sums of weighted rows": (IDS, [0, 3, 4], "weighted", {}),
    "one bag": (IDS, [0], "mean", {}),
    "empty bags first, amid and last": (IDS, [0, 0, 3, 3, 3, 8, 8], "sum", {}),
    "means of empty bags": (IDS, [0, 0, 8], "mean", {}),
    "maxima of empty bags": (IDS, [0, 0, 8], "max", {}),
    "empty bags alone": ([], [0, 0], "sum", {}),
    "the last offset": (IDS, [0, 3, 3, 8], "mean", {"include_last_offset": True}),
    "weights and the last offset": (IDS, [0, 3, 8], "weighted", {"include_last_offset": True}),
    "no bag before the last offset": ([], [0], "sum", {"include_last_offset": True}),
    "padding": ([6, 6, 1, 6, 2, 6], [0, 2, 3], "sum", {"padding_idx": 6}),
    "means without padding": ([6, 6, 1, 6, 2, 6], [0, 2, 3], "mean", {"padding_idx": 6}),
    "maxima without padding": ([6, 6, 1, 6, 2, 6], [0, 2, 3], "max", {"padding_idx": 6}),
    "weights of padding": ([6, 6, 1, 6, 2, 6], [0, 2, 3], "weighted", {"padding_idx": 6}),
    "two dimensions": ([[0, 3], [5, 5], [6, 0]], None, "mean", {}),
    "maxima of two dimensions": ([[0, 3], [5, 5], [6, 0]], None, "max", {}),
    "weights of two dimensions": ([[0, 3], [5, 5], [6, 0]], None, "weighted", {}),
    "padding of two dimensions": ([[0, 3], [5, 5], [6, 0]], None, "mean", {"padding_idx": 0}),
    "the norm": (IDS, [0, 3, 4], "sum", {"max_norm": 1.0}),
    "the norm 1": (IDS, [0, 3, 4], "mean", {"max_norm": 1.5, "norm_type": 1.0}),
    "the norm 3": (IDS, [0, 3, 4], "weighted", {"max_norm": 0.9, "norm_type": 3.0}),
    "the largest value": (IDS, [0, 3, 4], "max", {"max_norm": 0.7, "norm_type": np.inf}),
    "the norm of two dimensions": ([[0, 3], [5, 5]], None, "sum", {"max_norm": 0.5}),
}


def check_case(case, index_type, wrap):
    ids, offsets, mode, options = CASES[case]
    ids = np.array(ids, index_type)
    offsets = None if offsets is None else np.array(offsets, index_type)
    rng = np.random.default_rng(len(case))
    table, weights = rng.standard_normal([7, 3]), None
    if mode == "weighted":
        mode, weights = "sum", rng.standard_normal(ids.shape)

    def bags(table, weights=None):
        if offsets is None:
            return tf_ti.embedding_bag_packed(table, ids, weights, mode, **options)
        return tf_ti.embedding_bag_offsets(table, ids, offsets, None, weights, mode, **options)

    @wrap
    def run(*sources):
        with tf.GradientTape() as tape:
            tape.watch(sources)
            y = bags(*sources)
            value = tf.reduce_sum(tf.sin(y))
        return y, *[tf.convert_to_tensor(g) for g in tape.gradient(value, sources)]

    actual = run(*[tf.constant(s) for s in (table, weights) if s is not None])
    expected = run_torch(table, ids, offsets, weights, mode, options)
    check(actual, expected[: len(actual)])


@pytest.mark.parametrize("index_type", [np.int32, np.int64])
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
@pytest.mark.parametrize("case", CASES)
def test_each_kind_of_bags_gives_what_torch_gives(case, wrap, index_type):
    check_case(case, index_type, wrap)


@pytest.mark.skipif(_library.XLA_PROBLEM is not None, reason=str(_library.XLA_PROBLEM))
@pytest.mark.parametrize("case", CASES)
def test_each_kind_of_bags_gives_what_torch_gives_when_compiled(case):
    index_type = [np.int32, np.int64][list(CASES).index(case) % 2]
    check_case(case, index_type, tf.function(jit_compile=True))


@pytest.mark.parametrize("offsets_type", [np.int32, np.int64])
@pytest.mark.parametrize("index_type", [np.int32, np.int64])
def test_ids_and_offsets_of_different_types_give_what_torch_gives(index_type, offsets_type):
    table, ids = np.arange(14.0).reshape(7, 2), np.array(IDS, index_type)
    offsets = np.array([0, 3, 4], offsets_type)
    actual = tf_ti.embedding_bag_offsets_sum(table, ids, offsets)
    check([actual], run_torch(table, ids, offsets, None, "sum", {})[:1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("weighted", [False, True])
def test_halves_give_what_torch_gives(dtype, weighted):
    rng = np.random.default_rng(7)
    table = rng.standard_normal([50, 33]).astype(np.float32)
    weights = rng.standard_normal(300).astype(np.float32) if weighted else None
    indices, offsets = rng.integers(0, 50, 300), np.arange(0, 300, 25)
    expected = torch.nn.functional.embedding_bag(
        torch.tensor(indices),
        torch.tensor(table).to(getattr(torch, dtype)),
        torch.tensor(offsets),
        mode="sum",
        per_sample_weights=None
        if weights is None
        else torch.tensor(weights).to(getattr(torch, dtype)),
    )
    actual = tf_ti.embedding_bag_offsets_sum(
        tf.cast(table, dtype),
        indices,
        offsets,
        None,
        None if weights is None else tf.cast(weights, dtype),
    )
    # torch sums halves in float32 as well, and may round in another order.
    step = 2**-10 if dtype == "float16" else 2**-7
    np.testing.assert_allclose(
        tf.cast(actual, tf.float32), expected.to(torch.float32), rtol=step, atol=step
    )
