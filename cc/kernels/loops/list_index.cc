// Indices at which lists are written. Lists of XLA do not grow, and XLA's kernel refuses an index
// past the end. Here the list grows, but TensorFlow does not check that an index is not negative.
#include <string>

#include "cc/kernels/kernel.h"
#include "cc/spec/loops/errors.h"
#include "cc/status.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_ti {
namespace {

class ListIndexOp : public SafeKernel {
 public:
  explicit ListIndexOp(tensorflow::OpKernelConstruction* ctx) : SafeKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("label", &label_));
  }

  bool IsExpensive() override { return false; }

 private:
  absl::Status Run(tensorflow::OpKernelContext* ctx) override {
    const auto indices = ctx->input(0).flat<int32_t>();
    for (int64_t i = 0; i < indices.size(); ++i) {
      if (indices(i) < 0) return InvalidArgument(IndexIsNegative(label_, indices(i)));
    }
    ctx->set_output(0, ctx->input(0));
    return absl::OkStatus();
  }

  std::string label_;
};

TF_TI_REGISTER_KERNEL(Name("TfTi>ListIndex").Device(tensorflow::DEVICE_CPU), ListIndexOp);

#if GOOGLE_CUDA
TF_TI_REGISTER_KERNEL(Name("TfTi>ListIndex")
                          .Device(tensorflow::DEVICE_GPU)
                          .HostMemory("index")
                          .HostMemory("size")
                          .HostMemory("same"),
                      ListIndexOp);
#endif

}  // namespace
}  // namespace tf_ti
