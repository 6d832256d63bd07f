// Loops in bodies of loops as loops of programs.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_LOOPS_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_LOOPS_H_

#include <vector>

#include "cc/kernels/loops/lowering/context.h"
#include "cc/kernels/loops/lowering/lower.h"
#include "cc/kernels/loops/lowering/lowered.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_ti {

// True for a loop without effects.
bool IsInnerLoop(const tensorflow::NodeDef& node);

// The functions that loops refer to, and a library that optimises them; null for none.
struct Functions {
  const tensorflow::FunctionLibraryDefinition* definitions;
  tensorflow::FunctionLibraryRuntime* library;
};

// Adds a loop to a program, and returns its outputs, as Lower does; an output that is not read may
// have no value. `functions` has its body.
absl::StatusOr<std::vector<Lowered>> LowerLoop(LoweringContext& context,
                                               const tensorflow::NodeDef& node,
                                               const std::vector<Lowered>& inputs,
                                               const std::vector<bool>& is_read,
                                               const Functions& functions);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_LOOPS_H_
