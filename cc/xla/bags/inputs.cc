#include "cc/xla/bags/inputs.h"

#include <vector>

#include "cc/status.h"
#include "cc/xla/shapes.h"
#include "xla/shape_util.h"

namespace tf_ti {

using tensorflow::TensorShape;
using xla::Shape;
using xla::XlaOp;

absl::Status CheckRank(const char* name, const TensorShape& shape, int rank) {
  if (shape.dims() == rank) return absl::OkStatus();
  return InvalidArgument(name, " must have rank ", rank, ", got shape ", shape.DebugString());
}

absl::Status GetConstant(const Context& ctx, int input, const char* name, int64_t* value) {
  if (ctx.GetConstant(input, value).ok()) return absl::OkStatus();
  return Unimplemented(name, ": XLA must know its value when it compiles, as it is a size; it ",
                       "may not depend on values that only the running program has");
}

int64_t WidthOf(const TensorShape& shape) {
  int64_t width = 1;
  for (int d = 1; d < shape.dims(); ++d) width *= shape.dim_size(d);
  return width;
}

XlaOp Flatten(XlaOp rows) {
  const Shape shape = ShapeOf(rows);
  int64_t width = 1;
  for (size_t d = 1; d < shape.dimensions().size(); ++d) width *= shape.dimensions(d);
  return xla::Reshape(rows, {shape.dimensions(0), width});
}

XlaOp Unflatten(XlaOp rows, const TensorShape& like) {
  std::vector<int64_t> dims = {ShapeOf(rows).dimensions(0)};
  for (int d = 1; d < like.dims(); ++d) dims.push_back(like.dim_size(d));
  return xla::Reshape(rows, dims);
}

absl::Status BagTable::Init(const Context& ctx, tensorflow::DataType dtype, int input) {
  if (ctx.input_type(input) == tensorflow::DT_RESOURCE) {
    TF_RETURN_IF_ERROR(ctx.ReadVariable(input, dtype, &shape, &given));
  } else {
    TF_RETURN_IF_ERROR(GetShape(ctx, input, "emb_table", &shape));
    given = ctx.Input(input);
  }
  if (shape.dims() == 0) {
    return InvalidArgument("emb_table must have rank 1 or more, got a scalar");
  }
  rows = Flatten(given);
  return absl::OkStatus();
}

absl::Status BagInputs::Init(const Context& ctx, const BagSpec& given, int64_t given_count,
                             int64_t width) {
  spec = &given;
  TF_RETURN_IF_ERROR(GetShape(ctx, spec->indices, "indices", &shape));
  TF_RETURN_IF_ERROR(CheckRank("indices", shape, is_packed() ? 2 : 1));
  num_indices = shape.num_elements();
  indices = xla::Reshape(ctx.Input(spec->indices), {num_indices});
  TF_RETURN_IF_ERROR(InitCount(ctx, given_count));
  if (given_count >= 0 && given_count != count) {
    return InvalidArgument("grad has ", given_count, " rows, but there are ", count, " bags");
  }
  if (IsTooLarge(xla::ShapeUtil::MakeShape(xla::U8, {width}), count)) {
    return Unimplemented("there are ", count, " bags: so many rows of ", width,
                         " are too many for XLA");
  }
  if (!is_packed()) bounds = ctx.Input(spec->bounds);
  TensorShape other;
  if (spec->default_index >= 0) {
    TF_RETURN_IF_ERROR(GetShape(ctx, spec->default_index, "default_index", &other));
    TF_RETURN_IF_ERROR(CheckRank("default_index", other, 0));
    default_index = ctx.Input(spec->default_index);
  }
  if (spec->has_weights()) {
    TF_RETURN_IF_ERROR(GetShape(ctx, spec->weights, "per_sample_weights", &other));
    if (other != shape) {
      return InvalidArgument("per_sample_weights must have the shape of indices, ",
                             shape.DebugString(), ", got ", other.DebugString());
    }
    weights = xla::Reshape(ctx.Input(spec->weights), {num_indices});
  }
  return absl::OkStatus();
}

absl::Status BagInputs::InitCount(const Context& ctx, int64_t given_count) {
  TensorShape other;
  if (is_packed()) {
    count = shape.dim_size(0);
    return absl::OkStatus();
  }
  if (spec->kind == BagKind::kOffsets) {
    TF_RETURN_IF_ERROR(GetShape(ctx, spec->bounds, "offsets", &other));
    TF_RETURN_IF_ERROR(CheckRank("offsets", other, 1));
    count = other.num_elements() - spec->include_last_offset;
    return count >= 0 ? absl::OkStatus()
                      : InvalidArgument("offsets has no last offset: it is empty");
  }
  TF_RETURN_IF_ERROR(GetShape(ctx, spec->bounds, "segment_ids", &other));
  if (other != shape) {
    return InvalidArgument("segment_ids must have the shape of indices, ", shape.DebugString(),
                           ", got ", other.DebugString());
  }
  count = given_count;
  if (spec->num_segments >= 0) {
    TF_RETURN_IF_ERROR(GetShape(ctx, spec->num_segments, "num_segments", &other));
    TF_RETURN_IF_ERROR(CheckRank("num_segments", other, 0));
    TF_RETURN_IF_ERROR(GetConstant(ctx, spec->num_segments, "num_segments", &count));
  }
  return count >= 0 ? absl::OkStatus()
                    : InvalidArgument("num_segments must not be negative, got ", count);
}

}  // namespace tf_ti
