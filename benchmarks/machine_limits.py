"""The limits of recurrent layers: a machine's products, and reads of its second-level cache."""

import ctypes
import dataclasses
import functools

from benchmarks import native

# Bytes that one core reads again and again, such as the recurrent weights of a layer.
READ_BYTES = 2**20
ATTEMPTS = 100


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
    library = native.compile_source("machine_limits.cc")
    for function in (library.multiply_adds, library.bytes_read):
        function.restype = ctypes.c_double
    count, size = ctypes.c_int64(threads), ctypes.c_int64(READ_BYTES)
    # Some 2 ms each: longer than a thread needs to start, and short enough to stay undisturbed.
    multiply_adds = max(
        library.multiply_adds(ctypes.c_int64(1_000_000), count) for _ in range(ATTEMPTS)
    )
    bytes_read = max(library.bytes_read(size, ctypes.c_int64(200), count) for _ in range(ATTEMPTS))
    return Limits(threads, multiply_adds, bytes_read)
