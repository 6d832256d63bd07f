"""`tf_ti.tensor_iterator`: OpenVINO's TensorIterator."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops import arguments as _arguments, spec as _spec
from tf_ti.loops.call import call
from tf_ti.loops.ports import BackEdge, InputPort, OutputPort, PortMap, check_back_edges
from tf_ti.loops.traced import spec_around
from tf_ti.loops.tracing import (
    body as _body,
    composites as _composites,
    kept as _kept,
    plain as _plain,
)
from tf_ti.loops.tracing.structure import Structure
from tf_ti.loops.tracing.way import Way


@_tf.public
def tensor_iterator(
    body: Callable[..., Any],
    inputs: Sequence[Any],
    port_map: PortMap,
    back_edges: Sequence[BackEdge] = (),
    num_iterations: int | tf.Tensor | None = None,
    checkpoint_every: int | None = None,
    name: str | None = None,
    *,
    fuse: bool = True,
) -> tuple[tf.Tensor, ...]:
    """Runs `body` repeatedly, over slices of its inputs.

    It means, for one sliced input, one state and one concatenated output:

        values, state = [], initial
        for k in range(num_iterations):
            piece = tf.gather(x, range(start + k * stride, ...), axis=axis)   # part_size elements
            state, value = body(piece, state)
            values.append(value)
        return state, tf.concat(values if stride > 0 else values[::-1], axis)

    The body runs in a native kernel: a small one costs a fraction of a `tf.while_loop` iteration.

    Gradients reach the inputs and the captures of the body. They compute the body again from its
    recorded states; random numbers, and values of variables, are recorded and not repeated. One
    thing is refused: the gradient of a body that draws random numbers, or has other effects, inside
    a `tf.cond` or a `tf.while_loop` of its own. A nested loop of tf_ti is fine.

    Args:
        body: a callable, `tf.function` or `ConcreteFunction`, from one tensor for each input entry
            of the port map to one result or a tuple of results. Any TensorFlow ops, control flow,
            random numbers and further loops are allowed. Tensors and variables that it captures are
            loop invariants; a variable that it only reads is read once, before the loop. In eager
            mode under `tf.config.run_functions_eagerly(True)` Python calls it in each iteration.
        inputs: tensors of any dtype and shape; the position is the external port id. Inputs that
            are not sliced, and states, may be composite values too (a `tf.RaggedTensor`, an
            extension type).
        port_map: a `PortMap`: the input, or its slices, that each parameter of the body gets, and
            the outputs that are made of the body's results.
        back_edges: `BackEdge`s: results that feed parameters in the next iteration. The parameter's
            input port gives its value for the first. All are taken together after an iteration.
        num_iterations: the number of iterations, an int or a scalar integer tensor. Sliced inputs
            tell it too, and all must agree. Without either, an output port's start and end do.
        checkpoint_every: record the states for the gradient at each `checkpoint_every`-th iteration
            only, and compute the others again: T / checkpoint_every + checkpoint_every states of
            memory instead of T, for one more forward pass. A loop that a condition ends records all
            of them inside `jit_compile=True`. See "Gradients" in the guide.
        name: a name for the operation.
        fuse: let operations leave the loop where that pays, a loop around a recurrent cell become
            one operation, and programs of vector code run what they can of the body. Rounding may
            differ. If False, TensorFlow's kernels run the body, and the gradient's, as it is
            written. A loop inside the body has its own `fuse`. See "Fission", "Recognition" and
            "Programs" in the guide.

    Returns:
        A tuple of tensors in the order of the output ports' external ids. Without an iteration, an
        output without axis gives the initial value of the parameter that its result feeds, and a
        concatenated one has extent 0.

    Raises:
        TypeError, ValueError: the port map does not fit the inputs or the body, or static shapes
            show that a run-time error follows.
        tf.errors.InvalidArgumentError: a range does not fit its tensor, counts differ, or a shape
            changes where the body does not allow it.

    Example:

        >>> x = tf.constant([[1.0, 2.0, 3.0]])
        >>> total, running = tf_ti.tensor_iterator(
        ...     lambda piece, total: (total + piece, total + piece),
        ...     [x, tf.zeros([1, 1])],
        ...     tf_ti.PortMap(
        ...         inputs=[tf_ti.InputPort(0, 0, axis=1), tf_ti.InputPort(1, 1)],
        ...         outputs=[tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 1, axis=1)],
        ...     ),
        ...     [tf_ti.BackEdge(from_layer=0, to_layer=1)],
        ... )
        >>> running.numpy().tolist()
        [[1.0, 3.0, 6.0]]

    Source: OpenVINO's TensorIterator-1.
    """
    options = (checkpoint_every, fuse, name)
    ticket = _ticket(body, inputs, port_map, back_edges, num_iterations, options)
    if ticket is not None:
        is_known, found = ticket.run()
        if is_known:
            return tuple(found)
    if not isinstance(port_map, PortMap):
        raise TypeError(f"port_map must be a PortMap, got {port_map!r}")
    if isinstance(inputs, (tf.Tensor, tf.Variable)) or not isinstance(inputs, Sequence):
        raise TypeError(f"inputs must be a list of tensors, got {type(inputs).__name__}")
    if len(inputs) != len(port_map.inputs):
        raise ValueError(
            f"the port map has {len(port_map.inputs)} external input ports, but there are "
            f"{len(inputs)} inputs"
        )
    if not callable(body):
        raise TypeError(f"body must be callable, got {body!r}")
    num_iterations = _arguments.check_num_iterations(num_iterations)
    _arguments.check_checkpoint_every(checkpoint_every)
    ports = sorted(port_map.inputs, key=lambda port: port.internal_layer_id)
    by_python = _plain.is_wanted()
    values = [
        _composites.to_value(port.label, inputs[port.external_port_id], by_python) for port in ports
    ]
    tensors = [tensor for value in values for tensor in _composites.components(value)]
    way = _PortMapWay(body, port_map, ports, tuple(back_edges), values)
    if num_iterations is None and all(port.axis is None for port in ports):
        num_iterations = _count_from_outputs(port_map.outputs)
    else:
        for port in port_map.outputs:
            _check_whole(port)
    name = name or "TensorIterator"
    return tuple(call(way, tensors, num_iterations, checkpoint_every, fuse, name, ticket))


class _PortMapWay(Way):
    """A loop as a port map describes it."""

    def __init__(
        self,
        body: Callable[..., Any],
        port_map: PortMap,
        ports: Sequence[InputPort],
        back_edges: tuple[BackEdge, ...],
        values: Sequence[Any],
    ):
        self.body, self._back_edges = body, back_edges
        types = [_composites.type_of(value) for value in values]
        self._arrays = _composites.arrays(values)
        self._types = [_parameter(port, spec) for port, spec in zip(ports, types)]
        check_back_edges(back_edges, ports)
        self._outputs = sorted(port_map.outputs, key=lambda port: port.external_port_id)
        self._parts, self._results = _Parts(types), _Parts([])
        self._tensors: Sequence[tf.Tensor] = ()
        self._first: Structure | None = None
        self.arguments = [Structure(spec) for spec in self._types]
        self.expected = f"the port map has {len(types)} body parameters, which the body"
        self.key = ("tensor_iterator", port_map, back_edges, tuple(types))
        self.parameters = [
            spec for types in self._types for spec in _composites.component_specs(types)
        ]
        self.inputs = [
            _input(port, self._parts.specs[k])
            for port, positions in zip(ports, self._parts.positions)
            for k in positions
        ]

    def enter(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        self._tensors = tensors
        return list(tensors)

    def trace(self) -> _body.Body:
        """As `_body.trace`, with the components of TensorArrays, which no function takes."""
        self._first = None
        if not any(isinstance(spec, tf.TensorArraySpec) for spec in self._types):
            return _body.trace(self.body, self._types, self.convert)

        def arrange(placeholders: Sequence[tf.Tensor]) -> list[Any]:
            for tensor, placeholder in zip(self._tensors, placeholders):
                _tf.copy_handle_data(tensor, placeholder)
            return self.arrange(placeholders)

        return _body.trace(self.body, self.parameters, self.convert, arrange)

    def arrange(self, tensors: Sequence[tf.Tensor]) -> list[Any]:
        return _composites.take(self._types, iter(tensors), self._arrays)

    def convert(self, returned: Any) -> list[Any]:
        """The values in the results, which have one structure each time."""
        results = Structure(returned)
        if self._first is None:
            self._first = results
        _, difference = self._first.match("results", returned)
        if difference is not None:
            raise ValueError(f"the body must return results of one structure: {difference}")
        return [_to_result(result) for result in results.leaves]

    def make_spec(self, body: _body.Body) -> _spec.LoopSpec:
        results = self._results = _Parts([_composites.type_of(r) for r in body.structure])
        num_results = len(results.types)
        for port in self._outputs:
            source = port.internal_layer_id
            if source >= num_results:
                raise ValueError(
                    f"{port.label}: the body has {num_results} results, there is no result {source}"
                )
            if port.axis is not None and not isinstance(results.types[source], tf.TensorSpec):
                raise ValueError(f"{port.label}: {results.types[source]} cannot be concatenated")
        edges: list[tuple[int, int]] = []
        for edge in self._back_edges:
            if edge.from_layer >= num_results:
                raise ValueError(
                    f"{edge}: the body has {num_results} results, there is no result "
                    f"{edge.from_layer}"
                )
            _check_back_edge(edge, body, self._parts, results)
            edges += zip(results.positions[edge.from_layer], self._parts.positions[edge.to_layer])
        outputs = [
            _output(port, k, body)
            for port in self._outputs
            for k in results.positions[port.internal_layer_id]
        ]
        return spec_around(body, self.inputs, outputs, edges)

    def leave(self, outputs: Sequence[tf.Tensor]) -> Structure:
        given, found = iter(outputs), []
        for port in self._outputs:
            source = port.internal_layer_id
            spec = self._results.types[source]
            parts = [next(given) for _ in self._results.positions[source]]
            is_one = isinstance(spec, tf.TensorSpec)
            found.append(parts[0] if is_one else _composites.from_components(spec, parts))
        return Structure(found)


def _ticket(
    body: Callable[..., Any],
    inputs: Any,
    port_map: Any,
    back_edges: Any,
    num_iterations: int | tf.Tensor | None,
    options: tuple[Any, ...],
) -> _kept.Ticket | None:
    """The ticket of an eager call, of which nothing is checked so far."""
    if type(port_map) is not PortMap or not isinstance(back_edges, (list, tuple)):
        return None
    if not isinstance(inputs, (list, tuple)) or len(inputs) != len(port_map.inputs):
        return None
    if num_iterations is None and all(port.axis is None for port in port_map.inputs):
        return None  # outputs tell it
    if not all(type(given) is _tf.EagerTensor for given in inputs):
        return None
    ports = sorted(port_map.inputs, key=lambda port: port.internal_layer_id)
    arguments = tuple(inputs[port.external_port_id] for port in ports)
    options = ("tensor_iterator", port_map, tuple(back_edges), *options)
    return _kept.ticket(body, options, arguments, num_iterations)


def _to_result(value: Any) -> Any:
    if isinstance(value, tf.TypeSpec):  # in a function that was loaded
        return value
    return _composites.to_value("a result", value, by_python=True)


class _Parts:
    """The components of values of these types, numbered.

    Attributes:
        types: the types.
        positions: for each value the numbers of its tensors.
        specs: of all tensors.
    """

    def __init__(self, types: Sequence[tf.TypeSpec]):
        self.types = list(types)
        self.positions: list[range] = []
        self.specs: list[tf.TensorSpec] = []
        for spec in types:
            parts = _composites.component_specs(spec)
            self.positions.append(range(len(self.specs), len(self.specs) + len(parts)))
            self.specs += parts


def _check_back_edge(
    edge: BackEdge, traced: _body.Body, parameters: _Parts, results: _Parts
) -> None:
    source, target = f"result {edge.from_layer}", f"parameter {edge.to_layer} of the body"
    given, taken = results.types[edge.from_layer], parameters.types[edge.to_layer]
    if not (isinstance(given, tf.TensorSpec) and isinstance(taken, tf.TensorSpec)):
        if not taken.is_compatible_with(given):
            raise TypeError(
                f"{target} is a {taken}, but {source}, which feeds it in the next iteration, a "
                f"{given}"
            )
        return
    i, k = results.positions[edge.from_layer][0], parameters.positions[edge.to_layer][0]
    _arguments.check_back_edge(
        target,
        tf.TensorSpec(traced.parameter_shapes[k], taken.dtype),
        traced.result_types[i],
        traced.result_shapes[i],
        source,
        "a body built for a less specific shape (a tf.function with an input_signature, say) "
        "allows a state to change its shape",
    )


def _part_size(port: InputPort) -> int:
    return abs(port.stride) if port.part_size is None else port.part_size


def _parameter(port: InputPort, spec: tf.TypeSpec) -> tf.TypeSpec:
    """The type of the body's parameter."""
    if not isinstance(spec, tf.TensorSpec):
        if port.axis is not None:
            raise ValueError(f"{port.label}: {spec} cannot be sliced; tf_ti.scan takes its rows")
        return spec
    if port.axis is None or spec.shape.rank is None:
        return spec
    rank = spec.shape.rank
    if not -rank <= port.axis < rank:
        raise ValueError(
            f"{port.label}: axis {port.axis} is out of range for a tensor of rank {rank}"
        )
    shape = spec.shape.as_list()
    extent = shape[port.axis]
    if extent and _part_size(port) > extent:
        raise ValueError(
            f"{port.label}: no whole piece fits the range: start={port.start} end={port.end} "
            f"stride={port.stride} part_size={_part_size(port)} over {extent} elements"
        )
    # An axis of unknown extent may turn out too short for a piece that no tensor could hold.
    shape[port.axis] = _part_size(port) if _part_size(port) < 2**31 else None
    return tf.TensorSpec(shape, spec.dtype)


