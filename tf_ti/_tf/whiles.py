"""While loops that TensorFlow has traced, before they become operations."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.framework import func_graph, op_def_registry
from tensorflow.python.ops import control_flow_util_v2

from tf_ti._tf.operations import orders_effects

# TensorFlow counts the iterations, and has a limit of them, in variables before the user's.
_NUM_OWN = 2
# The names of the graphs of tf.compat.v1.wrap_function begin so.
_WRAPPED = "wrapped_function"


@dataclasses.dataclass(frozen=True, eq=False)
class TracedWhile:
    """A loop as TensorFlow traced it.

    Attributes:
        tensors: the first values of TensorFlow's own variables and the user's, and the captures.
        condition, body: their graphs, which take all of these.
        shapes: the static shapes of the last values, and of the captures.
        parallel_iterations: the most iterations that are on their way at once.
        name: the scope of the loop.
    """

    tensors: Sequence[tf.Tensor]
    condition: func_graph.FuncGraph
    body: func_graph.FuncGraph
    shapes: Sequence[tf.TensorShape]
    parallel_iterations: int
    name: str

    @property
    def is_gradient(self) -> bool:
        """True if it computes the gradient of another loop."""
        return type(self.body) is not control_flow_util_v2.WhileBodyFuncGraph

    @property
    def is_in_function(self) -> bool:
        """True if it becomes part of a function, and not of a graph of TensorFlow 1.

        Operations of such a graph run only if something depends on them. The functions of
        tf.compat.v1.wrap_function are such graphs too.
        """
        return orders_effects()

    @property
    def is_for_types(self) -> bool:
        """True if nobody runs it: AutoGraph and Keras trace code to learn the types of its results.

        They do it in a graph of a function that is none.
        """
        graph, outer = tf.compat.v1.get_default_graph(), None
        while isinstance(graph, func_graph.FuncGraph) and not graph._add_control_dependencies:
            graph, outer = graph.outer_graph, graph
        return outer is not None and not outer.name.startswith(_WRAPPED)

    @property
    def variables(self) -> slice:
        """The user's variables among `tensors`, and among the parameters and results of graphs."""
        captures = self.body.internal_captures + self.body.deferred_internal_captures
        return slice(_NUM_OWN, len(self.tensors) - len(captures))

    @property
    def limit(self) -> tf.Tensor | None:
        """The most iterations."""
        return self.tensors[1] if self.condition.inputs[1].consumers() else None

    @property
    def test(self) -> tf.Tensor:
        """What the user's condition returned, in its graph: true if there is an iteration more."""
        (test,) = self.condition.outputs
        if self.limit is None:
            return test
        while test.op.type == "Identity":
            test = test.op.inputs[0]
        return test.op.inputs[1]  # of "is within the limit, and ..."

    @property
    def devices(self) -> list[str]:
        """The devices that its operations ask for."""
        return sorted({op.device for op in self.operations} - {""})

    @property
    def calls_by_type(self) -> list[str]:
        """The functions of TensorFlow 1 that it calls, which are types of operations."""
        return [op.type for op in self.operations if op_def_registry.get(op.type) is None]

    @property
    def operations(self) -> list[tf.Operation]:
        """The operations of an iteration."""
        return self.condition.get_operations() + self.body.get_operations()
