"""The lanes of a loop whose body is one program, or the obstacles to them."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _library, _tf
from tf_ti.loops.explaining import memory as _memory
from tf_ti.loops.passes import programs as _programs
from tf_ti.loops.passes.step import Mention, Note
from tf_ti.loops.spec import OPS, Output
from tf_ti.loops.traced import TracedLoop
from tf_ti.loops.tracing import graphs as _graphs

UNKNOWN = "depend on shapes that are not known before a call"
UNTOLD = "are not known before a call"
# The iterations of a loop that runs for an extent that is not known.
_MANY = 2**30
_MOST_OBSTACLES = 3
# Operations that no kernel runs: see IsIdentity in cc/kernels/loops/schedule.h.
_COPIES = {"Identity", "PreventGradient", "Snapshot", "StopGradient"}
_TEXTS = {
    "several_sizes": "values of several types or shapes become {array}",
    "whole": "the condition reads all of {array}",
    "constant": "a constant is not the same along {axis}",
    "parts": "it takes, moves or joins parts of {axis}",
    "reduced": "the loop goes on with what it makes of all of {axis}",
    "written": "the loop writes out what it makes of all of {axis}",
    "places": "its zeros depend on their places along {axis}",
    "repeated": "it pairs {axis} with another dimension",
    "constant_result": "the body returns a constant as {array}",
}
_CURES = {
    "whole": "Let the condition read a state of one value, or let a number of iterations end the "
    "loop.",
    "constant": "Make it a tensor before the loop, or give it to the loop as an input.",
    "constant_result": "Make the constant outside of the loop.",
}


@dataclasses.dataclass(frozen=True)
class Lanes:
    """An account of the lanes of a loop.

    Attributes:
        text: the number of lanes, and of groups; "" if there are none.
        obstacles: where there are none, the reasons.
        by_kernels: the operations that run as kernels, so that the body is no single program.
    """

    text: str = ""
    obstacles: tuple[Note, ...] = ()
    by_kernels: tuple[Note, ...] = ()


def find(loop: TracedLoop) -> Lanes:
    """The lanes of a loop whose operations programs run, as far as their types tell."""
    if not all(t.shape.is_fully_defined() for t in loop.body.inputs):
        return Lanes(UNKNOWN)
    constants = tuple(_constant_results(loop))
    if constants:
        return Lanes(obstacles=constants[:_MOST_OBSTACLES])
    values = _Values.of(loop)
    arrays = values.arrays
    lines = [line.split(" ") for line in _tell(loop, values)]
    kernels = [words for kind, *words in lines if kind == "kernel"]
    # The graph that runs has no conditionals and no calls of functions where programs run them, and
    # integers may be known by then. Other reasons hold.
    known = [words for words in kernels if _is_known(loop, words)]
    if known:
        return Lanes(by_kernels=tuple(_by_kernels(loop, known)))
    if kernels or any(kind == "refused" for kind, *_ in lines):
        return Lanes(UNTOLD)
    lanes = [tuple(map(int, words)) for kind, *words in lines if kind == "lanes"]
    if lanes:
        return Lanes(_describe(loop, arrays, lanes))
    obstacles = [words for kind, *words in lines if kind == "obstacle"]
    states = {arrays[p] for _, p in loop.spec.back_edges}
    of_states = [words for words in obstacles if int(words[2]) in states]
    found = dict.fromkeys(_notes(loop, arrays, of_states or obstacles))
    return Lanes(obstacles=tuple(found)[:_MOST_OBSTACLES])


def _constant_results(loop: TracedLoop) -> Iterator[Note]:
    """Notes of results for which the body has no program, as they are constants."""
    folded = _programs.of_constants(loop.body)
    for r, tensor in enumerate(loop.body.outputs):
        if _source(tensor).op in folded:
            label = _label(loop, len(loop.body.inputs) + r)
            text = _TEXTS["constant_result"].format(array=label)
            yield Note("lanes", text, False, cure=_CURES["constant_result"])


def _is_known(loop: TracedLoop, words: Sequence[str]) -> bool:
    """True if a reason why kernels run an operation holds for the graph that runs."""
    name, *reason = words
    is_loop = loop.body.get_operation_by_name(name).type in OPS
    return is_loop or " ".join(reason).startswith(("more ", "a right factor of more "))


def _by_kernels(loop: TracedLoop, kernels: Sequence[Sequence[str]]) -> Iterator[Note]:
    for name, *words in kernels:
        mention = Mention.of(loop.body.get_operation_by_name(name))
        yield Note("programs", " ".join(words), False, (mention,))


@dataclasses.dataclass(frozen=True)
class _Values:
    """The values of an iteration: each parameter has a number, and then each result.

    Attributes:
        results: by result the number of its value: a parameter's, or an earlier result's, where the
            result is a copy.
        arrays: by number the array: states become each other.
    """

    results: list[int]
    arrays: list[int]

    @classmethod
    def of(cls, loop: TracedLoop) -> "_Values":
        count = len(loop.body.inputs)
        numbers = {t.name: k for k, t in enumerate(loop.body.inputs)}
        results = [
            numbers.setdefault(_source(t).name, count + r) for r, t in enumerate(loop.body.outputs)
        ]
        arrays = list(range(count + len(results)))

        def root(k: int) -> int:
            while arrays[k] != k:
                k = arrays[k]
            return k

        for result, parameter in loop.spec.back_edges:
            arrays[root(results[result])] = root(parameter)
        return cls(results, [root(k) for k in range(len(arrays))])

    def computed(self) -> list[int]:
        """The results that are neither parameters nor earlier results."""
        count = len(self.arrays) - len(self.results)
        return [r for r, number in enumerate(self.results) if number == count + r]


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor of which one is a copy: no kernel makes copies."""
    while tensor.op.type in _COPIES:
        tensor = tensor.op.inputs[0]
    return tensor


