"""Steps of optimizers on the rows of a table that a gradient names: in place, and no others."""

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _arguments, _tf
from tf_ti._library import ops
from tf_ti.bags import replicas
from tf_ti.bags.ops import FLOATS, HALVES, NUMBERS, Bags, are_distinct, unused_gradient


@_tf.public
def scatter_sub(
    variable: Any,
    slices: Any,
    scale: Any = 1,
    weight_decay: Any = None,
    name: str | None = None,
) -> None:
    """Subtracts scaled rows from rows of a variable, in place.

    It means:

        for i, row in enumerate(slices.indices):
            variable[row] -= scale * slices.values[i]

    which, with a gradient for `slices` and a learning rate for `scale`, is a step of stochastic
    gradient descent. It is what `variable.scatter_sub` does, without a copy of the scaled rows, and
    spread over the threads. On a GPU a row's values are added up first, and subtracted once. In a
    tf.function it computes the gradient of a look-up itself, sums and all, if nothing has used that
    gradient before: halves are then rounded once, at the end (but compiled by XLA also before).
    With weight_decay, rows that the gradient touches decay too:

        for row in set(slices.indices):
            s = slices.values[slices.indices == row].sum(0)
            if s.any():
                variable[row] -= scale * (s + weight_decay * variable[row])

    Of a variable of tf.distribute, every copy is updated alike. In a replica the slices of all
    replicas are made one first, as the variable's `aggregation` says; the numbers must be the same
    in all. Where it has none, the update is for outside of the replicas. Each replica's own copy of
    a variable that is synchronised on reading is its own to update.

    Args:
        variable: a tf.Variable, or a variable of Keras, of any numeric dtype, [num_emb, ...].
        slices: a tf.IndexedSlices: the rows, and what to subtract from them.
        scale: a scalar number or tensor of the variable's dtype; float32 for half precisions,
            which are rounded once.
        weight_decay: a scalar like `scale`, for variables of floats; None or 0 for none.
        name: a name for the operation.

    Raises:
        TypeError: no variable, no IndexedSlices, or another dtype.
        ValueError: no scalar; in a replica, a variable without aggregation.
        tf.errors.InvalidArgumentError: an index outside of the variable, which is left as it was;
            numbers that differ between replicas.

    Example:

        >>> table = tf.Variable([[1.0], [2.0], [3.0]])
        >>> tf_ti.scatter_sub(table, tf.IndexedSlices(tf.constant([[10.0]]), tf.constant([2])), 0.1)
        >>> table.numpy().tolist()
        [[1.0], [2.0], [2.0]]
    """
    variable = _variable("variable", variable)
    dtype = variable.dtype
    if dtype not in NUMBERS:
        raise TypeError(f"variable must be of a numeric dtype, got {dtype.name}")
    rows = _rows(slices, dtype)
    sums = _sums(dtype)
    scale = _scale("scale", scale, sums)
    decay = []
    if weight_decay is not None and not (_is_number(weight_decay) and weight_decay == 0):
        if not dtype.is_floating:
            raise TypeError(f"weight_decay needs a variable of floats, got {dtype.name}")
        decay = [_scale("weight_decay", weight_decay, sums)]
    _update("scatter_sub", {"variable": variable}, rows, scale, decay, name=name)


