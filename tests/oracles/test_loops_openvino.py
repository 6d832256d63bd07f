"""`tf_ti.tensor_iterator` against OpenVINO's own TensorIterator, over random port maps.

Whole ranges only: its CPU plugin does not honour others.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import BackEdge, InputPort, OutputPort, PortMap

ov = pytest.importorskip("openvino")
ov_ops = pytest.importorskip("openvino.opset8")


@dataclasses.dataclass
class Case:
    inputs: list
    port_map: PortMap
    back_edges: list
    kinds: list
    shapes: list  # of the parameters


def random_case(rng):
    """Slices of one rank that share all but their iterated extents, states, an invariant."""
    count = int(rng.integers(1, 5))
    num_slices, num_states, num_invariants = (int(n) for n in rng.integers([1, 0, 0], [4, 3, 2]))
    kinds = ["slice"] * num_slices + ["state"] * num_states + ["invariant"] * num_invariants
    rng.shuffle(kinds)
    rank = int(rng.integers(1, 5))
    inputs, ports, shapes = [], [], []
    for i, kind in enumerate(kinds):
        shape = [int(n) for n in rng.integers(1, 4, rank)]
        fields = {}
        if kind == "slice":
            axis = int(rng.integers(-rank, rank))
            part = shape[axis]
            fields = {"axis": axis, "part_size": part, "stride": part}
            if rng.random() < 0.5:
                fields |= {"start": -1, "end": 0, "stride": -part}
        elif kind == "state":
            shape = [2] * rank
        shapes.append(list(shape))
        if kind == "slice":
            shape[axis] *= count
        inputs.append(rng.standard_normal(shape).astype(np.float32))
        ports.append(InputPort(i, i, **fields))
    states = [i for i, kind in enumerate(kinds) if kind == "state"]
    # In OpenVINO a state is fed by one result, which may feed others too.
    back_edges = [BackEdge(int(rng.choice(states)), target) for target in states]
    outputs = []
    for result in range(len(kinds)):
        fields = {}
        if rng.random() < 0.7:
            axis = int(rng.integers(-rank, rank))
            part = shapes[result][axis]
            fields = {"axis": axis, "part_size": part, "stride": part}
            if rng.random() < 0.5:
                fields |= {"start": -1, "end": 0, "stride": -part}
        outputs.append(OutputPort(len(outputs), result, **fields))
    return Case(inputs, PortMap(ports, outputs), back_edges, kinds, shapes)


def tf_body(case, parameters):
    mixed = sum(tf.reduce_sum(p) * (i + 1) for i, p in enumerate(parameters))
    return tuple(
        tf.tanh(p * 0.5 + mixed * 0.1) if kind == "state" else p + tf.sin(mixed)
        for p, kind in zip(parameters, case.kinds)
    )


def ov_body(case):
    parameters = [ov_ops.parameter(shape, np.float32) for shape in case.shapes]
    mixed = None
    for i, p in enumerate(parameters):
        axes = np.arange(len(case.shapes[i]))
        term = ov_ops.multiply(ov_ops.reduce_sum(p, axes, False), np.float32(i + 1))
        mixed = term if mixed is None else ov_ops.add(mixed, term)
    results = []
    for p, kind in zip(parameters, case.kinds):
        if kind == "state":
            scaled = ov_ops.multiply(p, np.float32(0.5))
            value = ov_ops.tanh(ov_ops.add(scaled, ov_ops.multiply(mixed, np.float32(0.1))))
        else:
            value = ov_ops.add(p, ov_ops.sin(mixed))
        results.append(ov_ops.result(value))
    return ov.Model(results, parameters, "body")


def run_openvino(case):
    body = ov_body(case)
    iterator = ov_ops.tensor_iterator()
    iterator.set_function(body)
    sources = [ov_ops.parameter(x.shape, np.float32) for x in case.inputs]
    fed_by = {edge.to_layer: edge.from_layer for edge in case.back_edges}
    for port in case.port_map.inputs:
        parameter = body.get_parameters()[port.internal_layer_id]
        source = sources[port.external_port_id].output(0)
        if port.axis is not None:
            axis = port.axis % len(case.shapes[port.internal_layer_id])
            iterator.set_sliced_input(
                parameter, source, port.start, port.stride, port.part_size, port.end, axis
            )
        elif port.internal_layer_id in fed_by:
            result = body.get_results()[fed_by[port.internal_layer_id]]
            iterator.set_merged_input(parameter, source, result.output(0))
        else:
            iterator.set_invariant_input(parameter, source)
    outputs = []
    for port in case.port_map.outputs:
        result = body.get_results()[port.internal_layer_id].output(0)
        if port.axis is None:
            outputs.append(iterator.get_iter_value(result, -1))
        else:
            axis = port.axis % len(case.shapes[port.internal_layer_id])
            outputs.append(
                iterator.get_concatenated_slices(
                    result, port.start, port.stride, port.part_size, port.end, axis
                )
            )
    iterator.validate_and_infer_types()
    model = ov.Model([ov_ops.result(out) for out in outputs], sources, "model")
    compiled = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    values = compiled(case.inputs)
    return [values[i] for i in range(len(outputs))]


def check(case, actual):
    expected = run_openvino(case)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        np.testing.assert_allclose(a, e, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("seed", range(30), indirect=True)
def test_random_port_maps_give_what_openvino_gives(rng):
    case = random_case(rng)
    print(case.port_map, case.back_edges)
    actual = tf_ti.tensor_iterator(
        lambda *parameters: tf_body(case, parameters),
        case.inputs,
        case.port_map,
        case.back_edges,
    )
    check(case, actual)


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
def test_its_example_2_gives_what_openvino_gives(backwards):
    time, size, hidden = 25, 512, 256
    rng = np.random.default_rng(1)
    x = rng.standard_normal([1, time, size]).astype(np.float32)
    h0, c0 = rng.standard_normal([2, 1, hidden]).astype(np.float32)
    w = (rng.standard_normal([4 * hidden, size]) * 0.05).astype(np.float32)
    r = (rng.standard_normal([4 * hidden, hidden]) * 0.05).astype(np.float32)
    b = rng.standard_normal([4 * hidden]).astype(np.float32)

    def body(x, h, c):
        x = tf.reshape(x, [1, size])
        f, i, g, o = tf.split(x @ tf.transpose(w) + h @ tf.transpose(r) + b, 4, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        return h, c, tf.reshape(h, [1, 1, hidden])

    ends = {"start": -1, "end": 0, "stride": -1} if backwards else {}
    (actual,) = tf_ti.tensor_iterator(
        body,
        [x, h0, c0],
        PortMap(
            [InputPort(0, 0, axis=1, **ends), InputPort(1, 1), InputPort(2, 2)],
            [OutputPort(0, 2, axis=1, **ends)],
        ),
        [BackEdge(0, 1), BackEdge(1, 2)],
    )

    xp, hp, cp = (ov_ops.parameter(s, np.float32) for s in ([1, 1, size], [1, hidden], [1, hidden]))
    flat = ov_ops.reshape(xp, np.array([1, size]), False)
    cell = ov_ops.lstm_cell(flat, hp, cp, w, r, b, hidden)
    unsqueezed = ov_ops.reshape(cell.output(0), np.array([1, 1, hidden]), False)
    results = [ov_ops.result(v) for v in (cell.output(0), cell.output(1), unsqueezed)]
    iterator = ov_ops.tensor_iterator()
    iterator.set_function(ov.Model(results, [xp, hp, cp], "body"))
    sources = [ov_ops.parameter(v.shape, np.float32) for v in (x, h0, c0)]
    start, end, stride = (-1, 0, -1) if backwards else (0, -1, 1)
    iterator.set_sliced_input(xp, sources[0].output(0), start, stride, 1, end, 1)
    iterator.set_merged_input(hp, sources[1].output(0), results[0].output(0))
    iterator.set_merged_input(cp, sources[2].output(0), results[1].output(0))
    out = iterator.get_concatenated_slices(results[2].output(0), start, stride, 1, end, 1)
    model = ov.Model([ov_ops.result(out)], sources, "model")
    compiled = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    np.testing.assert_allclose(actual, compiled([x, h0, c0])[0], rtol=1e-3, atol=1e-4)
