// The kernels of the pooled embedding look-ups and of their gradients.
#include "cc/kernels/bags.h"
#include "cc/kernels/threads.h"

namespace tf_ti {
namespace {

using tensorflow::DataTypeToEnum;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::Status ToStatus(const std::string& problem) {
  return problem.empty() ? absl::OkStatus() : InvalidArgument(problem);
}

// Calls a member function that returns a status. Without OP_REQUIRES_OK, which would log it.
#define TF_TI_COMPUTE()                          \
  void Compute(OpKernelContext* ctx) override {  \
    const absl::Status status = TryCompute(ctx); \
    if (!status.ok()) ctx->SetStatus(status);    \
  }

template <typename T, typename Index, BagKind kind>
class EmbeddingBagOp : public tensorflow::OpKernel {
 public:
  explicit EmbeddingBagOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, options_.Init(ctx, kind, /*is_gradient=*/false, 1));
  }

  TF_TI_COMPUTE()

 private:
  absl::Status TryCompute(OpKernelContext* ctx) {
    using E = Element<T>;
    Bags<Index> bags;
    Weights<E> weights;
    TF_RETURN_IF_ERROR(options_.GetBags(ctx, -1, &bags));
    TF_RETURN_IF_ERROR(options_.GetWeights(ctx, &weights));
    TableReader table;
    TF_RETURN_IF_ERROR(table.Open(ctx, DataTypeToEnum<T>::value));
    TensorShape shape;
    TF_RETURN_IF_ERROR(RowsShape(bags.count, table.shape(), &shape));
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, shape, &output));
    Index* argmax = nullptr;
    if (ctx->num_outputs() > 1) {
      Tensor* positions = nullptr;
      const bool wanted = ctx->output_required(1);
      TF_RETURN_IF_ERROR(ctx->allocate_output(1, wanted ? shape : TensorShape({0}), &positions));
      if (wanted) argmax = Elements<Index>(positions);
    }
    Threads threads(ctx);
    return ToStatus(PoolBags(table.Get<E>(), bags, weights, options_.reduction(), &threads,
                             Elements<E>(output), argmax));
  }

  BagOptions options_;
};

template <typename T, typename Index>
class EmbeddingBagGradOp : public tensorflow::OpKernel {
 public:
  explicit EmbeddingBagGradOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, options_.Init(ctx, BagKind::kOffsets, /*is_gradient=*/true, 2));
    int num_argmax;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_argmax", &num_argmax));
    OP_REQUIRES(ctx, num_argmax == (options_.reduction() == Reduction::kMax),
                InvalidArgument("reduction max needs argmax, and no other does"));
  }

  TF_TI_COMPUTE()

 private:
  absl::Status TryCompute(OpKernelContext* ctx) {
    using E = Element<T>;
    const Tensor& num_emb = ctx->input(0);
    const Tensor& grad = ctx->input(1);
    if (num_emb.dims() != 0) return InvalidArgument("num_emb must be a scalar");
    if (grad.dims() == 0) return InvalidArgument("grad must have rank 1 or more, got a scalar");
    Bags<Index> bags;
    Weights<E> weights;
    TF_RETURN_IF_ERROR(options_.GetBags(ctx, grad.dim_size(0), &bags));
    TF_RETURN_IF_ERROR(options_.GetWeights(ctx, &weights));
    const Index* argmax = nullptr;
    if (options_.reduction() == Reduction::kMax) {
      const Tensor& positions = ctx->input(options_.inputs_end());
      if (positions.shape() != grad.shape()) {
        return InvalidArgument("argmax must have the shape of grad, ", grad.shape().DebugString(),
                               ", got ", positions.shape().DebugString());
      }
      argmax = Elements<Index>(positions);
    }
    TensorShape row;
    TF_RETURN_IF_ERROR(RowsShape(1, grad.shape(), &row));
    Threads threads(ctx);
    TableGradient<E, Index> gradient;
    TF_RETURN_IF_ERROR(
        ToStatus(gradient.Init(bags, weights, options_.reduction(), argmax,
                               num_emb.scalar<int64_t>()(), row.num_elements(), &threads)));
    const int64_t count = gradient.num_touched();
    TensorShape shape;
    TF_RETURN_IF_ERROR(RowsShape(count, grad.shape(), &shape));
    Tensor *rows = nullptr, *values = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({count}), &rows));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, shape, &values));
    gradient.Compute(Elements<E>(grad), &threads, Elements<Index>(rows), Elements<E>(values));
    return absl::OkStatus();
  }

  BagOptions options_;
};

