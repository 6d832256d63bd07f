// What rules add their steps to.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_CONTEXT_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_CONTEXT_H_

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

  // The value as an array of the program.
  absl::StatusOr<View> ViewOf(const Lowered& value);
  // An array in a formula.
  Term TermOf(View view) { return Term(&builder_, std::move(view)); }

  // The program fails if any of the bools is true, which are a vector.
  absl::Status FailWhere(const Term& bools);
  // A bool, if any operation may fail. Where it is true, no output has a meaning.
  const std::optional<View>& failure() const { return failure_; }
  // The program fails if the bool is true.
  absl::Status FailIf(const View& fails);
  // Replaces what was found so far, and returns it: a loop has a failure of its own.
  std::optional<View> SetFailure(std::optional<View> failure) {
    return std::exchange(failure_, std::move(failure));
  }

 private:
  ProgramBuilder builder_;
  std::optional<View> failure_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_CONTEXT_H_
