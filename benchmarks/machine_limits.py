"""A machine's limits: the products that it computes, and the bytes that it reads, in a second."""

import ctypes
import dataclasses
import functools

from benchmarks import native

# Bytes that one core reads again and again, such as the recurrent weights of a layer.
READ_BYTES = 2**20
ATTEMPTS = 100
# Bytes of an attempt to read: some 2 ms from a cache.
ATTEMPT_BYTES = 200 * 2**20


@dataclasses.dataclass(frozen=True)
class Limits:
    """The work of some threads in a second, together.

    Attributes:
        multiply_adds: of float32, in registers.
        bytes_read: where each of them reads its own megabyte again and again.
    """

    threads: int
    multiply_adds: float
    bytes_read: float

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return (
            f"{threads}: {self.multiply_adds / 1e9:.0f} G multiply-adds/s, "
            f"{self.bytes_read / 1e9:.0f} GB/s where each reads its own megabyte"
        )


@functools.cache
def measure(threads: int) -> Limits:
    """The best of some attempts. OSError or CalledProcessError means that there is no compiler."""
    count = ctypes.c_int64(threads)
    # Some 2 ms each: longer than a thread needs to start, and short enough to stay undisturbed.
    multiply_adds = max(
        _library().multiply_adds(ctypes.c_int64(1_000_000), count) for _ in range(ATTEMPTS)
    )
    return Limits(threads, multiply_adds, bytes_read(READ_BYTES, threads))


@functools.cache
def bytes_read(size: int, threads: int) -> float:
    """The bytes that threads read in a second, together, each its own `size` again and again."""
    repeats = max(1, ATTEMPT_BYTES // size)
    # Memory is slower than a cache, and its pages have to be there first.
    attempts = ATTEMPTS if size < ATTEMPT_BYTES else ATTEMPTS // 10
    return max(
        _library().bytes_read(*map(ctypes.c_int64, (size, repeats, threads)))
        for _ in range(attempts)
    )


@functools.cache
def _library() -> ctypes.CDLL:
    library = native.compile_source("machine_limits.cc")
    for function in (library.multiply_adds, library.bytes_read):
        function.restype = ctypes.c_double
    return library
