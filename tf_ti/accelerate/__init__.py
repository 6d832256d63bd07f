"""`tf_ti.accelerate`: the loops of code that knows nothing of tf_ti run as tf_ti's.

TensorFlow traces a loop as ever: tf.while_loop, AutoGraph's `for` and `while`, tf.scan, tf.map_fn,
loops of Keras and of other libraries. Only the operation that it becomes is tf_ti's.

    switch.py      the function that users call
    settings.py    whether loops are taken: everywhere, within a block, while a function runs
    taking.py      the choice of the loops that are taken
    loops.py       a traced loop becomes one of tf_ti
    lookups.py     a look-up of embeddings becomes a bag
    reports.py     an account of each loop, by the user's line
    __main__.py    the command

The module is a function itself, `tf_ti.accelerate()`, and has that one's documentation.
"""

import inspect
import sys

from tf_ti.accelerate import switch as _switch
from tf_ti.accelerate.reports import Loop, Report, report
from tf_ti.accelerate.settings import Acceleration

__all__ = ["Acceleration", "Loop", "Report", "report"]

_module = sys.modules[__name__]
_module.__class__ = _switch.Switch
_module.__doc__ = _switch.accelerate.__doc__
_module.__dict__["__signature__"] = inspect.signature(_switch.accelerate)
