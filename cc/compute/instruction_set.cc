#include "cc/compute/instruction_set.h"

#include <cstdlib>
#include <cstring>

namespace tf_ti {
namespace {

InstructionSet Detect() {
#ifdef TF_TI_X86
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  InstructionSet best = has_avx512 ? InstructionSet::kAvx512
                        : has_avx2 ? InstructionSet::kAvx2
                                   : InstructionSet::kBaseline;
  // Lets a test run the code for a lesser processor.
  const char* const most = std::getenv("TF_TI_INSTRUCTION_SET");
  if (most != nullptr && std::strcmp(most, "baseline") == 0) best = InstructionSet::kBaseline;
  if (most != nullptr && std::strcmp(most, "avx2") == 0 && best > InstructionSet::kAvx2) {
    best = InstructionSet::kAvx2;
  }
  return best;
#else
  return InstructionSet::kBaseline;
#endif
}

}  // namespace

InstructionSet AvailableInstructionSet() {
  static const InstructionSet set = Detect();
  return set;
}

}  // namespace tf_ti
