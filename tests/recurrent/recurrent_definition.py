"""Recurrent cells and sequences as OpenVINO's specifications define them, in NumPy, and cases."""

import dataclasses

import numpy as np
import tensorflow as tf

import tf_ti

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
DEFAULTS = {"lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh"), "rnn": ("tanh",)}
ACTIVATIONS = {
    "affine": lambda x, alpha=1.0, beta=0.0: alpha * x + beta,
    "elu": lambda x, alpha=1.0, beta=None: np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "hard_sigmoid": lambda x, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1),
    "leaky_relu": lambda x, alpha=0.01, beta=None: np.where(x >= 0, x, alpha * x),
    "relu": lambda x, alpha=None, beta=None: np.maximum(x, 0),
    "scaled_tanh": lambda x, alpha=1.0, beta=1.0: alpha * np.tanh(beta * x),
    "sigmoid": lambda x, alpha=None, beta=None: 1 / (1 + np.exp(-x)),
    "softplus": lambda x, alpha=None, beta=None: np.log1p(np.exp(x)),
    "softsign": lambda x, alpha=None, beta=None: x / (1 + np.abs(x)),
    "tanh": lambda x, alpha=None, beta=None: np.tanh(x),
    "thresholded_relu": lambda x, alpha=1.0, beta=None: np.where(x >= alpha, x, 0),
}


def functions(kind, options):
    names = options.get("activations", DEFAULTS[kind])
    columns = [
        options.get(f"activations_{key}") or [None] * len(names) for key in ("alpha", "beta")
    ]

    def function(name, alpha, beta):
        given = {"alpha": alpha, "beta": beta}
        given = {key: value for key, value in given.items() if value is not None}
        return lambda x: ACTIVATIONS[name](x, **given)

    return [function(*each) for each in zip(names, *columns)]


def step(kind, x, states, w, r, b, options):
    """One step of one direction: the next states."""
    clip = options.get("clip") or np.inf
    h = states[0]
    if kind == "lstm":
        f, g, activate = functions(kind, options)
        gates = np.clip(x @ w.T + h @ r.T + b, -clip, clip)
        forget, update, candidate, output = np.split(gates, 4, axis=-1)
        c = f(forget) * states[1] + f(update) * g(candidate)
        return [f(output) * activate(c), c]
    if kind == "rnn":
        (f,) = functions(kind, options)
        return [f(np.clip(x @ w.T + h @ r.T + b, -clip, clip))]
    f, g = functions(kind, options)
    (wz, wr, wh), (rz, rr, rh) = np.split(w, 3), np.split(r, 3)
    if options.get("linear_before_reset"):
        bz, br, bh, brh = np.split(b, 4)
    else:
        bz, br, bh = np.split(b, 3)
    z = f(np.clip(x @ wz.T + h @ rz.T + bz, -clip, clip))
    reset = f(np.clip(x @ wr.T + h @ rr.T + br, -clip, clip))
    if options.get("linear_before_reset"):
        candidate = x @ wh.T + bh + reset * (h @ rh.T + brh)
    else:
        candidate = x @ wh.T + bh + (reset * h) @ rh.T
    return [(1 - z) * g(np.clip(candidate, -clip, clip)) + z * h]


def sequence(kind, x, states, lengths, w, r, b, options):
    """y and the last states, in the layouts of tf_ti."""
    if options.get("time_major"):
        x = np.swapaxes(x, 0, 1)
    batch, time, _ = x.shape
    there = np.ones([batch, time], bool)
    if lengths is not None:
        there = np.arange(time) < np.asarray(lengths)[:, None]
    if options.get("mask") is not None:
        there = options["mask"].T if options.get("time_major") else options["mask"]
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    backwards = backwards[options.get("direction", "forward")]
    y = np.zeros([batch, len(backwards), time, states[0].shape[-1]], x.dtype)
    last = [np.array(state) for state in states]
    for d, is_reverse in enumerate(backwards):
        for k in range(batch):
            now = [state[k : k + 1, d] for state in states]
            output = np.zeros_like(now[0])
            for t in reversed(range(time)) if is_reverse else range(time):
                if there[k, t]:
                    now = step(kind, x[k : k + 1, t], now, w[d], r[d], b[d], options)
                    output = now[0]
                if there[k, t] or options.get("hold_output"):
                    y[k, d, t] = output[0]
            for state, value in zip(last, now):
                state[k, d] = value[0]
    return [np.transpose(y, [2, 1, 0, 3]) if options.get("time_major") else y, *last]


