"""Values that a loop carries from one iteration to the next."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.tracing import composites as _composites
from tf_ti.loops.tracing.structure import Structure


def to_values(name: str, nested: Structure, by_python: bool = False) -> Structure:
    """The tensors and composite values of a structure of what can be one."""
    named = zip(nested.paths, nested.leaves)
    return nested.with_leaves(
        [_composites.to_value(name + path, leaf, by_python) for path, leaf in named]
    )


def with_invariants(name: str, values: Structure, invariants: Any) -> Structure:
    """The types of values, with the shapes that `shape_invariants` allows."""
    types = values.map(_composites.type_of)
    if invariants is None:
        return types
    given, difference = types.match("shape_invariants", invariants, is_whole=False)
    if difference is not None:
        raise ValueError(f"shape_invariants must have the structure of {name}: {difference}")
    each = zip(types.paths, values.leaves, given)
    return types.with_leaves([_allowed(name, *one) for one in each])


def _allowed(name: str, path: str, value: Any, invariant: Any) -> tf.TypeSpec:
    spec, what = _composites.type_of(value), f"shape_invariants{path}"
    if invariant is None:
        return spec
    if not isinstance(invariant, (tf.TensorShape, tf.TypeSpec)):
        raise TypeError(f"{what} must be a TensorShape, a TypeSpec or None, got {invariant!r}")
    if isinstance(invariant, tf.TensorShape):
        try:
            invariant = _composites.type_of_shape(value, invariant)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{what} must be a {type(spec).__name__}: {error}") from error
    if not spec.is_subtype_of(invariant):
        raise ValueError(f"{what}: {invariant} does not allow {name}{path}, {spec}")
    return invariant


def labelled(
    name: str, types: Structure, specs: Iterable[list[tf.TensorSpec]]
) -> list[tuple[str, tf.TensorSpec]]:
    """The specs of the tensors that encode values of these types, with their names in errors."""
    found = []
    for path, spec, parts in zip(types.paths, types.leaves, specs):
        is_one = len(parts) == 1 or isinstance(spec, tf.RaggedTensorSpec)
        for k, part in enumerate(parts):
            found.append((name + path if is_one else f"{name}{path}, component {k}", part))
    return found


def following(label: str, value: Any, spec: tf.TypeSpec, must: str) -> Any:
    """The next value of one of this type.

    Args:
        label: the name that errors give it.
        value: what the body returned for it.
        spec: its type.
        must: the beginning of an error about the type: "f must return a carry".
    """
    if isinstance(value, tf.TypeSpec):  # in a function that was loaded
        return value
    is_one = isinstance(spec, tf.TensorSpec)
    if isinstance(spec, tf.TensorArraySpec) and isinstance(value, tf.Tensor) and _tf.is_list(value):
        return _composites.from_components(spec, [value])  # what a tf.function returns for one
    if is_one and not _composites.is_composite(value):
        return value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value, spec.dtype)
    if is_one or not _composites.is_composite(value) or not spec.is_compatible_with(value):
        given = _composites.type_of(value) if hasattr(value, "dtype") else repr(value)
        raise TypeError(f"{label}: {must} of type {spec}, got {given}")
    return value


def to_test(name: str, value: Any) -> tf.Tensor:
    """What a condition of this name returned, as a scalar."""
    test = tf.convert_to_tensor(value)
    if test.dtype != tf.bool:
        raise TypeError(f"{name} must return a bool, got {value!r}")
    if test.shape.num_elements() not in (None, 1):
        raise ValueError(f"{name} must return one bool, got shape {test.shape}")
    return test if test.shape.rank == 0 else tf.reshape(test, [])
