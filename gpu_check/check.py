"""Checks and times the GPU code of cc/compute, without TensorFlow.

    python3 gpu_check/check.py [--seed N] [--seconds S] [--limit S] [--table FILE] [--emulate]

Needs CUDA's nvcc (in PATH, or under CUDA_HOME), a C++ compiler and a GPU. Builds cc/compute for
that GPU, and as the PTX that other GPUs get. Then, one stage after another: every kernel on random
inputs, beside the processor's code in float64; times beside a copy and torch's embedding_bag, where
there is torch with CUDA, as one table with the goals; the kernels on a stream that does not block,
behind a kernel that delays; with giant bags, huge tables, more than 2^31 ids; under each of
compute-sanitizer's tools, where it is there; and as PTX. Each stage has its own limit of time. A
stage that fails, or does not end in time, does not keep the others from running.

With --emulate the kernels run on the processor, on small inputs. That needs Bazel, or what
bazel/bazel.sh gets it with, and a Python that has TensorFlow, in place of nvcc and a GPU. The times
mean nothing then.

Exit status: 0 all is well (a missed goal, or a stage for which there was no time, is only
reported); 1 something is wrong; 2 bad arguments; 3 it does not build; 4 no GPU here; 5 a GPU, but
no nvcc.
"""

import argparse
import concurrent.futures
import contextlib
import ctypes
import dataclasses
import functools
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import times_table

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / ".cache" / "gpu-check"
HOST_SOURCES = tuple(
    f"cc/compute/{name}.cc"
    for name in (
        "bags/entries",
        "bags/gradients",
        "bags/lookups",
        "bags/pooling",
        "bags/updates",
        "huge_pages",
        "instruction_set",
        "prefetching",
    )
)
GPU_SOURCES = tuple(
    str(path.relative_to(ROOT)) for path in sorted((ROOT / "cc" / "compute").rglob("*.cu.cc"))
)
EXECUTABLES = ("cases", "pieces", "times")

WRONG, NO_BUILD, NO_GPU, NO_NVCC = 1, 3, 4, 5


class Stop(Exception):
    """Ends the check with a status and a reason."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status


def say(text: str) -> None:
    print(text, flush=True)


# The GPU and its compiler.


def find_nvcc() -> str:
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders = [str(pathlib.Path(home) / "bin") for home in homes] + [os.environ.get("PATH", "")]
    nvcc = shutil.which("nvcc", path=os.pathsep.join([*folders, "/usr/local/cuda/bin"]))
    if nvcc is None:
        raise Stop(NO_NVCC, "no nvcc: put it on PATH, or set CUDA_HOME to the CUDA toolkit")
    return nvcc


@dataclasses.dataclass(frozen=True)
class Machine:
    """A GPU: `architecture` is its compute capability, such as 90."""

    name: str
    architecture: str
    driver: str
    cuda: str

    def __str__(self) -> str:
        return f"{self.name}, driver {self.driver} with CUDA {self.cuda}"


def driver_version() -> str:
    """The driver's version. libcuda only tells CUDA's own, which is older or the same."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown"
    result = run([tool, "--query-gpu=driver_version", "--format=csv,noheader"])
    return result.stdout.partition("\n")[0].strip() if result.returncode == 0 else "unknown"


