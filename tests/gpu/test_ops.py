"""The ops on a GPU: the one at hand, or else one that is not there.

The latter is made of what lies in plugin/ and of CUDA's emulation in gpu_check/. It does what
it is told later, and its memory holds nonsense before and after: what comes too early or too late
is seen. As it would be the GPU of every other test too, it has a process of its own. So has the
one at hand where TensorFlow was built without CUDA: `make gpu-test`.
"""

import contextlib
import ctypes
import faulthandler
import functools
import os
import pathlib
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
from checks import as_exact, in_threads, nodes_that_run
from patience import HANGS, SANITIZED
from tensorflow.python.eager import context

import tf_ti
import tf_ti.keras
from tf_ti import _self_check
from tf_ti._library import ops
from tf_ti.bags.ops import Bags, Table, are_distinct
from tf_ti.recurrent import ops as recurrent_ops

_GPU_PLUGIN = os.environ.get("TF_TI_GPU_PLUGIN")
_IS_EMULATED = "emulation" in pathlib.Path(_GPU_PLUGIN or "").parts
_HAS_GPU = bool(tf.config.list_physical_devices("GPU"))
_PLUGIN = pathlib.Path(__file__).parent / "plugin"

needs_gpu_plugin = pytest.mark.skipif(not _GPU_PLUGIN, reason="only plugin/ can tell")


@pytest.mark.slow
@pytest.mark.skipif(_HAS_GPU, reason="there is a GPU")
@pytest.mark.skipif(SANITIZED, reason="not built for it")
def test_every_test_here_passes_on_a_gpu_that_is_not_there(request):
    seeds = ["--all-seeds"] if request.config.getoption("--all-seeds") else []
    finished = subprocess.run(
        [sys.executable, _PLUGIN / "run.py", "--emulate", "-q", *seeds],
        capture_output=True,
        text=True,
        timeout=5 * HANGS,
        check=False,
    )
    assert finished.returncode == 0, f"{finished.stdout[-20000:]}\n{finished.stderr[-4000:]}"
    # All but this one, and cases that others stand for.
    assert re.search(r" passed, 1 skipped(, \d+ (deselected|warnings?))* in", finished.stdout)


@pytest.fixture
def constant():
    return tf.constant(1.0)


@pytest.mark.needs_gpu
@pytest.mark.needs_programs
def test_a_test_of_what_there_is_on_a_cpu_alone_runs_there(constant, run_program):
    variable = tf.Variable(2.0)
    results = [constant, tf.constant(3.0), variable, tf.function(lambda: tf.tanh(variable))()]
    results += tf.nest.flatten(in_threads(lambda _: variable + 1.0, count=2, times=1))
    assert all("CPU:0" in result.device for result in results)
    program = "import tensorflow as tf; print(tf.config.list_physical_devices('GPU'))"
    assert run_program(program).stdout == "[]\n"


@pytest.fixture
def device():
    """The pluggable device's own functions."""
    return ctypes.CDLL(_GPU_PLUGIN)


@contextlib.contextmanager
def _held(device):
    """The device does nothing meanwhile: who waits for it fails, after a minute."""
    waits = threading.Event()

    def let_go():
        waits.set()
        faulthandler.dump_traceback()
        device.gpu_plugin_hold(0)

    timer = threading.Timer(60, let_go)
    device.gpu_plugin_hold(1)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        device.gpu_plugin_hold(0)
    assert not waits.is_set(), "something has waited for the device: see the threads' tracebacks"


@pytest.fixture
def closed_memory():
    """The host that touches the device's memory ends the process, as on a GPU that is there."""
    if not _GPU_PLUGIN:
        yield
        return
    device = ctypes.CDLL(_GPU_PLUGIN)
    device.gpu_plugin_block(1)  # memory is open while work is under way, for which calls now wait
    yield
    device.gpu_plugin_block(0)


@contextlib.contextmanager
def _failing(device, error, after=0):
    """CUDA's calls say this error meanwhile, but for the first ones."""
    device.gpu_plugin_fail(error, after)
    try:
        yield
    finally:
        device.gpu_plugin_fail(0, 0)


@contextlib.contextmanager
def _limited(device, size):
    """The device has no memory for more bytes at a time meanwhile."""
    device.gpu_plugin_limit(size)
    try:
        yield
    finally:
        device.gpu_plugin_limit(0)


@pytest.fixture(params=["eager", "graph"])
def run(request):
    """Runs a function of tensors on a device and returns NumPy arrays."""

    def run_on(where, function, *arrays):
        def call(*tensors):
            with tf.device(where):
                return function(*tensors)

        call = tf.autograph.experimental.do_not_convert(call)
        with tf.device(where):
            tensors = [tf.constant(array) for array in arrays]
            result = (tf.function(call) if request.param == "graph" else call)(*tensors)
        for tensor in tf.nest.flatten(result):
            assert where in tensor.device
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), result)

    return run_on


def _assert_same(run, function, *arrays, rtol=1e-5):
    """On the GPU and on the CPU, to which the other tests compare NumPy, torch and OpenVINO."""
    found = tf.nest.flatten(run("GPU:0", function, *arrays))
    expected = tf.nest.flatten(run("CPU:0", function, *arrays))
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


def _gradient(function):
    """The gradients of the sum of all that the function returns."""

    def gradient(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            results = tf.nest.flatten(function(*tensors))
            total = tf.add_n([tf.reduce_sum(result) for result in results])
        gradients = tape.gradient(total, tensors)
        return [
            (g.indices, g.values) if isinstance(g, tf.IndexedSlices) else g
            for g in gradients
            if g is not None
        ]

    return gradient


def _rnn(carry, x, w):
    return tf_ti.scan(lambda c, x: (tf.tanh(c * w + x), c * x), carry, x)


def _floats(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.pairwise
@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64])
def test_slices_and_stacks_along_any_axis_are_the_cpus(run, rng, axis, reverse, dtype):
    x = (10 * rng.normal(size=[3, 5, 16])).astype(dtype)
    carry = np.take(x, 0, axis)
    _assert_same(
        run,
        lambda c, x: tf_ti.scan(lambda c, x: (c + x, c), c, x, axis=axis, reverse=reverse),
        carry,
        x,
    )


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
@pytest.mark.parametrize("width", [1, 2, 3, 4, 16, 37])
def test_pieces_of_any_width_are_the_cpus(run, rng, width):
    port_map = tf_ti.PortMap(
        [tf_ti.InputPort(0, 0, axis=1, start=-1, end=0, stride=-2, part_size=2)],
        [
            tf_ti.OutputPort(0, 0, axis=1, start=-1, end=0, stride=-1),
            tf_ti.OutputPort(1, 0, axis=0),
            tf_ti.OutputPort(2, 0),
        ],
    )
    x = _floats(rng, 3, 8, width)
    _assert_same(run, lambda x: tf_ti.tensor_iterator(lambda p: p + p, [x], port_map), x)


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
def test_pieces_of_differing_extents_concatenate_as_on_the_cpu(run, rng):
    port_map = tf_ti.PortMap(
        [tf_ti.InputPort(0, 0), tf_ti.InputPort(1, 1, axis=0)],
        [tf_ti.OutputPort(0, 0, axis=0)],
    )
    _assert_same(
        run,
        lambda x, n: tf_ti.tensor_iterator(
            lambda x, n: (x[: n[0]], x), [x, n], port_map, [tf_ti.BackEdge(1, 0)]
        ),
        _floats(rng, 5, 3),
        np.int32([2, 0, 5, 1]),
    )


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
def test_int32_values_are_the_cpus(run, rng):
    _assert_same(
        run,
        lambda c, x, k: tf_ti.scan(
            lambda c, xs: (c + xs[1], (c, xs[1] - c, xs[0] + xs[0])), c, (x, k)
        ),
        np.int32(3),
        _floats(rng, 6, 3),
        np.int32([1, 2, 3, 4, 5, 6]),
    )


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
def test_values_that_go_from_the_host_to_the_gpu_in_the_body_are_the_cpus(run, rng):
    _assert_same(
        run,
        lambda c, x: tf_ti.scan(lambda c, x: (c + 1, x * tf.cast(c, tf.float32)), c, x),
        np.int32(3),
        _floats(rng, 6, 3),
    )


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
def test_a_body_of_which_parts_have_kernels_on_the_cpu_alone_runs_on_both(run, rng):
    def body(carry, x):
        text = tf.strings.join([tf.strings.as_string(carry), "."])
        return carry + 1, x * tf.cast(tf.strings.length(text), tf.float32)

    _assert_same(run, lambda c, x: tf_ti.scan(body, c, x), np.int32(8), _floats(rng, 4, 3))


