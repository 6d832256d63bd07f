"""Functions that `tf_ti.openvino.save` writes, compared in OpenVINO and loaded again.

OpenVINO computes float64 in float32, and int64 in int32.
"""

from xml.etree import ElementTree

import numpy as np
import openvino_models
import tensorflow as tf

import tf_ti.openvino


def randoms(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def specs(arrays, dynamic=False):
    """Of these arrays; the first two dimensions of what has more than one are open if asked for."""
    shapes = [
        [None] * min(2, a.ndim - 1) + list(a.shape[min(2, a.ndim - 1) :]) if dynamic else a.shape
        for a in arrays
    ]
    return [tf.TensorSpec(shape, a.dtype) for shape, a in zip(shapes, arrays)]


def check(function, arrays, folder, dynamic=False, tolerance=1e-5, signature=None):
    """Saves the function, and compares; returns what layers there are."""
    path = str(folder / "model.xml")
    traced = tf.function(function, autograph=False)  # which takes most of the time
    tf_ti.openvino.save(traced, path, signature or specs(arrays, dynamic))
    expected = [t.numpy() for t in tf.nest.flatten(function(*map(tf.constant, arrays)))]
    loaded = [t.numpy() for t in tf_ti.openvino.load(path)(*arrays)]
    for found in openvino_models.run(path, arrays), loaded:
        assert len(found) == len(expected)
        for value, right in zip(found, expected):
            assert value.shape == right.shape
            np.testing.assert_allclose(
                value.astype(np.float64), right.astype(np.float64), tolerance, tolerance
            )
    return types(path)


def types(path):
    return [layer.get("type") for layer in ElementTree.parse(path).iter("layer")]
