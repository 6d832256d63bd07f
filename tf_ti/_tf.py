"""The parts of TensorFlow that its public API does not offer, in one place."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.core.function import trace_type
from tensorflow.core.function.polymorphism import function_type as function_type_lib
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tensorflow.python.eager import backprop, context, forwardprop, record
from tensorflow.python.eager.polymorphic_function import (
    atomic_function,
    autograph_util,
    concrete_function,
)
from tensorflow.python.framework import (
    auto_control_deps_utils,
    func_graph,
    function_def_to_graph,
    kernels,
    ops,
)
from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.ops import control_flow_util_v2
from tensorflow.python.ops.handle_data_util import copy_handle_data
from tensorflow.python.ops.resource_variable_ops import variable_accessed, variable_shape
from tensorflow.python.types.core import Tensor as TensorLike

__all__ = [
    "EagerTensor",
    "FuncGraph",
    "READS",
    "ShardedVariable",
    "TensorLike",
    "copy_handle_data",
    "find_function",
    "forget_captures",
    "loaded_function_graph",
    "is_recording",
    "is_stateful",
    "is_trainable",
    "keep_on_host",
    "make_concrete_function",
    "make_function",
    "mark_constant_inputs",
    "register_gradient",
    "register_jvp",
    "register_reads",
    "registered_kernels",
    "renamed_function",
    "stop_recording",
    "trace",
    "unwrap_variable",
    "use_function",
    "variable_accessed",
    "variable_shape",
]


# Operations that are stateful, but change nothing.
READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}


def register_reads(*op_types: str) -> None:
    """Makes ops of ours some of READS, and reads of one variable wait for no other."""
    for op_type in op_types:
        READS.add(op_type)
        auto_control_deps_utils.register_read_only_resource_op(op_type)


def is_recording() -> bool:
    """Whether a GradientTape or a ForwardAccumulator may record what runs now."""
    return record.could_possibly_record()


# Nothing that runs inside is recorded.
stop_recording = record.stop_recording


def register_gradient(op_type: str):
    """As tf.RegisterGradient, also where tf_ti is imported anew into a process that had it."""
    ops.gradient_registry._registry.pop(op_type, None)
    return tf.RegisterGradient(op_type)


def register_jvp(op_type: str, function) -> None:
    """Says how an op takes tangents forward: function(op, tangents) -> a tangent of each output.

    TensorFlow's way, by two tapes, ends where a gradient is a tf.IndexedSlices.
    """

    def jvp(attributes, inputs, outputs, tangents):
        return function(backprop._MockOp(attributes, inputs, outputs, op_type, []), tangents)

    forwardprop._SPECIAL_CASES[op_type] = jvp


def unwrap_variable(variable):
    """The variable of TensorFlow behind one of Keras; everything else as it is."""
    value = getattr(variable, "value", None)
    return value if isinstance(value, (tf.Tensor, tf.Variable)) else variable


def is_trainable(dtype: tf.DType) -> bool:
    return dtype.is_floating or dtype.is_complex


def is_stateful(op: tf.Operation) -> bool:
    return op._is_stateful


class FuncGraph(func_graph.FuncGraph):
    """The graph of a function, of which operations may be left out of the function."""

    def __init__(self, name: str):
        super().__init__(name)
        self.left_out: set[tf.Operation] = set()

    def get_operations(self) -> list[tf.Operation]:
        operations = super().get_operations()
        return [op for op in operations if op not in self.left_out] if self.left_out else operations


def trace(
    name: str, function: Callable, arguments: Sequence[Any], convert: Callable | None = None
) -> FuncGraph:
    """The graph of what a Python function computes, as tf.function traces it.

    Args:
        name: the graph's name.
        function: the function.
        arguments: its arguments: nested structures of tf.TensorSpecs.
        convert: makes tensors of what the function returns. With it the function is the user's, for
            AutoGraph to convert.
    """
    status = ag_ctx.Status.DISABLED
    call = function
    if convert is not None:
        status = ag_ctx.Status.ENABLED
        converted = autograph_util.py_func_from_autograph(function)

        def call(*placeholders):
            return convert(converted(*placeholders))

    with ag_ctx.ControlStatusCtx(status):
        return func_graph.func_graph_from_py_func(
            name, call, arguments, {}, func_graph=FuncGraph(name)
        )


def forget_captures(graph: FuncGraph) -> None:
    """Lets go of what a graph captured, for a graph that needs its placeholders only."""
    graph._function_captures.clear()
    _ = graph.captures  # which a cache keeps until it is asked again


def make_concrete_function(name: str, add: Callable, specs: Sequence[tf.TensorSpec]) -> Callable:
    """What `add` adds to a graph as a function of tensors, which tapes see as one operation.

    It is a tf.function of one trace.
    """
    graph = trace(name, add, specs)
    function_type = function_type_lib.from_structured_signature(
        (tuple(specs), {}),
        trace_type.from_value(graph.structured_outputs),
        graph.function_captures.capture_types,
    )
    return concrete_function.ConcreteFunction.from_func_graph(
        graph, function_type, {}, shared_func_graph=False
    )


def registered_kernels():
    """A KernelDef for each kernel that the process has."""
    return kernels.get_all_registered_kernels().kernel


def keep_on_host(op: tf.Operation, inputs, outputs) -> None:
    """Gives and takes these inputs and outputs of an op in the host's memory, on a GPU too."""
    for name, indices in (("_input_hostmem", inputs), ("_output_hostmem", outputs)):
        value = attr_value_pb2.AttrValue()
        value.list.i.extend(indices)
        op._set_attr(name, value)


