"""The choice: which of the loops that TensorFlow traces are taken, known before any is made."""

from collections.abc import Sequence

import tensorflow as tf

from tf_ti import _tf
from tf_ti.accelerate import loops as _loops, reports as _reports, settings as _settings
from tf_ti.loops.spec import OPS
from tf_ti.loops.tracing import custom_gradients as _custom_gradients, graphs as _graphs

FAULT = "tf_ti failed, which is a fault of tf_ti to report"


class NotTaken(Exception):
    """A loop is not taken, and why not."""


def take(traced: _tf.TracedWhile) -> Sequence[tf.Tensor] | None:
    """The tensors that leave a loop, if it is taken; None where TensorFlow is to make its own."""
    if not _settings.current().loops or traced.is_gradient or traced.is_for_types:
        return None
    try:
        _check_place(traced)
        iteration = _loops.iteration(traced)
        _check_gradient(iteration.graph)
        outputs, runs_as = _loops.add(traced, iteration)
    except NotTaken as reason:
        _reports.add(False, str(reason))
        return None
    except Exception as error:  # a program that runs without tf_ti is to run with it
        _reports.add(False, f"{FAULT}: {type(error).__name__}: {error}")
        return None
    _reports.add(True, runs_as)
    return outputs


def _check_place(traced: _tf.TracedWhile) -> None:
    """Refuses loops that others than tf_ti's kernel are right for."""
    if not traced.is_in_function:
        raise NotTaken("it is part of a graph of TensorFlow 1")
    if _tf.expects_xla():
        raise NotTaken("XLA compiles it, and has loops of its own")
    if len(traced.devices) > 1:
        raise NotTaken(f"its operations ask for several devices: {', '.join(traced.devices)}")
    test = traced.test
    if test.dtype != tf.bool or test.shape.rank != 0:
        raise NotTaken(f"its condition is no bool, but {test.dtype.name} of shape {test.shape}")
    if traced.limit is not None and _has_effects(traced.condition):
        raise NotTaken("its condition has effects, which take place beyond the limit too")
    if traced.calls_by_type:
        raise NotTaken(f"it calls a function of TensorFlow 1: {traced.calls_by_type[0]}")


def _has_effects(graph: _tf.FuncGraph) -> bool:
    return not all(_graphs.only_does(op, _tf.READS) for op in graph.get_operations())


def _check_gradient(graph: _tf.FuncGraph) -> None:
    """Refuses an iteration of which a gradient could not be had.

    Nobody knows yet whether a gradient will be asked for. It would repeat conditionals and loops of
    TensorFlow's in the body, which TensorFlow need not, as its loops record all of their insides.
    """
    unrepeatable = _graphs.find_unrepeatable(graph)
    for op in graph.get_operations():
        runs_functions = op.type not in OPS and bool(_graphs.function_names(op.node_def))
        if not runs_functions or not any(_tf.is_trainable(t.dtype) for t in op.outputs):
            continue
        if op in unrepeatable:
            raise NotTaken(
                f"a gradient would have to repeat {op.type} {op.name!r}, which has effects, draws "
                "random numbers or reads a variable that changes"
            )
        if _graphs.has_custom_gradients(op) and not _custom_gradients.linearity_inside(op):
            raise NotTaken(
                f"{op.type} {op.name!r} has a custom gradient inside that is not known to be linear"
            )
    for op in graph.get_operations():
        if _graphs.has_open_gradient(op):
            raise NotTaken(f"nothing tells to which tensors the custom gradient {op.name!r} refers")
