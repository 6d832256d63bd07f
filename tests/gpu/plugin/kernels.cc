// Kernels of some of TensorFlow's ops for the plugin's GPU. Each allocates its outputs, as the op's
// shape function says, and enqueues copies of its inputs to the host, the CPU's kernel of the same
// op, and copies of what that computes to the GPU. Where calls wait for their work
// (gpu_plugin_block), so does a kernel: its errors are errors then, and its outputs of any shape.
#include <cuda_runtime.h>

#include <algorithm>
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
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tests/gpu/plugin/host_function.h"

extern "C" int gpu_plugin_blocks();  // in plugin.cc

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

absl::Status CopyNow(const Tensor& from, cudaMemcpyKind kind, const Tensor& to) {
  if (from.TotalBytes() == 0) return absl::OkStatus();
  return ToStatus(cudaMemcpy(to.data(), from.data(), from.TotalBytes(), kind));
}

// The CPU's kernel of a node.
class CpuKernel {
 public:
  absl::Status Init(OpKernelContext* ctx, const tensorflow::NodeDef& node) {
    TF_RETURN_IF_ERROR(ctx->function_library()->device_mgr()->LookupDevice("CPU:0", &device_));
    std::shared_ptr<const tensorflow::NodeProperties> properties;
    TF_RETURN_IF_ERROR(tensorflow::NodeProperties::CreateFromNodeDef(
        node, tensorflow::OpRegistry::Global(), &properties));
    OpKernel* kernel;
    TF_RETURN_IF_ERROR(tensorflow::CreateOpKernel(
        tensorflow::DeviceType("CPU"), device_, device_->GetAllocator({}), /*flib=*/nullptr,
        device_->resource_manager(), properties, ctx->function_library()->graph_def_version(),
        &kernel));
    kernel_.reset(kernel);
    return absl::OkStatus();
  }

  absl::Status Run(std::vector<Tensor> inputs, std::vector<Tensor>* outputs) const {
    OpKernelContext::Params params;
    std::vector<tensorflow::TensorValue> values;
    for (Tensor& input : inputs) values.emplace_back(&input);
    const std::vector<tensorflow::AllocatorAttributes> attributes(kernel_->num_outputs());
    params.device = device_;
    params.op_kernel = kernel_.get();
    params.resource_manager = device_->resource_manager();
    params.inputs = values;
    params.output_attr_array = attributes.data();
    OpKernelContext ctx(&params, kernel_->num_outputs());
    kernel_->Compute(&ctx);
    TF_RETURN_IF_ERROR(ctx.status());
    for (int i = 0; i < kernel_->num_outputs(); ++i) {
      const std::unique_ptr<Tensor> output(ctx.release_output(i).tensor);
      outputs->push_back(*output);
    }
    return absl::OkStatus();
  }

  // Computes into `outputs`. Ends the process where the kernel fails, as nobody is left who could
  // be told.
  void RunLate(const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) const {
    std::vector<Tensor> computed;
    const absl::Status status = Run(inputs, &computed);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!status.ok() || computed[i].shape() != outputs[i].shape()) {
        std::fprintf(stderr, "GPU plugin: %s failed: %s\n", kernel_->name().c_str(),
                     status.ToString().c_str());
        std::_Exit(3);
      }
      std::memcpy(outputs[i].data(), computed[i].data(), computed[i].TotalBytes());
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
        TF_RETURN_IF_ERROR(kernel->Init(ctx, def()));
        kernel_ = kernel;
      }
      kernel = kernel_;
    }
    if (gpu_plugin_blocks()) return RunNow(ctx, *kernel);
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
    kernel->RunLate(inputs, outputs);
    return absl::OkStatus();
  }

  static absl::Status RunNow(OpKernelContext* ctx, const CpuKernel& kernel) {
    std::vector<Tensor> inputs, outputs;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      inputs.push_back(ctx->input(i));
      if (ctx->input_memory_type(i) == tensorflow::HOST_MEMORY) continue;
      inputs[i] = Tensor(inputs[i].dtype(), inputs[i].shape());
      TF_RETURN_IF_ERROR(CopyNow(ctx->input(i), cudaMemcpyDeviceToHost, inputs[i]));
    }
    TF_RETURN_IF_ERROR(kernel.Run(std::move(inputs), &outputs));
    for (int i = 0; i < ctx->num_outputs(); ++i) {
      Tensor* output = nullptr;
      if (ctx->output_memory_type(i) == tensorflow::HOST_MEMORY) {
        ctx->set_output(i, outputs[i]);
        continue;
      }
      TF_RETURN_IF_ERROR(ctx->allocate_output(i, outputs[i].shape(), &output));
      TF_RETURN_IF_ERROR(CopyNow(outputs[i], cudaMemcpyHostToDevice, *output));
    }
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
    const auto run = [kernel, inputs, computed] { kernel->RunLate(inputs, computed); };
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

