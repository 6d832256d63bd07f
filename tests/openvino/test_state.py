"""ReadValue and Assign of `tf_ti.openvino`, against OpenVINO over several calls of one request."""

import importlib
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_ti.openvino
from tf_ti.openvino import IRError

ov = pytest.importorskip("openvino")
transformations = pytest.importorskip("openvino._offline_transformations")
openvino_models = importlib.import_module("openvino_models")

op = ov.opset15
BATCH, FEATURES, HIDDEN = 2, 3, 4


def f(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def parameters(*shapes, dynamic):
    return [
        op.parameter([-1, *shape[1:]] if dynamic else shape, np.float32, name=f"x{i}")
        for i, shape in enumerate(shapes)
    ]


def shape_of(node):
    return node.output(0).get_partial_shape()


def model_of(results, sinks, inputs):
    return ov.Model([op.result(node) for node in results], sinks, inputs, "model")


def with_an_initial_value(dynamic):
    """Sums; the first one begins with twice the input."""
    (x,) = parameters([BATCH, FEATURES], dynamic=dynamic)
    initial = op.multiply(x, op.constant(np.float32(2)))
    total = op.add(op.read_value(initial, "total", np.float32, shape_of(x)), x)
    return model_of([total], [op.assign(total, "total")], [x])


def without_an_initial_value(dynamic):
    (x,) = parameters([BATCH, FEATURES], dynamic=dynamic)
    read = op.read_value("total", np.float32, [1, FEATURES])
    total = op.add(read, op.reduce_sum(x, [0], True))
    return model_of([total, op.sin(read)], [op.assign(total, "total")], [x])


def of_opset3(dynamic):
    (x,) = parameters([BATCH, FEATURES], dynamic=dynamic)
    read = ov.opset3.read_value(op.multiply(x, op.constant(np.float32(3))), "total")
    total = op.subtract(read, x)
    return model_of([total], [ov.opset3.assign(total, "total")], [x])


def a_state_that_grows(dynamic):
    (x,) = parameters([BATCH, FEATURES], dynamic=dynamic)
    initial = op.constant(np.zeros([0, FEATURES], np.float32))
    read = op.read_value(initial, "rows", np.float32, ov.PartialShape([-1, FEATURES]))
    rows = op.concat([read, x], 0)
    return model_of([op.multiply(rows, rows)], [op.assign(rows, "rows")], [x])


def a_counter(dynamic):
    (x,) = parameters([BATCH, FEATURES], dynamic=dynamic)
    read = op.read_value(op.constant(np.array([5], np.int32)), "n", np.int32, [1])
    number = op.add(read, op.constant(np.array([1], np.int32)))
    y = op.multiply(x, op.convert(number, "f32"))
    return model_of([y, number], [op.assign(number, "n")], [x])


def streaming(dynamic):
    """An LSTM that goes on where the last call has ended."""
    (x,) = parameters([BATCH, FEATURES], dynamic=dynamic)
    batch = op.gather(op.shape_of(x), np.array([0]), np.array(0))
    shape = op.concat([batch, op.constant(np.array([HIDDEN]))], 0)
    zeros = op.broadcast(op.constant(np.float32(0)), shape)
    h, c = (op.read_value(zeros, name, np.float32, shape_of(zeros)) for name in ("state/h", "c"))
    w, r, b = f(4 * HIDDEN, FEATURES), f(4 * HIDDEN, HIDDEN), f(4 * HIDDEN)
    cell = op.lstm_cell(x, h, c, w, r, b, HIDDEN)
    h, c = (op.abs(value) for value in cell.outputs())  # assign takes a node
    return model_of([h], [op.assign(h, "state/h"), op.assign(c, "c")], [x])


def iterated(dynamic):
    """A TensorIterator around an LSTMCell, with states and sequences as inputs and outputs."""
    x, h0, c0 = parameters([BATCH, 5, FEATURES], [BATCH, HIDDEN], [BATCH, HIDDEN], dynamic=dynamic)
    batch = -1 if dynamic else BATCH
    xp = op.parameter([batch, 1, FEATURES], np.float32)
    hp, cp = (op.parameter([batch, HIDDEN], np.float32) for _ in range(2))
    w, r, b = f(4 * HIDDEN, FEATURES), f(4 * HIDDEN, HIDDEN), f(4 * HIDDEN)
    cell = op.lstm_cell(op.squeeze(xp, np.array(1)), hp, cp, w, r, b, HIDDEN)
    results = [op.result(value) for value in (cell.output(0), cell.output(1))]
    loop = op.tensor_iterator()
    loop.set_function(ov.Model(results, [xp, hp, cp], "body"))
    loop.set_sliced_input(xp, x.output(0), 0, 1, 1, -1, 1)
    loop.set_merged_input(hp, h0.output(0), results[0].output(0))
    loop.set_merged_input(cp, c0.output(0), results[1].output(0))
    outputs = [loop.get_iter_value(result.output(0), -1) for result in results]
    return ov.Model([op.result(output) for output in outputs], [x, h0, c0], "model")


def made_stateful(dynamic):
    model = iterated(dynamic)
    pairs = {model.inputs[k].node.friendly_name: model.results[k - 1].friendly_name for k in (1, 2)}
    transformations.apply_make_stateful_transformation(model, pairs)
    return model


def of_low_latency(dynamic):
    model = iterated(dynamic)
    transformations.apply_low_latency_transformation(model, True)
    return model


MODELS = [
    with_an_initial_value,
    without_an_initial_value,
    of_opset3,
    a_state_that_grows,
    a_counter,
    streaming,
    made_stateful,
    of_low_latency,
]


def calls_of(model, count):
    """Inputs of some calls."""
    shapes = [input_.partial_shape for input_ in model.inputs]
    shapes = [[BATCH if n.is_dynamic else n.get_length() for n in shape] for shape in shapes]
    return [[f(*shape, seed=k) for shape in shapes] for k in range(count)]


class Request:
    def __init__(self, path):
        hint = {"INFERENCE_PRECISION_HINT": "f32"}
        compiled = openvino_models.CORE.compile_model(str(path), "CPU", hint)
        self.outputs = range(len(compiled.outputs))
        self.request = compiled.create_infer_request()

    def __call__(self, *inputs):
        self.request.infer(list(inputs))
        return [self.request.get_output_tensor(i).data.copy() for i in self.outputs]

    def reset_state(self):
        self.request.reset_state()


def follow(module, calls):
    """The results of each call, with a reset after the first three."""
    found = []
    for k, inputs in enumerate(calls):
        if k == 3:
            module.reset_state()
        found.append([np.asarray(value) for value in module(*inputs)])
    return found


def assert_same(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        for x, y in zip(a, e, strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            np.testing.assert_allclose(x, y, 1e-5, 1e-5)


def modes(make):
    # It makes no initial values, and what is of no batch yet is empty.
    return [False] if make is made_stateful else [False, True]


@pytest.mark.parametrize("make, dynamic", [(make, mode) for make in MODELS for mode in modes(make)])
def test_calls_after_one_another_answer_as_openvinos_do(tmp_path, make, dynamic):
    model = make(dynamic)
    calls = calls_of(model, 5)
    path = openvino_models.save(model, tmp_path / "model.xml")
    assert_same(follow(tf_ti.openvino.load(path), calls), follow(Request(path), calls))


# --- what OpenVINO refuses, or does not do -------------------------------------------------------


def port(number, precision=' precision="FP32"'):
    return f'<port id="{number}"{precision}><dim>3</dim></port>'


def layer(number, kind, inputs=0, outputs=1, version="opset1", data=""):
    given = "".join(port(i, "") for i in range(inputs))
    made = "".join(port(inputs + i) for i in range(outputs))
    return (
        f'<layer id="{number}" name="{kind} {number}" type="{kind}" version="{version}">'
        f"<data {data}/><input>{given}</input><output>{made}</output></layer>"
    )


def written(folder, layers, edges):
    """Edges: (from layer, from port, to layer, to port)."""
    edge = '<edge from-layer="{}" from-port="{}" to-layer="{}" to-port="{}"/>'
    text = "".join(edge.format(*numbers) for numbers in edges)
    path = folder / "model.xml"
    path.write_text(
        f'<net name="m" version="11"><layers>{"".join(layers)}</layers><edges>{text}</edges></net>'
    )
    path.with_suffix(".bin").write_bytes(b"")
    return path


ID = 'variable_id="last"'
TYPED = f'{ID} variable_type="f32" variable_shape="3"'
SOURCE = layer(0, "Parameter", data='element_type="f32" shape="3"')
ASSIGN = layer(6, "Assign", 1, 1, "opset6", ID)


def a_call_reads_before_it_writes(folder, others=(), edges=(), read=TYPED):
    """Reads what the input of the last call was; nothing but the order says that it comes first."""
    return written(
        folder,
        [
            SOURCE,
            ASSIGN,
            layer(1, "ReadValue", 0, 1, "opset6", read),
            layer(2, "ReadValue", 0, 1, "opset6", TYPED),
            layer(3, "Subtract", 2),
            layer(4, "Add", 2),
            layer(5, "Result", 1, 0),
            *others,
        ],
        [
            *((1, 0, 4, 0), (2, 0, 4, 1), (4, 2, 3, 0), (0, 0, 3, 1), (3, 2, 5, 0), (0, 0, 6, 0)),
            *edges,
        ],
    )


@pytest.mark.parametrize("mode", ["eager", "in a function", "twice in a function", "compiled"])
def test_all_reads_of_a_call_come_before_its_writes(tmp_path, mode):
    module = tf_ti.openvino.load(a_call_reads_before_it_writes(tmp_path))
    inputs = [tf.constant(f(3, seed=k)) for k in range(4)]
    if mode == "twice in a function":
        pair = tf.function(lambda x, y: (*module(x), *module(y)))
        found = [*pair(*inputs[:2]), *pair(*inputs[2:])]
    else:
        call = tf.function(lambda x: module(x), jit_compile=mode == "compiled")
        found = [(module if mode == "eager" else call)(x)[0] for x in inputs]
    expected = [2 * last - x for x, last in zip(inputs, [0 * inputs[0], *inputs])]
    assert_same([[np.asarray(y) for y in found]], [[np.asarray(y) for y in expected]])


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"read": ""}, "ReadValue 1.*no variable_id"),
        ({"read": TYPED.replace("f32", "f16")}, "ReadValue 2.*float32 of shape.*float16 of shape"),
        ({"read": TYPED.replace('"3"', '"4"')}, r"ReadValue 2.*shape \(3,\).*shape \(4,\)"),
        ({"read": TYPED.replace('"3"', '"3;"')}, "ReadValue 1.*is no shape"),
        (
            {"others": [ASSIGN.replace('"6"', '"7"')], "edges": [(0, 0, 7, 0)]},
            "Assign.*another Assign has its variable_id",
        ),
    ],
    ids=["no id", "types", "shapes", "no shape", "two assignments"],
)
def test_layers_that_contradict_one_another_are_refused(tmp_path, arguments, words):
    path = a_call_reads_before_it_writes(tmp_path, **arguments)
    with pytest.raises(IRError, match=words):
        tf_ti.openvino.load(path)


