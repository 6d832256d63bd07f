"""Trained weights from Keras, torch and ONNX for the sequences and cells of tf_ti, and back.

None of these libraries is imported: attributes of their objects, and arrays, are enough.
"""

import dataclasses
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np

from tf_ti.recurrent.spec import (
    ACTIVATIONS,
    DEFAULT_ACTIVATIONS,
    DIRECTIONS,
    GATES,
    Activation,
    CellSpec,
    Kind,
    check_names,
    check_numbers,
    directions_of,
)

# The orders of the gates, by the letters of GATES.
KERAS_GATES = {"lstm": "ifco", "gru": "zrh", "rnn": "h"}
_TORCH_GATES = {"lstm": "ifco", "gru": "rzh", "rnn": "h"}
_ONNX_GATES = {"lstm": "iofc", "gru": "zrh", "rnn": "h"}

_KERAS_CELLS: dict[str, Kind] = {"LSTMCell": "lstm", "GRUCell": "gru", "SimpleRNNCell": "rnn"}
_KERAS_ACTIVATIONS = {
    "elu": Activation("elu", 1.0),
    "hard_sigmoid": Activation("hard_sigmoid", 1 / 6, 0.5),
    "leaky_relu": Activation("leaky_relu", 0.2),
    "linear": Activation("affine", 1.0, 0.0),
    **{name: Activation(name) for name in ("relu", "sigmoid", "softplus", "softsign", "tanh")},
}
# The arguments of a public function that may accompany its weights.
_OPTIONS = (
    "activations",
    "activations_alpha",
    "activations_beta",
    "clip",
    "linear_before_reset",
    "hold_output",
    "time_major",
)
_ONNX_ACTIVATIONS = {name: name.title().replace("_", "") for name in ACTIVATIONS}


def from_keras(layer: Any) -> dict[str, Any]:
    """Returns the weights of a layer or cell of Keras, for the functions of tf_ti.

    It means that, for an LSTM of Keras without a mask,

        layer(x, initial_state=[h, c])

    is the last hidden state, `ho[:, 0]`, of

        tf_ti.lstm_sequence(x, h[:, None], c[:, None], None, **tf_ti.recurrent.from_keras(layer))

    Args:
        layer: a built LSTM, GRU or SimpleRNN, an RNN of one of their cells, a Bidirectional of one
            of these, or a cell. Dropout is ignored. With go_backwards, the outputs of Keras are in
            the order of computation; those of tf_ti are in the order of x.

    Returns:
        A dict of arguments: w, r and b as NumPy arrays, activations, activations_alpha,
        activations_beta; for a GRU linear_before_reset; and for a layer direction. The arguments
        from a cell are for `tf_ti.lstm_cell`, `tf_ti.gru_cell` or `tf_ti.rnn_cell`.

    Raises:
        ValueError: tf_ti has no such cell, or the layer has no weights yet.

    Example:

        >>> layer = keras.layers.GRU(4)
        >>> layer.build([None, None, 3])
        >>> weights = tf_ti.recurrent.from_keras(layer)
        >>> weights["w"].shape, weights["direction"], weights["linear_before_reset"]
        ((1, 12, 3), 'forward', True)
    """
    is_both = hasattr(layer, "forward_layer") and hasattr(layer, "backward_layer")
    layers = [layer.forward_layer, layer.backward_layer] if is_both else [layer]
    backwards = tuple(bool(getattr(each, "go_backwards", False)) for each in layers)
    directions = {each: name for name, each in DIRECTIONS.items()}
    if backwards not in directions:
        raise ValueError(
            f"the layers of a Bidirectional must have go_backwards False and True, got {backwards}"
        )
    direction = directions[backwards]
    cells = [_keras_cell(getattr(each, "cell", each)) for each in layers]
    return _arguments(cells, direction if hasattr(layers[0], "cell") else None)