@pytest.mark.needs_gpu
@pytest.mark.parametrize("fuse", [True, False])
def test_datasets_in_the_body_stay_on_the_cpu(run, fuse):
    def body(carry, x):
        def add(total, n):
            return total + tf.cast(n, tf.float32)

        return carry + x * tf.data.Dataset.range(4).reduce(0.0, add), carry

    body = tf.autograph.experimental.do_not_convert(body)
    _assert_same(
        run, lambda c, x: tf_ti.scan(body, c, x, fuse=fuse), np.float32(2), np.float32([1, 2, 3])
    )


@pytest.mark.needs_gpu
def test_what_asks_for_the_cpu_in_the_body_runs_there(run):
    def variable():
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="number")

    def here():
        return tf.raw_ops.ReadVariableOp(resource=variable(), dtype=tf.float32)

    def body(carry, _):
        with tf.device("CPU:0"):
            there = here()
        return carry + here() + there, None

    for where, value in (("GPU:0", 3.0), ("CPU:0", 5.0)):
        with tf.device(where):
            tf.raw_ops.AssignVariableOp(resource=variable(), value=value)
    assert run("GPU:0", lambda c: tf_ti.scan(body, c, length=4)[0], np.float32(0)) == 4 * (3 + 5)


@pytest.mark.needs_gpu
def test_a_body_uses_resources_of_the_gpu_and_of_the_host(run):
    with tf.device("GPU:0"):
        total, count = tf.Variable(1.0), tf.Variable(0)  # TensorFlow keeps an int32 on the host
    with tf.device("CPU:0"):
        scale, numbers = tf.Variable(2.0), iter(tf.data.Dataset.range(100))

    def branch(carry):
        return tf.cond(count > 2, lambda: carry * scale, lambda: carry + total)

    def body(carry, _):
        count.assign_add(1)
        total.assign(total + scale)
        return branch(carry) + tf.cast(next(numbers), tf.float32), None

    body = tf.autograph.experimental.do_not_convert(body)
    found = run("GPU:0", lambda c: tf_ti.scan(body, c, length=4)[0], np.float32(0))
    # Sums of 3 and 5, and then twice as much and twice again; with 0, 1, 2 and 3.
    assert found == (((3 + 0) + 5 + 1) * 2 + 2) * 2 + 3
    assert (total.numpy(), count.numpy()) == (1 + 4 * 2, 4)


@pytest.mark.needs_gpu
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_gradients_of_a_body_that_reads_variables_of_the_gpu_and_of_the_host(mode):
    with tf.device("GPU:0"):
        weight, count = tf.Variable(1.5), tf.Variable(2)
    with tf.device("CPU:0"):
        bias = tf.Variable(0.25)

    def body(carry, x):
        def taken():
            return tf.sin(carry * weight) + x * tf.cast(count, tf.float32)

        return tf.cond(x > 0.0, taken, lambda: carry * bias), None

    body = tf.autograph.experimental.do_not_convert(body)

    def gradients(way):
        c = tf.constant(0.5)
        with tf.GradientTape() as tape:
            tape.watch(c)
            y = way(c, tf.constant([1.0, -1.0, 2.0]))
        return [y, *tape.gradient(y, [c, weight, bias])]

    def call():
        return gradients(lambda c, x: tf_ti.scan(body, c, x)[0])

    found = (tf.function(call) if mode == "graph" else call)()
    with tf.device("CPU:0"):
        expected = gradients(
            lambda c, x: functools.reduce(lambda c, k: body(c, x[k])[0], range(3), c)
        )
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
def test_conditionals_in_the_body_are_the_cpus(run, rng):
    def body(carry, x):
        return tf.cond(tf.reduce_sum(x) > 0.0, lambda: carry + x, lambda: carry - x), carry

    body = tf.autograph.experimental.do_not_convert(body)
    _assert_same(run, lambda c, x: tf_ti.scan(body, c, x), _floats(rng, 3), _floats(rng, 6, 3))


def _branch(carry, x):
    return tf.cond(x > 3, lambda: carry * 2, lambda: carry + x), carry


def _nested_branches(carry, x):
    inner = lambda: tf.cond(carry > 50, lambda: carry - x, lambda: carry + 2 * x)  # noqa: E731
    return tf.cond(x > 3, inner, lambda: carry), carry


def _switch(carry, x):
    place = tf.cast(x % 3, tf.int32)
    branches = [lambda: carry + x, lambda: carry - x, lambda: 2 * carry]
    return tf.switch_case(place, branches), carry


def _inner_while_loop(carry, x):
    _, last = tf.while_loop(lambda k, _: k < 3, lambda k, v: (k + 1, v + x), (0, carry))
    return last, carry


def _branch_in_a_while_loop(carry, x):
    def step(k, v):
        return k + 1, tf.cond(v > 50, lambda: v - x, lambda: v + x)

    return tf.while_loop(lambda k, _: k < 3, step, (0, carry))[1], carry


def _while_loop_in_a_branch(carry, x):
    return tf.cond(x > 3, lambda: _inner_while_loop(carry, x)[0], lambda: carry), carry


def _called(carry, x):
    function = tf.function(lambda c, x: _branch(c + x, x)[0], autograph=False)
    return function(carry, x), function(x, x)


def _branch_of_results(carry, x):
    floats, number = tf.cond(
        x > 3,
        lambda: (tf.cast(carry, tf.float32) / 2.0, carry + 1),
        lambda: (tf.cast(x, tf.float32), x),
    )
    return number, (floats, carry)


_CONTROL_FLOW = [
    _branch,
    _nested_branches,
    _switch,
    _inner_while_loop,
    _branch_in_a_while_loop,
    _while_loop_in_a_branch,
    _called,
    _branch_of_results,
]


@pytest.mark.needs_gpu
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
@pytest.mark.parametrize("body", _CONTROL_FLOW)
def test_control_flow_of_every_type_in_the_body_is_the_cpus(run, closed_memory, body, dtype):
    body = tf.autograph.experimental.do_not_convert(body)
    xs = np.array([4, 0, 3, 2, 0, 5, 1, 7], dtype)
    _assert_same(run, lambda c, xs: tf_ti.scan(body, c, xs), dtype(40), xs)


@pytest.mark.needs_gpu
@pytest.mark.parametrize("body", _CONTROL_FLOW)
def test_control_flow_of_integers_in_a_condition_is_the_cpus(run, closed_memory, body):
    body = tf.autograph.experimental.do_not_convert(body)
    _assert_same(
        run,
        lambda n: tf_ti.while_loop(lambda k: body(k, n)[0] < 60, lambda k: (k + 3,), (n,)),
        np.int32(4),
    )


@pytest.mark.needs_gpu
def test_gradients_through_control_flow_beside_integers_are_the_cpus(run, closed_memory):
    def body(carry, x):
        value, count = carry
        branches = lambda: (value * x, count + 1), lambda: (tf.tanh(value), count)  # noqa: E731
        value, count = tf.cond(x > 0.0, *branches)
        return (value, count), (value, count)

    body = tf.autograph.experimental.do_not_convert(body)
    differentiated = _gradient(lambda c, xs: tf_ti.scan(body, (c, 0), xs)[0][0])
    _assert_same(run, differentiated, np.float32(2), np.float32([1, -2, 3, -1]))


@pytest.mark.needs_gpu
def test_what_is_no_history_is_refused_by_its_type_and_shape(closed_memory):
    body = tf.function(lambda x: x).get_concrete_function(tf.TensorSpec([1, 2]))
    with (
        tf.device("GPU:0"),
        pytest.raises(tf.errors.InvalidArgumentError, match=r"got float of shape \[3,2\]"),
    ):
        ops.tf_ti_stateless_tensor_iterator(
            input=[tf.ones([3, 2])],
            num_iterations=[],
            length=[],
            Tout=[tf.float32],
            body=body.name,
            input_mode=["sequence"],
            input_axis=[0],
            input_start=[0],
            input_end=[-1],
            input_stride=[1],
            input_part_size=[0],
            input_label=["x"],
            parameter_shapes=[[1, 2]],
            back_edge_from=[],
            back_edge_to=[],
            output_mode=["concat"],
            output_source=[0],
            output_axis=[0],
            output_stride=[1],
            output_part_size=[0],
            output_length=[-1],
            output_label=["y"],
            result_types=[tf.float32],
            result_shapes=[[1, 2]],
            reverse=False,
        )


