#include "cc/kernels/loops/lowering/context.h"

#include "cc/kernels/loops/lowering/rules.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace tf_ti {

absl::StatusOr<View> LoweringContext::ViewOf(const Lowered& value) {
  if (value.view.has_value()) return *value.view;
  if (!value.known.has_value()) return Refused("programs have no variant");
  const std::optional<ElementType> type = ElementTypeOf(value.known->dtype());
  if (!type.has_value()) {
    return Refused("programs have no ", tensorflow::DataTypeString(value.known->dtype()));
  }
  TF_RETURN_IF_ERROR(CheckCount(value.known->NumElements()));
  return builder_.AddConstant(*type, DimsOf(value), value.known->data());
}

absl::Status LoweringContext::FailWhere(const Term& bools) {
  TF_ASSIGN_OR_RETURN(const View any, bools.Reduced(Operation::kAny, 0).view());
  return FailIf(any.Reshape({}));
}

absl::Status LoweringContext::FailIf(const View& fails) {
  failure_ =
      failure_.has_value() ? builder_.Apply(Operation::kLogicalOr, {*failure_, fails}) : fails;
  return absl::OkStatus();
}

}  // namespace tf_ti
