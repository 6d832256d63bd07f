"""Loops whose bodies use resources of several devices, beside tf.scan.

Devices must be asked for before TensorFlow starts, so one process of its own runs all the loops.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
from patience import HANGS

PROGRAM = """
import json
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

import tf_ti

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 3)
ROWS = np.arange(12.0, dtype=np.float32).reshape(6, 2)

def on(k, f, *arguments):
    with tf.device(f"CPU:{k}"):
        return f(*arguments)

class Variables(tf.Module):
    def __init__(self, first, second):
        self.first = on(first, tf.Variable, ROWS)
        self.second = on(second, tf.Variable, 0.1 * ROWS + 1.0)
        self.count = on(second, tf.Variable, 0)

def reads(v, c, i):
    return tf.sin(c * v.first[1, 1]) + v.second[0, 1] + tf.cast(v.count, tf.float32)

def writes(v, c, i):
    v.first.assign_add(tf.ones([6, 2]))
    v.second.assign(v.first * 0.5)
    v.count.assign_add(1)
    return c + v.second[0, 1] * tf.cast(v.count, tf.float32)

def looks_up(v, c, i):
    return tf.sin(c + tf.gather(v.first, i)[0] * tf.gather(v.second, i)[1])

def looks_up_bags(v, c, i):
    one = tf_ti.embedding_bag(v.first, [[i, 0]])
    return tf.sin(c + tf.reduce_sum(one * tf_ti.embedding_bag(v.second, [[i, 1]])))

def reads_in_branches(v, c, i):
    return tf.cond(
        i % 2 < 1, lambda: tf.sin(c * v.first[1, 0]), lambda: c * tf.gather(v.second, i)[1])

def updates_rows(v, c, i):
    row = tf.IndexedSlices(tf.ones([1, 2]), tf.reshape(i, [1]), [6, 2])
    tf_ti.scatter_sub(v.first, row, 0.5)
    tf_ti.scatter_sub(v.second, row, 0.25)
    return looks_up(v, c, i)

def nests(v, c, i):
    inner = lambda d, j: (tf.sin(d + tf.gather(v.first, j)[0]) * tf.gather(v.second, i)[1], None)
    return tf_ti.scan(inner, c, tf.range(3))[0]

BODIES = [reads, writes, looks_up, looks_up_bags, reads_in_branches, updates_rows, nests]

def tf_scan(body, c):
    return tf.scan(body, tf.range(6), c)[-1]

def scan(body, c, **options):
    return tf_ti.scan(lambda c, i: (body(c, i), None), c, tf.range(6), **options)[0]

def scan_with_checkpoints(body, c):
    return scan(body, c, checkpoint_every=2)

def while_loop(body, c):
    return tf_ti.while_loop(lambda i, c: i < 6, lambda i, c: (i + 1, body(c, i)), (0, c))[1]

def loop(body, c):
    with tf_ti.Loop() as made:
        made.add_trip_limit(6, tf_ti.TripLimit.COUNT)
        i, state = made.add_iterator(tf.range(6)), made.add_recurrence(c)
        state.next = body(tf.identity(state), tf.identity(i))
        out = made.add_loop_output(state, tf_ti.LoopOutput.LAST_VALUE)
    return out.tensor

def value(way, body, v):
    return [way(lambda c, i: body(v, c, i), tf.constant(0.3))]

def gradient(way, body, v):
    c = tf.constant(0.3)
    with tf.GradientTape() as tape:
        tape.watch(c)
        y = way(lambda c, i: body(v, c, i), c)
    gradients = tape.gradient(y, [c, v.first, v.second], unconnected_gradients="zero")
    return [y, *map(tf.convert_to_tensor, gradients)]

def compute(what, way, body, mode, v):
    f = lambda: what(way, body, v)
    if mode == "graph":
        f = tf.function(f)
    if mode == "saved":
        v.f = tf.function(f, input_signature=[])
        with tempfile.TemporaryDirectory() as folder:
            tf.saved_model.save(v, folder)
            v = tf.saved_model.load(folder)
        f = v.f
    results = f()
    return [each.numpy().tolist() for each in (*results, v.first, v.second, v.count)]

found, expected = {}, {}
for body in BODIES:
    kinds = [value] if body in (writes, updates_rows) else [value, gradient]
    for what in kinds:
        key = f"{body.__name__}, {what.__name__}"
        expected[key] = compute(what, tf_scan, body, "graph", Variables(0, 1))
        for way, mode, devices in (
            (scan, "eager", (0, 1)),
            (scan, "graph", (1, 0)),
            (scan, "graph", (1, 2)),
            (scan, "saved", (0, 1)),
            (scan_with_checkpoints, "graph", (0, 1)),
            (while_loop, "graph", (0, 1)),
            (loop, "eager", (1, 2)),
        ):
            case = f"{key}, {way.__name__}, {mode}, {devices}"
            found[case] = compute(what, way, body, mode, Variables(*devices))

class Given:
    def __init__(self, first, second):
        self.first, self.second = first, second
