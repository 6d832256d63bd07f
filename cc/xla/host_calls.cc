#include "cc/xla/host_calls.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "cc/xla/shapes.h"

namespace tf_ti {

using xla::Shape;
using xla::ShapeUtil;
using xla::XlaOp;

Threads ThreadsOf(xla::ffi::ThreadPool* thread_pool) {
  return Threads(
      std::max<int64_t>(thread_pool->num_threads(), 1),
      [thread_pool](std::function<void()> work) { thread_pool->Schedule(std::move(work)); });
}

void CallAttributes::Add(const char* name, int64_t value) {
  absl::StrAppend(&text_, text_.empty() ? "" : ", ", name, " = ", value, " : i64");
}

std::string CallAttributes::Get() const { return absl::StrCat("{", text_, "}"); }

Shape RowMajor(xla::PrimitiveType type, const std::vector<int64_t>& dims) {
  return ShapeUtil::MakeShapeWithDescendingLayout(type, dims);
}

XlaOp CallHost(const char* target, const std::vector<XlaOp>& operands, const Shape& result,
               const CallAttributes& attributes, bool checks, const Aliases& aliases) {
  std::vector<Shape> shapes;
  for (XlaOp operand : operands) {
    const Shape shape = ShapeOf(operand);
    shapes.push_back(RowMajor(shape.element_type(), Dims(shape)));
  }
  return xla::CustomCallWithLayout(operands[0].builder(), target, operands, result, shapes,
                                   attributes.Get(), /*has_side_effect=*/checks, aliases, nullptr,
                                   xla::SCHEDULE_NONE, xla::API_VERSION_TYPED_FFI);
}

std::vector<XlaOp> CallHost(const char* target, const std::vector<XlaOp>& operands,
                            const std::vector<Shape>& results, const CallAttributes& attributes,
                            bool checks, const Aliases& aliases) {
  const XlaOp call =
      CallHost(target, operands, ShapeUtil::MakeTupleShape(results), attributes, checks, aliases);
  std::vector<XlaOp> elements;
  for (size_t i = 0; i < results.size(); ++i) elements.push_back(xla::GetTupleElement(call, i));
  return elements;
}

}  // namespace tf_ti
