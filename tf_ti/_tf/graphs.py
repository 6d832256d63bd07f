"""The parts of TensorFlow that its public API does not offer, in one place."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.core.function import trace_type
from tensorflow.core.function.polymorphism import function_type as function_type_lib
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.distribute import distribute_lib, ps_values, values, values_util
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tensorflow.python.eager import (
    backprop,
    context,
    execute,
    forwardprop,
    forwardprop_util,
    record as tape_lib,
)
from tensorflow.python.eager.polymorphic_function import (
    atomic_function,
    autograph_util,
    concrete_function,
)
from tensorflow.python.framework import (
    auto_control_deps,
    auto_control_deps_utils,
    convert_to_constants,
    func_graph,
    kernels,
    op_def_registry,
    ops,
)
from tensorflow.python.framework.composite_tensor import CompositeTensor
from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.framework.type_spec import BatchableTypeSpec
from tensorflow.python.ops import control_flow_util_v2
from tensorflow.python.ops.handle_data_util import copy_handle_data, get_resource_handle_data
from tensorflow.python.ops.parallel_for import pfor as pfor_lib
from tensorflow.python.ops.parallel_for.pfor import (
    ConversionNotImplementedError as NotVectorized,
    wrap,
)
from tensorflow.python.ops.resource_variable_ops import variable_accessed, variable_shape
from tensorflow.python.types.core import Tensor as TensorLike
from tensorflow.python.util import nest_util

__all__ = [
    "wrap",
    "register_pfor",
    "make_pfor",
    "pfor_converter",
    "have_tangents",
    "in_update",
    "inside_jvp",
    "is_dead",
    "is_distributed",
    "is_list",
    "is_opaque",
    "function_graph",
    "convert_lane_by_lane",
    "NotVectorized",
    "BatchableTypeSpec",
    "CompositeTensor",
    "EagerTensor",
    "FuncGraph",
    "READS",
    "ShardedVariable",
    "TensorLike",
    "add_operation",
    "captured",
    "dismantle",
    "repeat_operation",
    "copy_handle_data",
    "current_device",
    "depends_on_inputs",
    "device_of_call",
    "do_not_convert",
    "find_function",
    "find_gradient",
    "forget_captures",
    "has_gpu",
    "loaded_function_graph",
    "is_recording",
    "is_stateful",
    "is_trainable",
    "keep_on_host",
    "make_concrete_function",
    "make_function",
    "mark_constant_inputs",
    "nest_items",
    "nest_like",
    "other_function",
    "record",
    "register_freezing",
    "register_gradient",
    "register_jvp",
    "register_reads",
    "registered_kernels",
    "renamed_function",
    "replace_functions",
    "set_functions",
    "set_gradient",
    "stop_recording",
    "trace",
    "unwrap_variable",
    "use_function",
    "user_code",
    "variable_accessed",
    "variable_shape",
    "wait_for_no_dead",
    "without_graphs",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def do_not_convert(function: _Function) -> _Function:
    """As tf.autograph.experimental.do_not_convert; type checkers see the function's signature."""
    return tf.autograph.experimental.do_not_convert(function)


def user_code():
    """Inside, AutoGraph converts what it does in a user's program: functions that tf.data maps."""
    return ag_ctx.ControlStatusCtx(ag_ctx.Status.UNSPECIFIED)


def nest_items(container: Any) -> list[tuple[int | str, Any]]:
    """What tf.nest takes a container apart into: parts, with their positions, keys or names."""
    return list(nest_util.yield_sorted_items(nest_util.Modality.CORE, container))


def nest_like(container: Any, parts: Sequence[Any]) -> Any:
    """A container of the same kind around other parts, as tf.nest makes it."""
    return nest_util.sequence_like(container, parts)


# Operations that are stateful, but change nothing.
READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}


def register_reads(*op_types: str) -> None:
    """Makes ops of ours some of READS, and reads of one variable wait for no other."""
    for op_type in op_types:
        READS.add(op_type)
        auto_control_deps_utils.register_read_only_resource_op(op_type)


