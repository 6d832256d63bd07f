"""`tf_ti.openvino.load`: an IR as a tf.Module."""

import collections
import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_ti.openvino.constants import Constants
from tf_ti.openvino.errors import IRError, ascii_name
from tf_ti.openvino.evaluation import Evaluation, check_supported
from tf_ti.openvino.model import Graph, Layer, Port, Shape
from tf_ti.openvino.precision import Precision
from tf_ti.openvino.reader import check_file, read
from tf_ti.openvino.states import Memory, State, make_states
from tf_ti.openvino.weights import Weights


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """An input or an output of a model.

    Attributes:
        name: the first of its names.
        names: the names of the tensor, and that of the layer.
        dtype: its dtype.
        shape: its shape, as far as it is known.
    """

    name: str
    names: tuple[str, ...]
    dtype: tf.DType
    shape: tf.TensorShape

    @property
    def spec(self) -> tf.TensorSpec:
        return tf.TensorSpec(self.shape, self.dtype, ascii_name(self.name, "_"))

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype.name} {self.shape}"


class IRModule(tf.Module):
    """A model that `tf_ti.openvino.load` has read.

    Called with tensors, in the order of `inputs` or by their names, it returns a tuple of tensors
    in the order of `outputs`, of one too. Calls work in a `tf.function`, under a `tf.GradientTape`
    and in a Keras model, and `tf.saved_model.save` saves the module.

    A model with ReadValue and Assign keeps states from one call to the next, as OpenVINO's infer
    requests do. `reset_state` resets them. A call reads all states before it writes any. A
    SavedModel keeps their values, and has `reset_state` too. As in OpenVINO a state without an
    initial value begins with zeros, of which unknown extents are 0: assign one before the first
    call where the batch is not known, say.

    `copy.deepcopy` and `pickle` copy the module, each copy with variables and states of its own.

    Attributes:
        inputs, outputs: `TensorInfo`s.
        states: the `State`s by their `variable_id`s; `module.states["h"].assign(x)` sets one.
        graph, constants: the network of the file, and the values of its constants.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Weights,
        trainable: bool,
        name: str | None,
        precision: Precision,
    ):
        check_supported(graph)
        with tf.init_scope():
            constants = Constants(graph, weights, trainable, precision)
            states = make_states(graph, precision)
        self._set_up(graph, precision, constants, states, name)
        self._trace_once()

    def _set_up(
        self,
        graph: Graph,
        precision: Precision,
        constants: Constants,
        states: dict[str, State],
        name: str | None,
    ) -> None:
        super().__init__(name=name)
        self.graph, self._precision = graph, precision
        self.constants, self.states = constants, states
        self._parameters = graph.of_type("Parameter")
        self._results = graph.of_type("Result")
        self.inputs = tuple(_parameter_info(layer) for layer in self._parameters)
        self.outputs = tuple(_result_info(graph, layer) for layer in self._results)
        self._ambiguous = _ambiguous(self.inputs)
        self._weights = self.constants.variables
        signature = _signature(self.inputs)
        self._function = tf.function(self._evaluate, input_signature=signature, autograph=False)
        self._by_name = tf.function(
            self._evaluate_by_name, input_signature=signature, autograph=False
        )
        if self.states:
            self._reset = tf.function(self.reset_state, input_signature=[], autograph=False)
        self._own = frozenset([*vars(self), "_own"])

    def _trace_once(self) -> None:
        """Traces the model, for the shapes of its outputs, and for errors in its attributes."""
        try:
            with tf.init_scope():
                traced = self._function.get_concrete_function()
        except IRError:
            if any(info.shape.rank is None for info in self.inputs):
                return  # a call in a function may know the rank
            raise
        self.outputs = tuple(
            dataclasses.replace(info, shape=output.shape)
            for info, output in zip(self.outputs, traced.outputs)
        )

    # Copies trace functions of their own.

    def __getstate__(self) -> tuple[Any, ...]:
        own = self.graph, self._precision, self.constants, dict(self.states), self.name
        users = {name: value for name, value in vars(self).items() if name not in self._own}
        return own, self.outputs, users

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        own, outputs, users = state
        self._set_up(*own)
        self.outputs = outputs
        for name, value in users.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        lists = {"inputs": self.inputs, "states": self.states.values()}
        given = "".join(
            f"{what} [{', '.join(map(str, each))}], " for what, each in lists.items() if each
        )
        outputs = ", ".join(map(str, self.outputs))
        return f"<IRModule {self.graph.path!r}: {given}a call gives a tuple of [{outputs}]>"

    def __call__(self, /, *args: Any, **kwargs: Any) -> tuple[tf.Tensor, ...]:
        tensors = self._to_tensors(args, kwargs)
        if tf.executing_eagerly():
            return tuple(self._function(*tensors))
        return tuple(self._evaluate(*tensors))

    def reset_state(self) -> None:
        """Resets all states, as OpenVINO's `request.reset_state()` does."""
        for state in self.states.values():
            state.reset()

    def _evaluate(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        given = {layer.id: tensor for layer, tensor in zip(self._parameters, tensors)}
        memory = Memory(self.states)
        results = Evaluation(self.constants, memory, self._precision)(self.graph, given)
        memory.commit()
        found = zip(self._results, self.outputs)
        return [tf.cast(results[layer.id], info.dtype) for layer, info in found]

    def _evaluate_by_name(self, *tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        return dict(zip(identifiers(self.outputs), self._evaluate(*tensors)))

    def _to_tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tf.Tensor]:
        if len(args) > len(self.inputs):
            raise TypeError(f"{len(self.inputs)} inputs are expected, but {len(args)} are given")
        given: dict[int, Any] = dict(enumerate(args))
        by_name = {name: i for i, info in enumerate(self.inputs) for name in info.names}
        for name, value in kwargs.items():
            if name not in by_name:
                known = ", ".join(repr(info.name) for info in self.inputs)
                raise TypeError(f"there is no input {name!r}; inputs are {known}")
            if name in self._ambiguous:
                raise TypeError(f"several inputs are called {name!r}; give tensors in order")
            if by_name[name] in given:
                raise TypeError(f"input {name!r} is given twice")
            given[by_name[name]] = value
        missing = [info.name for i, info in enumerate(self.inputs) if i not in given]
        if missing:
            raise TypeError(f"inputs that are missing: {', '.join(map(repr, missing))}")
        return [self._to_tensor(info, given[i]) for i, info in enumerate(self.inputs)]

    def _to_tensor(self, info: TensorInfo, value: Any) -> tf.Tensor:
        try:
            tensor = tf.convert_to_tensor(value, info.dtype)
        except Exception as error:  # errors of TensorFlow, OverflowError and others too
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"input {info.name!r}: {error}") from error
        if not info.shape.is_compatible_with(tensor.shape):
            raise ValueError(
                f"input {info.name!r} has shape {tensor.shape}, but the model takes {info.shape}"
            )
        if not tensor.shape.is_subtype_of(info.shape):  # compared at run time
            tensor = tf.ensure_shape(tensor, info.shape)
        return tensor

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "savedmodel":
            # A loaded SavedModel is called as this module is, with positional tensors.
            children["__call__"] = self._function
            children["_default_save_signature"] = self._by_name  # for serving
            if self.states:
                children["reset_state"] = self._reset
        return children


