"""Recurrent sequences in functions that XLA compiles, beside the plain kernels and NumPy."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import _library, _tf
from tf_ti._library import ops
from tf_ti.recurrent import ops as recurrent_ops

pytestmark = [
    pytest.mark.quarter,
    pytest.mark.skipif(_library.XLA_PROBLEM is not None, reason=str(_library.XLA_PROBLEM)),
]

TOLERANCES = {tf.float16: 2e-3, tf.bfloat16: 1.6e-2, tf.float32: 1e-5, tf.float64: 1e-12}
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
BATCH, STEPS, INPUT, HIDDEN = 3, 5, 4, 6
# Of a shape function, which sees a wrong call first, or of a kernel.
REFUSALS = (ValueError, tf.errors.InvalidArgumentError)


@dataclasses.dataclass(frozen=True)
class Sequence:
    """The attributes of the ops, and which inputs there are."""

    kind: str
    dtype: tf.DType = tf.float32
    linear_before_reset: bool = False
    mode: str = ""  # "lengths", "mask"
    reverse: bool = False
    time_major: bool = False
    transpose_weights: bool = False
    hold_output: bool = False
    has_weights: bool = True
    has_bias: bool = True
    activations: tuple = ()
    alphas: tuple = ()
    betas: tuple = ()
    gate_order: tuple = ()
    clip: float = 0.0

    @property
    def num_saved(self):
        return {"lstm": 2, "gru": 1, "rnn": 1}[self.kind] + (self.mode != "" and self.kind != "rnn")

    def attributes(self):
        default = ["tanh"] if self.kind == "rnn" else ["sigmoid", "tanh", "tanh"]
        default = default[: {"lstm": 3, "gru": 2, "rnn": 1}[self.kind]]
        zeros = [0.0] * len(default)
        coefficients = zip(self.alphas or zeros, self.betas or zeros)
        return {
            "kind": self.kind,
            "gate_order": list(self.gate_order or range(GATES[self.kind])),
            "transpose_weights": self.transpose_weights,
            "linear_before_reset": self.linear_before_reset,
            "activations": list(self.activations or default),
            "coefficients": list(map(repr, [self.clip, *itertools.chain(*coefficients)])),
            "reverse": self.reverse,
            "time_major": self.time_major,
            "hold_output": self.hold_output,
        }

    def inputs(self, batch=BATCH, steps=STEPS, size=INPUT, hidden=HIDDEN):
        rng = np.random.default_rng(0)
        columns = GATES[self.kind] * hidden

        def numbers(*shape):
            return tf.constant(rng.standard_normal(shape) / 2, self.dtype)

        def matrix(rows):
            return numbers(*((columns, rows) if self.transpose_weights else (rows, columns)))

        outer = (steps, batch) if self.time_major else (batch, steps)
        bias = columns + (hidden if self.linear_before_reset else 0)
        return {
            "x": numbers(*outer, size if self.has_weights else columns),
            "h": numbers(batch, hidden),
            "c": [numbers(batch, hidden)] if self.kind == "lstm" else [],
            "w": [matrix(size)] if self.has_weights else [],
            "r": matrix(hidden),
            "b": [numbers(bias)] if self.has_bias else [],
            "lengths": (
                [tf.constant(rng.integers(0, steps + 1, batch))] if self.mode == "lengths" else []
            ),
            "mask": [tf.constant(rng.random(outer) < 0.6)] if self.mode == "mask" else [],
        }

    def forward(self, inputs, **options):
        """y, last_h, last_c, saved."""
        given = {"S": tf.float64 if self.dtype == tf.float64 else tf.float32, "num_saved": 0}
        given |= inputs | self.attributes() | options
        return with_loop(ops.tf_ti_recurrent_sequence(**given))

    def with_gradient(self, inputs):
        """Outputs without what is saved, and gradients of a loss that depends on all of them."""
        outputs = self.forward(inputs, num_saved=self.num_saved)

        def weights(value):
            numbers = tf.reshape(tf.range(tf.size(value)) % 7 - 2, tf.shape(value))
            return tf.cast(numbers, value.dtype) / 4

        gradients = ops.tf_ti_recurrent_sequence_grad(
            **inputs,
            y=outputs.y,
            saved=outputs.saved,
            grad_y=weights(outputs.y),
            grad_last_h=weights(outputs.last_h),
            grad_last_c=[weights(c) for c in outputs.last_c],
            **self.attributes(),
        )
        return list(outputs[:-1]), list(with_loop(gradients))


def with_loop(outputs):
    """The outputs of an op, which gets its loop where there is a GPU: XLA needs it there."""
    if _tf.has_gpu():
        recurrent_ops.add_loop(outputs[0])
    return outputs


@pytest.fixture(params=["native", "loop"])
def way(request):
    """XLA calls the processor's kernels, or compiles the loops as for a GPU."""
    if request.param == "loop":
        request.getfixturevalue("sequences_as_on_a_gpu")


