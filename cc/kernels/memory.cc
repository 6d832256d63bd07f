#include "cc/kernels/memory.h"

#include "cc/compute/huge_pages.h"
#include "cc/kernels/gpu.h"

namespace tf_ti {

using tensorflow::AllocatorAttributes;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

// Memory that a driver has pinned has its pages already, and so has memory of strings and variants:
// they have been constructed.
void Advise(OpKernelContext* ctx, const AllocatorAttributes& attributes, const Tensor& tensor) {
  const bool is_pinned = attributes.gpu_compatible() || attributes.nic_compatible();
  if (OnGpu(ctx) || is_pinned || !tensorflow::DataTypeCanUseMemcpy(tensor.dtype())) return;
  AdviseNewMemory(tensor.data(), tensor.TotalBytes());
}

}  // namespace

absl::Status AllocateOutput(OpKernelContext* ctx, int i, const TensorShape& shape,
                            Tensor** output) {
  TF_RETURN_IF_ERROR(ctx->allocate_output(i, shape, output));
  Advise(ctx, ctx->output_alloc_attr(i), **output);
  return absl::OkStatus();
}

absl::Status AllocateTemporary(OpKernelContext* ctx, tensorflow::DataType dtype,
                               const TensorShape& shape, Tensor* tensor,
                               AllocatorAttributes attributes) {
  TF_RETURN_IF_ERROR(ctx->allocate_temp(dtype, shape, tensor, attributes));
  Advise(ctx, attributes, *tensor);
  return absl::OkStatus();
}

}  // namespace tf_ti
