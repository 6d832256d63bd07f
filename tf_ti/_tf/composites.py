"""Values of several tensors: the structures of tf.nest, and the rows of composite tensors.

A row of a batchable value is encoded in tensors, one each for the components of the value, as
tf.map_fn encodes it.
"""

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.framework import composite_tensor, type_spec
from tensorflow.python.ops import tensor_array_ops
from tensorflow.python.util import nest_util

CompositeTensor: TypeAlias = composite_tensor.CompositeTensor
BatchableTypeSpec: TypeAlias = type_spec.BatchableTypeSpec


def nest_items(container: Any) -> list[tuple[int | str, Any]]:
    """The parts of a container, as tf.nest orders them, with their positions, keys or names."""
    return list(nest_util.yield_sorted_items(nest_util.Modality.CORE, container))


def nest_like(container: Any, parts: Sequence[Any]) -> Any:
    """A container of the same kind around other parts, as tf.nest makes it."""
    return nest_util.sequence_like(container, parts)


def spec_of_shape(value: CompositeTensor, shape: tf.TensorShape) -> tf.TypeSpec:
    """The type that the shape invariant of a tf.while_loop means for a value.

    Raises:
        TypeError, ValueError: a shape says nothing, or nothing allowed, of such values.
    """
    try:
        return value._shape_invariant_to_type_spec(shape)
    except NotImplementedError as error:
        raise TypeError(f"a shape says nothing of a {type(value).__name__}") from error


def is_eager_array(value: Any) -> bool:
    """Returns true for a TensorArray of eager mode, a list of tensors in Python."""
    is_array = isinstance(value, tf.TensorArray)
    return is_array and isinstance(value._implementation, tensor_array_ops._EagerTensorArray)


def elements_of(array: tf.TensorArray) -> list[tf.Tensor | None]:
    """The elements of a TensorArray of eager mode; None for those that were not written."""
    return list(array._implementation._tensor_array)


def with_elements(array: tf.TensorArray, elements: Sequence[tf.Tensor | None]) -> tf.TensorArray:
    """An eager TensorArray like another one, with other elements."""
    # TensorFlow wraps some arrays: a copy of a wrapper would share the array.
    made, implementation = tf.TensorArray(array.dtype, 0), copy.copy(array._implementation)
    implementation._previously_read_indices = list(implementation._previously_read_indices)
    implementation._tensor_array = list(elements)
    made._implementation, implementation.parent = implementation, weakref.ref(made)
    return made


def map_eager_array(
    function: Callable[[tf.Tensor], tf.Tensor], array: tf.TensorArray
) -> tf.TensorArray:
    """An eager TensorArray like another one, with a function of each element that it has."""
    elements = [None if x is None else function(x) for x in elements_of(array)]
    return with_elements(array, elements)


def with_flow(array: tf.TensorArray, flow: tf.Tensor) -> tf.TensorArray:
    """A TensorArray of a graph with other elements. Both learn the shape that either is given."""
    return tensor_array_ops.build_ta_with_new_flow(array, flow)


def row_spec(spec: BatchableTypeSpec) -> tf.TypeSpec:
    """The type of the rows of a batchable value."""
    return spec._unbatch()


def batch_spec(row: BatchableTypeSpec, count: int | None) -> tf.TypeSpec:
    """The type of a value of so many rows."""
    return row._batch(count)


def fields_of(spec: tf.TypeSpec) -> dict[str, Any]:
    """The fields of the type of an extension type: types, structures of such, and constants."""
    return {field.name: getattr(spec, field.name) for field in spec._tf_extension_type_fields()}


def part_specs(spec: tf.TypeSpec) -> list[tf.TypeSpec]:
    """The types of the parts of which values of a type consist; see `parts_of`."""
    if not _is_batchable_extension(spec):
        return [spec]
    encoding = spec.__batch_encoder__.encoding_specs(spec)
    return [part for given in tf.nest.flatten(encoding) for part in part_specs(given)]


def parts_of(spec: tf.TypeSpec, value: Any, has_rows: bool = False) -> list[Any]:
    """The parts of a value: tensors, and composite values that are no batchable extension types.

    Their rows are the parts of the value's rows.

    Args:
        spec: its type.
        value: the value.
        has_rows: true if all parts need an axis that counts rows.
    """
    if not _is_batchable_extension(spec):
        return [value]
    encoder = spec.__batch_encoder__
    encoding = encoder.encoding_specs(spec)
    encoded = encoder.encode(spec, value, minimum_rank=int(has_rows))
    pairs = zip(tf.nest.flatten(encoding), tf.nest.flatten(encoded))
    return [part for given, one in pairs for part in parts_of(given, one, has_rows)]


def from_parts(spec: tf.TypeSpec, parts: Iterator[Any]) -> Any:
    """The value of a type that consists of the parts that come next."""
    if not _is_batchable_extension(spec):
        return next(parts)
    encoder = spec.__batch_encoder__
    encoding = encoder.encoding_specs(spec)
    encoded = tf.nest.map_structure(lambda given: from_parts(given, parts), encoding)
    return encoder.decode(spec, encoded)


def _is_batchable_extension(spec: tf.TypeSpec) -> bool:
    is_extension = issubclass(spec.value_type, tf.experimental.ExtensionType)
    return is_extension and isinstance(spec, BatchableTypeSpec)  # type: ignore[misc]


def row_component_specs(row: BatchableTypeSpec) -> list[tf.TensorSpec]:
    """The types of the tensors that a row is encoded in."""
    return row._flat_tensor_specs


def encode_row(row: BatchableTypeSpec, value: Any) -> list[tf.Tensor]:
    """The tensors that a row is encoded in."""
    return row._to_tensor_list(value)


def encode_rows(spec: BatchableTypeSpec, value: Any) -> list[tf.Tensor]:
    """The tensors that all rows of a value are encoded in: their first axis counts the rows."""
    return spec._to_batched_tensor_list(value)


def decode(spec: BatchableTypeSpec, tensors: Sequence[tf.Tensor]) -> Any:
    """The row that is encoded in these tensors, or the value whose rows are."""
    return spec._from_compatible_tensor_list(list(tensors))
