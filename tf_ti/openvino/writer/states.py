"""The variables of a function: constants, or, if it assigns them, states of the network."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti.openvino.errors import IRError, shown
from tf_ti.openvino.writer.network import (
    Layer,
    Network,
    Operand,
    Port,
    clean,
    dimensions,
    element_type_of,
    free,
    shape_of,
)

# The operations that assign a variable.
ASSIGNMENTS = frozenset(["AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"])

# OpenVINO's CPU plugin computes in these in place of others, and holds no states of those.
_HELD = {tf.float64: tf.float32, tf.int64: tf.int32}


class States:
    """The variables of a function that is being written.

    One that the function assigns has a ReadValue, which begins with its present value, and an
    Assign of the value that it has at the end. Others are constants. Which are assigned a first
    conversion finds out; another one, told of them, writes the states.

    Attributes:
        found: the ids of the handles that are assigned.
    """

    def __init__(self, variables: Sequence[tf.Variable], assigned: frozenset[int] = frozenset()):
        """
        Args:
            variables: those of the function, which have names and shapes.
            assigned: the ids of the handles that are assigned.
        """
        self._variables = {id(variable.handle): variable for variable in variables}
        self._assigned = assigned
        self.found: set[int] = set()
        self._present: dict[int, tuple[tf.Tensor, np.ndarray]] = {}
        self._reads: dict[int, Layer] = {}
        self._names: set[str] = set()

    def read(self, network: Network, handle: tf.Tensor, dtype: tf.DType) -> Operand:
        """The value of a variable at this place of a network."""
        if id(handle) not in self._assigned:
            return self._present_value(handle, dtype)
        value = network.variables.get(id(handle))
        if value is None and (around := network.surroundings) is not None:
            value = self.read(around.network, handle, dtype)
            if isinstance(value, Port):
                value = around.feed(value)
        elif value is None:
            value = self._read_value(network, handle, dtype)
        network.variables[id(handle)] = value
        return value

    def assign(self, network: Network, handle: tf.Tensor, dtype: tf.DType, value: Any) -> None:
        """Gives a variable another value from here on."""
        self.found.add(id(handle))
        network.variables[id(handle)] = value
        network.assigned[id(handle)] = handle, dtype

    def _present_value(self, handle: tf.Tensor, dtype: tf.DType) -> np.ndarray:
        """The value of a variable now: the same array for all that read it."""
        if id(handle) not in self._present:
            with tf.init_scope():
                value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).numpy()
            self._present[id(handle)] = handle, np.asarray(value)  # not a scalar of NumPy
        return self._present[id(handle)][1]

    def _read_value(self, network: Network, handle: tf.Tensor, dtype: tf.DType) -> Port:
        value, variable = self._present_value(handle, dtype), self._variables.get(id(handle))
        name = "variable" if variable is None else clean(variable.name.split(":")[0])
        name = free(name, self._names)
        shape = value.shape if variable is None else shape_of(variable.shape)
        held = _HELD.get(dtype, dtype)
        if dtype == tf.int64 and np.any(value != value.astype(np.int32)):
            raise IRError(
                f"variable {shown(name)}: OpenVINO holds no state of int64, and int32 has no "
                "numbers as large as its value"
            )
        layer = network.add(
            "ReadValue",
            [value.astype(held.as_numpy_dtype)],
            "opset6",
            name=name,
            variable_id=name,
            variable_type=element_type_of(held).name,
            variable_shape=dimensions(shape),
        )
        self._reads[id(handle)] = layer
        (port,) = layer.outputs
        port.shape = shape
        # OpenVINO's CPU plugin fails if a Convert between a ReadValue and a Result is alone there.
        return port if held == dtype else _converted(network, network.copy(port), dtype)

    def finish(self, network: Network) -> None:
        """Adds the Assigns of the states that results depend on.

        A variable that is assigned before it is read is no state.
        """
        for handle, layer in self._needed(network).items():
            (before,) = layer.outputs
            value = _assignable(network, network.variables[handle], before)
            value = _converted(network, value, tf.as_dtype(before.element_type.dtype))
            network.add("Assign", [value], "opset6", name=layer.name, **layer.attributes)

    def _needed(self, network: Network) -> dict[int, Layer]:
        """The layers that read states on which results depend, now or in later calls."""
        needed: dict[int, Layer] = {}
        ports = [
            port for layer in network.layers if layer.type == "Result" for port in layer.inputs
        ]
        while True:
            reached = network.reached(ports)
            more = {
                handle: layer
                for handle, layer in self._reads.items()
                if handle in network.assigned and handle not in needed and layer in reached
            }
            if not more:
                return needed
            needed |= more
            values = [network.variables[handle] for handle in more]
            ports += [value for value in values if isinstance(value, Port)]


def _converted(network: Network, port: Port, dtype: tf.DType) -> Port:
    kind = element_type_of(dtype)
    if port.element_type == kind:
        return port
    layer = network.add("Convert", [port], outputs=[kind], destination_type=kind.name)
    layer.outputs[0].shape = port.shape
    return layer.outputs[0]


def _assignable(network: Network, value: Operand, before: Port) -> Port:
    """The value as OpenVINO's CPU plugin can assign it.

    It ignores the Assign of a constant, after that of a Parameter it reads the next call's, and it
    fails at that of a ReadValue which nothing else reads.
    """
    port = value if isinstance(value, Port) else network.constant(value)
    if port.is_view_of_given:
        return network.copy(port)
    if port.is_computed:
        return port
    flat = network.add("Reshape", [before, np.asarray([-1])], special_zero=False).outputs[0]
    is_same = network.add("Equal", [flat, flat], outputs=[element_type_of(tf.bool)]).outputs[0]
    is_any = network.add("ReduceLogicalOr", [is_same, np.asarray([0])], keep_dims=False).outputs[0]
    return network.add("Select", [is_any, port, port], outputs=[port.element_type]).outputs[0]
