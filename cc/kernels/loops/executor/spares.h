// A stock of objects for threads that each need one for a while.
#ifndef TF_TI_CC_KERNELS_LOOPS_EXECUTOR_SPARES_H_
#define TF_TI_CC_KERNELS_LOOPS_EXECUTOR_SPARES_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tf_ti {

// One thread at a time uses an object. The stock makes an object if all others are in use, and so
// grows to the number that threads have used at once.
template <typename T>
class Spares {
 public:
  template <typename Make>
  std::unique_ptr<T> Take(const Make& make) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!spares_.empty()) {
        std::unique_ptr<T> spare = std::move(spares_.back());
        spares_.pop_back();
        return spare;
      }
    }
    return make();
  }
  void GiveBack(std::unique_ptr<T> spare) {
    const std::lock_guard<std::mutex> lock(mutex_);
    spares_.push_back(std::move(spare));
  }

 private:
  std::mutex mutex_;  // guards spares_
  std::vector<std::unique_ptr<T>> spares_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_EXECUTOR_SPARES_H_
