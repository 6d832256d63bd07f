"""The vectorisation of graphs, as tf.vectorized_map and jacobians do it ("pfor")."""

from typing import Any

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor as pfor_lib

from tf_ti._tf.graphs import FuncGraph

# Raised by a converter for an op that is to run lane by lane.
NotVectorized = pfor_lib.ConversionNotImplementedError
wrap = pfor_lib.wrap


def make_pfor(outer: pfor_lib.PFor, graph: FuncGraph, lanes: tf.Tensor | int) -> pfor_lib.PFor:
    """Vectorises what a function computes, for a function that `outer` comes across.

    Args:
        outer: what vectorises the caller.
        graph: the function's.
        lanes: the lanes that run it, or how many there are.
    """
    is_known = isinstance(lanes, int)
    return pfor_lib.PFor(
        outer.loop_var,
        lanes if is_known else tf.size(lanes),
        graph.get_operations(),
        outer.fallback_to_while_loop,
        None if is_known else lanes,
        outer.all_indices_partitioned,
        outer.pfor_config,
        outer._warn,
    )


def convert_lane_by_lane(pfor_input: Any, cause: Exception | str) -> Any:
    """Runs an op in a tf.while_loop, where it cannot be vectorised."""
    pfor = pfor_input.pfor
    if not pfor.fallback_to_while_loop:
        raise ValueError(f"{pfor_input.op_type} {pfor_input.op.name!r} is not vectorised: {cause}")
    return pfor_lib._fallback_converter(pfor_input, str(cause), pfor._warn)


def converted(pfor: pfor_lib.PFor, op_or_tensor: Any) -> Any:
    """The vectorised counterpart of an operation, or of a tensor, wrapped."""
    return pfor._convert_helper(op_or_tensor)


def set_converted(pfor: pfor_lib.PFor, tensor: tf.Tensor, wrapped: Any) -> None:
    """Says what the vectorised counterpart of a tensor is, of a parameter for example."""
    pfor._add_conversion(tensor, wrapped)


def stacked(pfor: pfor_lib.PFor, wrapped: Any) -> tf.Tensor:
    """The tensor with the lanes as its first axis, tiled where it is the same in all of them."""
    return pfor._unwrap_or_tile(wrapped)
