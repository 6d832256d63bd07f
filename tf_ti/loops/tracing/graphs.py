"""Copying part of a function's graph into a function of its own."""

import contextlib
import itertools
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf

_uid = itertools.count()

# For operations the functions that add others in their places: from the inputs to the outputs, some
# of which may be no tensors if only others of these read them.
Others = Mapping[tf.Operation, Callable[[list[Any]], Sequence[Any]]]

# What became of each loop, by the operation that took its place, and by copies of that.
ACCOUNTS: weakref.WeakKeyDictionary[tf.Operation, Any] = weakref.WeakKeyDictionary()

# The names of custom gradients begin so.
_CUSTOM = "CustomGradient-"
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
CONDITIONALS = ("If", "StatelessIf", "Case", "StatelessCase")
WITH_FUNCTIONS = (*CALLS, *CONDITIONALS, "While", "StatelessWhile")


def is_call(op: tf.Operation) -> bool:
    """True if `op` is a function call that may be replaced by the function's operations."""
    if op.type not in CALLS:
        return False
    function = called_function(op)
    graph = getattr(function, "graph", None)
    if graph is None:
        return False
    attrs = function.cached_definition.attr
    # A function that asks for XLA is compiled as one, so it stays one.
    if is_compiled(op) or ("_noinline" in attrs and attrs["_noinline"].b):
        return False
    # A custom gradient may refer to its own graph's tensors, of which two calls would make two
    # copies each, unless it is known which they are.
    return not any(map(has_open_gradient, graph.get_operations()))


def is_compiled(op: tf.Operation) -> bool:
    """True if `op` calls a function that asks for XLA."""
    function = called_function(op) if op.type in CALLS else None
    attrs = getattr(function, "cached_definition", op.node_def).attr
    return "_XlaMustCompile" in attrs and attrs["_XlaMustCompile"].b


def is_copy(graph: tf.Graph) -> bool:
    """True for a graph of a function that tf_ti has traced, or made of another one's operations."""
    return hasattr(graph, "tf_ti_copies")


def called_function(op: tf.Operation) -> Any:
    """The function that a call runs, of several implementations that for the device; or None."""
    function = _tf.find_function(op.graph, op.get_attr("f").name)
    if not hasattr(function, "cached_definition") or _tf.expects_xla():
        return function
    asked = tf.DeviceSpec.from_string(op.device).device_type
    device_type = asked or ("GPU" if _tf.expects_gpu() else "CPU")
    return _tf.implementation(op.graph, function, device_type)


def has_custom_gradient(op: tf.Operation) -> bool:
    """True if tf.custom_gradient made it."""
    if op.type != "IdentityN":
        return False
    return op.node_def.attr["_gradient_op_type"].s.decode().startswith(_CUSTOM)


def has_open_gradient(op: tf.Operation) -> bool:
    """True if it is not known to which tensors its gradient refers; see custom_gradients.py."""
    return has_custom_gradient(op) and getattr(op, "tf_ti_gradient", None) is None


def has_custom_gradients(op: tf.Operation) -> bool:
    """True if the functions that an operation runs have custom gradients inside."""
    return bool(names_of_inner_gradients(op))


def _nodes_inside(op: tf.Operation) -> Iterator[Any]:
    """The NodeDefs in the functions that an operation refers to, and in the functions of these."""
    names, seen = function_names(op.node_def), set()
    while names:
        name = names.pop()
        if name in seen:
            continue
        seen.add(name)
        function = _tf.find_function(op.graph, name)
        for node in function.cached_definition.node_def if function is not None else ():
            yield node
            names += function_names(node)


def reads(op: tf.Operation) -> Sequence[tf.Tensor]:
    """The inputs of an operation, and the tensors to which its custom gradient refers."""
    gradient = getattr(op, "tf_ti_gradient", None)
    return op.inputs if gradient is None else [*op.inputs, *gradient.captured(op.inputs)]


