#include "cc/kernels/loops/lowering/term.h"

namespace tf_ti {

Term Term::Number(double value) const {
  if (!view_.has_value()) return *this;
  const View number = builder_->AddConstant(ElementType::kDouble, {}, &value);
  return Term(builder_, builder_->Cast(number, view_->type));
}

Term Term::Reduced(Operation operation, int dim) const {
  if (!view_.has_value()) return *this;
  return Term(builder_, builder_->Reduce(operation, *view_, dim, view_->type));
}

Term Term::As(const Term& other) const {
  if (!view_.has_value()) return *this;
  if (!other.view_.has_value()) return other;
  return Term(builder_, builder_->Cast(*view_, other.view_->type));
}

Term Applied(Operation operation, const std::vector<Term>& operands) {
  std::vector<View> views;
  for (const Term& operand : operands) {
    if (!operand.view_.has_value()) return operand;
    views.push_back(*operand.view_);
  }
  return Term(operands[0].builder_, operands[0].builder_->Apply(operation, views));
}

}  // namespace tf_ti
