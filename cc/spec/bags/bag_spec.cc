#include "cc/kernels/bags/spec.h"

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/status.h"
#include "tensorflow/core/framework/types.h"

namespace tf_ti {

using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::TensorShape;

namespace {

absl::Status GetOptional(OpKernelConstruction* ctx, const char* attr, int* next, int* input) {
  int count;
  TF_RETURN_IF_ERROR(ctx->GetAttr(attr, &count));
  if (count > 1) return InvalidArgument(attr, " must be 0 or 1, got ", count);
  if (count == 1) *input = (*next)++;
  return absl::OkStatus();
}

BagKind KindOf(const std::string& name) {
  return name == "offsets"  ? BagKind::kOffsets
         : name == "packed" ? BagKind::kPacked
                            : BagKind::kSegments;
}

}  // namespace

absl::Status OfTable(int number, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), OfTable(number, std::string(status.message())));
}

absl::Status CheckRowsAlike(const TensorShape& table, const TensorShape& first) {
  TensorShape rows = table, expected = first;
  rows.RemoveDim(0);
  expected.RemoveDim(0);
  if (rows == expected) return absl::OkStatus();
  return InvalidArgument("its shape is ", table.DebugString(),
                         ", but its rows must be of the shape of those of emb_tables[0], which is ",
                         first.DebugString());
}

bool ChecksIds() {
  const char* const value = std::getenv("TF_TI_CHECK_IDS");
  return value != nullptr && std::string_view(value) == "1";
}

absl::Status BagSpec::InitBags(OpKernelConstruction* ctx, std::optional<BagKind> bags,
                               int first_input, bool has_num_segments) {
  if (bags.has_value()) {
    kind = *bags;
  } else {
    std::string name;
    TF_RETURN_IF_ERROR(ctx->GetAttr("bags", &name));
    kind = KindOf(name);
    int num_bounds;
    TF_RETURN_IF_ERROR(ctx->GetAttr("num_bounds", &num_bounds));
    if (num_bounds != (kind != BagKind::kPacked)) {
      return InvalidArgument("bags given as ", name, " need ", kind != BagKind::kPacked,
                             " bounds, got ", num_bounds);
    }
  }
  indices = first_input;
  end = first_input + 1;
  if (kind != BagKind::kPacked) bounds = end++;
  if (kind == BagKind::kSegments && has_num_segments) num_segments = end++;
  TF_RETURN_IF_ERROR(GetOptional(ctx, "num_default", &end, &default_index));
  if (kind == BagKind::kOffsets) {
    TF_RETURN_IF_ERROR(ctx->GetAttr("include_last_offset", &include_last_offset));
  }
  return InitPadding(ctx);
}

absl::Status BagSpec::InitPadding(OpKernelConstruction* ctx) {
  std::vector<int64_t> padding;
  TF_RETURN_IF_ERROR(ctx->GetAttr("padding_idx", &padding));
  if (padding.size() > 1) {
    return InvalidArgument("padding_idx must have one value, got ", padding.size());
  }
  if (!padding.empty()) padding_idx = padding[0];
  return absl::OkStatus();
}

absl::Status BagSpec::Init(OpKernelConstruction* ctx, std::optional<BagKind> bags,
                           int first_input) {
  TF_RETURN_IF_ERROR(InitBags(ctx, bags, first_input, bags.has_value()));
  TF_RETURN_IF_ERROR(GetOptional(ctx, "num_weights", &end, &weights));
  return InitReduction(ctx);
}