each_way = pytest.mark.usefixtures("way")


def compiled(f):
    return tf.function(f, jit_compile=True, autograph=False)


def same(plain, xla, tolerance):
    for a, b in zip(tf.nest.flatten(plain), tf.nest.flatten(xla), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        a, b = (tf.cast(value, tf.float64) for value in (a, b))
        np.testing.assert_allclose(a, b, tolerance, tolerance)


def has_what_plain_kernels_give(sequence, **sizes):
    inputs = sequence.inputs(**sizes)
    same(
        sequence.with_gradient(inputs),
        compiled(sequence.with_gradient)(inputs),
        TOLERANCES[sequence.dtype],
    )


SEQUENCES = [
    Sequence("lstm"),
    Sequence("lstm", mode="lengths", reverse=True, transpose_weights=True, has_bias=False),
    Sequence("lstm", mode="mask", time_major=True, has_weights=False, gate_order=(2, 0, 3, 1)),
    Sequence("gru", mode="mask", reverse=True, has_bias=False, gate_order=(1, 2, 0)),
    Sequence("gru", mode="lengths", time_major=True, transpose_weights=True, hold_output=True),
    Sequence("gru", linear_before_reset=True, mode="lengths", has_weights=False),
    Sequence("gru", linear_before_reset=True, time_major=True, reverse=True),
    Sequence("rnn", has_weights=False, reverse=True, has_bias=False),
    Sequence("rnn", mode="mask", time_major=True, hold_output=True, transpose_weights=True),
]


@each_way
@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda s: f"{s.kind}-{s.mode or 'all'}")
def test_outputs_and_gradients_are_those_of_the_plain_kernels(sequence):
    has_what_plain_kernels_give(sequence)