def is_dead(op: tf.Operation) -> bool:
    """Whether nothing has use for an op's outputs, up to now."""
    return not any(output.consumers() for output in op.outputs)


def wait_for_no_dead(op_type: str) -> None:
    """Lets no write of a variable wait for dead reads by ops of the type, nor keep them."""

    def forget_dead_reads(op, reads, writes):
        if op.type != op_type or not is_dead(op) or op.outputs[0] in reads:
            return False
        # Something nobody writes: ops that read nothing are ordered among themselves.
        reads.clear()
        reads.add(op.outputs[0])
        return True

    # As register_acd_resource_resolver, also where tf_ti is imported anew.
    resolvers = auto_control_deps._acd_resource_resolvers_registry
    name = f"forget_dead_reads of {op_type}"
    resolvers._registry.pop(name, None)
    resolvers.register(forget_dead_reads, name)


def is_recording() -> bool:
    """Whether a GradientTape or a ForwardAccumulator may record what runs now."""
    return tape_lib.could_possibly_record()


# Nothing that runs inside is recorded.
stop_recording = tape_lib.stop_recording


def have_tangents(tensors: Sequence[tf.Tensor]) -> bool:
    """Whether a ForwardAccumulator follows one of these."""
    return bool(forwardprop_util.pack_tangents(list(tensors)).tangents)


def register_gradient(op_type: str):
    """As tf.RegisterGradient, also where tf_ti is imported anew into a process that had it."""
    ops.gradient_registry._registry.pop(op_type, None)
    return tf.RegisterGradient(op_type)


def find_gradient(op: tf.Operation) -> Callable | None:
    """The gradient function that is registered for an operation with one of its own."""
    try:
        return ops.gradient_registry.lookup(op.get_attr("_gradient_op_type").decode())
    except LookupError:
        return None


def set_gradient(op: tf.Operation, name: str) -> None:
    """Gives one operation the gradient that is registered under a name."""
    op._set_attr("_gradient_op_type", attr_value_pb2.AttrValue(s=name.encode()))


def register_jvp(op_type: str, function: Callable) -> None:
    """Says how an op takes tangents forward: function(op, tangents) -> a tangent of each output.

    TensorFlow's way, by two tapes, ends where a gradient is a tf.IndexedSlices.
    """

    def jvp(attributes, inputs, outputs, tangents):
        return function(backprop._MockOp(attributes, inputs, outputs, op_type, []), tangents)

    forwardprop._SPECIAL_CASES[op_type] = jvp


def record(name: str, inputs, outputs, gradient: Callable, jvp: Callable) -> None:
    """Shows tapes and accumulators what was computed while they did not look.

    Args:
        name: what it is called.
        inputs, outputs: tensors.
        gradient: from the gradients of the outputs to those of the inputs.
        jvp: from the tangents of the inputs to those of the outputs.
    """
    tape_lib.record_operation(name, outputs, inputs, gradient, jvp)


# Inside, tapes work though an accumulator does, which asks for a tangent.
inside_jvp = forwardprop_util.push_forwardprop_state


