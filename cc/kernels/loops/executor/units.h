// The kernels and programs of a body as units, for iterations that are on their way at once.
#ifndef TF_TI_CC_KERNELS_LOOPS_EXECUTOR_UNITS_H_
#define TF_TI_CC_KERNELS_LOOPS_EXECUTOR_UNITS_H_

#include "cc/kernels/loops/executor.h"
#include "cc/kernels/loops/lowering/compiled_body.h"
#include "cc/kernels/loops/schedule.h"

namespace tf_ti {

// Calls read(source) for each source that a unit reads.
template <typename Read>
void EachRead(const Schedule& schedule, const CompiledBody& body, const CompiledBody::Unit& unit,
              const Read& read) {
  const auto of_step = [&](int s) {
    for (const Source& source : schedule.InputsOf(schedule.steps[s])) read(source);
  };
  // The shapes of these arrays are compared before the unit runs.
  for (const Region::Array& array : body.DecidedBy(unit)) read(array.source);
  if (unit.region < 0) return of_step(unit.step);
  for (const int s : body.regions[unit.region].steps) of_step(s);
}

// Returns true if a program runs the unit, or could at other shapes.
inline bool DependsOnShapes(const CompiledBody::Unit& unit) {
  return unit.region >= 0 || !unit.inputs.empty();
}

// Finds the order among the units of a body, their times, and the origins of the body's results.
BodyUnits UnitsOf(const Schedule& schedule, const CompiledBody& body);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_EXECUTOR_UNITS_H_
