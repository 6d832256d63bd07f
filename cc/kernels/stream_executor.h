// TensorFlow's StreamExecutor, even where a header that it includes cannot be read.
#ifndef TF_TI_CC_KERNELS_STREAM_EXECUTOR_H_
#define TF_TI_CC_KERNELS_STREAM_EXECUTOR_H_

#include "tensorflow/core/public/version.h"

// In TensorFlow 2.19's wheel, that header needs headers of LLVM, which are not there. It declares a
// parameter type of a function of StreamExecutor that is never called here.
#if TF_MAJOR_VERSION == 2 && TF_MINOR_VERSION == 19
#define XLA_STREAM_EXECUTOR_GPU_TMA_METADATA_H_
namespace stream_executor::gpu {
class TmaDescriptor {};
}  // namespace stream_executor::gpu
#endif

#include "tensorflow/core/platform/stream_executor.h"

#endif  // TF_TI_CC_KERNELS_STREAM_EXECUTOR_H_