// In place of TensorFlow's kernels of every device, which compute in a variable's memory as if it
// were the host's.
class UpdateVariableOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, TryCompute(ctx)); }

 private:
  absl::Status TryCompute(OpKernelContext* ctx) {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    TF_RETURN_IF_ERROR(LookupResource(ctx, HandleFromInput(ctx, 0), &variable));
    const Tensor& value = ctx->input(1);
    tensorflow::NodeDef node;
    node.set_name(name());
    node.set_op(type_string() == "AssignAddVariableOp" ? "AddV2" : "Sub");
    node.add_input("old");
    node.add_input("value");
    tensorflow::AddNodeAttr("T", value.dtype(), &node);
    CpuKernel kernel;
    TF_RETURN_IF_ERROR(kernel.Init(ctx, node));
    const tensorflow::mutex_lock lock(*variable->mu());
    const Tensor& old = *variable->tensor();
    std::vector<Tensor> terms, sum;
    for (const Tensor& term : {old, value}) {
      terms.emplace_back(term.dtype(), term.shape());
      TF_RETURN_IF_ERROR(CopyNow(term, cudaMemcpyDeviceToHost, terms.back()));
    }
    TF_RETURN_IF_ERROR(kernel.Run(std::move(terms), &sum));
    Tensor updated;
    TF_RETURN_IF_ERROR(ctx->allocate_temp(old.dtype(), old.shape(), &updated));
    TF_RETURN_IF_ERROR(CopyNow(sum[0], cudaMemcpyHostToDevice, updated));
    *variable->tensor() = updated;
    return absl::OkStatus();
  }
};

OpKernel* MakeUpdate(tensorflow::OpKernelConstruction* ctx) { return new UpdateVariableOp(ctx); }

void Register(tensorflow::KernelDefBuilder& builder) {
  tensorflow::kernel_factory::OpKernelRegistrar(builder.Build(), "EnqueuedOp", MakeKernel);
}

tensorflow::DataTypeVector DeviceTypes() {
  return {tensorflow::DT_FLOAT,    tensorflow::DT_DOUBLE, tensorflow::DT_HALF,
          tensorflow::DT_BFLOAT16, tensorflow::DT_INT64,  tensorflow::DT_BOOL};
}

// Arguments that a GPU's kernels take in the host's memory, whatever their op.
const std::vector<const char*>& HostArguments() {
  static const auto& names = *new std::vector<const char*>{
      "axis",  "begin", "depth",       "dim",          "dimension", "dims",
      "end",   "perm",  "multiples",   "num_segments", "paddings",  "reduction_indices",
      "shape", "size",  "size_splits", "split_dim",    "strides"};
  return names;
}

bool IsHostArgument(const std::string& name) {
  const std::vector<const char*>& names = HostArguments();
  return std::find(names.begin(), names.end(), name) != names.end();
}

