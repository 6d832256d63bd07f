"""TensorFlow's profiler shows the loop, its iterations, and the body's kernels."""

import dataclasses

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import tf_ti

COUNT = 5
X = tf.random.stateless_normal([COUNT, 8], [1, 2])
W = tf.random.stateless_normal([8, 8], [3, 4])
QUEUE = tf.queue.FIFOQueue(1, tf.float32, [[8]])


def step(c, x):
    # No program has it, and TensorFlow's graph optimiser fuses it with no other.
    return tf.nn.softmax(tf.math.lgamma(tf.matmul(c, W), name="probe")) * x


def with_while_loop(x):
    c = tf.ones([1, 8])
    return tf.while_loop(lambda k, c: k < COUNT, lambda k, c: (k + 1, step(c, x[k])), (0, c))[1]


def with_scan(x, f=step):
    return tf_ti.scan(lambda c, x: (f(c, x), None), tf.ones([1, 8]), x)[0]


def with_nested_scan(x):
    return with_scan(x[:1], lambda c, _: tf_ti.scan(lambda c, x: (step(c, x), None), c, x)[0])


def with_waiting_scan(x):
    def f(c, x):
        QUEUE.enqueue(x)
        return step(c, QUEUE.dequeue())

    return with_scan(x, f)


def with_loop(x):
    with tf_ti.Loop() as loop:
        k, c = loop.add_recurrence(0), loop.add_recurrence(tf.ones([1, 8]))
        loop.add_trip_limit(tf.not_equal(k, COUNT), tf_ti.TripLimit.WHILE)
        k.next, c.next = k + 1, step(tf.identity(c), loop.add_iterator(x))
        out = loop.add_loop_output(c, tf_ti.LoopOutput.LAST_VALUE)
    return out.tensor


@dataclasses.dataclass(frozen=True)
class Event:
    name: str
    iteration: int | None
    start: int
    end: int

    def contains(self, other):
        return self.start <= other.start and other.end <= self.end


@pytest.fixture
def events(tmp_path_factory):
    """Calls a function three times, the last with the profiler; the events on the host's threads.

    The function is a tf.function: it is traced, and its kernels made, by the first call; programs
    of a short loop by the second.
    """

    def profile(function):
        function = tf.function(function)
        function(X)
        function(X)
        logs = tmp_path_factory.mktemp("profile")
        with tf.profiler.experimental.Profile(str(logs)):
            function(X)
        (path,) = logs.rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
        (host,) = (plane for plane in space.planes if plane.name == "/host:CPU")
        found = []
        for line in host.lines:
            for event in line.events:
                stats = {host.stat_metadata[s.metadata_id].name: s.int64_value for s in event.stats}
                start = 1000 * line.timestamp_ns + event.offset_ps
                found.append(
                    Event(
                        host.event_metadata[event.metadata_id].name,
                        stats.get("iter_num"),
                        start,
                        start + event.duration_ps,
                    )
                )
        return sorted(found, key=lambda event: event.start)

    return profile


def named(events, prefix):
    return [event for event in events if event.name.split("/")[-1].startswith(prefix)]


@pytest.mark.needs_cpu_kernels
@pytest.mark.parametrize(
    "way", [with_while_loop, with_scan, with_nested_scan, with_waiting_scan, with_loop]
)
def test_a_kernel_of_the_body_appears_once_for_each_iteration(events, way):
    assert len(named(events(way), "probe:")) == COUNT


@pytest.mark.needs_cpu_kernels
def test_kernels_lie_in_their_iterations_and_these_in_the_loop(events):
    found = events(with_scan)
    (loop,) = named(found, "scan:")
    iterations = named(found, "TfTi>TensorIterator iteration")
    assert [iteration.iteration for iteration in iterations] == list(range(COUNT))
    for iteration, kernel in zip(iterations, named(found, "probe:"), strict=True):
        assert loop.contains(iteration) and iteration.contains(kernel)


@pytest.mark.needs_programs
def test_programs_lie_in_their_iterations(events):
    """Here one before the probe, and one after it."""
    found = events(with_scan)
    iterations = named(found, "TfTi>TensorIterator iteration")
    assert len(programs(found)) == 2 * COUNT
    for k, iteration in enumerate(iterations):
        before, after = programs(found)[2 * k : 2 * k + 2]
        assert iteration.contains(before) and iteration.contains(after)
        assert before.name.startswith("program: MatMul") and after.name.endswith("(2 ops)")


@pytest.mark.needs_programs
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16], ids=lambda d: d.name)
def test_a_loop_of_one_program_has_no_iterations(events, dtype):
    def whole(x, fuse=True):
        def f(h, x):
            y = tf.linalg.matvec(W, tf.cast(h, tf.float32))
            h = tf.tanh(h * 0.5 + x) + tf.cast(y, dtype) * 0.01
            return h, h + x

        x = tf.cast(tf.tile(x, [4, 1]), dtype)
        return tf_ti.scan(f, x[0], x, fuse=fuse)

    def names(function):
        return [event.name for event in named(events(function), "TfTi>TensorIterator iteration")]

    assert names(whole) == ["TfTi>TensorIterator iterations"]
    assert names(lambda x: whole(x, fuse=False)) == ["TfTi>TensorIterator iteration"] * 4 * COUNT


