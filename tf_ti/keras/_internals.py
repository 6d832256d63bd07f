"""The internals of Keras that tf_ti.keras overrides or uses, in one place.

Keras promises nothing about them. When tf_ti.keras is imported, `check` looks for those that are
overridden: without them Keras would do its own instead, and nobody would notice. The versions that
are tested are in requirements/keras.txt. tests/package/test_tensorflow_contract.py has a test for
each name.
"""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from keras.src.models import functional
from keras.src.ops import numpy as ops
from keras.src.saving import serialization_lib

# The methods that are overridden: their class, name and parameters.
OVERRIDDEN = (
    # The steps of a layer, once its arguments and states are checked: the native op does them.
    (keras.layers.LSTM, "inner_loop", ("sequences", "initial_state", "mask", "training")),
    (keras.layers.GRU, "inner_loop", ("sequences", "initial_state", "mask", "training")),
    (keras.layers.SimpleRNN, "inner_loop", ("sequences", "initial_state", "mask", "training")),
    (keras.layers.RNN, "inner_loop", ("sequences", "initial_state", "mask", "training")),
    # The last that `apply` does before it divides gradients by the scale of a loss.
    (
        keras.optimizers.Optimizer,
        "_overwrite_variables_directly_with_gradients",
        ("grads", "vars"),
    ),
    # The rest of `apply`, when gradients are ready: it clips, decays, steps, averages.
    (keras.optimizers.Optimizer, "_backend_apply_gradients", ("grads", "trainable_variables")),
)


def check() -> None:
    """Raises an ImportError where Keras lacks a method that is overridden."""
    for owner, name, parameters in OVERRIDDEN:
        method = getattr(owner, name, None)
        if method is None or tuple(inspect.signature(method).parameters)[1:] != parameters:
            raise ImportError(
                f"tf_ti.keras does not know the internals of Keras {keras.__version__}: "
                f"{owner.__name__}.{name}({', '.join(parameters)}) is not there. Install one that "
                "it is tested with: pip install 'tf_ti[keras]'"
            )


# --- optimizers ----------------------------------------------------------------------------------


if TYPE_CHECKING:
    from keras.optimizers import Optimizer as _Base
else:
    _Base = object


