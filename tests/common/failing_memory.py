"""Memory that runs out at each allocation of tf_ti's libraries in turn, for programs of tests.

The process must have loaded failing_memory.cc before all else, whose path is in LD_PRELOAD.
"""

import ctypes
import functools
import os

import numpy as np
import tensorflow as tf

_LIBRARIES = ("_tf_ti.so", "_tf_ti_xla.so")


@functools.cache
def _library():
    memory = ctypes.CDLL(os.environ["LD_PRELOAD"])
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            fields = line.split()
            if "x" in fields[1] and fields[-1].endswith(_LIBRARIES):
                memory.watch(*(ctypes.c_void_p(int(end, 16)) for end in fields[0].split("-")))
    return memory


def run_out(name, call, variables=()):
    """Calls a function with memory that runs out at each allocation in turn.

    It must raise an error that names the op, which leaves variables as they were, or do without
    the memory and be right.
    """
    memory = _library()
    before = [variable.numpy() for variable in variables]

    def try_with(first, for_good):
        for variable, value in zip(variables, before):
            variable.assign(value)
        memory.fail(first, for_good)
        try:
            results = call()
            error = None
        except tf.errors.ResourceExhaustedError as raised:
            error = raised.message
        finally:
            count = memory.stop()
        if error is None:
            return count, [np.array(x) for x in (*tf.nest.flatten(results), *variables)]
        words = ("out of memory in", "OOM when allocating")  # ours, and TensorFlow's of a tensor
        assert any(text in error for text in words), (name, first, error)
        for variable, value in zip(variables, before):
            assert np.array_equal(variable, value), (name, first, "a half of it is written")
        return count, None

    never = 1 << 30  # a C int
    try_with(never, False)  # the first call traces
    count, expected = try_with(never, False)
    num_errors = 0
    for for_good in (False, True):
        for first in range(3 * count + 10):
            reached, results = try_with(first, for_good)
            if results is None:
                num_errors += 1
                continue
            for result, other in zip(results, expected, strict=True):
                np.testing.assert_array_equal(result, other, f"{name}, allocation {first}")
            if reached <= first:
                break
        else:
            raise AssertionError(f"{name} asks for more memory each time")
    print(name, count, num_errors, flush=True)
    assert num_errors > 0, name
