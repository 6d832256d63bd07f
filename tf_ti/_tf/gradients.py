"""Gradients: records of what is computed, and the gradient functions of operations."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import forwardprop_util, record as tape_lib
from tensorflow.python.framework import ops
from tensorflow.python.ops import handle_data_util

# Nothing that runs inside is recorded.
stop_recording = tape_lib.stop_recording
# Inside, tapes work though an accumulator does, which asks for a tangent.
inside_jvp = forwardprop_util.push_forwardprop_state


def is_recording() -> bool:
    """Returns true if a GradientTape or a ForwardAccumulator may record what runs now."""
    return tape_lib.could_possibly_record()


def is_watched(tensor: tf.Tensor) -> bool:
    """Returns true if a GradientTape records operations that read a tensor."""
    return tape_lib.should_record_backprop([tensor])


def have_tangents(tensors: Sequence[tf.Tensor]) -> bool:
    """Returns true if a ForwardAccumulator follows one of these."""
    return bool(forwardprop_util.pack_tangents(list(tensors)).tangents)


def record(
    name: str,
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    gradient: Callable[..., Any],
    jvp: Callable[..., Any],
) -> None:
    """Shows tapes and accumulators what was computed while they did not look.

    Args:
        name: what it is called.
        inputs, outputs: tensors.
        gradient: from the gradients of the outputs to those of the inputs.
        jvp: from the tangents of the inputs to those of the outputs.
    """
    tape_lib.record_operation(name, outputs, inputs, gradient, jvp)


def is_trainable(dtype: tf.DType) -> bool:
    return dtype.is_floating or dtype.is_complex


def is_list(tensor: tf.Tensor) -> bool:
    """Returns true for a variant that is known to hold a list of tensors that have gradients.

    Elements that are variants themselves are rows of ragged tensors.
    """
    if tensor.dtype != tf.variant:
        return False
    data = handle_data_util.get_resource_handle_data(tensor)
    types = [tf.as_dtype(element.dtype) for element in data.shape_and_type]
    return data.is_set and all(is_trainable(dtype) or dtype == tf.variant for dtype in types)


def spec_inside(tensor: tf.Tensor) -> tf.TensorSpec | None:
    """The type of a list's elements, or of the value of a variable whose handle a tensor is.

    None if nothing is known of the contents, or if the tensor holds something else.
    """
    is_eager = isinstance(tensor, ops.EagerTensor)
    data = tensor._handle_data if is_eager else handle_data_util.get_resource_handle_data(tensor)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    (element,) = data.shape_and_type
    return tf.TensorSpec(tf.TensorShape(element.shape), tf.as_dtype(element.dtype))


def copy_handle_data_of_lanes(source: tf.Tensor, copy: tf.Tensor, lanes: int | None) -> None:
    """Lets a variant know the elements of lists that it has of all lanes, along a first axis."""
    data = handle_data_util.get_resource_handle_data(source)
    for element in data.shape_and_type:
        shape = tf.TensorShape([lanes]).concatenate(tf.TensorShape(element.shape))
        element.shape.CopyFrom(shape.as_proto())
    if data.is_set:
        handle_data_util.set_handle_data(copy, data)


def find_gradient(op: tf.Operation) -> Callable[..., Any] | None:
    """The gradient function that an operation has beside its type's."""
    own = getattr(op, "tf_ti_gradient_function", None)
    if own is not None:
        return own
    try:
        return ops.gradient_registry.lookup(op.get_attr("_gradient_op_type").decode())
    except LookupError:
        return None


def use_gradient(op: tf.Operation, function: Callable[..., Any]) -> None:
    """Gives one operation of a graph another gradient function than its type has."""
    op._gradient_function = function


def copy_gradient(op: tf.Operation, copy: tf.Operation) -> None:
    """Gives the copy of an operation the gradient function that the original has to itself."""
    function = getattr(op, "_gradient_function", None)
    if function is not None:
        copy._gradient_function = function
    if hasattr(op, "tf_ti_gradient_function"):
        copy.tf_ti_copied = op  # with which the name of the function goes
