"""What a plain function reads, where that can be told: then a trace of it may serve again.

A function is known if its code, and that of the user's functions that it calls, does nothing but
compute, of its arguments, of numbers and strings, of tensors and variables, and by functions of
TensorFlow that compute. It must store nothing outside of itself, and reach no object that can
change unseen: a list, an array of NumPy, an attribute of an object or of a module of the user's.
"""

import builtins
import collections
import dis
import math
import types
import weakref
from collections.abc import Hashable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _tf

# A trace that is kept holds the tensors that it captured.
_MOST_ELEMENTS = 2**20
_DEEPEST = 8
_BUILTINS = frozenset(
    getattr(builtins, name)
    for name in (
        *("abs", "all", "any", "bool", "complex", "dict", "divmod", "enumerate", "filter"),
        *("float", "frozenset", "int", "isinstance", "len", "list", "map", "max", "min", "pow"),
        *("range", "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple", "zip"),
        *("AssertionError", "NotImplementedError", "TypeError", "ValueError"),
    )
)
# Those parts of TensorFlow that compute, and no more.
_PARTS = frozenset(
    ["bitwise", "dtypes", "linalg", "math", "nest", "nn", "raw_ops", "signal", "strings"]
)
_NOT_THESE = frozenset(
    [
        *("GradientTape", "Module", "RegisterGradient", "Variable", "custom_gradient", "device"),
        *("executing_eagerly", "function", "get_logger", "get_static_value", "grad_pass_through"),
        *("init_scope", "is_symbolic_tensor", "load_library", "load_op_library", "make_ndarray"),
        *("numpy_function", "print", "py_function", "recompute_grad", "variable_creator_scope"),
    ]
)
_OF_NUMPY = (np.ufunc, float, type(None))
_REFUSED = frozenset(
    [
        *("DELETE_ATTR", "DELETE_GLOBAL", "DELETE_NAME", "IMPORT_FROM", "IMPORT_NAME"),
        *("IMPORT_STAR", "LOAD_BUILD_CLASS", "LOAD_CLASSDEREF", "LOAD_LOCALS", "LOAD_NAME"),
        *("LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_SUPER_ATTR"),
        *("STORE_ATTR", "STORE_GLOBAL", "STORE_NAME"),
    ]
)
_OF_NAMED_TUPLES = frozenset(
    [
        *vars(collections.namedtuple("_", [])),
        *("__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__"),
        *("__firstlineno__", "__orig_bases__", "__static_attributes__"),
    ]
)
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_OF_VARIABLES = frozenset(["dtype", "name", "read_value", "shape", "value"])
_GENERATORS = 0x20 | 0x80 | 0x200  # inspect's CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR


class _Unknown(Exception):
    """The function reads what may change."""


class _Is:
    """An object that is equal to nothing but itself."""

    __slots__ = ("object",)

    def __init__(self, thing: Any):
        self.object = thing

    def __eq__(self, other: Any) -> bool:
        return type(other) is _Is and self.object is other.object

    def __hash__(self) -> int:
        return id(self.object)


# A name, whether it is one of a closure, and the attributes that are taken of it.
_Read = tuple[str, bool, tuple[str, ...]]
# Code is equal where it does the same, and so is known where it is made again.
_by_code: weakref.WeakKeyDictionary[types.CodeType, tuple[_Read, ...] | None] = (
    weakref.WeakKeyDictionary()
)


def of(function: types.FunctionType) -> Hashable | None:
    """All that a function reads, with which it may be compared later; None if it is not known."""
    try:
        return _function(function, _DEEPEST)
    except _Unknown:
        return None


def _function(function: types.FunctionType, deepest: int) -> Hashable:
    code = function.__code__
    reads = _reads_of(code)
    if reads is None or not deepest or hasattr(function, "__wrapped__"):
        raise _Unknown
    found: list[Hashable] = [_Is(code)]
    for default in function.__defaults__ or ():
        found.append(_value(default, (), deepest))
    for name, default in (function.__kwdefaults__ or {}).items():
        found.append((name, _value(default, (), deepest)))
    names = code.co_freevars
    for name, is_free, attributes in reads:
        if is_free:
            try:
                value = function.__closure__[names.index(name)].cell_contents
            except ValueError:
                raise _Unknown from None
        elif name in function.__globals__:
            value = function.__globals__[name]
        else:
            value = getattr(builtins, name, _Unknown)
        if value is function:
            raise _Unknown
        found.append(_value(value, attributes, deepest))
    return tuple(found)


