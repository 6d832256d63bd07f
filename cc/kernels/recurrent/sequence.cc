#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/kernels/function.h"
#include "cc/kernels/gpu.h"
#include "cc/kernels/kernel.h"
#include "cc/kernels/memory.h"
#include "cc/kernels/recurrent/call.h"
#include "cc/kernels/threads.h"
#include "cc/spec/recurrent/cell_spec.h"
#include "cc/spec/recurrent/sequence_shapes.h"
#include "cc/status.h"
#include "tensorflow/core/framework/bfloat16.h"

namespace tf_ti {
namespace {

using tensorflow::DataTypeToEnum;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Gets an op's tensors in the host's memory, wherever the kernel's device is.
absl::Status GetInputs(OpKernelContext* ctx, std::vector<Tensor>* inputs) {
  for (int i = 0; i < ctx->num_inputs(); ++i) inputs->push_back(ctx->input(i));
#if GOOGLE_CUDA
  if (OnGpu(ctx)) {
    absl::Status status;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      status.Update(EnqueueToHost(ctx, ctx->input(i), &(*inputs)[i]));
    }
    // After an error too: other copies may still be under way, into memory that is freed next.
    status.Update(Synchronize(ctx));
    return status;
  }
#endif
  return absl::OkStatus();
}

absl::Status AllocateHostOutput(OpKernelContext* ctx, int i, const TensorShape& shape,
                                Tensor* output) {
#if GOOGLE_CUDA
  if (OnGpu(ctx)) return AllocateForGpu(ctx, ctx->expected_output_dtype(i), shape, output);
#endif
  Tensor* allocated;
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, i, shape, &allocated));
  *output = *allocated;
  return absl::OkStatus();
}

// A loop saves nothing. What it gives as saved has the shape that it must have, and begins with a
// number that nobody computes: a NaN all of whose bits are set.
constexpr uint64_t kUnsaved = ~uint64_t{0};

absl::Status MarkUnsaved([[maybe_unused]] OpKernelContext* ctx, Tensor* tensor) {
  if (tensor->NumElements() == 0) return absl::OkStatus();
  const int bytes = tensorflow::DataTypeSize(tensor->dtype());
#if GOOGLE_CUDA
  if (OnGpu(ctx)) {
    KernelGpu gpu(ctx);
    return CudaStatus(CopyMemory(bytes, &kUnsaved, tensor->data(), &gpu));
  }
#endif
  std::memcpy(tensor->data(), &kUnsaved, bytes);
  return absl::OkStatus();
}

bool IsUnsaved(const Tensor& tensor) {
  return tensor.NumElements() > 0 &&
         std::memcmp(tensor.data(), &kUnsaved, tensorflow::DataTypeSize(tensor.dtype())) == 0;
}

// The computation of numbers of type T on the processor, in type S.
template <typename T, typename S>
class NativeSequence {
 public:
  NativeSequence(const CellSpec& spec, OpKernelContext* ctx) : spec_(spec), ctx_(ctx) {}

  absl::Status Run() {
    TF_RETURN_IF_ERROR(GetInputs(ctx_, &inputs_));
    for (Tensor& input : inputs_) TF_RETURN_IF_ERROR(Widen(&input));
    if (spec_.is_gradient) TF_RETURN_IF_ERROR(FindSaved());
    Shapes shapes;
    TF_RETURN_IF_ERROR(InitShapes(spec_, &shapes));
    std::vector<Tensor> outputs(shapes.outputs.size()), results(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto& output = shapes.outputs[i];
      // A saved output may have no reader.
      const bool is_required = !output.is_saved || ctx_->output_required(i);
      const TensorShape shape = is_required ? output.shape : TensorShape({0});
      TF_RETURN_IF_ERROR(AllocateHostOutput(ctx_, i, shape, &outputs[i]));
      if (!is_required) continue;
      results[i] = outputs[i];
      if (kIsWidened && !output.is_saved) TF_RETURN_IF_ERROR(Allocate(shape, &results[i]));
    }
    TF_RETURN_IF_ERROR(Compute(spec_, shapes, results));
    for (size_t i = 0; i < outputs.size(); ++i) {
      if constexpr (kIsWidened) {
        if (!shapes.outputs[i].is_saved) {
          outputs[i].flat<T>() = results[i].flat<S>().template cast<T>();
        }
      }
      if (OnGpu(ctx_)) TF_RETURN_IF_ERROR(SetHostOutput(ctx_, i, outputs[i]));
    }
    return absl::OkStatus();
  }

