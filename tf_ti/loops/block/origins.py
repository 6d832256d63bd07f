"""What users call the tensors that a loop uses from outside."""

import re

import tensorflow as tf

from tf_ti import _tf

_MOST_SHOWN = 4  # elements of a value


class Origins:
    """Where the tensors of a graph come from.

    Args:
        graph: the graph.
    """

    def __init__(self, graph: _tf.FuncGraph):
        # The graph forgets its captures.
        self._captured = {inside.ref(): outside for outside, inside in graph.captures}
        self._variables = {id(v.handle): v for v in _tf.watched_variables(graph)}

    def is_captured(self, tensor: tf.Tensor) -> bool:
        return tensor.ref() in self._captured

    def of(self, tensor: tf.Tensor) -> tf.Tensor | tf.Variable:
        """The user's tensor that another stands for, or the variable that it was read from."""
        while id(tensor) not in self._variables:
            source = self._source(tensor)
            if source is None:
                return tensor
            tensor = source
        return self._variables[id(tensor)]

    def _source(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """The tensor that one is a copy of."""
        if isinstance(tensor, _tf.EagerTensor):
            return None
        if tensor.ref() in self._captured:
            return self._captured[tensor.ref()]
        op = tensor.op
        if op.type == "ReadVariableOp" or (op.type in ("Cast", "Identity") and tells_type(op)):
            return op.inputs[0]
        captures = getattr(op.graph, "captures", ()) if op.type == "Placeholder" else ()
        return next((outside for outside, inside in captures if inside is tensor), None)


def tells_type(op: tf.Operation) -> bool:
    """True if the name is the type: nobody gave it another one."""
    return re.sub(r"_\d+$", "", op.name.rpartition("/")[2]).lower() == op.type.lower()


def name_of(origin: tf.Tensor | tf.Variable) -> str:
    """The name, or else the value if that is short, or else the type."""
    if not isinstance(origin, tf.Variable):
        is_eager = isinstance(origin, _tf.EagerTensor)
        if is_eager or (origin.op.type == "Const" and tells_type(origin.op)):
            return "".join(value_of(origin)) or type_of(origin)
    return origin.name.removesuffix(":0")


def type_of(origin: tf.Tensor | tf.Variable) -> str:
    return f"{origin.dtype.name}{'' if origin.shape.rank is None else origin.shape.as_list()}"


def value_of(tensor: tf.Tensor) -> tuple[str, ...]:
    """The value, if it is known and short."""
    value = tf.get_static_value(tensor) if tensor.dtype.is_numpy_compatible else None
    if value is None or value.ndim > 1 or value.size > _MOST_SHOWN:
        return ()
    return (f"[{', '.join(map(str, value))}]" if value.ndim else f"{value}",)
