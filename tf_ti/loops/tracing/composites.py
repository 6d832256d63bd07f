"""Values of several tensors: ragged and sparse ones, extension types, TensorArrays.

A loop carries their components, as `tf.while_loop` does, and takes and gives rows of them as
`tf.map_fn` does: encoded, in tensors that have an axis for the rows.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _arguments, _tf
from tf_ti.loops.tracing import extents as _extents


def to_value(label: str, value: Any, by_python: bool = False) -> Any:
    """A tensor, or the composite value; the error where that cannot be names `label`.

    Args:
        label: the name that errors give it.
        value: a tensor, or what can be one, or a composite value.
        by_python: true if Python runs the loop, which may have a TensorArray of eager mode then.
    """
    if isinstance(value, tf.TensorArray) and tf.executing_eagerly() and not by_python:
        raise ValueError(f"{label} is a TensorArray, of which loops know in a tf.function only")
    return value if is_composite(value) else _arguments.to_tensor(label, value)


def is_composite(value: Any) -> bool:
    is_variable = isinstance(value, tf.Variable)  # which TensorFlow counts among them
    return isinstance(value, (_tf.CompositeTensor, tf.TensorArray)) and not is_variable


def type_of(value: Any) -> tf.TypeSpec:
    if isinstance(value, tf.TypeSpec):  # of a result, in a function that was loaded
        return value
    if is_composite(value):
        return tf.type_spec_from_value(value)
    return tf.TensorSpec(value.shape, value.dtype)


def type_of_shape(value: Any, shape: tf.TensorShape) -> tf.TypeSpec:
    """The type that a shape means for a value that a loop carries, as for `tf.while_loop`."""
    if isinstance(value, tf.TensorArray):  # a scalar, for TensorFlow
        if not shape.is_compatible_with([]):
            raise ValueError(f"a TensorArray's shape is that of a scalar, got {shape}")
        return type_of(value)
    if is_composite(value):
        return _tf.spec_of_shape(value, shape)
    return tf.TensorSpec(shape, value.dtype)


def common_type(earlier: tf.TypeSpec, spec: tf.TypeSpec) -> tf.TypeSpec:
    """A type of values of both types, or the latter where they are of different kinds."""
    return earlier.most_specific_common_supertype([spec]) or spec


# --- components ----------------------------------------------------------------------------------


def components(value: Any) -> list[Any]:
    """The tensors of a value; a TensorArray of eager mode stands for itself."""
    if _tf.is_eager_array(value):
        return [value]
    if isinstance(value, tf.TensorArray):
        return [value.flow]
    return tf.nest.flatten(value, expand_composites=True)


def in_graph(component: Any) -> tf.Tensor:
    """A component for a graph: an empty list takes the place of a TensorArray of eager mode."""
    if not _tf.is_eager_array(component):
        return component
    return tf.raw_ops.TensorListReserve(
        element_shape=tf.constant(_extents.of_elements(component.element_shape), tf.int32),
        num_elements=component.size(),
        element_dtype=component.dtype,
    )


def list_of(array: tf.TensorArray) -> tf.Tensor:
    """A list with the elements of a TensorArray of eager mode."""
    made = in_graph(array)
    for i, item in enumerate(_tf.elements_of(array)):
        if item is not None:
            made = tf.raw_ops.TensorListSetItem(input_handle=made, index=i, item=item)
    return made


def array_of(items: tf.Tensor, like: tf.TensorArray) -> tf.TensorArray:
    """A TensorArray of eager mode like another one, with the elements of a list."""
    dims = _extents.of_elements(like.element_shape)
    count = int(tf.raw_ops.TensorListLength(input_handle=items))

    def element(i: int) -> tf.Tensor | None:
        try:
            return tf.raw_ops.TensorListGetItem(
                input_handle=items, index=i, element_shape=dims, element_dtype=like.dtype
            )
        except tf.errors.InvalidArgumentError:  # it was not written
            return None

    return _tf.with_elements(like, list(map(element, range(count))))


def component_specs(spec: tf.TypeSpec) -> list[tf.TensorSpec]:
    return tf.nest.flatten(spec, expand_composites=True)


def arrays(values: Iterable[Any]) -> list[tf.TensorArray | None]:
    """The TensorArrays of a graph among values, in their places."""
    return [
        value if isinstance(value, tf.TensorArray) and not _tf.is_eager_array(value) else None
        for value in values
    ]


def from_components(
    spec: tf.TypeSpec, tensors: Sequence[Any], array: tf.TensorArray | None = None
) -> Any:
    """A value of this type; a TensorArray learns of its elements together with `array`."""
    if tensors and _tf.is_eager_array(tensors[0]):
        return tensors[0]
    if array is not None:
        return _tf.with_flow(array, *tensors)
    return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)


def take(
    specs: Iterable[tf.TypeSpec],
    tensors: Iterator[tf.Tensor],
    arrays: Iterable[tf.TensorArray | None] = itertools.repeat(None),
) -> list[Any]:
    """Values of these types, of the tensors that come next; `arrays` as in `from_components`."""
    return [
        from_components(spec, [next(tensors) for _ in component_specs(spec)], array)
        for spec, array in zip(specs, arrays)
    ]


# --- rows ----------------------------------------------------------------------------------------


def row_type(label: str, spec: tf.TypeSpec, axis: int) -> tf.TypeSpec:
    """The type of the rows, along `axis`, of a value of type `spec`."""
    if isinstance(spec, tf.TensorSpec):
        if spec.shape.rank is None:
            return tf.TensorSpec(None, spec.dtype)
        if not -spec.shape.rank <= axis < spec.shape.rank:
            raise ValueError(
                f"{label}: axis {axis} is out of range for a tensor of rank {spec.shape.rank}"
            )
        shape = spec.shape.as_list()
        del shape[axis]
        return tf.TensorSpec(shape, spec.dtype)
    if not isinstance(spec, _tf.BatchableTypeSpec):
        raise TypeError(
            f"{label}: a {spec.value_type.__name__} has no rows; give its components, or make it a "
            "tf.experimental.BatchableExtensionType"
        )
    if axis != 0:
        raise ValueError(f"{label}: the rows of {spec} lie along axis 0, got axis {axis}")
    row = _tf.row_spec(spec)
    is_dense = isinstance(row, tf.RaggedTensorSpec) and row.ragged_rank == 0
    return tf.TensorSpec(row.shape, row.dtype) if is_dense else row


def taken_specs(spec: tf.TypeSpec, row: tf.TypeSpec) -> list[tf.TensorSpec]:
    """The specs of one row of a value, encoded, as an iteration takes it."""
    found = []
    for part, part_row in zip(_tf.part_specs(spec), _tf.part_specs(row)):
        if isinstance(part, tf.RaggedTensorSpec):
            found.append(tf.TensorSpec([], part.row_splits_dtype))
        else:
            found += _encoded_specs(part_row)
    return found


def parts_with_rows(value: Any) -> list[Any]:
    """The parts of a value; the gradients of ragged ones are dense."""
    parts = _tf.parts_of(type_of(value), value, has_rows=True)
    return [_with_dense_gradient(p) if isinstance(p, tf.RaggedTensor) else p for p in parts]


def _with_dense_gradient(ragged: tf.RaggedTensor) -> tf.RaggedTensor:
    """The same value. TensorFlow's gradient of its rows is IndexedSlices, which many ops refuse."""
    values = ragged.flat_values
    return ragged.with_flat_values(tf.reshape(values, tf.shape(values)))


