"""Vectorisation of the recurrent ops: for `tf.vectorized_map`, `jacobian` and `batch_jacobian`.

Lanes that share their weights become one batch. Gradients with respect to weights are sums over a
batch, which would mix lanes: they come from the loop of `unfused.py`, vectorised by its own rules.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.recurrent import ops

_WEIGHTS = ("w", "r", "b")
_BY_STEP = ("x", "mask", "y", "grad_y")


class _Lanes:
    """The inputs of either op. Some are stacked: their first axis is that of the lanes."""

    def __init__(self, pfor_input: Any, names: dict[str, str | None]):
        self.op, self._pfor = pfor_input.op, pfor_input.pfor
        counts = {n: self.op.get_attr(count) if count else 1 for n, count in names.items()}
        labels = [name for name, count in counts.items() for _ in range(count)]
        self._inputs = list(zip(labels, pfor_input.inputs, strict=True))
        self.share_weights = not any(
            given.is_stacked for name, given in self._inputs if name in _WEIGHTS
        )

    def joined(self) -> list[tf.Tensor]:
        """The inputs, with the lanes one after the other in the batch."""
        return [
            given.t
            if name in _WEIGHTS
            else _joined(_tf.stacked(self._pfor, given), self._batch_axis(name))
            for name, given in self._inputs
        ]

    def apart(self, tensor: tf.Tensor, name: str) -> Any:
        """Splits the batch of an output into lanes again. `name` is an input of its layout."""
        axis, count = self._batch_axis(name), self._pfor.loop_len_vector
        shape = tf.shape(tensor)
        batch = shape[axis : axis + 1] // tf.maximum(count, 1)
        shape = tf.concat([shape[:axis], count, batch, shape[axis + 1 :]], 0)
        tensor = tf.reshape(tensor, shape)
        return _tf.wrap(_swapped(tensor) if axis else tensor, True)

    def map(self, function: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]) -> list[Any]:
        """Applies a function of an op's inputs to each lane."""
        stacked = {str(k): given.t for k, (_, given) in enumerate(self._inputs) if given.is_stacked}

        def of_lane(lane: dict[str, tf.Tensor]) -> list[tf.Tensor]:
            return function(
                [lane.get(str(k), given.t) for k, (_, given) in enumerate(self._inputs)]
            )

        return [_tf.wrap(result, True) for result in tf.vectorized_map(of_lane, stacked)]

    def _batch_axis(self, name: str) -> int:
        return int(name == "saved" or (name in _BY_STEP and self.op.get_attr("time_major")))


def _joined(tensor: tf.Tensor, axis: int) -> tf.Tensor:
    tensor = _swapped(tensor) if axis else tensor
    shape = tf.shape(tensor)
    batch = shape[axis : axis + 1] * shape[axis + 1 : axis + 2]
    return tf.reshape(tensor, tf.concat([shape[:axis], batch, shape[axis + 2 :]], 0))


def _swapped(tensor: tf.Tensor) -> tf.Tensor:
    """Exchanges the first two axes, lanes and time."""
    return tf.transpose(tensor, tf.concat([[1, 0], tf.range(2, tf.rank(tensor))], 0))


@_tf.register_pfor(ops.OP)
@_tf.do_not_convert
def _sequence(pfor_input: Any) -> list[Any]:
    lanes = _Lanes(pfor_input, ops.INPUTS)
    if not lanes.share_weights:
        return _tf.convert_lane_by_lane(pfor_input, "the weights differ from lane to lane")
    outputs = ops.sequence_op(lanes.op, lanes.joined())
    num_states = 1 + lanes.op.get_attr("num_cells")
    names = ["y", *["h"] * num_states]
    names += ["saved"] * (len(outputs) - len(names))
    return [lanes.apart(output, name) for output, name in zip(outputs, names)]


@_tf.register_pfor(f"{ops.OP}Grad")
@_tf.do_not_convert
def _gradient(pfor_input: Any) -> list[Any]:
    lanes = _Lanes(pfor_input, ops.GRADIENT_INPUTS)
    num_states = 1 + lanes.op.get_attr("num_cells")

    def of_lane(flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        inputs = ops.Inputs(lanes.op, flat)
        return inputs.run_gradient([*inputs.differentiable, *flat[-1 - num_states :]])

    by_loop = lanes.map(of_lane)
    if not lanes.share_weights:
        return by_loop
    names = ["x", *["h"] * num_states]
    outputs = ops.gradient_op(lanes.op, lanes.joined())
    by_batch = [lanes.apart(output, name) for output, name in zip(outputs, names)]
    return [*by_batch, *by_loop[len(names) :]]
