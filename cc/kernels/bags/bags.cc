#include "cc/kernels/bags/bags.h"

#include <algorithm>
#include <functional>
#include <string>
#include <type_traits>

#include "cc/kernels/bags/huge_pages.h"

namespace tf_ti {

using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;

template <typename Index>
absl::Status GetBags(OpKernelContext* ctx, const BagSpec& spec, Bags<Index>* bags) {
  int64_t count;
  TF_RETURN_IF_ERROR(spec.CheckShapes<TensorShape>(InputShapes(ctx), &count));
  if (spec.num_segments >= 0) {
    count = ctx->input(spec.num_segments).scalar<Index>()();
    TF_RETURN_IF_ERROR(CheckNumSegments(count));
  }
  *bags = CheckedBags<Index>(ctx, spec, count);
  return absl::OkStatus();
}

template <typename Index>
Bags<Index> CheckedBags(OpKernelContext* ctx, const BagSpec& spec, int64_t count) {
  const Tensor& indices = ctx->input(spec.indices);
  Bags<Index> bags;
  bags.kind = spec.kind;
  bags.indices = Elements<Index>(indices);
  bags.num_indices = indices.NumElements();
  if (!spec.is_packed()) bags.bounds = Elements<Index>(ctx->input(spec.bounds));
  bags.include_last_offset = spec.include_last_offset;
  bags.count = count;
  if (spec.default_index >= 0) {
    bags.default_index = ctx->input(spec.default_index).scalar<Index>()();
  }
  bags.has_padding = spec.padding_idx.has_value();
  bags.padding_idx = spec.padding_idx.value_or(0);
  return bags;
}

template <typename E>
Weights<E> CheckedWeights(OpKernelContext* ctx, const BagSpec& spec) {
  Weights<E> weights;
  if (!spec.has_weights()) return weights;
  const Tensor& tensor = ctx->input(spec.weights);
  if (std::is_same_v<E, Sum<E>> || spec.weights_are_wide) {
    weights.wide = Elements<Sum<E>>(tensor);
  } else {
    weights.rounded = Elements<E>(tensor);
  }
  return weights;
}

#define TF_TI_GET_BAGS(Index)                                                    \
  template absl::Status GetBags(OpKernelContext*, const BagSpec&, Bags<Index>*); \
  template Bags<Index> CheckedBags(OpKernelContext*, const BagSpec&, int64_t);
TF_TI_GET_BAGS(int32_t)
TF_TI_GET_BAGS(int64_t)
#undef TF_TI_GET_BAGS
#define TF_TI_GET_WEIGHTS(E) template Weights<E> CheckedWeights(OpKernelContext*, const BagSpec&);
TF_TI_NUMBERS(TF_TI_GET_WEIGHTS)
#undef TF_TI_GET_WEIGHTS

absl::Status LookupVariable(OpKernelContext* ctx, int input,
                            tensorflow::core::RefCountPtr<tensorflow::Var>* variable) {
  const TensorShape& shape = ctx->input(input).shape();
  if (shape.dims() != 0) {
    return InvalidArgument("resource must be a scalar, got shape ", shape.DebugString());
  }
  return tensorflow::LookupResource(ctx, tensorflow::HandleFromInput(ctx, input), variable);
}

absl::Status TableReader::Open(OpKernelContext* ctx, DataType dtype) {
  TF_RETURN_IF_ERROR(Find(ctx, 0));
  Lock();
  return Check(ctx, 0, dtype);
}

absl::Status TableReader::OpenAll(OpKernelContext* ctx, DataType dtype,
                                  const std::vector<BagSpec>& specs) {
  for (const BagSpec& spec : specs) {
    TF_RETURN_IF_ERROR(OfTable(spec.number, Find(ctx, spec.table)));
  }
  Lock();
  for (const BagSpec& spec : specs) {
    TF_RETURN_IF_ERROR(OfTable(spec.number, Check(ctx, spec.table, dtype)));
  }
  return absl::OkStatus();
}

absl::Status TableReader::Find(OpKernelContext* ctx, int number) {
  tensors_.push_back(&ctx->input(number));
  if (ctx->input_dtype(number) != tensorflow::DT_RESOURCE) return absl::OkStatus();
  return LookupVariable(ctx, number, &variables_.emplace_back());
}

// Always in the same order, and none twice. A variable that somebody waits to write to lets no more
// readers in, and would be waited for by a reader that has it already.
void TableReader::Lock() {
  absl::InlinedVector<Var*, 1> order;
  for (const auto& variable : variables_) order.push_back(variable.get());
  std::sort(order.begin(), order.end(), std::less<Var*>());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  locked_.reserve(order.size());
  for (Var* variable : order) {
    variable->mu()->lock_shared();
    locked_.push_back(variable);
  }
}

absl::Status TableReader::Check(OpKernelContext* ctx, int number, DataType dtype) {
  if (!variables_.empty()) {
    Var* const variable = variables_[number].get();
    const Tensor*& tensor = tensors_[number];
    const std::string& name = tensorflow::HandleFromInput(ctx, number).name();
    tensor = variable->tensor();
    if (!variable->is_initialized) {
      return absl::FailedPreconditionError(
          absl::StrCat("the variable ", name, " is not initialized"));
    }
    if (tensor->dtype() != dtype) {
      return InvalidArgument("the variable ", name, " has type ",
                             tensorflow::DataTypeString(tensor->dtype()), ", expected ",
                             tensorflow::DataTypeString(dtype));
    }
    AdviseOnce(ctx, variable);
  }
  return CheckHasRows("emb_table", tensors_[number]->shape());
}

absl::Status RowsShape(int64_t count, const TensorShape& shape, TensorShape* rows) {
  TF_RETURN_IF_ERROR(rows->AddDimWithStatus(count));
  for (int d = 1; d < shape.dims(); ++d) {
    TF_RETURN_IF_ERROR(rows->AddDimWithStatus(shape.dim_size(d)));
  }
  return absl::OkStatus();
}

#if GOOGLE_CUDA
absl::Status CheckOnGpu(OpKernelContext* ctx, const std::function<std::string(GpuProblem*)>& check,
                        const std::function<std::string(const GpuProblem&)>& describe) {
  const TensorShape shape({sizeof(GpuProblem)});
  Tensor on_gpu, on_host;
  TF_RETURN_IF_ERROR(ctx->allocate_temp(tensorflow::DT_INT8, shape, &on_gpu));
  TF_RETURN_IF_ERROR(CudaStatus(check(static_cast<GpuProblem*>(on_gpu.data()))));
  TF_RETURN_IF_ERROR(EnqueueToHost(ctx, on_gpu, &on_host));
  TF_RETURN_IF_ERROR(Synchronize(ctx));
  const std::string problem = describe(*static_cast<const GpuProblem*>(on_host.data()));
  return problem.empty() ? absl::OkStatus() : InvalidArgument(problem);
}
#endif

}  // namespace tf_ti
