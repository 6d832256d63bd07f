"""`tf_ti`'s loops against ONNX's Scan and Loop: its own samples, and random models.

`run_graph` runs an ONNX graph with TensorFlow, and its loops with tf_ti. The same graph is run by
ONNX's reference, which has no axes, directions and optional inputs yet, or by ONNX Runtime.
"""

import importlib

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import BackEdge, InputPort, LoopOutput, OutputPort, PortMap, TripLimit

onnx = pytest.importorskip("onnx", reason="ONNX is not installed: `make oracles` does it")
pytest.importorskip("onnx.reference")
node_cases = pytest.importorskip("onnx.backend.test.case.node")

# --- ONNX on tf_ti --------------------------------------------------------------------------------


def unsqueeze(x, axes):
    (axis,) = np.ravel(axes)
    return tf.expand_dims(x, axis)


OPS = {
    "Add": tf.add,
    "And": tf.logical_and,
    "Cast": lambda x, to: tf.cast(x, onnx.helper.tensor_dtype_to_np_dtype(to)),
    "Ceil": tf.math.ceil,
    "Constant": lambda value: tf.constant(onnx.numpy_helper.to_array(value)),
    "Div": tf.divide,
    "Identity": tf.identity,
    "Less": tf.less,
    "Max": tf.maximum,
    "Mul": tf.multiply,
    "ReduceSum": lambda x, keepdims: tf.reduce_sum(x, keepdims=bool(keepdims)),
    "Relu": tf.nn.relu,
    "Sin": tf.sin,
    "Slice": tf.strided_slice,
    "Sub": tf.subtract,
    "Tanh": tf.tanh,
    "Unsqueeze": unsqueeze,
}


def run_graph(graph, inputs, scan=None, outer=None):
    """The results of a graph for these inputs.

    Its Scans become what `scan` makes of them. `outer` is what it may use from around it.
    """
    values = {**(outer or {}), **dict(zip([i.name for i in graph.input], inputs, strict=True))}
    for node in graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        arguments = [values[name] if name else None for name in node.input]
        if node.op_type in ("Scan", "Loop"):
            inner = attributes.pop("body")

            def body(*inputs, inner=inner):
                return run_graph(inner, map(tf.convert_to_tensor, inputs), scan, values)

            if node.op_type == "Loop":
                results = run_loop(body, *arguments)
            else:
                results = run_scan(scan, body, len(inner.output), arguments, **attributes)
        else:
            results = [OPS[node.op_type](*arguments, **attributes)]
        values.update(zip(node.output, results))
    return [values[output.name] for output in graph.output]


def run_loop(body, count, condition, *initial):
    with tf_ti.Loop() as loop:
        k = loop.add_recurrence(tf.constant(0, tf.int64))
        k.next = k + 1
        goes_on = loop.add_recurrence(True if condition is None else condition)
        loop.add_trip_limit(goes_on, TripLimit.WHILE)
        if count is not None:
            loop.add_trip_limit(count, TripLimit.COUNT)
        states = [loop.add_recurrence(x) for x in initial]
        goes_on.next, *results = body(k, goes_on, *states)
        for state, result in zip(states, results):
            state.next = result
        outputs = [loop.add_loop_output(state, LoopOutput.LAST_VALUE) for state in states]
        for y in results[len(states) :]:
            outputs.append(loop.add_loop_output(y, LoopOutput.CONCATENATE))
    return [output.tensor for output in outputs]


def run_scan(
    scan,
    body,
    num_results,
    arguments,
    num_scan_inputs,
    scan_input_axes=None,
    scan_input_directions=None,
    scan_output_axes=None,
    scan_output_directions=None,
):
    if arguments[0] is None:  # Scan-8: a batch, here without the lengths of its sequences
        return tf.vectorized_map(
            lambda lane: run_scan(scan, body, num_results, lane, num_scan_inputs), arguments[1:]
        )
    initial, xs = arguments[:-num_scan_inputs], arguments[-num_scan_inputs:]
    num_outputs = num_results - len(initial)
    directions = scan_input_directions or [0] * len(xs)
    inputs = list(zip(xs, scan_input_axes or [0] * len(xs), map(bool, directions)))
    directions = scan_output_directions or [0] * num_outputs
    outputs = list(zip(scan_output_axes or [0] * num_outputs, map(bool, directions)))
    return scan(body, initial, inputs, outputs)


