"""ONNX's tests of single nodes, as IR: what OpenVINO answers as ONNX expects, tf_ti answers too.

python tests/openvino/onnx_nodes.py [PATTERN]

Prints each test that is refused or answered wrongly, and how many there are of each kind. PATTERN
is a regular expression that is searched in the tests' names.
"""

import dataclasses
import importlib.util
import io
import pathlib
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import tensorflow as tf
from openvino_models import CORE, save

import tf_ti.openvino
from tf_ti.openvino.element_types import ELEMENT_TYPES

_REFUSALS = (ValueError, TypeError, tf.errors.OpError)  # an IRError is a ValueError


@dataclasses.dataclass(frozen=True)
class Answered:
    """A test that OpenVINO answers as ONNX expects: its IR, inputs, and both answers."""

    path: pathlib.Path
    inputs: list[np.ndarray]
    answers: tuple[list[np.ndarray], list[np.ndarray]]
    tolerance: dict[str, float]


def tests(pattern: str = "") -> list[Any]:
    """ONNX's tests whose names have the pattern."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, on infinities that the tests are about
        return [test for test in collect_testcases(None) if re.search(pattern, test.name)]


def answer(test: Any, folder: pathlib.Path) -> Answered | None:
    """Writes a test as IR, unless OpenVINO has another answer than ONNX, or none."""
    names = [value.name for value in test.model.graph.input]
    inputs, expected = test.data_sets[0]
    given = dict(zip(names, inputs))
    try:
        model = CORE.read_model(io.BytesIO(test.model.SerializeToString()))
        inputs = [np.asarray(given[port.get_any_name()]) for port in model.inputs]
        expected = [np.asarray(value) for value in expected]
        theirs = _run(model, inputs)
    except (RuntimeError, ValueError, TypeError, KeyError):
        return None  # sequences, optional values, texts, unknown operators and types
    tolerance = {"rtol": test.rtol, "atol": test.atol}
    if _difference(theirs, expected, tolerance):
        return None
    path = save(model, folder / f"{test.name}.xml")
    return Answered(path, inputs, (theirs, expected), tolerance)


def _run(model: ov.Model, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """OpenVINO's results, in full precision."""
    compiled = CORE.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    tensors = []
    for port, array in zip(model.inputs, inputs):
        tensors.append(ov.Tensor(port.get_element_type(), array.shape))
        own = tensors[-1].data
        own[...] = array.view(own.dtype)  # another one for the types that NumPy has not
    request.infer(tensors)
    outputs = [request.get_output_tensor(i) for i in range(len(model.outputs))]
    types = [ELEMENT_TYPES[output.element_type.get_type_name()] for output in outputs]
    return [np.array(output.data).view(kind.dtype) for output, kind in zip(outputs, types)]


def _difference(
    actual: Sequence[np.ndarray], expected: Sequence[np.ndarray], tolerance: dict[str, float]
) -> str:
    """What is different, if anything is."""
    if len(actual) != len(expected):
        return f"{len(actual)} outputs, not {len(expected)}"
    for i, (a, b) in enumerate(zip(actual, expected)):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"output {i} is {a.dtype} {a.shape}, not {b.dtype} {b.shape}"
        exact = b.dtype.kind in "biu"
        if exact and not np.array_equal(a, b):
            return f"output {i} differs at {np.sum(a != b)} of {b.size} positions"
        if not exact:
            close = np.isclose(np.float64(a), np.float64(b), **tolerance, equal_nan=True)
            if not np.all(close):
                return f"output {i} differs at {np.sum(~close)} of {close.size} positions"
    return ""


def attempt(answered: Answered) -> tuple[str, str]:
    """The outcome, "pass", "refused" or "wrong", and its reason."""
    try:
        outputs = [y.numpy() for y in tf_ti.openvino.load(answered.path)(*answered.inputs)]
    except _REFUSALS as error:
        return "refused", str(error)
    reasons = [_difference(outputs, each, answered.tolerance) for each in answered.answers]
    return ("wrong", reasons[0]) if all(reasons) else ("pass", "")


def main(pattern: str = "") -> int:
    if importlib.util.find_spec("onnx") is None:
        sys.exit("onnx is not installed: run `make oracles`")
    outcomes = Counter({"pass": 0, "refused": 0, "wrong": 0})
    with tempfile.TemporaryDirectory() as folder:
        for test in tests(pattern):
            answered = answer(test, pathlib.Path(folder))
            if answered is None:
                continue
            outcome, reason = attempt(answered)
            outcomes[outcome] += 1
            if outcome != "pass":
                print(f"{test.name}: {outcome}: {reason}", flush=True)
    print(", ".join(f"{outcome} {count:,}" for outcome, count in outcomes.items()))
    return 1 if outcomes["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
