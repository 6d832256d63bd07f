// What kernels include of TensorFlow, which compilers read once for all of them: see
// bazel/precompiled_header.bzl. Every file still includes what it needs.

// For executor.cc: what is precompiled is the same for all.
#define EIGEN_USE_THREADS

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/register_types.h"