def on_scan(body, initial, inputs, outputs):
    """Where all axes are the same, and all directions."""
    ((axis, reverse),) = {(axis, reverse) for _, axis, reverse in inputs} | set(outputs)

    def step(carry, elements):
        results = body(*carry, *elements)
        return results[: len(carry)], results[len(carry) :]

    xs = [x for x, _, _ in inputs]
    carry, ys = tf_ti.scan(step, initial, xs, axis=axis, reverse=reverse)
    return [*carry, *ys]


def on_loop(body, initial, inputs, outputs):
    x, axis, _ = inputs[0]
    with tf_ti.Loop() as loop:
        loop.add_trip_limit(tf.shape(x)[axis], TripLimit.COUNT)
        states = [loop.add_recurrence(x) for x in initial]
        elements = [loop.add_iterator(x, axis, reverse) for x, axis, reverse in inputs]
        results = body(*states, *elements)
        for state, result in zip(states, results):
            state.next = result
        made = [loop.add_loop_output(state, LoopOutput.LAST_VALUE) for state in states]
        for y, (axis, reverse) in zip(results[len(states) :], outputs):
            order = LoopOutput.REVERSE if reverse else LoopOutput.CONCATENATE
            made.append(loop.add_loop_output(y, order, axis))
    return [output.tensor for output in made]


def on_tensor_iterator(body, initial, inputs, outputs):
    orders = {False: {}, True: {"start": -1, "end": 0, "stride": -1}}
    count = len(initial)

    def step(*parameters):
        taken = zip(parameters[count:], inputs)
        elements = [tf.squeeze(piece, [axis]) for piece, (_, axis, _) in taken]
        results = body(*parameters[:count], *elements)
        given = zip(results[count:], outputs)
        return *results[:count], *(tf.expand_dims(y, axis) for y, (axis, _) in given)

    sliced = [
        InputPort(i, i, axis=axis, **orders[reverse])
        for i, (_, axis, reverse) in enumerate(inputs, start=count)
    ]
    concatenated = [
        OutputPort(i, i, axis=axis, **orders[reverse])
        for i, (axis, reverse) in enumerate(outputs, start=count)
    ]
    return tf_ti.tensor_iterator(
        step,
        [*initial, *(x for x, _, _ in inputs)],
        PortMap(
            [*(InputPort(i, i) for i in range(count)), *sliced],
            [*(OutputPort(i, i) for i in range(count)), *concatenated],
        ),
        [BackEdge(i, i) for i in range(count)],
    )


WAYS = {"scan": on_scan, "Loop": on_loop, "tensor_iterator": on_tensor_iterator}
ways = pytest.mark.parametrize("way", WAYS)


