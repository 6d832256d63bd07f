"""Runs the tests of a GPU, with any build of TensorFlow.

    python3 tests/gpu/plugin/run.py [--emulate | --architecture N] [pytest's arguments]

Needs the Python that has TensorFlow, pytest and what requirements/runtime.txt names, and a GPU.

Where TensorFlow was built for CUDA and sees a GPU, tf_ti must be installed, from a wheel with its
CUDA kernels: it is tested, by the tests of all that runs on a GPU.

With a TensorFlow for CPUs tests/gpu/test_ops.py alone is run. That needs make and a C++ compiler,
and CUDA's nvcc (in PATH, or under CUDA_HOME). Builds, with the sources of this checkout, tf_ti's
library with its CUDA kernels, and a pluggable device made of CUDA's runtime, which TensorFlow takes
for its GPU; nothing is downloaded.

With --emulate the GPU is not there: Bazel builds both, without nvcc and make. With --architecture,
a compute capability such as 90, the driver is not asked for that of its GPU before all is built.

Exit status: pytest's, where it is run; 2 bad arguments, or a package is missing or is not for a
GPU; 3 it does not build; 4 no GPU here; 5 a GPU, but no nvcc.
"""

import argparse
import ctypes
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "gpu_check"))

import check  # noqa: E402

BAD_ARGUMENTS = 2
PLUGIN = "tests/gpu/plugin"
# The tests of all that runs on a GPU.
ROOMS = ("gpu", "loops", "bags", "xla", "recurrent", "keras")
LIBRARIES = ("_tf_ti.so", "_gpu_plugin.so")
PACKAGES = ("tensorflow", "numpy", "wrapt", "defusedxml", "pytest")
# Of a package whose library has no kernels for XLA; see bazel/build_info.bzl.
BUILD_INFO = """\
TENSORFLOW_VERSION = "{tensorflow}"
COMPILER = "{compiler}"
FLAGS = ""
CUDA = "{cuda}"
XLA = False
"""


def require_packages() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise check.Stop(
            BAD_ARGUMENTS,
            f"{sys.executable} has no {', '.join(missing)}: install tensorflow-cpu, pytest and "
            "requirements/runtime.txt. docs/develop/gpu.md says how they travel to a machine "
            "without the internet",
        )


def make(nvcc: str, architecture: str, out: pathlib.Path) -> None:
    """Builds the libraries for a GPU, in the folder `out`."""
    import tensorflow as tf

    command = ["make", "--silent", f"--directory={ROOT / PLUGIN}", f"--jobs={os.cpu_count()}"]
    command += [f"OUT={out}", f"NVCC={nvcc}", f"ARCHITECTURE={architecture}"]
    command += [f"CPPFLAGS={' '.join(tf.sysconfig.get_compile_flags())}"]
    command += [f"LDLIBS={' '.join(tf.sysconfig.get_link_flags())}"]
    # Not make's jobs, where make runs this.
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    if subprocess.run(command, env=environment, check=False).returncode:
        raise check.Stop(check.NO_BUILD, "it does not build")


def build(nvcc: str | None, architecture: str | None) -> pathlib.Path:
    """Builds for a GPU, or for the emulation. Returns the folder that has the package."""
    import tensorflow as tf

    kind = "emulation" if nvcc is None else f"sm_{architecture}"
    out = ROOT / ".cache" / "gpu_plugin" / tf.__version__ / kind
    if nvcc is None:
        check.build_emulated(PLUGIN, LIBRARIES, out)
    else:
        make(nvcc, architecture, out)
    package = out / "package" / "tf_ti"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "tf_ti", package, ignore=shutil.ignore_patterns("_tf_ti*.so"))
    for library in LIBRARIES:
        shutil.copy(out / library, package)
    info = BUILD_INFO.format(
        tensorflow=tf.__version__, compiler=os.environ.get("CXX", "g++"), cuda=nvcc or ""
    )
    (package / "_build_info.py").write_text(info, encoding="utf-8")
    plugin = ctypes.CDLL(str(package / "_gpu_plugin.so"))
    plugin.gpu_plugin_problem.restype = ctypes.c_char_p
    problem = plugin.gpu_plugin_problem().decode()
    if problem:
        raise check.Stop(check.NO_GPU, problem)
    return package


def is_for_cuda() -> bool:
    """Returns true if TensorFlow was built for CUDA and sees a GPU."""
    import tensorflow as tf

    return tf.test.is_built_with_cuda() and bool(tf.config.list_physical_devices("GPU"))


def require_installed() -> None:
    if importlib.util.find_spec("tf_ti") is not None:
        from tf_ti import _build_info

        if _build_info.CUDA:
            return
    raise check.Stop(
        BAD_ARGUMENTS,
        f"{sys.executable} has no tf_ti with CUDA kernels: install the wheel of "
        "make wheel CONFIG=cuda",
    )


def run(arguments: argparse.Namespace, pytest_arguments: list[str]) -> int:
    require_packages()
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *pytest_arguments]
    if not (arguments.emulate or arguments.architecture) and is_for_cuda():
        require_installed()
        # From tests/, where the checkout's tf_ti does not hide the installed one.
        return subprocess.run(
            [*pytest, *(arguments.rooms or ROOMS)], cwd=ROOT / "tests", check=False
        ).returncode
    nvcc, architecture = None, arguments.architecture
    if not arguments.emulate:
        architecture = architecture or check.find_gpu().architecture
        nvcc = check.find_nvcc()
    package = build(nvcc, architecture)
    environment = {
        **os.environ,
        "PYTHONPATH": str(package.parent),
        "TF_TI_GPU_PLUGIN": str(package / "_gpu_plugin.so"),
        # Tests hold all that is enqueued. A kernel that is loaded when it is first launched may
        # wait for that, and so may a stream that shares a queue of the hardware with a held one.
        "CUDA_MODULE_LOADING": "EAGER",
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    }
    # The emulation's report of a wrong access survives the process, which it ends.
    command = [*pytest, "--capture=no"]
    if arguments.rooms:
        environment["TF_TI_GPU_PLUGIN_BLOCKS"] = "1"
        command += arguments.rooms
    else:
        command.append("gpu/test_ops.py")
    return subprocess.run(command, env=environment, cwd=ROOT / "tests", check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--emulate", action="store_true", help="on a GPU that is not there")
    kinds.add_argument("--architecture", metavar="N", help="the GPU's compute capability")
    parser.add_argument(
        "--rooms",
        nargs="+",
        choices=ROOMS,
        help="the tests of these rooms; each call waits for its work",
    )
    arguments, pytest_arguments = parser.parse_known_args()
    try:
        return run(arguments, pytest_arguments)
    except check.Stop as stop:
        check.say(str(stop))
        return stop.status


if __name__ == "__main__":
    sys.exit(main())
