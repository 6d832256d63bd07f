"""A loop that a user asked for: traced and checked once, run many times."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import body as _body, spec as _spec


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """A traced body and the loop around it.

    Attributes:
        body: the traced body.
        spec: the loop; its last inputs are the body's captures.
        count: the number of iterations, where the port map alone tells it.
    """

    body: _body.Body
    spec: _spec.LoopSpec
    count: int | None = None
    _traced: dict = dataclasses.field(default_factory=dict)

    @classmethod
    def make(
        cls,
        body: _body.Body,
        inputs: Sequence[_spec.Input],
        outputs: Sequence[_spec.Output],
        back_edges: Sequence[tuple[int, int]],
        count: int | None = None,
        limit_label: str = "num_iterations",
    ) -> "Plan":
        inputs = list(inputs)
        for i, shape in enumerate(body.parameter_shapes):
            if i < len(inputs):
                # The body may have been built for less, or for more, than the input's shape tells.
                inputs[i] = dataclasses.replace(inputs[i], shape=shape)
            else:
                inputs.append(_spec.Input(f"capture {i - len(inputs)}", shape))
        spec = _spec.LoopSpec(
            tuple(inputs),
            tuple(outputs),
            tuple(back_edges),
            body.result_types,
            body.result_shapes,
            limit_label=limit_label,
        )
        return cls(body, spec, count)

    def run(
        self,
        tensors: Sequence[tf.Tensor],
        num_iterations: int | tf.Tensor | None,
        checkpoint_every: int | None,
        name: str | None,
    ) -> list[tf.Tensor]:
        if num_iterations is None:
            num_iterations = self.count
        if not tf.executing_eagerly():
            return self._add_to_graph(tensors, num_iterations, checkpoint_every, name)
        if not _tf.is_recording():
            tensors = [*tensors, *self.body.captured_tensors()]
            return _spec.run_loop(
                self.spec, self.body.function, tensors, num_iterations, self.body.stateful, name
            )
        # What the gradient needs is known once it is taken: a graph finds it out, and computes
        # nothing else.
        key = (num_iterations is not None, checkpoint_every, name)
        if key not in self._traced:
            self._traced[key] = self._trace(tensors, *key)
        if num_iterations is not None:
            tensors = [*tensors, tf.cast(num_iterations, tf.int64)]
        return self._traced[key](*tensors)

    def _trace(self, tensors, is_counted, checkpoint_every, name):
        def loop(*arguments):
            count = arguments[-1] if is_counted else None
            return self._add_to_graph(arguments[: len(tensors)], count, checkpoint_every, name)

        specs = [tf.TensorSpec(t.shape, t.dtype) for t in tensors]
        if is_counted:
            specs.append(tf.TensorSpec([], tf.int64))
        return tf.function(loop, autograph=False).get_concrete_function(*specs)

    def _add_to_graph(self, tensors, num_iterations, checkpoint_every, name):
        tensors = [*tensors, *self.body.captured_tensors()]
        spec = self.spec.recording(checkpoint_every or 1, self.body.recorded)
        outputs = _spec.run_loop(
            spec, self.body.function, tensors, num_iterations, self.body.stateful, name
        )
        return outputs[: len(self.spec.outputs)]


def cached_in_eager_mode(make: Callable[..., Plan]) -> Callable[..., Plan]:
    """Called eagerly again for the same callable and the same specs, nothing is traced again.

    In a graph, or where a distribution strategy gives every replica variables of its own, what a
    body captures belongs to one trace, so there nothing is kept.
    """
    cached = functools.lru_cache(maxsize=256)(make)

    @functools.wraps(make)
    def call(*key: Any) -> Plan:
        if not tf.executing_eagerly() or tf.distribute.has_strategy():
            return make(*key)
        try:
            return cached(*key)
        except TypeError as error:
            if "unhashable" not in str(error):
                raise
            return make(*key)

    return call


def check_num_iterations(num_iterations, label: str = "num_iterations") -> None:
    if num_iterations is None:
        return
    if isinstance(num_iterations, tf.Tensor):
        if not num_iterations.dtype.is_integer:
            raise TypeError(f"{label} must be an integer, got {num_iterations.dtype.name}")
        if num_iterations.shape.rank not in (None, 0):
            raise ValueError(f"{label} must be a scalar, got shape {num_iterations.shape}")
    elif isinstance(num_iterations, bool) or not hasattr(num_iterations, "__index__"):
        raise TypeError(f"{label} must be an integer, got {num_iterations!r}")
    elif not 0 <= int(num_iterations) < 2**63:
        raise ValueError(f"{label} must not be negative, got {num_iterations}")


def check_checkpoint_every(checkpoint_every) -> None:
    if checkpoint_every is None:
        return
    if isinstance(checkpoint_every, bool) or not hasattr(checkpoint_every, "__index__"):
        raise TypeError(f"checkpoint_every must be an int or None, got {checkpoint_every!r}")
    if checkpoint_every < 1:
        raise ValueError(f"checkpoint_every must be at least 1, got {checkpoint_every}")


def check_back_edge(label: str, spec: tf.TensorSpec, dtype: tf.DType, shape, source: str) -> None:
    """A state's next value must fit the body's parameter."""
    if dtype != spec.dtype:
        raise TypeError(
            f"{label} is of type {spec.dtype.name}, but {source}, which feeds it in the next "
            f"iteration, of type {dtype.name}"
        )
    if not spec.shape.is_compatible_with(shape):
        raise ValueError(
            f"{label} has shape {spec.shape}, but {source}, which feeds it in the next iteration, "
            f"has shape {shape}; a body built for a less specific shape (a tf.function with an "
            "input_signature, say) allows a state to change its shape"
        )
