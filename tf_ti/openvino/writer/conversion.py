"""Converts the graph of a TensorFlow function to layers, each operation by its own function."""

import collections
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.openvino.errors import IRError, shown, some
from tf_ti.openvino.model import MOST_NESTED
from tf_ti.openvino.writer import layout
from tf_ti.openvino.writer.advice import ADVICE
from tf_ti.openvino.writer.network import (
    VIEWS,
    Layer,
    Network,
    NoElementType,
    Operand,
    Port,
    Surroundings,
    Weights,
    element_type_of,
    shape_of,
)
from tf_ti.openvino.writer.states import ASSIGNMENTS, States


class Complex(NamedTuple):
    """The counterpart of a tensor of complex numbers, which OpenVINO does not have."""

    real: Any
    imag: Any

    @classmethod
    def of(cls, value: np.ndarray) -> "Complex":
        return cls(value.real.copy(), value.imag.copy())


# The counterpart of a tensor of the function: the output of a layer, or a constant. The handle of a
# variable stays a tensor, which operations read. A TensorList becomes `lists.Elements`, and complex
# numbers become `Complex`.
Value: TypeAlias = Operand | tf.Tensor
Function = Callable[..., Any]
_Function = TypeVar("_Function", bound=Function)
_TABLE: dict[str, Function] = {}
_OF_COMPLEX = " of complex numbers"  # what the table adds to the types of operations on these

_CALLS = frozenset(["PartitionedCall", "StatefulPartitionedCall"])
_HARMLESS = _tf.READS | {"Assert", "Empty", "VarHandleOp"}  # stateful, but no obstacle
_SMALL = 64  # the most elements of a tensor that is evaluated here, if possible
_DRAWN = 2**22  # the same of random numbers of a known seed, which IR cannot draw


def writes(*op_types: str, of_complex: bool = False) -> Callable[[_Function], _Function]:
    """Registers a function that writes the operations of some types.

    The function takes the `Node` and the operation's inputs. It returns the output, or a list of
    the first outputs. Outputs that nothing reads may be None. With `of_complex` it writes those
    that take or give complex numbers.
    """

    def add(function: _Function) -> _Function:
        for op_type in op_types:
            _TABLE[op_type + _OF_COMPLEX * of_complex] = function
        return function

    return add


def composes(*op_types: str, of_complex: bool = False) -> Callable[[_Function], _Function]:
    """Registers a function that computes the operations of some types by others, written instead.

    The function takes the `Node`, and the operation's inputs as tensors of the current graph. Known
    small inputs are constants; complex numbers are `Complex` pairs of tensors. The function returns
    the output, or a list of the outputs.
    """

    def add(function: _Function) -> _Function:
        writes(*op_types, of_complex=of_complex)(functools.partial(_write_composed, function))
        return function

    return add


def _write_composed(function: Function, node: "Node", *inputs: Value) -> list[Value | None]:
    op = node.op
    with op.graph.as_default():  # around the composed graph, which calls its functions
        graph = _tf.FuncGraph(op.name)
    arguments: list[Value] = []

    def given(value: Value, dtype: tf.DType, shape: tf.TensorShape, known: Any) -> tf.Tensor:
        if known is not None and known.size <= _SMALL:
            return tf.constant(known, dtype)
        placeholder = tf.compat.v1.placeholder(dtype, shape)
        graph.inputs.append(placeholder)
        arguments.append(value)
        return placeholder

    with graph.as_default(), tf.name_scope(op.name):
        tensors: list[Any] = []
        for k, (value, tensor) in enumerate(zip(inputs, op.inputs)):
            if isinstance(value, Complex):
                parts = [
                    given(part, tensor.dtype.real_dtype, node.shape(k), None) for part in value
                ]
                tensors.append(Complex(*parts))
            else:
                tensors.append(given(value, tensor.dtype, node.shape(k), node.known(k)))
        try:
            outputs = function(node, *tensors)
        except (TypeError, ValueError) as error:
            if isinstance(error, IRError):
                raise
            raise node.error(f"it cannot be composed of other operations: {error}") from error
    return node.run(graph, arguments, _listed(outputs))


