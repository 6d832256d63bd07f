"""`tf_ti.keras.convert`: a model of Keras with tf_ti's layers in place of Keras's."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from tf_ti.keras import _internals
from tf_ti.keras.recurrent import OURS

_MEAN = "keras.layers.GlobalAveragePooling1D"
# What pools embeddings, and the combiner that it is.
_COMBINERS = {
    _MEAN: "mean",
    "keras.layers.GlobalMaxPooling1D": "max",
    "Sum": "sum",
    "Mean": "mean",
    "Max": "max",
}
_OF_EMBEDDING = (
    "name",
    "trainable",
    "dtype",
    "input_dim",
    "output_dim",
    "embeddings_initializer",
    "embeddings_regularizer",
    "embeddings_constraint",
)


@dataclasses.dataclass(frozen=True)
class Converted:
    """What became of a layer.

    Attributes:
        path: the names of the models and layers around it, and its own.
        layer: the class of the layer.
        became: the class of tf_ti.keras that takes its place; "" if it stays.
        reason: how that one runs, or why it stays.
    """

    path: str
    layer: str
    became: str
    reason: str

    def __str__(self) -> str:
        became = f"tf_ti.keras.{self.became}" if self.became else "stays"
        return f"{self.path}: {self.layer} -> {became}: {self.reason}"


class Report(tuple[Converted, ...]):
    """What became of each recurrent and each embedding layer of a model, as text too."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "there are no recurrent and no embedding layers"


def convert(model: keras.Model) -> tuple[keras.Model, Report]:
    """Makes a model whose recurrent layers, and pooled embeddings, are those of tf_ti.keras.

    The new model has the weights of the old one, the names of its layers, its states and seeds,
    and, if it is compiled, the same losses, metrics and optimizer, with the averages that this has.
    It shares nothing with the old one, which stays as it is.

    - `keras.layers.LSTM`, `GRU`, `SimpleRNN` and `RNN`, also inside of Bidirectional, of other
      layers and of models in the model, become layers of the same name of tf_ti.keras.
    - A `keras.layers.Embedding` of ids [batch, n] whose only reader pools it becomes a
      `tf_ti.keras.EmbeddingBag` of its name: GlobalAveragePooling1D and GlobalMaxPooling1D, and in
      functional models `keras.ops.sum`, `mean` and `max` over the ids. Of ids that are all masked,
      the mean is zeros, and not NaN.

    Losses of training are the same too, but for optimizers that square gradients: for these Keras
    squares the gradients of an id's occurrences one by one, and a bag has their sum.

    Args:
        model: a functional or a Sequential model. Layers of classes of its own are registered with
            Keras, or their constructors take what `get_config` returns.

    Returns:
        The new model, and a `Report`: a `Converted` for each layer that is replaced, or might have
        been.

    Raises:
        TypeError: the model is of a subclass, whose layers only its code knows.
        ValueError: Keras cannot make the model anew of its configuration.

    Example:

        >>> layers = [keras.Input((None, 3)), keras.layers.LSTM(4, name="memory")]
        >>> model, report = tf_ti.keras.convert(keras.Sequential(layers))
        >>> print(report)
        memory: LSTM -> tf_ti.keras.LSTM: one native op

    Source: keras.models.clone_model.
    """
    if not _internals.is_plain_model(model):
        raise TypeError(
            "`model` must be a functional or a Sequential model, whose layers can be replaced. "
            f"Received: {model!r} (of type {type(model).__name__})"
        )
    conversion = _Conversion(_losses_by_name(model))
    config = conversion.model(model.get_config(), "")
    own = {type(layer).__name__: type(layer) for layer in _internals.layers_of(model)}
    try:
        made = type(model).from_config(config, custom_objects=own)
        if model.built and not made.built:
            made.build_from_config(model.get_build_config())
        copies = list(_copies(model, made))
        for variable, copy in copies:
            copy.assign(variable)
        if model.compiled:
            _compile(model, made, {id(variable): copy for variable, copy in copies})
    except (TypeError, ValueError) as error:
        raise ValueError(f"Keras cannot make {model.name!r} anew: {error}") from error
    by_name = {layer.name: layer for layer in _internals.layers_of(made)}
    return made, Report(
        dataclasses.replace(each, reason=_how(by_name[each.path.split("/")[-1]]))
        if each.became in _RECURRENT
        else each
        for each in conversion.found
    )


