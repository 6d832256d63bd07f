"""The configuration of a model with bags in it in place of pooled embeddings."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from tf_ti.keras import _internals

_EMBEDDING = "keras.layers.Embedding"
_MEAN = "keras.layers.GlobalAveragePooling1D"
# What pools embeddings, and the combiner that it is.
_COMBINERS = {_MEAN: "mean", "keras.layers.GlobalMaxPooling1D": "max"} | _internals.POOLING_OPS
# What an EmbeddingBag, and what stays of its pooling, have of the layers in whose place they are.
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
_NOT_OF_BAGS = {"activity_regularizer": "an activity regularizer", "lora_rank": "a LoRA"}
_OF_POOL = ("name", "trainable", "dtype", "activity_regularizer")
_BAG = {
    "module": "tf_ti.keras",
    "class_name": "EmbeddingBag",
    "registered_name": "tf_ti>EmbeddingBag",
}


class Replacement:
    """The replaced configuration of a model.

    Attributes:
        config: the configuration of the new model.
        objects: the functions that it names.
        embeddings: what became of each Embedding, by its path, or why it stays.
    """

    def __init__(self, model: keras.Model):
        self.objects: dict[str, Any] = {}
        self.embeddings: dict[str, str] = {}
        self._is_built = model.built
        self.config = self._inside(model.get_config(), model, "")

    def _inside(self, config: dict[str, Any], live: Any, path: str) -> dict[str, Any]:
        """Replaces the layers inside a model or a layer; returns its new configuration."""
        if _internals.is_plain_model(live):
            return self._model(config, live, path)
        return {
            name: self._replaced(each, _attribute(live, name), path)
            for name, each in config.items()
        }

    def _model(self, config: dict[str, Any], model: Any, path: str) -> dict[str, Any]:
        layers = [dict(layer) for layer in config["layers"]]
        config = {**config, "layers": layers}
        for layer in layers:
            if _class_of(layer) == _EMBEDDING:
                where = f"{path}{layer['config']['name']}"
                self.embeddings[where] = _merge(config, layer)
        own = {layer.name: layer for layer in model.layers}
        config["layers"] = [
            self._replaced(layer, own.get(layer["config"].get("name")), path) for layer in layers
        ]
        return config

    def _replaced(self, part: Any, live: Any, path: str) -> Any:
        """A part of a configuration with the layers in it replaced.

        Args:
            live: what the part describes, or None where that is not known.
        """
        if isinstance(part, (list, tuple)):
            is_like = isinstance(live, (list, tuple)) and len(live) == len(part)
            lives = live if is_like else [None] * len(part)
            return type(part)(self._replaced(each, own, path) for each, own in zip(part, lives))
        if not isinstance(part, dict):
            return part
        config = part.get("config")
        if inspect.isfunction(live):
            return self._function(live)
        if "class_name" not in part or not isinstance(config, dict):
            return {name: self._replaced(each, None, path) for name, each in part.items()}
        # A nested model is compiled as the whole is: from what it has, not from a configuration.
        part = {name: value for name, value in part.items() if name != "compile_config"}
        if self._is_built and _internals.is_built_by_calls(live):
            # Built before they are called, layers lack their models' names in variables' paths.
            part.pop("build_config", None)
        where = f"{path}{config.get('name', part['class_name'])}/"
        inside = self._inside(config, live, where)
        if isinstance(live, keras.layers.Lambda):
            inside["mask"] = live.mask  # which Keras takes as it is
        return {**part, "config": inside}

    def _function(self, function: Any) -> dict[str, Any]:
        """The configuration of a function of the user's own, which no file needs to name."""
        name = f"{function.__name__} {len(self.objects)}"
        self.objects[name] = function
        return {
            "module": "builtins",
            "class_name": "function",
            "config": name,
            "registered_name": name,
        }


def _attribute(live: Any, name: str) -> Any:
    """What a layer has for an entry of its configuration, if that is plain."""
    if isinstance(live, keras.layers.Bidirectional) and name == "layer":
        return live.forward_layer
    return getattr(live, name, None)


def _class_of(layer: dict[str, Any]) -> str:
    return f"{layer.get('module')}.{layer['class_name']}"


# --- embeddings and what pools them --------------------------------------------------------------


def _merge(config: dict[str, Any], embedding: dict[str, Any]) -> str:
    """Makes one layer of an embedding and what pools it, if that is plain.

    What pooled it becomes an Identity, so that layers and outputs keep their names.

    Returns:
        What became of the embedding, or why it stays.
    """
    own = embedding["config"]
    for name, what in _NOT_OF_BAGS.items():
        if own.get(name):
            return f"it has {what}, which an EmbeddingBag has not"
    if own["dtype"]["class_name"] != "DTypePolicy":
        return f"its dtype policy is a {own['dtype']['class_name']}, which an EmbeddingBag has not"
    in_graph = "output_layers" in config
    pools = _readers(config, embedding) if in_graph else _next(config, embedding)
    if not pools:
        return "nothing in its model pools it"
    problems = [_problem_of_pool(pool) for pool in pools]
    if in_graph:
        problems += [_problem_of_calls(config, embedding, pool) for pool in pools]
    # The combiners, each with whether it leaves masked ids out.
    ways = {
        (_COMBINERS.get(_class_of(pool)), is_masked)
        for pool in pools
        for is_masked in _which_calls_are_masked(pool, own)
    }
    if len(ways) > 1:
        problems.append("it is pooled in several ways: each needs an embedding of its own")
    for problem in filter(None, problems):
        return problem
    ((combiner, mask_zero),) = ways
    bag = {name: own[name] for name in _OF_EMBEDDING if name in own}
    bag |= {"combiner": combiner, "mask_zero": mask_zero}
    embedding.update(_BAG, config=bag)
    for pool in pools:
        _make_identity(pool, own["dtype"])
    names = ", ".join(repr(pool["config"]["name"]) for pool in pools)
    return f"the {combiner} of its rows, in place of {names}"