 private:
  using Shapes = SequenceShapes<TensorShape>;

  static constexpr bool kIsWidened = !std::is_same_v<T, S>;

  absl::Status Allocate(const TensorShape& shape, Tensor* tensor) {
    tensorflow::AllocatorAttributes attributes;
    attributes.set_on_host(true);
    return AllocateTemporary(ctx_, DataTypeToEnum<S>::value, shape, tensor, attributes);
  }

  // Replaces a tensor by a copy of its numbers, in the type in which they are computed.
  absl::Status Widen(Tensor* tensor) {
    if constexpr (kIsWidened) {
      if (tensor->dtype() != DataTypeToEnum<T>::value) return absl::OkStatus();
      const Tensor given = *tensor;
      TF_RETURN_IF_ERROR(Allocate(given.shape(), tensor));
      tensor->flat<S>() = given.flat<T>().template cast<S>();
    }
    return absl::OkStatus();
  }

  absl::Status InitShapes(const CellSpec& spec, Shapes* shapes) const {
    return shapes->Init(spec, [this](int input, const char*, TensorShape* shape) {
      *shape = inputs_[input].shape();
      return absl::OkStatus();
    });
  }

  // Computes the saved tensors where a loop, as on a GPU, ran the sequence.
  absl::Status FindSaved() {
    const int first = inputs_.size() - (spec_.is_lstm() ? 3 : 2) - spec_.num_saved;
    if (spec_.num_saved == 0 || !IsUnsaved(inputs_[first])) return absl::OkStatus();
    CellSpec forward = spec_;
    forward.is_gradient = false;
    Shapes shapes;
    TF_RETURN_IF_ERROR(InitShapes(forward, &shapes));
    std::vector<Tensor> outputs(shapes.outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      TF_RETURN_IF_ERROR(Allocate(shapes.outputs[i].shape, &outputs[i]));
    }
    TF_RETURN_IF_ERROR(Compute(forward, shapes, outputs));
    std::copy(outputs.end() - spec_.num_saved, outputs.end(), inputs_.begin() + first);
    return absl::OkStatus();
  }

  absl::Status Compute(const CellSpec& spec, const Shapes& shapes,
                       const std::vector<Tensor>& outputs) {
    std::vector<const void*> sources;
    for (const Tensor& input : inputs_) sources.push_back(input.data());
    std::vector<void*> targets;
    for (const Tensor& output : outputs) targets.push_back(output.data());
    Threads threads(ctx_);
    const auto goes_on = [manager = ctx_->cancellation_manager()] {
      return manager == nullptr || !manager->IsCancelled();
    };
    return RunRecurrentOp<S>(spec, shapes.sizes, sources, targets, goes_on, &threads);
  }

  const CellSpec& spec_;
  OpKernelContext* const ctx_;
  std::vector<Tensor> inputs_;
};

template <typename T, typename S, bool is_gradient>
class RecurrentSequenceOp : public SafeKernel {
 public:
  explicit RecurrentSequenceOp(tensorflow::OpKernelConstruction* ctx) : SafeKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.Init(Attributes(ctx), is_gradient));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override { return NativeSequence<T, S>(spec_, ctx).Run(); }

  CellSpec spec_;
};

