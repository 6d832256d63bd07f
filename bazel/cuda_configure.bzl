"""The CUDA toolkit, as the repository @cuda. Only --config=cuda ever asks for it."""

_BUILD = """
package(default_visibility = ["//visibility:public"])

sh_binary(
    name = "nvcc",
    srcs = ["nvcc.sh"],
)

# The compiler's programs: with those of another toolkit, all is compiled again.
filegroup(
    name = "compiler",
    srcs = glob(["bin/*"]),
)

# nvcc's options: which GPUs to compile machine code for, and PTX for those to come.
exports_files(["machine_code.txt", "ptx.txt"])

cc_library(
    name = "cudart",
    srcs = ["lib/libcudart_static.a"],
    hdrs = glob(["include/**"]),
    includes = ["include"],
    linkopts = ["-ldl", "-lpthread", "-lrt"],
)
"""

# Machine code of sm_70 runs on sm_75 too, and so on up to the next multiple of ten.
_ARCHITECTURES = [["70", "75"], ["80"], ["90"], ["100"], ["120"]]
_PTX = "90"
_PROGRAMS = ["cudafe++", "fatbinary", "nvcc", "ptxas"]

def _gencode(architecture, code):
    return "-gencode=arch=compute_{},code={}_{}\n".format(architecture, code, architecture)

# The first of each group that the compiler has machine code for.
def _architectures(ctx, nvcc):
    supported = ctx.execute([nvcc, "--list-gpu-code"]).stdout.splitlines()
    groups = [[a for a in group if "sm_" + a in supported] for group in _ARCHITECTURES]
    return [group[0] for group in groups if group]

# Compiles nothing but headers: this fails where the C++ compiler, or its C library, is newer than
# the toolkit.
def _check_compiler(ctx, nvcc):
    compiler = ctx.os.environ.get("CC", "gcc")
    ctx.file("headers.cu", "#include <cmath>\n#include <string>\n")
    result = ctx.execute([nvcc, "-ccbin=" + compiler, "-std=c++17", "-c", "headers.cu", "-o", "headers.o"])
    if result.return_code == 0:
        return
    version = ctx.execute([compiler, "--version"]).stdout.splitlines()
    toolkit = [line for line in ctx.execute([nvcc, "--version"]).stdout.splitlines() if "release" in line]
    errors = [line for line in result.stderr.splitlines() if "error" in line]
    fail(("{} does not compile with {}:\n  {}\n  {}\n{}\nCUDA 12.4 takes GCC up to 13, and a glibc " +
          "before 2.41: set CC to an older compiler, build on a system that has older ones, or set " +
          "CUDA_HOME to CUDA 13.").format(
        nvcc,
        compiler,
        "".join(toolkit[:1]),
        "".join(version[:1]),
        "\n".join(errors[:3]) or result.stderr,
    ))

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

    _check_compiler(ctx, nvcc)

    ctx.symlink(toolkit.get_child("include"), "include")
    ctx.symlink(toolkit.get_child("lib64"), "lib")
    for program in _PROGRAMS:
        ctx.symlink(toolkit.get_child("bin").get_child(program), "bin/" + program)
    machine_code = [_gencode(a, "sm") for a in _architectures(ctx, nvcc)]
    ctx.file("machine_code.txt", "".join(machine_code))
    ctx.file("ptx.txt", _gencode(_PTX, "compute"))
    ctx.file("nvcc.sh", "#!/bin/sh\nexec '{}' \"$@\"\n".format(nvcc))
    ctx.file("BUILD", _BUILD)

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    environ = ["CC", "CUDA_HOME", "PATH"],
)