def needed_operations(
    sources: Sequence[tf.Tensor],
    targets: Sequence[tf.Tensor],
    control_targets: Sequence[tf.Operation] = (),
    follow_controls: bool = True,
    reads: Callable[[tf.Operation], Sequence[tf.Tensor]] = reads,
) -> list[tf.Operation]:
    """The operations that compute `targets` where the values of `sources` are given, sorted.

    The order of creation will not do: the gradient of a while loop adds inputs to the loop's
    operation afterwards.
    """
    given = {source.ref() for source in sources}

    def is_given(op: tf.Operation) -> bool:
        return bool(op.outputs) and all(t.ref() in given for t in op.outputs)

    needed: dict[tf.Operation, bool] = {}  # true once its inputs' operations are in
    stack = [t.op for t in targets if t.ref() not in given]
    stack += [op for op in control_targets if not is_given(op)]
    sorted_operations = []
    while stack:
        op = stack[-1]
        if op in needed:
            stack.pop()
            if not needed[op]:
                needed[op] = True
                sorted_operations.append(op)
            continue
        needed[op] = False
        used = [t.op for t in reads(op) if t.ref() not in given]
        if follow_controls:
            # Nobody waits for a parameter, which is there before all operations.
            controls = (c for c in op.control_inputs if c.type != "Placeholder")
            used += [c for c in controls if not is_given(c)]
        stack.extend(u for u in used if u not in needed)
    return sorted_operations


def function_names(node: Any) -> list[str]:
    """The functions that a NodeDef's attributes refer to."""
    names = []
    for value in node.attr.values():
        kind = value.WhichOneof("value")
        if kind == "func":
            names.append(value.func.name)
        elif kind == "list":
            names += [function.name for function in value.list.func]
    return names


def traced_functions(op: tf.Operation) -> list[_tf.FuncGraph]:
    """The graphs, as they were traced or loaded, of the functions that an operation refers to."""
    if op.type in CALLS:
        functions = [called_function(op)]
    else:
        functions = [_tf.find_function(op.graph, name) for name in function_names(op.node_def)]
    return [graph for function in functions if (graph := _tf.graph_of(function)) is not None]


def with_functions(graph: _tf.FuncGraph) -> Iterator[_tf.FuncGraph]:
    """A graph, and those of all functions that its operations, and theirs, refer to."""
    graphs, seen = [graph], {graph}
    while graphs:
        each = graphs.pop()
        yield each
        for op in each.get_operations():
            for called in traced_functions(op):
                if called not in seen:
                    seen.add(called)
                    graphs.append(called)


def with_custom_gradients(graph: _tf.FuncGraph) -> Iterator[tf.Operation]:
    """The operations with a custom gradient of a graph, and of its functions."""
    for each in with_functions(graph):
        yield from filter(has_custom_gradient, each.get_operations())


def names_of_inner_gradients(op: tf.Operation) -> set[str]:
    """The names of the custom gradients in the functions that an operation refers to."""
    nodes = (node for node in _nodes_inside(op) if "_gradient_op_type" in node.attr)
    kinds = (node.attr["_gradient_op_type"].s.decode() for node in nodes)
    return {name for name in kinds if name.startswith(_CUSTOM)}


def only_does(op: tf.Operation, harmless: Collection[str]) -> bool:
    """True if an operation, with the functions that it runs, has only effects of some types.

    Args:
        op: the operation.
        harmless: types of stateful operations.
    """
    return not _tf.is_stateful(op) or _only_does(op.graph, op.node_def, harmless)


def _only_does(graph: tf.Graph, node: Any, harmless: Collection[str]) -> bool:
    """The same of the NodeDef of an operation, whose functions the graph knows."""
    if not _tf.is_stateful_type(node.op) or node.op in harmless:
        return True
    names = function_names(node)
    functions = [_tf.find_function(graph, name) for name in names]
    if not names or None in functions:
        return False
    nodes = [inner for function in functions for inner in function.cached_definition.node_def]
    return all(_only_does(graph, inner, harmless) for inner in nodes)


