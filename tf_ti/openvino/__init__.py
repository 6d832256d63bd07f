"""OpenVINO's IR in TensorFlow."""

from tf_ti.openvino.errors import IRError
from tf_ti.openvino.module import IRModule, TensorInfo, load
from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.writer.save import save

__all__ = ["IRError", "IRModule", "Operation", "TensorInfo", "load", "register", "save"]


def __dir__() -> list[str]:
    return __all__