def captured(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The tensors as the current graph knows them."""
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or not isinstance(graph, func_graph.FuncGraph):
        return list(tensors)
    return [graph.capture(tensor) for tensor in tensors]


class _Freezable(convert_to_constants._FunctionCaller):
    """An op of ours, as TensorFlow's functions that make constants of variables see it."""

    def __init__(self, node, function, graph):
        attributes = node.attr.items()
        callers = [name for name, value in attributes if value.HasField("func") or value.list.func]
        super().__init__(node, function, graph, 0, "", callers)
        self._freeze, self._calls = _freezing[node.op]

    def create_edges(self):
        convert_to_constants._Node.create_edges(self)
        for name, inputs in self._calls(self.node):
            function = self._enclosing_graph.functions[name]
            for position, index in enumerate(inputs):
                source = convert_to_constants._EndPoint(self, index)
                destination = convert_to_constants._EndPoint(function, position)
                self.add_outgoing_edge(convert_to_constants._Edge(source, destination))

    def converted_self(self):
        self._converted_self = None  # to learn the names that its functions have by now
        return super().converted_self()

    def convert_variable_to_constant(self, incoming_edge, tensor_data):
        index = incoming_edge.destination.index
        if not self._freeze(self.converted_self().node, index, tensor_data.numpy):
            return
        for edge in self.outgoing_edges:
            function = edge.destination.convertible
            if edge.source.index == index and isinstance(function, convert_to_constants._Function):
                function.convert_variable_to_constant(edge, tensor_data)
        self.converted_self()


_freezing: dict[str, tuple[Callable, Callable]] = {}
# TensorFlow has a chain of ifs there. tf_ti may be imported anew into a process that had it.
_new_node = convert_to_constants._Node.new
_new_node = getattr(_new_node, "tf_ti_replaces", _new_node)


def _new_freezable(node, function, enclosing_graph):
    new = _Freezable if node.op in _freezing else _new_node
    return new(node, function, enclosing_graph)


_new_freezable.tf_ti_replaces = _new_node
convert_to_constants._Node.new = staticmethod(_new_freezable)


def register_freezing(op_type: str, freeze: Callable, calls: Callable = lambda node: ()) -> None:
    """Says what an op becomes where constants are made of variables.

    Args:
        op_type: the op.
        freeze: freeze(node, index, value) changes a NodeDef whose input `index` has become a
            constant, and returns whether it was a variable.
        calls: calls(node) -> the functions that the op calls: for each its name, and which inputs
            feed its parameters.
    """
    _freezing[op_type] = freeze, calls


def unwrap_variable(variable):
    """The variable of TensorFlow behind one of Keras; everything else as it is."""
    value = getattr(variable, "value", None)
    return value if isinstance(value, (tf.Tensor, tf.Variable)) else variable


def is_distributed(variable: Any) -> bool:
    """Whether it is a variable of which tf.distribute says what an update of it changes."""
    return isinstance(variable, (values.DistributedVariable, ps_values.AggregatingVariable))


def in_update() -> bool:
    """Whether one copy of each variable is meant: in a strategy's update, and for a saved model."""
    # The default strategy, which has no copies, knows no other's.
    is_in_update = (
        tf.distribute.has_strategy() and distribute_lib.get_update_replica_id() is not None
    )
    return is_in_update or values_util.is_saving_non_distributed()


def is_trainable(dtype: tf.DType) -> bool:
    return dtype.is_floating or dtype.is_complex


def is_list(tensor: tf.Tensor) -> bool:
    """Whether it is a variant that is known to hold a list of tensors that have gradients."""
    if tensor.dtype != tf.variant:
        return False
    data = get_resource_handle_data(tensor)
    return data.is_set and all(is_trainable(tf.as_dtype(t.dtype)) for t in data.shape_and_type)


def is_stateful(op: tf.Operation) -> bool:
    return op._is_stateful


class FuncGraph(func_graph.FuncGraph):
    """The graph of a function, of which operations may be left out of the function."""

    def __init__(self, name: str):
        super().__init__(name)
        self.left_out: set[tf.Operation] = set()
        self.runs_here = False  # and is part of no saved model

    def get_operations(self) -> list[tf.Operation]:
        operations = super().get_operations()
        return [op for op in operations if op not in self.left_out] if self.left_out else operations


def trace(
    name: str,
    function: Callable,
    arguments: Sequence[Any],
    convert: Callable | None = None,
    arrange: Callable | None = None,
) -> FuncGraph:
    """The graph of what a Python function computes, as tf.function traces it.

    Args:
        name: the graph's name.
        function: the function.
        arguments: its arguments: nested structures of tf.TensorSpecs.
        convert: makes tensors of what the function returns. With it the function is the user's, for
            AutoGraph to convert.
        arrange: makes the user's arguments of those that are given.
    """
    status = ag_ctx.Status.DISABLED
    call = function
    if convert is not None:
        status = ag_ctx.Status.ENABLED
        converted = autograph_util.py_func_from_autograph(function)

        def call(*placeholders):
            given = placeholders if arrange is None else arrange(placeholders)
            return convert(converted(*given))

    with ag_ctx.ControlStatusCtx(status):
        return func_graph.func_graph_from_py_func(
            name, call, arguments, {}, func_graph=FuncGraph(name)
        )


def forget_captures(graph: FuncGraph) -> None:
    """Lets go of what a graph captured, for a graph that needs its placeholders only."""
    graph._function_captures.clear()
    _ = graph.captures  # which a cache keeps until it is asked again


def other_function(tensor: tf.Tensor) -> func_graph.FuncGraph | None:
    """The function's graph that a tensor is of, where that is not the current one.

    A gradient that refers to such a tensor makes it an output of the function.
    """
    graph = tensor.graph if tf.is_symbolic_tensor(tensor) else None
    is_other = type(graph) is func_graph.FuncGraph and graph is not ops.get_default_graph()
    return graph if is_other else None


def depends_on_inputs(graph: func_graph.FuncGraph, tensor: tf.Tensor) -> bool:
    """Whether a tensor of a function is computed of what the function gets."""
    given = {parameter.op for parameter in graph.inputs}
    seen, stack = set(), [tensor.op]
    while stack:
        op = stack.pop()
        if op in given:
            return True
        if op not in seen:
            seen.add(op)
            stack.extend(t.op for t in op.inputs)
    return False


def current_device() -> str:
    """The device that a `with tf.device` around the call asks for, or ""."""
    if tf.executing_eagerly():
        return context.context().device_name or ""
    return tf.no_op().device


def device_of_call() -> str:
    """The device that a `with tf.device` around all functions being traced asks for, or ""."""
    return context.context().device_name or ""


def has_gpu() -> bool:
    """Whether operations may run on a GPU; asking does not start the runtime."""
    current = context.context()
    if current._initialized:
        return current.num_gpus() > 0
    return bool(tf.config.get_visible_devices("GPU"))


def make_concrete_function(name: str, add: Callable, specs: Sequence[tf.TensorSpec]) -> Callable:
    """What `add` adds to a graph as a function of tensors, which tapes see as one operation.

    It is a tf.function of one trace, whose operations ask for the device that is asked for here: so
    its gradient, which is called elsewhere, knows where they are.
    """
    device = current_device()

    def add_on_device(*arguments):
        tf.compat.v1.get_default_graph().runs_here = True
        with tf.device(device):
            return add(*arguments)

    graph = trace(name, add_on_device, specs)
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


def without_graphs(function: atomic_function.AtomicFunction) -> atomic_function.AtomicFunction:
    """The same function, and what it calls, for the runtime and for saved models alone.

    Who looks at what a graph and its functions do sees them empty.
    """

    def emptied(original, children):
        return atomic_function.AtomicFunction(
            original.name,
            original._bound_context,
            original.function_type,
            children,
            original.call_options,
            FuncGraph(f"{original.name}_elsewhere"),
        )

    return emptied(function, [emptied(child, None) for child in function.children])


class _Dismantling:
    """Takes a graph apart when nobody needs this object any more."""

    def __init__(self, graph: FuncGraph):
        self._graph = graph

    def __del__(self):
        dismantle(self._graph)


# Lets go of all that a graph refers to, itself too.
dismantle = func_graph.dismantle_func_graph


def repeat_operation(op: tf.Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Adds an operation like `op` to the current graph, where tapes see it as that of a user."""
    return _add_operation(
        op.op_def,
        inputs,
        [t.dtype for t in op.outputs],
        {key: attr for key, attr in op.node_def.attr.items() if not key.startswith("_")},
        op.name.rsplit("/", 1)[-1],
    )


def add_operation(
    op_type: str, inputs: Sequence[tf.Tensor], dtypes: Sequence[tf.DType], **attrs: Any
) -> list[tf.Tensor]:
    """As tf.raw_ops, of which most of the time goes into looking at arguments.

    Args:
        op_type, inputs: what it is.
        dtypes: those of its outputs.
        attrs: all that have no default, of those kinds that are in use here.
    """
    values = {}
    for name, attr in attrs.items():
        values[name] = value = attr_value_pb2.AttrValue()
        if isinstance(attr, bool):
            value.b = attr
        elif isinstance(attr, int):
            value.i = attr
        elif isinstance(attr, tf.DType):
            value.type = attr.as_datatype_enum
        else:
            value.shape.CopyFrom(attr.as_proto())
    return _add_operation(op_def_registry.get(op_type), inputs, dtypes, values, None)


def _add_operation(op_def, inputs, dtypes, attrs, name) -> list[tf.Tensor]:
    op = tf.compat.v1.get_default_graph()._create_op_internal(
        op_def.name, list(inputs), list(dtypes), name=name, attrs=attrs, op_def=op_def
    )
    if execute.must_record_gradient():
        attrs = [part for attr in op_def.attr for part in (attr.name, op.get_attr(attr.name))]
        execute.record_gradient(op.type, list(op.inputs), tuple(attrs), list(op.outputs))
    return list(op.outputs)


def use_function(function) -> str:
    """The function's name, for an attribute; the current graph learns to know the function."""
    if not tf.executing_eagerly():
        tf.compat.v1.get_default_graph()._add_function_recursive(function)
    return function.name.decode() if isinstance(function.name, bytes) else function.name


def set_functions(op: tf.Operation, name: str, functions: Sequence[Any]) -> None:
    """Sets an attribute, a list of functions, of an operation in a graph."""
    value = attr_value_pb2.AttrValue()
    for function in functions:
        value.list.func.add().name = use_function(function)
    op._set_attr(name, value)


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


def replace_functions(op: tf.Operation, replace: Callable[[str], str]) -> None:
    """Lets an operation refer to other functions: replace(name) -> the name of another, or it."""
    for key, value in op.node_def.attr.items():
        if value.func.name:
            op._set_func_attr(key, replace(value.func.name))
        elif value.list.func:
            op._set_func_list_attr(key, [replace(function.name) for function in value.list.func])


def function_graph(op: tf.Operation, name: str, input_shapes) -> FuncGraph:
    """The graph of the function `name`, to which `op` refers."""
    function = find_function(op.graph, name)
    return getattr(function, "graph", None) or loaded_function_graph(op, name, input_shapes)


def loaded_function_graph(op: tf.Operation, name: str, input_shapes) -> FuncGraph:
    """A fresh graph of the function `name`, which `op` refers to, from its definition."""
    return control_flow_util_v2.get_func_graph(op, input_shapes, name)


def register_pfor(op_type: str):
    """Says how tf.vectorized_map and jacobians vectorise an op."""

    def register(converter):
        pfor_lib._pfor_converter_registry.pop(op_type, None)
        return pfor_lib.RegisterPFor(op_type)(converter)

    return register


def pfor_converter(op_type: str):
    """How TensorFlow itself vectorises an op."""
    converter = pfor_lib._pfor_converter_registry[op_type]
    return getattr(converter, "tf_ti_usual", converter)


def make_pfor(outer: pfor_lib.PFor, graph: FuncGraph, lanes: tf.Tensor | int) -> pfor_lib.PFor:
    """Vectorises what a function computes, for a function that `outer` comes across.

    Args:
        outer: what vectorises the caller.
        graph: the function's.
        lanes: the lanes that run it, or how many there are.
    """
    is_known = isinstance(lanes, int)
    return pfor_lib.PFor(
        outer.loop_var,
        lanes if is_known else tf.size(lanes),
        graph.get_operations(),
        outer.fallback_to_while_loop,
        None if is_known else lanes,
        outer.all_indices_partitioned,
        outer.pfor_config,
        outer._warn,
    )


def convert_lane_by_lane(pfor_input, cause: Exception | str):
    """Runs an op in a tf.while_loop, where it cannot be vectorised."""
    pfor = pfor_input.pfor
    if not pfor.fallback_to_while_loop:
        raise ValueError(f"{pfor_input.op_type} {pfor_input.op.name!r} is not vectorised: {cause}")
    return pfor_lib._fallback_converter(pfor_input, str(cause), pfor._warn)


def is_opaque(tensor: tf.Tensor) -> bool:
    """Whether it is a variant of which TensorFlow does not know what it holds, as it does of its
    own lists."""
    return tensor.dtype == tf.variant and not get_resource_handle_data(tensor).is_set
