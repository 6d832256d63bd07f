// How arithmetic asks for threads, whoever has them.
#ifndef TF_TI_CC_COMPUTE_PARALLEL_H_
#define TF_TI_CC_COMPUTE_PARALLEL_H_

#include <cstdint>
#include <functional>

namespace tf_ti {

class Parallel {
 public:
  virtual ~Parallel() = default;

  virtual int64_t num_threads() const = 0;

  // Calls work(0) ... work(count - 1), in any order and maybe at the same time, and waits for all.
  virtual void Run(int64_t count, const std::function<void(int64_t)>& work) = 0;

  // Has other threads call join(1) ... join(count - 1) some day, maybe after this object is gone,
  // or never. Returns at once.
  virtual void Invite(int64_t count, const std::function<void(int64_t)>& join) = 0;
};

// In how many parts to cut work that moves `bytes` in all (more than there can be where rows that
// are never read are long): parts worth a thread's waking up, and
// more of them than threads, as these do not start or run alike.
inline int64_t NumParts(const Parallel& parallel, double bytes) {
  constexpr double kSmallest = 128 << 10;
  if (parallel.num_threads() == 1) return 1;
  const int64_t most = 8 * parallel.num_threads();
  return bytes < kSmallest * most ? static_cast<int64_t>(bytes / kSmallest) + 1 : most;
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PARALLEL_H_
