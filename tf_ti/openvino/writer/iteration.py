"""tf_ti's loops as TensorIterator and Loop."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.openvino.element_types import ElementType
from tf_ti.openvino.errors import shown
from tf_ti.openvino.model import OWN_PORT, RANGE
from tf_ti.openvino.writer.conversion import Node, Value, positions_read, writes
from tf_ti.openvino.writer.lists import Elements
from tf_ti.openvino.writer.network import (
    Body,
    Layer,
    Network,
    Port,
    element_type_of,
    shape_of,
)

_INTEGER = element_type_of(tf.int64)


@dataclasses.dataclass(frozen=True)
class _Input:
    """The attributes of an input of the op, which feeds a parameter of the body."""

    label: str
    mode: str
    axis: int
    start: int
    end: int
    stride: int
    part_size: int

    @property
    def is_sliced(self) -> bool:
        return self.mode in ("slice", "index", "iterator")

    @property
    def is_plain(self) -> bool:
        """True if the pieces lie side by side, from one end of the tensor to the other."""
        whole = (0, -1) if self.stride > 0 else (-1, 0)
        size = 1 if self.mode == "index" else self.part_size
        return (self.start, self.end) == whole and abs(self.stride) == size


@dataclasses.dataclass(frozen=True)
class _Output:
    label: str
    mode: str
    source: int
    axis: int
    stride: int
    length: int


def _fields(op: Node, kind: type, prefix: str) -> list[Any]:
    names = [field.name for field in dataclasses.fields(kind)]
    return [kind(*values) for values in zip(*(op.attr(f"{prefix}_{name}") for name in names))]


def _extent_of(network: Network, tensor: Any, axis: int) -> Port:
    shape = network.add(
        "ShapeOf", [tensor], "opset3", outputs=[_INTEGER], output_type=_INTEGER.name
    ).outputs[0]
    inputs = [shape, np.asarray(axis), np.asarray(0)]
    return network.add("Gather", inputs, "opset8", batch_dims=0).outputs[0]


def stacked_of(value: Any) -> Any:
    """The tensor of a list's elements; another value as it is."""
    return value.stacked if isinstance(value, Elements) else value


def check_effects(op: Node, graphs: Iterable[Any]) -> None:
    """Refuses functions of a loop that assign variables."""
    for graph in graphs:
        if effects := op.conversion.assigning(graph):
            raise op.error(
                f"{shown(effects[0].name)} assigns a variable in it, as OpenVINO's loops do not: "
                "make the value a state of the loop"
            )


@writes("TfTi>TensorIterator", "TfTi>StatelessTensorIterator")
def _iterate(op: Node, *inputs: Value) -> list[Value | None]:
    return _Loop(op, list(inputs)).write()


class LoopBody:
    """The body of a loop that is being written, and the values around it that it is fed."""

    def __init__(self, op: Node):
        self.op, self.conversion = op, op.conversion
        self.network = op.body(self._invariant)
        self.ports: list[Any] = []
        self.description = Body(self.network)

    def feed(self, tensor: Any, parameter: Port, **attributes: Any) -> None:
        self.description.feed(len(self.ports), parameter, **attributes)
        self.ports.append(tensor)
        # In a body of known shapes, OpenVINO's CPU plugin reuses the memory of Parameters, and may
        # overwrite a state or an invariant that is still needed. It keeps those of a Result.
        self.network.result(parameter, "kept")

    def feed_invariant(self, tensor: Any, parameter: Port) -> Port:
        """Connects what no iteration changes, and returns what the body reads."""
        self.feed(tensor, parameter)
        # OpenVINO's CPU plugin makes views of scalars, and overwrites the Parameter through them.
        return self.network.copy(parameter) if parameter.shape == () else parameter

    def _invariant(self, value: Port) -> Port:
        """A Parameter for a value of the network around it."""
        parameter = self.network.parameter(value.element_type, value.shape, "variable")
        return self.feed_invariant(value, parameter)

    def list_of_state(self, elements: Elements, name: str) -> Elements:
        """A list that iterations change, as a Parameter of all its elements."""
        shape = tf.TensorShape([None]).concatenate(elements.shape)
        kind = element_type_of(elements.dtype)
        parameter = self.network.parameter(kind, shape_of(shape), name)
        self.feed(elements.values(self.op), parameter)
        return elements.of_stacked(parameter)

    def with_stacked(self, value: Any) -> Any:
        """A value of the body; a list of zeros alone as a tensor of them."""
        if not isinstance(value, Elements) or value.stacked is not None:
            return value
        return value.of_stacked(value.zeros(self.op.within(self.network)))

    def copied(self, value: Any, parameter: Port | None = None) -> Any:
        """What a body returns, copied if it is the value of a Parameter, but not of the state's.

        OpenVINO's CPU plugin follows back edges one after the other, and so may overwrite that
        Parameter before it is read. It takes what is no state out of the loop, and then may fail
        to compile a loop around it.
        """
        if not isinstance(value, Port) or value is parameter or not value.is_view_of_given:
            return value
        return self.network.copy(value)


