// The kernels of decayed sums.
#include "cc/compute/decay/decayed_sum.h"

#include "cc/compute/decay/decayed_sum_gpu.h"
#include "cc/kernels/gpu.h"
#include "cc/kernels/kernel.h"
#include "cc/kernels/threads.h"
#include "cc/spec/decay/decayed_sum_spec.h"

namespace tf_ti {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

template <typename T>
class DecayedSumOp : public SafeKernel {
 public:
  explicit DecayedSumOp(OpKernelConstruction* ctx) : SafeKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("reverse", &reverse_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor& x = ctx->input(0);
    const Tensor& decay = ctx->input(1);
    TF_RETURN_IF_ERROR(CheckDecayedSum(x.shape(), decay.shape()));
    Tensor* y = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, x.shape(), &y));
    if (x.NumElements() == 0) return absl::OkStatus();
    const DecayedSum sum{x.dim_size(0), x.NumElements() / x.dim_size(0), reverse_};
    const T* from = x.flat<T>().data();
    const T* factor = decay.flat<T>().data();
    T* to = y->flat<T>().data();
#if GOOGLE_CUDA
    if (OnGpu(ctx)) {
      KernelGpu gpu(ctx);
      return ToStatus(ComputeDecayedSum(sum, from, factor, to, &gpu), &gpu);
    }
#endif
    Threads threads(ctx);
    ComputeDecayedSum(sum, from, *factor, to, &threads);
    return absl::OkStatus();
  }

  bool reverse_;
};

#define TF_TI_REGISTER(device, T)                                                         \
  TF_TI_REGISTER_KERNEL(                                                                  \
      Name("TfTi>DecayedSum").Device(tensorflow::DEVICE_##device).TypeConstraint<T>("T"), \
      DecayedSumOp<T>)

TF_TI_REGISTER(CPU, float);
TF_TI_REGISTER(CPU, double);
#if GOOGLE_CUDA
TF_TI_REGISTER(GPU, float);
TF_TI_REGISTER(GPU, double);
#endif

}  // namespace
}  // namespace tf_ti
