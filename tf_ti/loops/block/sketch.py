"""A sketch of loops for their drawings, taken before the traced graph becomes loop ops."""

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.block.layers import LoopNode
from tf_ti.loops.block.levels import Levels
from tf_ti.loops.drawing import diagram as _diagram

_HIDDEN = ("Const", "Placeholder")


class Sketch:
    """The loops of a network, and the operations in each."""

    def __init__(self, levels: Levels):
        self._paths, graph = levels.paths, levels.graph
        self._operations = {
            op: (level, tuple(op.inputs)) for op, level in levels.items() if op.type not in _HIDDEN
        }
        self._captured = {inside.op: outside for outside, inside in graph.captures}
        self._names = {id(v.handle): v.name for v in graph.variables}
        for outside in self._captured.values():
            if not isinstance(outside, _tf.EagerTensor):  # which has no name
                self._names.setdefault(id(outside), outside.name.removesuffix(":0"))

    def diagram(self, loop: LoopNode) -> _diagram.Diagram:
        """The loop, and those inside it."""
        return _Artist(self._paths, self._operations, self._captured, self._names).draw(loop)


class _Artist:
    def __init__(self, paths, operations, captured, names):
        self._paths, self._operations = paths, operations
        self._captured, self._names = captured, names
        self._homes: dict[LoopNode, _diagram.Diagram] = {}
        self._nodes: dict[tf.Operation, _diagram.Node] = {}

    def draw(self, root: LoopNode) -> _diagram.Diagram:
        self._root = self._homes[root] = _diagram.Diagram(root.name)
        inside = [loop for loop, path in self._paths.items() if root in path[:-1]]
        for loop in sorted(inside, key=lambda loop: len(self._paths[loop])):
            self._homes[loop] = self._homes[self._paths[loop][-2]].add_child(loop.name)
        for loop, home in self._homes.items():
            home.notes = tuple(note.text for note in loop.notes if note.is_done)
            for kind, layers in (
                ("iterator", loop.iterators),
                ("recurrence", loop.recurrences),
                ("output", loop.outputs),
            ):
                for layer in layers:
                    label = layer.label.removeprefix(f"{loop.label}: ")
                    self._nodes[layer.value.op] = home.add_node(kind, label, *layer.details())
        for op, (level, _) in self._operations.items():
            if level and level[-1] in self._homes:
                details = () if op.name.endswith(op.type) else (op.type,)
                self._nodes[op] = self._homes[level[-1]].add_node("body", op.name, *details)
        for op, (_, inputs) in self._operations.items():
            if op in self._nodes:
                for tensor in inputs:
                    self._connect(tensor, self._nodes[op])
        for loop in self._homes:
            self._connect_layers(loop)
        return self._root

    def _connect_layers(self, loop: LoopNode) -> None:
        home = self._homes[loop]
        for kind, tensor in (("COUNT", loop.count), ("WHILE", loop.condition)):
            if tensor is not None:
                limit = home.add_node("limit", f"trip limit {kind}", *_value(tensor))
                self._connect(tensor, limit, shows_constants=not _value(tensor))
        for layer in (*loop.iterators, *loop.recurrences, *loop.outputs):
            for what, tensor in layer.given.items():
                label = what.removeprefix("the ")
                self._connect(tensor, self._nodes[layer.value.op], label, shows_constants=True)
        for layer in loop.recurrences:
            self._connect(layer.next, self._nodes[layer.value.op], "next", True)
        for layer in loop.outputs:
            self._connect(layer.tensor, self._nodes[layer.value.op])

    def _connect(
        self, tensor, target, label: str = "", is_back_edge: bool = False, shows_constants=False
    ) -> None:
        source = self._source(tensor, shows_constants)
        if source is not None:
            self._root.add_edge(source, target, label, is_back_edge)

    def _source(self, tensor: tf.Tensor, shows_constants: bool) -> _diagram.Node | None:
        op = tensor.op
        if op in self._nodes:
            return self._nodes[op]
        outside = self._captured.get(op)
        if outside is None and op.type == "Const" and not shows_constants:
            return None
        name = self._names.get(id(outside)) or "".join(_value(tensor)) or f"tensor {op.name}"
        shape = f"{tensor.dtype.name}{'' if tensor.shape.rank is None else tensor.shape.as_list()}"
        self._nodes[op] = self._root.add_node("outside", name, shape)
        return self._nodes[op]


def _value(tensor: tf.Tensor) -> tuple[str, ...]:
    """The value of a scalar that is known."""
    value = tf.get_static_value(tensor)
    return (f"{value}",) if value is not None and not value.shape else ()
