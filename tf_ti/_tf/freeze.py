"""Ops of ours where TensorFlow's functions make constants of variables."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import convert_to_constants

from tf_ti._tf.patches import register_convertible

_Add = Callable[..., str]
_Freeze = Callable[[tf.compat.v1.NodeDef, int, np.ndarray, _Add], bool]
_Calls = Callable[[tf.compat.v1.NodeDef], Iterable[tuple[str, Sequence[int]]]]


class _Freezable(convert_to_constants._FunctionCaller):
    """An op, as TensorFlow's functions that make constants of variables see it."""

    def __init__(
        self,
        node: tf.compat.v1.NodeDef,
        function: convert_to_constants._Function | None,
        graph: Any,
        freeze: _Freeze,
        calls: _Calls,
    ):
        attributes = node.attr.items()
        callers = [name for name, value in attributes if value.HasField("func") or value.list.func]
        super().__init__(node, function, graph, 0, "", callers)
        self.freeze, self.calls = freeze, calls

    def create_edges(self) -> None:
        convert_to_constants._Node.create_edges(self)
        for name, inputs in self.calls(self.node):
            function = self._enclosing_graph.functions[name]
            for position, index in enumerate(inputs):
                source = convert_to_constants._EndPoint(self, index)
                destination = convert_to_constants._EndPoint(function, position)
                self.add_outgoing_edge(convert_to_constants._Edge(source, destination))

    def converted_self(self) -> convert_to_constants._Node:
        self._converted_self = None  # to learn the names that its functions have by now
        return super().converted_self()

    def convert_variable_to_constant(
        self, incoming_edge: convert_to_constants._Edge, tensor_data: Any
    ) -> None:
        index, converted = incoming_edge.destination.index, self.converted_self()
        add = functools.partial(_add_before, converted)
        if not self.freeze(converted.node, index, tensor_data.numpy, add):
            return
        for edge in self.outgoing_edges:
            function = edge.destination.convertible
            if edge.source.index == index and isinstance(function, convert_to_constants._Function):
                function.convert_variable_to_constant(edge, tensor_data)
        self.converted_self()


def _add_before(
    node: convert_to_constants._Node, op_type: str, source: str, **attributes: Any
) -> str:
    """Adds a node of one input to the graph or the function of another; the name of its output."""
    is_graph = isinstance(node.container, tf.compat.v1.GraphDef)
    added = (node.container.node if is_graph else node.container.node_def).add()
    added.name, added.op = f"{node.node.name}/{op_type}", op_type
    added.input.append(source)
    for name, value in attributes.items():
        if isinstance(value, tf.DType):
            added.attr[name].type = value.as_datatype_enum
        else:
            added.attr[name].i = value
    return added.name if is_graph else f"{added.name}:output:0"


def register_freezing(op_type: str, freeze: _Freeze, calls: _Calls = lambda node: ()) -> None:
    """Says how a node of an op changes where constants are made of variables.

    Args:
        op_type: the op.
        freeze: freeze(node, index, value, add) changes a NodeDef whose input `index` has become a
            constant, and returns true if that was a variable. add(op_type, input, **attributes)
            adds a node of one input, whose output is called "output", and returns its output.
        calls: calls(node) -> the functions that the op calls: for each its name, and the positions
            of the inputs that are its arguments.
    """
    make = functools.partial(_Freezable, freeze=freeze, calls=calls)
    register_convertible(op_type, make)
