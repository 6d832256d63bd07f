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
  // In the first steps, all parts of a step are over before the next one begins. Later, each part
  // goes on as fast as it can.
  int64_t num_meetings;
  std::function<void(int64_t step, int64_t part)> work;  // does not throw
  // Asked before each step; once it is false, it stays so, and the rest is left out.
  std::function<bool()> goes_on;
};

// Calls work(step, part) once for all steps and parts, and returns. There are at most kMostParts
// parts.
//
// A part has a thread of its own, if one comes. The calling thread does the first part. Of the
// others, it does each step that nobody has begun when it gets there: it waits only for threads in
// the middle of a step. If one of them has lost its core, which takes milliseconds, the calling
// thread waits asleep, and does without that thread until the end of the call. A thread that comes
// late, or comes back, joins at the next step. So it makes no difference but in time which threads
// come, and when.
void RunSteps(const Steps& steps, int64_t num_parts, Parallel* parallel);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_RECURRENT_TEAM_H_
