// Arrays in formulas.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_TERM_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_TERM_H_

#include <optional>
#include <utility>
#include <vector>

#include "cc/compute/program/builder.h"
#include "cc/kernels/loops/lowering/lowered.h"

namespace tf_ti {

// An array of a program, as a formula has it: x * y adds the operation to the program. Where there
// is no kernel for an operation its term has no array, and no term made of it has one.
class Term {
 public:
  Term(ProgramBuilder* builder, std::optional<View> view)
      : builder_(builder), view_(std::move(view)) {}

  // The array, refused where there is none.
  absl::StatusOr<View> view() const { return OrRefused(view_); }
  // The type of a term that has an array.
  ElementType type() const { return view_->type; }
  // One number of the same type.
  Term Number(double value) const;
  // Reduces along a dimension, which stays as a dimension of 1.
  Term Reduced(Operation operation, int dim) const;
  // Bools, as numbers of another's type.
  Term As(const Term& other) const;

  friend Term Applied(Operation operation, const std::vector<Term>& operands);

 private:
  ProgramBuilder* builder_;
  std::optional<View> view_;
};

Term Applied(Operation operation, const std::vector<Term>& operands);

inline Term operator-(const Term& x) { return Applied(Operation::kNeg, {x}); }
inline Term operator+(const Term& x, const Term& y) { return Applied(Operation::kAdd, {x, y}); }
inline Term operator-(const Term& x, const Term& y) { return Applied(Operation::kSub, {x, y}); }
inline Term operator*(const Term& x, const Term& y) { return Applied(Operation::kMul, {x, y}); }
inline Term operator/(const Term& x, const Term& y) { return Applied(Operation::kDiv, {x, y}); }
inline Term operator<(const Term& x, const Term& y) { return Applied(Operation::kLess, {x, y}); }
inline Term operator==(const Term& x, const Term& y) { return Applied(Operation::kEqual, {x, y}); }

inline Term Abs(const Term& x) { return Applied(Operation::kAbs, {x}); }
inline Term And(const Term& x, const Term& y) { return Applied(Operation::kLogicalAnd, {x, y}); }
inline Term Exp(const Term& x) { return Applied(Operation::kExp, {x}); }
inline Term Not(const Term& x) { return Applied(Operation::kLogicalNot, {x}); }
inline Term Floor(const Term& x) { return Applied(Operation::kFloor, {x}); }
inline Term Log(const Term& x) { return Applied(Operation::kLog, {x}); }
inline Term Log1p(const Term& x) { return Applied(Operation::kLog1p, {x}); }
inline Term Maximum(const Term& x, const Term& y) { return Applied(Operation::kMaximum, {x, y}); }
inline Term Minimum(const Term& x, const Term& y) { return Applied(Operation::kMinimum, {x, y}); }
inline Term Where(const Term& condition, const Term& x, const Term& y) {
  return Applied(Operation::kSelect, {condition, x, y});
}

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_TERM_H_
