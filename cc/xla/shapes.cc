#include "cc/xla/shapes.h"

#include <algorithm>

#include "cc/status.h"
#include "xla/shape_util.h"

namespace tf_ti {

using tensorflow::TensorShape;
using xla::Shape;
using xla::ShapeUtil;

Shape ShapeOf(xla::XlaOp op) {
  const absl::StatusOr<Shape> shape = op.builder()->GetShape(op);
  return shape.ok() ? *shape : ShapeUtil::MakeNil();
}

xla::PrimitiveType TypeOf(xla::XlaOp op) { return ShapeOf(op).element_type(); }

std::vector<int64_t> Dims(const Shape& shape) {
  return {shape.dimensions().begin(), shape.dimensions().end()};
}

absl::Status GetShape(const Context& ctx, int input, const char* name, TensorShape* shape) {
  TF_ASSIGN_OR_RETURN(const Shape known, ctx.InputShape(input));
  if (known.is_dynamic()) {
    return Unimplemented(name, ": XLA must know its shape, which is only bounded here, by ",
                         ShapeUtil::HumanString(known));
  }
  return shape->BuildTensorShapeBase(known.dimensions(), shape);
}

Shape WithExtent(const Shape& shape, int64_t axis, int64_t extent) {
  std::vector<int64_t> dims = Dims(shape);
  dims[axis] = extent;
  return ShapeUtil::MakeShape(shape.element_type(), dims);
}

Shape WithAxis(const Shape& shape, int64_t axis, int64_t extent) {
  std::vector<int64_t> dims = Dims(shape);
  dims.insert(dims.begin() + axis, extent);
  return ShapeUtil::MakeShape(shape.element_type(), dims);
}

Shape WithoutAxis(const Shape& shape, int64_t axis) {
  std::vector<int64_t> dims = Dims(shape);
  dims.erase(dims.begin() + axis);
  return ShapeUtil::MakeShape(shape.element_type(), dims);
}

bool IsTooLarge(const Shape& shape, int64_t count) {
  constexpr int64_t kMost = int64_t{1} << 44;
  if (shape.IsTuple()) {
    return std::any_of(shape.tuple_shapes().begin(), shape.tuple_shapes().end(),
                       [&](const Shape& element) { return IsTooLarge(element, count); });
  }
  int64_t room = kMost / std::max<int64_t>(count, 1);
  for (int64_t dim : shape.dimensions()) room /= std::max<int64_t>(dim, 1);
  return room == 0;
}

xla::XlaOp Wide(xla::XlaOp op) { return xla::ConvertElementType(op, xla::S64); }

}  // namespace tf_ti
