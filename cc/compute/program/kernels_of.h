#ifndef TF_TI_CC_COMPUTE_PROGRAM_KERNELS_OF_H_
#define TF_TI_CC_COMPUTE_PROGRAM_KERNELS_OF_H_

#include <cstdint>

#include "cc/compute/program/instructions.h"

namespace tf_ti {

// What FindKernel finds for operands of one type. There are several sources of them, as they take
// long to compile.
Kernel KernelOfFloats(Operation operation, ElementType to, int layout, int64_t count);
Kernel KernelOfDoubles(Operation operation, ElementType to, int layout, int64_t count);
Kernel KernelOfInt32s(Operation operation, ElementType to, int layout, int64_t count);
Kernel KernelOfInt64s(Operation operation, ElementType to, int layout, int64_t count);
Kernel KernelOfBools(Operation operation, ElementType to, int layout, int64_t count);

// Max, Min, ArgMax and ArgMin of half precision. The first two choose among zeros as TensorFlow's
// kernels; the others begin at the largest finite number of the type.
Kernel ExtremeKernelOfHalves(Operation operation, ElementType to, int layout);
Kernel ExtremeKernelOfBFloat16s(Operation operation, ElementType to, int layout);

// The kernels that make floats of halves.
Kernel WideningKernelOfHalves(int layout, int64_t count);
Kernel WideningKernelOfBFloat16s(int layout, int64_t count);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_KERNELS_OF_H_