class _Loop(LoopBody):
    """A loop of tf_ti.

    It becomes a TensorIterator if its pieces determine the number of iterations. Otherwise, or in
    the body of another loop, it becomes a Loop, whose body gathers its pieces by the number of the
    iteration: OpenVINO has no TensorIterator in a TensorIterator.
    """

    def __init__(self, op: Node, tensors: list[Any]):
        super().__init__(op)
        self.inputs: list[_Input] = _fields(op, _Input, "input")
        self.outputs: list[_Output] = _fields(op, _Output, "output")
        self.tensors = tensors[: len(self.inputs)]
        rest = tensors[len(self.inputs) :]
        self.limit = rest.pop(0) if op.attr("N") else None
        self.lengths = rest
        self.edges = list(zip(op.attr("back_edge_from"), op.attr("back_edge_to")))
        self.shapes = [tf.TensorShape(shape) for shape in op.attr("parameter_shapes")]
        self.body = _tf.function_graph(op.op, _tf.body_of(op.op), self.shapes)
        self.condition, self.tested = None, list(op.attr("condition_inputs"))
        for function in op.op.get_attr("condition"):
            shapes = [self.shapes[i] for i in self.tested]
            self.condition = _tf.function_graph(op.op, function.name, shapes)
        self.written = [i for i in range(len(self.outputs)) if op.is_used(i)]
        self._check()
        self.results, self.read = self._live()
        self.is_counted = any(i.is_sliced and i.mode != "iterator" for i in self.inputs)
        self.is_loop = (
            self.condition is not None
            or not self.is_counted
            or op.network.surroundings is not None
            or any(i.is_sliced and not i.is_plain for i in self.inputs)
        )
        self._number: Port | None = None

    def _check(self) -> None:
        for i in self.written:
            output = self.outputs[i]
            if output.mode not in ("last", "concat", "stack"):
                raise self.op.error(f"{output.label}: OpenVINO's loops keep no {output.mode}")
        for given in self.inputs:
            if given.mode != "value" and not given.is_sliced:
                raise self.op.error(f"{given.label}: OpenVINO's loops take no {given.mode}")
        if self.op.attr("reverse"):
            raise self.op.error("it is the gradient of a loop")
        check_effects(self.op, filter(None, (self.body, self.condition)))

    def _live(self) -> tuple[list[int], set[int]]:
        """The results of the body that are needed, and the parameters that they read."""
        outputs = [self.outputs[i] for i in self.written]
        results = {output.source for output in outputs}
        last = {output.source for output in outputs if output.mode == "last"}
        # Without an iteration the initial state is the last one.
        returned = {parameter for result, parameter in self.edges if result in last}
        count = len(self.inputs)
        while True:
            read = positions_read(self.body, (self.body.outputs[r] for r in sorted(results)))
            shared = {i - count + 1 for i in read if i >= count}
            read -= {i for i in read if i >= count}
            if self.condition is not None:
                wanted = [self.condition.outputs[i] for i in sorted({0} | shared)]
                read |= {self.tested[i] for i in positions_read(self.condition, wanted)}
            read |= returned
            found = results | {result for result, parameter in self.edges if parameter in read}
            if found == results:
                return sorted(results), read
            results = found

    # The inputs.

    def _parameter(self, position: int, shape: Any) -> Port:
        kind = element_type_of(self.op.op.inputs[position].dtype)
        return self.network.parameter(
            kind, shape_of(tf.TensorShape(shape)), f"parameter_{position}"
        )

    def _parameters(self) -> list[Any]:
        """The values of the body's parameters in the body."""
        states = {parameter: result for result, parameter in self.edges}
        values: list[Any] = []
        for i, (given, tensor) in enumerate(zip(self.inputs, self.tensors)):
            if given.is_sliced:
                values.append(self._slice(i) if not self.is_loop or i in self.read else None)
            elif i not in self.read:
                values.append(None)
            elif i in states and isinstance(tensor, Elements):
                values.append(self.list_of_state(tensor, f"parameter_{i}"))
            elif isinstance(tensor, Elements):
                values.append(tensor.inside(self._invariant))
            elif i in states:
                shape = self.shapes[i]
                values.append(self._parameter(i, shape))
                self.feed(tensor, values[i])
            elif isinstance(tensor, Port):
                parameter = self._parameter(i, self.op.shape(i))
                values.append(self.feed_invariant(tensor, parameter))
            else:  # a constant becomes one of the body
                values.append(tensor)
        return values

    def _slice(self, i: int) -> Any:
        given, tensor = self.inputs[i], self.tensors[i]
        if self.is_loop:
            if isinstance(tensor, Port):
                whole = self._parameter(i, self.op.shape(i))
                self.feed(tensor, whole)
            else:
                whole = tensor
            self.wholes[i] = whole
            return self._piece(i, self.network, whole, self.number)
        rank = self.op.rank(i)
        axis, shape = given.axis % rank, self.op.shape(i).as_list()
        shape[axis] = size = given.part_size if given.mode == "slice" else 1
        parameter = self._parameter(i, shape)
        values = axis, given.start, given.end, given.stride, size
        self.feed(tensor, parameter, **dict(zip(RANGE, values)))
        if given.mode == "slice":
            return parameter
        value = self.network.add("Squeeze", [parameter, np.asarray([axis])]).outputs[0]
        del shape[axis]
        value.shape = tuple(shape)
        return value

    def _piece(
        self, i: int, network: Network, whole: Any, number: Any, is_next: bool = False
    ) -> Port:
        """The piece of a sliced input for an iteration, by its number."""
        given, rank = self.inputs[i], self.op.rank(i)
        axis = given.axis % rank
        first = given.start
        if not given.is_plain and first < 0 and given.mode == "slice":
            first += self._extent(i)
        if is_next:
            number = network.add("Add", [number, np.asarray(1)]).outputs[0]
        steps = network.add("Multiply", [number, np.asarray(given.stride)]).outputs[0]
        index = network.add("Add", [steps, np.asarray(first)]).outputs[0]
        if given.mode == "slice":
            low = 0 if given.stride > 0 else 1 - given.part_size
            index = network.add("Add", [index, np.arange(low, low + given.part_size)]).outputs[0]
        if is_next:  # after the last iteration the piece is not used
            index = self._within(network, whole, index, axis)
        values = [whole, index, np.asarray(axis)]
        return network.add("Gather", values, "opset8", batch_dims=0).outputs[0]

    def _within(self, network: Network, whole: Any, index: Port, axis: int) -> Port:
        extent = _extent_of(network, whole, axis)
        last = network.add("Subtract", [extent, np.asarray(1)]).outputs[0]
        first = network.add("Negative", [extent]).outputs[0]
        index = network.add("Minimum", [index, last]).outputs[0]
        return network.add("Maximum", [index, first]).outputs[0]

    @property
    def number(self) -> Port:
        """The iteration's number."""
        if self._number is None:
            self._number = self.network.parameter(_INTEGER, (), "number")
            self.description.feed(OWN_PORT, self._number, purpose="current_iteration")
        return self._number

    def _extent(self, i: int) -> int:
        extent = self.op.shape(i)[self.inputs[i].axis]
        if extent is None:
            raise self.op.error(
                f"{self.inputs[i].label}: the extent must be known for a range from "
                f"{self.inputs[i].start} to {self.inputs[i].end} by {self.inputs[i].stride} in "
                f"pieces of {self.inputs[i].part_size}"
            )
        return extent

    # The number of iterations.

    def _trip_count(self) -> Any:
        if self.limit is not None:
            return self.limit
        counted = [i for i, given in enumerate(self.inputs) if given.mode in ("slice", "index")]
        known = [i for i in counted if self.op.shape(i)[self.inputs[i].axis] is not None]
        plain = [i for i in counted if self.inputs[i].is_plain]
        if counted and plain and not known:
            given, axis = self.inputs[plain[0]], self.inputs[plain[0]].axis % self.op.rank(plain[0])
            extent = _extent_of(self.op.network, self.tensors[plain[0]], axis)
            return self.op.add("Divide", extent, np.asarray(abs(given.stride)))
        return np.asarray(self._count((known or counted)[0]) if counted else -1)

    def _is_empty(self) -> bool:
        """True if it is known that there is no iteration."""
        if self.is_loop and isinstance(self.ports[-2], np.ndarray) and self.ports[-2] == 0:
            return True
        sliced = [i for i, given in enumerate(self.inputs) if given.mode in ("slice", "index")]
        return any(self.op.shape(i).as_list()[self.inputs[i].axis] == 0 for i in sliced)

    def _count(self, i: int) -> int:
        given, extent = self.inputs[i], self._extent(i)
        start, end = (n + extent if n < 0 else n for n in (given.start, given.end))
        size = given.part_size if given.mode == "slice" else 1
        return max(0, (abs(end - start) + 1 - size) // abs(given.stride) + 1)

    def _begins(self) -> Any:
        """The condition before the first iteration."""
        if self.condition is None:
            return np.asarray(True)
        outer, values = self.op.network, []
        for i in self.tested:
            given, value = self.inputs[i], self.tensors[i]
            if given.is_sliced and i in self.read:
                value = self._piece(i, outer, value, np.asarray(0))
            values.append(value)
        return self.conversion.run(outer, self.condition, values, self.condition.outputs[:1])[0]

    def _goes_on(self, values: Sequence[Any], results: dict[int, Any]) -> Any:
        """The condition of the next iteration, in the body."""
        if self.condition is None:
            return np.asarray(True)
        following = {parameter: result for result, parameter in self.edges}
        given = []
        for i in self.tested:
            value = values[i]
            if i in following and i in self.read:
                value = results[following[i]]
            elif self.inputs[i].is_sliced and i in self.read:
                value = self._piece(i, self.network, self.wholes[i], self.number, is_next=True)
            given.append(value)
        return self.conversion.run(self.network, self.condition, given, self.condition.outputs[:1])[
            0
        ]

    # The whole loop.

    def write(self) -> list[Any]:
        op, network = self.op, self.network
        self.wholes: dict[int, Any] = {}
        if self.is_loop:
            self.ports += [self._trip_count(), self._begins()]
        if self._is_empty():
            raise op.error("OpenVINO's CPU plugin compiles no loop that has no iterations")
        values = self._parameters()
        shared: list[Any] = []
        if self.condition is not None:
            tested = [values[i] for i in self.tested]
            shared = self.conversion.run(
                network, self.condition, tested, self.condition.outputs[1:]
            )
        wanted = [self.body.outputs[r] for r in self.results]
        found = self.conversion.run(network, self.body, values + shared, wanted)
        results = {i: self.with_stacked(value) for i, value in zip(self.results, found)}
        states: dict[int, Layer] = {}
        unchanged = self._unchanged(values, results)
        for result, parameter in self.edges:
            if parameter in self.read and result not in unchanged:
                before, value = map(stacked_of, (values[parameter], results[result]))
                if result not in states:
                    states[result] = network.result(self.copied(value, before), f"state_{result}")
                self.description.back_edges.append((states[result], before.layer))
        if self.is_loop:
            goes_on = network.result(self._goes_on(values, results), "goes_on")
            self.description.give(OWN_PORT, goes_on, purpose="execution_condition")
        made: list[Any] = [None] * len(self.outputs)
        given: list[int] = []
        for i in self.written:
            output = self.outputs[i]
            if output.mode == "last" and output.source in unchanged:
                made[i] = self.tensors[unchanged[output.source]]
            else:
                self._give(len(self.ports) + len(given), output, results, states)
                given.append(i)
        if not given:
            return made
        layer = op.layer(
            "Loop" if self.is_loop else "TensorIterator",
            *self.ports,
            version="opset5" if self.is_loop else "opset1",
            outputs=[self._kind(results[self.outputs[i].source], i) for i in given],
        )
        layer.bodies.append(self.description)
        for i, port in zip(given, layer.outputs):
            value = results[self.outputs[i].source]
            is_list = isinstance(value, Elements)
            made[i] = value.of_stacked(port) if is_list else self._padded(i, self._joined(i, port))
        return made

    def _unchanged(self, values: Sequence[Any], results: Mapping[int, Any]) -> dict[int, int]:
        """The parameters whose states no iteration changes, by their results.

        OpenVINO's CPU plugin removes such states, and may fail at what their results go to.
        """
        ends = collections.Counter(result for result, _ in self.edges)
        return {
            result: parameter
            for result, parameter in self.edges
            if ends[result] == 1 and results.get(result) is values[parameter] is not None
        }

    def _kind(self, value: Any, i: int) -> ElementType:
        is_list = isinstance(value, Elements)
        return element_type_of(value.dtype if is_list else self.op.op.outputs[i].dtype)

    def _give(
        self, port: int, output: _Output, results: dict[int, Any], states: dict[int, Any]
    ) -> None:
        value, name = results[output.source], f"output_{port}"
        if output.mode == "last":
            result = states.get(output.source)
            if result is None:
                result = self.network.result(self.copied(stacked_of(value)), name)
            self.description.give(port, result)
            return
        axis, size, is_stack = self._pieces_of(output)
        if is_stack or (self.is_loop and size != 1):
            shape = self.body.outputs[output.source].shape.as_list()
            value = self.network.add("Unsqueeze", [value, np.asarray([axis])]).outputs[0]
            value.shape = (*shape[:axis], 1, *shape[axis:])
            size = 1
        # A Loop concatenates pieces of one element only, and never in reverse.
        is_reversed = output.stride < 0 and not self.is_loop
        start, end, stride = (-1, 0, -size) if is_reversed else (0, -1, size)
        result = self.network.result(value, name)
        self.description.give(port, result, **dict(zip(RANGE, (axis, start, end, stride, size))))

    def _pieces_of(self, output: _Output) -> tuple[int, int, bool]:
        """The axis along which values are joined, their extent on it, and true if it is new."""
        shape = self.body.outputs[output.source].shape
        if shape.rank is None:
            raise self.op.error(f"{output.label}: the rank of what is concatenated must be known")
        if output.mode == "stack" or shape.rank == 0:
            return output.axis % (shape.rank + 1), 1, True
        axis = output.axis % shape.rank
        if shape[axis] is None:
            raise self.op.error(f"{output.label}: the extent of the pieces must be known")
        return axis, shape[axis], False

    def _joined(self, i: int, port: Port) -> Port:
        """Makes the op's output of a Loop's, which has pieces of one element."""
        op, output = self.op, self.outputs[i]
        if output.mode == "last" or not self.is_loop:
            return port
        axis, size, is_stack = self._pieces_of(output)
        if output.stride < 0:
            port = op.add("Reverse", port, np.asarray([axis]), mode="index")
        if not is_stack and size != 1:
            shape = op.add(
                "ShapeOf", port, version="opset3", outputs=[_INTEGER], output_type=_INTEGER.name
            )
            rank = op.op.outputs[i].shape.rank
            kept = np.asarray([*range(axis + 1), *range(axis + 2, rank + 1)])
            shape = op.add("Gather", shape, kept, np.asarray(0), version="opset8", batch_dims=0)
            all_of_it = np.asarray([-1])
            at = np.asarray([axis])
            shape = op.add("ScatterUpdate", shape, at, all_of_it, np.asarray(0), version="opset3")
            port = op.add("Reshape", port, shape, special_zero=False)
        return port

    def _padded(self, i: int, port: Port) -> Port:
        """Adds zeros after the values, if a length is given."""
        output = self.outputs[i]
        if output.mode != "stack" or output.length < 0:
            return port
        op, rank = self.op, self.op.op.outputs[i].shape.rank
        axis = output.axis % rank
        extent = _extent_of(op.network, port, axis)
        missing = op.add("Subtract", self.lengths[output.length], extent)
        missing = op.add("Unsqueeze", missing, np.asarray([0]))
        zeros, at = np.zeros(rank, np.int64), np.asarray([axis])
        after = op.add("ScatterUpdate", zeros, at, missing, np.asarray(0), version="opset3")
        return op.add("Pad", port, zeros, after, op.like(0, i), pad_mode="constant")
