// Shapes of XLA's values, and the same with one axis changed.
#ifndef TF_TI_CC_XLA_SHAPES_H_
#define TF_TI_CC_XLA_SHAPES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/xla/tf2xla.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"

namespace tf_ti {

// The shape of an empty tuple where the value is wrong: then the builder has the error.
xla::Shape ShapeOf(xla::XlaOp op);
xla::PrimitiveType TypeOf(xla::XlaOp op);
std::vector<int64_t> Dims(const xla::Shape& shape);

// The shape of an op's input, all of which must be known. Errors name it.
absl::Status GetShape(const Context& ctx, int input, const char* name,
                      tensorflow::TensorShape* shape);

// A function that gets the shapes of an op's inputs, as specifications ask for them.
inline auto InputShapes(const Context& ctx) {
  return [&ctx](int input, const char* name, tensorflow::TensorShape* shape) {
    return GetShape(ctx, input, name, shape);
  };
}

xla::Shape WithExtent(const xla::Shape& shape, int64_t axis, int64_t extent);
xla::Shape WithAxis(const xla::Shape& shape, int64_t axis, int64_t extent);
xla::Shape WithoutAxis(const xla::Shape& shape, int64_t axis);

// Returns true if an array of `count` times the elements of a shape is too large for XLA, which
// would end the process. No machine has room for such an array.
bool IsTooLarge(const xla::Shape& shape, int64_t count);

// The value as s64.
xla::XlaOp Wide(xla::XlaOp op);

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_SHAPES_H_
