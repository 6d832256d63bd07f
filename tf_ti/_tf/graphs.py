"""The graphs of functions: traced from Python, asked what they depend on, and taken apart."""

import inspect
import linecache
import re
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import autograph_util
from tensorflow.python.framework import func_graph, tensor_util

from tf_ti._tf.gradients import have_tangents, is_recording, record, stop_recording

_Function = TypeVar("_Function", bound=Callable[..., Any])
_LAMBDA = re.compile(r"\blambda\b([^:]*):")


def do_not_convert(function: _Function) -> _Function:
    """As tf.autograph.experimental.do_not_convert; type checkers see the function's signature."""
    return tf.autograph.experimental.do_not_convert(function)


def user_code() -> AbstractContextManager[Any]:
    """A context in which AutoGraph converts what a user's program does: functions for tf.data."""
    return ag_ctx.ControlStatusCtx(ag_ctx.Status.UNSPECIFIED)


def user_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A user's function as AutoGraph converts it, to be called while a graph is traced.

    One without source, of a prompt or of `python -c`, is called as it is, as is a lambda beside
    another one in its line: AutoGraph would only say that it cannot convert them.
    """
    plain = inspect.unwrap(function)
    code = getattr(plain, "__code__", None)
    if code is not None and not _has_source(plain, code):
        return function
    return autograph_util.py_func_from_autograph(function)


def _has_source(function: Callable[..., Any], code: types.CodeType) -> bool:
    """True if AutoGraph finds the source of a function."""
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines or code.co_name != "<lambda>":
        return bool(lines)
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = sorted(code.co_varnames[:count])
    line = "".join(lines[code.co_firstlineno - 1 : code.co_firstlineno])
    written = [_names(found[1]) for found in _LAMBDA.finditer(line)]
    return written.count(names) < 2


def _names(parameters: str) -> list[str]:
    return sorted(
        part.split("=")[0].strip(" *") for part in parameters.split(",") if part.strip(" */")
    )


def are_callbacks_paused() -> bool:
    """Returns true where callbacks do not see the operations that are added to a graph.

    TensorFlow's debuggers are such callbacks: they add an operation that looks at the outputs of
    each new one.
    """
    return context.context().invoking_op_callbacks


@contextmanager
def callbacks_paused(is_paused: bool) -> Iterator[None]:
    """Says whether callbacks see the operations that are added to a graph."""
    current = context.context()
    before, current.invoking_op_callbacks = current.invoking_op_callbacks, is_paused
    try:
        yield
    finally:
        current.invoking_op_callbacks = before


def shown(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Tensors that callbacks see, of an operation that was added while they were paused."""
    current = context.context()
    is_seen = current.op_callbacks and not current.invoking_op_callbacks
    return [tf.identity(t) for t in tensors] if is_seen else list(tensors)


class FuncGraph(func_graph.FuncGraph):
    """The graph of a function, of which operations may be left out of the function.

    Callbacks see the operations of the user: `trace` and the block of a `tf_ti.Loop` run the user's
    code with the callbacks that there are around the graph. Callbacks do not see the operations
    that tf_ti adds from outside: a check of a placeholder, or of an operation that a pass replaces,
    would be part of no iteration, or of the wrong one.
    """

    def __init__(self, name: str):
        super().__init__(name)
        self.left_out: set[tf.Operation] = set()
        self.runs_here = False  # and is part of no saved model

    def as_default(self) -> AbstractContextManager[tf.Graph]:
        entered = super().as_default()
        # TensorFlow enters the graph again for each operation that is made in it.
        is_outside = context.context().op_callbacks and tf.compat.v1.get_default_graph() is not self
        return _with_callbacks_paused(entered) if is_outside else entered

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: Any = None) -> tf.Tensor:
        """As TensorFlow's, but a ForwardAccumulator does not follow the tensor into the graph.

        Who runs the graph finds the tangents, and TensorFlow finds none of a conditional in it.
        """
        if not (is_recording() and have_tangents([tensor])):
            return super().capture(tensor, name, shape)
        with stop_recording():
            captured = super().capture(tensor, name, shape)
        if captured is not tensor:
            record("captured_value", [tensor], [captured], lambda x: [x], lambda _: [None])
        return captured

    def get_operations(self) -> list[tf.Operation]:
        operations = super().get_operations()
        return [op for op in operations if op not in self.left_out] if self.left_out else operations


