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
  const auto found = constants_.find(value.known->data());
  if (found != constants_.end() && found->second.tensor.dtype() == value.known->dtype() &&
      found->second.tensor.shape() == value.known->shape()) {
    return found->second.view;
  }
  const View view = builder_.AddConstant(*type, DimsOf(value), value.known->data());
  if (value.known->NumElements() > 0) constants_[value.known->data()] = {*value.known, view};
  return view;
}

absl::Status LoweringContext::FailWhere(const Term& bools) {
  TF_ASSIGN_OR_RETURN(const View any, bools.Reduced(Operation::kAny, 0).view());
  return FailIf(any.Reshape({}));
}

absl::StatusOr<std::optional<View>> LoweringContext::FailureSoFar() {
  if (!failure_.has_value() || !before_.has_value()) {
    return failure_.has_value() ? failure_ : before_;
  }
  return builder_.Apply(Operation::kLogicalOr, {*failure_, *before_});
}

LoweringContext::Failures LoweringContext::BeginIteration(const View& before) {
  Failures around = {std::exchange(failure_, std::nullopt), std::exchange(before_, before)};
  return around;
}

void LoweringContext::EndIteration(Failures around) {
  failure_ = std::move(around.failure);
  before_ = std::move(around.before);
}

absl::Status LoweringContext::FailIf(const View& fails) {
  failure_ =
      failure_.has_value() ? builder_.Apply(Operation::kLogicalOr, {*failure_, fails}) : fails;
  return absl::OkStatus();
}

}  // namespace tf_ti
