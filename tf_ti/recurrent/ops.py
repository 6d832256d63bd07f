"""One direction of a layer: by the native op, or where that does not reach, by the loop.

The op computes the same steps on the CPU, all of them in one kernel. Its gradient is an op too. The
gradient of that, and of a clipped sequence, is the loop's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti._library import ops
from tf_ti.recurrent import unfused
from tf_ti.recurrent.spec import GATES, Activation, Limits, Recurrence

OP = "TfTi>RecurrentSequence"
_KERNELS = frozenset(
    ["affine", "hard_sigmoid", "leaky_relu", "relu", "scaled_tanh", "sigmoid", "tanh"]
)
# How many tensors a gradient takes beside the outputs: activated gates, if there are several, and
# the cell states; where steps are left out, or there is one gate, the hidden states; and where
# gates do not tell how their gradients go, what goes into them.
_NUM_SAVED = {"lstm": 2, "gru": 1, "rnn": 0}


def run(
    recurrence: Recurrence,
    x: tf.Tensor,
    states: Sequence[tf.Tensor],
    w: tf.Tensor | None,
    r: tf.Tensor,
    b: tf.Tensor | None,
    lengths: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
    checkpoint_every: int | None = None,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """As `unfused.run`."""
    if checkpoint_every is not None or not has_kernel(recurrence):
        return unfused.run(recurrence, x, states, w, r, b, lengths, mask, checkpoint_every)
    # In a graph the kernel saves nothing where nobody reads it; an eager call cannot tell.
    saves = not tf.executing_eagerly() or _tf.is_recording()
    num_saved = _NUM_SAVED[recurrence.kind]
    num_saved += recurrence.kind == "rnn" or lengths is not None or mask is not None
    # An LSTM's last activation is of no gate.
    num_saved += any(f.limits & Limits.PASSES for f in recurrence.activations[:2])
    hidden, *cells = states
    result = ops.tf_ti_recurrent_sequence(
        x=x,
        h=hidden,
        c=cells,
        w=_list(w),
        r=r,
        b=_list(b),
        lengths=_list(lengths),
        mask=_list(mask),
        S=tf.float64 if x.dtype == tf.float64 else tf.float32,
        num_saved=num_saved if saves else 0,
        **_attributes(recurrence),
    )
    return result.y, [result.last_h, *result.last_c]


def has_kernel(recurrence: Recurrence) -> bool:
    """Whether the op computes it, and there is no GPU, for which it has no kernel."""
    return all(map(_is_known, recurrence.activations)) and not tf.config.list_logical_devices("GPU")


def _is_known(activation: Activation) -> bool:
    # From what these give, their slopes can be told for such alphas.
    if activation.name == "leaky_relu" and activation.alpha < 0:
        return False
    if activation.name == "scaled_tanh" and activation.alpha == 0:
        return False
    return activation.name in _KERNELS


def _list(tensor: tf.Tensor | None) -> list[tf.Tensor]:
    return [] if tensor is None else [tensor]


def _attributes(recurrence: Recurrence) -> dict[str, Any]:
    """What both ops are told of the cell."""
    coefficients = [recurrence.clip or 0.0]
    for activation in recurrence.activations:
        coefficients += [activation.alpha, activation.beta]
    return {
        "kind": recurrence.kind,
        "gate_order": [recurrence.gates.index(gate) for gate in GATES[recurrence.kind]],
        "transpose_weights": recurrence.transpose_weights,
        "linear_before_reset": recurrence.linear_before_reset,
        "activations": [activation.name for activation in recurrence.activations],
        "coefficients": [repr(float(coefficient)) for coefficient in coefficients],
        "reverse": recurrence.reverse,
        "time_major": recurrence.time_major,
        "hold_output": recurrence.hold_output,
        "limits": [int(activation.limits) for activation in recurrence.activations],
    }


def _coefficients(op: tf.Operation) -> list[float]:
    return [float(text) for text in op.get_attr("coefficients")]


def _recurrence_of(op: tf.Operation) -> Recurrence:
    kind = op.get_attr("kind").decode()
    by_position = sorted(zip(op.get_attr("gate_order"), GATES[kind]))
    names = [name.decode() for name in op.get_attr("activations")]
    clip, *coefficients = _coefficients(op)
    limits = map(Limits, op.get_attr("limits") or [0] * len(names))
    return Recurrence(
        kind,
        tuple(map(Activation, names, coefficients[::2], coefficients[1::2], limits)),
        "".join(gate for _, gate in by_position),
        clip or None,
        op.get_attr("linear_before_reset"),
        op.get_attr("reverse"),
        op.get_attr("hold_output"),
        op.get_attr("time_major"),
        op.get_attr("transpose_weights"),
    )


class Inputs:
    """The inputs of either op, and the op of them again, or the loop."""

    def __init__(self, op: tf.Operation, inputs: Sequence[tf.Tensor] | None = None):
        counts = [op.get_attr(f"num_{name}") for name in ("cells", "weights", "biases")]
        num_cells, num_weights, num_biases = counts
        inputs = list(op.inputs if inputs is None else inputs)
        self.differentiable = inputs[: 3 + sum(counts)]
        rest = inputs[len(self.differentiable) :]
        self._num_states, self._has_weights = 1 + num_cells, bool(num_weights)
        self._has_bias = bool(num_biases)
        self._lengths = rest.pop(0) if op.get_attr("num_lengths") else None
        self._mask = rest.pop(0) if op.get_attr("num_masks") else None
        self.rest = rest
        self.op = op

    def run_unfused(self, differentiable: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The outputs but for what is saved."""
        x, *others = differentiable
        states, others = others[: self._num_states], others[self._num_states :]
        w = others.pop(0) if self._has_weights else None
        r, b = others[0], others[1] if self._has_bias else None
        recurrence = _recurrence_of(self.op)
        y, states = unfused.run(recurrence, x, states, w, r, b, self._lengths, self._mask)
        return [y, *states]

    def all(self) -> list[tf.Tensor]:
        return [*self.differentiable, *_list(self._lengths), *_list(self._mask)]