def to_rows(parts: Sequence[Any]) -> list[tf.Tensor]:
    """All rows, encoded: tensors whose first axis counts rows. A ragged tensor's are numbered."""
    found = []
    for part in parts:
        if isinstance(part, tf.RaggedTensor):
            found.append(tf.range(part.nrows()))
        else:
            found += _tf.encode_rows(type_of(part), part) if is_composite(part) else [part]
    return found


def taken_row(row: tf.TypeSpec, parts: Sequence[Any], tensors: Sequence[tf.Tensor]) -> Any:
    """A row of the value that consists of `parts`, from the tensors that encode it."""
    remaining, found = iter(tensors), []
    for part, part_row in zip(parts, _tf.part_specs(row)):
        if isinstance(part, tf.RaggedTensor):
            taken = tf.gather(part, next(remaining))
            if isinstance(taken, tf.Tensor):
                taken.set_shape(part_row.shape)
            found.append(taken)
        else:
            found.append(_decoded(part_row, remaining))
    return _tf.from_parts(row, iter(found))


def is_ragged_row(row: tf.TypeSpec) -> bool:
    """True if it is the type of a tensor that is a row of a ragged one."""
    return isinstance(row, tf.RaggedTensorSpec) and row.ragged_rank == 0


def ragged_parts(spec: tf.TypeSpec, value: Any) -> Iterator[tuple[tf.RaggedTensorSpec, Any]]:
    """The ragged tensors of a value of type `spec`, or their rows in a row, with their types.

    Where `value` is `spec` itself, the types come twice.
    """
    if isinstance(spec, tf.RaggedTensorSpec):
        yield spec, value
    elif _is_extension(spec):
        for name, parts in _tf.fields_of(spec).items():
            for part, tensor in zip(tf.nest.flatten(parts), tf.nest.flatten(getattr(value, name))):
                if isinstance(part, tf.TypeSpec):
                    yield from ragged_parts(part, tensor)


