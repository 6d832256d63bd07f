"""cuda_objects: CUDA sources, compiled by nvcc to objects that a C++ rule links."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# Machine code for these GPUs, and PTX of the last one for those to come. With --define=ptx_only=true
# the latter alone, which takes a third of the time.
_ARCHITECTURES = ["80", "90"]

def _cuda_objects_impl(ctx):
    headers = depset(transitive = [
        dep[CcInfo].compilation_context.headers
        for dep in ctx.attr.deps
    ])
    architectures = [] if ctx.var.get("ptx_only") == "true" else _ARCHITECTURES
    flags = [
        "-c",
        "-O3",
        "-std=c++17",
        "-ccbin=" + find_cpp_toolchain(ctx).compiler_executable,
        "-Werror=all-warnings",
        # -Wextra would find fault with nvcc's own stubs.
        "-Xcompiler=-fPIC,-Wall",
        "-I.",
    ] + [
        "-gencode=arch=compute_{0},code=sm_{0}".format(architecture)
        for architecture in architectures
    ] + ["-gencode=arch=compute_{0},code=compute_{0}".format(_ARCHITECTURES[-1])]

    objects = []
    for source in ctx.files.srcs:
        name = source.short_path.replace("/", "_").replace(".cu.cc", ".cu.pic.o")
        object = ctx.actions.declare_file(name)
        ctx.actions.run(
            executable = ctx.executable._nvcc,
            arguments = flags + ["-x", "cu", source.path, "-o", object.path],
            inputs = depset([source], transitive = [headers]),
            outputs = [object],
            mnemonic = "CudaCompile",
            progress_message = "Compiling " + source.short_path,
            use_default_shell_env = True,
        )
        objects.append(object)
    return [DefaultInfo(files = depset(objects))]

cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu.cc"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "_nvcc": attr.label(default = "@cuda//:nvcc", executable = True, cfg = "exec"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
