// Threads of a thread pool that is not ours.
#ifndef TF_TI_CC_COMPUTE_POOL_THREADS_H_
#define TF_TI_CC_COMPUTE_POOL_THREADS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "cc/compute/parallel.h"

namespace tf_ti {

// The calling thread works too, and waits only for threads that have begun. So it makes progress
// when all others are busy or asleep, and it may hold a lock meanwhile. No thread spins for long: a
// waiting one falls asleep after tens of microseconds. Threads that have helped wait as long for
// the next call before they go back to the thread pool, unless others have wanted their cores
// lately. Where there are no calls, nothing runs.
//
// Whoever does the work has the calling thread's floating-point mode meanwhile. What the work of
// Run throws, Run throws, once no thread works any more; pieces that have not begun are left out.
// Where there is no memory to ask for help, nobody comes, and the calling thread does all.
class PoolThreads : public Parallel {
 public:
  // Has a thread of the thread pool call a function, sooner or later.
  using Schedule = std::function<void(std::function<void()>)>;

  PoolThreads(int64_t num_threads, Schedule schedule);

  int64_t num_threads() const override { return num_threads_; }
  void Run(int64_t count, const std::function<void(int64_t)>& work) override;
  void RunLong(
      int64_t count,
      const std::function<void(int64_t, const std::function<void()>& remind)>& work) override;
  std::unique_ptr<Invitation> Invite(int64_t count, std::function<void(int64_t)> join) override;

 private:
  const int64_t num_threads_;
  const Schedule schedule_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_POOL_THREADS_H_
