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
"""

# `includes` makes the headers system headers: our warnings are not for them.
_BUILD = """
cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

def _tf_configure_impl(ctx):
    python = ctx.os.environ.get("PYTHON_BIN_PATH") or ctx.which("python3")
    answer = ctx.execute([python, "-c", _QUESTION], environment = {"TF_CPP_MIN_LOG_LEVEL": "3"})
    if answer.return_code:
        fail("{} cannot import TensorFlow; install tensorflow-cpu there, or set PYTHON_BIN_PATH.\n{}"
            .format(python, answer.stderr))
    tf = json.decode(answer.stdout.splitlines()[-1])
    ctx.symlink(tf["include"], "include")
    ctx.file("BUILD", _BUILD)
    ctx.file("flags.bzl", _FLAGS.format(
        version = repr(tf["version"]),
        copts = [flag for flag in tf["copts"] if not flag.startswith("-I")],
        linkopts = tf["linkopts"],
    ))

tf_configure = repository_rule(
    implementation = _tf_configure_impl,
    # TF_TI_TENSORFLOW changes where another TensorFlow is installed: see bazel.sh.
    environ = ["PYTHON_BIN_PATH", "TF_TI_TENSORFLOW"],
)
