// Variables for the values that others had: the gradient of a loop runs functions again that read
// variables, which may have changed since the loop ran.
#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/kernels/kernel.h"
#include "cc/status.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/types.h"

namespace tf_ti {

using tensorflow::AllocatorAttributes;
using tensorflow::DMAHelper;
using tensorflow::OpKernelContext;
using tensorflow::ResourceHandle;
using tensorflow::ResourceMgr;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;

namespace {

constexpr char kContainer[] = "tf_ti_temporary_variables";

// The memory of a value. With it a variable of the same value ends that has a name: functions that
// XLA compiles find variables by name, and not by their handles.
class NamedMemory : public tensorflow::TensorBuffer {
 public:
  NamedMemory(const Tensor& value, ResourceMgr* resources, std::string name)
      : TensorBuffer(DMAHelper::buffer(&value)->data()),
        value_(value),
        resources_(resources),
        name_(std::move(name)) {}
  ~NamedMemory() override { resources_->Delete<Var>(kContainer, name_).IgnoreError(); }

  size_t size() const override { return DMAHelper::buffer(&value_)->size(); }
  TensorBuffer* root_buffer() override { return DMAHelper::buffer(&value_)->root_buffer(); }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    DMAHelper::buffer(&value_)->FillAllocationDescription(description);
  }
  tensorflow::AllocatorMemoryType GetMemoryType() const override {
    return DMAHelper::buffer(&value_)->GetMemoryType();
  }

 private:
  Tensor value_;
  ResourceMgr* const resources_;
  const std::string name_;
};

Var* VariableOf(const Tensor& value) {
  auto* const variable = new Var(value.dtype());
  *variable->tensor() = value;
  variable->is_initialized = true;
  return variable;
}

class TemporaryVariableOp : public SafeKernel {
 public:
  explicit TemporaryVariableOp(tensorflow::OpKernelConstruction* ctx) : SafeKernel(ctx) {
    ctx->SetStatus(ctx->GetAttr("is_for_xla", &is_for_xla_));
  }

  bool IsExpensive() override { return false; }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor& value = ctx->input(0);
    AllocatorAttributes attributes;
    attributes.set_on_host(true);
    Tensor* output;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({}), &output, attributes));
    ResourceHandle* const handle = &output->scalar<ResourceHandle>()();
    if (!is_for_xla_) {
      *handle = HandleOf(ctx, value);
      return absl::OkStatus();
    }
    static std::atomic<int64_t> number{0};
    const std::string name = absl::StrCat(number++);
    ResourceMgr* const resources = ctx->resource_manager();
    TF_RETURN_IF_ERROR(resources->Create(kContainer, name, VariableOf(value)));
    if (DMAHelper::buffer(&value) == nullptr) {  // it has no elements, and the name stays
      *handle = HandleOf(ctx, value);
    } else {
      auto* const memory = new NamedMemory(value, resources, name);
      *handle = HandleOf(ctx, Tensor(value.dtype(), value.shape(), memory));
      memory->Unref();  // the tensor has it
    }
    handle->set_container(kContainer);
    handle->set_name(name);
    return absl::OkStatus();
  }

  // The last copy of the handle ends the variable.
  static ResourceHandle HandleOf(OpKernelContext* ctx, const Tensor& value) {
    return ResourceHandle::MakeRefCountingHandle(VariableOf(value), ctx->device()->name(),
                                                 {{value.dtype(), value.shape()}});
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
