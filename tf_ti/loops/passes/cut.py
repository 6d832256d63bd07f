"""Fission: what an iteration computes of no state is computed once, outside of the loop.

Each operation of a body is one of four:

    invariant   of captured values and inputs that are the same in all iterations,
    before      of those and of slices,
    core        of a state, which in turn depends on it,
    after       of a state, and no state depends on it.

Those that are invariant move to the graph around the loop. Those before and after are done there
for all iterations in one call, with the iterations along a new first axis; the loop keeps the core.
What crosses the cut is a sliced input, or a stacked output, of the loop that is left. A product of
slices and states, concatenated, by one matrix becomes two products first, of which one is before.

Only what `batching.RULES` lists moves. What is stateful, random or a call, or has a control
dependency, or whose values are no numbers, stays with all that depends on it; and so does
everything in a loop that has a condition. What has a custom gradient, with what that is the
gradient of, moves where that leaves nothing in the loop, and else stays. Moving must pay:

- Operations that hang together move where one of them is a product with an invariant factor or a
  convolution, or where the values at the cut are no larger than the slices that they read, or the
  outputs that they give.
- All values at the cuts, and each value on the way, have at most 4 times the bytes of slices and
  outputs together. An unknown dimension counts as larger than all that are known.
- At the ends of what moves, an operation stays in the loop whose values are larger at the cut.
- What is after moves only where all its states have static shapes: others may change from one
  iteration to the next. Slices of different inputs meet outside only where their numbers of
  iterations are known to agree, and pieces that overlap or leave gaps stay. Integers that are
  invariant are computed on both sides: XLA must know shapes, and does not know a loop's inputs.

The outputs that are last values, those with a length, and those whose pieces have unknown extents
stay the loop's. Everything happens before the loop is an operation, with operations of TensorFlow:
gradients, vectorisation, XLA and saved functions see nothing else.
"""

import dataclasses
import enum
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import slices as _slices, spec as _spec
from tf_ti.loops.passes import batching as _batching, growth as _growth
from tf_ti.loops.tracing import custom_gradients as _custom_gradients, graphs as _graphs

_CONSTANT, _INVARIANT, _BEFORE, _CORE = range(4)
_LARGEST = 4  # the values at the cuts, of slices and outputs
_UNKNOWN = 2**64


class Fuse(enum.IntEnum):
    """What is done about a loop before it becomes an operation."""

    NOTHING = 0
    WHOLE = 1  # it may become one other operation, with nothing around that
    ALL = 2


# What knows whole loops: from a loop and its name to what adds something else instead, and gives
# its outputs, or None. `recurrent`, which knows loops, puts something here, and not the reverse.
recognizers: list[Callable[["Fission", Fuse, str | None], list[tf.Tensor] | None]] = []


@dataclasses.dataclass(frozen=True)
class Traced:
    """A loop that is not yet an operation.

    Attributes:
        spec: what it is.
        graph: the body, which `run` may change.
        num_results: how many of the body's results are the user's; a gradient needs the others
            recorded.
        tensors: the inputs.
        num_iterations: the limit, or None.
        condition: a graph, or None.
        lengths: of outputs.
        notes: what `run` did about it, in words.
    """

    spec: _spec.LoopSpec
    graph: _tf.FuncGraph
    num_results: int
    tensors: list[tf.Tensor]
    num_iterations: int | tf.Tensor | None = None
    condition: _tf.FuncGraph | None = None
    lengths: Sequence[tf.Tensor] = ()
    notes: list[str] = dataclasses.field(default_factory=list)

    def run(self, checkpoint_every: int, fuse: Fuse, name: str | None) -> list[tf.Tensor]:
        """Adds the loop to the current graph, or runs it where there is none."""
        if fuse is Fuse.NOTHING or tf.executing_eagerly():
            return self._run(checkpoint_every, name)
        fission = Fission(self)
        if not fission.may_change():
            return self._run(checkpoint_every, name)
        if checkpoint_every == 1:  # else what is recorded is to be less than an operation records
            for recognize in recognizers:
                outputs = recognize(fission, fuse, name)
                if outputs is not None:
                    self._forget_body()
                    return outputs
        split = fission.split() if fuse is Fuse.ALL else None
        if split is None:
            return self._run(checkpoint_every, name)
        core, finish = split
        if core is not None:
            return finish(core._run(checkpoint_every, name))
        outputs = finish([])
        self._forget_body()
        return outputs

    def _forget_body(self) -> None:
        """Nobody needs it any more, unless a custom gradient refers to it."""
        if not any(map(_graphs.has_custom_gradient, self.graph.get_operations())):
            _tf.dismantle(self.graph)

    def _run(self, checkpoint_every: int, name: str | None) -> list[tf.Tensor]:
        spec = self.spec
        if not tf.executing_eagerly() or _tf.is_recording():
            recorded = range(self.num_results, len(spec.result_types))
            spec = spec.recording(checkpoint_every, recorded)
        graphs = [self.graph] if self.condition is None else [self.graph, self.condition]
        if not tf.executing_eagerly():
            labels = [given.label for given in spec.inputs]
            _growth.check(self.graph, labels)
            if self.condition is not None:
                _growth.check(self.condition, [labels[i] for i in spec.condition_inputs])
        outputs = _spec.run_loop(
            spec,
            _tf.make_function(self.graph),
            self.tensors,
            self.num_iterations,
            any(_tf.is_stateful(op) for graph in graphs for op in graph.get_operations()),
            name,
            None if self.condition is None else _tf.make_function(self.condition),
            self.lengths,
        )
        return outputs[: len(self.spec.outputs)]