@pytest.mark.needs_gpu
@pytest.mark.parametrize("pfor", [True, False])
def test_a_hessian_of_a_loop_is_the_cpus(closed_memory, pfor):
    m = np.float32([[0.5, -0.2], [0.1, 0.3]])

    def loop(x):
        body = lambda c, e: (tf.tanh(tf.linalg.matvec(m, c) + e), c * e)  # noqa: E731
        return tf.reduce_sum(tf_ti.scan(body, x[0], x)[1] ** 2)

    def hessian(x):
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = loop(x)
            gradient = inner.gradient(y, x)
        return outer.jacobian(gradient, x, experimental_use_pfor=pfor)

    x = np.float32([[1, 2], [0.5, -1], [0.1, 0.2]])
    found = [hessian(*_on(where, [x])) for where in ("GPU:0", "CPU:0")]
    _assert_close(*found)


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
def test_nested_loops_are_the_cpus(run, rng):
    def body(carry, x):
        carry, inner = tf_ti.scan(lambda c, x: (tf.tanh(c + x), c * x), carry, x)
        return carry, (carry, inner)

    _assert_same(run, lambda c, x: tf_ti.scan(body, c, x), _floats(rng), _floats(rng, 3, 4))


@pytest.mark.needs_gpu
def test_without_iterations_results_are_the_cpus(run):
    _assert_same(
        run,
        lambda c, n, x: tf_ti.scan(lambda c, x: ((c[0] + x, c[1] + 1), (x, c[1])), (c, n), x),
        np.float32([1, 2]),
        np.int32(7),
        np.zeros([0, 2], np.float32),
    )


def _while_loop(x, n):
    with tf_ti.Loop() as loop:
        count, value = loop.add_recurrence(n), loop.add_recurrence(x)
        loop.add_trip_limit(tf.reduce_sum(value) < 60.0, tf_ti.TripLimit.WHILE)
        count.next, value.next = count + 1, value + x
        outputs = [
            loop.add_loop_output(value, tf_ti.LoopOutput.LAST_VALUE),
            loop.add_loop_output(value, tf_ti.LoopOutput.CONCATENATE),
            loop.add_loop_output(value, tf_ti.LoopOutput.REVERSE, axis=1, length=30),
            loop.add_loop_output(count, tf_ti.LoopOutput.CONCATENATE),
        ]
    return [output.tensor for output in outputs]


@pytest.mark.needs_gpu
def test_while_loops_are_the_cpus(run):
    _assert_same(run, _while_loop, np.float32([1, 2]), np.int32(0))


@pytest.mark.needs_gpu
def test_a_condition_on_the_host_is_the_cpus(run):
    def looped(x, n):
        with tf_ti.Loop() as loop:
            count, value = loop.add_recurrence(n), loop.add_recurrence(x)
            loop.add_trip_limit(count < 9, tf_ti.TripLimit.WHILE)
            count.next, value.next = count + 2, value + x
            last = loop.add_loop_output(value, tf_ti.LoopOutput.LAST_VALUE)
            number = loop.add_loop_output(count, tf_ti.LoopOutput.LAST_VALUE)
        return last.tensor, number.tensor

    _assert_same(run, looped, np.float32([1, 2]), np.int32(0))


@pytest.mark.needs_gpu
def test_a_length_beyond_the_trips_is_filled_with_zeros(run):
    def looped(x, n):
        with tf_ti.Loop() as loop:
            loop.add_trip_limit(tf.constant(3), tf_ti.TripLimit.COUNT)
            count, value = loop.add_recurrence(n), loop.add_recurrence(x)
            count.next, value.next = count + 1, value + x
            outputs = [
                loop.add_loop_output(v, tf_ti.LoopOutput.CONCATENATE, length=5)
                for v in (value, count)
            ]
        return [output.tensor for output in outputs]

    _assert_same(run, looped, np.float32([1, 2]), np.int32(1))


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
@pytest.mark.parametrize("dtype,rtol", [(np.float32, 1e-5), (np.float64, 1e-9), (np.float16, 1e-2)])
def test_gradients_of_loops_are_the_cpus(run, rng, dtype, rtol):
    arrays = [_floats(rng, *shape).astype(dtype) for shape in ([5], [7, 5], [5])]
    _assert_same(run, _gradient(_rnn), *arrays, rtol=rtol)


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
def test_gradients_from_checkpoints_are_the_cpus(run, rng):
    def looped(carry, x, w):
        return tf_ti.scan(lambda c, x: (tf.tanh(c * w + x), c * x), carry, x, checkpoint_every=3)

    _assert_same(run, _gradient(looped), _floats(rng, 5), _floats(rng, 7, 5), _floats(rng, 5))


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
def test_second_gradients_of_loops_are_the_cpus(run, rng):
    _assert_same(
        run, _gradient(_gradient(_rnn)), _floats(rng, 4), _floats(rng, 3, 4), _floats(rng, 4)
    )


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize("forward,backward", [("CPU:0", "GPU:0"), ("GPU:0", "CPU:0")])
def test_a_history_goes_from_one_device_to_the_other(rng, forward, backward, is_graph):
    def gradient(first, second):
        def compute(*tensors):
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                with tf.device(first):
                    carry, values = _rnn(*tensors)
                total = tf.reduce_sum(carry) + tf.reduce_sum(values)
            with tf.device(second):
                return tape.gradient(total, tensors)

        return tf.function(compute) if is_graph else compute

    arrays = [_floats(rng, 5), _floats(rng, 7, 5), _floats(rng, 5)]
    found = gradient(forward, backward)(*(tf.constant(array) for array in arrays))
    with tf.device("CPU:0"):
        expected = gradient("CPU:0", "CPU:0")(*(tf.constant(array) for array in arrays))
    for got, want in zip(found, expected):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.needs_gpu
def test_gradients_of_while_loops_are_the_cpus(run):
    _assert_same(run, lambda x: _gradient(lambda x: _while_loop(x, 0)[:2])(x), np.float32([1, 2]))


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
def test_a_variable_that_the_body_updates_is_the_cpus(rng):
    x = _floats(rng, 4, 3)
    found = {}
    for where in ("CPU:0", "GPU:0"):
        with tf.device(where):
            variable = tf.Variable(x[0])

            @tf.function
            def looped(x, variable=variable):
                return tf_ti.scan(lambda c, x: (variable.assign(variable * c + x), c), x[0], x)

            found[where] = [*looped(tf.constant(x)), variable.read_value()]
    for got, want in zip(found["GPU:0"], found["CPU:0"]):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.needs_gpu
def test_there_are_no_programs_and_an_explanation_says_so():
    def how_it_runs(where):
        with tf.device(where):
            looped = tf.function(lambda x: tf_ti.scan(lambda c, x: (tf.tanh(c + x), c), 0.0, x))
            (loop,) = tf_ti.explain(looped, tf.TensorSpec([7]))
        return loop.runs_as

    kernels = "TensorFlow's kernels, one by one: there are no programs on a GPU"
    assert how_it_runs("GPU:0") == how_it_runs(None) == kernels
    assert how_it_runs("CPU:0") == "one program of 2 operations"


@pytest.mark.needs_gpu
def test_an_error_names_its_iteration():
    with tf.device("GPU:0"):
        port_map = tf_ti.PortMap(
            [tf_ti.InputPort(0, 0), tf_ti.InputPort(1, 1, axis=0)],
            [tf_ti.OutputPort(0, 0, axis=1)],
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match="in iteration 1 of"):
            tf_ti.tensor_iterator(
                lambda x, n: x[: n[0]], [tf.ones([4, 2]), tf.constant([2, 3])], port_map
            )


# Bags: of no, of one and of several ids; a row that comes in two bags.
_IDS = np.int64([3, 1, 4, 1, 5, 9, 2, 6])
_OFFSETS = np.int64([0, 0, 1, 4])