@pytest.mark.slow
def test_a_state_that_no_memory_holds_is_refused(tmp_path):
    path = a_call_reads_before_it_writes(tmp_path)
    extent = 10**15
    text = path.read_text().replace("<dim>3<", f"<dim>{extent}<")
    path.write_text(text.replace('shape="3"', f'shape="{extent}"'))
    with pytest.raises(IRError, match="variable_id='last', float32 of shape .*cannot be made"):
        tf_ti.openvino.load(path)


def test_a_state_in_a_body_is_refused(tmp_path):
    path = openvino_models.save(iterated(False), tmp_path / "model.xml")
    text, count = re.subn(
        'type="Squeeze" version="[^"]*"', 'type="ReadValue" version="opset6"', path.read_text()
    )
    assert count == 1
    path.write_text(text)
    with pytest.raises(IRError, match="body: ReadValue .*in the body of a loop .*not supported"):
        tf_ti.openvino.load(path)


# --- variables -----------------------------------------------------------------------------------


@pytest.fixture
def sums(tmp_path):
    """A model, and what it gives in some calls."""
    path = openvino_models.save(with_an_initial_value(True), tmp_path / "model.xml")
    inputs = [f(BATCH, FEATURES, seed=k) for k in range(4)]
    return path, inputs, [np.sum(inputs[: k + 1], 0) + 2 * inputs[0] for k in range(4)]


