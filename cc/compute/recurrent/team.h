// Threads that take many short steps together.
#ifndef TF_TI_CC_COMPUTE_RECURRENT_TEAM_H_
#define TF_TI_CC_COMPUTE_RECURRENT_TEAM_H_

#include <cstdint>
#include <functional>

#include "cc/compute/parallel.h"

namespace tf_ti {

constexpr int64_t kMostParts = 16;

struct Steps {
  int64_t num_steps;
  // In the first of them all parts of a step are over before the next one begins. Later each part
  // goes on as fast as it can.
  int64_t num_meetings;
  std::function<void(int64_t step, int64_t part)> work;
  std::function<bool()> goes_on;  // asked before each step; if it is false the rest is left out
};

// Calls work(step, part) for all steps and parts, of which there are at most kMostParts, and
// returns. A part has a thread of its own, once that has come; the calling thread does the parts of
// those that are missing, so it waits for nobody who has not begun.
void RunSteps(const Steps& steps, int64_t num_parts, Parallel* parallel);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_RECURRENT_TEAM_H_