@_tf.public
def adam_update(
    variable: Any,
    m: Any,
    v: Any,
    slices: Any,
    learning_rate: Any,
    step: Any,
    *,
    beta_1: Any = 0.9,
    beta_2: Any = 0.999,
    epsilon: Any = 1e-7,
    epsilon_hat: bool = True,
    weight_decay: Any = 0.0,
    name: str | None = None,
) -> None:
    """A step of Adam on the rows of a variable that a gradient names, in place.

    It means, for each `row` in `set(slices.indices)`, with

        s = slices.values[slices.indices == row].sum(0)
        q = s**2                       # np.mean(s**2) where v is row-wise

    nothing where `s` is all zeros, and else

        m[row] += (1 - beta_1) * (s - m[row])
        v[row] += (1 - beta_2) * (q - v[row])
        variable[row] -= learning_rate * weight_decay * variable[row]

    and then, where epsilon_hat is True, as Keras and torch's SparseAdam have it,

        rate = learning_rate * np.sqrt(1 - beta_2**step) / (1 - beta_1**step)
        variable[row] -= rate * m[row] / (np.sqrt(v[row]) + epsilon)

    and where it is False, as torch's Adam and FBGEMM have it,

        m_hat, v_hat = m[row] / (1 - beta_1**step), v[row] / (1 - beta_2**step)
        variable[row] -= learning_rate * m_hat / (np.sqrt(v_hat) + epsilon)

    This is lazy Adam: a row that the gradient does not name, or whose gradients add up to zeros, is
    not touched, nor are its averages. Adam of a dense gradient goes on moving such a row by what
    its average remembers, lets m and v fade, and decays the row's weights; here they wait until the
    row is named again. `step` counts all steps, not those of a row.

    Rows come in any order, and again and again; they are added up first. Everything is checked
    before anything is written, and the result does not depend on the number of threads. In a
    tf.function a look-up's gradient is computed here, as by `tf_ti.scatter_sub`; copies of the
    variable under tf.distribute are updated as there, with their slots.

    Args:
        variable: a tf.Variable, or a variable of Keras, of float32, float64, float16 or bfloat16,
            [num_emb, ...]. Halves are computed in float32 and rounded once.
        m: a variable of its shape: the averages of the gradients. float64 for a float64 variable,
            else float32.
        v: likewise, of their squares; or of shape [num_emb, 1]: one for each row.
        slices: a tf.IndexedSlices of the variable's dtype: the gradient.
        learning_rate: a scalar number or tensor of m's dtype.
        step: a scalar whole number or tensor: which step it is, from 1. (A GPU, which would have to
            wait in order to refuse it, takes a lower one for 1.)
        beta_1, beta_2: scalar numbers or tensors in [0, 1).
        epsilon: one of at least 0.
        epsilon_hat: which of the two formulas.
        weight_decay: a scalar of at least 0: decoupled weight decay, of touched rows.
        name: a name for the operation.

    Raises:
        TypeError: no variable, no IndexedSlices, or another dtype.
        ValueError: a slot of another shape or placed otherwise than the variable, a variable given
            twice, a number that is out of its range or no scalar.
        tf.errors.InvalidArgumentError: an index outside of the variable, or what only the run
            shows of the above. Nothing was written then.

    Example:

        >>> table, m, v = (tf.Variable(tf.zeros([3, 2])) for _ in range(3))
        >>> slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]))
        >>> tf_ti.adam_update(table, m, v, slices, learning_rate=0.5, step=1)
        >>> table.numpy().round(3).tolist()
        [[0.0, 0.0], [-0.5, -0.5], [0.0, 0.0]]
    """
    variable, sums, rows = _table(variable, slices)
    m = _slot("m", m, variable, sums, may_be_row_wise=False)
    v = _slot("v", v, variable, sums, may_be_row_wise=True)
    _update(
        "adam_update",
        {"variable": variable, "m": m, "v": v},
        rows,
        _scale("learning_rate", learning_rate, sums),
        _step(step),
        _number("beta_1", beta_1, below=1),
        _number("beta_2", beta_2, below=1),
        _number("epsilon", epsilon),
        _number("weight_decay", weight_decay),
        epsilon_hat=_flag("epsilon_hat", epsilon_hat),
        name=name,
    )


@_tf.public
def adagrad_update(
    variable: Any,
    accumulator: Any,
    slices: Any,
    learning_rate: Any,
    *,
    epsilon: Any = 1e-7,
    epsilon_inside_sqrt: bool = True,
    name: str | None = None,
) -> None:
    """A step of Adagrad on the rows of a variable that a gradient names, in place.

    It means, for each `row` in `set(slices.indices)`, with

        s = slices.values[slices.indices == row].sum(0)
        q = s**2                       # np.mean(s**2) where accumulator is row-wise

    nothing where `s` is all zeros, and else

        accumulator[row] += q
        variable[row] -= learning_rate * s / np.sqrt(accumulator[row] + epsilon)

    as Keras has it, or, where epsilon_inside_sqrt is False, as TensorFlow's
    ResourceSparseApplyAdagradV2, torch and FBGEMM have it,

        variable[row] -= learning_rate * s / (np.sqrt(accumulator[row]) + epsilon)

    An untouched row would not move with a dense gradient either: this is no approximation, but for
    the rows' means of an accumulator that is row-wise.

    Rows come in any order, and again and again; they are added up first. Everything is checked
    before anything is written, and the result does not depend on the number of threads. In a
    tf.function a look-up's gradient is computed here, as by `tf_ti.scatter_sub`; copies of the
    variable under tf.distribute are updated as there, with their slots.

    Args:
        variable: a tf.Variable, or a variable of Keras, of float32, float64, float16 or bfloat16,
            [num_emb, ...]. Halves are computed in float32 and rounded once.
        accumulator: a variable of its shape, or of shape [num_emb, 1]: one sum for each row, as in
            FBGEMM's row-wise Adagrad. float64 for a float64 variable, else float32.
        slices: a tf.IndexedSlices of the variable's dtype: the gradient.
        learning_rate: a scalar number or tensor of the accumulator's dtype.
        epsilon: a scalar number or tensor of at least 0.
        epsilon_inside_sqrt: which of the two formulas.
        name: a name for the operation.

    Raises:
        TypeError: no variable, no IndexedSlices, or another dtype.
        ValueError: a slot of another shape or placed otherwise than the variable, a variable given
            twice, a number that is out of its range or no scalar.
        tf.errors.InvalidArgumentError: an index outside of the variable, or what only the run
            shows of the above. Nothing was written then.

    Example:

        >>> table, accumulator = tf.Variable(tf.zeros([3, 2])), tf.Variable(tf.zeros([3, 1]))
        >>> slices = tf.IndexedSlices(tf.fill([1, 2], 4.0), tf.constant([1]))
        >>> tf_ti.adagrad_update(table, accumulator, slices, learning_rate=0.5)
        >>> table.numpy().round(3).tolist(), accumulator.numpy().tolist()
        ([[0.0, 0.0], [-0.5, -0.5], [0.0, 0.0]], [[0.0], [16.0], [0.0]])
    """
    variable, sums, rows = _table(variable, slices)
    accumulator = _slot("accumulator", accumulator, variable, sums, may_be_row_wise=True)
    _update(
        "adagrad_update",
        {"variable": variable, "accumulator": accumulator},
        rows,
        _scale("learning_rate", learning_rate, sums),
        _number("epsilon", epsilon),
        epsilon_inside_sqrt=_flag("epsilon_inside_sqrt", epsilon_inside_sqrt),
        name=name,
    )