def to_keras(weights: Mapping[str, Any]) -> list[np.ndarray]:
    """Converts arguments, as from `from_keras`, for `set_weights` of a layer or cell of Keras.

    Args:
        weights: a dict of w, r, b and the other arguments of one of tf_ti's functions, by their
            names. A missing b is zeros: the layer of Keras must have use_bias.

    Returns:
        [kernel, recurrent_kernel, bias]; for a Bidirectional, followed by those of the other
        direction. The bias of a GRU with linear_before_reset, which Keras calls reset_after, has
        two rows.

    Raises:
        TypeError, ValueError: Keras has no such cell, or the dict has no weights of a cell.

    Example:

        >>> weights = {"w": np.ones([1, 8, 3]), "r": np.ones([1, 8, 2]), "b": np.zeros([1, 8])}
        >>> [array.shape for array in tf_ti.recurrent.to_keras(weights)]
        [(3, 8), (2, 8), (8,)]
    """
    cells, _ = _cells(weights)
    spec = cells[0].spec
    kind, activations = spec.kind, spec.activations
    if spec.clip is not None:
        raise ValueError(f"a cell of Keras clips nothing, got clip {spec.clip}")
    known = set(map(_as_float32, _KERAS_ACTIVATIONS.values()))
    for activation in activations:
        if _as_float32(activation) not in known:
            raise ValueError(f"Keras has no {activation}")
    if kind == "lstm" and activations[1] != activations[2]:
        raise ValueError(f"an LSTM of Keras has one activation for g and h, got {activations[1:]}")
    arrays = []
    for cell in cells:
        w, r, b, recurrent_b = cell.arrays(KERAS_GATES)
        arrays += [w.T, r.T, np.stack([b, recurrent_b]) if spec.linear_before_reset else b]
    return arrays


@overload
def from_torch(
    module: Any, layer: int | None = None, *, nonlinearity: str = "tanh"
) -> dict[str, Any]: ...
@overload
def from_torch(
    module: Any, layer: Literal["all"], *, nonlinearity: str = "tanh"
) -> list[dict[str, Any]]: ...
def from_torch(
    module: Any, layer: int | Literal["all"] | None = None, *, nonlinearity: str = "tanh"
) -> dict[str, Any] | list[dict[str, Any]]:
    """Returns the weights of a torch.nn.LSTM, GRU or RNN, or of a cell, for tf_ti's functions.

    Args:
        module: the module, or its state_dict.
        layer: the number of a layer of the module; "all": each of its layers; None: its only one.
        nonlinearity: "tanh" or "relu", for the state_dict of an RNN. A module has its own.

    Returns:
        A dict of arguments, as from `from_keras`, or with "all" a list of one for each layer, from
        the first to the last: x of the next is y, with its directions side by side, of the one
        before. torch drops elements out between layers only while it trains. bfloat16 becomes
        float32. torch's GRU has
        linear_before_reset. The x of a module without batch_first is time_major.

    Raises:
        TypeError, ValueError: tf_ti has no such cell, the module no such layer, or several and
            `layer` is None.

    Example:

        >>> weights = tf_ti.recurrent.from_torch(torch.nn.LSTM(3, 4, bidirectional=True))
        >>> weights["r"].shape, weights["direction"]
        ((2, 16, 4), 'bidirectional')

        >>> x = tf.ones([2, 5, 3])
        >>> for weights in tf_ti.recurrent.from_torch(torch.nn.GRU(3, 4, 2), "all"):
        ...     y, _ = tf_ti.gru_sequence(x, tf.zeros([2, 1, 4]), None, **weights)
        ...     x = tf.concat(tf.unstack(y, axis=1), -1)
        >>> x.shape
        TensorShape([2, 5, 4])
    """
    if isinstance(module, type) or not (
        isinstance(module, Mapping) or hasattr(module, "state_dict")
    ):
        raise TypeError(f"module must be a module of torch or a state_dict, got {module!r}")
    entries = module if isinstance(module, Mapping) else module.state_dict()
    nonlinearity = getattr(module, "nonlinearity", nonlinearity)
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
    count = sum(bool(re.fullmatch(r"weight_hh_l\d+", str(name))) for name in entries)
    if layer == "all":
        return [_of_torch(entries, k, nonlinearity) for k in range(max(count, 1))]
    is_number = isinstance(layer, numbers.Integral) and not isinstance(layer, bool)
    if layer is not None and not (is_number and layer >= 0):
        raise ValueError(f"layer must be a number from 0 on, 'all' or None, got {layer!r}")
    if layer and "weight_hh" in entries:
        raise ValueError(f"a cell has no layers: layer must be None, got {layer}")
    if layer is None and count > 1:
        raise ValueError(
            f"module has {count} layers: layer=0 is the first, layer={count - 1} the last, and "
            "layer='all' gives a list of all"
        )
    return _of_torch(entries, layer or 0, nonlinearity)