def with_ragged_rows(
    spec: tf.TypeSpec, value: Any, ragged: Callable[[tf.Tensor], tf.RaggedTensorSpec | None]
) -> tf.TypeSpec:
    """The type of a value, of which some tensors are rows of ragged ones.

    Args:
        spec: its type, without these.
        value: the value.
        ragged: the type of a tensor that is such a row; None of others.
    """
    if isinstance(spec, tf.TensorSpec):
        return ragged(value) or spec
    if not _is_extension(spec) or not isinstance(spec, _tf.BatchableTypeSpec):
        return spec

    def of_rows(rows: Any, value: Any) -> Any:
        """The type of several rows like `value`, of the type that they have without ragged ones."""
        if isinstance(rows, tf.TensorSpec):
            row = ragged(value)
            return rows if row is None else _tf.batch_spec(row, None)
        if not isinstance(rows, tf.TypeSpec) or not _is_extension(rows):
            return rows
        fields = {
            name: tf.nest.map_structure(of_rows, field, getattr(value, name))
            for name, field in _tf.fields_of(rows).items()
        }
        return type(rows)(**fields)

    try:
        return _tf.row_spec(of_rows(_tf.batch_spec(spec, None), value))
    except TypeError:  # a field may be a tensor, and no ragged one
        return spec


def _is_extension(spec: tf.TypeSpec) -> bool:
    return issubclass(spec.value_type, tf.experimental.ExtensionType)


def given_specs(row: tf.TypeSpec) -> list[tf.TensorSpec]:
    """The specs of one row of a result, encoded.

    A ragged tensor is encoded in the number of its rows, the lengths of the rows at each level, and
    its values.
    """
    return [spec for part in _tf.part_specs(row) for spec in _given_specs(part)]


def _given_specs(part: tf.TypeSpec) -> list[tf.TensorSpec]:
    if not isinstance(part, tf.RaggedTensorSpec):
        return _encoded_specs(part)
    shape, splits = part.shape, part.row_splits_dtype
    if shape.rank is not None:
        shape = [None, *shape.as_list()[part.ragged_rank + 1 :]]
    lengths = [tf.TensorSpec([None], splits)] * part.ragged_rank
    return [tf.TensorSpec([], splits), *lengths, tf.TensorSpec(shape, part.dtype)]


def given_modes(row: tf.TypeSpec) -> list[str]:
    """The modes that join the rows of a result, one for each tensor that encodes them."""
    modes = []
    for part in _tf.part_specs(row):
        is_ragged, count = isinstance(part, tf.RaggedTensorSpec), len(_given_specs(part))
        modes += ["stack"] + (["concat"] if is_ragged else ["stack"]) * (count - 1)
    return modes


def given_row(value: Any, row: tf.TypeSpec) -> list[tf.Tensor]:
    found = []
    for part, spec in zip(_tf.parts_of(row, value), _tf.part_specs(row)):
        if isinstance(part, tf.RaggedTensor):
            found += [part.nrows(), *part.nested_row_lengths(), part.flat_values]
        elif isinstance(spec, tf.RaggedTensorSpec):
            found += [tf.shape(part, spec.row_splits_dtype)[0], part]
        else:
            found += _tf.encode_row(spec, part) if is_composite(part) else [part]
    return found


def from_rows(row: tf.TypeSpec, tensors: Sequence[tf.Tensor]) -> Any:
    """The value that has these rows."""
    if isinstance(row, tf.TensorSpec):
        return tensors[0]
    spec, remaining, found = _tf.batch_spec(row, _tf.known_extent(tensors[0], 0)), iter(tensors), []
    for part, part_row in zip(_tf.part_specs(spec), _tf.part_specs(row)):
        if isinstance(part, tf.RaggedTensorSpec):
            *lengths, values = [next(remaining) for _ in _given_specs(part_row)]
            ragged = tf.RaggedTensor.from_nested_row_lengths(values, lengths, validate=False)
            components = tf.nest.flatten(ragged, expand_composites=True)
            found.append(tf.nest.pack_sequence_as(part, components, expand_composites=True))
        else:
            found.append(_decoded(part, remaining))
    return _tf.from_parts(spec, iter(found))


def _encoded_specs(part: tf.TypeSpec) -> list[tf.TensorSpec]:
    """The specs of a part of a row that is no ragged tensor, as TensorFlow encodes it."""
    if isinstance(part, tf.TensorSpec):
        return [part]
    return [tf.TensorSpec(spec.shape, spec.dtype) for spec in _tf.row_component_specs(part)]


def _decoded(part: tf.TypeSpec, tensors: Iterator[tf.Tensor]) -> Any:
    encoded = [next(tensors) for _ in _encoded_specs(part)]
    return encoded[0] if isinstance(part, tf.TensorSpec) else _tf.decode(part, encoded)


def dense_if_even(value: Any) -> Any:
    """A tensor, if all rows of a ragged one have the same length."""
    if not isinstance(value, tf.RaggedTensor) or len(set(value.row_lengths().numpy())) > 1:
        return value
    return value.to_tensor()
