// The memory of outputs and temporaries of kernels. Where it is large, and the processor's, it goes
// to huge pages: see huge_pages.h.
#ifndef TF_TI_CC_KERNELS_MEMORY_H_
#define TF_TI_CC_KERNELS_MEMORY_H_

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_ti {

absl::Status AllocateOutput(tensorflow::OpKernelContext* ctx, int i,
                            const tensorflow::TensorShape& shape, tensorflow::Tensor** output);

absl::Status AllocateTemporary(tensorflow::OpKernelContext* ctx, tensorflow::DataType dtype,
                               const tensorflow::TensorShape& shape, tensorflow::Tensor* tensor,
                               tensorflow::AllocatorAttributes attributes = {});

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_MEMORY_H_
