"""Fixtures shared by the tests: seeds, processes of their own, a loop written out in TensorFlow."""

import contextlib
import ctypes
import dataclasses
import faulthandler
import functools
import gc
import itertools
import json
import os
import pathlib
import random
import re
import select
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
from patience import HANGS, SANITIZED
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import load_library

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_SCRIPT_SERVER = pathlib.Path(__file__).parent / "common" / "script_server.py"

# Processes that tests start begin with these variables.
_ENVIRONMENT = dict(os.environ)

# Marks of tests that only a CPU can pass.
_ON_CPU = (
    "needs_checked_ids",
    "needs_cpu_kernels",
    "needs_native_sequences",
    "needs_programs",
)

# A test with so many cases runs a quarter of them, where a mark asks for that.
_LONG_TABLE = 8

_MISSING = re.compile(
    "compiler for platform PLUGIN|Cannot assign a device for operation (?!TfTi)[^:]+"
)

faulthandler.enable()

# A GPU computes products of float32 in full, as the oracles do.
tf.config.experimental.enable_tensor_float_32_execution(False)

# The GPU of a TensorFlow that was built without CUDA: see gpu/plugin/run.py.
if "TF_TI_GPU_PLUGIN" in os.environ:
    load_library.load_pluggable_device_library(os.environ["TF_TI_GPU_PLUGIN"])
    # Without it all would be skipped, or pass on the processor.
    assert tf.config.list_physical_devices("GPU"), "TensorFlow does not take the plugin for a GPU"
    if "TF_TI_GPU_PLUGIN_BLOCKS" in os.environ:
        ctypes.CDLL(os.environ["TF_TI_GPU_PLUGIN"]).gpu_plugin_block(1)

# OpenVINO loads libraries in a way that the address sanitizer does not survive.
if SANITIZED:
    collect_ignore_glob = ["openvino", "oracles/*_openvino.py", "keras/test_openvino.py"]


def _pairwise(cases):
    """Chooses cases of one test in which each pair of values of two parameters occurs.

    The mark's `without` tells of parameters that do not go together: of such a case nothing runs.
    """
    without = cases[0].get_closest_marker("pairwise").kwargs.get("without")
    if without is not None:
        cases = [case for case in cases if not without(**case.callspec.params)]
    pairs = []
    for case in cases:
        values = [(name, id(value)) for name, value in sorted(case.callspec.params.items())]
        pairs.append(set(itertools.combinations(values, 2)))
    missing, chosen = set().union(*pairs), []
    while missing:
        best = max(range(len(cases)), key=lambda i: len(pairs[i] & missing))
        chosen.append(cases[best])
        missing -= pairs[best]
    assert chosen, f"{cases[0].nodeid} has no two parameters"
    return chosen


@functools.cache
def _head():
    """The commit that is checked out when this is first called; "" where git does not know."""
    command = ["git", "-c", "safe.directory=*", "-C", str(_ROOT), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def _commit(config):
    """The commit that is tested: for xdist's workers, which must choose the same, the run's."""
    return config.workerinput["commit"] if hasattr(config, "workerinput") else _head()


@pytest.hookimpl(optionalhook=True)  # xdist's, which may not be there
def pytest_configure_node(node):
    node.workerinput["commit"] = _head()


def pytest_addoption(parser):
    parser.addoption(
        "--all-seeds",
        action="store_true",
        help="run all random cases and long tables, not only the quarter that the commit chooses",
    )


def pytest_report_header(config):
    if config.getoption("--all-seeds"):
        return "seeds: all"
    commit = _commit(config)
    return f"seeds: quarter {_quarter(commit)} of 0 to 3, by commit {commit[:12] or 'unknown'}"


def _quarter(commit):
    return int(commit[:8] or "0", 16) % 4


def _is_random(case):
    return hasattr(case, "callspec") and "seed" in case.callspec.params


def _of_quarter(cases, quarter):
    """Chooses one case of each four; of random ones, that differ in their seeds alone.

    Each four is shuffled by itself, as tests derive options from seed % 2 or % 3.
    """
    by_rest = {}
    for case in cases:
        given = sorted(case.callspec.params.items()) if _is_random(case) else ()
        rest = tuple((name, id(value)) for name, value in given if name != "seed")
        by_rest.setdefault(rest, []).append(case)
    chosen = []
    for number, group in enumerate(by_rest.values()):
        for i in range(0, len(group), 4):
            four = group[i : i + 4]
            random.Random(f"{number} {i}").shuffle(four)
            chosen.append(four[quarter % len(four)])
    return chosen


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Chooses the cases that run, and marks all but two of each test as slow."""
    tests = {}
    for item in items:
        tests.setdefault((item.path, item.originalname), []).append(item)
    quarter = None if config.getoption("--all-seeds") else _quarter(_commit(config))
    chosen = set()
    for cases in tests.values():
        has_quarters = cases[0].get_closest_marker("quarter") and len(cases) >= _LONG_TABLE
        if cases[0].get_closest_marker("pairwise"):
            cases = _pairwise(cases)
        else:
            has_quarters = has_quarters or _is_random(cases[0])
        if has_quarters and quarter is not None:
            cases = _of_quarter(cases, quarter)
        for case in cases[1:-1]:
            case.add_marker("slow")
        chosen.update(cases)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def pytest_collection_finish():
    """Python seldom looks for garbage. It leaves out all objects that there are now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)  # graphs that TensorFlow traces are many objects