_RECURRENT = frozenset(layer.__name__ for layer in OURS)


def _how(layer: Any) -> str:
    """How the steps of a recurrent layer run."""
    if not hasattr(layer, "problem"):
        return "a loop of tf_ti around its cell"
    problem, in_training = layer.problem(training=False), layer.problem(training=True)
    if problem:
        return f"its cell in a loop: {problem}"
    return (
        f"one native op; in training its cell in a loop: {in_training}"
        if in_training
        else ("one native op")
    )


def _losses_by_name(model: keras.Model) -> frozenset[str]:
    """The names of outputs that losses and the like are for."""
    if not model.compiled:
        return frozenset()
    values = (model.get_compile_config() or {}).values()
    return frozenset(name for value in values if isinstance(value, dict) for name in value)


class _Conversion:
    """Replaces layers in the configuration of a model."""

    def __init__(self, named: frozenset[str]):
        self.found: list[Converted] = []
        self._named = named

    def model(self, config: dict[str, Any], path: str) -> dict[str, Any]:
        config = dict(config)
        is_functional = "output_layers" in config
        config["layers"] = [dict(layer) for layer in config["layers"]]
        for layer in list(config["layers"]):
            if _class_of(layer) == "keras.layers.Embedding":
                pool = _FunctionalPool if is_functional else _SequentialPool
                self._pooled(pool(config, layer), layer, path)
        config["layers"] = [self._replaced(layer, path) for layer in config["layers"]]
        return config

    def _pooled(self, pool: Any, layer: dict[str, Any], path: str) -> None:
        """Makes one layer of an embedding and what pools it, if that is plain."""
        reason, combiner = pool.find(self._named)
        where = f"{path}{layer['config']['name']}"
        if reason:
            self.found.append(Converted(where, "Embedding", "", reason))
            return
        own = {name: layer["config"][name] for name in _OF_EMBEDDING}
        own |= {"combiner": combiner, "mask_zero": pool.is_masked}
        name = pool.merge()
        layer.update(_of_ours("EmbeddingBag"), config=own)
        said = f"the {combiner} of its rows, without {name!r}"
        self.found.append(Converted(where, "Embedding", "EmbeddingBag", said))

    def _replaced(self, layer: Any, path: str) -> Any:
        """A layer's configuration with those in it replaced."""
        if isinstance(layer, list):
            return [self._replaced(part, path) for part in layer]
        if not isinstance(layer, dict):
            return layer
        config = layer.get("config")
        if "class_name" not in layer or not isinstance(config, dict):
            return {name: self._replaced(part, path) for name, part in layer.items()}
        where = f"{path}{config.get('name', layer['class_name'])}"
        if "layers" in config and _class_of(layer) in _MODELS:
            return {**layer, "config": self.model(config, f"{where}/")}
        inside = {name: self._replaced(part, f"{where}/") for name, part in config.items()}
        kind = _class_of(layer).removeprefix("keras.layers.")
        if _class_of(layer).startswith("keras.layers.") and kind in _RECURRENT:
            self.found.append(Converted(where, kind, kind, ""))
            return {**layer, **_of_ours(kind), "config": inside}
        return {**layer, "config": inside}


_MODELS = frozenset(["keras.Sequential", "keras.src.models.functional.Functional"])


def _class_of(layer: dict[str, Any]) -> str:
    if layer.get("registered_name"):
        return layer["registered_name"]
    return f"{layer.get('module')}.{layer['class_name']}"


