"""The limit of bags and updates: how fast a machine reads and writes rows in the order of ids."""

import ctypes
import functools
import mmap
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import native

CACHE_LINE = 64
# Ways to prefetch: the cache level, the step in lines of a row, and the distance in ids. Processors
# differ in the fastest way, and the limit is the speed of the fastest.
PREFETCHES = [(0, 1, 0)] + [
    (level, line_step, distance)
    for level in (1, 2)
    for line_step in (1, 2)
    for distance in (8, 16, 32, 64)
]


def make_table(rows: int, row_bytes: int, huge_pages: bool) -> np.ndarray:
    """Memory of its own, [rows, row_bytes], on pages of the kind that the kernel was asked for."""
    memory = mmap.mmap(-1, rows * row_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE if huge_pages else mmap.MADV_NOHUGEPAGE)
    table = np.frombuffer(memory, np.uint8).reshape(rows, row_bytes)
    table.fill(1)
    return table


def make_case(
    tables: Sequence[np.ndarray],
    passes: int,
    threads: int,
    read: Sequence[np.ndarray] = (),
    written: Sequence[np.ndarray] = (),
    with_gradient: bool = False,
) -> Callable[[], None]:
    """Goes through sets of ids, `passes` times.

    For each set, reads the rows of the first table that its ids in `read` name. Then it reads and
    writes the rows of all tables that its ids in `written` name. Either may be left out. With a
    gradient, it reads a row of that for each of `written`, from memory on 4 KB pages. It prefetches
    in the fastest way. OSError or CalledProcessError means that there is no compiler.
    """
    walk_rows = _compile(tables[0].shape[1] // CACHE_LINE)
    addresses = np.array([table.ctypes.data for table in tables])
    num_sets = max(len(read), len(written))
    gradient = None
    if with_gradient:
        gradient = make_table(sum(map(len, written)), tables[0].shape[1], huge_pages=False)
    lists = [*_flatten(read, num_sets), *_flatten(written, num_sets)]

    def run(level, line_step, distance, passes):
        walk_rows(
            ctypes.c_void_p(addresses.ctypes.data),
            ctypes.c_int64(len(tables)),
            *(ctypes.c_void_p(array.ctypes.data) for array in lists),
            ctypes.c_void_p(None if gradient is None else gradient.ctypes.data),
            *map(ctypes.c_int64, (num_sets, passes, level, line_step, distance, threads)),
        )

    def seconds(prefetch):
        start = time.perf_counter()
        run(*prefetch, passes=max(1, passes // 4))
        return time.perf_counter() - start

    seconds(PREFETCHES[0])
    best = min(PREFETCHES, key=lambda prefetch: min(seconds(prefetch) for _ in range(3)))
    return functools.partial(run, *best, passes)


def _flatten(sets: Sequence[np.ndarray], num_sets: int) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all sets, and where each set begins and ends among them."""
    if not len(sets):
        return np.zeros(0, np.int32), np.zeros(num_sets + 1, np.int64)
    bounds = np.cumsum([0, *map(len, sets)], dtype=np.int64)
    return np.concatenate(sets).astype(np.int32), bounds


@functools.cache
def _compile(row_lines: int) -> Callable:
    walk_rows = native.compile_source("read_rows.cc", f"-DROW_LINES={row_lines}").walk_rows
    walk_rows.restype = None
    return walk_rows
