"""tf_custom_op_library: a shared library of TensorFlow ops, and what such a one is made of."""

load("@tensorflow//:flags.bzl", "TF_COPTS", "TF_LINKOPTS")
load(":cuda_objects.bzl", "cuda_objects")
load(":precompiled_header.bzl", "including", "precompiled_header")

# No -fvisibility=hidden: TensorFlow tells resource types apart by the address of a static variable
# in a header, which must be one and the same in its library and in ours.
COPTS = TF_COPTS + ["-Wall", "-Wextra", "-Werror"]

_LOCAL_DEFINES = select({
    "//:cuda": ["GOOGLE_CUDA=1", "EIGEN_USE_GPU=1"],
    "//conditions:default": [],
})
_HEADERS = ["@tensorflow//:headers"] + select({
    "//:cuda": ["@cuda//:cudart"],
    "//conditions:default": [],
})

def tf_precompiled_header(name, hdr, copts = [], deps = []):
    """Headers that are read once for all sources that name this as `precompiled`.

    Args:
      name: of this.
      hdr: a header that includes them.
      copts: those of the sources.
      deps: libraries whose headers it includes.
    """
    precompiled_header(
        name = name,
        hdr = hdr,
        copts = COPTS + copts,
        local_defines = _LOCAL_DEFINES,
        deps = deps + _HEADERS,
    )

def tf_library(name, srcs, precompiled, hdrs = [], copts = [], deps = []):
    """What several libraries of ops are made of.

    Args:
      name: of the cc_library.
      srcs: C++ sources, and headers that only these include.
      precompiled: the name of a tf_precompiled_header with the same copts.
      hdrs: headers, which libraries that depend on this may include too.
      copts: more flags for the compiler.
      deps: libraries whose headers these include.
    """
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        # Nothing calls what registers an op.
        alwayslink = True,
        copts = COPTS + copts + including(precompiled),
        local_defines = _LOCAL_DEFINES,
        deps = deps + [":" + precompiled] + _HEADERS,
    )

def tf_custom_op_library(
        name,
        srcs,
        precompiled,
        gpu_srcs = [],
        copts = [],
        linkopts = [],
        libraries = [],
        deps = []):
    """Builds ops and kernels against the installed TensorFlow.

    Args:
      name: file name of the library, `_foo.so`.
      srcs: C++ sources and their headers.
      precompiled: the name of a tf_precompiled_header with the same copts.
      gpu_srcs: CUDA sources (.cu.cc) that include no TensorFlow header; compiled with
        --config=cuda, which also defines GOOGLE_CUDA and EIGEN_USE_GPU for the other sources.
      copts: more flags for the compiler.
      linkopts: what the linker needs besides TensorFlow's flags.
      libraries: each a tf_library.
      deps: libraries whose headers both kinds of sources may include.
    """
    objects = []
    if gpu_srcs:
        objects.append(":" + name + "_cuda_objects")
        cuda_objects(
            name = name + "_cuda_objects",
            srcs = gpu_srcs,
            deps = deps,
            tags = ["manual"],
        )
    native.cc_binary(
        name = name,
        srcs = srcs + select({
            "//:cuda": objects,
            "//conditions:default": [],
        }),
        copts = COPTS + copts + including(precompiled),
        linkopts = TF_LINKOPTS + linkopts,
        linkshared = True,
        local_defines = _LOCAL_DEFINES,
        deps = deps + libraries + [":" + precompiled] + _HEADERS,
    )
