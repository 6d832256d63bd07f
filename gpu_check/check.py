"""Checks and times the GPU code of cc/compute, without TensorFlow.

    python3 gpu_check/check.py [--seed N] [--seconds S] [--emulate]

Needs CUDA's nvcc (in PATH, or under CUDA_HOME), a C++ compiler and a GPU. Builds cc/compute for
that GPU; runs every kernel on random inputs, beside the processor's code in float64; again under
compute-sanitizer, where there is one; and times the bags beside a copy and torch's embedding_bag,
where there is torch with CUDA. One table in the end, with the goals.

With --emulate the kernels run on the processor, on small inputs, which needs nothing but a C++
compiler; the times mean nothing then.

Exit status: 0 all is well (a goal that was missed is only said); 1 something is wrong; 2 bad
arguments; 3 it does not build; 4 no GPU here; 5 a GPU, but no nvcc.
"""

import argparse
import concurrent.futures
import ctypes
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / ".cache" / "gpu-check"
HOST_SOURCES = tuple(
    f"cc/compute/{name}.cc"
    for name in (
        "bags/gradients",
        "bags/lookups",
        "bags/pooling",
        "bags/updates",
        "instruction_set",
    )
)
GPU_SOURCES = tuple(
    str(path.relative_to(ROOT)) for path in sorted((ROOT / "cc" / "compute").rglob("*.cu.cc"))
)
PROGRAMS = ("cases", "pieces", "times")
EMULATION = "gpu_check/emulation"

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


def find_gpu() -> str:
    """The first GPU's architecture, such as 90; asks the driver, so nothing need be compiled."""
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
    say(
        f"GPU: {name.value.decode()}, compute capability {major}.{minor}, {processors} "
        f"multiprocessors; the driver's CUDA is {cuda}"
    )
    return f"{major}{minor}"


# Building.


def run(command: list[str], **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, **options)


def run_group(command: list[str], timeout: float) -> subprocess.CompletedProcess:
    """The same, but at a timeout all that the command has started ends with it."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output = process.communicate(timeout=timeout)
        except BaseException:  # an interrupt too, which does not reach a session of its own
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, *output)


def build(compilers: dict[str, list[str]], link: list[str], folder: pathlib.Path) -> None:
    """Compiles what is older than any source, and links the programs in `folder`.

    Args:
        compilers: how to compile each source, by its name from ROOT.
        link: how to link.
        folder: for what is built.
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

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, compilers))
    for program in PROGRAMS:
        sources = [
            source
            for source in compilers
            if pathlib.Path(source).stem not in PROGRAMS or pathlib.Path(source).stem == program
        ]
        objects = [str(folder / (source.replace("/", "_") + ".o")) for source in sources]
        command = [*link, *objects, "-o", str(folder / program)]
        result = run(command, cwd=ROOT)
        if result.returncode:
            raise Stop(NO_BUILD, f"{' '.join(command)}\n{result.stdout}{result.stderr}")


def build_for_gpu(nvcc: str, architecture: str, folder: pathlib.Path) -> None:
    version = run([nvcc, "--version"]).stdout.strip().splitlines()
    say(f"nvcc: {nvcc}, {version[-2] if len(version) > 1 else version}")
    host = [os.environ.get("CXX", "g++"), "-O2", "-std=c++17"]
    device = [nvcc, "-O3", "-std=c++17", "-x", "cu", "-lineinfo"]
    device += [f"-gencode=arch=compute_{architecture},code=sm_{architecture}"]
    if "CXX" in os.environ:
        device.append(f"-ccbin={os.environ['CXX']}")
    programs = [f"gpu_check/{program}.cc" for program in PROGRAMS]
    compilers = dict.fromkeys((*GPU_SOURCES, *programs), device) | dict.fromkeys(HOST_SOURCES, host)
    build(compilers, [nvcc, "-cudart=static"], folder)


def build_emulated(folder: pathlib.Path) -> None:
    host = [os.environ.get("CXX", "g++"), "-O1", "-std=c++17"]
    # The order of the fibers' jumps is none that a fortified longjmp knows.
    checks = ["-fsanitize=bounds,alignment", "-fno-sanitize-recover=all", "-U_FORTIFY_SOURCE"]
    emulated = [*host, *checks, "-Wall", "-Wno-unknown-pragmas", "-DTF_TI_EMULATE_CUDA"]
    emulated += [f"-I{EMULATION}", "-x", "c++"]
    sources = (*GPU_SOURCES, f"{EMULATION}/emulation.cc")
    sources += tuple(f"gpu_check/{program}.cc" for program in PROGRAMS)
    # Their speed does not matter here, but the time to compile them does.
    compilers = dict.fromkeys(sources, emulated) | dict.fromkeys(HOST_SOURCES, [*host, "-O0"])
    build(compilers, [*host, *checks], folder)


# Running.


