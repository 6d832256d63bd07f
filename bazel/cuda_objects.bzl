"""cuda_objects: CUDA sources, compiled by nvcc to objects that a C++ rule links.

The output group `registers` has what ptxas says of each kernel: gpu_check/registers.py reads it.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# ptxas says it on the standard error, where nothing else is unless something is wrong.
_COMMAND = """report=$1; shift; "$@" 2>"$report" || { cat "$report" >&2; exit 1; }"""

def _cuda_objects_impl(ctx):
    headers = depset(transitive = [
        dep[CcInfo].compilation_context.headers
        for dep in ctx.attr.deps
    ])

    # With --define=ptx_only=true PTX alone, which takes a third of the time.
    options = [ctx.file._ptx]
    if ctx.var.get("ptx_only") != "true":
        options.append(ctx.file._machine_code)
    flags = [
        "-c",
        "-O3",
        "-std=c++17",
        "-ccbin=" + find_cpp_toolchain(ctx).compiler_executable,
        "-Werror=all-warnings",
        # -Wextra would find fault with nvcc's own stubs.
        "-Xcompiler=-fPIC,-Wall",
        "-Xptxas=-v",
        "-I.",
    ]
    for file in options:
        flags += ["--options-file", file.path]

    objects = []
    reports = []
    for source in ctx.files.srcs:
        name = source.short_path.replace("/", "_").replace(".cu.cc", ".cu.pic.o")
        object = ctx.actions.declare_file(name)
        report = ctx.actions.declare_file(name.replace(".pic.o", ".registers"))
        command = [report.path, ctx.executable._nvcc.path] + flags
        ctx.actions.run_shell(
            command = _COMMAND,
            arguments = command + ["-x", "cu", source.path, "-o", object.path],
            inputs = depset([source] + options + ctx.files._compiler, transitive = [headers]),
            outputs = [object, report],
            tools = [ctx.executable._nvcc],
            mnemonic = "CudaCompile",
            progress_message = "Compiling " + source.short_path,
            use_default_shell_env = True,
        )
        objects.append(object)
        reports.append(report)
    return [
        DefaultInfo(files = depset(objects)),
        OutputGroupInfo(registers = depset(reports)),
    ]

cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu.cc"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "_compiler": attr.label(default = "@cuda//:compiler"),
        "_machine_code": attr.label(default = "@cuda//:machine_code.txt", allow_single_file = True),
        "_ptx": attr.label(default = "@cuda//:ptx.txt", allow_single_file = True),
        "_nvcc": attr.label(default = "@cuda//:nvcc", executable = True, cfg = "exec"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
