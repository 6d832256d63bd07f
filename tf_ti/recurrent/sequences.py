"""Recurrent sequences: a layer of cells over all steps, in one direction or in both."""

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import arguments as _loop_arguments
from tf_ti.recurrent import arguments as _arguments, ops
from tf_ti.recurrent.spec import CellSpec, Direction, directions_of


@_tf.public
def lstm_sequence(
    x: Any,
    initial_hidden_state: Any,
    initial_cell_state: Any,
    sequence_lengths: Any,
    w: Any,
    r: Any,
    b: Any,
    hidden_size: int | None = None,
    direction: Direction = "forward",
    activations: Sequence[str] = ("sigmoid", "tanh", "tanh"),
    activations_alpha: Sequence[float] = (),
    activations_beta: Sequence[float] = (),
    clip: float | None = None,
    time_major: bool = False,
    *,
    mask: Any = None,
    hold_output: bool = False,
    checkpoint_every: int | None = None,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Runs a layer of LSTM cells over sequences.

    It means, for one direction `d`, with f, g, h = activations and gates in the order f, i, c, o:

        for t in reversed(range(time)) if it runs backwards else range(time):
            gates = x[:, t] @ w[d].T + hidden @ r[d].T + b[d]
            forget, update, candidate, output = np.split(np.clip(gates, -clip, clip), 4, axis=-1)
            new_cell = f(forget) * cell + f(update) * g(candidate)
            new_hidden = f(output) * h(new_cell)
            is_there = (t < sequence_lengths)[:, np.newaxis]    # or mask[:, t]
            hidden = np.where(is_there, new_hidden, hidden)
            cell = np.where(is_there, new_cell, cell)
            y[:, d, t] = np.where(is_there, new_hidden, 0)

    A sequence that runs backwards thus begins at its own end. Steps beyond that are not read.

    Args:
        x: the sequences, [batch, time, input], of float32, float64, float16 or bfloat16. States,
            weights and results have this dtype. Half precisions are computed in float32, states
            too, and rounded on return.
        initial_hidden_state, initial_cell_state: [batch, directions, hidden].
        sequence_lengths: the number of steps of each sequence, [batch], from 0 to time, of any
            integer dtype; None if all have all steps.
        w: the weights of x, [directions, 4 * hidden, input], gates in the order f, i, c, o.
        r: the weights of the hidden state, [directions, 4 * hidden, hidden].
        b: the biases, [directions, 4 * hidden]; None for zeros.
        hidden_size: the size that `hidden` must have; None for any.
        direction: "forward", "reverse" or, with two directions, "bidirectional": forward first.
        activations: three of affine, elu, hard_sigmoid, leaky_relu, relu, scaled_tanh, sigmoid,
            softplus, softsign, tanh and thresholded_relu, as ONNX defines them; the same for both
            directions. At their limits relu and hard_sigmoid have the slope 0.
        activations_alpha, activations_beta: the alpha and the beta of these functions, a number
            for each of the three. Functions that have none ignore theirs. Empty for the defaults
            of ONNX's operators; those of affine and scaled_tanh change nothing.
        clip: the limit of the gates before their activations, on both sides; None for no limit.
            The argument of h, the cell state, is not limited.
        time_major: x is [time, batch, input], y [time, directions, batch, hidden], and a mask
            [time, batch]. States keep their layout.
        mask: the steps that exist, [batch, time] of bool, instead of sequence_lengths. Where it is
            false, the states stay as they are and y is 0.
        hold_output: where the mask is false, y repeats the step before; before the first step that
            exists, it is 0.
        checkpoint_every: as in `tf_ti.tensor_iterator`.
        name: a name for the operation.

    Returns:
        (y, ho, co): the hidden states, [batch, directions, time, hidden]; the last hidden and cell
        states, [batch, directions, hidden]. A sequence without steps returns the initial states.

    Raises:
        TypeError, ValueError: arguments, dtypes or static shapes do not match.
        tf.errors.InvalidArgumentError: shapes do not match at run time, or a length is not in
            [0, time]. The message names them.

    Example:

        >>> x, state = tf.ones([1, 3, 2]), tf.zeros([1, 1, 1])
        >>> w, r, b = tf.ones([1, 4, 2]), tf.ones([1, 4, 1]), tf.zeros([1, 4])
        >>> y, ho, co = tf_ti.lstm_sequence(x, state, state, [2], w, r, b)
        >>> tf.round(100 * y[0, 0, :, 0]).numpy().tolist()
        [61.0, 87.0, 0.0]
        >>> tf.round(100 * tf.stack([ho, co])[:, 0, 0, 0]).numpy().tolist()
        [87.0, 171.0]

    Source: OpenVINO's LSTMSequence-5; activations as in ONNX's LSTM.
    """
    spec = CellSpec.of(
        "lstm",
        activations,
        activations_alpha,
        activations_beta,
        clip,
        hold_output=hold_output,
        time_major=time_major,
    )
    states = {
        "initial_hidden_state": initial_hidden_state,
        "initial_cell_state": initial_cell_state,
    }
    y, ho, co = _run(
        spec,
        x,
        states,
        sequence_lengths,
        {"w": w, "r": r, "b": b},
        hidden_size,
        direction,
        mask,
        checkpoint_every,
        name or "LSTMSequence",
    )
    return y, ho, co


@_tf.public
def gru_sequence(
    x: Any,
    initial_hidden_state: Any,
    sequence_lengths: Any,
    w: Any,
    r: Any,
    b: Any,
    hidden_size: int | None = None,
    direction: Direction = "forward",
    activations: Sequence[str] = ("sigmoid", "tanh"),
    activations_alpha: Sequence[float] = (),
    activations_beta: Sequence[float] = (),
    clip: float | None = None,
    linear_before_reset: bool = False,
    time_major: bool = False,
    *,
    mask: Any = None,
    hold_output: bool = False,
    checkpoint_every: int | None = None,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Runs a layer of GRU cells over sequences.

    It means the loop of `tf_ti.lstm_sequence` with the step below. There f, g = activations, gates
    are in the order z, r, h, and `limit` is np.clip(..., -clip, clip):

        xz, xr, xh = np.split(x[:, t] @ w[d].T, 3, axis=-1)
        rz, rr, rh = np.split(r[d], 3)
        z = f(limit(xz + hidden @ rz.T + bz))
        reset = f(limit(xr + hidden @ rr.T + br))
        if linear_before_reset:
            candidate = g(limit(xh + bh + reset * (hidden @ rh.T + brh)))
        else:
            candidate = g(limit(xh + bh + (reset * hidden) @ rh.T))
        new_hidden = (1 - z) * candidate + z * hidden

    Args:
        w, r: [directions, 3 * hidden, input] and [directions, 3 * hidden, hidden], gates in the
            order z, r, h.
        b: the biases bz, br, bh, [directions, 3 * hidden], or, with linear_before_reset, bz, br,
            bh, brh, [directions, 4 * hidden]; None for zeros.
        activations: f and g.
        linear_before_reset: see above. It is true in cuDNN, in torch and, by default, in Keras.
        x, initial_hidden_state, sequence_lengths, hidden_size, direction, activations_alpha,
            activations_beta, clip, time_major, mask, hold_output, checkpoint_every, name: as in
            `tf_ti.lstm_sequence`.

    Returns:
        (y, ho): as from `tf_ti.lstm_sequence`.

    Raises: as `tf_ti.lstm_sequence`.

    Example:

        >>> x, state = tf.ones([1, 3, 2]), tf.zeros([1, 1, 1])
        >>> w, r, b = tf.ones([1, 3, 2]), tf.ones([1, 3, 1]), tf.zeros([1, 3])
        >>> y, ho = tf_ti.gru_sequence(x, state, None, w, r, b, direction="reverse")
        >>> tf.round(100 * y[0, 0, :, 0]).numpy().tolist()
        [28.0, 21.0, 11.0]

    Source: OpenVINO's GRUSequence-5; activations as in ONNX's GRU.
    """
    spec = CellSpec.of(
        "gru",
        activations,
        activations_alpha,
        activations_beta,
        clip,
        linear_before_reset,
        hold_output=hold_output,
        time_major=time_major,
    )
    y, ho = _run(
        spec,
        x,
        {"initial_hidden_state": initial_hidden_state},
        sequence_lengths,
        {"w": w, "r": r, "b": b},
        hidden_size,
        direction,
        mask,
        checkpoint_every,
        name or "GRUSequence",
    )
    return y, ho


@_tf.public
def rnn_sequence(
    x: Any,
    initial_hidden_state: Any,
    sequence_lengths: Any,
    w: Any,
    r: Any,
    b: Any,
    hidden_size: int | None = None,
    direction: Direction = "forward",
    activations: Sequence[str] = ("tanh",),
    activations_alpha: Sequence[float] = (),
    activations_beta: Sequence[float] = (),
    clip: float | None = None,
    time_major: bool = False,
    *,
    mask: Any = None,
    hold_output: bool = False,
    checkpoint_every: int | None = None,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Runs a layer of plain recurrent cells over sequences.

    It means the loop of `tf_ti.lstm_sequence` with this step, where f is the activation:

        new_hidden = f(np.clip(x[:, t] @ w[d].T + hidden @ r[d].T + b[d], -clip, clip))

    Args:
        w, r, b: [directions, hidden, input], [directions, hidden, hidden] and
            [directions, hidden]. b may be None, for zeros.
        activations: one function's name.
        x, initial_hidden_state, sequence_lengths, hidden_size, direction, activations_alpha,
            activations_beta, clip, time_major, mask, hold_output, checkpoint_every, name: as in
            `tf_ti.lstm_sequence`.

    Returns:
        (y, ho): as from `tf_ti.lstm_sequence`.

    Raises: as `tf_ti.lstm_sequence`.

    Example:

        >>> x, state = tf.constant([[[1.0], [2.0], [3.0]]]), tf.zeros([1, 1, 1])
        >>> w, r = tf.ones([1, 1, 1]), tf.ones([1, 1, 1])
        >>> y, ho = tf_ti.rnn_sequence(x, state, None, w, r, None, activations=["relu"])
        >>> y.numpy().tolist()
        [[[[1.0], [3.0], [6.0]]]]

    Source: OpenVINO's RNNSequence-5; activations as in ONNX's RNN.
    """
    spec = CellSpec.of(
        "rnn",
        activations,
        activations_alpha,
        activations_beta,
        clip,
        hold_output=hold_output,
        time_major=time_major,
    )
    y, ho = _run(
        spec,
        x,
        {"initial_hidden_state": initial_hidden_state},
        sequence_lengths,
        {"w": w, "r": r, "b": b},
        hidden_size,
        direction,
        mask,
        checkpoint_every,
        name or "RNNSequence",
    )
    return y, ho


def _run(
    spec: CellSpec,
    x: Any,
    initial: dict[str, Any],
    sequence_lengths: Any,
    weights: dict[str, Any],
    hidden_size: Any,
    direction: Any,
    mask: Any,
    checkpoint_every: Any,
    name: str,
) -> list[tf.Tensor]:
    """Checks the arguments and runs each direction. Returns the outputs and the last states."""
    backwards = directions_of(direction)
    if sequence_lengths is not None and mask is not None:
        raise ValueError("sequence_lengths and mask say the same: one of them must be None")
    if spec.hold_output and mask is None:
        raise ValueError(
            "hold_output is about the steps that a mask leaves out: mask must be given"
        )
    _loop_arguments.check_checkpoint_every(checkpoint_every)
    with contextlib.ExitStack() as scopes:
        scopes.enter_context(tf.name_scope(name))
        tensors = _arguments.to_floats({"x": x, **initial, **weights})
        scopes.enter_context(ops.staying_with(list(tensors.values())))
        if sequence_lengths is not None:
            tensors["sequence_lengths"] = _arguments.to_lengths(sequence_lengths)
        if mask is not None:
            tensors["mask"] = _arguments.to_mask(mask)
        steps = "time batch" if spec.time_major else "batch time"
        layouts = {
            "x": f"{steps} input",
            **dict.fromkeys(initial, "batch directions hidden"),
            "w": f"directions {len(spec.gates)}*hidden input",
            "r": f"directions {len(spec.gates)}*hidden hidden",
            "b": f"directions {spec.num_biases}*hidden",
            "sequence_lengths": "batch",
            "mask": steps,
        }
        given = {"directions": (len(backwards), f"direction {direction!r}")}
        tensors = _arguments.check_shapes(tensors, layouts, given, hidden_size)
        axes = {**dict.fromkeys(initial, 1), **dict.fromkeys(weights, 0)}
        by_direction = {
            label: _unstack(tensors.pop(label), len(backwards), axis)
            for label, axis in axes.items()
            if label in tensors
        }
        results = []
        for d, reverse in enumerate(backwards):
            of_direction = {label: values[d] for label, values in by_direction.items()}
            y, states = ops.run(
                spec.replace(reverse=reverse),
                tensors["x"],
                [of_direction[label] for label in initial],
                of_direction["w"],
                of_direction["r"],
                of_direction.get("b"),
                tensors.get("sequence_lengths"),
                tensors.get("mask"),
                checkpoint_every,
            )
            results.append([y, *states])
        return [_stack(values, axis=1) for values in zip(*results)]


def _unstack(tensor: tf.Tensor, count: int, axis: int) -> list[tf.Tensor]:
    # A single one need not be copied.
    return [tf.squeeze(tensor, [axis])] if count == 1 else tf.unstack(tensor, count, axis)


def _stack(tensors: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    return tf.expand_dims(tensors[0], axis) if len(tensors) == 1 else tf.stack(tensors, axis)
