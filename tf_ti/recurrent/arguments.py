"""The tensors that cells and sequences are called with: their types and shapes."""

import numbers
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_ti._arguments import to_tensor

_FLOATS = (tf.float32, tf.float64, tf.float16, tf.bfloat16)


def to_floats(values: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Tensors of one floating type; without the values that are None."""
    tensors = {label: to_tensor(label, v) for label, v in values.items() if v is not None}
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
    lengths = to_tensor("sequence_lengths", sequence_lengths)
    if not lengths.dtype.is_integer:
        raise TypeError(f"sequence_lengths must be of an integer dtype, got {lengths.dtype.name}")
    return lengths if lengths.dtype == tf.int32 else tf.cast(lengths, tf.int64)


def to_mask(mask: Any) -> tf.Tensor:
    mask = to_tensor("mask", mask)
    if mask.dtype != tf.bool:
        raise TypeError(f"mask must be bool, got {mask.dtype.name}")
    return mask


def require(condition: tf.Tensor, *message: str | tf.Tensor) -> list[tf.Operation]:
    """Ops that end with InvalidArgumentError unless the condition holds, which may be known now."""
    if not tf.executing_eagerly():
        return [tf.debugging.Assert(condition, message)]
    if not condition:
        parts = [part if isinstance(part, str) else str(part.numpy()) for part in message]
        raise tf.errors.InvalidArgumentError(None, None, " ".join(parts))
    return []


def check_shapes(
    tensors: Mapping[str, tf.Tensor],
    layouts: Mapping[str, str],
    given: Mapping[str, tuple[int, str]],
    hidden_size: Any,
) -> dict[str, tf.Tensor]:
    """Checks that dimensions of one name have one size, when called or, where unknown, when run.

    Args:
        tensors: by what errors call them.
        layouts: each tensor's dimensions, as "directions 4*hidden input".
        given: sizes that are known otherwise, and what says so.
        hidden_size: the size of "hidden", or None.

    Returns:
        The tensors, with all that is known of their shapes.
    """
    dimensions = {label: _parse(layouts[label]) for label in tensors}
    tensors = {label: _with_rank(label, t, layouts[label]) for label, t in tensors.items()}
    sizes: dict[str, tuple[int | tf.Tensor, str]] = dict(given)
    if hidden_size is not None:
        sizes["hidden"] = _check_hidden_size(hidden_size), "hidden_size"
    for label, tensor in tensors.items():
        for size, (factor, name) in zip(tensor.shape, dimensions[label]):
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
    checks = []
    for label, tensor in tensors.items():
        if tensor.shape.is_fully_defined():
            continue
        shape, is_checked = tf.shape(tensor, tf.int64), True
        for axis, (size, (factor, name)) in enumerate(zip(tensor.shape, dimensions[label])):
            if size is None:
                is_checked = is_checked and name not in sizes and factor == 1
                sizes.setdefault(name, (shape[axis] // factor, label))
        if not is_checked:
            known = [sizes[name] for _, name in dimensions[label]]
            expected = tf.stack(
                [
                    tf.cast(factor * n, tf.int64)
                    for (n, _), (factor, _) in zip(known, dimensions[label])
                ]
            )
            sources = [f"{name} of {sizes[name][1]}" for _, name in dimensions[label]]
            checks += require(
                tf.reduce_all(tf.equal(shape, expected)),
                f"{label} must be {_show(layouts[label])}, with {', '.join(sources)}:",
                expected,
                ", got",
                shape,
            )
    with tf.control_dependencies(checks):
        if checks:
            tensors = {label: tf.identity(tensor) for label, tensor in tensors.items()}
    for label, tensor in tensors.items():
        known = [sizes[name][0] for _, name in dimensions[label]]
        tensor.set_shape(
            [
                factor * size if isinstance(size, int) else None
                for size, (factor, _) in zip(known, dimensions[label])
            ]
        )
    return tensors


def _check_hidden_size(hidden_size: Any) -> int:
    if isinstance(hidden_size, bool) or not isinstance(hidden_size, numbers.Integral):
        raise TypeError(f"hidden_size must be an int or None, got {hidden_size!r}")
    if hidden_size < 1:
        raise ValueError(f"hidden_size must be above 0, got {hidden_size}")
    return int(hidden_size)


def _parse(layout: str) -> list[tuple[int, str]]:
    """The factor and the name of each dimension."""
    split = [dimension.rpartition("*") for dimension in layout.split()]
    return [(int(factor or 1), name) for factor, _, name in split]


def _show(layout: str) -> str:
    return f"[{', '.join(layout.split())}]"


def _with_rank(label: str, tensor: tf.Tensor, layout: str) -> tf.Tensor:
    rank = len(layout.split())
    if tensor.shape.rank is None:
        is_right, message = tf.equal(tf.rank(tensor), rank), f"{label} must be {_show(layout)}, got"
        with tf.control_dependencies(require(is_right, message, tf.shape(tensor))):
            tensor = tf.identity(tensor)
        tensor.set_shape([None] * rank)
    if tensor.shape.rank != rank:
        raise ValueError(f"{label} must be {_show(layout)}, got {tensor.shape}")
    return tensor
