"""Reads at a counter inside branches: the body reads, and the branches get the element.

A body may read `x[k]` in branches alone, as in `if c: h = f(h, x[k])`. Where the read is in each
iteration of an element that is there, and would become a slice outside of the branch, it may as
well stand there: then it becomes one, and branches of nothing but arithmetic become selects.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.passes import conditionals as _conditionals, reads as _reads
from tf_ti.loops.passes.analysis import without_identity
from tf_ti.loops.passes.step import Step, Unknown
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing import graphs as _graphs

# The operations of an index.
_OF_INDEX = frozenset(("Add", "AddV2", "Cast", "Const", "Identity", "Pack", "Sub"))


def lift_reads(loop: TracedLoop) -> Step | None:
    """Takes the reads at counters out of the branches of a body, if there are any."""
    if not _may_read_in_branches(loop.part.operations):
        return None
    loop = loop.copied()
    graph = loop.body
    found = [op for op in graph.get_operations() if op.type in _conditionals.TYPES]
    lifter = _Lifter(loop)
    with _tf.stop_recording():
        lifted = [op for op in found if lifter.finds_reads_in(op, op.inputs[1:])]
        others: dict[Any, tf.Tensor] = {}
        for op in lifted:
            with graph.as_default():
                made = lifter.conditional(op, op.inputs)
            others.update(zip([t.ref() for t in op.outputs], made, strict=True))
    if not lifted:
        _graphs.forget(graph)
        return None
    _graphs.replace(others)
    results = [others.get(t.ref(), t) for t in graph.outputs]
    return Step(loop.with_part(loop.spec, loop.tensors, [[t] for t in graph.inputs], results))


def _may_read_in_branches(operations: Sequence[tf.Operation]) -> bool:
    """True if a branch of a conditional has an operation that may read an element."""
    if any(map(_graphs.has_open_gradient, operations)):
        return False
    conditionals = [op for op in operations if op.type in _conditionals.TYPES]
    return any(
        inner.type in _reads.TYPES
        for op in conditionals
        for branch in _graphs.traced_functions(op)
        for each in _graphs.with_functions(branch)
        for inner in each.get_operations()
    )


class _Lifter:
    """Finds reads in branches of a body, which it changes, and makes conditionals without them."""

    def __init__(self, loop: TracedLoop):
        self._loop = loop
        self._branches: dict[tf.Operation, list[_tf.FuncGraph]] = {}
        self._elements: dict[Any, tf.Tensor] = {}  # of the body, by what branches have of them

    def finds_reads_in(self, op: tf.Operation, given: Sequence[tf.Tensor | None]) -> bool:
        """True if a conditional has reads to lift.

        Args:
            given: the tensors of the body that its branches get, as far as they are such.
        """
        if op.inputs[0].dtype != (tf.bool if op.type.endswith("If") else tf.int32):
            return False
        try:
            graphs = _conditionals.branches(op)
        except Unknown:
            return False
        operations = [each for graph in graphs for each in graph.get_operations()]
        if any(graph.control_outputs for graph in graphs) or any(
            map(_graphs.has_custom_gradients, operations)
        ):
            return False
        is_found = False
        for graph in graphs:
            known = {
                parameter.ref(): tensor
                for parameter, tensor in zip(graph.inputs, given, strict=True)
                if tensor is not None
            }
            for each in graph.get_operations():
                if each.type in _conditionals.TYPES:
                    inner = [known.get(without_identity(t).ref()) for t in each.inputs[1:]]
                    is_found |= self.finds_reads_in(each, inner)
                elif each.type in _reads.TYPES:
                    is_found |= self._lifts(each, graph, known)
        if is_found:
            self._branches[op] = graphs
        return is_found

    def _lifts(self, op: tf.Operation, graph: _tf.FuncGraph, known: Mapping[Any, Any]) -> bool:
        """Lets the body read an element for a branch; returns true if it can."""
        needed = _graphs.needed_operations(graph.inputs, [op.outputs[0]])
        used = {t.ref() for each in needed for t in each.inputs if t.op.type == "Placeholder"}
        if not used <= known.keys() or any(
            each is not op and each.type not in _OF_INDEX for each in needed
        ):
            return False
        loop = self._loop
        with loop.body.as_default():
            (element,) = _graphs.copy_function_to_default_graph(
                graph, [op.outputs[0]], {ref: known[ref] for ref in used}
            )
        if not _reads.is_always_there(loop, element.op):
            return False
        self._elements[op.outputs[0].ref()] = element
        return True

    def conditional(self, op: tf.Operation, given: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Adds a conditional without the reads that were lifted; its outputs."""
        condition, *arguments = given
        branches = [
            functools.partial(self._branch, graph, arguments) for graph in self._branches[op]
        ]
        with tf.device(op.device):
            if op.type.endswith("If"):
                made = tf.cond(condition, *branches, name=op.name)
            else:
                made = tf.switch_case(condition, branches, name=op.name)
        made = tf.nest.flatten(made)
        conditional = without_identity(made[0]).op
        _tf.copy_place(op, conditional)
        for old, new in zip(op.outputs, made, strict=True):
            new.set_shape(old.shape)
        return made

    def _branch(self, graph: _tf.FuncGraph, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        inner = {
            op: functools.partial(self.conditional, op)
            for op in graph.get_operations()
            if op in self._branches
        }
        parameters = [parameter.ref() for parameter in graph.inputs]
        known = dict(zip(parameters, _tf.captured(arguments), strict=True))
        own = {t.ref() for op in graph.get_operations() for t in op.outputs}
        elements = [ref for ref in self._elements if ref in own]
        known.update(zip(elements, _tf.captured([self._elements[ref] for ref in elements])))
        return _graphs.copy_function_to_default_graph(graph, graph.outputs, known, inner)
