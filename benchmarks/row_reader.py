"""The limit of bags: how fast a machine reads rows of a table in the order of ids."""

import ctypes
import functools
import mmap
import time
from collections.abc import Callable

import numpy as np

from benchmarks import native

CACHE_LINE = 64
# Cache level, every how manieth line of a row, and how many ids ahead. Processors differ in which
# of them is the fastest, and a limit is what the fastest one reaches.
PREFETCHES = [(0, 1, 0)] + [
    (level, line_step, distance)
    for level in (1, 2)
    for line_step in (1, 2)
    for distance in (8, 16, 32, 64)
]


def make_table(rows: int, row_bytes: int, huge_pages: bool) -> np.ndarray:
    """Memory of its own, [rows, row_bytes], for whose pages the kernel has been asked."""
    memory = mmap.mmap(-1, rows * row_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE if huge_pages else mmap.MADV_NOHUGEPAGE)
    table = np.frombuffer(memory, np.uint8).reshape(rows, row_bytes)
    table.fill(1)
    return table


def make_case(table: np.ndarray, ids: np.ndarray, passes: int, threads: int) -> Callable[[], None]:
    """Reads the rows of each of the sets of ids [sets, num_ids], `passes` times.

    Prefetches in the way that turns out to be the fastest. OSError or CalledProcessError says that
    there is no compiler.
    """
    num_sets, num_ids = ids.shape
    ids = np.ascontiguousarray(ids, np.int32)
    read_rows = _compile(table.shape[1] // CACHE_LINE)

    def run(level, line_step, distance, passes):
        integers = (num_ids, num_sets, passes, level, line_step, distance, threads)
        read_rows(
            ctypes.c_void_p(table.ctypes.data),
            ctypes.c_void_p(ids.ctypes.data),
            *map(ctypes.c_int64, integers),
        )

    def seconds(prefetch):
        start = time.perf_counter()
        run(*prefetch, passes=max(1, passes // 4))
        return time.perf_counter() - start

    seconds(PREFETCHES[0])
    best = min(PREFETCHES, key=lambda prefetch: min(seconds(prefetch) for _ in range(3)))
    return functools.partial(run, *best, passes)


@functools.cache
def _compile(row_lines: int) -> Callable:
    read_rows = native.compile_source("read_rows.cc", f"-DROW_LINES={row_lines}").read_rows
    read_rows.restype = None
    return read_rows
