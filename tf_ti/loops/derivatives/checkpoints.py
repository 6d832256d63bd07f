"""Gradients of a loop that recorded only every k-th state.

Such a loop is differentiated as one over segments of k iterations, whose body is a loop over one
segment. The reverse loop then runs the inner loop again, from the segment's
recorded state, and records the segment's states; the last segment may be short.
"""

import dataclasses
from collections.abc import Collection, Sequence

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import lower as _lower, slices as _slices, spec as _spec
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing import (
    custom_gradients as _custom_gradients,
    graphs as _graphs,
    recorded as _recorded,
)
from tf_ti.loops.tracing.part import Part


@dataclasses.dataclass(frozen=True)
class Segments:
    """The loop over segments.

    Attributes:
        spec: the loop; its first inputs stand for those of the loop that was cut, in that order.
        graph: the body: a loop over one segment.
        tensors: the inputs.
        positions: for each output of `spec` the output of the loop that was cut.
        pieces: by input, how its pieces were taken, where the loop over segments gets them joined.
    """

    spec: _spec.LoopSpec
    graph: _tf.FuncGraph
    tensors: list[tf.Tensor]
    positions: list[int]
    pieces: dict[int, _spec.Input]


def cut(
    spec: _spec.LoopSpec,
    graph: _tf.FuncGraph,
    tensors: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    num_iterations: tf.Tensor | None,
    every: int,
    differentiated: Collection[int],
) -> Segments:
    """Cuts a loop into segments of `every` iterations.

    Args:
        spec, graph, tensors, outputs: the loop.
        num_iterations: their number; None if the inputs tell it.
        every: the number of a segment's iterations.
        differentiated: the positions of the outputs that have a gradient.
    """
    outer_inputs, inner_inputs, parts = [], [], []
    tensors = list(tensors)
    pieces = {}
    for i, given in enumerate(spec.inputs):
        if given.mode == "iterator":
            pieces[i] = given
            tensors[i] = _slices.first_elements(
                tensors[i], given.axis, num_iterations, from_end=given.stride < 0
            )
            given = dataclasses.replace(given, mode="index")
        elif given.mode != "value" and not _slices.tiles(given):
            pieces[i] = given
            tensors[i] = _slices.take(given, tensors[i])
            given = dataclasses.replace(
                given, start=0, end=-1, stride=given.part_size, part_size=given.part_size
            )
        outer_input, inner_input, part = _cut_input(given, graph.inputs[i], every)
        outer_inputs.append(outer_input)
        inner_inputs.append(inner_input)
        parts.append(part)

    kept = [
        (position, output)
        for position, output in enumerate(spec.outputs)
        if output.mode not in ("count", "sequence")
        or (output.mode == "sequence" and output.source >= 0 and position in differentiated)
    ]
    sources = sorted({output.source for _, output in kept} | {edge[0] for edge in spec.back_edges})
    # The inner loop gets the values that the body drew or read in each iteration.
    groups = [[t] for t in graph.inputs]
    unrepeatable = _graphs.find_unrepeatable(graph)
    given_by: dict[tf.Operation, list[tuple[int, _spec.Output]]] = {}
    for position, output in spec.recorded_results():
        op = graph.outputs[output.source].op
        is_given = op in unrepeatable or op.type in _tf.READS  # others may write the variable since
        if is_given or _custom_gradients.linearity(op) is False:
            given_by.setdefault(op, []).append((position, output))
    for op, found in given_by.items():
        values = [graph.outputs[output.source] for _, output in found]
        has_gradient = op not in unrepeatable or op.type in _tf.READS
        if not has_gradient and any(map(_has_gradient, values)):
            if any(map(_has_gradient, op.inputs)):
                raise ValueError(
                    f"checkpoint_every does not support {op.type} {op.name!r} in the body: it has "
                    "effects, and a gradient of its own; leave checkpoint_every out"
                )
        groups += [[given] for given in _recorded.give(graph, values, has_gradient)]
        for (position, output), value in zip(found, values):
            sequence = _spec.Input(output.label, value.shape, "sequence", part_size=0)
            inner_inputs.append(sequence)
            outer_inputs.append(
                dataclasses.replace(sequence, shape=tf.TensorShape([]), part_size=every)
            )
            tensors.append(outputs[position])
            parts.append(tf.TensorSpec([], tf.variant))
    is_counted = any(i.is_counted for i in inner_inputs)
    if not is_counted:
        tensors.append(tf.range(num_iterations))
        outer_inputs.append(
            _spec.Input(
                "num_iterations", tf.TensorShape([None]), "segment", stride=every, part_size=every
            )
        )
        parts.append(tf.TensorSpec([None], tf.int64))

    body = _graphs.extract(
        "segment", graph, groups, [graph.outputs[r] for r in sources], follow_controls=False
    )
    # Pieces whose extent is not known stay apart: their gradients come apart too. The values of a
    # stack come first, before the zeros of its length.
    kept = [
        (
            position,
            _spec.as_history(output)
            if spec.is_open(output)
            else dataclasses.replace(output, length=-1),
        )
        for position, output in kept
    ]
    inner_outputs = [
        dataclasses.replace(output, source=sources.index(output.source)) for _, output in kept
    ]
    lasts: dict[int, int] = {}
    for i, (_, output) in enumerate(kept):
        if output.mode == "last":
            lasts.setdefault(output.source, i)
    for r, _ in spec.back_edges:
        if r not in lasts:
            lasts[r] = len(inner_outputs)
            state = _spec.Output("a state", spec.result_types[r], "last", sources.index(r))
            inner_outputs.append(state)
    inner = _spec.LoopSpec(
        tuple(inner_inputs),
        tuple(inner_outputs),
        tuple((sources.index(r), p) for r, p in spec.back_edges),
        tuple(t.dtype for t in body.outputs),
        tuple(t.shape for t in body.outputs),
        fuse=spec.fuse,
        parallel_iterations=1,  # several at once take memory
    )
    made = _tf.FuncGraph(f"{body.name}s")
    made.tf_ti_copies = {}
    with made.as_default():
        for part in parts:
            made.inputs.append(tf.compat.v1.placeholder(part.dtype, part.shape))
        for tensor, placeholder in zip(tensors, made.inputs):
            if placeholder.dtype in (tf.resource, tf.variant):
                _tf.copy_handle_data(tensor, placeholder)
        made.outputs = _lower.run_loop(
            TracedLoop(
                inner,
                Part.whole(body),
                made.inputs[: len(inner_inputs)],
                None if is_counted else tf.size(made.inputs[-1], tf.int64),
            )
        )

    outer_outputs = []
    for i, (_, output) in enumerate(kept):
        source = lasts[output.source] if output.mode == "last" else i
        outer_outputs.append(_cut_output(output, spec, made.outputs[i].dtype, source, every))
    positions = [position for position, _ in kept]
    for position, output in enumerate(spec.outputs):
        if output.mode == "sequence" and output.source < 0:
            outer_outputs.append(dataclasses.replace(output, stride=1))
            positions.append(position)
    outer = _spec.LoopSpec(
        tuple(outer_inputs),
        tuple(outer_outputs),
        tuple((lasts[r], p) for r, p in spec.back_edges),
        tuple(t.dtype for t in made.outputs),
        tuple(t.shape for t in made.outputs),
        fuse=spec.fuse,
        parallel_iterations=1,  # several at once take memory
    )
    return Segments(outer, made, tensors, positions, pieces)


