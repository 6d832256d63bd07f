"""All changes of TensorFlow's own objects: entries in its registries, and functions replaced.

Each says why it is there and what breaks without it. Nothing public does the same in TensorFlow
2.17 to 2.21. A process may import tf_ti anew, as tests do: an entry takes the place of the one that
the earlier tf_ti made, and what TensorFlow had before is found behind it.
"""

import weakref
from collections.abc import Callable, Collection, MutableSet, Sequence
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.eager import backprop, forwardprop
from tensorflow.python.framework import (
    auto_control_deps,
    auto_control_deps_utils,
    convert_to_constants,
    ops,
)
from tensorflow.python.ops import control_flow_util_v2, embedding_ops, while_v2
from tensorflow.python.ops.parallel_for import pfor as pfor_lib
from tensorflow.python.saved_model import save

from tf_ti._tf.errors import without_our_frames
from tf_ti._tf.functions import find_function
from tf_ti._tf.graphs import do_not_convert
from tf_ti._tf.lookups import SparseLookup
from tf_ti._tf.operations import is_dead
from tf_ti._tf.variables import READS
from tf_ti._tf.whiles import TracedWhile

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _replaced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of TensorFlow behind one of an earlier tf_ti; every other as it is."""
    return getattr(function, "tf_ti_replaces", function)


def _replacing(replaced: Callable[..., Any], function: Any) -> Any:
    """A function of ours, in which `_replaced` finds that of TensorFlow."""
    function.tf_ti_replaces = replaced
    return function


# --- gradients -----------------------------------------------------------------------------------

# The operations that have gradient functions of their own, by the names of these.
_owners: "weakref.WeakValueDictionary[str, tf.Operation]" = weakref.WeakValueDictionary()


def register_gradient(op_type: str) -> Callable[[_Function], _Function]:
    """As tf.RegisterGradient, which refuses an op that has a gradient from an earlier import."""
    ops.gradient_registry._registry.pop(op_type, None)
    return tf.RegisterGradient(op_type)


def set_gradient(op: tf.Operation, name: str, function: Callable[..., Any]) -> None:
    """Gives one operation a gradient function, under a name that nobody has.

    The registry forgets it when the operation goes. TensorFlow's own entries stay for ever, with
    all that their functions refer to, such as the graph of each call of an eager loop.
    """
    op._set_attr("_gradient_op_type", tf.compat.v1.AttrValue(s=name.encode()))
    _register_while_alive(op, name, function)


def release_gradient(op: tf.Operation) -> None:
    """Lets the registry forget the function of tf.custom_gradient when the operation goes.

    Until then a graph made from the definition of the operation's function finds it by its name.
    """
    name = op.get_attr("_gradient_op_type").decode()
    entry = ops.gradient_registry._registry.get(name)
    if entry is not None and not hasattr(op, "tf_ti_gradient_function"):
        _register_while_alive(op, name, ops.gradient_registry.lookup(name))


def _register_while_alive(op: tf.Operation, name: str, function: Callable[..., Any]) -> None:
    op.tf_ti_gradient_function = function
    _owners[name] = op
    reference = weakref.ref(op)

    @do_not_convert
    def gradient(given: tf.Operation | None, *grads: Any) -> Any:
        # Who saves a function asks without an operation.
        own: Any = reference()
        return own.tf_ti_gradient_function(given or own, *grads)

    register_gradient(name)(gradient)
    weakref.finalize(op, ops.gradient_registry._registry.pop, name, None).atexit = False


def _is_saved(tensor: tf.Tensor, saved: Collection[tf.Graph]) -> bool:
    """True if a tensor, or the tensor that it captures, belongs to a saved graph."""
    while tf.is_symbolic_tensor(tensor) and tensor.graph in saved:
        outside = [outside for outside, inside in tensor.graph.captures if inside is tensor]
        if not outside:
            return True
        (tensor,) = outside
    return not tf.is_symbolic_tensor(tensor)


def _can_be_saved(name: str, saved: Collection[tf.Graph]) -> bool:
    """True if a gradient function refers to tensors of saved graphs alone."""
    op = _owners.get(name)
    if op is None or all(_is_saved(t, saved) for t in op.inputs):
        return True
    function = tf.function(ops.gradient_registry.lookup(name))
    traced = function.get_concrete_function(None, *op.inputs)
    return all(_is_saved(t, saved) for t in traced.captured_inputs)


_usual_trace = _replaced(save._trace_gradient_functions)


def _trace_gradient_functions(graph: tf.Graph, view: Any) -> None:
    saved = {function.graph for function in graph._functions.values() if hasattr(function, "graph")}
    names = {
        op.get_attr("_gradient_op_type").decode()
        for each in saved
        for op in each.get_operations()
        if op.type == "IdentityN" and "_gradient_op_type" in op.node_def.attr
    }
    registry = ops.gradient_registry._registry
    others = [name for name in names if not _can_be_saved(name, saved)]
    hidden = {name: registry.pop(name) for name in others}
    try:
        _usual_trace(graph, view)
    finally:
        registry.update(hidden)


# A saved gradient function refers to tensors of saved functions by their names. TensorFlow finds no
# function of other graphs: it makes graphs of branches and bodies anew, to differentiate them.
# Otherwise functions that take gradients could not be saved with experimental_custom_gradients.
save._trace_gradient_functions = _replacing(_usual_trace, _trace_gradient_functions)

_usual_func_graph = _replaced(control_flow_util_v2.get_func_graph)


def _func_graph(
    op: tf.Operation, input_shapes: Sequence[tf.TensorShape] | None, func_name: str
) -> Any:
    function = find_function(op.graph, func_name)
    if input_shapes is not None and function is not None:
        arguments = function.cached_definition.signature.input_arg
        input_shapes = [
            None if argument.type == tf.resource.as_datatype_enum else shape
            for argument, shape in zip(arguments, input_shapes, strict=True)
        ]
    return _usual_func_graph(op, input_shapes, func_name)


# To differentiate a conditional in a copy of a body, TensorFlow makes graphs of its branches anew,
# and they get the shapes of variables afterwards. Meanwhile tf.gather_nd of a variable would take
# the scalar shape of the handle for the shape of the variable.
control_flow_util_v2.get_func_graph = _replacing(_usual_func_graph, _func_graph)


def register_jvp(op_type: str, function: Callable[..., Any]) -> None:
    """Says how an op takes tangents forward: function(op, tangents) -> a tangent of each output.

    Without it a ForwardAccumulator goes through the gradient's gradient, which raises an error
    where the gradient is a tf.IndexedSlices.
    """

    def jvp(
        attributes: tuple[Any, ...],
        inputs: Sequence[tf.Tensor],
        outputs: Sequence[tf.Tensor],
        tangents: Sequence[tf.Tensor | None],
    ) -> Sequence[tf.Tensor | None]:
        return function(backprop._MockOp(attributes, inputs, outputs, op_type, []), tangents)

    forwardprop._SPECIAL_CASES[op_type] = jvp


# --- vectorisation -------------------------------------------------------------------------------


def register_pfor(op_type: str) -> Callable[[_Function], _Function]:
    """Says how tf.vectorized_map and jacobians vectorise an op of ours.

    Without it they run the op lane by lane, in a tf.while_loop, or raise an error.
    """

    def register(converter: _Function) -> _Function:
        pfor_lib._pfor_converter_registry.pop(op_type, None)
        return pfor_lib.RegisterPFor(op_type)(converter)

    return register


def register_pfor_where(
    applies: Callable[[Any], bool], op_type: str
) -> Callable[[_Function], _Function]:
    """Says how an op of TensorFlow's is vectorised where `applies(pfor_input)`.

    Gradients add up the loops' sequences by AddN, and begin with their ZerosLike. TensorFlow would
    take the first axis of such a variant for the lanes, which lie inside of it.
    """
    usual = _replaced(pfor_lib._pfor_converter_registry[op_type])

    def register(converter: _Function) -> _Function:
        def convert(pfor_input: Any) -> Any:
            return (converter if applies(pfor_input) else usual)(pfor_input)

        register_pfor(op_type)(_replacing(usual, convert))
        return converter

    return register


# --- reads of variables --------------------------------------------------------------------------


def register_reads(*op_types: str) -> None:
    """Makes ops of ours some of READS, and reads of one variable wait for no other.

    Without it a tf.function takes them for writes: they run one after another, and those whose
    results nobody uses run too.
    """
    for op_type in op_types:
        READS.add(op_type)
        auto_control_deps_utils.register_read_only_resource_op(op_type)


def wait_for_no_dead(op_type: str) -> None:
    """Lets no write of a variable wait for dead reads by ops of the type, nor keep them.

    Without it a read that nobody uses still runs, if something writes the variable afterwards.
    """

    def forget_dead_reads(
        op: tf.Operation, reads: MutableSet[tf.Tensor], writes: MutableSet[tf.Tensor]
    ) -> bool:
        if op.type != op_type or not is_dead(op) or op.outputs[0] in reads:
            return False
        # Something nobody writes: ops that read nothing are ordered among themselves.
        reads.clear()
        reads.add(op.outputs[0])
        return True

    # As register_acd_resource_resolver, which takes the function's name and refuses a second one.
    resolvers = auto_control_deps._acd_resource_resolvers_registry
    name = f"forget_dead_reads of {op_type}"
    resolvers._registry.pop(name, None)
    resolvers.register(forget_dead_reads, name)


# --- freezing ------------------------------------------------------------------------------------

_convertibles: dict[str, Callable[..., Any]] = {}
_usual_node = _replaced(convert_to_constants._Node.new)


def register_convertible(op_type: str, make: Callable[..., Any]) -> None:
    """Says as what TensorFlow sees an op of ours while it makes constants of variables.

    Args:
        op_type: the op.
        make: make(node, function, enclosing_graph) -> a `convert_to_constants._Node`.
    """
    _convertibles[op_type] = make


def _new_node(
    node: tf.compat.v1.NodeDef,
    function: convert_to_constants._Function | None,
    enclosing_graph: Any,
) -> convert_to_constants._Node:
    return _convertibles.get(node.op, _usual_node)(node, function, enclosing_graph)


# No registry is there, but a chain of ifs: the function is replaced. Else an op of ours that reads
# a variable would get a constant where it expects a resource.
convert_to_constants._Node.new = staticmethod(_replacing(_usual_node, _new_node))


# --- while loops ---------------------------------------------------------------------------------

_usual_while = _replaced(while_v2._build_while_op)


def replace_whiles(make: Callable[[TracedWhile], Sequence[tf.Tensor] | None]) -> None:
    """Lets a function make the operations of the loops that TensorFlow has traced.

    TensorFlow makes the loops of all functions here: tf.while_loop's, AutoGraph's, of libraries.

    Args:
        make: gives the values that leave the loop; None where TensorFlow is to make its own.
    """

    def make_while(
        loop_vars: Sequence[tf.Tensor],
        cond_graph: Any,
        body_graph: Any,
        output_shapes: Sequence[tf.TensorShape],
        parallel_iterations: int,
        name: str,
        num_original_outputs: int,
    ) -> Sequence[tf.Tensor]:
        with without_our_frames():
            made = make(
                TracedWhile(
                    loop_vars, cond_graph, body_graph, output_shapes, parallel_iterations, name
                )
            )
        if made is not None:
            return made
        return _usual_while(
            loop_vars,
            cond_graph,
            body_graph,
            output_shapes,
            parallel_iterations,
            name,
            num_original_outputs,
        )

    while_v2._build_while_op = _replacing(_usual_while, make_while)


# --- look-ups of embeddings ----------------------------------------------------------------------

_usual_lookup = _replaced(embedding_ops.embedding_lookup_sparse_impl)


def replace_lookups(make: Callable[[SparseLookup], tf.Tensor | None]) -> None:
    """Lets a function make the look-ups of tf.nn.embedding_lookup_sparse and its safe sister.

    Args:
        make: gives the rows of the bags; None where TensorFlow is to look them up.
    """

    def look_up(
        params: Sequence[Any],
        segment_ids: tf.Tensor,
        sp_weights: Any,
        ids: tf.Tensor,
        combiner: str,
        ignore_weights: bool,
        max_norm: float | None,
        allow_fast_lookup: bool,
        partition_strategy: str,
        name: str | None,
    ) -> tf.Tensor:
        weights = None if ignore_weights else sp_weights.values
        with without_our_frames():
            made = make(
                SparseLookup(
                    params, ids, segment_ids, weights, combiner, max_norm, partition_strategy, name
                )
            )
        if made is not None:
            return made
        return _usual_lookup(
            params,
            segment_ids,
            sp_weights,
            ids,
            combiner,
            ignore_weights,
            max_norm,
            allow_fast_lookup,
            partition_strategy,
            name,
        )

    embedding_ops.embedding_lookup_sparse_impl = _replacing(_usual_lookup, look_up)
