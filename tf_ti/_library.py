"""The native libraries: `ops` holds the Python functions that TensorFlow makes for the ops.

`OPERATIONS` has the rows of cc/spec/loops/operations.inc. `LOWERED` names the operations that
programs run in the bodies of loops, `LOWERED_TYPES` has the types of the arrays there, and
`MOST_ELEMENTS` is the most elements that such an array has.

`VERSION` is that of the package, which names the TensorFlow that it was built for.

`PROCESSOR` says, in lines for people, what the library chose for the processor.

`XLA_PROBLEM` says why the ops cannot be compiled by XLA, or is None where they can.
"""

import ctypes
import importlib.metadata
import pathlib
import types
from typing import Any

from tf_ti._version import RELEASE, TENSORFLOWS, minor_of, version_for

_PATH = pathlib.Path(__file__).with_name("_tf_ti.so")
_XLA_PATH = _PATH.with_name("_tf_ti_xla.so")


def _version() -> str:
    from tf_ti._build_info import CUDA, TENSORFLOW_VERSION

    return version_for(TENSORFLOW_VERSION, bool(CUDA))


def _import_tensorflow() -> types.ModuleType:
    try:
        import tensorflow
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise ImportError(
            f"tf_ti needs TensorFlow: pip install 'tf_ti[cpu]=={_version()}', or "
            f"'tf_ti[gpu]=={_version()}'"
        ) from error
    return tensorflow


def _load() -> types.ModuleType:
    if not _PATH.exists():  # nor is what the build says of itself
        raise ImportError(f"{_PATH} is missing: run `make build` in the checkout of tf_ti")
    tf = _import_tensorflow()
    from tf_ti._build_info import CUDA, TENSORFLOW_VERSION

    built_for, found = minor_of(TENSORFLOW_VERSION), minor_of(tf.__version__)
    if built_for != found:
        # Another minor version is another C++ ABI: loading would end in undefined symbols or worse.
        problem = (
            f"this tf_ti was built for TensorFlow {built_for}, but TensorFlow {tf.__version__} is "
            "installed"
        )
        if found not in TENSORFLOWS:
            of_cpus = any(importlib.metadata.distributions(name="tensorflow-cpu"))
            package = "tensorflow-cpu" if of_cpus else "tensorflow"
            raise ImportError(
                f"{problem}, for which tf_ti {RELEASE} has no wheel. The TensorFlow for this one: "
                f"pip install '{package}~={built_for}.0'"
            )
        raise ImportError(
            f"{problem}. The wheel for it: pip install 'tf_ti=={version_for(found, bool(CUDA))}'; "
            "pip install . in a checkout of tf_ti builds it"
        )
    return tf.load_op_library(str(_PATH))


def _call(function: str, result: type) -> Any:
    call = getattr(ctypes.CDLL(str(_PATH)), function)
    call.restype = result
    return call()


def _text(function: str) -> str:
    return _call(function, ctypes.c_char_p).decode()


def _lowered_types() -> frozenset[Any]:
    import tensorflow as tf

    return frozenset(map(tf.as_dtype, _text("TfTiLoweredTypes").split()))


def _load_xla() -> str | None:
    import tensorflow as tf

    from tf_ti._build_info import TENSORFLOW_VERSION, XLA

    if not XLA:
        return f"the package of TensorFlow {TENSORFLOW_VERSION} lacks headers that this needs"
    try:
        tf.load_op_library(str(_XLA_PATH))
    except tf.errors.NotFoundError as error:
        return f"{_XLA_PATH.name} does not load: {error.message}"
    return None


def lanes_of(body: bytes, loop: str) -> list[str]:
    """The lanes of a loop: see TfTiLanes in cc/kernels/loops/lowering/told_lanes.h."""
    call = ctypes.CDLL(str(_PATH)).TfTiLanes
    call.restype = ctypes.c_char_p
    call.argtypes = (ctypes.c_char_p, ctypes.c_int64, ctypes.c_char_p)
    return call(body, len(body), loop.encode()).decode().splitlines()


ops = _load()
VERSION = _version()
OPERATIONS = _text("TfTiOperations").splitlines()
LOWERED = frozenset(_text("TfTiLoweredOperations").split())
LOWERED_TYPES = _lowered_types()
MOST_ELEMENTS: int = _call("TfTiMostElements", ctypes.c_int64)
PROCESSOR = _text("TfTiProcessor").splitlines()
XLA_PROBLEM = _load_xla()
