"""Updates of variables that tf.distribute has copies of: of all copies alike."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti._arguments import as_operations


def check_placed_alike(label: str, slot: tf.Variable, variable: tf.Variable) -> None:
    """Refuses a slot that has not a copy beside each of the variable's."""
    if _placement(slot) != _placement(variable):
        raise ValueError(
            f"{label} must be placed like the variable, {_described(variable)}, got "
            f"{_described(slot)}: create both in the scope of one tf.distribute.Strategy object, "
            "with the same synchronization"
        )


def identity(variable: tf.Variable) -> Any:
    """An object that a variable and its copies have, and no other variable."""
    container = _container(variable)
    return container if _tf.is_distributed(container) else variable.handle


def has_copies(variable: tf.Variable) -> bool:
    """True if an update of the variable is one of copies, which `update` makes."""
    return _tf.is_distributed(variable) and not _tf.in_update()


def is_one_of_copies() -> bool:
    """True if the variable that is updated now has copies that are to stay like it."""
    return _tf.in_update() and tf.distribute.get_strategy().num_replicas_in_sync > 1


def update(
    variable: tf.Variable,
    slices: tf.IndexedSlices,
    numbers: Sequence[tf.Tensor],
    update_copy: Callable[[tf.IndexedSlices, Sequence[tf.Tensor]], None],
) -> None:
    """Updates a variable that has copies, by a call in each replica or by one outside of them.

    In a replica the variable's aggregation makes one gradient of those of all replicas; outside of
    them there is but one. Every copy is updated with it. Where a variable is synchronised when it
    is read, each replica updates its own.

    Args:
        variable: the variable.
        slices: the gradient.
        numbers: the optimizer's, which all replicas must agree on.
        update_copy: update_copy(slices, numbers) updates the copy that `variable.handle` is of.
    """
    strategy, context = variable.distribute_strategy, tf.distribute.get_replica_context()
    is_outside = context is None or not tf.distribute.has_strategy()
    if not is_outside and context.strategy is not strategy:
        raise ValueError("variable is of another tf.distribute.Strategy than the replica")
    has_own, is_one = _has_own_copies(variable), strategy.num_replicas_in_sync == 1
    aggregation = variable.aggregation
    if is_outside:
        if has_own and not is_one and aggregation == tf.VariableAggregation.SUM:
            raise ValueError(
                "variable is the sum of its copies, which outside of the replicas would each be "
                "updated: make the update in one replica or in each, in strategy.run"
            )
        _update_copies(strategy, variable, slices, numbers, update_copy)
    elif has_own or is_one:
        update_copy(slices, numbers)
    elif aggregation == tf.VariableAggregation.NONE:
        raise ValueError(
            "variable has no aggregation, by which the gradients of the replicas become one: "
            "create it with tf.Variable(..., aggregation=tf.VariableAggregation.SUM), MEAN or "
            "ONLY_FIRST_REPLICA, or make the update outside of the replicas, in "
            "tf.distribute.get_replica_context().merge_call"
        )
    else:

        def merge(
            strategy: tf.distribute.Strategy,
            slices: tf.distribute.DistributedValues | tf.IndexedSlices,
            *numbers: tf.distribute.DistributedValues | tf.Tensor,
        ) -> None:
            results = [strategy.experimental_local_results(number) for number in numbers]
            if aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA:
                checks = []
                first = strategy.experimental_local_results(slices)[0]
                slices = strategy.extended.broadcast_to(first, variable)
            else:
                checks = _check_agreement(results)
                operation = tf.distribute.ReduceOp[aggregation.name]
                slices = strategy.extended.reduce_to(operation, slices, variable)
            with tf.control_dependencies(checks):
                first = [tf.identity(of_replicas[0]) for of_replicas in results]
            _update_copies(strategy, variable, slices, first, update_copy)

        context.merge_call(merge, args=(slices, *numbers))


def _update_copies(
    strategy: tf.distribute.Strategy,
    variable: tf.Variable,
    slices: tf.IndexedSlices,
    numbers: Sequence[tf.Tensor],
    update_copy: Callable[..., None],
) -> None:
    def update_one(_: tf.Variable, slices: tf.IndexedSlices, *numbers: tf.Tensor) -> None:
        update_copy(slices, numbers)

    strategy.extended.update(variable, update_one, args=(slices, *numbers))


def _check_agreement(numbers: Sequence[Sequence[tf.Tensor]]) -> list[tf.Operation]:
    message = (
        "an update's numbers must be the same in all replicas; what is not, multiply the values of "
        "the slices by"
    )
    return as_operations(
        *(
            tf.debugging.assert_equal(other, first, message)
            for first, *others in numbers
            for other in others
        )
    )


def _container(variable: tf.Variable) -> tf.Variable:
    """The variable that this one is a copy of, where the strategy knows it; else this one."""
    return tf.distribute.get_strategy().extended.value_container(variable)


def _has_own_copies(variable: tf.Variable) -> bool:
    """True if each replica has one of its own; a read of the variable makes one of them."""
    has_copies = isinstance(variable, tf.distribute.DistributedValues)
    return has_copies and variable.synchronization == tf.VariableSynchronization.ON_READ


def _placement(variable: tf.Variable) -> tuple[Any, ...] | None:
    variable = _container(variable)
    if not _tf.is_distributed(variable):
        return None
    return variable.distribute_strategy, _has_own_copies(variable)


def _described(variable: tf.Variable) -> str:
    variable = _container(variable)
    if not _tf.is_distributed(variable):
        return f"one variable on {variable.device}"
    strategy = variable.distribute_strategy
    devices = ", ".join(strategy.extended.parameter_devices)
    return f"a {type(variable).__name__} of a {type(strategy).__name__} of {devices}"