@pytest.mark.pairwise
@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype,rtol", [(np.float32, 1e-5), (np.float64, 1e-9), (np.float16, 1e-2)])
@pytest.mark.parametrize("reduction", ["sum", "mean", "max"])
def test_bags_and_their_gradients_are_the_cpus(run, rng, reduction, dtype, rtol, index):
    def pooled(table, ids, offsets):
        return tf_ti.embedding_bag_offsets(table, ids, offsets, 2, reduction=reduction)

    def both(table, ids, offsets):
        return pooled(table, ids, offsets), _gradient(lambda t: pooled(t, ids, offsets))(table)

    table = _floats(rng, 10, 6).astype(dtype)
    _assert_same(run, both, table, _IDS.astype(index), _OFFSETS.astype(index), rtol=rtol)


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
def test_bfloat16_is_the_cpus(run, rng):
    def pooled(table, ids, offsets):
        table = tf.cast(table, tf.bfloat16)
        result = tf_ti.embedding_bag_offsets(table, ids, offsets)
        ((_, values),) = _gradient(lambda t: tf_ti.embedding_bag_offsets(t, ids, offsets))(table)
        return tf.cast(result, tf.float32), tf.cast(values, tf.float32)

    def looped(*tensors):
        return [
            tf.cast(gradient, tf.float32)
            for gradient in _gradient(_rnn)(*(tf.cast(x, tf.bfloat16) for x in tensors))
        ]

    _assert_same(run, pooled, _floats(rng, 10, 6), _IDS, _OFFSETS, rtol=1e-2)
    _assert_same(run, looped, *(_floats(rng, *shape) for shape in ([5], [7, 5], [5])), rtol=5e-2)


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
def test_weighted_bags_and_their_gradients_are_the_cpus(run, rng):
    def pooled(table, weights, ids, offsets):
        return tf_ti.embedding_bag_offsets_sum(table, ids, offsets, None, weights)

    def both(table, weights, ids, offsets):
        gradient = _gradient(lambda t, w: pooled(t, w, ids, offsets))(table, weights)
        return pooled(table, weights, ids, offsets), gradient

    _assert_same(run, both, _floats(rng, 10, 3), _floats(rng, 8), _IDS, _OFFSETS)


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
def test_packed_bags_and_segments_are_the_cpus(run, rng):
    def both(table, ids):
        packed = tf_ti.embedding_bag_packed(table, tf.reshape(ids, [2, 4]))
        segments = tf_ti.embedding_segments_sum(table, ids, [0, 0, 1, 1, 1, 3, 3, 3], 5)
        return packed, segments

    _assert_same(run, both, _floats(rng, 10, 3), _IDS)


_INTEGERS = [tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64]


@pytest.mark.pairwise
@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
@pytest.mark.parametrize("width", [1, 3, 40])
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", _INTEGERS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("combiner", ["sum", "mean", "weighted sum", "weighted mean", "max"])
def test_bags_of_integers_are_the_cpus(run, rng, combiner, dtype, index, width):
    limits = np.iinfo(dtype.as_numpy_dtype)
    table = rng.integers(limits.min, limits.max, [10, width], dtype.as_numpy_dtype, endpoint=True)
    table[0], table[1] = limits.min, limits.max
    ids = np.concatenate([_IDS, rng.integers(0, 10, size=300), [0, 0, 1, 0]]).astype(index)
    splits = np.array([0, 0, 1, 4, 8, 308, 312], index)
    weights = rng.integers(0, 3, len(ids)).astype(dtype.as_numpy_dtype)
    if not dtype.is_unsigned:
        weights[-1] = -1  # for a divisor of -1, by which the lowest number has no quotient
        weights[-4:-1] = 0
    weighted = combiner.startswith("weighted")

    def pooled(table, ids, splits, weights):
        ids = tf.RaggedTensor.from_row_splits(ids, splits, validate=False)
        given = ids.with_flat_values(weights) if weighted else None
        reduction = combiner.removeprefix("weighted ")
        return [
            tf_ti.embedding_bag(table, ids, given, reduction, default, padding_idx=padding)
            for default, padding in ((None, None), (1, 3))
        ]

    _assert_same(run, pooled, table, ids, splits, weights, rtol=0)


@pytest.mark.needs_gpu
@pytest.mark.parametrize("dtype", [tf.int8, tf.int64], ids=lambda dtype: dtype.name)
def test_a_variable_of_integers_is_read_where_it_is(dtype):
    with tf.device("GPU:0"):
        variable = tf.Variable(tf.cast(tf.reshape(tf.range(12), [4, 3]), dtype))
        ids = tf.constant([[1, 3], [9, 2]], tf.int64)  # 9 is no row
        several = tf_ti.embedding_bags([variable] * 2, [ids] * 2, combiner=["sum", "max"])
        segments = tf_ti.embedding_segments_sum(variable, ids[0], [0, 2], 3)
    for rows in (*several, segments):
        assert "GPU:0" in rows.device
    np.testing.assert_array_equal(several[0], [[12, 14, 16], [6, 7, 8]])
    np.testing.assert_array_equal(several[1], [[9, 10, 11], [6, 7, 8]])
    np.testing.assert_array_equal(segments, [[3, 4, 5], [0, 0, 0], [9, 10, 11]])


@pytest.mark.needs_gpu
def test_of_equal_integers_the_first_is_the_maximum(run):
    def positions(table, ids):
        bags = Bags("packed", ids, reduction="max", padding_idx=7)
        return bags.pool(Table(table, table.dtype), with_argmax=True)

    table = np.int16([[5, -5], [5, 7], [-3, 7]])
    _assert_same(run, positions, table, np.int64([[7, 2, 0, 1], [1, 0, 2, 2], [7, 7, 7, 7]]))


def _no_place(variable):
    """What is refused of variables on a GPU."""
    ids = [[1, 0]]
    slices = tf.IndexedSlices(tf.ones([1, 2], variable.dtype), tf.constant([1]))
    calls = {"ScatterSub": lambda: tf_ti.scatter_sub(variable, slices)}
    if variable.dtype.is_complex:
        calls |= {
            "EmbeddingBagPacked": lambda: tf_ti.embedding_bag_packed(variable, ids),
            "EmbeddingBagOffsets": lambda: tf_ti.embedding_bag_offsets(variable, ids[0], [0]),
            "EmbeddingSegmentsSum": lambda: tf_ti.embedding_segments_sum(
                variable, ids[0], [0, 0], 1
            ),
            "EmbeddingBags": lambda: tf_ti.embedding_bags([variable], [ids]),
        }
    return calls


@pytest.mark.needs_gpu
@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize(
    "dtype", [tf.int8, tf.int64, tf.complex64, tf.complex128], ids=lambda dtype: dtype.name
)
def test_a_variable_that_an_op_does_not_take_on_a_gpu_is_named_with_the_way_out(dtype, is_graph):
    with tf.device("GPU:0"):
        variable = tf.Variable(tf.ones([3, 2], dtype))
        for op, call in _no_place(variable).items():
            call = tf.function(call, autograph=False) if is_graph else call
            message = rf"{op} takes no variable of {dtype.name} on a GPU: .*tf.device\("
            with pytest.raises(tf.errors.UnimplementedError, match=message):
                call()
    with tf.device("CPU:0"):
        variable = tf.Variable(tf.ones([3, 2], dtype))
    for call in _no_place(variable).values():
        call()
    np.testing.assert_array_equal(variable[1], [0, 0])


