"""`tf_ti.advise_huge_pages`: a large table where it is read fastest."""

from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti._library import ops


@_tf.public
def advise_huge_pages(variable: Any, name: str | None = None) -> None:
    """Asks the operating system to move a variable's memory to huge pages.

    Looking up rows here and there in a large table on pages of 4 KB misses the processor's TLB at
    nearly every row; on pages of 2 MB it seldom does. Most Linux systems give huge pages only to
    those who ask. Where there are none, on another system, on another device than the CPU, or for
    a variable of less than 2 MB, nothing happens.

    Variables of 32 MB and more need no call: their memory is advised at the first look-up or update
    by tf_ti's ops, once for each memory that a variable gets, which takes as long as copying it;
    TF_TI_HUGE_PAGES=0 in the environment turns that off. Call this for smaller ones, or to have it
    done before the first step. Assigning a new value to all of a variable, as loading a checkpoint
    does, may give it other memory. tf_ti's updates stay in place, unless somebody still holds what
    was read of all of the variable.

    Args:
        variable: a tf.Variable, or a variable of Keras, of any dtype.
        name: a name for the operation.

    Raises:
        TypeError: `variable` is no variable.

    Example:

        >>> table = tf.Variable(tf.zeros([1_000_000, 64]))
        >>> tf_ti.advise_huge_pages(table)
    """
    variable = _tf.unwrap_variable(variable)
    if not isinstance(variable, tf.Variable):
        raise TypeError(f"variable must be a tf.Variable, got {variable!r}")
    is_distributed = isinstance(variable, tf.distribute.DistributedValues)
    for component in variable.values if is_distributed else [variable]:
        if tf.DeviceSpec.from_string(component.device or "").device_type in (None, "CPU"):
            ops.tf_ti_advise_huge_pages(component.handle, name=name)
