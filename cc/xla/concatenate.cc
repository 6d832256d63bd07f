#include "cc/xla/concatenate.h"

#include <algorithm>

#include "cc/xla/shapes.h"
#include "xla/hlo/builder/lib/slicing.h"
#include "xla/shape.h"
#include "xla/tsl/lib/core/bitmap.h"

namespace tf_ti {

using xla::Shape;
using xla::XlaBuilder;
using xla::XlaOp;

XlaOp Concatenate(const std::vector<XlaOp>& parts, int64_t axis) {
  XlaBuilder* const builder = parts[0].builder();
  int64_t total = 0;
  for (XlaOp part : parts) {
    const absl::StatusOr<Shape> shape = builder->GetShape(part);
    if (!shape.ok()) return builder->ReportError(shape.status());
    total += shape->dimensions(axis);
  }
  XlaOp joined = parts[0];
  int64_t begin = 0;
  for (XlaOp part : parts) {
    const Shape shape = ShapeOf(part);
    const int64_t extent = shape.dimensions(axis);
    if (extent == total) return part;
    if (extent == 0) continue;
    // The part in its place, and its first and last elements all around it.
    std::vector<int64_t> positions(total);
    tsl::core::Bitmap is_before(total);
    for (int64_t i = 0; i < total; ++i) {
      positions[i] = std::clamp<int64_t>(i - begin, 0, extent - 1);
      if (i < begin) is_before.set(i);
    }
    const XlaOp spread =
        xla::TorchIndexSelect(part, xla::ConstantR1<int64_t>(builder, positions), axis);
    joined = begin == 0
                 ? spread
                 : xla::Select(xla::BroadcastInDim(xla::ConstantR1(builder, is_before),
                                                   Dims(WithExtent(shape, axis, total)), {axis}),
                               joined, spread);
    begin += extent;
  }
  return joined;
}

}  // namespace tf_ti
