// Variables for the values that others had: the gradient of a loop runs functions again that read
// variables, which may have changed since the loop ran.
#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/kernels/kernel.h"
#include "cc/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/types.h"

namespace tf_ti {

using tensorflow::AllocatorAttributes;
using tensorflow::OpKernelContext;
using tensorflow::ResourceHandle;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

class TemporaryVariableOp : public SafeKernel {
 public:
  explicit TemporaryVariableOp(tensorflow::OpKernelConstruction* ctx) : SafeKernel(ctx) {
    ctx->SetStatus(ctx->GetAttr("is_for_xla", &is_for_xla_));
  }

  bool IsExpensive() override { return false; }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor& value = ctx->input(0);
    auto* const variable = new tensorflow::Var(value.dtype());
    const tensorflow::core::ScopedUnref unref(variable);
    *variable->tensor() = value;
    variable->is_initialized = true;
    AllocatorAttributes attributes;
    attributes.set_on_host(true);
    Tensor* handle;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({}), &handle, attributes));
    return MakeHandle(ctx, variable, value, &handle->scalar<ResourceHandle>()());
  }

  absl::Status MakeHandle(OpKernelContext* ctx, tensorflow::Var* variable, const Tensor& value,
                          ResourceHandle* handle) const {
    const std::vector<tensorflow::DtypeAndPartialTensorShape> types{{value.dtype(), value.shape()}};
    variable->Ref();
    if (!is_for_xla_ || ctx->step_container() == nullptr) {
      *handle = ResourceHandle::MakeRefCountingHandle(variable, ctx->device()->name(), types);
      return absl::OkStatus();
    }
    static std::atomic<int64_t> number{0};
    const std::string name = absl::StrCat("tf_ti_temporary_variable_", number++);
    *handle = ctx->step_container()->MakeResourceHandle<tensorflow::Var>(name, *ctx->device());
    handle->set_dtypes_and_shapes(types);
    return ctx->step_container()->Create(ctx->resource_manager(), name, variable);
  }

  bool is_for_xla_;
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
