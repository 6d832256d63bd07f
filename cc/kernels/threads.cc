#include "cc/kernels/threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

namespace tf_ti {
namespace {

// Pieces of work that whoever comes may take. It outlives the call for threads that come too late.
class Shared {
 public:
  Shared(int64_t count, const std::function<void(int64_t)>& work) : count_(count), work_(&work) {}

  // Takes pieces until none is left. An exception would leave the others with work that is gone.
  void Work() noexcept {
    const tensorflow::port::ScopedDontFlushDenormal exact;
    int64_t finished = 0;
    for (int64_t k; (k = next_.fetch_add(1)) < count_; ++finished) (*work_)(k);
    if (finished > 0 && done_.fetch_add(finished) + finished == count_) {
      const std::lock_guard<std::mutex> lock(mutex_);
      all_done_.notify_one();
    }
  }

  void Wait() {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (done_.load() == count_) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return done_.load() == count_; });
  }

 private:
  // Tens of microseconds: longer than most pieces take, shorter than it takes to fall asleep and
  // be woken.
  static constexpr int kSpins = 1000;

  const int64_t count_;
  const std::function<void(int64_t)>* const work_;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> done_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
};

}  // namespace

Threads::Threads(int64_t num_threads, Schedule schedule)
    : num_threads_(num_threads), schedule_(std::move(schedule)) {}

Threads::Threads(tensorflow::OpKernelContext* ctx)
    : Threads(ctx->device()->tensorflow_cpu_worker_threads()->num_threads,
              [workers = ctx->device()->tensorflow_cpu_worker_threads()->workers](
                  std::function<void()> work) { workers->Schedule(std::move(work)); }) {}

void Threads::Run(int64_t count, const std::function<void(int64_t)>& work) {
  const int64_t helpers = std::min(count, num_threads()) - 1;
  if (helpers <= 0) {
    Shared(count, work).Work();
    return;
  }
  const auto shared = std::make_shared<Shared>(count, work);
  for (int64_t i = 0; i < helpers; ++i) schedule_([shared] { shared->Work(); });
  shared->Work();
  shared->Wait();
}

void Threads::Invite(int64_t count, const std::function<void(int64_t)>& join) {
  for (int64_t i = 1; i < count; ++i) {
    schedule_([join, i] {
      const tensorflow::port::ScopedDontFlushDenormal exact;
      join(i);
    });
  }
}

}  // namespace tf_ti
