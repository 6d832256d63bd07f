"""Operations of graphs: created, copied, rewired and marked."""

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session as c_api
from tensorflow.python.eager import backprop, execute
from tensorflow.python.framework import (
    auto_control_deps,
    auto_control_deps_utils,
    c_api_util,
    op_def_registry,
    ops,
)
from tensorflow.python.ops import handle_data_util
from tensorflow.python.types import core
from tensorflow.python.util import tf_stack

EagerTensor: TypeAlias = ops.EagerTensor
# A tensor, eager or of a graph.
TensorLike: TypeAlias = core.Tensor


class Fetched:
    """A value that `tf.compat.v1.Session.run` fetches as its tensor."""

    @property
    def tensor(self) -> tf.Tensor:
        raise NotImplementedError

    def _as_graph_element(self) -> tf.Tensor:
        return self.tensor


# Types of operations that only look at their inputs, or give them to a variable of their own. They
# are stateful so that TensorFlow keeps them, but a second run does the same again.
CHECKS = frozenset(
    """
    Assert CheckNumerics CheckNumericsV2 DebugIdentityV2 DebugIdentityV3 TfTi>TemporaryVariable
    """.split()
)
# Returns true for an operation that a tf.function runs even if nobody uses its results, unless it
# only reads a variable. Random numbers are not drawn for nobody.
must_run = auto_control_deps.op_is_stateful
# A context in which operations with effects wait for one another, as in a tf.function.
EffectsInOrder = auto_control_deps.AutomaticControlDependencies
# The positions of the resources among a graph's inputs that its operations only read.
read_only_inputs = auto_control_deps_utils.get_read_only_resource_input_indices_graph
# Of resources and variants: what is known of the values in them.
copy_handle_data = handle_data_util.copy_handle_data


@functools.cache
def _input_args(op_type: str) -> list[tuple[str, str | None]]:
    """The inputs of an op by name, each with the attribute that counts its tensors."""
    args = op_def_registry.get(op_type).input_arg
    return [(arg.name, arg.number_attr or None) for arg in args]


def attribute(op: tf.Operation, name: str) -> Any:
    """As `op.get_attr`, but of a text the str; cheap where a tape shows an eager operation."""
    if isinstance(op, backprop._MockOp):
        attrs = op.attrs
        for k in range(0, len(attrs), 2):
            if attrs[k] == name:
                value = attrs[k + 1]
                break
        else:
            raise ValueError(f"{op.type} has no attribute {name!r}")
    else:
        value = op.get_attr(name)
    if isinstance(value, (list, tuple)):
        return [part.decode() if isinstance(part, bytes) else part for part in value]
    return value.decode() if isinstance(value, bytes) else value


def inputs_by_name(op: tf.Operation, inputs: Sequence[Any]) -> dict[str, list[tf.Tensor]]:
    """The inputs of an op, or others in their places, by their names in its definition.

    Args:
        op: an op without lists of inputs of differing types.
        inputs: as many as the op has.
    """
    rest = iter(inputs)
    return {
        name: list(itertools.islice(rest, 1 if count is None else attribute(op, count)))
        for name, count in _input_args(op.type)
    }


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
        values[name] = value = tf.compat.v1.AttrValue()
        if isinstance(attr, bool):
            value.b = attr
        elif isinstance(attr, int):
            value.i = attr
        elif isinstance(attr, tf.DType):
            value.type = attr.as_datatype_enum
        else:
            value.shape.CopyFrom(attr.as_proto())
    return _add_operation(op_def_registry.get(op_type), inputs, dtypes, values, None)


def placeholder(dtype: tf.DType, shape: tf.TensorShape) -> tf.Tensor:
    """As tf.compat.v1.placeholder, which takes a multiple of the time."""
    (made,) = add_operation("Placeholder", [], [dtype], dtype=dtype, shape=shape)
    return made


