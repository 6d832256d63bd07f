"""An IR that was read, as XML with the present values of its constants."""

import zlib
from xml.etree.ElementTree import Element

import numpy as np

from tf_ti.openvino.constants import Constants
from tf_ti.openvino.element_types import ElementType
from tf_ti.openvino.model import Graph, Layer
from tf_ti.openvino.reader import tree
from tf_ti.openvino.weights import declared
from tf_ti.openvino.writer.network import Weights, element_type_of


def rewritten(graph: Graph, constants: Constants, weights: Weights) -> Element:
    """The XML of a network as it is in its file, but for the places of constants in `weights`."""
    root = tree(zlib.decompress(graph.document), graph.path)
    _Rewriting(constants, weights).rewrite(root, graph)
    return root


class _Rewriting:
    def __init__(self, constants: Constants, weights: Weights):
        self._constants, self._weights = constants, weights

    def rewrite(self, element: Element, graph: Graph) -> None:
        elements = {int(child.attrib["id"]): child for child in _child(element, "layers")}
        converted = {}  # Converts have the values of the Constants that they read
        for layer in graph.layers.values():
            value = self._constants.value(layer)
            if value is not None and layer.type != "Constant":
                source, _ = graph.sources[layer.id, layer.inputs[0].id]
                kind, _ = declared(graph.layers[source])
                converted[source] = value
                if not _holds(kind, value):
                    self._make_constant(layer, value, elements[layer.id], _child(element, "edges"))
        for layer in graph.layers.values():
            if layer.type == "Constant":
                kind, shape = declared(layer)
                value = self._constants.value(layer)
                if value is None:  # nobody else reads it
                    value = converted.get(layer.id, np.zeros(shape, kind.dtype))
                self._place(value, kind, _child(elements[layer.id], "data"))
            for tag, body in layer.bodies.items():
                self.rewrite(_child(elements[layer.id], tag), body.graph)

    def _place(self, value: np.ndarray, kind: ElementType, data: Element) -> None:
        offset, size = self._weights.place(kind.pack(value))
        data.attrib |= {"offset": str(offset), "size": str(size)}

    def _make_constant(
        self, layer: Layer, value: np.ndarray, element: Element, edges: Element
    ) -> None:
        """Makes a Constant of a Convert, whose value that of the file's Constant cannot be."""
        kind = element_type_of(value.dtype)
        element.attrib |= {"type": "Const", "version": "opset1"}
        data = _child(element, "data")
        data.attrib.clear()
        data.attrib |= {"element_type": kind.name, "shape": ",".join(map(str, value.shape))}
        self._place(value, kind, data)
        element.remove(_child(element, "input"))
        for edge in edges.findall("edge"):
            if int(edge.attrib["to-layer"]) == layer.id:
                edges.remove(edge)


def _child(element: Element, tag: str) -> Element:
    child = element.find(tag)
    assert child is not None  # or the document would not have been read
    return child


def _holds(kind: ElementType, value: np.ndarray) -> bool:
    """True if an element type has all of these numbers."""
    numbers = kind.unpack(kind.pack(value), value.size).reshape(value.shape)
    return np.array_equal(numbers.astype(value.dtype), value, equal_nan=True)
