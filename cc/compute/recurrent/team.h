// Threads that take many short steps together: a step begins when the last one is over.
#ifndef TF_TI_CC_COMPUTE_RECURRENT_TEAM_H_
#define TF_TI_CC_COMPUTE_RECURRENT_TEAM_H_

#include <cstdint>
#include <functional>

#include "cc/compute/parallel.h"

namespace tf_ti {

constexpr int64_t kMostParts = 16;

// Calls work(step, part) for the steps 0 ... num_steps - 1 and all parts, and returns. All parts of
// a step are over before the next one begins. A part has a thread of its own, once that has come;
// the calling thread does the parts of those that are missing, so it waits for nobody who has not
// begun. There are at most kMostParts. Before
// each step it calls goes_on(), and returns if that is false.
void RunSteps(int64_t num_steps, int64_t num_parts,
              const std::function<void(int64_t, int64_t)>& work,
              const std::function<bool()>& goes_on, Parallel* parallel);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_RECURRENT_TEAM_H_