def load(
    path: str | os.PathLike[str],
    weights: str | os.PathLike[str] | None = None,
    trainable: bool = False,
    *,
    compute_dtype: Any = None,
    name: str | None = None,
) -> IRModule:
    """Reads a model in OpenVINO's IR, version 10 or 11.

    It means, with OpenVINO:

        model = openvino.compile_model(path)
        module = lambda *inputs: tuple(model(inputs).values())

    but the module consists of operations of TensorFlow and tf_ti: it runs where TensorFlow does,
    has gradients, and can be trained further and saved.

    TensorIterator and Loop run like `tf_ti.tensor_iterator` and `tf_ti.Loop`. A loop whose body is
    an LSTM, a GRU or a plain recurrent cell becomes one operation (see "Recognition" in the guide).
    Ranges include both ends. A Loop may have more slices than iterations. A trip count below 0
    means as many iterations as slices, or, without slices, no limit. A state may change its shape
    where the body's Parameter leaves it open. ReadValue and Assign are refused in the bodies of
    loops and branches.

    After no iteration, a state has its initial value, and a concatenated output has extent 0. The
    last value of anything else is zeros in a Loop, and an error in a TensorIterator. The last
    states of a LSTMSequence, GRUSequence or RNNSequence of length 0 are zeros, as in OpenVINO,
    where `tf_ti.lstm_sequence` gives the initial ones.

    The model is traced at once, so that what cannot be used is said here. In version 10 of the
    format the shapes between the layers are those that its writer knew of, and count for nothing.

    Args:
        path: the .xml file.
        weights: the .bin file; by default the one beside it of the same name.
        trainable: make `tf.Variable`s of the floating constants with more than one element, except
            those that only sizes are made of. Otherwise all are constants. Constants in one place
            of the file are one variable, unless all elements are equal: OpenVINO writes biases of
            zeros once, even if they belong to several layers.
        compute_dtype: None: in the types of the file, where sums, norms, softmax and products of
            halves add up in float32 and round once. "float32": all that the file has in halves is
            computed in single precision, constants, variables and states too, as OpenVINO's CPU
            plugin does. Inputs and outputs keep their dtypes.
        name: a name for the module.

    Returns:
        An `IRModule`.

    Raises:
        tf_ti.openvino.IRError: the file, or the weights, cannot be used, or have operations that
            are not supported. The message names the file, the layer and the port.
    """
    path = os.fsdecode(path)
    precision = Precision.of(compute_dtype)
    graph = read(path)
    if weights is None:
        weights = os.path.splitext(path)[0] + ".bin"
    else:
        check_file(os.fsdecode(weights))
    return IRModule(graph, Weights(weights), bool(trainable), name, precision)


