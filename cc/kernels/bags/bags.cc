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

namespace {

absl::Status CheckRank(const char* name, const Tensor& tensor, int rank) {
  if (tensor.dims() == rank) return absl::OkStatus();
  return InvalidArgument(name, " must have rank ", rank, ", got shape ",
                         tensor.shape().DebugString());
}

}  // namespace

template <typename Index>
absl::Status BagOptions::GetBags(OpKernelContext* ctx, int64_t count, Bags<Index>* bags) const {
  const Tensor& indices = ctx->input(this->indices);
  TF_RETURN_IF_ERROR(CheckRank("indices", indices, kind == BagKind::kPacked ? 2 : 1));
  bags->kind = kind;
  bags->indices = Elements<Index>(indices);
  bags->num_indices = indices.NumElements();
  bags->include_last_offset = include_last_offset;
  if (kind == BagKind::kPacked) {
    bags->count = indices.dim_size(0);
  } else {
    const Tensor& bounds = ctx->input(this->bounds);
    bags->bounds = Elements<Index>(bounds);
    if (kind == BagKind::kOffsets) {
      TF_RETURN_IF_ERROR(CheckRank("offsets", bounds, 1));
      bags->count = bounds.NumElements() - include_last_offset;
      if (bags->count < 0) return InvalidArgument("offsets has no last offset: it is empty");
    } else {
      if (bounds.shape() != indices.shape()) {
        return InvalidArgument("segment_ids must have the shape of indices, ",
                               indices.shape().DebugString(), ", got ",
                               bounds.shape().DebugString());
      }
      bags->count = count;
      if (num_segments >= 0) {
        const Tensor& scalar = ctx->input(num_segments);
        TF_RETURN_IF_ERROR(CheckRank("num_segments", scalar, 0));
        bags->count = scalar.scalar<Index>()();
      }
      if (bags->count < 0) {
        return InvalidArgument("num_segments must not be negative, got ", bags->count);
      }
    }
  }
  if (count >= 0 && count != bags->count) {
    return InvalidArgument("grad has ", count, " rows, but there are ", bags->count, " bags");
  }
  if (default_index >= 0) {
    const Tensor& scalar = ctx->input(default_index);
    TF_RETURN_IF_ERROR(CheckRank("default_index", scalar, 0));
    bags->default_index = scalar.scalar<Index>()();
  }
  bags->has_padding = padding_idx.has_value();
  bags->padding_idx = padding_idx.value_or(0);
  return absl::OkStatus();
}

template absl::Status BagOptions::GetBags(OpKernelContext*, int64_t, Bags<int32_t>*) const;
template absl::Status BagOptions::GetBags(OpKernelContext*, int64_t, Bags<int64_t>*) const;

template <typename E>
absl::Status BagOptions::GetWeights(OpKernelContext* ctx, Weights<E>* weights) const {
  if (!has_weights()) return absl::OkStatus();
  const Tensor& tensor = ctx->input(this->weights);
  const TensorShape& indices = ctx->input(this->indices).shape();
  if (tensor.shape() != indices) {
    return InvalidArgument("per_sample_weights must have the shape of indices, ",
                           indices.DebugString(), ", got ", tensor.shape().DebugString());
  }
  if (std::is_same_v<E, Sum<E>> || weights_are_wide) {
    weights->wide = Elements<Sum<E>>(tensor);
  } else {
    weights->rounded = Elements<E>(tensor);
  }
  return absl::OkStatus();
}

#define TF_TI_GET_WEIGHTS(E) \
  template absl::Status BagOptions::GetWeights(OpKernelContext*, Weights<E>*) const;
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

absl::Status TableReader::OpenAll(OpKernelContext* ctx, DataType dtype, int count) {
  for (int k = 0; k < count; ++k) TF_RETURN_IF_ERROR(OfTable(k, Find(ctx, k)));
  Lock();
  for (int k = 0; k < count; ++k) {
    TF_RETURN_IF_ERROR(OfTable(k, Check(ctx, k, dtype)));
    TF_RETURN_IF_ERROR(OfTable(k, CheckRowsAlike(shape(k), shape(0))));
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
  for (const auto& variable : variables_) locked_.push_back(variable.get());
  std::sort(locked_.begin(), locked_.end(), std::less<Var*>());
  locked_.erase(std::unique(locked_.begin(), locked_.end()), locked_.end());
  for (Var* variable : locked_) variable->mu()->lock_shared();
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
  if (tensors_[number]->dims() == 0) {
    return InvalidArgument("emb_table must have rank 1 or more, got a scalar");
  }
  return absl::OkStatus();
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
