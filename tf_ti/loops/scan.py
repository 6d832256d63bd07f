"""`tf_ti.scan`: a function folded over the leading elements of tensors."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

from tf_ti import _tf, _words
from tf_ti.loops import arguments as _arguments, carried as _carried, spec as _spec
from tf_ti.loops.call import call
from tf_ti.loops.traced import spec_around
from tf_ti.loops.tracing import (
    body as _body,
    composites as _composites,
    extents as _extents,
    graphs as _graphs,
    kept as _kept,
    plain as _plain,
)
from tf_ti.loops.tracing.structure import Structure, pack
from tf_ti.loops.tracing.way import Way

# The arguments of tf.scan and of jax.lax.scan.
_WORDS = {
    "fn": "the function is f, and comes first",
    "elems": "the elements are xs, after init",
    "initializer": "the first carry is init, before xs, and f returns (carry, y)",
    "unroll": "iterations run natively; leave it out",
    "parallel_iterations": "as many as there are threads are on their way at once; leave it out",
    "back_prop": "use tf.stop_gradient",
    "swap_memory": "checkpoint_every saves memory",
    "infer_shape": "leave it out",
}


@_tf.public
@_words.with_cures(_WORDS)
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    *,
    axis: int = 0,
    reverse: bool = False,
    length: int | tf.Tensor | None = None,
    checkpoint_every: int | None = None,
    shape_invariants: Any = None,
    fuse: bool = True,
    name: str | None = None,
    until: Callable[[Any, Any], Any] | None = None,
) -> tuple[Any, Any]:
    """Folds `f` over the elements of `xs` along an axis, and keeps its results on the way.

    It means, for tensors rather than structures of them:

        carry, ys = init, []
        for k in reversed(range(length)) if reverse else range(length):
            carry, y = f(carry, tf.gather(xs, k, axis=axis))
            ys.append(y)
            if until is not None and until(carry, y):
                break
        return carry, tf.stack(ys[::-1] if reverse else ys, axis)

    It is `jax.lax.scan` for TensorFlow, run by the same native kernel as `tf_ti.tensor_iterator`.
    Of JAX's other words, `unroll` is not needed, `jax.remat` is `checkpoint_every`, and
    `fori_loop(lower, upper, ...)` is a scan without `xs` whose `length` is upper - lower.

    Args:
        f: a function from a carry and an element to the next carry and a result. It may capture
            tensors and variables, and use any TensorFlow ops. In eager mode a callable is traced at
            each call, a `tf.function` by its own rules (see "Eager calls" in the guide); under
            `tf.config.run_functions_eagerly(True)` Python calls either for each element.
        init: the first carry: a tensor of any dtype, or a nested structure of tensors and composite
            values (`tf.RaggedTensor`, an extension type, in a `tf.function` a `tf.TensorArray`,
            which under `jit_compile=True` must be large enough: there it cannot grow). Structures
            are those of `tf.nest`, here and below: a list, and one that a `tf.Module` tracks, are
            the same. A Python number has the type
            that `f` gives for it, also by way of other numbers.
        xs: the elements: a tensor, a nested structure of tensors that have the same extent along
            `axis`, or None. `f` gets them with the axis removed; of composite values it gets the
            rows, as with `tf.map_fn`.
        axis: the axis of `xs` to iterate along, and of the results to stack along.
        reverse: iterate from the last element to the first; results keep their elements' places.
        length: the number of iterations, an int or a scalar integer tensor. Needed where `xs` has
            no tensors; elsewhere it must agree.
        checkpoint_every: as in `tf_ti.tensor_iterator`.
        shape_invariants: as in `tf.while_loop`, for carries whose shapes change: in the structure
            of `init` a `tf.TensorShape` for each tensor, a `tf.TypeSpec` for each value of another
            kind, or None for one that keeps its shape.
        fuse: as in `tf_ti.tensor_iterator`.
        name: a name for the operation.
        until: a function from the carry and the result of a step to a scalar bool. The first step
            for which it is true is the last one. There are as many results as steps; but where
            `length` is given, and inside `jit_compile=True`, as many as there could be: in the
            places of steps that did not take place there are zeros. No result may be ragged.

    Returns:
        The last carry, in the structure of `init`, and the results of `f`, in the structure that
        `f` returned, each stacked along `axis`. A result is a `tf.RaggedTensor` where those of the
        iterations are ragged, or where `xs` is and their first extent, unknown in a graph of `f`,
        comes from a row of it: as `tf.map_fn` stacks them when told so.

    Raises:
        TypeError, ValueError: the structures, types or static shapes do not fit one another.
        tf.errors.InvalidArgumentError: the extents, or a carry's shapes, do not agree at run time.

    Example:

        >>> last, sums = tf_ti.scan(lambda c, x: (c + x, c + x), 0.0, tf.constant([1.0, 2.0, 3.0]))
        >>> sums.numpy().tolist()
        [1.0, 3.0, 6.0]

    Source: JAX's lax.scan, on OpenVINO's TensorIterator-1.
    """
    ticket = None
    if shape_invariants is None and until is None:
        options = ("scan", axis, reverse, checkpoint_every, fuse, name)
        ticket = _kept.ticket(f, options, (init, xs), length)
    if ticket is not None:
        is_known, found = ticket.run()
        if is_known:
            return pack(init, iter(found[0])), found[1]
    if not callable(f):
        raise TypeError(f"f must be callable, got {f!r}")
    if until is not None and not callable(until):
        raise TypeError(f"until must be callable, got {until!r}")
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise TypeError(f"axis must be an int, got {axis!r}")
    length = _arguments.check_num_iterations(length, "length")
    _arguments.check_checkpoint_every(checkpoint_every)
    given, elements = Structure(init), _carried.to_values("xs", Structure(xs))
    if length is None and not elements.leaves:
        raise ValueError("length must be given where xs has no tensors")
    xs_types = elements.map(_composites.type_of)

    def run(carry: Structure) -> tuple[Any, Any]:
        carry = _carried.to_values("init", carry, _plain.is_wanted())
        types = _carried.with_invariants("init", carry, shape_invariants)
        is_padded = until is not None and (length is not None or _tf.expects_xla())
        arrays = _composites.arrays(carry.leaves)
        way = _ScanWay(f, types, arrays, xs_types, axis, bool(reverse), until, is_padded)
        leaves = [*carry.leaves, *elements.leaves]
        tensors = [tensor for value in leaves for tensor in _composites.components(value)]
        last, ys = call(way, tensors, length, checkpoint_every, fuse, name or "scan", ticket)
        return carry.pack(last), ys

    if not any(_is_number(leaf) for leaf in given.leaves):
        try:
            return run(given)
        except (TypeError, tf.errors.InvalidArgumentError) as error:
            words = ("that does not match type", "was expected to be a")
            is_of_types = any(part in str(error) for part in words)
            difference = _difference_of_types(given, elements) if is_of_types else None
            if difference is None:
                raise
            raise TypeError(f"{difference}: {error}") from error
    try:
        return run(given)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        if not (isinstance(error, ValueError) or _is_of_types(error)):
            raise
        typed, refusal = _with_types_of_f(f, given, _rows(xs_types, axis))
        if refusal is not None and typed is given:
            raise TypeError(refusal) from error
        if typed is given:
            raise
    try:
        return run(typed)
    except (TypeError, tf.errors.InvalidArgumentError) as error:
        if not _is_of_types(error):
            raise
        named = zip(given.paths, given.leaves, typed.leaves)
        types = [f"init{path}: {leaf.dtype.name}" for path, n, leaf in named if n is not leaf]
        raise TypeError(
            f"with the types that f gives for the numbers of init ({', '.join(types)}) it fails: "
            f"{error}"
        ) from error


class _ScanWay(Way):
    """A scan whose carry and elements have these types."""

    limit_label = "length"
    _ys: Structure  # the types of the rows of the results, once `f` was called

    def __init__(
        self,
        f: Callable[..., Any],
        carry: Structure,
        arrays: Sequence[tf.TensorArray | None],
        xs: Structure,
        axis: int,
        reverse: bool,
        until: Callable[..., Any] | None,
        is_padded: bool,
    ):
        self.body, self._until, self._is_padded = f, until, is_padded
        self._carry, self._arrays, self._xs = carry, arrays, xs
        self._axis, self._reverse = axis, reverse
        self._rows = _rows(xs, axis)
        self.arguments = [carry, self._rows]
        self.expected = "f is called with a carry and an element, which f"
        self.key = ("scan", carry.key, xs.key, axis, reverse, is_padded)
        states = map(_composites.component_specs, carry.leaves)
        ragged = [part for spec in xs.leaves for part, _ in _composites.ragged_parts(spec, spec)]
        self._splits = [part.row_splits_dtype for part in ragged]
        self._taken = list(map(_composites.taken_specs, xs.leaves, self._rows.leaves))
        self.parameters = [spec for specs in (*states, *self._taken) for spec in specs]
        order = _spec.BACKWARDS if reverse else _spec.FORWARDS
        self.inputs = [_spec.Input(label, spec.shape) for label, spec in self._labelled_states()]
        for label, spec in _carried.labelled("xs", xs, self._taken):
            self.inputs.append(_spec.Input(label, spec.shape, "index", axis, *order))
        if until is not None:  # a state: whether it is over
            self.parameters.append(tf.TensorSpec([], tf.bool))
            self.inputs.append(_spec.Input("until", tf.TensorShape([])))
        # One call's components of the carry, and the parts of each element of xs; the parameters
        # of the body, and the ragged rows among the parameters.
        self._states: list[tf.Tensor] = []
        self._elements: list[list[Any]] = []
        self._parameters: list[tf.Tensor] = []
        self._ragged_rows: list[tf.Tensor] = []
        self._length: tf.Tensor | None = None
        # Where Python runs the loop, `_earlier` has the types of the rows so far. `_ragged` has the
        # types of a graph's rows, by their paths, which tell the ragged ones. It is None if lengths
        # are to tell them.
        self._earlier: Structure | None = None
        self._ragged: dict[str, tf.TypeSpec] | None = {}

    def is_direct(self) -> bool:
        types = [*self._xs.leaves]
        if isinstance(self.body, ConcreteFunction):
            types += map(_composites.type_of, Structure(self.body.structured_outputs).leaves)
        if self._until is not None or not all(isinstance(spec, tf.TensorSpec) for spec in types):
            return False
        return not any(isinstance(spec, tf.TensorArraySpec) for spec in self._carry.leaves)

    def enter(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        remaining = iter(tensors)
        states = _composites.take(self._carry.leaves, remaining)
        self._states = [tensor for value in states for tensor in _composites.components(value)]
        elements = _composites.take(self._xs.leaves, remaining)
        self._elements = list(map(_composites.parts_with_rows, elements))
        rows = [tensor for parts in self._elements for tensor in _composites.to_rows(parts)]
        # A type does not tell the shapes of rows that are encoded as variants.
        encoded = {
            k: tf.TensorSpec(tensor.shape[1:], tf.variant)
            for k, tensor in enumerate(rows, start=len(self._states))
            if tensor.dtype == tf.variant
        }
        self.parameters = [encoded.get(k, spec) for k, spec in enumerate(self.parameters)]
        return [*self._states, *rows, *([] if self._until is None else [tf.constant(False)])]

    @property
    def functions(self) -> list[Callable[..., Any]]:
        return [self.body] if self._until is None else [self.body, self._until]

    def trace(self) -> _body.Body:
        is_direct = isinstance(self.body, ConcreteFunction) and self.is_direct()

        def convert(returned: Any) -> tuple[list[Any], list[list[tf.Tensor]], list[tf.Tensor]]:
            carry, results = self._results(returned)
            self._ys = results.map(_composites.type_of)
            if self._ragged_rows:
                self._ys = self._ys.with_leaves(self._row_types(carry, results))
            return carry, self._given_rows(results), self._tests(until, carry, results)

        arrange = None if is_direct else self.arrange
        until = None if self._until is None else _tf.user_function(self._until)
        if until is not None:
            over = [tf.TensorSpec([], tf.bool)]
            self.condition = _graphs.trace("condition", tf.logical_not, over, lambda test: [test])
        return _body.trace(self.body, self.parameters, convert, arrange)

    def arrange(self, tensors: Sequence[tf.Tensor]) -> tuple[Any, Any]:
        self._parameters = list(tensors[: len(self._states)])
        for tensor, placeholder in zip(self._states, self._parameters):
            _tf.copy_handle_data(tensor, placeholder)
        remaining = iter(tensors)
        states = _composites.take(self._carry.leaves, remaining, self._arrays)
        elements = []
        for i, (parts, row) in enumerate(zip(self._elements, self._rows.leaves)):
            taken = [next(remaining) for _ in self._taken[i]]
            # XLA, which knows no rows of some values, names the operation.
            with tf.name_scope("row_of_" + re.sub(r"\W+", "_", f"xs{self._xs.paths[i]}")):
                elements.append(_composites.taken_row(row, parts, taken))
        self._ragged_rows = [
            tensor
            for spec, element in zip(self._xs.leaves, elements)
            for _, row in _composites.ragged_parts(spec, element)
            for tensor in _composites.components(row)
        ]
        return self._carry.pack(states), self._rows.pack(elements)

    def _results(self, returned: Any) -> tuple[list[Any], Structure]:
        """The leaves of the carry, and the results, that `f` returned."""
        if not isinstance(returned, (tuple, list)) or len(returned) != 2:
            raise TypeError(
                "f must return a carry and a result, (carry, y); for the form of tf.scan, which "
                f"has the carry alone, return carry, carry. Got {returned!r}"
            )
        following, difference = self._carry.match("init", returned[0])
        if difference is not None:
            raise ValueError(f"f must return a carry of the structure of init: {difference}")
        carry = [
            _carried.following(f"init{path}", value, spec, "f must return a carry")
            for path, value, spec in zip(self._carry.paths, following, self._carry.leaves)
        ]
        return carry, Structure(returned[1]).map(_to_result)

    def _tests(
        self, until: Callable[..., Any] | None, carry: Sequence[Any], results: Structure
    ) -> list[tf.Tensor]:
        """Whether this step is the last one; nothing where all are wanted."""
        if until is None:
            return []
        value = until(self._carry.pack(carry), results.pack(results.leaves))
        return [_carried.to_test("until", value)]

    def is_over(self, results: Sequence[tf.Tensor]) -> bool:
        return self._until is not None and bool(results[-1])

    def _given_rows(self, results: Structure) -> list[list[tf.Tensor]]:
        return list(map(_composites.given_row, results.leaves, self._ys.leaves))

    def make_spec(self, body: _body.Body) -> _spec.LoopSpec:
        axis, states, ys = self._axis, self._labelled_states(), self._ys
        outputs = []
        for i, (label, spec) in enumerate(states):
            dtype, shape = body.result_types[i], body.result_shapes[i]
            cure = "shape_invariants= says what shapes it may have"
            _arguments.check_back_edge(label, spec, dtype, shape, "the carry of f", cure)
            outputs.append(_spec.Output(label, dtype, "last", i))
        stride = -1 if self._reverse else 1
        results = _carried.labelled("ys", ys, map(_composites.given_specs, ys.leaves))
        modes = [mode for row in ys.leaves for mode in _composites.given_modes(row)]
        for i, ((label, _), mode) in enumerate(zip(results, modes), start=len(states)):
            rank = body.result_shapes[i].rank
            if rank is not None and not -rank - 1 <= axis <= rank:
                raise ValueError(
                    f"{label}: axis {axis} is out of range to stack results of shape "
                    f"{body.result_shapes[i]}"
                )
            if mode == "concat" and axis != 0:
                raise ValueError(f"{label}: ragged results are stacked along axis 0, got {axis}")
            if mode == "concat" and self._until is not None:
                raise ValueError(f"{label}: with until results must not be ragged")
            length = 0 if self._is_padded else -1
            outputs.append(
                _spec.Output(label, body.result_types[i], mode, i, axis, stride, 0, length)
            )
        back_edges = [(i, i) for i in range(len(states))]
        if self._until is None:
            return spec_around(body, self.inputs, outputs, back_edges, self.limit_label)
        over = len(self.inputs) - 1
        back_edges.append((body.num_results - 1, over))
        if self._is_padded and self._reverse:
            outputs.append(_spec.Output("the number of iterations", tf.int64, "count", 0))
        spec = spec_around(body, self.inputs, outputs, back_edges, self.limit_label)
        return dataclasses.replace(spec, condition_inputs=(over,))

    def lengths(self, num_iterations: int | tf.Tensor | None) -> list[tf.Tensor]:
        if not self._is_padded:
            return []
        if num_iterations is None:
            num_iterations = tf.shape(self._elements[0][0])[self._axis]  # XLA knows tensors only
        self._length = tf.cast(num_iterations, tf.int64)
        return [self._length]

    def leave(self, outputs: Sequence[tf.Tensor]) -> Structure:
        """The carry's leaves, and the results."""
        remaining = iter(outputs)
        carry = _composites.take(self._carry.leaves, remaining, self._arrays)
        rows = [[next(remaining) for _ in _composites.given_specs(row)] for row in self._ys.leaves]
        if self._is_padded and self._reverse:
            # The zeros come after the results, but are those of the first elements.
            shift = self._length - next(remaining)
            rows = [[tf.roll(tensor, shift, self._axis) for tensor in each] for each in rows]
        stacks = list(map(_composites.from_rows, self._ys.leaves, rows))
        if self._ragged is None:
            stacks = [
                _composites.dense_if_even(stack) if _composites.is_ragged_row(row) else stack
                for stack, row in zip(stacks, self._ys.leaves)
            ]
        return Structure((carry, self._ys.pack(stacks)))

    def _labelled_states(self) -> list[tuple[str, tf.TensorSpec]]:
        specs = map(_composites.component_specs, self._carry.leaves)
        return _carried.labelled("init", self._carry, specs)

    # --- rows of ragged results ---------------------------------------------------------------

    def _row_types(self, carry: Sequence[Any], results: Structure) -> list[tf.TypeSpec]:
        """The types of results, with those ragged whose first extent is that of a ragged row."""
        following = [tensor for value in carry for tensor in _composites.components(value)]
        back_edges = list(zip(following, self._parameters))
        graph = tf.compat.v1.get_default_graph()
        extents = _extents.that_come_from(graph, self._ragged_rows, back_edges)

        def ragged(value: tf.Tensor) -> tf.RaggedTensorSpec | None:
            is_open = value.shape.rank and _tf.known_extent(value, 0) is None
            return self._ragged_row(value) if is_open and value.ref() in extents else None

        return [
            _composites.with_ragged_rows(_composites.type_of(value), value, ragged)
            for value in results.leaves
        ]

    def _ragged_row(self, row: tf.Tensor | tf.TensorSpec) -> tf.RaggedTensorSpec:
        shape, (splits, *_) = [None, *row.shape.as_list()[1:]], self._splits
        return tf.RaggedTensorSpec(shape, row.dtype, ragged_rank=0, row_splits_dtype=splits)

    def prepare_plain(self) -> None:
        """Finds out which results are ragged, as a graph of `f` tells them.

        Where there is no such graph, since `f` asks for values, lengths tell it.
        """
        if self._splits:
            try:
                self.trace()
                self._ragged = dict(zip(self._ys.paths, self._ys.leaves))
            except Exception:  # whatever `f` raises; it raises it again if not about values
                self._ragged = None

    def convert(self, returned: Any) -> tuple[list[Any], list[Any], list[Any]]:
        carry, results = self._results(returned)
        types, earlier = results.map(_composites.type_of), self._earlier
        if earlier is not None:
            _, difference = earlier.match("ys", results.pack(results.leaves))
            if difference is not None:
                raise ValueError(f"f must return results of one structure: {difference}")
        self._ys = types.with_leaves(
            [
                self._with_ragged_rows(path, spec, value)
                for path, spec, value in zip(types.paths, types.leaves, results.leaves)
            ]
        )
        if earlier is not None:
            both = zip(earlier.leaves, self._ys.leaves)
            self._ys = types.with_leaves([_composites.common_type(*pair) for pair in both])
        self._earlier = self._ys
        with _tf.user_code():
            tests = self._tests(self._until, carry, results)
        return carry, self._given_rows(results), tests

    def _with_ragged_rows(self, path: str, spec: tf.TypeSpec, value: Any) -> tf.TypeSpec:
        """The type of a result, as the graph of `f` has it, or as lengths are to tell."""
        if self._ragged is None:
            is_open = isinstance(spec, tf.TensorSpec) and spec.shape.rank > 0
            return self._ragged_row(spec) if is_open else spec
        traced = self._ragged.get(path, spec)
        if _composites.is_ragged_row(traced):
            return self._ragged_row(spec)
        has_ragged = any(True for _ in _composites.ragged_parts(traced, traced))
        return traced if has_ragged and traced.is_compatible_with(value) else spec


def _rows(xs: Structure, axis: int) -> Structure:
    for path, spec in zip(xs.paths, xs.leaves):
        if isinstance(spec, tf.TensorSpec) and spec.shape.rank == 0:
            raise ValueError(
                f"xs{path} is a scalar, which has no elements; the arguments are f, init (the "
                "first carry) and xs (the elements), in this order: that of tf.scan differs"
            )
    named = zip(xs.paths, xs.leaves)
    return xs.with_leaves([_composites.row_type(f"xs{path}", spec, axis) for path, spec in named])


def _to_result(value: Any) -> Any:
    if isinstance(value, tf.TypeSpec):
        return value
    return _composites.to_value("a result of f", value)


# --- Python's numbers -----------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    return type(value) in _arguments.NUMBERS


def _is_of_types(error: Exception) -> bool:
    """True if types may be the reason; an eager operation says so of types that do not fit."""
    if not isinstance(error, tf.errors.InvalidArgumentError):
        return True
    words = ("was expected to be a", "is not in the list of allowed values")
    return any(part in error.message for part in words)


def _difference_of_types(init: Structure, xs: Structure) -> str | None:
    """The types of the carry and of the elements, where each has one and these differ."""
    types = [
        {tf.as_dtype(leaf.dtype).name for leaf in nested.leaves if hasattr(leaf, "dtype")}
        for nested in (init, xs)
    ]
    if any(len(found) != 1 for found in types) or types[0] == types[1]:
        return None
    return f"init is of type {types[0].pop()}, xs of type {types[1].pop()}, and f fails"


def _with_types_of_f(
    f: Callable[..., Any], init: Structure, rows: Structure
) -> tuple[Structure, str | None]:
    """The first carry with each Python number of the type that `f` gives for it.

    The type of one number may come by way of another's: `f` is asked until it gives no other types,
    but not more often than there are numbers.

    Returns `init` where numbers have the types that they have anyway, or `f` gives no carry for
    them; and why a number has another type than `f` gives.
    """
    typed, refusal = init, None
    for _ in filter(_is_number, init.leaves):
        following, refusal = list(typed.leaves), None
        for i, dtype in enumerate(_types_of_f(f, typed, rows)):
            value, current = init.leaves[i], _type_of_number(typed.leaves[i])
            if not _is_number(value) or dtype in (None, current):
                continue
            number = _arguments.number(value, dtype)
            if number is not None:
                following[i] = number
            elif refusal is None and current is not None:
                refusal = (
                    f"init{init.paths[i]} is of type {current.name}, but f gives for it the type "
                    f"{dtype.name}, which does not have the number {value!r}"
                )
        if all(new is old for new, old in zip(following, typed.leaves)):
            break
        typed = init.with_leaves(following)
    return typed, refusal


def _types_of_f(f: Callable[..., Any], init: Structure, rows: Structure) -> list[tf.DType | None]:
    """The types that `f` gives; None for a number still, or where `f` gives no carry."""
    found: list[tf.DType | None] = [None] * len(init.leaves)

    def convert(returned: Any) -> list[Any]:
        carry, difference = init.match("init", returned[0])
        if difference is None:
            found[:] = [getattr(value, "dtype", None) for value in carry]
        return []

    def arrange(tensors: Sequence[tf.Tensor]) -> tuple[Any, Any]:
        elements = tf.nest.pack_sequence_as(rows.leaves, tensors, expand_composites=True)
        return init.pack(init.leaves), rows.pack(elements)

    specs = tf.nest.flatten(rows.leaves, expand_composites=True)
    try:
        _body.trace(f, specs, convert, arrange)
    except Exception:  # whatever f raises of numbers; why the loop failed is known already
        pass
    return found


def _type_of_number(value: Any) -> tf.DType | None:
    """The type of a tensor, or the one that a number has by itself; None where it is too large."""
    try:
        return tf.convert_to_tensor(value).dtype
    except (TypeError, ValueError, OverflowError):
        return None
