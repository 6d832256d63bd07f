"""Counts the work that Python does: a test of growth that measures no time."""

import collections
import pathlib
import sys
import threading

import tf_ti

_OURS = str(pathlib.Path(tf_ti.__file__).parent)


def count(function):
    """How often each code object of tf_ti runs a line, and each other one is called."""
    found = collections.Counter()

    def line(frame, event, _):
        found[frame.f_code] += 1
        return line

    def call(frame, event, _):
        found[frame.f_code] += 1
        return line if frame.f_code.co_filename.startswith(_OURS) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        function()
    finally:
        sys.settrace(before)
    return found


def growing_faster(function, small, large):
    """The code that runs more often than `large / small` times as often, with the two counts.

    Args:
        function: the work of a given size. It runs once before it is counted.
        small, large: two sizes.
    """
    function(small)
    few, many = (count(lambda size=size: function(size)) for size in (small, large))
    return {
        f"{code.co_filename}:{code.co_firstlineno} {code.co_name}": (few[code], times)
        for code, times in many.items()
        # As often as there are elements, by a way that few do not take.
        if times > 1.3 * large / small * max(few[code], 10 * small)
    }


def under_deep_stack(function):
    """What a function returns on a stack of Python that has 100 calls left."""
    results = []

    def nest(depth):
        if depth:
            nest(depth - 1)
        else:
            results.append(function())

    thread = threading.Thread(target=nest, args=(sys.getrecursionlimit() - 100,))
    thread.start()
    thread.join()
    (result,) = results  # else the thread failed, and pytest shows how
    return result
