"""Functions that the runtime knows: made from graphs, found by name, referred to by operations."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.function import trace_type
from tensorflow.core.function.polymorphism import function_type as function_type_lib
from tensorflow.python.eager import cancellation, context, execute
from tensorflow.python.eager.polymorphic_function import (
    atomic_function,
    concrete_function,
    function_type_utils,
)
from tensorflow.python.ops import control_flow_util_v2

from tf_ti._tf.devices import current_device
from tf_ti._tf.gradients import have_tangents, is_recording
from tf_ti._tf.graphs import FuncGraph, dismantle, trace
from tf_ti._tf.operations import is_stateful
from tf_ti._tf.variables import READS

# An attribute, where an op runs another body than derivatives are of: the name of that.
DIFFERENTIATED = "_tf_ti_differentiated"


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
        self.graph = graph

    def __del__(self) -> None:
        dismantle(self.graph)


def make_concrete_function(
    name: str, add: Callable[..., Any], specs: Sequence[tf.TensorSpec]
) -> Callable[..., Any]:
    """A function of tensors that is `add` in a graph, and one operation for tapes.

    It is a tf.function of one trace, whose operations ask for the device that is asked for here: so
    its gradient, which is called elsewhere, knows where they are.
    """
    device = current_device()

    def add_on_device(*arguments: tf.Tensor) -> Any:
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


class CheapCall:
    """Calls of a function of tensors that `make_concrete_function` made, which checks nothing.

    Where no tape works, and the graph has neither effects nor other functions than loops, the
    caller's thread runs it, if there is but one device: a thread of the pool would have to wake up
    first.

    Attributes:
        function, captured: the function, and the tensors that it captured.
        is_alone: true if the caller's thread may run it.
        count: the number of its results.
    """

    def __init__(self, function: concrete_function.ConcreteFunction, loops: Collection[str]):
        self.function, graph = function, function.graph
        self.captured = list(function.captured_inputs)
        operations = graph.get_operations()
        self.is_alone = not (
            graph.function_captures.control
            or len(tf.config.list_logical_devices()) > 1
            or any(t.dtype in (tf.resource, tf.variant) for t in graph.outputs)
            or any(is_stateful(op) and op.type not in READS for op in operations)
            or any(_has_functions(op) and op.type not in loops for op in operations)
        )
        self.count = len(graph.outputs)

    def has_tangents(self, tensors: Sequence[tf.Tensor]) -> bool:
        """True if a ForwardAccumulator follows one of these, or of what the function captured."""
        return is_recording() and have_tangents([*tensors, *self.captured])

    def __call__(self, tensors: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        current = context.context()
        options = current.function_call_options
        is_usual = not options.executor_type and options.config_proto_serialized is not None
        if not (self.is_alone and is_usual) or is_recording():
            return self.function._call_flat(tensors, self.captured)
        function = self.function.inference_fn
        executor = ("executor_type", "SINGLE_THREADED_EXECUTOR")
        attributes = (*executor, "config_proto", options.config_proto_serialized)
        with atomic_function.InterpolateRuntimeError(function):
            call = (function.name, self.count, [*tensors, *self.captured], attributes, current)
            manager = cancellation.context()
            if manager is not None:
                return execute.execute_with_cancellation(*call, manager)
            return execute.execute(*call)


def _has_functions(op: tf.Operation) -> bool:
    return any(value.func.name or value.list.func for value in op.node_def.attr.values())


def without_graphs(function: atomic_function.AtomicFunction) -> atomic_function.AtomicFunction:
    """The same function, and what it calls, for the runtime and for saved models alone.

    Who looks at what a graph and its functions do sees them empty.
    """

    def emptied(
        original: atomic_function.AtomicFunction,
        children: Sequence[atomic_function.AtomicFunction] | None,
    ) -> atomic_function.AtomicFunction:
        return atomic_function.AtomicFunction(
            original.name,
            original._bound_context,
            original.function_type,
            children,
            original.call_options,
            FuncGraph(f"{original.name}_elsewhere"),
        )

    return emptied(function, [emptied(child, None) for child in function.children])


def with_python_function(function: Any, python_function: Callable[..., Any]) -> Any:
    """A tf.function with the options of another one, and no traces yet."""
    return function._clone(python_function)


def find_function(graph: tf.Graph, name: str) -> Any:
    """The function `name` as `graph` or a graph around it knows it, or None."""
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return function
        graph = getattr(graph, "outer_graph", None)
    return None


def call_flat(function: atomic_function.AtomicFunction, inputs: Sequence[tf.Tensor]) -> Any:
    """Calls a function with all inputs of its graph; captured tensors are inputs, too."""
    return function.call_flat(*inputs)


def graph_of(function: Any) -> FuncGraph | None:
    """The graph from which a function was made; None if it is known by its definition alone.

    That of a renamed function is the original's.
    """
    return getattr(function, "_cached_graph", None)


def implementation(graph: tf.Graph, function: Any, device_type: str) -> Any:
    """The function that Grappler chooses for calls of one, as it has the same API, or itself.

    Several functions may implement an API, each for a device. Grappler chooses among them for the
    calls in a graph, but not in the functions that operations such as loops run.
    """
    name = _api(function)
    while name and graph is not None:
        for other in graph._functions.values():
            prefers = getattr(other, "cached_definition", None)
            if prefers is not None and _api(other) == name:
                if prefers.attr["api_preferred_device"].s.decode() == device_type:
                    return other
        graph = getattr(graph, "outer_graph", None)
    return function


def _api(function: Any) -> bytes:
    """The name of the API that a function implements, or b""."""
    attr = function.cached_definition.attr
    return attr["api_implements"].s if "api_implements" in attr else b""


def graphs_of_functions(graph: tf.Graph) -> list[FuncGraph]:
    """The graphs of the traced functions that a graph knows."""
    graphs = map(graph_of, graph._functions.values())
    return [found for found in graphs if found is not None]


def body_of(op: tf.Operation) -> str:
    """The name of a loop op's body, as it was traced."""
    attrs = op.node_def.attr
    return attrs[DIFFERENTIATED if DIFFERENTIATED in attrs else "body"].func.name


