"""Updates of variables that tf.distribute has copies of.

Devices must be asked for before TensorFlow starts, so processes of their own make the updates.
"""

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from patience import HANGS
from updates_definition import Definition

START = """
import json
import os
import sys
import tempfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tf_ti

SUM, MEAN, FIRST = (
    tf.VariableAggregation[name] for name in ("SUM", "MEAN", "ONLY_FIRST_REPLICA"))

def mirrored():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

def created(strategy, shape=(4, 2), dtype=tf.float32, aggregation=SUM, **options):
    with strategy.scope():
        return tf.Variable(tf.ones(shape, dtype), aggregation=aggregation, **options)

def copies(variable):
    values = variable.distribute_strategy.experimental_local_results(variable)
    return [np.asarray(value) for value in values]

def alike(*variables):
    for variable in variables:
        one, other = copies(variable)
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))

def refused(kind, message, function, *arguments):
    try:
        function(*arguments)
    except kind as error:
        assert message in str(error), error
    else:
        raise AssertionError("it was not refused")
"""
PROGRAM = (
    START
    + """
def strategy_of(name):
    if name == "central storage":
        return tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"] if name == "two" else ["CPU:0"])

def update(rule, table, slots, slices):
    if rule == "descent":
        tf_ti.scatter_sub(table, slices, 0.5, 0.25)
    elif rule == "adagrad":
        tf_ti.adagrad_update(table, *slots, slices, tf.constant(0.5, slots[0].dtype))
    else:
        tf_ti.adam_update(table, *slots, slices, 0.5, step=3, weight_decay=0.125)

given, results = json.load(sys.stdin), {}
replicas = [(np.array(i), np.array(v)) for i, v in given["replicas"]]
for name, aggregation, where, rule, dtype in given["cases"]:
    strategy, dtype = strategy_of(name), tf.as_dtype(dtype)
    sums = tf.float32 if dtype.size == 2 else dtype
    shapes = {"descent": [], "adagrad": [(4, 1)], "adam": [(4, 2), (4, 2)]}[rule]
    options = {"aggregation": tf.VariableAggregation[aggregation]}
    table = created(strategy, (4, 2), dtype, **options)
    slots = [created(strategy, shape, sums, **options) for shape in shapes]

    def step(number=0):
        indices, values = replicas[int(number)]
        slices = tf.IndexedSlices(tf.constant(values, dtype), tf.constant(indices))
        update(rule, table, slots, slices)

    def in_replicas():
        @tf.autograph.experimental.do_not_convert
        def replica():
            context = tf.distribute.get_replica_context()
            step(tf.get_static_value(context.replica_id_in_sync_group))
        strategy.run(replica)

    if where == "replicas":
        in_replicas()
    elif where == "replicas, graph":
        tf.function(in_replicas, autograph=False)()
    elif where == "cross-replica":
        with strategy.scope():
            step()
    elif where == "cross-replica, graph":
        with strategy.scope():
            tf.function(step)()
    elif where == "outside":
        step()
    else:
        tf.function(step)()
    key = json.dumps([name, aggregation, where, rule, dtype.name])
    results[key] = [[c.astype(np.float64).tolist() for c in copies(v)] for v in [table, *slots]]
print(json.dumps(results))
"""
)
REPLICAS = [
    ([3, 0, 3], [[1.0, 2.0], [-1.5, 0.5], [0.25, 4.0]]),
    ([1, 3], [[2.0, -1.0], [0.5, 0.5]]),
]
WHERE = [
    f"{place}{how}"
    for place, how in itertools.product(["replicas", "cross-replica", "outside"], ["", ", graph"])
]
AGGREGATIONS = ["SUM", "MEAN", "ONLY_FIRST_REPLICA"]
RULES = ["descent", "adagrad", "adam"]
CASES = [
    *itertools.product(["two"], AGGREGATIONS, WHERE, RULES, ["float32"]),
    *itertools.product(["central storage"], AGGREGATIONS, WHERE, ["adam"], ["float32"]),
    *itertools.product(["one"], ["NONE", "MEAN"], WHERE[:4], ["adagrad"], ["float32"]),
    *itertools.product(["two"], ["NONE"], WHERE[2:], ["descent"], ["float32"]),
    *itertools.product(["two"], ["SUM"], WHERE[:2], RULES, ["float64", "float16", "bfloat16"]),
]
NUMBERS = {
    "descent": {"scale": 0.5, "weight_decay": 0.25},
    "adagrad": {"learning_rate": 0.5, "epsilon": 1e-7, "epsilon_inside_sqrt": True},
    "adam": {
        "learning_rate": 0.5,
        "step": 3,
        "beta_1": 0.9,
        "beta_2": 0.999,
        "epsilon": 1e-7,
        "epsilon_hat": True,
        "weight_decay": 0.125,
    },
}


