// The loops of elementwise steps.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_MERGED_LOOPS_H_
#define TF_TI_CC_COMPUTE_PROGRAM_MERGED_LOOPS_H_

#include <cstdint>
#include <vector>

#include "cc/compute/program/instructions.h"
#include "cc/compute/program/steps.h"
#include "cc/compute/program/view.h"

namespace tf_ti {

// The dimensions of a step, the last first, without those of 1, and neighbours made one where all
// operands allow it.
struct Loops {
  Dims sizes;
  std::vector<Dims> strides;  // of each operand
  int layout = 0;             // of the kernel that runs them
};

Loops MergeLoops(const std::vector<View>& views);

// The loops that an elementwise step runs: where no kernel takes the operands as they lie, rows of
// one element. An instruction has kMostLoops; the loops beyond have the smallest sizes.
Loops LoopsOf(const ProgramSteps::Step& step);

// The number of a step's instructions: one for each turn of the loops beyond kMostLoops.
int64_t InstructionsOf(const ProgramSteps::Step& step);
// The same for the step that copies a view's elements one behind the other.
int64_t InstructionsOfCopy(const View& view);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_MERGED_LOOPS_H_
