#include "cc/xla/loops/history.h"

#include <functional>
#include <utility>

#include "absl/types/span.h"
#include "cc/status.h"
#include "cc/xla/concatenate.h"
#include "cc/xla/shapes.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/shape_util.h"

namespace tf_ti {

using xla::Shape;
using xla::ShapeUtil;
using xla::XlaBuilder;
using xla::XlaOp;

namespace {

// The kinds of histories, as a mark's second dimension. kRagged adds the number of the last value's
// arrays.
constexpr int64_t kUniform = -1, kUnrecorded = 0, kBounded = 1, kRagged = 2;

// Calls a function for every array of some values of one structure, and puts its results into that
// structure.
XlaOp MapArrays(std::vector<XlaOp> values, const std::function<XlaOp(std::vector<XlaOp>)>& map) {
  XlaBuilder* builder = values[0].builder();
  const absl::StatusOr<Shape> shape = builder->GetShape(values[0]);
  if (!shape.ok()) return builder->ReportError(shape.status());
  if (!shape->IsTuple()) return map(std::move(values));
  std::vector<XlaOp> elements;
  for (size_t i = 0; i < shape->tuple_shapes().size(); ++i) {
    std::vector<XlaOp> parts;
    for (XlaOp value : values) parts.push_back(xla::GetTupleElement(value, i));
    elements.push_back(MapArrays(std::move(parts), map));
  }
  return xla::Tuple(builder, elements);
}

Shape MapShape(const Shape& shape, const std::function<Shape(const Shape&)>& map) {
  if (!shape.IsTuple()) return map(shape);
  std::vector<Shape> elements;
  for (const Shape& element : shape.tuple_shapes()) elements.push_back(MapShape(element, map));
  return ShapeUtil::MakeTupleShape(elements);
}

// The position of a value in an array of a stack.
std::vector<XlaOp> Starts(XlaOp array, XlaOp at) {
  std::vector<XlaOp> starts(ShapeOf(array).dimensions().size(),
                            xla::ConstantR0<int32_t>(array.builder(), 0));
  starts[0] = at;
  return starts;
}

XlaOp DropFirst(XlaOp array) {
  const Shape shape = ShapeOf(array);
  return xla::Reshape(array, shape.dimensions().subspan(1));
}

XlaOp AddFirst(XlaOp array) {
  const Shape shape = ShapeOf(array);
  std::vector<int64_t> dims = {1};
  dims.insert(dims.end(), shape.dimensions().begin(), shape.dimensions().end());
  return xla::Reshape(array, dims);
}

}  // namespace

Shape StackShape(const Shape& value, int64_t count) {
  return MapShape(value, [&](const Shape& array) {
    std::vector<int64_t> dims = {count};
    dims.insert(dims.end(), array.dimensions().begin(), array.dimensions().end());
    return ShapeUtil::MakeShape(array.element_type(), dims);
  });
}

XlaOp ZeroValue(XlaBuilder* builder, const Shape& shape) {
  if (!shape.IsTuple()) return xla::Zeros(builder, shape);
  std::vector<XlaOp> elements;
  for (const Shape& element : shape.tuple_shapes()) {
    elements.push_back(ZeroValue(builder, element));
  }
  return xla::Tuple(builder, elements);
}

Shape HistoryShape(const Shape& value, int64_t count) {
  const Shape stack = StackShape(value, count);
  std::vector<Shape> arrays = {stack};
  if (stack.IsTuple()) arrays = {stack.tuple_shapes().begin(), stack.tuple_shapes().end()};
  arrays.push_back(ShapeUtil::MakeShape(xla::S32, {}));
  return ShapeUtil::MakeTupleShape(arrays);
}

XlaOp StackRange(XlaOp stack, int64_t begin, int64_t size) {
  return MapArrays({stack}, [&](std::vector<XlaOp> arrays) {
    return xla::SliceInDim(arrays[0], begin, begin + size, 1, 0);
  });
}

XlaOp StackRange(XlaOp stack, XlaOp begin, int64_t size) {
  return MapArrays({stack}, [&](std::vector<XlaOp> arrays) {
    const Shape shape = ShapeOf(arrays[0]);
    std::vector<int64_t> sizes(shape.dimensions().begin(), shape.dimensions().end());
    sizes[0] = size;
    return xla::DynamicSlice(arrays[0], Starts(arrays[0], begin), sizes);
  });
}

XlaOp StackElement(XlaOp stack, XlaOp at) {
  return MapArrays({StackRange(stack, at, 1)},
                   [](std::vector<XlaOp> arrays) { return DropFirst(arrays[0]); });
}

XlaOp UpdateStack(XlaOp stack, XlaOp value, XlaOp at, XlaOp condition) {
  std::vector<XlaOp> values = {stack, value};
  if (condition.valid()) values.push_back(StackElement(stack, at));
  return MapArrays(std::move(values), [&](std::vector<XlaOp> arrays) {
    XlaOp update = arrays[1];
    if (condition.valid()) update = xla::Select(condition, update, arrays[2]);
    return xla::DynamicUpdateSlice(arrays[0], AddFirst(update), Starts(arrays[0], at));
  });
}

XlaOp UpdateStackRange(XlaOp stack, XlaOp values, XlaOp at) {
  return MapArrays({stack, values}, [&](std::vector<XlaOp> arrays) {
    return xla::DynamicUpdateSlice(arrays[0], arrays[1], Starts(arrays[0], at));
  });
}

XlaOp JoinStacks(XlaOp stack, XlaOp values) {
  return MapArrays({stack, values}, [](std::vector<XlaOp> arrays) {
    return Concatenate({arrays[0], arrays[1]}, 0);
  });
}

XlaOp AppendToStack(XlaOp stack, XlaOp value) {
  return MapArrays({stack, value}, [](std::vector<XlaOp> arrays) {
    return Concatenate({arrays[0], AddFirst(arrays[1])}, 0);
  });
}

int64_t StackSize(const Shape& stack) {
  const Shape* array = &stack;
  while (array->IsTuple() && !array->tuple_shapes().empty()) array = &array->tuple_shapes(0);
  return array->IsTuple() ? 0 : array->dimensions(0);
}

Shape ElementShape(const Shape& stack) {
  return MapShape(stack, [](const Shape& array) {
    return ShapeUtil::MakeShape(array.element_type(), array.dimensions().subspan(1));
  });
}

absl::Status HistoryParts::Init(XlaOp history, const std::string& label) {
  const Shape shape = ShapeOf(history);
  const int size = shape.IsTuple() ? shape.tuple_shapes().size() : 0;
  if (size < 2) return InvalidArgument(label, ": is not a sequence of tf_ti");
  // A stack of histories ends with their numbers of values, so that no stack looks like a mark.
  const Shape& mark = shape.tuple_shapes(size - 2);
  const bool has_mark = size > 2 && mark.element_type() == xla::PRED;
  const int64_t kind = has_mark ? mark.dimensions(1) : kUniform;
  if (kind == kUnrecorded) {
    return Unimplemented(
        label,
        " was not recorded: XLA must know at most how many iterations the loop "
        "has, so limit their number by a constant (maximum_iterations of while_loop, a "
        "trip limit COUNT of a Loop), and the value's shape");
  }
  std::vector<XlaOp> arrays;
  for (int i = 0; i < size - 1 - has_mark; ++i) arrays.push_back(xla::GetTupleElement(history, i));
  const auto join = [&](int begin, int end) {
    if (end - begin == 1) return arrays[begin];
    return xla::Tuple(history.builder(), absl::MakeSpan(arrays).subspan(begin, end - begin));
  };
  const int num_arrays = arrays.size();
  const int num_last = kind >= kRagged ? kind - kRagged : 0;
  stack = join(0, num_arrays - num_last);
  if (num_last > 0) last = join(num_arrays - num_last, num_arrays);
  if (kind == kBounded) count = xla::GetTupleElement(history, size - 1);
  return absl::OkStatus();
}

XlaOp HistoryParts::Join(XlaBuilder* builder) const {
  std::vector<XlaOp> arrays;
  const auto append = [&](XlaOp value) {
    const Shape shape = ShapeOf(value);
    if (!shape.IsTuple()) arrays.push_back(value);
    for (size_t i = 0; shape.IsTuple() && i < shape.tuple_shapes().size(); ++i) {
      arrays.push_back(xla::GetTupleElement(value, i));
    }
  };
  int64_t size = 0, kind = kUniform;
  if (stack.valid()) {
    append(stack);
    size = StackSize(ShapeOf(stack));
  } else {
    arrays.push_back(xla::Zeros(builder, ShapeUtil::MakeShape(xla::PRED, {0, 0})));
    kind = kUnrecorded;
  }
  if (count.valid()) kind = kBounded;
  if (last.valid()) {
    const size_t before = arrays.size();
    append(last);
    kind = kRagged + arrays.size() - before;
    ++size;
  }
  if (kind != kUniform) {
    arrays.push_back(xla::Zeros(builder, ShapeUtil::MakeShape(xla::PRED, {0, kind})));
  }
  arrays.push_back(count.valid() ? count : xla::ConstantR0<int32_t>(builder, size));
  return xla::Tuple(builder, arrays);
}

XlaOp UniformStack(XlaOp history, const std::string& label) {
  HistoryParts parts;
  absl::Status status = parts.Init(history, label);
  if (status.ok() && (parts.count.valid() || parts.last.valid())) {
    status = Unimplemented(label, ": XLA must know the numbers of its parts' values");
  }
  return status.ok() ? parts.stack : history.builder()->ReportError(status);
}

absl::StatusOr<Shape> UniformStackShape(const Shape& history, const std::string& label) {
  XlaBuilder builder("tf_ti_shape");
  return builder.GetShape(UniformStack(xla::Parameter(&builder, 0, history, "history"), label));
}

}  // namespace tf_ti