class Node:
    """An operation that is being written."""

    def __init__(
        self,
        conversion: "Conversion",
        network: Network,
        op: tf.Operation,
        inputs: Sequence[Value],
        used: frozenset[Any],
        values: Mapping[Any, Any],
    ):
        self.conversion, self.network, self.op, self.inputs = conversion, network, op, inputs
        self._used, self._values = used, values

    def error(self, message: str) -> IRError:
        return IRError(f"{self.op.type} {_named(self.op)}: {message}")

    def attr(self, name: str) -> Any:
        value = self.op.get_attr(name)
        if isinstance(value, list):
            return [v.decode() if isinstance(v, bytes) else v for v in value]
        return value.decode() if isinstance(value, bytes) else value

    def is_used(self, output: int) -> bool:
        return self.op.outputs[output].ref() in self._used

    def run(
        self, graph: Any, arguments: Sequence[Value], outputs: Sequence[Any]
    ) -> list[Value | None]:
        """Writes a function in place of the operation, and returns its outputs that are used."""
        used = [output if self.is_used(k) else None for k, output in enumerate(outputs)]
        wanted = [tensor for tensor in tf.nest.flatten(used) if tensor is not None]
        values = iter(self.conversion.run(self.network, graph, arguments, wanted))
        return tf.nest.map_structure(lambda tensor: None if tensor is None else next(values), used)

    def body(self, feed: Callable[[Port], Port]) -> Network:
        """Makes the network of a body of the operation's layer; see `Surroundings` for `feed`."""
        network = Network(self.conversion.weights, Surroundings(self.network, feed))
        if network.depth > MOST_NESTED:  # OpenVINO may die of them
            raise self.error(
                f"there are more than {MOST_NESTED} loops and conditionals in one another; Keras's "
                "associative_scan makes as many if the signature leaves the extent of its axis open"
            )
        return network

    def within(self, network: Network) -> "Node":
        """The operation where it adds layers to another network."""
        return Node(self.conversion, network, self.op, self.inputs, self._used, self._values)

    def dtype(self, output: int = 0) -> np.dtype:
        return np.dtype(self.op.outputs[output].dtype.as_numpy_dtype)

    def shape(self, position: int) -> tf.TensorShape:
        """The shape of an input, as far as it is known."""
        value = self.inputs[position]
        if isinstance(value, np.ndarray):
            return tf.TensorShape(value.shape)
        return self.op.inputs[position].shape

    def rank(self, position: int) -> int:
        rank = self.shape(position).rank
        if rank is None:
            raise self.error(f"the rank of input {position} must be known")
        return rank

    def known(self, position: int) -> np.ndarray | None:
        """The value of an input, if it is known."""
        value = self.inputs[position]
        if isinstance(value, np.ndarray):
            return value
        return tf.get_static_value(self.op.inputs[position])

    def static(self, position: int) -> np.ndarray:
        value = self.known(position)
        if value is None:
            raise self.error(f"input {position} must be a constant")
        return value

    def value_of(self, tensor: tf.Tensor) -> Value:
        """The value of a tensor that the operation, or one before it, reads."""
        return self._values[tensor.ref()]

    def before(self, op: tf.Operation) -> "Node":
        """The node of an earlier operation, which one layer writes together with this one."""
        inputs = [self.value_of(tensor) for tensor in op.inputs]
        return Node(self.conversion, self.network, op, inputs, self._used, self._values)

    def variable(self, handle: tf.Tensor, dtype: tf.DType) -> Operand:
        """The value that a variable has here."""
        return self.conversion.states.read(self.network, handle, dtype)

    def assign(self, handle: tf.Tensor, dtype: tf.DType, value: Value) -> None:
        """Gives a variable another value."""
        self.conversion.states.assign(self.network, handle, dtype, value)

    def like(self, number: float | Sequence[float], output: int = 0) -> np.ndarray:
        """A number, or several, in the dtype of an output."""
        return np.asarray(number, self.dtype(output))

    def layer(self, type: str, *inputs: Any, **fields: Any) -> Layer:
        """Adds a layer named after the operation, as `Network.add` does."""
        if type in VIEWS and self.network.surroundings is not None:
            # OpenVINO's CPU plugin overwrites a Parameter through its views, and with it what the
            # next iterations read.
            x, *rest = inputs
            if isinstance(x, Port) and x.is_view_of_given:
                inputs = self.network.copy(x), *rest
        return layout.add(self.network, type, inputs, name=self.op.name, **fields)

    def add(self, type: str, *inputs: Any, **fields: Any) -> Port:
        """Adds a layer with one output, and returns that."""
        return self.layer(type, *inputs, **fields).outputs[0]


