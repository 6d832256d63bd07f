// The kernel that puts a variable on huge pages.
#include "cc/compute/bags/huge_pages.h"

#include "cc/kernels/bags/bags.h"
#include "cc/kernels/gpu.h"

namespace tf_ti {
namespace {

class AdviseHugePagesOp : public tensorflow::OpKernel {
 public:
  explicit AdviseHugePagesOp(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(tensorflow::OpKernelContext* ctx) override {
    if (OnGpu(ctx)) return;  // where pages are large anyway
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    OP_REQUIRES_OK(ctx, LookupVariable(ctx, &variable));
    variable->mu()->lock_shared();
    tensorflow::Tensor* const tensor = variable->tensor();
    if (variable->is_initialized && tensorflow::DataTypeCanUseMemcpy(tensor->dtype())) {
      AdviseHugePages(tensor->data(), tensor->TotalBytes());
    }
    variable->mu()->unlock_shared();
  }
};

REGISTER_KERNEL_BUILDER(Name("TfTi>AdviseHugePages").Device(tensorflow::DEVICE_CPU),
                        AdviseHugePagesOp);
#if GOOGLE_CUDA
REGISTER_KERNEL_BUILDER(Name("TfTi>AdviseHugePages").Device(tensorflow::DEVICE_GPU),
                        AdviseHugePagesOp);
#endif

}  // namespace
}  // namespace tf_ti
