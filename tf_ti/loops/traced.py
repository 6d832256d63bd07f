"""The one value of a loop, from the callable that a user gave to the op that runs it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.spec import Input, LoopSpec, Output
from tf_ti.loops.tracing import graphs as _graphs
from tf_ti.loops.tracing.body import Body


@dataclasses.dataclass(frozen=True, eq=False)
class TracedLoop:
    """A loop whose body is traced.

    Every way in returns one, every pass takes one and gives one, `lower` makes an op of one, and
    derivatives start from one.

    Attributes:
        spec: the loop, as the op's attributes say it.
        body: the graph of one iteration. Who makes another loop of it may change it.
        tensors: the tensors that the spec's inputs get.
        num_iterations: the limit, or None.
        condition: the graph of the condition, or None. Its results but the first are further
            parameters of the body.
        lengths: those of the outputs that have one.
        num_results: how many of the body's results are the user's; a gradient needs the others
            recorded. None if all are.
        controls: the operations that the loop waits for.
        outputs: those of the op, where there is one; a gradient reads its histories.
        source: all that must live as long as the loop.
    """

    spec: LoopSpec
    body: _tf.FuncGraph
    tensors: Sequence[tf.Tensor]
    num_iterations: int | tf.Tensor | None = None
    condition: _tf.FuncGraph | None = None
    lengths: Sequence[tf.Tensor] = ()
    num_results: int | None = None
    controls: Sequence[tf.Operation] = ()
    outputs: Sequence[tf.Tensor] = ()
    source: Any = None

    @classmethod
    def around(
        cls,
        body: Body,
        spec: LoopSpec,
        tensors: Sequence[tf.Tensor],
        num_iterations: int | tf.Tensor | None = None,
        condition: _tf.FuncGraph | None = None,
    ) -> "TracedLoop":
        """The loop around a traced body: it gets the tensors, and the body's captures."""
        with tf.control_dependencies(body.controls):
            tensors = [*tensors, *body.captured_tensors()]
        return cls(
            spec,
            body.graph,
            tensors,
            num_iterations,
            condition,
            num_results=body.num_results,
            controls=body.controls,
            source=body.source,
        )

    @classmethod
    def from_op(cls, op: tf.Operation) -> "TracedLoop":
        """The loop of an op in a graph."""
        spec = LoopSpec.from_op(op)
        count, has_limit = len(spec.inputs), op.get_attr("N")
        shapes = [given.shape for given in spec.inputs]
        condition = None
        if spec.condition_inputs is not None:
            read = [shapes[i] for i in spec.condition_inputs]
            condition = _graphs.of_function(op, op.get_attr("condition")[0].name, read)
            shapes += [t.shape for t in condition.outputs[1:]]
        return cls(
            spec,
            _graphs.of_function(op, _tf.body_of(op), shapes),
            list(op.inputs[:count]),
            op.inputs[count] if has_limit else None,
            condition,
            list(op.inputs[count + has_limit :]),
            outputs=list(op.outputs),
        )

    @property
    def graphs(self) -> list[_tf.FuncGraph]:
        """The body, and the condition if there is one."""
        return [self.body] if self.condition is None else [self.body, self.condition]

    @property
    def condition_inputs(self) -> tuple[int, ...]:
        """The parameters that the condition reads."""
        return self.spec.condition_inputs or ()

    @property
    def is_stateful(self) -> bool:
        """True if an iteration has effects, or depends on more than its parameters."""
        return any(_tf.is_stateful(op) for graph in self.graphs for op in graph.get_operations())

    @property
    def num_scalars(self) -> int:
        """The number of inputs that the op has beside the spec's."""
        return (self.num_iterations is not None) + len(self.lengths)

    @property
    def outer_graph(self) -> tf.Graph | None:
        """The graph of the op; None where it was run."""
        is_eager = isinstance(self.outputs[0], _tf.EagerTensor)
        return None if is_eager else self.outputs[0].graph

    def recording(self, every: int) -> "TracedLoop":
        """The same loop with the histories that its gradient needs; see `LoopSpec.recording`."""
        recorded = range(self.num_users_results, len(self.body.outputs))
        return dataclasses.replace(self, spec=self.spec.recording(every, recorded))

    @property
    def num_users_results(self) -> int:
        """The number of the body's results that are the user's."""
        return len(self.body.outputs) if self.num_results is None else self.num_results


def spec_around(
    body: Body,
    inputs: Sequence[Input],
    outputs: Sequence[Output],
    back_edges: Sequence[tuple[int, int]] = (),
    limit_label: str = "num_iterations",
) -> LoopSpec:
    """The spec of a loop around a traced body, whose captures become its last inputs."""
    inputs = list(inputs)
    for i, shape in enumerate(body.parameter_shapes):
        if i < len(inputs):
            # The body may have been built for less, or for more, than the input's shape tells.
            inputs[i] = dataclasses.replace(inputs[i], shape=shape)
        else:
            inputs.append(Input(f"capture {i - len(inputs)}", shape))
    return LoopSpec(
        tuple(inputs),
        tuple(outputs),
        tuple(back_edges),
        body.result_types,
        body.result_shapes,
        limit_label=limit_label,
    )
