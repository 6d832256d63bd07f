"""tf_ti: fast loops and pooled embeddings for TensorFlow."""

from tf_ti import _library  # noqa: F401, I001 - first: it says what an installation lacks
from tf_ti import _gradients  # noqa: F401 - registers the gradients
from tf_ti.ports import BackEdge, InputPort, OutputPort, PortMap
from tf_ti.scan import scan
from tf_ti.tensor_iterator import tensor_iterator

__all__ = [
    "BackEdge",
    "InputPort",
    "OutputPort",
    "PortMap",
    "scan",
    "tensor_iterator",
]
