"""tf_ti.keras: layers and optimizers for Keras 3 on its TensorFlow backend."""

try:
    import keras
except ModuleNotFoundError as error:
    if error.name != "keras":
        raise
    raise ImportError("tf_ti.keras needs Keras 3: run `pip install keras`") from error

if keras.__version__.split(".")[0] < "3":
    raise ImportError(f"tf_ti.keras needs Keras 3. Received: keras {keras.__version__}")
if keras.backend.backend() != "tensorflow":
    raise RuntimeError(
        "tf_ti.keras needs Keras on TensorFlow: set the environment variable "
        "KERAS_BACKEND=tensorflow before keras is imported. Received: "
        f"keras.backend.backend()={keras.backend.backend()!r}"
    )

from tf_ti.keras import _internals  # noqa: E402 - what it needs is checked first

_internals.check()

from tf_ti.keras import optimizers  # noqa: E402
from tf_ti.keras.conversion import Converted, Report, convert  # noqa: E402
from tf_ti.keras.embedding_bag import EmbeddingBag  # noqa: E402
from tf_ti.keras.embedding_bags import EmbeddingBags  # noqa: E402
from tf_ti.keras.openvino import OpenVINO  # noqa: E402
from tf_ti.keras.recurrent import GRU, LSTM, RNN, SimpleRNN  # noqa: E402
from tf_ti.keras.summaries import summary  # noqa: E402

__all__ = [
    "Converted",
    "EmbeddingBag",
    "EmbeddingBags",
    "GRU",
    "LSTM",
    "OpenVINO",
    "RNN",
    "Report",
    "SimpleRNN",
    "convert",
    "optimizers",
    "summary",
]
