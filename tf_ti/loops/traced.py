"""The one value of a loop, from the callable that a user gave to the op that runs it."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti._library import ops
from tf_ti.loops import printed as _printed
from tf_ti.loops.spec import OPS, Input, LoopSpec, Output
from tf_ti.loops.tracing import body as _body, graphs as _graphs
from tf_ti.loops.tracing.body import Body
from tf_ti.loops.tracing.part import Part

# The attribute of an op whose loop `gives_zeros`.
GIVES_ZEROS = "_tf_ti_gives_zeros"
# The attribute of such an object of Python: what the loop has as `read_before`.
READ_BEFORE = "tf_ti_read_before"
# The type of the operations that make variables which nobody changes.
TEMPORARY = "TfTi>TemporaryVariable"
# Operations that read all of a variable, or its shape alone.
_DENSE = {"ReadVariableOp", "VariableShape"}
# The most elements of a variable in which a body looks up rows that all are read for a gradient.
_MOST_LOOKED_UP = 2**22


@dataclasses.dataclass(frozen=True)
class ReadBefore:
    """A variable that functions of a body read.

    Attributes:
        value: its value before the loop.
        is_for_xla: true if one of the functions is compiled by XLA.
    """

    value: tf.Tensor
    is_for_xla: bool

    @classmethod
    def of(cls, op: tf.Operation) -> "ReadBefore":
        """What an operation that makes a variable was made of."""
        return cls(op.inputs[0], op.get_attr("is_for_xla"))

    def variable(self, handle: tf.Tensor) -> tf.Tensor:
        """The handle of a new variable that has the value and the type of another handle's."""
        made = ops.tf_ti_temporary_variable(self.value, is_for_xla=self.is_for_xla)
        if tf.is_symbolic_tensor(made):
            _tf.keep_out_of_clusters(made.op)
        else:
            _tf.copy_handle_data(handle, made)
        return made