// Calls the function that is the op's loop, or computes on the processor where there is none.
template <typename T, typename S, bool is_gradient>
class RecurrentLoopOp : public SafeAsyncKernel {
 public:
  explicit RecurrentLoopOp(tensorflow::OpKernelConstruction* ctx) : SafeAsyncKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.Init(Attributes(ctx), is_gradient));
    std::vector<tensorflow::NameAttrList> loop;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("loop", &loop));
    OP_REQUIRES(ctx, loop.size() <= 1,
                InvalidArgument("loop must be one function, got ", loop.size()));
    has_loop_ = !loop.empty();
    if (has_loop_) loop_.Init(loop[0]);
  }

 private:
  absl::Status Start(OpKernelContext* ctx, const DoneCallback& done, bool* goes_on) override {
    if (!has_loop_) return NativeSequence<T, S>(spec_, ctx).Run();
    SequenceShapes<TensorShape> shapes;
    // The loop would repeat a single row for a batch.
    TF_RETURN_IF_ERROR(shapes.Init(spec_, [ctx](int input, const char*, TensorShape* shape) {
      *shape = ctx->input(input).shape();
      return absl::OkStatus();
    }));
    loop_.Run(ctx, [this, ctx, done, shapes](absl::Status status,
                                             const std::vector<Tensor>& results) {
      if (status.ok()) {
        status = CatchOutOfMemory(type_string(), [&] { return SetOutputs(ctx, shapes, results); });
      }
      ctx->SetStatus(status);
      done();
    });
    *goes_on = true;
    return absl::OkStatus();
  }

  static absl::Status SetOutputs(OpKernelContext* ctx, const SequenceShapes<TensorShape>& shapes,
                                 const std::vector<Tensor>& results) {
    const int count = results.size();
    for (int i = 0; i < ctx->num_outputs(); ++i) {
      Tensor* saved;
      if (i >= count) {
        const TensorShape shape =
            ctx->output_required(i) ? shapes.outputs[i].shape : TensorShape({0});
        TF_RETURN_IF_ERROR(ctx->allocate_output(i, shape, &saved));
        TF_RETURN_IF_ERROR(MarkUnsaved(ctx, saved));
      } else if (results[i].dtype() != ctx->expected_output_dtype(i)) {
        return InvalidArgument("loop's result ", i, " must be of the type of the op's output");
      } else {
        ctx->set_output(i, results[i]);
      }
    }
    return absl::OkStatus();
  }

  CellSpec spec_;
  bool has_loop_ = false;
  CalledFunction loop_;
};

// The processor has both kernels. The loop's kernel is for nodes whose attribute `_kernel` is its
// label: by that, tests run a GPU's kernel on the processor.
#define TF_TI_REGISTER_OP(device, kernel, name, is_gradient, T, S)                       \
  TF_TI_REGISTER_KERNEL(Name(name).device.TypeConstraint<T>("T").TypeConstraint<S>("S"), \
                        kernel<T, S, is_gradient>)
#define TF_TI_REGISTER_TYPE(device, kernel, T, S)                           \
  TF_TI_REGISTER_OP(device, kernel, "TfTi>RecurrentSequence", false, T, S); \
  TF_TI_REGISTER_OP(device, kernel, "TfTi>RecurrentSequenceGrad", true, T, S)
#define TF_TI_REGISTER(device, kernel)                     \
  TF_TI_REGISTER_TYPE(device, kernel, float, float);       \
  TF_TI_REGISTER_TYPE(device, kernel, double, double);     \
  TF_TI_REGISTER_TYPE(device, kernel, Eigen::half, float); \
  TF_TI_REGISTER_TYPE(device, kernel, tensorflow::bfloat16, float)
TF_TI_REGISTER(Device(tensorflow::DEVICE_CPU), RecurrentSequenceOp);
TF_TI_REGISTER(Device(tensorflow::DEVICE_CPU).Label("loop"), RecurrentLoopOp);
#if GOOGLE_CUDA
TF_TI_REGISTER(Device(tensorflow::DEVICE_GPU), RecurrentLoopOp);
#endif

}  // namespace
}  // namespace tf_ti
