"""The CUDA toolkit, as the repository @cuda. Only --config=cuda ever asks for it."""

_BUILD = """
package(default_visibility = ["//visibility:public"])

sh_binary(
    name = "nvcc",
    srcs = ["nvcc.sh"],
)

cc_library(
    name = "cudart",
    srcs = ["lib/libcudart_static.a"],
    hdrs = glob(["include/**"]),
    includes = ["include"],
    linkopts = ["-ldl", "-lpthread", "-lrt"],
)
"""

def _find_nvcc(ctx):
    home = ctx.os.environ.get("CUDA_HOME")
    if home:
        return ctx.path(home).get_child("bin").get_child("nvcc")
    return ctx.which("nvcc")

def _cuda_configure_impl(ctx):
    nvcc = _find_nvcc(ctx)
    if not nvcc or not nvcc.exists:
        fail("--config=cuda needs nvcc: put it on PATH, or set CUDA_HOME to the CUDA toolkit.")

    # nvcc on PATH may be a script or a link elsewhere: only nvcc knows its toolkit.
    dry_run = ctx.execute([nvcc, "--dryrun", "-c", "-x", "cu", "/dev/null"])
    top = [line for line in dry_run.stderr.splitlines() if line.startswith("#$ TOP=")]
    if not top:
        fail("{} --dryrun does not name its toolkit:\n{}".format(nvcc, dry_run.stderr))
    toolkit = ctx.path(top[0][len("#$ TOP="):])

    ctx.symlink(toolkit.get_child("include"), "include")
    ctx.symlink(toolkit.get_child("lib64"), "lib")
    ctx.file("nvcc.sh", "#!/bin/sh\nexec '{}' \"$@\"\n".format(nvcc))
    ctx.file("BUILD", _BUILD)

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    environ = ["CUDA_HOME", "PATH"],
)