def repeat_operation(
    op: tf.Operation,
    inputs: Sequence[tf.Tensor],
    types: Mapping[tf.DType, tf.DType] | None = None,
) -> list[tf.Tensor]:
    """Adds an operation like `op` to the current graph. Tapes see it as a user's operation.

    Args:
        op: the operation.
        inputs: the tensors that the new operation reads.
        types: types of numbers that the operation has, and the types that replace them.
    """
    attrs = {key: attr for key, attr in op.node_def.attr.items() if not key.startswith("_")}
    types = types or {}
    enums = {old.as_datatype_enum: new.as_datatype_enum for old, new in types.items()}
    for key, attr in attrs.items():
        if attr.type in enums:
            attrs[key] = tf.compat.v1.AttrValue(type=enums[attr.type])
    dtypes = [types.get(t.dtype, t.dtype) for t in op.outputs]
    return _add_operation(op.op_def, inputs, dtypes, attrs, op.name.rsplit("/", 1)[-1])


def create_operation(
    graph: tf.Graph,
    op_def: Any,
    inputs: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
    attrs: Mapping[str, Any],
    name: str | None = None,
) -> tf.Operation:
    """Adds an operation to a graph, unseen by tapes.

    Args:
        graph: the graph.
        op_def, inputs: the op and its inputs, which are of the graph, or captured by it.
        dtypes: those of its outputs.
        attrs: AttrValues, of all attributes that have no default.
        name: what it is called, if that is free.
    """
    return graph._create_op_internal(
        op_def.name, list(inputs), list(dtypes), name=name, attrs=attrs, op_def=op_def
    )


def import_operations(
    nodes: Sequence[Any], inputs: Mapping[str, tf.Tensor]
) -> Sequence[tf.Operation]:
    """Adds many operations to the current graph, in less time than one after the other.

    tf.graph_util.import_graph_def takes longer: it looks for the device of each operation.

    Args:
        nodes: their NodeDefs, each after the nodes that it reads or waits for.
        inputs: other tensors that the nodes read, by name and number in the NodeDefs.
    """
    graph = tf.compat.v1.get_default_graph()
    # Without versions, those of the graph would be lost.
    definition = tf.compat.v1.GraphDef(node=nodes, versions=graph.graph_def_versions)
    scope = c_api_util.ScopedTFImportGraphDefOptions()
    c_api.TF_ImportGraphDefOptionsSetUniquifyNames(scope.options, True)
    for copied in nodes:  # TensorFlow makes them in an order of its own
        c_api.TF_ImportGraphDefOptionsAddReturnOperation(scope.options, copied.name)
    for name, tensor in inputs.items():
        node, _, number = name.rpartition(":")
        output = tensor._as_tf_output()
        c_api.TF_ImportGraphDefOptionsAddInputMapping(scope.options, node, int(number), output)
    with (
        graph._c_graph.get() as c_graph,
        c_api_util.tf_buffer(definition.SerializeToString()) as buffer,
    ):
        found = c_api.TF_GraphImportGraphDefWithResults(c_graph, buffer, scope.options)
        results = c_api_util.ScopedTFImportGraphDefResults(found)
    graph._add_new_tf_operations(compute_devices=False)
    made = c_api.TF_ImportGraphDefResultsReturnOperations(results.results)
    stack = tf_stack.extract_stack()
    for op in made:  # errors of TensorFlow's, of pfor say, show the stack of an operation
        c_api.TF_SetOpStackTrace(op, stack)
    return [graph._get_operation_by_tf_operation(op) for op in made]


def _add_operation(
    op_def: Any,
    inputs: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
    attrs: Mapping[str, Any],
    name: str | None,
) -> list[tf.Tensor]:
    graph = tf.compat.v1.get_default_graph()
    op = create_operation(graph, op_def, inputs, dtypes, attrs, name)
    if execute.must_record_gradient():
        told = [part for attr in op_def.attr for part in (attr.name, op.get_attr(attr.name))]
        execute.record_gradient(op.type, list(op.inputs), tuple(told), list(op.outputs))
    return list(op.outputs)


