"""The GPU code of cc/compute, emulated on the processor; and gpu_check where there is no GPU.

Needs Bazel and the checkout's sources, not the installed package.
"""

import importlib.util
import os
import pathlib
import re
import select
import shutil
import subprocess
import sys

import pytest
from patience import HANGS, SANITIZED

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECK = ROOT / "gpu_check" / "check.py"


@pytest.mark.slow
@pytest.mark.skipif(SANITIZED, reason="not built for it")
def test_emulated_kernels_agree_with_the_processors_code(module):
    result = subprocess.run(
        [sys.executable, str(CHECK), "--emulate", "--seconds", "4"],
        capture_output=True,
        text=True,
        timeout=2 * HANGS,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("random cases, from seed 1: ok") == 5
    for stage in ("elements: ok", "ids: ok", "sums and roundings, from seed 1: ok"):
        assert stage in result.stdout
    assert result.stdout.count("calls were enqueued before the device came to them") == 2
    has_torch = importlib.util.find_spec("torch") is not None
    for case, operation in module.times_table.GOALS:
        line = re.search(rf"^\| {case} +\| {operation} .*$", result.stdout, re.MULTILINE)
        assert ("not measured" in line[0]) != has_torch


@pytest.fixture
def module(monkeypatch):
    """check.py, to be called in parts."""
    monkeypatch.syspath_prepend(str(CHECK.parent))
    spec = importlib.util.spec_from_file_location("gpu_check", CHECK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_driver_it_says_no_gpu_here(module, monkeypatch, capsys):
    def load(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(module.ctypes, "CDLL", load)
    monkeypatch.setattr(sys, "argv", ["check.py"])
    assert module.main() == 4
    assert "no GPU here: no driver" in capsys.readouterr().out


def test_a_gpu_without_a_compiler_for_it_is_another_failure(module, monkeypatch, capsys):
    monkeypatch.setattr(module, "find_gpu", lambda: "90")
    monkeypatch.setattr(module.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(sys, "argv", ["check.py"])
    assert module.main() == 5
    assert "no nvcc" in capsys.readouterr().out


def test_what_a_stopped_command_has_started_ends_with_it(module, tmp_path):
    # Nobody has the pipe's other end open any longer, once its child is gone.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    said, timeout = b"", 1
    while said != b"begun\n":  # where others have the processors, a second may be too short
        timeout *= 2
        with pytest.raises(subprocess.TimeoutExpired):
            module.run_group(
                ["sh", "-c", f"(echo begun; exec sleep 1000) >{pipe} & wait"], timeout=timeout
            )
        said = os.read(reader, 100)
    assert select.select([reader], [], [], 60)[0]
    assert os.read(reader, 100) == b""
    os.close(reader)


# Times


COPY = {"copy_us": 1000.0, "copy_bytes": 2_000_000_000, "empty_us": 2.0, "cuda": "12.9"}


def _row(case="10m", operation="forward", cold_us=100.0, **changes):
    row = {
        "case": case,
        "operation": operation,
        "rows": 1000,
        "width": 128,
        "bags": 10,
        "ids_per_bag": 50,
        "tables": 1,
        "kind": "offsets",
        "dtype": "float32",
        "index": "int64",
        "ids": "uniform",
        "reduction": "sum",
        "weights": False,
        "bytes": 320_000_000,
        "least_bytes": 1_000_000,
        "cold_us": cold_us,
        "warm_us": 50.0,
    }
    return {**row, **changes}


def test_a_copy_moves_what_it_reads_and_what_it_writes(module):
    table = module.times_table
    assert table.copy_rate(COPY) == 4e6  # bytes a microsecond: 4 TB/s
    assert table.share_of_copy(_row(), COPY) == 0.8


@pytest.mark.parametrize(
    ("row", "theirs", "met"),
    [
        (_row(cold_us=100.0), 112.0, [True, True]),
        (_row(cold_us=101.0), 112.0, [False, False]),
        (_row("1m_packed", bytes=240_000_000), None, [True, None]),
        (_row("1m_offsets", bytes=199_000_000), 200.0, [False, True]),
        (_row(operation="forward, backward"), 140.0, [False]),
        (_row(operation="step, SGD"), 200.0, [True]),
        (_row("giant"), 1.0, []),
    ],
)
def test_goals(module, row, theirs, met):
    key = (row["case"], row["operation"])
    torch_rows = {} if theirs is None else {key: {"cold_us": theirs}}
    table = module.times_table
    assert [is_met for _, is_met in table.verdicts(row, COPY, torch_rows)] == met
    said = table.goals(COPY, [row], torch_rows)
    assert said.startswith(f"goals: {met.count(True)} of {len(met)} are met")
    assert said.count("MISSED") == met.count(False)
    assert said.count("not measured") == met.count(None)


def test_the_table_of_times_is_markdown_with_a_line_for_each_measurement(module):
    rows = [_row(), _row("26_tables", tables=26, kind="packed")]
    torch_rows = {("10m", "forward"): {"cold_us": 200.0}}
    text = module.times_table.table("A GPU", COPY, rows, torch_rows, "torch 2")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == 2 + len(rows)
    cells = [cell.strip() for cell in lines[2].split("|")]
    assert cells[1:3] == ["10m", "forward"]
    assert {"100.0", "200.0", "0.50", "80%", "3.20"} <= set(cells)
    assert "26 tables of 1000 rows" in text


def _report(spilled):
    return f"""
ptxas info    : Compiling entry function '_Z4Poolv' for 'sm_70'
ptxas info    : Function properties for _Z4Poolv
    8 bytes stack frame, 4 bytes spill stores, {spilled} bytes spill loads
ptxas info    : Used 64 registers, 8 bytes cumulative stack size, 384 bytes cmem[0]
ptxas info    : 48 bytes gmem
ptxas info    : Compiling entry function '_Z7Combinev' for 'sm_90'
ptxas info    : Function properties for _Z7Combinev
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 51 registers
"""


@pytest.mark.parametrize("spilled,status", [(28, 0), (136, 1)])
def test_a_kernel_that_spills_registers_is_named(tmp_path, spilled, status):
    (tmp_path / "pool").write_text(_report(spilled))
    said = subprocess.run(
        [sys.executable, ROOT / "gpu_check" / "registers.py", tmp_path / "pool"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == status, said.stderr
    assert f"| sm_70 | 1 | 64 | 1 | {spilled} |" in said.stdout
    assert "| sm_90 | 1 | 51 | 0 | 0 |" in said.stdout
    assert (f"sm_70: {spilled} bytes spilled by" in said.stdout) == bool(status)


def test_a_plugin_for_the_gpu_at_hand_needs_one(tmp_path):
    # A driver that is none: where there is a GPU, it is not seen.
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    result = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "gpu" / "plugin" / "run.py")],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=2 * HANGS,
        check=False,
    )
    assert result.returncode == 4, result.stdout + result.stderr
    assert "no GPU here: no driver" in result.stdout


@pytest.fixture
def gpu_test(monkeypatch):
    """plugin/run.py, to be called in parts."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which it adds
    path = ROOT / "tests" / "gpu" / "plugin" / "run.py"
    spec = importlib.util.spec_from_file_location("gpu_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_with_a_tensorflow_for_cuda_the_installed_package_has_the_tests_of_its_rooms(
    gpu_test, monkeypatch, capsys
):
    commands = []

    def run(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(gpu_test, "is_for_cuda", lambda: True)
    monkeypatch.setattr(gpu_test.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["run.py", "-m", "not slow"])
    monkeypatch.setattr("tf_ti._build_info.CUDA", "12.4")
    assert gpu_test.main() == 0
    (command,) = commands
    at = command.index("not slow") + 1
    assert command[at - 2] == "-m" and "loops" in command[at:]
    assert all((ROOT / "tests" / room).is_dir() for room in command[at:])
    monkeypatch.setattr("tf_ti._build_info.CUDA", "")
    assert gpu_test.main() == 2
    assert "has no tf_ti with CUDA kernels" in capsys.readouterr().out
    assert len(commands) == 1


# Builds for a GPU at hand, which nothing here can run


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_the_makefile_for_a_gpu_builds_what_bazel_builds_for_the_emulated_one(tmp_path):
    plugin = ROOT / "tests" / "gpu" / "plugin"
    command = ["make", "-n", "--directory", plugin]
    variables = [f"OUT={tmp_path}", "NVCC=false", "ARCHITECTURE=90"]
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    said = subprocess.run(
        [*command, *variables], env=environment, capture_output=True, text=True, check=True
    ).stdout
    compiled = {pathlib.Path(path) for path in re.findall(r"-c (\S+\.cc)", said)}
    ours = {
        path
        for path in (ROOT / "cc").rglob("*.cc")
        if not {"xla", "testing"} & {*path.parts} and not path.name.endswith("_test.cc")
    }
    assert compiled == ours | {plugin / f"{name}.cc" for name in ("faults", "kernels", "plugin")}
    (listed,) = re.findall(r"^_WRAPPED = \[(.*?)\]", (plugin / "BUILD").read_text(), re.M | re.S)
    assert set(re.findall(r"--wrap=(\w+)", said)) == set(re.findall(r'"(\w+)"', listed))
