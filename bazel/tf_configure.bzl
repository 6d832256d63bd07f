"""The TensorFlow that Python imports, as the repository @tensorflow."""

_QUESTION = """
import json
import tensorflow as tf
print(json.dumps({
    "version": tf.__version__,
    "include": tf.sysconfig.get_include(),
    "copts": tf.sysconfig.get_compile_flags(),
    "linkopts": tf.sysconfig.get_link_flags(),
}))
"""

_FLAGS = """
TF_VERSION = {version}
TF_COPTS = {copts}
TF_LINKOPTS = {linkopts}
TF_XLA_LINKOPTS = ["-l:libtensorflow_cc.so.2"]
TF_HAS_XLA = {has_xla}
"""

# The headers that XLA kernels include. Not every TensorFlow comes with all that these include.
_XLA_PROBE = """
#include "tensorflow/compiler/tf2xla/kernels/if_while_utils.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "xla/ffi/api/ffi.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/xla_builder.h"
"""

_XLA_INCLUDES = ["include", "include/external/highwayhash", "include/external/farmhash_archive/src"]

# `includes` makes the headers system headers: our warnings are not for them.
_BUILD = """
cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)

cc_library(
    name = "xla_headers",
    includes = {xla_includes},
    visibility = ["//visibility:public"],
    deps = [":headers"],
)
"""

def _has_xla(ctx, copts):
    ctx.file("xla_probe.cc", _XLA_PROBE)
    compiler = ctx.os.environ.get("CXX") or ctx.os.environ.get("CC") or "g++"
    command = [compiler, "-M", "-xc++", "xla_probe.cc"] + copts
    for include in _XLA_INCLUDES:
        command += ["-isystem", include]
    return ctx.execute(command).return_code == 0

def _tf_configure_impl(ctx):
    python = ctx.os.environ.get("PYTHON_BIN_PATH") or ctx.which("python3")
    answer = ctx.execute([python, "-c", _QUESTION], environment = {"TF_CPP_MIN_LOG_LEVEL": "3"})
    if answer.return_code:
        fail("{} cannot import TensorFlow; install tensorflow-cpu there, or set PYTHON_BIN_PATH.\n{}"
            .format(python, answer.stderr))
    tf = json.decode(answer.stdout.splitlines()[-1])
    ctx.symlink(tf["include"], "include")
    ctx.file("BUILD", _BUILD.format(xla_includes = _XLA_INCLUDES))
    copts = [flag for flag in tf["copts"] if not flag.startswith("-I")]
    ctx.file("flags.bzl", _FLAGS.format(
        version = repr(tf["version"]),
        copts = copts,
        linkopts = tf["linkopts"],
        has_xla = _has_xla(ctx, copts),
    ))

tf_configure = repository_rule(
    implementation = _tf_configure_impl,
    # TF_TI_TENSORFLOW says which TensorFlow it is and where: see bazel.sh. Not PYTHON_BIN_PATH: one
    # Python has several names.
    environ = ["CC", "CXX", "TF_TI_TENSORFLOW"],
)
