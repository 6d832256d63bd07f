"""`tf_ti.accelerate`, as users call it."""

import types
from collections.abc import Callable
from typing import Any, TypeVar, overload

from tf_ti import _tf
from tf_ti.accelerate import lookups as _lookups, settings as _settings, taking as _taking
from tf_ti.accelerate.reports import Report
from tf_ti.accelerate.settings import Acceleration, Setting

_Function = TypeVar("_Function", bound=Callable[..., Any])


@_tf.public
def accelerate(on: Any = True, *, lookups: bool = False) -> Any:
    """Lets the loops, and the look-ups, of code that knows nothing of tf_ti run as tf_ti's.

    The loops are those that TensorFlow traces from now on: `tf.while_loop`, AutoGraph's `for` and
    `while`, `tf.scan`, `tf.foldl`, `tf.map_fn`, loops of Keras's layers and of other libraries.
    TensorFlow traces them as ever; results, gradients, errors and the order of effects are the
    same. Loops in eager mode, loops that XLA compiles, and functions that were traced before stay
    as they are.

    The object that is returned undoes the setting. In a `with` statement the setting holds for
    loops that this thread traces within the block. As a decorator of a Python function, a
    coroutine, a generator or a `tf.function` it holds while the code of that runs, and not while it
    waits. Other threads see nothing of a block's or a decorator's object.

    Args:
        on: False for TensorFlow's own loops, within a wider setting. As a decorator, the function.
        lookups: true for `tf.nn.embedding_lookup_sparse` and `tf.nn.safe_embedding_lookup_sparse`
            too, in eager mode as well, of tables of floats: as `tf_ti.embedding_bag`, but with as
            many rows as TensorFlow's result has. Values and gradients are the same up to rounding.

    Returns:
        An `Acceleration`: its `undo()` ends it. Of a function, the function with it.

    Raises:
        TypeError: `on` is neither a bool nor a function, or a function that is traced already;
            `lookups` is no bool.

    Example:

        >>> with tf_ti.accelerate():
        ...     total = tf.function(lambda xs: tf.foldl(tf.add, xs))(tf.range(5))
        >>> total.numpy().item()
        10

        >>> @tf_ti.accelerate
        ... @tf.function
        ... def halve(x):
        ...     while tf.reduce_max(x) > 1.0:
        ...         x = x / 2.0
        ...     return x
        >>> halve(tf.constant([3.0, 4.0])).numpy().tolist()
        [0.75, 1.0]
    """
    if not isinstance(lookups, bool):
        raise TypeError(f"lookups must be True or False, got {lookups!r}")
    _tf.replace_whiles(_taking.take)
    if lookups:
        _tf.replace_lookups(_lookups.take)
    if not isinstance(on, bool):
        return _settings.while_it_runs(on, Setting(True, lookups))
    return _settings.everywhere(Setting(on, lookups))


class Switch(types.ModuleType):
    """The module `tf_ti.accelerate`, which is called as the function is."""

    report: Callable[[], Report]

    @overload
    def __call__(self, on: bool = True, *, lookups: bool = False) -> Acceleration: ...

    @overload
    def __call__(self, on: _Function, *, lookups: bool = False) -> _Function: ...

    @_tf.do_not_convert
    def __call__(self, on: Any = True, *, lookups: bool = False) -> Any:
        return accelerate(on, lookups=lookups)
