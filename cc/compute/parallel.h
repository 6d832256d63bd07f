// Arithmetic's view of threads: whoever has them implements it.
#ifndef TF_TI_CC_COMPUTE_PARALLEL_H_
#define TF_TI_CC_COMPUTE_PARALLEL_H_

#include <cstdint>
#include <functional>
#include <memory>

namespace tf_ti {

// Threads that have been asked to come.
class Invitation {
 public:
  virtual ~Invitation() = default;

  // Asks others, once, to come in place of those that should have come by now. A thread that is
  // woken on a core that is taken waits for it, even if another core is idle. To be called now and
  // then.
  virtual void Remind() = 0;
};

class Parallel {
 public:
  virtual ~Parallel() = default;

  virtual int64_t num_threads() const = 0;

  // Calls work(0) ... work(count - 1), in any order and maybe at the same time. The calling thread
  // takes part, and waits for none that has not begun.
  virtual void Run(int64_t count, const std::function<void(int64_t)>& work) = 0;

  // The same for pieces that take long. A piece calls remind() now and then, which reminds threads
  // that have not come, as an Invitation does.
  virtual void RunLong(
      int64_t count,
      const std::function<void(int64_t, const std::function<void()>& remind)>& work) {
    Run(count, [&](int64_t k) { work(k, [] {}); });
  }

  // Has other threads call join(1) ... join(count - 1) later, maybe after this object is gone, or
  // never; each at most once. Returns at once.
  virtual std::unique_ptr<Invitation> Invite(int64_t count, std::function<void(int64_t)> join) = 0;
};

// The number of parts of work that moves `bytes` in all (more than there can be where rows that are
// never read are long): parts worth waking a thread for, and more of them than threads, as these
// neither start nor run alike.
inline int64_t NumParts(const Parallel& parallel, double bytes) {
  constexpr double kSmallest = 128 << 10;
  if (parallel.num_threads() == 1) return 1;
  const int64_t most = 8 * parallel.num_threads();
  return bytes < kSmallest * most ? static_cast<int64_t>(bytes / kSmallest) + 1 : most;
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PARALLEL_H_
