"""Loops under `tf.config.run_functions_eagerly(True)`: Python runs them, one operation at a time.

Prints and checks in a body have values then, and tapes record its operations. The meaning of a
loop, and its refusals, are in the spec that is made of the results of each iteration. Tensors of a
type that TensorFlow itself does not slice or join, int4, say, are not sliced or joined here.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

from tf_ti import _tf
from tf_ti.loops import slices as _slices, spec as _spec
from tf_ti.loops.tracing import body as _body, composites as _composites
from tf_ti.loops.tracing.way import Way


def is_wanted() -> bool:
    """True if functions run eagerly."""
    return tf.executing_eagerly() and tf.config.functions_run_eagerly()


def count_iterations(
    inputs: Sequence[_spec.Input],
    tensors: Sequence[tf.Tensor],
    num_iterations: int | tf.Tensor | None,
    limit_label: str = "num_iterations",
) -> int:
    """The number of iterations, on which all that tells it must agree; errors as the kernel's."""
    counts = []
    if num_iterations is not None:
        counts.append((limit_label, int(num_iterations)))
        if counts[0][1] < 0:
            raise _invalid(f"{limit_label} must not be negative, got {counts[0][1]}")
    for given, tensor in zip(inputs, tensors):
        if given.is_counted:
            counts.append((given.label, _slices.count(given, _tf.known_extent(tensor, given.axis))))
    source, first = counts[0]
    for label, count in counts[1:]:
        if count != first:
            words = f"{source} gives {first} iterations, but {label} gives {count}"
            raise ValueError(words) if num_iterations is None else _invalid(words)
    return first


def run(way: Way, tensors: Sequence[tf.Tensor], count: int) -> list[tf.Tensor]:
    """Runs a loop that has an iteration: without one, only a trace tells the types of its outputs.

    Args:
        way: the loop.
        tensors: those that its inputs get.
        count: the number of iterations.

    Returns:
        The loop's outputs.
    """
    way.prepare_plain()
    shapes = [spec.shape for spec in way.parameters]
    if way.is_direct():
        shapes = _parameter_shapes(way.body, way.parameters)
    values = list(tensors)
    kept = collections.defaultdict(list)
    for k in range(count):
        for i, taken in enumerate(way.inputs):
            if taken.is_counted:
                values[i] = _piece(taken, tensors[i], k)
        returned = way.convert(call(way.body, way.arrange(values), way.expected))
        results = tf.nest.flatten(returned, expand_composites=True)
        spec = way.make_spec(_as_traced(way.body, shapes, returned, results))
        for i, output in enumerate(spec.outputs):
            if output.mode == "last":
                kept[i] = [results[output.source]]
            elif output.mode == "count":
                kept[i] = [tf.constant(k + 1, tf.int64)]
            else:
                kept[i].append(results[output.source])
                _check_joins(output, kept[i][0].shape, kept[i][-1].shape)
        for result, parameter in spec.back_edges:
            values[parameter] = results[result]
        if way.is_over(results):
            break
    lengths = list(map(int, way.lengths(count)))
    return [_join(output, kept[i], lengths) for i, output in enumerate(spec.outputs)]


def call(body: Callable[..., Any], arguments: Sequence[Any], expected: str) -> Any:
    """Calls a body; `expected` is the beginning of an error about the number of its arguments."""
    if isinstance(body, ConcreteFunction):
        flat = tf.nest.flatten(arguments, expand_composites=True)
        tensors = iter(tensor for tensor in flat if tensor is not None)
        positional, named = tf.nest.map_structure(
            # An argument that is no tensor was given when it was traced.
            lambda leaf: next(tensors) if isinstance(leaf, tf.TensorSpec) else leaf,
            body.structured_input_signature,
            expand_composites=True,
        )
        return body(*positional, **named)
    try:
        with _tf.user_code():
            return body(*arguments)
    except TypeError:
        _body.check_arity(body, len(arguments), expected)
        raise


def _parameter_shapes(
    body: Callable[..., Any], specs: Sequence[tf.TensorSpec]
) -> list[tf.TensorShape]:
    """The shapes for which a body of these arguments was built; a callable takes any."""
    if isinstance(body, ConcreteFunction):
        _body.check_concrete(body, specs)
        specs = body.inputs[: len(specs)]
    elif (signature := getattr(body, "input_signature", None)) is not None:
        specs = tf.nest.flatten(signature, expand_composites=True)
    return [spec.shape for spec in specs]


def _as_traced(
    body: Callable[..., Any],
    shapes: Sequence[tf.TensorShape],
    returned: Any,
    results: Sequence[Any],
) -> _body.Body:
    types = map(_composites.type_of, results)
    specs = [spec for result in types for spec in _composites.component_specs(result)]
    return _body.Body(
        graph=None,
        captures=(),
        variables=(),
        controls=(),
        parameter_shapes=tuple(shapes),
        structure=returned,
        num_results=len(results),
        result_types=tuple(spec.dtype for spec in specs),
        result_shapes=tuple(spec.shape for spec in specs),
        source=body,
    )


def _piece(given: _spec.Input, tensor: tf.Tensor, k: int) -> tf.Tensor:
    start = given.start + _tf.known_extent(tensor, given.axis) if given.start < 0 else given.start
    begin = start + k * given.stride
    if given.stride < 0:
        begin -= given.part_size - 1
    where = begin if given.mode == "index" else slice(begin, begin + given.part_size)
    return tensor[(slice(None),) * (given.axis % tensor.shape.rank) + (where,)]


def _check_joins(output: _spec.Output, first: tf.TensorShape, shape: tf.TensorShape) -> None:
    expected, got = first.as_list(), shape.as_list()
    if output.mode == "concat" and len(expected) == len(got):
        expected[output.axis] = got[output.axis]
    if expected != got:
        raise _invalid(
            f"{output.label}: the body's result has shape {shape}, but in the first iteration "
            f"{first}: they do not {'stack' if output.mode == 'stack' else 'concatenate'} along "
            f"axis {output.axis}"
        )


def _join(output: _spec.Output, values: list[tf.Tensor], lengths: Sequence[int]) -> tf.Tensor:
    if output.mode in ("last", "count"):
        return values[0]
    values = values[:: output.stride]
    if output.length >= 0:  # zeros for iterations that did not take place
        values += [tf.zeros_like(values[0])] * (lengths[output.length] - len(values))
    join = tf.stack if output.mode == "stack" else tf.concat
    return join(values, output.axis)


def _invalid(message: str) -> tf.errors.InvalidArgumentError:
    return tf.errors.InvalidArgumentError(None, None, message)