def find_gpu() -> Machine:
    """The first GPU; asks the driver, so nothing need be compiled."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Stop(NO_GPU, f"no GPU here: no driver ({error})") from None
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status or count.value == 0:
        raise Stop(NO_GPU, f"no GPU here: the driver finds {count.value} (status {status})")
    device, version = ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDriverGetVersion(ctypes.byref(version))
    numbers = []
    for attribute in (75, 76, 16):  # the compute capability's two numbers; multiprocessors
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        numbers.append(value.value)
    major, minor, processors = numbers
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    machine = Machine(name.value.decode(), f"{major}{minor}", driver_version(), cuda)
    say(f"GPU: {machine}; compute capability {major}.{minor}, {processors} multiprocessors")
    return machine


# Building.


def run(command: list[str], **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, **options)


def run_group(
    command: list[str], timeout: float, on_line: Callable[[str], object] = lambda line: None
) -> subprocess.CompletedProcess:
    """The same, but at a timeout all processes that the command has started end with it.

    Args:
        command: the command to run. Its errors go where its output goes.
        timeout: in seconds. After it, the function raises subprocess.TimeoutExpired.
        on_line: gets each line at once.
    """
    lines = []
    is_late = threading.Event()
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:

        def end() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        def end_late() -> None:
            is_late.set()
            end()

        timer = threading.Timer(timeout, end_late)
        timer.start()
        try:
            for line in process.stdout:
                lines.append(line)
                on_line(line.rstrip("\n"))
            process.wait()
        except BaseException:  # an interrupt too, which does not reach a session of its own
            end()
            raise
        finally:
            timer.cancel()
    output = "".join(lines)
    if is_late.is_set():
        raise subprocess.TimeoutExpired(command, timeout, output)
    return subprocess.CompletedProcess(command, process.returncode, output)


def build(compilers: dict[str, list[str]], link: list[str], folder: pathlib.Path) -> None:
    """Compiles every object that is older than any source, and links the executables in `folder`.

    Args:
        compilers: the command that compiles each source, by the source's path from ROOT.
        link: the command that links.
        folder: the folder for the objects and executables.
    """
    folder.mkdir(parents=True, exist_ok=True)
    headers = [*ROOT.glob("cc/compute/**/*.h"), *ROOT.glob("gpu_check/**/*.h")]
    headers += [*ROOT.glob("gpu_check/**/*.cuh"), pathlib.Path(__file__)]
    newest = max(header.stat().st_mtime for header in headers)

    def compile_one(source: str) -> None:
        target = folder / (source.replace("/", "_") + ".o")
        if target.exists() and target.stat().st_mtime > max(
            newest, (ROOT / source).stat().st_mtime
        ):
            return
        command = [*compilers[source], "-I.", "-c", source, "-o", f"{target}.new"]
        result = run(command, cwd=ROOT)
        if result.returncode:
            raise Stop(NO_BUILD, f"{' '.join(command)}\n{result.stdout}{result.stderr}")
        os.replace(f"{target}.new", target)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as executor:
        list(executor.map(compile_one, compilers))
    for executable in EXECUTABLES:
        sources = [
            source
            for source in compilers
            if pathlib.Path(source).stem not in EXECUTABLES
            or pathlib.Path(source).stem == executable
        ]
        objects = [str(folder / (source.replace("/", "_") + ".o")) for source in sources]
        command = [*link, *objects, "-o", str(folder / executable)]
        result = run(command, cwd=ROOT)
        if result.returncode:
            raise Stop(NO_BUILD, f"{' '.join(command)}\n{result.stdout}{result.stderr}")


def variants(architecture: str) -> dict[str, str]:
    """The kinds of code that the GPU can run, as nvcc's options by name. Its own comes first.

    Code for sm_80 runs on GPUs of the same major number, and PTX on all that are newer.
    """
    own = f"sm_{architecture}"
    found = {own: f"arch=compute_{architecture},code={own}"}
    if 80 < int(architecture) < 90:
        found["sm_80"] = "arch=compute_80,code=sm_80"
    if int(architecture) >= 80:
        found["PTX of compute_80"] = "arch=compute_80,code=compute_80"
    return found


def folder_of(variant: str) -> pathlib.Path:
    return BUILD / variant.replace(" ", "_")


def build_for_gpu(nvcc: str, architecture: str) -> None:
    version = run([nvcc, "--version"]).stdout.strip().splitlines()
    say(f"nvcc: {nvcc}, {version[-2] if len(version) > 1 else version}")
    host = [os.environ.get("CXX", "g++"), "-O2", "-std=c++17"]
    executables = [f"gpu_check/{executable}.cc" for executable in EXECUTABLES]

    # A source's many kernels are compiled side by side where nvcc can do that.
    parallel = ["-split-compile=0"] if "-split-compile" in run([nvcc, "--help"]).stdout else []

    def build_variant(variant: str, code: str) -> None:
        device = [nvcc, "-O3", "-std=c++17", "-x", "cu", "-lineinfo", f"-gencode={code}", *parallel]
        if "CXX" in os.environ:
            device.append(f"-ccbin={os.environ['CXX']}")
        compilers = dict.fromkeys((*GPU_SOURCES, *executables), device)
        compilers |= dict.fromkeys(HOST_SOURCES, host)
        build(compilers, [nvcc, "-cudart=static"], folder_of(variant))

    kinds = variants(architecture)
    with concurrent.futures.ThreadPoolExecutor(len(kinds)) as executor:
        list(executor.map(build_variant, kinds, kinds.values()))


def build_emulated(package: str, files: tuple[str, ...], folder: pathlib.Path) -> None:
    """Copies the files of Bazel's target //PACKAGE:emulated into `folder`, built for this Python.

    Bazel builds the files if their sources have changed. The next TensorFlow may replace its
    folder, so they are copied. Not from bazel-bin, a link that the next configuration changes.
    """
    bazel = str(ROOT / "bazel" / "bazel.sh")
    environment = {**os.environ, "PYTHON_BIN_PATH": sys.executable}
    command = [bazel, "build", f"//{package}:emulated"]
    if subprocess.run(command, env=environment, check=False).returncode:
        raise Stop(NO_BUILD, "it does not build")
    command = [bazel, "info", "bazel-bin"]
    said = subprocess.run(command, env=environment, check=False, stdout=subprocess.PIPE, text=True)
    if said.returncode:
        raise Stop(NO_BUILD, "Bazel does not say where it builds")
    built = pathlib.Path(said.stdout.strip())
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        # An older copy may be running.
        shutil.copy(built / package / file, folder / f"{file}.new")
        os.replace(folder / f"{file}.new", folder / file)


# Stages.


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of the check.

    Attributes:
        name: its name.
        seconds: its limit.
        work: a function that does it in so many seconds. Raises Stop if something is wrong, and
            subprocess.TimeoutExpired where it takes longer.
        must_end: True if not ending within the limit is an error: it may hang.
    """

    name: str
    seconds: float
    work: Callable[[float], object]
    must_end: bool = True


