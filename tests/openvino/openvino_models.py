"""Models of one operation, built by OpenVINO's Python API, for the tests of `tf_ti.openvino`."""

import numpy as np
import openvino as ov

CORE = ov.Core()


def make(function, *arrays, dynamic=False, constants=()):
    """A model of function(*nodes); the inputs at `constants` are constants in it."""
    opset = ov.opset15
    nodes, parameters = [], []
    for i, array in enumerate(arrays):
        if i in constants:
            nodes.append(opset.constant(array))
            continue
        shape = [-1] * array.ndim if dynamic else array.shape
        parameter = opset.parameter(shape, array.dtype.type, name=f"input_{i}")
        parameters.append(parameter)
        nodes.append(parameter)
    outputs = function(*nodes)
    if not isinstance(outputs, list | tuple):
        outputs = outputs.outputs()
    return ov.Model([opset.result(output) for output in outputs], parameters, "model")


def save(model, path):
    ov.save_model(model, path, compress_to_fp16=False)
    return path


def run(path, inputs):
    """OpenVINO's results, in full precision."""
    hint = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = CORE.compile_model(str(path), "CPU", hint)
    request = compiled.create_infer_request()
    request.infer([np.asarray(value) for value in inputs])
    return [request.get_output_tensor(i).data.copy() for i in range(len(compiled.outputs))]
