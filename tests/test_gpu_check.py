"""The GPU code of cc/compute, emulated on the processor; and gpu_check where there is no GPU.

Needs a C++ compiler and the checkout's sources, not the installed package.
"""

import importlib.util
import os
import pathlib
import select
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHECK = ROOT / "gpu_check" / "check.py"


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler")
def test_emulated_kernels_agree_with_the_processors_code():
    result = subprocess.run(
        [sys.executable, str(CHECK), "--emulate", "--seconds", "8"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("random cases, from seed 1: ok") == 2
    assert "elements: ok" in result.stdout
    assert "sums and roundings, from seed 1: ok" in result.stdout


@pytest.fixture
def module():
    """check.py, to be called in parts."""
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
    with pytest.raises(subprocess.TimeoutExpired):
        module.run_group(["sh", "-c", f"(echo begun; exec sleep 60) >{pipe} & wait"], timeout=2)
    assert os.read(reader, 100) == b"begun\n"
    assert select.select([reader], [], [], 10)[0]
    assert os.read(reader, 100) == b""
    os.close(reader)
