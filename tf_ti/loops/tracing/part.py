"""Functions as parts of larger graphs: a graph of their own is made on demand."""

import dataclasses
import functools
import types
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.tracing import graphs as _graphs


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """What a function computes, told by a graph that has more operations.

    Attributes:
        graph: the graph, whose effects the function has.
        parameters: for each parameter, the tensors of the graph for which it stands.
        results: tensors of the graph.
        shapes: shapes of the first parameters, which may know more than the tensors.
    """

    graph: _tf.FuncGraph
    parameters: Sequence[Sequence[tf.Tensor]]
    results: Sequence[tf.Tensor]
    shapes: Sequence[tf.TensorShape] = ()

    @classmethod
    def whole(cls, graph: _tf.FuncGraph) -> "Part":
        """All of a function's graph."""
        part = cls(graph, [[t] for t in graph.inputs], tuple(graph.outputs))
        part.__dict__["function_graph"] = graph
        return part

    @property
    def graphs(self) -> set[_tf.FuncGraph]:
        """The graph, and the function's own graph if it is there."""
        return {self.graph, self.__dict__.get("function_graph", self.graph)}

    @functools.cached_property
    def operations(self) -> list[tf.Operation]:
        """The operations of the graph that the function has, in an order in which they may run."""
        given = [tensor for group in self.parameters for tensor in group]
        return _graphs.needed_operations(given, self.results, self.graph.control_outputs)

    def reads(self, tensors: Sequence[tf.Tensor]) -> bool:
        """True if a result is one of these tensors, or an operation reads one."""
        return not self._read.isdisjoint(t.ref() for t in tensors)

    @functools.cached_property
    def _read(self) -> set[Any]:
        read = {t.ref() for op in self.operations for t in _graphs.reads(op)}
        return read.union(t.ref() for t in self.results)

    def copied(self, others: _graphs.Others = types.MappingProxyType({})) -> _tf.FuncGraph:
        """A graph of the function; `others` add other operations for some."""
        made = _graphs.extract(
            "body",
            self.graph,
            self.parameters,
            self.results,
            self.graph.control_outputs,
            outer_graph=self.graph.outer_graph,
            others=others,
        )
        for parameter, shape in zip(made.inputs, self.shapes):
            parameter.set_shape(shape)
        return made

    @functools.cached_property
    def function_graph(self) -> _tf.FuncGraph:
        """The graph of the function, which nobody changes."""
        return self.copied()
