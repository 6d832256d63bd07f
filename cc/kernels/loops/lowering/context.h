// What rules add their steps to.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_CONTEXT_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_CONTEXT_H_

#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cc/compute/program/builder.h"
#include "cc/kernels/loops/lowering/lowered.h"
#include "cc/kernels/loops/lowering/term.h"

namespace tf_ti {

// The program of the operations that are lowered, and when it fails. A rule that is refused may
// leave steps behind, which no output depends on; no operation is lowered after it.
class LoweringContext {
 public:
  ProgramBuilder& builder() { return builder_; }

  // The value as an array of the program. Of a tensor that is known the program has one array.
  absl::StatusOr<View> ViewOf(const Lowered& value);
  // An array in a formula.
  Term TermOf(View view) { return Term(&builder_, std::move(view)); }

  // The program fails if any of the bools is true, which are a vector.
  absl::Status FailWhere(const Term& bools);
  // A bool, if any operation may fail. Where it is true, no output has a meaning.
  const std::optional<View>& failure() const { return failure_; }
  // The program fails if the bool is true.
  absl::Status FailIf(const View& fails);
  // A bool that tells a failure of the operations so far, and of the iterations of loops around
  // them.
  absl::StatusOr<std::optional<View>> FailureSoFar();
  // An iteration of a loop has a failure of its own. `before` is true if an earlier iteration has
  // failed, or a step before the loop. Returns the failures around the loop, for EndIteration.
  struct Failures {
    std::optional<View> failure;
    std::optional<View> before;
  };
  Failures failures() const { return {failure_, before_}; }
  Failures BeginIteration(const View& before);
  void EndIteration(Failures around);

 private:
  ProgramBuilder builder_;
  std::optional<View> failure_;
  std::optional<View> before_;
  struct Constant {
    tensorflow::Tensor tensor;
    View view;
  };
  std::map<const void*, Constant> constants_;  // by the address of the elements
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_CONTEXT_H_
