#include <cstddef>
#include <type_traits>
#include <vector>

#include "cc/kernels/recurrent/call.h"
#include "cc/kernels/recurrent/spec.h"
#include "cc/kernels/threads.h"
#include "tensorflow/core/framework/bfloat16.h"

namespace tf_ti {
namespace {

using tensorflow::DataTypeToEnum;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Numbers of type T are computed in type S.
template <typename T, typename S, bool is_gradient>
class RecurrentSequenceOp : public tensorflow::OpKernel {
 public:
  explicit RecurrentSequenceOp(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.Init(ctx, is_gradient));
  }

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Run(ctx)); }

 private:
  static constexpr bool kIsWidened = !std::is_same_v<T, S>;

  absl::Status Run(OpKernelContext* ctx) {
    SequenceShapes shapes;
    TF_RETURN_IF_ERROR(shapes.Init(spec_, [ctx](int input, const char*, TensorShape* shape) {
      *shape = ctx->input(input).shape();
      return absl::OkStatus();
    }));

    std::vector<Tensor> inputs(ctx->num_inputs());
    std::vector<const void*> sources(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      TF_RETURN_IF_ERROR(Widen(ctx, ctx->input(i), &inputs[i]));
      sources[i] = inputs[i].data();
    }
    std::vector<Tensor> outputs(shapes.outputs.size());
    std::vector<void*> targets(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      const SequenceShapes::Output& output = shapes.outputs[i];
      // Nobody may read what is saved.
      const bool is_required = !output.is_saved || ctx->output_required(i);
      const TensorShape shape = is_required ? output.shape : TensorShape({0});
      Tensor* tensor;
      TF_RETURN_IF_ERROR(ctx->allocate_output(i, shape, &tensor));
      if (!is_required) continue;
      outputs[i] = *tensor;
      if (kIsWidened && !output.is_saved) {
        TF_RETURN_IF_ERROR(ctx->allocate_temp(DataTypeToEnum<S>::value, shape, &outputs[i]));
      }
      targets[i] = outputs[i].data();
    }

    Threads threads(ctx);
    const auto goes_on = [manager = ctx->cancellation_manager()] {
      return manager == nullptr || !manager->IsCancelled();
    };
    TF_RETURN_IF_ERROR(RunRecurrentOp<S>(spec_, shapes.sizes, sources, targets, goes_on, &threads));
    if constexpr (kIsWidened) {
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (shapes.outputs[i].is_saved) continue;
        ctx->mutable_output(i)->flat<T>() = outputs[i].flat<S>().template cast<T>();
      }
    }
    return absl::OkStatus();
  }

  // The tensor, or a copy of its numbers in the type in which they are computed.
  static absl::Status Widen(OpKernelContext* ctx, const Tensor& tensor, Tensor* widened) {
    *widened = tensor;
    if constexpr (kIsWidened) {
      if (tensor.dtype() != DataTypeToEnum<T>::value) return absl::OkStatus();
      TF_RETURN_IF_ERROR(ctx->allocate_temp(DataTypeToEnum<S>::value, tensor.shape(), widened));
      widened->flat<S>() = tensor.flat<T>().template cast<S>();
    }
    return absl::OkStatus();
  }

  RecurrentSpec spec_;
};

#define TF_TI_REGISTER_OP(name, is_gradient, T, S)                                             \
  REGISTER_KERNEL_BUILDER(                                                                     \
      Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T").TypeConstraint<S>("S"), \
      RecurrentSequenceOp<T, S, is_gradient>)
#define TF_TI_REGISTER(T, S)                                \
  TF_TI_REGISTER_OP("TfTi>RecurrentSequence", false, T, S); \
  TF_TI_REGISTER_OP("TfTi>RecurrentSequenceGrad", true, T, S)
TF_TI_REGISTER(float, float);
TF_TI_REGISTER(double, double);
TF_TI_REGISTER(Eigen::half, float);
TF_TI_REGISTER(tensorflow::bfloat16, float);

}  // namespace
}  // namespace tf_ti
