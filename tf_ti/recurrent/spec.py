"""Descriptions of recurrent cells: kind, gates, activations and options, without any tensors."""

import dataclasses
import enum
import numbers
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np

Kind = Literal["lstm", "gru", "rnn"]
Direction = Literal["forward", "reverse", "bidirectional"]

# The gates of a cell, in OpenVINO's order: of an LSTM forget, input, candidate, output; of a GRU
# update, reset, candidate.
GATES: dict[Kind, str] = {"lstm": "fico", "gru": "zrh", "rnn": "h"}
# The activation functions of a cell, in the order of ONNX's and OpenVINO's f, g, h.
DEFAULT_ACTIVATIONS = {
    "lstm": ("sigmoid", "tanh", "tanh"),
    "gru": ("sigmoid", "tanh"),
    "rnn": ("tanh",),
}
# The directions of a layer by its `direction`. True stands for one that runs backwards.
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
# The default alpha and beta of each function, from ONNX's operators; None where there is none.
# Affine and ScaledTanh are no longer operators of ONNX: their defaults change nothing.
ACTIVATIONS: dict[str, tuple[float | None, float | None]] = {
    "affine": (1.0, 0.0),
    "elu": (1.0, None),
    "hard_sigmoid": (0.2, 0.5),
    "leaky_relu": (0.01, None),
    "relu": (None, None),
    "scaled_tanh": (1.0, 1.0),
    "sigmoid": (None, None),
    "softplus": (None, None),
    "softsign": (None, None),
    "tanh": (None, None),
    "thresholded_relu": (1.0, None),
}
_NAMES = {name.replace("_", ""): name for name in ACTIVATIONS}


class Limits(enum.IntFlag):
    """Flags for gradients of a relu or a hard sigmoid at its limits, and at NaN.

    PASSES: the gradient goes on. ZERO: 0 takes its place. With neither, it is multiplied by 0,
    which makes a difference where it is infinite. tf.nn.relu and tf.nn.relu6 have none of these
    flags. The others occur where a limit is made of TensorFlow's minima and maxima.
    """

    PASSES_LOW = 1
    PASSES_HIGH = 2
    PASSES_NAN = 4
    PASSES = 7
    ZERO_LOW = 8
    ZERO_HIGH = 16
    ZERO_NAN = 32

    def exchanged(self) -> "Limits":
        """The limits of 1 minus the function."""
        low, high = Limits.PASSES_LOW | Limits.ZERO_LOW, Limits.PASSES_HIGH | Limits.ZERO_HIGH
        return Limits(self & ~(low | high) | (self & low) << 1 | (self & high) >> 1)