def _of_ours(name: str) -> dict[str, str]:
    return {"module": "tf_ti.keras", "class_name": name, "registered_name": f"tf_ti>{name}"}


class _SequentialPool:
    """What comes after an embedding in a Sequential model.

    Attributes:
        is_masked: true if the pool leaves masked ids out.
    """

    def __init__(self, config: dict[str, Any], embedding: dict[str, Any]):
        self._all, self._embedding = config["layers"], embedding
        self.is_masked = embedding["config"]["mask_zero"]
        following = self._all[self._all.index(embedding) + 1 :]
        self._pool = following[0] if following else None

    def find(self, named: frozenset[str]) -> tuple[str, str]:
        """Why it cannot be merged, or the combiner."""
        if self._pool is None:
            return "nothing pools it", ""
        shape = self._embedding.get("build_config", {}).get("input_shape") or ()
        reason, combiner = _combiner(self._embedding, self._pool, len(shape))
        if _class_of(self._pool) != _MEAN:
            self.is_masked = False
        return reason, combiner

    def merge(self) -> str:
        """Takes the pool away, and returns its name."""
        self._all.remove(self._pool)
        return self._pool["config"]["name"]


class _FunctionalPool:
    """What reads an embedding in a functional model.

    Attributes:
        is_masked: true if the pool leaves masked ids out.
    """

    def __init__(self, config: dict[str, Any], embedding: dict[str, Any]):
        self._config, self._embedding = config, embedding
        self._pool: Any = None
        self.is_masked = False

    def find(self, named: frozenset[str]) -> tuple[str, str]:
        """Why it cannot be merged, or the combiner."""
        name = self._embedding["name"]
        readers = [layer for layer in self._config["layers"] if name in _read_by(layer)]
        outputs = [output[0] for output in _ends(self._config["output_layers"])]
        if len(self._embedding["inbound_nodes"]) != 1:
            return "it is called more than once", ""
        if len(readers) != 1 or name in outputs:
            return "not only a pool reads it" if readers else "nothing pools it", ""
        (self._pool,) = readers
        (call,) = self._embedding["inbound_nodes"]
        shape = next((t["shape"] for t in _tensors(call)), ())
        if len(self._pool["inbound_nodes"]) != 1 or _read_by(self._pool).count(name) != 1:
            return f"{self._pool['name']!r} is called more than once", ""
        if self._pool["name"] in outputs and self._pool["name"] in named:
            return f"{self._pool['name']!r} is the name of an output", ""
        reason, combiner = _combiner(self._embedding, self._pool, len(shape))
        sources = _read_by(self._pool)
        if len(sources) > 1:  # beside the embedding, its mask
            self.is_masked = self._embedding["config"]["mask_zero"]
            is_own = self._is_mask(sources[1]) and self.is_masked and _class_of(self._pool) == _MEAN
            reason = reason or ("" if is_own else f"{self._pool['name']!r} has another mask")
        return reason, combiner

    def _is_mask(self, name: str) -> bool:
        """True if a layer makes the mask of the ids."""
        layer = next(layer for layer in self._config["layers"] if layer["name"] == name)
        return layer["class_name"] == "NotEqual" and _read_by(layer) == _read_by(self._embedding)

    def merge(self) -> str:
        """Takes the pool away, and returns its name."""
        name, layers = self._pool["name"], self._config["layers"]
        masks = _read_by(self._pool)[1:]
        layers.remove(self._pool)
        for parts in ([layer["inbound_nodes"] for layer in layers], self._config["output_layers"]):
            _rename(parts, name, self._embedding["name"])
        for mask in masks:
            if not any(mask in _read_by(layer) for layer in layers):
                layers[:] = [layer for layer in layers if layer["name"] != mask]
        return name


