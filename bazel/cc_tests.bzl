"""cc_tests: C++ tests, each run once for each instruction set."""

_INSTRUCTION_SETS = ["baseline", "avx2", "avx512"]

def _instruction_set_test_impl(ctx):
    executable = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(
        output = executable,
        target_file = ctx.executable.binary,
        is_executable = True,
    )
    return [
        DefaultInfo(executable = executable),
        testing.TestEnvironment({"TF_TI_INSTRUCTION_SET": ctx.attr.instruction_set}),
    ]

_instruction_set_test = rule(
    implementation = _instruction_set_test_impl,
    attrs = {
        "binary": attr.label(executable = True, cfg = "target"),
        "instruction_set": attr.string(values = _INSTRUCTION_SETS),
    },
    test = True,
)

def cc_tests(name, srcs, copts, deps, linkopts = []):
    """Tests that are compiled once, and run with each TF_TI_INSTRUCTION_SET.

    Args:
      name: of the test_suite of all.
      srcs: each the source of a test, X_test.cc.
      copts: flags for the compiler.
      deps: the libraries that each links.
      linkopts: flags for the linker.
    """
    tests = []
    for src in srcs:
        test = src[:-len(".cc")]
        native.cc_binary(
            name = test,
            testonly = True,
            srcs = [src],
            copts = copts,
            linkopts = linkopts,
            deps = deps,
        )
        for instruction_set in _INSTRUCTION_SETS:
            tests.append(test + "." + instruction_set)
            _instruction_set_test(
                name = tests[-1],
                size = "small",
                binary = test,
                instruction_set = instruction_set,
                tags = [instruction_set],
            )
    native.test_suite(name = name, tests = tests)
