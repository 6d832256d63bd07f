"""C++ of the benchmarks, compiled for this machine when one runs."""

import ctypes
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def compile_source(name: str, *flags: str) -> ctypes.CDLL:
    """Compiles a source of this folder. OSError or CalledProcessError: there is no compiler."""
    return _compile(name, ["-O3", "-march=native", *flags], ctypes.CDLL)


def compile_operations(name: str) -> Any:
    """Compiles a source of this folder that defines operations: a module of them."""
    compiling, linking = tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags()
    # Without warnings: TensorFlow's headers have some.
    return _compile(name, ["-O1", "-w", *compiling], tf.load_op_library, linking)


def _compile(
    name: str, flags: Sequence[str], load: Callable[[str], Any], libraries: Sequence[str] = ()
) -> Any:
    source = pathlib.Path(__file__).with_name(name)
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "library.so")
        command = [os.environ.get("CXX", "g++"), "-shared", "-fPIC", "-pthread", *flags]
        subprocess.run([*command, str(source), "-o", library, *libraries], check=True)
        return load(library)
