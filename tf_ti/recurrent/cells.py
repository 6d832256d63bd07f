"""Single steps of recurrent cells."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.recurrent import arguments as _arguments, unfused
from tf_ti.recurrent.spec import CellSpec


@_tf.public
def lstm_cell(
    x: Any,
    initial_hidden_state: Any,
    initial_cell_state: Any,
    w: Any,
    r: Any,
    b: Any = None,
    hidden_size: int | None = None,
    activations: Sequence[str] = ("sigmoid", "tanh", "tanh"),
    activations_alpha: Sequence[float] = (),
    activations_beta: Sequence[float] = (),
    clip: float | None = None,
    *,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """One step of an LSTM.

    It means, with f, g, h = activations:

        gates = x @ w.T + initial_hidden_state @ r.T + b
        forget, update, candidate, output = np.split(np.clip(gates, -clip, clip), 4, axis=-1)
        co = f(forget) * initial_cell_state + f(update) * g(candidate)
        ho = f(output) * h(co)

    Args:
        x: [batch, input], of float32, float64, float16 or bfloat16. States, weights and results
            have this dtype. Half precisions are computed in float32 and rounded on return.
        initial_hidden_state, initial_cell_state: [batch, hidden].
        w, r: the weights of x and of the hidden state, [4 * hidden, input] and
            [4 * hidden, hidden], gates in the order f, i, c, o.
        b: the biases, [4 * hidden]; None for zeros.
        hidden_size, activations, activations_alpha, activations_beta, clip: as in
            `tf_ti.lstm_sequence`.
        name: a name for the operation.

    Returns:
        (ho, co): the next hidden and cell states.

    Raises:
        TypeError, ValueError: arguments, dtypes or static shapes do not match.
        tf.errors.InvalidArgumentError: shapes do not match at run time.

    Example:

        >>> x, state = tf.ones([1, 2]), tf.zeros([1, 1])
        >>> ho, co = tf_ti.lstm_cell(x, state, state, tf.ones([4, 2]), tf.ones([4, 1]))
        >>> tf.round(100 * tf.concat([ho, co], 1)).numpy().tolist()
        [[61.0, 85.0]]

    Source: OpenVINO's LSTMCell-4; activations as in ONNX's LSTM.
    """
    spec = CellSpec.of("lstm", activations, activations_alpha, activations_beta, clip)
    states = {
        "initial_hidden_state": initial_hidden_state,
        "initial_cell_state": initial_cell_state,
    }
    weights = {"w": w, "r": r, "b": b}
    ho, co = _step(spec, x, states, weights, hidden_size, name or "LSTMCell")
    return ho, co


@_tf.public
def gru_cell(
    x: Any,
    initial_hidden_state: Any,
    w: Any,
    r: Any,
    b: Any = None,
    hidden_size: int | None = None,
    activations: Sequence[str] = ("sigmoid", "tanh"),
    activations_alpha: Sequence[float] = (),
    activations_beta: Sequence[float] = (),
    clip: float | None = None,
    linear_before_reset: bool = False,
    *,
    name: str | None = None,
) -> tf.Tensor:
    """One step of a GRU.

    It means one step of `tf_ti.gru_sequence`.

    Args:
        x: [batch, input], of float32, float64, float16 or bfloat16. The state, the weights and the
            result have this dtype.
        initial_hidden_state: [batch, hidden].
        w, r: [3 * hidden, input] and [3 * hidden, hidden], gates in the order z, r, h.
        b: the biases, [3 * hidden], or [4 * hidden] with linear_before_reset; None for zeros.
        hidden_size, activations, activations_alpha, activations_beta, clip, linear_before_reset: as
            in `tf_ti.gru_sequence`.
        name: a name for the operation.

    Returns:
        ho: the next hidden state, [batch, hidden].

    Raises: as `tf_ti.lstm_cell`.

    Example:

        >>> ho = tf_ti.gru_cell(tf.ones([1, 2]), tf.zeros([1, 1]), tf.ones([3, 2]), tf.ones([3, 1]))
        >>> tf.round(100 * ho).numpy().tolist()
        [[11.0]]

    Source: OpenVINO's GRUCell-3; activations as in ONNX's GRU.
    """
    spec = CellSpec.of(
        "gru", activations, activations_alpha, activations_beta, clip, linear_before_reset
    )
    states, weights = {"initial_hidden_state": initial_hidden_state}, {"w": w, "r": r, "b": b}
    (ho,) = _step(spec, x, states, weights, hidden_size, name or "GRUCell")
    return ho


@_tf.public
def rnn_cell(
    x: Any,
    initial_hidden_state: Any,
    w: Any,
    r: Any,
    b: Any = None,
    hidden_size: int | None = None,
    activations: Sequence[str] = ("tanh",),
    activations_alpha: Sequence[float] = (),
    activations_beta: Sequence[float] = (),
    clip: float | None = None,
    *,
    name: str | None = None,
) -> tf.Tensor:
    """One step of a plain recurrent cell.

    It means, where f is the activation:

        ho = f(np.clip(x @ w.T + initial_hidden_state @ r.T + b, -clip, clip))

    Args:
        x: [batch, input], of float32, float64, float16 or bfloat16. The state, the weights and the
            result have this dtype.
        initial_hidden_state: [batch, hidden].
        w, r, b: [hidden, input], [hidden, hidden] and [hidden]. b may be None, for zeros.
        hidden_size, activations, activations_alpha, activations_beta, clip: as in
            `tf_ti.rnn_sequence`.
        name: a name for the operation.

    Returns:
        ho: the next hidden state, [batch, hidden].

    Raises: as `tf_ti.lstm_cell`.

    Example:

        >>> one = tf.ones([1, 1])
        >>> tf_ti.rnn_cell(one, one, one, one, activations=["relu"]).numpy().tolist()
        [[2.0]]

    Source: OpenVINO's RNNCell-3, the RNNCell-0 of its IR; activations as in ONNX's RNN.
    """
    spec = CellSpec.of("rnn", activations, activations_alpha, activations_beta, clip)
    states, weights = {"initial_hidden_state": initial_hidden_state}, {"w": w, "r": r, "b": b}
    (ho,) = _step(spec, x, states, weights, hidden_size, name or "RNNCell")
    return ho


def _step(
    spec: CellSpec,
    x: Any,
    initial: dict[str, Any],
    weights: dict[str, Any],
    hidden_size: Any,
    name: str,
) -> list[tf.Tensor]:
    with tf.name_scope(name):
        tensors = _arguments.to_floats({"x": x, **initial, **weights})
        layouts = {
            "x": "batch input",
            **dict.fromkeys(initial, "batch hidden"),
            "w": f"{len(spec.gates)}*hidden input",
            "r": f"{len(spec.gates)}*hidden hidden",
            "b": f"{spec.num_biases}*hidden",
        }
        tensors = _arguments.check_shapes(tensors, layouts, {}, hidden_size, is_step=True)
        return unfused.step(
            spec,
            tensors["x"],
            [tensors[label] for label in initial],
            tensors["w"],
            tensors["r"],
            tensors.get("b"),
        )
