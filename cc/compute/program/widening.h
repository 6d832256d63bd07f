// Numbers of half precision that become floats where they are read.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_WIDENING_H_
#define TF_TI_CC_COMPUTE_PROGRAM_WIDENING_H_

#include "cc/compute/program/steps.h"

namespace tf_ti {

// Steps may read parts alone of an input or constant of half precision: a few rows of a table, say.
// Only these parts become floats then: a gather chooses among the stored numbers, and any other
// step reads floats of its part.
ProgramSteps WideningParts(ProgramSteps given);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_WIDENING_H_
