// The headers of TensorFlow that kernels include. Compilers read them once for all kernels: see
// bazel/precompiled_header.bzl. Every file still includes all that it needs.

// For loop_device.cc: all files have the same precompiled header.
#define EIGEN_USE_THREADS

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/register_types.h"