def run(program, given):
    """Runs a program in a process of its own: it reads JSON, and prints JSON."""
    finished = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    return json.loads(finished.stdout)


@pytest.fixture(scope="module")
def results():
    return run(PROGRAM, {"replicas": REPLICAS, "cases": CASES})


def aggregated(name, aggregation, where):
    if name == "one" or aggregation == "ONLY_FIRST_REPLICA" or not where.startswith("replicas"):
        return REPLICAS[0]
    indices, values = (sum(parts, []) for parts in zip(*REPLICAS))
    return indices, np.array(values) / (2 if aggregation == "MEAN" else 1)


@pytest.mark.parametrize(("name", "aggregation", "where", "rule", "dtype"), CASES)
def test_every_copy_gets_the_update_of_the_aggregated_slices(
    results, name, aggregation, where, rule, dtype
):
    shapes = {"descent": [], "adagrad": [(4, 1)], "adam": [(4, 2)] * 2}[rule]
    expected = Definition(np.ones([4, 2]), *(np.ones(shape) for shape in shapes))
    expected.step(rule, *aggregated(name, aggregation, where), **NUMBERS[rule])
    found = results[json.dumps([name, aggregation, where, rule, dtype])]
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3}.get(dtype, 1e-6)
    for copies, right in zip(found, [expected.table, *expected.slots], strict=True):
        assert len(copies) == (2 if name == "two" else 1)
        for copy in copies:
            assert copy == copies[0]
            np.testing.assert_allclose(copy, right, rtol=tolerance, atol=tolerance)