def run_stages(stages: list[Stage], end: float) -> int:
    """Runs all stages until `end`, a time of time.monotonic(). Returns the exit status."""
    status = 0
    results = []
    for stage in stages:
        start = time.monotonic()
        limit = min(stage.seconds, end - start)
        say(f"{stage.name}:")
        if limit <= 0:
            result = "NOT RUN: no time is left for it"
        else:
            try:
                stage.work(limit)
                result = "ok"
            except subprocess.TimeoutExpired:
                result = f"OUT OF TIME after {limit:.0f} s"
                if stage.must_end and limit == stage.seconds:
                    status = WRONG
                    result += ", in which it should have ended: WRONG"
            except Stop as stop:
                say(str(stop))
                status = stop.status
                result = "WRONG"
        taken = time.monotonic() - start
        say(f"  {result} ({taken:.0f} s)")
        results.append(f"  {stage.name}: {result} ({taken:.0f} s)")
    say("\n".join(("all stages:", *results)))
    return status


def run_executable(folder: pathlib.Path, name: str, *options: object) -> Callable[[float], None]:
    """Returns the work of a stage that runs an executable."""

    def work(limit: float) -> None:
        command = [str(folder / name), *map(str, options)]
        result = run_group(command, limit, lambda line: say(f"  {line}"))
        if result.returncode:
            raise Stop(WRONG, f"{' '.join(command)}: status {result.returncode}")

    return work


# Words of a tool that finds something, whatever its exit status is.
FINDINGS = (
    "FAILED",
    "Invalid __",
    "hazard detected",
    "Race reported",
    "Uninitialized",
    "Barrier error",
    "Divergent thread",
)