@dataclasses.dataclass(frozen=True, eq=False)
class TracedLoop:
    """A loop whose body is traced.

    Every way in returns one, every pass takes one and gives one, `lower` makes an op of one, and
    derivatives start from one.

    Attributes:
        spec: the loop, as the op's attributes say it.
        part: the computation of an iteration. Passes never change its graph.
        tensors: the tensors that the spec's inputs get.
        num_iterations: the limit, or None.
        condition: the graph of the condition, or None. Its results but the first are further
            parameters of the body.
        lengths: those of the outputs that have one.
        num_results: how many of the body's results are the user's; a gradient needs the others
            recorded. None if all are.
        recorded: tensors of the body that are further results of the function that it becomes.
        controls: the operations that the loop waits for.
        gives_zeros: true if the gradient of what no output depends on is zeros, and not None.
        outputs: those of the op, where there is one; a gradient reads its histories.
        op: the op; None if it ran eagerly, or is not there yet.
        source: all that must live as long as the loop.
        read_before: by parameter, variables as they are before the loop, which a gradient's body
            reads again: others may have changed them by then. None if no operation reads them yet.
    """

    spec: LoopSpec
    part: Part
    tensors: Sequence[tf.Tensor]
    num_iterations: int | tf.Tensor | None = None
    condition: _tf.FuncGraph | None = None
    lengths: Sequence[tf.Tensor] = ()
    num_results: int | None = None
    recorded: Sequence[tf.Tensor] = ()
    controls: Sequence[tf.Operation] = ()
    gives_zeros: bool = False
    outputs: Sequence[tf.Tensor] = ()
    op: tf.Operation | None = None
    source: Any = None
    read_before: Mapping[int, ReadBefore] | None = dataclasses.field(default_factory=dict)

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
            Part.whole(body.graph),
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
            Part.whole(_graphs.of_function(op, _tf.body_of(op), shapes)),
            list(op.inputs[:count]),
            op.inputs[count] if has_limit else None,
            condition,
            list(op.inputs[count + has_limit :]),
            gives_zeros=_tf.is_marked(op, GIVES_ZEROS),
            outputs=list(op.outputs),
            op=op,
            # In a copy of a graph, variables are those of the loop around it.
            read_before=getattr(op, READ_BEFORE, {} if _graphs.is_copy(op.graph) else None),
        )

    def printed(self, with_origins: bool = False) -> str:
        """The loop in text: its parameters, the operations of an iteration, and its outputs.

        Args:
            with_origins: print the name of each operation, and the user's line that made it.
        """
        return _printed.printed(
            self.spec, self.body, self.condition, self.num_iterations, with_origins
        )

    @property
    def body(self) -> _tf.FuncGraph:
        """The graph of an iteration."""
        return self.part.function_graph

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

    def read_only_inputs(self) -> list[int]:
        """The parameters that are resources, which no iteration changes or hands on."""
        handed_on = {parameter for _, parameter in self.spec.back_edges}
        for graph, positions in zip(self.graphs, (range(len(self.tensors)), self.condition_inputs)):
            read, results = _tf.read_only_inputs(graph), {t.ref() for t in graph.outputs}
            handed_on.update(
                i
                for k, i in enumerate(positions)
                if k not in read or graph.inputs[k].ref() in results
            )
        return [
            i for i, t in enumerate(self.tensors) if t.dtype == tf.resource and i not in handed_on
        ]

    def values_before(self) -> dict[int, ReadBefore]:
        """Reads variables that conditionals and loops of the body read; see `read_before`.

        A gradient may run these again. What operations read is recorded, but for an operation of a
        conditional that was vectorised. Large variables in which rows are looked up are left out.
        """
        read_only = {self.body.inputs[i].ref(): i for i in self.read_only_inputs()}
        recorded = {t.ref() for t in (*self.body.outputs, *self.recorded)}
        readers: dict[int, list[tf.Operation | None]] = {}
        for op in self.body.get_operations() if read_only else ():
            is_recorded = op.type in _tf.READS and {t.ref() for t in op.outputs} <= recorded
            if is_recorded or op.type == "VariableShape":
                continue
            for k, tensor in enumerate(op.inputs):
                if tensor.ref() in read_only:
                    found = readers.setdefault(read_only[tensor.ref()], [])
                    found += [op] if op.type in _tf.READS else [op, *operations_inside(op, k)]
        values = {}
        for i, operations in readers.items():
            spec = _tf.spec_inside(self.body.inputs[i]) or _tf.spec_inside(self.tensors[i])
            looks_up = any(op is None or op.type in _tf.READS - _DENSE for op in operations)
            handle = self.tensors[i]
            if tf.is_symbolic_tensor(handle) and handle.op.type == TEMPORARY:
                continue
            if spec is None or (looks_up and _is_large(spec.shape)):
                continue
            (handle,) = _tf.captured([handle])
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=spec.dtype)
            value.set_shape(spec.shape)
            is_for_xla = any(op is not None and _graphs.is_compiled(op) for op in operations)
            values[i] = ReadBefore(value, is_for_xla)
        return values

    @property
    def num_scalars(self) -> int:
        """The number of inputs that the op has beside the spec's."""
        return (self.num_iterations is not None) + len(self.lengths)

    @property
    def outer_graph(self) -> tf.Graph | None:
        """The graph of the op; None if the loop ran eagerly."""
        is_eager = isinstance(self.outputs[0], _tf.EagerTensor)
        return None if is_eager else self.outputs[0].graph

    def whole(self) -> "TracedLoop":
        """The same loop, whose part is all of the graph of its body."""
        is_whole = self.part.graph is self.body
        return self if is_whole else dataclasses.replace(self, part=Part.whole(self.body))

    def copied(self) -> "TracedLoop":
        """The same loop with a copy of its body, which the caller may change."""
        return dataclasses.replace(self, part=Part.whole(self.part.copied()))

    def with_part(
        self,
        spec: LoopSpec,
        tensors: Sequence[tf.Tensor],
        parameters: Sequence[Sequence[tf.Tensor]],
        results: Sequence[tf.Tensor],
        droppable: Collection[int] = (),
    ) -> "TracedLoop":
        """Another loop, whose body is made of operations of this one's.

        Args:
            spec: the other loop.
            tensors: the tensors that the spec's inputs get.
            parameters: for each parameter, the tensors of the part's graph for which it stands.
            results: tensors of the part's graph.
            droppable: positions of inputs that the loop loses if it does not use them.
        """
        part = Part(self.part.graph, parameters, results)
        used = spec.parameters_in_use()
        gone = {i for i in droppable if i not in used and not part.reads(parameters[i])}
        spec = spec.without_inputs(gone)
        kept = [group for i, group in enumerate(parameters) if i not in gone]
        return dataclasses.replace(
            self,
            spec=spec,
            part=dataclasses.replace(
                part, parameters=kept, shapes=tuple(given.shape for given in spec.inputs)
            ),
            tensors=[tensor for i, tensor in enumerate(tensors) if i not in gone],
        )

    def replacing(self, others: _graphs.Others) -> "TracedLoop":
        """The same loop, whose body has other operations for some."""
        return dataclasses.replace(self, part=Part.whole(self.part.copied(others)))

    def recording(self, every: int, saves_memory: bool) -> "TracedLoop":
        """The same loop with the histories that its gradient needs; see `LoopSpec.recording`.

        Args:
            every: record the states of each `every`-th iteration.
            saves_memory: true if the gradient is to compute again what it can.
        """
        body, spec = self.body, self.spec
        places = {t.ref(): r for r, t in enumerate(body.outputs)}
        recorded = set(range(self.num_users_results, len(body.outputs)))
        found = _body.recorded_for_custom_gradients(body)
        # A custom gradient may be there to save memory. And a loop around this one would record the
        # histories of this one in each iteration, where it may not run this one again.
        if not found and not saves_memory and not self.is_stateful:
            found = _body.recorded_as_heavy(body, spec)
        added = [t for t in found if t.ref() not in places]
        places.update((t.ref(), r) for r, t in enumerate(added, start=len(body.outputs)))
        recorded.update(places[t.ref()] for t in found)
        spec = dataclasses.replace(
            spec,
            result_types=(*spec.result_types, *(t.dtype for t in added)),
            result_shapes=(*spec.result_shapes, *(t.shape for t in added)),
        )
        return dataclasses.replace(self, spec=spec.recording(every, recorded), recorded=added)

    @property
    def num_users_results(self) -> int:
        """The number of results that the user's body returns."""
        return len(self.body.outputs) if self.num_results is None else self.num_results