# Each is a program that ends without an error where what its name says holds.
PROGRAMS = {
    "what variable scatter sub gives": """
strategy = mirrored()
for aggregation in (SUM, MEAN, FIRST):
    for dtype in (tf.float32, tf.int64, tf.float16) if aggregation != MEAN else (tf.float32,):
        mine, theirs = (created(strategy, dtype=dtype, aggregation=aggregation) for _ in "ab")

        def step():
            row = tf.distribute.get_replica_context().replica_id_in_sync_group
            slices = tf.IndexedSlices(
                tf.constant([[3, 5], [2, 2]], dtype), tf.stack([row, 3]), [4, 2])
            tf_ti.scatter_sub(mine, slices)
            theirs.scatter_sub(slices)

        strategy.run(step)
        tf.function(lambda: strategy.run(step))()
        step()
        tf.function(step)()
        alike(mine)
        np.testing.assert_array_equal(copies(mine), copies(theirs))
""",
    "the gradient of a lookup in each replica": """
# Which one operation could compute together with the update, of one copy alone.
strategy = mirrored()
ids = np.array([[0, 2, 2], [1, 2, 0]])
for dtype in (tf.float32, tf.float16):
    for several in (False, True):
        table, m, v = (created(strategy, dtype=d) for d in (dtype, tf.float32, tf.float32))
        one = [tf.Variable(tf.ones([4, 2], d)) for d in (dtype, tf.float32, tf.float32)]

        def gradient(table, ids):
            with tf.GradientTape() as tape:
                if several:
                    rows = tf_ti.embedding_bags([table, table], [ids, ids[:, :1]])
                    loss = tf.reduce_sum(rows[0] ** 2) + tf.reduce_sum(rows[1])
                else:
                    loss = tf.reduce_sum(tf_ti.embedding_bag(table, ids) ** 2)
            return tape.gradient(loss, table)

        @tf.function
        def train():
            def step():
                number = tf.distribute.get_replica_context().replica_id_in_sync_group
                slices = gradient(table, tf.gather(ids, [number]))
                tf_ti.adam_update(table, m, v, slices, 0.1, 1)
            strategy.run(step)

        train()
        alike(table, m, v)
        tf_ti.adam_update(*one, gradient(one[0], ids), 0.1, 1)
        for mine, theirs in zip((table, m, v), one):
            np.testing.assert_allclose(copies(mine)[1], theirs, rtol=2e-3)
""",
    "the gradient of a lookup outside of the replicas": """
ids = np.random.default_rng(0).integers(0, 4, [50, 9])
weights = np.random.default_rng(1).normal(size=[50, 9])
for dtype in (tf.float32, tf.float16):
    for in_scope in (False, True):
        strategy = mirrored()
        table, slot = (created(strategy, dtype=d) for d in (dtype, tf.float32))

        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf_ti.embedding_bag(table.values[0], ids, weights) ** 2)
            slices = tape.gradient(loss, table.values[0])
            tf_ti.adagrad_update(table, slot, slices, 0.1)
            tf_ti.scatter_sub(table, slices, 1e-3)

        if in_scope:
            with strategy.scope():
                tf.function(step)()
        else:
            tf.function(step)()
        alike(table, slot)
        assert np.all(copies(table)[0] != 1)
""",
    "one replica still computes gradient and update in one": """
from tensorflow.python.eager import context

strategy = tf.distribute.MirroredStrategy(["CPU:0"])
table = created(strategy, aggregation=SUM)

@tf.function
def train(ids):
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf_ti.embedding_bag(table, ids))
        tf_ti.scatter_sub(table, tape.gradient(loss, table), 0.5)
    strategy.run(step, (ids,))

ids = tf.constant([[0, 1, 1]])
context.enable_run_metadata()
train(ids)
graphs = [g for run in context.export_run_metadata().function_graphs for g in run.partition_graphs]
names = {node.op for graph in graphs for node in graph.node if node.op.startswith("TfTi>")}
assert "TfTi>EmbeddingBagScatterSub" in names and len(names) == 2, names
assert copies(table)[0][:, 0].tolist() == [0.5, 0.0, 1.0, 1.0]
""",
    "copies that are made one when they are read are each replicas own": """
strategy = mirrored()
on_read = {"synchronization": tf.VariableSynchronization.ON_READ, "trainable": True}
for aggregation in (SUM, MEAN, FIRST, tf.VariableAggregation.NONE):
    table, slot = (created(strategy, aggregation=aggregation, **on_read) for _ in "ab")

    def step():
        is_replica = tf.distribute.has_strategy()
        context = tf.distribute.get_replica_context()
        number = context.replica_id_in_sync_group if is_replica else 3
        slices = tf.IndexedSlices(tf.ones([1, 2]), tf.reshape(number, [1]))
        tf_ti.scatter_sub(table, slices, 0.5)
        tf_ti.adagrad_update(table, slot, slices, 0.5)

    strategy.run(step)
    tf.function(lambda: strategy.run(step))()
    moved = [np.nonzero(copy[:, 0] != 1)[0].tolist() for copy in copies(table)]
    assert moved == [[0], [1]], moved
    assert [copy[:, 0].tolist() for copy in copies(slot)] == [[3, 1, 1, 1], [1, 3, 1, 1]]
    if aggregation == SUM:
        refused(ValueError, "variable is the sum of its copies", step)
    else:
        step()
        assert [copy[3, 0] == copies(table)[0][3, 0] != 1 for copy in copies(table)] == [True] * 2
""",
    "numbers are the same in all replicas or refused": """
strategy = mirrored()
table, m, v = (created(strategy, aggregation=SUM) for _ in "abc")
slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]))
rate = created(strategy, [], aggregation=FIRST)

def number():
    return tf.distribute.get_replica_context().replica_id_in_sync_group

strategy.run(lambda: tf_ti.scatter_sub(table, slices, rate + 1.0, weight_decay=rate - 1.0))
tf.function(lambda: strategy.run(lambda: tf_ti.scatter_sub(table, slices, rate)))()
alike(table)
assert copies(table)[0][:, 0].tolist() == [1, 1 - 2 * 2 - 2, 1, 1]

before = copies(table)[0]
wrong = (
    lambda: tf_ti.scatter_sub(table, slices, tf.cast(number(), tf.float32)),
    lambda: tf_ti.adam_update(table, m, v, slices, 0.1, number() + 1),
    lambda: tf_ti.adagrad_update(table, m, slices, 0.1, epsilon=tf.cast(number(), tf.float64)),
)
for step in wrong:
    message = "numbers must be the same in all replicas"
    refused(tf.errors.InvalidArgumentError, message, strategy.run, step)
    refused(tf.errors.InvalidArgumentError, message, tf.function(lambda: strategy.run(step)))
    np.testing.assert_array_equal(copies(table), [before] * 2)

# Where only the first replica counts, its numbers do.
table = created(strategy, aggregation=FIRST)
strategy.run(lambda: tf_ti.scatter_sub(table, slices, 2.0 + tf.cast(number(), tf.float32)))
alike(table)
assert copies(table)[0][:, 0].tolist() == [1, -1, 1, 1]
""",
    "what would part the copies is refused": """
strategy, other = mirrored(), mirrored()
NONE, ON_READ = tf.VariableAggregation.NONE, tf.VariableSynchronization.ON_READ
slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]))
table, alone, slot = created(strategy), tf.Variable(tf.ones([4, 2])), created(strategy)
unaggregated, another = created(strategy, aggregation=NONE), created(strategy)
message = "variable has no aggregation, by which the gradients of the replicas become one: create"
for step in (
    lambda: tf_ti.scatter_sub(unaggregated, slices),
    lambda: tf_ti.adagrad_update(unaggregated, slot, slices, 0.1),
    lambda: tf_ti.adam_update(unaggregated, slot, another, slices, 0.1, 1),
):
    refused(ValueError, message, strategy.run, step)
    refused(ValueError, message, tf.function(lambda: strategy.run(step)))

elsewhere = {
    "a variable of no strategy": alone,
    "one of another strategy": created(other),
    "each replica's own": created(strategy, synchronization=ON_READ),
}
for wrong in elsewhere.values():
    for where in (lambda f: f(), strategy.run, lambda f: tf.function(lambda: strategy.run(f))()):
        message = "must be placed like the variable, a MirroredVariable of a MirroredStrategy of"
        refused(ValueError, f"accumulator {message}", where,
                lambda: tf_ti.adagrad_update(table, wrong, slices, 0.1))
        refused(ValueError, f"m {message}", where,
                lambda: tf_ti.adam_update(table, wrong, slot, slices, 0.1, 1))
        refused(ValueError, f"v {message}", where,
                lambda: tf_ti.adam_update(table, slot, wrong, slices, 0.1, 1))
refused(ValueError, "m must be placed like the variable, one variable on", tf_ti.adam_update,
        alone, slot, tf.Variable(tf.ones([4, 2])), slices, 0.1, 1)
for where in (lambda f: f(), strategy.run):
    refused(ValueError, "m and v are the same variable", where,
            lambda: tf_ti.adam_update(table, slot, slot, slices, 0.1, 1))
    refused(ValueError, "variable and accumulator are the same variable", where,
            lambda: tf_ti.adagrad_update(table, table, slices, 0.1))
    refused(ValueError, "variable and accumulator are the same variable",
            lambda: strategy.extended.update(
                table, lambda copy: tf_ti.adagrad_update(copy, table, slices, 0.1)))
refused(ValueError, "of another tf.distribute.Strategy", other.run,
        lambda: tf_ti.scatter_sub(table, slices))

outside = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 4]))
for where in (lambda f: f(), strategy.run, lambda f: tf.function(lambda: strategy.run(f))()):
    refused(tf.errors.InvalidArgumentError, "4", where,
            lambda: tf_ti.adagrad_update(table, slot, outside, 0.1))
np.testing.assert_array_equal(alone, np.ones([4, 2]))
for variable in (table, slot, unaggregated, another, *elsewhere.values()):
    if variable is not alone:
        np.testing.assert_array_equal(copies(variable), np.ones([2, 4, 2]))
""",
    "in an update of the strategy each copy has its slot": """
strategy = mirrored()
table, slot = created(strategy), created(strategy)
slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]))

def update(copy, slices):
    tf_ti.adagrad_update(copy, slot, slices, 0.5)
    tf_ti.adagrad_update(table, slot, slices, 0.5)

strategy.extended.update(table, update, args=(slices,))
with strategy.scope():
    tf.function(lambda: strategy.extended.update(table, update, args=(slices,)))()
alike(table, slot)
assert copies(slot)[0][:, 0].tolist() == [1, 5, 1, 1]

# Outside of one, the copy alone.
tf_ti.adagrad_update(table.values[1], slot.values[1], slices, 0.5)
assert [copy[1, 0] for copy in copies(slot)] == [5, 6]
""",
    "a saved update is that of one variable": """
class Model(tf.Module):
    def __init__(self):
        self.table, self.slot = created(mirrored()), created(mirrored())

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def train(self, rows):
        slices = tf.IndexedSlices(tf.ones([tf.size(rows), 2]), rows)
        tf_ti.adagrad_update(self.table, self.slot, slices, 1.0, epsilon=0.0)

strategy = mirrored()
mirrored = lambda: strategy
with tempfile.TemporaryDirectory() as directory:
    tf.saved_model.save(Model(), directory)
    loaded = tf.saved_model.load(directory)
loaded.train(tf.constant([1, 1], tf.int64))
np.testing.assert_allclose(loaded.slot[:, 0], [1, 5, 1, 1])
np.testing.assert_allclose(loaded.table[:, 0], [1, 1 - 2 / 5**0.5, 1, 1], rtol=1e-6)
""",
}
RUN = """
import traceback

programs = json.load(sys.stdin)
failures = []
for program in programs:
    try:
        exec(program, dict(globals()))
        failures.append("")
    except BaseException:
        failures.append(traceback.format_exc())
print(json.dumps(failures))
"""


