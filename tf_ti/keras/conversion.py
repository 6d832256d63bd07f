"""`tf_ti.keras.convert`: a model of Keras with tf_ti's layers in place of Keras's."""

import collections
import dataclasses
import inspect
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from tf_ti.keras import _internals, summaries
from tf_ti.keras.configurations import Replacement
from tf_ti.keras.recurrent import OURS, adopt


@dataclasses.dataclass(frozen=True)
class Converted:
    """What became of a layer.

    Attributes:
        path: the names of the models and layers around it, and its own.
        layer: its class.
        became: the class of the layer that takes its place; "" if it stays.
        reason: how that one works, or why it stays.
    """

    path: str
    layer: str
    became: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.layer} -> {self.became or 'stays'}: {self.reason}"


class Report(tuple[Converted, ...]):
    """What became of each recurrent and each embedding layer of a model, as text too."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "there are no recurrent and no embedding layers"


def convert(model: Any) -> tuple[Any, Report]:
    """Makes a model whose recurrent layers, and pooled embeddings, are those of tf_ti.keras.

    The new model has the weights of the old one, the names of its layers, its states, seeds and
    vocabularies, and, if it is compiled, the same losses and metrics, and an optimizer that goes on
    where the old one is. It shares no variable with the old one, which stays as it is.

    - `keras.layers.LSTM`, `GRU`, `SimpleRNN` and `RNN`, also inside of Bidirectional, of other
      layers and of models in the model, become layers of the same name of tf_ti.keras.
    - A `keras.layers.Embedding` that is only pooled becomes a `tf_ti.keras.EmbeddingBag` of its
      name, and what pooled it a `keras.layers.Identity`: GlobalAveragePooling1D and
      GlobalMaxPooling1D, and in functional models `keras.ops.sum`, `mean` and `max` over the ids.
      Of ids that are all masked, the mean is zeros, and not NaN. Ids below 0 are an error, while
      Keras counts them from the end.

    The constructor of a user's own layer or model may make layers that no configuration has. Keras
    names them anew. The recurrent layers among them become tf_ti's, but a file of the new model
    does not say so: convert the model again after loading it. An Embedding among them stays. A
    model whose class has a `compile` of its own is not compiled.

    Predictions are the same but for rounding, and so are the losses of training, with one
    exception. Where an Embedding became a bag, and an id comes more than once in a batch, the bag
    has one gradient for it, the sum. Keras has one for each time, which its optimizers square, and
    clip, one by one. So training is the same with `keras.optimizers.SGD` and the optimizers of
    `tf_ti.keras`, if they do not clip, and not with `keras.optimizers.Adam` and the like.

    Args:
        model: a `keras.Model`: functional, Sequential, or of a subclass whose configuration is
            enough to make the model anew, as it must be for a file. The user's own classes and
            functions that its layers refer to are found where Keras finds them, or in the layers'
            attributes.

    Returns:
        The new model, and a `Report`: a `Converted` for each recurrent and each embedding layer.

    Raises:
        TypeError: `model` is no model of Keras.
        ValueError: Keras cannot make the model anew of its configuration. Objects that it does not
            find are given to it by a `keras.saving.custom_object_scope` around the call.

    Example:

        >>> layers = [keras.Input((None, 3)), keras.layers.LSTM(4, name="memory")]
        >>> model, report = tf_ti.keras.convert(keras.Sequential(layers))
        >>> print(report)
        memory: keras.layers.LSTM -> tf_ti.keras.LSTM: one native op

    Source: keras.models.clone_model.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"`model` must be a model of Keras. Received: {model!r} (of type "
            f"{type(model).__name__})"
        )
    try:
        replacement = Replacement(model)
        objects = {**_own_objects(model), **replacement.objects}
        with keras.saving.custom_object_scope(objects), _internals.with_lambdas():
            made = _make(model, replacement.config)
    except Exception as error:  # of any class, as the user's own classes run
        raise ValueError(
            f"{model.name!r} cannot be made anew of its configuration: {type(error).__name__}: "
            f"{error}"
        ) from error
    return made, Report(_told(model, made, replacement.embeddings))


def _own_objects(model: keras.Model) -> dict[str, Any]:
    """The user's classes and functions in a model, by the names that configurations have."""
    owners = [*_internals.layers_of(model), *_optimizers(model)]
    values = list(owners)
    for owner in owners:  # without methods that Keras wraps
        values += [value for name, value in vars(owner).items() if not hasattr(type(owner), name)]
    found: dict[str, set[Any]] = collections.defaultdict(set)
    for value in values:
        own = value if inspect.isfunction(value) else type(value)
        package = (own.__module__ or "").split(".")[0]
        is_known = package in ("keras", "builtins", "tf_ti")
        if not is_known and (inspect.isfunction(value) or hasattr(value, "get_config")):
            found[keras.saving.get_registered_name(own)].add(own)
    # Two of one name are none: the wrong one would be silent.
    return {name: own.pop() for name, own in found.items() if len(own) == 1}


def _optimizers(model: keras.Model) -> list[Any]:
    return [model.optimizer] if model.compiled and model.optimizer is not None else []


