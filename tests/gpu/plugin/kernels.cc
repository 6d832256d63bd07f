// Kernels of some of TensorFlow's ops for the plugin's GPU. Each allocates its outputs, as the op's
// shape function says, and enqueues copies of its inputs to the host, the CPU's kernel of the same
// op, and copies of what that computes to the GPU.
#include <cuda_runtime.h>

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
#include "tests/gpu/plugin/host_function.h"

namespace gpu_plugin {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

absl::Status ToStatus(cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(std::string("GPU plugin: ") + cudaGetErrorString(error));
}

// Memory of the host that CUDA copies from and to without anybody's waiting.
absl::Status AllocatePinned(OpKernelContext* ctx, const Tensor& like, Tensor* tensor) {
  tensorflow::AllocatorAttributes attributes;
  attributes.set_on_host(true);
  attributes.set_gpu_compatible(true);
  return ctx->allocate_temp(like.dtype(), like.shape(), tensor, attributes);
}

absl::Status EnqueueCopy(const Tensor& from, cudaMemcpyKind kind, const Tensor& to) {
  if (from.TotalBytes() == 0) return absl::OkStatus();
  return ToStatus(cudaMemcpyAsync(to.data(), from.data(), from.TotalBytes(), kind, nullptr));
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
        std::fprintf(stderr, "GPU plugin: %s failed: %s\n", kernel_->name().c_str(),
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
    std::vector<Tensor> inputs;
    std::vector<const Tensor*> known;
    std::vector<tensorflow::PartialTensorShape> shapes;
    bool on_host = true;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      const Tensor& input = ctx->input(i);
      const bool is_on_host = ctx->input_memory_type(i) == tensorflow::HOST_MEMORY;
      inputs.push_back(input);
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
    std::vector<Tensor> outputs;
    for (int i = 0; i < ctx->num_outputs(); ++i) {
      TensorShape shape;
      for (int d = 0; d < inference.Rank(inference.output(i)); ++d) {
        shape.AddDim(inference.Value(inference.Dim(inference.output(i), d)));
      }
      Tensor* output = nullptr;
      TF_RETURN_IF_ERROR(ctx->allocate_output(i, shape, &output));
      outputs.push_back(*output);
      on_host = on_host && ctx->output_memory_type(i) == tensorflow::HOST_MEMORY;
    }
    if (!on_host) return Enqueue(ctx, kernel, inputs, outputs);
    kernel->Run(inputs, outputs);
    return absl::OkStatus();
  }

  // A failure here ends the test, so nothing waits for what is under way.
  static absl::Status Enqueue(OpKernelContext* ctx, const std::shared_ptr<const CpuKernel>& kernel,
                              std::vector<Tensor> inputs, const std::vector<Tensor>& outputs) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (ctx->input_memory_type(i) == tensorflow::HOST_MEMORY) continue;
      const Tensor input = std::exchange(inputs[i], Tensor());
      TF_RETURN_IF_ERROR(AllocatePinned(ctx, input, &inputs[i]));
      TF_RETURN_IF_ERROR(EnqueueCopy(input, cudaMemcpyDeviceToHost, inputs[i]));
    }
    std::vector<Tensor> computed(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      TF_RETURN_IF_ERROR(AllocatePinned(ctx, outputs[i], &computed[i]));
    }
    const auto run = [kernel, inputs, computed] { kernel->Run(inputs, computed); };
    TF_RETURN_IF_ERROR(ToStatus(EnqueueHostFunction(nullptr, run)));
    for (size_t i = 0; i < outputs.size(); ++i) {
      TF_RETURN_IF_ERROR(EnqueueCopy(computed[i], cudaMemcpyHostToDevice, outputs[i]));
    }
    // Nobody else gets the memory before.
    return ToStatus(EnqueueHostFunction(nullptr, [computed] {}));
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
}  // namespace gpu_plugin
