"""Computes a graph layer by layer, each with the function of its operation."""

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.openvino import operations  # noqa: F401 - fills the table
from tf_ti.openvino.constants import Constants
from tf_ti.openvino.errors import IRError, ascii_name, shown, some
from tf_ti.openvino.layout import Given, Values
from tf_ti.openvino.model import Graph, Layer, Port
from tf_ti.openvino.operation import Function, Operation, find
from tf_ti.openvino.precision import Precision, accumulated
from tf_ti.openvino.progress import watched
from tf_ti.openvino.states import Memory

_OF_THE_GRAPH = frozenset(["Constant", "Parameter", "Result"])
# The operations that compute axes and extents from other ones.
_OF_EXTENTS = frozenset(
    "Add Broadcast Concat Convert Divide Floor FloorMod Gather Maximum Minimum Multiply Range "
    "ReduceMax ReduceMin ReduceProd ReduceSum Reshape Select Slice Squeeze StridedSlice Subtract "
    "Unsqueeze".split()
)
# And those that compare them.
_OF_BRANCHES = frozenset(
    "Convert Equal Greater GreaterEqual Less LessEqual LogicalAnd LogicalNot LogicalOr LogicalXor "
    "NotEqual ReduceLogicalAnd ReduceLogicalOr Reshape Squeeze Unsqueeze".split()
)
_MOST_EXTENTS = 256


def unsupported(graph: Graph) -> list[Layer]:
    return [
        layer for layer in graph.walk() if layer.type not in _OF_THE_GRAPH and find(layer) is None
    ]


def check_supported(graph: Graph) -> None:
    """Raises one error that names all layers with unknown operations."""
    unknown = unsupported(graph)
    if unknown:
        kinds: dict[str, list[str]] = {}
        for layer in unknown:
            kind = f"{shown(layer.type)[1:-1]} ({shown(layer.version)[1:-1]})"
            kinds.setdefault(kind, []).append(layer.name)
        listed = "; ".join(f"{kind}: {some(names)}" for kind, names in sorted(kinds.items()))
        raise IRError(
            f"{graph.path}: operations that are not supported: {listed}. "
            "tf_ti.openvino.register adds one."
        )


