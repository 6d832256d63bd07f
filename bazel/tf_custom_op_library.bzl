"""tf_custom_op_library: a shared library of TensorFlow ops."""

load("@tensorflow//:flags.bzl", "TF_COPTS", "TF_LINKOPTS")
load(":cuda_objects.bzl", "cuda_objects")

# No -fvisibility=hidden: TensorFlow tells resource types apart by the address of a static variable
# in a header, which must be one and the same in its library and in ours.
COPTS = TF_COPTS + ["-Wall", "-Wextra", "-Werror"]

def tf_custom_op_library(name, srcs, gpu_srcs = [], linkopts = [], deps = []):
    """Builds ops and kernels against the installed TensorFlow.

    Args:
      name: file name of the library, `_foo.so`.
      srcs: C++ sources and their headers.
      gpu_srcs: CUDA sources (.cu.cc) that include no TensorFlow header; compiled with
        --config=cuda, which also defines GOOGLE_CUDA and EIGEN_USE_GPU for the other sources.
      linkopts: what the linker needs besides TensorFlow's flags.
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
        copts = COPTS,
        linkopts = TF_LINKOPTS + linkopts,
        linkshared = True,
        local_defines = select({
            "//:cuda": ["GOOGLE_CUDA=1", "EIGEN_USE_GPU=1"],
            "//conditions:default": [],
        }),
        deps = deps + ["@tensorflow//:headers"] + select({
            "//:cuda": ["@cuda//:cudart"],
            "//conditions:default": [],
        }),
    )