def operations_inside(op: tf.Operation, index: int) -> Iterator[tf.Operation | None]:
    """The operations in functions that an operation runs that have one of its inputs as theirs.

    None stands for operations that nobody knows.
    """
    seen: set[Any] = set()
    parameters = _parameters(op, index)
    while parameters:
        parameter = parameters.pop()
        if parameter is None:
            yield None
            continue
        if parameter.ref() in seen:
            continue
        seen.add(parameter.ref())
        for reader in parameter.consumers():
            yield reader
            if _graphs.function_names(reader.node_def):
                places = [k for k, tensor in enumerate(reader.inputs) if tensor is parameter]
                for k in places:
                    parameters += _parameters(reader, k)


def _parameters(op: tf.Operation, index: int) -> list[tf.Tensor | None]:
    """The parameters of the functions of an operation that get one of its inputs."""
    if op.type in OPS:
        loop = TracedLoop.from_op(op)
        found = [loop.body.inputs[index]]
        if loop.condition is not None:
            given = zip(loop.condition.inputs, loop.condition_inputs)
            found += [parameter for parameter, i in given if i == index]
        return found
    graphs = _graphs.traced_functions(op)
    is_known = op.type in _graphs.WITH_FUNCTIONS
    if not is_known or len(graphs) < len(_graphs.function_names(op.node_def)):
        return [None]
    position = index - (op.type in _graphs.CONDITIONALS)
    return [graph.inputs[position] for graph in graphs]


def _is_large(shape: tf.TensorShape) -> bool:
    count = shape.num_elements()
    return count is None or count > _MOST_LOOKED_UP


def spec_around(
    body: Body,
    inputs: Sequence[Input],
    outputs: Sequence[Output],
    back_edges: Sequence[tuple[int, int]] = (),
    limit_label: str = "num_iterations",
) -> LoopSpec:
    """The spec of a loop around a traced body, whose captures become its last inputs."""
    inputs, count = list(inputs), len(inputs)
    for i, shape in enumerate(body.parameter_shapes):
        if i < count:
            # The body may have been built for less, or for more, than the input's shape tells.
            inputs[i] = dataclasses.replace(inputs[i], shape=shape)
        else:
            inputs.append(Input(f"capture {i - count}", shape))
    return LoopSpec(
        tuple(inputs),
        tuple(outputs),
        tuple(back_edges),
        body.result_types,
        body.result_shapes,
        limit_label=limit_label,
    )