def run_program(program: pathlib.Path, *options: object) -> None:
    result = run([str(program), *map(str, options)], cwd=ROOT)
    if result.returncode:
        raise Stop(WRONG, f"{result.stdout}{result.stderr}(status {result.returncode})")
    say(f"  {result.stdout.strip()}")


def run_sanitizer(folder: pathlib.Path, seed: int, nvcc: str) -> None:
    sanitizer = pathlib.Path(nvcc).parent / "compute-sanitizer"
    found = str(sanitizer) if sanitizer.exists() else shutil.which("compute-sanitizer")
    if found is None:
        say("  not run: there is no compute-sanitizer here")
        return
    end = time.monotonic() + 60
    for tool in ("memcheck", "racecheck"):
        command = [found, "--tool", tool, "--error-exitcode", "9", str(folder / "cases")]
        command += ["--small", "--seed", str(seed)]
        try:
            for options in (["--seconds", "15"], ["--seconds", "8", "--giant", "3000"]):
                result = run_group([*command, *options], max(1, end - time.monotonic()))
                if result.returncode:
                    break
        except subprocess.TimeoutExpired:
            say(f"  {tool}: stopped after a minute of sanitizers, with nothing found")
            continue
        lines = result.stdout.strip().splitlines()
        works = any("random cases" in line for line in lines)
        if result.returncode == 0 and works:
            say(f"  {tool}: {lines[-1].strip('= ')}")
        elif works or any(word in result.stdout for word in ("FAILED", "Invalid __", "hazard")):
            output = result.stdout[-6000:] + result.stderr[-2000:]
            raise Stop(WRONG, f"compute-sanitizer --tool {tool}:\n{output}")
        else:
            say(f"  {tool}: does not work here: {(lines or [result.stderr.strip()])[-1]}")


def measure(folder: pathlib.Path, scale: int) -> tuple[dict, list[dict]]:
    """The copy, and the cases, as `times` prints them."""
    result = run([str(folder / "times"), str(folder), str(scale)], cwd=ROOT)
    if result.returncode:
        raise Stop(WRONG, f"times: {result.stdout}{result.stderr}(status {result.returncode})")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return lines[0], lines[1:]


def measure_torch(case: dict, folder: pathlib.Path) -> dict[str, float]:
    """What torch takes for one case, with the same ids, in milliseconds."""
    import torch

    device = torch.device("cuda")
    count, size = case["bags"], case["ids_per_bag"]
    ids = torch.from_file(
        str(folder / f"{case['name']}.ids"), size=count * size, dtype=torch.int64
    ).to(device)
    offsets = torch.arange(0, count * size, size, device=device)
    dtype = getattr(torch, case["dtype"])
    table = torch.rand(case["rows"], case["width"], device=device, dtype=dtype)
    table.requires_grad_()
    grad = torch.rand(count, case["width"], device=device, dtype=dtype)

    def forward():
        return torch.nn.functional.embedding_bag(
            ids, table, offsets, mode=case["reduction"], sparse=True
        )

    def median(call) -> float:
        times = []
        for _ in range(18):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return sorted(times[3:])[7]

    times = {}
    with torch.no_grad():
        times["forward"] = median(forward)
    out = forward()

    def backward():
        return torch.autograd.grad(out, table, grad, retain_graph=True)[0]

    times["backward"] = median(backward)
    times["coalesced"] = median(lambda: backward().coalesce())
    return times


def torch_version() -> str | None:
    """The version of torch, if it can use the GPU; says so, and why not."""
    try:
        import torch
    except Exception as error:  # a broken installation raises anything
        say(f"torch: not compared ({type(error).__name__}: {error})")
        return None
    if not torch.cuda.is_available():
        say(f"torch {torch.__version__}: not compared, it finds no GPU")
        return None
    say(f"torch {torch.__version__}, CUDA {torch.version.cuda}")
    return torch.__version__


# The table.

READ_GOAL, FORWARD_GOAL, BACKWARD_GOAL = 0.8, 0.9, 0.7


def read_rate_of(case: dict) -> float:
    return case["bags"] * case["ids_per_bag"] * case["row_bytes"] / case["forward_ms"] / 1e6


def ratio(ours: float, theirs: float | None) -> str:
    return f"{ours / theirs:.2f}" if theirs else "-"