def _value(value: Any, attributes: tuple[str, ...], deepest: int) -> Hashable:
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes, tf.DType):
        return kind, value
    if kind is float or kind is complex:
        return kind, repr(value)  # which tells zeros apart, and no NaN
    if kind is types.ModuleType or isinstance(value, types.ModuleType):
        return _of_module(value, attributes)
    if kind is _tf.EagerTensor:
        if value.dtype in (tf.resource, tf.variant) or math.prod(value.shape) > _MOST_ELEMENTS:
            raise _Unknown
        return _Is(value)
    if isinstance(value, tf.Variable):
        is_read = not attributes or attributes[0] in _OF_VARIABLES
        if is_read and not _tf.is_distributed(value):
            return _Is(value)
    elif kind is types.FunctionType and not attributes:
        if not value.__module__ or not value.__module__.startswith("tensorflow."):
            return _function(value, deepest - 1)
        if value.__name__ not in _NOT_THESE:
            return _Is(value)
    elif kind is tuple:
        return kind, *[_value(part, (), deepest) for part in value]
    elif isinstance(value, np.generic):
        return kind, value.tobytes()
    elif not attributes and isinstance(value, (type, types.BuiltinFunctionType)):
        if value in _BUILTINS or is_named_tuple(value):
            return _Is(value)
    raise _Unknown


def _of_module(module: types.ModuleType, attributes: tuple[str, ...]) -> Hashable:
    """Something of TensorFlow's, NumPy's or Python's that computes."""
    path = list(attributes)
    if module is tf and len(path) > 1 and path[0] in _PARTS:
        module = getattr(tf, path.pop(0))
    is_part = module is not tf and any(module is getattr(tf, part) for part in _PARTS)
    if path and path[0] not in _NOT_THESE and not path[0].startswith("_"):
        found = getattr(module, path[0], None)
        if module is tf or is_part:
            if callable(found) or isinstance(found, tf.DType) or path[0] == "newaxis":
                return _Is(found)
        elif module is math:
            return _Is(found) if callable(found) else ("math", repr(found))
        elif module is np:
            if isinstance(found, type) and issubclass(found, np.generic):
                return _Is(found)
            if isinstance(found, _OF_NUMPY):
                return _Is(found)
    raise _Unknown


def is_named_tuple(kind: Any) -> bool:
    """True for one that has nothing but fields: a method, say, might read anything."""
    if not isinstance(kind, type) or kind.__bases__ != (tuple,) or not hasattr(kind, "_fields"):
        return False
    for name, value in vars(kind).items():
        if name not in _OF_NAMED_TUPLES and name not in kind._fields:
            return False
        if isinstance(value, types.FunctionType):
            of = value.__module__
            if of != "collections" and not of.startswith("namedtuple_"):
                return False
    return True


def _reads_of(code: types.CodeType) -> tuple[_Read, ...] | None:
    """What some code reads from outside, or None if it does what it should not."""
    if code not in _by_code:
        found: dict[_Read, None] = {}
        is_known = not code.co_flags & _GENERATORS and _collect(code, set(code.co_freevars), found)
        _by_code[code] = tuple(found) if is_known else None
    return _by_code[code]


def _collect(code: types.CodeType, outer: set[str], found: dict[_Read, None]) -> bool:
    """Adds what code reads, whose names in `outer` are of the function's closure."""
    instructions = list(dis.get_instructions(code))
    for i, instruction in enumerate(instructions):
        name, operation = instruction.argval, instruction.opname
        if operation in _REFUSED:
            return False
        is_free = operation in ("LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF") and name in outer
        if is_free and operation != "LOAD_DEREF":
            return False
        if is_free or operation == "LOAD_GLOBAL":
            attributes = []
            for following in instructions[i + 1 :]:
                if following.opname not in _ATTRIBUTES:
                    break
                attributes.append(following.argval)
            found[name, is_free, tuple(attributes)] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            # Names of the enclosing function's own are its variables.
            inner = outer & set(constant.co_freevars)
            if not _collect(constant, inner, found):
                return False
    return True
