#include "cc/compute/program/kernels_of.h"

#define TF_TI_LOOPS "cc/compute/program/instructions-inl.h"
#include "cc/compute/each_instruction_set-inl.h"

namespace tf_ti {

Kernel KernelOfFloats(Operation operation, ElementType to, int layout, int64_t count) {
  TF_TI_RETURN_BEST(KernelOf<float>(operation, to, layout, count));
}

}  // namespace tf_ti
