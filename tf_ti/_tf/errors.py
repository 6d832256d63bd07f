"""Errors and warnings that users see: their own lines, and what is wrong."""

import contextlib
import functools
import inspect
import os
import pathlib
import re
import sysconfig
import types
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.util import tf_stack

_Function = TypeVar("_Function", bound=Callable[..., Any])
_OURS = os.path.dirname(os.path.dirname(__file__))
_HIDDEN = tuple(folder + os.sep for folder in (_OURS, os.path.dirname(tf.__file__)))
_KERAS = f"{os.sep}keras{os.sep}src{os.sep}"
_GENERATED = "__autograph_generated_file"
_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")


def public(function: _Function) -> _Function:
    """Prepares a function that users call: AutoGraph does not convert it.

    Its errors in eager mode have the frames of the user's code alone, where TensorFlow's have,
    unless `tf.debugging.disable_traceback_filtering` was called.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            with without_our_frames():
                return function(*args, **kwargs)
        except Exception as error:
            is_shown = tf.executing_eagerly() and tf.debugging.is_traceback_filtering_enabled()
            if not is_shown:
                raise
            shown = _without_graph(error)
            raise shown.with_traceback(_users_frames(error.__traceback__)) from error.__cause__

    taken = tf.autograph.experimental.do_not_convert(call)
    # TensorFlow unwraps a function that is an argument of a tf.function. AutoGraph would then
    # convert all of tf_ti that the function calls, which takes seconds.
    taken.__signature__ = inspect.signature(function)
    for wrapper in (taken, call):
        del wrapper.__wrapped__
    return taken


def users_frame() -> types.FrameType:
    """The frame of the user's code that called us."""
    frame = inspect.currentframe()
    assert frame is not None  # as there are in CPython, which TensorFlow needs
    while frame.f_back is not None and not _is_users(frame.f_code):
        frame = frame.f_back
    return frame


def warn(message: str) -> None:
    """Warns, at the user's line."""
    frame = users_frame()
    path, line, names = frame.f_code.co_filename, frame.f_lineno, frame.f_globals
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, UserWarning, path, line, names.get("__name__"), registry)


def place_of(op: tf.Operation) -> str:
    """The user's line that made an operation, or the one that it is a copy of.

    As "model.py, line 12"; "" if it is not known, as in a saved model.
    """
    # TensorFlow's object with the frames is not to be kept: it does not outlive the operation.
    place = getattr(op, "tf_ti_place", None)
    return _find_place(op) if place is None else place


def copy_place(op: tf.Operation, copied: tf.Operation) -> None:
    """Lets a copy of an operation have the place of that."""
    copied.tf_ti_place = place_of(op)


def _find_place(op: tf.Operation) -> str:
    """The innermost line of the user's among those that ran while a function was traced."""
    frames, place = op.traceback or (), ""
    for k in range(len(frames) - 1, -1, -1):
        frame = frames[k]
        if frame.name == "func_graph_from_py_func":
            return place
        if not place and _is_users_frame(frame.filename, frame.name):
            place = f"{os.path.basename(frame.filename)}, line {frame.lineno}"
    return ""  # of a saved model


def without_our_frames() -> contextlib.AbstractContextManager[Any]:
    """A context in which operations of a graph are not known to be made by tf_ti.

    The error of such an operation shows the same lines as that of an operation of TensorFlow.
    """
    return contextlib.nullcontext() if tf.executing_eagerly() else _WithoutOurFrames()


class _WithoutOurFrames(tf_stack.StackTraceFilter):
    def get_filtered_filenames(self) -> frozenset[str]:
        return _our_files() | self.parent.get_filtered_filenames()


@functools.cache
def _our_files() -> frozenset[str]:
    """The files of this package, and the name that stands for its generated functions."""
    return frozenset(map(str, pathlib.Path(_OURS).rglob("*.py"))) | {"<string>"}


def users_places() -> tuple[str, str]:
    """The current line of the user's program, and the line of a library that it called, or "".

    As "model.py, line 12" and "scipy/optimize.py, line 12".
    """
    library = ""
    for frame in reversed(list(tf_stack.extract_stack())):
        if not _is_users_frame(frame.filename, frame.name) or frame.filename.startswith("<frozen"):
            continue
        inside = _INSTALLED.split(frame.filename)[1:]
        if not inside:
            return f"{os.path.basename(frame.filename)}, line {frame.lineno}", library
        library = library or f"{inside[-1]}, line {frame.lineno}"
    return "", library


def _is_users(code: types.CodeType) -> bool:
    return _is_users_frame(code.co_filename, code.co_name)


@functools.lru_cache(4096)
def _is_users_frame(path: str, name: str) -> bool:
    is_wrapper = path == "<string>" and name.startswith("tf_ti_")
    is_generated = is_wrapper or _GENERATED in path
    is_pythons = path.startswith(_LIBRARY) and not _INSTALLED.search(path)
    return not (is_generated or is_pythons or path.startswith(_HIDDEN) or _KERAS in path)


def _users_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """The frames of a traceback that are neither ours nor TensorFlow's."""
    found = []
    while traceback is not None:
        if _is_users(traceback.tb_frame.f_code):
            found.append(traceback)
        traceback = traceback.tb_next
    kept = None
    for frame in reversed(found):
        kept = types.TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept


def _without_graph(error: Exception) -> Exception:
    """The error of a loop without the graph that eager mode made for it."""
    if not isinstance(error, tf.errors.OpError) or not error.message.startswith("Graph execution"):
        return error
    lines = error.message.splitlines()
    first = next(
        (k for k, line in enumerate(lines[1:], 1) if line.strip() and not _tells_of_graph(line)), 0
    )
    kept = [line for line in lines[first:] if line.strip() and not line.startswith("\t [[{{node")]
    return type(error)(error.node_def, error.op, "\n".join(kept))


def _tells_of_graph(line: str) -> bool:
    return line.startswith(("Detected at node ", '  File "', "<stack traces unavailable>"))
