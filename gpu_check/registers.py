"""Shows ptxas's account of the CUDA kernels: registers, and bytes that are spilled to memory.

    python3 gpu_check/registers.py REPORT...

The reports are those of the rule cuda_objects. A kernel that spills more than a little waits for
memory where it should compute: exit status 1.
"""

import argparse
import collections
import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator

# Bytes of a thread, stored or loaded. Blocks of 1024 threads, as Combine's, have no more than 64
# registers a thread.
MOST_SPILLED = 64
MOST_SPILLED_OF_LARGE_BLOCKS = 192
_ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for 'sm_(?P<architecture>\d+)[af]?'"
    r".*?(?P<stored>\d+) bytes spill stores, (?P<loaded>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel for one architecture, with its registers and its spilled bytes, of a thread."""

    name: str
    architecture: int
    registers: int
    spilled: int

    def spills_too_much(self) -> bool:
        is_large = "7Combine" in self.name
        return self.spilled > (MOST_SPILLED_OF_LARGE_BLOCKS if is_large else MOST_SPILLED)


def read(report: str) -> Iterator[Kernel]:
    for entry in _ENTRY.finditer(report):
        spilled = max(int(entry["stored"]), int(entry["loaded"]))
        yield Kernel(entry["name"], int(entry["architecture"]), int(entry["registers"]), spilled)


def table(kernels: Iterable[Kernel]) -> list[str]:
    """A line for each architecture: how many kernels need how many registers."""
    by_architecture: dict[int, list[Kernel]] = collections.defaultdict(list)
    for kernel in kernels:
        by_architecture[kernel.architecture].append(kernel)
    lines = ["| GPU | kernels | most registers | kernels that spill | most bytes spilled |"]
    lines.append("| --- | --: | --: | --: | --: |")
    for architecture, group in sorted(by_architecture.items()):
        spilled = [kernel.spilled for kernel in group if kernel.spilled]
        most = max(kernel.registers for kernel in group)
        lines.append(
            f"| sm_{architecture} | {len(group)} | {most} | {len(spilled)} | "
            f"{max(spilled, default=0)} |"
        )
    return lines


def readable(name: str) -> str:
    if shutil.which("c++filt") is None:
        return name
    return subprocess.run(
        ["c++filt", name], capture_output=True, text=True, check=True
    ).stdout.strip()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("reports", nargs="+", type=pathlib.Path, metavar="REPORT")
    reports = parser.parse_args(arguments).reports
    kernels = [k for path in reports for k in read(path.read_text(encoding="utf-8"))]
    print("\n".join(table(kernels)))
    bad = [kernel for kernel in kernels if kernel.spills_too_much()]
    for kernel in bad:
        print(
            f"sm_{kernel.architecture}: {kernel.spilled} bytes spilled by {readable(kernel.name)}"
        )
    return int(bool(bad) or not kernels)


if __name__ == "__main__":
    sys.exit(main())
