"""Runs the benchmarks: prints tables, and writes them as JSON and as pictures.

python -m benchmarks                    all families
python -m benchmarks loops --quick      one of them, roughly
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
    "recurrent",
    "bags",
    "many_tables",
    "training",
    "parameter_servers",
    "busy",
    "compiled_bags",
    "openvino",
)
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
    parser.add_argument("--output", type=pathlib.Path, default="build/benchmarks")
    options = parser.parse_args()
    for name in options.names:
        if name not in FAMILIES:
            parser.error(f"there is no family {name!r}, only {', '.join(FAMILIES)}")
    return options


def main() -> None:
    options = _parse_arguments()
    _limit_threads()
    from benchmarks import harness

    options.output.mkdir(parents=True, exist_ok=True)
    print(harness.describe_machine())
    start = time.monotonic()
    for name in options.names or FAMILIES:
        tables = []
        for table in importlib.import_module(f"benchmarks.{name}").run(options.quick):
            print(f"\n{table.to_text()}", flush=True)
            tables.append(table)
        for path in harness.write(tables, options.output / name):
            print(f"\nWritten: {path}")
    print(f"\n{time.monotonic() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