class SparseGradients(_Base):
    """In front of one of Keras's optimizers: takes gradients that are tf.IndexedSlices.

    A subclass has `_apply_with_tables(grads, variables)`, for gradients some of which are sparse,
    in place of all that Keras would do with them: it would make them dense to clip and decay them.
    """

    def _overwrite_variables_directly_with_gradients(
        self, grads: Sequence[Any], vars: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        # A division comes next there, which slices lack.
        grads, vars = super()._overwrite_variables_directly_with_gradients(grads, vars)
        return [_divisible(grad) for grad in grads], vars

    def _backend_apply_gradients(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> None:
        if any(map(is_sparse, grads)):
            self._apply_with_tables(grads, trainable_variables)
        else:
            super()._backend_apply_gradients(grads, trainable_variables)


def is_sparse(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


def with_values(slices: tf.IndexedSlices, values: tf.Tensor) -> tf.IndexedSlices:
    return tf.IndexedSlices(values, slices.indices, slices.dense_shape)


class _DivisibleSlices(tf.IndexedSlices):
    def __truediv__(self, divisor: Any) -> tf.IndexedSlices:
        return with_values(self, self.values / tf.cast(divisor, self.values.dtype))


def _divisible(gradient: Any) -> Any:
    if not is_sparse(gradient):
        return gradient
    return _DivisibleSlices(gradient.values, gradient.indices, gradient.dense_shape)


def clip(optimizer: Any, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The gradients as `clipnorm`, `global_clipnorm` or `clipvalue` leave them."""
    return optimizer._clip_gradients(gradients)


def decay(optimizer: Any, variables: Sequence[Any]) -> None:
    """Takes `weight_decay` off variables, but for those that are excluded from it."""
    optimizer._apply_weight_decay(variables)


def decays(optimizer: Any, variable: Any) -> bool:
    """Returns true if an optimizer's `weight_decay` is for this variable too."""
    return optimizer._use_weight_decay(variable)


def step(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> None:
    """Calls `update_step` with each variable, in all replicas of a tf.distribute.Strategy."""
    optimizer._backend_update_step(grads, variables, optimizer.learning_rate)


def colocated(optimizer: Any, variable: tf.Variable) -> AbstractContextManager[Any]:
    """Places the variables that are made inside where this one is."""
    return optimizer._distribution_strategy.extended.colocate_vars_with(variable)


def accumulator(optimizer: Any, variable: Any) -> tf.Variable:
    """Adagrad's sums of squares for a variable."""
    return _slot(optimizer, optimizer._accumulators, variable)


def set_accumulators(optimizer: Any, accumulators: list[Any]) -> None:
    """Gives Adagrad accumulators of other shapes, one for each variable, in order."""
    optimizer._accumulators = accumulators


def momentum(optimizer: Any, variable: Any) -> tf.Variable:
    """Adam's averages of gradients for a variable."""
    return _slot(optimizer, optimizer._momentums, variable)


def velocity(optimizer: Any, variable: Any) -> tf.Variable:
    """Adam's averages of squares for a variable."""
    return _slot(optimizer, optimizer._velocities, variable)


def _slot(optimizer: Any, slots: Sequence[Any], variable: Any) -> tf.Variable:
    return slots[optimizer._get_variable_index(variable)].value


# --- recurrent layers ----------------------------------------------------------------------------


def takes_training(cell: Any) -> bool:
    """Returns true if a cell is to be told whether it trains."""
    return isinstance(cell, keras.layers.Layer) and cell._call_has_training_arg


def has_mask_for_each_gate(cell: Any) -> bool:
    """Returns true if a cell drops out other inputs for each of its gates."""
    return getattr(cell, "dropout_mask_count", None) is not None


def dropout_mask(cell: Any, inputs: tf.Tensor) -> tf.Tensor:
    """The mask by which a cell that trains multiplies its inputs, the same in each step."""
    return cell.get_dropout_mask(inputs)


# --- checkpoints ---------------------------------------------------------------------------------


def checkpointed(layers: Sequence[Any] | Mapping[str, Any]) -> tf.Module:
    """An attribute for a layer that has others in a list or dict: checkpoints then hold them.

    Keras makes lists and dicts of its own of a layer's, into which a tf.train.Checkpoint does not
    look.
    """
    holder = tf.Module()
    holder.layers = layers
    return holder


# --- models --------------------------------------------------------------------------------------

# The operations, as a configuration names them, that pool, and that mask ids.
POOLING_OPS = {
    f"{kind.__module__}.{kind.__name__}": combiner
    for kind, combiner in ((ops.Sum, "sum"), (ops.Mean, "mean"), (ops.Max, "max"))
}
MASKING_OP = f"{ops.NotEqual.__module__}.{ops.NotEqual.__name__}"


def layers_of(model: Any) -> list[Any]:
    """A model, and all layers in it."""
    return list(model._flatten_layers())


def layers_in(layer: Any) -> list[Any]:
    """The layers that are a layer's own, and not of those in it."""
    return list(layer._flatten_layers(recursive=False, include_self=False))


def is_plain_model(model: Any) -> bool:
    """Returns true if a model's configuration has its layers: a functional or a Sequential one.

    That of a subclass has them too, unless its constructor makes them.
    """
    kind = type(model)
    if isinstance(model, keras.Sequential):
        return kind.get_config is keras.Sequential.get_config
    return (
        isinstance(model, functional.Functional)
        and kind.get_config is functional.Functional.get_config
        and functional.functional_like_constructor(kind)
    )


def is_built_by_calls(layer: Any) -> bool:
    """Returns true if a layer makes its variables when it is called, or says that it does."""
    return (
        isinstance(layer, keras.layers.Layer)
        and type(layer).build_from_config is keras.layers.Layer.build_from_config
    )


def with_lambdas() -> AbstractContextManager[Any]:
    """Lets configurations inside have lambdas: they come from no file."""
    return serialization_lib.SafeModeScope(safe_mode=False)


def compile_arguments(model: Any) -> dict[str, Any]:
    """What a model was compiled with."""
    return dict(model._compile_config.config)


def trained_by(optimizer: Any) -> list[Any]:
    """The variables that an optimizer was built for."""
    return list(optimizer._trainable_variables)