def _make(model: keras.Model, config: dict[str, Any]) -> keras.Model:
    """Makes a model of its configuration, with what no configuration has: values and flags."""
    made = type(model).from_config(config)
    shapes = model.get_build_config() if model.built and not made.built else None
    if shapes:
        made.build_from_config(shapes)
        made.built = True  # which Keras leaves to those who load files
    pairs = [(model, made), *((old, new) for _, old, new in _pairs(model, made))]
    copies: dict[int, Any] = {}
    for old, new in pairs:
        if len(old.variables) != len(new.variables):
            raise ValueError(
                f"{old.name!r} has {len(old.variables)} variables, and made anew "
                f"{len(new.variables)}. Does a layer of it stand in several models?"
            )
        copies.update((id(variable), copy) for variable, copy in zip(old.variables, new.variables))
        _copy_own(old, new)
        new.trainable = old.trainable  # of all that is in it: what differs there comes later
    for variable in model.variables:
        copies[id(variable)].assign(variable)
        copies[id(variable)].trainable = variable.trainable
    for layer in _internals.layers_of(made):
        if type(layer) in OURS:
            adopt(layer)
    for old, new in pairs:
        is_compiled = isinstance(old, keras.Model) and old.compiled
        # A `compile` of the user's own has arguments that nobody keeps.
        if is_compiled and type(old).compile is keras.Model.compile:
            _compile(old, new, copies)
    return made


def _pairs(model: Any, made: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The layers in a model, with their paths, and those in their places."""
    theirs = summaries.layers_in(made)
    if _internals.is_plain_model(model):
        theirs = _in_order(theirs, model.layers)
    for old, new in zip(summaries.layers_in(model), theirs):
        yield f"{path}{old.name}", old, new
        yield from _pairs(old, new, f"{path}{old.name}/")


def _in_order(layers: list[Any], own: list[Any]) -> list[Any]:
    """Sorts the layers of a new model as the old one has them. Some stand for operations.

    The configuration of a user's own layer may lack the name that Keras made for it.
    """
    named = {layer.name for layer in own if layer.get_config().get("name") == layer.name}
    by_name = {layer.name: layer for layer in layers}
    unnamed = [layer for layer in layers if layer.name not in named]
    found = []
    for old in own:
        new = by_name.get(old.name) if old.name in named else None
        new = new or next((layer for layer in unnamed if type(layer) is type(old)), None)
        if new is None:
            raise ValueError(f"the `get_config` of {old.name!r} does not have its name")
        if new in unnamed:
            unnamed.remove(new)
        found.append(new)
    return found


def _copy_own(old: Any, new: Any) -> None:
    """Copies what a layer keeps beside its variables: policies, states, vocabularies."""
    if new.dtype_policy != old.dtype_policy:  # of code that takes the global one
        new.dtype_policy = old.dtype_policy
    if isinstance(old, keras.layers.RNN) and old.states is not None:
        for state, copy in zip(keras.tree.flatten(old.states), keras.tree.flatten(new.states)):
            copy.assign(state)
    if type(old) is not type(new):
        return
    if type(old).load_own_variables is not keras.layers.Layer.load_own_variables and old.built:
        store: dict[str, Any] = {}
        old.save_own_variables(store)
        new.load_own_variables(store)
    if hasattr(old, "save_assets"):
        with tempfile.TemporaryDirectory() as folder:
            old.save_assets(folder)
            new.load_assets(folder)


def _compile(model: keras.Model, made: keras.Model, copies: Mapping[int, Any]) -> None:
    """Compiles a model as another one is."""
    arguments = _internals.compile_arguments(model)
    for name in ("metrics", "weighted_metrics"):
        arguments[name] = keras.tree.map_structure(_without_state, arguments[name])
    if model.optimizer is not None:
        arguments["optimizer"] = _optimizer(model, copies)
    made.compile(**arguments, auto_scale_loss=False)  # the optimizer does, where it is to


def _without_state(metric: Any) -> Any:
    is_metric = isinstance(metric, keras.Metric)
    return type(metric).from_config(metric.get_config()) if is_metric else metric


def _optimizer(model: keras.Model, copies: Mapping[int, Any]) -> Any:
    """Makes an optimizer that goes on where a model's is, with the copies of its variables."""
    old = model.optimizer
    new = type(old).from_config(old.get_config())
    inner_old, inner_new = (getattr(each, "inner_optimizer", each) for each in (old, new))
    excluded = [
        copies[id(variable)]
        for variable in model.trainable_variables
        if not _internals.decays(inner_old, variable)
    ]
    if excluded:
        inner_new.exclude_from_weight_decay(excluded)
    if not old.built:
        return new
    # In its own order, from which that of the model's variables may have departed.
    trained = _internals.trained_by(old)
    if any(id(variable) not in copies for variable in trained):
        raise ValueError("its optimizer trains variables that are not the model's")
    new.build([copies[id(variable)] for variable in trained])
    for copy, variable in zip(new.variables, old.variables):
        copy.assign(variable)
    return new


# --- the report ----------------------------------------------------------------------------------


def _told(
    model: keras.Model, made: keras.Model, embeddings: Mapping[str, str]
) -> Iterator[Converted]:
    for path, old, new in _pairs(model, made):
        is_replaced = type(old) is not type(new)
        became = summaries.class_of(new) if is_replaced else ""
        if isinstance(old, keras.layers.RNN):
            reason = summaries.how_it_runs(new) if is_replaced else _why_it_stays(old)
        elif isinstance(old, keras.layers.Embedding):
            reason = embeddings.get(path) or _OF_CODE
        else:
            continue
        yield Converted(path, summaries.class_of(old), became, reason)


_OF_CODE = "the code of the layer around it makes it, and has to make an EmbeddingBag"


def _why_it_stays(layer: Any) -> str:
    if type(layer) in OURS.values():
        return f"it is of tf_ti.keras already: {layer.how_it_runs()}"
    if any(isinstance(layer, ours) for ours in OURS.values()):
        return f"it is of a class derived from tf_ti.keras's: {layer.how_it_runs()}"
    if summaries.class_of(layer).startswith("keras."):
        return f"tf_ti.keras has no {type(layer).__name__}"
    return f"it is of a class of its own, {type(layer).__name__}: derive it from tf_ti.keras's"
