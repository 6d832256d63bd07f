// Variables for the values that others had: the gradient of a loop runs functions again that read
// variables, which may have changed since the loop ran.
#include "cc/kernels/kernel.h"
#include "cc/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/types.h"

namespace tf_ti {
namespace {

class TemporaryVariableOp : public SafeKernel {
 public:
  using SafeKernel::SafeKernel;

  bool IsExpensive() override { return false; }

 private:
  absl::Status Run(tensorflow::OpKernelContext* ctx) override {
    const tensorflow::Tensor& value = ctx->input(0);
    auto* const variable = new tensorflow::Var(value.dtype());
    *variable->tensor() = value;
    variable->is_initialized = true;
    tensorflow::AllocatorAttributes attributes;
    attributes.set_on_host(true);
    tensorflow::Tensor* handle;
    const absl::Status status =
        ctx->allocate_output(0, tensorflow::TensorShape({}), &handle, attributes);
    if (!status.ok()) {
      variable->Unref();
      return status;
    }
    handle->scalar<tensorflow::ResourceHandle>()() =
        tensorflow::ResourceHandle::MakeRefCountingHandle(variable, ctx->device()->name(),
                                                          {{value.dtype(), value.shape()}});
    return absl::OkStatus();
  }
};

TF_TI_REGISTER_KERNEL(Name("TfTi>TemporaryVariable").Device(tensorflow::DEVICE_CPU),
                      TemporaryVariableOp);

#if GOOGLE_CUDA
TF_TI_REGISTER_KERNEL(
    Name("TfTi>TemporaryVariable").Device(tensorflow::DEVICE_GPU).HostMemory("resource"),
    TemporaryVariableOp);
#endif

}  // namespace
}  // namespace tf_ti