absl::Status BagSpec::InitOneOf(OpKernelConstruction* ctx, int table_number) {
  int count, num_bounds, num_counts, num_default, num_weights;
  std::vector<std::string> kinds;
  TF_RETURN_IF_ERROR(ctx->GetAttr("N", &count));
  TF_RETURN_IF_ERROR(ctx->GetAttr("bags", &kinds));
  TF_RETURN_IF_ERROR(ctx->GetAttr("num_bounds", &num_bounds));
  TF_RETURN_IF_ERROR(ctx->GetAttr("num_counts", &num_counts));
  TF_RETURN_IF_ERROR(ctx->GetAttr("num_default", &num_default));
  TF_RETURN_IF_ERROR(ctx->GetAttr("num_weights", &num_weights));
  const int num_kinds = kinds.size();
  if (num_kinds != count) {
    return InvalidArgument("bags must have a kind for each of ", count, " tables, got ", num_kinds);
  }
  is_of_several = true;
  // The lists of inputs follow each other. Those of bounds and counts have only the tensors that
  // there are.
  table = table_number;
  indices = count + table;
  end = 2 * count;
  for (int k = 0; k < count; ++k) {
    if (KindOf(kinds[k]) == BagKind::kPacked) continue;
    if (k == table) bounds = end;
    ++end;
  }
  const int bounds_end = end;
  for (int k = 0; k < count; ++k) {
    if (KindOf(kinds[k]) != BagKind::kSegments) continue;
    if (k == table) num_segments = end;
    ++end;
  }
  if (num_bounds != bounds_end - 2 * count || num_counts != end - bounds_end) {
    return InvalidArgument("bags of these kinds need ", bounds_end - 2 * count, " bounds and ",
                           end - bounds_end, " num_segments, got ", num_bounds, " and ",
                           num_counts);
  }
  for (const auto& [number, input] :
       {std::pair(num_default, &default_index), std::pair(num_weights, &weights)}) {
    if (number != 0 && number != count) {
      return InvalidArgument("num_default and num_weights must be 0 or ", count, ", got ", number);
    }
    if (number != 0) *input = end + table;
    end += number;
  }
  kind = KindOf(kinds[table]);
  if (kind == BagKind::kOffsets) {
    TF_RETURN_IF_ERROR(ctx->GetAttr("include_last_offset", &include_last_offset));
  }
  TF_RETURN_IF_ERROR(InitPadding(ctx));
  return InitReduction(ctx);
}

absl::Status BagSpec::InitReduction(OpKernelConstruction* ctx) {
  DataType dtype;
  TF_RETURN_IF_ERROR(ctx->GetAttr("T", &dtype));
  std::string name;
  TF_RETURN_IF_ERROR(ctx->GetAttr("reduction", &name));
  reduction = name == "sum"    ? Reduction::kSum
              : name == "mean" ? Reduction::kMean
              : name == "max"  ? Reduction::kMax
                               : Reduction::kSqrtN;
  if (reduction == Reduction::kMax && tensorflow::DataTypeIsComplex(dtype)) {
    return InvalidArgument("complex numbers have no maximum");
  }
  if (reduction == Reduction::kMax && has_weights()) {
    return InvalidArgument("reduction max takes no per_sample_weights");
  }
  if (reduction == Reduction::kSqrtN && tensorflow::DataTypeIsInteger(dtype)) {
    return InvalidArgument("reduction sqrtn needs a table of floats, got ",
                           tensorflow::DataTypeString(dtype));
  }
  if (has_weights()) {
    DataType type;
    TF_RETURN_IF_ERROR(ctx->GetAttr("Tweights", &type));
    const bool is_half = dtype == tensorflow::DT_HALF || dtype == tensorflow::DT_BFLOAT16;
    if (type != dtype && !(is_half && type == tensorflow::DT_FLOAT)) {
      return InvalidArgument("per_sample_weights must be ", tensorflow::DataTypeString(dtype),
                             " like emb_table", is_half ? ", or float" : "", ", got ",
                             tensorflow::DataTypeString(type));
    }
    weights_are_wide = type != dtype;
  }
  return absl::OkStatus();
}

absl::Status BagSpec::InitGradient(OpKernelConstruction* ctx, int first_input) {
  TF_RETURN_IF_ERROR(Init(ctx, std::nullopt, first_input));
  int num_argmax;
  TF_RETURN_IF_ERROR(ctx->GetAttr("num_argmax", &num_argmax));
  if (num_argmax != (reduction == Reduction::kMax)) {
    return InvalidArgument("reduction max needs argmax, and no other does");
  }
  return absl::OkStatus();
}

}  // namespace tf_ti