def gradient_of(
    function: Callable, tensors: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    with _tf.inside_jvp(), tf.GradientTape() as tape:
        tape.watch(tensors)
        results = function(tensors)
    return tape.gradient(results, tensors, gradients, tf.UnconnectedGradients.ZERO)


@_tf.register_gradient(OP)
def _first_gradient(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    inputs = Inputs(op)
    nothing = [None] * (len(op.inputs) - len(inputs.differentiable))
    num_states = 1 + op.get_attr("num_cells")
    by_y, by_states = gradients[0], gradients[1 : 1 + num_states]
    if _coefficients(op)[0]:  # clipped
        found = gradient_of(inputs.run_unfused, inputs.differentiable, [by_y, *by_states])
        return [*found, *nothing]
    saved = op.outputs[1 + num_states :]
    if not saved:
        raise ValueError(f"{op.type}: without what it saves, a sequence has no gradient")
    found = gradient_op(op, [*inputs.all(), op.outputs[0], *saved, by_y, *by_states])
    return [*found, *nothing]


def _named(op: tf.Operation, names: dict[str, str | None], flat: Sequence[Any]) -> dict[str, Any]:
    """An op's inputs by their names."""
    rest, given = list(flat), {}
    for name, count in names.items():
        one_or_more = [rest.pop(0) for _ in range(op.get_attr(count) if count else 1)]
        given[name] = one_or_more if count else one_or_more[0]
    return given


# The ops' inputs; those with a name beside them are lists, of which that attribute is the length.
INPUTS = {
    "x": None,
    "h": None,
    "c": "num_cells",
    "w": "num_weights",
    "r": None,
    "b": "num_biases",
    "lengths": "num_lengths",
    "mask": "num_masks",
}
GRADIENT_INPUTS = INPUTS | {
    "y": None,
    "saved": "num_saved",
    "grad_y": None,
    "grad_last_h": None,
    "grad_last_c": "num_cells",
}


def sequence_op(op: tf.Operation, flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The same sequence of other inputs: all outputs."""
    result = ops.tf_ti_recurrent_sequence(
        **_named(op, INPUTS, flat),
        S=op.get_attr("S"),
        num_saved=op.get_attr("num_saved"),
        **_attributes(_recurrence_of(op)),
    )
    return [result.y, result.last_h, *result.last_c, *result.saved]


def gradient_op(op: tf.Operation, flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The gradient of a sequence, or the same one of other inputs: all outputs."""
    given = _named(op, GRADIENT_INPUTS, flat)
    result = ops.tf_ti_recurrent_sequence_grad(**given, **_attributes(_recurrence_of(op)))
    by_w, by_b = result.grad_w, result.grad_b
    return [result.grad_x, result.grad_h, *result.grad_c, *by_w, result.grad_r, *by_b]


@_tf.register_gradient(f"{OP}Grad")
def _second_gradient(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    """By the inputs of the sequence and by the first gradients; its outputs follow from these."""
    inputs = Inputs(op)
    num_states = 1 + op.get_attr("num_cells")
    count = len(inputs.differentiable)
    first = list(op.inputs[-1 - num_states :])

    def gradient(tensors):
        return gradient_of(inputs.run_unfused, tensors[:count], tensors[count:])

    found = gradient_of(gradient, [*inputs.differentiable, *first], gradients)
    nothing = [None] * (len(op.inputs) - len(found))
    return [*found[:count], *nothing, *found[count:]]
