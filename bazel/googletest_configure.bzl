"""The sources of GoogleTest, as the repository @googletest. Only C++ tests ever ask for it."""

# Compiled in the build, so that a sanitizer sees it. `includes` makes its headers system headers:
# our warnings are not for them.
_BUILD = """
cc_library(
    name = "googletest",
    testonly = True,
    srcs = ["googletest/src/gtest-all.cc"],
    hdrs = glob(["googletest/include/**/*.h"]),
    copts = ["-Iexternal/googletest/googletest", "-w"],
    includes = ["googletest/include"],
    linkopts = ["-lpthread"],
    textual_hdrs = glob(
        ["googletest/src/*"],
        exclude = ["googletest/src/gtest-all.cc"],
    ),
    visibility = ["//visibility:public"],
)
"""

def _googletest_configure_impl(ctx):
    home = ctx.os.environ.get("GOOGLETEST_HOME", "/usr/src/googletest")
    sources = ctx.path(home).get_child("googletest")
    if not sources.get_child("src").get_child("gtest-all.cc").exists:
        fail("C++ tests need the sources of GoogleTest: run `make test-cc`, or set GOOGLETEST_HOME " +
             "to a folder with googletest/src/gtest-all.cc. That is not in {}.".format(home))
    ctx.symlink(sources, "googletest")
    ctx.file("BUILD", _BUILD)

googletest_configure = repository_rule(
    implementation = _googletest_configure_impl,
    environ = ["GOOGLETEST_HOME"],
)