def _several_ids(ids, offsets):
    """The ids in three ways."""
    splits = tf.concat([offsets, [8]], 0)
    places = tf.constant([[0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [3, 0], [3, 1], [3, 2]], tf.int64)
    return [
        tf.RaggedTensor.from_row_splits(ids, splits, validate=False),
        tf.reshape(ids, [2, 4]),
        tf.SparseTensor(places, ids, [5, 3]),
    ]


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
@pytest.mark.parametrize("combiner", ["sum", "mean", "max", ["max", "mean", "sum"]])
def test_bags_of_several_tables_and_their_gradients_are_the_cpus(run, rng, combiner):
    def pooled(tables, ids, offsets):
        ids = _several_ids(ids, offsets)
        return tf_ti.embedding_bags(tables, ids, combiner=combiner, default_index=2)

    def both(*given):
        *tables, ids, offsets = given
        gradients = _gradient(lambda *tables: pooled(tables, ids, offsets))(*tables)
        return pooled(tables, ids, offsets), gradients

    tables = [_floats(rng, n, width) for n, width in ((10, 6), (12, 1), (30, 9))]
    _assert_same(run, both, *tables, _IDS, _OFFSETS)


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
def test_more_tables_than_a_launch_has_room_for_give_what_each_gives_alone(rng):
    with tf.device("GPU:0"):
        tables = [tf.Variable(_floats(rng, n, 3)) for n in range(10, 80)]
        ids, weights = tf.constant(_IDS), tf.constant(_floats(rng, 8))
        all_ids = [tf.reshape(ids[: 2 * n], [2, n]) for n in np.arange(70) % 5]
        all_weights = [tf.reshape(weights[: 2 * n], [2, n]) for n in np.arange(70) % 5]
        for given in (None, all_weights):
            together = tf_ti.embedding_bags(tables, all_ids, given)
            for k, rows in enumerate(together):
                alone = tf_ti.embedding_bag(tables[k], all_ids[k], given and given[k])
                np.testing.assert_array_equal(rows, alone)


@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
def test_bags_of_a_variable_and_the_update_of_its_rows_are_the_cpus(rng):
    table = _floats(rng, 10, 3)
    found = {}
    for where in ("CPU:0", "GPU:0"):
        with tf.device(where):
            variable = tf.Variable(table)
            with tf.GradientTape() as tape:
                pooled = tf_ti.embedding_bag_offsets_sum(variable, _IDS, _OFFSETS)
                total = tf.reduce_sum(pooled * pooled)
            gradient = tape.gradient(total, variable)
            tf_ti.scatter_sub(variable, gradient, 0.1)
            found[where] = [pooled, gradient.indices, gradient.values, variable.read_value()]
    for got, want in zip(found["GPU:0"], found["CPU:0"]):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


_STEPS = {
    "descent": lambda v, s: tf_ti.scatter_sub(v[0], s, 0.1),
    "decayed descent": lambda v, s: tf_ti.scatter_sub(v[0], s, 0.1, 0.2),
    "adam": lambda v, s: tf_ti.adam_update(*v[:3], s, 0.1, 3),
    "row-wise adam": lambda v, s: tf_ti.adam_update(v[0], v[1], v[3], s, 0.1, 3),
    "adagrad": lambda v, s: tf_ti.adagrad_update(v[0], v[2], s, 0.1),
    "row-wise adagrad": lambda v, s: tf_ti.adagrad_update(v[0], v[3], s, 0.1),
}


_STEPS_WITH_BAGS = {
    f"TfTi>EmbeddingBag{update}" for update in ("ScatterSub", "AdamUpdate", "AdagradUpdate")
}


@pytest.mark.pairwise
@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0, 1], indirect=True)
@pytest.mark.parametrize("width", [1, 3, 4, 40])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16], ids=lambda d: d.name)
@pytest.mark.parametrize("step", _STEPS)
def test_steps_on_the_rows_of_a_gradient_are_the_cpus(rng, step, dtype, width):
    sums = tf.float32 if dtype == tf.float16 else dtype
    table, grad = (rng.normal(size=[50, width]) for _ in range(2))
    slots = [abs(rng.normal(size=[50, n])) for n in (width, width, 1)]
    ids = tf.constant(rng.integers(0, 50, size=[50, 2]))

    found = {}
    for where in ("CPU:0", "GPU:0"):
        with tf.device(where):
            variables = [tf.Variable(tf.cast(table, dtype))]
            variables += [tf.Variable(tf.cast(slot, sums)) for slot in slots]
            num_emb = tf.constant(50, tf.int64)
            rows, values = Bags("packed", ids).table_gradient(num_emb, tf.cast(grad, dtype), None)
            assert are_distinct(rows)
            _STEPS[step](variables, tf.IndexedSlices(values, rows))
            found[where] = [v.read_value() for v in variables]
    tolerance = 2e-3 if dtype == tf.float16 else 1e-5
    for got, want in zip(found["GPU:0"], found["CPU:0"]):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.pairwise
@pytest.mark.needs_gpu
@pytest.mark.parametrize("seed", [0], indirect=True)
@pytest.mark.parametrize("width", [1, 4, 37])
@pytest.mark.parametrize("combiner", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16], ids=lambda d: d.name)
@pytest.mark.parametrize("step", _STEPS)
def test_steps_with_the_bags_of_a_look_up_are_the_cpus(rng, step, dtype, combiner, width):
    sums = tf.float32 if dtype == tf.float16 else dtype
    table, grad = rng.normal(size=[50, width]), rng.normal(size=[3, width])
    slots = [abs(rng.normal(size=[50, n])) for n in (width, width, 1)]
    ids = tf.RaggedTensor.from_row_splits(rng.integers(0, 50, size=300), [0, 20, 20, 300])
    weights = None if combiner == "max" else ids.with_flat_values(tf.cast(rng.random(300), dtype))

    def train(variables):
        with tf.GradientTape() as tape:
            out = tf_ti.embedding_bag(variables[0], ids, weights, combiner)
        gradient = tape.gradient(out, variables[0], tf.cast(grad, dtype))
        _STEPS[step](variables, gradient)

    found = {}
    for where in ("CPU:0", "GPU:0"):
        with tf.device(where):
            variables = [tf.Variable(tf.cast(table, dtype))]
            variables += [tf.Variable(tf.cast(slot, sums)) for slot in slots]
            function = tf.function(functools.partial(train, variables))
            function()
            found[where] = [v.read_value() for v in variables]
            types = {op.type for op in function.get_concrete_function().graph.get_operations()}
            assert types & _STEPS_WITH_BAGS
    tolerance = 2e-3 if dtype == tf.float16 else 1e-5
    for got, want in zip(found["GPU:0"], found["CPU:0"]):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.needs_gpu
@pytest.mark.needs_gpu
def test_values_of_one_row_are_added_up_and_subtracted_once():
    steps = tf.IndexedSlices(tf.fill([64, 5], tf.constant(2.0**-12, tf.float16)), [1] * 64)
    with tf.device("GPU:0"):
        variable = tf.Variable(tf.ones([3, 5], tf.float16))
        tf_ti.scatter_sub(variable, steps, -1.0)
    np.testing.assert_array_equal(variable[:, 0], [1, 1 + 2.0**-6, 1])


@pytest.mark.needs_gpu
def test_an_id_that_is_no_row_reads_as_zeros_and_has_no_gradient():
    with tf.device("GPU:0"):
        table = tf.ones([4, 3])
        with tf.GradientTape() as tape:
            tape.watch(table)
            pooled = tf_ti.embedding_bag_packed(table, tf.constant([[1, 7], [-3, 2]], tf.int64))
        gradient = tape.gradient(pooled, table)
        np.testing.assert_array_equal(pooled, np.ones([2, 3]))
        np.testing.assert_array_equal(gradient.indices, [1, 2])
        variable = tf.Variable(table)
        tf_ti.scatter_sub(variable, tf.IndexedSlices(tf.ones([3, 3]), tf.constant([1, 7, -3])))
        np.testing.assert_array_equal(variable[:, 0], [1, 0, 1, 1])


