"""One direction of a layer, run by the native op or by the loop of `unfused.py`.

On a CPU the op runs all steps in one kernel, and its gradient is an op too. The loop takes over if
the kernel lacks an activation, or if checkpoints are asked for. It also computes the gradient of a
clipped sequence, and gradients of gradients.

On a GPU the loop runs the steps. Only the runtime knows the device of an op in a graph, so each op
carries its loop as a function.
"""

import contextlib
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti._library import ops
from tf_ti.loops.tracing import graphs as _graphs
from tf_ti.recurrent import unfused
from tf_ti.recurrent.spec import GATES, Activation, CellSpec, Limits

OP = "TfTi>RecurrentSequence"
_KERNELS = frozenset(
    ["affine", "hard_sigmoid", "leaky_relu", "relu", "scaled_tanh", "sigmoid", "tanh"]
)
# The number of tensors that a gradient needs beside the outputs: the activated gates, if there are
# several, and an LSTM's cell states. `run` adds one for the hidden states, if steps are left out or
# there is a single gate, and one for the arguments of the gates, if their results do not determine
# how gradients pass them.
_NUM_SAVED = {"lstm": 2, "gru": 1, "rnn": 0}


def run(
    spec: CellSpec,
    x: tf.Tensor,
    states: Sequence[tf.Tensor],
    w: tf.Tensor | None,
    r: tf.Tensor,
    b: tf.Tensor | None,
    lengths: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
    checkpoint_every: int | None = None,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Runs the steps of one direction; arguments and results are those of `unfused.run`."""
    if checkpoint_every is not None or not has_kernel(spec) or asks_for_gpu():
        return unfused.run(spec, x, states, w, r, b, lengths, mask, checkpoint_every)
    # In a graph the kernel saves only tensors that are read. An eager call cannot know that.
    saves = not tf.executing_eagerly() or _tf.is_recording()
    num_saved = _NUM_SAVED[spec.kind]
    num_saved += spec.kind == "rnn" or lengths is not None or mask is not None
    # An LSTM's last activation belongs to no gate.
    num_saved += any(f.limits & Limits.PASSES for f in spec.activations[:2])
    hidden, *cells = states
    with _tf.callbacks_paused(True):  # tensors that nobody reads are not saved
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
            **_attributes(spec),
        )
    is_temporary = getattr(tf.compat.v1.get_default_graph(), "runs_here", False)
    if not is_temporary or _tf.has_gpu():
        add_loop(result.y)
    y, *last = _tf.shown([result.y, result.last_h, *result.last_c])
    return y, last


def has_kernel(spec: CellSpec) -> bool:
    """Returns true if the op has kernels for all of the activations."""
    return all(map(has_activation, spec.activations))


def staying_with(tensors: Sequence[tf.Tensor]) -> contextlib.AbstractContextManager[Any]:
    """A context in which eager operations stay on the CPU, if all of these tensors are there.

    TensorFlow would choose a GPU. A device that the caller asks for takes precedence.
    """
    if not tf.executing_eagerly() or not _tf.has_gpu() or _kind(_tf.current_device()):
        return contextlib.nullcontext()
    devices = [tensor.device for tensor in tensors]
    is_on_cpu = all(_kind(device) == "CPU" for device in devices)
    return tf.device(devices[0]) if is_on_cpu else contextlib.nullcontext()


def asks_for_gpu() -> bool:
    """Returns true if the steps are sure to run on a GPU: then the loop is used, not the op.

    In eager mode TensorFlow chooses a GPU unless another device is asked for.
    """
    if not _tf.has_gpu():
        return False
    kind = _kind(_tf.current_device())
    return kind == "GPU" if kind else tf.executing_eagerly()


def _kind(device: str) -> str | None:
    return tf.DeviceSpec.from_string(device).device_type


def has_activation(activation: Activation) -> bool:
    """Returns true if the op has a kernel for an activation."""
    # Gradients derive slopes from results of activations, which are ambiguous for these alphas.
    if activation.name == "leaky_relu" and activation.alpha < 0:
        return False
    if activation.name == "scaled_tanh" and activation.alpha == 0:
        return False
    return activation.name in _KERNELS


def _list(tensor: tf.Tensor | None) -> list[tf.Tensor]:
    return [] if tensor is None else [tensor]


def _attributes(spec: CellSpec) -> dict[str, Any]:
    """The attributes of both ops that describe the cell."""
    coefficients: list[float | Fraction] = [spec.clip or 0.0]
    for activation in spec.activations:
        coefficients += [activation.alpha, activation.beta]
    return {
        "kind": spec.kind,
        "gate_order": [spec.gates.index(gate) for gate in GATES[spec.kind]],
        "transpose_weights": spec.transpose_weights,
        "linear_before_reset": spec.linear_before_reset,
        "activations": [activation.name for activation in spec.activations],
        "coefficients": [repr(float(coefficient)) for coefficient in coefficients],
        "reverse": spec.reverse,
        "time_major": spec.time_major,
        "hold_output": spec.hold_output,
        "limits": [int(activation.limits) for activation in spec.activations],
    }


def _coefficients(op: tf.Operation) -> list[float]:
    return [float(text) for text in op.get_attr("coefficients")]


def _spec_of(op: tf.Operation) -> CellSpec:
    kind = op.get_attr("kind").decode()
    by_position = sorted(zip(op.get_attr("gate_order"), GATES[kind]))
    names = [name.decode() for name in op.get_attr("activations")]
    clip, *coefficients = _coefficients(op)
    limits = map(Limits, op.get_attr("limits") or [0] * len(names))
    return CellSpec(
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
    """The inputs of either op, taken apart, and the loop that is run on them."""

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
        """Runs the loop. Its outputs are those of the op without the saved tensors."""
        x, *others = differentiable
        states, others = others[: self._num_states], others[self._num_states :]
        w = others.pop(0) if self._has_weights else None
        r, b = others[0], others[1] if self._has_bias else None
        spec = _spec_of(self.op)
        y, states = unfused.run(spec, x, states, w, r, b, self._lengths, self._mask)
        return [y, *states]

    def run_gradient(self, flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The loop's gradients with respect to the differentiable inputs.

        Args:
            flat: these inputs, followed by the gradients of the outputs.
        """
        count = len(self.differentiable)
        return gradient_of(self.run_unfused, flat[:count], flat[count:])

    def all(self) -> list[tf.Tensor]:
        return [*self.differentiable, *_list(self._lengths), *_list(self._mask)]


def gradient_of(
    function: Callable[..., Any], tensors: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    with _tf.inside_jvp(), tf.GradientTape() as tape:
        tape.watch(tensors)
        results = function(tensors)
    return tape.gradient(results, tensors, gradients, tf.UnconnectedGradients.ZERO)


def _at(op: tf.Operation) -> contextlib.AbstractContextManager[Any]:
    """A context that places operations on an op's device, where the saved tensors are."""
    device = op.outputs[0].device
    return tf.device(device) if device else contextlib.nullcontext()


@_tf.register_gradient(OP)
def _first_gradient(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    inputs = Inputs(op)
    nothing = [None] * (len(op.inputs) - len(inputs.differentiable))
    num_states = 1 + op.get_attr("num_cells")
    by_y, by_states = gradients[0], gradients[1 : 1 + num_states]
    tensors = saved(op)
    if _coefficients(op)[0]:  # clipped
        with _at(op):
            found = inputs.run_gradient([*inputs.differentiable, by_y, *by_states])
        return [*found, *nothing]
    if not tensors:
        raise ValueError(f"{op.type}: without what it saves, a sequence has no gradient")
    with _at(op):
        found = gradient_op(op, [*inputs.all(), op.outputs[0], *tensors, by_y, *by_states])
    return [*found, *nothing]


def saved(op: tf.Operation) -> Sequence[tf.Tensor]:
    """What a sequence op saves for its gradient, [time, batch, ..., hidden] each."""
    return op.outputs[2 + op.get_attr("num_cells") :]


def _named(op: tf.Operation, names: dict[str, str | None], flat: Sequence[Any]) -> dict[str, Any]:
    """An op's inputs by name."""
    rest, given = list(flat), {}
    for name, count in names.items():
        one_or_more = [rest.pop(0) for _ in range(op.get_attr(count) if count else 1)]
        given[name] = one_or_more if count else one_or_more[0]
    return given


# The ops' inputs. Those with an attribute beside them are lists, whose length it gives.
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


_RANKS = {"x": 3, "h": 2, "c": 2, "w": 2, "r": 2, "b": 1, "lengths": 1, "mask": 2}
_RANKS |= {"y": 3, "grad_y": 3, "grad_last_h": 2, "grad_last_c": 2}


def sequence_op(op: tf.Operation, flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Adds a sequence op with the attributes of `op`, and returns all of its outputs."""
    result = ops.tf_ti_recurrent_sequence(
        **_named(op, INPUTS, flat),
        S=op.get_attr("S"),
        num_saved=op.get_attr("num_saved"),
        **_attributes(_spec_of(op)),
    )
    add_loop(result.y, op)
    return [result.y, result.last_h, *result.last_c, *result.saved]


def gradient_op(op: tf.Operation, flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Adds a gradient op and returns all of its outputs.

    Args:
        op: a sequence op, or its gradient op: both have the attributes.
        flat: the inputs.
    """
    given = _named(op, GRADIENT_INPUTS, flat)
    result = ops.tf_ti_recurrent_sequence_grad(**given, **_attributes(_spec_of(op)))
    add_loop(result.grad_x, op)
    by_w, by_b = result.grad_w, result.grad_b
    return [result.grad_x, result.grad_h, *result.grad_c, *by_w, result.grad_r, *by_b]


@_tf.register_gradient(f"{OP}Grad")
def _second_gradient(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    """Gradients with respect to the inputs of the sequence and the gradients of its outputs.

    The outputs themselves get none: they are functions of the inputs.
    """
    inputs = Inputs(op)
    num_states = 1 + op.get_attr("num_cells")
    count = len(inputs.differentiable)
    tensors = [*inputs.differentiable, *op.inputs[-1 - num_states :]]
    with _at(op):
        found = gradient_of(inputs.run_gradient, tensors, gradients)
    nothing = [None] * (len(op.inputs) - len(found))
    return [*found[:count], *nothing, *found[count:]]


# --- the ops on a GPU -----------------------------------------------------------------------------

# The last loops by the types and attributes of ops. Tracing one takes longer than tracing its
# caller. A functools.lru_cache would take the op as an argument, and so keep its graph alive.
_loops: dict[tuple[Any, ...], Any] = {}
_MOST_LOOPS = 64


def add_loop(output: tf.Tensor, like: tf.Operation | None = None) -> None:
    """Gives the op of an output its loop, if the op is in a graph and might run on a GPU.

    Args:
        output: the first output of the op.
        like: an op that this one derives from; if it has no loop, this one needs none.
    """
    if isinstance(output, _tf.EagerTensor) or _kind(output.device) == "CPU":
        return
    if like is not None and not _has_loop(like):
        return
    op = output.op
    attributes = op.node_def.attr.items()
    told = ((name, str(value)) for name, value in attributes if not name.startswith("_"))
    key = (op.type, *sorted(told))
    found = _loops.get(key)
    if found is None:
        found = _make_loop(op)
        if len(_loops) >= _MOST_LOOPS:
            _loops.pop(next(iter(_loops)), None)
        _loops[key] = found
    _tf.set_functions(op, "loop", [found])


def _has_loop(op: tf.Operation) -> bool:
    output = op.outputs[0]  # a tape passes a stand-in for the op
    if isinstance(output, _tf.EagerTensor):
        return False
    is_elsewhere = not output.op.type.startswith(OP)  # outside the function that is being traced
    return is_elsewhere or bool(output.op.get_attr("loop"))


def _make_loop(op: tf.Operation) -> Any:
    """Traces the loop of an op: a function of inputs of any extents, without saved outputs."""
    is_gradient = op.type != OP
    names = GRADIENT_INPUTS if is_gradient else INPUTS
    labels = [name for name, n in names.items() for _ in range(op.get_attr(n) if n else 1)]
    specs = [
        tf.TensorSpec([None] * _RANKS[label] if label in _RANKS else None, tensor.dtype)
        for label, tensor in zip(labels, op.inputs, strict=True)
    ]
    num_states = 1 + op.get_attr("num_cells")

    def compute(*flat: tf.Tensor) -> list[tf.Tensor]:
        inputs = Inputs(op, flat)
        if is_gradient:
            return inputs.run_gradient([*inputs.differentiable, *flat[-1 - num_states :]])
        return inputs.run_unfused(inputs.differentiable)

    with tf.Graph().as_default():  # away from the caller's devices and scopes
        graph = _graphs.trace("sequence", compute, specs, None)
        return _tf.without_graphs(_tf.make_function(graph))