@contextmanager
def _with_callbacks_paused(entered: AbstractContextManager[tf.Graph]) -> Iterator[tf.Graph]:
    with entered as graph, callbacks_paused(True):
        yield graph


def trace(
    name: str,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    convert: Callable[..., Any] | None = None,
    arrange: Callable[..., Any] | None = None,
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
    status, is_paused = ag_ctx.Status.DISABLED, are_callbacks_paused()
    if convert is not None:
        status, function = ag_ctx.Status.ENABLED, user_function(function)

    def call(*placeholders: Any) -> Any:
        with callbacks_paused(is_paused):
            given = placeholders if arrange is None else arrange(placeholders)
            returned = function(*given)
            return returned if convert is None else convert(returned)

    with ag_ctx.ControlStatusCtx(status):
        return func_graph.func_graph_from_py_func(
            name, call, arguments, {}, func_graph=FuncGraph(name)
        )


def captured(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The tensors as the current graph knows them."""
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly():
        return list(tensors)
    if isinstance(graph, func_graph.FuncGraph):
        return [graph.capture(tensor) for tensor in tensors]
    for tensor in tensors:
        if not tf.is_symbolic_tensor(tensor):
            raise RuntimeError(
                f"the loop uses an eager tensor of shape {tensor.shape} and dtype "
                f"{tensor.dtype.name} in a tf.Graph, which has no eager tensors; make it there, of "
                "its value: tf.constant(tensor.numpy())"
            )
    return list(tensors)


def other_function(tensor: tf.Tensor) -> func_graph.FuncGraph | None:
    """The function's graph that a tensor is of, where that is not the current one.

    A gradient that refers to such a tensor makes it an output of the function.
    """
    graph = tensor.graph if tf.is_symbolic_tensor(tensor) else None
    is_other = type(graph) is func_graph.FuncGraph and graph is not tf.compat.v1.get_default_graph()
    return graph if is_other else None


def depends_on_inputs(graph: func_graph.FuncGraph, tensor: tf.Tensor) -> bool:
    """Returns true if a tensor of a function is computed from its parameters."""
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


def static_value(tensor: tf.Tensor) -> Any:
    """As `tf.get_static_value`, which does not know an element of a shape, or arithmetic."""
    static = tf.get_static_value(tensor)
    if static is None and not tf.executing_eagerly():
        try:
            static = tensor_util.try_evaluate_constant(tensor)
        except tf.errors.InvalidArgumentError:  # an extent for which int32 has no number
            return None
        if static is not None:  # as tf.get_static_value does: a session may feed no other value
            tensor.graph.prevent_feeding(tensor)
    return static


def known_extent(tensor: Any, axis: int) -> Any:
    """The static extent along an axis of a tensor, an array or a tf.TensorSpec.

    After `tf.compat.v1.disable_v2_tensorshape()` an element of a tf.TensorShape is an object, which
    is not None where the extent is unknown.
    """
    shape = tf.TensorShape(tensor.shape)
    return None if shape.rank is None else shape.as_list()[axis]


def is_extent(number: tf.Tensor, tensor: tf.Tensor, axis: int) -> bool:
    """True if a number is `tf.shape(tensor)[axis]`, cast perhaps, or kept from being negative."""
    found, rank = _extent(_bare(number)), tensor.shape.rank
    if found is None or rank is None:
        return False
    return found[0] is outermost(tensor) and found[1] % rank == axis % rank


def is_any_extent(number: tf.Tensor) -> bool:
    """True if a number is an extent of a tensor, cast perhaps, or kept from being negative."""
    return _extent(_bare(number)) is not None


def are_same_count(number: tf.Tensor, other: tf.Tensor) -> bool:
    """True if two numbers are known to be one, cast perhaps, or kept from being negative."""
    number, other = _bare(number), _bare(other)
    if number is None or other is None:
        return False
    own, others = _extent(number), _extent(other)
    if own is None or others is None:
        return number is other
    return own[0] is others[0] and own[1] == others[1]


def _extent(number: tf.Tensor | None) -> tuple[tf.Tensor, int] | None:
    """The tensor and the axis of which a number is the extent; None for others.

    None in graphs of sessions too, which may feed any number.
    """
    if number is None or not number.graph.building_function:
        return None
    if number.op.type != "StridedSlice" or number.shape.rank != 0:
        return None
    if number.op.get_attr("ellipsis_mask") or number.op.get_attr("new_axis_mask"):
        return None
    shape, position = number.op.inputs[:2]
    found = tf.get_static_value(position)
    if shape.op.type != "Shape" or found is None:
        return None
    return outermost(shape.op.inputs[0]), int(found[0])


def _bare(number: tf.Tensor, is_same: bool = False) -> tf.Tensor | None:
    """A number before it was cast, or kept from being negative; None if no extent fits its type.

    If it has to be the same number, it may not have been kept from being negative.
    """
    number = outermost(number)
    while number.op.type in ("Cast", "Identity") or (not is_same and _is_at_least(number.op, 0)):
        source = outermost(number.op.inputs[0])
        if number.dtype not in (tf.int32, tf.int64):
            return None
        if (source.dtype, number.dtype) == (tf.int64, tf.int32):
            return number  # which may be another number
        number = source
    return number


def extent_before(number: tf.Tensor, by: int, or_0: bool = False) -> tf.Tensor | None:
    """The extent of a tensor from which a number is computed, by the subtraction of a known one.

    With or_0, the number must be 0 where it would be negative.
    """
    bare = _bare(number, is_same=not or_0)
    if bare is None or bare.op.type != "Sub" or tf.get_static_value(bare.op.inputs[1]) != by:
        return None
    extent = bare.op.inputs[0]
    if or_0:
        if _is_at_least(extent.op, by):
            extent = extent.op.inputs[0]
        elif _bare(number, is_same=True) is bare:
            return None
    extent = _bare(extent)
    return None if _extent(extent) is None else extent


def is_at_most(number: tf.Tensor, extent: tf.Tensor) -> bool:
    """True if a number is an extent less a known number, or 0 where that would be negative."""
    bare = _bare(number)
    if bare is None or bare.op.type != "Sub":
        return False
    by = tf.get_static_value(bare.op.inputs[1])
    if by is None or by < 0:
        return False
    before = extent_before(bare, by)
    if before is None:
        before = extent_before(bare, by, or_0=True)
    return before is not None and are_same_count(before, extent)


def _is_at_least(op: tf.Operation, least: int) -> bool:
    return op.type == "Maximum" and tf.get_static_value(op.inputs[1]) == least


def outermost(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor that a graph captured, if this is one that it did."""
    if tensor.op.type == "Placeholder" and isinstance(tensor.graph, func_graph.FuncGraph):
        for outside, inside in tensor.graph.captures:
            if inside is tensor and tf.is_symbolic_tensor(outside):
                return outermost(outside)
    return tensor


def forget_captures(graph: FuncGraph) -> None:
    """Lets go of the captured tensors of a graph that needs its placeholders only."""
    graph._function_captures.clear()
    _ = graph.captures  # which a cache keeps until it is asked again


def watched_variables(graph: tf.Graph) -> list[tf.Variable]:
    """The variables that were read while a graph, and those around it, were traced."""
    found = []
    while isinstance(graph, func_graph.FuncGraph):
        found += graph._watched_variables
        graph = graph.outer_graph
    return found


# Lets go of all that a graph refers to, itself too.
dismantle = func_graph.dismantle_func_graph
