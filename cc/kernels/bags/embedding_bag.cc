// The kernels of the pooled embedding look-ups and of their gradients.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/kernels/bags/bags.h"
#include "cc/kernels/gpu.h"
#include "cc/kernels/kernel.h"
#include "cc/kernels/memory.h"
#include "cc/kernels/threads.h"

namespace tf_ti {
namespace {

using tensorflow::DataTypeToEnum;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Gets the inputs of one table of an op, and allocates its outputs.
template <typename E, typename Index>
absl::Status GetLookUp(OpKernelContext* ctx, const BagSpec& spec, const TableReader& tables,
                       BagLookUp<E, Index>* lookup) {
  TF_RETURN_IF_ERROR(GetBags(ctx, spec, &lookup->bags));
  lookup->weights = CheckedWeights<E>(ctx, spec);
  lookup->table = tables.Get<E>(spec.table);
  lookup->reduction = spec.reduction;
  lookup->number = spec.number;
  TensorShape shape;
  TF_RETURN_IF_ERROR(RowsShape(lookup->bags.count, tables.shape(spec.table), &shape));
  Tensor* output = nullptr;
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, spec.table, shape, &output));
  lookup->out = Elements<E>(output);
  if (spec.argmax < 0) return absl::OkStatus();
  Tensor* positions = nullptr;
  const bool wanted = ctx->output_required(spec.argmax);
  TF_RETURN_IF_ERROR(
      AllocateOutput(ctx, spec.argmax, wanted ? shape : TensorShape({0}), &positions));
  if (wanted) lookup->argmax = Elements<Index>(positions);
  return absl::OkStatus();
}

// `Device` computes: Threads, or a KernelGpu.
template <typename T, typename Index, typename Device>
class EmbeddingBagOp : public SafeKernel {
 public:
  EmbeddingBagOp(OpKernelConstruction* ctx, BagKind kind) : SafeKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.Init(Attributes(ctx), kind));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    TableReader table;
    TF_RETURN_IF_ERROR(table.Open(ctx, DataTypeToEnum<T>::value));
    BagLookUp<Element<T>, Index> lookup;
    TF_RETURN_IF_ERROR(GetLookUp(ctx, spec_, table, &lookup));
    Device device(ctx);
    TF_RETURN_IF_ERROR(CheckValues(ctx, lookup.bags, lookup.table.num_rows, &device));
    return ToStatus(PoolBags(lookup.table, lookup.bags, lookup.weights, spec_.reduction, &device,
                             lookup.out, lookup.argmax),
                    &device);
  }

  BagSpec spec_;
};

template <typename T, typename Index, typename Device, BagKind kind>
class EmbeddingBagOpOf : public EmbeddingBagOp<T, Index, Device> {
 public:
  explicit EmbeddingBagOpOf(OpKernelConstruction* ctx)
      : EmbeddingBagOp<T, Index, Device>(ctx, kind) {}
};

template <typename T, typename Index, typename Device>
class EmbeddingBagsOp : public SafeKernel {
 public:
  explicit EmbeddingBagsOp(OpKernelConstruction* ctx) : SafeKernel(ctx) {
    OP_REQUIRES_OK(ctx, BagSpec::InitSeveral(Attributes(ctx), &specs_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const int count = specs_.size();
    TableReader tables;
    TF_RETURN_IF_ERROR(tables.OpenAll(ctx, DataTypeToEnum<T>::value, specs_));
    std::vector<BagLookUp<Element<T>, Index>> lookups(count);
    for (int k = 0; k < count; ++k) {
      TF_RETURN_IF_ERROR(OfTable(specs_[k].number, GetLookUp(ctx, specs_[k], tables, &lookups[k])));
    }
    Device device(ctx);
    for (int k = 0; k < count; ++k) {
      TF_RETURN_IF_ERROR(OfTable(
          specs_[k].number, CheckValues(ctx, lookups[k].bags, lookups[k].table.num_rows, &device)));
    }
    return ToStatus(PoolBags(lookups, &device), &device);
  }

  std::vector<BagSpec> specs_;
};

// The inputs of the gradient of a table.
template <typename E, typename Index>
struct GradientInputs : BagGradients<E, Index> {
  int64_t num_emb = 0;

  absl::Status Get(OpKernelContext* ctx, const BagSpec& spec) {
    TF_RETURN_IF_ERROR(GetNumEmb(ctx));
    return BagGradients<E, Index>::Get(ctx, spec);
  }

  // Reads it from the table's variable, or from the input that gives it.
  absl::Status GetNumEmb(OpKernelContext* ctx) {
    if (ctx->input_dtype(0) == tensorflow::DT_RESOURCE) {
      TableReader table;
      TF_RETURN_IF_ERROR(table.Open(ctx, ctx->input_dtype(1)));
      num_emb = table.shape().dim_size(0);
      return absl::OkStatus();
    }
    const Tensor& rows = ctx->input(0);
    TF_RETURN_IF_ERROR(CheckRank("num_emb", rows.shape(), 0));
    num_emb = rows.scalar<int64_t>()();
    return absl::OkStatus();
  }

  // Allocates outputs for the gradients of `count` rows.
  absl::Status AllocateOutputs(OpKernelContext* ctx, int64_t count, Index** rows,
                               E** values) const {
    TensorShape shape;
    TF_RETURN_IF_ERROR(RowsShape(count, this->grad->shape(), &shape));
    Tensor *rows_output = nullptr, *values_output = nullptr;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, TensorShape({count}), &rows_output));
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 1, shape, &values_output));
    *rows = Elements<Index>(rows_output);
    *values = Elements<E>(values_output);
    return absl::OkStatus();
  }
};

