"""Products of slices and states, concatenated, by one matrix: each becomes two products.

The product of the slices is before the loop then, and the loop keeps that of the states.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.passes import batching as _batching
from tf_ti.loops.passes.analysis import BEFORE, CORE, INVARIANT, Analysis, size_of
from tf_ti.loops.passes.step import Step
from tf_ti.loops.tracing import graphs as _graphs


def split(analysis: Analysis) -> Step | None:
    """Splits such products of a body, if there are any."""
    analysis = analysis.keeping_custom_gradients()
    graph = analysis.loop.body
    totals: dict[Any, tf.Tensor] = {}
    for op in analysis.uses.operations:
        if op.type == "MatMul" and op not in analysis.after and analysis.levels[op] == CORE:
            for side in (0, 1):
                total = _split_product(analysis, op, side)
                if total is not None:
                    totals.setdefault(op.outputs[0].ref(), total)
    if not totals:
        return None
    _graphs.replace(totals)
    graph.outputs = [totals.get(t.ref(), t) for t in graph.outputs]
    # The same body with other operations in it: another loop, so that it is analysed anew.
    return Step(dataclasses.replace(analysis.loop))


def _split_product(analysis: Analysis, op: tf.Operation, side: int) -> tf.Tensor | None:
    """The sum that its readers get in the place of a product, if one of its factors is joined."""
    joined, matrix = op.inputs[side], op.inputs[1 - side]
    transposed = op.get_attr("transpose_a"), op.get_attr("transpose_b")
    contracted = 1 - side if not transposed[side] else side
    if joined.op.type != "ConcatV2" or analysis.level(matrix) > INVARIANT:
        return None
    *parts, axis = joined.op.inputs
    axis = tf.get_static_value(axis)
    widths = [_tf.known_extent(p, contracted) if p.shape.rank == 2 else None for p in parts]
    if axis is None or int(axis) % 2 != contracted or None in widths:
        return None
    is_before = [analysis.level(p) <= BEFORE for p in parts]
    product = op.outputs[0]
    if all(is_before) or not any(is_before):
        return None
    if not analysis.agree(p for p, is_so in zip(parts, is_before) if is_so):
        return None
    if not _batching.is_plain(op) or size_of([product]) > analysis.uses.largest:
        return None
    # The matrix's axis that is contracted.
    rows = side if not transposed[1 - side] else 1 - side

    def multiplied(wanted: bool) -> tf.Tensor:
        chosen = [k for k, is_so in enumerate(is_before) if is_so == wanted]
        factors = [
            _concat([parts[k] for k in chosen], contracted),
            _concat([pieces[k] for k in chosen], rows),
        ]
        return _tf.repeat_operation(op, factors if side == 0 else factors[::-1])[0]

    graph, dtype = analysis.loop.body, matrix.dtype
    with graph.as_default(), _tf.stop_recording(), tf.device(op.device):
        pieces = _tf.add_operation(
            "SplitV",
            [matrix, tf.constant(widths), tf.constant(rows)],
            [dtype] * len(widths),
            T=dtype,
            Tlen=tf.int32,
            num_split=len(widths),
        )
        terms = [multiplied(True), multiplied(False)]
        (total,) = _tf.add_operation("AddV2", terms, [dtype], T=dtype)
    return total


def _concat(tensors: list[tf.Tensor], axis: int) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis)
