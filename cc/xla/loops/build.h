// The compilation of a loop by XLA: the While that a plan becomes.
#ifndef TF_TI_CC_XLA_LOOPS_BUILD_H_
#define TF_TI_CC_XLA_LOOPS_BUILD_H_

#include "absl/status/status.h"
#include "cc/xla/loops/plan.h"
#include "cc/xla/tf2xla.h"

namespace tf_ti {

// Builds the loop, and sets the op's outputs.
//
// A state goes from one iteration to the next; it becomes the While's tuple. Pieces are taken by
// dynamic slices, and outputs are updated in place by dynamic-update-slices. Where the last piece
// is shorter than the others, its iteration is a call beside the While.
absl::Status BuildLoop(const LoopPlan& plan, const Context& ctx);

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_LOOPS_BUILD_H_