def _next(config: dict[str, Any], embedding: dict[str, Any]) -> list[dict[str, Any]]:
    """The layer after an embedding in a Sequential model, if there is one."""
    layers: list[dict[str, Any]] = config["layers"]
    following = layers.index(embedding) + 1
    return layers[following : following + 1]


def _readers(config: dict[str, Any], embedding: dict[str, Any]) -> list[dict[str, Any]]:
    """The layers that read an embedding in a functional model."""
    name = embedding["name"]
    return [layer for layer in config["layers"] if name in _read_by(layer["inbound_nodes"])]


def _problem_of_pool(pool: dict[str, Any]) -> str:
    """Why a layer is no plain pool of embeddings, or ""."""
    config, name = pool["config"], pool["config"]["name"]
    if _class_of(pool) not in _COMBINERS:
        return f"{name!r}, which reads it, does not pool it"
    if config.get("keepdims"):
        return f"{name!r} keeps dimensions: pool without keepdims, and reshape"
    if config.get("data_format", "channels_last") != "channels_last":
        return f"{name!r} has channels first: pool with channels_last"
    if config.get("initial") is not None:
        return f"{name!r} has an initial value"
    return ""


def _problem_of_calls(
    config: dict[str, Any], embedding: dict[str, Any], pool: dict[str, Any]
) -> str:
    """Why a layer does not pool the ids, and them alone, in each of its calls, or ""."""
    name, of_pool = embedding["name"], pool["config"]
    if name in [output[0] for output in _ends(config["output_layers"])]:
        return "it is an output of its model"
    for call in pool["inbound_nodes"]:
        first, *others = _tensors(call)
        if first["keras_history"][0] != name or any(
            other["keras_history"][0] == name for other in others
        ):
            return f"{pool['name']!r} pools other tensors too"
        (ids,) = _tensors(embedding["inbound_nodes"][first["keras_history"][1]])
        rank = len(ids["shape"])
        axis = of_pool.get("axis", 1)
        axis = axis[0] if isinstance(axis, (list, tuple)) and len(axis) == 1 else axis
        if axis not in (rank - 1, -2):
            return f"{pool['name']!r} is over axis {axis}: that of the ids is {rank - 1}"
        if others and not _is_mask(config, others, ids):
            return f"{pool['name']!r} has a mask that is not that of the ids"
    return ""


def _which_calls_are_masked(pool: dict[str, Any], own: dict[str, Any]) -> list[bool]:
    if "inbound_nodes" in pool:
        return [len(list(_tensors(call))) > 1 for call in pool["inbound_nodes"]]
    return [own["mask_zero"] and _class_of(pool) == _MEAN]


def _is_mask(config: dict[str, Any], tensors: list[dict[str, Any]], ids: dict[str, Any]) -> bool:
    """True if a tensor is the mask that an embedding makes of ids, or would make."""
    if len(tensors) != 1:
        return False
    name, call, _ = tensors[0]["keras_history"]
    (made,) = (layer for layer in config["layers"] if layer["name"] == name)
    if _class_of(made) != _internals.MASKING_OP:
        return False
    arguments = made["inbound_nodes"][call]["args"]
    return list(_tensors(arguments)) == [ids] and list(arguments[1:]) == [0]


def _make_identity(pool: dict[str, Any], dtype: Any) -> None:
    """Makes a layer that passes its input on of one that pools it."""
    own = {"dtype": dtype} | {
        name: pool["config"][name] for name in _OF_POOL if name in pool["config"]
    }
    pool.pop("build_config", None)
    pool.update(_IDENTITY, config=own)
    for call in pool.get("inbound_nodes", ()):  # without masks
        call.update(args=call["args"][:1], kwargs={})


_IDENTITY = {"module": "keras.layers", "class_name": "Identity", "registered_name": None}


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


def _read_by(calls: Any) -> list[str]:
    """The names of the layers whose outputs are arguments of calls."""
    return [tensor["keras_history"][0] for tensor in _tensors(calls)]


def _ends(part: Any) -> Iterator[Sequence[Any]]:
    """The outputs in a structure of them: [name, call, number]."""
    if isinstance(part, (list, tuple)) and part and isinstance(part[0], str):
        yield part
        return
    for each in part.values() if isinstance(part, dict) else part:
        yield from _ends(each)
