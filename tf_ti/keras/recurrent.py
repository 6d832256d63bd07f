"""`tf_ti.keras.RNN`, whose loop is ours, and `LSTM`, `GRU`, `SimpleRNN`: one native op."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

import tf_ti
from tf_ti import _library, _tf
from tf_ti.keras import _internals
from tf_ti.recurrent import ops, weights as _weights
from tf_ti.recurrent.spec import CellSpec, Kind

# Keras's activations for which the op has kernels.
_NATIVE = [
    name for name, function in _weights.keras_activations().items() if ops.has_activation(function)
]
_LISTED = f"{', '.join(_NATIVE[:-1])} and {_NATIVE[-1]}"


def _is_native(function: Any) -> bool:
    try:
        return ops.has_activation(_weights.keras_activation(function))
    except ValueError:
        return False


if TYPE_CHECKING:
    from keras.layers import RNN as _Base
else:
    _Base = object


class _OurLoop(_Base):
    """Runs the steps of a layer of Keras, whatever its cell is, in a loop of tf_ti."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.prepare()

    def prepare(self) -> None:
        """Adds the attributes that layers of Keras lack."""

    def __repr__(self) -> str:
        return f"{super().__repr__().removesuffix('>')}, {self.how_it_runs()}>"

    def how_it_runs(self) -> str:
        """Says in which way the steps run, and why they do not natively."""
        return "its cell in a loop of tf_ti"

    def inner_loop(
        self, sequences: Any, initial_state: Any, mask: Any, training: Any = False
    ) -> tuple[Any, Any, list[Any]]:
        tree = keras.tree
        cell_arguments = {"training": training} if _internals.takes_training(self.cell) else {}
        first_states = initial_state if tree.is_nested(initial_state) else [initial_state]
        mask = next((kept for kept in tree.flatten(mask) if kept is not None), None)
        mask = None if mask is None else tf.cast(mask, tf.bool)

        def call(inputs: tf.Tensor, states: Any) -> tuple[Any, Any]:
            output, following = self.cell(inputs, states, **cell_arguments)
            return output, tree.pack_sequence_as(first_states, tree.flatten(following))

        # As in Keras, the first step tells what outputs there are, and lets the cell make what it
        # makes at its first call.
        output, _ = call(sequences[:, 0], first_states)
        zeros = tree.map_structure(tf.zeros_like, output)
        # Only an output that may hold is carried: a cell of Keras's own then is what it is.
        holds = mask is not None and not self.zero_output_for_mask

        @_tf.do_not_convert
        def step(
            carry: tuple[Any, Any], element: tuple[tf.Tensor, tf.Tensor | None]
        ) -> tuple[tuple[Any, Any], Any]:
            states, before = carry
            inputs, kept = element
            output, following = call(inputs, states)
            if kept is not None:

                def keep(new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
                    ones = tf.ones([new.shape.rank - 1], tf.int32)
                    where = tf.reshape(kept, tf.concat([tf.shape(kept)[:1], ones], 0))
                    return tf.where(where, new, old)

                output = tree.map_structure(keep, output, before if holds else zeros)
                following = tree.map_structure(keep, following, states)
            return (following, output if holds else ()), output

        (states, _), outputs = tf_ti.scan(
            step,
            (first_states, zeros if holds else ()),
            (sequences, mask),
            axis=1,
            reverse=self.go_backwards,
        )
        if self.go_backwards:  # Keras returns the steps in the order in which they run
            outputs = tree.map_structure(lambda tensor: tf.reverse(tensor, [1]), outputs)
        last = tree.map_structure(lambda tensor: tensor[:, -1], outputs)
        return last, outputs, states


class _NativeLoop(_OurLoop):
    """Runs the steps natively, or in a loop if the kernel lacks any; Keras's, on a GPU."""

    _kind: Kind
    _has_warned = False

    def prepare(self) -> None:
        self.supports_jit = _library.XLA_PROBLEM is None

    def inner_loop(
        self, sequences: Any, initial_state: Any, mask: Any, training: Any = False
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        weights = map(_tf.unwrap_variable, [self.cell.kernel, self.cell.recurrent_kernel])
        with ops.staying_with([sequences, *weights]):
            return self._inner_loop(sequences, initial_state, mask, training)

    def _inner_loop(
        self, sequences: Any, initial_state: Any, mask: Any, training: Any
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        if sequences.dtype.is_complex:  # a conversion would drop the imaginary parts
            raise TypeError(f"sequences must be of real numbers, got {sequences.dtype.name}")
        mask = next((kept for kept in keras.tree.flatten(mask) if kept is not None), None)
        if mask is not None:
            mask = tf.cast(mask, tf.bool)
        if _tf.expects_gpu():
            self._warn("Keras's loop", "there is a GPU")
            return self._keras_loop(sequences, initial_state, mask, training)
        try:
            spec = self._cell_spec(training)
        except NotImplementedError as cause:
            self._warn("its cell in a loop", cause)
            return super().inner_loop(sequences, initial_state, mask, training)
        if training and self.cell.dropout:
            # One mask for all steps, as in Keras.
            kept = _internals.dropout_mask(self.cell, sequences[:, 0, :])
            sequences = sequences * kept[:, tf.newaxis]
        states = [
            self._for_batch(self._compute(state), sequences)
            for state in keras.tree.flatten(initial_state)
        ]
        y, states = ops.run(
            spec.replace(hold_output=mask is not None and not self.zero_output_for_mask),
            self._compute(sequences),
            states,
            self._compute(self.cell.kernel),
            self._compute(self.cell.recurrent_kernel),
            self._bias(),
            mask=mask,
        )
        if mask is None:
            last = states[0]
        else:
            last = y[:, 0] if self.go_backwards else y[:, -1]
        # Keras returns the steps in the order in which they run.
        return last, tf.reverse(y, [1]) if self.go_backwards else y, states

    def _keras_loop(
        self, sequences: Any, initial_state: Any, mask: Any, training: Any
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Keras's own inner loop, which fails without steps. Ours gives the initial state.

        If the number of steps is unknown, a step is added where there is none.
        """
        loop = functools.partial(super(_OurLoop, self).inner_loop, training=training)
        if _tf.known_extent(sequences, 1) is not None:
            return loop(sequences, initial_state, mask=mask)
        count = tf.shape(sequences)[1]
        added = [[0, 0], [0, tf.maximum(1 - count, 0)]]
        sequences = tf.pad(sequences, [*added, [0, 0]])
        if mask is not None:
            mask = tf.pad(mask, added, constant_values=True)
        last, y, states = loop(sequences, initial_state, mask=mask)
        first = [self._for_batch(state, sequences) for state in keras.tree.flatten(initial_state)]
        last, *states = (
            tf.where(count > 0, value, before)
            for value, before in zip([last, *states], [first[0], *first], strict=True)
        )
        return last, y[:, :count], states

    def how_it_runs(self) -> str:
        if _tf.expects_gpu():
            return "Keras's loop: there is a GPU"
        if problem := self._problem(training=False):
            return f"its cell in a loop of tf_ti: {problem}"
        problem = self._problem(training=True)
        in_training = problem and f"; in training its cell in a loop of tf_ti: {problem}"
        return f"one native op{in_training}"

    def _problem(self, training: bool) -> str:
        """Why the op cannot run the steps, and a loop around the cell does; "" if it can."""
        try:
            self._cell_spec(training)
        except NotImplementedError as cause:
            return str(cause)
        return ""

    def _warn(self, what: str, cause: Any) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        _tf.warn(f"tf_ti.keras.{type(self).__name__} {self.name!r} runs {what}: {cause}")

    def _cell_spec(self, training: Any) -> CellSpec:
        """The description of the cell. NotImplementedError names what the kernel lacks."""
        cell = self.cell
        may_train = training is not None and (tf.is_tensor(training) or bool(training))
        if may_train and cell.recurrent_dropout:
            raise NotImplementedError("there is recurrent_dropout")
        if may_train and cell.dropout and _internals.has_mask_for_each_gate(cell):
            raise NotImplementedError(
                "there is dropout with implementation=1, a mask for each gate"
            )
        if may_train and cell.dropout and tf.is_tensor(training):
            raise NotImplementedError("there is dropout, and `training` is a tensor")
        functions = [cell.activation]
        if self._kind != "rnn":
            functions.insert(0, cell.recurrent_activation)
        if self._kind == "lstm":
            functions.append(cell.activation)
        for function in functions:
            if not _is_native(function):
                name = getattr(function, "__name__", repr(function))
                raise NotImplementedError(
                    f"the op has the activations {_LISTED}, but not this layer's {name}"
                )
        activations = tuple(map(_weights.keras_activation, functions))
        return CellSpec(
            self._kind,
            activations,
            _weights.KERAS_GATES[self._kind],
            linear_before_reset=bool(getattr(cell, "reset_after", False)),
            reverse=self.go_backwards,
            transpose_weights=False,
        )

    def _bias(self) -> tf.Tensor | None:
        if not self.cell.use_bias:
            return None
        bias = self._compute(self.cell.bias)
        if len(bias.shape) == 1:
            return bias
        # A GRU has biases of both products. All are added up but the candidate's.
        units = self.cell.units
        of_inputs, of_states = bias[0], bias[1]
        added = of_inputs[: 2 * units] + of_states[: 2 * units]
        return tf.concat([added, of_inputs[2 * units :], of_states[2 * units :]], 0)

    def _for_batch(self, state: tf.Tensor, sequences: tf.Tensor) -> tf.Tensor:
        """Repeats a single state for all sequences of the batch, as Keras does."""
        if _tf.known_extent(state, 0) != 1 or _tf.known_extent(sequences, 0) == 1:
            return state
        return tf.broadcast_to(
            state, [tf.shape(sequences)[0], *tf.TensorShape(state.shape).as_list()[1:]]
        )

    def _compute(self, value: Any) -> tf.Tensor:
        return keras.ops.convert_to_tensor(value, dtype=self.compute_dtype)


_DOC = """`keras.layers.{name}`, whose steps run as one native op on a CPU.

    It is Keras's own layer except for its inner loop: the constructor and its arguments, weights
    and their order, masks, `stateful`, `return_state`, `go_backwards`,
    `keras.layers.Bidirectional`, saving and loading are those of `keras.layers.{name}`.
    `get_weights` and `set_weights` carry weights from one to the other. `use_cudnn` and `unroll`
    make no difference.

    A loop around the cell, as that of `tf_ti.keras.RNN`, runs the steps in cases that the op lacks,
    and each layer warns of it once: `recurrent_dropout` while training; `dropout` with
    `implementation=1` while training; activations other than {activations}. Where there is a GPU it
    is Keras's loop, unless `with tf.device` around the call names a CPU, or the layer's weights and
    its inputs are on one.

    Example:

        >>> layer = tf_ti.keras.{name}(4, return_sequences=True)
        >>> layer(tf.ones([2, 3, 5])).shape
        TensorShape([2, 3, 4])

    Source: keras.layers.{name}, on OpenVINO's {source}.
    """


def _describe(source: str) -> Callable[[type], type]:
    def describe(layer: type) -> type:
        layer.__doc__ = _DOC.format(name=layer.__name__, activations=_LISTED, source=source)
        return layer

    return describe


@keras.saving.register_keras_serializable(package="tf_ti")
@_describe("LSTMSequence-5")
class LSTM(_NativeLoop, keras.layers.LSTM):
    _kind = "lstm"


@keras.saving.register_keras_serializable(package="tf_ti")
@_describe("GRUSequence-5")
class GRU(_NativeLoop, keras.layers.GRU):
    _kind = "gru"


@keras.saving.register_keras_serializable(package="tf_ti")
@_describe("RNNSequence-5")
class SimpleRNN(_NativeLoop, keras.layers.SimpleRNN):
    _kind = "rnn"


@keras.saving.register_keras_serializable(package="tf_ti")
class RNN(_OurLoop, keras.layers.RNN):
    """`keras.layers.RNN`, whose loop is that of `tf_ti.scan`, with any cell.

    It is Keras's own layer except for its inner loop: the constructor and its arguments, weights
    and their order, masks, `zero_output_for_mask`, `stateful`, `return_state`, `go_backwards`,
    `initial_state`, lists of cells, `keras.layers.Bidirectional`, saving and loading are those of
    `keras.layers.RNN`. `get_weights` and `set_weights` carry weights from one to the other.
    `unroll` makes no difference. A cell of Keras's own, masked or not, becomes one native op.

    Where the layer is called eagerly its loop is traced in each call; not in `fit`, `predict` and a
    `tf.function`.

    Example:

        >>> layer = tf_ti.keras.RNN(keras.layers.LSTMCell(4), return_sequences=True)
        >>> layer(tf.ones([2, 3, 5])).shape
        TensorShape([2, 3, 4])

    Source: keras.layers.RNN.
    """

    def prepare(self) -> None:
        if isinstance(self.cell, keras.layers.StackedRNNCells):
            self._checkpointed = _internals.checkpointed(list(self.cell.cells))


OURS: dict[Any, type[_OurLoop]] = {
    keras.layers.LSTM: LSTM,
    keras.layers.GRU: GRU,
    keras.layers.SimpleRNN: SimpleRNN,
    keras.layers.RNN: RNN,
}


def adopt(layer: Any) -> None:
    """Turns a layer of Keras into a layer of tf_ti; its variables, states and name stay."""
    layer.__class__ = OURS[type(layer)]
    layer.prepare()


class _TimeDistributed(keras.layers.TimeDistributed):
    """Keras 3.15 takes the batch for the time axis where the number of steps is open."""

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if inputs.shape[1] is not None:
            return super().call(inputs, training=training, mask=mask)

        parameters = inspect.signature(self.layer.call).parameters

        def step(k: Any) -> Any:
            options = {}
            if "mask" in parameters and mask is not None:
                options["mask"] = mask[:, k]
            if "training" in parameters:
                options["training"] = training
            return self.layer.call(keras.ops.take(inputs, k, axis=1), **options)

        outputs = keras.ops.vectorized_map(step, keras.ops.arange(keras.ops.shape(inputs)[1]))
        return keras.ops.swapaxes(outputs, 0, 1)


# What runs in place of layers while a function of them is written as IR.
_WRITTEN = OURS | {keras.layers.TimeDistributed: _TimeDistributed}


@contextlib.contextmanager
def our_loops(model: Any) -> Iterator[None]:
    """Within it, layers of a model that are Keras's run as ours do."""
    theirs = [layer for layer in _internals.layers_of(model) if type(layer) in _WRITTEN]
    kinds = [type(layer) for layer in theirs]
    try:
        for layer, kind in zip(theirs, kinds):
            layer.__class__ = _WRITTEN[kind]
        yield
    finally:
        for layer, kind in zip(theirs, kinds):
            layer.__class__ = kind
