"""Custom gradients of operations that run for all iterations at once.

The values stay as they are. The gradient is still the user's function of one iteration's values, so
it is asked for in a loop, of which fission does as much at once as it knows.
"""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import passes as _passes, spec as _spec
from tf_ti.loops.passes import batching as _batching
from tf_ti.loops.passes.step import Fuse
from tf_ti.loops.traced import TracedLoop, spec_around
from tf_ti.loops.tracing import body as _body, custom_gradients as _custom_gradients


def _add(
    op: tf.Operation, tensors: _batching.Tensors, is_stacked: Sequence[bool]
) -> list[tf.Tensor | None]:
    results = [k for k, t in enumerate(op.outputs) if _batching.is_read(t)]

    def apply(*tensors: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., list[tf.Tensor | None]]]:
        values = _batching.all_stacked(tensors, is_stacked)

        def grad(*grads: tf.Tensor | None) -> list[tf.Tensor | None]:
            return _gradients(op, dict(zip(results, grads)), tensors, is_stacked)

        return [values[k] for k in results], grad

    made = dict(zip(results, tf.custom_gradient(apply)(*tensors)))
    _tf.release_gradient(made[results[0]].op)
    return [made.get(k) for k in range(len(op.outputs))]


def _gradients(
    op: tf.Operation,
    grads: dict[int, tf.Tensor | None],
    tensors: Sequence[tf.Tensor],
    is_stacked: Sequence[bool],
) -> list[tf.Tensor | None]:
    """The gradients of an operation's inputs, from those of its outputs."""
    grads = {k: tf.convert_to_tensor(grad) for k, grad in grads.items() if grad is not None}
    wanted: list[int] = []

    def iteration(*given: tf.Tensor) -> tuple[tf.Tensor, ...]:
        inputs = given[len(grads) :]
        own = dict(zip(grads, given))
        for k, tensor in enumerate(inputs):
            if k not in own and _tf.is_trainable(tensor.dtype):
                own[k] = tf.zeros_like(tensor)
        gradient = _custom_gradients.of(op)
        assert gradient is not None  # as RULE is for operations that have one
        found = gradient.gradients(inputs, [own.get(k) for k in range(len(inputs))])
        wanted[:] = [
            k
            for k, grad in enumerate(found)
            if _tf.is_trainable(inputs[k].dtype) and grad is not None
        ]
        return tuple(tf.convert_to_tensor(found[k]) for k in wanted)

    shapes = [op.outputs[k].shape for k in grads] + [t.shape for t in op.inputs]
    flags = [True] * len(grads) + list(is_stacked)
    given = [*grads.values(), *tensors]
    body = _body.trace(
        iteration, [tf.TensorSpec(shape, t.dtype) for shape, t in zip(shapes, given)], list
    )
    if not wanted:
        return [None] * len(tensors)
    label = f"what the custom gradient of {op.name} gets"
    spec = spec_around(
        body,
        [
            _spec.Input(label, shape, "index" if flag else "value")
            for shape, flag in zip(shapes, flags)
        ],
        [
            _spec.Output(f"the gradient of {op.inputs[k].name}", t.dtype, mode, i)
            for i, (k, t) in enumerate(zip(wanted, body.graph.outputs))
            for mode in ["stack" if is_stacked[k] else "sum"]
        ],
    )
    # Effects take place from the last element to the first, as elsewhere in gradients.
    spec = dataclasses.replace(spec, reverse=bool(body.graph.control_outputs))
    loop = TracedLoop.around(body, spec, given)
    found = dict(zip(wanted, _passes.run(loop, Fuse.ALL).outputs))
    for k, grad in found.items():
        if not op.inputs[k].shape.is_fully_defined():
            # No iterations do not tell the extents that are not known.
            again = _batching.reshape if is_stacked[k] else _broadcast
            found[k] = again(grad, _batching.extents(tensors[k]))
    return [found.get(k) for k in range(len(tensors))]


def _broadcast(tensor: tf.Tensor, dims: Sequence[_batching.Extent]) -> tf.Tensor:
    return tf.broadcast_to(tensor, tf.stack([tf.cast(d, tf.int64) for d in dims]))


# A function of the sum of all iterations' gradients is not the sum of the function's values.
RULE = _batching.Rule(_add, once=None)