@pytest.mark.needs_gpu
def test_an_id_that_is_no_row_is_an_error_where_that_is_asked_for(run_program):
    program = """
    import os
    import tensorflow as tf
    if "TF_TI_GPU_PLUGIN" in os.environ:
        from tensorflow.python.framework import load_library
        load_library.load_pluggable_device_library(os.environ["TF_TI_GPU_PLUGIN"])
    import tf_ti
    with tf.device("GPU:0"):
        try:
            tf_ti.embedding_bag_packed(tf.ones([4, 3]), tf.constant([[1, 7]], tf.int64))
        except tf.errors.InvalidArgumentError as error:
            print(error.message)
        try:
            tf_ti.embedding_bags([tf.ones([4, 3])] * 2, [[[1, 3]], [[0, 5]]])
        except tf.errors.InvalidArgumentError as error:
            print(error.message)
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_TI_CHECK_IDS", "1")
        printed = run_program(program).stdout
    assert "indices[0, 1] is 7" in printed
    assert "emb_tables[1]: indices[0, 1] is 5" in printed


@pytest.mark.needs_gpu
def test_the_self_check_knows_that_it_runs_on_a_gpu():
    checks = {name: (ok, detail) for name, ok, detail in _self_check.run()}
    assert all(ok for ok, _ in checks.values()), checks
    (detail,) = [detail for name, (_, detail) in checks.items() if "wrong id" in name]
    assert "on a GPU" in detail


def _table_gradient(table):
    with tf.GradientTape() as tape:
        tape.watch(table)
        rows = tf_ti.embedding_bag_packed(table, tf.constant([[0, 1]], tf.int64))
    return tape.gradient(rows, table).values


def _sparse(table, rows):
    ids = tf.SparseTensor(tf.constant([[0, 0]], tf.int64), tf.constant([1], tf.int64), [rows, 1])
    return tf_ti.embedding_bag(table, ids)


# Functions of a table, whose ops take numbers in the host's memory: of which only the shapes that
# the trace does not know may be left.
_HOST_NUMBERS = {
    "default_index": lambda t: tf_ti.embedding_bag_packed(
        t, tf.constant([[0, 1]], tf.int64), default_index=2
    ),
    "num_segments": lambda t: tf_ti.embedding_segments_sum(
        t, tf.constant([0, 1], tf.int64), [0, 1], 3
    ),
    "default_index of several": lambda t: tf_ti.embedding_bags(
        [t, t], [tf.constant([[0, 1]], tf.int64), [[0]]], default_index=[None, 1]
    ),
    "sparse ids": lambda t: _sparse(t, 4),
    "gradient": _table_gradient,
    "while_loop": lambda t: tf_ti.while_loop(
        lambda x: tf.reduce_sum(x) < 9.0, lambda x: (x + x,), [t], maximum_iterations=5
    ),
    "length": lambda t: tf_ti.scan(lambda c, _: (c + t, c), t, length=3),
    "gradient of a scan": _gradient(lambda t: tf_ti.scan(lambda c, x: (c * x, c), t[0], t)),
}
_HOST_NUMBERS_OF_STEPS = {
    "adam": lambda v, s: tf_ti.adam_update(*v[:3], s, 0.1, 3),
    "adagrad": lambda v, s: tf_ti.adagrad_update(v[0], v[2], s, 0.1),
}


def _sends(function, *arguments):
    """The numbers that a function copies from the GPU to the host in each call."""
    nodes = nodes_that_run(lambda: function(*arguments))
    received = {
        n.attr["tensor_name"].s
        for n in nodes
        if n.op in ("_HostRecv", "_Recv") and (n.op == "_HostRecv" or "CPU:0" in n.device)
    }
    sends = [n for n in nodes if n.op == "_Send" and "GPU:0" in n.device]
    sends = [n for n in sends if n.attr["T"].type in (tf.int64, tf.float64)]
    return [n.input[0] for n in sends if n.attr["tensor_name"].s in received]


@pytest.mark.needs_gpu
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("name", [*_HOST_NUMBERS, *_HOST_NUMBERS_OF_STEPS])
def test_no_number_goes_to_the_gpu_to_be_copied_back(name, is_known):
    with tf.device("GPU:0"):
        table = tf.ones([4, 4])
        variables = [tf.Variable(table) for _ in range(3)]

        @tf.function(input_signature=[tf.TensorSpec([4, 4] if is_known else [None, 4])])
        def call(table):
            with tf.device("GPU:0"):
                if name in _HOST_NUMBERS:
                    return _HOST_NUMBERS[name](table)
                slices = tf.IndexedSlices(table, tf.constant([0, 1, 2, 2]))
                return _HOST_NUMBERS_OF_STEPS[name](variables, slices)

        assert _sends(call, table) == []


@pytest.mark.needs_gpu
@pytest.mark.parametrize(
    "name", ["default_index", "num_segments", "gradient", "length", *_HOST_NUMBERS_OF_STEPS]
)
def test_numbers_of_the_host_move_nothing_else_in_a_colocation(name):
    with tf.Graph().as_default() as graph:
        variables = [
            tf.compat.v1.get_variable(
                f"v{k}", [4, 4], initializer=tf.compat.v1.zeros_initializer(), use_resource=True
            )
            for k in range(3)
        ]
        with tf.compat.v1.colocate_with(variables[0].handle.op):
            if name in _HOST_NUMBERS:
                run = tf.nest.flatten(_HOST_NUMBERS[name](variables[0].read_value()))
            else:
                slices = tf.IndexedSlices(tf.ones([4, 4]), tf.constant([0, 1, 2, 2]))
                _HOST_NUMBERS_OF_STEPS[name](variables, slices)
                run = [op for op in graph.get_operations() if op.type.startswith("TfTi>")]
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            options = tf.compat.v1.RunOptions(output_partition_graphs=True)
            metadata = tf.compat.v1.RunMetadata()
            session.run([variables[0].handle, run], options=options, run_metadata=metadata)
        nodes = [node for part in metadata.partition_graphs for node in part.node]
        ours = [node for node in nodes if node.op.startswith(("TfTi>", "VarHandle"))]
        assert len(ours) > 1 and all("GPU:0" in node.device for node in ours)


@pytest.mark.needs_gpu
@pytest.mark.parametrize("index", [tf.int32, tf.int64])
def test_numbers_of_the_host_in_a_body_leave_it_one_function(index):
    """Each iteration of a body of two devices runs two functions."""

    @functools.partial(tf.function, autograph=False)
    def looped(ids):
        def body(carry, ids):
            return carry + tf_ti.embedding_bag_packed(table, ids, default_index=1), None

        with tf.device("GPU:0"):
            return tf_ti.scan(body, tf.zeros([2, 4]), ids)[0]

    with tf.device("GPU:0"):
        table, ids = tf.ones([5, 4]), tf.zeros([6, 2, 3], index)
    looped(ids)
    context.enable_run_metadata()
    try:
        context.export_run_metadata()
        looped(ids)
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    assert len(metadata.function_graphs) < 6


# Iterations: a held stream of CUDA's takes some hundred launches, and some fifty functions of the
# host, before who enqueues another one waits.
_FEW = 7 if _IS_EMULATED else 2


@needs_gpu_plugin
def test_a_counted_loop_only_enqueues(device):
    @tf.function
    def looped(carry, x, w, n):
        with tf.device("GPU:0"):
            carry, (ys, ns) = tf_ti.scan(
                lambda c, x: ((tf.tanh(c[0] * w + x), c[1] + 1), (c[0] * x, c[1])), (carry, n), x
            )
            return carry[0], ys, ns

    with tf.device("GPU:0"):
        arguments = [tf.ones([5]), tf.ones([_FEW, 5]), tf.ones([5]), tf.constant(0)]
    looped(*arguments)
    before = device.gpu_plugin_num_blocked()
    with _held(device):
        results = looped(*arguments)
    assert device.gpu_plugin_num_blocked() == before
    np.testing.assert_array_equal(results[2], np.arange(_FEW))


@needs_gpu_plugin
def test_the_gradient_of_a_counted_loop_only_enqueues(device):
    @tf.function
    def looped(carry, x, w):
        with tf.device("GPU:0"):
            return _gradient(_rnn)(carry, x, w)

    with tf.device("GPU:0"):
        arguments = [tf.ones([5]), tf.ones([_FEW, 5]), tf.ones([5])]
    looped(*arguments)
    with _held(device):
        results = looped(*arguments)
    assert np.isfinite(results[0]).all()


@needs_gpu_plugin
def test_bags_only_enqueue(device):
    with tf.device("GPU:0"):
        table, ids, offsets = tf.ones([10, 3]), tf.constant(_IDS), tf.constant(_OFFSETS)
        with _held(device):
            pooled = tf_ti.embedding_bag_offsets_sum(table, ids, offsets)
    np.testing.assert_array_equal(pooled[:, 0], [0, 1, 3, 4])


@pytest.fixture(params=["with this driver", "with one of CUDA 12.0"])
def tables_at_once(request, device):
    """How many tables one launch may be for."""
    is_old = request.param != "with this driver"
    device.gpu_plugin_set_driver(12000 if is_old else 0)
    yield 1 if is_old else 32
    device.gpu_plugin_set_driver(0)


@needs_gpu_plugin
def test_bags_of_several_tables_are_enqueued_together(device, tables_at_once):
    with tf.device("GPU:0"):
        table, ids = tf.Variable(tf.ones([10, 3])), tf.constant(_IDS[:6].reshape(2, 3))

        def count(num_tables):
            before = device.gpu_plugin_num_calls()
            with _held(device):
                rows = tf_ti.embedding_bags([table] * num_tables, [ids] * num_tables)
            count = device.gpu_plugin_num_calls() - before
            np.testing.assert_array_equal(rows, np.full([num_tables, 2, 3], 3.0))
            return count

        for num_tables in (2, 32, 33, 65):
            assert count(num_tables) == -(-num_tables // tables_at_once) * count(1)


@needs_gpu_plugin
def test_tables_of_one_width_and_combiner_are_enqueued_together(device):
    ids = tf.constant(_IDS[:6].reshape(2, 3))

    def count(widths, combiners):
        with tf.device("GPU:0"):
            tables = [tf.Variable(tf.ones([10, width])) for width in widths]
            before = device.gpu_plugin_num_calls()
            with _held(device):
                rows = tf_ti.embedding_bags(tables, [ids] * len(tables), combiner=combiners)
            count = device.gpu_plugin_num_calls() - before
        for width, combiner, found in zip(widths, combiners, rows):
            expected = np.full([2, width], 3.0 if combiner == "sum" else 1.0)
            np.testing.assert_array_equal(found, expected)
        return count

    one = count([3], ["sum"])
    assert count([3, 5, 3, 5], ["sum"] * 4) == 2 * one
    assert count([3, 3, 3, 3], ["max", "sum", "max", "sum"]) == 2 * one
    assert count([3, 3], ["mean", "sum"]) == one


@needs_gpu_plugin
def test_a_while_loop_waits_once_for_each_condition(device):
    @tf.function
    def looped(x):
        with tf.device("GPU:0"):
            return _while_loop(x, 0)

    with tf.device("GPU:0"):
        x = tf.constant([1.0, 2.0])
    looped(x)
    before = device.gpu_plugin_num_blocked()
    trips = len(looped(x)[1])
    assert device.gpu_plugin_num_blocked() - before == trips + 1


# Of CUDA's errors: one for which nothing can be done.
_LAUNCH_FAILED = 719


@pytest.fixture
def bag_kernels():
    """Calls of the bags' kernels; each needs 400 bytes of its own, and at most 200 for results."""
    with tf.device("GPU:0"):
        table, weights = tf.Variable(tf.ones([10, 1])), tf.ones([8])
        ids, segments = tf.constant(_IDS), tf.constant([0, 0, 1, 1, 1, 3, 3, 3], tf.int64)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(weights)
            pooled = tf_ti.embedding_segments_sum(table, ids, segments, 50, None, weights)
        rows = tf.IndexedSlices(tf.ones([100, 1]), tf.zeros([100], tf.int64))
        scale = tf.constant(0.5)
    return {
        "look-up": lambda: tf_ti.embedding_segments_sum(table, ids, segments, 50, None, weights),
        "gradient": lambda: tape.gradient(pooled, table),
        "weights gradient": lambda: tape.gradient(pooled, weights),
        "update": lambda: tf_ti.scatter_sub(table, rows, scale),
    }


