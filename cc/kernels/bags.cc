#include "cc/kernels/bags.h"

#include <string>
#include <type_traits>

namespace tf_ti {

using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

absl::Status GetOptional(OpKernelConstruction* ctx, const char* attr, int* next, int* input) {
  int count;
  TF_RETURN_IF_ERROR(ctx->GetAttr(attr, &count));
  if (count > 1) return InvalidArgument(attr, " must be 0 or 1, got ", count);
  *input = count == 1 ? (*next)++ : -1;
  return absl::OkStatus();
}

absl::Status CheckRank(const char* name, const Tensor& tensor, int rank) {
  if (tensor.dims() == rank) return absl::OkStatus();
  return InvalidArgument(name, " must have rank ", rank, ", got shape ",
                         tensor.shape().DebugString());
}

}  // namespace

absl::Status BagOptions::Init(OpKernelConstruction* ctx, BagKind kind, bool is_gradient,
                              int first_input) {
  kind_ = kind;
  if (is_gradient) {
    std::string bags;
    TF_RETURN_IF_ERROR(ctx->GetAttr("bags", &bags));
    kind_ = bags == "offsets"  ? BagKind::kOffsets
            : bags == "packed" ? BagKind::kPacked
                               : BagKind::kSegments;
    int num_bounds;
    TF_RETURN_IF_ERROR(ctx->GetAttr("num_bounds", &num_bounds));
    if (num_bounds != (kind_ != BagKind::kPacked)) {
      return InvalidArgument("bags given as ", bags, " need ", kind_ != BagKind::kPacked,
                             " bounds, got ", num_bounds);
    }
  }
  indices_input_ = first_input;
  int next = first_input + 1;
  if (kind_ != BagKind::kPacked) bounds_input_ = next++;
  if (kind_ == BagKind::kSegments && !is_gradient) num_segments_input_ = next++;
  TF_RETURN_IF_ERROR(GetOptional(ctx, "num_default", &next, &default_input_));
  TF_RETURN_IF_ERROR(GetOptional(ctx, "num_weights", &next, &weights_input_));
  inputs_end_ = next;

  TF_RETURN_IF_ERROR(ctx->GetAttr("padding_idx", &padding_idx_));
  if (padding_idx_.size() > 1) {
    return InvalidArgument("padding_idx must have one value, got ", padding_idx_.size());
  }
  if (kind_ == BagKind::kOffsets) {
    TF_RETURN_IF_ERROR(ctx->GetAttr("include_last_offset", &include_last_offset_));
  }
  DataType dtype;
  TF_RETURN_IF_ERROR(ctx->GetAttr("T", &dtype));
  std::string reduction;
  TF_RETURN_IF_ERROR(ctx->GetAttr("reduction", &reduction));
  reduction_ = reduction == "sum"    ? Reduction::kSum
               : reduction == "mean" ? Reduction::kMean
               : reduction == "max"  ? Reduction::kMax
                                     : Reduction::kSqrtN;
  if (reduction_ == Reduction::kMax && tensorflow::DataTypeIsComplex(dtype)) {
    return InvalidArgument("complex numbers have no maximum");
  }
  if (reduction_ == Reduction::kMax && has_weights()) {
    return InvalidArgument("reduction max takes no per_sample_weights");
  }
  if (reduction_ == Reduction::kSqrtN && tensorflow::DataTypeIsInteger(dtype)) {
    return InvalidArgument("reduction sqrtn needs a table of floats, got ",
                           tensorflow::DataTypeString(dtype));
  }
  if (has_weights()) {
    DataType weights;
    TF_RETURN_IF_ERROR(ctx->GetAttr("Tweights", &weights));
    const bool is_half = dtype == tensorflow::DT_HALF || dtype == tensorflow::DT_BFLOAT16;
    if (weights != dtype && !(is_half && weights == tensorflow::DT_FLOAT)) {
      return InvalidArgument("per_sample_weights must be ", tensorflow::DataTypeString(dtype),
                             " like emb_table", is_half ? ", or float" : "", ", got ",
                             tensorflow::DataTypeString(weights));
    }
    weights_are_wide_ = weights != dtype;
  }
  return absl::OkStatus();
}

