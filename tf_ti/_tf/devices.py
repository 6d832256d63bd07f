"""Devices, and the kernels that there are for them."""

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels


def current_device() -> str:
    """The device that a `with tf.device` around the call asks for, or ""."""
    if tf.executing_eagerly():
        return context.context().device_name or ""
    return tf.no_op().device


def device_of_call() -> str:
    """The device that a `with tf.device` around all functions being traced asks for, or ""."""
    return context.context().device_name or ""


def has_gpu() -> bool:
    """Returns true if operations may run on a GPU; asking does not start the runtime."""
    current = context.context()
    if current._initialized:
        return current.num_gpus() > 0
    return bool(tf.config.get_visible_devices("GPU"))


def registered_kernels():
    """A KernelDef for each kernel that the process has."""
    return kernels.get_all_registered_kernels().kernel