def _has_gpu():
    """Returns true if operations run on a GPU where nobody asks for another device."""
    return bool(tf.config.list_physical_devices("GPU"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Runs tests that only a CPU can pass on the CPU, with their fixtures."""
    is_on_cpu = any(map(item.get_closest_marker, _ON_CPU)) and _has_gpu()
    with tf.device("CPU:0") if is_on_cpu else contextlib.nullcontext():
        return (yield)


def pytest_runtest_setup(item):
    if item.get_closest_marker("needs_gpu") and not _has_gpu():
        pytest.skip("there is no GPU")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call():
    """Skips tests that compile operations of tf_ti, where there are none for XLA.

    The rooms' tests on the GPU of gpu/plugin are skipped too where this GPU has no XLA, or lacks a
    kernel of TensorFlow's.
    """
    try:
        return (yield)
    # An assertion of another error's text holds this one.
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError, AssertionError) as error:
        missing = _MISSING.search(str(error)) if "TF_TI_GPU_PLUGIN_BLOCKS" in os.environ else None
        if missing:
            pytest.skip(f"not on this GPU: {missing[0]}")
        from tf_ti._library import XLA_PROBLEM  # the first test to import tf_ti may tell of it

        words = ("Detected unsupported operations", "TfTi>")
        if XLA_PROBLEM is None or not all(word in str(error) for word in words):
            raise
        pytest.skip(XLA_PROBLEM)


@pytest.fixture(autouse=True)
def no_global_seed():
    """A test that sets TensorFlow's global seed sets it for itself alone."""
    yield
    if context.global_seed() is not None:
        tf.random.set_seed(None)


@pytest.fixture(autouse=True)
def no_acceleration():
    """A test that lets TensorFlow's loops run as tf_ti's does so for itself alone."""
    yield
    if "tf_ti.accelerate" in sys.modules:
        assert not sys.modules["tf_ti.accelerate"].settings.current().loops


@pytest.fixture
def seed(request):
    """The number of a random case; pytest shows the line below when the test fails."""
    print(f"seed {request.param}")
    tf.random.set_seed(request.param)
    return request.param


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


def _environment():
    """The environment of a test's process, which sees no GPU if the test is on the CPU."""
    is_on_cpu = "CPU" in (context.context().device_name or "")
    return {**os.environ, "CUDA_VISIBLE_DEVICES": ""} if is_on_cpu else dict(os.environ)


@pytest.fixture
def sequences_as_on_a_gpu(monkeypatch):
    """The Python code takes the processor for a GPU, and sequences' ops run their loops there."""
    from tf_ti import _tf
    from tf_ti.recurrent import ops

    add_loop = ops.add_loop

    def add_and_choose_loop(output, like=None):
        add_loop(output, like)
        if not isinstance(output, _tf.EagerTensor) and output.op.get_attr("loop"):
            output.op._set_attr("_kernel", attr_value_pb2.AttrValue(s=b"loop"))

    monkeypatch.setattr(ops, "add_loop", add_and_choose_loop)
    monkeypatch.setattr(ops, "staying_with", lambda tensors: contextlib.nullcontext())
    for module in (_tf, _tf.devices):
        monkeypatch.setattr(module, "has_gpu", lambda: True)


@dataclasses.dataclass(frozen=True)
class Finished:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="session")
def run_python(tmp_path_factory):
    """Runs a Python file, `-m` module or `-c` code, in a process that has imported TensorFlow."""
    outputs = [tmp_path_factory.mktemp("outputs") / name for name in ("stdout", "stderr")]
    server = None

    def finish(status):
        return Finished(status, *(path.read_text("utf-8", "replace") for path in outputs))

    def run(*command, cwd, timeout=HANGS):
        nonlocal server
        if server is None or server.poll() is not None:
            server = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", _SCRIPT_SERVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=_ENVIRONMENT,
                start_new_session=True,
            )
        request = {
            "command": list(map(str, command)),
            "environment": _environment(),
            "folder": str(cwd),
            "streams": [os.devnull, *map(str, outputs)],
        }
        print(json.dumps(request), file=server.stdin, flush=True)
        if not select.select([server.stdout], [], [], timeout)[0]:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            pytest.fail(f"{command} has not ended after {timeout} s: {finish(None)}")
        status = server.stdout.readline()
        if not status:
            server.wait()
            pytest.fail(f"{command} ended the process that started it: {finish(None)}")
        return finish(int(status))

    yield run
    if server is not None:
        server.communicate()


