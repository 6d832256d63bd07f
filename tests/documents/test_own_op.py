"""The op that the site adds step by step passes its own tests.

It is built as a library of its own, beside tf_ti's, and not with Bazel: only what it names of the
repository is compiled.
"""

import os
import pathlib
import re
import shutil
import subprocess

import pytest
import tensorflow as tf

ROOT = pathlib.Path(__file__).parents[2]
OWN_OP = ROOT / "docs" / "develop" / "own-op"
SOURCES = [
    "cc/ops/decay.cc",
    "cc/kernels/decay/decayed_sum.cc",
    "cc/kernels/threads.cc",
    "cc/compute/decay/decayed_sum.cc",
    "cc/compute/pool_threads.cc",
]
# The package as it would be with the new family in it.
RUN = """
    import sys
    import pytest
    import tensorflow as tf
    import tf_ti
    from tf_ti import _library

    library, package, tests = sys.argv[1:]
    _library.ops = tf.load_op_library(library)
    tf_ti.__path__.append(package)
    from tf_ti.decay import decayed_sum

    tf_ti.decayed_sum = decayed_sum
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", tests]))
"""


@pytest.mark.slow
def test_the_op_of_the_page_passes_its_tests(tmp_path, run_program):
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    # As one file, so that TensorFlow's headers are read once, with all of Eigen.
    (tmp_path / "all.cc").write_text("".join(f'#include "{source}"\n' for source in SOURCES))
    system = [
        f"-isystem{flag[2:]}" if flag.startswith("-I") else flag
        for flag in tf.sysconfig.get_compile_flags()
    ]
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    command += ["-DEIGEN_USE_THREADS="]
    command += [f"-I{ROOT}", f"-I{OWN_OP}", *system, "all.cc", "-o", "own_op.so"]
    command += tf.sysconfig.get_link_flags()
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    run_program(RUN, tmp_path / "own_op.so", OWN_OP / "tf_ti", OWN_OP / "tests")


def test_the_page_shows_each_file_of_the_op():
    page = (OWN_OP.parent / "your-own-op.md").read_text()
    shown = set(re.findall(r"literalinclude\} own-op/(\S+)", page))
    files = {str(p.relative_to(OWN_OP)) for p in OWN_OP.rglob("*.*") if p.suffix != ".pyc"}
    assert shown == files
