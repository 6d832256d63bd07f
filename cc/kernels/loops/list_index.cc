// Indices at which lists are written: what they are for, XLA's kernel knows.
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_ti {
namespace {

class ListIndexOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) override { ctx->set_output(0, ctx->input(0)); }
  bool IsExpensive() override { return false; }
};

REGISTER_KERNEL_BUILDER(Name("TfTi>ListIndex").Device(tensorflow::DEVICE_CPU), ListIndexOp);

#if GOOGLE_CUDA
REGISTER_KERNEL_BUILDER(Name("TfTi>ListIndex")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("index")
                            .HostMemory("size")
                            .HostMemory("same"),
                        ListIndexOp);
#endif

}  // namespace
}  // namespace tf_ti
