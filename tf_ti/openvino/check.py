"""Compares the outputs of a model here with those in OpenVINO."""

import dataclasses
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti.openvino.element_types import ELEMENT_TYPES, ElementType
from tf_ti.openvino.errors import IRError
from tf_ti.openvino.model import Shape
from tf_ti.openvino.module import IRModule, TensorInfo, load
from tf_ti.openvino.reader import read
from tf_ti.openvino.samples import random_inputs
from tf_ti.openvino.weights import Weights

# Relative and absolute. OpenVINO computes double precision in single.
_TOLERANCES = {
    "f64": (1e-3, 1e-4),
    "f32": (1e-3, 1e-4),
    "f16": (1e-2, 1e-2),
    "bf16": (4e-2, 4e-2),
    "f8e4m3": (0.25, 0.1),
    "f8e5m2": (0.5, 0.2),
}

_CALLS_WITH_STATES = 3
# Of unknown dimensions: the first of which all outputs have elements.
_EXTENTS = (2, 8, 32, 128)
# Without it, OpenVINO computes in bfloat16 where the processor can, and keeps states of attention
# in bytes.
_FULL_PRECISION = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a comparison.

    Attributes:
        seed: the seed of the random inputs; None for a new one.
        shapes: the shapes of inputs by their names, with None for any extent; the only input may
            be called None.
        rtol, atol: the tolerances; None for those of an output's dtype.
    """

    seed: int | None = None
    shapes: Mapping[str | None, Shape] = dataclasses.field(default_factory=dict)
    rtol: float | None = None
    atol: float | None = None


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference between two values of an output; `problem` is empty if they agree."""

    name: str
    element_type: str
    shape: tuple[int, ...]
    absolute: float
    relative: float
    problem: str


@dataclasses.dataclass(frozen=True)
class Checked:
    """The result of a comparison; unknown dimensions have this extent, or 2 if it is None."""

    path: str
    seed: int
    differences: tuple[Difference, ...]
    extent: int | None

    @property
    def agrees(self) -> bool:
        return not any(difference.problem for difference in self.differences)


def check(path: str, weights: str | None, settings: Settings) -> Checked:
    """Runs a model here and in OpenVINO, on the same random inputs; with states, several times.

    Raises:
        IRError: the model cannot be read or run here, or there; or OpenVINO is not installed.
    """
    openvino = _openvino()
    module = load(path, weights)
    seed = secrets.randbits(32) if settings.seed is None else settings.seed
    file = Weights(weights or os.path.splitext(path)[0] + ".bin")
    graph = read(path)

    def drawn(extent: int) -> list[list[np.ndarray]]:
        rng = np.random.default_rng(seed)
        count = _CALLS_WITH_STATES if module.states else 1
        return [random_inputs(graph, file, settings.shapes, rng, extent) for _ in range(count)]

    extent, calls, ours = _first_that_tells(path, module, drawn)
    theirs = _run(openvino, path, weights, calls, module.inputs)
    differences: list[Difference] = []
    for number, (some, others) in enumerate(zip(ours, theirs), 1):
        if graph.version == 10:
            others = [_as_in_file(info, *output) for info, output in zip(module.outputs, others)]
        where = f" in call {number}" if len(calls) > 1 else ""
        differences += [
            _difference(info, a, b, kind, settings, where)
            for info, a, (b, kind) in zip(module.outputs, some, others)
        ]
    return Checked(path, seed, tuple(differences), None if extent == _EXTENTS[0] else extent)


def _first_that_tells(
    path: str, module: IRModule, drawn: Callable[[int], list[list[np.ndarray]]]
) -> tuple[int, list[list[np.ndarray]], list[list[np.ndarray]]]:
    """Runs a model for larger and larger unknown extents, until it takes them and gives elements.

    Returns:
        The extent, the inputs and the outputs: of the first extent that the model takes, if none
        gives elements.

    Raises:
        IRError: the model takes no extent. The error is the first one.
    """
    found, errors = None, []
    shapes: list[tuple[int, ...]] | None = None
    for extent in _EXTENTS:
        try:
            calls = drawn(extent)
            before, shapes = shapes, [x.shape for x in calls[0]]
            if shapes == before:  # no extent is unknown
                break
            module.reset_state()
            results = _run_here(path, module, calls)
        except IRError as error:
            if found is not None:
                break
            errors.append(error)
            continue
        if found is None or not _has_empty(results):
            found = extent, calls, results
        if not _has_empty(results):
            break
    if found is None:
        raise errors[0]
    return found


def _run_here(
    path: str, module: IRModule, calls: Sequence[Sequence[np.ndarray]]
) -> list[list[np.ndarray]]:
    try:
        return [[output.numpy() for output in module(*inputs)] for inputs in calls]
    except (tf.errors.OpError, MemoryError, TypeError, ValueError) as error:
        reason = f"{_described(calls[0])}: {_without_stack(str(error))}"
        raise IRError(f"{path}: cannot be run on {reason}") from error


def _has_empty(results: Sequence[Sequence[np.ndarray]]) -> bool:
    return any(not output.size for outputs in results for output in outputs)


def table(checked: Checked) -> str:
    rows = [("output", "type", "shape", "max abs error", "max rel error", "result")]
    for each in checked.differences:
        shape = "[" + ",".join(map(str, each.shape)) + "]"
        errors = f"{each.absolute:.3g}", f"{each.relative:.3g}"
        name = repr(each.name)[1:-1]
        result = each.problem or ("no elements" if 0 in each.shape else "ok")
        rows.append((name, each.element_type, shape, *errors, result))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)) for row in rows]
    return "\n".join([*(line.rstrip() for line in lines), summary(checked)])


