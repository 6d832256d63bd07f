// Includes the file TF_TI_LOOPS once for each instruction set, inside a namespace of its own in
// that of tf_ti: baseline, avx2 and avx512. Processors other than x86 have the first alone.
// TF_TI_VECTOR_BYTES is the size of the vector registers there.
//
// Nothing in such a file may call an inline function of another header, unless that is included
// there likewise. The linker keeps one copy of such a function, which might be the one for an
// instruction set that the processor lacks.

#include <cstdint>
#include <type_traits>

#include "cc/compute/instruction_set.h"
#include "cc/compute/numbers.h"

#ifdef TF_TI_X86
#include <immintrin.h>
#endif

namespace tf_ti {
namespace {

#define TF_TI_VECTOR_BYTES 16
namespace baseline {
#include TF_TI_LOOPS
}  // namespace baseline
#undef TF_TI_VECTOR_BYTES

#ifdef TF_TI_X86
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#define TF_TI_VECTOR_BYTES 32
namespace avx2 {
#include TF_TI_LOOPS
}  // namespace avx2
#undef TF_TI_VECTOR_BYTES
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl")
#define TF_TI_VECTOR_BYTES 64
namespace avx512 {
#include TF_TI_LOOPS
}  // namespace avx512
#undef TF_TI_VECTOR_BYTES
#pragma GCC pop_options
#endif

}  // namespace
}  // namespace tf_ti

// Returns the value of an expression in the namespace of the best instruction set.
#ifdef TF_TI_X86
#define TF_TI_RETURN_BEST(...)                                                          \
  if (AvailableInstructionSet() == InstructionSet::kAvx512) return avx512::__VA_ARGS__; \
  if (AvailableInstructionSet() == InstructionSet::kAvx2) return avx2::__VA_ARGS__;     \
  return baseline::__VA_ARGS__
#else
#define TF_TI_RETURN_BEST(...) return baseline::__VA_ARGS__
#endif