class Conversion:
    """The conversion of functions that call one another to networks that share weights.

    Attributes:
        weights: the values of Constants.
        states: the variables.
        problems: messages that say what cannot be written, and why.
        unsupported: the names of operations that the table lacks, by their types.
    """

    def __init__(self, states: States) -> None:
        self.weights, self.states = Weights(), states
        self.problems: list[str] = []
        self.unsupported: dict[str, list[str]] = collections.defaultdict(list)
        self._failed: set[int] = set()  # the ids of stand-ins for outputs that cannot be written
        self._assigning: dict[str, bool] = {}  # by the names of functions

    def check(self) -> None:
        """Raises one error for all problems, if there are any."""
        problems = list(self.problems)
        if self.unsupported:
            kinds = (
                f"{kind}: {some(dict.fromkeys(names), str)}"
                for kind, names in sorted(self.unsupported.items())
            )
            problems.insert(0, f"operations that cannot be written as IR: {'; '.join(kinds)}")
            plain = (kind.removesuffix(_OF_COMPLEX) for kind in sorted(self.unsupported))
            problems += dict.fromkeys(ADVICE[kind] for kind in plain if kind in ADVICE)
        if problems:
            raise IRError(". ".join(problems))

    def network(self) -> Network:
        return Network(self.weights)

    def run(
        self,
        network: Network,
        function: Any,
        arguments: Sequence[Value | None],
        results: Sequence[tf.Tensor] | None = None,
    ) -> list[Value]:
        """Writes the operations of a function, in the order in which it assigns its variables.

        Args:
            network: the network to add layers to.
            function: a graph with inputs and outputs.
            arguments: a value for each input; None for one that is not read.
            results: the tensors to return the values of; None for all outputs.
        """
        results = function.outputs if results is None else results
        values: dict[Any, Any] = {t.ref(): v for t, v in zip(function.inputs, arguments)}
        reached = frozenset(needed_operations(results, values, self.assigning(function)))
        self._check_effects(function, reached)
        in_order = [op for op in function.get_operations() if op in reached]
        # Some are made after what reads them: those of tf_ti's checks.
        needed = list(needed_operations((), values, in_order))
        used = frozenset(t.ref() for op in needed for t in op.inputs)
        used |= {t.ref() for t in results}
        for op in needed:
            inputs = [values[t.ref()] for t in op.inputs]
            first = len(network.layers)
            outputs = self._convert(network, op, inputs, used, values)
            for tensor, value in zip(op.outputs, outputs):
                values[tensor.ref()] = value
                for port in value if isinstance(value, Complex) else [value]:
                    if isinstance(port, Port) and port.layer.id >= first and port.shape is None:
                        port.shape = shape_of(tensor.shape)
        return [values[t.ref()] for t in results]

    def _convert(
        self,
        network: Network,
        op: tf.Operation,
        inputs: Sequence[Value],
        used: frozenset[Any],
        values: Mapping[Any, Any],
    ) -> Sequence[Any]:
        if op.type == "Const":
            return [self._constant(network, op)]
        is_named_by = _tf.find_function(op.graph, op.type) is not None
        if op.type in _CALLS or is_named_by:
            name = op.type if is_named_by else op.get_attr("f").name
            graph = _tf.function_graph(op, name, [t.shape for t in op.inputs])
            return self.run(network, graph, inputs)
        if len(op.outputs) == 1 and (value := _worked_out(op.outputs[0])) is not None:
            return [value]
        if (evaluated := _evaluated(op, inputs)) is not None:
            return evaluated
        if (nothing := _nothing(op, inputs)) is not None:
            return nothing
        is_complex = any(tensor.dtype.is_complex for tensor in (*op.inputs, *op.outputs))
        kind = op.type + _OF_COMPLEX * is_complex
        function = _TABLE.get(kind)
        if function is None:
            self.unsupported[kind].append(_named(op))
            return self._failures(network, op)
        has_failed = [id(value) in self._failed for value in inputs]
        failed = list(itertools.compress(op.inputs, has_failed))
        if any(tensor.dtype == tf.variant or tensor.dtype.is_complex for tensor in failed):
            return self._failures(network, op)  # lists and pairs are more than a stand-in
        node = Node(self, network, op, inputs, used, values)
        try:
            outputs = function(node, *inputs)
            outputs = _listed(outputs)
            for i in range(len(op.outputs)):
                if node.is_used(i) and (i >= len(outputs) or outputs[i] is None):
                    raise node.error(f"its output {i} cannot be written as IR")
            return outputs
        except IRError as error:
            if isinstance(error, NoElementType):
                error = node.error(str(error))
            if not any(has_failed):
                self.problems.append(str(error))
            return self._failures(network, op)

    def _constant(self, network: Network, op: tf.Operation) -> Value:
        value = tf.make_ndarray(op.get_attr("value"))
        if np.iscomplexobj(value):
            return Complex.of(value)
        try:
            element_type_of(value.dtype)
        except IRError as error:  # for strings, say
            self.problems.append(f"Const {_named(op)}: {error}")
            return self._failures(network, op)[0]
        return value

    def _failures(self, network: Network, op: tf.Operation) -> list[Port]:
        """Makes stand-ins for the outputs of an operation until all problems are found."""
        kinds = []
        for tensor in op.outputs:
            try:
                kinds.append(element_type_of(tensor.dtype))
            except IRError:
                kinds.append(element_type_of(tf.float32))
        outputs = network.add("?", [], outputs=kinds).outputs
        for port, tensor in zip(outputs, op.outputs):
            port.shape = shape_of(tensor.shape)
        self._failed.update(map(id, outputs))
        return outputs

    def assigning(self, function: Any) -> list[tf.Operation]:
        """The operations of a graph that assign variables."""
        return [op for op in function.get_operations() if self._assigns(op)]

    def _assigns(self, op: tf.Operation) -> bool:
        """True if an operation, or a function that it has, assigns a variable."""
        if op.type in ASSIGNMENTS:
            return True
        if not _tf.is_stateful(op):
            return False
        for name in _functions(op):
            if name not in self._assigning:
                self._assigning[name] = bool(self.assigning(_tf.function_graph(op, name, None)))
        return any(self._assigning[name] for name in _functions(op))

    def _check_effects(self, function: Any, needed: frozenset[tf.Operation]) -> None:
        """Finds operations that only have effects, except assertions, which are left out."""
        for op in function.get_operations():
            if op in needed or not _tf.is_stateful(op) or op.type in _HARMLESS:
                continue
            names = _functions(op)
            for name in names:
                self._check_effects(_tf.function_graph(op, name, None), frozenset())
            if not names:
                self.unsupported[op.type].append(_named(op))


