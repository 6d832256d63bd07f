#include "cc/xla/bags/inputs.h"

#include <vector>

#include "cc/status.h"
#include "cc/xla/shapes.h"
#include "xla/shape_util.h"

namespace tf_ti {

using tensorflow::TensorShape;
using xla::Shape;
using xla::XlaOp;

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
  TF_RETURN_IF_ERROR(CheckHasRows("emb_table", shape));
  rows = Flatten(given);
  return absl::OkStatus();
}

absl::Status BagInputs::Init(const Context& ctx, const BagSpec& given, int64_t width) {
  spec = &given;
  TF_RETURN_IF_ERROR(spec->CheckShapes<TensorShape>(InputShapes(ctx), &count));
  if (spec->num_segments >= 0) {
    TF_RETURN_IF_ERROR(GetConstant(ctx, spec->num_segments, "num_segments", &count));
    TF_RETURN_IF_ERROR(CheckNumSegments(count));
  }
  return InitChecked(ctx, width);
}

absl::Status BagInputs::InitGradient(const Context& ctx, const BagSpec& given, TensorShape* grad) {
  spec = &given;
  TF_RETURN_IF_ERROR(spec->CheckGradientShapes(InputShapes(ctx), grad, &count));
  return InitChecked(ctx, WidthOf(*grad));
}

absl::Status BagInputs::InitChecked(const Context& ctx, int64_t width) {
  if (IsTooLarge(xla::ShapeUtil::MakeShape(xla::U8, {width}), count)) {
    return Unimplemented("there are ", count, " bags: so many rows of ", width,
                         " are too many for XLA");
  }
  TF_RETURN_IF_ERROR(GetShape(ctx, spec->indices, "indices", &shape));
  num_indices = shape.num_elements();
  indices = xla::Reshape(ctx.Input(spec->indices), {num_indices});
  if (!is_packed()) bounds = ctx.Input(spec->bounds);
  if (spec->default_index >= 0) default_index = ctx.Input(spec->default_index);
  if (spec->has_weights()) {
    weights = xla::Reshape(ctx.Input(spec->weights), {num_indices});
  }
  return absl::OkStatus();
}

}  // namespace tf_ti