@pytest.fixture
def run_program(tmp_path, run_python):
    """Runs a Python program in a process of its own and checks that it neither fails nor hangs.

    A process that hangs prints the stacks of all its threads before it is killed. The process has
    imported TensorFlow already, unless the program `is_first`: where it tells what is imported, or
    sets variables that TensorFlow reads meanwhile.
    """

    def run_first(path, *arguments, cwd, timeout):
        finished = subprocess.run(
            [sys.executable, "-X", "faulthandler", str(path), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
            env=_environment(),
        )
        return Finished(finished.returncode, finished.stdout, finished.stderr)

    def run(program, *arguments, timeout=HANGS, check=True, is_first=False):
        path = tmp_path / "program.py"
        path.write_text(
            "import faulthandler\n"
            f"faulthandler.dump_traceback_later({timeout - 10}, exit=True)\n"
            + textwrap.dedent(program)
        )
        runner = run_first if is_first else run_python
        result = runner(path, *arguments, cwd=tmp_path, timeout=timeout)
        if check:
            assert result.returncode == 0, f"{result.stdout}\n{result.stderr[-6000:]}"
        return result

    return run


def _piece_positions(port, extent):
    """The elements of a sliced port's piece, for each iteration."""
    start = port.start + extent if port.start < 0 else port.start
    end = port.end + extent if port.end < 0 else port.end
    size = abs(port.stride) if port.part_size is None else port.part_size
    direction = 1 if port.stride > 0 else -1
    positions = []
    while extent > 0:
        elements = [start + direction * i for i in range(size)]
        if any((end - element) * direction < 0 for element in elements):
            break
        positions.append(sorted(elements))
        start += port.stride
    return positions


@pytest.fixture
def piece_positions():
    return _piece_positions


@pytest.fixture
def unrolled():
    """`tensor_iterator` as a Python loop over TensorFlow ops: the oracle for gradients."""

    def run(body, inputs, port_map, back_edges=(), num_iterations=None):
        parameters = [None] * len(port_map.inputs)
        pieces = {}
        for port in port_map.inputs:
            tensor = tf.convert_to_tensor(inputs[port.external_port_id])
            if port.axis is None:
                parameters[port.internal_layer_id] = tensor
            else:
                positions = _piece_positions(port, tensor.shape[port.axis])
                num_iterations = len(positions)
                pieces[port.internal_layer_id] = [
                    tf.gather(tensor, where, axis=port.axis) for where in positions
                ]
        initial, history = list(parameters), []
        for k in range(num_iterations):
            for parameter, values in pieces.items():
                parameters[parameter] = values[k]
            results = body(*parameters)
            results = results if isinstance(results, (list, tuple)) else [results]
            history.append(results)
            for edge in back_edges:
                parameters[edge.to_layer] = results[edge.from_layer]
        outputs = []
        for port in sorted(port_map.outputs, key=lambda port: port.external_port_id):
            values = [results[port.internal_layer_id] for results in history]
            if port.axis is None:
                feeds = [e.to_layer for e in back_edges if e.from_layer == port.internal_layer_id]
                outputs.append(values[-1] if values else initial[feeds[0]])
                continue
            values = values if port.stride > 0 else values[::-1]
            scalar = values[0].shape.rank == 0
            outputs.append(tf.stack(values) if scalar else tf.concat(values, port.axis))
        return tuple(outputs)

    return run
