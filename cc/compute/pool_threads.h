// Threads of a pool that is not ours.
#ifndef TF_TI_CC_COMPUTE_POOL_THREADS_H_
#define TF_TI_CC_COMPUTE_POOL_THREADS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "cc/compute/parallel.h"

namespace tf_ti {

// The calling thread works too, and waits only for threads that have begun: it makes progress when
// all others are busy or asleep, so it may hold a lock meanwhile. Nobody spins for long: who waits
// falls asleep after tens of microseconds. Threads that have helped wait so long for the next call
// before they go back to the pool, unless others have wanted their cores lately; where there are no
// calls, nothing runs.
class PoolThreads : public Parallel {
 public:
  // Has a thread of the pool do something, some day.
  using Schedule = std::function<void(std::function<void()>)>;

  PoolThreads(int64_t num_threads, Schedule schedule);

  int64_t num_threads() const override { return num_threads_; }
  void Run(int64_t count, const std::function<void(int64_t)>& work) override;
  std::unique_ptr<Invitation> Invite(int64_t count, std::function<void(int64_t)> join) override;

 private:
  const int64_t num_threads_;
  const Schedule schedule_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_POOL_THREADS_H_
