"""On which device a loop runs, its body and its gradient: that of a `with tf.device`.

Devices must be asked for before TensorFlow starts, so one process of its own runs all the loops.
"""

import json
import subprocess
import sys
import textwrap

import pytest
from patience import HANGS

PROGRAM = """
import json

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

import tf_ti

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 3)

# Each device has a variable of this name, its number: it tells where it is read.
def number_variable():
    return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="number")

def here():
    return tf.raw_ops.ReadVariableOp(resource=number_variable(), dtype=tf.float32)

def on(k, f, *arguments):
    with tf.device(f"/CPU:{k}"):
        return f(*arguments)

for k in range(3):
    on(k, lambda: tf.raw_ops.AssignVariableOp(resource=number_variable(), value=float(k)))

def while_loop(f, x):
    body = lambda k, c: (k + 1, f(c, x[k]))
    return tf.while_loop(lambda k, c: k < 3, body, (0, tf.constant(0.0)))[1]

def scan(f, x):
    return tf_ti.scan(lambda c, v: (f(c, v), None), 0.0, x)[0]

def tensor_iterator(f, x):
    ports = tf_ti.PortMap(
        [tf_ti.InputPort(0, 0), tf_ti.InputPort(1, 1, axis=0)], [tf_ti.OutputPort(0, 0)])
    edges = [tf_ti.BackEdge(0, 0)]
    return tf_ti.tensor_iterator(lambda c, v: f(c, v[0]), [0.0, x], ports, edges)[0]

def loop(f, x):
    with tf_ti.Loop() as made:
        made.add_trip_limit(3, tf_ti.TripLimit.COUNT)
        v, c = made.add_iterator(x), made.add_recurrence(0.0)
        c.next = f(tf.identity(c), tf.identity(v))
        out = made.add_loop_output(c, tf_ti.LoopOutput.LAST_VALUE)
    return out.tensor

WAYS = {"tf.while_loop": while_loop, "scan": scan, "tensor_iterator": tensor_iterator, "Loop": loop}
variable = on(2, tf.Variable, 5.0)

def add_here(c, v=None):
    return c + here()

called = tf.function(add_here)

def add_conditionally(c):
    return tf.cond(c < 100.0, lambda: c + here(), lambda: c)

def both(c, v):
    return on(1, add_here, c) + 100.0 * here()

def product(c, v):
    return on(1, tf.sin, c * variable) + tf.tanh(v)

PLACES = {
    "around": lambda way, x: on(1, way, add_here, x),
    "inside": lambda way, x: way(lambda c, v: on(1, add_here, c), x),
    "inside a call": lambda way, x: way(lambda c, v: on(1, called, c), x),
    "inside a conditional": lambda way, x: way(lambda c, v: on(1, add_conditionally, c), x),
    "inside a nested loop": lambda way, x: way(
        lambda c, v: way(lambda d, w: d + on(1, here) / 3.0, x) + c, x),
    "around a nested loop": lambda way, x: way(
        lambda c, v: on(1, way, lambda d, w: d + here() / 3.0, x) + c, x),
    "around and inside": lambda way, x: on(2, way, both, x),
    "around one that reads a variable of another": lambda way, x: on(
        1, way, lambda c, v: c + here() * variable, x),
}

def gradient(build):
    def compute(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = build(x)
        return [y, *tape.gradient(y, [x, variable])]
    return compute

GRADIENTS = {
    "around": lambda way: gradient(lambda x: on(1, way, product, x)),
    "inside": lambda way: gradient(lambda x: way(product, x)),
    "nested": lambda way: gradient(
        lambda x: way(lambda c, v: on(1, way, product, x * v) + c, x)),
}

def devices_of_loops(call):
    context.enable_run_metadata()
    context.export_run_metadata()  # of what ran before
    call()
    metadata = context.export_run_metadata()
    context.disable_run_metadata()
    graphs = [graph for run in metadata.function_graphs for graph in run.partition_graphs]
    nodes = [node for graph in graphs for node in graph.node if node.op.startswith("TfTi>")]
    return sorted(node.device[-5:] for node in nodes)

def flat(values):
    return [np.asarray(tf.convert_to_tensor(value)).tolist() for value in tf.nest.flatten(values)]

x = tf.constant([0.5, -0.25, 2.0])
places, gradients, of_loops = {}, {}, {}
for way, run in WAYS.items():
    for case, build in GRADIENTS.items():
        gradients[f"{case}, {way}"] = flat(tf.function(build(run))(x))
    if way == "tf.while_loop":
        continue
    for case, build in PLACES.items():
        places[f"{case}, {way}, graph"] = flat(tf.function(lambda x: build(run, x))(x))
    for case in ("around", "inside"):
        places[f"{case}, {way}, eager"] = flat(PLACES[case](run, x))
    call = GRADIENTS["around"](run)
    of_loops[f"{way}, eager"] = devices_of_loops(lambda: call(x))
    of_loops[f"{way}, graph"] = devices_of_loops(lambda: tf.function(call)(x))
kept = tf.function(lambda c, v: (c + here(), None))
of_kept = [on(k, tf_ti.scan, kept, 0.0, x)[0].numpy().tolist() for k in (1, 2)]
print(json.dumps([places, gradients, of_loops, of_kept]))
"""
each_way = pytest.mark.parametrize("way", ["scan", "tensor_iterator", "Loop"])


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The loops' devices, their gradients, and their operations' devices.

    And the results of a loop whose trace is kept, on two devices.
    """
    path = tmp_path_factory.mktemp("devices") / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    finished = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=HANGS)
    assert finished.returncode == 0, finished.stderr[-6000:]
    return json.loads(finished.stdout.splitlines()[-1])


@each_way
@pytest.mark.parametrize(
    "place",
    [
        "around, {}, eager",
        "around, {}, graph",
        "inside, {}, eager",
        "inside, {}, graph",
        "inside a call, {}, graph",
        "inside a conditional, {}, graph",
        "inside a nested loop, {}, graph",
        "around a nested loop, {}, graph",
    ],
)
def test_the_body_runs_on_the_device_that_is_asked_for(results, place, way):
    assert results[0][place.format(way)] == [pytest.approx(3 * 1)]


@each_way
def test_a_body_runs_on_several_devices(results, way):
    assert results[0][f"around and inside, {way}, graph"] == [3 * (1 + 100 * 2)]


@each_way
def test_the_body_reads_a_variable_of_another_device(results, way):
    case = f"around one that reads a variable of another, {way}, graph"
    assert results[0][case] == [3 * (1 * 5)]


@each_way
@pytest.mark.parametrize("case", ["around", "inside", "nested"])
def test_gradients_of_a_body_on_several_devices_are_those_of_tf_while_loop(results, case, way):
    expected = results[1][f"{case}, tf.while_loop"]
    for got, want in zip(results[1][f"{case}, {way}"], expected, strict=True):
        assert got == pytest.approx(want, rel=1e-5)


@each_way
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_the_gradient_is_computed_on_the_device_of_the_loop(results, way, mode):
    assert results[2][f"{way}, {mode}"] == ["CPU:1", "CPU:1"]


def test_a_loop_that_was_traced_for_one_device_runs_on_another(results):
    assert results[3] == [3 * 1, 3 * 2]
