"""Runs Python files, each in a process of its own that has imported TensorFlow already.

Reads a line of JSON for each and answers with its exit status: see run_script in conftest.py.
"""

import json
import os
import sys
import types

# TensorFlow imports JAX where it is there, which takes long. A file still may.
sys.modules["jax"] = None
import tensorflow  # noqa: E402, F401

del sys.modules["jax"]


def _become(script):
    """Makes this process one that Python started for the file."""
    os.chdir(script["folder"])
    os.environ.clear()
    os.environ.update(script["environment"])
    for descriptor, path in enumerate(script["streams"]):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    path, *_ = sys.argv = script["command"]
    sys.path[0] = os.path.dirname(path)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = path
    with open(path, encoding="utf-8") as source:
        return compile(source.read(), path, "exec"), vars(main)


def _next_script():
    """Returns in the process of each file, which runs it."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return _become(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit()


exec(*_next_script())