def _check_whole(port: OutputPort) -> None:
    if port.axis is not None and not port.is_whole and (port.start, port.end) != (0, -1):
        raise ValueError(
            f"{port.label}: only a whole range is meaningful for an output, got "
            f"start={port.start} end={port.end} stride={port.stride}"
        )


def _count_from_outputs(ports: Sequence[OutputPort]) -> int:
    """The number of iterations as the first output port with a range of its own tells it."""
    for port in sorted(ports, key=lambda port: port.external_port_id):
        if port.axis is None or (port.start, port.end) in ((0, -1), (-1, 0)):
            continue
        if (port.start < 0) != (port.end < 0):
            raise ValueError(
                f"{port.label}: start={port.start} end={port.end} tells no number of iterations"
            )
        length = abs(port.end - port.start)
        part_size = port.part_size or abs(port.stride)
        if length % part_size:
            raise ValueError(
                f"{port.label}: pieces of {part_size} do not tile the {length} elements from "
                f"start={port.start} to end={port.end}"
            )
        return length // part_size
    raise ValueError(
        "the number of iterations is unknown: no input port has an axis, num_iterations is not "
        "given, and no output port has a start and an end"
    )


def _input(port: InputPort, spec: tf.TensorSpec) -> _spec.Input:
    if port.axis is None:
        return _spec.Input(port.label, spec.shape)
    return _spec.Input(
        port.label,
        spec.shape,
        "slice",
        port.axis,
        port.start,
        port.end,
        port.stride,
        _part_size(port),
    )


def _output(port: OutputPort, source: int, body: _body.Body) -> _spec.Output:
    dtype = body.result_types[source]
    if port.axis is None:
        return _spec.Output(port.label, dtype, "last", source)
    shape = body.result_shapes[source]
    order = 1 if port.stride > 0 else -1
    part_size = port.part_size or (abs(port.stride) if abs(port.stride) > 1 else 0)
    if shape.rank is None:
        return _spec.Output(port.label, dtype, "concat", source, port.axis, order, part_size)
    rank = max(shape.rank, 1)
    if not -rank <= port.axis < rank:
        raise ValueError(
            f"{port.label}: axis {port.axis} is out of range for a result of shape {shape}"
        )
    if shape.rank == 0:
        return _spec.Output(port.label, dtype, "stack", source, 0, order)
    if part_size and shape.as_list()[port.axis] not in (None, part_size):
        raise ValueError(
            f"{port.label}: part_size is {part_size}, but the body's result has shape {shape}"
        )
    return _spec.Output(port.label, dtype, "concat", source, port.axis, order, part_size)
