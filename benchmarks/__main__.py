"""Runs the benchmarks: prints tables, and writes them as JSON.

python -m benchmarks                    all families
python -m benchmarks loops --quick      one of them, roughly
python -m benchmarks gpu                on a GPU, with TensorFlow's build for CUDA
python -m benchmarks --report           draws what all have measured: docs/figures, README's table
"""

import argparse
import importlib
import os
import pathlib
import sys
import time

# One module a family; each has `run(quick)`, which yields tables.
FAMILIES = (
    "loops",
    "bodies",
    "lanes",
    "short_loops",
    "accelerate",
    "heavy",
    "arrays",
    "large_arrays",
    "recurrent",
    "bags",
    "many_tables",
    "training",
    "parameter_servers",
    "busy",
    "compiled_bags",
    "openvino",
    "memory",
    "curves",
    "roofline",
)
# Families that are run by their names alone: they need a GPU.
OF_A_GPU = ("gpu",)
THREADS = 2


def _limit_threads() -> None:
    """Gives every peer the same two CPUs, however it counts them: called before any import."""
    cpus = sorted(os.sched_getaffinity(0))[:THREADS]
    os.sched_setaffinity(0, cpus)
    os.environ["OMP_NUM_THREADS"] = str(len(cpus))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.split("\n")[0]
    )
    parser.add_argument("names", nargs="*", help=f"families to run: {', '.join(FAMILIES)}")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, rougher figures")
    parser.add_argument(
        "--report", action="store_true", help="write docs/figures and README's table from the JSON"
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default="build/benchmarks", help="the folder of the JSON"
    )
    options = parser.parse_args()
    if options.report and (options.names or options.quick):
        parser.error("--report measures nothing: it takes no families and no --quick")
    for name in options.names:
        if name not in FAMILIES + OF_A_GPU:
            parser.error(f"there is no family {name!r}, only {', '.join(FAMILIES + OF_A_GPU)}")
    return options


def main() -> None:
    options = _parse_arguments()
    if options.report:
        _report(options.output)
    else:
        _measure(options)


def _report(folder: pathlib.Path) -> None:
    from benchmarks import report

    try:
        paths = report.write(folder, FAMILIES, pathlib.Path(__file__).parents[1])
    except report.ReportError as error:
        sys.exit(f"python -m benchmarks --report: {error}")
    for path in paths:
        print(f"Written: {path}")


def _measure(options: argparse.Namespace) -> None:
    _limit_threads()
    from benchmarks import harness

    options.output.mkdir(parents=True, exist_ok=True)
    of_versions = (f"{name} {version}" for name, version in harness.versions().items())
    print(f"{harness.Machine.this()}; {', '.join(of_versions)}")
    start = time.monotonic()
    for name in options.names or FAMILIES:
        tables = []
        for table in importlib.import_module(f"benchmarks.{name}").run(options.quick):
            print(f"\n{table.to_text()}", flush=True)
            tables.append(table)
        command = f"python -m benchmarks {name}{' --quick' * options.quick}"
        run = harness.Run.of_this_machine(tables, command)
        path = options.output / f"{name}.json"
        harness.write(run, path)
        print(f"\nWritten: {path}")
    print(f"\n{time.monotonic() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