def check(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        assert (a.dtype, a.shape) == (tf.as_dtype(e.dtype), e.shape)
        tolerance = 1e-9 if a.dtype == tf.float64 else 1e-5
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


# --- ONNX's samples -------------------------------------------------------------------------------


def samples(op_type):
    """ONNX's own models with this node, and what they give.

    Range is defined as a Loop. A module adds its samples to the list when it is imported; ONNX's
    `collect_testcases` imports those of all operators, which takes half a minute.
    """
    for name in ("loop", "rangeop", "scan"):
        importlib.import_module(f"onnx.backend.test.case.node.{name}")
    found = {
        case.name: case
        for case in node_cases._NodeTestCases
        if any(node.op_type == op_type for node in case.model.graph.node)
    }
    # Their states are sequences of tensors of different shapes, which no loop of tf_ti has.
    return [case for name, case in found.items() if "_seq" not in name]


def check_sample(case, scan=None):
    for inputs, outputs in case.data_sets:
        actual = run_graph(case.model.graph, map(tf.constant, inputs), scan)
        check(actual, outputs)


@pytest.mark.parametrize("case", samples("Loop"), ids=lambda case: case.name)
def test_a_sample_of_loop_gives_what_onnx_says(case):
    check_sample(case)


@ways
@pytest.mark.parametrize("case", samples("Scan"), ids=lambda case: case.name)
def test_a_sample_of_scan_gives_what_onnx_says(case, way):
    check_sample(case, WAYS[way])


# --- random models --------------------------------------------------------------------------------


def run_reference(model, inputs):
    return onnx.reference.ReferenceEvaluator(model).run(None, inputs)


def run_runtime(model, inputs):
    onnxruntime = pytest.importorskip(
        "onnxruntime", reason="ONNX Runtime is not installed: `make oracles` does it"
    )
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=providers)
    return session.run(None, inputs)


def check_model(text, inputs, run_onnx, scan=None):
    print(text, inputs)
    model = onnx.parser.parse_model(text)
    expected = run_onnx(model, inputs)
    check(run_graph(model.graph, [tf.constant(x) for x in inputs.values()], scan), expected)


def array(rng, dtype, shape):
    return np.asarray(rng.standard_normal(shape), dtype)


def numbered(rng, name, at_least, at_most):
    return [f"{name}_{i}" for i in range(rng.integers(at_least, at_most + 1))]


ONNX_TYPES = {"float32": "float", "float64": "double", "int64": "int64", "bool": "bool"}


def typed(name, dtype, shape):
    """The declaration of a value."""
    return f"{ONNX_TYPES[np.dtype(dtype).name]}{list(shape) if shape else ''} {name}"


def mixture(rng, names, results):
    """Nodes that make these results of these values, all of one shape."""
    nodes, names = [], list(names)
    for i in range(len(results) + 3):
        first, second = rng.choice(names, 2)
        op, function = rng.choice(["Add", "Sub", "Mul", "Max"]), rng.choice(["Sin", "Tanh"])
        nodes += [f"mixed_{i} = {op}({first}, {second})", f"value_{i} = {function}(mixed_{i})"]
        names.append(f"value_{i}")
    nodes += [f"{result} = Identity({name})" for result, name in zip(results, reversed(names))]
    return "\n".join(nodes)


def model_of(node, inputs, outputs, body_inputs, body_outputs, nodes, attributes=""):
    """The text of a model with one loop; `outputs` are the loop's, `nodes` the body's."""
    kind = ONNX_TYPES[inputs["outside"].dtype.name]
    declared = [typed(name, x.dtype, x.shape) for name, x in inputs.items()]
    return f"""
<ir_version: 10, opset_import: ["": 21]>
model ({", ".join(declared)}) => ({", ".join(f"{kind}[] {name}" for name in outputs)}) {{
{", ".join(outputs)} = {node} <{attributes} body = body ({", ".join(body_inputs)}) => (
{", ".join(body_outputs)}) {{
{nodes}
}}> }}"""


