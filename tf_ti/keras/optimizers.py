"""Keras's optimizers, whose steps touch those rows of a table that a batch touched, and no others.

Each is a subclass of Keras's own with its arguments, variables and names, so that configurations,
weights and checkpoints of the one load into the other. A gradient that is a tf.IndexedSlices, as a
look-up's is, goes to one of tf_ti's updates in place; any other goes to Keras.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

import tf_ti
from tf_ti.bags.updates import sum_rows
from tf_ti.keras import _internals
from tf_ti.keras._internals import is_sparse, with_values

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "RowwiseAdagrad"]

_TABLES = """

    A table, a variable whose gradient is a tf.IndexedSlices, is updated where it lies, and only in
    the rows that the gradient names: see `tf_ti.{update}`. Repeated rows are added up before they
    are squared or clipped. `clipnorm` and `global_clipnorm` are norms of the summed rows, which are
    those of the dense gradient; nothing becomes dense. {decay}`use_ema`,
    `gradient_accumulation_steps`, a constraint of the table{also} would pass over all of it: with
    these, a table is a ValueError. Slots of half-precision variables are float32.
"""
_DECAY = "`weight_decay` decays the rows that a step touches. "


class _RowUpdates(_internals.SparseGradients):
    """The common part of the optimizers, in front of a class of Keras."""

    def add_variable(
        self,
        shape: Sequence[int],
        initializer: Any = "zeros",
        dtype: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> keras.Variable:
        if dtype is not None and tf.as_dtype(dtype) in (tf.float16, tf.bfloat16):
            dtype = "float32"  # in halves, averages and sums would soon stand still
        return super().add_variable(shape, initializer, dtype, *args, **kwargs)

    def _apply_with_tables(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        self._check_tables([v for g, v in zip(grads, variables) if is_sparse(g)])
        if self.clipnorm or self.global_clipnorm or self.clipvalue:
            grads = self._clip_rows(grads, variables)
        _internals.decay(self, [v for g, v in zip(grads, variables) if not is_sparse(g)])
        _internals.step(self, grads, variables)

    def _check_tables(self, tables: Sequence[Any]) -> None:
        wrong = self._unfit_arguments()
        for table in tables:
            constraint = getattr(table, "constraint", None)
            reason = f"a constraint ({constraint!r})" if constraint is not None else wrong
            if reason:
                raise ValueError(
                    f"{type(self).__name__} with {reason} would pass over all of the table "
                    f"{getattr(table, 'path', table.name)!r}, whose gradient is sparse: leave it "
                    "out, or give the other variables an optimizer of their own "
                    "(keras.optimizers.MultiOptimizer)"
                )

    def _unfit_arguments(self) -> str:
        """The argument that tables cannot have, or ""."""
        if self.use_ema:
            return "use_ema=True"
        if self.gradient_accumulation_steps:
            return f"gradient_accumulation_steps={self.gradient_accumulation_steps}"
        return ""

    def _clip_rows(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Clips slices as what they are: values of rows, once their repetitions are added up."""
        grads = [
            sum_rows(g, tf.shape(v)[0]) if is_sparse(g) else g for g, v in zip(grads, variables)
        ]
        clipped = _internals.clip(self, [g.values if is_sparse(g) else g for g in grads])
        return [with_values(g, c) if is_sparse(g) else c for g, c in zip(grads, clipped)]

    def update_step(
        self, gradient: tf.Tensor | tf.IndexedSlices, variable: Any, learning_rate: Any
    ) -> None:
        if not is_sparse(gradient):
            return super().update_step(gradient, variable, learning_rate)
        slots = tf.float64 if variable.dtype == "float64" else tf.float32
        gradient = with_values(gradient, tf.cast(gradient.values, variable.dtype))
        self._update_rows(gradient, variable, tf.cast(learning_rate, slots))

    def _decay_of(self, variable: Any) -> float:
        if self.weight_decay is None or not _internals.decays(self, variable):
            return 0.0
        return self.weight_decay


@keras.saving.register_keras_serializable(package="tf_ti")
class SGD(_RowUpdates, keras.optimizers.SGD):
    __doc__ = f"""Gradient descent: `keras.optimizers.SGD`, with its arguments.
{_TABLES.format(update="scatter_sub", decay=_DECAY, also=" and `momentum`")}
    Example:

        >>> bags = tf_ti.keras.EmbeddingBag(1000, 8)
        >>> model = keras.Sequential([bags, keras.layers.Dense(1)])
        >>> model.compile(tf_ti.keras.optimizers.SGD(0.1), "mse")
    """

    def _unfit_arguments(self) -> str:
        return f"momentum={self.momentum}" if self.momentum else super()._unfit_arguments()

    def _update_rows(
        self, gradient: tf.IndexedSlices, variable: Any, learning_rate: tf.Tensor
    ) -> None:
        tf_ti.scatter_sub(variable, gradient, learning_rate, self._decay_of(variable))


