// Steps that read what copies are made of, not the copies.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_SOURCES_H_
#define TF_TI_CC_COMPUTE_PROGRAM_SOURCES_H_

#include "cc/compute/program/steps.h"

namespace tf_ti {

// Rolls and concatenations put an array together from parts of others. Where elementwise steps
// alone read such an array they read the parts: each becomes one step for every part, and nothing
// is put together. Arrays whose absence saves less than `least_saving` nanoseconds stay.
ProgramSteps ReadingSources(const ProgramSteps& given, double least_saving);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_SOURCES_H_
