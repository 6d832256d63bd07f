"""`tf_ti.openvino.save` of embedding bags: all options, against the functions themselves."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti
import tf_ti.openvino
from tf_ti.openvino import IRError

pytest.importorskip("openvino")
openvino_saving = importlib.import_module("openvino_saving")
check, randoms = openvino_saving.check, openvino_saving.randoms

TABLES = {"rows": randoms(12, 4), "numbers": randoms(12), "matrices": randoms(12, 2, 3)}
IDS = np.array([3, 0, 11, 5, 5, 2, 7, 3], np.int32)
OFFSETS = np.array([1, 3, 3, 5, 8], np.int32)  # the second bag is empty, and the last one
SEGMENTS = np.array([0, 0, 2, 2, 2, 3, 3, 3], np.int32)
SPLITS = [0, 2, 2, 5, 8, 8]
WEIGHTS = randoms(8)
DEFAULT = np.array(4, np.int32)


def shards(table, strategy):
    """Three of a table of 12 rows."""
    if strategy == "mod":
        return [table[k::3] for k in range(3)]
    return [table[:4], table[4:8], table[8:]]


def specs(arrays, dynamic):
    shapes = [[None, *a.shape[1:]] if dynamic and a.ndim else a.shape for a in arrays]
    return [tf.TensorSpec(shape, a.dtype) for shape, a in zip(shapes, arrays)]


def compare(run, arrays, folder, dynamic):
    return check(run, arrays, folder, signature=specs(arrays, dynamic), tolerance=1e-4)


OPTIONS = {
    "dynamic": [False, True],
    "weighted": [False, True],
    "max_norm": [None, 1.5],
    "padding_idx": [None, 5],
    "default": [None, 4, "an input"],
    "table": TABLES,
}


def takes_no_weights(weighted, reduction="sum", combiner="sum", **_):
    return weighted and (reduction != "sum" or combiner == "max")


def with_options(test):
    """Runs a test with each pair of what bags of all kinds have."""
    for name, values in OPTIONS.items():
        test = pytest.mark.parametrize(name, values)(test)
    return pytest.mark.pairwise(without=takes_no_weights)(test)


@with_options
@pytest.mark.parametrize("reduction", ["sum", "mean", "max"])
@pytest.mark.parametrize("kind", ["offsets", "packed"])
def test_options_of_bags(
    kind, table, reduction, default, padding_idx, max_norm, weighted, dynamic, tmp_path
):
    def run(ids, bounds, weights, index):
        options = {
            "per_sample_weights": weights if weighted else None,
            "reduction": reduction,
            "padding_idx": padding_idx,
            "max_norm": max_norm,
        }
        if kind == "packed":
            pooled = tf_ti.embedding_bag_packed(TABLES[table], ids, **options)
            return pooled, tf.cast(bounds[:1], tf.float32) + tf.cast(index, tf.float32) + weights[0]
        options["default_index"] = index if default == "an input" else default
        pooled = tf_ti.embedding_bag_offsets(TABLES[table], ids, bounds, **options)
        return pooled, weights + tf.cast(index, tf.float32)

    shape = [4, 2] if kind == "packed" else [8]
    arrays = [IDS.reshape(shape), OFFSETS, WEIGHTS.reshape(shape), DEFAULT]
    compare(run, arrays, tmp_path, dynamic)


@with_options
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "max"])
@pytest.mark.parametrize("strategy", [None, "div", "mod"])
def test_options_of_ragged_ids(
    strategy, table, combiner, default, padding_idx, max_norm, weighted, dynamic, tmp_path
):
    def run(ids, weights, index):
        ragged = tf.RaggedTensor.from_row_splits(ids, SPLITS, validate=False)
        pooled = tf_ti.embedding_bag(
            shards(TABLES[table], strategy) if strategy else TABLES[table],
            ragged,
            ragged.with_values(weights) if weighted else None,
            combiner,
            default_index=index if default == "an input" else default,
            padding_idx=padding_idx,
            max_norm=max_norm,
            partition_strategy=strategy or "div",
        )
        return pooled, weights + tf.cast(index, tf.float32)

    compare(run, [IDS, WEIGHTS, DEFAULT], tmp_path, dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
def test_empty_segments_have_no_row(dynamic, tmp_path):
    table = 1e3 + randoms(64, 48)  # which OpenVINO must not read beyond

    def run(ids, segments, weights, index):
        return (
            tf_ti.embedding_segments_sum(table, ids, segments, 6, per_sample_weights=weights),
            tf_ti.embedding_segments_sum(table, ids, segments, 6, padding_idx=5),
            tf_ti.embedding_segments_sum(table, ids, segments, 6, index),
            tf_ti.embedding_segments_sum(table, ids, segments, 6, index, weights),
        )

    compare(run, [IDS, SEGMENTS + 1, WEIGHTS, np.array(-1, np.int32)], tmp_path, dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "max"])
@pytest.mark.parametrize("variables", [False, True])
def test_several_tables(variables, combiner, dynamic, tmp_path):
    tables = [TABLES["rows"], randoms(7, 4), TABLES["rows"]]
    if variables:
        tables = [tf.Variable(table) for table in tables]

    def run(ids, segments):
        ragged = tf.RaggedTensor.from_row_splits(ids, SPLITS, validate=False)
        rows, places = tf.cast(segments, tf.int64), tf.range(tf.size(segments, tf.int64))
        sparse = tf.SparseTensor(tf.stack([rows, places], 1), ids, [5, 8])
        several = [ragged, tf.reshape(ids, [4, 2]) % 7, sparse]
        return tf_ti.embedding_bags(tables, several, None, combiner, [2, None, 1])

    compare(run, [IDS, SEGMENTS], tmp_path, dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("norm_type", [1.0, 3.0, float("inf")])
def test_other_norms(norm_type, dynamic, tmp_path):
    def run(ids):
        return tf_ti.embedding_bag_packed(
            TABLES["rows"], ids, max_norm=0.8, norm_type=norm_type, reduction="mean"
        )

    compare(run, [IDS.reshape(4, 2)], tmp_path, dynamic)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "int64"])
@pytest.mark.parametrize("reduction", ["sum", "max"])
def test_other_tables(reduction, dtype, tmp_path):
    table = (4 * TABLES["rows"]).astype(dtype)

    def run(ids, offsets):
        return tf_ti.embedding_bag_offsets(
            table, ids, offsets, padding_idx=5, default_index=1, reduction=reduction
        )

    arrays = [IDS.astype(np.int64), OFFSETS.astype(np.int64)]
    tolerance = 2e-3 if dtype == "float16" else 1e-5
    check(run, arrays, tmp_path, signature=specs(arrays, True), tolerance=tolerance)


def test_the_maximum_of_no_ids_is_zero(tmp_path):
    table = randoms(5, 3)

    def most(ids):
        return tf_ti.embedding_bag_packed(table, ids, reduction="max")

    check(most, [np.zeros([2, 0], np.int32)], tmp_path, dynamic=True)
    check(most, [np.array([[0, 4], [3, 3]], np.int32)], tmp_path, dynamic=True)


def offsets(**options):
    def run(ids, offsets, *weights):
        weights = weights[0] if weights else None
        return tf_ti.embedding_bag_offsets(
            TABLES["rows"], ids, offsets, per_sample_weights=weights, **options
        )

    return run


def segments(ids, numbers, weights):
    return tf_ti.embedding_segments_sum(TABLES["rows"], ids, numbers, 5, 2, weights)


ONE_LAYER = {
    "offsets": (offsets(default_index=3), [IDS, OFFSETS, WEIGHTS], "EmbeddingBagOffsetsSum"),
    "mean": (offsets(default_index=3, reduction="mean"), [IDS, OFFSETS], "EmbeddingBagOffsets"),
    "packed": (
        lambda ids, weights: tf_ti.embedding_bag_packed(TABLES["rows"], ids, weights),
        [IDS.reshape(2, 4), WEIGHTS.reshape(2, 4)],
        "EmbeddingBagPackedSum",
    ),
    "segments": (segments, [IDS, SEGMENTS, WEIGHTS], "EmbeddingSegmentsSum"),
}


@pytest.mark.parametrize("run, arrays, layer", ONE_LAYER.values(), ids=ONE_LAYER)
def test_what_openvino_has_is_one_layer(run, arrays, layer, tmp_path):
    found = check(run, arrays, tmp_path)
    assert layer in found and not {"Gather", "ReduceSum", "ScatterNDUpdate"} & set(found)


def test_a_bag_of_a_variable_is_one_layer_and_the_variable_a_constant(tmp_path):
    table = tf.Variable(TABLES["rows"])
    found = check(lambda ids: tf_ti.embedding_bag_packed(table, ids), [IDS.reshape(2, 4)], tmp_path)
    assert found == ["Parameter", "Const", "EmbeddingBagPackedSum", "Result"]


def test_a_layer_of_keras_with_a_norm(tmp_path):
    layer = tf_ti.keras.EmbeddingBag(12, 4, max_norm=0.01)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), layer])
    path, ids = str(tmp_path / "model.xml"), IDS[:6].reshape(2, 3)
    tf_ti.openvino.save(model, path)
    np.testing.assert_allclose(tf_ti.openvino.load(path)(ids)[0], model(ids), 1e-5)


def test_means_of_integers_are_refused(tmp_path):
    table = np.arange(6).reshape(3, 2)
    with pytest.raises(IRError, match="reduction mean of integers is another one"):
        tf_ti.openvino.save(
            lambda ids: tf_ti.embedding_bag_packed(table, ids, reduction="mean"),
            tmp_path / "model.xml",
            [tf.TensorSpec([None, 2], tf.int32)],
        )
