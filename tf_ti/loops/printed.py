"""A loop as text: sources of parameters, operations of an iteration, and outputs.

loop for 5 iterations:
  0: float32[4]  init, then result 0
  1: float32[4]  xs along axis 0
  2: float32[]  capture 0
  a = Mul(1, 2)
  b = AddV2(0, a)
  results: b, a
outputs:
  last of result 0
  stack of result 1 along axis 0
"""

import itertools
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.spec import Input, LoopSpec, Output
from tf_ti.loops.tracing import graphs as _graphs

# The most elements of a constant that are printed.
_MOST_ELEMENTS = 8


def printed(
    spec: LoopSpec,
    body: _tf.FuncGraph,
    condition: _tf.FuncGraph | None,
    num_iterations: int | tf.Tensor | None,
    with_origins: bool,
) -> str:
    """The text of a loop. The first four arguments are attributes of a `TracedLoop`."""
    lines = [_head(spec, condition is not None, num_iterations)]
    if condition is not None:
        names = {t.ref(): str(i) for t, i in zip(condition.inputs, spec.condition_inputs or ())}
        lines += ["  condition:", *_lines(condition, names, "    ", with_origins)]
    following: dict[int, list[int]] = {}
    for result, parameter in spec.back_edges:
        following.setdefault(parameter, []).append(result)
    for i, parameter in enumerate(body.inputs):
        if i < len(spec.inputs):
            origin = _origin(spec.inputs[i])
        else:
            origin = f"result {i - len(spec.inputs) + 1} of the condition"
        then = "".join(f", then result {result}" for result in following.get(i, ()))
        lines.append(f"  {i}: {_type(parameter)}  {origin}{then}")
    names = {t.ref(): str(i) for i, t in enumerate(body.inputs)}
    lines += [*_lines(body, names, "  ", with_origins), "outputs:"]
    lines += [f"  {_output(output)}" for output in spec.outputs]
    return "\n".join(lines)


def _head(spec: LoopSpec, has_condition: bool, num_iterations: int | tf.Tensor | None) -> str:
    count: Any = num_iterations
    if isinstance(num_iterations, tf.Tensor):
        count = _tf.static_value(num_iterations)
        count = num_iterations.op.name if count is None else count
    limit = "" if count is None else f" for {count} iterations"
    return f"{'while' if has_condition else 'loop'}{limit}{' in reverse' if spec.reverse else ''}:"


def _lines(
    graph: _tf.FuncGraph, names: dict[Any, str], indent: str, with_origins: bool
) -> Iterator[str]:
    """The lines of a graph's operations and results, in the order in which they were made."""
    needed = set(_graphs.needed_operations(graph.inputs, graph.outputs, graph.control_outputs))
    own = dict(zip([op for op in graph.get_operations() if op in needed], _letters()))
    for op, name in own.items():
        many = len(op.outputs) > 1
        names.update((t.ref(), f"{name}{k if many else ''}") for k, t in enumerate(op.outputs))
    for op, name in own.items():
        after = ", ".join(sorted(own[c] for c in op.control_inputs if c in own))
        origin = ", ".join(filter(None, (op.name, _tf.place_of(op)))) if with_origins else ""
        yield (
            f"{indent}{name} = {_call(op, names)}{after and f' after {after}'}"
            f"{origin and f'  # {origin}'}"
        )
    yield f"{indent}results: {_listed(graph.outputs, names)}"
    if graph.control_outputs:
        yield f"{indent}effects: {', '.join(sorted(own[op] for op in graph.control_outputs))}"


def _letters() -> Iterator[str]:
    """The names a to z, aa to zz, and so on."""
    for length in itertools.count(1):
        yield from map("".join, itertools.product(string.ascii_lowercase, repeat=length))


def _listed(tensors: Sequence[tf.Tensor], names: Mapping[Any, str]) -> str:
    return ", ".join(names[t.ref()] for t in tensors)


def _call(op: tf.Operation, names: Mapping[Any, str]) -> str:
    known = tf.get_static_value(op.outputs[0]) if op.type == "Const" else None
    if known is None:
        return f"{op.type}({_listed(op.inputs, names)})"
    return f"Const({known.tolist() if known.size <= _MOST_ELEMENTS else _type(op.outputs[0])})"


def _type(tensor: tf.Tensor) -> str:
    extents = "..."
    if tensor.shape.rank is not None:
        extents = ", ".join("?" if d is None else str(d) for d in tensor.shape.as_list())
    return f"{tensor.dtype.name}[{extents}]"


def _origin(given: Input) -> str:
    """What a parameter gets."""
    if given.mode == "value":
        return given.label
    if not given.is_sliced:
        return f"{given.mode} of {given.label}"
    kind = "" if given.mode == "index" else f"{given.mode} of "
    part = f" in parts of {given.part_size}" if given.part_size != 1 else ""
    ends = (given.start, given.end, given.stride)
    order = "" if ends == (0, -1, 1) else " from {} to {} by {}".format(*ends)
    return f"{kind}{given.label} along axis {given.axis}{part}{order}"


def _output(output: Output) -> str:
    if output.mode == "count":
        return "count of the iterations"
    source = f"result {output.source}" if output.source >= 0 else f"parameter {~output.source}"
    axis = f" along axis {output.axis}" if output.mode in ("stack", "concat") else ""
    stride = f" by {output.stride}" if output.stride != 1 else ""
    length = f" with length {output.length}" if output.length >= 0 else ""
    return f"{output.mode} of {source}{axis}{stride}{length}"