template <typename Index>
absl::Status BagOptions::GetBags(OpKernelContext* ctx, int64_t count, Bags<Index>* bags) const {
  const Tensor& indices = ctx->input(indices_input_);
  TF_RETURN_IF_ERROR(CheckRank("indices", indices, kind_ == BagKind::kPacked ? 2 : 1));
  bags->kind = kind_;
  bags->indices = Elements<Index>(indices);
  bags->num_indices = indices.NumElements();
  bags->include_last_offset = include_last_offset_;
  if (kind_ == BagKind::kPacked) {
    bags->count = indices.dim_size(0);
  } else {
    const Tensor& bounds = ctx->input(bounds_input_);
    bags->bounds = Elements<Index>(bounds);
    if (kind_ == BagKind::kOffsets) {
      TF_RETURN_IF_ERROR(CheckRank("offsets", bounds, 1));
      bags->count = bounds.NumElements() - include_last_offset_;
      if (bags->count < 0) return InvalidArgument("offsets has no last offset: it is empty");
    } else {
      if (bounds.shape() != indices.shape()) {
        return InvalidArgument("segment_ids must have the shape of indices, ",
                               indices.shape().DebugString(), ", got ",
                               bounds.shape().DebugString());
      }
      bags->count = count;
      if (num_segments_input_ >= 0) {
        const Tensor& num_segments = ctx->input(num_segments_input_);
        TF_RETURN_IF_ERROR(CheckRank("num_segments", num_segments, 0));
        bags->count = num_segments.scalar<Index>()();
      }
      if (bags->count < 0) {
        return InvalidArgument("num_segments must not be negative, got ", bags->count);
      }
    }
  }
  if (count >= 0 && count != bags->count) {
    return InvalidArgument("grad has ", count, " rows, but there are ", bags->count, " bags");
  }
  if (default_input_ >= 0) {
    const Tensor& default_index = ctx->input(default_input_);
    TF_RETURN_IF_ERROR(CheckRank("default_index", default_index, 0));
    bags->default_index = default_index.scalar<Index>()();
  }
  bags->has_padding = !padding_idx_.empty();
  if (bags->has_padding) bags->padding_idx = padding_idx_[0];
  return absl::OkStatus();
}

template absl::Status BagOptions::GetBags(OpKernelContext*, int64_t, Bags<int32_t>*) const;
template absl::Status BagOptions::GetBags(OpKernelContext*, int64_t, Bags<int64_t>*) const;

template <typename E>
absl::Status BagOptions::GetWeights(OpKernelContext* ctx, Weights<E>* weights) const {
  if (!has_weights()) return absl::OkStatus();
  const Tensor& tensor = ctx->input(weights_input_);
  const TensorShape& indices = ctx->input(indices_input_).shape();
  if (tensor.shape() != indices) {
    return InvalidArgument("per_sample_weights must have the shape of indices, ",
                           indices.DebugString(), ", got ", tensor.shape().DebugString());
  }
  if (std::is_same_v<E, Sum<E>> || weights_are_wide_) {
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

absl::Status LookupVariable(OpKernelContext* ctx,
                            tensorflow::core::RefCountPtr<tensorflow::Var>* variable) {
  const TensorShape& shape = ctx->input(0).shape();
  if (shape.dims() != 0) {
    return InvalidArgument("resource must be a scalar, got shape ", shape.DebugString());
  }
  return tensorflow::LookupResource(ctx, tensorflow::HandleFromInput(ctx, 0), variable);
}

absl::Status TableReader::Open(OpKernelContext* ctx, DataType dtype) {
  if (ctx->input_dtype(0) == tensorflow::DT_RESOURCE) {
    TF_RETURN_IF_ERROR(LookupVariable(ctx, &variable_));
    const std::string& name = tensorflow::HandleFromInput(ctx, 0).name();
    variable_->mu()->lock_shared();
    tensor_ = variable_->tensor();
    if (!variable_->is_initialized) {
      return absl::FailedPreconditionError(
          absl::StrCat("the variable ", name, " is not initialized"));
    }
    if (tensor_->dtype() != dtype) {
      return InvalidArgument("the variable ", name, " has type ",
                             tensorflow::DataTypeString(tensor_->dtype()), ", expected ",
                             tensorflow::DataTypeString(dtype));
    }
  } else {
    tensor_ = &ctx->input(0);
  }
  if (tensor_->dims() == 0) {
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

}  // namespace tf_ti