def _has_gradient(tensor: tf.Tensor) -> bool:
    """True if a gradient may reach a tensor, or the contents of a variant."""
    return _tf.is_trainable(tensor.dtype) or tensor.dtype == tf.variant


def _cut_input(
    given: _spec.Input, parameter: tf.Tensor, every: int
) -> tuple[_spec.Input, _spec.Input, tf.TensorSpec]:
    """The outer loop's input, the inner loop's, and the type of the latter."""
    if given.mode == "value":
        return given, given, tf.TensorSpec(parameter.shape, parameter.dtype)
    shape = parameter.shape
    if shape.rank is not None:
        dims = shape.as_list()
        if given.mode == "index":
            dims.insert(given.axis if given.axis >= 0 else given.axis + len(dims) + 1, None)
        else:
            dims[given.axis] = None
        shape = tf.TensorShape(dims)
    outer = dataclasses.replace(
        given,
        shape=shape,
        mode="segment",
        stride=given.stride * every,
        part_size=given.part_size * every,
    )
    start, end = (0, -1) if given.stride > 0 else (-1, 0)
    inner = dataclasses.replace(given, start=start, end=end)
    return outer, inner, tf.TensorSpec(shape, parameter.dtype)


def _cut_output(
    output: _spec.Output, spec: _spec.LoopSpec, dtype: tf.DType, source: int, every: int
) -> _spec.Output:
    mode, part_size = output.mode, 0
    if mode == "sequence":
        part_size = every
    if mode == "stack":
        mode, part_size = "concat", every
    elif mode == "concat":
        part_size = every * (spec.concat_extent(output) or output.part_size)
    return dataclasses.replace(output, dtype=dtype, mode=mode, source=source, part_size=part_size)