def orders_effects() -> bool:
    """True in eager mode, and in the graph of a function that orders effects as the program does.

    Operations of other graphs run in the order that control dependencies say.
    """
    graph = tf.compat.v1.get_default_graph()
    is_function = graph.building_function and graph._add_control_dependencies
    return tf.executing_eagerly() or bool(is_function)


def is_stateful(op: tf.Operation) -> bool:
    return op._is_stateful


def is_stateful_type(op_type: str) -> bool:
    """Returns true for a type of stateful operations, and for an unknown type."""
    op_def = op_def_registry.get(op_type)
    return op_def is None or op_def.is_stateful


def is_dead(op: tf.Operation) -> bool:
    """Returns true if nothing has use for an op's outputs, up to now."""
    return not any(output.consumers() for output in op.outputs)


def is_opaque(tensor: tf.Tensor) -> bool:
    """Returns true for a variant whose content TensorFlow does not know, unlike its own lists."""
    return (
        tensor.dtype == tf.variant and not handle_data_util.get_resource_handle_data(tensor).is_set
    )


def keep_on_host(op: tf.Operation, inputs: Sequence[int], outputs: Sequence[int]) -> None:
    """Gives and takes these inputs and outputs of an op in the host's memory, on a GPU too."""
    for name, indices in (("_input_hostmem", inputs), ("_output_hostmem", outputs)):
        value = tf.compat.v1.AttrValue()
        value.list.i.extend(indices)
        op._set_attr(name, value)


def mark_read_only(op: tf.Operation, inputs: Sequence[int]) -> None:
    """Says which inputs of an op that runs functions are resources that it does not change."""
    ops.set_int_list_attr(op, auto_control_deps_utils.READ_ONLY_RESOURCE_INPUTS_ATTR, inputs)


def changed_resources(op: tf.Operation) -> Iterable[tf.Tensor]:
    """The inputs of an operation that are resources, unless it is known to read them only."""
    _, changed = auto_control_deps_utils.get_read_write_resource_inputs(op)
    return changed


def mark(op: tf.Operation, name: str) -> None:
    """Gives an operation, and its copies, an attribute that TensorFlow does not know."""
    op._set_attr(name, tf.compat.v1.AttrValue(b=True))


def is_marked(op: tf.Operation, name: str) -> bool:
    """Returns true if `mark` gave the operation this attribute."""
    return op.node_def.attr[name].b


def mark_constant_inputs(op: tf.Operation, names: list[str]) -> None:
    """Marks the inputs of one op that XLA must know when it compiles."""
    value = tf.compat.v1.AttrValue()
    value.list.s.extend(name.encode() for name in names)
    op._set_attr("_XlaCompileTimeConstantInputs", value)


def keep_out_of_clusters(op: tf.Operation) -> None:
    """Keeps an operation out of the parts of graphs that TensorFlow compiles unasked."""
    op._set_attr("_XlaCompile", tf.compat.v1.AttrValue(b=False))


def replace_input(op: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Gives an operation another tensor for one of its inputs."""
    op._update_input(index, tensor)


def waiting_operations(op: tf.Operation) -> Sequence[tf.Operation]:
    """The operations that wait for this one, by control dependencies."""
    return op._control_outputs


def add_control_input(op: tf.Operation, other: tf.Operation) -> None:
    """Lets an operation wait for another."""
    op._add_control_inputs([other])


def set_control_inputs(op: tf.Operation, others: Sequence[tf.Operation]) -> None:
    """Lets an operation wait for these, and for no others."""
    op._remove_all_control_inputs()
    op._add_control_inputs(others)


def key_of_eager_tensor(tensor: EagerTensor) -> tuple[int, tuple[int, ...]]:
    """The type and the shape of a tensor, hashable and at little cost."""
    return tensor._datatype_enum(), tensor._shape_tuple()