@dataclasses.dataclass
class Case:
    """The arguments of one call."""

    kind: str
    x: np.ndarray
    states: list
    lengths: np.ndarray | None
    weights: list
    options: dict

    def call(self):
        function = getattr(tf_ti, f"{self.kind}_sequence")
        return function(self.x, *self.states, self.lengths, *self.weights, **self.options)

    def expected(self):
        arrays = [self.x, *self.states, *self.weights]
        x, *rest = (np.asarray(a, np.float64) for a in arrays)
        states, weights = rest[:-3], rest[-3:]
        lengths = None if self.lengths is None else np.asarray(self.lengths)
        return sequence(self.kind, x, states, lengths, *weights, self.options)

    @property
    def tensors(self):
        """The float tensors."""
        return [self.x, *self.states, *self.weights]

    def with_tensors(self, tensors):
        return dataclasses.replace(
            self, x=tensors[0], states=list(tensors[1:-3]), weights=list(tensors[-3:])
        )


def make_case(rng, kind, batch, time, inputs, hidden, dtype=np.float64, lengths=None, **options):
    """Random tensors, that fit the options."""
    directions = 2 if options.get("direction") == "bidirectional" else 1
    rows = GATES[kind] * hidden
    biases = rows + (hidden if options.get("linear_before_reset") else 0)

    def random(*shape):
        return rng.normal(size=shape).astype(dtype)

    x = random(time, batch, inputs) if options.get("time_major") else random(batch, time, inputs)
    states = [random(batch, directions, hidden) for _ in range(2 if kind == "lstm" else 1)]
    weights = [random(directions, rows, inputs), random(directions, rows, hidden)]
    return Case(kind, x, states, lengths, [*weights, random(directions, biases)], options)


def random_options(rng, kind, batch, time):
    """Lengths or none, and options."""
    options, lengths = {}, None
    options["direction"] = str(rng.choice(["forward", "reverse", "bidirectional"]))
    options["time_major"] = bool(rng.integers(2))
    if rng.random() < 0.4:
        options["clip"] = float(rng.uniform(0.1, 2.0))
    if rng.random() < 0.6:
        names = [str(name) for name in rng.choice(list(ACTIVATIONS), len(DEFAULTS[kind]))]
        options["activations"] = names
        for key in ("alpha", "beta"):
            if rng.random() < 0.5:
                options[f"activations_{key}"] = rng.uniform(0.1, 0.9, len(names)).tolist()
    if kind == "gru":
        options["linear_before_reset"] = bool(rng.integers(2))
    if rng.random() < 0.4:
        lengths = rng.integers(0, time + 1, batch).astype(
            rng.choice([np.int32, np.int64, np.uint8])
        )
    elif rng.random() < 0.6:
        shape = [time, batch] if options["time_major"] else [batch, time]
        options["mask"] = rng.random(shape) < 0.6
        options["hold_output"] = bool(rng.integers(2))
    return lengths, options


def random_case(rng, kind, largest=(4, 5, 5, 17)):
    """Of up to so many sequences, steps, inputs and hidden units, around multiples of 8 too."""
    batch, time, inputs = (int(n) for n in rng.integers([1, 1, 1], largest[:3], endpoint=True))
    hidden = int(rng.choice([n for n in (1, 2, 3, 7, 8, 9, 16, 17) if n <= largest[3]]))
    lengths, options = random_options(rng, kind, batch, time)
    case = make_case(rng, kind, batch, time, inputs, hidden, lengths=lengths, **options)
    print(kind, case.x.shape, hidden, lengths, options)
    return case


def assert_close(actual, expected, tolerance):
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        assert a.shape == e.shape
        np.testing.assert_allclose(tf.cast(a, tf.float64), e, rtol=tolerance, atol=tolerance)
