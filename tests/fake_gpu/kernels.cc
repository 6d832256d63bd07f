// Kernels of some of TensorFlow's ops for the fake GPU. Each allocates its outputs, as the op's
// shape function says, and enqueues the CPU's kernel of the same op.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tests/fake_gpu/streams.h"

namespace fake_gpu {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

// Memory that somebody else owns, and may free: the device has to come in time.
class Borrowed : public tensorflow::TensorBuffer {
 public:
  explicit Borrowed(const Tensor& tensor)
      : TensorBuffer(const_cast<void*>(static_cast<const void*>(tensor.data()))),
        size_(tensor.TotalBytes()) {}

  size_t size() const override { return size_; }
  TensorBuffer* root_buffer() override { return this; }
  bool OwnsMemory() const override { return false; }
  void FillAllocationDescription(tensorflow::AllocationDescription*) const override {}

 private:
  const size_t size_;
};

Tensor Borrow(const Tensor& tensor) {
  if (tensor.NumElements() == 0) return Tensor(tensor.dtype(), tensor.shape());
  auto* const buffer = new Borrowed(tensor);
  Tensor borrowed(tensor.dtype(), tensor.shape(), buffer);
  buffer->Unref();
  return borrowed;
}

// The CPU's kernel of a node.
class CpuKernel {
 public:
  absl::Status Init(OpKernelContext* ctx) {
    TF_RETURN_IF_ERROR(ctx->function_library()->device_mgr()->LookupDevice("CPU:0", &device_));
    std::shared_ptr<const tensorflow::NodeProperties> properties;
    TF_RETURN_IF_ERROR(tensorflow::NodeProperties::CreateFromNodeDef(
        ctx->op_kernel().def(), tensorflow::OpRegistry::Global(), &properties));
    OpKernel* kernel;
    TF_RETURN_IF_ERROR(tensorflow::CreateOpKernel(
        tensorflow::DeviceType("CPU"), device_, device_->GetAllocator({}), /*flib=*/nullptr,
        device_->resource_manager(), properties, ctx->function_library()->graph_def_version(),
        &kernel));
    kernel_.reset(kernel);
    return absl::OkStatus();
  }

  // Ends the process where the kernel fails, as nobody is left who could be told.
  void Run(std::vector<Tensor> inputs, const std::vector<Tensor>& outputs) const {
    OpKernelContext::Params params;
    std::vector<tensorflow::TensorValue> values;
    for (Tensor& input : inputs) values.emplace_back(&input);
    const std::vector<tensorflow::AllocatorAttributes> attributes(outputs.size());
    params.device = device_;
    params.op_kernel = kernel_.get();
    params.resource_manager = device_->resource_manager();
    params.inputs = values;
    params.output_attr_array = attributes.data();
    OpKernelContext ctx(&params, outputs.size());
    kernel_->Compute(&ctx);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const std::unique_ptr<Tensor> output(ctx.status().ok() ? ctx.release_output(i).tensor
                                                             : nullptr);
      if (output == nullptr || output->shape() != outputs[i].shape()) {
        std::fprintf(stderr, "fake GPU: %s failed: %s\n", kernel_->name().c_str(),
                     ctx.status().ToString().c_str());
        std::_Exit(3);
      }
      std::memcpy(outputs[i].data(), output->data(), output->TotalBytes());
    }
  }

 private:
  tensorflow::Device* device_ = nullptr;
  std::unique_ptr<OpKernel> kernel_;
};

class EnqueuedOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, TryCompute(ctx)); }

 private:
  absl::Status TryCompute(OpKernelContext* ctx) {
    std::shared_ptr<CpuKernel> kernel;
    {
      const std::lock_guard lock(mutex_);
      if (kernel_ == nullptr) {
        kernel = std::make_shared<CpuKernel>();
        TF_RETURN_IF_ERROR(kernel->Init(ctx));
        kernel_ = kernel;
      }
      kernel = kernel_;
    }
    std::vector<Tensor> inputs, outputs;
    std::vector<const Tensor*> known;
    std::vector<tensorflow::PartialTensorShape> shapes;
    bool on_host = true;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      const Tensor& input = ctx->input(i);
      const bool is_on_host = ctx->input_memory_type(i) == tensorflow::HOST_MEMORY;
      inputs.push_back(is_on_host ? input : Borrow(input));
      known.push_back(is_on_host ? &input : nullptr);
      shapes.emplace_back(input.shape().dim_sizes());
      on_host = on_host && is_on_host;
    }
    const tensorflow::OpRegistrationData* op;
    TF_RETURN_IF_ERROR(tensorflow::OpRegistry::Global()->LookUp(type_string(), &op));
    InferenceContext inference(ctx->function_library()->graph_def_version(),
                               tensorflow::AttrSlice(def()), op->op_def, shapes, known, {}, {});
    TF_RETURN_IF_ERROR(inference.construction_status());
    TF_RETURN_IF_ERROR(inference.Run(op->shape_inference_fn));
    for (int i = 0; i < ctx->num_outputs(); ++i) {
      TensorShape shape;
      for (int d = 0; d < inference.Rank(inference.output(i)); ++d) {
        shape.AddDim(inference.Value(inference.Dim(inference.output(i), d)));
      }
      Tensor* output = nullptr;
      TF_RETURN_IF_ERROR(ctx->allocate_output(i, shape, &output));
      on_host = on_host && ctx->output_memory_type(i) == tensorflow::HOST_MEMORY;
      outputs.push_back(on_host ? *output : Borrow(*output));
    }
    if (on_host) {
      kernel->Run(inputs, outputs);
    } else {
      Enqueue(ComputeStream(), [kernel, inputs, outputs] { kernel->Run(inputs, outputs); });
    }
    return absl::OkStatus();
  }

  std::mutex mutex_;
  std::shared_ptr<CpuKernel> kernel_;
};

OpKernel* MakeKernel(tensorflow::OpKernelConstruction* ctx) { return new EnqueuedOp(ctx); }

struct Op {
  const char* name;
  // The attribute by which kernels on the device and on the host, for int32, are told apart.
  const char* type;
  std::vector<const char*> host_arguments;
};

void Register(tensorflow::KernelDefBuilder& builder) {
  tensorflow::kernel_factory::OpKernelRegistrar(builder.Build(), "EnqueuedOp", MakeKernel);
}

// `all` are the arguments that lie on the host where the type is int32.
void RegisterOp(const Op& op, const std::vector<const char*>& all) {
  tensorflow::KernelDefBuilder device(op.name);
  device.Device("GPU");
  for (const char* argument : op.host_arguments) device.HostMemory(argument);
  if (op.type != nullptr) {
    device.TypeConstraint(op.type,
                          {tensorflow::DT_FLOAT, tensorflow::DT_DOUBLE, tensorflow::DT_HALF,
                           tensorflow::DT_BFLOAT16, tensorflow::DT_INT64, tensorflow::DT_BOOL});
    tensorflow::KernelDefBuilder host(op.name);
    host.Device("GPU").TypeConstraint(op.type, tensorflow::DT_INT32);
    for (const char* argument : all) host.HostMemory(argument);
    Register(host);
  }
  Register(device);
}

[[maybe_unused]] const bool registered = [] {
  for (const char* name : {"AddV2", "Sub", "Mul", "Less", "Greater", "Maximum", "FloorMod"}) {
    RegisterOp({name, "T", {}}, {"x", "y", "z"});
  }
  for (const char* name : {"BatchMatMulV2", "BiasAdd", "BiasAddGrad", "Cast", "Exp", "LogicalAnd",
                           "MatMul", "Neg", "RealDiv", "Reciprocal", "SelectV2", "Sigmoid",
                           "SigmoidGrad", "Sqrt", "Square", "Tanh", "TanhGrad"}) {
    RegisterOp({name, nullptr, {}}, {});
  }
  RegisterOp({"ZerosLike", "T", {}}, {"x", "y"});
  RegisterOp({"OnesLike", "T", {}}, {"x", "y"});
  RegisterOp({"AddN", "T", {}}, {"inputs", "sum"});
  RegisterOp({"Fill", "T", {"dims"}}, {"dims", "value", "output"});
  RegisterOp({"Tile", "T", {"multiples"}}, {"input", "multiples", "output"});
  RegisterOp({"Sum", "T", {"reduction_indices"}}, {"input", "reduction_indices", "output"});
  RegisterOp({"ConcatV2", "T", {"axis"}}, {"values", "axis", "output"});
  RegisterOp({"Pack", "T", {}}, {"values", "output"});
  RegisterOp({"GatherV2", "Tparams", {"axis"}}, {"params", "indices", "axis", "output"});
  RegisterOp({"BroadcastTo", "T", {"shape"}}, {"input", "shape", "output"});
  RegisterOp({"StridedSlice", "T", {"begin", "end", "strides"}},
             {"input", "begin", "end", "strides", "output"});
  return true;
}();

}  // namespace
}  // namespace fake_gpu
