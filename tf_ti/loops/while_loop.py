"""`tf_ti.while_loop`: `tf.while_loop`, run by the native kernel."""

import dataclasses
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction, PolymorphicFunction

from tf_ti import _tf
from tf_ti.loops import (
    arguments as _arguments,
    carried as _carried,
    passes as _passes,
    spec as _spec,
)
from tf_ti.loops.call import call
from tf_ti.loops.traced import spec_around
from tf_ti.loops.tracing import (
    body as _body,
    composites as _composites,
    kept as _kept,
    plain as _plain,
    split as _split,
)
from tf_ti.loops.tracing.structure import Structure, pack
from tf_ti.loops.tracing.way import Way


@_tf.public
def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Sequence[Any],
    shape_invariants: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    maximum_iterations: int | tf.Tensor | None = None,
    name: str | None = None,
    *,
    checkpoint_every: int | None = None,
    fuse: bool = True,
) -> Any:
    """Repeats `body` while `cond` is true: `tf.while_loop`, run by the native kernel.

    It means:

        k = 0
        while (maximum_iterations is None or k < maximum_iterations) and cond(*loop_vars):
            loop_vars = body(*loop_vars)
            k += 1
        return loop_vars

    A program changes one word: arguments, their order, and what is returned are those of
    `tf.while_loop`. But in eager mode the loop is a graph too, which sees no values in Python,
    unless `tf.config.run_functions_eagerly(True)` is set or one of `loop_vars` is a
    `tf.TensorArray`.

    Args:
        cond: a function from the loop variables to a bool: a tensor of one element, or Python's.
        body: a function from the loop variables to their next values, in the structure of
            `loop_vars`; of one variable also that value alone. Both may capture tensors and
            variables, and use any TensorFlow ops. In eager mode they are traced at each call; not
            again, by the rules of a `tf.function`, where both are one.
        loop_vars: a list, tuple or namedtuple of the first values: tensors of any dtype and shape,
            numbers, composite values (`tf.RaggedTensor`, an extension type, a `tf.TensorArray`),
            and nested structures of them.
        shape_invariants: for variables whose shapes change: in the structure of `loop_vars` a
            `tf.TensorShape` for each tensor, a `tf.TypeSpec` for each value of another kind, or
            None for one that keeps its shape. A shape stands for the type of a ragged tensor; of a
            `tf.SparseTensor` it is that of `dense_shape`, of a `tf.IndexedSlices` of `values`.
        parallel_iterations: the most iterations that are on their way at once, where kernels of
            the body take long enough to be worth it; with 1 they run one after the other. Values
            do not depend on it.
        back_prop: if False, no gradient goes through the loop, as through `tf.stop_gradient`.
        swap_memory: not used.
        maximum_iterations: the most iterations: an int, or a scalar integer tensor. Inside
            `jit_compile=True` a gradient needs it, unless `cond` counts to a constant or an extent.
        name: a name for the operation.
        checkpoint_every: as in `tf_ti.tensor_iterator`.
        fuse: as in `tf_ti.tensor_iterator`. Operations leave the loop only if the number of
            iterations is known: `cond` must be one comparison of a counter with a bound.

    Returns:
        The loop variables after the last iteration, in the structure of `loop_vars`.

    Raises:
        TypeError, ValueError: the structures, types or static shapes do not fit one another.
        tf.errors.InvalidArgumentError: a variable's shapes do not agree at run time.

    Example:

        >>> i, total = tf_ti.while_loop(
        ...     lambda i, total: i < 5, lambda i, total: (i + 1, total + i), (0, 0))
        >>> total.numpy().item()
        10

    Source: TensorFlow's tf.while_loop.
    """
    finish = _as_it_is if back_prop else _without_gradient
    limit, ticket = _limit(maximum_iterations), None
    if shape_invariants is None and isinstance(cond, (PolymorphicFunction, ConcreteFunction)):
        options = ("while_loop", cond, parallel_iterations, checkpoint_every, fuse, name)
        ticket = _kept.ticket(body, options, (loop_vars,), limit)
    if ticket is not None:
        is_known, found = ticket.run()
        if is_known:
            return pack(loop_vars, map(finish, found))
    for function, value in (("cond", cond), ("body", body)):
        if not callable(value):
            raise TypeError(f"{function} must be callable, got {value!r}")
    if not isinstance(loop_vars, (list, tuple)):
        raise TypeError(
            f"loop_vars must be a list or a tuple, got {type(loop_vars).__name__}: "
            "one variable is [x]"
        )
    if not loop_vars:
        raise ValueError("loop_vars is empty: a loop needs a variable")
    _arguments.check_checkpoint_every(checkpoint_every)
    _passes.check_fuse(fuse)
    if not isinstance(parallel_iterations, numbers.Integral) or parallel_iterations < 1:
        raise ValueError(
            f"parallel_iterations must be a positive integer, got {parallel_iterations!r}"
        )
    given = Structure(loop_vars)
    by_python = _is_for_python(given.leaves)
    variables = _carried.to_values("loop_vars", given, by_python)
    if isinstance(shape_invariants, (list, tuple)) and len(shape_invariants) == len(loop_vars):
        shape_invariants = _tf.nest_like(loop_vars, shape_invariants)
    types = _carried.with_invariants("loop_vars", variables, shape_invariants)
    arrays = _composites.arrays(variables.leaves)
    way = _WhileWay(cond, body, types, arrays, int(parallel_iterations))
    if by_python:
        found = way.run_by_python(variables.leaves, limit)
    else:
        tensors = [t for value in variables.leaves for t in _composites.components(value)]
        found = call(way, tensors, limit, checkpoint_every, fuse, name or "while", ticket)
    return variables.pack(list(map(finish, found)))


