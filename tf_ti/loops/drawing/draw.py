"""`tf_ti.draw`: the port map of a TensorIterator as a text or a picture."""

import os
from collections.abc import Sequence

from tf_ti.loops.drawing import diagram as _diagram
from tf_ti.loops.ports import BackEdge, InputPort, OutputPort, PortMap, check_back_edges


def draw(
    port_map: PortMap,
    back_edges: Sequence[BackEdge] = (),
    path: str | os.PathLike[str] | None = None,
) -> str:
    """Draws how tensors get into the body of a `tf_ti.tensor_iterator`, around, and out.

    The drawing is that of a loop in TensorRT's document: inputs that are sliced come in by an
    iterator, those that a back edge leads to by a recurrence, others are loop invariants, which the
    body uses from outside.

    Args:
        port_map: as `tf_ti.tensor_iterator` takes it.
        back_edges: likewise.
        path: a file to write: a picture where its name ends in .svg or .png, graphviz's source for
            .dot, the text for .txt. Pictures are drawn by graphviz's program `dot`; where that is
            not installed, the text is written beside, with a warning.

    Returns:
        The text, or the path of the file that was written.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: a back edge leads nowhere, to a sliced input or where another one leads, or the
            file's name ends in something else.
        RuntimeError: graphviz failed.

    Example:

        >>> port_map = tf_ti.PortMap(
        ...     inputs=[tf_ti.InputPort(0, 0, axis=1, stride=2), tf_ti.InputPort(1, 1)],
        ...     outputs=[tf_ti.OutputPort(0, 0)],
        ... )
        >>> print(tf_ti.draw(port_map, [tf_ti.BackEdge(from_layer=0, to_layer=1)]))
        tensor_iterator
          outside
            input 0
              to input port 0
        ...

    Source: TensorRT's loops, 10.1, on OpenVINO's TensorIterator-1.
    """
    if not isinstance(port_map, PortMap):
        raise TypeError(f"port_map must be a PortMap, got {port_map!r}")
    if isinstance(back_edges, str) or not isinstance(back_edges, Sequence):
        raise TypeError(f"back_edges must be a list of BackEdge entries, got {back_edges!r}")
    check_back_edges(back_edges, sorted(port_map.inputs, key=lambda p: p.internal_layer_id))
    return _diagram.draw(_picture(port_map, back_edges), path)


def _picture(port_map: PortMap, back_edges: Sequence[BackEdge]) -> _diagram.Diagram:
    diagram = _diagram.Diagram("", "tensor_iterator")
    parameters = [diagram.add_node("body", f"parameter {i}") for i in range(len(port_map.inputs))]
    body = diagram.add_node("body", "body")
    for parameter in parameters:
        diagram.add_edge(parameter, body)

    entries = {}
    targets = {edge.to_layer for edge in back_edges}
    for port in sorted(port_map.inputs, key=lambda port: port.external_port_id):
        source = diagram.add_node("outside", f"input {port.external_port_id}")
        layer = port.internal_layer_id
        parameter = parameters[layer]
        if port.axis is None and layer not in targets:
            diagram.add_edge(source, parameter)
            continue
        kind = "recurrence" if layer in targets else "iterator"
        label = f"input port {port.external_port_id}"
        entries[layer] = diagram.add_node(kind, label, *_range(port))
        diagram.add_edge(source, entries[layer], "initial" if layer in targets else "")
        diagram.add_edge(entries[layer], parameter)

    ports = sorted(port_map.outputs, key=lambda port: port.external_port_id)
    layers = {port.internal_layer_id for port in ports} | {edge.from_layer for edge in back_edges}
    results = {layer: diagram.add_node("body", f"result {layer}") for layer in sorted(layers)}
    for result in results.values():
        diagram.add_edge(body, result)
    for edge in back_edges:
        diagram.add_edge(results[edge.from_layer], entries[edge.to_layer], "next", True)
    for port in ports:
        label = f"output port {port.external_port_id}"
        exit_ = diagram.add_node("output", label, *(_range(port) or ("last value",)))
        diagram.add_edge(results[port.internal_layer_id], exit_)
        target = diagram.add_node("outside", f"output {port.external_port_id}")
        diagram.add_edge(exit_, target)
    return diagram


def _range(port: InputPort | OutputPort) -> tuple[str, ...]:
    """The range of a port, if it has an axis."""
    if port.axis is None:
        return ()
    size = port.part_size
    if size is None and isinstance(port, InputPort):
        size = abs(port.stride)
    said = [f"{name}={getattr(port, name)}" for name in ("axis", "start", "end", "stride")]
    return (*said, f"part_size={size}") if size is not None else tuple(said)
