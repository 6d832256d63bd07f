"""Checks of the tensors that cells and sequences are called with: dtypes and shapes."""

import numbers
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_ti._arguments import to_tensor

_FLOATS = (tf.float32, tf.float64, tf.float16, tf.bfloat16)


def to_floats(values: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Returns the values as tensors of one floating dtype. A b of None is left out."""
    values = {label: v for label, v in values.items() if label != "b" or v is not None}
    tensors = {label: to_tensor(label, v) for label, v in values.items()}
    (first, like), *others = tensors.items()
    if like.dtype not in _FLOATS:
        names = ", ".join(dtype.name for dtype in _FLOATS)
        raise TypeError(f"{first} must be one of {names}, got {like.dtype.name}")
    for label, tensor in others:
        if tensor.dtype != like.dtype:
            raise TypeError(
                f"{label} must be {like.dtype.name} as {first} is, got {tensor.dtype.name}"
            )
    return tensors


def to_lengths(sequence_lengths: Any) -> tf.Tensor:
    """Returns the lengths as int64.

    Numbers beyond int64 become negative, and are refused as such.
    """
    if isinstance(sequence_lengths, (list, tuple)) and not sequence_lengths:
        return tf.zeros([0], tf.int64)  # TensorFlow would make float32 of an empty list
    lengths = to_tensor("sequence_lengths", sequence_lengths)
    if not lengths.dtype.is_integer:
        raise TypeError(f"sequence_lengths must be of an integer dtype, got {lengths.dtype.name}")
    return tf.cast(lengths, tf.int64)


def to_mask(mask: Any) -> tf.Tensor:
    mask = to_tensor("mask", mask)
    if mask.dtype != tf.bool:
        raise TypeError(f"mask must be bool, got {mask.dtype.name}")
    return mask


def require(condition: tf.Tensor, *message: str | tf.Tensor) -> list[tf.Operation]:
    """Returns ops that fail with InvalidArgumentError unless the condition holds.

    In eager mode it raises the error itself, and returns nothing. The message consists of strings
    and small tensors.
    """
    if not tf.executing_eagerly():
        # tf.debugging.Assert would add a conditional for dtypes other than int32.
        return [tf.raw_ops.Assert(condition=condition, data=list(message))]
    if not condition:
        parts = [part if isinstance(part, str) else str(part.numpy()) for part in message]
        raise tf.errors.InvalidArgumentError(None, None, " ".join(parts).replace(" ,", ","))
    return []


def check_shapes(
    tensors: Mapping[str, tf.Tensor],
    layouts: Mapping[str, str],
    given: Mapping[str, tuple[int, str]],
    hidden_size: Any,
    is_step: bool = False,
) -> dict[str, tf.Tensor]:
    """Checks that dimensions of the same name have the same size.

    Sizes that are known are compared at once, others when the program runs.

    Args:
        tensors: the tensors, by the names that errors give them.
        layouts: each tensor's dimensions, such as "directions 4*hidden input".
        given: sizes known from elsewhere, each with a name for its source.
        hidden_size: the size of "hidden", or None.
        is_step: true for a single step, which may be the body of a loop. Checks then have no
            effects if possible: those would keep the loop from becoming a sequence.

    Returns:
        The tensors, with static shapes as far as they are known.
    """
    dimensions = {label: _parse(layouts[label]) for label in tensors}
    tensors, checks = _with_ranks(tensors, layouts)
    sizes: dict[str, tuple[int | tf.Tensor, str]] = dict(given)
    if hidden_size is not None:
        sizes["hidden"] = _check_hidden_size(hidden_size), "hidden_size"
    for label, tensor in tensors.items():
        for size, (factor, name) in zip(tensor.shape.as_list(), dimensions[label]):
            if size is None:
                continue
            known, source = sizes.setdefault(name, (size // factor, label))
            if size != factor * known:
                whose = "" if source == label else f", with the {name} of {source}, {known}"
                raise ValueError(
                    f"{label} must be {_show(layouts[label])}{whose}, got {tensor.shape}"
                )
    if sizes.get("hidden", (1, ""))[0] == 0:
        raise ValueError(f"{sizes['hidden'][1]} must have a hidden size above 0, got 0")
    with tf.control_dependencies(checks):
        for label, tensor in list(tensors.items()):
            if is_step and (axis := _only_unknown(tensor, dimensions[label], sizes)) is not None:
                tensors[label] = _with_extent(
                    tensor, axis, *sizes[dimensions[label][axis][1]], label
                )
            else:
                checks += _check_late(label, tensor, layouts[label], dimensions[label], sizes)
    with tf.control_dependencies(checks):
        if checks:
            tensors = {label: tf.identity(tensor) for label, tensor in tensors.items()}
    for label, tensor in tensors.items():
        known = [(factor, sizes[name][0]) for factor, name in dimensions[label]]
        tensor.set_shape([f * size if isinstance(size, int) else None for f, size in known])
    return tensors


def _check_late(
    label: str,
    tensor: tf.Tensor,
    layout: str,
    dimensions: list[tuple[int, str]],
    sizes: dict[str, tuple[int | tf.Tensor, str]],
) -> list[tf.Operation]:
    """Returns ops that compare sizes known only at run time, and adds new ones to `sizes`."""
    if tensor.shape.is_fully_defined():
        return []
    shape, is_new = tf.shape(tensor), True
    for axis, (size, (factor, name)) in enumerate(zip(tensor.shape.as_list(), dimensions)):
        if size is None:
            is_new = is_new and name not in sizes and factor == 1
            sizes.setdefault(name, (shape[axis] // factor, label))
    if is_new:
        return []
    expected = tf.stack([factor * sizes[name][0] for factor, name in dimensions])
    sources = ", ".join(f"{name} of {sizes[name][1]}" for _, name in dimensions)
    return require(
        tf.reduce_all(tf.equal(shape, expected)),
        f"{label} must be {_show(layout)}, with {sources}:",
        expected,
        ", got",
        shape,
    )


def _only_unknown(
    tensor: tf.Tensor,
    dimensions: list[tuple[int, str]],
    sizes: Mapping[str, tuple[int | tf.Tensor, str]],
) -> int | None:
    """The only axis of unknown size, if `sizes` has its expected size; otherwise None."""
    unknown = [axis for axis, size in enumerate(tensor.shape) if size is None]
    if (
        len(unknown) != 1
        or dimensions[unknown[0]][0] != 1
        or dimensions[unknown[0]][1] not in sizes
    ):
        return None
    return unknown[0]


def _with_extent(
    tensor: tf.Tensor, axis: int, size: int | tf.Tensor, source: str, label: str
) -> tf.Tensor:
    """Returns the tensor, or fails at run time if the axis has another size.

    A reshape checks this without an effect. Its error shows the name that it has here.
    """
    shape = [size if k == axis else n for k, n in enumerate(tensor.shape)]
    return tf.reshape(tensor, shape, name=f"{label}_must_fit_{source}")


def _check_hidden_size(hidden_size: Any) -> int:
    if isinstance(hidden_size, bool) or not isinstance(hidden_size, numbers.Integral):
        raise TypeError(f"hidden_size must be an int or None, got {hidden_size!r}")
    if hidden_size < 1:
        raise ValueError(f"hidden_size must be above 0, got {hidden_size}")
    return int(hidden_size)


def _parse(layout: str) -> list[tuple[int, str]]:
    """Returns the factor and the name of each dimension."""
    split = [dimension.rpartition("*") for dimension in layout.split()]
    return [(int(factor or 1), name) for factor, _, name in split]


def _show(layout: str) -> str:
    return f"[{', '.join(layout.split())}]"


def _with_ranks(
    tensors: Mapping[str, tf.Tensor], layouts: Mapping[str, str]
) -> tuple[dict[str, tf.Tensor], list[tf.Operation]]:
    """Returns the tensors with known ranks, and ops that check ranks known only at run time."""
    ranked, checks = {}, []
    for label, tensor in tensors.items():
        rank, message = len(layouts[label].split()), f"{label} must be {_show(layouts[label])}, got"
        if tensor.shape.rank is None:
            # Not tf.rank: Grappler would fold it to the rank that is set below.
            checks += require(tf.equal(tf.size(tf.shape(tensor)), rank), message, tf.shape(tensor))
            tensor = tf.identity(tensor)
            tensor.set_shape([None] * rank)
        if tensor.shape.rank != rank:
            raise ValueError(f"{message} {tensor.shape}")
        ranked[label] = tensor
    return ranked, checks