def _parameter_info(layer: Layer) -> TensorInfo:
    (port,) = layer.outputs
    return _info(layer, port, port.shape)


def _result_info(graph: Graph, layer: Layer) -> TensorInfo:
    source, port_id = graph.sources[layer.id, layer.inputs[0].id]
    port = graph.layers[source].output(port_id)
    assert port is not None
    return _info(layer, port, port.shape if graph.has_shape(graph.layers[source]) else None)


def _info(layer: Layer, port: Port, shape: Shape | None) -> TensorInfo:
    if port.element_type is None:
        raise IRError(f"{layer.path}: its port does not say a precision that is known")
    names = tuple(dict.fromkeys([*port.names, layer.name]))
    return TensorInfo(names[0], names, tf.as_dtype(port.element_type.dtype), tf.TensorShape(shape))


def _ambiguous(infos: Sequence[TensorInfo]) -> frozenset[str]:
    counts = collections.Counter(name for info in infos for name in info.names)
    return frozenset(name for name, count in counts.items() if count > 1)


def _signature(infos: Sequence[TensorInfo]) -> list[tf.TensorSpec]:
    names = identifiers(infos)
    return [tf.TensorSpec(info.shape, info.dtype, name) for info, name in zip(infos, names)]


def identifiers(infos: Sequence[TensorInfo], others: Iterable[str] = ()) -> list[str]:
    """A unique name for each, which TensorFlow accepts and `others` do not have."""
    taken = {name.lower() for name in others}
    names: list[str] = []
    for info in infos:
        name = first = ascii_name(info.name, "_")
        number = 1
        while name.lower() in taken:  # TensorFlow ignores case in the names of arguments
            number += 1
            name = f"{first}_{number}"
        taken.add(name.lower())
        names.append(name)
    return names