def _tell(loop: TracedLoop, values: _Values) -> list[str]:
    body, spec, arrays = loop.body, loop.spec, values.arrays
    count = len(body.inputs)
    states = {p for _, p in spec.back_edges}
    stays = [
        i < len(spec.inputs) and i not in states and spec.inputs[i].mode == "value"
        for i in range(count)
    ]
    kept = {values.results[r] for r, _ in spec.back_edges}
    added: set[int] = set()
    for output in _read_outputs(loop):
        if output.source >= 0:
            (added if output.mode == "sum" else kept).add(values.results[output.source])
    computed = values.computed()
    most = _memory.most_iterations(loop)
    lines = {
        "parameters": [t.op.name for t in body.inputs],
        "stays": map(int, stays),
        "results": [body.outputs[r].name for r in computed],
        "inputs": arrays[:count],
        "outputs": [arrays[count + r] for r in computed],
        "kept": [int(count + r in kept) for r in computed],
        "added": [int(count + r in added) for r in computed],
        "whole": [arrays[p] for p in _read_by_condition(loop)],
        "arrays": [len(arrays)],
        "iterations": [_MANY if most is None else most],
        "has_condition": [int(loop.condition is not None)],
        "threads": [_num_threads()],
    }
    text = "\n".join(" ".join([name, *map(str, words)]) for name, words in lines.items())
    return _library.lanes_of(_graph_of(body).SerializeToString(), text)


def _graph_of(body: _tf.FuncGraph) -> Any:
    """The GraphDef of a body, with constants in place of operations that read constants alone."""
    graph = body.as_graph_def(add_shapes=True)
    nodes = {node.name: node for node in graph.node}
    for tensor in body.inputs:
        nodes[tensor.op.name].attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
    folded = _programs.of_constants(body)
    for op in body.get_operations():
        if op in folded:
            continue
        for i, tensor in enumerate(op.inputs):
            if tensor.op in folded and tensor.op.type != "Const":
                nodes[op.name].input[i] = _folded(tensor, graph, nodes)
    return graph


def _folded(tensor: tf.Tensor, graph: Any, nodes: dict[str, Any]) -> str:
    """The name of a constant that has a tensor's value."""
    name = f"{tensor.op.name}/folded_{tensor.value_index}"
    if name not in nodes:
        with tensor.graph.as_default():
            value = _tf.static_value(tensor)
        if value is None:
            return tensor.name
        nodes[name] = node = graph.node.add(name=name, op="Const")
        node.attr["dtype"].type = tensor.dtype.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tensor.dtype))
    return name