@keras.saving.register_keras_serializable(package="tf_ti")
class Adagrad(_RowUpdates, keras.optimizers.Adagrad):
    __doc__ = f"""Adagrad: `keras.optimizers.Adagrad`, with its arguments.
{_TABLES.format(update="adagrad_update", decay=_DECAY, also="")}
    For tables the steps are those of Keras: a row without a gradient would not move there either.

    Example:

        >>> bags = tf_ti.keras.EmbeddingBag(1000, 8)
        >>> model = keras.Sequential([bags, keras.layers.Dense(1)])
        >>> model.compile(tf_ti.keras.optimizers.Adagrad(0.1), "mse")
    """

    def _update_rows(
        self, gradient: tf.IndexedSlices, variable: Any, learning_rate: tf.Tensor
    ) -> None:
        decay = self._decay_of(variable)
        if decay:
            gradient = sum_rows(gradient, tf.shape(variable)[0])
            _decay_rows(variable, gradient, learning_rate * tf.cast(decay, learning_rate.dtype))
        accumulator = _internals.accumulator(self, variable)
        tf_ti.adagrad_update(variable, accumulator, gradient, learning_rate, epsilon=self.epsilon)


def _decay_rows(variable: tf.Variable, gradient: tf.IndexedSlices, factor: tf.Tensor) -> None:
    """Takes a part off the rows that have a gradient, which names each row once."""
    rows = tf.gather(variable, gradient.indices)
    axes = tf.range(1, tf.rank(rows))
    has_gradient = tf.reduce_any(tf.not_equal(gradient.values, 0), axes, keepdims=True)
    rows = tf.where(has_gradient, rows, tf.zeros_like(rows))
    tf_ti.scatter_sub(variable, with_values(gradient, rows), factor)


@keras.saving.register_keras_serializable(package="tf_ti")
class RowwiseAdagrad(Adagrad):
    """Adagrad with one accumulator for each row: of the mean of the squares of its gradient.

    The optimizer that FBGEMM and TorchRec train tables with: the accumulators take 1 / width of
    the memory of Adagrad's. Of every variable of two or more dimensions, table or not, the
    accumulator has the shape [rows, 1]; of others it is Adagrad's. Keras has no such optimizer.

    It takes the arguments of `tf_ti.keras.optimizers.Adagrad` and treats tables as that does.

    Example:

        >>> bags = tf_ti.keras.EmbeddingBag(1000, 8)
        >>> model = keras.Sequential([bags, keras.layers.Dense(1)])
        >>> model.compile(tf_ti.keras.optimizers.RowwiseAdagrad(0.1), "mse")
    """

    def build(self, var_list: Sequence[Any]) -> None:
        if self.built:
            return
        keras.optimizers.Optimizer.build(self, var_list)
        _internals.set_accumulators(self, [self._add_accumulator(v) for v in var_list])

    def _add_accumulator(self, variable: Any) -> keras.Variable:
        initializer = keras.initializers.Constant(self.initial_accumulator_value)
        if len(variable.shape) < 2:
            return self.add_variable_from_reference(variable, "accumulator", initializer)
        value = variable.value if isinstance(variable, keras.Variable) else variable
        path = getattr(variable, "path", variable.name).replace("/", "_").replace(":", "_")
        with _internals.colocated(self, value):
            return self.add_variable(
                (variable.shape[0], 1), initializer, variable.dtype, name=f"{path}_accumulator"
            )

    def update_step(
        self, gradient: tf.Tensor | tf.IndexedSlices, variable: Any, learning_rate: Any
    ) -> None:
        if is_sparse(gradient) or len(variable.shape) < 2:
            return super().update_step(gradient, variable, learning_rate)
        accumulator = _internals.accumulator(self, variable)
        gradient = tf.cast(gradient, accumulator.dtype)
        axes = list(range(1, len(variable.shape)))
        squares = tf.reduce_mean(gradient**2, axes)
        accumulator.assign_add(squares[:, tf.newaxis])
        root = tf.sqrt(accumulator + self.epsilon)
        root = tf.reshape(root, [-1] + [1] * len(axes))
        rate = tf.cast(learning_rate, accumulator.dtype)
        self.assign_sub(variable, rate * gradient / root)


@keras.saving.register_keras_serializable(package="tf_ti")
class Adam(_RowUpdates, keras.optimizers.Adam):
    __doc__ = f"""Adam: `keras.optimizers.Adam`, with its arguments.
{_TABLES.format(update="adam_update", decay=_DECAY, also=" and `amsgrad`")}
    This is lazy Adam: a row that no step names keeps its averages and stays where it is, while
    Keras's Adam goes on moving it by what its average remembers. Where every row has a gradient
    in every step, both are the same.

    Example:

        >>> bags = tf_ti.keras.EmbeddingBag(1000, 8)
        >>> model = keras.Sequential([bags, keras.layers.Dense(1)])
        >>> model.compile(tf_ti.keras.optimizers.Adam(0.01), "mse")
    """

    def _unfit_arguments(self) -> str:
        return "amsgrad=True" if self.amsgrad else super()._unfit_arguments()

    def _update_rows(
        self, gradient: tf.IndexedSlices, variable: Any, learning_rate: tf.Tensor
    ) -> None:
        tf_ti.adam_update(
            variable,
            _internals.momentum(self, variable),
            _internals.velocity(self, variable),
            gradient,
            learning_rate,
            self.iterations + 1,
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
            weight_decay=self._decay_of(variable),
        )


@keras.saving.register_keras_serializable(package="tf_ti")
class AdamW(Adam, keras.optimizers.AdamW):
    """Adam with weight decay: `keras.optimizers.AdamW`, with its arguments.

    It treats tables as `tf_ti.keras.optimizers.Adam` does.

    Example:

        >>> bags = tf_ti.keras.EmbeddingBag(1000, 8)
        >>> model = keras.Sequential([bags, keras.layers.Dense(1)])
        >>> model.compile(tf_ti.keras.optimizers.AdamW(0.01, weight_decay=0.004), "mse")
    """