def _of_torch(entries: Mapping[str, Any], layer: int, nonlinearity: str) -> dict[str, Any]:
    """The arguments from a layer of a state_dict, or from a cell."""
    is_cell = "weight_hh" in entries
    suffix = "" if is_cell else f"_l{layer}"
    suffixes = [s for s in (suffix, f"{suffix}_reverse") if f"weight_hh{s}" in entries]
    if list(entries) == ["weight"]:
        raise ValueError(
            "module must have the weights of a recurrent layer, got a single matrix; that of an "
            "Embedding or an EmbeddingBag is a table: tf.Variable(module.weight.detach().numpy())"
        )
    for name in [f"weight_hh{suffix}", *(f"weight_ih{s}" for s in suffixes)]:
        if name not in entries:
            raise ValueError(
                f"module must have the weights of a recurrent layer, {name} among them, got "
                f"{', '.join(map(str, entries)) or 'none'}"
            )
    if f"weight_hr{suffix}" in entries:
        raise ValueError("module must have no projections, got one with proj_size")
    cells = []
    for s in suffixes:
        w, r = (_array(name, entries[name]) for name in (f"weight_ih{s}", f"weight_hh{s}"))
        b, recurrent_b = (
            None if entries.get(name) is None else _array(name, entries[name])
            for name in (f"bias_ih{s}", f"bias_hh{s}")
        )
        kind = _kind_of(r)
        activations = [nonlinearity] if kind == "rnn" else None
        spec = CellSpec.of(kind, activations, linear_before_reset=kind == "gru")
        cells.append(_Cell.of(spec, _TORCH_GATES, w, r, b, recurrent_b))
    direction = "forward" if len(cells) == 1 else "bidirectional"
    return _arguments(cells, None if is_cell else direction)


