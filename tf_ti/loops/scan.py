"""`tf_ti.scan`: a function folded over the leading elements of tensors."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _arguments, _tf
from tf_ti.loops import (
    body as _body,
    eager as _eager,
    plain as _plain,
    plan as _plan,
    spec as _spec,
)
from tf_ti.loops.structure import Structure


@_tf.do_not_convert
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    *,
    axis: int = 0,
    reverse: bool = False,
    length: int | tf.Tensor | None = None,
    checkpoint_every: int | None = None,
    name: str | None = None,
) -> tuple[Any, Any]:
    """Folds `f` over the elements of `xs` along an axis, and keeps what it gives on the way.

    It means, for tensors rather than structures of them:

        carry, ys = init, []
        for k in reversed(range(length)) if reverse else range(length):
            carry, y = f(carry, tf.gather(xs, k, axis=axis))
            ys.append(y)
        return carry, tf.stack(ys[::-1] if reverse else ys, axis)

    It is `jax.lax.scan` for TensorFlow, run by the same native kernel as `tf_ti.tensor_iterator`.

    Args:
        f: a function from a carry and an element to the next carry and a result. It may capture
            tensors and variables, and use any TensorFlow ops. In eager mode a callable is traced at
            each call, a `tf.function` by its own rules; under
            `tf.config.run_functions_eagerly(True)` Python calls either for each element.
        init: the first carry: a tensor of any dtype, or a nested structure of tensors.
        xs: what to iterate: a tensor, a nested structure of tensors that have the same extent along
            `axis`, or None. `f` gets them with the axis removed.
        axis: the axis of `xs` to iterate along, and of the results to stack along.
        reverse: iterate from the last element to the first; results keep their elements' places.
        length: the number of iterations, an int or a scalar integer tensor. Needed where `xs` has
            no tensors; elsewhere it must agree.
        checkpoint_every: as in `tf_ti.tensor_iterator`.
        name: a name for the operation.

    Returns:
        The last carry, in the structure of `init`, and the results of `f`, in the structure that
        `f` returned, each stacked along `axis`.

    Raises:
        TypeError, ValueError: the structures, types or static shapes do not fit one another.
        tf.errors.InvalidArgumentError: the extents, or a carry's shapes, do not agree at run time.

    Example:

        >>> last, sums = tf_ti.scan(lambda c, x: (c + x, c + x), 0.0, tf.constant([1.0, 2.0, 3.0]))
        >>> sums.numpy().tolist()
        [1.0, 3.0, 6.0]

    Source: JAX's lax.scan, on OpenVINO's TensorIterator-1.
    """
    if not callable(f):
        raise TypeError(f"f must be callable, got {f!r}")
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise TypeError(f"axis must be an int, got {axis!r}")
    length = _plan.check_num_iterations(length, "length")
    _plan.check_checkpoint_every(checkpoint_every)
    carry = _to_tensors("init", Structure(init))
    elements = _to_tensors("xs", Structure(xs))
    if length is None and not elements.leaves:
        raise ValueError("length must be given where xs has no tensors")
    count = len(carry.leaves)
    carry_specs, xs_specs = carry.map(_spec_of), elements.map(_spec_of)
    labels = [f"xs{path}" for path in elements.paths]
    parts = [_element(label, spec, axis) for label, spec in zip(labels, xs_specs.leaves)]
    arguments = (carry_specs.nested, elements.pack(parts))
    expected = "f is called with a carry and an element, which f"
    inputs = _inputs(carry_specs, xs_specs, axis, bool(reverse))
    tensors = [*carry.leaves, *elements.leaves]

    def convert(returned: Any) -> tuple[Any, Any]:
        return _results(returned, carry_specs)

    def make_plan(traced: _body.Body) -> _plan.Plan:
        return _make_plan(traced, carry_specs, inputs, axis, bool(reverse))

    def pack(outputs: Sequence[tf.Tensor], returned: tuple[Any, Any]) -> tuple[Any, Any]:
        return carry.pack(outputs[:count]), Structure(returned[1]).pack(outputs[count:])

    if _plain.is_wanted() and (k := _plain.count_iterations(inputs, tensors, length, "length")):
        return pack(*_plain.run(f, arguments, expected, convert, make_plan, inputs, tensors, k))
    f = _body.resolve(f, arguments, expected)

    def add(tensors: Sequence[tf.Tensor], length: int | tf.Tensor | None):
        traced = _body.trace(f, arguments, convert)
        outputs = make_plan(traced).run(tensors, length, checkpoint_every, name or "scan")
        return pack(outputs, traced.structure)

    key = ("scan", carry_specs, xs_specs, axis, bool(reverse), checkpoint_every, name)
    return _eager.call(add, tensors, length, f, key)


def _results(returned: Any, carry: Structure) -> tuple[Any, Any]:
    """The carry and the result that `f` returned, as tensors."""
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        raise TypeError(f"f must return a carry and a result, got {returned!r}")
    following = Structure(returned[0])
    if following.containers() != carry.containers():
        raise ValueError(
            "f must return a carry of the structure of init: expected "
            f"{carry.containers().nested!r}, got {following.containers().nested!r}"
        )
    values = [_to_tensor(value, spec.dtype) for value, spec in zip(following.leaves, carry.leaves)]
    return carry.pack(values), Structure(returned[1]).map(_to_tensor).nested


def _to_tensor(value: Any, dtype: tf.DType | None = None) -> Any:
    if isinstance(value, (tf.Tensor, tf.TensorSpec)):  # the latter in a function that was loaded
        return value
    return tf.convert_to_tensor(value, dtype)


def _inputs(carry: Structure, elements: Structure, axis: int, reverse: bool) -> list[_spec.Input]:
    order = {"start": -1, "end": 0, "stride": -1} if reverse else {}
    inputs = [
        _spec.Input(f"init{path}", spec.shape) for path, spec in zip(carry.paths, carry.leaves)
    ]
    for path, spec in zip(elements.paths, elements.leaves):
        inputs.append(_spec.Input(f"xs{path}", spec.shape, "index", axis, **order))
    return inputs


def _make_plan(
    traced: _body.Body,
    carry: Structure,
    inputs: Sequence[_spec.Input],
    axis: int,
    reverse: bool,
) -> _plan.Plan:
    count = len(carry.leaves)
    carry_labels = [f"init{path}" for path in carry.paths]
    for i, (label, spec) in enumerate(zip(carry_labels, carry.leaves)):
        _plan.check_back_edge(
            label, spec, traced.result_types[i], traced.result_shapes[i], "the carry of f"
        )
    outputs = [
        _spec.Output(label, traced.result_types[i], "last", i)
        for i, label in enumerate(carry_labels)
    ]
    stride = -1 if reverse else 1
    for i, path in enumerate(Structure(traced.structure[1]).paths, start=count):
        rank = traced.result_shapes[i].rank
        if rank is not None and not -rank - 1 <= axis <= rank:
            raise ValueError(
                f"ys{path}: axis {axis} is out of range to stack results of shape "
                f"{traced.result_shapes[i]}"
            )
        outputs.append(_spec.Output(f"ys{path}", traced.result_types[i], "stack", i, axis, stride))
    back_edges = [(i, i) for i in range(count)]
    return _plan.Plan.make(traced, inputs, outputs, back_edges, limit_label="length")


def _to_tensors(label: str, nested: Structure) -> Structure:
    named = zip(nested.paths, nested.leaves)
    return Structure(
        nested.pack([_arguments.to_tensor(label + path, leaf) for path, leaf in named])
    )


def _spec_of(tensor: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _element(label: str, spec: tf.TensorSpec, axis: int) -> tf.TensorSpec:
    if spec.shape.rank is None:
        return tf.TensorSpec(None, spec.dtype)
    if not -spec.shape.rank <= axis < spec.shape.rank:
        raise ValueError(
            f"{label}: axis {axis} is out of range for a tensor of rank {spec.shape.rank}"
        )
    shape = spec.shape.as_list()
    del shape[axis]
    return tf.TensorSpec(shape, spec.dtype)
