#include "cc/compute/program/kernels_of.h"

#define TF_TI_LOOPS "cc/compute/program/instructions-inl.h"
#include "cc/compute/each_instruction_set-inl.h"

namespace tf_ti {

Kernel KernelOfInt32s(Operation operation, ElementType to, int layout, int64_t count) {
  TF_TI_RETURN_BEST(KernelOf<int32_t>(operation, to, layout, count));
}

Kernel KernelOfInt64s(Operation operation, ElementType to, int layout, int64_t count) {
  TF_TI_RETURN_BEST(KernelOf<int64_t>(operation, to, layout, count));
}

Kernel KernelOfBools(Operation operation, ElementType to, int layout, int64_t count) {
  TF_TI_RETURN_BEST(KernelOf<uint8_t>(operation, to, layout, count));
}

Kernel ExtremeKernelOfHalves(Operation operation, ElementType to, int layout) {
  TF_TI_RETURN_BEST(ExtremeKernelOfHalves<Half>(operation, to, layout));
}

Kernel ExtremeKernelOfBFloat16s(Operation operation, ElementType to, int layout) {
  TF_TI_RETURN_BEST(ExtremeKernelOfHalves<BFloat16>(operation, to, layout));
}

Kernel WideningKernelOfHalves(int layout, int64_t count) {
  TF_TI_RETURN_BEST(WideningKernel<Half>(layout, count));
}

Kernel WideningKernelOfBFloat16s(int layout, int64_t count) {
  TF_TI_RETURN_BEST(WideningKernel<BFloat16>(layout, count));
}

}  // namespace tf_ti
