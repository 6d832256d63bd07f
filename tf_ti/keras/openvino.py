"""`tf_ti.keras.OpenVINO`: a model in OpenVINO's IR as a layer."""

import base64
import dataclasses
import itertools
import os
from collections.abc import Collection, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ti.openvino import IRError, IRModule, TensorInfo
from tf_ti.openvino.model import Layer
from tf_ti.openvino.module import identifiers
from tf_ti.openvino.precision import Precision
from tf_ti.openvino.reader import document, parse
from tf_ti.openvino.weights import Weights, declared

# The config has floating constants of up to so many bytes too: shapes may depend on them.
_SMALL = 1024


@keras.saving.register_keras_serializable(package="tf_ti")
class OpenVINO(keras.layers.Layer):
    """A model in OpenVINO's IR, version 10 or 11, whose constants are weights of the layer.

    It means:

        module = tf_ti.openvino.load(path, weights, trainable=True)
        layer = lambda inputs: module(*inputs)

    Floating constants with more than one element are weights: an optimizer trains them,
    `layer.trainable = False` freezes them, and they are saved with a Keras model. A saved layer
    needs neither file: its config has the text of the XML, and the other constants. The states of
    ReadValue and Assign are not weights: a loaded layer starts with initial ones. Keras's files
    cannot hold weights of float8 dtypes, which a model has if it computes with them.

    Args:
        path: the .xml file.
        weights: the .bin file; by default the one beside it of the same name.
        trainable: as of any Keras layer: False freezes the weights.
        **kwargs: `name`, as of any Keras layer. The dtypes are those of the file, whatever the
            layer's dtype policy is.

    Call arguments:
        inputs: a tensor; for a model with several inputs, a list of tensors in their order, or a
            dict by their names. They are cast to the dtypes of the model, even from floating
            point to integers: `keras.Input` is floating point by default.

    Output shape:
        A tensor, or a tuple of them if the model has several outputs. The first dimension is the
        batch only if the file says so: a fixed batch size of the file is kept.

    Attributes:
        model_inputs, model_outputs: the model's inputs and outputs, as
            `tf_ti.openvino.TensorInfo`s.

    Raises:
        tf_ti.openvino.IRError: the file, or the weights, cannot be used, or have operations that
            are not supported. The message names the file, the layer and the port.
        TypeError, ValueError: inputs do not fit the model.

    Example:

        layer = tf_ti.keras.OpenVINO("backbone.xml", trainable=False)
        model = keras.Sequential([keras.Input((3, 224, 224)), layer, keras.layers.Dense(10)])

    Source: OpenVINO's IR.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        weights: str | os.PathLike[str] | None = None,
        trainable: bool = True,
        **kwargs: Any,
    ):
        super().__init__(**kwargs, autocast=False)
        if isinstance(path, _Saved):
            saved, text, path = path, path.text, "the IR in a config"
            constants = _Constants("the constants in a config", saved.data(), saved.filled)
        else:
            path = os.fsdecode(path)
            text = _text(path)
            constants = _Constants(weights or os.path.splitext(path)[0] + ".bin")
        self._module = IRModule(parse(text, path), constants, True, None, Precision())
        self._saved = _Saved(text, constants.num_bytes, constants.pieces, constants.filled)
        self.model_inputs: tuple[TensorInfo, ...] = self._module.inputs
        self.model_outputs: tuple[TensorInfo, ...] = self._module.outputs
        with keras.name_scope(self.name, caller=self):
            self._ir_weights = [
                keras.Variable(
                    variable,
                    dtype=variable.dtype.name,
                    autocast=False,
                    name=variable.name.split(":")[0],
                )
                for variable in self._module.trainable_variables
            ]
        self.trainable = trainable  # after the weights: it sets theirs too
        # XLA may lack some of the model's operations.
        self.supports_jit = False
        self.built = True

    def call(self, inputs: Any) -> tf.Tensor | tuple[tf.Tensor, ...]:
        if not all(isinstance(weight.value, tf.Variable) for weight in self._ir_weights):
            raise NotImplementedError(
                f"tf_ti.keras.OpenVINO {self.name!r} reads its own weights: it cannot be called "
                "with others, as by stateless_call"
            )
        if isinstance(inputs, Mapping):
            by_name = {name: info for info in self.model_inputs for name in info.names}
            named = {name: _cast(value, by_name.get(name)) for name, value in inputs.items()}
            outputs = self._module(**named)
        else:
            tensors = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            infos = itertools.chain(self.model_inputs, itertools.repeat(None))
            outputs = self._module(*map(_cast, tensors, infos))  # the module refuses too many
        return outputs[0] if len(outputs) == 1 else outputs

    def to_model(self) -> keras.Model:
        """Returns a model of this layer alone, with the inputs and outputs of the file."""
        if not self.model_inputs:
            raise IRError("the model has no inputs, as a model of Keras must")
        for info in self.model_inputs:
            if info.shape.rank is None:
                raise IRError(f"input {info.name!r}: its rank is not known, as Keras needs it")
        inputs = [
            keras.Input(batch_shape=tuple(info.shape), dtype=info.dtype.name, name=name)
            for info, name in zip(self.model_inputs, identifiers(self.model_inputs, {self.name}))
        ]
        first = inputs[0] if len(inputs) == 1 else inputs
        return keras.Model(first, self(first))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "ir": self._saved.get_config()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "OpenVINO":
        """Makes a layer with weights of zeros, which Keras then loads. It reads no file."""
        config = dict(config)
        saved: Any = _Saved.from_config(config.pop("ir", None))
        return cls(saved, **config)


@dataclasses.dataclass(frozen=True)
class _Saved:
    """The source of a model, without large floating constants.

    Attributes:
        text: the XML.
        num_bytes: the size of the .bin file, as far as it is used.
        pieces: its constants, as bytes by their offsets.
        filled: the offsets of weights of which all numbers are equal, as far as that is known.
    """

    text: str
    num_bytes: int
    pieces: Mapping[int, bytes]
    filled: Collection[int] | None = None

    def data(self) -> np.ndarray:
        """The .bin file. Zeros, which take no memory until they are used, stand for the rest."""
        try:
            data = np.zeros(self.num_bytes, np.uint8)
        except (MemoryError, ValueError) as error:
            raise IRError(f"weights of {self.num_bytes} bytes: {error}") from error
        for offset, piece in self.pieces.items():
            if not 0 <= offset <= self.num_bytes - len(piece):
                raise IRError(f"constants at {offset} are not within {self.num_bytes} bytes")
            data[offset : offset + len(piece)] = np.frombuffer(piece, np.uint8)
        return data

    def get_config(self) -> dict[str, Any]:
        coded = {str(at): base64.b64encode(piece).decode() for at, piece in self.pieces.items()}
        config = {"xml": self.text, "num_bytes": self.num_bytes, "constants": coded}
        return config if self.filled is None else {**config, "filled": sorted(self.filled)}

    @classmethod
    def from_config(cls, config: Any) -> "_Saved":
        try:
            text, num_bytes, coded = (config[name] for name in ("xml", "num_bytes", "constants"))
            pieces = {int(at): base64.b64decode(text, validate=True) for at, text in coded.items()}
            # Files of older versions have none.
            filled = None if config.get("filled") is None else set(map(int, config["filled"]))
            if isinstance(text, str) and type(num_bytes) is int:
                return cls(text, num_bytes, pieces, filled)
            cause = None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            cause = error
        raise IRError("the config of a tf_ti.keras.OpenVINO has no IR in it") from cause


class _Constants(Weights):
    """The constants of a model. It remembers those read, without large floating ones.

    In place of the latter a config has zeros, so it says of which all numbers are equal.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        data: np.ndarray | None = None,
        filled: Collection[int] | None = None,
    ):
        super().__init__(path, data)
        self.pieces: dict[int, bytes] = {}
        self.num_bytes = 0
        self._known = filled
        self.filled: set[int] = set()

    def is_filled(self, layer: Layer, array: np.ndarray) -> bool:
        offset = self._position(layer, "offset")
        is_so = super().is_filled(layer, array) if self._known is None else offset in self._known
        if is_so:
            self.filled.add(offset)
        return is_so

    def piece(self, layer: Layer, offset: int, size: int) -> np.ndarray:
        found = super().piece(layer, offset, size)
        self.num_bytes = max(self.num_bytes, offset + size)
        is_weight = size > _SMALL and declared(layer)[0].is_floating
        if not is_weight and size > len(self.pieces.get(offset, b"")):
            self.pieces[offset] = found.tobytes()
        return found


def _text(path: str) -> str:
    try:
        return document(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise IRError(f"{path}: is not in UTF-8: {error}") from error


def _cast(value: Any, info: TensorInfo | None) -> Any:
    return value if info is None else tf.cast(value, info.dtype)