def _listed(outputs: Any) -> list[Any]:
    is_one = isinstance(outputs, Complex) or not isinstance(outputs, list | tuple)
    return [outputs] if is_one else list(outputs)


def _named(op: tf.Operation) -> str:
    """The name of an operation, and where the user's code made it."""
    place = _tf.place_of(op)
    return shown(op.name) + (place and f" ({place})")


def _functions(op: tf.Operation) -> list[str]:
    """The names of the functions that an operation has."""
    given = [f for value in op.node_def.attr.values() for f in (value.func, *value.list.func)]
    return [function.name for function in given if function.name]


def needed_operations(
    results: Sequence[tf.Tensor],
    given: Mapping[Any, Any],
    effects: Sequence[tf.Operation] = (),
) -> Iterator[tf.Operation]:
    """The operations that compute `results` and have `effects`, each after those that it reads."""
    done: set[tf.Operation] = set()
    stack = [(op, False) for op in reversed(effects)]
    stack += [(t.op, False) for t in reversed(results) if t.ref() not in given]
    while stack:
        op, has_inputs = stack.pop()
        if op in done:
            continue
        if has_inputs:
            done.add(op)
            yield op
            continue
        stack.append((op, True))
        stack.extend((t.op, False) for t in op.inputs if t.ref() not in given and t.op not in done)