def _as_it_is(value: Any) -> Any:
    return value


def _without_gradient(value: Any) -> Any:
    if _tf.is_eager_array(value):
        return _tf.map_eager_array(tf.stop_gradient, value)
    tensors = list(map(tf.stop_gradient, _composites.components(value)))
    return _composites.from_components(_composites.type_of(value), tensors)


def _limit(maximum_iterations: Any) -> int | tf.Tensor | None:
    """The most iterations, of which fewer than 0 are none."""
    if isinstance(maximum_iterations, numbers.Integral) and maximum_iterations < 0:
        return 0
    limit = _arguments.check_num_iterations(maximum_iterations, "maximum_iterations")
    return _arguments.at_least_0(limit) if isinstance(limit, tf.Tensor) else limit


def _is_for_python(leaves: Sequence[Any]) -> bool:
    """True where Python runs the loop, as it runs TensorFlow's."""
    return tf.executing_eagerly() and (_plain.is_wanted() or any(map(_is_pythons, leaves)))


def _is_pythons(leaf: Any) -> bool:
    """True for a value of eager mode of which a graph does not know enough."""
    if isinstance(leaf, tf.TensorArray):  # a list in Python, of which some elements may be missing
        return True
    parts = tf.nest.flatten(leaf, expand_composites=True)
    are_variants = any(isinstance(t, tf.Tensor) and t.dtype == tf.variant for t in parts)
    return are_variants and _tf.is_recording()


