"""Operations that programs of vector code run: in the loop they take less time than around it."""

import math
import os
import re
from collections.abc import Callable

import tensorflow as tf

from tf_ti import _tf
from tf_ti._library import LOWERED, LOWERED_TYPES, MOST_ELEMENTS
from tf_ti.loops.passes import batching as _batching
from tf_ti.loops.passes.analysis import CORE, Analysis
from tf_ti.loops.passes.step import Note, Step, Unknown
from tf_ti.loops.spec import OPS
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing import graphs as _graphs

BY_XLA = "XLA compiles it"
_UNLIMITED = "it is a loop that only a condition ends, and its gradient needs its values"
# By the type of a conditional, what tells why it becomes no select that a program runs, or None.
CONDITIONALS: dict[str, Callable[[tf.Operation], str | None]] = {}


def run_core_of(analysis: Analysis) -> bool:
    """True if the loop has a core, and programs run all of it."""
    if not are_there():
        return False
    core = [
        op
        for op in analysis.uses.operations
        if analysis.levels[op] == CORE and op not in analysis.after
    ]
    has_core = not all(map(_batching.is_free, core))
    return has_core and all(map(run, core))


def run(op: tf.Operation) -> bool:
    """True if programs run an operation; where a dimension is not known, if that is small."""
    return refusal(op) is None


def account(loop: TracedLoop) -> Step | None:
    """The same loop, with notes of the operations that programs run, or do not.

    The notes name all operations that each iteration of the body runs, and operations of the
    condition that no program runs.
    """
    operations = in_each_iteration(loop.body)
    in_condition = in_each_iteration(loop.condition) if loop.condition is not None else []
    if not operations:
        return None
    _check_are_there()
    operations += [op for op in in_condition if refusal(op) is not None]
    refusals = {op: reason for op in operations if (reason := refusal(op)) is not None}
    run = [op for op in operations if op not in refusals]
    chosen = sum(map(_is_conditional, run))
    notes = [Note.of("programs", Unknown(why, op, _cure(op))) for op, why in refusals.items()]
    if run:
        text = f"programs may run {len(run)} of {len(operations)} operations"
        notes.insert(0, Note("programs", text, True, count=len(run)))
    if chosen:
        who = "1 conditional computes" if chosen == 1 else f"{chosen} conditionals compute"
        notes.insert(1, Note("programs", f"{who} all branches, and selects", True))
    return Step(loop, notes=tuple(notes))


def in_each_iteration(graph: tf.Graph) -> list[tf.Operation]:
    """The operations of a body, or of a condition, that compute something in each iteration."""
    folded = of_constants(graph)
    return [op for op in _batching.computing(graph.get_operations()) if op not in folded]


def of_constants(graph: tf.Graph) -> set[tf.Operation]:
    """Constants, and operations of constants: TensorFlow runs these before the graph runs."""
    found: set[tf.Operation] = set()
    for op in graph.get_operations():
        reads_constants = bool(op.inputs) and all(t.op in found for t in op.inputs)
        if op.type == "Const" or (reads_constants and _may_be_folded(op)):
            found.add(op)
    return found


def are_there() -> bool:
    """False on a GPU, where XLA compiles, and where the environment says so."""
    try:
        _check_are_there()
    except Unknown:
        return False
    return True


def _check_are_there() -> None:
    if os.environ.get("TF_TI_PROGRAM") == "0":
        raise Unknown("TF_TI_PROGRAM is 0", cure="Unset it in the environment.")
    if _tf.expects_xla():
        raise Unknown(BY_XLA)
    if _tf.expects_gpu():
        raise Unknown("there are no programs on a GPU")


def refusal(op: tf.Operation) -> str | None:
    """The reason why no program runs an operation, or None."""
    if _is_conditional(op):
        return CONDITIONALS[op.type](op)
    if op.type in OPS:
        return _refusal_of_loop(op)
    if op.type not in LOWERED and not _batching.is_free(op):
        return "no program has it"
    tensors = (*op.inputs, *op.outputs)
    others = [t.dtype.name for t in tensors if t.dtype not in LOWERED_TYPES]
    if others:
        return f"programs have no {others[0]}"
    return "its arrays are too large for a program" if any(map(_is_large, tensors)) else None


def _refusal_of_loop(op: tf.Operation) -> str | None:
    """The reason why a loop is no part of the program of the loop around it, or None."""
    loop = TracedLoop.from_op(op)
    if loop.is_stateful:
        return "it is a loop with effects"
    if not loop.spec.fuse:
        return "it is a loop with fuse=False"
    results = {t.ref() for t in getattr(op.graph, "outputs", ())}
    has_limit = loop.num_iterations is not None or any(i.is_counted for i in loop.spec.inputs)
    for output, tensor in zip(loop.spec.outputs, op.outputs) if loop.condition is not None else ():
        if not (tensor.consumers() or tensor.ref() in results):
            continue
        if output.mode in ("stack", "concat"):
            return "it is a loop that a condition ends, and stacks values"
        if output.mode == "sequence" and not has_limit:
            return _UNLIMITED
    for graph in loop.graphs:
        for inner in in_each_iteration(graph):
            reason = refusal(inner)
            if reason is not None:
                return f"it is a loop with {inner.type}: {reason}"
    return None


def cure_of_mapped(op: tf.Operation) -> str:
    """The cure where tf.vectorized_map made a While of an operation; "" for a user's."""
    mapped = re.search(r"([^/]+)/pfor/while(_\d+)?$", op.name)
    if mapped is None:
        return ""
    return (
        f"tf.vectorized_map runs {mapped[1]!r} row by row, as it has no form of it for all rows at "
        "once. Use an operation that has one: tf.gather(x, k) in place of x[k], say."
    )


def _cure(op: tf.Operation) -> str:
    """What a user may do about an operation that no program runs, or ""."""
    if op.type in OPS and refusal(op) == _UNLIMITED:
        return "Give it maximum_iterations: the program has memory for so many values."
    if any(word in op.type for word in ("Random", "Truncated", "Multinomial")):
        return "Draw the numbers of all iterations before the loop, and pass them as slices."
    if op.type in ("While", "StatelessWhile"):
        cure = "tf_ti.while_loop, tf_ti.scan and tf_ti.Loop are faster inside of a loop."
        return cure_of_mapped(op) or cure
    if op.type in ("Print", "PrintV2", "EagerPyFunc", "PyFunc", "PyFuncStateless"):
        return "Return the values, and look at them after the loop."
    if op.type in ("VariableV2", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"):
        return "Carry the value as a state, and assign it after the loop."
    types = {t.dtype for t in (*op.inputs, *op.outputs)}
    if op.type in LOWERED and any(t.is_integer and t not in LOWERED_TYPES for t in types):
        return "int32 and int64 run in programs."
    return ""


def _is_conditional(op: tf.Operation) -> bool:
    return op.type in CONDITIONALS


def _may_be_folded(op: tf.Operation) -> bool:
    calls_functions = bool(_graphs.function_names(op.node_def))
    return not (_tf.is_stateful(op) or calls_functions or any(map(_is_large, op.outputs)))


def _is_large(tensor: tf.Tensor) -> bool:
    known = tensor.shape.as_list() if tensor.shape.rank else []
    return math.prod(d for d in known if d is not None) > MOST_ELEMENTS
