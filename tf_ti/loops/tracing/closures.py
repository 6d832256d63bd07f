"""The tensors to which a Python function may refer, without a call of it."""

import gc
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction, PolymorphicFunction

from tf_ti import _tf

# Python objects to look at before it is cheaper to call the function.
_MOST = 10_000
# Objects whose tensors Python cannot see.
_TAPES = (tf.GradientTape, tf.autodiff.ForwardAccumulator)
_STATIC = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
# Objects that lead to everything, or to no tensor of a graph.
_ENDS = (
    types.BuiltinFunctionType,
    types.ModuleType,
    types.CodeType,
    type,
    tf.Graph,
    tf.Operation,
    tf.Variable,
)


def tensors(function: Callable[..., Any]) -> list[tf.Tensor] | None:
    """The graphs' tensors that a function can reach; None if that cannot be told.

    It reaches them by its closure, by defaults of its parameters, by global variables other than
    functions, and by the attributes and elements of such objects.
    """
    found: dict[Any, tf.Tensor] = {}
    seen: dict[int, Any] = {}  # which keeps them, so that no two have one id
    stack: list[Any] = [function]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        if len(seen) > _MOST or isinstance(node, _TAPES):
            return None
        if isinstance(node, tf.Tensor):
            if not isinstance(node, _tf.EagerTensor):
                found[node.ref()] = node
        elif not isinstance(node, _ENDS):
            stack += _reached(node)
    return list(found.values())


def nonlocal_of(function: Callable[..., Any], name: str) -> Any:
    """The value of a variable in the closure of a function; None if it has none of the name."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    if name not in names:
        return None
    try:
        return (function.__closure__ or ())[names.index(name)].cell_contents
    except ValueError:  # it is not assigned yet
        return None


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of all functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def _reached(node: Any) -> list[Any]:
    if isinstance(node, types.FunctionType):
        names = itertools.chain.from_iterable(code.co_names for code in codes(node.__code__))
        read = [node.__globals__.get(name) for name in names]
        found = [value for value in read if not isinstance(value, _STATIC)]
        return [*found, node.__closure__, node.__defaults__, node.__kwdefaults__, node.__dict__]
    if isinstance(node, ConcreteFunction):
        return list(node.captured_inputs)
    if isinstance(node, PolymorphicFunction):
        return [node.python_function]
    if isinstance(node, np.ndarray):
        return list(node.flat) if node.dtype.hasobject else []
    return gc.get_referents(node)
