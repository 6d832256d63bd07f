"""Devices, and the kernels that there are for them."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels
from tensorflow.python.ops import control_flow_util

from tf_ti._tf import graphs


def current_device() -> str:
    """The device that a `with tf.device` around the call asks for, or ""."""
    if tf.executing_eagerly():
        return context.context().device_name or ""
    return tf.no_op().device


def may_ask_for_host() -> bool:
    """Returns true if an operation may ask for the CPU, whatever those around it do.

    Within a colocation it would take the others to the CPU. In the body of a loop it would make the
    runtime run each iteration in parts, one a device.
    """
    if tf.executing_eagerly():
        return True
    graph = tf.compat.v1.get_default_graph()
    if any(graph._colocation_stack.peek_objs()):
        return False
    while graph is not None and not isinstance(graph, graphs.FuncGraph):
        graph = getattr(graph, "outer_graph", None)
    return graph is None


def _device_of_call() -> str:
    """The device that a `with tf.device` around all functions being traced asks for, or ""."""
    return context.context().device_name or ""


def is_usual_call() -> bool:
    """Returns true for an eager call where nothing changes what a function does.

    Something does where functions run eagerly, in a scope of tf.distribute, and where callbacks
    look at each operation.
    """
    if not tf.executing_eagerly() or tf.config.functions_run_eagerly():
        return False
    return not (context.context().op_callbacks or tf.distribute.has_strategy())


def has_gpu() -> bool:
    """Returns true if operations may run on a GPU; asking does not start the runtime."""
    current = context.context()
    if current._initialized:
        return current.num_gpus() > 0
    return bool(tf.config.get_visible_devices("GPU"))


def expects_gpu() -> bool:
    """Returns true if an operation will probably run on a GPU.

    It will, unless another device is asked for: here, or around the call that traces a function.
    """
    if not has_gpu():
        return False
    asked = tf.DeviceSpec.from_string(current_device() or _device_of_call()).device_type
    return asked in (None, "GPU")


def expects_xla() -> bool:
    """Returns true if the function that is being traced asks XLA to compile it."""
    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)


def registered_kernels() -> Sequence[Any]:
    """A KernelDef for each kernel that the process has."""
    return kernels.get_all_registered_kernels().kernel


def device_of_resource(tensor: tf.Tensor) -> str:
    """The device of a resource, "CPU:1", say, if its graph and those around it tell; or ""."""
    while tf.is_symbolic_tensor(tensor):
        outside = {inside.ref(): given for given, inside in getattr(tensor.graph, "captures", ())}
        if tensor.ref() in outside:
            tensor = outside[tensor.ref()]
        elif tensor.op.type == "Identity":
            tensor = tensor.op.inputs[0]
        else:
            break
    return tensor.device.removeprefix("/job:localhost/replica:0/task:0").removeprefix("/device:")
