"""build_info: a Python file that records what the library was built with."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@tensorflow//:flags.bzl", "TF_HAS_XLA", "TF_VERSION")

_CONTENT = """cat > {out} <<EOF
TENSORFLOW_VERSION = "{tensorflow}"
COMPILER = "$({compiler} --version | head -n 1)"
FLAGS = "{flags}"
CUDA = {cuda}
XLA = {xla}
EOF"""

def _build_info_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    ctx.actions.run_shell(
        outputs = [ctx.outputs.out],
        tools = toolchain.all_files,
        command = _CONTENT.format(
            out = ctx.outputs.out.path,
            tensorflow = TF_VERSION,
            compiler = toolchain.compiler_executable,
            flags = " ".join(ctx.attr.copts + ctx.fragments.cpp.copts),
            cuda = ctx.var.get("cuda") == "true",
            xla = TF_HAS_XLA,
        ),
        mnemonic = "BuildInfo",
    )

build_info = rule(
    implementation = _build_info_impl,
    attrs = {
        "copts": attr.string_list(),
        "out": attr.output(mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