def to_torch(weights: Mapping[str, Any], layer: int = 0) -> dict[str, np.ndarray]:
    """Converts arguments, as from `from_torch`, to the entries of a state_dict of torch.

    Args:
        weights: a dict of w, r, b and the other arguments of one of tf_ti's functions, by their
            names.
        layer: the number in the entries' names.

    Returns:
        A dict of NumPy arrays: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, and those of the
        other direction; for a cell weight_ih, weight_hh, bias_ih and bias_hh.

    Raises:
        TypeError, ValueError: torch has no such cell, or the dict has no weights of a cell.

    Example:

        >>> weights = {"w": np.ones([4, 3]), "r": np.ones([4, 1]), "b": np.zeros([4])}
        >>> module = torch.nn.LSTMCell(3, 1)
        >>> entries = tf_ti.recurrent.to_torch(weights).items()
        >>> module.load_state_dict({name: torch.tensor(array) for name, array in entries})
        <All keys matched successfully>
    """
    cells, direction = _cells(weights)
    if isinstance(layer, bool) or not isinstance(layer, numbers.Integral) or layer < 0:
        raise ValueError(f"layer must be an int from 0 on, got {layer!r}")
    spec, kind = cells[0].spec, cells[0].spec.kind
    names = tuple(activation.name for activation in spec.activations)
    if spec.clip is not None:
        raise ValueError(f"a cell of torch clips nothing, got clip {spec.clip}")
    if names != DEFAULT_ACTIVATIONS[kind] and names != ("relu",):
        raise ValueError(f"torch has no {kind} with the activations {', '.join(names)}")
    if kind == "gru" and not spec.linear_before_reset:
        raise ValueError("a GRU of torch has linear_before_reset, got one without")
    if direction == "reverse":
        raise ValueError("torch has no layer that only runs backwards, got direction 'reverse'")
    entries = {}
    for cell, end in zip(cells, ("", "_reverse")):
        suffix = "" if direction is None else f"_l{layer}{end}"
        names = (f"{name}{suffix}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        entries.update(zip(names, cell.arrays(_TORCH_GATES)))
    return entries


def from_onnx(
    w: Any,
    r: Any,
    b: Any = None,
    *,
    p: Any = None,
    direction: str | bytes = "forward",
    activations: Sequence[Any] | None = None,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float | None = None,
    linear_before_reset: int = 0,
    input_forget: int = 0,
    hidden_size: int | None = None,
    layout: int = 0,
) -> dict[str, Any]:
    """Returns the weights of an LSTM, GRU or RNN of ONNX, for the functions of tf_ti.

    Args:
        w, r, b, p: the operator's inputs W, R, B and P, as arrays: [directions, gates * hidden,
            input], [directions, gates * hidden, hidden], [directions, 2 * gates * hidden]. b and p
            may be None. Peepholes p must be zeros.
        direction, activations, activation_alpha, activation_beta, clip, linear_before_reset,
            input_forget, hidden_size, layout: its attributes. Strings may be str or bytes. layout
            is ignored, since it is about x: with layout 0, x is time_major, and states and y have
            their dimensions in another order than in tf_ti.

    Returns:
        A dict of arguments, as from `from_keras`.

    Raises:
        TypeError, ValueError: tf_ti has no such cell, or the arrays are no weights of a cell.

    Example:

        >>> w, r, b = np.ones([1, 4, 3]), np.ones([1, 4, 4]), np.ones([1, 8])
        >>> tf_ti.recurrent.from_onnx(w, r, b, activations=[b"Relu"])["b"].tolist()
        [[2.0, 2.0, 2.0, 2.0]]
    """
    count = len(directions_of(_text(direction)))
    if p is not None and np.any(_array("p", p)):
        raise ValueError("p: there are no peepholes in tf_ti")
    if input_forget:
        raise ValueError("input_forget: there is no coupling of gates in tf_ti")
    w, r = _array("w", w), _array("r", r)
    kind = _kind_of(r)
    b = np.zeros([len(r), 2 * r.shape[1]], r.dtype) if b is None else _array("b", b)
    if (w.shape[:-1], b.shape) != ((count, r.shape[1]), (count, 2 * r.shape[1])) or r.ndim != 3:
        raise ValueError(
            f"w, r and b must have {count} directions, and b two biases for each row of w and r, "
            f"got shapes {w.shape}, {r.shape} and {b.shape}"
        )
    _check_hidden_size(hidden_size, r)
    default = DEFAULT_ACTIVATIONS[kind]
    activations = default * count if activations is None else activations
    check_names(activations)
    names = [_text(name) for name in activations]
    if len(names) != len(default) * count:
        raise ValueError(
            f"activations must be {len(default)} for each direction, got {len(names)}: {names!r}"
        )
    # Only functions that have an alpha or a beta take the next number.
    alphas = iter(check_numbers("activation_alpha", activation_alpha))
    betas = iter(check_numbers("activation_beta", activation_beta))
    functions = []
    for i, name in enumerate(names):
        known = Activation.of(name, label=f"activations[{i}]").name
        has_alpha, has_beta = (default is not None for default in ACTIVATIONS[known])
        alpha, beta = (
            next(alphas, None) if has_alpha else None,
            next(betas, None) if has_beta else None,
        )
        functions.append(Activation.of(known, alpha, beta))
    cells = []
    for d in range(count):
        spec = CellSpec.of(
            kind, clip=clip or None, linear_before_reset=bool(linear_before_reset)
        ).replace(activations=tuple(functions[d * len(default) : (d + 1) * len(default)]))
        cells.append(_Cell.of(spec, _ONNX_GATES, w[d], r[d], *np.split(b[d], 2)))
    return _arguments(cells, _text(direction))


def to_onnx(
    weights: Mapping[str, Any],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
    """Converts arguments, as from `from_onnx`, to inputs and attributes of ONNX's LSTM, GRU or RNN.

    Args:
        weights: a dict of w, r, b and the other arguments of one of tf_ti's functions, by their
            names.

    Returns:
        (W, R, B, attributes), such that `from_onnx(W, R, B, **attributes)` returns the weights.

    Example:

        >>> weights = {"w": np.ones([1, 6, 3]), "r": np.ones([1, 6, 2]), "b": np.zeros([1, 6])}
        >>> _, _, b, attributes = tf_ti.recurrent.to_onnx(weights)
        >>> b.shape, attributes["activations"], attributes["hidden_size"]
        ((1, 12), ['Sigmoid', 'Tanh'], 2)
    """
    cells, direction = _cells(weights)
    spec = cells[0].spec
    w, r, b, recurrent_b = map(np.stack, zip(*(cell.arrays(_ONNX_GATES) for cell in cells)))
    functions = spec.activations * len(cells)
    attributes = {
        "hidden_size": r.shape[-1],
        "direction": direction or "forward",
        "activations": [_ONNX_ACTIVATIONS[f.name] for f in functions],
    }
    for i, key in enumerate(("alpha", "beta")):
        values = [getattr(f, key) for f in functions if ACTIVATIONS[f.name][i] is not None]
        if values:
            attributes[f"activation_{key}"] = values
    if spec.clip is not None:
        attributes["clip"] = spec.clip
    if spec.kind == "gru":
        attributes["linear_before_reset"] = int(spec.linear_before_reset)
    return w, r, np.concatenate([b, recurrent_b], 1), attributes


@dataclasses.dataclass(frozen=True, eq=False)
class _Cell:
    """A cell and its weights, in tf_ti's layout."""

    spec: CellSpec
    w: np.ndarray
    r: np.ndarray
    b: np.ndarray

    def __post_init__(self) -> None:
        hidden, gates, biases = (
            self.r.shape[-1],
            len(self.spec.gates),
            self.spec.num_biases,
        )
        shapes = self.w.shape[:1], self.w.ndim, self.r.shape, self.b.shape
        if shapes != ((gates * hidden,), 2, (gates * hidden, hidden), (biases * hidden,)):
            raise ValueError(
                f"w, r and b of {self.spec.kind} must be [{gates}*hidden, input], "
                f"[{gates}*hidden, hidden] and [{biases}*hidden] for each direction, got "
                f"{self.w.shape}, {self.r.shape} and {self.b.shape}"
            )

    @classmethod
    def of(
        cls,
        spec: CellSpec,
        orders: Mapping[str, str],
        w: np.ndarray,
        r: np.ndarray,
        b: np.ndarray | None,
        recurrent_b: np.ndarray | None,
    ) -> "_Cell":
        """Makes a cell of weights with gates in another order.

        Args:
            spec: the cell.
            orders: the order of the gates of each kind.
            w, r: [gates * hidden, input] and [gates * hidden, hidden].
            b, recurrent_b: the biases of the rows of w and of r, or None.
        """
        rows = r.shape[:1]
        biases = [array.shape for array in (b, recurrent_b) if array is not None]
        if w.shape[:-1] != rows or any(shape != rows for shape in biases):
            raise ValueError(
                f"w and b must have as many rows as r, {len(r)}, got shapes "
                f"{', '.join(map(str, [w.shape, *biases]))}"
            )
        order = orders[spec.kind], spec.gates
        zeros = np.zeros(rows, r.dtype)
        w, r, b, recurrent_b = (
            _reorder(zeros if a is None else a, *order) for a in (w, r, b, recurrent_b)
        )
        if spec.linear_before_reset:
            own = slice(2 * r.shape[1], None)  # the candidate's biases stay apart
            b = np.concatenate([(b + recurrent_b)[: own.start], b[own], recurrent_b[own]])
        else:
            b = b + recurrent_b
        return cls(spec, w, r, b)

    def arrays(self, orders: Mapping[str, str]) -> list[np.ndarray]:
        """The reverse of `of`: w, r, b and recurrent_b, with gates in another order."""
        rows = len(self.r)
        b, recurrent_b = self.b[:rows], np.zeros_like(self.b[:rows])
        if self.spec.linear_before_reset:
            recurrent_b[-self.r.shape[1] :] = self.b[rows:]
        order = self.spec.gates, orders[self.spec.kind]
        return [_reorder(a, *order) for a in (self.w, self.r, b, recurrent_b)]


def _arguments(cells: Sequence[_Cell], direction: str | None) -> dict[str, Any]:
    """The arguments for a sequence function, or, without a direction, for a cell function."""
    spec = cells[0].spec
    for cell in cells:
        if cell.spec != spec:
            raise ValueError(f"both directions must be of one kind, got {spec} and {cell.spec}")
    arguments: dict[str, Any] = {}
    for name in ("w", "r", "b"):
        arrays = [getattr(cell, name) for cell in cells]
        arguments[name] = arrays[0] if direction is None else np.stack(arrays)
    if direction is not None:
        arguments["direction"] = direction
    arguments["activations"] = tuple(f.name for f in spec.activations)
    for key in ("alpha", "beta"):
        values = tuple(getattr(f, key) for f in spec.activations)
        arguments[f"activations_{key}"] = values if any(values) else ()
    if spec.clip is not None:
        arguments["clip"] = spec.clip
    if spec.kind == "gru":
        arguments["linear_before_reset"] = spec.linear_before_reset
    return arguments


def _cells(weights: Mapping[str, Any]) -> tuple[list[_Cell], str | None]:
    """The reverse of `_arguments`: the cell of each direction, and the direction."""
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights must be a dict of arguments, got {weights!r}")
    known = ("w", "r", "b", "direction", "hidden_size", *_OPTIONS)
    if not {"w", "r"} <= set(weights) <= set(known):
        raise ValueError(
            f"weights must have w and r, and may have {', '.join(known[2:])}, got "
            f"{', '.join(map(str, weights))}"
        )
    w, r, direction = _array("w", weights["w"]), _array("r", weights["r"]), weights.get("direction")
    spec = CellSpec.of(
        _kind_of(r), **{key: value for key, value in weights.items() if key in _OPTIONS}
    )
    _check_hidden_size(weights.get("hidden_size"), r)
    if weights.get("b") is None:
        b = np.zeros([*r.shape[:-2], spec.num_biases * r.shape[-1]], r.dtype)
    else:
        b = _array("b", weights["b"])
    if r.ndim == 2 and direction is None:
        return [_Cell(spec, w, r, b)], None
    direction = "forward" if direction is None else direction
    count = len(directions_of(direction))
    if not (w.ndim == r.ndim == b.ndim + 1 == 3 and len(w) == len(r) == len(b) == count):
        raise ValueError(
            f"w, r and b must have {count} directions for direction {direction!r}, got shapes "
            f"{w.shape}, {r.shape} and {b.shape}"
        )
    return [_Cell(spec, *arrays) for arrays in zip(w, r, b)], direction


def _keras_cell(cell: Any) -> _Cell:
    name, package = type(cell).__name__, type(cell).__module__.split(".")[0]
    if package != "keras" or name not in _KERAS_CELLS:
        raise ValueError(
            f"layer must be of one of Keras's {', '.join(_KERAS_CELLS)}, got {type(cell).__name__}"
        )
    if not hasattr(cell, "kernel"):
        raise ValueError(f"{cell.name} has no weights yet: it must be built")
    kind, linear_before_reset = _KERAS_CELLS[name], bool(getattr(cell, "reset_after", False))
    f = keras_activation(cell.activation)
    gate = None if kind == "rnn" else keras_activation(cell.recurrent_activation)
    activations = {"lstm": (gate, f, f), "gru": (gate, f), "rnn": (f,)}[kind]
    spec = CellSpec.of(kind, linear_before_reset=linear_before_reset)
    spec = spec.replace(activations=activations)
    w, r = cell.kernel.numpy().T, cell.recurrent_kernel.numpy().T
    b = None if cell.bias is None else cell.bias.numpy()
    biases = b if b is not None and b.ndim == 2 else (b, None)
    return _Cell.of(spec, KERAS_GATES, w, r, *biases)


def _as_float32(activation: Activation) -> Activation:
    """The activation with its alpha and beta rounded to float32, as ONNX's attributes are."""
    alpha, beta = (float(np.float32(number)) for number in (activation.alpha, activation.beta))
    return dataclasses.replace(activation, alpha=alpha, beta=beta)


def keras_activations() -> Mapping[str, Activation]:
    """The activations that Keras has too, by Keras's names."""
    return _KERAS_ACTIVATIONS


def keras_activation(function: Any) -> Activation:
    """Returns tf_ti's activation for a function of Keras."""
    name, module = getattr(function, "__name__", None), getattr(function, "__module__", None) or ""
    if module.split(".")[0] != "keras" or name not in _KERAS_ACTIVATIONS:
        raise ValueError(
            f"activations must be Keras's {', '.join(_KERAS_ACTIVATIONS)}, got {function!r}"
        )
    return _KERAS_ACTIVATIONS[name]


def _kind_of(r: np.ndarray) -> Kind:
    """The kind of a cell, by the number of gates in r, [..., gates * hidden, hidden]."""
    for kind, gates in GATES.items():
        if r.ndim in (2, 3) and r.shape[-1] and r.shape[-2] == len(gates) * r.shape[-1]:
            return kind
    raise ValueError(f"r must be [..., gates * hidden, hidden], 1, 3 or 4 gates, got {r.shape}")


def _check_hidden_size(hidden_size: Any, r: np.ndarray) -> None:
    if hidden_size is not None and hidden_size != r.shape[-1]:
        raise ValueError(f"hidden_size must be {r.shape[-1]}, as r has it, got {hidden_size!r}")


def _array(label: str, value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # torch has no NumPy arrays of it
            value = value.float()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{label} must be an array, got {type(value).__name__}: {error}"
        ) from error
    if array.dtype.kind not in "iufV":  # V: bfloat16
        raise TypeError(
            f"{label} must be an array of real numbers, got {type(value).__name__} of {array.dtype}"
        )
    return array


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _reorder(array: np.ndarray, order: str, wanted: str) -> np.ndarray:
    """Puts the rows of the gates in another order."""
    gates = dict(zip(order, np.split(array, len(order))))
    return np.concatenate([gates[gate] for gate in wanted])
