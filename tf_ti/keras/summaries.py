"""`tf_ti.keras.summary`: how the recurrent layers of a model run."""

from collections.abc import Callable, Iterator
from typing import Any

import keras

import tf_ti
from tf_ti.keras import _internals


def summary(model: Any, print_fn: Callable[[str], Any] = print, **options: Any) -> None:
    """Prints `model.summary()`, and below it how each recurrent layer of the model runs.

    Keras's table has one name for `keras.layers.LSTM` and `tf_ti.keras.LSTM`, and no line for
    layers inside of `keras.layers.Bidirectional` and the like. The lines below it tell them apart.

    Args:
        model: any `keras.Model`, also of a subclass.
        print_fn: called with the table, and with each line.
        **options: those of `model.summary`, such as `expand_nested`.

    Raises:
        TypeError: `model` is no model of Keras.

    Example:

        >>> layers = [keras.Input((None, 3)), tf_ti.keras.LSTM(4, name="memory")]
        >>> lines = []
        >>> tf_ti.keras.summary(keras.Sequential(layers), lines.append)
        >>> lines[-1]
        'memory: tf_ti.keras.LSTM: one native op'

    Source: keras.Model.summary.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"`model` must be a model of Keras. Received: {model!r} (of type "
            f"{type(model).__name__})"
        )
    model.summary(print_fn=print_fn, **options)
    for path, layer in _with_paths(model):
        if isinstance(layer, keras.layers.RNN):
            print_fn(f"{path}: {class_of(layer)}: {how_it_runs(layer)}")


def layers_in(layer: Any) -> list[Any]:
    """The layers of a model, or those that a layer has in it."""
    return layer.layers if isinstance(layer, keras.Model) else _internals.layers_in(layer)


def _with_paths(layer: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All layers in one, each with the names of those around it and its own."""
    for each in layers_in(layer):
        yield f"{path}{each.name}", each
        yield from _with_paths(each, f"{path}{each.name}/")


def class_of(layer: Any) -> str:
    """The name by which users know the class of a layer."""
    name = type(layer).__name__
    for module in (keras.layers, tf_ti.keras):
        if getattr(module, name, None) is type(layer):
            return f"{module.__name__}.{name}"
    return name


def how_it_runs(layer: Any) -> str:
    """How the steps of a recurrent layer run."""
    return layer.how_it_runs() if hasattr(layer, "how_it_runs") else "Keras's loop"