def sum_rows(slices: tf.IndexedSlices, num_rows: Any) -> tf.IndexedSlices:
    """The same gradient with each row once. (XLA pads it with rows of zeros.)"""
    bags = Bags("packed", slices.indices[:, tf.newaxis])
    rows, values = bags.table_gradient(num_rows, slices.values, None)
    return tf.IndexedSlices(values, rows, slices.dense_shape)


def _update(
    rule: str,
    variables: dict[str, tf.Variable],
    rows: tuple[tf.Tensor, tf.Tensor],
    *numbers: Any,
    **attributes: Any,
) -> None:
    """An optimizer's step on a variable, the first, and on its slots."""
    _check_distinct(variables)

    def update_copy(rows: tuple[tf.Tensor, tf.Tensor], numbers: Sequence[Any]) -> None:
        for label, variable in variables.items():
            _arguments.check_reachable(label, variable)
        handles = [variable.handle for variable in variables.values()]
        _update_rows(rule, handles, rows, *numbers, **attributes)

    variable = next(iter(variables.values()))
    if not replicas.has_copies(variable):
        update_copy(rows, numbers)
        return

    def update_with(slices: tf.IndexedSlices, flat_numbers: Sequence[tf.Tensor]) -> None:
        numbers_of_copy = tf.nest.pack_sequence_as(numbers, flat_numbers)
        update_copy((slices.indices, slices.values), numbers_of_copy)

    indices, values = rows
    slices = tf.IndexedSlices(values, indices)
    replicas.update(variable, slices, tf.nest.flatten(numbers), update_with)


def _update_rows(
    rule: str,
    handles: list[tf.Tensor],
    rows: tuple[tf.Tensor, tf.Tensor],
    *numbers: Any,
    **attributes: Any,
) -> None:
    """The step's operation; with the bags' gradient itself, where it is there for this alone."""
    handles = _tf.captured(handles)
    # One copy of several would get sums that are rounded otherwise than those of the others.
    if not replicas.is_one_of_copies():
        gradient = unused_gradient(handles[0], *rows)
        if gradient is not None:
            bags, grad, argmax = gradient
            with tf.control_dependencies(rows[0].op.control_inputs):  # what the gradient waits for
                bags.update(rule, handles, grad, argmax, *numbers, **attributes)
            return
    attributes["are_distinct"] = are_distinct(rows[0])
    getattr(ops, f"tf_ti_{rule}")(*handles, *rows, *numbers, **attributes)


def _variable(label: str, value: Any) -> tf.Variable:
    value = _tf.unwrap_variable(value)
    if not isinstance(value, tf.Variable):
        raise TypeError(f"{label} must be a tf.Variable, got {_arguments.name(value)}")
    return value


def _sums(dtype: tf.DType) -> tf.DType:
    """The type in which elements of a table are added up."""
    return tf.float32 if dtype in HALVES else dtype