def run_sanitizer(folder: pathlib.Path, tool: str, seed: int, nvcc: str, limit: float) -> None:
    sanitizer = pathlib.Path(nvcc).parent / "compute-sanitizer"
    found = str(sanitizer) if sanitizer.exists() else shutil.which("compute-sanitizer")
    if found is None:
        say("  not run: there is no compute-sanitizer here")
        return
    end = time.monotonic() + limit
    command = [found, "--tool", tool, "--error-exitcode", "9", str(folder / "cases")]
    command += ["--small", "--seed", str(seed)]
    if tool == "initcheck":
        # Poisoned memory has a value. For bounds, see Checking.has_bad_bounds.
        command += ["--bare", "--good_bounds"]
    for options in (["--seconds", "12"], ["--seconds", "6", "--giant", "3000"]):
        result = run_group([*command, *options], max(1, end - time.monotonic()))
        lines = result.stdout.strip().splitlines()
        works = any("random cases" in line for line in lines)
        if result.returncode == 0 and works:
            say(f"  {lines[-1].strip('= ')}")
        elif works or any(word in result.stdout for word in FINDINGS):
            raise Stop(WRONG, f"compute-sanitizer --tool {tool}:\n{result.stdout[-8000:]}")
        else:
            say(f"  does not work here: {(lines or ['it says nothing'])[-1]}")
            return


class Times:
    """The times measured so far, those of a stage that ran out of time too."""

    def __init__(self, folder: pathlib.Path, machine: str, scale: int = 1):
        self.folder, self.machine, self.scale = folder, machine, scale
        self.copy: dict = {}
        self.rows: list[dict] = []
        self.torch_rows: dict[tuple[str, str], dict] = {}
        self.peer = "torch is not compared"

    def measure(self, limit: float) -> None:
        def take(line: str) -> None:
            if not line.startswith("{"):
                say(f"  {line}")
                return
            row = json.loads(line)
            if "case" not in row:
                self.copy = row
                return
            self.rows.append(row)
            say(f"  {row['case']}, {row['operation']}: {row['cold_us']:.1f} µs")

        command = [str(self.folder / "times"), str(self.folder), str(self.scale)]
        result = run_group(command, limit, take)
        if result.returncode:
            raise Stop(WRONG, f"times: status {result.returncode}")

    def measure_torch(self, limit: float, *options: str) -> None:
        lines = [json.dumps(row) for row in self.rows]
        (self.folder / "times.json").write_text("\n".join(lines))

        def take(line: str) -> None:
            if not line.startswith("{"):
                say(f"  {line}")
                return
            row = json.loads(line)
            if "case" not in row:
                self.peer = f"torch {row['torch']} with CUDA {row['cuda']}"
                say(f"  {self.peer}")
                return
            name = row["case"], row["operation"]
            self.torch_rows[name] = row
            value = row.get("error") or f"{row['cold_us']:.1f} µs ({row['way']})"
            say(f"  {', '.join(name)}: {value}")

        script = pathlib.Path(__file__).with_name("times_torch.py")
        result = run_group([sys.executable, str(script), str(self.folder), *options], limit, take)
        if result.returncode:  # no torch here, or one that finds no GPU: no fault of ours
            say("  not compared further")

    def print_table(self, file: str | None, limit: float) -> None:
        if not self.copy or not self.rows:
            say("  nothing was measured")
            return
        text = times_table.table(self.machine, self.copy, self.rows, self.torch_rows, self.peer)
        say(text)
        if file is not None:
            pathlib.Path(file).write_text(text + "\n", encoding="utf-8")

    def print_goals(self) -> None:
        if self.copy:
            say(times_table.goals(self.copy, self.rows, self.torch_rows))


# All of it.


