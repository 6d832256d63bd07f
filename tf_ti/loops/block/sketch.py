"""A sketch of loops for their drawings, taken before the traced graph becomes loop ops."""

import tensorflow as tf

from tf_ti.loops.block.layers import LoopNode
from tf_ti.loops.block.levels import Levels
from tf_ti.loops.block.origins import Origins, name_of, tells_type, type_of, value_of
from tf_ti.loops.drawing.diagram import Diagram, Node

_HIDDEN = ("Const", "Placeholder")


class Sketch:
    """The loops of a network, and the operations in each."""

    def __init__(self, levels: Levels):
        self.paths = levels.paths
        self.operations = {
            op: (level, tuple(op.inputs)) for op, level in levels.items() if op.type not in _HIDDEN
        }
        self.origins = Origins(levels.graph)
        self.layers = {
            layer.value.op: f"{layer.own_label} of {loop.name}"
            for loop in self.paths
            for layer in loop.layers()
        }

    def diagram(self, loop: LoopNode) -> Diagram:
        """The loop, and those inside it."""
        return _Artist(self, loop).root


class _Artist:
    """The diagram of one loop, drawn node by node."""

    def __init__(self, sketch: Sketch, loop: LoopNode):
        self._sketch = sketch
        self.root = Diagram(loop.name)
        self._homes = {loop: self.root}
        self._nodes: dict[tf.Operation, Node] = {}
        self._origins: dict[int, Node] = {}  # by identity: tensors compare by their elements
        paths = {inner: path for inner, path in sketch.paths.items() if loop in path[:-1]}
        for inner in sorted(paths, key=lambda inner: len(paths[inner])):
            self._homes[inner] = self._homes[paths[inner][-2]].add_child(inner.name)
        for inner in self._homes:
            self._add_layers(inner)
        for op, (level, _) in sketch.operations.items():
            if level and level[-1] in self._homes:
                details = () if tells_type(op) else (op.type,)
                self._nodes[op] = self._homes[level[-1]].add_node("body", op.name, *details)
        for op, node in list(self._nodes.items()):
            for tensor in sketch.operations.get(op, ((), ()))[1]:
                self._connect(tensor, node)
        for inner in self._homes:
            self._connect_layers(inner)

    def _add_layers(self, loop: LoopNode) -> None:
        home = self._homes[loop]
        home.notes = tuple(note.text for note in loop.notes if note.is_done)
        for kind, layers in (
            ("iterator", loop.iterators),
            ("recurrence", loop.recurrences),
            ("output", loop.outputs),
        ):
            for layer in layers:
                node = home.add_node(kind, layer.own_label, *layer.details())
                self._nodes[layer.value.op] = node

    def _connect_layers(self, loop: LoopNode) -> None:
        for kind, tensor in (("COUNT", loop.count), ("WHILE", loop.condition)):
            if tensor is not None:
                value = value_of(tensor)
                limit = self._homes[loop].add_node("limit", f"trip limit {kind}", *value)
                if not value:
                    self._connect(tensor, limit)
        for layer in loop.layers():
            for what, tensor in layer.given.items():
                label = what.removeprefix("the ")
                self._connect(tensor, self._nodes[layer.value.op], label, shows_constants=True)
        for layer in loop.recurrences:
            self._connect(layer.next, self._nodes[layer.value.op], "next", is_back_edge=True)
        for layer in loop.outputs:
            self._connect(layer.tensor, self._nodes[layer.value.op])

    def _connect(
        self,
        tensor: tf.Tensor,
        target: Node,
        label: str = "",
        is_back_edge: bool = False,
        shows_constants: bool = False,
    ) -> None:
        source = self._nodes.get(tensor.op)
        is_constant = tensor.op.type == "Const" and not self._sketch.origins.is_captured(tensor)
        if source is None and (shows_constants or not is_constant):
            source = self._outside(tensor)
        if source is not None:
            self.root.add_edge(source, target, label, is_back_edge)

    def _outside(self, tensor: tf.Tensor) -> Node:
        """The node of the user's tensor or variable."""
        origin = self._sketch.origins.of(tensor)
        if id(origin) not in self._origins:
            name, details = self._sketch.layers.get(tensor.op) or name_of(origin), type_of(origin)
            others = [node.label for node in (*self._nodes.values(), *self._origins.values())]
            labels = (name, *(f"{name} ({k})" for k in range(2, len(others) + 3)))
            label = next(label for label in labels if label not in others)
            node = self.root.add_node("outside", label, *(() if details == name else (details,)))
            self._origins[id(origin)] = node
        return self._origins[id(origin)]
