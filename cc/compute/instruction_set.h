// The vector instructions that the processor has.
#ifndef TF_TI_CC_COMPUTE_INSTRUCTION_SET_H_
#define TF_TI_CC_COMPUTE_INSTRUCTION_SET_H_

// Code for more than the baseline needs GCC's pragmas, and x86. ARM and clang have the baseline
// alone: see INSTRUCTION_SETS.md.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TF_TI_X86 1
#endif

namespace tf_ti {

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

// The best of them, or a lesser one where the environment's TF_TI_INSTRUCTION_SET says so.
InstructionSet AvailableInstructionSet();

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_INSTRUCTION_SET_H_