def check_on_gpu(arguments: argparse.Namespace) -> int:
    end = time.monotonic() + arguments.limit
    machine = find_gpu()
    nvcc = find_nvcc()
    start = time.monotonic()
    build_for_gpu(nvcc, machine.architecture)
    say(f"built in {time.monotonic() - start:.0f} s")
    own, *others = variants(machine.architecture)
    folder = folder_of(own)
    seconds = arguments.seconds
    seed = ("--seed", arguments.seed)
    times = Times(folder, str(machine))

    def cases(name: str, seconds: int, *options: object, variant: str = own) -> Stage:
        executable = run_executable(
            folder_of(variant), "cases", *seed, "--seconds", seconds, *options
        )
        return Stage(name, seconds + 60, executable)

    stages = [
        cases("random inputs, against the processor's code in float64", seconds),
        Stage("times", 90, times.measure, must_end=False),
        Stage("torch's times", 90, times.measure_torch, must_end=False),
        Stage("table", 10, functools.partial(times.print_table, arguments.table)),
        cases("a stream that does not block, memory reused at once", seconds // 2, "--late"),
        cases("giant bags on it", seconds // 4, "--late", "--giant", 20000),
        cases("bags of a million ids", seconds // 4, "--giant", 1000000),
        Stage("a huge table", 30, run_executable(folder, "cases", "--huge", 2**24 + 5)),
        Stage("more than 2^31 ids", 60, run_executable(folder, "cases", "--many", 2**31 + 6400)),
        Stage("copies and sums of pieces", 30, run_executable(folder, "pieces", arguments.seed)),
    ]
    for variant in others:
        # The driver compiles PTX when it is first run.
        stage = cases(f"random inputs, {variant}", seconds // 2, variant=variant)
        stages.append(dataclasses.replace(stage, seconds=stage.seconds + 60))
    for tool in ("memcheck", "racecheck", "synccheck", "initcheck"):
        work = functools.partial(run_sanitizer, folder, tool, arguments.seed, nvcc)
        stages.append(Stage(f"compute-sanitizer, {tool}", 45, work, must_end=False))
    status = run_stages(stages, end)
    times.print_goals()
    return status


def check_emulated(arguments: argparse.Namespace) -> int:
    folder = BUILD / "emulated"
    build_emulated("gpu_check", EXECUTABLES, folder)
    seconds = arguments.seconds
    seed = ("--seed", arguments.seed)
    times = Times(folder, "The emulation, whose times mean nothing", 20000)

    def cases(name: str, seconds: int, *options: object) -> Stage:
        executable = run_executable(
            folder, "cases", "--small", *seed, "--seconds", seconds, *options
        )
        return Stage(name, seconds + 120, executable)

    stages = [
        cases("random inputs, against the processor's code in float64", seconds),
        Stage("times", 120, times.measure),
        Stage("torch's times", 120, lambda limit: times.measure_torch(limit, "--trial")),
        Stage("table", 10, functools.partial(times.print_table, arguments.table)),
        cases("a stream that does not block, memory reused at once", seconds // 2, "--late"),
        cases("giant bags on it", seconds // 4, "--late", "--giant", 3000),
        cases("giant bags", seconds // 2, "--giant", 3000),
        cases("memory without margins or poison", seconds // 4, "--bare"),
        Stage("a huge table", 60, run_executable(folder, "cases", "--huge", 2000)),
        Stage("many ids", 60, run_executable(folder, "cases", "--many", 100000)),
        Stage("copies and sums of pieces", 60, run_executable(folder, "pieces", arguments.seed)),
    ]
    return run_stages(stages, time.monotonic() + arguments.limit)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="for the random inputs (default: 1)")
    parser.add_argument(
        "--seconds",
        type=int,
        default=20,
        help="for random inputs; their other kinds take a half or a quarter (default: 20)",
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=480,
        help="seconds for all stages and what they need to be built (default: 480)",
    )
    parser.add_argument("--table", metavar="FILE", help="where the table of times goes as well")
    parser.add_argument("--emulate", action="store_true", help="run the kernels on the processor")
    arguments = parser.parse_args()
    say(f"Python {platform.python_version()}, {platform.platform()}")
    start = time.monotonic()
    try:
        status = (check_emulated if arguments.emulate else check_on_gpu)(arguments)
    except Stop as stop:
        say(str(stop))
        return stop.status
    say(f"{'something is wrong' if status else 'ok'} ({time.monotonic() - start:.0f} s)")
    return status


if __name__ == "__main__":
    sys.exit(main())