def positions_read(
    graph: Any, results: Iterable[tf.Tensor], effects: Sequence[tf.Operation] = ()
) -> set[int]:
    """The positions of the inputs of a function that its results and effects depend on."""
    results = list(results)
    position = {t.ref(): i for i, t in enumerate(graph.inputs)}
    read = [t.ref() for op in needed_operations(results, position, effects) for t in op.inputs]
    read += [t.ref() for t in results]
    return {position[ref] for ref in read if ref in position}


def _worked_out(tensor: tf.Tensor) -> np.ndarray | None:
    """The value of a small integer tensor, such as shapes are made of, if it is known."""
    if not tensor.dtype.is_integer or not tensor.shape.is_fully_defined():
        return None
    if tensor.shape.num_elements() > _SMALL:
        return None
    value = tf.get_static_value(tensor)
    return None if value is None else np.asarray(value, tensor.dtype.as_numpy_dtype)


def _evaluated(op: tf.Operation, inputs: Sequence[Value]) -> list[Value] | None:
    """The values of an operation's small outputs, where all inputs are known and small."""
    is_known = all(isinstance(value, np.ndarray) and value.size <= _SMALL for value in inputs)
    if not inputs or not is_known or op.type == "Identity":
        return None
    largest = _DRAWN if op.type.startswith("StatelessRandom") else _SMALL
    if _tf.is_stateful(op) or _functions(op):
        return None
    if not all(_has_few_numbers(tensor, largest) for tensor in op.outputs):
        return None
    try:
        with tf.Graph().as_default(), tf.device("CPU"), tf.compat.v1.Session() as session:
            outputs = _tf.repeat_operation(op, [tf.constant(value) for value in inputs])
            return [np.asarray(value) for value in session.run(outputs)]
    except (tf.errors.OpError, ValueError):  # OpenVINO is to say it when the operation runs
        return None


def _has_few_numbers(tensor: tf.Tensor, largest: int) -> bool:
    """True if a tensor has so many numbers at most."""
    count = tensor.shape.num_elements()
    is_small = count is not None and count <= largest
    return is_small and _has_numbers(tensor) and not tensor.dtype.is_complex


def _nothing(op: tf.Operation, inputs: Sequence[Value]) -> list[Any] | None:
    """The outputs, if an input and they never have elements: OpenVINO may die of such layers.

    The shapes of outputs alone do not tell: TensorFlow infers wrong shapes of MatrixDiagV3 where
    extents are unknown.
    """
    if _tf.is_stateful(op) or any(tensor.shape.num_elements() != 0 for tensor in op.outputs):
        return None
    if not any(map(_has_none, inputs)) or not all(map(_has_numbers, op.outputs)):
        return None
    arrays = [np.zeros(tensor.shape, tensor.dtype.as_numpy_dtype) for tensor in op.outputs]
    return [Complex.of(array) if np.iscomplexobj(array) else array for array in arrays]


def _has_none(value: Any) -> bool:
    if isinstance(value, Complex):
        return _has_none(value.real)
    if isinstance(value, Port):
        return value.layer.type == "Parameter" and 0 in (value.shape or ())
    return isinstance(value, np.ndarray) and not value.size


def _has_numbers(tensor: tf.Tensor) -> bool:
    dtype = tensor.dtype
    return dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex
