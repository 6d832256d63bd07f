"""`tf_ti.scan`: a function folded over the leading elements of tensors."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

from tf_ti import _tf
from tf_ti.loops import (
    body as _body,
    composites as _composites,
    eager as _eager,
    plain as _plain,
    plan as _plan,
    spec as _spec,
)
from tf_ti.loops.structure import Structure


@_tf.do_not_convert
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
) -> tuple[Any, Any]:
    """Folds `f` over the elements of `xs` along an axis, and keeps what it gives on the way.

    It means, for tensors rather than structures of them:

        carry, ys = init, []
        for k in reversed(range(length)) if reverse else range(length):
            carry, y = f(carry, tf.gather(xs, k, axis=axis))
            ys.append(y)
        return carry, tf.stack(ys[::-1] if reverse else ys, axis)

    It is `jax.lax.scan` for TensorFlow, run by the same native kernel as `tf_ti.tensor_iterator`.

    Args:
        f: a function from a carry and an element to the next carry and a result. It may capture
            tensors and variables, and use any TensorFlow ops. In eager mode a callable is traced at
            each call, a `tf.function` by its own rules; under
            `tf.config.run_functions_eagerly(True)` Python calls either for each element.
        init: the first carry: a tensor of any dtype, or a nested structure of tensors and composite
            values (`tf.RaggedTensor`, an extension type, in a `tf.function` a `tf.TensorArray`,
            which under `jit_compile=True` must be large enough: there it cannot grow). A Python
            number has the type that `f` gives for it.
        xs: what to iterate: a tensor, a nested structure of tensors that have the same extent along
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

    Returns:
        The last carry, in the structure of `init`, and the results of `f`, in the structure that
        `f` returned, each stacked along `axis`.

    Raises:
        TypeError, ValueError: the structures, types or static shapes do not fit one another.
        tf.errors.InvalidArgumentError: the extents, or a carry's shapes, do not agree at run time.

    Example:

        >>> last, sums = tf_ti.scan(lambda c, x: (c + x, c + x), 0.0, tf.constant([1.0, 2.0, 3.0]))
        >>> sums.numpy().tolist()
        [1.0, 3.0, 6.0]

    Source: JAX's lax.scan, on OpenVINO's TensorIterator-1.
    """
    if not callable(f):
        raise TypeError(f"f must be callable, got {f!r}")
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise TypeError(f"axis must be an int, got {axis!r}")
    length = _plan.check_num_iterations(length, "length")
    _plan.check_checkpoint_every(checkpoint_every)
    given, elements = Structure(init), _to_values("xs", Structure(xs))
    if length is None and not elements.leaves:
        raise ValueError("length must be given where xs has no tensors")
    xs_types = elements.map(_composites.type_of)

    def run(carry: Structure) -> tuple[Any, Any]:
        carry = _to_values("init", carry)
        types = _with_invariants(carry.map(_composites.type_of), shape_invariants)
        loop = _Scan(
            f, types, xs_types, axis, bool(reverse), checkpoint_every, bool(fuse), name or "scan"
        )
        leaves = [*carry.leaves, *elements.leaves]
        tensors = [tensor for value in leaves for tensor in _composites.components(value)]
        if _plain.is_wanted():
            return loop.add(tensors, length)
        return _eager.call(loop.add, tensors, length, loop.f, loop.key)

    if not any(_is_number(leaf) for leaf in given.leaves):
        return run(given)
    try:
        return run(given)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        # An eager operation says so of types that do not fit.
        is_eager = isinstance(error, tf.errors.InvalidArgumentError)
        if is_eager and "was expected to be a" not in error.message:
            raise
        typed = _with_types_of_f(f, given, _rows(xs_types, axis))
        if typed is None:
            raise
    return run(typed)


_EXPECTED = "f is called with a carry and an element, which f"  # of the arguments


class _Scan:
    """A scan whose carry and elements have these types."""

    def __init__(
        self,
        f: Callable,
        carry: Structure,
        xs: Structure,
        axis: int,
        reverse: bool,
        checkpoint_every: int | None,
        fuse: bool,
        name: str,
    ):
        self._carry, self._xs, self._axis, self._reverse = carry, xs, axis, reverse
        self._checkpoint_every, self._name = checkpoint_every, name
        self._rows = _rows(xs, axis)
        self._arguments = (carry.nested, self._rows.nested)
        if not _plain.is_wanted():
            f = _body.resolve(f, self._arguments, _EXPECTED)
        is_plain = all(isinstance(t, tf.TensorSpec) for t in xs.leaves)
        is_plain = is_plain and not any(isinstance(t, tf.TensorArraySpec) for t in carry.leaves)
        if isinstance(f, ConcreteFunction):
            results = Structure(f.structured_outputs).leaves
            is_plain = is_plain and all(isinstance(r, (tf.Tensor, tf.TensorSpec)) for r in results)
        self.f = f if is_plain else self._of_tensors(f)
        self._fuse = _eager.fusing(fuse, self.f)
        self.key = ("scan", carry, xs, axis, reverse, checkpoint_every, self._fuse, name)
        # What `add` is at work with: what the carry is made of, and xs.
        self._states: list[tf.Tensor] = []
        self._elements: list[Any] = []

    def _of_tensors(self, f: Callable) -> Callable:
        """The function of what the carry and the elements are encoded in."""
        carry, rows = self._carry, self._rows
        self._arguments = (
            [tuple(_composites.component_specs(t)) for t in carry.leaves],
            [tuple(_composites.taken_specs(*types)) for types in zip(self._xs.leaves, rows.leaves)],
        )

        def step(states, taken):
            for tensor, placeholder in zip(self._states, tf.nest.flatten(states)):
                _tf.copy_handle_data(tensor, placeholder)
            states = [_composites.from_components(*state) for state in zip(carry.leaves, states)]
            elements = zip(self._elements, rows.leaves, taken)
            elements = [_composites.taken_row(*element) for element in elements]
            return f(carry.pack(states), rows.pack(elements))

        return step

    def add(self, tensors: Sequence[tf.Tensor], length: int | tf.Tensor | None) -> tuple[Any, Any]:
        """Adds the loop to the current graph."""
        remaining = iter(tensors)
        states = [
            [next(remaining) for _ in _composites.component_specs(t)] for t in self._carry.leaves
        ]
        self._states = [tensor for state in states for tensor in state]
        self._elements = [
            _composites.from_components(
                t, [next(remaining) for _ in _composites.component_specs(t)]
            )
            for t in self._xs.leaves
        ]
        ys: Structure | None = None  # their rows' types

        def convert(returned):
            nonlocal ys
            carry, result = _results(returned, self._carry)
            types = result.map(_composites.type_of)
            if ys is not None and ys.containers() != types.containers():  # where Python runs it
                raise ValueError(
                    "f must return results of one structure: expected "
                    f"{ys.containers().nested!r}, got {types.containers().nested!r}"
                )
            ys = types
            return carry, [_composites.given_row(value) for value in result.leaves]

        rows = [tensor for value in self._elements for tensor in _composites.to_rows(value)]
        tensors = [*self._states, *rows]
        inputs = self._inputs()
        if _plain.is_wanted() and (
            count := _plain.count_iterations(inputs, tensors, length, "length")
        ):

            def make_plan(traced):
                return self._plan(traced, inputs, ys)

            outputs, _ = _plain.run(
                self.f, self._arguments, _EXPECTED, convert, make_plan, inputs, tensors, count
            )
        else:
            traced = _body.trace(self.f, self._arguments, convert)
            plan = self._plan(traced, inputs, ys)
            outputs = plan.run(tensors, length, self._checkpoint_every, self._fuse, self._name)
        outputs = iter(outputs)
        carry = [
            _composites.from_components(t, [next(outputs) for _ in _composites.component_specs(t)])
            for t in self._carry.leaves
        ]
        stacks = [
            _composites.from_rows(row, [next(outputs) for _ in _composites.given_specs(row)])
            for row in ys.leaves
        ]
        return self._carry.pack(carry), ys.pack(stacks)

    def _inputs(self) -> list[_spec.Input]:
        inputs = [_spec.Input(label, spec.shape) for label, spec in self._labelled_states()]
        order = {"start": -1, "end": 0, "stride": -1} if self._reverse else {}
        taken = map(_composites.taken_specs, self._xs.leaves, self._rows.leaves)
        for label, spec in _labelled("xs", self._xs, taken):
            inputs.append(_spec.Input(label, spec.shape, "index", self._axis, **order))
        return inputs

    def _labelled_states(self) -> list[tuple[str, tf.TensorSpec]]:
        specs = map(_composites.component_specs, self._carry.leaves)
        return _labelled("init", self._carry, specs)

    def _plan(self, traced: _body.Body, inputs: Sequence[_spec.Input], ys: Structure) -> _plan.Plan:
        axis, states = self._axis, self._labelled_states()
        outputs = []
        for i, (label, spec) in enumerate(states):
            dtype, shape = traced.result_types[i], traced.result_shapes[i]
            cure = "shape_invariants= says what shapes it may have"
            _plan.check_back_edge(label, spec, dtype, shape, "the carry of f", cure)
            outputs.append(_spec.Output(label, dtype, "last", i))
        stride = -1 if self._reverse else 1
        results = _labelled("ys", ys, map(_composites.given_specs, ys.leaves))
        for i, (label, _) in enumerate(results, start=len(states)):
            rank = traced.result_shapes[i].rank
            if rank is not None and not -rank - 1 <= axis <= rank:
                raise ValueError(
                    f"{label}: axis {axis} is out of range to stack results of shape "
                    f"{traced.result_shapes[i]}"
                )
            outputs.append(_spec.Output(label, traced.result_types[i], "stack", i, axis, stride))
        back_edges = [(i, i) for i in range(len(states))]
        return _plan.Plan.make(traced, inputs, outputs, back_edges, limit_label="length")


def _rows(xs: Structure, axis: int) -> Structure:
    named = zip(xs.paths, xs.leaves)
    return Structure(
        xs.pack([_composites.row_type(f"xs{path}", spec, axis) for path, spec in named])
    )


def _labelled(
    name: str, types: Structure, specs: Iterable[list[tf.TensorSpec]]
) -> list[tuple[str, tf.TensorSpec]]:
    """What values of these types are encoded in, with what an error calls each."""
    found = []
    for path, parts in zip(types.paths, specs):
        is_one = len(parts) == 1
        for k, part in enumerate(parts):
            found.append((name + path if is_one else f"{name}{path}, component {k}", part))
    return found


def _results(returned: Any, types: Structure) -> tuple[Any, Structure]:
    """The carry and the result that `f` returned."""
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        raise TypeError(f"f must return a carry and a result, got {returned!r}")
    following = Structure(returned[0])
    if following.containers() != types.containers():
        raise ValueError(
            "f must return a carry of the structure of init: expected "
            f"{types.containers().nested!r}, got {following.containers().nested!r}"
        )
    carry = [
        _to_carry(f"init{path}", value, spec)
        for path, value, spec in zip(types.paths, following.leaves, types.leaves)
    ]
    return types.pack(carry), Structure(returned[1]).map(_to_result)


def _to_carry(label: str, value: Any, spec: tf.TypeSpec) -> Any:
    if isinstance(value, tf.TypeSpec):  # in a function that was loaded
        return value
    is_one = isinstance(spec, tf.TensorSpec)
    if is_one and not _composites.is_composite(value):
        return value if isinstance(value, tf.Tensor) else tf.convert_to_tensor(value, spec.dtype)
    if is_one or not _composites.is_composite(value) or not spec.is_compatible_with(value):
        given = _composites.type_of(value) if hasattr(value, "dtype") else repr(value)
        raise TypeError(f"{label}: f must return a carry of type {spec}, got {given}")
    return value


def _to_result(value: Any) -> Any:
    if isinstance(value, tf.TypeSpec):
        return value
    return _composites.to_value("a result of f", value)


def _to_values(name: str, nested: Structure) -> Structure:
    named = zip(nested.paths, nested.leaves)
    return Structure(nested.pack([_composites.to_value(name + path, leaf) for path, leaf in named]))


def _with_invariants(types: Structure, invariants: Any) -> Structure:
    """The carry's types with the shapes that `shape_invariants` allows."""
    if invariants is None:
        return types
    try:
        given = _tf.flatten_up_to(types.nested, invariants)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"shape_invariants must have the structure of init, {types.containers().nested!r}, got "
            f"{invariants!r}"
        ) from error
    allowed = [i for i, spec in zip(given, tf.nest.flatten(types.nested)) if spec is not None]
    named = zip(types.paths, types.leaves, allowed)
    return Structure(types.pack([_allowed(*each) for each in named]))


def _allowed(path: str, spec: tf.TypeSpec, invariant: Any) -> tf.TypeSpec:
    if invariant is None:
        return spec
    if isinstance(invariant, tf.TensorShape) and isinstance(spec, tf.TensorSpec):
        invariant = tf.TensorSpec(invariant, spec.dtype)
    if not isinstance(invariant, tf.TypeSpec):
        raise TypeError(
            f"shape_invariants{path} must be a TensorShape, a TypeSpec or None, got {invariant!r}"
        )
    if not spec.is_subtype_of(invariant):
        raise ValueError(f"shape_invariants{path}: {invariant} does not allow init{path}, {spec}")
    return invariant


# --- Python's numbers -----------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    return type(value) in (bool, int, float, complex)


def _with_types_of_f(f: Callable, init: Structure, rows: Structure) -> Structure | None:
    """The first carry with each Python number of the type that `f` gives for it.

    None where that is the type which the number has anyway, or `f` gives no carry for numbers.
    """
    found: list[tf.DType | None] = []

    def step(element):
        carry, _ = f(init.nested, element)
        if Structure(carry).containers() == init.containers():
            found.extend(getattr(value, "dtype", None) for value in Structure(carry).leaves)

    try:
        _body.trace(step, [rows.nested])
    except (TypeError, ValueError, tf.errors.InvalidArgumentError):
        return None
    numbers = [
        (i, value, dtype)
        for i, (value, dtype) in enumerate(zip(init.leaves, found))
        if _is_number(value) and dtype not in (None, tf.convert_to_tensor(value).dtype)
    ]
    typed = list(init.leaves)
    try:
        for i, value, dtype in numbers:
            typed[i] = tf.constant(value, dtype)
    except TypeError:  # a float where f gives an integer
        return None
    return Structure(init.pack(typed)) if numbers else None
