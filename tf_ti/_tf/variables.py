"""Variables: of Keras, of tf.distribute with its copies, and the operations that read them."""

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import (
    distribute_lib,
    ps_values,
    sharded_variable,
    values,
    values_util,
)
from tensorflow.python.ops import default_gradient, resource_variable_ops

ShardedVariable = sharded_variable.ShardedVariable
# Tells the tapes that a variable is read.
variable_accessed = resource_variable_ops.variable_accessed
variable_shape = resource_variable_ops.variable_shape
# Of a variable's handle, and false for the handles of iterators, queues and other resources.
has_gradient = default_gradient.supports_default_grad
# Zeros for the value of a variable whose handle is given.
zeros_like_variable = default_gradient.zeros_like

# Operations that are stateful, but change nothing.
READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}
# Operations that run functions of Python, or datasets, of which a graph does not know the effects.
RUN_CODE_OF_OTHERS = {
    "EagerPyFunc",
    "IteratorGetNext",
    "IteratorGetNextAsOptional",
    "IteratorGetNextSync",
    "PyFunc",
    "PyFuncStateless",
    "ReduceDataset",
}


def unwrap_variable(variable: Any) -> Any:
    """The variable of TensorFlow behind one of Keras; everything else as it is."""
    value = getattr(variable, "value", None)
    return value if isinstance(value, (tf.Tensor, tf.Variable)) else variable


def has_handle(value: Any) -> bool:
    """Returns true for a resource variable, and for copies of one on several devices."""
    try:
        return hasattr(value, "handle")
    except ValueError:  # of copies on several devices, where none is meant
        return True


def of_one_copy(variable: Any) -> Any:
    """Returns one copy of a variable that has a copy on each device, and other values unchanged.

    Outside of replicas, a variable that is aggregated when it is read becomes the aggregate.
    """
    if not isinstance(variable, tf.distribute.DistributedValues):
        return variable
    is_in_replica = not tf.distribute.in_cross_replica_context()
    if isinstance(variable, values.SyncOnReadVariable):
        is_one = is_in_replica and tf.distribute.has_strategy()
        return variable if is_one else tf.convert_to_tensor(variable)
    return variable if is_in_replica else variable.values[0]


def is_distributed(variable: Any) -> bool:
    """Returns true for a variable whose updates tf.distribute directs, to all copies or to one."""
    return isinstance(variable, (values.DistributedVariable, ps_values.AggregatingVariable))


def in_update() -> bool:
    """Returns true where one copy of each variable is meant: in updates, and for saved models."""
    # The default strategy, which has no copies, knows no other's.
    is_in_update = (
        tf.distribute.has_strategy() and distribute_lib.get_update_replica_id() is not None
    )
    return is_in_update or values_util.is_saving_non_distributed()