template <typename T, typename Index>
class EmbeddingBagWeightsGradOp : public tensorflow::OpKernel {
 public:
  explicit EmbeddingBagWeightsGradOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, options_.Init(ctx, BagKind::kOffsets, /*is_gradient=*/true, 2));
    OP_REQUIRES(ctx, options_.has_weights(), InvalidArgument("there are no per_sample_weights"));
  }

  TF_TI_COMPUTE()

 private:
  absl::Status TryCompute(OpKernelContext* ctx) {
    using E = Element<T>;
    const Tensor& grad = ctx->input(1);
    if (grad.dims() == 0) return InvalidArgument("grad must have rank 1 or more, got a scalar");
    Bags<Index> bags;
    Weights<E> weights;
    TF_RETURN_IF_ERROR(options_.GetBags(ctx, grad.dim_size(0), &bags));
    TF_RETURN_IF_ERROR(options_.GetWeights(ctx, &weights));
    TableReader table;
    TF_RETURN_IF_ERROR(table.Open(ctx, DataTypeToEnum<T>::value));
    TensorShape expected;
    TF_RETURN_IF_ERROR(RowsShape(bags.count, table.shape(), &expected));
    if (grad.shape() != expected) {
      return InvalidArgument("grad must have shape ", expected.DebugString(), ", got ",
                             grad.shape().DebugString());
    }
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, ctx->input(2).shape(), &output));
    WeightsOutput<E> gradient;
    if (weights.wide != nullptr) {
      gradient.wide = Elements<Sum<E>>(output);
    } else {
      gradient.rounded = Elements<E>(output);
    }
    Threads threads(ctx);
    return ToStatus(WeightsGradient(table.Get<E>(), bags, weights, options_.reduction(),
                                    Elements<E>(grad), &threads, gradient));
  }

  BagOptions options_;
};

#define TF_TI_REGISTER(name, kernel, T, Index)                    \
  REGISTER_KERNEL_BUILDER(Name(name)                              \
                              .Device(tensorflow::DEVICE_CPU)     \
                              .TypeConstraint<T>("T")             \
                              .TypeConstraint<Index>("Tindices"), \
                          kernel)
#define TF_TI_REGISTER_BAGS(prefix, T, Index)                              \
  TF_TI_REGISTER("TfTi>" prefix "EmbeddingBagOffsets",                     \
                 (EmbeddingBagOp<T, Index, BagKind::kOffsets>), T, Index); \
  TF_TI_REGISTER("TfTi>" prefix "EmbeddingBagPacked",                      \
                 (EmbeddingBagOp<T, Index, BagKind::kPacked>), T, Index);  \
  TF_TI_REGISTER("TfTi>" prefix "EmbeddingSegmentsSum",                    \
                 (EmbeddingBagOp<T, Index, BagKind::kSegments>), T, Index)
#define TF_TI_REGISTER_FORWARD(T)              \
  TF_TI_REGISTER_BAGS("", T, int32_t);         \
  TF_TI_REGISTER_BAGS("", T, int64_t);         \
  TF_TI_REGISTER_BAGS("Resource", T, int32_t); \
  TF_TI_REGISTER_BAGS("Resource", T, int64_t);
#define TF_TI_REGISTER_GRADS(T, Index)                                                             \
  TF_TI_REGISTER("TfTi>EmbeddingBagGrad", (EmbeddingBagGradOp<T, Index>), T, Index);               \
  TF_TI_REGISTER("TfTi>EmbeddingBagWeightsGrad", (EmbeddingBagWeightsGradOp<T, Index>), T, Index); \
  TF_TI_REGISTER("TfTi>ResourceEmbeddingBagWeightsGrad", (EmbeddingBagWeightsGradOp<T, Index>), T, \
                 Index)
#define TF_TI_REGISTER_BACKWARD(T)  \
  TF_TI_REGISTER_GRADS(T, int32_t); \
  TF_TI_REGISTER_GRADS(T, int64_t);

TF_CALL_INTEGRAL_TYPES(TF_TI_REGISTER_FORWARD);
TF_CALL_half(TF_TI_REGISTER_FORWARD);
TF_CALL_bfloat16(TF_TI_REGISTER_FORWARD);
TF_CALL_float(TF_TI_REGISTER_FORWARD);
TF_CALL_double(TF_TI_REGISTER_FORWARD);
TF_CALL_COMPLEX_TYPES(TF_TI_REGISTER_FORWARD);
TF_CALL_half(TF_TI_REGISTER_BACKWARD);
TF_CALL_bfloat16(TF_TI_REGISTER_BACKWARD);
TF_CALL_float(TF_TI_REGISTER_BACKWARD);
TF_CALL_double(TF_TI_REGISTER_BACKWARD);
TF_CALL_COMPLEX_TYPES(TF_TI_REGISTER_BACKWARD);

}  // namespace
}  // namespace tf_ti
