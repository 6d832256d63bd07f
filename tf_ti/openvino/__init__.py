"""OpenVINO's IR in TensorFlow."""

from tf_ti.openvino.errors import IRError
from tf_ti.openvino.module import IRModule, TensorInfo, load
from tf_ti.openvino.operation import Operation, register

__all__ = ["IRError", "IRModule", "Operation", "TensorInfo", "load", "register"]