def summary(checked: Checked) -> str:
    problems = [f"{each.name!r} {each.problem}" for each in checked.differences if each.problem]
    most = max((each.absolute for each in checked.differences), default=0.0)
    empty = dict.fromkeys(repr(each.name) for each in checked.differences if 0 in each.shape)
    said = "; ".join(problems) or f"ok, largest error {most:.3g}"
    if empty:
        said += f"; nothing is compared of {', '.join(empty)}, without elements (see --shape)"
    if checked.extent is not None:
        said += f"; unknown dimensions are {checked.extent}: {_EXTENTS[0]} is too small"
    return f"{checked.path}: seed {checked.seed}: {said}"


def _openvino() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise IRError(f"--check needs OpenVINO: run `pip install openvino` ({error})") from error
    return openvino


def _run(
    openvino: Any,
    path: str,
    weights: str | None,
    calls: Sequence[Sequence[np.ndarray]],
    infos: Sequence[TensorInfo],
) -> list[list[tuple[np.ndarray, ElementType]]]:
    """Runs the model in OpenVINO, in full precision: calls of one request."""
    try:
        core = openvino.Core()
        model = core.read_model(path, weights) if weights else core.read_model(path)
        request = core.compile_model(model, "CPU", _FULL_PRECISION).create_infer_request()
        results = []
        for inputs in calls:
            tensors = [
                _tensor(openvino, array, port.get_element_type(), info)
                for array, port, info in zip(inputs, model.inputs, infos)
            ]
            request.infer(tensors)
            outputs = [request.get_output_tensor(i) for i in range(len(model.outputs))]
            results.append([_array(tensor) for tensor in outputs])
        return results
    except RuntimeError as error:
        reason = f"{_described(calls[0])}: {str(error).strip()}"
        raise IRError(f"{path}: OpenVINO cannot run it on {reason}") from error


def _described(inputs: Sequence[np.ndarray]) -> str:
    shapes = ", ".join(str(list(array.shape)) for array in inputs)
    return f"inputs of shapes {shapes} (--shape gives others)"


def _without_stack(message: str) -> str:
    """An error message of TensorFlow, without the Python stack of the operation."""
    stack = re.compile(r"^(Graph execution error:|Detected at node .*| +File .*| *)$")
    return "\n".join(line for line in message.splitlines() if not stack.match(line))


def _tensor(openvino: Any, array: np.ndarray, element_type: Any, info: TensorInfo) -> Any:
    tensor = openvino.Tensor(element_type, array.shape)
    if tensor.data.dtype == np.float32:  # in version 10 also where the file has halves
        array = array.astype(np.float32)
    if tensor.data.dtype.itemsize != array.dtype.itemsize or tensor.data.size != array.size:
        raise IRError(f"input {info.name!r} is {element_type}: --check does not know these")
    tensor.data[...] = array.view(tensor.data.dtype)
    return tensor


def _as_in_file(
    info: TensorInfo, theirs: np.ndarray, kind: ElementType
) -> tuple[np.ndarray, ElementType]:
    """An output in its type in the file: of version 10 OpenVINO gives float32 and int32 alone."""
    if info.dtype != kind.dtype and kind.name in ("f32", "i32"):
        kind = next(k for k in ELEMENT_TYPES.values() if info.dtype == k.dtype)
        theirs = theirs.astype(kind.dtype)
    return theirs, kind


def _array(tensor: Any) -> tuple[np.ndarray, ElementType]:
    element_type = ELEMENT_TYPES[tensor.element_type.get_type_name()]
    array = np.array(tensor.data)
    if array.dtype.itemsize == element_type.dtype.itemsize:
        array = array.view(element_type.dtype)
    return array, element_type


def _difference(
    info: TensorInfo,
    ours: np.ndarray,
    theirs: np.ndarray,
    kind: ElementType,
    settings: Settings,
    where: str,
) -> Difference:
    absolute = relative = 0.0
    if ours.dtype != kind.dtype:
        problem = f"OpenVINO gives {kind.name}"
    elif ours.shape != theirs.shape:
        problem = f"OpenVINO gives shape {list(theirs.shape)}"
    else:
        absolute, relative, problem = _compare(ours, theirs, *_tolerance(kind, settings))
    kept = ours.dtype, 8 * ours.dtype.itemsize
    name = next((k for k, v in ELEMENT_TYPES.items() if (v.dtype, v.bits) == kept), "?")
    return Difference(info.name + where, name, ours.shape, absolute, relative, problem)


def _tolerance(kind: ElementType, settings: Settings) -> tuple[float, float]:
    rtol, atol = _TOLERANCES.get(kind.name, (0.0, 0.0))
    return (
        rtol if settings.rtol is None else settings.rtol,
        atol if settings.atol is None else settings.atol,
    )


def _compare(
    ours: np.ndarray, theirs: np.ndarray, rtol: float, atol: float
) -> tuple[float, float, str]:
    """The largest absolute and relative errors, and the problem, if any."""
    exact = ours == theirs  # infinities, and integers that float64 cannot tell apart
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    nan = np.isnan(a)
    if not np.array_equal(nan, np.isnan(b)):
        return np.inf, np.inf, "has NaN at other positions"
    with np.errstate(all="ignore"):
        error = np.where(exact | nan, 0.0, np.abs(a - b))
        # An infinity on one side is an infinite error.
        share = np.where(error > 0, error / np.abs(b), 0.0)
        share[np.isnan(share)] = np.inf
        is_close = exact | nan
        if atol or rtol:  # otherwise integers that float64 rounds might look alike
            is_close |= error <= atol + np.where(np.isinf(b), 0.0, rtol * np.abs(b))
    wrong = int(np.sum(~is_close))
    problem = f"differs at {wrong:,} of {a.size:,} positions" if wrong else ""
    return float(error.max(initial=0)), float(share.max(initial=0)), problem
