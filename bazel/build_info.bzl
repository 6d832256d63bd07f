"""build_info: a Python file that records what the library was built with."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@tensorflow//:flags.bzl", "TF_HAS_XLA", "TF_VERSION")

_CONTENT = """cat > {out} <<EOF
TENSORFLOW_VERSION = "{tensorflow}"
COMPILER = "$({compiler} --version | head -n 1)"
FLAGS = "{flags}"
CUDA = "{cuda}"
XLA = {xla}
EOF"""

# nvcc prints "..., release 12.4, V12.4.131".
_CUDA = "$({nvcc} --version | sed -n 's/.*release \\([0-9.]*\\),.*/\\1/p')"

def _build_info_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    nvcc = ctx.executable.nvcc
    ctx.actions.run_shell(
        outputs = [ctx.outputs.out],
        tools = depset([nvcc] if nvcc else [], transitive = [toolchain.all_files]),
        command = _CONTENT.format(
            out = ctx.outputs.out.path,
            tensorflow = TF_VERSION,
            compiler = toolchain.compiler_executable,
            flags = " ".join(ctx.attr.copts + ctx.fragments.cpp.copts),
            cuda = _CUDA.format(nvcc = nvcc.path) if nvcc else "",
            xla = TF_HAS_XLA,
        ),
        mnemonic = "BuildInfo",
    )

build_info = rule(
    implementation = _build_info_impl,
    attrs = {
        "copts": attr.string_list(),
        "nvcc": attr.label(executable = True, cfg = "exec"),
        "out": attr.output(mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