def _combiner(embedding: dict[str, Any], pool: dict[str, Any], rank: int) -> tuple[str, str]:
    """Why a layer is no plain pool of embeddings, or the combiner."""
    own, config = embedding["config"], pool["config"]
    name = config["name"]
    if _class_of(pool) not in _COMBINERS:
        return f"{name!r}, which reads it, is no plain pool", ""
    if rank != 2:
        return f"its ids have {rank} dimensions, and not 2", ""
    if config.get("keepdims") or config.get("data_format", "channels_last") != "channels_last":
        return f"{name!r} keeps dimensions, or has channels first", ""
    if "axis" in config and config["axis"] not in (1, -2, [1], [-2]):
        return f"{name!r} is over the axis {config['axis']}", ""
    if config.get("initial") is not None:
        return f"{name!r} has an initial value", ""
    if config.get("dtype", own["dtype"]) != own["dtype"] and "trainable" in config:
        return f"{name!r} has another dtype policy", ""
    if own.get("activity_regularizer") or own.get("quantization_config") or own.get("lora_rank"):
        return "it has an activity regularizer, is quantized or has a LoRA", ""
    return "", _COMBINERS[_class_of(pool)]


def _tensors(part: Any) -> Iterator[dict[str, Any]]:
    """The tensors among the arguments of a call."""
    if isinstance(part, dict):
        if part.get("class_name") == "__keras_tensor__":
            yield part["config"]
            return
        part = list(part.values())
    if isinstance(part, Sequence) and not isinstance(part, str):
        for each in part:
            yield from _tensors(each)


def _read_by(layer: dict[str, Any]) -> list[str]:
    """The names of the layers that a layer reads."""
    return [tensor["keras_history"][0] for tensor in _tensors(layer["inbound_nodes"])]


def _ends(part: Any) -> Iterator[list]:
    """The places of outputs in a structure of them: [name, call, number]."""
    if isinstance(part, (list, tuple)) and part and isinstance(part[0], str):
        yield part
        return
    for each in part.values() if isinstance(part, dict) else part:
        yield from _ends(each)


def _rename(part: Any, old: str, new: str) -> None:
    """Makes the readers of one layer's first call those of another's."""
    for tensor in _tensors(part):
        if tensor["keras_history"][0] == old:
            tensor["keras_history"] = [new, *tensor["keras_history"][1:]]
    if not isinstance(part, dict) and part and not any(True for _ in _tensors(part)):
        for end in _ends(part):
            if end and end[0] == old:
                end[0] = new


def _copies(model: keras.Model, made: keras.Model) -> Iterator[tuple[Any, Any]]:
    """The variables of a model's layers, each with the one that takes its place.

    They are weights, states and seeds.
    """
    for layer in made.layers:
        other = model.get_layer(layer.name)
        if _internals.is_plain_model(layer):
            yield from _copies(other, layer)
            continue
        if len(layer.variables) != len(other.variables):
            raise ValueError(f"layer {layer.name!r} has other weights than the one it replaces")
        yield from zip(other.variables, layer.variables)
        for parts in zip(_internals.layers_of(other), _internals.layers_of(layer)):
            yield from zip(*(getattr(part, "states", None) or () for part in parts))


def _compile(model: keras.Model, made: keras.Model, copies: Mapping[int, Any]) -> None:
    """Compiles a model as another one is, and copies what its optimizer keeps."""
    made.compile_from_config(model.get_compile_config())
    if not made.compiled:
        raise ValueError("its losses, metrics or optimizer have no configuration")
    if model.optimizer is None or not model.optimizer.built:
        return
    # One that keeps what it has in the order of the old variables, as the old one does.
    twin = type(model.optimizer).from_config(model.optimizer.get_config())
    twin.build([copies[id(variable)] for variable in model.trainable_variables])
    values = {own.path: value for own, value in zip(twin.variables, model.optimizer.variables)}
    for variable in made.optimizer.variables:
        variable.assign(values[variable.path])
