#include "cc/kernels/loops/lowering/lowered.h"

#include <utility>

namespace tf_ti {

using tensorflow::DataType;

std::optional<ElementType> ElementTypeOf(DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:
      return ElementType::kFloat;
    case tensorflow::DT_DOUBLE:
      return ElementType::kDouble;
    case tensorflow::DT_HALF:
      return ElementType::kHalf;
    case tensorflow::DT_BFLOAT16:
      return ElementType::kBFloat16;
    case tensorflow::DT_INT32:
      return ElementType::kInt32;
    case tensorflow::DT_INT64:
      return ElementType::kInt64;
    case tensorflow::DT_BOOL:
      return ElementType::kBool;
    default:
      return std::nullopt;
  }
}

DataType DataTypeOf(ElementType type) {
  constexpr DataType kTypes[kNumElementTypes] = {
      tensorflow::DT_FLOAT, tensorflow::DT_DOUBLE, tensorflow::DT_HALF, tensorflow::DT_BFLOAT16,
      tensorflow::DT_INT32, tensorflow::DT_INT64,  tensorflow::DT_BOOL};
  return kTypes[static_cast<int>(type)];
}

Dims DimsOf(const Lowered& value) {
  if (value.view.has_value()) return value.view->dims;
  if (!value.known.has_value()) return {};
  const auto dims = value.known->shape().dim_sizes();
  return Dims(dims.begin(), dims.end());
}

DataType DataTypeOf(const Lowered& value) {
  if (value.view.has_value()) return DataTypeOf(value.view->type);
  return value.known.has_value() ? value.known->dtype() : tensorflow::DT_VARIANT;
}

absl::StatusOr<View> OrRefused(std::optional<View> result) {
  if (!result.has_value()) return Refused("there is no kernel for the type");
  return *std::move(result);
}

}  // namespace tf_ti
