"""The bags beside OpenVINO's own operations."""

import numpy as np
import pytest

import tf_ti

ov = pytest.importorskip("openvino")
ov_ops = pytest.importorskip("openvino.opset15")


def split(rng, count, batch):
    """Sorted offsets with empty bags here and there."""
    return np.sort(rng.integers(0, count + 1, batch))


def run_openvino(make, inputs):
    """Runs the op that `make` makes from parameters; None stands for an input that is absent."""
    parameters = [None if x is None else ov_ops.parameter(x.shape, x.dtype) for x in inputs]
    given = [p for p in parameters if p is not None]
    model = ov.Model([ov_ops.result(make(*parameters).output(0))], given, "bags")
    compiled = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled([x for x in inputs if x is not None])[0]


def openvino_case(rng):
    index_type = [np.int32, np.int64][rng.integers(0, 2)]
    rank = int(rng.integers(2, 5))
    table = rng.standard_normal([int(n) for n in rng.integers(1, 12, rank)]).astype(np.float32)
    count = int(rng.integers(1, 40))
    indices = rng.integers(0, len(table), count).astype(index_type)
    default_index = [None, index_type(-1), index_type(rng.integers(0, len(table)))]
    default_index = default_index[rng.integers(0, 3)]
    default_index = None if default_index is None else np.array(default_index)
    weights = rng.standard_normal(count).astype(np.float32) if rng.random() < 0.5 else None
    print(table.shape, indices, default_index, weights)
    return table, indices, default_index, weights


@pytest.mark.parametrize("seed", range(500, 512), indirect=True)
def test_offsets_give_what_openvinos_embedding_bag_offsets_sum_gives(rng):
    table, indices, default_index, weights = openvino_case(rng)
    offsets = split(rng, len(indices) - 1, rng.integers(1, 9)).astype(indices.dtype)
    offsets[0] = 0  # OpenVINO's bags begin there, and none begins where the ids end

    # OpenVINO has weights only beside a default index.
    if weights is not None and default_index is None:
        default_index = np.array(-1, indices.dtype)
    expected = run_openvino(
        ov_ops.embedding_bag_offsets_sum, [table, indices, offsets, default_index, weights]
    )
    actual = tf_ti.embedding_bag_offsets_sum(table, indices, offsets, default_index, weights)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(520, 526), indirect=True)
def test_means_give_what_openvinos_embedding_bag_offsets_gives(rng):
    table, indices, default_index, _ = openvino_case(rng)
    offsets = split(rng, len(indices) - 1, rng.integers(1, 9)).astype(indices.dtype)
    offsets[0] = 0  # OpenVINO's bags begin there, and none begins where the ids end
    inputs = [table, indices, offsets, default_index]
    expected = run_openvino(
        lambda *inputs: ov_ops.embedding_bag_offsets(*inputs, reduction="mean"), inputs
    )
    actual = tf_ti.embedding_bag_offsets(*inputs, reduction="mean")
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(540, 548), indirect=True)
def test_packed_bags_give_what_openvinos_embedding_bag_packed_gives(rng):
    table, indices, _, weights = openvino_case(rng)
    shape = [len(indices) // 2, 2] if len(indices) > 1 else [1, 1]
    indices = indices[: shape[0] * shape[1]].reshape(shape)
    reduction = "sum"
    if weights is not None:
        weights = weights[: indices.size].reshape(shape)
    elif rng.random() < 0.5:
        reduction = "mean"
    expected = run_openvino(
        lambda *inputs: ov_ops.embedding_bag_packed(*inputs, reduction=reduction),
        [table, indices, weights],
    )
    actual = tf_ti.embedding_bag_packed(table, indices, weights, reduction)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(560, 570), indirect=True)
def test_segments_give_what_openvinos_embedding_segments_sum_gives(rng):
    table, indices, default_index, weights = openvino_case(rng)
    batch = int(rng.integers(1, 9))
    segment_ids = np.sort(rng.integers(0, batch, len(indices))).astype(indices.dtype)
    if weights is not None and default_index is None:
        default_index = np.array(-1, indices.dtype)
    count = np.array(batch, indices.dtype)
    inputs = [table, indices, segment_ids, count, default_index, weights]
    expected = run_openvino(ov_ops.embedding_segments_sum, inputs)
    actual = tf_ti.embedding_segments_sum(*inputs)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
