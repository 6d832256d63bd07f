"""Products of slices and states, concatenated, by one matrix: each becomes two products.

The product of the slices is before the loop then, and the loop keeps that of the states.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.passes import batching as _batching
from tf_ti.loops.passes.analysis import BEFORE, CORE, INVARIANT, Analysis, size_of
from tf_ti.loops.passes.step import Step


def split(analysis: Analysis) -> Step | None:
    """Splits such products of a body, if there are any."""
    analysis = analysis.keeping_custom_gradients()
    loop = analysis.loop
    splits: dict[tf.Operation, Callable[[list[Any]], list[tf.Tensor]]] = {}
    for op in analysis.uses.operations:
        if op.type == "MatMul" and op not in analysis.after and analysis.levels[op] == CORE:
            found = (_split_product(analysis, op, side) for side in (0, 1))
            made = next((split for split in found if split is not None), None)
            if made is not None:
                splits[op] = made
    if not splits:
        return None
    return Step(loop.replacing(splits))


def _split_product(
    analysis: Analysis, op: tf.Operation, side: int
) -> Callable[[list[Any]], list[tf.Tensor]] | None:
    """Adds the sum that takes the place of a product, if one of its factors is joined."""
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

    def add(factors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Adds the sum to a copy of the body, which has copies of both factors."""
        own, matrix = factors[side].op.inputs[:-1], factors[1 - side]
        dtype = matrix.dtype

        def multiplied(wanted: bool) -> tf.Tensor:
            chosen = [k for k, is_so in enumerate(is_before) if is_so == wanted]
            given = [
                _concat([own[k] for k in chosen], contracted),
                _concat([pieces[k] for k in chosen], rows),
            ]
            return _tf.repeat_operation(op, given if side == 0 else given[::-1])[0]

        with _tf.stop_recording():
            pieces = _tf.add_operation(
                "SplitV",
                [matrix, tf.constant(widths), tf.constant(rows)],
                [dtype] * len(widths),
                T=dtype,
                Tlen=tf.int32,
                num_split=len(widths),
            )
            terms = [multiplied(True), multiplied(False)]
            return _tf.add_operation("AddV2", terms, [dtype], T=dtype)

    return add


def _concat(tensors: list[tf.Tensor], axis: int) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis)
