"""Does as Python's command does, in a process of its own that has imported TensorFlow already.

Reads a line of JSON for each command and answers with its exit status: see run_python in
conftest.py.
"""

import json
import os
import sys
import types

# TensorFlow imports JAX where it is there, which takes long. A file still may.
sys.modules["jax"] = None
import tensorflow as tf  # noqa: E402

del sys.modules["jax"]
tf.config.experimental.enable_tensor_float_32_execution(False)  # as in conftest.py


def _become(request):
    """Makes this process look as if Python had started it for the command. Returns the code."""
    for descriptor, path in enumerate(request["streams"]):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    first, *rest = request["command"]
    if first == "-c":
        sys.argv, sys.path[0] = [first, *rest[1:]], ""
        return compile(rest[0], "<string>", "exec"), vars(main)
    if first == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        run = "import runpy, sys; runpy.run_module(sys.argv[0], None, '__main__', True)"
        return compile(run, "<run>", "exec"), {}
    sys.argv, sys.path[0] = [first, *rest], os.path.dirname(first)
    main.__file__ = first
    with open(first, encoding="utf-8") as source:
        return compile(source.read(), first, "exec"), vars(main)


def _next_command():
    """Returns the code of a command, in the process that runs it."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return _become(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit()


exec(*_next_command())
