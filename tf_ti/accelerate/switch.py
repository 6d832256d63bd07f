"""`tf_ti.accelerate`, as users call it."""

import types
from collections.abc import Callable
from typing import Any, TypeVar, overload

from tf_ti import _tf
from tf_ti.accelerate import settings as _settings, taking as _taking
from tf_ti.accelerate.reports import Report
from tf_ti.accelerate.settings import Acceleration

_Function = TypeVar("_Function", bound=Callable[..., Any])


@_tf.public
def accelerate(on: Any = True) -> Any:
    """Lets the loops of code that knows nothing of tf_ti run as tf_ti's.

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

    Returns:
        An `Acceleration`: its `undo()` ends it. Of a function, the function with it.

    Raises:
        TypeError: `on` is neither a bool nor a function, or a function that is traced already.

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
    _tf.replace_whiles(_taking.take)
    if not isinstance(on, bool):
        return _settings.while_it_runs(on, True)
    return _settings.everywhere(on)


class Switch(types.ModuleType):
    """The module `tf_ti.accelerate`, which is called as the function is."""

    report: Callable[[], Report]

    @overload
    def __call__(self, on: bool = True) -> Acceleration: ...

    @overload
    def __call__(self, on: _Function) -> _Function: ...

    @_tf.do_not_convert
    def __call__(self, on: Any = True) -> Any:
        return accelerate(on)