@each_way
@pytest.mark.parametrize("dtype", [tf.float64, tf.float16, tf.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_all_types_are_computed(kind, dtype):
    has_what_plain_kernels_give(Sequence(kind, dtype, mode="lengths"))


@each_way
@pytest.mark.parametrize("size", ["batch", "steps", "size"])
@pytest.mark.parametrize("mode", ["lengths", "mask"])
def test_sizes_may_be_zero(size, mode):
    has_what_plain_kernels_give(Sequence("lstm", mode=mode), **{size: 0})


@pytest.mark.needs_native_sequences
def test_many_units_are_spread_over_threads():
    has_what_plain_kernels_give(Sequence("gru"), batch=2, steps=20, size=64, hidden=300)


@each_way
def test_activations_have_their_numbers():
    names, alphas, betas = ("affine", "leaky_relu", "scaled_tanh"), (0.5, 0.3, 1.5), (0.2, 0.0, 0.7)
    has_what_plain_kernels_give(
        Sequence("lstm", activations=names, alphas=alphas, betas=betas, dtype=tf.float64)
    )


@each_way
def test_sums_are_clipped():
    sequence = Sequence("gru", clip=0.25)
    inputs = sequence.inputs()
    clipped = compiled(sequence.forward)(inputs)
    same(sequence.forward(inputs), clipped, 1e-5)
    assert np.abs(clipped.y - Sequence("gru").forward(inputs).y).max() > 0.01


@each_way
def test_lstm_is_what_numpy_computes():
    sequence = Sequence("lstm", tf.float64, mode="lengths", reverse=True)
    inputs = sequence.inputs()
    x, h, (c,), (w,), r, (b,), (lengths,) = (
        tf.nest.map_structure(np.asarray, inputs[name])
        for name in ("x", "h", "c", "w", "r", "b", "lengths")
    )
    y = np.zeros([BATCH, STEPS, HIDDEN])

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    for step in reversed(range(STEPS)):
        f, i, g, o = np.split(x[:, step] @ w + h @ r + b, 4, 1)
        next_c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        next_h = sigmoid(o) * np.tanh(next_c)
        is_active = step < lengths[:, None]
        h, c = np.where(is_active, next_h, h), np.where(is_active, next_c, c)
        y[:, step] = np.where(is_active, next_h, 0)
    outputs = compiled(sequence.forward)(inputs)
    for actual, expected in ((outputs.y, y), (outputs.last_h, h), (outputs.last_c[0], c)):
        np.testing.assert_allclose(actual, expected, 1e-12, 1e-12)


@pytest.mark.needs_native_sequences
def test_lengths_out_of_range_are_an_error_of_the_running_program():
    sequence = Sequence("lstm", mode="lengths")
    inputs = sequence.inputs()
    run = compiled(lambda lengths: sequence.forward(inputs | {"lengths": [lengths]}).y)
    run(tf.constant([0, 5, 3], tf.int64))
    for wrong, number in ([0, 7, 3], 7), ([0, -1, 3], -1):
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            run(tf.constant(wrong, tf.int64))
        assert f"number of steps, 5, got {number} at position 1" in str(error.value)


@pytest.mark.usefixtures("sequences_as_on_a_gpu")
def test_lengths_out_of_range_are_cut_where_nothing_checks_them():
    sequence = Sequence("lstm", mode="lengths")
    inputs = sequence.inputs()
    given, cut = ([tf.constant(lengths, tf.int64)] for lengths in ([-1, 7, 3], [0, 5, 3]))
    run = compiled(lambda lengths: sequence.forward(inputs | {"lengths": lengths})[:-1])
    same(run(given), run(cut), 1e-12)


@pytest.mark.needs_native_sequences
def test_lengths_are_checked_where_nobody_reads_the_outputs():
    sequence = Sequence("gru", mode="lengths")
    inputs = sequence.inputs()

    @compiled
    def run(lengths):
        sequence.forward(inputs | {"lengths": [lengths]})
        return tf.constant(0)

    with pytest.raises(
        tf.errors.InvalidArgumentError, match="number of steps, 5, got 7 at position 1"
    ):
        run(tf.constant([0, 7, 3], tf.int64))


@pytest.mark.parametrize(
    "name, shape, message",
    [
        ("r", [6, 23], "r must have shape [6,24], got [6,23]"),
        ("w", [[5, 24]], "w must have shape [4,24], got [5,24]"),
        ("w", [], "x must have 24 columns without w, got shape [3,5,4]"),
        ("c", [[3, 5]], "c must have shape [3,6], got [3,5]"),
        ("b", [[25]], "b must have shape [24], got [25]"),
        ("h", [3, 0], "h must have between 1 and 2147483647 units, got shape [3,0]"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_are_errors(name, shape, message):
    sequence = Sequence("lstm")
    is_list = isinstance(sequence.inputs()[name], list)
    wrong = [tf.zeros(s) for s in shape] if is_list else tf.zeros(shape)
    inputs = sequence.inputs() | {name: wrong}
    for forward in sequence.forward, compiled(sequence.forward):
        with pytest.raises(REFUSALS) as error:
            forward(inputs)
        assert message in str(error.value)


@pytest.mark.parametrize("mode, message", [("mask", "[3,5]"), ("lengths", "[3]")])
def test_masks_and_lengths_that_do_not_fit_are_errors(mode, message):
    sequence = Sequence("rnn", mode=mode)
    inputs = sequence.inputs()
    inputs[mode] = [inputs[mode][0][:2]]
    for forward in sequence.forward, compiled(sequence.forward):
        with pytest.raises(REFUSALS) as error:
            forward(inputs)
        assert f"{mode} must have shape {message}, got [2" in str(error.value)


def test_what_is_saved_must_be_all_that_the_gradient_takes():
    sequence = Sequence("lstm")
    inputs = sequence.inputs()
    for forward in sequence.forward, compiled(sequence.forward):
        with pytest.raises(REFUSALS, match="num_saved must be 2"):
            forward(inputs, num_saved=1)


def test_the_type_of_computation_follows_from_the_numbers():
    sequence = Sequence("rnn")
    inputs = sequence.inputs()
    with pytest.raises(tf.errors.InvalidArgumentError, match="S must be float, got double"):
        compiled(lambda: sequence.forward(inputs, S=tf.float64))()


@each_way
def test_shapes_must_be_known_to_xla():
    sequence = Sequence("rnn")
    inputs = sequence.inputs()

    @compiled
    def run(keep):
        x = tf.transpose(tf.boolean_mask(tf.transpose(inputs["x"], [1, 0, 2]), keep), [1, 0, 2])
        return sequence.forward(inputs | {"x": x}).y

    with pytest.raises(tf.errors.UnimplementedError, match="x: XLA must know its shape"):
        run(tf.constant([True, False, True, True, False]))


# Where TensorFlow gives a branch without the sequence what stands for its saved tensors


CONDITIONALS = {
    "cond": lambda x, call: tf.cond(x[0, 0, 0] > 0.0, lambda: call(x), lambda: tf.reduce_sum(x)),
    "case": lambda x, call: tf.switch_case(
        tf.cast(x[0, 0, 0] > 0.0, tf.int32), [lambda: tf.reduce_sum(x), lambda: call(x)]
    ),
    "scan": lambda x, call: tf_ti.scan(
        lambda s, k: (tf.cond(k > 0, lambda: s + call(x * s), lambda: s * 2.0), None),
        tf.constant(1.0),
        tf.range(2),
    )[0],
}


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("conditional", CONDITIONALS)
@pytest.mark.parametrize("way", ["native", "loop"])
def test_gradients_of_sequences_in_conditionals(way, conditional, kind, request):
    if way == "loop":
        request.getfixturevalue("sequences_as_on_a_gpu")
    rng = np.random.default_rng(5)

    def numbers(*shape):
        return tf.constant(rng.standard_normal(shape) / 2, tf.float32)

    states = [numbers(BATCH, 1, HIDDEN) for _ in range(1 + (kind == "lstm"))]
    columns = GATES[kind] * HIDDEN
    weights = numbers(1, columns, INPUT), numbers(1, columns, HIDDEN), numbers(1, columns)

    def call(x):
        sequence = getattr(tf_ti, f"{kind}_sequence")
        return tf.reduce_mean(sequence(x, *states, None, *weights)[0])

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = CONDITIONALS[conditional](x, call)
        return tape.gradient(y, x)

    x = numbers(BATCH, STEPS, INPUT)
    for value in (1.0, -1.0):
        given = tf.tensor_scatter_nd_update(x, [[0, 0, 0]], [value])
        plain, compiled = (
            tf.function(gradient, autograph=False, jit_compile=jit)(given) for jit in (False, True)
        )
        np.testing.assert_allclose(compiled, plain, 1e-5, 1e-5)