// Returns true if nobody uses the gradient. An update may compute it in place of its op. A function
// that is not optimized keeps the op all the same, as it reads a variable.
bool IsUnused(OpKernelContext* ctx) { return !ctx->output_required(0) && !ctx->output_required(1); }

template <typename T, typename Index>
class EmbeddingBagGradOp : public SafeKernel {
 public:
  explicit EmbeddingBagGradOp(OpKernelConstruction* ctx) : SafeKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.InitTableGradient(Attributes(ctx)));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    using E = Element<T>;
    if (IsUnused(ctx)) return absl::OkStatus();
    GradientInputs<E, Index> inputs;
    TF_RETURN_IF_ERROR(OfTable(spec_.number, inputs.Get(ctx, spec_)));
    Threads threads(ctx);
    TableGradient<E, Index> gradient;
    const std::string problem =
        gradient.Init(inputs.bags, inputs.weights, spec_.reduction, inputs.argmax, inputs.num_emb,
                      inputs.width, &threads);
    TF_RETURN_IF_ERROR(ToStatus(OfTable(spec_.number, problem), &threads));
    Index* rows;
    E* values;
    TF_RETURN_IF_ERROR(inputs.AllocateOutputs(ctx, gradient.num_touched(), &rows, &values));
    gradient.Compute(Elements<E>(*inputs.grad), &threads, rows, values);
    return absl::OkStatus();
  }

  BagSpec spec_;
};

#if GOOGLE_CUDA
// The number of rows that have a gradient is known when the GPU has sorted their ids. Only then can
// the outputs be allocated. No thread waits meanwhile.
template <typename T, typename Index>
class GpuEmbeddingBagGradOp : public SafeAsyncKernel {
 public:
  explicit GpuEmbeddingBagGradOp(OpKernelConstruction* ctx) : SafeAsyncKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.InitTableGradient(Attributes(ctx)));
  }

 private:
  using E = Element<T>;

  struct Call {
    explicit Call(OpKernelContext* ctx) : gpu(ctx) {}

    KernelGpu gpu;
    GradientInputs<E, Index> inputs;
    GpuTableGradient<E, Index> gradient;
    Tensor num_touched;  // on the host
  };

  absl::Status Start(OpKernelContext* ctx, const DoneCallback& done, bool* goes_on) override {
    if (IsUnused(ctx)) return absl::OkStatus();
    auto call = std::make_shared<Call>(ctx);
    TF_RETURN_IF_ERROR(Enqueue(ctx, call.get()));
    TF_RETURN_IF_ERROR(WhenDone(ctx, [this, ctx, call, done] {
      {
        // Only as long as needed: done() may go on with other kernels.
        const ActiveGpu active(ctx);
        ctx->SetStatus(CatchOutOfMemory(type_string(), [&] { return Finish(ctx, call.get()); }));
      }
      done();
    }));
    *goes_on = true;
    return absl::OkStatus();
  }

  absl::Status Enqueue(OpKernelContext* ctx, Call* call) const {
    GradientInputs<E, Index>& inputs = call->inputs;
    TF_RETURN_IF_ERROR(OfTable(spec_.number, inputs.Get(ctx, spec_)));
    TF_RETURN_IF_ERROR(
        OfTable(spec_.number, CheckValues(ctx, inputs.bags, inputs.num_emb, &call->gpu)));
    const std::string problem =
        call->gradient.Init(inputs.bags, inputs.weights, spec_.reduction, inputs.argmax,
                            inputs.num_emb, inputs.width, &call->gpu);
    TF_RETURN_IF_ERROR(ToStatus(OfTable(spec_.number, problem), &call->gpu));
    TF_RETURN_IF_ERROR(
        AllocateForGpu(ctx, tensorflow::DT_INT64, TensorShape({}), &call->num_touched));
    return CudaStatus(CopyMemory(sizeof(int64_t), call->gradient.num_touched(),
                                 call->num_touched.data(), &call->gpu));
  }

  static absl::Status Finish(OpKernelContext* ctx, Call* call) {
    const int64_t count = *static_cast<const int64_t*>(call->num_touched.data());
    Index* rows;
    E* values;
    TF_RETURN_IF_ERROR(call->inputs.AllocateOutputs(ctx, count, &rows, &values));
    return ToStatus(
        call->gradient.Compute(Elements<E>(*call->inputs.grad), count, &call->gpu, rows, values),
        &call->gpu);
  }

  BagSpec spec_;
};
#endif

