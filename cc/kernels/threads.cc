#include "cc/kernels/threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
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

// Threads that have just helped, and wait a little for more before they go back to their pool: one
// that sleeps takes tens of microseconds to wake up, or milliseconds on a busy virtual machine.
class Idle {
 public:
  using Work = std::function<void()>;

  // Has an idle thread do the work, if there is one.
  bool Give(const Work& work) {
    for (std::atomic<const Work*>& place : places_) {
      const Work* expected = &kNothing;
      if (place.load(std::memory_order_relaxed) != expected) continue;
      const Work* const given = new Work(work);
      if (place.compare_exchange_strong(expected, given)) return true;
      delete given;
    }
    return false;
  }

  // Does the work, and what it is given meanwhile.
  void Do(const Work& work) {
    Clock::duration patience = DoOne(work);
    while (const std::unique_ptr<const Work> next{Wait(patience)}) patience = DoOne(*next);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kMostMicroseconds = 100;
  static const Work kNothing;

  // How long to wait after that: others want the processor too.
  static Clock::duration DoOne(const Work& work) {
    const Clock::time_point start = Clock::now();
    work();
    const Clock::duration most = std::chrono::microseconds(kMostMicroseconds);
    return std::min((Clock::now() - start) / 10, most);
  }

  const Work* Wait(Clock::duration patience) {
    const Clock::time_point until = Clock::now() + patience;
    for (std::atomic<const Work*>& place : places_) {
      const Work* given = nullptr;
      if (!place.compare_exchange_strong(given, &kNothing)) continue;
      while ((given = place.load(std::memory_order_acquire)) == &kNothing && Clock::now() < until) {
#if defined(__x86_64__)
        for (int spin = 0; spin < 8; ++spin) __builtin_ia32_pause();
#endif
      }
      given = place.exchange(nullptr);
      return given == &kNothing ? nullptr : given;
    }
    return nullptr;
  }

  // Null: nobody is there; kNothing: somebody waits.
  std::atomic<const Work*> places_[16] = {};
};

const Idle::Work Idle::kNothing;
Idle idle;

}  // namespace

Threads::Threads(int64_t num_threads, Schedule schedule)
    : num_threads_(num_threads), schedule_(std::move(schedule)) {}

Threads::Threads(tensorflow::OpKernelContext* ctx)
    : Threads(ctx->device()->tensorflow_cpu_worker_threads()->num_threads,
              [workers = ctx->device()->tensorflow_cpu_worker_threads()->workers](
                  std::function<void()> work) { workers->Schedule(std::move(work)); }) {}

void Threads::Start(std::function<void()> work) {
  if (idle.Give(work)) return;
  schedule_([work = std::move(work)] { idle.Do(work); });
}

void Threads::Run(int64_t count, const std::function<void(int64_t)>& work) {
  const int64_t helpers = std::min(count, num_threads()) - 1;
  if (helpers <= 0) {
    Shared(count, work).Work();
    return;
  }
  const auto shared = std::make_shared<Shared>(count, work);
  for (int64_t i = 0; i < helpers; ++i) Start([shared] { shared->Work(); });
  shared->Work();
  shared->Wait();
}

void Threads::Invite(int64_t count, const std::function<void(int64_t)>& join) {
  for (int64_t i = 1; i < count; ++i) {
    Start([join, i] {
      const tensorflow::port::ScopedDontFlushDenormal exact;
      join(i);
    });
  }
}

}  // namespace tf_ti
