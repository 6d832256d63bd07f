"""The GPU code of cc/compute, emulated on the processor; and gpu_check where there is no GPU.

Needs a C++ compiler and the checkout's sources, not the installed package.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHECK = ROOT / "gpu_check" / "check.py"


def check(*options: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(CHECK), *options],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **environment},
    )


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler")
def test_emulated_kernels_agree_with_the_processors_code():
    result = check("--emulate", "--seconds", "8")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("random cases, from seed 1: ok") == 2
    assert "elements: ok" in result.stdout
    assert "sums and roundings, from seed 1: ok" in result.stdout


def test_without_a_compiler_for_gpus_it_says_no_gpu_here(tmp_path):
    result = check(PATH=str(tmp_path), CUDA_HOME=str(tmp_path), CUDA_PATH=str(tmp_path))
    if "GPU:" in result.stdout:
        pytest.skip("there is a GPU and a compiler for it")
    assert "no GPU here" in result.stdout
    assert result.returncode == 4
