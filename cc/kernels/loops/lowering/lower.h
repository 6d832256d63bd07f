// Operations of bodies of loops as steps of programs.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_LOWER_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_LOWER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cc/kernels/loops/lowering/context.h"
#include "cc/kernels/loops/lowering/lowered.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_ti {

// True if an operation can be lowered, as far as its name tells.
bool MayBeLowered(const tensorflow::NodeDef& node);
// The names of these operations, with spaces between them: Python's passes ask for them.
extern "C" const char* TfTiLoweredOperations();
// Likewise, the types that arrays of programs have.
extern "C" const char* TfTiLoweredTypes();
// The most elements that an array of a program has.
extern "C" int64_t TfTiMostElements();
// True if an operation computes nothing from an array's elements.
bool IsView(const tensorflow::NodeDef& node);

// Adds an operation to a program, and returns its outputs. An error says why the operation cannot
// be lowered with these inputs.
absl::StatusOr<std::vector<Lowered>> Lower(LoweringContext& context,
                                           const tensorflow::NodeDef& node,
                                           const std::vector<Lowered>& inputs);

// Refuses outputs unless they have the types and shapes that TensorFlow infers from the inputs. The
// kernel reports inputs that do not fit the operation.
absl::Status CheckInferred(const tensorflow::NodeDef& node, const std::vector<Lowered>& inputs,
                           const std::vector<Lowered>& outputs);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_LOWER_H_