def print_table(copy: dict, cases: list[dict], torch_times: dict[str, dict[str, float]]) -> float:
    """Prints all times, and returns the rate at which a copy reads, in bytes a nanosecond."""
    copy_rate = copy["copy_bytes"] / copy["copy_ms"] / 1e6
    say(
        f"\ncopy: {copy['copy_bytes'] / 1e9:.1f} GB in {copy['copy_ms']:.3f} ms, reads "
        f"{copy_rate:.0f} GB/s and writes as much"
    )
    say("\nmilliseconds (medians); read: bytes of rows looked up, as a share of the copy's rate")
    heads = "case", "forward", "torch", "ratio", "GB/s", "read", "backward", "torch", "ratio"
    heads += "coalesced", "ratio", "update", "Adam"
    widths = 12, 9, 9, 6, 6, 6, 9, 9, 6, 10, 6, 8, 8

    def line(cells) -> str:
        first, *others = (f"{cell:>{width}}" for cell, width in zip(cells, widths))
        return "  ".join((first.strip().ljust(widths[0]), *others))

    say(line(heads))
    for case in cases:
        theirs = torch_times.get(case["name"], {})
        rate = read_rate_of(case)
        cells = [case["name"], f"{case['forward_ms']:.3f}"]
        cells += [f"{theirs['forward']:.3f}" if theirs else "-"]
        cells += [ratio(case["forward_ms"], theirs.get("forward"))]
        cells += [f"{rate:.0f}", f"{rate / copy_rate:.0%}", f"{case['backward_ms']:.3f}"]
        cells += [f"{theirs['backward']:.3f}" if theirs else "-"]
        cells += [ratio(case["backward_ms"], theirs.get("backward"))]
        cells += [f"{theirs['coalesced']:.3f}" if theirs else "-"]
        cells += [ratio(case["backward_ms"], theirs.get("coalesced"))]
        cells += [f"{case['update_ms']:.3f}", f"{case['adam_ms']:.3f}"]
        say(line(cells))
    return copy_rate


def print_goals(
    copy_rate: float, cases: list[dict], torch_times: dict[str, dict[str, float]]
) -> None:
    def goal(case: dict, what: str, value: float, limit: float, at_least: bool = False) -> None:
        is_met = value >= limit if at_least else value <= limit
        bound = f"at {'least' if at_least else 'most'} {limit}"
        verdict = "met" if is_met else "MISSED"
        say(f"goal: {case['name']}, {what}: {value:.2f}, {bound}: {verdict}")

    say("")
    for case in cases:
        if not case["name"].startswith(("uniform", "zipf")):
            continue
        if case["name"].startswith("uniform"):
            goal(case, "read", read_rate_of(case) / copy_rate, READ_GOAL, at_least=True)
        theirs = torch_times.get(case["name"])
        if theirs:
            goal(case, "forward / torch", case["forward_ms"] / theirs["forward"], FORWARD_GOAL)
            goal(case, "backward / torch", case["backward_ms"] / theirs["backward"], BACKWARD_GOAL)


# All of it.


def check_on_gpu(seed: int, seconds: int) -> None:
    architecture = find_gpu()
    nvcc = find_nvcc()
    folder = BUILD / f"sm_{architecture}"
    start = time.monotonic()
    build_for_gpu(nvcc, architecture, folder)
    say(f"built in {time.monotonic() - start:.0f} s")
    say("random inputs, against the processor's code in float64:")
    run_program(folder / "cases", "--seed", seed, "--seconds", seconds)
    run_program(folder / "cases", "--seed", seed, "--seconds", seconds // 3, "--giant", 20000)
    run_program(folder / "cases", "--seed", seed, "--seconds", seconds // 3, "--giant", 1000000)
    run_program(folder / "cases", "--huge", 2**24 + 5)
    run_program(folder / "pieces", seed)
    say("compute-sanitizer:")
    run_sanitizer(folder, seed, nvcc)
    say("times:")
    copy, cases = measure(folder, 1)
    torch_times = {}
    if torch_version():
        for case in cases:
            try:
                torch_times[case["name"]] = measure_torch(case, folder)
            except RuntimeError as error:  # no memory, say: our figures are still worth printing
                say(f"torch, {case['name']}: {error}")
    print_goals(print_table(copy, cases, torch_times), cases, torch_times)


def check_emulated(seed: int, seconds: int) -> None:
    folder = BUILD / "emulated"
    build_emulated(folder)
    say("emulated GPU: random inputs, against the processor's code in float64:")
    run_program(folder / "cases", "--small", "--seed", seed, "--seconds", seconds)
    run_program(folder / "cases", "--small", "--seed", seed, "--seconds", seconds, "--giant", 3000)
    run_program(folder / "cases", "--huge", 2000)
    run_program(folder / "pieces", seed)
    print_table(*measure(folder, 20000), {})
    say("These times are the emulation's, and mean nothing.")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="for the random inputs")
    parser.add_argument("--seconds", type=int, default=45, help="for each kind of random inputs")
    parser.add_argument("--emulate", action="store_true", help="run the kernels on the processor")
    arguments = parser.parse_args()
    say(f"Python {platform.python_version()}, {platform.platform()}")
    start = time.monotonic()
    try:
        check = check_emulated if arguments.emulate else check_on_gpu
        check(arguments.seed, arguments.seconds)
    except Stop as stop:
        say(str(stop))
        return stop.status
    say(f"ok ({time.monotonic() - start:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