class Evaluation:
    """Computes the graphs of a model, which share constants and states."""

    def __init__(self, constants: Constants, memory: Memory, precision: Precision):
        self._constants, self._memory, self._precision = constants, memory, precision

    @_tf.public
    def __call__(self, graph: Graph, parameters: Mapping[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """Returns the values of the Results by the ids of these layers."""
        values = Values()
        results = {}
        for layer in watched("tracing layers", graph.layers.values()):
            is_last = False
            if layer.type == "Parameter":
                outputs: Sequence[tf.Tensor | None] = (self._precision.cast(parameters[layer.id]),)
            elif layer.type == "Result":
                results[layer.id] = values[graph.sources[layer.id, layer.inputs[0].id]]
                continue
            else:
                constant = self._constants.tensor(layer)
                if constant is None and layer.type == "Constant":
                    continue  # only Converts read it, which are constants themselves
                if constant is not None:
                    outputs = (constant,)
                else:
                    outputs, is_last = self._run(graph, layer, values)
            for port, value in zip(layer.outputs, outputs):
                if value is None:
                    continue  # nothing reads it
                value = checked(graph, layer, port, value, self._precision, is_last)
                values.set((layer.id, port.id), value, is_last)
        return results

    def _run(
        self, graph: Graph, layer: Layer, values: Values
    ) -> tuple[Sequence[tf.Tensor | None], bool]:
        """The outputs of a layer, and whether their channels are last."""
        sources = [graph.sources[layer.id, port.id] for port in layer.inputs]
        function = find(layer)
        assert function is not None
        turned = values.turned(layer, function, sources)
        if turned is not None:
            return turned[:1], turned[1]
        given = values.given(layer, function, sources)
        is_last = given is not None and given.is_last
        if given is None:
            given = Given(layer, [values[source] for source in sources])
        layer = given.layer
        read = [
            None if i in given.changed else graph.layers[source]
            for i, (source, _) in enumerate(sources)
        ]
        inputs, finish = accumulated(layer.type, function, given.inputs)
        op = self._operation(graph, layer, read, inputs)
        if not _takes(function, len(inputs)):
            raise op.error(f"has {len(inputs)} inputs, which this operation cannot have")
        try:
            with tf.name_scope(ascii_name(layer.name, "_.-/")):
                outputs = finish(function(op, *inputs))
                if _may_be_asked_for(op, outputs):
                    outputs = self._constant(graph, op, read, function, outputs)
        except IRError:
            raise
        except Exception as error:  # of any type: the cause is in the file
            raise op.error(str(error) or type(error).__name__) from error
        if not isinstance(outputs, tuple | list):
            outputs = (outputs,)
        if len(outputs) < len(layer.outputs):
            raise op.error(
                f"has {len(layer.outputs)} output ports, but gives {len(outputs)} values"
            )
        for i, value in enumerate(outputs):
            if value is None and op.is_read(i):
                raise op.error(f"gives no value for output port {layer.outputs[i].id}")
        return outputs, is_last

    def _constant(
        self,
        graph: Graph,
        op: Operation,
        read: Sequence[Layer | None],
        function: Function,
        output: tf.Tensor,
    ) -> tf.Tensor:
        """The output as a constant, if all inputs are known. tf.get_static_value does less."""
        known = [op.known(position) for position in range(len(op.inputs))]
        if any(value is None for value in known):
            return output
        with tf.init_scope():
            inputs = [tf.constant(value, x.dtype) for value, x in zip(known, op.inputs)]
            value = function(self._operation(graph, op.layer, read, inputs), *inputs).numpy()
        return tf.constant(value)

    def _operation(
        self,
        graph: Graph,
        layer: Layer,
        sources: Sequence[Layer | None],
        inputs: Sequence[tf.Tensor],
    ) -> Operation:
        return Operation(
            graph,
            layer,
            sources,
            inputs,
            self._constants.value,
            self,
            self._memory,
            self._precision,
        )


def _may_be_asked_for(op: Operation, output: Any) -> bool:
    """True if the output may be an axis, an extent or a condition, which others must know."""
    if not tf.is_tensor(output) or tf.executing_eagerly():
        return False
    kinds = _OF_BRANCHES if output.dtype.is_bool else _OF_EXTENTS
    if op.layer.type not in kinds or not (output.dtype.is_bool or output.dtype.is_integer):
        return False
    count = output.shape.num_elements()
    return count is not None and count <= _MOST_EXTENTS


@functools.lru_cache(1024)  # a function may be registered in the place of another
def _takes(function: Function, num_inputs: int) -> bool:
    try:
        inspect.signature(function).bind(None, *[None] * num_inputs)
    except TypeError:
        return False
    return True


def checked(
    graph: Graph,
    layer: Layer,
    port: Port,
    value: tf.Tensor,
    precision: Precision,
    is_last: bool,
) -> tf.Tensor:
    """Returns the value after comparing its dtype and shape with those of the port."""
    if port.element_type is not None:
        dtype = tf.as_dtype(port.element_type.dtype)
        if value.dtype != precision.of_file(dtype):
            raise IRError(
                f"{layer.path}: output port {port.id} is {port.element_type.name} in the file, "
                f"but what is computed is {value.dtype.name}"
            )
    if port.shape is not None and graph.has_shape(layer):
        shape, found = tf.TensorShape(port.shape), value.shape
        if is_last:
            found = found[:1] + found[-1:] + found[1:-1]
        if not shape.is_compatible_with(found):
            raise IRError(
                f"{layer.path}: output port {port.id} has the shape {shape} in the file, "
                f"but what is computed has {found}"
            )
        if not tf.executing_eagerly():
            value.set_shape(shape[:1] + shape[2:] + shape[1:2] if is_last else shape)
    return value
