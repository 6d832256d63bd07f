"""All that Keras has publicly is written as IR, or refused for a reason that the table names.

Cases run in groups: OpenVINO compiles one model of many operations sooner than many of one.
"""

import importlib
import inspect
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ti.openvino
from tf_ti.openvino import IRError

# The table names layers and operations of this version.
pytest.importorskip("keras", minversion="3.15")
pytest.importorskip("openvino")
openvino_models = importlib.import_module("openvino_models")
keras_cases = importlib.import_module("keras_cases")

_SIZE = 12  # of a group


def cases():
    """For each name, the function of a case and its arrays. Layers are made when it is called."""
    found = dict(keras_cases.OPERATIONS)
    for name, (make, *rest) in keras_cases.LAYERS.items():
        has_call = not isinstance(rest[-1], np.ndarray)
        *arrays, call = rest if has_call else (*rest, None)
        found[name] = _layer_case(make, call or (lambda layer, x: layer(x))), *arrays
    return {
        name: case
        for name, case in found.items()
        if name not in keras_cases.REFUSED and name not in keras_cases.WITHOUT_A_CASE
    }


def _layer_case(make, call):
    made = []

    def run(*inputs):
        if not made:
            keras.utils.set_random_seed(1)
            made.append(make())
        return call(made[0], *inputs)

    return run


def groups():
    """The names of cases, by whether their shapes are known, and then in groups."""
    names = [sorted(cases().keys() & keras_cases.OF_KNOWN_SHAPES)]
    names.append(sorted(cases().keys() - keras_cases.OF_KNOWN_SHAPES))
    parts = [group for part in names for group in _batched(part)]
    return {f"{part[0]} to {part[-1]}": part for part in parts}


def _batched(names):
    return [names[k : k + _SIZE] for k in range(0, len(names), _SIZE)]


def tensors_of(result):
    return [tf.convert_to_tensor(part) for part in tf.nest.flatten(result) if part is not None]


@pytest.mark.quarter
@pytest.mark.parametrize("names", groups().values(), ids=groups())
def test_openvino_computes_what_keras_does(names, tmp_path):
    chosen = {name: cases()[name] for name in names}
    right, arrays = {}, []
    for name, (function, *inputs) in chosen.items():
        right[name] = [tensor.numpy() for tensor in tensors_of(function(*map(tf.constant, inputs)))]
        arrays += inputs

    def run(*inputs):
        rest = iter(inputs)
        return [
            tensors_of(function(*itertools.islice(rest, len(own))))
            for function, *own in chosen.values()
        ]

    path = str(tmp_path / "model.xml")
    function = tf.function(run, autograph=False)
    tf_ti.openvino.save(function, path, [_spec(names, array) for array in arrays])
    found = iter(openvino_models.run(path, arrays))
    for name, values in right.items():
        for value in values:
            _check(name, next(found), value)


def _spec(names, array):
    """The batch is open, if it can be."""
    is_open = array.ndim > 1 and not set(names) & keras_cases.OF_KNOWN_SHAPES
    return tf.TensorSpec([None, *array.shape[1:]] if is_open else array.shape, array.dtype)


def _check(name, found, right):
    assert found.shape == right.shape, name
    found, right = found.astype(np.float64), right.astype(np.float64)
    np.testing.assert_allclose(found, right, 1e-3, 1e-4, err_msg=name)


@pytest.mark.parametrize("name", keras_cases.REFUSED)
def test_what_ir_lacks_is_refused_for_a_reason(name, tmp_path):
    if name in keras_cases.LAYERS:
        make, *rest = keras_cases.LAYERS[name]
        call = next((part for part in rest if callable(part)), lambda layer, x: layer(x))
        function = _layer_case(make, call)
        arrays = [part for part in rest if not callable(part)]
    else:
        function, *arrays = keras_cases.OPERATIONS[name]
    specs = [tf.TensorSpec(array.shape, array.dtype) for array in arrays]
    with pytest.raises(IRError, match=keras_cases.REFUSED[name]):
        tf_ti.openvino.save(tf.function(function, autograph=False), tmp_path / "model.xml", specs)


def public(module):
    names = [name for name in dir(module) if not name.startswith("_")]
    return {name: getattr(module, name) for name in names}


@pytest.mark.parametrize("part", ["ops", "ops.image", "layers"])
def test_all_that_keras_has_has_a_case(part):
    module = keras
    for name in part.split("."):
        module = getattr(module, name)
    is_kind = inspect.isclass if part == "layers" else inspect.isfunction
    there = {name: it for name, it in public(module).items() if is_kind(it)}
    table = keras_cases.LAYERS if part == "layers" else keras_cases.OPERATIONS
    prefix = "image." if part == "ops.image" else ""
    known = {name.removeprefix(prefix) for name in table} | keras_cases.WITHOUT_A_CASE.keys()
    with_cases = [it for name, it in there.items() if name in known]
    missing = [name for name, it in there.items() if not any(it is other for other in with_cases)]
    assert not missing