called = tf.function(lambda first, second: scan(
    lambda c, i: looks_up(Given(first, second), c, i), tf.constant(0.3)))
v = Variables(0, 1)
in_places = {
    "a conditional": lambda f: tf.cond(v.first[0, 1] > 0.0, f, lambda: 0.0),
    "a while loop": lambda f: tf.while_loop(
        lambda i, c: i < 1, lambda i, c: (i + 1, f()), (0, 0.0))[1],
    "a called function": lambda f: tf.function(f)(),
    "a thread of TensorFlow's": lambda f: tf.numpy_function(lambda: f().numpy(), [], tf.float32),
    "a dataset": lambda f: next(iter(tf.data.Dataset.range(1).map(lambda _: f()))),
    "another's body": lambda f: tf_ti.scan(lambda c, i: (f(), None), 0.0, tf.range(2))[0],
    "another's branch": lambda f: tf_ti.scan(
        lambda c, i: (tf.cond(i > 0, f, lambda: c), None), 0.0, tf.range(2))[0],
}
f = lambda: value(scan, looks_up, v)[0]
places = {place: float(tf.function(lambda: put(f))()) for place, put in in_places.items()}
for devices in ((0, 1), (2, 1), (2, 2)):
    variables = Variables(*devices)
    places[f"arguments of {devices}"] = float(called(variables.first, variables.second))

def devices_of_loops(call):
    context.enable_run_metadata()
    context.export_run_metadata()  # of what ran before
    call()
    metadata = context.export_run_metadata()
    context.disable_run_metadata()
    graphs = [graph for run in metadata.function_graphs for graph in run.partition_graphs]
    nodes = [node for graph in graphs for node in graph.node if node.op.startswith("TfTi>")]
    return sorted((node.op, node.device[-5:]) for node in nodes)

of_loops, explained = {}, {}
for devices in ((0, 1), (2, 2)):
    variables = Variables(*devices)
    call = tf.function(lambda: value(scan, looks_up, variables))
    of_loops[str(devices)] = devices_of_loops(call)
    around = tf.function(lambda: tf.cond(v.first[0, 1] > 0.0, lambda: call()[0], lambda: 0.0))
    explained[str(devices)] = [tf_ti.explain(f).loops[0].runs_as for f in (call, around)]

def counted():
    iterator = on(0, lambda: iter(tf.data.Dataset.range(100)))
    table = on(2, lambda: tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.range(6), tf.range(6)), -1))
    body = lambda c, i: c + tf.cast(next(iterator), tf.int32) + table.lookup(i) + v.count
    return int(tf.function(lambda: scan(body, tf.constant(0)))())

def compiled():
    try:
        tf.function(lambda: value(scan, looks_up, v), jit_compile=True)()
    except tf.errors.InvalidArgumentError as error:
        return str(error)

print(json.dumps([found, expected, places, of_loops, explained, counted(), compiled()]))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the program prints, by its names."""
    path = tmp_path_factory.mktemp("devices") / "program.py"
    path.write_text(PROGRAM)
    finished = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=HANGS)
    assert finished.returncode == 0, finished.stderr[-6000:]
    names = ("found", "expected", "places", "of_loops", "explained", "counted", "compiled")
    return dict(zip(names, json.loads(finished.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("what", ["value", "gradient"])
@pytest.mark.parametrize(
    "body", ["reads", "looks_up", "looks_up_bags", "reads_in_branches", "nests"]
)
def test_a_body_reads_variables_of_two_devices(results, body, what):
    _check_all(results, f"{body}, {what}")


@pytest.mark.parametrize("body", ["writes", "updates_rows"])
def test_a_body_writes_variables_of_two_devices(results, body):
    _check_all(results, f"{body}, value")


def _check_all(results, key):
    expected = results["expected"][key]
    cases = {case: found for case, found in results["found"].items() if case.startswith(key)}
    assert len(cases) == 7
    for case, found in cases.items():
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-5, err_msg=case)


def test_such_a_loop_is_where_any_operation_may_be(results):
    expected, *_ = results["expected"]["looks_up, value"]
    assert len(results["places"]) == 10
    assert results["places"] == {place: pytest.approx(expected) for place in results["places"]}


def test_a_loop_is_where_all_its_variables_are(results):
    assert results["of_loops"] == {
        "(0, 1)": [["TfTi>MultiDeviceTensorIterator", "CPU:0"]],
        "(2, 2)": [["TfTi>TensorIterator", "CPU:2"]],
    }


def test_explanations_name_the_devices_of_such_a_loop(results):
    found = results["explained"]
    expected = "TensorFlow's kernels, one by one: on CPU:0, CPU:1, where its variables are"
    assert found["(0, 1)"] == [expected] * 2
    assert not any("CPU" in text for text in found["(2, 2)"])


def test_a_body_uses_an_iterator_a_table_and_a_variable_of_three_devices(results):
    assert results["counted"] == 2 * sum(range(6))


def test_xla_says_which_variable_is_on_another_device(results):
    assert "located in device" in results["compiled"]