def test_states_are_variables_that_are_not_trainable(sums):
    path, inputs, totals = sums
    module = tf_ti.openvino.load(path, trainable=True)
    module(inputs[0])
    state = module.states["total"]
    assert module.trainable_variables == ()
    assert {v.ref() for v in module.variables} == {state.value.ref(), state.is_assigned.ref()}
    np.testing.assert_allclose(state.value, totals[0], 1e-6)


def test_a_state_may_be_set(sums):
    path, inputs, _ = sums
    module = tf_ti.openvino.load(path)
    module.states["total"].assign(inputs[1])
    np.testing.assert_allclose(module(inputs[0])[0], inputs[0] + inputs[1], 1e-6)


@pytest.mark.parametrize("make", [with_an_initial_value, streaming], ids=lambda make: make.__name__)
@pytest.mark.parametrize("way", ["saved model", "checkpoint"])
def test_what_was_saved_goes_on_where_it_was_saved(tmp_path, make, way):
    model = make(True)
    calls = calls_of(model, 4)
    path = openvino_models.save(model, tmp_path / "model.xml")
    module = tf_ti.openvino.load(path)
    first = [np.asarray(value) for value in module(*calls[0])]
    if way == "saved model":
        tf.saved_model.save(module, tmp_path / "saved")
        restored = tf.saved_model.load(tmp_path / "saved")
    else:
        checkpoint = tf.train.Checkpoint(module=module).write(str(tmp_path / "checkpoint"))
        restored = tf_ti.openvino.load(path)
        tf.train.Checkpoint(module=restored).read(checkpoint).assert_consumed()
    expected = [[np.asarray(value) for value in module(*inputs)] for inputs in calls[1:]]
    calls = [[tf.constant(value) for value in inputs] for inputs in calls]
    actual = [[np.asarray(value) for value in restored(*inputs)] for inputs in calls[1:]]
    assert_same(actual, expected)
    restored.reset_state()
    assert_same([[np.asarray(value) for value in restored(*calls[0])]], [first])


def test_a_signature_keeps_states_too(sums, tmp_path):
    path, inputs, totals = sums
    tf.saved_model.save(tf_ti.openvino.load(path), tmp_path / "saved")
    serve = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"]
    for x, total in zip(inputs, totals):
        (value,) = serve(x0=tf.constant(x)).values()
        np.testing.assert_allclose(value, total, 1e-5)


def test_a_gradient_reaches_what_was_read_first(sums):
    path, inputs, _ = sums
    module = tf_ti.openvino.load(path)
    x = tf.constant(inputs[0])
    for factor in (3.0, 1.0):  # later a state is what it is
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = module(x)[0]
        np.testing.assert_allclose(tape.gradient(y, x), np.full(x.shape, factor), 1e-6)


def test_a_model_without_states_has_nothing_to_forget(tmp_path):
    model = iterated(False)
    path = openvino_models.save(model, tmp_path / "model.xml")
    module = tf_ti.openvino.load(path)
    module.reset_state()
    assert not module.variables