@pytest.fixture(scope="module")
def failures():
    found = run(START + RUN, list(PROGRAMS.values()))
    return dict(zip(PROGRAMS, found, strict=True))


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_holds_that(failures, name):
    assert not failures[name], failures[name]


READ = (
    START
    + """
import contextlib

strategy, start = mirrored(), tf.reshape(tf.range(12.0), [4, 3])
ids = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)

def filled(how):
    options = {} if how is None else {
        "synchronization": tf.VariableSynchronization.ON_READ,
        "aggregation": tf.VariableAggregation[how],
    }
    with strategy.scope():
        table = tf.Variable(start, **options)
    if how is not None:
        def fill():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            table.assign(start * tf.cast(number + 1, tf.float32))
        strategy.run(fill)
    return table

for how, factor in (("SUM", 3.0), ("MEAN", 1.5), (None, 1.0)):
    table, (_, first, second, third) = filled(how), factor * start.numpy()

    def call():
        return tf_ti.embedding_bag(table, ids), tf.nn.embedding_lookup_sparse(table, ids, None)

    for context in (contextlib.nullcontext, strategy.scope):
        with context(), tf_ti.accelerate(lookups=True):
            for rows, looked_up in (call(), tf.function(call)()):
                np.testing.assert_allclose(rows, [first + second, third])
                np.testing.assert_allclose(looked_up, [(first + second) / 2, third])

@tf.function
def loop():
    return strategy.run(lambda: tf.foldl(tf.add, tf.range(5)))

with tf_ti.accelerate():
    loop()
assert "runs as one program" in str(tf_ti.accelerate.report())
assert "threading.py" not in str(tf_ti.accelerate.report())
"""
)


def test_tables_that_replicas_add_up_when_they_are_read():
    result = subprocess.run(
        [sys.executable, "-c", READ], capture_output=True, text=True, timeout=HANGS
    )
    assert result.returncode == 0, result.stderr