class _WhileWay(Way):
    """A while loop whose variables have these types."""

    limit_label = "maximum_iterations"

    def __init__(
        self,
        cond: Callable[..., Any],
        body: Callable[..., Any],
        types: Structure,
        arrays: Sequence[tf.TensorArray | None],
        parallel_iterations: int,
    ):
        # Containers of variables are the same, be they lists or tuples.
        arguments = list(types.pack(types.leaves))
        self.body, self._cond, self._types = body, cond, Structure(arguments)
        self._arrays, self._parallel_iterations = arrays, parallel_iterations
        self.expected = f"loop_vars has {len(arguments)} variables, which body"
        self.arguments = list(map(Structure, arguments))
        self.key = ("while_loop", types.key, parallel_iterations)
        specs = map(_composites.component_specs, types.leaves)
        self._states = _carried.labelled("loop_vars", types, specs)
        self.parameters = [spec for _, spec in self._states]
        self.inputs = [_spec.Input(label, spec.shape) for label, spec in self._states]
        # Of one call: the tensors that enter, the value of the condition, and its parameters.
        self._tensors: Sequence[tf.Tensor] = ()
        self._test: tf.Tensor | None = None
        self._read: tuple[int, ...] | None = ()

    def resolve(self) -> None:
        super().resolve()
        self._cond = _body.resolve(self._cond, self.arguments, self._expected_of_cond)

    @property
    def _expected_of_cond(self) -> str:
        return self.expected.removesuffix("body") + "cond"

    @property
    def functions(self) -> list[Callable[..., Any]]:
        return [self.body, self._cond]

    def enter(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        self._tensors = list(tensors)
        return self._tensors

    def trace(self) -> _body.Body:
        traced = _body.trace(self.body, self.parameters, self.convert, self.arrange)
        test, *results = traced.graph.outputs
        # What a function returns waits for all of its effects; the condition does for its own.
        test = test.op.inputs[0]
        self.condition, self._read, graph = _split.split(traced.graph, results, test)
        return dataclasses.replace(
            traced,
            graph=graph,
            structure=traced.structure[1:],
            num_results=traced.num_results - 1,
            result_types=tuple(t.dtype for t in graph.outputs),
            result_shapes=tuple(t.shape for t in graph.outputs),
        )

    def arrange(self, tensors: Sequence[tf.Tensor]) -> Sequence[Any]:
        """The body's arguments; what the condition computes comes before the body's operations."""
        for tensor, placeholder in zip(self._tensors, tensors):
            _tf.copy_handle_data(tensor, placeholder)
        graph = tf.compat.v1.get_default_graph()
        first = len(graph.get_operations())
        self._test = _carried.to_test(
            "cond", _tf.user_function(self._cond)(*self._arguments(tensors))
        )
        # Its effects take place whenever it is computed, not in the iterations alone.
        effects = [op for op in graph.get_operations()[first:] if _has_effects(op)]
        with tf.control_dependencies(effects):
            self._test = tf.identity(self._test)
        return self._arguments(tensors)

    def _arguments(self, tensors: Sequence[tf.Tensor]) -> Sequence[Any]:
        return self._types.pack(self._take(tensors))

    def _take(self, tensors: Sequence[tf.Tensor]) -> list[Any]:
        return _composites.take(self._types.leaves, iter(tensors), self._arrays)

    def convert(self, returned: Any) -> list[Any]:
        return [self._test, *self._following(returned)]

    def _following(self, returned: Any) -> list[Any]:
        """Takes the variables' next values from the body's results."""
        if len(self.arguments) == 1 and not tf.nest.is_nested(returned):
            returned = [returned]
        is_sequence = isinstance(returned, (list, tuple))
        returned = list(returned) if is_sequence else returned
        following, difference = self._types.match("loop_vars", returned)
        if difference is not None:
            raise ValueError(f"body must return values of the structure of loop_vars: {difference}")
        named = zip(self._types.paths, following, self._types.leaves)
        must = "body must return a value"
        return [_carried.following(f"loop_vars{p}", v, spec, must) for p, v, spec in named]

    def make_spec(self, body: _body.Body) -> _spec.LoopSpec:
        outputs = []
        for i, (label, spec) in enumerate(self._states):
            dtype, shape = body.result_types[i], body.result_shapes[i]
            _check_state(label, spec, dtype, shape)
            outputs.append(_spec.Output(label, dtype, "last", i))
        edges = [(i, i) for i in range(len(self._states))]
        spec = spec_around(body, self.inputs, outputs, edges, self.limit_label)
        return dataclasses.replace(
            spec, condition_inputs=self._read, parallel_iterations=self._parallel_iterations
        )

    def run_by_python(self, values: Sequence[Any], limit: int | tf.Tensor | None) -> Sequence[Any]:
        """The values after the last iteration of a loop that Python runs.

        It carries values, not tensors that encode them: a TensorArray of eager mode has none.
        """
        most, k = None if limit is None else int(limit), 0
        while most is None or k < most:
            arguments = self._types.pack(values)
            if not _carried.to_test(
                "cond", _plain.call(self._cond, arguments, self._expected_of_cond)
            ):
                break
            values = self._following(_plain.call(self.body, arguments, self.expected))
            for path, spec, value in zip(self._types.paths, self._types.leaves, values):
                if isinstance(spec, tf.TensorSpec):  # others were checked with all their parts
                    _check_state(f"loop_vars{path}", spec, value.dtype, value.shape)
            k += 1
        return values

    def leave(self, outputs: Sequence[tf.Tensor]) -> Structure:
        return Structure(self._take(outputs))


def _check_state(label: str, spec: tf.TensorSpec, dtype: tf.DType, shape: tf.TensorShape) -> None:
    cure = "shape_invariants= says what shapes it may have"
    _arguments.check_back_edge(label, spec, dtype, shape, "the value of body", cure)


def _has_effects(op: tf.Operation) -> bool:
    return _tf.is_stateful(op) and op.type != "ReadVariableOp"
