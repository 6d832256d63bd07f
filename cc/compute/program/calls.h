// The kernels of instructions that compute one number after the other.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_CALLS_H_
#define TF_TI_CC_COMPUTE_PROGRAM_CALLS_H_

#include "cc/compute/program/instructions.h"

namespace tf_ti {

// The kernel of an operation that IsCall, or null where there is none. It takes any layout.
Kernel FindCall(Operation operation, ElementType type);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_CALLS_H_