def function_graph(
    op: tf.Operation, name: str, input_shapes: Sequence[tf.TensorShape] | None
) -> FuncGraph:
    """The graph of the function `name`, to which `op` refers."""
    function = find_function(op.graph, name)
    return getattr(function, "graph", None) or loaded_function_graph(op, name, input_shapes)


def loaded_function_graph(
    op: tf.Operation, name: str, input_shapes: Sequence[tf.TensorShape] | None
) -> FuncGraph:
    """A fresh graph of the function `name`, which `op` refers to, from its definition.

    It knows the functions that its operations refer to, and the types of their results, as those
    of a traced graph do: TensorFlow vectorises conditionals and loops by these.
    """
    graph = control_flow_util_v2.get_func_graph(op, input_shapes, name)
    for inner in graph.get_operations():
        for value in inner.node_def.attr.values():
            for called in [value.func] if value.func.name else value.list.func:
                function = find_function(op.graph, called.name)
                if function is not None:
                    graph._add_function_recursive(_with_types(function, inner), overwrite=True)
    return graph


def _with_types(function: Any, op: tf.Operation) -> Any:
    """The function, to which `op` refers, with the types of its results.

    TensorFlow knows none of a function that it loaded.
    """
    results = function.cached_definition.signature.output_arg
    if len(function.function_type.flat_outputs) == len(results):
        return function
    graph = loaded_function_graph(op, function.cached_definition.signature.name, None)
    return atomic_function.AtomicFunction(
        function.name,
        function._bound_context,
        function_type_utils.derive_from_graph(graph),
        list(graph._functions.values()),
        function.call_options,
        graph,
    )


def renamed_function(function: Any, rename: Callable[[str], str], kept: Collection[str]) -> Any:
    """The same function under another name, and with it the functions that get its handles.

    Its definition tells the shapes of its tensors. Otherwise a graph made of it would not know
    the shapes of variables, which come with their handles.

    Args:
        function: the function.
        rename: makes a new name of a name.
        kept: the types of operations whose functions keep their names.
    """
    definition = type(function.cached_definition)()
    definition.CopyFrom(function.cached_definition)
    definition.signature.name = rename(definition.signature.name)
    traced = graph_of(function)
    operations = {} if traced is None else {op.name: op for op in traced.get_operations()}
    children = list(getattr(function, "_children", None) or ())
    by_name = {}
    for child in children:
        signature = child.cached_definition.signature
        if any(argument.type == tf.resource.as_datatype_enum for argument in signature.input_arg):
            by_name[signature.name] = child
    for node in definition.node_def:
        if node.name in operations:
            shapes = [t.shape.as_proto() for t in operations[node.name].outputs]
            node.attr["_output_shapes"].CopyFrom(_list_of_shapes(shapes))
        if node.op in kept:
            continue
        for value in node.attr.values():
            for called in [value.func] if value.func.name else value.list.func:
                if called.name in by_name:
                    child = renamed_function(by_name[called.name], rename, kept)
                    called.name = child.cached_definition.signature.name
                    children += [child, *child.children]
    renamed = atomic_function.from_function_def(definition, function.function_type)
    renamed._children = list(dict.fromkeys(children))
    renamed._cached_graph = traced
    renamed.tf_ti_original = function  # the graph, and custom gradients, live as long
    return renamed


def _list_of_shapes(shapes: Sequence[Any]) -> Any:
    value = tf.compat.v1.AttrValue()
    value.list.shape.extend(shapes)
    return value


def add_function(graph: tf.Graph, function: Any) -> None:
    """Lets operations of a graph refer to a function, and to those that it calls."""
    graph._add_function_recursive(function)


def use_function(function: Any) -> str:
    """The function's name, for an attribute; the current graph learns to know the function."""
    if not tf.executing_eagerly():
        add_function(tf.compat.v1.get_default_graph(), function)
    return function.name.decode() if isinstance(function.name, bytes) else function.name


def set_function(op: tf.Operation, name: str, function: str) -> None:
    """Sets an attribute of an operation in a graph: the name of a function that the graph knows."""
    op._set_func_attr(name, function)


def set_functions(op: tf.Operation, name: str, functions: Sequence[Any]) -> None:
    """Sets an attribute, a list of functions, of an operation in a graph."""
    value = tf.compat.v1.AttrValue()
    for function in functions:
        value.list.func.add().name = use_function(function)
    op._set_attr(name, value)


def replace_functions(op: tf.Operation, replace: Callable[[str], str]) -> None:
    """Lets an operation refer to other functions: replace(name) -> the name of another, or it."""
    for key, value in op.node_def.attr.items():
        if value.func.name:
            op._set_func_attr(key, replace(value.func.name))
        elif value.list.func:
            op._set_func_list_attr(key, [replace(function.name) for function in value.list.func])
