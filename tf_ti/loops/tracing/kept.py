"""Eager calls that are made again: what the first one traced is found by a cheap key, and run.

A call is the same again if its body is, a `tf.function` or a `ConcreteFunction`, and its options,
and the containers, types and shapes of its arguments. What the body reads does not matter, by the
rules of a `tf.function`; a plain function is traced in each call. Whatever is unusual here is left
to the way that all calls go first: contexts of tf.distribute, callbacks, composite values, numbers
that do not fit.
"""

import os
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction, PolymorphicFunction

from tf_ti import _tf
from tf_ti.loops import arguments as _arguments, spec as _spec
from tf_ti.loops.tracing.structure import Structure

_ATTRIBUTE = "_tf_ti_calls"
# The most calls that a body keeps; one more, and it forgets the first.
_MOST = 64


class _Unknown(Exception):
    """An argument is of a kind that no ticket knows."""


class Calls:
    """The calls that an object keeps; a copy of the object, or one from a file, keeps none."""

    def __init__(self, owner: Any):
        self.owner = weakref.ref(owner)
        self.calls: dict[Hashable, Any] = {}

    @classmethod
    def find(cls, owner: Any, attribute: str) -> "Calls | None":
        """The calls that an attribute of the object has, if there are any."""
        calls = owner.__dict__.get(attribute)
        # A decorator copies the attributes of the function that it wraps.
        return calls if isinstance(calls, cls) and calls.owner() is owner else None

    @classmethod
    def of(cls, owner: Any, attribute: str) -> "Calls":
        """The calls that an attribute of the object has from now on."""
        calls = cls.find(owner, attribute)
        if calls is None:
            calls = owner.__dict__[attribute] = cls(owner)
        return calls

    def keep(self, key: Hashable, call: Any) -> None:
        if len(self.calls) >= _MOST and key not in self.calls:
            self.calls.pop(next(iter(self.calls)), None)
        self.calls[key] = call

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _no_calls, ()


def _no_calls() -> None:
    return None


class _Call:
    """What a call traced, and what to do with its results."""

    def __init__(self, function: _tf.CheapCall, outputs: Structure, dtypes: Sequence[tf.DType]):
        self.run = function
        self.outputs = outputs
        self.dtypes = dtypes


class Ticket:
    """One eager call: its key, by which it may be found, and what was traced may be kept.

    Attributes:
        leaves: the tensors and numbers of the arguments.
    """

    def __init__(self, body: Callable[..., Any], key: Hashable, leaves: list[Any], limit: Any):
        self._body, self._key = body, key
        self.leaves, self._limit = leaves, limit

    def run(self) -> tuple[bool, Any]:
        """True, and the results, if the same call was made before."""
        calls = Calls.find(self._body, _ATTRIBUTE)
        call = calls.calls.get(self._key) if calls else None
        if call is None:
            return False, None
        tensors = []
        for leaf, dtype in zip(self.leaves, call.dtypes):
            if type(leaf) is not _tf.EagerTensor:
                leaf = _arguments.number(leaf, dtype)
                if leaf is None:
                    return False, None
            tensors.append(leaf)
        if self._limit is not None:
            is_number = type(self._limit) is int
            convert = tf.constant if is_number else tf.cast
            tensors.append(convert(self._limit, tf.int64))
        if call.run.has_tangents(tensors):
            return False, None
        with _tf.Interruptible():
            return True, call.outputs.pack(call.run(tensors))

    def keep(self, function: Any, outputs: Structure, tensors: Sequence[tf.Tensor]) -> None:
        """Keeps a function that has the loop, for such calls."""
        if function.graph.deferred_external_captures:
            return  # what it captures is asked for at each call
        dtypes = [tensor.dtype for tensor in tensors]
        call = _Call(_tf.CheapCall(function, _spec.OPS), outputs, dtypes)
        Calls.of(self._body, _ATTRIBUTE).keep(self._key, call)


def ticket(
    body: Callable[..., Any],
    options: tuple[Any, ...],
    arguments: tuple[Any, ...],
    limit: int | tf.Tensor | None,
) -> Ticket | None:
    """The ticket of an eager call; None of one that must go the long way.

    Args:
        body: a callable, as the user gave it.
        options: hashable: all that tells the loop beside these.
        arguments: containers of tensors.
        limit: the number of iterations.
    """
    if not isinstance(body, (PolymorphicFunction, ConcreteFunction)):
        return None
    if not _tf.is_usual_call() or isinstance(threading.current_thread(), threading._DummyThread):
        return None
    if limit is not None and not _is_simple_limit(limit):
        return None
    leaves: list[Any] = []
    try:
        kinds = tuple(_take(node, leaves) for node in arguments)
    except (_Unknown, TypeError):  # keys that cannot be sorted, say
        return None
    types = tuple(map(type, options))
    key = (options, types, kinds, limit is not None, _tf.current_device(), programs_switch())
    try:
        hash(key)
    except TypeError:
        return None
    return Ticket(body, key, leaves, limit)


def programs_switch() -> str | None:
    """What a user may switch between two calls, to compare them."""
    return os.environ.get("TF_TI_PROGRAM")


def _take(node: Any, leaves: list[Any]) -> Hashable:
    """The containers, types and shapes; adds the leaves."""
    kind = type(node)
    if kind is _tf.EagerTensor:
        if node.dtype in (tf.resource, tf.variant):
            raise _Unknown
        leaves.append(node)
        return _tf.key_of_eager_tensor(node)
    if node is None:
        return None
    if kind is tuple or kind is list:
        return (kind, *[_take(part, leaves) for part in node])
    if kind is dict:
        keys = sorted(node)
        return (dict, tuple(keys), *[_take(node[key], leaves) for key in keys])
    if kind in _arguments.NUMBERS:
        leaves.append(node)
        if kind is not int:
            return kind  # type: ignore[return-value]  # types are hashable
        # Without a body that wants another type it is an int32, an int64, or no tensor.
        for bits in (32, 64):
            if -(2 ** (bits - 1)) <= node < 2 ** (bits - 1):
                return int, bits
        raise _Unknown
    if isinstance(node, (np.ndarray, np.generic)) and node.dtype.kind in "biufc":
        return _take(tf.convert_to_tensor(node), leaves)
    if kind.__bases__ == (tuple,) and hasattr(kind, "_fields"):
        return (kind, *[_take(part, leaves) for part in node])
    raise _Unknown


def _is_simple_limit(limit: Any) -> bool:
    if type(limit) is int:
        return 0 <= limit < 2**63
    return type(limit) is _tf.EagerTensor and limit.dtype.is_integer and limit.shape.rank == 0