@needs_gpu_plugin
@pytest.mark.parametrize("name", ["look-up", "gradient", "weights gradient", "update"])
def test_whichever_of_cudas_calls_fails_the_error_is_internal(device, bag_kernels, name):
    after = 0
    with tf.device("GPU:0"):
        while True:
            try:
                with _failing(device, _LAUNCH_FAILED, after):
                    bag_kernels[name]()
                break
            except tf.errors.InternalError as error:
                assert "CUDA: " in error.message
            after += 1
    assert after > 1


@needs_gpu_plugin
@pytest.mark.parametrize("name", ["look-up", "gradient", "weights gradient", "update"])
def test_without_memory_on_the_gpu_resources_are_exhausted(device, bag_kernels, name):
    with tf.device("GPU:0"), _limited(device, 300):
        with pytest.raises(tf.errors.ResourceExhaustedError, match="OOM"):
            bag_kernels[name]()


@pytest.mark.needs_gpu
def test_wrong_input_on_the_gpu_is_an_invalid_argument():
    with tf.device("GPU:0"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="default_index is 99"):
            tf_ti.embedding_bag_offsets_sum(tf.ones([10, 3]), _IDS, _OFFSETS, 99)


@needs_gpu_plugin
@pytest.mark.parametrize(
    "error", [35, 209, 222], ids=["driver too old", "GPU too old", "driver too old for PTX"]
)
def test_a_gpu_or_driver_that_is_too_old_is_answered_with_what_is_needed(
    device, bag_kernels, error
):
    with tf.device("GPU:0"), _failing(device, error):
        needs = r"sm_\d+ or newer.* CUDA (\d+)\.0, or \1\.\d+ for"
        if _IS_EMULATED:
            needs = r"sm_80 or newer.* CUDA 12\.0, or 12\.4 for"
        with pytest.raises(tf.errors.InternalError, match=needs):
            bag_kernels["look-up"]()


@needs_gpu_plugin
def test_memory_of_the_host_outlives_a_copy_into_it_though_another_copy_fails(device, monkeypatch):
    # As in a thread of TensorFlow's own: the op itself gets what it copies.
    monkeypatch.setattr("tf_ti.loops.tracing.eager.needs_function", lambda: False)
    port_map = tf_ti.PortMap(
        [tf_ti.InputPort(0, 0, axis=0), tf_ti.InputPort(1, 1)], [tf_ti.OutputPort(0, 0, axis=0)]
    )
    with tf.device("GPU:0"):
        inputs = [tf.constant([1, 2, 3]), tf.constant([4])]
        before = device.gpu_plugin_num_blocked()
        with _failing(device, _LAUNCH_FAILED, after=1), pytest.raises(tf.errors.InternalError):
            tf_ti.tensor_iterator(lambda x, y: x + y, inputs, port_map)
    assert device.gpu_plugin_num_blocked() == before + 1


# --- recurrent sequences --------------------------------------------------------------------------

_MASK = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], bool)
_OPTIONS = {
    "plain": {},
    "lengths": {"sequence_lengths": np.int64([5, 2])},
    "mask": {"mask": _MASK, "hold_output": True},
    "backwards": {"direction": "reverse", "clip": 0.5},
}
# A sequence by its kind, and how many blocks its weights and its biases have.
_KINDS = {
    "lstm": (tf_ti.lstm_sequence, 4, 4),
    "gru": (tf_ti.gru_sequence, 3, 3),
    "reset after": (
        functools.partial(tf_ti.gru_sequence, linear_before_reset=True),
        3,
        4,
    ),
    "rnn": (tf_ti.rnn_sequence, 1, 1),
}


def _sequence(kind="lstm", sequence_lengths=None, **options):
    """A layer as a function of tensors, and the arrays that it gets."""
    function, blocks, biases = _KINDS[kind]
    rng = np.random.default_rng(0)
    shapes = [[2, 5, 3], *[[2, 1, 4]] * (2 if kind == "lstm" else 1)]
    shapes += [[1, 4 * blocks, 3], [1, 4 * blocks, 4], [1, 4 * biases]]

    def layer(x, *others):
        *states, w, r, b = others
        return function(x, *states, sequence_lengths, w, r, b, **options)

    return tf.autograph.experimental.do_not_convert(layer), [_floats(rng, *s) for s in shapes]


def _cells(x, h, c, w, r, b):
    """The same LSTM as a loop that becomes a sequence."""

    def step(states, x):
        return (states := tf_ti.lstm_cell(x, *states, w[0], r[0], b[0])), states[0]

    (h, c), y = tf_ti.scan(step, (h[:, 0], c[:, 0]), x, axis=1)
    return y[:, tf.newaxis], h[:, tf.newaxis], c[:, tf.newaxis]


def _places(function, *arguments):
    """Which of our ops a function has, and where: each with its device."""
    function = tf.function(function, autograph=False)
    nodes = nodes_that_run(lambda: function(*arguments))
    nodes = [node for node in nodes if node.op.startswith("TfTi>")]
    return {(node.op.removeprefix("TfTi>"), node.device[-5:]) for node in nodes}


def _on(device, arrays):
    with tf.device(device):
        return [tf.constant(array) for array in arrays]


def _with_gradient(layer):
    gradient = _gradient(layer)
    return lambda *tensors: [*layer(*tensors), *gradient(*tensors)]


def _assert_close(found, expected, tolerance=1e-5):
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.needs_gpu
@pytest.mark.parametrize(
    "kind,options",
    [
        ("lstm", "lengths"),
        ("lstm", "backwards"),
        ("gru", "mask"),
        ("reset after", "backwards"),
        ("reset after", "lengths"),
        ("rnn", "mask"),
        ("rnn", "plain"),
    ],
)
def test_sequences_and_their_gradients_on_either_device_are_the_same(kind, options):
    layer, arrays = _sequence(kind, **_OPTIONS[options])
    # One trace for both devices: the runtime places it.
    both = tf.function(_with_gradient(layer), autograph=False)
    found = {}
    for device in ("CPU:0", "GPU:0"):
        with tf.device(device):
            found[device] = both(*_on(device, arrays))
        assert all(device in tensor.device for tensor in found[device])
    _assert_close(found["GPU:0"], found["CPU:0"])