// One kernel; another one, for int32 on the host, where `type` is the attribute that tells them
// apart, as many of TensorFlow's are there for shapes.
void RegisterOp(const char* name, const char* type) {
  const tensorflow::OpRegistrationData* op;
  if (!tensorflow::OpRegistry::Global()->LookUp(name, &op).ok()) return;
  tensorflow::KernelDefBuilder device(name);
  device.Device("GPU");
  for (const auto& input : op->op_def.input_arg()) {
    if (IsHostArgument(input.name())) device.HostMemory(input.name().c_str());
  }
  if (type != nullptr) {
    device.TypeConstraint(type, DeviceTypes());
    tensorflow::KernelDefBuilder host(name);
    host.Device("GPU").TypeConstraint(type, tensorflow::DT_INT32);
    for (const auto& input : op->op_def.input_arg()) host.HostMemory(input.name().c_str());
    for (const auto& output : op->op_def.output_arg()) host.HostMemory(output.name().c_str());
    Register(host);
  }
  Register(device);
}

[[maybe_unused]] const bool registered = [] {
  for (const char* name :
       {"AddN",     "AddV2",    "BroadcastTo", "ConcatV2",     "Equal",        "Fill",
        "FloorDiv", "FloorMod", "Greater",     "GreaterEqual", "Less",         "LessEqual",
        "Max",      "Maximum",  "Min",         "Minimum",      "Mul",          "NotEqual",
        "OnesLike", "Pack",     "Prod",        "Slice",        "StridedSlice", "Sub",
        "Sum",      "Tile",     "Transpose",   "Unpack",       "ZerosLike"}) {
    RegisterOp(name, "T");
  }
  RegisterOp("GatherV2", "Tparams");
  for (const char* name : {"Abs",
                           "All",
                           "Any",
                           "ArgMax",
                           "ArgMin",
                           "Atan",
                           "Atan2",
                           "BatchMatMulV2",
                           "BiasAdd",
                           "BiasAddGrad",
                           "Cast",
                           "Ceil",
                           "Cos",
                           "Cosh",
                           "Cumprod",
                           "Cumsum",
                           "Div",
                           "DivNoNan",
                           "Einsum",
                           "Elu",
                           "EluGrad",
                           "Erf",
                           "Exp",
                           "Expm1",
                           "Floor",
                           "GatherNd",
                           "Inv",
                           "InvGrad",
                           "IsFinite",
                           "IsInf",
                           "IsNan",
                           "L2Loss",
                           "LeakyRelu",
                           "LeakyReluGrad",
                           "Lgamma",
                           "Log",
                           "Log1p",
                           "LogSoftmax",
                           "LogicalAnd",
                           "LogicalNot",
                           "LogicalOr",
                           "MatMul",
                           "Mean",
                           "MirrorPad",
                           "Neg",
                           "OneHot",
                           "Pad",
                           "PadV2",
                           "Pow",
                           "RealDiv",
                           "Reciprocal",
                           "ReciprocalGrad",
                           "Relu",
                           "Relu6",
                           "Relu6Grad",
                           "ReluGrad",
                           "ReverseV2",
                           "Rint",
                           "Round",
                           "Rsqrt",
                           "RsqrtGrad",
                           "ScatterNd",
                           "Select",
                           "SelectV2",
                           "Selu",
                           "SeluGrad",
                           "Sigmoid",
                           "SigmoidGrad",
                           "Sign",
                           "Sin",
                           "Sinh",
                           "Softmax",
                           "Softplus",
                           "SoftplusGrad",
                           "Softsign",
                           "SoftsignGrad",
                           "Split",
                           "SplitV",
                           "Sqrt",
                           "SqrtGrad",
                           "Square",
                           "SquaredDifference",
                           "StridedSliceGrad",
                           "Tan",
                           "Tanh",
                           "TanhGrad",
                           "TensorScatterUpdate",
                           "UnsortedSegmentSum",
                           "Xdivy",
                           "Xlogy"}) {
    RegisterOp(name, nullptr);
  }
  for (const char* name : {"AssignAddVariableOp", "AssignSubVariableOp"}) {
    tensorflow::KernelDefBuilder builder(name);
    builder.Device("GPU").HostMemory("resource").TypeConstraint("dtype", DeviceTypes());
    tensorflow::kernel_factory::OpKernelRegistrar(builder.Build(), "UpdateVariableOp", MakeUpdate);
  }
  return true;
}();

}  // namespace
}  // namespace gpu_plugin