def _read_outputs(loop: TracedLoop) -> Iterator[Output]:
    """The outputs that the graph around a loop reads. A call makes no others."""
    assert loop.op is not None  # it is in a graph
    graph = loop.op.graph
    needed = _graphs.needed_operations(
        [], graph.outputs, graph.control_outputs, reads=lambda op: op.inputs
    )
    read = {t.ref() for op in needed for t in op.inputs}
    read |= {t.ref() for t in graph.outputs}
    for output, tensor in zip(loop.spec.outputs, loop.outputs):
        if tensor.ref() in read:
            yield output


def _read_by_condition(loop: TracedLoop) -> Iterator[int]:
    """The parameters that the condition reads, or gives the body."""
    if loop.condition is None:
        return
    for parameter, tensor in zip(loop.condition_inputs, loop.condition.inputs):
        if tensor.consumers():
            yield parameter
    yield from range(len(loop.spec.inputs), len(loop.body.inputs))


def _num_threads() -> int:
    given = tf.config.threading.get_intra_op_parallelism_threads()
    in_environment = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    if not given and in_environment.isdecimal():
        given = int(in_environment)
    return given or len(os.sched_getaffinity(0))


def _describe(loop: TracedLoop, arrays: Sequence[int], lanes: Sequence[tuple[int, ...]]) -> str:
    """The number of lanes, where they are, and the groups."""
    count, groups = lanes[0][:2]
    strides = {array: stride for _, _, array, stride in lanes}
    states = {p for _, p in loop.spec.back_edges}
    places = sorted(range(len(loop.body.inputs)), key=lambda p: p not in states)
    found = (_axis(loop, p, strides[arrays[p]], count) for p in places if arrays[p] in strides)
    where = next((axis for axis in found if axis), "")
    told = f"in {groups} groups" if groups > 1 else "all at once"
    has_limit = loop.num_iterations is not None or any(i.is_sliced for i in loop.spec.inputs)
    is_open = groups > 1 and has_limit and _memory.most_iterations(loop) is None
    return f"{count}{where and f' along {where}'}, {told}{' if the loop is long' * is_open}"


def _notes(
    loop: TracedLoop, arrays: Sequence[int], obstacles: Sequence[Sequence[str]]
) -> Iterator[Note]:
    next_states = [loop.body.outputs[r] for r, _ in loop.spec.back_edges]
    before_states = {op.name for op in _graphs.needed_operations([], next_states)}
    for kind, name, array, stride in obstacles:
        if kind == "reduced" and name not in before_states:
            kind = "written"
        if int(array) not in arrays:  # a constant
            continue
        parameter = arrays.index(int(array))
        axis = _axis(loop, parameter, int(stride)) or _label(loop, parameter)
        text = _TEXTS[kind].format(axis=axis, array=_label(loop, parameter))
        mentions = () if name == "-" else (Mention.of(loop.body.get_operation_by_name(name)),)
        yield Note("lanes", text, False, mentions, cure=_CURES.get(kind, ""))


def _label(loop: TracedLoop, k: int) -> str:
    """The name of a parameter, or of a result."""
    spec, count = loop.spec, len(loop.body.inputs)
    if k < len(spec.inputs):
        return spec.inputs[k].label
    outputs = (o.label for o in spec.outputs if o.source == k - count)
    return next(outputs, "a value of the condition" if k < count else "a result")


def _axis(loop: TracedLoop, k: int, stride: int, count: int | None = None) -> str:
    """The dimension of a parameter, or of a result, in which a number of bytes is a step.

    With a count, only a dimension that has as many elements, each a step from the next.
    """
    inputs = loop.body.inputs
    tensor = inputs[k] if k < len(inputs) else loop.body.outputs[k - len(inputs)]
    step = tensor.dtype.size
    for d in reversed(range(tensor.shape.rank or 0)):
        extent = tensor.shape[d]
        if extent is None:
            return ""
        is_within = step <= stride < step * extent and stride % step == 0
        is_whole = count is None or (extent == count and stride == step)
        if extent > 1 and is_within and is_whole:
            return f"dimension {d} of {_label(loop, k)}"
        step *= extent
    return ""