@pytest.mark.needs_programs
@pytest.mark.parametrize("has_programs", [True, False])
def test_operations_of_programs_have_no_kernels(events, monkeypatch, has_programs):
    def f(c, _):
        c = tf.einsum("ab,cb->ac", c, W) + tf.math.erf(c) * tf.nn.softplus(c)
        c = tf.cumsum(c, 1) - tf.one_hot(tf.argmax(c, 1), 8)
        return tf.gather(c, [1, 0, 3, 2, 5, 4, 7, 6], axis=1) % 2.0 + tf.sin(c), None

    if not has_programs:
        monkeypatch.setenv("TF_TI_PROGRAM", "0")
    found = events(lambda x: tf_ti.scan(f, tf.ones([1, 8]), x)[0])
    operations = {"Einsum", "Erf", "Softplus", "Cumsum", "OneHot", "GatherV2", "FloorMod", "Sin"}
    kernels = operations & {event.name.split(":")[-1] for event in found}
    assert kernels == (set() if has_programs else operations)


@pytest.mark.needs_cpu_kernels
@pytest.mark.parametrize("extent, is_large", [(4, False), (64, True)])
def test_large_kernels_are_those_of_tensorflows_loops(events, extent, is_large):
    """OneDNN's, where TensorFlow takes these; for small ones it takes longer than others do."""
    images = tf.random.stateless_normal([1, extent, extent, 8], [1, 2])
    filters = tf.random.stateless_normal([3, 3, 8, 8], [3, 4])

    def kernels(while_loop):
        def body(k, c):
            c = tf.nn.conv2d(c, filters, 1, "SAME")
            return k + 1, tf.nn.avg_pool2d(c, 3, 1, "SAME")

        found = events(lambda _: while_loop(lambda k, _: k < COUNT, body, (0, images))[1])
        names = [event.name.split(":")[-1] for event in found]
        return sorted(name for name in names if name.endswith(("Conv2D", "AvgPool")))

    theirs = kernels(tf.while_loop)
    assert len(theirs) == 2 * COUNT
    expected = theirs if is_large else ["AvgPool"] * COUNT + ["Conv2D"] * COUNT
    assert kernels(tf_ti.while_loop) == expected


def programs(events):
    return [event for event in events if event.name.startswith("program: ")]


def fused(fuse):
    return lambda x: tf_ti.scan(lambda c, x: (step(c, x), None), tf.ones([1, 8]), x, fuse=fuse)[0]


def slope(call):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
        return tape.gradient(y, x)

    return gradient


@pytest.mark.needs_programs
@pytest.mark.parametrize("around", [lambda call: call, slope])
def test_kernels_run_all_of_a_loop_without_fuse(events, around):
    assert programs(events(around(fused(True))))
    found = events(around(fused(False)))
    assert not programs(found) and named(found, "MatMul")


@pytest.mark.needs_programs
def test_of_two_loops_with_one_body_each_has_its_own_fuse(events):
    # TensorFlow forgets its body with it.
    function = tf.function(fused(True)).get_concrete_function(X)
    graph_def = function.graph.as_graph_def()
    (loop,) = (node for node in graph_def.node if node.op.startswith("TfTi>"))
    (argument,) = (node.name for node in graph_def.node if node.op == "Placeholder")
    other = graph_def.node.add()
    other.CopyFrom(loop)
    other.name, other.attr["fuse"].b = "kernels", False

    def both(x):
        names = [f"{loop.name}:0", "kernels:0"]
        return tf.graph_util.import_graph_def(graph_def, {argument: x}, names)

    found = events(both)
    (loop,) = named(found, "scan:")
    (other,) = named(found, "kernels:")
    assert all(loop.contains(event) for event in programs(found))
    assert any(other.contains(event) for event in named(found, "MatMul"))
    assert len(programs(found)) == 2 * COUNT


def test_iterations_of_a_body_that_may_wait_appear(events):
    iterations = named(events(with_waiting_scan), "TfTi>TensorIterator iteration")
    assert [iteration.iteration for iteration in iterations] == list(range(COUNT))


def test_a_condition_appears_once_more_than_the_iterations(events):
    found = events(with_loop)
    conditions = named(found, "TfTi>TensorIterator condition")
    assert [condition.iteration for condition in conditions] == list(range(COUNT + 1))
    assert len(named(found, "TfTi>TensorIterator iteration")) == COUNT


@pytest.mark.needs_native_sequences
def test_a_loop_that_became_a_sequence_has_the_name_of_both(events):
    def run(x):
        def cell(h, x):
            return tf.tanh(x[None] @ W + h @ W), None

        return tf_ti.scan(cell, tf.ones([1, 8]), x, name="mine")[0]

    found = events(run)
    assert [e.name for e in found if "mine" in e.name and "RecurrentSequence" in e.name]
    assert not named(found, "TfTi>TensorIterator iteration")