def _rows(slices: Any, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    """The indices and the values."""
    if not isinstance(slices, tf.IndexedSlices):
        raise TypeError(
            f"slices must be tf.IndexedSlices, got {_arguments.name(slices)}; a dense gradient is "
            "subtracted with variable.assign_sub"
        )
    indices = _arguments.to_tensor("slices.indices", slices.indices)
    values = _arguments.to_tensor("slices.values", slices.values)
    if values.dtype != dtype:
        raise TypeError(f"slices must be {dtype.name} like the variable, got {values.dtype.name}")
    if indices.dtype not in (tf.int32, tf.int64):
        raise TypeError(f"slices.indices must be int32 or int64, got {indices.dtype.name}")
    return indices, values


def _table(variable: Any, slices: Any) -> tuple[tf.Variable, tf.DType, tuple[tf.Tensor, tf.Tensor]]:
    """The variable, the type of its slots, and its rows' indices and gradients."""
    variable = _variable("variable", variable)
    if variable.dtype not in FLOATS:
        raise TypeError(
            f"variable must be float32, float64, float16 or bfloat16, got {variable.dtype.name}"
        )
    return variable, _sums(variable.dtype), _rows(slices, variable.dtype)


def _slot(
    label: str, value: Any, variable: tf.Variable, dtype: tf.DType, may_be_row_wise: bool
) -> tf.Variable:
    slot = _variable(label, value)
    if slot.dtype != dtype:
        raise TypeError(
            f"{label} must be {dtype.name} for a variable of {variable.dtype.name}, got "
            f"{slot.dtype.name}"
        )
    row_wise = tf.TensorShape([_tf.known_extent(variable, 0) if variable.shape.rank else None, 1])
    fits = slot.shape.is_compatible_with(variable.shape)
    if not fits and not (may_be_row_wise and slot.shape.is_compatible_with(row_wise)):
        alternative = f", or {row_wise}" if may_be_row_wise else ""
        raise ValueError(
            f"{label} must have the variable's shape {variable.shape}{alternative}, got "
            f"{slot.shape}"
        )
    replicas.check_placed_alike(label, slot, variable)
    _arguments.check_together(label, slot, "variable", variable)
    return slot


def _check_distinct(variables: dict[str, tf.Variable]) -> None:
    names = list(variables)
    for i, name in enumerate(names):
        for other in names[:i]:
            if replicas.identity(variables[name]) is replicas.identity(variables[other]):
                raise ValueError(f"{other} and {name} are the same variable")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex, np.number)) and not isinstance(value, bool)


def _scale(label: str, scale: Any, dtype: tf.DType) -> tf.Tensor:
    """A scalar that multiplies rows, in the type of their sums."""
    if _is_number(scale):
        # Whole numbers fit every dtype that can hold them; the others must not lose a part.
        if isinstance(scale, (complex, np.complexfloating)):
            fits = dtype.is_complex
        elif isinstance(scale, numbers.Integral):
            fits = not dtype.is_integer or dtype.min <= scale <= dtype.max
        else:
            fits = not dtype.is_integer
        if not fits:
            raise TypeError(f"{label} must be {dtype.name}, got {scale!r}")
        return tf.constant(scale, dtype)
    scale = _arguments.to_tensor(label, scale)
    if scale.dtype != dtype:
        raise TypeError(f"{label} must be {dtype.name}, got {scale.dtype.name}")
    return _scalar(label, scale)


def _scalar(label: str, tensor: tf.Tensor) -> tf.Tensor:
    if tensor.shape.rank not in (None, 0):
        raise ValueError(f"{label} must be a scalar, got shape {tensor.shape}")
    return tensor


def _number(label: str, value: Any, below: float = float("inf")) -> tf.Tensor:
    """One of an optimizer's numbers, which are float64 whatever the table is."""
    if _is_number(value) and not isinstance(value, (complex, np.complexfloating)):
        if not 0 <= value < below:
            end = f" and below {below}" if below < float("inf") else " and finite"
            raise ValueError(f"{label} must be at least 0{end}, got {value!r}")
        return _arguments.host_number(float(value), tf.float64)
    value = _arguments.to_tensor(label, value)
    if not value.dtype.is_floating:
        raise TypeError(f"{label} must be a number, got {value.dtype.name}")
    with _arguments.on_host():
        return tf.cast(_scalar(label, value), tf.float64)  # a v1 session may feed it


def _step(step: Any) -> tf.Tensor:
    if isinstance(step, numbers.Integral) and not isinstance(step, bool):
        if step < 1:
            raise ValueError(f"step must be at least 1, got {step}")
        return tf.constant(int(step), tf.int64)
    step = _arguments.to_tensor("step", step)
    if not step.dtype.is_integer:
        raise TypeError(f"step must be a whole number, got {step.dtype.name}")
    return tf.cast(_scalar("step", step), tf.int64)


def _flag(label: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{label} must be a bool, got {value!r}")
    return bool(value)