template <typename T, typename Index, typename Device>
class EmbeddingBagWeightsGradOp : public SafeKernel {
 public:
  explicit EmbeddingBagWeightsGradOp(OpKernelConstruction* ctx) : SafeKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.InitWeightsGradient(Attributes(ctx)));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    using E = Element<T>;
    BagGradients<E, Index> given;
    TF_RETURN_IF_ERROR(given.Get(ctx, spec_));
    const Tensor& grad = *given.grad;
    TableReader table;
    TF_RETURN_IF_ERROR(table.Open(ctx, DataTypeToEnum<T>::value));
    TF_RETURN_IF_ERROR(CheckRowsOf("grad", grad.shape(), given.bags.count, table.shape()));
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, ctx->input(spec_.indices).shape(), &output));
    WeightsOutput<E> gradient;
    if (given.weights.wide != nullptr) {
      gradient.wide = Elements<Sum<E>>(output);
    } else {
      gradient.rounded = Elements<E>(output);
    }
    Device device(ctx);
    TF_RETURN_IF_ERROR(CheckValues(ctx, given.bags, table.shape().dim_size(0), &device));
    return ToStatus(WeightsGradient(table.Get<E>(), given.bags, given.weights, spec_.reduction,
                                    Elements<E>(grad), &device, gradient),
                    &device);
  }

  BagSpec spec_;
};

#define TF_TI_REGISTER(name, kernel, T, Index)                  \
  TF_TI_REGISTER_KERNEL(Name("TfTi>" name)                      \
                            .Device(tensorflow::DEVICE_CPU)     \
                            .TypeConstraint<T>("T")             \
                            .TypeConstraint<Index>("Tindices"), \
                        kernel)
#define TF_TI_REGISTER_BAGS(prefix, T, Index)                                             \
  TF_TI_REGISTER(prefix "EmbeddingBags", (EmbeddingBagsOp<T, Index, Threads>), T, Index); \
  TF_TI_REGISTER(prefix "EmbeddingBagOffsets",                                            \
                 (EmbeddingBagOpOf<T, Index, Threads, BagKind::kOffsets>), T, Index);     \
  TF_TI_REGISTER(prefix "EmbeddingBagPacked",                                             \
                 (EmbeddingBagOpOf<T, Index, Threads, BagKind::kPacked>), T, Index);      \
  TF_TI_REGISTER(prefix "EmbeddingSegmentsSum",                                           \
                 (EmbeddingBagOpOf<T, Index, Threads, BagKind::kSegments>), T, Index)
#define TF_TI_REGISTER_FORWARD(T)              \
  TF_TI_REGISTER_BAGS("", T, int32_t);         \
  TF_TI_REGISTER_BAGS("", T, int64_t);         \
  TF_TI_REGISTER_BAGS("Resource", T, int32_t); \
  TF_TI_REGISTER_BAGS("Resource", T, int64_t);
#define TF_TI_REGISTER_GRADS(T, Index)                                                         \
  TF_TI_REGISTER("EmbeddingBagGrad", (EmbeddingBagGradOp<T, Index>), T, Index);                \
  TF_TI_REGISTER("ResourceEmbeddingBagGrad", (EmbeddingBagGradOp<T, Index>), T, Index);        \
  TF_TI_REGISTER("EmbeddingBagWeightsGrad", (EmbeddingBagWeightsGradOp<T, Index, Threads>), T, \
                 Index);                                                                       \
  TF_TI_REGISTER("ResourceEmbeddingBagWeightsGrad",                                            \
                 (EmbeddingBagWeightsGradOp<T, Index, Threads>), T, Index)
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

#if GOOGLE_CUDA
// `builder` names the op, and its inputs that the host reads.
#define TF_TI_REGISTER_GPU(builder, kernel, T, Index)           \
  TF_TI_REGISTER_KERNEL(builder.Device(tensorflow::DEVICE_GPU)  \
                            .TypeConstraint<T>("T")             \
                            .TypeConstraint<Index>("Tindices"), \
                        kernel)
