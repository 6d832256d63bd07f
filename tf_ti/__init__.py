"""tf_ti: fast loops, recurrent layers and pooled embeddings for TensorFlow."""

import contextlib
import importlib
from typing import TYPE_CHECKING

import wrapt

from tf_ti import _library  # noqa: I001 - first: its error names what is missing
from tf_ti.bags.huge_pages import advise_huge_pages
from tf_ti.bags.lookups import (
    embedding_bag,
    embedding_bag_offsets,
    embedding_bag_offsets_sum,
    embedding_bag_packed,
    embedding_segments_sum,
)
from tf_ti.bags.many import embedding_bags
from tf_ti.bags.updates import adagrad_update, adam_update, scatter_sub
from tf_ti.loops.block.loop import Loop, LoopOutput, TripLimit
from tf_ti.loops.explaining.explain import explain
from tf_ti.loops.ports import BackEdge, InputPort, OutputPort, PortMap, draw
from tf_ti.loops.scan import scan
from tf_ti.loops.tensor_iterator import tensor_iterator
from tf_ti.loops.while_loop import while_loop
from tf_ti.recurrent.cells import gru_cell, lstm_cell, rnn_cell
from tf_ti.recurrent.sequences import gru_sequence, lstm_sequence, rnn_sequence

__version__ = _library.VERSION

__all__ = [
    "BackEdge",
    "InputPort",
    "Loop",
    "LoopOutput",
    "OutputPort",
    "PortMap",
    "TripLimit",
    "__version__",
    "accelerate",
    "adagrad_update",
    "adam_update",
    "advise_huge_pages",
    "draw",
    "embedding_bag",
    "embedding_bag_offsets",
    "embedding_bag_offsets_sum",
    "embedding_bag_packed",
    "embedding_bags",
    "embedding_segments_sum",
    "explain",
    "gru_cell",
    "gru_sequence",
    "keras",
    "lstm_cell",
    "lstm_sequence",
    "openvino",
    "recurrent",
    "rnn_cell",
    "rnn_sequence",
    "scan",
    "scatter_sub",
    "tensor_iterator",
    "while_loop",
]

if TYPE_CHECKING:
    from tf_ti import keras, openvino, recurrent
    from tf_ti.accelerate.switch import Switch

    accelerate: Switch
else:
    from tf_ti import accelerate

    def __getattr__(name):
        if name in ("keras", "openvino"):
            return importlib.import_module(f"tf_ti.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def _register_layers(_: object) -> None:
    """Lets Keras find tf_ti's layers in the models that it loads.

    If they cannot be imported, the error is raised when `tf_ti.keras` is used.
    """
    with contextlib.suppress(ImportError, RuntimeError):
        importlib.import_module("tf_ti.keras")


wrapt.register_post_import_hook(_register_layers, "keras")  # at once if Keras is imported already
