"""C++ that finds the limits of a machine, compiled for it when a benchmark runs."""

import ctypes
import os
import pathlib
import subprocess
import tempfile


def compile_source(name: str, *flags: str) -> ctypes.CDLL:
    """Compiles a source of this folder. OSError or CalledProcessError: there is no compiler."""
    source = pathlib.Path(__file__).with_name(name)
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "library.so")
        command = [os.environ.get("CXX", "g++"), "-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run([*command, "-pthread", *flags, str(source), "-o", library], check=True)
        return ctypes.CDLL(library)