@dataclasses.dataclass(frozen=True)
class Activation:
    """An activation function. An alpha or a beta that it does not have is 0.

    They are fractions where they must be exact: while a loop is recognized.
    """

    name: str
    alpha: float | Fraction = 0.0
    beta: float | Fraction = 0.0
    limits: Limits = Limits(0)

    @classmethod
    def of(
        cls, name: Any, alpha: Any = None, beta: Any = None, label: str = "activation"
    ) -> "Activation":
        """Finds a function by its OpenVINO or ONNX name: hard_sigmoid, hardsigmoid, HardSigmoid."""
        if not isinstance(name, str):
            raise TypeError(f"{label} must be a name, got {name!r}")
        known = _NAMES.get(name.lower().replace("_", ""))
        if known is None:
            raise ValueError(f"{label} must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
        alpha, beta = (
            0.0 if default is None else float(default if given is None else given)
            for given, default in zip((alpha, beta), ACTIVATIONS[known])
        )
        return cls(known, alpha, beta)


@dataclasses.dataclass(frozen=True)
class CellSpec:
    """The description of a cell and of how one direction of a layer runs it.

    Attributes:
        kind: "lstm", "gru" or "rnn".
        activations: f, g and h of an LSTM, f and g of a GRU, f of an RNN.
        gates: the order of the gates in the weights, by the letters of `GATES`.
        clip: the limit of the arguments of activations, on both sides; None for no limit. An LSTM's
            cell state is not limited.
        linear_before_reset: the reset gate of a GRU is applied after the product with the recurrent
            weights.
        reverse: steps run from the last to the first. Results are in their steps' places.
        hold_output: a step that a mask leaves out repeats the output before it (zeros before the
            first). Otherwise its output is zeros.
        time_major: time is the first axis of x, y and a mask, and the batch the second.
        transpose_weights: w and r are [gates * hidden, inputs], as in OpenVINO. Otherwise they are
            [inputs, gates * hidden].
    """

    kind: Kind
    activations: tuple[Activation, ...]
    gates: str
    clip: float | None = None
    linear_before_reset: bool = False
    reverse: bool = False
    hold_output: bool = False
    time_major: bool = False
    transpose_weights: bool = True

    @classmethod
    def of(
        cls,
        kind: Kind,
        activations: Sequence[str] | None = None,
        activations_alpha: Sequence[float] = (),
        activations_beta: Sequence[float] = (),
        clip: float | None = None,
        linear_before_reset: bool = False,
        hold_output: bool = False,
        time_major: bool = False,
    ) -> "CellSpec":
        """Checks the arguments of the public functions, and describes the cell."""
        if linear_before_reset and kind != "gru":
            raise ValueError(f"linear_before_reset is about a gru, got it for {kind}")
        return cls(
            kind,
            _activations(kind, activations, activations_alpha, activations_beta),
            GATES[kind],
            _clip(clip),
            bool(linear_before_reset),
            hold_output=bool(hold_output),
            time_major=bool(time_major),
        )

    @property
    def num_biases(self) -> int:
        """The number of biases of a hidden unit: the candidate may have a recurrent one too."""
        return len(self.gates) + self.linear_before_reset

    def replace(self, **changes: Any) -> "CellSpec":
        return dataclasses.replace(self, **changes)


def directions_of(direction: Any) -> tuple[bool, ...]:
    """The directions of a layer. True stands for one that runs backwards."""
    if not isinstance(direction, str) or direction not in DIRECTIONS:
        raise ValueError(f"direction must be one of {', '.join(DIRECTIONS)}, got {direction!r}")
    return DIRECTIONS[direction]


def _activations(kind: Kind, names: Any, alphas: Any, betas: Any) -> tuple[Activation, ...]:
    names = DEFAULT_ACTIVATIONS[kind] if names is None else names
    check_names(names)
    count = len(DEFAULT_ACTIVATIONS[kind])
    if len(names) != count:
        raise ValueError(f"activations of {kind} must be {count}, got {len(names)}: {names!r}")
    alphas = _coefficients("activations_alpha", alphas, count)
    betas = _coefficients("activations_beta", betas, count)
    return tuple(
        Activation.of(name, alpha, beta, f"activations[{i}]")
        for i, (name, alpha, beta) in enumerate(zip(names, alphas, betas))
    )


def check_names(activations: Any) -> None:
    if isinstance(activations, (str, bytes)) or not isinstance(activations, Sequence):
        raise TypeError(f"activations must be a list of names, got {activations!r}")


def _coefficients(label: str, values: Any, count: int) -> Sequence[float | None]:
    values = check_numbers(label, values)
    if values and len(values) != count:
        raise ValueError(
            f"{label} must have a number for each of {count} activations, or none, got {values!r}"
        )
    return values or [None] * count


def check_numbers(label: str, values: Any) -> list[float]:
    values = values.tolist() if isinstance(values, np.ndarray) else values
    if values is not None and (isinstance(values, str) or not isinstance(values, Sequence)):
        raise TypeError(f"{label} must be a list of numbers, got {values!r}")
    for i, value in enumerate(values or ()):
        if not _is_real(value):
            raise TypeError(f"{label}[{i}] must be a number, got {value!r}")
        if not abs(value) <= sys.float_info.max:
            raise ValueError(f"{label}[{i}] must be finite, got {value!r}")
    return list(values or ())


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _clip(clip: Any) -> float | None:
    if clip is None:
        return None
    if not _is_real(clip):
        raise TypeError(f"clip must be a number or None, got {clip!r}")
    if not clip > 0:
        raise ValueError(f"clip must be above 0, got {clip!r}")
    return None if clip > sys.float_info.max else float(clip)
