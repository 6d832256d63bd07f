"""Random inputs for a model. Integers are in the ranges that the layers reading them allow."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tf_ti.openvino.errors import IRError
from tf_ti.openvino.model import Graph, Layer, Port, Shape
from tf_ti.openvino.weights import Weights

# The extent of an unknown dimension, and the end of the range of integers without a rule.
_EXTENT = 2
_END = 10
_MOST_ELEMENTS = 2**31  # of an input
# These pass on the numbers of their first input.
_TRANSPARENT = frozenset(
    ["Broadcast", "Convert", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"]
)


def random_inputs(
    graph: Graph,
    weights: Weights,
    shapes: Mapping[str | None, Shape],
    rng: np.random.Generator,
    extent: int = _EXTENT,
) -> list[np.ndarray]:
    """An array for each Parameter.

    `shapes` has shapes by names, with None for `extent`. The only input may be called None.
    """
    parameters = graph.of_type("Parameter")
    names: dict[int, set[str | None]] = {
        layer.id: {layer.name, *layer.outputs[0].names} for layer in parameters
    }
    if len(parameters) == 1:
        names[parameters[0].id].add(None)
    for name in shapes:
        if not any(name in known for known in names.values()):
            listed = ", ".join(repr(layer.name) for layer in parameters) or "none"
            if name is None:
                raise IRError(f"{graph.path}: a shape must have a name; inputs are {listed}")
            raise IRError(f"{graph.path}: there is no input {name!r}; inputs are {listed}")
    extents = {}
    for layer in parameters:
        given = [shape for name, shape in shapes.items() if name in names[layer.id]]
        shape = given[-1] if given else layer.outputs[0].shape
        extents[layer.id] = _extents(layer, shape, extent)
    sampler = _Sampler(graph, weights, extents, rng)
    return [sampler.sample(layer) for layer in parameters]


def _extents(layer: Layer, shape: Shape | None, extent: int) -> tuple[int, ...]:
    known = layer.outputs[0].shape
    if shape is None:
        raise IRError(f"{layer.path}: its rank is not known: a shape must be given for it")
    if known is not None and (
        len(known) != len(shape) or any(None not in (n, m) and n != m for n, m in zip(known, shape))
    ):
        raise IRError(f"{layer.path}: is of shape {known}, which {shape} is not")
    known = known or shape
    extents = [next((e for e in both if e is not None), extent) for both in zip(shape, known)]
    if math.prod(extents) > _MOST_ELEMENTS:
        raise IRError(f"{layer.path}: random inputs of shape {extents} would be too large")
    return tuple(extents)


class _Sampler:
    def __init__(
        self,
        graph: Graph,
        weights: Weights,
        extents: Mapping[int, tuple[int, ...]],
        rng: np.random.Generator,
    ):
        self._graph, self._weights = graph, weights
        self._extents, self._rng = extents, rng

    def sample(self, layer: Layer) -> np.ndarray:
        shape = self._extents[layer.id]
        (port,) = layer.outputs
        assert port.element_type is not None
        dtype = port.element_type.dtype
        if port.element_type.is_floating:
            return self._rng.standard_normal(shape).astype(dtype)
        if dtype == np.bool_:
            return self._rng.integers(0, 2, shape).astype(dtype)
        first, end, is_sorted = 0, _END, False
        for use in self._uses(self._graph, layer, port):
            low, high, in_order = use.range()
            first, end, is_sorted = max(first, low), min(end, high), is_sorted or in_order
        values = self._rng.integers(first, max(end, first + 1), shape).astype(dtype)
        if is_sorted and values.size:
            values = np.sort(values, axis=-1)
            values[..., 0] = first
        return values

    def _uses(self, graph: Graph, layer: Layer, port: Port) -> Iterator["_Use"]:
        """The inputs that get the numbers of a port, also through layers that pass them on."""
        given = [(graph, layer, port)]
        while given:
            graph, layer, port = given.pop()
            for (target, to_port), source in graph.sources.items():
                if source != (layer.id, port.id):
                    continue
                reader = graph.layers[target]
                position = [other.id for other in reader.inputs].index(to_port)
                if reader.type in _TRANSPARENT and position == 0:
                    given += [(graph, reader, output) for output in reader.outputs[:1]]
                elif not reader.bodies or (reader.type == "Loop" and position == 0):
                    yield _Use(self, graph, reader, position)
                for body in reader.bodies.values():
                    for entry in body.inputs:
                        if entry.external_port_id == to_port:
                            inside = body.graph.layers[entry.internal_layer_id]
                            given.append((body.graph, inside, inside.outputs[0]))

    def shape(self, graph: Graph, layer: Layer, position: int) -> tuple[int, ...]:
        """The shape of an input. Unknown extents are 1."""
        source, port_id = graph.sources[layer.id, layer.inputs[position].id]
        if graph is self._graph and source in self._extents:
            return self._extents[source]
        port = graph.layers[source].output(port_id)
        assert port is not None
        return tuple(n or 1 for n in port.shape or ())

    def steps(self, graph: Graph, layer: Layer, axis: int) -> int:
        """The extent of the first input along an axis, also through Transposes and Converts."""
        source, port_id = graph.sources[layer.id, layer.inputs[0].id]
        before = graph.layers[source]
        port = before.output(port_id)
        if graph is self._graph and source in self._extents:
            extents = dict(enumerate(self._extents[source]))
            return extents.get(axis, _EXTENT)
        if port is not None and port.shape is not None and axis < len(port.shape):
            known = port.shape[axis]
            if known is not None:
                return known
        if before.type == "Transpose":
            order = graph.layers[graph.sources[source, before.inputs[1].id][0]]
            axes = self._weights.of(order)[0] if order.type == "Constant" else np.array([])
            return self.steps(graph, before, int(axes[axis])) if axis < axes.size else _EXTENT
        return self.steps(graph, before, axis) if before.type == "Convert" else _EXTENT

    def number(self, graph: Graph, layer: Layer, position: int) -> int | None:
        """The first number of an input, if that is a constant."""
        source = graph.layers[graph.sources[layer.id, layer.inputs[position].id][0]]
        if source.type != "Constant":
            return None
        value, _ = self._weights.of(source)
        return int(value.reshape(-1)[0]) if value.size else None


class _Use:
    """An input of a layer that reads integers from it."""

    def __init__(self, sampler: _Sampler, graph: Graph, layer: Layer, position: int):
        self._sampler, self._graph = sampler, graph
        self.layer, self.position = layer, position

    def range(self) -> tuple[int, int, bool]:
        """The least number allowed, the end of the range, and true if numbers must be sorted."""
        rule = _RULES.get((self.layer.type, self.position))
        try:
            return rule(self) if rule else (0, _END, False)
        except IndexError:  # inputs are missing: running the model will fail with an error
            return 0, _END, False

    def extent(self, position: int, axis: int | None) -> int:
        shape = self._sampler.shape(self._graph, self.layer, position)
        return shape[axis or 0] if -len(shape) <= (axis or 0) < len(shape) else 1

    def rank(self, position: int) -> int:
        return len(self._sampler.shape(self._graph, self.layer, position))

    def steps(self, axis: int) -> int:
        return self._sampler.steps(self._graph, self.layer, axis)

    def is_static(self, position: int) -> bool:
        shape = self.layer.inputs[position].shape
        return shape is not None and None not in shape

    def least_extent(self, position: int) -> int:
        return min(self._sampler.shape(self._graph, self.layer, position), default=1)

    def size(self, position: int) -> int:
        return int(np.prod(self._sampler.shape(self._graph, self.layer, position)))

    def number(self, position: int) -> int | None:
        return self._sampler.number(self._graph, self.layer, position)

    def attribute(self, name: str) -> int:
        try:
            return int(self.layer.attributes.get(name, 0))
        except ValueError:
            return 0


_Rule = Callable[[_Use], tuple[int, int, bool]]


def _positive(end: int) -> _Rule:
    return lambda use: (1, end, False)


def _rows(position: int) -> _Rule:
    return lambda use: (0, use.extent(position, 0), False)


def _along_constant(position: int) -> _Rule:
    return lambda use: (0, use.extent(0, use.number(position)), False)


def _axes(use: _Use) -> tuple[int, int, bool]:
    return 0, use.rank(0), False


def _lengths(axis: Callable[[_Use], int]) -> _Rule:
    """Lengths up to the extent; all equal to it if shapes are dynamic: OpenVINO ignores others."""

    def rule(use: _Use) -> tuple[int, int, bool]:
        end = use.steps(axis(use)) + 1
        return (1 if use.is_static(0) else end - 1), end, False

    return rule


def _rules(types: Sequence[str], rules: Mapping[int, _Rule]) -> dict[tuple[str, int], _Rule]:
    return {(kind, position): rule for kind in types for position, rule in rules.items()}


_RULES: dict[tuple[str, int], _Rule] = {
    # Rows of tables.
    **_rules(
        ["EmbeddingBagOffsetsSum", "EmbeddingBagOffsets"],
        {1: _rows(0), 2: lambda use: (0, use.size(1), True), 3: _rows(0)},
    ),
    **_rules(["EmbeddingBagPackedSum", "EmbeddingBagPacked"], {1: _rows(0)}),
    **_rules(
        ["EmbeddingSegmentsSum"],
        {1: _rows(0), 2: lambda use: (0, use.number(3) or 1, True), 3: _positive(4), 4: _rows(0)},
    ),
    **_rules(["Gather"], {1: _along_constant(2), 2: _axes}),
    **_rules(["GatherElements"], {1: lambda use: (0, use.extent(0, use.attribute("axis")), False)}),
    **_rules(["ScatterUpdate", "ScatterElementsUpdate"], {1: _along_constant(3), 3: _axes}),
    **_rules(["GatherND", "ScatterNDUpdate"], {1: lambda use: (0, use.least_extent(0), False)}),
    # Axes.
    **_rules(
        "CumSum MVN NormalizeL2 ReduceL1 ReduceL2 ReduceLogicalAnd ReduceLogicalOr ReduceMax "
        "ReduceMean ReduceMin ReduceProd ReduceSum Reverse Split VariadicSplit".split(),
        {1: _axes},
    ),
    **_rules(["Slice"], {3: _positive(3), 4: _axes}),
    # Lengths of sequences.
    **_rules(["LSTMSequence"], {3: _lengths(lambda use: 1)}),
    **_rules(["GRUSequence", "RNNSequence"], {2: _lengths(lambda use: 1)}),
    **_rules(["ReverseSequence"], {1: _lengths(lambda use: use.attribute("seq_axis"))}),
    # Counts and divisors.
    **_rules(["Divide", "FloorMod", "Mod", "OneHot"], {1: _positive(_END)}),
    **_rules(["Tile"], {1: _positive(3)}),
    **_rules(["TopK"], {1: _positive(2)}),
    **_rules(["Loop"], {0: _positive(5)}),
}