#define TF_TI_BAGS_BUILDER(name) Name("TfTi>" name).HostMemory("default_index")
#define TF_TI_REGISTER_GPU_FORWARD(prefix, T, Index)                                               \
  TF_TI_REGISTER_GPU(TF_TI_BAGS_BUILDER(prefix "EmbeddingBags").HostMemory("num_segments"),        \
                     (EmbeddingBagsOp<T, Index, KernelGpu>), T, Index);                            \
  TF_TI_REGISTER_GPU(TF_TI_BAGS_BUILDER(prefix "EmbeddingBagOffsets"),                             \
                     (EmbeddingBagOpOf<T, Index, KernelGpu, BagKind::kOffsets>), T, Index);        \
  TF_TI_REGISTER_GPU(TF_TI_BAGS_BUILDER(prefix "EmbeddingBagPacked"),                              \
                     (EmbeddingBagOpOf<T, Index, KernelGpu, BagKind::kPacked>), T, Index);         \
  TF_TI_REGISTER_GPU(TF_TI_BAGS_BUILDER(prefix "EmbeddingSegmentsSum").HostMemory("num_segments"), \
                     (EmbeddingBagOpOf<T, Index, KernelGpu, BagKind::kSegments>), T, Index)
#define TF_TI_REGISTER_GPU_BAGS(prefix, T, Index)                          \
  TF_TI_REGISTER_GPU_FORWARD(prefix, T, Index);                            \
  TF_TI_REGISTER_GPU(TF_TI_BAGS_BUILDER(prefix "EmbeddingBagWeightsGrad"), \
                     (EmbeddingBagWeightsGradOp<T, Index, KernelGpu>), T, Index)
#define TF_TI_REGISTER_GPU_INDEX(T, Index)                                         \
  TF_TI_REGISTER_GPU_BAGS("", T, Index);                                           \
  TF_TI_REGISTER_GPU_BAGS("Resource", T, Index);                                   \
  TF_TI_REGISTER_GPU(TF_TI_BAGS_BUILDER("EmbeddingBagGrad").HostMemory("num_emb"), \
                     (GpuEmbeddingBagGradOp<T, Index>), T, Index);                 \
  TF_TI_REGISTER_GPU(TF_TI_BAGS_BUILDER("ResourceEmbeddingBagGrad"),               \
                     (GpuEmbeddingBagGradOp<T, Index>), T, Index);
#define TF_TI_REGISTER_GPU_TYPE(T)     \
  TF_TI_REGISTER_GPU_INDEX(T, int32_t) \
  TF_TI_REGISTER_GPU_INDEX(T, int64_t)

#define TF_TI_REGISTER_GPU_INTEGERS(T)                \
  TF_TI_REGISTER_GPU_FORWARD("", T, int32_t);         \
  TF_TI_REGISTER_GPU_FORWARD("", T, int64_t);         \
  TF_TI_REGISTER_GPU_FORWARD("Resource", T, int32_t); \
  TF_TI_REGISTER_GPU_FORWARD("Resource", T, int64_t);
// An op of a tensor runs on the CPU; an op of a variable runs where the variable is.
#define TF_TI_REFUSE_ON_GPU(T)                                   \
  TF_TI_REFUSE_VARIABLE("TfTi>ResourceEmbeddingBags", T);        \
  TF_TI_REFUSE_VARIABLE("TfTi>ResourceEmbeddingBagOffsets", T);  \
  TF_TI_REFUSE_VARIABLE("TfTi>ResourceEmbeddingBagPacked", T);   \
  TF_TI_REFUSE_VARIABLE("TfTi>ResourceEmbeddingSegmentsSum", T); \
  TF_TI_REFUSE_VARIABLE("TfTi>ResourceEmbeddingBagGrad", T);     \
  TF_TI_REFUSE_VARIABLE("TfTi>ResourceEmbeddingBagWeightsGrad", T);

TF_CALL_INTEGRAL_TYPES(TF_TI_REGISTER_GPU_INTEGERS);
TF_CALL_COMPLEX_TYPES(TF_TI_REFUSE_ON_GPU);
TF_CALL_half(TF_TI_REGISTER_GPU_TYPE);
TF_CALL_bfloat16(TF_TI_REGISTER_GPU_TYPE);
TF_CALL_float(TF_TI_REGISTER_GPU_TYPE);
TF_CALL_double(TF_TI_REGISTER_GPU_TYPE);
#endif

}  // namespace
}  // namespace tf_ti