def random_scan(rng, uniform=False, plain=False):
    """A model and its inputs.

    All axes and all directions are the same in a uniform one, and zero in a plain one.
    """
    dtype = ["float32", "float64"][rng.integers(2)]
    shape = [int(n) for n in rng.integers(1, 4, rng.integers(0, 3))]
    rank, length = len(shape) + 1, int(rng.integers(1, 5))
    states, xs, ys = (numbered(rng, name, n, 2) for name, n in (("s", 0), ("x", 1), ("y", 1)))
    count = len(xs) + len(ys)
    axes, directions = rng.integers(-rank, rank, count), rng.integers(0, 2, count)
    if uniform or plain:
        axes[:], directions[:] = (0, 0) if plain else (axes[0], directions[0])
    inputs = {name: array(rng, dtype, shape) for name in [*states, "outside"]}
    for name, axis in zip(xs, axes % rank):
        inputs[name] = array(rng, dtype, [*shape[:axis], length, *shape[axis:]])
    arguments, results = [*states, *xs], [*(f"next_{name}" for name in states), *ys]
    attributes = [f"num_scan_inputs = {len(xs)},"]
    for what, values in (("axes", axes), ("directions", directions)):
        attributes.append(f"scan_input_{what} = {values[: len(xs)].tolist()},")
        attributes.append(f"scan_output_{what} = {values[len(xs) :].tolist()},")
    text = model_of(
        f"Scan ({', '.join(arguments)})",
        inputs,
        [f"out_{name}" for name in results],
        [f"in_{name}" for name in arguments],
        results,
        mixture(rng, ["outside", *(f"in_{name}" for name in arguments)], results),
        " ".join(attributes),
    )
    return text, inputs


def random_loop(rng, plain=False):
    """A model and its inputs.

    A plain one has both trip limits and runs at least once, and its values are vectors.
    """
    dtype = ["float32", "float64"][rng.integers(2)]
    shape = [int(n) for n in rng.integers(1, 4, 1 if plain else rng.integers(0, 3))]
    states, ys = numbered(rng, "s", 1, 2), numbered(rng, "y", 0, 2)
    has_count, has_condition = (True, True) if plain else rng.random(2) < 0.8
    inputs = {name: array(rng, dtype, shape) for name in [*states, "outside"]}
    inputs["threshold"] = np.asarray(rng.random() + 0.5, dtype)
    inputs["longest"] = np.asarray(rng.integers(1, 6))
    if has_count:
        inputs["count"] = np.asarray(rng.integers(1 if plain else 0, 6))
    if has_condition:
        inputs["goes_on"] = np.asarray(plain or rng.random() < 0.9)
    limits = ["count" if has_count else '""', "goes_on" if has_condition else '""']
    results = [*(f"next_{name}" for name in states), *ys]
    names = ["outside", "shifted", *(f"in_{name}" for name in states)]
    kind = 1 if dtype == "float32" else 11
    nodes = f"""
time = Cast <to = {kind}> (k)
shifted = Add(in_s_0, time)
total = ReduceSum <keepdims = 0> (in_s_0)
is_low = Less(total, threshold)
is_short = Less(k, longest)
both = And(is_low, is_short)
more = And(both, still)
"""
    text = model_of(
        f"Loop ({', '.join([*limits, *states])})",
        inputs,
        [f"out_{name}" for name in results],
        ["int64 k", "bool still", *(f"in_{name}" for name in states)],
        # Of no iterations ONNX Runtime knows no more than these shapes.
        ["more", *(typed(name, dtype, shape) for name in results)],
        nodes + mixture(rng, names, results),
    )
    return text, inputs


@pytest.mark.parametrize("seed", range(4), indirect=True)
def test_plain_scans_give_what_onnxs_reference_gives(rng):
    pytest.importorskip(
        "onnx", minversion="1.23", reason="the reference mixed states and outputs up"
    )
    check_model(*random_scan(rng, plain=True), run_reference, on_scan)


@pytest.mark.parametrize("seed", range(10, 14), indirect=True)
def test_plain_loops_give_what_onnxs_reference_gives(rng):
    check_model(*random_loop(rng, plain=True), run_reference)


@ways
@pytest.mark.parametrize("seed", range(20, 28), indirect=True)
def test_random_scans_give_what_onnx_runtime_gives(rng, way):
    check_model(*random_scan(rng, uniform=way == "scan"), run_runtime, WAYS[way])


@pytest.mark.parametrize("seed", range(40, 56), indirect=True)
def test_random_loops_give_what_onnx_runtime_gives(rng):
    check_model(*random_loop(rng), run_runtime)