def make_function(graph: FuncGraph) -> atomic_function.AtomicFunction:
    """A function that the runtime knows, from a graph with its inputs and outputs set.

    The graph, which refers to itself, goes with the function.
    """
    function = atomic_function.from_func_graph(graph.name, graph, {})
    function.tf_ti_dismantling = _Dismantling(graph)
    return function


class _Dismantling:
    """Takes a graph apart when nobody needs this object any more."""

    def __init__(self, graph: FuncGraph):
        self._graph = graph

    def __del__(self):
        func_graph.dismantle_func_graph(self._graph)


def use_function(function) -> str:
    """The function's name, for an attribute; the current graph learns to know the function."""
    if not tf.executing_eagerly():
        tf.compat.v1.get_default_graph()._add_function_recursive(function)
    return function.name.decode() if isinstance(function.name, bytes) else function.name


def mark_constant_inputs(op: tf.Operation, names: list[str]) -> None:
    """Says which inputs of one op XLA must know when it compiles."""
    value = attr_value_pb2.AttrValue()
    value.list.s.extend(name.encode() for name in names)
    op._set_attr("_XlaCompileTimeConstantInputs", value)


def find_function(graph: tf.Graph, name: str):
    """The function `name` as `graph` or a graph around it knows it, or None."""
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return function
        graph = getattr(graph, "outer_graph", None)
    return None


def renamed_function(function, name: str):
    """The same function under another name."""
    definition = type(function.cached_definition)()
    definition.CopyFrom(function.cached_definition)
    definition.signature.name = name
    renamed = atomic_function.from_function_def(definition, function.function_type)
    renamed._children = list(getattr(function, "_children", None) or ())
    return renamed


def loaded_function_graph(op: tf.Operation, name: str, input_shapes) -> FuncGraph:
    """A fresh graph of the function `name`, which `op` refers to, from its definition."""
    if isinstance(op.outputs[0], EagerTensor):
        definition = context.context().get_function_def(name)
        return function_def_to_graph.function_def_to_graph(definition, input_shapes=input_shapes)
    return control_flow_util_v2.get_func_graph(op, input_shapes, name)