@pytest.mark.needs_gpu
@pytest.mark.parametrize("dtype,tolerance", [(tf.float64, 1e-12), (tf.float16, 1e-2)])
def test_sequences_of_other_types_on_the_gpu_are_the_cpus(dtype, tolerance):
    layer, arrays = _sequence("gru")
    arrays = [array.astype(dtype.as_numpy_dtype) for array in arrays]
    both = tf.function(_with_gradient(layer), autograph=False)
    with tf.device("CPU:0"):
        expected = both(*_on("CPU:0", arrays))
    _assert_close(both(*_on("GPU:0", arrays)), expected, tolerance)


@pytest.mark.needs_gpu
@pytest.mark.parametrize("layer", [_sequence()[0], _cells], ids=["sequence", "cells"])
@pytest.mark.parametrize("inputs", ["CPU:0", "GPU:0"])
def test_a_sequence_is_native_where_it_runs_on_the_cpu_and_else_the_loop(layer, inputs):
    def on(device):
        def call(*tensors):
            with tf.device(device):
                return layer(*tensors)

        return call

    tensors = _on(inputs, _sequence()[1])
    assert _places(on("CPU:0"), *tensors) == {("RecurrentSequence", "CPU:0")}
    assert _places(on("GPU:0"), *tensors) == {("StatelessTensorIterator", "GPU:0")}
    assert _places(layer, *tensors) == {("RecurrentSequence", "GPU:0")}  # which calls its loop
    with tf.device("CPU:0"):
        assert _places(layer, *tensors) == {("RecurrentSequence", "CPU:0")}
        gradients = {("RecurrentSequence", "CPU:0"), ("RecurrentSequenceGrad", "CPU:0")}
        assert _places(_gradient(layer), *tensors) == gradients


@pytest.mark.needs_gpu
def test_an_eager_sequence_is_native_where_it_is_asked_to_be_or_its_inputs_are(monkeypatch):
    layer, arrays = _sequence()
    loops = []

    def run(*arguments):
        loops.append(arguments)
        return unfused(*arguments)

    unfused = recurrent_ops.unfused.run
    monkeypatch.setattr(recurrent_ops.unfused, "run", run)
    on_cpu, on_gpu = _on("CPU:0", arrays), _on("GPU:0", arrays)

    def asked(device, tensors):
        with tf.device(device):
            return layer(*tensors)

    calls = {
        "inputs on the CPU": (lambda: layer(*on_cpu), "CPU:0"),
        "asked for the CPU": (lambda: asked("CPU:0", on_gpu), "CPU:0"),
        "inputs on the GPU": (lambda: layer(*on_gpu), "GPU:0"),
        "inputs on both": (lambda: layer(on_cpu[0], *on_gpu[1:]), "GPU:0"),
        "asked for the GPU": (lambda: asked("GPU:0", on_cpu), "GPU:0"),
    }
    for name, (call, device) in calls.items():
        loops.clear()
        results = call()
        assert [device in result.device for result in results] == [True] * 3, name
        assert len(loops) == (device == "GPU:0"), name


@pytest.mark.needs_gpu
@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize("forward", ["CPU:0", "GPU:0", None])
@pytest.mark.parametrize("backward", ["CPU:0", "GPU:0"])
def test_a_sequence_and_its_gradient_may_be_asked_for_on_different_devices(
    forward, backward, is_graph
):
    layer, arrays = _sequence()

    def compute(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            with tf.device(forward):
                total = tf.add_n([tf.reduce_sum(result) for result in layer(*tensors)])
        with tf.device(backward):
            return tape.gradient(total, tensors)

    found = (tf.function(compute, autograph=False) if is_graph else compute)(*_on("GPU:0", arrays))
    with tf.device("CPU:0"):
        _assert_close(found, _gradient(layer)(*_on("CPU:0", arrays)))


@pytest.mark.needs_gpu
def test_second_gradients_of_sequences_are_the_cpus():
    layer, arrays = _sequence("rnn")
    second = tf.function(_gradient(_gradient(layer)), autograph=False)
    with tf.device("CPU:0"):
        reference = second(*_on("CPU:0", arrays))
        exact = second(*_on("CPU:0", [array.astype(np.float64) for array in arrays]))
    as_exact(second(*_on("GPU:0", arrays)), reference, exact, 1e-5)


@pytest.mark.needs_gpu
def test_sequences_of_many_lanes_are_the_cpus():
    layer, (x, *others) = _sequence("gru")
    lanes = np.stack([x, -x, 2 * x])

    @functools.partial(tf.function, autograph=False)
    def mapped(lanes, *others):
        return tf.vectorized_map(lambda x: layer(x, *others), lanes)

    with tf.device("CPU:0"):
        expected = mapped(*_on("CPU:0", [lanes, *others]))
    _assert_close(mapped(*_on("GPU:0", [lanes, *others])), expected)


@pytest.mark.needs_gpu
def test_a_sequence_without_its_loop_is_computed_by_the_cpu_and_copied():
    # As earlier versions have saved it.
    layer, arrays = _sequence()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrent_ops, "add_loop", lambda *arguments: None)
        old = tf.function(_with_gradient(layer), autograph=False)
        found = old(*_on("GPU:0", arrays))
        places = _places(_gradient(layer), *_on("GPU:0", arrays))
    assert places == {("RecurrentSequence", "GPU:0"), ("RecurrentSequenceGrad", "GPU:0")}
    with tf.device("CPU:0"):
        _assert_close(found, _with_gradient(layer)(*_on("CPU:0", arrays)))


_MODEL = """
import sys

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

import tf_ti


class Model(tf.Module):
    def __init__(self):
        shapes = [[1, 16, 3], [1, 16, 4], [1, 16]]
        values = [np.sin(np.arange(np.prod(shape))).reshape(shape) for shape in shapes]
        self.weights = [tf.Variable(value, dtype=tf.float32) for value in values]

    def layer(self, x):
        state = tf.zeros([tf.shape(x)[0], 1, 4])
        return tf_ti.lstm_sequence(x, state, state, None, *self.weights)[0]

    @tf.function(input_signature=[tf.TensorSpec([None, None, 3])], autograph=False)
    def train(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.layer(x) ** 2)
        return [loss, *tape.gradient(loss, self.weights)]


def main(does, folder):
    x = tf.ones([2, 5, 3])
    if does == "save":
        model = Model()
        tf.saved_model.save(model, folder)
        np.savez(folder + "/expected.npz", *model.train(x))
    model = tf.saved_model.load(folder)
    context.enable_run_metadata()
    context.export_run_metadata()  # of what ran before
    found = model.train(x)
    runs = context.export_run_metadata().function_graphs
    context.disable_run_metadata()
    for got, want in zip(found, np.load(folder + "/expected.npz").values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    nodes = [node for run in runs for graph in run.partition_graphs for node in graph.node]
    return sorted({f"{n.op} on {n.device[-5:]}" for n in nodes if n.op.startswith("TfTi>")})
"""


@needs_gpu_plugin
@pytest.mark.parametrize("makes,serves", [("CPU:0", "GPU:0"), ("GPU:0", "CPU:0")])
def test_a_model_that_was_saved_on_one_device_runs_on_the_other(
    run_program, tmp_path, makes, serves
):
    folder, here = str(tmp_path / "model"), {}
    exec(_MODEL, here)  # a process without the plugin has no GPU
    for device, does in ((makes, "save"), (serves, "load")):
        if device == "GPU:0":
            printed = str(here["main"](does, folder))
        else:
            run = run_program(f"{_MODEL}\nprint(main(*sys.argv[1:]))", does, folder)
            printed = run.stdout.splitlines()[-1]
        ops = ("TfTi>RecurrentSequence", "TfTi>RecurrentSequenceGrad")
        assert printed == str([f"{op} on {device}" for op in ops])


@pytest.mark.needs_gpu
def test_layers_of_keras_are_native_on_the_cpu(recwarn):
    x = _floats(np.random.default_rng(0), 2, 5, 3)
    with tf.device("CPU:0"):
        layer = tf_ti.keras.LSTM(4)
        found = [layer(tf.constant(x)), tf.function(layer, autograph=False)(tf.constant(x))]
        native = _places(lambda x: layer(x), tf.constant(x))
        assert layer.how_it_runs() == "one native op"
    assert native == {("RecurrentSequence", "CPU:0")}
    assert not [w for w in recwarn if "runs Keras's loop" in str(w.message)]
    with pytest.warns(UserWarning, match="runs Keras's loop: there is a GPU"), tf.device("GPU:0"):
        on_gpu = layer(tf.constant(x))
        assert layer.how_it_runs() == "Keras's loop: there is a GPU"
    _assert_close(found, [on_gpu] * 2)