class Fission:
    """One loop, and what becomes of its parts."""

    def __init__(self, loop: Traced):
        self.loop, self._spec, self._graph = loop, loop.spec, loop.graph
        self._states = {parameter for _, parameter in self._spec.back_edges}
        self._counted = [i for i, given in enumerate(self._spec.inputs) if given.is_sliced]
        strides = [self._spec.inputs[i].stride for i in self._counted]
        strides = strides or [o.stride for o in self._spec.outputs if o.mode in ("stack", "concat")]
        # The iterations lie along the new axis as they do in the tensors, where those agree.
        self._lost: set[tf.Operation] = set()  # shapes of what stays in the loop
        self._bound: set[tf.Operation] = set()  # what custom gradients keep in it
        self.order = -1 if strides and max(strides) < 0 else 1
        self._values: dict[Any, tf.Tensor] = {}
        self._sources = list(self._graph.inputs)

    def may_change(self) -> bool:
        """Whether the loop may be anything else; finds out about its operations."""
        if self._spec.condition_inputs is not None or not self._count():
            return False
        # What a custom gradient refers to may be known to itself alone.
        if any(map(_graphs.has_open_gradient, self._graph.get_operations())):
            return False
        self._classify()
        return True

    def split(self) -> tuple[Traced | None, Callable[[list[tf.Tensor]], list[tf.Tensor]]] | None:
        """The loop that is left, and what makes the outputs of this one of its outputs.

        None where nothing moves; for the loop, where nothing is left.
        """
        for op in self._operations:
            if _batching.kind(op) == "CustomGradient":
                self._bound |= _custom_gradients.group(op)
        if self._bound:
            self._classify()
        if self._split_products():
            self._classify()
        self._choose()
        while self._lose_shapes():
            self._classify()
            self._choose()
        self._cut()
        if not self._before and not self._after and not self._crossing:
            return None
        return self._make()

    # --- what recognizers ask ---------------------------------------------------------------------

    def is_invariant(self, tensor: tf.Tensor) -> bool:
        return self._level[tensor.op] <= _INVARIANT

    def is_outside(self, tensor: tf.Tensor) -> bool:
        """Whether it is of no state, and may be computed outside of the loop."""
        return self._level[tensor.op] <= _BEFORE

    def is_after(self, tensor: tf.Tensor) -> bool:
        return tensor.op in self._after

    def input_of(self, parameter: tf.Tensor) -> tuple[_spec.Input, tf.Tensor] | None:
        """What a parameter gets, and of which tensor; None for what is no parameter."""
        i = self._parameters.get(parameter.op)
        return None if i is None else (self._spec.inputs[i], self.loop.tensors[i])

    def agree(self, tensors: Iterable[tf.Tensor]) -> bool:
        """Whether there are as many of each of some slices, or of what is computed of them."""
        origins = [self._origin[t.op] for t in tensors if self._level[t.op] == _BEFORE]
        return len({self._agreement[origin] for origin in origins}) <= 1

    def give(self, tensor: tf.Tensor, stacked: tf.Tensor) -> None:
        """Says what the values of a tensor of the core are, for `compute`."""
        self._values[tensor.ref()] = stacked

    # --- iterations ------------------------------------------------------------------------------

    def _count(self) -> bool:
        """Finds out how often the body runs, as far as that is known; whether all may agree on it.

        Sets for each counted input what its number of iterations has in common with another's.
        """
        limit = self.loop.num_iterations
        static = None if limit is None else tf.get_static_value(tf.convert_to_tensor(limit))
        counts = set() if static is None else {int(static)}
        found = {}
        for i in self._counted:
            given, extent = self._spec.inputs[i], None
            shape = self.loop.tensors[i].shape
            if shape.rank is not None and -shape.rank <= given.axis < shape.rank:
                extent = shape[given.axis]
            if extent is None:
                continue
            try:
                found[i] = _slices.count(given, extent)
            except ValueError:
                return False  # which the loop says better
            if given.mode != "iterator":
                counts.add(found[i])
        if len(counts) > 1:
            return False
        count = next(iter(counts), None)
        self._has_iterations = bool(count)
        self._agreement: dict[int, Any] = {}
        for i in self._counted:
            is_known = i in found and count is not None and found[i] >= count
            self._agreement[i] = "known" if is_known else i
        is_known = all(key == "known" for key in self._agreement.values())
        is_known = is_known and (limit is None or static is not None)
        # Without the loop nobody would compare numbers of iterations.
        self.may_leave = is_known or (limit is None and len(self._counted) == 1)
        return True

    # --- which operation is what -----------------------------------------------------------------

    def _classify(self) -> None:
        spec, graph = self._spec, self._graph
        self.results = results = [_without_identity(t) for t in graph.outputs]
        sources = {result for result, _ in spec.back_edges}
        recorded = range(self.loop.num_results, len(graph.outputs))
        staying = sources | set(recorded)
        staying |= {o.source for o in spec.outputs if not self.may_be_joined_outside(o)}
        self._used = sorted({o.source for o in spec.outputs} | staying)
        self._staying = {results[r].ref() for r in staying}
        self._leaving = {results[r].ref() for r in self._used} - self._staying
        self.largest = _LARGEST * (
            sum(_size(graph.inputs[i]) for i in self._counted)
            + sum(_size(results[o.source]) for o in spec.outputs if o.mode in ("stack", "concat"))
        )
        targets = [results[r] for r in self._used]
        self._operations = _graphs.needed_operations(graph.inputs, targets, graph.control_outputs)
        self._readers: dict[tf.Operation, list[tf.Operation]] = {}
        for op in self._operations:
            for source in dict.fromkeys(t.op for t in op.inputs):
                self._readers.setdefault(source, []).append(op)
        self._level: dict[tf.Operation, int] = {}
        self._origin: dict[tf.Operation, int] = {}  # the first slice that is used
        self._parameters: dict[tf.Operation, int] = {}
        for i, parameter in enumerate(graph.inputs):
            self._parameters[parameter.op] = self._origin[parameter.op] = i
            self._level[parameter.op] = self._level_of_input(i)
        for op in self._operations:
            self._level[op] = self._level_of(op)
        self._before = {op for op in self._operations if self._level[op] == _BEFORE}
        self._after: set[tf.Operation] = set()
        for op in reversed(self._operations):
            if self._level[op] == _CORE and self._is_after(op):
                self._after.add(op)
        for tensor in targets:
            is_core = self._level[tensor.op] == _CORE
            if not is_core and not (self.may_leave and tensor.op in self._before):
                self._leaving.discard(tensor.ref())
                self._staying.add(tensor.ref())

    def may_be_joined_outside(self, output: _spec.Output) -> bool:
        """Whether the output may as well be made of the stacked values, outside of the loop."""
        if output.mode == "stack":
            return output.length < 0 and self._graph.outputs[output.source].shape.rank is not None
        if output.mode != "concat":
            return False
        extent = self._spec.concat_extent(output)
        return extent is not None and output.part_size in (0, extent)

    def _level_of_input(self, i: int) -> int:
        given, shape = self._spec.inputs[i], self.loop.tensors[i].shape
        parameter = self._graph.inputs[i]
        if i in self._states or parameter.dtype not in _batching.TYPES or shape.rank is None:
            return _CORE
        if given.mode not in ("value", "slice", "index", "iterator"):
            return _CORE
        known = shape.as_list()
        if given.is_sliced:
            if not _slices.tiles(given):
                return _CORE
            if self._agreement[i] == i and not (given.part_size == 1 and _slices.covers(given)):
                return _CORE  # the loop finds out whether the pieces fit
            if not -shape.rank <= given.axis < shape.rank:
                return _CORE
            known[given.axis] = given.part_size
            if given.mode != "slice":
                del known[given.axis]
        # Only the loop finds out whether a tensor has the shape that a body was built for.
        if parameter.shape.rank != len(known):
            return _CORE
        if any(d is None and p is not None for d, p in zip(known, parameter.shape.as_list())):
            return _CORE
        return _BEFORE if given.is_sliced else _INVARIANT

    def _level_of(self, op: tf.Operation) -> int:
        if op.type == "Const" and not op.control_inputs:
            return _CONSTANT
        levels = [self._level[t.op] for t in _batching.used(op)]
        level = max(levels, default=_CORE)
        if level == _CORE:
            return _CORE
        if level == _BEFORE:
            if op.type == "Shape":
                is_outside = _batching.is_plain(op) and op not in self._lost
                return _INVARIANT if is_outside else _CORE
            given = zip(_batching.used(op), levels)
            origins = [self._origin[t.op] for t, own in given if own == _BEFORE]
            if len({self._agreement[origin] for origin in origins}) > 1:
                return _CORE
            self._origin[op] = origins[0]
        return level if self._is_movable(op, levels) else _CORE

    def _is_movable(self, op: tf.Operation, levels: Sequence[int]) -> bool:
        is_stacked = [level >= _BEFORE for level in levels]
        if op in self._bound:
            return False
        if not self._has_iterations and _batching.needs_iterations(op, is_stacked):
            return False
        if any(is_stacked) and _sizes(filter(_batching.is_read, op.outputs)) > self.largest:
            return False
        return _batching.is_known(op, is_stacked)

    def _is_after(self, op: tf.Operation) -> bool:
        if any(t.ref() in self._staying for t in op.outputs):
            return False
        if any(reader not in self._after for reader in self._readers.get(op, ())):
            return False
        levels = [self._level[t.op] for t in _batching.used(op)]
        # Without a value of the loop nobody would wait for what it finds wrong.
        return _CORE in levels and self._is_movable(op, levels)

    # --- products of concatenations --------------------------------------------------------------

    def _split_products(self) -> bool:
        """Makes two products of one of slices and states; whether there was one."""
        found = False
        for op in self._operations:
            if op.type != "MatMul" or op in self._after or self._level[op] != _CORE:
                continue
            for side in (0, 1):
                found = self._split_product(op, side) or found
        return found

    def _split_product(self, op: tf.Operation, side: int) -> bool:
        joined, matrix = op.inputs[side], op.inputs[1 - side]
        transposed = op.get_attr("transpose_a"), op.get_attr("transpose_b")
        contracted = 1 - side if not transposed[side] else side
        if joined.op.type != "ConcatV2" or self._level[matrix.op] > _INVARIANT:
            return False
        *parts, axis = joined.op.inputs
        axis = tf.get_static_value(axis)
        widths = [p.shape[contracted] if p.shape.rank == 2 else None for p in parts]
        if axis is None or int(axis) % 2 != contracted or None in widths:
            return False
        is_before = [self._level[p.op] <= _BEFORE for p in parts]
        origins = [self._origin[p.op] for p in parts if self._level[p.op] == _BEFORE]
        product = op.outputs[0]
        if all(is_before) or not any(is_before) or len({self._agreement[o] for o in origins}) > 1:
            return False
        if not _batching.is_plain(op) or _size(product) > self.largest:
            return False
        # The matrix's axis that is contracted.
        rows = side if not transposed[1 - side] else 1 - side

        def multiplied(wanted: bool) -> tf.Tensor:
            chosen = [k for k, is_so in enumerate(is_before) if is_so == wanted]
            factors = [
                _concat([parts[k] for k in chosen], contracted),
                _concat([pieces[k] for k in chosen], rows),
            ]
            return _tf.repeat_operation(op, factors if side == 0 else factors[::-1])[0]

        dtype = matrix.dtype
        with self._graph.as_default(), _tf.stop_recording(), tf.device(op.device):
            pieces = _tf.add_operation(
                "SplitV",
                [matrix, tf.constant(widths), tf.constant(rows)],
                [dtype] * len(widths),
                T=dtype,
                Tlen=tf.int32,
                num_split=len(widths),
            )
            terms = [multiplied(True), multiplied(False)]
            (total,) = _tf.add_operation("AddV2", terms, [dtype], T=dtype)
        _graphs.replace(product, total)
        self._graph.outputs = [total if t is product else t for t in self._graph.outputs]
        return True

    # --- what moves ------------------------------------------------------------------------------

    def _choose(self) -> None:
        """Leaves in the loop what would not pay outside of it."""
        # What of the operations after the loop stays in it reads what is before.
        self._trim_after()
        after = self._groups_that_pay(self._after)
        self._trim_before()
        groups = self._groups_that_pay(self._before) + after
        groups.sort(key=lambda entry: not any(map(self._is_product, entry[1])))
        total = 0
        for size, group, region in groups:
            if total + size <= self.largest:
                total += size
            else:
                region.difference_update(group)

    def _groups_that_pay(
        self, region: set[tf.Operation]
    ) -> list[tuple[int, list[tf.Operation], set[tf.Operation]]]:
        """Leaves the other groups of a region in the loop; with each the bytes at its cut."""
        found = []
        for group in self._groups(region):
            if region is self._before:
                size = _sizes(t for op in group for t in op.outputs if self._crosses(t))
                freed = _sizes(self._slices_of(group))
            else:
                size = _sizes(self._cut_of(group))
                freed = _sizes(t for op in group for t in op.outputs if t.ref() in self._leaving)
            pays = size <= freed and not all(map(_batching.is_free, group))
            if pays or any(map(self._is_product, group)):
                found.append((size, group, region))
            else:
                region.difference_update(group)
        return found

    def _trim_before(self) -> None:
        for op in reversed(self._operations):
            if op not in self._before or self._is_product(op):
                continue
            is_last = all(self._stays(reader) for reader in self._readers.get(op, ()))
            if is_last and not any(t.ref() in self._leaving for t in op.outputs):
                given = [t for t in op.inputs if self._level[t.op] == _BEFORE]
                made = filter(_batching.is_read, op.outputs)
                if _sizes(made) > _sizes(t for t in given if not self._crosses(t)):
                    self._before.remove(op)

    def _trim_after(self) -> None:
        for op in self._operations:
            if op not in self._after:
                continue
            taken = [t for t in op.inputs if self._is_core(t) and t.op not in self._after]
            cut = self._cut_of([op])
            if not all(t.shape.is_fully_defined() for t in taken):
                self._after.remove(op)
            elif not self._is_product(op) and not any(t.op in self._after for t in op.inputs):
                own = [t for t in cut if self._readers[t.op] == [op]]
                if _sizes(filter(_batching.is_read, op.outputs)) < _sizes(own):
                    self._after.remove(op)
        for op in reversed(self._operations):
            if any(reader not in self._after for reader in self._readers.get(op, ())):
                self._after.discard(op)

    def _lose_shapes(self) -> bool:
        """Whether there are shapes that seemed invariant, but are of what stays in the loop."""
        lost = {
            op
            for op in self._operations
            if op.type == "Shape" and self._level[op] == _INVARIANT
            for source in [op.inputs[0].op]
            if self._level[source] == _BEFORE and source not in self._before | set(self._parameters)
        }
        self._lost |= lost
        return bool(lost)

    def _groups(self, region: set[tf.Operation]) -> list[list[tf.Operation]]:
        """Those operations of a region that hang together."""
        group_of: dict[tf.Operation, list[tf.Operation]] = {}
        for op in self._operations:
            if op in region:
                group_of[op] = [op]
                for source in {t.op for t in op.inputs} & region:
                    if group_of[source] is not group_of[op]:
                        group_of[source] += group_of[op]
                        for other in group_of[op]:
                            group_of[other] = group_of[source]
        return list({id(group): group for group in group_of.values()}.values())

    def _is_product(self, op: tf.Operation) -> bool:
        return _batching.is_product(op, [self._level[t.op] >= _BEFORE for t in op.inputs])

    def _stays(self, op: tf.Operation) -> bool:
        """Whether the loop that is left has it."""
        if op in self._before or op in self._after:
            return False
        if self._level[op] != _INVARIANT:
            return True
        # Shapes, for one, are computed on both sides.
        return not self._is_worth_it(op) and any(map(self._stays, self._readers.get(op, ())))

    def _crosses(self, tensor: tf.Tensor) -> bool:
        """Whether what stays in the loop reads what is before."""
        return tensor.ref() in self._staying or any(
            self._stays(reader) and any(t is tensor for t in reader.inputs)
            for reader in self._readers.get(tensor.op, ())
        )

    def _cut_of(self, operations: Iterable[tf.Operation]) -> list[tf.Tensor]:
        """What operations after the loop get of it, but for what it gives anyway."""
        given = {self.results[o.source].ref() for o in self._stacks()}
        found = {
            t.ref(): t
            for op in operations
            for t in op.inputs
            if self._level[t.op] == _CORE and t.op not in self._after
        }
        return [tensor for ref, tensor in found.items() if ref not in given]

    def _stacks(self) -> list[_spec.Output]:
        """The outputs that are stacked as what is after would have them."""
        return [
            o
            for o in self._spec.outputs
            if (o.mode, o.axis, o.stride, o.length) == ("stack", 0, self.order, -1)
        ]

    def _slices_of(self, operations: Iterable[tf.Operation]) -> list[tf.Tensor]:
        found = {t.ref(): t for op in operations for t in op.inputs if t.op in self._parameters}
        return [t for t in found.values() if self._level[t.op] == _BEFORE]

    # --- the cut ---------------------------------------------------------------------------------

    def _cut(self) -> None:
        """Finds out what is left in the loop, and what that gets of what is before."""
        moved = self._before | self._after
        results = {r: self.results[r] for r in self._used}
        self._left = [
            r for r, t in results.items() if t.op not in moved or t.ref() in self._staying
        ]
        self._given_to_after = self._cut_of(self._after)
        targets = [*(results[r] for r in self._left), *self._given_to_after]
        self._crossing: dict[Any, tf.Tensor] = {}
        self._read: set[int] = set()
        seen: set[tf.Operation] = set()
        stack: list[tf.Operation] = list(self._graph.control_outputs)

        def read(tensor: tf.Tensor) -> None:
            op = tensor.op
            if op in self._parameters:
                self._read.add(self._parameters[op])
            elif op in self._before:
                self._crossing.setdefault(tensor.ref(), tensor)
            elif self._level[op] == _INVARIANT and self._is_worth_it(op):
                self._crossing.setdefault(tensor.ref(), tensor)
            else:
                stack.append(op)

        for tensor in targets:
            read(tensor)
        while stack:
            op = stack.pop()
            if op not in seen:
                seen.add(op)
                stack.extend(op.control_inputs)
                for tensor in op.inputs:
                    read(tensor)
        self._inside = seen

    @staticmethod
    def _is_worth_it(op: tf.Operation) -> bool:
        return not _batching.is_free(op) and not any(t.dtype.is_integer for t in op.outputs)

    def _make(self) -> tuple[Traced | None, Callable[[list[tf.Tensor]], list[tf.Tensor]]]:
        spec, loop = self._spec, self.loop
        crossing = list(self._crossing.values())
        with tf.name_scope("before_loop"):
            made = self.compute(crossing)
        # What takes an input's place stands there: an error names the first that is wrong.
        inputs = [
            (i, spec.inputs[i], self._graph.inputs[i], loop.tensors[i]) for i in self._kept_inputs()
        ]
        for inside, outside in zip(crossing, made):
            at = self._origin[inside.op] if self._is_stacked(inside) else len(spec.inputs)
            inputs.append((at, self._input_of(inside), inside, outside))
        inputs.sort(key=lambda entry: entry[0])
        users = [r for r in self._left if r < loop.num_results]
        recorded = [r for r in self._left if r >= loop.num_results]
        has_effects = bool(self._graph.control_outputs)
        self._leave_only(
            [inside for _, _, inside, _ in inputs],
            [
                *(self.results[r] for r in users),
                *self._given_to_after,
                *(self.results[r] for r in recorded),
            ],
        )
        result = {r: k for k, r in enumerate(users)}
        parameter = {at: k for k, (at, given, _, _) in enumerate(inputs) if given.mode == "value"}
        outputs = [
            *(dataclasses.replace(o, source=result[o.source]) for o in self._left_outputs()),
            *(
                _spec.Output(f"{t.op.name} of the body", t.dtype, "stack", k, 0, self.order)
                for k, t in enumerate(self._given_to_after, start=len(users))
            ),
        ]
        core = dataclasses.replace(
            loop,
            spec=dataclasses.replace(
                spec,
                inputs=tuple(given for _, given, _, _ in inputs),
                outputs=tuple(outputs),
                back_edges=tuple((result[r], parameter[p]) for r, p in spec.back_edges),
                result_types=tuple(t.dtype for t in self._graph.outputs),
                result_shapes=tuple(t.shape for t in self._graph.outputs),
            ),
            num_results=len(users) + len(self._given_to_after),
            tensors=[tensor for _, _, _, tensor in inputs],
        )
        for place, operations in (("before", self._before), ("after", self._after)):
            names = sorted({_batching.kind(op) for op in operations if not _batching.is_free(op)})
            if names:
                loop.notes.append(f"computed {place} it, for all iterations: {', '.join(names)}")
        return core if outputs or has_effects else None, self._finish

    def _left_outputs(self) -> list[_spec.Output]:
        return [o for o in self._spec.outputs if o.source in self._left]

    def _finish(self, given: list[tf.Tensor]) -> list[tf.Tensor]:
        """All outputs, of those of the loop that is left."""
        left = self._left_outputs()
        self._values.update(zip([t.ref() for t in self._given_to_after], given[len(left) :]))
        for output, tensor in zip(left, given):
            if output in self._stacks():
                self._values[self.results[output.source].ref()] = tensor
        gone = [o for o in self._spec.outputs if o.source not in self._left]
        with tf.name_scope("after_loop"):
            stacked = self.compute([self.results[o.source] for o in gone])
            joined = iter([self.joined(o, t) for o, t in zip(gone, stacked)])
        own = iter(given)
        return [next(own if o.source in self._left else joined) for o in self._spec.outputs]

    def _leave_only(self, inputs: list[tf.Tensor], results: list[tf.Tensor]) -> None:
        """Makes the body that of the loop that is left."""
        graph = self._graph
        graph.outputs = results
        graph.left_out.update(op for op in graph.get_operations() if op not in self._inside)
        graph.left_out.difference_update(tensor.op for tensor in inputs)
        _graphs.set_inputs(graph, [[tensor] for tensor in inputs])
        graph.structured_outputs = tuple(graph.outputs)
        for tensor, parameter in zip(inputs, graph.inputs):
            # What comes after the loop may now refer to the parameter.
            if tensor is not parameter:
                self._values[parameter.ref()] = self._values[tensor.ref()]
                self._level[parameter.op] = self._level[tensor.op]

    def _kept_inputs(self) -> list[int]:
        """The inputs that the loop still has: what it reads, and what it is to check."""
        kept = self._read | {i for i, p in enumerate(self._graph.inputs) if self._is_core(p)}
        origins = {self._origin[t.op] for t in self._crossing.values() if self._is_stacked(t)}
        present = origins | kept.intersection(self._counted)
        kept |= {i for i in self._counted if self._agreement[i] == i and i not in present}
        if self._counted and not present:
            kept.add(self._counted[0])
        return sorted(kept)

    def _is_core(self, tensor: tf.Tensor) -> bool:
        return self._level[tensor.op] == _CORE

    def _is_stacked(self, tensor: tf.Tensor) -> bool:
        return self._level[tensor.op] >= _BEFORE

    def _input_of(self, tensor: tf.Tensor) -> _spec.Input:
        """How the loop gets what is computed before it."""
        if not self._is_stacked(tensor):
            return _spec.Input(f"{tensor.op.name} of the body", tensor.shape)
        given = self._spec.inputs[self._origin[tensor.op]]
        mode = "iterator" if given.mode == "iterator" else "index"
        start, end = (0, -1) if self.order > 0 else (-1, 0)
        return _spec.Input(given.label, tensor.shape, mode, 0, start, end, self.order)

    # --- outside of the loop ---------------------------------------------------------------------

    def compute(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The values of what moved, of all iterations at once where it is not invariant."""
        known = [ref.deref() for ref in self._values]
        sources = [*self._sources, *known]
        for op in _graphs.needed_operations(sources, tensors, reads=_batching.used):
            given = [self._value(t) for t in _batching.used(op)]
            is_stacked = [self._is_stacked(t) for t in _batching.used(op)]
            if op.type == "Shape" and is_stacked[0]:
                made = [tf.shape(given[0], op.outputs[0].dtype)[1:]]
            else:
                made = _batching.batched(op, given, is_stacked)
            self._values.update(zip([t.ref() for t in op.outputs], made))
        return [self._value(t) for t in tensors]

    def _value(self, tensor: tf.Tensor) -> tf.Tensor:
        if tensor.ref() not in self._values:
            i = self._parameters[tensor.op]
            given = self.loop.tensors[i]
            self._values[tensor.ref()] = self._pieces(i) if self._is_stacked(tensor) else given
        return self._values[tensor.ref()]

    def _pieces(self, i: int) -> tf.Tensor:
        """All that a parameter gets, stacked."""
        given, tensor = self._spec.inputs[i], self.loop.tensors[i]
        axis, order = given.axis % tensor.shape.rank, 1 if given.stride > 0 else -1
        if not _slices.covers(given):
            edges = [at % tensor.shape[axis] for at in (given.start, given.end)]
            tensor = tensor[(*[slice(None)] * axis, slice(min(edges), max(edges) + 1))]
        dims = _batching.extents(tensor)
        if given.mode == "slice":
            count = dims[axis] // given.part_size
            dims[axis : axis + 1] = [count, given.part_size]
            tensor = _batching.reshape(tensor, dims)
        rest = [k for k in range(len(dims)) if k != axis]
        tensor = _batching.transposed(tensor, [axis, *rest])
        if given.mode == "iterator":
            tensor = self._visited(tensor, order)
        return tensor if order == self.order else tf.reverse(tensor, [0])

    def _visited(self, tensor: tf.Tensor, order: int) -> tf.Tensor:
        """Those elements of an iterator's tensor that the loop comes to."""
        count = tf.get_static_value(self.loop.num_iterations)
        if count is not None and int(count) == tensor.shape[0]:
            return tensor
        count = self.loop.num_iterations if count is None else int(count)
        if order > 0:
            return tensor[:count]
        extent = tf.shape(tensor, tf.int64)[0]
        return tensor[tf.maximum(extent - count, 0) :]

    def joined(self, output: _spec.Output, stacked: tf.Tensor) -> tf.Tensor:
        """An output of the loop, of the values of all iterations."""
        if output.stride != self.order:
            stacked = tf.reverse(stacked, [0])
        axis = output.axis % (stacked.shape.rank - (output.mode == "concat"))
        rest = range(1, stacked.shape.rank)
        joined = _batching.transposed(stacked, [*rest[:axis], 0, *rest[axis:]])
        if output.mode == "stack":
            return joined
        dims = _batching.extents(joined)
        dims[axis : axis + 2] = [_batching.multiplied(dims[axis : axis + 2])]
        return _batching.reshape(joined, dims)


def _size(tensor: tf.Tensor) -> int:
    """In bytes, as far as that is known."""
    if tensor.shape.rank is None:
        return _UNKNOWN**8
    return tensor.dtype.size * math.prod(_UNKNOWN if d is None else d for d in tensor.shape)


def _sizes(tensors: Iterable[tf.Tensor]) -> int:
    return sum(map(_size, tensors))


def _without_identity(tensor: tf.Tensor) -> tf.Tensor:
    """TensorFlow gives functions copies of what they return."""
    while tensor.op.type == "Identity" and not tensor.op.control_inputs:
        tensor = tensor.op.inputs[0]
    return tensor


def _concat(tensors: list[tf.Tensor], axis: int) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis)