def effects(operations: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Those of some operations that must run even if nobody uses their results."""
    return [op for op in operations if _tf.must_run(op) and not only_does(op, _tf.READS)]


def find_unrepeatable(graph: _tf.FuncGraph) -> set[tf.Operation]:
    """The operations of a body that may give other values if they run once more, or do harm.

    They have effects, draw random numbers, or read a variable that the body changes.
    """
    operations = graph.get_operations()
    unrepeatable = {op for op in operations if not only_does(op, _tf.READS | _tf.CHECKS)}
    changed = {t.ref() for op in unrepeatable for t in _tf.changed_resources(op)}
    return unrepeatable | {
        op
        for op in operations
        if _tf.is_stateful(op) and op.type != "VariableShape"
        if any(t.ref() in changed for t in op.inputs)
    }


def _with_names(value: Any, names: dict[str, str]) -> Any:
    if not (value.func.name or value.list.func):
        return value
    renamed = type(value)()
    renamed.CopyFrom(value)
    for function in [renamed.func] if renamed.func.name else renamed.list.func:
        function.name = names.get(function.name, function.name)
    return renamed


def _add_functions(graph: tf.Graph, function: Any, source: tf.Graph) -> None:
    """Lets a graph know a function of another graph, and all functions that this one calls.

    A branch that TensorFlow rewrites for a gradient does not list the functions that it calls.
    """
    stack = [function]
    seen: set[str] = set()
    while stack:
        function = stack.pop()
        _tf.add_function(graph, function)
        names = {
            name for node in function.cached_definition.node_def for name in function_names(node)
        }
        found = [_tf.find_function(source, name) for name in names - seen]
        stack += [inner for inner in found if inner is not None]
        seen |= names


def _with_closed_gradients(function: Any) -> Any:
    """The same function, where custom gradients get the tensors to which they refer as inputs.

    The gradient of a conditional or a loop makes a graph of the function's definition.
    """
    graph = _tf.graph_of(function)
    if graph is None or all(map(has_open_gradient, with_custom_gradients(graph))):
        return function
    inputs = [[t] for t in graph.inputs]
    closed = extract(
        "closed",
        graph,
        inputs,
        graph.outputs,
        graph.control_outputs,
        rename_functions=True,
        outer_graph=graph.outer_graph,
    )
    return _tf.make_function(closed)


def _is_left_behind(attribute: str) -> bool:
    """True for an attribute of an operation that its copy must not have: of where it is."""
    return attribute == "_class" or attribute.startswith("_tpu_replicate")


# Operations that are fewer are copied one after the other: an import has a time of its own.
_FEWEST_IMPORTED = 5


class _Copier:
    """Copies operations into `graph`.

    `tensors` and `operations` have the copies by original, `effects` those of a call's effects.
    `has_custom_gradients` is true if an operation, or a function of an operation, has one.
    """

    def __init__(
        self,
        graph: _tf.FuncGraph,
        rename_functions: bool = False,
        others: Others = types.MappingProxyType({}),
    ):
        self.graph = graph
        self.rename_functions = rename_functions
        self.others = others
        self.tensors: dict[Any, tf.Tensor] = {}
        self.operations: dict[tf.Operation, list[tf.Operation]] = {}
        self.effects: dict[tf.Operation, list[tf.Operation]] = {}
        self.has_custom_gradients = False

    def effects_of(self, operations: Sequence[tf.Operation]) -> list[tf.Operation]:
        """The copies that have the effects of operations."""
        copies = [self.effects.get(op) or self.operations.get(op, []) for op in operations]
        return list(dict.fromkeys(itertools.chain.from_iterable(copies)))

    def _scope(
        self, op: tf.Operation, controls: Sequence[tf.Operation]
    ) -> contextlib.AbstractContextManager[Any]:
        """The device and the control dependencies of a copy. Most copies have none."""
        scope = contextlib.ExitStack()
        if op.device:
            scope.enter_context(tf.device(op.device))
        if controls:
            scope.enter_context(self.graph.control_dependencies(controls))
        return scope

    def copy_all(self, operations: Sequence[tf.Operation], inline: bool) -> None:
        """Copies operations, each after what it needs, into a graph that was empty before."""
        plain: list[tf.Operation] = []
        for op in operations:
            if self._is_plain(op, inline):
                plain.append(op)
                continue
            self._copy_plain(plain)
            plain = []
            self.copy(op, (), inline)
        self._copy_plain(plain)

    def _copy_plain(self, operations: Sequence[tf.Operation]) -> None:
        if len(operations) >= _FEWEST_IMPORTED:
            self._import(operations)
            return
        for op in operations:
            self.copy(op, (), inline=False)

    def _is_plain(self, op: tf.Operation, inline: bool) -> bool:
        """True if a copy has the attributes of the original, and its inputs one for one."""
        if op in self.others or op.type == "NoOp":
            return False
        if op.type == "IdentityN":
            return getattr(op, "tf_ti_gradient", None) is None
        if not function_names(op.node_def):
            return True
        if self.rename_functions or (inline and op.type in CALLS):
            return False
        # What a list holds is no result of a shape function here, and AddN of lists asks for it.
        if any(t.dtype in (tf.resource, tf.variant) for t in op.outputs):
            return False
        if op.type not in CONDITIONALS:
            return True
        given = [self.tensors.get(t.ref(), t).ref() for t in op.inputs]
        return len(set(given)) == len(given)

    def _import(self, operations: Sequence[tf.Operation]) -> None:
        nodes, names = [], {op.name for op in operations}
        inputs: dict[str, tf.Tensor] = {}
        for op in operations:
            node = op.node_def
            for name in function_names(node):
                self._add_function(op, _tf.find_function(op.graph, name))
            for key in list(node.attr):
                if _is_left_behind(key):
                    del node.attr[key]
            del node.input[len(op.inputs) :]
            node.input.extend(f"^{c.name}" for c in op.control_inputs if c.name in names)
            inputs.update(
                (t.name, self.tensors[t.ref()]) for t in op.inputs if t.op.name not in names
            )
            nodes.append(node)
        for op, copied in zip(operations, _tf.import_operations(nodes, inputs), strict=True):
            for control in op.control_inputs:
                if control.name not in names:
                    for copy in self.operations.get(control, ()):
                        _tf.add_control_input(copied, copy)
            self._keep(op, copied)

    def _add_function(self, op: tf.Operation, function: Any) -> None:
        """Lets the graph know a function to which an operation refers, if it is known."""
        if function is not None:
            self.has_custom_gradients |= has_custom_gradients(op)
            _add_functions(self.graph, function, op.graph)

    def copy(self, op: tf.Operation, extra_controls: Sequence[tf.Operation], inline: bool) -> None:
        controls = [c for old in op.control_inputs for c in self.operations.get(old, ())]
        controls += extra_controls
        if op in self.others:
            with self._scope(op, controls):
                values = self.others[op]([self.tensors[t.ref()] for t in op.inputs])
            self.tensors.update(zip([t.ref() for t in op.outputs], values))
            self.operations[op] = [v.op for v in values if isinstance(v, tf.Tensor)]
            return
        if inline and is_call(op):
            self._inline(op, controls)
            return
        if op.type == "NoOp" and not controls:
            self.operations[op] = []
            return
        node, names = op.node_def, {}
        attrs = {key: value for key, value in node.attr.items() if not _is_left_behind(key)}
        for name in function_names(node):
            function = _tf.find_function(op.graph, name)
            if function is not None and self.rename_functions and op.type not in CALLS:
                function = _tf.renamed_function(
                    _with_closed_gradients(function), lambda old: f"{old}_{next(_uid)}", kept=CALLS
                )
                names[name] = function.name.decode()
            self._add_function(op, function)
        if names:
            attrs = {key: _with_names(value, names) for key, value in attrs.items()}
        inputs, dtypes = reads(op), [t.dtype for t in op.outputs]
        if len(inputs) > len(op.inputs):  # an IdentityN, which has as many outputs
            dtypes = [t.dtype for t in inputs]
            types_of_all = type(attrs["T"])()
            types_of_all.list.type.extend(t.as_datatype_enum for t in dtypes)
            attrs["T"] = types_of_all
        with self._scope(op, controls):
            given = [self.tensors[t.ref()] for t in inputs]
            if op.type in CONDITIONALS:
                given = _told_apart(self.graph, given)
            copied = _tf.create_operation(self.graph, op.op_def, given, dtypes, attrs, op.name)
        if getattr(op, "tf_ti_gradient", None) is not None:
            op.tf_ti_gradient.claim(copied)
        self._keep(op, copied)

    def _keep(self, op: tf.Operation, copied: tf.Operation) -> None:
        """Keeps the copy of an operation, with what its definition does not tell."""
        if op in ACCOUNTS:
            ACCOUNTS[copied] = ACCOUNTS[op]
        if has_custom_gradient(op):
            self.has_custom_gradients = True
        _tf.copy_gradient(op, copied)
        _tf.copy_place(op, copied)
        self.operations[op] = [copied]
        for old, new in zip(op.outputs, copied.outputs):
            if new.dtype in (tf.resource, tf.variant):
                _tf.copy_handle_data(old, new)
            if new.shape != old.shape:
                new.set_shape(old.shape)
            self.tensors[old.ref()] = new

    def _inline(self, op: tf.Operation, controls: Sequence[tf.Operation]) -> None:
        callee = called_function(op).graph
        inner = _Copier(self.graph)
        for parameter, argument in zip(callee.inputs, op.inputs):
            inner.tensors[parameter.ref()] = self.tensors[argument.ref()]
        needed = needed_operations(callee.inputs, callee.outputs, callee.control_outputs)
        with tf.device(op.device):
            for inner_op in needed:
                inner.copy(inner_op, controls, inline=True)
        self.has_custom_gradients |= inner.has_custom_gradients
        for result, value in zip(op.outputs, callee.outputs):
            self.tensors[result.ref()] = inner.tensors[value.ref()]
        # Who waits for the call waits for its effects and its results.
        self.effects[op] = inner.effects_of(callee.control_outputs)
        results = [self.tensors[t.ref()].op for t in op.outputs]
        self.operations[op] = list(dict.fromkeys(self.effects[op] + results))


def _compose(graph: _tf.FuncGraph, copier: _Copier) -> dict[Any, tf.Tensor]:
    """The copies of the tensors of all the graphs that a graph was copied from, if anybody asks.

    A custom gradient that is not closed may refer to tensors of the graph in which it was traced;
    `resolve_captures` finds them in the copy. Without custom gradients the copies would only keep
    the other graphs.
    """
    earlier = getattr(graph, "tf_ti_copies", {})
    if not (earlier or copier.has_custom_gradients):
        return {}
    composed = dict(copier.tensors)
    for original, copy in earlier.items():
        if copy.ref() in copier.tensors:
            composed[original] = copier.tensors[copy.ref()]
    return composed


def trace(
    name: str,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    convert: Callable[..., Any] | None,
    arrange: Callable[..., Any] | None = None,
) -> _tf.FuncGraph:
    """The graph of a Python function, as `_tf.trace` makes it, under a name of its own."""
    graph = _tf.trace(f"tf_ti_{name}_{next(_uid)}", function, arguments, convert, arrange)
    graph.tf_ti_copies = {}
    return graph


def empty(name: str) -> _tf.FuncGraph:
    """A graph of ours without operations, whose function has a name of its own."""
    made = _tf.FuncGraph(f"tf_ti_{name}_{next(_uid)}")
    made.tf_ti_copies = {}
    return made


def _add_parameter(graph: _tf.FuncGraph, like: tf.Tensor) -> tf.Tensor:
    """Adds a parameter to a graph, which is the default graph."""
    parameter = _tf.placeholder(like.dtype, like.shape)
    _tf.copy_handle_data(like, parameter)
    graph.inputs.append(parameter)
    return parameter


def of_function(op: tf.Operation, name: str, shapes: Sequence[tf.TensorShape]) -> _tf.FuncGraph:
    """The graph of a function that `op` refers to: as it was traced, or made of its definition.

    A graph that tf_ti did not make may be empty, so only a custom gradient is a reason to take it:
    a definition does not know the tensors to which that gradient refers. Calls in a graph that
    tf_ti makes of a definition have gradients; in a graph that TensorFlow makes they have none.
    """
    traced = _tf.graph_of(_tf.find_function(op.graph, name))
    is_ours = is_copy(traced)
    if traced is not None and (is_ours or any(True for _ in with_custom_gradients(traced))):
        return traced
    made = _tf.loaded_function_graph(op, name, shapes)
    made.tf_ti_copies = {}
    return made


def forget(graph: _tf.FuncGraph) -> None:
    """Takes apart a graph that nobody needs any more, unless a custom gradient refers to it."""
    if not any(map(has_custom_gradient, graph.get_operations())):
        _tf.dismantle(graph)


def leave_out_dead(graph: _tf.FuncGraph) -> None:
    """Leaves unused operations out of a function, as `extract` does; XLA would compile them."""
    needed = set(needed_operations(graph.inputs, graph.outputs, graph.control_outputs))
    needed.update(t.op for t in graph.inputs)
    graph.left_out.update(op for op in graph.get_operations() if op not in needed)


def set_inputs(graph: _tf.FuncGraph, inputs: Sequence[Sequence[tf.Tensor]]) -> None:
    """As `extract`, but changes the graph instead of making another: its function has these inputs.

    A parameter that stands for other tensors than an input of the graph takes their place.
    """
    parameters, replaced = [], {}
    for group in inputs:
        if group[0].op.type == "Placeholder":
            parameters.append(group[0])
            continue
        with graph.as_default():
            parameters.append(_tf.placeholder(group[0].dtype, group[0].shape))
        for tensor in group:
            replaced[tensor.ref()] = parameters[-1]
            graph.left_out.add(tensor.op)
    replace(replaced)
    kept = {parameter.ref() for parameter in parameters}
    graph.left_out.update(t.op for t in graph.inputs if t.ref() not in kept)
    graph.inputs = parameters
    graph.outputs = [replaced.get(t.ref(), t) for t in graph.outputs]
    if graph.left_out:
        # First those that only wait: others may have nothing else to wait for.
        for op in sorted(graph.get_operations(), key=lambda op: op.type != "NoOp"):
            keep_controls(op, lambda other: other not in graph.left_out)
            if op.type == "NoOp" and not op.control_inputs:
                graph.left_out.add(op)
    graph.control_outputs = [op for op in graph.control_outputs if op not in graph.left_out]


def resolve_captures(graph: _tf.FuncGraph) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Replaces tensors captured from a graph that this one is a copy of by their copies.

    Returns the other captures, as (tensor outside, placeholder).
    """
    remaining, copies = [], {}
    for outside, placeholder in graph.captures:
        copy = graph.tf_ti_copies.get(outside.ref())
        if copy is None:
            remaining.append((outside, placeholder))
        else:
            copies[placeholder.ref()] = copy
    replace(copies)
    return remaining


def replace(others: Mapping[Any, tf.Tensor]) -> None:
    """Gives the readers of some tensors, by reference, others instead."""
    readers = dict.fromkeys(op for old in others for op in old.deref().consumers())
    for op in readers:
        inputs = list(op.inputs)
        given = [others.get(t.ref(), t) for t in inputs]
        if op.type in CONDITIONALS:
            given = _told_apart(op.graph, given)
        for i, (old, new) in enumerate(zip(inputs, given)):
            if new is not old:
                _tf.replace_input(op, i, new)


def _told_apart(graph: tf.Graph, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Copies tensors that come twice: gradients of conditionals find inputs by identity."""
    seen, found = set(), []
    for tensor in tensors:
        if tensor.ref() in seen:
            with graph.as_default():
                (copy,) = _tf.add_operation("Identity", [tensor], [tensor.dtype], T=tensor.dtype)
            copy.set_shape(tensor.shape)
            _tf.copy_handle_data(tensor, copy)
            tensor = copy
        seen.add(tensor.ref())
        found.append(tensor)
    return found


def extract(
    name: str,
    graph: _tf.FuncGraph,
    inputs: Sequence[Sequence[tf.Tensor]],
    outputs: Sequence[tf.Tensor],
    control_outputs: Sequence[tf.Operation] = (),
    follow_controls: bool = True,
    inline: bool = False,
    rename_functions: bool = False,
    outer_graph: tf.Graph | None = None,
    others: Others = types.MappingProxyType({}),
) -> _tf.FuncGraph:
    """A new function graph that computes `outputs` of `graph` from `inputs`.

    Args:
        name: a word for the function's name.
        graph: where the tensors are.
        inputs: for each parameter of the new function the tensors of `graph` that it stands for;
            the operations that compute them are not copied.
        outputs: the results.
        control_outputs: operations that run for their effects.
        follow_controls: keep control dependencies, and operations that only they reach.
        inline: replace function calls by the functions' operations.
        rename_functions: give conditionals and loops functions of their own. Their gradients
            rewrite them under names made from these, and a name must not get two meanings.
        outer_graph: where the new graph looks for functions it does not have; the default graph if
            None.
        others: adds other operations for some.
    """
    given = [tensor for group in inputs for tensor in group]
    needed = needed_operations(given, outputs, control_outputs, follow_controls)
    made = empty(name)
    if outer_graph is not None:
        made.outer_graph = outer_graph
    copier = _Copier(made, rename_functions, others)
    with made.as_default():
        for group in inputs:
            parameter = _add_parameter(made, group[0])
            for tensor in group:
                copier.tensors[tensor.ref()] = parameter
        copier.copy_all(needed, inline)
    made.outputs = [copier.tensors[t.ref()] for t in outputs]
    made.tf_ti_copies = _compose(graph, copier)
    made.control_outputs = copier.effects_of(control_outputs)
    made.structured_outputs = tuple(made.outputs)
    return made


def copied(name: str, graph: _tf.FuncGraph, outer_graph: tf.Graph | None) -> _tf.FuncGraph:
    """A copy of all that a function's graph needs, which the caller may change."""
    return extract(
        name,
        graph,
        [[t] for t in graph.inputs],
        graph.outputs,
        graph.control_outputs,
        outer_graph=outer_graph,
    )


def join(
    condition: _tf.FuncGraph,
    positions: Sequence[int],
    body: _tf.FuncGraph,
    outer_graph: tf.Graph | None,
) -> _tf.FuncGraph:
    """A function graph that computes a condition, and a body with its values.

    Args:
        condition: its results but the first are the last parameters of `body`.
        positions: the parameters of `body` that are the condition's.
        body: the results are its.
        outer_graph: where the new graph looks for functions it does not have; the default graph if
            None.
    """
    made = empty("joined")
    if outer_graph is not None:
        made.outer_graph = outer_graph
    shared = condition.outputs[1:]
    own = body.inputs[: len(body.inputs) - len(shared)]
    with made.as_default():
        for tensor in own:
            _add_parameter(made, tensor)

        def copy(graph: _tf.FuncGraph, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            copier = _Copier(made)
            copier.tensors.update(zip([t.ref() for t in graph.inputs], arguments))
            needed = needed_operations(graph.inputs, graph.outputs, graph.control_outputs)
            copier.copy_all(needed, inline=False)
            made.tf_ti_copies.update(_compose(graph, copier))
            return [copier.tensors[t.ref()] for t in graph.outputs]

        values = copy(condition, [made.inputs[i] for i in positions])[1:]
        made.outputs = copy(body, [*made.inputs, *values])
    made.structured_outputs = tuple(made.outputs)
    return made


def in_turn(
    name: str,
    parts: Sequence[tuple[tf.Graph, Sequence[tf.Tensor], Sequence[tf.Tensor]]],
) -> _tf.FuncGraph:
    """A new function graph that does what several do, one after the other.

    Its results are those of all. Function calls are replaced by the functions' operations.

    Args:
        name: a word for the function's name.
        parts: graphs, each with its parameters, which are alike in all, and its results.
    """
    made = empty(name)
    with made.as_default():
        for tensor in parts[-1][1]:
            _add_parameter(made, tensor)
        for graph, parameters, results in parts:
            copier = _Copier(made)
            copier.tensors.update(zip([t.ref() for t in parameters], made.inputs))
            needed = needed_operations(parameters, results, graph.control_outputs)
            copier.copy_all(needed, inline=True)
            made.tf_ti_copies.update(_compose(graph, copier))
            made.outputs += [copier.tensors[t.ref()] for t in results]
            made.control_outputs += copier.effects_of(graph.control_outputs)
    made.structured_outputs = tuple(made.outputs)
    return made


def copy_to_default_graph(
    graph: _tf.FuncGraph,
    outputs: Sequence[tf.Tensor],
    operations: Sequence[tf.Operation],
    stand_ins: Mapping[Any, tf.Tensor] = types.MappingProxyType({}),
) -> list[tf.Tensor]:
    """Computes `outputs` of a function graph, and runs `operations` of it, in the default graph.

    There tensors stand in for some placeholders of the graph, and for some that it captured.
    """
    copier = _Copier(tf.compat.v1.get_default_graph())
    copier.tensors.update(stand_ins)
    for outside, placeholder in graph.captures:
        known = stand_ins.get(outside.ref())
        copier.tensors[placeholder.ref()] = _tf.captured([outside])[0] if known is None else known
    given = [reference.deref() for reference in copier.tensors]
    for op in needed_operations(given, outputs, operations):
        copier.copy(op, (), inline=False)
    chain([copy for op in operations for copy in copier.operations[op]])
    return [copier.tensors[t.ref()] for t in outputs]


def copy_function_to_default_graph(
    graph: _tf.FuncGraph,
    outputs: Sequence[tf.Tensor],
    stand_ins: Mapping[Any, tf.Tensor],
    others: Others = types.MappingProxyType({}),
) -> list[tf.Tensor]:
    """Computes `outputs` of a function's graph in the default graph.

    Args:
        graph: the graph of a function that captures nothing.
        outputs: tensors of it.
        stand_ins: by reference, the tensors that replace parameters and other tensors.
        others: adds other operations for some.
    """
    copier = _Copier(tf.compat.v1.get_default_graph(), others=others)
    copier.tensors.update(stand_ins)
    for op in needed_operations([ref.deref() for ref in stand_ins], outputs):
        copier.copy(op, (), inline=False)
    return [copier.tensors[t.ref()] for t in outputs]


def copy_operation(op: tf.Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Adds a copy of an operation to the default graph, with other inputs; gives its results."""
    copier = _Copier(tf.compat.v1.get_default_graph())
    copier.tensors.update(zip([t.ref() for t in op.inputs], inputs))
    copier.copy(op, (), inline=False)
    return [copier.tensors[t.ref()] for t in op.outputs]


def copy_in_place(
    op: tf.Operation, became: Mapping[Any, tf.Tensor] = types.MappingProxyType({})
) -> list[tf.Tensor]:
    """Adds the operations of a call, or a copy of an operation, to its own graph.

    The readers of its results read the copies' results; `became` has the results of other copies.
    """
    copier = _Copier(op.graph)
    copier.tensors.update((t.ref(), became.get(t.ref(), t)) for t in reads(op))
    copier.copy(op, op.control_inputs, inline=True)
    values = [copier.tensors[t.ref()] for t in op.outputs]
    replace(dict(zip([t.ref() for t in op.outputs], values)))
    return values


def chain(operations: Sequence[tf.Operation]) -> None:
    """Lets each operation wait for the one before, in this order but where one needs another."""
    members = set(operations)
    needed = needed_operations((), (), operations[::-1])
    for before, after in itertools.pairwise([op for op in needed if op in members]):
        if before not in after.control_inputs:
            _tf.add_control_input(after, before)


def keep_controls(op: tf.Operation, is_kept: Callable[[tf.Operation], bool]) -> None:
    """Lets an operation no longer wait for some of those that it waits for."""
    kept = [other for other in op.control_inputs if is_kept(other)]
    if len(kept) < len(op.control_inputs):
        _tf.set_control_inputs(op, kept)
